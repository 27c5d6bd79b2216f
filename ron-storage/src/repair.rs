//! Keeping objects alive on many nodes.
//!
//! A [`Keeping`] compares what this node has with what others have, knows from claims what there should be, and does its part
//! of the difference: it copies, rebuilds shards, and trims what is too much, within one byte rate that yields to readers.
//! Nobody is in charge. Decision record 0038 (`docs/decisions/0038-repair-without-a-leader.md`) tells who acts, and why no two
//! nodes delete the last copies.
//!
//! The host says who keeps objects ([`Nodes`]; [`members::Members`](crate::members::Members) is one that finds them by a secret),
//! serves the store with [`Keeping::judge`] to those whom it trusts, and puts with [`Keeping::put`]. All of it together:
//!
//! ```no_run
//! # use std::{sync::Arc, time::Duration};
//! # use ron_core::{Deadline, Supervisor, net::{Contact, Endpoint}};
//! # use ron_storage::{Store, StorageError, claims::Policy, members::{Admission, Members, Secret}, peers::{Links, Rules}, repair::{Ack, Keeping}};
//! # async fn node(endpoint: Endpoint, store: Store, secret: Secret, known: Vec<Contact>, host: Supervisor) -> Result<(), Box<dyn std::error::Error>> {
//! let links = Links::start(&endpoint, &host)?; // ron/blob/1
//! let members = Members::builder(Admission::Secret(secret.clone())).candidates(known).start(&endpoint, &host)?;
//! let nodes = Arc::new(members.clone());
//! let keeping = Keeping::builder(&store, endpoint.node_id(), Arc::new(links.clone()), nodes).start(&host)?;
//! let trusts = Arc::new(move |node: &_| members.contains(node));
//! links.serve(&store, Rules { judge: keeping.judge(), trusts: Some(trusts), ..Rules::default() });
//! // Acknowledged when two nodes have it. The secret's own key speaks for what all of them keep.
//! let soon = Deadline::after(Duration::from_secs(10));
//! keeping.put("hello".into(), Policy::Copies(2), &secret.owner(), Ack::Copies(2), soon).await?;
//! # Ok(()) }
//! ```

mod attempts;
mod hands;
mod keeping;
mod looking;
mod planner;
mod putting;
mod seen;
mod settings;
mod shards;
mod start;
mod status;
mod telling;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    CallError, ContentId, Counter, Deadline, Feed, Gauge, GaugeSpec, Histogram, HistogramSpec, Lane,
    LaneSpec, Lock, LockSpec, Metrics, NodeId, OwnCounter, Pacer, ReadyGate, Restart, Snapshot, Stopped,
    Subscriber, Supervisor, Tally, TaskSpec,
    net::{BoxFuture, PublicKey},
    now,
};
use tokio::time::Instant;

pub use self::{
    keeping::Reading,
    putting::{Ack, Placed},
    settings::KeepingSettings,
    start::Builder,
    status::{KeepingEvent, KeepingStatus, NodeStatus},
};
use self::{
    putting::Staying,
    settings::{plan_settings, rate_and_burst, yielding},
};
pub use crate::logic::plan::{Class, Health, Presence};
use crate::{
    StorageError, Store,
    claims::Standing,
    fetch::Fetcher,
    logic::{
        plan::{Holding, Node, Outcome},
        promises::Promises,
    },
    peers::{self, PACED_BYTES, Pace, Peer, Peers},
};

pub(crate) const REPAIRS: LaneSpec = LaneSpec::new("ron-storage", "repair", 256)
    .flow("planner → repair workers")
    .why("more than workers do in a minute; when it is full the planner skips what is not urgent and plans it again");

pub(crate) const URGENT: LaneSpec = LaneSpec::new("ron-storage", "repair_urgent", 256)
    .flow("planner → repair workers")
    .why("what the next loss would end, before everything else; when it is full the planner waits and sheds none of it");

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
    .what("compares objects and claims with every other node, one after the other, every tick; who takes long is overtaken");

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

