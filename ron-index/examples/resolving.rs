//! How long does an answer take in a network of a thousand nodes of which every fifth is dead?
//!
//! Whole DHT nodes on a simulated network and clock, out of one seed. Some of their hosts have an index, which asks its own
//! node, and the node of a neighbour when that is slow: the hedge between two views of the network. Popular keys are asked for
//! more often. `--nodes N`, `--lookups L`, `--seed S`; `--quick` is a hundred nodes; `--check` fails if the aim is missed.

use std::{error::Error, num::NonZeroUsize, process::ExitCode, time::Duration};

use ron_core::{ContentId, Deadline, Metrics, Supervisor, now};
use ron_dht::sim::Testnet;
use ron_index::{Index, IndexError, Key, Settings, source::DhtProviders};

/// Hosts with an index.
const INDEXES: usize = 20;

/// Keys that are provided, each by one node.
const KEYS: usize = 400;

/// The mean way there and back: 20 to 150 ms each way, and up to a tenth more.
const ROUND_TRIP: Duration = Duration::from_millis(178);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut nodes, mut lookups, mut seed, mut checks) = (1000_usize, 4000_usize, 1_u64, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match &*argument {
            "--nodes" => nodes = value()?.parse()?,
            "--lookups" => lookups = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--check" => checks = true,
            "--quick" => (nodes, lookups) = (100, 400),
            other => return Err(format!("no option {other}").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let is_met = runtime.block_on(run(nodes, lookups, seed));
    Ok(if checks && !is_met { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run(nodes: usize, lookups: usize, seed: u64) -> bool {
    let soon = || Deadline::after(Duration::from_secs(60));
    let net = Testnet::builder(nodes).seed(seed).build().await;
    let mut rng = fastrand::Rng::with_seed(seed);
    let keys: Vec<ContentId> = (0..KEYS).map(|number| ContentId::of(&number.to_le_bytes())).collect();
    // The last are those who ask; the others provide, and a fifth of all die, none of whom provides.
    let (askers, providers) = (nodes - 2 * INDEXES..nodes, nodes / 2);
    for key in &keys {
        let by = rng.usize(..providers);
        if let Err(error) = net.node(by).provide(*key, soon()).await {
            println!("{by} cannot provide: {error}");
        }
    }
    let mut others: Vec<usize> = (providers..askers.start).collect();
    rng.shuffle(&mut others);
    for number in others.iter().take(nodes / 5) {
        net.silence(*number);
    }

    let host = Supervisor::new("indexes");
    let metrics = Metrics::default();
    let settings =
        Settings { alpha: NonZeroUsize::MIN, beta: 1, workers: NonZeroUsize::MIN, ..Settings::default() };
    let indexes: Vec<Index> = (0..INDEXES)
        .map(|at| {
            let (own, neighbour) = (net.node(askers.start + 2 * at), net.node(askers.start + 2 * at + 1));
            let builder =
                Index::builder().providers(DhtProviders::new(own)).providers(DhtProviders::new(neighbour));
            let builder = builder.settings(settings.clone()).metrics(metrics.clone()).seed(seed + at as u64);
            builder.start(&host).expect("the settings make sense")
        })
        .collect();
    let (mut took, mut late, mut missed, mut hits) = (Vec::new(), 0, 0, 0);
    for at in 0..lookups {
        let key = Key::Content(keys[(rng.f64().powi(3) * KEYS as f64) as usize]);
        let began = now();
        match indexes[at % INDEXES].resolve(&key, soon()).await {
            Ok(answer) if answer.is_cached => hits += 1,
            Ok(_) => took.push(began.elapsed()),
            Err(IndexError::Timeout { .. }) => late += 1,
            Err(_) => missed += 1,
        }
    }
    // How far providers are, asked in the same network by those who have no cache.
    let mut hops = Vec::new();
    for at in 0..200 {
        let dht = net.node(askers.start + at % (2 * INDEXES));
        let found = dht.find_providers(keys[rng.usize(..KEYS)], NonZeroUsize::MIN, soon());
        let Ok(mut found) = found else { continue };
        while let Ok(Some(_)) = found.next().await {}
        hops.extend(found.verdict().map(|verdict| verdict.hops));
    }
    hops.sort_unstable();
    took.sort_unstable();
    let part = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let hops_p95 = hops[(hops.len() - 1) * 95 / 100];
    let bound = ROUND_TRIP * (u32::from(hops_p95) + 2);
    let count = |label| metrics.tally(hedges(), label).get();
    let (won, lost) = (count("won"), count("lost"));
    println!(
        "{nodes} nodes, {} of them dead, {INDEXES} with an index, {lookups} questions, seed {seed}",
        nodes / 5
    );
    println!("answers out of the cache: {:.3} of all", hits as f64 / lookups as f64);
    println!("lookups: {}, {late} not in time, {missed} without an answer", took.len());
    println!("took p50 {:?}, p95 {:?}, p99 {:?}", part(0.5), part(0.95), part(0.99));
    println!(
        "hedged: {:.3} of the lookups, of which {:.3} won",
        (won + lost) as f64 / took.len() as f64,
        won as f64 / (won + lost).max(1) as f64
    );
    println!("hops to providers p95: {hops_p95}; aim for p95: {bound:?}, two round trips more than that");
    let is_met = part(0.95) <= bound && late + missed <= lookups / 100;
    println!("{}", if is_met { "met" } else { "MISSED" });
    host.shutdown().await;
    net.shutdown().await;
    is_met
}

/// The counter of hedges, as the index declares it.
fn hedges() -> ron_core::Counter {
    ron_core::Counter::Own(ron_core::OwnCounter {
        name: "hedges",
        help: "Sources asked because others were slow, by whether one of them was first",
        label: "result",
    })
}
