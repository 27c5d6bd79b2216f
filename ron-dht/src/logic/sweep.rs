//! Providing many keys with few lookups.
//!
//! A lookup of one key finds the k nodes closest to it, and with them everybody in a whole corner of the key space:
//! all nodes that share more leading bits with the key than the farthest of the k does are among the k. Call that
//! corner covered. It has fewer than k nodes, and the corner one bit wider has at least k. For every key in the wider
//! corner the k closest nodes are in it too, so once all of it is covered, by a few more lookups, every key in it is
//! assigned without a lookup of its own, and exactly. Lookups are not perfect, so corners are made to overlap. The number
//! of lookups then depends on the number of nodes and not on the number of keys.
//!
//! A [`Sweep`] cuts the keys into regions by the estimated size of the network, so that several can be explored at
//! once and a sweep that is interrupted loses no more than those it was at. The estimate decides how work is shared out
//! and not what is right: a [`Region`] explores until it knows enough, however many nodes turn up.

use std::collections::{BTreeMap, BTreeSet};

use ron_core::{Distance, NodeId};

use super::{Contact, Key, estimate::Region as Neighbourhood};

/// Nodes expected in a region, as a multiple of k. Fewer, and regions explore each other's edges; more, and a failed
/// region repeats more.
const REGION_NODES: usize = 4;

/// Keys in a region, at least and on average: an estimate that is far too high must not make a region of every key.
const REGION_KEYS: usize = 64;

/// How many bits narrower a corner is taken than a lookup would allow. With one, every node is in the way of two
/// lookups and must be missed by both to be missed at all; lookups that find 98 of 100 then assign more than 99, for
/// twice as many lookups.
const OVERLAP_BITS: u32 = 1;

/// Up to this many keys in a corner, looking each of them up is no more work than covering the corner.
const FEW_KEYS: usize = 3;

/// Lookups that may fail in one region before it is left for the next sweep.
const FAILURES_MAX: usize = 3;

/// All points that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Corner {
    bits: [u8; 32],
    len: u32,
}

impl Corner {
    /// Everything.
    const ALL: Corner = Corner { bits: [0; 32], len: 0 };

    /// The points that share their first `len` bits with this one.
    fn around(point: &[u8; 32], len: u32) -> Self {
        let len = len.min(256);
        let mut bits = *point;
        for (at, byte) in bits.iter_mut().enumerate() {
            let kept = len.saturating_sub(at as u32 * 8).min(8);
            *byte &= (0xff00_u16 >> kept) as u8;
        }
        Corner { bits, len }
    }

    /// Whether the point is in it.
    fn contains(&self, point: &[u8; 32]) -> bool {
        Distance::between(&self.bits, point).leading_zeros() >= self.len
    }

    /// The corner that many bits wider.
    fn wider(&self, bits: u32) -> Corner {
        Corner::around(&self.bits, self.len.saturating_sub(bits))
    }

    /// Its two halves.
    fn halves(&self) -> [Corner; 2] {
        let mut other = self.bits;
        other[self.len as usize / 8] |= 0x80 >> (self.len % 8);
        [Corner { len: self.len + 1, ..*self }, Corner { bits: other, len: self.len + 1 }]
    }

    /// Its highest point; the lowest is `bits`.
    fn last(&self) -> [u8; 32] {
        let mut bits = self.bits;
        for (at, byte) in bits.iter_mut().enumerate() {
            let kept = self.len.saturating_sub(at as u32 * 8).min(8);
            *byte |= !((0xff00_u16 >> kept) as u8);
        }
        bits
    }

    /// This point, moved into the corner.
    fn place(&self, point: &[u8; 32]) -> Key {
        let (low, high) = (self.bits, self.last());
        Key::from_bytes(std::array::from_fn(|at| low[at] | (point[at] & high[at])))
    }

