//! One connection, from its seat to its last byte, and what every request on it has in common.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, MatchedPath, Request},
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, StatusCode, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::{Layer, Service};

use super::{
    ClientAddr, CorrId, HttpMetrics, Problem, Settings, Stream, TrustedProxies, Wrap,
    body::{Arriving, Scope},
    guard::Held,
    head::{Fault, HeadLimits},
    ops,
    pace::PaceLimit,
    seats::Seat,
    upgrade::{Handover, Upgrade, Upgraded},
    wire::{BodyLength, GaveUp, HeadTimer, Wire, WireControl, WireLimits},
};
use crate::{Counter, Deadline, Metrics, Snapshot, Spawner, Stop, Tally, TaskSpec, supervisor::catch_all};

pub(super) const CONNECTION: TaskSpec =
    TaskSpec::new("ron-core", "http_connection").what("serves the requests of one connection");

/// Patience with heads that come while draining and in the lobby. A client that is there has sent its head by then.
const HURRY: Duration = Duration::from_secs(1);

/// What is read and thrown away after the last answer, so that the client sees the answer and not a reset: closing
/// with unread bytes makes the kernel send one.
const LINGER_BYTES: usize = 2 << 20;
const LINGER: Duration = Duration::from_millis(500);

/// What all connections of a server share.
pub(super) struct Shared {
    work: Snapshot<Router>,
    ops: Option<Router>,
    settings: Settings,
    pub(super) proxies: TrustedProxies,
    wrap: Option<Arc<dyn Wrap>>,
    metrics: HttpMetrics,
    stop: Stop,
    panics: Tally,
    slow_heads: Tally,
    slow_readers: Tally,
    handshakes: Tally,
    deadlines: Tally,
}

impl Shared {
    #[allow(clippy::too_many_arguments, reason = "called once, by the builder that holds them all")]
    pub(super) fn new(
        work: Router,
        ops: Option<Router>,
        settings: Settings,
        proxies: TrustedProxies,
        wrap: Option<Arc<dyn Wrap>>,
        http_metrics: HttpMetrics,
        metrics: &Metrics,
        stop: Stop,
    ) -> Self {
        Shared {
            work: Snapshot::new(work.layer(NoteRoute)),
            ops: ops.map(|ops| ops.layer(NoteRoute)),
            settings,
            proxies,
            wrap,
            metrics: http_metrics,
            stop,
            panics: metrics.tally(Counter::TasksPanicked, CONNECTION.name),
            slow_heads: metrics.tally(Counter::IoTimeouts, "http_head"),
            slow_readers: metrics.tally(Counter::IoTimeouts, "http_write"),
            handshakes: metrics.tally(Counter::IoTimeouts, "http_handshake"),
            deadlines: metrics.tally(Counter::IoTimeouts, "http_request"),
        }
    }

    /// From the next request on, `work` answers.
    pub(super) fn mount(&self, work: Router) {
        self.work.replace(work.layer(NoteRoute));
    }

    fn pace(&self) -> PaceLimit {
        let window = self.settings.io_timeout.max(Duration::from_millis(1));
        let bytes = (self.settings.bytes_per_second_min as f64 * window.as_secs_f64()) as u64;
        PaceLimit { window, bytes: bytes.max(1) }
    }

    fn wire_limits(&self, lobby: bool) -> WireLimits {
        let settings = &self.settings;
        WireLimits {
            head: HeadLimits {
                bytes_max: settings.head_bytes_max,
                headers_max: settings.headers_max,
                line_max: settings.uri_bytes_max,
            },
            head_timeout: if lobby { settings.head_timeout.min(HURRY) } else { settings.head_timeout },
            idle_timeout: settings.idle_timeout,
            write_pace: self.pace(),
        }
    }
}

