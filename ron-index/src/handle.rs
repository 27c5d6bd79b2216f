//! What a running index can be asked and told.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ron_core::{
    BreakerState, ClientKey, Deadline, NodeId, Pass, ReadyGate, ReadyStatus, Stopped, Subscriber, Supervisor,
    now,
};
use tokio::time::Instant;

use crate::{
    Builder, IndexError,
    answer::{Answer, Finding, Found, Stale},
    inner::{Inner, Joined, Purpose, Source},
    janitor::Write,
    logic::{
        cache::{Entry, Freshness},
        key::Key,
    },
    lookup::Failures,
    many::Many,
    settings::Settings,
    source::{Provider, SourceError},
};

/// Something that happened, as [`Index::events`] reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A key was removed from the cache on demand.
    Purged {
        /// The key.
        key: Key,
        /// By whom: `registry`, `caller` or `reindex`.
        by: &'static str,
    },
    /// The whole cache was cleared.
    Cleared {
        /// By whom: `caller`, `registry` or `amnesia`.
        by: &'static str,
    },
    /// An answer was refreshed in the background, before or after it went stale.
    Refreshed {
        /// The key.
        key: Key,
    },
    /// A key is kept fresh from now on.
    Pinned {
        /// The key.
        key: Key,
    },
    /// A key is no longer kept fresh.
    Unpinned {
        /// The key.
        key: Key,
    },
    /// The breaker of a source opened, half-opened or closed.
    BreakerMoved {
        /// The label of the source.
        target: &'static str,
        /// Its state now.
        state: BreakerState,
    },
    /// New settings are in force.
    Reloaded,
}

