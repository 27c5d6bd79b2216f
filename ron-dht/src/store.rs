//! What survives a restart: the records kept for others and the schedule of our own keys, in a journal.
//!
//! The memory is the truth while the node runs; the journal is read once, at the start. Every change is first made
//! in memory and then written by whoever waits for it: [`Store::flush`] hands out what is new, and the owner goes on
//! while the disk works. So that the order in which several of those reach the disk does not matter, records are
//! judged again when they are read, by the same rules, and entries of the schedule are numbered.
//!
//! Lost records are a nuisance and not a disaster, since nineteen other nodes have them. So damage is reported, and
//! the node starts with what can be read.

mod entries;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, NodeId, Supervisor,
    disk::Disk,
    journal::{Journal, JournalError, OnDamage, Reader, Recovered, Salts, record_bytes},
};

use self::entries::{Loaded, PHASE, UNPLANNED, kept_entry, planned_entries, said_from_entry};
use crate::logic::{
    Key,
    addrs::{AddressPolicy, Sender},
    records::{Inserted, Limits, Records},
    schedule::{Planned, Schedule},
    signed::{Record, RecordError, Verified},
};

/// Bytes that are written between two syncs when there is much to write. Whoever waits behind them waits for
/// milliseconds, and the journal has room for one of these of the flush and one of a rewrite many times over.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes that may wait for the disk. Peers have at most as much at work by default; beyond that they are told to come
/// back.
pub(crate) const UNWRITTEN_BYTES_MAX: usize = 64 << 20;

/// Segments beyond twice what is needed before everything is written anew. Fewer would rewrite a small store all the
/// time.
const SLACK_SEGMENTS: u64 = 2;

/// Longest entry: a value, or keys of the schedule.
const ENTRY_BYTES_MAX: u32 = 64 << 10;

/// Reading a full store takes seconds; on a slow disk it may take longer, and there is nothing to do meanwhile.
const OPENING: Duration = Duration::from_secs(3600);

/// The two clocks at one moment: time since the node started, by which records live, and unix seconds, which a
/// restart does not reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Since the node started.
    pub(crate) now: Duration,
    /// Of the wall clock.
    pub(crate) unix_secs: u64,
}

/// What a store needs to know.
#[derive(Debug, Clone)]
pub(crate) struct StoreSettings {
    /// How much is kept.
    pub(crate) limits: Limits,
    /// How addresses are judged, and who is counted as one.
    pub(crate) policy: AddressPolicy,
    /// How often our own keys are said again.
    pub(crate) republish: Duration,
    /// Size of a file of the journal. It takes at least three of them; lower it where space is scarce.
    pub(crate) segment_bytes: u32,
    /// For simulations, whose files must come out the same every time.
    pub(crate) salts: Salts,
}

#[cfg(test)]
impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            limits: Limits::default(),
            policy: AddressPolicy::default(),
            republish: crate::logic::schedule::REPUBLISH,
            segment_bytes: 8 << 20,
            salts: Salts::default(),
        }
    }
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Opened {
    /// Records that are kept.
    pub(crate) records: usize,
    /// Keys in the schedule.
    pub(crate) planned: usize,
    /// Entries whose time was over.
    pub(crate) expired: usize,
    /// Entries that are not kept for another reason: superseded, beyond a limit, or not readable by this version.
    pub(crate) dropped: usize,
    /// What the journal itself reports, lost stretches included.
    pub(crate) recovered: Recovered,
}

/// Records and schedule, in memory and, if it was opened on a disk, there too.
#[derive(Debug)]
pub(crate) struct Store {
    records: Records,
    schedule: Schedule,
    durable: Option<Durable>,
}

#[derive(Debug)]
struct Durable {
    journal: Journal,
    reader: Reader,
    /// Changes that nobody has taken to the disk yet, and their bytes.
    unwritten: Vec<(u8, Bytes)>,
    unwritten_bytes: usize,
    /// Numbers the entries of the schedule.
    stamp: u64,
    /// Where our own records say that we are, if that is known: see [`Store::on_addrs`].
    said_from: Option<Vec<SocketAddr>>,
    rewriting: Weak<()>,
    slack_bytes: u64,
    /// How often a flush failed, and up to which of those everything has been written since.
    lost: u64,
    mended: u64,
}

impl Store {
    /// A store that keeps nothing across restarts.
    #[must_use]
    pub(crate) fn memory(settings: StoreSettings, rng: &mut fastrand::Rng) -> Self {
        Store {
            records: Records::new(settings.limits, settings.policy),
            schedule: Schedule::new(settings.republish, rng),
            durable: None,
        }
    }

