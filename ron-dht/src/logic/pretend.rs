//! A network of nodes that exist only as tables, and searches through it on a pretended clock.
//!
//! What is measured here is the search alone: who is asked, how far it gets, what silence and lies cost. The same seed
//! gives the same figures.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use ron_core::NodeId;

use super::{
    Contact, Key,
    estimate::SizeEstimate,
    lookup::{Failure, Goal, Lead, Lookup, LookupSettings, Reason, Step, Verdict},
    table::{self, BUCKETS, Bucket, Diversity, Entry, K},
};

const RPC_TIMEOUT: Duration = Duration::from_millis(1500);
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    /// Takes every question and never answers.
    Silent,
    /// Names peers next to the target that do not exist.
    Inventor,
    /// Names its accomplices and nobody else.
    Accomplice,
}

struct Node {
    id: NodeId,
    table: Vec<Bucket>,
    place: (f64, f64),
    manner: Manner,
}

struct Net {
    nodes: Vec<Node>,
    by_id: HashMap<NodeId, usize>,
    rng: fastrand::Rng,
    /// The share of messages that get lost.
    loss: f64,
}

/// One search and how long it took.
struct Run {
    verdict: Verdict,
    took: Duration,
    recall: f64,
}

impl Net {
    fn empty(seed: u64) -> Self {
        Net { nodes: Vec::new(), by_id: HashMap::new(), rng: fastrand::Rng::with_seed(seed), loss: 0.0 }
    }

    /// Every node knows k random peers of each bucket, as tables are after a long time.
    fn ideal(seed: u64, count: usize) -> Self {
        let mut net = Net::empty(seed);
        for _ in 0..count {
            let id = random_id(&mut net.rng);
            net.add(id, Manner::Honest);
        }
        net.fill_tables();
        net
    }

    /// Every node knows one other, looks for itself and then into each bucket, one node after the other.
    fn grown(seed: u64, count: usize) -> Self {
        let mut net = Net::empty(seed);
        for joining in 0..count {
            let id = random_id(&mut net.rng);
            net.add(id, Manner::Honest);
            if joining == 0 {
                continue;
            }
            let known = net.rng.usize(0..joining);
            net.meets(joining, known);
            let own = net.nodes[joining].id;
            net.search_and_learn(joining, Key::from(own));
            let deepest = (0..BUCKETS).rev().find(|index| !net.bucket(joining, *index).is_empty());
            for index in 0..deepest.unwrap_or(0) {
                let key = table::random_key_in(&own, index, &mut net.rng);
                net.search_and_learn(joining, key);
            }
        }
        net
    }

