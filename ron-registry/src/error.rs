//! Why a call came back without what was asked.

use std::{fmt::Display, time::Duration};

use ron_core::{ConfigError, ErrorKind, net::SignatureError};

use crate::{
    logic::{chain::Head, merkle::ProofError, proposal::FormError, state::Refused},
    store::StoreError,
};

/// Why the registry did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The queue or limit.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed. The work may or may not have happened: ask again, the same proposal is committed once.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was asked.
        op: &'static str,
    },
    /// The registry is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Something that the answer needs has not come so far yet. Retry later.
    #[error("not ready: {gate}")]
    NotReady {
        /// What is not ready.
        gate: &'static str,
    },
    /// This node follows a log that another one commits to. Propose there.
    #[error("this log is only followed here")]
    ReadOnly,
    /// The head is not the one that the proposal expects. Look at this one, and propose again.
    #[error("the head is {head}")]
    ChainMismatch {
        /// The current head.
        head: Head,
    },
    /// The proposal, or the approval, does not fit the log as it is.
    #[error("refused: {0}")]
    Refused(Refused),
    /// The bytes are no proposal and no approval.
    #[error("not in form")]
    Form(#[from] FormError),
    /// The approval was not signed by its signer.
    #[error("the approval does not hold")]
    BadApproval(#[source] SignatureError),
    /// The store neither takes nor gives anything now. Nothing was committed; retry after the pause.
    #[error("the store is away: {message}")]
    StorageBusy {
        /// What it said.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The store failed to read, or cannot be opened.
    #[error(transparent)]
    Store(StoreError),
    /// What is in the store is not the log that it should be. Nothing is served from it.
    #[error("the log cannot be trusted: {message}")]
    Untrusted {
        /// What is wrong, and at which version.
        message: String,
    },
    /// There is no such entry yet.
    #[error("the log ends at version {head}")]
    NotFound {
        /// Where it ends.
        head: u64,
    },
    /// What was asked for was pruned. Start from what is left.
    #[error("the log begins at version {first}")]
    Lagging {
        /// The first that is left.
        first: u64,
    },
    /// There is no such part of a snapshot. Ask which snapshot there is now.
    #[error("no part {part} of a snapshot of version {version}")]
    NoSnapshot {
        /// The version that was asked for.
        version: u64,
        /// The part.
        part: u32,
    },
    /// No proof of this can be made.
    #[error("no proof")]
    Proof(#[source] ProofError),
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
}

impl RegistryError {
    /// That what the store has at `version` is not what should be there.
    pub(crate) fn untrusted_at(version: u64, what: impl Display) -> Self {
        RegistryError::Untrusted { message: format!("version {version}: {what}") }
    }
}

impl From<ConfigError> for RegistryError {
    fn from(error: ConfigError) -> Self {
        RegistryError::Config(error)
    }
}

ron_core::refusals!(RegistryError {
    RegistryError::StorageBusy { .. } | RegistryError::NotReady { .. } => ErrorKind::NotReady,
    RegistryError::ChainMismatch { .. }
    | RegistryError::ReadOnly
    | RegistryError::Refused(_)
    | RegistryError::Form(_)
    | RegistryError::BadApproval(_)
    | RegistryError::NotFound { .. }
    | RegistryError::Lagging { .. }
    | RegistryError::NoSnapshot { .. }
    | RegistryError::Proof(_)
    | RegistryError::Config(_) => ErrorKind::Caller,
    RegistryError::Store(error) => error.kind(),
    RegistryError::Untrusted { .. } => ErrorKind::Disk,
} retry { RegistryError::StorageBusy { retry_after, .. } => *retry_after });

/// How long a full set of pending proposals is expected to stay so: people decide, not machines.
const PENDING_RETRY: Duration = Duration::from_secs(1);

impl From<Refused> for RegistryError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::ChainMismatch { head } => RegistryError::ChainMismatch { head },
            Refused::Full { what } => RegistryError::Busy { what, retry_after: PENDING_RETRY },
            refused => RegistryError::Refused(refused),
        }
    }
}

impl From<StoreError> for RegistryError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy { what, retry_after } => {
                RegistryError::StorageBusy { message: format!("{what} is full"), retry_after }
            }
            StoreError::Timeout { op } => RegistryError::Timeout { op },
            StoreError::Canceled => RegistryError::Canceled,
            StoreError::Pruned { first } => RegistryError::Lagging { first },
            error => RegistryError::Store(error),
        }
    }
}

impl From<ProofError> for RegistryError {
    fn from(error: ProofError) -> Self {
        match error {
            ProofError::Pruned { minimum } => RegistryError::Lagging { first: minimum + 1 },
            error => RegistryError::Proof(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "could not prune: store" was all that a log said of a damaged entry: who writes an error down writes its words and not its
    /// causes, so what the store said is said.
    #[test]
    fn what_the_store_says_is_said() {
        let damaged = StoreError::Damaged { message: "version 5: a wrong sum".to_owned() };
        let error = RegistryError::from(damaged.clone());
        assert_eq!(error.to_string(), damaged.to_string());
    }
}
