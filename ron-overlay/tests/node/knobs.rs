//! Every knob turns something, and what cannot change while running is refused by name.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{ConfigError, net::BoxFuture, now};
use ron_overlay::{
    Contact, GossipSettings, Overlay, OverlayError, PartsSettings, PeerSettings, PeerSource, ScoreSettings,
    Settings, TopicId, ViewSettings,
};

use super::world::{Member, SECOND, World, ip, ms, soon, stop};

#[tokio::test(start_paused = true)]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let world = World::new(1);
    let usual = Settings::default;
    let bad = [
        ("ingress_lane", Settings { ingress_lane: 0, ..usual() }),
        ("checks_lane", Settings { checks_lane: 0, ..usual() }),
        ("events_lane", Settings { events_lane: 0, ..usual() }),
        ("subscription_lane", Settings { subscription_lane: 0, ..usual() }),
        ("max_conns", Settings { max_conns: 0, ..usual() }),
        ("chunk_bytes", Settings { chunk_bytes: 100, ..usual() }),
        ("chunk_bytes", Settings { chunk_bytes: 1 << 20, ..usual() }),
        ("max_frame_bytes", Settings { max_frame_bytes: 1 << 10, ..usual() }),
        ("message_bytes_max", Settings { message_bytes_max: 17 << 20, ..usual() }),
        ("egress_bytes_max", Settings { egress_bytes_max: 1 << 20, ..usual() }),
        ("read_timeout", Settings { read_timeout: Duration::ZERO, ..usual() }),
        ("write_timeout", Settings { write_timeout: Duration::ZERO, ..usual() }),
        ("handshake_timeout", Settings { handshake_timeout: Duration::ZERO, ..usual() }),
        ("idle_timeout", Settings { idle_timeout: Duration::ZERO, ..usual() }),
        ("check_timeout", Settings { check_timeout: Duration::ZERO, ..usual() }),
        ("gossip.ping_every", Settings { idle_timeout: 4 * SECOND, ..usual() }),
        ("peer.max_rps", Settings { peer: PeerSettings { max_rps: 0, ..Default::default() }, ..usual() }),
        (
            "peer.inflight_frames",
            Settings { peer: PeerSettings { inflight_frames: 9, ..Default::default() }, ..usual() },
        ),
        (
            "peer.egress_bytes",
            Settings { peer: PeerSettings { egress_bytes: 1 << 20, ..Default::default() }, ..usual() },
        ),
        (
            "peer.topics_max",
            Settings { peer: PeerSettings { topics_max: 0, ..Default::default() }, ..usual() },
        ),
        (
            "peer.ingress_bytes",
            Settings { peer: PeerSettings { ingress_bytes: 1 << 20, ..Default::default() }, ..usual() },
        ),
        ("ingress_bytes", Settings { ingress_bytes: 1 << 20, ..usual() }),
        (
            "gossip.view.walk",
            Settings {
                gossip: GossipSettings {
                    view: ViewSettings { walk: 9, ..Default::default() },
                    ..Default::default()
                },
                ..usual()
            },
        ),
        (
            "parts.word_bytes_max",
            Settings { parts: PartsSettings { word_bytes_max: 1 << 20, ..Default::default() }, ..usual() },
        ),
        (
            "gossip.relay_fanout",
            Settings { gossip: GossipSettings { relay_fanout: 0, ..Default::default() }, ..usual() },
        ),
    ];
    let host = ron_core::Supervisor::new("test");
    for (name, settings) in bad {
        let endpoint = world.endpoint(1, &host);
        let refused = Overlay::builder().settings(settings).start(&endpoint, &host).await.unwrap_err();
        let OverlayError::Config(ConfigError::OutOfRange { key, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(key, name);
        endpoint.shutdown().await;
    }
    let node = world.node(2, Settings::default()).await;
    let fixed = [
        ("engines", Settings { engines: 3.try_into().unwrap(), ..usual() }),
        ("checkers", Settings { checkers: 3.try_into().unwrap(), ..usual() }),
        ("ingress_lane", Settings { ingress_lane: 7, ..usual() }),
        ("ingress_bytes", Settings { ingress_bytes: 128 << 20, ..usual() }),
        (
            "peer.ingress_bytes",
            Settings { peer: PeerSettings { ingress_bytes: 64 << 20, ..Default::default() }, ..usual() },
        ),
        ("checks_lane", Settings { checks_lane: 7, ..usual() }),
        ("events_lane", Settings { events_lane: 7, ..usual() }),
        ("subscription_lane", Settings { subscription_lane: 7, ..usual() }),
        ("subscription_bytes", Settings { subscription_bytes: 7, ..usual() }),
        ("egress_bytes_max", Settings { egress_bytes_max: 64 << 20, ..usual() }),
        ("max_conns", Settings { max_conns: 7, ..usual() }),
        ("message_bytes_max", Settings { message_bytes_max: 7, ..usual() }),
        ("max_frame_bytes", Settings { max_frame_bytes: 128 << 10, ..usual() }),
        ("read_timeout", Settings { read_timeout: SECOND, ..usual() }),
        ("write_timeout", Settings { write_timeout: SECOND, ..usual() }),
        ("idle_timeout", Settings { idle_timeout: 10 * SECOND, ..usual() }),
        ("handshake_timeout", Settings { handshake_timeout: SECOND, ..usual() }),
        ("drain_deadline", Settings { drain_deadline: SECOND, ..usual() }),
        ("score", Settings { score: ScoreSettings { ban_at: 5.0, ..Default::default() }, ..usual() }),
        ("parts", Settings { parts: PartsSettings { timeout: SECOND, ..Default::default() }, ..usual() }),
        ("gossip", Settings { gossip: GossipSettings { hops_max: 3, ..Default::default() }, ..usual() }),
        (
            "peer.egress_bytes",
            Settings { peer: PeerSettings { egress_bytes: 64 << 20, ..Default::default() }, ..usual() },
        ),
        (
            "peer.requests_max",
            Settings { peer: PeerSettings { requests_max: 7, ..Default::default() }, ..usual() },
        ),
    ];
    for (name, settings) in fixed {
        let refused = node.overlay.reload(settings).unwrap_err();
        assert_eq!(refused, OverlayError::Config(ConfigError::NeedsRestart { key: name }));
    }
    assert_eq!(*node.overlay.settings(), Settings::default(), "nothing was applied");
    assert_eq!(node.count("config_update_total"), 0);
    stop([node]).await;
    let open =
        ron_core::net::Endpoint::builder(super::world::identity(9)).listen("0.0.0.0:0".parse().unwrap());
    let open = open.start(&host).unwrap();
    let refused = Overlay::builder().start(&open, &host).await.unwrap_err();
    assert!(matches!(refused, OverlayError::Config(ConfigError::OutOfRange { key: "external", .. })));
    // A host that knows how it is reached says so; without a port nobody can dial that either.
    let told = |addr: &str| Overlay::builder().external([addr.parse().unwrap()]);
    let refused = told("192.0.2.7:0").start(&open, &host).await.unwrap_err();
    assert!(matches!(refused, OverlayError::Config(ConfigError::OutOfRange { key: "external", .. })));
    let behind = told("192.0.2.7:4000").start(&open, &host).await.unwrap();
    assert_eq!(behind.contact().addrs[..], ["192.0.2.7:4000".parse().unwrap()]);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_change_changes_at_once() {
    let world = World::new(2);
    let usual = Settings { message_bytes_max: 1 << 20, ..Settings::default() };
    let mut members = world.swarm(2, &usual).await;
    // Smaller pieces: as many more frames.
    let frames = |member: &Member| member.node.count("gossip_frames_total{dir=\"rx\"}");
    let before = frames(&members[1]);
    members[0].publish(vec![1; 1 << 20]).await;
    assert_eq!(members[1].hear(SECOND).await.len(), 1);
    let usual_frames = frames(&members[1]) - before;
    let changed = Settings {
        chunk_bytes: 8 << 10,
        peer: PeerSettings { inflight_frames: 450, max_rps: 5000, topics_max: 9, ..usual.peer },
        gossip: GossipSettings { relay_fanout: 4, burst_budget_frames: 100, ..usual.gossip },
        check_timeout: 2 * SECOND,
        ..usual
    };
    members[0].node.overlay.reload(changed.clone()).unwrap();
    assert_eq!(*members[0].node.overlay.settings(), changed);
    assert_eq!(members[0].node.count("config_update_total"), 1);
    let before = frames(&members[1]);
    members[0].publish(vec![2; 1 << 20]).await;
    assert_eq!(members[1].hear(SECOND).await.len(), 1);
    let more_frames = frames(&members[1]) - before;
    assert!(more_frames >= usual_frames + 100, "{usual_frames} frames, then {more_frames}");
    assert_eq!(members[0].node.count("queue_capacity{queue=\"egress\"}"), 450);
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Of a message no more copies leave a node at once than `relay_fanout`; the others fetch it.
#[tokio::test(start_paused = true)]
async fn relay_fanout_bounds_the_copies_of_one_message() {
    let world = World::new(3);
    let settings = Settings {
        gossip: GossipSettings { relay_fanout: 2, ..GossipSettings::default() },
        ..Settings::default()
    };
    let mut members = world.swarm(8, &settings).await;
    let receipt = members[0].topic.publish("few copies", soon()).await.unwrap();
    assert!(receipt.pushed <= 2 && receipt.neighbours > 2, "{receipt:?}");
    for member in &mut members[1..] {
        assert_eq!(member.hear(3 * SECOND).await, ["few copies"]);
    }
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Who asks for more than `burst_budget_frames` in a second gets no more.
#[tokio::test(start_paused = true)]
async fn burst_budget_bounds_what_one_peer_may_ask_for() {
    let world = World::new(4);
    let settings = Settings {
        gossip: GossipSettings { burst_budget_frames: 8, ..GossipSettings::default() },
        ..Settings::default()
    };
    let mut members = world.swarm(2, &settings).await;
    members[0].publish("first").await;
    assert_eq!(members[1].hear(SECOND).await.len(), 1);
    // What is published while the line is cut has to be asked for afterwards.
    world.net.partition(&[ip(1)], &[ip(2)]);
    tokio::time::sleep(15 * SECOND).await;
    for number in 0..40_u8 {
        members[0].publish(vec![number]).await;
    }
    world.net.heal();
    let heard = members[1].hear(20 * SECOND).await.len();
    assert!(heard >= 20, "{heard} of 40");
    let counts = members[0].topic.status(soon()).await.unwrap().counts;
    assert!(counts.over_budget > 0, "{counts:?}");
    assert_eq!(members[0].node.count("let_go_total{reason=\"over_budget\"}"), counts.over_budget);
    stop(members.into_iter().map(|member| member.node)).await;
}

#[derive(Debug, Clone, Default)]
struct Book(Arc<Mutex<(Vec<Contact>, usize)>>);

impl PeerSource for Book {
    fn find(&self, _: TopicId, wanted: usize) -> BoxFuture<'_, Vec<Contact>> {
        let mut book = self.0.lock().unwrap();
        book.1 += 1;
        let found = book.0.iter().take(wanted).cloned().collect();
        Box::pin(std::future::ready(found))
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_is_asked_while_there_are_few_neighbours() {
    let world = World::new(5);
    let book = Book::default();
    let one =
        Member::join(world.node_with(1, Overlay::builder().source(book.clone())).await, [], false).await;
    let two = Member::join(world.node(2, Settings::default()).await, [], false).await;
    tokio::time::sleep(10 * SECOND).await;
    assert!(book.0.lock().unwrap().1 >= 2, "it is asked again");
    book.0.lock().unwrap().0.push(two.node.overlay.contact());
    one.topic.joined(soon()).await.unwrap();
    two.topic.joined(soon()).await.unwrap();
    stop([one.node, two.node]).await;
}

/// A source that does not answer is counted, and nothing waits for it. The janitor used to wait: for ten seconds with each
/// topic it noticed no full node, gave up no large message and closed no gate.
#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_counted() {
    #[derive(Debug)]
    struct Hanging;
    impl PeerSource for Hanging {
        fn find(&self, _: TopicId, _: usize) -> BoxFuture<'_, Vec<Contact>> {
            Box::pin(std::future::pending())
        }
    }
    let world = World::new(8);
    let settings = Settings { max_conns: 1, ..Settings::default() };
    let node = world.node_with(1, Overlay::builder().settings(settings).source(Hanging)).await;
    let one = Member::join(node, [], false).await;
    let is_full = || one.node.overlay.ready().closed().any(|gate| gate.name == "overlay.sessions");
    tokio::time::sleep(3 * SECOND).await;
    assert!(!is_full());
    let two = world.node(2, Settings::default()).await;
    two.overlay.connect(one.node.overlay.contact(), soon()).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(one.node.count("io_timeouts_total{op=\"peer_source\"}"), 0, "it is being asked");
    assert!(is_full(), "{:?}", one.node.overlay.ready());
    tokio::time::sleep(20 * SECOND).await;
    assert!(one.node.count("io_timeouts_total{op=\"peer_source\"}") >= 1);
    stop([one.node, two]).await;
}

/// A slow reader of events learns how many it missed.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_events_is_told() {
    let world = World::new(6);
    let node = world.node(1, Settings { events_lane: 2, ..Settings::default() }).await;
    let mut events = node.overlay.events();
    for number in 2..=6 {
        let other = world.node(number, Settings::default()).await;
        other.overlay.connect(node.overlay.contact(), soon()).await.unwrap();
        tokio::time::sleep(ms(100)).await;
        stop([other]).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(events.recv().await, Some(ron_core::Event::Missed(8)));
    assert_eq!(node.count("bus_lagged_total{topic=\"events\"}"), 8);
    stop([node]).await;
}

/// While a topic is busy, words of peers wait for company for as long as `gather` says; what this node says itself does not.
#[tokio::test(start_paused = true)]
async fn gather_is_how_long_words_wait_for_company() {
    let world = World::new(7);
    let speaker = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let contact = speaker.node.overlay.contact();
    for (number, gather) in [(2, ms(0)), (3, ms(100))] {
        let settings = Settings { gather, ..Settings::default() };
        let mut listener = Member::join(world.node(number, settings).await, [contact.clone()], false).await;
        listener.topic.joined(soon()).await.unwrap();
        // A message brings the listener to work, and what comes right behind it waits.
        speaker.publish("first").await;
        listener.heard.next().await.unwrap().unwrap();
        let before = now();
        listener.publish("its own").await;
        assert_eq!(now() - before, Duration::ZERO, "nobody waits to publish");
        speaker.publish("second").await;
        listener.heard.next().await.unwrap().unwrap();
        let waited = now() - before;
        assert!((gather.max(ms(10))..=gather + ms(12)).contains(&waited), "{gather:?}: {waited:?}");
        stop([listener.node]).await;
    }
    stop([speaker.node]).await;
}
