//! The only writer of the breakers. It counts how sources answer, and probes those that are left alone.

use std::{sync::Arc, time::Duration};

use ron_core::{Admission, Breaker, BreakerState, Deadline, Inbox, LaneSpec, Restart, Stop, TaskSpec, now};
use tokio::time::{Instant, sleep_until};

use crate::{
    Event,
    inner::{BreakerView, Inner, Source},
    many::Many,
    metrics::BREAKER_STATE,
    source::SourceError,
};

pub(crate) const BEHAVIOUR: LaneSpec = LaneSpec::new("ron-index", "behaviour", 1024)
    .shed_oldest()
    .flow("workers → breaker janitor")
    .why("how sources answered; when there is too much to count, the latest is worth most");

pub(crate) const BREAKER_JANITOR: TaskSpec = TaskSpec::new("ron-index", "breaker_janitor")
    .restart(Restart::PROMPT)
    .what("the only writer of the breakers: counts how sources answer, and probes those that are left alone");

/// How a source answered.
pub(crate) struct Behaviour {
    pub(crate) source: Source,
    pub(crate) is_failure: bool,
}

/// How often the breakers are looked at even if nothing happens, so that the gauges follow.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Keeps the breakers until the stop.
pub(crate) async fn keep_breakers(inner: Arc<Inner>, inbox: Inbox<Behaviour>, stop: Stop) {
    let settings = inner.settings.load();
    let all = inner.sources.all();
    let fresh = || Breaker::new(settings.breaker(), now()).expect("the settings were checked");
    let mut breakers: Vec<Breaker> = all.iter().map(|_| fresh()).collect();
    let mut probes: Many<(usize, Admission), Result<(), SourceError>> = Many::default();
    let mut states = vec![None; all.len()];
    show(&inner, &all, &mut states, &breakers);
    loop {
        let wake = breakers.iter().filter_map(Breaker::wake_at).min();
        let wake = wake.map_or_else(|| now() + LOOK_EVERY, |at| at.max(now() + Duration::from_millis(1)));
        tokio::select! {
            biased;
            () = stop.requested() => return,
            behaviour = inbox.recv() => {
                let Some(Behaviour { source, is_failure }) = behaviour else { return };
                let breaker = &mut breakers[inner.sources.number(source)];
                // One that is refused began before the breaker opened, and says nothing new.
                if let Ok(admission) = breaker.admit(now()) {
                    if is_failure { breaker.on_failure(admission, now()) } else { breaker.on_success(admission, now()) }
                }
            }
            done = probes.next(|| false), if !probes.is_empty() => {
                if let Some(((number, admission), done)) = done {
                    match done {
                        Ok(Ok(())) => breakers[number].on_success(admission, now()),
                        _ => breakers[number].on_failure(admission, now()),
                    }
                }
            }
            () = sleep_until(wake) => {}
        }
        for (number, breaker) in breakers.iter_mut().enumerate() {
            while let Some(admission) = breaker.admit_probe(now()) {
                let timeout = inner.settings.load().probe_timeout;
                probes.push((number, admission), Box::pin(probe(Arc::clone(&inner), all[number], timeout)));
            }
        }
        show(&inner, &all, &mut states, &breakers);
    }
}

/// Asks a source whether it works, in nobody's name.
async fn probe(inner: Arc<Inner>, source: Source, timeout: Duration) -> Result<(), SourceError> {
    let deadline = Deadline::after(timeout);
    let asked = match source {
        Source::Name(at) => inner.sources.names[at].probe(deadline),
        Source::Manifest(at) => inner.sources.manifests[at].probe(deadline),
        Source::Providers(at) => inner.sources.providers[at].probe(deadline),
    };
    deadline.limit("probe", asked).await.unwrap_or(Err(SourceError::Timeout))
}

/// Publishes how the breakers stand.
fn show(inner: &Inner, all: &[Source], states: &mut [Option<BreakerState>], breakers: &[Breaker]) {
    let now = now();
    let view = |breaker: &Breaker| {
        let until: Instant = breaker.wake_at().unwrap_or(inner.born);
        BreakerView { state: breaker.state(now), until }
    };
    let views: Vec<BreakerView> = breakers.iter().map(view).collect();
    if *inner.breakers.load() != views {
        inner.breakers.replace(views.clone());
    }
    let mut has_moved = false;
    for ((source, view), state) in all.iter().zip(&views).zip(states.iter_mut()) {
        let before = state.replace(view.state);
        has_moved |= before != Some(view.state);
        if before.is_some_and(|before| before != view.state) {
            let target = inner.sources.label(*source);
            tracing::info!(source = target, state = ?view.state, "breaker");
            inner.events.publish(Event::BreakerMoved { target, state: view.state });
        }
    }
    if !has_moved {
        return;
    }
    for source in all {
        let label = inner.sources.label(*source);
        for (state, name) in [
            (BreakerState::Closed, "closed"),
            (BreakerState::Open, "open"),
            (BreakerState::HalfOpen, "half_open"),
        ] {
            let is_same = |(other, view): &(&Source, &BreakerView)| {
                inner.sources.label(**other) == label && view.state == state
            };
            let count = all.iter().zip(&views).filter(is_same).count();
            inner.metrics.gauge_with(BREAKER_STATE, &[("target", label), ("state", name)]).set(count as f64);
        }
    }
}
