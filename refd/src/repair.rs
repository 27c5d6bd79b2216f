//! The commands about objects on many nodes: `refd repair` and `refd decommission`.

use std::{
    error::Error,
    io::{self, Write as _},
    time::Duration,
};

use bytes::Bytes;
use clap::{Args, Subcommand};
use ron_core::{ContentId, NodeId};
use ron_storage::{
    claims::{COPIES_MAX, Policy, SHARDS_MAX},
    repair::Ack,
};
use serde_json::Value;

use crate::{
    ask::AskError,
    client::{CODES, Ends, Target, content_id},
};

/// Between two looks at a node that is emptied.
const EVERY: Duration = Duration::from_millis(500);

/// What is asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Shows how objects on many nodes are doing, and changes their policies.
    #[command(subcommand)]
    Repair(Repair),
    /// Drains a node before it leaves: it takes nothing new, and what it has is copied to others. Waits until they have it.
    #[command(after_help = CODES)]
    Decommission {
        /// Cancels that: the node stays.
        #[arg(long)]
        undo: bool,
        /// Does not wait; `refd repair status` says how many objects are left.
        #[arg(long, conflicts_with = "undo")]
        no_wait: bool,
        #[command(flatten)]
        target: Target,
    },
}

/// What is asked about repair.
#[derive(Debug, Subcommand)]
pub(crate) enum Repair {
    /// Prints how objects and nodes are doing, and recent events.
    #[command(after_help = CODES)]
    Status {
        /// Exits with 6 unless every object is as its policy asks for.
        #[arg(long)]
        check: bool,
        /// With --check, also exits with 6 if fewer nodes than this answer, counting the node itself.
        #[arg(long, value_name = "COUNT", requires = "check", default_value_t = 1)]
        nodes: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Sets the policy of objects, and prints their ids.
    #[command(after_help = CODES)]
    Policy {
        /// Their ids.
        #[arg(required = true, value_parser = content_id)]
        ids: Vec<ContentId>,
        #[command(flatten)]
        wish: Wish,
        #[command(flatten)]
        target: Target,
    },
    /// Gives up a lost node that will not come back, and prints its id.
    #[command(after_help = CODES)]
    Forget {
        /// Its id.
        #[arg(value_name = "NODE_ID")]
        lost: NodeId,
        #[command(flatten)]
        target: Target,
    },
}

/// How an object is kept, and when that is answered.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Wish {
    /// Keeps this many copies, each on a different node [default: keeping.policy of the node].
    #[arg(long, value_name = "COUNT", conflicts_with = "erasure", value_parser = copies)]
    copies: Option<u8>,
    /// Cuts it into K+M shards, each on a different node; any K of them are enough.
    #[arg(long, value_name = "K+M", value_parser = erasure)]
    erasure: Option<Policy>,
    /// Returns when it is durable on that node (`local`), or on this many nodes, or in shards that are as safe as this many
    /// copies [default: keeping.ack of the node].
    #[arg(long, value_name = "local|COUNT", value_parser = ack)]
    ack: Option<Ack>,
}

impl Wish {
    /// Looks, before anything is sent, whether the node can do what is wished for: whether it keeps objects with others at all,
    /// and whether as many nodes as shall acknowledge can have it. Says so if fewer nodes answer than it is for.
    pub(crate) async fn check(&self, target: &Target) -> Result<(), Box<dyn Error>> {
        if self.copies.is_none() && self.erasure.is_none() && self.ack.is_none() {
            return Ok(());
        }
        let status = ask(target, "GET", "/keeping/status").await?;
        let of_node = || status["policy"].as_str().and_then(|policy| policy.parse().ok());
        let wished = self.copies.map(Policy::Copies).or(self.erasure);
        let Some(policy) = wished.or_else(of_node) else { return Ok(()) };
        let places = match policy {
            Policy::Copies(copies) => copies,
            Policy::Erasure { data, parity } => data.saturating_add(parity),
        };
        match self.ack {
            Some(Ack::Copies(ack)) if ack > places => {
                let words = format!("--ack {ack} cannot be: with {policy} fewer nodes have it");
                return Err(Ends::wrong(words).into());
            }
            _ => {}
        }
        let up = status["up"].as_u64().unwrap_or_default();
        if wished.is_some() && up < places.into() {
            eprintln!(
                "{policy} is for {places} nodes, and {up} answer: less of them may be lost until more do (refd repair status)"
            );
        }
        Ok(())
    }

