//! Bringing an object from other nodes, on demand.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    routing::post,
};
use http::StatusCode;
use ron_core::{
    auth::Authorizer,
    http::{Guard, Json, Problem, Query, deadline},
    net::Contact,
};
use serde::Serialize;

use super::{
    asking::{IdPath, id},
    refusal::problem,
};
use crate::{
    fetch::{FetchError, Fetcher, Finder},
    peers::Peer,
};

/// What a fetch may take. Who has more asks again: it goes on where it was.
const FETCH_MAX: Duration = Duration::from_secs(3600);

/// The part of its time that a fetch looks for providers for.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Fetches at once.
const IN_FLIGHT: u32 = 64;

/// `POST /fetch/{id}?from=NODE_ID@IP:PORT`: brings an object into the store from the node named, or else from those that
/// `finder` finds, and answers when it is there. For those whom `authorizer` allows `objects.fetch`.
pub fn fetching(fetcher: &Fetcher, finder: Arc<dyn Finder>, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = Guard::new("storage_fetch").in_flight(IN_FLIGHT).deadline(FETCH_MAX);
    let guard = guard.metrics(fetcher.store().metrics()).require(authorizer, "objects.fetch");
    Router::new().route("/fetch/{id}", post(fetch)).route_layer(guard).with_state((fetcher.clone(), finder))
}

#[derive(Serialize)]
struct FetchedBody {
    id: String,
    size: u64,
    /// Bytes that came now.
    received: u64,
    /// Whether it was here.
    existed: bool,
}

async fn fetch(
    State((fetcher, finder)): State<(Fetcher, Arc<dyn Finder>)>,
    path: IdPath,
    request: Request,
) -> Result<Json<FetchedBody>, Problem> {
    let (id, query, deadline) = (id(path)?, Query::of(&request, &["from"])?, deadline(&request));
    let providers: Vec<Peer> = match query.get("from") {
        Some(from) => {
            let contact: Contact = from.parse().map_err(|error| Query::refusal(format!("from: {error}")))?;
            vec![contact.into()]
        }
        None if fetcher.store().has(id, deadline).await.map_err(problem)? => Vec::new(),
        None => finder.find(id, deadline.within(LOOK_MAX)).await,
    };
    let fetched = match fetcher.fetch(id, &providers, deadline).await {
        Err(error @ (FetchError::NoProviders | FetchError::AllFailed { .. })) => {
            match finder.make(id, deadline).await.map_err(problem)? {
                Some(stored) => {
                    let (size, existed) = (stored.len, stored.existed);
                    return Ok(Json(FetchedBody { id: id.to_string(), size, received: size, existed }));
                }
                None => Err(error),
            }
        }
        fetched => fetched,
    };
    let fetched = fetched.map_err(|error| {
        let words = error.to_string();
        match error {
            FetchError::Store(error) => problem(error),
            FetchError::NoProviders => {
                Problem::new(StatusCode::NOT_FOUND, "no_providers", "nobody is known who has it")
            }
            FetchError::AllFailed { peers } => {
                let each = peers
                    .iter()
                    .filter_map(|peer| peer.error.as_ref().map(|error| format!("{}: {error}", peer.peer)));
                Problem::new(StatusCode::BAD_GATEWAY, "all_failed", "nobody could send all of it")
                    .detail(each.collect::<Vec<_>>().join("; "))
            }
            other => Problem::from(other).detail(words),
        }
    })?;
    let (size, existed) = (fetched.stored.len, fetched.stored.existed);
    Ok(Json(FetchedBody { id: id.to_string(), size, received: fetched.received, existed }))
}
