//! What an object goes through.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Event as FeedEvent, NodeId, net::BoxFuture, sim::Fault};
use ron_storage::{
    StorageError,
    claims::{Claim, Merged, Policy, RETENTION_MIN, Standing, Word},
    fetch::Finder,
    logic::shards::{ReedSolomon, encode},
    peers::{self, Decline, Offer, Rules},
    repair::{Ack, Health, KeepingEvent, KeepingSettings},
};

use crate::world::{GRACE, MINUTE, World, content, identity, ip, name, settle, soon};

#[tokio::test(start_paused = true)]
async fn copies_come_back_after_a_node_dies_and_extra_ones_go_when_it_returns() {
    let mut world = World::new(5).await;
    settle().await;
    let owner = identity(100);
    let mut ids = Vec::new();
    for salt in 0..12 {
        let put = world.node((salt % 5) as u8).keeping.put(
            content(40_000, salt),
            Policy::Copies(2),
            &owner,
            Ack::Copies(2),
            soon(),
        );
        let placed = put.await.unwrap();
        assert_eq!(placed.len, 40_000);
        assert_eq!(placed.durable_on.len(), 2);
        ids.push(placed.id);
    }
    settle().await;
    for id in &ids {
        world.until(*id, 2, MINUTE * 5).await;
    }
    world.kill(1).await;
    // Within the grace nothing moves.
    let moved: u64 = [0, 2, 3, 4].iter().map(|node| world.node(*node).count("repair_bytes_total")).sum();
    tokio::time::sleep(GRACE - Duration::from_secs(30)).await;
    let now: u64 = [0, 2, 3, 4].iter().map(|node| world.node(*node).count("repair_bytes_total")).sum();
    assert_eq!(moved, now);
    for id in &ids {
        world.until(*id, 2, GRACE + MINUTE * 10).await;
        for holder in world.holders(*id).await {
            assert_eq!(world.node(holder).store.get_bytes(*id, 1 << 20, soon()).await.unwrap().len(), 40_000);
        }
    }
    world.revive(1).await;
    settle().await;
    for id in &ids {
        world.until(*id, 2, MINUTE * 30).await;
    }
    let status = world.node(0).keeping.status();
    assert_eq!((status.up, status.away, status.has_looked), (5, 0, true));
    assert_eq!(status.objects[&Health::Met], 12);
}

#[tokio::test(start_paused = true)]
async fn deleted_stays_deleted_when_a_node_returns() {
    let mut world = World::new(4).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(1000, 1), Policy::Copies(3), &owner, Ack::Copies(3), soon());
    let placed = put.await.unwrap();
    let id = placed.id;
    world.until(id, 3, MINUTE * 5).await;
    let away = *world.holders(id).await.last().unwrap();
    world.kill(away).await;
    let teller = (away + 1) % 4;
    let retention = Duration::from_secs(RETENTION_MIN);
    let version = world.node(teller).keeping.delete(id, &owner, retention, soon()).await.unwrap();
    assert!(version > placed.version);
    world.until(id, 0, MINUTE * 5).await;
    world.revive(away).await;
    assert_eq!(world.holders(id).await, [away], "it was not there when that was said");
    world.until(id, 0, MINUTE * 5).await;
    for number in 0..4 {
        assert_eq!(world.node(number).store.standing(&id), Standing::Deleted);
    }
}

#[tokio::test(start_paused = true)]
async fn shards_are_rebuilt_and_read_while_some_are_missing() {
    let mut world = World::new(5).await;
    settle().await;
    let (owner, whole) = (identity(100), content(500_000, 3));
    let policy = Policy::Erasure { data: 2, parity: 2 };
    let put = world.node(0).keeping.put(whole.clone(), policy, &owner, Ack::Copies(4), soon());
    let placed = put.await.unwrap();
    assert_eq!(placed.durable_on.len(), 4);
    settle().await;
    assert!(world.holders(placed.id).await.is_empty(), "it is kept as shards only");
    for killed in [1, 2] {
        world.kill(killed).await;
    }
    assert!(world.node(4).keeping.get(placed.id, soon()).await.unwrap() == whole);
    // Both are replaced by those who are left; three nodes then have four shards.
    tokio::time::sleep(GRACE + MINUTE * 15).await;
    let status = world.node(0).keeping.status();
    assert_eq!(status.objects[&Health::Met], 1, "{status:?}");
    world.kill(3).await;
    assert!(world.node(0).keeping.get(placed.id, soon()).await.unwrap() == whole);
}

