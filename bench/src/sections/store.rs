//! Objects put and got on one disk: how fast, how soon, how dear, beside the limits of the disk and of the processor.
//!
//! Each contender has a process and a directory for itself in every round. Contents are random and all different. A put
//! counts when it is acknowledged: ours and object_store's are on the disk then, iroh-blobs' are not. What is got is in the
//! page cache and is verified, for object_store by us. Processor time is that of the whole process, callers included.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use ron_core::ContentId;

use crate::{
    figures::{Figures, told},
    measure::{Bench, Contender, Outcome, Series, Stopwatch, peak_of, quantile, runtime, table, take_turns},
    peers::stores::{MIB, Peer, Pieces, group_commit, hash, read, write},
};

const RAW: &str = "limit";

const CONTENDERS: [&str; 4] = [RAW, "object_store", "iroh-blobs", "ron-storage"];

/// Small objects, how many are put at once and how many are got.
const OBJECTS: u64 = 10_000;
const OBJECT_BYTES: usize = 4 << 10;
const PUTS: usize = 64;
const GETS: usize = 16;

/// Mebibytes of the large one.
const LARGE: u64 = 1024;

/// A large object takes seconds for each contender.
const ROUNDS_MOST: usize = 5;

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let is_here = |name: &&str| {
        (cfg!(feature = "iroh") || *name != "iroh-blobs")
            && (bench.only.is_empty() || *name == RAW || bench.only.iter().any(|only| only == name))
    };
    let contenders: Vec<&'static str> = CONTENDERS.into_iter().filter(is_here).collect();
    let rounds = bench.rounds.min(ROUNDS_MOST);
    let measured = |what: &'static str, work: u64| -> Outcome<Vec<Series<Figures>>> {
        let round = |name: &'static str| {
            Contender::new(name, move || {
                let dir = tempfile::tempdir()?;
                let path = dir.path().to_str().ok_or("a directory has a name")?;
                Figures::of_process(&["--store-cell", what, name, path, &work.to_string()])
            })
        };
        take_turns(rounds, 1, contenders.iter().map(|name| round(name)).collect())
    };

    let (objects, mebibytes) = (bench.scaled(OBJECTS), bench.scaled(LARGE));
    let series = measured("small", objects)?;
    let small = |puts_or_gets: &str| {
        let name = |figure: &str| format!("{puts_or_gets}.{figure}");
        let row = |one: &Series<Figures>| {
            vec![
                one.name.to_owned(),
                told(one.median(|run| run.get(&name("rate"))), 0),
                told(one.ratio(&series[0], |run| run.get(&name("rate"))), 2),
                told(one.median(|run| run.get(&name("p50"))), 2),
                told(one.median(|run| run.get(&name("p99"))), 2),
                told(one.median(|run| run.get(&name("cpu"))), 1),
                told(one.median(|run| run.get("memory")), 0),
            ]
        };
        let head = ["", "a second", "of the limit", "p50 ms", "p99 ms", "CPU µs each", "peak MiB"];
        table(&head, &series.iter().map(row).collect::<Vec<_>>());
    };
    println!("{objects} objects of 4 KiB put, {PUTS} at once:\n");
    small("put");
    println!("\nThe same got, {GETS} at once:\n");
    small("get");

    let series = measured("large", mebibytes)?;
    let large = |put_or_get: &str| {
        let name = |figure: &str| format!("{put_or_get}.{figure}");
        let row = |one: &Series<Figures>| {
            vec![
                one.name.to_owned(),
                told(one.median(|run| run.get(&name("rate"))), 0),
                told(one.ratio(&series[0], |run| run.get(&name("rate"))), 2),
                told(one.median(|run| run.get(&name("cpu"))), 2),
                told(one.median(|run| run.get("memory")), 0),
            ]
        };
        let head = ["", "MiB/s", "of the limit", "CPU s/GiB", "peak MiB"];
        table(&head, &series.iter().map(row).collect::<Vec<_>>());
    };
    println!("\nAn object of {mebibytes} MiB put as a stream:\n");
    large("put");
    println!(
        "\nAlone, BLAKE3 on one thread makes {} MiB/s and writing with fdatasync {}: the limit is the slower of them in each \
         round.\n",
        told(series[0].median(|run| run.get("hash.rate")), 0),
        told(series[0].median(|run| run.get("write.rate")), 0),
    );
    println!("The same got as a stream:\n");
    large("get");
    Ok(())
}

