//! One session per peer and protocol, whoever dialled it.
//!
//! A caller names a peer and gets its session: the one that is there, the one that is being dialled (many callers, one
//! dial), or a new one. A peer that cannot be reached is not dialled again before a pause that grows. When both ends dial
//! each other at once, both keep the link that the smaller name dialled and let the other one run out.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Chunks, Method, Protocol, RpcError, RpcSettings, Service, Session, Side,
    serve::CALL,
    session::{BULK, Owner, READER, STATE, Shared, URGENT, WRITER},
};
use crate::{
    BackoffPolicy, Counter, Deadline, Inbox, Inventory, Lock, LockSpec, Metrics, NodeId, Restart, Spawner,
    Stopped, Supervisor, Task, TaskSpec,
    net::{Endpoint, Link, NetError},
    now,
    shutdown::Latch,
    sync::{Mutex, lock},
};

const ACCEPTOR: TaskSpec = TaskSpec::new("ron-core", "rpc_acceptor")
    .restart(Restart::PROMPT)
    .what("takes the incoming links of one protocol and starts a greeter for each");

const GREETER: TaskSpec = TaskSpec::new("ron-core", "rpc_greeter")
    .restart(Restart::Expendable)
    .what("waits for HELLO on one incoming link, and makes it the peer's session");

const DIALER: TaskSpec = TaskSpec::new("ron-core", "rpc_dialer")
    .restart(Restart::Expendable)
    .what("one dial for all who wait for the same peer; ends when the last of them has gone");

const TABLE: LockSpec =
    LockSpec::new("ron-core", "rpc.peers", 850).guards("which session a peer has; held for a lookup");

/// A retired session closes when nothing was called on it for this long: by then the peer has seen the other one.
const RETIRE: Duration = Duration::from_secs(2);

/// Pauses between dials to a peer that cannot be reached.
const DIAL_BACKOFF: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(60));

/// Peers whose last dial failed and that are remembered for it.
const FAILED_MAX: usize = 4096;

/// What sessions may bring to a running program, beside the lanes of incoming links.
#[must_use]
pub fn inventory() -> Inventory {
    let tasks = [ACCEPTOR, GREETER, DIALER, READER, WRITER, CALL];
    Inventory::of(&[URGENT, BULK], &tasks, &[TABLE, STATE])
}

/// The limits of [`Peers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeersSettings {
    /// Of each session.
    pub rpc: RpcSettings,
    /// Sessions at once. Beyond it the one that was unused longest is closed; if all are in use, a new one is refused.
    /// Default 1024.
    pub sessions_max: usize,
    /// How long one dial may take, whoever waits for it. Default 5 s.
    pub dial_timeout: Duration,
    /// How long open calls may take after a stop. Default 3 s.
    pub drain: Duration,
}

impl Default for PeersSettings {
    fn default() -> Self {
        PeersSettings {
            rpc: RpcSettings::default(),
            sessions_max: 1024,
            dial_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(3),
        }
    }
}

/// The sessions of one protocol. Cloning shares them; dropping the last clone asks them to stop.
#[derive(Clone)]
pub struct Peers {
    table: Arc<Table>,
    group: Supervisor,
}

struct Table {
    endpoint: Endpoint,
    protocol: Protocol,
    service: Arc<dyn Service>,
    settings: PeersSettings,
    spawner: Spawner,
    metrics: Metrics,
    peers: Lock<HashMap<NodeId, Entry>>,
    this: Weak<Table>,
}

#[derive(Default)]
struct Entry {
    session: Option<Session>,
    dial: Option<Arc<Dial>>,
    failed: Option<Failed>,
}

#[derive(Clone)]
struct Failed {
    times: u32,
    until: Instant,
    error: NetError,
}

/// A dial that is under way, and how many wait for it.
struct Dial {
    done: Latch,
    result: Mutex<Option<Result<Session, RpcError>>>,
    waiting: AtomicUsize,
    task: Mutex<Option<Task>>,
}

