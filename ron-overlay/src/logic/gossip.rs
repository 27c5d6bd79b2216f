//! One node on one topic: what it does with every message, announcement and silence.
//!
//! A message is pushed over the links of its tree and announced over the others. Whoever hears an announcement waits for
//! as long as pushed messages usually take longer, and then asks. What slips through all of that, a digest exchanged with
//! a random neighbour or spare finds and fetches, and what even that does not find in time is told as a gap. So each
//! message costs about one copy per node, and no loss is silent.
//!
//! The machine decides and does nothing itself: whoever drives it feeds `on_*`, takes `poll` until there is nothing, and
//! comes back at `wake_at`. What it holds is bounded by its settings, whatever peers send.

mod own;
mod repair;
mod spread;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use ron_core::{NodeId, net::Identity};

use super::{
    message::{Message, MessageId, TopicId},
    publishers::{Gap, Publishers, Serial, Summary},
    seal::Seal,
    store::{Store, StoreSettings},
    trees::{Beacon, Believed, TreeSettings, Trees},
    view::{Contact, View, ViewMessage, ViewOutput, ViewSettings},
};
use own::Own;
use repair::{Lag, Missing};
use spread::Pace;

/// Names in one announcement or wish.
pub const IDS_MAX: usize = 256;

/// Trees in one announcement. Whoever publishes says which tree a message is on, so there may be any number of them.
pub const HAVE_TREES_MAX: usize = 32;

/// Publishers in one digest.
pub const SUMMARIES_MAX: usize = 64;

/// Numbers in one fetch.
pub const FETCH_MAX: usize = 64;

/// Beacons in one message.
pub const BEACONS_MAX: usize = 64;

/// The knobs of one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GossipSettings {
    /// Neighbours and spares.
    pub view: ViewSettings,
    /// Trees.
    pub trees: TreeSettings,
    /// What is remembered.
    pub store: StoreSettings,
    /// Copies of one message that are pushed at most; other links of its tree get an announcement. Default 8.
    pub relay_fanout: usize,
    /// Messages that one peer may be sent per second because it asked. Default 512.
    pub burst_budget_frames: u32,
    /// Links that a message may cross. Default 32.
    pub hops_max: u8,
    /// How long announcements wait for others to travel with. Default 20 ms, and up to five times that on a busy topic: they
    /// cost as much as messages do, and with a hundred messages a second and more there are always others to travel with.
    pub announce_after: Duration,
    /// The shortest and the longest wait for a message that was announced, before it is asked for. Between them the
    /// wait follows what was seen. Default 60 ms and 500 ms.
    pub want_after: (Duration, Duration),
    /// Messages at most that are known of and not here. Default 4096.
    pub missing_max: usize,
    /// Messages at most that wait for a verdict. Default 512.
    pub unchecked_max: usize,
    /// Bytes of them at most; one is taken however large. Default 32 MiB.
    pub unchecked_bytes: usize,
    /// How often a digest goes to a random peer, while there was a message in the last minute. Default 2 s.
    pub digest_every: Duration,
    /// How often neighbours are pinged. Default 2 s.
    pub ping_every: Duration,
    /// A neighbour that said nothing for this long is none any more. Default 7 s.
    pub silent_after: Duration,
    /// A hole in a publisher's sequence is told after this. Default 8 s, some digests.
    pub gap_after: Duration,
    /// Publishers whose sequence is followed. Default 1024.
    pub publishers: usize,
}

impl Default for GossipSettings {
    fn default() -> Self {
        GossipSettings {
            view: ViewSettings::default(),
            trees: TreeSettings::default(),
            store: StoreSettings::default(),
            relay_fanout: 8,
            burst_budget_frames: 512,
            hops_max: 32,
            announce_after: Duration::from_millis(20),
            want_after: (Duration::from_millis(60), Duration::from_millis(500)),
            missing_max: 4096,
            unchecked_max: 512,
            unchecked_bytes: 32 << 20,
            digest_every: Duration::from_secs(2),
            ping_every: Duration::from_secs(2),
            silent_after: Duration::from_secs(7),
            gap_after: Duration::from_secs(8),
            publishers: 1024,
        }
    }
}

/// A message on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Whose tree it travels on.
    pub tree: NodeId,
    /// Links that it has crossed.
    pub hops: u8,
    /// Whether it was asked for by a digest: then most have it, and it is only announced onwards.
    pub is_repair: bool,
    /// The message.
    pub message: Message,
}

