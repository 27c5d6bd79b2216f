//! What all tasks of a node share: who has which session, how peers behave, and which engine has a topic.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{
    CallError, Counter, Deadline, Feed, Lane, LaneSpec, Lock, LockSpec, Metrics, NodeId, Overflow, Reply,
    Restart, Snapshot, Spawner, Supervisor, TaskSpec,
    net::{
        Identity,
        rpc::{Peers, RpcError},
    },
    now,
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    Contact, Event, OverlayError, Settings,
    checks::Job,
    egress::{Egress, EgressShared, Parcel, Promise, Sent},
    engine::{Command, Incoming},
    ingress::Ingress,
    logic::{
        gossip::{Class, Offence, Word},
        message::TopicId,
        parts::Parts,
        standing::Standing,
    },
    metrics::{
        BANS, CONFIG_UPDATE, EGRESS_BYTES, LET_GO, NEIGHBOURS, OFFENCES, SESSION_CLOSE, Tallies, offence_name,
    },
    session::Handlers,
};

pub(crate) const EVENTS: LaneSpec = LaneSpec::feed("ron-overlay", "events", 1024)
    .flow("all tasks → subscribers")
    .why("a second of a busy node");

pub(crate) const DIRECTORY: LockSpec =
    LockSpec::new("ron-overlay", "directory", 400).guards("which peers have queues; held for a lookup");
pub(crate) const STANDING: LockSpec = LockSpec::new("ron-overlay", "standing", 410)
    .guards("how peers behaved and what they may still do; held for arithmetic");
pub(crate) const PARTS: LockSpec = LockSpec::new("ron-overlay", "parts", 420)
    .guards("large words that are not whole yet; held for the copy of one piece");

pub(crate) const DIALER: TaskSpec = TaskSpec::new("ron-overlay", "dialer")
    .restart(Restart::Expendable)
    .what("looks for a session with one peer that something waits for");

/// Dials at once on behalf of gossip: whoever names made-up nodes to us cannot make us dial many of them.
const DIALS_MAX: usize = 64;

/// Peers with queues, beyond as many as there may be sessions: those that are being dialled.
const DIRECTORY_SLACK: usize = 256;

/// Tells the time since 1970.
pub(crate) type UnixClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The lanes of one engine. Whoever pushes rings.
#[derive(Debug, Clone)]
pub(crate) struct EngineLanes {
    /// From this node: orders of the host, verdicts, news of peers.
    pub(crate) local: Lane<Command>,
    /// Small words of peers that keep the network together.
    pub(crate) control: Arc<Ingress>,
    /// Messages of peers.
    pub(crate) gossip: Arc<Ingress>,
    pub(crate) bell: Arc<Notify>,
}

impl EngineLanes {
    /// Asks the engine, and waits for its answer.
    pub(crate) async fn call<R>(
        &self,
        op: &'static str,
        deadline: Deadline,
        make: impl FnOnce(Reply<R>) -> Command,
    ) -> Result<R, CallError> {
        let mut call = pin!(self.local.call(op, deadline, make));
        // The order is queued when the call is first looked at.
        let mut is_rung = false;
        poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            if !std::mem::replace(&mut is_rung, true) {
                self.bell.notify_one();
            }
            polled
        })
        .await
    }

    /// Tells the engine something, if it has room for it.
    pub(crate) fn tell(&self, command: Command) -> Result<(), CallError> {
        let told = self.local.try_push(command);
        self.bell.notify_one();
        told
    }

    /// Tells the engine something as soon as it has room for it.
    pub(crate) async fn tell_by(&self, command: Command, deadline: Deadline) -> Result<(), CallError> {
        let told = self.local.push(command, deadline).await;
        self.bell.notify_one();
        told
    }

    /// Hands a word of so many bytes to the engine, if it has room for it. Hands back what has none, which may be words of
    /// peers that have more waiting.
    #[must_use]
    pub(crate) fn hand(&self, incoming: Incoming, bytes: usize) -> Vec<Incoming> {
        let is_control = incoming.word.class() == Class::Control;
        let refused = if is_control { &self.control } else { &self.gossip }.push(incoming, bytes);
        self.bell.notify_one();
        refused
    }
}