    /// As the node is asked for it.
    pub(crate) fn policy(&self) -> Option<String> {
        let copies = self.copies.map(|copies| copies.to_string());
        copies.or_else(|| self.erasure.map(|policy| policy.to_string()))
    }

    /// As the node is asked for it.
    pub(crate) fn ack(&self) -> Option<String> {
        self.ack.map(|ack| ack.to_string())
    }
}

fn copies(text: &str) -> Result<u8, String> {
    let copies = text.parse().ok().filter(|copies| Policy::Copies(*copies).check().is_ok());
    copies.ok_or_else(|| format!("1 to {COPIES_MAX} copies"))
}

fn erasure(text: &str) -> Result<Policy, String> {
    match text.parse() {
        Ok(policy @ Policy::Erasure { .. }) => Ok(policy),
        _ => {
            Err(format!("shards are K+M, as in 6+3: one of each or more, and at most {SHARDS_MAX} together"))
        }
    }
}

fn ack(text: &str) -> Result<Ack, String> {
    text.parse().map_err(|_| format!("`local`, or 1 to {SHARDS_MAX} nodes"))
}

/// A node that keeps its objects alone has nothing to say about others.
#[derive(Debug, thiserror::Error)]
#[error("this node keeps its objects alone: set keeping.secret_file or keeping.members there")]
pub(crate) struct Alone;

/// Something is missing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unmet(String);

/// Asks, and prints the answer.
pub(crate) async fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    match request {
        Request::Repair(Repair::Status { check, nodes, target }) => {
            let status = ask(&target, "GET", "/keeping/status").await?;
            match target.is_json() {
                true => say(&status.to_string())?,
                false => say_status(&status)?,
            }
            match unmet(&status, nodes).filter(|_| check) {
                Some(words) => Err(Unmet(words).into()),
                None => Ok(()),
            }
        }
        Request::Repair(Repair::Policy { ids, wish, target }) => {
            wish.check(&target).await?;
            let wishes = [("policy", wish.policy()), ("ack", wish.ack())];
            let wishes = wishes.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
            let query = wishes.collect::<Vec<_>>().join("&");
            for id in ids {
                let answer = ask(&target, "PUT", &format!("/keeping/objects/{id}?{query}")).await?;
                say(&if target.is_json() { answer.to_string() } else { id.to_string() })?;
            }
            Ok(())
        }
        Request::Repair(Repair::Forget { lost: node, target }) => {
            let answer = ask(&target, "DELETE", &format!("/keeping/nodes/{node}")).await?;
            say(&if target.is_json() { answer.to_string() } else { node.to_string() })
        }
        Request::Decommission { undo, no_wait, target } => {
            ask(&target, if undo { "DELETE" } else { "PUT" }, "/keeping/draining").await?;
            let status = match undo || no_wait {
                true => ask(&target, "GET", "/keeping/status").await?,
                false => emptied(&target).await?,
            };
            match (target.is_json(), undo, no_wait) {
                (true, _, _) => say(&status.to_string()),
                (false, true, _) => say("the node stays"),
                (false, false, true) => say("the node is emptied; refd repair status says how far it is"),
                (false, false, false) => say("others have what the node has, and it can be stopped"),
            }
        }
    }
}

async fn ask(target: &Target, method: &'static str, path: &str) -> Result<Value, Box<dyn Error>> {
    match target.ask(method, path, Bytes::new()).await {
        Err(error) => match error.downcast_ref::<AskError>() {
            Some(AskError::Refused { status: 404, code, .. }) if code == "not_found" => Err(Alone.into()),
            _ => Err(error),
        },
        answer => answer,
    }
}

