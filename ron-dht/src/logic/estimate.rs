//! How large the network is, and where it looks denser than it can be.
//!
//! Ids are spread evenly, so the distance to the k-th nearest peer of a random key tells how many there are. With that
//! known, a key whose neighbourhood is far too dense gives itself away: somebody made ids until they fell next to it,
//! to be the only ones asked about it. Such a key is then stored and looked for in its [`Region`], which is as wide as
//! k honest nodes are expected to be and does not shrink when ids are added.

use ron_core::NodeId;

use super::{
    Key,
    table::{BUCKETS, K},
};

/// One lookup is off by 22 % (k draws: one over the root of k). As a moving mean over this many the estimate is off by
/// 3 % and still follows a network that doubles within an hour of lookups.
const SAMPLES_REMEMBERED: u32 = 32;

/// Lookups before the estimate is used to accuse anybody: off by 8 % then.
const SAMPLES_SETTLED: u32 = 8;

/// A lookup that differs from the mean by more than this factor counts as if by this factor. Honest ones do not in a
/// hundred million; made-up neighbourhoods must not drag the estimate to where they look natural.
const SAMPLE_CLIP: f64 = 3.0;

/// Chance, in an honest network, of a neighbourhood this dense by luck, for each of the sixteen sizes tested. They
/// overlap so much that all together are wrong about five times as often.
const LUCK_MIN: f64 = 1e-4;

/// Neighbourhoods smaller than this are not judged: the key may be a node's own id, and four made-up ids leave sixteen
/// honest nodes of twenty.
const NEIGHBOURS_MIN: usize = 5;

/// A region holds this many times k honest nodes at least, by expectation: then it holds k with 98 %.
const REGION_MARGIN: f64 = 1.5;

/// Cells of a region that are searched on their own. The five outer ones hold 31 of 32 parts of its honest nodes.
const REGION_CELLS: usize = 5;

/// How many nodes there are, from what lookups found.
#[derive(Debug, Clone, Default)]
pub struct SizeEstimate {
    /// The mean distance from one node to the next, as a share of the key space.
    gap: f64,
    samples: u32,
}

impl SizeEstimate {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Self {
        SizeEstimate::default()
    }

    /// A lookup for `target` came to its end with the peers `closest`, nearest first, ourselves not among them.
    ///
    /// Only for targets nobody chose, as those of a bucket refresh: the same popular key again and again is one sample.
    /// Only for lookups that completed: peers that were not reached would look like peers that are not there.
    pub fn on_closest(&mut self, target: &Key, closest: &[NodeId]) {
        let gap = match closest.get(K - 1) {
            Some(kth) => share(target, kth) / K as f64,
            // Fewer than k are all there are.
            None => 1.0 / (closest.len() + 1) as f64,
        };
        let gap = match self.samples {
            0..SAMPLES_SETTLED => gap,
            _ => gap.clamp(self.gap / SAMPLE_CLIP, self.gap * SAMPLE_CLIP),
        };
        self.samples = self.samples.saturating_add(1);
        self.gap += (gap - self.gap) / f64::from(self.samples.min(SAMPLES_REMEMBERED));
    }

    /// How many nodes there are, ourselves included; nothing before the first lookup.
    #[must_use]
    pub fn nodes(&self) -> Option<f64> {
        (self.gap > 0.0).then(|| 1.0 / self.gap)
    }

    /// Whether the `closest` peers of `key`, nearest first, are so near that luck does not explain it; then where to
    /// store and look instead. `None` also as long as too little is known to tell.
    #[must_use]
    pub fn too_dense(&self, key: &Key, closest: &[NodeId]) -> Option<Region> {
        if self.samples < SAMPLES_SETTLED {
            return None;
        }
        let nodes = self.nodes()?;
        // In doubt the network is larger, so that our own error accuses nobody.
        let error = 2.0 / f64::from(self.samples.min(SAMPLES_REMEMBERED) * K as u32).sqrt();
        let suspicious = closest.iter().take(K).enumerate().skip(NEIGHBOURS_MIN - 1).any(|(before, id)| {
            let expected = nodes * (1.0 + error) * share(key, id);
            at_least(before + 1, expected) < LUCK_MIN
        });
        suspicious.then(|| Region::around(key, nodes))
    }
}

