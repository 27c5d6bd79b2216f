//! Three times as much as a node was set up for, over real links: what those who are served notice of it.
//!
//! ```text
//! cargo run --release -p ron-dht --example overload
//! ```
//!
//! Eight peers ask one node, first half of its configured rate and then three times that rate, for a minute each
//! (`--seconds` for another time). Who is beyond the rate is told `Busy` at once. Exits with 1 if those who are served
//! wait more than twice as long as before at the 99th percentile, if the node's memory grows, or if it says that it is
//! not ready: what others ask too much is no reason not to ask.
//!
//! Percentiles are those of the median second: where the machine stands still for a moment, questions that were due
//! meanwhile come all at once, and of six times as many a percent is soon full of one such moment. Beside it the whole is
//! told.
//!
//! The node has a process of its own, as nodes do: what it takes in memory is its own, and its answers do not wait for a
//! turn behind the eight who ask. They and its neighbours are in the first process.

use std::{
    error::Error,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Deadline, GateLimits, LaneSpec, NodeId, Supervisor, TaskSpec,
    net::{
        Endpoint, Identity,
        rpc::{Method, Peers, PeersSettings, Protocol, RpcError},
    },
    now,
};
use ron_dht::{
    Contact, Dht, Key, Settings,
    network::{ALPN, Request},
};

const CLIENTS: u64 = 8;
/// Answers name the nearest of these.
const NEIGHBOURS: usize = 24;
const PER_SECOND: u64 = 2_000;

const LINKS: LaneSpec = LaneSpec::new("overload", "links", 16).flow("endpoint → sessions").why("one is used");
const CLIENT: TaskSpec = TaskSpec::new("overload", "client").what("asks at its rate, whatever is answered");
const CALL: TaskSpec = TaskSpec::new("overload", "call").what("one question");

#[derive(Default)]
struct Tally {
    /// By the second in which they were due.
    took: Vec<Vec<Duration>>,
    busy: usize,
    lost: usize,
}

type Shared = Arc<Mutex<Tally>>;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let seconds: u64 = match (words.next().as_deref(), words.next()) {
        (None, _) => 60,
        (Some("--quick"), None) => 3,
        (Some("--seconds"), Some(seconds)) => seconds.parse()?,
        (Some("--serve"), None) => return serve().await,
        _ => return Err("--seconds N".into()),
    };
    let host = Supervisor::new("overload");
    let mut served = Served::start()?;
    let mut neighbours = Vec::new();
    for _ in 0..NEIGHBOURS {
        neighbours.push(node(&host, Settings::default(), Some(served.contact.clone())).await?);
    }
    for neighbour in &neighbours {
        neighbour.joined(Deadline::after(Duration::from_secs(20))).await?;
    }
    served.watch()?;
    let mut peers = Vec::new();
    for _ in 0..CLIENTS {
        let endpoint = Endpoint::builder(Identity::generate()?).start(&host)?;
        let protocol = Protocol { alpn: ALPN, proto: 1, links: LINKS };
        // They only ask.
        peers.push(Peers::start(&endpoint, protocol, Arc::new(()), PeersSettings::default(), &host)?);
    }
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "offered/s", "served/s", "busy/s", "p50 µs", "p99 µs", "p99, all"
    );
    // The first seconds make connections, memory and round trips what they will be.
    load(&host, &peers, &served.contact, PER_SECOND / 2, 2).await;
    let calm = load(&host, &peers, &served.contact, PER_SECOND / 2, seconds).await.print("half", seconds);
    let early = served.memory();
    let stormy = load(&host, &peers, &served.contact, PER_SECOND * 3, seconds).await;
    let late = served.memory();
    let is_ready = served.end()?;
    let (busy, lost) = (stormy.busy, stormy.lost);
    let ratio = stormy.print("three times", seconds) / calm;
    println!("p99 of those served: {ratio:.2} times that of the calm");
    println!("memory of the node: {early} KiB before, {late} KiB after");
    println!("ready all the time: {is_ready}; neither answered nor refused: {lost}");
    host.shutdown().await;
    let held = ratio <= 2.0 && early > 0 && late <= early + early / 10 && is_ready && busy > 0 && lost == 0;
    println!("{}", if held { "every promise was kept" } else { "a promise was broken" });
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The process of the node that is asked: says where it is, then whether it was ready from the first line of its input
/// to the end of it.
async fn serve() -> Result<ExitCode, Box<dyn Error>> {
    let host = Supervisor::new("served");
    let limits = |per_second: u64, in_flight| GateLimits {
        per_second,
        burst: per_second / 10,
        in_flight,
        ..Settings::default().total_limits
    };
    let settings = Settings {
        peer_limits: limits(PER_SECOND, 128),
        total_limits: limits(PER_SECOND, 512),
        ..Settings::default()
    };
    let dht = node(&host, settings, None).await?;
    println!("{}", dht.contact());
    let watched = Arc::new(AtomicBool::new(false));
    let (spawner, begun) = (host.spawner(), Arc::clone(&watched));
    let input = spawner.blocking("input", Deadline::after(Duration::from_secs(3600)), move || {
        for _ in std::io::stdin().lines() {
            begun.store(true, Ordering::Relaxed);
        }
    });
    let mut is_ready = true;
    let watch = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let ready = dht.ready();
            is_ready &= ready.reads && ready.writes || !watched.load(Ordering::Relaxed);
        }
    };
    tokio::select! {
        () = watch => {}
        ended = input => ended?,
    }
    println!("{is_ready}");
    host.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// That process, seen from the first.
