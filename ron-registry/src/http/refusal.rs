//! What a client is told when the registry refuses.

use http::StatusCode;
use ron_core::http::Problem;

use crate::{FormError, Refused, RegistryError, store::StoreError};

/// Bytes that are not what they should be.
pub(super) fn form(what: &str, error: &FormError) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_form", "the bytes are not what they should be")
        .detail(format!("{what}: {error}"))
}

/// The problem that stands for `error`.
pub(super) fn problem(error: RegistryError) -> Problem {
    let words = error.to_string();
    let told = |status, code, title| Problem::new(status, code, title).detail(&*words);
    match error {
        RegistryError::ChainMismatch { .. } => {
            told(StatusCode::CONFLICT, "chain_mismatch", "the head is another")
                .hint("look at the head, and propose again")
        }
        RegistryError::Refused(refused) => of_refused(&refused, &words),
        RegistryError::Form(error) => form("request", &error),
        RegistryError::BadApproval(_) => {
            told(StatusCode::BAD_REQUEST, "bad_signature", "the approval does not hold")
        }
        RegistryError::NotFound { .. } => told(StatusCode::NOT_FOUND, "no_such_entry", "it is not there yet"),
        RegistryError::NoSnapshot { .. } => {
            told(StatusCode::NOT_FOUND, "no_snapshot", "there is no such part")
                .hint("ask which snapshot there is now")
        }
        RegistryError::Lagging { .. } => told(StatusCode::GONE, "pruned", "it is not kept any more")
            .hint("go on from the first that is left"),
        RegistryError::ReadOnly => told(StatusCode::CONFLICT, "read_only", "this node follows another one")
            .hint("propose to the node whose log it is"),
        RegistryError::Store(StoreError::NoSpace) => {
            told(StatusCode::INSUFFICIENT_STORAGE, "disk_full", "the storage is full")
        }
        // What the store said is for its owner.
        RegistryError::StorageBusy { retry_after, .. } => {
            tracing::warn!(words, "refused");
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "storage_busy",
                "the store takes or gives nothing now",
            )
            .retry_after(retry_after)
        }
        other => Problem::from(other),
    }
}

fn of_refused(refused: &Refused, words: &str) -> Problem {
    let told = |status, code, title| Problem::new(status, code, title).detail(words);
    match refused {
        Refused::NameMoved { .. } | Refused::NotBound { .. } => {
            told(StatusCode::CONFLICT, "name_moved", "the name stands for something else by now")
                .hint("look at the name, and propose again")
        }
        Refused::WrongEpoch { .. } => {
            told(StatusCode::CONFLICT, "wrong_epoch", "the policy is another by now")
                .hint("propose again under the policy there is")
        }
        Refused::Beginning { .. } => told(StatusCode::CONFLICT, "beginning", "not at this point of the log"),
        Refused::Expired { .. } => told(StatusCode::CONFLICT, "expired", "its time is over"),
        Refused::QuorumNotMet { .. } => {
            told(StatusCode::CONFLICT, "quorum_not_met", "not enough signers have approved")
        }
        Refused::NotASigner { .. } | Refused::SignerExpired { .. } => {
            told(StatusCode::FORBIDDEN, "not_a_signer", "this key does not decide here")
        }
        Refused::NotPermitted { .. } => {
            told(StatusCode::FORBIDDEN, "not_permitted", "the policy lets nobody decide this")
        }
        Refused::UnknownProposal => {
            told(StatusCode::NOT_FOUND, "no_such_proposal", "no such proposal waits here")
        }
        _ => told(StatusCode::BAD_REQUEST, "refused", "it does not fit the log"),
    }
}