/// A connection that has a seat.
pub(super) struct Connection {
    shared: Arc<Shared>,
    stream: Box<dyn Stream>,
    peer: Option<IpAddr>,
    seat: Seat,
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        stream: Box<dyn Stream>,
        peer: Option<IpAddr>,
        seat: Seat,
    ) -> Self {
        Connection { shared, stream, peer, seat }
    }

    pub(super) fn spawn(self, spawner: &Spawner) {
        let panics = self.shared.panics.clone();
        spawner.spawn(CONNECTION, |_| async move {
            // A panic in the body of an answer reaches here. It ends this connection and nothing else.
            if let Err(panic) = catch_all(self.run()).await {
                panics.add(1);
                tracing::error!(panic, "a connection panicked");
            }
        });
    }

    async fn run(self) {
        let Connection { shared, stream, peer, seat } = self;
        let stop = shared.stop.clone();
        let stream = match &shared.wrap {
            Some(wrap) if peer.is_some() => {
                let handshake = tokio::time::timeout(shared.settings.handshake_timeout, wrap.wrap(stream));
                let wrapped = tokio::select! {
                    biased;
                    () = seat.taken() => return,
                    wrapped = handshake => wrapped,
                };
                match wrapped {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return tracing::debug!(%error, "handshake failed"),
                    Err(_) => return shared.handshakes.add(1),
                }
            }
            _ => stream,
        };

        let (wire, control) = Wire::new(stream, shared.wire_limits(seat.is_lobby()));
        let handover = Handover::default();
        let requests = Requests {
            shared: Arc::clone(&shared),
            wire: control.clone(),
            peer,
            lobby: seat.is_lobby(),
            handover: handover.clone(),
        };
        let mut serving = http1::Builder::new()
            // The wire keeps the time of heads; this timer would count the wait for the next request too.
            .header_read_timeout(None)
            .max_headers(shared.settings.headers_max)
            .max_buf_size(shared.settings.head_bytes_max)
            .keep_alive(!seat.is_lobby())
            .serve_connection(TokioIo::new(wire), requests);
        let (mut draining, mut head_timer) = (false, HeadTimer::default());
        let ended = loop {
            // Without the shutdown: there may be a last word to say.
            let served = poll_fn(|cx| match serving.poll_without_shutdown(cx) {
                Poll::Ready(ended) => Poll::Ready(ended),
                Poll::Pending => control.poll_overdue(cx, &mut head_timer).map(Ok),
            });
            tokio::select! {
                biased;
                ended = served => break ended,
                () = seat.taken() => return,
                () = stop.requested(), if !draining => {
                    draining = true;
                    Pin::new(&mut serving).graceful_shutdown();
                    if !control.hurry(HURRY) && !seat.is_lobby() {
                        return;
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
        let parts = serving.into_parts();
        let (stream, held) = parts.io.into_inner().into_stream();
        let taken = handover.take().and_then(|(upgrade, places)| Some((upgrade.take()?, places)));
        match taken.filter(|_| control.gave_up().is_none()) {
            Some((owner, _places)) => {
                let early = if held.is_empty() {
                    parts.read_buf
                } else {
                    [&parts.read_buf[..], &held].concat().into()
                };
                tokio::select! {
                    biased;
                    () = seat.taken() => {}
                    () = owner(Upgraded { stream, early, stop }) => {}
                }
            }
            None => last_words(&shared, &control, stream).await,
        }
    }
}

/// Says why, if this side ended it and the parser could not say so, and lets the client hear it.
async fn last_words(shared: &Shared, wire: &WireControl, mut stream: Box<dyn Stream>) {
    let problem = match wire.gave_up() {
        Some(GaveUp::Fault(Fault::Line)) => {
            Some(Problem::new(StatusCode::URI_TOO_LONG, "uri_too_long", "the request line is too long"))
        }
        Some(GaveUp::Fault(Fault::Headers)) => Some(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head_too_large",
            "the head of the request is too large",
        )),
        Some(GaveUp::Fault(Fault::Ambiguous(why))) => Some(Problem::malformed(why)),
        Some(GaveUp::SlowHead) => {
            shared.slow_heads.add(1);
            Some(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_head", "the head came too slowly"))
        }
        Some(GaveUp::SlowReader) => return shared.slow_readers.add(1),
        Some(GaveUp::Idle) | None => None,
    };
    let owed = wire.is_owed();
    let linger = async {
        if let Some(problem) = problem {
            stream.write_all(&plain_response(&problem)).await?;
        }
        stream.shutdown().await?;
        let (mut scrap, mut scrapped) = ([0; 2048], 0);
        while owed && scrapped < LINGER_BYTES {
            match stream.read(&mut scrap).await? {
                0 => break,
                bytes => scrapped += bytes,
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, linger).await;
}

/// The bytes of an answer that no request stands behind.
fn plain_response(problem: &Problem) -> Vec<u8> {
    let body = problem.to_json();
    let mut bytes = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        problem.status(),
        body.len(),
    )
    .into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}

/// What the parser hands each request to.
struct Requests {
    shared: Arc<Shared>,
    wire: WireControl,
    peer: Option<IpAddr>,
    lobby: bool,
    handover: Handover,
}

impl hyper::service::Service<http::Request<Incoming>> for Requests {
    type Response = http::Response<Leaving>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Leaving>, Infallible>> + Send>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        let length = match request.body().size_hint().exact() {
            Some(bytes) if !chunked => BodyLength::Exact(bytes),
            _ => BodyLength::Unknown,
        };
        self.wire.begin_request(length);
        let exchange = Exchange {
            shared: Arc::clone(&self.shared),
            peer: self.peer,
            lobby: self.lobby,
            last: length == BodyLength::Unknown || self.lobby,
        };
        let (wire, handover) = (self.wire.clone(), self.handover.clone());
        Box::pin(async move {
            let (mut response, mut held) = exchange.answer(request).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                if let Some(upgrade) = response.extensions_mut().remove::<Upgrade>() {
                    handover.leave(upgrade, held.take());
                }
            }
            Ok(response.map(|body| Leaving { body, wire, _held: held }))
        })
    }
}

/// One request and its answer.
struct Exchange {
    shared: Arc<Shared>,
    peer: Option<IpAddr>,
    lobby: bool,
    /// Whether the connection ends with it.
    last: bool,
}

impl Exchange {
    async fn answer(self, request: http::Request<Incoming>) -> (Response, Option<Held>) {
        let began = crate::now();
        let scope = Scope::new(CorrId::of(request.headers()), &self.shared.settings);
        let method = request.method().clone();
        let mut response = match self.route(&request) {
            Ok(router) => self.run(router, request, &scope).await,
            Err(problem) => problem.into_response(),
        };
        self.finish(&mut response, &scope);
        let route = scope.route.get().map(MatchedPath::as_str);
        let took = crate::now().saturating_duration_since(began);
        self.shared.metrics.answered(route, &method, response.status(), took);
        tracing::debug!(corr_id = %scope.corr, route, %method, status = response.status().as_u16(), ?took, "answered");
        let held = response.extensions_mut().remove::<Held>();
        (response, held)
    }

    /// Who answers: the health routes always, the work only while there is room and time for it.
    fn route(&self, request: &http::Request<Incoming>) -> Result<Router, Problem> {
        let hosts = request.headers().get_all(header::HOST).iter().count();
        if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
            return Err(Problem::malformed("a request has one host"));
        }
        if let Some(ops) = self.shared.ops.as_ref().filter(|_| ops::is_ops(request.uri().path())) {
            Ok(ops.clone())
        } else if self.shared.stop.is_requested() {
            Err(Problem::draining())
        } else if self.lobby {
            Err(Problem::crowded())
        } else {
            Ok(Router::clone(&self.shared.work.load()))
        }
    }

    async fn run(
        &self,
        mut router: Router,
        request: http::Request<Incoming>,
        scope: &Arc<Scope>,
    ) -> Response {
        let shared = &self.shared;
        let client = match self.peer {
            Some(peer) => ClientAddr::Ip(shared.proxies.client(peer, request.headers())),
            None => ClientAddr::Local,
        };
        let deadline = Deadline::after(shared.settings.deadline);
        let mut request: Request =
            request.map(|body| Body::new(Arriving::new(body, Arc::clone(scope), shared.pace())));
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(scope));
        extensions.insert(scope.corr);
        extensions.insert(client);
        extensions.insert(deadline);
        extensions.insert(shared.stop.clone());
        // The body counts itself, by the limit of its route.
        DefaultBodyLimit::disable().apply(&mut request);

        let mut work = pin!(catch_all(async move { router.call(request).await }));
        let answered = match deadline.limit("request", work.as_mut()).await {
            // The guard of the route keeps time itself.
            Err(_) if scope.has_own_deadline() => Ok(work.await),
            answered => answered,
        };
        match answered {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(impossible))) => match impossible {},
            Ok(Err(panic)) => {
                shared.panics.add(1);
                tracing::error!(panic, corr_id = %scope.corr, "a handler panicked");
                Problem::panicked().into_response()
            }
            Err(_) => {
                shared.deadlines.add(1);
                Problem::timeout().into_response()
            }
        }
    }

    /// What every answer has, whoever gave it.
    fn finish(&self, response: &mut Response, scope: &Scope) {
        let cut = scope.cut();
        // A handler that could not read its body knows less about why than the body does.
        if let Some(cut) =
            cut.filter(|_| response.status().is_client_error() || response.status().is_server_error())
        {
            *response = cut.problem().into_response();
        }
        let bare = !response.headers().contains_key(header::CONTENT_TYPE);
        if let Some(problem) = Problem::of_status(response.status()).filter(|_| bare) {
            let allow = response.headers_mut().remove(header::ALLOW);
            *response = problem.into_response();
            if let Some(allow) = allow {
                response.headers_mut().insert(header::ALLOW, allow);
            }
        }
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            *response.body_mut() = Body::from(problem.with_corr(scope.corr).to_json());
            // The router wrote the length of the body without the correlation.
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        response.headers_mut().insert(CorrId::HEADER, scope.corr.to_header());
        if self.last || cut.is_some() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// The body of an answer. When it is gone, the answer is written and its places are given back.
pub(super) struct Leaving {
    body: Body,
    wire: WireControl,
    _held: Option<Held>,
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.wire.end_response();
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaving")
    }
}

/// Writes the template that a request matched into its scope, for the metrics: it is known only inside the router.
#[derive(Debug, Clone, Copy)]
struct NoteRoute;

#[derive(Debug, Clone)]
struct NotesRoute<S>(S);

impl<S> Layer<S> for NoteRoute {
    type Service = NotesRoute<S>;

    fn layer(&self, inner: S) -> NotesRoute<S> {
        NotesRoute(inner)
    }
}

impl<S: Service<Request>> Service<Request> for NotesRoute<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> S::Future {
        let extensions = request.extensions();
        if let (Some(scope), Some(path)) = (extensions.get::<Arc<Scope>>(), extensions.get::<MatchedPath>()) {
            let _ = scope.route.set(path.clone());
        }
        self.0.call(request)
    }
}
