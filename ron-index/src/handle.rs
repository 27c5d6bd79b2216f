//! All that a host sees: how an index is made, what it can be asked, what it answers.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ron_core::{
    Affects, BreakerState, Capacity, ClientKey, Counter, Deadline, Feed, Gate, Inbox, Lane, LaneSpec, Lock,
    Metrics, NodeId, Pass, Ratio, ReadyGate, ReadyStatus, Restart, Snapshot, Stopped, Subscriber, Supervisor,
    Tally, TaskSpec, now,
};
use tokio::time::Instant;

use crate::{
    IndexError,
    flight::{FLIGHTS, Flight, Waiter},
    inner::{
        ADAPTING, Adapting, BreakerView, Inner, Joined, Purpose, REPUTATION, SEEDS, Source, SourceCounts,
        Sources,
    },
    janitor::{BEHAVIOUR, BREAKER_JANITOR, CACHE_JANITOR, WRITES, Write, keep_breakers, keep_cache},
    logic::{
        cache::{Entry, Freshness, Resolution, table},
        key::Key,
        rank::{Ranked, Reputation},
    },
    lookup::{self, Failures},
    many::Many,
    metrics::{BREAKER_OPEN, Counts, INVALID, LOOKUP_SECONDS, RESOLVE_SECONDS, SOURCE_ERRORS},
    settings::Settings,
    source::{Manifests, Names, Provider, Providers, SourceError},
};

pub(crate) const WORK: LaneSpec = LaneSpec::new("ron-index", "work", 512)
    .flow("callers → resolver pool")
    .why("bursts of a second at the usual rate of misses; whoever is let in can still be served within the budget");

pub(crate) const EVENTS: LaneSpec = LaneSpec::feed("ron-index", "events", 1024)
    .flow("janitors → whoever subscribed")
    .why("some seconds of purges of a busy registry");

pub(crate) const RESOLVER: TaskSpec = TaskSpec::new("ron-index", "resolver")
    .restart(Restart::PROMPT)
    .what("looks one key up at a time, for everybody who waits for it; a source that panics is told to it as an error");

pub(crate) const WARMER: TaskSpec = TaskSpec::new("ron-index", "warmer")
    .restart(Restart::PROMPT)
    .what("looks up at the start what the settings name, one key after the other, and ends");

/// Waiting lookups at which the index says that it takes no more writes, and then no more at all.
const WRITES_AT: Ratio = Ratio::percent(75);
const READS_AT: Ratio = Ratio::percent(95);

/// Times that a key of the warm-up is tried, and the pause between.
const WARM_TRIES: usize = 3;
const WARM_PAUSE: Duration = Duration::from_millis(500);

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A key was forgotten.
    Purged {
        /// Which.
        key: Key,
        /// By whom: `registry`, `caller` or `reindex`.
        by: &'static str,
    },
    /// Everything was forgotten.
    Cleared {
        /// By whom: `caller`, `registry` or `amnesia`.
        by: &'static str,
    },
    /// An answer was asked for anew, ahead of its end or after it.
    Refreshed {
        /// Which.
        key: Key,
    },
    /// A key is kept fresh from now on.
    Pinned {
        /// Which.
        key: Key,
    },
    /// A key is no longer kept fresh.
    Unpinned {
        /// Which.
        key: Key,
    },
    /// A source is left alone, is tried again, or works again.
    BreakerMoved {
        /// Which.
        target: &'static str,
        /// What its breaker lets happen now.
        state: BreakerState,
    },
    /// Other settings are in force.
    Reloaded,
}

/// Why an answer that is no longer fresh was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stale {
    /// It is being asked for anew.
    WhileRevalidate,
    /// Asking for it anew failed.
    IfError,
}

impl Stale {
    /// In one word, for answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stale::WhileRevalidate => "while_revalidate",
            Stale::IfError => "if_error",
        }
    }
}

