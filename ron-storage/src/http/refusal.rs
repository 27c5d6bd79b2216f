//! What a client is told when the store refuses.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, header};
use ron_core::http::Problem;

use crate::{StorageError, logic::range::RangeError};

/// The problem that stands for `error`.
pub(super) fn problem(error: StorageError) -> Problem {
    let words = error.to_string();
    let told = |status, code, title| Problem::new(status, code, title).detail(words);
    match error {
        StorageError::NotFound { .. } => {
            told(StatusCode::NOT_FOUND, "no_such_object", "there is no such object here")
        }
        StorageError::Mismatch { .. } => {
            told(StatusCode::CONFLICT, "mismatch", "the body is another object").hint("nothing was kept")
        }
        StorageError::Corrupt { .. } => {
            told(StatusCode::INTERNAL_SERVER_ERROR, "damaged", "the object is damaged and not served")
                .hint("ask another node, or put it again, which mends it")
        }
        StorageError::Range { .. } => told(StatusCode::RANGE_NOT_SATISFIABLE, "range", "no such range"),
        StorageError::Full => told(StatusCode::INSUFFICIENT_STORAGE, "disk_full", "the storage is full")
            .hint("free space, or delete objects; reads go on"),
        StorageError::Quota { .. } => told(StatusCode::INSUFFICIENT_STORAGE, "quota", "the storage is full")
            .hint("delete objects, or let its owner raise the limit; reads go on"),
        StorageError::TooLarge { .. } => {
            told(StatusCode::PAYLOAD_TOO_LARGE, "object_too_large", "the object is larger than is taken here")
        }
        StorageError::Pinned { .. } => {
            told(StatusCode::CONFLICT, "pinned", "the object is pinned").hint("unpin it first")
        }
        StorageError::Claimed { .. } => {
            told(StatusCode::CONFLICT, "claimed", "the object is claimed").hint("its owners delete it")
        }
        StorageError::Unacknowledged { .. } => {
            told(StatusCode::SERVICE_UNAVAILABLE, "unacknowledged", "fewer nodes have it than were asked for")
                .hint("it is kept here and copied when others answer; putting it again is harmless")
        }
        StorageError::Unreached { .. } => {
            told(StatusCode::SERVICE_UNAVAILABLE, "unreached", "no node that answers has the object")
                .hint("ask again when nodes are back: GET /keeping/status says which are away")
        }
        StorageError::Claim { .. } => told(StatusCode::BAD_REQUEST, "claim", "the claim was not taken"),
        StorageError::Source { .. } => told(StatusCode::BAD_REQUEST, "body", "the body ended before its end"),
        failed @ StorageError::Disk { .. } => Problem::from(failed).hint(
            "reads go on; after a failed write the node takes no more of them until its disk is looked at and it is restarted",
        ),
        other => Problem::from(other),
    }
}

/// That the ranges of a request are not answered. It says how long the object is, as the RFC wants.
pub(super) fn no_range(error: RangeError, len: u64) -> Response {
    let problem = Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range", "no such range")
        .detail(error.to_string())
        .hint("up to sixteen ranges, none twice, inside the object");
    let mut response = problem.into_response();
    let total = HeaderValue::try_from(format!("bytes */{len}")).expect("digits are a header value");
    response.headers_mut().insert(header::CONTENT_RANGE, total);
    response
}
