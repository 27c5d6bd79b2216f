//! A node's place on the network: where it listens, which protocols it speaks, and how it reaches others.
//!
//! Subsystems share one endpoint and know nothing of each other: each registers a protocol and gets the links that
//! peers open for it, from a lane of its own with a bound of its own. Nothing about a peer is allocated before its
//! handshake is done beyond a socket and a task of 4 KiB per connection (at most `connections_max`) and a TLS state of
//! 96 KiB at worst per running handshake (at most `handshakes_max`); a test holds both numbers.

mod accept;
mod dial;
mod doors;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

#[cfg(feature = "quic")]
use super::Quic;
use super::{BoxFuture, Contact, Identity, KeyPolicy, Link, Listener, NetError, TcpTls, Transport};
use crate::{
    Counter, Deadline, Gate, GateLimits, GateSettings, Inbox, Inventory, Lane, LaneSpec, Lock, LockSpec,
    Metrics, NodeId, Restart, Stop, Stopped, Supervisor, Task, TaskSpec, permits::Permits, shutdown::Latch,
};

const LISTENER: TaskSpec = TaskSpec::new("ron-core", "net_listener")
    .restart(Restart::PROMPT)
    .what("accepts on one address and hands what passes the caps to a handshake task");

const HANDSHAKE: TaskSpec = TaskSpec::new("ron-core", "net_handshake").what(
    "one incoming connection: first byte, handshake, into its protocol's lane; a panic is caught and counted",
);

/// Declared here whatever the features: a list of tasks should not depend on them.
pub(super) const LINGER: TaskSpec = TaskSpec::new("ron-core", "net_linger")
    .restart(Restart::Expendable)
    .what("one dropped QUIC link: keeps it until the peer has what was written before the end, 5 s at most");

const PROTOCOLS: LockSpec =
    LockSpec::new("ron-core", "net.protocols", 800).guards("which lane a protocol has; held for a lookup");

const LISTENERS: LockSpec = LockSpec::new("ron-core", "net.listeners", 790)
    .guards("where is listened; held while one is added or taken away");

/// What an endpoint may bring to a running program, beside the lanes of the protocols registered on it.
#[must_use]
pub fn inventory() -> Inventory {
    Inventory::of(&[], &[LISTENER, HANDSHAKE, LINGER], &[PROTOCOLS, LISTENERS, doors::DOORS])
}

/// The limits of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointSettings {
    /// Accepted connections that may exist at once, handshaking or not. Half of them are for addresses not seen
    /// before. Default 4096: raise it together with the limit on file descriptors.
    pub connections_max: u32,
    /// Of these, how many from one IPv4 address or IPv6 /64. Default 128: raise it where many nodes share an address.
    pub connections_per_ip_max: u32,
    /// From accept to the end of the handshake. Default 3 s; raise it for links over satellites.
    pub handshake_timeout: Duration,
    /// Incoming handshakes that run at once. Default 256, which is 24 MiB at worst. While all places are taken, who has
    /// not finished within half a second loses its own.
    pub handshakes_max: u32,
    /// Dials that run at once; more wait. Default 256.
    pub dials_max: u32,
    /// How long an address of a peer is tried alone before the next is tried beside it. Default 250 ms.
    pub dial_stagger: Duration,
    /// Which key exchanges are allowed. Default: post-quantum first, classical if the peer has nothing else.
    pub policy: KeyPolicy,
    /// How long running handshakes may take after a stop. Default 3 s.
    pub drain: Duration,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        EndpointSettings {
            connections_max: 4096,
            connections_per_ip_max: 128,
            handshake_timeout: Duration::from_secs(3),
            handshakes_max: 256,
            dials_max: 256,
            dial_stagger: Duration::from_millis(250),
            policy: KeyPolicy::default(),
            drain: Duration::from_secs(3),
        }
    }
}

