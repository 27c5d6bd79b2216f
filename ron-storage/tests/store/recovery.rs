//! Opening a store of which something is missing: what is left is kept, and said.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Metrics, Supervisor,
    disk::Disk as _,
    prometheus_client::registry::Registry,
    sim::{CrashStyle, SimDisk},
};
use ron_storage::{Durability, Gc, Put, Settings, StorageError, Store};

use super::{
    hooked::Hooked,
    limits::{host, sim},
    world::{Failing, Pieces, content, counters, soon},
};

fn settings() -> Settings {
    Settings {
        small_bytes_max: 1000,
        segment_bytes: 8192,
        reserve_bytes: 0,
        collect_grace: Duration::ZERO,
        ..Settings::default()
    }
}

fn id(size: usize, seed: u64) -> ContentId {
    ContentId::of(&content(size, seed))
}

/// What a machine leaves that went down without an index.
fn went_down(disk: &SimDisk) {
    let _ = disk.remove(Path::new("store/index"));
    disk.put("store/OPEN", b"");
}

const FIRST: &str = "store/log/0000000000000001.seg";

/// The notes of large objects cannot be read: the objects are taken over from their own files, with their pins, and what
/// the rest of the journal says was deleted stays deleted.
#[tokio::test(start_paused = true)]
async fn large_objects_survive_the_loss_of_their_notes() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, settings()).await;
    for number in 0..6 {
        store.put_bytes(content(5000, number), soon()).await.unwrap();
    }
    // Into the next segment.
    for number in 0..12 {
        store.put_bytes(content(900, 100 + number), soon()).await.unwrap();
    }
    store.pin(id(5000, 3), soon()).await.unwrap();
    let deleted =
        [disk.bytes("store/large/0000000000000003.dat"), disk.bytes("store/large/0000000000000003.tree")];
    store.delete(id(5000, 2), soon()).await.unwrap();
    store.shutdown().await;
    went_down(&disk);
    // A bit of the header, and the whole segment is gone. The file of what was deleted came back with the power.
    disk.flip_bit(FIRST, 20);
    let [data, tree] = deleted.map(Option::unwrap);
    disk.put("store/large/0000000000000003.dat", &data);
    disk.put("store/large/0000000000000003.tree", &tree);
    // Something that was never finished.
    disk.put("store/large/0000000000000099.dat", b"half");

    for restarts in 0..3 {
        let store = sim(&host, &disk, settings()).await;
        let opened = store.opened().clone();
        if restarts == 0 {
            assert_eq!((opened.adopted, opened.left, opened.swept), (5, 1, 2), "{opened:?}");
        } else {
            assert_eq!(opened.adopted, 0, "{opened:?}");
        }
        for number in (0..6).filter(|number| *number != 2) {
            let got = store.get_bytes(id(5000, number), 5000, soon()).await;
            assert_eq!(got.unwrap(), content(5000, number));
        }
        assert!(!store.has(id(5000, 2), soon()).await.unwrap());
        assert!(store.stat(id(5000, 3), soon()).await.unwrap().is_pinned);
        // New files do not run into those that were left.
        store.put_bytes(content(5000, 50 + restarts), soon()).await.unwrap();
        store.shutdown().await;
        if restarts == 1 {
            went_down(&disk);
        }
    }
    let store = sim(&host, &disk, settings()).await;
    store.gc(Gc::new(), soon()).await.unwrap();
    assert!(store.has(id(5000, 3), soon()).await.unwrap(), "the pin holds");
    host.shutdown().await;
}

/// A store whose journal is not there is refused, and nothing is removed.
#[tokio::test(start_paused = true)]
async fn large_objects_without_a_journal_are_refused() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, settings()).await;
    store.put_bytes(content(5000, 1), soon()).await.unwrap();
    store.shutdown().await;
    went_down(&disk);
    let log = disk.bytes(FIRST).unwrap();
    disk.remove(Path::new(FIRST)).unwrap();
    let start = async |disk: &SimDisk| {
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).start(&host).await
    };
    let refused = start(&disk).await.unwrap_err();
    assert!(
        matches!(&refused, StorageError::Disk { message } if message.contains("put it back")),
        "{refused}"
    );
    assert_eq!(disk.list(Path::new("store/large")).unwrap().len(), 2);
    // A journal that was only just begun knows nothing either: then the files say what they are.
    disk.put(FIRST, b"");
    let store = start(&disk.fork()).await.unwrap();
    assert_eq!(store.opened().adopted, 1, "{:?}", store.opened());
    assert_eq!(store.get_bytes(id(5000, 1), 5000, soon()).await.unwrap(), content(5000, 1));
    disk.put(FIRST, &log);
    let store = start(&disk).await.unwrap();
    assert_eq!((store.opened().adopted, store.usage().objects), (0, 1));
    host.shutdown().await;
}