/// What is shared.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) identity: Identity,
    /// This node as others know it.
    pub(crate) contact: Snapshot<Contact>,
    pub(crate) settings: Snapshot<Settings>,
    /// How often they were replaced: engines look here whether theirs are still those in force.
    pub(crate) reloads: AtomicUsize,
    pub(crate) epoch: Instant,
    pub(crate) unix: UnixClock,
    pub(crate) metrics: Metrics,
    pub(crate) egress: Arc<EgressShared>,
    pub(crate) events: Feed<Event>,
    pub(crate) engines: Vec<EngineLanes>,
    pub(crate) checks: Lane<Job>,
    pub(crate) handlers: Handlers,
    pub(crate) spawner: Spawner,
    /// Numbers for words that are cut.
    pub(crate) pieces: AtomicUsize,
    pub(crate) parts: Lock<Parts>,
    pub(crate) neighbours: AtomicUsize,
    /// In order: whoever is lost at the same time as others is lost in the same order again, in a simulation.
    directory: Lock<BTreeMap<NodeId, Arc<Egress>>>,
    standing: Lock<Standing>,
    dials: AtomicUsize,
    peers: OnceLock<Peers>,
    pub(crate) this: Weak<Node>,
}

/// What a host gives a node beside its settings.
pub(crate) struct NodeParts {
    pub(crate) identity: Identity,
    pub(crate) contact: Contact,
    pub(crate) settings: Settings,
    pub(crate) unix: UnixClock,
    pub(crate) engines: Vec<EngineLanes>,
    pub(crate) checks: Lane<Job>,
    pub(crate) events: Feed<Event>,
}

impl Node {
    pub(crate) fn new(parts: NodeParts, group: &Supervisor) -> Arc<Self> {
        let NodeParts { identity, contact, settings, unix, engines, checks, events } = parts;
        let metrics = group.metrics();
        let _ = metrics.tally(CONFIG_UPDATE, "");
        Arc::new_cyclic(|this| Node {
            id: identity.node_id(),
            identity,
            contact: Snapshot::new(contact),
            epoch: now(),
            unix,
            metrics: metrics.clone(),
            egress: Arc::new(EgressShared::new(Tallies::new(metrics), &settings)),
            events,
            engines,
            checks,
            handlers: Handlers::default(),
            spawner: group.spawner(),
            pieces: AtomicUsize::new(1),
            parts: Lock::new(PARTS, Parts::new(settings.parts), metrics),
            neighbours: AtomicUsize::new(0),
            directory: Lock::new(DIRECTORY, BTreeMap::new(), metrics),
            standing: Lock::new(STANDING, Standing::new(settings.score), metrics),
            dials: AtomicUsize::new(0),
            peers: OnceLock::new(),
            settings: Snapshot::new(settings),
            reloads: AtomicUsize::new(0),
            this: this.clone(),
        })
    }

    /// Plugs the sessions in, once, before any task runs.
    pub(crate) fn connect(&self, peers: Peers) {
        let _ = self.peers.set(peers);
    }

    /// The sessions.
    pub(crate) fn peers(&self) -> &Peers {
        self.peers.get().expect("connected before any task runs")
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load()
    }

    /// Applies what may change while the node runs, or nothing at all.
    pub(crate) fn reload(&self, settings: Settings) -> Result<(), OverlayError> {
        self.settings().check_change(&settings)?;
        let frames = settings.peer.inflight_frames;
        self.settings.replace(settings);
        let all: Vec<_> = self.directory.lock().values().cloned().collect();
        all.iter().for_each(|egress| egress.set_frames_max(frames));
        self.reloads.fetch_add(1, Ordering::Release);
        self.engines.iter().for_each(|engine| engine.bell.notify_one());
        self.metrics.tally(CONFIG_UPDATE, "").add(1);
        Ok(())
    }

