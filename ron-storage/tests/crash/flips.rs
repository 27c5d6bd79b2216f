//! Any bit of any file flips: nothing wrong is ever returned, and a scrub finds what is no longer whole.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use proptest::prelude::*;
use ron_core::{ContentId, Deadline, Supervisor, disk::Disk as _, sim::SimDisk};
use ron_storage::{Settings, StorageError, Store};

fn settings() -> Settings {
    Settings {
        small_bytes_max: 1000,
        segment_bytes: 8192,
        reserve_bytes: 0,
        upkeep_bytes_per_second: 1 << 40,
        ..Settings::default()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

fn content(number: u64) -> Bytes {
    let len = [10, 999, 70_000, 300, 140_000, 0, 800, 1001][usize::try_from(number % 8).unwrap()];
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

async fn open(disk: &SimDisk) -> (Supervisor, Result<Store, StorageError>) {
    let host = Supervisor::builder("host").inline_blocking(true).start();
    let started = Store::builder()
        .data(Arc::new(disk.clone()), "store")
        .seed(3)
        .settings(settings())
        .start(&host)
        .await;
    (host, started)
}

/// A store with objects of all kinds, stopped cleanly, and its files.
fn made() -> (SimDisk, Vec<(PathBuf, usize)>) {
    let disk = SimDisk::new();
    super::enumerate::run(async {
        let (host, store) = open(&disk).await;
        let store = store.unwrap();
        for number in 0..24 {
            store.put_bytes(content(number), soon()).await.unwrap();
        }
        for number in [1, 2, 9] {
            store.delete(ContentId::of(&content(number)), soon()).await.unwrap();
        }
        store.pin(ContentId::of(&content(4)), soon()).await.unwrap();
        host.shutdown().await;
    });
    let mut files = Vec::new();
    for dir in ["store", "store/log", "store/large"] {
        for entry in disk.list(Path::new(dir)).unwrap() {
            if entry.is_file && entry.len > 0 {
                files.push((Path::new(dir).join(entry.name), usize::try_from(entry.len).unwrap()));
            }
        }
    }
    (disk, files)
}

/// Reads everything and complains about a wrong byte, or about damage that a scrub does not see.
async fn check(store: &Store) -> Result<(), String> {
    let expected: BTreeMap<ContentId, Bytes> =
        (0..24).map(content).map(|content| (ContentId::of(&content), content)).collect();
    let mut damaged = Vec::new();
    for (id, content) in &expected {
        match store.get_bytes(*id, u64::MAX, soon()).await {
            Ok(got) if got == *content => {}
            Ok(_) => return Err(format!("{id}: wrong bytes")),
            Err(StorageError::NotFound { .. }) => {}
            Err(StorageError::Corrupt { .. }) => damaged.push(*id),
            Err(error) => return Err(format!("{id}: {error}")),
        }
    }
    let scrubbed = store.scrub(soon()).await.map_err(|error| error.to_string())?;
    if damaged.iter().any(|id| !scrubbed.damaged.contains(id)) {
        return Err(format!("read found {damaged:?}, scrub {:?}", scrubbed.damaged));
    }
    Ok(())
}

fn flip(disk: &SimDisk, path: &Path, bit: usize) {
    let mut bytes = disk.bytes(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    disk.put(path, &bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("RON_FLIPS").ok().and_then(|cases| cases.parse().ok()).unwrap_or(96)
    ))]

    #[test]
    fn no_flipped_bit_is_served(file in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>()) {
        let (disk, files) = made();
        let (path, len) = file.get(&files);
        let bit = bit.index(len * 8);
        flip(&disk, path, bit);
        let result = super::enumerate::run(async {
            let (host, store) = open(&disk).await;
            let checked = match &store {
                Ok(store) => check(store).await,
                // Only the file that says what the directory is may keep it from opening.
                Err(_) if path.ends_with("STORE") => Ok(()),
                Err(error) => Err(format!("open: {error}")),
            };
            let is_whole = match &store {
                Ok(store) => store.scrub(soon()).await.is_ok_and(|scrubbed| scrubbed.damaged.is_empty()),
                Err(_) => true,
            };
            host.shutdown().await;
            (checked, is_whole)
        });
        prop_assert_eq!(&result.0, &Ok(()), "{:?} bit {}", path, bit);
        // Every bit of a large object and its tree matters.
        if path.starts_with("store/large") {
            prop_assert!(!result.1, "{:?} bit {}: the scrub did not see it", path, bit);
        }
    }

    /// The same while the store runs, behind its back.
    #[test]
    fn no_bit_that_flips_later_is_served(file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        let (disk, files) = made();
        let files: Vec<_> = files.into_iter().filter(|(path, _)| !path.starts_with("store/index")).collect();
        let (path, len) = file.get(&files);
        let checked = super::enumerate::run(async {
            let (host, store) = open(&disk).await;
            let store = store.unwrap();
            disk.flip_bit(path, at.index(*len));
            let checked = check(&store).await;
            host.shutdown().await;
            checked
        });
        prop_assert_eq!(checked, Ok(()), "{:?}", path);
    }

    /// The machine goes down and the index is lost: a bit of the journal costs no large object, whatever it said.
    #[test]
    fn no_flipped_bit_of_the_journal_costs_a_large_object(file in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>()) {
        let (disk, files) = made();
        let files: Vec<_> = files.into_iter().filter(|(path, _)| path.starts_with("store/log")).collect();
        let (path, len) = file.get(&files);
        let bit = bit.index(len * 8);
        flip(&disk, path, bit);
        disk.remove(Path::new("store/index")).unwrap();
        disk.put("store/OPEN", b"");
        let lost = super::enumerate::run(async {
            let (host, store) = open(&disk).await;
            let store = store.unwrap();
            let mut lost = Vec::new();
            for number in (0..24).filter(|number| content(*number).len() > 1000 && *number != 2) {
                let content = content(number);
                if store.get_bytes(ContentId::of(&content), u64::MAX, soon()).await.as_ref() != Ok(&content) {
                    lost.push(number);
                }
            }
            host.shutdown().await;
            lost
        });
        prop_assert_eq!(lost, Vec::<u64>::new(), "{:?} bit {}", path, bit);
    }
}
