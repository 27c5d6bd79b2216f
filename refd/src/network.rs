//! The commands about the network and the node itself: `refd provide`, `peers`, `gossip`, `health`, `reload`.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
};

use bytes::Bytes;
use clap::Subcommand;
use data_encoding::BASE64;
use ron_core::ContentId;
use serde_json::{Value, json};

use crate::client::{CODES, Target};

/// What is asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Announces that a node provides content, and prints its id. The node repeats the announcement by itself.
    #[command(after_help = CODES)]
    Provide {
        /// The ids of the content.
        #[arg(required = true, value_parser = ContentId::parse_any)]
        ids: Vec<ContentId>,
        /// Withdraws the announcement instead.
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Lists the peers that a node knows: id, addresses, round-trip time, and whether there is a session.
    #[command(after_help = CODES)]
    Peers {
        #[command(flatten)]
        target: Target,
    },
    /// Publishes and listens on the topics that a node has joined.
    #[command(subcommand)]
    Gossip(Gossip),
    /// Says whether a node is ready; if not, says why and exits with 6.
    #[command(after_help = CODES)]
    Health {
        #[command(flatten)]
        target: Target,
    },
    /// Makes a node read its settings again, and prints the keys that changed.
    #[command(after_help = CODES)]
    Reload {
        #[command(flatten)]
        target: Target,
    },
}

/// What is done on a topic.
#[derive(Debug, Subcommand)]
pub(crate) enum Gossip {
    /// Publishes a message, and prints its id.
    #[command(after_help = CODES)]
    Pub {
        /// The topic, which the node's `overlay.topics` names.
        topic: String,
        /// The message; standard input without it.
        message: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Prints the messages on a topic, one per line, until Ctrl-C.
    #[command(after_help = CODES)]
    Sub {
        /// The topic, which the node's `overlay.topics` names.
        topic: String,
        /// Stops after this many messages.
        #[arg(long, value_name = "COUNT")]
        count: Option<usize>,
        #[command(flatten)]
        target: Target,
    },
}

/// Asks, and prints the answer.
pub(crate) async fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    match request {
        Request::Provide { ids, stop, target } => provide(&ids, stop, &target).await,
        Request::Peers { target } => peers(&target).await,
        Request::Gossip(Gossip::Pub { topic, message, target }) => publish(&topic, message, &target).await,
        Request::Gossip(Gossip::Sub { topic, count, target }) => listen(&topic, count, &target).await,
        Request::Health { target } => health(&target).await,
        Request::Reload { target } => {
            let answer = target.ask("POST", "/admin/reload", Bytes::new()).await?;
            if target.is_json() {
                return say(&answer.to_string());
            }
            for key in answer["changed"].as_array().into_iter().flatten() {
                say(key.as_str().unwrap_or_default())?;
            }
            Ok(())
        }
    }
}

fn say(line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

async fn provide(ids: &[ContentId], stop: bool, target: &Target) -> Result<(), Box<dyn Error>> {
    for id in ids {
        let method = if stop { "DELETE" } else { "POST" };
        let path = format!("/dht/provide/{id}?timeout_ms={}", target.timeout().as_millis());
        let mut answer = target.ask(method, &path, Bytes::new()).await?;
        if target.is_json() {
            answer["id"] = id.to_string().into();
            say(&answer.to_string())?;
            continue;
        }
        say(&id.to_string())?;
        match answer["kept"].as_u64().filter(|_| !stop) {
            Some(0) => eprintln!("nobody keeps the record yet; the node will say it again"),
            Some(kept) => eprintln!("{kept} nodes keep the record"),
            None => {}
        }
    }
    Ok(())
}

async fn peers(target: &Target) -> Result<(), Box<dyn Error>> {
    let known = target.ask("GET", "/dht/peers", Bytes::new()).await?;
    let sessions = target.ask("GET", "/overlay/peers", Bytes::new()).await?;
    let of = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (known, sessions) = (of(&known), of(&sessions));
    let with = |id: &Value| sessions.iter().find(|session| session["id"] == *id);
    for peer in &known {
        let session = with(&peer["id"]);
        if target.is_json() {
            let mut peer = peer.clone();
            peer["session"] = session.cloned().unwrap_or(Value::Null);
            say(&peer.to_string())?;
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let addrs = of(&peer["addrs"]).iter().map(text).collect::<Vec<_>>().join(",");
        let rtt = peer["rtt_ms"].as_f64().map_or("-".to_owned(), |rtt| format!("{rtt:.1} ms"));
        let session = if session.is_some() { "session" } else { "-" };
        say(&format!("{}\t{addrs}\t{rtt}\t{session}", text(&peer["id"])))?;
    }
    for session in sessions.iter().filter(|session| !known.iter().any(|peer| peer["id"] == session["id"])) {
        match target.is_json() {
            true => say(&json!({"id": session["id"], "addrs": [session["remote"]], "rtt_ms": null, "session": session}).to_string())?,
            false => {
                let text = |key: &str| session[key].as_str().unwrap_or_default().to_owned();
                say(&format!("{}\t{}\t-\tsession", text("id"), text("remote")))?;
            }
        }
    }
    if known.is_empty() && sessions.is_empty() && !target.is_json() {
        eprintln!("it knows nobody; begin it with --seed, as another node prints itself when it starts");
    }
    Ok(())
}

async fn publish(topic: &str, message: Option<String>, target: &Target) -> Result<(), Box<dyn Error>> {
    let message = match message {
        Some(message) => message.into_bytes(),
        None => {
            let mut message = Vec::new();
            io::stdin().lock().read_to_end(&mut message)?;
            message
        }
    };
    let answer = target.ask("POST", &path_of(topic), message.into()).await?;
    match target.is_json() {
        true => say(&answer.to_string()),
        false => say(answer["id"].as_str().unwrap_or_default()),
    }
}

fn path_of(topic: &str) -> String {
    let mut path = "/gossip/".to_owned();
    for byte in topic.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(byte.into()),
            byte => path += &format!("%{byte:02X}"),
        }
    }
    path
}

async fn listen(topic: &str, count: Option<usize>, target: &Target) -> Result<(), Box<dyn Error>> {
    let (node, mut left) = (target.node_asked()?, count.unwrap_or(usize::MAX));
    if left == 0 {
        return Ok(());
    }
    let path = path_of(topic);
    let listening = node.lines(&path, |line| {
        if target.is_json() {
            say(&line.to_string())?;
        } else if let Some(payload) = line["payload"].as_str() {
            let mut out = io::stdout().lock();
            out.write_all(&BASE64.decode(payload.as_bytes())?)?;
            writeln!(out)?;
        } else {
            eprintln!(
                "{}",
                line["missing"]
                    .as_u64()
                    .map_or("it goes on".to_owned(), |count| format!("{count} messages are missing"))
            );
        }
        left -= usize::from(line["payload"].is_string());
        Ok(left > 0)
    });
    tokio::select! {
        ended = listening => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn health(target: &Target) -> Result<(), Box<dyn Error>> {
    target.ask("GET", "/readyz?verbose", Bytes::new()).await?;
    say(&if target.is_json() { json!({"ready": true}).to_string() } else { "ready".to_owned() })
}
