//! Keeping objects alive on many nodes.
//!
//! A [`Keeping`] compares what this node has with what others have, knows from claims what there should be, and does its part
//! of the difference: it copies, rebuilds shards, and trims what is too much, within one byte rate that yields to readers.
//! Nobody is in charge; see [`logic::plan`](crate::logic::plan) for who acts, and [`logic::promises`](crate::logic::promises)
//! for why no two nodes delete the last copies.
//!
//! The host says who keeps objects ([`Nodes`]), serves the store with [`Keeping::policy`], and puts with
//! [`Keeping::put`].

mod hands;
mod looking;
mod planner;
mod telling;

use std::{
    collections::BTreeMap,
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Affects, Capacity, ConfigError, ContentId, Counter, Deadline, Feed, Gauge, GaugeSpec, Histogram,
    HistogramSpec, Inbox, Lane, LaneSpec, Lock, LockSpec, Metrics, NodeId, OwnCounter, Pacer, ReadyGate,
    Restart, Snapshot, Stopped, Subscriber, Supervisor, Tally, TaskSpec,
    net::{BoxFuture, Identity, PublicKey},
    now,
};
use tokio::time::Instant;

pub use crate::logic::plan::{Class, Health};
use crate::{
    StorageError, Store,
    claims::{Claim, Manifest, Policy, Standing, Verified, Word, unix_millis},
    logic::{
        plan::{Holding, Node, Outcome, PlanSettings, Step},
        promises::Promises,
        yielding::Yielding,
    },
    peers::{self, Offer, Peer, Peers},
};

pub(crate) const REPAIRS: LaneSpec = LaneSpec::new("ron-storage", "repair", 256)
    .flow("planner → repair workers")
    .why("more than workers do in a minute; when it is full the planner skips what is not urgent and plans it again");

pub(crate) const HEARD: LaneSpec = LaneSpec::new("ron-storage", "repair_heard", 1024)
    .flow("lookers, workers and callers → planner")
    .why("one word for each peer and for each repair that can be under way; who finds it full waits");

pub(crate) const EVENTS: LaneSpec = LaneSpec::feed("ron-storage", "repair_events", 1024)
    .flow("planner and workers → subscribers")
    .why("as many as there are repairs in a minute");

pub(crate) const PLACER: TaskSpec = TaskSpec::new("ron-storage", "repair_placement")
    .restart(Restart::PATIENT)
    .what("asks the host who keeps objects, now and then, for a second at most; the last answer counts until the next");

pub(crate) const LOOKER: TaskSpec = TaskSpec::new("ron-storage", "repair_looker")
    .restart(Restart::PATIENT)
    .what("compares objects and claims with every other node, one after the other, every tick");

pub(crate) const PLANNER: TaskSpec = TaskSpec::new("ron-storage", "repair_planner")
    .restart(Restart::PATIENT)
    .what("the only owner of the plan: hears what changed and hands out what should be done");

pub(crate) const WORKER: TaskSpec = TaskSpec::new("ron-storage", "repair_worker")
    .restart(Restart::PATIENT)
    .what("does one repair at a time, within the byte rate that all of them share");

pub(crate) const PROMISES: LockSpec = LockSpec::new("ron-storage", "promises", 692)
    .guards("what was promised to be kept and what is about to be trimmed; held for one look or one change");

const WAIT_SECONDS: HistogramSpec = HistogramSpec {
    name: "repair_wait_seconds",
    help: "How long a repair waited for its bytes to be within the rate",
    buckets: &[0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0],
};

const RF_OBSERVED: GaugeSpec =
    GaugeSpec { name: "rf_observed", help: "The fewest copies that an object has of those that want copies" };

const fn counter(name: &'static str, label: &'static str, help: &'static str) -> Counter {
    Counter::Own(OwnCounter { name, help, label })
}

const DONE: Counter = counter("repairs", "class", "Repairs that were done");
const FAILED: Counter = counter("repair_failures", "class", "Repairs that did not work and are tried again");
const BYTES: Counter = counter("repair_bytes", "", "Bytes that repairs moved");
const SKIPPED: Counter =
    counter("repair_skipped", "reason", "Repairs that found no room and are planned again");