    /// Opens the store in `dir` of `disk`, making it if need be. Its journal's writer ends with the supervisor.
    ///
    /// # Errors
    /// As [`Journal::open`], except that damage is reported and not refused.
    pub(crate) async fn open(
        supervisor: &Supervisor,
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: StoreSettings,
        clock: Clock,
        rng: &mut fastrand::Rng,
    ) -> Result<(Self, Opened), JournalError> {
        let journal_settings = ron_core::journal::Settings {
            name: "dht_records",
            segment_bytes: settings.segment_bytes,
            chunk_bytes: settings.segment_bytes / 8,
            record_bytes_max: ENTRY_BYTES_MAX,
            pending_bytes_max: 16 << 20,
            on_damage: OnDamage::Report,
            salts: settings.salts,
            ..ron_core::journal::Settings::default()
        };
        let (journal, recovered) = Journal::open(supervisor, disk, dir, journal_settings).await?;
        let reader = journal.reader();
        let segment_bytes = settings.segment_bytes;
        let phase = rng.u64(..);
        let read = {
            let reader = reader.clone();
            move || Loaded::read(&reader, settings, clock, phase)
        };
        let loaded = supervisor.blocking("dht_open", Deadline::after(OPENING), read).await??;
        let Loaded { records, schedule, stamp, had_phase, said_from, mut opened } = loaded;
        opened.recovered = recovered;
        let mut durable = Durable {
            journal,
            reader,
            unwritten: Vec::new(),
            unwritten_bytes: 0,
            stamp,
            said_from,
            rewriting: Weak::new(),
            slack_bytes: SLACK_SEGMENTS * u64::from(segment_bytes),
            lost: 0,
            mended: 0,
        };
        if !had_phase {
            durable.add((PHASE, schedule.phase().to_be_bytes().to_vec().into()));
        }
        Ok((Store { records, schedule, durable: Some(durable) }, opened))
    }

