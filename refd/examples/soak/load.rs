//! Who asks, and for what.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    Outcome,
    node::{Line, Node},
    phase::{Came, KINDS, Kind, Phase, Sample},
};

/// Objects that are there from the beginning to the end.
pub(crate) const OBJECTS: u64 = 2_000;

/// Who asks while the node can keep up, and who does when it cannot.
pub(crate) const CALLERS: usize = 32;
pub(crate) const CROWD: usize = 256;

/// How often somebody commits an entry.
const COMMIT_EVERY: Duration = Duration::from_secs(10);

/// How many wrong answers are told.
const WRONG_MAX: usize = 20;

/// When a request is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// When the one before it is answered.
    AsAnswered,
    /// So many a second.
    Due(f64),
    /// So many a second, and more than can be waited for.
    Crowd(f64),
}

/// The content of an object, by its number.
fn content(number: u64) -> Vec<u8> {
    let length = usize::try_from(1024 + number.wrapping_mul(2_654_435_761) % (63 << 10)).unwrap_or(1024);
    let mut content = vec![0; length];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut content);
    content
}

fn id(content: &[u8]) -> String {
    format!("b3:{}", blake3::hash(content).to_hex())
}

/// Everything that is asked of a node.
pub(crate) struct Load {
    node: Arc<Node>,
    other: Arc<Node>,
    /// Names of those that stay, by their number.
    ids: Vec<String>,
    /// What was put and is deleted when there is more.
    put: Mutex<VecDeque<u64>>,
    next: AtomicU64,
    /// The number of the next entry.
    entry: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// What came of a request.
enum Answered {
    Yes,
    Refused,
    Late,
}

/// What callers tell whoever samples.
#[derive(Default)]
struct Counted {
    came: [Counts; KINDS.len()],
    committed: AtomicU64,
    not_committed: AtomicU64,
    times: Mutex<Vec<Duration>>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    late: AtomicU64,
}

impl Counted {
    fn came(&self) -> [Came; KINDS.len()] {
        KINDS.map(|kind| {
            let counts = &self.came[kind as usize];
            Came {
                asked: counts.asked.load(Ordering::Relaxed),
                answered: counts.answered.load(Ordering::Relaxed),
                refused: counts.refused.load(Ordering::Relaxed),
                late: counts.late.load(Ordering::Relaxed),
            }
        })
    }

    fn times(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    pub(crate) fn new(node: Arc<Node>, other: Arc<Node>) -> Self {
        let ids = (0..OBJECTS).map(|number| id(&content(number))).collect();
        let (put, wrong) = (Mutex::new(VecDeque::new()), Mutex::new(Vec::new()));
        Load { node, other, ids, put, next: AtomicU64::new(OBJECTS), entry: AtomicU64::new(1), wrong }
    }

    pub(crate) fn fill(&self) -> Outcome<()> {
        let mut line = self.node.line(0)?;
        for number in 0..OBJECTS {
            let answer = line.ask("POST", "/o", &content(number))?;
            if !answer.is_ok() {
                return Err(answer.words().into());
            }
        }
        line.ask("POST", &format!("/dht/provide/{}", self.ids[0]), b"")?;
        Ok(())
    }

    /// Reads everything that was there from the beginning once more.
    pub(crate) fn read_all(&self) -> Outcome<()> {
        let mut line = self.node.line(0)?;
        for (number, id) in self.ids.iter().enumerate() {
            let answer = line.ask("GET", &format!("/o/{id}"), b"")?;
            if !answer.is_ok() || answer.body != content(number as u64) {
                return Err(format!("{id} is not what was put: {}", answer.status).into());
            }
        }
        Ok(())
    }

    /// What was answered wrong.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.wrong_so_far().clone()
    }

    fn wrong_so_far(&self) -> MutexGuard<'_, Vec<String>> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_so_far(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.put.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request out of the mix.
    fn one(&self, line: &mut Line, draw: u64) -> Outcome<Answered> {
        let number = draw / 100 % OBJECTS;
        let known = &self.ids[usize::try_from(number)?];
        let mut doomed = None;
        let answer = match draw % 100 {
            0..50 => line.ask("GET", &format!("/o/{known}"), b"")?,
            50..60 => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let answer = line.ask("POST", "/o", &content(number))?;
                if answer.is_ok() {
                    self.put_so_far().push_back(number);
                }
                answer
            }
            60..70 => {
                doomed = self.put_so_far().pop_front();
                match doomed {
                    Some(number) => line.ask("DELETE", &format!("/o/{}", id(&content(number))), b"")?,
                    None => line.ask("GET", &format!("/o/{known}"), b"")?,
                }
            }
            70..85 => line.ask("GET", &format!("/resolve/{known}"), b"")?,
            85..90 => line.ask("GET", "/registry/names/soak/0", b"")?,
            90..95 => line.ask("GET", "/registry/head", b"")?,
            95..98 => line.ask("GET", &format!("/dht/providers/{}?timeout_ms=2000", self.ids[0]), b"")?,
            _ => line.ask("POST", "/gossip/soak", b"a word to whoever listens")?,
        };
        if draw % 100 < 50 && answer.is_ok() && answer.body != content(number) {
            return Err(format!("{known} is not what was put").into());
        }
        if answer.is_ok() {
            return Ok(Answered::Yes);
        }
        // What could not be deleted is deleted by somebody else.
        self.put_so_far().extend(doomed);
        match answer.status {
            429 | 503 if answer.has_code() && answer.says_when => Ok(Answered::Refused),
            504 if answer.has_code() => Ok(Answered::Late),
            _ => Err(format!("{} of the mix: {}", draw % 100, answer.words()).into()),
        }
    }

