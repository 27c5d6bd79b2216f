//! Does a node stay as it is under load, for as long as one likes to wait?
//!
//! Two nodes as processes, of which one is asked for everything at once over real sockets: objects are put, read, checked and
//! deleted, names resolved, providers looked for, messages published, entries committed. First it shows what it can do, then it is
//! asked for four fifths of that for a long time. Then it is told by a reload to do a quarter of what it can, and a crowd asks for
//! three times as much as it then may: the machine that asks is the machine that answers, and cannot ask for three times all of
//! it. At the end it may do everything again, and every object is read once more.
//!
//! What the nodes use is read from the system, how long they take is counted by whoever asks. What has to hold is in `judge.rs`.
//!
//!   cargo build --release -p refd && cargo run --release -p refd --example soak -- [--minutes 30] [--beyond 5] [--svg FILE]
//!   ... -- --quick    some seconds of each, to see that it runs: only what is wrong is judged

#![allow(clippy::disallowed_methods, reason = "a program of its own: threads, and the clock of the machine")]

mod chart;
mod judge;
mod load;
mod node;
mod phase;

use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc, thread, time::Duration};

use load::{CALLERS, CROWD, Load, OBJECTS, Pace};
use node::Node;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much of what it can do it is asked for.
const SHARE: f64 = 0.8;

/// How much of what it can do it is told to do before it is asked for too much, and how many times that it is asked for.
const ALLOWED: f64 = 0.25;
const TOO_MUCH: f64 = 3.0;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    steady: Duration,
    beyond: Duration,
    svg: Option<PathBuf>,
    /// Whether it only has to run: in some seconds everything is still growing, and no rate means anything.
    is_quick: bool,
}

fn options() -> Outcome<Options> {
    let minutes = |text: Option<String>| -> Outcome<Duration> {
        Ok(Duration::from_secs_f64(text.ok_or("a number of minutes")?.parse::<f64>()? * 60.0))
    };
    let mut options = Options {
        steady: Duration::from_secs(30 * 60),
        beyond: Duration::from_secs(5 * 60),
        svg: None,
        is_quick: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--minutes" => options.steady = minutes(arguments.next())?,
            "--beyond" => options.beyond = minutes(arguments.next())?,
            "--svg" => options.svg = Some(arguments.next().ok_or("a file")?.into()),
            "--quick" => {
                (options.steady, options.beyond) = (Duration::from_secs(10), Duration::from_secs(5));
                options.is_quick = true;
            }
            "--help" => {
                println!(
                    "soak [--minutes 30] [--beyond 5] [--svg FILE] [--quick]; RON_REFD is the refd to run"
                );
                std::process::exit(0);
            }
            other => return Err(format!("no option {other}; --help says which there are").into()),
        }
    }
    Ok(options)
}

fn run() -> Outcome<bool> {
    let options = options()?;
    let home = tempfile::tempdir()?;
    let node = Arc::new(Node::start(home.path(), "one", None)?);
    let other = Arc::new(Node::start(home.path(), "two", Some(&node.seed))?);
    node.refd(&["registry", "key", &node.key()])?;
    node.refd(&["registry", "init", "--needed", "1", "--signer", &format!("one={}", node.key())])?;
    let load = Arc::new(Load::new(Arc::clone(&node), Arc::clone(&other)));
    load.fill()?;
    node.commit(0)?;
    println!("{OBJECTS} objects of 1 to 64 KiB, two nodes, {CALLERS} callers");

    let trial_lasts = Duration::from_secs(if options.is_quick { 3 } else { 60 });
    let trial = load.phase("as much as it can", CALLERS, Pace::AsAnswered, trial_lasts)?;
    // At its end, when what it had to open and to make room for is there.
    let capacity = trial.ends().1.answered;
    println!("it answers {capacity:.0} requests a second when it is asked for all it can do");
    let steady = load.phase("four fifths", CALLERS, Pace::Due(capacity * SHARE), options.steady)?;
    let allowed = capacity * ALLOWED;
    node.allow(Some(allowed))?;
    println!("it is told to answer {allowed:.0} requests a second, and asked for {:.0}", allowed * TOO_MUCH);
    let beyond = load.phase("three times", CROWD, Pace::Crowd(allowed * TOO_MUCH), options.beyond)?;
    // Whoever was in the crowd is gone.
    thread::sleep(Duration::from_secs(2));
    let rest = node.usage()?;
    node.allow(None)?;
    load.read_all()?;

    let seen = judge::Seen { steady: &steady, beyond: &beyond, allowed, rest };
    judge::print(&seen);
    let wrongs = if options.is_quick { Vec::new() } else { judge::wrongs(&seen) };
    let wrongs: Vec<String> = wrongs.into_iter().chain(load.wrongs()).collect();
    if let Some(path) = &options.svg {
        std::fs::write(path, chart::svg(&[&steady, &beyond]))?;
    }
    node.stop()?;
    other.stop()?;
    for wrong in &wrongs {
        println!("{wrong}");
    }
    println!("{}", if wrongs.is_empty() { "it stayed as it was" } else { "it did not stay as it was" });
    Ok(wrongs.is_empty())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
