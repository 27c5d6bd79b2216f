//! The only place that starts tasks: every one is tracked, counted, restarted by a stated policy, and joined.
//!
//! A supervisor is a group of tasks with one life: it runs, drains when asked to stop, cuts off what is left at the
//! drain deadline, and reports. Groups nest, and stopping goes against the direction of use: first a group's own
//! tasks, which use its children, then the children, the youngest first, because what was started later may use what
//! was started earlier. It creates no runtime, installs no signal handler and never ends the process; a failure that
//! it cannot mend is a [`Fatal`] that the host awaits.

mod group;
mod task;

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::runtime::Handle;

use self::group::{Group, Shared};
pub(crate) use self::task::catch_all;
pub use self::task::{Restart, Task, TaskEnd, TaskOutput};
pub(crate) use self::task::{catch, catch_panic, drop_catching};
use crate::{CallError, Counter, Deadline, Metrics, Phase, Ready, Stop, Stopped, TaskSpec, permits::Permits};

/// A failure that restarting did not mend. The supervisor is unready from then on; the host decides what follows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {kind} of {supervisor} failed for good: {reason}")]
pub struct Fatal {
    /// The supervisor that owned the task.
    pub supervisor: String,
    /// The task's kind.
    pub kind: &'static str,
    /// The panic message or error of the last failure.
    pub reason: String,
}

/// Says how long inline blocking work takes.
#[derive(Clone)]
struct Pace(Arc<dyn Fn() -> Duration + Send + Sync>);

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pace")
    }
}

/// Settings of a supervisor. See [`Supervisor::builder`].
#[derive(Debug)]
pub struct SupervisorBuilder {
    name: String,
    drain: Duration,
    metrics: Metrics,
    ready: Ready,
    seed: Option<u64>,
    blocking_max: usize,
    inline: bool,
    pace: Option<Pace>,
    runtime: Option<Handle>,
}

impl SupervisorBuilder {
    /// How long tasks may drain after they were asked to stop. Default 5 s.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Where the task counters go. Default: a set nobody scrapes.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// The readiness in which this supervisor has its gate. Default: one of its own.
    #[must_use]
    pub fn ready(mut self, ready: Ready) -> Self {
        self.ready = ready;
        self
    }

    /// Seed of the jitter between restarts, for tests that must repeat. Default: from the operating system.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Blocking calls that may run at once, see [`Supervisor::blocking`]. Default 32.
    #[must_use]
    pub fn blocking_max(mut self, calls: usize) -> Self {
        self.blocking_max = calls;
        self
    }

    /// Runs blocking calls inline on the calling task instead of on threads. For deterministic simulation only.
    #[must_use]
    pub fn inline_blocking(mut self, inline: bool) -> Self {
        self.inline = inline;
        self
    }

    /// How long inline blocking work takes on tokio's clock: asked before each piece of it. For simulated disks that are
    /// slow; without it such work takes no time. Nothing without [`inline_blocking`](SupervisorBuilder::inline_blocking).
    #[must_use]
    pub fn inline_pace(mut self, pace: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.pace = Some(Pace(Arc::new(pace)));
        self
    }

    /// The runtime that tasks are spawned on. Default: the current one.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Begins to supervise.
    ///
    /// # Panics
    /// Outside a tokio runtime, unless [`runtime`](SupervisorBuilder::runtime) named one.
    #[must_use]
    pub fn start(self) -> Supervisor {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let shared = Shared {
            runtime: self.runtime.unwrap_or_else(Handle::current),
            ready: self.ready,
            jitter: Mutex::new(fastrand::Rng::with_seed(seed)),
            blocking: Permits::new(self.blocking_max.max(1) as u64),
            inline: self.inline,
            pace: self.pace,
        };
        Supervisor::of(Group::new(self.name, self.drain, self.metrics, Arc::new(shared), Weak::new()))
    }
}

/// A group of tasks with one life. Cloning shares it. Dropping the last clone asks the tasks to stop and does not
/// wait; `shutdown().await` is the way.
#[derive(Clone)]
pub struct Supervisor {
    handle: Arc<LastHandle>,
}

