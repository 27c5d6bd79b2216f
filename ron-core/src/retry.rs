//! Trying an idempotent operation again, within a deadline and a budget.
//!
//! A retry helps against a lost packet and harms against an overload, where it multiplies the very load that made the
//! first try fail. So there are three brakes: few tries, pauses that grow and are jittered, and a budget shared by
//! all callers that lets retries be a tenth of the first tries and no more. With every first try failing, the load
//! is then 110 %, not 300 %.

use std::{future::Future, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    CallError, Counter, Deadline, Metrics, Ratio, Refusal, Tally,
    backoff::between,
    now,
    sync::{Mutex, lock},
};

/// Tries in all. The third catches most of what is transient; a fourth mostly finds what is broken still broken.
const TRIES: NonZeroU32 = NonZeroU32::new(3).expect("three is not zero");

/// The first pause is drawn from this range, the following from its doubles.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// No pause is longer, unless the refuser itself asked for a longer one.
const PAUSE_LIMIT: Duration = Duration::from_secs(2);

/// Repeats an operation that may safely be done twice.
///
/// ```
/// # use std::time::Duration;
/// # use ron_core::{CallError, Deadline, Metrics, Retry, RetryBudget};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let budget = RetryBudget::default();
/// let fetch = Retry::idempotent("fetch", &budget, &Metrics::default());
/// let deadline = Deadline::after(Duration::from_secs(5));
/// let answer: Result<u32, CallError> = fetch.run(deadline, || async { Ok(42) }).await;
/// assert_eq!(answer, Ok(42));
/// # }
/// ```
#[derive(Debug)]
pub struct Retry {
    op: &'static str,
    tries: NonZeroU32,
    budget: RetryBudget,
    retries: Tally,
    rng: Mutex<fastrand::Rng>,
}

impl Retry {
    /// Retries of `op`, which must be idempotent: a try that timed out may have happened, and the next one then does
    /// it a second time. Each retry is paid from `budget` and counted in `metrics` under `op`.
    #[must_use]
    pub fn idempotent(op: &'static str, budget: &RetryBudget, metrics: &Metrics) -> Self {
        Retry {
            op,
            tries: TRIES,
            budget: budget.clone(),
            retries: metrics.tally(Counter::BackoffRetries, op),
            rng: Mutex::new(fastrand::Rng::new()),
        }
    }

    /// Tries in all, the first included. Default and most is 3; one means no retries. What three tries did not do,
    /// more of them would do at everybody's cost.
    #[must_use]
    pub fn tries(mut self, tries: NonZeroU32) -> Self {
        self.tries = tries.min(TRIES);
        self
    }

    /// Draws the pauses from `rng` instead of a random seed, so that a test or a simulation replays them.
    #[must_use]
    pub fn with_rng(mut self, rng: fastrand::Rng) -> Self {
        self.rng = Mutex::new(rng);
        self
    }

    /// Runs `operation` until it succeeds, its error is not worth retrying, or tries, budget or deadline are spent;
    /// then gives the last error back. It never sleeps into the deadline: if the next pause does not fit, the error
    /// comes back at once, while the caller still has time to do something else.
    ///
    /// Dropping the future drops the try that is running, with whatever dropping the operation does; no further try
    /// is made. A retry already paid for is not refunded.
    ///
    /// # Errors
    /// The operation's last error, or `Timeout` if the deadline passed while it ran (the try is dropped then) or
    /// before it began.
    pub async fn run<T, E, F, Fut>(&self, deadline: Deadline, mut operation: F) -> Result<T, E>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Refusal + From<CallError>,
    {
        if deadline.has_passed() {
            return Err(CallError::Timeout { op: self.op }.into());
        }
        self.budget.deposit(now());
        let mut tried = 1;
        loop {
            let error = match deadline.limit(self.op, operation()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(late) => return Err(late.into()),
            };
            if tried >= self.tries.get() || !error.kind().is_retryable() {
                return Err(error);
            }
            let asked = error.retry_after().unwrap_or_default();
            let pause = pause_after(tried, &mut lock(&self.rng)).max(asked);
            // Fit first, pay second: a retry that will not happen costs nothing.
            if pause >= deadline.remaining() || !self.budget.withdraw(now()) {
                return Err(error);
            }
            self.retries.add(1);
            tracing::debug!(op = self.op, tried, ?pause, %error, "trying again");
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }
}

/// The pause after `tried` tries: 50 to 100 ms, twice that, and so on to two seconds.
fn pause_after(tried: u32, rng: &mut fastrand::Rng) -> Duration {
    let factor = 2_u32.saturating_pow(tried - 1);
    between(rng, PAUSE_MIN, PAUSE_MAX).saturating_mul(factor).min(PAUSE_LIMIT)
}

/// What bounds the retries of all callers that share it. Cloning shares it; it is two words behind a lock.
///
/// Each first try deposits a share of a retry and each retry withdraws a whole one, so in a busy time retries are at
/// most that share of the load. A quiet client would never save up one, so a reserve of ten refills by itself, one a
/// second. The saved-up balance is capped at a hundred: a good hour must not pay for a storm.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    share: u64,
    balance: Arc<Mutex<Balance>>,
}