/// How many buckets of a table have somebody to hold in a network of `nodes`, by expectation. About log2 of it: of 256
/// buckets nearly all stay empty, so a table is judged by this and not by its size.
#[must_use]
pub fn expected_buckets(nodes: f64) -> f64 {
    let others = (nodes - 1.0).max(0.0);
    // Thirty buckets beyond the last that is likely, the chance is one in a billion.
    let last = (others.max(1.0).log2() as i32 + 30).min(BUCKETS as i32);
    (0..last).map(|index| 1.0 - (others * (-(0.5_f64.powi(index + 1))).ln_1p()).exp()).sum()
}

/// What the last look into the buckets of a table has shown, from the widest bucket on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    buckets: usize,
    /// Those in which there was nobody.
    vacant: Vec<usize>,
}

impl Looked {
    /// There was none: somebody may be in every bucket.
    #[must_use]
    pub fn nowhere() -> Self {
        Looked { buckets: BUCKETS, vacant: Vec::new() }
    }

    /// The next bucket was looked into.
    pub fn on_look(&mut self, is_vacant: bool) {
        if is_vacant {
            self.vacant.push(self.buckets);
        }
        self.buckets += 1;
    }

    /// How many buckets must have somebody in a network of `nodes`: this share of those that have by expectation, or of
    /// those that can have if these are fewer. A node whose id fell far from all others would otherwise wait for buckets
    /// that nobody can fill: about one in a hundred in a network of sixty-four.
    ///
    /// A vacant bucket is missed again once it is not `is_empty`: somebody has come since, or was there before and is
    /// silent now, and then we may be the one who is cut off.
    #[must_use]
    pub fn required_buckets(&self, nodes: f64, share: f64, is_empty: impl Fn(usize) -> bool) -> usize {
        let impossible = self.vacant.iter().filter(|bucket| is_empty(**bucket)).count();
        let possible = (self.buckets - impossible) as f64;
        (expected_buckets(nodes).min(possible) * share) as usize
    }
}

/// The part of the key space around a key where its k nearest honest nodes are, whoever else is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The key.
    pub key: Key,
    /// Leading bits that everything in the region shares with it.
    pub bits: u32,
}

impl Region {
    /// The region of `key` in a network of `nodes`.
    #[must_use]
    pub fn around(key: &Key, nodes: f64) -> Self {
        let bits = (nodes / (REGION_MARGIN * K as f64)).max(1.0).log2();
        Region { key: *key, bits: bits as u32 }
    }

    /// Whether `id` is in the region.
    #[must_use]
    pub fn holds(&self, id: &NodeId) -> bool {
        self.key.distance(id).leading_zeros() >= self.bits
    }

    /// Keys to look for instead of the key itself, whose neighbours are the wrong ones: the same key in each of the
    /// cells that the region consists of, the largest first. What is near it in its cell is, of that cell, what is
    /// nearest to the key, so the nearest of all together are the nearest honest nodes.
    pub fn points(&self) -> impl Iterator<Item = Key> + use<> {
        let Region { key, bits } = *self;
        let last = (bits as usize + REGION_CELLS).min(BUCKETS);
        (bits as usize..last).map(move |bit| {
            let mut bytes = *key.as_bytes();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            Key::from_bytes(bytes)
        })
    }
}

/// The distance as a share of the key space. Of 256 bits the first 64 count: enough for as many nodes as there are
/// grains of sand.
fn share(key: &Key, id: &NodeId) -> f64 {
    let distance = key.distance(id);
    let top = u64::from_be_bytes(*distance.as_bytes().first_chunk().expect("32 bytes have a first eight"));
    top as f64 / 2.0_f64.powi(64)
}

