//! Why a call came back without what was asked.

use std::time::Duration;

use ron_core::{ConfigError, ErrorKind};

use crate::logic::key::KeyError;

/// Why the index did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The queue or limit.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The budget is spent. Nothing is known about what was asked for; ask again.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was asked.
        op: &'static str,
    },
    /// The index is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Everybody who could be asked keeps failing and is left alone for now. Retry after the pause.
    #[error("{target} keeps failing and is left alone")]
    BreakerOpen {
        /// Which source.
        target: &'static str,
        /// When it may be asked again.
        retry_after: Duration,
    },
    /// Whoever could know cannot yet: the log of names has not begun, or this node knows no other. It says nothing about what was
    /// asked for. Retry when the gate opens.
    #[error("not ready: {gate}")]
    NotReady {
        /// What is waited for: `registry.log`, `dht.seeds`, or what a source of the host's own calls it.
        gate: &'static str,
    },
    /// Those who were asked failed to answer. Ask again; it says nothing about what was asked for.
    #[error("no source could answer")]
    Unavailable,
    /// There is nothing under this key, as far as those who were asked know.
    #[error("nothing is known under this key")]
    NotFound,
    /// The text is no key.
    #[error("not a key")]
    Key(#[from] KeyError),
    /// As many keys are pinned as may be. Take a pin back first.
    #[error("{max} keys are pinned already")]
    PinsFull {
        /// How many may be.
        max: usize,
    },
    /// The answers that are pinned take as much of the cache as they may, which is half. Take a pin back first, or give the cache
    /// more bytes.
    #[error("what is pinned takes {max_bytes} bytes already")]
    PinsHeavy {
        /// How many it may.
        max_bytes: u64,
    },
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
}

impl From<ConfigError> for IndexError {
    fn from(error: ConfigError) -> Self {
        IndexError::Config(error)
    }
}

impl IndexError {
    /// Whether a stale answer is better than this one: it says nothing about what was asked for.
    pub(crate) fn is_mishap(&self) -> bool {
        matches!(
            self,
            IndexError::Busy { .. }
                | IndexError::Timeout { .. }
                | IndexError::Panicked { .. }
                | IndexError::BreakerOpen { .. }
                | IndexError::NotReady { .. }
                | IndexError::Unavailable
        )
    }
}

ron_core::refusals!(IndexError {
    IndexError::BreakerOpen { .. } | IndexError::NotReady { .. } => ErrorKind::NotReady,
    IndexError::Unavailable => ErrorKind::Peer,
    IndexError::NotFound
    | IndexError::Key(_)
    | IndexError::PinsFull { .. }
    | IndexError::PinsHeavy { .. }
    | IndexError::Config(_) => ErrorKind::Caller,
} retry { IndexError::BreakerOpen { retry_after, .. } => *retry_after });