impl RetryBudget {
    /// One retry, in the unit of the balance. Fine enough for a share of one in a million.
    const RETRY: u64 = 1_000_000;
    const RESERVE: u64 = 10 * Self::RETRY;
    const SAVED_MAX: u64 = 100 * Self::RETRY;

    /// A budget in which retries are at most `share` of the first tries.
    #[must_use]
    pub fn new(share: Ratio) -> Self {
        RetryBudget {
            // In range by the type of `share`, so the cast neither truncates nor changes the sign.
            share: (share.get() * Self::RETRY as f64) as u64,
            balance: Arc::new(Mutex::new(Balance { saved: Self::RESERVE, refilled: None })),
        }
    }

    fn deposit(&self, now: Instant) {
        lock(&self.balance).deposit(self.share, now);
    }

    fn withdraw(&self, now: Instant) -> bool {
        lock(&self.balance).withdraw(now)
    }
}

impl Default for RetryBudget {
    /// One retry for ten first tries.
    fn default() -> Self {
        RetryBudget::new(Ratio::percent(10))
    }
}

#[derive(Debug)]
struct Balance {
    saved: u64,
    /// Until when the quiet refill was paid out; nothing before the first use.
    refilled: Option<Instant>,
}

impl Balance {
    fn deposit(&mut self, share: u64, now: Instant) {
        self.refill(now);
        self.saved = (self.saved + share).min(RetryBudget::SAVED_MAX);
    }

    fn withdraw(&mut self, now: Instant) -> bool {
        self.refill(now);
        match self.saved.checked_sub(RetryBudget::RETRY) {
            Some(rest) => {
                self.saved = rest;
                true
            }
            None => false,
        }
    }

