//! Peers, topics and queues over HTTP, as a router without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET /status` | who the node is, where it can be reached, whether it is ready and if not why |
//! | `GET /peers` | the sessions: who, where, what waits for them, on how many topics they are neighbours, how they behave |
//! | `GET /topics` | the topics: neighbours, trees, subscribers, and what became of messages |
//! | `GET /queues` | every queue: how full it is, and how much it takes |
//!
//! What is refused is answered as `application/problem+json`, see [`ron_core::http::Problem`]. Nothing here changes
//! anything. The router is of axum 0.8 and goes into any of its apps; behind a [`ron_core::http::Server`] it has its
//! limits and deadlines too.
//!
//! ```
//! use ron_overlay::{Overlay, http};
//!
//! fn routes(overlay: &Overlay) -> axum::Router {
//!     axum::Router::new().nest("/overlay", http::router(overlay))
//! }
//! ```

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    routing::get,
};
use ron_core::{
    Deadline, NodeId,
    http::{Guard, Json, Problem, ReadyBody},
};
use serde::Serialize;

use crate::{Overlay, PeerStatus, QueueStatus, TopicStatus};

/// Requests in work at once.
const IN_FLIGHT: u32 = 256;

/// How long the engines may take to say how their topics are doing.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The routes of the table above, for the host to nest where it likes. They ask for no token: what they tell changes nothing.
pub fn router(overlay: &Overlay) -> Router {
    let guard = Guard::new("overlay_http").in_flight(IN_FLIGHT).metrics(&overlay.node.metrics);
    Router::new()
        .route("/status", get(status))
        .route("/peers", get(peers))
        .route("/topics", get(topics))
        .route("/queues", get(queues))
        .route_layer(guard)
        .with_state(overlay.clone())
}

#[derive(Serialize)]
struct StatusBody {
    id: String,
    addrs: Vec<SocketAddr>,
    sessions: usize,
    neighbours: usize,
    ready: ReadyBody,
}

#[derive(Serialize)]
struct PeerBody {
    id: String,
    remote: SocketAddr,
    incoming: bool,
    post_quantum: bool,
    waiting: usize,
    waiting_bytes: usize,
    topics: usize,
    points: f64,
}

#[derive(Serialize)]
struct TopicBody {
    name: String,
    id: String,
    neighbours: Vec<String>,
    spares: usize,
    trees: usize,
    subscribers: usize,
    published: u64,
    delivered: u64,
    received: u64,
    duplicates: u64,
    recovered: u64,
    repaired: u64,
    kept_bytes: usize,
}

#[derive(Serialize)]
struct QueueBody {
    name: &'static str,
    depth: usize,
    capacity: usize,
}

impl From<PeerStatus> for PeerBody {
    fn from(peer: PeerStatus) -> Self {
        PeerBody {
            id: peer.id.to_string(),
            remote: peer.remote,
            incoming: peer.is_incoming,
            post_quantum: peer.group.is_post_quantum(),
            waiting: peer.waiting,
            waiting_bytes: peer.waiting_bytes,
            topics: peer.topics,
            points: peer.points,
        }
    }
}

impl From<TopicStatus> for TopicBody {
    fn from(topic: TopicStatus) -> Self {
        let counts = topic.counts;
        TopicBody {
            id: topic.id.to_string(),
            name: topic.name,
            neighbours: topic.neighbours.iter().map(NodeId::to_string).collect(),
            spares: topic.spares,
            trees: topic.trees,
            subscribers: topic.subscribers,
            published: topic.published,
            delivered: topic.delivered,
            received: counts.received,
            duplicates: counts.duplicates,
            recovered: counts.recovered,
            repaired: counts.repaired,
            kept_bytes: topic.kept_bytes,
        }
    }
}

async fn status(State(overlay): State<Overlay>) -> Json<StatusBody> {
    let (contact, ready) = (overlay.contact(), overlay.ready());
    Json(StatusBody {
        id: contact.id.to_string(),
        addrs: contact.addrs.to_vec(),
        sessions: overlay.peers().len(),
        neighbours: overlay.neighbours(),
        ready: ready.into(),
    })
}

async fn peers(State(overlay): State<Overlay>) -> Json<Vec<PeerBody>> {
    Json(overlay.peers().into_iter().map(PeerBody::from).collect())
}

async fn topics(State(overlay): State<Overlay>, request: Request) -> Result<Json<Vec<TopicBody>>, Problem> {
    // The server's own patience counts too.
    let deadline = Deadline::after(TIMEOUT);
    let deadline = request.extensions().get::<Deadline>().map_or(deadline, |outer| (*outer).min(deadline));
    let topics = overlay.topics(deadline).await?;
    Ok(Json(topics.into_iter().map(TopicBody::from).collect()))
}

async fn queues(State(overlay): State<Overlay>) -> Json<Vec<QueueBody>> {
    let body =
        |queue: QueueStatus| QueueBody { name: queue.name, depth: queue.depth, capacity: queue.capacity };
    Json(overlay.queues().into_iter().map(body).collect())
}
