//! Puts that are called off while they are being committed.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use ron_core::ContentId;
use ron_storage::{Settings, Store};

use super::{
    hooked::Hooked,
    limits::host,
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
