//! What an object goes through while somebody changes what is wished for it. It breaks a rule on purpose, for the whole process.

#![allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]

#[path = "keeping/world.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod world;

use std::time::Duration;

use ron_core::{ContentId, Deadline};
use ron_storage::{
    StorageError,
    claims::Policy,
    planted::{Bug, plant},
    repair::{Ack, Keeping},
};

use world::{World, content, identity, soon};

const MINUTE: Duration = Duration::from_secs(60);
const SHARDS: Policy = Policy::Erasure { data: 3, parity: 1 };

/// Puts an object in shards, and lets another node say that it is wanted in copies. Returns whether somebody has one as soon as that
/// is said, whether there are as many copies then, and how many nodes can read it.
async fn from_shards_to_copies(said_through: impl AsyncFn(&Keeping, ContentId)) -> (bool, bool, usize) {
    let world = World::new(5).await;
    tokio::time::sleep(MINUTE).await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(200_000, 4), SHARDS, &owner, Ack::Copies(4), soon());
    let id = put.await.unwrap().id;
    world.until(id, 0, MINUTE * 5).await;
    tokio::time::sleep(MINUTE).await;
    said_through(&world.node(3).keeping, id).await;
    let stayed = !world.holders(id).await.is_empty();
    let end = Deadline::after(MINUTE * 5);
    while world.holders(id).await.len() < 2 && !end.has_passed() {
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let mut read = 0;
    for reader in 0..5 {
        read += usize::from(world.node(reader).keeping.get(id, soon()).await.is_ok());
    }
    // One more may be there for a while: it was promised to somebody.
    (stayed, world.holders(id).await.len() >= 2, read)
}

/// An object in shards that is wanted in copies from now on is made whole first. It was too much by the claim that was known until
/// then, was trimmed because all its shards were where they belonged, and then the claim was said that made the shards too much:
/// both were gone, and whoever had said it was told that it was done. A piece is held from before its claim is said. The shards are by
/// now of use until there are copies, so without that it is lost for a while only.
#[tokio::test(start_paused = true)]
async fn the_only_whole_copy_stays_while_its_new_claim_is_on_its_way() {
    let owner = identity(100);
    let changed = async |keeping: &Keeping, id: ContentId| {
        keeping.set_policy(id, Policy::Copies(2), &owner, soon()).await.unwrap();
    };
    // As a host does it: brought first, and then claimed. What went in between is said to be gone, and brought again.
    let brought = async |keeping: &Keeping, id: ContentId| {
        loop {
            keeping.bring(id, soon()).await.unwrap();
            match keeping.keep(id, Policy::Copies(2), &owner, Ack::Copies(2), soon()).await {
                Ok(placed) => break assert_eq!(placed.durable_on.len(), 2),
                Err(error) => assert_eq!(error, StorageError::NotFound { id }),
            }
        }
    };
    let _slow = plant(Bug::SlowClaim);
    assert_eq!(from_shards_to_copies(&changed).await, (true, true, 5));
    assert_eq!(from_shards_to_copies(&brought).await, (true, true, 5));
    assert_eq!(deleted_while_it_is_claimed().await, (false, true));
    let _not_held = plant(Bug::NotHeld);
    assert_eq!(from_shards_to_copies(&changed).await, (false, true, 5), "this test would notice");
    assert_eq!(deleted_while_it_is_claimed().await, (true, false), "and this");
}

/// One client puts an object while another one deletes it, which nobody claims at that moment. The put was acknowledged, and there was
/// nothing of it. Returns whether the second was told that it is deleted, and whether it is there.
async fn deleted_while_it_is_claimed() -> (bool, bool) {
    let world = World::new(1).await;
    tokio::time::sleep(MINUTE).await;
    let (owner, node) = (identity(100), world.node(0));
    let id = node.store.put_bytes(content(1000, 5), soon()).await.unwrap().id;
    let deleted = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.keeping.clear(id, soon()).await
    };
    let kept = node.keeping.keep(id, Policy::Copies(1), &owner, Ack::Local, soon());
    let (deleted, kept) = tokio::join!(deleted, kept);
    kept.unwrap();
    assert!(deleted.is_ok() || deleted == Err(StorageError::Claimed { id }), "{deleted:?}");
    (deleted.is_ok(), node.store.has(id, soon()).await.unwrap())
}
