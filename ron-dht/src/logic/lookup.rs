//! One search: whom to ask next, when to stop waiting, when it is over.
//!
//! The search keeps every peer it heard of in order of distance to the target and asks the nearest it has not asked.
//! It is complete when the k nearest that are alive have answered. A peer silent past its hedge delay is set aside: its
//! place goes to another and the end waits for it no longer than for the slowest twice over, but what it says later still
//! counts. So a dead peer costs one hedge delay and not a timeout, and no error, however fast, ends a search that
//! somebody may still answer.
//!
//! Whatever peers say, a search ends: each peer is asked once, or once more if it was not where the first to name it said
//! and somebody else says where it is, and there is a cap on requests. A peer whose referrals mostly turn out dead loses
//! the rest of them, so that a liar spends a few of our requests and not all.

mod candidate;
mod verdict;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use ron_core::{Distance, NodeId};

use self::candidate::{Candidate, Elsewhere, Question, SOURCES_MAX, Stage};
pub use self::verdict::{Asked, Failure, Outcome, Reason, Verdict};
use super::{Contact, Key, Rtt, table::K};

/// Disjoint paths at most: one bit of a byte each. The literature stops at eight as well, where most of what can be
/// won is won.
pub const PATHS_MAX: usize = 8;

/// Peers of our own table that each path hears before it ends. Where one peer in five lies in concert, one informant is
/// a liar once in five searches, and all its path ever hears of are accomplices; three are once in 125.
const INFORMANTS_MIN: usize = 3;

/// Candidates kept that are not asked yet. A liar names k that are all nearer than the truth: with a dozen lists the
/// truth outlasts the liars among them until they are found out. 240 of 136 bytes are 32 KiB a search at worst.
const UNASKED_MAX: usize = 12 * K;

/// How many times as long as the slowest that answered the end waits for who is near and silent.
const PATIENCE: u32 = 2;

/// How many times as long a peer may be silent whom we have no link with: the link takes three round trips more, and to
/// time a cold link by a warm one would call everybody on another continent silent.
const DIAL_ROUNDS: u32 = 3;

/// How a search behaves. The defaults are what a public network needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupSettings {
    /// Peers asked at once. More finds faster and costs traffic.
    pub parallelism: NonZeroUsize,
    /// Peers asked beyond that while others are silent. Zero turns hedging off: every silence is waited out.
    pub hedges: usize,
    /// How long a stranger may be silent before it is set aside. Whoever is known is judged by its own round trips.
    pub hedge_after: Duration,
    /// How many referrals away from our own table a peer may be, our own table counting as one.
    pub hops_max: u8,
    /// Requests after which the search ends, whatever is still open.
    pub requests_max: u16,
    /// Searches run side by side that share no informant, at most eight. More than one resists peers that lie
    /// in concert, for up to as many times the traffic.
    pub paths: NonZeroUsize,
}

impl Default for LookupSettings {
    fn default() -> Self {
        LookupSettings {
            parallelism: const { NonZeroUsize::new(3).expect("three is not zero") },
            hedges: 2,
            hedge_after: Duration::from_millis(250),
            hops_max: 5,
            requests_max: 4 * K as u16,
            paths: NonZeroUsize::MIN,
        }
    }
}

/// What a search is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The peers nearest to the target.
    Closest,
    /// This many finds: providers, or copies of a value. The search ends early once it has them.
    Found(NonZeroUsize),
}

/// A peer that might be asked, and what we know of its speed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lead {
    /// Who and where.
    pub contact: Contact,
    /// [`Rtt::UNKNOWN`] unless it is in our own table.
    pub rtt: Rtt,
}

impl From<Contact> for Lead {
    fn from(contact: Contact) -> Self {
        Lead { contact, rtt: Rtt::UNKNOWN }
    }
}

impl From<super::table::Entry> for Lead {
    fn from(entry: super::table::Entry) -> Self {
        Lead { contact: entry.contact, rtt: entry.rtt }
    }
}

