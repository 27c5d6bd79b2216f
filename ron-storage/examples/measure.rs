//! Figures of a store on a real directory, beside the raw limits of the same disk.
//!
//! `measure DIR [puts] [large] [huge] [many] [threshold] [plan]`: small durable puts and gets, a gibibyte and ten of them in and out, a
//! million objects, objects around the length at which they become files, and what the planner of repairs keeps in mind about a
//! million objects of fifty nodes. `measure DIR open` opens the store that is there, and `measure DIR fill` leaves one of a hundred
//! thousand objects, as a data directory of refd has it.

#![allow(missing_docs, clippy::unwrap_used, reason = "a tool for those who measure")]

use std::{
    convert::Infallible,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Supervisor, TaskSpec, disk::RealDisk, now};
use ron_storage::{Durability, Put, Settings, Store};

const CALLER: TaskSpec = TaskSpec::new("measure", "caller");
const GIB: u64 = 1 << 30;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

async fn open(dir: &Path, settings: Settings) -> (Store, Supervisor) {
    let host = Supervisor::new("host");
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    (Store::builder().data(disk, "store").settings(settings).start(&host).await.unwrap(), host)
}

/// Kibibytes of memory.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn rss() -> u64 {
    memory("VmRSS")
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

fn block(number: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

/// Runs `count` calls, `at_once` of them at a time, and says how long all and each took.
async fn load<F>(
    host: &Supervisor,
    count: u64,
    at_once: u64,
    call: impl Fn(u64) -> F + Clone + Send + 'static,
) -> (Duration, Vec<Duration>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let began = now();
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..at_once)
        .map(|first| {
            let (call, times) = (call.clone(), Arc::clone(&times));
            host.spawn(CALLER, move |_| async move {
                let mut own = Vec::new();
                for number in (first..count).step_by(at_once as usize) {
                    let began = now();
                    call(number).await;
                    own.push(began.elapsed());
                }
                times.lock().unwrap().extend(own);
            })
        })
        .collect();
    for task in tasks {
        task.ended().await;
    }
    let times = std::mem::take(&mut *times.lock().unwrap());
    (began.elapsed(), times)
}

/// The least that durable small puts could take: batches as large as ours, appended and synced.
fn raw_group_commit(dir: &Path, count: u64, at_once: u64, len: usize) -> Duration {
    let file = File::create(dir.join("raw")).unwrap();
    file.set_len(count * len as u64).unwrap();
    file.sync_all().unwrap();
    let batch = vec![7; len * at_once as usize];
    let began = now();
    for number in 0..count.div_ceil(at_once) {
        file.write_all_at(&batch, number * batch.len() as u64).unwrap();
        file.sync_data().unwrap();
    }
    began.elapsed()
}

async fn puts(dir: &Path) {
    for (count, at_once, len) in [(10_000, 64, 4096), (2_000, 1, 4096), (4_000, 16, 65_536)] {
        let blocks: Arc<Vec<Bytes>> =
            Arc::new((0..count).map(|number| block(number + at_once * GIB, len)).collect());
        let raw = raw_group_commit(dir, count, at_once, len);
        let (store, host) = open(dir, Settings::default()).await;
        let put = {
            let (store, blocks) = (store.clone(), Arc::clone(&blocks));
            move |number: u64| {
                let (store, content) = (store.clone(), blocks[number as usize].clone());
                async move {
                    store.put_bytes(content, soon()).await.unwrap();
                }
            }
        };
        let (took, mut times) = load(&host, count, at_once, put).await;
        println!(
            "put {len:>6} B, {at_once:>2} at once: {:>8.0}/s, p50 {:?}, p99 {:?}; raw group commit {:>8.0}/s, {:.2}x of it",
            count as f64 / took.as_secs_f64(),
            quantile(&mut times, 0.5),
            quantile(&mut times, 0.99),
            count as f64 / raw.as_secs_f64(),
            took.as_secs_f64() / raw.as_secs_f64(),
        );
        let names: Arc<Vec<ContentId>> = Arc::new(blocks.iter().map(|block| ContentId::of(block)).collect());
        for at_once in [1, 16] {
            let get = {
                let (store, names) = (store.clone(), Arc::clone(&names));
                move |number: u64| {
                    let (store, id) = (store.clone(), names[number as usize]);
                    async move {
                        store.get_bytes(id, 1 << 20, soon()).await.unwrap();
                    }
                }
            };
            let (took, mut times) = load(&host, count, at_once, get).await;
            println!(
                "get {len:>6} B, {at_once:>2} at once: {:>8.0}/s, p50 {:?}, p99 {:?}",
                count as f64 / took.as_secs_f64(),
                quantile(&mut times, 0.5),
                quantile(&mut times, 0.99),
            );
        }
        println!("rss {} MiB", rss() >> 10);
        host.shutdown().await;
    }
}

