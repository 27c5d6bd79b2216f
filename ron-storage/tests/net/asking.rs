//! What one node asks of another, one question at a time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::{Bytes, BytesMut};
use ron_core::{ContentId, Deadline, NodeId, net::BoxFuture};
use ron_storage::{
    Settings,
    fetch::Fetcher,
    peers::{Decline, Groups, Held, Judge, Offer, Peer, PeerError, Peers, Rules, Want, compare},
};

use crate::world::{Node, Word, World, content, quic, real, soon};

async fn get(node: &Node, peer: &Peer, want: &Want) -> Result<Vec<(u64, Bytes)>, PeerError> {
    let pieces = node.links.get(peer, want, soon()).await?;
    let mut groups = Groups::new(want, u64::MAX, pieces);
    let mut all = Vec::new();
    while let Some(group) = groups.next().await? {
        all.push((group.offset, group.bytes));
    }
    Ok(all)
}

fn joined(groups: &[(u64, Bytes)]) -> Bytes {
    let mut all = BytesMut::new();
    groups.iter().for_each(|(_, bytes)| all.extend_from_slice(bytes));
    all.freeze()
}

async fn ask(one: &Node, other: &Node) {
    let (empty, small, large) = (content(0, 1), content(150_000, 2), content(3_000_001, 3));
    let ids = [one.put(empty).await, one.put(small.clone()).await, one.put(large.clone()).await];
    let unknown = ContentId::of(b"unknown");
    let holding = other.links.have(&one.peer(), &[ids[2], unknown, ids[0]], soon()).await.unwrap();
    assert_eq!(holding.held, [Held::Complete(3_000_001), Held::Absent, Held::Complete(0)]);
    assert!(holding.is_durable);
    for (id, bytes) in [(ids[0], Bytes::new()), (ids[1], small), (ids[2], large.clone())] {
        let groups = get(other, &one.peer(), &Want::all(id)).await.unwrap();
        assert!(joined(&groups) == bytes, "{id}");
    }
    let want = Want::part(ids[2], vec![100..200, 1_000_000..1_100_000]);
    let groups = get(other, &one.peer(), &want).await.unwrap();
    let offsets: Vec<u64> = groups.iter().map(|(offset, _)| *offset / 65_536).collect();
    assert_eq!(offsets, [0, 15, 16]);
    assert!(groups[1].1 == large[15 * 65_536..16 * 65_536]);
    let missing = get(other, &one.peer(), &Want::all(unknown)).await;
    assert_eq!(missing, Err(PeerError::NotFound { id: unknown }));
}

#[tokio::test(start_paused = true)]
async fn what_a_node_has_comes_with_proof() {
    let world = World::new(1);
    let (one, other) = (world.node(1).await, world.node(2).await);
    ask(&one, &other).await;
    let peer = Peer { contact: NodeId::from_bytes([9; 32]).into(), cap: Bytes::new() };
    let unreachable = other.links.have(&peer, &[], soon()).await;
    assert!(matches!(unreachable, Err(PeerError::Unreachable { .. })), "{unreachable:?}");
}

#[tokio::test]
async fn and_so_it_does_over_tls() {
    ask_and_push(real(1).await, real(2).await).await;
}

/// Everything that there is in the protocol: have, get with proof, push with a capability, inventory, claims; and a fetch.
#[tokio::test(flavor = "multi_thread")]
async fn and_so_it_does_over_quic() {
    ask_and_push(quic(1).await, quic(2).await).await;
    let (one, other) = (quic(3).await, quic(4).await);
    let mut ours = Vec::new();
    for salt in 0..40 {
        ours.push(one.put(content(1000 + salt as usize, 100 + salt)).await);
    }
    let theirs = other.put(content(5, 5)).await;
    let found = compare(&other.links, &one.peer(), &other.store, 1000, soon()).await.unwrap();
    let mut missing = found.theirs;
    missing.sort();
    ours.sort();
    assert_eq!((missing, found.ours), (ours, vec![theirs]));
    let refused = other.links.claims(&one.peer(), Bytes::from_static(b"x"), soon()).await;
    assert!(matches!(refused, Err(PeerError::Forbidden { .. })), "{refused:?}");
    let large = content(20_000_000, 6);
    let id = one.put(large.clone()).await;
    let fetched =
        Fetcher::new(other.links.clone(), &other.store).fetch(id, &[one.peer()], soon()).await.unwrap();
    assert_eq!(fetched.received, 20_000_000);
    assert!(other.store.get_bytes(id, u64::MAX, soon()).await.unwrap() == large);
}

