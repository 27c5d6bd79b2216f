//! The bounded queue under every lane: who waits for items, who waits for room, and what a close means.
//!
//! Two deques behind two mutexes, on purpose. Producers append to the back, consumers take from the front, and only
//! when the front is empty does a consumer visit the back and swap the two. So producers and consumers rarely meet,
//! and yet everything is loom-checkable, allocates as it fills instead of by capacity, and lets a caller that gave up
//! take its item back. Nothing is woken and no item is dropped under a lock.
//!
//! Order is strict: items leave in the order in which their producers arrived, waiting producers included. A
//! producer that waits for room has already handed its item over; the consumer that makes room moves it into the
//! queue, so nobody can barge in between.
//!
//! Locks are taken front, then back; `idle` alone. Two questions are asked across them without a lock, and each
//! answer cannot be missed:
//!
//! - *Is a consumer idle?* A consumer enters itself as idle before its last look at the back; a producer asks inside
//!   its own visit to the back. Whichever visit comes second sees what the first one left.
//! - *Does a producer wait?* A producer enters itself as waiting before its last look at `taken`, a consumer counts
//!   `taken` up before it asks. Both are read-modify-writes, so whichever comes second sees the other.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{
    planted::{Bug, is_planted},
    shutdown::Latch,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        lock,
    },
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
    capacity: u64,
    front: OwnLine<Front<T>>,
    back: OwnLine<BackHalf<T>>,
    signals: OwnLine<Signals>,
}

/// The consumers' half.
struct Front<T> {
    items: Mutex<VecDeque<(Ticket, T)>>,
    /// Items that left the queue so far, taken, taken back or shed. `Back::accepted` less this is the depth.
    taken: AtomicU64,
}

/// The producers' half.
struct BackHalf<T> {
    state: Mutex<Back<T>>,
    /// A copy of `Back::accepted`, to ask without the lock.
    accepted: AtomicU64,
    /// The newest ticket that was let in after waiting. Those who wait are let in in order, so every older one was.
    admitted: AtomicU64,
    /// A copy of `Back::closed`.
    closed: AtomicBool,
}

/// What each half asks of the other without its lock.
struct Signals {
    /// Length of `Back::waiting`.
    waiting: AtomicUsize,
    /// Length of `idle`.
    idlers: AtomicUsize,
    idle: Mutex<Idle>,
    closed: Latch,
}

/// Consumers that wait.
struct Idle {
    /// The last to come is the first to be woken: its stack is still warm.
    wakers: Vec<(u64, Waker)>,
    seen: u64,
}

