//! What a request says beside its body: whose it is, and which object.

use axum::extract::{Path, Request, rejection::PathRejection};
use http::{HeaderMap, HeaderName, StatusCode};
use ron_core::{
    ContentId,
    http::{ClientAddr, Problem, accepts},
};

use super::BAO;
use crate::Store;

/// A request's id, or why it is none.
pub(super) type IdPath = Result<Path<String>, PathRejection>;

pub(super) fn id(path: IdPath) -> Result<ContentId, Problem> {
    let refused = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_id", "this is no name of an object")
            .detail(detail)
            .hint("`b3:` and 64 lowercase hex digits, or a CIDv1 of raw bytes and BLAKE3")
    };
    let Path(text) = path.map_err(|_| refused("it is not text".to_owned()))?;
    ContentId::parse_any(&text).map_err(|error| refused(error.to_string()))
}

/// The store as the client of this request may use it.
pub(super) fn for_client(store: Store, request: &Request) -> Store {
    match request.extensions().get::<ClientAddr>() {
        Some(client) => store.for_client(client.key()),
        None => store,
    }
}

/// Whether the client asks for a proof by name.
pub(super) fn wants_proof(headers: &HeaderMap) -> bool {
    accepts(headers, BAO)
}

/// All lines of a header.
pub(super) fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a [u8]> {
    headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
}