impl EndpointSettings {
    fn gate(&self, metrics: &Metrics) -> Result<Gate, NetError> {
        // Only places are limited here. A rate of connections would refuse the burst after a partition heals.
        let limits = |in_flight| GateLimits {
            per_second: 1_000_000,
            burst: 1_000_000,
            in_flight,
            bytes_per_second: 1 << 40,
            bytes_burst: 1 << 40,
        };
        let of_gate = GateSettings {
            // Twice what can be inside, so that those who left are remembered as known.
            clients: (self.connections_max as usize).saturating_mul(2).clamp(64, 1 << 20),
            ..GateSettings::new(limits(self.connections_per_ip_max), limits(self.connections_max))
        };
        Ok(Gate::new("net_accept", of_gate, metrics)?)
    }
}

/// How an endpoint is made. See [`Endpoint::builder`].
#[derive(Debug)]
pub struct EndpointBuilder {
    identity: Identity,
    listen: Vec<SocketAddr>,
    settings: EndpointSettings,
    form: Form,
}

#[derive(Debug)]
enum Form {
    TcpTls,
    #[cfg(feature = "quic")]
    Quic,
    Other(Arc<dyn Transport>),
}

impl EndpointBuilder {
    /// Also listens on `addr`; port 0 takes a free one. Without any address the endpoint only dials.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.listen.push(addr);
        self
    }

    /// Other limits than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: EndpointSettings) -> Self {
        self.settings = settings;
        self
    }

    /// QUIC instead of TCP with TLS: the addresses are UDP ports, all else is the same.
    #[cfg(feature = "quic")]
    #[must_use]
    pub fn quic(mut self) -> Self {
        self.form = Form::Quic;
        self
    }

    /// Another network than TCP with TLS. It must authenticate with the same identity.
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.form = Form::Other(transport);
        self
    }

    /// Begins to listen, in a group of its own under `supervisor`. Peers are refused by protocol until something is
    /// [registered](Endpoint::register).
    ///
    /// # Errors
    /// [`NetError::Listen`] with the address that cannot be had, [`NetError::Config`] for a limit of zero.
    pub fn start(self, supervisor: &Supervisor) -> Result<Endpoint, NetError> {
        let transport: Arc<dyn Transport> = match self.form {
            Form::TcpTls => Arc::new(TcpTls::new(&self.identity, self.settings.policy)?),
            #[cfg(feature = "quic")]
            Form::Quic => Arc::new(Quic::new(&self.identity, self.settings.policy)?),
            Form::Other(transport) => transport,
        };
        let metrics = supervisor.metrics();
        let gate = self.settings.gate(metrics)?;
        let listeners: Vec<Arc<dyn Listener>> = self
            .listen
            .into_iter()
            .map(|addr| transport.listen(addr).map(Arc::from))
            .collect::<Result<_, _>>()?;
        let group = supervisor.child("net", self.settings.drain, metrics.clone());
        transport.attach(group.spawner());
        let shared = Arc::new(Shared {
            node: self.identity.node_id(),
            identity: self.identity,
            settings: self.settings,
            transport,
            gate,
            handshakes: Permits::new(self.settings.handshakes_max.max(1).into()),
            dials: Permits::new(self.settings.dials_max.max(1).into()),
            doors: doors::Doors::new(metrics),
            protocols: Lock::new(PROTOCOLS, BTreeMap::new(), metrics),
            listeners: Lock::new(LISTENERS, Vec::new(), metrics),
            local_addrs: Addrs::default(),
            metrics: metrics.clone(),
            stop: group.stop(),
            lanes: group.child("net lanes", Duration::ZERO, metrics.clone()),
        });
        let endpoint = Endpoint { shared, group };
        listeners.into_iter().for_each(|listener| endpoint.accept_on(listener));
        Ok(endpoint)
    }
}

/// A node's place on the network. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
    group: Supervisor,
}

struct Shared {
    node: NodeId,
    identity: Identity,
    settings: EndpointSettings,
    transport: Arc<dyn Transport>,
    gate: Gate,
    handshakes: Permits,
    dials: Permits,
    doors: doors::Doors,
    protocols: Lock<BTreeMap<&'static str, Lane<Link>>>,
    listeners: Lock<Vec<Listening>>,
    local_addrs: Addrs,
    metrics: Metrics,
    stop: Stop,
    /// A group without tasks: it stops after the listeners and handshakes, and that closes the lanes. A handshake that
    /// was running at the stop can still deliver.
    lanes: Supervisor,
}

/// An address that is listened on, and what ends that.
struct Listening {
    addr: SocketAddr,
    closed: Arc<Latch>,
    task: Task,
}