    /// Asks for `lasts`. A time is from when the request was due, so that who has to wait for a caller that waits is counted with
    /// its wait. Of a crowd those that are due may wait for ever longer whatever the node does: there a time is from when it was
    /// asked.
    pub(crate) fn phase(
        self: &Arc<Self>,
        name: &'static str,
        callers: usize,
        pace: Pace,
        lasts: Duration,
    ) -> Outcome<Phase> {
        let (began, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let (counted, turn) = (Arc::new(Counted::default()), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for caller in 0..callers {
            let (load, counted, turn, is_over) =
                (Arc::clone(self), Arc::clone(&counted), Arc::clone(&turn), Arc::clone(&is_over));
            threads.push(thread::spawn(move || load.call(caller, (pace, began), &counted, &turn, &is_over)));
        }
        {
            let (load, counted, is_over) = (Arc::clone(self), Arc::clone(&counted), Arc::clone(&is_over));
            threads.push(thread::spawn(move || load.govern(&counted, &is_over)));
        }
        let every = (lasts / 180).max(Duration::from_millis(500));
        let (mut samples, mut before) = (Vec::new(), (0, began));
        while began.elapsed() < lasts {
            thread::sleep(every);
            let mut times = std::mem::take(&mut *counted.times());
            let answered = counted.came().iter().map(|came| came.answered).sum::<u64>();
            let now = Instant::now();
            times.sort_unstable();
            let ms = |share: f64| {
                let at = (times.len() as f64 * share) as usize;
                times.get(at.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e3)
            };
            samples.push(Sample {
                at: (now - began).as_secs_f64(),
                usage: self.node.usage()?,
                beside: self.other.memory()?,
                answered: (answered - before.0) as f64 / (now - before.1).as_secs_f64(),
                p50_ms: ms(0.5),
                p99_ms: ms(0.99),
            });
            before = (answered, now);
        }
        is_over.store(true, Ordering::Relaxed);
        let took = began.elapsed();
        for thread in threads {
            thread.join().map_err(|_| "a caller panicked")?;
        }
        let due = match pace {
            Pace::AsAnswered => 0.0,
            Pace::Due(rate) | Pace::Crowd(rate) => rate,
        };
        let committed = counted.committed.load(Ordering::Relaxed);
        let not_committed = counted.not_committed.load(Ordering::Relaxed);
        Ok(Phase { name, took, due, came: counted.came(), committed, not_committed, samples })
    }

    fn call(
        &self,
        caller: usize,
        (pace, began): (Pace, Instant),
        counted: &Counted,
        turn: &AtomicU64,
        is_over: &AtomicBool,
    ) {
        let mut line = None;
        while !is_over.load(Ordering::Relaxed) {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let mut due = Instant::now();
            if let Pace::Due(rate) | Pace::Crowd(rate) = pace {
                due = began + Duration::from_secs_f64(turn as f64 / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if matches!(pace, Pace::Crowd(_)) {
                    due = Instant::now();
                }
            }
            let draw = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
            let kind = match draw % 100 {
                0..70 => Kind::Storage,
                70..85 => Kind::Index,
                _ => Kind::Other,
            };
            let counts = &counted.came[kind as usize];
            counts.asked.fetch_add(1, Ordering::Relaxed);
            let came = match &mut line {
                Some(line) => self.one(line, draw),
                None => self.node.line(caller).and_then(|new| self.one(line.insert(new), draw)),
            };
            if line.as_ref().is_some_and(|line| line.is_over) {
                line = None;
            }
            match came {
                Ok(Answered::Yes) => {
                    counts.answered.fetch_add(1, Ordering::Relaxed);
                    counted.times().push(due.elapsed());
                }
                Ok(Answered::Refused) => drop(counts.refused.fetch_add(1, Ordering::Relaxed)),
                Ok(Answered::Late) => drop(counts.late.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    line = None;
                    let mut wrong = self.wrong_so_far();
                    if wrong.len() < WRONG_MAX {
                        wrong.push(error.to_string());
                    }
                }
            }
        }
    }

    /// Commits an entry now and then.
    fn govern(&self, counted: &Counted, is_over: &AtomicBool) {
        let mut last = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
            if last.elapsed() >= COMMIT_EVERY {
                last = Instant::now();
                // A node that has too much to do may say so.
                match self.node.commit(self.entry.fetch_add(1, Ordering::Relaxed)) {
                    Ok(()) => drop(counted.committed.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => {
                        println!("an entry was not committed: {error}");
                        counted.not_committed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}
