//! Starting and stopping a server, and its knobs.

use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use axum::Router;

use super::{
    HttpMetrics, Listen, Stream, TrustedProxies,
    connection::{Connection, Shared},
    listen::Listener,
    seats::{SeatLimits, Seats},
};
use crate::{
    Backoff, BackoffPolicy, CallError, ConfigError, Counter, Deadline, ErrorKind, Metrics, Phase, Refusal,
    Spawner, Stop, Stopped, Supervisor, TaskSpec,
};

pub(super) const ACCEPT: TaskSpec = TaskSpec::new("ron-core", "http_accept")
    .what("takes connections from one listener and finds them a seat");

/// What opening the listeners may take. Locally it is a millisecond.
const START_MAX: Duration = Duration::from_secs(10);

/// How a server treats its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// From the first byte of a request's head, or from the connection, to the head's end. Default 5 s.
    pub head_timeout: Duration,
    /// How long a connection may wait for its next request. Default 60 s; lower it where connections are scarce.
    pub idle_timeout: Duration,
    /// How long a body or a response may stand still, and the window of `bytes_per_second_min`. Default 5 s.
    pub io_timeout: Duration,
    /// What must move, on average over `io_timeout`, while we wait for a client. Default 1 KiB; lower it for clients
    /// on very thin lines, 1 means "anything at all".
    pub bytes_per_second_min: u64,
    /// Bytes of a request's head. Default 32 KiB, at least 8 KiB.
    pub head_bytes_max: usize,
    /// Lines of a request's head. Default 100.
    pub headers_max: usize,
    /// Bytes of the request line, which is mostly the URI. Default 8 KiB.
    pub uri_bytes_max: usize,
    /// Bytes of a request's body on routes without a [`Guard`](super::Guard) of their own. Default 1 MiB.
    pub body_bytes_max: u64,
    /// From a request's head to the head of its answer, on routes without their own. Default 30 s.
    pub deadline: Duration,
    /// Connections in all. Default 1024; it needs as many file descriptors.
    pub connections_max: usize,
    /// Connections of one address or IPv6 /64. Default 256. Trusted proxies are exempt.
    pub connections_per_client: usize,
    /// Connections beyond those, for the health routes only. Default 32.
    pub lobby: NonZeroUsize,
    /// How long [`Wrap`] may take, for example a TLS handshake. Default 3 s.
    pub handshake_timeout: Duration,
    /// How long requests may be finished after the request to stop. Default 5 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            io_timeout: Duration::from_secs(5),
            bytes_per_second_min: 1 << 10,
            head_bytes_max: 32 << 10,
            headers_max: 100,
            uri_bytes_max: 8 << 10,
            body_bytes_max: 1 << 20,
            deadline: Duration::from_secs(30),
            connections_max: 1024,
            connections_per_client: 256,
            lobby: const { NonZeroUsize::new(32).expect("not zero") },
            handshake_timeout: Duration::from_secs(3),
            drain: Duration::from_secs(5),
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ConfigError> {
        if !(8 << 10..=1 << 20).contains(&self.head_bytes_max) {
            return Err(ConfigError::OutOfRange {
                key: "http.head_bytes_max",
                value: self.head_bytes_max.to_string(),
                allowed: "8192..=1048576",
            });
        }
        if self.uri_bytes_max > self.head_bytes_max {
            return Err(ConfigError::Contradiction {
                key: "http.uri_bytes_max",
                with: "http.head_bytes_max",
                rule: "the request line is a part of the head",
            });
        }
        Ok(())
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address cannot be listened on: taken, not ours, or a port below 1024 without the right to it.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The Unix socket cannot be made.
    #[error("cannot listen on {}", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process listens on this path.
    #[error("somebody listens on {} already", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is something else at this path; it was left alone.
    #[error("{} is there and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// No address to listen on was given.
    #[error("no address to listen on")]
    Nowhere,
    /// The settings do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file system did not answer in time. Nothing is listened on.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The supervisor is stopping.
    #[error("shutting down")]
    Canceled,
}

impl Refusal for HttpError {
    fn kind(&self) -> ErrorKind {
        match self {
            HttpError::Canceled => ErrorKind::Canceled,
            HttpError::Timeout { .. } => ErrorKind::Timeout,
            _ => ErrorKind::Caller,
        }
    }
}

/// Turns an accepted connection into the one that HTTP is spoken over: the place for TLS.
///
/// Implemented by closures that return a boxed future. It runs in the connection's own task, within
/// [`Settings::handshake_timeout`].
pub trait Wrap: Send + Sync + 'static {
    /// Wraps one connection.
    fn wrap(&self, stream: Box<dyn Stream>) -> WrapFuture;
}

/// See [`Wrap::wrap`].
type WrapFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

impl<F: Fn(Box<dyn Stream>) -> WrapFuture + Send + Sync + 'static> Wrap for F {
    fn wrap(&self, stream: Box<dyn Stream>) -> WrapFuture {
        self(stream)
    }
}

/// A server that is being set up. See [`Server::builder`].
#[must_use = "nothing is served before `start`"]
pub struct Builder {
    router: Router,
    ops: Option<Router>,
    listen: Vec<Listen>,
    settings: Settings,
    proxies: TrustedProxies,
    wrap: Option<Arc<dyn Wrap>>,
    metrics: Metrics,
    http_metrics: HttpMetrics,
}

impl Builder {
    /// An address to listen on: a [`SocketAddr`] or the path of a Unix socket. Call it for each.
    pub fn listen(mut self, listen: impl Into<Listen>) -> Self {
        self.listen.push(listen.into());
        self
    }

