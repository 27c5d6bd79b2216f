//! The five promises that every subsystem of the family keeps, and what a killed worker does to a stream.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use ron_core::{
    CallError, Deadline, Phase, Supervisor, TaskSpec, now, prometheus_client::registry::Registry,
};
use ron_storage::{Event, Settings, StorageError, Store};

use super::{
    hooked::Hooked,
    world::{Pieces, Stuck, content, counters, soon},
};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");

fn narrow() -> Settings {
    Settings { get_workers: NonZeroUsize::MIN, get_lane: 2, small_bytes_max: 1000, ..Settings::default() }
}

async fn hooked(host: &Supervisor, settings: Settings) -> (Store, Hooked) {
    let disk = Hooked::default();
    let store =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings).start(host).await.unwrap();
    (store, disk)
}

/// Waits until something is so, which it soon is.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once() {
    let (mut registry, host) = (Registry::default(), Supervisor::new("host"));
    let metrics = ron_core::Metrics::register("ron_storage", &mut registry);
    let disk = Hooked::default();
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(narrow()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let id = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    disk.hooks.hold(true);
    let before = disk.hooks.reads.load(std::sync::atomic::Ordering::SeqCst);
    let read = || {
        let store = store.clone();
        host.spawn(CALLER, move |_| async move {
            assert_eq!(store.get_bytes(id, 900, soon()).await.unwrap().len(), 900);
        })
    };
    // One is at work and two wait.
    let mut readers = vec![read()];
    until(|| disk.hooks.reads.load(std::sync::atomic::Ordering::SeqCst) > before).await;
    readers.extend([read(), read()]);
    until(|| counters(&registry).contains("queue_depth{queue=\"get\"} 2")).await;
    let began = now();
    let refused = store.get_bytes(id, 900, soon()).await.unwrap_err();
    let StorageError::Busy { what: "get", retry_after } = refused else { panic!("{refused:?}") };
    assert!(retry_after > Duration::ZERO && began.elapsed() < Duration::from_secs(1));
    assert!(!store.ready().writes && !store.ready().reads, "{:?}", store.ready());
    assert!(
        counters(&registry).contains("busy_rejections_total{endpoint=\"get\"} 1"),
        "{}",
        counters(&registry)
    );
    // What does not read is served meanwhile.
    assert!(store.has(id, soon()).await.unwrap());
    store.put_bytes(content(900, 2), soon()).await.unwrap();
    disk.hooks.hold(false);
    for reader in readers {
        reader.ended().await;
    }
    assert!(store.ready().writes);
    assert_eq!(host.shutdown().await.aborted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept() {
    let host = Supervisor::new("host");
    let (store, disk) = hooked(&host, Settings { read_timeout: Duration::from_millis(50), ..narrow() }).await;
    let id = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    disk.hooks.hold(true);
    let began = now();
    let late = store.get_bytes(id, 900, Deadline::after(Duration::from_millis(20))).await;
    assert_eq!(late, Err(StorageError::Timeout { op: "get" }));
    let mut reader = store.get(id, .., soon()).await.unwrap();
    assert_eq!(reader.next().await, Err(StorageError::Timeout { op: "get" }));
    let stuck = store.put(Stuck, Deadline::after(Duration::from_millis(20))).await;
    assert_eq!(stuck, Err(StorageError::Timeout { op: "put" }));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let past = Deadline::after(Duration::ZERO);
    assert_eq!(store.stat(id, past).await, Err(StorageError::Timeout { op: "stat" }));
    disk.hooks.hold(false);
    // What was given up can be asked for again.
    assert_eq!(reader.next().await.unwrap().unwrap().len(), 900);
    host.shutdown().await;
}

/// A disk that takes too long to write ends that put, by the clock of its settings, and nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_ends_a_write_in_time() {
    let (mut registry, host) = (Registry::default(), Supervisor::new("host"));
    let metrics = ron_core::Metrics::register("ron_storage", &mut registry);
    let disk = Hooked::default();
    let settings = Settings { write_timeout: Duration::from_millis(50), ..narrow() };
    let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(settings).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let id = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    disk.hooks.hold_writes(true);
    let began = now();
    let large = store.put(Pieces::cut(&content(200_000, 2), 70_000), soon()).await;
    assert_eq!(large, Err(StorageError::Timeout { op: "put" }));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let text = counters(&registry);
    assert!(text.contains("io_timeouts_total{op=\"put\"} 1"), "{text}");
    assert_eq!(store.get_bytes(id, 900, soon()).await.unwrap(), content(900, 1));
    disk.hooks.hold_writes(false);
    store.put(Pieces::cut(&content(200_000, 2), 70_000), soon()).await.unwrap();
    assert_eq!(host.shutdown().await.aborted, 0);
}

#[tokio::test]
async fn a_stopped_handle_says_canceled() {
    let host = Supervisor::new("host");
    let store = Store::builder().memory().start(&host).await.unwrap();
    let id = store.put_bytes("x".into(), soon()).await.unwrap().id;
    let mut reader = store.get(id, .., soon()).await.unwrap();
    store.shutdown().await;
    assert_eq!(store.put_bytes("y".into(), soon()).await, Err(StorageError::Canceled));
    assert_eq!(store.get(id, .., soon()).await.unwrap_err(), StorageError::Canceled);
    assert_eq!(store.delete(id, soon()).await, Err(StorageError::Canceled));
    assert_eq!(store.gc(ron_storage::Gc::new(), soon()).await, Err(StorageError::Canceled));
    assert_eq!(store.scrub(soon()).await, Err(StorageError::Canceled));
    assert_eq!(reader.next().await, Err(StorageError::Canceled));
    assert_eq!(StorageError::from(CallError::Canceled), StorageError::Canceled);
}

#[tokio::test]
async fn shutting_down_twice_is_harmless() {
    let host = Supervisor::new("host");
    let store = Store::builder().memory().start(&host).await.unwrap();
    let (first, second) = tokio::join!(store.shutdown(), store.shutdown());
    assert_eq!((first, first.aborted), (second, 0));
    assert_eq!(store.shutdown().await, first);
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_tasks() {
    let host = Supervisor::new("host");
    let (store, disk) = hooked(&host, Settings::default()).await;
    let mut events = store.events();
    let also = store.clone();
    drop(store);
    also.put_bytes("x".into(), soon()).await.unwrap();
    assert!(matches!(events.recv().await, Some(ron_core::Event::Item(Event::Stored { .. }))));
    drop(also);
    assert_eq!(events.recv().await, None);
    // The directory is free once everything has ended.
    let again = loop {
        let started = Store::builder().data(Arc::new(disk.clone()), "store").start(&host).await;
        match started {
            Err(StorageError::Locked { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
            other => break other.unwrap(),
        }
    };
    assert_eq!(again.opened().objects, 1);
    let locked = Store::builder().data(Arc::new(disk), "store").start(&host).await.unwrap_err();
    assert!(matches!(locked, StorageError::Locked { .. }), "{locked:?}");
    host.shutdown().await;
    assert_eq!(host.phase(), Phase::Stopped);
}

/// A worker that dies in the middle of a stream costs that piece, and the stream goes on with the next question.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_its_worker() {
    let host = Supervisor::new("host");
    let (store, disk) = hooked(&host, Settings { chunk_bytes: 65_536, ..narrow() }).await;
    let content = content(300_000, 1);
    let id = store.put(Pieces::cut(&content, 70_000), soon()).await.unwrap().id;
    let mut reader = store.get(id, .., soon()).await.unwrap();
    let mut read = reader.next().await.unwrap().unwrap().to_vec();
    disk.hooks.panic_once();
    assert_eq!(reader.next().await, Err(StorageError::Panicked { op: "get" }));
    while let Some(bytes) = reader.next().await.unwrap() {
        read.extend_from_slice(&bytes);
    }
    assert_eq!(read, content);
    assert_eq!(host.failure(), None);
    host.shutdown().await;
}

/// Streams that have begun may finish after the stop, within the drain.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_begun_is_finished() {
    let host = Supervisor::new("host");
    let (store, disk) = hooked(&host, narrow()).await;
    let (sender, source) = super::world::pipe();
    let putting = {
        let store = store.clone();
        host.spawn(CALLER, move |_| async move {
            assert_eq!(store.put(source, soon()).await.unwrap().len, 100_000);
        })
    };
    sender.send(content(60_000, 1));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (stopped, ()) = tokio::join!(store.shutdown(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(store.put_bytes("new".into(), soon()).await, Err(StorageError::Canceled));
        assert!(!store.ready().reads);
        sender.send(content(40_000, 2));
        drop(sender);
    });
    assert_eq!(stopped.aborted, 0);
    putting.ended().await;
    assert_eq!(host.failure(), None);
    drop(store);
    let host = Supervisor::new("host");
    let store = Store::builder().data(Arc::new(disk), "store").settings(narrow()).start(&host).await.unwrap();
    assert!(store.opened().was_clean && store.opened().objects == 1, "{:?}", store.opened());
    host.shutdown().await;
}
