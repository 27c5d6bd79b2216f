//! Does a network of whole nodes keep its promises while machines crash, disks fail, lines part and a peer lies?
//!
//! Real nodes, each with all five subsystems as `refd` has them, on a simulated network, disk and clock, out of one seed. Users
//! put, read, delete, name and resolve; everything goes wrong that the options allow; then everything is well again and must
//! converge. Checkers hold what happens against what was promised; the same seed is the same run, so that a failure is
//! replayed and narrowed by hand. `--help` says how, `seeds.md` what was found that way.

mod faults;
mod hostile;
mod kept;
mod losses;
mod names;
mod news;
mod node;
mod options;
mod provided;
mod shared;
mod users;
mod verdict;
mod watch;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use ron_core::{
    Ratio, Supervisor,
    net::Transport,
    sim::{CrashStyle, Latency, Line, Sim, SimNode, SimTransport},
};

use crate::{
    faults::{Troubles, USERS},
    hostile::{Lies, LyingTransport},
    node::{identity, ip},
    options::{Asked, CLIENTS, Options, Plant, USAGE},
    users::Checkers,
    verdict::{Seen, Verdict},
};

/// Everybody has found everybody.
const BEGINNING: Duration = Duration::from_secs(40);

/// How long it may take until everything is as it should be, once everything is well.
const CONVERGENCE: Duration = Duration::from_secs(600);

/// What came of a run. Equal runs are equal in every number.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    trace: String,
    events: u64,
    seen: Seen,
    /// From the end of trouble until everything was as it should be.
    converged: Option<Duration>,
}

/// Seeds that once failed, with the nodes and minutes that they were run with: see `seeds.md`.
const REGRESSIONS: &[(u64, u8, u32)] = &[(12, 10, 1), (1, 10, 2), (23, 10, 2), (35, 10, 2), (7, 10, 1)];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let asked = options::parse(arguments)?;
    let is_well = if asked.plants {
        plants(&asked)
    } else if asked.regressions {
        REGRESSIONS.iter().all(|(seed, nodes, minutes)| {
            let options = Options { seed: *seed, nodes: *nodes, minutes: *minutes, ..asked.options.clone() };
            try_seed(&options, asked.twice)
        })
    } else {
        (0..asked.seeds).all(|at| {
            let options = Options { seed: asked.options.seed + at, ..asked.options.clone() };
            try_seed(&options, asked.twice)
        })
    };
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One seed, and what came of it.
#[allow(
    clippy::disallowed_methods,
    reason = "how long the run takes is told by the clock of the machine, which is not paused"
)]
fn try_seed(options: &Options, twice: bool) -> bool {
    println!("whole {options}");
    let began = std::time::Instant::now();
    let report = run(options);
    let took = began.elapsed();
    let Report { trace, events, seen, converged } = &report;
    let Seen { broken, broken_count, counts, refusals } = seen;
    println!("{:.1} s, {events} events, trace {}", took.as_secs_f64(), &trace[..16]);
    for (what, times) in counts {
        println!("  {times:>9}  {what}");
    }
    for ((what, kind), times) in refusals {
        println!("  {times:>9}  refused: {what}, {kind}");
    }
    match converged {
        Some(time) => println!("everything was as it should be {time:?} after the last trouble"),
        None => println!("not everything became as it should be"),
    }
    for what in broken {
        println!("broken at {what}");
    }
    if *broken_count > 0 {
        println!("{broken_count} promises were broken; again with: whole {options}");
        return false;
    }
    if twice && run(options) != report {
        println!("the same seed gave another run: whole {options}");
        return false;
    }
    println!("every promise was kept{}", if twice { ", twice the same" } else { "" });
    true
}

/// Breaks each rule in turn, until somebody notices.
fn plants(asked: &Asked) -> bool {
    let mut all = true;
    for plant in asked.options.plant.map_or(Plant::ALL.to_vec(), |plant| vec![plant]) {
        let seeds = asked.options.seed..asked.options.seed + asked.seeds.max(100);
        let found = seeds.into_iter().zip(1..).find_map(|(seed, tried)| {
            let options = Options { seed, plant: Some(plant), ..asked.options.clone() };
            let first = run(&options).seen.broken.into_iter().next()?;
            Some((tried, options, first))
        });
        match found {
            Some((tried, options, first)) => {
                println!("{}: noticed by seed {tried}, whole {options}: {first}", plant.name());
            }
            None => {
                println!("{}: nobody noticed", plant.name());
                all = false;
            }
        }
    }
    all
}

