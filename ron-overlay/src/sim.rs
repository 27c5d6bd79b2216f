//! Many nodes in one process, on a pretended network and a pretended clock.
//!
//! [`Swarm`] runs only what decides, on a queue of events: a thousand nodes and a minute of their time take seconds. What
//! it prints is what gossip is judged by: how much arrives, how many copies that takes, and how long.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    fmt,
    time::Duration,
};

use bytes::Bytes;
use ron_core::NodeId;

use crate::logic::{
    gossip::{Gossip, GossipSettings, Output, Verdict, Word},
    message::{Message, MessageId, TopicId},
    view::Contact,
};

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// The shortest and the longest way between two nodes, one way. Each pair has its own. Default 10 to 50 ms.
    pub latency: (Duration, Duration),
    /// How much longer a way can take than it usually does, as a share of it. Default 0.05. What is sent over one link
    /// arrives in order all the same.
    pub jitter: f64,
    /// The share of words of any kind that are lost. Default none.
    pub loss: f64,
    /// Whether the death of a node is told to its neighbours, as by the reset of a connection, or has to be noticed.
    /// Default noticed.
    pub is_death_told: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Conditions {
            latency: (Duration::from_millis(10), Duration::from_millis(50)),
            jitter: 0.05,
            loss: 0.0,
            is_death_told: false,
        }
    }
}

/// Many nodes on one topic.
pub struct Swarm {
    topic: TopicId,
    seed: u64,
    settings: GossipSettings,
    conditions: Conditions,
    rng: fastrand::Rng,
    now: Duration,
    order: u64,
    queue: BinaryHeap<Reverse<Event>>,
    nodes: Vec<Node>,
    numbers: HashMap<NodeId, usize>,
    /// When the last word on a link arrives, since links keep order.
    links: HashMap<(usize, usize), Duration>,
    messages: Vec<Sent>,
    by_id: HashMap<MessageId, usize>,
    words: u64,
    gaps: u64,
    trace: blake3::Hasher,
}

struct Node {
    gossip: Gossip,
    is_live: bool,
    is_hostile: bool,
    wakes_at: Option<Duration>,
}

struct Event {
    at: Duration,
    order: u64,
    what: What,
}

enum What {
    Wake(usize),
    Arrive { from: usize, to: usize, word: Box<Word> },
    Dead { who: usize, told: usize },
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One published message, and what became of it.
struct Sent {
    publisher: usize,
    at: Duration,
    /// The time in which flooding would have reached everybody over the links of that moment.
    flood: Duration,
    copies: u64,
    delivered: BTreeMap<usize, (Duration, u8)>,
}

/// What became of some messages.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// How many messages.
    pub messages: usize,
    /// Deliveries to live nodes as a share of all that there should be.
    pub delivery: f64,
    /// Copies per node beyond the first.
    pub rmr: f64,
    /// Links that a message had crossed at the node it reached last, the mean of all messages.
    pub last_hop: f64,
    /// The time until the last node had a message: half of them took less, 99 of 100, and all.
    pub last: [Duration; 3],
    /// The same for flooding over the same links, which nothing can beat: half took less.
    pub flood: Duration,
    /// What half of the messages took less than, as a multiple of flooding.
    pub stretch: f64,
    /// Words of all kinds per node and second.
    pub words: f64,
    /// Copies that were asked for after an announcement, and after a digest, as shares of deliveries.
    pub recovered: f64,
    /// Gaps told to subscribers.
    pub gaps: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = self.last.map(|last| last.as_millis());
        write!(
            f,
            "{} messages: delivery {:.4}, RMR {:.3}, last hop {:.1}, last delivery p50 {p50} ms, p99 {p99} ms, max {max} ms, \
             flood p50 {} ms, stretch p50 {:.2}, recovered {:.3}, {:.1} words per node and second, {} gaps",
            self.messages,
            self.delivery,
            self.rmr,
            self.last_hop,
            self.flood.as_millis(),
            self.stretch,
            self.recovered,
            self.words,
            self.gaps
        )
    }
}

