//! Requests as traces, sent to a collector over OTLP/HTTP (feature `otel`, `otel.endpoint`).
//!
//! A span for each request of the routes that the subsystems have, named by its method and its route and never by what was
//! asked for. Health is not among them. Spans wait in a bounded queue of a thread that does nothing else; what does not fit, or
//! the collector does not take, is lost, and no request waits for it.

use std::{
    error::Error,
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::Response,
};
use opentelemetry::{
    KeyValue,
    propagation::TextMapPropagator as _,
    trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _},
};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use ron_core::NodeId;

/// How long a collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What is read of its answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// What sends traces.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// To the collector at `endpoint`, which is `http://HOST:PORT`.
    pub(crate) fn start(endpoint: &str, node: NodeId) -> Result<Self, Box<dyn Error>> {
        let exporter = SpanExporter::builder().with_http().with_http_client(Plain);
        let exporter = exporter.with_protocol(Protocol::HttpBinary).with_timeout(TIMEOUT);
        let exporter =
            exporter.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/'))).build()?;
        let resource = Resource::builder().with_service_name("refd").with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", node.to_string()),
        ]);
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        Ok(Traces(provider.build()))
    }

    /// Has a span made of every request to `routes`.
    pub(crate) fn of(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.0.tracer("refd"), traced))
    }

    /// Sends what waits. Blocks, for as long as a batch may take.
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

async fn traced(State(tracer): State<SdkTracer>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let method = request.method().to_string();
    let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
    let span = tracer.span_builder(format!("{method} {route}")).with_kind(SpanKind::Server);
    let span = span
        .with_attributes([KeyValue::new("http.request.method", method), KeyValue::new("http.route", route)]);
    let mut span = span.start_with_context(&tracer, &parent);
    let response = next.run(request).await;
    let status = response.status();
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
    if status.is_server_error() {
        span.set_status(Status::error(status.canonical_reason().unwrap_or("error")));
    }
    span.end();
    response
}

/// Posts over plain HTTP, and blocks: it runs on the thread of the exporter, where nothing else does.
#[derive(Debug)]
struct Plain;

impl HttpClient for Plain {
    fn send_bytes<'life, 'answer>(
        &'life self,
        request: opentelemetry_http::Request<Bytes>,
    ) -> std::pin::Pin<
        Box<dyn Future<Output = Result<opentelemetry_http::Response<Bytes>, HttpError>> + Send + 'answer>,
    >
    where
        'life: 'answer,
    {
        Box::pin(async move { post(&request) })
    }
}

fn post(
    request: &opentelemetry_http::Request<Bytes>,
) -> Result<opentelemetry_http::Response<Bytes>, HttpError> {
    let host = request.uri().authority().ok_or("a collector has a host")?.as_str();
    let addr = host.to_socket_addrs()?.next().ok_or("the host of the collector has no address")?;
    let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut head = format!("POST {} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n", request.uri().path());
    head += &format!("content-length: {}\r\n", request.body().len());
    for (name, value) in request.headers().iter().filter(|(name, _)| *name != "content-length") {
        head += &format!("{name}: {}\r\n", value.to_str()?);
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n")?;
    stream.write_all(request.body())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let head = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let status = std::str::from_utf8(head)?.split(' ').nth(1).ok_or("the collector speaks no HTTP")?;
    // What else it says is not needed.
    Ok(opentelemetry_http::Response::builder().status(status.trim().parse::<u16>()?).body(Bytes::new())?)
}
