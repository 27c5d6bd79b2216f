use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{CallError, Deadline, LaneSpec, Pool, PoolSpec, Stopped, Supervisor, Task, TaskEnd, TaskSpec};

use super::{registered, series, settle, soon};

const WORK: LaneSpec = LaneSpec::new("test", "work", 4);
const WORKER: TaskSpec = TaskSpec::new("test", "worker");
const CALLER: TaskSpec = TaskSpec::new("test", "caller");

fn spec(workers: usize) -> PoolSpec {
    PoolSpec { lane: WORK, task: WORKER, workers: NonZeroUsize::new(workers).unwrap() }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Calls in the background and keeps the answer.
fn call<J, R>(callers: &Supervisor, pool: &Pool<J, R>, job: J, deadline: Deadline) -> (Task, Answer<R>)
where
    J: Send + 'static,
    R: Send + 'static,
{
    let (pool, answer) = (pool.clone(), Answer::default());
    let kept = answer.clone();
    let task = callers.spawn(CALLER, |_| async move {
        let answer = pool.call("job", job, deadline).await;
        *kept.0.lock().unwrap() = Some(answer);
    });
    (task, answer)
}

struct Answer<R>(Arc<std::sync::Mutex<Option<Result<R, CallError>>>>);

impl<R> Default for Answer<R> {
    fn default() -> Self {
        Answer(Arc::default())
    }
}

impl<R> Clone for Answer<R> {
    fn clone(&self) -> Self {
        Answer(Arc::clone(&self.0))
    }
}

impl<R: Clone> Answer<R> {
    fn get(&self) -> Option<Result<R, CallError>> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_job_answers_and_the_worker_lives_on() {
    let (registry, metrics) = registered();
    let supervisor = Supervisor::builder("test").metrics(metrics).start();
    let pool = Pool::start(&supervisor, spec(1), |job: u32, _| {
        assert_ne!(job, 1, "before the first await");
        async move {
            assert_ne!(job, 2, "at work");
            job
        }
    });
    assert_eq!(pool.call("double", 1, soon()).await, Err(CallError::Panicked { op: "double" }));
    assert_eq!(pool.call("double", 2, soon()).await, Err(CallError::Panicked { op: "double" }));
    assert_eq!(pool.call("double", 3, soon()).await, Ok(3));
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"worker\"}"), Some(2));
    assert_eq!(supervisor.running(), 1);
    assert_eq!(supervisor.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_what_was_accepted_and_refuses_the_rest_at_once() {
    let (pool_tasks, callers) = (Supervisor::new("pool"), Supervisor::new("callers"));
    let pool = Pool::start(&pool_tasks, spec(1), |pause: Duration, _| tokio::time::sleep(pause));
    let jobs: Vec<_> =
        (0..3).map(|_| call(&callers, &pool, seconds(1), Deadline::after(seconds(60))).1).collect();
    settle().await;
    let (stopped, refused) = tokio::join!(pool_tasks.shutdown(), async {
        settle().await;
        pool.call("job", seconds(1), soon()).await
    });
    assert_eq!(refused, Err(CallError::Canceled), "the worker is busy, and still the intake is closed");
    assert_eq!(stopped, Stopped { drained: 1, aborted: 0, elapsed: seconds(3) });
    settle().await;
    assert!(jobs.iter().all(|job| job.get() == Some(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn at_the_drain_deadline_every_waiting_caller_is_told() {
    let (registry, metrics) = registered();
    let pool_tasks = Supervisor::builder("pool").drain(seconds(2)).metrics(metrics).start();
    let callers = Supervisor::new("callers");
    let pool = Pool::start(&pool_tasks, spec(1), |pause: Duration, _| tokio::time::sleep(pause));
    let jobs: Vec<_> =
        (0..3).map(|_| call(&callers, &pool, seconds(100), Deadline::after(seconds(999))).1).collect();
    settle().await;
    let stopped = pool_tasks.shutdown().await;
    assert_eq!(stopped, Stopped { drained: 0, aborted: 1, elapsed: seconds(2) });
    settle().await;
    assert!(jobs.iter().all(|job| job.get() == Some(Err(CallError::Canceled))));
    assert_eq!(series(&registry, "tasks_aborted_total{kind=\"worker\"}"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_stops_its_job() {
    struct CountDrop(Arc<AtomicUsize>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let (registry, metrics) = registered();
    let supervisor = Supervisor::builder("pool").metrics(metrics).start();
    let callers = Supervisor::new("callers");
    let stopped_jobs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&stopped_jobs);
    let pool = Pool::start(&supervisor, spec(1), move |(), _| {
        let guard = CountDrop(Arc::clone(&count));
        async move {
            tokio::time::sleep(seconds(3600)).await;
            drop(guard);
        }
    });
    let (caller, _) = call(&callers, &pool, (), Deadline::after(seconds(9999)));
    settle().await;
    caller.abort();
    assert_eq!(caller.ended().await, TaskEnd::Aborted);
    settle().await;
    assert_eq!(stopped_jobs.load(Ordering::SeqCst), 1, "the work stops with the caller");
    assert_eq!(series(&registry, "tasks_canceled_total{kind=\"worker\"}"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_time_ran_out_in_the_queue_is_not_begun() {
    let (registry, metrics) = registered();
    let supervisor = Supervisor::builder("pool").metrics(metrics).start();
    let callers = Supervisor::new("callers");
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let pool = Pool::start(&supervisor, spec(1), move |pause, deadline: Deadline| {
        count.fetch_add(1, Ordering::SeqCst);
        assert!(!deadline.has_passed(), "a job sees the time it has left");
        tokio::time::sleep(pause)
    });
    let (_, first) = call(&callers, &pool, seconds(1), Deadline::after(seconds(5)));
    settle().await;
    let late = pool.call("job", seconds(1), soon()).await;
    assert_eq!(late, Err(CallError::Timeout { op: "job" }));
    let at_once = pool.call("job", seconds(1), Deadline::after(Duration::ZERO)).await;
    assert_eq!(at_once, Err(CallError::Timeout { op: "job" }));
    assert_eq!(series(&registry, "io_timeouts_total{op=\"job\"}"), Some(2), "whoever found out");
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(first.get(), Some(Ok(())));
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_job_was_shed_may_try_again() {
    // It used to hear `Canceled`, which says that the pool is gone for good.
    let supervisor = Supervisor::new("pool");
    let shedding = PoolSpec { lane: LaneSpec::new("test", "latest", 1).shed_oldest(), ..spec(1) };
    let pool = Pool::start(&supervisor, shedding, |job: u32, _| async move { job });
    let (first, second, third) =
        tokio::join!(pool.call("job", 1, soon()), pool.call("job", 2, soon()), pool.call("job", 3, soon()));
    for shed in [first, second] {
        assert!(matches!(shed, Err(CallError::Busy { what: "latest", .. })), "{shed:?}");
    }
    assert_eq!(third, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_closed_pool_finishes_and_ends() {
    let supervisor = Supervisor::new("pool");
    let pool = Pool::start(&supervisor, spec(2), |job: u32, _| async move { job });
    let gates = pool.watch(supervisor.ready(), ron_core::Ratio::HALF, ron_core::Ratio::percent(90));
    assert!(supervisor.ready().status().writes && gates.len() == 2);
    let (done, ()) = tokio::join!(pool.call("job", 7, soon()), async { pool.close() });
    assert_eq!(done, Ok(7));
    assert_eq!(pool.call("job", 8, soon()).await, Err(CallError::Canceled));
    settle().await;
    assert_eq!(supervisor.running(), 0);
}

#[test]
fn it_works_on_a_multi_thread_runtime_too() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let supervisor = Supervisor::new("pool");
        let wide = PoolSpec { lane: LaneSpec::new("test", "work", 2000), ..spec(4) };
        let pool = Pool::start(&supervisor, wide, |job: usize, _| async move {
            tokio::task::yield_now().await;
            job * 2
        });
        let callers = Supervisor::new("callers");
        let answers: Vec<_> =
            (0..1000).map(|job| call(&callers, &pool, job, Deadline::after(seconds(60)))).collect();
        for (job, (task, answer)) in answers.into_iter().enumerate() {
            task.ended().await;
            assert_eq!(answer.get(), Some(Ok(job * 2)));
        }
        assert_eq!(supervisor.shutdown().await.drained, 4);
    });
}

/// On threads as well as inline, a job that panics is told to its caller, and the worker goes on.
#[tokio::test]
async fn blocking_workers_answer_whatever_happens() {
    // Threads live by the real clock, and a panic takes its time to be written down.
    let patient = || Deadline::after(Duration::from_secs(60));
    for inline in [false, true] {
        let host = Supervisor::builder("host").inline_blocking(inline).start();
        let spec = spec(1);
        let pool = Pool::start_blocking(&host, spec, |number: u32, _| {
            assert!(number != 13, "unlucky");
            number * 2
        })
        .unwrap();
        assert_eq!(pool.call("double", 13, patient()).await, Err(CallError::Panicked { op: "double" }));
        assert_eq!(pool.call("double", 4, patient()).await, Ok(8));
        let late = Deadline::after(Duration::ZERO);
        assert_eq!(pool.call("double", 4, late).await, Err(CallError::Timeout { op: "double" }));
        let stopped = host.shutdown().await;
        assert_eq!((stopped.drained, stopped.aborted), (1, 0));
        assert_eq!(pool.call("double", 4, patient()).await, Err(CallError::Canceled));
    }
}
