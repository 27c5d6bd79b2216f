//! Asking to stop: the latch that carries the request, and what is reported at the end.
//!
//! A request cannot be missed: whoever asks the latch before it is set is woken by it, whoever asks after sees it
//! set. It is never taken back, so asking twice is harmless.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    Deadline,
    planted::{Bug, is_planted},
    sync::{
        Mutex, Seat, WakerSet,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};

/// Something that happens once and stays happened.
pub(crate) struct Latch {
    set: AtomicBool,
    state: Mutex<LatchState>,
}

#[derive(Default)]
struct LatchState {
    waiting: WakerSet,
    hooks: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    hooks_seen: u64,
}

impl Latch {
    pub(crate) fn new() -> Self {
        Latch { set: AtomicBool::new(false), state: Mutex::new(LatchState::default()) }
    }

    /// Sets it, once. Hooks have run when it returns.
    pub(crate) fn set(&self) {
        let (woken, hooks) = {
            let mut state = lock(&self.state);
            // Under the lock, so that a waiter that saw `false` under the same lock is in the set we take.
            if self.set.swap(true, Ordering::AcqRel) {
                return;
            }
            (state.waiting.take(), std::mem::take(&mut state.hooks))
        };
        for hook in hooks.into_values() {
            // A hook that panics must keep neither the others nor the waiting tasks from hearing of it.
            if catch_unwind(AssertUnwindSafe(hook)).is_err() {
                tracing::error!("a stop hook panicked");
            }
        }
        if !is_planted(Bug::LostStop) {
            woken.wake();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Runs `hook` inside the call that sets the latch, or now if it is set already. Returns the number by which it
    /// can be forgotten.
    fn on_set(&self, hook: impl FnOnce() + Send + 'static) -> Option<u64> {
        let mut state = lock(&self.state);
        if self.is_set() {
            drop(state);
            hook();
            return None;
        }
        state.hooks_seen += 1;
        let id = state.hooks_seen;
        state.hooks.insert(id, Box::new(hook));
        Some(id)
    }

    fn forget(&self, hook: u64) {
        let forgotten = lock(&self.state).hooks.remove(&hook);
        drop(forgotten);
    }

    pub(crate) fn wait(&self) -> Wait<'_> {
        Wait { latch: self, seat: Seat::default(), waker: None }
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latch({})", self.is_set())
    }
}

/// See [`Latch::wait`].
pub(crate) struct Wait<'a> {
    latch: &'a Latch,
    seat: Seat,
    /// The one that sits there.
    waker: Option<Waker>,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.latch.is_set() {
            return Poll::Ready(());
        }
        let this = &mut *self;
        // Whoever sits there already is woken when it is set. All connections of a server wait for one latch, and look at
        // it with every request.
        if this.waker.as_ref().is_some_and(|seated| seated.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let mut state = lock(&this.latch.state);
        if this.latch.is_set() {
            return Poll::Ready(());
        }
        state.waiting.join(&mut this.seat, cx.waker());
        this.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.seat.is_taken() && !self.latch.is_set() {
            lock(&self.latch.state).waiting.leave(self.seat);
        }
    }
}

/// A task's view of the request to stop. Cloning shares it.
///
/// Put [`Stop::requested`] into every `select!` loop. When it fires, take no new work, finish what is begun, return.
#[derive(Clone)]
pub struct Stop {
    shared: Arc<StopShared>,
}

struct StopShared {
    latch: Latch,
    /// Set when what is left is cut off.
    aborted: Latch,
    drain_until: OnceLock<Deadline>,
}

impl Stop {
    pub(crate) fn new() -> Self {
        let (latch, aborted) = (Latch::new(), Latch::new());
        Stop { shared: Arc::new(StopShared { latch, aborted, drain_until: OnceLock::new() }) }
    }

    pub(crate) fn request(&self, drain_until: Deadline) {
        let _ = self.shared.drain_until.set(drain_until);
        self.shared.latch.set();
    }

    pub(crate) fn abort(&self) {
        self.shared.aborted.set();
    }

    /// Resolves when the task should stop. Dropping the future loses nothing; ask again as often as you like.
    pub async fn requested(&self) {
        self.shared.latch.wait().await;
    }

    /// Whether the task should stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.shared.latch.is_set()
    }

    /// Until when the task may drain, once it has been asked to stop.
    #[must_use]
    pub fn drain_until(&self) -> Option<Deadline> {
        self.shared.drain_until.get().copied()
    }

    /// Runs `hook` the moment the stop is requested, inside the requesting call, or at once if that has happened.
    /// For closing an intake before anything else; the hook must not block. Dropping the guard forgets the hook.
    pub fn on_request(&self, hook: impl FnOnce() + Send + 'static) -> StopHook {
        StopHook { stop: self.clone(), request: self.shared.latch.on_set(hook), abort: None }
    }

    /// [`on_request`](Stop::on_request), and runs `cut` the moment what is left is cut off.
    pub(crate) fn on_request_and_abort(
        &self,
        hook: impl FnOnce() + Send + 'static,
        cut: impl FnOnce() + Send + 'static,
    ) -> StopHook {
        let abort = self.shared.aborted.on_set(cut);
        let mut hook = self.on_request(hook);
        hook.abort = abort;
        hook
    }
}

/// Keeps a hook of [`Stop::on_request`] in place.
#[derive(Debug)]
#[must_use = "dropping it forgets the hook"]
pub struct StopHook {
    stop: Stop,
    request: Option<u64>,
    abort: Option<u64>,
}

impl Drop for StopHook {
    fn drop(&mut self) {
        if let Some(id) = self.request {
            self.stop.shared.latch.forget(id);
        }
        if let Some(id) = self.abort {
            self.stop.shared.aborted.forget(id);
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("requested", &self.is_requested()).finish()
    }
}

/// Where a supervisor is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Tasks run and may be added.
    Running,
    /// Asked to stop; what was begun is being finished.
    Draining,
    /// The drain deadline has passed; what is left is cut off.
    Aborting,
    /// Nothing runs any more.
    Stopped,
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Tasks that ended by themselves between the request and the deadline.
    pub drained: usize,
    /// Tasks that had to be cut off.
    pub aborted: usize,
    /// From the request to the end.
    pub elapsed: Duration,
}
