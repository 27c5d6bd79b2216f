//! The workers. Each runs one lookup at a time: it asks sources as [`Resolve`] decides, and reports their answers to it.

use std::{sync::Arc, time::Duration};

use ron_core::{Inbox, now};
use tokio::time::{Instant, sleep_until};

use crate::{
    IndexError,
    breakers::Behaviour,
    flight::Flight,
    inner::{Inner, Source},
    janitor::{Finished, Write},
    logic::{
        cache::{Entry, Freshness, Resolution},
        key::Key,
        race::Question,
        rank::rank,
        resolve::{Do, Failure, Gathered, Resolve, ResolveSettings, Sources, Verdict},
    },
    many::Many,
    metrics::{HEDGES, LOOKUPS},
    settings::{PROVIDERS_LIMIT, Settings},
    source::{Answered, Ask, Manifest, NameRecord, SourceError},
};

/// How long an answer may wait for the janitor before its callers get it anyway. Only a janitor that hangs takes longer.
const HAND_OVER: Duration = Duration::from_secs(5);

/// A question that a source has not answered yet.
struct Slot {
    source: Source,
    began: Instant,
    ask: Option<Arc<Ask>>,
}

/// What a source said.
enum Said {
    Name(Result<Option<NameRecord>, SourceError>),
    Manifest(Result<Option<Manifest>, SourceError>),
    Providers(Result<Answered, SourceError>),
}

/// Takes lookups and runs them until the lane is closed and empty.
pub(crate) async fn work(inner: Arc<Inner>, inbox: Inbox<Arc<Flight>>) {
    while let Some(flight) = inbox.recv().await {
        if inner.skip_if_abandoned(&flight) {
            inner.metrics.tally(LOOKUPS, "abandoned").add(1);
            continue;
        }
        let landing = Landing { inner: &inner, flight: Some(flight) };
        // Boxed, because most workers wait most of the time, and need no room for a lookup.
        Box::pin(run(landing)).await;
    }
}

/// Ends the lookup with an error if the worker panics or is aborted, so that its callers do not wait for ever.
struct Landing<'a> {
    inner: &'a Arc<Inner>,
    flight: Option<Arc<Flight>>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let is_panic = std::thread::panicking();
            let why = if is_panic { IndexError::Panicked { op: "resolve" } } else { IndexError::Canceled };
            self.inner.land(&flight, Err(why));
        }
    }
}

async fn run(mut landing: Landing<'_>) {
    let inner = landing.inner;
    let Some(flight) = landing.flight.clone() else { return };
    let finished = look_up(inner, &flight).await;
    let result = match &finished.outcome {
        Ok(entry) if entry.found.is_some() => "found",
        Ok(_) => "nothing",
        Err(IndexError::Timeout { .. }) => "timeout",
        Err(IndexError::NotFound) => "not_found",
        Err(_) => "failed",
    };
    inner.metrics.tally(LOOKUPS, result).add(1);
    if let Some(limit) = &mut inner.adapting.lock().limit {
        limit.on_done(flight.began.elapsed(), result == "timeout");
    }
    landing.flight = None;
    let outcome = finished.outcome.clone();
    let handed =
        inner.writes.push(Write::Finish(Arc::clone(&flight), finished), ron_core::Deadline::after(HAND_OVER));
    if handed.await.is_err() {
        inner.land(&flight, outcome);
    }
}