impl Swarm {
    /// So many nodes that have joined one after another through two that were there before, and had time to settle.
    #[must_use]
    pub fn new(nodes: usize, settings: GossipSettings, conditions: Conditions, seed: u64) -> Self {
        let mut swarm = Swarm {
            topic: TopicId::of("swarm"),
            seed,
            settings,
            conditions,
            rng: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            order: 0,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            numbers: HashMap::new(),
            links: HashMap::new(),
            messages: Vec::new(),
            by_id: HashMap::new(),
            words: 0,
            gaps: 0,
            trace: blake3::Hasher::new(),
        };
        for _ in 0..nodes {
            swarm.join();
            swarm.run_for(Duration::from_millis(20));
        }
        swarm.run_for(Duration::from_secs(30));
        swarm
    }

    /// One more node joins through two that are there. Returns its number.
    pub fn join(&mut self) -> usize {
        let number = self.nodes.len();
        let contact = contact(number);
        let unix_ms = self.unix_ms();
        let seed = self.rng.u64(..);
        let gossip = Gossip::new(contact.clone(), self.settings, unix_ms, seed);
        self.numbers.insert(contact.id, number);
        self.nodes.push(Node { gossip, is_live: true, is_hostile: false, wakes_at: None });
        let live: Vec<usize> = self.live().filter(|live| *live != number).collect();
        if !live.is_empty() {
            let seeds: Vec<usize> = (0..2).map(|_| live[self.rng.usize(..live.len())]).collect();
            let now = self.now;
            self.nodes[number].gossip.join(seeds.into_iter().map(self::contact), now);
        }
        self.perform(number);
        number
    }

    /// From now on these take everything and pass nothing on: they claim to be next to every root, announce what they
    /// have, and send none of it.
    pub fn make_hostile(&mut self, nodes: impl IntoIterator<Item = usize>) {
        nodes.into_iter().for_each(|node| self.nodes[node].is_hostile = true);
    }

    /// This share of the nodes dies at once.
    pub fn kill(&mut self, share: f64) {
        let mut live: Vec<usize> = self.live().collect();
        self.rng.shuffle(&mut live);
        live.truncate((live.len() as f64 * share) as usize);
        for node in &live {
            self.nodes[*node].is_live = false;
        }
        if self.conditions.is_death_told {
            for who in live {
                let told: Vec<usize> =
                    self.nodes[who].gossip.neighbours().map(|peer| self.numbers[&peer.id]).collect();
                for told in told {
                    let at = self.now + self.way(who, told);
                    self.push(at, What::Dead { who, told });
                }
            }
        }
    }

    /// A node leaves in order.
    pub fn leave(&mut self, node: usize) {
        let now = self.now;
        self.nodes[node].gossip.leave(now);
        self.perform(node);
        self.nodes[node].is_live = false;
    }

