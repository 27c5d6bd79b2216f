//! A group of tasks: who is in it, how it is stopped, and what is above and below it.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{sleep, sleep_until},
};
use tracing::Instrument as _;

use super::{
    Fatal,
    task::{Ending, Failure, Member, Restarts, Task, TaskOutput, catch, outcome},
};
use crate::{
    Affects, CallError, Counter, Deadline, Metrics, Phase, Ready, ReadyGate, Stop, Stopped, Tally, TaskSpec,
    permits::Permits, roll::Roll, shutdown::Latch,
};

/// How long tasks that were cut off get to notice it. Only a task that blocks its thread needs longer, and nothing
/// can be done about that one.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// What a tree of groups has in common.
pub(super) struct Shared {
    pub(super) runtime: Handle,
    pub(super) ready: Ready,
    pub(super) jitter: Mutex<fastrand::Rng>,
    pub(super) blocking: Permits,
    pub(super) inline: bool,
    pub(super) pace: Option<super::Pace>,
}

pub(super) struct Group {
    pub(super) name: String,
    pub(super) drain: Duration,
    pub(super) metrics: Metrics,
    pub(super) shared: Arc<Shared>,
    pub(super) parent: Weak<Group>,
    pub(super) children: Mutex<Vec<Weak<Group>>>,
    pub(super) gate: ReadyGate,
    pub(super) phase: AtomicU8,
    pub(super) stop: Stop,
    /// Set to end the drain at once.
    pub(super) hurry: Latch,
    pub(super) roll: Roll<AbortHandle>,
    pub(super) fatal: OnceLock<Fatal>,
    pub(super) failed: Latch,
    pub(super) report: OnceLock<Stopped>,
    pub(super) stopped: Latch,
}