/// Asks until there is a verdict or the budget is spent.
async fn look_up(inner: &Arc<Inner>, flight: &Arc<Flight>) -> Finished {
    let settings = inner.settings.load();
    let names = match &flight.key {
        Key::Name(name) => {
            let serving = inner.sources.names.iter().enumerate().filter(|(_, source)| source.serves(name));
            serving.map(|(at, _)| at).collect()
        }
        _ => Vec::new(),
    };
    let whom =
        Sources { names, manifests: inner.sources.manifests.len(), providers: inner.sources.providers.len() };
    let rng = fastrand::Rng::with_seed(inner.rng.lock().u64(..));
    let mut resolve = Resolve::new(&flight.key, whom, resolving(inner, &settings), rng, now());
    let mut out: Many<Slot, Said> = Many::default();
    let mut known_until = None;
    let mut failures = Failures::default();
    loop {
        while let Some(step) = resolve.poll() {
            known_until = perform(inner, flight, &settings, &mut resolve, &mut out, step).or(known_until);
        }
        if resolve.verdict().is_some() {
            break;
        }
        if resolve.has_providers() {
            let gone = out.retain(|slot| !matches!(slot.source, Source::Providers(_)));
            gone.iter().for_each(|slot| on_lost(inner, slot, &settings));
        }
        let wake = resolve.wake_at();
        let asks: Vec<Arc<Ask>> = out.keys().filter_map(|slot| slot.ask.clone()).collect();
        let has_found = || asks.iter().any(|ask| ask.has_found());
        tokio::select! {
            biased;
            said = out.next(has_found) => match said {
                Some((slot, said)) => {
                    bring(inner, flight, &mut resolve, &slot);
                    on_said(inner, &mut resolve, &mut failures, &slot, said);
                }
                None => out.keys().for_each(|slot| bring(inner, flight, &mut resolve, slot)),
            },
            () = sleep_until(wake.unwrap_or_else(now)), if wake.is_some() => {
                let mut adapting = inner.adapting.lock();
                resolve.on_tick(now(), || adapting.hedging.spend());
            }
            () = sleep_until(flight.deadline.instant()) => {
                out.keys().for_each(|slot| bring(inner, flight, &mut resolve, slot));
                resolve.on_deadline();
            }
        }
    }
    let is_late = flight.deadline.has_passed();
    out.keys().for_each(|slot| {
        if is_late { on_late(inner, slot, &settings) } else { on_lost(inner, slot, &settings) }
    });
    if let Some(won) = resolve.hedge_won() {
        inner.metrics.tally(HEDGES, if won { "won" } else { "lost" }).add(1);
    }
    let verdict = match resolve.verdict().cloned().unwrap_or(Verdict::Failed(Failure::Late)) {
        // A node without peers cannot find providers, but what the name stands for is proven all the same.
        Verdict::Failed(Failure::Failed) if failures.is_too_early() => {
            resolve.named().map_or(Verdict::Failed(Failure::Failed), Verdict::Found)
        }
        verdict => verdict,
    };
    conclude(inner, flight, &settings, verdict, known_until, failures)
}

/// How the sources failed that did not answer, as far as callers can act on it.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    not_ready: Option<&'static str>,
    others: bool,
}

impl Failures {
    pub(crate) fn add(&mut self, error: &SourceError) {
        match error {
            SourceError::NotReady { gate } => self.not_ready = Some(gate),
            _ => self.others = true,
        }
    }

    /// Whether all of them were only not ready.
    fn is_too_early(&self) -> bool {
        self.not_ready.is_some() && !self.others
    }

    /// The error if no source answered.
    pub(crate) fn verdict(&self) -> IndexError {
        match self.not_ready {
            Some(gate) if !self.others => IndexError::NotReady { gate },
            _ => IndexError::Unavailable,
        }
    }
}

fn resolving(inner: &Inner, settings: &Settings) -> ResolveSettings {
    ResolveSettings {
        alpha: settings.alpha.get(),
        beta: settings.beta,
        hedge_after: settings.hedge_delay(&inner.adapting.lock().hedging),
        retries: settings.retries,
        enough: settings.enough.get(),
        providers_max: PROVIDERS_LIMIT,
    }
}

