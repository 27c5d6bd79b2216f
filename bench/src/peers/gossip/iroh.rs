//! iroh-gossip over QUIC: an endpoint and a router for each node, no relay, and addresses from memory.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, SecretKey, TransportAddr,
    address_lookup::memory::MemoryLookup, endpoint::presets, protocol::Router,
};
use iroh_gossip::{
    ALPN,
    api::{Event, GossipReceiver, GossipSender},
    net::Gossip,
    proto::TopicId,
};

use super::{Counted, Hear, Network, Pending, Published, Start};
use crate::measure::Outcome;

const TOPIC: TopicId = TopicId::from_bytes([7; 32]);

struct Nodes(Vec<Node>);

struct Node {
    addr: EndpointAddr,
    gossip: Gossip,
    sender: GossipSender,
    heard: Arc<Heard>,
    /// Serves as long as it lives.
    _router: Router,
}

/// What the task that takes the topic's events knows.
#[derive(Default)]
struct Heard {
    neighbours: Mutex<HashSet<EndpointId>>,
    /// How often the library said that some messages were skipped; it does not say how many.
    lagged: AtomicU64,
}

pub(crate) async fn start(how: Start) -> Outcome<Arc<dyn Network>> {
    let mut nodes: Vec<Node> = Vec::new();
    for node in 0..how.nodes {
        let contacts = how.contacts(node).into_iter().map(|contact| nodes[contact].addr.clone()).collect();
        nodes.push(Node::start(how.secret(node), node, contacts, Arc::clone(&how.hear)).await?);
    }
    Ok(Arc::new(Nodes(nodes)))
}

impl Node {
    async fn start(secret: [u8; 32], node: usize, contacts: Vec<EndpointAddr>, hear: Hear) -> Outcome<Self> {
        let lookup = MemoryLookup::new();
        let endpoint = Endpoint::builder(presets::Minimal)
            .secret_key(SecretKey::from_bytes(&secret))
            .relay_mode(RelayMode::Disabled)
            .clear_ip_transports()
            .bind_addr("127.0.0.1:0")?
            .address_lookup(lookup.clone())
            .bind()
            .await?;
        let gossip = Gossip::builder().spawn(endpoint.clone());
        let router = Router::builder(endpoint.clone()).accept(ALPN, gossip.clone()).spawn();
        let bootstrap = contacts.iter().map(|contact| contact.id).collect();
        contacts.into_iter().for_each(|contact| lookup.add_endpoint_info(contact));
        let (sender, receiver) = gossip.subscribe(TOPIC, bootstrap).await?.split();
        let heard = Arc::new(Heard::default());
        tokio::spawn(run(receiver, node, hear, Arc::clone(&heard)));
        let addrs = endpoint.bound_sockets().into_iter().map(TransportAddr::Ip).collect();
        let addr = EndpointAddr { id: endpoint.id(), addrs };
        Ok(Node { addr, gossip, sender, heard, _router: router })
    }
}

/// The task of one subscriber.
async fn run(mut receiver: GossipReceiver, node: usize, hear: Hear, heard: Arc<Heard>) {
    while let Some(Ok(event)) = receiver.next().await {
        match event {
            Event::Received(message) => hear(node, &message.content),
            Event::NeighborUp(peer) => {
                heard.neighbours().insert(peer);
            }
            Event::NeighborDown(peer) => {
                heard.neighbours().remove(&peer);
            }
            Event::Lagged => {
                heard.lagged.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Heard {
    fn neighbours(&self) -> MutexGuard<'_, HashSet<EndpointId>> {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for Nodes {
    fn publish(&self, node: usize, message: Bytes) -> Pending<'_, Published> {
        Box::pin(async move {
            match self.0[node].sender.broadcast(message).await {
                Ok(()) => Published::Taken,
                Err(_) => Published::Failed,
            }
        })
    }

    fn counted(&self) -> Pending<'_, Outcome<Counted>> {
        let counted = Counted {
            copies: self.0.iter().map(|node| node.gossip.metrics().msgs_data_recv.get()).sum(),
            told: self.0.iter().map(|node| node.heard.lagged.load(Relaxed)).sum(),
        };
        Box::pin(std::future::ready(Ok(counted)))
    }

    fn neighbours(&self) -> Pending<'_, Outcome<usize>> {
        Box::pin(async { Ok(self.0.iter().map(|node| node.heard.neighbours().len()).sum()) })
    }
}