/// A verified answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) entry: Arc<Entry>,
    /// How old it is.
    pub age: Duration,
    /// Why it is not fresh; nothing if it is.
    pub stale: Option<Stale>,
    /// Whether nothing had to be asked for it.
    pub is_cached: bool,
}

impl Answer {
    /// What was found.
    ///
    /// # Panics
    /// Never: an answer is only made of what was found.
    #[must_use]
    pub fn resolution(&self) -> &Resolution {
        self.entry.found.as_ref().expect("answers are made of what was found")
    }

    /// How long it is fresh in all.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.entry.ttl
    }

    /// The best providers, at most so many.
    #[must_use]
    pub fn providers(&self, limit: usize) -> &[Ranked] {
        let providers = &self.resolution().providers;
        &providers[..limit.min(providers.len())]
    }
}

/// How an index is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Answers kept.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Lookups that wait or run.
    pub lookups: usize,
    /// Lookups that wait for a worker.
    pub waiting: usize,
    /// After how long another source is asked besides.
    pub hedge_delay: Duration,
    /// Sources, with what their breakers let happen.
    pub sources: Vec<(&'static str, BreakerState)>,
}

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
    /// Another source of names. The first that serves a name decides; the next is asked only if that one is certain that
    /// there is no such name.
    #[must_use]
    pub fn names(mut self, source: impl Names) -> Self {
        self.names.push(Arc::new(source));
        self
    }

    /// Another source of manifests.
    #[must_use]
    pub fn manifests(mut self, source: impl Manifests) -> Self {
        self.manifests.push(Arc::new(source));
        self
    }

    /// Another source of providers: one of those that are asked at once, or, beyond [`alpha`](Settings::alpha), when those
    /// are slow or fail.
    #[must_use]
    pub fn providers(mut self, source: impl Providers) -> Self {
        self.providers.push(Arc::new(source));
        self
    }

    /// Names out of a registry, each with its proof checked against what `trust` knows; and whatever the registry changes is
    /// forgotten at once.
    #[cfg(feature = "registry")]
    #[must_use]
    pub fn registry(mut self, registry: &ron_registry::Registry, trust: ron_registry::LogTrust) -> Self {
        self.follows.push(registry.clone());
        self.names(crate::source::RegistryNames::new(registry, trust))
    }

    /// Other knobs than the default ones. Replaces what was set before.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where its counters go, usually `Metrics::register("ron_index", &mut registry)`. To the supervisor's without it.
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
        self.unix_secs = Arc::new(unix_secs);
        self
    }

    /// Starts the index, in a group of its own under `supervisor`.
    ///
    /// # Errors
    /// [`IndexError::Config`] for settings that make no sense.
    pub fn start(self, supervisor: &Supervisor) -> Result<Index, IndexError> {
        let settings = self.settings;
        settings.check()?;
        let metrics = self.metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("index", settings.drain.min(settings.budget), metrics.clone());
        // What is begun is written by the janitors, so they stop after the workers.
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
            flights: Lock::new(FLIGHTS, HashMap::new(), &metrics),
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
            // From now on, and not from when the task first runs: what is committed in between must not be missed.
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
        Ok(Index { shared: Arc::new(Shared { inner, group, _below: below, _gates: gates }), client: None })
    }
}