impl Peers {
    /// Serves `protocol` on `endpoint` from now on, and calls others over it.
    ///
    /// # Errors
    /// As [`Endpoint::register`].
    pub fn start(
        endpoint: &Endpoint,
        protocol: Protocol,
        service: Arc<dyn Service>,
        settings: PeersSettings,
        supervisor: &Supervisor,
    ) -> Result<Peers, NetError> {
        let links = endpoint.register(protocol.alpn, protocol.links)?;
        let metrics = supervisor.metrics();
        let group = supervisor.child("rpc", settings.drain, metrics.clone());
        let table = Arc::new_cyclic(|this| Table {
            endpoint: endpoint.clone(),
            protocol,
            service,
            settings,
            spawner: group.spawner(),
            metrics: metrics.clone(),
            peers: Lock::new(TABLE, HashMap::new(), metrics),
            this: this.clone(),
        });
        let accepting = Arc::downgrade(&table);
        let _ = group.spawn_restarting(ACCEPTOR, move |stop| {
            let (links, table) = (links.clone(), accepting.clone());
            async move {
                tokio::select! {
                    biased;
                    () = stop.requested() => {}
                    () = accept(links, table) => {}
                }
            }
        });
        Ok(Peers { table, group })
    }

    /// Asks `peer` over its session, which is dialled at one of `addrs` if there is none.
    ///
    /// # Errors
    /// An [`RpcError`]; [`RpcError::Unreachable`] when there is no session and none can be had.
    pub async fn call(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        method: Method,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Bytes, RpcError> {
        let session = self.session(peer, addrs, deadline).await?;
        session.call(method, body.as_ref(), deadline).await
    }

    /// Like [`call`](Self::call), with the answer as it comes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn open(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        method: Method,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Chunks, RpcError> {
        let session = self.session(peer, addrs, deadline).await?;
        session.open(method, body.as_ref(), deadline).await
    }

    /// The session with `peer`, dialled if there is none. Any number of callers cause one dial; it stops when the last of
    /// them has gone.
    ///
    /// # Errors
    /// [`RpcError::Unreachable`] with what the dial met, or what the last one met while it is too early for another;
    /// [`RpcError::Timeout`], [`RpcError::Canceled`], [`RpcError::Busy`] when all sessions are in use.
    pub async fn session(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        deadline: Deadline,
    ) -> Result<Session, RpcError> {
        let dial = match self.table.find(peer, addrs)? {
            Found::Session(session) => return Ok(session),
            Found::Dial(dial) => dial,
        };
        let waiter = Waiter(dial);
        match deadline.limit("dial", waiter.0.done.wait()).await {
            Ok(()) => lock(&waiter.0.result).clone().unwrap_or(Err(RpcError::Canceled)),
            Err(late) => {
                self.table.count(Counter::IoTimeouts, "dial");
                Err(late.into())
            }
        }
    }

    /// The session with `peer` if there is one now.
    #[must_use]
    pub fn get(&self, peer: NodeId) -> Option<Session> {
        self.table.peers.lock().get(&peer).and_then(Entry::usable)
    }

    /// The sessions there are now.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.table.peers.lock().values().filter_map(Entry::usable).collect()
    }

    /// The endpoint they use.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.table.endpoint
    }

    /// Takes no new links and calls, lets open ones finish for as long as the settings allow, closes all sessions.
    /// Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("protocol", &self.table.protocol.alpn).finish_non_exhaustive()
    }
}

enum Found {
    Session(Session),
    Dial(Arc<Dial>),
}

/// One who waits for a dial. The last to go stops it.
struct Waiter(Arc<Dial>);

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            if let Some(task) = lock(&self.0.task).take() {
                task.abort();
            }
        }
    }
}

impl Entry {
    fn usable(&self) -> Option<Session> {
        self.session.as_ref().filter(|session| session.shared.is_open()).cloned()
    }

    fn is_empty(&self) -> bool {
        self.session.is_none() && self.dial.is_none() && self.failed.is_none()
    }
}

