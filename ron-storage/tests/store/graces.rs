//! Whoever puts has the grace to pin, however the object came.

use std::{sync::Arc, time::Duration};

use ron_core::{Deadline, sim::SimDisk};
use ron_storage::{Gc, Settings, Store};

use super::{
    limits::{host, sim},
    world::{content, pipe, soon},
};

const GRACE: Duration = Duration::from_secs(100);

fn settings() -> Settings {
    Settings {
        small_bytes_max: 1000,
        segment_bytes: 8192,
        reserve_bytes: 0,
        collect_grace: GRACE,
        ..Settings::default()
    }
}

async fn collected(store: &Store) -> u64 {
    store.gc(Gc::new(), soon()).await.unwrap().objects
}

#[tokio::test(start_paused = true)]
async fn what_is_put_again_is_young_again() {
    let (host, disk) = (host(), SimDisk::new());
    let store = sim(&host, &disk, settings()).await;
    for size in [10, 5000] {
        let id = store.put_bytes(content(size, 1), soon()).await.unwrap().id;
        tokio::time::sleep(GRACE * 2).await;
        assert!(store.put_bytes(content(size, 1), soon()).await.unwrap().existed);
        assert_eq!(collected(&store).await, 0);
        tokio::time::sleep(GRACE - Duration::from_secs(5)).await;
        assert!(store.put_expect(id, super::world::Stuck, soon()).await.unwrap().existed);
        tokio::time::sleep(GRACE - Duration::from_secs(5)).await;
        assert_eq!(collected(&store).await, 0);
        tokio::time::sleep(GRACE * 2).await;
        assert_eq!(collected(&store).await, 1);
        assert!(!store.has(id, soon()).await.unwrap());
    }
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_takes_longer_than_the_grace_can_be_pinned() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings { idle_timeout: GRACE, ..settings() };
    let store = Arc::new(sim(&host, &disk, settings).await);
    let (feed, source) = pipe();
    let putting = store.put(source, Deadline::after(GRACE * 20));
    let feeding = async {
        for number in 0..10 {
            feed.send(content(9000, number));
            tokio::time::sleep(GRACE / 2).await;
        }
        drop(feed);
    };
    let (stored, ()) = tokio::join!(putting, feeding);
    let id = stored.unwrap().id;
    assert_eq!(collected(&store).await, 0);
    tokio::time::sleep(GRACE / 2).await;
    assert_eq!(collected(&store).await, 0);
    assert!(store.pin(id, soon()).await.unwrap());
    host.shutdown().await;
}
