//! A whole node, put together as `refd` puts one together, of the same parts in the same order: store, endpoint, DHT, overlay
//! and its topics, log, blobs, company, index; on a simulated machine.
//!
//! # What is different from `refd`
//!
//! - Nothing is served over HTTP, and no settings are read again: checkers call the handles that the routes call.
//! - Settings are smaller or quicker where a run of minutes would else see nothing of them: segments, queues, how often nodes
//!   compare what they keep; the log is verified less often, since that is most of what a run takes.
//! - Objects have owners of their own. With `refd` all that a company keeps is owned by its secret.
//! - `registry.seen` is written at each start and not at a stop too: a simulated machine stops without a last word. For the
//!   same reason nobody waits before a stop until others have noticed that the node is not ready.
//! - Clients, of which `refd` has no such mode, answer nobody in the DHT and are in no company.
//! - The bearer token is one that nobody knows: whoever writes without being a member is refused.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, ErrorKind, NodeId, Refusal, Restart, Snapshot, Stop, Supervisor, TaskSpec,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    disk::{self, Access, Disk, DiskError},
    journal::Salts,
    net::{BoxFuture, Contact, Endpoint, Identity, Transport},
    now,
    sim::{SimNode, SimTransport},
};
use ron_dht::{Dht, Key};
use ron_index::{
    Index,
    source::{DhtNames, DhtProviders, KeepingProviders, StoreManifests, StoreProviders},
};
use ron_overlay::{Overlay, PeerSource, TopicId};
use ron_registry::{
    CheckpointError, Content, KeyKind, LogTrust, Note, NoteSigner, Policy, Registry, RegistryError, Signer,
    net::Links,
    store::{JournalStore, JournalStoreSettings, MemoryStore},
    verify_consistency,
};
use ron_storage::{
    Settings, StorageError, Store, Stored,
    fetch::{Fetcher, Finder},
    members::{Admission, Candidates, Members, MembersError, Secret},
    peers::{self, Peer, Rules},
    repair::{Keeping, KeepingSettings},
};
use tokio::time::Instant;

use crate::options::CLIENTS;

pub(crate) const PORT: u16 = 4710;

/// Whose log it is. All others follow it.
pub(crate) const OWNER: u8 = 2;

const ORIGIN: &str = "example.com/whole";

/// The topic that everybody is on.
pub(crate) const NEWS: &str = "news";

/// The file with the last head of the log that its owner has seen.
const SEEN: &str = "registry.seen";

/// How often the DHT is asked for others of the company, and how many of them are enough.
const SEARCH_EVERY: Duration = Duration::from_secs(60);
const ENOUGH: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

const ANNOUNCER: TaskSpec = TaskSpec::new("examples", "announcer")
    .restart(Restart::PATIENT)
    .what("tells the DHT once which topic this node is on; from then on the republisher does");

/// What an answer of the index may take; a way between two nodes is up to 200 ms here, and one message in a hundred is lost.
pub(crate) const BUDGET: Duration = Duration::from_secs(4);

/// Free space that puts leave.
pub(crate) const RESERVE: u64 = 256 << 10;

/// Objects longer than this have files of their own.
pub(crate) const SMALL: u32 = 4096;

/// Jobs that wait in a store, and streams that are open: few, so that a crowd fills them.
const WAITING: usize = 8;
const STREAMS: usize = 64;

pub(crate) fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 4, number])
}

/// What a key is made from, by what it is for: no two are the same.
fn key_seed(purpose: &str, number: u64) -> [u8; 32] {
    *ContentId::of(format!("examples/whole: {purpose} {number}").as_bytes()).as_bytes()
}

pub(crate) fn identity(number: u8) -> Identity {
    Identity::from_seed(&key_seed("node", number.into()))
}

fn log_key() -> [u8; 32] {
    key_seed("log", 0)
}

/// What the servers know and nobody else.
pub(crate) fn secret() -> Secret {
    Secret::new("what-only-nodes-of-this-company-know").expect("long enough")
}

pub(crate) fn contact(number: u8) -> Contact {
    Contact { id: identity(number).node_id(), addrs: Arc::from([SocketAddr::new(ip(number), PORT)]) }
}