const PACED: Counter = counter("repair_paced", "", "Repairs that had to wait for the byte rate");
const LOOKS: Counter = counter("repair_looks", "result", "Comparisons with other nodes");

const HEALTHS: [GaugeSpec; 5] = [
    GaugeSpec { name: "objects_met", help: "Objects that are what their policies ask for" },
    GaugeSpec { name: "objects_under", help: "Objects of which something is missing" },
    GaugeSpec { name: "objects_urgent", help: "Objects of which the next loss is the last" },
    GaugeSpec { name: "objects_lost", help: "Objects of which too little is left" },
    GaugeSpec { name: "objects_deleted", help: "Objects that are deleted and remembered" },
];

/// How often the rate of repair follows the readers.
const YIELD_EVERY: Duration = Duration::from_millis(500);

/// A node that keeps objects, as the host knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who, where, and what shows that we may.
    pub peer: Peer,
    /// What fails together with it: a machine, a rack, a house.
    pub zone: u64,
    /// How much it takes compared with others; 100 is usual.
    pub weight: u32,
}

/// Who keeps objects. The host knows, or its overlay or DHT does.
pub trait Nodes: fmt::Debug + Send + Sync + 'static {
    /// All of them, this one too. A node that is not named any more is gone for good; one that does not answer is named on.
    ///
    /// # Errors
    /// Why nobody knows now. The last answer counts until the next.
    fn nodes(&self, deadline: Deadline) -> BoxFuture<'_, Result<Vec<Member>, StorageError>>;
}

/// Nodes that are known from the start, or that the host replaces when they change.
impl Nodes for Snapshot<Vec<Member>> {
    fn nodes(&self, _: Deadline) -> BoxFuture<'_, Result<Vec<Member>, StorageError>> {
        Box::pin(std::future::ready(Ok(self.load().to_vec())))
    }
}

/// The knobs of keeping.
#[derive(Debug, Clone, PartialEq)]
pub struct KeepingSettings {
    /// How often everything is compared with every other node. Default a minute. Shorter notices losses sooner.
    pub tick: Duration,
    /// How often the host is asked who keeps objects. Default ten seconds.
    pub refresh: Duration,
    /// How long what a node has counts after it stopped answering. Default a quarter of an hour. Longer than a restart.
    pub grace: Duration,
    /// How long the next in line waits before it does what another should have done. Default five minutes.
    pub takeover: Duration,
    /// How long to wait after a failure; longer after each next one. Default five seconds.
    pub retry: Duration,
    /// Bytes that all repairs of this node together may move per second. Default 50 MiB.
    pub bytes_per_second: u64,
    /// Repairs at once. Default 4.
    pub workers: NonZeroUsize,
    /// Repairs that wait. Default 256.
    pub lane: usize,
    /// How long one repair may take before it counts as failed. Default ten minutes.
    pub repair_timeout: Duration,
    /// How long a stop waits for repairs that are under way. Default 5 s.
    pub drain: Duration,
}

impl Default for KeepingSettings {
    fn default() -> Self {
        KeepingSettings {
            tick: Duration::from_secs(60),
            refresh: Duration::from_secs(10),
            grace: Duration::from_secs(900),
            takeover: Duration::from_secs(300),
            retry: Duration::from_secs(5),
            bytes_per_second: 50 << 20,
            workers: const { NonZeroUsize::new(4).expect("not zero") },
            lane: 256,
            repair_timeout: Duration::from_secs(600),
            drain: Duration::from_secs(5),
        }
    }
}

impl KeepingSettings {
    /// Whether these make sense.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        Capacity::new("repair_lane", self.lane)?;
        let positive = [
            ("repair_tick", self.tick),
            ("repair_refresh", self.refresh),
            ("repair_retry", self.retry),
            ("repair_timeout", self.repair_timeout),
        ];
        for (key, duration) in positive {
            if duration.is_zero() {
                return Err(ConfigError::OutOfRange { key, value: "0 s".to_owned(), allowed: "above zero" });
            }
        }
        if self.bytes_per_second < 1 << 10 {
            let value = self.bytes_per_second.to_string();
            return Err(ConfigError::OutOfRange {
                key: "repair_bytes_per_second",
                value,
                allowed: "1024 or more",
            });
        }
        Ok(())
    }
}