/// A gibibyte out of the same mebibyte, each time with another beginning.
struct Gibibyte {
    piece: Bytes,
    left: u64,
    seed: u64,
}

impl futures_core::Stream for Gibibyte {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let number = self.left * 1000 + self.seed;
        let mut piece = self.piece.to_vec();
        piece[..8].copy_from_slice(&number.to_be_bytes());
        Poll::Ready(Some(Ok(piece.into())))
    }
}

fn raw_write(dir: &Path) -> Duration {
    let path = dir.join("raw-large");
    let _ = std::fs::remove_file(&path);
    let block = block(1, 1 << 20);
    let began = now();
    let file = File::create(&path).unwrap();
    for number in 0..1024 {
        file.write_all_at(&block, number << 20).unwrap();
    }
    file.sync_data().unwrap();
    let took = began.elapsed();
    std::fs::remove_file(&path).unwrap();
    took
}

fn raw_hash() -> Duration {
    let block = block(1, 1 << 20);
    let mut hasher = blake3::Hasher::new();
    let began = now();
    for _ in 0..1024 {
        hasher.update(&block);
    }
    assert_ne!(hasher.finalize().as_bytes()[0], 0);
    began.elapsed()
}

async fn large(dir: &Path) {
    let rate = |took: Duration| 1024.0 / took.as_secs_f64();
    raw_write(dir);
    let (mut shares, piece) = (Vec::new(), block(2, 1 << 20));
    for seed in 0..5 {
        let (written, hashed) = (raw_write(dir), raw_hash());
        let (store, host) = open(dir, Settings::default()).await;
        let began = now();
        let stored = store.put(Gibibyte { piece: piece.clone(), left: 1024, seed }, soon()).await.unwrap();
        let took = began.elapsed();
        let began = now();
        let mut reader = store.get(stored.id, .., soon()).await.unwrap();
        while reader.next().await.unwrap().is_some() {}
        let read = began.elapsed();
        let limit = written.max(hashed);
        shares.push(limit.as_secs_f64() / took.as_secs_f64());
        println!(
            "1 GiB: put {:.0} MiB/s, get {:.0} MiB/s; raw write and sync {:.0}, blake3 {:.0}; put is {:.2} of the lesser; rss {} MiB",
            rate(took),
            rate(read),
            rate(written),
            rate(hashed),
            shares[shares.len() - 1],
            rss() >> 10,
        );
        store.delete(stored.id, soon()).await.unwrap();
        host.shutdown().await;
    }
    shares.sort_by(f64::total_cmp);
    println!("1 GiB: median {:.2} of the lesser of the raw limits", shares[shares.len() / 2]);
}

