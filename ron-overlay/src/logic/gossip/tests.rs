//! Single nodes, spoken to by hand. Whole networks are in `tests/swarm.rs`.

use bytes::Bytes;

use super::{
    super::{message::TopicId, store::OVERHEAD},
    *,
};

fn id(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

fn contact(number: u8) -> Contact {
    Contact { id: id(number), addrs: [].into() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A node whose neighbours are 1, 2 and 3.
fn node(settings: GossipSettings) -> Gossip {
    let mut gossip = Gossip::new(contact(0), settings, 0, 7);
    for number in 1..4 {
        gossip.on_word(
            id(number),
            Word::View(ViewMessage::Ask { me: contact(number), is_urgent: false }),
            ms(0),
        );
    }
    outputs(&mut gossip);
    gossip
}

fn outputs(gossip: &mut Gossip) -> Vec<Output> {
    std::iter::from_fn(|| gossip.poll()).collect()
}

fn message(publisher: u8, seq: u64) -> Message {
    let serial = Serial { publisher: id(publisher), since: 5, seq };
    Message::unsigned(&TopicId::of("news"), serial, Bytes::from_static(b"hello"))
}

fn push(message: Message) -> Word {
    Word::Push(Pushed { tree: id(9), hops: 1, is_repair: false, message })
}

fn accept_all(gossip: &mut Gossip, now: Duration) -> Vec<Output> {
    let mut all = Vec::new();
    while let Some(output) = gossip.poll() {
        if let Output::Check { message } = &output {
            gossip.on_verdict(&message.id(), Verdict::Accept, now);
        }
        all.push(output);
    }
    all
}

fn sent(outputs: &[Output], to: u8, is: impl Fn(&Word) -> bool) -> usize {
    let matches = |output: &&Output| matches!(output, Output::Send { to: contact, word } if contact.id == id(to) && is(word));
    outputs.iter().filter(matches).count()
}

fn deliveries(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Deliver { .. })).count()
}

#[test]
fn a_flood_of_duplicates_is_one_delivery_and_one_check() {
    let mut gossip = node(GossipSettings::default());
    let (mut checks, mut delivered) = (0, 0);
    for number in 0..100_000_u64 {
        gossip.on_word(id(1 + (number % 3) as u8), push(message(8, 1)), ms(number / 100));
        let outputs = accept_all(&mut gossip, ms(number / 100));
        checks += outputs.iter().filter(|output| matches!(output, Output::Check { .. })).count();
        delivered += deliveries(&outputs);
    }
    assert_eq!((checks, delivered), (1, 1));
    assert_eq!(gossip.counts().duplicates, 99_999);
    assert_eq!(gossip.store.bytes(), 5 + OVERHEAD);
}

#[test]
fn a_forged_copy_does_not_keep_the_true_one_away() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    outputs(&mut gossip);
    gossip.on_verdict(&message(8, 1).id(), Verdict::Forged, ms(1));
    let offence = Output::Offence { peer: id(1), offence: Offence::Invalid };
    assert_eq!(outputs(&mut gossip), [offence]);
    gossip.on_word(id(2), push(message(8, 1)), ms(2));
    assert_eq!(deliveries(&accept_all(&mut gossip, ms(2))), 1);
}

#[test]
fn what_is_rejected_is_not_looked_at_again_and_not_relayed() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    outputs(&mut gossip);
    gossip.on_verdict(&message(8, 1).id(), Verdict::Reject { is_proven: false }, ms(1));
    assert_eq!(outputs(&mut gossip).len(), 1);
    gossip.on_word(id(2), push(message(8, 1)), ms(2));
    gossip.on_tick(ms(100));
    let outputs = outputs(&mut gossip);
    assert!(outputs.iter().all(|output| !matches!(output, Output::Check { .. } | Output::Deliver { .. })));
    assert_eq!(sent(&outputs, 3, |word| matches!(word, Word::Push(_) | Word::Have(_))), 0);
}

