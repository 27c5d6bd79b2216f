//! A flow of bytes held to a rate: who has to wait, and in which order.
//!
//! Takers queue for one turn; the one whose turn it is reserves its bytes and waits until they have been earned, so
//! order is arrival and a large take cannot be starved by small ones. Since only the turn's owner has anything
//! reserved, a waiter that gives up leaves no gap: what it reserved is put back to the last byte, and those behind it
//! have reserved nothing yet.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::{
    CallError, Deadline,
    gate::{Meter, nanos},
    now,
    sync::{Mutex, lock},
};

/// The name in refusals.
const NAME: &str = "pacer";

/// A burst is at least what flows in this time. Timers wake up to a millisecond late, and without that much credit
/// the lateness would be lost from the rate each time.
const BURST_MIN: Duration = Duration::from_millis(2);

/// A byte rate shared by many takers. Cloning shares it.
///
/// The queue of takers lives in their own futures, so the pacer's memory does not depend on how many wait.
#[derive(Clone)]
pub struct Pacer {
    shared: Arc<Shared>,
}

struct Shared {
    born: Instant,
    turn: Semaphore,
    pace: Mutex<Pace>,
    /// Wakes the turn's owner when the rate has changed.
    changed: Notify,
}

impl Pacer {
    /// `bytes_per_second` in the long run, and up to `burst` at once after a quiet time. A burst below two
    /// milliseconds of the rate is raised to that.
    #[must_use]
    pub fn new(bytes_per_second: NonZeroU64, burst: NonZeroU64) -> Self {
        Pacer {
            shared: Arc::new(Shared {
                born: now(),
                turn: Semaphore::new(1),
                pace: Mutex::new(Pace { meter: meter(bytes_per_second, burst), clear_at: 0 }),
                changed: Notify::new(),
            }),
        }
    }

    /// Waits until `bytes` may flow. Takers are served in the order they came; one that wants more than the burst
    /// waits for the rest of it to be earned.
    ///
    /// Dropping the future leaves the queue and puts back what was reserved, as if it had never come.
    ///
    /// # Errors
    /// [`CallError::Timeout`]: at the deadline while queueing, and already before it once it is known that the bytes
    /// will not be earned in time. Nothing is taken then.
    pub async fn take(&self, bytes: u64, deadline: Deadline) -> Result<(), CallError> {
        const LATE: CallError = CallError::Timeout { op: NAME };
        if deadline.has_passed() {
            return Err(LATE);
        }
        let _turn =
            deadline.limit(NAME, self.shared.turn.acquire()).await?.expect("the semaphore is never closed");
        let reservation = Reservation::new(&self.shared, bytes);
        loop {
            let ready_at = self.shared.born + Duration::from_nanos(lock(&self.shared.pace).ready_at());
            if ready_at <= now() {
                reservation.keep();
                return Ok(());
            }
            if ready_at > deadline.instant() {
                return Err(LATE);
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(ready_at) => {}
                () = self.shared.changed.notified() => {}
            }
        }
    }

    /// Takes `bytes` if they may flow at once and nobody waits. More than the burst may flow when nothing is owed;
    /// those who come after wait for it.
    ///
    /// # Errors
    /// [`CallError::Busy`] with the time after which it fits, if nobody else comes in between.
    pub fn try_take(&self, bytes: u64) -> Result<(), CallError> {
        let turn = self.shared.turn.try_acquire();
        let mut pace = lock(&self.shared.pace);
        let now = self.shared.nanos_now();
        let wait = pace.wait(bytes, now);
        if turn.is_ok() && wait == 0 {
            pace.reserve(bytes, now);
            return Ok(());
        }
        Err(CallError::Busy {
            what: NAME,
            // One who waits has the turn for a moment at least, even when its bytes are about to be ready.
            retry_after: Duration::from_nanos(wait).max(Duration::from_millis(1)),
        })
    }

    /// Applies another rate from now on, also to those who wait. Bytes already owed stay owed, as bytes.
    pub fn set_rate(&self, bytes_per_second: NonZeroU64, burst: NonZeroU64) {
        let now = self.shared.nanos_now();
        lock(&self.shared.pace).change(meter(bytes_per_second, burst), now);
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for Pacer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("pace", &lock(&self.shared.pace)).finish_non_exhaustive()
    }
}

impl Shared {
    fn nanos_now(&self) -> u64 {
        nanos(now().saturating_duration_since(self.born))
    }
}

fn meter(bytes_per_second: NonZeroU64, burst: NonZeroU64) -> Meter {
    Meter::of_bytes(bytes_per_second.get(), burst.get()).window_at_least(BURST_MIN)
}

/// Bytes that the turn's owner has reserved; put back when dropped, unless kept.
struct Reservation<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl<'a> Reservation<'a> {
    fn new(shared: &'a Shared, bytes: u64) -> Self {
        lock(&shared.pace).reserve(bytes, shared.nanos_now());
        Reservation { shared, bytes }
    }

    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.shared.pace).put_back(self.bytes);
    }
}

