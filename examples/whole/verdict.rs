//! What was seen: promises that were broken, refusals by their kinds, and how often each thing happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ErrorKind, Refusal, now};
use tokio::time::Instant;

/// Broken promises that are kept word for word. The first is what matters.
const KEPT: usize = 40;

/// Where all checkers write. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Verdict {
    began: Instant,
    log: bool,
    state: Arc<Mutex<Seen>>,
}

/// What was seen so far. Equal runs have equal ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Promises that were broken, and how many.
    pub(crate) broken: Vec<String>,
    pub(crate) broken_count: usize,
    /// How often each thing happened.
    pub(crate) counts: BTreeMap<String, u64>,
    /// Refusals, by what was asked and what the caller was told.
    pub(crate) refusals: BTreeMap<(&'static str, &'static str), u64>,
}

impl Verdict {
    pub(crate) fn new(log: bool) -> Self {
        Verdict { began: now(), log, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since the run began.
    pub(crate) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// A promise was broken.
    pub(crate) fn broken(&self, what: impl Into<String>) {
        let what = format!("{:8.2} s: {}", self.elapsed().as_secs_f64(), what.into());
        let mut state = self.state();
        state.broken_count += 1;
        if state.broken.len() < KEPT {
            println!("BROKEN {what}");
            state.broken.push(what);
        }
    }

    /// A promise was broken, unless it holds.
    pub(crate) fn promised(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken(what());
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state().broken_count > 0
    }

    /// Something happened.
    pub(crate) fn count(&self, what: &str) {
        self.add(what, 1);
    }

    pub(crate) fn add(&self, what: &str, times: usize) {
        let mut state = self.state();
        match state.counts.get_mut(what) {
            Some(count) => *count += times as u64,
            None => drop(state.counts.insert(what.to_owned(), times as u64)),
        }
    }

    /// For whoever narrows a failure.
    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.log {
            println!("{:8.2} s: {}", self.elapsed().as_secs_f64(), what());
        }
    }

    /// Somebody was refused. Whatever the reason, it has a kind, and it is not our own mistake.
    pub(crate) fn refused(&self, what: &'static str, error: &dyn Refusal) {
        let kind = match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Canceled => "canceled",
            ErrorKind::NotReady => "not ready",
            ErrorKind::Caller => "caller",
            ErrorKind::Peer => "peer",
            ErrorKind::Disk => "disk",
            ErrorKind::Bug => {
                self.broken(format!("{what} ended with a bug: {error}"));
                "bug"
            }
            other => {
                self.broken(format!("{what} ended with {other:?}, which nobody knows: {error}"));
                "unknown"
            }
        };
        *self.state().refusals.entry((what, kind)).or_default() += 1;
        self.say(|| format!("{what} refused, {kind}: {error}"));
    }

    pub(crate) fn seen(&self) -> Seen {
        self.state().clone()
    }
}