#[test]
fn an_announcement_that_nothing_follows_is_asked_for_and_then_elsewhere() {
    let mut gossip = node(GossipSettings::default());
    let name = message(8, 1).id();
    gossip.on_word(id(1), Word::Have(vec![(id(9), vec![name])]), ms(0));
    gossip.on_word(id(2), Word::Have(vec![(id(9), vec![name])]), ms(10));
    let wants = |outputs: &[Output], to| sent(outputs, to, |word| *word == Word::Want(vec![name]));
    gossip.on_tick(ms(249));
    let early = outputs(&mut gossip);
    assert_eq!((wants(&early, 1), wants(&early, 2)), (0, 0));
    gossip.on_tick(ms(250));
    let first = outputs(&mut gossip);
    assert_eq!(wants(&first, 1) + wants(&first, 2), 1);
    let asked = if wants(&first, 1) == 1 { 1 } else { 2 };
    gossip.on_tick(ms(2000));
    let second = outputs(&mut gossip);
    assert_eq!(wants(&second, 3 - asked), 1);
    assert!(second.contains(&Output::Offence { peer: id(asked), offence: Offence::Late }));
}

#[test]
fn announcements_without_end_take_one_share_and_leave_the_rest_to_others() {
    let mut gossip = node(GossipSettings { missing_max: 100, ..GossipSettings::default() });
    for number in 0..50_u8 {
        let ids = (0..100)
            .map(|place| MessageId::from_bytes([number, place, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        gossip.on_word(id(1), Word::Have(vec![(id(9), ids.collect())]), ms(0));
    }
    assert_eq!((gossip.missing.len(), gossip.due.len()), (12, 12));
    let honest = MessageId::from_bytes([200; 16]);
    gossip.on_word(id(2), Word::Have(vec![(id(9), vec![honest])]), ms(0));
    assert!(gossip.missing.contains_key(&honest));
    // What never comes is given up, and its place is free again.
    for second in 1..6 {
        gossip.on_tick(ms(second * 1000));
    }
    assert_eq!((gossip.missing.len(), gossip.due.len(), gossip.links[&id(1)].wanted), (0, 0, 0));
}

#[test]
fn who_asks_too_much_is_sent_no_more_for_a_second() {
    let mut gossip = node(GossipSettings { burst_budget_frames: 10, ..GossipSettings::default() });
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    accept_all(&mut gossip, ms(0));
    let want = Word::Want(vec![message(8, 1).id()]);
    let mut pushed = 0;
    for at in [0, 500, 999] {
        for _ in 0..10 {
            gossip.on_word(id(2), want.clone(), ms(at));
        }
        pushed += sent(&outputs(&mut gossip), 2, |word| matches!(word, Word::Push(_)));
    }
    assert_eq!((pushed, gossip.counts().over_budget), (10, 20));
    gossip.on_word(id(2), want, ms(1000));
    assert_eq!(sent(&outputs(&mut gossip), 2, |word| matches!(word, Word::Push(_))), 1);
}

#[test]
fn a_message_ends_after_its_hops() {
    let mut gossip = node(GossipSettings { hops_max: 3, ..GossipSettings::default() });
    let far =
        |hops, seq| Word::Push(Pushed { tree: id(9), hops, is_repair: false, message: message(8, seq) });
    gossip.on_word(id(1), far(2, 1), ms(0));
    assert_eq!(sent(&accept_all(&mut gossip, ms(0)), 2, |word| matches!(word, Word::Push(_))), 1);
    gossip.on_word(id(1), far(3, 2), ms(0));
    let last = accept_all(&mut gossip, ms(0));
    assert_eq!((deliveries(&last), sent(&last, 2, |word| matches!(word, Word::Push(_)))), (1, 0));
    gossip.on_word(id(1), far(4, 3), ms(0));
    assert_eq!(outputs(&mut gossip), []);
}

#[test]
fn fanout_bounds_the_copies_and_the_rest_is_announced() {
    let mut gossip = node(GossipSettings { relay_fanout: 1, ..GossipSettings::default() });
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    let now = accept_all(&mut gossip, ms(0));
    let pushes: usize = (1..4).map(|to| sent(&now, to, |word| matches!(word, Word::Push(_)))).sum();
    gossip.on_tick(ms(20));
    let later = outputs(&mut gossip);
    let haves: usize = (1..4).map(|to| sent(&later, to, |word| matches!(word, Word::Have(_)))).sum();
    assert_eq!((pushes, haves), (1, 1));
}

#[test]
fn a_silent_neighbour_is_none_any_more() {
    let mut gossip = node(GossipSettings::default());
    let mut now = ms(0);
    while now < ms(10_000) {
        now = gossip.wake_at().max(now + ms(1));
        gossip.on_tick(now);
        gossip.on_word(id(1), Word::Ping(1), now);
    }
    assert_eq!(gossip.neighbours().map(|peer| peer.id).collect::<Vec<_>>(), [id(1)]);
    let outputs = outputs(&mut gossip);
    assert!(outputs.contains(&Output::Down(id(2))));
    assert!(outputs.contains(&Output::Offence { peer: id(3), offence: Offence::Silent }));
}

#[test]
fn checks_that_wait_are_bounded_and_what_is_shed_may_come_again() {
    let mut gossip = node(GossipSettings { unchecked_max: 2, ..GossipSettings::default() });
    for seq in 1..4 {
        gossip.on_word(id(1), push(message(8, seq)), ms(0));
    }
    assert_eq!((outputs(&mut gossip).len(), gossip.counts().unchecked_shed), (2, 1));
    gossip.on_verdict(&message(8, 1).id(), Verdict::Shed, ms(1));
    gossip.on_word(id(2), push(message(8, 1)), ms(2));
    assert_eq!(outputs(&mut gossip).len(), 1);
}

#[test]
fn a_digest_is_hearsay_and_silences_no_publisher() {
    let mut gossip =
        Gossip::new(contact(0), GossipSettings { publishers: 4, ..GossipSettings::default() }, 10, 7);
    let hearsay = |publisher: u8, since| Summary { publisher: id(publisher), since, high: 1 << 40 };
    gossip.on_word(id(1), Word::Digest(vec![hearsay(8, 5), hearsay(8, 9)]), ms(0));
    gossip.on_word(id(1), push(message(8, 1)), ms(1));
    assert_eq!(deliveries(&accept_all(&mut gossip, ms(1))), 1);
    for made_up in 20..40 {
        gossip.on_word(id(1), Word::Digest(vec![hearsay(made_up, 5)]), ms(2));
    }
    gossip.on_word(id(1), Word::Digest(vec![hearsay(8, 9)]), ms(3));
    gossip.on_word(id(1), push(message(8, 2)), ms(4));
    assert_eq!(deliveries(&accept_all(&mut gossip, ms(4))), 1);
    assert_eq!(gossip.publishers.len(), 1, "whoever was not heard takes nobody's place");
}

#[test]
fn strangers_do_not_use_up_what_neighbours_may_ask_for() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    accept_all(&mut gossip, ms(0));
    let want = || Word::Want(vec![message(8, 1).id()]);
    for number in 0..400_u16 {
        let mut stranger = [200; 32];
        stranger[..2].copy_from_slice(&number.to_be_bytes());
        gossip.on_word(NodeId::from_bytes(stranger), want(), ms(1));
    }
    assert_eq!(gossip.counts().over_budget, 400 - BUDGETS_MAX as u64, "what is not sent is counted");
    outputs(&mut gossip);
    gossip.on_word(id(2), want(), ms(2));
    assert_eq!(sent(&outputs(&mut gossip), 2, |word| matches!(word, Word::Push(_))), 1);
    assert_eq!(gossip.budgets.len(), BUDGETS_MAX);
}

#[test]
fn a_true_copy_that_came_while_a_forged_one_was_checked_is_asked_for() {
    let mut gossip = node(GossipSettings::default());
    let name = message(8, 1).id();
    for from in [1, 77, 2] {
        gossip.on_word(id(from), push(message(8, 1)), ms(0));
    }
    gossip.on_verdict(&name, Verdict::Forged, ms(1));
    let outputs = outputs(&mut gossip);
    assert_eq!(sent(&outputs, 2, |word| *word == Word::Want(vec![name])), 1, "{outputs:?}");
    assert_eq!(sent(&outputs, 1, |word| matches!(word, Word::Want(_))), 0);
}

#[test]
fn what_is_not_announced_or_not_followed_is_counted() {
    let settings = GossipSettings { relay_fanout: 0, missing_max: 8, ..GossipSettings::default() };
    let mut gossip = node(settings);
    for seq in 1..=4100 {
        let serial = gossip.next_serial(1000);
        assert_eq!(serial.seq, seq);
        gossip.publish(Message::unsigned(&TopicId::of("test"), serial, Bytes::from_static(b"hello")), ms(1));
    }
    assert_eq!(gossip.counts().unannounced, 3 * 4);
    let ids = (0..5).map(|number| MessageId::from_bytes([number; 16])).collect();
    gossip.on_word(id(1), Word::Have(vec![(id(1), ids)]), ms(2));
    assert_eq!(gossip.counts().unfollowed, 4, "an eighth of eight is one");
}

/// On a busy topic an announcement costs as much as a message, unless many travel together. On a quiet one nobody waits.
#[test]
fn announcements_of_a_busy_topic_travel_together() {
    let mut gossip = node(GossipSettings::default());
    let (mut words, mut names) = (0, 0);
    for number in 1..=200 {
        let now = ms(number * 5);
        let message = message(8, number);
        gossip.on_word(id(1), Word::Push(Pushed { tree: id(9), hops: 1, is_repair: true, message }), now);
        let mut outputs = accept_all(&mut gossip, now);
        gossip.on_tick(now);
        outputs.extend(accept_all(&mut gossip, now));
        for output in outputs {
            if let Output::Send { to, word: Word::Have(haves) } = output {
                if to.id == id(3) {
                    (words, names) = (words + 1, names + haves[0].1.len());
                }
            }
        }
    }
    assert!((8..20).contains(&words) && names > 170, "{names} names in {words} words");
    gossip.on_tick(ms(2000));
    outputs(&mut gossip);
    let message = message(8, 201);
    gossip.on_word(id(1), Word::Push(Pushed { tree: id(9), hops: 1, is_repair: true, message }), ms(3000));
    accept_all(&mut gossip, ms(3000));
    gossip.on_tick(ms(3020));
    assert_eq!(sent(&outputs(&mut gossip), 3, |word| matches!(word, Word::Have(_))), 1);
}

/// Case 14: the largest value in each field of each word that the wire lets through, and time that goes on for long
/// afterwards. A sum of them that wraps would panic here.
#[test]
fn the_largest_numbers_in_words_do_no_harm() {
    use super::super::{seal::Proof, wire};
    let most = |publisher: u8, since, seq| {
        let serial = Serial { publisher: id(publisher), since, seq };
        Message::unsigned(&TopicId::of("news"), serial, Bytes::from_static(b"hello"))
    };
    let beacon =
        |round, distance| Beacon { root: id(9), round, distance, is_parent: true, proof: Proof::NONE };
    let mut words = vec![
        Word::View(ViewMessage::Walk { who: contact(5), steps: u8::MAX }),
        Word::View(ViewMessage::Shuffle { origin: contact(5), steps: u8::MAX, sample: vec![contact(6)] }),
        Word::Ping(u32::MAX),
        Word::Pong(u32::MAX),
    ];
    for number in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 53, 1 << 32] {
        for other in [number, 1] {
            let pushed =
                |hops, is_repair| Pushed { tree: id(9), hops, is_repair, message: most(8, number, other) };
            words.extend([
                Word::Push(pushed(u8::MAX, false)),
                Word::Push(pushed(1, true)),
                Word::Push(Pushed { message: most(8, other, number), ..pushed(1, false) }),
                Word::Digest(vec![Summary { publisher: id(8), since: number, high: other }]),
                Word::Digest(vec![Summary { publisher: id(8), since: other, high: number }]),
                Word::Fetch { publisher: id(8), since: number, seqs: vec![other, number] },
                Word::Beacons(vec![beacon(number as u32, other as u32), beacon(other as u32, u32::MAX - 1)]),
            ]);
        }
    }
    let (mut gossip, topic, mut taken) = (node(GossipSettings::default()), TopicId::of("news"), 0);
    let mut now = ms(0);
    for word in words {
        let (number, body) = wire::encode(&topic, &word);
        let Ok((_, word)) = wire::decode(number, &body) else { continue };
        taken += 1;
        for from in 1..4 {
            gossip.on_word(id(from), word.clone(), now);
            accept_all(&mut gossip, now);
        }
        now += ms(100);
        gossip.on_tick(now);
        accept_all(&mut gossip, now);
    }
    assert!(taken > 20, "{taken} words were taken");
    for _ in 0..100 {
        now += Duration::from_secs(3600);
        gossip.on_tick(now);
        accept_all(&mut gossip, now);
    }
    // It goes on as if nothing had been.
    gossip.on_word(id(1), push(message(7, 1)), now);
    assert_eq!(deliveries(&accept_all(&mut gossip, now)), 1);
}

/// A node was restarted while its clock was hours ahead, said something, and was restarted with the right time. All that it
/// said then was old to everybody who had heard it before, and nobody was told.
#[test]
fn who_comes_back_with_an_earlier_clock_is_told_and_heard() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    assert_eq!(deliveries(&accept_all(&mut gossip, ms(0))), 1);
    gossip.on_word(id(8), Word::View(ViewMessage::Ask { me: contact(8), is_urgent: true }), ms(1000));
    let told = outputs(&mut gossip).into_iter().find_map(|output| match output {
        Output::Send { to, word: word @ Word::Digest(_) } if to.id == id(8) => Some(word),
        _ => None,
    });
    let mut back = Gossip::new(contact(8), GossipSettings::default(), 2, 7);
    back.on_word(id(0), told.expect("who knows a new neighbour says so"), ms(0));
    assert_eq!(outputs(&mut back), [], "nobody asks others for what it said itself");
    let serial = back.next_serial(3);
    assert_eq!((serial.since, serial.seq), (6, 1));
    let next = Message::unsigned(&TopicId::of("news"), serial, Bytes::from_static(b"again"));
    gossip.on_word(id(8), push(next), ms(1001));
    assert_eq!(deliveries(&accept_all(&mut gossip, ms(1001))), 1);
}