async fn ask_and_push(one: Node, other: Node) {
    ask(&one, &other).await;
    let id = one.put(content(1_000_000, 9)).await;
    let rules = Rules { writes: Some(Arc::new(Word("open sesame"))), ..Rules::default() };
    other.links.serve(&other.store, rules);
    let peer = Peer { cap: "open sesame".into(), ..other.peer() };
    let offer = Offer { id, len: 1_000_000, claim: Bytes::new() };
    let pushed = one.links.push(&peer, &offer, soon()).await.unwrap();
    assert!(pushed.is_durable && !pushed.existed);
    assert!(other.store.has(id, soon()).await.unwrap());
    one.host.shutdown().await;
    other.host.shutdown().await;
}

/// Wants nothing that begins with a zero byte, and writes down what it keeps.
struct Picky(AtomicUsize);

impl Judge for Picky {
    fn judge(&self, _: NodeId, offer: &Offer) -> Result<(), Decline> {
        if offer.claim.first() == Some(&0) { Err(Decline::Deleted) } else { Ok(()) }
    }

    fn keep<'a>(&'a self, _: NodeId, offer: &'a Offer, _: Deadline) -> BoxFuture<'a, Result<(), Decline>> {
        self.0.fetch_add(offer.claim.len(), Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }

    fn claims<'a>(&'a self, _: NodeId, body: Bytes, _: Deadline) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move { if body == "?" { Ok("!".into()) } else { Err("what?".to_owned()) } })
    }
}

