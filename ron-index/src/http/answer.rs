//! Answers of our own: what a key leads to, and who has something.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use ron_core::http::{CorrId, Problem, Service, has_tag};
use serde::Serialize;

use super::{
    NDJSON,
    asking::{
        KeyPath, client, content, deadline, for_client, key_in, limit_and_explain, problem_of, wants_lines,
    },
    dto::{AnswerDto, ProviderDto, ProvidersDto, to_json},
    stream::lines,
};
use crate::{
    Answer, Index, Key, LIMIT_DEFAULT,
    handle::{Begun, Open},
    logic::cache::Staleness,
};

/// Says that an answer is not fresh, and why.
pub(super) const STALE: HeaderName = HeaderName::from_static("x-ron-stale");

/// Headers that an answer has, with what the server adds.
const HEADERS: usize = 8;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `GET /resolve/{key}`. What the cache knows is answered where it is asked for, without a future of its own and without a
/// handle of its own: that is nearly all that an index does.
#[derive(Clone)]
pub(super) struct Resolve(pub(super) Index);

/// Where the key of a request begins. What a host has put before it is gone when the request is here.
const RESOLVE: &str = "/resolve/";

impl Service<Request> for Resolve {
    type Response = Response;
    type Error = Infallible;
    type Future = Resolving;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Resolving {
        match begin(&self.0, &request) {
            Ok((question, Begun::Known(answer))) => {
                Resolving::Said(Some(question.answer(&self.0, &answer, &request)))
            }
            Ok((question, Begun::Open(open))) => {
                let index = for_client(self.0.clone(), &request);
                Resolving::Asking(Box::pin(question.go_on(index, open, request)))
            }
            Err(problem) => Resolving::Said(Some(problem.into_response())),
        }
    }
}

/// An answer that is there, or comes.
pub(super) enum Resolving {
    Said(Option<Response>),
    Asking(Pin<Box<dyn Future<Output = Response> + Send>>),
}

impl Future for Resolving {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Resolving::Said(response) => {
                Poll::Ready(Ok(response.take().expect("not polled after it was ready")))
            }
            Resolving::Asking(asking) => asking.as_mut().poll(cx).map(Ok),
        }
    }
}

/// What was asked.
struct Question {
    key: Key,
    limit: usize,
    explains: bool,
}

fn begin(index: &Index, request: &Request) -> Result<(Question, Begun), Problem> {
    let key = key_in(request.uri().path().strip_prefix(RESOLVE).unwrap_or_default())?;
    let (limit, explains) = limit_and_explain(request)?;
    let begun = index.begin(client(request), &key).map_err(|error| problem_of(&key, error))?;
    Ok((Question { key, limit, explains }, begun))
}

impl Question {
    async fn go_on(self, index: Index, open: Open, request: Request) -> Response {
        let deadline = deadline(&index.settings(), &request);
        match index.go_on(&self.key, open, deadline).await {
            Ok(answer) => self.answer(&index, &answer, &request),
            Err(error) => problem_of(&self.key, error).into_response(),
        }
    }

    fn answer(&self, index: &Index, answer: &Answer, request: &Request) -> Response {
        let rules = &index.inner().settings;
        // What nearly everybody asks for is written once for each answer.
        if self.limit == LIMIT_DEFAULT && !self.explains && answer.stale.is_none() {
            // Read before the rules are: what was made under others is never taken for what these would have made.
            let version = rules.version();
            let render = || Box::new(Rendered::new(answer, &rules.load().staleness(), version));
            let rendered = answer.entry.rendered.get_or_init(|| render());
            if let Some(response) = rendered
                .downcast_ref::<Rendered>()
                .and_then(|rendered| rendered.send(answer, version, request.headers()))
            {
                return response;
            }
        }
        let (body, etag) = render(&AnswerDto::of(answer, self.limit, self.explains));
        let control = cache_control(answer.ttl(), &rules.load().staleness());
        send(answer, control, request.headers(), body, etag)
    }
}

/// An answer with the usual number of providers, ready to be sent: its body and its head, but for what differs each time.
struct Rendered {
    body: Bytes,
    etag: HeaderValue,
    headers: HeaderMap,
    /// The settings that the head was made under, by their number.
    version: u64,
}

impl Rendered {
    fn new(answer: &Answer, staleness: &Staleness, version: u64) -> Self {
        let (body, etag) = render(&AnswerDto::of(answer, LIMIT_DEFAULT, false));
        let mut headers = head(answer, &etag, cache_control(answer.ttl(), staleness));
        headers.insert(header::CONTENT_TYPE, JSON);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        // There already, so that the server writes it into its place and the map need not grow. The guard takes it out where
        // the server is not ours.
        headers.insert(CorrId::HEADER, HeaderValue::from_static(""));
        Rendered { body, etag, headers, version }
    }

    /// Nothing if the client has it already, or if the rules are others by now.
    fn send(&self, answer: &Answer, version: u64, asked: &HeaderMap) -> Option<Response> {
        if self.version != version || has_tag(asked, &self.etag) {
            return None;
        }
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.headers_mut() = self.headers.clone();
        response.headers_mut().insert(header::AGE, seconds(answer.age));
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
pub(super) fn render(value: &impl Serialize) -> (Bytes, HeaderValue) {
    let body = Bytes::from(to_json(value));
    let hash = blake3::hash(&body).to_hex();
    let etag = Bytes::from(format!("\"{}\"", &hash[..32]));
    (body, HeaderValue::from_maybe_shared(etag).expect("quotes and digits are a header value"))
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

/// The numbers that ages nearly always are, with zeros before them.
static NUMBERS: [[u8; 3]; 1000] = {
    let (mut numbers, mut at) = ([[b'0'; 3]; 1000], 0);
    while at < numbers.len() {
        numbers[at] = [b'0' + (at / 100) as u8, b'0' + (at / 10 % 10) as u8, b'0' + (at % 10) as u8];
        at += 1;
    }
    numbers
};

/// How many seconds these are; of the first quarter of an hour without an allocation.
fn seconds(age: Duration) -> HeaderValue {
    let seconds = age.as_secs();
    let digits = usize::try_from(seconds).ok().and_then(|at| NUMBERS.get(at)).map(|digits| {
        let zeros = digits[..2].iter().take_while(|digit| **digit == b'0').count();
        &digits[zeros..]
    });
    match digits.and_then(|digits| std::str::from_utf8(digits).ok()) {
        Some(digits) => HeaderValue::from_static(digits),
        None => HeaderValue::from(seconds),
    }
}

/// What caches want to know.
fn head(answer: &Answer, etag: &HeaderValue, control: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(header::ETAG, etag.clone());
    headers.insert(header::CACHE_CONTROL, control);
    headers.insert(header::AGE, seconds(answer.age));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(stale) = answer.stale {
        headers.insert(STALE, HeaderValue::from_static(stale.name()));
    }
    headers
}

/// An answer with everything that caches want to know.
fn send(
    answer: &Answer,
    control: HeaderValue,
    asked: &HeaderMap,
    body: Bytes,
    etag: HeaderValue,
) -> Response {
    let mut headers = head(answer, &etag, control);
    let mut response = if has_tag(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        headers.insert(header::CONTENT_TYPE, JSON);
        Response::new(Body::from(body))
    };
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_without_zeros_before_them() {
        for age in (0..1100).chain([12_345]) {
            assert_eq!(seconds(Duration::from_secs(age)), age.to_string().as_str());
        }
    }
}
