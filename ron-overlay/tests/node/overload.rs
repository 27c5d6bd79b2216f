//! More than a subscriber, a link or an engine can take: it is said early, counted on both sides, and nobody else suffers.

use std::{
    collections::BTreeSet,
    future::Future as _,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ron_core::{Deadline, NodeId, now, sim::Line};
use ron_overlay::{Delivery, Event, Overflow, OverlayError, PeerSettings, Settings, Subscription};

use super::world::{Member, SECOND, World, ip, ms, soon, stop};

/// A line that takes a tenth of what is published over it.
fn thin() -> Line {
    Line { bandwidth: Some(100_000), ..Line::default() }
}

/// Publishes as fast as it may for so long, and says what was accepted and how often it was refused.
async fn flood(member: &Member, payload: usize, time: Duration) -> (u64, u64) {
    let (until, mut accepted, mut refused) = (now() + time, 0, 0);
    while now() < until {
        match member.topic.publish(vec![0; payload], soon()).await {
            Ok(_) => accepted += 1,
            Err(OverlayError::Busy { what: "egress", retry_after }) => {
                assert!((ms(5)..=SECOND).contains(&retry_after), "{retry_after:?}");
                refused += 1;
                tokio::time::sleep(retry_after).await;
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(ms(1)).await;
    }
    (accepted, refused)
}

/// Every message that was accepted is delivered: who publishes is slowed down to the line, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_saturated_link_makes_publishers_busy_and_loses_nothing() {
    let world = World::new(1);
    let settings = Settings {
        peer: PeerSettings { inflight_frames: 300, ..PeerSettings::default() },
        subscription_lane: 10_000,
        ..Settings::default()
    };
    let mut members = world.swarm(2, &settings).await;
    world.net.set_line(ip(1), ip(2), thin());
    let (accepted, refused) = flood(&members[0], 1000, 20 * SECOND).await;
    assert!(refused > 10 && accepted > 1000, "{accepted} accepted, {refused} refused");
    assert!(accepted < 3000, "{accepted} at a hundred a second, and what waits");
    let waiting = members[0].node.overlay.peers()[0].waiting;
    assert!(waiting <= 310, "{waiting} wait");
    assert_eq!(members[1].hear(10 * SECOND).await.len() as u64, accepted);
    let one = &members[0].node;
    assert_eq!(one.count("busy_rejections_total{endpoint=\"egress\"}"), refused);
    assert_eq!(one.count("backpressure_events_total{peer=\"neighbour\"}"), refused);
    assert_eq!(one.count("queue_dropped_total{queue=\"egress\"}"), 0);
    assert!(one.count("let_go_total{reason=\"digest_early\"}") > 0, "who is being sent it need not fetch it");
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Whoever waits for room tries again before its deadline, though a link asks for a longer pause: it slept to the end and
/// gave up, while there had long been room.
#[tokio::test(start_paused = true)]
async fn who_waits_for_room_tries_once_more_at_the_end() {
    let world = World::new(9);
    let settings = Settings {
        peer: PeerSettings { inflight_frames: 300, ..PeerSettings::default() },
        subscription_lane: 10_000,
        ..Settings::default()
    };
    let members = world.swarm(2, &settings).await;
    world.net.set_line(ip(1), ip(2), thin());
    flood(&members[0], 1000, 10 * SECOND).await;
    let retry_after = loop {
        match members[0].topic.publish(vec![0; 1000], soon()).await {
            Ok(_) => {}
            Err(OverlayError::Busy { retry_after, .. }) => break retry_after,
            Err(error) => panic!("{error}"),
        }
    };
    let patience = retry_after.mul_f64(0.9);
    assert!(patience > SECOND / 2, "{retry_after:?}");
    let before = now();
    let waited = members[0].topic.publish_when_free(vec![0; 1000], Deadline::after(patience)).await;
    assert!(waited.is_ok() && before.elapsed() < patience, "{waited:?} after {:?}", before.elapsed());
    stop(members.into_iter().map(|member| member.node)).await;
}

/// With the other policy nobody is refused: the oldest make room, both ends count them, and what was shed is fetched again
/// or told as missing.
#[tokio::test(start_paused = true)]
async fn a_topic_that_sheds_says_what_it_shed_on_both_sides() {
    let world = World::new(2);
    let settings = Settings {
        peer: PeerSettings { inflight_frames: 300, ..PeerSettings::default() },
        ..Settings::default()
    };
    let (one, two) = (world.node(1, settings.clone()).await, world.node(2, settings).await);
    let shedding =
        |node: &super::world::Node| node.overlay.topic("test").unsigned().overflow(Overflow::ShedOldest);
    let here = shedding(&one).join([], soon()).await.unwrap();
    let there = shedding(&two).join([one.overlay.contact()], soon()).await.unwrap();
    let mut heard = there.subscribe_with(10_000, soon()).await.unwrap();
    here.joined(soon()).await.unwrap();
    there.joined(soon()).await.unwrap();
    let mut events = two.overlay.events();
    world.net.set_line(ip(1), ip(2), thin());
    let published = 2000;
    for number in 0..published {
        here.publish(vec![number as u8; 1000], soon()).await.unwrap();
        tokio::time::sleep(ms(2)).await;
    }
    // Then the line is good again, and what was shed can be had, as far as it is still kept.
    tokio::time::sleep(5 * SECOND).await;
    world.net.set_line(ip(1), ip(2), Line::default());
    here.publish("last", soon()).await.unwrap();
    let (mut delivered, mut gaps) = (0, 0);
    while let Ok(Some(delivery)) = tokio::time::timeout(30 * SECOND, heard.recv()).await {
        match delivery {
            Delivery::Message { .. } => delivered += 1,
            Delivery::Gap(gap) => gaps += gap.count(),
            other => panic!("{other:?}"),
        }
    }
    let (shed, told) =
        (one.count("shed_words_total{side=\"unsent\"}"), two.count("shed_words_total{side=\"told\"}"));
    println!("{published} published, {delivered} delivered, {gaps} gaps, {shed} shed, {told} told");
    assert!(shed > 500, "{shed} were shed");
    assert_eq!(told, shed, "the receiver knows of every one");
    assert_eq!(one.count("queue_dropped_total{queue=\"egress\"}"), shed);
    // A gap that was told may have been filled later, so it is at least and not exactly what is missing.
    assert!(delivered + gaps > published, "{delivered} + {gaps}");
    assert!(delivered <= published + 1);
    let mut of_events = 0;
    while let Some(event) = events.try_recv() {
        if let ron_core::Event::Item(Event::PeerShed { unsent, .. }) = event {
            of_events += unsent;
        }
    }
    assert_eq!(of_events, shed);
    stop([one, two]).await;
}

/// The nodes of the next test. The fifth has a subscriber that never reads, and the third is the one whose links stick.
struct Scene {
    world: World,
    members: Vec<Member>,
    stuck: Subscription,
    published: BTreeSet<(NodeId, u64)>,
    busy: usize,
    /// What the node behind the stuck links has heard, and what it was told it will not hear.
    heard: BTreeSet<(NodeId, u64)>,
    lost: BTreeSet<(NodeId, u64)>,
}

const STUCK: usize = 2;
const PUBLISHERS: [usize; 2] = [0, 7];

impl Scene {
    async fn new() -> Self {
        let world = World::new(3);
        // What is kept and what may wait is full after a hundred messages, and must not grow from there on.
        let mut settings =
            Settings { message_bytes_max: 64 << 10, subscription_lane: 4096, ..Settings::default() };
        settings.peer.inflight_frames = 64;
        settings.gossip.store.bytes = 256 << 10;
        let members = world.swarm(12, &settings).await;
        let stuck = members[4].topic.subscribe_with(16, soon()).await.unwrap();
        Scene {
            world,
            members,
            stuck,
            published: BTreeSet::new(),
            busy: 0,
            heard: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    /// So many bytes a second to and from one node, over every link of it.
    fn set_bandwidth(&self, bandwidth: Option<u64>) {
        let usual = ron_core::sim::Latency::Fixed(ms(10));
        for other in (1..=12).filter(|other| usize::from(*other) != STUCK + 1) {
            self.world.net.set_line(
                ip(other),
                ip(STUCK as u8 + 1),
                Line { bandwidth, latency: usual, ..Line::default() },
            );
        }
    }

    fn read_stuck(&mut self) {
        while let Some(delivery) = self.members[STUCK].heard.try_recv() {
            match delivery {
                Delivery::Message { message, .. } => {
                    let serial = message.serial();
                    assert!(self.heard.insert((serial.publisher, serial.seq)), "{serial:?} twice");
                }
                Delivery::Gap(gap) => self.lost.extend(gap.seqs.map(|seq| (gap.publisher, seq))),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Publishes, and says for each message how long the last of the others waited for it.
    async fn publish(&mut self, messages: usize) -> Vec<Duration> {
        let mut latest = Vec::new();
        for number in 0..messages {
            let publisher = PUBLISHERS[number % 2];
            let (receipt, before) = loop {
                let before = now();
                match self.members[publisher].topic.publish(vec![1; 2000], soon()).await {
                    Ok(receipt) => break (receipt, before),
                    Err(OverlayError::Busy { retry_after, .. }) => {
                        self.busy += 1;
                        tokio::time::sleep(retry_after).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            self.published.insert((self.members[publisher].node.id(), receipt.seq));
            for (number, member) in self.members.iter_mut().enumerate() {
                if number != publisher && number != STUCK {
                    assert_eq!(member.heard.next().await.unwrap().unwrap().payload().len(), 2000);
                }
            }
            latest.push(now() - before);
            tokio::time::sleep(ms(20)).await;
            self.read_stuck();
        }
        latest
    }
}

fn p99(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() * 99 / 100]
}

/// One subscriber does not read and one node's links take next to nothing. Others hear everything within twice the time of
/// the quiet run, memory is flat as the allocator counts it, and every message is delivered or told as missed, everywhere.
#[test]
fn a_stuck_subscriber_and_a_stuck_link_harm_nobody_else() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut scene = runtime.block_on(Scene::new());
    let quiet = runtime.block_on(scene.publish(150));
    // Less than half of what is published, and enough to stay connected.
    scene.set_bandwidth(Some(20_000));
    // The trees go around it within a few messages.
    let _ = runtime.block_on(scene.publish(20));
    let mut busy = runtime.block_on(scene.publish(170));
    let then = allocation_counter::measure(|| busy.extend(runtime.block_on(scene.publish(300))));
    println!("p99 {:?} quiet, {:?} busy; {} busy", p99(&quiet), p99(&busy), scene.busy);
    println!("memory {then:?}");
    assert!(p99(&busy) <= p99(&quiet) * 2, "{:?} quiet, {:?} busy", p99(&quiet), p99(&busy));
    // Twelve nodes had three hundred messages of 2000 bytes each, and have let go of as much. What still may come is what
    // waits for the stuck node: of each of its neighbours the 64 frames of a lane, and 32 that its writer has taken.
    let waiting = 8 * (64 + 32) * 2300_u64;
    assert!(then.bytes_current < waiting as i64, "it grows: {then:?}");
    assert!(then.bytes_max < waiting + (256 << 10), "{then:?}");
    runtime.block_on(async {
        let Scene { members, stuck, published, .. } = &mut scene;
        let mut waited = 0;
        let mut missed = BTreeSet::new();
        while let Some(delivery) = stuck.try_recv() {
            match delivery {
                Delivery::Message { .. } => waited += 1,
                Delivery::Missed(gap) => missed.extend(gap.seqs.map(|seq| (gap.publisher, seq))),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            (waited, missed.len()),
            (16, published.len() - 16),
            "sent is delivered and told as missed"
        );
        assert_eq!(members[4].node.count("subscriber_missed_total"), missed.len() as u64);
        for member in members.iter() {
            assert!(member.node.overlay.peers().iter().all(|peer| peer.waiting <= 3 * 512));
        }
    });
    // Its lines are good again. What is still kept it is sent, and of the rest it is told.
    scene.set_bandwidth(None);
    runtime.block_on(async {
        tokio::time::sleep(60 * SECOND).await;
        let _ = scene.publish(2).await;
        tokio::time::sleep(60 * SECOND).await;
        scene.read_stuck();
        let (heard, lost) = (&scene.heard, &scene.lost);
        println!("{} published, {} heard, {} told as lost", scene.published.len(), heard.len(), lost.len());
        assert_eq!(&(heard | lost), &scene.published, "nothing is lost silently");
        assert!(heard.len() > 150);
        for member in scene.members {
            member.node.host.shutdown().await;
        }
    });
}

/// An engine that is behind refuses, counts and tells the sender, which pauses.
#[tokio::test(start_paused = true)]
async fn a_full_ingress_is_told_to_the_sender() {
    let world = World::new(4);
    let small = Settings { ingress_lane: 40, ..Settings::default() };
    let one = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let two = Member::join(world.node(2, small).await, [one.node.overlay.contact()], false).await;
    let mut two = two;
    one.topic.joined(soon()).await.unwrap();
    two.topic.joined(soon()).await.unwrap();
    // All of these are taken together, go in one write and come in one read, before the engine there has its turn.
    let mut publishing = Vec::new();
    for number in 0..100_u8 {
        let topic = one.topic.clone();
        let mut one = Box::pin(async move { topic.publish(vec![number], soon()).await });
        assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        publishing.push(one);
    }
    for published in publishing {
        published.await.unwrap();
    }
    tokio::time::sleep(SECOND).await;
    let refused = two.node.count("busy_rejections_total{endpoint=\"gossip_ingress\"}");
    assert!(refused > 0);
    assert_eq!(two.node.count("shed_words_total{side=\"refused\"}"), refused);
    assert_eq!(one.node.count("shed_words_total{side=\"told\"}"), refused);
    // What was refused is fetched later.
    assert_eq!(two.hear(10 * SECOND).await.len(), 100);
    stop([one.node, two.node]).await;
}

/// What waits for all peers has a bound in bytes.
#[tokio::test(start_paused = true)]
async fn bytes_that_wait_are_bounded_for_one_and_for_all() {
    let world = World::new(5);
    let settings = Settings {
        message_bytes_max: 1 << 20,
        peer: PeerSettings { egress_bytes: 2 << 20, ..PeerSettings::default() },
        egress_bytes_max: 3 << 20,
        write_timeout: 60 * SECOND,
        ..Settings::default()
    };
    let members = world.swarm(4, &settings).await;
    for other in 2..=4 {
        world.net.set_line(ip(1), ip(other), Line { bandwidth: Some(10_000), ..Line::default() });
    }
    let mut accepted = 0;
    let busy = loop {
        match members[0].topic.publish(vec![0; 500_000], soon()).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 100);
        tokio::time::sleep(ms(1)).await;
    };
    assert!(matches!(busy, OverlayError::Busy { what: "egress", .. }), "{busy:?}");
    let waiting: usize = members[0].node.overlay.peers().iter().map(|peer| peer.waiting_bytes).sum();
    assert!(waiting <= 3 << 20, "{waiting} bytes wait");
    // Up to the last that fits, and whoever asks is told.
    while members[0].topic.publish(vec![0; 50_000], soon()).await.is_ok() {
        tokio::time::sleep(ms(1)).await;
    }
    let ready = members[0].node.overlay.ready();
    assert!(!ready.writes && ready.reads, "{ready:?}");
    tokio::time::sleep(2 * SECOND).await;
    assert!(members[0].node.count("egress_bytes") <= 3 << 20);
    assert!(members[0].node.count("egress_bytes") > 0);
    for member in members {
        member.node.host.shutdown().await;
    }
}

/// Many publish in the same moment, and only as many are told yes as there is room for.
#[tokio::test(start_paused = true)]
async fn a_receipt_is_true_however_many_publish_at_once() {
    let world = World::new(6);
    let settings = Settings {
        message_bytes_max: 64 << 10,
        peer: PeerSettings { inflight_frames: 8, ..PeerSettings::default() },
        ..Settings::default()
    };
    let mut members = world.swarm(2, &settings).await;
    let (topic, mut accepted) = (members[0].topic.clone(), 0);
    let mut publishing: Vec<_> =
        (0..60_u8).map(|number| Box::pin(topic.publish(vec![number], soon()))).collect();
    std::future::poll_fn(|cx| {
        publishing.retain_mut(|publishing| match publishing.as_mut().poll(cx) {
            Poll::Ready(done) => {
                accepted += usize::from(done.is_ok());
                false
            }
            Poll::Pending => true,
        });
        if publishing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let one = &members[0].node;
    assert_eq!(one.count("queue_dropped_total{queue=\"egress\"}"), 0, "{accepted} of 60 were accepted");
    assert_eq!(one.count("busy_rejections_total{endpoint=\"egress\"}"), 60 - accepted as u64);
    assert!((8..60).contains(&accepted), "{accepted}");
    assert_eq!(members[1].hear(SECOND).await.len(), accepted);
    stop(members.into_iter().map(|member| member.node)).await;
}
