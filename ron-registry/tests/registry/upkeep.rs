//! Retention, verification, publishing: what goes on beside committing.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Affects, ContentId, Deadline, Metrics,
    disk::Disk,
    net::{Endpoint, Identity},
    prometheus_client::registry::Registry as Prometheus,
    sim::SimDisk,
};
use ron_registry::{
    CheckpointError, KeyKind, LogTrust, NoteSigner, Publisher, Registry, RegistryError, RegistryUpdated,
    Retention, Settings, Witness,
    net::Links,
    store::{BoxFuture, MemoryStore},
    verify_consistency,
};

use super::world::{
    LOG_KEY, ORIGIN, Odd, Oddity, approvals, bind, bind_again, bind_many, clock, draft, founded, host,
    journal, measured, policy, scraped, soon, start,
};

/// What a scrape sees of one counter or gauge.
fn value(registry: &Prometheus, begin: &str) -> f64 {
    let text = scraped(registry);
    let found = text.lines().find(|found| found.starts_with(begin));
    found.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn what_is_left_after_pruning_is_proven_and_found_again() {
    let (host, disk) = (host(), SimDisk::new());
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..700).await;
    let before = registry.checkpoint();
    assert_eq!(registry.prune(255, soon()).await, Ok(0), "not a whole tile");
    let freed = registry.prune(600, soon()).await.unwrap();
    assert!(freed > 32 << 10, "{freed} bytes");
    assert_eq!(registry.prune(600, soon()).await, Ok(0), "it is gone already");
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
            let lagging = updates.next().await.unwrap_err();
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
        .reload(Settings { verify_interval: Duration::from_secs(1 << 20), ..(*registry.settings()).clone() })
        .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let cycle = || tokio::time::sleep(Duration::from_secs(61));
    let keep = |retention| registry.reload(Settings { retention, ..(*registry.settings()).clone() }).unwrap();
    bind_again(&registry, 600).await;
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
    bind_again(&registry, 700).await;
    keep(Retention { bytes: Some(1 << 20), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 513);
    keep(Retention { bytes: Some(1000), ..Retention::default() });
    cycle().await;
    assert_eq!(registry.status().first, 1281, "the tile that the head is in stays");
    // Snapshots hold all names, so with many of them there must be more to let go of.
    keep(Retention { entries: Some(1), ..Retention::default() });
    bind_many(&host, &registry, 0..600).await;
    cycle().await;
    assert_eq!(registry.status().first, 1281, "a snapshot would take as much as it frees");
    bind_again(&registry, 1000).await;
    cycle().await;
    assert_eq!(registry.status().first, 2817);
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
    bind_again(&registry, 300).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(value(&scrape, "ron_registry_retention_skipped_total") >= 5.0);
    assert_eq!(registry.status().first, 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let backoff = "ron_registry_storage_backoff_total{op=\"prune\"}";
    assert!(value(&scrape, backoff) >= 1.0, "it gives up in time");
    assert_eq!(bind(&registry, "meanwhile", "x", &[0]).await.unwrap().version, 302, "commits go on");
    store.be(Oddity::None);
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(registry.status().first, 257);
    assert!(value(&scrape, "ron_registry_pruned_bytes_total") > 0.0);
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
    let verified = value(&scrape, "ron_registry_verified_version");
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

/// As above on the store that ships, whose sums notice first.
#[tokio::test(start_paused = true)]
async fn a_flipped_bit_of_a_file_is_found_and_named() {
    let (host, disk) = (host(), SimDisk::new());
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    for number in 0..20 {
        bind(&registry, &format!("name/{number:02}"), "x", &[0]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let find = |text: &[u8]| {
        Disk::list(&disk, Path::new("log")).unwrap().iter().find_map(|file| {
            let path = Path::new("log").join(&file.name);
            let bytes = disk.bytes(&path)?;
            bytes.windows(text.len()).position(|window| window == text).map(|at| (path, at))
        })
    };
    let (path, at) = find(b"name/12").unwrap();
    // In the entry, and in the head of the record: the block is one entry, so its head is not far.
    let mut named = 0;
    for offset in [at, at - 300, at - 220, at - 200] {
        disk.flip_bit(&path, offset);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let status = registry.status();
        let gate = status.ready.closed().find(|gate| gate.name == "registry.verified");
        let reason = format!("{:?}", gate.expect("it is said"));
        assert!(reason.contains("version 1"), "{reason}");
        named += usize::from(reason.contains("version 14"));
        assert!(!status.ready.reads);
        disk.flip_bit(&path, offset);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(registry.status().ready.reads, "it is whole again");
    }
    assert!(named > 0);
    host.shutdown().await;
}

/// What is about to go is compared with what was committed: also a signature, which nothing after it covers.
#[tokio::test(start_paused = true)]
async fn nothing_is_pruned_that_is_not_what_was_committed() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    bind_again(&registry, 100).await;
    let trust = LogTrust::new(registry.log_key());
    let early = trust.open(&registry.checkpoint()).unwrap();
    bind_again(&registry, 200).await;
    let late = trust.open(&registry.checkpoint()).unwrap();
    for (oddity, what) in [(Oddity::Forge(256), "up to version 256"), (Oddity::Empty, "not there")] {
        store.be(oddity);
        let refused = registry.prune(256, soon()).await.unwrap_err();
        assert!(
            matches!(&refused, RegistryError::Untrusted { message } if message.contains(what)),
            "{refused:?}"
        );
    }
    // And nobody waits without an end for what is not there.
    let missing = registry.updates(1).next().await.unwrap_err();
    assert!(matches!(missing, RegistryError::Untrusted { .. }), "{missing:?}");
    store.be(Oddity::None);
    assert_eq!(registry.status().first, 1);
    let (one, two) = tokio::join!(registry.prune(256, soon()), registry.prune(256, soon()));
    assert!(one.unwrap() > 0 && two == Ok(0), "one after the other");
    assert_eq!(registry.status().first, 257);
    host.shutdown().await;

    // What was seen last can be compared; what was seen before what is left cannot, and is no excuse.
    let host = self::host();
    let builder = || Registry::builder(ORIGIN, LOG_KEY).clock(clock());
    let refused = builder().seen(early).start(store.clone(), &host).await.unwrap_err();
    assert!(
        matches!(&refused, RegistryError::Untrusted { message } if message.contains("pruned beyond")),
        "{refused:?}"
    );
    assert_eq!(builder().seen(late).start(store, &host).await.unwrap().head().version, 301);
    host.shutdown().await;
}

/// Witnesses sign, whoever asks for them is served, and what they have seen stays provable to them.
#[tokio::test(start_paused = true)]
async fn witnesses_are_served_and_not_left_behind() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    bind_again(&registry, 299).await;
    let witness = NoteSigner::from_seed("w.example/one", KeyKind::Cosignature, &[7; 32]).unwrap();
    let trust = LogTrust::new(registry.log_key()).witnessed_by([witness.verifier().clone()], 1);
    let sent = registry.checkpoint();
    let entry = registry.entry(100, soon()).await.unwrap();
    assert!(registry.prove(100).unwrap().verify(entry.encoded(), &trust).is_err(), "nobody has seen it");
    assert_eq!(registry.prove_cosigned(100).unwrap_err(), RegistryError::NotFound { head: 0 });
    bind_again(&registry, 500).await;
    let answer = format!("{}\n", witness.sign(sent.text(), 1_700_000_000));
    assert_eq!(registry.add_cosignatures(&sent, &answer, &trust), Ok(1));
    assert_eq!(registry.add_cosignatures(&sent, &answer, &trust), Ok(0), "the same again");
    registry.prove_cosigned(100).unwrap().verify(entry.encoded(), &trust).unwrap();
    trust.open(&registry.cosigned().unwrap()).unwrap();
    assert_eq!(registry.prove_cosigned(301).unwrap_err(), RegistryError::NotFound { head: 300 });
    // Not beyond what they have seen, until they have seen more.
    assert!(registry.prune(700, soon()).await.unwrap() > 0);
    assert_eq!(registry.status().first, 257);
    assert!(registry.prove_consistency(300, 800).is_ok());
    let sent = registry.checkpoint();
    let answer = format!("{}\n", witness.sign(sent.text(), 1_700_000_001));
    assert_eq!(registry.add_cosignatures(&sent, &answer, &trust), Ok(1));
    assert!(registry.prune(700, soon()).await.unwrap() > 0);
    assert_eq!(registry.status().first, 513);
    let other = Registry::builder(ORIGIN, LOG_KEY).clock(clock());
    let other = other.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    let refused = other.add_cosignatures(&sent, &answer, &trust).unwrap_err();
    assert!(matches!(refused, CheckpointError::Malformed { .. }), "{refused:?}");
    host.shutdown().await;
}

/// A clock that leaps does not take the log with it.
#[tokio::test(start_paused = true)]
async fn a_clock_that_leaps_prunes_nothing() {
    let (host, ahead) = (host(), Arc::new(AtomicU64::new(0)));
    let (clock, leap) = (clock(), Arc::clone(&ahead));
    let retention = Retention { age: Some(Duration::from_secs(30 * 24 * 3600)), ..Retention::default() };
    let settings =
        Settings { retention, verify_interval: Duration::from_secs(1 << 20), ..Settings::default() };
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings);
    let builder = builder.clock(move || clock() + leap.load(Ordering::Relaxed));
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_again(&registry, 300).await;
    ahead.store(10 * 365 * 24 * 3_600_000, Ordering::Relaxed);
    bind(&registry, "then", "x", &[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    assert_eq!(registry.status().first, 1, "there is time to set it right");
    // It is set right, and the log goes on: its time does not go back, and what is drafted knows.
    ahead.store(0, Ordering::Relaxed);
    bind(&registry, "now", "x", &[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(48 * 3600)).await;
    assert_eq!(registry.status().first, 1);
    ahead.store(10 * 365 * 24 * 3_600_000, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(25 * 3600)).await;
    assert_eq!(registry.status().first, 257, "it is what it says, after all");
    host.shutdown().await;
}

/// What was committed and not told before a stop is told after it, by a host that remembers where it was.
#[tokio::test(start_paused = true)]
async fn a_publisher_goes_on_where_it_was() {
    let store = Arc::new(MemoryStore::new());
    let mut next = 1;
    let mut all = Vec::new();
    for round in 0..3 {
        let host = host();
        let told = Told::default();
        let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock());
        let builder = builder.publisher(told.clone()).publish_from(next);
        let registry = builder.start(store.clone(), &host).await.unwrap();
        if round == 0 {
            registry.found(policy(1, 1), soon()).await.unwrap();
        }
        // The last of them is committed while it stops.
        let proposal = draft(&registry, "last", &round.to_string());
        let last = registry.submit(proposal.clone(), approvals(&proposal, &[0]), soon());
        let (last, _) = tokio::join!(last, registry.shutdown());
        last.unwrap();
        let versions = std::mem::take(&mut *told.versions.lock().unwrap());
        next = versions.last().unwrap() + 1;
        all.extend(versions);
        host.shutdown().await;
    }
    assert_eq!(all, (1..=4).collect::<Vec<_>>());
}

/// Reads do not go through the lanes, so full ones take no reader away.
#[tokio::test(start_paused = true)]
async fn full_lanes_are_about_writes() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let status = registry.status().ready;
    let lanes: Vec<_> =
        status.gates.iter().filter(|gate| ["proposals", "approvals"].contains(&&*gate.name)).collect();
    assert_eq!(lanes.len(), 2, "{lanes:?}");
    assert!(lanes.iter().all(|gate| gate.affects == Affects::Writes), "{lanes:?}");
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
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock()).metrics(metrics);
    let builder = builder.publisher(told.clone());
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    let before = ron_core::now();
    bind_many(&host, &registry, 0..100).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(told.versions.lock().unwrap().len() < 2);
    tokio::time::sleep(Duration::from_secs(1020)).await;
    assert_eq!(*told.versions.lock().unwrap(), (1..=101).collect::<Vec<_>>());
    // What it had not taken from memory in time it was read from the log, and that is counted.
    assert!(value(&scrape, "ron_registry_bus_lagged_total{topic=\"committed\"}") > 0.0);
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
    drop((registry, inner));

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
    let status = registry.status();
    assert!(status.verified < 100 && status.ready.reads, "and now from the beginning: {status:?}");
    host.shutdown().await;
}

/// What runs is what is declared.
#[tokio::test(start_paused = true)]
async fn the_inventory_is_what_runs() {
    let host = host();
    let metrics = Metrics::default();
    let group = host.child("all", Duration::from_secs(1), metrics.clone());
    let store = journal(&group, &SimDisk::new()).await.unwrap();
    let witness = NoteSigner::from_seed("w.example/one", KeyKind::Cosignature, &[7; 32]).unwrap();
    let witness = Witness::new("http://127.0.0.1:1", witness.verifier().clone()).unwrap();
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock()).publisher(Told::default());
    let builder = builder.witnesses([witness], 1, Duration::from_secs(3600));
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

/// A snapshot that is not kept in time was counted nowhere, though every other wait for the store was.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_not_kept_in_time_is_counted() {
    let host = host();
    let (registry, store, scrape) = measured(&host).await;
    bind_again(&registry, 300).await;
    let patient = || Deadline::after(Duration::from_secs(3600));
    store.be(Oddity::StuckPrune);
    let late = registry.prune(256, patient()).await.unwrap_err();
    assert!(matches!(late, RegistryError::Timeout { .. }), "{late:?}");
    assert_eq!(value(&scrape, "ron_registry_io_timeouts_total{op=\"write\"}"), 1.0);
    assert_eq!(registry.status().first, 1, "and nothing has gone");
    store.be(Oddity::None);
    assert!(registry.prune(256, patient()).await.unwrap() > 0);
    assert_eq!(value(&scrape, "ron_registry_io_timeouts_total{op=\"write\"}"), 1.0);
    host.shutdown().await;
}

/// What binds some content is looked up in an index that is read from the log after each start.
#[tokio::test(start_paused = true)]
async fn content_that_is_not_indexed_yet_is_not_ready() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    bind(&registry, "a", "x", &[0]).await.unwrap();
    registry.shutdown().await;
    let mut scrape = Prometheus::default();
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock());
    let builder = builder.metrics(Metrics::register("ron_registry", &mut scrape));
    let registry = builder.start(store.clone(), &host).await.unwrap();
    store.be(Oddity::Away);
    let content = ContentId::of(b"x");
    let late = registry.versions_of(content, Deadline::after(Duration::from_secs(1))).await;
    assert_eq!(late, Err(RegistryError::NotReady { gate: "index" }));
    assert!(late.unwrap_err().is_retryable());
    store.be(Oddity::None);
    assert_eq!(registry.versions_of(content, soon()).await, Ok(vec![2]));
    assert_eq!(value(&scrape, "ron_registry_indexed_version"), 2.0);
    host.shutdown().await;
}