/// Somebody whom an answer names. What else is known of it is asked for only if the search has not heard of it: most are
/// named again and again.
pub trait Named {
    /// Who and where, as it was named.
    fn contact(&self) -> &Contact;

    /// The same with what is known of it.
    fn into_lead(self) -> Lead;
}

impl Named for Lead {
    fn contact(&self) -> &Contact {
        &self.contact
    }

    fn into_lead(self) -> Lead {
        self
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this peer the question and report what comes of it. Poll again: there may be more to do.
    Ask {
        /// Whom.
        contact: Contact,
        /// What is known of its speed, for the timeout.
        rtt: Rtt,
        /// Whether it is asked because others are silent.
        hedge: bool,
    },
    /// Give up the question to this peer: it has been silent longest and its place is needed. Poll again.
    Cancel(NodeId),
    /// Nothing until somebody answers or fails, or until this moment.
    Wait {
        /// When to poll again.
        until: Duration,
    },
    /// It is over.
    Done(Verdict),
}

/// A search for one target.
#[derive(Debug)]
pub struct Lookup {
    own: NodeId,
    target: Key,
    goal: Goal,
    settings: LookupSettings,
    deadline: Duration,
    /// Nearest first.
    candidates: Vec<Candidate>,
    questions: Vec<Question>,
    /// Questions to those who were too busy at first.
    again: usize,
    found: usize,
    ended: Option<Reason>,
}

impl Lookup {
    /// A search of node `own` for `target`, starting from `seeds` of its own table, to end by `deadline`.
    #[must_use]
    pub fn new(
        own: NodeId,
        target: Key,
        goal: Goal,
        mut settings: LookupSettings,
        seeds: impl IntoIterator<Item = Lead>,
        deadline: Duration,
    ) -> Self {
        settings.paths =
            settings.paths.min(const { NonZeroUsize::new(PATHS_MAX).expect("eight is not zero") });
        let mut lookup = Lookup {
            own,
            target,
            goal,
            settings,
            deadline,
            candidates: Vec::new(),
            questions: Vec::new(),
            again: 0,
            found: 0,
            ended: None,
        };
        // Each path gets its share of the near ones: dealt out in turn, whatever order they come in.
        let mut seeds: Vec<Lead> = seeds.into_iter().collect();
        seeds.sort_by_key(|lead| target.distance(&lead.contact.id));
        seeds.dedup_by_key(|lead| lead.contact.id);
        for (turn, lead) in seeds.into_iter().enumerate() {
            lookup.learn(lead, 1, turn % settings.paths, None);
        }
        lookup.trim();
        lookup
    }

    /// The next thing to do. Call it after every event and when a wait is over, until it waits or is done.
    pub fn poll(&mut self, now: Duration) -> Step {
        if let Some(reason) = self.ended {
            return Step::Done(self.verdict(reason));
        }
        if matches!(self.goal, Goal::Found(enough) if self.found >= enough.get()) {
            return self.end(Reason::Enough);
        }
        // At the deadline nobody is set aside any more: who is out then is why the search is not complete.
        if now < self.deadline {
            self.set_aside(now);
        }
        let spent = self.questions.len() + self.again >= self.requests_max();
        if now < self.deadline && !spent {
            if let Some(cancel) = self.look_elsewhere(now) {
                return cancel;
            }
        }
        let active = self.count(Stage::Active);
        let next = self.pick();
        let hope = self.hopes_until(now);
        if active == 0 && (next.is_none() || spent) && hope.is_none() {
            let reason = match next {
                Some(_) => Reason::Requests,
                None if self.misses_the_far() => Reason::Hops,
                None => Reason::Complete,
            };
            return self.end(reason);
        }
        if now >= self.deadline {
            return self.end(Reason::Deadline);
        }
        match next {
            Some(next) if active < self.slots() && !spent => self.ask(next, now),
            _ => {
                let patience = hope.filter(|_| active == 0).unwrap_or(self.deadline);
                Step::Wait { until: self.wake_at().min(patience) }
            }
        }
    }