    /// The nodes that live.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_live).map(|(number, _)| number)
    }

    /// A random node that lives and is honest.
    pub fn pick(&mut self) -> usize {
        let live: Vec<usize> = self.honest().collect();
        live[self.rng.usize(..live.len())]
    }

    /// A random node publishes. Returns the number of the message.
    pub fn publish_one(&mut self) -> usize {
        let node = self.pick();
        self.publish(node)
    }

    /// A node publishes. Returns the number of the message.
    pub fn publish(&mut self, node: usize) -> usize {
        let (now, number, unix_ms) = (self.now, self.messages.len(), self.unix_ms());
        let flood = self.flood_from(node);
        let gossip = &mut self.nodes[node].gossip;
        let payload = Bytes::copy_from_slice(&(number as u64).to_be_bytes());
        let message = Message::unsigned(&self.topic, gossip.next_serial(unix_ms), payload);
        self.by_id.insert(message.id(), number);
        gossip.publish(message, now);
        self.messages.push(Sent { publisher: node, at: now, flood, copies: 0, delivered: BTreeMap::new() });
        self.perform(node);
        number
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse(event)| event.at <= until) {
            let Some(Reverse(event)) = self.queue.pop() else { break };
            self.now = event.at;
            self.happen(event.what);
        }
        self.now = until;
    }

    /// What became of the messages from `first` on.
    #[must_use]
    pub fn report(&self, first: usize, since: Duration) -> Report {
        let messages = &self.messages[first..];
        let live: Vec<usize> = self.honest().collect();
        let (mut expected, mut delivered, mut copies, mut hops) = (0_u64, 0_u64, 0_u64, 0.0);
        let (mut last, mut flood, mut stretch) = (Vec::new(), Vec::new(), Vec::new());
        for sent in messages {
            let got: Vec<_> = live.iter().filter_map(|node| sent.delivered.get(node)).collect();
            expected += live.iter().filter(|node| **node != sent.publisher).count() as u64;
            delivered += got.len() as u64;
            copies += sent.copies;
            let Some((at, last_hop)) = got.iter().max() else { continue };
            hops += f64::from(*last_hop);
            last.push(*at);
            flood.push(sent.flood);
            stretch.push(at.as_secs_f64() / sent.flood.as_secs_f64());
        }
        last.sort();
        flood.sort();
        stretch.sort_by(f64::total_cmp);
        let at = |share: f64| last.get((last.len() as f64 * share) as usize).or(last.last()).copied();
        let counts = self.nodes.iter().map(|node| node.gossip.counts());
        let recovered: u64 = counts.map(|counts| counts.recovered + counts.repaired).sum();
        let all: usize = self.messages.iter().map(|sent| sent.delivered.len()).sum();
        let time = self.now.saturating_sub(since).as_secs_f64().max(0.001);
        Report {
            messages: messages.len(),
            delivery: delivered as f64 / expected.max(1) as f64,
            rmr: copies as f64 / delivered.max(1) as f64 - 1.0,
            last_hop: hops / messages.len().max(1) as f64,
            last: [at(0.5), at(0.99), last.last().copied()].map(Option::unwrap_or_default),
            flood: flood.get(flood.len() / 2).copied().unwrap_or_default(),
            stretch: stretch.get(stretch.len() / 2).copied().unwrap_or_default(),
            words: self.words as f64 / live.len().max(1) as f64 / time,
            recovered: recovered as f64 / all.max(1) as f64,
            gaps: self.gaps,
        }
    }

    /// Words are counted from here on.
    pub fn reset_words(&mut self) -> Duration {
        self.words = 0;
        self.now
    }

    /// The hash of everything that happened so far, in order and with its time.
    #[must_use]
    pub fn trace(&self) -> [u8; 32] {
        *self.trace.finalize().as_bytes()
    }

    /// How long one message took until each of these had it; nothing for those that do not.
    #[must_use]
    pub fn delivery_times(&self, message: usize) -> Vec<Option<Duration>> {
        let sent = &self.messages[message];
        let others = self.honest().filter(|node| *node != sent.publisher);
        others.map(|node| sent.delivered.get(&node).map(|(at, _)| *at)).collect()
    }

    /// Mean number of neighbours.
    #[must_use]
    pub fn degree(&self) -> f64 {
        let live: Vec<usize> = self.live().collect();
        let links: usize = live.iter().map(|node| self.nodes[*node].gossip.neighbours().count()).sum();
        links as f64 / live.len().max(1) as f64
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.now.as_millis() as u64
    }

    fn honest(&self) -> impl Iterator<Item = usize> {
        self.live().filter(|node| !self.nodes[*node].is_hostile)
    }

    fn happen(&mut self, what: What) {
        let now = self.now;
        match what {
            What::Wake(node) => {
                if self.nodes[node].wakes_at != Some(now) {
                    return;
                }
                self.nodes[node].wakes_at = None;
                if self.nodes[node].is_live {
                    self.nodes[node].gossip.on_tick(now);
                    self.perform(node);
                }
            }
            What::Arrive { from, to, word } => {
                if !self.nodes[to].is_live {
                    return;
                }
                self.note(from, to);
                if let Word::Push(pushed) = &*word {
                    if let Some(number) = self.by_id.get(&pushed.message.id()) {
                        self.messages[*number].copies += u64::from(!self.nodes[to].is_hostile);
                    }
                }
                self.nodes[to].gossip.on_word(id_of(from), *word, now);
                self.perform(to);
            }
            What::Dead { who, told } => {
                if self.nodes[told].is_live {
                    self.nodes[told].gossip.on_unreachable(id_of(who), now);
                    self.perform(told);
                }
            }
        }
    }

    /// Does what a node wants to happen.
    fn perform(&mut self, node: usize) {
        let now = self.now;
        while let Some(output) = self.nodes[node].gossip.poll() {
            match output {
                Output::Send { to, word } => self.depart(node, &to, word),
                Output::Check { message } => {
                    self.nodes[node].gossip.on_verdict(&message.id(), Verdict::Accept, now);
                }
                Output::Deliver { message, hops } => {
                    if let Some(number) = self.by_id.get(&message.id()) {
                        let sent = &mut self.messages[*number];
                        sent.delivered.insert(node, (now.saturating_sub(sent.at), hops));
                    }
                }
                Output::Gap(gap) => self.gaps += gap.count(),
                Output::Up(_) | Output::Down(_) | Output::Offence { .. } => {}
            }
        }
        let at = self.nodes[node].gossip.wake_at().max(now);
        if self.nodes[node].wakes_at.is_none_or(|wakes_at| at < wakes_at) {
            self.nodes[node].wakes_at = Some(at);
            self.push(at, What::Wake(node));
        }
    }

    fn depart(&mut self, from: usize, to: &Contact, mut word: Word) {
        self.words += 1;
        let Some(to) = self.numbers.get(&to.id).copied() else { return };
        if self.nodes[from].is_hostile {
            match &mut word {
                Word::Push(_) => return,
                Word::Beacons(beacons) => beacons.iter_mut().for_each(|beacon| beacon.distance = 1),
                _ => {}
            }
        }
        // Drawn in any case, so that one node's death does not change everybody's luck.
        let (late, luck) = (self.rng.f64(), self.rng.f64());
        if luck < self.conditions.loss {
            return;
        }
        let at = self.now + self.way(from, to).mul_f64(1.0 + late * self.conditions.jitter);
        let last = self.links.entry((from, to)).or_default();
        *last = at.max(*last);
        let at = *last;
        self.push(at, What::Arrive { from, to, word: Box::new(word) });
    }

    fn push(&mut self, at: Duration, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Event { at, order: self.order, what }));
    }

    fn note(&mut self, from: usize, to: usize) {
        let mut event = [0; 24];
        event[..8].copy_from_slice(&(self.now.as_micros() as u64).to_le_bytes());
        event[8..16].copy_from_slice(&(from as u64).to_le_bytes());
        event[16..].copy_from_slice(&(to as u64).to_le_bytes());
        self.trace.update(&event);
    }

    /// The usual way between two nodes.
    fn way(&self, one: usize, other: usize) -> Duration {
        let pair = (one.min(other) as u64) << 32 | one.max(other) as u64;
        let share = (mixed(self.seed ^ mixed(pair)) >> 11) as f64 / (1_u64 << 53) as f64;
        let (least, most) = self.conditions.latency;
        least + most.saturating_sub(least).mul_f64(share)
    }

    /// When flooding from `source` would have reached the last live honest node, over the links there are.
    fn flood_from(&self, source: usize) -> Duration {
        let mut reached = vec![None; self.nodes.len()];
        let mut queue = BinaryHeap::from([Reverse((Duration::ZERO, source))]);
        while let Some(Reverse((at, node))) = queue.pop() {
            if reached[node].is_some() {
                continue;
            }
            reached[node] = Some(at);
            for peer in self.nodes[node].gossip.neighbours() {
                let peer = self.numbers[&peer.id];
                let is_relay = self.nodes[peer].is_live && !self.nodes[peer].is_hostile;
                if is_relay && reached[peer].is_none() {
                    queue.push(Reverse((at + self.way(node, peer), peer)));
                }
            }
        }
        self.honest().filter_map(|node| reached[node]).max().unwrap_or_default()
    }
}

impl fmt::Debug for Swarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swarm")
            .field("nodes", &self.nodes.len())
            .field("now", &self.now)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

fn id_of(number: usize) -> NodeId {
    NodeId::of_public_key(blake3::hash(&(number as u64).to_le_bytes()).as_bytes())
}

fn contact(number: usize) -> Contact {
    Contact { id: id_of(number), addrs: [].into() }
}

/// The finalizer of SplitMix64: every bit of the input changes about half of the output's.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
