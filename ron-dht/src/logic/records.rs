//! What is kept for others: who gets in, who makes room, and when things are forgotten.
//!
//! Nothing here trusts a clock but the local one: a record lives from when it was received, for as long as it asks
//! and at most a day, so neither a skewed clock nor a huge number keeps it longer. Hearing the same provider record
//! again prolongs nothing; its publisher counts `seq` up instead. Whoever has forgotten a record, or never knew it, cannot
//! tell a replay by that: when it was signed tells, and whoever has a wall clock asks it before a record comes here. Until
//! nobody takes the record any more, its withdrawal stays.
//!
//! When there is no room, the newcomer is refused, with one exception: whoever holds most makes room for whoever
//! holds less. A flooder can then neither push out those who hold less than it, nor lock out those who come after it.
//! Holders are told apart by [`Source`], since names cost nothing.

mod row;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use ron_core::NodeId;

pub use self::row::{Kept, RECORD_OVERHEAD};
use self::row::{Place, Row};
use super::{
    Key,
    addrs::{AddressPolicy, Sender, Source},
    signed::{ProviderRecord, Record, RecordError, SKEW_MAX, TTL_MAX, Value, Verified},
};

/// How much is kept. The defaults are for a node that serves others; all are bounds, nothing is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Providers of one key. An answer carries at most this many, and nobody dials more.
    pub providers_per_key_max: usize,
    /// Records of one publisher: a hundred thousand keys must fit even in a network of twenty nodes, where each
    /// node holds all of them.
    pub publisher_records_max: usize,
    /// Bytes of one publisher, with 384 for each record beside its own.
    pub publisher_bytes_max: usize,
    /// Records in all.
    pub records_max: usize,
    /// Bytes in all, with 384 for each record beside its own. Lower it where memory is scarce.
    pub bytes_max: usize,
    /// The longest life, whatever a record asks for. At most a day; withdrawals stay for a day longer.
    pub ttl_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            providers_per_key_max: 256,
            publisher_records_max: 125_000,
            publisher_bytes_max: 72 << 20,
            records_max: 500_000,
            bytes_max: 288 << 20,
            ttl_max: TTL_MAX,
        }
    }
}

/// What became of a record that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It is new.
    Added,
    /// It took the place of an older one.
    Replaced,
    /// It was there, and lives longer now. Only a value: anybody may keep a value alive.
    Refreshed,
    /// It was there. Nothing has changed.
    Unchanged,
}

impl Inserted {
    /// Whether there is anything to write down.
    #[must_use]
    pub fn is_change(self) -> bool {
        self != Inserted::Unchanged
    }
}

/// The records a node keeps for others.
#[derive(Debug)]
pub struct Records {
    limits: Limits,
    policy: AddressPolicy,
    /// Rows by number; a free one is `None` and in `free`.
    rows: Vec<Option<Row>>,
    free: Vec<u32>,
    by_key: BTreeMap<Key, Vec<u32>>,
    by_expiry: BTreeSet<(Duration, u32)>,
    by_source: BTreeMap<Source, Holding>,
    /// The sources by how much they hold.
    by_holding: BTreeSet<(usize, Source)>,
    by_publisher: BTreeMap<NodeId, Use>,
    total: Use,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Use {
    records: usize,
    bytes: usize,
}

impl Use {
    fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.records -= 1;
        self.bytes -= bytes;
    }
}

/// What one source holds, soonest to expire first.
#[derive(Debug, Default)]
struct Holding {
    bytes: usize,
    rows: BTreeSet<(Duration, u32)>,
}

impl Records {
    /// Nothing yet.
    #[must_use]
    pub fn new(mut limits: Limits, policy: AddressPolicy) -> Self {
        limits.ttl_max = limits.ttl_max.min(TTL_MAX);
        // Rows are numbered by 32 bits.
        limits.records_max = limits.records_max.min(u32::MAX as usize);
        Records {
            limits,
            policy,
            rows: Vec::new(),
            free: Vec::new(),
            by_key: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            by_source: BTreeMap::new(),
            by_holding: BTreeSet::new(),
            by_publisher: BTreeMap::new(),
            total: Use::default(),
        }
    }

    /// Takes a record that `sender` brought, or says why not.
    ///
    /// # Errors
    /// [`RecordError::NoAddress`], [`RecordError::Stale`], or one of the quotas.
    pub fn insert(
        &mut self,
        record: Verified,
        sender: &Sender,
        now: Duration,
    ) -> Result<Inserted, RecordError> {
        self.judge(record, sender, None, now)
    }

    /// As [`insert`](Self::insert), provided that sequence `expected` is held, or that nothing is: a node that came
    /// later cannot know what it missed. Expecting zero is expecting nothing. The same value again is no conflict, so
    /// that a writer who missed the answer may ask again.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and [`RecordError::Conflict`].
    pub fn compare_and_swap(
        &mut self,
        record: Verified,
        expected: u64,
        sender: &Sender,
        now: Duration,
    ) -> Result<Inserted, RecordError> {
        self.judge(record, sender, Some(expected), now)
    }

