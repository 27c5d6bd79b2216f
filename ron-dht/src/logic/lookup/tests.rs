//! Searches driven by hand, step by step, and by peers that do what they like.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use proptest::prelude::*;

use super::{super::table::bucket_index, *};

const OWN: u16 = u16::MAX;
const END: Duration = Duration::from_secs(60);

/// The peer at distance `n` from the target, which is zero.
fn id(n: u16) -> NodeId {
    let mut bytes = [0; 32];
    bytes[30..].copy_from_slice(&n.to_be_bytes());
    NodeId::from_bytes(bytes)
}

fn number(id: &NodeId) -> u16 {
    u16::from_be_bytes([id.as_bytes()[30], id.as_bytes()[31]])
}

fn lead(n: u16) -> Lead {
    Lead::from(Contact { id: id(n), addrs: Arc::new([]) })
}

fn leads(numbers: impl IntoIterator<Item = u16>) -> Vec<Lead> {
    numbers.into_iter().map(lead).collect()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A search driven by hand. Peers are their distance to the target.
struct Script {
    lookup: Lookup,
    now: Duration,
}

impl Script {
    fn new(goal: Goal, settings: LookupSettings, seeds: impl IntoIterator<Item = u16>) -> Self {
        let target = Key::from(id(0));
        Script { lookup: Lookup::new(id(OWN), target, goal, settings, leads(seeds), END), now: ms(0) }
    }

    fn closest(seeds: impl IntoIterator<Item = u16>) -> Self {
        Script::new(Goal::Closest, LookupSettings::default(), seeds)
    }

    /// Whom it asks now, before it waits.
    fn asks(&mut self) -> Vec<u16> {
        let mut asked = Vec::new();
        loop {
            match self.lookup.poll(self.now) {
                Step::Ask { contact, .. } => asked.push(number(&contact.id)),
                Step::Cancel(_) => {}
                Step::Wait { .. } | Step::Done(_) => return asked,
            }
        }
    }

    fn at(&mut self, now: u64) -> &mut Self {
        self.now = ms(now);
        self
    }

    fn answer(&mut self, peer: u16, named: impl IntoIterator<Item = u16>) -> &mut Self {
        self.lookup.on_answer(&id(peer), leads(named), 0, self.now);
        self
    }

    fn fail(&mut self, peer: u16) -> &mut Self {
        self.lookup.on_failure(&id(peer), Failure::Unreachable, self.now);
        self
    }

    /// The verdict, once nothing is left to ask.
    fn verdict(&mut self) -> Verdict {
        match self.lookup.poll(self.now) {
            Step::Done(verdict) => verdict,
            step => panic!("not over: {step:?}"),
        }
    }
}

fn numbers(contacts: &[Contact]) -> Vec<u16> {
    contacts.iter().map(|contact| number(&contact.id)).collect()
}

#[test]
fn three_are_asked_and_the_nearest_first() {
    let mut script = Script::closest([90, 80, 70, 60]);
    // 70 and 80 share as many bits with the target as 90 does; the order among them is theirs.
    assert_eq!(script.asks(), [60, 70, 80]);
    assert_eq!(script.answer(70, [5, 6, 200]).asks(), [5]);
    assert_eq!(script.fail(60).asks(), [6]);
    assert_eq!(script.answer(5, []).answer(6, []).answer(80, []).asks(), [90, 200]);
    script.answer(90, []).answer(200, []);
    let verdict = script.verdict();
    assert_eq!(verdict.reason, Reason::Complete);
    assert_eq!(numbers(&verdict.closest), [5, 6, 70, 80, 90, 200]);
    assert_eq!((verdict.hops, verdict.rpcs, verdict.hedges), (2, 7, 0));
    assert_eq!(verdict.losers, []);
    assert_eq!(verdict.trace[0].outcome, Outcome::Failed(Failure::Unreachable));
    assert_eq!(verdict.trace[1].outcome, Outcome::Answered { named: 3, found: 0 });
}

#[test]
fn a_search_shows_where_nobody_is() {
    // The target is in the widest bucket of a node whose first of sixteen bits is set; it shares the others.
    let own = id(1 << 15);
    let bucket = |n: u16| bucket_index(&own, &id(n)).expect("somebody else");
    let mut script = Script::closest([1 << 14, (1 << 15) + 3]);
    script.asks();
    script.answer(1 << 14, []).answer((1 << 15) + 3, []);
    let verdict = script.verdict();
    assert!(!verdict.shows_vacant(&own, bucket(1 << 14)), "somebody is there");
    let mut script = Script::closest([(1 << 15) + 3]);
    script.asks();
    let verdict = script.answer((1 << 15) + 3, []).verdict();
    assert!(verdict.shows_vacant(&own, bucket(0)));
    let mut script = Script::closest([1]);
    script.asks();
    assert!(!script.fail(1).verdict().shows_vacant(&own, bucket(0)), "nobody says so");
    let mut script = Script::closest([(1 << 15) + 3, 1]);
    script.asks();
    script.answer((1 << 15) + 3, []);
    let verdict = script.at(60_000).verdict();
    assert!(!verdict.shows_vacant(&own, bucket(0)), "{:?}", verdict.reason);
}

#[test]
fn among_the_equally_far_the_fast_go_first() {
    let mut rtt = Rtt::UNKNOWN;
    rtt.on_sample(ms(20));
    let fast = Lead { rtt, ..lead(90) };
    let seeds = leads([70, 80]).into_iter().chain([fast]).chain(leads([60]));
    let mut lookup =
        Lookup::new(id(OWN), Key::from(id(0)), Goal::Closest, LookupSettings::default(), seeds, END);
    // 60 shares a bit more than the others.
    for expected in [60, 90, 70] {
        let Step::Ask { contact, .. } = lookup.poll(ms(0)) else { panic!("places are free") };
        assert_eq!(number(&contact.id), expected);
    }
    // The fast one is the first whose silence is noticed: 20 ms and twice a spread of 10.
    assert_eq!(lookup.poll(ms(0)), Step::Wait { until: ms(40) });
}

#[test]
fn silence_makes_room_for_two_more_and_the_longest_silent_gives_way() {
    let mut script = Script::closest(1..=20);
    assert_eq!(script.asks(), [1, 2, 3]);
    assert!(script.at(249).asks().is_empty());
    // All three are set aside, and places beyond the three are two: the first to be asked is given up.
    assert_eq!(script.at(250).lookup.poll(ms(250)), step_ask(4));
    assert_eq!(script.lookup.poll(ms(250)), step_ask(5));
    assert_eq!(script.lookup.poll(ms(250)), Step::Cancel(id(1)));
    assert_eq!(script.lookup.poll(ms(250)), step_ask(6));
    assert_eq!(script.lookup.poll(ms(250)), Step::Wait { until: ms(500) });
}

fn step_ask(n: u16) -> Step {
    Step::Ask { contact: lead(n).contact, rtt: Rtt::UNKNOWN, hedge: true }
}

#[test]
fn without_hedges_silence_is_waited_out() {
    let settings = LookupSettings { hedges: 0, ..LookupSettings::default() };
    let mut script = Script::new(Goal::Closest, settings, 1..=20);
    assert_eq!(script.asks(), [1, 2, 3]);
    assert!(script.at(1400).asks().is_empty());
    assert_eq!(script.fail(1).asks(), [4]);
}

#[test]
fn a_late_answer_is_learned_from() {
    let mut script = Script::closest([10, 20, 30, 40]);
    script.asks();
    assert_eq!(script.at(200).answer(20, []).asks(), [40]);
    // 10 and 30 are set aside here, and 40 alone is waited for.
    assert!(script.at(260).asks().is_empty());
    assert_eq!(script.at(300).answer(10, [5]).asks(), [5]);
    script.answer(5, []).answer(40, []);
    // Who took longest took 300 ms: as long again is what 30 may still take.
    assert_eq!(script.lookup.poll(ms(300)), Step::Wait { until: ms(600) });
    let verdict = script.at(600).verdict();
    assert_eq!(numbers(&verdict.closest), [5, 10, 20, 40]);
    assert_eq!(verdict.losers, [id(30)]);
    assert_eq!(verdict.trace[2].outcome, Outcome::Silent);
}

#[test]
fn the_end_does_not_wait_for_the_silent() {
    let mut script = Script::closest([10, 20, 30]);
    script.asks();
    script.at(50).answer(20, [10]).answer(30, []);
    assert_eq!(script.lookup.poll(ms(50)), Step::Wait { until: ms(250) });
    let verdict = script.at(250).verdict();
    assert_eq!((verdict.reason, verdict.losers), (Reason::Complete, vec![id(10)]));
}

/// Where everybody takes half a second, everybody is silent for a while: the nearest, who were asked last, were given up
/// and the search called complete.
#[test]
fn the_end_waits_for_who_is_near_and_no_slower_than_others() {
    let mut script = Script::closest(1..=22);
    let mut due: Vec<(u64, u16)> = Vec::new();
    let mut time = 0;
    let verdict = loop {
        script.at(time);
        due.retain(|(at, peer)| {
            let is_due = *at <= time;
            if is_due {
                script.answer(*peer, []);
            }
            !is_due
        });
        loop {
            match script.lookup.poll(script.now) {
                Step::Ask { contact, .. } => due.push((time + 400, number(&contact.id))),
                Step::Cancel(peer) => due.retain(|(_, asked)| id(*asked) != peer),
                Step::Wait { .. } => break,
                Step::Done(verdict) => break due.push((u64::MAX, verdict.rpcs as u16)),
            }
        }
        if let Some((u64::MAX, _)) = due.last() {
            break script.verdict();
        }
        time += 10;
        assert!(time < 20_000);
    };
    let answered = |asked: &&Asked| matches!(asked.outcome, Outcome::Answered { .. });
    let given_up = verdict.trace.len() - verdict.trace.iter().filter(answered).count();
    assert!(verdict.losers.is_empty() && verdict.reason == Reason::Complete, "{verdict:?}");
    assert!(given_up <= verdict.trace.len() / 2, "{given_up} of {}", verdict.trace.len());
}

#[test]
fn without_a_link_silence_begins_later() {
    let mut script = Script::closest([10, 20]);
    script.asks();
    script.lookup.on_dial(&id(20));
    script.at(250).asks();
    script.at(260).answer(10, []);
    assert_eq!(script.lookup.poll(ms(260)), Step::Wait { until: ms(750) });
    let verdict = script.at(750).verdict();
    assert_eq!(verdict.losers, [id(20)]);
}

/// A node with one slow seed used to end its first lookup after a hedge delay, with nobody found.
#[test]
fn the_only_hope_is_waited_for_however_slow() {
    let mut script = Script::closest([10, 20]);
    script.asks();
    script.at(10).fail(20);
    assert!(script.at(300).asks().is_empty());
    assert_eq!(script.lookup.poll(ms(300)), Step::Wait { until: END });
    assert_eq!(script.at(900).answer(10, [5]).asks(), [5]);
}

#[test]
fn nobody_to_ask_is_an_end() {
    let verdict = Script::closest([]).verdict();
    assert_eq!((verdict.reason, verdict.closest, verdict.hops), (Reason::Complete, vec![], 0));
    let verdict = Script::closest([OWN]).verdict();
    assert_eq!(verdict.rpcs, 0, "we are not asked");
}

#[test]
fn a_fast_error_does_not_beat_a_slower_answer() {
    let goal = Goal::Found(NonZeroUsize::MIN);
    let mut script = Script::new(goal, LookupSettings::default(), [1, 2, 3]);
    script.asks();
    script.at(1).fail(1).fail(2);
    assert_eq!(script.lookup.poll(ms(1)), Step::Wait { until: ms(250) });
    script.lookup.on_answer(&id(3), leads([]), 1, ms(200));
    let verdict = script.at(200).verdict();
    assert_eq!((verdict.reason, verdict.found), (Reason::Enough, 1));
}

#[test]
fn enough_is_enough() {
    let goal = Goal::Found(NonZeroUsize::new(2).expect("two"));
    let mut script = Script::new(goal, LookupSettings::default(), 1..=20);
    script.asks();
    script.lookup.on_answer(&id(2), leads([7]), 1, ms(40));
    assert_eq!(script.at(40).asks(), [4]);
    script.lookup.on_answer(&id(1), leads([]), 1, ms(50));
    let verdict = script.at(50).verdict();
    assert_eq!((verdict.reason, verdict.found), (Reason::Enough, 2));
    assert_eq!(verdict.losers, [id(3), id(4)]);
    assert_eq!(verdict.trace[2].outcome, Outcome::Canceled);
}

#[test]
fn nobody_beyond_the_hop_budget_is_asked() {
    let settings = LookupSettings { hops_max: 3, ..LookupSettings::default() };
    let mut script = Script::new(Goal::Closest, settings, [100]);
    for (peer, next) in [(100, 90), (90, 80), (80, 70)] {
        assert_eq!(script.asks(), [peer]);
        script.answer(peer, [next]);
    }
    let verdict = script.verdict();
    assert_eq!((verdict.reason, verdict.hops, verdict.rpcs), (Reason::Hops, 3, 3));
    // What is too far away in hops but also too far to matter ends nothing.
    let mut script = Script::new(Goal::Closest, LookupSettings { hops_max: 1, ..settings }, 1..=20);
    for peer in 1..=20 {
        script.asks();
        script.answer(peer, [1000]);
    }
    assert_eq!(script.verdict().reason, Reason::Complete);
}

#[test]
fn whoever_always_knows_somebody_nearer_ends_at_the_cap() {
    let settings = LookupSettings { hops_max: u8::MAX, ..LookupSettings::default() };
    let mut script = Script::new(Goal::Closest, settings, [60_000]);
    let mut nearer = 60_000;
    let mut asked = 0;
    loop {
        let peers = script.asks();
        if peers.is_empty() {
            break;
        }
        for peer in peers {
            asked += 1;
            nearer -= 100;
            script.answer(peer, nearer..nearer + 50);
            assert!(script.lookup.candidates.len() <= 80 + UNASKED_MAX);
        }
    }
    let verdict = script.verdict();
    assert_eq!((asked, verdict.rpcs, verdict.reason), (80, 80, Reason::Requests));
}

#[test]
fn time_runs_out_and_callers_change_their_minds() {
    let mut script = Script::closest([1, 2, 3]);
    script.asks();
    script.answer(2, []);
    script.now = END;
    let verdict = script.verdict();
    assert_eq!((verdict.reason, numbers(&verdict.closest)), (Reason::Deadline, vec![2]));
    let mut script = Script::closest([1, 2, 3]);
    script.asks();
    script.lookup.cancel();
    let verdict = script.verdict();
    assert_eq!((verdict.reason, verdict.losers.len()), (Reason::Canceled, 3));
    assert_eq!(script.verdict(), verdict, "the end stays the end");
    script.answer(1, [9]);
    assert_eq!(script.verdict().reason, Reason::Canceled);
}

#[test]
fn the_word_of_those_who_name_the_dead_is_not_taken_for_long() {
    let mut script = Script::closest([1000, 1001, 1002]);
    script.asks();
    // A liar names twenty that do not exist, and one that an honest peer names as well.
    script.answer(1000, 1..=20).answer(1001, [20, 900, 901, 902]).answer(1002, []);
    let mut dead = 0;
    let mut asked = Vec::new();
    loop {
        let peers = script.asks();
        if peers.is_empty() {
            break;
        }
        for peer in peers {
            asked.push(peer);
            if peer < 20 {
                dead += 1;
                script.fail(peer);
            } else {
                script.answer(peer, []);
            }
        }
    }
    // Three to find out, and those already asked by then.
    assert!((3..=5).contains(&dead), "{dead}");
    assert!([20, 900, 901, 902].iter().all(|honest| asked.contains(honest)), "{asked:?}");
    assert_eq!(script.verdict().reason, Reason::Complete);
}

/// The first to name a peer decided where it was looked for: a liar that answered early named the honest neighbours
/// of a key with addresses where nobody was, and whoever named them rightly came too late.
#[test]
fn a_peer_is_looked_for_where_others_say_it_is_too() {
    let at = |n, port| {
        let addr: SocketAddr = ([9, 9, 9, 9], port).into();
        Lead::from(Contact { id: id(n), addrs: Arc::new([addr]) })
    };
    for is_silent in [false, true] {
        let mut script = Script::closest([10, 20, 30]);
        assert_eq!(script.asks(), [10, 20, 30]);
        script.lookup.on_answer(&id(10), [at(5, 1)], 0, ms(10));
        assert_eq!(script.at(10).asks(), [5]);
        script.lookup.on_answer(&id(20), [at(5, 2)], 0, ms(20));
        script.lookup.on_answer(&id(30), [at(5, 1)], 0, ms(20));
        assert!(script.at(20).asks().is_empty(), "it may still be where it was said to be");
        if is_silent {
            assert_eq!(script.at(260).lookup.poll(ms(260)), Step::Cancel(id(5)));
        } else {
            script.at(30).fail(5);
        }
        let now = script.now;
        let Step::Ask { contact, .. } = script.lookup.poll(now) else { panic!("it is not looked for") };
        assert_eq!(contact, at(5, 2).contact);
        script.lookup.on_answer(&id(5), [at(10, 7)], 0, now);
        let verdict = script.verdict();
        assert_eq!((verdict.reason, verdict.rpcs), (Reason::Complete, 5));
        assert_eq!(verdict.closest[0], at(5, 2).contact);
    }
    // Twice is enough, however many places are named.
    let mut script = Script::closest([10, 20, 30, 40]);
    script.asks();
    for (port, peer) in [(1, 10), (2, 20), (3, 30)] {
        script.lookup.on_answer(&id(peer), [at(5, port)], 0, ms(0));
    }
    assert_eq!(script.asks(), [5, 40]);
    assert_eq!(script.fail(5).asks(), [5]);
    script.fail(5);
    script.lookup.on_answer(&id(40), [at(5, 4)], 0, ms(0));
    assert_eq!((script.verdict().reason, script.verdict().rpcs), (Reason::Complete, 6));
}

#[test]
fn paths_share_no_informant_and_hide_nobody() {
    let two = NonZeroUsize::new(2).expect("two");
    let settings = LookupSettings { paths: two, ..LookupSettings::default() };
    let mut script = Script::new(Goal::Closest, settings, [1000, 2000]);
    assert_eq!(script.asks(), [1000, 2000]);
    // One names its gang of twenty, all there and all nearer, and the honest peers it wants to keep from us.
    script.answer(1000, (1..=15).chain(500..=504)).answer(2000, 500..=510);
    let mut asked = Vec::new();
    loop {
        let peers = script.asks();
        if peers.is_empty() {
            break;
        }
        for peer in peers {
            asked.push(peer);
            script.answer(peer, if peer < 100 { 1..=20 } else { 500..=519 });
        }
    }
    let unique: HashSet<u16> = asked.iter().copied().collect();
    assert_eq!(unique.len(), asked.len(), "nobody twice");
    let closest = numbers(&script.verdict().closest);
    assert!((1..=20).chain(500..=517).all(|peer| closest.contains(&peer)), "{closest:?}");
    // One path alone sees the gang and nobody else.
    let mut script = Script::closest([1000, 2000]);
    script.asks();
    script.answer(1000, 1..=20);
    loop {
        let peers = script.asks();
        if peers.is_empty() {
            break;
        }
        for peer in peers {
            script.answer(peer, 1..=20);
        }
    }
    script.at(250).asks();
    assert_eq!(numbers(&script.verdict().closest), (1..=20).collect::<Vec<u16>>());
}

#[test]
fn nobody_is_believed_alone() {
    let settings = LookupSettings { parallelism: NonZeroUsize::MIN, ..LookupSettings::default() };
    let mut script = Script::new(Goal::Closest, settings, [1000, 1001, 1002, 1003]);
    assert_eq!(script.asks(), [1000]);
    script.answer(1000, 1..=20);
    for _ in 0..20 {
        let peer = script.asks()[0];
        assert!(peer <= 20);
        script.answer(peer, 1..=20);
    }
    assert_eq!(script.asks(), [1001], "the gang is complete, the search is not");
    script.answer(1001, []);
    assert_eq!(script.asks(), [1002]);
    script.answer(1002, []);
    assert_eq!(script.verdict().reason, Reason::Complete);
}

fn any_settings() -> impl Strategy<Value = LookupSettings> {
    (1_usize..6, 0_usize..4, 0_u8..8, 0_u16..100, 1_usize..12).prop_map(
        |(parallelism, hedges, hops_max, requests_max, paths)| LookupSettings {
            parallelism: parallelism.try_into().expect("not zero"),
            hedges,
            hedge_after: ms(250),
            hops_max,
            requests_max,
            paths: paths.try_into().expect("not zero"),
        },
    )
}

proptest! {
    /// Peers answer, lie, fail, keep silent and interrupt as they like: the search ends, within its bounds.
    #[test]
    fn every_search_ends_within_its_bounds(
        settings in any_settings(),
        seed: u64,
        universe in 1_u16..2000,
        answering in 0.0..1.0_f64,
        silent in 0.0..1.0_f64,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let peers = |rng: &mut fastrand::Rng| {
            let mut named: Vec<u16> = (0..rng.usize(0..40)).map(|_| rng.u16(0..universe)).collect();
            named.push(OWN);
            rng.shuffle(&mut named);
            named
        };
        let mut script = Script::new(Goal::Closest, settings, peers(&mut rng));
        let slots = settings.parallelism.get().max(settings.paths.get().min(PATHS_MAX));
        let mut asked = HashSet::new();
        let mut answered = HashSet::new();
        let mut out: Vec<u16> = Vec::new();
        let verdict = loop {
            match script.lookup.poll(script.now) {
                Step::Ask { contact, hedge, .. } => {
                    let peer = number(&contact.id);
                    prop_assert!(peer != OWN, "asked itself");
                    prop_assert!(asked.insert(peer), "asked twice");
                    prop_assert_eq!(hedge, out.len() >= slots);
                    out.push(peer);
                    prop_assert!(out.len() <= slots + settings.hedges);
                }
                Step::Cancel(peer) => {
                    let at = out.iter().position(|out| *out == number(&peer));
                    out.remove(at.expect("cancels what is out"));
                }
                Step::Wait { until } => {
                    prop_assert!(!out.is_empty(), "waits for nobody");
                    prop_assert!(until > script.now);
                    // Somebody nobody asked has something to say.
                    let stranger = rng.u16(0..universe);
                    if !out.contains(&stranger) {
                        let named = peers(&mut rng);
                        script.answer(stranger, named).fail(stranger);
                    }
                    if rng.f64() < silent {
                        // Nobody says anything: until all that is left is the deadline, when they fail.
                        if until < END {
                            script.now = until;
                            continue;
                        }
                    }
                    let peer = out.swap_remove(rng.usize(0..out.len()));
                    script.now += ms(rng.u64(0..20));
                    if rng.f64() < answering {
                        answered.insert(peer);
                        let named = peers(&mut rng);
                        script.answer(peer, named);
                    } else {
                        script.fail(peer);
                    }
                    let kept = script.lookup.candidates.len();
                    let bound = asked.len() + UNASKED_MAX.max(2 * K * PATHS_MAX);
                    prop_assert!(kept <= bound, "{kept} candidates");
                }
                Step::Done(verdict) => break verdict,
            }
        };
        prop_assert!(verdict.rpcs <= usize::from(settings.requests_max));
        prop_assert_eq!(verdict.rpcs, asked.len());
        prop_assert!(verdict.hops <= settings.hops_max);
        let closest = numbers(&verdict.closest);
        prop_assert!(closest.is_sorted() && closest.iter().all(|peer| answered.contains(peer)));
        prop_assert!(closest.len() >= answered.len().min(K), "an answer is missing");
        let mut losers: Vec<u16> = verdict.losers.iter().map(number).collect();
        losers.sort_unstable();
        out.sort_unstable();
        prop_assert_eq!(losers, out);
    }
}
