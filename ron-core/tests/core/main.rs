//! The runtime contract through its public handles, on a paused clock.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]
#![allow(clippy::disallowed_methods, reason = "tests hold threads back with plain channels")]

mod contract;
mod feeds;
mod journals;
mod lanes;
mod pools;
mod regressions;
mod supervisors;

use std::time::Duration;

use prometheus_client::registry::Registry;
use ron_core::{Deadline, Metrics};

fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(100))
}

fn registered() -> (Registry, Metrics) {
    let mut registry = Registry::default();
    let metrics = Metrics::register("ron_test", &mut registry);
    (registry, metrics)
}

/// The value of one exported series, for example `busy_rejections_total{endpoint="work"}`.
fn series(registry: &Registry, name: &str) -> Option<u64> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("ron_test_{name} ")))?;
    Some(line.parse().unwrap())
}

/// Lets every task that can run do so, without moving the clock.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Panics, with a return type that a task may have.
fn explode(why: &str) {
    panic!("{why}");
}
