//! A part of the story: an object lives on two of the nodes, one of the two dies, and the copy comes back by itself.

use std::{
    error::Error,
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, NodeId, net::Identity, now};
use ron_storage::{
    claims::Policy,
    logic::place::{Candidate, WEIGHT_DEFAULT, place},
    repair::{Ack, Keeping, KeepingEvent},
};

use super::{Node, expect, soon};
use crate::config::KeepingSection;

/// More than one group, so that its proof has something to prove.
const LENGTH: usize = 200_000;

/// How often nodes compare what they have.
const TICK: Duration = Duration::from_millis(100);

/// What two nodes have, the first of the story among them.
pub(super) struct Shared {
    id: ContentId,
    content: Bytes,
    holders: Vec<NodeId>,
    /// How often it was repaired by others than the first.
    repairs: usize,
}

/// How the nodes keep objects together: by a secret in `folder`, and so fast that the story is short. A node that is away for
/// a minute is usually only restarting.
pub(super) fn section(folder: &Path) -> Result<KeepingSection, Box<dyn Error>> {
    Ok(KeepingSection {
        secret_file: Some(secret(folder)?),
        tick_ms: TICK.as_millis() as u64,
        refresh_ms: 50,
        grace_ms: 200,
        takeover_ms: 300,
        retry_ms: 100,
        ..KeepingSection::default()
    })
}

/// The file with the secret, written by who comes first.
fn secret(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = folder.join("secret");
    if !path.exists() {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // As good a secret as any: nobody knows it.
        write!(file, "{}", Identity::generate()?.public_key())?;
    }
    Ok(path)
}

/// The second node puts an object with two copies, of which the first node has one.
pub(super) async fn put(nodes: &[Node]) -> Result<Shared, Box<dyn Error>> {
    let [a, b, ..] = nodes else { return Err("there are at least three".into()) };
    let know = async {
        while nodes.iter().any(|node| keeping(node).is_none_or(|keeping| keeping.status().up < nodes.len())) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let know = soon().limit("company", know).await;
    know.map_err(|_| "did not hold: nodes with one secret find each other")?;
    let content = destined(nodes, a);
    let (owner, keeping) = (Identity::generate()?, keeping(b).ok_or("it keeps nothing with others")?);
    let placed = keeping.put(content.clone(), Policy::Copies(2), &owner, Ack::Copies(2), soon()).await?;
    expect(placed.durable_on.len() == 2, "two nodes acknowledge what shall have two copies")?;
    let holders = settled(nodes, placed.id).await?;
    expect(holders.contains(&a.parts.endpoint.node_id()), "it is where its name says")?;
    println!(
        "{} puts {LENGTH} bytes with two copies; {} acknowledge them, and they come to where they belong, {}",
        b.name,
        names(nodes, &placed.durable_on),
        names(nodes, &holders)
    );
    let repairs = nodes[1..].iter().map(|node| repairs(node, placed.id)).sum();
    Ok(Shared { id: placed.id, content, holders, repairs })
}

/// Where an object belongs is decided by its name: content of which one of two copies belongs on this node.
fn destined(nodes: &[Node], on: &Node) -> Bytes {
    let id = |node: &Node| node.parts.endpoint.node_id();
    let candidates: Vec<Candidate> = (0..)
        .zip(nodes)
        .map(|(zone, node)| Candidate { id: id(node), zone, weight: WEIGHT_DEFAULT })
        .collect();
    let mut contents = (0_u64..).map(|number| Bytes::from(number.to_le_bytes().repeat(LENGTH / 8)));
    let is_there = |content: &Bytes| place(&candidates, &ContentId::of(content), 2).contains(&id(on));
    contents.find(is_there).expect("names are as good as random")
}

/// Who has it when it is where it belongs: two of them, and the same for a few ticks.
async fn settled(nodes: &[Node], id: ContentId) -> Result<Vec<NodeId>, Box<dyn Error>> {
    let (mut holders, mut since, until) = (Vec::new(), now(), soon());
    while holders.len() != 2 || since.elapsed() < 6 * TICK {
        expect(!until.has_passed(), "two nodes have it in the end")?;
        let mut found = Vec::new();
        for node in nodes {
            if has(node, id).await {
                found.push(node.parts.endpoint.node_id());
            }
        }
        if found != holders {
            (holders, since) = (found, now());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(holders)
}

/// Those who are left have two copies again, without having been told anything, and any of them can read it.
pub(super) async fn restored(nodes: &[Node], shared: &Shared) -> Result<(), Box<dyn Error>> {
    let (began, id) = (now(), shared.id);
    let again = async {
        loop {
            for node in nodes {
                let is_new = !shared.holders.contains(&node.parts.endpoint.node_id());
                let read_back = nodes.iter().map(|node| repairs(node, id)).sum::<usize>();
                if is_new && has(node, id).await && read_back > shared.repairs {
                    return node;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let again = soon().limit("repair", again).await;
    let again = again.map_err(|_| "did not hold: the copy comes back by itself")?;
    println!(
        "nobody says anything, and {:.1?} later {} has the copy that was lost, read back by who gave it",
        began.elapsed(),
        again.name
    );
    let mut reader = again;
    for node in nodes {
        if !has(node, id).await {
            reader = node;
        }
    }
    let read = keeping(reader).ok_or("it keeps nothing with others")?.get(id, soon()).await?;
    expect(read == shared.content, "what is read is what was put")?;
    println!("{} reads it, verified", reader.name);
    Ok(())
}

fn keeping(node: &Node) -> Option<&Keeping> {
    node.parts.company.as_ref().map(|company| &company.keeping)
}

async fn has(node: &Node, id: ContentId) -> bool {
    node.parts.store.has(id, soon()).await.unwrap_or(false)
}

/// How often it has given the object to another and read it back.
fn repairs(node: &Node, id: ContentId) -> usize {
    let is_it =
        |event: &KeepingEvent| matches!(event, KeepingEvent::Repaired { object, .. } if *object == id);
    keeping(node).map_or(0, |keeping| keeping.recent().iter().filter(|(_, event)| is_it(event)).count())
}

fn names(nodes: &[Node], ids: &[NodeId]) -> String {
    let named = nodes.iter().filter(|node| ids.contains(&node.parts.endpoint.node_id()));
    named.map(|node| node.name.to_string()).collect::<Vec<_>>().join(" and ")
}
