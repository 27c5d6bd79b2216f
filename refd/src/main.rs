//! `refd`: a node in a content-addressed network, assembled from the libraries of the family.

mod assembly;
mod backup;
mod client;
mod config;
mod demo;
mod log;
mod progress;
mod providers;
mod registry;
mod topics;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    client::{CODES, Request, Target},
    config::{Config, ConfigError, Flags},
};

/// What the environment can say, for `--help`.
const VARIABLES: &str = "\
Environment:
  REFD_SECTION__KEY  A setting, written as in the file: REFD_DHT__PRESET=lan, REFD_NET__LISTEN='[\"127.0.0.1:4710\"]'
  REFD_LOG           What is logged to standard error, as in `info` or `warn,ron_dht=debug` [default: warn]";

/// A node in a content-addressed network.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a node until SIGTERM or Ctrl-C. Needs no configuration.
    #[command(after_help = VARIABLES)]
    Run {
        /// A file with settings, as `refd check-config` prints them; variables win over it, and flags over those.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        flags: Flags,
    },
    #[command(flatten)]
    Ask(Request),
    /// Founds a log, decides in it, and checks what it says.
    #[command(subcommand)]
    Registry(registry::Request),
    /// Writes all objects of a running node and its pins into a directory, verified; again, only what is new.
    #[command(after_help = CODES)]
    Backup {
        /// The directory.
        directory: PathBuf,
        /// Reads what is there already and fetches again what does not hash to its name.
        #[arg(long)]
        verify: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Puts the objects of a backup into a running node and pins what was pinned.
    #[command(after_help = CODES)]
    Restore {
        /// The directory.
        directory: PathBuf,
        #[command(flatten)]
        target: Target,
    },
    /// Five nodes in this process show what a network of them does. Exits with 0 only if all of it held.
    Demo,
    /// Says whether a configuration is in order, and prints it with its defaults filled in.
    #[command(after_help = VARIABLES)]
    CheckConfig {
        /// The file with settings; without it, the defaults and the variables are printed.
        #[arg(value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The demo kills a node on purpose, and the warnings of that are no part of its story.
    let quiet = if matches!(arguments.command, Command::Demo) { "error" } else { "warn" };
    let filter = match EnvFilter::try_new(std::env::var("REFD_LOG").as_deref().unwrap_or(quiet)) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("refd: REFD_LOG: {error}"); // which repeats its cause
            return ExitCode::FAILURE;
        }
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match perform(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = client::hint(&*error).map_or(String::new(), |hint| format!("; {hint}"));
            eprintln!("refd: {}{hint}", with_causes(&*error));
            ExitCode::from(client::exit_code(&*error))
        }
    }
}

fn perform(command: Command) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        Command::Run { config, flags } => {
            let again = move || {
                let config = load(config.as_deref(), flags.clone())?;
                config.check()?;
                Ok(config)
            };
            runtime()?.block_on(assembly::run(again()?, again))
        }
        Command::Ask(request) => runtime()?.block_on(client::perform(request)),
        Command::Registry(request) => runtime()?.block_on(registry::perform(request)),
        Command::Backup { directory, verify, target } => {
            runtime()?.block_on(backup::backup(&directory, verify, &target))
        }
        Command::Restore { directory, target } => runtime()?.block_on(backup::restore(&directory, &target)),
        Command::Demo => runtime()?.block_on(demo::run()),
        Command::CheckConfig { config } => {
            let mut config = load(config.as_deref(), Flags::default())?;
            config.check()?;
            // A path that is not text has no form in the file, and stays a default.
            config.node.data_dir = config.data_dir().ok().filter(|dir| dir.to_str().is_some());
            print!("{}", config.to_toml());
            Ok(())
        }
    }
}

fn load(file: Option<&std::path::Path>, flags: Flags) -> Result<Config, ConfigError> {
    Config::load(file, std::env::vars(), flags)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// An error with what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
