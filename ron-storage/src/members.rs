//! Who keeps objects with this node: nodes that show that they belong, found and remembered.
//!
//! A [`Members`] is a [`Nodes`] that keeps itself up to date. It meets every node that may belong, over `ron/keep/1`: the link
//! proves who both are, and each shows that it belongs, by a [`Secret`] that both know or because each is on the other's
//! list. A node that has shown it is a member until it leaves, or until it was not seen for a long time; a member that does
//! not answer is away. Only members may push objects here.
//!
//! Members name each other, so knowing one of them is enough. The names are only hints: each node is met before it counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ConfigError, ContentId, Deadline, LaneSpec, NodeId, Restart, Snapshot, Spawner, Stop, Supervisor,
    TaskSpec,
    disk::{self, Access, Disk, DiskError},
    net::{
        BoxFuture, Contact, Endpoint, NetError,
        rpc::{self, Fault, Handling, Method, PeersSettings, Protocol, Request, RpcError, Service},
    },
};
use tokio::sync::Notify;

pub use crate::logic::{
    members::{MEMBERS_MAX, Secret, SecretError, ZONE_BYTES_MAX},
    place::{WEIGHT_DEFAULT, WEIGHT_MAX},
};
use crate::{
    StorageError,
    claims::UnixClock,
    logic::members::{Card, Known, read_file, write_file, zone_number},
    peers::Peer,
    repair::{Member, Nodes},
};

pub(crate) const LINKS: LaneSpec = LaneSpec::new("ron-storage", "member_links", 64)
    .flow("endpoint → sessions")
    .why("nodes that come at once after a restart; taking one in is a task and a HELLO");

pub(crate) const GREETER: TaskSpec = TaskSpec::new("ron-storage", "greeter")
    .restart(Restart::PATIENT)
    .what("meets whoever may keep objects with this node, one after the other, and remembers who does");

const PROTOCOL: Protocol = Protocol { alpn: "ron/keep/1", proto: 5, links: LINKS };

const MEET: Method = Method { number: 1, name: "meet" };

/// What one meeting may take. A node that is slower is met the next time.
const MEETING: Duration = Duration::from_secs(2);

/// What looking for others may take.
const FINDING: Duration = Duration::from_secs(5);

/// While nobody is known, others are looked for more often than usual.
const ALONE: Duration = Duration::from_secs(1);

/// Failed meetings after which a node that was only named by others is forgotten.
const FAILURES: u32 = 5;

/// How often it is written down when members were last seen, though nothing else changed.
const SAVE_EVERY: Duration = Duration::from_secs(3600);

/// Bytes of the file at most: each member has some three hundred at its longest.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Which nodes belong.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Those that know this secret.
    Secret(Secret),
    /// These, and no others.
    Listed(Vec<Contact>),
}

/// Finds nodes that may belong, in a DHT or on a list. What it finds need not be true: each node is met before it counts.
pub trait Candidates: Send + Sync + 'static {
    /// Nodes that were found by the deadline; none if looking for them failed.
    fn find(&self, deadline: Deadline) -> BoxFuture<'_, Vec<Contact>>;
}

/// Finds nobody: others come by themselves, or are known already.
impl Candidates for () {
    fn find(&self, _: Deadline) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

/// Those that the host knows anyway.
impl Candidates for Vec<Contact> {
    fn find(&self, _: Deadline) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(std::future::ready(self.clone()))
    }
}

/// The knobs of membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembersSettings {
    /// The name of what fails together with this node, such as a machine, a rack or a building; empty if nothing does.
    pub zone: String,
    /// What share of the objects this node takes, compared with the weights of others. Default 100.
    pub weight: u32,
    /// How often others are looked for and met. Default ten seconds.
    pub every: Duration,
    /// How long a member that is not seen is remembered. Default a week; one that comes back later joins anew.
    pub forget_after: Duration,
}

