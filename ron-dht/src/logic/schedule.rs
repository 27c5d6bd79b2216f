//! When our own keys are said again.
//!
//! Holders forget after a day, so everything is said again about every twelve hours. Not each key at its own time: a
//! key's turn follows from where it lies, so that in every cycle the schedule goes once through the key space and
//! neighbours come due together, which is what makes one lookup serve many keys. Where in the cycle a node begins is
//! its own random number, so that nodes do not all visit the same place at the same time.
//!
//! Times here are unix seconds, not time since the start: the schedule outlives the process. A clock that jumps back
//! cannot put a key off for longer than a cycle and a quarter.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use super::Key;

/// Half of a record's life: one turn may fail, and the record is still there when the next one comes.
pub const REPUBLISH: Duration = Duration::from_secs(12 * 3600);

/// A key is not said again sooner than this part of a cycle after it was said; its turn is then the next one.
const REST_DIVISOR: u64 = 4;

/// What is known of one of our keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// The sequence number it was last said with; zero if it never was.
    pub seq: u64,
    /// When that was, in unix seconds.
    pub published: Option<u64>,
}

/// Our own keys and their turns.
#[derive(Debug, Clone)]
pub struct Schedule {
    cycle_secs: u64,
    phase_secs: u64,
    keys: BTreeMap<Key, Entry>,
    turns: BTreeSet<(u64, Key)>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    planned: Planned,
    due: u64,
}

impl Schedule {
    /// Nothing to say yet. Every key has one turn in `cycle`; `rng` chooses where in it this node begins.
    #[must_use]
    pub fn new(cycle: Duration, rng: &mut fastrand::Rng) -> Self {
        Self::with_phase(cycle, rng.u64(..))
    }

    /// As [`new`](Self::new), with the [`phase`](Self::phase) of an earlier start.
    #[must_use]
    pub fn with_phase(cycle: Duration, phase_secs: u64) -> Self {
        let cycle_secs = cycle.as_secs().clamp(1, 1 << 32);
        Schedule {
            cycle_secs,
            phase_secs: phase_secs % cycle_secs,
            keys: BTreeMap::new(),
            turns: BTreeSet::new(),
        }
    }

