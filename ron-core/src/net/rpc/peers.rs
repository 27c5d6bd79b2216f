//! One session per peer and protocol, whoever dialled it.
//!
//! A caller names a peer and gets its session: the one that is there, the one that is being dialled (many callers, one
//! dial), or a new one. A peer that cannot be reached is not dialled again before a pause that grows. When both ends dial
//! each other at once, both keep the link that the smaller name dialled and let the other one run out.

use std::{
    collections::BTreeMap,
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
    Call, Chunks, Protocol, RpcError, RpcSettings, Service, Session, Side,
    serve::CALL,
    shared::{BULK, Budgets, Life, Owner, STATE, Shared, URGENT},
    tasks::SESSION,
};
use crate::{
    BackoffPolicy, Counter, Deadline, Inbox, Inventory, Lock, LockSpec, Metrics, NodeId, Restart, Spawner,
    Stopped, Supervisor, Task, TaskSpec,
    net::{Endpoint, Link, NetError},
    now,
    shutdown::Latch,
    supervisor::catch,
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

/// A retired session closes when nothing was called on it for this long: by then the peer, for whom HELLO may take
/// three seconds, has seen the other one. And after some time in any case.
const RETIRE: Duration = Duration::from_secs(4);
const RETIRE_MAX: Duration = Duration::from_secs(20);

/// Pauses between dials to a peer that cannot be reached.
const DIAL_BACKOFF: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(60));

/// On a session on which none of our calls is open, this long without a chunk or a new request is long enough to give its
/// place to another, if none is free.
const PINNED: Duration = Duration::from_secs(10);

/// Peers whose last dial failed and that are remembered for it, beside as many as there may be sessions.
const FAILED_MAX: usize = 4096;

/// What sessions may bring to a running program, beside the lanes of incoming links.
#[must_use]
pub fn inventory() -> Inventory {
    let tasks = [ACCEPTOR, GREETER, DIALER, SESSION, CALL];
    Inventory::of(&[URGENT, BULK], &tasks, &[TABLE, STATE])
}

/// The limits of [`Peers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeersSettings {
    /// Of each session.
    pub rpc: RpcSettings,
    /// Sessions at once. Default 1024. Beyond it, one is closed to make room: the one idle for longest; if none is idle,
    /// one on which no call of ours is open and nothing has moved for ten seconds; and, for a session that we dialled, any
    /// on which no call of ours is open. If there is none, the new session is refused. So a stranger cannot hold a place
    /// with a slow request. Strangers that keep their sessions busy can keep other strangers out, up to what the endpoint
    /// grants one address, but not our own dials.
    pub sessions_max: usize,
    /// How long one dial may take, whoever waits for it. Default 5 s.
    pub dial_timeout: Duration,
    /// How long sessions may take to finish their calls and close after a stop. Default 5 s.
    pub drain: Duration,
    /// Bytes of requests, answers and events that may wait to be written, over all sessions. Beyond it, they are `Busy`.
    /// Default 64 MiB.
    pub queued_bytes_max: u64,
    /// Bytes of requests that may be at work, over all sessions. Beyond it, a request is answered with `Busy`
    /// (`rpc_requests`); see [`RpcSettings::requests_bytes_max`] for what is not counted. Default 64 MiB; as much as the
    /// host can spare, and at least some of the largest requests.
    pub requests_bytes_max: u64,
}

