//! The page at `/`: how a node is doing, for a person, live. Three files that are part of the program, and two routes that
//! say all of it as JSON, once or again and again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header},
    response::Response,
    routing::get,
};
use prometheus_client::{encoding::text, registry::Registry as Prometheus};
use ron_core::{
    Deadline, Metrics, NodeId, Ready, Stop,
    http::{Guard, Json},
    net::Endpoint,
};
use ron_dht::Dht;
use ron_overlay::Overlay;
use ron_registry::Registry;
use ron_storage::{Store, http::Kept};
use serde_json::{Value, json};

use crate::unfold::Unfold;

/// Between two looks. Each costs some milliseconds, and a person sees no more.
const EVERY: Duration = Duration::from_secs(1);

/// People who look at once.
const VIEWERS: u32 = 32;

/// How long the overlay may take to say how its topics are doing.
const TOPICS_MAX: Duration = Duration::from_secs(1);

/// Nothing from elsewhere, nothing inline, nothing that is not named here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is looked at.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) ready: Ready,
    pub(crate) endpoint: Endpoint,
    pub(crate) dht: Dht,
    pub(crate) overlay: Overlay,
    pub(crate) store: Store,
    pub(crate) kept: Option<Kept>,
    pub(crate) registry: Registry,
    pub(crate) scraped: Arc<Prometheus>,
}

