//! What to repair next: who has what, who wants what, who is there, and the difference.
//!
//! Every node plans for the objects whose claims it knows, from its own view, and does only what falls to itself. Of those
//! who could restore something, the one with the best score acts at once and each next one only if it is still missing some
//! time later; so without anybody in charge it is done once, and a leader that is stuck holds nothing up. Views may differ:
//! doing something twice costs bytes, and nothing is deleted on the word of this machine alone. It only proposes to trim;
//! what makes that safe is in [`promises`](super::promises).
//!
//! An object has one job at a time. Whatever is heard about it is weighed again, and nothing else is: a tick without news
//! costs nothing.

mod judging;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::{ContentId, NodeId};

use super::{
    claims::Standing,
    place::{Candidate, place},
};

/// Objects that are weighed before the next job is handed out, so that news about all of them never holds up the first.
const WEIGHED_MAX: usize = 1024;

/// Longest pause before something that failed is tried again, as a multiple of the first.
const RETRIES_LONGEST: u32 = 64;

/// How long a node that declined an object is not asked again.
const DECLINED: Duration = Duration::from_secs(600);

/// How often in a row a node may be stuck with an object before it counts as one that declined it. With the pauses in between that is
/// longer than it takes to notice that a node is away, which is waited for; the last copy does not wait for that either.
const STUCK_MAX: u32 = 6;
const STUCK_URGENT_MAX: u32 = 3;

/// Whether a node is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// It is.
    Up,
    /// It is, and will go: it is given nothing new, and what it has is copied elsewhere.
    Draining,
    /// It is not. What it has counts until its grace is over.
    Away,
}

/// A node that keeps objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Who.
    pub id: NodeId,
    /// What fails together with it.
    pub zone: u64,
    /// How much it takes compared with others.
    pub weight: u32,
    /// Whether it is there.
    pub presence: Presence,
    /// Whether what it keeps survives its restart. If not, its copies can be read, and never count.
    pub is_durable: bool,
}

/// What is known of a piece, an object or one of its shards, on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// It is there and can be read.
    Good,
    /// It is damaged.
    Bad,
    /// It is not there.
    Absent,
}

/// What is known of an object's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// What they say together.
    pub standing: Standing,
    /// For each of the codings that are wanted, the names of its shards.
    pub shards: Vec<Vec<ContentId>>,
}

/// What decides how soon something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanSettings {
    /// How long what a node has counts after it went away.
    pub grace: Duration,
    /// How long the next one in line waits before it does what the one before it should have done.
    pub takeover: Duration,
    /// How long to wait after a failure; twice as long after each next one.
    pub retry: Duration,
}

impl Default for PlanSettings {
    fn default() -> Self {
        PlanSettings {
            grace: Duration::from_secs(900),
            takeover: Duration::from_secs(300),
            retry: Duration::from_secs(5),
        }
    }
}

/// How much something matters; the first come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The next loss is the last. Never shed.
    Urgent,
    /// Copies are missing.
    Copies,
    /// Shards are missing.
    Parity,
    /// What nobody wants any more is still here.
    Drop,
    /// Something belongs elsewhere.
    Move,
    /// Something is here that others have.
    Trim,
}

impl Class {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Urgent => "urgent",
            Class::Copies => "copies",
            Class::Parity => "parity",
            Class::Drop => "drop",
            Class::Move => "move",
            Class::Trim => "trim",
        }
    }
}

