//! Put, get, list, pin, collect: what a store is for, in memory and on disk alike.

use std::time::Duration;

use ron_core::{ContentId, Supervisor};
use ron_storage::{Durability, Gc, Put, Settings, StorageError};

use super::world::{Pieces, Place, content, soon};

/// As collections see it, everything is old at once.
fn settings() -> Settings {
    Settings {
        collect_grace: Duration::ZERO,
        small_bytes_max: 4096,
        segment_bytes: 64 << 10,
        ..Settings::default()
    }
}

#[tokio::test]
async fn what_is_put_is_got_and_listed_and_collected() {
    for place in Place::all() {
        let host = Supervisor::new("host");
        let store = place.builder().settings(settings()).start(&host).await.unwrap();
        let stored = store.put(Pieces::of(["hel", "", "lo"]), soon()).await.unwrap();
        assert_eq!(stored.id, ContentId::of(b"hello"));
        assert_eq!(stored.durability, place.durability());
        assert_eq!(store.get_bytes(stored.id, 5, soon()).await.unwrap(), "hello");
        let mut reader = store.get(stored.id, 1..3, soon()).await.unwrap();
        assert_eq!(reader.next().await.unwrap().unwrap(), "el");
        assert_eq!(reader.next().await.unwrap(), None);
        assert_eq!(store.get(stored.id, 6.., soon()).await.unwrap_err(), StorageError::Range { len: 5 });

        let other = Put { pin: true, ..Put::default() };
        let pinned = store.put_with(Pieces::of(["pinned"]), other, soon()).await.unwrap();
        assert_eq!(store.delete(pinned.id, soon()).await, Err(StorageError::Pinned { id: pinned.id }));
        let page = store.list(None, 1, soon()).await.unwrap();
        let rest = store.list(page.next, 1, soon()).await.unwrap();
        assert_eq!((page.objects.len(), rest.objects.len(), rest.next), (1, 1, None));
        let wrong = store.put_expect(ContentId::of(b"x"), Pieces::of(["other"]), soon()).await;
        let (expected, actual) = (ContentId::of(b"x"), ContentId::of(b"other"));
        assert_eq!(wrong, Err(StorageError::Mismatch { expected, actual }));

        let would = store.gc(Gc::new().dry_run(), soon()).await.unwrap();
        let collected = store.gc(Gc::new(), soon()).await.unwrap();
        assert_eq!((collected.objects, collected.bytes, collected.kept), (1, 5, 1));
        assert_eq!(would, collected);
        assert!(!store.has(stored.id, soon()).await.unwrap() && store.has(pinned.id, soon()).await.unwrap());
        host.shutdown().await;
        assert_eq!(store.stat(pinned.id, soon()).await.unwrap_err(), StorageError::Canceled);
    }
}

#[tokio::test]
async fn objects_of_every_size_come_back_whole_and_in_part() {
    for place in Place::all() {
        let host = Supervisor::new("host");
        let store = place.builder().settings(settings()).start(&host).await.unwrap();
        for size in [0, 1, 4095, 4096, 4097, 65_536, 65_537, 1 << 20, (3 << 20) + 17] {
            let content = content(size, 7);
            let id = ContentId::of(&content);
            let stored = store.put(Pieces::cut(&content, 50_000), soon()).await.unwrap();
            assert_eq!((stored.id, stored.len, stored.existed), (id, size as u64, false));
            assert!(store.put_bytes(content.clone(), soon()).await.unwrap().existed);
            assert_eq!(store.get_bytes(id, u64::MAX, soon()).await.unwrap(), content, "{size}");
            let (from, to) = (size / 3, size / 3 * 2);
            let mut reader = store.get(id, from as u64..to as u64, soon()).await.unwrap();
            let mut part = Vec::new();
            while let Some(bytes) = reader.next().await.unwrap() {
                assert!(bytes.len() <= 1 << 20);
                part.extend_from_slice(&bytes);
            }
            assert_eq!(part, content[from..to], "{size}");
            let known = Put { expect: Some(id), ..Put::default() };
            // Nothing is read of what is known to be here.
            let known = store.put_with(Pieces::of(["something else"]), known, soon()).await.unwrap();
            assert!(known.existed && known.len == size as u64);
        }
        let buffered = Put { durability: Durability::Buffered, ..Put::default() };
        for size in [10, 100_000] {
            let stored = store.put_with(Pieces::cut(&content(size, 9), 999), buffered, soon()).await.unwrap();
            assert_eq!(stored.durability, Durability::Buffered);
            let again = store.put_bytes(content(size, 9), soon()).await.unwrap();
            assert_eq!((again.existed, again.durability), (true, place.durability()));
        }
        host.shutdown().await;
        place.check_no_leftovers(&[4097, 65_536, 65_537, 1 << 20, (3 << 20) + 17, 100_000]);
    }
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let place = Place::real();
    let large = content(200_000, 1);
    for round in 0..3 {
        let host = Supervisor::new("host");
        let store = place.builder().settings(settings()).start(&host).await.unwrap();
        assert_eq!(store.opened().objects, 11 * round);
        assert!(store.opened().was_clean && !store.opened().was_torn, "{:?}", store.opened());
        assert_eq!(store.opened().rebuilt.is_some(), round == 0, "{:?}", store.opened());
        for old in 0..round {
            for number in 0..10u64 {
                let id = ContentId::of(&content(1000, old * 100 + number));
                assert_eq!(store.get_bytes(id, 1000, soon()).await.unwrap().len(), 1000);
                assert_eq!(store.stat(id, soon()).await.unwrap().is_pinned, number == 3);
            }
            let mut last = large.to_vec();
            last.push(u8::try_from(old).unwrap());
            assert_eq!(store.get_bytes(ContentId::of(&last), u64::MAX, soon()).await.unwrap(), last);
        }
        for number in 0..11u64 {
            let stored = store.put_bytes(content(1000, round * 100 + number), soon()).await.unwrap();
            if number == 3 {
                assert!(store.pin(stored.id, soon()).await.unwrap());
            }
            if number == 10 {
                assert!(store.delete(stored.id, soon()).await.unwrap());
                assert!(!store.delete(stored.id, soon()).await.unwrap());
            }
        }
        let mut last = large.to_vec();
        last.push(u8::try_from(round).unwrap());
        store.put_bytes(last.into(), soon()).await.unwrap();
        host.shutdown().await;
    }
}
