//! The bounded queue under every lane: who waits for items, who waits for room, and what a close means.
//!
//! A mutex around a deque, on purpose. It is loom-checkable, allocates as it fills instead of by capacity, lets a
//! caller that gave up take its item back, and is as fast as a lock-free list as long as no foreign code runs under
//! the lock, so wakers and dropped items always leave the critical section first.
//!
//! Order is strict: items leave in the order in which their producers arrived, waiting producers included. A
//! producer that waits for room has already handed its item over; the consumer that makes room moves it into the
//! queue, so nobody can barge in between.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{
    planted::{Bug, is_planted},
    sync::{Mutex, lock},
};

/// An item's place in arrival order; with it the item can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Why an item was not taken. It comes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused<T> {
    /// No room, after so many items were handed out in all.
    Full {
        item: T,
        taken: u64,
    },
    Closed(T),
}

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<(Ticket, T)>,
    /// Producers whose items did not fit yet, oldest first. Non-empty only while the queue is full.
    waiting: VecDeque<Waiting<T>>,
    /// Idle consumers. The last to come is the first to be woken: its stack is still warm.
    idle: Vec<(u64, Waker)>,
    arrivals: u64,
    taken: u64,
    consumers_seen: u64,
    closed: bool,
}

struct Waiting<T> {
    ticket: Ticket,
    item: T,
    waker: Waker,
}

impl<T> State<T> {
    fn next_ticket(&mut self) -> Ticket {
        self.arrivals += 1;
        Ticket(self.arrivals)
    }

    fn has_room(&self, capacity: usize) -> bool {
        self.items.len() < capacity && self.waiting.is_empty()
    }

    /// Appends and names the consumer to wake.
    fn append(&mut self, item: T) -> (Ticket, Option<Waker>) {
        let ticket = self.next_ticket();
        self.items.push_back((ticket, item));
        (ticket, self.idle.pop().map(|(_, waker)| waker))
    }

    /// Takes the oldest item and lets the longest-waiting producer's item in; names that producer's waker.
    fn take(&mut self, capacity: usize) -> Option<(T, Option<Waker>)> {
        let (_, item) = self.items.pop_front()?;
        self.taken += 1;
        Some((item, self.admit(capacity)))
    }

    fn admit(&mut self, capacity: usize) -> Option<Waker> {
        if self.closed || self.items.len() >= capacity {
            return None;
        }
        let Waiting { ticket, item, waker } = self.waiting.pop_front()?;
        self.items.push_back((ticket, item));
        Some(waker)
    }
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Queue {
            state: Mutex::new(State {
                items: VecDeque::new(),
                waiting: VecDeque::new(),
                idle: Vec::new(),
                arrivals: 0,
                taken: 0,
                consumers_seen: 0,
                closed: false,
            }),
            capacity,
        }
    }

    /// Enqueues if there is room at once.
    pub(crate) fn try_push(&self, item: T) -> Result<Ticket, Refused<T>> {
        let (ticket, wake) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(Refused::Closed(item));
            }
            if !state.has_room(self.capacity) {
                return Err(Refused::Full { item, taken: state.taken });
            }
            state.append(item)
        };
        wake_up(wake);
        Ok(ticket)
    }

    /// Enqueues by dropping the oldest item if there is no room. The dropped one comes back for counting.
    pub(crate) fn push_shedding(&self, item: T) -> Result<(Ticket, Option<T>), Refused<T>> {
        let (ticket, shed, wake) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(Refused::Closed(item));
            }
            let shed = if state.has_room(self.capacity) { None } else { state.items.pop_front() };
            let (ticket, wake) = state.append(item);
            (ticket, shed.map(|(_, item)| item), wake)
        };
        wake_up(wake);
        Ok((ticket, shed))
    }

    /// Drops the oldest item and gives it back for counting: how a shedding lane makes room in its byte budget.
    pub(crate) fn shed(&self) -> Option<T> {
        lock(&self.state).items.pop_front().map(|(_, item)| item)
    }

    /// Enqueues as soon as there is room. Dropping the future takes the item back unless it was enqueued already.
    pub(crate) fn push(&self, item: T) -> Push<'_, T> {
        Push { queue: self, item: Some(item), ticket: None }
    }

    /// Takes the oldest item, if there is one.
    pub(crate) fn try_recv(&self) -> Option<T> {
        let (item, wake) = lock(&self.state).take(self.capacity)?;
        wake_up(wake);
        Some(item)
    }

    /// The oldest item as soon as there is one; `None` once the queue is closed and empty. Dropping the future
    /// loses nothing.
    pub(crate) fn recv(&self) -> Recv<'_, T> {
        Recv { queue: self, id: None }
    }

    /// Takes an item back, wherever it waits. `None` if a consumer has it already.
    pub(crate) fn revoke(&self, ticket: Ticket) -> Option<T> {
        let (item, wake) = {
            let mut state = lock(&self.state);
            if let Ok(at) = state.items.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
                let (_, item) = state.items.remove(at)?;
                (item, state.admit(self.capacity))
            } else {
                let at = state.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
                let Waiting { item, waker, .. } = state.waiting.remove(at)?;
                drop(state);
                drop(waker);
                return Some(item);
            }
        };
        wake_up(wake);
        Some(item)
    }

    /// Refuses newcomers from now on; what is queued is still handed out.
    pub(crate) fn close(&self) {
        let (idle, waiting, dropped) = {
            let mut state = lock(&self.state);
            if state.closed {
                return;
            }
            state.closed = true;
            let dropped =
                if is_planted(Bug::DrainDrops) { std::mem::take(&mut state.items) } else { VecDeque::new() };
            let waiting: Vec<_> = state.waiting.iter().map(|waiting| waiting.waker.clone()).collect();
            (std::mem::take(&mut state.idle), waiting, dropped)
        };
        idle.into_iter().for_each(|(_, waker)| waker.wake());
        waiting.into_iter().for_each(Waker::wake);
        drop(dropped);
    }

    /// Closes and drops what is queued: there is no consumer left.
    pub(crate) fn abandon(&self) {
        self.close();
        let items = std::mem::take(&mut lock(&self.state).items);
        drop(items);
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.state).items.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Items handed out so far; with a clock beside it, the rate at which the queue drains.
    pub(crate) fn taken(&self) -> u64 {
        lock(&self.state).taken
    }
}

