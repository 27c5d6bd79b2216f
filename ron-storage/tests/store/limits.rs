//! What is refused, and that a refusal leaves no trace.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use ron_core::{
    ClientKey, ConfigError, ErrorKind, GateLimits, Metrics, Supervisor,
    prometheus_client::registry::Registry, sim::SimDisk,
};
use ron_storage::{Put, Settings, StorageError, Store};

use super::world::{Pieces, Stuck, content, counters, pipe, soon};

/// A host on whose clock nothing waits in vain.
pub(crate) fn host() -> Supervisor {
    Supervisor::builder("host").inline_blocking(true).start()
}

pub(crate) async fn sim(host: &Supervisor, disk: &SimDisk, settings: Settings) -> Store {
    Store::builder().data(Arc::new(disk.clone()), "store").settings(settings).start(host).await.unwrap()
}

fn small() -> Settings {
    Settings { small_bytes_max: 1000, segment_bytes: 8192, reserve_bytes: 0, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn quotas_refuse_what_would_exceed_them_and_nothing_else() {
    let (mut registry, host) = (Registry::default(), host());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let settings = Settings { quota_bytes: Some(10_000), quota_objects: Some(5), ..small() };
    let store =
        Store::builder().memory().settings(settings.clone()).metrics(metrics).start(&host).await.unwrap();
    store.put_bytes(content(6000, 1), soon()).await.unwrap();
    store.put_bytes(content(900, 2), soon()).await.unwrap();
    let refused = store.put_bytes(content(4000, 3), soon()).await.unwrap_err();
    assert_eq!(refused, StorageError::Quota { key: "quota_bytes", used: 10_900, limit: 10_000 });
    assert_eq!(refused.kind(), ErrorKind::Caller);
    // The same again takes nothing.
    assert!(store.put_bytes(content(6000, 1), soon()).await.unwrap().existed);
    for number in 4..7 {
        store.put_bytes(content(10, number), soon()).await.unwrap();
    }
    let refused = store.put_bytes(content(10, 7), soon()).await.unwrap_err();
    assert_eq!(refused, StorageError::Quota { key: "quota_objects", used: 6, limit: 5 });
    assert_eq!(store.usage().objects, 5);
    store.delete(ron_core::ContentId::of(&content(6000, 1)), soon()).await.unwrap();
    store.put_bytes(content(4000, 3), soon()).await.unwrap();
    assert!(
        counters(&registry).contains("refused_writes_total{reason=\"quota\"} 2"),
        "{}",
        counters(&registry)
    );
    store.reload(Settings { quota_objects: Some(6), object_bytes_max: 5000, ..settings.clone() }).unwrap();
    store.put_bytes(content(10, 7), soon()).await.unwrap();
    let refused = store.put(Pieces::cut(&content(5001, 8), 700), soon()).await;
    assert_eq!(refused, Err(StorageError::TooLarge { key: "object_bytes_max", limit: 5000 }));
    let limit = store.get_bytes(ron_core::ContentId::of(&content(900, 2)), 899, soon()).await;
    assert_eq!(limit, Err(StorageError::TooLarge { key: "limit", limit: 899 }));
    host.shutdown().await;
}

/// What is announced and has no room is refused before anything is read, and what is promised is kept.
#[tokio::test(start_paused = true)]
async fn what_is_announced_is_refused_at_once() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings { quota_bytes: Some(10_000), reserve_bytes: 1000, ..small() };
    let store = sim(&host, &disk, settings).await;
    let id = |seed| ron_core::ContentId::of(&content(6000, seed));
    let announced = |seed, len| Put { expect: Some(id(seed)), len: Some(len), ..Put::default() };
    let refused = store.put_with(Stuck, announced(1, 10_001), soon()).await;
    assert_eq!(refused, Err(StorageError::Quota { key: "quota_bytes", used: 10_001, limit: 10_000 }));
    let (feed, source) = pipe();
    feed.send(content(6000, 1));
    let first = store.put_with(source, announced(1, 6000), soon());
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The first has not been stored yet, and its part of the quota is its own.
        let refused = store.put_with(Stuck, announced(2, 6000), soon()).await;
        assert_eq!(refused, Err(StorageError::Quota { key: "quota_bytes", used: 12_000, limit: 10_000 }));
        drop(feed);
    };
    let (stored, ()) = tokio::join!(first, second);
    assert!(!stored.unwrap().existed);
    store.put_with(Stuck, announced(1, 6000), soon()).await.unwrap();
    assert_eq!(store.usage().bytes, 6000);
    disk.capacity(Some(disk_used(&disk) + 4000));
    let refused = store.put_with(Stuck, announced(3, 3500), soon()).await;
    assert_eq!(refused, Err(StorageError::Full));
    host.shutdown().await;
}

