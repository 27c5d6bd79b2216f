//! Where an id lives: the index in memory.
//!
//! Ids are hashes, so their first bits spread them evenly over buckets, and a bucket is a short sorted list. That makes a
//! lookup one cache miss and a few comparisons, keeps the order of names for lists, and takes little more than the entries
//! themselves: 48 bytes, and an eighth of room to grow. There is nothing to rebalance and nothing to pause for.

use ron_core::{
    ContentId,
    journal::{Position, record_bytes},
};

use super::{
    inventory::{Names, Prefix, Sum},
    records::NOTE_BYTES_MAX,
};

/// Buckets: the first 14 bits of an id. At ten million objects that is six hundred in each; moving half of them aside for a
/// newcomer takes less than a microsecond.
const BUCKETS: usize = 1 << 14;

/// Longest object that an entry can describe: the bits above are flags.
pub const LEN_MAX: u64 = (1 << 56) - 1;

const LARGE: u64 = 1 << 63;
const PINNED: u64 = 1 << 62;
const BAD: u64 = 1 << 61;
const LOST: u64 = 1 << 60;

/// Bytes of an entry, in memory and in the index file.
pub const ENTRY_BYTES: usize = 48;

/// A position in the journal as one number, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Spot(u64);

impl Spot {
    /// The position as a number. Segments beyond the four thousand millionth have none.
    #[must_use]
    pub fn of(position: Position) -> Option<Spot> {
        let segment = u32::try_from(position.segment).ok()?;
        Some(Spot(u64::from(segment) << 32 | u64::from(position.offset)))
    }

    /// The position itself.
    #[must_use]
    pub fn position(self) -> Position {
        let offset = u32::try_from(self.0 & u64::from(u32::MAX)).expect("the low half");
        Position { segment: self.0 >> 32, offset }
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The spot with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Spot(number)
    }
}

/// Where the bytes of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// A record of the journal.
    Small(Spot),
    /// A file of its own.
    Large(u64),
    /// Nowhere any more: they were damaged, and what held them was compacted.
    Lost,
}

/// What is known of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub id: ContentId,
    /// Where it is.
    pub home: Home,
    /// Its length.
    pub len: u64,
    /// Whether it is pinned.
    pub is_pinned: bool,
    /// Whether it is damaged.
    pub is_bad: bool,
}

impl Entry {
    /// What it takes in the journal, flags included.
    fn journal_bytes(&self) -> u64 {
        let object = match self.home {
            Home::Small(_) => record_bytes(usize::try_from(self.len).unwrap_or(usize::MAX / 2)),
            Home::Large(_) => record_bytes(NOTE_BYTES_MAX),
            Home::Lost => 0,
        };
        let flags =
            usize::from(self.is_pinned) * record_bytes(32) + usize::from(self.is_bad) * record_bytes(40);
        (object + flags) as u64
    }

    /// The bytes of an entry in the index file.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let packed = Packed::of(self);
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..32].copy_from_slice(packed.id.as_bytes());
        bytes[32..40].copy_from_slice(&packed.at.to_be_bytes());
        bytes[40..].copy_from_slice(&packed.len.to_be_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) writes.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let mut id = [0; 32];
        id.copy_from_slice(&bytes[..32]);
        Packed { id: ContentId::from_bytes(id), at: number(32), len: number(40) }.open()
    }
}

#[derive(Debug, Clone, Copy)]
struct Packed {
    id: ContentId,
    at: u64,
    /// The length, and the flags above it.
    len: u64,
}

const _: () = assert!(size_of::<Packed>() == ENTRY_BYTES);

impl Packed {
    fn of(entry: &Entry) -> Packed {
        let (at, home) = match entry.home {
            Home::Small(spot) => (spot.0, 0),
            Home::Large(file) => (file, LARGE),
            Home::Lost => (0, LOST),
        };
        let flags = if entry.is_pinned { PINNED } else { 0 } | if entry.is_bad { BAD } else { 0 };
        Packed { id: entry.id, at, len: entry.len.min(LEN_MAX) | home | flags }
    }

    fn open(&self) -> Entry {
        let home = if self.len & LOST != 0 {
            Home::Lost
        } else if self.len & LARGE != 0 {
            Home::Large(self.at)
        } else {
            Home::Small(Spot(self.at))
        };
        Entry {
            id: self.id,
            home,
            len: self.len & LEN_MAX,
            is_pinned: self.len & PINNED != 0,
            is_bad: self.len & BAD != 0,
        }
    }
}

/// Sums over all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Objects.
    pub objects: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Objects that are pinned.
    pub pinned: u64,
    /// Objects that are damaged.
    pub bad: u64,
    /// Bytes that they need in the journal.
    pub journal_bytes: u64,
    /// Bytes of those that are in files of their own.
    pub large_bytes: u64,
}

impl Totals {
    fn change(&mut self, entry: &Entry, apply: impl Fn(&mut u64, u64)) {
        apply(&mut self.objects, 1);
        apply(&mut self.bytes, entry.len);
        apply(&mut self.pinned, u64::from(entry.is_pinned));
        apply(&mut self.bad, u64::from(entry.is_bad));
        apply(&mut self.journal_bytes, entry.journal_bytes());
        if let Home::Large(_) = entry.home {
            apply(&mut self.large_bytes, entry.len);
        }
    }
}