/// The page and what it draws, for anybody who may look.
pub(crate) fn router(watched: Watched, metrics: &Metrics) -> Router {
    let guard = Guard::new("dashboard").in_flight(VIEWERS).metrics(metrics);
    let looks = Router::new().route("/state", get(state)).route("/events", get(events)).route_layer(guard);
    Router::new()
        .route("/", get(async || page("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route("/page.js", get(async || page("text/javascript; charset=utf-8", include_str!("page/page.js"))))
        .route("/page.css", get(async || page("text/css; charset=utf-8", include_str!("page/page.css"))))
        .merge(looks.with_state(watched))
}

fn page(kind: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn state(State(watched): State<Watched>) -> Json<Value> {
    Json(watched.look().await)
}

async fn events(State(watched): State<Watched>, request: Request) -> Response {
    let stop = request.extensions().get::<Stop>().cloned();
    let next = |(watched, stop, is_first): (Watched, Option<Stop>, bool)| async move {
        if !is_first && stopped_within(EVERY, stop.as_ref()).await {
            return None;
        }
        let event = format!("data: {}\n\n", watched.look().await);
        Some((Bytes::from(event), (watched, stop, false)))
    };
    let mut response = Response::new(Body::from_stream(Unfold::new((watched, stop, true), next)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the server stopped before `time` was over.
async fn stopped_within(time: Duration, stop: Option<&Stop>) -> bool {
    match stop {
        Some(stop) => tokio::time::timeout(time, stop.requested()).await.is_ok(),
        None => {
            tokio::time::sleep(time).await;
            false
        }
    }
}

impl Watched {
    async fn look(&self) -> Value {
        let mut encoded = String::new();
        // A metric that cannot be written is told where it is asked for; here it is only missing.
        let _ = text::encode(&mut encoded, &self.scraped);
        let numbers = Numbers::of(&encoded);
        let (ready, me) = (self.ready.status(), self.endpoint.node_id());
        let (dht, usage) = (self.dht.status(), self.store.usage());
        let log = self.registry.status();
        let sessions: Vec<NodeId> = self.overlay.peers().iter().map(|peer| peer.id).collect();
        let topics = self.overlay.topics(Deadline::after(TOPICS_MAX)).await.unwrap_or_default();
        let peers: Vec<Value> = self
            .dht
            .peers()
            .iter()
            .map(|peer| {
                let id = peer.contact.id;
                json!({
                    "id": id.to_string(),
                    "addrs": *peer.contact.addrs,
                    "rtt_ms": peer.rtt.mean().map(|rtt| rtt.as_secs_f64() * 1e3),
                    "shared_bits": shared_bits(me, id),
                    "session": sessions.contains(&id),
                })
            })
            .collect();
        let gates = ready.gates.iter().map(|gate| json!({"name": gate.name, "reason": gate.reason}));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "node": me.to_string(),
            "addrs": self.endpoint.local_addrs(),
            "ready": {"reads": ready.reads, "writes": ready.writes, "gates": gates.collect::<Vec<_>>()},
            "dht": {
                "peers": peers,
                "network_size": self.dht.network_size(),
                "records": dht.records,
                "provided": dht.provided,
                "lookups": numbers.sum("ron_dht_lookups_total"),
                "hops": numbers.mean("ron_dht_lookup_hops"),
                "seconds": numbers.mean("ron_dht_lookup_seconds"),
                "depths": numbers.distribution("ron_dht_lookup_hops").into_iter().map(|(most, searches)| {
                    json!({"most": most, "searches": searches})
                }).collect::<Vec<_>>(),
                "ended": numbers.labelled("ron_dht_lookups_total", "reason").map(|(reason, searches)| {
                    json!({"reason": reason, "searches": searches})
                }).collect::<Vec<_>>(),
            },
            "overlay": {
                "sessions": sessions.len(),
                "topics": topics.iter().map(|topic| json!({
                    "name": topic.name,
                    "neighbours": topic.neighbours.len(),
                    "published": topic.published,
                    "delivered": topic.delivered,
                })).collect::<Vec<_>>(),
            },
            "storage": {
                "objects": usage.objects,
                "bytes": usage.bytes,
                "pinned": usage.pinned,
                "quarantined": usage.quarantined,
                "disk_bytes": usage.disk_bytes,
                "free_bytes": usage.free_bytes,
            },
            "keeping": self.kept.as_ref().map(Kept::status),
            "registry": {
                "origin": self.registry.origin(),
                "follows": self.registry.follows(),
                "version": log.head.version,
                "hash": log.head.hash.to_string(),
                "names": log.names,
                "verified": log.verified,
            },
            "queues": numbers.queues(),
        })
    }
}

/// Bits of the prefix that two ids share: which bucket one has in the table of the other.
fn shared_bits(one: NodeId, other: NodeId) -> u32 {
    let mut bits = 0;
    for (one, other) in one.as_bytes().iter().zip(other.as_bytes()) {
        bits += (one ^ other).leading_zeros();
        if one != other {
            break;
        }
    }
    bits
}

/// What the metrics say, by name and labels.
struct Numbers<'a>(BTreeMap<(&'a str, &'a str), f64>);

impl<'a> Numbers<'a> {
    fn of(text: &'a str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Numbers(
            lines
                .filter_map(|line| {
                    let (name, value) = line.rsplit_once(' ')?;
                    let (name, labels) = name.split_once('{').unwrap_or((name, ""));
                    Some(((name, labels.trim_end_matches('}')), value.parse().ok()?))
                })
                .collect(),
        )
    }

    fn sum(&self, name: &str) -> f64 {
        self.0.iter().filter(|((known, _), _)| *known == name).map(|(_, value)| value).sum()
    }

    /// Of a distribution; nothing before there was anything.
    fn mean(&self, name: &str) -> Option<f64> {
        let count = self.sum(&format!("{name}_count"));
        (count > 0.0).then(|| self.sum(&format!("{name}_sum")) / count)
    }

    /// Of a distribution, what fell between each bound and the one before; none is that beyond all of them.
    fn distribution(&self, name: &str) -> Vec<(Option<f64>, f64)> {
        let name = format!("{name}_bucket");
        let bounds = self.labelled(&name, "le");
        let mut bounds: Vec<(f64, f64)> = bounds
            .filter_map(|(bound, count)| Some((bound.replace("+Inf", "inf").parse().ok()?, count)))
            .collect();
        bounds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let below = std::iter::once(0.0).chain(bounds.iter().map(|(_, count)| *count));
        let each = bounds
            .iter()
            .zip(below)
            .map(|((bound, count), below)| (bound.is_finite().then_some(*bound), count - below));
        each.filter(|(_, count)| *count > 0.0).collect()
    }

    /// What a metric has for each value of its only label.
    fn labelled(&self, name: &str, label: &str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |((known, labels), value)| {
            let labelled = labels.strip_prefix(label)?.strip_prefix("=\"")?.strip_suffix('"')?;
            (*known == name).then_some((labelled, *value))
        })
    }

    /// Every queue of every part, how full it is and how much it takes.
    fn queues(&self) -> Vec<Value> {
        let capacities = self.0.iter().filter_map(|((name, labels), capacity)| {
            let part = name.strip_suffix("_queue_capacity")?;
            let depth = self.0.get(&(&*format!("{part}_queue_depth"), *labels)).copied().unwrap_or_default();
            let queue = labels.strip_prefix("queue=\"")?.trim_end_matches('"');
            let part = part.trim_start_matches("ron_");
            Some(json!({"part": part, "name": queue, "depth": depth, "capacity": capacity}))
        });
        capacities.filter(|queue| queue["capacity"] != 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_as_they_are_written() {
        let text = "# TYPE a_queue_depth gauge\na_queue_depth{queue=\"work\"} 3\na_queue_capacity{queue=\"work\"} 512\n\
                    h_sum 6.0\nh_count 4\nb_bucket{le=\"10.0\"} 5\nb_bucket{le=\"1.0\"} 4\nb_bucket{le=\"2.0\"} 4\nb_bucket{le=\"+Inf\"} 7\n\
                    n_total{r=\"x\"} 1\nn_total{r=\"y\"} 2\n# EOF\n";
        let numbers = Numbers::of(text);
        assert_eq!((numbers.sum("n_total"), numbers.mean("h"), numbers.mean("g")), (3.0, Some(1.5), None));
        assert_eq!(numbers.queues(), [json!({"part": "a", "name": "work", "depth": 3.0, "capacity": 512.0})]);
        let labelled: Vec<_> = numbers.labelled("n_total", "r").collect();
        assert_eq!(labelled, [("x", 1.0), ("y", 2.0)]);
        assert_eq!(numbers.distribution("b"), [(Some(1.0), 4.0), (Some(10.0), 1.0), (None, 2.0)]);
    }

    #[test]
    fn near_peers_share_more() {
        let of = |first| NodeId::from_bytes(std::array::from_fn(|at| if at == 0 { first } else { 0 }));
        assert_eq!([0, 1, 0x80].map(|first| shared_bits(of(0), of(first))), [256, 7, 0]);
    }
}
