//! Ours: nodes with an endpoint and a supervisor each, as hosts have them, over TLS or in memory.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use ron_core::{
    Deadline, Supervisor,
    net::{Endpoint, EndpointSettings, Identity},
};
use ron_dht::{Contact, Dht, Settings};

use super::{Abilities, Answer, JOINING, Key, Network, Pending, Place, Start, Started, memory::Memory};
use crate::measure::{Outcome, sockets};

/// What carries the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tls,
    Memory,
}

/// Descriptors that links may take, of the 20 000 that a process usually has: every link has both of its ends here.
const LINK_ENDS_MAX: usize = 16_000;

/// Far more than any search here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Nodes {
    nodes: Vec<Node>,
    carrier: Carrier,
    memory: Memory,
}

struct Node {
    dht: Dht,
    /// Stops what it holds when it goes.
    _host: Supervisor,
}

pub(crate) async fn start(how: Start, carrier: Carrier) -> Outcome<Started> {
    let memory = Memory::default();
    let first = Node::start(&how, 0, carrier, &memory, None).await?;
    let seed = first.dht.contact();
    let began = Instant::now();
    let one = |node| {
        let (seed, memory, how) = (seed.clone(), memory.clone(), how);
        async move {
            let node = Node::start(&how, node, carrier, &memory, Some(seed)).await?;
            let left = how.limit.saturating_sub(began.elapsed());
            let has_failed = node.dht.joined(Deadline::after(left)).await.is_err();
            Outcome::Ok((node, has_failed))
        }
    };
    let mut others = stream::iter(1..how.nodes).map(one).buffered(JOINING);
    let (mut nodes, mut failed) = (vec![first], 0);
    while let Some(node) = others.next().await {
        let (node, has_failed) = node?;
        nodes.push(node);
        failed += usize::from(has_failed);
    }
    drop(others);
    Ok((Arc::new(Nodes { nodes, carrier, memory }), failed))
}

impl Node {
    async fn start(
        how: &Start,
        node: usize,
        carrier: Carrier,
        memory: &Memory,
        seed: Option<Contact>,
    ) -> Outcome<Self> {
        let host = Supervisor::new("node");
        let identity = Identity::from_seed(&how.secret(node));
        let settings = EndpointSettings {
            // All nodes of the network have one address.
            connections_per_ip_max: 128.max(2 * how.nodes as u32),
            ..EndpointSettings::default()
        };
        let listen: SocketAddr = "127.0.0.1:0".parse()?;
        let mut endpoint = Endpoint::builder(identity.clone()).settings(settings).listen(listen);
        let mut settings = Settings::default();
        match carrier {
            Carrier::Memory => endpoint = endpoint.transport(memory.transport(&identity)),
            Carrier::Tls if node >= how.askers => {
                // Askers need one link to everybody; what is left of the descriptors is for the others.
                let links = (LINK_ENDS_MAX - 2 * how.askers * how.nodes) / (how.nodes - how.askers);
                settings.sessions_max = settings.sessions_max.min(links + how.askers);
            }
            Carrier::Tls => {}
        }
        let endpoint = endpoint.start(&host)?;
        let dht = Dht::builder().settings(settings).seed(how.seed ^ node as u64).seeds(seed);
        Ok(Node { dht: dht.start(&endpoint, &host).await?, _host: host })
    }
}

impl Network for Nodes {
    fn abilities(&self) -> Abilities {
        Abilities { k: 20, has_providers: true, refreshes_at_join: true }
    }

    fn place_of_node(&self, node: usize) -> Place {
        *self.nodes[node].dht.node_id().as_bytes()
    }

    fn place_of_key(&self, key: &Key) -> Place {
        *key
    }

    fn provide(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let key = ron_dht::Key::from_bytes(key);
            let published = self.nodes[node].dht.provide(key, Deadline::after(PATIENCE)).await?;
            let rpcs = Some(published.verdict.rpcs + published.asked);
            Ok(Answer { found: published.kept, rpcs, ..Answer::default() })
        })
    }

    fn find_providers(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let began = Instant::now();
            let key = ron_dht::Key::from_bytes(key);
            let dht = &self.nodes[node].dht;
            let mut found = dht.find_providers(key, NonZeroUsize::MAX, Deadline::after(PATIENCE))?;
            let mut answer = Answer::default();
            while found.next().await?.is_some() {
                answer.first.get_or_insert_with(|| began.elapsed());
                answer.found += 1;
            }
            answer.rpcs = found.verdict().map(|verdict| verdict.rpcs);
            Ok(answer)
        })
    }

    fn find_closest(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let key = ron_dht::Key::from_bytes(key);
            let found = self.nodes[node].dht.find_node(key, Deadline::after(PATIENCE)).await?;
            let closest: Vec<Place> = found.peers.iter().map(|peer| *peer.id.as_bytes()).collect();
            let (found, rpcs) = (closest.len(), Some(found.verdict.rpcs));
            Ok(Answer { found, rpcs, closest, ..Answer::default() })
        })
    }

    fn connections(&self) -> Pending<'_, Option<usize>> {
        Box::pin(async move {
            Ok(Some(match self.carrier {
                Carrier::Memory => self.memory.ends(),
                // One socket of each listens.
                Carrier::Tls => sockets()?.saturating_sub(self.nodes.len()),
            }))
        })
    }
}
