//! The journal through its async handle: group commit, refusals, readiness, drain, and the same under simulation.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    Deadline, Supervisor,
    disk::RealDisk,
    journal::{Item, Journal, JournalError, Position, Recovered, Settings},
    sim::{CrashStyle, Fault, SimDisk},
};

use super::{registered, series, settle};

fn later() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// A supervisor under which the journal writes inline, on the paused clock.
fn inline() -> Supervisor {
    Supervisor::builder("sim").inline_blocking(true).start()
}

async fn open(supervisor: &Supervisor, disk: &SimDisk) -> (Journal, Recovered) {
    let disk = Arc::new(disk.clone());
    Journal::open(supervisor, disk, Path::new("log"), Settings::default()).await.unwrap()
}

async fn open_real(supervisor: &Supervisor, dir: &Path) -> (Journal, Recovered) {
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    Journal::open(supervisor, disk, Path::new("log"), Settings::default()).await.unwrap()
}

fn payloads(journal: &Journal) -> Vec<Bytes> {
    let record = |item| match item {
        Ok(Item::Record(record)) => record.payload,
        other => panic!("{other:?}"),
    };
    journal.reader().scan(Position::START).map(record).collect()
}

#[test]
fn many_writers_on_a_real_disk_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let host = Supervisor::new("host");
        let (journal, _) = open_real(&host, dir.path()).await;
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..32u32 {
            let journal = journal.clone();
            writers.spawn(async move {
                let mut acknowledged = Vec::new();
                for number in 0..20u32 {
                    let payload = Bytes::from(format!("{writer}:{number}"));
                    let at = journal.append(1, payload.clone(), later()).await.unwrap();
                    acknowledged.push((at, payload));
                }
                acknowledged
            });
        }
        let mut acknowledged: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
        acknowledged.sort();
        assert_eq!(host.shutdown().await.aborted, 0);
        assert_eq!(journal.append(1, Bytes::new(), later()).await, Err(JournalError::Canceled));

        let host = Supervisor::new("again");
        let (journal, recovered) = open_real(&host, dir.path()).await;
        assert_eq!(recovered.records, 640);
        let (at, payload) = &acknowledged[321];
        assert_eq!(journal.read(*at, later()).await.unwrap().payload, payload);
        let expected: Vec<Bytes> = acknowledged.into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(payloads(&journal), expected, "in the order of their positions");
    });
}

#[tokio::test(start_paused = true)]
async fn what_gathers_is_one_sync() {
    let (host, disk) = (inline(), SimDisk::new());
    let (journal, _) = open(&host, &disk).await;
    let before = disk.calls();
    let mut appends = tokio::task::JoinSet::new();
    for number in 0..100u8 {
        let journal = journal.clone();
        appends.spawn(async move { journal.append(1, Bytes::from(vec![number]), later()).await });
    }
    assert!(appends.join_all().await.iter().all(Result::is_ok));
    assert_eq!(disk.calls() - before, 2, "one write and one sync for a hundred appends");
}

