//! What must not work, and what must not matter: forged words, races, nodes that are stuck.

use std::{future::poll_fn, num::NonZeroUsize, task::Poll, time::Duration};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, net::BoxFuture, now, sim::Line};
use ron_storage::{
    StorageError,
    claims::{Claim, Manifest, Policy, RETENTION_MIN, Standing, Word},
    logic::words::{self, Kind, write_told},
    peers::{Decline, Offer, PeerError, Peers},
    repair::{Ack, KeepingSettings},
};

use crate::world::{GRACE, MINUTE, World, content, identity, ip, peer, settle, soon};

const RETENTION: Duration = Duration::from_secs(RETENTION_MIN);

/// A node that keeps objects with others may put what it likes beside an owner's signed word. It put a manifest there that names any
/// object, and that was taken and kept for ever, though nobody had claimed it.
#[tokio::test(start_paused = true)]
async fn a_manifest_that_the_claim_does_not_name_lets_nothing_in() {
    let world = World::new(3).await;
    settle().await;
    let (owner, wanted, foreign) = (identity(100), content(500, 1), content(500, 2));
    let liar = world.node(0);
    let foreign = liar.store.put_bytes(foreign, soon()).await.unwrap().id;
    let word = Claim::sign(&owner, (ContentId::of(&wanted), 500), 1, 0, Word::Copies(2)).unwrap();
    let shards = vec![foreign, ContentId::of(b"1"), ContentId::of(b"2")];
    let manifest = Manifest { object: word.claim().object, len: 500, data: 2, shards };
    let told = words::write(Kind::Tell, &[write_told(word.claim(), Some(&manifest))]);
    let offer = Offer { id: foreign, len: 500, claim: told };
    let refused = liar.links.push(&peer(1), &offer, soon()).await;
    assert!(matches!(refused, Err(PeerError::Declined(Decline::Unwanted { .. }))), "{refused:?}");
    assert!(!world.node(1).store.has(foreign, soon()).await.unwrap());
}

/// Two words of one owner at the same moment have the same version, and one of them is not taken. Both were told that theirs was.
#[tokio::test(start_paused = true)]
async fn of_two_words_at_once_both_are_said_one_after_the_other() {
    let world = World::new(3).await;
    settle().await;
    let (owner, keeping) = (identity(100), &world.node(0).keeping);
    for salt in 0..20 {
        let put = keeping.put(content(500, salt), Policy::Copies(1), &owner, Ack::Local, soon());
        let id = put.await.unwrap().id;
        let (changed, pinned, deleted) = tokio::join!(
            keeping.set_policy(id, Policy::Copies(2), &owner, soon()),
            keeping.pin(id, &owner, soon()),
            keeping.delete(id, &owner, RETENTION, soon()),
        );
        let (changed, pinned, deleted) = (changed.unwrap(), pinned.unwrap(), deleted.unwrap());
        assert!(
            changed != pinned && pinned != deleted && changed != deleted,
            "each has a version of its own"
        );
        let last = changed.max(pinned).max(deleted);
        let standing = world.node(0).store.standing(&id);
        assert_eq!(standing == Standing::Deleted, last == deleted, "{standing:?}");
    }
    // One who has said the last thing there is to say is told so.
    let id = ContentId::of(b"last");
    let last = Claim::sign(&owner, (id, 1), u64::MAX, 0, Word::Pin).unwrap();
    world.node(0).store.claim(last, None, soon()).await.unwrap();
    let refused = keeping.delete(id, &owner, RETENTION, soon()).await;
    assert!(matches!(refused, Err(StorageError::Claim { .. })), "{refused:?}");
}

/// An object that is put again while it is being dropped. Whether it was claimed was asked before it was removed, and it was
/// acknowledged in between.
#[tokio::test(start_paused = true)]
async fn what_is_put_while_it_is_dropped_stays() {
    let world = World::new(1).await;
    settle().await;
    let (owner, node) = (identity(100), world.node(0));
    for delay in 0..60 {
        let whole = content(300_000, 1000 + delay);
        let put = || node.keeping.put(whole.clone(), Policy::Copies(1), &owner, Ack::Local, soon());
        let id = put().await.unwrap().id;
        node.keeping.delete(id, &owner, RETENTION, soon()).await.unwrap();
        for _ in 0..delay {
            tokio::task::yield_now().await;
        }
        put().await.unwrap();
        assert!(node.store.has(id, soon()).await.unwrap(), "after {delay} turns");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(node.store.has(id, soon()).await.unwrap(), "after {delay} turns, later");
    }
}