/// Who decides in the log, by generation: a rotation replaces all three.
pub(crate) fn signer(generation: u64, number: u8) -> Identity {
    Identity::from_seed(&key_seed(&format!("signer {number} of generation"), generation))
}

/// Two of the three signers of a generation.
pub(crate) fn policy(generation: u64) -> Policy {
    let signer = |number: u8| Signer {
        name: format!("p{number}"),
        key: signer(generation, number).public_key(),
        expires: None,
    };
    Policy::of(2, (0..3).map(signer).collect()).expect("two of three")
}

/// What kind of node it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    /// Keeps nothing for others.
    Client,
    /// A server that keeps no objects with others, and lies when it is told to.
    Liar,
}

/// A node that runs.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) number: u8,
    pub(crate) role: Role,
    pub(crate) supervisor: Supervisor,
    pub(crate) store: Store,
    pub(crate) dht: Dht,
    pub(crate) overlay: Overlay,
    pub(crate) registry: Registry,
    pub(crate) index: Index,
    pub(crate) fetcher: Fetcher,
    pub(crate) finder: Arc<dyn Finder>,
    /// Only servers keep objects together.
    pub(crate) keeping: Option<Keeping>,
    pub(crate) members: Option<Members>,
    pub(crate) links: Links,
    _blobs: peers::Links,
}

/// The nodes that run, by number.
#[derive(Clone, Default)]
pub(crate) struct Hosts(Arc<Mutex<BTreeMap<u8, Host>>>);

impl Hosts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, Host>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, number: u8) -> Option<Host> {
        self.lock().get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Host> {
        self.lock().values().cloned().collect()
    }

    /// Those that keep objects together.
    pub(crate) fn servers(&self) -> Vec<Host> {
        self.lock().values().filter(|host| host.role == Role::Server).cloned().collect()
    }

    pub(crate) fn insert(&self, host: Host) {
        self.lock().insert(host.number, host);
    }

    /// The node is about to be gone.
    pub(crate) fn remove(&self, number: u8) {
        let host = self.lock().remove(&number);
        drop(host);
    }
}

/// Finds nodes of a topic, and holders of objects, as those that provide them.
#[derive(Debug, Clone)]
pub(crate) struct ByDht(pub(crate) Dht);

impl ByDht {
    async fn providers(&self, key: Key, wanted: usize, deadline: Deadline) -> Vec<Contact> {
        let (mut contacts, me) = (Vec::new(), self.0.node_id());
        let wanted = NonZeroUsize::MIN.saturating_add(wanted);
        let Ok(mut found) = self.0.find_providers(key, wanted, deadline) else { return contacts };
        while let Ok(Some(provider)) = found.next().await {
            if provider.id != me {
                contacts.push(Contact { id: provider.id, addrs: provider.addrs.into() });
            }
        }
        contacts
    }
}

impl PeerSource for ByDht {
    fn find(&self, topic: TopicId, wanted: usize) -> BoxFuture<'_, Vec<ron_overlay::Contact>> {
        let deadline = Deadline::after(Duration::from_secs(5));
        Box::pin(self.providers(Key::from_bytes(*topic.as_bytes()), wanted, deadline))
    }
}

/// Finds nodes with the same secret: those that all begin with, and whoever the DHT says is at the rendezvous. There anybody can
/// say to be; whoever is met has to prove it.
struct Company {
    dht: Dht,
    rendezvous: ContentId,
    searched: Snapshot<Option<Instant>>,
    is_told: Snapshot<bool>,
}

impl Candidates for Company {
    fn find(&self, deadline: Deadline) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(async move {
            let mut found = [0, 1].map(contact).to_vec();
            if self.searched.load().is_some_and(|at| at.elapsed() < SEARCH_EVERY) {
                return found;
            }
            // Said until somebody keeps it; from then on the DHT says it again by itself.
            if !*self.is_told.load() {
                let told = self.dht.provide(self.rendezvous, deadline).await;
                self.is_told.replace(told.is_ok_and(|told| told.kept > 0));
            }
            let Ok(mut search) = self.dht.find_providers(self.rendezvous, ENOUGH, deadline) else {
                return found;
            };
            while let Ok(Some(provider)) = search.next().await {
                found.push(Contact { id: provider.id, addrs: provider.addrs.into() });
            }
            self.searched.replace(Some(now()));
            found
        })
    }
}

