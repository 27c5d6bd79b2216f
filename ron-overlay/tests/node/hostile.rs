//! Peers that break the rules: forged and invalid messages, floods, too many topics, half-sent words.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use ron_core::{
    NodeId, Supervisor,
    net::rpc::{Method, Peers, PeersSettings, Protocol, Session},
};
use ron_overlay::{
    ALPN, Contact, Message, MessageId, PartsSettings, PeerSettings, ScoreSettings, Serial, Settings, TopicId,
    Verdict,
    logic::{
        gossip::{Pushed, Word},
        parts::Part,
        seal::{Proof, Seal},
        trees::Beacon,
        view::ViewMessage,
        wire::{encode, encode_part, number},
    },
};

use super::world::{Member, SECOND, World, identity, ms, soon, stop};

const LINKS: ron_core::LaneSpec = ron_core::LaneSpec::new("test", "hostile", 16);

/// A peer that says whatever the test wants.
pub(crate) struct Liar {
    pub(crate) session: Session,
    pub(crate) id: NodeId,
    pub(crate) host: Supervisor,
    _peers: Peers,
}

impl Liar {
    pub(crate) async fn new(world: &World, number: u8, to: &Contact) -> Liar {
        let host = Supervisor::new("liar");
        let endpoint = world.endpoint(number, &host);
        let protocol = Protocol { alpn: ALPN, proto: 2, links: LINKS };
        let peers = Peers::start(&endpoint, protocol, Arc::new(()), PeersSettings::default(), &host).unwrap();
        let session = peers.session(to.id, &to.addrs, soon()).await.unwrap();
        Liar { session, id: endpoint.node_id(), host, _peers: peers }
    }

    pub(crate) async fn say(&self, topic: &TopicId, word: &Word) {
        let (number, body) = encode(topic, word);
        self.say_bytes(number, &body).await;
    }

    pub(crate) async fn say_bytes(&self, number: u16, body: &[u8]) {
        let _ = self.session.notify(Method { number, name: "lie" }, body, soon()).await;
    }

    pub(crate) fn contact(&self) -> Contact {
        Contact { id: self.id, addrs: [SocketAddr::new(super::world::ip(250), 1)].into() }
    }
}

fn push(message: Message) -> Word {
    Word::Push(Pushed { tree: NodeId::from_bytes([9; 32]), hops: 1, is_repair: false, message })
}

fn forged(topic: &TopicId, seq: u64) -> Message {
    // Signed for another topic.
    let wrong = Message::signed(&TopicId::of("other"), &identity(200), 5, seq, Bytes::from_static(b"lie"));
    Message::received(topic, *wrong.author(), 5, seq, Bytes::from_static(b"lie"))
}

#[tokio::test(start_paused = true)]
async fn who_forges_messages_is_banned_and_nobody_hears_them() {
    let world = World::new(1);
    let mut one = Member::join(world.node(1, Settings::default()).await, [], true).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    for seq in 1..=4 {
        liar.say(&one.topic.id(), &push(forged(&one.topic.id(), seq))).await;
    }
    tokio::time::sleep(SECOND).await;
    assert!(one.hear(SECOND).await.is_empty());
    assert_eq!(one.node.count("frame_reject_total{reason=\"signature\"}"), 4);
    assert_eq!(one.node.count("offences_total{kind=\"invalid\"}"), 4);
    assert_eq!(one.node.count("bans_total"), 1);
    assert!(!liar.session.is_open(), "it is disconnected");
    assert!(one.node.overlay.peers().is_empty());
    assert_eq!((one.node.count("session_open_total"), one.node.sum("session_close_total")), (1, 1));
    liar.host.shutdown().await;

    // For five minutes it is disconnected as soon as it comes.
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    tokio::time::sleep(SECOND).await;
    assert!(!liar.session.is_open());
    assert_eq!(one.node.count("frame_reject_total{reason=\"banned\"}"), 1);
    liar.host.shutdown().await;
    tokio::time::sleep(300 * SECOND).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    tokio::time::sleep(SECOND).await;
    assert!(liar.session.is_open(), "and then it may try again");
    liar.host.shutdown().await;
    stop([one.node]).await;
}