/// A store in memory has an end too.
#[tokio::test(start_paused = true)]
async fn a_store_in_memory_is_full_at_some_point() {
    let host = host();
    let disk = ron_core::disk::MemoryDisk::with_capacity(2 << 20);
    let settings = Settings { reserve_bytes: 128 << 10, ..small() };
    let store = Store::builder().data(Arc::new(disk), "store").settings(settings).start(&host).await.unwrap();
    let mut stored = Vec::new();
    let refused = loop {
        match store.put_bytes(content(100_000, stored.len() as u64), soon()).await {
            Ok(put) => stored.push(put.id),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StorageError::Full);
    assert!((5..20).contains(&stored.len()), "{}", stored.len());
    for id in stored {
        store.get_bytes(id, 100_000, soon()).await.unwrap();
        store.delete(id, soon()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.put_bytes(content(100_000, 0), soon()).await.unwrap();
    host.shutdown().await;
}

/// A client that has used up its bytes waits.
#[tokio::test(start_paused = true)]
async fn bytes_count_against_their_client() {
    let host = host();
    let client_limits =
        GateLimits { bytes_per_second: 1000, bytes_burst: 10_000, ..Settings::default().client_limits };
    let settings = Settings { client_limits, ..small() };
    let store = Store::builder().memory().settings(settings).start(&host).await.unwrap();
    let id = store.put_bytes(content(9000, 1), soon()).await.unwrap().id;
    let client = store.for_client(ClientKey::from(Ipv4Addr::new(10, 0, 0, 1)));
    client.get_bytes(id, 9000, soon()).await.unwrap();
    let refused = client.get(id, .., soon()).await.unwrap_err();
    let wait = refused.retry_after().unwrap();
    assert!((5..=10).contains(&wait.as_secs()), "{wait:?}");
    tokio::time::sleep(wait).await;
    client.get_bytes(id, 9000, soon()).await.unwrap();
    host.shutdown().await;
}

/// A full disk refuses writes, says what to do, serves reads, and takes writes again when there is space.
#[tokio::test(start_paused = true)]
async fn a_full_disk_keeps_reads_alive_and_recovers() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let settings = Settings { reserve_bytes: 20_000, ..small() };
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(settings).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let first = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    let large = store.put(Pieces::cut(&content(50_000, 2), 9000), soon()).await.unwrap().id;
    assert!(store.ready().writes, "{:?}", store.ready());

    // Below the reserve nothing is put, small or large, but deletes have room.
    disk.capacity(Some(disk_used(&disk) + 19_000));
    for size in [900, 50_000] {
        // What was found free a moment ago may be trusted for a while; it comes to an end.
        let refused = loop {
            match store.put(Pieces::cut(&content(size, fastrand::u64(..)), 9000), soon()).await {
                Ok(_) => continue,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, StorageError::Full);
        assert!(refused.to_string().contains("delete objects"), "{refused}");
    }
    assert!(!store.ready().writes && store.ready().reads, "{:?}", store.ready());
    assert_eq!(store.get_bytes(first, 900, soon()).await.unwrap(), content(900, 1));
    assert_eq!(store.get_bytes(large, 50_000, soon()).await.unwrap(), content(50_000, 2));
    assert!(store.delete(large, soon()).await.unwrap());

    disk.capacity(None);
    assert!(store.ready().writes, "{:?}", store.ready());
    store.put(Pieces::cut(&content(50_000, 3), 9000), soon()).await.unwrap();
    store.put_bytes(content(900, 4), soon()).await.unwrap();
    assert!(counters(&registry).contains("refused_writes_total{reason=\"full\"}"), "{}", counters(&registry));
    host.shutdown().await;
}

/// What was once found free was trusted for 16 MiB of puts, however little was to stay free: others filled the disk meanwhile, and
/// puts went on into the reserve until nothing was left of it, not even for deletes. Most of a reserve of any size stays now.
#[tokio::test(start_paused = true)]
async fn a_small_reserve_is_left_when_others_fill_the_disk() {
    use ron_core::disk::Disk as _;
    const RESERVE: u64 = 1 << 20;
    for size in [900, 50_000] {
        let (host, disk) = (host(), SimDisk::new());
        let store = sim(&host, &disk, Settings { reserve_bytes: RESERVE, ..small() }).await;
        store.put_bytes(content(size, 0), soon()).await.unwrap();
        // Others write.
        disk.capacity(Some(disk_used(&disk) + RESERVE));
        let mut more = 1;
        let refused = loop {
            match store.put_bytes(content(size, more), soon()).await {
                Ok(_) => more += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, StorageError::Full);
        let left = disk.free_space().unwrap();
        assert!(left > RESERVE * 2 / 3, "{left} bytes left after {more} objects of {size}");
        host.shutdown().await;
    }
}

/// The disk is full in the middle of a write: no word of warning, some bytes get there and the rest does not.
#[tokio::test(start_paused = true)]
async fn a_disk_that_fills_up_in_the_middle_of_a_write_loses_only_that_write() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, small()).await;
    let kept = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    let before = disk_used(&disk);
    let (sender, source) = pipe();
    let filling = async {
        // Some of the object is written already.
        sender.send(content(150_000, 2));
        tokio::time::sleep(Duration::from_millis(10)).await;
        let written = disk_used(&disk);
        assert!(written > before + 65_536, "{written}");
        disk.capacity(Some(written + 40_000));
        sender.send(content(150_000, 3));
        drop(sender);
    };
    let settings = Settings { chunk_bytes: 65_536, ..small() };
    store.reload(settings).unwrap();
    let (put, ()) = tokio::join!(store.put(source, soon()), filling);
    assert_eq!(put, Err(StorageError::Full));
    // Records go on for as long as the journal has room of its own, and then do not fit either; whoever reads does not notice.
    disk.capacity(Some(0));
    let mut more = 0;
    let refused = loop {
        match store.put_bytes(content(900, 100 + more), soon()).await {
            Ok(_) => more += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StorageError::Full);
    assert_eq!(store.get_bytes(kept, 900, soon()).await.unwrap(), content(900, 1));
    disk.capacity(None);
    // Nothing is left of what was given up, and everything works as before.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(large_files(&disk), 0);
    for (size, number) in [(900, 4), (150_000, 3)] {
        let stored = store.put_bytes(content(size, number), soon()).await.unwrap();
        assert_eq!(store.get_bytes(stored.id, 1 << 20, soon()).await.unwrap(), content(size, number));
    }
    host.shutdown().await;
    // And after a restart too.
    let host = self::host();
    let store = sim(&host, &disk, small()).await;
    assert_eq!((store.usage().objects, store.opened().damaged, large_files(&disk)), (3 + more, 0, 2));
    host.shutdown().await;
}

/// A store that stopped on a full disk starts there: otherwise nothing could be read any more, nor deleted to make room. And the
/// last few bytes of a disk are enough to delete.
#[tokio::test(start_paused = true)]
async fn a_store_starts_on_a_full_disk_and_can_be_emptied() {
    for is_clean in [true, false] {
        let (mut host, mut disk) = (self::host(), SimDisk::new());
        let mut store = sim(&host, &disk, small()).await;
        let large = store.put(Pieces::cut(&content(50_000, 2), 9000), soon()).await.unwrap().id;
        disk.capacity(Some(disk_used(&disk) + 2000));
        let mut kept = Vec::new();
        let refused = loop {
            match store.put_bytes(content(900, kept.len() as u64), soon()).await {
                Ok(stored) => kept.push(stored.id),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, StorageError::Full);
        if is_clean {
            host.shutdown().await;
        } else {
            disk = disk.fork();
            disk.restart(ron_core::sim::CrashStyle::Killed);
        }
        host = self::host();
        store = sim(&host, &disk, small()).await;
        assert_eq!(store.usage().objects, 1 + kept.len() as u64, "clean: {is_clean}");
        for (number, id) in kept.iter().enumerate() {
            let got = store.get_bytes(*id, 900, soon()).await.unwrap();
            assert_eq!(got, content(900, number as u64));
        }
        let refused = store.put_bytes(content(50_000, 3), soon()).await;
        assert_eq!(refused, Err(StorageError::Full));
        // Somebody else frees a little: not enough for anything but a few words in the journal.
        disk.capacity(Some(disk_used(&disk) + 600));
        assert!(store.delete(large, soon()).await.unwrap());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(large_files(&disk), 0);
        store.put_bytes(content(900, 1000), soon()).await.unwrap();
        assert!(disk.bytes("store/index.tmp").is_none());
        host.shutdown().await;
    }
}

/// A large object is synced while it comes, and if that fails it is not kept.
#[tokio::test(start_paused = true)]
async fn a_large_put_is_flushed_on_the_way() {
    let long = || Pieces::cut(&content(40 << 20, 1), 1 << 20);
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, small()).await;
    let before = disk.calls();
    store.put(long(), soon()).await.unwrap();
    let log = disk.log();
    let of_data = |op: &str| {
        let is_such = |call: &&ron_core::sim::Call| {
            call.number > before && call.op == op && call.path.extension().is_some_and(|kind| kind == "dat")
        };
        log.iter().filter(is_such).map(|call| call.number).collect::<Vec<_>>()
    };
    let (writes, syncs) = (of_data("write"), of_data("sync data"));
    assert_eq!((writes.len(), syncs.len()), (40, 2), "{log:?}");
    assert!(syncs[0] < writes[39] && syncs[1] > writes[39], "{writes:?} {syncs:?}");
    host.shutdown().await;

    let (host, disk) = (self::host(), SimDisk::new());
    let store = sim(&host, &disk, small()).await;
    disk.fail_call(syncs[0] - before, ron_core::sim::Fault::Io);
    let failed = store.put(long(), soon()).await;
    assert!(matches!(failed, Err(StorageError::Disk { .. })), "{failed:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((store.usage().objects, large_files(&disk)), (0, 0));
    host.shutdown().await;
}

/// A full disk on a real file system, which has to be small.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "mount -t tmpfs -o size=16m none DIR, and say RON_SMALL_DISK=DIR"]
async fn a_real_disk_that_is_full_keeps_reads_alive_and_recovers() {
    let dir = std::path::PathBuf::from(std::env::var_os("RON_SMALL_DISK").expect("a small file system"));
    let host = Supervisor::new("host");
    std::fs::write(dir.join("ballast"), vec![7; 4 << 20]).unwrap();
    let disk = Arc::new(ron_core::disk::RealDisk::open(&dir).unwrap());
    // Without a reserve, so that it is the disk that says no.
    let settings = Settings { reserve_bytes: 0, segment_bytes: 1 << 20, ..Settings::default() };
    let store = Store::builder().data(disk, "store").settings(settings).start(&host).await.unwrap();
    let mut kept = Vec::new();
    for size in [100_000, 700_000] {
        let refused = loop {
            let number = kept.len() as u64;
            match store.put(Pieces::cut(&content(size, number), 90_000), soon()).await {
                Ok(stored) => kept.push((stored.id, size, number)),
                Err(error) => break error,
            }
            assert!(kept.len() < 1000, "the disk is not small");
        };
        assert_eq!(refused, StorageError::Full);
    }
    for (id, size, number) in &kept {
        assert_eq!(store.get_bytes(*id, 1 << 20, soon()).await.unwrap(), content(*size, *number));
    }
    assert!(kept.iter().any(|(_, size, _)| *size == 100_000), "{} objects", kept.len());
    // Somebody else frees some.
    std::fs::remove_file(dir.join("ballast")).unwrap();
    store.put_bytes(content(700_000, 5000), soon()).await.unwrap();
    store.put_bytes(content(100_000, 5001), soon()).await.unwrap();
    host.shutdown().await;
}

fn large_files(disk: &SimDisk) -> usize {
    use ron_core::disk::Disk as _;
    disk.list(std::path::Path::new("store/large")).unwrap().len()
}

fn disk_used(disk: &SimDisk) -> u64 {
    use ron_core::disk::Disk as _;
    ["store", "store/log", "store/large"]
        .iter()
        .flat_map(|dir| disk.list(std::path::Path::new(dir)).unwrap())
        .map(|entry| entry.len)
        .sum()
}

#[tokio::test(start_paused = true)]
async fn streams_are_admitted_and_those_that_stand_still_make_room() {
    let (mut registry, host) = (Registry::default(), host());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let settings = Settings { get_streams: 2, put_streams: 2, chunk_bytes: 65_536, ..small() };
    let store =
        Store::builder().memory().settings(settings.clone()).metrics(metrics).start(&host).await.unwrap();
    let id = store.put_bytes(content(300_000, 1), soon()).await.unwrap().id;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mut reader = store.get(id, .., soon()).await.unwrap();
        reader.next().await.unwrap();
        readers.push(reader);
    }
    let refused = store.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(refused, StorageError::Busy { what: "get_streams", .. }), "{refused:?}");
    assert!(refused.is_retryable() && refused.retry_after().is_some());
    tokio::time::advance(settings.idle_timeout / 2).await;
    readers[1].next().await.unwrap();
    tokio::time::advance(settings.idle_timeout / 2).await;
    // The one that was read stays; the other has lost its place.
    let mut third = store.get(id, .., soon()).await.unwrap();
    assert!(store.get(id, .., soon()).await.is_err());
    assert_eq!(readers[0].next().await, Err(StorageError::Timeout { op: "get" }));
    assert!(readers[1].next().await.unwrap().is_some() && third.next().await.unwrap().is_some());
    let text = counters(&registry);
    assert!(text.contains("streams_revoked_total 1") && text.contains("ron_storage_get_streams 2"), "{text}");
    drop((readers, third));
    store.get(id, .., soon()).await.unwrap();

    // A source that stands still is given up, and nothing is left of it.
    let began = ron_core::now();
    let stuck = store.put(Stuck, ron_core::Deadline::after(Duration::from_secs(3600))).await;
    assert_eq!(
        (stuck, began.elapsed()),
        (Err(StorageError::Timeout { op: "put_idle" }), settings.idle_timeout)
    );
    assert!(counters(&registry).contains("io_timeouts_total{op=\"put_idle\"} 1"));
    let (sender, source) = pipe();
    sender.send(content(5000, 5));
    let (failed, ()) =
        tokio::join!(store.put(source, ron_core::Deadline::after(Duration::from_secs(3600))), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
    assert_eq!(failed, Err(StorageError::Timeout { op: "put_idle" }));
    drop(sender);
    assert_eq!(store.usage().objects, 1);
    host.shutdown().await;
}

struct Failing;

impl futures_core::Stream for Failing {
    type Item = Result<bytes::Bytes, std::io::Error>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(Some(Err(std::io::Error::other("the line went dead"))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_is_told_with_its_words() {
    let host = host();
    let store = Store::builder().memory().start(&host).await.unwrap();
    let failed = store.put(Failing, soon()).await.unwrap_err();
    assert_eq!(failed, StorageError::Source { message: "the line went dead".to_owned() });
    assert_eq!(failed.kind(), ErrorKind::Peer);
    host.shutdown().await;
}

/// One client that takes all it may leaves room for the others.
#[tokio::test(start_paused = true)]
async fn clients_share_fairly() {
    let (mut registry, host) = (Registry::default(), host());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let client_limits = GateLimits { in_flight: 2, ..Settings::default().client_limits };
    let settings = Settings { client_limits, get_streams: 8, ..small() };
    let store =
        Store::builder().memory().settings(settings.clone()).metrics(metrics).start(&host).await.unwrap();
    let id = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    let greedy = store.for_client(ClientKey::from(Ipv4Addr::new(10, 0, 0, 1)));
    let modest = store.for_client(ClientKey::from(Ipv4Addr::new(10, 0, 0, 2)));
    let taken = [greedy.get(id, .., soon()).await.unwrap(), greedy.get(id, .., soon()).await.unwrap()];
    let refused = greedy.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(refused, StorageError::Busy { what: "storage_clients", .. }), "{refused:?}");
    assert!(counters(&registry).contains("busy_rejections_total{endpoint=\"storage_clients\"} 1"));
    modest.get(id, .., soon()).await.unwrap();
    store.get(id, .., soon()).await.unwrap();
    drop(taken);
    greedy.get(id, .., soon()).await.unwrap();
    let more = GateLimits { per_second: 1, burst: 1, ..client_limits };
    store.reload(Settings { client_limits: more, ..settings }).unwrap();
    let burst: Vec<_> =
        [modest.has(id, soon()).await, modest.has(id, soon()).await, modest.has(id, soon()).await].into();
    assert!(burst.iter().any(|asked| matches!(asked, Err(StorageError::Busy { .. }))), "{burst:?}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let host = host();
    let base = Settings::default;
    let bad: [(&str, Settings); 16] = [
        ("get_lane", Settings { get_lane: 0, ..base() }),
        ("put_lane", Settings { put_lane: 0, ..base() }),
        ("get_streams", Settings { get_streams: 0, ..base() }),
        ("put_streams", Settings { put_streams: usize::MAX, ..base() }),
        ("events_lane", Settings { events_lane: 0, ..base() }),
        ("chunk_bytes", Settings { chunk_bytes: 65_537, ..base() }),
        ("small_bytes_max", Settings { small_bytes_max: 1 << 30, ..base() }),
        ("segment_bytes", Settings { segment_bytes: 1000, ..base() }),
        ("garbage_max", Settings { garbage_max: 0.0, ..base() }),
        ("drain", Settings { drain: Duration::from_secs(6), ..base() }),
        ("idle_timeout", Settings { idle_timeout: Duration::ZERO, ..base() }),
        ("read_timeout", Settings { read_timeout: Duration::ZERO, ..base() }),
        ("write_timeout", Settings { write_timeout: Duration::ZERO, ..base() }),
        ("stream_bytes_max", Settings { stream_bytes_max: 65_536, ..base() }),
        ("clients_remembered", Settings { clients_remembered: 0, ..base() }),
        ("upkeep_bytes_per_second", Settings { upkeep_bytes_per_second: 0, ..base() }),
    ];
    for (name, settings) in bad {
        let refused = Store::builder().memory().settings(settings).start(&host).await.unwrap_err();
        let StorageError::Config(ConfigError::OutOfRange { key, .. }) = refused else {
            panic!("{name}: {refused:?}")
        };
        assert_eq!(key, name);
    }
    let store = Store::builder().memory().start(&host).await.unwrap();
    for (name, settings) in [
        ("segment_bytes", Settings { segment_bytes: 1 << 20, ..base() }),
        ("get_streams", Settings { get_streams: 1, ..base() }),
        ("drain", Settings { drain: Duration::from_secs(1), ..base() }),
    ] {
        let refused = store.reload(settings).unwrap_err();
        assert_eq!(refused, StorageError::Config(ConfigError::NeedsRestart { key: name }));
    }
    assert_eq!(*store.settings(), base());
    host.shutdown().await;
}

/// With a chunk of one group, a piece is one group.
#[tokio::test(start_paused = true)]
async fn pieces_are_as_long_as_the_settings_say() {
    let host = host();
    let settings = Settings { chunk_bytes: 65_536, ..small() };
    let store = Store::builder().memory().settings(settings.clone()).start(&host).await.unwrap();
    let id = store.put_bytes(content(400_000, 1), soon()).await.unwrap().id;
    let first = |store: &Store| {
        let store = store.clone();
        async move { store.get(id, 10.., soon()).await.unwrap().next().await.unwrap().unwrap().len() }
    };
    assert_eq!(first(&store).await, 65_526);
    store.reload(Settings { chunk_bytes: 131_072, ..settings.clone() }).unwrap();
    assert_eq!(first(&store).await, 131_062);
    // Many streams share what all together may hold.
    store.reload(Settings { chunk_bytes: 131_072, stream_bytes_max: 131_072, ..settings }).unwrap();
    let others = [store.get(id, .., soon()).await.unwrap(), store.get(id, .., soon()).await.unwrap()];
    assert_eq!(first(&store).await, 65_526);
    drop(others);
    let put = Put { expect: Some(id), ..Put::default() };
    assert!(store.put_with(Stuck, put, soon()).await.unwrap().existed);
    host.shutdown().await;
}
