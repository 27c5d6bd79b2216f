//! The five promises that every subsystem of the family keeps, shown on the smallest one.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{CallError, Deadline, LaneSpec, Metrics, Phase, Pool, PoolSpec, Supervisor, TaskSpec, now};

use super::{settle, soon};

const WORK: LaneSpec = LaneSpec::new("test", "work", 2);
const WORKER: TaskSpec = TaskSpec::new("test", "worker");

/// One worker whose every job takes `Duration` of paused time.
fn sleeper(supervisor: &Supervisor) -> Pool<Duration, ()> {
    let spec = PoolSpec { lane: WORK, task: WORKER, workers: NonZeroUsize::MIN };
    Pool::start(supervisor, spec, |pause, _| tokio::time::sleep(pause))
}

const LONG: Duration = Duration::from_secs(3600);

/// Calls that nobody awaits, so that one runs and two wait.
async fn fill(supervisor: &Supervisor, pool: &Pool<Duration, ()>) {
    for _ in 0..3 {
        let pool = pool.clone();
        supervisor.spawn(TaskSpec::new("test", "caller"), |_| async move {
            let _ = pool.call("sleep", LONG, Deadline::after(LONG)).await;
        });
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let (pool_tasks, callers) = (Supervisor::new("pool"), Supervisor::new("callers"));
    let pool = sleeper(&pool_tasks);
    fill(&callers, &pool).await;
    let before = now();
    let refused = pool.call("sleep", LONG, Deadline::after(LONG)).await;
    assert!(matches!(refused, Err(CallError::Busy { what: "work", .. })), "{refused:?}");
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let supervisor = Supervisor::new("pool");
    let pool = sleeper(&supervisor);
    let before = now();
    let late = pool.call("sleep", LONG, soon()).await;
    assert_eq!(late, Err(CallError::Timeout { op: "sleep" }));
    assert_eq!(before.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_handle_says_canceled() {
    let supervisor = Supervisor::new("pool");
    let pool = sleeper(&supervisor);
    supervisor.shutdown().await;
    assert_eq!(pool.call("sleep", Duration::ZERO, soon()).await, Err(CallError::Canceled));
}

#[tokio::test(start_paused = true)]
async fn shutting_down_twice_is_harmless_and_says_the_same() {
    let supervisor = Supervisor::new("pool");
    let _pool = sleeper(&supervisor);
    let (first, second) = tokio::join!(supervisor.shutdown(), supervisor.shutdown());
    assert_eq!(first, second);
    assert_eq!(first.drained, 1);
    assert_eq!(supervisor.shutdown().await, first);
    assert_eq!(supervisor.phase(), Phase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_tasks() {
    let metrics = Metrics::default();
    let host = Supervisor::builder("host").metrics(metrics.clone()).start();
    let pool = sleeper(&host);
    assert_eq!(host.running(), 1);
    drop(pool);
    settle().await;
    assert_eq!(host.running(), 0, "the workers end with the last handle of their pool");
}
