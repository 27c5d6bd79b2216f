//! Messages from some nodes to all others, ours beside others.
//!
//! Each contender gets a fresh process for each number of nodes and of publishers in each round, and they take turns.
//! All nodes of a network are in that process, so processor time and memory are those of everybody.

pub(crate) mod book;
pub(crate) mod cell;
mod rung;

use crate::{
    figures::{Figures, told},
    measure::{Bench, Contender, Outcome, Series, table, take_turns},
    peers::gossip::CONTENDERS,
};

const NODES: [usize; 2] = [16, 64];
const PUBLISHERS: [usize; 2] = [1, 8];

/// Rounds with each of them.
const ROUNDS_MOST: usize = 3;

/// What a quick run has: ours and one other.
const QUICK: [&str; 2] = ["ron-signed", "gossipsub-signed"];
const QUICK_NODES: usize = 8;
const QUICK_PUBLISHERS: usize = 2;

/// Nodes that do nothing but check signatures: nobody who checks them all can carry more.
const VERIFYING: &str = "verifying";

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let is_wanted = |name: &str| match bench.only.is_empty() {
        true => !bench.is_quick() || QUICK.contains(&name),
        false => bench.only.iter().any(|only| only == name),
    };
    let named: Vec<&'static str> = CONTENDERS.iter().copied().filter(|name| is_wanted(name)).collect();
    if named.is_empty() {
        return Err(format!("--only takes some of {}", CONTENDERS.join(", ")).into());
    }
    let quick = |all: &[usize], one| if bench.is_quick() { vec![one] } else { all.to_vec() };
    let sizes = bench.nodes.map_or_else(|| quick(&NODES, QUICK_NODES), |nodes| vec![nodes]);
    let crowds = bench.publishers.map_or_else(|| quick(&PUBLISHERS, QUICK_PUBLISHERS), |count| vec![count]);
    let rounds = bench.rounds.min(ROUNDS_MOST);
    for nodes in sizes {
        for publishers in &crowds {
            let scale = if bench.is_quick() { "quick" } else { "full" };
            let contenders = named.iter().chain([&VERIFYING]).map(|name| {
                let mut round = 0;
                Contender::new(name, move || {
                    round += 1;
                    let numbers = [nodes, *publishers, round].map(|number| number.to_string());
                    let [nodes, publishers, round] = &numbers;
                    let measured =
                        Figures::of_process(&["--gossip-cell", name, nodes, publishers, round, scale]);
                    match measured {
                        // Somebody else's network may not come together on a busy machine. The others go on.
                        Err(error) if !name.starts_with("ron") => {
                            eprintln!("{name}: {error}");
                            Ok(Figures::default())
                        }
                        measured => measured,
                    }
                })
            });
            let mut series = take_turns(rounds, 0, contenders.collect())?;
            let verifying = series.pop().ok_or("it was the last")?;
            println!("{nodes} nodes, {publishers} of them publish 1 KiB each time, median of {rounds}:\n");
            tell_most(&series, &verifying, nodes);
            tell_quiet(&series);
            tell_over(&series);
            tell_ratios(&series, &verifying);
        }
    }
    Ok(())
}

fn tell_row(series: &Series<Figures>, columns: &[(&str, &str, usize)]) -> Vec<String> {
    let tell = |name: &str, digits| told(series.median(|figures| figures.get(name)), digits);
    let mut row = vec![series.name.to_owned()];
    row.extend(columns.iter().map(|(_, name, digits)| tell(name, *digits)));
    row
}

fn tell_columns(first: &'static str, series: &[Series<Figures>], columns: &[(&'static str, &str, usize)]) {
    let mut head = vec![first];
    head.extend(columns.iter().map(|(called, ..)| *called));
    table(&head, &series.iter().map(|series| tell_row(series, columns)).collect::<Vec<_>>());
    println!();
}

/// The highest rate at which everything arrives in time.
fn tell_most(series: &[Series<Figures>], verifying: &Series<Figures>, nodes: usize) {
    tell_columns(
        "At the sustained rate",
        series,
        &[
            ("Messages/s", "best.rate", 0),
            ("Last delivery p50 ms", "best.p50", 1),
            ("p99 ms", "best.p99", 1),
            ("CPU µs a delivery", "best.cpu", 1),
            ("RMR", "best.rmr", 3),
            ("Share", "best.share", 4),
            ("Missed", "best.missed", 0),
            ("Told of", "best.told", 0),
        ],
    );
    println!(
        "{} strict verifications a message, {} µs each, allow {} messages a second on these cores.\n",
        nodes - 1,
        told(verifying.median(|figures| figures.get("best.cpu")), 1),
        told(verifying.median(|figures| figures.get("best.rate")), 0),
    );
}

/// Without load: being there, and how long a message takes.
fn tell_quiet(series: &[Series<Figures>]) {
    tell_columns(
        "At 50 messages/s",
        series,
        &[
            ("Last delivery p50 ms", "quiet.p50", 1),
            ("p99 ms", "quiet.p99", 1),
            ("CPU µs a delivery", "quiet.cpu", 1),
            ("RMR", "quiet.rmr", 3),
            ("Joined s", "joined.seconds", 2),
            ("Neighbours", "neighbours", 1),
            ("Idle, % of a core", "idle.percent", 1),
            ("KiB a node, joined", "memory.ready", 0),
            ("KiB a node, end", "memory.end", 0),
        ],
    );
}

/// When more is offered than can be carried.
fn tell_over(series: &[Series<Figures>]) {
    tell_columns(
        "At the first doubled rate that is too much",
        series,
        &[
            ("Offered/s", "over.rate", 0),
            ("Carried/s", "over.carried", 0),
            ("Refused", "over.refused", 0),
            ("Share of the others", "over.share", 4),
            ("Missed", "over.missed", 0),
            ("Told of", "over.told", 0),
            ("Last delivery p99 ms", "over.p99", 0),
            ("Twice", "over.twice", 0),
            ("RMR", "over.rmr", 3),
            ("CPU µs a delivery", "over.cpu", 1),
        ],
    );
}

/// Whom each of ours is compared with, and what is said of it.
const PAIRS: [(&str, &str); 5] = [
    ("ron-unsigned", "iroh-gossip"),
    ("ron-unsigned", "gossipsub-anonymous"),
    ("ron-signed", "gossipsub-signed"),
    ("ron-unsigned", "flood"),
    ("ron-signed", VERIFYING),
];
const COMPARED: [(&str, &str); 6] = [
    ("Messages/s", "best.rate"),
    ("CPU a delivery", "best.cpu"),
    ("Last p50, 50/s", "quiet.p50"),
    ("Last p99, 50/s", "quiet.p99"),
    ("Memory, joined", "memory.ready"),
    ("Memory, end", "memory.end"),
];

/// Medians of the ratios within each round.
fn tell_ratios(series: &[Series<Figures>], verifying: &Series<Figures>) {
    let of = |name: &str| series.iter().chain([verifying]).find(|series| series.name == name);
    let row = |(ours, base): &(&str, &str)| {
        let (found, others) = (of(ours)?, of(base)?);
        let mut row = vec![format!("{ours} to {base}")];
        row.extend(COMPARED.map(|(_, name)| told(found.ratio(others, |figures| figures.get(name)), 2)));
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
