//! Objects that live on many nodes: how they are doing, and what is wished for them.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{get, post, put},
};
use http::{HeaderValue, Method, StatusCode, header};
use ron_core::{
    ContentId, Deadline, NodeId, Snapshot,
    auth::Authorizer,
    http::{Guard, Json, Problem, Query, deadline},
    net::Identity,
};
use serde_json::{Value, json};

use super::{
    IN_FLIGHT,
    asking::{IdPath, for_client, id},
    manage,
    refusal::problem,
    taking,
};
use crate::{
    StorageError, Store,
    claims::{Policy, RETENTION_DEFAULT, Standing},
    repair::{Ack, Keeping, KeepingEvent, KeepingStatus, NodeStatus, Presence, Reading},
};

/// Bytes of the longest refusal: some words.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// How often an object is brought for one request: what nobody claims may be dropped before it is read, and before a change of policy
/// what was brought may be trimmed.
const BROUGHT_MAX: usize = 3;

/// How long an answer about how everything is doing waits for what was just put to be counted.
const SUMMING: Duration = Duration::from_secs(2);

/// What is wished for an object if the request does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// How it is kept.
    pub policy: Policy,
    /// When a put is answered.
    pub ack: Ack,
    /// How long a put may wait for other nodes. Then it is kept here, and the client is told that this is all.
    pub ack_timeout: Duration,
    /// How long a delete is remembered after the last copy is gone.
    pub retention: Duration,
}

impl Default for Wishes {
    fn default() -> Self {
        Wishes {
            policy: Policy::DEFAULT,
            ack: Ack::Local,
            ack_timeout: Duration::from_secs(10),
            retention: Duration::from_secs(RETENTION_DEFAULT),
        }
    }
}

/// A store whose objects live on many nodes, for the routers here. Cloning shares it.
#[derive(Clone)]
pub struct Kept {
    store: Store,
    keeping: Keeping,
    owner: Arc<Identity>,
    wishes: Snapshot<Wishes>,
}

impl Kept {
    /// Objects of `keeping`, claimed for `owner`. The host changes `wishes` when its settings change.
    #[must_use]
    pub fn new(keeping: &Keeping, owner: Arc<Identity>, wishes: Snapshot<Wishes>) -> Self {
        Kept { store: keeping.store().clone(), keeping: keeping.clone(), owner, wishes }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("wishes", &self.wishes.load()).finish_non_exhaustive()
    }
}

/// [`router`](super::router) for a store whose objects live on many nodes: one that is not here is brought from where it is
/// and then served. With `GET /keeping/status`, how all of them are doing.
pub fn kept(kept: &Kept) -> Router {
    let guard = Guard::new("storage_keeping").in_flight(IN_FLIGHT).metrics(kept.store.metrics());
    let status =
        Router::new().route("/keeping/status", get(status)).route_layer(guard).with_state(kept.clone());
    // Inside the guard: who makes a node fetch has a place.
    let reads = super::reads().route_layer(from_fn_with_state(kept.clone(), read_through));
    super::reading(&kept.store, reads).merge(status)
}

/// [`guarded`](super::guarded) for a store whose objects live on many nodes: what is put is claimed and copied, and what is
/// deleted is deleted everywhere. With the routes below `/keeping/` that change something; these ask about
/// `keeping.policy` and `keeping.nodes`.
pub fn kept_guarded(kept: &Kept, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = |name, action| super::guard(&kept.store, &authorizer, name, action);
    let puts = guard("storage_put", "objects.put").streaming();
    let nodes = guard("keeping_nodes", "keeping.nodes");
    let own: Router = Router::new()
        .route("/o/{id}", put(put_object).route_layer(puts.clone()))
        .route("/o", post(post_object).route_layer(puts))
        .route(
            "/o/{id}",
            axum::routing::delete(delete).route_layer(guard("storage_delete", "objects.delete")),
        )
        .route(
            "/keeping/objects/{id}",
            put(set_policy)
                .route_layer(guard("keeping_policy", "keeping.policy").deadline(manage::UPKEEP_MAX)),
        )
        .route("/keeping/draining", put(drain).delete(undrain).route_layer(nodes.clone()))
        .route("/keeping/nodes/{node}", axum::routing::delete(forget).route_layer(nodes))
        .with_state(kept.clone());
    super::guarded_rest(&kept.store, &authorizer).merge(own)
}

