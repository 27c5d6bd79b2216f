//! `POST` and `GET /gossip/{topic}`: programs on this machine speak and listen on the topics that the node is on.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
    routing::get,
};
use data_encoding::BASE64;
use ron_core::{
    Deadline, Metrics, Stop,
    auth::Authorizer,
    http::{Guard, Json, Problem, collect},
};
use ron_overlay::{Delivery, Overlay, Subscription, Topic};
use serde_json::{Value, json};

use crate::unfold::Unfold;

/// Listeners and messages in work at once.
const IN_FLIGHT: u32 = 256;

/// How long the engines may take, and a message may wait for room.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A silent topic says that it is there, so that a line which has died is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The routes, for those whom `authorizer` allows `gossip.use`: what is said on a topic is for those
/// who are on it.
pub(crate) fn router(overlay: &Overlay, authorizer: Arc<dyn Authorizer>, metrics: &Metrics) -> Router {
    let guard = Guard::new("gossip_http").in_flight(IN_FLIGHT).metrics(metrics);
    let guard = guard.body_bytes_max(overlay.settings().message_bytes_max as u64).no_compression();
    Router::new()
        .route("/gossip/{topic}", get(listen).post(speak))
        .route_layer(guard.require(authorizer, "gossip.use"))
        .with_state(overlay.clone())
}

/// A topic that the node is on. Others are not joined by asking.
async fn joined(overlay: &Overlay, name: String) -> Result<Topic, Problem> {
    let deadline = Deadline::after(TIMEOUT);
    if !overlay.topics(deadline).await?.iter().any(|topic| topic.name == name) {
        return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_topic", "this node is not on that topic")
            .hint("overlay.topics names those that it is on"));
    }
    Ok(overlay.topic(name).join([], deadline).await?)
}

async fn speak(
    State(overlay): State<Overlay>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let topic = joined(&overlay, name).await?;
    let message = collect(request).await?;
    let receipt = topic.publish_when_free(message, Deadline::after(TIMEOUT)).await?;
    Ok(Json(json!({"id": receipt.id.to_string()})))
}

async fn listen(
    State(overlay): State<Overlay>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let topic = joined(&overlay, name).await?;
    let heard = topic.subscribe(Deadline::after(TIMEOUT)).await?;
    let stop = request.extensions().get::<Stop>().cloned();
    let mut response = Response::new(Body::from_stream(Unfold::new((heard, stop), next)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

type Listening = (Subscription, Option<Stop>);

async fn next((mut heard, stop): Listening) -> Option<(Bytes, Listening)> {
    let stopped = async {
        match &stop {
            Some(stop) => stop.requested().await,
            None => std::future::pending().await,
        }
    };
    let line = tokio::select! {
        biased;
        () = stopped => return None,
        delivery = heard.recv() => format!("{}\n", body(delivery?)),
        () = tokio::time::sleep(HEARTBEAT) => "\n".to_owned(),
    };
    Some((line.into(), (heard, stop)))
}

fn body(delivery: Delivery) -> Value {
    match delivery {
        Delivery::Message { message, hops } => json!({
            "id": message.id().to_string(),
            "publisher": message.serial().publisher.to_string(),
            "seq": message.serial().seq,
            "hops": hops,
            "payload": BASE64.encode(message.payload()),
        }),
        Delivery::Gap(gap) | Delivery::Missed(gap) => json!({
            "publisher": gap.publisher.to_string(),
            "missing": gap.count(),
        }),
        Delivery::MissedMore(count) => json!({"missing": count}),
        _ => json!({}),
    }
}
