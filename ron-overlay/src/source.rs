//! Where nodes of a topic are found, and the task that looks for them and tidies up.

use std::{fmt, sync::Arc, time::Duration};

use ron_core::{Counter, Deadline, ReadyGate, Restart, Stop, TaskSpec, net::BoxFuture};

use crate::{Contact, engine::Command, logic::message::TopicId, metrics::PARTS_REFUSED, node::Node};

pub(crate) const JANITOR: TaskSpec = TaskSpec::new("ron-overlay", "janitor").restart(Restart::PATIENT).what(
    "gives up large messages that do not come to an end, and asks the peer source for nodes of topics that have few",
);

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// How long a source may take, and how long a topic is not asked for again.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
const ASK_EVERY: u32 = 5;

/// Nodes that a source is asked for.
const WANTED: usize = 8;

/// Finds nodes that may be on a topic: a list, a file, a DHT.
pub trait PeerSource: fmt::Debug + Send + Sync + 'static {
    /// Up to `wanted` nodes that may be on `topic`. It is asked while this node has too few neighbours there.
    fn find(&self, topic: TopicId, wanted: usize) -> BoxFuture<'_, Vec<Contact>>;
}

/// Tidies up until the stop.
pub(crate) async fn tidy(
    node: Arc<Node>,
    source: Option<Arc<dyn PeerSource>>,
    sessions: Arc<ReadyGate>,
    stop: Stop,
) {
    let mut rounds = 0_u32;
    let mut next = ron_core::now() + EVERY;
    // Beside the rounds and not in one: a source may take its time with every topic, and all the rest does not wait for it.
    let mut asking: Option<BoxFuture<'_, ()>> = None;
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = tokio::time::sleep_until(next) => next = ron_core::now() + EVERY,
            () = done(&mut asking), if asking.is_some() => {
                asking = None;
                continue;
            }
        }
        rounds = rounds.wrapping_add(1);
        let now = node.since();
        let late = node.parts.lock().on_tick(now);
        node.metrics.tally(PARTS_REFUSED, "late").add(late as u64);
        for orphan in node.all_egress().iter().filter(|egress| egress.is_orphan()) {
            node.lose(orphan);
        }
        node.measure();
        let (open, most) = (node.peers().sessions().len(), node.settings().max_conns);
        if open < most {
            sessions.open();
        } else {
            sessions.close(format!("{open} of {most} sessions are taken"));
        }
        if rounds % ASK_EVERY == 1 && asking.is_none() {
            asking = source.as_ref().map(|source| -> BoxFuture<'_, ()> { Box::pin(ask(&node, source)) });
        }
    }
}

/// Returns when it is done; never if there is nothing to do.
async fn done(asking: &mut Option<BoxFuture<'_, ()>>) {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// Asks for nodes of topics that have few neighbours.
async fn ask(node: &Node, source: &Arc<dyn PeerSource>) {
    let wanted = node.settings().gossip.view.neighbours;
    for engine in &node.engines {
        let deadline = Deadline::after(ASK_TIMEOUT);
        let asked = engine.call("status", deadline, |reply| Command::Status { topic: None, reply });
        let Ok(topics) = asked.await else { continue };
        for topic in topics.into_iter().filter(|topic| topic.neighbours.len() < wanted) {
            match Deadline::after(ASK_TIMEOUT).limit("peer_source", source.find(topic.id, WANTED)).await {
                Ok(contacts) if contacts.is_empty() => {}
                Ok(contacts) => drop(engine.tell(Command::Meet { topic: topic.id, contacts })),
                Err(_) => node.metrics.tally(Counter::IoTimeouts, "peer_source").add(1),
            }
        }
    }
}
