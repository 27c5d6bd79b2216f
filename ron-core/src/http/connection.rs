//! One connection, from its seat to its last byte, and what every request on it has in common.

use std::{
    cell::RefCell,
    convert::Infallible,
    fmt,
    future::{Future, Ready, poll_fn, ready},
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, MatchedPath, Request},
    response::{IntoResponse as _, Response},
    routing::future::RouteFuture,
};
use http::{Extensions, HeaderValue, Method, StatusCode, Uri, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, Sleep, sleep_until},
};
use tower::{Layer, Service};

use super::{
    ClientAddr, CorrId, HttpMetrics, Problem, Settings, Stream, TrustedProxies, Wrap,
    body::{Arriving, Scope},
    guard::Held,
    head::{Fault, HeadLimits},
    metrics::RouteCounts,
    ops,
    pace::PaceLimit,
    seats::Seat,
    upgrade::{Handover, Upgrade, Upgraded},
    wire::{BodyLength, GaveUp, HeadTimer, Wire, WireControl, WireLimits},
};
use crate::{
    Counter, Deadline, Metrics, Snapshot, Spawner, Stop, Tally, TaskSpec, Watch,
    supervisor::{catch, catch_all},
    sync::{Mutex, lock},
};

pub(super) const CONNECTION: TaskSpec =
    TaskSpec::new("ron-core", "http_connection").what("serves the requests of one connection");

/// Patience with heads that come while draining and in the lobby. A client that is there has sent its head by then.
const HURRY: Duration = Duration::from_secs(1);

/// What is read and thrown away after the last answer, so that the client sees the answer and not a reset: closing
/// with unread bytes makes the kernel send one.
const LINGER_BYTES: usize = 2 << 20;
const LINGER: Duration = Duration::from_millis(500);

/// Header lines that the parser has room for without being told. Told, it fills the room anew for every request.
const PARSER_HEADERS: usize = 100;

/// Routes whose counters a connection remembers. One client asks for few; for others there is a lookup under a lock.
const ROUTES_KNOWN: usize = 8;

/// What all connections of a server share.
pub(super) struct Shared {
    work: Snapshot<Routes>,
    ops: Option<Routes>,
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
            work: Snapshot::new(Routes::new(work)),
            ops: ops.map(Routes::new),
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
        self.work.replace(Routes::new(work));
    }

    fn panicked(&self, panic: &str, corr: CorrId) -> Response {
        self.panics.add(1);
        tracing::error!(panic, corr_id = %corr, "a handler panicked");
        Problem::panicked().into_response()
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
        let mut told = Extensions::new();
        told.insert(CorrId(0));
        told.insert(peer.map_or(ClientAddr::Local, ClientAddr::Ip));
        told.insert(Deadline::at(crate::now()));
        told.insert(stop.clone());
        let requests = Requests {
            work: RefCell::new(Work::new(shared.work.watch())),
            scope: RefCell::new(Arc::new(Scope::new(CorrId(0), &shared.settings))),
            link: Arc::new(Link {
                shared: Arc::clone(&shared),
                wire: control.clone(),
                handover: handover.clone(),
                counts: Mutex::new(Vec::new()),
            }),
            peer,
            told,
            lobby: seat.is_lobby(),
        };
        let mut parser = http1::Builder::new();
        // The wire has counted them; here it is only about room.
        if shared.settings.headers_max > PARSER_HEADERS {
            parser.max_headers(shared.settings.headers_max);
        }
        let mut serving = parser
            // The wire keeps the time of heads; this timer would count the wait for the next request too.
            .header_read_timeout(None)
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
    work: RefCell<Work>,
    /// That of the last request, for the next one if nobody else holds it any more.
    scope: RefCell<Arc<Scope>>,
    link: Arc<Link>,
    peer: Option<IpAddr>,
    /// What requests have in their extensions, but for what differs each time. A copy of it need not grow.
    told: Extensions,
    lobby: bool,
}

/// The host's routes, as this connection has them. It has a copy of its own: if each request made one, all cores would
/// count references to the same routes.
struct Work {
    newest: Watch<Routes>,
    routes: Router,
    copied: Arc<Routes>,
}

