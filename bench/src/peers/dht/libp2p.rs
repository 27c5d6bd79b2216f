//! libp2p-kad: each node a task that owns its swarm, as programs on it are written.
//!
//! The library's defaults, except that connections stay as long as ours do, that stores hold what the benchmark puts
//! into them, and that a query may take as long as the benchmark waits. Nodes are servers and learn addresses by
//! identify.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, Transport as _,
    core::{transport::MemoryTransport, upgrade::Version},
    identify, identity,
    kad::{
        self, GetProvidersOk, KBucketKey, QueryId, QueryResult, RecordKey,
        store::{MemoryStore, MemoryStoreConfig},
    },
    noise, plaintext,
    swarm::{NetworkBehaviour, SwarmEvent},
    tcp, yamux,
};
use tokio::sync::{mpsc, oneshot};

use super::{Abilities, Answer, Key, Network, Pending, Place, Start, Started};
use crate::measure::Outcome;

/// What carries the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Memory,
}

/// As long as our links stay when nobody uses them.
const IDLE: Duration = Duration::from_secs(60);

/// Where connections of that age between all nodes need more descriptors than a process has. What is in use stays.
const IDLE_CROWDED: Duration = Duration::from_secs(3);

/// Nodes up to which all may be connected to all over TCP.
const CROWD: usize = 128;

/// Orders that wait for a node.
const ORDERS: usize = 1024;

#[derive(NetworkBehaviour)]
struct Behaviour {
    kad: kad::Behaviour<MemoryStore>,
    identify: identify::Behaviour,
}

type Reply = oneshot::Sender<Result<Answer, String>>;

enum Order {
    Know(PeerId, Multiaddr),
    Bootstrap(Reply),
    Provide(Key, Reply),
    FindProviders(Key, Reply),
    FindClosest(Key, Reply),
    Connections(oneshot::Sender<usize>),
}

/// A query that the library has not ended yet.
struct Running {
    reply: Reply,
    began: Instant,
    first: Option<Duration>,
    providers: HashSet<PeerId>,
    rpcs: u32,
}

struct Nodes {
    orders: Vec<mpsc::Sender<Order>>,
    ids: Vec<PeerId>,
}

pub(crate) async fn start(how: Start, carrier: Carrier) -> Outcome<Started> {
    let mut nodes = Nodes { orders: Vec::new(), ids: Vec::new() };
    let mut first = None;
    for node in 0..how.nodes {
        let mut swarm = build(&how, node, carrier)?;
        swarm.listen_on(match carrier {
            Carrier::Tcp => "/ip4/127.0.0.1/tcp/0".parse()?,
            Carrier::Memory => format!("/memory/{}", node + 1).parse()?,
        })?;
        let addr = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        swarm.add_external_address(addr.clone());
        let id = *swarm.local_peer_id();
        let (orders, inbox) = mpsc::channel(ORDERS);
        tokio::spawn(run(swarm, inbox));
        if let Some((seed, addr)) = first.clone() {
            orders.send(Order::Know(seed, addr)).await?;
        } else {
            first = Some((id, addr));
        }
        nodes.orders.push(orders);
        nodes.ids.push(id);
    }
    let nodes = Arc::new(nodes);
    let failed = how.join_all(|node| {
        let nodes = Arc::clone(&nodes);
        Box::pin(async move { nodes.ask(node, Order::Bootstrap).await.map(drop) })
    });
    let failed = failed.await;
    Ok((nodes, failed))
}

fn build(how: &Start, node: usize, carrier: Carrier) -> Outcome<Swarm<Behaviour>> {
    let key = identity::Keypair::ed25519_from_bytes(how.secret(node))?;
    let behaviour = |key: &identity::Keypair| {
        let id = key.public().to_peer_id();
        let mut config = kad::Config::new(StreamProtocol::new("/bench/kad/1.0.0"));
        config.set_query_timeout(how.limit);
        let room =
            MemoryStoreConfig { max_provided_keys: 1 << 16, max_records: 1 << 16, ..Default::default() };
        let store = MemoryStore::with_config(id, room);
        let mut kad = kad::Behaviour::with_config(id, store, config);
        kad.set_mode(Some(kad::Mode::Server));
        let identify = identify::Behaviour::new(identify::Config::new("/bench/1".into(), key.public()));
        Behaviour { kad, identify }
    };
    let is_crowded = carrier == Carrier::Tcp && how.nodes > CROWD;
    let idle = if is_crowded { IDLE_CROWDED } else { IDLE };
    let builder = SwarmBuilder::with_existing_identity(key).with_tokio();
    Ok(match carrier {
        Carrier::Tcp => builder
            .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
            .with_behaviour(behaviour)?
            .with_swarm_config(|config| config.with_idle_connection_timeout(idle))
            .build(),
        Carrier::Memory => builder
            .with_other_transport(|key| {
                MemoryTransport::default()
                    .upgrade(Version::V1)
                    .authenticate(plaintext::Config::new(key))
                    .multiplex(yamux::Config::default())
            })?
            .with_behaviour(behaviour)?
            .with_swarm_config(|config| config.with_idle_connection_timeout(idle))
            .build(),
    })
}

