//! What a host holds: a node of the DHT.

use std::{
    fmt,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Affects, Capacity, Deadline, Inbox, Lane, LaneSpec, Metrics, NodeId, Pool, PoolSpec, ReadyStatus,
    Restart, Stopped, Subscriber, Supervisor, TaskSpec,
    net::{BoxFuture, Endpoint, Identity, PublicKey},
};

use crate::{
    DhtError, Preset, Settings,
    actor::{BOOTSTRAPPER, Gates, bootstrap, ping_all},
    logic::{
        Contact, Key,
        lookup::{Goal, Verdict},
        signed::Value,
        table::Entry,
        wire::Want,
    },
    metrics::NOT_READY,
    network::{Answers, Links, Network, peers_settings},
    node::{Node, PINGER},
    publish::{Provider, Published},
    search::{Nearest, Plan, search},
};

pub(crate) const WORK: LaneSpec = LaneSpec::new("ron-dht", "work", 512)
    .flow("callers → lookup pool")
    .why("half a second of searches at a thousand a second; more would wait longer than anybody does");

pub(crate) const LOOKUP: TaskSpec = TaskSpec::new("ron-dht", "lookup")
    .restart(Restart::Never)
    .what("runs one search at a time; a search that panics is told to its caller and the worker lives on");

pub(crate) const FOUND: LaneSpec = LaneSpec::new("ron-dht", "found", 64)
    .flow("one search → its caller")
    .why("a caller that reads slowly holds its own search up, and nobody else's");

/// Past its deadline a search has this long to say what it found.
const GRACE: Duration = Duration::from_millis(50);

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The table was refreshed.
    Refreshed {
        /// Buckets that have peers.
        buckets: usize,
        /// Peers in all.
        peers: usize,
    },
    /// One of our records was stored.
    Provided {
        /// Under this key.
        key: Key,
        /// On so many peers.
        kept: usize,
    },
}

/// How a node is made. See [`Dht::builder`].
#[derive(Debug, Default)]
pub struct Builder {
    seeds: Vec<Contact>,
    external: Vec<SocketAddr>,
    settings: Settings,
    seed: Option<u64>,
    metrics: Option<Metrics>,
}

impl Builder {
    /// Nodes to begin with. Without any, the node waits for others to come.
    #[must_use]
    pub fn seeds(mut self, seeds: impl IntoIterator<Item = Contact>) -> Self {
        self.seeds.extend(seeds);
        self
    }

    /// Where others can reach this node, if it is not where its endpoint listens.
    #[must_use]
    pub fn external(mut self, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.external.extend(addrs);
        self
    }

    /// The kind of network. [`Preset::Dev`] without it.
    #[must_use]
    pub fn preset(mut self, preset: Preset) -> Self {
        self.settings.preset = preset;
        self
    }

    /// Asks and is not asked: for programs that come and go.
    #[must_use]
    pub fn client(mut self) -> Self {
        self.settings.server = false;
        self
    }

    /// Other knobs than the default ones. Replaces what was set before.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where its counters go, usually `Metrics::register("ron_dht", &mut registry)`. To the supervisor's without it.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Where randomness begins, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Starts the node on `endpoint`, in a group of its own under `supervisor`.
    ///
    /// # Errors
    /// [`DhtError::Config`] for settings that make no sense, [`DhtError::Net`] if the endpoint has a DHT already.
    pub fn start(self, endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Dht, DhtError> {
        let identity = Arc::new(endpoint.identity().clone());
        let external = self.external.clone();
        let settings = &self.settings;
        let links = peers_settings(settings.sessions_max, settings.rpc_timeout, settings.drain);
        self.start_on(identity, supervisor, |answers, group| {
            Ok(Arc::new(Links::start(endpoint, answers, links, external, group)?))
        })
    }

    /// Starts the node on another network than an endpoint's links.
    ///
    /// # Errors
    /// As [`start`](Self::start), and what `network` says.
    pub fn start_on(
        self,
        identity: Arc<Identity>,
        supervisor: &Supervisor,
        network: impl FnOnce(Weak<dyn Answers>, &Supervisor) -> Result<Arc<dyn Network>, DhtError>,
    ) -> Result<Dht, DhtError> {
        let Builder { seeds, settings, seed, metrics, .. } = self;
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("dht", settings.drain, metrics);
        let (node, pings) = Node::new(identity, settings, seed, &group)?;
        let answers: Weak<dyn Answers> = node.this.clone();
        node.connect(network(answers, &group)?);

        let lane = WORK.with_capacity(Capacity::new("work_lane", node.settings.work_lane)?);
        let spec = PoolSpec { lane, task: LOOKUP, workers: node.settings.workers };
        let pool = Pool::start(&group, spec, |job: Job, _| job());
        let ready = supervisor.ready();
        let gates = Arc::new(Gates {
            seeds: ready.gate("dht.seeds", Affects::Reads),
            buckets: ready.gate("dht.buckets", Affects::Reads),
        });
        let (pinged, inbox) = (Arc::clone(&node), pings);
        // These tasks are boxed, or every layer around them would have room for them.
        let _ = group.spawn_restarting(PINGER, move |stop| {
            Box::pin(ping_all(Arc::clone(&pinged), inbox.clone(), stop))
        });
        let (booted, seeds) = (Arc::clone(&node), Arc::<[Contact]>::from(seeds));
        let _ = group.spawn_restarting(BOOTSTRAPPER, move |stop| {
            Box::pin(bootstrap(Arc::clone(&booted), Arc::clone(&seeds), Arc::clone(&gates), seed, stop))
        });
        Ok(Dht { node, pool, group })
    }
}

type Job = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// A node of the DHT. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Dht {
    pub(crate) node: Arc<Node>,
    pool: Pool<Job, ()>,
    group: Supervisor,
}

