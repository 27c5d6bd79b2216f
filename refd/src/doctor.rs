//! `refd doctor`: what a node would find on this machine, before it finds it out the hard way.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::Args;
use ron_core::now;
use serde_json::json;

use crate::config::{Config, ConfigError, Flags};

/// Syncs that are timed. The median of so few says what kind of disk it is.
const SYNCS: usize = 15;

/// A disk that takes longer for one makes every put wait for longer.
const SYNC_SLOW: Duration = Duration::from_millis(20);

/// No machine that runs this can have an earlier time: 2026-01-01.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);

/// Descriptors beside those of connections: files of the store, journals, the runtime.
const FILES: usize = 256;

/// Connections of the admin listener that are only told how the node is.
const LOBBY: usize = 32;

/// Which node.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// The file with its settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
    /// Answers as JSON, one value on a line.
    #[arg(long)]
    json: bool,
}

/// What came of one look.
enum Found {
    Good(String),
    Doubtful(String),
    Bad(String),
}

/// Looks at everything, and says what was found. Only what would keep a node from running well fails it.
pub(crate) fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    let config = Config::load(request.config.as_deref(), crate::config::layers::variables(), request.flags)?;
    config.check()?;
    let mut found = vec![("settings", Found::Good("in order".to_owned()))];
    if !config.node.amnesia {
        let data = config.data_dir()?;
        found.push(("data", data_dir(&data)));
        found.push(("disk", disk(&data)));
        found.push(("secrets", secrets(&data, &config)?));
        found.push(("clock", clock(&data)));
    }
    found.push(("descriptors", descriptors(&config)));
    let listen = config.net.listen.iter().map(|addr| ("net.listen", "--listen", *addr));
    for (key, flag, addr) in listen.chain([("admin.listen", "--admin", config.admin.listen)]) {
        found.push((key, port(addr, flag)));
    }
    let mut out = io::stdout().lock();
    let mut bad = Vec::new();
    for (what, found) in found {
        let (word, text) = match found {
            Found::Good(text) => ("ok", text),
            Found::Doubtful(text) => ("warn", text),
            Found::Bad(text) => {
                bad.push(what);
                ("fail", text)
            }
        };
        match request.json {
            true => writeln!(out, "{}", json!({"check": what, "result": word, "detail": text}))?,
            false => writeln!(out, "{word}\t{what}\t{text}")?,
        }
    }
    match bad.is_empty() {
        true => Ok(()),
        false => Err(format!("a node would not run well here: {}", bad.join(", ")).into()),
    }
}

/// The nearest directory that is there, which is where the data will be.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

fn data_dir(data: &Path) -> Found {
    let dir = existing(data);
    let probe = dir.join(format!(".refd-doctor-{}", std::process::id()));
    let wrote = File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
    match wrote {
        Ok(()) if dir == data => Found::Good(format!("{} can be written", data.display())),
        Ok(()) => Found::Good(format!("{} can be made", data.display())),
        Err(error) => Found::Bad(format!("{}: {error}; choose another with --data-dir", dir.display())),
    }
}

/// What is acknowledged is on disk, so a put takes at least as long as a sync.
fn disk(data: &Path) -> Found {
    let path = existing(data).join(format!(".refd-doctor-{}", std::process::id()));
    let timed = (|| {
        let mut file = File::create_new(&path)?;
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let began = now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            times.push(began.elapsed());
        }
        times.sort();
        Ok::<_, io::Error>(times[SYNCS / 2])
    })();
    let _ = fs::remove_file(&path);
    match timed {
        Ok(time) if time < SYNC_SLOW => Found::Good(format!("a sync takes {time:.1?}")),
        Ok(time) => Found::Doubtful(format!("a sync takes {time:.1?}, and so does the least put")),
        Err(error) => Found::Bad(format!("a sync fails: {error}")),
    }
}

/// A secret that others can read is none.
fn secrets(data: &Path, config: &Config) -> Result<Found, ConfigError> {
    let files = [data.join("node.key"), data.join("registry.key"), config.token_file()?];
    let open =
        files.iter().find(|path| fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0));
    Ok(match (open, config.keeping.admission()) {
        (Some(path), _) => Found::Bad(format!("others can read {0}; chmod 600 {0}", path.display())),
        (None, Err(error)) => Found::Bad(crate::with_causes(&error)),
        (None, Ok(_)) => Found::Good("only their owner can read them".to_owned()),
    })
}

/// Records have times in them. A clock that stands still or has gone back makes them look old or new.
fn clock(data: &Path) -> Found {
    let Ok(since) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else {
        return Found::Bad("it is before 1970; set the clock".to_owned());
    };
    if since < EARLIEST {
        return Found::Bad("it is before this program was written; set the clock".to_owned());
    }
    let newest = fs::read_dir(data).into_iter().flatten().flatten();
    let newest = newest.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max();
    let ahead = newest.and_then(|time| time.duration_since(SystemTime::now()).ok());
    match ahead.filter(|ahead| *ahead > Duration::from_secs(60)) {
        Some(ahead) => {
            Found::Doubtful(format!("files of the node are {ahead:.0?} ahead of it: it has gone back"))
        }
        None => Found::Good("it goes forward".to_owned()),
    }
}

/// How many files and connections the process may have open at once.
fn descriptors_allowed() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(usize::MAX) } else { soft.parse().ok() }
}

/// What is missing for all connections that the settings allow, if that is known.
pub(crate) fn descriptors_short(config: &Config) -> Option<String> {
    let conns = [config.overlay.max_conns, config.dht.sessions_max, config.admin.max_conns];
    let all = conns.iter().fold(LOBBY + FILES, |sum, conns| sum.saturating_add(*conns));
    // Twice the connections at least, whatever else there is.
    let (allowed, needed) = (descriptors_allowed()?, all.max(config.overlay.max_conns.saturating_mul(2)));
    (allowed < needed).then(|| {
        format!(
            "{allowed} descriptors are allowed, {needed} may be needed (overlay.max_conns is {}, dht.sessions_max is {}, \
             admin.max_conns is {}); raise it with `ulimit -n {needed}` or LimitNOFILE={needed}, or lower those",
            config.overlay.max_conns, config.dht.sessions_max, config.admin.max_conns
        )
    })
}

fn descriptors(config: &Config) -> Found {
    match (descriptors_short(config), descriptors_allowed()) {
        (Some(short), _) => Found::Doubtful(short),
        (None, Some(allowed)) => Found::Good(format!("{allowed} are allowed")),
        (None, None) => Found::Doubtful("how many are allowed is not known on this system".to_owned()),
    }
}

fn port(addr: SocketAddr, flag: &str) -> Found {
    match TcpListener::bind(addr) {
        Ok(_) => Found::Good(format!("{addr} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Found::Bad(format!("{addr} is taken, perhaps by a node that runs; choose another with {flag}"))
        }
        Err(error) => Found::Bad(format!("{addr}: {error}; choose another with {flag}")),
    }
}
