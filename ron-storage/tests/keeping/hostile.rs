//! Members that do what they should not: answer for ever, take nothing, or are none any more.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{Deadline, NodeId, net::BoxFuture};
use ron_storage::{
    StorageError,
    claims::{Manifest, Policy},
    logic::{
        inventory::{PARTS, Part, Told},
        wire::{read_question, write_parts},
        words::{self, Kind},
    },
    peers::{self, Decline, Offer, Rules},
    repair::{Ack, KeepingSettings},
};

use crate::world::{GRACE, MINUTE, Node, World, content, identity, name, settle, soon};

/// What a member may do wrong.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Says of every part of its claims that there is more behind it, as late as it can.
    Endless,
    /// Cannot take anything, and says so each time.
    Unable,
}

struct Hostile(Arc<dyn peers::Judge>, Way);

impl Hostile {
    fn begin(node: &Node, way: Way) {
        let judge = Arc::new(Hostile(node.keeping.judge(), way));
        node.links.serve(&node.store, Rules { trusts: Some(Arc::new(|_| true)), judge, ..Rules::default() });
    }
}

impl peers::Judge for Hostile {
    fn judge(&self, from: NodeId, offer: &Offer) -> Result<(), Decline> {
        match self.1 {
            Way::Unable => Err(Decline::Failed { reason: "the store takes nothing now".to_owned() }),
            Way::Endless => self.0.judge(from, offer),
        }
    }

    fn keep<'a>(
        &'a self,
        from: NodeId,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Decline>> {
        self.0.keep(from, offer, deadline)
    }

    fn claims<'a>(
        &'a self,
        from: NodeId,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        let (kind, items) = words::read(&body).unwrap();
        if self.1 != Way::Endless || kind != Kind::Compare {
            return self.0.claims(from, body, deadline);
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(4500)).await;
            let more = |number: u8| Told { count: 1 << 40, fingerprint: [number; 16] };
            let cut = || Part::Cut(Box::new(std::array::from_fn::<_, PARTS, _>(|at| more(at as u8 + 1))));
            let parts: Vec<Part> = read_question(&items[0]).unwrap().iter().map(|_| cut()).collect();
            Ok(words::write(Kind::Compare, &[write_parts(&parts)]))
        })
    }
}

/// One member that always has more to say was listened to for three quarters of an hour, and nobody else was looked at meanwhile: nodes
/// that were gone seemed to be there.
#[tokio::test(start_paused = true)]
async fn who_has_always_more_to_say_holds_up_nobody() {
    let mut world = World::new(5).await;
    settle().await;
    let ids = world.node(0).put_some(500, 0..8, 3, Ack::Copies(3)).await;
    settle().await;
    Hostile::begin(world.node(1), Way::Endless);
    settle().await;
    world.kill(2).await;
    tokio::time::sleep(GRACE + MINUTE * 4).await;
    for number in [0, 3, 4] {
        let status = world.node(number).keeping.status();
        assert_eq!(status.away, 1, "{number} has not noticed: {status:?}");
    }
    for id in ids {
        world.until(id, 3, MINUTE * 3).await;
    }
}

/// A node whose disk fails answers, and is given the same objects again and again. Others would have taken them.
#[tokio::test(start_paused = true)]
async fn who_takes_nothing_is_passed_over() {
    let world = World::new(4).await;
    settle().await;
    Hostile::begin(world.node(1), Way::Unable);
    let ids = world.node(0).put_some(500, 0..8, 3, Ack::Local).await;
    tokio::time::sleep(MINUTE * 5).await;
    for id in ids {
        assert_eq!(world.holders(id).await, [0, 2, 3]);
    }
}

/// A repair whose bytes wait for the rate is not stuck. Other shards were asked for as well, and half as many bytes again were moved,
/// just when there was least room for them.
#[tokio::test(start_paused = true)]
async fn who_waits_for_the_rate_asks_for_no_more_shards() {
    let settings = KeepingSettings {
        tick: Duration::from_secs(20),
        takeover: MINUTE * 5,
        bytes_per_second: 64 << 10,
        grace: GRACE,
        ..KeepingSettings::default()
    };
    let mut world = World::with(6, settings, Vec::new()).await;
    settle().await;
    let (owner, whole) = (identity(100), content(800_000, 3));
    let policy = Policy::Erasure { data: 2, parity: 2 };
    let put = world.node(0).keeping.put(whole, policy, &owner, Ack::Copies(3), soon());
    let placed = put.await.unwrap();
    tokio::time::sleep(MINUTE * 3).await;
    let manifest: Manifest = {
        let body = world.node(0).store.claims(&placed.id);
        assert_eq!(body.len(), 1);
        let ron_storage::claims::Word::Erasure(coding) = body[0].word else { panic!("{body:?}") };
        let bytes = world.node(0).store.get_bytes(coding.manifest, 4096, soon()).await.unwrap();
        Manifest::decode(&bytes).unwrap()
    };
    let killed = (1..6).find(|number| placed.durable_on.contains(&name(*number))).unwrap();
    let moved = |world: &World| -> u64 {
        let others = (0..6).filter(|number| *number != killed);
        others.map(|number| world.node(number).count("repair_bytes_total")).sum()
    };
    let before = moved(&world);
    world.kill(killed).await;
    tokio::time::sleep(GRACE + MINUTE * 4).await;
    for shard in &manifest.shards {
        assert_eq!(world.holders(*shard).await.len(), 1);
    }
    // Of the two that it takes one is where the shard is made, one comes from elsewhere, and what is made goes to another.
    let (bytes, least) = (moved(&world) - before, 2 * 400_000);
    assert!(bytes as f64 <= 1.1 * f64::from(least), "{bytes} bytes were moved for {least}");
}

/// Whoever is none of those who keep objects counts for none of them, and nobody takes what it gives: what it acknowledged was on one
/// disk, which nobody looks at.
#[tokio::test(start_paused = true)]
async fn who_is_no_member_acknowledges_nothing() {
    let world = World::new(3).await;
    settle().await;
    world.expel(0);
    settle().await;
    let owner = identity(100);
    for ack in [Ack::Local, Ack::Copies(1), Ack::Copies(2)] {
        let soon = Deadline::after(MINUTE);
        let put = world.node(0).keeping.put(content(500, 1), Policy::Copies(2), &owner, ack, soon).await;
        assert!(matches!(put, Err(StorageError::Unacknowledged { found: 0, .. })), "{ack}: {put:?}");
    }
}

/// While the lane is full, what waits for room was weighed and skipped again every few seconds, all of it: with a million objects that
/// is all that a processor does.
#[tokio::test(start_paused = true)]
async fn what_waits_for_room_is_not_weighed_again_and_again() {
    let settings = KeepingSettings {
        tick: Duration::from_secs(20),
        bytes_per_second: 64 << 10,
        workers: std::num::NonZeroUsize::MIN,
        lane: 1,
        grace: GRACE,
        ..KeepingSettings::default()
    };
    let world = World::with(4, settings, Vec::new()).await;
    settle().await;
    world.node(0).put_some(64_000, 0..200, 3, Ack::Copies(2)).await;
    let skipped = || -> u64 {
        let of = |number: u8| world.node(number).count("repair_skipped_total{reason=\"full\"}");
        (0..4).map(of).sum()
    };
    let before = skipped();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let skipped = skipped() - before;
    // Each node finds the lane full when it has given it something, and once a second.
    assert!((1..=4 * 45).contains(&skipped), "{skipped} skipped in 20 s");
}
