//! One fetch: which part of an object is asked of whom.
//!
//! The first answer proves how long the object is and brings its beginning, which is all of a short one. The rest is cut
//! into shares that a peer should send in about a second, so a faster peer gets more, and none gets so much that the others
//! would wait for it at the end. A peer that is done takes over a part of what a slower one still owes. One that says nothing for
//! a while is not waited for: what it owes is asked of others too, and it is given up when it stays silent. Whoever sends a
//! byte that is not the object's, or answers nonsense, is never asked again.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use super::tree::{GROUP, Shape};

/// Groups asked of a peer whose pace is not known, and the least and most that are asked at a time: 2, 1 and 64 MiB.
const FIRST: u64 = 32;
const LEAST: u64 = 16;
const MOST: u64 = 1024;

/// The least of a slow peer is what it sends in this time: at the end everybody waits for the last share.
const LAST: f64 = 0.1;
/// And no less than this, because of the question that each takes.
const LEAST_OF_ALL: u64 = 2;

/// Groups of the first question.
pub const PROBE: u64 = 4;

/// Questions that a peer has at a time: the second is on its way while the first is answered.
const ASKS_MAX: usize = 2;

/// How long a peer should need for its share.
const SHARE: f64 = 1.0;

/// How often what one peer owes is asked of others too.
const HEDGES_MAX: u32 = 2;

/// A peer whose pace is known is silent when nothing came for so many times what a group takes it, and for this long at least.
const SILENT_GROUPS: f64 = 8.0;
const SILENT_MIN: Duration = Duration::from_millis(50);

/// The first pause before a peer that failed is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a fetch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long a peer may be silent before others are asked for what it owes.
    pub hedge_after: Duration,
    /// How long it may be silent before it is given up.
    pub stall_max: Duration,
    /// How often it may fail before it is given up.
    pub tries_max: u32,
}

/// Groups of an object, those that are there marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMap {
    bits: Vec<u8>,
    groups: u64,
    marked: u64,
}

impl GroupMap {
    /// None of so many.
    #[must_use]
    pub fn new(groups: u64) -> Self {
        GroupMap { bits: vec![0; usize::try_from(groups.div_ceil(8)).unwrap_or(0)], groups, marked: 0 }
    }

    /// Those whose bits are set, the lowest of the first byte first; `None` if that is not how many groups there are.
    #[must_use]
    pub fn from_bytes(groups: u64, bytes: &[u8]) -> Option<Self> {
        let has_rest = groups % 8 != 0 && bytes.last()? >> (groups % 8) != 0;
        if bytes.len() as u64 != groups.div_ceil(8) || has_rest {
            return None;
        }
        let marked = bytes.iter().map(|byte| u64::from(byte.count_ones())).sum();
        Some(GroupMap { bits: bytes.to_vec(), groups, marked })
    }

    /// The bits.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Whether a group is there.
    #[must_use]
    pub fn has(&self, group: u64) -> bool {
        let byte = usize::try_from(group / 8).ok().and_then(|at| self.bits.get(at));
        byte.is_some_and(|byte| byte >> (group % 8) & 1 == 1)
    }

    /// Marks a group, and says whether it was not.
    pub fn mark(&mut self, group: u64) -> bool {
        if group >= self.groups || self.has(group) {
            return false;
        }
        if let Some(byte) = usize::try_from(group / 8).ok().and_then(|at| self.bits.get_mut(at)) {
            *byte |= 1 << (group % 8);
            self.marked += 1;
        }
        true
    }

    /// How many there are in all.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// How many are there.
    #[must_use]
    pub fn marked(&self) -> u64 {
        self.marked
    }

    /// Whether all are.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.marked == self.groups
    }

    /// The stretches in `groups` that are not there.
    fn missing(&self, groups: Range<u64>) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        for group in groups.start..groups.end.min(self.groups) {
            match missing.last_mut() {
                _ if self.has(group) => {}
                Some(last) if last.end == group => last.end += 1,
                _ => missing.push(group..group + 1),
            }
        }
        missing
    }
}