impl Table {
    fn find(&self, peer: NodeId, addrs: &[SocketAddr]) -> Result<Found, RpcError> {
        if self.spawner.stop().is_requested() {
            return Err(RpcError::Canceled);
        }
        let mut peers = self.peers.lock();
        let entry = peers.entry(peer).or_default();
        if let Some(session) = entry.usable() {
            return Ok(Found::Session(session));
        }
        if let Some(dial) = &entry.dial {
            // One that nobody waits for is being stopped.
            let joined = dial.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
                (waiting > 0).then_some(waiting + 1)
            });
            if joined.is_ok() {
                return Ok(Found::Dial(Arc::clone(dial)));
            }
        }
        if let Some(failed) = &entry.failed {
            let retry_after = failed.until.saturating_duration_since(now());
            if !retry_after.is_zero() {
                return Err(RpcError::Unreachable { error: failed.error.clone(), retry_after });
            }
        }
        let dial = Arc::new(Dial {
            done: Latch::new(),
            result: Mutex::new(None),
            waiting: AtomicUsize::new(1),
            task: Mutex::new(None),
        });
        entry.dial = Some(Arc::clone(&dial));
        drop(peers);
        self.start_dial(&dial, peer, addrs.to_vec());
        Ok(Found::Dial(dial))
    }

    fn start_dial(&self, dial: &Arc<Dial>, peer: NodeId, addrs: Vec<SocketAddr>) {
        let Some(table) = self.this.upgrade() else { return };
        // However the task ends, and if it never runs, the dial is done and those who wait are told.
        let over = DialOver { dial: Arc::clone(dial), table: self.this.clone(), peer };
        let task = self.spawner.spawn(DIALER, move |stop| async move {
            let over = over;
            let result = tokio::select! {
                biased;
                () = stop.requested() => Err(RpcError::Canceled),
                result = table.dial(peer, &addrs) => result,
            };
            *lock(&over.dial.result) = Some(result);
        });
        *lock(&dial.task) = Some(task);
    }

    async fn dial(&self, peer: NodeId, addrs: &[SocketAddr]) -> Result<Session, RpcError> {
        let deadline = Deadline::after(self.settings.dial_timeout);
        let link = match self.endpoint.connect(peer, addrs, self.protocol.alpn, deadline).await {
            Ok(link) => link,
            Err(NetError::Canceled) => return Err(RpcError::Canceled),
            Err(error) => return Err(self.failed(peer, error)),
        };
        self.adopt(link, Side::Dialer).await.map_err(|error| match error {
            RpcError::Canceled | RpcError::Busy { .. } => error,
            error => self.failed(peer, NetError::Handshake { message: error.to_string() }),
        })
    }

    /// Remembers that `peer` could not be reached, and until when it is not tried again.
    fn failed(&self, peer: NodeId, error: NetError) -> RpcError {
        let mut peers = self.peers.lock();
        if peers.len() > FAILED_MAX + self.settings.sessions_max {
            let now = now();
            peers.retain(|_, entry| {
                entry.failed.take_if(|failed| failed.until <= now);
                !entry.is_empty()
            });
        }
        let entry = peers.entry(peer).or_default();
        let times = entry.failed.as_ref().map_or(1, |failed| failed.times.saturating_add(1));
        let mut backoff = DIAL_BACKOFF.with_seed(u64::from(peer.as_bytes()[0]) << 8 | u64::from(times));
        let retry_after = (0..times.min(16)).map(|_| backoff.next_delay()).last().unwrap_or_default();
        entry.failed = Some(Failed { times, until: now() + retry_after, error: error.clone() });
        RpcError::Unreachable { error, retry_after }
    }

    /// Makes a link the peer's session.
    async fn adopt(&self, link: Link, side: Side) -> Result<Session, RpcError> {
        let (proto, rpc) = (self.protocol.proto, self.settings.rpc);
        let owner: Weak<dyn Owner> = self.this.clone();
        let session = Session::start_owned(
            link,
            side,
            proto,
            Arc::clone(&self.service),
            rpc,
            &self.spawner,
            &self.metrics,
            Some(owner),
        )
        .await?;
        self.keep(session)
    }

    fn keep(&self, session: Session) -> Result<Session, RpcError> {
        let mut peers = self.peers.lock();
        let here = self.endpoint.node_id();
        let entry = peers.entry(session.peer()).or_default();
        entry.failed = None;
        let before = entry.usable();
        let (kept, retired) = match before {
            Some(before) if before.shared.side != session.shared.side && is_kept(&before, here) => {
                (before, Some(session))
            }
            before => {
                entry.session = Some(session.clone());
                (session, before)
            }
        };
        let surplus = self.surplus(&mut peers, &kept);
        drop(peers);
        if let Some(retired) = retired {
            self.retire(retired);
        }
        match surplus {
            Surplus::None => Ok(kept),
            Surplus::Closed(unused) => {
                unused.shared.drain(Deadline::after(self.settings.rpc.drain));
                Ok(kept)
            }
            Surplus::AllInUse => {
                self.count(Counter::BusyRejections, "rpc_sessions");
                kept.shared.drain(Deadline::after(Duration::ZERO));
                Err(RpcError::Busy { what: "rpc_sessions", retry_after: Duration::from_secs(1) })
            }
        }
    }

    /// What makes room for `newest`, if there are too many.
    fn surplus(&self, peers: &mut HashMap<NodeId, Entry>, newest: &Session) -> Surplus {
        let sessions = peers.values().filter_map(|entry| entry.session.as_ref());
        let sessions = sessions.filter(|session| session.shared.is_open());
        if sessions.clone().count() <= self.settings.sessions_max {
            return Surplus::None;
        }
        let others = sessions.filter(|session| !Arc::ptr_eq(&session.shared, &newest.shared));
        let unused = others.filter_map(|session| Some((session.shared.idle_since()?, session)));
        match unused.min_by_key(|(since, session)| (*since, session.peer())) {
            Some((_, session)) => Surplus::Closed(session.clone()),
            None => Surplus::AllInUse,
        }
    }

    /// Lets a session that has been replaced run out.
    fn retire(&self, session: Session) {
        session.shared.retire(RETIRE);
    }

    fn count(&self, counter: Counter, label: &'static str) {
        self.metrics.tally(counter, label).add(1);
    }
}

