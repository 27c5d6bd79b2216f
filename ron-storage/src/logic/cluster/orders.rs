//! Whatever may happen, in every order or in any.

use super::*;

/// All orders of three mishaps out of nine on four nodes, of two where code is not optimised: whatever happens within what two copies or 2+1 survive, and lets
/// itself be mended in between, everything is back in the end.
#[test]
fn every_order_of_a_few_mishaps_ends_well() {
    const MISHAPS: usize = 9;
    let turns = if cfg!(debug_assertions) { 2 } else { 3 };
    for order in 0..MISHAPS.pow(turns) {
        let mut cluster = Cluster::new(4);
        let objects = [cluster.put_copies(0, 0, 2), cluster.put_shards(1, 1, 2, 1)];
        cluster.settle();
        for turn in 0..turns {
            let mishap = order / MISHAPS.pow(turn) % MISHAPS;
            let node = mishap % 4;
            match mishap {
                // It goes, or comes back; one at a time.
                0..=3 if cluster.nodes[node].presence == Presence::Away => cluster.set(node, Presence::Up),
                0..=3 if cluster.nodes.iter().all(|node| node.presence == Presence::Up) => {
                    cluster.set(node, Presence::Away);
                }
                0..=3 => {}
                4 | 5 if cluster.is_up(&name(node)) => {
                    // Its disk is empty or damaged.
                    let held = if mishap == 4 { Holding::Absent } else { Holding::Bad };
                    for piece in cluster.ones[&name(node)].disk.clone().into_keys() {
                        cluster.tell(name(node), piece, held);
                    }
                }
                6 if !cluster.nodes.iter().any(|node| node.presence != Presence::Up) => {
                    cluster.set(node, Presence::Draining);
                }
                7 => {
                    for number in 0..4 {
                        if cluster.nodes[number].presence == Presence::Draining {
                            cluster.set(number, Presence::Up);
                        }
                    }
                }
                8 => cluster.claim(objects[0], Standing::Deleted, vec![]),
                _ => {}
            }
            cluster.settle();
            assert!(objects.iter().all(|object| cluster.is_whole(object)), "order {order}, turn {turn}");
        }
        cluster.check_settled();
        assert!(!cluster.news.iter().any(|news| matches!(news, News::Lost(_))), "order {order}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Losses that the policies survive, at any moments, with whatever comes back: nothing is lost and all is met.
    #[test]
    fn within_the_policy_nothing_is_lost(
        events in prop::collection::vec((0..10_usize, 0..4_u8), 1..24),
        seed in 0..1000_usize,
    ) {
        let mut cluster = Cluster::new(10);
        for number in 0..6 {
            cluster.put_copies(seed + number, number, 3);
            cluster.put_shards(100 + number, number, 4, 2);
        }
        cluster.settle();
        for (node, what) in events {
            // Two at most are away or wiped before everything is mended.
            let down = cluster.nodes.iter().filter(|node| node.presence == Presence::Away).count();
            match what {
                0 if cluster.nodes[node].presence == Presence::Away => cluster.set(node, Presence::Up),
                0 | 1 if down < 2 => cluster.set(node, Presence::Away),
                2 if down == 0 && cluster.is_up(&name(node)) => {
                    for piece in cluster.ones[&name(node)].disk.clone().into_keys() {
                        cluster.tell(name(node), piece, Holding::Bad);
                    }
                }
                _ => {}
            }
            if what >= 2 || down >= 1 {
                cluster.settle();
            }
        }
        cluster.settle();
        for number in 0..10 {
            cluster.set(number, Presence::Up);
        }
        cluster.settle();
        cluster.check_settled();
        for one in cluster.ones.values() {
            prop_assert_eq!(one.plan.count(Health::Lost) + one.plan.count(Health::Under), 0);
        }
    }
}

/// Three nodes with a copy each, whose ideas of who should have the object differ in every way, and who ask, promise, delete,
/// crash and wait in every order: never is the last copy deleted.
mod trimming {
    use std::collections::HashSet;

    use super::*;

    const NODES: usize = 3;

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct State {
        has: [bool; NODES],
        promises: [Promises; NODES],
        /// Whom each has yet to ask, while it trims.
        asking: [Option<Vec<usize>>; NODES],
        now: u8,
        crashes: u8,
    }

    /// How many of them lose what they promised and what they were about to do.
    const CRASHES: u8 = if cfg!(debug_assertions) { 1 } else { 2 };

    /// What one may take to delete; promises hold for five of these.
    const TICK: Duration = TRIM_WITHIN;

    /// Where a state may lead. If nodes are lax, they promise to keep what they are about to trim.
    fn steps(state: &State, views: &[Vec<usize>; NODES], is_lax: bool) -> Vec<State> {
        let (piece, now) = (content(0), TICK * state.now.into());
        let mut next = Vec::new();
        for (node, view) in views.iter().enumerate() {
            let mut after = state.clone();
            if let Some(asking) = &mut after.asking[node] {
                match asking.pop() {
                    Some(prover) => {
                        let promised = after.promises[prover].promise(piece, now);
                        let is_promised =
                            promised.is_ok() || (is_lax && promised == Err(PromiseError::Trimming));
                        let proved = after.has[prover] && is_promised;
                        if !proved {
                            after.asking[node] = None;
                            after.promises[node].end(&piece);
                        }
                    }
                    None => {
                        if after.promises[node].may_delete(&piece, now) {
                            after.has[node] = false;
                        }
                        after.asking[node] = None;
                        after.promises[node].end(&piece);
                    }
                }
                next.push(after);
            } else if state.has[node] && !view.contains(&node) && !view.is_empty() {
                let mut after = state.clone();
                if after.promises[node].begin(piece, now).is_ok() {
                    after.asking[node] = Some(view.clone());
                    next.push(after);
                }
            }
            if state.crashes < CRASHES {
                let mut after = state.clone();
                (after.promises[node], after.asking[node]) = (Promises::default(), None);
                after.crashes += 1;
                next.push(after);
            }
        }
        if state.now < 6 {
            next.push(State { now: state.now + 1, ..state.clone() });
        }
        next
    }

    /// States that were seen, and whether the last copy went in one of them.
    fn explore(views: &[Vec<usize>; NODES], is_lax: bool) -> (usize, bool) {
        let start = State {
            has: [true; NODES],
            promises: Default::default(),
            asking: Default::default(),
            now: 0,
            crashes: 0,
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            if !state.has.contains(&true) {
                return (seen.len(), true);
            }
            for after in steps(&state, views, is_lax) {
                if seen.insert(after.clone()) {
                    open.push(after);
                }
            }
        }
        (seen.len(), false)
    }

    fn all_views() -> Vec<[Vec<usize>; NODES]> {
        // Each trusts one other, or both others.
        let of = |node: usize| {
            let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
            [vec![others[0]], vec![others[1]], others]
        };
        let mut all = Vec::new();
        for a in of(0) {
            for b in of(1) {
                for c in of(2) {
                    all.push([a.clone(), b.clone(), c.clone()]);
                }
            }
        }
        all
    }

    #[test]
    fn the_last_copy_is_never_deleted_in_any_order() {
        assert!(TRIM_WITHIN * 2 < PROMISE);
        let mut states = 0;
        for views in all_views().iter().take(if cfg!(debug_assertions) { 6 } else { 27 }) {
            let (seen, is_lost) = explore(views, false);
            assert!(!is_lost, "{views:?}");
            states += seen;
        }
        println!("{states} states");
    }

    #[test]
    fn without_the_rule_it_is_found() {
        assert!(all_views().iter().any(|views| explore(views, true).1));
    }
}
