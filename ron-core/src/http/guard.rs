//! What a route asks of a request before its handler sees it, in the one order that is right.
//!
//! Layers that a host stacks by hand can be stacked wrongly: a body limit outside the decompression counts compressed
//! bytes, an authorisation inside it decodes for strangers. A guard is one layer, so the order is not the caller's to
//! choose: host, authorisation, place, deadline, encoding, size. Everything before the last two is decided without
//! touching the body.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use http_body::Body as _;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};
use tower::{Layer, Service};

use super::{
    ClientAddr, CorrId, Problem, Settings,
    body::{Plain, Scope},
};
use crate::{
    CallError, Counter, Deadline, Metrics, Tally,
    auth::{Action, Authorizer, Credentials, Denied},
};

/// Told to a request that found all places taken. Nobody knows when one is free; a second is what `Retry-After` can
/// say.
const PLACE_WAIT: Duration = Duration::from_secs(1);

/// The rules of a route, as a layer for `MethodRouter::layer` or `Router::route_layer`. Cloning shares its places.
#[derive(Clone)]
pub struct Guard {
    rules: Arc<Rules>,
}

#[derive(Clone)]
struct Rules {
    name: &'static str,
    hosts: Option<Hosts>,
    authorizer: Option<(Arc<dyn Authorizer>, &'static str)>,
    places: Option<Places>,
    refused: Tally,
    deadline: Option<Duration>,
    late: Tally,
    /// `None` leaves the body to whoever is inside.
    body_max: Option<u64>,
    compression: bool,
    streaming: bool,
}

impl Guard {
    /// The default rules: a body of at most 1 MiB, which may be compressed. `name` is what a refusal calls the route.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        let rules = Rules {
            name,
            hosts: None,
            authorizer: None,
            places: None,
            refused: Tally::default(),
            deadline: None,
            late: Tally::default(),
            body_max: Some(Settings::default().body_bytes_max),
            compression: true,
            streaming: false,
        };
        Guard { rules: Arc::new(rules) }
    }

    /// Requests that may be in work at once, until their answers are written; the next one is 429.
    #[must_use]
    pub fn in_flight(self, requests: u32) -> Self {
        self.with(|rules| rules.places = Some(Places::new(requests)))
    }

    /// Counts refusals and timeouts in `metrics`, under the guard's name.
    #[must_use]
    pub fn metrics(self, metrics: &Metrics) -> Self {
        let name = self.rules.name;
        self.with(|rules| {
            rules.refused = metrics.tally(Counter::BusyRejections, name);
            rules.late = metrics.tally(Counter::IoTimeouts, name);
        })
    }

    /// Plain bytes of a body, after decoding.
    #[must_use]
    pub fn body_bytes_max(self, bytes: u64) -> Self {
        self.with(|rules| rules.body_max = Some(bytes))
    }

    /// No limit on the size of the body and no deadline of the server's, for handlers that take it piece by piece. It
    /// must still keep the pace.
    #[must_use]
    pub fn streaming(self) -> Self {
        self.with(|rules| (rules.body_max, rules.streaming) = (Some(u64::MAX), true))
    }

    /// Refuses compressed bodies with 415. For routes whose bytes are named by their hash.
    #[must_use]
    pub fn no_compression(self) -> Self {
        self.with(|rules| rules.compression = false)
    }

    /// From here to the head of the answer, instead of the server's own. The handler finds it as a
    /// [`Deadline`] in the extensions; when it passes, the handler is dropped and the answer is 504.
    #[must_use]
    pub fn deadline(self, budget: Duration) -> Self {
        self.with(|rules| rules.deadline = Some(budget))
    }

    /// Only those whom `authorizer` allows to do `action`. The handler finds the [`Grant`](crate::auth::Grant) in the
    /// extensions.
    #[must_use]
    pub fn require(self, authorizer: Arc<dyn Authorizer>, action: &'static str) -> Self {
        self.with(|rules| rules.authorizer = Some((authorizer, action)))
    }

    /// Only requests that name one of `hosts` and come from no foreign page. For routes that a browser on the same
    /// machine could be talked into calling.
    #[must_use]
    pub fn hosts(self, hosts: Hosts) -> Self {
        self.with(|rules| rules.hosts = Some(hosts))
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.rules.name)
            .field("hosts", &self.rules.hosts)
            .field("action", &self.rules.authorizer.as_ref().map(|(_, action)| action))
            .field("places", &self.rules.places)
            .field("body_max", &self.rules.body_max)
            .finish_non_exhaustive()
    }
}