impl Work {
    fn new(mut newest: Watch<Routes>) -> Self {
        let copied = Arc::clone(newest.get());
        Work { newest, routes: copied.router.clone(), copied }
    }

    fn routes(&mut self) -> &mut Router {
        let newest = self.newest.get();
        if !Arc::ptr_eq(newest, &self.copied) {
            (self.routes, self.copied) = (newest.router.clone(), Arc::clone(newest));
        }
        &mut self.routes
    }
}

/// Who answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    Ops,
    Work,
}

/// What the requests of one connection have in common. Its references are counted for each connection and not for the
/// server: two cores that count the same thing with every request wait for each other.
struct Link {
    shared: Arc<Shared>,
    wire: WireControl,
    handover: Handover,
    /// Where requests to the routes that were asked for last are counted, the newest last.
    counts: Mutex<Vec<(MatchedPath, Arc<RouteCounts>)>>,
}

impl Link {
    /// Counts an answer of the route with this template; without one, of those that no route is for.
    fn answered(&self, template: Option<&MatchedPath>, method: &Method, status: StatusCode, took: Duration) {
        let Some(template) = template else {
            return self.shared.metrics.unmatched().answered(method, status, took);
        };
        let mut known = lock(&self.counts);
        // Nearly always they are one text, and not only equal.
        let is_same = |one: &MatchedPath| {
            std::ptr::eq(one.as_str(), template.as_str()) || one.as_str() == template.as_str()
        };
        if let Some((_, counts)) = known.iter().find(|(one, _)| is_same(one)) {
            return counts.answered(method, status, took);
        }
        let counts = self.shared.metrics.route(template.as_str());
        counts.answered(method, status, took);
        if known.len() == ROUTES_KNOWN {
            known.remove(0);
        }
        known.push((template.clone(), counts));
    }
}

impl hyper::service::Service<http::Request<Incoming>> for Requests {
    type Response = http::Response<Leaving>;
    type Error = Infallible;
    type Future = Exchange;

    fn call(&self, request: http::Request<Incoming>) -> Exchange {
        let began = crate::now();
        let coding = request.headers().get(header::TRANSFER_ENCODING);
        let length = match request.body().size_hint().exact() {
            Some(bytes) if coding.is_none() => BodyLength::Exact(bytes),
            _ => BodyLength::Unknown,
        };
        self.link.wire.begin_request(length);
        let deadline = Deadline::at(began + self.link.shared.settings.deadline.min(Deadline::LONGEST));
        let scope = self.scope(CorrId::of(request.headers()));
        let method = request.method().clone();
        let mut last = length == BodyLength::Unknown || self.lobby;
        let (asked, state) = match self.route(&request, coding) {
            Ok(whom) => {
                let uri = request.uri().clone();
                (Some((whom, uri)), self.begin(&scope, deadline, whom, request, length))
            }
            Err(problem) => {
                // Whose head makes no sense may have meant what follows otherwise too.
                last |= matches!(problem.status(), StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED);
                (None, Doing::Said(Box::new(problem.into_response())))
            }
        };
        Exchange { link: Arc::clone(&self.link), scope, method, last, began, deadline, asked, state }
    }
}

impl Requests {
    /// What this request and its guards tell each other.
    fn scope(&self, corr: CorrId) -> Arc<Scope> {
        let mut last = self.scope.borrow_mut();
        let scope = Scope::new(corr, &self.link.shared.settings);
        match Arc::get_mut(&mut last) {
            Some(last) => *last = scope,
            None => *last = Arc::new(scope),
        }
        Arc::clone(&last)
    }