/// The same, when it is told too late: what it said in the meantime is told as missing, and nothing of its own to itself.
#[test]
fn what_was_said_before_the_clock_was_known_to_be_behind_is_told() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    accept_all(&mut gossip, ms(0));
    let mut back = Gossip::new(contact(8), GossipSettings::default(), 2, 7);
    let mut publish = |back: &mut Gossip| {
        let message = Message::unsigned(&TopicId::of("news"), back.next_serial(3), Bytes::from_static(b"hi"));
        back.publish(message.clone(), ms(1));
        gossip.on_word(id(8), push(message), ms(1000));
        deliveries(&accept_all(&mut gossip, ms(1000)))
    };
    assert_eq!(publish(&mut back), 0);
    back.on_word(id(0), Word::Digest(vec![Summary { publisher: id(8), since: 5, high: 1 }]), ms(2));
    assert_eq!(publish(&mut back), 1);
    gossip.on_tick(ms(60_000));
    let gap = Gap { publisher: id(8), since: 6, seqs: 1..=1 };
    assert!(outputs(&mut gossip).contains(&Output::Gap(gap)));
    back.on_tick(ms(60_000));
    assert!(outputs(&mut back).iter().all(|output| !matches!(output, Output::Gap(_))));
}

/// A node was alone for longer than others tell at random what they have. It came back, nobody said anything any more, and it
/// neither got what it had missed nor knew of it.
#[test]
fn who_was_away_is_told_what_was_said() {
    let mut gossip = node(GossipSettings::default());
    gossip.on_word(id(1), push(message(8, 1)), ms(0));
    accept_all(&mut gossip, ms(0));
    for seconds in 1..600 {
        gossip.on_tick(ms(seconds * 1000));
        for number in 1..4 {
            gossip.on_word(id(number), Word::Ping(0), ms(seconds * 1000));
        }
    }
    outputs(&mut gossip);
    let ask = Word::View(ViewMessage::Ask { me: contact(4), is_urgent: true });
    gossip.on_word(id(4), ask, ms(600_000));
    let told = Word::Digest(vec![Summary { publisher: id(8), since: 5, high: 1 }]);
    assert_eq!(sent(&outputs(&mut gossip), 4, |word| *word == told), 1);
}