    /// `peer` answered, naming the peers `closer` and bringing `found` things that were not found before.
    ///
    /// Also for a peer that was set aside. Names beyond k are not heard, and neither is a peer that was not asked.
    pub fn on_answer(
        &mut self,
        peer: &NodeId,
        closer: impl IntoIterator<Item: Named>,
        found: usize,
        now: Duration,
    ) {
        let Some((at, question)) = self.out(peer) else { return };
        self.absolve(at);
        self.candidates[at].stage = Stage::Answered;
        let hop = self.questions[question].asked.hop.saturating_add(1);
        let path = self.questions[question].path;
        let mut named = 0;
        for peer in closer.into_iter().take(K) {
            named += 1;
            self.learn(peer, hop, path, Some(question));
        }
        self.trim();
        self.found += found;
        self.settle(question, Outcome::Answered { named, found }, now);
    }

    /// There is no link with `peer`, who was just asked: it may be silent for longer.
    pub fn on_dial(&mut self, peer: &NodeId) {
        if let Some((_, question)) = self.out(peer) {
            let Question { asked, aside_at, .. } = &mut self.questions[question];
            let delay = aside_at.saturating_sub(asked.at);
            *aside_at = asked.at.saturating_add(delay.saturating_mul(DIAL_ROUNDS));
        }
    }

    /// The question to `peer` failed.
    pub fn on_failure(&mut self, peer: &NodeId, why: Failure, now: Duration) {
        let Some((at, question)) = self.out(peer) else { return };
        let was_blamed = self.candidates[at].stage == Stage::Aside;
        match why {
            Failure::Busy { .. } => {
                self.absolve(at);
                // It is where it was looked for.
                self.candidates[at].elsewhere = Elsewhere::Tried;
            }
            Failure::Local if was_blamed => self.unblame(at),
            Failure::Local => {}
            Failure::Timeout | Failure::Unreachable | Failure::Invalid if was_blamed => {}
            Failure::Timeout | Failure::Unreachable | Failure::Invalid => {
                self.candidates[at].stage = Stage::Gone;
                self.settle(question, Outcome::Failed(why), now);
                return self.blame(at);
            }
        }
        self.candidates[at].stage = Stage::Gone;
        self.settle(question, Outcome::Failed(why), now);
    }

    /// So many questions were asked once more, in all. They count like the others.
    pub fn on_asked_again(&mut self, times: usize) {
        self.again = times;
    }

    /// Ends the search: nobody wants the answer any more, or the node is stopping.
    pub fn cancel(&mut self) {
        self.ended.get_or_insert(Reason::Canceled);
    }

    /// Places for questions that are waited for. Every path has at least one.
    fn slots(&self) -> usize {
        self.settings.parallelism.max(self.settings.paths).get()
    }

    fn requests_max(&self) -> usize {
        usize::from(self.settings.requests_max)
    }

    fn wake_at(&self) -> Duration {
        let active = self.questions.iter().filter(|question| question.stage == Stage::Active);
        active.map(|question| question.aside_at).fold(self.deadline, Duration::min)
    }

    fn count(&self, stage: Stage) -> usize {
        self.questions.iter().filter(|question| question.stage == stage).count()
    }

    /// Until when the end waits for somebody who is silent; not at all if nobody is worth it. While nobody has answered,
    /// the silent are all there is: a slow peer is better than none. Later they are worth some patience if they are nearer
    /// than the k-th that answered: whoever is as far away as those who did answer may need as long, and on a cold link
    /// twice that. More would make every dead peer cost what hedging saves.
    fn hopes_until(&self, now: Duration) -> Option<Duration> {
        let aside = || self.questions.iter().filter(|question| question.stage == Stage::Aside);
        let mut answered = self.candidates.iter().filter(|candidate| candidate.stage == Stage::Answered);
        let took = self.questions.iter().filter(|question| question.stage == Stage::Answered);
        let Some(slowest) = took.filter_map(|question| question.asked.took).max() else {
            return aside().next().map(|_| self.deadline);
        };
        let kth = answered.nth(K - 1).map(|candidate| candidate.distance);
        let is_near = |question: &&Question| {
            let distance = self.target.distance(&question.asked.peer);
            kth.is_none_or(|kth| distance < kth)
        };
        let until = aside().filter(is_near).map(|question| question.asked.at + slowest * PATIENCE).max();
        until.filter(|until| *until > now).map(|until| until.min(self.deadline))
    }