/// Asks the group to stop when the last clone of its handle goes.
struct LastHandle(Arc<Group>);

impl Supervisor {
    /// A supervisor called `name` in logs and fatal errors.
    pub fn builder(name: impl Into<String>) -> SupervisorBuilder {
        SupervisorBuilder {
            name: name.into(),
            drain: Duration::from_secs(5),
            metrics: Metrics::default(),
            ready: Ready::new(),
            seed: None,
            blocking_max: 32,
            inline: false,
            pace: None,
            runtime: None,
        }
    }

    /// A supervisor with the defaults.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self::builder(name).start()
    }

    /// A group of its own inside this one, for a subsystem: it has its own drain time and metrics, and stops when
    /// this one does, before everything that was started earlier. Readiness, runtime and limits are shared. Keep the
    /// handle: dropping its last clone stops the group and takes its gate out of readiness. A child of a supervisor
    /// that has stopped is stopped too.
    #[must_use]
    pub fn child(&self, name: impl Into<String>, drain: Duration, metrics: Metrics) -> Supervisor {
        let parent = self.group();
        let child =
            Group::new(name.into(), drain, metrics, Arc::clone(&parent.shared), Arc::downgrade(parent));
        let mut children = parent.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        // Under the lock that the shutdown and the hurry take to list the children: listed, or late and told here.
        let late = parent.phase() > Phase::Aborting;
        if parent.hurry.is_set() {
            child.hurry.set();
        }
        drop(children);
        if late {
            child.never_run();
        }
        Supervisor::of(child)
    }

    /// Starts a task that cannot be rebuilt: if it panics or returns an error, that is fatal. `task` receives the
    /// [`Stop`] it must heed. Once the supervisor cuts off stragglers or has stopped, the task is not run.
    pub fn spawn<F, O>(&self, spec: TaskSpec, task: impl FnOnce(Stop) -> F) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.group().spawn(spec, task)
    }

    /// Starts a task that `factory` can rebuild: if it panics or returns an error, it is started again by the
    /// policy in `spec`, and a failure beyond its budget is fatal.
    pub fn spawn_restarting<F, O>(
        &self,
        spec: TaskSpec,
        factory: impl FnMut(Stop) -> F + Send + 'static,
    ) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.group().spawn_restarting(spec, factory)
    }

    /// Starts a thread for work that blocks for as long as it lives, such as a disk writer. It must end when its
    /// [`Stop`] is requested: a thread cannot be cut off, only counted as aborted and left behind.
    ///
    /// # Errors
    /// When the operating system has no thread to give.
    pub fn spawn_thread<O: TaskOutput>(
        &self,
        spec: TaskSpec,
        body: impl FnOnce(Stop) -> O + Send + 'static,
    ) -> Result<Task, std::io::Error> {
        self.group().spawn_thread(spec, body)
    }

    /// Runs a short blocking call off the runtime, within the cap on such calls. A call that has begun runs to its
    /// end even if the caller stops waiting.
    ///
    /// # Errors
    /// `Timeout` when no place was free or the call did not end in time, `Panicked`, or `Canceled` when stopped.
    pub async fn blocking<R: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Deadline,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, CallError> {
        self.group().blocking(op, deadline, call).await
    }

    /// A handle that starts tasks in this group but does not keep the group alive: for tasks that start tasks.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner { group: Arc::clone(self.group()) }
    }

    /// Asks everything to stop and does not wait: what [`shutdown`](Supervisor::shutdown) does before it waits. For a
    /// task that wants the end of its own supervisor, which cannot wait for itself.
    pub fn request_stop(&self) {
        self.group().begin_shutdown();
    }

    /// Asks everything to stop, waits until it has drained, cuts off what is left at the deadline, and reports.
    ///
    /// Safe to call twice and from many places at once: all get the same report. The work goes on if this future is
    /// dropped. A task of this very supervisor must not wait for it; see [`request_stop`](Supervisor::request_stop).
    pub async fn shutdown(&self) -> Stopped {
        let group = self.group();
        group.begin_shutdown();
        group.stopped.wait().await;
        group.report.get().copied().unwrap_or_default()
    }

    /// [`shutdown`](Supervisor::shutdown) with a limit on the whole: at `deadline`, everything that still drains,
    /// children included, is cut off.
    pub async fn shutdown_by(&self, deadline: Deadline) -> Stopped {
        self.group().begin_shutdown_by(Some(deadline));
        if tokio::time::timeout_at(deadline.instant(), self.group().stopped.wait()).await.is_err() {
            self.abort();
        }
        self.shutdown().await
    }

    /// Ends all draining at once: what still runs is cut off. Begins the shutdown if nobody has. For the second
    /// Ctrl-C.
    pub fn abort(&self) {
        self.group().hurry();
        self.group().begin_shutdown();
    }

    /// Resolves when a task of this group or of a child failed for good. Dropping the future loses nothing.
    pub async fn fatal(&self) -> Fatal {
        let group = self.group();
        group.failed.wait().await;
        group.fatal.get().cloned().expect("set before the latch")
    }

    /// The failure that [`fatal`](Supervisor::fatal) would return, if there is one.
    #[must_use]
    pub fn failure(&self) -> Option<Fatal> {
        self.group().fatal.get().cloned()
    }

    /// Where in its life this supervisor is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.group().phase()
    }

    /// The request to stop, for code that is not a task.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.group().stop.clone()
    }

    /// The readiness this supervisor reports to.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.group().shared.ready
    }

    /// The counters of this group.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.group().metrics
    }

    /// Tasks of this group (not of its children) that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.group().roll.present()
    }

    /// Whether blocking work runs on the calling task, see [`SupervisorBuilder::inline_blocking`].
    pub(crate) fn is_inline(&self) -> bool {
        self.group().shared.inline
    }

    fn of(group: Arc<Group>) -> Self {
        Supervisor { handle: Arc::new(LastHandle(group)) }
    }

    fn group(&self) -> &Arc<Group> {
        &self.handle.0
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("name", &self.group().name)
            .field("phase", &self.phase())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        if self.0.phase() == Phase::Running {
            tracing::debug!(supervisor = self.0.name, "dropped without shutdown, asking its tasks to stop");
            self.0.begin_shutdown();
        }
    }
}