    /// The records kept for others.
    #[must_use]
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// Our own keys.
    #[must_use]
    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// As [`Records::insert`]. It is durable when the next [`flush`](Self::flush) has been written.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn insert(
        &mut self,
        record: Verified,
        sender: &Sender,
        clock: Clock,
    ) -> Result<Inserted, RecordError> {
        check_time(&record, clock)?;
        let (asked, inserted) = (record.clone(), self.records.insert(record, sender, clock.now)?);
        self.note(&asked, inserted, clock);
        Ok(inserted)
    }

    /// As [`Records::compare_and_swap`]. It is durable when the next [`flush`](Self::flush) has been written.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn compare_and_swap(
        &mut self,
        record: Verified,
        expected: u64,
        sender: &Sender,
        clock: Clock,
    ) -> Result<Inserted, RecordError> {
        check_time(&record, clock)?;
        let asked = record.clone();
        let inserted = self.records.compare_and_swap(record, expected, sender, clock.now)?;
        self.note(&asked, inserted, clock);
        Ok(inserted)
    }

    /// As [`Records::expire`]. There is nothing to write: an entry says itself when its time is over.
    pub(crate) fn expire(&mut self, now: Duration, limit: usize) -> usize {
        self.records.expire(now, limit)
    }

    /// Adds keys to the schedule, due at once, and says how many are new.
    pub(crate) fn plan(&mut self, keys: &[Key]) -> usize {
        let added: Vec<_> = keys.iter().copied().filter(|key| self.schedule.add(*key)).collect();
        let planned = Planned { seq: 0, published: None };
        self.write_planned(&added.iter().map(|key| (*key, planned)).collect::<Vec<_>>());
        added.len()
    }

    /// Notes where our records say from now on that we are. If that is elsewhere than the last run said, or unknown, all
    /// keys are due at once, and how many those are is returned: nobody finds us by what was said.
    pub(crate) fn on_addrs(&mut self, addrs: &[SocketAddr]) -> usize {
        let Some(durable) = &mut self.durable else { return 0 };
        let mut addrs = addrs.to_vec();
        addrs.sort_unstable();
        if durable.said_from.as_ref() == Some(&addrs) {
            return 0;
        }
        durable.add(said_from_entry(&addrs));
        durable.said_from = Some(addrs);
        let due = self.schedule.make_all_due();
        self.write_planned(&due);
        due.len()
    }

    /// As [`on_addrs`](Self::on_addrs) for a node that runs, and so may have keys without a place to write them down.
    pub(crate) fn on_moved(&mut self, addrs: &[SocketAddr]) -> usize {
        match self.durable {
            Some(_) => self.on_addrs(addrs),
            None => self.schedule.make_all_due().len(),
        }
    }

    /// Takes a key out of the schedule, and says what was known of it: its withdrawal needs the next number.
    pub(crate) fn unplan(&mut self, key: &Key) -> Option<Planned> {
        let planned = self.schedule.remove(key)?;
        if let Some(durable) = &mut self.durable {
            let entry = [&durable.next_stamp().to_be_bytes()[..], key.as_bytes()].concat();
            durable.add((UNPLANNED, entry.into()));
        }
        Some(planned)
    }

    /// The number to say a key with next: higher than any that is known, also than that of a withdrawal, which is no
    /// longer in the schedule but which `own` keeps like any other record.
    #[must_use]
    pub(crate) fn next_seq(&self, key: &Key, own: &NodeId, unix_secs: u64) -> u64 {
        let kept = self.records.provider_seq(key, own).map_or(0, |seq| seq.saturating_add(1));
        self.schedule.next_seq(key, unix_secs).max(kept)
    }

    /// Notes that keys were said, each with its number.
    pub(crate) fn on_published(&mut self, published: &[(Key, u64)], clock: Clock) {
        let mut planned = Vec::with_capacity(published.len());
        for (key, seq) in published {
            if self.schedule.on_published(key, *seq, clock.unix_secs) {
                planned.push((*key, Planned { seq: *seq, published: Some(clock.unix_secs) }));
            }
        }
        self.write_planned(&planned);
    }

    /// As [`Schedule::due`].
    #[must_use]
    pub(crate) fn due(
        &mut self,
        unix_secs: u64,
        limit: usize,
        after: &mut Option<(u64, Key)>,
        taken: impl Fn(&Key) -> bool,
    ) -> Vec<Key> {
        self.schedule.due(unix_secs, limit, after, taken)
    }

    /// What has changed since the last flush, to be written by whoever has the time. Flush after every message: what
    /// is not flushed waits in memory.
    pub(crate) fn flush(&mut self) -> Flush {
        let Some(durable) = &mut self.durable else {
            return Flush { journal: None, entries: Vec::new() };
        };
        durable.unwritten_bytes = 0;
        let entries = std::mem::take(&mut durable.unwritten);
        Flush { journal: (!entries.is_empty()).then(|| durable.journal.clone()), entries }
    }

    /// Takes back what a flush did not come to, ahead of what has changed since. What was written after all is written
    /// twice, which the reader does not mind.
    pub(crate) fn put_back(&mut self, flush: Flush) {
        if let Some(durable) = &mut self.durable {
            let since = std::mem::replace(&mut durable.unwritten, flush.entries);
            durable.unwritten_bytes +=
                durable.unwritten.iter().map(|(_, entry)| record_bytes(entry.len())).sum::<usize>();
            durable.unwritten.extend(since);
        }
    }

    /// Whether so much waits for the disk that nobody should bring more.
    #[must_use]
    pub(crate) fn is_behind(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.unwritten_bytes >= UNWRITTEN_BYTES_MAX)
    }

    /// Notes that a flush was not written: the disk lacks something until everything has been written anew.
    pub(crate) fn on_lost(&mut self) {
        if let Some(durable) = &mut self.durable {
            durable.lost += 1;
        }
    }

    /// Notes that everything up to this failed flush is on disk again: what [`Rewrite::mends`] said before it was
    /// written.
    pub(crate) fn on_rewritten(&mut self, lost: u64) {
        if let Some(durable) = &mut self.durable {
            durable.mended = durable.mended.max(lost);
        }
    }

    /// Whether what was flushed is what the disk has. Without a disk there is nothing it could lack.
    #[must_use]
    pub(crate) fn is_whole(&self) -> bool {
        self.durable.as_ref().is_none_or(|durable| durable.mended == durable.lost)
    }

    /// The free space that writing everything anew takes, if that is due: the journal is more than twice as long as it need
    /// be or lacks something, and no other rewrite is under way. Ask now and then.
    #[must_use]
    pub(crate) fn rewrite_bytes(&self) -> Option<u64> {
        let durable = self.durable.as_ref()?;
        if durable.rewriting.upgrade().is_some() {
            return None;
        }
        let segments = durable.reader.segments();
        let written: u64 = segments.iter().map(|segment| u64::from(segment.bytes)).sum();
        let keys = self.schedule.len() * 48;
        let records = self.records.len() * record_bytes(16) + self.records.encoded_bytes();
        let needed = (keys + records) as u64;
        let is_whole = durable.mended == durable.lost;
        if is_whole && written <= 2 * needed + durable.slack_bytes {
            return None;
        }
        // The last segment is laid out whole, however little is in it.
        Some(needed + durable.slack_bytes / SLACK_SEGMENTS)
    }

    /// Everything, to be written anew, if that is due: see [`rewrite_bytes`](Self::rewrite_bytes).
    #[must_use]
    pub(crate) fn rewrite(&mut self, clock: Clock) -> Option<Rewrite> {
        self.rewrite_bytes()?;
        let durable = self.durable.as_mut()?;
        // Every change so far is in what is written below, and every later one goes to this segment or behind it.
        let keep_from = durable.reader.segments().last()?.sequence;
        let stamp = durable.next_stamp();
        let mut entries = vec![(PHASE, Bytes::from(self.schedule.phase().to_be_bytes().to_vec()))];
        entries.extend(durable.said_from.iter().map(|addrs| said_from_entry(addrs)));
        entries.extend(planned_entries(&self.schedule.iter().collect::<Vec<_>>(), stamp));
        entries.extend(self.records.kept().map(|kept| kept_entry(&kept, clock)));
        let under_way = Arc::new(());
        durable.rewriting = Arc::downgrade(&under_way);
        Some(Rewrite {
            journal: durable.journal.clone(),
            entries,
            keep_from,
            lost: durable.lost,
            _under_way: under_way,
        })
    }

    fn note(&mut self, record: &Verified, inserted: Inserted, clock: Clock) {
        let Some(durable) = self.durable.as_mut().filter(|_| inserted.is_change()) else {
            return;
        };
        if let Some(kept) = self.records.kept_for(record.record()) {
            durable.add(kept_entry(&kept, clock));
        }
    }

    fn write_planned(&mut self, planned: &[(Key, Planned)]) {
        if let Some(durable) = &mut self.durable {
            let stamp = durable.next_stamp();
            planned_entries(planned, stamp).for_each(|entry| durable.add(entry));
        }
    }
}

