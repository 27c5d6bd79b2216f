//! What was seen: promises that were broken, refusals by their kinds, and how often each thing happened.

use std::{
    collections::BTreeMap,
    panic::Location,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ErrorKind, Refusal, now};
use tokio::time::Instant;

use crate::options::{Fault, Log, Options};

/// Kinds of broken promises that are kept, each with the words of the first. What is of none of them is told each time.
const KINDS: usize = 40;

/// Words of so many letters are names of something: content, or a node.
pub(crate) const NAME_LETTERS: usize = 16;

/// The files that hold promises, and what each of them is about.
pub(crate) const CHECKERS: &[(&str, &str)] = &[
    ("shared", "objects that many keep are given, right, and what was deleted is not"),
    ("losses", "objects survive the disks that their policy says, and who has one gives it"),
    ("kept", "a store has what it acknowledged after each loss of power, and not what it deleted"),
    ("names", "there is one log, names stand for what was decided in it, nobody else decides"),
    ("provided", "who provides something is found, and nobody else"),
    ("news", "what is published is heard once and as it was said, or its absence is told"),
    ("watch", "queues, memory, tasks and readiness of each node are as declared"),
    ("faults", "who is asked to stop does what it took in, and ends"),
    ("hostile", "nobody takes a liar in"),
    ("peace", "once all is well everybody answers, starts again and ends"),
    ("verdict", "a refusal has a reason that is not a mistake of ours"),
];

/// Where all checkers write. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Verdict {
    began: Instant,
    log: Log,
    state: Arc<Mutex<Seen>>,
}

/// What was seen so far. Equal runs have equal ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Promises that were broken, each kind once, and how many in all.
    pub(crate) broken: Vec<Broken>,
    pub(crate) broken_count: usize,
    /// How often each checker found a promise kept.
    pub(crate) kept: BTreeMap<String, u64>,
    /// How full queues were, and what else is bounded, by name.
    pub(crate) queues: BTreeMap<&'static str, Level>,
    pub(crate) levels: BTreeMap<&'static str, Level>,
    /// How often each thing happened.
    pub(crate) counts: BTreeMap<String, u64>,
    /// Refusals, by what was asked and what the caller was told.
    pub(crate) refusals: BTreeMap<(&'static str, &'static str), u64>,
    /// Why each node that has not started did not when it first tried.
    starts: BTreeMap<u8, String>,
}

/// A promise that was broken, perhaps more than once: a condition that lasts is noticed at every look, and one mistake shows on
/// many nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The checker that noticed it.
    pub(crate) by: &'static str,
    /// In the words of the first.
    pub(crate) what: String,
    /// The words without numbers and names, which all of the kind have.
    kind: String,
    pub(crate) times: u64,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

/// What is bounded, where it was nearest to its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    /// How often somebody looked.
    looks: u64,
    pub(crate) used: u64,
    pub(crate) max: u64,
}

impl Level {
    /// What share of what it may be it was.
    pub(crate) fn share(&self) -> f64 {
        self.used as f64 / self.max.max(1) as f64
    }

    fn look(&mut self, used: u64, max: u64) {
        let now = Level { looks: self.looks + 1, used, max };
        *self = if self.looks == 0 || now.share() > self.share() {
            now
        } else {
            Level { looks: now.looks, ..*self }
        };
    }
}

/// A checker is a file.
fn checker(by: &'static Location<'static>) -> &'static str {
    Path::new(by.file()).file_stem().and_then(|file| file.to_str()).unwrap_or_default()
}

/// Words without what differs between two promises of a kind: numbers, and names of content and nodes.
fn kind(what: &str) -> String {
    let is_word = |letter: char| letter.is_alphanumeric();
    let differs =
        |word: &str| word.len() >= NAME_LETTERS || word.contains(|letter: char| letter.is_ascii_digit());
    let mut kind = String::new();
    let mut rest = what;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter| is_word(letter) != is_word(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        kind.push_str(if is_word(first) && differs(word) { "#" } else { word });
        rest = after;
    }
    // Of lists it does not matter how long they are.
    while kind.contains("#, #") {
        kind = kind.replace("#, #", "#");
    }
    kind
}

impl Seen {
    /// The first promise that was broken in one of these words.
    pub(crate) fn broken_as(&self, words: &[&str]) -> Option<&Broken> {
        self.broken.iter().find(|broken| words.iter().any(|word| broken.what.contains(word)))
    }