/// Carries out one step. If that was a look into the cache and found the content, returns until when the entry is fresh.
fn perform(
    inner: &Arc<Inner>,
    flight: &Flight,
    settings: &Settings,
    resolve: &mut Resolve,
    out: &mut Many<Slot, Said>,
    step: Do,
) -> Option<Instant> {
    let (source, question) = match &step {
        Do::LookUp(content) => {
            let known = inner.cache.get(&Key::Content(*content)).filter(|entry| {
                matches!(entry.freshness(now(), &settings.staleness()), Freshness::Fresh { .. })
            });
            let until = known.as_ref().map(|entry| entry.born + entry.ttl);
            let known = known.as_ref().and_then(|entry| entry.found.as_ref());
            let known = known.filter(|found| found.is_complete);
            let until = until.filter(|_| known.is_some());
            resolve.on_cached(known.map(|found| (found.manifest, found.providers.clone())), now());
            return until;
        }
        Do::Name(question) => (Source::Name(question.target), *question),
        Do::Manifest(_, question) => (Source::Manifest(question.target), *question),
        Do::Providers(_, question) => (Source::Providers(question.target), *question),
    };
    let counts = &inner.of_source[inner.sources.number(source)];
    if inner.left_alone(source).is_some() {
        counts.left_alone.add(1);
        resolve.on_refused(&step);
        return None;
    }
    let Question { target, is_retry, is_hedge } = question;
    if is_retry {
        counts.retries.add(1);
    }
    let (began, deadline) = (now(), flight.deadline);
    match step {
        Do::LookUp(_) => {}
        Do::Name(_) => {
            let (names, key) = (Arc::clone(&inner.sources.names[target]), flight.key.clone());
            let asking = async move {
                let Key::Name(name) = &key else { return Said::Name(Ok(None)) };
                Said::Name(names.resolve(name, deadline).await)
            };
            out.push(Slot { source, began, ask: None }, Box::pin(asking));
        }
        Do::Manifest(content, _) => {
            if !is_hedge && !is_retry {
                inner.adapting.lock().hedging.on_question(settings.hedge_share);
            }
            let manifests = Arc::clone(&inner.sources.manifests[target]);
            let asking = async move { Said::Manifest(manifests.manifest(content, deadline).await) };
            out.push(Slot { source, began, ask: None }, Box::pin(asking));
        }
        Do::Providers(content, _) => {
            if !is_hedge && !is_retry {
                inner.adapting.lock().hedging.on_question(settings.hedge_share);
            }
            let providers = Arc::clone(&inner.sources.providers[target]);
            let ask = Arc::new(Ask::new(content, settings.enough.get(), deadline, &inner.metrics));
            let asked = Arc::clone(&ask);
            let asking = async move { Said::Providers(providers.find(&asked).await) };
            out.push(Slot { source, began, ask: Some(ask) }, Box::pin(asking));
        }
    }
    None
}

/// Takes the providers that a source has reported so far, and shows them to callers of `Index::find`.
fn bring(inner: &Inner, flight: &Flight, resolve: &mut Resolve, slot: &Slot) {
    let (Some(ask), Source::Providers(target)) = (&slot.ask, slot.source) else { return };
    let label = inner.sources.label(slot.source);
    let brought = ask.take();
    if brought.is_empty() {
        return;
    }
    for provider in brought {
        if resolve.on_found(provider.clone(), label) {
            flight.progress.update(|progress| {
                let mut progress = progress.clone();
                progress.providers.push((provider, label));
                progress
            });
        }
    }
    resolve.on_brought(target, now());
}

/// A source has answered.
fn on_said(
    inner: &Inner,
    resolve: &mut Resolve,
    failures: &mut Failures,
    slot: &Slot,
    said: Result<Said, ()>,
) {
    let now = now();
    let took = now.saturating_duration_since(slot.began);
    let mut failed = |error: SourceError| {
        note(inner, slot, took, Some(&error));
        // Without a manifest there is an answer all the same.
        if !matches!(slot.source, Source::Manifest(_)) {
            failures.add(&error);
        }
        error.is_transient()
    };
    let worked = || note(inner, slot, took, None);
    match (said, slot.source) {
        (Ok(Said::Name(said)), Source::Name(target)) => {
            let said = said.inspect(|_| worked()).map_err(failed);
            resolve.on_name(target, said, now);
        }
        (Ok(Said::Manifest(said)), Source::Manifest(target)) => {
            let said = said.inspect(|_| worked()).map_err(failed);
            resolve.on_manifest(target, said, now);
        }
        (Ok(Said::Providers(said)), Source::Providers(target)) => {
            let said = said.inspect(|_| worked()).map_err(failed);
            resolve.on_providers(target, said, now);
        }
        (_, source) => {
            let is_transient = failed(inner.panicked(source));
            match source {
                Source::Name(target) => resolve.on_name(target, Err(is_transient), now),
                Source::Manifest(target) => resolve.on_manifest(target, Err(is_transient), now),
                Source::Providers(target) => resolve.on_providers(target, Err(is_transient), now),
            }
        }
    }
}

