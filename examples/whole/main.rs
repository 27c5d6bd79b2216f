//! Does a network of whole nodes keep its promises while machines crash and the network parts?
//!
//! Real nodes on a simulated network, disk and clock, out of one seed. Two of them are clients, and only clients look: a
//! server of so small a network keeps every record itself and would find it without asking anybody.
//!
//! A checker for each subsystem watches what its nodes promised. `--nodes N`, `--minutes M`, `--seed S`; `--quick` for a
//! short run, twice, compared.

mod governed;
mod kept;
mod news;
mod provided;
mod resolved;

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ron_core::{
    Ratio,
    net::{Contact, Endpoint, Identity},
    sim::{Latency, Line, Sim, SimNode, SimTransport},
};
use ron_dht::Dht;
use ron_overlay::Overlay;

use crate::{
    governed::Governed,
    kept::Kept,
    news::{News, Tally},
    provided::Provided,
    resolved::Resolved,
};

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
    news: Tally,
    kept: kept::Tally,
    governed: governed::Tally,
    resolved: resolved::Tally,
}

/// What watches over the promises of each subsystem.
#[derive(Clone, Default)]
struct Checkers {
    provided: Provided,
    news: News,
    kept: Kept,
    governed: Governed,
    resolved: Resolved,
}

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
    let found = report.missed_after_peace == 0 && report.found > 0;
    let heard = report.news.heard > 0 && (report.news.twice, report.news.silent) == (0, 0);
    // All who follow: three servers, and the clients.
    let followers = 3 + usize::from(CLIENTS);
    let governed = report.governed;
    let agreed =
        governed.committed > 0 && (governed.lost, governed.forked, governed.followed) == (0, 0, followers);
    let answers = report.resolved;
    let resolved =
        answers.answered > 0 && (answers.wrong, answers.late, answers.missed_after_peace) == (0, 0, 0);
    let held = found && heard && agreed && resolved && report.kept.is_kept();
    println!("{}", if held { "every promise was kept" } else { "a promise was broken" });
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(scenario: Scenario) -> Report {
    let Scenario { nodes, minutes, seed } = scenario;
    Sim::run(seed, async |sim| {
        let latency = Latency::Tailed(Duration::from_millis(20), Duration::from_millis(200));
        sim.net().set_usual(Line { latency, loss: Ratio::percent(1), ..Line::default() });
        let checkers = Checkers::default();
        for number in 0..nodes + CLIENTS {
            let (checkers, is_client) = (checkers.clone(), number >= nodes);
            sim.add(ip(number), move |node| live(node, number, is_client, checkers.clone()));
        }
        let Checkers { provided, news, kept, governed, resolved } = &checkers;
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
            provided.forget(victim);
            news.forget(victim);
            governed.forget(victim);
            sim.crash(ip(victim)).await;
            news.publish(sim, nodes, 4).await;
            sim.run_for(Duration::from_secs(20)).await;
            governed.commit(8).await;
            sim.net().heal();
            sim.restart(ip(victim));
            let (hit, miss) = provided.look(sim, nodes, 4).await;
            (found, missed) = (found + hit, missed + miss);
            resolved.look(sim, nodes, 4, provided, false).await;
            news.publish(sim, nodes, 4).await;
            sim.run_for(Duration::from_secs(20)).await;
        }
        // Peace: everybody is up, everybody can be reached, everybody has had time to say what it provides.
        sim.run_for(Duration::from_secs(120)).await;
        let (hit, missed_after_peace) = provided.look(sim, nodes, usize::from(nodes) * 4).await;
        resolved.look(sim, nodes, usize::from(nodes) * 2, provided, true).await;
        news.publish(sim, nodes, usize::from(nodes)).await;
        governed.commit(8).await;
        sim.run_for(Duration::from_secs(30)).await;
        let (news_tally, governed_tally) = (news.tally(), governed.tally().await);
        // At last everybody loses power at once, and has everything all the same.
        for number in 0..nodes {
            provided.forget(number);
            news.forget(number);
            sim.crash(ip(number)).await;
        }
        for number in 0..nodes {
            sim.restart(ip(number));
        }
        sim.run_for(Duration::from_secs(5)).await;
        Report {
            trace: sim.net().trace().to_string(),
            provided: provided.count(),
            found: found + hit,
            missed,
            missed_after_peace,
            news: news_tally,
            kept: kept.tally(),
            governed: governed_tally,
            resolved: resolved.tally(),
        }
    })
}

fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 4, number])
}

fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number; 32])
}

/// A node's program: all subsystems on one endpoint, each with its part.
async fn live(node: SimNode, number: u8, is_client: bool, checkers: Checkers) {
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
    let unix = node.unix_clock();
    let dht = Dht::builder().seeds(seeds.clone()).seed(node.seed).unix_clock(move || unix().as_secs());
    let dht = if is_client { dht.client() } else { dht };
    let Ok(dht) = dht.start(&endpoint, &node.supervisor).await else { return };
    let overlay = Overlay::builder().seed(node.seed).unix_clock(node.unix_clock());
    let Ok(overlay) = overlay.start(&endpoint, &node.supervisor).await else { return };
    let Checkers { provided, news, kept, governed, resolved } = checkers;
    let keeping = async {
        if !is_client {
            kept.live(number, node.clone()).await;
        }
    };
    tokio::join!(
        provided.live(number, is_client, dht.clone()),
        resolved.live(number, is_client, &node, dht),
        news.live(number, overlay, seeds),
        keeping,
        governed.live(number, is_client, &node, &endpoint),
    );
}