/// Finds an object with those who keep it, and else with whoever the DHT says provides it.
struct Everywhere {
    keeping: Keeping,
    dht: ByDht,
}

impl Finder for Everywhere {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(async move {
            match self.keeping.holders(id, deadline).await {
                nobody if nobody.is_empty() => Finder::find(&self.dht, id, deadline).await,
                holders => holders,
            }
        })
    }

    fn make(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Result<Option<Stored>, StorageError>> {
        self.keeping.make(id, deadline)
    }
}

/// Lets in whoever has a token that nobody has.
struct Nobody;

impl Authorizer for Nobody {
    fn authorize(&self, _: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        Err(if credentials.bearer.is_some() { Denied::Unknown } else { Denied::Missing })
    }
}

/// Tells the DHT that this node is on the topic.
async fn announce(dht: Dht, stop: Stop) {
    let key = Key::from_bytes(*TopicId::of(NEWS).as_bytes());
    let telling = async {
        while dht.provide(key, Deadline::after(Duration::from_secs(10))).await.is_err() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.requested() => {}
        () = telling => {}
    }
}

impl Finder for ByDht {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(
            async move { self.providers(id.into(), 8, deadline).await.into_iter().map(Peer::from).collect() },
        )
    }
}

fn store_settings() -> Settings {
    Settings {
        small_bytes_max: SMALL,
        segment_bytes: 64 << 10,
        reserve_bytes: RESERVE,
        get_workers: const { NonZeroUsize::new(2).expect("not zero") },
        put_workers: const { NonZeroUsize::new(2).expect("not zero") },
        get_lane: WAITING,
        put_lane: WAITING,
        get_streams: STREAMS,
        put_streams: STREAMS,
        collect_grace: Duration::ZERO,
        ..Settings::default()
    }
}

pub(crate) fn keeping_settings() -> KeepingSettings {
    KeepingSettings {
        tick: Duration::from_secs(20),
        refresh: Duration::from_secs(10),
        grace: Duration::from_secs(60),
        takeover: Duration::from_secs(15),
        ..KeepingSettings::default()
    }
}

/// Why a node did not start.
#[derive(Debug)]
pub(crate) struct NotStarted {
    kind: ErrorKind,
    why: String,
}