    fn set_aside(&mut self, now: Duration) {
        for question in 0..self.questions.len() {
            let Question { stage, aside_at, .. } = self.questions[question];
            if stage == Stage::Active && aside_at <= now {
                let at = self.find(&self.questions[question].asked.peer).expect("who was asked is kept");
                self.candidates[at].stage = Stage::Aside;
                self.questions[question].stage = Stage::Aside;
                self.questions[question].asked.outcome = Outcome::Silent;
                self.blame(at);
            }
        }
    }

    /// Whoever did not answer where the first to name it said it was is a candidate again if somebody else says that it
    /// is elsewhere: otherwise the first to name the honest neighbours of a key, wrongly, hides them all.
    fn look_elsewhere(&mut self, now: Duration) -> Option<Step> {
        let mut cancel = None;
        for at in 0..self.candidates.len() {
            let Candidate { stage, elsewhere, contact, .. } = &mut self.candidates[at];
            let (Stage::Aside | Stage::Gone, Elsewhere::At(addrs)) = (*stage, &*elsewhere) else { continue };
            contact.addrs = Arc::clone(addrs);
            let (peer, was_out) = (contact.id, *stage == Stage::Aside);
            (*stage, *elsewhere) = (Stage::New, Elsewhere::Tried);
            if was_out {
                if let Some((_, question)) = self.out(&peer) {
                    self.settle(question, Outcome::Silent, now);
                    cancel = Some(Step::Cancel(peer));
                    break;
                }
            }
        }
        cancel
    }

    /// The candidate to ask next and the path that asks it, the one with the fewest questions out first.
    fn pick(&self) -> Option<(usize, usize)> {
        let paths = self.settings.paths.get();
        let share = self.slots().div_ceil(paths);
        let active = |path: usize| {
            let of_path = |question: &&Question| question.stage == Stage::Active && question.path == path;
            self.questions.iter().filter(of_path).count()
        };
        if paths == 1 {
            return if active(0) < share { self.pick_for(0).map(|at| (at, 0)) } else { None };
        }
        let mut order: Vec<(usize, usize)> = (0..paths).map(|path| (active(path), path)).collect();
        order.sort_unstable();
        order
            .into_iter()
            .filter(|(active, _)| *active < share)
            .find_map(|(_, path)| self.pick_for(path).map(|at| (at, path)))
    }

    /// The best of the k nearest of a path; when those have answered, somebody of our own table if too few of it had
    /// a say.
    fn pick_for(&self, path: usize) -> Option<usize> {
        let is_new = |at: &usize| self.candidates[*at].stage == Stage::New;
        let best = self.window(path, false).filter(is_new).min_by_key(|at| self.candidates[*at].rank());
        best.or_else(|| {
            let informs = |question: &&Question| {
                question.path == path
                    && question.asked.hop == 1
                    && matches!(question.stage, Stage::Active | Stage::Answered)
            };
            let own = |candidate: &Candidate| {
                candidate.stage == Stage::New && candidate.hop == 1 && candidate.paths & 1 << path != 0
            };
            let heard = self.questions.iter().filter(informs).count();
            if heard < INFORMANTS_MIN && self.settings.hops_max > 0 {
                self.candidates.iter().position(own)
            } else {
                None
            }
        })
    }

