//! Whole nodes on a simulated network: made, killed, added, and asked who is really nearest to what.

use std::{
    fmt,
    num::NonZeroUsize,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ron_core::{Metrics, NodeId, Stopped, Supervisor, net::Identity, now};
use tokio::time::Instant;

use super::{Conditions, SimNetwork};
use crate::{Contact, Dht, Key, Settings};

/// Seeds that a node is given, of those that were there before it. More than one, because some will have died.
const SEEDS: usize = 3;

/// Seconds since 1970 when a network begins. The system's clock would make each run another one: what is issued within a
/// second, and what in the next, is ordered by it.
const EPOCH: u64 = 1_767_225_600;

/// How long a node may take to be ready, on the simulated clock, before its test goes on without it.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// How often it is looked whether nodes are ready.
const READY_POLL: Duration = Duration::from_millis(250);

/// Nodes that join at once, at most: as many as there are already. A network that doubles in one step has half of its
/// neighbours unaware of the other half.
const JOINING_MAX: usize = 512;

/// How a [`Testnet`] is made.
#[derive(Debug, Clone)]
pub struct TestnetBuilder {
    nodes: usize,
    seed: u64,
    settings: Settings,
    conditions: Conditions,
}

impl TestnetBuilder {
    /// Where all chance comes from. Default 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The knobs of every node. Default: [`Testnet::settings`].
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// How messages travel.
    #[must_use]
    pub fn conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// Starts the nodes, a few and then ever more at a time, and waits until they are ready.
    ///
    /// # Panics
    /// If the settings make no sense.
    pub async fn build(self) -> Testnet {
        let TestnetBuilder { nodes, seed, settings, conditions } = self;
        let net = SimNetwork::new(seed);
        net.set_conditions(conditions);
        let mut testnet = Testnet {
            net,
            settings,
            rng: fastrand::Rng::with_seed(seed),
            began: now(),
            metrics: Metrics::default(),
            members: Vec::with_capacity(nodes),
            live: Vec::with_capacity(nodes),
        };
        while testnet.members.len() < nodes {
            let there = testnet.members.len();
            let joining = there.clamp(1, JOINING_MAX).min(nodes - there);
            let joined: Vec<usize> = (0..joining).map(|_| testnet.start()).collect();
            testnet.ready(&joined).await;
        }
        testnet
    }
}

/// Nodes of one network in one process. Numbers stay with their nodes: a killed one leaves its number empty.
pub struct Testnet {
    net: SimNetwork,
    settings: Settings,
    rng: fastrand::Rng,
    /// When it was [`EPOCH`] on every node's wall.
    began: Instant,
    metrics: Metrics,
    members: Vec<Member>,
    /// The servers that are not killed, in order of their ids.
    live: Vec<(NodeId, usize)>,
}

struct Member {
    id: NodeId,
    running: Option<(Dht, Supervisor)>,
}

impl Testnet {
    /// A network of so many nodes.
    #[must_use]
    pub fn builder(nodes: usize) -> TestnetBuilder {
        TestnetBuilder { nodes, seed: 1, settings: Self::settings(), conditions: Conditions::default() }
    }

    /// The default knobs with less memory: few searches at once, and few peers remembered for their limits.
    #[must_use]
    pub fn settings() -> Settings {
        Settings {
            workers: const { NonZeroUsize::new(2).expect("two is not zero") },
            peers_remembered: 64,
            ..Settings::default()
        }
    }

    /// The node of this number.
    ///
    /// # Panics
    /// If it was killed, or never was.
    #[must_use]
    pub fn node(&self, number: usize) -> &Dht {
        self.get(number).expect("the node was killed")
    }

    /// The node of this number, unless it was killed.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Dht> {
        self.members[number].running.as_ref().map(|(dht, _)| dht)
    }

    /// What the node of this number runs under.
    ///
    /// # Panics
    /// If it was killed, or never was.
    #[must_use]
    pub fn supervisor(&self, number: usize) -> &Supervisor {
        self.members[number].running.as_ref().map(|(_, host)| host).expect("the node was killed")
    }

    /// The numbers of the nodes that were not killed.
    pub fn live(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.members.iter().enumerate().filter(|(_, member)| member.running.is_some()).map(|(at, _)| at)
    }

    /// The id of the node of this number, even after its end.
    #[must_use]
    pub fn id(&self, number: usize) -> NodeId {
        self.members[number].id
    }

    /// The network between them.
    #[must_use]
    pub fn net(&self) -> &SimNetwork {
        &self.net
    }

    /// The counters of all nodes together.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// For chances of the test's own, out of the same seed.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.rng
    }

    /// Starts one more node, like the others, that knows some of them. Does not wait for it.
    ///
    /// # Panics
    /// If the settings make no sense.
    pub fn start(&mut self) -> usize {
        self.start_with(self.settings.clone())
    }

    /// [`start`](Self::start) with knobs of its own.
    ///
    /// # Panics
    /// If the settings make no sense.
    pub fn start_with(&mut self, settings: Settings) -> usize {
        let number = self.members.len();
        let mut key = [0; 32];
        self.rng.fill(&mut key);
        let identity = Arc::new(Identity::from_seed(&key));
        let id = identity.node_id();
        let host = Supervisor::builder("node")
            .inline_blocking(true)
            .seed(self.rng.u64(..))
            .metrics(self.metrics.clone())
            .start();
        let is_server = settings.server;
        let began = self.began;
        let unix = move || EPOCH + now().saturating_duration_since(began).as_secs();
        let builder = Dht::builder().settings(settings).seed(self.rng.u64(..)).unix_clock(unix);
        let builder = builder.seeds(self.seeds());
        let net = self.net.clone();
        let started = builder.start_on(identity, &host, |answers, _| Ok(Arc::new(net.join(id, answers))));
        // Only a disk is waited for, and there is none.
        let started = std::pin::pin!(started).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(started) = started else { unreachable!("a node without a disk starts at once") };
        let dht = started.expect("the settings make sense");
        self.members.push(Member { id, running: Some((dht, host)) });
        if is_server {
            let at = self.live.partition_point(|(other, _)| *other < id);
            self.live.insert(at, (id, number));
        }
        number
    }

    /// Starts one more node and waits until it is ready.
    ///
    /// # Panics
    /// If the settings make no sense.
    pub async fn add(&mut self) -> usize {
        let number = self.start();
        self.ready(&[number]).await;
        number
    }

    /// Waits until these nodes are ready, or for two minutes of their time.
    pub async fn ready(&self, numbers: &[usize]) {
        let mut waited = Duration::ZERO;
        let mut waiting: Vec<usize> = numbers.to_vec();
        while waited < READY_TIMEOUT {
            waiting.retain(|number| self.get(*number).is_some_and(|dht| !dht.ready().reads));
            if waiting.is_empty() {
                return;
            }
            tokio::time::sleep(READY_POLL).await;
            waited += READY_POLL;
        }
    }

    /// Ends a node as a power failure would: at once, and nobody is told.
    pub async fn kill(&mut self, number: usize) {
        let Member { id, running } = &mut self.members[number];
        let Some((dht, host)) = running.take() else { return };
        self.net.kill(id);
        self.live.retain(|(_, other)| *other != number);
        drop(dht);
        host.abort();
        host.shutdown().await;
    }

    /// From now on this node takes every question and answers none.
    pub fn silence(&self, number: usize) {
        self.net.silence(&self.members[number].id, true);
    }

    /// The `count` servers that are really nearest to `key`, the nearest first, whoever knows of them.
    #[must_use]
    pub fn closest(&self, key: impl Into<Key>, count: usize) -> Vec<NodeId> {
        let key = key.into();
        let shared = |at: usize| key.distance(&self.live[at].0).leading_zeros();
        let place = self.live.partition_point(|(id, _)| id.as_bytes() < key.as_bytes());
        // Ids in order: those that share the most bits with the key are around its place.
        let (mut start, mut end) = (place, place);
        while end - start < count.min(self.live.len()) {
            let before = start.checked_sub(1).map(shared);
            let after = (end < self.live.len()).then(|| shared(end));
            let bits = before.max(after).expect("fewer than all");
            while start > 0 && shared(start - 1) >= bits {
                start -= 1;
            }
            while end < self.live.len() && shared(end) >= bits {
                end += 1;
            }
        }
        let mut near: Vec<NodeId> = self.live[start..end].iter().map(|(id, _)| *id).collect();
        near.sort_by_key(|id| key.distance(id));
        near.truncate(count);
        near
    }

    /// Stops all nodes, as they stop when they are asked to.
    pub async fn shutdown(self) -> Stopped {
        let mut total = Stopped::default();
        let hosts: Vec<Supervisor> =
            self.members.into_iter().filter_map(|member| Some(member.running?.1)).collect();
        hosts.iter().for_each(Supervisor::request_stop);
        for host in hosts {
            let stopped = host.shutdown().await;
            total.drained += stopped.drained;
            total.aborted += stopped.aborted;
            total.elapsed = total.elapsed.max(stopped.elapsed);
        }
        total
    }

    fn seeds(&mut self) -> Vec<Contact> {
        let mut seeds: Vec<usize> = Vec::with_capacity(SEEDS);
        for _ in 0..SEEDS.min(self.live.len()) {
            let (_, number) = self.live[self.rng.usize(..self.live.len())];
            if !seeds.contains(&number) {
                seeds.push(number);
            }
        }
        seeds.into_iter().filter_map(|number| Some(self.get(number)?.contact())).collect()
    }
}

impl fmt::Debug for Testnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testnet")
            .field("live", &self.live.len())
            .field("net", &self.net)
            .finish_non_exhaustive()
    }
}
