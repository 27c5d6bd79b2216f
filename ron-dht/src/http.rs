//! Status and searches over HTTP, as routers without absolute paths for the host's own server (feature `http`).
//!
//! | Route | Answer |
//! |---|---|
//! | `GET /status` | who the node is, how full its table and its store are, whether it is ready and if not why |
//! | `GET /peers` | the routing table |
//! | `GET /find_node/{key}?timeout_ms=&trace=` | the peers nearest to a key, and how they were found |
//! | `GET /providers/{key}?limit=&timeout_ms=&trace=` | those who provide a key; with `accept: application/x-ndjson` one a line, as they are found, and the verdict last |
//! | `POST /provide/{key}` | says that this node provides a key; with [`mutations`] |
//! | `DELETE /provide/{key}` | takes it back; with [`mutations`] |
//!
//! A key is 64 lowercase hex digits, or the name of some content as `b3:…` or as a CID. What is refused is answered as
//! `application/problem+json`, see [`ron_core::http::Problem`]. `timeout_ms` is 5 000 unless given and 60 000 at most, `limit`
//! 20 and 256. With `trace=1` the verdict has every question of the search: who was asked when (in milliseconds since it
//! began), how many hops away it is, how long it took, and what came of it: `answered` with how many peers it named and
//! how much of what it brought was new, `silent`, `canceled`, or how it failed.
//!
//! The routers are of axum 0.8 and go into any of its apps; behind a [`ron_core::http::Server`] they have its limits and
//! deadlines too.
//!
//! ```
//! use std::sync::Arc;
//! use ron_core::auth::Authorizer;
//! use ron_dht::{Dht, http};
//!
//! fn routes(dht: &Dht, authorizer: Arc<dyn Authorizer>) -> axum::Router {
//!     axum::Router::new().nest("/dht", http::router(dht).merge(http::mutations(dht, authorizer)))
//! }
//! ```

