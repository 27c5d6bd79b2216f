//! Does a network of whole nodes keep its promises while machines crash and the network parts?
//!
//! Real nodes on a simulated network, disk and clock, out of one seed. Two of them are clients, and only clients look: a
//! server of so small a network keeps every record itself and would find it without asking anybody.
//!
//! A checker for each subsystem watches what its nodes promised. `--nodes N`, `--minutes M`, `--seed S`; `--quick` for a
//! short run, twice, compared.

use std::{
    collections::BTreeMap,
    error::Error,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, Ratio,
    net::{Endpoint, Identity},
    now,
    sim::{Latency, Line, Sim, SimNode, SimTransport},
};
use ron_dht::{Contact, Dht};

const PORT: u16 = 4710;

/// Nodes that keep nothing for others and look for what others have. They come after the servers.
const CLIENTS: u8 = 2;

/// What a run is.
#[derive(Clone, Copy)]
struct Scenario {
    nodes: u8,
    minutes: u32,
    seed: u64,
}

/// What came of it. Equal runs are equal in every number.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    trace: String,
    provided: usize,
    found: usize,
    missed: usize,
    missed_after_peace: usize,
}

/// The DHT's checker: what each node provides, by its own word. Whoever looks for it must find it, as long as its
/// provider is up and everybody can reach everybody.
#[derive(Default)]
struct Provided {
    /// The content of each node that was provided since it last started.
    by: BTreeMap<u8, ContentId>,
    handles: BTreeMap<u8, Dht>,
    provided: usize,
}

type Checker = Arc<Mutex<Provided>>;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut scenario = Scenario { nodes: 24, minutes: 20, seed: 1 };
    let mut twice = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match &*argument {
            "--quick" => (scenario.nodes, scenario.minutes, twice) = (10, 4, true),
            "--nodes" => scenario.nodes = value()?.parse()?,
            "--minutes" => scenario.minutes = value()?.parse()?,
            "--seed" => scenario.seed = value()?.parse()?,
            _ => return Err(format!("{argument} is not known").into()),
        }
    }
    let began = std::time::Duration::from_secs(60) * scenario.minutes;
    let report = run(scenario);
    println!("{} nodes, {began:?} of virtual time, seed {}", scenario.nodes, scenario.seed);
    println!("{report:#?}");
    if twice && run(scenario) != report {
        println!("the same seed gave another run");
        return Ok(ExitCode::FAILURE);
    }
    let held = report.missed_after_peace == 0 && report.found > 0;
    println!("{}", if held { "every promise was kept" } else { "a promise was broken" });
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(scenario: Scenario) -> Report {
    let Scenario { nodes, minutes, seed } = scenario;
    Sim::run(seed, async |sim| {
        let latency = Latency::Tailed(Duration::from_millis(20), Duration::from_millis(200));
        sim.net().set_usual(Line { latency, loss: Ratio::percent(1), ..Line::default() });
        let checker = Checker::default();
        for number in 0..nodes + CLIENTS {
            let (checker, is_client) = (Arc::clone(&checker), number >= nodes);
            sim.add(ip(number), move |node| live(node, number, is_client, Arc::clone(&checker)));
        }
        sim.run_for(Duration::from_secs(30)).await;
        let (mut found, mut missed) = (0, 0);
        for minute in 0..minutes {
            let victim = sim.rng().u8(1..nodes);
            let split = sim.rng().u8(1..nodes);
            if minute % 3 == 2 {
                let (one, other): (Vec<_>, Vec<_>) =
                    (0..nodes + CLIENTS).map(ip).partition(|ip| *ip < self::ip(split));
                sim.net().partition(&one, &other);
            }
            forget(&checker, victim);
            sim.crash(ip(victim)).await;
            sim.run_for(Duration::from_secs(20)).await;
            sim.net().heal();
            sim.restart(ip(victim));
            let (hit, miss) = look(sim, &checker, nodes, 4).await;
            (found, missed) = (found + hit, missed + miss);
            sim.run_for(Duration::from_secs(20)).await;
        }
        // Peace: everybody is up, everybody can be reached, everybody has had time to say what it provides.
        sim.run_for(Duration::from_secs(120)).await;
        let (hit, missed_after_peace) = look(sim, &checker, nodes, usize::from(nodes) * 4).await;
        let provided = checker.lock().unwrap_or_else(PoisonError::into_inner).provided;
        Report {
            trace: sim.net().trace().to_string(),
            provided,
            found: found + hit,
            missed,
            missed_after_peace,
        }
    })
}

fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 4, number])
}

fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number; 32])
}

/// A node's program: joins, and says every minute that it has something.
async fn live(node: SimNode, number: u8, is_client: bool, checker: Checker) {
    let transport = Arc::new(SimTransport::new(&node.net, node.ip, &identity(number)));
    let addr = SocketAddr::new(node.ip, PORT);
    // A machine may lose power before its program has run at all.
    let Ok(endpoint) =
        Endpoint::builder(identity(number)).transport(transport).listen(addr).start(&node.supervisor)
    else {
        return;
    };
    let seeds = [0, 1].map(|seed| Contact {
        id: identity(seed).node_id(),
        addrs: Arc::from([SocketAddr::new(ip(seed), PORT)]),
    });
    let dht = Dht::builder().seeds(seeds).seed(node.seed);
    let dht = if is_client { dht.client() } else { dht };
    let Ok(dht) = dht.start(&endpoint, &node.supervisor).await else { return };
    checker.lock().unwrap_or_else(PoisonError::into_inner).handles.insert(number, dht.clone());
    if is_client {
        // Lives for as long as its group does.
        return std::future::pending().await;
    }
    let content = ContentId::of(&[number]);
    loop {
        let provided = dht.provide(content, Deadline::after(Duration::from_secs(10))).await.is_ok();
        if provided {
            let mut checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
            checker.by.insert(number, content);
            checker.provided += 1;
        }
        tokio::time::sleep(Duration::from_secs(if provided { 60 } else { 5 })).await;
    }
}

fn forget(checker: &Checker, number: u8) {
    let mut checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
    checker.by.remove(&number);
    let handle = checker.handles.remove(&number);
    drop(checker);
    drop(handle);
}

/// Looks from random nodes for what others provide. Says how often it was found, and how often not.
async fn look(sim: &mut Sim, checker: &Checker, nodes: u8, times: usize) -> (usize, usize) {
    let (mut found, mut missed) = (0, 0);
    for _ in 0..times {
        let (asker, provider) = (sim.rng().u8(nodes..nodes + CLIENTS), sim.rng().u8(0..nodes));
        let (dht, content) = {
            let checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
            (checker.handles.get(&asker).cloned(), checker.by.get(&provider).copied())
        };
        let (Some(dht), Some(content)) = (dht, content) else { continue };
        let began = now();
        let deadline = Deadline::after(Duration::from_secs(10));
        let first = match dht.find_providers(content, NonZeroUsize::MIN, deadline) {
            Ok(mut search) => search.next().await.ok().flatten(),
            Err(_) => None,
        };
        match first {
            Some(first) if first.id == identity(provider).node_id() => found += 1,
            _ => missed += 1,
        }
        debug_assert!(now() - began <= Duration::from_secs(11), "the deadline is kept");
    }
    (found, missed)
}