fn run(options: &Options) -> Report {
    let _planted = options.plant.map(Plant::plant);
    Sim::run(options.seed, async |sim| scenario(sim, options).await)
}

async fn scenario(sim: &mut Sim, options: &Options) -> Report {
    let nodes = options.nodes;
    let latency = Latency::Tailed(Duration::from_millis(20), Duration::from_millis(200));
    sim.net().set_usual(Line { latency, loss: Ratio::percent(1), ..Line::default() });
    let (checkers, lies) = (Checkers::new(options.log), Lies::new(sim.rng().u64(..)));
    for number in 0..nodes + CLIENTS + 1 {
        let (checkers, lies) = (checkers.clone(), lies.clone());
        sim.add(ip(number), move |node| live(node, number, nodes, lies.clone(), checkers.clone()));
    }
    let users = Supervisor::builder("users").inline_blocking(true).seed(sim.rng().u64(..)).start();
    sim.run_for(BEGINNING).await;
    let pause = 1600;
    let mut rng = sim.rng().fork();
    checkers.begin(&users, &mut rng, USERS, pause);
    let mut troubles = Troubles::new(options, &checkers, &lies, &users);
    let seconds = options.trouble().as_secs();
    for second in 0..seconds {
        troubles.step(sim).await;
        sim.run_for(Duration::from_secs(1)).await;
        checkers.hosts.all().iter().for_each(|host| watch::look(host, &checkers.verdict));
        if second % 3 == 0 {
            if let Some(host) = checkers.some(&mut rng, |_| true) {
                watch::probe(&host, &checkers.verdict, rng.u64(..)).await;
            }
        }
        if second % 10 == 9 {
            checkers.shared.look(&mut rng, troubles.can_talk()).await;
            checkers.names.sample(&mut rng).await;
        }
        if options.plant.is_some() && checkers.verdict.is_broken() {
            break;
        }
    }
    // Nobody asks for anything any more, and everything is well.
    users.abort();
    users.shutdown().await;
    troubles.end(sim).await;
    checkers.verdict.say(|| "peace".to_owned());
    let healed = checkers.verdict.elapsed();
    let mut converged = None;
    let mut missing = Vec::new();
    while converged.is_none() && checkers.verdict.elapsed() - healed < CONVERGENCE {
        sim.run_for(Duration::from_secs(20)).await;
        troubles.end(sim).await;
        checkers.hosts.all().iter().for_each(|host| watch::look(host, &checkers.verdict));
        missing = unsettled(&checkers, nodes).await;
        if missing.is_empty() {
            converged = Some(checkers.verdict.elapsed() - healed);
        }
        if options.plant.is_some() && checkers.verdict.is_broken() {
            break;
        }
    }
    for what in missing.iter().take(10) {
        checkers.verdict.broken(format!("{what}, {} s after everything was well", CONVERGENCE.as_secs()));
    }
    if options.plant.is_none() || !checkers.verdict.is_broken() {
        peace(sim, &checkers, &mut rng).await;
        power_cut(sim, &checkers, &troubles, nodes, &mut rng).await;
    }
    let (trace, events) = (sim.net().trace().to_string(), sim.net().events());
    Report { trace, events, seen: checkers.verdict.seen(), converged }
}

/// What is not yet as it should be.
async fn unsettled(checkers: &Checkers, nodes: u8) -> Vec<String> {
    let hosts = checkers.hosts.all();
    let mut missing: Vec<String> = (0..nodes + CLIENTS + 1)
        .filter(|number| hosts.iter().all(|host| host.number != *number))
        .map(|number| format!("{number} is not there"))
        .collect();
    missing.extend(hosts.iter().flat_map(watch::closed));
    missing.extend(checkers.names.missing());
    missing.extend(checkers.news.missing());
    missing.extend(checkers.shared.missing().await);
    if let Some(first) = missing.first() {
        checkers.verdict.say(|| format!("{} things are missing, as {first}", missing.len()));
    }
    missing
}