/// An object of just one cell is the first of its shards, and, as the second is nothing but zeros, the parity too. The whole object was
/// taken for what is not needed besides its shards, on each node that had it as its shard, and all of them dropped it.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_a_shard_of_itself_stays() {
    for len in [64, 65] {
        let world = World::new(5).await;
        settle().await;
        let (owner, whole) = (identity(100), content(len, 7));
        let policy = Policy::Erasure { data: 2, parity: 1 };
        let put = world.node(0).keeping.put(whole.clone(), policy, &owner, Ack::Copies(3), soon());
        let id = put.await.unwrap().id;
        tokio::time::sleep(MINUTE * 5).await;
        for number in 0..5 {
            let node = world.node(number);
            assert!(node.keeping.get(id, soon()).await.unwrap() == whole, "{len} on {number}");
            let status = node.keeping.status();
            assert_eq!(status.objects[&Health::Met], 1, "{len}: {status:?}");
        }
        let own = world.holders(id).await.len();
        assert_eq!(own, if len == 64 { 2 } else { 0 }, "{len}: as many as there are shards of it");
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_can_be_changed_both_ways() {
    let world = World::new(5).await;
    settle().await;
    let (owner, whole) = (identity(100), content(200_000, 4));
    let put = world.node(0).keeping.put(whole.clone(), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    let policy = Policy::Erasure { data: 3, parity: 1 };
    // Said by a node that may not have heard of the claim yet: the later word wins all the same.
    let second = world.node(1).keeping.set_policy(id, policy, &owner, soon()).await.unwrap();
    world.until(id, 0, MINUTE * 30).await;
    assert!(world.node(3).keeping.get(id, soon()).await.unwrap() == whole);
    assert!(world.node(3).keeping.set_policy(id, Policy::Copies(3), &owner, soon()).await.unwrap() > second);
    world.until(id, 3, MINUTE * 10).await;
}

/// Cannot take what is offered the first few times, as if it were just deleting it.
struct Deleting {
    judge: Arc<dyn peers::Judge>,
    left: AtomicUsize,
}

impl peers::Judge for Deleting {
    fn judge(&self, from: NodeId, offer: &Offer) -> Result<(), Decline> {
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Decline::Failed { reason: "it is about to be deleted here".to_owned() }),
            Err(_) => self.judge.judge(from, offer),
        }
    }

    fn keep<'a>(
        &'a self,
        from: NodeId,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Decline>> {
        self.judge.keep(from, offer, deadline)
    }

    fn claims<'a>(
        &'a self,
        from: NodeId,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        self.judge.claims(from, body, deadline)
    }
}

