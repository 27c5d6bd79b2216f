//! What came from each publisher and what did not: the sequence of a publisher tells a hole from silence.
//!
//! A publisher numbers its messages from one, again for each time it begins. A hole is a number that was passed over; it
//! is held open for a while, because messages overtake each other and repair takes a moment, and then it is told as a
//! gap. What comes after all is still taken, once. Memory is one window of bits per publisher, for so many publishers.

mod hearsay;
mod holders;
mod rumours;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
    time::Duration,
};

use ron_core::NodeId;

use hearsay::Hearsay;
use rumours::Rumours;

/// Numbers below the highest that are told apart. What is further behind is old.
pub const WINDOW: u64 = 1024;

const WORDS: usize = (WINDOW / 64) as usize;

/// Holes of one publisher that are held open: 4 KiB of them. More at once, and the oldest is told at once.
const HOLES_MAX: usize = 128;

/// For each publisher that is followed, so many that were are remembered by a number: a quarter of the memory.
const FORGOTTEN_PER_PUBLISHER: usize = 4;

/// When a publisher began, and the number of a message.
type Mark = (u64, u64);

/// Whose message it is, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial {
    /// Who published it.
    pub publisher: NodeId,
    /// When that publisher began, in milliseconds since 1970. A later beginning numbers anew.
    pub since: u64,
    /// The number, from one.
    pub seq: u64,
}

/// What a serial number is, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Not here yet.
    New,
    /// Already here.
    Known,
    /// Too far behind to tell, or of an earlier beginning.
    Old,
}

/// Messages that did not come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Whose.
    pub publisher: NodeId,
    /// When that publisher began.
    pub since: u64,
    /// Their numbers.
    pub seqs: RangeInclusive<u64>,
}

impl Gap {
    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.seqs.end().saturating_sub(*self.seqs.start()).saturating_add(1)
    }
}

/// The publishers of a topic.
#[derive(Debug)]
pub struct Publishers {
    tracks: BTreeMap<NodeId, Track>,
    /// What we are owed of publishers that began before we came and were not heard yet, as digests say.
    hearsay: Hearsay,
    /// Publishers that were forgotten. Without it, all that they ever said would look like a hole when they are heard again.
    forgotten: BTreeMap<NodeId, Forgotten>,
    /// Those in the order in which they went, with some that were heard again.
    forgotten_order: VecDeque<(NodeId, u64)>,
    publishers_max: usize,
    gap_after: Duration,
    /// When we joined, in milliseconds since 1970: whoever began after that has nothing that we are not owed.
    joined_ms: u64,
    /// What neighbours say there is, and is not here.
    rumours: Rumours,
    told: VecDeque<Gap>,
    /// No hole was opened before this, so until it is old enough nobody needs to look.
    holes_since: Option<Duration>,
}

#[derive(Debug)]
struct Track {
    since: u64,
    /// The lowest number that we are owed.
    first: u64,
    high: u64,
    bits: [u64; WORDS],
    holes: VecDeque<Hole>,
    heard_at: Duration,
    /// What was the highest a while ago: no longer on its way to anybody.
    ripe: u64,
    ripening: u64,
}

/// What is remembered of a publisher that is not followed any more.
#[derive(Debug, Clone, Copy)]
struct Forgotten {
    since: u64,
    high: u64,
    /// The how-manieth that was forgotten.
    place: u64,
}

#[derive(Debug)]
struct Hole {
    from: u64,
    to: u64,
    opened: Duration,
}

/// What one node has of a publisher, told to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Whose.
    pub publisher: NodeId,
    /// When that publisher began.
    pub since: u64,
    /// The highest number that is no longer on its way.
    pub high: u64,
}

impl Publishers {
    /// Nobody heard yet.
    #[must_use]
    pub fn new(publishers_max: usize, gap_after: Duration, joined_ms: u64) -> Self {
        Publishers {
            tracks: BTreeMap::new(),
            hearsay: Hearsay::default(),
            forgotten: BTreeMap::new(),
            forgotten_order: VecDeque::new(),
            publishers_max,
            gap_after,
            joined_ms,
            rumours: Rumours::default(),
            told: VecDeque::new(),
            holes_since: None,
        }
    }