/// The peers nearest to a key, and how they were found.
#[derive(Debug, Clone)]
pub struct Closest {
    /// Nearest first.
    pub peers: Vec<Contact>,
    /// How the search went: who was asked, and what they said.
    pub verdict: Verdict,
}

impl Dht {
    /// A node of the DHT.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The peers nearest to `target`: a node's id, or any other key.
    ///
    /// # Errors
    /// [`DhtError::NotReady`] with nobody to ask, [`DhtError::Busy`] when too many searches wait. A search that is cut
    /// short by its deadline is not an error: its verdict says so.
    pub async fn find_node(&self, target: impl Into<Key>, deadline: Deadline) -> Result<Closest, DhtError> {
        let plan = self.plan(target.into(), Goal::Closest, deadline)?;
        let target = plan.target;
        let verdict = self.run("find_node", deadline, move |node| async move {
            search(&node, plan, &mut Nearest(target)).await
        });
        let verdict = verdict.await?;
        Ok(Closest { peers: verdict.closest.clone(), verdict })
    }

    /// Those who provide `key`, as they are found: the first usually long before the search is over. It ends when
    /// `enough` were found, or everybody near the key was asked, or the deadline passed; [`Found::verdict`] says which.
    /// Dropping it calls the search off.
    ///
    /// # Errors
    /// [`DhtError::NotReady`] with nobody to ask. What happens later is told by [`Found::next`].
    pub fn find_providers(
        &self,
        key: impl Into<Key>,
        enough: NonZeroUsize,
        deadline: Deadline,
    ) -> Result<Found, DhtError> {
        let plan = self.plan(key.into(), Goal::Found(enough), deadline)?;
        let (lane, inbox) = Lane::open(FOUND, &self.node.metrics);
        let dht = self.clone();
        let search = async move {
            let searched = dht.run("find_providers", deadline, move |node| async move {
                node.find_providers(plan, enough, lane).await
            });
            searched.await
        };
        Ok(Found { inbox, search: Some(Box::pin(search)), verdict: None })
    }