/// A layer that only asks `authorizer` about `action`, for a whole router whose routes have their own guards.
#[must_use]
pub fn require(authorizer: Arc<dyn Authorizer>, action: &'static str) -> Guard {
    Guard::new(action).with(|rules| rules.body_max = None).require(authorizer, action)
}

/// A layer that only looks whether a request is meant for one of `hosts`, see [`Guard::hosts`], for a whole router whose
/// routes have their own guards.
#[must_use]
pub fn only(hosts: Hosts) -> Guard {
    Guard::new("hosts").with(|rules| rules.body_max = None).hosts(hosts)
}

impl Rules {
    /// Lets `request` in, or says why not. Nothing of the body is read.
    fn admit(&self, request: &mut Request) -> Result<Admitted, Problem> {
        let scope = request.extensions().get::<Arc<Scope>>().cloned();
        if let (Some(scope), Some(template)) = (&scope, request.extensions().get::<MatchedPath>()) {
            scope.note_route(template);
        }
        if let Some(hosts) = &self.hosts {
            hosts.check(request.uri(), request.headers())?;
        }
        if let Some((authorizer, action)) = &self.authorizer {
            authorize(&**authorizer, action, request)?;
        }
        let place = match &self.places {
            Some(places) => Some(places.try_take().ok_or_else(|| {
                self.refused.add(1);
                Problem::from(CallError::Busy { what: self.name, retry_after: PLACE_WAIT })
            })?),
            None => None,
        };
        let deadline = self.deadline.map(Deadline::after);
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        if let Some(scope) = scope.as_ref().filter(|_| deadline.is_some() || self.streaming) {
            scope.take_over_deadline();
        }
        if let Some(max) = self.body_max {
            self.prepare_body(request, scope.as_ref(), max)?;
        }
        Ok(Admitted { place, deadline, scope })
    }

    fn prepare_body(
        &self,
        request: &mut Request,
        scope: Option<&Arc<Scope>>,
        max: u64,
    ) -> Result<(), Problem> {
        let gzip = match Encoding::of(request.headers()) {
            Encoding::Identity => false,
            Encoding::Gzip if self.compression => true,
            _ => return Err(unsupported(self.compression)),
        };
        // Bytes that do not compress grow a little; beyond that, the compressed form may not be larger than the plain.
        let arriving_max = if gzip { max.saturating_add(max / 1024 + 1024) } else { max };
        if request.body().size_hint().lower() > arriving_max {
            return Err(Problem::body_too_large());
        }
        if let Some(scope) = scope {
            scope.limit_body(arriving_max);
        }
        if gzip {
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = Body::new(Plain::new(body, max, scope.cloned()));
            // They spoke of the bytes that came, not of those that the handler gets.
            request.headers_mut().remove(header::CONTENT_ENCODING);
            request.headers_mut().remove(header::CONTENT_LENGTH);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Other,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Self {
        let mut found = Encoding::Identity;
        for line in headers.get_all(header::CONTENT_ENCODING) {
            for coding in line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if coding.eq_ignore_ascii_case(b"identity") {
                    continue;
                }
                let gzip = coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip");
                // Gzip in gzip is a bomb in a box; nobody honest needs it.
                found = if gzip && found == Encoding::Identity { Encoding::Gzip } else { Encoding::Other };
            }
        }
        found
    }
}

fn unsupported(compression: bool) -> Problem {
    let problem = Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "encoding",
        "this route does not take bodies in this encoding",
    );
    problem.hint(if compression { "send it plain or with gzip" } else { "send it plain" })
}

fn authorize(
    authorizer: &dyn Authorizer,
    action: &'static str,
    request: &mut Request,
) -> Result<(), Problem> {
    let mut lines = request.headers().get_all(header::AUTHORIZATION).iter();
    let shown = lines.next().and_then(|value| value.to_str().ok());
    // Who stands before this server may have judged the other one.
    if lines.next().is_some() {
        return Err(refuse(Denied::Unknown));
    }
    let bearer = shown.and_then(|shown| {
        let (scheme, token) = shown.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let address = match request.extensions().get::<ClientAddr>() {
        Some(ClientAddr::Ip(address)) => Some(*address),
        Some(ClientAddr::Local) | None => None,
    };
    let credentials = Credentials::bearer(bearer).from_address(address);
    match authorizer.authorize(&Action::new(action, request.uri().path()), &credentials) {
        Ok(grant) => {
            request.extensions_mut().insert(grant);
            Ok(())
        }
        Err(denied) => Err(refuse(denied)),
    }
}

fn refuse(denied: Denied) -> Problem {
    match denied {
        Denied::Missing => Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "credentials are needed")
            .hint("send `authorization: Bearer <token>`"),
        Denied::Unknown => {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "these credentials are not known")
        }
        Denied::Forbidden => {
            Problem::new(StatusCode::FORBIDDEN, "forbidden", "not allowed with these credentials")
        }
    }
}