async fn huge(dir: &Path) {
    let (store, host) = open(dir, Settings::default()).await;
    let before = rss();
    let source = Gibibyte { piece: block(3, 1 << 20), left: 10_240, seed: 1 };
    let began = now();
    let stored = store.put(source, soon()).await.unwrap();
    let (put, held) = (began.elapsed(), rss().saturating_sub(before) >> 10);
    let began = now();
    let mut reader = store.get(stored.id, .., soon()).await.unwrap();
    while reader.next().await.unwrap().is_some() {}
    println!(
        "10 GiB: put {:.0} MiB/s, get {:.0} MiB/s; rss {held} MiB more after the put, {} after the get, {} at most",
        10_240.0 / put.as_secs_f64(),
        10_240.0 / began.elapsed().as_secs_f64(),
        rss().saturating_sub(before) >> 10,
        memory("VmHWM").saturating_sub(before) >> 10,
    );
    drop(reader);
    host.shutdown().await;
}

async fn many(dir: &Path, count: u64) {
    let (store, host) = open(dir, Settings::default()).await;
    let before = rss();
    let put = {
        let store = store.clone();
        move |number: u64| {
            let store = store.clone();
            async move {
                let buffered = Put { durability: Durability::Buffered, ..Put::default() };
                let piece = Gibibyte { piece: block(number, 256), left: 1, seed: number };
                store.put_with(piece, buffered, soon()).await.unwrap();
            }
        }
    };
    let (took, _) = load(&host, count, 64, put).await;
    println!(
        "{count} objects of 256 B, buffered: {:.0}/s; {} B of memory for each",
        count as f64 / took.as_secs_f64(),
        ((rss() - before) << 10) / count,
    );
    drop(store);
    let began = now();
    host.shutdown().await;
    println!("clean stop: {:?}", began.elapsed());
    for has_index in [true, false] {
        if !has_index {
            std::fs::remove_file(dir.join("store/index")).unwrap();
        }
        // In a process of its own, in which nothing was used and freed before.
        let program = std::env::current_exe().unwrap();
        assert!(std::process::Command::new(program).arg(dir).arg("open").status().unwrap().success());
    }
}

/// Leaves many small objects.
async fn fill(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let (count, len) = (100_000, 4096);
    let (store, host) = open(dir, Settings::default()).await;
    let put = {
        let store = store.clone();
        move |number: u64| {
            let store = store.clone();
            async move {
                store.put_bytes(block(number, len), soon()).await.unwrap();
            }
        }
    };
    let (took, _) = load(&host, count, 64, put).await;
    println!("{} objects of {len} B in {took:?}", store.usage().objects);
    drop(store);
    host.shutdown().await;
}

/// Opens what is there.
async fn reopen(dir: &Path) {
    let (before, began) = (rss(), now());
    let (store, host) = open(dir, Settings::default()).await;
    let (took, usage) = (began.elapsed(), store.usage());
    let memory = rss().saturating_sub(before) << 10;
    println!(
        "open {}: {took:?}, {} objects, {:.0} objects/s, {:.0} MiB of journal; {} B of memory for each",
        store.opened().rebuilt.as_ref().map_or("with its index", |_| "without its index"),
        usage.objects,
        usage.objects as f64 / took.as_secs_f64(),
        usage.disk_bytes as f64 / (1 << 20) as f64,
        memory / usage.objects.max(1),
    );
    drop(store);
    host.shutdown().await;
}

async fn threshold(dir: &Path) {
    for len in [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20] {
        for small in [0, 4 << 20] {
            let settings = Settings { small_bytes_max: small, ..Settings::default() };
            let (store, host) = open(dir, settings).await;
            let count = (128 << 20) / len as u64;
            let blocks: Arc<Vec<Bytes>> = Arc::new(
                (0..count)
                    .map(|number| block(number * 7 + len as u64 * 1000 + u64::from(small), len))
                    .collect(),
            );
            let put = {
                let (store, blocks) = (store.clone(), Arc::clone(&blocks));
                move |number: u64| {
                    let (store, content) = (store.clone(), blocks[number as usize].clone());
                    async move {
                        store.put_bytes(content, soon()).await.unwrap();
                    }
                }
            };
            let (took, mut times) = load(&host, count, 16, put).await;
            println!(
                "{} KiB as {}: {:.0}/s, {:.0} MiB/s, p99 {:?}",
                len >> 10,
                if small == 0 { "file" } else { "record" },
                count as f64 / took.as_secs_f64(),
                128.0 / took.as_secs_f64(),
                quantile(&mut times, 0.99),
            );
            host.shutdown().await;
        }
    }
}