/// When a put is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// When it is durable here. Copies follow.
    Local,
    /// When so many nodes have it durably, this one among them if it is one that keeps objects.
    Copies(u8),
}

/// What a put did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed {
    /// The object's name.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// The version of the claim on it.
    pub version: u64,
    /// Nodes that had it durably when this was said; of an object in shards, its shards.
    pub durable_on: Vec<NodeId>,
}

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepingEvent {
    /// An object cannot be restored from anything that is known.
    Lost(ContentId),
    /// One that was lost can be read again.
    Found(ContentId),
    /// A repair was done, read back and found good.
    Repaired {
        /// The object.
        object: ContentId,
        /// How much it mattered.
        class: Class,
        /// Bytes that it moved.
        bytes: u64,
    },
    /// A node did not do what it said: its copy is not what it should be.
    Blamed {
        /// The node.
        node: NodeId,
        /// The piece.
        piece: ContentId,
    },
    /// A node stopped answering, or answers again.
    Presence {
        /// The node.
        node: NodeId,
        /// Whether it answers.
        is_up: bool,
    },
}

/// How everything is doing, in the eyes of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KeepingStatus {
    /// Objects by how they are doing.
    pub objects: BTreeMap<Health, usize>,
    /// Nodes that answer, this one among them.
    pub up: usize,
    /// Nodes that do not.
    pub away: usize,
    /// Whether every other node was looked at since the start.
    pub has_looked: bool,
    /// Repairs that wait or are under way.
    pub repairs: usize,
    /// Claims that are known.
    pub claims: usize,
    /// Wanted objects and shards that are here and belong elsewhere.
    pub misplaced: usize,
}

/// What the planner hears.
#[derive(Debug)]
enum Heard {
    /// How a node answered.
    Looked(Node),
    /// What a node has, by comparison with what is here.
    Inventory { node: NodeId, began: Duration, ours: Vec<ContentId>, theirs: Vec<ContentId> },
    /// Who there is.
    Members,
    /// A whole round of looks is over.
    Round,
    /// Something new about claims.
    Claims,
    /// A node has a piece now, or has it no longer.
    Held { node: NodeId, piece: ContentId, holding: Holding },
    /// How a repair ended.
    Done { object: ContentId, outcome: Outcome },
}

/// What all parts share.
struct Shared {
    me: NodeId,
    born: Instant,
    store: Store,
    peers: Arc<dyn Peers>,
    members: Snapshot<BTreeMap<NodeId, Member>>,
    promises: Lock<Promises>,
    pacer: Pacer,
    settings: KeepingSettings,
    heard: Lane<Heard>,
    events: Feed<KeepingEvent>,
    status: Snapshot<KeepingStatus>,
    is_draining: AtomicBool,
    owners: Option<Owners>,
    under_way: AtomicU64,
    draws: AtomicU64,
    counts: Counts,
}

/// Says whose claims are taken.
type Owners = Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>;

struct Counts {
    wait: Histogram,
    bytes: Tally,
    paced: Tally,
    skipped: Tally,
    looked: Tally,
    unlooked: Tally,
    rf: Gauge,
    health: [Gauge; 5],
    done: [Tally; 6],
    failed: [Tally; 6],
}

impl Counts {
    fn new(metrics: &Metrics) -> Self {
        let classes = [Class::Urgent, Class::Copies, Class::Parity, Class::Drop, Class::Move, Class::Trim];
        Counts {
            wait: metrics.histogram(WAIT_SECONDS),
            bytes: metrics.tally(BYTES, ""),
            paced: metrics.tally(PACED, ""),
            skipped: metrics.tally(SKIPPED, "full"),
            looked: metrics.tally(LOOKS, "done"),
            unlooked: metrics.tally(LOOKS, "failed"),
            rf: metrics.gauge(RF_OBSERVED),
            health: HEALTHS.map(|spec| metrics.gauge(spec)),
            done: classes.map(|class| metrics.tally(DONE, class.name())),
            failed: classes.map(|class| metrics.tally(FAILED, class.name())),
        }
    }
}

impl Shared {
    fn now(&self) -> Duration {
        now().saturating_duration_since(self.born)
    }

