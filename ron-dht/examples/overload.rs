//! Three times as much as a node was set up for, over real links: what those who are served notice of it.
//!
//! ```text
//! cargo run --release -p ron-dht --example overload
//! ```
//!
//! Eight peers ask one node, first half of its configured rate and then three times that rate, for a minute each
//! (`--seconds` for another time). Who is beyond the rate is told `Busy` at once. Exits with 1 if those who are served
//! wait more than twice as long as before at the 99th percentile, if memory grows, or if the node says that it is not
//! ready: what others ask too much is no reason not to ask.

use std::{
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ron_core::{
    Deadline, GateLimits, LaneSpec, NodeId, Supervisor, TaskSpec,
    net::{
        Endpoint, Identity,
        oap::Code,
        rpc::{self, Fault, Handling, Method, Peers, PeersSettings, Protocol, RpcError, Service},
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

/// Answers nothing: these peers only ask.
struct Mute;

impl Service for Mute {
    fn call(&self, _: rpc::Request) -> Handling {
        Handling::Done(Err(Fault::new(Code::NotFound, "asks and is not asked")))
    }
}

#[derive(Default)]
struct Tally {
    took: Vec<Duration>,
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
        _ => return Err("--seconds N".into()),
    };
    let host = Supervisor::new("overload");
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
    let mut neighbours = Vec::new();
    for _ in 0..NEIGHBOURS {
        neighbours.push(node(&host, Settings::default(), Some(dht.contact())).await?);
    }
    dht.joined(Deadline::after(Duration::from_secs(20))).await?;
    let mut peers = Vec::new();
    for _ in 0..CLIENTS {
        let endpoint = Endpoint::builder(Identity::generate()?).start(&host)?;
        let protocol = Protocol { alpn: ALPN, proto: 1, links: LINKS };
        peers.push(Peers::start(&endpoint, protocol, Arc::new(Mute), PeersSettings::default(), &host)?);
    }
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "offered/s", "served/s", "busy/s", "p50 µs", "p99 µs"
    );
    // The first seconds make connections, memory and round trips what they will be.
    load(&host, &peers, &dht, PER_SECOND / 2, 2).await;
    let calm = load(&host, &peers, &dht, PER_SECOND / 2, seconds).await.print("half", seconds);
    let early = memory();
    let stormy = load(&host, &peers, &dht, PER_SECOND * 3, seconds).await;
    let late = memory();
    let (is_ready, busy, lost) = (stormy.is_ready, stormy.busy, stormy.lost);
    let ratio = stormy.print("three times", seconds) / calm;
    println!("p99 of those served: {ratio:.2} times that of the calm");
    println!("memory: {early} KiB before, {late} KiB after");
    println!("ready all the time: {is_ready}; neither answered nor refused: {lost}");
    host.shutdown().await;
    let held = ratio <= 2.0 && late <= early + early / 10 && is_ready && busy > 0 && lost == 0;
    println!("{}", if held { "every promise was kept" } else { "a promise was broken" });
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn node(host: &Supervisor, settings: Settings, seed: Option<Contact>) -> Result<Dht, Box<dyn Error>> {
    let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
    Ok(Dht::builder().settings(settings).seeds(seed).start(&endpoint, host).await?)
}

struct Report {
    took: Vec<Duration>,
    busy: usize,
    lost: usize,
    offered: u64,
    is_ready: bool,
}

impl Report {
    /// Prints a line, and returns the 99th percentile.
    fn print(mut self, what: &str, seconds: u64) -> f64 {
        self.took.sort_unstable();
        let micros = |permille: usize| {
            let at = self.took.len() * permille / 1000;
            self.took.get(at).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
        };
        let (p50, p99, served) = (micros(500), micros(990), self.took.len() as u64);
        println!(
            "{what:<12} {:>9} {:>9} {:>9} {p50:>9.0} {p99:>9.0}",
            self.offered / seconds,
            served / seconds,
            self.busy as u64 / seconds
        );
        p99
    }
}

/// All peers together ask so often a second, each question when its time has come and not when the last is answered.
async fn load(host: &Supervisor, peers: &[Peers], dht: &Dht, per_second: u64, seconds: u64) -> Report {
    let tally = Shared::default();
    let to = dht.contact();
    let clients: Vec<_> = peers
        .iter()
        .map(|peers| {
            let (peers, to, tally, calls) = (peers.clone(), to.clone(), Arc::clone(&tally), host.spawner());
            host.spawn(CLIENT, move |_| async move {
                let began = now();
                for number in 0..per_second * seconds / CLIENTS {
                    tokio::time::sleep_until(
                        began + Duration::from_secs(1) * number as u32 / (per_second / CLIENTS) as u32,
                    )
                    .await;
                    let (peers, to, tally) = (peers.clone(), to.clone(), Arc::clone(&tally));
                    let _ = calls.spawn(CALL, move |_| async move { ask(&peers, &to, number, &tally).await });
                }
            })
        })
        .collect();
    let mut is_ready = true;
    for _ in 0..seconds * 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        is_ready &= dht.ready().reads && dht.ready().writes;
    }
    for client in clients {
        client.ended().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    let offered = per_second * seconds / CLIENTS * CLIENTS;
    let answered = tally.took.len() + tally.busy;
    let lost = tally.lost + (offered as usize).saturating_sub(answered + tally.lost);
    Report { took: tally.took, busy: tally.busy, lost, offered, is_ready }
}

async fn ask(peers: &Peers, to: &Contact, number: u64, tally: &Shared) {
    let target = Key::from(NodeId::of_public_key(&[number as u8; 32]));
    let (method, body) = Request::FindNode { target }.encode();
    let method = Method { number: method, name: "find_node" };
    let began = now();
    let answer = peers.call(to.id, &to.addrs, method, &body, Deadline::after(Duration::from_secs(2))).await;
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(_) => tally.took.push(now() - began),
        Err(RpcError::Busy { .. }) => tally.busy += 1,
        Err(_) => tally.lost += 1,
    }
}

/// Resident memory of this process in KiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
