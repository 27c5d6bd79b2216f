//! One search: whom to ask next, when to stop waiting, when it is over.
//!
//! The search keeps every peer it heard of in order of distance to the target and asks the nearest it has not asked.
//! It is complete when the k nearest that are alive have answered. A peer silent past its hedge delay is set aside: its
//! place goes to another and the end does not wait for it, but what it says later still counts. So a dead peer costs
//! one hedge delay and not a timeout, and no error, however fast, ends a search that somebody may still answer.
//!
//! Whatever peers say, a search ends: each peer is asked once, or once more if it was not where the first to name it said
//! and somebody else says where it is, and there is a cap on requests. A peer whose referrals mostly turn out dead loses
//! the rest of them, so that a liar spends a few of our requests and not all.

use std::{cmp::Reverse, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use ron_core::{Distance, NodeId};

use super::{
    Contact, Key, Rtt,
    table::{K, bucket_index},
};

/// Disjoint paths at most: one bit of a byte each. The literature stops at eight as well, where most of what can be
/// won is won.
pub const PATHS_MAX: usize = 8;

/// Referrals that failed before their source is judged at all. Two dead peers in a list of twenty are an honest table
/// on an ordinary day.
const BAD_REFERRALS: u16 = 3;

/// Peers of our own table that each path hears before it ends. Where one peer in five lies in concert, one informant is
/// a liar once in five searches, and all its path ever hears of are accomplices; three are once in 125.
const INFORMANTS_MIN: usize = 3;

/// Candidates kept that are not asked yet. A liar names k that are all nearer than the truth: with a dozen lists the
/// truth outlasts the liars among them until they are found out. 240 of 136 bytes are 32 KiB a search at worst.
const UNASKED_MAX: usize = 12 * K;

/// Sources remembered per candidate. Honest neighbours are named by nearly everybody, so four are enough for one of
/// them to stay trusted; what only liars name runs out of sources.
const SOURCES_MAX: usize = 4;

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

/// Why a question brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer within the peer's timeout.
    Timeout,
    /// No connection, or one to somebody else.
    Unreachable,
    /// It is there and too busy to say anything.
    Busy,
    /// It answered with something that is not an answer.
    Invalid,
}

/// What came of one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It answered.
    Answered {
        /// Peers it named, as far as they were heard.
        named: usize,
        /// Finds it brought that were new.
        found: usize,
    },
    /// It failed.
    Failed(Failure),
    /// It was set aside and had not answered by the end. Perhaps dead: worth a ping.
    Silent,
    /// The end came before its time was up. Says nothing about it.
    Canceled,
}

/// One question of a search, for whoever wants to know why it ended as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Whom.
    pub peer: NodeId,
    /// How many hops away it was: one for a peer of our own table.
    pub hop: u8,
    /// When.
    pub at: Duration,
    /// How long until it answered or failed.
    pub took: Option<Duration>,
    /// Whether it was asked because others were silent.
    pub hedge: bool,
    /// What came of it.
    pub outcome: Outcome,
}

/// Why a search is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The k nearest live peers have answered.
    Complete,
    /// As much was found as was asked for.
    Enough,
    /// Nearer peers are known, but only beyond the hop budget.
    Hops,
    /// Nearer peers are known, but the requests are spent.
    Requests,
    /// Time is up.
    Deadline,
    /// Somebody called it off.
    Canceled,
}

impl Reason {
    /// In one word, for counters and for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Complete => "complete",
            Reason::Enough => "enough",
            Reason::Hops => "hops",
            Reason::Requests => "requests",
            Reason::Deadline => "deadline",
            Reason::Canceled => "canceled",
        }
    }
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Why it ended.
    pub reason: Reason,
    /// The nearest peers that answered, nearest first: at most k for each path.
    pub closest: Vec<Contact>,
    /// How much was found.
    pub found: usize,
    /// How far away from our own table the farthest answer came from.
    pub hops: u8,
    /// Questions asked.
    pub rpcs: usize,
    /// How many of them because others were silent.
    pub hedges: usize,
    /// Questions still out. Nobody waits for them any more: cancel them.
    pub losers: Vec<NodeId>,
    /// Every question, in the order asked.
    pub trace: Vec<Asked>,
}

