//! Each thing of ours beside the best that others would use in its place, on the machine it runs on.
//!
//! A section answers one question and prints one table or two. Contenders take turns in one process, so that a slow
//! moment of the machine hits all of them, and what is compared is the median of the ratios of each round.

#![allow(clippy::disallowed_methods, reason = "the bare side of each comparison is what the lint forbids")]

mod measure;
mod peers;
mod sections;

use std::process::ExitCode;

use measure::{Bench, Outcome};

/// A name, the question it answers, and the answer.
type Section = (&'static str, &'static str, fn(&Bench) -> Outcome<()>);

/// In the order in which they run.
const SECTIONS: [Section; 4] = [
    ("link", "frames over one link, one way", sections::link::run),
    ("pingpong", "one small message there and back", sections::pingpong::run),
    ("handshakes", "new links per second", sections::handshakes::run),
    ("idle", "memory of many sessions that say nothing", sections::idle::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("--idle-")) {
        return finish(sections::idle::child(role, &arguments[1..]));
    }
    let mut bench = Bench::full();
    let mut wanted = Vec::new();
    for argument in &arguments {
        match argument.as_str() {
            "--quick" => bench = Bench::quick(),
            "--help" | "-h" => {
                println!("bench/run [--quick] [section ...]\n");
                SECTIONS.iter().for_each(|(name, question, _)| println!("  {name:<12} {question}"));
                return ExitCode::SUCCESS;
            }
            name if SECTIONS.iter().any(|section| section.0 == name) => wanted.push(name),
            other => {
                eprintln!("no section or option {other}; see --help");
                return ExitCode::from(2);
            }
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

fn finish(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ron-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
