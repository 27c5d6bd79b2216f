//! The only place that starts tasks: every one is tracked, counted, restarted by a stated policy, and joined.
//!
//! A supervisor is a group of tasks with one life: it runs, drains when asked to stop, cuts off what is left at the
//! drain deadline, and reports. Groups nest, and stopping goes against the direction of use: first a group's own
//! tasks, which use its children, then the children, the youngest first, because what was started later may use what
//! was started earlier. It creates no runtime, installs no signal handler and never ends the process; a failure that
//! it cannot mend is a [`Fatal`] that the host awaits.

use std::{
    any::Any,
    error::Error,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::Instrument as _;

use crate::{
    Backoff, BackoffPolicy, CallError, Counter, Deadline, Metrics, Phase, Ready, ReadyGate, Stop, Stopped,
    Tally, TaskSpec, permits::Permits, ready::Affects, roll::Roll, shutdown::Latch,
};

/// How long tasks that were cut off get to notice it. Only a task that blocks its thread needs longer, and nothing
/// can be done about that one.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// When a failed task runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Never: its failure is fatal to the supervisor. For owners of state, which cannot be rebuilt.
    Never,
    /// After a pause with full jitter, as long as the budget lasts.
    Backoff {
        /// Shortest pause.
        min: Duration,
        /// Longest pause. The ceiling under which a pause is drawn doubles with every failure up to this.
        max: Duration,
        /// Restarts allowed within `window`; one more failure is fatal.
        budget: u32,
        /// The window of the budget. A task that ran this long starts again from `min`.
        window: Duration,
    },
}

impl Restart {
    /// 100 ms up to 2 s, five times in a minute: for what should work at once or not at all.
    pub const PROMPT: Restart = Restart::Backoff {
        min: Duration::from_millis(100),
        max: Duration::from_secs(2),
        budget: 5,
        window: Duration::from_secs(60),
    };

    /// 100 ms up to 60 s without end: for what depends on an outside that may come back.
    pub const PATIENT: Restart = Restart::Backoff {
        min: Duration::from_millis(100),
        max: Duration::from_secs(60),
        budget: u32::MAX,
        window: Duration::from_secs(600),
    };
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restart::Never => f.write_str("fatal"),
            Restart::Backoff { min, max, budget: u32::MAX, .. } => {
                write!(f, "restarted after {min:?} to {max:?}")
            }
            Restart::Backoff { min, max, budget, window } => {
                write!(f, "restarted after {min:?} to {max:?}, {budget} times in {window:?}, then fatal")
            }
        }
    }
}

/// What a task may return: `()`, or a `Result` whose error counts as a failure.
pub trait TaskOutput: Send + 'static {
    /// The failure, in words for the log.
    fn failure(self) -> Option<String>;
}

impl TaskOutput for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Error + Send + 'static> TaskOutput for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| {
            let mut words = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                words = format!("{words}: {cause}");
                source = cause.source();
            }
            words
        })
    }
}

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

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEnd {
    /// It returned before it was asked to stop.
    Completed,
    /// It returned after it was asked to stop.
    Drained,
    /// It was cut off.
    Aborted,
    /// It panicked or returned an error, and was not or no longer restarted.
    Failed,
    /// It was never run, because the supervisor had stopped.
    Refused,
}

/// Settings of a supervisor. See [`Supervisor::builder`].
#[derive(Debug)]
pub struct Builder {
    name: String,
    drain: Duration,
    metrics: Metrics,
    ready: Ready,
    seed: Option<u64>,
    blocking_max: usize,
    inline: bool,
    runtime: Option<Handle>,
}

impl Builder {
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

