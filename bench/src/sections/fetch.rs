//! Objects from one store into another, over the loopback interface: how fast, and how dear.
//!
//! Both nodes are in one process, which each contender has for itself in every round, with a directory for each store. What
//! is fetched is in the page cache of the giver. It counts when the fetch says that it is done: ours is on the disk then,
//! that of iroh-blobs is not. Processor time is that of both nodes together, and so is memory, with what there is to give.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ron_core::ContentId;

use crate::{
    figures::{Figures, told},
    measure::{Bench, Contender, Outcome, Series, Stopwatch, peak_of, runtime, table, take_turns},
    peers::transfer::Pair,
};

const CONTENDERS: [&str; 2] = ["iroh-blobs", "ron-storage"];

/// Mebibytes of the large object.
const LARGE: u64 = 256;

/// Small objects, and how many are fetched at once.
const OBJECTS: u64 = 1000;
const OBJECT_BYTES: usize = 64 << 10;
const AT_ONCE: usize = 32;

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let is_here = |name: &&str| {
        (cfg!(feature = "iroh") || *name != "iroh-blobs")
            && (bench.only.is_empty() || bench.only.iter().any(|only| only == name))
    };
    let contenders: Vec<&'static str> = CONTENDERS.into_iter().filter(is_here).collect();
    let measured = |what: &'static str, work: u64| -> Outcome<Vec<Series<Figures>>> {
        let round = |name: &'static str| {
            Contender::new(name, move || {
                let dir = tempfile::tempdir()?;
                let path = dir.path().to_str().ok_or("a directory has a name")?;
                Figures::of_process(&["--fetch-cell", what, name, path, &work.to_string()])
            })
        };
        take_turns(bench.rounds, 1, contenders.iter().map(|name| round(name)).collect())
    };
    let tell = |series: &[Series<Figures>]| {
        let row = |one: &Series<Figures>| {
            vec![
                one.name.to_owned(),
                told(one.median(|run| run.get("rate")), 0),
                told(one.ratio(&series[0], |run| run.get("rate")), 2),
                told(one.median(|run| run.get("cpu")), 2),
                told(one.ratio(&series[0], |run| run.get("cpu")), 2),
                told(one.median(|run| run.get("memory")), 0),
            ]
        };
        let head = ["", "MiB/s", "of the first", "CPU s/GiB", "of the first", "peak MiB"];
        table(&head, &series.iter().map(row).collect::<Vec<_>>());
    };
    let (large, objects) = (bench.scaled(LARGE), bench.scaled(OBJECTS));
    println!("An object of {large} MiB:\n");
    tell(&measured("large", large)?);
    println!("\n{objects} objects of 64 KiB, {AT_ONCE} at once:\n");
    tell(&measured("small", objects)?);
    Ok(())
}

/// One contender in one round.
pub(crate) fn child(arguments: &[String]) -> Outcome<()> {
    let [what, name, dir, work] = arguments else { return Err("what, who, directory, work".into()) };
    let work = work.parse::<u64>()?;
    let (count, len) = if what == "large" { (1, usize::try_from(work)? << 20) } else { (work, OBJECT_BYTES) };
    let mut figures = runtime()?.block_on(fetch(name, std::path::Path::new(dir), count, len))?;
    figures.set("memory", peak_of(std::process::id())?);
    print!("{figures}");
    Ok(())
}

async fn fetch(name: &str, dir: &std::path::Path, count: u64, len: usize) -> Outcome<Figures> {
    let pair = Arc::new(Pair::open(name, dir).await?);
    let mut ids = Vec::new();
    for number in 0..=count {
        let mut content = vec![0; if number == count { 1 } else { len }];
        fastrand::Rng::with_seed(number).fill(&mut content);
        ids.push(pair.put(Bytes::from(content)).await?);
    }
    // The first for whatever is done at the first time, such as the link.
    pair.fetch(ids.pop().ok_or("there is one")?).await?;
    let wanted: Vec<ContentId> = ids.clone();
    let left = Arc::new(Mutex::new(ids));
    let watch = Stopwatch::start();
    let mut callers = Vec::new();
    for _ in 0..AT_ONCE.min(wanted.len()) {
        let (pair, left) = (Arc::clone(&pair), Arc::clone(&left));
        callers.push(tokio::spawn(async move {
            loop {
                let next = left.lock().map_err(|_| "a caller panicked")?.pop();
                let Some(id) = next else { return Outcome::Ok(()) };
                pair.fetch(id).await?;
            }
        }));
    }
    for caller in callers {
        caller.await??;
    }
    let mebibytes = (count * len as u64) as f64 / f64::from(1 << 20);
    let sample = watch.stop(1);
    for id in wanted {
        if !pair.has(id).await? {
            return Err("an object did not come".into());
        }
    }
    let mut figures = Figures::default();
    figures.set("rate", mebibytes / sample.wall.as_secs_f64());
    figures.set("cpu", sample.cpu.as_secs_f64() * 1024.0 / mebibytes);
    Arc::into_inner(pair).ok_or("all callers are done")?.close().await?;
    Ok(figures)
}