/// The names under which a server is willing to be called, without ports.
///
/// A page elsewhere can make a browser send requests to this machine, directly or by letting its own name resolve
/// here. Both leave a trace that the page cannot remove: `Origin` names the page, `Host` the name that was resolved; and
/// what a page embeds, a picture for example, comes with `Sec-Fetch-Site: cross-site`.
#[derive(Debug, Clone)]
pub struct Hosts {
    names: Arc<[String]>,
    is_any_address: bool,
}

impl Default for Hosts {
    /// This machine: `localhost`, `127.0.0.1`, `[::1]`.
    fn default() -> Self {
        Hosts::new(["localhost", "127.0.0.1", "[::1]"])
    }
}

impl Hosts {
    /// These names; an IPv6 address in brackets.
    #[must_use]
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(|name| name.into().to_ascii_lowercase()).collect();
        Hosts { names, is_any_address: false }
    }

    /// Also whoever calls it by an IP address, whichever: a page can let its name resolve to this machine, but not an
    /// address. It counts for `Host` only; an `Origin` is as foreign as before, unless it is the host itself.
    #[must_use]
    pub fn or_addresses(mut self) -> Self {
        self.is_any_address = true;
        self
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let foreign = |what| {
            Problem::new(StatusCode::FORBIDDEN, "foreign", "not for requests from elsewhere").detail(what)
        };
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        // A request in absolute form names a host twice; both must be ours.
        let named = uri.host().into_iter().chain(host.map(without_port));
        let (mut count, mut ours) = (0, true);
        for name in named {
            (count, ours) = (count + 1, ours && (self.has(name) || self.is_any_address && is_address(name)));
        }
        if count == 0 || !ours {
            return Err(foreign("the host is not one of this server's names"));
        }
        for origin in headers.get_all(header::ORIGIN) {
            let known = origin.to_str().ok().and_then(|origin| {
                let (scheme, rest) = origin.split_once("://")?;
                let is_own = host.is_some_and(|host| host.eq_ignore_ascii_case(rest));
                (matches!(scheme, "http" | "https") && (is_own || self.has(without_port(rest)))).then_some(())
            });
            known.ok_or_else(|| foreign("the origin is another page"))?;
        }
        let says = |name, value: &str| headers.get(name).is_some_and(|header: &HeaderValue| header == value);
        if says("sec-fetch-site", "cross-site") && !says("sec-fetch-mode", "navigate") {
            return Err(foreign("another page embeds it"));
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// `127.0.0.1`, `[::1]`.
fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}

/// `name:80` and `[::1]:80` without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.is_empty() => name,
        _ => host,
    }
}

/// How many requests there is room for.
#[derive(Debug, Clone)]
struct Places(Arc<AtomicU32>);

impl Places {
    fn new(requests: u32) -> Self {
        Places(Arc::new(AtomicU32::new(requests)))
    }

    /// One of them, if there is one.
    fn try_take(&self) -> Option<Place> {
        let take = |free: u32| free.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Place(Arc::clone(&self.0)))
    }
}

/// Room for one request, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicU32>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The places of a request, kept until the last byte of its answer is written. Nearly always it is one.
#[derive(Debug, Default)]
pub(super) struct Held {
    first: Option<Place>,
    more: Vec<Place>,
}

impl Held {
    pub(super) fn push(&mut self, place: Place) {
        match &self.first {
            None => self.first = Some(place),
            Some(_) => self.more.push(place),
        }
    }
}

/// What a request that was let in has got.
struct Admitted {
    place: Option<Place>,
    deadline: Option<Deadline>,
    scope: Option<Arc<Scope>>,
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { rules: Arc::clone(&self.rules), inner }
    }
}

/// A service behind a [`Guard`].
#[derive(Clone)]
pub struct Guarded<S> {
    rules: Arc<Rules>,
    inner: S,
}

