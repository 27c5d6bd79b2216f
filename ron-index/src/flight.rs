//! One lookup and all callers that wait for it: a key that is asked for twice is looked up once.
//!
//! A lookup does not belong to any of its callers: one that gives up leaves it to the others. Its answer goes into the cache
//! before its place is free, so that no caller can begin a second lookup in between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{Deadline, LockSpec, Pass, Snapshot};
use tokio::time::Instant;

use crate::{
    IndexError,
    logic::{cache::Entry, key::Key},
    source::Provider,
};

pub(crate) const FLIGHTS: LockSpec = LockSpec::new("ron-index", "flights", 500)
    .guards("which keys are being looked up; held for a map operation and a push");

/// How long after its deadline a lookup may take to report what it has found.
pub(crate) const GRACE: Duration = Duration::from_millis(25);

/// The progress of a lookup.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The providers found so far, with the labels of their sources.
    pub(crate) providers: Vec<(Provider, &'static str)>,
    /// How it ended.
    pub(crate) outcome: Option<Result<Arc<Entry>, IndexError>>,
}

/// A lookup that waits or runs.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) key: Key,
    pub(crate) deadline: Deadline,
    pub(crate) began: Instant,
    /// Whether it is a refresh or a warm-up, which no caller asked for.
    pub(crate) is_background: bool,
    pub(crate) progress: Snapshot<Progress>,
    waiters: AtomicUsize,
    /// The place of the client that began it.
    _pass: Option<Pass>,
}

impl Flight {
    pub(crate) fn new(
        key: Key,
        deadline: Deadline,
        began: Instant,
        is_background: bool,
        pass: Option<Pass>,
    ) -> Self {
        let (progress, waiters) = (Snapshot::new(Progress::default()), AtomicUsize::new(0));
        Flight { key, deadline, began, is_background, progress, waiters, _pass: pass }
    }

    /// Somebody waits, for as long as the guard lives.
    pub(crate) fn attend(self: &Arc<Self>) -> Waiter {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter(Arc::clone(self))
    }

    /// Whether nobody would notice if it never ran.
    pub(crate) fn is_abandoned(&self) -> bool {
        !self.is_background && self.waiters.load(Ordering::Acquire) == 0
    }

    pub(crate) fn finish(&self, outcome: Result<Arc<Entry>, IndexError>) {
        self.progress.update(|progress| match progress.outcome {
            Some(_) => progress.clone(),
            None => Progress { outcome: Some(outcome), ..progress.clone() },
        });
    }
}

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter(pub(crate) Arc<Flight>);

impl Waiter {
    /// Waits for the outcome until [`patience`](Self::patience) is over.
    pub(crate) async fn outcome(&self, deadline: Deadline) -> Result<Arc<Entry>, IndexError> {
        let until = self.patience(deadline);
        let mut progress = self.0.progress.watch();
        loop {
            if let Some(outcome) = &progress.get().outcome {
                return outcome.clone();
            }
            until.limit("resolve", progress.changed()).await?;
        }
    }

    /// How long to wait: until `deadline`, or, if that is about when the lookup ends, until the lookup has reported.
    pub(crate) fn patience(&self, deadline: Deadline) -> Deadline {
        let end = self.0.deadline.instant() + GRACE;
        if deadline.instant() + GRACE >= self.0.deadline.instant() { Deadline::at(end) } else { deadline }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}
