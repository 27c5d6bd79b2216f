//! Objects from others: one that hands on what somebody else has, with a bit changed here and there.

use std::{
    fs,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use ron_core::{
    ContentId,
    net::{
        Contact,
        oap::Code,
        rpc::{Fault, Handling, Method, Peers, Request, Service},
    },
};
use ron_storage::{
    logic::{
        manifest::Manifest,
        shards::{ReedSolomon, encode},
        wire::method,
    },
    members::{Admission, Members, MembersSettings, Secret, WEIGHT_MAX},
};
use serde_json::Value;

use super::{
    content, json, node,
    peers::{PROTOCOLS, Peer, contact, soon},
    status, until,
};
use crate::settings::Configured;

/// Asks an honest node whatever it is asked, and changes one byte of every answer that is at least so long.
struct Forges {
    honest: Contact,
    at: usize,
    /// What it does not do.
    refuses: &'static [u16],
    peers: OnceLock<Peers>,
}

impl Forges {
    fn begin(peer: &Peer, honest: &Configured, at: usize, refuses: &'static [u16]) {
        let forges = Arc::new(Forges { honest: contact(honest), at, refuses, peers: OnceLock::new() });
        let peers = peer.serve(PROTOCOLS[2].0, Arc::clone(&forges) as _);
        assert!(forges.peers.set(peers).is_ok());
    }
}

impl Service for Forges {
    fn call(&self, request: Request) -> Handling {
        if self.refuses.contains(&request.method()) {
            return Handling::Done(Err(Fault::no_such_method()));
        }
        let (peers, honest, at) = (self.peers.get().cloned(), self.honest.clone(), self.at);
        Handling::Pending(Box::pin(async move {
            let failed = |_| Fault::new(Code::Unavailable, "not now");
            let peers = peers.ok_or_else(|| Fault::new(Code::Unavailable, "not yet"))?;
            let call = Method { number: request.method(), name: "forged" };
            let asked = peers.open(honest.id, &honest.addrs, call, request.body().clone(), soon());
            let (mut chunks, mut sent) = (asked.await.map_err(failed)?, 0);
            while let Some(chunk) = chunks.next().await.map_err(failed)? {
                let mut chunk = BytesMut::from(&chunk[..]);
                if let Some(byte) = at.checked_sub(sent).and_then(|at| chunk.get_mut(at)) {
                    *byte ^= 1;
                }
                sent += chunk.len();
                request.send(chunk.freeze()).await?;
            }
            Ok(Bytes::new())
        }))
    }
}

/// Case 38: a provider whose bytes are not those of the object. What it sends is not kept and not served, and the object comes
/// from one that has it.
#[test]
fn what_a_provider_made_up_is_not_kept() {
    let honest = node("");
    let taker = node("");
    for (number, len, at) in [(1, 3_000_000, 70_000), (2, 100_000, 99_000), (3, 3_000_000, 200)] {
        let whole = content(len, number);
        let id = honest.put(&whole);
        let peer = Peer::new();
        Forges::begin(&peer, &honest, at, &[]);
        let liar = format!("{}@{}", peer.endpoint.node_id(), peer.endpoint.local_addrs()[0]);
        let fetch = |from: &str| taker.allowed("POST", &format!("/fetch/{id}?from={from}"), "", b"");
        let refused = fetch(&liar);
        assert_eq!(status(&refused), 502, "{refused}");
        let get = |node: &Configured| node.ask("GET", &format!("/o/{id}"), "", b"");
        assert_eq!(status(&get(&taker)), 404);
        let fetched = fetch(&honest.daemon.seed);
        assert_eq!(status(&fetched) / 100, 2, "{fetched}");
        let (there, here) = (get(&honest), get(&taker));
        let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        assert!(body(&there) == body(&here) && !body(&here).is_empty());
    }
    assert!(taker.count("ron_storage_fetches_total{result=\"done\"}") >= 3);
    honest.is_well();
    taker.is_well();
}

/// Case 38: three nodes have an object in shards, and a fourth who belongs to them gives shards that have a bit changed. Whoever puts the
/// object together asks it, passes its shard over, and says whose it was.
#[test]
fn a_false_shard_is_passed_over_and_its_sender_named() {
    let home = tempfile::tempdir().unwrap();
    let secret = crate::keeping::secret(home.path());
    let settings = format!(
        "[keeping]\nsecret_file = {secret:?}\ntick_ms = 200\nrefresh_ms = 200\nretry_ms = 200\ntakeover_ms = 500\n"
    );
    let first = node(&settings);
    let with_seed = || node(&format!("{settings}[dht]\nseeds = [\"{}\"]\n", first.daemon.seed));
    let others = [with_seed(), with_seed()];
    let keep: Vec<&Configured> = [&first].into_iter().chain(&others).collect();
    let told = |node: &Configured| json(&node.daemon.get("/keeping/status"));
    let know = |count: usize| keep.iter().all(|node| told(node)["up"] == count);
    until("they know each other", || know(3));
    let holders = |id: &ContentId| -> Vec<usize> {
        let has = |number: &usize| status(&keep[*number].daemon.get(&format!("/stat/{id}"))) == 200;
        (0..keep.len()).filter(has).collect()
    };
    let objects: Vec<_> = (0..12)
        .map(|number| {
            let whole = content(400_000, 380 + number);
            let stored = first.allowed("POST", "/o?policy=2%2B1&ack=3", "", &whole);
            assert_eq!(status(&stored), 201, "{stored}");
            let (manifest, _) = encode(&whole, 2, 1, &ReedSolomon).unwrap();
            (whole, manifest)
        })
        .collect();
    // One that was put somewhere else meanwhile moves later. Whoever finds an object whole wants no shards.
    let is_settled = |manifest: &Manifest| {
        let each: Vec<_> = manifest.shards.iter().map(&holders).collect();
        each.iter().all(|holders| holders.len() == 1) && holders(&manifest.object).is_empty()
    };
    let mut settled = Vec::new();
    until("some are in shards and nowhere whole", || {
        settled = objects.iter().filter(|(_, manifest)| is_settled(manifest)).collect();
        settled.len() >= 4
    });
    // The liar has no shards but those of one of them, who has the first shard of these.
    let source = holders(&settled[0].1.shards[0])[0];
    let theirs: Vec<_> =
        settled.into_iter().filter(|(_, manifest)| holders(&manifest.shards[0]) == [source]).collect();
    let reader = keep[(source + 1) % keep.len()];
    let peer = Peer::new();
    Forges::begin(&peer, keep[source], 70_000, &[method::PUSH, method::INVENTORY]);
    let _members = {
        let _inside = peer.runtime.enter();
        let secret = Secret::new(&fs::read_to_string(&secret).unwrap()).unwrap();
        // It weighs so much that everything belongs to it first.
        let weight = MembersSettings {
            weight: WEIGHT_MAX,
            every: Duration::from_millis(200),
            ..MembersSettings::default()
        };
        let members = Members::builder(Admission::Secret(secret)).settings(weight);
        members.candidates(vec![contact(&first)]).start(&peer.endpoint, &peer.host).unwrap()
    };
    until("it is one of them", || know(4));
    let liar = peer.endpoint.node_id().to_string();
    for (whole, manifest) in &theirs {
        let got = reader.ask("GET", &format!("/o/{}", manifest.object), "", b"");
        assert_eq!(status(&got), 200, "{got}");
        assert!(got.split_once("\r\n\r\n").unwrap().1 == String::from_utf8_lossy(whole));
    }
    let told = told(reader);
    let blames = |event: &&Value| event["event"] == "blamed" && event["node"] == liar.as_str();
    let blamed = told["recent"].as_array().unwrap().iter().filter(blames);
    let blamed: Vec<&str> = blamed.filter_map(|event| event["object"].as_str()).collect();
    println!("{} objects, blamed for {blamed:?}", theirs.len());
    let is_first = |shard: &&str| theirs.iter().any(|(_, manifest)| manifest.shards[0].to_string() == *shard);
    assert!(!blamed.is_empty() && blamed.iter().all(is_first), "{told:#}");
    keep.iter().for_each(|node| node.is_well());
}