    /// What this number would be.
    #[must_use]
    pub fn freshness(&self, serial: &Serial) -> Freshness {
        let Some(track) = self.tracks.get(&serial.publisher) else {
            let forgotten = self.forgotten.get(&serial.publisher);
            let is_old = forgotten.is_some_and(|last| (serial.since, serial.seq) <= (last.since, last.high));
            return if is_old { Freshness::Old } else { Freshness::New };
        };
        if serial.since != track.since {
            return if serial.since > track.since { Freshness::New } else { Freshness::Old };
        }
        if serial.seq > track.high {
            Freshness::New
        } else if track.high - serial.seq >= WINDOW {
            Freshness::Old
        } else if track.has(serial.seq) {
            Freshness::Known
        } else {
            Freshness::New
        }
    }

    /// A message is here, proven.
    pub fn on_message(&mut self, serial: &Serial, now: Duration) {
        let Serial { publisher, since, seq } = *serial;
        // While a validator looked at it, the publisher may have begun again.
        if self.freshness(serial) == Freshness::Old {
            return;
        }
        if self.tracks.get(&publisher).is_some_and(|track| track.since < since) {
            // What was owed of the last time will not come.
            if let Some(track) = self.tracks.remove(&publisher) {
                let holes = track.holes.into_iter();
                self.told.extend(holes.map(|hole| hole.gap(publisher, track.since)));
            }
        }
        if !self.tracks.contains_key(&publisher) {
            let known = self.forgotten.remove(&publisher).filter(|last| last.since == since);
            let not_owed = self.hearsay.take(&publisher);
            let first = match known {
                Some(last) => last.high + 1,
                None if since > self.joined_ms => 1,
                None => owed_from(not_owed, serial),
            };
            self.begin(publisher, since, first, known.is_some(), now);
        }
        let Some(track) = self.tracks.get_mut(&publisher) else { return };
        track.heard_at = now;
        if seq > track.high {
            if seq > track.high + 1 {
                // What was told by rumour is not waited for again.
                for passed in self.rumours.untold(&publisher, since, track.high + 1..=seq - 1) {
                    let (from, to) = passed.into_inner();
                    track.holes.push_back(Hole { from, to, opened: now });
                    self.holes_since.get_or_insert(now);
                }
            }
            track.advance(seq);
        }
        if track.high - seq < WINDOW {
            track.set(seq);
            track.fill(seq);
        }
        // What falls out of the window cannot be taken any more.
        let floor = (track.high + 1).saturating_sub(WINDOW);
        loop {
            let is_many = track.holes.len() > HOLES_MAX;
            let Some(hole) = track.holes.front_mut() else { break };
            if hole.to < floor || is_many {
                let hole = track.holes.pop_front().expect("just seen");
                self.told.push_back(hole.gap(publisher, track.since));
            } else if hole.from < floor {
                let lost = Hole { from: hole.from, to: floor - 1, opened: hole.opened };
                hole.from = floor;
                self.told.push_back(lost.gap(publisher, track.since));
                break;
            } else {
                break;
            }
        }
        self.rumours.on_message(&publisher, (since, seq));
    }

    /// Holes that were open for too long become gaps, and so does what neighbours have said for too long to be there.
    pub fn on_tick(&mut self, now: Duration) {
        if self.wake_at().is_none_or(|at| at > now) {
            return;
        }
        for (publisher, track) in &mut self.tracks {
            while track.holes.front().is_some_and(|hole| hole.opened + self.gap_after <= now) {
                let hole = track.holes.pop_front().expect("just seen");
                self.told.push_back(hole.gap(*publisher, track.since));
            }
        }
        let holes = self.tracks.values().filter_map(|track| track.holes.front());
        self.holes_since = holes.map(|hole| hole.opened).min();
        for (publisher, (since, high)) in self.rumours.due(now.saturating_sub(self.gap_after)) {
            let Some(had) = self.had(&publisher, since) else { continue };
            let from = had.max(high.saturating_sub(WINDOW)) + 1;
            for seqs in self.rumours.untold(&publisher, since, from..=high) {
                self.rumours.on_told(&publisher, since, &seqs);
                self.told.push_back(Gap { publisher, since, seqs });
            }
        }
    }