/// What this node should do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Give a piece that is here to another node.
    Copy {
        /// What.
        piece: ContentId,
        /// To whom.
        to: NodeId,
    },
    /// Make shards that are missing, out of the object if it is here and else out of other shards, and give them to others.
    Rebuild {
        /// What says which shards there are. By the time that this is done, the object may be wanted in another coding.
        manifest: ContentId,
        /// Which shards, each with who gets it.
        missing: Vec<(u8, NodeId)>,
        /// Who has which of the shards that can be read.
        sources: Vec<(u8, NodeId)>,
        /// Whether the whole object is here.
        is_whole: bool,
    },
    /// Put the object together out of shards, and keep it.
    Restore {
        /// What says which shards there are.
        manifest: ContentId,
        /// Who has which of the shards that can be read.
        sources: Vec<(u8, NodeId)>,
    },
    /// Put the object together out of shards of a coding that nobody wants any more, if enough are to be had, and keep it.
    Recover,
    /// Delete a piece that is here, if all of these nodes prove that they have theirs and promise to keep it.
    Trim {
        /// What.
        piece: ContentId,
        /// Who has to prove what.
        provers: Vec<(ContentId, NodeId)>,
    },
    /// Delete pieces that are here, because the object is deleted.
    Drop {
        /// Which.
        pieces: Vec<ContentId>,
    },
}

/// A job, and how much it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The object that it is about.
    pub object: ContentId,
    /// The object's length.
    pub len: u64,
    /// How much it matters.
    pub class: Class,
    /// What to do.
    pub job: Job,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, or there was nothing to do.
    Done,
    /// It did not work. It is tried again later.
    Failed,
    /// It did not work because of this node, which may take it the next time. If that fails often, another one is asked.
    Stuck(NodeId),
    /// A node does not take it.
    Declined(NodeId),
    /// It was not begun: there was no room. It is handed out again at the next tick.
    Skipped,
}

/// How an object is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It is what its policy asks for.
    Met,
    /// Something is missing.
    Under,
    /// The next loss is the last.
    Urgent,
    /// Too little of it is left, also with the nodes that are away.
    Lost,
    /// Nobody wants it.
    Deleted,
}

impl Health {
    /// All of them.
    pub const ALL: [Health; 5] = [Health::Met, Health::Under, Health::Urgent, Health::Lost, Health::Deleted];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Health::Met => "met",
            Health::Under => "under",
            Health::Urgent => "urgent",
            Health::Lost => "lost",
            Health::Deleted => "deleted",
        }
    }
}

/// Something that hosts want to hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// An object cannot be restored from anything that is known.
    Lost(ContentId),
    /// One that was lost can be read again.
    Found(ContentId),
}

#[derive(Debug, Clone)]
struct Known {
    node: Node,
    /// When it went away.
    away_since: Option<Duration>,
    /// Whether its grace is over.
    is_given_up: bool,
    /// Whether it was ever compared with. If not and it is away, it may have whatever belongs on it.
    is_compared: bool,
    /// Until when it has to stay before anything is moved to it or trimmed on its account: as long as it was away.
    steady_at: Duration,
}

#[derive(Debug, Clone)]
struct Thing {
    claimed: Claimed,
    /// Shards of codings that are no longer wanted, and manifests, that are still here.
    old: Vec<ContentId>,
    /// Whole copies, as its policy counts them, if it wants any.
    copies: Option<usize>,
    health: Health,
    /// Since when there is something to do.
    due_since: Option<Duration>,
    /// When it may be tried again, and how often it failed.
    retry_at: Duration,
    failures: u32,
    /// How much mattered what has to wait until then, if not everything has to: what matters more does not.
    waits: Option<Class>,
    declined: Vec<(NodeId, Duration)>,
    running: Option<Class>,
    queued: Option<(Class, u8)>,
    wake: Option<Duration>,
}

/// A piece of something that is claimed. There are ten of these for each object in shards, with a holder and an object each, so
/// these are lists that take what they need and not trees, whose first leaf takes half a kibibyte.
#[derive(Debug, Clone, Default)]
struct Piece {
    holders: Vec<(NodeId, Holding)>,
    /// The objects that it is, or is a shard of.
    of: Vec<ContentId>,
}

impl Piece {
    fn on(&self, node: &NodeId) -> Option<Holding> {
        self.holders.iter().find(|(id, _)| id == node).map(|(_, held)| *held)
    }