    /// The health routes, see [`ops_router`](super::ops_router). Default: none, and their paths are the router's own.
    pub fn ops(mut self, router: Router) -> Self {
        self.ops = Some(router);
        self
    }

    /// How clients are treated.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Whose word about the client's address is taken. Default: nobody's.
    pub fn trusted_proxies(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Wraps connections that come over TCP, for TLS. Unix sockets are left as they are.
    pub fn wrap(mut self, wrap: impl Wrap) -> Self {
        self.wrap = Some(Arc::new(wrap));
        self
    }

    /// Where tasks and refusals are counted. Default: a set nobody scrapes.
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Where requests are counted. Default: a set nobody scrapes.
    pub fn http_metrics(mut self, metrics: HttpMetrics) -> Self {
        self.http_metrics = metrics;
        self
    }

    /// Begins to listen, as a group of its own inside `supervisor`. If one address fails, none is listened on.
    /// Dropping the future before it is done leaves nothing behind.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn start(self, supervisor: &Supervisor) -> Result<Server, HttpError> {
        self.settings.check()?;
        if supervisor.phase() != Phase::Running {
            return Err(HttpError::Canceled);
        }
        if self.listen.is_empty() {
            return Err(HttpError::Nowhere);
        }
        let (op, listen) = ("http listen", self.listen);
        let open = move || listen.iter().map(Listener::open).collect::<Result<Vec<_>, _>>();
        // Off the runtime, because a Unix socket asks a file system that may be slow.
        let opened = supervisor.blocking(op, Deadline::after(START_MAX), open).await;
        let listeners = opened.map_err(|error| match error {
            CallError::Timeout { op } => HttpError::Timeout { op },
            _ => HttpError::Canceled,
        })??;
        let local: Vec<Listen> = listeners.iter().filter_map(|listener| listener.local().ok()).collect();

        let group = supervisor.child("http", self.settings.drain, self.metrics.clone());
        let seats = Seats::new(
            SeatLimits {
                total: self.settings.connections_max,
                per_client: self.settings.connections_per_client,
                lobby: self.settings.lobby.get(),
            },
            &self.metrics,
        );
        let shared = Arc::new(Shared::new(
            self.router,
            self.ops,
            self.settings,
            self.proxies,
            self.wrap,
            self.http_metrics,
            &self.metrics,
            group.stop(),
        ));
        for listener in listeners {
            let acceptor = Acceptor {
                listener,
                seats: Arc::clone(&seats),
                shared: Arc::clone(&shared),
                spawner: group.spawner(),
                refused: self.metrics.tally(Counter::BusyRejections, ACCEPT.name),
            };
            group.spawn(ACCEPT, |stop| acceptor.run(stop));
        }
        Ok(Server { inner: Arc::new(Inner { group, local, seats, shared }) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("listen", &self.listen)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A running server. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    group: Supervisor,
    local: Vec<Listen>,
    seats: Arc<Seats>,
    shared: Arc<Shared>,
}

impl Server {
    /// Serves `router`, with the default settings and nowhere yet.
    pub fn builder(router: Router) -> Builder {
        Builder {
            router,
            ops: None,
            listen: Vec::new(),
            settings: Settings::default(),
            proxies: TrustedProxies::default(),
            wrap: None,
            metrics: Metrics::default(),
            http_metrics: HttpMetrics::default(),
        }
    }

    /// Serves `router` instead, from the next request on: a program that begins to listen before anything else, so that
    /// its health can be seen, has its routes later. Requests that have begun end with what they began with.
    pub fn mount(&self, router: Router) {
        self.inner.shared.mount(router);
    }

    /// The TCP addresses listened on, with the ports that were free.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        let tcp = |listen: &Listen| match listen {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix(_) => None,
        };
        self.inner.local.iter().filter_map(tcp).collect()
    }

    /// Connections that hold a seat now, without those in the lobby.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.inner.seats.working()
    }

    /// Takes no new work, finishes what has begun, then cuts it off. Safe to call twice. The work goes on if this
    /// future is dropped.
    pub async fn shutdown(&self) -> Stopped {
        self.inner.group.shutdown().await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listen", &self.inner.local)
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

/// Takes connections from one listener.
struct Acceptor {
    listener: Listener,
    seats: Arc<Seats>,
    shared: Arc<Shared>,
    spawner: Spawner,
    refused: crate::Tally,
}

impl Acceptor {
    /// Until the stop, and then until nobody works any more: health is answered to the end.
    async fn run(self, stop: Stop) {
        let mut pause: Backoff =
            BackoffPolicy::new(Duration::from_millis(5), Duration::from_secs(1)).with_seed(fastrand::u64(..));
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.done(&stop) => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    pause.reset();
                    self.admit(stream, peer.map(|peer| peer.ip()), &stop);
                }
                // One connection that was gone before it was taken says nothing about the next.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Usually no file descriptor is left. Trying at once would only spin.
                    self.refused.add(1);
                    tracing::warn!(%error, "cannot accept");
                    tokio::select! {
                        biased;
                        () = self.done(&stop) => return,
                        () = tokio::time::sleep(pause.next_delay()) => {}
                    }
                }
            }
        }
    }

    async fn done(&self, stop: &Stop) {
        stop.requested().await;
        self.seats.empty().await;
    }

    fn admit(&self, stream: Box<dyn Stream>, peer: Option<IpAddr>, stop: &Stop) {
        let limited = peer.filter(|peer| !self.shared.proxies.trusts(*peer));
        let seat = self.seats.admit(limited.map(Into::into), !stop.is_requested());
        let connection = Connection::new(Arc::clone(&self.shared), stream, peer, seat);
        connection.spawn(&self.spawner);
    }
}
