//! What a host holds: a node of the overlay.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use ron_core::{
    Affects, Capacity, ConfigError, Deadline, Depth as _, Feed, Lane, LaneSpec, MemoryBudget, Metrics,
    NodeId, Ratio, Ready, ReadyGate, ReadyStatus, Stopped, Subscriber, Supervisor,
    net::{
        Endpoint,
        rpc::{Chunks, Handling, Method, Peers, Protocol, Request, Side},
    },
};
use tokio::sync::Notify;

use crate::{
    Contact, OverlayError, PeerSource, PeerStatus, Settings, TopicBuilder, TopicStatus,
    checks::{CHECKER, CHECKS, check_all},
    egress::EGRESS,
    engine::{CONTROL, Command, ENGINE, Engine, INGRESS, Inboxes, LOCAL},
    ingress::Ingress,
    logic::message::TopicId,
    node::{EVENTS, EngineLanes, Node, NodeParts, UnixClock},
    session::Listener,
    source::{JANITOR, tidy},
};

/// The name of the protocol in the TLS handshake.
pub const ALPN: &str = "ron/oap/1";

pub(crate) const LINKS: LaneSpec = LaneSpec::new("ron-overlay", "ingress", 512)
    .flow("endpoint → sessions")
    .why("links that were opened in the time of one handshake");

const PROTOCOL: Protocol = Protocol { alpn: ALPN, proto: 2, links: LINKS };

/// Orders that wait for an engine at which the node says that it takes no more writes, and then no more at all.
const WRITES_AT: Ratio = Ratio::percent(80);
const READS_AT: Ratio = Ratio::percent(95);

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session with a peer has begun.
    SessionOpened {
        /// Who.
        peer: NodeId,
    },
    /// The session with a peer is over.
    SessionClosed {
        /// Who.
        peer: NodeId,
        /// Why, in one word.
        reason: &'static str,
    },
    /// A neighbour has come on a topic.
    NeighbourUp {
        /// The topic.
        topic: TopicId,
        /// Who.
        peer: NodeId,
    },
    /// A neighbour has gone from a topic.
    NeighbourDown {
        /// The topic.
        topic: TopicId,
        /// Who.
        peer: NodeId,
    },
    /// A peer told us of words that were lost between us and it.
    PeerShed {
        /// Who.
        peer: NodeId,
        /// On which topic.
        topic: TopicId,
        /// Words for us that it could not send.
        unsent: u64,
        /// Words of ours that it had no room for.
        refused: u64,
    },
    /// A peer behaved too badly.
    Banned {
        /// Who.
        peer: NodeId,
        /// For how long it is banned.
        span: Duration,
    },
}

/// How full a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// Its name, as in `queue_depth{queue}`.
    pub name: &'static str,
    /// What waits, over all queues of that name.
    pub depth: usize,
    /// What they take at most.
    pub capacity: usize,
}

/// How a node is made. See [`Overlay::builder`].
#[derive(Default)]
pub struct Builder {
    external: Vec<SocketAddr>,
    settings: Settings,
    source: Option<Arc<dyn PeerSource>>,
    seed: Option<u64>,
    unix: Option<UnixClock>,
    metrics: Option<Metrics>,
}

impl Builder {
    /// Where others can reach this node, if it is not where its endpoint listens: behind a forwarded port, and whenever
    /// the endpoint listens on `0.0.0.0` or `::`, which nobody can dial.
    #[must_use]
    pub fn external(mut self, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.external.extend(addrs);
        self
    }

    /// Other knobs than the default ones. Replaces what was set before.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where nodes of topics are found that have few neighbours.
    #[must_use]
    pub fn source(mut self, source: impl PeerSource) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Where its counters go, usually `Metrics::register("ron_overlay", &mut registry)`. To the supervisor's without it.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Where randomness begins, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// What tells the time since 1970, instead of the system: for simulations and tests on a pretended clock.
    #[must_use]
    pub fn unix_clock(mut self, unix: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.unix = Some(Arc::new(unix));
        self
    }