    /// When the next hole may become a gap.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let since = [self.holes_since, self.rumours.waiting_since()].into_iter().flatten().min();
        since.map(|since| since + self.gap_after)
    }

    /// A peer, our only neighbour or not, says what it has of a publisher.
    pub fn on_said(&mut self, from: NodeId, said: &Summary, is_only: bool, now: Duration) {
        if self.is_known_by_hearsay(&said.publisher, said.since) {
            self.hearsay.on_said(from, said, self.publishers_max);
        }
        let mut rumours = std::mem::take(&mut self.rumours);
        rumours.on_said(from, said, (is_only, self.publishers_max), now, |(since, high)| {
            self.had(&said.publisher, since).is_none_or(|had| had >= high)
        });
        self.rumours = rumours;
    }

    /// Whether others decide what we are owed of a publisher: it began before we came and was not heard since.
    fn is_known_by_hearsay(&self, publisher: &NodeId, since: u64) -> bool {
        let is_forgotten = || self.forgotten.get(publisher).is_some_and(|last| last.since >= since);
        since <= self.joined_ms && !self.tracks.contains_key(publisher) && !is_forgotten()
    }

    /// The highest number of a beginning of which nothing above it is here, all below being a matter of holes; `None` if nothing of that
    /// beginning is owed.
    fn had(&self, publisher: &NodeId, since: u64) -> Option<u64> {
        let last = self.tracks.get(publisher).map(|track| (track.since, track.high));
        let last = last.or_else(|| self.forgotten.get(publisher).map(|last| (last.since, last.high)));
        match last {
            Some((known, high)) if known == since => Some(high),
            Some((known, _)) if known > since => None,
            _ if since > self.joined_ms => Some(0),
            _ => self.hearsay.not_owed(publisher).and_then(|not_owed| highest_not_owed(not_owed, since)),
        }
    }

    /// The next gap to be told.
    pub fn poll(&mut self) -> Option<Gap> {
        self.told.pop_front()
    }

    /// What we have of those heard since `since`, at most `most` of them, the latest first. Only what we had when this
    /// was last asked for: newer messages are still on their way, and would be fetched twice.
    pub fn summaries(&mut self, since: Duration, most: usize) -> Vec<Summary> {
        let mut recent: Vec<(&NodeId, &mut Track)> =
            self.tracks.iter_mut().filter(|(_, track)| track.heard_at >= since).collect();
        recent.sort_by_key(|(_, track)| std::cmp::Reverse(track.heard_at));
        let mut summaries = Vec::new();
        for (publisher, track) in recent {
            (track.ripe, track.ripening) = (track.ripening, track.high);
            if track.ripe > 0 && summaries.len() < most {
                summaries.push(Summary { publisher: *publisher, since: track.since, high: track.ripe });
            }
        }
        summaries
    }

    /// For somebody that was not our neighbour so far: the last that we know of itself, and of those heard last what is no
    /// longer on its way, however long ago that was.
    #[must_use]
    pub fn latest(&self, to: &NodeId, most: usize) -> Vec<Summary> {
        let own = self.tracks.get(to).map(|track| (track.since, track.high));
        let own = own.or_else(|| self.forgotten.get(to).map(|last| (last.since, last.high)));
        let own = own.map(|(since, high)| Summary { publisher: *to, since, high });
        let mut others: Vec<(&NodeId, &Track)> =
            self.tracks.iter().filter(|(id, track)| *id != to && track.ripe > 0).collect();
        others.sort_by_key(|(_, track)| std::cmp::Reverse(track.heard_at));
        let others = others.into_iter();
        let others =
            others.map(|(id, track)| Summary { publisher: *id, since: track.since, high: track.ripe });
        own.into_iter().chain(others).take(most).collect()
    }

    /// The publisher goes on with its numbers from another beginning, and has missed nothing of its own.
    pub fn renumber(&mut self, publisher: &NodeId, since: u64) {
        if let Some(track) = self.tracks.get_mut(publisher) {
            track.since = since;
        }
    }

    /// Which numbers we lack of what another has, at most `most`, the latest first within what can still be taken. Of one
    /// that had begun before we came we are owed what comes after that, as peers [say](Self::on_said).
    #[must_use]
    pub fn missing(&self, theirs: &Summary, most: usize) -> Vec<u64> {
        let Summary { publisher, since, high } = *theirs;
        let floor = (high + 1).saturating_sub(WINDOW).max(1);
        if let Some(last) = self.forgotten.get(&publisher).filter(|last| last.since >= since) {
            let floor = if last.since == since { floor.max(last.high + 1) } else { high + 1 };
            return (floor..=high).rev().take(most).collect();
        }
        match self.tracks.get(&publisher) {
            Some(track) if track.since == since => {
                let floor = floor.max(track.first).max((track.high + 1).saturating_sub(WINDOW));
                let lacks = |seq: &u64| *seq > track.high || !track.has(*seq);
                (floor..=high).rev().filter(lacks).take(most).collect()
            }
            Some(track) if track.since > since => Vec::new(),
            None if since <= self.joined_ms => {
                let had = self.had(&publisher, since).unwrap_or(high);
                (floor.max(had.saturating_add(1))..=high).rev().take(most).collect()
            }
            _ => (floor..=high).rev().take(most).collect(),
        }
    }

    /// Publishers that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracks.len()
    }

    /// Whether nobody was heard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    /// Follows a publisher from the number `first` on. What is below it may have been here, or not.
    fn begin(&mut self, publisher: NodeId, since: u64, first: u64, was_here: bool, now: Duration) {
        self.forget_one();
        let track = Track {
            since,
            first,
            high: first - 1,
            bits: [if was_here { u64::MAX } else { 0 }; WORDS],
            holes: VecDeque::new(),
            heard_at: now,
            ripe: 0,
            ripening: 0,
        };
        self.tracks.insert(publisher, track);
    }

    /// Makes room for one more publisher by forgetting the one that was silent longest.
    fn forget_one(&mut self) {
        if self.tracks.len() < self.publishers_max {
            return;
        }
        let quietest = self.tracks.iter().min_by_key(|(_, track)| track.heard_at).map(|(id, _)| *id);
        let Some(id) = quietest else { return };
        let Some(track) = self.tracks.remove(&id) else { return };
        self.told.extend(track.holes.into_iter().map(|hole| hole.gap(id, track.since)));
        let place = self.forgotten_order.back().map_or(0, |(_, place)| place + 1);
        self.forgotten.insert(id, Forgotten { since: track.since, high: track.high, place });
        self.forgotten_order.push_back((id, place));
        let most = self.publishers_max * FORGOTTEN_PER_PUBLISHER;
        while self.forgotten.len() > most || self.forgotten_order.len() > most * 2 {
            let Some((first, place)) = self.forgotten_order.pop_front() else { break };
            // It may have been heard again, and forgotten again later.
            if self.forgotten.get(&first).is_some_and(|last| last.place == place) {
                self.forgotten.remove(&first);
            }
        }
    }
}

