//! The index over HTTP, as routers without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET /resolve/{key}?limit=&explain=` | resolves a name, a `b3:` address or a CID: its content, manifest and ranked providers |
//! | `GET /providers/{id}?limit=&explain=` | providers of some content; with `accept: application/x-ndjson` each as it is found |
//! | `GET /routing/v1/providers/{cid}` | the same for IPFS clients: Delegated Routing V1, JSON and NDJSON, with its filters |
//! | `GET /routing/v1/peers/{id}` | the addresses of a node, by the same specification |
//! | `GET /status`, `GET /openapi.json` | how the index is doing; an OpenAPI document of these routes |
//! | `POST /reindex/{key}` | purges a key and looks it up again; from [`guarded`], as are all that follow |
//! | `PUT`, `DELETE /pins/{key}` | keeps an answer fresh from now on, or no longer |
//! | `POST /purge` | purges the keys in a JSON body, or everything |
//!
//! A name that is known, but whose content no known node provides, is answered with its content and without providers.
//!
//! A key may contain slashes. `limit` is 1 to 32, by default 5; `explain=true` adds the factors of each provider's score.
//!
//! # Caching
//!
//! Answers have `ETag`, `Cache-Control`, `Age` and `Vary`, and `If-None-Match` is answered with 304. An answer that is no
//! longer fresh says so in `x-ron-stale`: `while_revalidate` or `if_error`; and in its body (`stale`), where that is JSON of ours.
//!
//! # What is refused
//!
//! Refusals are `application/problem+json`, see [`ron_core::http::Problem`]:
//!
//! * 400 for an invalid key or parameter;
//! * 401 and 403 before anything is queued;
//! * 404 `no_such_name` for a name that no source knows, `no_providers` for content without a known provider;
//! * 429 at once when too much is asked;
//! * 503 when no source can answer or the node is stopping; `not_ready` if the sources cannot know yet, because the log of names
//!   has not begun or the node knows no other;
//! * 504 when the budget is spent.
//!
//! Under `/routing/v1` an invalid CID is 422, and content without providers is 200 with an empty list, as that specification
//! says.
//!
//! Changes may carry an `Idempotency-Key`: the same request again within ten minutes gets the first answer and changes nothing.
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

/// Requests at once, including those whose answers are still being sent.
const IN_FLIGHT: u32 = 8192;

/// Searches for nodes at once. Few, because they bypass the resolver pool; and twice what one client may have under way by
/// default, so that no client can take them all.
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

/// Only the routes that look something up, without `/status` and `/openapi.json`: for hosts that mount them beside routes of
/// their own.
pub fn lookups(index: &Index) -> Router {
    let guard = |name| Guard::new(name).in_flight(IN_FLIGHT).metrics(&index.inner().metrics);
    // Outside the guards, so that a page in a browser can read refusals and their `retry-after` as well.
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

/// The routes that change something. Each asks `authorizer` for its action, `index.reindex`, `index.pin` or `index.purge`,
/// before anything is queued and before the body is read.
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
