//! Questions a second that one core answers out of the cache, through the public handle.

use std::time::{Duration, Instant};

use ron_core::{ClientKey, Deadline, Metrics, Supervisor};
use ron_index::Key;

use crate::{Outcome, median, serving};

/// Keys that are asked for in turn.
const KEYS: u32 = 10_000;

pub(crate) fn run(is_quick: bool) -> Outcome<()> {
    let (rounds, each) = if is_quick { (1, 100_000) } else { (9, 1_000_000_u64) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut registry = ron_core::prometheus_client::registry::Registry::default();
        let metrics = Metrics::register("ron_index", &mut registry);
        let host = Supervisor::new("bench");
        let index = serving::index(&host, metrics)?;
        let keys: Vec<Key> = (0..KEYS).map(serving::key).collect();
        let soon = Deadline::after(Duration::from_secs(3600));
        for key in &keys {
            index.resolve(key, soon).await?;
        }
        let client = index.for_client(ClientKey::from(std::net::Ipv4Addr::LOCALHOST));
        println!("| One core | Questions/s |\n|---|--:|");
        for (name, handle) in [("the host's own", &index), ("of a client, past its limits", &client)] {
            let mut results = Vec::new();
            for _ in 0..=rounds {
                let began = Instant::now();
                for number in 0..each {
                    let answer = handle.resolve(&keys[(number % u64::from(KEYS)) as usize], soon).await?;
                    assert!(answer.is_cached);
                }
                results.push(each as f64 / began.elapsed().as_secs_f64());
            }
            results.remove(0);
            println!("| {name} | {:.0} |", median(results));
        }
        host.shutdown().await;
        Ok(())
    })
}