use std::{
    convert::Infallible,
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::{HeaderValue, StatusCode, header};
use ron_core::{
    Deadline, NodeId,
    auth::Authorizer,
    http::{Guard, Json, Problem, Query, ReadyBody, accepts},
    net::BoxFuture,
};
use serde::Serialize;

use crate::{
    Asked as Question, Contact, Dht, DhtError, Entry, Found, Key, Outcome, Provider, Published, Verdict,
};

/// Requests in work at once. Searches are bounded by the lookup pool as well; these wait for it.
const IN_FLIGHT: u32 = 256;

/// What a search may take if the request does not say.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a request may ask for at most.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Providers that are enough if the request does not say, and at most.
const LIMIT: NonZeroUsize = NonZeroUsize::new(20).expect("not zero");
const LIMIT_MAX: usize = 256;

const NDJSON: &str = "application/x-ndjson";

/// The routes that change nothing.
pub fn router(dht: &Dht) -> Router {
    let guard = Guard::new("dht_http").in_flight(IN_FLIGHT).metrics(&dht.node.metrics);
    Router::new()
        .route("/status", get(status))
        .route("/peers", get(peers))
        .route("/find_node/{key}", get(find_node))
        .route("/providers/{key}", get(providers))
        .route_layer(guard)
        .with_state(dht.clone())
}

/// The routes that change something, for those whom `authorizer` allows `dht.provide`.
pub fn mutations(dht: &Dht, authorizer: Arc<dyn Authorizer>) -> Router {
    let guard = Guard::new("dht_provide").in_flight(IN_FLIGHT).metrics(&dht.node.metrics);
    Router::new()
        .route("/provide/{key}", post(provide).delete(withdraw))
        .route_layer(guard.require(authorizer, "dht.provide"))
        .with_state(dht.clone())
}

#[derive(Serialize)]
struct StatusBody {
    id: String,
    addrs: Vec<SocketAddr>,
    peers: usize,
    buckets: usize,
    network_size: Option<f64>,
    ready: ReadyBody,
    records: usize,
    record_bytes: usize,
    provided: usize,
    provide_lag_seconds: u64,
    waiting: usize,
}

#[derive(Serialize)]
struct ContactBody {
    id: String,
    addrs: Vec<SocketAddr>,
}

#[derive(Serialize)]
struct PeerBody {
    #[serde(flatten)]
    contact: ContactBody,
    /// How fast it answers, smoothed.
    rtt_ms: Option<f64>,
    /// Whether it has failed to answer too often to be named to others.
    silent: bool,
}

#[derive(Serialize)]
struct ProviderBody {
    id: String,
    addrs: Vec<SocketAddr>,
    seq: u64,
}

#[derive(Serialize)]
struct VerdictBody {
    reason: &'static str,
    found: usize,
    hops: u8,
    rpcs: usize,
    hedges: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<Vec<QuestionBody>>,
}

#[derive(Serialize)]
struct QuestionBody {
    peer: String,
    hop: u8,
    at_ms: f64,
    took_ms: Option<f64>,
    hedge: bool,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    named: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<usize>,
}

#[derive(Serialize)]
struct ClosestBody {
    key: String,
    peers: Vec<ContactBody>,
    verdict: VerdictBody,
}

#[derive(Serialize)]
struct ProvidersBody {
    key: String,
    providers: Vec<ProviderBody>,
    verdict: Option<VerdictBody>,
}

#[derive(Serialize)]
struct PublishedBody {
    key: String,
    kept: usize,
    asked: usize,
}

impl From<&Contact> for ContactBody {
    fn from(contact: &Contact) -> Self {
        ContactBody { id: contact.id.to_string(), addrs: contact.addrs.to_vec() }
    }
}

impl From<&Entry> for PeerBody {
    fn from(entry: &Entry) -> Self {
        PeerBody {
            contact: ContactBody::from(&entry.contact),
            rtt_ms: entry.rtt.mean().map(|mean| mean.as_secs_f64() * 1e3),
            silent: entry.is_silent(),
        }
    }
}

impl From<Provider> for ProviderBody {
    fn from(provider: Provider) -> Self {
        ProviderBody { id: provider.id.to_string(), addrs: provider.addrs, seq: provider.seq }
    }
}

impl VerdictBody {
    fn of(verdict: &Verdict, is_traced: bool) -> Self {
        let Verdict { reason, found, hops, rpcs, hedges, .. } = *verdict;
        let trace = is_traced.then(|| verdict.trace.iter().map(QuestionBody::from).collect());
        VerdictBody { reason: reason.name(), found, hops, rpcs, hedges, trace }
    }
}

impl From<&Question> for QuestionBody {
    fn from(question: &Question) -> Self {
        let (outcome, named, found) = match question.outcome {
            Outcome::Answered { named, found } => ("answered", Some(named), Some(found)),
            Outcome::Failed(failure) => (failure.name(), None, None),
            Outcome::Silent => ("silent", None, None),
            Outcome::Canceled => ("canceled", None, None),
        };
        QuestionBody {
            peer: question.peer.to_string(),
            hop: question.hop,
            at_ms: millis(question.at),
            took_ms: question.took.map(millis),
            hedge: question.hedge,
            outcome,
            named,
            found,
        }
    }
}

/// To a microsecond, which is as much as anybody reads.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

async fn status(State(dht): State<Dht>) -> Json<StatusBody> {
    let (status, ready) = (dht.status(), dht.ready());
    Json(StatusBody {
        id: status.id.to_string(),
        addrs: status.addrs,
        peers: status.peers,
        buckets: status.buckets,
        network_size: status.network_size,
        ready: ready.into(),
        records: status.records,
        record_bytes: status.record_bytes,
        provided: status.provided,
        provide_lag_seconds: status.provide_lag.as_secs(),
        waiting: status.waiting,
    })
}

async fn peers(State(dht): State<Dht>) -> Json<Vec<PeerBody>> {
    let own: NodeId = dht.node_id();
    let mut peers = dht.peers();
    peers.sort_by_key(|entry| own.distance(&entry.contact.id));
    Json(peers.iter().map(PeerBody::from).collect())
}

async fn find_node(
    State(dht): State<Dht>,
    Path(key): Path<String>,
    request: Request,
) -> Result<Json<ClosestBody>, Problem> {
    let (key, asked) = (parse(&key)?, Asked::of(&request, &["trace"])?);
    let closest = dht.find_node(key, asked.deadline).await.map_err(refused)?;
    Ok(Json(ClosestBody {
        key: key.to_string(),
        peers: closest.peers.iter().map(ContactBody::from).collect(),
        verdict: VerdictBody::of(&closest.verdict, asked.is_traced),
    }))
}

async fn providers(
    State(dht): State<Dht>,
    Path(key): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (key, asked) = (parse(&key)?, Asked::of(&request, &["limit", "trace"])?);
    let mut found = dht.find_providers(key, asked.limit, asked.deadline).map_err(refused)?;
    // The first before the head of the answer: a search that never ran is a refusal and not an empty list.
    let first = found.next().await.map_err(refused)?;
    if asked.is_streamed {
        let lines = Lines { first, next: Next::Idle(Box::new(found)), is_traced: asked.is_traced };
        let mut response = Response::new(Body::new(lines));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        return Ok(response);
    }
    let mut providers: Vec<ProviderBody> = first.into_iter().map(ProviderBody::from).collect();
    while let Some(provider) = found.next().await.map_err(refused)? {
        providers.push(provider.into());
    }
    let verdict = found.verdict().map(|verdict| VerdictBody::of(verdict, asked.is_traced));
    Ok(Json(ProvidersBody { key: key.to_string(), providers, verdict }).into_response())
}

async fn provide(
    State(dht): State<Dht>,
    Path(key): Path<String>,
    request: Request,
) -> Result<Json<PublishedBody>, Problem> {
    let (key, asked) = (parse(&key)?, Asked::of(&request, NOTHING_MORE)?);
    Ok(published(key, &dht.provide(key, asked.deadline).await.map_err(refused)?))
}

async fn withdraw(
    State(dht): State<Dht>,
    Path(key): Path<String>,
    request: Request,
) -> Result<Json<PublishedBody>, Problem> {
    let (key, asked) = (parse(&key)?, Asked::of(&request, NOTHING_MORE)?);
    Ok(published(key, &dht.withdraw(key, asked.deadline).await.map_err(refused)?))
}

fn published(key: Key, published: &Published) -> Json<PublishedBody> {
    Json(PublishedBody { key: key.to_string(), kept: published.kept, asked: published.asked })
}

/// A refusal, and what to do about the one that everybody meets first.
fn refused(error: DhtError) -> Problem {
    let is_alone = matches!(error, DhtError::NotReady { gate: "dht.seeds" });
    let problem = Problem::from(error);
    match is_alone {
        true => problem
            .hint("this node knows no other: start a second one with this one as its seed, or give it seeds"),
        false => problem,
    }
}

fn parse(key: &str) -> Result<Key, Problem> {
    let refused = |error: ron_core::IdError| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_key", "this is no key")
            .detail(error.to_string())
            .hint("64 lowercase hex digits, `b3:` and those, or a CIDv1 of raw bytes and BLAKE3")
    };
    key.parse().map_err(refused)
}

