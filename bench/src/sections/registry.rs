//! Durable commits of 1 KiB beside those who would be used in place of a registry, and beside the limits of the disk and of
//! signatures.
//!
//! Each contender has a process and a directory for itself in every round. A commit counts when it is acknowledged, and
//! then it is on the disk for all of them. What is signed is signed before the clock starts. Load and server share the
//! cores. Processor time and memory are those of whoever asks and of whoever is asked together, also where that is a process of its
//! own, as etcd is; over HTTP they are the server's.

mod http;

use std::{path::Path, sync::Arc, time::Instant};

use ron_core::Supervisor;
use ron_registry::{Outcome as Decided, Registry, RegistryError};

use crate::{
    figures::{Figures, told},
    measure::{Bench, Contender, Outcome, Series, Stopwatch, cpu_of, peak_of, runtime, table, take_turns},
    peers::{
        registry::{Peer, People, in_an_hour, payload, prepare, proposal, registry, soon},
        stores::group_commit,
    },
    sections::store::{at_once, tell_small},
};

pub(crate) use http::serve;

/// Each round takes about a second for each contender and number of clients.
const ROUNDS_MOST: usize = 3;

const LIMIT: &str = "limit";
const CYCLE: &str = "ron-registry, 3 of 3";

/// Who is measured, and about how many commits of it take a second with 1, 32 and 256 clients.
const COMMITS: [(&str, [u64; 3]); 7] = [
    (LIMIT, [8_000, 100_000, 200_000]),
    ("floor", [6_000, 60_000, 150_000]),
    ("SQLite", [6_000, 6_000, 6_000]),
    ("etcd", [2_000, 10_000, 15_000]),
    // The committer alone: approvals are verified before the clock starts.
    ("ron-registry, verified", [5_000, 30_000, 60_000]),
    ("ron-registry, 1 of 1", [4_000, 15_000, 20_000]),
    // Four calls each: a proposal and three approvals.
    (CYCLE, [1_500, 6_000, 8_000]),
];

const CLIENTS: [usize; 3] = [1, 32, 256];

/// Attempts to replace the head, by 32 at once.
const CAS: [(&str, u64); 4] =
    [("floor", 100_000), ("SQLite", 10_000), ("etcd", 5_000), ("ron-registry, 1 of 1", 20_000)];
const CONTENDERS: usize = 32;

/// Strict verifications in a round, on both cores.
const VERIFICATIONS: u64 = 20_000;

/// Whether it was built in, is installed, and was asked for.
fn is_here(bench: &Bench, name: &str) -> bool {
    let is_built = match name {
        "SQLite" => cfg!(feature = "sqlite"),
        #[cfg(feature = "etcd")]
        "etcd" => crate::peers::registry::etcd::is_here(),
        #[cfg(not(feature = "etcd"))]
        "etcd" => false,
        _ => true,
    };
    is_built
        && (bench.only.is_empty() || name == LIMIT || bench.only.iter().any(|only| name.starts_with(&**only)))
}

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    for absent in ["SQLite", "etcd"].into_iter().filter(|name| !is_here(bench, name)) {
        println!("Left out: {absent}.\n");
    }
    let rounds = bench.rounds.min(ROUNDS_MOST);
    let cell = |what: &'static str, name: &'static str, clients: usize, work: u64| {
        Contender::new(name, move || {
            let dir = tempfile::tempdir()?;
            let path = dir.path().to_str().ok_or("a directory has a name")?;
            Figures::of_process(&[
                "--registry-cell",
                what,
                name,
                path,
                &clients.to_string(),
                &work.to_string(),
            ])
        })
    };
    commits(bench, rounds, &cell)?;
    cas(bench, rounds, &cell)?;
    http::run(bench, rounds)
}

type Cell<'a> = &'a dyn Fn(&'static str, &'static str, usize, u64) -> Contender<'static, Figures>;

