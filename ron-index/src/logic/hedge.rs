//! When it is worth asking somebody else besides, and how often that may be done.
//!
//! The delay follows what sources take: after the time in which nineteen of twenty answers came, the next one is more
//! likely lost than late. The budget bounds what hedging may add to the load, whatever the delay: when everything is slow,
//! every question looks worth a hedge, and that is when the sources can bear it least.

use std::time::Duration;

use ron_core::Ratio;

/// Bounds of the buckets: from one millisecond, each an eighth longer than the one before, 64 of them to 1.8 s.
const BUCKETS: usize = 64;
const FIRST_NANOS: f64 = 1e6;
const GROWTH: f64 = 1.125;

/// Answers after which the older half of what was seen counts half. Enough that a percentile means something, and few
/// enough that a change of the weather is noticed within seconds on a busy node.
const MEMORY: u32 = 512;

/// Answers below which the delay is the one to begin with.
const SEEN_MIN: u32 = 20;

/// The share of answers that the delay waits for.
const PERCENTILE: f64 = 0.95;

/// Hedges that may be saved up: a good hour must not pay for a storm. What a quiet node begins with.
const SAVED_MAX: u64 = 10;

/// One hedge, in the unit of the budget.
const ONE: u64 = 1_000_000;

/// How long sources take, and what hedges are left.
#[derive(Debug, Clone)]
pub struct Hedging {
    buckets: [u32; BUCKETS],
    seen: u32,
    saved: u64,
}

impl Default for Hedging {
    fn default() -> Self {
        Hedging { buckets: [0; BUCKETS], seen: 0, saved: SAVED_MAX * ONE }
    }
}

impl Hedging {
    /// A source has answered after so long. A hedge that won tells how long the loser took at least, which is noted too.
    pub fn on_answer(&mut self, took: Duration) {
        let steps = ((took.as_nanos() as f64 / FIRST_NANOS).max(1.0)).ln() / GROWTH.ln();
        let bucket = (steps.ceil() as usize).min(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.seen += 1;
        if self.seen >= MEMORY {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.seen = self.buckets.iter().sum();
        }
    }

    /// After how long others should be asked: what nineteen of twenty answers took, within these bounds.
    #[must_use]
    pub fn delay(&self, begin: Duration, min: Duration, max: Duration) -> Duration {
        if self.seen < SEEN_MIN {
            return begin.clamp(min, max);
        }
        let enough = (f64::from(self.seen) * PERCENTILE).ceil() as u32;
        let mut sum = 0;
        let bucket = self.buckets.iter().position(|count| {
            sum += count;
            sum >= enough
        });
        let nanos = FIRST_NANOS * GROWTH.powi(bucket.unwrap_or(BUCKETS - 1) as i32);
        Duration::from_nanos(nanos as u64).clamp(min, max)
    }

    /// A question was asked; a share of a hedge is saved.
    pub fn on_question(&mut self, share: Ratio) {
        self.saved = (self.saved + (share.get() * ONE as f64) as u64).min(SAVED_MAX * ONE);
    }

    /// Takes one hedge, if there is one left.
    pub fn spend(&mut self) -> bool {
        let left = self.saved.checked_sub(ONE);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(5);
    const MAX: Duration = Duration::from_millis(600);
    const BEGIN: Duration = Duration::from_millis(150);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_delay_begins_as_told_and_follows_the_slow_twentieth() {
        let mut hedging = Hedging::default();
        assert_eq!(hedging.delay(BEGIN, MIN, MAX), BEGIN);
        for at in 0..400 {
            hedging.on_answer(if at % 25 == 0 { ms(400) } else { ms(20) });
        }
        let delay = hedging.delay(BEGIN, MIN, MAX);
        assert!((ms(20)..ms(24)).contains(&delay), "4 % are slow: {delay:?}");
        for at in 0..2000 {
            hedging.on_answer(if at % 10 == 0 { ms(400) } else { ms(20) });
        }
        let delay = hedging.delay(BEGIN, MIN, MAX);
        assert!((ms(400)..ms(460)).contains(&delay), "10 % are slow: {delay:?}");
        for _ in 0..2000 {
            hedging.on_answer(ms(50));
        }
        let delay = hedging.delay(BEGIN, MIN, MAX);
        assert!((ms(50)..ms(58)).contains(&delay), "the past is forgotten: {delay:?}");
    }

    #[test]
    fn the_delay_keeps_its_bounds() {
        let mut hedging = Hedging::default();
        for _ in 0..100 {
            hedging.on_answer(Duration::ZERO);
        }
        assert_eq!(hedging.delay(BEGIN, MIN, MAX), MIN);
        for _ in 0..10_000 {
            hedging.on_answer(Duration::from_secs(3600));
        }
        assert_eq!(hedging.delay(BEGIN, MIN, MAX), MAX);
    }

    #[test]
    fn hedges_are_a_twentieth_of_the_questions_after_the_first_ten() {
        let mut hedging = Hedging::default();
        let mut hedges = 0;
        for _ in 0..10_000 {
            hedging.on_question(Ratio::percent(5));
            hedges += u32::from(hedging.spend());
        }
        assert!((500..=510).contains(&hedges), "{hedges}");
        let mut none = Hedging::default();
        let spent = (0..100).filter(|_| none.spend()).count();
        assert_eq!(spent, 10);
    }
}
