//! What is said is true, and what is promised to be bounded is: receipts, gaps, blame, settings and bytes.

use std::{
    future::Future as _,
    task::{Context, Waker},
    time::Duration,
};

use ron_core::{NodeId, now, sim::Line};
use ron_overlay::{
    GossipSettings, Message, Overflow, PeerSettings, Serial, Settings, TopicId, Verdict,
    logic::{
        gossip::{Pushed, Word},
        parts::cut,
        view::ViewMessage,
        wire::{encode, encode_part, number},
    },
};

use super::{
    hostile::Liar,
    world::{Member, Node, SECOND, World, ip, ms, soon, stop},
};

fn push(publisher: NodeId, seq: u64, payload: Vec<u8>, topic: &TopicId) -> Pushed {
    let message = Message::unsigned(topic, Serial { publisher, since: 5, seq }, payload.into());
    Pushed { tree: publisher, hops: 1, is_repair: false, message }
}

/// Whoever publishes says which tree a message is on. Announcements of messages on very many trees were longer than a word
/// may be, and those who passed the messages on were banned for it by all their neighbours.
#[tokio::test(start_paused = true)]
async fn messages_on_very_many_trees_are_no_fault_of_those_who_announce_them() {
    let world = World::new(1);
    let mut members = world.swarm(5, &Settings::default()).await;
    let liar = Liar::new(&world, 200, &members[0].node.overlay.contact()).await;
    let topic = members[0].topic.id();
    for seq in 1..=200_u64 {
        let tree = NodeId::from_bytes([seq as u8; 32]);
        let word = Pushed { tree, is_repair: true, ..push(liar.id, seq, vec![1], &topic) };
        liar.say(&topic, &Word::Push(word)).await;
    }
    tokio::time::sleep(5 * SECOND).await;
    for member in &mut members {
        assert_eq!(member.hear(SECOND).await.len(), 200);
        assert_eq!(member.node.sum("frame_reject_total") + member.node.count("bans_total"), 0);
    }
    liar.host.shutdown().await;
    stop(members.into_iter().map(|member| member.node)).await;
}

/// A message that this node did not want has reached it all the same, and is not fetched again and again.
#[tokio::test(start_paused = true)]
async fn what_was_rejected_is_no_gap() {
    let world = World::new(2);
    let (one, two) = (world.node(1, Settings::default()).await, world.node(2, Settings::default()).await);
    let polite = |message: &Message| match message.payload().first() {
        Some(b'-') => Verdict::Reject,
        _ => Verdict::Accept,
    };
    let here = one.overlay.topic("test").join([], soon()).await.unwrap();
    let there =
        two.overlay.topic("test").validator(polite).join([one.overlay.contact()], soon()).await.unwrap();
    let heard = there.subscribe(soon()).await.unwrap();
    let mut there = Member { node: two, topic: there, heard };
    there.topic.joined(soon()).await.unwrap();
    here.joined(soon()).await.unwrap();
    for payload in ["+one", "-two", "+three"] {
        here.publish(payload, soon()).await.unwrap();
    }
    assert_eq!(there.hear(20 * SECOND).await, ["+one", "+three"], "and no gap");
    assert_eq!(there.node.count("offences_total{kind=\"invalid\"}"), 1);
    assert_eq!(there.topic.status(soon()).await.unwrap().counts.received, 3, "each came once");
    stop([one, there.node]).await;
}

/// A topic that is left and joined again within a millisecond began anew with the numbers of the last time, and others took
/// its messages for those that they had.
#[tokio::test(start_paused = true)]
async fn who_leaves_and_comes_back_at_once_is_heard() {
    let world = World::new(3);
    let mut members = world.swarm(2, &Settings::default()).await;
    members[0].publish("before").await;
    members[0].topic.leave(soon()).await.unwrap();
    let again = members[0].node.overlay.topic("test").unsigned();
    let contact = members[1].node.overlay.contact();
    members[0].topic = again.join([contact], soon()).await.unwrap();
    members[0].publish("after").await;
    assert_eq!(members[1].hear(10 * SECOND).await, ["before", "after"]);
    stop(members.into_iter().map(|member| member.node)).await;
}

