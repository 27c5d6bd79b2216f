//! Over which links a message is pushed, and over which it is only announced.
//!
//! One shared tree serves many publishers badly, and a tree for each of a thousand costs a flood for each. So there are
//! at most a few trees: a publisher becomes the *root* of one while there is room, and others publish on the tree of the
//! root that is nearest to them. A root counts rounds; each round spreads as beacons over all links, and every node takes
//! as its parent the neighbour over which the root is nearest by measured time. The links of a tree are those between
//! parent and child, and messages run over them in both directions: up from whoever publishes, down everywhere else.
//!
//! A node changes its parent within a round only for one that is nearer to the root than it has itself been in that
//! round (the feasibility condition of Babel, RFC 8966), so trees have no loops. Beacons are soft state: one that is lost
//! is repaired by the next. A neighbour that is parent and does not deliver counts as farther with every message missed.
//!
//! Every round carries the root's own word for it ([`Seal`]), so nobody speaks for another. Keys are free, though, and
//! names can be chosen by trying: so a tree that has lived for a while makes no room for newcomers, and one on which
//! messages do not arrive is not published on, makes room for any other, and does not keep a publisher from becoming a
//! root itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::NodeId;

use super::seal::{Proof, Seal};

/// A distance that says that there is no root any more.
const RETRACTED: u32 = u32::MAX;

/// Rounds that the word of a root's end may be ahead of ours, since beacons overtake each other.
const RETRACTED_AHEAD: u32 = 2;

/// Longer ways than this are not believed.
const DISTANCE_MAX: u32 = 60_000_000;

/// How far a link is that was never measured.
const UNMEASURED: u32 = 50_000;

/// What each missed message adds to the distance of a neighbour, and how many count.
const MISS_COST: u32 = 60_000;
const MISSES_MAX: u32 = 16;

/// Trees are forgotten when so many rounds have not come, and are not published on when half of that have not.
const ROUNDS_LOST: u32 = 4;

/// A tree that has lived for so many rounds is not given up for another.
const ROUNDS_SETTLED: u32 = 2;

/// Except for one in so many rounds: two networks that have become one come to the same trees in minutes, and whoever
/// makes up roots with small names gets no further in that time.
const ROUNDS_DISPLACED: u32 = 10;

/// A message that had to be asked for counts one against its tree and one that was pushed one for it. Trees fail at
/// this, and are never further away from being forgiven than that.
const FAILING_AT: u32 = 16;

/// Roots keep step: each begins its round when it hears of the next round of the root with the smallest name, unless it has
/// just had one, so that beacons of all trees travel in one word. By itself it waits for a round and one in so many parts of
/// it, or it would be first every other time.
const ROUND_SLACK: u32 = 8;

/// Rounds of one root that are proven and not yet ours, because the parent is behind. More are not looked at.
const PROOFS_MAX: usize = 4;

/// Proofs that one neighbour may have us check in the time of a round, for each tree that there may be: each new round
/// needs one, from whoever is first.
const CHECKS_PER_TREE: u32 = 4;

/// What became of a beacon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Believed {
    /// It was taken, or is of no use.
    Yes,
    /// Its root did not say that.
    Forged,
    /// Its sender has had too many proofs checked.
    TooMany,
}

/// The knobs of the trees of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSettings {
    /// Trees at most. Default 8: more bring publishers nearer to a root, and cost a beacon each per link and round.
    pub roots: usize,
    /// Time between rounds. Default 3 s.
    pub round: Duration,
    /// A tree is published on by others than its root after this. Default 1 s, some times the way across.
    pub settle: Duration,
    /// How long a parent may be behind others with the beacon of a round. Default 100 ms.
    pub hold: Duration,
    /// How long beacons wait for others to travel with. Default 10 ms.
    pub gather: Duration,
    /// A root whose tree was not used for this long resigns. Default 60 s.
    pub idle: Duration,
}

impl Default for TreeSettings {
    fn default() -> Self {
        TreeSettings {
            roots: 8,
            round: Duration::from_secs(3),
            settle: Duration::from_secs(1),
            hold: Duration::from_millis(100),
            gather: Duration::from_millis(10),
            idle: Duration::from_secs(60),
        }
    }
}

/// What a neighbour says about one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beacon {
    /// Which tree.
    pub root: NodeId,
    /// The root's round.
    pub round: u32,
    /// How far the sender is from the root, in microseconds one way. All ones: there is no such root any more.
    pub distance: u32,
    /// Whether the receiver is the sender's parent.
    pub is_parent: bool,
    /// The root's word for the round.
    pub proof: Proof,
}

/// The trees of one node on one topic.
#[derive(Debug)]
pub struct Trees {
    me: NodeId,
    settings: TreeSettings,
    trees: BTreeMap<NodeId, Tree>,
    seal: Seal,
    links: BTreeMap<NodeId, Link>,
    /// Beacons that single neighbours are owed.
    owed: BTreeSet<(NodeId, NodeId)>,
    /// Trees that all neighbours are to be told of.
    dirty: BTreeSet<NodeId>,
    /// Roots that resigned, to be told once.
    retracted: BTreeMap<NodeId, (u32, Proof)>,
    flush_at: Option<Duration>,
    first_round: u32,
    /// When a tree that was settled last made room for another.
    displaced_at: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    /// How long a message takes over it, one way, in microseconds.
    cost: Option<u32>,
    /// Proofs that were checked for it since then.
    checks: u32,
    checks_since: Duration,
}