struct Served {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    contact: Contact,
}

impl Served {
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.ok_or("no input")?, output.ok_or("no output")?);
        let (mut output, mut contact) = (BufReader::new(output), String::new());
        output.read_line(&mut contact)?;
        Ok(Served { child, input, output, contact: contact.trim().parse()? })
    }

    /// From now on it has to be ready.
    fn watch(&mut self) -> std::io::Result<()> {
        writeln!(self.input, "watch")
    }

    /// Its resident memory in KiB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    /// Ends it. Says whether it was ready all the time.
    fn end(mut self) -> Result<bool, Box<dyn Error>> {
        drop(self.input);
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        self.child.wait()?;
        Ok(said.trim().parse()?)
    }
}

async fn node(host: &Supervisor, settings: Settings, seed: Option<Contact>) -> Result<Dht, Box<dyn Error>> {
    let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
    Ok(Dht::builder().settings(settings).seeds(seed).start(&endpoint, host).await?)
}

struct Report {
    took: Vec<Vec<Duration>>,
    busy: usize,
    lost: usize,
    offered: u64,
}

impl Report {
    /// Prints a line, and returns the 99th percentile of the median second.
    fn print(mut self, what: &str, seconds: u64) -> f64 {
        self.took.iter_mut().for_each(|second| second.sort_unstable());
        let median = |permille: usize| {
            let mut seconds: Vec<f64> = self.took.iter().map(|second| micros(second, permille)).collect();
            seconds.sort_unstable_by(f64::total_cmp);
            seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (p50, p99) = (median(500), median(990));
        let mut all = self.took.concat();
        all.sort_unstable();
        println!(
            "{what:<12} {:>9} {:>9} {:>9} {p50:>9.0} {p99:>9.0} {:>9.0}",
            self.offered / seconds,
            all.len() as u64 / seconds,
            self.busy as u64 / seconds,
            micros(&all, 990)
        );
        p99
    }
}

/// This permille of what is sorted, in microseconds.
fn micros(sorted: &[Duration], permille: usize) -> f64 {
    sorted.get(sorted.len() * permille / 1000).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
}

/// All peers together ask so often a second, each question when its time has come and not when the last is answered.
async fn load(host: &Supervisor, peers: &[Peers], to: &Contact, per_second: u64, seconds: u64) -> Report {
    let tally = Shared::default();
    let clients: Vec<_> = peers
        .iter()
        .map(|peers| {
            let (peers, to, tally, calls) = (peers.clone(), to.clone(), Arc::clone(&tally), host.spawner());
            host.spawn(CLIENT, move |_| async move {
                let (began, each) = (now(), per_second / CLIENTS);
                for number in 0..each * seconds {
                    tokio::time::sleep_until(began + Duration::from_secs(1) * number as u32 / each as u32)
                        .await;
                    let (peers, to, tally) = (peers.clone(), to.clone(), Arc::clone(&tally));
                    let second = (number / each) as usize;
                    let _ = calls
                        .spawn(CALL, move |_| async move { ask(&peers, &to, number, second, &tally).await });
                }
            })
        })
        .collect();
    for client in clients {
        client.ended().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    let offered = per_second / CLIENTS * seconds * CLIENTS;
    let answered = tally.took.iter().map(Vec::len).sum::<usize>() + tally.busy;
    let lost = tally.lost + (offered as usize).saturating_sub(answered + tally.lost);
    Report { took: tally.took, busy: tally.busy, lost, offered }
}

async fn ask(peers: &Peers, to: &Contact, number: u64, second: usize, tally: &Shared) {
    let target = Key::from(NodeId::of_public_key(&[number as u8; 32]));
    let (method, body) = Request::FindNode { target }.encode();
    let method = Method { number: method, name: "find_node" };
    let began = now();
    let answer = peers.call(to.id, &to.addrs, method, &body, Deadline::after(Duration::from_secs(2))).await;
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(_) => {
            if tally.took.len() <= second {
                tally.took.resize_with(second + 1, Vec::new);
            }
            tally.took[second].push(now() - began);
        }
        Err(RpcError::Busy { .. }) => tally.busy += 1,
        Err(_) => tally.lost += 1,
    }
}
