//! A whole node, put together as `refd` puts one together: store, endpoint, DHT, overlay, log, index, and keeping with the
//! other nodes; on a simulated machine.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, NodeId, Snapshot, Supervisor,
    disk::Disk,
    journal::Salts,
    net::{BoxFuture, Contact, Endpoint, Identity, Transport},
    sim::{SimNode, SimTransport},
};
use ron_dht::{Dht, Key};
use ron_index::{
    Index,
    source::{DhtNames, DhtProviders, StoreManifests, StoreProviders},
};
use ron_overlay::{Overlay, PeerSource, TopicId};
use ron_registry::{
    KeyKind, LogTrust, NoteSigner, Policy, Registry, Signer,
    net::Links,
    store::{JournalStore, JournalStoreSettings},
};
use ron_storage::{
    Settings, Store,
    fetch::{Fetcher, Finder},
    peers::{self, Peer, Rules},
    repair::{Keeping, KeepingSettings, Member},
};

use crate::options::CLIENTS;

pub(crate) const PORT: u16 = 4710;

/// Whose log it is. All others follow it.
pub(crate) const OWNER: u8 = 2;

const ORIGIN: &str = "example.com/whole";
const LOG_KEY: [u8; 32] = [7; 32];

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

pub(crate) fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number.wrapping_add(1); 32])
}

pub(crate) fn contact(number: u8) -> Contact {
    Contact { id: identity(number).node_id(), addrs: Arc::from([SocketAddr::new(ip(number), PORT)]) }
}

/// Who decides in the log, by generation: a rotation replaces all three.
pub(crate) fn signer(generation: u64, number: u8) -> Identity {
    let mut seed = [100 + number; 32];
    seed[..8].copy_from_slice(&generation.to_be_bytes());
    Identity::from_seed(&seed)
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
    pub(crate) finder: Arc<ByDht>,
    /// Only servers keep objects together.
    pub(crate) keeping: Option<Keeping>,
    _links: Links,
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

/// Every server, in a zone of its own.
pub(crate) fn members(nodes: u8) -> Snapshot<Vec<Member>> {
    let member = |number: u8| Member { peer: contact(number).into(), zone: number.into(), weight: 100 };
    Snapshot::new((0..nodes).map(member).collect())
}

/// Starts a node, in `refd`'s order. Nothing comes of it if the machine loses power meanwhile, or if its disk is full.
pub(crate) async fn start(
    node: &SimNode,
    number: u8,
    nodes: u8,
    transport: Option<Arc<dyn Transport>>,
) -> Result<Host, String> {
    let role = match number {
        _ if number < nodes => Role::Server,
        _ if number < nodes + CLIENTS => Role::Client,
        _ => Role::Liar,
    };
    let host = &node.supervisor;
    let disk: Arc<dyn Disk> = Arc::new(node.disk.clone());
    let said = |what: &'static str| move |error: &dyn std::error::Error| format!("{what}: {error}");
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

    let links = Links::start(&endpoint, host).map_err(|error| said("registry links")(&error))?;
    let registry = registry(node, number, &disk, &links).await?;

    let this = StoreProviders::new(&store, endpoint.node_id(), [addr]);
    let unix = node.unix_clock();
    let index = Index::builder()
        .settings(ron_index::Settings { budget: BUDGET, ..ron_index::Settings::default() })
        .registry(&registry, LogTrust::new(registry.log_key()))
        .names(DhtNames::new(&dht))
        .manifests(StoreManifests::new(&store))
        .providers(this)
        .providers(DhtProviders::new(&dht))
        .seed(node.seed)
        .unix_clock(move || unix().as_secs())
        .start(host)
        .map_err(|error| said("index")(&error))?;

    let blobs = peers::Links::start(&endpoint, host).map_err(|error| said("blobs")(&error))?;
    let keeping = match role {
        Role::Client | Role::Liar => {
            blobs.serve(&store, Rules::default());
            None
        }
        Role::Server => {
            let members = Arc::new(members(nodes));
            let keeping = Keeping::builder(&store, endpoint.node_id(), Arc::new(blobs.clone()), members);
            let keeping = keeping.settings(keeping_settings()).seed(node.seed).start(host);
            let keeping = keeping.map_err(|error| said("keeping")(&error))?;
            let trusting = keeping.clone();
            let trusts = Some(Arc::new(move |node: &NodeId| trusting.is_member(node)) as Arc<_>);
            blobs.serve(&store, Rules { trusts, policy: keeping.policy(), ..Rules::default() });
            Some(keeping)
        }
    };
    let fetcher = Fetcher::new(blobs.clone(), &store);
    links.serve(&registry, None);
    let finder = Arc::new(ByDht(dht.clone()));
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
        _links: links,
        _blobs: blobs,
    })
}

/// The log, or a copy of it.
async fn registry(
    node: &SimNode,
    number: u8,
    disk: &Arc<dyn Disk>,
    links: &Links,
) -> Result<Registry, String> {
    let settings = JournalStoreSettings { segment_bytes: 64 << 10, salts: Salts::Seeded(node.seed) };
    let store = JournalStore::open(&node.supervisor, Arc::clone(disk), Path::new("registry"), settings).await;
    let store = store.map_err(|error| format!("log: {error}"))?;
    let key = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).expect("a name");
    let builder = match number {
        OWNER => Registry::builder(ORIGIN, LOG_KEY),
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
    let registry = registry.map_err(|error| format!("registry: {error}"))?;
    if number == OWNER {
        // Again after a restart, which is answered as the first time.
        let founded = registry.found(policy(0), Deadline::after(Duration::from_secs(5))).await;
        founded.map_err(|error| format!("founding: {error}"))?;
    }
    Ok(registry)
}