    /// Says that this node provides `key`, to the peers nearest to it, and says so again every
    /// [`republish`](Settings::republish) until [`withdraw`](Self::withdraw).
    ///
    /// # Errors
    /// [`DhtError::NotKept`] when no peer took the record, [`DhtError::NotReady`], [`DhtError::Busy`],
    /// [`DhtError::Timeout`].
    pub async fn provide(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Published, DhtError> {
        let plan = self.plan(key.into(), Goal::Closest, deadline)?;
        self.node.schedule.lock().add(plan.target);
        self.run("provide", deadline, move |node| async move { node.provide(plan).await }).await?
    }

    /// Takes back that this node provides `key`.
    ///
    /// # Errors
    /// As [`provide`](Self::provide).
    pub async fn withdraw(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Published, DhtError> {
        let plan = self.plan(key.into(), Goal::Closest, deadline)?;
        self.run("withdraw", deadline, move |node| async move { node.withdraw(plan).await }).await?
    }

    /// Stores `data` under its hash, and returns that.
    ///
    /// # Errors
    /// [`DhtError::Record`] if it is larger than 16 KiB; else as [`provide`](Self::provide).
    pub async fn put(&self, data: &[u8], deadline: Deadline) -> Result<Key, DhtError> {
        let value = Value::immutable(data, self.node.ttl())?;
        let key = value.key();
        let plan = self.plan(key, Goal::Closest, deadline)?;
        self.run("put", deadline, move |node| async move { node.put(plan, value, None).await }).await??;
        Ok(key)
    }

    /// The data whose hash is `key`.
    ///
    /// # Errors
    /// [`DhtError::NotFound`] when the peers near the key do not have it; else as [`find_node`](Self::find_node).
    pub async fn get(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Bytes, DhtError> {
        let enough = NonZeroUsize::MIN;
        let plan = self.plan(key.into(), Goal::Found(enough), deadline)?;
        let found =
            self.run("get", deadline, move |node| async move { node.get(plan, Want::Immutable).await });
        found.await?.map(|value| value.data().clone()).ok_or(DhtError::NotFound)
    }

    /// Stores `data` under this node's key and `salt`, as number `seq`, which must grow with every change. With
    /// `expected`, only where that number, or nothing, is held: two writers that read the same do not overwrite each
    /// other.
    ///
    /// # Errors
    /// [`DhtError::Conflict`] when peers hold another number than expected or a newer one; else as [`put`](Self::put).
    pub async fn put_mutable(
        &self,
        salt: &[u8],
        data: &[u8],
        seq: u64,
        expected: Option<u64>,
        deadline: Deadline,
    ) -> Result<Key, DhtError> {
        let value = Value::mutable(&self.node.identity, salt, seq, data, self.node.ttl())?;
        let key = value.key();
        let plan = self.plan(key, Goal::Closest, deadline)?;
        self.run("put_mutable", deadline, move |node| async move { node.put(plan, value, expected).await })
            .await??;
        Ok(key)
    }

    /// The newest that the owner of `public_key` stored under `salt`, as far as the peers near it know.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_mutable(
        &self,
        public_key: &PublicKey,
        salt: &[u8],
        deadline: Deadline,
    ) -> Result<Value, DhtError> {
        let plan = self.plan(Value::mutable_key(public_key, salt), Goal::Closest, deadline)?;
        let found =
            self.run("get_mutable", deadline, move |node| async move { node.get(plan, Want::Mutable).await });
        found.await?.ok_or(DhtError::NotFound)
    }

    /// Who this node is.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// The key under which this node's mutable values are found.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.node.identity.public_key()
    }

    /// This node as others know it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { id: self.node.id, addrs: self.node.network().listening().into() }
    }

    /// The peers of the routing table.
    #[must_use]
    pub fn peers(&self) -> Vec<Entry> {
        self.node.buckets.peers()
    }

    /// How many nodes there seem to be; nothing before the first search.
    #[must_use]
    pub fn network_size(&self) -> Option<f64> {
        self.node.estimate.lock().nodes()
    }

    /// Whether the node is ready, and if not, why.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.group.ready().status()
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<Event> {
        self.node.events.subscribe()
    }

    /// Takes no new searches, lets running ones finish for as long as the settings allow, and stops.
    /// Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }

    fn plan(&self, target: Key, goal: Goal, deadline: Deadline) -> Result<Plan, DhtError> {
        if self.node.buckets.filled() == 0 {
            let phase = if self.node.stop().is_requested() { "drain" } else { "bootstrap" };
            self.node.metrics.tally(NOT_READY, phase).add(1);
            return Err(DhtError::NotReady { gate: "dht.seeds" });
        }
        Ok(Plan { target, goal, settings: self.node.settings.lookup, deadline, is_sample: false })
    }

    /// Runs a job in the lookup pool.
    async fn run<T, F>(
        &self,
        op: &'static str,
        deadline: Deadline,
        job: impl FnOnce(Arc<Node>) -> F + Send + 'static,
    ) -> Result<T, DhtError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let (node, into) = (Arc::clone(&self.node), Arc::clone(&slot));
        let job: Job = Box::new(move || {
            Box::pin(async move {
                let done = job(node).await;
                *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            })
        });
        // A search ends itself at its deadline and says what it has.
        let deadline = Deadline::at(deadline.instant() + GRACE);
        self.pool.call(op, job, deadline).await?;
        let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.ok_or(DhtError::Canceled)
    }
}

/// Providers as they are found.
pub struct Found {
    inbox: Inbox<Provider>,
    search: Option<BoxFuture<'static, Result<Verdict, DhtError>>>,
    verdict: Option<Verdict>,
}

impl Found {
    /// The next provider; `None` when the search is over. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What kept the search from running, once.
    pub async fn next(&mut self) -> Result<Option<Provider>, DhtError> {
        if let Some(search) = &mut self.search {
            let ended = tokio::select! {
                biased;
                Some(provider) = self.inbox.recv() => return Ok(Some(provider)),
                ended = search => ended,
            };
            self.search = None;
            self.verdict = Some(ended?);
        }
        Ok(self.inbox.try_recv())
    }

    /// How the search went, once it is over.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

impl fmt::Debug for Dht {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dht").field("node", &self.node.id).finish_non_exhaustive()
    }
}