    fn judge(
        &mut self,
        record: Verified,
        sender: &Sender,
        expected: Option<u64>,
        now: Duration,
    ) -> Result<Inserted, RecordError> {
        let record = record.into_record();
        let ttl_secs = match &record {
            // A withdrawal must outlive every record that it withdraws.
            Record::Provider(record) if record.is_withdrawn() => u32::MAX,
            Record::Provider(record) => {
                let usable = |addr| self.policy.allows(addr, sender.ip);
                if !record.addrs().is_empty() && !record.addrs().iter().any(usable) {
                    return Err(RecordError::NoAddress);
                }
                record.ttl_secs()
            }
            Record::Value(value) => value.ttl_secs(),
        };
        let life = Duration::from_secs(ttl_secs.into()).min(self.life_max(record.is_withdrawn()));
        self.place(Row::of(&record, self.policy.source(sender), now + life), expected, now)
    }

    /// Takes back what [`kept`](Self::kept) gave, at a later start. Its proof was checked then.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and those of decoding.
    pub fn restore(&mut self, kept: &Kept, now: Duration) -> Result<Inserted, RecordError> {
        let record = if kept.is_value {
            Record::Value(Value::decode(&kept.encoded)?)
        } else {
            Record::Provider(ProviderRecord::decode(&kept.encoded)?)
        };
        let expires = kept.expires.min(now + self.life_max(record.is_withdrawn()));
        self.place(Row::of(&record, kept.source, expires), None, now)
    }

    /// A withdrawal outlives every record that it withdraws, also where a clock is late.
    fn life_max(&self, is_withdrawn: bool) -> Duration {
        self.limits.ttl_max + if is_withdrawn { SKEW_MAX } else { Duration::ZERO }
    }

    fn place(&mut self, mut new: Row, expected: Option<u64>, now: Duration) -> Result<Inserted, RecordError> {
        let mut held = self.find(&new.key, new.place);
        if let Some(number) = held.filter(|number| self.row(*number).expires <= now) {
            self.take(number);
            held = None;
        }
        let Some(number) = held else {
            self.make_room_for(&new, now)?;
            self.add(new);
            return Ok(Inserted::Added);
        };
        let old = self.row(number);
        match new.precedence(old) {
            Ordering::Equal => {
                let is_value = !matches!(new.place, Place::Provider(_));
                if !is_value || new.expires <= old.expires {
                    return Ok(Inserted::Unchanged);
                }
                let mut row = self.take(number);
                row.expires = new.expires;
                self.add(row);
                return Ok(Inserted::Refreshed);
            }
            Ordering::Less => return Err(RecordError::Stale { held: old.seq }),
            Ordering::Greater => {}
        }
        if expected.is_some_and(|expected| expected != old.seq) {
            return Err(RecordError::Conflict { held: old.seq });
        }
        if new.seq == old.seq && !new.is_withdrawn {
            // The same word in another spelling is not a new word.
            new.expires = new.expires.min(old.expires);
        }
        // Its own room is free for it, and it goes back there if the rest is refused.
        let old = self.take(number);
        match self.make_room_for(&new, now) {
            Ok(()) => {
                self.add(new);
                Ok(Inserted::Replaced)
            }
            Err(error) => {
                self.add(old);
                Err(error)
            }
        }
    }

    /// Up to `limit` providers of a key that have not withdrawn, encoded. If there are more, chance decides which,
    /// and every source has one before any has two.
    #[must_use]
    pub fn providers(&self, key: &Key, now: Duration, limit: usize, rng: &mut fastrand::Rng) -> Vec<Bytes> {
        let is_asked =
            |row: &&Row| matches!(row.place, Place::Provider(_)) && !row.is_withdrawn && row.expires > now;
        let mut found: Vec<&Row> = self.under(key).filter(is_asked).collect();
        if found.len() > limit {
            rng.shuffle(&mut found);
            let mut seen: BTreeMap<Source, usize> = BTreeMap::new();
            let mut turns: Vec<(usize, &Row)> = found
                .into_iter()
                .map(|row| {
                    let turn = seen.entry(row.source).or_default();
                    *turn += 1;
                    (*turn, row)
                })
                .collect();
            turns.sort_by_key(|(turn, _)| *turn);
            found = turns.into_iter().take(limit).map(|(_, row)| row).collect();
        }
        found.into_iter().map(|row| row.encoded.clone()).collect()
    }

    /// The value under a key, encoded: the one its publisher may change, or the one whose hash the key is.
    #[must_use]
    pub fn value(&self, key: &Key, is_mutable: bool, now: Duration) -> Option<Bytes> {
        let is_asked = |row: &&Row| {
            row.expires > now
                && match row.place {
                    Place::Provider(_) => false,
                    Place::Immutable => !is_mutable,
                    Place::Mutable(_) => is_mutable,
                }
        };
        self.under(key).find(is_asked).map(|row| row.encoded.clone())
    }