enum Surplus {
    None,
    Closed(Session),
    AllInUse,
}

/// Whether the session is the one that both ends keep: the one that the smaller name dialled.
fn is_kept(session: &Session, here: NodeId) -> bool {
    let dialled_here = session.shared.side == Side::Dialer;
    dialled_here == (here.as_bytes() < session.peer().as_bytes())
}

impl Owner for Table {
    fn ended(&self, session: &Arc<Shared>) {
        let mut peers = self.peers.lock();
        let Some(entry) = peers.get_mut(&session.peer) else { return };
        let gone = entry.session.take_if(|held| Arc::ptr_eq(&held.shared, session));
        if entry.is_empty() {
            peers.remove(&session.peer);
        }
        drop(peers);
        drop(gone);
    }
}

/// Marks the end of a dial when it is dropped.
struct DialOver {
    dial: Arc<Dial>,
    table: Weak<Table>,
    peer: NodeId,
}

impl Drop for DialOver {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut peers = table.peers.lock();
            if let Some(entry) = peers.get_mut(&self.peer) {
                entry.dial.take_if(|dial| Arc::ptr_eq(dial, &self.dial));
                if entry.is_empty() {
                    peers.remove(&self.peer);
                }
            }
        }
        self.dial.done.set();
    }
}

async fn accept(links: Inbox<Link>, table: Weak<Table>) {
    while let Some(link) = links.recv().await {
        let Some(table) = table.upgrade() else { return };
        let spawner = table.spawner.clone();
        let _ = spawner.spawn(GREETER, move |stop| async move {
            let remote = link.remote;
            let adopted = tokio::select! {
                biased;
                () = stop.requested() => return,
                adopted = table.adopt(link, Side::Acceptor) => adopted,
            };
            if let Err(error) = adopted {
                tracing::debug!(%remote, %error, "incoming link came to no session");
                table.count(Counter::HandshakeFailures, "hello");
            }
        });
    }
}
