//! Large objects that are made durable, and others that come in meanwhile.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ron_core::{Supervisor, TaskSpec};
use ron_storage::{Settings, Store};

use super::{
    hooked::Hooked,
    world::{Pieces, content, pipe, soon},
};

/// Four objects whose syncs take long keep nobody else from writing, and none of them fails for it.
#[tokio::test(flavor = "multi_thread")]
async fn syncs_do_not_hold_up_those_who_stream_in() {
    let (host, callers, disk) = (Supervisor::new("host"), Supervisor::new("callers"), Hooked::default());
    let write_timeout = Duration::from_millis(100);
    let settings = Settings { small_bytes_max: 1000, reserve_bytes: 0, write_timeout, ..Settings::default() };
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(settings);
    let store = builder.start(&host).await.unwrap();
    disk.hooks.hold_syncs(true);
    let put = |number: u64| {
        let store = store.clone();
        callers.spawn(TaskSpec::new("test", "writer"), move |_| async move {
            store.put(Pieces::cut(&content(100_000, number), 9000), soon()).await.unwrap();
        })
    };
    let mut puts: Vec<_> = (0..6).map(put).collect();
    while disk.hooks.syncing.load(Ordering::SeqCst) < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (feed, source) = pipe();
    let streaming = {
        let store = store.clone();
        callers.spawn(TaskSpec::new("test", "writer"), move |_| async move {
            store.put(source, soon()).await.unwrap();
        })
    };
    // Each piece has longer than the disk may take, while all syncs stand still.
    for number in 0..5 {
        feed.send(content(200_000, 100 + number));
        tokio::time::sleep(write_timeout / 2).await;
    }
    drop(feed);
    disk.hooks.hold_syncs(false);
    puts.push(streaming);
    for put in puts {
        put.ended().await;
    }
    assert_eq!(store.usage().objects, 7);
    host.shutdown().await;
}

/// What is long is synced while it comes in.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_object_is_synced_on_the_way() {
    let (host, callers, disk) = (Supervisor::new("host"), Supervisor::new("callers"), Hooked::default());
    let builder = Store::builder().data(Arc::new(disk.clone()), "store");
    let store = builder.start(&host).await.unwrap();
    disk.hooks.hold_syncs(true);
    let (feed, source) = pipe();
    let putting = {
        let store = store.clone();
        callers.spawn(TaskSpec::new("test", "writer"), move |_| async move {
            assert_eq!(store.put(source, soon()).await.unwrap().len, 66 << 20);
        })
    };
    for number in 0..66 {
        feed.send(content(1 << 20, number));
    }
    while disk.hooks.syncing.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.hooks.hold_syncs(false);
    drop(feed);
    putting.ended().await;
    assert_eq!(store.usage().objects, 1);
    host.shutdown().await;
}