impl Verdict {
    /// So much was there before anybody was asked, and it was enough.
    pub(crate) fn at_home(found: usize) -> Self {
        Verdict {
            reason: Reason::Enough,
            closest: Vec::new(),
            found,
            hops: 0,
            rpcs: 0,
            hedges: 0,
            losers: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// Whether a search of node `own` for a key of its bucket `bucket` shows that nobody alive is in there: whoever is in
    /// there is nearer to such a key than everybody else, and the nearest have answered. Silence shows nothing.
    #[must_use]
    pub fn shows_vacant(&self, own: &NodeId, bucket: usize) -> bool {
        let is_elsewhere = |nearest: &Contact| bucket_index(own, &nearest.id) != Some(bucket);
        self.reason == Reason::Complete && self.closest.first().is_some_and(is_elsewhere)
    }
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
        let spent = self.questions.len() >= self.requests_max();
        if now < self.deadline && !spent {
            if let Some(cancel) = self.look_elsewhere(now) {
                return cancel;
            }
        }
        let active = self.count(Stage::Active);
        let next = self.pick();
        if active == 0 && (next.is_none() || spent) && !self.hopes_for_the_silent() {
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
            _ => Step::Wait { until: self.wake_at() },
        }
    }

    /// `peer` answered, naming the peers `closer` and bringing `found` things that were not found before.
    ///
    /// Also for a peer that was set aside. Names beyond k are not heard, and neither is a peer that was not asked.
    pub fn on_answer(
        &mut self,
        peer: &NodeId,
        closer: impl IntoIterator<Item = Lead>,
        found: usize,
        now: Duration,
    ) {
        let Some((at, question)) = self.out(peer) else { return };
        self.absolve(at);
        self.candidates[at].stage = Stage::Answered;
        let hop = self.questions[question].asked.hop.saturating_add(1);
        let path = self.questions[question].path;
        let mut named = 0;
        for lead in closer.into_iter().take(K) {
            named += 1;
            self.learn(lead, hop, path, Some(question));
        }
        self.trim();
        self.found += found;
        self.settle(question, Outcome::Answered { named, found }, now);
    }

    /// Whether it has heard of `peer`, so that what else is known of it comes too late.
    #[must_use]
    pub fn has_heard_of(&self, peer: &NodeId) -> bool {
        self.find(peer).is_some()
    }

    /// The question to `peer` failed.
    pub fn on_failure(&mut self, peer: &NodeId, why: Failure, now: Duration) {
        let Some((at, question)) = self.out(peer) else { return };
        let was_blamed = self.candidates[at].stage == Stage::Aside;
        if why == Failure::Busy {
            self.absolve(at);
            // It is where it was looked for.
            self.candidates[at].elsewhere = Elsewhere::Tried;
        }
        self.candidates[at].stage = Stage::Gone;
        self.settle(question, Outcome::Failed(why), now);
        if why != Failure::Busy && !was_blamed {
            self.blame(at);
        }
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

    /// While nobody has answered, the silent are all there is: a slow peer is better than none.
    fn hopes_for_the_silent(&self) -> bool {
        self.count(Stage::Aside) > 0 && !self.candidates.iter().any(|c| c.stage == Stage::Answered)
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

    fn learn(&mut self, lead: Lead, hop: u8, path: usize, source: Option<usize>) {
        if lead.contact.id == self.own {
            return;
        }
        let distance = self.target.distance(&lead.contact.id);
        let at = match self.place(&distance) {
            Ok(at) => {
                self.candidates[at].hear(&lead.contact.addrs);
                at
            }
            Err(at) => {
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
            rpcs: trace.len(),
            hedges: trace.iter().filter(|asked| asked.hedge).count(),
            losers: self.questions.iter().filter(is_out).map(|question| question.asked.peer).collect(),
            trace,
        }
    }
}

/// Where a candidate, or the question to it, stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not asked yet.
    New,
    /// Asked and waited for.
    Active,
    /// Asked and no longer waited for.
    Aside,
    Answered,
    Gone,
}

#[derive(Debug)]
struct Candidate {
    distance: Distance,
    contact: Contact,
    rtt: Rtt,
    hop: u8,
    /// The paths that know it, one bit each. It belongs to all of them until one asks: if the first to name it owned
    /// it, a liar could take a peer out of the search by naming it early.
    paths: u8,
    /// The questions whose answers named it first; none if it is of our own table.
    sources: [Option<u16>; SOURCES_MAX],
    stage: Stage,
    elsewhere: Elsewhere,
}

/// Where else a candidate may be than where the first to name it said.
#[derive(Debug)]
enum Elsewhere {
    /// All say the same.
    Unknown,
    /// Somebody said so.
    At(Arc<[SocketAddr]>),
    /// It was looked for there, or found in the first place. Nobody is looked for a third time.
    Tried,
}

impl Candidate {
    /// Somebody says that it is here.
    fn hear(&mut self, addrs: &Arc<[SocketAddr]>) {
        let is_news = || addrs.iter().any(|addr| !self.contact.addrs.contains(addr));
        if matches!(self.elsewhere, Elsewhere::Unknown) && self.stage != Stage::Answered && is_news() {
            self.elsewhere = Elsewhere::At(Arc::clone(addrs));
        }
    }

    /// Nearest first, but among those with as many bits in common the fastest, and strangers last: they are equally
    /// far in every way that shortens the search.
    fn rank(&self) -> (Reverse<u32>, Duration, Distance) {
        let rtt = self.rtt.mean().unwrap_or(Duration::MAX);
        (Reverse(self.distance.leading_zeros()), rtt, self.distance)
    }
}

#[derive(Debug)]
struct Question {
    asked: Asked,
    path: usize,
    /// When its silence becomes somebody else's turn.
    aside_at: Duration,
    stage: Stage,
    /// Peers it named that answered, and that did not.
    good: u16,
    bad: u16,
}

impl Question {
    fn is_discredited(&self) -> bool {
        self.bad >= BAD_REFERRALS && self.bad > 2 * self.good
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Arc};

    use proptest::prelude::*;

    use super::*;

    const OWN: u16 = u16::MAX;
    const END: Duration = Duration::from_secs(60);

    /// The peer at distance `n` from the target, which is zero.
    fn id(n: u16) -> NodeId {
        let mut bytes = [0; 32];
        bytes[30..].copy_from_slice(&n.to_be_bytes());
        NodeId::from_bytes(bytes)
    }

    fn number(id: &NodeId) -> u16 {
        u16::from_be_bytes([id.as_bytes()[30], id.as_bytes()[31]])
    }

    fn lead(n: u16) -> Lead {
        Lead::from(Contact { id: id(n), addrs: Arc::new([]) })
    }

    fn leads(numbers: impl IntoIterator<Item = u16>) -> Vec<Lead> {
        numbers.into_iter().map(lead).collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A search driven by hand. Peers are their distance to the target.
    struct Script {
        lookup: Lookup,
        now: Duration,
    }

    impl Script {
        fn new(goal: Goal, settings: LookupSettings, seeds: impl IntoIterator<Item = u16>) -> Self {
            let target = Key::from(id(0));
            Script { lookup: Lookup::new(id(OWN), target, goal, settings, leads(seeds), END), now: ms(0) }
        }

        fn closest(seeds: impl IntoIterator<Item = u16>) -> Self {
            Script::new(Goal::Closest, LookupSettings::default(), seeds)
        }

        /// Whom it asks now, before it waits.
        fn asks(&mut self) -> Vec<u16> {
            let mut asked = Vec::new();
            loop {
                match self.lookup.poll(self.now) {
                    Step::Ask { contact, .. } => asked.push(number(&contact.id)),
                    Step::Cancel(_) => {}
                    Step::Wait { .. } | Step::Done(_) => return asked,
                }
            }
        }

        fn at(&mut self, now: u64) -> &mut Self {
            self.now = ms(now);
            self
        }

        fn answer(&mut self, peer: u16, named: impl IntoIterator<Item = u16>) -> &mut Self {
            self.lookup.on_answer(&id(peer), leads(named), 0, self.now);
            self
        }

        fn fail(&mut self, peer: u16) -> &mut Self {
            self.lookup.on_failure(&id(peer), Failure::Unreachable, self.now);
            self
        }

        /// The verdict, once nothing is left to ask.
        fn verdict(&mut self) -> Verdict {
            match self.lookup.poll(self.now) {
                Step::Done(verdict) => verdict,
                step => panic!("not over: {step:?}"),
            }
        }
    }

    fn numbers(contacts: &[Contact]) -> Vec<u16> {
        contacts.iter().map(|contact| number(&contact.id)).collect()
    }

    #[test]
    fn three_are_asked_and_the_nearest_first() {
        let mut script = Script::closest([90, 80, 70, 60]);
        // 70 and 80 share as many bits with the target as 90 does; the order among them is theirs.
        assert_eq!(script.asks(), [60, 70, 80]);
        assert_eq!(script.answer(70, [5, 6, 200]).asks(), [5]);
        assert_eq!(script.fail(60).asks(), [6]);
        assert_eq!(script.answer(5, []).answer(6, []).answer(80, []).asks(), [90, 200]);
        script.answer(90, []).answer(200, []);
        let verdict = script.verdict();
        assert_eq!(verdict.reason, Reason::Complete);
        assert_eq!(numbers(&verdict.closest), [5, 6, 70, 80, 90, 200]);
        assert_eq!((verdict.hops, verdict.rpcs, verdict.hedges), (2, 7, 0));
        assert_eq!(verdict.losers, []);
        assert_eq!(verdict.trace[0].outcome, Outcome::Failed(Failure::Unreachable));
        assert_eq!(verdict.trace[1].outcome, Outcome::Answered { named: 3, found: 0 });
    }

    #[test]
    fn a_search_shows_where_nobody_is() {
        // The target is in the widest bucket of a node whose first of sixteen bits is set; it shares the others.
        let own = id(1 << 15);
        let bucket = |n: u16| bucket_index(&own, &id(n)).expect("somebody else");
        let mut script = Script::closest([1 << 14, (1 << 15) + 3]);
        script.asks();
        script.answer(1 << 14, []).answer((1 << 15) + 3, []);
        let verdict = script.verdict();
        assert!(!verdict.shows_vacant(&own, bucket(1 << 14)), "somebody is there");
        let mut script = Script::closest([(1 << 15) + 3]);
        script.asks();
        let verdict = script.answer((1 << 15) + 3, []).verdict();
        assert!(verdict.shows_vacant(&own, bucket(0)));
        let mut script = Script::closest([1]);
        script.asks();
        assert!(!script.fail(1).verdict().shows_vacant(&own, bucket(0)), "nobody says so");
        let mut script = Script::closest([(1 << 15) + 3, 1]);
        script.asks();
        script.answer((1 << 15) + 3, []);
        let verdict = script.at(60_000).verdict();
        assert!(!verdict.shows_vacant(&own, bucket(0)), "{:?}", verdict.reason);
    }

    #[test]
    fn among_the_equally_far_the_fast_go_first() {
        let mut rtt = Rtt::UNKNOWN;
        rtt.on_sample(ms(20));
        let fast = Lead { rtt, ..lead(90) };
        let seeds = leads([70, 80]).into_iter().chain([fast]).chain(leads([60]));
        let mut lookup =
            Lookup::new(id(OWN), Key::from(id(0)), Goal::Closest, LookupSettings::default(), seeds, END);
        // 60 shares a bit more than the others.
        for expected in [60, 90, 70] {
            let Step::Ask { contact, .. } = lookup.poll(ms(0)) else { panic!("places are free") };
            assert_eq!(number(&contact.id), expected);
        }
        // The fast one is the first whose silence is noticed: 20 ms and twice a spread of 10.
        assert_eq!(lookup.poll(ms(0)), Step::Wait { until: ms(40) });
    }

    #[test]
    fn silence_makes_room_for_two_more_and_the_longest_silent_gives_way() {
        let mut script = Script::closest(1..=20);
        assert_eq!(script.asks(), [1, 2, 3]);
        assert!(script.at(249).asks().is_empty());
        // All three are set aside, and places beyond the three are two: the first to be asked is given up.
        assert_eq!(script.at(250).lookup.poll(ms(250)), step_ask(4));
        assert_eq!(script.lookup.poll(ms(250)), step_ask(5));
        assert_eq!(script.lookup.poll(ms(250)), Step::Cancel(id(1)));
        assert_eq!(script.lookup.poll(ms(250)), step_ask(6));
        assert_eq!(script.lookup.poll(ms(250)), Step::Wait { until: ms(500) });
    }

    fn step_ask(n: u16) -> Step {
        Step::Ask { contact: lead(n).contact, rtt: Rtt::UNKNOWN, hedge: true }
    }

    #[test]
    fn without_hedges_silence_is_waited_out() {
        let settings = LookupSettings { hedges: 0, ..LookupSettings::default() };
        let mut script = Script::new(Goal::Closest, settings, 1..=20);
        assert_eq!(script.asks(), [1, 2, 3]);
        assert!(script.at(1400).asks().is_empty());
        assert_eq!(script.fail(1).asks(), [4]);
    }

    #[test]
    fn a_late_answer_is_learned_from() {
        let mut script = Script::closest([10, 20, 30, 40]);
        script.asks();
        assert_eq!(script.at(200).answer(20, []).asks(), [40]);
        // 10 and 30 are set aside here, and 40 alone is waited for.
        assert!(script.at(260).asks().is_empty());
        assert_eq!(script.at(300).answer(10, [5]).asks(), [5]);
        script.answer(5, []).answer(40, []);
        let verdict = script.verdict();
        assert_eq!(numbers(&verdict.closest), [5, 10, 20, 40]);
        assert_eq!(verdict.losers, [id(30)]);
        assert_eq!(verdict.trace[2].outcome, Outcome::Silent);
    }

    #[test]
    fn the_end_does_not_wait_for_the_silent() {
        let mut script = Script::closest([10, 20, 30]);
        script.asks();
        script.at(50).answer(20, [10]).answer(30, []);
        assert_eq!(script.lookup.poll(ms(50)), Step::Wait { until: ms(250) });
        let verdict = script.at(250).verdict();
        assert_eq!((verdict.reason, verdict.losers), (Reason::Complete, vec![id(10)]));
    }

    /// A node with one slow seed used to end its first lookup after a hedge delay, with nobody found.
    #[test]
    fn the_only_hope_is_waited_for_however_slow() {
        let mut script = Script::closest([10, 20]);
        script.asks();
        script.at(10).fail(20);
        assert!(script.at(300).asks().is_empty());
        assert_eq!(script.lookup.poll(ms(300)), Step::Wait { until: END });
        assert_eq!(script.at(900).answer(10, [5]).asks(), [5]);
    }

    #[test]
    fn nobody_to_ask_is_an_end() {
        let verdict = Script::closest([]).verdict();
        assert_eq!((verdict.reason, verdict.closest, verdict.hops), (Reason::Complete, vec![], 0));
        let verdict = Script::closest([OWN]).verdict();
        assert_eq!(verdict.rpcs, 0, "we are not asked");
    }

    #[test]
    fn a_fast_error_does_not_beat_a_slower_answer() {
        let goal = Goal::Found(NonZeroUsize::MIN);
        let mut script = Script::new(goal, LookupSettings::default(), [1, 2, 3]);
        script.asks();
        script.at(1).fail(1).fail(2);
        assert_eq!(script.lookup.poll(ms(1)), Step::Wait { until: ms(250) });
        script.lookup.on_answer(&id(3), [], 1, ms(200));
        let verdict = script.at(200).verdict();
        assert_eq!((verdict.reason, verdict.found), (Reason::Enough, 1));
    }

    #[test]
    fn enough_is_enough() {
        let goal = Goal::Found(NonZeroUsize::new(2).expect("two"));
        let mut script = Script::new(goal, LookupSettings::default(), 1..=20);
        script.asks();
        script.lookup.on_answer(&id(2), leads([7]), 1, ms(40));
        assert_eq!(script.at(40).asks(), [4]);
        script.lookup.on_answer(&id(1), [], 1, ms(50));
        let verdict = script.at(50).verdict();
        assert_eq!((verdict.reason, verdict.found), (Reason::Enough, 2));
        assert_eq!(verdict.losers, [id(3), id(4)]);
        assert_eq!(verdict.trace[2].outcome, Outcome::Canceled);
    }

    #[test]
    fn nobody_beyond_the_hop_budget_is_asked() {
        let settings = LookupSettings { hops_max: 3, ..LookupSettings::default() };
        let mut script = Script::new(Goal::Closest, settings, [100]);
        for (peer, next) in [(100, 90), (90, 80), (80, 70)] {
            assert_eq!(script.asks(), [peer]);
            script.answer(peer, [next]);
        }
        let verdict = script.verdict();
        assert_eq!((verdict.reason, verdict.hops, verdict.rpcs), (Reason::Hops, 3, 3));
        // What is too far away in hops but also too far to matter ends nothing.
        let mut script = Script::new(Goal::Closest, LookupSettings { hops_max: 1, ..settings }, 1..=20);
        for peer in 1..=20 {
            script.asks();
            script.answer(peer, [1000]);
        }
        assert_eq!(script.verdict().reason, Reason::Complete);
    }

    #[test]
    fn whoever_always_knows_somebody_nearer_ends_at_the_cap() {
        let settings = LookupSettings { hops_max: u8::MAX, ..LookupSettings::default() };
        let mut script = Script::new(Goal::Closest, settings, [60_000]);
        let mut nearer = 60_000;
        let mut asked = 0;
        loop {
            let peers = script.asks();
            if peers.is_empty() {
                break;
            }
            for peer in peers {
                asked += 1;
                nearer -= 100;
                script.answer(peer, nearer..nearer + 50);
                assert!(script.lookup.candidates.len() <= 80 + UNASKED_MAX);
            }
        }
        let verdict = script.verdict();
        assert_eq!((asked, verdict.rpcs, verdict.reason), (80, 80, Reason::Requests));
    }

    #[test]
    fn time_runs_out_and_callers_change_their_minds() {
        let mut script = Script::closest([1, 2, 3]);
        script.asks();
        script.answer(2, []);
        script.now = END;
        let verdict = script.verdict();
        assert_eq!((verdict.reason, numbers(&verdict.closest)), (Reason::Deadline, vec![2]));
        let mut script = Script::closest([1, 2, 3]);
        script.asks();
        script.lookup.cancel();
        let verdict = script.verdict();
        assert_eq!((verdict.reason, verdict.losers.len()), (Reason::Canceled, 3));
        assert_eq!(script.verdict(), verdict, "the end stays the end");
        script.answer(1, [9]);
        assert_eq!(script.verdict().reason, Reason::Canceled);
    }

    #[test]
    fn the_word_of_those_who_name_the_dead_is_not_taken_for_long() {
        let mut script = Script::closest([1000, 1001, 1002]);
        script.asks();
        // A liar names twenty that do not exist, and one that an honest peer names as well.
        script.answer(1000, 1..=20).answer(1001, [20, 900, 901, 902]).answer(1002, []);
        let mut dead = 0;
        let mut asked = Vec::new();
        loop {
            let peers = script.asks();
            if peers.is_empty() {
                break;
            }
            for peer in peers {
                asked.push(peer);
                if peer < 20 {
                    dead += 1;
                    script.fail(peer);
                } else {
                    script.answer(peer, []);
                }
            }
        }
        // Three to find out, and those already asked by then.
        assert!((3..=5).contains(&dead), "{dead}");
        assert!([20, 900, 901, 902].iter().all(|honest| asked.contains(honest)), "{asked:?}");
        assert_eq!(script.verdict().reason, Reason::Complete);
    }

    /// The first to name a peer decided where it was looked for: a liar that answered early named the honest neighbours
    /// of a key with addresses where nobody was, and whoever named them rightly came too late.
    #[test]
    fn a_peer_is_looked_for_where_others_say_it_is_too() {
        let at = |n, port| {
            let addr: SocketAddr = ([9, 9, 9, 9], port).into();
            Lead::from(Contact { id: id(n), addrs: Arc::new([addr]) })
        };
        for is_silent in [false, true] {
            let mut script = Script::closest([10, 20, 30]);
            assert_eq!(script.asks(), [10, 20, 30]);
            script.lookup.on_answer(&id(10), [at(5, 1)], 0, ms(10));
            assert_eq!(script.at(10).asks(), [5]);
            script.lookup.on_answer(&id(20), [at(5, 2)], 0, ms(20));
            script.lookup.on_answer(&id(30), [at(5, 1)], 0, ms(20));
            assert!(script.at(20).asks().is_empty(), "it may still be where it was said to be");
            if is_silent {
                assert_eq!(script.at(260).lookup.poll(ms(260)), Step::Cancel(id(5)));
            } else {
                script.at(30).fail(5);
            }
            let now = script.now;
            let Step::Ask { contact, .. } = script.lookup.poll(now) else { panic!("it is not looked for") };
            assert_eq!(contact, at(5, 2).contact);
            script.lookup.on_answer(&id(5), [at(10, 7)], 0, now);
            let verdict = script.verdict();
            assert_eq!((verdict.reason, verdict.rpcs), (Reason::Complete, 5));
            assert_eq!(verdict.closest[0], at(5, 2).contact);
        }
        // Twice is enough, however many places are named.
        let mut script = Script::closest([10, 20, 30, 40]);
        script.asks();
        for (port, peer) in [(1, 10), (2, 20), (3, 30)] {
            script.lookup.on_answer(&id(peer), [at(5, port)], 0, ms(0));
        }
        assert_eq!(script.asks(), [5, 40]);
        assert_eq!(script.fail(5).asks(), [5]);
        script.fail(5);
        script.lookup.on_answer(&id(40), [at(5, 4)], 0, ms(0));
        assert_eq!((script.verdict().reason, script.verdict().rpcs), (Reason::Complete, 6));
    }

    #[test]
    fn paths_share_no_informant_and_hide_nobody() {
        let two = NonZeroUsize::new(2).expect("two");
        let settings = LookupSettings { paths: two, ..LookupSettings::default() };
        let mut script = Script::new(Goal::Closest, settings, [1000, 2000]);
        assert_eq!(script.asks(), [1000, 2000]);
        // One names its gang of twenty, all there and all nearer, and the honest peers it wants to keep from us.
        script.answer(1000, (1..=15).chain(500..=504)).answer(2000, 500..=510);
        let mut asked = Vec::new();
        loop {
            let peers = script.asks();
            if peers.is_empty() {
                break;
            }
            for peer in peers {
                asked.push(peer);
                script.answer(peer, if peer < 100 { 1..=20 } else { 500..=519 });
            }
        }
        let unique: HashSet<u16> = asked.iter().copied().collect();
        assert_eq!(unique.len(), asked.len(), "nobody twice");
        let closest = numbers(&script.verdict().closest);
        assert!((1..=20).chain(500..=517).all(|peer| closest.contains(&peer)), "{closest:?}");
        // One path alone sees the gang and nobody else.
        let mut script = Script::closest([1000, 2000]);
        script.asks();
        script.answer(1000, 1..=20);
        loop {
            let peers = script.asks();
            if peers.is_empty() {
                break;
            }
            for peer in peers {
                script.answer(peer, 1..=20);
            }
        }
        script.at(250).asks();
        assert_eq!(numbers(&script.verdict().closest), (1..=20).collect::<Vec<u16>>());
    }

    #[test]
    fn nobody_is_believed_alone() {
        let settings = LookupSettings { parallelism: NonZeroUsize::MIN, ..LookupSettings::default() };
        let mut script = Script::new(Goal::Closest, settings, [1000, 1001, 1002, 1003]);
        assert_eq!(script.asks(), [1000]);
        script.answer(1000, 1..=20);
        for _ in 0..20 {
            let peer = script.asks()[0];
            assert!(peer <= 20);
            script.answer(peer, 1..=20);
        }
        assert_eq!(script.asks(), [1001], "the gang is complete, the search is not");
        script.answer(1001, []);
        assert_eq!(script.asks(), [1002]);
        script.answer(1002, []);
        assert_eq!(script.verdict().reason, Reason::Complete);
    }

    fn any_settings() -> impl Strategy<Value = LookupSettings> {
        (1_usize..6, 0_usize..4, 0_u8..8, 0_u16..100, 1_usize..12).prop_map(
            |(parallelism, hedges, hops_max, requests_max, paths)| LookupSettings {
                parallelism: parallelism.try_into().expect("not zero"),
                hedges,
                hedge_after: ms(250),
                hops_max,
                requests_max,
                paths: paths.try_into().expect("not zero"),
            },
        )
    }

    proptest! {
        /// Peers answer, lie, fail, keep silent and interrupt as they like: the search ends, within its bounds.
        #[test]
        fn every_search_ends_within_its_bounds(
            settings in any_settings(),
            seed: u64,
            universe in 1_u16..2000,
            answering in 0.0..1.0_f64,
            silent in 0.0..1.0_f64,
        ) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let peers = |rng: &mut fastrand::Rng| {
                let mut named: Vec<u16> = (0..rng.usize(0..40)).map(|_| rng.u16(0..universe)).collect();
                named.push(OWN);
                rng.shuffle(&mut named);
                named
            };
            let mut script = Script::new(Goal::Closest, settings, peers(&mut rng));
            let slots = settings.parallelism.get().max(settings.paths.get().min(PATHS_MAX));
            let mut asked = HashSet::new();
            let mut answered = HashSet::new();
            let mut out: Vec<u16> = Vec::new();
            let verdict = loop {
                match script.lookup.poll(script.now) {
                    Step::Ask { contact, hedge, .. } => {
                        let peer = number(&contact.id);
                        prop_assert!(peer != OWN, "asked itself");
                        prop_assert!(asked.insert(peer), "asked twice");
                        prop_assert_eq!(hedge, out.len() >= slots);
                        out.push(peer);
                        prop_assert!(out.len() <= slots + settings.hedges);
                    }
                    Step::Cancel(peer) => {
                        let at = out.iter().position(|out| *out == number(&peer));
                        out.remove(at.expect("cancels what is out"));
                    }
                    Step::Wait { until } => {
                        prop_assert!(!out.is_empty(), "waits for nobody");
                        prop_assert!(until > script.now);
                        // Somebody nobody asked has something to say.
                        let stranger = rng.u16(0..universe);
                        if !out.contains(&stranger) {
                            let named = peers(&mut rng);
                            script.answer(stranger, named).fail(stranger);
                        }
                        if rng.f64() < silent {
                            // Nobody says anything: until all that is left is the deadline, when they fail.
                            if until < END {
                                script.now = until;
                                continue;
                            }
                        }
                        let peer = out.swap_remove(rng.usize(0..out.len()));
                        script.now += ms(rng.u64(0..20));
                        if rng.f64() < answering {
                            answered.insert(peer);
                            let named = peers(&mut rng);
                            script.answer(peer, named);
                        } else {
                            script.fail(peer);
                        }
                        let kept = script.lookup.candidates.len();
                        let bound = asked.len() + UNASKED_MAX.max(2 * K * PATHS_MAX);
                        prop_assert!(kept <= bound, "{kept} candidates");
                    }
                    Step::Done(verdict) => break verdict,
                }
            };
            prop_assert!(verdict.rpcs <= usize::from(settings.requests_max));
            prop_assert_eq!(verdict.rpcs, asked.len());
            prop_assert!(verdict.hops <= settings.hops_max);
            let closest = numbers(&verdict.closest);
            prop_assert!(closest.is_sorted() && closest.iter().all(|peer| answered.contains(peer)));
            prop_assert!(closest.len() >= answered.len().min(K), "an answer is missing");
            let mut losers: Vec<u16> = verdict.losers.iter().map(number).collect();
            losers.sort_unstable();
            out.sort_unstable();
            prop_assert_eq!(losers, out);
        }
    }
}