fn wake_up(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// See [`Queue::push`].
pub(crate) struct Push<'a, T> {
    queue: &'a Queue<T>,
    item: Option<T>,
    ticket: Option<Ticket>,
}

// Nothing in here is pinned: the item moves freely between the future and the queue.
impl<T> Unpin for Push<'_, T> {}

impl<T> Future for Push<'_, T> {
    /// The ticket, or the item back because the queue closed.
    type Output = Result<Ticket, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = lock(&this.queue.state);
        if let Some(ticket) = this.ticket {
            let Ok(at) = state.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket) else {
                this.ticket = None;
                return Poll::Ready(Ok(ticket));
            };
            if state.closed {
                let refused = state.waiting.remove(at);
                this.ticket = None;
                drop(state);
                return Poll::Ready(Err(refused.expect("found at this index").item));
            }
            if !state.waiting[at].waker.will_wake(cx.waker()) {
                state.waiting[at].waker = cx.waker().clone();
            }
            return Poll::Pending;
        }
        let item = this.item.take().expect("polled after it was ready");
        if state.closed {
            return Poll::Ready(Err(item));
        }
        if state.has_room(this.queue.capacity) {
            let (ticket, wake) = state.append(item);
            drop(state);
            wake_up(wake);
            return Poll::Ready(Ok(ticket));
        }
        let ticket = state.next_ticket();
        state.waiting.push_back(Waiting { ticket, item, waker: cx.waker().clone() });
        this.ticket = Some(ticket);
        Poll::Pending
    }
}

impl<T> Drop for Push<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = lock(&self.queue.state);
            if let Ok(at) = state.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket) {
                let given_up = state.waiting.remove(at);
                drop(state);
                drop(given_up);
            }
        }
    }
}

/// See [`Queue::recv`].
pub(crate) struct Recv<'a, T> {
    queue: &'a Queue<T>,
    id: Option<u64>,
}

impl<T> Recv<'_, T> {
    /// Whether this consumer was still among the idle ones.
    fn leave(&mut self, state: &mut State<T>) -> bool {
        let Some(id) = self.id.take() else { return true };
        let at = state.idle.iter().position(|(idle, _)| *idle == id);
        if let Some(at) = at {
            state.idle.remove(at);
        }
        at.is_some()
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = lock(&this.queue.state);
        if let Some((item, wake)) = state.take(this.queue.capacity) {
            this.leave(&mut state);
            drop(state);
            wake_up(wake);
            return Poll::Ready(Some(item));
        }
        if state.closed {
            this.leave(&mut state);
            return Poll::Ready(None);
        }
        let known = this.id.and_then(|id| state.idle.iter().position(|(idle, _)| *idle == id));
        if let Some(at) = known {
            if !state.idle[at].1.will_wake(cx.waker()) {
                state.idle[at].1 = cx.waker().clone();
            }
        } else {
            state.consumers_seen += 1;
            let id = state.consumers_seen;
            state.idle.push((id, cx.waker().clone()));
            this.id = Some(id);
        }
        Poll::Pending
    }
}

impl<T> Drop for Recv<'_, T> {
    fn drop(&mut self) {
        if self.id.is_none() {
            return;
        }
        let wake = {
            let mut state = lock(&self.queue.state);
            let was_idle = self.leave(&mut state);
            // It was woken for an item and gives up before taking it: the wake-up belongs to the next one.
            if was_idle || state.items.is_empty() || is_planted(Bug::LostJob) {
                None
            } else {
                state.idle.pop().map(|(_, waker)| waker)
            }
        };
        wake_up(wake);
    }
}
