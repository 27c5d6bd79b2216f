//! How much of a rate is used up: the generic cell rate algorithm, in nanoseconds.
//!
//! The whole memory of a limited party is one number, the moment at which it owes nothing any more. Its distance
//! from now is the debt. A take costs time (its units divided by the rate) and is allowed while the debt stays within
//! the window, which is the burst expressed as time. Costs are rounded up, so a rate is never exceeded.
//!
//! A debt longer than the window cannot have been earned under this meter: it comes from a clock that stepped back
//! or from an older, slower rate. It counts as one whole window, so neither can lock anybody out.

use std::time::Duration;

use crate::Ratio;

const SECOND: u64 = 1_000_000_000;

/// One rate and its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meter {
    per_second: u64,
    burst: u64,
    /// The cost of one unit: requests are taken one by one, so they need no division each.
    one: u64,
    window: u64,
}

impl Meter {
    /// Counts things that are taken one at a time: `burst` of them fit at once, exactly.
    pub(crate) fn of_requests(per_second: u64, burst: u64) -> Self {
        let mut meter = Meter::of_bytes(per_second, burst);
        meter.window = burst.saturating_mul(meter.one);
        meter
    }

    /// Counts things that are taken many at a time. A burst taken in n pieces may cost n nanoseconds more than in one.
    pub(crate) fn of_bytes(per_second: u64, burst: u64) -> Self {
        Meter { per_second, burst, one: cost(1, per_second), window: cost(burst, per_second) }
    }

    /// The same kind of meter for a part of the rate and of the burst, each at least one.
    pub(crate) fn share(self, share: Ratio, of: fn(u64, u64) -> Self) -> Self {
        let part = |whole: u64| ((whole as f64 * share.get()) as u64).clamp(1, whole);
        of(part(self.per_second), part(self.burst))
    }

    /// The same meter with a window of at least `shortest`.
    pub(crate) fn window_at_least(mut self, shortest: Duration) -> Self {
        self.window = self.window.max(nanos(shortest));
        self
    }

    /// The cost of one request.
    pub(crate) fn one(&self) -> u64 {
        self.one
    }

    /// The burst as time.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// The cost of `units`.
    pub(crate) fn cost(&self, units: u64) -> u64 {
        cost(units, self.per_second)
    }

    /// What a debt of `nanos` is in units, for carrying it over to another rate.
    pub(crate) fn units(&self, nanos: u64) -> u64 {
        let units = u128::from(nanos) * u128::from(self.per_second) / u128::from(SECOND);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Whether a take of `cost` is allowed to one who is `clear_at` some moment: `Ok` with the moment it moves to,
    /// or `Err` with the time after which it is allowed. A cost above the window counts as a whole window: it waits
    /// until nothing is owed, and one absurd claim cannot put everybody in debt for a year.
    pub(crate) fn check(&self, clear_at: u64, cost: u64, now: u64) -> Result<u64, u64> {
        // Free takes move nothing. Two cores read the clock before they queue for the lock, so `now` may be a little
        // in the past, and a full debt clamped there would shrink.
        if cost == 0 {
            return Ok(clear_at);
        }
        let owed = self.owed(clear_at, now).saturating_add(cost.min(self.window));
        match owed.checked_sub(self.window) {
            None | Some(0) => Ok(now.saturating_add(owed)),
            Some(excess) => Err(excess),
        }
    }

    /// The debt at `now`, at most one window.
    pub(crate) fn owed(&self, clear_at: u64, now: u64) -> u64 {
        clear_at.saturating_sub(now).min(self.window)
    }
}

/// The time `units` take at `per_second`, rounded up.
fn cost(units: u64, per_second: u64) -> u64 {
    // The narrow division is several times faster and is enough for eighteen billion units.
    if let Some(scaled) = units.checked_mul(SECOND) {
        return scaled.div_ceil(per_second);
    }
    let scaled = u128::from(units) * u128::from(SECOND);
    u64::try_from(scaled.div_ceil(per_second.into())).unwrap_or(u64::MAX)
}

/// `duration` in nanoseconds, at most 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::num::NonZeroU32;