/// Lets an object that is not here be brought, and asks again.
async fn read_through(State(kept): State<Kept>, request: Request, next: Next) -> Response {
    let asked = request.uri().path().rsplit_once("/o/").map(|(_, id)| id.to_owned());
    let wanted = asked.and_then(|text| ContentId::parse_any(&text).ok());
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let Some(id) = wanted.filter(|_| is_read) else { return next.run(request).await };
    // A repair that was under way may have left a piece here.
    if kept.store.standing(&id) == Standing::Deleted {
        return problem(StorageError::NotFound { id }).into_response();
    }
    let until = deadline(&request);
    // Until the last byte is sent: what is brought is one copy too many.
    let reading = match kept.keeping.reading(id, until).await {
        Ok(reading) => reading,
        Err(error) => return problem(error).into_response(),
    };
    let (head, _) = request.into_parts();
    for _ in 0..BROUGHT_MAX {
        let answer = next.clone().run(Request::from_parts(head.clone(), Body::empty())).await;
        if answer.status() != StatusCode::NOT_FOUND {
            return answer.map(|body| Body::new(ReadBody { body, _reading: reading }));
        }
        match kept.keeping.bring(id, until).await {
            Ok(_) => {}
            Err(StorageError::NotFound { .. }) => return answer,
            Err(error) => return problem(error).into_response(),
        }
    }
    next.run(Request::from_parts(head, Body::empty())).await
}

/// The body of an answer, and that its object is read.
struct ReadBody {
    body: Body,
    _reading: Reading,
}

