//! How much of its byte rate repair may use while clients want something.
//!
//! What clients wait for is jobs in the queue of reads. While more wait than workers can take at once, repair halves its rate, down
//! to a sixteenth: never to nothing, because what is at one copy must not wait for a quiet hour. When nobody waits it comes back
//! by an eighth of the full rate at a time.

/// The rate never falls below this share of it.
const LEAST: u64 = 16;

/// The least rate there is: at this one, four transfers that share it move a group every few seconds, which is sooner than whoever
/// waits for a group gives up.
pub const RATE_MIN: u64 = 64 << 10;

/// The rate as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yielding {
    full: u64,
    now: u64,
}

impl Yielding {
    /// The full rate, in bytes per second.
    #[must_use]
    pub fn new(full: u64) -> Self {
        Yielding { full: full.max(RATE_MIN), now: full.max(RATE_MIN) }
    }

    /// Takes in how many reads wait, of which `workers` are taken at once, and says the rate from now on.
    pub fn on_sample(&mut self, waiting: usize, workers: usize) -> u64 {
        self.now = match waiting {
            0 => (self.now + self.full / 8).min(self.full),
            waiting if waiting > workers => (self.now / 2).max(self.least()),
            _ => self.now,
        };
        self.now
    }

    /// What it never falls below.
    #[must_use]
    pub fn least(&self) -> u64 {
        (self.full / LEAST).max(RATE_MIN)
    }

    /// Whether nobody has to be waited for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.now == self.full
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_yields_quickly_comes_back_slowly_and_never_stops() {
        const FULL: u64 = 1600 << 10;
        let mut rate = Yielding::new(FULL);
        assert_eq!(rate.on_sample(9, 8), FULL / 2);
        assert_eq!(rate.on_sample(8, 8), FULL / 2, "those are being served");
        for _ in 0..20 {
            rate.on_sample(100, 8);
        }
        assert_eq!((rate.rate(), rate.least()), (FULL / 16, FULL / 16));
        assert_eq!(rate.on_sample(0, 8), FULL / 16 + FULL / 8);
        for _ in 0..20 {
            rate.on_sample(0, 8);
        }
        assert_eq!(rate.rate(), FULL);
        assert_eq!(Yielding::new(0).rate(), RATE_MIN);
    }
}