    /// The number of the last word of `publisher` on a key, its withdrawal included.
    #[must_use]
    pub fn provider_seq(&self, key: &Key, publisher: &NodeId) -> Option<u64> {
        self.find(key, Place::Provider(*publisher)).map(|number| self.row(number).seq)
    }

    /// Forgets up to `limit` records whose time has come, and says how many those were. Costs nothing when there are
    /// none; a caller that must not stand still gives a limit and comes back.
    pub fn expire(&mut self, now: Duration, limit: usize) -> usize {
        for count in 0..limit {
            match self.by_expiry.first() {
                Some((expires, number)) if *expires <= now => drop(self.take(*number)),
                _ => return count,
            }
        }
        limit
    }

    /// When the next record is to be forgotten.
    #[cfg(test)]
    pub fn wake_at(&self) -> Option<Duration> {
        self.by_expiry.first().map(|(expires, _)| *expires)
    }

    /// All records, for writing them down.
    pub fn kept(&self) -> impl Iterator<Item = Kept> + '_ {
        self.rows.iter().flatten().map(Row::kept)
    }

    /// The record for the same place as this one, as it is kept now.
    pub(crate) fn kept_for(&self, record: &Record) -> Option<Kept> {
        let asked = Row::of(record, Source::from_number(0), Duration::ZERO);
        self.find(&asked.key, asked.place).map(|number| self.row(number).kept())
    }

    /// How many there are, withdrawals included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total.records
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they take, [`RECORD_OVERHEAD`] included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.total.bytes
    }

    /// What they take as they travel.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.total.bytes - self.total.records * RECORD_OVERHEAD
    }

    /// Finds room for a row that is not among the others: within the limits, or in the place of one that belongs to
    /// whoever holds most.
    fn make_room_for(&mut self, new: &Row, now: Duration) -> Result<(), RecordError> {
        // What is over gives its room first; in small steps, since somebody waits for the answer.
        self.expire(now, 64);
        if let Some(publisher) = new.place.publisher() {
            let used = self.by_publisher.get(&publisher).copied().unwrap_or_default();
            let is_full = used.records >= self.limits.publisher_records_max
                || used.bytes + new.bytes() > self.limits.publisher_bytes_max;
            if is_full {
                return Err(RecordError::PublisherFull);
            }
        }
        // Both are asked before anybody has to leave.
        let leaves_key = self.leaves_key(new)?;
        let leave_store = self.leave_store(new, leaves_key)?;
        for number in leaves_key.into_iter().chain(leave_store) {
            self.take(number);
        }
        Ok(())
    }

    /// Who leaves the key for a new provider, if anybody has to.
    fn leaves_key(&self, new: &Row) -> Result<Option<u32>, RecordError> {
        if !matches!(new.place, Place::Provider(_)) {
            return Ok(None);
        }
        let numbers = self.by_key.get(&new.key).map_or(&[][..], |numbers| numbers);
        let providers: Vec<u32> = numbers
            .iter()
            .copied()
            .filter(|number| matches!(self.row(*number).place, Place::Provider(_)))
            .collect();
        if providers.len() < self.limits.providers_per_key_max {
            return Ok(None);
        }
        let mut counts: BTreeMap<Source, usize> = BTreeMap::new();
        for number in &providers {
            *counts.entry(self.row(*number).source).or_default() += 1;
        }
        let own = counts.get(&new.source).copied().unwrap_or_default();
        let largest = counts.iter().max_by_key(|(_, count)| **count);
        // Only to come up to others, never to get ahead of them: otherwise two would push each other out in turn.
        let (source, _) = largest.filter(|(_, count)| **count > own + 1).ok_or(RecordError::KeyFull)?;
        let leaves = providers
            .into_iter()
            .filter(|number| self.row(*number).source == *source)
            .min_by_key(|number| (self.row(*number).expires, *number));
        Ok(leaves)
    }

    /// Who leaves the store for a new row, besides the one that leaves its key anyway.
    fn leave_store(&self, new: &Row, leaves_key: Option<u32>) -> Result<Vec<u32>, RecordError> {
        let mut left = self.total;
        if let Some(number) = leaves_key {
            left.remove(self.row(number).bytes());
        }
        let fits = |used: &Use| {
            used.records < self.limits.records_max && used.bytes + new.bytes() <= self.limits.bytes_max
        };
        if fits(&left) {
            return Ok(Vec::new());
        }
        let own = self.by_source.get(&new.source).map_or(0, |holding| holding.bytes);
        let (mut most, source) = *self.by_holding.last().ok_or(RecordError::StoreFull)?;
        let mut leave = Vec::new();
        for (_, number) in &self.by_source[&source].rows {
            if fits(&left) {
                return Ok(leave);
            }
            let bytes = self.row(*number).bytes();
            most -= bytes;
            if Some(*number) == leaves_key {
                continue;
            }
            // It must still hold at least as much as the newcomer then does.
            if source == new.source || most < own + new.bytes() {
                return Err(RecordError::StoreFull);
            }
            left.remove(bytes);
            leave.push(*number);
        }
        if fits(&left) { Ok(leave) } else { Err(RecordError::StoreFull) }
    }

    fn under(&self, key: &Key) -> impl Iterator<Item = &Row> {
        self.by_key.get(key).into_iter().flatten().map(|number| self.row(*number))
    }

    fn find(&self, key: &Key, place: Place) -> Option<u32> {
        self.by_key.get(key)?.iter().copied().find(|number| self.row(*number).place == place)
    }

    fn row(&self, number: u32) -> &Row {
        self.rows[number as usize].as_ref().expect("indexes name rows that are there")
    }

    fn add(&mut self, row: Row) {
        let bytes = row.bytes();
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            u32::try_from(self.rows.len() - 1).expect("records_max fits")
        });
        self.total.add(bytes);
        if let Some(publisher) = row.place.publisher() {
            self.by_publisher.entry(publisher).or_default().add(bytes);
        }
        let holding = self.by_source.entry(row.source).or_default();
        holding.rows.insert((row.expires, number));
        let before = holding.bytes;
        holding.bytes += bytes;
        self.by_holding.remove(&(before, row.source));
        self.by_holding.insert((before + bytes, row.source));
        self.by_expiry.insert((row.expires, number));
        self.by_key.entry(row.key).or_default().push(number);
        self.rows[number as usize] = Some(row);
    }

    fn take(&mut self, number: u32) -> Row {
        let row = self.rows[number as usize].take().expect("indexes name rows that are there");
        let bytes = row.bytes();
        self.free.push(number);
        self.total.remove(bytes);
        if let Some(publisher) = row.place.publisher() {
            let used = self.by_publisher.get_mut(&publisher).expect("counted when it was added");
            used.remove(bytes);
            if used.records == 0 {
                self.by_publisher.remove(&publisher);
            }
        }
        let holding = self.by_source.get_mut(&row.source).expect("counted when it was added");
        holding.rows.remove(&(row.expires, number));
        let before = holding.bytes;
        holding.bytes -= bytes;
        self.by_holding.remove(&(before, row.source));
        if holding.rows.is_empty() {
            self.by_source.remove(&row.source);
        } else {
            self.by_holding.insert((before - bytes, row.source));
        }
        self.by_expiry.remove(&(row.expires, number));
        let numbers = self.by_key.get_mut(&row.key).expect("listed when it was added");
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            self.by_key.remove(&row.key);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use ron_core::ContentId;

    use super::{super::signed::unproven_key, *};

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: Duration = Duration::from_secs(50);

    fn publisher(who: u64) -> NodeId {
        unproven_key(who).node_id()
    }

    fn key(number: u64) -> Key {
        ContentId::of(&number.to_be_bytes()).into()
    }

    /// A peer in the `subnet`-th /24.
    fn sender(subnet: u32) -> Sender {
        let ip = std::net::Ipv4Addr::from((8 << 24) + (subnet << 8) + 1);
        Sender { id: publisher(u64::from(subnet)), ip: ip.into() }
    }

    fn addrs() -> Vec<SocketAddr> {
        vec!["9.9.9.9:4000".parse().unwrap()]
    }

    fn provider(who: u64, what: u64, seq: u64, ttl: Duration) -> Verified {
        Verified::unproven(who, key(what), &addrs(), seq, ttl, false)
    }

    fn gone(who: u64, what: u64, seq: u64) -> Verified {
        Verified::unproven(who, key(what), &[], seq, TTL_MAX, true)
    }

    fn mutable(seq: u64, data: &[u8]) -> Verified {
        Verified::unproven_value(1, b"salt", seq, data, HOUR)
    }

    fn small() -> Limits {
        Limits { providers_per_key_max: 4, records_max: 12, publisher_records_max: 8, ..Limits::default() }
    }

    fn records() -> Records {
        Records::new(small(), AddressPolicy::Public)
    }

    /// Who provides, in no order.
    fn publishers(records: &Records, what: u64, now: Duration) -> Vec<NodeId> {
        let mut rng = fastrand::Rng::with_seed(1);
        let found = records.providers(&key(what), now, usize::MAX, &mut rng);
        found.iter().map(|encoded| ProviderRecord::decode(encoded).unwrap().publisher()).collect()
    }

    /// What the sums and indexes must agree on, whatever happened.
    fn check_sums(records: &Records) {
        let rows: Vec<&Row> = records.rows.iter().flatten().collect();
        let bytes: usize = rows.iter().map(|row| row.bytes()).sum();
        assert_eq!(records.total, Use { records: rows.len(), bytes });
        assert_eq!(records.by_expiry.len(), rows.len());
        assert_eq!(records.by_key.values().map(Vec::len).sum::<usize>(), rows.len());
        assert_eq!(records.by_source.values().map(|holding| holding.rows.len()).sum::<usize>(), rows.len());
        let by_source: BTreeSet<_> =
            records.by_source.iter().map(|(source, holding)| (holding.bytes, *source)).collect();
        assert_eq!(by_source, records.by_holding);
        assert_eq!(by_source.iter().map(|(bytes, _)| bytes).sum::<usize>(), bytes);
        let published = rows.iter().filter(|row| row.place.publisher().is_some()).count();
        assert_eq!(records.by_publisher.values().map(|used| used.records).sum::<usize>(), published);
        assert!(records.total.records <= records.limits.records_max);
        assert!(records.total.bytes <= records.limits.bytes_max);
    }

    #[test]
    fn the_newest_counts() {
        let mut records = records();
        assert_eq!(records.insert(provider(1, 1, 5, HOUR), &sender(1), NOW), Ok(Inserted::Added));
        assert_eq!(records.insert(provider(1, 1, 6, HOUR), &sender(1), NOW), Ok(Inserted::Replaced));
        let stale = Err(RecordError::Stale { held: 6 });
        assert_eq!(records.insert(provider(1, 1, 5, HOUR), &sender(1), NOW), stale);
        assert_eq!(records.len(), 1);
        check_sums(&records);
    }

    #[test]
    fn of_two_with_one_number_all_nodes_choose_the_same() {
        let one = Verified::unproven(1, key(1), &["9.9.9.9:1".parse().unwrap()], 5, HOUR, false);
        let two = Verified::unproven(1, key(1), &["9.9.9.9:2".parse().unwrap()], 5, HOUR, false);
        let held = |order: [&Verified; 2]| {
            let mut records = records();
            for record in order {
                let _ = records.insert(record.clone(), &sender(1), NOW);
            }
            records.kept().map(|kept| kept.encoded).collect::<Vec<_>>()
        };
        assert_eq!(held([&one, &two]), held([&two, &one]));
    }

    #[test]
    fn the_same_word_again_prolongs_nothing() {
        // Whoever has seen a record could otherwise keep it alive by repeating it, long after its publisher is gone.
        let mut records = records();
        records.insert(provider(1, 1, 5, HOUR), &sender(1), NOW).unwrap();
        let later = NOW + HOUR / 2;
        assert_eq!(records.insert(provider(1, 1, 5, HOUR), &sender(2), later), Ok(Inserted::Unchanged));
        assert_eq!(records.wake_at(), Some(NOW + HOUR));
        assert_eq!(records.insert(provider(1, 1, 6, HOUR), &sender(1), later), Ok(Inserted::Replaced));
        assert_eq!(records.wake_at(), Some(later + HOUR));
    }

    #[test]
    fn a_withdrawal_stays_and_turns_replays_away() {
        let mut records = records();
        records.insert(provider(1, 1, 5, TTL_MAX), &sender(1), NOW).unwrap();
        assert_eq!(records.insert(gone(1, 1, 5), &sender(1), NOW), Ok(Inserted::Replaced));
        assert_eq!(publishers(&records, 1, NOW), []);
        let almost = NOW + TTL_MAX - Duration::from_secs(1);
        records.expire(almost, usize::MAX);
        let stale = Err(RecordError::Stale { held: 5 });
        assert_eq!(records.insert(provider(1, 1, 5, HOUR), &sender(1), almost), stale);
        assert_eq!(records.insert(provider(1, 1, 6, HOUR), &sender(1), almost), Ok(Inserted::Replaced));
        // A withdrawal is kept although the record was never here: the replay may come first.
        assert_eq!(records.insert(gone(2, 2, 9), &sender(1), NOW), Ok(Inserted::Added));
        assert!(records.insert(provider(2, 2, 8, HOUR), &sender(1), NOW).is_err());
    }

    #[test]
    fn a_life_is_counted_here_and_has_an_end() {
        let mut records = records();
        let greedy = provider(1, 1, 1, Duration::MAX);
        records.insert(greedy, &sender(1), NOW).unwrap();
        records.insert(provider(2, 1, 1, HOUR), &sender(1), NOW).unwrap();
        assert_eq!(records.wake_at(), Some(NOW + HOUR));
        assert_eq!(publishers(&records, 1, NOW + HOUR).len(), 1);
        assert_eq!(records.expire(NOW + HOUR - Duration::from_millis(1), usize::MAX), 0);
        assert_eq!(records.expire(NOW + HOUR, usize::MAX), 1);
        assert_eq!(records.expire(NOW + TTL_MAX, usize::MAX), 1);
        assert!(records.is_empty() && records.bytes() == 0 && records.wake_at().is_none());
        check_sums(&records);

        // Over, but not yet swept: neither answered with nor in anybody's way.
        records.insert(provider(1, 1, 9, HOUR), &sender(1), NOW).unwrap();
        assert_eq!(publishers(&records, 1, NOW + HOUR), []);
        assert_eq!(records.insert(provider(1, 1, 3, HOUR), &sender(1), NOW + HOUR), Ok(Inserted::Added));
        assert_eq!(records.len(), 1);
        check_sums(&records);
    }

    #[test]
    fn expiring_goes_in_steps() {
        let mut records = records();
        for what in 0..6 {
            records.insert(provider(1, what, 1, HOUR), &sender(1), NOW).unwrap();
        }
        assert_eq!(records.expire(NOW + HOUR, 4), 4);
        assert_eq!(records.expire(NOW + HOUR, 4), 2);
        assert_eq!(records.expire(NOW + HOUR, 4), 0);
    }

    #[test]
    fn a_record_needs_an_address_that_its_sender_may_name() {
        let mut records = records();
        let inside = |seq| {
            let addrs = ["192.168.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
            Verified::unproven(1, key(1), &addrs, seq, HOUR, false)
        };
        assert_eq!(records.insert(inside(1), &sender(1), NOW), Err(RecordError::NoAddress));
        let neighbour = Sender { id: publisher(1), ip: [192, 168, 0, 9].into() };
        assert_eq!(records.insert(inside(1), &neighbour, NOW), Ok(Inserted::Added));
        let mut local = Records::new(small(), AddressPolicy::Local);
        assert_eq!(local.insert(inside(1), &sender(1), NOW), Ok(Inserted::Added));
        // Without any, the name is what is said; whoever asks finds the node by it.
        let nameless = Verified::unproven(2, key(1), &[], 1, HOUR, false);
        assert_eq!(records.insert(nameless, &sender(1), NOW), Ok(Inserted::Added));
    }

    #[test]
    fn a_publisher_has_a_share() {
        let mut records = records();
        for what in 0..8 {
            records.insert(provider(1, what, 1, HOUR), &sender(1), NOW).unwrap();
        }
        let refused = records.insert(provider(1, 9, 1, HOUR), &sender(1), NOW);
        assert_eq!(refused, Err(RecordError::PublisherFull));
        // A newer word in an old place needs no further room.
        assert_eq!(records.insert(provider(1, 7, 2, HOUR), &sender(1), NOW), Ok(Inserted::Replaced));
        assert_eq!(records.insert(gone(1, 7, 3), &sender(1), NOW), Ok(Inserted::Replaced));
        assert_eq!(records.insert(provider(2, 9, 1, HOUR), &sender(1), NOW), Ok(Inserted::Added));
        check_sums(&records);

        let limits = Limits { publisher_bytes_max: 20_000, ..Limits::default() };
        let mut records = Records::new(limits, AddressPolicy::Public);
        let value = |salt: &[u8]| Verified::unproven_value(1, salt, 1, &[0; 15_000], HOUR);
        assert_eq!(records.insert(value(b"a"), &sender(1), NOW), Ok(Inserted::Added));
        assert_eq!(records.insert(value(b"b"), &sender(1), NOW), Err(RecordError::PublisherFull));
    }

    #[test]
    fn a_flood_on_a_key_neither_pushes_out_nor_locks_out() {
        let mut records = records();
        // An honest provider was there first.
        records.insert(provider(1, 1, 1, HOUR), &sender(1), NOW).unwrap();
        for who in 100..200 {
            let _ = records.insert(provider(who, 1, 1, TTL_MAX), &sender(66), NOW);
        }
        assert_eq!(records.len(), 4);
        assert!(publishers(&records, 1, NOW).contains(&publisher(1)));
        // Others come after it and are taken, until everybody holds the same.
        for who in 2..=3 {
            assert_eq!(
                records.insert(provider(who, 1, 1, HOUR), &sender(who as u32), NOW),
                Ok(Inserted::Added)
            );
        }
        let held = publishers(&records, 1, NOW);
        assert!((1..=3).all(|who| held.contains(&publisher(who))), "{held:?}");
        assert_eq!(records.len(), 4);
        assert_eq!(records.insert(provider(4, 1, 1, HOUR), &sender(4), NOW), Err(RecordError::KeyFull));
        assert_eq!(records.insert(provider(300, 1, 1, HOUR), &sender(66), NOW), Err(RecordError::KeyFull));
        check_sums(&records);
    }

    #[test]
    fn a_flood_of_keys_neither_pushes_out_nor_locks_out() {
        let mut records = records();
        records.insert(provider(1, 1, 1, HOUR), &sender(1), NOW).unwrap();
        for who in 100..200 {
            let _ = records.insert(provider(who, who, 1, TTL_MAX), &sender(66), NOW);
        }
        assert_eq!(records.len(), 12);
        let full = Err(RecordError::StoreFull);
        assert_eq!(records.insert(provider(300, 300, 1, TTL_MAX), &sender(66), NOW), full);
        for who in 2..=6 {
            let inserted = records.insert(provider(who, who, 1, HOUR), &sender(2), NOW);
            assert_eq!(inserted, Ok(Inserted::Added), "{who}");
        }
        // Six of the flood and five of these: one more would be getting ahead.
        assert_eq!(records.insert(provider(7, 7, 1, HOUR), &sender(2), NOW), full);
        assert!((1..=6).all(|who| publishers(&records, who, NOW).len() == 1));
        assert_eq!(records.len(), 12);
        check_sums(&records);
    }

    #[test]
    fn a_hundred_thousand_records_stay_within_the_bounds() {
        let limits = Limits { records_max: 500, bytes_max: 200_000, ..Limits::default() };
        let mut records = Records::new(limits, AddressPolicy::Public);
        records.insert(provider(1, 1, 1, HOUR), &sender(1), NOW).unwrap();
        // No two alike: one half of them for one key, the other each for its own, from three networks.
        for who in 100..100_100 {
            let what = if who % 2 == 0 { 1 } else { who };
            let _ = records.insert(provider(who, what, 1, TTL_MAX), &sender(66 + who as u32 % 3), NOW);
        }
        check_sums(&records);
        let held = publishers(&records, 1, NOW);
        assert!(held.len() <= 256 && held.contains(&publisher(1)), "{}", held.len());
    }

    #[test]
    fn an_answer_is_shared_out_by_source() {
        let limits = Limits { providers_per_key_max: 64, ..Limits::default() };
        let mut records = Records::new(limits, AddressPolicy::Public);
        for who in 0..40 {
            records.insert(provider(who, 1, 1, HOUR), &sender(66), NOW).unwrap();
        }
        for who in 40..45 {
            records.insert(provider(who, 1, 1, HOUR), &sender(who as u32), NOW).unwrap();
        }
        let honest: BTreeSet<NodeId> = (40..45).map(publisher).collect();
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let found = records.providers(&key(1), NOW, 8, &mut fastrand::Rng::with_seed(seed));
            let found: BTreeSet<NodeId> =
                found.iter().map(|encoded| ProviderRecord::decode(encoded).unwrap().publisher()).collect();
            assert_eq!(found.len(), 8);
            assert!(found.is_superset(&honest));
            seen.extend(found);
        }
        assert_eq!(seen.len(), 45, "chance gives everybody a turn");
        assert_eq!(records.providers(&key(1), NOW, 100, &mut fastrand::Rng::with_seed(0)).len(), 45);
    }

    #[test]
    fn a_swap_needs_what_it_expects() {
        let mut records = records();
        let conflict = |held| Err(RecordError::Conflict { held });
        assert_eq!(records.compare_and_swap(mutable(3, b"a"), 2, &sender(1), NOW), Ok(Inserted::Added));
        assert_eq!(records.compare_and_swap(mutable(4, b"b"), 2, &sender(1), NOW), conflict(3));
        assert_eq!(records.compare_and_swap(mutable(4, b"b"), 0, &sender(1), NOW), conflict(3));
        assert_eq!(records.compare_and_swap(mutable(4, b"b"), 3, &sender(1), NOW), Ok(Inserted::Replaced));
        // The answer got lost and the writer asks again.
        assert_eq!(records.compare_and_swap(mutable(4, b"b"), 3, &sender(1), NOW), Ok(Inserted::Unchanged));
        let stale = Err(RecordError::Stale { held: 4 });
        assert_eq!(records.compare_and_swap(mutable(3, b"c"), 4, &sender(1), NOW), stale);
        let held = records.value(&Value::mutable_key(&unproven_key(1), b"salt"), true, NOW).unwrap();
        assert_eq!(Value::decode(&held).unwrap().data()[..], b"b"[..]);
    }

    /// Nobody signs how long a value under its own hash is to live, so whoever says more or less than its owner can
    /// neither shorten its life nor be in the way of those who prolong it.
    #[test]
    fn how_long_a_value_under_its_hash_asks_to_live_decides_nothing_else() {
        let value = |ttl| Value::immutable(b"v", ttl).unwrap().verify().unwrap();
        let key = Value::immutable(b"v", HOUR).unwrap().key();
        let second = Duration::from_secs(1);
        for others in [second, TTL_MAX, Duration::from_secs(u32::MAX.into())] {
            let mut records = Records::new(Limits::default(), AddressPolicy::Public);
            records.insert(value(others), &sender(1), Duration::ZERO).unwrap();
            // The owner's word prolongs it, also where another spelling is held.
            let later = HOUR;
            assert!(records.insert(value(TTL_MAX), &sender(2), later).is_ok());
            assert!(records.value(&key, false, later + TTL_MAX - second).is_some(), "{others:?}");
            // And a short one after it takes nothing away.
            assert_eq!(records.insert(value(second), &sender(1), later), Ok(Inserted::Unchanged));
            assert!(records.value(&key, false, later + TTL_MAX - second).is_some(), "{others:?}");
            assert!(records.value(&key, false, later + TTL_MAX).is_none());
        }
    }

    #[test]
    fn anybody_may_keep_a_value_alive() {
        let mut records = records();
        let value = Value::immutable(b"v", HOUR).unwrap();
        let (at, value) = (value.key(), value.verify().unwrap());
        assert_eq!(records.insert(value.clone(), &sender(1), NOW), Ok(Inserted::Added));
        assert_eq!(records.insert(value.clone(), &sender(1), NOW), Ok(Inserted::Unchanged));
        assert_eq!(records.insert(value, &sender(1), NOW + HOUR / 2), Ok(Inserted::Refreshed));
        assert!(records.value(&at, false, NOW + HOUR).is_some());
        assert!(records.value(&at, false, NOW + HOUR + HOUR / 2).is_none());
        check_sums(&records);
    }

    #[test]
    fn bytes_that_look_like_an_owner_do_not_take_its_place() {
        // The key of a mutable value is the hash of a public key and a salt, and anybody can store just those bytes.
        let mut records = records();
        let owner = [&unproven_key(1).as_bytes()[..], b"salt"].concat();
        let squatter = Value::immutable(&owner, TTL_MAX).unwrap();
        let at = squatter.key();
        assert_eq!(at, Value::mutable_key(&unproven_key(1), b"salt"));
        records.insert(squatter.verify().unwrap(), &sender(66), NOW).unwrap();
        assert_eq!(records.insert(mutable(1, b"mine"), &sender(1), NOW), Ok(Inserted::Added));
        let data = |is_mutable| Value::decode(&records.value(&at, is_mutable, NOW).unwrap()).unwrap();
        assert_eq!(data(true).data()[..], b"mine"[..]);
        assert_eq!(data(false).data()[..], owner);
    }

    #[test]
    fn what_was_kept_can_be_restored() {
        let mut records = records();
        records.insert(provider(1, 1, 5, HOUR), &sender(1), NOW).unwrap();
        records.insert(gone(2, 1, 5), &sender(2), NOW).unwrap();
        records.insert(mutable(2, b"m"), &sender(3), NOW).unwrap();
        let kept: Vec<_> = records.kept().collect();
        let mut again = self::records();
        for kept in &kept {
            assert_eq!(again.restore(kept, NOW), Ok(Inserted::Added));
        }
        assert_eq!(again.kept().collect::<Vec<_>>(), kept);
        assert_eq!(again.bytes(), records.bytes());
        // A clock that went back a year while the node was down keeps nothing for a year.
        let mut far = kept[0].clone();
        far.expires = NOW + 365 * TTL_MAX;
        let mut again = self::records();
        again.restore(&far, NOW).unwrap();
        assert_eq!(again.wake_at(), Some(NOW + TTL_MAX));
    }

    #[test]
    fn the_counted_bytes_cover_the_real_ones() {
        let inserts: Vec<_> = (0..2000).map(|what| provider(what % 50, what, 1, HOUR)).collect();
        let senders: Vec<_> = (0..50).map(sender).collect();
        let mut counted = 0;
        let mut records = None;
        let used = allocation_counter::measure(|| {
            let mut filled = Records::new(Limits::default(), AddressPolicy::Public);
            for (at, record) in inserts.iter().enumerate() {
                filled
                    .insert(record.clone(), &senders[at % 50], NOW + Duration::from_millis(at as u64))
                    .unwrap();
            }
            counted = filled.bytes();
            records = Some(filled);
        });
        // Clones share the encoded bytes with the input, so those are not in the measure.
        let encoded: usize = inserts.len() * 160;
        let real = usize::try_from(used.bytes_current).unwrap() + encoded;
        println!("{} bytes a record, {} counted", real / inserts.len(), counted / inserts.len());
        assert!(real <= counted, "{real} of {counted}");
        assert!(real * 2 > counted, "{real} of {counted}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_comes_the_sums_agree(
            steps in prop::collection::vec((0..6u64, 0..4u64, 0..5u64, 0..8u32, 0..40u64), 0..80),
        ) {
            let mut records = records();
            let mut now = NOW;
            for (who, what, seq, from, wait) in steps {
                now += Duration::from_secs(wait * 60);
                let ttl = Duration::from_secs(600 * (1 + seq));
                let record = match seq {
                    0 => gone(who, what, 2),
                    4 => mutable(1 + who, &what.to_be_bytes()),
                    seq => provider(who, what, seq, ttl),
                };
                let _ = records.insert(record, &sender(from), now);
                check_sums(&records);
                prop_assert!(publishers(&records, what, now).len() <= 4);
            }
        }
    }
}
