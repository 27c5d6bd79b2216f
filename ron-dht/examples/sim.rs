//! A large network in one process: what it finds while nodes come and go, fall silent, lose messages and lie.
//!
//! ```text
//! cargo run --release -p ron-dht --example sim --features sim -- --nodes 10000 --lookups 100000 --seed 1 churn
//! ```
//!
//! Scenarios: `churn`, `loss`, `hedge`, `kill` share one network of `--nodes`, in the order given; `sybil` has its own of
//! at most three hundred, and `provide` of at most a thousand, in which one node says `--keys` keys (a hundred thousand
//! unless told). Without a name all run. With `--check` the exit code is 1 if a target is missed. With `--plain` nothing is
//! printed that the machine decides, memory and time on the wall: then a seed prints the same again, to the last byte.

#![allow(clippy::unwrap_used, reason = "in a simulation, a step that fails is the result")]

use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroUsize,
    process::ExitCode,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use ron_core::{Deadline, NodeId, Supervisor, TaskSpec, net::rpc::Fault};
use ron_dht::{
    Contact, Dht, Key, Preset, Settings,
    logic::{
        addrs::Sender,
        lookup::LookupSettings,
        wire::{Answer, RecordOutcome, Request},
    },
    network::{Answers, Network, Served},
    sim::{Conditions, SimLink, SimNetwork, Testnet},
};

const K: usize = 20;

const LOOKUP: TaskSpec = TaskSpec::new("sim", "lookup").what("one search of a scenario");

/// How long a search may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// A node that started this recently is still joining: nobody can be expected to find it.
const JOINING: Duration = Duration::from_secs(60);

const USAGE: &str = "\
A large network in one process, on the paused clock, out of one seed: what it finds while nodes come and go, fall silent and lie.

  sim [OPTION...] [SCENARIO...]     every scenario, or only these, in this order

  churn    an hour in which one node in ten goes without a word, and another comes
  loss     one message in ten is lost
  hedge    one peer in twenty answers nothing: searches with second questions and without
  kill     one node in five dies at once
  sybil    made-up nodes next to a key, and one node in five lies; a network of its own, of at most 300
  provide  one node provides --keys keys; a network of its own, of at most 1000

  --nodes N      of the network (1000)
  --lookups N    searches of churn; the others have a share of them (10000)
  --keys N       of provide (100000)
  --seed N       what everything is drawn from (1)
  --check        the exit code is 1 if a target is missed
  --plain        prints nothing that the machine decides: a seed prints the same again

Exit codes: 0, 1 with --check if a target is missed, 2 for an option that makes no sense.";

struct Args {
    nodes: usize,
    lookups: usize,
    keys: usize,
    seed: u64,
    check: bool,
    plain: bool,
    scenarios: Vec<String>,
}

