//! The same said in other bytes. What is signed or named by its hash has one spelling, or there would be a second name for it.

use bytes::Bytes;
use ron_core::net::{
    Identity,
    oap::Code,
    rpc::{Method, RpcError},
};
use ron_dht::{Key, network::RecordOutcome as Outcome};

use super::{
    node,
    peers::{PROTOCOLS, Peer, contact, soon},
    records::{Asker, signed},
    status,
};
use crate::governing::Decider;

/// The head of an item of CBOR: how long it is, and the number in it.
fn head(item: &[u8]) -> (usize, u64) {
    let long = match item[0] & 31 {
        24 => 1,
        25 => 2,
        26 => 4,
        27 => 8,
        small => return (1, u64::from(small)),
    };
    let number = item[1..=long].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (1 + long, number)
}

/// The item that begins here.
fn item(bytes: &[u8]) -> &[u8] {
    let (mut end, number) = head(bytes);
    match bytes[0] >> 5 {
        2 | 3 => end += number as usize,
        4 => (0..number).for_each(|_| end += item(&bytes[end..]).len()),
        5 => (0..2 * number).for_each(|_| end += item(&bytes[end..]).len()),
        _ => {}
    }
    &bytes[..end]
}

/// The same item, with a number that takes more bytes than it needs.
fn longer(item: &[u8]) -> Vec<u8> {
    let (end, number) = head(item);
    [&[item[0] & 0xe0 | 27][..], &number.to_be_bytes(), &item[end..]].concat()
}

/// The same item without its length: in parts until they end. Numbers have no parts.
fn in_parts(item: &[u8]) -> Option<Vec<u8>> {
    let (end, _) = head(item);
    let parts = match item[0] >> 5 {
        2 | 3 => item,
        4 | 5 => &item[end..],
        _ => return None,
    };
    Some([&[item[0] & 0xe0 | 31], parts, &[0xff]].concat())
}

/// A map in other words: each of these says the same to whoever is not strict.
fn spellings(map: &[u8]) -> Vec<(String, Vec<u8>)> {
    assert_eq!((map[0] >> 5, item(map).len()), (5, map.len()));
    let (begin, count) = head(map);
    let (mut pairs, mut at) = (Vec::new(), begin);
    while at < map.len() {
        let key = item(&map[at..]);
        let value = item(&map[at + key.len()..]);
        pairs.push((key.to_vec(), value.to_vec()));
        at += key.len() + value.len();
    }
    let written = |pairs: &[(Vec<u8>, Vec<u8>)]| {
        assert!(pairs.len() < 24);
        let mut map = vec![0xa0 | pairs.len() as u8];
        pairs.iter().for_each(|(key, value)| map.extend([&key[..], value].concat()));
        map
    };
    assert_eq!((written(&pairs), pairs.len() as u64), (map.to_vec(), count));
    let mut found = vec![
        ("a longer count".to_owned(), longer(map)),
        ("no count".to_owned(), in_parts(map).unwrap()),
        ("something behind it".to_owned(), [map, &[0xf6]].concat()),
        ("a tag in front".to_owned(), [&[0xd9, 0xd9, 0xf7], map].concat()),
        ("another order".to_owned(), written(&pairs.iter().rev().cloned().collect::<Vec<_>>())),
        ("a field twice".to_owned(), written(&[&pairs[..], &pairs[pairs.len() - 1..]].concat())),
        ("a field too many".to_owned(), written(&[&pairs[..], &[(vec![0x18, 200], vec![0])]].concat())),
    ];
    for (number, (key, value)) in pairs.iter().enumerate() {
        let mut with = |what: &str, pair: (Vec<u8>, Vec<u8>)| {
            let mut pairs = pairs.clone();
            pairs[number] = pair;
            found.push((format!("field {number}: {what}"), written(&pairs)));
        };
        with("a longer key", (longer(key), value.clone()));
        with("a longer value", (key.clone(), longer(value)));
        if let Some(parts) = in_parts(value) {
            with("a value in parts", (key.clone(), parts));
        }
    }
    // A number that needs eight bytes has no longer form.
    found.retain(|(_, bytes)| bytes != map);
    found
}