    fn add(&mut self, id: NodeId, manner: Manner) -> usize {
        let place = (self.rng.f64(), self.rng.f64());
        self.nodes.push(Node { id, table: vec![Bucket::new(); BUCKETS], place, manner });
        self.by_id.insert(id, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    fn fill_tables(&mut self) {
        let mut sorted: Vec<(NodeId, usize)> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        sorted.sort_unstable();
        for own in 0..self.nodes.len() {
            let id = self.nodes[own].id;
            for index in 0..BUCKETS {
                let run = |bits: u128| {
                    let start = sorted.partition_point(|(other, _)| cut(other, index) < bits);
                    let end = sorted.partition_point(|(other, _)| cut(other, index) <= bits);
                    &sorted[start..end]
                };
                let own_bits = cut(&id, index);
                // Everybody with our bits before `index` and the other one there.
                let mut peers: Vec<usize> = run(own_bits ^ 1).iter().map(|(_, at)| *at).collect();
                if peers.len() > K {
                    self.rng.shuffle(&mut peers);
                    peers.truncate(K);
                }
                let heard = |peer| Entry::heard(self.contact(peer), self.rtt(own, peer));
                self.nodes[own].table[index] = Bucket::of(peers.into_iter().map(heard).collect());
                if run(own_bits).len() == 1 {
                    break;
                }
            }
        }
    }

    fn bucket(&self, node: usize, index: usize) -> Arc<[Entry]> {
        self.nodes[node].table[index].snapshot()
    }

    fn contact(&self, node: usize) -> Contact {
        Contact { id: self.nodes[node].id, addrs: Arc::new([]) }
    }

    fn lead(&self, asker: usize, contact: Contact) -> Lead {
        let own = &self.nodes[asker].id;
        let known = table::bucket_index(own, &contact.id).and_then(|index| {
            self.bucket(asker, index).iter().find(|entry| entry.contact.id == contact.id).cloned()
        });
        known.map_or_else(|| Lead::from(contact), Lead::from)
    }

    fn closest(&self, node: usize, target: &Key) -> Vec<Entry> {
        let mut found = Vec::new();
        let bucket = |index| Some(self.bucket(node, index));
        let own = &self.nodes[node].id;
        table::visit_closest(own, target, K, BUCKETS, bucket, |entry: &Entry| found.push(entry.clone()));
        found
    }

    /// 10 ms next door, 200 ms across the world.
    fn rtt(&self, from: usize, to: usize) -> Duration {
        let ((ax, ay), (bx, by)) = (self.nodes[from].place, self.nodes[to].place);
        Duration::from_secs_f64(0.010 + 0.135 * (ax - bx).hypot(ay - by))
    }

    /// What `node` answers to a question for `target`.
    fn answer(&mut self, node: usize, target: &Key) -> Vec<Contact> {
        match self.nodes[node].manner {
            Manner::Inventor => {
                let invented = |_| {
                    let mut id = *target.as_bytes();
                    self.rng.fill(&mut id[8..]);
                    Contact { id: NodeId::from_bytes(id), addrs: Arc::new([]) }
                };
                (0..K).map(invented).collect()
            }
            Manner::Accomplice => {
                let mut gang: Vec<usize> =
                    (0..self.nodes.len()).filter(|at| self.nodes[*at].manner == Manner::Accomplice).collect();
                gang.sort_by_key(|at| target.distance(&self.nodes[*at].id));
                gang.into_iter().take(K).map(|at| self.contact(at)).collect()
            }
            Manner::Honest | Manner::Silent => {
                self.closest(node, target).into_iter().map(|entry| entry.contact).collect()
            }
        }
    }

    /// `one` got an answer of `other`, and because it asked, the other way round as well.
    fn meets(&mut self, one: usize, other: usize) {
        for (own, peer) in [(one, other), (other, one)] {
            let (contact, rtt) = (self.contact(peer), self.rtt(one, other));
            let index = table::bucket_index(&self.nodes[own].id, &contact.id).expect("two nodes");
            let address = [127, 0, 0, 1].into();
            self.nodes[own].table[index].on_answer(
                contact,
                address,
                rtt,
                &mut Diversity::unlimited(),
                Duration::ZERO,
            );
        }
    }

    fn search_and_learn(&mut self, asker: usize, target: Key) {
        let run = self.search(asker, target, LookupSettings::default());
        for asked in &run.verdict.trace {
            let peer = self.by_id[&asked.peer];
            self.meets(asker, peer);
        }
    }

    fn search(&mut self, asker: usize, target: Key, settings: LookupSettings) -> Run {
        let own = self.nodes[asker].id;
        let seeds = self.closest(asker, &target).into_iter().map(Lead::from);
        let mut lookup = Lookup::new(own, target, Goal::Closest, settings, seeds, DEADLINE);
        let mut now = Duration::ZERO;
        // What arrives when: an answer of a node, or the end of our patience with a name.
        let mut events: BinaryHeap<Reverse<(Duration, NodeId, Option<usize>)>> = BinaryHeap::new();
        let verdict = loop {
            match lookup.poll(now) {
                Step::Ask { contact, rtt, .. } => {
                    let timeout = now + rtt.timeout(RPC_TIMEOUT);
                    let event = match self.travel(asker, &contact.id) {
                        Some((peer, rtt)) if now + rtt < timeout => (now + rtt, contact.id, Some(peer)),
                        _ => (timeout, contact.id, None),
                    };
                    events.push(Reverse(event));
                }
                Step::Cancel(peer) => events.retain(|Reverse((_, name, _))| *name != peer),
                Step::Wait { until } => match events.peek() {
                    Some(Reverse((at, ..))) if *at <= until => {
                        let Reverse((at, name, peer)) = events.pop().expect("just seen");
                        now = at;
                        match peer {
                            Some(peer) => {
                                let named = self.answer(peer, &target);
                                let leads: Vec<Lead> =
                                    named.into_iter().map(|contact| self.lead(asker, contact)).collect();
                                lookup.on_answer(&name, leads, 0, now);
                            }
                            None => lookup.on_failure(&name, Failure::Timeout, now),
                        }
                    }
                    _ => {
                        assert!(until > now, "a wait that is over at once would spin");
                        now = until;
                    }
                },
                Step::Done(verdict) => break verdict,
            }
        };
        let recall = self.recall(asker, &target, &verdict.closest);
        Run { verdict, took: now, recall }
    }

    /// The node behind a name and how long its answer takes, unless nothing comes back.
    fn travel(&mut self, asker: usize, name: &NodeId) -> Option<(usize, Duration)> {
        let peer = *self.by_id.get(name)?;
        let lost = self.rng.f64() < self.loss;
        let slow = if self.rng.f64() < 0.01 { 3.0 } else { 0.9 + 0.2 * self.rng.f64() };
        let answers = self.nodes[peer].manner != Manner::Silent && !lost;
        answers.then(|| (peer, self.rtt(asker, peer).mul_f64(slow)))
    }

    /// The share of the k nodes nearest to `target` that answer, and are in `closest`.
    fn recall(&self, asker: usize, target: &Key, closest: &[Contact]) -> f64 {
        let truth = self.truth(asker, target, K);
        let got: HashSet<NodeId> = closest.iter().map(|contact| contact.id).collect();
        truth.iter().filter(|id| got.contains(id)).count() as f64 / truth.len() as f64
    }

    fn truth(&self, asker: usize, target: &Key, count: usize) -> Vec<NodeId> {
        let there = |(at, node): &(usize, &Node)| node.manner != Manner::Silent && *at != asker;
        let mut ids: Vec<_> = (self.nodes.iter().enumerate().filter(there))
            .map(|(_, node)| (target.distance(&node.id), node.id))
            .collect();
        ids.sort_unstable();
        ids.truncate(count);
        ids.into_iter().map(|(_, id)| id).collect()
    }

    fn misbehave(&mut self, share: f64, manner: Manner) {
        for at in 0..self.nodes.len() {
            if self.rng.f64() < share {
                self.nodes[at].manner = manner;
            }
        }
    }

    /// Random searches of random honest nodes. Which ones does not depend on how they go, so that two settings can be
    /// compared on the same ones.
    fn searches(&mut self, count: usize, settings: LookupSettings) -> Summary {
        let mut draw = self.rng.fork();
        let mut runs = Vec::with_capacity(count);
        while runs.len() < count {
            let asker = draw.usize(0..self.nodes.len());
            if self.nodes[asker].manner == Manner::Honest {
                let target = Key::from(random_id(&mut draw));
                runs.push(self.search(asker, target, settings));
            }
        }
        Summary::of(&runs)
    }
}

/// The first `index + 1` bits of an id, as far as random ids go.
fn cut(id: &NodeId, index: usize) -> u128 {
    let top = u128::from_be_bytes(*id.as_bytes().first_chunk().expect("32 bytes"));
    if index >= 127 { top } else { top >> (127 - index) }
}

fn random_id(rng: &mut fastrand::Rng) -> NodeId {
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    NodeId::from_bytes(bytes)
}

/// What many searches came to.
struct Summary {
    recall: f64,
    recall_min: f64,
    complete: f64,
    /// Here and below: the median, and what 95 and 99 of a hundred stay below.
    hops: [u8; 3],
    took_ms: [u128; 3],
    messages: f64,
    messages_max: usize,
}

impl Summary {
    fn of(runs: &[Run]) -> Self {
        let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        Summary {
            recall: mean(&|run| run.recall),
            recall_min: runs.iter().map(|run| run.recall).fold(1.0, f64::min),
            complete: mean(&|run| f64::from(u8::from(run.verdict.reason == Reason::Complete))),
            hops: quantiles(runs.iter().map(|run| run.verdict.hops).collect()),
            took_ms: quantiles(runs.iter().map(|run| run.took.as_millis()).collect()),
            messages: mean(&|run| run.verdict.rpcs as f64),
            messages_max: runs.iter().map(|run| run.verdict.rpcs).max().unwrap_or(0),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { recall, recall_min, complete, hops, took_ms, messages, messages_max } = self;
        write!(
            f,
            "recall {recall:.4} (least {recall_min:.2}), complete {complete:.4}, hops {hops:?}, \
             {took_ms:?} ms, {messages:.1} messages (most {messages_max})"
        )
    }
}

fn quantiles<T: Ord + Copy>(mut values: Vec<T>) -> [T; 3] {
    values.sort_unstable();
    [50, 95, 99].map(|percent| values[values.len() * percent / 100])
}

fn hedged() -> LookupSettings {
    LookupSettings::default()
}

fn unhedged() -> LookupSettings {
    LookupSettings { hedges: 0, ..hedged() }
}

fn with_paths(paths: usize) -> LookupSettings {
    LookupSettings { paths: paths.try_into().expect("not zero"), ..hedged() }
}

#[test]
fn the_nearest_are_found_in_few_hops() {
    let found = Net::ideal(1, 2000).searches(100, hedged());
    assert!(found.recall >= 0.99 && found.complete == 1.0, "{found}");
    assert!(found.hops[2] <= 5, "{found}");
}

#[test]
fn tables_that_grew_by_searching_find_as_well() {
    let found = Net::grown(2, 120).searches(100, hedged());
    assert!(found.recall >= 0.99 && found.complete == 1.0, "{found}");
    assert!(found.hops[2] <= 5, "{found}");
}

/// The same searches with and without: five in a hundred peers take every question and answer none.
#[test]
fn hedging_cuts_the_tail_by_half_for_less_than_a_tenth_more_messages() {
    let measure = |settings| {
        let mut net = Net::ideal(3, 1000);
        net.misbehave(0.05, Manner::Silent);
        net.searches(150, settings)
    };
    let (with, without) = (measure(hedged()), measure(unhedged()));
    assert!(with.took_ms[2] * 2 <= without.took_ms[2], "{with}, without: {without}");
    assert!(with.messages <= without.messages * 1.1, "{with}, without: {without}");
    assert!(with.recall + 0.01 >= without.recall, "{with}, without: {without}");
}

#[test]
fn one_message_in_ten_may_get_lost() {
    let mut net = Net::ideal(4, 1000);
    net.loss = 0.1;
    let found = net.searches(60, hedged());
    // Whoever's message was lost is missing, and nobody else.
    assert!(found.recall >= 0.85 && found.complete == 1.0, "{found}");
}

#[test]
fn liars_cost_messages_and_not_the_result() {
    for (manner, settings) in
        [(Manner::Inventor, hedged()), (Manner::Inventor, with_paths(4)), (Manner::Accomplice, with_paths(4))]
    {
        let mut net = Net::ideal(5, 1000);
        net.misbehave(0.2, manner);
        let found = net.searches(40, settings);
        assert!(found.recall >= 0.98 && found.messages_max <= 80, "{manner:?}: {found}");
    }
}

/// Twenty ids made to be the nearest to a key, each naming the others and nobody else, in everybody's table.
struct Siege {
    net: Net,
    key: Key,
    estimate: SizeEstimate,
}

impl Siege {
    fn new(seed: u64, nodes: usize) -> Self {
        let mut net = Net::ideal(seed, nodes);
        let mut estimate = SizeEstimate::new();
        for _ in 0..16 {
            let target = Key::from(random_id(&mut net.rng));
            let found = net.search(0, target, hedged()).verdict.closest;
            estimate.on_closest(&target, &ids(&found));
        }
        let key = Key::from(random_id(&mut net.rng));
        for _ in 0..20 {
            let mut id = *key.as_bytes();
            net.rng.fill(&mut id[8..]);
            net.add(NodeId::from_bytes(id), Manner::Accomplice);
        }
        net.fill_tables();
        Siege { net, key, estimate }
    }

    /// The share of the honest nearest that a plain search reaches, and that a search of the region does.
    fn reached(&mut self) -> (f64, f64) {
        let mut honest = self.net.truth(0, &self.key, 2 * K);
        honest.retain(|id| self.net.nodes[self.net.by_id[id]].manner == Manner::Honest);
        honest.truncate(K);
        let share = |found: &[NodeId]| {
            honest.iter().filter(|id| found.contains(id)).count() as f64 / honest.len() as f64
        };
        let plain = ids(&self.net.search(0, self.key, hedged()).verdict.closest);
        let Some(region) = self.estimate.too_dense(&self.key, &plain) else { return (share(&plain), 0.0) };
        let of_point = |point| ids(&self.net.search(0, point, hedged()).verdict.closest);
        let wide: Vec<NodeId> = region.points().flat_map(of_point).collect();
        (share(&plain), share(&wide))
    }
}

fn ids(contacts: &[Contact]) -> Vec<NodeId> {
    contacts.iter().map(|contact| contact.id).collect()
}

#[test]
fn a_besieged_key_is_noticed_and_its_region_still_reached() {
    let (plain, wide) = Siege::new(6, 600).reached();
    assert_eq!(plain, 0.0, "the siege is a real one");
    assert!(wide >= 0.9, "{wide}");
}

#[test]
#[ignore = "prints the figures of larger networks; minutes unless built with --release"]
fn figures() {
    for nodes in [2000, 10_000] {
        let mut net = Net::ideal(1, nodes);
        println!("{nodes} nodes: {}", net.searches(1000, hedged()));
        net.loss = 0.1;
        println!("0.1 lost: {}", net.searches(1000, hedged()));
        for share in [0.05, 0.2] {
            for (name, settings) in [("hedging", hedged()), ("no hedging", unhedged())] {
                let mut net = Net::ideal(2, nodes);
                net.misbehave(share, Manner::Silent);
                println!("{share} silent, {name}: {}", net.searches(1000, settings));
            }
        }
        for manner in [Manner::Inventor, Manner::Accomplice] {
            for paths in [1, 2, 4, 8] {
                let mut net = Net::ideal(3, nodes);
                net.misbehave(0.2, manner);
                println!("0.2 {manner:?}, {paths} paths: {}", net.searches(1000, with_paths(paths)));
            }
        }
    }
    println!("500 grown: {}", Net::grown(4, 500).searches(1000, hedged()));
    let (mut plain, mut wide) = (0.0, 0.0);
    for seed in 0..50 {
        let (plainly, widely) = Siege::new(seed, 2000).reached();
        plain += plainly / 50.0;
        wide += widely / 50.0;
    }
    println!("besieged keys, honest nearest reached: {plain:.3} plainly, {wide:.3} by region");
}