/// The highest number of a beginning that is not owed, if any of it is.
fn highest_not_owed((told, high): Mark, since: u64) -> Option<u64> {
    match told.cmp(&since) {
        Ordering::Less => Some(0),
        Ordering::Equal => Some(high),
        Ordering::Greater => None,
    }
}

/// The first number that we are owed of a publisher that began before we came, now that a message of it is here.
fn owed_from(not_owed: Option<Mark>, Serial { since, seq, .. }: &Serial) -> u64 {
    let had = not_owed.and_then(|not_owed| highest_not_owed(not_owed, *since));
    had.map_or(*seq, |had| had.saturating_add(1).clamp(seq.saturating_sub(WINDOW - 1).max(1), *seq))
}

impl Hole {
    fn gap(self, publisher: NodeId, since: u64) -> Gap {
        Gap { publisher, since, seqs: self.from..=self.to }
    }
}

impl Track {
    fn has(&self, seq: u64) -> bool {
        let bit = seq % WINDOW;
        self.bits[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    fn set(&mut self, seq: u64) {
        let bit = seq % WINDOW;
        self.bits[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// Moves the window up to `seq`.
    fn advance(&mut self, seq: u64) {
        if seq - self.high >= WINDOW {
            self.bits = [0; WORDS];
        } else {
            for passed in self.high + 1..seq {
                let bit = passed % WINDOW;
                self.bits[(bit / 64) as usize] &= !(1 << (bit % 64));
            }
        }
        self.high = seq;
    }

    /// Takes `seq` out of the hole that it is in.
    fn fill(&mut self, seq: u64) {
        let Some(place) = self.holes.iter().position(|hole| hole.from <= seq && seq <= hole.to) else {
            return;
        };
        let hole = &mut self.holes[place];
        let (from, to, opened) = (hole.from, hole.to, hole.opened);
        match (seq == from, seq == to) {
            (true, true) => {
                self.holes.remove(place);
            }
            (true, false) => hole.from += 1,
            (false, true) => hole.to -= 1,
            (false, false) => {
                hole.to = seq - 1;
                self.holes.insert(place + 1, Hole { from: seq + 1, to, opened });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const WHO: NodeId = NodeId::from_bytes([7; 32]);

    fn serial(since: u64, seq: u64) -> Serial {
        Serial { publisher: WHO, since, seq }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn gaps(publishers: &mut Publishers) -> Vec<RangeInclusive<u64>> {
        std::iter::from_fn(|| publishers.poll()).map(|gap| gap.seqs).collect()
    }

    #[test]
    fn a_hole_is_told_when_its_time_is_over_and_not_if_it_was_filled() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        for (seq, at) in [(1, 0), (2, 1), (6, 2), (4, 3)] {
            publishers.on_message(&serial(5, seq), ms(at));
        }
        publishers.on_tick(ms(101));
        assert_eq!(gaps(&mut publishers), []);
        assert_eq!(publishers.wake_at(), Some(ms(102)));
        publishers.on_tick(ms(102));
        assert_eq!(gaps(&mut publishers), [3..=3, 5..=5]);
        assert_eq!(publishers.freshness(&serial(5, 5)), Freshness::New, "late is better than never");
        publishers.on_message(&serial(5, 5), ms(103));
        assert_eq!(publishers.freshness(&serial(5, 5)), Freshness::Known);
        assert_eq!(publishers.wake_at(), None);
    }

    fn said(publishers: &mut Publishers, from: u8, high: u64, at: u64) {
        let said = Summary { publisher: WHO, since: 5, high };
        publishers.on_said(NodeId::from_bytes([from; 32]), &said, false, ms(at));
    }

    /// The last message did not come, and whoever had it has let go of it: no next one shows the hole.
    #[test]
    fn what_two_neighbours_say_is_there_is_told_if_it_does_not_come() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        publishers.on_message(&serial(5, 4), ms(0));
        said(&mut publishers, 1, 6, 10);
        assert_eq!(gaps(&mut publishers), []);
        publishers.on_tick(ms(100));
        assert_eq!(gaps(&mut publishers), [1..=3]);
        assert_eq!(publishers.wake_at(), None, "one of many may make it up");
        said(&mut publishers, 1, 7, 110);
        said(&mut publishers, 2, 5, 120);
        assert_eq!(publishers.wake_at(), Some(ms(220)));
        publishers.on_tick(ms(219));
        assert_eq!(gaps(&mut publishers), []);
        publishers.on_tick(ms(220));
        assert_eq!(gaps(&mut publishers), [5..=5]);
        said(&mut publishers, 3, 5, 230);
        assert_eq!(publishers.wake_at(), None, "once is enough");
        // The next one shows a hole that was told, and one that was not.
        publishers.on_message(&serial(5, 6), ms(300));
        publishers.on_message(&serial(5, 8), ms(300));
        publishers.on_tick(ms(400));
        assert_eq!(gaps(&mut publishers), [7..=7]);
    }

    #[test]
    fn what_comes_in_time_or_is_not_owed_is_not_told() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        publishers.on_message(&serial(5, 1), ms(0));
        said(&mut publishers, 1, 2, 10);
        said(&mut publishers, 2, 2, 10);
        publishers.on_message(&serial(5, 2), ms(50));
        assert_eq!(publishers.wake_at(), None);
        let mut later = Publishers::new(10, ms(100), 9);
        said(&mut later, 1, 2, 10);
        said(&mut later, 2, 2, 10);
        assert_eq!(later.wake_at(), None, "that was before it came");
        said(&mut later, 1, 3, 20);
        said(&mut later, 2, 3, 20);
        later.on_tick(ms(120));
        assert_eq!(gaps(&mut later), [3..=3]);
    }

    #[test]
    fn a_publisher_is_believed_about_itself_and_an_only_neighbour_about_all() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        said(&mut publishers, 7, 1, 0);
        publishers.on_tick(ms(100));
        assert_eq!(gaps(&mut publishers), [1..=1]);
        let mut alone = Publishers::new(10, ms(100), 0);
        let one = Summary { publisher: WHO, since: 5, high: 1 };
        alone.on_said(NodeId::from_bytes([1; 32]), &one, true, ms(0));
        alone.on_tick(ms(100));
        assert_eq!(gaps(&mut alone), [1..=1]);
    }

    fn id(number: u64) -> NodeId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_be_bytes());
        NodeId::from_bytes(id)
    }

    fn make_up(publishers: &mut Publishers, from: u8, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let said = Summary { publisher: id(number), since: 5, high: 1 };
            assert!(publishers.missing(&said, 10).len() <= 1);
            publishers.on_said(NodeId::from_bytes([from; 32]), &said, false, ms(0));
        }
    }

    /// There is room for so many publishers to be spoken of. One peer took all of it, for good.
    #[test]
    fn who_makes_publishers_up_keeps_nobody_from_hearing_of_true_ones() {
        let mut publishers = Publishers::new(16, ms(100), 0);
        make_up(&mut publishers, 9, 0..1000);
        assert_eq!(publishers.wake_at(), None, "and nothing waits for what it says");
        said(&mut publishers, 1, 2, 10);
        make_up(&mut publishers, 9, 1000..2000);
        said(&mut publishers, 2, 2, 20);
        make_up(&mut publishers, 9, 2000..3000);
        publishers.on_tick(ms(120));
        assert_eq!(gaps(&mut publishers), [1..=2]);
        make_up(&mut publishers, 9, 3000..4000);
        said(&mut publishers, 3, 2, 130);
        assert_eq!(publishers.wake_at(), None, "nor does it make them told again");
    }

    /// What a peer is asked for when it says what it has.
    fn fetched(publishers: &mut Publishers, from: u8, (since, high): Mark, at: u64) -> Vec<u64> {
        let said = Summary { publisher: WHO, since, high };
        let seqs = publishers.missing(&said, 10);
        publishers.on_said(NodeId::from_bytes([from; 32]), &said, false, ms(at));
        seqs
    }

    /// The first digest about a publisher that was there before us was believed, whoever sent it. A number that was made up
    /// silenced that publisher: nobody was asked for what it had said since, and nobody was told that it did not come.
    #[test]
    fn one_that_lies_silences_no_publisher_that_was_there_before_us() {
        for lie in [(5, 1 << 40), (8, 1)] {
            let mut late = Publishers::new(10, ms(100), 9);
            assert!(fetched(&mut late, 9, lie, 0).is_empty());
            assert!(fetched(&mut late, 1, (5, 5), 0).is_empty());
            assert!(fetched(&mut late, 2, (5, 5), 0).is_empty());
            fetched(&mut late, 9, lie, 10);
            assert_eq!(fetched(&mut late, 1, (5, 7), 20), [7, 6]);
            assert_eq!(fetched(&mut late, 2, (5, 7), 20), [7, 6]);
            fetched(&mut late, 9, lie, 20);
            late.on_tick(ms(120));
            assert_eq!(gaps(&mut late), [6..=7], "two say that it is there");
            late.on_message(&serial(5, 9), ms(200));
            late.on_tick(ms(300));
            assert_eq!(gaps(&mut late), [8..=8]);
        }
    }

    /// There was room for so many such publishers, first come, and one peer took it for good.
    #[test]
    fn who_makes_publishers_up_keeps_nobody_from_being_asked_for_those_before_us() {
        let mut late = Publishers::new(16, ms(100), 9);
        make_up(&mut late, 9, 0..1000);
        assert!(fetched(&mut late, 1, (5, 5), 0).is_empty());
        make_up(&mut late, 9, 1000..2000);
        assert_eq!(fetched(&mut late, 1, (5, 7), 10), [7, 6]);
        make_up(&mut late, 9, 2000..3000);
        assert_eq!(fetched(&mut late, 2, (5, 7), 20), [7, 6]);
        late.on_tick(ms(120));
        assert_eq!(gaps(&mut late), [6..=7]);
    }

    /// For as long as a node has one neighbour it believes that, and the first that it meets may be a liar.
    #[test]
    fn what_an_only_neighbour_made_up_hides_nothing() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        publishers.on_message(&serial(5, 1), ms(0));
        let liar = NodeId::from_bytes([9; 32]);
        publishers.on_said(liar, &Summary { publisher: WHO, since: 5, high: 1 << 40 }, true, ms(0));
        publishers.on_tick(ms(100));
        assert_eq!(gaps(&mut publishers), [(1 << 40) - WINDOW + 1..=1 << 40]);
        said(&mut publishers, 1, 3, 110);
        said(&mut publishers, 2, 3, 120);
        publishers.on_tick(ms(220));
        assert_eq!(gaps(&mut publishers), [2..=3]);
        publishers.on_message(&serial(5, 6), ms(300));
        publishers.on_tick(ms(400));
        assert_eq!(gaps(&mut publishers), [4..=5]);
    }

