//! The five promises that every subsystem of the family keeps.

use std::{sync::Arc, time::Duration};

use ron_core::{Deadline, Metrics, TaskSpec, now, prometheus_client::registry::Registry as Prometheus};
use ron_registry::{Registry, RegistryError, Settings, store::MemoryStore};

use super::world::{
    LOG_KEY, ORIGIN, Odd, Oddity, bind, clock, draft, founded, host, policy, scraped, soon, start,
};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let host = host();
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let settings =
        Settings { proposals_lane: 2, approvals_lane: 2, commit_timeout: HOUR, ..Settings::default() };
    let mut scrape = Prometheus::default();
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock());
    let builder = builder.metrics(Metrics::register("ron_registry", &mut scrape));
    let registry = builder.start(store.clone(), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::Slow(HOUR));
    // One block is on its way; the next one gathers until it is full, and then nothing is taken in.
    let gathered = 1024 + 1 + 2;
    for number in 0..gathered {
        let registry = registry.clone();
        host.spawn(CALLER, move |_| async move {
            drop(bind(&registry, &format!("n/{number}"), "x", &[0]).await);
        });
        if number % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(1)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let before = now();
    let refused = bind(&registry, "one/more", "x", &[0]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Busy { what: "proposals", .. }), "{refused:?}");
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(!registry.status().ready.writes);
    let text = scraped(&scrape);
    let counted = |family: &str| {
        let lines = text.lines().filter(|line| line.starts_with(family) && line.contains("\"proposals\""));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    assert!(counted("ron_registry_busy_rejections_total") > 0.0, "{text}");
    assert!(counted("ron_registry_queue_depth") > 0.0, "{text}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    store.be(Oddity::Slow(HOUR));
    for millis in [100, 1000] {
        let (before, budget) = (now(), Duration::from_millis(millis));
        let proposal = draft(&registry, &format!("n/{millis}"), "x");
        let approvals = super::world::approvals(&proposal, &[0]);
        let late = registry.submit(proposal, approvals, Deadline::after(budget)).await.unwrap_err();
        assert_eq!(late, RegistryError::Timeout { op: "propose" });
        assert!(before.elapsed() <= budget.mul_f64(1.05), "{:?}", before.elapsed());
    }
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_handle_says_canceled() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let receipt = bind(&registry, "a", "x", &[0]).await.unwrap();
    registry.shutdown().await;
    assert_eq!(bind(&registry, "b", "x", &[0]).await, Err(RegistryError::Canceled));
    assert_eq!(registry.pending(soon()).await, Err(RegistryError::Canceled));
    assert_eq!(registry.updates(3).next().await, Ok(None));
    assert_eq!(registry.head().version, receipt.version, "what is known is still known");
}

#[tokio::test(start_paused = true)]
async fn shutting_down_twice_is_harmless() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let (first, second) = tokio::join!(registry.shutdown(), registry.shutdown());
    assert_eq!((first, first.aborted), (second, 0));
    assert_eq!(registry.shutdown().await, first);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_tasks() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    let other = registry.clone();
    drop(registry);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(bind(&other, "a", "x", &[0]).await.is_ok());
    assert!(Arc::strong_count(&store) > 1, "the tasks have it");
    drop(other);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(Arc::strong_count(&store), 1, "and nobody has it any more");
    host.shutdown().await;
}

/// What was accepted is committed, or its caller is told: a stop in the middle loses nothing in silence.
#[tokio::test(start_paused = true)]
async fn a_stop_drains_what_was_decided() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    store.be(Oddity::Slow(Duration::from_millis(500)));
    let caller = registry.clone();
    let task = host.spawn(CALLER, |_| async move {
        let receipt = bind(&caller, "a", "x", &[0]).await.unwrap();
        assert_eq!(receipt.version, 2);
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(registry.shutdown().await.aborted, 0);
    assert_eq!(task.ended().await, ron_core::TaskEnd::Completed);
    assert_eq!(registry.head().version, 2);
    host.shutdown().await;
}

/// Case 60: the committer is the only one who knows where the log ends, so nobody goes on in its place. Whoever waits is
/// told, the host is told, what was decided before stays readable, and a new start finds the log as it was.
#[tokio::test(start_paused = true)]
async fn a_committer_that_panics_is_told_and_loses_nothing() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    bind(&registry, "a", "1", &[0]).await.unwrap();
    let before = registry.head();
    store.be(Oddity::Panic);
    let waiting = bind(&registry, "b", "2", &[0]).await.unwrap_err();
    assert!(matches!(waiting, RegistryError::Canceled | RegistryError::Panicked { .. }), "{waiting:?}");
    let fatal = tokio::time::timeout(Duration::from_secs(5), host.fatal()).await;
    assert!(fatal.is_ok(), "the host is told");
    store.be(Oddity::None);
    let late = bind(&registry, "c", "3", &[0]).await.unwrap_err();
    assert_eq!(late, RegistryError::Canceled);
    assert_eq!(registry.head(), before);
    host.shutdown().await;

    let again = super::world::host();
    let registry = start(store, &again).await;
    assert_eq!(registry.head(), before);
    bind(&registry, "b", "2", &[0]).await.unwrap();
    again.shutdown().await;
}