    /// Says what was known before.
    fn set(&mut self, node: NodeId, holding: Holding) -> Holding {
        let at = self.holders.iter().position(|(id, _)| *id == node);
        match (at, holding) {
            (Some(at), Holding::Absent) => self.holders.swap_remove(at).1,
            (Some(at), holding) => std::mem::replace(&mut self.holders[at].1, holding),
            (None, Holding::Absent) => Holding::Absent,
            (None, holding) => {
                self.holders.reserve_exact(1);
                self.holders.push((node, holding));
                Holding::Absent
            }
        }
    }

    fn belongs_to(&mut self, object: ContentId) {
        if !self.of.contains(&object) {
            self.of.reserve_exact(1);
            self.of.push(object);
        }
    }
}

/// The planner of one node.
#[derive(Debug, Clone)]
pub struct Plan {
    me: NodeId,
    settings: PlanSettings,
    nodes: BTreeMap<NodeId, Known>,
    candidates: Vec<Candidate>,
    things: BTreeMap<ContentId, Thing>,
    pieces: BTreeMap<ContentId, Piece>,
    held: BTreeMap<NodeId, BTreeSet<ContentId>>,
    dirty: BTreeSet<ContentId>,
    /// What is not as it should be: weighed again whenever a node goes.
    unsettled: BTreeSet<ContentId>,
    queue: BTreeSet<(Class, u8, ContentId)>,
    timers: BTreeSet<(Duration, ContentId)>,
    news: Vec<News>,
    counts: BTreeMap<Health, usize>,
    /// How many objects have how many copies, of those that want some.
    rf: BTreeMap<usize, usize>,
}

impl Plan {
    /// The planner of the node `me`.
    #[must_use]
    pub fn new(me: NodeId, settings: PlanSettings) -> Self {
        Plan {
            me,
            settings,
            nodes: BTreeMap::new(),
            candidates: Vec::new(),
            things: BTreeMap::new(),
            pieces: BTreeMap::new(),
            held: BTreeMap::new(),
            dirty: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            queue: BTreeSet::new(),
            timers: BTreeSet::new(),
            news: Vec::new(),
            counts: BTreeMap::new(),
            rf: BTreeMap::new(),
        }
    }

    /// Other settings from now on. What is due is weighed again when something is heard of it, or its time comes.
    pub fn set_settings(&mut self, settings: PlanSettings) {
        self.settings = settings;
        self.dirty.extend(&self.unsettled);
    }

    /// Replaces what is known of who is there. A node that is not in the list any more is gone, and what it had with it.
    pub fn on_nodes(&mut self, nodes: &[Node], now: Duration) {
        let gone: Vec<_> =
            self.nodes.keys().filter(|id| !nodes.iter().any(|node| node.id == **id)).copied().collect();
        for id in gone {
            self.nodes.remove(&id);
            for piece in self.held.remove(&id).unwrap_or_default() {
                self.touch(&piece);
                if let Some(known) = self.pieces.get_mut(&piece) {
                    known.set(id, Holding::Absent);
                }
            }
        }
        let grace = self.settings.grace;
        for node in nodes {
            let known = self.nodes.get(&node.id);
            // Who does not answer does not say either that it forgets: what it said last counts.
            let is_durable = match (known, node.presence) {
                (Some(known), Presence::Away) => known.node.is_durable,
                _ => node.is_durable,
            };
            let node = Node { is_durable, ..*node };
            if known.is_some_and(|known| known.node == node) {
                continue;
            }
            let (was_away, before) = match known {
                Some(known) => (known.away_since, known.steady_at),
                None => (None, Duration::ZERO),
            };
            let (away_since, steady_at) = match (node.presence, was_away) {
                (Presence::Away, Some(since)) => (Some(since), before),
                // What it has not made up for since it was last away counts: who comes and goes is given up, too.
                (Presence::Away, None) => {
                    (Some(now.saturating_sub(before.saturating_sub(now))), Duration::ZERO)
                }
                (_, Some(since)) => (None, now + now.saturating_sub(since).min(grace)),
                (_, None) => (None, before),
            };
            let had_gone =
                known.is_some_and(|known| known.is_given_up || known.node.presence == Presence::Draining);
            // Who said that it would go, and went, is not waited for.
            let is_given_up = away_since.is_some_and(|since| had_gone || now >= since + grace);
            let is_compared = known.is_some_and(|known| known.is_compared);
            self.nodes.insert(node.id, Known { node, away_since, is_given_up, is_compared, steady_at });
            self.touch_held(&node.id);
            // It may be what something waits for.
            self.dirty.extend(&self.unsettled);
        }
        self.weigh_candidates();
    }

