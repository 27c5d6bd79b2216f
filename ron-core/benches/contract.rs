//! What the contract costs: each part beside the bare thing it is built in place of.
//!
//! `cargo bench -p ron-core` prints, for every comparison, the median of interleaved rounds and the median of the
//! per-round ratios. Rounds alternate between ours and the other, so that a slow moment of the machine hits both.
//! Opening and closing are not timed.
//! Lanes, feeds and pools run with their metrics registered.

#![allow(clippy::disallowed_methods, reason = "the bare side of each comparison is what the lint forbids")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench is not an API")]

use std::{
    hint::black_box,
    num::NonZeroUsize,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prometheus_client::registry::Registry;
use ron_core::{
    Deadline, Event, Feed, Inbox, Lane, LaneSpec, Metrics, Pool, PoolSpec, Supervisor, TaskSpec,
    disk::RealDisk,
    journal::{Journal, Settings},
};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, broadcast, mpsc, oneshot},
    task::JoinSet,
};

const ROUNDS: usize = 15;
const CAPACITY: usize = 512;
const WORK: LaneSpec = LaneSpec::new("bench", "work", CAPACITY);
const EVENTS: LaneSpec = LaneSpec::feed("bench", "events", 1024);

fn main() {
    // `cargo test --benches` only checks that it runs.
    let quick = std::env::args().any(|arg| arg == "--test");
    let filter: Option<String> = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bench =
        Bench { runtime, rounds: if quick { 1 } else { ROUNDS }, scale: if quick { 100 } else { 1 }, filter };
    println!("{:<44} {:>12} {:>12} {:>8}", "comparison", "ours/s", "bare/s", "ratio");
    for producers in [1, 4, 16] {
        let items = 400_000;
        bench.compare(
            &format!("lane, wait for room, {producers} producers"),
            items,
            |runtime, items| runtime.block_on(lane_wait(producers, items)),
            |runtime, items| runtime.block_on(mpsc_wait(producers, items)),
        );
        bench.compare(
            &format!("lane, refuse when full, {producers} producers"),
            items,
            |runtime, items| runtime.block_on(lane_try(producers, items)),
            |runtime, items| runtime.block_on(mpsc_try(producers, items)),
        );
    }
    for subscribers in [1, 4, 16] {
        bench.compare(
            &format!("feed, {subscribers} subscribers"),
            200_000 / subscribers,
            move |runtime, items| runtime.block_on(feed(subscribers, items)),
            move |runtime, items| runtime.block_on(broadcast(subscribers, items)),
        );
    }
    for callers in [1, 16, 64] {
        bench.compare(
            &format!("pool of 8, {callers} callers"),
            100_000,
            move |runtime, items| runtime.block_on(pool(callers, items)),
            move |runtime, items| runtime.block_on(semaphore_and_spawn(callers, items)),
        );
    }
    for (writers, items) in [(1, 400), (32, 6400), (256, 51_200)] {
        bench.compare(
            &format!("journal, {writers} writers"),
            items,
            move |runtime, items| runtime.block_on(journal(writers, items)),
            move |runtime, items| runtime.block_on(write_and_fdatasync(writers, items)),
        );
    }
}

struct Bench {
    runtime: Runtime,
    rounds: usize,
    scale: usize,
    filter: Option<String>,
}