const NODES: [GaugeSpec; 2] = [
    GaugeSpec { name: "nodes_up", help: "Nodes that keep objects and answer, this one among them" },
    GaugeSpec { name: "nodes_away", help: "Nodes that keep objects and do not answer" },
];

const PACE: GaugeSpec = GaugeSpec {
    name: "repair_bytes_per_second",
    help: "Bytes that repairs may move per second now: the rate that is set, or less while readers wait",
};

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

/// Events that are remembered for whoever asks what happened.
const RECENT: usize = 32;

/// How long whoever is asked may take before somebody else is asked as well.
const HEDGE: Duration = Duration::from_secs(1);

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

    /// Told about once a second whether this node may leave: it was told to go, and other nodes have everything that it has.
    /// Tell the others, so that they no longer count on it.
    fn on_leaving(&self, leaves: bool) {
        let _ = leaves;
    }

    /// While this node leaves: the nodes that have not heard of it yet. If it stopped now, they would wait for it to come back.
    fn untold(&self) -> Vec<NodeId> {
        Vec::new()
    }

    /// Called when an operator says that `node` will never come back. Returns whether it was listed here and no longer is. By
    /// default `false`: a host with a fixed list removes the node from that list instead.
    fn forget(&self, node: &NodeId) -> bool {
        let _ = node;
        false
    }
}

/// Nodes that are known from the start, or that the host replaces when they change.
impl Nodes for Snapshot<Vec<Member>> {
    fn nodes(&self, _: Deadline) -> BoxFuture<'_, Result<Vec<Member>, StorageError>> {
        Box::pin(std::future::ready(Ok(self.load().to_vec())))
    }
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
    /// Somebody wants to know how everything is doing now.
    Asked,
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
    fetcher: Fetcher,
    members: Snapshot<BTreeMap<NodeId, Member>>,
    promises: Lock<Promises>,
    pace: Arc<Paced>,
    #[cfg(feature = "erasure")]
    spawner: ron_core::Spawner,
    settings: Snapshot<KeepingSettings>,
    nodes: Arc<dyn Nodes>,
    /// Nodes that must answer for writes to be acknowledged.
    answering: Snapshot<usize>,
    recent: Snapshot<Vec<(u64, KeepingEvent)>>,
    heard: Lane<Heard>,
    events: Feed<KeepingEvent>,
    status: Snapshot<KeepingStatus>,
    /// The changes of claims that the status knows.
    counted: AtomicU64,
    owners: Option<Owners>,
    under_way: AtomicU64,
    draws: AtomicU64,
    /// The last version that was said here.
    said: AtomicU64,
    counts: Counts,
}

/// Says whose claims are taken.
type Owners = Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// The rate of all repairs, and what waiting for it is counted in.
struct Paced {
    pacer: Pacer,
    wait: Histogram,
    bytes: Tally,
    paced: Tally,
}

impl Pace for Paced {
    fn take(&self, bytes: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move {
            let (began, mut left) = (now(), bytes);
            while left > 0 {
                let some = left.min(PACED_BYTES);
                self.pacer.take(some, deadline).await?;
                left -= some;
            }
            let waited = now().saturating_duration_since(began);
            self.wait.observe(waited.as_secs_f64());
            self.bytes.add(bytes);
            if !waited.is_zero() {
                self.paced.add(1);
            }
            Ok(())
        })
    }
}

struct Counts {
    skipped: Tally,
    looked: Tally,
    unlooked: Tally,
    rf: Gauge,
    pace: Gauge,
    nodes: [Gauge; 2],
    health: [Gauge; 5],
    done: [Tally; 6],
    failed: [Tally; 6],
}

