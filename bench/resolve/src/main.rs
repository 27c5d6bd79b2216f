//! What an answer out of the cache costs, beside what it is made of and what others would use in its place.
//!
//!   cargo run --release                    all three, some minutes
//!   cargo run --release -- cache           the tables that the cache could have been built on
//!   cargo run --release -- process         questions a second in one process
//!   cargo run --release -- http            questions a second over HTTP; needs nginx and wrk
//!   cargo run --release -- --quick ...     a second of each, to see that it runs

#![allow(clippy::disallowed_methods, reason = "the bare side of each comparison is what the lint forbids")]

mod caches;
mod in_process;
mod serving;

use std::{error::Error, process::ExitCode};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Its name, and what runs it, briefly or in full.
type Section = (&'static str, fn(bool) -> Outcome<()>);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().and_then(|first| first.strip_prefix("--serve-")) {
        Some(role) => serving::child(role),
        None => sections(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sections(arguments: &[String]) -> Outcome<()> {
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let wanted: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with("--")).collect();
    let sections: [Section; 3] =
        [("cache", caches::run), ("process", in_process::run), ("http", serving::run)];
    if let Some(unknown) = wanted.iter().find(|name| sections.iter().all(|(known, _)| known != *name)) {
        return Err(format!("no section {unknown}").into());
    }
    for (name, run) in sections {
        if wanted.is_empty() || wanted.contains(&name) {
            println!("\n### {name}\n");
            run(is_quick)?;
        }
    }
    Ok(())
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
