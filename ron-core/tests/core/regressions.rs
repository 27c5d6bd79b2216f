//! Mistakes that were made once. Each test opens with what went wrong.

use std::{
    fmt,
    future::Future,
    num::NonZeroUsize,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    CallError, Deadline, Feed, Lane, LaneSpec, MemoryBudget, Metrics, Pool, PoolSpec, Ratio, Ready, Snapshot,
    Supervisor, TaskEnd, TaskSpec,
    disk::{Access, Disk, DiskError, DiskLock, Entry as DiskEntry, File},
    journal::{Entry, Journal, JournalError, Position, Reader, Record, Segments, Settings},
    now,
    sim::{Fault, SimDisk},
};

use super::{explode, registered, series, soon};

const TASK: TaskSpec = TaskSpec::new("test", "task");
const WORK: LaneSpec = LaneSpec::new("test", "work", 8);
const ONE_WORKER: PoolSpec = PoolSpec { lane: WORK, task: TASK, workers: NonZeroUsize::MIN };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn later() -> Deadline {
    Deadline::after(seconds(30))
}

fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

fn weighed(spec: LaneSpec, budget: &MemoryBudget) -> (Lane<usize>, ron_core::Inbox<usize>) {
    Lane::open_weighed(spec, &Metrics::default(), budget, |bytes| *bytes)
}

/// A hook ran before the tasks were woken, so its panic kept the stop from them and the shutdown never ended.
#[tokio::test(start_paused = true)]
async fn a_panicking_stop_hook_does_not_hold_up_the_shutdown() {
    let host = Supervisor::new("host");
    let task = host.spawn(TASK, |stop| async move { stop.requested().await });
    let _hook = host.stop().on_request(|| explode("in a hook"));
    assert_eq!(host.shutdown().await.drained, 1);
    assert_eq!(task.end(), Some(TaskEnd::Drained));
}

/// The shutdown is a task; on a runtime that was gone it was dropped, and its waiters waited for ever.
#[test]
fn a_shutdown_ends_even_if_its_runtime_is_gone() {
    let gone = threads();
    let host = Supervisor::builder("host").runtime(gone.handle().clone()).start();
    gone.shutdown_timeout(seconds(1));
    threads().block_on(async {
        let ended = tokio::time::timeout(seconds(10), host.shutdown()).await;
        assert!(ended.is_ok());
    });
}

/// A worker that blocks its thread cannot be cut off, so callers queued behind it waited on after the report, and their
/// jobs were done after it.
#[test]
fn callers_queued_behind_a_deaf_worker_are_told_at_the_drain_deadline() {
    threads().block_on(async {
        let host = Supervisor::builder("host").drain(Duration::from_millis(50)).start();
        let (release, held) = mpsc::sync_channel::<()>(1);
        let held = Mutex::new(held);
        let (began, has_begun) = mpsc::sync_channel::<()>(1);
        let pool = Pool::start(&host, ONE_WORKER, move |deaf: bool, _| {
            if deaf {
                let _ = began.send(());
                let _ = held.lock().unwrap().recv();
            }
            async {}
        });
        let callers = Supervisor::new("callers");
        let (deaf, queued) = (pool.clone(), pool.clone());
        callers.spawn(TASK, |_| async move { drop(deaf.call("deaf", true, later()).await) });
        while has_begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let queued = callers.spawn(TASK, |_| async move {
            assert_eq!(queued.call("queued", false, later()).await, Err(CallError::Canceled));
        });
        while pool.depth() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(host.shutdown().await.aborted, 1);
        assert_eq!(queued.ended().await, TaskEnd::Completed);
        release.send(()).unwrap();
    });
}

