//! Objects over HTTP, as routers without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET`, `HEAD /o/{id}` | the object, or the ranges of it that `Range` asks for, verified as they leave |
//! | the same with `accept: application/vnd.ron.bao` | the object, or the ranges in `?bytes=`, with the proof that they belong to the name |
//! | `GET /stat/{id}` | what is known of an object |
//! | `GET /openapi.json` | all of these routes, for programs |
//! | `PUT /o/{id}` | stores the body if it has this name; with [`guarded`], as all that follow |
//! | `POST /o` | stores the body and says what it is called |
//! | `DELETE /o/{id}` | deletes an object |
//! | `PUT`, `DELETE /pins/{id}` | pins an object, takes the pin back |
//! | `GET /o?after=&limit=` | what there is, in the order of names |
//! | `GET /usage` | how much there is |
//! | `GET /keeping/status` | how objects on many nodes are doing; with `kept`, of the feature `net`, as all below `/keeping/` |
//! | `PUT /keeping/objects/{id}?policy=&ack=` | says how an object is kept from now on |
//! | `PUT`, `DELETE /keeping/draining` | lets this node be emptied before it goes, takes that back |
//! | `DELETE /keeping/nodes/{node}` | does not wait for a node any more |
//! | `POST /fetch/{id}?from=` | brings an object from other nodes; with `fetching`, of the feature `net` |
//! | `POST /gc?dry_run=`, `POST /scrub` | collects what is not pinned; reads everything to see whether it is still right |
//!
//! An id is `b3:` and 64 hex digits, or a CIDv1 of raw bytes and BLAKE3. What is refused is answered as
//! `application/problem+json`, see [`ron_core::http::Problem`].
//!
//! # Reading
//!
//! An object never changes, so its tag is its name (`"b3:…"`) and it may be cached for ever. `If-None-Match`, `If-Match`,
//! `If-Range` and `Range` follow RFC 9110: up to sixteen ranges, several answered as `multipart/byteranges`; what is
//! malformed, asks for a byte twice or lies behind the end is 416. Objects are somebody's bytes: they are served as
//! attachments of no type, and `?filename=` says what a browser shall call them. Bytes are verified before they are sent;
//! if some turn out to be damaged after the answer began, it ends short and the connection is closed.
//!
//! The answer with a proof is described in `docs/formats.md`. Its ranges are in the query, because `Range` would mean bytes
//! of the proof to every cache on the way.
//!
//! # Writing
//!
//! A body of any size is taken as it comes, and no faster than it is stored. It may not be compressed, since its name is
//! that of the plain bytes, and it may not be a part of something (`Content-Range`). 201 says that it is stored, and the
//! answer says how durably; 200 that it was there already, and then a body with a known name is not read. `Content-Digest`
//! with `sha-256`, `sha-512` or `blake3` is checked before anything is kept. `?pin=true` pins, `?durability=buffered` does
//! not wait for the disk.
//!
//! The routers are of axum 0.8; behind a [`ron_core::http::Server`] they have its limits too, and each client its share of
//! the store's places.
//!
//! ```
//! use std::sync::Arc;
//! use ron_core::auth::Authorizer;
//! use ron_storage::{Store, http};
//!
//! fn routes(store: &Store, authorizer: Arc<dyn Authorizer>) -> axum::Router {
//!     http::router(store).merge(http::guarded(store, authorizer))
//! }
//! ```

mod answer;
mod asking;
mod digest;
#[cfg(feature = "net")]
mod fetching;
#[cfg(feature = "net")]
mod keeping;
mod manage;
mod openapi;
mod refusal;
mod sending;
mod taking;

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post, put},
};
use ron_core::{auth::Authorizer, http::Guard};

use crate::Store;

#[cfg(feature = "net")]
pub use fetching::fetching;
#[cfg(feature = "net")]
pub use keeping::{Kept, Wishes, kept, kept_guarded};
pub use openapi::document as openapi;
#[cfg(feature = "net")]
pub use openapi::kept as openapi_kept;

/// The type of an answer with a proof.
pub use crate::logic::proof::BAO;

/// Requests in work at once, answers on their way included. Objects being read or written have their places in the store
/// as well; this bounds those that wait for one.
const IN_FLIGHT: u32 = 1024;

/// The routes that only read objects whose names the client knows. They may be open to everybody.
pub fn router(store: &Store) -> Router {
    reading(store, reads())
}

fn reads() -> Router<Store> {
    Router::new()
        .route("/o/{id}", get(answer::object))
        .route("/stat/{id}", get(manage::stat))
        .route("/openapi.json", get(openapi::serve))
}

fn reading(store: &Store, routes: Router<Store>) -> Router {
    let guard = Guard::new("storage_get").in_flight(IN_FLIGHT).metrics(store.metrics());
    routes.route_layer(guard).with_state(store.clone())
}

/// The routes that change something or tell what there is. Each asks `authorizer` about an action of its own before
/// anything of the body is read: `objects.put`, `objects.delete`, `objects.pin`, `objects.list`, `objects.upkeep`.
pub fn guarded(store: &Store, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = |name, action| guard(store, &authorizer, name, action);
    let puts = guard("storage_put", "objects.put").streaming();
    let own = Router::new()
        .route("/o/{id}", put(taking::put_object).route_layer(puts.clone()))
        .route("/o", post(taking::post_object).route_layer(puts))
        .route(
            "/o/{id}",
            axum::routing::delete(manage::delete).route_layer(guard("storage_delete", "objects.delete")),
        )
        .with_state(store.clone());
    guarded_rest(store, &authorizer).merge(own)
}

/// What stands before a route that changes something or tells what there is.
fn guard(store: &Store, authorizer: &Arc<dyn Authorizer>, name: &'static str, action: &'static str) -> Guard {
    Guard::new(name)
        .in_flight(IN_FLIGHT)
        .metrics(store.metrics())
        .no_compression()
        .require(Arc::clone(authorizer), action)
}

/// Those of [`guarded`] that are the same wherever objects live.
fn guarded_rest(store: &Store, authorizer: &Arc<dyn Authorizer>) -> Router {
    let guard = |name, action| guard(store, authorizer, name, action);
    let lists = guard("storage_list", "objects.list");
    let pins = guard("storage_pin", "objects.pin");
    let upkeep = guard("storage_upkeep", "objects.upkeep").deadline(manage::UPKEEP_MAX);
    Router::new()
        .route("/pins/{id}", put(manage::pin).delete(manage::unpin).route_layer(pins))
        .route("/o", get(manage::list).route_layer(lists.clone()))
        .route("/usage", get(manage::usage).route_layer(lists))
        .route("/gc", post(manage::gc).route_layer(upkeep.clone()))
        .route("/scrub", post(manage::scrub).route_layer(upkeep))
        .with_state(store.clone())
}
