//! `refd init`: a place for a node, with its key, its token and a file of settings, and what to type next.

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use clap::Args;
use ron_core::{auth::TokenFile, net::Identity};
use serde_json::json;

use crate::config::{
    Config, Flags, NodePreset,
    layers::{self, Layered},
};

/// The name of the file with settings in the data directory.
const FILE: &str = "refd.toml";

/// An address that nobody has (RFC 5737). No packet is sent to it: the system only says from where it would be.
const NOWHERE: ([u8; 4], u16) = ([192, 0, 2, 1], 9);

/// What is wanted.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// What kind of node it is to be.
    #[arg(long, default_value = "dev")]
    preset: NodePreset,
    /// Where its keys, records and objects are to be kept [default: the user's data folder].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where others reach it, if it listens on all interfaces [default: this machine's address towards the Internet].
    #[arg(long, value_name = "IP:PORT")]
    external: Option<SocketAddr>,
    /// Answers as JSON.
    #[arg(long)]
    json: bool,
}

/// Makes it. Whatever is there stays as it is.
pub(crate) fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    let Request { preset, data_dir, external, json } = request;
    if preset == NodePreset::Amnesia {
        return Err("a node with amnesia keeps nothing: begin it with `refd run --preset amnesia`".into());
    }
    let flags = Flags::in_dir(data_dir);
    let data = Config::load(None, layers::variables(), flags.clone())?.data_dir()?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&data)
        .map_err(|error| format!("{}: {error}", data.display()))?;
    let file = data.join(FILE);
    let is_kept = file.exists();
    if !is_kept {
        let text = settings(preset, external)?;
        let mut options = fs::OpenOptions::new();
        let open = options.write(true).create_new(true).mode(0o600).open(&file);
        let written =
            open.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        written.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let config = Layered::load(Some(&file), layers::variables(), flags)?.config;
    config.check()?;
    let identity = Identity::load_or_create(data.join("node.key"))?;
    let token = TokenFile::open(config.token_file()?)?;
    let mut out = io::stdout().lock();
    if json {
        let made = json!({"id": identity.node_id().to_string(), "data_dir": data, "config": file, "token_file": token.path()});
        return Ok(writeln!(out, "{made}")?);
    }
    writeln!(out, "{}", identity.node_id())?;
    let (data, file) = (data.display(), file.display());
    let settings = if is_kept { "are kept as they were" } else { "are to be looked over" };
    let token = token.path().display();
    eprintln!("its key is {data}/node.key, its token {token}; its settings {settings}: {file}");
    eprintln!("next: refd doctor --config {file} --data-dir {data}");
    eprintln!("then: refd run --config {file} --data-dir {data}");
    Ok(())
}

/// A file with settings in which nothing is missing.
fn settings(preset: NodePreset, external: Option<SocketAddr>) -> Result<String, Box<dyn Error>> {
    let mut set = vec![("node", "preset", format!("{:?}", preset.name()))];
    if let Some(external) = external {
        set.push(("net", "external", format!("[\"{external}\"]")));
    } else if preset != NodePreset::Dev {
        let ip = own_address().map_err(|error| {
            format!("this machine's address is not known, name it with --external: {error}")
        })?;
        set.push(("net", "external", format!("[\"{}\"]", SocketAddr::new(ip, 4710))));
    }
    Ok(layers::template(preset, &set))
}

/// The address from which this machine would speak to the Internet.
fn own_address() -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    socket.connect(SocketAddr::from(NOWHERE))?;
    Ok(socket.local_addr()?.ip())
}