fn commits(bench: &Bench, rounds: usize, cell: Cell<'_>) -> Outcome<()> {
    let mut rows = Vec::new();
    for (at, clients) in CLIENTS.into_iter().enumerate() {
        let mut contenders: Vec<_> = COMMITS
            .into_iter()
            .filter(|(name, _)| is_here(bench, name))
            .map(|(name, work)| cell("commits", name, clients, bench.scaled(work[at])))
            .collect();
        contenders.push(cell("verify", "signatures", clients, bench.scaled(VERIFICATIONS)));
        let mut series = take_turns(rounds, 1, contenders)?;
        let signatures = series.pop().ok_or("it was the last")?;
        let of = |name: &str| series.iter().find(|series| series.name == name);
        for one in &series {
            let ratio = |base: Option<&Series<Figures>>| {
                told(base.map_or(f64::NAN, |base| one.ratio(base, |run| run.get("commit.rate"))), 2)
            };
            rows.push(vec![
                one.name.to_owned(),
                clients.to_string(),
                told(one.median(|run| run.get("commit.rate")), 0),
                ratio(of("floor")),
                ratio(of("etcd")),
                told(one.median(|run| run.get("commit.p50")), 2),
                told(one.median(|run| run.get("commit.p99")), 2),
                told(one.median(|run| run.get("commit.cpu")), 1),
                told(one.median(|run| run.get("memory")), 0),
            ]);
        }
        if let (Some(cycle), 256) = (of(CYCLE), clients) {
            let three = |run: &Figures| run.get("verify.rate") / 3.0;
            println!(
                "Strict verifications on both cores: {} a second, so that three for each commit allow {}; a full cycle with \
                 256 clients makes {:.2} of that.\n",
                told(signatures.median(|run| run.get("verify.rate")), 0),
                told(signatures.median(three), 0),
                cycle.median(|run| run.get("commit.rate")) / signatures.median(three),
            );
        }
    }
    println!("Commits of 1 KiB:\n");
    let head =
        ["", "clients", "a second", "of floor", "of etcd", "p50 ms", "p99 ms", "CPU µs each", "peak MiB"];
    table(&head, &rows);
    Ok(())
}

