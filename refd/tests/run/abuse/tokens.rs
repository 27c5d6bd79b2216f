//! The token: shown wrongly, twice, in another place, by another scheme, or not at all; over HTTP and between nodes.

use ron_core::net::{
    oap::Code,
    rpc::{Method, RpcError},
};

use super::{
    node,
    peers::{PROTOCOLS, Peer, contact, soon},
    status,
};

/// Case 53: every route that changes something or tells what there is, and every way not to have the token.
#[test]
fn nothing_but_the_token_opens() {
    let home = tempfile::tempdir().unwrap();
    // With others, so that the routes of that are there too.
    let secret = crate::keeping::secret(home.path());
    let node = node(&format!("[overlay]\ntopics = [\"news\"]\n[keeping]\nsecret_file = {secret:?}\n"));
    let token = node.bearer().trim().rsplit_once(' ').unwrap().1.to_owned();
    let basic = data_encoding::BASE64.encode(format!("token:{token}").as_bytes());
    let wrong = "x".repeat(52);
    let [right, other] = [&token, &wrong].map(|token| format!("Authorization: Bearer {token}\r\n"));
    let shown = [
        String::new(),
        other.clone(),
        format!("Authorization: Bearer {}\r\n", &token[1..]),
        format!("Authorization: Bearer {}\r\n", &token[..token.len() - 1]),
        format!("Authorization: Bearer {token}x\r\n"),
        format!("Authorization: Bearer {}\r\n", token.to_uppercase()),
        format!("Authorization: Bearer {token} {token}\r\n"),
        format!("Authorization: Bearer {token},{token}\r\n"),
        format!("Authorization: Bearer \"{token}\"\r\n"),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        "Authorization:\r\n".to_owned(),
        format!("Authorization: {token}\r\n"),
        format!("Authorization: Bearer{token}\r\n"),
        format!("Authorization: Token {token}\r\n"),
        format!("Authorization: Digest {token}\r\n"),
        format!("Authorization: Basic {basic}\r\n"),
        format!("Authorization: Bearer {}\r\n", "y".repeat(20_000)),
        format!("Proxy-Authorization: Bearer {token}\r\n"),
        format!("Cookie: token={token}; authorization={token}\r\n"),
        format!("X-Authorization: Bearer {token}\r\n"),
        // Two, of which a program before this one may have judged the other.
        format!("{right}{other}"),
        format!("{other}{right}"),
        format!("Authorization: Basic {basic}\r\nAuthorization: Bearer {token}\r\n"),
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"),
    ];
    let guarded: Vec<_> = node.routes().into_iter().filter(|(_, _, is_guarded)| *is_guarded).collect();
    assert!(guarded.len() >= 20, "{guarded:?}");
    for (number, (path, method, _)) in guarded.iter().enumerate() {
        let path = path.replace("{id}", &format!("b3:{}", "0".repeat(64)));
        // All of them on one route, and the most telling on the others.
        let few = [String::new(), other.clone(), format!("{right}{other}"), format!("{other}{right}")];
        let ways = if number == 0 { &shown[..] } else { &few };
        for headers in ways {
            let refused = node.ask(method, &path, headers, b"");
            assert_eq!(status(&refused), 401, "{method} {path} {headers} {refused}");
            assert!(!refused.contains(&token) && !refused.contains(&wrong), "{refused}");
        }
    }
    for query in ["?token=", "?access_token=", "?authorization=Bearer%20"] {
        assert_eq!(status(&node.ask("GET", &format!("/usage{query}{token}"), "", b"")), 401);
    }
    // The scheme is a word in any case, and the token itself opens.
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let usage = node.ask("GET", "/usage", &format!("Authorization: {scheme} {token}\r\n"), b"");
        assert_eq!(status(&usage), 200, "{usage}");
    }
    node.is_well();
}

/// Case 53: what a peer may only ask with the token as its capability, on the port for nodes. Nothing of what it says is looked into
/// before; with the token it is, and makes no sense.
#[test]
fn nothing_but_the_token_opens_what_nodes_ask() {
    let node = node("");
    let token = node.bearer().trim().rsplit_once(' ').unwrap().1.to_owned();
    let (peer, to) = (Peer::new(), contact(&node));
    let capabilities: [Vec<u8>; 9] = [
        Vec::new(),
        b"x".repeat(52),
        token[1..].into(),
        token[..token.len() - 1].into(),
        format!("{token}x").into(),
        format!("{token}\n").into(),
        token.to_uppercase().into(),
        format!("Bearer {token}").into(),
        // The most that a frame has room for.
        token.as_bytes().iter().copied().cycle().take(65_535).collect(),
    ];
    for (protocol, methods) in
        [(PROTOCOLS[2].0, [(3, "push"), (5, "claims")]), (PROTOCOLS[3].0, [(5, "propose"), (6, "approve")])]
    {
        let peers = peer.speak(protocol, "no");
        let ask = |method: Method, capability: &[u8]| {
            let call = method.cap(capability.to_vec());
            match peer.runtime.block_on(peers.call(to.id, &to.addrs, call, "nonsense", soon())) {
                Err(RpcError::Refused { code, reason }) => (code, reason),
                told => panic!("{method:?} {told:?}"),
            }
        };
        for (number, name) in methods {
            let method = Method { number, name };
            for capability in &capabilities {
                let (code, reason) = ask(method, capability);
                assert_eq!(
                    (code, &*reason),
                    (Code::Forbidden, "not with this capability"),
                    "{name} {capability:x?}"
                );
            }
            // It is let in. That it is nonsense, or that nobody here tells others of claims, is said by whoever is asked then.
            let (code, reason) = ask(method, token.as_bytes());
            let wanted = if name == "claims" { Code::Conflict } else { Code::BadRequest };
            assert_eq!(code, wanted, "{name} {reason}");
        }
    }
    node.is_well();
}
