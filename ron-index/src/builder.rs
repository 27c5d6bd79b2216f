//! How an index is made: its sources, its settings, and everything that a start brings up.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use ron_core::{
    Affects, BreakerState, Capacity, Counter, Deadline, Feed, Gate, Inbox, Lane, LaneSpec, Lock, Metrics,
    Ratio, Restart, Snapshot, Stop, Supervisor, TaskSpec, now,
};

use crate::{
    Index, IndexError,
    breakers::{BEHAVIOUR, BREAKER_JANITOR, keep_breakers},
    flight::{FLIGHTS, Flight},
    inner::{
        ADAPTING, Adapting, BreakerView, Inner, Joined, Purpose, REPUTATION, SEEDS, Source, SourceCounts,
        Sources,
    },
    janitor::{CACHE_JANITOR, WRITES, keep_cache},
    logic::{cache::table, key::Key, rank::Reputation},
    lookup,
    metrics::{BREAKER_OPEN, Counts, INVALID, LOOKUP_SECONDS, RESOLVE_SECONDS, SOURCE_ERRORS},
    settings::Settings,
    source::{Manifests, Names, Providers},
};

pub(crate) const WORK: LaneSpec = LaneSpec::new("ron-index", "work", 512)
    .flow("callers → resolver pool")
    .why("bursts of a second at the usual rate of misses; whoever is let in can still be served within the budget");

pub(crate) const EVENTS: LaneSpec = LaneSpec::feed("ron-index", "events", 1024)
    .flow("janitors → whoever subscribed")
    .why("some seconds of purges of a busy registry");

pub(crate) const RESOLVER: TaskSpec = TaskSpec::new("ron-index", "resolver")
    .restart(Restart::PROMPT)
    .what("looks one key up at a time, for everybody who waits for it; a source that panics counts as one that failed");

pub(crate) const WARMER: TaskSpec = TaskSpec::new("ron-index", "warmer")
    .restart(Restart::PROMPT)
    .what("looks up the keys of `warmup` at the start, one after the other, and ends");

/// How full the lane of waiting lookups may be before the index is unready for writes, and for everything.
const WRITES_AT: Ratio = Ratio::percent(75);
const READS_AT: Ratio = Ratio::percent(95);

/// How often a key of the warm-up is tried, and the pause between two tries.
const WARM_TRIES: usize = 3;
const WARM_PAUSE: Duration = Duration::from_millis(500);