/// Sectors that cannot be read cost what is in them: a scrub goes on, opening makes the index anew, compaction gets past
/// them.
#[tokio::test(start_paused = true)]
async fn a_bad_sector_stops_nothing() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let builder =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    for number in 0..30 {
        store.put_bytes(content(900, number), soon()).await.unwrap();
    }
    let large = store.put_bytes(content(200_000, 100), soon()).await.unwrap().id;
    store.put_bytes(content(200_000, 101), soon()).await.unwrap();
    disk.spoil("store/large/0000000000000001.dat", 70_000);
    // In the second of ten records.
    disk.spoil(FIRST, 1200);
    let scrubbed = store.scrub(soon()).await.unwrap();
    let mut unreadable = vec![large, id(900, 1)];
    unreadable.sort_unstable();
    assert_eq!((scrubbed.objects, &scrubbed.unreadable, scrubbed.damaged.len()), (32, &unreadable, 0));
    assert!(
        counters(&registry).contains("unreadable_total{found_by=\"scrub\"} 2"),
        "{}",
        counters(&registry)
    );
    assert!(matches!(store.get_bytes(large, 200_000, soon()).await, Err(StorageError::Disk { .. })));
    store.shutdown().await;

    disk.spoil("store/index", 200);
    let store = sim(&host, &disk, settings()).await;
    let opened = store.opened().clone();
    assert!(opened.rebuilt.as_ref().is_some_and(|why| why.contains("cannot be read")), "{opened:?}");
    assert!(opened.damaged == 1 && opened.objects >= 24, "{opened:?}");
    for number in (0..30).filter(|number| *number > 8) {
        assert_eq!(store.get_bytes(id(900, number), 900, soon()).await.unwrap(), content(900, number));
        store.delete(id(900, number), soon()).await.unwrap();
    }
    let first = id(900, 8);
    assert!(store.compact(soon()).await.unwrap() > 8192);
    assert!(disk.bytes(FIRST).is_none(), "the segment with the bad sector is gone");
    assert_eq!(store.get_bytes(first, 900, soon()).await.unwrap(), content(900, 8));
    host.shutdown().await;
}

/// An object that went with a damaged part of the journal stays known, pinned and quarantined, whatever becomes of the
/// index, until it is put again.
#[tokio::test(start_paused = true)]
async fn what_is_lost_stays_known_with_its_pin() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, settings()).await;
    let lost = id(900, 1);
    for number in 0..30 {
        store.put_bytes(content(900, number), soon()).await.unwrap();
    }
    store.pin(lost, soon()).await.unwrap();
    store.shutdown().await;
    let older = disk.bytes("store/index").unwrap();
    let store = sim(&host, &disk, settings()).await;
    disk.flip_bit(FIRST, 1200);
    for number in 2..27 {
        store.delete(id(900, number), soon()).await.unwrap();
    }
    assert!(store.compact(soon()).await.unwrap() > 8192 && disk.bytes(FIRST).is_none());
    disk.restart(CrashStyle::KeepAll);
    store.shutdown().await;
    for index in [Some(&older), None, None] {
        match index {
            Some(index) => disk.put("store/index", index),
            None => drop(disk.remove(Path::new("store/index"))),
        }
        let store = sim(&host, &disk, settings()).await;
        let stat = store.stat(lost, soon()).await.unwrap();
        assert!(stat.is_pinned && stat.is_quarantined, "{stat:?} {:?}", store.opened());
        assert_eq!(store.get_bytes(lost, 900, soon()).await, Err(StorageError::Corrupt { id: lost, at: 0 }));
        // More of the journal goes, and what it says of the object is carried on.
        for number in 0..40 {
            let id = store.put_bytes(content(800, number), soon()).await.unwrap().id;
            store.delete(id, soon()).await.unwrap();
        }
        assert!(store.compact(soon()).await.unwrap() > 8192);
        store.shutdown().await;
    }
    let store = sim(&host, &disk, settings()).await;
    store.put_bytes(content(900, 1), soon()).await.unwrap();
    let stat = store.stat(lost, soon()).await.unwrap();
    assert!(stat.is_pinned && !stat.is_quarantined, "{stat:?}");
    host.shutdown().await;
}