    fn peer(&self, node: &NodeId) -> Option<Peer> {
        self.members.load().get(node).map(|member| member.peer.clone())
    }

    /// A number that nobody could know beforehand.
    fn draw(&self) -> u64 {
        fastrand::Rng::with_seed(self.draws.fetch_add(1, Ordering::Relaxed)).u64(..)
    }

    async fn hear(&self, heard: Heard) {
        // The planner is gone only when everything is.
        let _ = self.heard.push(heard, Deadline::after(Deadline::LONGEST)).await;
    }
}

/// How keeping is begun. See [`Keeping::builder`].
pub struct Builder {
    store: Store,
    me: NodeId,
    peers: Arc<dyn Peers>,
    nodes: Arc<dyn Nodes>,
    settings: KeepingSettings,
    metrics: Option<Metrics>,
    owners: Option<Owners>,
    seed: Option<u64>,
}

impl Builder {
    /// Other knobs than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: KeepingSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Where its counters go; to the supervisor's without it.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Whose claims are taken from other nodes. Without it, everybody's that those nodes take.
    #[must_use]
    pub fn owners(mut self, owners: impl Fn(&PublicKey) -> bool + Send + Sync + 'static) -> Self {
        self.owners = Some(Arc::new(owners));
        self
    }

    /// Where randomness begins, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Begins, in a group of its own under `supervisor`.
    ///
    /// # Errors
    /// [`StorageError::Config`].
    pub fn start(self, supervisor: &Supervisor) -> Result<Keeping, StorageError> {
        let Builder { store, me, peers, nodes, settings, metrics, owners, seed } = self;
        settings.check()?;
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("storage keeping", settings.drain, metrics);
        let metrics = group.metrics().clone();
        let (heard, inbox) = Lane::open(HEARD, &metrics);
        let lane = REPAIRS.with_capacity(Capacity::new("repair_lane", settings.lane)?);
        let (repairs, steps) = Lane::open(lane, &metrics);
        heard.close_on(&group.stop());
        repairs.close_on(&group.stop());
        let events = Feed::open(EVENTS, &metrics);
        events.close_on(&group.stop());
        let gate = group.ready().gate("storage.keeping", Affects::Writes);
        gate.close("has not compared with the other nodes yet");
        let shared = Arc::new(Shared {
            me,
            born: now(),
            store,
            peers,
            members: Snapshot::new(BTreeMap::new()),
            promises: Lock::new(PROMISES, Promises::default(), &metrics),
            pacer: pacer(settings.bytes_per_second),
            heard,
            events,
            status: Snapshot::new(KeepingStatus::default()),
            is_draining: AtomicBool::new(false),
            owners,
            under_way: AtomicU64::new(0),
            draws: AtomicU64::new(seed.unwrap_or_else(|| fastrand::u64(..))),
            counts: Counts::new(&metrics),
            settings,
        });
        let (of_placer, of_looker, of_planner) =
            (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
        let placing = metrics.clone();
        let _ = group.spawn_restarting(PLACER, move |stop| {
            let (shared, nodes, metrics) = (Arc::clone(&of_placer), Arc::clone(&nodes), placing.clone());
            Box::pin(looking::place(shared, nodes, metrics, stop))
        });
        let _ =
            group.spawn_restarting(LOOKER, move |stop| Box::pin(looking::look(Arc::clone(&of_looker), stop)));
        let gate = Arc::new(gate);
        let planning = Arc::clone(&gate);
        let _ = group.spawn_restarting(PLANNER, move |stop| {
            let planner =
                planner::Planner::new(Arc::clone(&of_planner), repairs.clone(), Arc::clone(&planning));
            Box::pin(planner.run(inbox.clone(), stop))
        });
        for _ in 0..shared.settings.workers.get() {
            let (shared, steps) = (Arc::clone(&shared), steps.clone());
            let _ =
                group.spawn_restarting(WORKER, move |_| Box::pin(work(Arc::clone(&shared), steps.clone())));
        }
        Ok(Keeping { shared, group, _gate: gate })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("me", &self.me)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

fn pacer(bytes_per_second: u64) -> Pacer {
    let rate = NonZeroU64::new(bytes_per_second).unwrap_or(NonZeroU64::MIN);
    // An eighth of a second: what comes at once is still little beside what readers get.
    Pacer::new(rate, NonZeroU64::new(rate.get() / 8).unwrap_or(NonZeroU64::MIN))
}

/// Does repairs, one after the other, until the lane is closed and empty.
async fn work(shared: Arc<Shared>, steps: Inbox<Step>) {
    while let Some(step) = steps.recv().await {
        let (object, class) = (step.object, step.class);
        let limit = Deadline::after(shared.settings.repair_timeout);
        let (outcome, bytes) = match limit.limit("repair", hands::perform(&shared, &step, limit)).await {
            Ok(done) => done,
            Err(_) => (Outcome::Failed, 0),
        };
        let at = class as usize;
        if outcome == Outcome::Done {
            shared.counts.done[at].add(1);
            shared.counts.bytes.add(bytes);
            shared.events.publish(KeepingEvent::Repaired { object, class, bytes });
        } else {
            shared.counts.failed[at].add(1);
        }
        shared.under_way.fetch_sub(1, Ordering::Relaxed);
        shared.hear(Heard::Done { object, outcome }).await;
    }
}

/// Objects on many nodes. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Keeping {
    shared: Arc<Shared>,
    group: Supervisor,
    _gate: Arc<ReadyGate>,
}

impl Keeping {
    /// Keeping for `store`, which is that of the node `me`; other nodes are asked through `peers`.
    #[must_use]
    pub fn builder(store: &Store, me: NodeId, peers: Arc<dyn Peers>, nodes: Arc<dyn Nodes>) -> Builder {
        let settings = KeepingSettings::default();
        Builder { store: store.clone(), me, peers, nodes, settings, metrics: None, owners: None, seed: None }
    }

    /// What to serve the store with, so that other nodes can offer objects, compare claims and ask for promises: the
    /// [`policy`](crate::peers::Rules::policy) of the rules. The rules also say who may; usually the nodes that keep objects.
    #[must_use]
    pub fn policy(&self) -> Arc<dyn peers::Policy> {
        Arc::new(telling::Telling(Arc::clone(&self.shared)))
    }

    /// Whether a node is one of those who keep objects.
    #[must_use]
    pub fn is_member(&self, node: &NodeId) -> bool {
        self.shared.members.load().contains_key(node)
    }

    /// Puts an object and claims it for `owner`, and says who has it. When it returns `Ok` it is claimed durably here, and as
    /// many nodes have it as `ack` asks for. Dropping the future may leave it put or claimed; doing it again is harmless.
    ///
    /// # Errors
    /// [`StorageError::Unacknowledged`] if fewer nodes have it at the deadline: it is kept and claimed here, and copies follow
    /// when they can. [`StorageError::Claim`] for a policy that cannot be, and those of [`Store::put`].
    pub async fn put(
        &self,
        content: Bytes,
        policy: Policy,
        owner: &Identity,
        ack: Ack,
        deadline: Deadline,
    ) -> Result<Placed, StorageError> {
        policy.check()?;
        let (shared, len) = (&self.shared, content.len() as u64);
        let (pieces, manifest) = match policy {
            Policy::Copies(_) => (vec![content], None),
            Policy::Erasure { data, parity } => hands::cut(&content, data, parity)?,
        };
        let mut ids = Vec::with_capacity(pieces.len());
        for piece in pieces {
            ids.push((piece.len() as u64, shared.store.put_bytes(piece, deadline).await?.id));
        }
        let (id, word) = match &manifest {
            None => (ids[0].1, Word::Copies(copies(policy))),
            Some(manifest) => (manifest.object, Word::Erasure(manifest.coding())),
        };
        let version = self.say(owner, (id, len), word, manifest.clone(), deadline).await?;
        let durable_on = match (ack, &manifest) {
            (Ack::Local, _) => shared.store.is_durable().then_some(shared.me).into_iter().collect(),
            (Ack::Copies(wanted), None) => self.spread_copies(id, len, policy, wanted, deadline).await?,
            (Ack::Copies(_), Some(manifest)) => self.spread_shards(manifest, &ids, deadline).await?,
        };
        Ok(Placed { id, len, version, durable_on })
    }

    /// Says something else about an object than before: another policy, or a pin. To change to shards or away from them, the
    /// object is read first, from wherever it is.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if the object is needed for that and nowhere to be had; and those of [`put`](Self::put).
    pub async fn set_policy(
        &self,
        id: ContentId,
        policy: Policy,
        owner: &Identity,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        policy.check()?;
        let shared = &self.shared;
        let content = match shared.store.stat(id, deadline).await {
            Ok(stat) if !stat.is_quarantined => None,
            _ => Some(hands::read(shared, id, deadline).await?),
        };
        let len = match &content {
            Some(content) => content.len() as u64,
            None => shared.store.stat(id, deadline).await?.len,
        };
        if let Some(content) = content {
            // It is here before anybody hears that its shards are not needed.
            shared.store.put_bytes(content, deadline).await?;
        }
        let (word, manifest) = match policy {
            Policy::Copies(copies) => (Word::Copies(copies), None),
            Policy::Erasure { data, parity } => {
                let content = shared.store.get_bytes(id, u64::MAX, deadline).await?;
                let (shards, manifest) = hands::cut(&content, data, parity)?;
                for shard in shards {
                    shared.store.put_bytes(shard, deadline).await?;
                }
                let manifest = manifest.ok_or(StorageError::NotFound { id })?;
                (Word::Erasure(manifest.coding()), Some(manifest))
            }
        };
        self.say(owner, (id, len), word, manifest, deadline).await
    }

    /// Ends `owner`'s claim on an object, and remembers that for `retention` after the last copy is gone. If nobody else
    /// claims it, it is deleted everywhere, also on nodes that are away now and come back.
    ///
    /// # Errors
    /// [`StorageError::Claim`] for a retention that is not allowed; those of [`Store::claim`].
    pub async fn delete(
        &self,
        id: ContentId,
        owner: &Identity,
        retention: Duration,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        self.say(owner, (id, 0), Word::Tombstone { retention: retention.as_secs() }, None, deadline).await
    }

    /// Keeps the copies of an object that there are, wherever they are.
    ///
    /// # Errors
    /// Those of [`Store::claim`].
    pub async fn pin(
        &self,
        id: ContentId,
        owner: &Identity,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        let len = self.shared.store.stat(id, deadline).await.map_or(0, |stat| stat.len);
        self.say(owner, (id, len), Word::Pin, None, deadline).await
    }

    /// An object from wherever it is: from here, from another node, or out of shards. Verified.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if no node that answers has it or enough shards of it.
    pub async fn get(&self, id: ContentId, deadline: Deadline) -> Result<Bytes, StorageError> {
        hands::read(&self.shared, id, deadline).await
    }

    /// Tells the other nodes that this one is about to go: it is given nothing more, and what it has is copied to where it
    /// belongs then. It can be stopped when [`status`](Self::status) says that nothing is misplaced. `false` takes it back.
    pub fn set_draining(&self, is_draining: bool) {
        self.shared.is_draining.store(is_draining, Ordering::Release);
        let _ = self.shared.heard.try_push(Heard::Members);
    }

    /// How everything is doing.
    #[must_use]
    pub fn status(&self) -> KeepingStatus {
        (*self.shared.status.load()).clone()
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<KeepingEvent> {
        self.shared.events.subscribe()
    }

    /// Begins nothing more, finishes what is begun, and says how that went. The store goes on.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }

    /// Signs the next version of an owner's word, and takes it in.
    async fn say(
        &self,
        owner: &Identity,
        object: (ContentId, u64),
        word: Word,
        manifest: Option<Manifest>,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        let store = &self.shared.store;
        let key = owner.public_key();
        let known = store.claims(&object.0).into_iter().find(|claim| claim.owner == key);
        // The same again is not news.
        if let Some(known) = known.as_ref().filter(|known| known.word == word) {
            return Ok(known.version);
        }
        // At least the clock: a later word wins also where it is said by a node that has not heard the one before.
        let version = known.map_or(0, |known| known.version.saturating_add(1)).max(unix_millis());
        let claim: Verified = Claim::sign(owner, object, version, unix_millis() / 1000, word)?;
        store.claim(claim, manifest, deadline).await?;
        let _ = self.shared.heard.try_push(Heard::Claims);
        Ok(version)
    }

    async fn spread_copies(
        &self,
        id: ContentId,
        len: u64,
        policy: Policy,
        wanted: u8,
        deadline: Deadline,
    ) -> Result<Vec<NodeId>, StorageError> {
        let shared = &self.shared;
        let mut durable_on: Vec<NodeId> =
            shared.store.is_durable().then_some(shared.me).into_iter().collect();
        let offer = Offer { id, len, claim: telling::told(shared, &id) };
        for node in looking::targets(shared, &id, copies(policy).max(wanted).into()) {
            if durable_on.len() >= wanted.into() {
                break;
            }
            let Some(peer) = shared.peer(&node).filter(|_| node != shared.me) else { continue };
            match shared.peers.push(&peer, &offer, deadline).await {
                Ok(pushed) if pushed.is_durable => {
                    durable_on.push(node);
                    shared.hear(Heard::Held { node, piece: id, holding: Holding::Good }).await;
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%node, %error, "a copy was not taken"),
            }
        }
        enough(durable_on, wanted)
    }

    async fn spread_shards(
        &self,
        manifest: &Manifest,
        shards: &[(u64, ContentId)],
        deadline: Deadline,
    ) -> Result<Vec<NodeId>, StorageError> {
        let shared = &self.shared;
        let targets = looking::targets(shared, &manifest.object, manifest.shards.len());
        let claim = telling::told(shared, &manifest.object);
        let (mut durable_on, mut spare) = (Vec::new(), targets.iter().skip(manifest.shards.len()).copied());
        for (at, shard) in manifest.shards.iter().enumerate() {
            let mut node = targets.get(at % targets.len().max(1)).copied();
            let len = shards.iter().find(|(_, id)| id == shard).map_or(0, |(len, _)| *len);
            // Where it belongs, or else on one of the next best.
            while let Some(to) = node {
                if to == shared.me {
                    durable_on.extend(shared.store.is_durable().then_some(to));
                    break;
                }
                let Some(peer) = shared.peer(&to) else { break };
                let offer = Offer { id: *shard, len, claim: claim.clone() };
                match shared.peers.push(&peer, &offer, deadline).await {
                    Ok(pushed) if pushed.is_durable => {
                        durable_on.push(to);
                        shared.hear(Heard::Held { node: to, piece: *shard, holding: Holding::Good }).await;
                        break;
                    }
                    Ok(_) => tracing::debug!(node = %to, "a shard would not survive there"),
                    Err(error) => tracing::debug!(node = %to, %error, "a shard was not taken"),
                }
                node = spare.next();
            }
        }
        enough(durable_on, u8::try_from(manifest.shards.len()).unwrap_or(u8::MAX))
    }
}

fn copies(policy: Policy) -> u8 {
    match policy {
        Policy::Copies(copies) => copies,
        Policy::Erasure { .. } => 0,
    }
}

fn enough(durable_on: Vec<NodeId>, wanted: u8) -> Result<Vec<NodeId>, StorageError> {
    if durable_on.len() < wanted.into() {
        return Err(StorageError::Unacknowledged { wanted: wanted.into(), found: durable_on.len() });
    }
    Ok(durable_on)
}

/// What an object's claims say, for the planner.
fn claimed(store: &Store, object: &ContentId) -> crate::logic::plan::Claimed {
    let standing = store.standing(object);
    let manifests = store.book().manifests_of(object);
    if let Standing::Live(wanted) = &standing {
        // In the order of the codings, and none for one whose manifest is not known: it cannot be repaired then.
        let shards = wanted.codings.iter().map(|coding| {
            let found = manifests.iter().find(|manifest| manifest.id() == coding.manifest);
            found.map(|manifest| manifest.shards.clone()).unwrap_or_default()
        });
        return crate::logic::plan::Claimed { shards: shards.collect(), standing };
    }
    let shards = manifests.into_iter().map(|manifest| manifest.shards).collect();
    crate::logic::plan::Claimed { standing, shards }
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeping").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// The settings of the plan.
fn plan_settings(settings: &KeepingSettings) -> PlanSettings {
    PlanSettings { grace: settings.grace, takeover: settings.takeover, retry: settings.retry }
}

/// The rate that follows the readers.
fn yielding(settings: &KeepingSettings) -> Yielding {
    Yielding::new(settings.bytes_per_second)
}