/// A node that has the object and gives a byte a second is not what a reader, a put or a repair waits for.
#[tokio::test(start_paused = true)]
async fn who_is_stuck_holds_up_nobody() {
    let world = World::new(6).await;
    settle().await;
    let owner = identity(100);
    let stuck = Line { bandwidth: Some(1), ..Line::default() };
    let (copied, cut) = (content(400_000, 1), content(400_000, 2));
    let (copies, shards) = (Policy::Copies(3), Policy::Erasure { data: 2, parity: 2 });
    let first =
        world.node(0).keeping.put(copied.clone(), copies, &owner, Ack::Copies(3), soon()).await.unwrap();
    let second =
        world.node(0).keeping.put(cut.clone(), shards, &owner, Ack::Copies(4), soon()).await.unwrap();
    settle().await;
    for number in 0..6 {
        for reader in (0..6).filter(|reader| *reader != number) {
            world.net.set_line(ip(number), ip(reader), stuck);
        }
        let reader = (number + 1) % 6;
        for (id, whole) in [(first.id, &copied), (second.id, &cut)] {
            let began = now();
            assert!(world.node(reader).keeping.get(id, soon()).await.unwrap() == *whole);
            assert!(now() - began < Duration::from_secs(5), "{:?} while {number} is stuck", now() - began);
        }
        let began = now();
        let whole = content(1000, 50 + u64::from(number));
        let put = world.node(reader).keeping.put(whole, Policy::Copies(2), &owner, Ack::Copies(2), soon());
        assert_eq!(put.await.unwrap().durable_on.len(), 2);
        assert!(now() - began < Duration::from_secs(5), "{:?} for a put", now() - began);
        for reader in (0..6).filter(|reader| *reader != number) {
            world.net.set_line(ip(number), ip(reader), Line::default());
        }
        settle().await;
    }
}