    /// The runtime that tasks are spawned on. Default: the current one.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Begins to supervise.
    ///
    /// # Panics
    /// Outside a tokio runtime, unless [`runtime`](Builder::runtime) named one.
    #[must_use]
    pub fn start(self) -> Supervisor {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let shared = Shared {
            runtime: self.runtime.unwrap_or_else(Handle::current),
            ready: self.ready,
            jitter: Mutex::new(fastrand::Rng::with_seed(seed)),
            blocking: Permits::new(self.blocking_max.max(1) as u64),
            inline: self.inline,
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

/// What a tree of groups has in common.
struct Shared {
    runtime: Handle,
    ready: Ready,
    jitter: Mutex<fastrand::Rng>,
    blocking: Permits,
    inline: bool,
}

struct Group {
    name: String,
    drain: Duration,
    metrics: Metrics,
    shared: Arc<Shared>,
    parent: Weak<Group>,
    children: Mutex<Vec<Weak<Group>>>,
    gate: ReadyGate,
    phase: AtomicU8,
    stop: Stop,
    /// Set to end the drain at once.
    hurry: Latch,
    roll: Roll<AbortHandle>,
    fatal: OnceLock<Fatal>,
    failed: Latch,
    report: OnceLock<Stopped>,
    stopped: Latch,
}

impl Supervisor {
    /// A supervisor called `name` in logs and fatal errors.
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder {
            name: name.into(),
            drain: Duration::from_secs(5),
            metrics: Metrics::default(),
            ready: Ready::new(),
            seed: None,
            blocking_max: 32,
            inline: false,
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
    /// this one does, before everything that was started earlier. Readiness, runtime and limits are shared. A child
    /// of a supervisor that has stopped is stopped too.
    #[must_use]
    pub fn child(&self, name: impl Into<String>, drain: Duration, metrics: Metrics) -> Supervisor {
        let parent = self.group();
        let child =
            Group::new(name.into(), drain, metrics, Arc::clone(&parent.shared), Arc::downgrade(parent));
        let mut children = parent.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        // Under the lock that the shutdown takes to list the children: listed, or late and stopped here.
        let late = parent.phase() > Phase::Draining;
        drop(children);
        if late {
            child.begin_shutdown();
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

    /// Asks everything to stop, waits until it has drained, cuts off what is left at the deadline, and reports.
    ///
    /// Safe to call twice and from many places at once: all get the same report. The work goes on if this future is
    /// dropped.
    pub async fn shutdown(&self) -> Stopped {
        let group = self.group();
        group.begin_shutdown();
        group.stopped.wait().await;
        group.report.get().copied().unwrap_or_default()
    }

    /// [`shutdown`](Supervisor::shutdown) with a limit on the whole: at `deadline`, everything that still drains,
    /// children included, is cut off.
    pub async fn shutdown_by(&self, deadline: Deadline) -> Stopped {
        self.group().begin_shutdown();
        if tokio::time::timeout_at(deadline.instant(), self.group().stopped.wait()).await.is_err() {
            self.abort();
        }
        self.shutdown().await
    }

    /// Ends all draining at once: what still runs is cut off. For the second Ctrl-C.
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

    /// Whether blocking work runs on the calling task, see [`Builder::inline_blocking`].
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

    /// The request to stop.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.group.stop.clone()
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spawner({})", self.group.name)
    }
}

/// A started task. Dropping this leaves the task to its supervisor.
#[derive(Debug, Clone)]
pub struct Task {
    ending: Arc<Ending>,
}

/// Where a task's end is written, once.
struct Ending {
    end: OnceLock<TaskEnd>,
    ended: Latch,
    abort: OnceLock<AbortHandle>,
}

impl Task {
    /// Resolves when the task has ended. Dropping the future loses nothing.
    pub async fn ended(&self) -> TaskEnd {
        self.ending.ended.wait().await;
        *self.ending.end.get().expect("set before the latch")
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<TaskEnd> {
        self.ending.end.get().copied()
    }

    /// Cuts the task off at its next `.await`. A thread cannot be cut off.
    pub fn abort(&self) {
        if let Some(abort) = self.ending.abort.get() {
            abort.abort();
        }
    }
}

impl Ending {
    fn new() -> Arc<Self> {
        Arc::new(Ending { end: OnceLock::new(), ended: Latch::new(), abort: OnceLock::new() })
    }

    fn write(&self, end: TaskEnd) {
        if self.end.set(end).is_ok() {
            self.ended.set();
        }
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.end.get())
    }
}

/// A member of the roll. However the task ends, dropping this counts it out.
struct Member {
    group: Arc<Group>,
    id: u64,
    spec: TaskSpec,
    ending: Arc<Ending>,
    end: Option<TaskEnd>,
}

impl Member {
    fn enter(group: &Arc<Group>, spec: TaskSpec, ending: &Arc<Ending>) -> Option<Member> {
        let Some(id) = group.roll.enter() else {
            group.count(Counter::TasksCanceled, spec).add(1);
            ending.write(TaskEnd::Refused);
            return None;
        };
        group.count(Counter::TasksSpawned, spec).add(1);
        Some(Member { group: Arc::clone(group), id, spec, ending: Arc::clone(ending), end: None })
    }

    /// It ran once and is not run again.
    fn finished(self, failure: Option<Failure>) {
        match failure {
            None => self.returned(),
            Some(failure) => {
                self.note(&failure);
                self.failed_for_good(failure.into_reason());
            }
        }
    }

    /// It returned by itself.
    fn returned(mut self) {
        let asked = self.group.stop.is_requested();
        self.end = Some(if asked { TaskEnd::Drained } else { TaskEnd::Completed });
    }

    fn failed_for_good(mut self, reason: String) {
        self.end = Some(TaskEnd::Failed);
        let fatal = Fatal { supervisor: self.group.name.clone(), kind: self.spec.name, reason };
        tracing::error!(error = %fatal, "fatal");
        self.group.fail(&fatal);
    }

    /// Counts and logs a failure of this task.
    fn note(&self, failure: &Failure) {
        match failure {
            Failure::Panic(message) => {
                self.group.count(Counter::TasksPanicked, self.spec).add(1);
                tracing::error!(kind = self.spec.name, panic = message, "task panicked");
            }
            Failure::Error(error) => tracing::warn!(kind = self.spec.name, error, "task failed"),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(TaskEnd::Aborted);
        match end {
            TaskEnd::Aborted => self.group.count(Counter::TasksAborted, self.spec).add(1),
            TaskEnd::Drained => self.group.count(Counter::TasksCanceled, self.spec).add(1),
            TaskEnd::Completed | TaskEnd::Failed | TaskEnd::Refused => {}
        }
        self.ending.write(end);
        self.group.roll.leave(self.id, end != TaskEnd::Aborted);
    }
}

/// Why a run of a task ended badly.
enum Failure {
    Panic(String),
    Error(String),
}

impl Failure {
    fn into_reason(self) -> String {
        match self {
            Failure::Panic(message) => format!("panicked: {message}"),
            Failure::Error(error) => error,
        }
    }
}

impl Group {
    fn new(
        name: String,
        drain: Duration,
        metrics: Metrics,
        shared: Arc<Shared>,
        parent: Weak<Group>,
    ) -> Arc<Self> {
        let gate = shared.ready.gate(format!("{name} tasks"), Affects::Reads);
        gate.open();
        Arc::new(Group {
            name,
            drain,
            metrics,
            shared,
            parent,
            children: Mutex::new(Vec::new()),
            gate,
            phase: AtomicU8::new(0),
            stop: Stop::new(),
            hurry: Latch::new(),
            roll: Roll::new(),
            fatal: OnceLock::new(),
            failed: Latch::new(),
            report: OnceLock::new(),
            stopped: Latch::new(),
        })
    }

    fn count(&self, counter: Counter, spec: TaskSpec) -> Tally {
        self.metrics.tally(counter, spec.name)
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            2 => Phase::Aborting,
            _ => Phase::Stopped,
        }
    }

    fn enter_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
        tracing::debug!(supervisor = self.name, ?phase, "phase");
    }

    fn spawn<F, O>(self: &Arc<Self>, spec: TaskSpec, task: impl FnOnce(Stop) -> F) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.metrics.note_task(spec);
        let ending = Ending::new();
        if let Some(member) = Member::enter(self, spec, &ending) {
            let work = task(self.stop.clone());
            self.run(member, async move |member| member.finished(outcome(work).await));
        }
        Task { ending }
    }

    fn spawn_restarting<F, O>(
        self: &Arc<Self>,
        spec: TaskSpec,
        mut factory: impl FnMut(Stop) -> F + Send + 'static,
    ) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.metrics.note_task(spec);
        let ending = Ending::new();
        let mut restarts = Restarts::new(spec.restart, self.fork_rng());
        let restarted = self.count(Counter::TasksRestarted, spec);
        if let Some(member) = Member::enter(self, spec, &ending) {
            let stop = self.stop.clone();
            self.run(member, async move |member| {
                loop {
                    let started = crate::now();
                    // The factory runs inside, so that its panics count as the task's.
                    let Some(failure) = outcome(async { factory(stop.clone()).await }).await else {
                        return member.returned();
                    };
                    member.note(&failure);
                    let Some(pause) = restarts.after_failure(started, crate::now()) else {
                        return member.failed_for_good(failure.into_reason());
                    };
                    tokio::select! {
                        biased;
                        () = stop.requested() => return member.returned(),
                        () = sleep(pause) => {}
                    }
                    restarted.add(1);
                    tracing::info!(kind = spec.name, ?pause, "restarting");
                }
            });
        }
        Task { ending }
    }

    /// Puts a member's life onto the runtime, where it can be cut off.
    fn run<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        member: Member,
        life: impl FnOnce(Member) -> F,
    ) {
        let (id, ending) = (member.id, Arc::clone(&member.ending));
        let span = tracing::info_span!("ron.task", kind = member.spec.name, supervisor = self.name);
        #[allow(clippy::disallowed_methods, reason = "this is the one place")]
        let task = self.shared.runtime.spawn(life(member).instrument(span));
        let abort = task.abort_handle();
        let _ = ending.abort.set(abort.clone());
        if let Some(abort) = self.roll.attach(id, abort) {
            abort.abort();
        }
    }

    fn spawn_thread<O: TaskOutput>(
        self: &Arc<Self>,
        spec: TaskSpec,
        body: impl FnOnce(Stop) -> O + Send + 'static,
    ) -> Result<Task, std::io::Error> {
        self.metrics.note_task(spec);
        let ending = Ending::new();
        if let Some(member) = Member::enter(self, spec, &ending) {
            let stop = self.stop.clone();
            thread::Builder::new().name(spec.name.to_owned()).spawn(move || {
                let failure = match catch_unwind(AssertUnwindSafe(|| body(stop))) {
                    Ok(output) => output.failure().map(Failure::Error),
                    Err(panic) => Some(Failure::Panic(panic_message(&*panic))),
                };
                member.finished(failure);
            })?;
        }
        Ok(Task { ending })
    }

    async fn blocking<R: Send + 'static>(
        self: &Arc<Self>,
        op: &'static str,
        deadline: Deadline,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let late = || {
            self.metrics.tally(Counter::IoTimeouts, op).add(1);
            CallError::Timeout { op }
        };
        let place = deadline.limit(op, self.shared.blocking.take(1)).await.map_err(|_| late())?;
        let spec = TaskSpec::new("ron-core", op);
        let ending = Ending::new();
        let member = Member::enter(self, spec, &ending).ok_or(CallError::Canceled)?;
        let run = move || {
            let _place = place;
            let output = catch_unwind(AssertUnwindSafe(call));
            if let Err(panic) = &output {
                member.note(&Failure::Panic(panic_message(&**panic)));
            }
            member.returned();
            output.map_err(|_| CallError::Panicked { op })
        };
        if self.shared.inline {
            return run();
        }
        #[allow(clippy::disallowed_methods, reason = "capped and counted right here")]
        let running = self.shared.runtime.spawn_blocking(run);
        match deadline.limit(op, running).await {
            Ok(finished) => finished.unwrap_or(Err(CallError::Canceled)),
            Err(_) => Err(late()),
        }
    }