/// What an earlier claim left there may be going from a node just now. It takes the piece when that is over, and there is nobody else
/// who could.
#[tokio::test(start_paused = true)]
async fn who_is_deleting_a_piece_is_given_it_again() {
    for policy in [Policy::Erasure { data: 2, parity: 1 }, Policy::Copies(3)] {
        let world = World::new(3).await;
        settle().await;
        let busy = world.node(1);
        let judge = Arc::new(Deleting { judge: busy.keeping.judge(), left: AtomicUsize::new(3) });
        let rules = Rules { trusts: Some(Arc::new(|_| true)), judge, ..Rules::default() };
        busy.links.serve(&busy.store, rules);
        let owner = identity(100);
        let put = world.node(0).keeping.put(content(200_000, 5), policy, &owner, Ack::Copies(3), soon());
        assert_eq!(put.await.unwrap().durable_on.len(), 3, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_drains_is_empty_before_it_goes() {
    let world = World::new(5).await;
    settle().await;
    let owner = identity(100);
    let ids = world.node(2).put_some(3000, 0..8, 2, Ack::Copies(2)).await;
    settle().await;
    world.node(2).keeping.set_draining(true, soon()).await.unwrap();
    settle().await;
    let mut waited = 0;
    while world.node(2).keeping.status().misplaced > 0 {
        tokio::time::sleep(MINUTE).await;
        waited += 1;
        assert!(waited < 60, "{:?}", world.node(2).keeping.status());
    }
    for id in &ids {
        let holders = world.holders(*id).await;
        assert!(holders.len() == 2 && !holders.contains(&2), "{holders:?}");
    }
    // And it takes nothing new.
    let put = world.node(0).keeping.put(content(9, 99), Policy::Copies(4), &owner, Ack::Copies(4), soon());
    assert!(!put.await.unwrap().durable_on.contains(&name(2)));
    // What is put on it is acknowledged when another has it: it may be stopped in the next moment.
    for ack in [Ack::Local, Ack::Copies(2)] {
        let put = world.node(2).keeping.put(content(9, 100), Policy::Copies(2), &owner, ack, soon());
        let durable_on = put.await.unwrap().durable_on;
        assert!(!durable_on.is_empty() && !durable_on.contains(&name(2)), "{ack:?}: {durable_on:?}");
    }
}

/// A node that was told to go and was restarted had forgotten it: others gave it objects again, and whoever stopped it later lost them.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_told_to_go_goes_on_going_after_a_restart() {
    let mut world = World::new(4).await;
    settle().await;
    let owner = identity(100);
    let ids = world.node(2).put_some(3000, 0..8, 2, Ack::Copies(2)).await;
    settle().await;
    world.node(2).keeping.set_draining(true, soon()).await.unwrap();
    world.kill(2).await;
    world.revive(2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(world.node(2).keeping.status().is_draining);
    for salt in 10..20 {
        let put =
            world.node(0).keeping.put(content(3000, salt), Policy::Copies(3), &owner, Ack::Copies(3), soon());
        assert!(!put.await.unwrap().durable_on.contains(&name(2)), "it takes nothing new");
    }
    let mut waited = 0;
    while world.node(2).keeping.status().needed > 0 {
        tokio::time::sleep(MINUTE).await;
        waited += 1;
        assert!(waited < 60, "{:?}", world.node(2).keeping.status());
    }
    for id in &ids {
        let others = world.holders(*id).await.into_iter().filter(|holder| *holder != 2).count();
        assert!(others >= 2, "{others}");
    }
    // Taken back, and that is remembered too.
    world.node(2).keeping.set_draining(false, soon()).await.unwrap();
    world.node(2).keeping.set_draining(false, soon()).await.unwrap();
    world.kill(2).await;
    world.revive(2).await;
    settle().await;
    assert!(!world.node(2).keeping.status().is_draining);
    let put = world.node(0).keeping.put(content(9, 99), Policy::Copies(4), &owner, Ack::Copies(4), soon());
    assert!(put.await.unwrap().durable_on.contains(&name(2)));
}

/// One of as many nodes as there are shards is away. A put that wanted to be as safe as two copies was refused, because it
/// waited for all shards whatever it was asked for.
#[tokio::test(start_paused = true)]
async fn shards_are_acknowledged_when_they_are_as_safe_as_was_asked_for() {
    let mut world = World::new(5).await;
    settle().await;
    let (owner, policy) = (identity(100), Policy::Erasure { data: 2, parity: 3 });
    let put = async |world: &World, salt: u64, ack: u8| {
        let began = ron_core::now();
        let whole = content(50_000, salt);
        let put = world.node(0).keeping.put(whole, policy, &owner, Ack::Copies(ack), soon()).await;
        (put.map(|placed| placed.durable_on.len()), ron_core::now() - began)
    };
    assert_eq!(put(&world, 1, 4).await.0, Ok(5), "all of them");
    assert_eq!(put(&world, 2, 9).await.0, Ok(5), "more than that its policy does not survive");
    world.kill(3).await;
    // Nobody has noticed yet, and nobody is waited for who is not needed.
    let (acknowledged, took) = put(&world, 3, 2).await;
    assert!(acknowledged == Ok(4) && took < Duration::from_secs(3), "{acknowledged:?} after {took:?}");
    assert_eq!(put(&world, 4, 3).await.0, Ok(4));
    let refused = put(&world, 5, 4).await.0;
    assert_eq!(refused, Err(StorageError::Unacknowledged { wanted: 4, found: 3 }));
    world.kill(4).await;
    assert_eq!(put(&world, 6, 2).await.0, Ok(3));
    let refused = put(&world, 7, 3).await.0;
    assert_eq!(refused, Err(StorageError::Unacknowledged { wanted: 3, found: 2 }));
    // It is kept all the same, and what is missing comes when somebody is there to take it.
    world.revive(3).await;
    world.revive(4).await;
    tokio::time::sleep(MINUTE * 10).await;
    let status = world.node(0).keeping.status();
    assert_eq!(status.objects[&Health::Met], 7, "{status:?}");
}

/// What could not be written down was not said.
#[tokio::test(start_paused = true)]
async fn a_node_whose_disk_fails_is_not_told_to_go() {
    let world = World::new(2).await;
    settle().await;
    for (call, fault) in [(1, Fault::NoSpace), (2, Fault::Io), (3, Fault::Io), (4, Fault::Io)] {
        world.disk(0).fail_call(call, fault);
        let refused = world.node(0).keeping.set_draining(true, soon()).await;
        assert!(
            matches!(refused, Err(StorageError::Disk { .. } | StorageError::Full)),
            "{call}: {refused:?}"
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!world.node(0).keeping.status().is_draining, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_node_in_memory_has_is_no_copy() {
    let settings = KeepingSettings { tick: Duration::from_secs(20), ..KeepingSettings::default() };
    let world = World::with(3, settings, vec![1]).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(1).keeping.put(content(500, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let placed = put.await.unwrap();
    assert!(!placed.durable_on.contains(&name(1)));
    // All three, and three there are not.
    let put = world.node(0).keeping.put(content(500, 2), Policy::Copies(3), &owner, Ack::Copies(3), soon());
    assert_eq!(put.await, Err(StorageError::Unacknowledged { wanted: 3, found: 2 }));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_is_mended() {
    let world = World::new(3).await;
    settle().await;
    let owner = identity(100);
    let put =
        world.node(0).keeping.put(content(600_000, 1), Policy::Copies(3), &owner, Ack::Copies(3), soon());
    let id = put.await.unwrap().id;
    settle().await;
    // A large object is a file of its own; the first of a store has number 1, and its place is known from the list.
    let disk = world.disk(1);
    let file = large_file(disk);
    disk.flip_bit(&file, 300_000);
    let scrubbed = world.node(1).store.scrub(soon()).await.unwrap();
    assert_eq!(scrubbed.damaged, [id]);
    assert_eq!(world.holders(id).await, [0, 2]);
    world.until(id, 3, MINUTE * 10).await;
    assert!(world.node(1).store.scrub(soon()).await.unwrap().damaged.is_empty());
}

fn large_file(disk: &ron_core::sim::SimDisk) -> std::path::PathBuf {
    use ron_core::disk::Disk;
    let dir = std::path::Path::new("store/large");
    let names = disk.list(dir).unwrap();
    let longest =
        names.iter().max_by_key(|entry| disk.bytes(dir.join(&entry.name)).map_or(0, |bytes| bytes.len()));
    dir.join(&longest.unwrap().name)
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_said() {
    let mut world = World::new(4).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(500, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    settle().await;
    let holders = world.holders(id).await;
    let other = (0..4).find(|number| !holders.contains(number)).unwrap();
    let mut events = world.node(other).keeping.events();
    for holder in &holders {
        world.kill(*holder).await;
    }
    tokio::time::sleep(GRACE + MINUTE * 2).await;
    let mut said = Vec::new();
    while let Some(FeedEvent::Item(event)) = events.try_recv() {
        said.push(event);
    }
    assert!(said.contains(&KeepingEvent::Lost(id)), "{said:?}");
    assert!(said.contains(&KeepingEvent::Presence { node: name(holders[0]), is_up: false }));
    assert_eq!(world.node(other).keeping.status().objects[&Health::Lost], 1);
    assert_eq!(world.node(other).count("objects_lost"), 1);
    world.revive(holders[0]).await;
    world.until(id, 2, MINUTE * 30).await;
    assert_eq!(world.node(other).keeping.status().objects[&Health::Lost], 0);
}

#[tokio::test(start_paused = true)]
async fn the_pace_is_kept_and_the_lane_skips_what_is_not_urgent() {
    let settings = KeepingSettings {
        tick: Duration::from_secs(20),
        bytes_per_second: 64 << 10,
        workers: std::num::NonZeroUsize::MIN,
        lane: 1,
        grace: GRACE,
        repair_timeout: MINUTE * 60,
        ..KeepingSettings::default()
    };
    let world = World::with(4, settings, Vec::new()).await;
    settle().await;
    let ids = world.node(0).put_some(200_000, 0..10, 3, Ack::Copies(2)).await;
    // Two megabytes at least are missing: half a minute for one node. What each moved in any second is at most its rate.
    let moved =
        || -> Vec<u64> { (0..4).map(|number| world.node(number).count("repair_bytes_total")).collect() };
    let mut before = moved();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = moved();
        assert!(
            before.iter().zip(&after).all(|(before, after)| after - before <= 64 << 10),
            "{before:?} {after:?}"
        );
        before = after;
    }
    assert!(before.iter().sum::<u64>() > 200_000, "{before:?}");
    for id in &ids {
        world.until(*id, 3, MINUTE * 60).await;
    }
    let paced: u64 = (0..4).map(|number| world.node(number).count("repair_paced_total")).sum();
    let skipped: u64 =
        (0..4).map(|number| world.node(number).count("repair_skipped_total{reason=\"full\"}")).sum();
    assert!(paced > 0 && skipped > 0, "{paced} paced, {skipped} skipped");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_expelled_is_replaced_at_once_and_not_believed() {
    let world = World::new(4).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(700, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    settle().await;
    let gone = world.holders(id).await[0];
    world.expel(gone);
    settle().await;
    let left = world.holders(id).await.into_iter().filter(|holder| *holder != gone).count();
    assert_eq!(left, 2);
    let refused =
        world.node(gone).keeping.put(content(700, 2), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    assert!(refused.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn shutdown_twice_is_harmless_and_the_store_goes_on() {
    let world = World::new(2).await;
    let node = world.node(0);
    assert!(!node.keeping.shutdown().await.drained.to_string().is_empty());
    node.keeping.shutdown().await;
    assert!(node.store.put_bytes(content(5, 1), soon()).await.is_ok());
}

/// A copy that was brought for a reader is one too many, and goes when the reader has it; before, it went in the middle of a long
/// answer.
#[tokio::test(start_paused = true)]
async fn what_is_read_is_not_trimmed_meanwhile() {
    let world = World::new(3).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(900, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    settle().await;
    let holders = world.holders(id).await;
    let reader = world.node((0..3).find(|number| !holders.contains(number)).unwrap());
    let reading = reader.keeping.reading(id, soon()).await.unwrap();
    reader.keeping.bring(id, soon()).await.unwrap();
    tokio::time::sleep(GRACE + MINUTE * 10).await;
    assert_eq!(world.holders(id).await.len(), 3);
    drop(reading);
    world.until(id, 2, MINUTE * 60).await;
}

/// A node that nobody has looked at was taken for one that may have whatever belongs on it: an object with one copy of two was as it
/// should be as soon as somebody joined, and stayed so until long after that node answered.
#[tokio::test(start_paused = true)]
async fn who_joins_counts_for_nothing_before_it_was_seen_and_is_given_its_share_at_once() {
    let mut world = World::with(2, KeepingSettings::default(), Vec::new()).await;
    world.kill(1).await;
    world.expel(1);
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(1000, 1), Policy::Copies(2), &owner, Ack::Local, soon());
    let id = put.await.unwrap().id;
    settle().await;
    assert_eq!(world.node(0).keeping.status().objects[&Health::Urgent], 1);
    world.admit(1);
    // Longer than the host is not asked for, and than it takes to see that nobody answers.
    for _ in 0..30 {
        let status = world.node(0).keeping.status();
        assert_eq!((status.objects[&Health::Met], status.fewest_copies), (0, Some(1)), "{status:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.revive(1).await;
    world.until(id, 2, MINUTE / 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = world.node(0).keeping.status();
    assert_eq!((status.objects[&Health::Met], status.fewest_copies), (1, Some(2)), "{status:?}");
}

/// Somebody who has not heard yet that an object is deleted asked for it in vain, and took that for a failure of those who had it.
#[tokio::test(start_paused = true)]
async fn what_was_just_deleted_elsewhere_is_not_found() {
    let settings = KeepingSettings { tick: MINUTE * 10, ..KeepingSettings::default() };
    let world = World::with(3, settings, Vec::new()).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(1000, 1), Policy::Copies(1), &owner, Ack::Copies(1), soon());
    let id = put.await.unwrap().id;
    // All have heard of it, and nobody hears anything more by itself for some minutes.
    tokio::time::sleep(MINUTE * 11).await;
    world.until(id, 1, MINUTE).await;
    let holder = world.holders(id).await[0];
    let retention = Duration::from_secs(RETENTION_MIN);
    world.node(holder).keeping.delete(id, &owner, retention, soon()).await.unwrap();
    world.until(id, 0, MINUTE).await;
    let asking = world.node((holder + 1) % 3);
    assert!(matches!(asking.store.standing(&id), Standing::Live(_)), "it has heard of it");
    let made = asking.keeping.make(id, soon()).await;
    assert!(matches!(made, Err(StorageError::NotFound { .. })), "{made:?}");
    let asking = world.node((holder + 2) % 3);
    let brought = asking.keeping.bring(id, soon()).await;
    assert!(matches!(brought, Err(StorageError::NotFound { .. })), "{brought:?}");
}

/// An object that is put again as before, by a node that has not heard that its owner wanted it otherwise meanwhile. The word from before
/// was taken for this one: the put was acknowledged, and what was said before it held.
#[tokio::test(start_paused = true)]
async fn what_is_put_again_is_as_it_was_put_last() {
    let world = World::new(3).await;
    settle().await;
    let owner = identity(100);
    let put = |ack| world.node(0).keeping.put(content(1000, 1), Policy::Copies(2), &owner, ack, soon());
    let id = put(Ack::Copies(2)).await.unwrap().id;
    tokio::time::sleep(MINUTE).await;
    world.net.partition(&[ip(0)], &[ip(1), ip(2)]);
    let changed = world.node(1).keeping.set_policy(id, Policy::Copies(3), &owner, soon()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = put(Ack::Local).await.unwrap().version;
    assert!(again > changed, "{again} {changed}");
    world.net.heal();
    tokio::time::sleep(MINUTE * 5).await;
    for number in 0..3 {
        let standing = world.node(number).store.standing(&id);
        assert!(matches!(&standing, Standing::Live(wanted) if wanted.copies == 2), "{number}: {standing:?}");
    }
    world.end().await;
}

/// What was put was not counted for up to a second, and then as what it should be before anybody had looked: who asked in between was
/// told that all is well.
#[tokio::test(start_paused = true)]
async fn what_was_just_put_is_counted_or_said_not_to_be() {
    let world = World::new(1).await;
    settle().await;
    let (owner, keeping) = (identity(100), &world.node(0).keeping);
    for salt in 0..5 {
        keeping.put(content(1000, salt), Policy::Copies(2), &owner, Ack::Local, soon()).await.unwrap();
        let status = keeping.status();
        assert!(status.unweighed > 0, "{status:?}");
        let asked = Deadline::after(Duration::from_secs(2));
        let status = keeping.status_now(asked).await;
        let counted = (status.objects[&Health::Urgent], status.objects[&Health::Met], status.unweighed);
        assert_eq!(counted, (salt as usize + 1, 0, 0), "{status:?}");
        assert!(asked.remaining() > Duration::from_secs(1), "it took long");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(keeping.status().unweighed, 0);
}

/// Everything that is on any node.
pub(crate) async fn pieces(world: &World) -> Vec<(usize, ContentId)> {
    let mut all = Vec::new();
    for (number, node) in world.nodes.iter().enumerate() {
        let Some(node) = node else { continue };
        let page = node.store.list(None, 1000, soon()).await.unwrap();
        all.extend(page.objects.iter().map(|stat| (number, stat.id)));
    }
    all
}

/// Waits until there are so many pieces in all, for so long at most.
pub(crate) async fn until_pieces(world: &World, count: usize, at_most: Duration, of: &str) {
    let end = Deadline::after(at_most);
    loop {
        let all = pieces(world).await;
        if all.len() == count {
            return;
        }
        assert!(!end.has_passed(), "{of}: {} pieces are left, and {count} should be: {all:?}", all.len());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The manifest of an object in shards stayed when that was deleted, and its shards did if the policy had changed before and a node was
/// started again in between.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_policies_that_are_over_and_of_what_is_deleted() {
    let mut world = World::new(4).await;
    settle().await;
    let (owner, whole) = (identity(100), content(100_000, 9));
    let put = |data, parity| (Policy::Erasure { data, parity }, data + parity);
    let placed = world.node(0).keeping.put(whole.clone(), put(2, 1).0, &owner, Ack::Copies(2), soon()).await;
    let id = placed.unwrap().id;
    let retention = Duration::from_secs(RETENTION_MIN);
    settle().await;
    for (number, (policy, shards)) in [put(2, 2), put(6, 3), put(3, 1), put(2, 2)].into_iter().enumerate() {
        let node = (number % 3) as u8;
        world.node(node).keeping.set_policy(id, policy, &owner, soon()).await.unwrap();
        // Also a node that is started again before anything went from it knows what has to.
        world.kill(node).await;
        world.revive(node).await;
        assert!(world.node(3).keeping.get(id, soon()).await.unwrap() == whole);
        if number == 3 {
            // Its manifest is on the nodes where that was said.
            until_pieces(&world, usize::from(shards) + 1, MINUTE * 6, "alive").await;
        } else {
            settle().await;
        }
    }
    assert!(world.node(3).keeping.get(id, soon()).await.unwrap() == whole);
    world.node(2).keeping.delete(id, &owner, retention, soon()).await.unwrap();
    until_pieces(&world, 0, MINUTE * 3, "deleted").await;
}

/// A shard was offered and taken; the word that ends its object came before the claim that it was offered with was written down. Of the
/// older claim nothing was taken in, so nobody knew there what the shard was of, and it stayed.
#[tokio::test(start_paused = true)]
async fn a_shard_that_is_taken_while_its_object_is_deleted_goes() {
    let mut world = World::new(3).await;
    settle().await;
    let owner = identity(100);
    let (manifest, shards) = encode(&content(100_000, 9), 2, 1, &ReedSolomon).unwrap();
    let say = |version, word| Claim::sign(&owner, (manifest.object, 100_000), version, 0, word).unwrap();
    let over = say(2, Word::Tombstone { retention: RETENTION_MIN });
    for (node, is_restarted) in [(1, false), (2, true)] {
        let store = &world.node(node).store;
        store.put_bytes(shards[usize::from(node)].clone(), soon()).await.unwrap();
        store.claim(over.clone(), None, soon()).await.unwrap();
        let before = say(1, Word::Erasure(manifest.coding()));
        let heard = store.claim(before, Some(manifest.clone()), soon()).await.unwrap();
        assert_eq!(heard, Merged::Older);
        if is_restarted {
            world.kill(node).await;
            world.revive(node).await;
        }
    }
    until_pieces(&world, 0, MINUTE * 3, "deleted").await;
}

/// Whoever asks for copies of an object in shards has the only one until others have theirs, and may be lost with it. All the shards
/// were there, and nobody looked at them: the claim that everybody knew was one for copies.
#[tokio::test(start_paused = true)]
async fn an_object_is_read_and_restored_out_of_shards_of_the_policy_before() {
    let world = World::new(5).await;
    settle().await;
    let (owner, whole) = (identity(100), content(100_000, 9));
    let policy = Policy::Erasure { data: 2, parity: 1 };
    let placed =
        world.node(0).keeping.put(whole.clone(), policy, &owner, Ack::Copies(2), soon()).await.unwrap();
    settle().await;
    // Nobody has a copy when this is heard.
    let object = (placed.id, placed.len);
    let claim = Claim::sign(&owner, object, placed.version + 1, 0, Word::Copies(2)).unwrap();
    for node in 0..5 {
        world.node(node).store.claim(claim.clone(), None, soon()).await.unwrap();
        assert!(world.node(node).keeping.get(placed.id, soon()).await.unwrap() == whole);
    }
    world.until(placed.id, 2, MINUTE * 5).await;
    until_pieces(&world, 2, MINUTE * 6, "in copies").await;
}

/// The rules hold the keeping, which holds the links, which hold the rules: everything that a node had stayed in memory for as long as
/// the process.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_ended_is_freed() {
    for is_killed in [false, true] {
        let mut world = World::new(2).await;
        settle().await;
        let (held, node) = (Arc::new(()), world.node(1));
        let (keeping, token) = (node.keeping.clone(), Arc::clone(&held));
        let trusts = move |peer: &NodeId| {
            let _ = &token;
            keeping.is_member(peer)
        };
        let rules = Rules { trusts: Some(Arc::new(trusts)), judge: node.keeping.judge(), ..Rules::default() };
        node.links.serve(&node.store, rules);
        if is_killed {
            world.kill(1).await;
        } else {
            world.stop(1).await;
        }
        assert_eq!(Arc::strong_count(&held), 1, "killed: {is_killed}");
    }
}
