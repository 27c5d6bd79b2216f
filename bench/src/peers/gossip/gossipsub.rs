//! libp2p-gossipsub over TCP, Noise and Yamux: each node a task that owns its swarm, as programs on it are written.
//!
//! The library's defaults, except that the first heartbeat comes after a fifth of a second instead of five. Signed is
//! its default; anonymous, with the hash of the content as a message's id, is how it is used where content proves
//! itself.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use libp2p::{
    Multiaddr, Swarm, SwarmBuilder,
    gossipsub::{
        Behaviour, ConfigBuilder, Event, IdentTopic, Message, MessageAuthenticity, MessageId, PublishError,
        ValidationMode,
    },
    identity, noise,
    swarm::SwarmEvent,
    tcp, yamux,
};
use libp2p_gossipsub::MetricsConfig;
use ron_core::prometheus_client::{encoding::text, registry::Registry};
use tokio::sync::{mpsc, oneshot};

use super::{Counted, Hear, Network, Pending, Published, Start, TOPIC};
use crate::measure::Outcome;

/// Whether messages say who wrote them, and prove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authors {
    Signed,
    Anonymous,
}

/// Orders that wait for a node.
const ORDERS: usize = 1024;

/// Longer than any run.
const IDLE: Duration = Duration::from_secs(600);

const FIRST_HEARTBEAT: Duration = Duration::from_millis(200);

/// Messages that came in over links, duplicates among them, as the library calls them.
const COPIES: &str = "topic_msg_recv_counts_unfiltered_total";

enum Order {
    Publish(Bytes, oneshot::Sender<Published>),
    Neighbours(oneshot::Sender<usize>),
}

struct Nodes {
    orders: Vec<mpsc::Sender<Order>>,
    registries: Mutex<Vec<Registry>>,
    /// Messages that were not sent because a peer was slow.
    failed: Arc<AtomicU64>,
}

pub(crate) async fn start(how: Start, authors: Authors) -> Outcome<Arc<dyn Network>> {
    let failed = Arc::default();
    let (mut orders, mut registries, mut addrs) = (Vec::new(), Vec::new(), Vec::<Multiaddr>::new());
    for node in 0..how.nodes {
        let mut registry = Registry::default();
        let mut swarm = build(how.secret(node), authors, &mut registry)?;
        swarm.behaviour_mut().subscribe(&IdentTopic::new(TOPIC))?;
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
        let addr = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        for contact in how.contacts(node) {
            swarm.dial(addrs[contact].clone())?;
        }
        let (sender, inbox) = mpsc::channel(ORDERS);
        tokio::spawn(run(swarm, inbox, node, Arc::clone(&how.hear), Arc::clone(&failed)));
        addrs.push(addr);
        orders.push(sender);
        registries.push(registry);
    }
    Ok(Arc::new(Nodes { orders, registries: Mutex::new(registries), failed }))
}

fn build(secret: [u8; 32], authors: Authors, registry: &mut Registry) -> Outcome<Swarm<Behaviour>> {
    let behaviour = |key: &identity::Keypair| {
        let mut config = ConfigBuilder::default();
        config.heartbeat_initial_delay(FIRST_HEARTBEAT);
        let author = match authors {
            Authors::Signed => MessageAuthenticity::Signed(key.clone()),
            Authors::Anonymous => {
                config.validation_mode(ValidationMode::Anonymous).message_id_fn(|message: &Message| {
                    let mut hasher = DefaultHasher::new();
                    message.data.hash(&mut hasher);
                    MessageId::from(hasher.finish().to_le_bytes().to_vec())
                });
                MessageAuthenticity::Anonymous
            }
        };
        let behaviour = Behaviour::new(author, config.build()?)?;
        Ok(behaviour.with_metrics(registry, MetricsConfig::default()))
    };
    let key = identity::Keypair::ed25519_from_bytes(secret)?;
    Ok(SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_behaviour(behaviour)?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE))
        .build())
}

/// The task of one node.
async fn run(
    mut swarm: Swarm<Behaviour>,
    mut inbox: mpsc::Receiver<Order>,
    node: usize,
    hear: Hear,
    failed: Arc<AtomicU64>,
) {
    let topic = IdentTopic::new(TOPIC);
    loop {
        tokio::select! {
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(Event::Message { message, .. }) => hear(node, &message.data),
                SwarmEvent::Behaviour(Event::SlowPeer { failed_messages, .. }) => {
                    let dropped = failed_messages.priority + failed_messages.non_priority;
                    failed.fetch_add(dropped as u64, Relaxed);
                }
                _ => {}
            },
            order = inbox.recv() => match order {
                Some(Order::Publish(message, reply)) => {
                    let published = match swarm.behaviour_mut().publish(topic.clone(), message) {
                        Ok(_) => Published::Taken,
                        Err(PublishError::AllQueuesFull(_)) => Published::Refused,
                        Err(_) => Published::Failed,
                    };
                    let _ = reply.send(published);
                }
                Some(Order::Neighbours(reply)) => {
                    let _ = reply.send(swarm.behaviour().mesh_peers(&topic.hash()).count());
                }
                None => return,
            },
        }
    }
}

impl Network for Nodes {
    fn publish(&self, node: usize, message: Bytes) -> Pending<'_, Published> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            if self.orders[node].send(Order::Publish(message, reply)).await.is_err() {
                return Published::Failed;
            }
            answer.await.unwrap_or(Published::Failed)
        })
    }

    fn counted(&self) -> Pending<'_, Outcome<Counted>> {
        let copies = |registry: &Registry| {
            let mut told = String::new();
            let _ = text::encode(&mut told, registry);
            let lines = told.lines().filter(|line| line.starts_with(COPIES));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        };
        let registries = self.registries.lock().unwrap_or_else(PoisonError::into_inner);
        let counted =
            Counted { copies: registries.iter().map(copies).sum(), told: self.failed.load(Relaxed) };
        Box::pin(std::future::ready(Ok(counted)))
    }

    fn neighbours(&self) -> Pending<'_, Outcome<usize>> {
        Box::pin(async move {
            let mut total = 0;
            for orders in &self.orders {
                let (reply, answer) = oneshot::channel();
                orders.send(Order::Neighbours(reply)).await.map_err(|_| "the node has gone")?;
                total += answer.await?;
            }
            Ok(total)
        })
    }
}