impl http_body::Body for ReadBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// What a request wishes for an object.
fn wished(kept: &Kept, request: &Request, known: &[&'static str]) -> Result<Wishes, Problem> {
    let query = Query::of(request, known)?;
    let mut wishes = *kept.wishes.load();
    if let Some(policy) = query.get("policy") {
        let wrong =
            |error| Query::refusal(format!("policy: {error}; it is a number of copies, or shards as in 6+3"));
        wishes.policy = policy.parse().map_err(wrong)?;
    }
    if let Some(ack) = query.get("ack") {
        let wrong = |_| Query::refusal("ack is local, or a number of nodes from 1 to 32");
        wishes.ack = ack.parse().map_err(wrong)?;
    }
    Ok(wishes)
}

/// What puts are asked besides what every put is.
const WISHES: [&str; 2] = ["policy", "ack"];

async fn put_object(State(kept): State<Kept>, path: IdPath, request: Request) -> Result<Response, Problem> {
    let id = id(path)?;
    let wishes = wished(&kept, &request, &["pin", "durability", "policy", "ack"])?;
    let (stored, location) = taking::put_named(kept.store.clone(), id, request, &WISHES).await?;
    claim(&kept, wishes, taking::stored_answer(&stored, location), stored.id).await
}

async fn post_object(State(kept): State<Kept>, request: Request) -> Result<Response, Problem> {
    let wishes = wished(&kept, &request, &["pin", "durability", "policy", "ack"])?;
    let stored = taking::take(kept.store.clone(), request, None, &WISHES).await?;
    let location = format!("o/{}", stored.id);
    claim(&kept, wishes, taking::stored_answer(&stored, location), stored.id).await
}

/// Claims what was stored, waits for as many nodes as are wished for, and says who has it.
async fn claim(
    kept: &Kept,
    wishes: Wishes,
    (mut body, mut response): (Value, Response),
    id: ContentId,
) -> Result<Response, Problem> {
    let said = match keep(kept, id, wishes, Deadline::after(wishes.ack_timeout)).await {
        Err(StorageError::Unacknowledged { wanted, found }) => {
            return Ok(unacknowledged(id, wanted, found).await);
        }
        said => said.map_err(problem)?,
    };
    if let (Value::Object(body), Value::Object(said)) = (&mut body, said) {
        body.extend(said);
    }
    *response.body_mut() = Body::from(body.to_string());
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The refusal, with what was stored and how many have it: whoever put it has to know what to ask for later.
async fn unacknowledged(id: ContentId, wanted: usize, found: usize) -> Response {
    let refusal = problem(StorageError::Unacknowledged { wanted, found }).into_response();
    let (mut head, body) = refusal.into_parts();
    let told = to_bytes(body, PROBLEM_BYTES_MAX).await.unwrap_or_default();
    let mut told: Value = serde_json::from_slice(&told).unwrap_or_else(|_| json!({}));
    told["id"] = id.to_string().into();
    told["acknowledged"] = found.into();
    told["wanted"] = wanted.into();
    head.headers.remove(header::CONTENT_LENGTH);
    // The server would write its own form of it again, without what was added.
    head.extensions.remove::<Problem>();
    Response::from_parts(head, Body::from(told.to_string()))
}

async fn keep(kept: &Kept, id: ContentId, wishes: Wishes, until: Deadline) -> Result<Value, StorageError> {
    let placed = kept.keeping.keep(id, wishes.policy, &kept.owner, wishes.ack, until).await?;
    let nodes: Vec<String> = placed.durable_on.iter().map(ToString::to_string).collect();
    Ok(json!({
        "policy": wishes.policy.to_string(),
        "acknowledged": nodes.len(),
        "nodes": nodes,
        "version": placed.version,
    }))
}

async fn set_policy(
    State(kept): State<Kept>,
    path: IdPath,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let (id, wishes, until) = (id(path)?, wished(&kept, &request, &WISHES)?, deadline(&request));
    let mut said = Err(StorageError::NotFound { id });
    for _ in 0..BROUGHT_MAX {
        if !kept.store.has(id, until).await.map_err(problem)? {
            kept.keeping.bring(id, until).await.map_err(problem)?;
        }
        said = keep(&kept, id, wishes, until.within(wishes.ack_timeout)).await;
        // What was brought is too much until it is claimed, and may have been trimmed before.
        if !matches!(said, Err(StorageError::NotFound { .. })) {
            break;
        }
    }
    let mut said = said.map_err(problem)?;
    said["id"] = id.to_string().into();
    Ok(Json(said))
}

async fn delete(State(kept): State<Kept>, path: IdPath, request: Request) -> Result<Response, Problem> {
    let (id, until) = (id(path)?, deadline(&request));
    Query::of(&request, &[])?;
    let key = kept.owner.public_key();
    kept.keeping.learn(id, until).await;
    let claims = kept.store.claims(&id);
    let is_ours = claims.iter().any(|claim| claim.owner == key && !claim.word.is_tombstone());
    match kept.store.standing(&id) {
        Standing::Live(_) if is_ours => {
            taking::check_conditions(&kept.store, id, request.headers(), until).await?;
            if kept.store.stat(id, until).await.is_ok_and(|stat| stat.is_pinned) {
                return Err(problem(StorageError::Pinned { id }));
            }
            let retention = kept.wishes.load().retention;
            kept.keeping.delete(id, &kept.owner, retention, until).await.map_err(problem)?;
            // Here it is gone now; others hear of it. It stays where somebody else wants it, as a shard perhaps.
            match kept.keeping.clear(id, until).await {
                Ok(_) | Err(StorageError::Claimed { .. }) => {}
                Err(error) => return Err(problem(error)),
            }
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        // It is going already, or was never here.
        Standing::Deleted => Err(problem(StorageError::NotFound { id })),
        Standing::Live(_) | Standing::Unclaimed => {
            taking::check_conditions(&kept.store, id, request.headers(), until).await?;
            let store = for_client(kept.store.clone(), &request);
            match kept.keeping.clear_for(&store, id, until).await.map_err(problem)? {
                true => Ok(StatusCode::NO_CONTENT.into_response()),
                false => Err(problem(StorageError::NotFound { id })),
            }
        }
    }
}

async fn drain(State(kept): State<Kept>, request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    kept.keeping.set_draining(true, deadline(&request)).await.map_err(problem)?;
    Ok(Json(json!({"draining": true})))
}

async fn undrain(State(kept): State<Kept>, request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    kept.keeping.set_draining(false, deadline(&request)).await.map_err(problem)?;
    Ok(Json(json!({"draining": false})))
}

async fn forget(State(kept): State<Kept>, path: IdPath, request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    let wrong = || {
        Problem::new(StatusCode::BAD_REQUEST, "bad_id", "this is no name of a node")
            .hint("64 lowercase hex digits")
    };
    let Path(text) = path.map_err(|_| wrong())?;
    let node: NodeId = text.parse().map_err(|_| wrong())?;
    let nodes = kept.keeping.status().nodes;
    let answers = |known: &NodeStatus| known.contact.id == node && known.presence == Some(Presence::Up);
    if nodes.iter().any(answers) {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "node_answers",
            "the node answers and is not forgotten",
        )
        .hint("PUT /keeping/draining there empties it; one that is lost is away first"));
    }
    if !kept.keeping.forget(&node) {
        let words = "there is no such node among those who keep objects with this one";
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_node", words)
            .hint("nodes that are listed in the settings are taken out there"));
    }
    Ok(Json(json!({"node": node.to_string(), "forgotten": true})))
}