    /// How often something happened.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let looks = || self.levels.get(what).map(|level| level.looks);
        self.counts.get(what).copied().or_else(looks).unwrap_or(0)
    }

    /// How many faults happened.
    pub(crate) fn faults(&self) -> u64 {
        Fault::ALL.iter().map(|fault| self.count(&format!("fault: {}", fault.name()))).sum()
    }

    /// What peace began with, in words.
    pub(crate) fn before_peace(&self) -> &'static str {
        if self.faults() > 0 { "the last fault had ended" } else { "the users had stopped" }
    }

    /// What happened too seldom for a run to say anything, in words. Of a run that is cut short nothing is asked: it is to show what
    /// broke in it.
    pub(crate) fn too_seldom(&self, options: &Options) -> Vec<String> {
        if options.until.is_some() {
            return Vec::new();
        }
        let seconds = options.trouble().as_secs();
        // What there is once at the end grows no more when a run is longer than this.
        let short = seconds.min(600);
        let nodes = u64::from(options.nodes);
        let mut seldom = Vec::new();
        let mut least = |what: &str, least: u64| {
            let times = self.count(what);
            if times < least {
                seldom.push(format!("{what}: {times} times, and {least} are the least"));
            }
        };
        // One that is shorter may have its trouble where others have their work.
        let luck = if seconds < 600 { 3 } else { 1 };
        for (what, times) in FLOORS {
            least(what, times * seconds / 600 / luck);
        }
        for (what, times) in NODE_FLOORS {
            least(what, times * nodes * seconds / 600 / luck);
        }
        for (what, times) in END_FLOORS {
            least(what, times * nodes * short / 600);
        }
        for (what, times) in ONCE {
            least(what, times * nodes);
        }
        // There are the more objects the longer a run is, and all are counted at every look.
        least("owed, and on machines that are up", self.count("looked at all objects") * 20 * short / 600);
        // A disk may get room again before it is asked, and whoever is back may be off again before all was looked through.
        for (what, of, each) in FOLLOWING {
            least(what, self.count(of) / each);
        }
        if options.trouble() >= ALL_FAULTS {
            for fault in &options.faults {
                least(&format!("fault: {}", fault.name()), 1);
            }
            if options.faults.len() == Fault::ALL.len() {
                let idle = CHECKERS.iter().filter(|(checker, _)| !self.kept.contains_key(*checker));
                seldom.extend(idle.map(|(checker, what)| format!("{checker} has looked at nothing: {what}")));
            }
        }
        seldom
    }
}

/// Each fault that is switched on happens in a run that is this long.
pub(crate) const ALL_FAULTS: Duration = Duration::from_secs(300);

/// What happens at least so often in ten minutes, whatever goes wrong: a third of what the leanest of many runs had. In a longer run it
/// is as much more, and in a shorter one a third of as much less.
const FLOORS: &[(&str, u64)] = &[
    ("put", 100),
    ("read", 400),
    ("delete", 40),
    ("policy changed", 30),
    ("owed and there", 100),
    ("deleted and gone", 40),
    ("named", 20),
    ("rotated", 5),
    ("resolved", 30),
    ("located", 50),
    ("found", 50),
    ("news published", 60),
    ("asked and answered", 500),
    ("asked, and owed an answer", 100),
    ("downloaded", 25),
    ("read in part", 50),
    ("readable", 600),
    ("looked at all objects", 20),
    ("entry compared", 150),
    ("copy of the log compared", 50),
    ("receipts", 90),
    ("usurped: waits for others", 6),
];

/// What the liar says, each in some of many runs.
pub(crate) const LIES: &[&str] = &[
    "claims objects",
    "forged records",
    "forged, repeated and junk messages",
    "intrudes with another's proof",
    "intrudes with junk",
    "intrudes without a proof",
    "junk in ron/blob/1",
    "junk in ron/dht/1",
    "junk in ron/keep/1",
    "junk in ron/oap/1",
    "junk in ron/reg/1",
    "offers objects",
    "provides what it has not",
    "shows a proof that it was shown",
    "wrong bytes",
];

