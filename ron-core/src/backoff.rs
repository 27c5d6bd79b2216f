//! How long to wait before the next attempt: jittered delays as a pure iterator.
//!
//! Every delay is drawn evenly between the floor and a ceiling that doubles ("full jitter"), so a hundred tasks that
//! failed in the same instant do not come back in the same instant. Randomness comes from a generator the caller
//! passes in, so a seed replays every pause of a test or a simulation.

use std::time::Duration;

/// The bounds of a series of pauses. A plain value, so that a declaration can hold one as a `const`.
///
/// ```
/// use std::time::Duration;
/// use ron_core::BackoffPolicy;
///
/// const REDIAL: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(30));
/// let mut pauses = REDIAL.with_seed(7);
/// assert!(pauses.next_delay() <= Duration::from_millis(200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackoffPolicy {
    min: Duration,
    max: Duration,
}

impl BackoffPolicy {
    /// Pauses of at least `min` and at most `max`. The first is below twice `min`; with a `min` of zero, below two
    /// milliseconds.
    ///
    /// # Panics
    /// If `min` is longer than `max`; in a `const` that is a compile error.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        // Durations are not comparable in a const, their nanoseconds are.
        assert!(min.as_nanos() <= max.as_nanos(), "the shortest pause is longer than the longest");
        BackoffPolicy { min, max }
    }

    /// The shortest pause.
    #[must_use]
    pub const fn min(self) -> Duration {
        self.min
    }

    /// The longest pause.
    #[must_use]
    pub const fn max(self) -> Duration {
        self.max
    }

    /// A series of pauses drawn from `rng`.
    #[must_use]
    pub fn with_rng(self, rng: fastrand::Rng) -> Backoff {
        Backoff { policy: self, ceiling: self.first_ceiling(), rng }
    }

    /// A series of pauses that is the same for the same `seed`.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Backoff {
        self.with_rng(fastrand::Rng::with_seed(seed))
    }

    /// Twice the floor, so that already the first pause is spread. Zero would stay zero however often it doubles.
    fn first_ceiling(self) -> Duration {
        self.min.max(Duration::from_millis(1)).saturating_mul(2).min(self.max)
    }
}

/// A series of growing, jittered pauses. It never ends: whoever draws from it decides when to give up.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: BackoffPolicy,
    ceiling: Duration,
    rng: fastrand::Rng,
}

impl Backoff {
    /// The next pause.
    pub fn next_delay(&mut self) -> Duration {
        let delay = between(&mut self.rng, self.policy.min, self.ceiling);
        self.ceiling = self.ceiling.saturating_mul(2).min(self.policy.max);
        delay
    }

    /// Starts again with short pauses: for the moment when what failed has worked again.
    pub fn reset(&mut self) {
        self.ceiling = self.policy.first_ceiling();
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_delay())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// A duration drawn evenly from `shortest..=longest`, to the nanosecond.
pub(crate) fn between(rng: &mut fastrand::Rng, shortest: Duration, longest: Duration) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let nanos = rng.u128(shortest.as_nanos()..=longest.as_nanos());
    Duration::new(
        u64::try_from(nanos / SECOND).expect("no longer than `longest`, whose seconds fit"),
        u32::try_from(nanos % SECOND).expect("a remainder below one second in nanoseconds"),
    )
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESTART: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(10));

    fn mean_of_nth(policy: BackoffPolicy, nth: usize) -> Duration {
        const SEEDS: u32 = 2_000;
        let sum: Duration = (0..SEEDS).filter_map(|seed| policy.with_seed(seed.into()).nth(nth)).sum();
        sum / SEEDS
    }

    #[test]
    fn the_mean_grows_until_the_ceiling_is_reached() {
        let means: Vec<Duration> = (0..8).map(|nth| mean_of_nth(RESTART, nth)).collect();
        assert!(means[..7].windows(2).all(|pair| pair[0] < pair[1]), "not growing: {means:?}");
        // Even between 100 ms and 10 s, from the eighth pause on: 5.05 s.
        assert!((4_900..5_200).contains(&means[7].as_millis()), "{means:?}");
    }

    #[test]
    fn a_seed_replays_and_seeds_differ() {
        let of = |seed| RESTART.with_seed(seed).take(20).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn reset_starts_again_with_short_pauses() {
        let mut pauses = RESTART.with_seed(3);
        pauses.by_ref().nth(20);
        pauses.reset();
        assert!(pauses.next_delay() <= Duration::from_millis(200));
    }

    #[test]
    fn equal_bounds_are_a_fixed_pause() {
        let second = Duration::from_secs(1);
        assert!(BackoffPolicy::new(second, second).with_seed(0).take(9).all(|pause| pause == second));
    }

    #[test]
    fn a_floor_of_zero_still_grows() {
        let policy = BackoffPolicy::new(Duration::ZERO, Duration::from_secs(1));
        assert!(mean_of_nth(policy, 12) > Duration::from_millis(400));
    }

    proptest! {
        #[test]
        fn every_pause_is_within_the_bounds(min: Duration, more: Duration, seed: u64) {
            let policy = BackoffPolicy::new(min, min.saturating_add(more));
            for pause in policy.with_seed(seed).take(200) {
                prop_assert!((policy.min()..=policy.max()).contains(&pause));
            }
        }

        #[test]
        fn the_longest_durations_do_not_overflow(seed: u64, min in prop_oneof![Just(Duration::MAX), any::<Duration>()]) {
            let policy = BackoffPolicy::new(min, Duration::MAX);
            prop_assert!(policy.with_seed(seed).take(200).all(|pause| pause >= min));
        }
    }
}
