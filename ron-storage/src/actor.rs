//! Who runs what: the pools that read, write and sync, and the tasks that keep the store in order.

use std::{
    io,
    num::{NonZeroU64, NonZeroUsize},
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Capacity, ContentId, Deadline, Inbox, LaneSpec, Pacer, Pool, PoolSpec, Reply, Restart, Snapshot, Stop,
    Supervisor, Tally, TaskSpec, now,
};

use crate::{
    StorageError,
    handle::{Collected, Gc, Scrubbed},
    metrics::{
        COLLECTED, COMPACTED_BYTES, GARBAGE_BYTES, OBJECT_BYTES, OBJECTS, QUARANTINED, UPKEEP_PAUSE_SECONDS,
    },
    objects::{Objects, Read},
    opening::Custody,
    settings::Settings,
    streams::Streams,
    upkeep::{Upkeep, scrub},
};

pub(crate) const GETS: LaneSpec = LaneSpec::new("ron-storage", "get", 512).flow("readers → GET pool").why(
    "one job for each stream there may be; a job is at most a mebibyte, so the last waits for milliseconds",
);

pub(crate) const PUTS: LaneSpec = LaneSpec::new("ron-storage", "put", 520).flow("writers → PUT pool").why(
    "one job for each of 512 streams, two while there are fewer streams than workers; apart from those that read, so that \
     neither starves the other",
);

pub(crate) const SYNCS: LaneSpec = LaneSpec::new("ron-storage", "sync", 512).flow("writers → syncers").why(
    "one for each stream; apart from the jobs that write, because a sync takes as long as everything that others left to the \
     disk, and whoever streams in must not wait for that",
);

pub(crate) const UPKEEP: LaneSpec = LaneSpec::new("ron-storage", "upkeep", 64)
    .flow("callers and workers → keeper")
    .why("a collection takes minutes, and who finds so many waiting asks tomorrow; notes that do not fit are made again");

pub(crate) const SCRUBS: LaneSpec = LaneSpec::new("ron-storage", "scrub", 4)
    .flow("callers → scrubber")
    .why("a scrub takes hours, and the one that runs says the same as the next");

pub(crate) const GETTER: TaskSpec = TaskSpec::new("ron-storage", "getter")
    .restart(Restart::Never)
    .what("reads and verifies up to a mebibyte at a time; a job that panics is told to its caller and the worker lives on");

pub(crate) const PUTTER: TaskSpec = TaskSpec::new("ron-storage", "putter")
    .restart(Restart::Never)
    .what("hashes and writes up to a mebibyte of a large object at a time");

pub(crate) const SYNCER: TaskSpec = TaskSpec::new("ron-storage", "syncer")
    .restart(Restart::Never)
    .what("makes large objects durable, now and then while they come and at their end");

pub(crate) const KEEPER: TaskSpec = TaskSpec::new("ron-storage", "keeper")
    .restart(Restart::PATIENT)
    .what("collects, compacts, writes the index and removes what nobody needs, one after the other; the last to stop");

pub(crate) const SCRUBBER: TaskSpec = TaskSpec::new("ron-storage", "scrubber")
    .restart(Restart::PATIENT)
    .what("reads everything when asked or when it is time, within the byte rate of upkeep");

/// How often the keeper looks whether something is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often it looks, at the stop, whether the last writer is done.
const LOOK_AT_STOP: Duration = Duration::from_millis(5);

/// The part of the drain in which writers may finish; the rest is for the index.
const FINISH_SHARE: f64 = 0.8;

/// Reads a part of an object.
pub(crate) type GetPool = Pool<Read, Result<Bytes, StorageError>>;

/// Runs something that blocks. What it returns is left where its caller finds it.
pub(crate) type PutPool = Pool<Box<dyn FnOnce() + Send>, ()>;

/// Starts the workers that read.
pub(crate) fn start_gets(
    group: &Supervisor,
    settings: &Settings,
    objects: &Arc<Objects>,
) -> Result<GetPool, io::Error> {
    let capacity = Capacity::new("get_lane", settings.get_lane).expect("the settings were checked");
    let spec = PoolSpec { lane: GETS.with_capacity(capacity), task: GETTER, workers: settings.get_workers };
    let objects = Arc::clone(objects);
    Pool::start_blocking(group, spec, move |read: Read, _| objects.read(&read))
}

/// Starts the workers that write.
pub(crate) fn start_puts(group: &Supervisor, settings: &Settings) -> Result<PutPool, io::Error> {
    // A stream has one job at a time, or two while there are fewer streams than workers.
    let jobs = settings.put_lane + 2 * settings.put_workers.get();
    let capacity = Capacity::new("put_lane", jobs.min(Capacity::MAX)).expect("the settings were checked");
    let spec = PoolSpec { lane: PUTS.with_capacity(capacity), task: PUTTER, workers: settings.put_workers };
    Pool::start_blocking(group, spec, |job: Box<dyn FnOnce() + Send>, _| job())
}

