//! Counted permits with a fair queue, and the memory budget that several lanes share.
//!
//! The rule that everything else leans on: a permit exists or it does not. It is taken in one critical section,
//! given back by `Drop`, and a refusal or a dropped wait leaves the count as it found it.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    planted::{Bug, is_planted},
    sync::{Mutex, lock},
};

/// A pool of permits. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Permits {
    shared: Arc<Shared>,
}

struct Shared {
    total: u64,
    state: Mutex<State>,
}

struct State {
    free: u64,
    /// Oldest first. A large request at the head holds back small ones behind it, so it is served at last.
    waiting: VecDeque<Waiting>,
    arrivals: u64,
}

struct Waiting {
    id: u64,
    count: u64,
    waker: Waker,
}

impl Shared {
    fn give_back(&self, count: u64) {
        let woken = {
            let mut state = lock(&self.state);
            state.free += count;
            state.grant()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Serves the head of the queue as far as the free permits go. A served one is recognised by its absence.
    fn grant(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.front() {
            if first.count > self.free {
                break;
            }
            self.free -= first.count;
            woken.extend(self.waiting.pop_front().map(|waiting| waiting.waker));
        }
        woken
    }
}

impl Permits {
    pub(crate) fn new(total: u64) -> Self {
        let state = State { free: total, waiting: VecDeque::new(), arrivals: 0 };
        Permits { shared: Arc::new(Shared { total, state: Mutex::new(state) }) }
    }

    /// Takes `count` at once or not at all. Nobody overtakes those who already wait.
    pub(crate) fn try_take(&self, count: u64) -> Option<Permit> {
        let mut state = lock(&self.shared.state);
        if !state.waiting.is_empty() || state.free < count {
            if is_planted(Bug::LeakedPermit) {
                state.free = state.free.saturating_sub(count);
            }
            return None;
        }
        state.free -= count;
        drop(state);
        Some(Permit { shared: Arc::clone(&self.shared), count })
    }

    /// Takes `count` as soon as it is this caller's turn. More than the total is cut to the total: such a request
    /// gets the whole pool to itself instead of waiting for ever. Dropping the future leaves the queue.
    pub(crate) fn take(&self, count: u64) -> Take<'_> {
        Take { permits: self, count: count.min(self.shared.total), id: None, done: false }
    }

    pub(crate) fn free(&self) -> u64 {
        lock(&self.shared.state).free
    }

    pub(crate) fn total(&self) -> u64 {
        self.shared.total
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permits({} of {} free)", self.free(), self.total())
    }
}

/// Permits held. Dropping gives them back.
pub(crate) struct Permit {
    shared: Arc<Shared>,
    count: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.shared.give_back(self.count);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.count)
    }
}

/// See [`Permits::take`].
pub(crate) struct Take<'a> {
    permits: &'a Permits,
    count: u64,
    id: Option<u64>,
    done: bool,
}

impl Future for Take<'_> {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let shared = &this.permits.shared;
        let mut state = lock(&shared.state);
        match this.id {
            None if state.waiting.is_empty() && state.free >= this.count => state.free -= this.count,
            None => {
                state.arrivals += 1;
                let id = state.arrivals;
                state.waiting.push_back(Waiting { id, count: this.count, waker: cx.waker().clone() });
                this.id = Some(id);
                return Poll::Pending;
            }
            Some(id) => {
                if let Ok(at) = state.waiting.binary_search_by_key(&id, |waiting| waiting.id) {
                    if !state.waiting[at].waker.will_wake(cx.waker()) {
                        state.waiting[at].waker = cx.waker().clone();
                    }
                    return Poll::Pending;
                }
            }
        }
        drop(state);
        this.done = true;
        Poll::Ready(Permit { shared: Arc::clone(shared), count: this.count })
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let (Some(id), false) = (self.id, self.done) else {
            return;
        };
        let shared = &self.permits.shared;
        let mut state = lock(&shared.state);
        let woken = match state.waiting.binary_search_by_key(&id, |waiting| waiting.id) {
            // The head may have been what held the others back.
            Ok(at) => {
                state.waiting.remove(at);
                state.grant()
            }
            // Granted, but given up before it was collected.
            Err(_) => {
                state.free += self.count;
                state.grant()
            }
        };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A ceiling in bytes that several lanes share, so that what waits in all of them together is bounded.
///
/// Cloning shares the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    name: &'static str,
    permits: Permits,
}

impl MemoryBudget {
    /// `bytes` under the name that `Busy` will carry when they are spent.
    #[must_use]
    pub fn new(name: &'static str, bytes: u64) -> Self {
        MemoryBudget { name, permits: Permits::new(bytes) }
    }

    /// The name in refusals.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The whole budget.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.permits.total()
    }

    /// What is taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.permits.total() - self.permits.free()
    }

    pub(crate) fn permits(&self) -> &Permits {
        &self.permits
    }
}