/// The rate, and the moment at which nothing is owed. Unlike at a gate the debt may exceed the window: whoever
/// caused it is waiting for it.
#[derive(Debug)]
struct Pace {
    meter: Meter,
    clear_at: u64,
}

impl Pace {
    fn reserve(&mut self, bytes: u64, now: u64) {
        self.clear_at = self.clear_at.max(now).saturating_add(self.meter.cost(bytes));
    }

    fn put_back(&mut self, bytes: u64) {
        self.clear_at = self.clear_at.saturating_sub(self.meter.cost(bytes));
    }

    /// When everything reserved so far has been earned.
    fn ready_at(&self) -> u64 {
        self.clear_at.saturating_sub(self.meter.window())
    }

    /// How long until `bytes` could be taken without waiting.
    fn wait(&self, bytes: u64, now: u64) -> u64 {
        let cost = self.meter.cost(bytes).min(self.meter.window());
        self.clear_at.saturating_sub(now).saturating_add(cost).saturating_sub(self.meter.window())
    }

    fn change(&mut self, meter: Meter, now: u64) {
        let owed = self.meter.units(self.clear_at.saturating_sub(now));
        self.clear_at = now.saturating_add(meter.cost(owed));
        self.meter = meter;
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::disallowed_methods, reason = "a test that joins its own threads and tasks")]
mod tests {
    use proptest::prelude::*;
    use tokio::task::JoinSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pacer(bytes_per_second: u64, burst: u64) -> Pacer {
        let of = |number| NonZeroU64::new(number).expect("from one");
        Pacer::new(of(bytes_per_second), of(burst))
    }

    fn patient() -> Deadline {
        Deadline::after(Duration::from_secs(100_000))
    }