/// A proof is looked for once, and only where it can be: duplicates and what is obviously wrong cost no signature check.
#[tokio::test(start_paused = true)]
async fn the_kind_of_author_and_the_size_are_checked_before_the_signature() {
    let world = World::new(2);
    let node = world.node(1, Settings::default()).await;
    let topic = node.overlay.topic("test").message_bytes_max(100).join([], soon()).await.unwrap();
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    let serial = Serial { publisher: liar.id, since: 5, seq: 1 };
    liar.say(&topic.id(), &push(Message::unsigned(&topic.id(), serial, "unsigned".into()))).await;
    let large = Message::signed(&topic.id(), &identity(200), 5, 2, vec![0; 101].into());
    liar.say(&topic.id(), &push(large)).await;
    let good = Message::signed(&topic.id(), &identity(200), 5, 3, "good".into());
    for _ in 0..10 {
        liar.say(&topic.id(), &push(good.clone())).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(node.count("frame_reject_total{reason=\"author\"}"), 1);
    assert_eq!(node.count("frame_reject_total{reason=\"size\"}"), 1);
    assert_eq!(node.count("frame_reject_total{reason=\"signature\"}"), 0);
    assert_eq!(node.count("messages_total{what=\"delivered\"}"), 1);
    assert_eq!(topic.status(soon()).await.unwrap().counts.duplicates, 9);
    liar.host.shutdown().await;
    stop([node]).await;
}

#[tokio::test(start_paused = true)]
async fn a_validator_decides_what_is_relayed_and_who_is_blamed() {
    let world = World::new(3);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let judge = move |message: &Message| {
        count.fetch_add(1, Ordering::Relaxed);
        match message.payload().first() {
            Some(b'+') => Verdict::Accept,
            Some(b'-') => Verdict::Reject,
            _ => Verdict::Ignore,
        }
    };
    // The middle one judges; the last hears only what it lets through.
    let nodes = [1, 2, 3].map(|number| world.node(number, Settings::default()));
    let [one, two, three] = nodes;
    let (one, two, three) = (one.await, two.await, three.await);
    let middle = two.overlay.topic("test").unsigned().validator(judge).join([], soon()).await.unwrap();
    let first = Member::join(one, [two.overlay.contact()], false).await;
    let mut last = Member::join(three, [two.overlay.contact()], false).await;
    first.topic.joined(soon()).await.unwrap();
    last.topic.joined(soon()).await.unwrap();
    let mut heard = middle.subscribe(soon()).await.unwrap();
    // The first knows nobody but the middle one.
    let liar = Liar::new(&world, 200, &two.overlay.contact()).await;
    for (seq, payload) in (1..).zip(["+good", "-bad", "?odd", "-worse"]) {
        let serial = Serial { publisher: liar.id, since: 5, seq };
        liar.say(&middle.id(), &push(Message::unsigned(&middle.id(), serial, payload.into()))).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(heard.next().await.unwrap().unwrap().payload(), "+good");
    assert_eq!(heard.try_recv(), None);
    assert_eq!(last.hear(SECOND).await, ["+good"]);
    assert_eq!(asked.load(Ordering::Relaxed), 4, "each is judged once");
    assert_eq!(two.count("frame_reject_total{reason=\"validator\"}"), 2);
    assert_eq!(two.count("offences_total{kind=\"invalid\"}"), 2);
    liar.host.shutdown().await;
    stop([first.node, two, last.node]).await;
}

/// A validator that hangs or panics costs the message and not the node.
#[tokio::test(start_paused = true)]
async fn a_validator_that_hangs_or_panics_loses_only_its_message() {
    struct Odd;
    impl ron_overlay::Validator for Odd {
        fn check(&self, message: Message) -> ron_core::net::BoxFuture<'_, Verdict> {
            Box::pin(async move {
                match &message.payload()[..] {
                    b"hang" => std::future::pending().await,
                    b"panic" => panic!("a validator that panics, as the test wants"),
                    _ => Verdict::Accept,
                }
            })
        }
    }
    let world = World::new(4);
    let node = world.node(1, Settings::default()).await;
    let topic = node.overlay.topic("test").unsigned().validator(Odd).join([], soon()).await.unwrap();
    let mut heard = topic.subscribe(soon()).await.unwrap();
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for (seq, payload) in (1..).zip(["hang", "panic", "good"]) {
        let serial = Serial { publisher: liar.id, since: 5, seq };
        liar.say(&topic.id(), &push(Message::unsigned(&topic.id(), serial, payload.into()))).await;
    }
    assert_eq!(heard.next().await.unwrap().unwrap().payload(), "good");
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(node.count("io_timeouts_total{op=\"validate\"}"), 1);
    assert_eq!(node.count("tasks_panicked_total{kind=\"checker\"}"), 1);
    assert_eq!(topic.status(soon()).await.unwrap().counts.unchecked_shed, 2);
    assert_eq!(node.count("let_go_total{reason=\"unchecked\"}"), 2);
    liar.host.shutdown().await;
    stop([node]).await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_duplicates_is_one_delivery_and_costs_the_sender_its_place() {
    let world = World::new(5);
    let settings =
        Settings { peer: PeerSettings { max_rps: 1000, ..PeerSettings::default() }, ..Settings::default() };
    let mut one = Member::join(world.node(1, settings).await, [], false).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    let serial = Serial { publisher: liar.id, since: 5, seq: 1 };
    let word = push(Message::unsigned(&one.topic.id(), serial, "again".into()));
    for _ in 0..2000 {
        liar.say(&one.topic.id(), &word).await;
    }
    assert_eq!(one.hear(SECOND).await, ["again"]);
    let taken = one.topic.status(soon()).await.unwrap().counts.received;
    assert!(taken <= 1100, "{taken} were looked at");
    assert!(one.node.count("frame_reject_total{reason=\"rate\"}") >= 20);
    assert_eq!(one.node.count("bans_total"), 1, "twenty floods are too many");
    assert!(!liar.session.is_open());
    liar.host.shutdown().await;
    stop([one.node]).await;
}

#[tokio::test(start_paused = true)]
async fn one_peer_has_so_many_topics_and_no_more() {
    let world = World::new(6);
    let settings =
        Settings { peer: PeerSettings { topics_max: 3, ..PeerSettings::default() }, ..Settings::default() };
    let node = world.node(1, settings).await;
    let mut topics = Vec::new();
    for number in 0..5 {
        let topic = node.overlay.topic(format!("topic {number}")).unsigned();
        topics.push(topic.join([], soon()).await.unwrap());
    }
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for topic in &topics {
        liar.say(&topic.id(), &Word::View(ViewMessage::Join { me: liar.contact() })).await;
        tokio::time::sleep(ms(50)).await;
    }
    // Of a topic that this node is not on, nothing is remembered at all.
    for number in 0..1000 {
        let unknown = TopicId::of(&format!("unknown {number}"));
        liar.say(&unknown, &Word::View(ViewMessage::Join { me: liar.contact() })).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(node.overlay.peers()[0].topics, 3);
    assert_eq!(node.count("neighbours"), 3);
    assert_eq!(node.count("frame_reject_total{reason=\"topics_max\"}"), 2);
    assert_eq!(node.count("offences_total{kind=\"greedy\"}"), 2);
    assert_eq!(node.count("frame_reject_total{reason=\"unknown_topic\"}"), 1000);
    assert_eq!(node.overlay.topics(soon()).await.unwrap().len(), 5);
    liar.host.shutdown().await;
    stop([node]).await;
}

/// Who asked for all topics before the first of them was done was a neighbour on all of them.
#[tokio::test(start_paused = true)]
async fn topics_that_are_asked_for_in_one_breath_are_counted() {
    let world = World::new(6);
    let settings =
        Settings { peer: PeerSettings { topics_max: 3, ..PeerSettings::default() }, ..Settings::default() };
    let node = world.node(1, settings).await;
    let mut topics = Vec::new();
    for number in 0..20 {
        let topic = node.overlay.topic(format!("topic {number}")).unsigned();
        topics.push(topic.join([], soon()).await.unwrap());
    }
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for (number, topic) in topics.iter().enumerate() {
        let word = match number % 2 {
            0 => ViewMessage::Join { me: liar.contact() },
            _ => ViewMessage::Ask { me: liar.contact(), is_urgent: true },
        };
        liar.say(&topic.id(), &Word::View(word)).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(node.count("neighbours"), 3);
    assert_eq!(node.count("frame_reject_total{reason=\"topics_max\"}"), 17);
    liar.host.shutdown().await;
    stop([node]).await;
}

#[tokio::test(start_paused = true)]
async fn words_that_are_none_and_pieces_that_do_not_fit_are_refused_by_name() {
    let world = World::new(7);
    let parts = PartsSettings { timeout: 10 * SECOND, ..PartsSettings::default() };
    let node = world.node(1, Settings { parts, ..Settings::default() }).await;
    let one = Member::join(node, [], false).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    liar.say_bytes(number::PING, b"garbage").await;
    liar.say_bytes(99, &encode(&one.topic.id(), &Word::Ping(1)).1).await;
    let part = |word, whole, offset, bytes: usize| Part { word, whole, offset, bytes: vec![1; bytes].into() };
    let pieces = [part(1, 20 << 20, 0, 10), part(2, 1000, 500, 10), part(3, 200_000, 0, 60_000)];
    for piece in &pieces {
        liar.say_bytes(number::PIECE, &encode_part(Vec::new(), number::PUSH, piece)).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(one.node.count("frame_reject_total{reason=\"word_malformed\"}"), 1);
    assert_eq!(one.node.count("frame_reject_total{reason=\"word_unknown\"}"), 1);
    assert_eq!(one.node.count("parts_refused_total{reason=\"too_large\"}"), 1);
    assert_eq!(one.node.count("parts_refused_total{reason=\"out_of_order\"}"), 1);
    assert_eq!(one.node.count("offences_total{kind=\"invalid\"}"), 2, "what is unknown is nobody's fault");
    // What does not come to an end is given up in time.
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(one.node.count("parts_refused_total{reason=\"late\"}"), 1);
    liar.host.shutdown().await;
    stop([one.node]).await;
}

/// Roots that nobody is, with the smallest names there are: whoever tells of them is banned, and the trees stay those of
/// nodes that publish.
#[tokio::test(start_paused = true)]
async fn made_up_roots_are_refused() {
    let world = World::new(9);
    let mut members = world.swarm(5, &Settings::default()).await;
    let liar = Liar::new(&world, 200, &members[0].node.overlay.contact()).await;
    let topic = members[0].topic.id();
    liar.say(&topic, &Word::View(ViewMessage::Ask { me: liar.contact(), is_urgent: true })).await;
    tokio::time::sleep(SECOND).await;
    assert!(members[0].node.overlay.peers().iter().any(|peer| peer.id == liar.id && peer.topics == 1));
    for number in 0..4 {
        let somebody = identity(210 + number).public_key();
        let proof = Proof { key: somebody, signature: Proof::NONE.signature };
        let beacon = Beacon { root: somebody.node_id(), round: 7, distance: 0, is_parent: false, proof };
        liar.say(&topic, &Word::Beacons(vec![beacon; 9])).await;
    }
    tokio::time::sleep(SECOND).await;
    let one = &members[0].node;
    assert_eq!(one.count("frame_reject_total{reason=\"beacon\"}"), 4, "of each word one is looked at");
    assert_eq!((one.count("offences_total{kind=\"invalid\"}"), one.count("bans_total")), (4, 1));
    assert_eq!(members[0].topic.status(soon()).await.unwrap().trees, 0);
    members[1].publish("hello").await;
    assert_eq!(members[0].hear(SECOND).await, ["hello"]);
    assert_eq!(members[0].topic.status(soon()).await.unwrap().trees, 1);
    liar.host.shutdown().await;
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Keys are free, so whoever wants all trees can have true keys with small names, be there first, and pass nothing on.
/// Messages arrive all the same, and soon over trees of those who publish.
#[tokio::test(start_paused = true)]
async fn roots_that_pass_nothing_on_lose_their_trees() {
    let world = World::new(10);
    let mut members = world.swarm(6, &Settings::default()).await;
    let topic = members[0].topic.id();
    let seals: Vec<_> = (210..219).map(|number| Seal::Signed { identity: identity(number), topic }).collect();
    // It is a neighbour of everybody, and next to every root.
    let mut liars = Vec::new();
    for (number, member) in (200..206).zip(&members) {
        let liar = Liar::new(&world, number, &member.node.overlay.contact()).await;
        liar.say(&topic, &Word::View(ViewMessage::Ask { me: liar.contact(), is_urgent: true })).await;
        liars.push(liar);
    }
    tokio::time::sleep(SECOND).await;
    let mut slow = Vec::new();
    for round in 0..12_u32 {
        let beacons: Vec<Beacon> = seals
            .iter()
            .map(|seal| {
                let proof = seal.sign(round + 1, false);
                let root = proof.key.node_id();
                Beacon { root, round: round + 1, distance: 0, is_parent: false, proof }
            })
            .collect();
        for liar in &liars {
            liar.say(&topic, &Word::Beacons(beacons.clone())).await;
            liar.say(&topic, &Word::Ping(round)).await;
        }
        tokio::time::sleep(ms(1000)).await;
        for number in 0..10_u8 {
            let before = ron_core::now();
            members[0].publish(vec![number]).await;
            for member in &mut members[1..] {
                member.heard.next().await.unwrap().unwrap();
            }
            slow.push(ron_core::now() - before);
            tokio::time::sleep(ms(150)).await;
        }
    }
    let worst = |of: &[std::time::Duration]| of.iter().max().copied().unwrap();
    println!("slowest while they had the trees {:?}, then {:?}", worst(&slow[..60]), worst(&slow[60..]));
    assert!(worst(&slow[60..]) < ms(60), "{:?}", &slow[60..]);
    assert_eq!(members[1].node.count("gap_messages_total"), 0);
    for liar in liars {
        liar.host.shutdown().await;
    }
    for member in members {
        member.node.host.shutdown().await;
    }
}

/// A peer that takes everything, claims to be next to every root and passes nothing on.
#[tokio::test(start_paused = true)]
async fn honest_nodes_hear_everything_among_peers_that_pass_nothing_on() {
    let world = World::new(8);
    let mut members = world.swarm(9, &Settings::default()).await;
    // Peers that join and then only listen.
    let mut liars = Vec::new();
    for number in 201..=205 {
        let contact = members[usize::from(number - 201)].node.overlay.contact();
        let liar = Liar::new(&world, number, &contact).await;
        let topic = members[0].topic.id();
        liar.say(&topic, &Word::View(ViewMessage::Join { me: liar.contact() })).await;
        liars.push(liar);
    }
    tokio::time::sleep(SECOND).await;
    for number in 0..50_u8 {
        members[usize::from(number) % 9].publish(vec![number]).await;
        tokio::time::sleep(ms(100)).await;
    }
    for (number, member) in members.iter_mut().enumerate() {
        let own = (0..50).filter(|message| message % 9 == number).count();
        assert_eq!(member.hear(3 * SECOND).await.len(), 50 - own);
    }
    for liar in liars {
        liar.host.shutdown().await;
    }
    stop(members.into_iter().map(|member| member.node)).await;
}

/// A new session is no new second: what a peer may send and be is its own, and not its session's.
#[tokio::test(start_paused = true)]
async fn who_reconnects_finds_its_rate_and_its_topics_as_they_were() {
    let world = World::new(11);
    let peer = PeerSettings { max_rps: 100, topics_max: 2, ..PeerSettings::default() };
    // Nobody is banned here, however much it says.
    let score = ScoreSettings { ban_at: 1e9, ..ScoreSettings::default() };
    let node = world.node(1, Settings { peer, score, ..Settings::default() }).await;
    let mut topics = Vec::new();
    for number in 0..4 {
        topics.push(node.overlay.topic(format!("topic {number}")).unsigned().join([], soon()).await.unwrap());
    }
    let before = ron_core::now();
    for _ in 0..4 {
        let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
        for _ in 0..90 {
            liar.say(&topics[0].id(), &Word::Ping(1)).await;
        }
        tokio::time::sleep(ms(30)).await;
        liar.host.shutdown().await;
    }
    let (refused, time) = (node.count("frame_reject_total{reason=\"rate\"}"), ron_core::now() - before);
    let taken = 4 * 90 - refused as usize;
    assert!(taken <= 100 + (time.as_secs_f64() * 100.0) as usize + 1, "{taken} taken in {time:?}");
    assert!(refused > 0);

    tokio::time::sleep(400 * SECOND).await;
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for topic in &topics[..2] {
        liar.say(&topic.id(), &Word::View(ViewMessage::Join { me: liar.contact() })).await;
    }
    tokio::time::sleep(ms(100)).await;
    assert_eq!(node.count("neighbours"), 2);
    liar.host.shutdown().await;
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    tokio::time::sleep(ms(100)).await;
    assert_eq!(node.overlay.peers()[0].topics, node.count("neighbours") as usize);
    for topic in &topics {
        liar.say(&topic.id(), &Word::View(ViewMessage::Join { me: liar.contact() })).await;
    }
    tokio::time::sleep(ms(100)).await;
    assert_eq!(node.overlay.peers()[0].topics, 2, "and no more");
    liar.host.shutdown().await;
    stop([node]).await;
}

/// What is checked when the node stops is let go and counted, and nothing has to be cut off: a validator that hangs would
/// hold up one message after the other, each for its time.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_validator() {
    struct Hanging;
    impl ron_overlay::Validator for Hanging {
        fn check(&self, _: Message) -> ron_core::net::BoxFuture<'_, Verdict> {
            Box::pin(std::future::pending())
        }
    }
    let world = World::new(12);
    let settings = Settings { checks_lane: 8, check_timeout: 100 * SECOND, ..Settings::default() };
    let node = world.node(1, settings).await;
    let topic = node.overlay.topic("test").unsigned().validator(Hanging).join([], soon()).await.unwrap();
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for seq in 1..=12 {
        let serial = Serial { publisher: liar.id, since: 5, seq };
        liar.say(&topic.id(), &push(Message::unsigned(&topic.id(), serial, "hello".into()))).await;
        tokio::time::sleep(ms(20)).await;
    }
    // Two are looked at, eight wait, and for two there was no room.
    assert_eq!(node.count("busy_rejections_total{endpoint=\"checks\"}"), 2);
    assert_eq!(node.count("queue_depth{queue=\"checks\"}"), 8);
    liar.host.shutdown().await;
    let before = ron_core::now();
    let stopped = node.overlay.shutdown().await;
    assert_eq!((stopped.aborted, ron_core::now() - before < SECOND), (0, true), "{stopped:?}");
    assert_eq!(node.count("let_go_total{reason=\"stop\"}"), 10);
    stop([node]).await;
}

/// Whoever announces what it does not have takes its own share of what is looked for, and pays for not sending it.
#[tokio::test(start_paused = true)]
async fn announcements_of_nothing_are_bounded_counted_and_held_against_their_sender() {
    let world = World::new(13);
    let one = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    let topic = one.topic.id();
    liar.say(&topic, &Word::View(ViewMessage::Ask { me: liar.contact(), is_urgent: true })).await;
    tokio::time::sleep(ms(100)).await;
    for word in 0..3_u8 {
        let ids = (0..=255).map(|number| {
            let mut id = [word; 16];
            id[0] = number;
            MessageId::from_bytes(id)
        });
        liar.say(&topic, &Word::Have(vec![(liar.id, ids.collect())])).await;
    }
    tokio::time::sleep(2 * SECOND).await;
    // An eighth of 4096 is one neighbour's share.
    assert_eq!(one.node.count("let_go_total{reason=\"announced\"}"), 3 * 256 - 512);
    assert!(one.node.count("offences_total{kind=\"late\"}") >= 1);
    let far = Message::unsigned(&topic, Serial { publisher: liar.id, since: 5, seq: 1 }, "far".into());
    liar.say(&topic, &Word::Push(Pushed { tree: liar.id, hops: 99, is_repair: false, message: far })).await;
    tokio::time::sleep(ms(100)).await;
    assert_eq!(one.node.count("let_go_total{reason=\"stale\"}"), 1);
    liar.host.shutdown().await;
    stop([one.node]).await;
}
