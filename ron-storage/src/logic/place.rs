//! Which nodes an object belongs on.
//!
//! Each node has a score for each object, made of both names and the node's weight; the best scores have it (rendezvous
//! hashing). Everybody who knows the same nodes computes the same, nobody keeps a map, and a node that comes or goes changes
//! only what it itself gains or loses. Zones come first: the second node of a zone is taken when every zone has one.
//!
//! Scores are whole numbers, because two machines need not agree on the last bit of a logarithm, and must on this.

use ron_core::{ContentId, NodeId};

/// The weight of a node that says nothing about itself.
pub const WEIGHT_DEFAULT: u32 = 100;

/// The largest weight. A node of this weight gets a million times what one of weight 1 gets.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// Bits behind the point of a logarithm: shares are off by less than a ten-thousandth.
const FRACTION: u32 = 20;

/// A node that may be given objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub id: NodeId,
    /// What fails together with it.
    pub zone: u64,
    /// How much it takes compared with others; with none it is given nothing.
    pub weight: u32,
}

/// The nodes that `object` belongs on, the best first: as many as `count`, if there are so many.
#[must_use]
pub fn place(nodes: &[Candidate], object: &ContentId, count: usize) -> Vec<NodeId> {
    let mut scored: Vec<(u64, &Candidate)> = nodes
        .iter()
        .filter(|node| node.weight > 0)
        .map(|node| (score(object, &node.id, node.weight), node))
        .collect();
    // The name decides where scores are equal.
    scored.sort_unstable_by_key(|(score, node)| (*score, node.id));
    let mut taken = Vec::with_capacity(count.min(scored.len()));
    let mut zones: Vec<(u64, usize)> = Vec::new();
    let mut turns: Vec<(usize, usize)> = Vec::with_capacity(scored.len());
    for (at, (_, node)) in scored.iter().enumerate() {
        // How many of its own zone are better.
        let turn = match zones.iter_mut().find(|(zone, _)| *zone == node.zone) {
            Some((_, members)) => {
                *members += 1;
                *members - 1
            }
            None => {
                zones.push((node.zone, 1));
                0
            }
        };
        turns.push((turn, at));
    }
    turns.sort_unstable();
    taken.extend(turns.iter().take(count).map(|(_, at)| scored[*at].1.id));
    taken
}

/// How good a node is for an object; less is better. For a hash `u` in (0, 1] this is `-log2(u) / weight`, which makes shares
/// proportional to weights.
#[must_use]
pub fn score(object: &ContentId, node: &NodeId, weight: u32) -> u64 {
    let word = |bytes: &[u8; 32], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
        u64::from_be_bytes(word)
    };
    let (object, node) = (object.as_bytes(), node.as_bytes());
    let hash = mix(mix(word(object, 0) ^ word(node, 0)) ^ word(object, 1).wrapping_add(word(node, 1)));
    // 26 bits, moved up so that dividing by the weight leaves enough of them.
    (minus_log2(hash) << 36) / u64::from(weight.clamp(1, WEIGHT_MAX))
}