impl Default for PeersSettings {
    fn default() -> Self {
        PeersSettings {
            rpc: RpcSettings::default(),
            sessions_max: 1024,
            dial_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            queued_bytes_max: 64 << 20,
            requests_bytes_max: 64 << 20,
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
    budgets: Budgets,
    peers: Lock<BTreeMap<NodeId, Entry>>,
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
    /// Where it was looked for.
    addrs: Vec<SocketAddr>,
}

/// A dial that is under way, and how many wait for it.
struct Dial {
    peer: NodeId,
    addrs: Vec<SocketAddr>,
    done: Latch,
    result: Mutex<Option<Result<Session, RpcError>>>,
    waiting: AtomicUsize,
    task: Mutex<Option<Task>>,
}

/// What the acceptor holds for as long as links are taken, however that ends.
struct Open(Arc<dyn Service>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.closed();
    }
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
        let open = Open(Arc::clone(&service));
        let table = Arc::new_cyclic(|this| Table {
            endpoint: endpoint.clone(),
            protocol,
            service,
            settings,
            spawner: group.spawner(),
            metrics: metrics.clone(),
            budgets: Budgets::new(settings.queued_bytes_max, settings.requests_bytes_max),
            peers: Lock::new(TABLE, BTreeMap::new(), metrics),
            this: this.clone(),
        });
        let accepting = Arc::downgrade(&table);
        let _ = group.spawn_restarting(ACCEPTOR, move |stop| {
            let _ = &open;
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
        call: impl Into<Call>,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Bytes, RpcError> {
        let rpc = &self.table.settings.rpc;
        let chunks =
            self.ask(peer, addrs, &call.into(), body.as_ref(), deadline, rpc.answer_chunks()).await?;
        chunks.gather(rpc.answer_bytes_max as usize).await
    }

    /// Like [`call`](Self::call), with the answer as it comes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn open(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        call: impl Into<Call>,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Chunks, RpcError> {
        let window = self.table.settings.rpc.window_chunks.max(1);
        self.ask(peer, addrs, &call.into(), body.as_ref(), deadline, window).await
    }

    async fn ask(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        call: &Call,
        body: &[u8],
        deadline: Deadline,
        window: u32,
    ) -> Result<Chunks, RpcError> {
        let session = self.session(peer, addrs, deadline).await?;
        match session.shared.ask(call, body, deadline, window).await {
            // It closed after we had found it, and nothing was sent.
            Err(RpcError::Closed) => {
                let session = self.session(peer, addrs, deadline).await?;
                session.shared.ask(call, body, deadline, window).await
            }
            asked => asked,
        }
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
        let mut waiter = Waiter { dial, table: &self.table, is_late: false };
        match deadline.limit("dial", waiter.dial.done.wait()).await {
            Ok(()) => lock(&waiter.dial.result).clone().unwrap_or(Err(RpcError::Canceled)),
            Err(late) => {
                self.table.count(Counter::IoTimeouts, "dial");
                waiter.is_late = true;
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

/// One who waits for a dial. The last to go stops it; if it went because its time was up, the peer is taken for one
/// that does not answer.
struct Waiter<'a> {
    dial: Arc<Dial>,
    table: &'a Table,
    is_late: bool,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.dial.waiting.fetch_sub(1, Ordering::AcqRel) > 1 || self.dial.done.is_set() {
            return;
        }
        if self.is_late {
            self.table.count(Counter::DialFailures, "timeout");
            let _ = self.table.failed(self.dial.peer, &self.dial.addrs, NetError::Timeout { op: "dial" });
        }
        if let Some(task) = lock(&self.dial.task).take() {
            task.abort();
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
            let is_tried = addrs.iter().all(|addr| failed.addrs.contains(addr));
            if !retry_after.is_zero() && is_tried {
                return Err(RpcError::Unreachable { error: failed.error.clone(), retry_after });
            }
        }
        if addrs.is_empty() {
            if entry.is_empty() {
                peers.remove(&peer);
            }
            return Err(RpcError::Unreachable { error: NetError::NoAddress, retry_after: Duration::ZERO });
        }
        let dial = Arc::new(Dial {
            peer,
            addrs: addrs.to_vec(),
            done: Latch::new(),
            result: Mutex::new(None),
            waiting: AtomicUsize::new(1),
            task: Mutex::new(None),
        });
        entry.dial = Some(Arc::clone(&dial));
        drop(peers);
        self.start_dial(&dial);
        Ok(Found::Dial(dial))
    }

    fn start_dial(&self, dial: &Arc<Dial>) {
        let Some(table) = self.this.upgrade() else { return };
        // However the task ends, and if it never runs, the dial is done and those who wait are told.
        let over = DialOver { dial: Arc::clone(dial), table: self.this.clone() };
        let task = self.spawner.spawn(DIALER, move |stop| async move {
            let over = over;
            let result = tokio::select! {
                biased;
                () = stop.requested() => Err(RpcError::Canceled),
                result = table.dial(over.dial.peer, &over.dial.addrs) => result,
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
            Err(error) => return Err(self.failed(peer, addrs, error)),
        };
        self.adopt(link, Side::Dialer).await.map_err(|error| match error {
            RpcError::Canceled | RpcError::Busy { .. } => error,
            error => self.failed(peer, addrs, NetError::Handshake { message: error.to_string() }),
        })
    }

    /// Remembers that `peer` could not be reached, and until when it is not tried again.
    fn failed(&self, peer: NodeId, addrs: &[SocketAddr], error: NetError) -> RpcError {
        let mut peers = self.peers.lock();
        if peers.len() >= FAILED_MAX + self.settings.sessions_max {
            forget_failed(&mut peers);
        }
        let entry = peers.entry(peer).or_default();
        let times = entry.failed.as_ref().map_or(1, |failed| failed.times.saturating_add(1));
        // Of our own, so that the nodes that lost a peer together do not look for it together.
        let pair = self.endpoint.node_id().distance(&peer);
        let pair = pair.as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let mut backoff = DIAL_BACKOFF.with_seed(pair ^ u64::from(times));
        let retry_after = (0..times.min(16)).map(|_| backoff.next_delay()).last().unwrap_or_default();
        let addrs = addrs.to_vec();
        entry.failed = Some(Failed { times, until: now() + retry_after, error: error.clone(), addrs });
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
            &self.budgets,
            Some(owner),
        )
        .await?;
        let kept = self.keep(session.clone())?;
        // Not under the lock of the table. A session that lost its place meanwhile asks for no events.
        if kept.is_same(&session) {
            self.tell(|| {
                if let Some(outbox) = self.service.began(&session) {
                    session.shared.attach(outbox);
                }
            });
            if session.shared.live(Life::Told) {
                self.tell(|| self.service.ended(&session, "early"));
            }
        }
        Ok(kept)
    }

    /// Runs what the service wants to know. Its panic is not the session's.
    fn tell(&self, told: impl FnOnce()) {
        if let Err(panic) = catch(told) {
            tracing::error!(kind = SESSION.name, panic, "task panicked");
            self.count(Counter::TasksPanicked, SESSION.name);
        }
    }

    fn keep(&self, session: Session) -> Result<Session, RpcError> {
        let mut peers = self.peers.lock();
        let entry = peers.entry(session.peer()).or_default();
        entry.failed = None;
        if !session.shared.is_open() {
            // It ended before it could be entered, and its end found nothing to take out.
            if entry.is_empty() {
                peers.remove(&session.peer());
            }
            return Err(RpcError::Closed);
        }
        let drain = Deadline::after(self.settings.rpc.drain);
        match entry.usable() {
            // Both dialled at once. A link that is older may be dead, and the peer's new one the proof of it.
            Some(before) if before.shared.side != session.shared.side => {
                let at_once = now().duration_since(before.shared.began) < self.settings.dial_timeout;
                if at_once && self.is_kept(&before) {
                    session.shared.retire(RETIRE, RETIRE_MAX);
                    return Ok(before);
                }
                before.shared.retire(RETIRE, RETIRE_MAX);
            }
            Some(before) => before.shared.drain(drain, false),
            None => {}
        }
        entry.session = Some(session.clone());
        match self.surplus(&peers, &session) {
            Surplus::None => Ok(session),
            Surplus::Evicted(evicted) => {
                evicted.shared.drain(drain, false);
                Ok(session)
            }
            Surplus::AllInUse => {
                self.count(Counter::BusyRejections, "rpc_sessions");
                session.shared.drain(Deadline::after(Duration::ZERO), false);
                Err(RpcError::Busy { what: "rpc_sessions", retry_after: Duration::from_secs(1) })
            }
        }
    }

    /// Whether the session is the one that both ends keep: the one that the smaller name dialled.
    fn is_kept(&self, session: &Session) -> bool {
        let dialled_here = session.shared.side == Side::Dialer;
        dialled_here == (self.endpoint.node_id().as_bytes() < session.peer().as_bytes())
    }

    /// What makes room for `newest`, if there are too many.
    fn surplus(&self, peers: &BTreeMap<NodeId, Entry>, newest: &Session) -> Surplus {
        let sessions = peers.values().filter_map(|entry| entry.session.as_ref());
        let sessions = sessions.filter(|session| session.shared.is_open());
        if sessions.clone().count() <= self.settings.sessions_max {
            return Surplus::None;
        }
        let others = sessions.filter(|session| !Arc::ptr_eq(&session.shared, &newest.shared));
        let longest = |since: &dyn Fn(&Shared) -> Option<Instant>| {
            let found = others.clone().filter_map(|session| Some((since(&session.shared)?, session)));
            found.min_by_key(|(since, session)| (*since, session.peer())).map(|(_, session)| session.clone())
        };
        let is_ours = newest.shared.side == Side::Dialer;
        let pinned = |shared: &Shared| shared.served_since().filter(|since| now() - *since >= PINNED);
        let evicted = longest(&Shared::idle_since)
            .or_else(|| longest(&pinned))
            .or_else(|| longest(&|shared| shared.unasked_since().filter(|_| is_ours)));
        evicted.map_or(Surplus::AllInUse, Surplus::Evicted)
    }

    fn count(&self, counter: Counter, label: &'static str) {
        self.metrics.tally(counter, label).add(1);
    }
}

enum Surplus {
    None,
    Evicted(Session),
    AllInUse,
}

/// Forgets failed dials: those whose pause is over and, if that is not enough, those whose pause ends first. The worst
/// that comes of it is a dial too early.
fn forget_failed(peers: &mut BTreeMap<NodeId, Entry>) {
    let now = now();
    let mut pauses = Vec::new();
    for (peer, entry) in peers.iter_mut() {
        entry.failed.take_if(|failed| failed.until <= now);
        pauses.extend(entry.failed.as_ref().map(|failed| (failed.until, *peer)));
    }
    pauses.sort_unstable();
    // Some more than must be, so that this is not done again at the next failure.
    let surplus = if pauses.len() >= FAILED_MAX { pauses.len() - FAILED_MAX * 7 / 8 } else { 0 };
    for (_, peer) in &pauses[..surplus] {
        if let Some(entry) = peers.get_mut(peer) {
            entry.failed = None;
        }
    }
    peers.retain(|_, entry| !entry.is_empty());
}

impl Owner for Table {
    fn ended(&self, session: &Arc<Shared>, reason: &'static str) {
        let mut peers = self.peers.lock();
        let mut gone = None;
        if let Some(entry) = peers.get_mut(&session.peer) {
            gone = entry.session.take_if(|held| Arc::ptr_eq(&held.shared, session));
            if entry.is_empty() {
                peers.remove(&session.peer);
            }
        }
        // The service is not told under the lock, not even of one whose peer is forgotten already: it may ask for peers.
        drop(peers);
        drop(gone);
        if session.live(Life::Over) {
            self.tell(|| self.service.ended(&Session { shared: Arc::clone(session) }, reason));
        }
    }
}

/// Marks the end of a dial when it is dropped.
struct DialOver {
    dial: Arc<Dial>,
    table: Weak<Table>,
}

impl Drop for DialOver {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut peers = table.peers.lock();
            if let Some(entry) = peers.get_mut(&self.dial.peer) {
                entry.dial.take_if(|dial| Arc::ptr_eq(dial, &self.dial));
                if entry.is_empty() {
                    peers.remove(&self.dial.peer);
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
        let _ = spawner.spawn(GREETER, move |_| async move {
            let remote = link.remote;
            // Not called off by a stop: HELLO has its own limit, and the link is closed in order either way.
            if let Err(error) = table.adopt(link, Side::Acceptor).await {
                tracing::debug!(%remote, %error, "incoming link came to no session");
                table.count(Counter::HandshakeFailures, "hello");
            }
        });
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    fn peer(number: u32) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        NodeId::from_bytes(bytes)
    }

    fn failed(until: Instant) -> Entry {
        let failed = Failed { times: 1, until, error: NetError::NoAddress, addrs: Vec::new() };
        Entry { failed: Some(failed), ..Entry::default() }
    }

    /// A host that dials ten thousand strangers who do not answer remembered them all until their pauses were over.
    #[tokio::test(start_paused = true)]
    async fn failed_dials_are_remembered_up_to_a_hard_bound() {
        let later = |seconds: u32| now() + Duration::from_secs(seconds.into());
        let mut peers = BTreeMap::new();
        for number in 0..10_000u32 {
            if peers.len() >= FAILED_MAX {
                forget_failed(&mut peers);
            }
            peers.insert(peer(number), failed(later(1 + number)));
            assert!(peers.len() <= FAILED_MAX);
        }
        assert!(peers.len() >= FAILED_MAX * 7 / 8, "not more is forgotten than must be");
        assert!(peers.contains_key(&peer(9_999)), "whose pause ends last is kept");
        assert!(!peers.contains_key(&peer(0)));
        tokio::time::advance(Duration::from_secs(9_000)).await;
        forget_failed(&mut peers);
        assert_eq!(peers.len(), 1_000, "whose pause is over is forgotten first");
    }
}
