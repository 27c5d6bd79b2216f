//! The one kind of queue between tasks: bounded, named, measured, and it says no.
//!
//! A full lane answers at once with `Busy` and a pause that follows the rate at which it really drains. A caller that
//! can wait says until when. A caller that gives up takes its item back, so what is queued is what somebody still
//! wants.

use std::{
    cell::RefCell,
    fmt,
    future::{Future, poll_fn},
    num::NonZeroUsize,
    pin::{Pin, pin},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tokio::{sync::oneshot, task::coop::cooperative, time::Instant};

use crate::{
    CallError, Counter, Deadline, LaneKind, LaneSpec, MemoryBudget, Metrics, Overflow, Stop, StopHook, Tally,
    deadline::poll_once,
    metrics::Depth,
    permits::Permit,
    queue::{Queue, Refused, Ticket},
};

/// The producers' side. Cloning shares the lane; when the last clone is dropped, the lane closes and drains.
pub struct Lane<T> {
    producer: Arc<Producer<T>>,
}

/// The consumers' side. Cloning adds a consumer: each item goes to one of them. When the last clone is dropped, the
/// lane closes and what was queued is dropped.
pub struct Inbox<T> {
    consumer: Arc<Consumer<T>>,
}

struct Producer<T>(Arc<Shared<T>>);
struct Consumer<T>(Arc<Shared<T>>);

struct Shared<T> {
    spec: LaneSpec,
    queue: Queue<Parcel<T>>,
    scales: Option<Scales<T>>,
    metrics: Metrics,
    refused: Tally,
    dropped: Tally,
    drain: Mutex<DrainRate>,
    /// Closes the lane when the owner is asked to stop.
    on_stop: OnceLock<StopHook>,
}

/// How the lane's items are weighed, and against what.
struct Scales<T> {
    budget: MemoryBudget,
    weigh: fn(&T) -> usize,
}

/// An item and the bytes it holds of the shared budget, for as long as it exists.
struct Parcel<T> {
    item: T,
    weight: Option<Permit>,
}

impl<T: Send + 'static> Lane<T> {
    /// Opens the lane that `spec` declares.
    ///
    /// # Panics
    /// If `spec` declares a feed.
    #[must_use]
    pub fn open(spec: LaneSpec, metrics: &Metrics) -> (Lane<T>, Inbox<T>) {
        Self::build(spec, metrics, None)
    }

    /// Opens a lane whose items also take `weigh` bytes of a budget that it shares with others. An item heavier
    /// than the whole budget is refused.
    ///
    /// # Panics
    /// If `spec` declares a feed, or a lane that sheds: what it shed would make room for whoever waits for the budget, and
    /// not for the newcomer.
    #[must_use]
    pub fn open_weighed(
        spec: LaneSpec,
        metrics: &Metrics,
        budget: &MemoryBudget,
        weigh: fn(&T) -> usize,
    ) -> (Lane<T>, Inbox<T>) {
        assert!(spec.overflow == Overflow::RejectNewest, "{} sheds, and shares a budget", spec.name);
        Self::build(spec, metrics, Some(Scales { budget: budget.clone(), weigh }))
    }

    fn build(spec: LaneSpec, metrics: &Metrics, scales: Option<Scales<T>>) -> (Lane<T>, Inbox<T>) {
        assert!(spec.kind == LaneKind::Lane, "{} is declared as a feed", spec.name);
        let shared = Arc::new(Shared {
            spec,
            queue: Queue::new(spec.capacity),
            scales,
            metrics: metrics.clone(),
            refused: metrics.tally(Counter::BusyRejections, spec.name),
            dropped: metrics.tally(Counter::QueueDropped, spec.name),
            drain: Mutex::new(DrainRate::new(crate::now())),
            on_stop: OnceLock::new(),
        });
        let queue: Weak<Shared<T>> = Arc::downgrade(&shared);
        metrics.watch_queue(spec, queue);
        let lane = Lane { producer: Arc::new(Producer(Arc::clone(&shared))) };
        (lane, Inbox { consumer: Arc::new(Consumer(shared)) })
    }

    /// Closes the lane the moment `stop` is requested, so that no newcomer is taken in while consumers are busy
    /// with old ones, and drops what is queued the moment the drain is over, so that whoever waits is told. The first
    /// call counts.
    pub fn close_on(&self, stop: &Stop) {
        let then = |act: fn(&Queue<Parcel<T>>)| {
            let shared = Arc::downgrade(&self.producer.0);
            move || {
                if let Some(shared) = shared.upgrade() {
                    act(&shared.queue);
                }
            }
        };
        let hook = stop.on_request_and_abort(then(Queue::close), then(Queue::abandon));
        let _ = self.shared().on_stop.set(hook);
    }

    /// A question about how full the lane is that does not keep the lane alive.
    pub(crate) fn fullness(&self) -> impl Fn() -> Option<f64> + Send + 'static {
        let shared = Arc::downgrade(&self.producer.0);
        move || {
            let shared = shared.upgrade()?;
            Some(shared.queue.len() as f64 / shared.queue.capacity() as f64)
        }
    }
}