/// Starts a cache line of its own, so that producers and consumers do not take each other's away: side by side, the
/// two halves of the queue are slower on two cores than on one.
#[repr(align(64))]
struct OwnLine<T>(T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

struct Back<T> {
    items: VecDeque<(Ticket, T)>,
    /// Producers whose items did not fit yet, oldest first.
    waiting: VecDeque<Waiting<T>>,
    arrivals: u64,
    /// Items let into the queue so far.
    accepted: u64,
    /// A value that `taken` once had. While it leaves room there is no need to look again.
    taken_seen: u64,
    /// The most that were in the queue at once, for whoever watches a simulation.
    #[cfg(all(feature = "sim", not(ron_loom)))]
    most: u64,
    closed: bool,
}

struct Waiting<T> {
    ticket: Ticket,
    item: T,
    waker: Waker,
}

impl<T> Back<T> {
    fn next_ticket(&mut self) -> Ticket {
        self.arrivals += 1;
        Ticket(self.arrivals)
    }

    fn append(&mut self, ticket: Ticket, item: T) {
        self.accepted += 1;
        // The first one takes room for itself alone: thousands of sessions have lanes that never hold two.
        if self.items.capacity() == 0 {
            self.items.reserve_exact(1);
        }
        self.items.push_back((ticket, item));
    }

    fn waiting_at(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()
    }
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Queue {
            capacity: capacity as u64,
            front: OwnLine(Front { items: Mutex::new(VecDeque::new()), taken: AtomicU64::new(0) }),
            back: OwnLine(BackHalf {
                accepted: AtomicU64::new(0),
                admitted: AtomicU64::new(0),
                closed: AtomicBool::new(false),
                state: Mutex::new(Back {
                    items: VecDeque::new(),
                    waiting: VecDeque::new(),
                    arrivals: 0,
                    accepted: 0,
                    taken_seen: 0,
                    #[cfg(all(feature = "sim", not(ron_loom)))]
                    most: 0,
                    closed: false,
                }),
            }),
            signals: OwnLine(Signals {
                waiting: AtomicUsize::new(0),
                idlers: AtomicUsize::new(0),
                idle: Mutex::new(Idle { wakers: Vec::new(), seen: 0 }),
                closed: Latch::new(),
            }),
        }
    }

    /// Enqueues if there is room at once.
    pub(crate) fn try_push(&self, item: T) -> Result<Ticket, Refused<T>> {
        let mut back = lock(&self.back.state);
        if back.closed {
            return Err(Refused::Closed(item));
        }
        if !self.has_room(&mut back) {
            let taken = back.taken_seen;
            return Err(Refused::Full { item, taken });
        }
        let ticket = back.next_ticket();
        back.append(ticket, item);
        self.leave_back(back);
        Ok(ticket)
    }

    /// Enqueues by dropping the oldest item if there is no room. The dropped one comes back for counting.
    pub(crate) fn push_shedding(&self, item: T) -> Result<(Ticket, Option<T>), Refused<T>> {
        let item = match self.try_push(item) {
            Ok(ticket) => return Ok((ticket, None)),
            Err(Refused::Full { item, .. }) => item,
            Err(closed) => return Err(closed),
        };
        let mut front = lock(&self.front.items);
        let mut back = lock(&self.back.state);
        if back.closed {
            return Err(Refused::Closed(item));
        }
        // A consumer may have made room since.
        let shed = if self.has_room(&mut back) { None } else { self.remove_oldest(&mut front, &mut back) };
        drop(front);
        let ticket = back.next_ticket();
        back.append(ticket, item);
        self.leave_back(back);
        Ok((ticket, shed))
    }

    /// Enqueues as soon as there is room. Dropping the future takes the item back unless it was enqueued already.
    pub(crate) fn push(&self, item: T) -> Push<'_, T> {
        Push { queue: self, item: Some(item), ticket: None, waker: None }
    }

    /// Takes the oldest item, if there is one.
    pub(crate) fn try_recv(&self) -> Option<T> {
        self.take().ok()
    }

    /// Takes the oldest items in one visit, for as long as `takes` says yes to the next, and lets producers that wait in
    /// once for all of them. Both closures run under the consumers' lock: one looks, the other rewraps.
    #[cfg(any(all(feature = "net", not(ron_loom)), all(test, ron_loom)))]
    pub(crate) fn try_recv_while<U>(
        &self,
        into: &mut Vec<U>,
        mut takes: impl FnMut(&T) -> bool,
        wrap: impl Fn(T) -> U,
    ) {
        let mut front = lock(&self.front.items);
        if front.is_empty() {
            mem::swap(&mut *front, &mut lock(&self.back.state).items);
        }
        let count = front.iter().take_while(|(_, item)| takes(item)).count();
        if count == 0 {
            return;
        }
        into.extend(front.drain(..count).map(|(_, item)| wrap(item)));
        drop(front);
        self.front.taken.fetch_add(count as u64, Ordering::AcqRel);
        self.admit();
    }

    /// The oldest item as soon as there is one; `None` once the queue is closed and empty. Dropping the future
    /// loses nothing.
    pub(crate) fn recv(&self) -> Recv<'_, T> {
        Recv { queue: self, id: None }
    }

    /// Takes an item back, wherever it waits. `None` if a consumer has it already.
    pub(crate) fn revoke(&self, ticket: Ticket) -> Option<T> {
        let mut front = lock(&self.front.items);
        let mut back = lock(&self.back.state);
        if let Some(at) = back.waiting_at(ticket) {
            let Waiting { item, waker, .. } = self.stop_waiting(&mut back, at);
            drop((back, front));
            drop(waker);
            return Some(item);
        }
        let find =
            |items: &VecDeque<(Ticket, T)>| items.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok();
        let (_, item) = match find(&front) {
            Some(at) => front.remove(at),
            None => find(&back.items).and_then(|at| back.items.remove(at)),
        }?;
        self.front.taken.fetch_add(1, Ordering::AcqRel);
        drop((back, front));
        self.admit();
        Some(item)
    }

    /// Refuses newcomers from now on; what is queued is still handed out.
    pub(crate) fn close(&self) {
        let waiting: Vec<Waker> = {
            let mut back = lock(&self.back.state);
            if back.closed {
                return;
            }
            back.closed = true;
            self.back.closed.store(true, Ordering::Release);
            back.waiting.iter().map(|waiting| waiting.waker.clone()).collect()
        };
        if is_planted(Bug::DrainDrops) {
            self.forget_all();
        }
        let idle = {
            let mut idle = lock(&self.signals.idle);
            self.signals.idlers.store(0, Ordering::Relaxed);
            mem::take(&mut idle.wakers)
        };
        idle.into_iter().for_each(|(_, waker)| waker.wake());
        waiting.into_iter().for_each(Waker::wake);
        self.signals.closed.set();
    }

    /// Resolves when the queue is closed, for a producer that waits for something else first.
    pub(crate) async fn closed(&self) {
        self.signals.closed.wait().await;
    }

    /// Closes and drops what is queued: there is no consumer left.
    pub(crate) fn abandon(&self) {
        self.close();
        self.forget_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.back.closed.load(Ordering::Acquire)
    }

    pub(crate) fn len(&self) -> usize {
        let accepted = self.back.accepted.load(Ordering::Acquire);
        // Another thread may take an item between the two looks, so that more is taken than was accepted then.
        usize::try_from(accepted.saturating_sub(self.taken())).unwrap_or(usize::MAX)
    }

    /// The most items that were in the queue at once. Between two looks at it a queue may be full and empty again.
    #[cfg(all(feature = "sim", not(ron_loom)))]
    pub(crate) fn most(&self) -> usize {
        usize::try_from(lock(&self.back.state).most).unwrap_or(usize::MAX)
    }

    pub(crate) fn capacity(&self) -> usize {
        usize::try_from(self.capacity).unwrap_or(usize::MAX)
    }

    /// Items that have left so far; with a clock beside it, the rate at which the queue drains.
    pub(crate) fn taken(&self) -> u64 {
        self.front.taken.load(Ordering::Acquire)
    }

    fn has_room(&self, back: &mut Back<T>) -> bool {
        if !back.waiting.is_empty() {
            return false;
        }
        if back.accepted - back.taken_seen >= self.capacity {
            back.taken_seen = self.taken();
        }
        back.accepted - back.taken_seen < self.capacity || is_planted(Bug::UnboundedLane)
    }

    /// Ends a producer's visit to the back and wakes a consumer if one is idle.
    fn leave_back(&self, back: MutexGuard<'_, Back<T>>) {
        #[cfg(all(feature = "sim", not(ron_loom)))]
        let back = self.note_most(back);
        self.back.accepted.store(back.accepted, Ordering::Release);
        // Asked inside the visit, see the head of the file.
        let someone_is_idle = self.signals.idlers.load(Ordering::Relaxed) > 0;
        drop(back);
        if someone_is_idle {
            self.wake_idle();
        }
    }

    /// Not without a simulation: a producer who looks at what was taken waits for the consumers' cache line.
    #[cfg(all(feature = "sim", not(ron_loom)))]
    fn note_most<'a>(&self, mut back: MutexGuard<'a, Back<T>>) -> MutexGuard<'a, Back<T>> {
        back.most = back.most.max(back.accepted.saturating_sub(self.taken()));
        back
    }

    fn wake_idle(&self) {
        let waker = {
            let mut idle = lock(&self.signals.idle);
            let waker = idle.wakers.pop();
            self.signals.idlers.store(idle.wakers.len(), Ordering::Relaxed);
            waker
        };
        if let Some((_, waker)) = waker {
            waker.wake();
        }
    }

    /// Takes the oldest item, or tells whether the queue is closed and will never have one.
    fn take(&self) -> Result<T, Empty> {
        let mut front = lock(&self.front.items);
        if front.is_empty() {
            let mut back = lock(&self.back.state);
            if back.items.is_empty() {
                return Err(if back.closed { Empty::ForEver } else { Empty::Now });
            }
            mem::swap(&mut *front, &mut back.items);
        }
        let (_, item) = front.pop_front().expect("not empty, or filled just now");
        drop(front);
        self.front.taken.fetch_add(1, Ordering::AcqRel);
        self.admit();
        Ok(item)
    }

    /// Whether there may be something to take after all, or the end to see. Items count wherever they are: another
    /// consumer may have swapped them to the front since.
    fn has_changed(&self) -> bool {
        let back = lock(&self.back.state);
        back.closed || back.accepted > self.taken()
    }

    fn remove_oldest(&self, front: &mut VecDeque<(Ticket, T)>, back: &mut Back<T>) -> Option<T> {
        let (_, item) = front.pop_front().or_else(|| back.items.pop_front())?;
        self.front.taken.fetch_add(1, Ordering::AcqRel);
        Some(item)
    }

    /// Lets waiting producers in as far as there is room, after an item has left.
    fn admit(&self) {
        if self.signals.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut back = lock(&self.back.state);
        let admitted = self.admit_into(&mut back);
        self.leave_back(back);
        admitted.into_iter().for_each(Waker::wake);
    }

    fn admit_into(&self, back: &mut Back<T>) -> Vec<Waker> {
        let mut admitted = Vec::new();
        // A read-modify-write: it must not miss an item that left before the producer was seen to wait.
        back.taken_seen = self.front.taken.fetch_add(0, Ordering::AcqRel);
        while !back.closed && back.accepted - back.taken_seen < self.capacity {
            let Some(Waiting { ticket, item, waker }) = back.waiting.pop_front() else { break };
            back.append(ticket, item);
            self.back.admitted.store(ticket.0, Ordering::Release);
            admitted.push(waker);
        }
        self.signals.waiting.store(back.waiting.len(), Ordering::Release);
        admitted
    }

    fn stop_waiting(&self, back: &mut Back<T>, at: usize) -> Waiting<T> {
        let gone = back.waiting.remove(at).expect("found at this index");
        self.signals.waiting.store(back.waiting.len(), Ordering::Release);
        gone
    }

    fn forget_all(&self) {
        let (front, items) = {
            let mut front = lock(&self.front.items);
            let mut back = lock(&self.back.state);
            let gone = front.len() + back.items.len();
            self.front.taken.fetch_add(gone as u64, Ordering::AcqRel);
            (mem::take(&mut *front), mem::take(&mut back.items))
        };
        drop((front, items));
    }
}

