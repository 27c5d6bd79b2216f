//! What a client is told when it does not get what it asked for: RFC 9457 `application/problem+json`.
//!
//! The mapping from a refusal to a status is here and nowhere else, so a host that has learnt it for one subsystem
//! knows it for all. What went wrong inside (a disk, a bug) is logged and not told: its words may hold paths.

use std::{any::Any, error::Error, io, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::{CorrId, causes};
use crate::{BreakerOpen, ErrorKind, Refusal};

/// Told to wait when nobody knows better: long enough not to be a busy loop.
const RETRY_DEFAULT: Duration = Duration::from_secs(1);

/// A refusal on its way to the client. Return it as the error of a handler.
///
/// ```
/// use ron_core::{CallError, http::Problem};
///
/// let problem = Problem::from(CallError::Canceled);
/// assert_eq!((problem.status().as_u16(), problem.code()), (503, "canceled"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: Option<String>,
    hint: Option<&'static str>,
    retryable: bool,
    retry_after: Option<Duration>,
    corr: Option<CorrId>,
}

impl Problem {
    /// A problem that no [`Refusal`] stands behind. `code` is for programs and stays the same for ever, `title` for
    /// people.
    #[must_use]
    pub const fn new(status: StatusCode, code: &'static str, title: &'static str) -> Self {
        Problem {
            status,
            code,
            title,
            detail: None,
            hint: None,
            retryable: false,
            retry_after: None,
            corr: None,
        }
    }

    /// What is special about this occurrence.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// What the client can do about it.
    #[must_use]
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Another status than the kind of the refusal has, for example 404 instead of 400. Code and title follow the
    /// caller's words.
    #[must_use]
    pub fn as_status(mut self, status: StatusCode, code: &'static str, title: &'static str) -> Self {
        (self.status, self.code, self.title) = (status, code, title);
        self
    }

    /// That the same request may succeed after `pause`.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        (self.retryable, self.retry_after) = (true, Some(pause));
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// No place for this connection: 503 and not 429, because it is not this client's doing.
    pub(super) fn crowded() -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "crowded", "too many connections")
            .retry_after(RETRY_DEFAULT)
    }

    /// Retryable, although not here: behind a balancer the next attempt meets another node.
    pub(super) fn draining() -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "shutting down")
            .hint("this node takes no new work; ask another one")
            .retry_after(RETRY_DEFAULT)
    }

    pub(super) fn timeout() -> Self {
        let (status, code, title) = of_kind(ErrorKind::Timeout);
        let mut problem = Problem::new(status, code, title);
        problem.retryable = true;
        problem
    }

    pub(super) fn panicked() -> Self {
        let (status, code, title) = of_kind(ErrorKind::Bug);
        Problem::new(status, code, title)
    }

    pub(super) fn body_too_large() -> Self {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            "the body is larger than this route takes",
        )
    }

    pub(super) fn slow_body() -> Self {
        let mut problem = Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", "the body came too slowly");
        problem.retryable = true;
        problem
    }

    pub(super) fn malformed(detail: &'static str) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", "not a well-formed request").detail(detail)
    }

    pub(super) fn of_status(status: StatusCode) -> Option<Self> {
        Some(match status {
            StatusCode::NOT_FOUND => Problem::new(status, "not_found", "there is nothing here"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Problem::new(status, "method_not_allowed", "not with this method")
            }
            _ => return None,
        })
    }

    /// Ties it to the request it answers.
    pub(super) fn with_corr(mut self, corr: CorrId) -> Self {
        self.corr = Some(corr);
        self
    }

    fn retry_seconds(&self) -> Option<u64> {
        let told = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        told.then(|| whole_seconds(self.retry_after.unwrap_or(RETRY_DEFAULT)))
    }

    /// The body, in the order a reader wants.
    pub(super) fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Wire<'a> {
            r#type: &'a str,
            title: &'a str,
            status: u16,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: Option<&'a str>,
            code: &'a str,
            retryable: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            corr_id: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            hint: Option<&'a str>,
        }
        let wire = Wire {
            // A URI that resolves would promise a page; this one only names.
            r#type: &format!("urn:ron:problem:{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: self.detail.as_deref(),
            code: self.code,
            retryable: self.retryable,
            corr_id: self.corr.map(|corr| corr.to_string()),
            hint: self.hint,
        };
        serde_json::to_vec(&wire).expect("strings and numbers always serialise")
    }
}

/// Rounded up, and at least one: a client told to wait nothing comes back at once.
pub(super) fn whole_seconds(pause: Duration) -> u64 {
    (pause.as_secs() + u64::from(pause.subsec_nanos() > 0)).max(1)
}

