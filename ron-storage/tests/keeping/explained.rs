//! What a piece is of is known before it is here: wherever the power fails, nothing is left of what is deleted.

use std::time::Duration;

use bytes::Bytes;
use ron_core::{ContentId, Deadline, net::Identity};
use ron_storage::{
    Gc, StorageError,
    claims::{Claim, Manifest, Policy, RETENTION_MIN, Word},
    logic::shards::{ReedSolomon, encode},
    repair::{Ack, KeepingSettings},
};

use crate::{
    lives::{pieces, until_pieces},
    world::{MINUTE, World, content, identity, soon},
};

const SHARDS: Policy = Policy::Erasure { data: 2, parity: 1 };

/// Long enough for nodes to know of each other.
const MOMENT: Duration = Duration::from_secs(3);

/// More calls to a disk than what is tried here makes.
const CALLS: u64 = 200;

/// How shards come to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It is given one by another, which is number 1.
    Given,
    /// An object is put on it.
    Put,
    /// An object that it has is cut into them.
    Cut,
}

impl Way {
    /// Whether that is acknowledged does not matter here: the power of node 0 may fail at any moment of it.
    async fn go(self, world: &World, whole: &Bytes, owner: &Identity) {
        let losing = &world.node(0).keeping;
        let _ = match self {
            Way::Given => {
                let put = world.node(1).keeping.put(whole.clone(), SHARDS, owner, Ack::Copies(2), soon());
                put.await.map(drop)
            }
            Way::Put => losing.put(whole.clone(), SHARDS, owner, Ack::Local, soon()).await.map(drop),
            Way::Cut => losing.set_policy(ContentId::of(whole), SHARDS, owner, soon()).await.map(drop),
        };
    }
}

/// A node had a shard when the power failed, and not yet the claim that it was offered with. The object was deleted while the node was
/// off, and the delete does not say what its shards were: that one stayed. So it was where an object was put, or cut.
#[tokio::test(start_paused = true)]
async fn no_shard_stays_that_was_there_when_the_power_failed() {
    let (owner, whole) = (identity(100), content(3000, 9));
    let object = (ContentId::of(&whole), 3000);
    let over = Word::Tombstone { retention: RETENTION_MIN };
    let over = Claim::sign(&owner, object, u64::MAX, 0, over).unwrap();
    for (way, nodes) in [(Way::Given, 2), (Way::Put, 1), (Way::Cut, 1)] {
        let mut calls = 0;
        let mut is_over = false;
        while !is_over {
            calls += 1;
            assert!(calls < CALLS, "{way:?} never ends");
            let mut world = World::new(nodes).await;
            tokio::time::sleep(MOMENT).await;
            if way == Way::Cut {
                world.node(0).store.put_bytes(whole.clone(), soon()).await.unwrap();
            }
            world.disk(0).crash_at_call(calls);
            way.go(&world, &whole, &owner).await;
            is_over = !world.disk(0).is_crashed();
            world.kill(0).await;
            // All that it ever hears of the object is that it is deleted.
            for other in 1..nodes {
                world.stop(other).await;
            }
            world.revive(0).await;
            world.node(0).store.claim(over.clone(), None, soon()).await.unwrap();
            until_pieces(&world, 0, MINUTE * 3, &format!("{way:?}, call {calls}")).await;
            world.end().await;
        }
        assert!(calls > 4, "{way:?} made {calls} calls");
    }
}

/// Shards of short objects are nothing but zeros, and several of them the same. They are put at once.
#[tokio::test(start_paused = true)]
async fn shards_that_are_alike_are_put_at_once() {
    let world = World::new(1).await;
    tokio::time::sleep(MOMENT).await;
    let (owner, whole, keeping) = (identity(100), content(10, 9), &world.node(0).keeping);
    let placed = keeping.put(whole.clone(), Policy::ERASURE, &owner, Ack::Local, soon()).await.unwrap();
    assert!(keeping.get(placed.id, soon()).await.unwrap() == whole);
    keeping.delete(placed.id, &owner, Duration::from_secs(RETENTION_MIN), soon()).await.unwrap();
    until_pieces(&world, 0, MINUTE * 3, "alike").await;
}

