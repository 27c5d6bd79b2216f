//! Does a network of whole nodes keep its promises while machines crash, disks fail, lines part and a peer lies?
//!
//! Real nodes, each with all five subsystems as `refd` has them, on a simulated network, disk and clock, out of one seed. Users
//! put, read, delete, name and resolve; everything goes wrong that the options allow; then everything is well again and must
//! converge. Checkers hold what happens against what was promised; the same seed is the same run, so that a failure is
//! replayed and narrowed by hand. `--help` says how, `seeds.md` what was found that way.

/// Prints a line. See [`report::tell`].
macro_rules! tell {
    ($($what:tt)*) => { $crate::report::tell(format_args!($($what)*)) };
}

mod faults;
mod hostile;
mod kept;
mod losses;
mod names;
mod news;
mod node;
mod options;
mod peace;
mod provided;
mod report;
mod shared;
mod users;
mod verdict;
mod watch;

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ron_core::{
    Ratio, Supervisor,
    net::Transport,
    now,
    sim::{Latency, Line, Sim, SimNode, SimTransport},
};

use crate::{
    faults::{Troubles, USERS},
    hostile::{Lies, LyingTransport},
    node::{identity, ip},
    options::{Asked, CLIENTS, Fault, Options, Plant, USAGE},
    report::Memory,
    users::{Checkers, USER},
    verdict::{LIES, Seen},
    watch::{Ask, WATCHER},
};

/// Everybody has found everybody.
const BEGINNING: Duration = Duration::from_secs(40);

/// How often everything that is kept together is looked at, and some of the log.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Everything that goes wrong at all has done so, and the liar has told each of its lies, in runs that are so long together: the rarest
/// of them comes once in some minutes, so that not even a run in a million has none of them by chance.
const MANY: Duration = Duration::from_secs(100 * 60);

/// What came of a run. Equal runs are equal in every number.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    trace: String,
    events: u64,
    seen: Seen,
    /// From the end of trouble until everything was as it should be.
    converged: Option<Duration>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        // Whoever reads only the beginning of it has what they wanted.
        let _ = writeln!(io::stdout(), "{USAGE}");
        return ExitCode::SUCCESS;
    }
    let asked = options::parse(arguments.into_iter()).and_then(|asked| Ok((asked.runs()?, asked)));
    match asked {
        Ok((_, asked)) if asked.plants => code(plants(&asked)),
        Ok((runs, asked)) => code(try_all(&runs, asked.twice)),
        Err(error) => {
            eprintln!("whole: {error}; whole --help says more");
            ExitCode::from(2)
        }
    }
}

fn code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run after the other, whatever comes of each, and then what came of all.
fn try_all(runs: &[Options], twice: bool) -> bool {
    let mut failed = Vec::new();
    let mut faults: BTreeMap<Fault, (u64, u64)> = BTreeMap::new();
    let mut lies: BTreeMap<&str, u64> = LIES.iter().map(|lie| (*lie, 0)).collect();
    let mut memory = Memory::default();
    let mut quiet = 0;
    for options in runs {
        let (is_well, seen) = try_seed(options, twice, &mut memory);
        if !is_well {
            failed.push(options);
        }
        quiet += usize::from(is_quiet(options, &seen));
        for fault in Fault::ALL {
            let (happened, withheld) = faults.entry(fault).or_default();
            *happened += seen.count(&format!("fault: {}", fault.name()));
            *withheld += seen.count(&format!("fault withheld: {}", fault.name()));
        }
        for (lie, heard) in &mut lies {
            *heard += seen.count(&format!("lie: {lie}"));
        }
    }
    // Where nothing went wrong although it was to, nothing was tried.
    let is_tried = quiet < runs.len() || !runs.iter().any(Options::wants_faults);
    if runs.len() == 1 {
        return failed.is_empty() && is_tried;
    }
    tell!("");
    for (fault, (happened, withheld)) in &faults {
        tell!("  {happened:>9}  in all: {} ({withheld} withheld)", fault.name());
    }
    for options in &failed {
        tell!("failed: whole {options}");
    }
    let quiet = if quiet == 0 { String::new() } else { format!(", and no fault happened in {quiet}") };
    tell!("{} of {} seeds failed{quiet}", failed.len(), runs.len());
    // What goes wrong in none of many short runs was never tried.
    let trouble = |fault: &Fault| -> Duration {
        runs.iter().filter(|options| options.faults.contains(fault)).map(Options::trouble).sum()
    };
    let never = faults.iter().filter(|(fault, (happened, _))| *happened == 0 && trouble(fault) >= MANY);
    let mut never: Vec<&str> = never.map(|(fault, _)| fault.name()).collect();
    if trouble(&Fault::Hostile) >= MANY {
        never.extend(lies.into_iter().filter(|(_, heard)| *heard == 0).map(|(lie, _)| lie));
    }
    if !never.is_empty() {
        tell!("never happened: {}", never.join(", "));
    }
    failed.is_empty() && never.is_empty() && is_tried
}