/// Counts how a source behaved and how long it took, and reports it to its breaker.
fn note(inner: &Inner, slot: &Slot, took: Duration, error: Option<&SourceError>) {
    inner.behaved(slot.source, error);
    // How quickly a source says that it is not ready says nothing about how quick it is.
    let is_answer = !matches!(error, Some(SourceError::NotReady { .. }));
    if is_answer && matches!(slot.source, Source::Providers(_)) {
        inner.lookup_seconds.observe(took.as_secs_f64());
        inner.adapting.lock().hedging.on_answer(took);
    }
}

/// A question was cancelled, because enough providers were found. A source that has reported any works. Another one that took
/// longer than the hedge delay counts as failed: else the breaker of a source that never answers would never open.
fn on_lost(inner: &Inner, slot: &Slot, settings: &Settings) {
    let took = slot.began.elapsed();
    let Some(ask) = &slot.ask else { return };
    if ask.has_told() {
        note(inner, slot, took, None);
        return;
    }
    let mut adapting = inner.adapting.lock();
    if took > settings.hedge_delay(&adapting.hedging) {
        adapting.hedging.on_answer(took);
        drop(adapting);
        let _ = inner.behaviour.try_push(Behaviour { source: slot.source, is_failure: true });
    }
}

/// A source had not answered when the budget was spent. One that had less than half of the budget is not to blame.
fn on_late(inner: &Inner, slot: &Slot, settings: &Settings) {
    if slot.began.elapsed() >= settings.budget / 2 {
        note(inner, slot, slot.began.elapsed(), Some(&SourceError::Timeout));
    }
}

/// Makes an entry for the cache from what was gathered: ranks the providers, and decides how long it is fresh.
fn conclude(
    inner: &Inner,
    flight: &Flight,
    settings: &Settings,
    verdict: Verdict,
    known_until: Option<Instant>,
    failures: Failures,
) -> Finished {
    let (now, unix) = (now(), (inner.unix_secs)());
    let entry = |key: &Key, found, ttl| Arc::new(Entry::new(key, found, ttl, now, unix));
    match verdict {
        Verdict::Found(gathered) => {
            let is_name_only = gathered.is_name_only();
            let Gathered { name, content, manifest, providers, is_complete } = gathered;
            let providers = rank(providers, &inner.reputation.lock(), &settings.rank, unix);
            let found = |key: &Key, name| Resolution {
                key: key.clone(),
                name,
                content: content.clone(),
                manifest,
                providers: providers.clone(),
                is_complete,
            };
            let is_good = is_complete && !is_name_only;
            let of_content = if is_good { settings.content_ttl } else { settings.negative_ttl };
            let of_name = name.as_ref().map(|name: &NameRecord| name.ttl.unwrap_or(settings.name_ttl));
            let ttl = of_name.map_or(of_content, |of_name| of_name.min(settings.name_ttl).min(of_content));
            // An answer that comes from the cache keeps its age under the name.
            let ttl = known_until.map_or(ttl, |until| ttl.min(until.saturating_duration_since(now)));
            // The lookup of a name has also found out about its content.
            let also = (name.is_some() && known_until.is_none() && is_good)
                .then(|| (content.clone(), entry(&content, Some(found(&content, None)), of_content)));
            let outcome = Ok(entry(&flight.key, Some(found(&flight.key, name)), ttl));
            // That there are no providers is cached only if a source with the authority to say so has said it.
            Finished { outcome, also, is_kept: is_complete || !is_name_only }
        }
        Verdict::Nothing { is_final: true } => {
            let outcome = Ok(entry(&flight.key, None, settings.negative_ttl));
            Finished { outcome, also: None, is_kept: true }
        }
        Verdict::Nothing { is_final: false } => Finished::failed(IndexError::NotFound),
        Verdict::Failed(Failure::Late) => Finished::failed(IndexError::Timeout { op: "resolve" }),
        Verdict::Failed(Failure::Refused) => Finished::failed(inner.breaker_open()),
        Verdict::Failed(Failure::Failed) => Finished::failed(failures.verdict()),
    }
}
