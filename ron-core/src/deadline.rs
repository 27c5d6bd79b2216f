//! One time budget, handed down a call chain.
//!
//! A callee may shorten what it was given and never extend it, so the outermost caller's patience bounds all the
//! work done in its name. On the wire a deadline travels as its remaining milliseconds: two machines agree on
//! durations, not on clocks.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use crate::CallError;

/// The clock of the family. It follows tokio's paused time, so tests and simulations own it.
#[must_use]
pub fn now() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    Instant::now()
}

/// The moment after which nobody is interested in the answer any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The longest budget there is. Longer ones are cut to it: tokio's timer ends at about two years, and a wait
    /// of a year is a wait without an end.
    pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

    /// `budget` from now.
    #[must_use]
    pub fn after(budget: Duration) -> Self {
        Deadline(now() + budget.min(Self::LONGEST))
    }

    /// At a moment of tokio's clock.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Deadline(instant)
    }

    /// A deadline for a part of the work: at most `budget` from now, never later than this one.
    #[must_use]
    pub fn within(self, budget: Duration) -> Self {
        self.min(Self::after(budget))
    }

    /// What is left; zero once passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.0 <= now()
    }

    /// The moment itself, for `tokio::time::sleep_until` and the like.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    /// Runs `work` until it is done or this deadline passes. The future is dropped at the deadline.
    ///
    /// # Errors
    /// [`CallError::Timeout`] naming `op`.
    pub async fn limit<F: Future>(self, op: &'static str, work: F) -> Result<F::Output, CallError> {
        let mut work = pin!(work);
        match poll_once(work.as_mut()).await {
            Some(output) => Ok(output),
            None => self.wait(op, work).await,
        }
    }

    /// [`limit`](Deadline::limit) for work that is pending and that another task of this runtime is about to finish.
    /// What is ready after one turn of the scheduler pays for no timer. Not for what comes from outside: the turn
    /// wakes a second worker, which costs more than the timer.
    pub(crate) async fn limit_pending<F: Future>(
        self,
        op: &'static str,
        mut work: Pin<&mut F>,
    ) -> Result<F::Output, CallError> {
        tokio::task::yield_now().await;
        match poll_once(work.as_mut()).await {
            Some(output) => Ok(output),
            None => self.wait(op, work).await,
        }
    }

    async fn wait<F: Future>(self, op: &'static str, work: Pin<&mut F>) -> Result<F::Output, CallError> {
        tokio::time::timeout_at(self.0, work).await.map_err(|_| CallError::Timeout { op })
    }
}

/// One look at `future`, which goes on afterwards if it was not ready.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadline(in {:?})", self.remaining())
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_never_outlives_the_whole() {
        let whole = Deadline::after(Duration::from_millis(100));
        assert_eq!(whole.within(Duration::from_secs(5)), whole);
        assert_eq!(whole.within(Duration::from_millis(10)).remaining(), Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn remaining_saturates() {
        let deadline = Deadline::after(Duration::from_millis(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(deadline.remaining(), Duration::ZERO);
        assert!(deadline.has_passed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_absurd_budget_is_cut_and_does_not_overflow() {
        assert_eq!(Deadline::after(Duration::MAX).remaining(), Deadline::LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn limit_names_what_was_waited_for() {
        let deadline = Deadline::after(Duration::from_millis(5));
        let late = deadline.limit("handshake", std::future::pending::<()>()).await;
        assert_eq!(late, Err(CallError::Timeout { op: "handshake" }));
    }
}
