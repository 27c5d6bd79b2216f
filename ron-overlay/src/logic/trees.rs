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

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::NodeId;

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
    /// How long beacons wait for others to travel with. Default 2 ms.
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
            gather: Duration::from_millis(2),
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
}

/// The trees of one node on one topic.
#[derive(Debug)]
pub struct Trees {
    me: NodeId,
    settings: TreeSettings,
    trees: BTreeMap<NodeId, Tree>,
    /// One-way cost of each neighbour's link in microseconds.
    links: BTreeMap<NodeId, Option<u32>>,
    /// Beacons that single neighbours are owed.
    owed: BTreeSet<(NodeId, NodeId)>,
    /// Trees that all neighbours are to be told of.
    dirty: BTreeSet<NodeId>,
    /// Roots that resigned, to be told once.
    retracted: BTreeMap<NodeId, u32>,
    flush_at: Option<Duration>,
    first_round: u32,
}

#[derive(Debug)]
struct Tree {
    round: u32,
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
            links: BTreeMap::new(),
            owed: BTreeSet::new(),
            dirty: BTreeSet::new(),
            retracted: BTreeMap::new(),
            flush_at: None,
            first_round,
        }
    }

    /// A neighbour has come. It is told of the trees that live.
    pub fn on_link_up(&mut self, peer: NodeId, now: Duration) {
        self.links.insert(peer, None);
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
        if let Some(cost) = self.links.get_mut(&peer) {
            *cost = Some(u32::try_from(one_way.as_micros()).unwrap_or(u32::MAX).min(DISTANCE_MAX));
        }
    }

    /// A neighbour says how far it is from a root.
    pub fn on_beacon(&mut self, from: NodeId, beacon: Beacon, now: Duration) {
        if !self.links.contains_key(&from) {
            return;
        }
        let Beacon { root, round, distance, is_parent } = beacon;
        if distance == RETRACTED {
            self.on_retracted(from, root, round, now);
            return;
        }
        if !self.trees.contains_key(&root) && (root == self.me || !self.admit(root, round, now)) {
            return;
        }
        let Some(tree) = self.trees.get_mut(&root) else { return };
        let misses = tree.heard.get(&from).map_or(0, |heard| heard.misses);
        // A round that is far ahead would lock out all that come.
        if tree.parent.is_some() && round.wrapping_sub(tree.round) > 1 << 16 && round > tree.round {
            return;
        }
        let distance = distance.min(DISTANCE_MAX);
        tree.heard.insert(from, Heard { round, distance, is_child: is_parent, misses });
        if root == self.me {
            // Somebody counts ahead of us, and our own rounds would be taken for old ones: overtake it.
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
    }

    /// We publish: while there is room for another root, we become one.
    pub fn on_publish(&mut self, now: Duration) {
        let live = self.trees.values().filter(|tree| self.is_live(tree, now)).count();
        if !self.trees.contains_key(&self.me) && live < self.settings.roots {
            let tree = Tree {
                round: self.first_round,
                distance: 0,
                feasible: 0,
                parent: None,
                heard: BTreeMap::new(),
                since: now,
                fresh_at: now,
                used_at: now,
                held_until: None,
                own_round_at: Some(now + self.settings.round),
            };
            self.trees.insert(self.me, tree);
            self.mark(self.me, now);
        }
    }

    /// The tree to publish on: that of the nearest root, our own once others had time to join it.
    #[must_use]
    pub fn choose(&self, now: Duration) -> Option<NodeId> {
        let live = self.trees.iter().filter(|(_, tree)| self.is_live(tree, now));
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
            self.retract(self.me, tree.round.wrapping_add(1), now);
        }
    }

    /// Time has passed. Returns beacons to be sent.
    pub fn on_tick(&mut self, now: Duration) -> Vec<(NodeId, Vec<Beacon>)> {
        let roots: Vec<NodeId> = self.trees.keys().copied().collect();
        let is_surplus = self.is_surplus();
        for root in roots {
            let Some(tree) = self.trees.get_mut(&root) else { continue };
            if let Some(at) = tree.own_round_at.filter(|at| *at <= now) {
                if tree.used_at + self.settings.idle <= now || is_surplus {
                    self.resign(now);
                    continue;
                }
                tree.own_round_at = Some(at.max(now) + self.settings.round);
                tree.round = tree.round.wrapping_add(1);
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

    /// Whether ours is one root too many, which happens when several began at once. The largest name goes.
    fn is_surplus(&self) -> bool {
        self.trees.len() > self.settings.roots && self.trees.keys().next_back() == Some(&self.me)
    }

    /// Makes room for a root that was not known. Beyond the number of trees, the smallest names stay: all nodes come
    /// to the same choice.
    fn admit(&mut self, root: NodeId, round: u32, now: Duration) -> bool {
        if self.retracted.get(&root).is_some_and(|last| round <= *last) {
            return false;
        }
        // One more than there may be, so that a root learns that it is too many.
        if self.trees.len() > self.settings.roots {
            let last = self.trees.keys().rev().find(|last| **last != self.me).copied();
            match last {
                Some(last) if root < last => self.trees.remove(&last),
                _ => return false,
            };
        }
        let tree = Tree {
            round: round.wrapping_sub(1),
            distance: DISTANCE_MAX,
            feasible: DISTANCE_MAX,
            parent: None,
            heard: BTreeMap::new(),
            since: now,
            fresh_at: now,
            used_at: now,
            held_until: None,
            own_round_at: None,
        };
        self.trees.insert(root, tree);
        true
    }

    fn on_retracted(&mut self, from: NodeId, root: NodeId, round: u32, now: Duration) {
        let Some(tree) = self.trees.get_mut(&root) else { return };
        // Only the root ends its tree, and its word comes down the tree.
        if root == self.me || tree.parent != Some(from) || round <= tree.round {
            return;
        }
        // A parent that ends it for long does not speak for the root, which resigns in its next round.
        if round - tree.round > RETRACTED_AHEAD {
            return;
        }
        self.trees.remove(&root);
        self.retract(root, round, now);
    }

    fn retract(&mut self, root: NodeId, round: u32, now: Duration) {
        self.dirty.remove(&root);
        self.retracted.insert(root, round);
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
        self.links.get(peer).copied().flatten().unwrap_or(UNMEASURED)
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
        let Some(newest) = open().map(|(_, heard)| heard.round).max() else { return };
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
        tree.round = round;
        tree.held_until = None;
        tree.parent = Some(chosen);
        if !is_told {
            tree.distance = distance;
            self.mark(root, now);
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
                let is_known = is_parent || tree.parent.is_some() || tree.own_round_at.is_some();
                let Tree { round, distance, .. } = *tree;
                is_known.then_some(Beacon { root: *root, round, distance, is_parent })
            });
            let gone = self.retracted.iter().filter(|(root, _)| dirty.contains(root)).map(|(root, round)| {
                Beacon { root: *root, round: *round, distance: RETRACTED, is_parent: false }
            });
            let beacons: Vec<Beacon> = trees.chain(gone).collect();
            if !beacons.is_empty() {
                out.push((*peer, beacons));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: NodeId = node(9);

    const fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn trees(neighbours: &[(u8, u64)]) -> Trees {
        let mut trees = Trees::new(node(0), TreeSettings::default(), 100);
        for (peer, cost) in neighbours {
            trees.on_link_up(node(*peer), ms(0));
            trees.on_link_cost(node(*peer), ms(*cost));
        }
        trees
    }

    fn beacon(round: u32, distance_ms: u32) -> Beacon {
        Beacon { root: ROOT, round, distance: distance_ms * 1000, is_parent: false }
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
            let beacon = Beacon { root: node(number), round: 1, distance: 1000, is_parent: false };
            trees.on_beacon(node(1), beacon, ms(0));
        }
        for number in 2..5 {
            let beacon = Beacon { root: node(number), round: 1, distance: 1000, is_parent: false };
            trees.on_beacon(node(1), beacon, ms(0));
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

        let mut other = Trees::new(node(5), TreeSettings::default(), 0);
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
        let ahead = Beacon { root: node(0), round: 5000, distance: 1, is_parent: false };
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

    #[test]
    fn a_tree_whose_root_is_silent_is_forgotten() {
        let mut trees = trees(&[(1, 10)]);
        trees.on_beacon(node(1), beacon(1, 10), ms(0));
        assert_eq!(trees.choose(ms(5999)), Some(ROOT));
        assert_eq!(trees.choose(ms(6000)), None);
        trees.on_tick(ms(12_000));
        assert_eq!(trees.iter().count(), 0);
    }
}