impl<T> Lane<T> {
    /// Queues `item` if there is room now.
    ///
    /// # Errors
    /// [`CallError::Busy`] when full, which a lane that sheds never is, [`CallError::Canceled`] when
    /// closed. The item is dropped.
    pub fn try_push(&self, item: T) -> Result<(), CallError> {
        self.offer(item).map(drop).map_err(|(error, _)| error)
    }

    /// Like [`try_push`](Lane::try_push), and gives the item back when it is refused.
    ///
    /// # Errors
    /// As [`try_push`](Lane::try_push), with the item.
    pub fn try_push_or_return(&self, item: T) -> Result<(), (CallError, T)> {
        self.offer(item).map(drop)
    }

    /// Queues `item` as soon as there is room. Dropping the future takes the item back unless it is queued already.
    /// On a lane that sheds the oldest there is always room.
    ///
    /// # Errors
    /// [`CallError::Timeout`] at the deadline, [`CallError::Canceled`] when the lane closes,
    /// [`CallError::Busy`] for an item heavier than the whole budget. The item is dropped.
    pub async fn push(&self, item: T, deadline: Deadline) -> Result<(), CallError> {
        let shared = self.shared();
        if shared.spec.overflow == Overflow::ShedOldest {
            return self.try_push(item);
        }
        // Mostly there is room, and then nothing that waits need be built.
        let item = match &shared.scales {
            Some(_) => item,
            None => match shared.queue.try_push(Parcel { item, weight: None }) {
                Ok(_) => return Ok(()),
                Err(Refused::Full { item: parcel, .. }) => parcel.item,
                Err(Refused::Closed(_)) => return Err(CallError::Canceled),
            },
        };
        let mut push = pin!(async {
            let parcel = shared.weigh(item).await?;
            shared.queue.push(parcel).await.map(drop).map_err(|_| CallError::Canceled)
        });
        if let Some(pushed) = poll_once(push.as_mut()).await {
            return pushed;
        }
        match deadline.limit_pending(shared.spec.name, push).await {
            Ok(pushed) => pushed,
            Err(late) => {
                shared.metrics.tally(Counter::IoTimeouts, shared.spec.name).add(1);
                Err(late)
            }
        }
    }

    /// Sends a request and waits for its answer: the one request path of the family.
    ///
    /// `make` puts the [`Reply`] into the request. A full lane is `Busy` at once (on a lane that sheds, whoever is
    /// shed is told so), no answer by the deadline is `Timeout`, a consumer that is gone is `Canceled`, one that
    /// panicked is `Panicked`. Dropping the future gives up: a request that is still queued leaves the queue, one that
    /// runs sees [`Reply::abandoned`].
    ///
    /// # Errors
    /// The four above.
    pub async fn call<R>(
        &self,
        op: &'static str,
        deadline: Deadline,
        make: impl FnOnce(Reply<R>) -> T,
    ) -> Result<R, CallError> {
        let (reply, answer) = Reply::new(op);
        let shared = self.shared();
        let ticket = self.offer(make(reply)).map_err(|(error, _)| error)?;
        // Gives the place in the queue back on every way out before the answer, the dropped future included.
        let place = Place { queue: &shared.queue, ticket };
        let answer = match deadline.limit_pending(op, pin!(answer)).await {
            Ok(answer) => {
                place.was_left();
                answer.unwrap_or(Err(CallError::Canceled))
            }
            Err(late) => Err(late),
        };
        if matches!(answer, Err(CallError::Timeout { .. })) {
            shared.metrics.tally(Counter::IoTimeouts, op).add(1);
        }
        answer
    }

    /// Refuses newcomers from now on. What is queued is still handed out.
    pub fn close(&self) {
        self.shared().queue.close();
    }

