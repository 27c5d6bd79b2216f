//! Searches in whole networks of nodes, ours beside others.
//!
//! Each contender gets a fresh process for each number of nodes in each round, and they take turns. All nodes of a
//! network are in that process, so processor time and memory are those of everybody, askers and asked.

pub(crate) mod cell;

use cell::CONCURRENCY;

use crate::{
    figures::{Figures, told},
    measure::{Bench, Contender, Outcome, Series, table, take_turns},
    peers::dht::CONTENDERS,
};

/// Numbers of nodes, and rounds with each.
const SIZES: [(usize, usize); 2] = [(64, 3), (256, 1)];

const SIZES_QUICK: [(usize, usize); 1] = [(16, 1)];

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let named: Vec<&'static str> = CONTENDERS
        .into_iter()
        .filter(|name| bench.only.is_empty() || bench.only.iter().any(|only| only == name))
        .collect();
    if named.is_empty() {
        return Err(format!("--only takes some of {}", CONTENDERS.join(", ")).into());
    }
    let sizes: Vec<(usize, usize)> = match bench.nodes {
        Some(nodes) => vec![(nodes, SIZES[0].1.min(bench.rounds))],
        None if bench.is_quick() => SIZES_QUICK.to_vec(),
        None => SIZES.to_vec(),
    };
    for (nodes, rounds) in sizes {
        let contenders = named.iter().map(|name| {
            let mut round = 0;
            Contender::new(name, move || {
                round += 1;
                measure(name, nodes, round, bench.is_quick())
            })
        });
        let series = take_turns(rounds, 0, contenders.collect())?;
        println!("{nodes} nodes, median of {rounds}:\n");
        tell_networks(&series);
        tell_searches(&series);
        tell_ratios(&series);
    }
    Ok(())
}

/// One contender in a process of its own.
fn measure(name: &str, nodes: usize, round: usize, is_quick: bool) -> Outcome<Figures> {
    let scale = if is_quick { "quick" } else { "full" };
    Figures::of_process(&["--dht-cell", name, &nodes.to_string(), &round.to_string(), scale])
}

/// Joining, memory, and what it costs to be there.
fn tell_networks(series: &[Series<Figures>]) {
    let head = [
        "Network",
        "Joined s",
        "Ready s",
        "Keys tried",
        "CPU s until ready",
        "KiB a node, ready",
        "Connections a node",
        "KiB a node, end",
        "Connections a node",
        "Idle, % of a core",
    ];
    let row = |series: &Series<Figures>| {
        let tell = |name: &str, digits| told(series.median(|figures| figures.get(name)), digits);
        vec![
            series.name.to_owned(),
            tell("join.seconds", 2),
            tell("ready.seconds", 2),
            tell("ready.keys", 0),
            tell("start.cpu.seconds", 2),
            tell("memory.ready", 0),
            tell("connections.ready", 1),
            tell("memory.end", 0),
            tell("connections.end", 1),
            tell("idle.percent", 1),
        ]
    };
    table(&head, &series.iter().map(row).collect::<Vec<_>>());
    println!();
}

/// Searches, a table for each kind.
fn tell_searches(series: &[Series<Figures>]) {
    let kinds = [("closest", "The nearest nodes, recall"), ("providers", "Providers, success")];
    for (kind, called) in kinds {
        let head = [
            called,
            "Searches/s",
            "p50 ms",
            "p99 ms",
            "First p50 ms",
            "CPU ms each",
            "Questions each",
            "Share",
            "Failed",
        ];
        let mut rows = Vec::new();
        for concurrency in CONCURRENCY {
            for series in series {
                let tell = |what: &str, digits| {
                    told(
                        series.median(|figures| figures.get(&format!("{kind}.{concurrency}.{what}"))),
                        digits,
                    )
                };
                rows.push(vec![
                    format!("{}, {concurrency} at once", series.name),
                    tell("per_second", 0),
                    tell("p50", 2),
                    tell("p99", 2),
                    tell("first.p50", 2),
                    tell("cpu.millis", 2),
                    tell("rpcs", 1),
                    tell("recall", 3),
                    tell("failed", 0),
                ]);
            }
        }
        table(&head, &rows);
        println!();
    }
}

/// Whom each of ours is compared with, and what is said of it.
const PAIRS: [(&str, &str); 3] =
    [("ron-tls", "libp2p-tcp"), ("ron-mem", "libp2p-mem"), ("ron-tls", "mainline")];
const COMPARED: [(&str, &str); 9] = [
    ("Nearest/s, 1", "closest.1.per_second"),
    ("Nearest/s, 32", "closest.32.per_second"),
    ("Providers/s, 1", "providers.1.per_second"),
    ("Providers/s, 32", "providers.32.per_second"),
    ("CPU, nearest", "closest.1.cpu.millis"),
    ("CPU, providers", "providers.1.cpu.millis"),
    ("Memory, ready", "memory.ready"),
    ("Memory, end", "memory.end"),
    ("Time to ready", "ready.seconds"),
];

/// Medians of the ratios within each round.
fn tell_ratios(series: &[Series<Figures>]) {
    let of = |name: &str| series.iter().find(|series| series.name == name);
    let row = |(ours, base): &(&str, &str)| {
        let (found, others) = (of(ours)?, of(base)?);
        let mut row = vec![format!("{ours} to {base}")];
        row.extend(COMPARED.map(|(_, name)| told(found.ratio(others, |figures| figures.get(name)), 3)));
        Some(row)
    };
    let rows: Vec<Vec<String>> = PAIRS.iter().filter_map(row).collect();
    if rows.is_empty() {
        return;
    }
    let mut head = vec!["Ratio"];
    head.extend(COMPARED.map(|(called, _)| called));
    table(&head, &rows);
    println!();
}
