//! What was seen: promises that were broken, refusals by their kinds, and how often each thing happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ErrorKind, Refusal, now};
use tokio::time::Instant;

use crate::options::Options;

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
    /// Why each node that has not started did not when it first tried.
    starts: BTreeMap<u8, String>,
}

impl Seen {
    /// The first promise that was broken in one of these words.
    pub(crate) fn broken_as(&self, words: &[&str]) -> Option<&String> {
        self.broken.iter().find(|broken| words.iter().any(|word| broken.contains(word)))
    }

    /// How often something happened.
    pub(crate) fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// What happened too seldom for a run to say anything, in words. A third of what the leanest of many runs had.
    pub(crate) fn too_seldom(&self, options: &Options) -> Vec<String> {
        let seconds = options.trouble().as_secs();
        let mut seldom = Vec::new();
        let mut least = |what: &str, least: u64| {
            let times = self.count(what);
            if times < least {
                seldom.push(format!("{what}: {times} times, and {least} are the least"));
            }
        };
        for (what, times) in FLOORS {
            least(what, times * seconds / 600);
        }
        for (what, times) in NODE_FLOORS {
            least(what, times * u64::from(options.nodes) * seconds / 600);
        }
        if options.trouble() >= ALL_FAULTS {
            for fault in &options.faults {
                least(&format!("fault: {}", fault.name()), 1);
            }
        }
        seldom
    }
}

/// Each fault that is switched on happens in a run that is this long.
pub(crate) const ALL_FAULTS: Duration = Duration::from_secs(300);

/// What happens at least so often in ten minutes, whatever goes wrong.
const FLOORS: &[(&str, u64)] = &[
    ("put", 100),
    ("read", 400),
    ("delete", 40),
    ("policy changed", 30),
    ("owed and there", 100),
    ("deleted and gone", 40),
    ("fetched", 10),
    ("named", 20),
    ("rotated", 5),
    ("resolved", 30),
    ("located", 50),
    ("found", 50),
    ("news published", 60),
    ("asked and answered", 500),
];

/// What happens at least so often in ten minutes on each server.
const NODE_FLOORS: &[(&str, u64)] = &[
    ("news heard", 60),
    ("put on one node", 80),
    ("deleted on one node", 40),
    ("queues seen", 10_000),
    // What a node tells about its memory, each once a second.
    ("cache of the index in bytes", 300),
    ("clients of the index in bytes", 300),
    ("records of the DHT in bytes", 300),
    ("egress_bytes", 300),
    ("get_streams", 300),
    ("put_streams", 300),
    ("claims", 300),
];

impl Verdict {
    pub(crate) fn new(log: bool) -> Self {
        Verdict { began: now(), log, state: Arc::default() }
    }

    /// A node did not start. What it says first is why: after that its own address is taken, as a program that goes on leaves it.
    pub(crate) fn start_refused(&self, number: u8, why: &str) {
        self.count("start refused");
        let is_first = !self.state().starts.contains_key(&number);
        if is_first {
            self.state().starts.insert(number, why.to_owned());
            self.say(|| format!("{number} does not start: {why}"));
        }
    }

    /// A node has started.
    pub(crate) fn started(&self, number: u8) {
        self.state().starts.remove(&number);
    }

    /// Why a node has not started yet.
    pub(crate) fn why_not_started(&self, number: u8) -> Option<String> {
        self.state().starts.get(&number).cloned()
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

    /// Whether a promise was broken, in one of these words.
    pub(crate) fn is_broken(&self, words: &[&str]) -> bool {
        self.state().broken_as(words).is_some()
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