    /// The k nearest live candidates of a path, with or without those that are too many hops away to be asked.
    fn window(&self, path: usize, beyond: bool) -> impl Iterator<Item = usize> {
        let hops_max = self.settings.hops_max;
        let counts = move |candidate: &Candidate| {
            candidate.paths & 1 << path != 0
                && match candidate.stage {
                    Stage::New => beyond || candidate.hop <= hops_max,
                    Stage::Active | Stage::Answered => true,
                    Stage::Aside | Stage::Gone => false,
                }
        };
        let live = self.candidates.iter().enumerate().filter(move |(_, candidate)| counts(candidate));
        live.map(|(at, _)| at).take(K)
    }

    fn misses_the_far(&self) -> bool {
        (0..self.settings.paths.get())
            .any(|path| self.window(path, true).any(|at| self.candidates[at].stage == Stage::New))
    }

    fn ask(&mut self, (at, path): (usize, usize), now: Duration) -> Step {
        let out = self.count(Stage::Active) + self.count(Stage::Aside);
        if out >= self.slots() + self.settings.hedges {
            return self.give_up_longest_silent(now);
        }
        let hedge = out >= self.slots();
        let candidate = &mut self.candidates[at];
        candidate.stage = Stage::Active;
        let aside_at = match self.settings.hedges {
            0 => Duration::MAX,
            _ => now.saturating_add(candidate.rtt.hedge_delay(self.settings.hedge_after)),
        };
        let asked = Asked {
            peer: candidate.contact.id,
            hop: candidate.hop,
            at: now,
            took: None,
            hedge,
            outcome: Outcome::Canceled,
        };
        self.questions.push(Question { asked, path, aside_at, stage: Stage::Active, good: 0, bad: 0 });
        Step::Ask { contact: candidate.contact.clone(), rtt: candidate.rtt, hedge }
    }

    /// Room for a question when only the silent are left to give way. The places beyond `slots` are all theirs, so
    /// there is one.
    fn give_up_longest_silent(&mut self, now: Duration) -> Step {
        let longest = self.questions.iter().position(|question| question.stage == Stage::Aside);
        let question = longest.expect("more questions out than are waited for");
        let peer = self.questions[question].asked.peer;
        let at = self.find(&peer).expect("who was asked is kept");
        self.candidates[at].stage = Stage::Gone;
        self.settle(question, Outcome::Silent, now);
        Step::Cancel(peer)
    }

    /// Where `peer` stands among the candidates and the questions, if a question to it is out.
    fn out(&self, peer: &NodeId) -> Option<(usize, usize)> {
        let at = self.find(peer)?;
        let is_out = |question: &Question| {
            matches!(question.stage, Stage::Active | Stage::Aside) && question.asked.peer == *peer
        };
        Some((at, self.questions.iter().position(is_out)?))
    }

    fn settle(&mut self, question: usize, outcome: Outcome, now: Duration) {
        let question = &mut self.questions[question];
        question.stage =
            if matches!(outcome, Outcome::Answered { .. }) { Stage::Answered } else { Stage::Gone };
        question.asked.outcome = outcome;
        question.asked.took = Some(now.saturating_sub(question.asked.at));
    }

    /// An id has one distance to the target, and a distance one id.
    fn find(&self, id: &NodeId) -> Option<usize> {
        self.place(&self.target.distance(id)).ok()
    }

    fn place(&self, distance: &Distance) -> Result<usize, usize> {
        self.candidates.binary_search_by_key(distance, |candidate| candidate.distance)
    }

    fn learn(&mut self, peer: impl Named, hop: u8, path: usize, source: Option<usize>) {
        let Contact { id, addrs } = peer.contact();
        if *id == self.own {
            return;
        }
        let distance = self.target.distance(id);
        let at = match self.place(&distance) {
            Ok(at) => {
                self.candidates[at].hear(addrs);
                at
            }
            Err(at) => {
                let lead = peer.into_lead();
                let candidate = Candidate {
                    distance,
                    contact: lead.contact,
                    rtt: lead.rtt,
                    hop,
                    paths: 0,
                    sources: [None; SOURCES_MAX],
                    stage: Stage::New,
                    elsewhere: Elsewhere::Unknown,
                };
                self.candidates.insert(at, candidate);
                at
            }
        };
        let candidate = &mut self.candidates[at];
        candidate.paths |= 1 << path;
        candidate.hop = candidate.hop.min(hop);
        let source =
            source.map(|question| u16::try_from(question).expect("the cap on requests is such a number"));
        // Who is named after being asked is no credit and no blame to anyone.
        if candidate.stage == Stage::New && source.is_some() && !candidate.sources.contains(&source) {
            if let Some(free) = candidate.sources.iter_mut().find(|known| known.is_none()) {
                *free = source;
            }
        }
    }