/// Everything is asked for, and everything is answered.
async fn peace(sim: &mut Sim, checkers: &Checkers, rng: &mut fastrand::Rng) {
    // Everybody has had time to say what it provides.
    sim.run_for(Duration::from_secs(70)).await;
    checkers.shared.read_all(rng).await;
    checkers.names.compare_all().await;
    for host in checkers.hosts.all() {
        watch::probe(&host, &checkers.verdict, rng.u64(..)).await;
        checkers.names.resolve(&host, &checkers.provided, rng, true).await;
    }
    for _ in 0..20 {
        let Some(host) = checkers.some(rng, |host| host.role == node::Role::Client) else { continue };
        checkers.names.locate(&host, &checkers.provided, rng, true).await;
        checkers.provided.look(&host, rng, true).await;
        checkers.news.publish(rng.u8(..5), true).await;
    }
    sim.run_for(Duration::from_secs(20)).await;
    for what in checkers.news.missing() {
        checkers.verdict.broken(format!("in peace, {what}"));
    }
    checkers.news.count_told();
}

/// At last everybody loses power at once, and has everything all the same; and then stops as it should.
async fn power_cut(
    sim: &mut Sim,
    checkers: &Checkers,
    troubles: &Troubles,
    nodes: u8,
    rng: &mut fastrand::Rng,
) {
    for number in 0..nodes {
        troubles.forget(number);
        let seed = rng.u64(..);
        sim.crash_in(ip(number), CrashStyle::Scramble { seed }).await;
    }
    for number in 0..nodes {
        sim.restart(ip(number));
    }
    sim.run_for(Duration::from_secs(60)).await;
    checkers.shared.read_all(rng).await;
    checkers.names.compare_all().await;
    for number in (0..nodes + CLIENTS + 1).rev() {
        stop_last(sim, checkers, troubles, number).await;
    }
}

async fn stop_last(sim: &mut Sim, checkers: &Checkers, troubles: &Troubles, number: u8) {
    let verdict: &Verdict = &checkers.verdict;
    let Some(supervisor) = sim.supervisor(ip(number)).cloned() else { return };
    troubles.forget(number);
    let Some(stopped) = sim.stop(ip(number)).await else { return };
    let running = supervisor.running();
    verdict.add("tasks joined", stopped.drained);
    verdict.add("tasks cut off", stopped.aborted);
    verdict.promised(running == 0, || format!("{number} stopped at the end, and {running} tasks run"));
    verdict.promised(stopped.aborted == 0, || {
        format!("{number} had to cut off {} tasks at the end", stopped.aborted)
    });
}

/// A node's program.
async fn live(node: SimNode, number: u8, nodes: u8, lies: Lies, checkers: Checkers) {
    let stop = node.supervisor.stop();
    let living = async {
        let host = loop {
            let lying = (number == nodes + CLIENTS).then(|| {
                let inner = SimTransport::new(&node.net, node.ip, &identity(number));
                Arc::new(LyingTransport { inner, lies: lies.clone() }) as Arc<dyn Transport>
            });
            match node::start(&node, number, nodes, lying).await {
                Ok(host) => break host,
                // As whoever runs it would: again, until it starts.
                Err(error) => {
                    checkers.verdict.count("start refused");
                    checkers.verdict.say(|| format!("{number} does not start: {error}"));
                }
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        };
        checkers.shared.came(number);
        checkers.hosts.insert(host.clone());
        let Checkers { provided, news, kept, shared, verdict, .. } = checkers.clone();
        if number == nodes + CLIENTS {
            return lies.live(node.clone(), nodes, host, shared, verdict).await;
        }
        if number >= nodes {
            return news.live(number, host.overlay.clone(), node.unix_clock()).await;
        }
        tokio::join!(
            provided.live(number, host.dht.clone()),
            news.live(number, host.overlay.clone(), node.unix_clock()),
            kept.live(number, node.clone(), host.store.clone()),
        );
    };
    tokio::select! {
        biased;
        () = stop.requested() => {}
        () = living => {}
    }
    // Others may still ask it for something while it drains.
    checkers.verdict.count("program ended");
}