impl Group {
    pub(super) fn new(
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

    pub(super) fn count(&self, counter: Counter, spec: TaskSpec) -> Tally {
        self.metrics.tally(counter, spec.name)
    }

    pub(super) fn phase(&self) -> Phase {
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

    pub(super) fn spawn<F, O>(self: &Arc<Self>, spec: TaskSpec, task: impl FnOnce(Stop) -> F) -> Task
    where
        F: Future<Output = O> + Send + 'static,
        O: TaskOutput,
    {
        self.metrics.note_task(spec.once());
        let ending = Ending::new();
        if let Some(member) = Member::enter(self, spec, &ending) {
            let work = task(self.stop.clone());
            self.run(member, async move |member| member.finished(outcome(work).await));
        }
        Task { ending }
    }

    pub(super) fn spawn_restarting<F, O>(
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

    pub(super) fn spawn_thread<O: TaskOutput>(
        self: &Arc<Self>,
        spec: TaskSpec,
        body: impl FnOnce(Stop) -> O + Send + 'static,
    ) -> Result<Task, std::io::Error> {
        self.metrics.note_task(spec.once());
        let ending = Ending::new();
        if let Some(member) = Member::enter(self, spec, &ending) {
            let stop = self.stop.clone();
            #[allow(clippy::disallowed_methods, reason = "this is the one place")]
            thread::Builder::new().name(spec.name.to_owned()).spawn(move || {
                let failure = match catch(|| body(stop).failure()) {
                    Ok(failure) => failure.map(Failure::Error),
                    Err(panic) => Some(Failure::Panic(panic)),
                };
                member.finished(failure);
            })?;
        }
        Ok(Task { ending })
    }

    pub(super) async fn blocking<R: Send + 'static>(
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
            let output = catch(call).map_err(|panic| {
                member.note(&Failure::Panic(panic));
                CallError::Panicked { op }
            });
            member.returned();
            output
        };
        if self.shared.inline {
            // As on a thread: what has begun happens, however long its caller waits for it.
            let done = run();
            let pace = self.inline_pace();
            if !pace.is_zero() {
                deadline.limit(op, tokio::time::sleep(pace)).await.map_err(|_| late())?;
            }
            return done;
        }
        #[allow(clippy::disallowed_methods, reason = "capped and counted right here")]
        let running = self.shared.runtime.spawn_blocking(run);
        match deadline.limit(op, running).await {
            Ok(finished) => finished.unwrap_or(Err(CallError::Canceled)),
            Err(_) => Err(late()),
        }
    }

    /// How long a piece of inline blocking work takes.
    pub(super) fn inline_pace(&self) -> Duration {
        self.shared.pace.as_ref().map_or(Duration::ZERO, |pace| pace.0())
    }

    fn fork_rng(&self) -> fastrand::Rng {
        self.shared.jitter.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }

    /// Records a fatal failure here and in every group above.
    pub(super) fn fail(&self, fatal: &Fatal) {
        self.gate.close(fatal.to_string());
        if self.fatal.set(fatal.clone()).is_ok() {
            self.failed.set();
        }
        if let Some(parent) = self.parent.upgrade() {
            parent.fail(fatal);
        }
    }

    /// The life of a child that came after its parent had stopped: none.
    pub(super) fn never_run(&self) {
        self.roll.close();
        self.stop.request(Deadline::after(Duration::ZERO));
        self.end();
    }

    /// Nothing runs any more, and whoever waits for that is told.
    fn end(&self) {
        self.gate.close("stopped");
        self.enter_phase(Phase::Stopped);
        let _ = self.report.set(Stopped::default());
        self.stopped.set();
    }

    /// Starts the shutdown, once. It runs as a task of its own, so that it ends even if nobody waits for it.
    pub(super) fn begin_shutdown(self: &Arc<Self>) {
        self.begin_shutdown_by(None);
    }

    /// [`begin_shutdown`](Group::begin_shutdown) with a limit on the drain of this group and of everything below.
    pub(super) fn begin_shutdown_by(self: &Arc<Self>, limit: Option<Deadline>) {
        let first =
            self.phase.compare_exchange(0, Phase::Draining as u8, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            return;
        }
        tracing::debug!(supervisor = self.name, phase = ?Phase::Draining, "phase");
        // Readiness first: whoever balances load must hear of it before the first refusal.
        self.gate.close("draining");
        // And the request itself before this call returns, so that no intake takes anything in afterwards.
        let began = crate::now();
        let until = Deadline::after(self.drain);
        let until = limit.map_or(until, |limit| limit.min(until));
        self.roll.begin_emptying();
        self.stop.request(until);
        // Made here and not inside: a runtime that is gone drops what it is given, and that is an end too.
        let end = ShutdownEnd(Arc::clone(self));
        #[allow(clippy::disallowed_methods, reason = "the shutdown outlives the roll it waits for")]
        self.shared.runtime.spawn(async move {
            let group = &end.0;
            let mut report = group.drain_own(until).await;
            while let Some(child) = group.youngest_child() {
                child.begin_shutdown_by(limit);
                child.stopped.wait().await;
                let theirs = child.report.get().copied().unwrap_or_default();
                report.drained += theirs.drained;
                report.aborted += theirs.aborted;
            }
            report.elapsed = crate::now().saturating_duration_since(began);
            let _ = group.report.set(report);
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
    async fn drain_own(&self, until: Deadline) -> Stopped {
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
            self.stop.abort();
            handles.iter().for_each(AbortHandle::abort);
            let _ = tokio::time::timeout(ABORT_GRACE, self.roll.empty()).await;
            aborted = stragglers;
            tracing::warn!(supervisor = self.name, aborted, "cut off at the drain deadline");
        }
        Stopped { drained: self.roll.drained(), aborted, elapsed: Duration::ZERO }
    }

    /// Ends the drain of this group and of everything below it.
    pub(super) fn hurry(&self) {
        self.hurry.set();
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner).clone();
        children.iter().filter_map(Weak::upgrade).for_each(|child| child.hurry());
    }
}

/// Says that the shutdown is over, however it ends.
struct ShutdownEnd(Arc<Group>);

impl Drop for ShutdownEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}
