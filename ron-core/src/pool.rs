//! A lane and some workers: the shape of every place where independent jobs wait their turn.
//!
//! A job answers its caller whatever happens to it: with its result, with `Timeout` when its deadline passes in the
//! queue or at work, with `Panicked` when it panics (the worker lives on), with `Canceled` when the pool was cut off.
//! A caller that gives up frees its place in the queue, or stops its job if that has begun.

use std::{fmt, future::Future, num::NonZeroUsize, pin::pin, sync::Arc};

use crate::{
    CallError, Counter, Deadline, Lane, LaneSpec, Ratio, Ready, ReadyGate, Reply, Supervisor, Tally,
    TaskSpec,
    lane::block_on,
    supervisor::{catch, catch_panic, drop_catching},
};

/// The declaration of a pool: its lane, its workers' kind, and how many there are.
#[derive(Debug, Clone, Copy)]
pub struct PoolSpec {
    /// Where jobs wait.
    pub lane: LaneSpec,
    /// What the workers are called.
    pub task: TaskSpec,
    /// How many jobs run at once.
    pub workers: NonZeroUsize,
}

/// The handle of a pool. Cloning shares it; when the last clone is dropped, the workers finish what is queued and end.
pub struct Pool<J, R> {
    lane: Lane<Job<J, R>>,
}

struct Job<J, R> {
    input: J,
    deadline: Deadline,
    reply: Reply<R>,
}

impl<J: Send + 'static, R: Send + 'static> Pool<J, R> {
    /// Starts the workers on `supervisor`. `work` runs each job; it sees the deadline it should keep.
    ///
    /// When the supervisor asks to stop, the lane refuses newcomers at once and the workers drain it.
    pub fn start<F, Fut>(supervisor: &Supervisor, spec: PoolSpec, work: F) -> Self
    where
        F: Fn(J, Deadline) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        let (lane, inbox) = Lane::open(spec.lane, supervisor.metrics());
        let worker = Arc::new(Worker::new(supervisor, spec.task, work));
        for _ in 0..spec.workers.get() {
            let (worker, inbox) = (Arc::clone(&worker), inbox.clone());
            // Boxed, or every layer around the task would have room for it: four kilobytes a worker become two.
            supervisor.spawn(spec.task, |_| {
                Box::pin(async move {
                    while let Some(held) = inbox.recv_held().await {
                        // Boxed, because most workers of most pools wait most of the time, and need no room for a job.
                        Box::pin(worker.run(held.item)).await;
                    }
                })
            });
        }
        lane.close_on(&supervisor.stop());
        Pool { lane }
    }

    /// A pool for jobs that block: every worker is a thread of its own, so that no job waits for a place on the runtime
    /// and none holds one up. A job that has begun runs to its end even if its caller stops waiting. Under
    /// `inline_blocking` the workers are tasks, and jobs run on them.
    ///
    /// # Errors
    /// When the operating system has no thread to give.
    pub fn start_blocking(
        supervisor: &Supervisor,
        spec: PoolSpec,
        work: impl Fn(J, Deadline) -> R + Send + Sync + 'static,
    ) -> Result<Self, std::io::Error> {
        let (lane, inbox) = Lane::open(spec.lane, supervisor.metrics());
        let worker = Arc::new(Worker::new(supervisor, spec.task, work));
        for _ in 0..spec.workers.get() {
            let (worker, inbox) = (Arc::clone(&worker), inbox.clone());
            let spawner = supervisor.is_inline().then(|| supervisor.spawner());
            let run = async move {
                while let Some(held) = inbox.recv_held().await {
                    if let Some(spawner) = &spawner {
                        spawner.pace_inline().await;
                    }
                    worker.run_blocking(held.item);
                }
            };
            if supervisor.is_inline() {
                supervisor.spawn(spec.task, |_| run);
            } else {
                supervisor.spawn_thread(spec.task, move |_| block_on(run))?;
            }
        }
        lane.close_on(&supervisor.stop());
        Ok(Pool { lane })
    }

    /// Runs a job and waits for its result. Dropping the future gives the job up.
    ///
    /// # Errors
    /// `Busy` at once when the lane is full, `Timeout` at the deadline, `Panicked`, or `Canceled` when the pool stops
    /// before the job is done.
    pub async fn call(&self, op: &'static str, input: J, deadline: Deadline) -> Result<R, CallError> {
        self.lane.call(op, deadline, |reply| Job { input, deadline, reply }).await
    }

    /// Ties readiness to how full the pool's lane is, see [`Ready::watch_lane`].
    #[must_use]
    pub fn watch(&self, ready: &Ready, writes_at: Ratio, reads_at: Ratio) -> [ReadyGate; 2] {
        ready.watch_lane(&self.lane, writes_at, reads_at)
    }

    /// Refuses newcomers from now on. What is queued is still done, and then the workers end.
    pub fn close(&self) {
        self.lane.close();
    }

    /// Jobs waiting for a worker.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.lane.depth()
    }
}

