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

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::{ContentId, NodeId};

use super::{
    claims::{Standing, Wanted},
    place::{Candidate, place, score},
};

/// Objects that are weighed before the next job is handed out, so that news about all of them never holds up the first.
const WEIGHED_MAX: usize = 1024;

/// Longest pause before something that failed is tried again, as a multiple of the first.
const RETRIES_LONGEST: u32 = 64;

/// How long a node that declined an object is not asked again.
const DECLINED: Duration = Duration::from_secs(600);

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
        /// Which of the codings that are wanted.
        coding: usize,
        /// Which shards, each with who gets it.
        missing: Vec<(u8, NodeId)>,
        /// Who has which of the shards that can be read.
        sources: Vec<(u8, NodeId)>,
        /// Whether the whole object is here.
        is_whole: bool,
    },
    /// Put the object together out of shards, and keep it.
    Restore {
        /// Which of the codings that are wanted.
        coding: usize,
        /// Who has which of the shards that can be read.
        sources: Vec<(u8, NodeId)>,
    },
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
}

#[derive(Debug, Clone)]
struct Thing {
    claimed: Claimed,
    health: Health,
    /// Since when there is something to do.
    due_since: Option<Duration>,
    /// When it may be tried again, and how often it failed.
    retry_at: Duration,
    failures: u32,
    declined: Vec<(NodeId, Duration)>,
    is_running: bool,
    queued: Option<(Class, u8)>,
    wake: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
struct Piece {
    holders: BTreeMap<NodeId, Holding>,
    /// The objects that it is, or is a shard of.
    of: BTreeSet<ContentId>,
}

/// What one weighing says.
#[derive(Debug)]
struct Verdict {
    health: Health,
    step: Option<(Class, u8, Job)>,
    wake: Option<Duration>,
}

impl Verdict {
    fn of(health: Health) -> Self {
        Verdict { health, step: None, wake: None }
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
        }
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
                    known.holders.remove(&id);
                }
                self.tidy(&piece);
            }
        }
        for node in nodes {
            let known = self.nodes.get(&node.id);
            if known.is_some_and(|known| known.node == *node) {
                continue;
            }
            let away_since = match node.presence {
                Presence::Away => Some(known.and_then(|known| known.away_since).unwrap_or(now)),
                Presence::Up | Presence::Draining => None,
            };
            let grace = self.settings.grace;
            let is_given_up = away_since.is_some_and(|since| now >= since + grace);
            let is_compared = known.is_some_and(|known| known.is_compared);
            self.nodes.insert(node.id, Known { node: *node, away_since, is_given_up, is_compared });
            self.touch_held(&node.id);
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

    /// Forgets a piece that nobody has or wants.
    fn tidy(&mut self, piece: &ContentId) {
        if self.pieces.get(piece).is_some_and(|known| known.of.is_empty() && known.holders.is_empty()) {
            self.pieces.remove(piece);
        }
    }

    /// Takes in what the claims on an object say.
    pub fn on_claims(&mut self, object: ContentId, claimed: Claimed) {
        if self.things.get(&object).is_some_and(|thing| thing.claimed == claimed) {
            return;
        }
        // Shards of a coding that is no longer wanted stay known while they lie around: what is deleted has to go.
        if claimed.standing == Standing::Unclaimed {
            self.forget(&object);
            return;
        }
        self.pieces.entry(object).or_default().of.insert(object);
        for shard in claimed.shards.iter().flatten() {
            self.pieces.entry(*shard).or_default().of.insert(object);
        }
        match self.things.get_mut(&object) {
            Some(thing) => {
                // A delete does not say which shards there were.
                let shards = std::mem::take(&mut thing.claimed.shards);
                thing.claimed = claimed;
                if thing.claimed.standing == Standing::Deleted && thing.claimed.shards.is_empty() {
                    thing.claimed.shards = shards;
                }
                (thing.retry_at, thing.failures) = (Duration::ZERO, 0);
            }
            None => {
                *self.counts.entry(Health::Met).or_default() += 1;
                let thing = Thing {
                    claimed,
                    health: Health::Met,
                    due_since: None,
                    retry_at: Duration::ZERO,
                    failures: 0,
                    declined: Vec::new(),
                    is_running: false,
                    queued: None,
                    wake: None,
                };
                self.things.insert(object, thing);
            }
        }
        self.dirty.insert(object);
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
        self.dirty.remove(object);
        self.unsettled.remove(object);
        for piece in thing.claimed.shards.iter().flatten().chain([object]) {
            if let Some(known) = self.pieces.get_mut(piece) {
                known.of.remove(object);
            }
            self.tidy(piece);
        }
    }

    /// Takes in what is known of a piece on a node. Nodes that are not in the list are not believed.
    pub fn on_held(&mut self, node: NodeId, piece: ContentId, holding: Holding) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        let known = self.pieces.entry(piece).or_default();
        let before = match holding {
            Holding::Absent => known.holders.remove(&node),
            other => known.holders.insert(node, other),
        };
        if holding == Holding::Absent {
            if let Some(held) = self.held.get_mut(&node) {
                held.remove(&piece);
            }
        } else {
            self.held.entry(node).or_default().insert(piece);
        }
        if before.unwrap_or(Holding::Absent) != holding {
            self.touch(&piece);
        }
        self.tidy(&piece);
    }

    /// Takes in that all is known that a node has.
    pub fn on_compared(&mut self, node: &NodeId) {
        if let Some(known) = self.nodes.get_mut(node) {
            known.is_compared = true;
        }
    }

    /// Takes in how a job ended that was handed out. What it changed is heard through [`on_held`](Self::on_held).
    pub fn on_done(&mut self, object: ContentId, outcome: Outcome, now: Duration) {
        let Some(thing) = self.things.get_mut(&object) else { return };
        thing.is_running = false;
        match outcome {
            Outcome::Done => (thing.failures, thing.retry_at) = (0, Duration::ZERO),
            Outcome::Failed | Outcome::Declined(_) => {
                let times = 1 << thing.failures.min(RETRIES_LONGEST.ilog2());
                thing.retry_at = now + self.settings.retry * times;
                thing.failures += 1;
            }
            // The lane was full; by the next tick it is not.
            Outcome::Skipped => thing.retry_at = now + self.settings.retry,
        }
        if let Outcome::Declined(node) = outcome {
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
        graces.chain(timer).min()
    }

    /// Whether there is nothing to do and nothing under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.queue.is_empty() && self.things.values().all(|thing| !thing.is_running)
    }

    /// The next job, the most important first.
    pub fn poll(&mut self, now: Duration) -> Option<Step> {
        self.on_time(now);
        for _ in 0..WEIGHED_MAX {
            let Some(object) = self.dirty.pop_first() else { break };
            self.weigh(object, now);
        }
        while let Some((class, spare, object)) = self.queue.pop_first() {
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
            thing.is_running = true;
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
        holders.into_iter().flatten().filter(|(id, held)| **held == Holding::Good && self.is_safe(id)).count()
    }

    /// The fewest copies, as policies count them, of an object that wants copies.
    #[must_use]
    pub fn fewest_copies(&self) -> Option<usize> {
        let wants =
            |thing: &Thing| matches!(&thing.claimed.standing, Standing::Live(wanted) if wanted.copies > 0);
        let things = self.things.iter().filter(|(_, thing)| wants(thing));
        things.map(|(object, _)| self.copies_of(object)).min()
    }

    /// What a node is known to have.
    pub fn held_by(&self, node: &NodeId) -> impl Iterator<Item = &ContentId> {
        self.held.get(node).into_iter().flatten()
    }

    /// The objects it knows claims of.
    pub fn objects(&self) -> impl Iterator<Item = &ContentId> {
        self.things.keys()
    }

    /// Whether a node, present or away, is known to have an object or a shard of it. What it has keeps deletes remembered.
    #[must_use]
    pub fn has_copy(&self, object: &ContentId) -> bool {
        let shards =
            self.things.get(object).into_iter().flat_map(|thing| thing.claimed.shards.iter().flatten());
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
        // The first look at something that is due says since when it is, and so when it is whose turn.
        let thing = self.things.get_mut(&object).expect("it was just judged");
        let is_due = verdict.step.is_some() || verdict.wake.is_some();
        match (is_due, thing.due_since) {
            (true, None) => thing.due_since = Some(now),
            (false, Some(_)) => thing.due_since = None,
            _ => {}
        }
        if now < thing.retry_at && verdict.step.is_some() {
            verdict.step = None;
            verdict.wake = Some(thing.retry_at);
        }
        if thing.is_running {
            verdict.step = None;
        }
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

    fn judge(&self, object: &ContentId, now: Duration) -> Option<Verdict> {
        let thing = self.things.get(object)?;
        Some(match &thing.claimed.standing {
            Standing::Unclaimed => Verdict::of(Health::Met),
            Standing::Deleted => self.judge_deleted(object, thing),
            Standing::Live(wanted) => self.judge_live(object, thing, wanted, now),
        })
    }

    fn judge_deleted(&self, object: &ContentId, thing: &Thing) -> Verdict {
        let is_mine = |piece: &&ContentId| {
            let known = self.pieces.get(piece);
            known.is_some_and(|known| {
                known.holders.contains_key(&self.me) && !known.of.iter().any(|other| self.lives(other))
            })
        };
        let pieces: Vec<_> =
            thing.claimed.shards.iter().flatten().chain([object]).filter(is_mine).copied().collect();
        let mut verdict = Verdict::of(Health::Deleted);
        verdict.step = (!pieces.is_empty()).then_some((Class::Drop, 0, Job::Drop { pieces }));
        verdict
    }

    fn lives(&self, object: &ContentId) -> bool {
        self.things.get(object).is_some_and(|thing| matches!(thing.claimed.standing, Standing::Live(_)))
    }

    fn judge_live(&self, object: &ContentId, thing: &Thing, wanted: &Wanted, now: Duration) -> Verdict {
        let whole = self.look(object);
        let mut health = Health::Met;
        let mut step: Option<(Class, u8, Job)> = None;
        let mut wake: Option<Duration> = None;
        let mut consider = |verdict: Verdict| {
            health = health.max(verdict.health);
            if let Some(new) = verdict.step {
                if step.as_ref().is_none_or(|old| (new.0, new.1) < (old.0, old.1)) {
                    step = Some(new);
                }
            }
            wake = [wake, verdict.wake].into_iter().flatten().min();
        };
        let belongs = |count: usize| self.targets_for(object, thing, count);
        let may_be_away = |count: usize| belongs(count).iter().any(|id| self.is_unknown(id));
        if wanted.copies > 0 && !whole.is_anywhere() && may_be_away(wanted.copies.into()) {
            consider(Verdict::of(Health::Under));
        } else if wanted.copies > 0 && whole.is_anywhere() {
            consider(self.judge_copies(object, thing, wanted.copies, &whole, now));
        } else if wanted.copies > 0 {
            consider(self.judge_restoring(object, thing, wanted, now));
        } else if wanted.codings.is_empty() && !whole.is_anywhere() {
            // Only a pin, and nothing left to keep.
            consider(Verdict::of(Health::Lost));
        }
        for at in 0..wanted.codings.len().min(thing.claimed.shards.len()) {
            consider(self.judge_shards(object, thing, wanted, at, &whole, now));
        }
        // A whole object that is only wanted as shards goes last, when all of them are where they belong.
        let is_extra = wanted.copies == 0 && !wanted.codings.is_empty() && !wanted.is_pinned;
        if is_extra && health == Health::Met && step.is_none() && whole.is_here(&self.me) {
            // Its own shards it keeps, since an object has one job at a time.
            let others = thing.claimed.shards.iter().flatten();
            let others = others.filter(|shard| !self.look(shard).safe.contains(&self.me));
            let provers: Option<Vec<_>> = others.map(|shard| self.prover(shard)).collect();
            if let Some(provers) = provers.filter(|provers| !provers.is_empty()) {
                step = Some((Class::Trim, 0, Job::Trim { piece: *object, provers }));
            }
        }
        Verdict { health, step, wake }
    }

    /// A node that has a piece, is there, and counts.
    fn prover(&self, piece: &ContentId) -> Option<(ContentId, NodeId)> {
        let holders = &self.pieces.get(piece)?.holders;
        let proves = |id: &&NodeId| **id != self.me && self.is_safe(id) && self.is_reachable(id);
        let good = holders.iter().filter(|(_, held)| **held == Holding::Good).map(|(id, _)| id);
        good.into_iter().find(proves).map(|id| (*piece, *id))
    }

    fn judge_copies(
        &self,
        object: &ContentId,
        thing: &Thing,
        copies: u8,
        whole: &Look,
        now: Duration,
    ) -> Verdict {
        let targets = self.targets_for(object, thing, copies.into());
        let is_missing = |id: &&NodeId| !whole.safe.contains(id) && !self.is_unknown(id);
        let missing: Vec<_> = targets.iter().filter(is_missing).copied().collect();
        let unknown = targets.iter().filter(|id| self.is_unknown(id)).count();
        let live = u8::try_from(whole.live).unwrap_or(u8::MAX);
        if whole.safe.len() + unknown < usize::from(copies) {
            // What is away counts as a copy until its grace is over, so this is urgent only afterwards.
            let is_last = copies > 1 && whole.safe.len() <= 1 && live <= 1;
            let (health, class) =
                if is_last { (Health::Urgent, Class::Urgent) } else { (Health::Under, Class::Copies) };
            let mut verdict = Verdict::of(health);
            // Who belongs there and is away may be back soon; the last copy does not wait for that.
            let there = missing.iter().find(|id| self.is_reachable(id)).copied();
            let instead = || {
                let others = self.place_there(object, thing, usize::from(copies) + whole.safe.len());
                others.into_iter().find(|id| !whole.safe.contains(id))
            };
            if let Some(to) = there.or_else(|| is_last.then(instead).flatten()) {
                self.take_turn(thing, &whole.sources, now, &mut verdict, || {
                    (class, live, Job::Copy { piece: *object, to })
                });
            }
            return verdict;
        }
        let mut verdict = Verdict::of(Health::Met);
        if !missing.is_empty() {
            if let Some(to) = missing.iter().find(|id| self.is_reachable(id)).copied() {
                self.take_turn(thing, &whole.sources, now, &mut verdict, || {
                    (Class::Move, live, Job::Copy { piece: *object, to })
                });
            }
            return verdict;
        }
        let is_pinned = matches!(&thing.claimed.standing, Standing::Live(wanted) if wanted.is_pinned);
        // Enough of them, all there, all where they belong, and this is none of them.
        let are_there =
            targets.len() >= usize::from(copies) && targets.iter().all(|id| self.is_reachable(id));
        if whole.is_here(&self.me) && !targets.contains(&self.me) && are_there && !is_pinned {
            let provers = targets.iter().map(|id| (*object, *id)).collect();
            verdict.step = Some((Class::Trim, live, Job::Trim { piece: *object, provers }));
        }
        verdict
    }

    /// No copy is left, and copies are wanted: shards of another owner's policy may still make one.
    fn judge_restoring(&self, object: &ContentId, thing: &Thing, wanted: &Wanted, now: Duration) -> Verdict {
        for (at, (coding, shards)) in wanted.codings.iter().zip(&thing.claimed.shards).enumerate() {
            let looks: Vec<Look> = shards.iter().map(|shard| self.look(shard)).collect();
            if looks.iter().filter(|look| look.is_anywhere()).count() < usize::from(coding.data) {
                continue;
            }
            let mut verdict = Verdict::of(Health::Under);
            let sources = sources_of(&looks);
            if sources.len() >= usize::from(coding.data) {
                let mut line: Vec<_> = sources.iter().map(|(_, id)| *id).collect();
                self.sort(object, &mut line);
                self.take_turn(thing, &line, now, &mut verdict, || {
                    (Class::Copies, 0, Job::Restore { coding: at, sources })
                });
            }
            return verdict;
        }
        Verdict::of(Health::Lost)
    }

    fn judge_shards(
        &self,
        object: &ContentId,
        thing: &Thing,
        wanted: &Wanted,
        at: usize,
        whole: &Look,
        now: Duration,
    ) -> Verdict {
        let (coding, shards) = (wanted.codings[at], &thing.claimed.shards[at]);
        let looks: Vec<Look> = shards.iter().map(|shard| self.look(shard)).collect();
        let (data, all) = (usize::from(coding.data), shards.len());
        let anywhere = looks.iter().filter(|look| look.is_anywhere()).count();
        let reachable = looks.iter().filter(|look| !look.sources.is_empty()).count();
        let targets = self.targets_for(object, thing, all);
        let unknown = targets.iter().filter(|id| self.is_unknown(id)).count();
        if anywhere + unknown < data && !whole.is_anywhere() {
            return Verdict::of(Health::Lost);
        }
        let (homes, mut room) = self.homes(&looks, &targets);
        let homed = homes.iter().flatten().count();
        let is_last = homed < all && homed <= data && !whole.is_anywhere();
        room.retain(|(id, room)| *room > 0 && self.is_reachable(id));
        if room.is_empty() && is_last {
            // Who belongs there and is away may be back soon; the last shard does not wait for that.
            let others = self.place_there(object, thing, 2 * all);
            room = others.into_iter().filter(|id| !homes.contains(&Some(*id))).map(|id| (id, 1)).collect();
        }
        let mut next = || {
            // The emptiest first, so that none has two while another has none; of these the best.
            let (_, at) = room.iter().enumerate().map(|(at, (_, room))| (Reverse(*room), at)).min()?;
            (room[at].1 > 0).then(|| {
                room[at].1 -= 1;
                room[at].0
            })
        };
        let homeless: Vec<usize> = (0..all).filter(|index| homes[*index].is_none()).collect();
        if !homeless.is_empty() {
            let spare = u8::try_from(reachable.saturating_sub(data)).unwrap_or(u8::MAX);
            let (health, class) =
                if is_last { (Health::Urgent, Class::Urgent) } else { (Health::Under, Class::Parity) };
            let mut verdict = Verdict::of(health);
            // A shard that somebody has who does not count, or who has others too, is copied and not computed.
            let (there, lacking): (Vec<usize>, Vec<usize>) =
                homeless.iter().partition(|index| !looks[**index].sources.is_empty());
            if let Some(index) = there.first() {
                if let Some(to) = next() {
                    self.take_turn(thing, &looks[*index].sources, now, &mut verdict, || {
                        (class, spare, Job::Copy { piece: shards[*index], to })
                    });
                }
                return verdict;
            }
            if lacking.len() <= unknown {
                return verdict;
            }
            let missing: Vec<(u8, NodeId)> =
                lacking.iter().map_while(|index| Some((u8::try_from(*index).ok()?, next()?))).collect();
            let sources = sources_of(&looks);
            let line = if whole.sources.is_empty() && sources.len() >= data {
                let mut line: Vec<_> = sources.iter().map(|(_, id)| *id).collect();
                self.sort(object, &mut line);
                line
            } else {
                whole.sources.clone()
            };
            if !missing.is_empty() {
                self.take_turn(thing, &line, now, &mut verdict, || {
                    let is_whole = whole.is_here(&self.me);
                    (class, spare, Job::Rebuild { coding: at, missing, sources, is_whole })
                });
            }
            return verdict;
        }
        let mut verdict = Verdict::of(Health::Met);
        for ((shard, look), home) in shards.iter().zip(&looks).zip(homes.into_iter().flatten()) {
            if !look.is_here(&self.me) {
                continue;
            }
            let is_placed = targets.contains(&home);
            if home != self.me && is_placed && self.is_reachable(&home) && !wanted.is_pinned {
                // Somebody else has it and should: this one is too many.
                let provers = vec![(*shard, home)];
                verdict.step = Some((Class::Trim, 0, Job::Trim { piece: *shard, provers }));
                return verdict;
            }
            if home == self.me && !is_placed {
                if let Some(to) = next() {
                    verdict.step = Some((Class::Move, 0, Job::Copy { piece: *shard, to }));
                    return verdict;
                }
            }
        }
        verdict
    }

    /// Which of its holders each shard counts for, none of them for more shards than it must; and who has room for how many
    /// more. With fewer nodes than shards, each has some.
    fn homes(&self, looks: &[Look], targets: &[NodeId]) -> (Vec<Option<NodeId>>, Vec<(NodeId, usize)>) {
        let most = looks.len().div_ceil(targets.len().max(1));
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        let home = |look: &Look| {
            let place = |id: &&NodeId| targets.iter().position(|target| target == *id).unwrap_or(usize::MAX);
            let mut holders: Vec<&NodeId> = look.safe.iter().collect();
            holders.sort_by_key(|id| (place(id), **id));
            let found = holders.into_iter().find(|id| load.get(id).copied().unwrap_or(0) < most).copied();
            if let Some(id) = found {
                *load.entry(id).or_default() += 1;
            }
            found
        };
        let homes: Vec<Option<NodeId>> = looks.iter().map(home).collect();
        let room = |id: &NodeId| (*id, most.saturating_sub(load.get(id).copied().unwrap_or(0)));
        (homes, targets.iter().map(room).collect())
    }

    /// Does something if it is this node's turn, or says when it will be.
    fn take_turn(
        &self,
        thing: &Thing,
        line: &[NodeId],
        now: Duration,
        verdict: &mut Verdict,
        what: impl FnOnce() -> (Class, u8, Job),
    ) {
        let mut seen = BTreeSet::new();
        let line = line.iter().filter(|id| seen.insert(**id));
        let Some(turn) = line.into_iter().position(|id| *id == self.me) else { return };
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        let at = thing.due_since.unwrap_or(now).saturating_add(self.settings.takeover.saturating_mul(turn));
        if now >= at {
            verdict.step = Some(what());
        } else {
            verdict.wake = Some(at);
        }
    }

    fn targets_for(&self, object: &ContentId, thing: &Thing, count: usize) -> Vec<NodeId> {
        if thing.declined.is_empty() {
            return place(&self.candidates, object, count);
        }
        let is_asked = |one: &&Candidate| !thing.declined.iter().any(|(id, _)| *id == one.id);
        let asked: Vec<_> = self.candidates.iter().filter(is_asked).copied().collect();
        place(&asked, object, count)
    }

    /// Where an object would belong if those who are away were not.
    fn place_there(&self, object: &ContentId, thing: &Thing, count: usize) -> Vec<NodeId> {
        let is_there = |one: &&Candidate| {
            self.is_reachable(&one.id) && !thing.declined.iter().any(|(id, _)| *id == one.id)
        };
        let there: Vec<_> = self.candidates.iter().filter(is_there).copied().collect();
        place(&there, object, count)
    }

    fn is_reachable(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| known.node.presence != Presence::Away)
    }

    /// Whether nobody knows what this node has, and it may be back soon. Whoever was just started has not seen those who are
    /// away; what belongs on them is not missing until their grace is over.
    fn is_unknown(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| {
            known.node.presence == Presence::Away && !known.is_given_up && !known.is_compared
        })
    }

    /// Whether a copy on this node counts.
    fn is_safe(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| {
            known.node.is_durable && known.node.presence != Presence::Draining && !known.is_given_up
        })
    }

    fn sort(&self, object: &ContentId, line: &mut [NodeId]) {
        // Those who are about to go come last: they have enough to do.
        line.sort_by_cached_key(|id| {
            let is_draining =
                self.nodes.get(id).is_some_and(|known| known.node.presence == Presence::Draining);
            (is_draining, score(object, id, 1), *id)
        });
    }

    fn look(&self, piece: &ContentId) -> Look {
        let mut look = Look::default();
        let Some(known) = self.pieces.get(piece) else { return look };
        for (id, _) in known.holders.iter().filter(|(_, held)| **held == Holding::Good) {
            let Some(node) = self.nodes.get(id) else { continue };
            if self.is_reachable(id) {
                look.sources.push(*id);
                look.live += usize::from(node.node.is_durable);
            } else {
                look.away += usize::from(!node.is_given_up);
            }
            if self.is_safe(id) {
                look.safe.push(*id);
            }
        }
        self.sort(piece, &mut look.sources);
        look
    }
}

/// For each shard that can be read, somebody who has it.
fn sources_of(looks: &[Look]) -> Vec<(u8, NodeId)> {
    let of = |(index, look): (usize, &Look)| Some((u8::try_from(index).ok()?, *look.sources.first()?));
    looks.iter().enumerate().filter_map(of).collect()
}

/// Who has a piece.
#[derive(Debug, Default)]
struct Look {
    /// Those that count as copies.
    safe: Vec<NodeId>,
    /// Those who can be asked for it, in the order in which they act.
    sources: Vec<NodeId>,
    /// Those of these whose copy survives a restart.
    live: usize,
    /// Those who are away and may be back soon.
    away: usize,
}

impl Look {
    fn is_here(&self, me: &NodeId) -> bool {
        self.sources.contains(me)
    }

    fn is_anywhere(&self) -> bool {
        !self.sources.is_empty() || self.away > 0
    }
}
