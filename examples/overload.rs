//! What happens when ten times more work arrives than can be done?
//!
//! A pool with a lane of 64 and four workers is offered ten times the jobs it can do. What is accepted waits no
//! longer than the lane's length allows, what is refused is refused in microseconds, and memory does not move.
//! Exits with an error if any of the three is not so. `--quick` runs for two seconds instead of ten.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{CallError, Deadline, LaneSpec, Pool, PoolSpec, Supervisor, TaskSpec, now};

const WORKERS: usize = 4;
const JOB: Duration = Duration::from_millis(5);
/// Ten times what four workers do in a millisecond, if a job takes six with the timer's grain.
const OFFERED_PER_MS: usize = 10 * WORKERS / 6 + 1;

const WORK: LaneSpec = LaneSpec::new("overload", "work", 64)
    .flow("clients → workers")
    .why("sixteen jobs ahead per worker: nobody waits longer than seventeen jobs take");
/// The bound that the lane states, in jobs: everything ahead of a newcomer, spread over the workers, and one job more,
/// because the worker that takes it may just have begun another. In time it is that of so many of the longest job, which
/// a busy machine makes longer.
const JOBS_AHEAD: u32 = (WORK.capacity.div_ceil(WORKERS) + 1) as u32;

/// What a client would wait: far longer than the bound allows also on a machine that is busy with other things. How long the accepted
/// have waited is judged at the end.
const PATIENCE: Duration = Duration::from_secs(60);

const WORKER: TaskSpec = TaskSpec::new("overload", "worker").what("takes about six milliseconds per job");
const CLIENT: TaskSpec =
    TaskSpec::new("overload", "client").what("offers one job and takes no for an answer");
const LOAD: TaskSpec = TaskSpec::new("overload", "load").what("starts clients at ten times the capacity");

/// Times in a buffer of fixed size, so that measuring memory does not measure this.
struct Times {
    nanos: Mutex<Vec<u64>>,
}

impl Times {
    fn new() -> Self {
        // Written to once, so that the pages are there from the beginning.
        let mut nanos = vec![1; 1 << 20];
        nanos.clear();
        Times { nanos: Mutex::new(nanos) }
    }

    fn note(&self, time: Duration) {
        let mut nanos = self.nanos.lock().expect("nobody panics under it");
        if nanos.len() < nanos.capacity() {
            nanos.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut nanos = self.nanos.lock().expect("nobody panics under it");
        nanos.sort_unstable();
        let at = (nanos.len() * percent / 100).min(nanos.len().saturating_sub(1));
        Duration::from_nanos(nanos.get(at).copied().unwrap_or(0))
    }
}

/// Resident memory in KiB, from the second field of `statm`.
fn resident_kib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let length = Duration::from_secs(if quick { 2 } else { 10 });
    let (pool_tasks, client_tasks) = (Supervisor::new("pool"), Supervisor::new("clients"));
    let [waits, jobs, refusals] = [(); 3].map(|()| Arc::new(Times::new()));

    let spec = PoolSpec { lane: WORK, task: WORKER, workers: NonZeroUsize::new(WORKERS).expect("four") };
    let (waited, took) = (Arc::clone(&waits), Arc::clone(&jobs));
    let pool = Pool::start(&pool_tasks, spec, move |offered: tokio::time::Instant, _| {
        waited.note(offered.elapsed());
        let (took, began) = (Arc::clone(&took), now());
        async move {
            tokio::time::sleep(JOB).await;
            took.note(began.elapsed());
        }
    });

    let (accepted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let spawner = client_tasks.spawner();
    let load = {
        let (accepted, refused, refusals) =
            (Arc::clone(&accepted), Arc::clone(&refused), Arc::clone(&refusals));
        let pool = pool.clone();
        client_tasks.spawn(LOAD, |_| async move {
            let mut tick = tokio::time::interval(Duration::from_millis(1));
            let until = now() + length;
            while tick.tick().await < until {
                for _ in 0..OFFERED_PER_MS {
                    let (pool, accepted, refused, refusals) =
                        (pool.clone(), Arc::clone(&accepted), Arc::clone(&refused), Arc::clone(&refusals));
                    spawner.spawn(CLIENT, |_| async move {
                        let offered = now();
                        match pool.call("work", offered, Deadline::after(PATIENCE)).await {
                            Ok(()) => accepted.fetch_add(1, Ordering::Relaxed),
                            Err(CallError::Busy { .. }) => {
                                refusals.note(offered.elapsed());
                                refused.fetch_add(1, Ordering::Relaxed)
                            }
                            Err(error) => unreachable!("neither late nor stopped: {error}"),
                        };
                    });
                }
            }
        })
    };
    tokio::time::sleep(length / 5).await;
    let memory_early = resident_kib();
    load.ended().await;
    let memory_late = resident_kib();
    client_tasks.shutdown().await;
    let stopped = pool_tasks.shutdown().await;

    let (accepted, refused) = (accepted.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    let (wait, refusal) = (waits.percentile(99), refusals.percentile(99));
    let wait_longest = jobs.percentile(100) * JOBS_AHEAD;
    let grown = memory_late.saturating_sub(memory_early);
    let offered_times = (accepted + refused) as f64 / accepted as f64;
    println!("offered {} jobs in {length:?}, {offered_times:.1} times what was done", accepted + refused);
    println!("accepted {accepted}: p50 wait {:?}, p99 wait {wait:?}", waits.percentile(50));
    println!("stated bound: {JOBS_AHEAD} of the longest job, {wait_longest:?}");
    println!("refused {refused}: p50 {:?}, p99 {refusal:?}", refusals.percentile(50));
    println!("memory {memory_early} KiB early, {memory_late} KiB late");
    println!("stopped: {} workers drained, {} aborted", stopped.drained, stopped.aborted);
    if wait > wait_longest {
        return Err(format!("accepted work waited {wait:?} at p99, more than {wait_longest:?}"));
    }
    if refusal > Duration::from_millis(1) {
        return Err(format!("a refusal took {refusal:?} at p99"));
    }
    if grown > 1024 {
        return Err(format!("memory grew by {grown} KiB"));
    }
    Ok(())
}