    /// One retry a second, up to the reserve. The unit is a microsecond of that, so the fraction that is lost at
    /// each call is below one microsecond.
    fn refill(&mut self, now: Instant) {
        let since = *self.refilled.get_or_insert(now);
        let micros = u64::try_from(now.saturating_duration_since(since).as_micros()).unwrap_or(u64::MAX);
        if micros > 0 {
            self.refilled = Some(now);
            if self.saved < RetryBudget::RESERVE {
                self.saved = self.saved.saturating_add(micros).min(RetryBudget::RESERVE);
            }
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{cell::Cell, convert::Infallible};

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn busy(retry_after: Duration) -> CallError {
        CallError::Busy { what: "work", retry_after }
    }

    /// A retry with a budget of its own, and the metrics it counts in.
    fn fetch() -> (Retry, Metrics) {
        let metrics = Metrics::default();
        let retry = Retry::idempotent("fetch", &RetryBudget::default(), &metrics)
            .with_rng(fastrand::Rng::with_seed(11));
        (retry, metrics)
    }

    /// Runs an operation that always fails with `error`; gives back the outcome, the tries and the time it took.
    async fn fail_with(
        retry: &Retry,
        budget: Duration,
        error: CallError,
    ) -> (Result<Infallible, CallError>, u32, Duration) {
        let (tries, start) = (Cell::new(0), now());
        let outcome = retry
            .run(Deadline::after(budget), || {
                tries.set(tries.get() + 1);
                let error = error.clone();
                async { Err(error) }
            })
            .await;
        (outcome, tries.get(), now() - start)
    }

    #[tokio::test(start_paused = true)]
    async fn success_on_the_second_try_is_success() {
        let (retry, metrics) = fetch();
        let tries = Cell::new(0);
        let answer: Result<u32, CallError> = retry
            .run(Deadline::after(SECOND), || {
                tries.set(tries.get() + 1);
                let tried = tries.get();
                async move {
                    match tried {
                        1 => Err(CallError::Timeout { op: "fetch" }),
                        _ => Ok(tried),
                    }
                }
            })
            .await;
        assert_eq!(answer, Ok(2));
        assert_eq!(metrics.tally(Counter::BackoffRetries, "fetch").get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn three_tries_with_growing_pauses_then_the_last_error() {
        let (retry, metrics) = fetch();
        let (outcome, tries, took) = fail_with(&retry, 10 * SECOND, busy(Duration::ZERO)).await;
        assert_eq!(outcome, Err(busy(Duration::ZERO)));
        assert_eq!(tries, 3);
        // 50..100 and 100..200, each rounded up to the timer's millisecond.
        assert!((150..=302).contains(&took.as_millis()), "{took:?}");
        assert_eq!(metrics.tally(Counter::BackoffRetries, "fetch").get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_tries_is_a_knob_up_to_three() {
        for tries_max in 1..6 {
            let (retry, _) = fetch();
            let retry = retry.tries(NonZeroU32::new(tries_max).unwrap());
            let (_, tries, _) = fail_with(&retry, 60 * SECOND, busy(Duration::ZERO)).await;
            assert_eq!(tries, tries_max.min(3));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_stays_true_is_not_retried() {
        let (retry, _) = fetch();
        let (outcome, tries, took) = fail_with(&retry, SECOND, CallError::Canceled).await;
        assert_eq!((outcome, tries, took), (Err(CallError::Canceled), 1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_longer_pause_asked_for_is_honoured() {
        let (retry, _) = fetch();
        let (_, tries, took) = fail_with(&retry, 60 * SECOND, busy(7 * SECOND)).await;
        assert_eq!((tries, took), (3, 14 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_does_not_fit_is_not_begun() {
        let (retry, metrics) = fetch();
        for asked in [SECOND, Duration::MAX] {
            let (outcome, tries, took) = fail_with(&retry, SECOND, busy(asked)).await;
            assert_eq!((outcome, tries, took), (Err(busy(asked)), 1, Duration::ZERO));
        }
        assert_eq!(metrics.tally(Counter::BackoffRetries, "fetch").get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_try_ends_at_the_deadline() {
        let (retry, _) = fetch();
        let start = now();
        let outcome: Result<(), CallError> = retry.run(Deadline::after(SECOND), std::future::pending).await;
        assert_eq!(outcome, Err(CallError::Timeout { op: "fetch" }));
        assert_eq!(now() - start, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_passed_deadline_starts_nothing() {
        let (retry, _) = fetch();
        let (outcome, tries, _) = fail_with(&retry, Duration::ZERO, busy(SECOND)).await;
        assert_eq!((outcome, tries), (Err(CallError::Timeout { op: "fetch" }), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_it_makes_no_further_try() {
        let (retry, _) = fetch();
        let tries = Cell::new(0);
        let run = retry.run::<Infallible, CallError, _, _>(Deadline::after(10 * SECOND), || {
            tries.set(tries.get() + 1);
            async { Err(busy(SECOND)) }
        });
        assert!(tokio::time::timeout(SECOND / 2, run).await.is_err());
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(tries.get(), 1);
    }

    #[test]
    fn a_run_may_move_between_threads() {
        fn check(_: impl Send) {}
        let (retry, _) = fetch();
        check(retry.run(Deadline::at(now()), || async { Ok::<(), CallError>(()) }));
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_overload_retries_are_a_tenth_of_the_load() {
        let (retry, metrics) = fetch();
        let mut tries = 0;
        for _ in 0..1_000 {
            tries += fail_with(&retry, 10 * SECOND, busy(Duration::ZERO)).await.1;
        }
        // Without the budget it would be 2000 retries. The runs are one after the other, so the quiet reserve adds
        // one for each second that the pauses took: 10 + 1000 / 10 + at most 0.3 s * retries.
        let retries = metrics.tally(Counter::BackoffRetries, "fetch").get();
        assert_eq!(u64::from(tries), 1_000 + retries);
        assert!((100..=160).contains(&retries), "{retries}");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_share_a_budget_share_its_limit() {
        let budget = RetryBudget::new(Ratio::percent(0));
        let metrics = Metrics::default();
        let first = Retry::idempotent("first", &budget, &metrics);
        let second = Retry::idempotent("second", &budget, &metrics);
        while budget.withdraw(now()) {}
        assert_eq!(fail_with(&first, SECOND, busy(Duration::ZERO)).await.1, 1);
        assert_eq!(fail_with(&second, SECOND, busy(Duration::ZERO)).await.1, 1);
        tokio::time::advance(SECOND).await;
        assert_eq!(fail_with(&second, SECOND, busy(Duration::ZERO)).await.1, 2);
    }

    #[test]
    fn pauses_double_and_stop_growing() {
        let rng = &mut fastrand::Rng::with_seed(5);
        for tried in 1..=5 {
            let pause = pause_after(tried, rng);
            let factor = 1 << (tried - 1);
            assert!((PAUSE_MIN * factor..=PAUSE_MAX * factor).contains(&pause), "{pause:?}");
        }
        assert_eq!(pause_after(u32::MAX, rng), PAUSE_LIMIT);
    }

    proptest! {
        /// Whatever the order of calls, retries never exceed reserve, share and quiet refill together.
        #[test]
        fn the_budget_is_never_overdrawn(steps in prop::collection::vec((any::<bool>(), 0_u64..3_000), 1..300)) {
            let start = now();
            let budget = RetryBudget::default();
            let (mut at, mut first_tries, mut retries) = (start, 0.0, 0.0);
            for (first, millis) in steps {
                at += Duration::from_millis(millis);
                if first {
                    budget.deposit(at);
                    first_tries += 1.0;
                } else if budget.withdraw(at) {
                    retries += 1.0;
                }
                let allowed = 10.0 + first_tries / 10.0 + (at - start).as_secs_f64();
                prop_assert!(retries <= allowed + 0.001, "{retries} of {allowed}");
            }
        }
    }
}