/// Whether a provider record was signed at a time at which it can be of use now.
fn check_time(record: &Verified, clock: Clock) -> Result<(), RecordError> {
    match record.record() {
        Record::Provider(record) => record.is_current(clock.unix_secs),
        Record::Value(_) => Ok(()),
    }
}

impl Durable {
    fn add(&mut self, entry: (u8, Bytes)) {
        self.unwritten_bytes += record_bytes(entry.1.len());
        self.unwritten.push(entry);
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

/// Changes on their way to the disk.
#[derive(Debug)]
#[must_use = "what is not written does not survive"]
pub(crate) struct Flush {
    journal: Option<Journal>,
    entries: Vec<(u8, Bytes)>,
}

impl Flush {
    /// Whether there is nothing to write.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes piece by piece, and returns when it is durable: the journal takes no more at once than it has room for.
    /// What it holds afterwards was not written. Dropping the future may or may not withdraw the piece under way.
    ///
    /// # Errors
    /// As [`Journal::append`]. What was not written can be [put back](Store::put_back), or stays in memory and is
    /// written with the next rewrite.
    pub(crate) async fn write(&mut self, deadline: Deadline) -> Result<(), JournalError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        while !self.entries.is_empty() {
            let piece = first_piece(&self.entries).to_vec();
            let count = piece.len();
            journal.append_all(piece, deadline).await?;
            self.entries.drain(..count);
        }
        Ok(())
    }
}

/// The first entries that make up a piece: at least one, and about [`PIECE_BYTES`] of them.
fn first_piece(entries: &[(u8, Bytes)]) -> &[(u8, Bytes)] {
    let mut bytes = 0;
    let is_over = |(_, payload): &(u8, Bytes)| {
        bytes += record_bytes(payload.len());
        bytes >= PIECE_BYTES
    };
    let count = entries.iter().position(is_over).map_or(entries.len(), |last| last + 1);
    &entries[..count]
}

/// Everything on its way to the disk once more, after which what was written before can go.
#[derive(Debug)]
#[must_use = "the journal grows until it is written"]
pub(crate) struct Rewrite {
    journal: Journal,
    entries: Vec<(u8, Bytes)>,
    keep_from: u64,
    lost: u64,
    _under_way: Arc<()>,
}

impl Rewrite {
    /// The last failed flush that this makes up for: to be told to [`Store::on_rewritten`] once it is written.
    #[must_use]
    pub(crate) fn mends(&self) -> u64 {
        self.lost
    }

