//! The index over HTTP, as routers without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET /resolve/{key}?limit=&explain=` | what a name, a `b3:` address or a CID leads to: manifest and ranked providers |
//! | `GET /providers/{id}?limit=&explain=` | who has some content; with `accept: application/x-ndjson` each as it is found |
//! | `GET /routing/v1/providers/{cid}` | the same as IPFS clients ask it: Delegated Routing V1, JSON and NDJSON, with its filters |
//! | `GET /routing/v1/peers/{id}` | where a node is, by the same specification |
//! | `GET /status`, `GET /openapi.json` | how the index is doing; all of these routes, for programs |
//! | `POST /reindex/{key}` | forgets a key and looks it up again; with [`guarded`], as all that follow |
//! | `PUT`, `DELETE /pins/{key}` | keeps an answer fresh from now on, or no longer |
//! | `POST /purge` | forgets the keys of a JSON body, or everything |
//!
//! A name that leads to what nobody is known to have is an answer, with its content and without providers.
//!
//! A key may have slashes. `limit` is 1 to 32 and 5 if it is not there; `explain=true` tells what the place of each provider
//! is made of.
//!
//! # Caching
//!
//! Answers have `ETag`, `Cache-Control`, `Age` and `Vary`, and `If-None-Match` is answered with 304. An answer that is no
//! longer fresh says so in `x-ron-stale`: `while_revalidate` or `if_error`; and in its body (`stale`), where that is JSON of ours.
//!
//! # What is refused
//!
//! As `application/problem+json`, see [`ron_core::http::Problem`]: 400 for what is no key or no number, 401 and 403 before
//! anything is queued, 404 `no_such_name` for a name that no source knows and `no_providers` for content that nobody is known to
//! have, 429 at once when too much is asked, 503 when nobody can answer (`not_ready` if nobody could know yet: a log of names
//! that has not begun, a node that knows no other) or the node stops, 504 when the budget is spent. Under `/routing/v1` what is
//! no CID is 422 and what nobody has is 200 with an empty list, as that specification has it.
//!
//! Changes may have an `Idempotency-Key`: the same again within ten minutes is answered as the first time, and not done.
//!
//! ```
//! use std::sync::Arc;
//! use ron_core::auth::Authorizer;
//! use ron_index::{Index, http};
//!
//! fn routes(index: &Index, authorizer: Arc<dyn Authorizer>) -> axum::Router {
//!     http::router(index).merge(http::guarded(index, authorizer))
//! }
//! ```

mod admin;
mod answer;
mod asking;
pub mod dto;
mod idempotency;
mod openapi;
mod routing;
mod stream;

use std::sync::Arc;

use axum::{
    Router,
    middleware::map_response,
    routing::{any, get, get_service, post, put},
};
use ron_core::{
    auth::Authorizer,
    http::{Guard, Layer as _},
};

use crate::Index;

pub(crate) use idempotency::IDEMPOTENCY;
pub use openapi::document as openapi;

/// Requests in work at once, answers on their way included.
const IN_FLIGHT: u32 = 8192;

/// Nodes that are looked for at once: that goes past the resolver pool, so it is few. Twice what one client may have under way
/// by default, so that one alone cannot take them all.
const LOCATE_IN_FLIGHT: u32 = 128;

/// The type of an answer with a provider in each line.
const NDJSON: &str = "application/x-ndjson";

/// All routes that only read.
pub fn router(index: &Index) -> Router {
    let guard = Guard::new("index_status").in_flight(IN_FLIGHT).metrics(&index.inner().metrics);
    Router::new()
        .route("/status", get(admin::status))
        .route("/openapi.json", get(openapi::serve))
        .route_layer(guard)
        .with_state(index.clone())
        .merge(lookups(index))
}

/// The routes that look something up, and no others: for hosts that serve them beside routes of their own.
pub fn lookups(index: &Index) -> Router {
    let guard = |name| Guard::new(name).in_flight(IN_FLIGHT).metrics(&index.inner().metrics);
    // Around the guards: a page must be able to read a refusal as well, and when to come back.
    let open = || map_response(routing::open_to_browsers);
    let peers = Guard::new("routing_peers").in_flight(LOCATE_IN_FLIGHT).metrics(&index.inner().metrics);
    Router::new()
        .route("/resolve/{*key}", get_service(guard("resolve").layer(answer::Resolve(index.clone()))))
        .route("/providers/{id}", get(answer::providers).route_layer(guard("providers").streaming()))
        .route(
            "/routing/v1/providers/{cid}",
            get(routing::providers)
                .options(routing::preflight)
                .route_layer(guard("routing_providers").streaming())
                .layer(open()),
        )
        .route(
            "/routing/v1/peers/{id}",
            get(routing::peers).options(routing::preflight).route_layer(peers).layer(open()),
        )
        .route("/routing/v1/ipns/{name}", any(routing::not_implemented).layer(open()))
        .with_state(index.clone())
}

/// The routes that change something. Each asks `authorizer` about an action of its own before anything is queued and before
/// anything of a body is read: `index.reindex`, `index.pin`, `index.purge`.
pub fn guarded(index: &Index, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = |name: &'static str, action: &'static str| {
        Guard::new(name)
            .in_flight(IN_FLIGHT)
            .metrics(&index.inner().metrics)
            .body_bytes_max(dto::BODY_BYTES_MAX)
            .require(Arc::clone(&authorizer), action)
    };
    Router::new()
        .route("/reindex/{*key}", post(admin::reindex).route_layer(guard("reindex", "index.reindex")))
        .route("/pins/{*key}", put(admin::pin).delete(admin::unpin).route_layer(guard("pins", "index.pin")))
        .route("/purge", post(admin::purge).route_layer(guard("purge", "index.purge")))
        .with_state(admin::Admin::new(index))
}
