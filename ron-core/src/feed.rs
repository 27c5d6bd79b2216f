//! One publisher's side, many readers, and a slow reader that is told how much it missed.
//!
//! An event stays until everybody who was subscribed when it was published has read it, or until `capacity` newer
//! ones have come. The last reader takes the event itself, the others take clones, so make events cheap to clone.
//! A publisher never waits.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::coop::cooperative, time::Instant};

use crate::{
    Counter, LaneKind, LaneSpec, Metrics, Stop, StopHook, Tally,
    metrics::Depth,
    sync::{Mutex, Seat, WakerSet, lock},
};

/// A lagging feed warns at most this often; the counter has every loss.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Events a subscriber takes per visit to the lock. Sixteen make the lock cheap; more would only make a slow
/// subscriber hold on to events that the feed could have shed.
const READ_AHEAD: usize = 16;

/// What a subscriber receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// The next event.
    Item(T),
    /// So many events were lost before the next one, because this subscriber was too slow.
    Missed(u64),
}

/// The publishing side.
///
/// ```
/// use ron_core::{Event, Feed, LaneSpec, Metrics};
///
/// const NEWS: LaneSpec = LaneSpec::feed("my-crate", "news", 2);
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let feed = Feed::open(NEWS, &Metrics::default());
/// let mut slow = feed.subscribe();
/// for number in 1..=5 {
///     feed.publish(number);
/// }
/// assert_eq!(slow.recv().await, Some(Event::Missed(3)));
/// assert_eq!(slow.recv().await, Some(Event::Item(4)));
/// # }
/// ```
///
/// Cloning shares the feed; when the last clone is dropped, subscribers read what is left and
/// then see the end.
pub struct Feed<T> {
    publisher: Arc<Publisher<T>>,
}

/// Ends the feed when the last clone of its handle goes.
struct Publisher<T>(Arc<Shared<T>>);

struct Shared<T> {
    spec: LaneSpec,
    lagged: Tally,
    state: Mutex<State<T>>,
    /// Ends the feed when the owner is asked to stop.
    on_stop: OnceLock<StopHook>,
}

struct State<T> {
    /// Events with the number of subscribers that have yet to read each; `None` once all have.
    events: VecDeque<(Option<T>, usize)>,
    /// Sequence number of the event at the front.
    first: u64,
    subscribers: usize,
    waiting: WakerSet,
    closed: bool,
    warned: Option<Instant>,
}

impl<T> State<T> {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// What the subscriber that has read up to `next` reads next, if it is there. A few more that are ready go into
    /// `ahead`, so that a subscriber with a backlog does not come back to the lock for each of them.
    fn read(&mut self, next: &mut u64, ahead: &mut VecDeque<T>) -> Option<Event<T>>
    where
        T: Clone,
    {
        if *next < self.first {
            let missed = self.first - *next;
            *next = self.first;
            return Some(Event::Missed(missed));
        }
        let from = usize::try_from(*next - self.first).ok()?;
        for at in from..self.events.len().min(from + READ_AHEAD) {
            let (event, unread) = &mut self.events[at];
            // Counted down before the clone: if that panics, the event is skipped and not read twice.
            *unread -= 1;
            *next += 1;
            let event = if *unread == 0 { event.take() } else { event.clone() };
            // Into the subscriber's own list at once: if the next clone panics, this one is not lost with it.
            ahead.extend(event);
        }
        if from == 0 {
            self.trim();
        }
        ahead.pop_front().map(Event::Item)
    }

    fn warning_is_due(&mut self) -> bool {
        let now = crate::now();
        let due = self.warned.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        if due {
            self.warned = Some(now);
        }
        due
    }

    /// Forgets the events at the front that nobody needs any more.
    fn trim(&mut self) {
        while self.events.front().is_some_and(|(_, unread)| *unread == 0) {
            self.events.pop_front();
            self.first += 1;
        }
    }
}

impl<T> Shared<T> {
    fn close(&self) {
        let woken = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.waiting.take()
        };
        woken.wake();
    }

    fn noting_loss(&self, event: Event<T>, warn: bool) -> Event<T> {
        if let Event::Missed(missed) = event {
            self.lagged.add(missed);
            if warn {
                tracing::warn!(feed = self.spec.name, missed, "a subscriber is too slow");
            }
        }
        event
    }
}

impl<T: Clone> Feed<T> {
    /// Opens the feed that `spec` declares.
    ///
    /// # Panics
    /// If `spec` declares a lane.
    #[must_use]
    pub fn open(spec: LaneSpec, metrics: &Metrics) -> Self
    where
        T: Send + 'static,
    {
        assert!(spec.kind == LaneKind::Feed, "{} is declared as a lane", spec.name);
        let feed = Feed::unmeasured(spec, metrics.tally(Counter::BusLagged, spec.name));
        let queue: Weak<Shared<T>> = Arc::downgrade(&feed.publisher.0);
        metrics.watch_queue(spec, queue);
        feed
    }