/// A node said something while it was alone, for longer than messages are kept for others. What came before its last message shows
/// as a hole with that, and to nobody without it.
#[test]
fn who_was_alone_gives_its_last_message_to_whoever_comes() {
    let mut alone = Gossip::new(contact(8), GossipSettings::default(), 2, 7);
    for _ in 0..3 {
        let message =
            Message::unsigned(&TopicId::of("news"), alone.next_serial(5), Bytes::from_static(b"hi"));
        alone.publish(message, ms(0));
    }
    (1..100).for_each(|seconds| alone.on_tick(ms(seconds * 1000)));
    outputs(&mut alone);
    let (mut gossip, now) = (node(GossipSettings::default()), ms(100_000));
    alone.on_word(id(0), Word::View(ViewMessage::Ask { me: contact(0), is_urgent: true }), now);
    let words = |from: &mut Gossip, to: &mut Gossip, name: u8| {
        let mut heard = Vec::new();
        for output in accept_all(from, now) {
            match output {
                Output::Send { to: whom, word } if whom.id == to.me => to.on_word(id(name), word, now),
                other => heard.push(other),
            }
        }
        heard
    };
    words(&mut alone, &mut gossip, 8);
    words(&mut gossip, &mut alone, 0);
    words(&mut alone, &mut gossip, 8);
    let heard = words(&mut gossip, &mut alone, 0);
    assert_eq!(deliveries(&heard), 1);
    gossip.on_tick(now + ms(20));
    let announced = outputs(&mut gossip);
    let haves: usize = (1..4).map(|to| sent(&announced, to, |word| matches!(word, Word::Have(_)))).sum();
    assert_eq!(haves, 3, "whoever did not meet it hears of it too");
    gossip.on_tick(now + ms(8000));
    assert!(outputs(&mut gossip).contains(&Output::Gap(Gap { publisher: id(8), since: 5, seqs: 1..=2 })));
}