    /// Who may be given something. If somebody new is among them, everything is weighed again; if somebody is missing, what it
    /// has and what was not settled.
    fn weigh_candidates(&mut self) {
        let is_one = |known: &&Known| {
            known.node.is_durable && known.node.presence != Presence::Draining && !known.is_given_up
        };
        let of =
            |known: &Known| Candidate { id: known.node.id, zone: known.node.zone, weight: known.node.weight };
        let candidates: Vec<_> = self.nodes.values().filter(is_one).map(of).collect();
        if candidates == self.candidates {
            return;
        }
        let has_new = candidates.iter().any(|one| !self.candidates.contains(one));
        let missing: Vec<_> =
            self.candidates.iter().filter(|one| !candidates.contains(one)).map(|one| one.id).collect();
        self.candidates = candidates;
        missing.iter().for_each(|id| self.touch_held(id));
        if has_new {
            self.dirty.extend(self.things.keys());
        } else {
            self.dirty.extend(&self.unsettled);
        }
    }

    fn touch_held(&mut self, id: &NodeId) {
        let pieces: Vec<_> = self.held.get(id).into_iter().flatten().copied().collect();
        pieces.iter().for_each(|piece| self.touch(piece));
    }

    /// Has the objects weighed again that a piece belongs to.
    fn touch(&mut self, piece: &ContentId) {
        if let Some(known) = self.pieces.get(piece) {
            self.dirty.extend(known.of.iter().filter(|object| self.things.contains_key(object)));
        }
    }

    /// A piece is not of this object any more. If it is of none, who has it does not matter.
    fn let_go(&mut self, piece: &ContentId, object: &ContentId) {
        let Some(known) = self.pieces.get_mut(piece) else { return };
        known.of.retain(|of| of != object);
        if !known.of.is_empty() {
            return;
        }
        for (node, _) in self.pieces.remove(piece).into_iter().flat_map(|known| known.holders) {
            if let Some(held) = self.held.get_mut(&node) {
                held.remove(piece);
            }
        }
    }