    /// Whether newcomers are refused for good.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared().queue.is_closed()
    }

    /// Items waiting now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared().queue.len()
    }

    /// The declaration this lane was opened with.
    #[must_use]
    pub fn spec(&self) -> LaneSpec {
        self.shared().spec
    }

    /// [`push`](Lane::push) without a deadline and so without a timer, for models. Tells whether it was queued.
    #[cfg(all(test, ron_loom))]
    pub(crate) async fn producer_push(&self, item: T) -> bool {
        self.shared().queue.push(Parcel { item, weight: None }).await.is_ok()
    }

    fn shared(&self) -> &Shared<T> {
        &self.producer.0
    }

    fn offer(&self, item: T) -> Result<Ticket, (CallError, T)> {
        let shared = self.shared();
        let parcel = match shared.weigh_now(item) {
            Ok(parcel) => parcel,
            Err(item) => return Err((shared.budget_refusal(), item)),
        };
        let pushed = match shared.spec.overflow {
            Overflow::RejectNewest => shared.queue.try_push(parcel),
            Overflow::ShedOldest => shared.queue.push_shedding(parcel).map(|(ticket, shed)| {
                if let Some(parcel) = shed {
                    shared.drop_shed(parcel);
                }
                ticket
            }),
        };
        pushed.map_err(|refused| match refused {
            Refused::Full { item: parcel, taken } => {
                (shared.refusal(shared.spec.name, taken, shared.spec.capacity), parcel.item)
            }
            Refused::Closed(parcel) => (CallError::Canceled, parcel.item),
        })
    }
}

impl<T> Shared<T> {
    /// Takes the item's bytes from the budget, or gives it back.
    fn weigh_now(&self, item: T) -> Result<Parcel<T>, T> {
        let Some(Scales { budget, weigh }) = &self.scales else {
            return Ok(Parcel { item, weight: None });
        };
        let bytes = weigh(&item) as u64;
        // What weighs nothing asks nobody. A closed lane takes nothing in, and the queue says so.
        if bytes == 0 || self.queue.is_closed() {
            return Ok(Parcel { item, weight: None });
        }
        match budget.permits().try_take(bytes) {
            Some(weight) => Ok(Parcel { item, weight: Some(weight) }),
            None => Err(item),
        }
    }

    /// Takes the item's bytes from the budget as soon as they are there.
    async fn weigh(&self, item: T) -> Result<Parcel<T>, CallError> {
        let Some(Scales { budget, weigh }) = &self.scales else {
            return Ok(Parcel { item, weight: None });
        };
        let bytes = weigh(&item) as u64;
        if bytes > budget.bytes() {
            return Err(self.budget_refusal());
        }
        tokio::select! {
            biased;
            () = self.queue.closed() => Err(CallError::Canceled),
            weight = budget.permits().take(bytes) => Ok(Parcel { item, weight: Some(weight) }),
        }
    }

    /// Counts an item lost to newer ones. If a caller waits for its answer, the answer is that the lane is full.
    fn drop_shed(&self, parcel: Parcel<T>) {
        self.dropped.add(1);
        let retry_after = self.retry_after(self.queue.taken(), self.queue.len());
        SHEDDING.set(Some(CallError::Busy { what: self.spec.name, retry_after }));
        drop(parcel);
        SHEDDING.set(None);
    }

    fn budget_refusal(&self) -> CallError {
        let what = self.scales.as_ref().map_or(self.spec.name, |scales| scales.budget.name());
        self.refusal(what, self.queue.taken(), self.queue.len())
    }

    fn refusal(&self, what: &'static str, taken: u64, waiting: usize) -> CallError {
        self.refused.add(1);
        CallError::Busy { what, retry_after: self.retry_after(taken, waiting) }
    }

    fn retry_after(&self, taken: u64, waiting: usize) -> Duration {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner).retry_after(taken, waiting)
    }
}

thread_local! {
    /// What a reply that is dropped on this thread now should say: its request was shed.
    static SHEDDING: RefCell<Option<CallError>> = const { RefCell::new(None) };
}

impl<T> Clone for Lane<T> {
    fn clone(&self) -> Self {
        Lane { producer: Arc::clone(&self.producer) }
    }
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.shared().spec;
        write!(f, "Lane({}: {} of {})", spec.name, self.depth(), spec.capacity)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

impl<T> Inbox<T> {
    /// The oldest item as soon as there is one; `None` once the lane is closed and empty. Dropping the future loses
    /// nothing.
    pub async fn recv(&self) -> Option<T> {
        cooperative(self.consumer.0.queue.recv()).await.map(|parcel| parcel.item)
    }