/// Why a peer did not send what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It sent something that is not the object's. It is not asked again.
    Lied,
    /// It does not have the object, or does not give it. It is not asked again.
    Refused,
    /// It could not be reached, or the link ended, or it was late.
    Away,
    /// It has too much to do, for so long.
    Busy(Duration),
    /// It was silent for too long. It is not asked again.
    Stalled,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Ask a peer for the beginning of the object and for its end, which proves its length.
    Probe {
        /// The number of the question.
        ask: u64,
        /// Whom.
        peer: usize,
    },
    /// Ask a peer for some groups.
    Ask {
        /// The number of the question.
        ask: u64,
        /// Whom.
        peer: usize,
        /// What.
        groups: Range<u64>,
    },
    /// The answer to this question is not wanted any more.
    Cancel {
        /// Its number.
        ask: u64,
    },
}

#[derive(Debug, Default)]
struct Peer {
    asks: usize,
    /// Groups per second, as far as it is known.
    pace: Option<f64>,
    /// When something came last, or since when it has something to do.
    moved: Duration,
    /// What it sent since when, to know it.
    counted: (u64, Duration),
    failures: u32,
    not_before: Duration,
    /// Why it is not asked any more.
    gone: Option<Failure>,
}

#[derive(Debug)]
struct Ask {
    peer: usize,
    /// Nothing for one that asks how long the object is.
    groups: Option<Range<u64>>,
    /// Where its answer is; behind that is what it owes, up to where others took over.
    next: u64,
    end: u64,
    /// When something came last.
    moved: Duration,
    hedges: u32,
    /// Up to where others were asked in this round of hedges.
    hedged: u64,
}

impl Ask {
    fn owed(&self) -> Range<u64> {
        self.next..self.end.max(self.next)
    }
}

/// A fetch that is under way.
#[derive(Debug)]
pub struct Plan {
    patience: Patience,
    map: Option<GroupMap>,
    /// What nobody is asked for, in order.
    free: Vec<Range<u64>>,
    /// Groups from here on are not asked for yet.
    limit: u64,
    peers: Vec<Peer>,
    asks: BTreeMap<u64, Ask>,
    asked: u64,
    canceled: Vec<u64>,
}

impl Plan {
    /// A fetch of an object of which nothing is known.
    #[must_use]
    pub fn new(peers: usize, patience: Patience) -> Self {
        Plan {
            patience,
            map: None,
            free: Vec::new(),
            limit: u64::MAX,
            peers: (0..peers).map(|_| Peer::default()).collect(),
            asks: BTreeMap::new(),
            asked: 0,
            canceled: Vec::new(),
        }
    }

    /// The rest of a fetch of which these groups are there.
    #[must_use]
    pub fn resume(peers: usize, patience: Patience, map: GroupMap) -> Self {
        let mut plan = Plan::new(peers, patience);
        plan.free = map.missing(0..map.groups());
        plan.map = Some(map);
        plan
    }

    /// What is there, once it is known how much there is.
    #[must_use]
    pub fn map(&self) -> Option<&GroupMap> {
        self.map.as_ref()
    }

