//! How a node is made: what it is given, whether that makes sense, and what runs from then on.

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use ron_core::{
    Affects, Capacity, ConfigError, Metrics, Pool, PoolSpec, Supervisor,
    disk::Disk,
    net::{Endpoint, Identity},
    now,
};

use crate::{
    Dht, DhtError, Preset, Settings,
    actor::{BOOTSTRAPPER, Beginning, Gates, bootstrap, ping_all},
    handle::{Job, LOOKUP, READS_AT, WORK, WRITES_AT},
    keeping::{KEEPER, Keeping, keep},
    logic::Contact,
    network::{Answers, Links, Network, peers_settings},
    node::{Node, PINGER, Parts, UnixClock},
    republish::{REPUBLISHER, republish},
    store::Clock,
};

/// How a node is made. See [`Dht::builder`].
#[derive(Default)]
pub struct Builder {
    seeds: Vec<Contact>,
    external: Vec<SocketAddr>,
    settings: Settings,
    /// Beside the settings, so that it holds in whatever order it is said.
    is_client: bool,
    data: Option<(Arc<dyn Disk>, PathBuf)>,
    seed: Option<u64>,
    unix: Option<UnixClock>,
    metrics: Option<Metrics>,
}

impl Builder {
    /// Nodes to begin with. Without any, the node waits for others to come.
    #[must_use]
    pub fn seeds(mut self, seeds: impl IntoIterator<Item = Contact>) -> Self {
        self.seeds.extend(seeds);
        self
    }

    /// Where others can reach this node, if it is not where its endpoint listens: behind a forwarded port, and whenever
    /// the endpoint listens on `0.0.0.0` or `::`, which nobody can dial and peers do not pass on.
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

    /// Asks and is not asked: for programs that come and go. Holds whatever [`settings`](Self::settings) say.
    #[must_use]
    pub fn client(mut self) -> Self {
        self.is_client = true;
        self
    }

    /// Keeps records, the schedule for publishing our own keys, and the contacts to try first after a restart in directory
    /// `path` of `disk`, usually `Arc::new(RealDisk::open(dir)?)` of [`ron_core::disk`]. A peer is then told `Kept` only
    /// once the record is on disk. Without it, everything is in memory only. A node that restarts at another address
    /// publishes all its keys again at once, because the old records name the old address.
    #[must_use]
    pub fn data(mut self, disk: Arc<dyn Disk>, path: impl Into<PathBuf>) -> Self {
        self.data = Some((disk, path.into()));
        self
    }

    /// Other knobs than the default ones. Replaces what was set before, the [preset](Self::preset) included; only
    /// [`client`](Self::client) stays.
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

    /// What tells the seconds since 1970, instead of the system: for simulations and tests on a pretended clock.
    #[must_use]
    pub fn unix_clock(mut self, unix_secs: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.unix = Some(Arc::new(unix_secs));
        self
    }

