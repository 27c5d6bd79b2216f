//! Answers of our own: what a key leads to, and who has something.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use ron_core::http::{CorrId, Problem};
use serde::Serialize;

use super::{
    NDJSON,
    asking::{KeyPath, content, deadline, for_client, has, key, limit_and_explain, problem_of, wants_lines},
    dto::{AnswerDto, ProviderDto, ProvidersDto, to_json},
    stream::lines,
};
use crate::{Answer, Index, LIMIT_DEFAULT, logic::cache::Staleness};

/// Says that an answer is not fresh, and why.
pub(super) const STALE: HeaderName = HeaderName::from_static("x-ron-stale");

/// Headers that an answer has, with what the server adds.
const HEADERS: usize = 8;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `GET /resolve/{key}`.
pub(super) async fn resolve(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let key = key(path)?;
    let (limit, explains) = limit_and_explain(&request)?;
    let settings = index.settings();
    let deadline = deadline(&settings, &request);
    let answer = for_client(index, &request).resolve(&key, deadline).await;
    let answer = answer.map_err(|error| problem_of(&key, error))?;
    // What nearly everybody asks for is written once for each answer.
    if limit == LIMIT_DEFAULT && !explains && answer.stale.is_none() {
        let rendered =
            answer.entry.rendered.get_or_init(|| Box::new(Rendered::new(&answer, &settings.staleness())));
        if let Some(response) = rendered
            .downcast_ref::<Rendered>()
            .and_then(|rendered| rendered.send(&answer, &settings.staleness(), request.headers()))
        {
            return Ok(response);
        }
    }
    let (body, etag) = render(&AnswerDto::of(&answer, limit, explains));
    let control = cache_control(answer.ttl(), &settings.staleness());
    Ok(send(&answer, control, request.headers(), body, etag))
}

/// An answer with the usual number of providers, ready to be sent: its body and its head, but for what differs each time.
struct Rendered {
    body: Bytes,
    etag: HeaderValue,
    headers: HeaderMap,
    /// The rules that the head was made under.
    staleness: Staleness,
}

impl Rendered {
    fn new(answer: &Answer, staleness: &Staleness) -> Self {
        let (body, etag) = render(&AnswerDto::of(answer, LIMIT_DEFAULT, false));
        let etag = header_value(etag);
        let mut headers = head(answer, &etag, cache_control(answer.ttl(), staleness));
        headers.insert(header::CONTENT_TYPE, JSON);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        // There already, so that the server writes it into its place and the map need not grow.
        headers.insert(CorrId::HEADER, HeaderValue::from_static(""));
        Rendered { body, etag, headers, staleness: *staleness }
    }

    /// Nothing if the client has it already, or if the rules are others by now.
    fn send(&self, answer: &Answer, staleness: &Staleness, asked: &HeaderMap) -> Option<Response> {
        if self.staleness != *staleness || has(asked, &self.etag) {
            return None;
        }
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.headers_mut() = self.headers.clone();
        response.headers_mut().insert(header::AGE, HeaderValue::from(answer.age.as_secs()));
        Some(response)
    }
}

/// `GET /providers/{id}`.
pub(super) async fn providers(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let content = content(path)?;
    let (limit, explains) = limit_and_explain(&request)?;
    let settings = index.settings();
    let deadline = deadline(&settings, &request);
    let ours = for_client(index, &request);
    if wants_lines(request.headers()) {
        let refused = |error| problem_of(&content, error);
        let found = ours.find(&content, limit, deadline).map_err(refused)?;
        let write = |provider: &_, source| line(&ProviderDto::of(provider, source));
        let mut response = lines(found, write).await.map_err(refused)?;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::VARY, HeaderValue::from_static("accept"));
        return Ok(response);
    }
    let answer = ours.resolve(&content, deadline).await.map_err(|error| problem_of(&content, error))?;
    let (body, etag) = render(&ProvidersDto::of(&answer, limit, explains));
    let control = cache_control(answer.ttl(), &settings.staleness());
    Ok(send(&answer, control, request.headers(), body, etag))
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
pub(super) fn cache_control(ttl: Duration, staleness: &Staleness) -> HeaderValue {
    let text = format!(
        "public, max-age={}, stale-while-revalidate={}, stale-if-error={}",
        ttl.as_secs(),
        staleness.while_revalidate.as_secs(),
        staleness.if_error.as_secs()
    );
    HeaderValue::try_from(text).expect("digits and letters are a header value")
}

fn header_value(text: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).expect("it was one before")
}

/// What caches want to know.
fn head(answer: &Answer, etag: &HeaderValue, control: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(header::ETAG, etag.clone());
    headers.insert(header::CACHE_CONTROL, control);
    headers.insert(header::AGE, HeaderValue::from(answer.age.as_secs()));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(stale) = answer.stale {
        headers.insert(STALE, HeaderValue::from_static(stale.name()));
    }
    headers
}

/// An answer with everything that caches want to know.
fn send(answer: &Answer, control: HeaderValue, asked: &HeaderMap, body: Bytes, etag: Bytes) -> Response {
    let etag = header_value(etag);
    let mut headers = head(answer, &etag, control);
    let mut response = if has(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        headers.insert(header::CONTENT_TYPE, JSON);
        Response::new(Body::from(body))
    };
    *response.headers_mut() = headers;
    response
}