/// The task of one node.
async fn run(mut swarm: Swarm<Behaviour>, mut inbox: mpsc::Receiver<Order>) {
    let mut running: HashMap<QueryId, Running> = HashMap::new();
    loop {
        tokio::select! {
            order = inbox.recv() => match order {
                Some(order) => begin(&mut swarm, order, &mut running),
                None => return,
            },
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                    peer_id, info, ..
                })) => {
                    for addr in info.listen_addrs {
                        swarm.behaviour_mut().kad.add_address(&peer_id, addr);
                    }
                }
                SwarmEvent::Behaviour(BehaviourEvent::Kad(event)) => progress(event, &mut running),
                _ => {}
            },
        }
    }
}

fn begin(swarm: &mut Swarm<Behaviour>, order: Order, running: &mut HashMap<QueryId, Running>) {
    let (begun, reply) = match order {
        Order::Know(id, addr) => {
            swarm.behaviour_mut().kad.add_address(&id, addr);
            return;
        }
        Order::Connections(reply) => {
            let _ = reply.send(swarm.network_info().connection_counters().num_established() as usize);
            return;
        }
        Order::Bootstrap(reply) => {
            (swarm.behaviour_mut().kad.bootstrap().map_err(|error| error.to_string()), reply)
        }
        Order::Provide(key, reply) => {
            let begun = swarm.behaviour_mut().kad.start_providing(RecordKey::new(&key));
            (begun.map_err(|error| error.to_string()), reply)
        }
        Order::FindProviders(key, reply) => {
            (Ok(swarm.behaviour_mut().kad.get_providers(RecordKey::new(&key))), reply)
        }
        Order::FindClosest(key, reply) => {
            (Ok(swarm.behaviour_mut().kad.get_closest_peers(key.to_vec())), reply)
        }
    };
    match begun {
        Ok(query) => {
            let began = Instant::now();
            let new = Running { reply, began, first: None, providers: HashSet::new(), rpcs: 0 };
            running.insert(query, new);
        }
        Err(error) => {
            let _ = reply.send(Err(error));
        }
    }
}

fn progress(event: kad::Event, running: &mut HashMap<QueryId, Running>) {
    let kad::Event::OutboundQueryProgressed { id, result, stats, step } = event else { return };
    let Some(query) = running.get_mut(&id) else { return };
    query.rpcs = query.rpcs.max(stats.num_requests());
    let (mut closest, mut error) = (Vec::new(), None);
    match result {
        QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })) => {
            if !providers.is_empty() {
                query.first.get_or_insert(query.began.elapsed());
            }
            query.providers.extend(providers);
        }
        QueryResult::GetClosestPeers(Ok(found)) => {
            closest = found.peers.iter().map(|peer| place(&peer.peer_id)).collect();
        }
        QueryResult::GetProviders(Err(why)) => error = Some(why.to_string()),
        QueryResult::GetClosestPeers(Err(why)) => error = Some(why.to_string()),
        QueryResult::StartProviding(Err(why)) => error = Some(why.to_string()),
        QueryResult::Bootstrap(Err(why)) => error = Some(why.to_string()),
        _ => {}
    }
    if !step.last {
        return;
    }
    let Some(query) = running.remove(&id) else { return };
    let found = query.providers.len().max(closest.len());
    let answer = Answer { found, first: query.first, rpcs: Some(query.rpcs as usize), closest };
    let _ = query.reply.send(error.map_or(Ok(answer), Err));
}

fn place(id: &PeerId) -> Place {
    bytes_of(&KBucketKey::from(*id))
}

fn bytes_of<T>(key: &KBucketKey<T>) -> Place {
    let mut place = [0; 32];
    place.copy_from_slice(key.hashed_bytes());
    place
}

impl Nodes {
    async fn ask(&self, node: usize, order: impl FnOnce(Reply) -> Order) -> Outcome<Answer> {
        let (reply, answer) = oneshot::channel();
        self.orders[node].send(order(reply)).await.map_err(|_| "the node has gone")?;
        Ok(answer.await??)
    }
}

impl Network for Nodes {
    fn abilities(&self) -> Abilities {
        Abilities { k: 20, has_providers: true, refreshes_at_join: true }
    }

    fn place_of_node(&self, node: usize) -> Place {
        place(&self.ids[node])
    }

    fn place_of_key(&self, key: &Key) -> Place {
        bytes_of(&KBucketKey::new(key.to_vec()))
    }

    fn provide(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(self.ask(node, move |reply| Order::Provide(key, reply)))
    }

    fn find_providers(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(self.ask(node, move |reply| Order::FindProviders(key, reply)))
    }

    fn find_closest(&self, node: usize, key: Key) -> Pending<'_, Answer> {
        Box::pin(self.ask(node, move |reply| Order::FindClosest(key, reply)))
    }

    fn connections(&self) -> Pending<'_, Option<usize>> {
        Box::pin(async move {
            let mut total = 0;
            for orders in &self.orders {
                let (reply, answer) = oneshot::channel();
                orders.send(Order::Connections(reply)).await.map_err(|_| "the node has gone")?;
                total += answer.await?;
            }
            Ok(Some(total))
        })
    }
}