    /// Writes, then removes what is no longer needed, and says how many segments those were. Stopping in the middle
    /// loses nothing.
    ///
    /// # Errors
    /// As [`Journal::append`] and [`Journal::remove_before`].
    pub(crate) async fn write(self, deadline: Deadline) -> Result<usize, JournalError> {
        let mut rest = &self.entries[..];
        while !rest.is_empty() {
            let piece = first_piece(rest);
            self.journal.append_all(piece.to_vec(), deadline).await?;
            rest = &rest[piece.len()..];
        }
        self.journal.remove_before(self.keep_from, deadline).await
    }
}

#[cfg(test)]
mod tests {
    use ron_core::sim::{CrashStyle, SimDisk};

    use super::{
        entries::{PLANNED, PROVIDER, VALUE},
        *,
    };
    use crate::logic::{
        addrs::Source,
        records::{Inserted, Kept},
        signed::{ProviderRecord, Value},
    };

    const HOUR: Duration = Duration::from_secs(3600);
    const DIR: &str = "data/dht";

    fn clock(secs: u64) -> Clock {
        Clock { now: Duration::from_secs(secs), unix_secs: 1_800_000_000 + secs }
    }

    /// The same moment after a restart: the node's own time begins anew.
    fn clock_after_restart(secs: u64) -> Clock {
        Clock { now: Duration::from_secs(1), ..clock(secs) }
    }

    fn key(number: u64) -> Key {
        Key::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes())
    }

    fn provider(who: u64, what: u64, seq: u64) -> Verified {
        Verified::unproven(who, key(what), &["9.9.9.9:1".parse().unwrap()], seq, HOUR, false)
    }

    fn sender() -> Sender {
        Sender { id: ron_core::NodeId::from_bytes([3; 32]), ip: [8, 8, 8, 8].into() }
    }

    fn host() -> Supervisor {
        Supervisor::builder("sim").inline_blocking(true).start()
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    async fn open(host: &Supervisor, disk: &SimDisk, clock: Clock) -> Result<(Store, Opened), JournalError> {
        let settings =
            StoreSettings { segment_bytes: 4096, salts: Salts::Seeded(5), ..StoreSettings::default() };
        let rng = &mut fastrand::Rng::with_seed(clock.unix_secs);
        Store::open(host, Arc::new(disk.clone()), Path::new(DIR), settings, clock, rng).await
    }

    /// Everything that a restart should bring back, in one order.
    fn content(store: &Store, clock: Clock) -> Vec<(Bytes, u64)> {
        let until = |kept: &Kept| clock.unix_secs + (kept.expires - clock.now).as_secs();
        let mut all: Vec<_> = store.records.kept().map(|kept| (kept.encoded.clone(), until(&kept))).collect();
        all.sort();
        all
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_flushed_comes_back() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, opened) = open(&first, &disk, clock(10)).await.unwrap();
        assert_eq!((opened.records, opened.planned, opened.dropped), (0, 0, 0));
        store.insert(provider(1, 1, 1), &sender(), clock(10)).unwrap();
        store.insert(provider(1, 1, 2), &sender(), clock(500)).unwrap();
        let gone = Verified::unproven(2, key(1), &[], 4, HOUR, true);
        store.insert(gone, &sender(), clock(500)).unwrap();
        let value = Value::immutable(b"bytes", HOUR).unwrap().verify().unwrap();
        store.insert(value, &sender(), clock(500)).unwrap();
        let swapped = store.compare_and_swap(
            Verified::unproven_value(3, b"s", 2, b"v", HOUR),
            1,
            &sender(),
            clock(500),
        );
        assert_eq!(swapped, Ok(Inserted::Added));
        // Nothing new, nothing to write.
        assert_eq!(store.insert(provider(1, 1, 2), &sender(), clock(500)), Ok(Inserted::Unchanged));
        assert_eq!(store.plan(&[key(1), key(2), key(3), key(1)]), 3);
        store.on_published(&[(key(1), 77), (key(9), 5)], clock(500));
        assert_eq!(store.unplan(&key(2)), Some(Planned { seq: 0, published: None }));
        let mut flush = store.flush();
        assert!(!flush.is_empty());
        flush.write(soon()).await.unwrap();
        assert!(store.flush().is_empty());
        let (before, schedule) = (content(&store, clock(500)), store.schedule.iter().collect::<Vec<_>>());
        let (due, phase) = (store.schedule.wake_at(), store.schedule.phase());
        drop(store);
        first.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);

