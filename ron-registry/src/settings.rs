//! The knobs of a registry.

use std::time::Duration;

use ron_core::{Capacity, ConfigError};

use crate::logic::quorum::Limits;

/// How much of the log is kept. An entry stays only while it is within all limits that are set; entries go 256 at a time, and
/// only when a signed checkpoint covers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// The newest entries to keep; without it, nothing is pruned by number.
    pub entries: Option<u64>,
    /// How old an entry may become; without it, nothing is pruned by age.
    pub age: Option<Duration>,
    /// Bytes of entries to keep at most; without it, nothing is pruned by size.
    pub bytes: Option<u64>,
}

/// The knobs of a registry, for [`Builder::settings`](crate::Builder::settings).
/// [`Registry::reload`](crate::Registry::reload) changes those that can change while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Proposals that wait for the committer; more are refused with `Busy`. Default 512.
    pub proposals_lane: usize,
    /// Approvals that wait for the committer; more are refused with `Busy`. Default 512.
    pub approvals_lane: usize,
    /// Updates that a slow reader may be behind before it is served from the log. Default 1024.
    pub committed_lane: usize,
    /// Proposals that wait for approvals: how many, how large, how long. Default 4096, 64 MiB, 30 days; 65 536 that were
    /// committed are remembered.
    pub pending: Limits,
    /// How long the store may take for a block before its callers are told that it is away. Default 5 s.
    pub commit_timeout: Duration,
    /// How long a block may take before the registry says that it is not ready for writes. Default 1 s.
    pub slow_after: Duration,
    /// How often to look whether something can be pruned. Default one minute.
    pub checkpoint_interval: Duration,
    /// What is kept. Default: everything.
    pub retention: Retention,
    /// How often the verifier reads a slice of the log again. Default 1 s; a longer pause costs less and finds damage later.
    pub verify_interval: Duration,
    /// Entries of such a slice. Default 256: some fifty milliseconds with three approvals each.
    pub verify_slice: usize,
    /// How long what was accepted may take to finish at the stop. Default 3 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            proposals_lane: 512,
            approvals_lane: 512,
            committed_lane: 1024,
            pending: Limits {
                pending_max: 4096,
                pending_bytes_max: 64 << 20,
                lifetime_ms_max: 30 * 24 * 3600 * 1000,
                recent_max: 1 << 16,
            },
            commit_timeout: Duration::from_secs(5),
            slow_after: Duration::from_secs(1),
            checkpoint_interval: Duration::from_secs(60),
            retention: Retention::default(),
            verify_interval: Duration::from_secs(1),
            verify_slice: 256,
            drain: Duration::from_secs(3),
        }
    }
}

impl Settings {
    /// The capacities of its lanes, or which of them cannot be.
    pub(crate) fn lanes(&self) -> Result<[Capacity; 3], ConfigError> {
        Ok([
            Capacity::new("proposals_lane", self.proposals_lane)?,
            Capacity::new("approvals_lane", self.approvals_lane)?,
            Capacity::new("committed_lane", self.committed_lane)?,
        ])
    }

    /// Whether these make sense, as a start checks them: for programs that read them from a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.lanes()?;
        let zero = [
            ("commit_timeout", self.commit_timeout.is_zero()),
            ("checkpoint_interval", self.checkpoint_interval.is_zero()),
            ("verify_interval", self.verify_interval.is_zero()),
            ("verify_slice", self.verify_slice == 0),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((key, _)) => {
                Err(ConfigError::OutOfRange { key, value: "0".to_owned(), allowed: "more than zero" })
            }
            None => Ok(()),
        }
    }

    /// Whether a running registry can take `new` in place of these.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] naming the first setting that it cannot change, others for one that makes no sense.
    pub fn check_change(&self, new: &Settings) -> Result<(), ConfigError> {
        let fixed = [
            ("proposals_lane", self.proposals_lane != new.proposals_lane),
            ("approvals_lane", self.approvals_lane != new.approvals_lane),
            ("committed_lane", self.committed_lane != new.committed_lane),
            ("drain", self.drain != new.drain),
        ];
        match fixed.into_iter().find(|(_, is_different)| *is_different) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => new.check(),
        }
    }
}