#[derive(Debug)]
struct Tree {
    round: u32,
    /// The root's word for this round, and for those that are next.
    proofs: Vec<(u32, Proof)>,
    distance: u32,
    /// The least distance told in this round.
    feasible: u32,
    parent: Option<NodeId>,
    heard: BTreeMap<NodeId, Heard>,
    since: Duration,
    fresh_at: Duration,
    used_at: Duration,
    held_until: Option<Duration>,
    /// The next round, if the tree is ours.
    own_round_at: Option<Duration>,
    /// Messages that did not come over it lately, against those that did.
    missed: u32,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    round: u32,
    distance: u32,
    is_child: bool,
    misses: u32,
}

impl Trees {
    /// No trees yet. `first_round` must be above what this node counted before a restart.
    #[must_use]
    pub fn new(me: NodeId, settings: TreeSettings, first_round: u32) -> Self {
        Trees {
            me,
            settings,
            trees: BTreeMap::new(),
            seal: Seal::Open,
            links: BTreeMap::new(),
            owed: BTreeSet::new(),
            dirty: BTreeSet::new(),
            retracted: BTreeMap::new(),
            flush_at: None,
            first_round,
            displaced_at: Duration::ZERO,
        }
    }

    /// Believes only rounds that are proven from now on, and proves its own.
    pub fn set_seal(&mut self, seal: Seal) {
        self.seal = seal;
    }

    /// A neighbour has come. It is told of the trees that live.
    pub fn on_link_up(&mut self, peer: NodeId, now: Duration) {
        self.links.insert(peer, Link::default());
        let live: Vec<NodeId> =
            self.trees.iter().filter(|(_, tree)| self.is_live(tree, now)).map(|(root, _)| *root).collect();
        for root in live {
            self.owe(peer, root, now);
        }
    }

    /// A neighbour has gone. Trees that it was the parent in look for another.
    pub fn on_link_down(&mut self, peer: NodeId, now: Duration) {
        self.links.remove(&peer);
        self.owed.retain(|(to, _)| *to != peer);
        let roots: Vec<NodeId> = self.trees.keys().copied().collect();
        for root in roots {
            let Some(tree) = self.trees.get_mut(&root) else { continue };
            tree.heard.remove(&peer);
            if tree.parent == Some(peer) {
                tree.parent = None;
                self.decide(root, now);
            }
        }
    }