    pub(crate) fn unmeasured(spec: LaneSpec, lagged: Tally) -> Self {
        let state = State {
            events: VecDeque::new(),
            first: 0,
            subscribers: 0,
            waiting: WakerSet::default(),
            closed: false,
            warned: None,
        };
        let on_stop = OnceLock::new();
        let shared = Arc::new(Shared { spec, lagged, state: Mutex::new(state), on_stop });
        Feed { publisher: Arc::new(Publisher(shared)) }
    }

    /// Hands `event` to everybody who is subscribed now, and returns how many that are.
    pub fn publish(&self, event: T) -> usize {
        let shared = &self.publisher.0;
        let (subscribers, lost, woken) = {
            let mut state = lock(&shared.state);
            if state.subscribers == 0 || state.closed {
                return 0;
            }
            let lost =
                if state.events.len() == shared.spec.capacity { state.events.pop_front() } else { None };
            state.first += u64::from(lost.is_some());
            let unread = state.subscribers;
            state.events.push_back((Some(event), unread));
            (unread, lost, state.waiting.take())
        };
        drop(lost);
        woken.wake();
        subscribers
    }

    /// Ends the feed: subscribers read what is left and then see the end, and what is published later reaches nobody.
    pub fn close(&self) {
        self.publisher.0.close();
    }

    /// Ends the feed when `stop` is requested. The first call counts.
    pub fn close_on(&self, stop: &Stop)
    where
        T: Send + 'static,
    {
        let shared = Arc::downgrade(&self.publisher.0);
        let hook = stop.on_request(move || {
            if let Some(shared) = shared.upgrade() {
                shared.close();
            }
        });
        let _ = self.publisher.0.on_stop.set(hook);
    }

    /// A new subscriber. It sees what is published from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscriber<T> {
        let shared = Arc::clone(&self.publisher.0);
        let next = {
            let mut state = lock(&shared.state);
            state.subscribers += 1;
            state.end()
        };
        Subscriber { shared, next, ahead: VecDeque::new() }
    }
}

impl<T> Clone for Feed<T> {
    fn clone(&self) -> Self {
        Feed { publisher: Arc::clone(&self.publisher) }
    }
}

impl<T> fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("name", &self.publisher.0.spec.name).finish_non_exhaustive()
    }
}

impl<T> Drop for Publisher<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T: Send> Depth for Shared<T> {
    fn depth(&self) -> usize {
        lock(&self.state).events.len()
    }

    fn capacity(&self) -> usize {
        self.spec.capacity
    }
}

/// One reader of a [`Feed`].
pub struct Subscriber<T: Clone> {
    shared: Arc<Shared<T>>,
    /// Sequence number of the next event to read.
    next: u64,
    /// Read already, not yet asked for.
    ahead: VecDeque<T>,
}

impl<T: Clone> Subscriber<T> {
    /// The next event, or how many were missed; `None` when the feed has ended and everything was read. Dropping
    /// the future loses nothing.
    pub async fn recv(&mut self) -> Option<Event<T>> {
        cooperative(Recv { subscriber: self, seat: Seat::default() }).await
    }

    /// The next event if there is one already.
    pub fn try_recv(&mut self) -> Option<Event<T>> {
        if let Some(event) = self.ahead.pop_front() {
            return Some(Event::Item(event));
        }
        let mut state = lock(&self.shared.state);
        let event = state.read(&mut self.next, &mut self.ahead)?;
        let warn = matches!(event, Event::Missed(_)) && state.warning_is_due();
        drop(state);
        Some(self.shared.noting_loss(event, warn))
    }
}

impl<T: Clone> Drop for Subscriber<T> {
    fn drop(&mut self) {
        let mut unread_events = VecDeque::new();
        let mut state = lock(&self.shared.state);
        state.subscribers -= 1;
        let from = usize::try_from(self.next.saturating_sub(state.first)).unwrap_or(usize::MAX);
        for (event, unread) in state.events.iter_mut().skip(from) {
            *unread -= 1;
            if *unread == 0 {
                unread_events.push_back(event.take());
            }
        }
        state.trim();
        drop(state);
        drop(unread_events);
    }
}

impl<T: Clone> fmt::Debug for Subscriber<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("feed", &self.shared.spec.name).field("next", &self.next).finish()
    }
}

struct Recv<'a, T: Clone> {
    subscriber: &'a mut Subscriber<T>,
    seat: Seat,
}

impl<T: Clone> Future for Recv<'_, T> {
    type Output = Option<Event<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Recv { subscriber, seat } = &mut *self;
        if let Some(event) = subscriber.ahead.pop_front() {
            return Poll::Ready(Some(Event::Item(event)));
        }
        let mut state = lock(&subscriber.shared.state);
        if let Some(event) = state.read(&mut subscriber.next, &mut subscriber.ahead) {
            let warn = matches!(event, Event::Missed(_)) && state.warning_is_due();
            drop(state);
            return Poll::Ready(Some(subscriber.shared.noting_loss(event, warn)));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waiting.join(seat, cx.waker());
        Poll::Pending
    }
}

impl<T: Clone> Drop for Recv<'_, T> {
    fn drop(&mut self) {
        if self.seat.is_taken() {
            lock(&self.subscriber.shared.state).waiting.leave(self.seat);
        }
    }
}