/// Starts tasks in a supervisor's group without keeping the group alive. Cloning shares it.
#[derive(Clone)]
pub struct Spawner {
    group: Arc<Group>,
}

impl Spawner {
    /// See [`Supervisor::spawn`].
    pub fn spawn<F, O>(&self, spec: TaskSpec, task: impl FnOnce(Stop) -> F) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.group.spawn(spec, task)
    }

    /// See [`Supervisor::blocking`].
    ///
    /// # Errors
    /// As there.
    pub async fn blocking<R: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Deadline,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, CallError> {
        self.group.blocking(op, deadline, call).await
    }

    /// Runs a host's code within a task of kind `spec`, and turns its panic into an error: it is counted and logged as the
    /// task's own, which lives on.
    ///
    /// # Errors
    /// [`CallError::Panicked`] with `op`.
    pub async fn catching<F: Future>(
        &self,
        spec: TaskSpec,
        op: &'static str,
        work: F,
    ) -> Result<F::Output, CallError> {
        catch_all(work).await.map_err(|panic| {
            tracing::error!(kind = spec.name, panic, "job panicked");
            self.group.metrics.tally(Counter::TasksPanicked, spec.name).add(1);
            CallError::Panicked { op }
        })
    }

    /// The request to stop.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.group.stop.clone()
    }

    /// Passes the time that a piece of inline blocking work takes, see [`SupervisorBuilder::inline_pace`].
    pub(crate) async fn pace_inline(&self) {
        let pace = self.group.inline_pace();
        if !pace.is_zero() {
            tokio::time::sleep(pace).await;
        }
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spawner({})", self.group.name)
    }
}