/// What the next loss would end comes before what waits already. It waited behind all of that in one lane.
#[tokio::test(start_paused = true)]
async fn what_is_urgent_overtakes_what_waits() {
    let settings = KeepingSettings {
        tick: Duration::from_secs(20),
        bytes_per_second: 64 << 10,
        workers: NonZeroUsize::MIN,
        grace: GRACE,
        ..KeepingSettings::default()
    };
    let world = World::with(4, settings, Vec::new()).await;
    settle().await;
    let owner = identity(100);
    let node = world.node(0);
    node.put_some(64_000, 0..80, 3, Ack::Copies(2)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(node.keeping.status().repairs > 15, "{:?}", node.keeping.status());
    let put = node.keeping.put(content(64_000, 99), Policy::Copies(2), &owner, Ack::Local, soon());
    let last = put.await.unwrap().id;
    world.until(last, 2, Duration::from_secs(12)).await;
}

/// What two owners of nothing bring is bounded, and who brings it is told nothing worse than that.
#[tokio::test(start_paused = true)]
async fn claims_are_taken_up_to_a_limit() {
    let settings = KeepingSettings { claims_max: 30, owner_claims_max: 20, ..KeepingSettings::default() };
    let world = World::with(2, settings, Vec::new()).await;
    settle().await;
    let told = |owner: u8, number: u64| -> Bytes {
        let object = ContentId::of(&number.to_be_bytes());
        let claim = Claim::sign(&identity(owner), (object, 1), 1, 0, Word::Copies(2)).unwrap();
        write_told(claim.claim(), None)
    };
    let links = &world.node(0).links;
    for owner in [100, 101] {
        let items: Vec<Bytes> = (0..40).map(|number| told(owner, number)).collect();
        links.claims(&peer(1), words::write(Kind::Tell, &items), soon()).await.unwrap();
    }
    settle().await;
    assert_eq!(world.node(1).keeping.status().claims, 30);
    let owner = identity(102);
    let put = world.node(1).keeping.put(content(9, 1), Policy::Copies(1), &owner, Ack::Local, soon());
    let refused = put.await;
    assert!(matches!(refused, Err(StorageError::Claim { .. })), "{refused:?}");
}

/// A node that has put objects in shards has their manifests, which belong to nobody else; and it has pins. Both kept it from ever
/// being empty.
#[tokio::test(start_paused = true)]
async fn a_node_with_manifests_and_pins_can_go() {
    let world = World::new(6).await;
    settle().await;
    let (owner, node) = (identity(100), world.node(2));
    let policy = Policy::Erasure { data: 2, parity: 1 };
    let put = node.keeping.put(content(200_000, 1), policy, &owner, Ack::Copies(3), soon());
    put.await.unwrap();
    let pinned = node.store.put_bytes(content(700, 2), soon()).await.unwrap().id;
    node.keeping.pin(pinned, &owner, soon()).await.unwrap();
    settle().await;
    node.keeping.set_draining(true, soon()).await.unwrap();
    let end = Deadline::after(MINUTE * 60);
    tokio::time::sleep(Duration::from_secs(2)).await;
    while node.keeping.status().misplaced > 0 {
        assert!(!end.has_passed(), "{:?}", node.keeping.status());
        tokio::time::sleep(MINUTE).await;
    }
    let holders = world.holders(pinned).await;
    assert!(!holders.is_empty() && !holders.contains(&2), "{holders:?}");
}

/// Also if it was being looked at just then: its silence is heard of after it was expelled.
#[tokio::test(start_paused = true)]
async fn who_is_expelled_while_it_is_looked_at_is_forgotten() {
    for instant in 0..8 {
        let mut world = World::new(3).await;
        settle().await;
        world.kill(2).await;
        tokio::time::sleep(Duration::from_millis(60_000 + instant * 1700)).await;
        assert_eq!(world.node(0).keeping.status().away, 1);
        world.expel(2);
        settle().await;
        let status = world.node(0).keeping.status();
        assert_eq!((status.up, status.away), (2, 0), "expelled at instant {instant}: {status:?}");
    }
}

/// Who has an object may be out of reach for a moment: nobody is told that there is none.
#[tokio::test(start_paused = true)]
async fn what_is_claimed_is_not_said_to_be_missing() {
    let world = World::new(3).await;
    settle().await;
    let owner = identity(100);
    let put = world.node(0).keeping.put(content(900, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    settle().await;
    let holders = world.holders(id).await;
    let reader = (0..3).find(|number| !holders.contains(number)).unwrap();
    let others: Vec<_> = holders.iter().map(|number| ip(*number)).collect();
    world.net.partition(&[ip(reader)], &others);
    let keeping = &world.node(reader).keeping;
    assert_eq!(keeping.bring(id, soon()).await.unwrap_err(), StorageError::Unreached { id });
    let back = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        world.net.heal();
    };
    let (brought, ()) = tokio::join!(keeping.bring(id, soon()), back);
    assert_eq!(brought.unwrap().len, 900);
    // What nobody has ever heard of is another thing.
    let unknown = ContentId::of(b"nobody has put this");
    assert_eq!(keeping.bring(unknown, soon()).await.unwrap_err(), StorageError::NotFound { id: unknown });
}

/// A host puts first and claims then. What had been deleted before was dropped in between, and whoever put it was told that it is not
/// there.
#[tokio::test(start_paused = true)]
async fn what_was_deleted_can_be_put_first_and_claimed_then() {
    let world = World::new(2).await;
    settle().await;
    let (owner, node) = (identity(100), world.node(0));
    let put = node.keeping.put(content(700, 1), Policy::Copies(2), &owner, Ack::Copies(2), soon());
    let id = put.await.unwrap().id;
    node.keeping.delete(id, &owner, RETENTION, soon()).await.unwrap();
    world.until(id, 0, MINUTE * 5).await;
    node.store.put_bytes(content(700, 1), soon()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.keeping.keep(id, Policy::Copies(2), &owner, Ack::Copies(2), soon()).await.unwrap();
    world.until(id, 2, MINUTE).await;
    // What nobody claims after all goes all the same.
    node.keeping.delete(id, &owner, RETENTION, soon()).await.unwrap();
    world.until(id, 0, MINUTE * 5).await;
    node.store.put_bytes(content(700, 1), soon()).await.unwrap();
    world.until(id, 0, MINUTE).await;
}

/// A node was told to go while its planner had more to hear than it had room for, and did not hear that: it said at once that nothing
/// is needed here, and with it whoever asked was told to stop it.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_told_to_go_in_a_crowd_says_what_is_needed() {
    let world = World::new(3).await;
    settle().await;
    let (owner, node) = (identity(100), world.node(1));
    let ids = node.put_some(700, 0..10, 1, Ack::Copies(1)).await;
    settle().await;
    let mut mine = Vec::new();
    for id in ids {
        mine.extend(node.store.has(id, soon()).await.unwrap().then_some(id));
    }
    assert!(!mine.is_empty(), "some belong here");
    // All of these are done in one turn, and leave more words than there is room for.
    let pins = (0..1200_u32).map(|number| {
        let (keeping, owner) = (&node.keeping, &owner);
        let id = ContentId::of(&number.to_be_bytes());
        Box::pin(async move { keeping.pin(id, owner, soon()).await }) as BoxFuture<'_, _>
    });
    let mut pins: Vec<_> = pins.collect();
    let all = poll_fn(|cx| {
        pins.retain_mut(|pin| pin.as_mut().poll(cx).is_pending());
        if pins.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    let told = async {
        all.await;
        node.keeping.set_draining(true, soon()).await
    };
    tokio::task::unconstrained(told).await.unwrap();
    let end = Deadline::after(MINUTE * 60);
    loop {
        let status = node.keeping.status();
        if status.is_draining && status.needed == 0 {
            break;
        }
        assert!(!end.has_passed(), "{status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for id in mine {
        let holders = world.holders(id).await;
        assert!(holders.iter().any(|holder| *holder != 1), "only {holders:?} have it, and it may be stopped");
    }
}
