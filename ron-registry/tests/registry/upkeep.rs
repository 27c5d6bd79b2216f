//! Retention, verification, publishing: what goes on beside committing.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{
    Metrics,
    net::{Endpoint, Identity},
    prometheus_client::registry::Registry as Prometheus,
    sim::SimDisk,
};
use ron_registry::{
    LogTrust, Publisher, Registry, RegistryError, RegistryUpdated, Retention, Settings,
    net::Links,
    store::{BoxFuture, MemoryStore},
    verify_consistency,
};

use super::world::{
    LOG_KEY, ORIGIN, Odd, Oddity, bind, bind_many, clock, founded, host, journal, policy, soon, start,
};

fn scraped(registry: &Prometheus, line: &str) -> f64 {
    let mut text = String::new();
    ron_core::prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let found = text.lines().find(|found| found.starts_with(line));
    found.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn what_is_left_after_pruning_is_proven_and_found_again() {
    let (host, disk) = (host(), SimDisk::new());
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..700).await;
    let before = registry.checkpoint();
    assert_eq!(registry.prune(255).await, Ok(0), "not a whole tile");
    let freed = registry.prune(600).await.unwrap();
    assert!(freed > 32 << 10, "{freed} bytes");
    assert_eq!(registry.prune(600).await, Ok(0), "it is gone already");
    assert_eq!(registry.status().first, 513);
    bind(&registry, "after", "x", &[0]).await.unwrap();

    let check = |registry: Registry, host: ron_core::Supervisor| {
        let before = Arc::clone(&before);
        async move {
            let trust = LogTrust::new(registry.log_key());
            for version in [1, 512] {
                let lagging = RegistryError::Lagging { first: 513 };
                assert_eq!(registry.entry(version, soon()).await.unwrap_err(), lagging);
                assert_eq!(registry.prove(version).unwrap_err(), lagging);
            }
            for version in [513, 600, 701, 702] {
                let entry = registry.entry(version, soon()).await.unwrap();
                registry.prove(version).unwrap().verify(entry.encoded(), &trust).unwrap();
            }
            // Names whose entries are gone are still known, and proven.
            let name = "many/3".parse().unwrap();
            assert!(registry.name(&name).unwrap().verify(&name, &trust).unwrap().is_some());
            let (old, new) = (trust.open(&before).unwrap(), trust.open(&registry.checkpoint()).unwrap());
            let proof = registry.prove_consistency(old.size, new.size).unwrap();
            verify_consistency((old.size, &old.root), (new.size, &new.root), &proof).unwrap();
            assert!(registry.tile("tile/0/000".parse().unwrap(), soon()).await.is_err());
            assert!(registry.tile("tile/entries/002".parse().unwrap(), soon()).await.is_err());
            assert!(registry.tile("tile/1/000.p/2".parse().unwrap(), soon()).await.is_ok());
            let mut updates = registry.updates(1);
            let lagging = updates.next().await.unwrap().unwrap_err();
            let RegistryError::Lagging { first } = lagging else { panic!("{lagging:?}") };
            updates.skip_to(first);
            assert_eq!(updates.next().await.unwrap().unwrap().version, first);
            host.shutdown().await;
        }
    };
    check(registry, host).await;
    let host = self::host();
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    assert_eq!(registry.head().version, 702);
    let name = "many/3".parse().unwrap();
    let prior = registry.name(&name).unwrap().latest.unwrap().version;
    assert!(prior < 513, "decided by an entry that is gone");
    check(registry, host).await;
}

