//! `docs/concurrency.md` is rendered from the declarations, and the declarations are what a running program registers.
//!
//! `RON_BLESS=1 cargo test -p examples --test concurrency` writes the file anew.

use std::{net::SocketAddr, num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Deadline, Gate, GateLimits, GateSettings, Inventory, LaneSpec, Metrics, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    disk::RealDisk,
    http::{self, Server},
    journal,
    net::{
        self, Endpoint, Identity,
        rpc::{self, Handling, Method, Peers, PeersSettings, Protocol, Request, Service},
    },
};
use ron_dht::Dht;
use ron_index::{Index, source::FixedProviders};
use ron_overlay::Overlay;
use ron_registry::{
    KeyKind, LogTrust, NoteSigner, Publisher, Registry, RegistryUpdated, Witness,
    store::{BoxFuture, JournalStore, JournalStoreSettings, MemoryStore},
};
use ron_storage::{
    Store,
    members::{Admission, Members},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

const INTRODUCTION: &str = "\
# Concurrency

Every queue, task kind and lock of the family. This file is rendered from their declarations by
`examples/tests/concurrency.rs`, which also starts everything and compares: do not edit it by hand.

The rules they all keep: no lock across an `.await`; one writer per mutable thing, readers see snapshots; a full
queue refuses or sheds by its stated policy, and counts it; every task is tracked, and is drained or cut off at
shutdown.

Not listed are the private locks of ron-core's primitives. Permits, snapshot, latch, feed, readiness, metrics and a
supervisor's list of children have one each, and no other lock is taken under it. A queue has three: front, then back,
in this order, and the list of idle consumers alone. Under these locks nothing waits; foreign code that runs there is the
clone of an event in a feed, the closure of a snapshot's update, and clones of wakers.

";

fn declared() -> Inventory {
    ron_core::inventory()
        .with(http::inventory())
        .with(net::inventory())
        .with(rpc::inventory())
        .with(ron_dht::inventory())
        .with(ron_overlay::inventory())
        .with(ron_storage::inventory())
        .with(ron_registry::inventory())
        .with(ron_index::inventory())
}

/// The lane of a protocol belongs to its owner, which here is the test.
const LINKS: LaneSpec = LaneSpec::new("test", "links", 4);

struct Slow;

impl Service for Slow {
    fn call(&self, _: Request) -> Handling {
        Handling::Pending(Box::pin(async { Ok(Default::default()) }))
    }
}

#[derive(Debug)]
struct Nobody;

impl Publisher for Nobody {
    fn publish(&self, _: RegistryUpdated) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

struct Nothing;

impl Authorizer for Nothing {
    fn authorize(&self, _: &Action<'_>, _: &Credentials<'_>) -> Result<Grant, Denied> {
        Err(Denied::Forbidden)
    }
}

#[test]
fn the_document_says_what_is_declared() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/concurrency.md");
    let rendered = format!("{INTRODUCTION}{}", declared().to_markdown());
    if std::env::var_os("RON_BLESS").is_some() {
        std::fs::write(&path, &rendered).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == rendered,
        "docs/concurrency.md is stale; run with RON_BLESS=1 and look at the difference"
    );
}

#[tokio::test]
async fn a_running_program_registers_exactly_what_is_declared() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let metrics = Metrics::default();
    let host = Supervisor::builder("all of it").metrics(metrics.clone()).start();

    let disk = Arc::new(RealDisk::open(dir.path()).expect("an empty directory"));
    let journal =
        journal::Journal::open(&host, disk.clone(), Path::new("log"), journal::Settings::default()).await;
    let limits = GateLimits { per_second: 1, burst: 1, in_flight: 1, bytes_per_second: 1, bytes_burst: 1 };
    let gate = Gate::new("gate", GateSettings::new(limits, limits), &metrics);
    let server = Server::builder(axum::Router::new()).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.metrics(metrics.clone()).start(&host).await.expect("a free port of the loopback");
    // Its connections are a kind of task too.
    let client = TcpStream::connect(server.local_addrs()[0]).await.expect("it listens");
    while server.connections() == 0 {
        tokio::task::yield_now().await;
    }

    // A handshake task exists once somebody has come.
    let here = Endpoint::builder(Identity::from_seed(&[1; 32])).listen(([127, 0, 0, 1], 0).into());
    let here = here.start(&host).expect("a free port");
    let _visitor = std::net::TcpStream::connect(here.local_addrs()[0]).expect("it listens");
    let come = async {
        while here.connections() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), come).await.expect("the visitor is let in");

    // A call between two nodes brings a session with its tasks to both.
    let protocol = Protocol { alpn: "test/1", proto: 100, links: LINKS };
    let serve = |endpoint: &Endpoint| {
        Peers::start(endpoint, protocol, Arc::new(Slow), PeersSettings::default(), &host)
            .expect("not yet served")
    };
    let there = Endpoint::builder(Identity::from_seed(&[2; 32])).start(&host).expect("it only dials");
    let (_served, peers) = (serve(&here), serve(&there));
    let (method, soon) = (Method { number: 1, name: "any" }, Deadline::after(Duration::from_secs(5)));
    peers.call(here.node_id(), here.local_addrs(), method, b"", soon).await.expect("answered");

    // And so does one that looks after a QUIC link which was shut down and dropped. The peer has counts of its own, as
    // the lane of its protocol is nobody's declaration.
    let elsewhere = Supervisor::new("a peer");
    let far = Endpoint::builder(Identity::from_seed(&[4; 32])).quic().listen(([127, 0, 0, 1], 0).into());
    let far = far.start(&elsewhere).expect("a free port");
    let _links = far.register("test/1", LINKS).expect("the first");
    let dialler = Endpoint::builder(Identity::from_seed(&[3; 32])).quic().listen(([127, 0, 0, 1], 0).into());
    let dialler = dialler.start(&host).expect("a free port");
    let deadline = Deadline::after(Duration::from_secs(5));
    let link = dialler.connect(far.node_id(), far.local_addrs(), "test/1", deadline).await;
    let mut link = link.expect("it listens");
    link.stream.shutdown().await.expect("it is open");
    drop(link);

    // A node with a disk has all its tasks from the start, but for the writers of buckets, which come with their first
    // peer, and the lane of a search for providers.
    let peer = Dht::builder().start(&far, &elsewhere).await.expect("the first on this endpoint");
    let log = JournalStore::open(&host, disk.clone(), Path::new("registry"), JournalStoreSettings::default());
    let log = Arc::new(log.await.expect("an empty directory"));
    let witness =
        NoteSigner::from_seed("example.com/witness", KeyKind::Cosignature, &[2; 32]).expect("a name");
    let witness = Witness::new("http://127.0.0.1:1", witness.verifier().clone()).expect("an address");
    let registry = Registry::builder("example.com/log", [1; 32]).publisher(Nobody);
    let registry = registry.witnesses([witness], 1, Duration::from_secs(3600)).start(log, &host).await;
    let registry = registry.expect("an empty log");
    // Another log follows it, from one endpoint to the other.
    let links = [&here, &there].map(|endpoint| {
        ron_registry::net::Links::start(endpoint, &host).expect("the first on this endpoint")
    });
    links[0].serve(&registry, None);
    let source = links[1].source(here.node_id(), here.local_addrs());
    let follower = Registry::follower(LogTrust::new(registry.log_key()), source);
    let follower = follower.start(Arc::new(MemoryStore::new()), &host).await.expect("an empty log");
    let followed = async {
        while follower.status().ready.closed().any(|gate| gate.name == "registry.following") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), followed).await.expect("the log is there");
    let dht = Dht::builder().seeds([peer.contact()]).data(disk, "dht");
    let dht = dht.start(&dialler, &host).await.expect("the first on this endpoint");
    dht.joined(deadline).await.expect("its peer is there");
    drop(dht.find_providers(ContentId::of(b"anything"), NonZeroUsize::MIN, deadline).expect("it has a peer"));

    // The queues of a peer come with it, and the lane of a subscriber too.
    let peer = Overlay::builder().start(&far, &elsewhere).await.expect("the first on this endpoint");
    let overlay = Overlay::builder().start(&dialler, &host).await.expect("the first on this endpoint");
    let _ = peer.topic("news").join([], deadline).await.expect("it runs");
    let topic = overlay.topic("news").join([peer.contact()], deadline).await.expect("it runs");
    let _heard = topic.subscribe(deadline).await.expect("joined");
    topic.joined(deadline).await.expect("its peer is there");
    // A store has all of its own from the start.
    let store = Store::builder().memory().start(&host).await.expect("memory is always there");
    assert!(store.ready().writes);
    let links = ron_storage::peers::Links::start(&here, &host).expect("nobody else speaks it");
    let _fetcher = ron_storage::fetch::Fetcher::new(links.clone(), &store);
    let members = Members::builder(Admission::Listed(Vec::new()));
    let alone = Arc::new(members.start(&here, &host).expect("nobody else speaks it"));
    let keeping = ron_storage::repair::Keeping::builder(&store, here.node_id(), Arc::new(links), alone);
    let _keeping = keeping.start(&host).expect("the settings make sense");
    // An index has its warmer if there is something to warm, its purger if there is a registry, and the lock of a question
    // once it asks.
    let warm = ron_index::Key::Content(ContentId::of(b"warm"));
    let settings = ron_index::Settings { warmup: vec![warm.clone()], ..ron_index::Settings::default() };
    let index = Index::builder().registry(&registry, LogTrust::new(registry.log_key())).settings(settings);
    let index = index.providers(FixedProviders::new()).start(&host).expect("the settings make sense");
    let nobody = index.resolve(&warm, deadline).await.expect_err("nobody has it");
    assert_eq!(nobody, ron_index::IndexError::NotFound);
    let _routes = ron_index::http::guarded(&index, Arc::new(Nothing));

    assert_eq!(metrics.inventory(), declared().with(Inventory::of(&[LINKS], &[], &[])));
    elsewhere.shutdown().await;
    drop((client, journal.expect("opens"), gate.expect("valid")));
    host.shutdown().await;
}