#[tokio::test(start_paused = true)]
async fn an_offer_is_judged_verified_and_acknowledged_when_it_is_durable() {
    let world = World::new(2);
    let (one, other) = (world.node(1).await, world.node(2).await);
    let (small, large) = (content(5000, 1), content(2_000_000, 2));
    let ids = [one.put(small).await, one.put(large.clone()).await];
    let offer = |id, len, claim: &'static [u8]| Offer { id, len, claim: Bytes::from_static(claim) };
    let offered = offer(ids[1], 2_000_000, b"claim");

    // Nobody may write without being allowed to.
    let plain = one.links.push(&other.peer(), &offered, soon()).await;
    assert!(matches!(plain, Err(PeerError::Forbidden { .. })), "{plain:?}");
    let picky = Arc::new(Picky(AtomicUsize::new(0)));
    let rules = Rules { writes: Some(Arc::new(Word("word"))), judge: picky.clone(), ..Rules::default() };
    other.links.serve(&other.store, rules.clone());
    let wrong = Peer { cap: "wrong".into(), ..other.peer() };
    assert!(matches!(one.links.push(&wrong, &offered, soon()).await, Err(PeerError::Forbidden { .. })));
    assert!(matches!(one.links.claims(&wrong, "?".into(), soon()).await, Err(PeerError::Forbidden { .. })));

    let peer = Peer { cap: "word".into(), ..other.peer() };
    // The peer may get what it is offered, even where others may not read.
    one.links.serve(&one.store, Rules { reads: Some(Arc::new(Word("secret"))), ..Rules::default() });
    let closed = get(&other, &one.peer(), &Want::all(ids[1])).await;
    assert!(matches!(closed, Err(PeerError::Forbidden { .. })), "{closed:?}");
    let pushed = one.links.push(&peer, &offered, soon()).await.unwrap();
    assert!(pushed.is_durable && !pushed.existed);
    assert!(other.store.get_bytes(ids[1], u64::MAX, soon()).await.unwrap() == large);
    let again = one.links.push(&peer, &offered, soon()).await.unwrap();
    assert!(again.is_durable && again.existed);
    assert_eq!(picky.0.load(Ordering::Relaxed), 10, "both times the claim was kept");

    let unwanted = one.links.push(&peer, &offer(ids[0], 5000, b"\0"), soon()).await;
    assert_eq!(unwanted, Err(PeerError::Declined(Decline::Deleted)));
    let unknown = ContentId::of(b"unknown");
    let missing = one.links.push(&peer, &offer(unknown, 5, b""), soon()).await;
    assert_eq!(missing, Err(PeerError::NotFound { id: unknown }));
    // A length that is not true is found out.
    let lie = one.links.push(&peer, &offer(ids[0], 4999, b""), soon()).await;
    assert!(matches!(lie, Err(PeerError::Declined(Decline::Source { .. }))), "{lie:?}");

    assert_eq!(one.links.claims(&peer, "?".into(), soon()).await, Ok("!".into()));
    let refused = one.links.claims(&peer, "x".into(), soon()).await;
    assert!(matches!(&refused, Err(PeerError::Refused { reason, .. }) if reason == "what?"), "{refused:?}");
    // A node that is known needs no capability.
    let trusted = one.links.endpoint().node_id();
    let trusts = Arc::new(move |node: &NodeId| *node == trusted);
    other.links.serve(&other.store, Rules { trusts: Some(trusts), ..rules });
    assert!(one.links.push(&other.peer(), &offer(ids[0], 5000, b""), soon()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_offer_that_does_not_fit_is_declined_before_it_comes() {
    let world = World::new(3);
    let one = world.node(1).await;
    let settings = Settings { quota_bytes: Some(100_000), object_bytes_max: 500_000, ..Settings::default() };
    let disk = ron_core::sim::SimDisk::new();
    let other = world.node_on(2, disk, settings).await;
    let rules = Rules { trusts: Some(Arc::new(|_: &NodeId| true)), ..Rules::default() };
    other.links.serve(&other.store, rules);
    let push = async |size: usize| {
        let id = one.put(content(size, 5)).await;
        let offer = Offer { id, len: size as u64, claim: Bytes::new() };
        one.links.push(&other.peer(), &offer, soon()).await
    };
    assert_eq!(push(200_000).await, Err(PeerError::Declined(Decline::Quota)));
    assert_eq!(push(600_000).await, Err(PeerError::Declined(Decline::TooLarge { limit: 500_000 })));
    assert_eq!(one.count("read_bytes_total"), 0, "nothing was sent");
    assert!(push(90_000).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn two_stores_are_compared() {
    let world = World::new(4);
    let (one, other) = (world.node(1).await, world.node(2).await);
    for number in 0..100u64 {
        let bytes = Bytes::copy_from_slice(&number.to_be_bytes());
        if number != 7 {
            one.put(bytes.clone()).await;
        }
        if number != 9 && number != 11 {
            other.put(bytes).await;
        }
    }
    let id = |number: u64| ContentId::of(&number.to_be_bytes());
    let mut found = compare(&one.links, &other.peer(), &one.store, 1000, soon()).await.unwrap();
    found.ours.sort_unstable();
    let mut ours = vec![id(9), id(11)];
    ours.sort_unstable();
    assert_eq!((found.theirs, found.ours), (vec![id(7)], ours));
    one.put(7u64.to_be_bytes().to_vec().into()).await;
    one.store.delete(id(9), soon()).await.unwrap();
    one.store.delete(id(11), soon()).await.unwrap();
    assert!(compare(&one.links, &other.peer(), &one.store, 1000, soon()).await.unwrap().is_empty());
}