/// A closed lane asked its budget first: `Busy` where nothing would ever be taken in again, and a producer that waited
/// for the budget waited out its deadline.
#[tokio::test(start_paused = true)]
async fn a_closed_lane_says_canceled_whatever_its_budget_says() {
    let budget = MemoryBudget::new("memory", 10);
    let (other, _kept) = weighed(WORK, &budget);
    other.try_push(10).unwrap();
    let (lane, _inbox) = weighed(WORK, &budget);
    let began = now();
    let (waited, ()) = tokio::join!(lane.push(5, later()), async {
        tokio::time::sleep(seconds(1)).await;
        lane.close();
    });
    assert_eq!(waited, Err(CallError::Canceled));
    assert_eq!(began.elapsed(), seconds(1));
    assert_eq!(lane.try_push(1), Err(CallError::Canceled));
}

/// A push onto a closed lane that sheds shed what had been accepted, and was refused then.
#[tokio::test(start_paused = true)]
async fn nothing_is_shed_for_a_push_that_is_refused() {
    let two = LaneSpec::new("test", "work", 2).shed_oldest();
    let (lane, inbox) = Lane::open(two, &Metrics::default());
    lane.try_push(1).unwrap();
    lane.try_push(2).unwrap();
    lane.close();
    assert_eq!(lane.try_push(3), Err(CallError::Canceled));
    assert_eq!((inbox.try_recv(), inbox.try_recv()), (Some(1), Some(2)));
}

/// The rate of draining was an average over all time, so a burst after a quiet hour was told to wait five seconds.
#[tokio::test(start_paused = true)]
async fn a_quiet_hour_is_not_a_slow_queue() {
    let (lane, inbox) = Lane::open(WORK, &Metrics::default());
    for _ in 0..1000 {
        lane.try_push(()).unwrap();
        inbox.try_recv().unwrap();
    }
    tokio::time::advance(seconds(3600)).await;
    while lane.try_push(()).is_ok() {}
    let Err(CallError::Busy { retry_after, .. }) = lane.try_push(()) else { panic!("full") };
    assert!(retry_after < seconds(1), "{retry_after:?}");
}

/// A task was told that it had its own drain time, and was cut off at the limit on the whole.
#[tokio::test(start_paused = true)]
async fn a_task_is_told_how_long_it_really_may_drain() {
    let host = Supervisor::builder("host").drain(seconds(60)).start();
    let child = host.child("child", seconds(60), Metrics::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    for group in [&host, &child] {
        let told = Arc::clone(&told);
        group.spawn(TASK, |stop| async move {
            stop.requested().await;
            told.lock().unwrap().push(stop.drain_until().unwrap().remaining());
        });
    }
    host.shutdown_by(Deadline::after(seconds(2))).await;
    assert_eq!(*told.lock().unwrap(), [seconds(2); 2]);
}

/// A child that came after the second Ctrl-C drained for a minute.
#[tokio::test(start_paused = true)]
async fn a_child_of_a_hurried_supervisor_is_hurried() {
    let host = Supervisor::builder("host").drain(seconds(60)).start();
    host.abort();
    let child = host.child("child", seconds(60), Metrics::default());
    child.spawn(TASK, |_| std::future::pending::<()>());
    assert!(host.shutdown().await.elapsed < seconds(2));
}

/// Panics when it is dropped, but not while another panic unwinds.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            explode("in a drop");
        }
    }
}

/// An error without words.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        explode("in an error's words");
        Ok(())
    }
}

impl std::error::Error for Unspeakable {}

/// Is ready at once, and panics afterwards.
struct ReadyBomb(Bomb);

impl Future for ReadyBomb {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// Panics in a task's `Drop` or in its error's words were not caught: the task counted as cut off, nothing was fatal.
#[tokio::test(start_paused = true)]
async fn a_panic_anywhere_in_a_task_is_a_panic_of_the_task() {
    let (registry, metrics) = registered();
    let host = Supervisor::builder("host").metrics(metrics).start();
    let speechless = host.spawn(TASK, |_| async { Err::<(), _>(Unspeakable) });
    assert_eq!(speechless.ended().await, TaskEnd::Failed);
    let bomb = host.spawn(TASK, |_| ReadyBomb(Bomb));
    assert_eq!(bomb.ended().await, TaskEnd::Failed);
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"task\"}"), Some(2));
    assert!(host.failure().is_some());
}