impl Bench {
    fn compare(
        &self,
        name: &str,
        items: usize,
        ours: impl Fn(&Runtime, usize) -> Duration,
        bare: impl Fn(&Runtime, usize) -> Duration,
    ) {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return;
        }
        let items = items / self.scale;
        let time = |run: &dyn Fn(&Runtime, usize) -> Duration| run(&self.runtime, items).as_secs_f64();
        time(&ours);
        time(&bare);
        let (mut our_times, mut bare_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // Who goes first alternates too.
            let (our_time, bare_time) = if round % 2 == 0 {
                let our_time = time(&ours);
                (our_time, time(&bare))
            } else {
                let bare_time = time(&bare);
                (time(&ours), bare_time)
            };
            our_times.push(our_time);
            bare_times.push(bare_time);
            ratios.push(bare_time / our_time);
        }
        let rate = |times| items as f64 / median(times);
        println!("{name:<44} {:>12.0} {:>12.0} {:>7.2}x", rate(our_times), rate(bare_times), median(ratios));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn registered() -> (Registry, Metrics) {
    let mut registry = Registry::default();
    let metrics = Metrics::register("bench", &mut registry);
    (registry, metrics)
}

fn later() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Runs the producers and the consumer together and times them.
async fn race<P, C>(producers: usize, producer: impl Fn() -> P, consumer: C) -> Duration
where
    P: Future<Output = ()> + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        tasks.spawn(producer());
    }
    // With it goes the last sender.
    drop(producer);
    tasks.spawn(consumer);
    tasks.join_all().await;
    began.elapsed()
}

async fn take_all(inbox: Inbox<usize>) {
    while let Some(item) = inbox.recv().await {
        black_box(item);
    }
}

async fn receive_all(mut receiver: mpsc::Receiver<usize>) {
    while let Some(item) = receiver.recv().await {
        black_box(item);
    }
}

async fn lane_wait(producers: usize, items: usize) -> Duration {
    let (_registry, metrics) = registered();
    let (lane, inbox) = Lane::<usize>::open(WORK, &metrics);
    let producer = move || {
        let (lane, deadline) = (lane.clone(), later());
        async move {
            for item in 0..items / producers {
                lane.push(item, deadline).await.unwrap();
            }
        }
    };
    race(producers, producer, take_all(inbox)).await
}

async fn mpsc_wait(producers: usize, items: usize) -> Duration {
    let (sender, receiver) = mpsc::channel::<usize>(CAPACITY);
    let producer = move || {
        let sender = sender.clone();
        async move {
            for item in 0..items / producers {
                sender.send(item).await.unwrap();
            }
        }
    };
    race(producers, producer, receive_all(receiver)).await
}

