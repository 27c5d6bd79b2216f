//! Serving HTTP that slow or hostile clients cannot hurt (feature `http`).
//!
//! A host builds an [`axum::Router`] and gives it to a [`Server`]. What the server sees to by itself:
//!
//! | Against | What holds |
//! |---|---|
//! | too many connections | [`Settings::connections_max`] in all, [`Settings::connections_per_client`] for one address or IPv6 /64; beyond that only the lobby |
//! | slow heads, slow bodies, slow readers | a head within [`Settings::head_timeout`], bodies and responses at [`Settings::bytes_per_second_min`] while we wait for them |
//! | large heads | 414 and 431, decided while they come |
//! | smuggled requests | whatever two readers could read differently is refused and the connection closed; a chunked request is the last of its connection |
//! | large bodies | [`Settings::body_bytes_max`] plain bytes, or what the route's [`Guard`] says |
//! | work without end | [`Settings::deadline`], found by the handler as a [`Deadline`](crate::Deadline) in the request's extensions |
//! | panics | a 500, counted; the connection's other requests go on |
//!
//! Only HTTP/1.1 is spoken. HTTP/2 multiplies what one connection may ask for, and nothing here needs it.
//!
//! # Health answers first
//!
//! The routes of [`ops_router`] are no part of the host's router and pass none of its limits. A connection beyond the
//! caps is not closed but let into a lobby of [`Settings::lobby`] places, where only these routes are answered, once,
//! and everything else is 503. When the lobby is full the one who waited longest makes place. So a health check is
//! answered while the seats are full of silent connections.
//!
//! # Stopping
//!
//! When the supervisor asks: connections without a request are closed at once; requests that have begun are finished,
//! and their connections closed; new requests get 503 `draining`, except for the health routes. The listener stays
//! open for those, and only for those, until the last request is done or the drain deadline cuts it: `/readyz` says
//! 503 from the first moment, `/healthz` 200 to the last.
//!
//! An answer without an end, such as a stream of events, would hold the drain up: the [`Stop`](crate::Stop) in the
//! request's extensions tells its handler when to end it. A connection that is to go on as something else after an answer
//! of 101 has its new owner in the [`Upgrade`] of the answer.
//!
//! # Guarding a route
//!
//! ```
//! use axum::{Router, routing::post};
//! use ron_core::http::{Guard, Json, Problem};
//!
//! async fn order(Json(order): Json<Vec<u32>>) -> Result<Json<u32>, Problem> {
//!     Ok(Json(order.iter().sum()))
//! }
//!
//! let router: Router = Router::new().route("/orders", post(order).layer(Guard::new("orders").in_flight(64)));
//! ```

mod body;
mod client;
mod connection;
mod guard;
mod head;
mod inflate;
mod json;
mod listen;
mod metrics;
pub mod openapi;
mod ops;
mod pace;
mod problem;
mod query;
mod seats;
mod server;
mod upgrade;
mod wire;

use std::{error::Error, fmt};

use http::{HeaderName, HeaderValue};

pub use self::{
    body::{BodyError, collect},
    client::{ClientAddr, ForwardHeader, IpNet, IpNetError, TrustedProxies},
    guard::{Guard, Guarded, Guarding, Hosts, only, require},
    inflate::{Inflate, InflateError},
    json::Json,
    listen::Listen,
    metrics::HttpMetrics,
    ops::{ClosedBody, ReadyBody, VersionInfo, ops_router},
    problem::Problem,
    query::{Query, accepts, deadline, has_tag, percent_decode},
    server::{Builder, HttpError, Server, Settings, Wrap},
    upgrade::{Upgrade, Upgraded},
    wire::Stream,
};
/// What a [`Guard`] is, and what it stands before; for hosts whose routes are services and not functions.
pub use tower::{Layer, Service};

use crate::Inventory;

/// What connections are called in the metrics.
const METRIC_LABEL: &str = "http_connections";

/// What a server may bring to a running program: its tasks and locks.
#[must_use]
pub fn inventory() -> Inventory {
    Inventory::of(&[], &[server::ACCEPT, connection::CONNECTION], &[seats::SEATS])
}

/// An error and everything behind it, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The number by which a request is found again in logs, in its answer and on other nodes.
///
/// Taken from the request's `x-corr-id` when that is one to sixteen hexadecimal digits, made up otherwise. It is in the
/// request's extensions, in the header `x-corr-id` of the answer, and in every [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CorrId(pub u64);

impl CorrId {
    /// The header it travels in. An answer from behind a [`Guard`] may have it without a value, as a place for the server to
    /// write to; where the server is another one, the guard takes it out.
    pub const HEADER: HeaderName = HeaderName::from_static("x-corr-id");

    fn of(headers: &http::HeaderMap) -> Self {
        let claimed = headers.get(Self::HEADER).and_then(|value| value.to_str().ok());
        let digits = claimed.filter(|text| (1..=16).contains(&text.len()) && !text.starts_with('+'));
        let id = digits.and_then(|text| u64::from_str_radix(text, 16).ok());
        CorrId(id.unwrap_or_else(|| fastrand::u64(..)))
    }

    fn to_header(self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = |at: usize| DIGITS[(self.0 >> (60 - 4 * at)) as usize & 15];
        HeaderValue::from_bytes(&std::array::from_fn::<u8, 16, _>(digits)).expect("digits are a header value")
    }
}

impl fmt::Display for CorrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