/// A job whose `Drop` panicked when its time ran out took its worker with it.
#[tokio::test(start_paused = true)]
async fn a_worker_outlives_what_its_jobs_drop() {
    let (registry, metrics) = registered();
    let host = Supervisor::builder("host").metrics(metrics).start();
    let pool = Pool::start(&host, ONE_WORKER, |wait: bool, _| async move {
        let bomb = Bomb;
        if wait {
            std::future::pending::<()>().await;
        }
        bomb
    });
    let late = pool.call("late", true, soon()).await;
    assert_eq!(late.map(std::mem::forget), Err(CallError::Timeout { op: "late" }));
    // The result of a call that nobody waits for any more is dropped by the worker.
    let answered = pool.call("answered", false, soon()).await;
    assert_eq!(answered.map(std::mem::forget), Ok(()));
    assert_eq!(series(&registry, "tasks_panicked_total{kind=\"task\"}"), Some(1));
    assert_eq!((host.running(), host.failure()), (1, None));
}

/// A lane that was dropped while it was full stayed full in the eyes of readiness.
#[tokio::test(start_paused = true)]
async fn a_lane_that_is_gone_is_not_full() {
    let ready = Ready::new();
    let (lane, inbox) = Lane::open(LaneSpec::new("test", "work", 1), &Metrics::default());
    let _gates = ready.watch_lane(&lane, Ratio::HALF, Ratio::HALF);
    lane.try_push(()).unwrap();
    assert!(!ready.status().reads);
    drop((lane, inbox));
    assert!(ready.status().reads);
}

fn inline() -> Supervisor {
    Supervisor::builder("sim").inline_blocking(true).start()
}

async fn journal(host: &Supervisor, disk: &SimDisk, settings: Settings) -> Journal {
    Journal::open(host, Arc::new(disk.clone()), Path::new("log"), settings).await.unwrap().0
}

/// A record beyond the format's limit was let into a batch by a larger setting, and the whole batch was refused.
#[tokio::test(start_paused = true)]
async fn one_oversized_append_does_not_spoil_the_batch_of_others() {
    let (host, disk) = (inline(), SimDisk::new());
    let settings = Settings { record_bytes_max: u32::MAX, pending_bytes_max: 1 << 30, ..Settings::default() };
    let journal = journal(&host, &disk, settings).await;
    let largest = Bytes::from(vec![0; 16 << 20]);
    let (small, oversized, too_many) = tokio::join!(
        journal.append(1, "small".into(), later()),
        journal.append(1, Bytes::from(vec![0; (16 << 20) + 1]), later()),
        journal.append_all((0..17).map(|_| (1, largest.clone())).collect(), later()),
    );
    assert!(small.is_ok(), "{small:?}");
    assert!(matches!(oversized, Err(JournalError::TooLarge { .. })), "{oversized:?}");
    assert!(matches!(too_many, Err(JournalError::TooLarge { .. })), "{too_many:?}");
    assert!(host.ready().status().writes);
}

/// A removal that poisoned the journal left it ready for writes that it refused.
#[tokio::test(start_paused = true)]
async fn a_journal_poisoned_by_a_removal_is_not_ready() {
    let (host, disk) = (inline(), SimDisk::new());
    let settings = Settings { segment_bytes: 4096, chunk_bytes: 4096, ..Settings::default() };
    let journal = journal(&host, &disk, settings).await;
    for _ in 0..4 {
        journal.append(1, Bytes::from(vec![7; 3000]), later()).await.unwrap();
    }
    disk.fail_call(2, Fault::Io);
    assert!(journal.remove_before(99, later()).await.is_err());
    assert_eq!(journal.append(1, "late".into(), later()).await, Err(JournalError::Poisoned));
    assert!(!host.ready().status().writes);
}

/// A reader dropped the last copy of an old value under the lock, and a value that looked at its snapshot deadlocked.
#[test]
fn an_old_value_may_look_at_its_snapshot_as_it_goes() {
    struct Nosy(Option<Snapshot<Nosy>>);

    impl Drop for Nosy {
        fn drop(&mut self) {
            if let Some(snapshot) = &self.0 {
                let _ = snapshot.load();
            }
        }
    }

    let (done, is_done) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let snapshot = Snapshot::new(Nosy(None));
        snapshot.replace(Nosy(Some(snapshot.clone())));
        let mut watch = snapshot.watch();
        snapshot.replace(Nosy(None));
        watch.get();
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(seconds(10)).is_ok(), "deadlock");
}