/// Whoever puts an object that is here and rotten mends it, and is not told that it is safe.
#[tokio::test(start_paused = true)]
async fn putting_again_mends_what_nobody_has_noticed() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let builder =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let damages: [(usize, &dyn Fn()); 4] = [
        (900, &|| disk.flip_bit(FIRST, 500)),
        (5000, &|| disk.remove(Path::new("store/large/0000000000000001.dat")).unwrap()),
        (6000, &|| disk.flip_bit("store/large/0000000000000002.tree", 20)),
        (7000, &|| disk.spoil("store/large/0000000000000003.tree", 20)),
    ];
    for (size, _) in damages {
        store.put_bytes(content(size, 1), soon()).await.unwrap();
    }
    for (size, damage) in damages {
        let id = id(size, 1);
        damage();
        let stored = store.put_expect(id, Pieces::cut(&content(size, 1), 700), soon()).await.unwrap();
        assert!(!stored.existed, "{size}");
        assert_eq!(store.get_bytes(id, 9000, soon()).await.unwrap(), content(size, 1));
        assert!(store.put_bytes(content(size, 1), soon()).await.unwrap().existed, "{size}");
    }
    let text = counters(&registry);
    let told = ["corrupt_total{found_by=\"put\"} 3", "unreadable_total{found_by=\"put\"} 2"];
    assert!(told.iter().all(|told| text.contains(told)), "{text}");
    host.shutdown().await;
}

/// A read that failed once while an object was put again took it out of service for good, although nothing was wrong with it,
/// and if the put did not bring it, nobody did. Now it stays as it is, or is written anew.
#[tokio::test(start_paused = true)]
async fn a_failed_read_is_no_damage_to_what_is_put_again() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let builder =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    for size in [900, 5000] {
        let id = id(size, 1);
        store.put_bytes(content(size, 1), soon()).await.unwrap();
        disk.fail_read(1);
        assert!(store.put_expect(id, Failing(vec![content(100, 1)]), soon()).await.is_err());
        assert!(!store.stat(id, soon()).await.unwrap().is_quarantined, "{size}");
        assert_eq!(store.get_bytes(id, 9000, soon()).await.unwrap(), content(size, 1));
        // It cannot be read before nor after it has come.
        disk.fail_read(1);
        disk.fail_read(2);
        let stored = store.put_expect(id, Pieces::cut(&content(size, 1), 700), soon()).await.unwrap();
        assert!(!stored.existed, "{size}");
        assert_eq!(store.get_bytes(id, 9000, soon()).await.unwrap(), content(size, 1));
    }
    let text = counters(&registry);
    assert!(
        text.contains("unreadable_total{found_by=\"put\"} 6") && !text.contains("corrupt_total{"),
        "{text}"
    );
    host.shutdown().await;
}

