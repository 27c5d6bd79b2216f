//! Many at once, called off at any moment, while the store collects and compacts under them.
//!
//! Each writer has objects of its own, so that it knows what is owed for them; whoever is called off is owed either. At the end
//! a crash, a clean stop and the loss of the index must all come to the same.

#![allow(clippy::disallowed_methods, reason = "callers beside the store, as a host has them")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Supervisor,
    disk::Disk as _,
    sim::{CrashStyle, SimDisk},
};
use ron_storage::{Durability, Gc, Put, Settings, StorageError, Store};

use super::world::{Pieces, content, soon};

const WRITERS: u64 = 4;
const OBJECTS: u64 = 6;
const STEPS: u64 = 80;

fn settings() -> Settings {
    Settings {
        small_bytes_max: 700,
        segment_bytes: 4096,
        garbage_max: 0.2,
        reserve_bytes: 0,
        collect_grace: Duration::ZERO,
        upkeep_bytes_per_second: 1 << 30,
        ..Settings::default()
    }
}

fn object(number: u64) -> Bytes {
    content([64, 700, 300, 701, 90_000, 5][usize::try_from(number % 6).unwrap()], number)
}

fn id(number: u64) -> ContentId {
    ContentId::of(&object(number))
}

/// What is owed for an object; nothing where somebody was called off.
#[derive(Debug, Clone, Copy, Default)]
struct Owed {
    there: Option<bool>,
    pinned: Option<bool>,
    /// Whether a crash may take it.
    is_buffered: bool,
}

async fn open(disk: &SimDisk) -> (Supervisor, Store) {
    let host = Supervisor::new("host");
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(settings());
    let store = builder.start(&host).await.unwrap();
    (host, store)
}

/// Half of the time the work is called off, somewhere on its way.
async fn shaken<T>(rng: &mut fastrand::Rng, work: impl Future<Output = T>) -> Option<T> {
    let patience = Duration::from_micros(rng.u64(0..400));
    if rng.bool() { Some(work.await) } else { tokio::time::timeout(patience, work).await.ok() }
}

async fn write(store: Store, writer: u64, seed: u64) -> BTreeMap<u64, Owed> {
    let mut rng = fastrand::Rng::with_seed(seed * 100 + writer);
    let absent = Owed { there: Some(false), pinned: Some(false), is_buffered: false };
    let mut told: BTreeMap<u64, Owed> =
        (0..OBJECTS).map(|number| (writer * OBJECTS + number, absent)).collect();
    for _ in 0..STEPS {
        let number = writer * OBJECTS + rng.u64(0..OBJECTS);
        let before = told[&number];
        let now = match rng.u32(0..10) {
            0..=4 => {
                let durability = if rng.bool() { Durability::Durable } else { Durability::Buffered };
                let put = Put { durability, pin: rng.u32(0..4) == 0, ..Put::default() };
                let source = Pieces::cut(&object(number), 30_000);
                match shaken(&mut rng, store.put_with(source, put, soon())).await {
                    Some(stored) => {
                        let stored = stored.unwrap();
                        assert_eq!(stored.id, id(number));
                        let is_right = before.there.is_none_or(|there| there == stored.existed);
                        assert!(is_right, "object {number}: {before:?} and then {stored:?}");
                        let was_safe = before.there == Some(true) && !before.is_buffered;
                        let is_buffered = durability == Durability::Buffered && !was_safe;
                        let pinned = if put.pin { Some(true) } else { before.pinned };
                        Owed { there: Some(true), pinned, is_buffered }
                    }
                    None => Owed {
                        there: before.there.filter(|there| *there),
                        pinned: before.pinned.filter(|pinned| *pinned || !put.pin),
                        ..before
                    },
                }
            }
            5..=6 => match shaken(&mut rng, store.delete(id(number), soon())).await {
                Some(Ok(existed)) => {
                    assert!(before.there.is_none_or(|there| there == existed), "{number}: {before:?}");
                    absent
                }
                Some(Err(StorageError::Pinned { .. })) => {
                    assert_ne!(before.pinned, Some(false), "{number}: {before:?}");
                    Owed { there: Some(true), pinned: Some(true), is_buffered: before.is_buffered }
                }
                Some(Err(error)) => panic!("{number}: {error}"),
                // A pinned one cannot have gone.
                None if before.pinned == Some(true) => before,
                None => Owed {
                    there: before.there.filter(|there| !*there),
                    pinned: before.pinned.filter(|pinned| !*pinned),
                    ..before
                },
            },
            7..=8 => {
                let pins = rng.bool();
                let work = async {
                    if pins {
                        store.pin(id(number), soon()).await
                    } else {
                        store.unpin(id(number), soon()).await
                    }
                };
                match shaken(&mut rng, work).await {
                    Some(Ok(_)) => Owed { there: Some(true), pinned: Some(pins), ..before },
                    Some(Err(StorageError::NotFound { .. })) => {
                        assert_ne!(before.there, Some(true), "{number}: {before:?}");
                        absent
                    }
                    Some(Err(error)) => panic!("{number}: {error}"),
                    None => Owed { pinned: before.pinned.filter(|pinned| *pinned == pins), ..before },
                }
            }
            _ => {
                let other = rng.u64(0..WRITERS * OBJECTS);
                match shaken(&mut rng, store.get_bytes(id(other), 1 << 20, soon())).await {
                    Some(Ok(bytes)) => assert_eq!(bytes, object(other), "{other}"),
                    Some(Err(StorageError::NotFound { .. } | StorageError::Busy { .. })) | None => {}
                    Some(Err(error)) => panic!("{other}: {error}"),
                }
                continue;
            }
        };
        told.insert(number, now);
    }
    told
}

