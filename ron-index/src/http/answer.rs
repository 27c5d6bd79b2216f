//! Answers of our own: what a key leads to, and who has something.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use ron_core::http::Problem;
use serde::Serialize;

use super::{
    NDJSON,
    asking::{KeyPath, Query, content, deadline, for_client, has, key, problem, wants_lines},
    dto::{AnswerDto, ProviderDto, ProvidersDto, to_json},
    stream::lines,
};
use crate::{Answer, Index, LIMIT_DEFAULT, Settings};

/// Says that an answer is not fresh, and why.
pub(super) const STALE: HeaderName = HeaderName::from_static("x-ron-stale");

/// `GET /resolve/{key}`.
pub(super) async fn resolve(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let key = key(path)?;
    let query = Query::of(&request, &["limit", "explain"])?;
    let (limit, explains) = (query.limit()?, query.flag("explain")?);
    let deadline = deadline(&index, &request);
    let answer = for_client(&index, &request).resolve(&key, deadline).await.map_err(problem)?;
    let settings = index.settings();
    // What nearly everybody asks for is written once for each answer.
    if limit == LIMIT_DEFAULT && !explains && answer.stale.is_none() {
        let (body, etag) =
            answer.entry.rendered.get_or_init(|| render(&AnswerDto::of(&answer, limit, false)));
        return Ok(send(&answer, &settings, request.headers(), body.clone(), etag.clone()));
    }
    let (body, etag) = render(&AnswerDto::of(&answer, limit, explains));
    Ok(send(&answer, &settings, request.headers(), body, etag))
}

/// `GET /providers/{id}`.
pub(super) async fn providers(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let content = content(path)?;
    let query = Query::of(&request, &["limit", "explain"])?;
    let (limit, explains) = (query.limit()?, query.flag("explain")?);
    let deadline = deadline(&index, &request);
    let ours = for_client(&index, &request);
    if wants_lines(request.headers()) {
        let found = ours.find(&content, limit, deadline).map_err(problem)?;
        let write = |provider: &_, source| line(&ProviderDto::of(provider, source));
        let mut response = lines(found, write).await.map_err(problem)?;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::VARY, HeaderValue::from_static("accept"));
        return Ok(response);
    }
    let answer = ours.resolve(&content, deadline).await.map_err(problem)?;
    let (body, etag) = render(&ProvidersDto::of(&answer, limit, explains));
    Ok(send(&answer, &index.settings(), request.headers(), body, etag))
}

/// One line.
pub(super) fn line(value: &impl Serialize) -> Bytes {
    let mut line = to_json(value);
    line.push(b'\n');
    line.into()
}

/// The body and its tag.
pub(super) fn render(value: &impl Serialize) -> (Bytes, Bytes) {
    let body = Bytes::from(to_json(value));
    let hash = blake3::hash(&body).to_hex();
    let etag = Bytes::from(format!("\"{}\"", &hash[..32]));
    (body, etag)
}

/// How long others may keep it.
pub(super) fn cache_control(ttl: Duration, settings: &Settings) -> HeaderValue {
    let text = format!(
        "public, max-age={}, stale-while-revalidate={}, stale-if-error={}",
        ttl.as_secs(),
        settings.stale_while_revalidate.as_secs(),
        settings.stale_if_error.as_secs()
    );
    HeaderValue::try_from(text).expect("digits and letters are a header value")
}

/// An answer with everything that caches want to know.
fn send(answer: &Answer, settings: &Settings, asked: &HeaderMap, body: Bytes, etag: Bytes) -> Response {
    let etag = HeaderValue::from_maybe_shared(etag).expect("hex digits are a header value");
    let is_known = has(asked, &etag);
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(Body::from(body));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag);
    headers.insert(header::CACHE_CONTROL, cache_control(answer.ttl(), settings));
    headers.insert(header::AGE, HeaderValue::from(answer.age.as_secs()));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(stale) = answer.stale {
        headers.insert(STALE, HeaderValue::from_static(stale.name()));
    }
    response
}
