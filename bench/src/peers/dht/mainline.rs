//! mainline, the DHT of BitTorrent: plain datagrams, a thread and a socket for each node.
//!
//! Its join looks for the node itself and no further, so the section looks into its buckets. Searches for the nearest
//! nodes are those that ask for a value: the first node of a network files whoever sends it FIND_NODE under the id that
//! was looked for, which is right for a node that joins and poisons its table otherwise.

use std::{collections::HashSet, net::Ipv4Addr, sync::Arc, time::Instant};

use futures_util::StreamExt as _;
use mainline::{Dht, Id, async_dht::AsyncDht};

use super::{Abilities, Answer, Key, Network, Pending, Place, Start, Started};
use crate::measure::Outcome;

struct Nodes {
    nodes: Vec<AsyncDht>,
    ids: Vec<Place>,
}

pub(crate) async fn start(how: Start) -> Outcome<Started> {
    let mut nodes: Vec<AsyncDht> = Vec::new();
    let mut first = Vec::new();
    for _ in 0..how.nodes {
        let mut builder = Dht::builder();
        builder.server_mode().bind_address(Ipv4Addr::LOCALHOST).bootstrap(&first);
        let node = builder.build()?.as_async();
        if first.is_empty() {
            first.push(node.info().await.local_addr());
        }
        nodes.push(node);
    }
    let joining = nodes.clone();
    let failed = how.join_all(|node| {
        let node = joining[node].clone();
        Box::pin(async move { if node.bootstrapped().await { Ok(()) } else { Err("found nobody".into()) } })
    });
    let failed = failed.await;
    let mut ids = Vec::new();
    for node in &nodes {
        ids.push(place(node.info().await.id()));
    }
    Ok((Arc::new(Nodes { nodes, ids }), failed))
}

fn place(id: &Id) -> Place {
    let mut place = [0; 32];
    place[..id.as_bytes().len()].copy_from_slice(id.as_bytes());
    place
}

fn id(key: &Key) -> Id {
    let mut id = [0; 20];
    id.copy_from_slice(&key[..20]);
    Id::from(id)
}

impl Network for Nodes {
    fn abilities(&self) -> Abilities {
        Abilities { k: 20, has_providers: true, refreshes_at_join: false }
    }

    fn place_of_node(&self, node: usize) -> Place {
        self.ids[node]
    }

    fn place_of_key(&self, key: &Key) -> Place {
        place(&id(key))
    }

    fn provide(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let port = u16::try_from(node + 1)?;
            self.nodes[node].announce_peer(id(&key), Some(port)).await?;
            Ok(Answer::default())
        })
    }

    fn find_providers(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let began = Instant::now();
            let mut found = self.nodes[node].get_peers(id(&key));
            let (mut answer, mut providers) = (Answer::default(), HashSet::new());
            while let Some(some) = found.next().await {
                if !some.is_empty() {
                    answer.first.get_or_insert_with(|| began.elapsed());
                }
                providers.extend(some);
            }
            answer.found = providers.len();
            Ok(answer)
        })
    }

    fn find_closest(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let found = self.nodes[node].get_closest_nodes(id(&key)).await;
            let closest: Vec<Place> = found.iter().map(|node| place(node.id())).collect();
            Ok(Answer { found: closest.len(), closest, ..Answer::default() })
        })
    }

    fn connections(&self) -> Pending<'_, Option<usize>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}