    /// A message that a validator was looking at while its publisher began again, and that was ignored or rejected then, counted
    /// as one of the new beginning: all numbers up to its own were told as missing, and what the publisher said next was taken
    /// for old.
    #[test]
    fn what_was_looked_at_while_its_publisher_began_again_is_of_the_old_beginning() {
        let far = 3 * WINDOW;
        let mut publishers = Publishers::new(1, ms(100), 0);
        publishers.on_message(&serial(5, 1), ms(0));
        publishers.on_message(&serial(8, 1), ms(10));
        publishers.on_message(&serial(5, far), ms(20));
        publishers.on_tick(ms(200));
        assert_eq!(gaps(&mut publishers), []);
        assert_eq!(publishers.freshness(&serial(8, 2)), Freshness::New);
        // The same of one that was forgotten meanwhile.
        publishers.on_message(&Serial { publisher: id(1), since: 5, seq: 1 }, ms(300));
        publishers.on_message(&serial(5, far), ms(310));
        assert_eq!(publishers.freshness(&serial(8, 1)), Freshness::Old, "it is not delivered twice");
    }

    /// Only what was told last was remembered. What was told before it was told again, as a part of a hole that was still open.
    #[test]
    fn what_was_told_by_rumour_is_not_told_as_a_hole_later() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        said(&mut publishers, 1, 2, 0);
        said(&mut publishers, 2, 2, 0);
        publishers.on_tick(ms(100));
        assert_eq!(gaps(&mut publishers), [1..=2]);
        said(&mut publishers, 1, 10, 150);
        said(&mut publishers, 2, 10, 150);
        publishers.on_message(&serial(5, 5), ms(200));
        publishers.on_tick(ms(250));
        assert_eq!(gaps(&mut publishers), [6..=10]);
        publishers.on_tick(ms(300));
        assert_eq!(gaps(&mut publishers), [3..=4]);
        // And what an only neighbour makes up does not push it out.
        said(&mut publishers, 1, 12, 310);
        said(&mut publishers, 2, 12, 310);
        publishers.on_tick(ms(410));
        assert_eq!(gaps(&mut publishers), [11..=12]);
        for (shift, at) in (30..40).zip((1..).map(|turn| 500 * turn)) {
            let lie = Summary { publisher: WHO, since: 5, high: 1 << shift };
            publishers.on_said(NodeId::from_bytes([9; 32]), &lie, true, ms(at));
            publishers.on_tick(ms(at + 100));
            assert_eq!(gaps(&mut publishers), [(1 << shift) - WINDOW + 1..=1 << shift]);
        }
        publishers.on_message(&serial(5, 14), ms(6000));
        publishers.on_tick(ms(6100));
        assert_eq!(gaps(&mut publishers), [13..=13]);
    }

    /// Neighbours come and go, and what those said who are gone is no reason not to listen to others.
    #[test]
    fn who_comes_later_is_listened_to() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        (1..=20).for_each(|from| said(&mut publishers, from, 1, 0));
        publishers.on_tick(ms(100));
        assert_eq!(gaps(&mut publishers), [1..=1]);
        said(&mut publishers, 21, 3, 110);
        said(&mut publishers, 22, 2, 120);
        publishers.on_tick(ms(220));
        assert_eq!(gaps(&mut publishers), [2..=2]);
        publishers.on_message(&serial(5, 5), ms(300));
        publishers.on_tick(ms(400));
        assert_eq!(gaps(&mut publishers), [3..=4], "a hole is told but for what was");
    }

    /// What two say is missing comes in part, and the rest is still waited for.
    #[test]
    fn what_comes_in_part_leaves_the_rest_to_be_told() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        said(&mut publishers, 1, 3, 0);
        publishers.on_message(&serial(5, 1), ms(10));
        said(&mut publishers, 2, 3, 20);
        publishers.on_message(&serial(5, 2), ms(30));
        publishers.on_tick(ms(120));
        assert_eq!(gaps(&mut publishers), [3..=3]);
    }

    #[test]
    fn who_was_there_first_is_owed_all_and_who_came_later_is_not() {
        let mut there = Publishers::new(10, ms(100), 4);
        there.on_message(&serial(5, 3), ms(0));
        there.on_tick(ms(100));
        assert_eq!(gaps(&mut there), [1..=2]);
        let mut late = Publishers::new(10, ms(100), 6);
        late.on_message(&serial(5, 3), ms(0));
        late.on_tick(ms(100));
        assert_eq!(gaps(&mut late), []);
        // A digest of one it never heard: from now on it is owed what comes.
        let mut deaf = Publishers::new(10, ms(100), 6);
        assert!(fetched(&mut deaf, 1, (5, 9), 0).is_empty());
        deaf.on_message(&serial(5, 12), ms(1));
        deaf.on_tick(ms(101));
        assert_eq!(gaps(&mut deaf), [10..=11]);
    }

    #[test]
    fn a_restart_numbers_anew_and_the_old_is_settled() {
        let mut publishers = Publishers::new(10, ms(100), 0);
        publishers.on_message(&serial(5, 3), ms(0));
        publishers.on_message(&serial(8, 1), ms(1));
        assert_eq!(gaps(&mut publishers), [1..=2]);
        assert_eq!(publishers.freshness(&serial(5, 4)), Freshness::Old);
        assert_eq!(publishers.freshness(&serial(8, 1)), Freshness::Known);
    }

    #[test]
    fn publishers_are_bounded() {
        let mut publishers = Publishers::new(16, ms(100), 0);
        for number in 0..1000_u64 {
            let serial = Serial { publisher: id(number), since: 5, seq: 1 };
            publishers.on_message(&serial, ms(number));
        }
        assert_eq!(publishers.len(), 16);
    }

    /// More publishers than are followed, in turns: what they said before they were forgotten is neither missing nor new.
    #[test]
    fn who_was_forgotten_goes_on_where_it_was() {
        let mut publishers = Publishers::new(2, ms(100), 0);
        let of = |who: u8, seq| Serial { publisher: NodeId::from_bytes([who; 32]), since: 5, seq };
        for seq in 1..=3 {
            for who in 1..=8 {
                assert_eq!(publishers.freshness(&of(who, seq)), Freshness::New);
                publishers.on_message(&of(who, seq), ms(seq * 10 + u64::from(who)));
            }
        }
        publishers.on_tick(ms(1000));
        assert_eq!(gaps(&mut publishers), [], "nobody missed anything");
        assert_eq!(publishers.freshness(&of(1, 2)), Freshness::Old, "it is not delivered twice");
        let theirs = Summary { publisher: of(1, 1).publisher, since: 5, high: 4 };
        assert_eq!(publishers.missing(&theirs, 10), [4]);
        assert!(publishers.missing(&Summary { since: 4, ..theirs }, 10).is_empty());
        publishers.on_message(&of(1, 6), ms(1001));
        assert_eq!(publishers.freshness(&of(1, 3)), Freshness::Known);
        publishers.on_tick(ms(1101));
        assert_eq!(gaps(&mut publishers), [4..=5], "what it missed it is told");
        for who in 0..200 {
            publishers.on_message(&of(who, 9), ms(2000));
        }
        assert!(publishers.forgotten.len() <= 8 && publishers.forgotten_order.len() <= 16);
    }

    proptest! {
        /// Every number up to the highest is here, or told as missing, or still waited for; and none is missed twice.
        #[test]
        fn nothing_is_lost_silently(
            steps in prop::collection::vec((1_u64..3000, 0_u64..50, prop::bool::weighted(0.3)), 1..200),
        ) {
            let mut publishers = Publishers::new(4, ms(200), 0);
            let (mut here, mut told, mut now, mut high) = (BTreeSet::new(), BTreeSet::new(), 0, 0);
            for (seq, pause, is_rumour) in steps {
                now += pause;
                publishers.on_tick(ms(now));
                if is_rumour {
                    (1..=2).for_each(|from| said(&mut publishers, from, seq, now));
                    continue;
                }
                match publishers.freshness(&serial(5, seq)) {
                    Freshness::New => {
                        prop_assert!(here.insert(seq), "{seq} twice");
                        publishers.on_message(&serial(5, seq), ms(now));
                        high = high.max(seq);
                    }
                    Freshness::Known => prop_assert!(here.contains(&seq)),
                    Freshness::Old => prop_assert!(seq + WINDOW <= high),
                }
                for gap in gaps(&mut publishers) {
                    for seq in gap {
                        prop_assert!(told.insert(seq), "{seq} told twice");
                    }
                }
            }
            publishers.on_tick(ms(now + 200));
            told.extend(gaps(&mut publishers).into_iter().flatten());
            for seq in 1..=high {
                prop_assert!(here.contains(&seq) || told.contains(&seq), "{seq} of {high}");
            }
        }
    }
}