/// Why there is nothing to take.
enum Empty {
    Now,
    ForEver,
}

/// See [`Queue::push`].
pub(crate) struct Push<'a, T> {
    queue: &'a Queue<T>,
    item: Option<T>,
    ticket: Option<Ticket>,
    /// The waker that waits in the queue, so that a poll for no reason need not visit it.
    waker: Option<Waker>,
}

// Nothing in here is pinned: the item moves freely between the future and the queue.
impl<T> Unpin for Push<'_, T> {}

impl<T> Push<'_, T> {
    /// Hands the item over, or the refusal back.
    fn arrive(&mut self, item: T, waker: &Waker) -> Poll<Result<Ticket, T>> {
        let queue = self.queue;
        let mut back = lock(&queue.back.state);
        if back.closed {
            return Poll::Ready(Err(item));
        }
        let ticket = back.next_ticket();
        if queue.has_room(&mut back) {
            back.append(ticket, item);
            queue.leave_back(back);
            return Poll::Ready(Ok(ticket));
        }
        back.waiting.push_back(Waiting { ticket, item, waker: waker.clone() });
        queue.signals.waiting.store(back.waiting.len(), Ordering::Release);
        self.ticket = Some(ticket);
        if back.waiting.len() > 1 {
            // Consumers know already that somebody waits; whoever was first took the last look for all.
            drop(back);
            self.waker = Some(waker.clone());
            return Poll::Pending;
        }
        // The last look, now that consumers can see somebody waiting.
        let admitted = queue.admit_into(&mut back);
        queue.leave_back(back);
        // The one admitted is this one, which needs no waking.
        if admitted.is_empty() {
            return Poll::Pending;
        }
        self.ticket = None;
        Poll::Ready(Ok(ticket))
    }
}