fn of_kind(kind: ErrorKind) -> (StatusCode, &'static str, &'static str) {
    match kind {
        ErrorKind::Busy => (StatusCode::TOO_MANY_REQUESTS, "busy", "too much at once"),
        ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout", "not done in time"),
        ErrorKind::Canceled => (StatusCode::SERVICE_UNAVAILABLE, "canceled", "shutting down"),
        ErrorKind::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "not_ready", "not able to answer yet"),
        ErrorKind::Caller => (StatusCode::BAD_REQUEST, "bad_request", "the request cannot be fulfilled"),
        ErrorKind::Peer => (StatusCode::BAD_GATEWAY, "peer", "a remote side failed"),
        ErrorKind::Disk => (StatusCode::SERVICE_UNAVAILABLE, "disk", "the storage refused"),
        ErrorKind::Bug => (StatusCode::INTERNAL_SERVER_ERROR, "bug", "our mistake"),
    }
}

impl<E: Refusal + 'static> From<E> for Problem {
    fn from(error: E) -> Self {
        let kind = error.kind();
        let (status, code, title) = of_kind(kind);
        let mut problem = Problem::new(status, code, title);
        problem.retryable = kind.is_retryable();
        problem.retry_after = error.retry_after();
        match kind {
            ErrorKind::Disk | ErrorKind::Bug => {
                tracing::error!(error = chain(&error), code, "request failed");
            }
            _ => problem.detail = Some(error.to_string()),
        }
        if (&error as &dyn Any).is::<BreakerOpen>() {
            (problem.code, problem.title) = ("breaker_open", "a part this needs keeps failing");
        }
        if kind == ErrorKind::Disk && is_full(&error) {
            let (status, code) = (StatusCode::INSUFFICIENT_STORAGE, "disk_full");
            return problem.as_status(status, code, "the storage is full");
        }
        problem
    }
}

fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Whether the operating system said so, anywhere in the chain.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    causes(error).filter_map(|error| error.downcast_ref::<io::Error>()).any(|error| full(error.kind()))
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_seconds() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Kept beside the rendered form: the server knows the correlation and writes it in.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;
    use crate::CallError;

    #[derive(Debug, thiserror::Error)]
    #[error("went wrong")]
    struct Of(ErrorKind, #[source] Option<io::Error>);

    impl Refusal for Of {
        fn kind(&self) -> ErrorKind {
            self.0
        }
    }

    fn check(error: impl Refusal + 'static, status: u16, code: &str, retry: Option<&str>, retryable: bool) {
        let response = Problem::from(error).into_response();
        let problem = response.extensions().get::<Problem>().expect("kept").clone();
        assert_eq!((response.status().as_u16(), problem.code, problem.retryable), (status, code, retryable));
        let told = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().expect("digits"));
        assert_eq!(told, retry, "{code}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body: serde_json::Value = serde_json::from_slice(&problem.to_json()).expect("JSON");
        assert_eq!(body["status"], status);
        assert_eq!(body["code"], code);
        assert_eq!(body["type"], format!("urn:ron:problem:{code}"));
    }

    #[test]
    fn each_kind_has_its_status() {
        let busy = |millis| CallError::Busy { what: "work", retry_after: Duration::from_millis(millis) };
        check(busy(50), 429, "busy", Some("1"), true);
        check(busy(1_001), 429, "busy", Some("2"), true);
        check(busy(0), 429, "busy", Some("1"), true);
        check(CallError::Timeout { op: "find" }, 504, "timeout", None, true);
        check(CallError::Canceled, 503, "canceled", Some("1"), false);
        check(CallError::Panicked { op: "find" }, 500, "bug", None, false);
        check(
            BreakerOpen { retry_after: Duration::from_millis(2_500) },
            503,
            "breaker_open",
            Some("3"),
            true,
        );
        check(Of(ErrorKind::NotReady, None), 503, "not_ready", Some("1"), true);
        check(Of(ErrorKind::Caller, None), 400, "bad_request", None, false);
        check(Of(ErrorKind::Peer, None), 502, "peer", None, true);
        check(Of(ErrorKind::Disk, None), 503, "disk", Some("1"), false);
        check(Of(ErrorKind::Disk, Some(io::ErrorKind::StorageFull.into())), 507, "disk_full", None, false);
        check(Of(ErrorKind::Bug, None), 500, "bug", None, false);
    }

    #[test]
    fn what_broke_inside_is_not_told() {
        let secret = io::Error::other("/home/somebody/blobs/7");
        let told = Problem::from(Of(ErrorKind::Disk, Some(secret))).to_json();
        assert!(!String::from_utf8_lossy(&told).contains("somebody"));
    }

    #[test]
    fn a_handler_may_know_better_than_the_kind() {
        let problem = Problem::from(Of(ErrorKind::Caller, None)).as_status(
            StatusCode::NOT_FOUND,
            "no_such_object",
            "there is no such object",
        );
        assert_eq!(problem.into_response().status(), StatusCode::NOT_FOUND);
    }
}