    /// How long a message takes over a neighbour's link, one way, as measured.
    pub fn on_link_cost(&mut self, peer: NodeId, one_way: Duration) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.cost = Some(u32::try_from(one_way.as_micros()).unwrap_or(u32::MAX).min(DISTANCE_MAX));
        }
    }

    /// A neighbour says how far it is from a root.
    pub fn on_beacon(&mut self, from: NodeId, beacon: Beacon, now: Duration) -> Believed {
        if !self.links.contains_key(&from) {
            return Believed::Yes;
        }
        let Beacon { root, round, distance, is_parent, .. } = beacon;
        if distance == RETRACTED {
            return self.on_retracted(from, beacon, now);
        }
        let is_known = self.trees.contains_key(&root);
        if !is_known && (root == self.me || !self.is_wanted(root, round, now)) {
            return Believed::Yes;
        }
        let known = self.trees.get(&root);
        // A round that is far ahead would lock out all that come.
        if known.is_some_and(|tree| tree.parent.is_some() && round > tree.round.saturating_add(1 << 16)) {
            return Believed::Yes;
        }
        let is_new = known.is_none_or(|tree| round > tree.round && !tree.is_proven(round));
        if is_new {
            if known.is_some_and(|tree| tree.proofs.len() >= PROOFS_MAX) {
                return Believed::Yes;
            }
            match self.check(from, &beacon, now) {
                Believed::Yes => {}
                refused => return refused,
            }
        }
        if !is_known {
            self.admit(root, round, now);
        }
        let Some(tree) = self.trees.get_mut(&root) else { return Believed::Yes };
        if is_new {
            tree.proofs.push((round, beacon.proof));
        }
        let misses = tree.heard.get(&from).map_or(0, |heard| heard.misses);
        let distance = distance.min(DISTANCE_MAX);
        tree.heard.insert(from, Heard { round, distance, is_child: is_parent, misses });
        if root == self.me {
            // We counted farther before a restart, and our rounds would be taken for old ones: overtake ourselves.
            if round > tree.round {
                tree.round = round;
                tree.own_round_at = Some(now);
            }
        } else {
            if is_parent && tree.parent == Some(from) {
                // Each would wait for the other. The one nearer to the root looks again.
                tree.parent = None;
            }
            self.decide(root, now);
        }
        Believed::Yes
    }

    /// We publish: while there is room for another root, we become one.
    pub fn on_publish(&mut self, now: Duration) {
        let good = self.trees.values().filter(|tree| self.is_live(tree, now) && !tree.is_failing()).count();
        if !self.trees.contains_key(&self.me) && good < self.settings.roots {
            let tree = Tree {
                proofs: vec![(self.first_round, self.seal.sign(self.first_round, false))],
                own_round_at: Some(now + self.settings.round),
                ..Tree::new(self.first_round, 0, now)
            };
            self.trees.insert(self.me, tree);
            self.mark(self.me, now);
        }
    }

    /// The tree to publish on: that of the nearest root, our own once others had time to join it.
    #[must_use]
    pub fn choose(&self, now: Duration) -> Option<NodeId> {
        let live = self.trees.iter().filter(|(_, tree)| self.is_live(tree, now) && !tree.is_failing());
        let best = live.min_by_key(|(root, tree)| {
            // Of new ones the oldest: it has come farthest.
            let is_new = now < tree.since + self.settings.settle;
            (is_new, if is_new { tree.since } else { Duration::ZERO }, tree.distance, **root)
        });
        best.map(|(root, _)| *root)
    }

    /// A message travels on a tree.
    pub fn on_used(&mut self, root: &NodeId, now: Duration) {
        if let Some(tree) = self.trees.get_mut(root) {
            tree.used_at = now;
        }
    }

    /// Whether messages of this tree are pushed to `peer`. On a tree that is not known, to everybody.
    #[must_use]
    pub fn is_eager(&self, root: &NodeId, peer: &NodeId, now: Duration) -> bool {
        let Some(tree) = self.trees.get(root) else { return true };
        if tree.parent == Some(*peer) {
            return true;
        }
        match tree.heard.get(peer) {
            Some(heard) => heard.is_child,
            None => now < tree.since + self.settings.settle,
        }
    }

    /// The parent in a tree.
    #[must_use]
    pub fn parent(&self, root: &NodeId) -> Option<NodeId> {
        self.trees.get(root)?.parent
    }

    /// The parent did not deliver a message that others had.
    pub fn on_miss(&mut self, root: &NodeId, parent: &NodeId, now: Duration) {
        let Some(tree) = self.trees.get_mut(root) else { return };
        if let Some(heard) = tree.heard.get_mut(parent) {
            heard.misses = (heard.misses + 1).min(MISSES_MAX);
            self.decide(*root, now);
        }
    }

    /// The parent delivered a message.
    pub fn on_delivered(&mut self, root: &NodeId, parent: &NodeId) {
        if let Some(heard) = self.trees.get_mut(root).and_then(|tree| tree.heard.get_mut(parent)) {
            heard.misses = heard.misses.saturating_sub(1);
        }
    }

    /// A message of this tree had to be asked for: here, or by a neighbour that should have been pushed one of ours.
    pub fn on_late(&mut self, root: &NodeId) {
        if let Some(tree) = self.trees.get_mut(root) {
            tree.missed = (tree.missed + 1).min(FAILING_AT * 2);
        }
    }

    /// A message of this tree was pushed: to us, or by us.
    pub fn on_pushed(&mut self, root: &NodeId) {
        if let Some(tree) = self.trees.get_mut(root) {
            tree.missed = tree.missed.saturating_sub(1);
        }
    }

    /// `peer` seems not to know how we stand in a tree.
    pub fn owe(&mut self, peer: NodeId, root: NodeId, now: Duration) {
        if self.trees.contains_key(&root) && self.links.contains_key(&peer) {
            self.owed.insert((peer, root));
            self.flush_at.get_or_insert(now + self.settings.gather);
        }
    }

    /// We leave: our tree ends with us.
    pub fn resign(&mut self, now: Duration) {
        if let Some(tree) = self.trees.remove(&self.me) {
            let round = tree.round.wrapping_add(1);
            self.retract(self.me, round, self.seal.sign(round, true), now);
        }
    }

    /// Time has passed. Returns beacons to be sent.
    pub fn on_tick(&mut self, now: Duration) -> Vec<(NodeId, Vec<Beacon>)> {
        let roots: Vec<NodeId> = self.trees.keys().copied().collect();
        let is_surplus = self.is_surplus(now);
        let is_first = self.trees.first_key_value().is_some_and(|(root, _)| *root == self.me);
        for root in roots {
            let Some(tree) = self.trees.get_mut(&root) else { continue };
            if let Some(at) = tree.own_round_at.filter(|at| *at <= now) {
                if tree.used_at + self.settings.idle <= now || is_surplus {
                    self.resign(now);
                    continue;
                }
                let round = self.settings.round;
                tree.own_round_at =
                    Some(at.max(now) + round + if is_first { Duration::ZERO } else { round / ROUND_SLACK });
                tree.round = tree.round.wrapping_add(1);
                tree.proofs = vec![(tree.round, self.seal.sign(tree.round, false))];
                tree.fresh_at = now;
                self.mark(root, now);
            } else if tree.own_round_at.is_none() && tree.fresh_at + self.settings.round * ROUNDS_LOST <= now
            {
                self.trees.remove(&root);
            } else if tree.held_until.is_some_and(|until| until <= now) {
                self.decide(root, now);
            }
        }
        if self.flush_at.is_some_and(|at| at <= now) { self.flush() } else { Vec::new() }
    }

    /// When the trees next care about the time.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let lost = self.settings.round * ROUNDS_LOST;
        let trees = self.trees.values().flat_map(|tree| {
            let end = tree.own_round_at.unwrap_or(tree.fresh_at + lost);
            [Some(end), tree.held_until].into_iter().flatten()
        });
        trees.chain(self.flush_at).min()
    }

    /// The trees there are, with our distance and our parent.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Duration, Option<NodeId>)> {
        self.trees
            .iter()
            .map(|(root, tree)| (*root, Duration::from_micros(tree.distance.into()), tree.parent))
    }

    fn is_live(&self, tree: &Tree, now: Duration) -> bool {
        tree.own_round_at.is_some()
            || tree.parent.is_some() && now < tree.fresh_at + self.settings.round * ROUNDS_LOST / 2
    }

    /// A tree that has lived for a while, and lives.
    fn is_settled(&self, tree: &Tree, now: Duration) -> bool {
        let is_new = now < tree.since + self.settings.round * ROUNDS_SETTLED;
        !is_new && !tree.is_failing() && self.is_live(tree, now)
    }

    /// A tree that may make room for another.
    fn is_weak(&self, tree: &Tree, now: Duration) -> bool {
        !self.is_settled(tree, now) || self.displaced_at + self.settings.round * ROUNDS_DISPLACED <= now
    }

    /// Whether ours is one root too many, which happens when several began at once. The largest name goes.
    fn is_surplus(&self, now: Duration) -> bool {
        let good = || self.trees.iter().filter(|(_, tree)| !tree.is_failing());
        let last = good().filter(|(_, tree)| self.is_weak(tree, now)).map(|(root, _)| *root).next_back();
        good().count() > self.settings.roots && last == Some(self.me)
    }

    /// Which tree would make room for this root, if all places are taken: one that fails, or else the largest name
    /// among the weak, so that all nodes come to the same choice.
    fn crowded_out(&self, root: NodeId, now: Duration) -> Option<NodeId> {
        let others = || self.trees.iter().rev().filter(|(last, _)| **last != self.me);
        let useless = others().find(|(_, tree)| tree.is_failing());
        let largest = || others().find(|(last, tree)| root < **last && self.is_weak(tree, now));
        useless.or_else(largest).map(|(last, _)| *last)
    }

    /// Whether a root that was not known would be taken.
    fn is_wanted(&self, root: NodeId, round: u32, now: Duration) -> bool {
        if self.retracted.get(&root).is_some_and(|(last, _)| round <= *last) {
            return false;
        }
        // One more than there may be, so that a root learns that it is too many.
        self.trees.len() <= self.settings.roots || self.crowded_out(root, now).is_some()
    }

    fn admit(&mut self, root: NodeId, round: u32, now: Duration) {
        if self.trees.len() > self.settings.roots {
            let gone = self.crowded_out(root, now).and_then(|gone| self.trees.remove(&gone));
            if gone.is_some_and(|gone| self.is_settled(&gone, now)) {
                self.displaced_at = now;
            }
        }
        self.trees.insert(root, Tree::new(round.wrapping_sub(1), DISTANCE_MAX, now));
    }

    /// Checks the proof of a beacon, if its sender may have one more checked.
    fn check(&mut self, from: NodeId, beacon: &Beacon, now: Duration) -> Believed {
        let Some(link) = self.links.get_mut(&from) else { return Believed::Yes };
        if link.checks_since + self.settings.round <= now {
            (link.checks, link.checks_since) = (0, now);
        }
        link.checks += 1;
        if link.checks > CHECKS_PER_TREE * (self.settings.roots as u32 + 1) {
            return Believed::TooMany;
        }
        let Beacon { root, round, distance, proof, .. } = beacon;
        if self.seal.holds(root, *round, *distance == RETRACTED, proof) {
            Believed::Yes
        } else {
            Believed::Forged
        }
    }

    fn on_retracted(&mut self, from: NodeId, beacon: Beacon, now: Duration) -> Believed {
        let Beacon { root, round, proof, .. } = beacon;
        let Some(tree) = self.trees.get(&root) else { return Believed::Yes };
        // Only the root ends its tree, and its word comes down the tree.
        if root == self.me || tree.parent != Some(from) || round <= tree.round {
            return Believed::Yes;
        }
        // It resigns in its next round, and never for long.
        if round - tree.round > RETRACTED_AHEAD {
            return Believed::Yes;
        }
        let believed = self.check(from, &beacon, now);
        if believed == Believed::Yes {
            self.trees.remove(&root);
            self.retract(root, round, proof, now);
        }
        believed
    }

    fn retract(&mut self, root: NodeId, round: u32, proof: Proof, now: Duration) {
        self.dirty.remove(&root);
        self.retracted.insert(root, (round, proof));
        while self.retracted.len() > self.settings.roots * 4 {
            self.retracted.pop_first();
        }
        self.mark(root, now);
    }

    fn mark(&mut self, root: NodeId, now: Duration) {
        self.dirty.insert(root);
        self.flush_at.get_or_insert(now + self.settings.gather);
    }

    fn cost(&self, peer: &NodeId) -> u32 {
        self.links.get(peer).and_then(|link| link.cost).unwrap_or(UNMEASURED)
    }

    /// Chooses the parent in a tree after something changed.
    fn decide(&mut self, root: NodeId, now: Duration) {
        let Some(tree) = self.trees.get(&root) else { return };
        if tree.own_round_at.is_some() {
            return;
        }
        let far = |peer: &NodeId, heard: &Heard| {
            heard
                .distance
                .saturating_add(self.cost(peer))
                .saturating_add(heard.misses * MISS_COST)
                .min(DISTANCE_MAX)
        };
        let open = || tree.heard.iter().filter(|(_, heard)| !heard.is_child);
        let Some(newest) = open().map(|(_, heard)| heard.round).max() else {
            // Whoever was waited for has gone or is below us, and a moment that has passed would be one to wake at for ever.
            if let Some(tree) = self.trees.get_mut(&root) {
                tree.held_until = None;
            }
            return;
        };
        let parent = tree.parent.and_then(|parent| Some((parent, *tree.heard.get(&parent)?)));
        let is_next = newest > tree.round;
        if is_next && parent.is_some_and(|(_, heard)| heard.round < newest) {
            // The parent is behind: it gets a moment, because it usually is the nearest.
            match tree.held_until {
                None => {
                    let until = now + self.settings.hold;
                    if let Some(tree) = self.trees.get_mut(&root) {
                        tree.held_until = Some(until);
                    }
                    return;
                }
                Some(until) if now < until => return,
                Some(_) => {}
            }
        }
        let round = newest.max(tree.round);
        let of_round = || open().filter(|(_, heard)| heard.round == round);
        let feasible = of_round().filter(|(_, heard)| is_next || heard.distance < tree.feasible);
        let best = feasible.map(|(peer, heard)| (far(peer, heard), *peer)).min();
        let held =
            parent.filter(|(_, heard)| heard.round == round).map(|(peer, heard)| (far(&peer, &heard), peer));
        let chosen = match (held, best) {
            // A change costs duplicates, so it must be worth it.
            (Some(held), Some(best)) if best.0 < held.0 - held.0 / 8 => Some(best),
            (Some(held), _) => Some(held),
            (None, Some(best)) => Some(best),
            // Nobody who cannot be below us. Somebody is better than nobody until the next round.
            (None, None) => open().map(|(peer, heard)| (far(peer, heard), *peer)).min(),
        };
        let Some((distance, chosen)) = chosen else { return };
        let Some(tree) = self.trees.get_mut(&root) else { return };
        let is_told =
            tree.parent == Some(chosen) && !is_next && distance.abs_diff(tree.distance) <= tree.distance / 8;
        tree.feasible = if is_next { distance } else { tree.feasible.min(distance) };
        if is_next {
            tree.fresh_at = now;
        }
        let is_first = self.trees.first_key_value().is_some_and(|(first, _)| *first == root);
        if is_next && is_first {
            self.keep_step(now);
        }
        let Some(tree) = self.trees.get_mut(&root) else { return };
        tree.round = round;
        tree.proofs.retain(|(of, _)| *of >= round);
        tree.held_until = None;
        tree.parent = Some(chosen);
        if !is_told {
            tree.distance = distance;
            self.mark(root, now);
        }
    }

    /// The root with the smallest name has begun a round: ours begins with it, if it would soon.
    fn keep_step(&mut self, now: Duration) {
        let soon = now + self.settings.round / 2;
        let own = self.trees.get_mut(&self.me).and_then(|own| own.own_round_at.as_mut());
        if let Some(at) = own.filter(|at| **at <= soon) {
            *at = now;
        }
    }

    fn flush(&mut self) -> Vec<(NodeId, Vec<Beacon>)> {
        self.flush_at = None;
        let (dirty, owed) = (std::mem::take(&mut self.dirty), std::mem::take(&mut self.owed));
        let mut out = Vec::new();
        for peer in self.links.keys() {
            let is_owed = |root: &&NodeId| dirty.contains(*root) || owed.contains(&(*peer, **root));
            let trees = self.trees.iter().filter(|(root, _)| is_owed(root)).filter_map(|(root, tree)| {
                let is_parent = tree.parent == Some(*peer);
                let is_known = tree.parent.is_some() || tree.own_round_at.is_some();
                let Tree { round, distance, ref proofs, .. } = *tree;
                let proof = proofs.iter().find(|(of, _)| *of == round).map(|(_, proof)| *proof)?;
                is_known.then_some(Beacon { root: *root, round, distance, is_parent, proof })
            });
            let gone = self.retracted.iter().filter(|(root, _)| dirty.contains(root)).map(|(root, gone)| {
                let (round, proof) = *gone;
                Beacon { root: *root, round, distance: RETRACTED, is_parent: false, proof }
            });
            let beacons: Vec<Beacon> = trees.chain(gone).collect();
            if !beacons.is_empty() {
                out.push((*peer, beacons));
            }
        }
        out
    }
}