impl NotStarted {
    fn because(what: &str, error: &dyn Refusal) -> Self {
        NotStarted { kind: error.kind(), why: format!("{what}: {error}") }
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for NotStarted {}

impl Refusal for NotStarted {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Starts a node, in `refd`'s order. Nothing comes of it if the machine loses power meanwhile, or if its disk is full.
pub(crate) async fn start(
    node: &SimNode,
    number: u8,
    nodes: u8,
    transport: Option<Arc<dyn Transport>>,
) -> Result<Host, NotStarted> {
    let role = match number {
        _ if number < nodes => Role::Server,
        _ if number < nodes + CLIENTS => Role::Client,
        _ => Role::Liar,
    };
    let host = &node.supervisor;
    let disk: Arc<dyn Disk> = Arc::new(node.disk.clone());
    let said = |what: &'static str| move |error: &dyn Refusal| NotStarted::because(what, error);
    let store = Store::builder().data(Arc::clone(&disk), "store").seed(node.seed);
    let store = store.settings(store_settings()).unix_clock(node.unix_clock());
    let store = store.start(host).await.map_err(|error| said("store")(&error))?;

    let addr = SocketAddr::new(node.ip, PORT);
    let transport = transport
        .unwrap_or_else(|| Arc::new(SimTransport::new(&node.net, node.ip, &identity(number))) as Arc<_>);
    let endpoint = Endpoint::builder(identity(number)).transport(transport).listen(addr).start(host);
    let endpoint = endpoint.map_err(|error| said("endpoint")(&error))?;

    let unix = node.unix_clock();
    let seeds = [0, 1].map(contact);
    let dht = Dht::builder().seeds(seeds.clone()).seed(node.seed).unix_clock(move || unix().as_secs());
    let dht = dht.data(Arc::clone(&disk), "dht");
    let dht = if role == Role::Client { dht.client() } else { dht };
    let dht = dht.start(&endpoint, host).await.map_err(|error| said("dht")(&error))?;

    let overlay = Overlay::builder().seed(node.seed).unix_clock(node.unix_clock()).source(ByDht(dht.clone()));
    let overlay = overlay.start(&endpoint, host).await.map_err(|error| said("overlay")(&error))?;
    let others = seeds.into_iter().filter(|seed| seed.id != overlay.node_id());
    let joined = overlay.topic(NEWS).join(others, Deadline::after(Duration::from_secs(5))).await;
    joined.map_err(|error| said("topic")(&error))?;
    let announced = dht.clone();
    let _ = host.spawn_restarting(ANNOUNCER, move |stop| Box::pin(announce(announced.clone(), stop)));

    let links = Links::start(&endpoint, host).map_err(|error| said("registry links")(&error))?;
    let registry = registry(node, number, &disk, &links).await?;

    // Everybody may read what it can name, and only members may offer.
    let blobs = peers::Links::start(&endpoint, host).map_err(|error| said("blobs")(&error))?;
    let rules = Rules { writes: Some(Arc::new(Nobody)), ..Rules::default() };
    let company = match role {
        Role::Client | Role::Liar => None,
        Role::Server => {
            let secret = secret();
            let company = Company {
                dht: dht.clone(),
                rendezvous: secret.rendezvous(),
                searched: Snapshot::new(None),
                is_told: Snapshot::new(false),
            };
            let members = Members::builder(Admission::Secret(secret)).candidates(company);
            let members = members.data(Arc::clone(&disk), "members").unix_clock(node.unix_clock());
            let members = members.start(&endpoint, host).map_err(|error| match error {
                MembersError::Net(error) => said("members")(&error),
                MembersError::Disk(error) => said("members")(&error),
                error => NotStarted { kind: ErrorKind::Bug, why: format!("members: {error}") },
            })?;
            let nodes = Arc::new(members.clone());
            let keeping = Keeping::builder(&store, endpoint.node_id(), Arc::new(blobs.clone()), nodes);
            let keeping = keeping.settings(keeping_settings()).answering(2).seed(node.seed).start(host);
            let keeping = keeping.map_err(|error| said("keeping")(&error))?;
            Some((members, keeping))
        }
    };

    let this = StoreProviders::new(&store, endpoint.node_id(), [addr]);
    let unix = node.unix_clock();
    let index = Index::builder()
        .settings(ron_index::Settings { budget: BUDGET, ..ron_index::Settings::default() })
        .registry(&registry, LogTrust::new(registry.log_key()))
        .names(DhtNames::new(&dht))
        .manifests(StoreManifests::new(&store))
        .providers(this.public_key(*dht.public_key().as_bytes()))
        .providers(DhtProviders::new(&dht))
        .seed(node.seed)
        .unix_clock(move || unix().as_secs());
    let index = match &company {
        Some((_, keeping)) => index.providers(KeepingProviders::new(keeping)),
        None => index,
    };
    let index = index.start(host).map_err(|error| said("index")(&error))?;

    blobs.serve(
        &store,
        match &company {
            Some((members, keeping)) => {
                let members = members.clone();
                let trusts = Arc::new(move |node: &NodeId| members.contains(node));
                Rules { trusts: Some(trusts), judge: keeping.judge(), ..rules }
            }
            None => rules,
        },
    );
    let fetcher = Fetcher::new(blobs.clone(), &store);
    let by_dht = ByDht(dht.clone());
    let finder: Arc<dyn Finder> = match &company {
        Some((_, keeping)) => Arc::new(Everywhere { keeping: keeping.clone(), dht: by_dht }),
        None => Arc::new(by_dht),
    };
    links.serve(&registry, Some(Arc::new(Nobody)));
    let (members, keeping) = company.unzip();
    let supervisor = host.clone();
    Ok(Host {
        number,
        role,
        supervisor,
        store,
        dht,
        overlay,
        registry,
        index,
        fetcher,
        finder,
        keeping,
        members,
        links,
        _blobs: blobs,
    })
}

/// The log, or a copy of it.
async fn registry(
    node: &SimNode,
    number: u8,
    disk: &Arc<dyn Disk>,
    links: &Links,
) -> Result<Registry, NotStarted> {
    let settings = JournalStoreSettings { segment_bytes: 64 << 10, salts: Salts::Seeded(node.seed) };
    let store = JournalStore::open(&node.supervisor, Arc::clone(disk), Path::new("registry"), settings).await;
    let store = store.map_err(|error| NotStarted::because("log", &error))?;
    let key = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &log_key()).expect("a name");
    let builder = match number {
        OWNER => Registry::builder(ORIGIN, log_key()),
        _ => {
            let owner = contact(OWNER);
            Registry::follower(LogTrust::new(key.verifier().clone()), links.source(owner.id, &owner.addrs))
        }
    };
    // Every second is four fifths of what all of a run takes: thirteen nodes that check the same signatures again and again.
    let settings = ron_registry::Settings {
        verify_interval: Duration::from_secs(15),
        ..ron_registry::Settings::default()
    };
    let clock = node.unix_clock();
    let builder =
        builder.settings(settings).clock(move || u64::try_from(clock().as_millis()).unwrap_or(u64::MAX));
    let registry = builder.start(Arc::new(store), &node.supervisor).await;
    let registry = registry.map_err(|error| NotStarted::because("registry", &error))?;
    if number == OWNER {
        goes_on(&registry, &**disk)?;
        // Again after a restart, which is answered as the first time.
        let founded = registry.found(policy(0), Deadline::after(Duration::from_secs(5))).await;
        founded.map_err(|error| NotStarted::because("founding", &error))?;
    }
    Ok(registry)
}

/// Another log under the same name and key, so many entries longer: what its owner must never show to anybody.
pub(crate) async fn fork(supervisor: &Supervisor, entries: u64) -> Result<Registry, RegistryError> {
    let soon = || Deadline::after(Duration::from_secs(5));
    let builder = Registry::builder(ORIGIN, log_key()).clock(|| 1_900_000_000_000);
    let fork = builder.start(Arc::new(MemoryStore::new()), supervisor).await?;
    fork.found(policy(0), soon()).await?;
    for entry in 0..entries {
        let (name, content) = (format!("names/{entry}"), ContentId::of(&entry.to_be_bytes()));
        let name = name.parse().expect("letters and digits");
        let proposal = fork.draft_bind(name, Content::Artifact(content), Duration::from_secs(60))?;
        let approvals = [0, 2].map(|number| proposal.approve(&signer(0, number), proposal.expires()));
        fork.submit(proposal, approvals.into(), soon()).await?;
    }
    Ok(fork)
}

/// Whether the log goes on from the last head that was remembered, as `refd` asks at each start.
fn goes_on(registry: &Registry, disk: &dyn Disk) -> Result<(), NotStarted> {
    let said = |error: &dyn Refusal| NotStarted::because(SEEN, error);
    let trust = LogTrust::new(registry.log_key());
    let bytes = read(disk, Path::new(SEEN)).map_err(|error| said(&error))?;
    let seen = bytes.and_then(|bytes| Note::parse(&bytes).ok()).and_then(|note| trust.open(&note).ok());
    if let Some(seen) = seen {
        let not_its_own =
            |error: CheckpointError| NotStarted { kind: ErrorKind::Bug, why: format!("{SEEN}: {error}") };
        let head = trust.open(&registry.checkpoint()).map_err(not_its_own)?;
        let is_gone_on = match registry.prove_consistency(seen.size, head.size) {
            Ok(proof) => verify_consistency((seen.size, &seen.root), (head.size, &head.root), &proof).is_ok(),
            Err(RegistryError::Lagging { .. }) => true,
            Err(_) => false,
        };
        if !is_gone_on {
            let why = format!("the log had {} entries, and this, of {}, is another", seen.size, head.size);
            return Err(NotStarted { kind: ErrorKind::Disk, why });
        }
    }
    if registry.head().version == 0 {
        return Ok(());
    }
    let text = registry.checkpoint().to_string();
    disk::replace(disk, Path::new(SEEN), text.as_bytes()).map_err(|error| said(&error))
}

/// All of a small file, if there is one.
fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match disk.open(path, Access::Read) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(at as u64, &mut bytes[at..])? {
            0 => break,
            read => at += read,
        }
    }
    bytes.truncate(at);
    Ok(Some(bytes))
}