fn cas(bench: &Bench, rounds: usize, cell: Cell<'_>) -> Outcome<()> {
    let contenders = CAS.into_iter().filter(|(name, _)| is_here(bench, name));
    let contenders = contenders.map(|(name, work)| cell("cas", name, CONTENDERS, bench.scaled(work)));
    let series = take_turns(rounds, 1, contenders.collect())?;
    let etcd = series.iter().find(|series| series.name == "etcd");
    let row = |one: &Series<Figures>| {
        vec![
            one.name.to_owned(),
            told(one.median(|run| run.get("cas.rate")), 0),
            told(etcd.map_or(f64::NAN, |etcd| one.ratio(etcd, |run| run.get("cas.rate"))), 2),
            told(one.median(|run| run.get("cas.lost")), 1),
        ]
    };
    println!("\nCompare-and-set of the head by {CONTENDERS} at once, who try again at once:\n");
    table(&["", "a second", "of etcd", "lost for each won"], &series.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// One contender in one round.
pub(crate) fn child(arguments: &[String]) -> Outcome<()> {
    let [what, name, dir, clients, work] = arguments else {
        return Err("what, who, directory, clients, work".into());
    };
    let (dir, clients, work) = (Path::new(dir), clients.parse::<usize>()?, work.parse::<u64>()?);
    let mut figures = Figures::default();
    match (&**what, &**name) {
        ("verify", _) => verify(work, &mut figures)?,
        ("commits", LIMIT) => {
            let payloads: Vec<_> = (0..work).map(payload).collect();
            let watch = Stopwatch::start();
            let times = group_commit(dir, &payloads, clients)?;
            tell_small(&mut figures, "commit", watch, work, times);
        }
        ("commits", name) if name.starts_with("ron-registry") => {
            runtime()?.block_on(ours(name, dir, clients, work, &mut figures))?;
        }
        ("commits", name) => runtime()?.block_on(theirs(name, dir, clients, work, &mut figures))?,
        (_, name) => runtime()?.block_on(contend(name, dir, clients, work, &mut figures))?,
    }
    // Beside a server's of its own, if there was one.
    let server = Some(figures.get("server.memory")).filter(|memory| !memory.is_nan());
    figures.set("memory", peak_of(std::process::id())? + server.unwrap_or(0.0));
    print!("{figures}");
    Ok(())
}

fn verify(work: u64, figures: &mut Figures) -> Outcome<()> {
    let (people, expires) = (People::new(1), in_an_hour()?);
    let mut approvals = prepare(work, |number| Ok(people.approve(&proposal(number, expires)?)))?.concat();
    let watch = Stopwatch::start();
    let other = approvals.split_off(approvals.len() / 2);
    let all = |approvals: Vec<ron_registry::Approval>| approvals.into_iter().all(|one| one.verify().is_ok());
    let hold = std::thread::scope(|scope| {
        let other = scope.spawn(|| all(other));
        all(approvals) && other.join().unwrap_or(false)
    });
    figures.set("verify.rate", watch.stop(work).per_second());
    if hold { Ok(()) } else { Err("a signature does not hold".into()) }
}

async fn theirs(name: &str, dir: &Path, clients: usize, work: u64, figures: &mut Figures) -> Outcome<()> {
    let peer = Arc::new(Peer::open(name, dir, clients).await?);
    let at = Arc::clone(&peer);
    let put = move |number: u64| {
        let peer = Arc::clone(&at);
        async move { peer.put(number).await }
    };
    let before = peer.server().map(cpu_of).transpose()?;
    let watch = Stopwatch::start();
    let (_, times) = at_once((0..work).collect(), clients, put).await?;
    tell_small(figures, "commit", watch, work, times);
    if let Some((server, before)) = peer.server().zip(before) {
        let spent = (cpu_of(server)? - before) * 1e6 / work as f64;
        figures.set("commit.cpu", figures.get("commit.cpu") + spent);
        figures.set("server.memory", peak_of(server)?);
    }
    Ok(())
}

fn is_committed(outcome: Result<Decided, RegistryError>) -> Outcome<()> {
    match outcome? {
        Decided::Committed(_) => Ok(()),
        Decided::Pending { missing, .. } => Err(format!("it waits for {missing:?}").into()),
        other => Err(format!("it is {other:?}").into()),
    }
}

async fn ours(name: &str, dir: &Path, clients: usize, work: u64, figures: &mut Figures) -> Outcome<()> {
    let (host, people) = (Supervisor::new("bench"), People::new(if name == CYCLE { 3 } else { 1 }));
    let (registry, expires) = (registry(dir, &people, &host).await?, in_an_hour()?);
    let signed = |number| {
        let proposal = proposal(number, expires)?;
        let approvals = people.approve(&proposal);
        Ok((proposal, approvals))
    };
    let at = registry.clone();
    match name {
        "ron-registry, verified" => {
            let prepared = prepare(work, |number| {
                let (proposal, approvals) = signed(number)?;
                let verified = approvals.into_iter().map(|approval| approval.verify());
                Ok((proposal, verified.collect::<Result<Vec<_>, _>>()?))
            })?;
            let call = move |(proposal, approvals)| {
                let registry = at.clone();
                async move { is_committed(registry.submit_verified(proposal, approvals, soon()).await) }
            };
            let watch = Stopwatch::start();
            let (_, times) = at_once(prepared, clients, call).await?;
            tell_small(figures, "commit", watch, work, times);
        }
        CYCLE => {
            let prepared = prepare(work, signed)?;
            let call = move |(proposal, approvals): (ron_registry::Proposal, Vec<ron_registry::Approval>)| {
                let registry = at.clone();
                async move {
                    let mut outcome = registry.propose(proposal, soon()).await;
                    for approval in approvals {
                        outcome = registry.approve(approval, soon()).await;
                    }
                    is_committed(outcome)
                }
            };
            let watch = Stopwatch::start();
            let (_, times) = at_once(prepared, clients, call).await?;
            tell_small(figures, "commit", watch, work, times);
        }
        _ => {
            let prepared = prepare(work, signed)?;
            let call = move |(proposal, approvals)| {
                let registry = at.clone();
                async move { is_committed(registry.submit(proposal, approvals, soon()).await) }
            };
            let watch = Stopwatch::start();
            let (_, times) = at_once(prepared, clients, call).await?;
            tell_small(figures, "commit", watch, work, times);
        }
    }
    if registry.head().version != work + 1 {
        return Err("not everything is there".into());
    }
    host.shutdown().await;
    Ok(())
}

/// So many attempts to replace the head, by all at once.
async fn contend(name: &str, dir: &Path, clients: usize, work: u64, figures: &mut Figures) -> Outcome<()> {
    let began = Instant::now();
    let won = if name.starts_with("ron-registry") {
        let (host, people) = (Supervisor::new("bench"), People::new(1));
        let registry = registry(dir, &people, &host).await?;
        let (at, people) = (registry, Arc::new(people));
        let expires = in_an_hour()?;
        let call = move |number: u64| {
            let (registry, people) = (at.clone(), Arc::clone(&people));
            async move { swap(&registry, &people, number, expires).await }
        };
        let won = at_once((0..work).collect(), clients, call).await?.0;
        host.shutdown().await;
        won
    } else {
        let peer = Arc::new(Peer::open(name, dir, clients).await?);
        let call = move |number: u64| {
            let peer = Arc::clone(&peer);
            async move { peer.cas(number).await }
        };
        at_once((0..work).collect(), clients, call).await?.0
    };
    let count = won.iter().filter(|won| **won).count() as f64;
    figures.set("cas.rate", count / began.elapsed().as_secs_f64());
    figures.set("cas.lost", (won.len() as f64 - count) / count);
    Ok(())
}

/// Signs for the head as it is, and proposes: whether it still was.
async fn swap(registry: &Registry, people: &People, number: u64, expires: u64) -> Outcome<bool> {
    let plain = proposal(number, expires)?;
    let (action, head) = (plain.action().clone(), registry.head());
    let proposal = ron_registry::Proposal::new(plain.origin(), 1, expires, action, Some(head))?;
    let approvals = people.approve(&proposal);
    match registry.submit(proposal, approvals, soon()).await {
        Err(RegistryError::ChainMismatch { .. }) => Ok(false),
        outcome => is_committed(outcome).map(|()| true),
    }
}