impl Tree {
    /// A tree in this round whose root is so far away, of which nobody has said anything yet.
    fn new(round: u32, distance: u32, now: Duration) -> Self {
        Tree {
            round,
            proofs: Vec::new(),
            distance,
            feasible: distance,
            parent: None,
            heard: BTreeMap::new(),
            since: now,
            fresh_at: now,
            used_at: now,
            held_until: None,
            own_round_at: None,
            missed: 0,
        }
    }

    /// Whether messages do not come over it.
    fn is_failing(&self) -> bool {
        self.own_round_at.is_none() && self.missed >= FAILING_AT
    }

    fn is_proven(&self, round: u32) -> bool {
        self.proofs.iter().any(|(of, _)| *of == round)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOT: NodeId = node(9);

    const fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn settings() -> TreeSettings {
        TreeSettings { gather: ms(2), ..TreeSettings::default() }
    }

    fn trees(neighbours: &[(u8, u64)]) -> Trees {
        let mut trees = Trees::new(node(0), settings(), 100);
        for (peer, cost) in neighbours {
            trees.on_link_up(node(*peer), ms(0));
            trees.on_link_cost(node(*peer), ms(*cost));
        }
        trees
    }

    fn beacon(round: u32, distance_ms: u32) -> Beacon {
        Beacon { root: ROOT, round, distance: distance_ms * 1000, is_parent: false, proof: Proof::NONE }
    }

    #[test]
    fn the_parent_is_the_nearest_way_and_is_told_so() {
        let mut trees = trees(&[(1, 30), (2, 10)]);
        trees.on_beacon(node(1), beacon(1, 20), ms(0));
        assert_eq!(trees.parent(&ROOT), Some(node(1)));
        trees.on_beacon(node(2), beacon(1, 20), ms(1));
        assert_eq!(trees.parent(&ROOT), Some(node(2)));
        let told = trees.on_tick(ms(2));
        let parents: Vec<_> =
            told.iter().map(|(to, beacons)| (*to, beacons[0].is_parent, beacons[0].distance)).collect();
        assert_eq!(parents, [(node(1), false, 30_000), (node(2), true, 30_000)]);
        assert!(trees.is_eager(&ROOT, &node(2), ms(2)) && !trees.is_eager(&ROOT, &node(1), ms(2)));
    }

    #[test]
    fn who_may_be_below_us_is_no_parent_within_a_round() {
        let mut trees = trees(&[(1, 10), (2, 10)]);
        trees.on_beacon(node(1), beacon(1, 50), ms(0));
        // Its distance is not below ours of this round: its way may lead through us.
        trees.on_beacon(node(2), beacon(1, 60), ms(1));
        trees.on_link_down(node(1), ms(2));
        // Somebody is better than nobody, for the rest of the round.
        assert_eq!(trees.parent(&ROOT), Some(node(2)));
        let mut child = beacon(1, 60);
        child.is_parent = true;
        trees.on_beacon(node(2), child, ms(3));
        assert_eq!(trees.parent(&ROOT), None, "a child is never the parent");
    }

    #[test]
    fn a_parent_that_is_behind_gets_a_moment() {
        let mut trees = trees(&[(1, 10), (2, 10)]);
        trees.on_beacon(node(1), beacon(1, 10), ms(0));
        trees.on_beacon(node(2), beacon(2, 12), ms(3000));
        assert_eq!(trees.parent(&ROOT), Some(node(1)));
        trees.on_beacon(node(1), beacon(2, 10), ms(3020));
        assert_eq!(trees.parent(&ROOT), Some(node(1)));
        trees.on_beacon(node(2), beacon(3, 12), ms(6000));
        trees.on_tick(ms(6100));
        assert_eq!(trees.parent(&ROOT), Some(node(2)));
    }

    /// A parent was behind and got a moment; before that was over, it and whoever was ahead had gone. There was nobody to
    /// decide for, so the moment stayed: a node that slept until it was over woke at once, again and again, for as long as
    /// the tree was remembered. A simulated network stood still there.
    #[test]
    fn a_moment_for_a_parent_ends_also_when_there_is_nobody_left_to_choose() {
        let mut trees = trees(&[(1, 10), (2, 10)]);
        trees.on_beacon(node(1), beacon(1, 10), ms(0));
        trees.on_beacon(node(2), beacon(2, 12), ms(3000));
        trees.on_link_down(node(2), ms(3010));
        trees.on_link_down(node(1), ms(3020));
        assert_eq!(trees.parent(&ROOT), None);
        trees.on_tick(ms(3100));
        assert!(trees.wake_at() > Some(ms(3100)), "{:?}", trees.wake_at());
    }

    #[test]
    fn a_parent_that_misses_is_farther() {
        let mut trees = trees(&[(1, 10), (2, 10)]);
        trees.on_beacon(node(1), beacon(1, 10), ms(0));
        trees.on_beacon(node(2), beacon(1, 15), ms(1));
        trees.on_miss(&ROOT, &node(1), ms(2));
        assert_eq!(trees.parent(&ROOT), Some(node(2)));
    }

    #[test]
    fn roots_are_bounded_and_only_the_smallest_stay() {
        let mut trees = trees(&[(1, 10)]);
        for number in 10..60 {
            trees.on_beacon(node(1), Beacon { root: node(number), ..beacon(1, 1) }, ms(0));
        }
        for number in 2..5 {
            trees.on_beacon(node(1), Beacon { root: node(number), ..beacon(1, 1) }, ms(0));
        }
        let roots: Vec<NodeId> = trees.iter().map(|(root, ..)| root).collect();
        assert_eq!(roots.len(), TreeSettings::default().roots + 1);
        assert_eq!(roots[..3], [node(2), node(3), node(4)]);
        trees.on_publish(ms(0));
        assert_eq!(trees.choose(ms(0)), Some(node(2)), "no room for ours");
    }

    #[test]
    fn a_root_that_nobody_uses_resigns_and_its_tree_ends_everywhere() {
        let mut own = trees(&[(1, 10)]);
        own.on_publish(ms(0));
        assert_eq!(own.choose(ms(2000)), Some(node(0)));
        own.on_tick(ms(2));
        let mut last = Vec::new();
        for second in 1..70 {
            last.extend(own.on_tick(ms(second * 1000)));
            last.extend(own.on_tick(ms(second * 1000 + 2)));
        }
        assert_eq!(own.iter().count(), 0);
        let retracted = last.last().expect("rounds were told").1[0];
        assert_eq!((retracted.root, retracted.distance), (node(0), RETRACTED));

        let mut other = Trees::new(node(5), settings(), 0);
        other.on_link_up(node(0), ms(0));
        other.on_beacon(node(0), Beacon { distance: 0, round: retracted.round - 1, ..retracted }, ms(0));
        assert_eq!(other.iter().count(), 1);
        other.on_beacon(node(0), retracted, ms(1));
        assert_eq!(other.iter().count(), 0);
        other.on_beacon(node(0), Beacon { distance: 0, round: retracted.round - 1, ..retracted }, ms(2));
        assert_eq!(other.iter().count(), 0, "what was said before it does not bring it back");
    }

    #[test]
    fn nobody_counts_ahead_of_the_root_or_ends_its_tree_for_long() {
        let mut own = trees(&[(1, 10)]);
        own.on_publish(ms(0));
        let ahead = Beacon { root: node(0), ..beacon(5000, 1) };
        own.on_beacon(node(1), ahead, ms(10));
        let told = own.on_tick(ms(10));
        assert_eq!(told[0].1[0].round, 5001);

        let mut trees = trees(&[(1, 10)]);
        trees.on_beacon(node(1), beacon(7, 10), ms(0));
        trees.on_beacon(node(1), Beacon { distance: RETRACTED, ..beacon(6000, 0) }, ms(1));
        assert_eq!(trees.iter().count(), 1);
        trees.on_beacon(node(1), Beacon { distance: RETRACTED, ..beacon(8, 0) }, ms(2));
        assert_eq!(trees.iter().count(), 0);
        trees.on_beacon(node(1), beacon(9, 10), ms(3000));
        assert_eq!(trees.iter().count(), 1, "the root lives, and its next round says so");
    }

    /// Whoever has small names cannot take the place of trees that live, but one in a while; new trees still come to the
    /// same choice everywhere.
    #[test]
    fn trees_that_live_make_no_room_for_smaller_names() {
        let mut trees = trees(&[(1, 10)]);
        let roots = TreeSettings::default().roots as u8;
        let honest: Vec<NodeId> = (100..=100 + roots).map(node).collect();
        for round in 1..=13 {
            let now = ms(u64::from(round) * 3000);
            for root in &honest {
                trees.on_beacon(node(1), Beacon { root: *root, ..beacon(round, 1) }, now);
            }
            if round > 2 {
                for made_up in 10..60 {
                    trees.on_beacon(node(1), Beacon { root: node(made_up), ..beacon(round, 0) }, now);
                }
            }
            let left = trees.iter().filter(|(root, ..)| honest.contains(root)).count();
            let made_up = usize::from(round >= 10);
            assert_eq!(left, honest.len() - made_up, "round {round}");
        }
    }

    /// On a tree that its root made up, or whose links drop everything, messages have to be asked for: nobody publishes on
    /// it, whoever publishes becomes a root, and it makes room.
    #[test]
    fn a_tree_on_which_messages_do_not_arrive_is_given_up() {
        let mut trees = trees(&[(1, 10)]);
        let all: Vec<NodeId> = (100..109).map(node).collect();
        for round in 1..=3 {
            for root in &all {
                trees.on_beacon(
                    node(1),
                    Beacon { root: *root, ..beacon(round, 1) },
                    ms(u64::from(round) * 3000),
                );
            }
        }
        let now = ms(9500);
        trees.on_publish(now);
        assert_eq!(trees.choose(now), Some(node(100)), "no room for ours");
        for root in &all[..8] {
            (0..FAILING_AT).for_each(|_| trees.on_late(root));
        }
        assert_eq!(trees.choose(now), Some(node(108)), "one still works");
        trees.on_publish(now);
        assert_eq!(trees.choose(now + ms(2000)), Some(node(0)), "ours is nearest once it has settled");
        trees.on_beacon(node(1), Beacon { root: node(200), ..beacon(1, 1) }, now);
        assert!(trees.parent(&node(200)).is_some(), "and others find room");
        (0..FAILING_AT * 2).for_each(|_| trees.on_pushed(&node(100)));
        assert_eq!(trees.choose(now), Some(node(100)), "it is forgiven when it works again");
    }

    #[test]
    fn rounds_that_their_root_did_not_sign_are_refused_and_checked_once() {
        use ron_core::net::Identity;

        use crate::logic::message::TopicId;

        let identity = Identity::from_seed(&[3; 32]);
        let (root, topic) = (identity.node_id(), TopicId::of("news"));
        let seal = Seal::Signed { identity, topic };
        let mut trees = trees(&[(1, 10), (2, 10)]);
        trees.set_seal(Seal::Signed { identity: Identity::from_seed(&[4; 32]), topic });
        let say = |round, proof| Beacon { root, proof, ..beacon(round, 1) };
        let good = say(5, seal.sign(5, false));
        assert_eq!(trees.on_beacon(node(1), beacon(5, 1), ms(0)), Believed::Forged, "a root that nobody is");
        assert_eq!(trees.on_beacon(node(1), say(6, good.proof), ms(0)), Believed::Forged);
        assert_eq!(trees.iter().count(), 0);
        assert_eq!(trees.on_beacon(node(1), good, ms(0)), Believed::Yes);
        assert_eq!(trees.on_beacon(node(2), say(6, good.proof), ms(1)), Believed::Forged);
        let end = Beacon { distance: RETRACTED, ..say(6, good.proof) };
        assert_eq!(trees.on_beacon(node(1), end, ms(1)), Believed::Forged, "only the root ends its tree");
        assert_eq!(trees.iter().count(), 1);
        // The proof of a round is not looked at again, and travels on.
        assert_eq!(trees.on_beacon(node(2), say(5, Proof::NONE), ms(2)), Believed::Yes);
        let told = trees.on_tick(ms(10));
        assert!(told.iter().all(|(_, beacons)| beacons[0].proof == good.proof), "{told:?}");
        let end = Beacon { distance: RETRACTED, ..say(6, seal.sign(6, true)) };
        let parent = trees.parent(&root).expect("it has one");
        assert_eq!(trees.on_beacon(parent, end, ms(11)), Believed::Yes);
        assert_eq!(trees.iter().count(), 0);
        // Whoever has proofs checked without end is stopped.
        let spam =
            (100..1000).map(|round| trees.on_beacon(node(2), say(round, seal.sign(round, false)), ms(20)));
        assert!(spam.filter(|believed| *believed == Believed::TooMany).count() < 900);
        let forged = (0..100).map(|round| trees.on_beacon(node(1), beacon(round, 1), ms(20)));
        let checked = forged.filter(|believed| *believed == Believed::Forged).count();
        assert!(checked <= CHECKS_PER_TREE as usize * 9, "{checked} proofs were checked");
    }

    #[test]
    fn a_tree_whose_root_is_silent_is_forgotten() {
        let mut trees = trees(&[(1, 10)]);
        trees.on_beacon(node(1), beacon(1, 10), ms(0));
        assert_eq!(trees.choose(ms(5999)), Some(ROOT));
        assert_eq!(trees.choose(ms(6000)), None);
        trees.on_tick(ms(12_000));
        assert_eq!(trees.iter().count(), 0);
    }

    /// Two roots that began at different times: from the first round on that the one hears of the other, beacons of both
    /// travel together, and neither has more rounds than it should.
    #[test]
    fn roots_keep_step() {
        let mut trees = trees(&[(9, 10)]);
        trees.me = node(200);
        trees.on_publish(ms(1500));
        let (mut apart, mut together, mut own) = (0, 0, 0);
        for now in (1500..31_500).step_by(2) {
            if now % 3000 == 0 {
                trees.on_beacon(ROOT, beacon((now / 3000) as u32, 0), ms(now));
            }
            for (_, beacons) in trees.on_tick(ms(now)) {
                let is_own = beacons.iter().any(|beacon| beacon.root == node(200));
                own += usize::from(is_own);
                *if beacons.len() == 2 { &mut together } else { &mut apart } += 1;
            }
        }
        assert!(together >= 9 && apart <= 3, "{together} together, {apart} apart");
        assert!((10..=12).contains(&own), "{own} rounds in 30 s");
    }

    #[derive(Debug, Clone)]
    enum Happens {
        Up(u8),
        Down(u8),
        Said { from: u8, root: u8, round: u32, distance: u32, is_parent: bool },
        Retracted { from: u8, root: u8, round: u32 },
        Published,
        Missed(u8, u8),
        Passes(u64),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let (peer, root, round) = (1..4_u8, 6..8_u8, 1..6_u32);
        prop_oneof![
            1 => peer.clone().prop_map(Happens::Up),
            3 => peer.clone().prop_map(Happens::Down),
            6 => (peer.clone(), root.clone(), round.clone(), 0..50_u32, any::<bool>()).prop_map(
                |(from, root, round, distance, is_parent)| Happens::Said { from, root, round, distance, is_parent }
            ),
            1 => (peer.clone(), root.clone(), round)
                .prop_map(|(from, root, round)| Happens::Retracted { from, root, round }),
            1 => Just(Happens::Published),
            1 => (root, peer).prop_map(|(root, peer)| Happens::Missed(root, peer)),
            4 => prop_oneof![0..120_u64, 0..4000_u64].prop_map(Happens::Passes),
        ]
    }

    proptest! {
        /// Whoever sleeps until the trees care about the time has nothing to do there twice.
        #[test]
        fn nobody_is_woken_for_what_has_passed(all in proptest::collection::vec(happens(), 1..80)) {
            let (mut trees, mut now) = (trees(&[(1, 10), (2, 10), (3, 30)]), ms(0));
            for what in all {
                match what {
                    Happens::Up(peer) => trees.on_link_up(node(peer), now),
                    Happens::Down(peer) => trees.on_link_down(node(peer), now),
                    Happens::Said { from, root, round, distance, is_parent } => {
                        let said = Beacon { root: node(root), is_parent, ..beacon(round, distance) };
                        trees.on_beacon(node(from), said, now);
                    }
                    Happens::Retracted { from, root, round } => {
                        let said = Beacon { root: node(root), distance: RETRACTED, ..beacon(round, 0) };
                        trees.on_beacon(node(from), said, now);
                    }
                    Happens::Published => trees.on_publish(now),
                    Happens::Missed(root, peer) => trees.on_miss(&node(root), &node(peer), now),
                    Happens::Passes(time) => now += ms(time),
                }
                // A tree that keeps step with another is told of in the tick after.
                for _ in 0..3 {
                    trees.on_tick(now);
                }
                prop_assert!(trees.wake_at().is_none_or(|at| at > now), "{trees:?}");
            }
        }
    }
}