impl Inner {
    /// Whether there are sources of providers and all of them are left alone.
    fn has_nobody(&self) -> bool {
        let views = self.breakers.load();
        let mut providers =
            (0..self.sources.providers.len()).map(|at| views[self.sources.number(Source::Providers(at))]);
        providers.len() > 0 && providers.all(|view| view.state != BreakerState::Closed)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Looks keys up before anybody asks for them.
async fn warm_up(inner: Arc<Inner>, keys: Vec<Key>, stop: ron_core::Stop) {
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

/// Keeps everything running for as long as a handle lives.
struct Shared {
    inner: Arc<Inner>,
    group: Supervisor,
    _below: Supervisor,
    _gates: [ReadyGate; 3],
}

/// An index. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Index {
    shared: Arc<Shared>,
    client: Option<ClientKey>,
}

/// What the cache has to say.
enum Look {
    Answer(Answer),
    Nothing,
    /// Nothing that is good without asking; perhaps something for when that fails.
    Miss(Option<Arc<Entry>>),
}

/// A question, as far as it is answered without waiting.
pub(crate) enum Begun {
    Known(Answer),
    Open(Open),
}

/// A question that somebody has to be asked.
pub(crate) struct Open {
    _pass: Option<Pass>,
    stale: Option<Arc<Entry>>,
    began: Instant,
}

impl Index {
    /// An index.
    #[must_use]
    pub fn builder() -> Builder {
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

    /// The same index for one of its clients: what is asked through this handle counts against that client's limits, so that
    /// nobody takes all places. Handles without a client are the host's own.
    #[must_use]
    pub fn for_client(&self, client: ClientKey) -> Index {
        Index { shared: Arc::clone(&self.shared), client: Some(client) }
    }

    /// The same without another handle.
    #[cfg(feature = "http")]
    pub(crate) fn into_client(mut self, client: ClientKey) -> Index {
        self.client = Some(client);
        self
    }

    /// What `key` leads to: out of the cache at once, or by a lookup within the [budget](Settings::budget), which everybody
    /// shares who asks for the same meanwhile. Dropping the future gives up; a lookup that has begun goes on for the others
    /// and for the cache.
    ///
    /// # Errors
    /// [`IndexError::NotFound`], [`IndexError::Timeout`], [`IndexError::Busy`] at once when too much is asked,
    /// [`IndexError::BreakerOpen`], [`IndexError::NotReady`] and [`IndexError::Unavailable`] when nobody can answer,
    /// [`IndexError::Canceled`]. Where there is an older answer that is still good enough, that is given instead, and says so.
    pub async fn resolve(&self, key: &Key, deadline: Deadline) -> Result<Answer, IndexError> {
        match self.begin(self.client, key)? {
            Begun::Known(answer) => Ok(answer),
            Begun::Open(open) => self.go_on(key, open, deadline).await,
        }
    }

    /// The part of [`resolve`](Self::resolve) that waits for nobody: the limits of `client`, and what the cache knows.
    pub(crate) fn begin(&self, client: Option<ClientKey>, key: &Key) -> Result<Begun, IndexError> {
        let began = now();
        let pass = self.enter(client, began)?;
        match self.look(key, began) {
            Look::Answer(answer) => {
                self.inner().resolve_seconds.observe(began.elapsed().as_secs_f64());
                Ok(Begun::Known(answer))
            }
            Look::Nothing => Err(IndexError::NotFound),
            Look::Miss(stale) => Ok(Begun::Open(Open { _pass: pass, stale, began })),
        }
    }

    /// The part that waits.
    pub(crate) async fn go_on(
        &self,
        key: &Key,
        open: Open,
        deadline: Deadline,
    ) -> Result<Answer, IndexError> {
        let looked_up = self.look_up(key, deadline).await;
        self.inner().resolve_seconds.observe(open.began.elapsed().as_secs_f64());
        self.or_stale(looked_up, open.stale)
    }

    /// What the cache has about `key`, without asking anybody.
    #[must_use]
    pub fn cached(&self, key: &Key) -> Option<Answer> {
        match self.look(key, now()) {
            Look::Answer(answer) => Some(answer),
            Look::Nothing | Look::Miss(_) => None,
        }
    }

    /// Who has some content, as they are found; the best first if it is known already. At most `limit` of them.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), without waiting for anything but a place.
    pub fn find(&self, content: &Key, limit: usize, deadline: Deadline) -> Result<Found, IndexError> {
        let pass = self.enter(self.client, now())?;
        let counts = &self.inner().counts;
        let (state, stale) = match self.look(content, now()) {
            Look::Answer(answer) => (Finding::Known(answer.entry), answer.stale),
            Look::Nothing => return Err(IndexError::NotFound),
            Look::Miss(older) => {
                counts.misses.add(1);
                match self.inner().join(content, Purpose::Caller(self.client)) {
                    Ok(Joined::Known(entry)) if entry.found.is_none() => return Err(IndexError::NotFound),
                    Ok(Joined::Known(entry)) => (Finding::Known(entry), None),
                    Ok(Joined::Waiting(waiter)) => (Finding::Coming(waiter, older), None),
                    Err(error) => {
                        let older = older.filter(|_| error.is_mishap()).ok_or(error)?;
                        counts.if_error.add(1);
                        (Finding::Known(older), Some(Stale::IfError))
                    }
                }
            }
        };
        Ok(Found {
            state,
            stale,
            next: 0,
            limit,
            deadline,
            if_error: counts.if_error.clone(),
            deadline_hit: counts.deadline_hit.clone(),
            late: counts.find_late.clone(),
            _pass: pass,
        })
    }

    /// Where a node can be reached, by whichever source knows; `None` if none does. Nothing of it is kept.
    ///
    /// # Errors
    /// [`IndexError::Timeout`], [`IndexError::Busy`], and [`IndexError::Unavailable`], [`IndexError::NotReady`] or
    /// [`IndexError::BreakerOpen`] if none could answer.
    pub async fn locate(&self, node: NodeId, deadline: Deadline) -> Result<Option<Provider>, IndexError> {
        let _pass = self.enter(self.client, now())?;
        let inner = self.inner();
        // It is asked of sources like any lookup, so it takes one of the client's places for those.
        let _place = inner.lookup_pass(self.client)?;
        let (began, budget) = (now(), inner.settings.load().budget);
        let deadline = deadline.within(budget);
        // All at once: one that is silent must not keep the others from answering.
        let mut out: Many<Source, _> = Many::default();
        for (at, source) in inner.sources.providers.iter().enumerate() {
            if inner.left_alone(Source::Providers(at)).is_none() {
                let asked = Arc::clone(source);
                out.push(Source::Providers(at), Box::pin(async move { asked.locate(node, deadline).await }));
            }
        }
        let is_refused = out.is_empty() && !inner.sources.providers.is_empty();
        let (mut answered, mut failures) = (0, None::<Failures>);
        while !out.is_empty() {
            let said = deadline.limit("locate", out.next(|| false)).await.inspect_err(|_| {
                inner.counts.deadline_hit.add(1);
                inner.counts.locate_late.add(1);
                // As in a lookup: one that was asked only shortly before is not to blame.
                if began.elapsed() >= budget / 2 {
                    out.keys().for_each(|source| inner.behaved(*source, Some(&SourceError::Timeout)));
                }
            })?;
            let Some((source, said)) = said else { continue };
            let error = match said {
                Ok(Ok(found)) => {
                    inner.behaved(source, None);
                    answered += 1;
                    match found {
                        Some(provider) => return Ok(Some(provider)),
                        None => continue,
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(source = inner.sources.label(source), %error, "locate");
                    error
                }
                Err(()) => {
                    inner.metrics.tally(Counter::TasksPanicked, "source").add(1);
                    tracing::error!(source = inner.sources.label(source), "a source panicked");
                    SourceError::Panicked
                }
            };
            failures.get_or_insert_default().add(&error);
            inner.behaved(source, Some(&error));
        }
        match failures {
            _ if is_refused => Err(inner.breaker_open()),
            Some(failures) if answered == 0 => Err(failures.verdict()),
            _ => Ok(None),
        }
    }

    /// Forgets what is known about `key` and looks it up again.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn reindex(&self, key: &Key, deadline: Deadline) -> Result<Answer, IndexError> {
        self.forget(key, "reindex", deadline).await?;
        self.look_up(key, deadline).await
    }

    /// Forgets what is known about `key`; whoever asks from now on is given what is true from now on, even if a lookup is
    /// under way. Says whether something was known.
    ///
    /// # Errors
    /// [`IndexError::Busy`], [`IndexError::Timeout`], [`IndexError::Canceled`].
    pub async fn purge(&self, key: &Key, deadline: Deadline) -> Result<bool, IndexError> {
        self.forget(key, "caller", deadline).await
    }

    async fn forget(&self, key: &Key, by: &'static str, deadline: Deadline) -> Result<bool, IndexError> {
        let write = |reply| Write::Purge(key.clone(), by, Some(reply));
        Ok(self.inner().writes.call("purge", deadline, write).await?)
    }

    /// Forgets everything.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn clear(&self, deadline: Deadline) -> Result<(), IndexError> {
        Ok(self.inner().writes.call("clear", deadline, |reply| Write::Clear("caller", Some(reply))).await?)
    }

    /// Keeps the answer about `key` from now on: it is asked for anew before it ends, and does not make room for others.
    /// Looks it up if it is not known. Says whether that is new.
    ///
    /// # Errors
    /// [`IndexError::PinsFull`], [`IndexError::PinsHeavy`]; else as [`resolve`](Self::resolve), and then nothing is pinned.
    pub async fn pin(&self, key: &Key, deadline: Deadline) -> Result<bool, IndexError> {
        self.resolve(key, deadline).await?;
        let write = |reply| Write::Pin(key.clone(), true, reply);
        self.inner().writes.call("pin", deadline, write).await?
    }

    /// Takes a pin back. Says whether there was one.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn unpin(&self, key: &Key, deadline: Deadline) -> Result<bool, IndexError> {
        let write = |reply| Write::Pin(key.clone(), false, reply);
        self.inner().writes.call("unpin", deadline, write).await?
    }

    /// Tells how a fetch from a provider went, and how long its first byte took if that is known: the next answers put it
    /// higher or lower.
    pub fn report(&self, provider: NodeId, is_good: bool, first_byte: Option<Duration>) {
        self.inner().reputation.lock().on_fetch(provider, is_good, first_byte);
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<Event> {
        self.inner().events.subscribe()
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = self.inner();
        let settings = inner.settings.load();
        let views = inner.breakers.load();
        let state = |source: Source| (inner.sources.label(source), views[inner.sources.number(source)].state);
        Status {
            entries: inner.cache.len(),
            bytes: inner.cache.bytes(),
            lookups: inner.flights.lock().len(),
            waiting: inner.work.depth(),
            hedge_delay: settings.hedge_delay(&inner.adapting.lock().hedging),
            sources: inner.sources.all().into_iter().map(state).collect(),
        }
    }

    /// Bytes that remembering clients takes now.
    #[must_use]
    pub fn client_memory(&self) -> usize {
        self.inner().gate.memory_bytes() + self.inner().lookup_gate.memory_bytes()
    }

    /// The most that can become, whoever comes.
    #[must_use]
    pub fn client_memory_max(&self) -> usize {
        self.inner().gate.memory_bytes_max() + self.inner().lookup_gate.memory_bytes_max()
    }

    /// Whether it can serve, and why not.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.shared.group.ready().status()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.inner().settings.load()
    }

    /// Applies other settings from now on. The cache stays.
    ///
    /// # Errors
    /// [`IndexError::Config`] naming the first setting that makes no sense or cannot change while running; then everything
    /// stays as it was.
    pub fn reload(&self, settings: Settings) -> Result<(), IndexError> {
        let inner = self.inner();
        inner.settings.load().check_change(&settings)?;
        let mut applied = Ok(());
        // One reload after the other: of two at once, the limits of one and the rest of the other must not stay.
        inner.settings.update(|current| {
            applied = current
                .check_change(&settings)
                .and_then(|()| inner.gate.reload(settings.gate()))
                .and_then(|()| inner.lookup_gate.reload(settings.lookup_gate()));
            if applied.is_ok() { settings } else { current.clone() }
        });
        applied?;
        inner.events.publish(Event::Reloaded);
        Ok(())
    }

    /// Takes no more questions, lets lookups that have begun finish within their budget, and says how that went. Safe to call
    /// twice.
    pub async fn shutdown(&self) -> Stopped {
        self.shared.group.shutdown().await
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    /// A place for a question of `client`.
    fn enter(&self, client: Option<ClientKey>, now: Instant) -> Result<Option<Pass>, IndexError> {
        if self.inner().stop.is_requested() {
            return Err(IndexError::Canceled);
        }
        Ok(client.map(|client| self.inner().gate.enter_at(client, 0, now)).transpose()?)
    }

    fn look(&self, key: &Key, now: Instant) -> Look {
        let inner = self.inner();
        let Some(entry) = inner.cache.get(key) else { return Look::Miss(None) };
        let age = entry.age(now);
        if entry.found.is_some() && entry.is_young(age) {
            inner.counts.fresh.add(1);
            entry.hits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Look::Answer(Answer { entry, age, stale: None, is_cached: true });
        }
        let settings = inner.settings.load();
        let answer = |entry: Arc<Entry>, stale| {
            let age = entry.age(now);
            Look::Answer(Answer { entry, age, stale, is_cached: true })
        };
        match entry.freshness(now, &settings.staleness()) {
            Freshness::Fresh { .. } if entry.found.is_none() => {
                inner.counts.negative.add(1);
                Look::Nothing
            }
            Freshness::Fresh { is_nearly_over } => {
                inner.counts.fresh.add(1);
                let hits = entry.hits.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                if is_nearly_over && hits >= settings.refresh_hits {
                    inner.refresh(key, Some(&entry));
                }
                answer(entry, None)
            }
            Freshness::WhileRevalidate => {
                inner.counts.revalidate.add(1);
                if !entry.has_just_failed(now) {
                    inner.refresh(key, Some(&entry));
                }
                answer(entry, Some(Stale::WhileRevalidate))
            }
            Freshness::IfError if entry.has_just_failed(now) => {
                inner.counts.if_error.add(1);
                answer(entry, Some(Stale::IfError))
            }
            Freshness::IfError => Look::Miss(Some(entry)),
            Freshness::Over => Look::Miss(None),
        }
    }

    async fn look_up(&self, key: &Key, deadline: Deadline) -> Result<Answer, IndexError> {
        let inner = self.inner();
        inner.counts.misses.add(1);
        let came = now();
        let (mut deadline, mut is_first) = (deadline, true);
        let (entry, is_cached) = loop {
            let waiter = match inner.join(key, Purpose::Caller(self.client))? {
                Joined::Known(entry) => break (entry, true),
                Joined::Waiting(waiter) => waiter,
            };
            let error = match waiter.outcome(deadline).await {
                Ok(entry) => break (entry, false),
                Err(error) => error,
            };
            let is_late = matches!(error, IndexError::Timeout { .. });
            // The budget of a lookup that others had begun is spent, and this caller's is not: the next one is its own.
            if is_late && is_first && waiter.0.began < came && !deadline.has_passed() {
                (deadline, is_first) =
                    (deadline.min(Deadline::at(came + inner.settings.load().budget)), false);
                continue;
            }
            if is_late {
                inner.counts.deadline_hit.add(1);
                inner.counts.resolve_late.add(1);
            }
            return Err(error);
        };
        if entry.found.is_none() {
            return Err(IndexError::NotFound);
        }
        let age = entry.age(now());
        Ok(Answer { entry, age, stale: None, is_cached })
    }

    /// The older answer, where the new one is only an error that says nothing about what was asked for.
    fn or_stale(
        &self,
        looked_up: Result<Answer, IndexError>,
        stale: Option<Arc<Entry>>,
    ) -> Result<Answer, IndexError> {
        let error = match looked_up {
            Err(error) if error.is_mishap() => error,
            other => return other,
        };
        let entry = stale.ok_or(error)?;
        self.inner().counts.if_error.add(1);
        let age = entry.age(now());
        Ok(Answer { entry, age, stale: Some(Stale::IfError), is_cached: true })
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        f.debug_struct("Index")
            .field("entries", &inner.cache.len())
            .field("lookups", &inner.flights.lock().len())
            .finish_non_exhaustive()
    }
}

/// Providers as they are found.
#[derive(Debug)]
pub struct Found {
    state: Finding,
    stale: Option<Stale>,
    next: usize,
    limit: usize,
    deadline: Deadline,
    if_error: Tally,
    deadline_hit: Tally,
    late: Tally,
    _pass: Option<Pass>,
}

#[derive(Debug)]
enum Finding {
    Known(Arc<Entry>),
    /// With an older answer, if there is one that is good enough when this fails.
    Coming(Waiter, Option<Arc<Entry>>),
    Over,
}

impl Found {
    /// The next provider and who said so; `None` when there are no more. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Index::resolve`], once, if nobody was found. Where there is an older answer that is still good enough, that is told
    /// instead, and [`stale`](Self::stale) says so.
    pub async fn next(&mut self) -> Result<Option<(Provider, &'static str)>, IndexError> {
        if self.next >= self.limit {
            self.state = Finding::Over;
        }
        let error = match &self.state {
            Finding::Over => return Ok(None),
            Finding::Known(entry) => {
                self.next += 1;
                return Ok(provider_at(entry, self.next - 1));
            }
            Finding::Coming(waiter, _) => {
                let until = waiter.patience(self.deadline);
                let mut progress = waiter.0.progress.watch();
                loop {
                    let seen = Arc::clone(progress.get());
                    if let Some(found) = seen.providers.get(self.next) {
                        self.next += 1;
                        return Ok(Some(found.clone()));
                    }
                    match &seen.outcome {
                        // A lookup that took its providers from the cache has told them to nobody on the way.
                        Some(Ok(entry)) if seen.providers.is_empty() && entry.found.is_some() => {
                            self.next += 1;
                            return Ok(provider_at(entry, self.next - 1));
                        }
                        Some(Ok(entry)) => {
                            let is_nothing = entry.found.is_none();
                            self.state = Finding::Over;
                            return if is_nothing { Err(IndexError::NotFound) } else { Ok(None) };
                        }
                        Some(Err(error)) => break error.clone(),
                        None => {}
                    }
                    if let Err(late) = until.limit("find", progress.changed()).await {
                        break late.into();
                    }
                }
            }
        };
        if matches!(error, IndexError::Timeout { .. }) {
            self.late.add(1);
            self.deadline_hit.add(1);
        }
        let older = match std::mem::replace(&mut self.state, Finding::Over) {
            Finding::Coming(_, older) => older.filter(|_| error.is_mishap()),
            Finding::Known(_) | Finding::Over => None,
        };
        // What was told is true, and the older answer would only tell it again.
        if self.next > 0 {
            return Ok(None);
        }
        let older = older.ok_or(error)?;
        self.if_error.add(1);
        (self.stale, self.next) = (Some(Stale::IfError), 1);
        let first = provider_at(&older, 0);
        self.state = Finding::Known(older);
        Ok(first)
    }

    /// Why what is told is not fresh; nothing if it is, or if that is not known before the first [`next`](Self::next).
    #[must_use]
    pub fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// How old what is told is, and how long it is good in all; nothing if it is being looked up.
    #[must_use]
    pub fn age(&self) -> Option<(Duration, Duration)> {
        match &self.state {
            Finding::Known(entry) => Some((entry.age(now()), entry.ttl)),
            _ => None,
        }
    }
}

fn provider_at(entry: &Entry, at: usize) -> Option<(Provider, &'static str)> {
    let ranked = entry.found.as_ref()?.providers.get(at)?;
    Some((ranked.provider.clone(), ranked.source))
}

/// The wall clock. It only tells how old the words of providers are.
fn system_unix_secs() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