/// The chance of `count` or more where `expected` are expected, if they fall independently (Poisson).
fn at_least(count: usize, expected: f64) -> f64 {
    let fewer: f64 = (0..count)
        .scan((-expected).exp(), |term, at| {
            let this = *term;
            *term *= expected / (at + 1) as f64;
            Some(this)
        })
        .sum();
    1.0 - fewer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_id(rng: &mut fastrand::Rng) -> NodeId {
        let mut bytes = [0; 32];
        rng.fill(&mut bytes);
        NodeId::from_bytes(bytes)
    }

    fn network(nodes: usize, rng: &mut fastrand::Rng) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = (0..nodes).map(|_| random_id(rng)).collect();
        ids.sort_unstable();
        ids
    }

    /// The k nearest to `key` of ids in order: all those that share enough bits are side by side.
    fn nearest(ids: &[NodeId], key: &Key) -> Vec<NodeId> {
        let shared = |id: &NodeId| key.distance(id).leading_zeros();
        let at = ids.partition_point(|id| id.as_bytes() < key.as_bytes());
        let mut bits = 48;
        let (mut start, mut end) = (at, at);
        while bits > 0 && end - start < K {
            bits -= 1;
            while start > 0 && shared(&ids[start - 1]) >= bits {
                start -= 1;
            }
            while end < ids.len() && shared(&ids[end]) >= bits {
                end += 1;
            }
        }
        let mut near = ids[start..end].to_vec();
        near.sort_by_key(|id| key.distance(id));
        near.truncate(K);
        near
    }

    fn settled(ids: &[NodeId], lookups: usize, rng: &mut fastrand::Rng) -> SizeEstimate {
        let mut estimate = SizeEstimate::new();
        for _ in 0..lookups {
            let target = Key::from(random_id(rng));
            estimate.on_closest(&target, &nearest(ids, &target));
        }
        estimate
    }

    #[test]
    fn the_estimate_is_within_a_fifth() {
        for nodes in [100, 1000, 10_000, 100_000] {
            for seed in 0..5 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let ids = network(nodes, &mut rng);
                let size = settled(&ids, 64, &mut rng).nodes().expect("64 lookups");
                let off = size / nodes as f64 - 1.0;
                assert!(off.abs() < 0.2, "{size} of {nodes}, seed {seed}");
            }
        }
    }

    #[test]
    fn few_nodes_are_counted() {
        assert_eq!(SizeEstimate::new().nodes(), None);
        for peers in 0..K {
            let mut rng = fastrand::Rng::with_seed(peers as u64);
            let ids = network(peers, &mut rng);
            let size = settled(&ids, 10, &mut rng).nodes().expect("10 lookups");
            assert!((size - (peers + 1) as f64).abs() < 0.01, "{size} with {peers} peers");
        }
    }

    #[test]
    fn the_estimate_follows_the_network() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut ids = network(2000, &mut rng);
        let mut estimate = settled(&ids, 64, &mut rng);
        ids.extend(network(6000, &mut rng));
        ids.sort_unstable();
        for _ in 0..150 {
            let target = Key::from(random_id(&mut rng));
            estimate.on_closest(&target, &nearest(&ids, &target));
        }
        let size = estimate.nodes().expect("214 lookups");
        assert!((6400.0..9600.0).contains(&size), "{size} of 8000");
    }

    #[test]
    fn made_up_neighbourhoods_move_the_estimate_little() {
        let mut rng = fastrand::Rng::with_seed(2);
        let ids = network(2000, &mut rng);
        let mut estimate = settled(&ids, 64, &mut rng);
        let before = estimate.nodes().expect("64 lookups");
        let target = Key::from(random_id(&mut rng));
        estimate.on_closest(&target, &ground(&target, 1e-9, K, &mut rng));
        let after = estimate.nodes().expect("65 lookups");
        assert!((after / before - 1.0).abs() < 0.03, "{before} became {after}");
    }

    #[test]
    fn as_many_buckets_as_the_network_fills() {
        let check = |nodes: f64, expected: f64| {
            let buckets = expected_buckets(nodes);
            assert!((buckets - expected).abs() < 0.05, "{buckets} with {nodes}");
        };
        check(1.0, 0.0);
        check(2.0, 1.0);
        // Counted in tables of random ids.
        for nodes in [5, 50, 1000] {
            let mut rng = fastrand::Rng::with_seed(7);
            let rounds = 2000;
            let mut filled = 0;
            for _ in 0..rounds {
                let mut buckets = [false; BUCKETS];
                for _ in 1..nodes {
                    // The leading bit of one random word is all of an id that matters here.
                    buckets[rng.u64(..).leading_zeros() as usize] = true;
                }
                filled += buckets.iter().filter(|bucket| **bucket).count();
            }
            let counted = f64::from(u32::try_from(filled).expect("few")) / f64::from(rounds);
            let buckets = expected_buckets(f64::from(nodes));
            assert!((buckets - counted).abs() < 0.15, "{buckets} expected, {counted} counted");
        }
    }

    #[test]
    fn no_table_has_to_hold_more_than_there_is() {
        let check = |looked: &Looked, share: f64, empty: &[usize], required: usize| {
            assert_eq!(looked.required_buckets(64.0, share, |bucket| empty.contains(&bucket)), required);
        };
        check(&Looked::nowhere(), 0.8, &[], 5);
        let mut looked = Looked::default();
        for is_vacant in [false, false, true, false, true, true, true, true, true] {
            looked.on_look(is_vacant);
        }
        let empty = [2, 4, 5, 6, 7, 8];
        check(&looked, 0.8, &empty, 2);
        check(&looked, 1.0, &empty, 3);
        // Somebody came, or was there before: at first one, and then more than are needed.
        check(&looked, 1.0, &empty[1..], 4);
        check(&looked, 0.8, &[], 5);
        assert_eq!(looked.required_buckets(1.0, 1.0, |_| true), 0, "alone");
    }

    /// `count` ids within `radius` (a share of the key space) of `key`.
    fn ground(key: &Key, radius: f64, count: usize, rng: &mut fastrand::Rng) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = (0..count)
            .map(|_| {
                let mut bytes = *random_id(rng).as_bytes();
                let distance = (rng.f64() * radius * 2.0_f64.powi(64)) as u64;
                let top = u64::from_be_bytes(*key.as_bytes().first_chunk().expect("32 bytes"));
                bytes[..8].copy_from_slice(&(top ^ distance).to_be_bytes());
                NodeId::from_bytes(bytes)
            })
            .collect();
        ids.sort_by_key(|id| key.distance(id));
        ids
    }

    #[test]
    fn honest_neighbourhoods_are_not_accused() {
        for (nodes, keys, seed) in [(100, 2000, 1), (20_000, 10_000, 2)] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let ids = network(nodes, &mut rng);
            let estimate = settled(&ids, 32, &mut rng);
            let accused = (0..keys)
                .filter(|_| {
                    let key = Key::from(random_id(&mut rng));
                    estimate.too_dense(&key, &nearest(&ids, &key)).is_some()
                })
                .count();
            assert!(accused < keys / 1000, "{accused} of {keys} with {nodes} nodes");
        }
    }

    #[test]
    fn ids_ground_next_to_a_key_are_noticed() {
        let mut rng = fastrand::Rng::with_seed(4);
        let ids = network(10_000, &mut rng);
        let estimate = settled(&ids, 32, &mut rng);
        let noticed = |sybils: usize, rng: &mut fastrand::Rng| {
            let keys = 400;
            let noticed = (0..keys).filter(|_| {
                let key = Key::from(random_id(rng));
                let honest = nearest(&ids, &key);
                let mut found = ground(&key, share(&key, &honest[0]), sybils, rng);
                found.extend(honest);
                found.truncate(K);
                estimate.too_dense(&key, &found).is_some()
            });
            noticed.count() as f64 / f64::from(keys)
        };
        assert!(noticed(20, &mut rng) > 0.995);
        assert!(noticed(10, &mut rng) > 0.9);
        let young = settled(&ids, 3, &mut rng);
        let key = Key::from(random_id(&mut rng));
        assert_eq!(young.too_dense(&key, &ground(&key, 1e-9, K, &mut rng)), None, "too early to tell");
    }

    #[test]
    fn a_region_holds_the_honest_nearest() {
        let mut rng = fastrand::Rng::with_seed(5);
        let ids = network(5000, &mut rng);
        let (mut inside, mut reached) = (0, 0);
        for _ in 0..500 {
            let key = Key::from(random_id(&mut rng));
            let region = Region::around(&key, 5000.0);
            let honest = nearest(&ids, &key);
            inside += honest.iter().filter(|id| region.holds(id)).count();
            let found: Vec<NodeId> = region.points().flat_map(|point| nearest(&ids, &point)).collect();
            reached += honest.iter().filter(|id| found.contains(id)).count();
        }
        assert!(inside > 9900, "{inside} of 10000");
        assert!(reached > 9600, "{reached} of 10000");
        // A network smaller than k is one region, and its cells end where keys do.
        assert_eq!(Region::around(&Key::from_bytes([0; 32]), 7.0).bits, 0);
        assert_eq!(Region { key: Key::from_bytes([0; 32]), bits: 254 }.points().count(), 2);
    }
}
