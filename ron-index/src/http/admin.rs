//! Changes: looking up again, pinning, forgetting. And how the index is doing.

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use ron_core::{
    BreakerState, Deadline,
    auth::Grant,
    http::{Json, Problem, Query, collect},
};
use serde::Serialize;

use super::{
    asking::{KeyPath, deadline, key, problem, problem_of},
    dto::{AnswerDto, PinDto, PurgeDto, PurgedDto, SourceDto, StatusDto, to_json},
    idempotency::{Idempotency, Turn},
};
use crate::{Index, Key, LIMIT_DEFAULT};

/// Says that an answer is that of an earlier request with the same key.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What the routes that change something share.
#[derive(Clone)]
pub(super) struct Admin {
    index: Index,
    idempotency: Idempotency,
}

impl Admin {
    pub(super) fn new(index: &Index) -> Self {
        Admin { index: index.clone(), idempotency: Idempotency::new(&index.inner().metrics) }
    }

    /// Does `work` once for each idempotency key.
    async fn once<T: Serialize>(
        &self,
        request: &Asked,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<Response, Problem> {
        let running = match self.idempotency.begin(&request.subject, &request.headers, request.what)? {
            Turn::Again(status, body) => {
                let mut response = answer(status, body);
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
                return Ok(response);
            }
            Turn::First(running) => running,
        };
        let done = work.await?;
        let body = Bytes::from(to_json(&done));
        if let Some(running) = running {
            running.done(StatusCode::OK, &body);
        }
        Ok(answer(StatusCode::OK, body))
    }
}

/// What identifies a change.
struct Asked {
    subject: String,
    headers: http::HeaderMap,
    what: [u8; 32],
    deadline: Deadline,
}

impl Asked {
    fn of(index: &Index, request: &Request, body: &[u8]) -> Self {
        let subject =
            request.extensions().get::<Grant>().map_or(String::new(), |grant| grant.subject.to_string());
        let mut hasher = blake3::Hasher::new();
        for part in [request.method().as_str().as_bytes(), request.uri().path().as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Asked {
            subject,
            headers: request.headers().clone(),
            what: *hasher.finalize().as_bytes(),
            deadline: deadline(&index.settings(), request),
        }
    }
}

fn answer(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// `POST /reindex/{key}`.
pub(super) async fn reindex(
    State(admin): State<Admin>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let key = key(path)?;
    Query::of(&request, &[])?;
    let asked = Asked::of(&admin.index, &request, b"");
    let work = async {
        let answer = admin.index.reindex(&key, asked.deadline).await;
        let answer = answer.map_err(|error| problem_of(&key, error))?;
        Ok(AnswerDto::of(&answer, LIMIT_DEFAULT, false))
    };
    admin.once(&asked, work).await
}

/// `PUT /pins/{key}`.
pub(super) async fn pin(
    State(admin): State<Admin>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    change_pin(&admin, key(path)?, true, request).await
}

/// `DELETE /pins/{key}`.
pub(super) async fn unpin(
    State(admin): State<Admin>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    change_pin(&admin, key(path)?, false, request).await
}

async fn change_pin(admin: &Admin, key: Key, pinned: bool, request: Request) -> Result<Response, Problem> {
    Query::of(&request, &[])?;
    let asked = Asked::of(&admin.index, &request, b"");
    let work = async {
        let changed = if pinned {
            admin.index.pin(&key, asked.deadline).await
        } else {
            admin.index.unpin(&key, asked.deadline).await
        };
        let changed = changed.map_err(|error| problem_of(&key, error))?;
        Ok(PinDto { key: key.to_string(), pinned, changed })
    };
    admin.once(&asked, work).await
}

/// `POST /purge`.
pub(super) async fn purge(State(admin): State<Admin>, request: Request) -> Result<Response, Problem> {
    Query::of(&request, &[])?;
    let is_json = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| {
        kind.to_str().is_ok_and(|kind| {
            kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
        })
    });
    if !is_json {
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", "this route takes JSON")
            .hint("send `content-type: application/json`"));
    }
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let body = collect(request).await?;
    let request = Request::from_parts(parts, Body::empty());
    let keys = PurgeDto::read(&body).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_body", "the body is not what it should be")
            .detail(error.to_string())
    })?;
    let asked = Asked::of(&admin.index, &request, &body);
    let work = async {
        let Some(keys) = keys else {
            admin.index.clear(asked.deadline).await.map_err(problem)?;
            return Ok(PurgedDto { purged: None });
        };
        let mut purged = 0;
        for key in &keys {
            purged += usize::from(admin.index.purge(key, asked.deadline).await.map_err(problem)?);
        }
        Ok(PurgedDto { purged: Some(purged) })
    };
    admin.once(&asked, work).await
}

/// `GET /status`.
pub(super) async fn status(State(index): State<Index>, request: Request) -> Result<Json<StatusDto>, Problem> {
    Query::of(&request, &[])?;
    let status = index.status();
    let source = |(name, state): (&'static str, BreakerState)| SourceDto {
        name,
        breaker: match state {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        },
    };
    Ok(Json(StatusDto {
        entries: status.entries,
        bytes: status.bytes,
        lookups: status.lookups,
        waiting: status.waiting,
        hedge_delay_ms: u64::try_from(status.hedge_delay.as_millis()).unwrap_or(u64::MAX),
        sources: status.sources.into_iter().map(source).collect(),
    }))
}
