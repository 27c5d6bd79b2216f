//! Puts that are called off while they are being committed.

use std::{path::Path, pin::pin, sync::Arc, sync::atomic::Ordering, time::Duration};

use ron_core::{ContentId, disk::Disk as _, sim::SimDisk};
use ron_storage::{Settings, Store};

use super::{
    hooked::Hooked,
    limits::{host, sim},
    world::{content, soon},
};

const CALLED_OFF: u64 = 500;

/// However many they are, the journal is read once to find out what became of them, while others write on.
#[tokio::test(start_paused = true)]
async fn all_doubts_are_settled_with_one_look() {
    let (host, disk) = (host(), Hooked::default());
    let hooks = Arc::clone(&disk.hooks);
    let settings = Settings { reserve_bytes: 0, ..Settings::default() };
    let store = Store::builder().data(Arc::new(disk), "store").settings(settings).start(&host).await.unwrap();
    for number in 0..CALLED_OFF {
        let put = store.put_bytes(content(900, number), soon());
        // Asked once, which sends it to the writer, and then given up.
        assert!(tokio::time::timeout(Duration::ZERO, put).await.is_err());
        store.put_bytes(content(900, 10_000 + number), soon()).await.unwrap();
    }
    let before = hooks.reads.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let settling = hooks.reads.load(Ordering::SeqCst) - before;
    assert!((1..50).contains(&settling), "{settling} reads");
    let before = hooks.reads.load(Ordering::SeqCst);
    for number in 0..CALLED_OFF {
        store.delete(ContentId::of(&content(900, number)), soon()).await.unwrap();
    }
    assert_eq!(hooks.reads.load(Ordering::SeqCst), before, "nobody had to look again");
    assert_eq!(store.usage().objects, CALLED_OFF);
    host.shutdown().await;
}

/// A put that is called off at any of its steps, right before a stop: the stop is clean all the same, and nothing is left of the
/// object, or all of it.
#[tokio::test(start_paused = true)]
async fn a_put_that_is_called_off_leaves_a_clean_stop() {
    let settings = Settings { small_bytes_max: 1000, reserve_bytes: 0, ..Settings::default() };
    let mut ends = [0, 0];
    for polls in 0.. {
        let (host, disk) = (self::host(), SimDisk::new());
        let store = sim(&host, &disk, settings.clone()).await;
        let mut stored = None;
        {
            let mut put = pin!(store.put_bytes(content(90_000, 1), soon()));
            for _ in 0..polls {
                stored = tokio::select! {
                    biased;
                    stored = &mut put => Some(stored.unwrap()),
                    () = std::future::ready(()) => None,
                };
                if stored.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        host.shutdown().await;
        let host = self::host();
        let store = sim(&host, &disk, settings.clone()).await;
        let objects = store.usage().objects;
        assert!(store.opened().was_clean && store.opened().swept == 0, "{polls}: {:?}", store.opened());
        let files = disk.list(Path::new("store/large")).unwrap().len();
        assert_eq!(files as u64, 2 * objects, "{polls}");
        host.shutdown().await;
        ends[usize::try_from(objects).unwrap()] += 1;
        if stored.is_some() {
            assert_eq!(objects, 1);
            break;
        }
    }
    assert!(ends[0] > 2 && ends[1] > 1, "{ends:?}");
}