    use governor::{Quota, RateLimiter, clock::FakeRelativeClock};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_fits_and_then_the_rate_rules() {
        let meter = Meter::of_requests(3, 5);
        let mut clear_at = 0;
        for _ in 0..5 {
            clear_at = meter.check(clear_at, meter.one(), 0).unwrap();
        }
        let wait = meter.check(clear_at, meter.one(), 0).unwrap_err();
        assert_eq!(wait, 333_333_334);
        assert_eq!(meter.check(clear_at, meter.one(), wait - 1), Err(1));
        assert!(meter.check(clear_at, meter.one(), wait).is_ok());
    }

    #[test]
    fn more_than_the_burst_waits_for_an_empty_meter_and_counts_as_one_burst() {
        let meter = Meter::of_bytes(1_000, 100);
        assert_eq!(meter.check(0, meter.cost(u64::MAX), 5), Ok(5 + 100_000_000));
        assert_eq!(meter.check(6, meter.cost(u64::MAX), 5), Err(1));
    }

    #[test]
    fn a_stepped_clock_and_a_slower_past_owe_one_window_at_most() {
        let meter = Meter::of_requests(1_000, 10);
        assert_eq!(meter.check(u64::MAX, meter.one(), 0), Err(meter.one()));
    }

    #[test]
    fn a_free_take_on_a_late_clock_does_not_shrink_the_debt() {
        let meter = Meter::of_bytes(1_000, 1_000);
        let full = meter.check(0, meter.window(), 500).unwrap();
        assert_eq!(meter.check(full, 0, 100), Ok(full));
        assert_eq!(meter.check(full, 1, 500), Err(1));
    }

    #[test]
    fn the_ends_of_the_numbers_do_not_wrap() {
        let slow = Meter::of_bytes(1, u64::MAX);
        assert_eq!(slow.window(), u64::MAX);
        assert_eq!(slow.check(0, slow.cost(u64::MAX), u64::MAX), Ok(u64::MAX));
        let fast = Meter::of_bytes(u64::MAX, u64::MAX);
        assert_eq!((fast.window(), fast.one()), (SECOND, 1));
        assert_eq!(slow.units(u64::MAX), u64::MAX / SECOND);
        assert_eq!(fast.units(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_share_is_at_least_one() {
        let meter = Meter::of_requests(1, 1).share(Ratio::percent(1), Meter::of_requests);
        assert_eq!(meter, Meter::of_requests(1, 1));
        let meter = Meter::of_requests(100, 40).share(Ratio::HALF, Meter::of_requests);
        assert_eq!(meter, Meter::of_requests(50, 20));
    }

    proptest! {
        /// The `governor` crate is a widely used implementation of the same algorithm: same arrivals, same verdicts,
        /// same waiting times.
        #[test]
        fn decides_as_governor_does(
            per_second in 1_u32..5_000,
            burst in 1_u32..50,
            gaps in prop::collection::vec(prop_oneof![Just(0_u64), 0_u64..2_000_000, 0_u64..2_000_000_000], 1..200),
        ) {
            let meter = Meter::of_requests(per_second.into(), burst.into());
            let quota = Quota::with_period(Duration::from_nanos(meter.one()))
                .expect("at least one nanosecond")
                .allow_burst(NonZeroU32::new(burst).expect("from one"));
            let clock = FakeRelativeClock::default();
            let governor = RateLimiter::direct_with_clock(quota, clock.clone());
            let (mut now, mut clear_at) = (0, 0);
            for gap in gaps {
                now += gap;
                clock.advance(Duration::from_nanos(gap));
                let theirs = governor.check().map_err(|until| {
                    use governor::clock::Clock as _;
                    nanos(until.wait_time_from(clock.now()))
                });
                let ours = meter.check(clear_at, meter.one(), now).map(|moved| clear_at = moved);
                prop_assert_eq!(ours, theirs.map(|_| ()));
            }
        }

        #[test]
        fn waiting_as_told_is_enough_and_less_is_not(
            per_second in 1_u64..10_000_000, burst in 1_u64..1_000_000, clear_at: u64, units: u64, now: u64,
        ) {
            let meter = Meter::of_bytes(per_second, burst);
            let cost = meter.cost(units);
            if let Err(wait) = meter.check(clear_at, cost, now) {
                // A debt from beyond the window is carried as one window, from the moment it is looked at.
                let clear_at = now.saturating_add(meter.owed(clear_at, now));
                if let Some(then) = now.checked_add(wait) {
                    prop_assert!(meter.check(clear_at, cost, then).is_ok());
                    prop_assert!(meter.check(clear_at, cost, then - 1).is_err());
                }
            }
        }
    }
}