/// Syncs that run at once. A disk that can do more of them at a time does them faster.
const SYNCERS: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// Starts the workers that sync.
pub(crate) fn start_syncs(group: &Supervisor, settings: &Settings) -> Result<PutPool, io::Error> {
    let capacity = Capacity::new("put_streams", settings.put_streams).expect("the settings were checked");
    let spec = PoolSpec { lane: SYNCS.with_capacity(capacity), task: SYNCER, workers: SYNCERS };
    Pool::start_blocking(group, spec, |job: Box<dyn FnOnce() + Send>, _| job())
}

/// [`run`] with a limit for the job itself, which is counted as `late` beyond it. Waiting for a worker is bounded by the
/// deadline alone: that others keep the workers busy says nothing about the disk.
pub(crate) async fn run_within<T: Send + 'static>(
    pool: &PutPool,
    deadline: Deadline,
    (limit, late): (Duration, &Tally),
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StorageError> {
    let began = Arc::new(OnceLock::new());
    let beginning = Arc::clone(&began);
    let run = run(pool, deadline, move || {
        let _ = beginning.set(now());
        job()
    });
    let is_late = async {
        let mut look = now() + limit;
        loop {
            tokio::time::sleep_until(look).await;
            match began.get() {
                Some(began) if now().saturating_duration_since(*began) >= limit => return,
                Some(began) => look = *began + limit,
                None => look = now() + limit,
            }
        }
    };
    tokio::select! {
        biased;
        done = run => done,
        () = is_late => {
            late.add(1);
            Err(StorageError::Timeout { op: "put" })
        }
    }
}

/// Runs something that blocks in the pool of those who write.
pub(crate) async fn run<T: Send + 'static>(
    pool: &PutPool,
    deadline: Deadline,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StorageError> {
    let slot = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&slot);
    let job = Box::new(move || {
        let done = job();
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    });
    pool.call("put", job, deadline).await?;
    let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    done.ok_or(StorageError::Canceled)
}

/// Something for the keeper to do.
pub(crate) enum Errand {
    Collect(Gc, Reply<Result<Collected, StorageError>>),
    Compact(Reply<Result<u64, StorageError>>),
    WriteBad(ContentId),
    Mend(u64),
    Sweep,
}

/// What the keeper needs.
pub(crate) struct Keeper {
    pub(crate) objects: Arc<Objects>,
    pub(crate) settings: Snapshot<Settings>,
    pub(crate) get_streams: Arc<Streams>,
    pub(crate) put_streams: Arc<Streams>,
    pub(crate) pacer: Arc<Pacer>,
    pub(crate) custody: Mutex<Option<Custody>>,
    /// The groups that stop after the keeper.
    pub(crate) below: Vec<Supervisor>,
}

/// Does what is asked for and what is due until the stop; then lets writers finish and writes the index.
pub(crate) async fn keep(keeper: Arc<Keeper>, inbox: Inbox<Errand>, stop: Stop) {
    let metrics = keeper.objects.metrics.clone();
    let mut upkeep = Upkeep::new(
        Arc::clone(&keeper.objects),
        Arc::clone(&keeper.pacer),
        metrics.histogram(UPKEEP_PAUSE_SECONDS),
        metrics.tally(COLLECTED, ""),
        metrics.tally(COMPACTED_BYTES, ""),
        stop.clone(),
    );
    let gauges = [OBJECTS, OBJECT_BYTES, GARBAGE_BYTES, QUARANTINED].map(|spec| metrics.gauge(spec));
    let (mut look, mut goes_on) = (now(), false);
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => break,
            () = tokio::time::sleep_until(look) => {
                let settings = keeper.settings.load();
                // Errands must not wait for compaction, however much there is of it.
                while let Some(errand) = inbox.try_recv().filter(|_| !stop.is_requested()) {
                    serve(&keeper, &mut upkeep, errand).await;
                }
                goes_on = upkeep.tick(&settings, goes_on).await;
                let usage = keeper.objects.usage();
                let values = [usage.objects, usage.bytes, usage.garbage_bytes, usage.quarantined];
                gauges.iter().zip(values).for_each(|(gauge, value)| gauge.set(value as f64));
                look = if goes_on { now() } else { now() + LOOK_EVERY };
            }
            errand = inbox.recv() => match errand {
                Some(errand) => serve(&keeper, &mut upkeep, errand).await,
                None => break,
            },
        }
    }
    close(&keeper, &mut upkeep, &stop).await;
    tracing::debug!(groups = keeper.below.len(), "the keeper ends");
}