    /// Takes in what the claims on an object say.
    pub fn on_claims(&mut self, object: ContentId, claimed: Claimed) {
        if self.things.get(&object).is_some_and(|thing| thing.claimed == claimed) {
            return;
        }
        if claimed.standing == Standing::Unclaimed {
            self.forget(&object);
            return;
        }
        self.pieces.entry(object).or_default().belongs_to(object);
        for shard in claimed.shards.iter().flatten() {
            self.pieces.entry(*shard).or_default().belongs_to(object);
        }
        match self.things.get_mut(&object) {
            Some(thing) => {
                let shards = std::mem::take(&mut thing.claimed.shards);
                thing.claimed = claimed;
                let is_deleted = thing.claimed.standing == Standing::Deleted;
                // A delete does not say which shards there were.
                if is_deleted && thing.claimed.shards.is_empty() {
                    thing.claimed.shards = shards.clone();
                }
                (thing.retry_at, thing.failures) = (Duration::ZERO, 0);
                let before = shards.into_iter().flatten().chain(std::mem::take(&mut thing.old));
                let wanted: BTreeSet<ContentId> = thing.claimed.shards.iter().flatten().copied().collect();
                let (mut here, mut gone) = (Vec::new(), Vec::new());
                for shard in before.filter(|shard| !wanted.contains(shard) && *shard != object) {
                    let is_here = self.pieces.get(&shard).is_some_and(|known| known.on(&self.me).is_some());
                    // Shards of a coding that is no longer wanted stay known while they are here: they have to go.
                    if is_here { &mut here } else { &mut gone }.push(shard);
                }
                here.sort_unstable();
                here.dedup();
                thing.old = here;
                gone.iter().for_each(|shard| self.let_go(shard, &object));
            }
            None => {
                *self.counts.entry(Health::Met).or_default() += 1;
                let thing = Thing {
                    claimed,
                    old: Vec::new(),
                    copies: None,
                    health: Health::Met,
                    due_since: None,
                    retry_at: Duration::ZERO,
                    failures: 0,
                    waits: None,
                    declined: Vec::new(),
                    running: None,
                    queued: None,
                    wake: None,
                };
                self.things.insert(object, thing);
            }
        }
        self.dirty.insert(object);
    }

    /// Takes in pieces that are here, are of an object, and are nothing that its claims want: shards of codings before, and manifests.
    /// They go when the object is what it should be, or deleted.
    pub fn on_left(&mut self, object: &ContentId, pieces: &[ContentId]) {
        let Some(thing) = self.things.get_mut(object) else { return };
        for piece in pieces {
            let is_wanted =
                piece == object || thing.claimed.shards.iter().flatten().any(|shard| shard == piece);
            if !is_wanted && !thing.old.contains(piece) {
                thing.old.push(*piece);
                self.pieces.entry(*piece).or_default().belongs_to(*object);
                self.dirty.insert(*object);
            }
        }
    }

    fn forget(&mut self, object: &ContentId) {
        let Some(thing) = self.things.remove(object) else { return };
        if let Some((class, spare)) = thing.queued {
            self.queue.remove(&(class, spare, *object));
        }
        if let Some(at) = thing.wake {
            self.timers.remove(&(at, *object));
        }
        if let Some(count) = self.counts.get_mut(&thing.health) {
            *count -= 1;
        }
        self.count_copies(thing.copies, None);
        self.dirty.remove(object);
        self.unsettled.remove(object);
        for piece in thing.claimed.shards.iter().flatten().chain(&thing.old).chain([object]) {
            self.let_go(piece, object);
        }
    }