async fn status(State(kept): State<Kept>, request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    let status = kept.keeping.status_now(deadline(&request).within(SUMMING)).await;
    Ok(Json(kept.say(&status)))
}

impl Kept {
    /// How everything is doing, as `GET /keeping/status` says it.
    #[must_use]
    pub fn status(&self) -> Value {
        self.say(&self.keeping.status())
    }

    fn say(&self, status: &KeepingStatus) -> Value {
        let wishes = self.wishes.load();
        let objects: serde_json::Map<String, Value> = status
            .objects
            .iter()
            .map(|(health, count)| (health.name().to_owned(), (*count).into()))
            .collect();
        json!({
            "policy": wishes.policy.to_string(),
            "ack": wishes.ack.to_string(),
            "has_looked": status.has_looked,
            "objects": objects,
            "unweighed": status.unweighed,
            "claims": status.claims,
            "rf_observed": status.fewest_copies,
            "repairs": status.repairs,
            "bytes_per_second": status.bytes_per_second,
            "draining": status.is_draining,
            "misplaced": status.misplaced,
            "needed": status.needed,
            "untold": status.untold,
            "up": status.up,
            "away": status.away,
            "nodes": status.nodes.iter().map(|node| node_json(node, self.keeping.me())).collect::<Vec<_>>(),
            "recent": self.keeping.recent().iter().rev().map(event_json).collect::<Vec<_>>(),
        })
    }
}

fn node_json(node: &NodeStatus, me: NodeId) -> Value {
    let presence = match node.presence {
        Some(Presence::Up) => "up",
        Some(Presence::Draining) => "draining",
        Some(Presence::Away) => "away",
        None => "unknown",
    };
    json!({
        "id": node.contact.id.to_string(),
        "addrs": *node.contact.addrs,
        "zone": format!("{:016x}", node.zone),
        "weight": node.weight,
        "presence": presence,
        "durable": node.is_durable,
        "seen_ms": node.seen.map(|seen| u64::try_from(seen.as_millis()).unwrap_or(u64::MAX)),
        "pieces": node.pieces,
        "this": node.contact.id == me,
    })
}

fn event_json((at, event): &(u64, KeepingEvent)) -> Value {
    let mut said = match event {
        KeepingEvent::Lost(object) => json!({"event": "lost", "object": object.to_string()}),
        KeepingEvent::Found(object) => json!({"event": "found", "object": object.to_string()}),
        KeepingEvent::Repaired { object, class, bytes } => {
            json!({"event": "repaired", "object": object.to_string(), "class": class.name(), "bytes": bytes})
        }
        KeepingEvent::Blamed { node, piece } => {
            json!({"event": "blamed", "object": piece.to_string(), "node": node.to_string()})
        }
        KeepingEvent::Presence { node, is_up } => {
            json!({"event": if *is_up { "back" } else { "away" }, "node": node.to_string()})
        }
    };
    said["at_ms"] = (*at).into();
    said
}