/// A task that panicked while it drained counted as drained.
#[tokio::test(start_paused = true)]
async fn a_task_that_fails_while_draining_is_not_drained() {
    let host = Supervisor::new("host");
    host.spawn(TASK, |stop| async move {
        stop.requested().await;
        explode("while draining");
    });
    let stopped = host.shutdown().await;
    assert_eq!((stopped.drained, stopped.aborted), (0, 0));
}

/// Reads through a reader in the moment in which a segment's file has just been removed.
#[derive(Debug)]
struct Nosy {
    disk: SimDisk,
    reader: Mutex<Option<Reader>>,
    seen: Mutex<Vec<Result<Record, JournalError>>>,
}

impl Disk for Nosy {
    fn create(&self, path: &Path) -> Result<File, DiskError> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
        self.disk.open(path, access)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DiskEntry>, DiskError> {
        self.disk.list(dir)
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        let removed = self.disk.remove(path);
        if let Some(reader) = &*self.reader.lock().unwrap() {
            let first = Position { segment: 1, offset: 64 };
            self.seen.lock().unwrap().push(reader.read(first));
            assert!(
                reader.scan(Position::START).all(|item| item.is_ok()),
                "a scan begins after what was removed"
            );
        }
        removed
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.disk.make_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.disk.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        self.disk.lock(path)
    }

    fn free_space(&self) -> Result<u64, DiskError> {
        self.disk.free_space()
    }
}

/// A reader that raced a removal met a missing file instead of a missing record.
#[test]
fn a_reader_that_races_a_removal_is_told_that_the_record_is_gone() {
    let disk = Arc::new(Nosy { disk: SimDisk::new(), reader: Mutex::default(), seen: Mutex::default() });
    let settings = Settings { segment_bytes: 4096, chunk_bytes: 4096, ..Settings::default() };
    let (mut journal, _) = Segments::open(Arc::<Nosy>::clone(&disk), Path::new("log"), settings).unwrap();
    for _ in 0..3 {
        journal.commit([Entry::new(1, &[7; 3000])]).unwrap();
    }
    *disk.reader.lock().unwrap() = Some(journal.reader());
    journal.remove_before(2).unwrap();
    let position = Position { segment: 1, offset: 64 };
    assert_eq!(*disk.seen.lock().unwrap(), [Err(JournalError::NoRecord { position })]);
}

/// A subscriber that reads ahead lost the events before one whose clone panicked.
#[test]
fn a_clone_that_panics_costs_its_own_event_only() {
    #[derive(Debug)]
    struct Fragile(u8);

    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert_ne!(self.0, 2, "as planned");
            Fragile(self.0)
        }
    }

    let feed = Feed::open(LaneSpec::feed("test", "events", 8), &Metrics::default());
    let (mut reader, _other) = (feed.subscribe(), feed.subscribe());
    for event in 0..4 {
        feed.publish(Fragile(event));
    }
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.try_recv()));
    assert!(first.is_err());
    let mut rest = Vec::new();
    while let Some(ron_core::Event::Item(event)) = reader.try_recv() {
        rest.push(event.0);
    }
    assert_eq!(rest, [0, 1, 3]);
}

/// A counter that appeared with its first count was invisible to an alert on its increase.
#[tokio::test(start_paused = true)]
async fn the_counters_of_a_task_begin_at_zero() {
    let (registry, metrics) = registered();
    let host = Supervisor::builder("host").metrics(metrics).start();
    host.spawn(TASK, |stop| async move { stop.requested().await });
    for counter in ["panicked", "aborted", "canceled", "restarted"] {
        assert_eq!(
            series(&registry, &format!("tasks_{counter}_total{{kind=\"task\"}}")),
            Some(0),
            "{counter}"
        );
    }
}