/// What nodes tell each other about one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// About neighbours.
    View(ViewMessage),
    /// About trees.
    Beacons(Vec<Beacon>),
    /// A message.
    Push(Pushed),
    /// These are here, by the tree that they came on.
    Have(Vec<(NodeId, Vec<MessageId>)>),
    /// Send me these.
    Want(Vec<MessageId>),
    /// What is here of whom.
    Digest(Vec<Summary>),
    /// Send me these numbers of a publisher.
    Fetch {
        /// Whose.
        publisher: NodeId,
        /// When it began.
        since: u64,
        /// Which.
        seqs: Vec<u64>,
    },
    /// Are you there?
    Ping(u32),
    /// Yes.
    Pong(u32),
}

/// Which queue a word waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Few and small, and what keeps the network together.
    Control,
    /// Messages on their first way.
    Gossip,
    /// Messages that somebody asked for, and all that can wait.
    Bulk,
}

impl Word {
    /// Which queue it waits in.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Word::Push(Pushed { is_repair: true, .. }) => Class::Bulk,
            Word::Push(_) => Class::Gossip,
            _ => Class::Control,
        }
    }
}

/// What a peer did that it should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offence {
    /// Sent a message that is not what it says, or that the host rejects.
    Invalid,
    /// Announced what it then did not send.
    Late,
    /// Was a neighbour and said nothing.
    Silent,
    /// Sent or asked for more than anybody needs.
    Spam,
    /// Wanted to be our neighbour on more topics than one peer may be.
    Greedy,
}

/// What the host thinks of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Good: it is delivered and relayed.
    Accept,
    /// Bad, and whoever relayed it should have known.
    Reject {
        /// Whether its publisher is known to have said it: then its number is used up, and no hole.
        is_proven: bool,
    },
    /// Not for us: neither delivered nor relayed, and nobody's fault.
    Ignore,
    /// Its signature is wrong. Another copy of the same name may be right.
    Forged,
    /// There was no time to look at it. It may come again.
    Shed,
}

/// What the machine wants to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this.
    Send {
        /// To whom.
        to: Contact,
        /// What.
        word: Word,
    },
    /// Look at this message and say what you think with [`Gossip::on_verdict`].
    Check {
        /// The message.
        message: Message,
    },
    /// A message for the subscribers.
    Deliver {
        /// The message.
        message: Message,
        /// Links that it has crossed.
        hops: u8,
    },
    /// Messages that did not come.
    Gap(Gap),
    /// A new neighbour.
    Up(NodeId),
    /// A neighbour is none any more.
    Down(NodeId),
    /// A peer did what it should not.
    Offence {
        /// Who.
        peer: NodeId,
        /// What.
        offence: Offence,
    },
}

/// What was counted, for metrics and simulations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that came, first copies and others.
    pub received: u64,
    /// Copies of what was here already.
    pub duplicates: u64,
    /// First copies that had to be asked for after an announcement.
    pub recovered: u64,
    /// First copies that a digest found.
    pub repaired: u64,
    /// Messages that could not wait for a verdict.
    pub unchecked_shed: u64,
    /// Messages that had crossed too many links, or were too old.
    pub stale: u64,
    /// Messages not sent because whoever asked had asked too much.
    pub over_budget: u64,
    /// Announcements not made because too many waited for a neighbour.
    pub unannounced: u64,
    /// Announcements not followed because their sender has announced too much that is not here.
    pub unfollowed: u64,
    /// Words about trees that were not what their root says, or too many to look at.
    pub beacons_refused: u64,
}