/// How an index is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Answers in the cache.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Lookups that wait or run.
    pub lookups: usize,
    /// Lookups that wait for a worker.
    pub waiting: usize,
    /// How long the first sources may take before further ones are asked.
    pub hedge_delay: Duration,
    /// The label of each source and the state of its breaker.
    pub sources: Vec<(&'static str, BreakerState)>,
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

/// What the cache knows about a key.
enum Look {
    Answer(Answer),
    Nothing,
    /// Nothing that may be served without a lookup; perhaps an older answer for when that fails.
    Miss(Option<Arc<Entry>>),
}

/// What became of a question without waiting.
pub(crate) enum Begun {
    Known(Answer),
    Open(Open),
}

/// A question that needs a lookup.
pub(crate) struct Open {
    _pass: Option<Pass>,
    stale: Option<Arc<Entry>>,
    began: Instant,
}

impl Index {
    /// What a start has brought up: the workers are in `group`, the janitors in `below`.
    pub(crate) fn running(
        inner: Arc<Inner>,
        group: Supervisor,
        below: Supervisor,
        gates: [ReadyGate; 3],
    ) -> Self {
        let shared = Shared { inner, group, _below: below, _gates: gates };
        Index { shared: Arc::new(shared), client: None }
    }

    /// Begins to make an index.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The same index, used on behalf of `client`: questions through this handle count against that client's limits, so that no
    /// client can take all capacity. Handles without a client are the host's own and have no such limits.
    #[must_use]
    pub fn for_client(&self, client: ClientKey) -> Index {
        Index { shared: Arc::clone(&self.shared), client: Some(client) }
    }

    /// As [`for_client`](Self::for_client), without cloning the handle.
    #[cfg(feature = "http")]
    pub(crate) fn into_client(mut self, client: ClientKey) -> Index {
        self.client = Some(client);
        self
    }

    /// Resolves `key`: from the cache at once, or by a lookup within the [budget](Settings::budget). Callers that ask for the
    /// same key meanwhile share the lookup. Dropping the future gives up waiting; a lookup that has begun goes on for the other
    /// callers and for the cache.
    ///
    /// # Errors
    /// [`IndexError::NotFound`], [`IndexError::Timeout`], [`IndexError::Busy`] at once when too much is asked,
    /// [`IndexError::BreakerOpen`], [`IndexError::NotReady`] and [`IndexError::Unavailable`] when no source can answer,
    /// [`IndexError::Canceled`]. Where an older answer may still be served, it is given instead of an error and marked as stale.
    pub async fn resolve(&self, key: &Key, deadline: Deadline) -> Result<Answer, IndexError> {
        match self.begin(self.client, key)? {
            Begun::Known(answer) => Ok(answer),
            Begun::Open(open) => self.go_on(key, open, deadline).await,
        }
    }

    /// The part of [`resolve`](Self::resolve) that does not wait: the limits of `client`, and the cache.
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

    /// What the cache has about `key`, without waiting for a lookup.
    #[must_use]
    pub fn cached(&self, key: &Key) -> Option<Answer> {
        match self.look(key, now()) {
            Look::Answer(answer) => Some(answer),
            Look::Nothing | Look::Miss(_) => None,
        }
    }

    /// Streams at most `limit` providers of some content, as they are found, or best first if they are in the cache.
    ///
    /// # Errors
    /// [`IndexError::NotFound`], [`IndexError::Busy`], [`IndexError::Canceled`]. How the lookup fails, if it does,
    /// [`Found::next`] tells.
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
        Ok(Found::new(state, stale, limit, deadline, counts, pass))
    }

    /// Where a node can be reached, from whichever source of providers answers first; `None` if none knows. The answer is not
    /// cached.
    ///
    /// # Errors
    /// [`IndexError::Timeout`], [`IndexError::Busy`], and [`IndexError::Unavailable`], [`IndexError::NotReady`] or
    /// [`IndexError::BreakerOpen`] if none could answer.
    pub async fn locate(&self, node: NodeId, deadline: Deadline) -> Result<Option<Provider>, IndexError> {
        let _pass = self.enter(self.client, now())?;
        let inner = self.inner();
        // It asks sources as a lookup does, so it counts as a lookup of the client.
        let _place = inner.lookup_pass(self.client)?;
        let (began, budget) = (now(), inner.settings.load().budget);
        let deadline = deadline.within(budget);
        // All at once, so that a silent source does not delay the others.
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
                // As in a lookup: a source that had little time is not to blame.
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
                Err(()) => inner.panicked(source),
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

    /// Purges `key` and looks it up again.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn reindex(&self, key: &Key, deadline: Deadline) -> Result<Answer, IndexError> {
        self.forget(key, "reindex", deadline).await?;
        self.look_up(key, deadline).await
    }

    /// Removes `key` from the cache. Later callers get what is true from now on, not the outcome of a lookup that is already
    /// under way. Says whether something was cached.
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

    /// Clears the whole cache.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn clear(&self, deadline: Deadline) -> Result<(), IndexError> {
        Ok(self.inner().writes.call("clear", deadline, |reply| Write::Clear("caller", Some(reply))).await?)
    }

    /// Keeps the answer about `key` fresh and in the cache from now on: it is refreshed before it goes stale, and not evicted.
    /// Looks the key up if it is not cached. Says whether it was not pinned before.
    ///
    /// # Errors
    /// [`IndexError::PinsFull`], [`IndexError::PinsHeavy`]; else as [`resolve`](Self::resolve), and then nothing is pinned.
    pub async fn pin(&self, key: &Key, deadline: Deadline) -> Result<bool, IndexError> {
        self.resolve(key, deadline).await?;
        let write = |reply| Write::Pin(key.clone(), true, reply);
        self.inner().writes.call("pin", deadline, write).await?
    }

    /// Unpins `key`. Says whether it was pinned.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn unpin(&self, key: &Key, deadline: Deadline) -> Result<bool, IndexError> {
        let write = |reply| Write::Pin(key.clone(), false, reply);
        self.inner().writes.call("unpin", deadline, write).await?
    }

    /// Reports how a fetch from a provider went, and how long its first byte took if that is known. Later answers rank the
    /// provider accordingly.
    pub fn report(&self, provider: NodeId, is_good: bool, first_byte: Option<Duration>) {
        self.inner().reputation.lock().on_fetch(provider, is_good, first_byte);
    }

    /// Subscribes to what happens from now on.
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

    /// Bytes that the tables of clients take now.
    #[must_use]
    pub fn client_memory(&self) -> usize {
        self.inner().gate.memory_bytes() + self.inner().lookup_gate.memory_bytes()
    }

    /// The most bytes that the tables of clients can ever take.
    #[must_use]
    pub fn client_memory_max(&self) -> usize {
        self.inner().gate.memory_bytes_max() + self.inner().lookup_gate.memory_bytes_max()
    }

    /// Whether it can serve, and if not, why.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.shared.group.ready().status()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.inner().settings.load()
    }

    /// Applies new settings and keeps the cache.
    ///
    /// # Errors
    /// [`IndexError::Config`] naming the first setting that is out of range or cannot change while the index runs; then nothing
    /// has changed.
    pub fn reload(&self, settings: Settings) -> Result<(), IndexError> {
        let inner = self.inner();
        inner.settings.load().check_change(&settings)?;
        let mut applied = Ok(());
        // Reloads are serialized, so that two at once do not leave the limits of one and the rest of the other.
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

    /// Refuses new questions, lets running lookups finish within their budget, and reports how that went. Safe to call twice.
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
            entry.hits.fetch_add(1, Ordering::Relaxed);
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
                let hits = entry.hits.fetch_add(1, Ordering::Relaxed) + 1;
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
            // This caller joined a lookup whose budget is now spent, while its own is not: it begins another.
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

    /// The older answer, where the lookup failed with an error that says nothing about the key.
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