/// All objects of a store.
#[derive(Debug)]
pub struct Table {
    buckets: Vec<Vec<Packed>>,
    /// The names of what can be read, added up bucket by bucket: 40 bytes each, so that comparing two stores reads none of
    /// their entries where they agree.
    sums: Vec<Sum>,
    totals: Totals,
}

impl Default for Table {
    fn default() -> Self {
        let sums = vec![Sum::default(); BUCKETS];
        Table { buckets: vec![Vec::new(); BUCKETS], sums, totals: Totals::default() }
    }
}

fn bucket_of(id: &ContentId) -> usize {
    let [high, low, ..] = id.as_bytes();
    usize::from(u16::from_be_bytes([*high, *low]) >> 2)
}

impl Table {
    /// What is known of `id`.
    #[must_use]
    pub fn get(&self, id: &ContentId) -> Option<Entry> {
        let bucket = &self.buckets[bucket_of(id)];
        let at = bucket.binary_search_by_key(id, |packed| packed.id).ok()?;
        Some(bucket[at].open())
    }

    /// Puts an entry in the place of whatever had its name, which is returned.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let bucket = &mut self.buckets[bucket_of(&entry.id)];
        let packed = Packed::of(&entry);
        let old = match bucket.binary_search_by_key(&entry.id, |packed| packed.id) {
            Ok(at) => Some(std::mem::replace(&mut bucket[at], packed).open()),
            Err(at) => {
                if bucket.len() == bucket.capacity() {
                    bucket.reserve_exact(bucket.len() / 8 + 4);
                }
                bucket.insert(at, packed);
                None
            }
        };
        // Wrapping, because an index is read before its sum is checked, and what it says then may be anything.
        if let Some(old) = &old {
            self.totals.change(old, |sum, part| *sum = sum.wrapping_sub(part));
        }
        let entry = packed.open();
        self.totals.change(&entry, |sum, part| *sum = sum.wrapping_add(part));
        let was_here = old.is_some_and(|old| !old.is_bad);
        let sum = &mut self.sums[bucket_of(&entry.id)];
        match (was_here, !entry.is_bad) {
            (false, true) => sum.add(&entry.id),
            (true, false) => sum.remove(&entry.id),
            _ => {}
        }
        old
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: &ContentId) -> Option<Entry> {
        let bucket = &mut self.buckets[bucket_of(id)];
        let at = bucket.binary_search_by_key(id, |packed| packed.id).ok()?;
        let old = bucket.remove(at).open();
        self.totals.change(&old, |sum, part| *sum = sum.wrapping_sub(part));
        if !old.is_bad {
            self.sums[bucket_of(id)].remove(id);
        }
        Some(old)
    }

    /// Sums over all entries.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Up to `limit` entries behind `after`, in order, and whether there are more.
    #[must_use]
    pub fn page(&self, after: Option<&ContentId>, limit: usize) -> (Vec<Entry>, bool) {
        let first = after.map_or(0, bucket_of);
        let mut page = Vec::new();
        for bucket in &self.buckets[first..] {
            let from = after.map_or(0, |after| bucket.partition_point(|packed| packed.id <= *after));
            for packed in &bucket[from..] {
                if page.len() == limit {
                    return (page, true);
                }
                page.push(packed.open());
            }
        }
        (page, false)
    }

    /// Parts of the table that are looked at one after the other where it is not to be locked for long.
    pub const PARTS: usize = 64;

    /// The small objects in one of the [`PARTS`](Self::PARTS) whose records begin in a stretch of the journal. Looks at every
    /// entry of the part.
    #[must_use]
    pub fn in_stretch(&self, part: usize, from: Spot, to: Spot) -> Vec<Entry> {
        let buckets = self.buckets.chunks(BUCKETS / Self::PARTS).nth(part).unwrap_or_default();
        let all = buckets.iter().flatten().map(Packed::open);
        all.filter(|entry| matches!(entry.home, Home::Small(spot) if from <= spot && spot < to)).collect()
    }

    /// Takes note that the small objects whose records were before `first` are lost, because the journal begins there. Says
    /// how many they are.
    pub fn lose_before(&mut self, first: Spot) -> usize {
        let all = self.buckets.iter().flatten().map(Packed::open);
        let is_lost = |entry: &Entry| matches!(entry.home, Home::Small(spot) if spot < first);
        let lost: Vec<Entry> = all.filter(is_lost).collect();
        for entry in &lost {
            self.insert(Entry { home: Home::Lost, is_bad: true, ..*entry });
        }
        lost.len()
    }

    /// The numbers of all files that belong to an object.
    #[must_use]
    pub fn files(&self) -> std::collections::HashSet<u64> {
        let all = self.buckets.iter().flatten().map(Packed::open);
        all.filter_map(|entry| if let Home::Large(file) = entry.home { Some(file) } else { None }).collect()
    }

    /// Takes note of a small object that the journal has at `spot`: a new one, one that was moved, or one that was
    /// damaged and put again.
    pub fn replay_small(&mut self, id: ContentId, len: u64, spot: Spot) {
        let is_pinned = self.get(&id).is_some_and(|known| known.is_pinned);
        self.insert(Entry { id, home: Home::Small(spot), len, is_pinned, is_bad: false });
    }

    /// Takes note of what else the journal says.
    pub fn replay(&mut self, note: &super::records::Note) {
        use super::records::Note;
        match *note {
            Note::Large { id, file, len } => {
                let known = self.get(&id);
                let is_pinned = known.is_some_and(|known| known.is_pinned);
                // The same file again is the same damage; another one mends it.
                let is_bad = known.is_some_and(|known| known.is_bad && known.home == Home::Large(file));
                self.insert(Entry { id, home: Home::Large(file), len, is_pinned, is_bad });
            }
            Note::Deleted(id) => {
                self.remove(&id);
            }
            Note::Pinned(id) => self.change(&id, |entry| entry.is_pinned = true),
            Note::Unpinned(id) => self.change(&id, |entry| entry.is_pinned = false),
            Note::Bad { id, len } => {
                if self.get(&id).is_none() {
                    let home = Home::Lost;
                    self.insert(Entry { id, home, len, is_pinned: false, is_bad: true });
                }
                self.change(&id, |entry| entry.is_bad = true);
            }
            Note::Checkpoint(_) => {}
        }
    }

    /// Changes an entry, if it is here.
    pub fn change(&mut self, id: &ContentId, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.get(id) {
            change(&mut entry);
            self.insert(entry);
        }
    }
}

