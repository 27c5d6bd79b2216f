//! What all tasks of the index share: sources, cache, running lookups, and how the sources behave.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{
    BreakerState, CallError, ClientKey, Counter, Deadline, Feed, Gate, Histogram, Lane, Lock, LockSpec,
    Metrics, Pass, Snapshot, Stop, Tally, now,
};
use tokio::time::Instant;

use crate::{
    Event, IndexError,
    breakers::Behaviour,
    flight::{Flight, Waiter},
    janitor::Write,
    logic::{
        cache::{CacheReader, Entry, Freshness},
        hedge::Hedging,
        key::Key,
        limit::AdaptiveLimit,
        rank::Reputation,
    },
    metrics::{Counts, REFRESHES},
    settings::Settings,
    source::{Manifests, Names, Providers, SourceError},
};

pub(crate) const ADAPTING: LockSpec = LockSpec::new("ron-index", "adapting", 510)
    .guards("how long sources take, what hedges are left and how many lookups may run; held for arithmetic");

pub(crate) const REPUTATION: LockSpec = LockSpec::new("ron-index", "reputation", 520)
    .guards("how providers delivered; held for one of them, or while one answer is ranked");

/// The least that the adaptive limit admits.
const ADAPTIVE_MIN: usize = 8;

/// When to try again after the limit of lookups was met: about as long as one takes.
const LOOKUP_PAUSE: Duration = Duration::from_millis(100);

/// Refreshes and the warm-up may take one of so many workers.
const REFRESH_PART: usize = 4;

/// What the index learns about its sources while it asks them.
#[derive(Debug)]
pub(crate) struct Adapting {
    pub(crate) hedging: Hedging,
    pub(crate) limit: Option<AdaptiveLimit>,
}

/// The sources. [`number`](Self::number) counts through all three kinds, and is where the breaker of a source is.
pub(crate) struct Sources {
    pub(crate) names: Vec<Arc<dyn Names>>,
    pub(crate) manifests: Vec<Arc<dyn Manifests>>,
    pub(crate) providers: Vec<Arc<dyn Providers>>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Name(usize),
    Manifest(usize),
    Providers(usize),
}

impl Sources {
    pub(crate) fn number(&self, source: Source) -> usize {
        match source {
            Source::Name(at) => at,
            Source::Manifest(at) => self.names.len() + at,
            Source::Providers(at) => self.names.len() + self.manifests.len() + at,
        }
    }

    pub(crate) fn all(&self) -> Vec<Source> {
        let names = (0..self.names.len()).map(Source::Name);
        let manifests = (0..self.manifests.len()).map(Source::Manifest);
        names.chain(manifests).chain((0..self.providers.len()).map(Source::Providers)).collect()
    }

    pub(crate) fn label(&self, source: Source) -> &'static str {
        match source {
            Source::Name(at) => self.names[at].label(),
            Source::Manifest(at) => self.manifests[at].label(),
            Source::Providers(at) => self.providers[at].label(),
        }
    }
}

/// The state of the breaker of a source, as lookups see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BreakerView {
    pub(crate) state: BreakerState,
    /// When the source will be probed, if its breaker is open.
    pub(crate) until: Instant,
}

/// The counters of one source.
pub(crate) struct SourceCounts {
    pub(crate) left_alone: Tally,
    pub(crate) errors: Tally,
    pub(crate) invalid: Tally,
    pub(crate) late: Tally,
    pub(crate) retries: Tally,
}

pub(crate) struct Inner {
    pub(crate) sources: Sources,
    pub(crate) settings: Snapshot<Settings>,
    pub(crate) cache: CacheReader,
    /// By key, so that those that are left at the end are ended in that order.
    pub(crate) flights: Lock<BTreeMap<Key, Arc<Flight>>>,
    pub(crate) work: Lane<Arc<Flight>>,
    pub(crate) writes: Lane<Write>,
    pub(crate) behaviour: Lane<Behaviour>,
    pub(crate) breakers: Snapshot<Vec<BreakerView>>,
    pub(crate) adapting: Lock<Adapting>,
    pub(crate) reputation: Lock<Reputation>,
    pub(crate) background: AtomicUsize,
    pub(crate) gate: Gate,
    pub(crate) lookup_gate: Gate,
    pub(crate) events: Feed<Event>,
    pub(crate) metrics: Metrics,
    pub(crate) counts: Counts,
    pub(crate) of_source: Vec<SourceCounts>,
    pub(crate) resolve_seconds: Histogram,
    pub(crate) lookup_seconds: Histogram,
    pub(crate) unix_secs: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub(crate) rng: Lock<fastrand::Rng>,
    pub(crate) born: Instant,
    pub(crate) stop: Stop,
}