    /// Whether all is there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.map.as_ref().is_some_and(GroupMap::is_full)
    }

    /// Whether nobody is left to ask.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.is_done() && self.peers.iter().all(|peer| peer.gone.is_some())
    }

    /// Asks for nothing behind this group for now: whoever reads in order is not there yet.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Begins with a limit.
    #[must_use]
    pub fn limited(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// The length of the object was proven, by the answer to any question.
    pub fn on_shape(&mut self, shape: Shape) {
        if self.map.is_none() {
            self.map = Some(GroupMap::new(shape.groups()));
            self.free = std::iter::once(0..shape.groups()).collect();
        }
    }

    /// Something came that counts later.
    pub fn on_heard(&mut self, ask: u64, now: Duration) {
        if let Some(asked) = self.asks.get_mut(&ask) {
            asked.moved = now;
            self.peers[asked.peer].moved = now;
        }
    }

    /// A group came and is proven. Says whether it is new.
    pub fn on_group(&mut self, ask: u64, group: u64, now: Duration) -> bool {
        if let Some(asked) = self.asks.get_mut(&ask) {
            asked.moved = now;
            asked.next = asked.next.max(group + 1);
            let peer = &mut self.peers[asked.peer];
            peer.failures = 0;
            peer.moved = now;
            peer.counted.0 += 1;
            let spent = now.saturating_sub(peer.counted.1).as_secs_f64();
            if peer.counted.0 >= 8 && spent >= 0.005 {
                let pace = peer.counted.0 as f64 / spent;
                peer.pace = Some(peer.pace.map_or(pace, |before| f64::midpoint(before, pace)));
                peer.counted = (0, now);
            }
        }
        let Some(map) = &mut self.map else { return false };
        let is_new = map.mark(group);
        if is_new {
            self.take_free(&(group..group + 1));
        }
        self.drop_idle_asks();
        is_new
    }

    /// Questions whose answers others have given are not waited for.
    fn drop_idle_asks(&mut self) {
        let Some(map) = &self.map else { return };
        let is_idle = |asked: &Ask| {
            let owes = asked.groups.is_some() && asked.owed().any(|group| !map.has(group));
            // One that came to its own end ends by itself.
            let is_over = asked.groups.as_ref().is_some_and(|groups| asked.next >= groups.end);
            asked.groups.is_some() && !owes && !is_over || map.is_full() && !is_over
        };
        let idle: Vec<u64> =
            self.asks.iter().filter(|(_, asked)| is_idle(asked)).map(|(ask, _)| *ask).collect();
        for ask in idle {
            self.end(ask);
            self.canceled.push(ask);
        }
    }

    /// The answer is over, well or not.
    pub fn on_end(&mut self, ask: u64, failure: Option<Failure>, now: Duration) {
        let Some(peer) = self.end(ask) else { return };
        let Some(failure) = failure else { return };
        let state = &mut self.peers[peer];
        state.failures += 1;
        let is_final = matches!(failure, Failure::Lied | Failure::Refused | Failure::Stalled);
        if is_final || state.failures >= self.patience.tries_max {
            state.gone = Some(failure);
            let others: Vec<u64> =
                self.asks.iter().filter(|(_, asked)| asked.peer == peer).map(|(ask, _)| *ask).collect();
            for other in others {
                self.end(other);
                self.canceled.push(other);
            }
            return;
        }
        let pause = PAUSE * 2u32.saturating_pow(state.failures - 1);
        let pause = if let Failure::Busy(asked) = failure { asked } else { pause };
        // However long it asks for: a peer that is silent for longer is given up, too.
        state.not_before = now + pause.min(self.patience.stall_max);
    }

    /// Takes a question off the list, and gives what it owed back. Says whom it was asked of.
    fn end(&mut self, ask: u64) -> Option<usize> {
        let asked = self.asks.remove(&ask)?;
        self.peers[asked.peer].asks -= 1;
        if let (Some(map), Some(_)) = (&self.map, &asked.groups) {
            let owed_by_others = |group: u64| {
                self.asks.values().any(|other| other.groups.is_some() && other.owed().contains(&group))
            };
            for missing in map.missing(asked.owed()) {
                for group in missing {
                    if !owed_by_others(group) {
                        insert(&mut self.free, group);
                    }
                }
            }
        }
        Some(asked.peer)
    }

    fn take_free(&mut self, taken: &Range<u64>) {
        let mut rest = Vec::with_capacity(self.free.len() + 1);
        for range in self.free.drain(..) {
            let (before, after) =
                (range.start..range.end.min(taken.start), range.start.max(taken.end)..range.end);
            rest.extend([before, after].into_iter().filter(|part| !part.is_empty()));
        }
        self.free = rest;
    }

    /// What to do next; nothing until something comes or [`wake_at`](Self::wake_at).
    pub fn poll(&mut self, now: Duration) -> Option<Step> {
        let silent = |asked: &Ask| now.saturating_sub(asked.moved) >= self.patience.stall_max;
        let stalled = self.asks.iter().find(|(_, asked)| silent(asked)).map(|(ask, _)| *ask);
        if let Some(ask) = stalled {
            self.on_end(ask, Some(Failure::Stalled), now);
            return Some(Step::Cancel { ask });
        }
        if let Some(ask) = self.canceled.pop() {
            return Some(Step::Cancel { ask });
        }
        if self.is_done() {
            return None;
        }
        if self.map.is_none() {
            return self.probe(now);
        }
        let mut ready: Vec<usize> = (0..self.peers.len()).filter(|peer| self.can_ask(*peer, now)).collect();
        // Who has less to do first, then who is faster.
        ready.sort_by(|one, other| {
            let (one, other) = (&self.peers[*one], &self.peers[*other]);
            let pace = |peer: &Peer| peer.pace.unwrap_or(f64::MAX);
            one.asks.cmp(&other.asks).then(pace(other).total_cmp(&pace(one)))
        });
        for peer in ready {
            let groups = self.share(peer).or_else(|| self.takeover(peer, now));
            if let Some(groups) = groups {
                return Some(self.ask(peer, Some(groups), now));
            }
        }
        None
    }

    fn can_ask(&self, peer: usize, now: Duration) -> bool {
        let state = &self.peers[peer];
        // Of one that is silent nothing more is wanted.
        let is_ready = state.gone.is_none() && state.asks < ASKS_MAX && state.not_before <= now;
        is_ready && !self.is_silent(peer, now)
    }

    /// How long a peer may be silent. One that answers two questions answers one after the other, so it is the peer that is
    /// silent and not the answer.
    fn silence_max(&self, peer: usize) -> Duration {
        let usual = self.patience.hedge_after;
        match self.peers[peer].pace {
            Some(pace) if pace > 0.0 => {
                Duration::try_from_secs_f64(SILENT_GROUPS / pace).unwrap_or(usual).max(SILENT_MIN).min(usual)
            }
            _ => usual,
        }
    }

    fn is_silent(&self, peer: usize, now: Duration) -> bool {
        let state = &self.peers[peer];
        state.asks > 0 && now.saturating_sub(state.moved) >= self.silence_max(peer)
    }

    /// The fewest groups that are worth a question to a peer.
    fn least(&self, peer: usize) -> u64 {
        self.peers[peer].pace.map_or(LEAST, |pace| ((pace * LAST) as u64).clamp(LEAST_OF_ALL, LEAST))
    }

    fn probe(&mut self, now: Duration) -> Option<Step> {
        let last = self.asks.values().map(|asked| asked.moved).max();
        // Nothing else can be asked before the length is known, so somebody else is asked for it soon.
        if last.is_some_and(|last| now.saturating_sub(last) < self.patience.hedge_after / 2) {
            return None;
        }
        let is_free = |peer: &usize| self.peers[*peer].asks == 0 && self.can_ask(*peer, now);
        let peer = (0..self.peers.len()).filter(is_free).min_by_key(|peer| self.peers[*peer].failures)?;
        Some(self.ask(peer, None, now))
    }

    fn ask(&mut self, peer: usize, groups: Option<Range<u64>>, now: Duration) -> Step {
        let ask = self.asked;
        self.asked += 1;
        let state = &mut self.peers[peer];
        if state.asks == 0 {
            (state.counted, state.moved) = ((0, now), now);
        }
        state.asks += 1;
        let (next, end) = groups.as_ref().map_or((0, 0), |groups| (groups.start, groups.end));
        self.asks.insert(
            ask,
            Ask { peer, groups: groups.clone(), next, end, moved: now, hedges: 0, hedged: next },
        );
        match groups {
            Some(groups) => Step::Ask { ask, peer, groups },
            None => Step::Probe { ask, peer },
        }
    }

    /// The next share of what nobody is asked for.
    fn share(&mut self, peer: usize) -> Option<Range<u64>> {
        let first = self.free.first()?.clone();
        if first.start >= self.limit {
            return None;
        }
        let free: u64 = self.free.iter().map(|range| range.end - range.start).sum();
        let most = self.worth(peer, free);
        let share = first.start..first.end.min(first.start + most).min(self.limit);
        self.take_free(&share);
        Some(share)
    }

    /// How many of so many groups are asked of a peer at a time.
    fn worth(&self, peer: usize, free: u64) -> u64 {
        let usable = self.peers.iter().filter(|peer| peer.gone.is_none()).count().max(1) as u64;
        let least = self.least(peer);
        let paced = self.peers[peer].pace.map_or(FIRST, |pace| (pace * SHARE) as u64);
        paced.clamp(least, MOST).min((free / (2 * usable)).max(least))
    }

    /// A part of what another peer owes and will not send soon.
    fn takeover(&mut self, thief: usize, now: Duration) -> Option<Range<u64>> {
        let map = self.map.as_ref()?;
        let is_idle = self.peers[thief].asks == 0;
        let own = self.peers[thief].pace;
        let mut best: Option<(f64, u64, Range<u64>, bool)> = None;
        let others = self.asks.iter().filter(|(_, asked)| asked.peer != thief && asked.groups.is_some());
        for (ask, asked) in others {
            let missing = map.missing(asked.owed());
            let (Some(first), Some(last)) = (missing.first(), missing.last()) else { continue };
            let owed = first.start..last.end;
            let groups: u64 = missing.iter().map(|range| range.end - range.start).sum();
            if self.is_silent(asked.peer, now) {
                // A part each, so that all who have time share in it; when all of it was asked for and did not come, once more.
                let behind = missing.iter().find(|range| range.end > asked.hedged);
                let (start, end) = match behind {
                    Some(range) => (range.start.max(asked.hedged), range.end),
                    None => (first.start, first.end),
                };
                let round = asked.hedges + u32::from(behind.is_none() || asked.hedges == 0);
                if round <= HEDGES_MAX && best.as_ref().is_none_or(|(late, ..)| *late < f64::MAX) {
                    let part = start..end.min(start + self.worth(thief, groups));
                    best = Some((f64::MAX, *ask, part, true));
                }
                continue;
            }
            // Half of it, if that half comes sooner that way, and is worth a question.
            let (Some(own), Some(theirs)) = (own, self.peers[asked.peer].pace) else { continue };
            let theirs = theirs / self.peers[asked.peer].asks.max(1) as f64;
            let (alone, half) = (groups as f64 / theirs, groups as f64 / 2.0 / own);
            let least = self.least(thief);
            let is_worth_it = groups >= 2 * least && alone >= 2.0 * half && alone >= 0.05;
            if !is_idle || asked.hedges > 0 || !is_worth_it {
                continue;
            }
            if best.as_ref().is_none_or(|(late, ..)| *late < alone) {
                let share = own / (own + theirs);
                let middle = owed.end
                    - (((owed.end - owed.start) as f64 * share) as u64).max(least).min(owed.end - owed.start);
                best = Some((alone, *ask, middle.max(owed.start)..owed.end, false));
            }
        }
        let (_, ask, groups, is_silent) = best?;
        let asked = self.asks.get_mut(&ask)?;
        if is_silent {
            asked.hedges += u32::from(asked.hedges == 0 || groups.start < asked.hedged);
            asked.hedged = groups.end;
        } else {
            asked.hedges += 1;
            asked.end = groups.start;
        }
        Some(groups)
    }

    /// When to look again although nothing came.
    #[must_use]
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let asks = self.asks.values().flat_map(|asked| {
            let of_peer = self.peers[asked.peer].moved + self.silence_max(asked.peer);
            let of_probe = asked.moved + self.patience.hedge_after / 2;
            let of_probe = if self.map.is_none() { of_probe } else { of_peer };
            [of_peer, of_probe, asked.moved + self.patience.stall_max]
        });
        let pauses = self.peers.iter().filter(|peer| peer.gone.is_none()).map(|peer| peer.not_before);
        asks.chain(pauses).filter(|at| *at > now).min()
    }

    /// Why a peer is not asked any more.
    #[must_use]
    pub fn gone(&self, peer: usize) -> Option<Failure> {
        self.peers.get(peer).and_then(|peer| peer.gone)
    }
}

