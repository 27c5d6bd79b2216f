//! The registry over HTTP, as routers without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET /head` | where the log ends, and what one has to know to propose |
//! | `GET /{version}` | an entry; its bytes with `accept: application/cbor` |
//! | `GET /entries?from=&limit=` | entries; their bytes with `accept: application/octet-stream`, each behind its length in two bytes |
//! | `GET /by-content/{b3}` | the entries that bound a name to this content |
//! | `GET /names/{name}` | what a name stands for, or that it stands for nothing, with the proof |
//! | `GET /policy` | who decides |
//! | `GET /proofs/{version}` | a `tlog-proof` file: that an entry is in the log; with `?cosigned=1` under the last head that witnesses have signed |
//! | `GET /consistency?old=&new=` | that one log is the beginning of another |
//! | `GET /checkpoint`, `GET /tile/…` | the log as C2SP `tlog-tiles` serves it; `/checkpoint?cosigned=1` is the last head that witnesses have signed |
//! | `GET /snapshot`, `GET /snapshot/{version}/{part}` | what stands for entries that were pruned, and proves itself: where a new follower starts |
//! | `GET /stream?from=` | what is committed, as server-sent events |
//! | `GET /ws?from=` | the same over a WebSocket |
//! | `GET /openapi.json` | all of these routes, for programs |
//! | `POST /found` | begins the log; with [`guarded`], as all that follow |
//! | `POST /proposals` | proposes: 202, and who is missing |
//! | `GET /proposals?after=&limit=`, `GET /proposals/{id}` | what waits, a page at a time |
//! | `POST /approvals` | approves: 202, or 201 if that was enough |
//! | `POST /commit` | a proposal with its approvals: 201 with the receipt, 202 if more are wanted, 409 if the head or the name has moved |
//! | `POST /supersede` | the same, for a proposal that replaces what a name stands for, and only for such |
//!
//! What is refused is answered as `application/problem+json`, see [`ron_core::http::Problem`]. Bodies are the bytes of a
//! proposal, an approval or a policy as `application/cbor`, or JSON with these in base64; unknown fields are refused.
//!
//! # Streams
//!
//! The id of an event is the version of its entry. `Last-Event-ID`, or `?from=`, goes on from there without a hole, however
//! long ago that was: what is no longer in memory is read from the log. Without either a stream begins with the next commit.
//! If what is asked for was pruned, an event `pruned` says where the log begins now, and the stream goes on from there. If it
//! is beyond the next commit, an event `ahead` says where the log ends, and the stream waits for it: the client has heard more
//! of the log elsewhere, or the log was rolled back.
//!
//! For a client that is slow the log is read at its pace, and one that takes nothing is cut off by the server; neither holds
//! anybody up, or more than a few hundred events in memory. Comments (or pings) come every 15 seconds.
//!
//! ```
//! use std::sync::Arc;
//! use ron_core::auth::Authorizer;
//! use ron_registry::{Registry, http};
//!
//! fn routes(registry: &Registry, authorizer: Arc<dyn Authorizer>) -> axum::Router {
//!     axum::Router::new().nest("/registry", http::router(registry).merge(http::guarded(registry, authorizer)))
//! }
//! ```

mod asking;
mod deciding;
mod openapi;
mod reading;
mod refusal;
mod socket;
mod stream;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    routing::{get, post},
};
use ron_core::{Snapshot, auth::Authorizer, http::Guard};

use crate::Registry;

pub use openapi::document as openapi;

/// The type of bytes that are signed or hashed.
pub const CBOR: &str = "application/cbor";

const JSON: &str = "application/json";

/// The type of tiles and of bundles of entries.
const OCTETS: &str = "application/octet-stream";

/// Requests in work at once. Most are answered from memory; this bounds those that read the store.
const IN_FLIGHT: u32 = 1024;

/// Bundles of entries and parts of snapshots in work at once. A bundle may be 16 MiB, and is held until it is written: with more,
/// readers who take their time would have more than a gigabyte held for them.
const BULK: u32 = 64;

/// Streams at once. Each holds some kilobytes; what bounds them before this is connections.
const STREAMS: u32 = 4096;

/// The routes that change nothing. They may be open to everybody.
pub fn router(registry: &Registry) -> Router {
    let (metrics, known) = (registry.metrics(), Snapshot::new(None));
    let head = move |State(registry): State<Registry>, request: Request| {
        std::future::ready(reading::head(&registry, &known, &request))
    };
    let reads = Guard::new("registry_get").in_flight(IN_FLIGHT).metrics(metrics);
    let streams = Guard::new("registry_stream").in_flight(STREAMS).metrics(metrics);
    let bulk = Guard::new("registry_bulk").in_flight(BULK).metrics(metrics);
    let large = Router::new()
        .route("/tile/entries/{*path}", get(reading::bundle))
        .route("/snapshot/{version}/{part}", get(reading::snapshot_part))
        .route_layer(bulk);
    let streaming = Router::new()
        .route("/stream", get(stream::serve))
        .route("/ws", get(socket::serve))
        .route_layer(streams);
    Router::new()
        .route("/head", get(head))
        .route("/{version}", get(reading::entry))
        .route("/entries", get(reading::entries))
        .route("/by-content/{id}", get(reading::by_content))
        .route("/names/{*name}", get(reading::name))
        .route("/policy", get(reading::policy))
        .route("/proofs/{version}", get(reading::proof))
        .route("/consistency", get(reading::consistency))
        .route("/checkpoint", get(reading::checkpoint))
        .route("/tile/{*path}", get(reading::tile))
        .route("/snapshot", get(reading::snapshot))
        .route("/openapi.json", get(openapi::serve))
        .route_layer(reads)
        .merge(large)
        .merge(streaming)
        .with_state(registry.clone())
}

/// The routes that change something, or ask the committer. Each asks `authorizer` about an action of its own before
/// anything of the body is read or queued: `registry.found`, `registry.propose`, `registry.approve`, `registry.commit`,
/// `registry.pending`.
pub fn guarded(registry: &Registry, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = |name: &'static str, action: &'static str| {
        let guard = Guard::new(name).in_flight(IN_FLIGHT).metrics(registry.metrics());
        guard.require(Arc::clone(&authorizer), action)
    };
    let (pending, commits) =
        (guard("registry_pending", "registry.pending"), guard("registry_commit", "registry.commit"));
    Router::new()
        .route("/found", post(deciding::found).route_layer(guard("registry_found", "registry.found")))
        .route(
            "/proposals",
            post(deciding::propose).route_layer(guard("registry_propose", "registry.propose")),
        )
        .route("/proposals", get(deciding::pending).route_layer(pending.clone()))
        .route("/proposals/{id}", get(deciding::pending_one).route_layer(pending))
        .route(
            "/approvals",
            post(deciding::approve).route_layer(guard("registry_approve", "registry.approve")),
        )
        .route("/commit", post(deciding::commit).route_layer(commits.clone()))
        .route("/supersede", post(deciding::supersede).route_layer(commits))
        .with_state(registry.clone())
}
