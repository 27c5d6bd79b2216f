//! How many lookups may run at once, found out by watching what they take.
//!
//! While lookups take about as long as they do at their best, one more is let in now and then; when they take twice that, or
//! time out, a tenth fewer. A queue that grows shows as time before it shows as a refusal, so the limit settles where the
//! sources are busy and not swamped. What their best is can only be seen while there are few, so it begins with few, and now
//! and then it halves and looks again: a network that became slower is not taken for one that is overloaded for ever.

use std::time::Duration;

/// How much longer than at their best lookups may take before it is too much.
const SLOW: f64 = 2.0;

/// What is left of the limit then.
const LESS: f64 = 0.9;

/// Lookups after which it is looked again what their best is.
const LOOK_EVERY: u32 = 10_000;

/// A limit that moves.
#[derive(Debug, Clone)]
pub struct AdaptiveLimit {
    limit: f64,
    min: f64,
    max: f64,
    best: Option<f64>,
    seen: u32,
}

impl AdaptiveLimit {
    /// A limit between these; begins with the lower.
    #[must_use]
    pub fn new(min: usize, max: usize) -> Self {
        let (min, max) = (min as f64, max.max(min) as f64);
        AdaptiveLimit { limit: min, min, max, best: None, seen: 0 }
    }

    /// A lookup has ended after so long, or did not end in time.
    pub fn on_done(&mut self, took: Duration, is_timeout: bool) {
        let took = took.as_secs_f64();
        self.seen += 1;
        if self.seen >= LOOK_EVERY {
            (self.seen, self.best) = (0, None);
            self.limit /= 2.0;
        }
        let best = self.best.map_or(took, |best| best.min(took));
        if !is_timeout {
            self.best = Some(best);
        }
        let is_slow = is_timeout || took > best * SLOW;
        let limit = if is_slow { self.limit * LESS } else { self.limit + 1.0 / self.limit.sqrt() };
        self.limit = limit.clamp(self.min, self.max);
    }

    /// How many may run now.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lookups take longer the more of them run beyond what the source can do.
    fn settle(limit: &mut AdaptiveLimit, capacity: usize) -> usize {
        for _ in 0..25_000 {
            let over = limit.limit() as f64 / capacity as f64;
            limit.on_done(Duration::from_secs_f64(0.05 * over.max(1.0)), false);
        }
        limit.limit()
    }

    #[test]
    fn it_settles_where_the_source_is_busy_and_not_swamped() {
        let mut limit = AdaptiveLimit::new(4, 512);
        let settled = settle(&mut limit, 40);
        assert!((36..=90).contains(&settled), "{settled}");
        let mut roomy = AdaptiveLimit::new(4, 64);
        assert_eq!(settle(&mut roomy, 1000), 64);
    }

    #[test]
    fn timeouts_bring_it_down_and_it_recovers() {
        let mut limit = AdaptiveLimit::new(4, 64);
        for _ in 0..100 {
            limit.on_done(Duration::from_millis(1200), true);
        }
        assert_eq!(limit.limit(), 4);
        for _ in 0..5000 {
            limit.on_done(Duration::from_millis(20), false);
        }
        assert!(limit.limit() > 40, "{}", limit.limit());
    }
}
