//! How fast a peer answers, and how long to wait for it because of that.
//!
//! Two waits come out of one estimate. The hedge delay is short: past it a search stops holding a place for the peer
//! and asks another, which costs at most one message too many. The timeout is long: past it the answer is refused and
//! the failure is held against the peer, so it must not fire because of one slow moment.

use std::{fmt, time::Duration};

/// No timeout is shorter: a busy machine in the next rack pauses for longer than its usual answer takes, and a
/// timeout is held against the peer. A search does not wait this long, it hedges.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// The hedge delay moves between a tenth and twice of where it starts. Below a tenth (25 ms by default) the pauses of
/// a scheduler look like silence; a peer that needs more than twice is one to hedge against, however steady it is.
const HEDGE_SHRINKS: u32 = 10;
const HEDGE_GROWS: u32 = 2;

/// Round trips to one peer: smoothed mean and deviation as in RFC 6298, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rtt {
    /// Microseconds; zero means never measured.
    mean_us: u32,
    spread_us: u32,
}

impl Rtt {
    /// Nothing measured yet.
    pub const UNKNOWN: Rtt = Rtt { mean_us: 0, spread_us: 0 };

    /// Takes in one measured round trip.
    pub fn on_sample(&mut self, sample: Duration) {
        // Over an hour is no round trip; under a microsecond would read as never measured.
        let sample = u32::try_from(sample.as_micros()).unwrap_or(u32::MAX).max(1);
        if self.mean_us == 0 {
            *self = Rtt { mean_us: sample, spread_us: sample / 2 };
            return;
        }
        let off = self.mean_us.abs_diff(sample);
        self.spread_us = weighted(self.spread_us, off, 4);
        self.mean_us = weighted(self.mean_us, sample, 8).max(1);
    }

    /// The smoothed round trip, if any was measured.
    #[must_use]
    pub fn mean(self) -> Option<Duration> {
        (self.mean_us > 0).then(|| micros(u64::from(self.mean_us)))
    }

    /// How long an answer may take before it is refused: at most `rpc_timeout`, which also holds for strangers.
    #[must_use]
    pub fn timeout(self, rpc_timeout: Duration) -> Duration {
        match self.mean() {
            Some(mean) => (mean + self.spread() * 4).max(TIMEOUT_MIN).min(rpc_timeout),
            None => rpc_timeout,
        }
    }

    /// How long a search holds a place for the peer before it asks another: `start` for a stranger.
    #[must_use]
    pub fn hedge_delay(self, start: Duration) -> Duration {
        match self.mean() {
            Some(mean) => (mean + self.spread() * 2).max(start / HEDGE_SHRINKS).min(start * HEDGE_GROWS),
            None => start,
        }
    }

    /// At least a quarter of the mean: a link that was steady for an hour has a deviation of nearly nothing, and would
    /// be given up for the first packet that waits in a queue.
    fn spread(self) -> Duration {
        micros(u64::from(self.spread_us.max(self.mean_us / 4)))
    }
}

impl fmt::Debug for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mean() {
            Some(mean) => write!(f, "{mean:?} ± {:?}", micros(u64::from(self.spread_us))),
            None => f.write_str("unknown"),
        }
    }
}

const fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// `old` moved towards `new` by one part of `parts`. Never outside the two, so it fits whatever they fit.
fn weighted(old: u32, new: u32, parts: u64) -> u32 {
    let sum = u64::from(old) * (parts - 1) + u64::from(new);
    u32::try_from(sum / parts).expect("a mean of two numbers is not above both")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RPC: Duration = Duration::from_millis(1500);
    const START: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn after(samples: impl IntoIterator<Item = u64>) -> Rtt {
        let mut rtt = Rtt::UNKNOWN;
        samples.into_iter().for_each(|sample| rtt.on_sample(ms(sample)));
        rtt
    }

    #[test]
    fn a_stranger_gets_the_whole_wait() {
        assert_eq!(Rtt::UNKNOWN.timeout(RPC), RPC);
        assert_eq!(Rtt::UNKNOWN.hedge_delay(START), START);
        assert_eq!(Rtt::UNKNOWN.mean(), None);
    }

    #[test]
    fn the_first_sample_is_the_mean_and_half_of_it_the_spread() {
        let rtt = after([100]);
        assert_eq!(rtt.mean(), Some(ms(100)));
        assert_eq!(rtt.timeout(RPC), ms(300));
        assert_eq!(rtt.hedge_delay(START), ms(200));
    }

    #[test]
    fn a_steady_peer_keeps_some_slack() {
        let rtt = after([200; 100]);
        assert_eq!(rtt.mean(), Some(ms(200)));
        assert_eq!(rtt.timeout(RPC), ms(400));
        assert_eq!(rtt.hedge_delay(START), ms(300));
    }

    #[test]
    fn waits_stay_between_their_bounds() {
        let near = after([1; 20]);
        assert_eq!(near.timeout(RPC), TIMEOUT_MIN);
        assert_eq!(near.hedge_delay(START), ms(25));
        let far = after([2000; 20]);
        assert_eq!(far.timeout(RPC), RPC);
        assert_eq!(far.hedge_delay(START), ms(500));
        // The caller's bound wins over our floor.
        assert_eq!(near.timeout(ms(100)), ms(100));
    }

    #[test]
    fn a_peer_that_moved_is_relearned() {
        let moved = after(std::iter::repeat_n(10, 20).chain(std::iter::repeat_n(120, 40)));
        let mean = moved.mean().expect("sixty samples");
        assert!((ms(115)..=ms(120)).contains(&mean), "{mean:?}");
    }

    proptest! {
        #[test]
        fn any_samples_keep_the_bounds(samples: Vec<Duration>) {
            let mut rtt = Rtt::UNKNOWN;
            for sample in samples {
                rtt.on_sample(sample);
                prop_assert!(rtt.mean().is_some());
                prop_assert!((TIMEOUT_MIN..=RPC).contains(&rtt.timeout(RPC)));
                prop_assert!((START / 10..=START * 2).contains(&rtt.hedge_delay(START)));
                // Ahead of a timeout there is always time for a hedge, unless the link is beyond hedging.
                prop_assert!(rtt.hedge_delay(START) <= rtt.timeout(RPC));
            }
        }
    }
}