impl<T> Future for Push<'_, T> {
    /// The ticket, or the item back because the queue closed.
    type Output = Result<Ticket, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(ticket) = this.ticket else {
            let item = this.item.take().expect("polled after it was ready");
            return this.arrive(item, cx.waker());
        };
        if ticket.0 <= this.queue.back.admitted.load(Ordering::Acquire) {
            this.ticket = None;
            return Poll::Ready(Ok(ticket));
        }
        let is_known = this.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
        if is_known && !this.queue.is_closed() {
            return Poll::Pending;
        }
        let mut back = lock(&this.queue.back.state);
        let Some(at) = back.waiting_at(ticket) else {
            this.ticket = None;
            return Poll::Ready(Ok(ticket));
        };
        if back.closed {
            let Waiting { item, waker, .. } = this.queue.stop_waiting(&mut back, at);
            this.ticket = None;
            drop(back);
            drop(waker);
            return Poll::Ready(Err(item));
        }
        if !back.waiting[at].waker.will_wake(cx.waker()) {
            back.waiting[at].waker = cx.waker().clone();
        }
        drop(back);
        this.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Push<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut back = lock(&self.queue.back.state);
        if let Some(at) = back.waiting_at(ticket) {
            let given_up = self.queue.stop_waiting(&mut back, at);
            drop(back);
            drop(given_up);
        }
    }
}

