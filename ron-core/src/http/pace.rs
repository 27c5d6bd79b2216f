//! How fast the other side must move, judged only while we wait for it.
//!
//! A timeout per operation is not enough: one byte every four seconds never runs into five. So in every window of
//! waiting a minimum must move. Time that we spend ourselves does not count, so a slow handler is never blamed on its
//! client.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// The other side moved less than it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooSlow;

/// The rule: `bytes` in each `window` of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PaceLimit {
    pub(super) window: Duration,
    pub(super) bytes: u64,
}

/// The judgement, as plain values.
#[derive(Debug, Clone, Copy)]
struct Pace {
    limit: PaceLimit,
    waited: Duration,
    moved: u64,
    waiting_since: Option<Instant>,
}

impl Pace {
    fn new(limit: PaceLimit) -> Self {
        Pace { limit, waited: Duration::ZERO, moved: 0, waiting_since: None }
    }

    /// We wait for the other side.
    fn on_wait(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// When the window ends if nothing moves until then.
    fn wake_at(&self) -> Option<Instant> {
        Some(self.waiting_since? + self.limit.window.saturating_sub(self.waited))
    }

    fn on_tick(&mut self, now: Instant) -> Result<(), TooSlow> {
        if let Some(since) = self.waiting_since.replace(now) {
            self.waited += now.saturating_duration_since(since);
        }
        if self.waited < self.limit.window {
            return Ok(());
        }
        if self.moved < self.limit.bytes {
            return Err(TooSlow);
        }
        (self.waited, self.moved) = (Duration::ZERO, 0);
        Ok(())
    }

    /// `bytes` moved; nothing is waited for any more.
    fn on_moved(&mut self, bytes: u64, now: Instant) -> Result<(), TooSlow> {
        self.moved = self.moved.saturating_add(bytes);
        let judged = if self.waiting_since.is_some() { self.on_tick(now) } else { Ok(()) };
        self.waiting_since = None;
        judged
    }
}

/// A pace with its timer, for use inside a `poll` function. The timer exists once something was waited for.
#[derive(Debug)]
pub(super) struct Paced {
    pace: Pace,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(limit: PaceLimit) -> Self {
        Paced { pace: Pace::new(limit), timer: None }
    }

    pub(super) fn moved(&mut self, bytes: u64) -> Result<(), TooSlow> {
        // The common case, something is there at once, reads no clock.
        if self.pace.waiting_since.is_none() {
            self.pace.moved = self.pace.moved.saturating_add(bytes);
            return Ok(());
        }
        self.pace.on_moved(bytes, crate::now())
    }

    /// Ready when the other side has been too slow.
    pub(super) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        loop {
            let now = crate::now();
            self.pace.on_wait(now);
            let Some(at) = self.pace.wake_at() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.deadline() != at {
                timer.as_mut().reset(at);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if let Err(slow) = self.pace.on_tick(crate::now()) {
                return Poll::Ready(slow);
            }
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    const LIMIT: PaceLimit = PaceLimit { window: Duration::from_secs(5), bytes: 5 << 10 };

    /// Bytes arriving after waits, each `(wait in milliseconds, bytes)`; returns at which one it was too slow.
    fn check(steps: &[(u64, u64)]) -> Option<usize> {
        let mut pace = Pace::new(LIMIT);
        let mut now = crate::now();
        steps.iter().position(|&(wait, bytes)| {
            pace.on_wait(now);
            now += Duration::from_millis(wait);
            pace.on_moved(bytes, now).is_err()
        })
    }

    #[test]
    fn a_dribble_is_cut_and_a_modest_line_is_not() {
        assert_eq!(check(&[(1_000, 1); 10]), Some(4), "a byte a second");
        assert_eq!(check(&[(1_000, 1_024); 100]), None, "just fast enough");
        assert_eq!(check(&[(1_000, 1_000); 100]), Some(4), "just too slow");
        assert_eq!(check(&[(0, 1); 100]), None, "small pieces that are there at once");
        assert_eq!(
            check(&[(100, 1 << 20), (4_000, 1), (4_000, 1), (4_000, 1), (4_000, 1)]),
            Some(4),
            "credit ends"
        );
    }

    #[test]
    fn our_own_time_does_not_count() {
        let mut pace = Pace::new(LIMIT);
        let mut now = crate::now();
        for _ in 0..100 {
            pace.on_wait(now);
            assert_eq!(pace.on_moved(1, now), Ok(()));
            now += Duration::from_secs(10);
        }
    }
}
