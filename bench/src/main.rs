//! Each thing of ours beside the best that others would use in its place, on the machine it runs on.
//!
//! A section answers one question and prints one table or two. Contenders take turns in one process, so that a slow
//! moment of the machine hits all of them, and what is compared is the median of the ratios of each round.

#![allow(clippy::disallowed_methods, reason = "the bare side of each comparison is what the lint forbids")]

mod figures;
mod measure;
mod peers;
mod sections;

use std::process::ExitCode;

use measure::{Bench, Outcome};

/// A name, the question it answers, and the answer.
type Section = (&'static str, &'static str, fn(&Bench) -> Outcome<()>);

/// In the order in which they run.
const SECTIONS: [Section; 12] = [
    ("link", "frames over one link, one way", sections::link::run),
    ("pingpong", "one small message there and back", sections::pingpong::run),
    ("handshakes", "new links per second", sections::handshakes::run),
    ("idle", "memory of many sessions that say nothing", sections::idle::run),
    ("dht", "searches in a network of nodes", sections::dht::run),
    ("gossip", "messages to every node of a network", sections::gossip::run),
    ("sessions", "many sessions on one node of the overlay", sections::sessions::run),
    ("store", "objects put and got on one disk", sections::store::run),
    ("serve", "verified objects over HTTP", sections::serve::run),
    ("fetch", "objects from one store into another", sections::fetch::run),
    ("erasure", "objects to shards and back", sections::erasure::run),
    ("registry", "durable commits by a quorum", sections::registry::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--idle-")) {
        return finish(sections::idle::child(role, &arguments[1..]));
    }
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--sessions-")) {
        return finish(sections::sessions::child(role, &arguments[1..]));
    }
    if arguments.first().is_some_and(|first| first == "--dht-cell") {
        return finish(sections::dht::cell::child(&arguments[1..]));
    }
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--serve-")) {
        return finish(sections::serve::child(role, &arguments[1..]));
    }
    if arguments.first().is_some_and(|first| first == "--store-cell") {
        return finish(sections::store::child(&arguments[1..]));
    }
    if arguments.first().is_some_and(|first| first == "--fetch-cell") {
        return finish(sections::fetch::child(&arguments[1..]));
    }
    if arguments.first().is_some_and(|first| first == "--registry-cell") {
        return finish(sections::registry::child(&arguments[1..]));
    }
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--registry-")) {
        return finish(sections::registry::serve(role, &arguments[1..]));
    }
    if arguments.first().is_some_and(|first| first == "--gossip-cell") {
        return finish(sections::gossip::cell::child(&arguments[1..]));
    }
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let mut bench = if is_quick { Bench::quick() } else { Bench::full() };
    let mut wanted = Vec::new();
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        match argument.as_str() {
            "--quick" => {}
            "--only" => {
                bench.only =
                    left.next().map_or(Vec::new(), |names| names.split(',').map(Into::into).collect())
            }
            "--nodes" | "--publishers" | "--rounds" => {
                let Some(Ok(number)) = left.next().map(|number| number.parse()) else {
                    return refuse(&format!("{argument} needs a number"));
                };
                match argument.as_str() {
                    "--nodes" => bench.nodes = Some(number),
                    "--publishers" => bench.publishers = Some(number),
                    _ => bench.rounds = number,
                }
            }
            "--help" | "-h" => {
                println!("bench/run [--quick] [section ...]");
                println!("bench/run [--quick] [--rounds number] [--only contender,...] [--nodes number] dht");
                println!("bench/run ... [--publishers number] gossip\n");
                SECTIONS.iter().for_each(|(name, question, _)| println!("  {name:<12} {question}"));
                return ExitCode::SUCCESS;
            }
            name if SECTIONS.iter().any(|section| section.0 == name) => wanted.push(name),
            other => return refuse(&format!("no section or option {other}; see --help")),
        }
    }
    println!("{}", measure::machine());
    for (name, question, run) in SECTIONS {
        if wanted.is_empty() || wanted.contains(&name) {
            println!("\n### {name}: {question}\n");
            if let Err(error) = run(&bench) {
                return finish(Err(format!("{name}: {error}").into()));
            }
        }
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

fn finish(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ron-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
