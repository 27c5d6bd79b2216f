//! What is counted about requests. Labels come from closed sets: the templates of the router, the methods of the
//! standard, the five classes of status.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Route templates kept apart. A router has dozens; should something produce templates without end, the rest is one.
const ROUTES_MAX: usize = 512;

/// Counts and latencies of requests, over the host's registry. Cloning shares them; the default is scraped by nobody.
#[derive(Clone)]
pub struct HttpMetrics {
    requests: Family<RequestLabels, Counter>,
    latency: Family<RouteLabel, Histogram>,
    routes: Arc<std::sync::Mutex<std::collections::BTreeSet<Arc<str>>>>,
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
        HttpMetrics {
            requests: Family::default(),
            // 1 ms to 33 s: below is fast enough, above is past every deadline.
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            routes: Arc::default(),
        }
    }
}

impl HttpMetrics {
    /// Exported through `registry` as `<prefix>_http_requests_total` and `<prefix>_request_latency_seconds`.
    #[must_use]
    pub fn register(prefix: &str, registry: &mut Registry) -> Self {
        let metrics = HttpMetrics::default();
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register("http_requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "request_latency_seconds",
            "From the head of a request to the head of its answer",
            metrics.latency.clone(),
        );
        metrics
    }

    pub(super) fn answered(&self, route: Option<&str>, method: &Method, status: StatusCode, took: Duration) {
        let route = Route(self.intern(route.unwrap_or("unmatched")));
        self.latency.get_or_create(&RouteLabel { route: route.clone() }).observe(took.as_secs_f64());
        let labels = RequestLabels { route, method: method_label(method), status: status_label(status) };
        self.requests.get_or_create(&labels).inc();
    }

    fn intern(&self, route: &str) -> Arc<str> {
        let mut routes = self.routes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = routes.get(route) {
            return Arc::clone(known);
        }
        let new: Arc<str> = if routes.len() < ROUTES_MAX { route.into() } else { "other".into() };
        routes.insert(Arc::clone(&new));
        new
    }
}

impl fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpMetrics")
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn status_label(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
