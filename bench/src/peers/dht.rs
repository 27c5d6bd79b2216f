//! Whole networks of one DHT or another in this process, all driven through one trait.

mod discv5;
mod libp2p;
mod mainline;
mod memory;
mod ron;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};

use crate::measure::Outcome;

/// What is looked for. Contenders with a smaller space use its beginning.
pub(crate) type Key = [u8; 32];

/// A point in a contender's own space of ids, filled with zeros at its end if that space is smaller.
pub(crate) type Place = [u8; 32];

/// A call under way.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'a>>;

/// What came of one search.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Providers, or nodes.
    pub(crate) found: usize,
    /// Until the first provider.
    pub(crate) first: Option<Duration>,
    /// Questions asked, where the library tells.
    pub(crate) rpcs: Option<usize>,
    /// The nodes nearest to the key.
    pub(crate) closest: Vec<Place>,
}

/// What a contender can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    /// Nodes that a search for the nearest ones returns.
    pub(crate) k: usize,
    /// Whether it keeps provider records.
    pub(crate) has_providers: bool,
    /// Whether joining already looks into every bucket, so that nobody has to do that for it.
    pub(crate) refreshes_at_join: bool,
}

/// Nodes that have joined each other through the first of them.
pub(crate) trait Network: Send + Sync {
    fn abilities(&self) -> Abilities;

    fn place_of_node(&self, node: usize) -> Place;

    fn place_of_key(&self, key: &Key) -> Place;

    /// Says that `node` provides `key`, to everybody who should know.
    fn provide(&self, node: usize, key: Key) -> Pending<'_, Answer>;

    /// Asks for providers until the library ends the search by itself.
    fn find_providers(&self, node: usize, key: Key) -> Pending<'_, Answer>;

    /// Asks for the nodes nearest to `key`.
    fn find_closest(&self, node: usize, key: Key) -> Pending<'_, Answer>;

    /// Ends of connections that are open, over all nodes; nothing where there is no such thing.
    fn connections(&self) -> Pending<'_, Option<usize>>;
}

/// How a network is to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) nodes: usize,
    /// Of these, the first so many will ask. All others only answer, and may keep fewer connections.
    pub(crate) askers: usize,
    /// Decides ids where the library lets us.
    pub(crate) seed: u64,
    /// What joining may take, all nodes together.
    pub(crate) limit: Duration,
}

/// Nodes that join at the same time.
pub(crate) const JOINING: usize = 32;

impl Start {
    /// The bytes from which the key of this node is made.
    pub(crate) fn secret(&self, node: usize) -> [u8; 32] {
        let mut rng = fastrand::Rng::with_seed(self.seed.wrapping_mul(0x1_0001).wrapping_add(node as u64));
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        secret
    }

    /// Runs `join` for every node but the first, some at a time, and says how many did not make it.
    pub(crate) async fn join_all<'a>(&self, join: impl Fn(usize) -> Pending<'a, ()>) -> usize {
        let began = std::time::Instant::now();
        let one = |node| {
            let joined = join(node);
            async move {
                let left = self.limit.saturating_sub(began.elapsed());
                !matches!(tokio::time::timeout(left, joined).await, Ok(Ok(())))
            }
        };
        let failed = stream::iter(1..self.nodes).map(one).buffer_unordered(JOINING);
        failed.filter(|has_failed| std::future::ready(*has_failed)).count().await
    }
}

/// A network, and how many of its nodes did not finish joining.
pub(crate) type Started = (Arc<dyn Network>, usize);

/// Their names.
pub(crate) const CONTENDERS: [&str; 6] =
    ["ron-tls", "libp2p-tcp", "ron-mem", "libp2p-mem", "mainline", "discv5"];

pub(crate) async fn start(name: &str, how: Start) -> Outcome<Started> {
    match name {
        "ron-tls" => ron::start(how, ron::Carrier::Tls).await,
        "ron-mem" => ron::start(how, ron::Carrier::Memory).await,
        "libp2p-tcp" => libp2p::start(how, libp2p::Carrier::Tcp).await,
        "libp2p-mem" => libp2p::start(how, libp2p::Carrier::Memory).await,
        "mainline" => mainline::start(how).await,
        "discv5" => discv5::start(how).await,
        other => Err(format!("no contender {other}").into()),
    }
}
