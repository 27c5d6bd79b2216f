//! What is answered: one answer as a whole, or providers one by one as they are found.

use std::{sync::Arc, time::Duration};

use ron_core::{Deadline, Pass, Tally, now};

use crate::{
    IndexError,
    flight::Waiter,
    logic::{
        cache::{Entry, Resolution},
        rank::Ranked,
    },
    metrics::Counts,
    source::Provider,
};

/// Why an answer that is no longer fresh was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stale {
    /// A lookup is refreshing it.
    WhileRevalidate,
    /// The lookup that should have refreshed it failed.
    IfError,
}

impl Stale {
    /// As HTTP answers write it.
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
    /// Why it is not fresh; `None` if it is.
    pub stale: Option<Stale>,
    /// Whether it came from the cache, without a lookup.
    pub is_cached: bool,
}

impl Answer {
    /// What was found.
    ///
    /// # Panics
    /// Never: an answer is only made when something was found.
    #[must_use]
    pub fn resolution(&self) -> &Resolution {
        self.entry.found.as_ref().expect("an answer is only made when something was found")
    }

    /// How long it is fresh, counted from when it was made.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.entry.ttl
    }

    /// The best providers, at most `limit`.
    #[must_use]
    pub fn providers(&self, limit: usize) -> &[Ranked] {
        let providers = &self.resolution().providers;
        &providers[..limit.min(providers.len())]
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
pub(crate) enum Finding {
    Known(Arc<Entry>),
    /// With an older answer, if there is one that may be given should the lookup fail.
    Coming(Waiter, Option<Arc<Entry>>),
    Over,
}

impl Found {
    pub(crate) fn new(
        state: Finding,
        stale: Option<Stale>,
        limit: usize,
        deadline: Deadline,
        counts: &Counts,
        pass: Option<Pass>,
    ) -> Self {
        Found {
            state,
            stale,
            next: 0,
            limit,
            deadline,
            if_error: counts.if_error.clone(),
            deadline_hit: counts.deadline_hit.clone(),
            late: counts.find_late.clone(),
            _pass: pass,
        }
    }

    /// The next provider and the label of its source; `None` when there are no more. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Index::resolve`](crate::Index::resolve), once, if no provider was found. Where an older answer may still be
    /// served, its providers come instead, and [`stale`](Self::stale) says so.
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
                        // A lookup that took its providers from the cache did not report them one by one.
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
        // The providers given so far are right, and the older answer would only repeat them.
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

    /// Why the providers are not fresh; `None` if they are, or as long as that is not known: before the first
    /// [`next`](Self::next).
    #[must_use]
    pub fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// The age of the answer that the providers come from and how long it is fresh; `None` during a lookup.
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