/// Case 51: policies, proposals and approvals, over HTTP and between nodes.
#[test]
fn another_spelling_of_a_decision_is_refused() {
    let node = node("");
    let data = node.data();
    let cbor = |path: &str, body: &[u8]| {
        node.allowed("POST", &format!("/registry/{path}"), "Content-Type: application/cbor\r\n", body)
    };
    let refused = |what: &str, path: &str, body: &[u8]| {
        let told = cbor(path, body);
        assert!(status(&told) == 400 && told.contains("\"code\":\"bad_form\""), "{path}, {what}: {told}");
    };
    let decider = Decider::of(&node.daemon, &data);
    for (what, policy) in spellings(decider.policy().encoded()) {
        refused(&what, "found", &policy);
    }
    assert_eq!(decider.head().version, 0);
    let decider = Decider::found(&node.daemon, &data);

    let (proposal, approval) = decider.binding("tools/a", 0, b"x");
    let approval_bytes = approval.encode();
    let token = std::fs::read_to_string(data.join("token")).unwrap();
    let (to, peer) = (contact(&node), Peer::new());
    let between = peer.speak(PROTOCOLS[3].0, "no");
    let told = |number: u16, body: &[u8]| {
        let call = Method { number, name: "decide" }.cap(token.trim().to_owned());
        peer.runtime.block_on(between.call(to.id, &to.addrs, call, body.to_vec(), soon()))
    };
    let base64 = |bytes: &[u8]| data_encoding::BASE64.encode(bytes);
    let together = |proposal: &[u8], approval: &[u8]| {
        let body =
            format!("{{\"proposal\":\"{}\",\"approvals\":[\"{}\"]}}", base64(proposal), base64(approval));
        node.allowed("POST", "/registry/commit", "Content-Type: application/json\r\n", body.as_bytes())
    };
    for (good, path, number) in [(&proposal.encoded()[..], "proposals", 5), (&approval_bytes, "approvals", 6)]
    {
        let others = spellings(good);
        assert!(others.len() > 15, "{}", others.len());
        for (what, other) in others {
            refused(&what, path, &other);
            let between = told(number, &other);
            assert!(
                matches!(&between, Err(RpcError::Refused { code: Code::BadRequest, .. })),
                "{path}, {what}: {between:?}"
            );
            let (proposal, approval) = if number == 5 {
                (&other[..], &approval_bytes[..])
            } else {
                (&proposal.encoded()[..], &other[..])
            };
            let told = together(proposal, approval);
            assert_eq!(status(&told), 400, "{path}, {what}: {told}");
        }
    }
    let waiting = node.allowed("GET", "/registry/proposals", "", b"");
    assert!(waiting.contains("\"proposals\":[]") && decider.head().version == 1, "{waiting}");
    // In the one spelling that there is, it is taken.
    told(5, proposal.encoded()).unwrap();
    told(6, &approval_bytes).unwrap();
    assert_eq!(decider.head().version, 2);
    node.is_well();
}

/// Case 51 for records of the DHT: around what was signed there is one envelope.
#[test]
fn another_spelling_of_a_record_is_not_kept() {
    let node = node("");
    let (asker, key) = (Asker::new(contact(&node)), Key::from_bytes([51; 32]));
    let good = signed(&Identity::from_seed(&[208; 32]), key, 1);
    for (what, other) in spellings(&good) {
        assert_eq!(asker.provide(vec![Bytes::from(other)]), [Outcome::Invalid], "{what}");
    }
    assert!(asker.providers(key, 10).is_empty());
    assert_eq!(asker.provide(vec![good]), [Outcome::Kept]);
    node.is_well();
}
