//! Why a call came back without an answer.

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
    /// The deadline passed, or the budget of the lookup was spent. This says nothing about the key; ask again.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was asked.
        op: &'static str,
    },
    /// The index is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// A bug in this crate or in a source. It was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Every source that could be asked keeps failing, so its breaker is open. Retry after the pause.
    #[error("{target} keeps failing and is left alone")]
    BreakerOpen {
        /// The source that will be asked again first.
        target: &'static str,
        /// When it may be asked again.
        retry_after: Duration,
    },
    /// The sources cannot know yet: the log of names has not begun, or this node knows no other node. This says nothing about
    /// the key. Retry when the gate opens.
    #[error("not ready: {gate}")]
    NotReady {
        /// What is missing: `registry.log`, `dht.seeds`, or the name that the host's own source gave it.
        gate: &'static str,
    },
    /// The sources that were asked failed to answer. This says nothing about the key; ask again.
    #[error("no source could answer")]
    Unavailable,
    /// There is nothing under this key, as far as the sources that were asked know.
    #[error("nothing is known under this key")]
    NotFound,
    /// The text is no key.
    #[error("not a key")]
    Key(#[from] KeyError),
    /// No more keys may be pinned. Unpin one first, or raise [`Settings::pins_max`](crate::Settings::pins_max).
    #[error("{max} keys are pinned already, and pins_max allows no more")]
    PinsFull {
        /// The limit, `pins_max`.
        max: usize,
    },
    /// Pinned answers may take half of the cache, and this one would exceed that. Unpin one first, or raise
    /// [`Settings::cache_bytes`](crate::Settings::cache_bytes).
    #[error(
        "pinned answers may take {max_bytes} bytes, half of cache_bytes, and there is no room for another"
    )]
    PinsHeavy {
        /// The limit, half of `cache_bytes`.
        max_bytes: u64,
    },
    /// A setting is out of range, or cannot change while the index runs.
    #[error("settings: {0}")]
    Config(ConfigError),
}

impl From<ConfigError> for IndexError {
    fn from(error: ConfigError) -> Self {
        IndexError::Config(error)
    }
}

impl IndexError {
    /// Whether a stale answer is better than this error, because the error says nothing about the key.
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
