//! What is counted about requests. Labels come from closed sets: the templates of the router, the methods of the
//! standard, the five classes of status.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::exponential_buckets},
    registry::Registry,
};

use crate::Histogram;

/// Route templates kept apart. A router has dozens; should something produce templates without end, the rest is one.
const ROUTES_MAX: usize = 512;

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
const STATUSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counts and latencies of requests, over the host's registry. Cloning shares them; the default is scraped by nobody.
#[derive(Clone)]
pub struct HttpMetrics {
    shared: Arc<Shared>,
}

struct Shared {
    requests: Family<RequestLabels, Counter>,
    latency: Family<RouteLabel, Histogram>,
    routes: Mutex<BTreeMap<Arc<str>, Arc<RouteCounts>>>,
    unmatched: OnceLock<Arc<RouteCounts>>,
}

/// What is counted about one route, with its labels resolved: counting takes no lock.
pub(super) struct RouteCounts {
    route: Route,
    latency: Histogram,
    /// By method and status, each made when it is first needed.
    requests: [[OnceLock<Counter>; STATUSES.len()]; METHODS.len()],
    all_requests: Family<RequestLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: Route,
    method: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: Route,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Route(Arc<str>);

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&&*self.0, encoder)
    }
}

impl Default for HttpMetrics {
    fn default() -> Self {
        // 1 ms to 33 s: below is fast enough, above is past every deadline.
        let latency = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let shared = Shared {
            requests: Family::default(),
            latency: Family::new_with_constructor(latency),
            routes: Mutex::default(),
            unmatched: OnceLock::new(),
        };
        HttpMetrics { shared: Arc::new(shared) }
    }
}

impl HttpMetrics {
    /// Exported through `registry` as `<prefix>_http_requests_total` and `<prefix>_request_latency_seconds`.
    #[must_use]
    pub fn register(prefix: &str, registry: &mut Registry) -> Self {
        let metrics = HttpMetrics::default();
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register("http_requests", "Requests answered", metrics.shared.requests.clone());
        registry.register(
            "request_latency_seconds",
            "From the head of a request to the head of its answer",
            metrics.shared.latency.clone(),
        );
        metrics
    }

    /// What is counted about the route with this template. Resolve it once and keep it.
    pub(super) fn route(&self, template: &str) -> Arc<RouteCounts> {
        let mut routes = self.shared.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = routes.get(template) {
            return Arc::clone(known);
        }
        let name: Arc<str> = if routes.len() < ROUTES_MAX { template.into() } else { "other".into() };
        let new = || Arc::new(RouteCounts::new(Arc::clone(&name), &self.shared));
        Arc::clone(routes.entry(Arc::clone(&name)).or_insert_with(new))
    }

    /// What is counted about requests that no route is for.
    pub(super) fn unmatched(&self) -> &Arc<RouteCounts> {
        self.shared.unmatched.get_or_init(|| self.route("unmatched"))
    }
}

impl RouteCounts {
    fn new(name: Arc<str>, shared: &Shared) -> Self {
        let route = Route(name);
        let latency = shared.latency.get_or_create(&RouteLabel { route: route.clone() }).clone();
        RouteCounts { route, latency, requests: Default::default(), all_requests: shared.requests.clone() }
    }

    /// The template; `other` for those beyond what is kept apart.
    pub(super) fn name(&self) -> &str {
        &self.route.0
    }

    pub(super) fn answered(&self, method: &Method, status: StatusCode, took: Duration) {
        self.latency.observe(took.as_secs_f64());
        let (method, status) = (method_at(method), status_at(status));
        let new = || {
            let (method, status) = (METHODS[method], STATUSES[status]);
            let labels = RequestLabels { route: self.route.clone(), method, status };
            self.all_requests.get_or_create(&labels).clone()
        };
        self.requests[method][status].get_or_init(new).inc();
    }
}

impl fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpMetrics")
    }
}

impl fmt::Debug for RouteCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RouteCounts({})", self.name())
    }
}

/// Its place in [`METHODS`].
fn method_at(method: &Method) -> usize {
    match *method {
        Method::GET => 0,
        Method::HEAD => 1,
        Method::POST => 2,
        Method::PUT => 3,
        Method::PATCH => 4,
        Method::DELETE => 5,
        Method::OPTIONS => 6,
        _ => 7,
    }
}

/// Its place in [`STATUSES`].
fn status_at(status: StatusCode) -> usize {
    match status.as_u16() {
        100..=199 => 0,
        200..=299 => 1,
        300..=399 => 2,
        400..=499 => 3,
        _ => 4,
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    #[test]
    fn templates_without_end_are_one() {
        let metrics = HttpMetrics::default();
        for number in 0..2 * ROUTES_MAX {
            let template = format!("/{number}");
            let counts = metrics.route(&template);
            assert_eq!(counts.name(), if number < ROUTES_MAX { &template } else { "other" });
            counts.answered(&Method::GET, StatusCode::OK, Duration::ZERO);
        }
        assert_eq!(metrics.route("other").latency.count(), ROUTES_MAX as u64);
        assert_eq!(metrics.shared.routes.lock().unwrap().len(), ROUTES_MAX + 1);
    }
}