/// See [`Queue::recv`].
pub(crate) struct Recv<'a, T> {
    queue: &'a Queue<T>,
    id: Option<u64>,
}

impl<T> Recv<'_, T> {
    /// Enters this consumer as idle, or renews its waker.
    fn wait(&mut self, waker: &Waker) {
        let mut idle = lock(&self.queue.signals.idle);
        let known = self.id.and_then(|id| idle.wakers.iter().position(|(idler, _)| *idler == id));
        match known {
            Some(at) if idle.wakers[at].1.will_wake(waker) => {}
            Some(at) => idle.wakers[at].1 = waker.clone(),
            None => {
                idle.seen += 1;
                let id = idle.seen;
                idle.wakers.push((id, waker.clone()));
                self.id = Some(id);
            }
        }
        self.queue.signals.idlers.store(idle.wakers.len(), Ordering::Relaxed);
    }

    /// Leaves, and if it was woken for an item that it does not take, because it gives up or has another, hands the
    /// wake-up on.
    fn leave_woken(&mut self) {
        if !self.leave() && self.queue.len() > 0 && !is_planted(Bug::LostJob) {
            self.queue.wake_idle();
        }
    }

    /// Leaves the idle ones. Tells whether it was still among them.
    fn leave(&mut self) -> bool {
        let Some(id) = self.id.take() else { return true };
        let mut idle = lock(&self.queue.signals.idle);
        let at = idle.wakers.iter().position(|(idler, _)| *idler == id);
        let gone = at.map(|at| idle.wakers.remove(at));
        self.queue.signals.idlers.store(idle.wakers.len(), Ordering::Relaxed);
        drop(idle);
        gone.is_some()
    }
}

impl<T> Future for Recv<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut found = this.queue.take();
        if matches!(found, Err(Empty::Now)) {
            this.wait(cx.waker());
            // The last look, now that producers can see somebody idle.
            if this.queue.has_changed() {
                found = this.queue.take();
            }
        }
        match found {
            Ok(item) => {
                this.leave_woken();
                Poll::Ready(Some(item))
            }
            Err(Empty::ForEver) => {
                this.leave();
                Poll::Ready(None)
            }
            Err(Empty::Now) => Poll::Pending,
        }
    }
}

impl<T> Drop for Recv<'_, T> {
    fn drop(&mut self) {
        self.leave_woken();
    }
}