impl Args {
    fn parse() -> Result<Args, String> {
        let mut args = Args {
            nodes: 1000,
            lookups: 10_000,
            keys: 100_000,
            seed: 1,
            check: false,
            plain: false,
            scenarios: Vec::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number = || {
                let number = words.next().and_then(|word| word.parse::<u64>().ok());
                number.ok_or_else(|| format!("{word} wants a number"))
            };
            match word.as_str() {
                "--nodes" => args.nodes = number()? as usize,
                "--lookups" => args.lookups = number()? as usize,
                "--keys" => args.keys = number()? as usize,
                "--seed" => args.seed = number()?,
                "--check" => args.check = true,
                "--plain" => args.plain = true,
                "churn" | "loss" | "hedge" | "kill" | "sybil" | "provide" => args.scenarios.push(word),
                _ => return Err(format!("{word} is no option and no scenario; sim --help says what is")),
            }
        }
        if args.scenarios.is_empty() {
            args.scenarios =
                ["churn", "loss", "hedge", "kill", "sybil", "provide"].map(str::to_owned).to_vec();
        }
        Ok(args)
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let args = match Args::parse() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let Args { nodes, lookups, seed, .. } = args;
    IS_PLAIN.store(args.plain, Ordering::Relaxed);
    println!("{nodes} nodes, {lookups} lookups, seed {seed}");
    let mut targets = Targets::default();
    let mut shared = None;
    for scenario in &args.scenarios {
        let watch = Watch::start();
        println!("\n{scenario}");
        if scenario == "sybil" {
            sybil(nodes.min(300), seed, &mut targets).await;
        } else if scenario == "provide" {
            provide(nodes.min(1000), args.keys, seed, &mut targets).await;
        } else {
            if shared.is_none() {
                shared = Some(World::build(nodes, seed).await);
            }
            let world = shared.as_mut().expect("just built");
            match scenario.as_str() {
                "churn" => churn(world, lookups, &mut targets).await,
                "loss" => loss(world, lookups / 20, &mut targets).await,
                "hedge" => hedge(world, lookups / 20, &mut targets).await,
                _ => kill(world, lookups / 100, &mut targets).await,
            }
            row("trace", hex(&world.net.net().trace()[..8]));
        }
        machine_row("wall time", format!("{:.1} s", watch.seconds()));
    }
    println!("\n{}", if targets.missed.is_empty() { "all targets met" } else { "MISSED:" });
    targets.missed.iter().for_each(|missed| println!("  {missed}"));
    if args.check && !targets.missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What was promised, and what was not kept.
#[derive(Default)]
struct Targets {
    missed: Vec<String>,
}

impl Targets {
    fn at_least(&mut self, what: &str, value: f64, least: f64) {
        row(what, format!("{value:.4}   (target: at least {least})"));
        // What is no number keeps no promise.
        if value.is_nan() || value < least {
            self.missed.push(format!("{what}: {value:.4} is under {least}"));
        }
    }

    fn at_most(&mut self, what: &str, value: f64, most: f64) {
        row(what, format!("{value:.4}   (target: at most {most})"));
        if value.is_nan() || value > most {
            self.missed.push(format!("{what}: {value:.2} is over {most}"));
        }
    }
}

/// Whether rows that the machine decides are left out.
static IS_PLAIN: AtomicBool = AtomicBool::new(false);

/// A row that is another on every run.
fn machine_row(what: &str, value: impl Display) {
    if !IS_PLAIN.load(Ordering::Relaxed) {
        row(what, value);
    }
}

fn row(what: &str, value: impl Display) {
    println!("  {what:<44} {value}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The clock on the wall: what is simulated has another.
struct Watch(SystemTime);

impl Watch {
    fn start() -> Self {
        Watch(SystemTime::now())
    }

    fn seconds(&self) -> f64 {
        self.0.elapsed().map_or(0.0, |elapsed| elapsed.as_secs_f64())
    }
}

/// One search and what it came to.
struct Run {
    goal: Goal,
    took: Duration,
    hops: u8,
    rpcs: usize,
    hedges: usize,
    peers: Vec<NodeId>,
    is_found: bool,
    /// The nodes nearest to the target when it began.
    truth: Vec<NodeId>,
}

#[derive(Clone, Copy)]
enum Goal {
    Node(NodeId),
    /// A key, and who provides it.
    Provider(Key, NodeId),
}

/// The network and who searches in it.
struct World {
    net: Testnet,
    rng: fastrand::Rng,
    host: Supervisor,
    done: Arc<Mutex<Vec<Run>>>,
    running: usize,
    /// Nodes that have joined, and those that are joining.
    settled: Vec<usize>,
    joining: Vec<(usize, ron_core::Deadline)>,
    provided: Vec<(Key, usize)>,
    numbers: HashMap<NodeId, usize>,
}

impl World {
    async fn build(nodes: usize, seed: u64) -> Self {
        let watch = Watch::start();
        let settings = Settings { workers: NonZeroUsize::MIN, ..Testnet::settings() };
        let before = ron_core::now();
        let net = Testnet::builder(nodes).seed(seed).settings(settings).build().await;
        let joined = net.live().filter(|number| net.node(*number).ready().reads).count();
        row(
            "joined",
            format!("{joined} of {nodes} in {:.0} s of their time", (ron_core::now() - before).as_secs_f64()),
        );
        row("messages to join, each", net.net().messages().asked / nodes as u64);
        machine_row("wall time to join", format!("{:.1} s", watch.seconds()));
        machine_row("memory per node after the join", format!("{:.1} KiB", memory() / nodes as f64));
        let peers: usize = net.live().map(|number| net.node(number).peers().len()).sum();
        row("peers per table", peers / nodes);
        let numbers = net.live().map(|number| (net.id(number), number)).collect();
        World {
            settled: net.live().collect(),
            net,
            rng: fastrand::Rng::with_seed(seed ^ 0x5eed),
            host: Supervisor::builder("sim").seed(seed).start(),
            done: Arc::default(),
            running: 0,
            joining: Vec::new(),
            provided: Vec::new(),
            numbers,
        }
    }

    fn any(&mut self) -> usize {
        self.settled[self.rng.usize(..self.settled.len())]
    }

    async fn kill(&mut self, number: usize) {
        self.settled.retain(|other| *other != number);
        self.joining.retain(|(other, _)| *other != number);
        self.net.kill(number).await;
    }

    fn start(&mut self) {
        let number = self.net.start();
        self.numbers.insert(self.net.id(number), number);
        self.joining.push((number, Deadline::after(JOINING)));
    }

    fn settle(&mut self) {
        let joined = self.joining.iter().filter(|(_, until)| until.has_passed()).map(|(number, _)| *number);
        self.settled.extend(joined);
        self.joining.retain(|(_, until)| !until.has_passed());
    }

    /// The k nearest to a key of those that have joined, without the asker.
    fn truth(&self, key: &Key, asker: NodeId) -> Vec<NodeId> {
        let joining: HashSet<NodeId> = self.joining.iter().map(|(number, _)| self.net.id(*number)).collect();
        let mut truth = self.net.closest(*key, K + 1 + joining.len());
        truth.retain(|id| *id != asker && !joining.contains(id));
        truth.truncate(K);
        truth
    }

    async fn provide(&mut self, count: usize) {
        for _ in 0..count {
            let mut key = [0; 32];
            self.rng.fill(&mut key);
            let (key, provider) = (Key::from_bytes(key), self.any());
            let dht = self.net.node(provider).clone();
            if dht.provide(key, Deadline::after(DEADLINE)).await.is_ok() {
                self.provided.push((key, provider));
            }
        }
    }

    /// A random goal: one in ten is a provided key.
    fn goal(&mut self) -> Goal {
        self.provided.retain(|(_, provider)| self.net.get(*provider).is_some());
        if !self.provided.is_empty() && self.rng.u8(..10) == 0 {
            let (key, provider) = self.provided[self.rng.usize(..self.provided.len())];
            return Goal::Provider(key, self.net.id(provider));
        }
        let wanted = self.any();
        Goal::Node(self.net.id(wanted))
    }

    /// Starts a search as a task of its own; its result is among those done when it is.
    fn search(&mut self, asker: usize, goal: Goal) {
        let dht = self.net.node(asker).clone();
        let truth = match goal {
            Goal::Node(id) => self.truth(&Key::from(id), dht.node_id()),
            Goal::Provider(..) => Vec::new(),
        };
        let done = Arc::clone(&self.done);
        self.running += 1;
        let _ = self.host.spawn(LOOKUP, move |_| async move {
            let run = run(&dht, goal, truth).await;
            done.lock().unwrap().push(run);
        });
    }

    /// Random searches of random nodes.
    fn searches(&mut self, count: usize) {
        for _ in 0..count {
            let (asker, goal) = (self.any(), self.goal());
            let own = self.net.id(asker);
            match goal {
                Goal::Node(id) | Goal::Provider(_, id) if id == own => {}
                _ => self.search(asker, goal),
            }
        }
    }

    /// What is done since the last call.
    fn take(&mut self, summary: &mut Summary) {
        let runs = std::mem::take(&mut *self.done.lock().unwrap());
        self.running -= runs.len();
        for run in runs {
            let (Goal::Node(id) | Goal::Provider(_, id)) = run.goal;
            let is_live = |id: &NodeId| self.numbers.get(id).is_some_and(|at| self.net.get(*at).is_some());
            // Who died meanwhile could not be found.
            if is_live(&id) {
                summary.add(&run, is_live);
            }
        }
    }

    async fn take_all(&mut self, summary: &mut Summary) {
        while self.running > 0 {
            self.take(summary);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn run(dht: &Dht, goal: Goal, truth: Vec<NodeId>) -> Run {
    let began = ron_core::now();
    let deadline = Deadline::after(DEADLINE);
    let mut run =
        Run { goal, took: DEADLINE, hops: 0, rpcs: 0, hedges: 0, peers: Vec::new(), is_found: false, truth };
    let verdict = match goal {
        Goal::Node(id) => dht.find_node(id, deadline).await.ok().map(|closest| {
            run.peers = closest.peers.iter().map(|peer| peer.id).collect();
            run.is_found = run.peers.first() == Some(&id);
            closest.verdict
        }),
        Goal::Provider(key, provider) => match dht.find_providers(key, NonZeroUsize::MIN, deadline) {
            Ok(mut found) => {
                while let Ok(Some(found)) = found.next().await {
                    run.is_found |= found.id == provider;
                }
                found.verdict().cloned()
            }
            Err(_) => None,
        },
    };
    if let Some(verdict) = verdict {
        run.took = ron_core::now() - began;
        (run.hops, run.rpcs, run.hedges) = (verdict.hops, verdict.rpcs, verdict.hedges);
    }
    run
}

/// What many searches came to.
#[derive(Default)]
struct Summary {
    nodes: [usize; 2],
    providers: [usize; 2],
    recall: f64,
    hops: Vec<u8>,
    took: Vec<Duration>,
    rpcs: usize,
    rpcs_max: usize,
    hedges: usize,
}

impl Summary {
    fn add(&mut self, run: &Run, is_live: impl Fn(&NodeId) -> bool) {
        let [found, all] = match run.goal {
            Goal::Node(_) => &mut self.nodes,
            Goal::Provider(..) => &mut self.providers,
        };
        *all += 1;
        *found += usize::from(run.is_found);
        if matches!(run.goal, Goal::Node(_)) {
            let got: HashSet<&NodeId> = run.peers.iter().collect();
            let truth: Vec<&NodeId> = run.truth.iter().filter(|id| is_live(id)).collect();
            let hits = truth.iter().filter(|id| got.contains(**id)).count();
            self.recall += hits as f64 / truth.len().max(1) as f64;
            self.hops.push(run.hops);
            self.took.push(run.took);
        }
        self.rpcs += run.rpcs;
        self.rpcs_max = self.rpcs_max.max(run.rpcs);
        self.hedges += run.hedges;
    }

    fn success(&self) -> f64 {
        share([self.nodes[0] + self.providers[0], self.count()])
    }

    fn count(&self) -> usize {
        self.nodes[1] + self.providers[1]
    }

    fn recall(&self) -> f64 {
        self.recall / self.nodes[1].max(1) as f64
    }

    fn messages(&self) -> f64 {
        self.rpcs as f64 / self.count().max(1) as f64
    }

    fn took_ms(&mut self, permille: usize) -> f64 {
        quantile(&mut self.took, permille).as_secs_f64() * 1000.0
    }

    fn print(&mut self) {
        row("lookups", self.count());
        row("nodes found", format!("{:.5}   ({} of {})", share(self.nodes), self.nodes[0], self.nodes[1]));
        if self.providers[1] > 0 {
            let [found, all] = self.providers;
            row("providers found", format!("{:.5}   ({found} of {all})", share(self.providers)));
        }
        row("recall of the true 20 nearest", format!("{:.5}", self.recall()));
        let hops = [500, 950, 990].map(|permille| quantile(&mut self.hops, permille));
        row("hops p50 / p95 / p99", format!("{} / {} / {}", hops[0], hops[1], hops[2]));
        let took = [500, 950, 990].map(|permille| self.took_ms(permille));
        row("took p50 / p95 / p99", format!("{:.0} / {:.0} / {:.0} ms", took[0], took[1], took[2]));
        row("questions per lookup (most)", format!("{:.1} ({})", self.messages(), self.rpcs_max));
        row("of them hedges", format!("{:.2}", self.hedges as f64 / self.count().max(1) as f64));
    }
}

fn share([part, all]: [usize; 2]) -> f64 {
    part as f64 / all.max(1) as f64
}

fn quantile<T: Ord + Copy + Default>(values: &mut [T], permille: usize) -> T {
    values.sort_unstable();
    values
        .get((values.len() * permille / 1000).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// Resident memory of this process in KiB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(f64::NAN)
}

/// An hour in which one node in ten goes, without a word, and another comes.
async fn churn(world: &mut World, lookups: usize, targets: &mut Targets) {
    const TICKS: usize = 1000;
    let tick = Duration::from_secs(3600) / TICKS as u32;
    world.provide(200).await;
    let nodes = world.settled.len();
    let mut summary = Summary::default();
    let (mut owed, mut replaced) = (0.0, 0);
    let before = world.net.net().messages();
    let mut next = ron_core::now();
    for at in 0..TICKS {
        next += tick;
        owed += nodes as f64 * 0.1 / TICKS as f64;
        while owed >= 1.0 {
            owed -= 1.0;
            replaced += 1;
            let gone = world.any();
            world.kill(gone).await;
            world.start();
        }
        world.settle();
        world.searches(lookups * (at + 1) / TICKS - lookups * at / TICKS);
        tokio::time::sleep_until(next).await;
        world.take(&mut summary);
    }
    world.take_all(&mut summary).await;
    row("replaced in the hour", format!("{replaced} of {nodes}"));
    summary.print();
    let after = world.net.net().messages();
    let questions = after.asked - before.asked - summary.rpcs as u64;
    row("other messages per node and hour", questions / nodes as u64);
    targets.at_least("success", summary.success(), 0.999);
    targets.at_least("recall", summary.recall(), 0.99);
    for (permille, most) in [(500, 3.0), (950, 4.0), (990, 5.0)] {
        targets.at_most(
            &format!("hops p{}", permille / 10),
            quantile(&mut summary.hops, permille).into(),
            most,
        );
    }
    if !IS_PLAIN.load(Ordering::Relaxed) {
        targets.at_most("memory per node, KiB", memory() / nodes as f64, 100.0);
    }
}

/// One message in ten is lost, questions and answers alike.
async fn loss(world: &mut World, lookups: usize, targets: &mut Targets) {
    let calm = world.net.net().conditions();
    if world.provided.is_empty() {
        world.provide(100).await;
    }
    world.net.net().set_conditions(Conditions { loss: 0.1, ..calm });
    let mut summary = Summary::default();
    for _ in 0..20 {
        world.searches(lookups / 20);
        world.take_all(&mut summary).await;
    }
    world.net.net().set_conditions(calm);
    summary.print();
    targets.at_least("success with 10 % loss", summary.success(), 0.99);
}

/// One peer in twenty takes every question and answers none. The same searches with hedging and without, by nodes that
/// have just come and know nobody's faults.
async fn hedge(world: &mut World, lookups: usize, targets: &mut Targets) {
    const ASKERS: usize = 100;
    let off = Settings {
        lookup: LookupSettings { hedges: 0, ..LookupSettings::default() },
        server: false,
        ..Testnet::settings()
    };
    let on = Settings { lookup: LookupSettings::default(), ..off.clone() };
    let askers = [on, off]
        .map(|settings| (0..ASKERS).map(|_| world.net.start_with(settings.clone())).collect::<Vec<usize>>());
    world.net.ready(&askers.concat()).await;
    let silent: Vec<NodeId> = world
        .settled
        .iter()
        .filter(|_| world.rng.u8(..20) == 0)
        .map(|number| world.net.id(*number))
        .collect();
    silent.iter().for_each(|id| world.net.net().silence(id, true));
    let mut summaries = [Summary::default(), Summary::default()];
    for _ in 0..lookups.div_ceil(ASKERS) {
        let any = || {
            let number = world.any();
            world.net.id(number)
        };
        let wanted: Vec<NodeId> =
            std::iter::repeat_with(any).filter(|id| !silent.contains(id)).take(ASKERS).collect();
        for kind in 0..2 {
            for (asker, wanted) in askers[kind].iter().zip(&wanted) {
                world.search(*asker, Goal::Node(*wanted));
            }
            world.take_all(&mut summaries[kind]).await;
        }
    }
    silent.iter().for_each(|id| world.net.net().silence(id, false));
    let [mut on, mut off] = summaries;
    row("silent peers", format!("{} of {}", silent.len(), world.settled.len()));
    println!(
        "  {:<20} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "", "p50 ms", "p95 ms", "p99 ms", "questions", "found"
    );
    for (name, summary) in [("hedging", &mut on), ("no hedging", &mut off)] {
        let [p50, p95, p99] = [500, 950, 990].map(|permille| summary.took_ms(permille));
        println!(
            "  {name:<20} {p50:>10.0} {p95:>10.0} {p99:>10.0} {:>12.1} {:>10.4}",
            summary.messages(),
            summary.success()
        );
    }
    targets.at_most("p99 with hedging, of that without", on.took_ms(990) / off.took_ms(990), 0.5);
    targets.at_most("messages with hedging, of those without", on.messages() / off.messages(), 1.1);
    for asker in askers.concat() {
        world.net.kill(asker).await;
    }
}

/// One node in five dies at once.
async fn kill(world: &mut World, lookups: usize, targets: &mut Targets) {
    let mut victims = world.settled.clone();
    world.rng.shuffle(&mut victims);
    victims.truncate(world.settled.len() / 5);
    for victim in &victims {
        world.kill(*victim).await;
    }
    row("killed", victims.len());
    let began = ron_core::now();
    let mut last = 0.0;
    println!(
        "  {:<10} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "after", "found", "recall", "p50 ms", "p99 ms", "questions"
    );
    for after in [0, 30, 60, 120, 180, 240, 300] {
        tokio::time::sleep_until(began + Duration::from_secs(after)).await;
        let mut summary = Summary::default();
        world.searches(lookups.max(100));
        world.take_all(&mut summary).await;
        last = summary.success();
        let [p50, p99] = [500, 990].map(|permille| summary.took_ms(permille));
        println!(
            "  {:<10} {last:>10.4} {:>10.4} {p50:>10.0} {p99:>12.0} {:>10.1}",
            format!("{after} s"),
            summary.recall(),
            summary.messages()
        );
    }
    targets.at_least("success 300 s after 20 % died", last, 0.99);
}

/// One node says many keys, and others look for some of them.
async fn provide(nodes: usize, count: usize, seed: u64, targets: &mut Targets) {
    const FINDS: usize = 1000;
    let mut net = Testnet::builder(nodes).seed(seed).build().await;
    let provider = net.node(0).clone();
    let random = || {
        let mut key = [0; 32];
        net.rng().fill(&mut key);
        Key::from_bytes(key)
    };
    let keys: Vec<Key> = std::iter::repeat_with(random).take(count).collect();
    let (before, began) = (net.net().messages().asked, ron_core::now());
    let many = provider.provide_many(keys.iter().copied(), Deadline::after(Duration::from_secs(12 * 3600)));
    let progress = many.unwrap().finish().await.unwrap();
    row("keys", count);
    row("took", format!("{:.0} s of their time", (ron_core::now() - began).as_secs_f64()));
    row("searches", progress.lookups);
    row("messages per key", format!("{:.3}", (net.net().messages().asked - before) as f64 / count as f64));
    row("copies per key", format!("{:.2}", progress.kept as f64 / count as f64));
    let mut found = 0;
    for _ in 0..FINDS {
        let (asker, key) = (net.rng().usize(1..nodes), keys[net.rng().usize(..keys.len())]);
        let goal = Goal::Provider(key, provider.node_id());
        found += usize::from(run(net.node(asker), goal, Vec::new()).await.is_found);
    }
    targets.at_most("searches, of one for each key", progress.lookups as f64 / count as f64, 0.03);
    targets.at_least("keys said", share([progress.done, count]), 1.0);
    targets.at_least("keys found", share([found, FINDS]), 0.999);
}

/// Twenty ids made to be next to a key: they name each other, and know nothing of what they promised to keep.
struct Sybil {
    gang: Arc<Mutex<Vec<Contact>>>,
}

impl Answers for Sybil {
    fn answer(&self, _: Sender, request: Request, _: Deadline) -> Served {
        let gang = || self.gang.lock().unwrap().clone();
        Served::Now(Ok(match request {
            Request::Ping { .. } => Answer::Pong,
            Request::FindNode { .. } => Answer::Nodes { closer: gang() },
            Request::FindValue { .. } => Answer::Found { closer: gang(), providers: Vec::new(), value: None },
            Request::Provide { records } => {
                Answer::Provided { results: vec![RecordOutcome::Kept; records.len()] }
            }
            Request::Store { values } => Answer::Stored { results: vec![RecordOutcome::Kept; values.len()] },
        }))
    }
}

/// An ordinary node that lies: it names peers next to the target that do not exist, and drops what it keeps.
struct Liar {
    honest: Weak<dyn Answers>,
    rng: Mutex<fastrand::Rng>,
}

impl Liar {
    fn invented(&self, target: &Key) -> Vec<Contact> {
        let mut rng = self.rng.lock().unwrap();
        let addrs: Arc<[_]> = Arc::from([(Ipv4Addr::new(99, 9, 9, 9), 4000).into()]);
        let invented = |_| {
            let mut id = *target.as_bytes();
            rng.fill(&mut id[4..]);
            Contact { id: NodeId::from_bytes(id), addrs: Arc::clone(&addrs) }
        };
        (0..K).map(invented).collect()
    }
}

impl Answers for Liar {
    fn answer(&self, from: Sender, request: Request, deadline: Deadline) -> Served {
        Served::Now(Ok(match request {
            Request::FindNode { target } => Answer::Nodes { closer: self.invented(&target) },
            Request::FindValue { key, .. } => {
                Answer::Found { closer: self.invented(&key), providers: Vec::new(), value: None }
            }
            Request::Provide { records } => {
                Answer::Provided { results: vec![RecordOutcome::Kept; records.len()] }
            }
            Request::Store { values } => Answer::Stored { results: vec![RecordOutcome::Kept; values.len()] },
            ping => match self.honest.upgrade() {
                Some(honest) => return honest.answer(from, ping, deadline),
                None => return Served::Now(Err(Fault::bad_request("gone"))),
            },
        }))
    }
}

/// Puts twenty Sybils around `key` and has them call on everybody, so that they are in the tables they belong in.
async fn besiege(
    net: &Testnet,
    key: &Key,
    is_one_network: bool,
    rng: &mut fastrand::Rng,
) -> Vec<(SimLink, Arc<Sybil>)> {
    let gang = Arc::new(Mutex::new(Vec::new()));
    let mut sybils = Vec::new();
    for number in 0..K as u8 {
        let mut id = *key.as_bytes();
        rng.fill(&mut id[6..]);
        let sybil = Arc::new(Sybil { gang: Arc::clone(&gang) });
        let weak: Weak<dyn Answers> = Arc::downgrade(&sybil) as Weak<dyn Answers>;
        let world: &SimNetwork = net.net();
        let link = if is_one_network {
            world.join_at(NodeId::from_bytes(id), IpAddr::from([98, 7, rng.u8(..2), number]), weak)
        } else {
            world.join(NodeId::from_bytes(id), weak)
        };
        gang.lock().unwrap().push(link.contact());
        sybils.push((link, sybil));
    }
    for number in net.live() {
        let to = net.node(number).contact();
        let mut calls = Vec::new();
        for (link, _) in &sybils {
            let request = Arc::new(Request::Ping { listening: link.listening() });
            calls.push(link.ask(&to, request, Deadline::after(Duration::from_secs(2))));
        }
        for call in calls {
            let _ = call.await;
        }
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    sybils
}

/// Somebody provides a key and somebody else looks for it, with attackers around.
async fn sybil(nodes: usize, seed: u64, targets: &mut Targets) {
    const KEYS: usize = 10;
    const FINDS: usize = 10;
    let paths = |paths: usize| LookupSettings {
        paths: NonZeroUsize::new(paths).unwrap(),
        ..LookupSettings::default()
    };
    let base = Settings { preset: Preset::Public, ..Testnet::settings() };
    let off = Settings { regions: false, preset: Preset::Lan, ..base.clone() };
    let region = Settings { preset: Preset::Lan, ..base.clone() };
    let on = Settings { lookup: paths(4), ..base.clone() };
    println!(
        "  {:<26} {:<28} {:>6} {:>6} {:>6} {:>10} {:>10}",
        "attack", "defence", "kept", "wide", "found", "questions", "most (cap)"
    );
    let mut defended = Vec::new();
    for (attack, sybils, is_one_network, liars) in [
        ("none", false, false, 0.0),
        ("20 Sybils, one network", true, true, 0.0),
        ("20 Sybils, a network each", true, false, 0.0),
        ("20 % liars", false, false, 0.2),
        ("20 Sybils and 20 % liars", true, false, 0.2),
    ] {
        for (defence, settings) in
            [("none", &off), ("regions", &region), ("regions, diversity, 4 paths", &on)]
        {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut net = Testnet::builder(nodes).seed(seed).settings(settings.clone()).build().await;
            // Everybody has refreshed a few times, so what they believe of the size of the network is settled.
            tokio::time::sleep(Duration::from_secs(30_000)).await;
            let mut honest: Vec<usize> = net.live().collect();
            for number in honest.clone() {
                if rng.f64() < liars {
                    honest.retain(|other| *other != number);
                    let id = net.id(number);
                    let nobody: Weak<dyn Answers> = Weak::<Sybil>::new();
                    let liar = Liar { honest: nobody, rng: Mutex::new(rng.fork()) };
                    let honest = net.net().replace(&id, Arc::new(liar));
                    let liar = Liar { honest, rng: Mutex::new(rng.fork()) };
                    net.net().replace(&id, Arc::new(liar));
                }
            }
            let (mut kept, mut wide) = (0, 0);
            let (mut found, mut questions, mut most, mut cap) = (0, 0, 0, 0);
            for _ in 0..KEYS {
                let mut key = [0; 32];
                rng.fill(&mut key);
                let key = Key::from_bytes(key);
                let gang =
                    if sybils { besiege(&net, &key, is_one_network, &mut rng).await } else { Vec::new() };
                let provider = honest[rng.usize(..honest.len())];
                let published = net.node(provider).provide(key, Deadline::after(DEADLINE)).await;
                kept += usize::from(published.is_ok());
                wide += usize::from(published.is_ok_and(|published| published.is_region));
                for _ in 0..FINDS {
                    let asker = honest[rng.usize(..honest.len())];
                    let run = run(net.node(asker), Goal::Provider(key, net.id(provider)), Vec::new()).await;
                    found += usize::from(run.is_found);
                    questions += run.rpcs;
                    most = most.max(run.rpcs);
                }
                gang.iter().for_each(|(link, _)| net.net().kill(&link.contact().id));
                // One search for the key, and one for each of the five cells of its region.
                cap = usize::from(settings.lookup.requests_max) * if settings.regions { 6 } else { 1 };
            }
            let all = KEYS * FINDS;
            println!(
                "  {attack:<26} {defence:<28} {:>6.2} {:>6.2} {:>6.2} {:>10.1} {:>10}",
                share([kept, KEYS]),
                share([wide, KEYS]),
                share([found, all]),
                questions as f64 / all as f64,
                format!("{most} ({cap})")
            );
            if most > cap {
                targets.missed.push(format!("{attack}, {defence}: {most} questions, {cap} are the cap"));
            }
            if defence == "regions, diversity, 4 paths" {
                defended.push(share([found, all]));
            }
            let numbers: Vec<usize> = net.live().collect();
            for number in numbers {
                net.kill(number).await;
            }
        }
    }
    targets.at_least("least success with all defences", defended.into_iter().fold(1.0, f64::min), 0.99);
}
