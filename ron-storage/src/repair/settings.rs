//! The knobs of keeping, and what follows from them.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use ron_core::{Capacity, ConfigError, Pacer};

use crate::{
    claims::{CLAIMS_MAX, ClaimLimits, OWNER_CLAIMS_MAX},
    logic::{
        plan::PlanSettings,
        yielding::{RATE_MIN, Yielding},
    },
    peers::PACED_BYTES,
};

/// The knobs of keeping.
#[derive(Debug, Clone, PartialEq)]
pub struct KeepingSettings {
    /// How often everything is compared with every other node. Default a minute. Shorter notices losses sooner.
    pub tick: Duration,
    /// How often the host is asked who keeps objects. Default ten seconds.
    pub refresh: Duration,
    /// How long what a node has counts after it stopped answering. Default a quarter of an hour. Longer than a restart.
    pub grace: Duration,
    /// How long the next in line waits before it does what another should have done. Default five minutes.
    pub takeover: Duration,
    /// How long to wait after a failure; longer after each next one. Default five seconds.
    pub retry: Duration,
    /// Bytes that all repairs of this node together may move in a second, whichever. Default 50 MiB.
    pub bytes_per_second: u64,
    /// Repairs at once. Default 4.
    pub workers: NonZeroUsize,
    /// Repairs that wait. Default 256.
    pub lane: usize,
    /// How long one repair may take before it counts as failed, besides what its bytes take at the least rate. Default ten
    /// minutes.
    pub repair_timeout: Duration,
    /// Claims that are taken, of all owners together. Default two million, 700 bytes of memory each. More are refused.
    pub claims_max: usize,
    /// Claims that are taken of one owner. Default one million.
    pub owner_claims_max: usize,
    /// How long a stop waits for repairs that are under way. Default 5 s.
    pub drain: Duration,
}

impl Default for KeepingSettings {
    fn default() -> Self {
        KeepingSettings {
            tick: Duration::from_secs(60),
            refresh: Duration::from_secs(10),
            grace: Duration::from_secs(900),
            takeover: Duration::from_secs(300),
            retry: Duration::from_secs(5),
            bytes_per_second: 50 << 20,
            workers: const { NonZeroUsize::new(4).expect("not zero") },
            lane: 256,
            repair_timeout: Duration::from_secs(600),
            claims_max: CLAIMS_MAX,
            owner_claims_max: OWNER_CLAIMS_MAX,
            drain: Duration::from_secs(5),
        }
    }
}

impl KeepingSettings {
    /// Whether these make sense.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        Capacity::new("lane", self.lane)?;
        let positive = [
            ("tick", self.tick),
            ("refresh", self.refresh),
            ("retry", self.retry),
            ("repair_timeout", self.repair_timeout),
        ];
        for (key, duration) in positive {
            if duration.is_zero() {
                return Err(ConfigError::OutOfRange { key, value: "0 s".to_owned(), allowed: "above zero" });
            }
        }
        if self.bytes_per_second < RATE_MIN {
            let value = self.bytes_per_second.to_string();
            return Err(ConfigError::OutOfRange { key: "bytes_per_second", value, allowed: "65536 or more" });
        }
        Ok(())
    }

    pub(super) fn claim_limits(&self) -> ClaimLimits {
        ClaimLimits { claims: self.claims_max, of_owner: self.owner_claims_max }
    }

    /// Whether a keeping that runs with these can go on with `new` ones.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] with the first that it cannot change, and those of [`check`](Self::check).
    pub fn check_change(&self, new: &KeepingSettings) -> Result<(), ConfigError> {
        new.check()?;
        let fixed = [
            ("workers", self.workers != new.workers),
            ("lane", self.lane != new.lane),
            ("drain", self.drain != new.drain),
        ];
        match fixed.into_iter().find(|(_, has_changed)| *has_changed) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => Ok(()),
        }
    }
}

/// The settings of the plan.
pub(super) fn plan_settings(settings: &KeepingSettings) -> PlanSettings {
    PlanSettings { grace: settings.grace, takeover: settings.takeover, retry: settings.retry }
}

/// The rate that follows the readers.
pub(super) fn yielding(settings: &KeepingSettings) -> Yielding {
    Yielding::new(settings.bytes_per_second)
}

pub(super) fn pacer(bytes_per_second: u64) -> Pacer {
    let (rate, burst) = rate_and_burst(bytes_per_second);
    Pacer::new(rate, burst)
}

/// A fiftieth may come at once, and the rest flows evenly, so that in no second more comes than a second's worth. Nothing is paid
/// for in larger parts than may come at once: a larger one would be earned before it flows, and then flow at once.
pub(super) fn rate_and_burst(bytes_per_second: u64) -> (NonZeroU64, NonZeroU64) {
    let of = |bytes| NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN);
    let burst = (bytes_per_second / 50).max(PACED_BYTES);
    (of(bytes_per_second.saturating_sub(burst)), of(burst))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refused setting had a name that no field has.
    #[test]
    fn a_refused_setting_has_the_name_of_its_field() {
        let default = KeepingSettings::default;
        for (key, settings) in [
            ("lane", KeepingSettings { lane: 0, ..default() }),
            ("tick", KeepingSettings { tick: Duration::ZERO, ..default() }),
            ("refresh", KeepingSettings { refresh: Duration::ZERO, ..default() }),
            ("retry", KeepingSettings { retry: Duration::ZERO, ..default() }),
            ("repair_timeout", KeepingSettings { repair_timeout: Duration::ZERO, ..default() }),
            ("bytes_per_second", KeepingSettings { bytes_per_second: 0, ..default() }),
        ] {
            let refused = settings.check();
            assert!(
                matches!(refused, Err(ConfigError::OutOfRange { key: found, .. }) if found == key),
                "{refused:?}"
            );
        }
        for (key, settings) in [
            ("workers", KeepingSettings { workers: NonZeroUsize::MIN, ..default() }),
            ("lane", KeepingSettings { lane: 1, ..default() }),
            ("drain", KeepingSettings { drain: Duration::ZERO, ..default() }),
        ] {
            assert_eq!(default().check_change(&settings), Err(ConfigError::NeedsRestart { key }));
        }
    }
}