    /// Starts the node on `endpoint`, in a group of its own under `supervisor`. It waits only for the disk, if there is
    /// one; that the node is part of a network is told by [`Dht::ready`]. Dropping the future starts nothing.
    ///
    /// # Errors
    /// [`DhtError::Config`] for settings that make no sense and for a server without an address that others can dial,
    /// [`DhtError::Net`] if the endpoint has a DHT already, [`DhtError::Store`] if the disk cannot be read or another node
    /// has the directory.
    pub async fn start(self, endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Dht, DhtError> {
        self.check_told(endpoint)?;
        self.check_seeds()?;
        let identity = Arc::new(endpoint.identity().clone());
        let external = self.external.clone();
        let links = peers_settings(&self.settings);
        let seeds = self.seeds.iter().map(|seed| seed.id).collect();
        let network = |answers, group: &Supervisor| -> Result<Arc<dyn Network>, DhtError> {
            Ok(Arc::new(Links::start(endpoint, answers, links, external, seeds, group)?))
        };
        self.start_on(identity, supervisor, network).await
    }

    /// A server must tell others where it is. A client tells nothing.
    fn check_told(&self, endpoint: &Endpoint) -> Result<(), ConfigError> {
        let told = if self.external.is_empty() { endpoint.local_addrs() } else { &self.external };
        if self.is_client || !self.settings.server {
            return Ok(());
        }
        if told.is_empty() {
            return Err(ConfigError::OutOfRange {
                key: "external",
                value: "no address".to_owned(),
                allowed: "an address that others can dial: listen, set external, or be a client()",
            });
        }
        Contact::check_external(told)
    }

    /// A client's contact has no address, and nobody can begin with it.
    fn check_seeds(&self) -> Result<(), ConfigError> {
        match self.seeds.iter().find(|seed| seed.addrs.is_empty()) {
            Some(seed) => Err(ConfigError::OutOfRange {
                key: "seeds",
                value: seed.to_string(),
                allowed: "NODE_ID@IP:PORT: a client has no address and cannot be a seed",
            }),
            None => Ok(()),
        }
    }

    /// Starts the node on another network than an endpoint's links. `network` is given what answers the requests that
    /// come in, and the group to start its tasks in.
    ///
    /// # Errors
    /// As [`start`](Self::start), and what `network` says.
    pub async fn start_on(
        self,
        identity: Arc<Identity>,
        supervisor: &Supervisor,
        network: impl FnOnce(Weak<dyn Answers>, &Supervisor) -> Result<Arc<dyn Network>, DhtError>,
    ) -> Result<Dht, DhtError> {
        let Builder { seeds, mut settings, is_client, data, seed, unix, metrics, .. } = self;
        settings.server &= !is_client;
        settings.check()?;
        let work = WORK.with_capacity(Capacity::new("work_lane", settings.work_lane)?);
        let workers = settings.workers;
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("dht", settings.drain, metrics);
        let (epoch, unix) = (now(), unix.unwrap_or_else(|| Arc::new(unix_secs)));
        let (keeping, known) = match data {
            None => {
                let seed = seed.unwrap_or_else(|| fastrand::u64(..));
                (Keeping::memory(&settings, seed, group.metrics()), Vec::new())
            }
            Some(data) => {
                let clock = Clock { now: Duration::ZERO, unix_secs: unix() };
                Keeping::open(&settings, seed, data, clock, &group).await?
            }
        };
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        let parts = Parts { identity, settings, seed, unix };
        let (node, pings) = Node::new(parts, epoch, keeping, &group)?;
        node.connect(network(node.this.clone(), &group)?);
        let due = node.keeping.with(|kept| kept.store.on_addrs(&node.network().listening()));
        if due > 0 {
            tracing::info!(due, "elsewhere than before: our keys are said again");
        }

        let spec = PoolSpec { lane: work, task: LOOKUP, workers };
        let pool = Pool::start(&group, spec, |job: Job, _| job());
        let ready = supervisor.ready();
        let (asked, given) = (Arc::downgrade(&node), seeds.len());
        let gates = Arc::new(Gates {
            seeds: ready.gate("dht.seeds", Affects::Reads),
            buckets: ready.gate("dht.buckets", Affects::Reads),
            _peers: ready.probe("dht.peers", Affects::Reads, move || asked.upgrade()?.lacks_peers(given)),
        });
        let whole = node.keeping.whole();
        let lacks = move || (!*whole.load()).then_some("waits for a disk that takes everything again".into());
        let [writes, reads] = pool.watch(ready, WRITES_AT, READS_AT);
        let full = Arc::new([writes, reads, ready.probe("dht.store", Affects::Writes, lacks)]);
        let pinged = Arc::clone(&node);
        // These tasks are boxed, or every layer around them would have room for them.
        let _ = group.spawn_restarting(PINGER, move |stop| {
            Box::pin(ping_all(Arc::clone(&pinged), pings.clone(), stop))
        });
        let (booted, beginning) = (Arc::clone(&node), Arc::new(Beginning { seeds, known }));
        let _ = group.spawn_restarting(BOOTSTRAPPER, move |stop| {
            Box::pin(bootstrap(Arc::clone(&booted), Arc::clone(&beginning), Arc::clone(&gates), seed, stop))
        });
        let kept = Arc::clone(&node);
        let _ = group.spawn_restarting(KEEPER, move |stop| Box::pin(keep(Arc::clone(&kept), seed, stop)));
        let said = Arc::clone(&node);
        let _ = group
            .spawn_restarting(REPUBLISHER, move |stop| Box::pin(republish(Arc::clone(&said), seed, stop)));
        Ok(Dht { node, pool, group, _full: full })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("seeds", &self.seeds)
            .field("external", &self.external)
            .field("settings", &self.settings)
            .field("data", &self.data.as_ref().map(|(_, path)| path))
            .finish_non_exhaustive()
    }
}

/// The wall clock. It only orders our own words and tells when it is time for the next.
fn unix_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