/// A scrub finds what it is that the journal can no longer say, and has it written again: with nothing but the journal the
/// store is as it was.
#[tokio::test(start_paused = true)]
async fn what_the_journal_can_no_longer_say_is_written_again() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, settings()).await;
    let (large, pinned, deleted) = (id(5000, 1), id(900, 1), id(900, 2));
    store.put_bytes(content(900, 1), soon()).await.unwrap();
    store.put_bytes(content(900, 2), soon()).await.unwrap();
    for number in 10..20 {
        store.put_bytes(content(900, number), soon()).await.unwrap();
    }
    // In the second segment, and only notes.
    store.put_bytes(content(5000, 1), soon()).await.unwrap();
    store.pin(large, soon()).await.unwrap();
    store.pin(pinned, soon()).await.unwrap();
    store.delete(deleted, soon()).await.unwrap();
    for number in 20..30 {
        store.put_bytes(content(900, number), soon()).await.unwrap();
    }
    let second = "store/log/0000000000000002.seg";
    let bytes = disk.bytes(second).unwrap();
    for (what, name) in [("the file", large), ("the pin", pinned), ("the deletion", deleted)] {
        let at = bytes.windows(32).position(|window| window == name.as_bytes());
        disk.flip_bit(second, at.expect(what));
    }
    let scrubbed = store.scrub(soon()).await.unwrap();
    assert!(scrubbed.journal_damage > 0 && scrubbed.damaged.is_empty(), "{scrubbed:?}");
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(disk.bytes(second).is_none(), "that part is gone");
    assert_eq!(store.scrub(soon()).await.unwrap().journal_damage, 0);
    store.shutdown().await;
    went_down(&disk);
    let store = sim(&host, &disk, settings()).await;
    let opened = store.opened().clone();
    assert!(opened.rebuilt.is_some() && opened.damaged == 0 && opened.adopted == 0, "{opened:?}");
    assert!(store.stat(large, soon()).await.unwrap().is_pinned);
    assert!(store.stat(pinned, soon()).await.unwrap().is_pinned);
    assert!(!store.has(deleted, soon()).await.unwrap());
    assert_eq!(store.get_bytes(large, 5000, soon()).await.unwrap(), content(5000, 1));
    host.shutdown().await;
}

/// However often a store crashes before it has written its index, what has to be read again does not grow without end: what a
/// start had to read counts for the next index as what was written since.
#[tokio::test(start_paused = true)]
async fn crash_after_crash_the_index_catches_up() {
    let disk = SimDisk::new();
    let settings = Settings { small_bytes_max: 4 << 20, reserve_bytes: 0, ..Settings::default() };
    for round in 0..2 {
        let host = host();
        let store = sim(&host, &disk, settings.clone()).await;
        assert_eq!(store.opened().replayed, round * 35);
        for number in 0..35 {
            let content = vec![u8::try_from(round * 100 + number).unwrap(); 4 << 20];
            store.put_bytes(content.into(), soon()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        // 140 MiB are too few for an index; 280, of which this run wrote half, are not.
        assert_eq!(disk.bytes("store/index").is_some(), round == 1);
        disk.restart(CrashStyle::Killed);
        host.shutdown().await;
    }
    let host = host();
    let store = sim(&host, &disk, settings).await;
    assert!(store.opened().rebuilt.is_none() && store.opened().replayed < 5, "{:?}", store.opened());
    assert_eq!(store.usage().objects, 70);
    host.shutdown().await;
}

/// A node that comes back is ready soon however much it has, because what it has is not read: only the index is, and of the
/// journal no more than its last segment, which is the only one that can be torn.
#[tokio::test(flavor = "multi_thread")]
async fn opening_reads_the_index_and_one_segment_however_many_objects_there_are() {
    const OBJECTS: u64 = 20_000;
    const SEGMENT: u64 = 128 << 10;
    let (host, disk) = (host(), Hooked::default());
    let open = async |host: &Supervisor| {
        let settings =
            Settings { segment_bytes: SEGMENT as u32, small_bytes_max: 1000, ..Settings::default() };
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings).start(host).await.unwrap()
    };
    let store = open(&host).await;
    let buffered = Put { durability: Durability::Buffered, ..Put::default() };
    for number in 0..OBJECTS {
        let content = Bytes::copy_from_slice(&[&number.to_be_bytes()[..], &[7; 192]].concat());
        store.put_with(Pieces::cut(&content, 200), buffered, soon()).await.unwrap();
    }
    let segments = store.usage().disk_bytes.div_ceil(SEGMENT);
    assert!(segments > 30, "{segments} segments");
    host.shutdown().await;
    drop(store);
    let (reads, bytes) = (&disk.hooks.reads, &disk.hooks.journal_bytes);
    reads.store(0, Ordering::SeqCst);
    bytes.store(0, Ordering::SeqCst);
    let host = super::limits::host();
    let store = open(&host).await;
    let (reads, bytes) = (reads.load(Ordering::SeqCst), bytes.load(Ordering::SeqCst));
    assert_eq!(store.opened().objects, OBJECTS);
    assert!(store.opened().rebuilt.is_none() && store.opened().replayed < 5, "{:?}", store.opened());
    // Of the others the heads.
    assert!(bytes <= SEGMENT + segments * 4096, "{reads} reads, {bytes} bytes of {segments} segments");
    host.shutdown().await;
}