/// An engine that had no room for one more order never learned of new settings.
#[tokio::test(start_paused = true)]
async fn settings_reach_an_engine_that_has_much_to_do() {
    let world = World::new(4);
    let members = world.swarm(6, &Settings::default()).await;
    let topic = members[0].topic.clone();
    let mut asking: Vec<_> = (0..1024).map(|_| Box::pin(topic.status(soon()))).collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(asking.iter_mut().all(|asking| asking.as_mut().poll(&mut context).is_pending()));
    let gossip = GossipSettings { relay_fanout: 1, ..GossipSettings::default() };
    members[0].node.overlay.reload(Settings { gossip, ..Settings::default() }).unwrap();
    for asking in asking {
        asking.await.unwrap();
    }
    let receipt = topic.publish("few copies", soon()).await.unwrap();
    assert_eq!(receipt.pushed, 1, "{receipt:?}");
    stop(members.into_iter().map(|member| member.node)).await;
}

/// On a topic that sheds, a publication is never refused; its receipt says where it found no room.
#[tokio::test(start_paused = true)]
async fn a_receipt_does_not_count_links_without_room() {
    let world = World::new(5);
    let peer = PeerSettings { inflight_frames: 8, ..PeerSettings::default() };
    let settings = Settings { message_bytes_max: 64 << 10, peer, ..Settings::default() };
    let (one, two) = (world.node(1, settings.clone()).await, world.node(2, settings).await);
    let mut topics = Vec::new();
    for name in ["busy", "quiet"] {
        let shedding = |node: &Node| node.overlay.topic(name).unsigned().overflow(Overflow::ShedOldest);
        let here = shedding(&one).join([], soon()).await.unwrap();
        shedding(&two).join([one.overlay.contact()], soon()).await.unwrap();
        here.joined(soon()).await.unwrap();
        topics.push(here);
    }
    world.net.set_line(ip(1), ip(2), Line { bandwidth: Some(1000), ..Line::default() });
    for _ in 0..60 {
        topics[0].publish(vec![0; 60_000], soon()).await.unwrap();
        tokio::time::sleep(ms(1)).await;
    }
    let shed = one.count("messages_total{what=\"shed\"}");
    let receipt = topics[1].publish("no room", soon()).await.unwrap();
    assert_eq!((receipt.pushed, receipt.neighbours), (0, 1), "others' frames are not its to shed");
    assert_eq!(one.count("messages_total{what=\"shed\"}"), shed + 1);
    for node in [one, two] {
        node.host.shutdown().await;
    }
}

/// Whoever relays a little more than is taken is told, and stays; it needs a flood to be banned.
#[tokio::test(start_paused = true)]
async fn a_little_more_than_the_rate_is_refused_and_not_banned() {
    let world = World::new(6);
    let peer = PeerSettings { max_rps: 1000, ..PeerSettings::default() };
    let one = Member::join(world.node(1, Settings { peer, ..Settings::default() }).await, [], false).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    for second in 0..5 {
        let began = now();
        for number in 0..1050 {
            liar.say(&one.topic.id(), &Word::Ping(second * 1050 + number)).await;
        }
        tokio::time::sleep_until(began + SECOND).await;
    }
    let refused = one.node.count("frame_reject_total{reason=\"rate\"}");
    assert!((50..=300).contains(&refused), "{refused}");
    assert_eq!(one.node.count("shed_words_total{side=\"refused\"}"), refused);
    assert_eq!(one.node.count("bans_total"), 0);
    assert!(liar.session.is_open());
    liar.host.shutdown().await;
    stop([one.node]).await;
}

