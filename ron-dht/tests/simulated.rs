//! Whole nodes on a simulated network: what they find under churn, loss, silence and lies, and that a seed replays.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{collections::HashSet, time::Duration};

use ron_core::Deadline;
use ron_dht::{
    logic::lookup::{Reason, Verdict},
    sim::{Conditions, Testnet},
};

fn within(seconds: u64) -> Deadline {
    Deadline::after(Duration::from_secs(seconds))
}

/// What many searches came to.
#[derive(Debug, Default)]
struct Runs {
    count: usize,
    found: usize,
    recall: f64,
    hops: Vec<u8>,
    took: Vec<Duration>,
    questions: usize,
}

impl Runs {
    fn success(&self) -> f64 {
        self.found as f64 / self.count as f64
    }

    fn quantile<T: Ord + Copy>(values: &[T], percent: usize) -> T {
        let mut values = values.to_vec();
        values.sort_unstable();
        values[(values.len() * percent / 100).min(values.len() - 1)]
    }
}

/// Random nodes look for random others.
async fn searches(net: &mut Testnet, count: usize) -> Runs {
    let live: Vec<usize> = net.live().collect();
    let mut runs = Runs { count, ..Runs::default() };
    for _ in 0..count {
        let asker = live[net.rng().usize(..live.len())];
        let wanted = live[net.rng().usize(..live.len())];
        if asker == wanted {
            runs.found += 1;
            continue;
        }
        let began = ron_core::now();
        let closest = net.node(asker).find_node(net.id(wanted), within(20)).await.unwrap();
        let Verdict { hops, rpcs, .. } = closest.verdict;
        runs.took.push(ron_core::now() - began);
        runs.hops.push(hops);
        runs.questions += rpcs;
        runs.found += usize::from(closest.peers.iter().any(|peer| peer.id == net.id(wanted)));
        let got: HashSet<_> = closest.peers.iter().map(|peer| peer.id).collect();
        let mut truth = net.closest(net.id(wanted), 21);
        truth.retain(|id| *id != net.id(asker));
        truth.truncate(20);
        let hits = truth.iter().filter(|id| got.contains(id)).count();
        runs.recall += hits as f64 / truth.len() as f64 / count as f64;
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn the_nearest_are_found_in_few_hops() {
    let mut net = Testnet::builder(300).seed(1).build().await;
    let built = net.net().messages();
    let runs = searches(&mut net, 100).await;
    println!("{built:?} then {:?}, at {:?}", net.net().messages(), runs);
    assert!(runs.success() >= 0.999 && runs.recall >= 0.99, "{runs:?}");
    assert!(Runs::quantile(&runs.hops, 99) <= 5, "{runs:?}");
}