    /// Who answers: the health routes always, the work only while there is room and time for it.
    fn route(
        &self,
        request: &http::Request<Incoming>,
        coding: Option<&HeaderValue>,
    ) -> Result<Whom, Problem> {
        let shared = &self.link.shared;
        let hosts = request.headers().get_all(header::HOST).iter().count();
        if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
            return Err(Problem::malformed("a request has one host"));
        }
        // The parser looks for `chunked` at the end; what is before it nobody here would take off again.
        if coding.is_some_and(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
            return Err(Problem::new(
                StatusCode::NOT_IMPLEMENTED,
                "transfer_encoding",
                "bodies come plain or in chunks",
            ));
        }
        if shared.ops.is_some() && ops::is_ops(request.uri().path()) {
            Ok(Whom::Ops)
        } else if shared.stop.is_requested() {
            Err(Problem::draining())
        } else if self.lobby {
            Err(Problem::crowded())
        } else {
            Ok(Whom::Work)
        }
    }

    /// Hands the request to its router.
    fn begin(
        &self,
        scope: &Arc<Scope>,
        deadline: Deadline,
        whom: Whom,
        request: http::Request<Incoming>,
        length: BodyLength,
    ) -> Doing {
        let shared = &self.link.shared;
        let client = match self.peer {
            Some(peer) => ClientAddr::Ip(shared.proxies.client(peer, request.headers())),
            None => ClientAddr::Local,
        };
        let has_body = length != BodyLength::Exact(0);
        let mut request: Request = request.map(|body| {
            // What is not there needs no limits, and no place to keep them.
            if !has_body {
                return Body::empty();
            }
            Body::new(Arriving::new(body, Arc::clone(scope), shared.pace()))
        });
        let mut told = self.told.clone();
        told.insert(Arc::clone(scope));
        tell(&mut told, scope.corr);
        tell(&mut told, client);
        tell(&mut told, deadline);
        request.extensions_mut().extend(told);
        if has_body {
            // The body counts itself, by the limit of its route.
            DefaultBodyLimit::disable().apply(&mut request);
        }
        let called = match (whom, &shared.ops) {
            (Whom::Ops, Some(ops)) => catch(|| ops.router.clone().call(request)),
            _ => catch(|| self.work.borrow_mut().routes().call(request)),
        };
        match called {
            Ok(work) => Doing::Work(work, None),
            Err(panic) => Doing::Said(Box::new(shared.panicked(&panic, scope.corr))),
        }
    }
}

/// Puts `news` where something of its kind was.
fn tell<T: Clone + Send + Sync + 'static>(told: &mut Extensions, news: T) {
    match told.get_mut() {
        Some(place) => *place = news,
        None => drop(told.insert(news)),
    }
}

/// One request and its answer. The parser has a place for it, so it is not boxed and its parts are few.
struct Exchange {
    link: Arc<Link>,
    scope: Arc<Scope>,
    method: Method,
    /// Whether the connection ends with it.
    last: bool,
    began: Instant,
    deadline: Deadline,
    /// Who was asked, and for what.
    asked: Option<(Whom, Uri)>,
    state: Doing,
}

/// How far it is.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is what there is nearly always; a box would be one more allocation a request"
)]
enum Doing {
    /// The router works on it; with the clock of the deadline, once it was waited for.
    Work(RouteFuture<Infallible>, Option<Pin<Box<Sleep>>>),
    Said(Box<Response>),
    Nothing,
}

impl Future for Exchange {
    type Output = Result<http::Response<Leaving>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let response = match &mut this.state {
            Doing::Work(work, timer) => match catch(|| Pin::new(work).poll(cx)) {
                Ok(Poll::Ready(Ok(response))) => response,
                Ok(Poll::Ready(Err(impossible))) => match impossible {},
                Err(panic) => this.panicked(&panic),
                // The guard of the route keeps time itself.
                Ok(Poll::Pending) if this.scope.has_own_deadline() => return Poll::Pending,
                Ok(Poll::Pending) => {
                    let at = this.deadline.instant();
                    let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
                    std::task::ready!(timer.as_mut().poll(cx));
                    this.link.shared.deadlines.add(1);
                    Problem::timeout().into_response()
                }
            },
            Doing::Said(_) | Doing::Nothing => match std::mem::replace(&mut this.state, Doing::Nothing) {
                Doing::Said(response) => *response,
                _ => Problem::panicked().into_response(),
            },
        };
        // What the router leaves behind is foreign code as well.
        let dropped = catch(|| this.state = Doing::Nothing);
        let response = match dropped {
            Ok(()) => response,
            Err(panic) => this.panicked(&panic),
        };
        Poll::Ready(Ok(this.leave(response)))
    }
}