/// One contender in one round.
pub(crate) fn child(arguments: &[String]) -> Outcome<()> {
    let [what, name, dir, work] = arguments else { return Err("what, who, directory, work".into()) };
    let (work, dir) = (work.parse::<u64>()?, std::path::Path::new(dir));
    let mut figures = Figures::default();
    match (&**what, &**name) {
        ("small", RAW) => raw_small(dir, work, &mut figures)?,
        ("small", name) => runtime()?.block_on(small(name, dir, work, &mut figures))?,
        ("large", RAW) => raw_large(dir, work, &mut figures)?,
        (_, name) => runtime()?.block_on(large(name, dir, work, &mut figures))?,
    }
    figures.set("memory", peak_of(std::process::id())?);
    print!("{figures}");
    Ok(())
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn objects(count: u64) -> Vec<Bytes> {
    (0..count).map(|number| random(number, OBJECT_BYTES).into()).collect()
}

pub(crate) fn tell_small(
    figures: &mut Figures,
    what: &str,
    watch: Stopwatch,
    count: u64,
    mut times: Vec<Duration>,
) {
    let sample = watch.stop(count);
    times.sort_unstable();
    figures.set(format!("{what}.rate"), sample.per_second());
    figures.set(format!("{what}.cpu"), sample.cpu_micros());
    figures.set(format!("{what}.p50"), quantile(&times, 0.5).as_secs_f64() * 1e3);
    figures.set(format!("{what}.p99"), quantile(&times, 0.99).as_secs_f64() * 1e3);
}

fn tell_large(figures: &mut Figures, what: &str, watch: Stopwatch, mebibytes: u64) {
    let sample = watch.stop(mebibytes);
    figures.set(format!("{what}.rate"), sample.per_second());
    figures.set(format!("{what}.cpu"), sample.cpu.as_secs_f64() * 1024.0 / mebibytes as f64);
}

fn raw_small(dir: &std::path::Path, count: u64, figures: &mut Figures) -> Outcome<()> {
    let objects = objects(count);
    let watch = Stopwatch::start();
    let times = group_commit(dir, &objects, PUTS)?;
    tell_small(figures, "put", watch, count, times);
    let file = std::fs::File::open(dir.join("raw"))?;
    let (mut buffer, mut times) = ([0; OBJECT_BYTES], Vec::new());
    let watch = Stopwatch::start();
    for number in 0..count {
        let began = Instant::now();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, number * OBJECT_BYTES as u64)?;
        std::hint::black_box(blake3::hash(&buffer));
        times.push(began.elapsed());
    }
    tell_small(figures, "get", watch, count, times);
    Ok(())
}

fn raw_large(dir: &std::path::Path, mebibytes: u64, figures: &mut Figures) -> Outcome<()> {
    let piece = random(1, MIB);
    let mut limits = Vec::new();
    for what in ["hash", "write"] {
        let watch = Stopwatch::start();
        match what {
            "hash" => hash(&piece, mebibytes),
            _ => write(dir, &piece, mebibytes)?,
        }
        tell_large(figures, what, watch, mebibytes);
        limits.push((figures.get(&format!("{what}.rate")), figures.get(&format!("{what}.cpu"))));
    }
    figures.set("put.rate", limits[0].0.min(limits[1].0));
    figures.set("put.cpu", limits[0].1 + limits[1].1);
    let watch = Stopwatch::start();
    read(dir, mebibytes)?;
    tell_large(figures, "get", watch, mebibytes);
    Ok(())
}

/// Runs `call` for each of `items`, so many at once, and says what each returned and how long each took.
pub(crate) async fn at_once<T, R, F>(
    items: Vec<T>,
    callers: usize,
    call: impl Fn(T) -> F + Clone + Send + 'static,
) -> Outcome<(Vec<R>, Vec<Duration>)>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Future<Output = Outcome<R>> + Send,
{
    let items = Arc::new(Mutex::new(items.into_iter()));
    let mut tasks = Vec::new();
    for _ in 0..callers {
        let (items, call) = (Arc::clone(&items), call.clone());
        tasks.push(tokio::spawn(async move {
            let (mut done, mut times) = (Vec::new(), Vec::new());
            loop {
                let next = items.lock().map_err(|_| "a caller panicked")?.next();
                let Some(item) = next else { break };
                let began = Instant::now();
                done.push(call(item).await?);
                times.push(began.elapsed());
            }
            Outcome::Ok((done, times))
        }));
    }
    let (mut done, mut times) = (Vec::new(), Vec::new());
    for task in tasks {
        let (more, took) = task.await??;
        done.extend(more);
        times.extend(took);
    }
    Ok((done, times))
}

async fn small(name: &str, dir: &std::path::Path, count: u64, figures: &mut Figures) -> Outcome<()> {
    let objects = objects(count);
    let peer = Arc::new(Peer::open(name, dir).await?);
    let store = Arc::clone(&peer);
    let put = move |content: Bytes| {
        let store = Arc::clone(&store);
        async move { store.put(content).await }
    };
    let watch = Stopwatch::start();
    let (ids, times) = at_once(objects, PUTS, put).await?;
    tell_small(figures, "put", watch, count, times);

    let store = Arc::clone(&peer);
    let get = move |id: ContentId| {
        let store = Arc::clone(&store);
        async move { store.get(id).await }
    };
    // Once for whatever is done at the first time.
    let (_, _) = at_once(ids.clone(), GETS, get.clone()).await?;
    let watch = Stopwatch::start();
    let (lengths, times) = at_once(ids, GETS, get).await?;
    tell_small(figures, "get", watch, count, times);
    if lengths.iter().any(|len| *len != OBJECT_BYTES) {
        return Err("an object is too short".into());
    }
    Arc::into_inner(peer).ok_or("all callers are done")?.close().await
}

async fn large(name: &str, dir: &std::path::Path, mebibytes: u64, figures: &mut Figures) -> Outcome<()> {
    let peer = Peer::open(name, dir).await?;
    let source = Pieces { piece: random(1, MIB), left: mebibytes };
    let watch = Stopwatch::start();
    let id = peer.put_large(source).await?;
    tell_large(figures, "put", watch, mebibytes);
    let watch = Stopwatch::start();
    let len = peer.get_large(id).await?;
    tell_large(figures, "get", watch, mebibytes);
    if len != mebibytes * MIB as u64 {
        return Err("the object is too short".into());
    }
    peer.close().await
}