pub(crate) const SEEDS: LockSpec = LockSpec::new("ron-index", "seeds", 530)
    .guards("where the randomness of a lookup begins; held to draw one number");

impl Adapting {
    pub(crate) fn new(settings: &Settings) -> Self {
        let max = settings.lane + settings.workers.get();
        let limit = settings.adaptive.then(|| AdaptiveLimit::new(ADAPTIVE_MIN.min(max), max));
        Adapting { hedging: Hedging::default(), limit }
    }
}

/// Why something is looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// For a caller: a client, or the host itself.
    Caller(Option<ClientKey>),
    /// Nobody waits for it: a refresh or a warm-up.
    Background,
}

/// A place among those who wait for a lookup, or an answer that arrived in the meantime.
pub(crate) enum Joined {
    Waiting(Waiter),
    Known(Arc<Entry>),
}

impl Inner {
    /// Waits for the lookup of `key`, or begins one.
    pub(crate) fn join(&self, key: &Key, purpose: Purpose) -> Result<Joined, IndexError> {
        let began = now();
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(key) {
            if matches!(purpose, Purpose::Caller(_)) {
                self.counts.joined.add(1);
            }
            return Ok(Joined::Waiting(flight.attend()));
        }
        let settings = self.settings.load();
        if let Purpose::Caller(_) = purpose {
            // Another lookup may have ended since the caller looked. Answers are in the cache before their lookup is gone.
            let known = self.cache.peek(key);
            let is_fresh = |entry: &Arc<Entry>| {
                matches!(entry.freshness(began, &settings.staleness()), Freshness::Fresh { .. })
            };
            if let Some(entry) = known.filter(is_fresh) {
                return Ok(Joined::Known(entry));
            }
        }
        let limit = self.adapting.lock().limit.as_ref().map(AdaptiveLimit::limit);
        if limit.is_some_and(|limit| flights.len() >= limit) {
            self.metrics.tally(Counter::BusyRejections, "index_adaptive").add(1);
            return Err(IndexError::Busy { what: "index_adaptive", retry_after: LOOKUP_PAUSE });
        }
        let (pass, is_background) = match purpose {
            Purpose::Caller(client) => (self.lookup_pass(client)?, false),
            Purpose::Background => {
                let most = (settings.workers.get() / REFRESH_PART).max(1);
                if self.background.load(Ordering::Relaxed) >= most {
                    return Err(IndexError::Busy { what: "index_refresh", retry_after: LOOKUP_PAUSE });
                }
                self.background.fetch_add(1, Ordering::Relaxed);
                (None, true)
            }
        };
        let deadline = Deadline::after(settings.budget);
        let flight = Arc::new(Flight::new(key.clone(), deadline, began, is_background, pass));
        let waiter = flight.attend();
        if let Err(refused) = self.work.try_push(Arc::clone(&flight)) {
            if is_background {
                self.background.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(refused.into());
        }
        flights.insert(key.clone(), flight);
        Ok(Joined::Waiting(waiter))
    }

    pub(crate) fn lookup_pass(&self, client: Option<ClientKey>) -> Result<Option<Pass>, CallError> {
        client.map(|client| self.lookup_gate.enter(client, 0)).transpose()
    }

    /// Ends a lookup: tells those who wait the outcome, and frees its place.
    pub(crate) fn land(&self, flight: &Arc<Flight>, outcome: Result<Arc<Entry>, IndexError>) {
        let was_current = take_out(&mut self.flights.lock(), flight);
        self.on_over(&flight.key);
        if was_current && flight.is_background {
            self.background.fetch_sub(1, Ordering::Relaxed);
        }
        flight.finish(outcome);
    }

    /// A lookup of `key` is over, however it ended: whoever finds the answer old may begin another.
    fn on_over(&self, key: &Key) {
        if let Some(known) = self.cache.peek(key) {
            known.is_refreshing.store(false, Ordering::Release);
        }
    }

    /// Removes a lookup if nobody waits for it any more. Says whether it did.
    pub(crate) fn skip_if_abandoned(&self, flight: &Arc<Flight>) -> bool {
        let mut flights = self.flights.lock();
        if !flight.is_abandoned() {
            return false;
        }
        take_out(&mut flights, flight);
        drop(flights);
        self.on_over(&flight.key);
        true
    }

    /// Detaches the running lookup of `key`: whoever asks from now on does not join it.
    pub(crate) fn detach(&self, key: &Key) {
        let gone = self.flights.lock().remove(key);
        if gone.is_some_and(|flight| flight.is_background) {
            self.background.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins a refresh of `key`, unless one is under way or there is no room for another in the background.
    pub(crate) fn refresh(&self, key: &Key, entry: Option<&Entry>) {
        if entry.is_some_and(|entry| entry.is_refreshing.swap(true, Ordering::AcqRel)) {
            return;
        }
        let begun = self.join(key, Purpose::Background).is_ok();
        if let (false, Some(entry)) = (begun, entry) {
            entry.is_refreshing.store(false, Ordering::Release);
        }
        self.metrics.tally(REFRESHES, if begun { "begun" } else { "no_room" }).add(1);
    }

    /// `None` if a source may be asked now, else until when it is left alone.
    pub(crate) fn left_alone(&self, source: Source) -> Option<Instant> {
        let view = self.breakers.load()[self.sources.number(source)];
        (view.state != BreakerState::Closed).then_some(view.until)
    }

    /// Counts how a source answered, and reports it to its breaker.
    pub(crate) fn behaved(&self, source: Source, error: Option<&SourceError>) {
        let counts = &self.of_source[self.sources.number(source)];
        match error {
            Some(SourceError::Invalid(why)) => {
                counts.invalid.add(1);
                tracing::warn!(source = self.sources.label(source), why, "an answer does not hold");
            }
            Some(SourceError::Timeout) => counts.late.add(1),
            _ => {}
        }
        if error.is_some() {
            counts.errors.add(1);
        }
        // That is no failure of the source.
        if matches!(error, Some(SourceError::NotReady { .. })) {
            return;
        }
        // What is shed is counted by the lane: the next question says the same.
        let _ = self.behaviour.try_push(Behaviour { source, is_failure: error.is_some() });
    }

    /// A source panicked: that is counted, logged, and an error like others.
    pub(crate) fn panicked(&self, source: Source) -> SourceError {
        self.metrics.tally(Counter::TasksPanicked, "source").add(1);
        tracing::error!(source = self.sources.label(source), "a source panicked");
        SourceError::Panicked
    }

    /// Whether there are sources of providers, but all of their breakers are open.
    pub(crate) fn has_nobody(&self) -> bool {
        let views = self.breakers.load();
        let mut providers =
            (0..self.sources.providers.len()).map(|at| views[self.sources.number(Source::Providers(at))]);
        providers.len() > 0 && providers.all(|view| view.state != BreakerState::Closed)
    }

    /// The error for when all sources are left alone. It names the one that will be probed first.
    pub(crate) fn breaker_open(&self) -> IndexError {
        let (views, now) = (self.breakers.load(), now());
        let open = self.sources.all().into_iter().filter_map(|source| {
            let view = views[self.sources.number(source)];
            (view.state != BreakerState::Closed).then_some((view.until, self.sources.label(source)))
        });
        let (until, target) = open.min_by_key(|(until, _)| *until).unwrap_or((now, "source"));
        let retry_after = until.saturating_duration_since(now).max(Duration::from_millis(1));
        IndexError::BreakerOpen { target, retry_after }
    }
}

/// Removes a lookup, so that nobody can join it any more. Says whether it was still the one for its key.
fn take_out(flights: &mut BTreeMap<Key, Arc<Flight>>, flight: &Arc<Flight>) -> bool {
    let is_current = flights.get(&flight.key).is_some_and(|known| Arc::ptr_eq(known, flight));
    if is_current {
        flights.remove(&flight.key);
    }
    is_current
}