impl Counts {
    fn new(metrics: &Metrics) -> Self {
        let classes = [Class::Urgent, Class::Copies, Class::Parity, Class::Drop, Class::Move, Class::Trim];
        Counts {
            skipped: metrics.tally(SKIPPED, "full"),
            looked: metrics.tally(LOOKS, "done"),
            unlooked: metrics.tally(LOOKS, "failed"),
            rf: metrics.gauge(RF_OBSERVED),
            pace: metrics.gauge(PACE),
            nodes: NODES.map(|spec| metrics.gauge(spec)),
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

    /// Whether this node was told to go.
    fn is_draining(&self) -> bool {
        self.store.book().is_leaving()
    }

    fn peer(&self, node: &NodeId) -> Option<Peer> {
        self.members.load().get(node).map(|member| member.peer.clone())
    }

    /// Milliseconds since 1970, or so, and never the same twice: two words at once are two versions.
    fn clock(&self) -> u64 {
        let now = self.store.book().unix_millis();
        let next = |last: u64| now.max(last.saturating_add(1));
        let last = self.said.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_default())
    }

    /// A number that others do not know beforehand, as long as they do not know where the count began. It is no secret: it says which
    /// group of a copy is read back.
    fn draw(&self) -> u64 {
        fastrand::Rng::with_seed(self.draws.fetch_add(1, Ordering::Relaxed)).u64(..)
    }

    /// Tells whoever is interested, and remembers it for whoever asks.
    fn tell(&self, event: KeepingEvent) {
        let at = self.store.book().unix_millis();
        self.recent.update(|recent| {
            let rest = recent.len().saturating_sub(RECENT - 1);
            recent[rest..].iter().cloned().chain([(at, event.clone())]).collect()
        });
        self.events.publish(event);
    }

    async fn hear(&self, heard: Heard) {
        // The planner is gone only when everything is.
        let _ = self.heard.push(heard, Deadline::after(Deadline::LONGEST)).await;
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
    /// What to serve the store with, so that other nodes can offer objects, compare claims and ask for promises: the
    /// [`judge`](crate::peers::Rules::judge) of the rules. The rules also say who may; usually the nodes that keep objects.
    #[must_use]
    pub fn judge(&self) -> Arc<dyn peers::Judge> {
        Arc::new(telling::Telling(Arc::clone(&self.shared)))
    }

    /// Whether a node is one of those who keep objects.
    #[must_use]
    pub fn is_member(&self, node: &NodeId) -> bool {
        self.shared.members.load().contains_key(node)
    }

    /// An object from wherever it is: from here, from another node, or out of shards. Verified.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if no node that answers has it or enough shards of it.
    pub async fn get(&self, id: ContentId, deadline: Deadline) -> Result<Bytes, StorageError> {
        hands::read(&self.shared, id, deadline).await
    }

    /// Announces that this node is to be removed: it is given nothing new, and what it has is copied to where it belongs without
    /// it. Stop it when [`status`](Self::status) reports 0 `needed` and 0 `untold`. `false` cancels that. The request is durable,
    /// except in a store in memory. If the future is dropped, either may be in force.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::Disk`]: it could not be written down, and does not count.
    pub async fn set_draining(&self, is_draining: bool, deadline: Deadline) -> Result<(), StorageError> {
        self.shared.store.book().set_leaving(is_draining, deadline).await?;
        // If there is no room for the word, the planner sees it within a second.
        let _ = self.shared.heard.try_push(Heard::Members);
        Ok(())
    }

    /// How everything is doing, as it was last summed up: some time within the last second.
    #[must_use]
    pub fn status(&self) -> KeepingStatus {
        self.status_of(self.shared.store.book().changes())
    }

    /// How everything is doing, with all that was put, claimed and deleted here before; unless that is not known by the deadline.
    pub async fn status_now(&self, deadline: Deadline) -> KeepingStatus {
        const PAUSE: Duration = Duration::from_millis(10);
        let shared = &self.shared;
        let asked = shared.store.book().changes();
        while shared.counted.load(Ordering::Acquire) < asked
            && shared.status.load().has_looked
            && deadline.remaining() > PAUSE
        {
            let _ = shared.heard.try_push(Heard::Asked);
            tokio::time::sleep(PAUSE).await;
        }
        self.status_of(asked)
    }

    fn status_of(&self, changes: u64) -> KeepingStatus {
        // In this order: the status knows these at least.
        let counted = self.shared.counted.load(Ordering::Acquire);
        let mut status = (*self.shared.status.load()).clone();
        let uncounted = usize::try_from(changes.saturating_sub(counted)).unwrap_or(usize::MAX);
        status.unweighed = status.unweighed.max(uncounted);
        status
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
