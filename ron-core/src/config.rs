//! Numbers that builders accept only when they make sense, and the error for the rules between them.

use std::{fmt, num::NonZeroUsize};

/// A queue's capacity: at least one, at most [`Capacity::MAX`].
///
/// The upper bound is there because a capacity is a promise about memory and waiting time; a queue of a billion is
/// an unbounded one with extra steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capacity(NonZeroUsize);

impl Capacity {
    /// The largest capacity.
    pub const MAX: usize = 1 << 20;

    /// `items`, if it is in `1..=MAX`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] naming `key`.
    pub fn new(key: &'static str, items: usize) -> Result<Self, ConfigError> {
        NonZeroUsize::new(items)
            .filter(|items| items.get() <= Self::MAX)
            .map(Capacity)
            .ok_or_else(|| ConfigError::OutOfRange { key, value: items.to_string(), allowed: "1..=1048576" })
    }

    /// The number of items.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0.get()
    }
}

/// A share between nothing and everything, both included.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// Half.
    pub const HALF: Ratio = Ratio(0.5);

    /// `share`, if it is a number in `0..=1`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] naming `key`.
    pub fn new(key: &'static str, share: f64) -> Result<Self, ConfigError> {
        if (0.0..=1.0).contains(&share) {
            Ok(Ratio(share))
        } else {
            Err(ConfigError::OutOfRange { key, value: share.to_string(), allowed: "0.0..=1.0" })
        }
    }

    /// `percent` hundredths.
    ///
    /// # Panics
    /// If `percent` is above 100; in a `const` that is a compile error.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        assert!(percent <= 100, "a share is at most 100 percent");
        Ratio(percent as f64 / 100.0)
    }

    /// The share.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why settings were refused. Every variant names the key, so that a host can point at the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One value is outside what is allowed.
    #[error("{key} is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// Two values contradict each other.
    #[error("{key} and {with} do not fit: {rule}")]
    Contradiction {
        /// The first setting.
        key: &'static str,
        /// The second setting.
        with: &'static str,
        /// The rule between them.
        rule: &'static str,
    },
    /// The setting cannot change while the subsystem runs; everything stays as it was.
    #[error("{key} cannot change while running; restart to apply it")]
    NeedsRestart {
        /// The setting.
        key: &'static str,
    },
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_numbers_are_named() {
        let error = Capacity::new("lanes.work", 0).unwrap_err();
        assert_eq!(error.to_string(), "lanes.work is 0, allowed is 1..=1048576");
        assert!(Capacity::new("lanes.work", Capacity::MAX + 1).is_err());
        assert_eq!(Capacity::new("lanes.work", 512).map(Capacity::get), Ok(512));
        assert!(Ratio::new("share", f64::NAN).is_err());
        assert!(Ratio::new("share", 1.5).is_err());
        assert_eq!(Ratio::percent(50), Ratio::HALF);
    }
}