    /// Like [`recv`](Inbox::recv), and keeps the item's share of the memory budget taken until `Held` is dropped.
    pub async fn recv_held(&self) -> Option<Held<T>> {
        cooperative(self.consumer.0.queue.recv()).await.map(Held::from)
    }

    /// The oldest item if there is one now.
    #[must_use]
    pub fn try_recv(&self) -> Option<T> {
        self.consumer.0.queue.try_recv().map(|parcel| parcel.item)
    }

    /// The oldest items there are now, for as long as `takes` says yes to the next: one visit to the queue for all.
    /// `takes` runs under a lock, so it only looks.
    #[cfg(any(all(feature = "net", not(ron_loom)), all(test, ron_loom)))]
    pub(crate) fn try_recv_while(&self, into: &mut Vec<Held<T>>, mut takes: impl FnMut(&T) -> bool) {
        let queue = &self.consumer.0.queue;
        queue.try_recv_while(into, |parcel| takes(&parcel.item), Held::from);
    }

    /// [`recv`](Inbox::recv) for a thread that is not part of a runtime. Blocks it.
    #[must_use]
    pub fn recv_blocking(&self) -> Option<T> {
        block_on(self.recv())
    }

    /// Refuses newcomers from now on; [`recv`](Inbox::recv) drains what is queued and then ends.
    pub fn close(&self) {
        self.consumer.0.queue.close();
    }

    /// Items waiting now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.consumer.0.queue.len()
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Inbox { consumer: Arc::clone(&self.consumer) }
    }
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({}: {})", self.consumer.0.spec.name, self.depth())
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

impl<T: Send> Depth for Shared<T> {
    fn depth(&self) -> usize {
        self.queue.len()
    }

    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    #[cfg(all(feature = "sim", not(ron_loom)))]
    fn most(&self) -> usize {
        self.queue.most()
    }
}

/// An item whose bytes still count against the lane's memory budget.
#[derive(Debug)]
pub struct Held<T> {
    /// The item.
    pub item: T,
    _weight: Option<Permit>,
}

impl<T> From<Parcel<T>> for Held<T> {
    fn from(Parcel { item, weight }: Parcel<T>) -> Self {
        Held { item, _weight: weight }
    }
}

/// Two lanes for one consumer: the first is preferred, the second is never starved.
///
/// After `burst` items in a row from the first lane, a waiting item of the second has its turn, so under full load
/// the second gets one in `burst + 1`.
#[derive(Debug)]
pub struct PriorityInbox<T> {
    first: Inbox<T>,
    second: Inbox<T>,
    burst: NonZeroUsize,
    streak: usize,
}

impl<T> PriorityInbox<T> {
    /// Prefers `first`, and gives `second` a turn after at most `burst` items.
    #[must_use]
    pub fn new(first: Inbox<T>, second: Inbox<T>, burst: NonZeroUsize) -> Self {
        PriorityInbox { first, second, burst, streak: 0 }
    }

    /// The next item by priority; `None` once both lanes are closed and empty. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<T> {
        let PriorityInbox { first, second, burst, streak } = self;
        let seconds_turn = *streak >= burst.get();
        let (preferred, other) = if seconds_turn { (&*second, &*first) } else { (&*first, &*second) };
        let mut from_preferred = pin!(preferred.recv());
        let mut from_other = pin!(other.recv());
        let (mut preferred_ended, mut other_ended) = (false, false);
        let (item, second_had_it) = poll_fn(|cx| {
            if let Some(item) = look(from_preferred.as_mut(), &mut preferred_ended, cx) {
                return Poll::Ready(Some((item, seconds_turn)));
            }
            if let Some(item) = look(from_other.as_mut(), &mut other_ended, cx) {
                return Poll::Ready(Some((item, !seconds_turn)));
            }
            if preferred_ended && other_ended { Poll::Ready(None) } else { Poll::Pending }
        })
        .await?;
        *streak = if second_had_it { 0 } else { *streak + 1 };
        Some(item)
    }

    /// The next item by priority, if there is one now.
    #[must_use]
    pub fn try_recv(&mut self) -> Option<T> {
        let seconds_turn = self.streak >= self.burst.get();
        let (preferred, other) =
            if seconds_turn { (&self.second, &self.first) } else { (&self.first, &self.second) };
        let (item, second_had_it) = match preferred.try_recv() {
            Some(item) => (item, seconds_turn),
            None => (other.try_recv()?, !seconds_turn),
        };
        self.streak = if second_had_it { 0 } else { self.streak + 1 };
        Some(item)
    }

    /// Closes both lanes to newcomers.
    pub fn close(&self) {
        self.first.close();
        self.second.close();
    }
}