async fn serve(keeper: &Keeper, upkeep: &mut Upkeep, errand: Errand) {
    let settings = keeper.settings.load();
    match errand {
        Errand::Collect(gc, reply) => reply.send(upkeep.collect(&gc, &settings).await),
        Errand::Compact(reply) => reply.send(upkeep.compact(&settings, usize::MAX).await),
        Errand::WriteBad(id) => {
            let deadline = Deadline::after(settings.write_timeout);
            if let Err(error) = keeper.objects.write_bad(id, deadline).await {
                tracing::warn!(%id, %error, "damage could not be written down");
                keeper.objects.owes_notes.store(true, Ordering::Release);
            }
        }
        Errand::Mend(sequence) => {
            if let Err(error) = upkeep.mend(sequence).await {
                tracing::warn!(sequence, %error, "the journal could not be mended");
            }
        }
        Errand::Sweep => upkeep.sweep().await,
    }
}

/// Waits for those who write and read, and leaves everything so that opening is quick.
async fn close(keeper: &Keeper, upkeep: &mut Upkeep, stop: &Stop) {
    let left = stop.drain_until().map_or(Duration::ZERO, Deadline::remaining);
    let until = Deadline::after(left.mul_f64(FINISH_SHARE));
    let is_busy = || {
        // A put that lost its place is not among the streams, and its files are there all the same.
        let is_writing = keeper.put_streams.open() > 0 || keeper.objects.large.ingests() > 0;
        is_writing || !keeper.objects.holds.is_idle()
    };
    // The pools stop after this, so those who read can finish too.
    while (is_busy() || keeper.get_streams.open() > 0) && !until.has_passed() {
        tokio::time::sleep(LOOK_AT_STOP).await;
    }
    let was_busy = is_busy();
    #[cfg(feature = "net")]
    let is_settled = upkeep.settle_partials(&keeper.settings.load()).await;
    #[cfg(not(feature = "net"))]
    let is_settled = true;
    // In this order: a doubt may turn out to be about a file that nobody needs.
    upkeep.settle_doubts().await;
    upkeep.sweep().await;
    let custody = keeper.custody.lock().unwrap_or_else(PoisonError::into_inner).take();
    if !keeper.objects.is_durable {
        return;
    }
    if let Err(error) = upkeep.checkpoint().await {
        tracing::warn!(%error, "the index was not written before the stop");
        return;
    }
    let has_doubts = keeper.objects.holds.floor().is_some();
    if was_busy || has_doubts || !is_settled || keeper.objects.large.has_doomed() {
        return;
    }
    let Some(custody) = custody else { return };
    // Nobody looks for leftovers after a clean stop, so what was removed must not come back.
    let large = Arc::clone(&keeper.objects.large);
    let close = move || large.sync().and_then(|()| custody.close());
    let closed = keeper.objects.spawner.blocking("close", Deadline::after(LOOK_EVERY), close).await;
    if let Ok(Err(error)) = closed {
        tracing::warn!(%error, "the next start will look for files that nobody needs");
    }
}

/// Scrubs when asked, and when it is time.
pub(crate) async fn scrub_all(
    keeper: Arc<Keeper>,
    inbox: Inbox<Reply<Result<Scrubbed, StorageError>>>,
    stop: Stop,
) {
    let mut last = now();
    loop {
        let every = keeper.settings.load().scrub_every;
        let is_time = async {
            match every {
                Some(every) => tokio::time::sleep_until(last + every).await,
                None => std::future::pending().await,
            }
        };
        let reply = tokio::select! {
            biased;
            () = stop.requested() => return,
            reply = inbox.recv() => match reply {
                Some(reply) => Some(reply),
                None => return,
            },
            () = is_time => None,
            // The settings may say something else by now.
            () = tokio::time::sleep(LOOK_EVERY) => continue,
        };
        let scrubbed = tokio::select! {
            biased;
            () = stop.requested() => return,
            scrubbed = scrub(&keeper.objects, &keeper.pacer) => scrubbed,
        };
        last = now();
        match reply {
            Some(reply) => reply.send(scrubbed),
            None => {
                if let Err(error) = scrubbed {
                    tracing::warn!(%error, "the scrub ended early");
                }
            }
        }
    }
}

/// The rate of upkeep, and how much of it may be used at once.
pub(crate) fn pace(settings: &Settings) -> (NonZeroU64, NonZeroU64) {
    let rate = NonZeroU64::new(settings.upkeep_bytes_per_second).unwrap_or(NonZeroU64::MIN);
    (rate, rate.max(NonZeroU64::new(4 << 20).expect("not zero")))
}