/// The end of splitmix64: every bit of the input moves half of the bits of the output.
fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// `-log2((hash + 1) / 2^64)` with [`FRACTION`] bits behind the point.
fn minus_log2(hash: u64) -> u64 {
    let Some(number) = hash.checked_add(1) else { return 0 };
    let whole = number.leading_zeros();
    // The number as 1.x with 31 bits behind the point; each squaring yields one more bit of its logarithm.
    let mut rest = (number << whole) >> 32;
    let mut log = 0_u64;
    for _ in 0..FRACTION {
        rest = (rest * rest) >> 31;
        log <<= 1;
        if rest >> 32 != 0 {
            rest >>= 1;
            log |= 1;
        }
    }
    (u64::from(whole + 1) << FRACTION) - log
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u64, zone: u64, weight: u32) -> Candidate {
        Candidate { id: NodeId::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes()), zone, weight }
    }

    fn object(number: u64) -> ContentId {
        ContentId::of(&number.to_be_bytes())
    }

    #[test]
    fn logarithms_are_those_of_the_library() {
        for hash in [0, 1, 2, 1 << 20, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX, 0x1234_5678_9abc_def0]
        {
            let exact = 64.0 - (hash as f64 + 1.0).log2();
            let ours = minus_log2(hash) as f64 / f64::from(1 << FRACTION);
            assert!((exact - ours).abs() < 1e-5, "{hash}: {ours}, not {exact}");
        }
    }

    /// Placement is part of what nodes agree on: these never change.
    #[test]
    fn placement_stays_what_it_is() {
        let nodes: Vec<_> = (0..5).map(|number| node(number, number % 2, 100)).collect();
        let at = |id: &NodeId| nodes.iter().position(|node| node.id == *id).unwrap();
        let placed: Vec<Vec<usize>> =
            (0..4).map(|number| place(&nodes, &object(number), 3).iter().map(at).collect()).collect();
        assert_eq!(placed, [[2, 1, 4], [2, 3, 0], [2, 3, 0], [2, 3, 4]]);
    }

    #[test]
    fn shares_follow_weights() {
        let nodes: Vec<_> =
            (0..4).map(|number| node(number, number, [50, 100, 150, 300][number as usize])).collect();
        let mut shares = [0_u32; 4];
        for number in 0..20_000 {
            let best = place(&nodes, &object(number), 1)[0];
            shares[nodes.iter().position(|node| node.id == best).unwrap()] += 1;
        }
        for (node, share) in nodes.iter().zip(shares) {
            let expected = f64::from(node.weight) / 600.0;
            let share = f64::from(share) / 20_000.0;
            assert!((share - expected).abs() < 0.012, "{share}, not {expected}");
        }
    }

    /// Nodes may say that they have any weight up to the largest; all above ten thousand counted as ten thousand.
    #[test]
    fn weights_differ_up_to_the_largest() {
        let nodes = [node(0, 0, WEIGHT_MAX / 10), node(1, 1, WEIGHT_MAX)];
        let first = (0..2000).filter(|number| place(&nodes, &object(*number), 1) == [nodes[0].id]).count();
        assert!((120..250).contains(&first), "{first} of 2000 on the one that should have an eleventh");
    }

    fn nodes() -> impl Strategy<Value = Vec<Candidate>> {
        prop::collection::vec((0..5_u64, 0..4_u32), 1..16).prop_map(|drawn| {
            let of = |(number, (zone, weight)): (usize, (u64, u32))| node(number as u64, zone, weight * 70);
            drawn.into_iter().enumerate().map(of).collect()
        })
    }

    proptest! {
        #[test]
        fn zones_come_first_and_nobody_comes_twice(nodes in nodes(), number: u64, count in 0..8_usize) {
            let placed = place(&nodes, &object(number), count);
            let able = nodes.iter().filter(|node| node.weight > 0).count();
            prop_assert_eq!(placed.len(), count.min(able));
            let zone = |id: &NodeId| nodes.iter().find(|node| node.id == *id).unwrap().zone;
            let mut zones: Vec<_> = nodes.iter().filter(|node| node.weight > 0).map(|node| node.zone).collect();
            zones.sort_unstable();
            zones.dedup();
            let mut used: Vec<_> = placed.iter().map(zone).collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), placed.len().min(zones.len()));
            let mut names = placed.clone();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), placed.len());
            // Whoever asks for fewer gets the same, and how nodes are listed does not matter.
            let fewer = place(&nodes, &object(number), count / 2);
            prop_assert_eq!(&fewer[..], &placed[..fewer.len()]);
            let reversed: Vec<_> = nodes.iter().rev().copied().collect();
            prop_assert_eq!(place(&reversed, &object(number), count), placed);
        }

        /// When a node goes, what it had goes to one other each, and nothing else moves. Coming is the same backwards.
        #[test]
        fn only_what_must_move_moves(nodes in nodes(), number: u64, count in 1..6_usize, gone: prop::sample::Index) {
            let gone = nodes[gone.index(nodes.len())];
            let left: Vec<_> = nodes.iter().filter(|node| node.id != gone.id).copied().collect();
            let (before, after) = (place(&nodes, &object(number), count), place(&left, &object(number), count));
            let lost: Vec<_> = before.iter().filter(|id| !after.contains(id)).collect();
            let gained = after.iter().filter(|id| !before.contains(id)).count();
            if before.contains(&gone.id) {
                prop_assert_eq!(lost, [&gone.id]);
                prop_assert!(gained <= 1);
            } else {
                prop_assert!(lost.is_empty() && gained == 0);
            }
        }

        /// A node that is given more weight only gains, and others lose only to it.
        #[test]
        fn more_weight_only_attracts(nodes in nodes(), number: u64, count in 1..6_usize, which: prop::sample::Index) {
            let at = which.index(nodes.len());
            let mut heavier = nodes.clone();
            heavier[at].weight += 500;
            let (before, after) = (place(&nodes, &object(number), count), place(&heavier, &object(number), count));
            for id in after.iter().filter(|id| !before.contains(id)) {
                prop_assert_eq!(*id, nodes[at].id);
            }
        }
    }
}