/// One seed, and what came of it.
#[allow(
    clippy::disallowed_methods,
    reason = "how long the run takes is told by the clock of the machine, which is not paused"
)]
fn try_seed(options: &Options, twice: bool, memory: &mut Memory) -> (bool, Seen) {
    tell!("whole {options}");
    let began = std::time::Instant::now();
    memory.begin();
    let report = run(options);
    let took = began.elapsed();
    let Report { trace, events, seen, .. } = &report;
    let again = format!("again with: cargo run --release --example whole -- {options}");
    tell!("{:.1} s, {events} events, trace {}", took.as_secs_f64(), &trace[..16]);
    report::print(&report);
    let mut is_well = seen.broken_count == 0;
    if !is_well {
        report::print_broken(seen);
        tell!("{again}");
    }
    // Not a part of what is compared.
    let mut is_bounded = report::print_memory(memory, options.nodes);
    if is_well && twice {
        memory.begin();
        if run(options) != report {
            tell!("the same seed gave another run: whole {options}");
            is_well = false;
        }
        is_bounded &= report::print_memory(memory, options.nodes);
    }
    if !is_bounded {
        tell!("BROKEN memory: the run took, or left behind, more than it may; {again}");
        is_well = false;
    }
    if is_well {
        let twice = if twice { ", twice the same" } else { "" };
        let quiet = if is_quiet(options, &report.seen) { ", but no fault happened" } else { "" };
        tell!("every promise was kept{twice}{quiet}");
    }
    (is_well, report.seen)
}

/// Whether no fault happened in a run that was to have some.
fn is_quiet(options: &Options, seen: &Seen) -> bool {
    !options.faults.is_empty() && seen.faults() == 0
}

/// Breaks each rule in turn, until the checker of that rule notices. Where nothing is planted nobody complains, so that it is the
/// planted bug that was noticed.
fn plants(asked: &Asked) -> bool {
    let mut all = true;
    let mut clean: BTreeMap<u64, bool> = BTreeMap::new();
    for plant in asked.options.plant.map_or(Plant::ALL.to_vec(), |plant| vec![plant]) {
        let seeds = asked.options.seed..asked.options.seed + asked.seeds.unwrap_or(100);
        let found = seeds.into_iter().zip(1..).find_map(|(seed, tried)| {
            let options = Options { seed, plant: None, ..asked.options.clone() };
            if !*clean.entry(seed).or_insert_with(|| run(&options).seen.broken_count == 0) {
                tell!("a promise is broken with nothing planted: whole {options}");
                all = false;
                return None;
            }
            let options = Options { plant: Some(plant), ..options };
            let seen = run(&options).seen;
            let noticed = seen.broken_as(plant.noticed_by())?;
            Some((tried, options, format!("{}: {}", noticed.by, noticed.what)))
        });
        match found {
            Some((tried, options, noticed)) => {
                tell!("{}: noticed by seed {tried}, whole {options}, by {noticed}", plant.name());
            }
            None => {
                tell!("{}: nobody noticed", plant.name());
                all = false;
            }
        }
    }
    all
}

fn run(options: &Options) -> Report {
    let _planted = options.plant.map(Plant::plant);
    let report = Sim::run_seed(options.seed, async |sim| scenario(sim, options).await);
    report::progress_ends();
    report
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
    let mut troubles = Troubles::new(options, sim.rng().fork(), &checkers, &lies, &users);
    let watchers = Supervisor::builder("watchers").inline_blocking(true).seed(sim.rng().u64(..)).start();
    let watching = watch::watch(checkers.hosts.clone(), troubles.calm().clone(), checkers.verdict.clone());
    watchers.spawn(WATCHER, |_| watching);
    let is_noticed = || options.plant.is_some_and(|plant| checkers.verdict.is_broken(plant.noticed_by()));
    let began = now();
    let mut looked = began;
    for second in 0..options.trouble().as_secs() {
        // What took longer than a second, a stop or a look at everything, is made up for: so much goes wrong in so much time.
        troubles.step(sim).await;
        sim.run_for((began + Duration::from_secs(second + 1)).saturating_duration_since(now())).await;
        for ask in Ask::ALL {
            // A search is twenty messages and more.
            if !ask.is_local() && second % 3 != 0 {
                continue;
            }
            let Some(host) = checkers.some(&mut rng, |_| true) else { continue };
            let (verdict, calm, salt) = (checkers.verdict.clone(), troubles.calm().clone(), rng.u64(..));
            users.spawn(USER, |_| async move {
                watch::probe(&host, ask, salt, false, &calm, &verdict).await;
            });
        }
        if now() - looked >= LOOK_EVERY {
            looked = now();
            checkers.shared.look(&mut rng, troubles.can_talk()).await;
            checkers.names.sample(&mut rng).await;
        }
        if is_noticed() {
            break;
        }
    }
    // Nobody asks for anything any more, and everything is well.
    users.abort();
    users.shutdown().await;
    troubles.end(sim).await;
    checkers.verdict.say(|| "peace".to_owned());
    let mut converged = None;
    if !is_noticed() {
        let since = checkers.verdict.seen().before_peace();
        converged = peace::converge(sim, &checkers, &mut troubles, nodes, since).await;
    }
    if !is_noticed() {
        peace::ask_all(sim, &checkers, &mut troubles, &mut rng).await;
        peace::power_cut(sim, &checkers, &mut troubles, nodes, &mut rng).await;
    }
    watchers.abort();
    watchers.shutdown().await;
    for (who, supervisor) in [("users", &users), ("watchers", &watchers)] {
        watch::no_panics_outside(who, supervisor, &checkers.verdict);
    }
    // Of what nobody has done nothing is known. A rule that is broken on purpose may end a run early.
    if options.plant.is_none() {
        for what in checkers.verdict.seen().too_seldom(options) {
            checkers.verdict.broken_by("verdict", what);
        }
    }
    let (trace, events) = (sim.net().trace().to_string(), sim.net().events());
    Report { trace, events, seen: checkers.verdict.seen(), converged }
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
                    checkers.verdict.start_refused(number, &error);
                }
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        };
        checkers.verdict.started(number);
        checkers.shared.came(number);
        checkers.hosts.insert(host.clone());
        let Checkers { provided, news, kept, shared, verdict, .. } = checkers.clone();
        if number == nodes + CLIENTS {
            return lies.live(node.clone(), nodes, host, checkers.hosts.clone(), shared, verdict).await;
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
