//! What each setting does that no other test shows, seen from outside.

use std::{net::Ipv4Addr, num::NonZeroUsize, time::Duration};

use ron_core::{ClientKey, Deadline, GateLimits, Metrics, Supervisor, prometheus_client::registry::Registry};
use ron_storage::{Settings, StorageError, Store};

use super::{
    limits::host,
    world::{content, counters, pipe, soon},
};

async fn start(host: &Supervisor, settings: Settings) -> (Store, Registry) {
    let mut registry = Registry::default();
    let metrics = Metrics::register("ron_storage", &mut registry);
    let store = Store::builder().memory().settings(settings).metrics(metrics).start(host).await.unwrap();
    (store, registry)
}

#[tokio::test(start_paused = true)]
async fn workers_and_lanes_are_as_many_as_the_settings_say() {
    let (host, three) = (host(), NonZeroUsize::new(3).unwrap());
    let settings = Settings {
        get_workers: three,
        put_workers: three,
        get_lane: 20,
        put_lane: 30,
        ..Settings::default()
    };
    let (_store, registry) = start(&host, settings).await;
    let text = counters(&registry);
    for name in [
        "tasks_spawned_total{kind=\"getter\"} 3",
        "tasks_spawned_total{kind=\"putter\"} 3",
        "queue_capacity{queue=\"get\"} 20",
        // A stream may have two jobs while there are fewer streams than workers.
        "queue_capacity{queue=\"put\"} 36",
        "queue_capacity{queue=\"upkeep\"} 64",
        "queue_capacity{queue=\"scrub\"} 4",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn all_clients_together_have_a_limit_too() {
    let host = host();
    // Half of it is for those who were here before.
    let total_limits = GateLimits { in_flight: 6, ..Settings::default().total_limits };
    let (store, registry) = start(&host, Settings { total_limits, ..Settings::default() }).await;
    let id = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    let client = |number| store.for_client(ClientKey::from(Ipv4Addr::new(10, 0, 0, number)));
    let mut taken = Vec::new();
    for number in 1..=3 {
        taken.push(client(number).get(id, .., soon()).await.unwrap());
    }
    let refused = client(4).get(id, .., soon()).await.unwrap_err();
    assert!(matches!(refused, StorageError::Busy { what: "storage_clients", .. }), "{refused:?}");
    assert!(counters(&registry).contains("ron_storage_get_streams 3"), "{}", counters(&registry));
    // The host itself is no client.
    store.get(id, .., soon()).await.unwrap();
    taken.pop();
    client(4).get(id, .., soon()).await.unwrap();
    host.shutdown().await;
}

/// A put that does not end is given up at the end of the drain, and nothing is kept of it.
#[tokio::test(start_paused = true)]
async fn the_drain_ends_when_it_says() {
    let host = host();
    let settings = Settings { drain: Duration::from_secs(2), small_bytes_max: 1000, ..Settings::default() };
    let (store, registry) = start(&host, settings).await;
    let (sender, source) = pipe();
    sender.send(content(100_000, 1));
    let began = ron_core::now();
    let putting = async {
        let put = store.put(source, Deadline::after(Duration::from_secs(600))).await;
        (put, began.elapsed())
    };
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(counters(&registry).contains("ron_storage_put_streams 1"), "{}", counters(&registry));
        let stopped = store.shutdown().await;
        (stopped, began.elapsed())
    };
    // Whoever puts learns of the end when its source moves, or from its own clock.
    let ending = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        sender.send(content(100_000, 2));
        drop(sender);
    };
    let ((put, _), (stopped, took), ()) = tokio::join!(putting, stopping, ending);
    assert_eq!(put, Err(StorageError::Canceled));
    assert!(took <= Duration::from_millis(2100), "{took:?}");
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    host.shutdown().await;
}

/// The gauges are what [`Store::usage`] says, a second later at most.
#[tokio::test(start_paused = true)]
async fn gauges_follow_what_is_kept() {
    let host = host();
    let (store, registry) = start(&host, Settings { small_bytes_max: 1000, ..Settings::default() }).await;
    let gone = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    store.put_bytes(content(5000, 2), soon()).await.unwrap();
    store.delete(gone, soon()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (text, usage) = (counters(&registry), store.usage());
    assert_eq!((usage.objects, usage.bytes), (1, 5000));
    for name in [
        "ron_storage_objects 1".to_owned(),
        "ron_storage_object_bytes 5000".to_owned(),
        format!("ron_storage_garbage_bytes {}", usage.garbage_bytes),
    ] {
        assert!(text.contains(&name), "{name}: {text}");
    }
    assert!(usage.garbage_bytes > 900, "{usage:?}");
    host.shutdown().await;
}