/// One node on one topic.
#[derive(Debug)]
pub struct Gossip {
    me: NodeId,
    settings: GossipSettings,
    rng: fastrand::Rng,
    view: View,
    trees: Trees,
    publishers: Publishers,
    store: Store,
    links: BTreeMap<NodeId, Link>,
    unchecked: HashMap<MessageId, Unchecked>,
    unchecked_bytes: usize,
    missing: HashMap<MessageId, Missing>,
    /// When each of them is asked for, in the order in which they were announced: what comes in order leaves no holes.
    due: BTreeSet<(Duration, u64, MessageId)>,
    announced: u64,
    /// Those that were asked for and came, to learn whether we should have waited.
    recovered: VecDeque<(MessageId, Duration, NodeId)>,
    lag: Lag,
    announce_at: Option<Duration>,
    pace: Pace,
    ping_at: Duration,
    digest_at: Duration,
    last_message: Option<Duration>,
    budgets: BTreeMap<NodeId, Budget>,
    own: Own,
    counts: Counts,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Link {
    heard_at: Duration,
    pinged: Option<(u32, Duration)>,
    /// Smoothed round trip, and when it was last measured.
    rtt: Option<Duration>,
    measured_at: Duration,
    /// What it is to be told, by tree.
    announce: Vec<(NodeId, MessageId)>,
    /// Messages that are missing and that it was the first to announce.
    wanted: usize,
}

impl Link {
    /// Whether it is to be pinged: it was not heard since the last time, or its round trip was not measured for a while.
    /// Both ends ping, and whoever was just pinged knows that the other is there.
    fn is_due(&self, now: Duration, every: Duration) -> bool {
        let is_quiet = self.heard_at + every / 2 <= now;
        let measured = self.pinged.map_or(self.measured_at, |(_, at)| at.max(self.measured_at));
        is_quiet || measured + every * MEASURE_ONE_IN <= now
    }
}

/// A link is measured in one of so many rounds of pings, however much is said on it.
const MEASURE_ONE_IN: u32 = 4;

/// What a peer may still be sent because it asked.
#[derive(Debug, Clone, Copy)]
struct Budget {
    frames: u32,
    until: Duration,
}

/// A message that waits for a verdict.
#[derive(Debug)]
struct Unchecked {
    since: Duration,
    from: NodeId,
    pushed: Pushed,
    /// Others that have sent or announced it meanwhile.
    holders: Vec<NodeId>,
}

/// A verdict that has not come after this will not.
const VERDICT_LOST: Duration = Duration::from_secs(60);

/// Peers whose budgets are remembered. Neighbours find room among them whoever else asks.
const BUDGETS_MAX: usize = 256;

/// After the last message, digests go on for this long.
const DIGEST_FOR: Duration = Duration::from_secs(60);

impl Gossip {
    /// A node that knows nobody. `unix_ms` is the time of its beginning.
    #[must_use]
    pub fn new(me: Contact, settings: GossipSettings, unix_ms: u64, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Rounds are counted in seconds at most, so a later beginning is above all that came before it.
        let first_round = (unix_ms / 1000) as u32;
        let ping_at = settings.ping_every.mul_f64(rng.f64());
        let digest_at = settings.digest_every.mul_f64(1.0 + rng.f64());
        Gossip {
            me: me.id,
            settings,
            view: View::new(me.clone(), settings.view, rng.fork()),
            trees: Trees::new(me.id, settings.trees, first_round),
            publishers: Publishers::new(settings.publishers, settings.gap_after, unix_ms),
            store: Store::new(settings.store),
            rng,
            links: BTreeMap::new(),
            unchecked: HashMap::new(),
            unchecked_bytes: 0,
            missing: HashMap::new(),
            due: BTreeSet::new(),
            announced: 0,
            recovered: VecDeque::new(),
            lag: Lag::default(),
            announce_at: None,
            pace: Pace::default(),
            ping_at,
            digest_at,
            last_message: None,
            budgets: BTreeMap::new(),
            own: Own::new(unix_ms),
            counts: Counts::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Believes only what roots have signed about their trees, and signs as one.
    #[must_use]
    pub fn sealed(mut self, identity: Identity, topic: TopicId) -> Self {
        self.trees.set_seal(Seal::Signed { identity, topic });
        self
    }

    /// Enters the topic through these.
    pub fn join(&mut self, contacts: impl IntoIterator<Item = Contact>, now: Duration) {
        self.view.join(contacts, now);
        self.drain_view(now);
    }

    /// Leaves: neighbours are told, and whom to turn to instead.
    pub fn leave(&mut self, now: Duration) {
        self.announce();
        self.trees.resign(now);
        self.tell_trees(now + self.settings.trees.gather);
        self.view.leave();
        self.drain_view(now);
    }

    /// The next number of ours, for whoever makes our messages. They are counted from the time of the first, so that
    /// whoever was there before it knows that it is owed all of them.
    #[must_use]
    pub fn next_serial(&self, unix_ms: u64) -> Serial {
        let (since, seq) = self.own.next(unix_ms);
        Serial { publisher: self.me, since, seq }
    }

    /// Over which links a message of ours would be pushed now. Whoever cannot send it there should not publish it.
    #[must_use]
    pub fn publish_links(&self, now: Duration) -> Vec<NodeId> {
        let tree = self.trees.choose(now).unwrap_or(self.me);
        let eager = self.links.keys().filter(|peer| self.trees.is_eager(&tree, peer, now));
        eager.take(self.settings.relay_fanout).copied().collect()
    }

    /// Other bounds for what one message may cause, from now on.
    pub fn set_budgets(&mut self, relay_fanout: usize, burst_budget_frames: u32) {
        self.settings.relay_fanout = relay_fanout;
        self.settings.burst_budget_frames = burst_budget_frames;
    }

    /// Where others are told from now on that this node is.
    pub fn set_addrs(&mut self, me: &Contact) {
        self.view.set_addrs(me);
    }

    /// Whether this is a neighbour.
    #[must_use]
    pub fn is_neighbour(&self, peer: &NodeId) -> bool {
        self.links.contains_key(peer)
    }

    /// A word came from `from`, whom the link has proven.
    pub fn on_word(&mut self, from: NodeId, word: Word, now: Duration) {
        if let Some(link) = self.links.get_mut(&from) {
            link.heard_at = now;
        }
        match word {
            Word::View(message) => {
                self.view.on_message(from, message, now);
                self.drain_view(now);
            }
            Word::Push(pushed) => self.on_push(from, pushed, now),
            Word::Want(ids) => self.on_want(from, &ids, now),
            Word::Digest(theirs) => self.on_digest(from, &theirs, now),
            Word::Fetch { publisher, since, seqs } => self.on_fetch(from, publisher, since, &seqs, now),
            Word::Pong(nonce) => self.on_pong(from, nonce, now),
            Word::Beacons(_) | Word::Have(_) | Word::Ping(_) if !self.links.contains_key(&from) => {
                // It takes us for a neighbour, which we are not, or not yet.
                if !self.view.is_asking(&from) {
                    let part = ViewMessage::Part { is_leaving: false, instead: Vec::new() };
                    self.send(from, Word::View(part));
                }
            }
            Word::Beacons(beacons) => {
                for beacon in beacons.into_iter().take(BEACONS_MAX) {
                    let offence = match self.trees.on_beacon(from, beacon, now) {
                        Believed::Yes => continue,
                        Believed::Forged => Offence::Invalid,
                        Believed::TooMany => Offence::Spam,
                    };
                    // The rest of what it says is not looked at.
                    self.counts.beacons_refused += 1;
                    self.offend(from, offence);
                    break;
                }
            }
            Word::Have(haves) => self.on_have(from, haves, now),
            Word::Ping(nonce) => self.send(from, Word::Pong(nonce)),
        }
    }

    /// A peer cannot be reached, or its link has ended.
    pub fn on_unreachable(&mut self, peer: NodeId, now: Duration) {
        self.view.on_unreachable(peer, now);
        self.drain_view(now);
    }

    /// A peer behaves too badly to be a neighbour until then.
    pub fn ban(&mut self, peer: NodeId, until: Duration, now: Duration) {
        self.view.ban(peer, until, now);
        self.drain_view(now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Duration) {
        self.view.on_tick(now);
        self.drain_view(now);
        self.tell_trees(now);
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce();
        }
        self.ask_for_missing(now);
        if self.ping_at <= now {
            self.ping(now);
        }
        if self.digest_at <= now {
            self.digest(now);
        }
        self.publishers.on_tick(now);
        self.drain_gaps();
    }

    /// When the machine next cares about the time.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let due = self.due.first().map(|(at, ..)| *at);
        let sooner = [self.trees.wake_at(), self.announce_at, due, self.publishers.wake_at()];
        let always = self.view.wake_at().min(self.ping_at).min(self.digest_at);
        sooner.into_iter().flatten().fold(always, Duration::min)
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = &Contact> {
        self.view.neighbours()
    }

    /// The spares.
    pub fn spares(&self) -> impl Iterator<Item = &Contact> {
        self.view.spares()
    }

    /// The trees.
    #[must_use]
    pub fn trees(&self) -> &Trees {
        &self.trees
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of messages that are kept for others.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.store.bytes()
    }

    fn drain_view(&mut self, now: Duration) {
        while let Some(output) = self.view.poll() {
            match output {
                ViewOutput::Send { to, message } => {
                    self.outputs.push_back(Output::Send { to, word: Word::View(message) });
                }
                ViewOutput::Up(peer) => {
                    let link = Link {
                        heard_at: now,
                        pinged: None,
                        rtt: None,
                        measured_at: now,
                        announce: Vec::new(),
                        wanted: 0,
                    };
                    self.links.insert(peer, link);
                    self.trees.on_link_up(peer, now);
                    self.ping_one(peer, now);
                    // It may have been cut off while something was said, or have begun again with a clock that is behind
                    // what it began with before.
                    let latest = self.publishers.latest(&peer, SUMMARIES_MAX);
                    if !latest.is_empty() {
                        self.send(peer, Word::Digest(latest));
                    }
                    self.outputs.push_back(Output::Up(peer));
                }
                ViewOutput::Down(peer) => {
                    self.links.remove(&peer);
                    self.trees.on_link_down(peer, now);
                    self.outputs.push_back(Output::Down(peer));
                }
            }
        }
    }

    fn tell_trees(&mut self, now: Duration) {
        for (to, beacons) in self.trees.on_tick(now) {
            for part in beacons.chunks(BEACONS_MAX) {
                self.send(to, Word::Beacons(part.to_vec()));
            }
        }
    }

    fn drain_gaps(&mut self) {
        while let Some(gap) = self.publishers.poll() {
            self.outputs.push_back(Output::Gap(gap));
        }
    }

    fn ping(&mut self, now: Duration) {
        self.ping_at = now + self.settings.ping_every.mul_f64(0.9 + self.rng.f64() / 5.0);
        let peers: Vec<NodeId> = self.links.keys().copied().collect();
        for peer in peers {
            let is_silent = self.links[&peer].heard_at + self.settings.silent_after <= now;
            if is_silent {
                self.offend(peer, Offence::Silent);
                self.on_unreachable(peer, now);
            } else if self.links[&peer].is_due(now, self.settings.ping_every) {
                self.ping_one(peer, now);
            }
        }
    }

    fn ping_one(&mut self, peer: NodeId, now: Duration) {
        let nonce = self.rng.u32(..);
        if let Some(link) = self.links.get_mut(&peer) {
            link.pinged = Some((nonce, now));
            self.send(peer, Word::Ping(nonce));
        }
    }

    fn on_pong(&mut self, from: NodeId, nonce: u32, now: Duration) {
        let Some(link) = self.links.get_mut(&from) else { return };
        let Some((_, at)) = link.pinged.take_if(|(asked, _)| *asked == nonce) else { return };
        let sample = now.saturating_sub(at);
        let rtt = link.rtt.map_or(sample, |rtt| (rtt * 3 + sample) / 4);
        (link.rtt, link.measured_at) = (Some(rtt), now);
        self.trees.on_link_cost(from, rtt / 2);
    }

    /// Whether `peer` may be sent one more message because it asked for it.
    fn may_send(&mut self, peer: NodeId, now: Duration) -> bool {
        if !self.budgets.contains_key(&peer) && self.budgets.len() >= BUDGETS_MAX {
            self.budgets.retain(|_, budget| budget.until > now);
            if self.budgets.len() >= BUDGETS_MAX && !self.crowd_out_stranger(&peer) {
                self.counts.over_budget += 1;
                return false;
            }
        }
        let whole = Budget { frames: self.settings.burst_budget_frames, until: now + Duration::from_secs(1) };
        let budget = self.budgets.entry(peer).or_insert(whole);
        if budget.until <= now {
            *budget = whole;
        }
        if budget.frames == 0 {
            self.counts.over_budget += 1;
            return false;
        }
        budget.frames -= 1;
        true
    }

    /// Makes room for a neighbour's budget: strangers may be many and yet one and the same.
    fn crowd_out_stranger(&mut self, peer: &NodeId) -> bool {
        let stranger = self.budgets.keys().find(|known| !self.links.contains_key(known)).copied();
        self.links.contains_key(peer) && stranger.and_then(|known| self.budgets.remove(&known)).is_some()
    }

    fn offend(&mut self, peer: NodeId, offence: Offence) {
        self.outputs.push_back(Output::Offence { peer, offence });
    }

    fn send(&mut self, to: NodeId, word: Word) {
        let contact = self.view.contact(&to).cloned();
        // Whom the view does not know has a link to us, or could not have asked.
        let to = contact.unwrap_or_else(|| Contact { id: to, addrs: [].into() });
        self.outputs.push_back(Output::Send { to, word });
    }
}