impl Default for MembersSettings {
    fn default() -> Self {
        MembersSettings {
            zone: String::new(),
            weight: WEIGHT_DEFAULT,
            every: Duration::from_secs(10),
            forget_after: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl MembersSettings {
    /// Whether these make sense.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let out = |key, value: String, allowed| Err(ConfigError::OutOfRange { key, value, allowed });
        if self.zone.len() > ZONE_BYTES_MAX {
            return out("zone", format!("{} bytes long", self.zone.len()), "at most 64 bytes");
        }
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return out("weight", self.weight.to_string(), "1..=1000000");
        }
        if self.every.is_zero() {
            return out("every", "0 s".to_owned(), "above zero");
        }
        if self.forget_after.is_zero() {
            return out("forget_after", "0 s".to_owned(), "above zero");
        }
        Ok(())
    }
}

/// Why membership could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// The endpoint cannot speak the protocol: something else does.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The file in which members are remembered cannot be read.
    #[error("members cannot be remembered")]
    Disk(#[from] DiskError),
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

struct Shared {
    endpoint: Endpoint,
    me: NodeId,
    /// Where others reach this node, if that is not where the endpoint listens.
    external: Vec<SocketAddr>,
    admission: Snapshot<Admission>,
    settings: Snapshot<MembersSettings>,
    table: Snapshot<BTreeMap<NodeId, Known>>,
    leaves: AtomicBool,
    /// Who was told, since this node leaves, that it does.
    farewells: Snapshot<BTreeSet<NodeId>>,
    /// Whether others are met at once: what this node says of itself has changed.
    bell: Notify,
    /// Nodes that have said that they leave. An answer that was under way meanwhile may be older than that word.
    departures: AtomicU64,
    turns: AtomicUsize,
    clock: UnixClock,
}

impl Shared {
    /// Where others reach this node now: an endpoint may move.
    fn addrs(&self) -> &[SocketAddr] {
        if self.external.is_empty() { self.endpoint.local_addrs() } else { &self.external }
    }

    /// Seconds since 1970.
    fn unix_now(&self) -> u64 {
        self.clock.millis() / 1000
    }

    fn admits(&self, from: &NodeId, shown: &[u8]) -> bool {
        match &*self.admission.load() {
            Admission::Secret(secret) => secret.is_proof(shown, from, &self.me),
            Admission::Listed(listed) => listed.iter().any(|contact| contact.id == *from),
        }
    }

    fn proof_for(&self, to: &NodeId) -> Vec<u8> {
        match &*self.admission.load() {
            Admission::Secret(secret) => secret.proof(&self.me, to).to_vec(),
            // The link has proven who this is, and that is all that a list asks for.
            Admission::Listed(_) => Vec::new(),
        }
    }

    fn card(&self) -> Card {
        let settings = self.settings.load();
        Card {
            zone: settings.zone.clone(),
            weight: settings.weight,
            addrs: self.addrs().to_vec(),
            leaves: self.leaves.load(Ordering::Acquire),
            ..Card::default()
        }
    }

    /// Takes in what a node that belongs says of itself. Says whether that is news.
    fn take_in(&self, from: NodeId, card: Card) -> bool {
        let mut is_news = false;
        if card.leaves {
            self.departures.fetch_add(1, Ordering::AcqRel);
        }
        self.table.update(|table| {
            let mut table = table.clone();
            if card.leaves {
                is_news = table.remove(&from).is_some();
                return table;
            }
            let known = Known {
                addrs: card.addrs.into(),
                zone: card.zone,
                weight: card.weight,
                seen: self.unix_now(),
            };
            let before = table.get(&from);
            let is_same = before.is_some_and(|before| Known { seen: known.seen, ..before.clone() } == known);
            is_news = !is_same && (before.is_some() || table.len() < MEMBERS_MAX);
            if is_same || is_news {
                table.insert(from, known);
            }
            table
        });
        is_news
    }

    fn meet(&self, request: &Request) -> Result<Bytes, Fault> {
        let from = request.peer();
        if !self.admits(&from, request.cap()) {
            return Err(Fault::forbidden("not one of those who keep objects here"));
        }
        let card = Card::decode(request.body()).map_err(|_| Fault::bad_request("not a card"))?;
        self.take_in(from, card);
        let mut mine = self.card();
        mine.proof = self.proof_for(&from);
        let table = self.table.load();
        let others = table.iter().filter(|(id, known)| **id != from && !known.addrs.is_empty());
        mine.others =
            others.map(|(id, known)| Contact { id: *id, addrs: Arc::clone(&known.addrs) }).collect();
        // Another part each time, where not all fit.
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let others = mine.others.len().max(1);
        mine.others.rotate_left(turn % others);
        Ok(mine.encode())
    }
}

struct Meeting(Arc<Shared>);

impl Service for Meeting {
    fn call(&self, request: Request) -> Handling {
        let is_known = request.method() == MEET.number;
        Handling::Done(if is_known { self.0.meet(&request) } else { Err(Fault::no_such_method()) })
    }
}

/// How membership begins. See [`Members::builder`].
pub struct Builder {
    admission: Admission,
    settings: MembersSettings,
    candidates: Arc<dyn Candidates>,
    external: Vec<SocketAddr>,
    data: Option<(Arc<dyn Disk>, PathBuf)>,
    links: PeersSettings,
    clock: UnixClock,
}

impl Builder {
    /// Settings other than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: MembersSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Where to look for nodes that may belong. Without it, this node meets only those that come by themselves, that are
    /// listed, or that members name.
    #[must_use]
    pub fn candidates(mut self, candidates: impl Candidates) -> Self {
        self.candidates = Arc::new(candidates);
        self
    }

    /// Where others reach this node, if that is not where its endpoint listens.
    #[must_use]
    pub fn external(mut self, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.external = addrs.into_iter().collect();
        self
    }

    /// The file in which members are remembered. Without it, they are found again after each start.
    #[must_use]
    pub fn data(mut self, disk: Arc<dyn Disk>, path: impl Into<PathBuf>) -> Self {
        self.data = Some((disk, path.into()));
        self
    }

    /// Limits of the sessions with other nodes, other than the default ones.
    #[must_use]
    pub fn links(mut self, settings: PeersSettings) -> Self {
        self.links = settings;
        self
    }

    /// The clock by which members are remembered: the time since 1970. Without it, the machine's clock.
    #[must_use]
    pub fn unix_clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = UnixClock(Arc::new(clock));
        self
    }

    /// Begins, under `supervisor`. It reads a small file.
    ///
    /// # Errors
    /// [`MembersError`].
    pub fn start(self, endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Members, MembersError> {
        let Builder { admission, settings, candidates, external, data, links, clock } = self;
        settings.check()?;
        let remembered = match &data {
            Some((disk, path)) => remembered(&**disk, path)?,
            None => BTreeMap::new(),
        };
        let me = endpoint.node_id();
        let shared = Arc::new(Shared {
            endpoint: endpoint.clone(),
            me,
            external,
            admission: Snapshot::new(admission),
            settings: Snapshot::new(settings),
            table: Snapshot::new(remembered.into_iter().filter(|(id, _)| *id != me).collect()),
            leaves: AtomicBool::new(false),
            farewells: Snapshot::new(BTreeSet::new()),
            bell: Notify::new(),
            departures: AtomicU64::new(0),
            turns: AtomicUsize::new(0),
            clock,
        });
        let service = Arc::new(Meeting(Arc::clone(&shared)));
        let peers = rpc::Peers::start(endpoint, PROTOCOL, service, links, supervisor)?;
        let (greeting, spawner) = (Arc::clone(&shared), supervisor.spawner());
        let _ = supervisor.spawn_restarting(GREETER, move |stop| {
            let greeter = Greeter {
                shared: Arc::clone(&greeting),
                peers: peers.clone(),
                candidates: Arc::clone(&candidates),
                data: data.clone(),
                spawner: spawner.clone(),
                told: BTreeMap::new(),
                refused: BTreeSet::new(),
            };
            Box::pin(greeter.run(stop))
        });
        Ok(Members { shared })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What was written down. A file that cannot be understood counts as none: members are found again.
fn remembered(disk: &dyn Disk, path: &Path) -> Result<BTreeMap<NodeId, Known>, DiskError> {
    let file = match disk.open(path, Access::Read) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let len = file.len()?;
    let mut bytes = vec![0; usize::try_from(len.min(FILE_BYTES_MAX)).unwrap_or(0)];
    let read = file.read_at(0, &mut bytes)?;
    match read_file(&bytes[..read]) {
        Ok(members) => Ok(members.into_iter().collect()),
        Err(fault) => {
            tracing::warn!(path = %path.display(), ?fault, "members are not remembered, and found again");
            Ok(BTreeMap::new())
        }
    }
}

/// The nodes that keep objects with this one. Cloning shares it.
#[derive(Clone)]
pub struct Members {
    shared: Arc<Shared>,
}

impl Members {
    /// Membership by `admission`.
    #[must_use]
    pub fn builder(admission: Admission) -> Builder {
        let settings = MembersSettings::default();
        let (external, links, clock) = (Vec::new(), PeersSettings::default(), UnixClock::default());
        Builder { admission, settings, candidates: Arc::new(()), external, data: None, links, clock }
    }

    /// Whether a node has shown that it belongs, and has not left.
    #[must_use]
    pub fn contains(&self, node: &NodeId) -> bool {
        match &*self.shared.admission.load() {
            Admission::Secret(_) => self.shared.table.load().contains_key(node),
            Admission::Listed(listed) => listed.iter().any(|contact| contact.id == *node),
        }
    }

    /// Applies other settings, and other nodes on the list if there is one. A secret cannot change: it is how others know this
    /// node.
    ///
    /// # Errors
    /// [`ConfigError`], and everything stays as it was.
    pub fn reload(&self, settings: MembersSettings, listed: Vec<Contact>) -> Result<(), ConfigError> {
        settings.check()?;
        self.shared.settings.replace(settings);
        self.shared.admission.update(|admission| match admission {
            Admission::Secret(secret) => Admission::Secret(secret.clone()),
            Admission::Listed(_) => Admission::Listed(listed),
        });
        Ok(())
    }

    /// The name under which nodes that know the secret look for each other; `None` if nodes are listed.
    #[must_use]
    pub fn rendezvous(&self) -> Option<ContentId> {
        match &*self.shared.admission.load() {
            Admission::Secret(secret) => Some(secret.rendezvous()),
            Admission::Listed(_) => None,
        }
    }

    fn all(&self) -> Vec<Member> {
        let shared = &self.shared;
        let member = |id: NodeId, addrs: Arc<[SocketAddr]>, zone: &str, weight: u32| Member {
            peer: Peer::from(Contact { id, addrs }),
            zone: zone_number(zone, &id),
            weight,
        };
        let (settings, table) = (shared.settings.load(), shared.table.load());
        let mut all = vec![member(shared.me, shared.addrs().into(), &settings.zone, settings.weight)];
        match &*shared.admission.load() {
            Admission::Secret(_) => {
                let known = table.iter();
                all.extend(
                    known.map(|(id, known)| member(*id, Arc::clone(&known.addrs), &known.zone, known.weight)),
                );
            }
            Admission::Listed(listed) => {
                let others = listed.iter().filter(|contact| contact.id != shared.me);
                all.extend(others.map(|contact| match table.get(&contact.id) {
                    Some(known) => member(contact.id, Arc::clone(&contact.addrs), &known.zone, known.weight),
                    // It counts before it was met: where objects belong must not depend on who comes first.
                    None => member(contact.id, Arc::clone(&contact.addrs), "", WEIGHT_DEFAULT),
                }));
            }
        }
        all
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").field("others", &self.shared.table.load().len()).finish_non_exhaustive()
    }
}

impl Nodes for Members {
    fn nodes(&self, _: Deadline) -> BoxFuture<'_, Result<Vec<Member>, StorageError>> {
        Box::pin(std::future::ready(Ok(self.all())))
    }

    fn on_leaving(&self, leaves: bool) {
        if self.shared.leaves.swap(leaves, Ordering::AcqRel) != leaves {
            self.shared.farewells.replace(BTreeSet::new());
            self.shared.bell.notify_one();
        }
    }

    fn untold(&self) -> Vec<NodeId> {
        if !self.shared.leaves.load(Ordering::Acquire) {
            return Vec::new();
        }
        let (table, farewells) = (self.shared.table.load(), self.shared.farewells.load());
        table.keys().filter(|id| !farewells.contains(*id)).copied().collect()
    }

    /// If it does come back, it belongs again.
    fn forget(&self, node: &NodeId) -> bool {
        let mut was_known = false;
        self.shared.table.update(|table| {
            let mut table = table.clone();
            was_known = table.remove(node).is_some();
            table
        });
        was_known && matches!(&*self.shared.admission.load(), Admission::Secret(_))
    }
}

/// The task that meets others.
struct Greeter {
    shared: Arc<Shared>,
    peers: rpc::Peers,
    candidates: Arc<dyn Candidates>,
    data: Option<(Arc<dyn Disk>, PathBuf)>,
    spawner: Spawner,
    /// Who was named by members or found, and how often it could not be met.
    told: BTreeMap<NodeId, (Contact, u32)>,
    /// Who said that this node does not belong, or does not itself: told once.
    refused: BTreeSet<NodeId>,
}

impl Greeter {
    async fn run(mut self, stop: Stop) {
        let (mut saved, mut saved_at) = (Arc::clone(&self.shared.table.load()), ron_core::now());
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = self.round() => {}
            }
            self.forget();
            let table = self.shared.table.load();
            let is_old = ron_core::now().saturating_duration_since(saved_at) >= SAVE_EVERY;
            // What could not be saved is tried again after the next round.
            if (!is_same(&saved, &table) || is_old) && self.save(&table).await {
                (saved, saved_at) = (Arc::clone(&table), ron_core::now());
            }
            let every = self.shared.settings.load().every;
            let pause = if table.is_empty() { every.min(ALONE) } else { every };
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = self.shared.bell.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Meets everybody once: those that are known, and those that may belong.
    async fn round(&mut self) {
        let found = self.candidates.find(Deadline::after(FINDING)).await;
        let listed = match &*self.shared.admission.load() {
            Admission::Secret(_) => Vec::new(),
            Admission::Listed(listed) => listed.clone(),
        };
        for contact in found.into_iter().chain(listed) {
            self.hear_of(contact);
        }
        let known = self.shared.table.load();
        let known = known.iter().map(|(id, known)| Contact { id: *id, addrs: Arc::clone(&known.addrs) });
        let mut all: BTreeMap<NodeId, Contact> =
            self.told.iter().map(|(id, (contact, _))| (*id, contact.clone())).collect();
        all.extend(known.map(|contact| (contact.id, contact)));
        while let Some((_, contact)) = all.pop_first() {
            // Whom a member names is met in the same round: one acquaintance is enough to know all.
            for other in self.meet(&contact).await {
                if self.hear_of(other.clone()) {
                    all.insert(other.id, other);
                }
            }
        }
    }

    /// Says whether it is somebody new.
    fn hear_of(&mut self, contact: Contact) -> bool {
        let is_one = contact.id != self.shared.me && !contact.addrs.is_empty();
        let is_known =
            self.shared.table.load().contains_key(&contact.id) || self.told.contains_key(&contact.id);
        if !is_one || is_known || self.told.len() >= MEMBERS_MAX {
            return false;
        }
        self.told.insert(contact.id, (contact, 0));
        true
    }

    /// Meets a node, and returns whom it names.
    async fn meet(&mut self, contact: &Contact) -> Vec<Contact> {
        let call = MEET.cap(self.shared.proof_for(&contact.id));
        let soon = Deadline::after(MEETING);
        let (mine, departures) = (self.shared.card(), self.shared.departures.load(Ordering::Acquire));
        let answer = self.peers.call(contact.id, &contact.addrs, call, mine.encode(), soon).await;
        let card = match answer {
            Ok(answer) => {
                Card::decode(&answer).ok().filter(|card| self.shared.admits(&contact.id, &card.proof))
            }
            Err(error) => {
                if matches!(error, RpcError::Refused { .. }) {
                    self.tell_refused(contact, &error.to_string());
                }
                self.fail(&contact.id);
                return Vec::new();
            }
        };
        let Some(mut card) = card else {
            self.tell_refused(contact, "it does not show that it belongs");
            self.fail(&contact.id);
            return Vec::new();
        };
        self.refused.remove(&contact.id);
        self.told.remove(&contact.id);
        if mine.leaves {
            self.shared.farewells.update(|told| told.iter().copied().chain([contact.id]).collect());
        }
        let others = std::mem::take(&mut card.others);
        if self.shared.departures.load(Ordering::Acquire) != departures {
            // If it was this one that left, its answer would bring it back. The next round tells.
            return others;
        }
        if self.shared.take_in(contact.id, card) {
            tracing::info!(node = %contact.id, "keeps objects with this node");
        }
        others
    }

    fn fail(&mut self, node: &NodeId) {
        if let Some((_, failures)) = self.told.get_mut(node) {
            *failures += 1;
            if *failures >= FAILURES {
                self.told.remove(node);
            }
        }
    }

    fn tell_refused(&mut self, contact: &Contact, why: &str) {
        if self.refused.len() < MEMBERS_MAX && self.refused.insert(contact.id) {
            tracing::warn!(node = %contact, why, "it does not keep objects with this node; have both the same secret or list?");
        }
    }

    fn forget(&self) {
        let old = self.shared.unix_now().saturating_sub(self.shared.settings.load().forget_after.as_secs());
        if self.shared.table.load().values().all(|known| known.seen >= old) {
            return;
        }
        self.shared.table.update(|table| {
            table
                .iter()
                .filter(|(_, known)| known.seen >= old)
                .map(|(id, known)| (*id, known.clone()))
                .collect()
        });
    }

    /// Says whether the members are written down, or need not be.
    async fn save(&self, table: &BTreeMap<NodeId, Known>) -> bool {
        let Some((disk, path)) = self.data.clone() else { return true };
        let members: Vec<(NodeId, Known)> = table.iter().map(|(id, known)| (*id, known.clone())).collect();
        let write = move || disk::replace(&*disk, &path, &write_file(&members));
        match self.spawner.blocking("save members", Deadline::after(FINDING), write).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::warn!(%error, "members could not be written down"),
            Err(error) => tracing::debug!(%error, "members were not written down"),
        }
        false
    }
}

/// Whether two tables name the same nodes, whenever they were seen.
fn is_same(one: &BTreeMap<NodeId, Known>, other: &BTreeMap<NodeId, Known>) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((id, known), (other_id, other))| {
            id == other_id && Known { seen: other.seen, ..known.clone() } == *other
        })
}