/// Peers that are no neighbours tell what they have, too. One of them is not what an only neighbour is.
#[test]
fn an_only_neighbour_is_believed_and_a_stranger_is_not() {
    let gaps = |gossip: &mut Gossip, until| {
        gossip.on_tick(ms(until));
        outputs(gossip).into_iter().filter(|output| matches!(output, Output::Gap(_))).count()
    };
    let said = || Word::Digest(vec![Summary { publisher: id(8), since: 5, high: 1 }]);
    let mut gossip = Gossip::new(contact(0), GossipSettings::default(), 0, 7);
    gossip.on_word(id(50), said(), ms(0));
    assert_eq!(gaps(&mut gossip, 20_000), 0, "it has no neighbour at all");
    gossip.on_word(id(1), Word::View(ViewMessage::Ask { me: contact(1), is_urgent: false }), ms(20_000));
    gossip.on_word(id(50), said(), ms(20_000));
    gossip.on_word(id(1), Word::Ping(0), ms(27_000));
    assert_eq!(gaps(&mut gossip, 28_000), 0);
    let other = Summary { publisher: id(9), since: 5, high: 1 };
    gossip.on_word(id(1), Word::Digest(vec![other]), ms(28_000));
    gossip.on_word(id(1), Word::Ping(0), ms(35_000));
    assert_eq!(gaps(&mut gossip, 36_000), 1);
}
