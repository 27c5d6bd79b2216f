//! How many words a peer may send in a second.
//!
//! A bucket that fills with time: a peer that was quiet may send a second's worth at once, and in the long run no more than
//! its rate. What is beyond it is refused before anything is decoded.

use std::time::Duration;

/// The words that one peer may still send.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    /// When the bucket would be full if nobody took anything.
    full_at: Duration,
    /// Words that were too many since it was last full.
    refused: u32,
}

impl Meter {
    /// A bucket that is full.
    #[must_use]
    pub const fn new() -> Self {
        Meter { full_at: Duration::ZERO, refused: 0 }
    }

    /// Whether nothing is missing from it any more.
    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }

    /// Takes one, if `per_second` allows it.
    pub fn take(&mut self, per_second: u32, now: Duration) -> bool {
        let one = Duration::from_secs(1) / per_second.max(1);
        let full_at = self.full_at.max(now) + one;
        let is_allowed = full_at <= now + Duration::from_secs(1);
        if self.is_full(now) {
            self.refused = 0;
        }
        if is_allowed {
            self.full_at = full_at;
        } else {
            self.refused = self.refused.saturating_add(1);
        }
        is_allowed
    }

    /// Words that were too many since it was last full.
    #[must_use]
    pub fn refused(&self) -> u32 {
        self.refused
    }
}

impl Default for Meter {
    fn default() -> Self {
        Meter::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_at_once_and_then_the_rate() {
        let mut meter = Meter::new();
        let take =
            |meter: &mut Meter, at| (0..1000).filter(|_| meter.take(100, Duration::from_millis(at))).count();
        assert_eq!(take(&mut meter, 0), 100);
        assert_eq!(take(&mut meter, 0), 0, "what is refused costs nothing");
        assert_eq!(meter.refused(), 1900);
        assert_eq!(take(&mut meter, 100), 10);
        assert_eq!(take(&mut meter, 5000), 100, "no more than a second's worth is saved up");
        assert_eq!(meter.refused(), 900, "a quiet second and all is well");
    }
}