    /// Starts the node on `endpoint`, in a group of its own under `supervisor`. Dropping the future starts nothing.
    ///
    /// # Errors
    /// [`OverlayError::Config`] for settings that make no sense and for addresses that nobody can dial,
    /// [`OverlayError::Net`] if the endpoint has an overlay already.
    #[expect(clippy::unused_async, reason = "as the other subsystems, some of which open files here")]
    pub async fn start(self, endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Overlay, OverlayError> {
        let Builder { external, settings, source, seed, unix, metrics } = self;
        settings.check()?;
        let addrs = if external.is_empty() { endpoint.local_addrs().to_vec() } else { external };
        Contact::check_external(&addrs)?;
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("overlay", settings.drain_deadline, metrics);
        let metrics = group.metrics();
        let stop = group.stop();

        let lanes = (0..settings.engines.get()).map(|_| open_lanes(&settings, metrics));
        let (engines, inboxes): (Vec<EngineLanes>, Vec<Inboxes>) =
            lanes.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (checks, to_check) = Lane::open(sized(CHECKS, "checks_lane", settings.checks_lane)?, metrics);
        checks.close_on(&stop);
        let events = Feed::open(sized(EVENTS, "events_lane", settings.events_lane)?, metrics);
        events.close_on(&stop);
        let subscriptions = MemoryBudget::new("subscription_bytes", settings.subscription_bytes);

        let ready = supervisor.ready();
        let full = engines.iter().flat_map(|engine| {
            let local = ready.watch_lane(&engine.local, WRITES_AT, READS_AT);
            [local, watch(ready, &engine.gossip)]
        });
        let mut full: Vec<[ReadyGate; 2]> = full.collect();
        full.push(ready.watch_lane(&checks, WRITES_AT, READS_AT));
        let sessions = Arc::new(ready.gate("overlay.sessions", Affects::Writes));
        sessions.open();

        let (workers, links) = (settings.checkers.get(), settings.peers());
        let identity = endpoint.identity().clone();
        let contact = Contact { id: identity.node_id(), addrs: addrs.into() };
        let unix = unix.unwrap_or_else(|| Arc::new(unix_time));
        let parts = NodeParts { identity, contact, settings, unix, engines, checks, events };
        let node = Node::new(parts, &group);
        let links_full = watch_links(ready, &node);
        let listener = Arc::new(Listener { node: Arc::downgrade(&node) });
        node.connect(Peers::start(endpoint, PROTOCOL, listener, links, &group)?);

        let mut rng = fastrand::Rng::with_seed(seed.unwrap_or_else(|| fastrand::u64(..)));
        for inboxes in inboxes {
            let engine = Engine::new(Arc::clone(&node), rng.u64(..));
            // Boxed, or every layer around a task would have room for it.
            let _ = group.spawn(ENGINE, move |stop| Box::pin(engine.run(inboxes, stop)));
        }
        for _ in 0..workers {
            let (checking, inbox) = (Arc::clone(&node), to_check.clone());
            let _ = group.spawn_restarting(CHECKER, move |stop| {
                Box::pin(check_all(Arc::clone(&checking), inbox.clone(), stop))
            });
        }
        let tidied = Arc::clone(&node);
        let _ = group.spawn_restarting(JANITOR, move |stop| {
            Box::pin(tidy(Arc::clone(&tidied), source.clone(), Arc::clone(&sessions), stop))
        });
        Ok(Overlay { node, group, subscriptions, _full: full.into(), _links_full: Arc::new(links_full) })
    }
}

fn open_lanes(settings: &Settings, metrics: &Metrics) -> Result<(EngineLanes, Inboxes), ConfigError> {
    let size = settings.ingress_lane;
    // No newcomer is refused by closing these at a stop: the engine closes them when it has taken what was there.
    let (local, local_inbox) = Lane::open(LOCAL, metrics);
    let (bytes, peer_bytes) = (settings.ingress_bytes, settings.peer.ingress_bytes);
    let control = Ingress::new(sized(CONTROL, "ingress_lane", size)?, bytes, peer_bytes, metrics);
    let gossip = Ingress::new(sized(INGRESS, "ingress_lane", size)?, bytes, peer_bytes, metrics);
    let lanes = EngineLanes { local, control, gossip, bell: Arc::new(Notify::new()) };
    let EngineLanes { control, gossip, bell, .. } = lanes.clone();
    Ok((lanes, Inboxes { local: local_inbox, control, gossip, bell }))
}

/// Readiness by how full an engine's words of peers are.
fn watch(ready: &Ready, ingress: &Arc<Ingress>) -> [ReadyGate; 2] {
    [(Affects::Writes, WRITES_AT), (Affects::Reads, READS_AT)].map(|(affects, threshold)| {
        let ingress = Arc::downgrade(ingress);
        ready.probe(INGRESS.name, affects, move || {
            let full = ingress.upgrade()?.fullness();
            (full >= threshold.get()).then(|| format!("{:.0} % full", full * 100.0).into())
        })
    })
}

/// Readiness by how much waits for all links together. One link that is full refuses its own publishers, and is no reason.
fn watch_links(ready: &Ready, node: &Arc<Node>) -> ReadyGate {
    let node = Arc::downgrade(node);
    ready.probe(EGRESS.name, Affects::Writes, move || {
        let full = node.upgrade()?.egress.fullness();
        (full >= WRITES_AT.get()).then(|| format!("{:.0} % full", full * 100.0).into())
    })
}

fn measured<T>(lane: &Lane<T>) -> (usize, usize) {
    (lane.depth(), lane.spec().capacity)
}

fn sized(spec: LaneSpec, key: &'static str, items: usize) -> Result<LaneSpec, ConfigError> {
    Ok(spec.with_capacity(Capacity::new(key, items)?))
}

/// The wall clock. It only tells the beginnings of publishers apart.
fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("external", &self.external)
            .field("settings", &self.settings)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// A node of the overlay. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Overlay {
    /// Before the node, so that nobody asks it how full it is while it goes.
    _full: Arc<[[ReadyGate; 2]]>,
    _links_full: Arc<ReadyGate>,
    pub(crate) node: Arc<Node>,
    group: Supervisor,
    pub(crate) subscriptions: MemoryBudget,
}