/// Puts a group among ranges that are in order and apart.
fn insert(ranges: &mut Vec<Range<u64>>, group: u64) {
    let at = ranges.partition_point(|range| range.end < group);
    match ranges.get_mut(at) {
        Some(range) if range.contains(&group) => {}
        Some(range) if range.end == group => {
            range.end += 1;
            if ranges.get(at + 1).is_some_and(|next| next.start == group + 1) {
                ranges[at].end = ranges[at + 1].end;
                ranges.remove(at + 1);
            }
        }
        Some(range) if range.start == group + 1 => range.start = group,
        _ => ranges.insert(at, group..group + 1),
    }
}

/// The bytes of some groups.
#[must_use]
pub fn bytes_of(groups: &Range<u64>) -> Range<u64> {
    groups.start.saturating_mul(GROUP)..groups.end.saturating_mul(GROUP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Patience = Patience {
        hedge_after: Duration::from_millis(250),
        stall_max: Duration::from_secs(10),
        tries_max: 3,
    };

    /// What a pretended peer does.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Way {
        /// So many milliseconds for a group.
        Honest(u32),
        /// Honest for so many groups, and then it lies.
        Liar(u32),
        /// Honest for so many groups, and then it is silent.
        Silent(u32),
        /// Its link ends after so many groups.
        Breaks(u32),
        Absent,
    }

    struct Talk {
        ask: u64,
        peer: usize,
        next: u64,
        end: u64,
        is_probe: bool,
    }

    struct Run {
        time: Duration,
        done: bool,
        sent: Vec<u64>,
        accepted: Vec<u32>,
        asked: Vec<(usize, Range<u64>)>,
        gone: Vec<Option<Failure>>,
    }

    /// Peers in one time, a group at a time: each sends at its own pace, over all its answers in turn.
    fn run(groups: u64, ways: &[Way], map: Option<GroupMap>) -> Run {
        let mut plan = match map.clone() {
            Some(map) => Plan::resume(ways.len(), PATIENCE, map),
            None => Plan::new(ways.len(), PATIENCE),
        };
        let (mut now, mut talks): (Duration, Vec<Talk>) = (Duration::ZERO, Vec::new());
        let mut free_at = vec![Duration::ZERO; ways.len()];
        let (mut sent, mut accepted) = (vec![0; ways.len()], vec![0u32; groups as usize]);
        let mut asked = Vec::new();
        let mut steps = 0;
        loop {
            while let Some(step) = plan.poll(now) {
                steps += 1;
                assert!(steps < 200_000, "it goes on for ever");
                let (ask, peer, range) = match step {
                    Step::Cancel { ask } => {
                        talks.retain(|talk| talk.ask != ask);
                        continue;
                    }
                    Step::Probe { ask, peer } => (ask, peer, None),
                    Step::Ask { ask, peer, groups } => (ask, peer, Some(groups)),
                };
                if let Some(range) = &range {
                    assert!(range.end <= groups && !range.is_empty());
                    asked.push((peer, range.clone()));
                }
                let is_probe = range.is_none();
                let range = range.unwrap_or(0..PROBE.min(groups));
                if talks.iter().all(|talk| talk.peer != peer) {
                    free_at[peer] = free_at[peer].max(now + Duration::from_millis(5));
                }
                talks.push(Talk { ask, peer, next: range.start, end: range.end, is_probe });
            }
            if plan.is_done() || plan.is_lost() {
                let gone = (0..ways.len()).map(|peer| plan.gone(peer)).collect();
                return Run { time: now, done: plan.is_done(), sent, accepted, asked, gone };
            }
            // The peer that has something to say first.
            let speaks = |talk: &Talk| match ways[talk.peer] {
                Way::Silent(until) => sent[talk.peer] < u64::from(until),
                _ => true,
            };
            let next =
                talks.iter().filter(|talk| speaks(talk)).map(|talk| (free_at[talk.peer], talk.ask)).min();
            let wake = plan.wake_at(now);
            let Some((at, ask)) = next.filter(|(at, _)| wake.is_none_or(|wake| *at <= wake)) else {
                now = wake.expect("something comes or is waited for");
                continue;
            };
            now = now.max(at);
            let place = talks.iter().position(|talk| talk.ask == ask).unwrap();
            let talk = &mut talks[place];
            let (peer, way) = (talk.peer, ways[talk.peer]);
            let count = sent[peer];
            let failure = match way {
                Way::Absent => Some(Failure::Refused),
                Way::Liar(after) if count >= u64::from(after) => Some(Failure::Lied),
                Way::Breaks(after) if count >= u64::from(after) => Some(Failure::Away),
                _ => None,
            };
            if failure.is_some() {
                talks.remove(place);
                plan.on_end(ask, failure, now);
                continue;
            }
            let pace = if let Way::Honest(pace) = way { pace } else { 2 };
            free_at[peer] = now + Duration::from_millis(pace.into());
            if talk.is_probe {
                plan.on_shape(Shape::of(groups * GROUP));
            }
            let group = talk.next;
            talk.next += 1;
            sent[peer] += 1;
            let is_over = talk.next == talk.end;
            if is_over {
                talks.remove(place);
            }
            if plan.on_group(ask, group, now) {
                accepted[group as usize] += 1;
            }
            if is_over {
                plan.on_end(ask, None, now);
            }
        }
    }

    #[test]
    fn alone_or_together_all_of_it_comes() {
        for groups in [1, 15, 16, 17, 100, 4096] {
            for ways in [&[Way::Honest(2)][..], &[Way::Honest(2); 5], &[Way::Honest(1), Way::Honest(9)]] {
                let run = run(groups, ways, None);
                assert!(run.done && run.accepted.iter().all(|times| *times == 1), "{groups} {ways:?}");
            }
        }
    }

    #[test]
    fn faster_peers_get_more_and_nobody_is_waited_for() {
        let ways = [Way::Honest(1), Way::Honest(4), Way::Honest(16)];
        let run = run(4096, &ways, None);
        assert!(run.sent[0] > 3 * run.sent[1] && run.sent[1] > 2 * run.sent[2], "{:?}", run.sent);
        // All three together need 4096 / (1 + 1/4 + 1/16) ms.
        assert!(run.time < Duration::from_millis(3121 * 12 / 10), "{:?}", run.time);
        let twice: u64 = run.sent.iter().sum::<u64>() - 4096;
        assert!(twice < 100, "{twice} groups came twice");
    }

    #[test]
    fn two_of_five_that_lie_or_stall_cost_little() {
        let honest = run(4096, &[Way::Honest(2); 3], None).time;
        for bad in
            [Way::Liar(0), Way::Liar(40), Way::Silent(0), Way::Silent(50), Way::Breaks(30), Way::Absent]
        {
            for places in [[0, 1], [1, 3], [3, 4]] {
                let mut ways = [Way::Honest(2); 5];
                places.iter().for_each(|at| ways[*at] = bad);
                let run = run(4096, &ways, None);
                assert!(run.done && run.time < honest.mul_f64(1.25), "{bad:?}: {:?} of {honest:?}", run.time);
                assert!(places.iter().all(|at| run.gone[*at].is_some() || matches!(bad, Way::Silent(_))));
            }
        }
    }

    /// Three who are honest can do no better than five thirds of what five take. At each pace and wherever the two bad ones are, it
    /// takes little more than that.
    #[test]
    fn two_of_five_cost_little_more_than_what_they_do_not_send() {
        for (groups, pace) in [(160, 31), (640, 31), (4096, 2)] {
            let honest = run(groups, &[Way::Honest(pace); 5], None).time;
            for bad in
                [Way::Liar(0), Way::Liar(8), Way::Silent(0), Way::Silent(9), Way::Breaks(3), Way::Absent]
            {
                for places in [[0, 1], [1, 3], [3, 4]] {
                    let mut ways = [Way::Honest(pace); 5];
                    places.iter().for_each(|at| ways[*at] = bad);
                    let run = run(groups, &ways, None);
                    let ratio = run.time.as_secs_f64() / (honest.as_secs_f64() * 5.0 / 3.0);
                    assert!(run.done && ratio < 1.2, "{groups} groups, {bad:?} at {places:?}: {ratio:.2}");
                    let twice = run.sent.iter().sum::<u64>() - groups;
                    assert!(twice < groups / 8, "{twice} of {groups} came twice");
                }
            }
        }
    }

    /// One that answers two questions answers one after the other: the second is not late while the first comes.
    #[test]
    fn an_answer_that_waits_for_another_of_its_peer_is_not_late() {
        let run = run(400, &[Way::Honest(20), Way::Honest(20)], None);
        let twice = run.sent.iter().sum::<u64>() - 400;
        assert!(run.done && twice <= 4, "{twice} groups came twice");
    }

    #[test]
    fn what_is_there_is_not_asked_for_again() {
        let mut map = GroupMap::new(1000);
        for group in (0..1000).filter(|group| group % 7 != 0 && *group != 999) {
            map.mark(group);
        }
        let run = run(1000, &[Way::Honest(2); 3], Some(map.clone()));
        assert!(run.done);
        for (_, range) in &run.asked {
            assert!(range.clone().all(|group| !map.has(group)), "{range:?}");
        }
        assert_eq!(GroupMap::from_bytes(1000, map.as_bytes()), Some(map));
        assert_eq!(GroupMap::from_bytes(9, &[0, 2]), None);
        assert_eq!(GroupMap::from_bytes(9, &[0]), None);
    }

    #[test]
    fn when_nobody_has_it_that_is_said() {
        let none = run(10, &[Way::Absent, Way::Liar(0), Way::Breaks(0)], None);
        assert!(!none.done);
        assert_eq!(none.gone, [Some(Failure::Refused), Some(Failure::Lied), Some(Failure::Away)]);
        assert!(!run(10, &[], None).done);
        let silent = run(500, &[Way::Silent(3)], None);
        assert_eq!((silent.done, silent.gone[0]), (false, Some(Failure::Stalled)));
    }

    #[test]
    fn a_peer_cannot_ask_for_more_patience_than_there_is() {
        let mut plan = Plan::new(1, PATIENCE);
        let mut now = Duration::ZERO;
        for _ in 0..PATIENCE.tries_max {
            let Some(Step::Probe { ask, .. }) = plan.poll(now) else { panic!("it is asked again") };
            plan.on_end(ask, Some(Failure::Busy(Duration::MAX)), now);
            now = plan.wake_at(now).unwrap_or(now);
        }
        assert!(plan.is_lost() && now <= PATIENCE.stall_max * PATIENCE.tries_max);
    }

    #[test]
    fn who_reads_in_order_is_not_run_away_from() {
        let mut plan = Plan::new(2, PATIENCE).limited(64);
        plan.poll(Duration::ZERO).unwrap();
        plan.on_shape(Shape::of(1000 * GROUP));
        let mut most = 0;
        while let Some(Step::Ask { groups, .. }) = plan.poll(Duration::ZERO) {
            most = most.max(groups.end);
        }
        assert_eq!(most, 64);
        plan.set_limit(100);
        plan.on_end(1, None, Duration::ZERO);
        assert!(matches!(plan.poll(Duration::ZERO), Some(Step::Ask { .. })));
    }

    fn way() -> impl Strategy<Value = Way> {
        prop_oneof![
            3 => (1..20u32).prop_map(Way::Honest),
            1 => (0..200u32).prop_map(Way::Liar),
            1 => (0..200u32).prop_map(Way::Silent),
            1 => (0..200u32).prop_map(Way::Breaks),
            1 => Just(Way::Absent),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// It ends; with one honest peer it ends well; every group is taken once; and what a liar was asked for when it was
        /// found out is not asked of it again, nor anything else.
        #[test]
        fn it_ends_and_takes_every_group_once(groups in 1..600u64, ways in prop::collection::vec(way(), 1..7)) {
            let run = run(groups, &ways, None);
            let has_honest = ways.iter().any(|way| matches!(way, Way::Honest(_)));
            prop_assert!(run.done || !has_honest);
            prop_assert!(run.accepted.iter().all(|times| *times <= 1));
            prop_assert!(!run.done || run.accepted.iter().all(|times| *times == 1));
            for (peer, way) in ways.iter().enumerate() {
                if let Way::Liar(after) = way {
                    prop_assert!(run.sent[peer] <= u64::from(*after));
                }
            }
        }
    }
}