    /// Whether `took` is within one percent of `expected`.
    fn is_about(took: Duration, expected: Duration) -> bool {
        took.abs_diff(expected) <= expected / 100
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept_in_the_long_run() {
        // Sizes below a millisecond's worth, odd sizes, and sizes above the burst.
        for (rate, burst, size) in
            [(1_000_000, 10_000, 100), (1_000_000, 1, 333), (3, 3, 1), (7_777, 1_000, 5_001)]
        {
            let pacer = pacer(rate, burst);
            let start = now();
            pacer.take(burst, patient()).await.unwrap();
            let takes = (rate * 200 / size).min(20_000);
            for _ in 0..takes {
                pacer.take(size, patient()).await.unwrap();
            }
            let expected = Duration::from_secs_f64((takes * size) as f64 / rate as f64);
            let took = now() - start;
            assert!(is_about(took, expected), "{rate} {burst} {size}: {took:?}, not {expected:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_takers_share_the_rate_in_the_order_they_came() {
        let pacer = pacer(1_000, 100);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let start = now();
        let mut takers = JoinSet::new();
        for number in 0..100_u64 {
            let (pacer, order) = (pacer.clone(), Arc::clone(&order));
            takers.spawn(async move {
                // Large and small ones in turn: none overtakes.
                pacer.take(10 + number % 2 * 300, patient()).await.unwrap();
                order.lock().unwrap().push(number);
            });
        }
        takers.join_all().await;
        assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
        assert!(is_about(now() - start, Duration::from_millis(16_000 - 100)));
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_the_burst_waits_for_the_rest() {
        let pacer = pacer(1_000, 100);
        let start = now();
        pacer.take(5_100, patient()).await.unwrap();
        assert_eq!(now() - start, 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_take_leaves_no_trace() {
        let pacer = pacer(1_000, 100);
        pacer.take(100, patient()).await.unwrap();
        // The one whose turn it is, and one behind it, both give up.
        let given_up = tokio::time::timeout(Duration::from_millis(10), async {
            tokio::join!(pacer.take(1_000_000, patient()), pacer.take(1_000_000, patient()))
        });
        assert!(given_up.await.is_err());
        let start = now();
        pacer.take(100, patient()).await.unwrap();
        assert_eq!(now() - start, Duration::from_millis(90));
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_a_dropped_take_move_up() {
        let pacer = pacer(1_000, 100);
        pacer.take(100, patient()).await.unwrap();
        let start = now();
        let (given_up, served) = tokio::join!(
            tokio::time::timeout(Duration::from_millis(10), pacer.take(1_000_000, patient())),
            pacer.take(100, patient()),
        );
        assert!(given_up.is_err() && served.is_ok());
        assert_eq!(now() - start, Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_cannot_be_kept_is_refused_at_once() {
        let pacer = pacer(1_000, 100);
        let start = now();
        let late = Err(CallError::Timeout { op: "pacer" });
        assert_eq!(pacer.take(5_000, Deadline::after(SECOND)).await, late);
        assert_eq!(pacer.take(1, Deadline::after(Duration::ZERO)).await, late);
        assert_eq!(pacer.take(100, Deadline::after(SECOND)).await, Ok(()));
        assert_eq!(now(), start);
        // In the queue it is not known yet, so there it takes until the deadline.
        let (first, second) =
            tokio::join!(pacer.take(10_000, patient()), pacer.take(1, Deadline::after(SECOND)),);
        assert_eq!((first, second), (Ok(()), late));
        assert_eq!(now() - start, 10 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn try_take_neither_waits_nor_overtakes() {
        let pacer = pacer(1_000, 100);
        assert_eq!(pacer.try_take(60), Ok(()));
        let refused = pacer.try_take(60);
        let retry_after = Duration::from_millis(20);
        assert_eq!(refused, Err(CallError::Busy { what: "pacer", retry_after }));
        tokio::time::advance(retry_after).await;
        assert_eq!(pacer.try_take(60), Ok(()));
        // More than the burst: not now, but once nothing is owed, and then it is owed in full.
        assert!(pacer.try_take(1_100).is_err());
        tokio::time::advance(SECOND).await;
        assert_eq!(pacer.try_take(1_100), Ok(()));
        let start = now();
        let (waited, tried) = tokio::join!(pacer.take(1, patient()), async { pacer.try_take(0) });
        assert!(waited.is_ok() && tried.is_err());
        assert_eq!(now() - start, Duration::from_millis(1_001));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_reaches_those_who_wait() {
        let of = |number| NonZeroU64::new(number).expect("from one");
        let pacer = pacer(1_000, 100);
        let start = now();
        let (taken, ()) = tokio::join!(pacer.take(10_100, patient()), async {
            tokio::time::sleep(5 * SECOND).await;
            pacer.set_rate(of(5_000), of(500));
        });
        assert!(taken.is_ok());
        // Half at the old rate. Of the 5100 bytes owed then, 500 are the new burst and 4600 flow at the new rate.
        assert_eq!(now() - start, 5 * SECOND + Duration::from_millis(920));
    }

    #[tokio::test(start_paused = true)]
    async fn absurd_sizes_do_not_overflow() {
        let pacer = pacer(1, 1);
        let late = Err(CallError::Timeout { op: "pacer" });
        assert_eq!(pacer.take(u64::MAX, patient()).await, late);
        assert!(pacer.try_take(1).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// Many takers with pieces of any size, who pay for them in parts of at most the burst, while the rate changes: whichever
        /// window of time one looks at, no more flowed in it than the burst and the highest rate allow.
        #[test]
        fn in_no_window_more_than_rate_and_burst(
            takers in prop::collection::vec(
                (0_u64..3_000, prop::collection::vec(1_u64..400_000, 1..6)), 1..8),
            rates in prop::collection::vec((10_000_u64..200_000, 1_u64..4_000), 1..5),
            burst in 1_000_u64..20_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let (flowed, highest) = runtime.expect("a runtime").block_on(async {
                let of = |number| NonZeroU64::new(number).expect("from one");
                let (pacer, began) = (pacer(rates[0].0, burst), now());
                let flowed = Arc::new(std::sync::Mutex::new(Vec::new()));
                let mut tasks = JoinSet::new();
                for (wait, pieces) in takers {
                    let (pacer, flowed) = (pacer.clone(), Arc::clone(&flowed));
                    tasks.spawn(async move {
                        tokio::time::sleep(Duration::from_millis(wait)).await;
                        for mut left in pieces {
                            while left > 0 {
                                let part = left.min(burst);
                                pacer.take(part, patient()).await.expect("there is time");
                                flowed.lock().expect("nobody panicked").push((now() - began, part));
                                left -= part;
                            }
                        }
                    });
                }
                for (rate, wait) in &rates {
                    pacer.set_rate(of(*rate), of(burst));
                    tokio::time::sleep(Duration::from_millis(*wait)).await;
                }
                tasks.join_all().await;
                let flowed = flowed.lock().expect("nobody panicked").clone();
                (flowed, rates.iter().map(|(rate, _)| *rate).max().unwrap_or(1))
            });
            // What a burst is at least, at the highest rate.
            let burst = burst.max(highest / 500 + 1) as f64;
            for first in 0..flowed.len() {
                let mut sum = 0;
                for (at, part) in &flowed[first..] {
                    sum += part;
                    // The first of a window may have been woken a millisecond late, and those behind it not.
                    let window = (*at - flowed[first].0).as_secs_f64() + 0.001;
                    let allowed = burst + window * highest as f64 + 2.0;
                    prop_assert!(sum as f64 <= allowed, "{sum} bytes, {allowed} allowed");
                }
            }
        }

        /// Over any time, no more flows than the burst and the rate allow.
        #[test]
        fn never_more_than_rate_and_burst(
            rate in 1_u64..1_000_000,
            burst in 1_u64..100_000,
            steps in prop::collection::vec((0_u64..200_000, 0_u64..1_000_000_000), 1..100),
        ) {
            let mut pace = Pace { meter: Meter::of_bytes(rate, burst), clear_at: 0 };
            let (mut now, mut flowed) = (0_u64, 0_u128);
            for (bytes, gap) in steps {
                now += gap;
                if bytes <= burst && pace.wait(bytes, now) == 0 {
                    pace.reserve(bytes, now);
                    flowed += u128::from(bytes);
                }
                let earned = u128::from(now) * u128::from(rate) / 1_000_000_000;
                // The window is rounded up by a nanosecond, which at these rates is less than one byte.
                prop_assert!(flowed <= u128::from(burst) + earned + 1);
            }
        }
    }
}