    fn fork_rng(&self) -> fastrand::Rng {
        self.shared.jitter.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }

    /// Records a fatal failure here and in every group above.
    fn fail(&self, fatal: &Fatal) {
        self.gate.close(fatal.to_string());
        if self.fatal.set(fatal.clone()).is_ok() {
            self.failed.set();
        }
        if let Some(parent) = self.parent.upgrade() {
            parent.fail(fatal);
        }
    }

    /// Starts the shutdown, once. It runs as a task of its own, so that it ends even if nobody waits for it.
    fn begin_shutdown(self: &Arc<Self>) {
        let first =
            self.phase.compare_exchange(0, Phase::Draining as u8, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            return;
        }
        tracing::debug!(supervisor = self.name, phase = ?Phase::Draining, "phase");
        // Readiness first: whoever balances load must hear of it before the first refusal.
        self.gate.close("draining");
        let group = Arc::clone(self);
        #[allow(clippy::disallowed_methods, reason = "the shutdown outlives the roll it waits for")]
        self.shared.runtime.spawn(async move {
            let began = crate::now();
            let mut report = group.stop_own().await;
            while let Some(child) = group.youngest_child() {
                child.begin_shutdown();
                child.stopped.wait().await;
                let theirs = child.report.get().copied().unwrap_or_default();
                report.drained += theirs.drained;
                report.aborted += theirs.aborted;
            }
            report.elapsed = crate::now().saturating_duration_since(began);
            group.gate.close("stopped");
            let _ = group.report.set(report);
            group.stopped.set();
        });
    }

