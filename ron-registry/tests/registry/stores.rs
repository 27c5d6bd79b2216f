//! The two stores that come with the crate do what every store must, and the one on disk survives crashes.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    Deadline, Supervisor,
    disk::{Disk, RealDisk},
    journal::{Journal, Salts},
    sim::{CrashStyle, Fault, SimDisk},
};
use ron_registry::store::{
    Appended, Block, JournalStore, JournalStoreSettings, LogStore, MemoryStore, StoreError, StoredSnapshot,
    append, conformance,
};

fn host() -> Supervisor {
    Supervisor::builder("test").inline_blocking(true).start()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn settings() -> JournalStoreSettings {
    JournalStoreSettings { segment_bytes: 64 << 10, salts: Salts::Seeded(1) }
}

async fn open(host: &Supervisor, disk: &SimDisk) -> Result<JournalStore, StoreError> {
    JournalStore::open(host, Arc::new(disk.clone()), Path::new("log"), settings()).await
}

fn block(number: u64) -> Block {
    let entries = [0, 1].map(|half| Bytes::from(format!("{number}.{half} {}", "x".repeat(3000)))).to_vec();
    Block { entries, checkpoint: format!("checkpoint {number}").into() }
}

#[tokio::test(start_paused = true)]
async fn the_memory_conforms() {
    let host = host();
    conformance::check(&host, || async { Arc::new(MemoryStore::new()) as Arc<dyn LogStore> }).await;
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_journal_conforms() {
    let host = host();
    conformance::check(&host, || async {
        Arc::new(open(&host, &SimDisk::new()).await.unwrap()) as Arc<dyn LogStore>
    })
    .await;
    host.shutdown().await;
}

/// With threads, a real disk and real time.
#[tokio::test(flavor = "multi_thread")]
async fn the_journal_conforms_on_files() {
    let (host, dir) = (Supervisor::new("test"), tempfile::tempdir().unwrap());
    let number = std::sync::atomic::AtomicU64::new(0);
    conformance::check(&host, || async {
        let log = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let store = JournalStore::open(&host, disk, Path::new(&log), JournalStoreSettings::default()).await;
        Arc::new(store.unwrap()) as Arc<dyn LogStore>
    })
    .await;
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_is_found_again() {
    let (host, disk) = (host(), SimDisk::new());
    let store = open(&host, &disk).await.unwrap();
    for number in 0..30 {
        assert_eq!(store.append_if(number * 2, block(number), soon()).await, Ok(Appended::Yes));
    }
    let snapshot = StoredSnapshot { version: 40, parts: vec!["a".into(), "b".into()] };
    let freed = store.prune(snapshot.clone(), soon()).await.unwrap();
    let tail = store.tail(soon()).await.unwrap();
    assert!(freed > 64 << 10 && tail.first > 1 && tail.first <= 41, "{freed} {tail:?}");
    host.shutdown().await;
    drop(store);

    let host = self::host();
    let store = open(&host, &disk).await.unwrap();
    assert_eq!(store.tail(soon()).await, Ok(tail));
    assert_eq!(store.snapshot(soon()).await, Ok(Some(snapshot)));
    let read = store.read(41, 10, soon()).await.unwrap();
    assert_eq!(read, block(20).entries);
    assert_eq!(store.append_if(60, block(30), soon()).await, Ok(Appended::Yes));
    // A snapshot of everything: the last block stays.
    store.prune(StoredSnapshot { version: 62, parts: vec!["c".into()] }, soon()).await.unwrap();
    host.shutdown().await;
    drop(store);
    let host = self::host();
    let tail = open(&host, &disk).await.unwrap().tail(soon()).await.unwrap();
    assert_eq!((tail.version, tail.checkpoint), (62, Some("checkpoint 30".into())));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let (host, disk) = (host(), SimDisk::new());
    let store = open(&host, &disk).await.unwrap();
    assert_eq!(store.append_if(0, block(0), soon()).await, Ok(Appended::Yes));
    disk.capacity(Some(1));
    let mut after = 2;
    let refused = loop {
        match store.append_if(after, block(1), soon()).await {
            Ok(_) => after += 2,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StoreError::NoSpace);
    assert!(!host.ready().status().writes && host.ready().status().reads);
    assert_eq!(store.read(1, 10, soon()).await.unwrap(), block(0).entries);
    disk.capacity(None);
    assert_eq!(store.append_if(after, block(2), soon()).await, Ok(Appended::Yes));
    host.shutdown().await;
}

/// The journal is of no more use for writing after a sync that failed. What it holds is still to be had, and of the block
/// that was being written nobody says that it is not there.
#[tokio::test(start_paused = true)]
async fn a_sync_that_failed_leaves_a_doubt_and_the_readers() {
    let mut doubts = 0;
    for call in 1..=3 {
        let (host, disk) = (host(), SimDisk::new());
        let store = open(&host, &disk).await.unwrap();
        for number in 0..3 {
            assert_eq!(store.append_if(number * 2, block(number), soon()).await, Ok(Appended::Yes));
        }
        disk.fail_call(call, Fault::Io);
        let outcome = append(&store, 6, &block(3), soon()).await;
        let Err(error) = outcome else { continue };
        assert!(error.is_unknown(), "call {call}: {error:?}");
        doubts += 1;
        let again = append(&store, 6, &block(3), soon()).await;
        assert!(again.is_err(), "{again:?}");
        for number in 0..3 {
            assert_eq!(store.read(number * 2 + 1, 2, soon()).await.unwrap(), block(number).entries);
        }
        host.shutdown().await;
    }
    assert!(doubts > 0);
}

/// Damage in every part of a record is damage, and is never taken for something that was pruned.
#[tokio::test(start_paused = true)]
async fn a_damaged_record_is_not_a_pruned_one() {
    let (host, disk) = (host(), SimDisk::new());
    let store = open(&host, &disk).await.unwrap();
    for number in 0..30 {
        assert_eq!(store.append_if(number * 2, block(number), soon()).await, Ok(Appended::Yes));
    }
    store.prune(StoredSnapshot { version: 40, parts: vec!["a".into()] }, soon()).await.unwrap();
    assert!(store.tail(soon()).await.unwrap().first > 1);
    let files = Disk::list(&disk, Path::new("log")).unwrap();
    let text = "25.0 xxx".as_bytes();
    let found = files.iter().find_map(|file| {
        let path = Path::new("log").join(&file.name);
        let bytes = disk.bytes(&path)?;
        bytes.windows(text.len()).position(|window| window == text).map(|at| (path, at))
    });
    let (path, at) = found.unwrap();
    // The head of the record, that of the block, its entries, and its checkpoint.
    let mut is_damaged = 0;
    for offset in (at - 50..at + 20).chain(at + 6000..at + 6030) {
        disk.flip_bit(&path, offset);
        match store.read(51, 2, soon()).await {
            Ok(entries) => assert_eq!(entries, block(25).entries, "offset {offset}"),
            Err(StoreError::Damaged { message }) => {
                assert!(message.contains("version 51"), "{message}");
                is_damaged += 1;
            }
            other => panic!("offset {offset}: {other:?}"),
        }
        disk.flip_bit(&path, offset);
    }
    assert!(is_damaged > 80, "{is_damaged}");
    assert_eq!(store.read(51, 2, soon()).await.unwrap(), block(25).entries);
    host.shutdown().await;
}

/// A segment that says it goes to the end of numbers is refused, and nothing overflows.
#[tokio::test(start_paused = true)]
async fn versions_beyond_all_sense_are_damage() {
    let entries = [2u64 << 62, (2 << 62) + 1, u64::MAX - 1, u64::MAX];
    for version in entries {
        for kind in [1u8, 2] {
            let (host, disk) = (host(), SimDisk::new());
            let settings = ron_core::journal::Settings {
                name: "registry.log",
                salts: Salts::Seeded(1),
                ..ron_core::journal::Settings::default()
            };
            let disk_of = Arc::new(disk.clone());
            let (journal, _) = Journal::open(&host, disk_of, Path::new("log"), settings).await.unwrap();
            let block: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 3, 0, 1, b'x'];
            let part: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 1, b'x'];
            let rest = if kind == 1 { block } else { part };
            let payload = [&version.to_be_bytes(), rest].concat();
            journal.append(kind, payload.into(), soon()).await.unwrap();
            host.shutdown().await;
            drop(journal);
            let host = self::host();
            let opened = open(&host, &disk).await;
            // One at the limit follows nothing, and no snapshot covers what would be before it.
            assert!(
                matches!(opened, Err(StoreError::Damaged { .. })) || (kind == 2 && version == 1 << 63),
                "{version} {kind}: {opened:?}"
            );
            host.shutdown().await;
        }
    }
}

/// A caller that gives up leaves a doubt behind; whoever comes next finds out.
#[tokio::test]
async fn an_append_that_was_given_up_is_settled() {
    let (host, dir) = (Supervisor::new("test"), tempfile::tempdir().unwrap());
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let store =
        JournalStore::open(&host, disk, Path::new("log"), JournalStoreSettings::default()).await.unwrap();
    let mut appended = 0;
    for number in 0..40 {
        let given_up = store.append_if(appended, block(number), Deadline::after(Duration::ZERO)).await;
        assert!(given_up.is_err() || given_up == Ok(Appended::Yes), "{given_up:?}");
        let tail = store.tail(soon()).await.unwrap().version;
        assert!(tail == appended || tail == appended + 2, "all or nothing");
        if tail > appended {
            assert_eq!(store.read(appended + 1, 9, soon()).await.unwrap(), block(number).entries);
        }
        appended = tail;
        assert_eq!(store.append_if(appended, block(100), soon()).await, Ok(Appended::Yes));
        appended += 2;
    }
    host.shutdown().await;
}

/// Power fails at every call of the disk in turn, in three ways, and again while it is opened: what was acknowledged is
/// there, in order, and of what was not a whole block or nothing.
#[tokio::test(start_paused = true)]
async fn every_crash_leaves_whole_blocks() {
    /// Appends and prunes until the power fails; says how many blocks were acknowledged, and which snapshot.
    async fn program(disk: &SimDisk) -> (u64, u64) {
        let host = host();
        let (mut acknowledged, mut kept) = (0, 0);
        if let Ok(store) = open(&host, disk).await {
            for number in 0..24 {
                match store.append_if(number * 2, block(number), soon()).await {
                    Ok(Appended::Yes) => acknowledged = number + 1,
                    _ => break,
                }
                if number % 8 == 7 {
                    let parts = vec!["one".into(), "two".into()];
                    match store.prune(StoredSnapshot { version: number, parts }, soon()).await {
                        Ok(_) => kept = number,
                        Err(_) => break,
                    }
                }
            }
        }
        host.shutdown().await;
        (acknowledged, kept)
    }

    async fn check(disk: &SimDisk, (acknowledged, kept): (u64, u64), at: &str) {
        let host = host();
        let store = open(&host, disk).await.unwrap_or_else(|error| panic!("{at}: {error}"));
        let tail = store.tail(soon()).await.unwrap();
        assert!(tail.version >= acknowledged * 2 && tail.version % 2 == 0, "{at}: {tail:?}");
        assert!(tail.version <= acknowledged * 2 + 2, "{at}: {tail:?} after {acknowledged}");
        let mut version = tail.first;
        while version <= tail.version {
            let entries = store.read(version, 2, soon()).await.unwrap();
            assert_eq!(entries, block((version - 1) / 2).entries, "{at}");
            version += 2;
        }
        let snapshot = store.snapshot(soon()).await.unwrap();
        assert!(snapshot.as_ref().map_or(0, |kept| kept.version) >= kept, "{at}: {snapshot:?}");
        assert!(tail.first <= snapshot.map_or(0, |kept| kept.version) + 1, "{at}");
        host.shutdown().await;
    }

    let disk = SimDisk::new();
    program(&disk).await;
    let calls = disk.calls();
    for call in 1..=calls {
        let disk = SimDisk::new();
        disk.crash_at_call(call);
        let done = program(&disk).await;
        for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: call }] {
            let once = disk.fork();
            once.restart(style);
            check(&once, done, &format!("call {call} of {calls}, {style:?}")).await;
            // And once more, while it is being opened.
            let twice = disk.fork();
            twice.restart(style);
            twice.crash_at_call(twice.calls() + 1 + call % 7);
            let host = host();
            let _ = open(&host, &twice).await;
            host.shutdown().await;
            twice.restart(style);
            check(&twice, done, &format!("call {call} of {calls}, {style:?}, twice")).await;
        }
    }
    println!("{calls} calls");
}