#[tokio::test(start_paused = true)]
async fn acknowledged_survives_a_crash_and_buffered_may_not() {
    let disk = SimDisk::new();
    {
        let host = inline();
        let (journal, _) = open(&host, &disk).await;
        journal.append(1, "durable".into(), later()).await.unwrap();
        journal.append_buffered(1, "hopeful".into(), later()).await.unwrap();
        disk.restart(CrashStyle::LoseUnsynced);
    }
    let host = inline();
    let (journal, _) = open(&host, &disk).await;
    assert_eq!(payloads(&journal), ["durable"]);
    journal.append_buffered(1, "synced by the next".into(), later()).await.unwrap();
    journal.append_all(vec![(1, "a".into()), (1, "b".into())], later()).await.unwrap();
    journal.append_buffered(1, "synced by hand".into(), later()).await.unwrap();
    journal.sync(later()).await.unwrap();
    disk.restart(CrashStyle::LoseUnsynced);
    drop((journal, host));
    settle().await;
    let host = inline();
    let (journal, _) = open(&host, &disk).await;
    assert_eq!(payloads(&journal), ["durable", "synced by the next", "a", "b", "synced by hand"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_the_large_lets_the_small_in_and_says_so() {
    let (host, disk) = (inline(), SimDisk::new());
    let small = Settings { segment_bytes: 8192, chunk_bytes: 4096, ..Settings::default() };
    let shared = Arc::new(disk.clone());
    let (journal, _) = Journal::open(&host, shared, Path::new("log"), small).await.unwrap();
    disk.capacity(Some(4096));
    let (large, tiny) = tokio::join!(
        journal.append(1, Bytes::from(vec![7; 6000]), later()),
        journal.append(1, "tiny".into(), later()),
    );
    assert_eq!(large, Err(JournalError::NoSpace));
    assert!(tiny.is_ok(), "{tiny:?}");
    assert_eq!(journal.append(1, Bytes::from(vec![7; 6000]), later()).await, Err(JournalError::NoSpace));
    let status = host.ready().status();
    assert!(status.reads && !status.writes, "{status:?}");
    assert_eq!(payloads(&journal), ["tiny"], "reads go on");
    // Whoever says that it takes no writes is sent none, so it must find out by itself that there is room again.
    disk.capacity(None);
    assert!(host.ready().status().writes, "{:?}", host.ready().status());
    journal.append(1, Bytes::from(vec![7; 6000]), later()).await.unwrap();
    assert!(host.ready().status().writes);
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_poisons_until_reopened() {
    let (host, disk) = (inline(), SimDisk::new());
    let (journal, _) = open(&host, &disk).await;
    journal.append(1, "first".into(), later()).await.unwrap();
    disk.fail_call(2, Fault::Io);
    assert!(matches!(journal.append(1, "second".into(), later()).await, Err(JournalError::Disk(_))));
    assert_eq!(journal.append(1, "third".into(), later()).await, Err(JournalError::Poisoned));
    assert!(!host.ready().status().writes);
    assert_eq!(journal.read(Position { segment: 1, offset: 64 }, later()).await.unwrap().payload, "first");
    host.shutdown().await;
    assert_eq!(host.failure(), None, "said to the callers, and not again at the end");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_typed_and_counted() {
    let (registry, metrics) = registered();
    let host = Supervisor::builder("sim").inline_blocking(true).metrics(metrics).start();
    let settings = Settings { record_bytes_max: 10, pending_bytes_max: 100, ..Settings::default() };
    let (journal, _) =
        Journal::open(&host, Arc::new(SimDisk::new()), Path::new("log"), settings).await.unwrap();
    let too_large = journal.append(1, Bytes::from(vec![0; 11]), later()).await;
    assert_eq!(too_large, Err(JournalError::TooLarge { bytes: 11, limit: 10 }));
    let (first, second, third) = tokio::join!(
        journal.append(1, Bytes::from(vec![0; 10]), later()),
        journal.append(1, Bytes::from(vec![0; 10]), later()),
        journal.append(1, Bytes::from(vec![0; 10]), later()),
    );
    assert!(first.is_ok() && second.is_ok());
    assert!(matches!(third, Err(JournalError::Busy { what: "journal_pending_bytes", .. })), "{third:?}");
    assert_eq!(series(&registry, "busy_rejections_total{endpoint=\"journal_commits\"}"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn old_segments_go_in_their_turn() {
    let (host, disk) = (inline(), SimDisk::new());
    let small = Settings { segment_bytes: 4096, chunk_bytes: 4096, ..Settings::default() };
    let (journal, _) = Journal::open(&host, Arc::new(disk), Path::new("log"), small).await.unwrap();
    let mut last = Position::START;
    for _ in 0..10 {
        last = journal.append(1, Bytes::from(vec![1; 1500]), later()).await.unwrap();
    }
    let before = journal.reader().segments().len();
    assert!(before > 3);
    assert_eq!(journal.remove_before(last.segment, later()).await, Ok(before - 1));
    assert!(payloads(&journal).len() < 4);
}