/// What happens at least so often in ten minutes for each server, and more or less in a run of another length as above.
const NODE_FLOORS: &[(&str, u64)] = &[
    ("news heard", 60),
    ("put on one node", 80),
    ("deleted on one node", 40),
    ("kept through a restart", 30),
    ("seen with nothing of its own to excuse it", 25),
    ("queues seen", 10_000),
    // What a node tells about its memory, each once a second.
    ("cache of the index in bytes", 300),
    ("clients of the index in bytes", 300),
    ("lookups of the index", 300),
    ("records of the DHT in bytes", 300),
    ("egress_bytes", 300),
    ("get_streams", 300),
    ("put_streams", 300),
    ("claims", 300),
];

/// What is asked once at the end, for each server, of what ten minutes left; of more than that there is no more.
const END_FLOORS: &[(&str, u64)] = &[("owed by name", 1)];

/// What happens once in every run, for each server: at the end everybody loses power, and everybody is shown a fork.
const ONCE: &[(&str, u64)] =
    &[("store opened after a crash", 1), ("fork shown", 1), ("seen with nothing anywhere to excuse it", 30)];

/// What follows from something else: once for so many times.
const FOLLOWING: &[(&str, &str, u64)] = &[
    ("asked while its disk was full", "left hardly any room", 6),
    ("refused because its disk was full", "asked while its disk was full", 8),
    ("put while it stopped", "stopped while it was well", 2),
    ("kept through a stop that it was put in", "stopped while it was well", 8),
];

impl Verdict {
    pub(crate) fn new(log: Log) -> Self {
        Verdict { began: now(), log, state: Arc::default() }
    }

    /// A node did not start. What it says first is why: after that its own address is taken, as a program that goes on leaves it.
    pub(crate) fn start_refused(&self, number: u8, why: &dyn Refusal) {
        self.count("start refused");
        self.refused("start", why);
        let is_first = !self.state().starts.contains_key(&number);
        if is_first {
            self.state().starts.insert(number, why.to_string());
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

    /// A promise was broken. The first of its kind is printed. Whoever calls it is the checker.
    #[track_caller]
    pub(crate) fn broken(&self, what: impl Into<String>) {
        self.broken_by(checker(Location::caller()), what);
    }

    /// A promise was broken, as a checker says that is not the caller.
    pub(crate) fn broken_by(&self, by: &'static str, what: impl Into<String>) {
        let (what, at) = (what.into(), self.elapsed());
        let kind = kind(&what);
        let mut state = self.state();
        state.broken_count += 1;
        if let Some(known) = state.broken.iter_mut().find(|known| known.by == by && known.kind == kind) {
            (known.times, known.last) = (known.times + 1, at);
            drop(state);
            return self.say_all(|| format!("BROKEN once more, {by}: {what}"));
        }
        tell!("BROKEN {by}: at {:.2} s, {what}", at.as_secs_f64());
        if state.broken.len() < KINDS {
            state.broken.push(Broken { by, what, kind, times: 1, first: at, last: at });
        }
    }

    /// A promise was broken, unless it holds. Whoever calls it is the checker.
    #[track_caller]
    pub(crate) fn promised(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            return self.broken(what());
        }
        self.was_kept(Location::caller());
    }

    fn was_kept(&self, by: &'static Location<'static>) {
        let checker = checker(by);
        let mut state = self.state();
        match state.kept.get_mut(checker) {
            Some(times) => *times += 1,
            None => drop(state.kept.insert(checker.to_owned(), 1)),
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

    /// Of a queue so much is full.
    pub(crate) fn queue(&self, name: &'static str, depth: usize, capacity: usize) {
        self.state().queues.entry(name).or_default().look(depth as u64, capacity as u64);
    }

    /// What is bounded is so much.
    pub(crate) fn level(&self, name: &'static str, used: u64, max: u64) {
        self.state().levels.entry(name).or_default().look(used, max);
    }

    /// For whoever narrows a failure: what is done to the nodes, and what they miss.
    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.log >= Log::Faults {
            tell!("{:8.2} s: {}", self.elapsed().as_secs_f64(), what());
        }
    }

    /// What there is much of: every refusal.
    pub(crate) fn say_all(&self, what: impl FnOnce() -> String) {
        if self.log >= Log::All {
            tell!("{:8.2} s: {}", self.elapsed().as_secs_f64(), what());
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
        if error.kind() != ErrorKind::Bug {
            self.was_kept(Location::caller());
        }
        self.say_all(|| format!("{what} refused, {kind}: {error}"));
    }

    pub(crate) fn seen(&self) -> Seen {
        self.state().clone()
    }
}
