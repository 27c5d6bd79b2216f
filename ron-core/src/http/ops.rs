//! The routes that say how a program is: `/healthz`, `/readyz`, `/metrics`, `/version`.
//!
//! They answer from memory and wait for nothing, so that they answer when nothing else does.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{HeaderValue, StatusCode, header};
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::{Json, Problem, problem::whole_seconds};
use crate::{Affects, Ready, ReadyStatus};

/// When to ask again whether it is ready. Balancers ask every few seconds anyway.
const RETRY: Duration = Duration::from_secs(1);

/// Whether a path is one of these routes.
pub(super) fn is_ops(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics" | "/version")
}

/// What `/version` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VersionInfo {
    /// The program.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Where it was built from, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
}

impl VersionInfo {
    /// A program and its version, usually `env!("CARGO_PKG_NAME")` and `env!("CARGO_PKG_VERSION")`.
    #[must_use]
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        VersionInfo { name, version, revision: None }
    }

    /// The commit it was built from.
    #[must_use]
    pub const fn revision(mut self, revision: &'static str) -> Self {
        self.revision = Some(revision);
        self
    }
}

/// The health routes, for [`Builder::ops`](super::Builder::ops).
///
/// `/healthz` is 200 as long as anything answers at all. `/readyz` is 200 while reads are served and 503 otherwise;
/// `/readyz?writes` asks the same of writes. With `?verbose` it lists every gate with its reason and since when.
/// `/metrics` is the registry in the OpenMetrics text format, `/version` is JSON.
pub fn ops_router(ready: Ready, registry: Arc<Registry>, version: VersionInfo) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move |request: Request| readiness(&ready, request.uri().query())))
        .route("/metrics", get(async move || metrics(&registry)))
        .route("/version", get(async move || Json(version)))
}

#[derive(Serialize)]
struct Readiness {
    reads: bool,
    writes: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gates: Option<Vec<GateLine>>,
}

#[derive(Serialize)]
struct GateLine {
    name: String,
    affects: &'static str,
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    since_seconds: u64,
}

fn readiness(ready: &Ready, query: Option<&str>) -> Response {
    let status = ready.status();
    let asked = |word| query.is_some_and(|query| query.split('&').any(|part| part == word));
    let serves = if asked("writes") { status.writes } else { status.reads };
    let retry = (!serves).then(|| whole_seconds(RETRY));
    let told = Readiness {
        reads: status.reads,
        writes: status.writes,
        retry_after: retry,
        gates: asked("verbose").then(|| gates(&status)),
    };
    let mut response = Json(told).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn gates(status: &ReadyStatus) -> Vec<GateLine> {
    let line = |gate: &crate::GateStatus| GateLine {
        name: gate.name.to_string(),
        affects: match gate.affects {
            Affects::Writes => "writes",
            Affects::Reads => "reads",
        },
        open: gate.is_open(),
        reason: gate.reason.as_ref().map(ToString::to_string),
        since_seconds: gate.lasting.as_secs(),
    };
    status.gates.iter().map(line).collect()
}

/// Whether a part of a program can do its work, as its own routes say it: `ready` in the status of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReadyBody {
    /// Whether reads are served.
    pub reads: bool,
    /// Whether writes are.
    pub writes: bool,
    /// The gates that are closed.
    pub closed: Vec<ClosedBody>,
}

/// A gate that is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClosedBody {
    /// Its name.
    pub gate: String,
    /// Why it is closed.
    pub reason: String,
}

impl From<ReadyStatus> for ReadyBody {
    fn from(status: ReadyStatus) -> Self {
        let closed = status.gates.iter().filter_map(|gate| {
            let reason = gate.reason.as_ref()?.to_string();
            Some(ClosedBody { gate: gate.name.to_string(), reason })
        });
        ReadyBody { reads: status.reads, writes: status.writes, closed: closed.collect() }
    }
}

fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    if let Err(error) = prometheus_client::encoding::text::encode(&mut text, registry) {
        tracing::error!(%error, "a metric cannot be written");
        return Problem::panicked().into_response();
    }
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
