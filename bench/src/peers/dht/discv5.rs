//! discv5, the DHT of Ethereum: encrypted datagrams. It finds nodes and keeps no records.
//!
//! It has no join of its own: programs look for themselves and then at random, which the section does for its buckets.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::Arc,
};

use discv5::{
    ConfigBuilder, Discv5, ListenConfig,
    enr::{CombinedKey, Enr, NodeId},
};

use super::{Abilities, Answer, Key, Network, Pending, Place, Start, Started};
use crate::measure::Outcome;

/// Ports tried for a node. Somebody else may take one between our look and the library's.
const PORTS_TRIED: usize = 5;

struct Nodes {
    nodes: Vec<Discv5>,
}

pub(crate) async fn start(how: Start) -> Outcome<Started> {
    let mut nodes = Vec::new();
    for node in 0..how.nodes {
        nodes.push(listen(how.secret(node)).await?);
    }
    let first = nodes[0].local_enr();
    for node in &nodes[1..] {
        node.add_enr(first.clone())?;
    }
    let nodes = Arc::new(Nodes { nodes });
    let failed = how.join_all(|node| {
        let nodes = Arc::clone(&nodes);
        Box::pin(async move {
            let own = nodes.nodes[node].local_enr().node_id().raw();
            nodes.find_closest(node, own).await.map(drop)
        })
    });
    let failed = failed.await;
    Ok((nodes, failed))
}

async fn listen(secret: [u8; 32]) -> Outcome<Discv5> {
    let ip = Ipv4Addr::LOCALHOST;
    let mut refused = None;
    for _ in 0..PORTS_TRIED {
        // What the key is made from is wiped.
        let mut secret = secret;
        let key = CombinedKey::secp256k1_from_bytes(&mut secret).map_err(|error| error.to_string())?;
        let port = UdpSocket::bind((ip, 0))?.local_addr()?.port();
        let record = Enr::builder().ip4(ip).udp4(port).build(&key)?;
        let config = ConfigBuilder::new(ListenConfig::Ipv4 { ip, port }).build();
        let mut node: Discv5 = Discv5::new(record, key, config)?;
        match node.start().await {
            Ok(()) => return Ok(node),
            Err(error) => refused = Some(error),
        }
    }
    Err(format!("no port: {refused:?}").into())
}

impl Network for Nodes {
    fn abilities(&self) -> Abilities {
        Abilities { k: 16, has_providers: false, refreshes_at_join: false }
    }

    fn place_of_node(&self, node: usize) -> Place {
        self.nodes[node].local_enr().node_id().raw()
    }

    fn place_of_key(&self, key: &Key) -> Place {
        *key
    }

    fn provide(&self, _: usize, _: Key) -> Pending<'_, Answer> {
        Box::pin(std::future::ready(Err("discv5 keeps no records".into())))
    }

    fn find_providers(&self, _: usize, _: Key) -> Pending<'_, Answer> {
        Box::pin(std::future::ready(Err("discv5 keeps no records".into())))
    }

    fn find_closest(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(async move {
            let found = self.nodes[node].find_node(NodeId::new(&key)).await;
            let found = found.map_err(|error| format!("{error:?}"))?;
            let closest: Vec<Place> = found.iter().map(|record| record.node_id().raw()).collect();
            Ok(Answer { found: closest.len(), closest, ..Answer::default() })
        })
    }

    fn connections(&self) -> Pending<'_, Option<usize>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}