/// What a planner keeps in mind, and what it takes to weigh all of it and to lose a node.
fn plan() {
    use ron_storage::logic::{
        claims::{Coding, Standing, Wanted},
        plan::{Claimed, Holding, Node, Plan, PlanSettings, Presence},
    };
    const NODES: u64 = 50;
    let id = |number: u64| ron_core::NodeId::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes());
    for (objects, shards) in [(1_000_000_u64, 0_u64), (200_000, 9)] {
        let before = rss();
        let mut plan = Plan::new(id(0), PlanSettings::default());
        let mut nodes: Vec<Node> = (0..NODES)
            .map(|number| Node {
                id: id(number),
                zone: number % 10,
                weight: 100,
                presence: Presence::Up,
                is_durable: true,
            })
            .collect();
        plan.on_nodes(&nodes, Duration::ZERO);
        let began = now();
        for number in 0..objects {
            let object = ContentId::of(&number.to_le_bytes());
            let names: Vec<ContentId> = (0..shards)
                .map(|at| ContentId::of(&[number.to_le_bytes(), at.to_le_bytes()].concat()))
                .collect();
            let coding = Coding { data: 6, parity: 3, manifest: object };
            let wanted = match shards {
                0 => Wanted { copies: 3, len: 1, ..Wanted::default() },
                _ => Wanted { codings: vec![coding], len: 1, ..Wanted::default() },
            };
            let of = if shards == 0 { Vec::new() } else { vec![names.clone()] };
            plan.on_claims(object, Claimed { standing: Standing::Live(wanted), shards: of });
            let pieces = if shards == 0 { vec![object; 3] } else { names };
            for (piece, node) in pieces.iter().zip(plan.targets(&object, pieces.len())) {
                plan.on_held(node, *piece, Holding::Good);
            }
        }
        let told = began.elapsed();
        let settle = |plan: &mut Plan, at: Duration| {
            let began = now();
            let mut jobs = 0;
            while plan.poll(at).is_some() || plan.weighing() > 0 {
                jobs += 1;
            }
            (began.elapsed(), jobs)
        };
        let (weighed, _) = settle(&mut plan, Duration::ZERO);
        let bytes = (rss() - before) * 1024 / objects;
        let began = now();
        for _ in 0..1000 {
            assert!(plan.poll(Duration::ZERO).is_none());
            let _ = plan.fewest_copies();
        }
        let idle = began.elapsed() / 1000;
        nodes[7].presence = Presence::Away;
        plan.on_nodes(&nodes, Duration::ZERO);
        let (lost, jobs) = settle(&mut plan, Duration::from_secs(3600));
        println!(
            "{objects} objects as {}: {bytes} B each; told in {told:.2?}, weighed in {weighed:.2?}, a look without news {idle:?}; \
             a node lost: {jobs} turns in {lost:.2?}",
            if shards == 0 { "3 copies" } else { "6+3" },
        );
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let root: PathBuf = arguments.next().expect("a directory").into();
    for part in arguments {
        if part == "open" {
            reopen(&root).await;
            continue;
        }
        if part == "fill" {
            fill(&root).await;
            continue;
        }
        let (part, count) = part.split_once('=').unwrap_or((&part, "1000000"));
        let dir = root.join(part);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        match part {
            "puts" => puts(&dir).await,
            "large" => large(&dir).await,
            "huge" => huge(&dir).await,
            "many" => many(&dir, count.parse().expect("a number")).await,
            "threshold" => threshold(&dir).await,
            "plan" => plan(),
            other => panic!("no part {other}"),
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