    /// The child to stop next. When there is none left, this group has stopped; that is decided under the lock, so
    /// that a child which comes later sees the phase and stops itself.
    fn youngest_child(&self) -> Option<Arc<Group>> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        // A stopped child stays listed until here, so that a hurry reaches the one that is draining now.
        children.retain(|child| child.upgrade().is_some_and(|child| !child.stopped.is_set()));
        let youngest = children.last().and_then(Weak::upgrade);
        if youngest.is_none() {
            self.enter_phase(Phase::Stopped);
        }
        youngest
    }

    /// Drains this group's own tasks and cuts off what is left.
    async fn stop_own(&self) -> Stopped {
        let until = Deadline::after(self.drain);
        self.roll.begin_emptying();
        self.stop.request(until);
        let in_time = tokio::select! {
            biased;
            () = self.roll.empty() => true,
            () = self.hurry.wait() => false,
            () = sleep_until(until.instant()) => false,
        };
        let mut aborted = 0;
        if !in_time {
            self.enter_phase(Phase::Aborting);
            let (stragglers, handles) = self.roll.close();
            handles.iter().for_each(AbortHandle::abort);
            let _ = tokio::time::timeout(ABORT_GRACE, self.roll.empty()).await;
            aborted = stragglers;
            tracing::warn!(supervisor = self.name, aborted, "cut off at the drain deadline");
        }
        Stopped { drained: self.roll.drained(), aborted, elapsed: Duration::ZERO }
    }

    /// Ends the drain of this group and of everything below it.
    fn hurry(&self) {
        self.hurry.set();
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner).clone();
        children.iter().filter_map(Weak::upgrade).for_each(|child| child.hurry());
    }
}

