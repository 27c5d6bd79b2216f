//! `refd`: a node in a content-addressed network, assembled from the libraries of the family.

/// As the standard macro, but without a panic when nobody reads standard output any more (`refd run | head`): the node goes on.
macro_rules! println {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod admin;
mod ask;
mod assembly;
mod backup;
mod client;
mod company;
mod config;
mod dashboard;
mod demo;
mod doctor;
mod gossip;
mod init;
mod life;
mod lines;
mod log;
mod network;
mod openapi;
#[cfg(feature = "otel")]
mod otel;
mod progress;
mod providers;
mod registry;
mod reload;
mod repair;
mod settings;
mod systemd;
mod topics;
mod tree;
mod unfold;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    client::{CODES, Request, Target},
    config::{Config, ConfigError, Flags},
    life::Ended,
    lines::Lines,
    reload::SetFilter,
};

/// What the environment can say, for `--help`.
const VARIABLES: &str = "\
Environment:
  REFD_SECTION__KEY  A setting, written as in the file: REFD_DHT__PRESET=lan, REFD_NET__LISTEN='[\"127.0.0.1:4710\"]'
  REFD_LOG           What is logged to standard error, as in `info` or `warn,ron_dht=debug` [default: warn]
  REFD_TOKEN_FILE    Where the commands that ask a node find its token";

/// What ends a run, after what the environment can say.
fn help_of_run() -> String {
    format!("{VARIABLES}\n\n{}", life::CODES)
}

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
    #[command(after_help = help_of_run())]
    Run {
        /// A file with settings, as `refd config template` prints one; variables win over it, and flags over those.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        flags: Flags,
    },
    #[command(flatten)]
    Ask(Request),
    #[command(flatten)]
    Network(network::Request),
    #[command(flatten)]
    Keeping(repair::Request),
    /// Founds a log, decides in it, and checks what it says.
    #[command(subcommand)]
    Registry(registry::Request),
    /// Writes all objects of a running node and its pins into a directory, verified. When repeated, fetches only new objects.
    #[command(after_help = CODES)]
    Backup {
        /// The directory.
        directory: PathBuf,
        /// Also reads the objects that are there already, and fetches again those that do not hash to their name.
        #[arg(long)]
        verify: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Puts the objects of a backup into a running node, and pins those that were pinned.
    #[command(after_help = CODES)]
    Restore {
        /// The directory.
        directory: PathBuf,
        #[command(flatten)]
        target: Target,
    },
    /// Runs a few nodes in this process to show what a network of them does. Exits with 0 only if every check held.
    Demo(demo::Request),
    /// Checks, shows and explains settings.
    #[command(subcommand)]
    Config(settings::Request),
    /// Creates the data directory of a node, with its key, its token and a file of settings. Prints its id.
    Init(init::Request),
    /// Checks whether a node would run well here: disk, clock, descriptors, secrets, ports. Exits with 1 if not.
    Doctor(doctor::Request),
    /// Prints a script that lets a shell complete the commands.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes those of all commands into a directory.
    Man {
        /// The directory.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The demo kills a node on purpose, and the warnings of that are no part of its story.
    let quiet = if matches!(arguments.command, Command::Demo(_)) { "error" } else { "warn" };
    let filter = match EnvFilter::try_new(std::env::var("REFD_LOG").as_deref().unwrap_or(quiet)) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("refd: REFD_LOG: {error}"); // which repeats its cause
            return ExitCode::FAILURE;
        }
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines(std::io::stderr()));
    let log = log.with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    let set_filter: SetFilter = Arc::new(move |filter| {
        let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    });
    match perform(arguments.command, set_filter) {
        Ok(()) => ExitCode::SUCCESS,
        // `refd ls | head -1`: the reader has enough, which is no failure.
        Err(error) if is_read_no_more(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = client::hint(&*error).map_or(String::new(), |hint| format!("; {hint}"));
            eprintln!("refd: {}", lines::printable(&format!("{}{hint}", with_causes(&*error))));
            ExitCode::from(exit_code(&*error))
        }
    }
}

/// Whether standard output was closed by who reads it. Nothing else writes to a pipe here: what breaks to a node has errors of
/// its own.
fn is_read_no_more(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// What the process ends with; the lists are in [`life::CODES`] and [`CODES`].
fn exit_code(error: &(dyn std::error::Error + 'static)) -> u8 {
    if let Some(ended) = error.downcast_ref::<Ended>() {
        return ended.code();
    }
    if error.is::<ConfigError>() { 8 } else { client::exit_code(error) }
}

fn perform(command: Command, set_filter: SetFilter) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        Command::Run { config, flags } => {
            let again = move || {
                let config = load(config.as_deref(), flags.clone())?;
                config.check()?;
                Ok(config)
            };
            let config = again()?;
            set_filter(&config.log.filter)?;
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(config.node.threads.get()).enable_all().build()?;
            on(runtime, assembly::run(config, again, set_filter))
        }
        Command::Ask(request) => on(runtime()?, client::perform(request)),
        Command::Registry(request) => on(runtime()?, registry::perform(request)),
        Command::Backup { directory, verify, target } => {
            on(runtime()?, backup::backup(&directory, verify, &target))
        }
        Command::Restore { directory, target } => on(runtime()?, backup::restore(&directory, &target)),
        Command::Demo(request) => on(runtime()?, demo::run(request)),
        Command::Config(request) => settings::perform(request),
        Command::Network(request) => on(runtime()?, network::perform(request)),
        Command::Keeping(request) => on(runtime()?, repair::perform(request)),
        Command::Init(request) => init::perform(request),
        Command::Doctor(request) => doctor::perform(request),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where nobody reads on.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "refd", &mut script);
            Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
        }
        Command::Man { dir: None } => {
            Ok(clap_mangen::Man::new(Arguments::command()).render(&mut std::io::stdout())?)
        }
        Command::Man { dir: Some(dir) } => {
            std::fs::create_dir_all(&dir)?;
            Ok(clap_mangen::generate_to(Arguments::command(), dir)?)
        }
    }
}

fn load(file: Option<&std::path::Path>, flags: Flags) -> Result<Config, ConfigError> {
    Config::load(file, crate::config::layers::variables(), flags)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Does `work`, and leaves behind whatever of it the system has not answered: a read of a disk that is stuck, or of a terminal
/// where nobody types, would keep the process for ever.
fn on<T>(runtime: tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
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
