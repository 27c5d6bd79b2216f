//! `refd`: a node in a content-addressed network, assembled from the libraries of the family.

mod assembly;
mod config;
mod demo;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, ConfigError, Flags};

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
    Run {
        /// A file with settings; flags and `REFD_SECTION__KEY` variables win over it.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        flags: Flags,
    },
    /// Five nodes in this process show what a network of them does. Exits with 0 only if all of it held.
    Demo,
    /// Says whether a configuration is in order, and prints it with its defaults filled in.
    CheckConfig {
        /// The file.
        #[arg(value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("REFD_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match perform(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refd: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn perform(command: Command) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        Command::Run { config, flags } => {
            let config = load(config.as_deref(), flags)?;
            runtime()?.block_on(assembly::run(config))
        }
        Command::Demo => runtime()?.block_on(demo::run()),
        Command::CheckConfig { config } => {
            print!("{}", load(config.as_deref(), Flags::default())?.to_toml());
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