    /// Which of the sorted `points` are in it.
    fn range_of<T: AsRef<[u8; 32]>>(&self, points: &[T]) -> std::ops::Range<usize> {
        let from = points.partition_point(|point| *point.as_ref() < self.bits);
        let last = self.last();
        from..from + points[from..].partition_point(|point| *point.as_ref() <= last)
    }
}

/// Many keys on their way to those who keep them.
#[derive(Debug, Clone)]
pub struct Sweep {
    keys: Vec<Key>,
    k: usize,
    /// How many bits the keys of a region share.
    region_bits: u32,
    /// The first key that no region has been made of.
    at: usize,
}

impl Sweep {
    /// Plans to bring these keys to the `k` closest nodes each, in a network of about `network_size`.
    #[must_use]
    pub fn new(mut keys: Vec<Key>, k: usize, network_size: usize) -> Self {
        keys.sort_unstable();
        keys.dedup();
        let k = k.max(1);
        let regions = (network_size / k.saturating_mul(REGION_NODES)).min(keys.len() / REGION_KEYS);
        Sweep { keys, k, region_bits: regions.max(1).ilog2(), at: 0 }
    }

    /// The next region to explore; `None` when there is none left. Any number may be under way at once.
    pub fn next_region(&mut self) -> Option<Region> {
        let first = *self.keys.get(self.at)?;
        let corner = Corner::around(first.as_bytes(), self.region_bits);
        let until = corner.range_of(&self.keys).end;
        let keys = self.keys[self.at..until].to_vec();
        self.at = until;
        Some(Region::new(keys, self.k))
    }
}

/// Some neighbouring keys, and what is known of the nodes around them.
#[derive(Debug, Clone)]
pub struct Region {
    /// Sorted.
    keys: Vec<Key>,
    k: usize,
    known: BTreeMap<NodeId, Contact>,
    /// Corners of which all nodes are known.
    covered: Vec<Corner>,
    /// Our own keys that were looked up, whose k closest are known by that.
    asked: BTreeSet<Key>,
    /// What is being looked up, and what is taken as covered if that fails.
    asking: Option<(Key, Corner)>,
    /// Keys before this one have their k closest nodes among the known.
    next: usize,
    lookups: usize,
    failures: usize,
}

/// Which keys one node is to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// The node.
    pub peer: Contact,
    /// Sorted.
    pub keys: Vec<Key>,
}

impl Region {
    fn new(keys: Vec<Key>, k: usize) -> Self {
        Region {
            keys,
            k,
            known: BTreeMap::new(),
            covered: Vec::new(),
            asked: BTreeSet::new(),
            asking: None,
            next: 0,
            lookups: 0,
            failures: 0,
        }
    }

    /// The keys in it, sorted.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Lookups so far.
    #[must_use]
    pub fn lookups(&self) -> usize {
        self.lookups
    }

    /// What to look up next; `None` when enough is known, or when too much has failed. The same until it is answered.
    pub fn poll(&mut self) -> Option<Key> {
        if let Some((target, _)) = self.asking {
            return Some(target);
        }
        while self.next < self.keys.len() && self.failures < FAILURES_MAX {
            match self.wanted(self.keys[self.next]) {
                Ok(known) => self.next += known,
                Err(wanted) => {
                    self.asking = Some(wanted);
                    self.lookups += 1;
                    return Some(wanted.0);
                }
            }
        }
        None
    }

    /// Takes the nodes that a lookup of `target` found, the closest first. It `is_complete` if it ended because
    /// nobody closer was left to ask; a lookup that ran out of time or hops is not.
    pub fn on_found(&mut self, target: &Key, closest: &[Contact], is_complete: bool) {
        let Some((_, intended)) = self.asking.take_if(|(asked, _)| asked == target) else {
            return;
        };
        for contact in closest {
            self.known.entry(contact.id).or_insert_with(|| contact.clone());
        }
        let corner = match closest.get(self.k - 1) {
            Some(farthest) => {
                let shared = target.distance(&farthest.id).leading_zeros();
                Corner::around(target.as_bytes(), shared + 1 + OVERLAP_BITS)
            }
            // These are all there are.
            None if is_complete && !closest.is_empty() => Corner::ALL,
            None => intended,
        };
        // Nobody found is nothing learned, and the key stays unassigned unless a neighbour's lookup does better. It is a
        // failure however complete the lookup was: where there is nobody to ask, all are, and the same key would be looked
        // up for ever.
        if !is_complete || closest.is_empty() {
            self.failures += 1;
        }
        if !closest.is_empty() {
            self.covered.push(corner);
            self.asked.insert(*target);
        }
    }