    /// Time since the node began, the clock of all logic.
    pub(crate) fn since(&self) -> Duration {
        now().saturating_duration_since(self.epoch)
    }

    /// Milliseconds since 1970.
    pub(crate) fn unix_ms(&self) -> u64 {
        u64::try_from((self.unix)().as_millis()).unwrap_or(u64::MAX)
    }

    /// The engine that has a topic.
    pub(crate) fn engine_of(&self, topic: &TopicId) -> &EngineLanes {
        // Names of topics are hashes already.
        &self.engines[usize::from(topic.as_bytes()[0]) % self.engines.len()]
    }

    /// The queues of a peer, if it has any.
    pub(crate) fn egress(&self, peer: &NodeId) -> Option<Arc<Egress>> {
        self.directory.lock().get(peer).cloned()
    }

    /// The queues of a peer, made if there are none and there is room for one more.
    pub(crate) fn egress_or_new(&self, peer: NodeId) -> Option<Arc<Egress>> {
        if let Some(egress) = self.egress(&peer) {
            return Some(egress);
        }
        let settings = self.settings();
        // Made outside of the lock, which no other is taken under.
        let meter = self.standing.lock().take_meter(&peer);
        let new = Egress::new(peer, &settings, Arc::clone(&self.egress), meter, &self.metrics);
        let mut directory = self.directory.lock();
        if directory.len() >= settings.max_conns + DIRECTORY_SLACK && !directory.contains_key(&peer) {
            drop(directory);
            self.let_go("directory", 1);
            return None;
        }
        Some(Arc::clone(directory.entry(peer).or_insert(new)))
    }

    /// All peers that have queues.
    pub(crate) fn all_egress(&self) -> Vec<Arc<Egress>> {
        self.directory.lock().values().cloned().collect()
    }

    /// A peer is gone: its queues end, and all engines are told.
    pub(crate) fn lose(&self, egress: &Arc<Egress>) {
        let gone = {
            let mut directory = self.directory.lock();
            let is_same = directory.get(&egress.peer).is_some_and(|held| Arc::ptr_eq(held, egress));
            if is_same { directory.remove(&egress.peer) } else { None }
        };
        if let Some(gone) = gone {
            // It had one still, and is closed for what the peer did.
            if gone.end() {
                self.metrics.tally(SESSION_CLOSE, "given_up").add(1);
                self.events.publish(Event::SessionClosed { peer: gone.peer, reason: "given_up" });
            }
            let (meter, now) = (gone.meter(), self.since());
            self.standing.lock().leave_meter(gone.peer, meter, now);
            self.parts.lock().on_link_down(&gone.peer);
            for engine in &self.engines {
                // An engine with that much to do finds out by the peer's silence.
                drop(engine.tell(Command::Unreachable(gone.peer)));
            }
        }
    }

    /// Sends a word, as far as there is room for it.
    pub(crate) fn send(
        &self,
        to: &Contact,
        class: Class,
        topic: TopicId,
        parcel: &Parcel,
        overflow: Overflow,
        mut promise: Option<(Arc<Egress>, Promise)>,
    ) -> Sent {
        for _ in 0..2 {
            let promised = promise.take();
            let known = promised.as_ref().map(|(egress, _)| Arc::clone(egress));
            let Some(egress) = known.or_else(|| self.egress_or_new(to.id)) else { break };
            match egress.push(class, topic, parcel, overflow, promised.map(|(_, promise)| promise)) {
                Sent::Over => {}
                Sent::Dial { is_queued } => {
                    let is_dialled = self.dial(&egress, to);
                    return if is_dialled && is_queued { Sent::Queued } else { Sent::Shed };
                }
                sent => return sent,
            }
        }
        self.egress.tallies.unsent.add(1);
        Sent::Shed
    }