/// What a request says beside the key.
struct Asked {
    deadline: Deadline,
    limit: NonZeroUsize,
    is_traced: bool,
    is_streamed: bool,
}

/// Parameters of a route beside `timeout_ms`, which all have.
const NOTHING_MORE: &[&str] = &[];

impl Asked {
    /// Reads what a route with these parameters beside `timeout_ms` is asked.
    fn of(request: &Request, parameters: &[&'static str]) -> Result<Self, Problem> {
        let query = Query::of(request, &[&["timeout_ms"], parameters].concat())?;
        let timeout = query.number("timeout_ms")?.map_or(TIMEOUT, Duration::from_millis).min(TIMEOUT_MAX);
        let is_traced = match query.get("trace") {
            None | Some("0" | "false") => false,
            Some("1" | "true") => true,
            Some(_) => return Err(Query::refusal("trace is 1 or 0")),
        };
        let limit = query.number("limit")?.map(|limit| {
            let limit = usize::try_from(limit).unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
            NonZeroUsize::new(limit).ok_or_else(|| Query::refusal("limit is a number above zero"))
        });
        let limit = limit.transpose()?.unwrap_or(LIMIT);
        let deadline = Deadline::after(timeout);
        // The server's own patience counts too.
        let deadline =
            request.extensions().get::<Deadline>().map_or(deadline, |outer| (*outer).min(deadline));
        let is_streamed = accepts(request.headers(), NDJSON);
        Ok(Asked { deadline, limit, is_traced, is_streamed })
    }
}

/// Providers, one a line, and the verdict last. Dropping it calls the search off.
struct Lines {
    first: Option<Provider>,
    next: Next,
    is_traced: bool,
}

type NextProvider = Result<Option<Provider>, DhtError>;

enum Next {
    Idle(Box<Found>),
    Running(BoxFuture<'static, (Box<Found>, NextProvider)>),
    Over,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum LastLine<'a> {
    Verdict(Option<VerdictBody>),
    Error(&'a str),
}

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(line(&ProviderBody::from(first)))));
        }
        loop {
            match std::mem::replace(&mut this.next, Next::Over) {
                Next::Over => return Poll::Ready(None),
                Next::Idle(mut found) => {
                    this.next = Next::Running(Box::pin(async move {
                        let next = found.next().await;
                        (found, next)
                    }));
                }
                Next::Running(mut running) => {
                    let Poll::Ready((found, next)) = running.as_mut().poll(cx) else {
                        this.next = Next::Running(running);
                        return Poll::Pending;
                    };
                    let frame = match next {
                        Ok(Some(provider)) => {
                            this.next = Next::Idle(found);
                            line(&ProviderBody::from(provider))
                        }
                        Ok(None) => {
                            let verdict =
                                found.verdict().map(|verdict| VerdictBody::of(verdict, this.is_traced));
                            line(&LastLine::Verdict(verdict))
                        }
                        Err(error) => line(&LastLine::Error(&error.to_string())),
                    };
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
        }
    }
}

fn line(body: &impl Serialize) -> http_body::Frame<Bytes> {
    let mut line = serde_json::to_vec(body).expect("strings and numbers can be written");
    line.push(b'\n');
    http_body::Frame::data(line.into())
}