    /// Lets go of the farthest, so that memory has a bound whatever is named. Each path for itself: the lies in one
    /// must not push the truth out of another.
    fn trim(&mut self) {
        let kept = (UNASKED_MAX / self.settings.paths).max(2 * K);
        for path in 0..self.settings.paths.get() {
            let unasked = |candidate: &&mut Candidate| {
                candidate.stage == Stage::New && candidate.paths & 1 << path != 0
            };
            self.candidates.iter_mut().filter(unasked).skip(kept).for_each(|far| far.paths &= !(1 << path));
        }
        self.candidates.retain(|candidate| candidate.paths != 0 || candidate.stage != Stage::New);
    }

    /// Whoever named this candidate named somebody who does not answer. What only discredited peers have named is
    /// dropped; our own table needs no source.
    fn blame(&mut self, at: usize) {
        let mut discredited = false;
        for source in self.candidates[at].sources.into_iter().flatten() {
            let source = &mut self.questions[usize::from(source)];
            source.bad += 1;
            discredited |= source.is_discredited();
        }
        if discredited {
            let questions = &self.questions;
            self.candidates.retain(|candidate| {
                let mut sources = candidate.sources.iter().flatten();
                candidate.stage != Stage::New
                    || candidate.hop == 1
                    || sources.any(|source| !questions[usize::from(*source)].is_discredited())
            });
        }
    }

    /// Nothing is known of this candidate after all.
    fn unblame(&mut self, at: usize) {
        for source in self.candidates[at].sources.into_iter().flatten() {
            self.questions[usize::from(source)].bad -= 1;
        }
    }

    /// Whoever named this candidate told the truth, whatever was thought while it was silent.
    fn absolve(&mut self, at: usize) {
        let was_blamed = self.candidates[at].stage == Stage::Aside;
        for source in self.candidates[at].sources.into_iter().flatten() {
            let source = &mut self.questions[usize::from(source)];
            source.good += 1;
            source.bad -= u16::from(was_blamed);
        }
    }

    fn end(&mut self, reason: Reason) -> Step {
        self.ended = Some(reason);
        Step::Done(self.verdict(reason))
    }

    fn verdict(&self, reason: Reason) -> Verdict {
        let answered = |path: usize| {
            let of_path = move |candidate: &&Candidate| {
                candidate.stage == Stage::Answered && candidate.paths & 1 << path != 0
            };
            self.candidates.iter().filter(of_path).take(K)
        };
        let mut closest: Vec<&Candidate> = (0..self.settings.paths.get()).flat_map(answered).collect();
        closest.sort_by_key(|candidate| candidate.distance);
        closest.dedup_by_key(|candidate| candidate.distance);
        let trace: Vec<Asked> = self.questions.iter().map(|question| question.asked).collect();
        let has_answered = |asked: &&Asked| matches!(asked.outcome, Outcome::Answered { .. });
        let is_out = |question: &&Question| matches!(question.stage, Stage::Active | Stage::Aside);
        Verdict {
            reason,
            closest: closest.into_iter().map(|candidate| candidate.contact.clone()).collect(),
            found: self.found,
            hops: trace.iter().filter(has_answered).map(|asked| asked.hop).max().unwrap_or(0),
            rpcs: trace.len() + self.again,
            hedges: trace.iter().filter(|asked| asked.hedge).count(),
            losers: self.questions.iter().filter(is_out).map(|question| question.asked.peer).collect(),
            trace,
        }
    }
}

#[cfg(test)]
mod tests;