        let second = host();
        let after = clock_after_restart(600);
        let (mut store, opened) = open(&second, &disk, after).await.unwrap();
        assert_eq!((opened.records, opened.planned, opened.expired), (4, 2, 0));
        assert_eq!(content(&store, after), before);
        assert_eq!(store.schedule.iter().collect::<Vec<_>>(), schedule);
        assert_eq!((store.schedule.wake_at(), store.schedule.phase()), (due, phase));
        assert_eq!(store.schedule.next_seq(&key(1), 50), 78);
        assert_eq!(store.due(after.unix_secs, 9, &mut None, |_| false), [key(3)]);
        // An old word is still known to be old.
        assert_eq!(store.insert(provider(2, 1, 4), &sender(), after), Err(RecordError::Stale { held: 4 }));
        second.shutdown().await;
    }

    /// Whoever has kept a copy of a record brings it again when everybody has forgotten it, or to a node that never
    /// knew it; and that of one who has withdrawn it, when the withdrawal is forgotten.
    #[test]
    fn an_old_word_does_not_come_back() {
        let mut store = Store::memory(StoreSettings::default(), &mut fastrand::Rng::with_seed(1));
        let day = 24 * 3600;
        assert_eq!(store.insert(provider(1, 1, 1), &sender(), clock(0)), Ok(Inserted::Added));
        assert_eq!(store.insert(provider(2, 1, 1), &sender(), clock(0)), Ok(Inserted::Added));
        let gone = Verified::unproven(2, key(1), &[], 2, HOUR, true);
        assert_eq!(store.insert(gone, &sender(), clock(10)), Ok(Inserted::Replaced));
        for hours in 1..100 {
            let at = clock(hours * 3600 + 20);
            store.expire(at.now, usize::MAX);
            let again = store.insert(provider(1, 1, 1), &sender(), at);
            let withdrawn = store.insert(provider(2, 1, 1), &sender(), at);
            let is_over = hours * 3600 + 20 > 3600 + day;
            assert_eq!(again == Err(RecordError::Expired), is_over, "{hours} h: {again:?}");
            assert!(withdrawn.is_err(), "{hours} h: {withdrawn:?}");
        }
        let late = Clock { unix_secs: 1_800_000_000 - day - 1, ..clock(0) };
        assert_eq!(store.insert(provider(3, 1, 1), &sender(), late), Err(RecordError::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_by_the_wall_clock_stays_away() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        store.insert(provider(1, 1, 1), &sender(), clock(0)).unwrap();
        store.insert(provider(2, 1, 1), &sender(), clock(1800)).unwrap();
        store.flush().write(soon()).await.unwrap();
        drop(store);
        first.shutdown().await;

        let second = host();
        let (mut store, opened) = open(&second, &disk, clock_after_restart(3600)).await.unwrap();
        assert_eq!((opened.records, opened.expired), (1, 1));
        let restarted = clock_after_restart(3600).now;
        assert_eq!(store.expire(restarted + HOUR / 2 - Duration::from_secs(1), 9), 0);
        assert_eq!(store.expire(restarted + HOUR / 2, 9), 1);
        drop(store);
        second.shutdown().await;

        // The wall clock went back a year meanwhile: a day is the most that anything lives on.
        let third = host();
        let early = Clock { now: Duration::ZERO, unix_secs: 1_700_000_000 };
        let (store, opened) = open(&third, &disk, early).await.unwrap();
        assert_eq!(opened.records, 2);
        assert_eq!(store.records().wake_at(), Some(crate::logic::signed::TTL_MAX));
        third.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_keeps_what_counts_and_drops_the_rest() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        store.plan(&(0..2000).map(key).collect::<Vec<_>>());
        store.flush().write(soon()).await.unwrap();
        let value = |seq: u64| Verified::unproven_value(1, b"s", seq, &[seq as u8; 3000], HOUR);
        let mut seq = 0;
        let rewrite = loop {
            seq += 1;
            store.insert(value(seq), &sender(), clock(seq)).unwrap();
            store.flush().write(soon()).await.unwrap();
            if let Some(rewrite) = store.rewrite(clock(seq)) {
                break rewrite;
            }
        };
        assert!((30..50).contains(&seq), "{seq}");
        assert!(store.rewrite(clock(seq)).is_none(), "one at a time");
        // What changes meanwhile is kept too, whichever comes first.
        store.unplan(&key(7));
        store.insert(value(seq + 1), &sender(), clock(seq)).unwrap();
        store.flush().write(soon()).await.unwrap();
        assert!(rewrite.write(soon()).await.unwrap() >= 10);
        assert!(store.rewrite(clock(seq)).is_none(), "nothing to gain");
        let before = content(&store, clock(seq));
        drop(store);
        first.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);

        let second = host();
        let (store, opened) = open(&second, &disk, clock_after_restart(seq)).await.unwrap();
        assert_eq!((opened.records, opened.planned), (1, 1999));
        assert_eq!(content(&store, clock_after_restart(seq)), before);
        second.shutdown().await;
    }

    #[test]
    fn the_bytes_of_entries_are_these() {
        let expires = Duration::from_secs(100);
        let encoded = Bytes::from_static(b"record");
        let kept = Kept { encoded, is_value: true, source: Source::from_number(0x0102), expires };
        let clock = Clock { now: Duration::from_secs(40), unix_secs: 0x0100 };
        let (kind, payload) = kept_entry(&kept, clock);
        assert_eq!((kind, &payload[..8]), (2, &[0, 0, 0, 0, 0, 0, 1, 60][..]));
        assert_eq!((&payload[8..16], &payload[16..]), (&[0, 0, 0, 0, 0, 0, 1, 2][..], &b"record"[..]));

        let keys =
            [(key(1), Planned { seq: 3, published: Some(4) }), (key(2), Planned { seq: 0, published: None })];
        let entries: Vec<_> = planned_entries(&keys, 9).collect();
        let expected = [
            &[0, 0, 0, 0, 0, 0, 0, 9][..],
            key(1).as_bytes(),
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4],
            key(2).as_bytes(),
            &[0; 16],
        ]
        .concat();
        assert_eq!(entries, [(3, Bytes::from(expected))]);
    }

    /// A small life that tells which round of records and which keys were acknowledged. Stops where the disk does.
    async fn live(disk: &SimDisk, acknowledged: &mut (u64, Vec<u64>)) -> Result<(), JournalError> {
        let host = host();
        let lived = async {
            let (mut store, _) = open(&host, disk, clock(0)).await?;
            store.durable.as_mut().expect("it was opened").slack_bytes = 0;
            let mut removed = 0;
            for round in 1..7 {
                for what in 0..round {
                    store.insert(provider(1, what, round), &sender(), clock(round)).expect("there is room");
                }
                let bulk = Verified::unproven_value(1, b"s", round, &[0; 2000], HOUR);
                store.insert(bulk, &sender(), clock(round)).expect("there is room");
                store.plan(&[key(round)]);
                store.flush().write(soon()).await?;
                acknowledged.0 = round;
                acknowledged.1.push(round);
                if let Some(rewrite) = store.rewrite(clock(round)) {
                    removed += rewrite.write(soon()).await?;
                }
            }
            assert!(removed > 0);
            Ok(())
        };
        let lived = lived.await;
        host.shutdown().await;
        lived
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_anywhere_loses_nothing_that_was_acknowledged() {
        let whole = SimDisk::new();
        live(&whole, &mut Default::default()).await.unwrap();
        for call in 1..=whole.calls() {
            for style in [
                CrashStyle::LoseUnsynced,
                CrashStyle::KeepAll,
                CrashStyle::KeepPrefix { changes: 1 },
                CrashStyle::Scramble { seed: call },
            ] {
                let disk = SimDisk::new();
                disk.crash_at_call(call);
                let mut acknowledged = Default::default();
                let _ = live(&disk, &mut acknowledged).await;
                disk.restart(style);
                let host = host();
                let (store, opened) = open(&host, &disk, clock_after_restart(10)).await.unwrap();
                assert!(opened.recovered.damage.is_empty(), "{call} {style:?}");
                let (round, keys) = &acknowledged;
                let newest = |what: u64| {
                    let kept = store.records.kept_for(provider(1, what, 1).record())?;
                    Some(ProviderRecord::decode(&kept.encoded).unwrap().seq())
                };
                assert!((0..*round).all(|what| newest(what) >= Some(*round)), "{call} {style:?}");
                let planned: Vec<_> = store.schedule.iter().map(|(key, _)| key).collect();
                assert!(keys.iter().all(|what| planned.contains(&key(*what))), "{call} {style:?}");
                host.shutdown().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn damage_is_reported_and_the_rest_is_used() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        for what in 0..20 {
            store.insert(provider(1, what, 1), &sender(), clock(0)).unwrap();
            store.flush().write(soon()).await.unwrap();
        }
        drop(store);
        first.shutdown().await;
        disk.flip_bit(Path::new(DIR).join("0000000000000001.seg"), 1000);
        let second = host();
        let (store, opened) = open(&second, &disk, clock_after_restart(0)).await.unwrap();
        assert_eq!(opened.recovered.damage.len(), 1);
        assert_eq!(store.records().len(), 19);
        second.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_flush_lost_is_written_anew() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        store.insert(provider(1, 1, 1), &sender(), clock(0)).unwrap();
        // As after a full disk: nobody wrote it.
        drop(store.flush());
        store.on_lost();
        assert!(!store.is_whole() && store.flush().is_empty());
        let rewrite = store.rewrite(clock(1)).unwrap();
        let mends = rewrite.mends();
        // Another one fails meanwhile, which this rewrite does not make up for.
        store.on_lost();
        rewrite.write(soon()).await.unwrap();
        store.on_rewritten(mends);
        assert!(!store.is_whole());
        let rewrite = store.rewrite(clock(2)).unwrap();
        store.on_rewritten(rewrite.mends());
        assert!(store.is_whole());
        rewrite.write(soon()).await.unwrap();
        assert!(store.rewrite(clock(3)).is_none(), "nothing to gain");
        drop(store);
        first.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);
        let second = host();
        let (_, opened) = open(&second, &disk, clock_after_restart(4)).await.unwrap();
        assert_eq!(opened.records, 1);
        second.shutdown().await;
    }

    /// More than the journal takes at once: forty mebibytes of values between two flushes.
    #[tokio::test(start_paused = true)]
    async fn much_is_written_in_pieces() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        store.durable.as_mut().unwrap().slack_bytes = u64::MAX / 2;
        let data = vec![7; 16 << 10];
        for seq in 0..2560_u64 {
            let salt = seq.to_be_bytes();
            let value = Verified::unproven_value(seq, &salt, 1, &data, HOUR);
            store.insert(value, &sender(), clock(0)).unwrap();
        }
        let keys: Vec<_> = (0..400_000).map(key).collect();
        store.plan(&keys);
        let mut flush = store.flush();
        assert_eq!(flush.write(soon()).await, Ok(()));
        assert!(flush.is_empty() && store.is_whole());
        drop(store);
        first.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);
        let second = host();
        let (_, opened) = open(&second, &disk, clock_after_restart(1)).await.unwrap();
        assert_eq!((opened.records, opened.planned), (2560, 400_000));
        second.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_flush_did_not_come_to_is_put_back() {
        let (disk, first) = (SimDisk::new(), host());
        let (mut store, _) = open(&first, &disk, clock(0)).await.unwrap();
        store.insert(provider(1, 1, 1), &sender(), clock(0)).unwrap();
        // As after a disk that was too slow: nobody wrote it.
        let flush = store.flush();
        assert!(!flush.is_empty());
        store.insert(provider(1, 2, 1), &sender(), clock(0)).unwrap();
        store.put_back(flush);
        assert!(store.is_whole() && !store.is_behind());
        store.flush().write(soon()).await.unwrap();
        drop(store);
        first.shutdown().await;
        disk.restart(CrashStyle::LoseUnsynced);
        let second = host();
        let (mut store, opened) = open(&second, &disk, clock_after_restart(0)).await.unwrap();
        assert_eq!(opened.records, 2);
        store.durable.as_mut().unwrap().unwritten_bytes = UNWRITTEN_BYTES_MAX;
        assert!(store.is_behind());
        second.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn foreign_entries_are_counted_and_skipped() {
        let (disk, first) = (SimDisk::new(), host());
        let settings =
            ron_core::journal::Settings { salts: Salts::Seeded(1), ..ron_core::journal::Settings::default() };
        let (journal, _) =
            Journal::open(&first, Arc::new(disk.clone()), Path::new(DIR), settings).await.unwrap();
        let entries = [
            (9, &b"later"[..]),
            (PROVIDER, b"short"),
            (PROVIDER, &[0xff; 40]),
            (VALUE, &[0xff; 16]),
            (PLANNED, &[0; 50]),
            (PLANNED, &[0; 7]),
            (UNPLANNED, &[0; 41]),
            (PHASE, &[1]),
        ];
        let entries = entries.map(|(kind, payload)| (kind, Bytes::from_static(payload)));
        journal.append_all(entries.to_vec(), soon()).await.unwrap();
        drop(journal);
        first.shutdown().await;
        let second = host();
        let (_, opened) = open(&second, &disk, clock_after_restart(0)).await.unwrap();
        assert_eq!((opened.records, opened.dropped), (0, 8));
        second.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_disk_nothing_is_written() {
        let mut store = Store::memory(StoreSettings::default(), &mut fastrand::Rng::with_seed(1));
        store.insert(provider(1, 1, 1), &sender(), clock(0)).unwrap();
        store.plan(&[key(1)]);
        let mut flush = store.flush();
        assert!(flush.is_empty() && store.rewrite(clock(0)).is_none());
        assert_eq!(flush.write(soon()).await, Ok(()));
    }
}
