//! Objects from others: one that hands on what somebody else has, with a bit changed here and there.

use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use ron_core::net::{
    Contact,
    oap::Code,
    rpc::{Fault, Handling, Method, Peers, Request, Service},
};

use super::{
    content, node,
    peers::{PROTOCOLS, Peer, contact, soon},
    status,
};
use crate::settings::Configured;

/// Asks an honest node whatever it is asked, and changes one byte of every answer that is at least so long.
struct Forges {
    honest: Contact,
    at: usize,
    peers: OnceLock<Peers>,
}

impl Service for Forges {
    fn call(&self, request: Request) -> Handling {
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
        let forges = Arc::new(Forges { honest: contact(&honest), at, peers: OnceLock::new() });
        let peers = peer.serve(PROTOCOLS[2].0, Arc::clone(&forges) as _);
        assert!(forges.peers.set(peers).is_ok());
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
