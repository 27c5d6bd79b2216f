//! Ours: nodes with an endpoint and a supervisor each, as hosts have them, over TLS.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, Supervisor,
    net::{Endpoint, EndpointSettings, Identity},
};
use ron_overlay::{Contact, Delivery, Overlay, OverlayError, Subscription, Topic};

use super::{Counted, Hear, Network, Pending, Published, Start, TOPIC};
use crate::measure::Outcome;

/// Whether messages prove who wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authors {
    Signed,
    Claimed,
}

/// Far more than any call here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Nodes {
    nodes: Vec<Node>,
    /// Messages that subscribers were told they will not get.
    told: Arc<AtomicU64>,
}

struct Node {
    overlay: Overlay,
    topic: Topic,
    /// Stops what it holds when it goes.
    _host: Supervisor,
}

pub(crate) async fn start(how: Start, authors: Authors) -> Outcome<Arc<dyn Network>> {
    let told = Arc::default();
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..how.nodes {
        let contacts: Vec<Contact> =
            how.contacts(number).into_iter().map(|contact| nodes[contact].overlay.contact()).collect();
        let node = Node::start(&how, number, authors, contacts).await?;
        let subscription = node.topic.subscribe(soon()).await?;
        tokio::spawn(run(subscription, number, Arc::clone(&how.hear), Arc::clone(&told)));
        nodes.push(node);
    }
    Ok(Arc::new(Nodes { nodes, told }))
}

impl Node {
    async fn start(how: &Start, node: usize, authors: Authors, contacts: Vec<Contact>) -> Outcome<Self> {
        let host = Supervisor::new("node");
        let settings = EndpointSettings {
            // All nodes of the network have one address.
            connections_per_ip_max: 128.max(2 * how.nodes as u32),
            ..EndpointSettings::default()
        };
        let listen: SocketAddr = "127.0.0.1:0".parse()?;
        let identity = Identity::from_seed(&how.secret(node));
        let endpoint = Endpoint::builder(identity).settings(settings).listen(listen).start(&host)?;
        let overlay = Overlay::builder().seed(how.seed ^ node as u64).start(&endpoint, &host).await?;
        let topic = match authors {
            Authors::Signed => overlay.topic(TOPIC),
            Authors::Claimed => overlay.topic(TOPIC).unsigned(),
        };
        Ok(Node { topic: topic.join(contacts, soon()).await?, overlay, _host: host })
    }
}

/// The task of one subscriber.
async fn run(mut subscription: Subscription, node: usize, hear: Hear, told: Arc<AtomicU64>) {
    while let Some(delivery) = subscription.recv().await {
        match delivery {
            Delivery::Message { message, .. } => hear(node, message.payload()),
            Delivery::Gap(gap) | Delivery::Missed(gap) => drop(told.fetch_add(gap.count(), Relaxed)),
            Delivery::MissedMore(more) => drop(told.fetch_add(more, Relaxed)),
            _ => {}
        }
    }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

impl Network for Nodes {
    fn publish(&self, node: usize, message: Bytes) -> Pending<'_, Published> {
        Box::pin(async move {
            match self.nodes[node].topic.publish(message, soon()).await {
                Ok(_) => Published::Taken,
                Err(OverlayError::Busy { .. }) => Published::Refused,
                Err(_) => Published::Failed,
            }
        })
    }

    fn counted(&self) -> Pending<'_, Outcome<Counted>> {
        Box::pin(async move {
            let mut copies = 0;
            for node in &self.nodes {
                copies += node.topic.status(soon()).await?.counts.received;
            }
            Ok(Counted { copies, told: self.told.load(Relaxed) })
        })
    }

    fn neighbours(&self) -> Pending<'_, Outcome<usize>> {
        Box::pin(async move {
            let mut neighbours = 0;
            for node in &self.nodes {
                neighbours += node.topic.status(soon()).await?.neighbours.len();
            }
            Ok(neighbours)
        })
    }
}