/// An item if there is one; a lane that has ended is not polled again.
fn look<T>(
    recv: Pin<&mut impl Future<Output = Option<T>>>,
    ended: &mut bool,
    cx: &mut Context<'_>,
) -> Option<T> {
    if *ended {
        return None;
    }
    match recv.poll(cx) {
        Poll::Ready(item) => {
            *ended = item.is_none();
            item
        }
        Poll::Pending => None,
    }
}

/// The answer that a request owes its caller.
///
/// Dropping it without an answer tells the caller `Canceled`, or `Panicked` when a panic drops it, or `Busy` when its
/// request was shed for a newer one.
pub struct Reply<R> {
    op: &'static str,
    to: Option<oneshot::Sender<Result<R, CallError>>>,
}

impl<R> Reply<R> {
    pub(crate) fn new(op: &'static str) -> (Self, oneshot::Receiver<Result<R, CallError>>) {
        #[allow(clippy::disallowed_methods, reason = "this is what a reply is made of")]
        let (to, answer) = oneshot::channel();
        (Reply { op, to: Some(to) }, answer)
    }

    /// Answers.
    pub fn send(self, answer: R) {
        self.finish(Ok(answer));
    }

    /// Answers with a refusal.
    pub fn refuse(self, error: CallError) {
        self.finish(Err(error));
    }

    /// The operation the caller named.
    #[must_use]
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Resolves when the caller has given up, so that work nobody wants can stop.
    pub async fn abandoned(&mut self) {
        if let Some(to) = &mut self.to {
            to.closed().await;
        }
    }

    /// Whether the caller has given up.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.to.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    fn finish(mut self, answer: Result<R, CallError>) {
        if let Some(to) = self.to.take() {
            // The caller may be gone; then nobody wants to know.
            let _ = to.send(answer);
        }
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        let Some(to) = self.to.take() else { return };
        if thread::panicking() {
            let _ = to.send(Err(CallError::Panicked { op: self.op }));
        } else if let Some(busy) = SHEDDING.with_borrow(Clone::clone) {
            let _ = to.send(Err(busy));
        }
    }
}

impl<R> fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("op", &self.op).field("abandoned", &self.is_abandoned()).finish()
    }
}

/// A caller's place in the queue, given up with the caller.
struct Place<'a, T> {
    queue: &'a Queue<Parcel<T>>,
    ticket: Ticket,
}

impl<T> Place<'_, T> {
    /// A consumer has had the item: nothing to give up.
    fn was_left(self) {
        std::mem::forget(self);
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        drop(self.queue.revoke(self.ticket));
    }
}

/// How fast a lane drains, learned only when it refuses: the path that succeeds reads no clock.
struct DrainRate {
    at: Instant,
    taken: u64,
    /// Items per second, as of the last look; `None` before the first.
    rate: Option<f64>,
    refusals: u32,
}

impl DrainRate {
    /// The clock is read for one refusal in so many: a refusal should cost less than what it refuses.
    const READ_EVERY: u32 = 16;
    /// Looks closer together than this say more about the scheduler than about the queue.
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    /// Refusals further apart than this do not belong to the same jam.
    const STALE_AFTER: Duration = Duration::from_secs(2);
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(5);

    fn new(now: Instant) -> Self {
        DrainRate { at: now, taken: 0, rate: None, refusals: 0 }
    }

    /// The time in which half of what waits will have been taken: sooner is likely to be refused again, later
    /// leaves consumers idle.
    fn retry_after(&mut self, taken: u64, waiting: usize) -> Duration {
        if self.refusals % Self::READ_EVERY == 0 {
            self.look(taken, crate::now());
        }
        self.refusals = self.refusals.wrapping_add(1);
        let Some(rate) = self.rate else { return Self::SHORTEST };
        let seconds = waiting as f64 / 2.0 / rate;
        Duration::try_from_secs_f64(seconds).unwrap_or(Self::LONGEST).clamp(Self::SHORTEST, Self::LONGEST)
    }

    fn look(&mut self, taken: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at);
        if elapsed > Self::STALE_AFTER {
            // Not full all that time, so how much was taken in it says nothing about a full queue.
            (self.at, self.taken) = (now, taken);
        } else if elapsed >= Self::LOOK_EVERY {
            self.rate = Some(taken.saturating_sub(self.taken) as f64 / elapsed.as_secs_f64());
            (self.at, self.taken) = (now, taken);
        }
    }
}

/// Drives a future on a thread of its own, without a runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