/// How many restarts a task has had lately, and how long to wait before the next.
struct Restarts {
    policy: Restart,
    backoff: Option<Backoff>,
    recent: std::collections::VecDeque<Instant>,
}

impl Restarts {
    fn new(policy: Restart, rng: fastrand::Rng) -> Self {
        let backoff = match policy {
            Restart::Never => None,
            Restart::Backoff { min, max, .. } => Some(BackoffPolicy::new(min, max).with_rng(rng)),
        };
        Restarts { policy, backoff, recent: std::collections::VecDeque::new() }
    }

    /// The pause before the next start, or `None` when the budget is spent.
    fn after_failure(&mut self, started: Instant, now: Instant) -> Option<Duration> {
        let (Restart::Backoff { budget, window, .. }, Some(backoff)) = (self.policy, &mut self.backoff)
        else {
            return None;
        };
        if now.saturating_duration_since(started) >= window {
            backoff.reset();
        }
        if budget < u32::MAX {
            while self.recent.front().is_some_and(|past| now.saturating_duration_since(*past) >= window) {
                self.recent.pop_front();
            }
            if self.recent.len() >= budget as usize {
                return None;
            }
            self.recent.push_back(now);
        }
        Some(backoff.next_delay())
    }
}

/// Runs a task once and tells how it failed, if it did.
async fn outcome<O: TaskOutput>(work: impl Future<Output = O>) -> Option<Failure> {
    match catch_panic(work).await {
        Ok(output) => output.failure().map(Failure::Error),
        Err(panic) => Some(Failure::Panic(panic)),
    }
}

/// Runs `work` and turns a panic into its message.
pub(crate) async fn catch_panic<F: Future>(work: F) -> Result<F::Output, String> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
    })
    .await
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