impl<J, R> Clone for Pool<J, R> {
    fn clone(&self) -> Self {
        Pool { lane: self.lane.clone() }
    }
}

impl<J, R> fmt::Debug for Pool<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.lane).finish()
    }
}

/// What all workers of a pool share.
struct Worker<F> {
    work: F,
    kind: &'static str,
    panicked: Tally,
    canceled: Tally,
}

impl<F> Worker<F> {
    fn new(supervisor: &Supervisor, task: TaskSpec, work: F) -> Self {
        let metrics = supervisor.metrics();
        Worker {
            work,
            kind: task.name,
            panicked: metrics.tally(Counter::TasksPanicked, task.name),
            canceled: metrics.tally(Counter::TasksCanceled, task.name),
        }
    }

    fn run_blocking<J, R>(&self, job: Job<J, R>)
    where
        F: Fn(J, Deadline) -> R,
    {
        let Job { input, deadline, reply } = job;
        let op = reply.op();
        if deadline.has_passed() {
            return reply.refuse(CallError::Timeout { op });
        }
        if reply.is_abandoned() {
            return self.canceled.add(1);
        }
        let done = catch(|| (self.work)(input, deadline));
        let answered = match done {
            Ok(result) => catch(|| reply.send(result)),
            Err(panic) => {
                reply.refuse(CallError::Panicked { op });
                Err(panic)
            }
        };
        if let Err(panic) = answered {
            self.panicked(op, &panic);
        }
    }

    fn panicked(&self, op: &'static str, panic: &str) {
        self.panicked.add(1);
        tracing::error!(kind = self.kind, op, panic, "job panicked");
    }

    async fn run<J, R, Fut>(&self, job: Job<J, R>)
    where
        F: Fn(J, Deadline) -> Fut,
        Fut: Future<Output = R>,
    {
        let Job { input, deadline, mut reply } = job;
        let op = reply.op();
        if deadline.has_passed() {
            return reply.refuse(CallError::Timeout { op });
        }
        // The call of `work` is inside, so that a panic before its first `.await` is caught too.
        let mut work = pin!(Some(async { (self.work)(input, deadline).await }));
        let outcome = tokio::select! {
            biased;
            outcome = deadline.limit(op, catch_panic(work.as_mut())) => Some(outcome),
            () = reply.abandoned() => None,
        };
        // Whatever is dropped here is foreign code, and the worker must outlive it.
        let dropped = drop_catching(work);
        let answered = match outcome {
            Some(Ok(Ok(result))) => catch(|| reply.send(result)),
            Some(Ok(Err(panic))) => {
                reply.refuse(CallError::Panicked { op });
                Err(panic)
            }
            Some(Err(late)) => {
                reply.refuse(late);
                Ok(())
            }
            None => {
                self.canceled.add(1);
                Ok(())
            }
        };
        for panic in [dropped, answered].into_iter().filter_map(Result::err) {
            self.panicked(op, &panic);
        }
    }
}
