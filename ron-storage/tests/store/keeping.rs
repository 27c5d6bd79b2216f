//! What the keeper does beside a long compaction.

use std::{path::Path, time::Duration};

use ron_core::{
    ContentId, Deadline,
    disk::Disk as _,
    now,
    sim::{CrashStyle, SimDisk},
};
use ron_storage::{Gc, Settings};

use super::{
    limits::{host, sim},
    world::{Failing, Pieces, content, soon},
};

#[tokio::test(start_paused = true)]
async fn a_long_compaction_leaves_time_for_everything_else() {
    let (host, disk) = (host(), SimDisk::new());
    let settings = Settings {
        small_bytes_max: 64 << 10,
        segment_bytes: 256 << 10,
        reserve_bytes: 0,
        upkeep_bytes_per_second: 64 << 10,
        ..Settings::default()
    };
    let store = sim(&host, &disk, settings.clone()).await;
    let put = |number: u64| store.put(Pieces::cut(&content(60_000, number), 60_000), soon());
    for number in 0..240 {
        put(number).await.unwrap();
    }
    // The newer half goes, so that the older one is copied first.
    for number in 120..240 {
        store.delete(ContentId::of(&content(60_000, number)), soon()).await.unwrap();
    }
    let garbage = store.usage().garbage_bytes;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // A segment takes four seconds, and all of them a minute and more.
    let began = now();
    store.gc(Gc::new().dry_run(), Deadline::after(Duration::from_secs(20))).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(store.put(Failing(vec![content(90_000, 1000)]), soon()).await.is_err());
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(disk.list(Path::new("store/large")).unwrap().is_empty(), "what was given up is removed");
    assert!(store.usage().garbage_bytes > garbage / 4, "it is still at work: {:?}", store.usage());

    // The power fails in the middle, and the index is of use all the same.
    disk.restart(CrashStyle::LoseUnsynced);
    store.shutdown().await;
    let store = sim(&host, &disk, settings).await;
    assert_eq!((store.opened().rebuilt.as_deref(), store.usage().objects), (None, 120));
    tokio::time::sleep(Duration::from_secs(600)).await;
    // As much as may stay, and not more.
    let usage = store.usage();
    assert!(usage.garbage_bytes * 10 <= usage.disk_bytes * 4, "{usage:?}");
    for number in 0..120 {
        assert!(store.has(ContentId::of(&content(60_000, number)), soon()).await.unwrap());
    }
    host.shutdown().await;
}