impl<S: fmt::Debug> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S> Service<Request> for Guarded<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Guarding<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let state = match self.rules.admit(&mut request) {
            Ok(Admitted { place, deadline, scope }) => State::Inside {
                work: self.inner.call(request),
                late: deadline.map(|deadline| (deadline, self.rules.late.clone())),
                timer: None,
                place,
                scope,
            },
            Err(problem) => {
                let mut response = problem.into_response();
                if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && self.rules.compression {
                    let gzip = HeaderValue::from_static("gzip");
                    response.headers_mut().insert(header::ACCEPT_ENCODING, gzip);
                }
                State::Refused { response: Some(Box::new(response)) }
            }
        };
        Guarding { state }
    }
}

pin_project! {
    /// The answer of a service behind a [`Guard`].
    pub struct Guarding<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateNow]
    enum State<F> {
        Inside {
            #[pin]
            work: F,
            late: Option<(Deadline, Tally)>,
            timer: Option<Pin<Box<Sleep>>>,
            place: Option<Place>,
            scope: Option<Arc<Scope>>,
        },
        Refused { response: Option<Box<Response>> },
    }
}

impl<F> fmt::Debug for Guarding<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarding")
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for Guarding<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (work, late, timer, place, scope) = match self.project().state.project() {
            StateNow::Inside { work, late, timer, place, scope } => (work, late, timer, place, scope),
            StateNow::Refused { response } => {
                let response = response.take().expect("not polled after it was ready");
                return Poll::Ready(Ok(*response));
            }
        };
        let mut response = match work.poll(cx) {
            Poll::Ready(response) => response?,
            Poll::Pending => {
                let Some((deadline, late)) = late else { return Poll::Pending };
                let at = deadline.instant();
                ready!(timer.get_or_insert_with(|| Box::pin(sleep_until(at))).as_mut().poll(cx));
                late.add(1);
                return Poll::Ready(Ok(Problem::timeout().into_response()));
            }
        };
        // Only our server writes into the place that is left for it.
        if scope.is_none() && response.headers().get(CorrId::HEADER).is_some_and(HeaderValue::is_empty) {
            response.headers_mut().remove(CorrId::HEADER);
        }
        // With another server than ours, the answer itself is all that lives until it is written.
        match (place.take(), scope) {
            (Some(place), Some(scope)) => scope.hold(place),
            (Some(place), None) => {
                response.extensions_mut().insert(Arc::new(place));
            }
            (None, _) => {}
        }
        Poll::Ready(Ok(response))
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    fn check(hosts: &Hosts, uri: &str, host: Option<&str>, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).expect("a header value"));
            }
        }
        hosts.check(&uri.parse().expect("a URI"), &headers).is_ok()
    }

    /// Abuse case 55.
    #[test]
    fn foreign_hosts_and_origins_are_refused() {
        let ours = Hosts::default();
        for (uri, host, origin) in [
            ("/", "localhost", None),
            ("/", "LOCALHOST:8080", None),
            ("/", "127.0.0.1:1", Some("http://localhost:3000")),
            ("/", "[::1]:8080", Some("https://[::1]")),
            ("http://localhost/", "localhost", None),
        ] {
            assert!(check(&ours, uri, Some(host), origin), "{uri} {host} {origin:?}");
        }
        for (uri, host, origin) in [
            ("/", None, None),
            ("/", Some("evil.example"), None),
            ("/", Some("localhost.evil.example"), None),
            ("/", Some("localhost@evil.example"), None),
            ("/", Some("localhost"), Some("null")),
            ("/", Some("localhost"), Some("https://evil.example")),
            ("/", Some("localhost"), Some("file://localhost")),
            ("http://evil.example/", Some("localhost"), None),
        ] {
            assert!(!check(&ours, uri, host, origin), "{uri} {host:?} {origin:?}");
        }
    }

    #[test]
    fn encodings_are_told_apart() {
        for (value, encoding) in [
            ("identity", Encoding::Identity),
            ("gzip", Encoding::Gzip),
            ("X-GZIP", Encoding::Gzip),
            ("gzip, identity", Encoding::Gzip),
            ("gzip, gzip", Encoding::Other),
            ("br", Encoding::Other),
            ("zstd, gzip", Encoding::Other),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(Encoding::of(&headers), encoding, "{value}");
        }
        assert_eq!(Encoding::of(&HeaderMap::new()), Encoding::Identity);
    }
}