    fn count_copies(&mut self, before: Option<usize>, after: Option<usize>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            if let Some(count) = self.rf.get_mut(&before) {
                *count -= 1;
                if *count == 0 {
                    self.rf.remove(&before);
                }
            }
        }
        if let Some(after) = after {
            *self.rf.entry(after).or_default() += 1;
        }
    }

    /// Whether a piece is of something that is claimed. What is known of others is not kept: there is no end to what nodes may
    /// say that they have.
    #[must_use]
    pub fn is_known(&self, piece: &ContentId) -> bool {
        self.pieces.contains_key(piece)
    }

    /// Takes in what is known of a piece on a node. Nodes that are not in the list are not believed, and of what nobody claims
    /// nothing is kept.
    pub fn on_held(&mut self, node: NodeId, piece: ContentId, holding: Holding) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        let Some(known) = self.pieces.get_mut(&piece) else { return };
        let before = known.set(node, holding);
        if holding == Holding::Absent {
            if let Some(held) = self.held.get_mut(&node) {
                held.remove(&piece);
            }
        } else {
            self.held.entry(node).or_default().insert(piece);
        }
        if before != holding {
            self.touch(&piece);
        }
        if holding == Holding::Absent && node == self.me {
            self.let_go_of_old(&piece);
        }
    }

    /// Something that is deleted was put here just now: whoever put it is about to claim it, and gets the time to do so.
    pub fn on_put(&mut self, piece: &ContentId, now: Duration) {
        let of = self.pieces.get(piece).map(|known| known.of.clone()).unwrap_or_default();
        for object in of {
            let Some(thing) = self.things.get_mut(&object) else { continue };
            if thing.claimed.standing == Standing::Deleted {
                thing.retry_at = thing.retry_at.max(now + self.settings.retry);
                thing.waits = None;
                self.dirty.insert(object);
            }
        }
    }

    /// A shard that nobody wanted any more is gone from here: nothing more has to be known of it.
    fn let_go_of_old(&mut self, piece: &ContentId) {
        let of = self.pieces.get(piece).map(|known| known.of.clone()).unwrap_or_default();
        for object in of {
            let Some(thing) = self.things.get_mut(&object) else { continue };
            if let Some(at) = thing.old.iter().position(|old| old == piece) {
                thing.old.swap_remove(at);
                self.let_go(piece, &object);
            }
        }
    }

    /// Takes in that all is known that a node has.
    pub fn on_compared(&mut self, node: &NodeId) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        if !std::mem::replace(&mut known.is_compared, true) {
            self.dirty.extend(&self.unsettled);
        }
    }

    /// Whether there is a node of which nobody knows what it has. It may have copies of whatever was deleted.
    #[must_use]
    pub fn has_unseen(&self) -> bool {
        self.nodes.values().any(|known| !known.is_compared && known.node.id != self.me)
    }

    /// Takes in how a job ended that was handed out. What it changed is heard through [`on_held`](Self::on_held).
    pub fn on_done(&mut self, object: ContentId, outcome: Outcome, now: Duration) {
        let Some(thing) = self.things.get_mut(&object) else { return };
        thing.waits = thing.running.take();
        match outcome {
            Outcome::Done => (thing.failures, thing.retry_at) = (0, Duration::ZERO),
            Outcome::Failed | Outcome::Stuck(_) | Outcome::Declined(_) => {
                let times = 1 << thing.failures.min(RETRIES_LONGEST.ilog2());
                thing.retry_at = now + self.settings.retry * times;
                thing.failures += 1;
            }
            // The lane was full; by the next tick it is not.
            Outcome::Skipped => thing.retry_at = now + self.settings.retry,
        }
        let is_urgent = thing.waits == Some(Class::Urgent);
        let stuck_max = if is_urgent { STUCK_URGENT_MAX } else { STUCK_MAX };
        let passed_over = match outcome {
            Outcome::Declined(node) => Some(node),
            Outcome::Stuck(node) if thing.failures >= stuck_max => Some(node),
            _ => None,
        };
        if let Some(node) = passed_over {
            thing.declined.retain(|(_, until)| *until > now);
            thing.declined.push((node, now + DECLINED));
            // Somebody else is asked at once.
            (thing.retry_at, thing.failures) = (Duration::ZERO, 0);
        }
        self.dirty.insert(object);
    }

    /// When the clock next matters: at once while there is news to weigh.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        if !self.dirty.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let grace = |known: &Known| Some(known.away_since? + self.settings.grace);
        let graces = self.nodes.values().filter(|known| !known.is_given_up).filter_map(grace);
        let steady = self.nodes.values().map(|known| known.steady_at).filter(|at| !at.is_zero());
        graces.chain(steady).chain(timer).min()
    }

    /// The next job, the most important first.
    pub fn poll(&mut self, now: Duration) -> Option<Step> {
        self.poll_down_to(Class::Trim, now)
    }

    /// The next job that matters as much as this at least. For who has no room for others: what waits for that is not weighed again.
    pub fn poll_down_to(&mut self, least: Class, now: Duration) -> Option<Step> {
        self.on_time(now);
        for _ in 0..WEIGHED_MAX {
            let Some(object) = self.dirty.pop_first() else { break };
            self.weigh(object, now);
        }
        while let Some((class, spare, object)) =
            self.queue.first().copied().filter(|(class, _, _)| *class <= least)
        {
            self.queue.pop_first();
            let Some(thing) = self.things.get_mut(&object) else { continue };
            thing.queued = None;
            // What was true when it was weighed may not be any more, and weighing is cheap.
            let verdict = self.judge(&object, now)?;
            let Some((now_class, now_spare, job)) = verdict.step else {
                self.dirty.insert(object);
                continue;
            };
            let thing = self.things.get_mut(&object)?;
            if (now_class, now_spare) > (class, spare) {
                thing.queued = Some((now_class, now_spare));
                self.queue.insert((now_class, now_spare, object));
                continue;
            }
            thing.running = Some(now_class);
            let len = match &thing.claimed.standing {
                Standing::Live(wanted) => wanted.len,
                Standing::Deleted | Standing::Unclaimed => 0,
            };
            return Some(Step { object, len, class: now_class, job });
        }
        None
    }

    /// What hosts should hear of.
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Objects of which something was heard that was not weighed yet.
    #[must_use]
    pub fn weighing(&self) -> usize {
        self.dirty.len()
    }

    /// How many objects are doing how.
    #[must_use]
    pub fn count(&self, health: Health) -> usize {
        self.counts.get(&health).copied().unwrap_or(0)
    }

    /// How an object is doing, if something is known of it.
    #[must_use]
    pub fn health(&self, object: &ContentId) -> Option<Health> {
        self.things.get(object).map(|thing| thing.health)
    }

    /// Whole copies of an object, as its policy counts them.
    #[must_use]
    pub fn copies_of(&self, object: &ContentId) -> usize {
        let holders = self.pieces.get(object).map(|piece| &piece.holders);
        holders.into_iter().flatten().filter(|(id, held)| *held == Holding::Good && self.is_safe(id)).count()
    }

    /// The fewest copies, as policies count them, of an object that wants copies.
    #[must_use]
    pub fn fewest_copies(&self) -> Option<usize> {
        self.rf.first_key_value().map(|(copies, _)| *copies)
    }

    /// What a node is known to have.
    pub fn held_by(&self, node: &NodeId) -> impl Iterator<Item = &ContentId> {
        self.held.get(node).into_iter().flatten()
    }

    /// How much a node is known to have.
    #[must_use]
    pub fn held_count(&self, node: &NodeId) -> usize {
        self.held.get(node).map_or(0, BTreeSet::len)
    }

    /// Whether an object that a piece belongs to is less than its policy asks for, or was not weighed since something was heard of it.
    /// What a node that is about to go has does not count.
    #[must_use]
    pub fn is_needed(&self, piece: &ContentId) -> bool {
        let is_unmet = |object: &ContentId| {
            let thing = self.things.get(object);
            thing.is_some_and(|thing| !matches!(thing.health, Health::Met | Health::Deleted))
                || self.dirty.contains(object)
        };
        self.pieces.get(piece).is_some_and(|known| known.of.iter().any(is_unmet))
    }

    /// Whether a node, present or away, is known to have an object or a shard of it. What it has keeps deletes remembered.
    #[must_use]
    pub fn has_copy(&self, object: &ContentId) -> bool {
        let thing = self.things.get(object).into_iter();
        let shards = thing.flat_map(|thing| thing.claimed.shards.iter().flatten().chain(&thing.old));
        shards
            .chain([object])
            .any(|piece| self.pieces.get(piece).is_some_and(|known| !known.holders.is_empty()))
    }

    /// Where an object belongs as things stand.
    #[must_use]
    pub fn targets(&self, object: &ContentId, count: usize) -> Vec<NodeId> {
        place(&self.candidates, object, count)
    }

    fn on_time(&mut self, now: Duration) {
        let grace = self.settings.grace;
        let mut given_up = Vec::new();
        for (id, known) in &mut self.nodes {
            if !known.is_given_up && known.away_since.is_some_and(|since| now >= since + grace) {
                known.is_given_up = true;
                given_up.push(*id);
            }
        }
        if !given_up.is_empty() {
            // Nobody knows what was counted on those that were never seen.
            if given_up.iter().any(|id| self.nodes.get(id).is_some_and(|known| !known.is_compared)) {
                self.dirty.extend(self.things.keys());
            }
            given_up.iter().for_each(|id| self.touch_held(id));
            self.weigh_candidates();
        }
        let mut is_steadier = false;
        for known in self.nodes.values_mut() {
            if !known.steady_at.is_zero() && known.steady_at <= now && known.away_since.is_none() {
                known.steady_at = Duration::ZERO;
                is_steadier = true;
            }
        }
        if is_steadier {
            self.dirty.extend(self.things.keys());
        }
        while let Some((at, object)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, object));
            if let Some(thing) = self.things.get_mut(&object) {
                thing.wake = None;
                self.dirty.insert(object);
            }
        }
    }

    /// Weighs an object and queues what should be done about it.
    fn weigh(&mut self, object: ContentId, now: Duration) {
        if let Some(thing) = self.things.get_mut(&object) {
            thing.declined.retain(|(_, until)| *until > now);
        }
        let Some(mut verdict) = self.judge(&object, now) else { return };
        let wants_copies =
            |thing: &Thing| matches!(&thing.claimed.standing, Standing::Live(wanted) if wanted.copies > 0);
        let before = self.things.get(&object).and_then(|thing| thing.copies);
        let copies = self.things.get(&object).is_some_and(wants_copies).then(|| self.copies_of(&object));
        self.count_copies(before, copies);
        // The first look at something that is due says since when it is, and so when it is whose turn.
        let thing = self.things.get_mut(&object).expect("it was just judged");
        thing.copies = copies;
        let is_due = verdict.step.is_some() || verdict.wake.is_some();
        match (is_due, thing.due_since) {
            (true, None) => thing.due_since = Some(now),
            (false, Some(_)) => thing.due_since = None,
            _ => {}
        }
        let has_to_wait = |class: Class| thing.waits.is_none_or(|waits| class >= waits);
        if now < thing.retry_at && verdict.step.as_ref().is_some_and(|(class, _, _)| has_to_wait(*class)) {
            verdict.step = None;
            verdict.wake = Some(thing.retry_at);
        }
        if thing.running.is_some() {
            verdict.step = None;
        }
        // Who declined may take it then; nothing else need be heard until that.
        let asked_again = thing.declined.iter().map(|(_, until)| *until).filter(|until| *until > now);
        verdict.wake = asked_again.chain(verdict.wake).min();
        let queued = verdict.step.map(|(class, spare, _)| (class, spare));
        if thing.queued != queued {
            if let Some((class, spare)) = thing.queued {
                self.queue.remove(&(class, spare, object));
            }
            if let Some((class, spare)) = queued {
                self.queue.insert((class, spare, object));
            }
            thing.queued = queued;
        }
        if thing.wake != verdict.wake {
            if let Some(at) = thing.wake {
                self.timers.remove(&(at, object));
            }
            if let Some(at) = verdict.wake {
                self.timers.insert((at, object));
            }
            thing.wake = verdict.wake;
        }
        if thing.health != verdict.health {
            if verdict.health == Health::Lost {
                self.news.push(News::Lost(object));
            } else if thing.health == Health::Lost {
                self.news.push(News::Found(object));
            }
            if let Some(count) = self.counts.get_mut(&thing.health) {
                *count -= 1;
            }
            *self.counts.entry(verdict.health).or_default() += 1;
            thing.health = verdict.health;
        }
        if is_due || !matches!(thing.health, Health::Met | Health::Deleted) {
            self.unsettled.insert(object);
        } else {
            self.unsettled.remove(&object);
        }
    }
}