    /// How many keys from this one on can be assigned; if none, what must be looked up first, and the corner this is
    /// meant to cover.
    fn wanted(&self, key: Key) -> Result<usize, (Key, Corner)> {
        if self.asked.contains(&key) {
            return Ok(1);
        }
        let itself = (key, Corner::around(key.as_bytes(), 256));
        let around = self.covered.iter().filter(|corner| corner.contains(key.as_bytes()));
        // The widest: it has fewer than k nodes, and so has everything in it.
        let corner = around.min_by_key(|corner| corner.len).ok_or(itself)?;
        let wider = corner.wider(1 + OVERLAP_BITS);
        let waiting = wider.range_of(&self.keys).end - self.next;
        let Some(gap) = self.gap_in(&wider) else {
            return Ok(waiting);
        };
        if waiting <= FEW_KEYS {
            return Err(itself);
        }
        // One of our own keys if possible: its own k closest are then known in any case.
        let own = gap.range_of(&self.keys);
        let target = self.keys[own].first().copied().unwrap_or_else(|| gap.place(key.as_bytes()));
        Err((target, gap))
    }

    /// A part of the corner that is not covered.
    fn gap_in(&self, corner: &Corner) -> Option<Corner> {
        let mut within = Vec::new();
        for covered in &self.covered {
            if covered.len <= corner.len && covered.contains(&corner.bits) {
                return None;
            }
            if corner.contains(&covered.bits) {
                within.push(*covered);
            }
        }
        if within.is_empty() {
            return Some(*corner);
        }
        corner.halves().iter().find_map(|half| self.gap_in(half))
    }

    /// For each node the keys it is to keep. Every key before the first unassigned one goes to its k closest nodes; if
    /// `made_up` says of those, the nearest first, that they are not to be trusted alone, to all that are known in the
    /// wider neighbourhood it names. A lookup whose k closest are crowded together covers little, so around them the
    /// honest ones were looked for as well.
    #[must_use]
    pub fn assign(&self, made_up: impl Fn(&Key, &[NodeId]) -> Option<Neighbourhood>) -> Vec<Assigned> {
        let nodes: Vec<&NodeId> = self.known.keys().collect();
        let mut assigned: BTreeMap<NodeId, Vec<Key>> = BTreeMap::new();
        for key in &self.keys[..self.next] {
            let mut near: Vec<NodeId> = closest(key, &nodes, self.k).into_iter().copied().collect();
            near.sort_unstable_by_key(|node| key.distance(node));
            if let Some(wider) = made_up(key, &near) {
                let new =
                    |node: &&&NodeId| wider.holds(node) && !near[..self.k.min(near.len())].contains(node);
                let more: Vec<NodeId> = nodes.iter().filter(new).map(|node| **node).collect();
                near.extend(more);
            }
            for node in near {
                assigned.entry(node).or_default().push(*key);
            }
        }
        assigned
            .into_iter()
            .filter_map(|(id, keys)| self.known.get(&id).map(|peer| Assigned { peer: peer.clone(), keys }))
            .collect()
    }
}