impl Exchange {
    fn panicked(&self, panic: &str) -> Response {
        self.link.shared.panicked(panic, self.scope.corr)
    }

    /// The answer as it goes to the parser.
    fn leave(&mut self, mut response: Response) -> http::Response<Leaving> {
        self.finish(&mut response);
        let (method, status) = (&self.method, response.status());
        let took = crate::now().saturating_duration_since(self.began);
        let unguarded = if self.scope.route().is_some() { None } else { self.template() };
        let template = self.scope.route().or(unguarded.as_ref());
        self.link.answered(template, method, status, took);
        let route = template.map_or("unmatched", MatchedPath::as_str);
        tracing::debug!(
            corr_id = %self.scope.corr, route, %method, status = status.as_u16(), ?took, "answered"
        );
        let mut held = self.scope.take_places();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            if let Some(upgrade) = response.extensions_mut().remove::<Upgrade>() {
                self.link.handover.leave(upgrade, held.take());
            }
        }
        let link = Arc::clone(&self.link);
        response.map(|body| Leaving { body, link, _held: held })
    }

    /// The template of a route that has no guard that would have told it. Where others were mounted meanwhile, it is theirs.
    fn template(&self) -> Option<MatchedPath> {
        let (whom, uri) = self.asked.as_ref()?;
        let mut names = match (whom, &self.link.shared.ops) {
            (Whom::Ops, Some(ops)) => ops.names.clone(),
            _ => self.link.shared.work.load().names.clone(),
        };
        let mut request = Request::new(Body::empty());
        (*request.method_mut(), *request.uri_mut()) = (self.method.clone(), uri.clone());
        match pin!(names.call(request)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(mut response)) => response.extensions_mut().remove(),
            Poll::Ready(Err(impossible)) => match impossible {},
            Poll::Pending => None,
        }
    }

    /// What every answer has, whoever gave it.
    fn finish(&self, response: &mut Response) {
        let scope = &*self.scope;
        let cut = scope.cut();
        // A handler that could not read its body knows less about why than the body does.
        if let Some(cut) =
            cut.filter(|_| response.status().is_client_error() || response.status().is_server_error())
        {
            *response = cut.problem().into_response();
        }
        let is_bare = |response: &Response| !response.headers().contains_key(header::CONTENT_TYPE);
        if let Some(problem) = Problem::of_status(response.status()).filter(|_| is_bare(response)) {
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
        // Of a body that is still on its way nothing more is read, and the parser ends the connection after the answer: who is not told would
        // send its next request into that.
        if self.last || cut.is_some() || self.link.wire.is_owed() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// The body of an answer. When it is gone, the answer is written and its places are given back.
pub(super) struct Leaving {
    body: Body,
    link: Arc<Link>,
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
        self.link.wire.end_response();
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaving")
    }
}

/// A host's routes, and the same once more with nothing behind them but their names.
///
/// Which route it was is known only inside the router. A layer around every route could tell, but to go through one
/// costs as much as the rest of the router. So the guards of routes tell; for a route without one, the names are asked
/// afterwards.
struct Routes {
    router: Router,
    names: Router,
}

impl Routes {
    fn new(router: Router) -> Self {
        Routes { names: router.clone().layer(Naming), router }
    }
}

/// Puts in the place of a route its name.
#[derive(Debug, Clone)]
struct Naming;

#[derive(Debug, Clone)]
struct Named;

impl<S> Layer<S> for Naming {
    type Service = Named;

    fn layer(&self, _: S) -> Named {
        Named
    }
}

impl Service<Request> for Named {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut response = Response::default();
        if let Some(template) = request.extensions_mut().remove::<MatchedPath>() {
            response.extensions_mut().insert(template);
        }
        ready(Ok(response))
    }
}