impl Table {
    /// The names that begin so and can be read, in order.
    fn readable(&self, prefix: &Prefix) -> impl Iterator<Item = ContentId> {
        let (first, last) = (prefix.first(), prefix.last());
        let buckets = &self.buckets[bucket_of(&first)..=bucket_of(&last)];
        let within = move |bucket: &'_ Vec<Packed>| {
            let from = bucket.partition_point(|packed| packed.id < first);
            from..bucket.partition_point(|packed| packed.id <= last)
        };
        let readable = buckets.iter().flat_map(move |bucket| &bucket[within(bucket)]);
        readable.filter(|packed| packed.len & BAD == 0).map(|packed| packed.id)
    }
}

/// What can be read.
impl Names for Table {
    fn sum(&self, prefix: &Prefix) -> Sum {
        let mut sum = Sum::default();
        if u32::from(prefix.bits()) <= BUCKETS.trailing_zeros() {
            let buckets = bucket_of(&prefix.first())..=bucket_of(&prefix.last());
            self.sums[buckets].iter().for_each(|part| sum.merge(part));
        } else {
            self.readable(prefix).for_each(|id| sum.add(&id));
        }
        sum
    }

    fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId> {
        self.readable(prefix).take(max).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Ids that fall into few buckets.
    fn id(number: u8) -> ContentId {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (number % 4, number);
        ContentId::from_bytes(bytes)
    }

    fn entry(number: u8, choice: u8) -> Entry {
        let home = match choice % 3 {
            0 => Home::Small(Spot(u64::from(choice) << 32 | 64)),
            1 => Home::Large(u64::from(choice)),
            _ => Home::Lost,
        };
        let (is_pinned, is_bad) = (choice & 8 > 0, choice & 16 > 0);
        Entry { id: id(number), home, len: u64::from(choice), is_pinned, is_bad }
    }

    proptest! {
        #[test]
        fn it_is_what_a_map_would_be(steps in prop::collection::vec((any::<bool>(), 0..40u8, any::<u8>()), 0..200)) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for (inserts, number, choice) in steps {
                let entry = entry(number, choice);
                prop_assert_eq!(Entry::decode(&entry.encode()), entry);
                if inserts {
                    prop_assert_eq!(table.insert(entry), model.insert(entry.id, entry));
                } else {
                    prop_assert_eq!(table.remove(&entry.id), model.remove(&entry.id));
                }
                prop_assert_eq!(table.get(&entry.id), model.get(&entry.id).copied());
            }
            let mut totals = Totals::default();
            model.values().for_each(|entry| totals.change(entry, |sum, part| *sum += part));
            prop_assert_eq!(table.totals(), totals);
            let names: std::collections::BTreeSet<_> =
                model.values().filter(|entry| !entry.is_bad).map(|entry| entry.id).collect();
            let parts = Prefix::ALL.parts().chain(Prefix::ALL.parts().next().unwrap().parts());
            for prefix in parts.chain([Prefix::ALL, Prefix::new(&[1, 0], 16).unwrap()]) {
                prop_assert_eq!(table.sum(&prefix), names.sum(&prefix));
                prop_assert_eq!(table.list(&prefix, 9), names.list(&prefix, 9));
            }
            let (mut after, mut listed) = (None, Vec::new());
            loop {
                let (page, more) = table.page(after.as_ref(), 7);
                listed.extend(page);
                after = listed.last().map(|last| last.id);
                if !more {
                    break;
                }
            }
            prop_assert_eq!(listed, model.into_values().collect::<Vec<_>>());
        }
    }
}