#[tokio::test(start_paused = true)]
async fn retention_is_by_number_age_or_bytes() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    // An hour of verifying would be a million signatures.
    registry
        .reload(Settings { verify_interval: Duration::from_secs(1 << 20), ..registry.settings() })
        .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let cycle = || tokio::time::sleep(Duration::from_secs(61));
    let keep = |retention| registry.reload(Settings { retention, ..registry.settings() }).unwrap();
    bind_many(&host, &registry, 0..600).await;
    cycle().await;
    assert_eq!(registry.status().first, 1, "everything is kept unless somebody says otherwise");
    keep(Retention { entries: Some(345), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 257, "601 - 256 are 345");
    keep(Retention { age: Some(Duration::from_secs(3600)), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 257);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(registry.status().first, 513, "whole tiles that are older");
    bind_many(&host, &registry, 600..1300).await;
    keep(Retention { bytes: Some(1 << 20), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 513);
    keep(Retention { bytes: Some(1000), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 1281, "the tile that the head is in stays");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_pruner_skips_cycles() {
    let host = host();
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let retention = Retention { entries: Some(1), ..Retention::default() };
    let settings = Settings { retention, checkpoint_interval: Duration::from_secs(1), ..Settings::default() };
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock()).metrics(metrics);
    let registry = builder.start(store.clone(), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::Stuck);
    bind_many(&host, &registry, 0..300).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(scraped(&scrape, "ron_registry_retention_skipped_total") >= 5.0);
    assert_eq!(registry.status().first, 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let backoff = "ron_registry_storage_backoff_total{op=\"prune\"}";
    assert!(scraped(&scrape, backoff) >= 1.0, "it gives up in time");
    assert_eq!(bind(&registry, "meanwhile", "x", &[0]).await.unwrap().version, 302, "commits go on");
    store.be(Oddity::None);
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(registry.status().first, 257);
    assert!(scraped(&scrape, "ron_registry_pruned_bytes_total") > 0.0);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_is_found_and_named() {
    let host = host();
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let settings = Settings { verify_slice: 10, ..Settings::default() };
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock()).metrics(metrics);
    let registry = builder.start(store.clone(), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..99).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let verified = scraped(&scrape, "ron_registry_verified_version");
    assert!((30.0..=60.0).contains(&verified), "in slices: {verified}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(registry.status().ready.reads);
    store.be(Oddity::Flip(77));
    tokio::time::sleep(Duration::from_secs(25)).await;
    let status = registry.status();
    let gate = status.ready.closed().find(|gate| gate.name == "registry.verified");
    let reason = format!("{:?}", gate.expect("it is said"));
    assert!(reason.contains("version 77"), "{reason}");
    assert!(!status.ready.reads);
    store.be(Oddity::None);
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(registry.status().ready.reads, "it was the disk's mood");
    host.shutdown().await;
}

#[derive(Debug, Clone, Default)]
struct Told {
    versions: Arc<Mutex<Vec<u64>>>,
    stalls: Duration,
}

impl Publisher for Told {
    fn publish(&self, update: RegistryUpdated) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::time::sleep(self.stalls).await;
            self.versions.lock().unwrap().push(update.version);
        })
    }
}

/// A publisher that stalls holds nobody up, and is told everything in the end.
#[tokio::test(start_paused = true)]
async fn a_stalled_publisher_holds_nobody_up() {
    let host = host();
    let told = Told { stalls: Duration::from_secs(10), ..Told::default() };
    let settings = Settings { committed_lane: 8, ..Settings::default() };
    let builder =
        Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock()).publisher(told.clone());
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    let before = ron_core::now();
    bind_many(&host, &registry, 0..100).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(told.versions.lock().unwrap().len() < 2);
    tokio::time::sleep(Duration::from_secs(1020)).await;
    assert_eq!(*told.versions.lock().unwrap(), (1..=101).collect::<Vec<_>>());
    host.shutdown().await;
}

/// A pass goes on where it was before a stop, and the next one begins at the beginning.
#[tokio::test(start_paused = true)]
async fn a_pass_of_the_verifier_survives_a_restart() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings { verify_slice: 50, ..Settings::default() };
    let builder = || Registry::builder(ORIGIN, LOG_KEY).clock(clock()).settings(settings.clone());
    let inner = host.child("first", Duration::from_secs(1), Metrics::default());
    let registry = builder().start(journal(&inner, &disk).await.unwrap(), &inner).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..149).await;
    // A slice ends with a block, so where exactly is for the blocks to say.
    let mut slices = 0;
    while registry.status().verified < 100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        slices += 1;
        assert!(slices < 10);
    }
    let reached = registry.status().verified;
    assert!(reached < 150, "{reached}");
    inner.shutdown().await;

    let inner = host.child("second", Duration::from_secs(1), Metrics::default());
    let store = journal(&inner, &disk).await.unwrap();
    let registry = builder().verified(reached).start(store, &inner).await.unwrap();
    assert_eq!(registry.status().verified, reached);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(registry.status().verified > reached, "it went on, at {}", registry.status().verified);
    while registry.status().verified < 150 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        slices += 1;
        assert!(slices < 20);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        registry.status().verified < 100,
        "and now from the beginning, at {}",
        registry.status().verified
    );
    host.shutdown().await;
}

/// What runs is what is declared.
#[tokio::test(start_paused = true)]
async fn the_inventory_is_what_runs() {
    let host = host();
    let metrics = Metrics::default();
    let group = host.child("all", Duration::from_secs(1), metrics.clone());
    let store = journal(&group, &SimDisk::new()).await.unwrap();
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock()).publisher(Told::default());
    let registry = builder.start(store, &group).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    // One that follows itself: both kinds, and what is between them.
    let endpoint = Endpoint::builder(Identity::generate().unwrap()).start(&group).unwrap();
    let links = Links::start(&endpoint, &group).unwrap();
    links.serve(&registry, None);
    let source = links.source(endpoint.node_id(), endpoint.local_addrs());
    let follower = Registry::follower(LogTrust::new(registry.log_key()), source).clock(clock());
    let _follower = follower.start(Arc::new(MemoryStore::new()), &group).await.unwrap();
    let below = ron_core::Inventory::of(&[ron_core::journal::COMMITS], &[ron_core::journal::WRITER], &[]);
    let below = below.with(ron_core::inventory()).with(ron_core::net::inventory());
    let below = below.with(ron_core::net::rpc::inventory());
    let (found, known) = (metrics.inventory(), ron_registry::inventory().with(below));
    assert_eq!(found.clone().with(ron_registry::inventory()), found, "all that is declared runs");
    assert_eq!(known.clone().with(found), known, "and nothing else");
    host.shutdown().await;
}
