//! Collection, compaction, scrubbing, quarantine: what keeps a store in order.

use std::{sync::Arc, time::Duration};

use ron_core::{
    ContentId, Event as Heard, Metrics,
    prometheus_client::registry::Registry,
    sim::{CrashStyle, SimDisk},
};
use ron_storage::{Event, Gc, Put, Settings, StorageError, Store};

use super::{
    limits::{host, sim},
    world::{Pieces, content, counters, soon},
};

fn settings() -> Settings {
    Settings { small_bytes_max: 1000, segment_bytes: 8192, reserve_bytes: 0, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn the_young_are_not_collected() {
    let (mut registry, host) = (Registry::default(), host());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let settings = Settings { collect_grace: Duration::from_secs(100), ..settings() };
    let store =
        Store::builder().memory().settings(settings.clone()).metrics(metrics).start(&host).await.unwrap();
    let old = store.put_bytes(content(10, 1), soon()).await.unwrap().id;
    let large = store.put_bytes(content(5000, 2), soon()).await.unwrap().id;
    let kept = store.put_bytes(content(10, 3), soon()).await.unwrap().id;
    assert_eq!(store.gc(Gc::new(), soon()).await.unwrap().objects, 0);
    tokio::time::sleep(Duration::from_secs(110)).await;
    let young = store.put_bytes(content(10, 4), soon()).await.unwrap().id;
    let collected = store.gc(Gc::new().keep(move |id| *id == kept), soon()).await.unwrap();
    assert_eq!((collected.objects, collected.bytes, collected.kept), (2, 5010, 2));
    for (id, is_here) in [(old, false), (large, false), (kept, true), (young, true)] {
        assert_eq!(store.has(id, soon()).await.unwrap(), is_here);
    }
    tokio::time::sleep(Duration::from_secs(110)).await;
    assert_eq!(store.gc(Gc::new(), soon()).await.unwrap().objects, 2);
    let text = counters(&registry);
    assert!(text.contains("collected_total 4"), "{text}");
    host.shutdown().await;
}

/// Garbage goes, everything else stays where readers find it, and the space comes back.
#[tokio::test(start_paused = true)]
async fn compaction_gives_space_back_and_loses_nothing() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let builder =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let mut events = store.events();
    let pin = Put { pin: true, ..Put::default() };
    for number in 0..60 {
        store
            .put_with(
                Pieces::cut(&content(900, number), 300),
                if number == 30 { pin } else { Put::default() },
                soon(),
            )
            .await
            .unwrap();
    }
    let large = store.put_bytes(content(5000, 100), soon()).await.unwrap().id;
    store.pin(large, soon()).await.unwrap();
    for number in (0..60).filter(|number| number % 3 != 0) {
        store.delete(ContentId::of(&content(900, number)), soon()).await.unwrap();
    }
    let before = store.usage();
    let freed = store.compact(soon()).await.unwrap();
    let after = store.usage();
    assert!(freed > 20_000 && after.garbage_bytes < before.garbage_bytes, "{freed} {before:?} {after:?}");
    assert!(after.disk_bytes + freed <= before.disk_bytes + 1, "{before:?} {after:?}");
    assert_eq!(store.compact(soon()).await.unwrap(), 0);
    let mut compacted = 0;
    while let Some(Heard::Item(event)) = events.try_recv() {
        compacted += if let Event::Compacted { bytes } = event { bytes } else { 0 };
    }
    assert_eq!(compacted, freed);
    for restarts in 0..3 {
        let store = if restarts == 0 {
            store.clone()
        } else {
            // With the index and without it.
            sim(&host, &disk, settings()).await
        };
        for number in 0..60 {
            let got = store.get_bytes(ContentId::of(&content(900, number)), 900, soon()).await;
            if number % 3 == 0 {
                assert_eq!(got.unwrap(), content(900, number))
            } else {
                assert!(got.is_err())
            }
        }
        assert!(store.stat(ContentId::of(&content(900, 30)), soon()).await.unwrap().is_pinned);
        assert!(store.stat(large, soon()).await.unwrap().is_pinned);
        assert_eq!(store.usage().pinned, 2);
        store.shutdown().await;
        if restarts == 1 {
            ron_core::disk::Disk::remove(&disk, std::path::Path::new("store/index")).unwrap();
        }
    }
    let text = counters(&registry);
    assert!(text.contains(&format!("compacted_bytes_total {freed}")), "{text}");
    assert!(text.contains("upkeep_pause_seconds_count"), "{text}");
    host.shutdown().await;
}

/// A record and a file that change on disk are noticed by whoever reads them or by a scrub, never served, remembered
/// across a restart, and mended by putting the object again.
#[tokio::test(start_paused = true)]
async fn damage_is_quarantined_and_mended() {
    let (mut registry, host, disk) = (Registry::default(), host(), SimDisk::new());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let builder =
        Store::builder().data(Arc::new(disk.clone()), "store").settings(settings()).metrics(metrics);
    let store = builder.start(&host).await.unwrap();
    let mut events = store.events();
    let small = store.put_bytes(content(900, 1), soon()).await.unwrap().id;
    let large = store.put_bytes(content(200_000, 2), soon()).await.unwrap().id;
    let tree = store.put_bytes(content(200_000, 3), soon()).await.unwrap().id;
    let fine = store.put_bytes(content(200_000, 4), soon()).await.unwrap().id;
    disk.flip_bit("store/log/0000000000000001.seg", 500);
    disk.flip_bit("store/large/0000000000000001.dat", 150_000);
    disk.flip_bit("store/large/0000000000000002.tree", 100);
    disk.flip_bit("store/large/0000000000000003.tree", 20);

    assert_eq!(store.get_bytes(small, 900, soon()).await, Err(StorageError::Corrupt { id: small, at: 0 }));
    // What is before the damage is served, and what is behind it too: each group is checked by itself.
    let mut reader = store.get(large, ..131_072, soon()).await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), content(200_000, 2)[..131_072]);
    let damaged = store.get_bytes(large, 200_000, soon()).await;
    assert_eq!(damaged, Err(StorageError::Corrupt { id: large, at: 131_072 }));
    assert_eq!(store.get(large, .., soon()).await.unwrap_err(), StorageError::Corrupt { id: large, at: 0 });
    assert!(!store.has(large, soon()).await.unwrap());
    let scrubbed = store.scrub(soon()).await.unwrap();
    assert_eq!(scrubbed.objects, 4);
    let mut expected = vec![small, large, tree, fine];
    expected.sort_unstable();
    assert_eq!(scrubbed.damaged, expected);
    let heard: Vec<_> = std::iter::from_fn(|| events.try_recv()).collect();
    for id in [small, large, tree, fine] {
        assert!(heard.contains(&Heard::Item(Event::Quarantined { id })), "{heard:?}");
    }
    assert!(heard.contains(&Heard::Item(Event::Scrubbed { objects: 4, damaged: 4 })), "{heard:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let text = counters(&registry);
    assert!(
        text.contains("corrupt_total{found_by=\"read\"} 2")
            && text.contains("corrupt_total{found_by=\"scrub\"} 2"),
        "{text}"
    );
    assert!(text.contains("ron_storage_quarantined 4") && text.contains("ron_storage_objects 4"), "{text}");

    // The power fails, so that only what was written down is known.
    disk.restart(CrashStyle::LoseUnsynced);
    store.shutdown().await;
    let store = sim(&host, &disk, settings()).await;
    assert_eq!(store.usage().quarantined, 4);
    assert_eq!(store.get(small, .., soon()).await.unwrap_err(), StorageError::Corrupt { id: small, at: 0 });
    for (id, size, seed) in [(small, 900, 1), (large, 200_000, 2), (tree, 200_000, 3), (fine, 200_000, 4)] {
        let stored = store.put_expect(id, Pieces::cut(&content(size, seed), 9000), soon()).await.unwrap();
        assert!(!stored.existed);
        assert_eq!(store.get_bytes(id, 200_000, soon()).await.unwrap(), content(size, seed));
    }
    assert_eq!((store.usage().quarantined, store.scrub(soon()).await.unwrap().damaged.len()), (0, 0));
    store.shutdown().await;
    // The files of what was mended are gone.
    use ron_core::disk::Disk as _;
    assert_eq!(disk.list(std::path::Path::new("store/large")).unwrap().len(), 6);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_scrub_comes_by_itself_and_keeps_to_its_rate() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings {
        scrub_every: Some(Duration::from_secs(3600)),
        upkeep_bytes_per_second: 1 << 20,
        ..settings()
    };
    let store = sim(&host, &disk, settings).await;
    let mut events = store.events();
    let size = 20 << 20;
    store.put_bytes(content(size, 1), soon()).await.unwrap();
    let began = ron_core::now();
    let scrubbed = loop {
        if let Some(Heard::Item(Event::Scrubbed { objects, damaged })) = events.recv().await {
            break (objects, damaged);
        }
    };
    assert_eq!(scrubbed, (1, 0));
    let took = began.elapsed();
    // 4 MiB at once and a mebibyte a second from then on.
    assert!((3615..3622).contains(&took.as_secs()), "{took:?}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_told_what_it_missed() {
    let (mut registry, host) = (Registry::default(), host());
    let metrics = Metrics::register("ron_storage", &mut registry);
    let settings = Settings { events_lane: 3, ..settings() };
    let store = Store::builder().memory().settings(settings).metrics(metrics).start(&host).await.unwrap();
    let mut events = store.events();
    for number in 0..5 {
        store.put_bytes(content(10, number), soon()).await.unwrap();
    }
    assert_eq!(events.recv().await, Some(Heard::Missed(2)));
    assert!(counters(&registry).contains("bus_lagged_total{topic=\"storage_events\"} 2"));
    let text = counters(&registry);
    for name in [
        "puts_total{result=\"new\"} 5",
        "written_bytes_total 50",
        "commit_seconds_count 5",
        "tasks_spawned_total{kind=\"getter\"} 8",
        "tasks_spawned_total{kind=\"putter\"} 4",
        "queue_capacity{queue=\"get\"} 512",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    let id = ContentId::of(&content(10, 0));
    assert!(store.put_bytes(content(10, 0), soon()).await.unwrap().existed);
    store.get_bytes(id, 10, soon()).await.unwrap();
    store.delete(id, soon()).await.unwrap();
    let text = counters(&registry);
    for name in ["puts_total{result=\"existed\"} 1", "gets_total 1", "read_bytes_total 10", "deletes_total 1"]
    {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert_eq!(ron_storage::inventory(), ron_storage::inventory());
    host.shutdown().await;
}

/// A store of another format, or without the file that says which, is left alone.
#[tokio::test(start_paused = true)]
async fn a_directory_of_another_format_is_refused() {
    let (host, disk) = (host(), SimDisk::new());
    sim(&host, &disk, settings()).await.shutdown().await;
    let bytes = disk.bytes("store/STORE").unwrap();
    let start = async |disk: &SimDisk| {
        let builder = Store::builder().data(Arc::new(disk.clone()), "store").settings(settings());
        builder.start(&host).await.unwrap_err()
    };
    let mut later = bytes.clone();
    later[11] = 2;
    let sum = ContentId::of(&later[..32]);
    later[32..].copy_from_slice(&sum.as_bytes()[..16]);
    disk.put("store/STORE", &later);
    assert_eq!(start(&disk).await, StorageError::Version { found: 2, known: 1 });
    disk.put("store/STORE", &bytes[..40]);
    assert!(matches!(start(&disk).await, StorageError::Disk { .. }));
    ron_core::disk::Disk::remove(&disk, std::path::Path::new("store/STORE")).unwrap();
    let refused = start(&disk).await;
    assert!(refused.to_string().contains("put it back from a copy"), "{refused}");
    disk.put("store/STORE", &bytes);
    sim(&host, &disk, settings()).await;
    host.shutdown().await;
}