async fn lane_try(producers: usize, items: usize) -> Duration {
    let (_registry, metrics) = registered();
    let (lane, inbox) = Lane::<usize>::open(WORK, &metrics);
    let producer = move || {
        let lane = lane.clone();
        async move {
            for item in 0..items / producers {
                while lane.try_push(item).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    race(producers, producer, take_all(inbox)).await
}

async fn mpsc_try(producers: usize, items: usize) -> Duration {
    let (sender, receiver) = mpsc::channel::<usize>(CAPACITY);
    let producer = move || {
        let sender = sender.clone();
        async move {
            for item in 0..items / producers {
                while sender.try_send(item).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    race(producers, producer, receive_all(receiver)).await
}

/// Events go out in bursts that fit, so that nobody lags and both sides do the same work.
const BURST: usize = 256;

async fn feed(subscribers: usize, items: usize) -> Duration {
    let (_registry, metrics) = registered();
    let feed = Feed::<usize>::open(EVENTS, &metrics);
    let read = Arc::new(Semaphore::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..subscribers {
        let (mut subscriber, read) = (feed.subscribe(), Arc::clone(&read));
        tasks.spawn(async move {
            while let Some(Event::Item(item)) = subscriber.recv().await {
                if item % BURST == BURST - 1 {
                    read.add_permits(1);
                }
            }
        });
    }
    tasks.spawn(async move {
        for item in 0..items {
            feed.publish(item);
            if item % BURST == BURST - 1 {
                read.acquire_many(subscribers as u32).await.unwrap().forget();
            }
        }
    });
    tasks.join_all().await;
    began.elapsed()
}

async fn broadcast(subscribers: usize, items: usize) -> Duration {
    let (sender, _) = broadcast::channel::<usize>(EVENTS.capacity);
    let read = Arc::new(Semaphore::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..subscribers {
        let (mut receiver, read) = (sender.subscribe(), Arc::clone(&read));
        tasks.spawn(async move {
            while let Ok(item) = receiver.recv().await {
                if item % BURST == BURST - 1 {
                    read.add_permits(1);
                }
            }
        });
    }
    tasks.spawn(async move {
        for item in 0..items {
            let _ = sender.send(item);
            if item % BURST == BURST - 1 {
                read.acquire_many(subscribers as u32).await.unwrap().forget();
            }
        }
    });
    tasks.join_all().await;
    began.elapsed()
}

const WORKERS: usize = 8;

async fn pool(callers: usize, items: usize) -> Duration {
    let (_registry, metrics) = registered();
    let supervisor = Supervisor::builder("bench").metrics(metrics).start();
    let spec = PoolSpec {
        lane: WORK,
        task: TaskSpec::new("bench", "worker"),
        workers: NonZeroUsize::new(WORKERS).unwrap(),
    };
    let pool = Pool::start(&supervisor, spec, |job: usize, _| async move { job + 1 });
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let pool = pool.clone();
        tasks.spawn(async move {
            for job in 0..items / callers {
                black_box(pool.call("job", job, later()).await.unwrap());
            }
        });
    }
    tasks.join_all().await;
    let elapsed = began.elapsed();
    supervisor.shutdown().await;
    elapsed
}

/// What a pool stands in for: a permit, a task, and a deadline for the caller.
async fn semaphore_and_spawn(callers: usize, items: usize) -> Duration {
    let permits = Arc::new(Semaphore::new(WORKERS));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let permits = Arc::clone(&permits);
        tasks.spawn(async move {
            for job in 0..items / callers {
                let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
                let running = tokio::spawn(async move {
                    let _permit = permit;
                    job + 1
                });
                let answer = tokio::time::timeout(Duration::from_secs(60), running).await;
                black_box(answer.unwrap().unwrap());
            }
        });
    }
    tasks.join_all().await;
    began.elapsed()
}

const RECORD: usize = 256;

async fn journal(writers: usize, items: usize) -> Duration {
    let (_registry, metrics) = registered();
    let supervisor = Supervisor::builder("bench").metrics(metrics).start();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let opened = Journal::open(&supervisor, disk, Path::new("log"), Settings::default()).await;
    let (journal, _) = opened.unwrap();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let journal = journal.clone();
        tasks.spawn(async move {
            let payload = Bytes::from(vec![7; RECORD]);
            for _ in 0..items.div_ceil(writers) {
                journal.append(1, payload.clone(), later()).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let elapsed = began.elapsed();
    supervisor.shutdown().await;
    elapsed
}

/// Group commit without a format: one thread takes what has gathered, writes it, syncs, answers. The file is
/// preallocated like a segment.
async fn write_and_fdatasync(writers: usize, items: usize) -> Duration {
    type Append = (Bytes, oneshot::Sender<u64>);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let (sender, mut receiver) = mpsc::channel::<Append>(1024);
    let writer = std::thread::spawn(move || {
        let file = std::fs::File::create_new(path).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4 << 20).unwrap();
        file.sync_all().unwrap();
        let mut end = 0u64;
        let (mut buffer, mut waiting) = (Vec::new(), Vec::new());
        while let Some(first) = receiver.blocking_recv() {
            let mut next = Some(first);
            while let Some((payload, reply)) = next.take() {
                buffer.extend_from_slice(&payload);
                waiting.push(reply);
                next = receiver.try_recv().ok();
            }
            file.write_all_at(&buffer, end).unwrap();
            file.sync_data().unwrap();
            end += buffer.len() as u64;
            buffer.clear();
            for reply in waiting.drain(..) {
                let _ = reply.send(end);
            }
        }
    });
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let sender = sender.clone();
        tasks.spawn(async move {
            let payload = Bytes::from(vec![7; RECORD]);
            for _ in 0..items.div_ceil(writers) {
                let (reply, answer) = oneshot::channel();
                sender.send((payload.clone(), reply)).await.unwrap();
                black_box(answer.await.unwrap());
            }
        });
    }
    tasks.join_all().await;
    let elapsed = began.elapsed();
    drop(sender);
    writer.join().unwrap();
    elapsed
}