impl Overlay {
    /// A node of the overlay.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A topic, to be joined. Messages on it are signed unless said otherwise.
    #[must_use]
    pub fn topic(&self, name: impl Into<String>) -> TopicBuilder {
        TopicBuilder::new(self.clone(), name.into())
    }

    /// Makes sure that there is a session with `peer`. Topics and requests do so themselves. Dropping the future gives
    /// up the dial, unless others wait for it.
    ///
    /// # Errors
    /// [`OverlayError::Unreachable`], [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn connect(&self, peer: impl Into<Contact>, deadline: Deadline) -> Result<(), OverlayError> {
        let peer = peer.into();
        self.node.peers().session(peer.id, &peer.addrs, deadline).await?;
        Ok(())
    }

    /// The peers there are sessions with.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let sessions = self.node.peers().sessions();
        let status = |session: ron_core::net::rpc::Session| {
            let egress = self.node.egress(&session.peer());
            PeerStatus {
                id: session.peer(),
                remote: session.remote(),
                is_incoming: session.side() == Side::Acceptor,
                group: session.group(),
                waiting: egress.as_ref().map_or(0, |egress| egress.waiting()),
                waiting_bytes: egress.as_ref().map_or(0, |egress| egress.waiting_bytes()),
                topics: self.node.topics_of(&session.peer()),
                points: self.node.points(&session.peer()),
            }
        };
        sessions.into_iter().map(status).collect()
    }

    /// Asks the handler with the number `proto` of a peer, and gathers its answer, at most 1 MiB. A peer is a
    /// [`Contact`], or a [`NodeId`] with which there is a session. Dropping the future calls the request off.
    ///
    /// # Errors
    /// [`OverlayError::Refused`] with the peer's reason, [`OverlayError::Unreachable`], [`OverlayError::Closed`],
    /// [`OverlayError::FrameTooLarge`], [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn request(
        &self,
        peer: impl Into<Contact>,
        proto: u16,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Bytes, OverlayError> {
        let (peer, method) = (peer.into(), Method { number: proto, name: "request" });
        Ok(self.node.peers().call(peer.id, &peer.addrs, method, body, deadline).await?)
    }

    /// As [`request`](Self::request), with the answer in parts, as the reader has room for them. Dropping it calls the
    /// rest off.
    ///
    /// # Errors
    /// As [`request`](Self::request); what comes later is told by [`Chunks::next`].
    pub async fn stream(
        &self,
        peer: impl Into<Contact>,
        proto: u16,
        body: impl AsRef<[u8]>,
        deadline: Deadline,
    ) -> Result<Chunks, OverlayError> {
        let (peer, method) = (peer.into(), Method { number: proto, name: "stream" });
        Ok(self.node.peers().open(peer.id, &peer.addrs, method, body, deadline).await?)
    }

    /// Answers requests with the number `proto` from now on; the numbers are the host's to choose. See [`Handling`] for
    /// answers that take a while or come in parts; what runs longer than its caller wants is dropped.
    ///
    /// # Errors
    /// [`OverlayError::Handled`] if there is a handler for that number.
    pub fn handle(
        &self,
        proto: u16,
        handler: impl Fn(Request) -> Handling + Send + Sync + 'static,
    ) -> Result<(), OverlayError> {
        self.node.handlers.add(proto, Arc::new(handler))
    }

    /// Answers requests with the number `proto` no more.
    pub fn unhandle(&self, proto: u16) {
        self.node.handlers.remove(proto);
    }

    /// How all topics are doing.
    ///
    /// # Errors
    /// [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn topics(&self, deadline: Deadline) -> Result<Vec<TopicStatus>, OverlayError> {
        let mut topics = Vec::new();
        for engine in &self.node.engines {
            let command = |reply| Command::Status { topic: None, reply };
            topics.extend(engine.call("status", deadline, command).await?);
        }
        topics.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(topics)
    }

    /// How full the queues are.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueStatus> {
        let (node, egress) = (&self.node, self.node.all_egress());
        let of = |name, each: &mut dyn Iterator<Item = (usize, usize)>| {
            let (depth, capacity) = each.fold((0, 0), |sum, queue| (sum.0 + queue.0, sum.1 + queue.1));
            QueueStatus { name, depth, capacity }
        };
        let engines = || node.engines.iter();
        vec![
            of(LOCAL.name, &mut engines().map(|lanes| measured(&lanes.local))),
            of(CONTROL.name, &mut engines().map(|lanes| (lanes.control.depth(), lanes.control.capacity()))),
            of(INGRESS.name, &mut engines().map(|lanes| (lanes.gossip.depth(), lanes.gossip.capacity()))),
            of(CHECKS.name, &mut std::iter::once(measured(&node.checks))),
            of(EGRESS.name, &mut egress.iter().map(|egress| (egress.depth(), egress.capacity()))),
        ]
    }

    /// Neighbours, summed over topics.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.node.neighbours.load(Ordering::Relaxed)
    }

    /// Who this node is.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// This node as others know it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        (*self.node.contact.load()).clone()
    }

    /// Tells others from now on that this node is at `addrs`: for a host whose endpoint listens elsewhere than before.
    /// Sessions stay.
    ///
    /// # Errors
    /// [`OverlayError::Config`] for an address that nobody can dial, and what others are told stays as it was.
    pub fn moved(&self, addrs: impl IntoIterator<Item = SocketAddr>) -> Result<(), OverlayError> {
        let addrs: Vec<SocketAddr> = addrs.into_iter().collect();
        Contact::check_external(&addrs)?;
        self.node.contact.replace(Contact { id: self.node.id, addrs: addrs.into() });
        self.node.reloads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether it can do its work, and if not why. The gates are those of the supervisor that it was started under, with
    /// everything else there: another node under the same one that has stopped closes them for this one too.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.group.ready().status()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.node.settings()
    }

    /// Applies what may change while the node runs, or nothing at all.
    ///
    /// # Errors
    /// [`OverlayError::Config`]: [`ConfigError::NeedsRestart`] names the first setting that cannot change while the node
    /// runs.
    pub fn reload(&self, settings: Settings) -> Result<(), OverlayError> {
        self.node.reload(settings)
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<Event> {
        self.node.events.subscribe()
    }

    /// Leaves all topics in order, sends what waits for as long as the settings allow, closes all sessions and stops.
    /// Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay").field("node", &self.node.id).finish_non_exhaustive()
    }
}
