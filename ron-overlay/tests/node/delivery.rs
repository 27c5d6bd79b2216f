//! Messages reach everybody, whole, once, and signed.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use ron_core::{
    Deadline, Ratio,
    sim::{Latency, Line},
};
use ron_overlay::{Delivery, GossipSettings, Overflow, OverlayError, Settings, StoreSettings};

use super::world::{Member, SECOND, World, ip, ms, real, soon, stop};

#[tokio::test(start_paused = true)]
async fn everybody_gets_every_message_once() {
    let world = World::new(1);
    let mut members = world.swarm(20, &Settings::default()).await;
    for round in 0..50_u8 {
        for publisher in [0, 7, 13] {
            members[publisher].publish(vec![round, publisher as u8]).await;
        }
        tokio::time::sleep(ms(20)).await;
    }
    for (number, member) in members.iter_mut().enumerate() {
        let heard = member.hear(3 * SECOND).await;
        let distinct: BTreeSet<_> = heard.iter().collect();
        let own = usize::from([0, 7, 13].contains(&number)) * 50;
        assert_eq!((heard.len(), distinct.len()), (150 - own, 150 - own), "node {number}");
    }
    let (received, duplicates) = {
        let mut sums = (0, 0);
        for member in &members {
            let counts = member.topic.status(soon()).await.unwrap().counts;
            sums = (sums.0 + counts.received, sums.1 + counts.duplicates);
        }
        sums
    };
    assert!(duplicates * 4 < received, "{duplicates} of {received} were duplicates");
    assert!(members[3].node.count("gossip_frames_total{dir=\"rx\"}") > 150);
    assert!(members[3].node.count("gossip_frames_total{dir=\"tx\"}") > 0);
    assert_eq!(members[3].node.count("messages_total{what=\"delivered\"}"), 150);
    assert_eq!(members[0].node.count("messages_total{what=\"published\"}"), 50);
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Whatever a line loses, TCP sends again; what is lost here is what falls between sessions that come and go.
#[tokio::test(start_paused = true)]
async fn bad_lines_and_broken_sessions_lose_nothing() {
    let world = World::new(2);
    let mut members = world.swarm(8, &Settings::default()).await;
    let latency = Latency::Tailed(ms(20), ms(200));
    world.net.set_usual(Line { latency, loss: Ratio::percent(5), ..Line::default() });
    for round in 0..40_u8 {
        members[usize::from(round % 3)].publish(vec![round]).await;
        if round % 10 == 5 {
            // All lines of one node are cut for longer than a peer may take: its sessions end.
            let (cut, others): (Vec<_>, Vec<_>) =
                (1..=8).map(ip).partition(|addr| *addr == ip(4 + round / 10));
            world.net.partition(&cut, &others);
            tokio::time::sleep(12 * SECOND).await;
            world.net.heal();
        }
        tokio::time::sleep(ms(300)).await;
    }
    let mut missing = 0;
    for (number, member) in members.iter_mut().enumerate() {
        let own = (0..40).filter(|round| round % 3 == number).count();
        let (mut heard, mut gaps) = (BTreeSet::new(), 0);
        while let Ok(Some(delivery)) = tokio::time::timeout(15 * SECOND, member.heard.recv()).await {
            match delivery {
                Delivery::Message { message, .. } => assert!(heard.insert(message.payload().clone())),
                Delivery::Gap(gap) => gaps += gap.count(),
                other => panic!("{other:?}"),
            }
        }
        missing += 40 - own - heard.len();
        assert!(40 - own - heard.len() <= gaps as usize, "node {number} has {} and {gaps} gaps", heard.len());
    }
    assert!(missing <= 4, "{missing} were not repaired in time");
    stop(members.into_iter().map(|member| member.node)).await;
}

/// What nobody can send any more is a gap, and told.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_repaired_is_told_as_a_gap() {
    let world = World::new(3);
    // Nothing is kept for others, so nobody can fetch what it missed.
    let store =
        StoreSettings { messages_for: Duration::ZERO, last_for: Duration::ZERO, ..StoreSettings::default() };
    let settings =
        Settings { gossip: GossipSettings { store, ..GossipSettings::default() }, ..Settings::default() };
    let mut members = world.swarm(2, &settings).await;
    members[0].publish("first").await;
    assert_eq!(members[1].hear(SECOND).await, ["first"]);
    let mut strict = members[1].topic.subscribe(soon()).await.unwrap();
    world.net.partition(&[ip(1)], &[ip(2)]);
    tokio::time::sleep(20 * SECOND).await;
    for lost in 0..3_u8 {
        members[0].publish(vec![lost]).await;
    }
    world.net.heal();
    members[1].topic.joined(Deadline::after(60 * SECOND)).await.unwrap();
    tokio::time::sleep(SECOND).await;
    members[0].publish("last").await;
    let mut told = Vec::new();
    while let Ok(Some(delivery)) = tokio::time::timeout(20 * SECOND, members[1].heard.recv()).await {
        told.push(match delivery {
            Delivery::Message { message, .. } => format!("{:?}", message.payload()),
            Delivery::Gap(gap) => format!("{:?}", gap.seqs),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(told, ["b\"last\"", "2..=4"]);
    assert_eq!(members[1].node.count("gap_messages_total"), 3);
    assert_eq!(strict.next().await.unwrap().unwrap().payload(), "last");
    let publisher = members[0].node.id();
    assert_eq!(strict.next().await.unwrap_err(), OverlayError::Lost { publisher, count: 3 });
    stop(members.into_iter().map(|member| member.node)).await;
}

/// Seed 8017 of the simulation of whole nodes: somebody was alone behind a partition for longer than messages are kept for others,
/// and what it said there was its last. Those it met then were told that they miss it, and those who met only them were not.
#[tokio::test(start_paused = true)]
async fn what_somebody_said_last_while_alone_reaches_everybody() {
    let world = World::new(9);
    let mut members = world.swarm(4, &Settings::default()).await;
    world.net.partition(&[ip(4)], &[ip(1), ip(2), ip(3)]);
    tokio::time::sleep(20 * SECOND).await;
    for said in ["first", "second", "last"] {
        members[3].publish(said).await;
    }
    tokio::time::sleep(45 * SECOND).await;
    world.net.mend(ip(4), ip(1));
    world.net.mend(ip(1), ip(4));
    members[3].topic.joined(Deadline::after(60 * SECOND)).await.unwrap();
    for (number, member) in members[..3].iter_mut().enumerate() {
        let mut told = Vec::new();
        while let Ok(Some(delivery)) = tokio::time::timeout(20 * SECOND, member.heard.recv()).await {
            told.push(match delivery {
                Delivery::Message { message, .. } => format!("{:?}", message.payload()),
                Delivery::Gap(gap) => format!("{:?}", gap.seqs),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(told, ["b\"last\"", "1..=2"], "{}", number + 1);
    }
    stop(members.into_iter().map(|member| member.node)).await;
}

/// And who takes that for an error gets one.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_is_too_slow_is_told_what_it_missed() {
    let world = World::new(4);
    let members = world.swarm(2, &Settings::default()).await;
    let mut slow = members[1].topic.subscribe_with(2, soon()).await.unwrap();
    let mut strict = members[1].topic.subscribe_with(2, soon()).await.unwrap();
    for number in 0..10_u8 {
        members[0].publish(vec![number]).await;
    }
    tokio::time::sleep(SECOND).await;
    let mut told = Vec::new();
    while let Some(delivery) = slow.try_recv() {
        told.push(match delivery {
            Delivery::Message { message, .. } => format!("{}", message.serial().seq),
            Delivery::Missed(gap) => format!("missed {:?}", gap.seqs),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(told, ["1", "2", "missed 3..=10"]);
    assert_eq!(strict.next().await.unwrap().unwrap().serial().seq, 1);
    assert_eq!(strict.next().await.unwrap().unwrap().serial().seq, 2);
    let lagging = strict.next().await.unwrap_err();
    assert_eq!(lagging, OverlayError::Lagging { missed: 8 });
    assert_eq!(members[1].node.count("subscriber_missed_total"), 16);
    stop(members.into_iter().map(|member| member.node)).await;
}

#[tokio::test(start_paused = true)]
async fn large_messages_come_whole() {
    let world = World::new(5);
    let mut members = world.swarm(5, &Settings::default()).await;
    let sizes = [0, 1, 65_000, 65_536, 65_537, 1 << 20, 16 << 20];
    for size in sizes {
        let payload: Bytes = (0..size).map(|at: usize| (at / 7 + size) as u8).collect();
        members[0].publish(payload.clone()).await;
        for member in &mut members[1..] {
            let heard = member.hear(3 * SECOND).await;
            assert!(heard == [payload.clone()], "{} messages at {size} bytes", heard.len());
        }
    }
    let large = vec![0; (16 << 20) + 1];
    let refused = members[0].topic.publish(large, soon()).await.unwrap_err();
    let (bytes, max) = ((16 << 20) + 1, 16 << 20);
    assert_eq!(refused, OverlayError::FrameTooLarge { what: "message", bytes, max });
    stop(members.into_iter().map(|member| member.node)).await;
}

#[tokio::test]
async fn nodes_over_tls_deliver_signed_messages() {
    let mut members: Vec<Member> = Vec::new();
    for number in 1..=4 {
        let node = real(number, Settings::default()).await;
        let contacts = members.first().map(|first: &Member| first.node.overlay.contact());
        members.push(Member::join(node, contacts, true).await);
    }
    for member in &members {
        member.topic.joined(soon()).await.unwrap();
    }
    for number in 0..24_u8 {
        members[usize::from(number) % 4].topic.publish_when_free(vec![number], soon()).await.unwrap();
    }
    for member in &mut members {
        let mut heard = BTreeSet::new();
        while heard.len() < 18 {
            let message = tokio::time::timeout(10 * SECOND, member.heard.next()).await;
            let message = message.expect("in time").unwrap().unwrap();
            assert!(matches!(message.author(), ron_overlay::Author::Signed(..)) && message.is_proven());
            assert!(heard.insert(message.payload().clone()), "twice");
        }
    }
    stop(members.into_iter().map(|member| member.node)).await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_hands_its_neighbours_to_each_other() {
    let world = World::new(6);
    // The first is the only link between all others.
    let settings = Settings::default();
    let mut members = world.swarm(6, &settings).await;
    members[2].publish("before").await;
    tokio::time::sleep(SECOND).await;
    let mut first = members.remove(0);
    assert_eq!(first.hear(SECOND).await.len(), 1);
    first.topic.leave(soon()).await.unwrap();
    assert_eq!(first.heard.recv().await, None, "the subscription ends");
    assert_eq!(first.topic.publish("x", soon()).await.unwrap_err(), OverlayError::NotJoined);
    assert_eq!(first.topic.leave(soon()).await.unwrap_err(), OverlayError::NotJoined);
    let before = ron_core::now();
    members[0].publish("after").await;
    for member in &mut members[1..] {
        let mut heard = member.hear(ms(900)).await;
        assert_eq!(heard.pop().unwrap(), "after", "within a second of the leave");
    }
    assert!(before.elapsed() < 8 * SECOND);
    stop(members.into_iter().map(|member| member.node).chain([first.node])).await;
}

/// A node that stops has sent what it had taken before the stop, and nobody has to notice that it is gone.
#[tokio::test(start_paused = true)]
async fn a_stop_sends_what_waits_and_leaves_in_order() {
    let world = World::new(7);
    let mut members = world.swarm(4, &Settings::default()).await;
    let mut last = members.pop().unwrap();
    for number in 0..100_u8 {
        last.topic.publish(vec![number; 1000], soon()).await.unwrap();
    }
    let stopped = last.node.overlay.shutdown().await;
    assert_eq!(stopped.aborted, 0);
    for member in &mut members {
        assert_eq!(member.hear(2 * SECOND).await.len(), 100);
        let status = member.topic.status(soon()).await.unwrap();
        assert!(!status.neighbours.contains(&last.node.id()));
        assert_eq!(member.node.count("offences_total{kind=\"silent\"}"), 0, "it said that it leaves");
    }
    assert_eq!(last.heard.recv().await, None);
    stop(members.into_iter().map(|member| member.node)).await;
}

#[tokio::test(start_paused = true)]
async fn one_name_is_one_topic_with_one_set_of_options() {
    let world = World::new(8);
    let node = world.node(1, Settings::default()).await;
    let (one, other) = (node.overlay.topic("a").unsigned(), node.overlay.topic("a").unsigned());
    let one = one.join([], soon()).await.unwrap();
    assert_eq!(one.id(), other.join([], soon()).await.unwrap().id());
    for options in
        [node.overlay.topic("a"), node.overlay.topic("a").unsigned().overflow(Overflow::ShedOldest)]
    {
        assert_eq!(options.join([], soon()).await.unwrap_err(), OverlayError::Joined);
    }
    let receipt = one.publish("to nobody", soon()).await.unwrap();
    assert_eq!((receipt.seq, receipt.pushed, receipt.neighbours), (1, 0, 0));
    let alone = one.joined(Deadline::after(SECOND)).await.unwrap_err();
    assert_eq!(alone, OverlayError::NoNeighbour);
    let names: Vec<String> =
        node.overlay.topics(soon()).await.unwrap().into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["a"]);
    stop([node]).await;
}

/// Half of the network dies at once, and everybody left still hears the next message.
#[tokio::test(start_paused = true)]
async fn a_third_may_crash_at_once() {
    let world = World::new(9);
    let mut members = world.swarm(15, &Settings::default()).await;
    let dead: Vec<Member> = members.split_off(10);
    for number in 11..=15 {
        world.net.crash(ip(number));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    members[0].publish("still here").await;
    for member in &mut members[1..] {
        assert_eq!(member.hear(5 * SECOND).await, ["still here"]);
    }
    for member in dead {
        member.node.host.abort();
    }
    stop(members.into_iter().map(|member| member.node)).await;
}

/// A word costs two system calls and two wake-ups, however small. A busy topic has few beside its messages, and a quiet one
/// with eight trees has about one a round on each link, and pings.
#[tokio::test(start_paused = true)]
async fn small_words_travel_together() {
    let world = World::new(10);
    let mut members = world.swarm(16, &Settings::default()).await;
    let words = |members: &[Member]| -> u64 {
        members.iter().map(|member| member.node.count("gossip_frames_total{dir=\"tx\"}")).sum()
    };
    let mut before = 0;
    for number in 0..900_usize {
        if number == 300 {
            before = words(&members);
        }
        members[number % 8].publish(vec![7; 100]).await;
        tokio::time::sleep(Duration::from_micros(3333)).await;
    }
    let busy = (words(&members) - before) as f64 / (600 * 15) as f64;
    for member in &mut members {
        assert!(member.hear(SECOND).await.len() >= 780);
    }
    tokio::time::sleep(2 * SECOND).await;
    let mut links = 0;
    for member in &members {
        let status = member.topic.status(soon()).await.unwrap();
        assert_eq!(status.trees, 8);
        links += status.neighbours.len();
    }
    let before = words(&members);
    tokio::time::sleep(30 * SECOND).await;
    let quiet = (words(&members) - before) as f64 / links as f64 / 10.0;
    println!("{busy:.2} words a delivery, {quiet:.2} words a link end and round");
    assert!(busy < 1.5, "{busy:.2} words a delivery");
    assert!(quiet < 6.0, "{quiet:.2} words a link end and round");
    stop(members.into_iter().map(|member| member.node)).await;
}
