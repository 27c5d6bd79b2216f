//! Networks that carry messages from one node to all others, made in each way that is compared.

pub(crate) mod flood;
pub(crate) mod gossipsub;
#[cfg(feature = "iroh")]
pub(crate) mod iroh;
pub(crate) mod ron;

use std::{collections::BTreeSet, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::measure::Outcome;

/// A call under way.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a node does with every message that it gives to its program: its number, and the message.
pub(crate) type Hear = Arc<dyn Fn(usize, &[u8]) + Send + Sync>;

/// What became of a call to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    Taken,
    /// It was said that there is no room now.
    Refused,
    Failed,
}

/// What all nodes together say of themselves since they were started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    /// Messages that came in over links, every copy of them.
    pub(crate) copies: u64,
    /// Messages that somebody was told will not come: dropped from a queue, or skipped for a subscriber.
    pub(crate) told: u64,
}

/// Nodes that are joined in one topic.
pub(crate) trait Network: Send + Sync {
    /// Publishes on the topic, and does not wait until it is delivered.
    fn publish(&self, node: usize, message: Bytes) -> Pending<'_, Published>;

    fn counted(&self) -> Pending<'_, Outcome<Counted>>;

    /// Peers that a node has in the topic, over all nodes.
    fn neighbours(&self) -> Pending<'_, Outcome<usize>>;
}

/// How a network is to be started.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) nodes: usize,
    /// Earlier nodes that each node is told of.
    pub(crate) contacts: usize,
    /// Decides whom, and the keys where the library lets us.
    pub(crate) seed: u64,
    pub(crate) hear: Hear,
}

impl Start {
    /// The bytes from which the key of this node is made.
    pub(crate) fn secret(&self, node: usize) -> [u8; 32] {
        let mut secret = [0; 32];
        self.chance(node).fill(&mut secret);
        secret
    }

    /// Whom this node is told of: the same for all contenders in a round.
    pub(crate) fn contacts(&self, node: usize) -> BTreeSet<usize> {
        let mut chance = self.chance(node);
        let mut contacts = BTreeSet::new();
        while contacts.len() < self.contacts.min(node) {
            contacts.insert(chance.usize(..node));
        }
        contacts
    }

    fn chance(&self, node: usize) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_mul(0x1_0001).wrapping_add(node as u64))
    }
}

/// The topic that everybody is in.
const TOPIC: &str = "bench";

/// Their names. The last needs much time to build, and is there with the feature `iroh`.
pub(crate) const CONTENDERS: &[&str] = &[
    "ron-signed",
    "ron-unsigned",
    "gossipsub-signed",
    "gossipsub-anonymous",
    "flood",
    #[cfg(feature = "iroh")]
    "iroh-gossip",
];

pub(crate) async fn start(name: &str, how: Start) -> Outcome<Arc<dyn Network>> {
    match name {
        "ron-signed" => ron::start(how, ron::Authors::Signed).await,
        "ron-unsigned" => ron::start(how, ron::Authors::Claimed).await,
        "gossipsub-signed" => gossipsub::start(how, gossipsub::Authors::Signed).await,
        "gossipsub-anonymous" => gossipsub::start(how, gossipsub::Authors::Anonymous).await,
        "flood" => flood::start(how).await,
        #[cfg(feature = "iroh")]
        "iroh-gossip" => iroh::start(how).await,
        other => Err(format!("no contender {other}").into()),
    }
}