    /// Where in the cycle this node begins, to be kept across restarts.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.phase_secs
    }

    /// Adds a key, due at once. One that is there already keeps its turn.
    pub fn add(&mut self, key: Key) -> bool {
        if self.keys.contains_key(&key) {
            return false;
        }
        self.put(key, Planned { seq: 0, published: None });
        true
    }

    /// Puts back what [`iter`](Self::iter) gave at an earlier start; of two entries for a key the one with the higher
    /// number stays.
    pub fn restore(&mut self, key: Key, planned: Planned) {
        if self.keys.get(&key).is_none_or(|entry| entry.planned.seq <= planned.seq) {
            self.put(key, planned);
        }
    }

    /// Forgets a key, and says what was known of it: its withdrawal needs the next number.
    pub fn remove(&mut self, key: &Key) -> Option<Planned> {
        let entry = self.keys.remove(key)?;
        self.turns.remove(&(entry.due, *key));
        Some(entry.planned)
    }

    /// The number to say a key with next. Also after the state was lost it is higher than any before, since a second
    /// has passed; with the state it is, even if the clock went back.
    #[must_use]
    pub fn next_seq(&self, key: &Key, unix_secs: u64) -> u64 {
        let last = self.keys.get(key).map_or(0, |entry| entry.planned.seq);
        unix_secs.max(last.saturating_add(1))
    }

    /// Notes that a key was said with `seq`, from which its next turn follows. A key that was removed meanwhile stays
    /// so, and `false` says that.
    pub fn on_published(&mut self, key: &Key, seq: u64, unix_secs: u64) -> bool {
        let is_ours = self.keys.contains_key(key);
        if is_ours {
            self.put(*key, Planned { seq, published: Some(unix_secs) });
        }
        is_ours
    }

    /// Up to `limit` keys whose turn has come and that are not `taken`, the longest overdue first, neighbours together,
    /// from behind `after` on and then from the beginning: keys that nobody keeps, however many, come round again and
    /// hold up no others. They stay due until they are published. `after` is moved behind the last of them.
    #[must_use]
    pub fn due(
        &mut self,
        unix_secs: u64,
        limit: usize,
        after: &mut Option<(u64, Key)>,
        taken: impl Fn(&Key) -> bool,
    ) -> Vec<Key> {
        self.mend(unix_secs);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let until = after.map_or(Bound::Excluded((0, Key::from_bytes([0; 32]))), Bound::Included);
        let round = self.turns.range((from, Bound::Unbounded)).take_while(|(due, _)| *due <= unix_secs);
        let again = self.turns.range((Bound::Unbounded, until)).take_while(|(due, _)| *due <= unix_secs);
        let due: Vec<(u64, Key)> =
            round.chain(again).filter(|(_, key)| !taken(key)).take(limit).copied().collect();
        *after = due.last().copied();
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// Makes every key due at once, and says what is known of them: what was said of them holds no longer.
    pub fn make_all_due(&mut self) -> Vec<(Key, Planned)> {
        let unsaid = |(key, planned): (Key, Planned)| (key, Planned { published: None, ..planned });
        let all: Vec<(Key, Planned)> = self.iter().map(unsaid).collect();
        all.iter().for_each(|(key, planned)| self.put(*key, *planned));
        all
    }

    /// Whether the key is one of ours.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Whether the key should be said now: its turn has come, or it is none of ours yet.
    #[must_use]
    pub fn is_due(&self, key: &Key, unix_secs: u64) -> bool {
        self.keys.get(key).is_none_or(|entry| entry.due <= unix_secs)
    }

    /// When the next turn is.
    #[cfg(test)]
    pub fn wake_at(&self) -> Option<u64> {
        self.turns.first().map(|(due, _)| *due)
    }

    /// For how many seconds the longest overdue key has been waiting since its turn; a key that was never said has no
    /// turn to be late for.
    #[must_use]
    pub fn lag_secs(&self, unix_secs: u64) -> u64 {
        let first = self.turns.range((1, Key::from_bytes([0; 32]))..).next();
        first.map_or(0, |(due, _)| unix_secs.saturating_sub(*due))
    }

    /// All keys, for writing them down.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Planned)> + '_ {
        self.keys.iter().map(|(key, entry)| (*key, entry.planned))
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn put(&mut self, key: Key, planned: Planned) {
        let due = planned.published.map_or(0, |published| self.turn_after(&key, published));
        if let Some(before) = self.keys.insert(key, Entry { planned, due }) {
            self.turns.remove(&(before.due, key));
        }
        self.turns.insert((due, key));
    }

    /// The key's first turn that is at least a rest after `published`: within a cycle and a quarter.
    fn turn_after(&self, key: &Key, published: u64) -> u64 {
        let earliest = published.saturating_add(self.cycle_secs / REST_DIVISOR);
        let [a, b, c, d, ..] = *key.as_bytes();
        let place = u64::from(u32::from_be_bytes([a, b, c, d]));
        // A cycle has at most 2^32 seconds, so the product has at most 64 bits.
        let turn = ((place * self.cycle_secs) >> 32) + self.phase_secs;
        let wait = (turn + self.cycle_secs * 2 - earliest % self.cycle_secs) % self.cycle_secs;
        earliest.saturating_add(wait)
    }

    /// If the clock has gone back, turns lie further ahead than any can; those keys are taken to be published now.
    fn mend(&mut self, unix_secs: u64) {
        let furthest = unix_secs.saturating_add(self.cycle_secs + self.cycle_secs / REST_DIVISOR);
        while let Some((due, key)) = self.turns.last().copied().filter(|(due, _)| *due > furthest) {
            let entry = self.keys[&key];
            self.put(key, Planned { published: Some(unix_secs), ..entry.planned });
            debug_assert!(self.turns.last().is_none_or(|last| *last < (due, key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn due(schedule: &mut Schedule, unix_secs: u64, limit: usize) -> Vec<Key> {
        schedule.due(unix_secs, limit, &mut None, |_| false)
    }

    const START: u64 = 1_800_000_000;
    const CYCLE: u64 = 12 * 3600;

    fn key(first: u8, last: u8) -> Key {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (first, last);
        Key::from_bytes(bytes)
    }

    fn schedule() -> Schedule {
        Schedule::with_phase(REPUBLISH, 1000)
    }

    #[test]
    fn a_new_key_is_due_at_once_and_then_once_a_cycle() {
        let mut schedule = schedule();
        assert!(schedule.is_due(&key(1, 1), START) && !schedule.contains(&key(1, 1)));
        assert!(schedule.add(key(1, 1)) && !schedule.add(key(1, 1)));
        assert!(schedule.is_due(&key(1, 1), START) && schedule.contains(&key(1, 1)));
        let (mut now, mut times) = (START, Vec::new());
        while now < START + 5 * CYCLE {
            if due(&mut schedule, now, 9) == [key(1, 1)] {
                times.push(now);
                let seq = schedule.next_seq(&key(1, 1), now);
                schedule.on_published(&key(1, 1), seq, now);
            }
            now += 60;
        }
        assert_eq!(times[0], START);
        assert!((5..=6).contains(&times.len()), "{times:?}");
        // The first wait fits the key into the cycle, the others are a cycle.
        assert!(times[1] - times[0] >= CYCLE / 4 && times[1] - times[0] <= CYCLE * 5 / 4);
        assert!(times.windows(2).skip(1).all(|pair| (pair[1] - pair[0]).abs_diff(CYCLE) <= 60), "{times:?}");
    }

    #[test]
    fn neighbours_come_due_together_and_the_cycle_goes_round_the_space() {
        let mut schedule = schedule();
        for first in 0..=255 {
            for last in 0..4 {
                schedule.add(key(first, last));
            }
        }
        for key in due(&mut schedule, START, usize::MAX) {
            schedule.on_published(&key, 1, START);
        }
        // Over the next cycles every key has one turn each, its neighbours with it.
        let mut order = Vec::new();
        for minute in 1..=3 * CYCLE / 60 {
            let now = START + minute * 60;
            let due = due(&mut schedule, now, usize::MAX);
            assert!(due.len() <= 8, "{} at once", due.len());
            for key in &due {
                schedule.on_published(key, minute + 1, now);
            }
            order.extend(due);
        }
        assert!(order.len() >= 2 * 1024);
        let first_bytes: Vec<u8> = order.chunks(4).map(|four| four[0].as_bytes()[0]).collect();
        assert!(
            order.chunks(4).all(|four| four.iter().all(|key| key.as_bytes()[0] == four[0].as_bytes()[0]))
        );
        assert!(first_bytes.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{first_bytes:?}");
    }

    #[test]
    fn numbers_only_go_up() {
        let mut schedule = schedule();
        schedule.add(key(1, 1));
        assert_eq!(schedule.next_seq(&key(1, 1), START), START);
        schedule.on_published(&key(1, 1), START, START);
        // Twice in one second, and after the clock went back.
        assert_eq!(schedule.next_seq(&key(1, 1), START), START + 1);
        assert_eq!(schedule.next_seq(&key(1, 1), START - 500), START + 1);
        assert_eq!(schedule.next_seq(&key(9, 9), START), START);
        let planned = schedule.remove(&key(1, 1)).unwrap();
        assert_eq!(planned, Planned { seq: START, published: Some(START) });
        assert!(schedule.is_empty() && due(&mut schedule, u64::MAX / 2, 9).is_empty());
        // Publishing that was under way when the key was removed does not bring it back.
        assert!(!schedule.on_published(&key(1, 1), START + 1, START));
        assert!(schedule.is_empty());
    }

    #[test]
    fn a_clock_that_jumps_back_puts_nothing_off() {
        let mut schedule = schedule();
        for first in 0..50 {
            schedule.add(key(first, 0));
            schedule.on_published(&key(first, 0), START, START);
        }
        let year_before = START - 365 * 86_400;
        assert!(due(&mut schedule, year_before, 99).is_empty());
        assert!(schedule.wake_at().unwrap() <= year_before + CYCLE * 5 / 4);
        assert_eq!(due(&mut schedule, year_before + CYCLE * 5 / 4, 99).len(), 50);
        assert_eq!(schedule.next_seq(&key(0, 0), year_before), START + 1);
    }

    #[test]
    fn what_was_kept_can_be_restored() {
        let mut schedule = schedule();
        schedule.add(key(1, 0));
        schedule.add(key(2, 0));
        schedule.on_published(&key(2, 0), 77, START);
        let mut again = Schedule::with_phase(REPUBLISH, schedule.phase());
        for (key, planned) in schedule.iter() {
            again.restore(key, planned);
        }
        // An older line, read later, changes nothing.
        again.restore(key(2, 0), Planned { seq: 5, published: Some(5) });
        assert_eq!(again.iter().collect::<Vec<_>>(), schedule.iter().collect::<Vec<_>>());
        assert_eq!((again.len(), due(&mut again, START, 9), again.wake_at()), (2, vec![key(1, 0)], Some(0)));
    }

    #[test]
    fn all_are_due_when_what_was_said_holds_no_longer() {
        let mut schedule = schedule();
        for first in 0..50 {
            schedule.add(key(first, 0));
            schedule.on_published(&key(first, 0), START, START);
        }
        assert!(!schedule.is_due(&key(7, 0), START + 1));
        assert_eq!(schedule.make_all_due().len(), 50);
        assert!((0..50).all(|first| schedule.is_due(&key(first, 0), START + 1)));
        // The number goes on.
        assert_eq!(schedule.next_seq(&key(7, 0), START), START + 1);
        assert_eq!(schedule.lag_secs(START + 1), 0);
    }

    #[test]
    fn lag_is_told_from_the_turn_that_was_missed() {
        let mut schedule = schedule();
        schedule.add(key(1, 0));
        assert_eq!(schedule.lag_secs(START), 0);
        schedule.on_published(&key(1, 0), 1, START);
        let due = schedule.wake_at().unwrap();
        assert!(!schedule.is_due(&key(1, 0), due - 1) && schedule.is_due(&key(1, 0), due));
        assert_eq!((schedule.lag_secs(due - 5), schedule.lag_secs(due + 90)), (0, 90));
    }

    #[test]
    fn what_nobody_keeps_and_what_is_taken_hold_up_no_others() {
        let mut schedule = schedule();
        assert!((0..10).all(|number| schedule.add(key(number, 0))));
        let mut after = None;
        let mut seen = Vec::new();
        for _ in 0..4 {
            // Nobody keeps any of them, and two are being said by somebody else.
            let page = schedule.due(START, 3, &mut after, |taken| [key(0, 0), key(1, 0)].contains(taken));
            assert_eq!(page.len(), 3);
            seen.extend(page);
        }
        // Eight of them in turn, and then round again.
        let first: BTreeSet<Key> = seen[..8].iter().copied().collect();
        assert_eq!(first, (2..10).map(|number| key(number, 0)).collect());
        assert_eq!(seen[8..], seen[..4]);
        assert!(schedule.due(START, 3, &mut after, |_| true).is_empty() && after.is_none());
    }

    proptest! {
        #[test]
        fn a_turn_is_never_too_soon_nor_too_late(bytes: [u8; 32], phase: u64, published in 0..u64::MAX / 4) {
            let schedule = Schedule::with_phase(REPUBLISH, phase);
            let turn = schedule.turn_after(&Key::from_bytes(bytes), published);
            prop_assert!(turn >= published + CYCLE / 4);
            prop_assert!(turn < published + CYCLE + CYCLE / 4);
        }
    }
}