/// The addresses as they are and as they were. Whoever borrowed an older list keeps it, so a list is only ever added; there
/// are as many as there were moves.
#[derive(Debug, Default)]
struct Addrs {
    addrs: Box<[SocketAddr]>,
    since: OnceLock<Box<Addrs>>,
}

impl Addrs {
    fn last(&self) -> &Addrs {
        let mut last = self;
        while let Some(next) = last.since.get() {
            last = next;
        }
        last
    }
}

impl Endpoint {
    /// An endpoint for this identity.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ron_core::{Deadline, LaneSpec, Supervisor, net::{Endpoint, Identity}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// const LINKS: LaneSpec = LaneSpec::new("my-crate", "links", 64);
    ///
    /// let supervisor = Supervisor::new("host");
    /// let here = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&supervisor)?;
    /// let there = Endpoint::builder(Identity::generate()?).start(&supervisor)?;
    ///
    /// let inbox = here.register("my/protocol/1", LINKS)?;
    /// let deadline = Deadline::after(Duration::from_secs(5));
    /// let dialled = there.connect(here.node_id(), here.local_addrs(), "my/protocol/1", deadline).await?;
    /// let accepted = inbox.recv().await.ok_or("stopped")?;
    /// assert_eq!((dialled.peer, accepted.peer), (here.node_id(), there.node_id()));
    /// # supervisor.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder(identity: Identity) -> EndpointBuilder {
        EndpointBuilder {
            identity,
            listen: Vec::new(),
            settings: EndpointSettings::default(),
            form: Form::TcpTls,
        }
    }

    /// Speaks `alpn` from now on: links that peers open for it arrive in the inbox. When the lane that `spec`
    /// declares is full, further links are closed and counted; when the inbox is dropped, the protocol is no longer
    /// offered.
    ///
    /// # Errors
    /// [`NetError::BadProtocol`] if it is registered already or its name is not 1 to 255 bytes long,
    /// [`NetError::Canceled`] once stopped.
    pub fn register(&self, alpn: &'static str, spec: LaneSpec) -> Result<Inbox<Link>, NetError> {
        if !(1..=255).contains(&alpn.len()) {
            return Err(NetError::BadProtocol { alpn });
        }
        if self.shared.stop.is_requested() {
            return Err(NetError::Canceled);
        }
        let (lane, inbox) = Lane::open(spec, &self.shared.metrics);
        lane.close_on(&self.shared.lanes.stop());
        let mut protocols = self.shared.protocols.lock();
        if protocols.get(alpn).is_some_and(|lane| !lane.is_closed()) {
            return Err(NetError::BadProtocol { alpn });
        }
        let before = protocols.insert(alpn, lane);
        drop(protocols);
        drop(before);
        Ok(inbox)
    }

    /// A link to `peer` for `alpn`, over the first of `addrs` that answers as that peer. Dropping the future closes
    /// whatever was begun. If another node was looked for at an address within the last three seconds and not found, that
    /// address is not dialled again and the earlier error is returned, unless it was `peer` that answered there.
    ///
    /// # Errors
    /// [`NetError::WrongIdentity`], [`NetError::ProtocolRefused`] and the like when somebody answered and it was not
    /// that, [`NetError::Unreachable`] when nobody did, [`NetError::Timeout`] at the deadline,
    /// [`NetError::Canceled`] when the endpoint stops.
    pub async fn connect(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        alpn: &'static str,
        deadline: Deadline,
    ) -> Result<Link, NetError> {
        let shared = &*self.shared;
        let addrs = dial::in_order(addrs);
        let connected = tokio::select! {
            biased;
            () = shared.stop.requested() => Err(NetError::Canceled),
            connected = deadline.limit("connect", shared.dial(peer, &addrs, alpn, deadline)) => {
                connected.unwrap_or_else(|late| Err(late.into()))
            }
        };
        match &connected {
            Ok(_) => shared.count(Counter::LinksOpened, "dialled"),
            Err(error) => shared.count(Counter::DialFailures, error.reason()),
        }
        connected
    }

    /// This node's name.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.shared.node
    }

    /// Its identity, for subsystems that sign what they publish.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Where it listens now, in the order in which it began to, with the ports that were really taken.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.shared.local_addrs.last().addrs
    }

    /// Who this is and where it listens: what others are given to reach it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { id: self.node_id(), addrs: self.local_addrs().into() }
    }

    /// Also listens on `addr` from now on; port 0 takes a free one. Says which address that is.
    ///
    /// # Errors
    /// [`NetError::Listen`] if it cannot be had, and everything is as it was; [`NetError::Canceled`] once stopped.
    pub fn listen(&self, addr: SocketAddr) -> Result<SocketAddr, NetError> {
        if self.shared.stop.is_requested() {
            return Err(NetError::Canceled);
        }
        let listener: Arc<dyn Listener> = Arc::from(self.shared.transport.listen(addr)?);
        let addr = listener.local_addr();
        self.accept_on(listener);
        Ok(addr)
    }

    /// Stops listening on `addr`, one of [`local_addrs`](Self::local_addrs). Open links stay, and handshakes that have begun
    /// are finished. Returns whether it was listening there. Once it has returned, nobody new is accepted on `addr`.
    /// Dropping the future does not undo it.
    pub async fn unlisten(&self, addr: SocketAddr) -> bool {
        let closing = {
            let mut listeners = self.shared.listeners.lock();
            let at = listeners.iter().position(|listening| listening.addr == addr);
            let closing = at.map(|at| listeners.remove(at));
            self.shared.note_addrs(&listeners);
            closing
        };
        let Some(Listening { closed, task, .. }) = closing else { return false };
        closed.set();
        task.ended().await;
        true
    }

    fn accept_on(&self, listener: Arc<dyn Listener>) {
        let (addr, closed) = (listener.local_addr(), Arc::new(Latch::new()));
        let (shared, spawner) = (Arc::clone(&self.shared), self.group.spawner());
        let until = Arc::clone(&closed);
        let task = self.group.spawn_restarting(LISTENER, move |stop| {
            let (listener, until) = (Arc::clone(&listener), Arc::clone(&until));
            accept::listen(listener, Arc::clone(&shared), spawner.clone(), stop, until)
        });
        let mut listeners = self.shared.listeners.lock();
        listeners.push(Listening { addr, closed, task });
        self.shared.note_addrs(&listeners);
    }

    /// Accepted connections that exist now, handshaking or not.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.gate.in_flight()
    }

    /// Stops listening and dialling, lets running handshakes finish, and closes the protocols' lanes, whose owners
    /// still get what is queued. Links that were handed out belong to their owners. Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("node", &self.shared.node)
            .field("listen", &self.local_addrs())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Under the lock, so that one follows the other.
    fn note_addrs(&self, listeners: &[Listening]) {
        let addrs = listeners.iter().map(|listening| listening.addr).collect();
        let _ = self.local_addrs.last().since.set(Box::new(Addrs { addrs, since: OnceLock::new() }));
    }

    async fn dial(
        &self,
        peer: NodeId,
        addrs: &[SocketAddr],
        alpn: &'static str,
        deadline: Deadline,
    ) -> Result<Link, NetError> {
        let _place = self.dials.take(1).await;
        let dial = |addr| -> BoxFuture<'_, Result<Link, NetError>> {
            let dial = move || self.transport.dial(addr, peer, alpn, deadline);
            Box::pin(self.doors.knock(addr, peer, dial))
        };
        dial::race(addrs, self.settings.dial_stagger, dial).await
    }

    fn protocols(&self) -> Arc<[&'static str]> {
        self.protocols.lock().keys().copied().collect()
    }

    fn lane(&self, alpn: &str) -> Option<Lane<Link>> {
        self.protocols.lock().get(alpn).cloned()
    }

    /// Takes a protocol off the list whose inbox is gone, unless it was registered anew meanwhile.
    fn forget(&self, alpn: &str) {
        let mut protocols = self.protocols.lock();
        let gone = match protocols.get(alpn) {
            Some(lane) if lane.is_closed() => protocols.remove(alpn),
            _ => None,
        };
        drop(protocols);
        drop(gone);
    }

    fn count(&self, counter: Counter, label: &'static str) {
        self.metrics.tally(counter, label).add(1);
    }
}
