//! One task's life: what it may return, when it runs again, how it ended, and its place on the roll.

use std::{
    any::Any,
    collections::VecDeque,
    error::Error,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use tokio::{task::AbortHandle, time::Instant};

use super::{Fatal, group::Group};
use crate::{Backoff, BackoffPolicy, Counter, TaskSpec, shutdown::Latch};

/// When a failed task runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Never: if it panics or returns an error, that is fatal to the supervisor, which is unready from then on, and
    /// to all above it. For owners of state, which cannot be rebuilt.
    Never,
    /// Never, and nobody minds: a failure is counted and logged. For tasks that serve one caller or one connection.
    Expendable,
    /// After a pause with full jitter, as long as the budget lasts.
    Backoff {
        /// Shortest pause.
        min: Duration,
        /// Longest pause, at least `min`. The ceiling under which a pause is drawn doubles with every failure up to
        /// this.
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
            Restart::Expendable => f.write_str("counted and logged"),
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

/// A started task. Dropping this leaves the task to its supervisor.
#[derive(Debug, Clone)]
pub struct Task {
    pub(super) ending: Arc<Ending>,
}

/// Where a task's end is written, once.
pub(super) struct Ending {
    end: OnceLock<TaskEnd>,
    ended: Latch,
    pub(super) abort: OnceLock<AbortHandle>,
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

    /// Cuts the task off where it next waits. A thread cannot be cut off.
    pub fn abort(&self) {
        if let Some(abort) = self.ending.abort.get() {
            abort.abort();
        }
    }
}

impl Ending {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Ending { end: OnceLock::new(), ended: Latch::new(), abort: OnceLock::new() })
    }

    pub(super) fn write(&self, end: TaskEnd) {
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
pub(super) struct Member {
    group: Arc<Group>,
    pub(super) id: u64,
    pub(super) spec: TaskSpec,
    pub(super) ending: Arc<Ending>,
    end: Option<TaskEnd>,
}

impl Member {
    pub(super) fn enter(group: &Arc<Group>, spec: TaskSpec, ending: &Arc<Ending>) -> Option<Member> {
        let Some(id) = group.roll.enter() else {
            group.count(Counter::TasksCanceled, spec).add(1);
            ending.write(TaskEnd::Refused);
            return None;
        };
        group.count(Counter::TasksSpawned, spec).add(1);
        Some(Member { group: Arc::clone(group), id, spec, ending: Arc::clone(ending), end: None })
    }

    /// It ran once and is not run again.
    pub(super) fn finished(self, failure: Option<Failure>) {
        match failure {
            None => self.returned(),
            Some(failure) => {
                self.note(&failure);
                if self.spec.restart == Restart::Expendable {
                    self.failed();
                } else {
                    self.failed_for_good(failure.into_reason());
                }
            }
        }
    }

    /// It returned by itself.
    pub(super) fn returned(mut self) {
        let asked = self.group.stop.is_requested();
        self.end = Some(if asked { TaskEnd::Drained } else { TaskEnd::Completed });
    }

    fn failed(mut self) {
        self.end = Some(TaskEnd::Failed);
    }

    pub(super) fn failed_for_good(mut self, reason: String) {
        self.end = Some(TaskEnd::Failed);
        let fatal = Fatal { supervisor: self.group.name.clone(), kind: self.spec.name, reason };
        tracing::error!(error = %fatal, "fatal");
        self.group.fail(&fatal);
    }

    /// Counts and logs a failure of this task.
    pub(super) fn note(&self, failure: &Failure) {
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
        self.group.count(Counter::TasksEnded, self.spec).add(1);
        self.ending.write(end);
        self.group.roll.leave(self.id, end == TaskEnd::Drained);
    }
}

/// Why a run of a task ended badly.
pub(super) enum Failure {
    Panic(String),
    Error(String),
}

impl Failure {
    pub(super) fn into_reason(self) -> String {
        match self {
            Failure::Panic(message) => format!("panicked: {message}"),
            Failure::Error(error) => error,
        }
    }
}

/// How many restarts a task has had lately, and how long to wait before the next.
pub(super) struct Restarts {
    policy: Restart,
    backoff: Option<Backoff>,
    recent: VecDeque<Instant>,
}

impl Restarts {
    pub(super) fn new(policy: Restart, rng: fastrand::Rng) -> Self {
        let backoff = match policy {
            Restart::Never | Restart::Expendable => None,
            Restart::Backoff { min, max, .. } => Some(BackoffPolicy::new(min, max.max(min)).with_rng(rng)),
        };
        Restarts { policy, backoff, recent: VecDeque::new() }
    }

    /// The pause before the next start, or `None` when the budget is spent.
    pub(super) fn after_failure(&mut self, started: Instant, now: Instant) -> Option<Duration> {
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
pub(super) async fn outcome<O: TaskOutput>(work: impl Future<Output = O>) -> Option<Failure> {
    // An error's words are foreign code too.
    match catch_all(work).await.and_then(|output| catch(|| output.failure())) {
        Ok(failure) => failure.map(Failure::Error),
        Err(panic) => Some(Failure::Panic(panic)),
    }
}

/// Runs `work` to its end and drops it, and turns a panic of either into its message.
pub(crate) async fn catch_all<F: Future>(work: F) -> Result<F::Output, String> {
    let mut work = pin!(Some(work));
    let output = catch_panic(work.as_mut()).await;
    let dropped = drop_catching(work);
    output.and_then(|output| dropped.map(|()| output))
}

/// Polls `work` to its end and turns a panic into its message. The slot must be full.
pub(crate) async fn catch_panic<F: Future>(mut work: Pin<&mut Option<F>>) -> Result<F::Output, String> {
    poll_fn(|cx| {
        let work = work.as_mut().as_pin_mut().expect("nobody empties the slot before the end");
        match catch(|| work.poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Drops what is in the slot and turns a panic of its `Drop` into the message.
pub(crate) fn drop_catching<F>(mut slot: Pin<&mut Option<F>>) -> Result<(), String> {
    catch(|| slot.set(None))
}

/// Runs foreign code and turns a panic into its message.
pub(crate) fn catch<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panic_message(&*panic))
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