/// Nobody ever claims what somebody began to put when the power failed, and nobody deletes it: a collection takes it.
#[tokio::test(start_paused = true)]
async fn a_collection_takes_what_was_never_claimed() {
    let (owner, whole) = (identity(100), content(3000, 9));
    let mut most = 0;
    for call in 1..CALLS {
        let mut world = World::new(1).await;
        tokio::time::sleep(MOMENT).await;
        world.disk(0).crash_at_call(call);
        // Whether that is acknowledged does not matter here.
        let _ = world.node(0).keeping.put(whole.clone(), SHARDS, &owner, Ack::Local, soon()).await;
        let is_over = !world.disk(0).is_crashed();
        world.kill(0).await;
        world.revive(0).await;
        tokio::time::sleep(MOMENT).await;
        let store = &world.node(0).store;
        let is_claimed = !store.claims(&ContentId::of(&whole)).is_empty();
        if !is_claimed {
            most = most.max(pieces(&world).await.len());
            store.gc(Gc::new(), soon()).await.unwrap();
            assert_eq!(pieces(&world).await, [], "call {call}");
        }
        world.end().await;
        if is_over {
            assert!(is_claimed && most == 4, "{most} pieces at most");
            return;
        }
    }
    panic!("it never ends");
}

/// What is known of an object that is deleted was forgotten when the claims were written anew, except in memory: a shard that came after the
/// next start stayed.
#[tokio::test(start_paused = true)]
async fn what_a_shard_is_of_is_known_when_the_claims_were_written_anew() {
    let mut world = World::new(1).await;
    let owner = identity(100);
    let (manifest, shards) = encode(&content(3000, 9), 2, 1, &ReedSolomon).unwrap();
    let store = &world.node(0).store;
    let say = |object, version, word| Claim::sign(&owner, (object, 3000), version, 0, word).unwrap();
    let cut = say(manifest.object, 1, Word::Erasure(manifest.coding()));
    store.claim(cut, Some(manifest.clone()), soon()).await.unwrap();
    let over = say(manifest.object, 2, Word::Tombstone { retention: RETENTION_MIN });
    store.claim(over, None, soon()).await.unwrap();
    let other = ContentId::of(b"other");
    let names = (0..32_u8).map(|index| ContentId::of(&[index])).collect();
    let long = Manifest { object: other, len: 3, data: 24, shards: names };
    let first = std::path::Path::new("store/claims/0000000000000001.seg");
    assert!(world.disk(0).bytes(first).is_some());
    for version in 1..=4000 {
        store
            .claim(say(other, version, Word::Erasure(long.coding())), Some(long.clone()), soon())
            .await
            .unwrap();
    }
    let end = Deadline::after(MINUTE * 60);
    while world.disk(0).bytes(first).is_some() {
        assert!(!end.has_passed(), "the claims are not written anew");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.stop(0).await;
    world.start(0).await;
    world.node(0).store.put_bytes(shards[1].clone(), soon()).await.unwrap();
    until_pieces(&world, 0, MINUTE * 6, "written anew").await;
}

/// A node that could not take a claim in kept the shard that it was offered with, and nobody knew there what it was of.
#[tokio::test(start_paused = true)]
async fn no_shard_is_taken_whose_claim_is_not() {
    let world = World::new(3).await;
    tokio::time::sleep(MINUTE).await;
    let owner = identity(100);
    let full = &world.node(1).keeping;
    full.reload(KeepingSettings { claims_max: 0, ..world.settings().clone() }, 1).unwrap();
    let put = world.node(0).keeping.put(content(3000, 9), SHARDS, &owner, Ack::Copies(2), soon()).await;
    assert!(matches!(put, Err(StorageError::Unacknowledged { wanted: 2, .. })), "{put:?}");
    let there = pieces(&world).await.into_iter().filter(|(node, _)| *node == 1);
    assert_eq!(there.count(), 0);
}