    /// Looks for a session with a peer that something waits for, unless too many are looked for.
    fn dial(&self, egress: &Arc<Egress>, to: &Contact) -> bool {
        let is_many = self.dials.fetch_add(1, Ordering::Relaxed) >= DIALS_MAX;
        let place = DialPlace(self.this.clone());
        if is_many {
            self.metrics.tally(Counter::BusyRejections, "dials").add(1);
            self.lose(egress);
            return false;
        }
        let (this, egress, to) = (self.this.clone(), Arc::clone(egress), to.clone());
        let _ = self.spawner.spawn(DIALER, move |stop| async move {
            let _place = place;
            let Some(node) = this.upgrade() else { return };
            let deadline = Deadline::after(node.settings().handshake_timeout * 2);
            let dialled = tokio::select! {
                biased;
                dialled = node.peers().session(to.id, &to.addrs, deadline) => dialled,
                // What waits for the peer is dropped and counted at once, and nobody waits for it.
                () = stop.requested() => Err(RpcError::Canceled),
            };
            match dialled {
                // A new one has been entered when it began; an old one may not be known here.
                Ok(session) if session.takes_events() => {
                    egress.set_session(&session);
                    session.ring();
                }
                Ok(_) => drop(egress.give_up_dial()),
                Err(error) => {
                    tracing::debug!(peer = ?to.id, %error, "a peer that something waited for is not reached");
                    // It may have come to us meanwhile.
                    if egress.give_up_dial() {
                        node.lose(&egress);
                    }
                }
            }
        });
        true
    }

    /// A peer did what it should not.
    pub(crate) fn on_offence(&self, peer: NodeId, offence: Offence) {
        self.metrics.tally(OFFENCES, offence_name(offence)).add(1);
        let now = self.since();
        let banned = self.standing.lock().scores.on_offence(peer, offence, now);
        let Some(until) = banned else { return };
        self.metrics.tally(BANS, "").add(1);
        self.events.publish(Event::Banned { peer, span: until.saturating_sub(now) });
        for engine in &self.engines {
            drop(engine.tell(Command::Ban(peer, until)));
        }
        if let Some(session) = self.peers().get(peer) {
            session.close();
        }
        if let Some(egress) = self.egress(&peer) {
            self.lose(&egress);
        }
    }

    /// Whether a peer is banned.
    pub(crate) fn is_banned(&self, peer: &NodeId) -> bool {
        self.standing.lock().scores.banned_until(peer, self.since()).is_some()
    }

    /// What a peer's offences weigh now.
    pub(crate) fn points(&self, peer: &NodeId) -> f64 {
        let now = self.since();
        self.standing.lock().scores.points(peer, now)
    }

    /// Topics on which a peer is our neighbour, over all its sessions.
    pub(crate) fn topics_of(&self, peer: &NodeId) -> usize {
        self.standing.lock().topics(peer)
    }

    /// Something was not done for want of room or time, and nobody else says so.
    pub(crate) fn let_go(&self, reason: &'static str, count: u64) {
        self.metrics.tally(LET_GO, reason).add(count);
    }

    /// A peer is our neighbour on one more topic, or on one less.
    pub(crate) fn count_neighbour(&self, peer: NodeId, is_more: bool) {
        self.standing.lock().count_topic(peer, is_more);
        let neighbours = if is_more {
            self.neighbours.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.neighbours.fetch_sub(1, Ordering::Relaxed) - 1
        };
        self.metrics.gauge(NEIGHBOURS).set(neighbours as f64);
    }

    /// Says how much waits, for who asks the metrics.
    pub(crate) fn measure(&self) {
        self.metrics.gauge(EGRESS_BYTES).set(self.egress.bytes() as f64);
    }

    /// Encodes a word once for all who get it.
    pub(crate) fn parcel(&self, topic: &TopicId, word: &Word, settings: &Settings) -> Parcel {
        Parcel::new(topic, word, settings, &self.pieces)
    }
}

/// A dial under way.
struct DialPlace(Weak<Node>);

impl Drop for DialPlace {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            node.dials.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.id).finish_non_exhaustive()
    }
}
