//! Objects on their way in: the body as a stream that the store draws from, so that the socket is read no faster.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use futures_core::Stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Body as _;
use ron_core::{
    ContentId, Deadline,
    http::{Json, Problem, Query, deadline},
};
use serde::Serialize;

use super::{
    asking::{IdPath, for_client, id, lines},
    digest::Said,
    refusal::problem,
};
use crate::{
    Durability, Put, StorageError, Store, Stored,
    logic::range::{Conditions, Verdict},
};

/// The longest upload. The server cuts bodies that are too slow, and the store those that stand still; this is the end
/// that every wait has, and a day is a tebibyte at twelve mebibytes a second.
const PUT_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Serialize)]
struct StoredBody {
    id: String,
    cid: String,
    size: u64,
    /// What the answer stands for: `durable` or `buffered`.
    durability: &'static str,
    /// Whether it was here before.
    existed: bool,
}

pub(super) async fn put_object(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Response, Problem> {
    let (stored, location) = put_named(store, id(path)?, request, &[]).await?;
    Ok(stored_answer(&stored, location).1)
}

/// Takes an object that has to have this name. With where it is then.
pub(super) async fn put_named(
    store: Store,
    id: ContentId,
    request: Request,
    also: &[&'static str],
) -> Result<(Stored, String), Problem> {
    let until = deadline(&request);
    check_conditions(&store, id, request.headers(), until).await?;
    // Also one that somebody else put in the meantime: the object is what it should be, and not by this request.
    let creates_only = !lines(request.headers(), &header::IF_NONE_MATCH).is_empty();
    let stored = take(store, request, Some(id), also).await?;
    if stored.existed && creates_only {
        return Err(exists());
    }
    let location = format!("./{}", stored.id);
    Ok((stored, location))
}

fn exists() -> Problem {
    Problem::new(StatusCode::PRECONDITION_FAILED, "exists", "the object is here already")
}

/// What `If-Match` and `If-None-Match` say about a request that changes something: an object that is here has its name as its
/// tag, and one that is not has none.
pub(super) async fn check_conditions(
    store: &Store,
    id: ContentId,
    asked: &HeaderMap,
    until: Deadline,
) -> Result<(), Problem> {
    let (if_match, if_none_match) = (lines(asked, &header::IF_MATCH), lines(asked, &header::IF_NONE_MATCH));
    if if_match.is_empty() && if_none_match.is_empty() {
        return Ok(());
    }
    let conditions = Conditions { if_match: &if_match, if_none_match: &if_none_match, if_range: None };
    let is_here = store.has(id, until).await.map_err(problem)?;
    match conditions.judge(&format!("\"{id}\"")) {
        Verdict::NotModified if is_here => Err(exists()),
        verdict if verdict == Verdict::Failed || (!is_here && !if_match.is_empty()) => Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition",
            "there is no object with a tag that is named in if-match",
        )),
        _ => Ok(()),
    }
}

pub(super) async fn post_object(State(store): State<Store>, request: Request) -> Result<Response, Problem> {
    let stored = take(store, request, None, &[]).await?;
    let location = format!("o/{}", stored.id);
    Ok(stored_answer(&stored, location).1)
}

/// The answer, and what its body says. `location` is relative to where the request went, so that it holds wherever the routes
/// are mounted.
pub(super) fn stored_answer(stored: &Stored, location: String) -> (serde_json::Value, Response) {
    let body = StoredBody {
        id: stored.id.to_string(),
        cid: stored.id.to_cid(),
        size: stored.len,
        durability: match stored.durability {
            Durability::Durable => "durable",
            Durability::Buffered => "buffered",
        },
        existed: stored.existed,
    };
    let said = serde_json::to_value(&body).unwrap_or_default();
    let mut response = Json(body).into_response();
    *response.status_mut() = if stored.existed { StatusCode::OK } else { StatusCode::CREATED };
    let value = |text: String| HeaderValue::try_from(text).expect("a name is a header value");
    response.headers_mut().insert(header::LOCATION, value(location));
    response.headers_mut().insert(header::ETAG, value(format!("\"{}\"", stored.id)));
    (said, response)
}

/// Takes a body into the store. `also` are parameters that somebody else reads.
pub(super) async fn take(
    store: Store,
    request: Request,
    name: Option<ContentId>,
    also: &[&'static str],
) -> Result<Stored, Problem> {
    let query = Query::of(&request, &[&["pin", "durability"], also].concat())?;
    // RFC 9110, 14.5: who sends a part of something must not be told that the whole of it is stored.
    if request.headers().contains_key(header::CONTENT_RANGE) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "partial",
            "objects are not put in parts: send all of it, without content-range",
        ));
    }
    let durability = match query.get("durability") {
        None | Some("durable") => Durability::Durable,
        Some("buffered") => Durability::Buffered,
        Some(_) => return Err(Query::refusal("durability is durable or buffered")),
    };
    let said = Said::parse(&lines(request.headers(), &super::digest::HEADER)).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_digest", "content-digest is not understood")
            .detail(error.to_string())
    })?;
    // Two names for one body: the second is judged like the body itself, which cannot have both.
    if let (Some(expected), Some(actual)) = (name, said.id.filter(|said| Some(*said) != name)) {
        return Err(problem(StorageError::Mismatch { expected, actual }));
    }
    let len = request.body().size_hint().exact();
    let put = Put { durability, pin: query.flag("pin")?, expect: name.or(said.id), len };
    let limit = store.settings().object_bytes_max;
    if request.body().size_hint().lower() > limit {
        return Err(problem(StorageError::TooLarge { key: "object_bytes_max", limit }));
    }
    let store = for_client(store, &request);
    let broken = Arc::new(OnceLock::new());
    let source = Arriving { body: request.into_body(), said, broken: Arc::clone(&broken), ended: false };
    store.put_with(source, put, Deadline::after(PUT_MAX)).await.map_err(|error| match broken.get() {
        Some(Broken::Digest) => {
            Problem::new(StatusCode::CONFLICT, "digest_mismatch", "the body is not what content-digest says")
                .hint("nothing was kept")
        }
        _ => problem(error),
    })
}

/// Why a body ended before its end.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum Broken {
    #[error("the body broke off")]
    Body,
    #[error("the body is not what its digest says")]
    Digest,
}

/// A body as a stream. It ends with an error if it does not hash to what was said.
struct Arriving {
    body: Body,
    said: Said,
    broken: Arc<OnceLock<Broken>>,
    ended: bool,
}

impl Stream for Arriving {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let broken = loop {
            if this.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => {
                        this.said.update(&bytes);
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                    Err(_trailers) => {}
                },
                Some(Err(_)) => break Broken::Body,
                None if this.said.holds() => this.ended = true,
                None => break Broken::Digest,
            }
        };
        this.ended = true;
        let _ = this.broken.set(broken);
        Poll::Ready(Some(Err(broken)))
    }
}