/// Everything there is and whether it is pinned, once it is what is owed.
async fn check(
    store: &Store,
    disk: &SimDisk,
    told: &BTreeMap<u64, Owed>,
    when: &str,
) -> Vec<(ContentId, bool)> {
    let page = store.list(None, 1000, soon()).await.unwrap();
    let found: BTreeMap<ContentId, bool> =
        page.objects.iter().map(|object| (object.id, object.is_pinned)).collect();
    let is_crash = when == "after a crash";
    for (number, owed) in told {
        let there = found.get(&id(*number));
        let may_be_lost = is_crash && owed.is_buffered;
        let is_owed = owed.there.filter(|there| !*there || !may_be_lost);
        assert!(is_owed.is_none_or(|owed| owed == there.is_some()), "{when}, {number}: {owed:?}, {there:?}");
        if let (Some(found), Some(pinned)) = (there, owed.pinned.filter(|_| is_owed == Some(true))) {
            assert_eq!(*found, pinned, "{when}, {number}: {owed:?}");
        }
        if there.is_some() {
            let got = store.get_bytes(id(*number), 1 << 20, soon()).await.unwrap();
            assert_eq!(got, object(*number), "{when}, {number}");
        }
    }
    let names: BTreeSet<ContentId> = told.keys().map(|number| id(*number)).collect();
    let large = page.objects.iter().filter(|object| object.len > 700).count();
    if when != "at the end" {
        assert_eq!(disk.list(Path::new("store/large")).unwrap().len(), 2 * large, "{when}");
    }
    assert_eq!(page.objects.iter().filter(|object| object.is_quarantined).count(), 0, "{when}");
    found.into_iter().filter(|(id, _)| names.contains(id)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_called_off_the_journal_and_the_table_agree() {
    let rounds = std::env::var("RON_SHAKES").map_or(4, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        let disk = SimDisk::new();
        let (host, store) = open(&disk).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let kept: BTreeSet<ContentId> = (0..WRITERS * OBJECTS).map(id).collect();
        // Garbage for the keeper, and the keeper's work.
        let upkeep = {
            let (store, is_over) = (store.clone(), Arc::clone(&is_over));
            async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..5 {
                        store.put_bytes(content(600, rng.u64(1 << 32..)), soon()).await.unwrap();
                    }
                    let kept = kept.clone();
                    let _ =
                        shaken(&mut rng, store.gc(Gc::new().keep(move |id| kept.contains(id)), soon())).await;
                    let _ = shaken(&mut rng, store.compact(soon())).await;
                }
            }
        };
        let mut writers = tokio::task::JoinSet::new();
        let watched = tokio::task::JoinSet::from_iter([upkeep]);
        for writer in 0..WRITERS {
            writers.spawn(write(store.clone(), writer, seed));
        }
        let mut told = BTreeMap::new();
        while let Some(done) = writers.join_next().await {
            told.extend(done.unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
        watched.join_all().await;

        let crashed = disk.fork();
        check(&store, &disk, &told, "at the end").await;
        crashed.restart(CrashStyle::LoseUnsynced);
        let (other, after) = open(&crashed).await;
        check(&after, &crashed, &told, "after a crash").await;
        other.shutdown().await;
        host.shutdown().await;

        let (host, store) = open(&disk).await;
        assert!(store.opened().rebuilt.is_none(), "{:?}", store.opened());
        let found = check(&store, &disk, &told, "after a stop").await;
        assert!(store.scrub(soon()).await.unwrap().damaged.is_empty());
        host.shutdown().await;
        disk.remove(Path::new("store/index")).unwrap();
        let (host, store) = open(&disk).await;
        assert!(store.opened().rebuilt.is_some());
        assert_eq!(check(&store, &disk, &told, "without its index").await, found, "seed {seed}");
        host.shutdown().await;
    }
}