/// How an index is made. See [`Index::builder`].
pub struct Builder {
    names: Vec<Arc<dyn Names>>,
    manifests: Vec<Arc<dyn Manifests>>,
    providers: Vec<Arc<dyn Providers>>,
    settings: Settings,
    metrics: Option<Metrics>,
    seed: Option<u64>,
    unix_secs: Arc<dyn Fn() -> u64 + Send + Sync>,
    #[cfg(feature = "registry")]
    follows: Vec<ron_registry::Registry>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Builder {
            names: Vec::new(),
            manifests: Vec::new(),
            providers: Vec::new(),
            settings: Settings::default(),
            metrics: None,
            seed: None,
            unix_secs: Arc::new(system_unix_secs),
            #[cfg(feature = "registry")]
            follows: Vec::new(),
        }
    }

    /// Adds a source of names, less trusted than those before it. The first source that serves a name decides; the next one is
    /// asked only if the first is certain that there is no such name.
    #[must_use]
    pub fn names(mut self, source: impl Names) -> Self {
        self.names.push(Arc::new(source));
        self
    }

    /// Adds a source of manifests.
    #[must_use]
    pub fn manifests(mut self, source: impl Manifests) -> Self {
        self.manifests.push(Arc::new(source));
        self
    }

    /// Adds a source of providers. The first [`alpha`](Settings::alpha) are asked at once, the others when those are slow or
    /// fail.
    #[must_use]
    pub fn providers(mut self, source: impl Providers) -> Self {
        self.providers.push(Arc::new(source));
        self
    }

    /// Adds a registry as a source of names. Each answer is proven against the keys in `trust`, and a name is purged from the
    /// cache as soon as the registry changes it.
    #[cfg(feature = "registry")]
    #[must_use]
    pub fn registry(mut self, registry: &ron_registry::Registry, trust: ron_registry::LogTrust) -> Self {
        self.follows.push(registry.clone());
        self.names(crate::source::RegistryNames::new(registry, trust))
    }

    /// Sets the knobs. Replaces all that were set before.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where its metrics go, usually `Metrics::register("ron_index", &mut registry)`. By default, to the supervisor's.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The seed of all randomness, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// A clock of seconds since 1970 to use instead of the system's, for simulations and tests.
    #[must_use]
    pub fn unix_clock(mut self, unix_secs: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.unix_secs = Arc::new(unix_secs);
        self
    }

    /// Starts the index, in a group of its own under `supervisor`.
    ///
    /// # Errors
    /// [`IndexError::Config`] naming the first setting that is out of range.
    pub fn start(self, supervisor: &Supervisor) -> Result<Index, IndexError> {
        let settings = self.settings;
        settings.check()?;
        let metrics = self.metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("index", settings.drain.min(settings.budget), metrics.clone());
        // The janitors write what the workers find, so they stop after them.
        let below = group.child("index janitors", settings.drain, metrics.clone());

        let work_spec = WORK.with_capacity(Capacity::new("lane", settings.lane)?);
        let (work, jobs): (Lane<Arc<Flight>>, Inbox<Arc<Flight>>) = Lane::open(work_spec, &metrics);
        let (writes, to_write) = Lane::open(WRITES, &metrics);
        let (behaviour, observed) = Lane::open(BEHAVIOUR, &metrics);
        let events_spec = EVENTS.with_capacity(Capacity::new("events_lane", settings.events_lane)?);
        let events = Feed::open(events_spec, &metrics);
        work.close_on(&group.stop());
        writes.close_on(&below.stop());
        events.close_on(&below.stop());

        let (cache, writer) = table(settings.cache_bytes);
        let sources = Sources { names: self.names, manifests: self.manifests, providers: self.providers };
        let born = now();
        let closed = BreakerView { state: BreakerState::Closed, until: born };
        let of_source = |source: &Source| {
            let label = sources.label(*source);
            SourceCounts {
                left_alone: metrics.tally(BREAKER_OPEN, label),
                errors: metrics.tally(SOURCE_ERRORS, label),
                invalid: metrics.tally(INVALID, label),
                late: metrics.tally(Counter::IoTimeouts, label),
                retries: metrics.tally(Counter::BackoffRetries, label),
            }
        };
        let all = sources.all();
        let rng = fastrand::Rng::with_seed(self.seed.unwrap_or_else(|| fastrand::u64(..)));
        let inner = Arc::new(Inner {
            breakers: Snapshot::new(vec![closed; all.len()]),
            of_source: all.iter().map(of_source).collect(),
            cache,
            flights: Lock::new(FLIGHTS, BTreeMap::new(), &metrics),
            work,
            writes,
            behaviour,
            adapting: Lock::new(ADAPTING, Adapting::new(&settings), &metrics),
            reputation: Lock::new(REPUTATION, Reputation::new(settings.reputation_max), &metrics),
            background: 0.into(),
            gate: Gate::new("index_clients", settings.gate(), &metrics)?,
            lookup_gate: Gate::new("index_lookups", settings.lookup_gate(), &metrics)?,
            events,
            counts: Counts::new(&metrics),
            resolve_seconds: metrics.histogram(RESOLVE_SECONDS),
            lookup_seconds: metrics.histogram(LOOKUP_SECONDS),
            unix_secs: self.unix_secs,
            rng: Lock::new(SEEDS, rng, &metrics),
            born,
            stop: group.stop(),
            sources,
            settings: Snapshot::new(settings.clone()),
            metrics,
        });

        let writer = Arc::new(writer);
        let of_cache = Arc::clone(&inner);
        below.spawn_restarting(CACHE_JANITOR, move |_| {
            keep_cache(Arc::clone(&of_cache), Arc::clone(&writer), to_write.clone())
        });
        let of_breakers = Arc::clone(&inner);
        below.spawn_restarting(BREAKER_JANITOR, move |stop| {
            keep_breakers(Arc::clone(&of_breakers), observed.clone(), stop)
        });
        for _ in 0..settings.workers.get() {
            let (inner, jobs) = (Arc::clone(&inner), jobs.clone());
            group.spawn_restarting(RESOLVER, move |_| lookup::work(Arc::clone(&inner), jobs.clone()));
        }
        if !settings.warmup.is_empty() {
            let (inner, keys) = (Arc::clone(&inner), settings.warmup);
            group.spawn_restarting(WARMER, move |stop| warm_up(Arc::clone(&inner), keys.clone(), stop));
        }
        #[cfg(feature = "registry")]
        for registry in self.follows {
            // From this head on, not from that at the first run of the task: a commit in between must not be missed.
            let (inner, mut since) = (Arc::clone(&inner), Some(registry.head().version));
            group.spawn_restarting(crate::follow::FOLLOWER, move |stop| {
                crate::follow::follow(Arc::clone(&inner), registry.clone(), since.take(), stop)
            });
        }
        let ready = group.ready();
        let [writes_gate, reads_gate] = ready.watch_lane(&inner.work, WRITES_AT, READS_AT);
        let watched = Arc::downgrade(&inner);
        let sources_gate = ready.probe("index.sources", Affects::Reads, move || {
            let inner = watched.upgrade()?;
            inner.has_nobody().then_some("every source of providers keeps failing and is left alone".into())
        });
        let gates = [writes_gate, reads_gate, sources_gate];
        Ok(Index::running(inner, group, below, gates))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Looks keys up before they are asked for.
async fn warm_up(inner: Arc<Inner>, keys: Vec<Key>, stop: Stop) {
    for key in keys {
        for _ in 0..WARM_TRIES {
            let looked_up = async {
                match inner.join(&key, Purpose::Background)? {
                    Joined::Known(_) => Ok(()),
                    Joined::Waiting(waiter) => {
                        let budget = inner.settings.load().budget;
                        waiter.outcome(Deadline::after(budget)).await.map(drop)
                    }
                }
            };
            let done = tokio::select! {
                biased;
                () = stop.requested() => return,
                done = looked_up => done,
            };
            match done {
                Ok(()) | Err(IndexError::NotFound) => break,
                Err(error) => tracing::debug!(%key, %error, "not warm yet"),
            }
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = tokio::time::sleep(WARM_PAUSE) => {}
            }
        }
    }
}

/// The wall clock. It only serves to tell how old provider records are.
fn system_unix_secs() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