/// The `k` of the sorted `nodes` that are closest to `key`. They are in the narrowest corner around it that has as
/// many, and only those are compared.
fn closest<'n>(key: &Key, nodes: &[&'n NodeId], k: usize) -> Vec<&'n NodeId> {
    let (mut near, mut len) = (nodes, 0);
    while len < 256 {
        let narrower = &near[Corner::around(key.as_bytes(), len + 1).range_of(near)];
        if narrower.len() < k {
            break;
        }
        (near, len) = (narrower, len + 1);
    }
    let mut near = near.to_vec();
    if near.len() > k {
        near.select_nth_unstable_by_key(k, |node| key.distance(*node));
        near.truncate(k);
    }
    near
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const K: usize = 20;

    fn random_point(rng: &mut fastrand::Rng) -> [u8; 32] {
        let mut bytes = [0; 32];
        rng.fill(&mut bytes);
        bytes
    }

    fn random_keys(count: usize, rng: &mut fastrand::Rng) -> Vec<Key> {
        (0..count).map(|_| Key::from_bytes(random_point(rng))).collect()
    }

    /// A network whose lookups miss a node with some probability.
    struct Network {
        nodes: Vec<NodeId>,
        miss: f64,
        rng: fastrand::Rng,
    }

    impl Network {
        fn new(nodes: usize, miss: f64, seed: u64) -> Self {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut nodes: Vec<_> = (0..nodes).map(|_| NodeId::from_bytes(random_point(&mut rng))).collect();
            nodes.sort();
            Network { nodes, miss, rng }
        }

        /// By looking at every node: not by the code under test.
        fn nearest(&self, key: &Key, count: usize) -> Vec<NodeId> {
            let short = |bytes: &[u8; 32]| u128::from_be_bytes(bytes[..16].try_into().unwrap());
            let target = short(key.as_bytes());
            let mut nodes: Vec<_> =
                self.nodes.iter().map(|node| (short(node.as_bytes()) ^ target, *node)).collect();
            let count = count.min(nodes.len());
            if count < nodes.len() {
                nodes.select_nth_unstable(count);
            }
            nodes.truncate(count);
            nodes.sort_unstable();
            nodes.into_iter().map(|(_, node)| node).collect()
        }

        fn look_up(&mut self, key: &Key) -> Vec<Contact> {
            let found = self.nearest(key, K + K / 2);
            let found = found.into_iter().filter(|_| self.miss == 0.0 || self.rng.f64() >= self.miss);
            found.take(K).map(|id| Contact { id, addrs: [].into() }).collect()
        }
    }

    struct Swept {
        lookups: usize,
        /// Keys that were assigned, and keys that were given up.
        done: usize,
        left: usize,
        given: HashMap<Key, Vec<NodeId>>,
    }

    impl Swept {
        /// Of the true k closest nodes of every `step`-th key, the share that was given it.
        fn recall(&self, network: &Network, keys: &[Key], step: usize) -> f64 {
            let (mut hits, mut all) = (0, 0);
            for key in keys.iter().step_by(step) {
                let given = self.given.get(key).map_or(&[][..], |nodes| nodes);
                let truth = network.nearest(key, K);
                hits += truth.iter().filter(|node| given.contains(node)).count();
                all += truth.len();
            }
            hits as f64 / all as f64
        }
    }

    fn sweep(network: &mut Network, keys: &[Key], estimate: usize) -> Swept {
        let mut sweep = Sweep::new(keys.to_vec(), K, estimate);
        let (mut lookups, mut given): (_, HashMap<_, Vec<_>>) = (0, HashMap::new());
        let (mut done, mut left) = (0, 0);
        while let Some(mut region) = sweep.next_region() {
            while let Some(target) = region.poll() {
                lookups += 1;
                region.on_found(&target, &network.look_up(&target), true);
            }
            for Assigned { peer, keys } in region.assign(|_, _| None) {
                for key in keys {
                    given.entry(key).or_default().push(peer.id);
                }
            }
            done += region.next;
            left += region.keys().len() - region.next;
        }
        Swept { lookups, done, left, given }
    }

    #[test]
    fn a_hundred_thousand_keys_need_few_lookups() {
        let seed = std::env::var("RON_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        // Without optimisation a hundred thousand take a minute.
        let many = if cfg!(debug_assertions) { 30_000 } else { 100_000 };
        for (nodes, count, miss, at_least) in
            [(1000, many, 0.0, 1.0), (1000, 10_000, 0.02, 0.99), (10_000, 10_000, 0.0, 1.0)]
        {
            let mut network = Network::new(nodes, miss, seed);
            let keys = random_keys(count, &mut fastrand::Rng::with_seed(seed + 1));
            let swept = sweep(&mut network, &keys, nodes);
            let recall = swept.recall(&network, &keys, nodes / 40);
            println!(
                "seed {seed}: {nodes} nodes, lookups miss {miss}: {} lookups for {count} keys, recall {recall:.4}",
                swept.lookups,
            );
            // As many as there are nodes to find, not keys to bring: 0.2 % of one for each of a hundred thousand.
            assert!(swept.lookups * 5 <= nodes, "{}", swept.lookups);
            assert!(recall >= at_least, "{recall}");
            assert_eq!((swept.done, swept.left), (keys.len(), 0));
            assert!(swept.given.len() == keys.len() && swept.given.values().all(|nodes| nodes.len() == K));
        }
    }

    #[test]
    fn a_wrong_estimate_costs_little_and_spoils_nothing() {
        let mut network = Network::new(1000, 0.0, 3);
        let keys = random_keys(5000, &mut fastrand::Rng::with_seed(4));
        let right = sweep(&mut network, &keys, 1000).lookups;
        for estimate in [0, 1, 100, 10_000, usize::MAX] {
            let swept = sweep(&mut network, &keys, estimate);
            println!("estimate {estimate}: {} lookups, {right} with the right one", swept.lookups);
            assert_eq!(swept.recall(&network, &keys, 100), 1.0);
            assert!(swept.lookups <= right * 8);
        }
    }

    #[test]
    fn few_keys_are_looked_up_one_by_one() {
        for (nodes, count) in [(1000, 1), (1000, 2), (1000, 10), (50, 30), (5000, 300)] {
            let mut network = Network::new(nodes, 0.0, 5);
            let keys = random_keys(count, &mut fastrand::Rng::with_seed(6));
            let swept = sweep(&mut network, &keys, nodes);
            assert!(swept.lookups <= count, "{} for {count} keys", swept.lookups);
            assert_eq!(swept.recall(&network, &keys, 1), 1.0);
        }
    }

    #[test]
    fn a_network_of_fewer_than_k_nodes_takes_one_lookup() {
        let mut network = Network::new(7, 0.0, 5);
        let keys = random_keys(500, &mut fastrand::Rng::with_seed(6));
        let swept = sweep(&mut network, &keys, 7);
        assert_eq!(swept.lookups, 1);
        assert!(swept.given.len() == 500 && swept.given.values().all(|nodes| nodes.len() == 7));
    }

    #[test]
    fn keys_in_one_place_are_swept_too() {
        // All under one byte, as names with a common prefix would be if they were not hashed.
        let mut network = Network::new(1000, 0.0, 8);
        let mut rng = fastrand::Rng::with_seed(9);
        let mut keys = random_keys(5000, &mut rng);
        for key in &mut keys {
            let mut bytes = *key.as_bytes();
            (bytes[0], bytes[1]) = (0x5a, bytes[1] & 0x0f);
            *key = Key::from_bytes(bytes);
        }
        let swept = sweep(&mut network, &keys, 1000);
        assert!(swept.lookups <= 20, "{}", swept.lookups);
        assert_eq!(swept.recall(&network, &keys, 50), 1.0);
    }

    #[test]
    fn a_region_that_fails_is_left_for_the_next_time() {
        let keys = random_keys(100, &mut fastrand::Rng::with_seed(12));
        let mut sweep = Sweep::new(keys, K, 10);
        let mut region = sweep.next_region().unwrap();
        let mut asked = 0;
        while let Some(target) = region.poll() {
            assert_eq!(region.poll(), Some(target), "the same until it is answered");
            // An answer to something else changes nothing.
            region.on_found(&Key::from_bytes([0; 32]), &[], true);
            asked += 1;
            region.on_found(&target, &[], false);
        }
        assert_eq!(asked, FAILURES_MAX);
        assert_eq!((region.next, region.keys().len()), (0, 100));
        assert!(region.assign(|_, _| None).is_empty());
        assert!(sweep.next_region().is_none());
    }

    #[test]
    fn lookups_that_always_end_early_still_come_to_an_end() {
        let mut network = Network::new(1000, 0.3, 13);
        let keys = random_keys(2000, &mut fastrand::Rng::with_seed(14));
        let mut sweep = Sweep::new(keys, K, 1000);
        let mut asked = 0;
        while let Some(mut region) = sweep.next_region() {
            while let Some(target) = region.poll() {
                asked += 1;
                region.on_found(&target, &network.look_up(&target)[..5], false);
            }
        }
        assert!(asked <= 8 * FAILURES_MAX);
    }

    #[test]
    fn where_nobody_is_found_the_sweep_gives_up() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut region = Sweep::new(random_keys(50, &mut rng), 5, 100).next_region().expect("fifty keys");
        let mut asked = 0;
        while let Some(target) = region.poll() {
            asked += 1;
            assert!(asked <= FAILURES_MAX);
            region.on_found(&target, &[], true);
        }
        assert!(region.assign(|_, _| None).is_empty());
    }

    #[test]
    fn corners() {
        let point = [0b1010_1010; 32];
        let corner = Corner::around(&point, 11);
        assert_eq!((corner.bits[0], corner.bits[1], corner.bits[2]), (0b1010_1010, 0b1010_0000, 0));
        assert_eq!((corner.last()[0], corner.last()[1], corner.last()[2]), (0b1010_1010, 0b1011_1111, 0xff));
        assert_eq!(corner.wider(1), Corner::around(&point, 10));
        assert_eq!(corner.wider(1).halves()[1], corner);
        assert!(Corner::ALL.contains(&[0xff; 32]) && Corner::ALL.last() == [0xff; 32]);
        assert_eq!(Corner::around(&point, 256).last(), point);
        let moved = corner.place(&[0xff; 32]);
        assert_eq!(moved.as_bytes(), &corner.last());
    }

    proptest! {
        #[test]
        fn a_corner_is_the_points_that_share_its_bits(a: [u8; 32], b: [u8; 32], shared in 0..256u32, len in 0..=256u32) {
            // A point that shares at least so many bits with `a`.
            let b = *Corner::around(&a, shared).place(&b).as_bytes();
            let corner = Corner::around(&a, len);
            let is_in = Distance::between(&a, &b).leading_zeros() >= len;
            prop_assert_eq!(corner.contains(&b), is_in);
            prop_assert_eq!(corner.bits <= b && b <= corner.last(), is_in);
            prop_assert_eq!(corner.range_of(&[Key::from_bytes(b)]).len(), usize::from(is_in));
            prop_assert!(corner.contains(corner.place(&b).as_bytes()));
        }

        #[test]
        fn hostile_answers_end(seed: u64, answers in prop::collection::vec((0..30usize, any::<bool>()), 0..60)) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut sweep = Sweep::new(random_keys(50, &mut rng), 5, 100);
            let (mut answers, mut asked) = (answers.into_iter().cycle(), 0);
            while let Some(mut region) = sweep.next_region() {
                while let Some(target) = region.poll() {
                    asked += 1;
                    prop_assert!(asked < 1000);
                    let (count, is_complete) = answers.next().unwrap_or((3, true));
                    let found: Vec<_> = (0..count)
                        .map(|_| Contact { id: NodeId::from_bytes(random_point(&mut rng)), addrs: [].into() })
                        .collect();
                    region.on_found(&target, &found, is_complete);
                }
                let _ = region.assign(|_, _| None);
                }
        }
    }
}