/// Large messages that wait for a verdict are bounded by their bytes, however many may wait.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_verdict_are_bounded_in_bytes() {
    struct Hanging;
    impl ron_overlay::Validator for Hanging {
        fn check(&self, _: Message) -> ron_core::net::BoxFuture<'_, Verdict> {
            Box::pin(std::future::pending())
        }
    }
    let world = World::new(7);
    let gossip = GossipSettings { unchecked_bytes: 3 << 20, ..GossipSettings::default() };
    let settings = Settings { gossip, check_timeout: 100 * SECOND, ..Settings::default() };
    let node = world.node(1, settings).await;
    let topic = node.overlay.topic("test").unsigned().validator(Hanging).join([], soon()).await.unwrap();
    let liar = Liar::new(&world, 200, &node.overlay.contact()).await;
    for seq in 1..=6 {
        let (_, body) = encode(&topic.id(), &Word::Push(push(liar.id, seq, vec![0; 1 << 20], &topic.id())));
        for part in cut(seq, &body, 60_000) {
            liar.say_bytes(number::PIECE, &encode_part(Vec::new(), number::PUSH, &part)).await;
        }
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(topic.status(soon()).await.unwrap().counts.received, 6);
    assert_eq!(node.count("let_go_total{reason=\"unchecked\"}"), 3);
    liar.host.shutdown().await;
    stop([node]).await;
}

/// Nodes leave a busy topic one after the other. Whoever stays hears everything, and soon: those below a leaver have another
/// parent before it is gone.
#[tokio::test(start_paused = true)]
async fn who_leaves_a_busy_topic_makes_nobody_wait() {
    let world = World::new(8);
    let mut members = world.swarm(16, &Settings::default()).await;
    let mut slowest = Duration::ZERO;
    let mut left = Vec::new();
    for number in 0..400_u64 {
        let before = now();
        members[0].publish(number.to_be_bytes().to_vec()).await;
        tokio::time::sleep(ms(3)).await;
        if number % 50 == 40 && left.len() < 6 {
            let gone = members.remove(members.len() / 2);
            // Some leave the topic and some stop.
            match left.len() % 2 {
                0 => gone.topic.leave(soon()).await.unwrap(),
                _ => drop(gone.node.overlay.shutdown().await),
            }
            left.push(gone);
        }
        for member in &mut members[1..] {
            let heard = member.heard.next().await.unwrap().unwrap();
            assert_eq!(heard.payload()[..], number.to_be_bytes());
        }
        slowest = slowest.max(now() - before);
    }
    println!("slowest {slowest:?}");
    assert!(slowest < SECOND, "{slowest:?}");
    stop(members.into_iter().chain(left).map(|member| member.node)).await;
}

/// A node that is asked to be a neighbour by somebody who then says nothing pays for it with silence, not with memory.
#[tokio::test(start_paused = true)]
async fn a_silent_neighbour_is_held_against_it() {
    let world = World::new(9);
    let one = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let liar = Liar::new(&world, 200, &one.node.overlay.contact()).await;
    let ask = Word::View(ViewMessage::Ask { me: liar.contact(), is_urgent: true });
    liar.say(&one.topic.id(), &ask).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(one.node.count("neighbours"), 1);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((one.node.count("neighbours"), one.node.count("offences_total{kind=\"silent\"}")), (0, 1));
    liar.host.shutdown().await;
    stop([one.node]).await;
}

/// Two honest nodes with more topics in common than one peer may have: those beyond are refused, and neither is banned. Each
/// refusal was followed by the next question within a round trip, and twenty of them were a ban.
#[tokio::test(start_paused = true)]
async fn more_topics_than_a_peer_may_have_are_no_reason_for_a_ban() {
    let world = World::new(10);
    let (one, two) = (world.node(1, Settings::default()).await, world.node(2, Settings::default()).await);
    let mut topics = Vec::new();
    for number in 0..70 {
        let name = format!("topic {number}");
        one.overlay.topic(name.clone()).unsigned().join([], soon()).await.unwrap();
        let contact = one.overlay.contact();
        topics.push(two.overlay.topic(name).unsigned().join([contact], soon()).await.unwrap());
    }
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(one.overlay.peers()[0].topics, 64);
    let refused = one.count("frame_reject_total{reason=\"topics_max\"}");
    assert!((6..1000).contains(&refused), "{refused}");
    assert_eq!(one.count("offences_total{kind=\"greedy\"}"), refused);
    assert_eq!(one.count("bans_total") + two.count("bans_total"), 0);
    let receipt = topics[0].publish("still here", soon()).await.unwrap();
    assert_eq!(receipt.pushed, 1);
    stop([one, two]).await;
}