/// Waits until a node has nothing left that belongs elsewhere, and the others know that it goes.
async fn emptied(target: &Target) -> Result<Value, Box<dyn Error>> {
    let mut told = None;
    loop {
        let status = ask(target, "GET", "/keeping/status").await?;
        let left = status["needed"].as_u64();
        // It is summed up once a second: before that it does not know yet.
        if status["draining"] == true {
            if left == Some(0) && status["untold"] == 0 {
                return Ok(status);
            }
            if left != told {
                eprintln!("{} objects and shards are still needed here", left.unwrap_or_default());
                told = left;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn count(status: &Value, key: &str) -> u64 {
    status["objects"][key].as_u64().unwrap_or_default()
}

/// What is not as it should be.
fn unmet(status: &Value, nodes: u64) -> Option<String> {
    if status["has_looked"] != true {
        return Some("the node has not compared with the others yet".to_owned());
    }
    let unweighed = status["unweighed"].as_u64().unwrap_or_default();
    if unweighed > 0 {
        return Some(format!("{unweighed} objects changed and were not looked at yet"));
    }
    let up = status["up"].as_u64().unwrap_or_default();
    if up < nodes {
        return Some(format!("{up} nodes answer, and {nodes} should"));
    }
    let (under, urgent, lost) = (count(status, "under"), count(status, "urgent"), count(status, "lost"));
    (under + urgent + lost > 0).then(|| {
        format!("{} objects are less than their policy asks for, {lost} of them lost", under + urgent + lost)
    })
}

fn say(line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn say_status(status: &Value) -> Result<(), Box<dyn Error>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let mut out = io::stdout().lock();
    let ack = match text(&status["ack"]).as_str() {
        "local" => "answered when it is durable here".to_owned(),
        nodes => format!("answered when {nodes} nodes have it"),
    };
    writeln!(out, "policy\t{}, {ack}", text(&status["policy"]))?;
    writeln!(
        out,
        "objects\t{} as they should be, {} with something missing, {} at their last copy, {} lost, {} deleted",
        count(status, "met"),
        count(status, "under"),
        count(status, "urgent"),
        count(status, "lost"),
        count(status, "deleted")
    )?;
    let fewest = status["rf_observed"].as_u64().map_or("-".to_owned(), |fewest| fewest.to_string());
    writeln!(out, "copies\t{fewest} at least")?;
    let rate = number(&status["bytes_per_second"]) as f64 / f64::from(1 << 20);
    writeln!(out, "repairs\t{} under way, up to {rate:.1} MiB/s", number(&status["repairs"]))?;
    if status["draining"] == true {
        let (needed, untold) = (number(&status["needed"]), number(&status["untold"]));
        writeln!(
            out,
            "leaving\t{needed} objects and shards are still needed here, {untold} nodes have not heard of it"
        )?;
    }
    let none = Vec::new();
    for node in status["nodes"].as_array().unwrap_or(&none) {
        let addrs: Vec<String> = node["addrs"].as_array().unwrap_or(&none).iter().map(text).collect();
        let seen = node["seen_ms"]
            .as_u64()
            .map_or("never seen".to_owned(), |seen| format!("seen {} s ago", seen / 1000));
        let seen = if node["this"] == true { "this node".to_owned() } else { seen };
        let durable = if node["durable"] == true { "" } else { "\tin memory" };
        writeln!(
            out,
            "node\t{}\t{}\t{}\t{seen}\tweight {}\t{} objects and shards{durable}",
            text(&node["id"]),
            addrs.join(","),
            text(&node["presence"]),
            number(&node["weight"]),
            number(&node["pieces"])
        )?;
    }
    for event in status["recent"].as_array().unwrap_or(&none) {
        let parts = ["object", "node", "class"].iter().filter_map(|key| event[*key].as_str());
        let parts =
            parts.map(str::to_owned).chain(event["bytes"].as_u64().map(|bytes| format!("{bytes} bytes")));
        writeln!(out, "event\t{}\t{}", text(&event["event"]), parts.collect::<Vec<_>>().join("\t"))?;
    }
    Ok(())
}
