//! What is kept, and where: the table in memory, the journal, the files of large objects.
//!
//! An object exists when the journal says so. Everything that changes something holds the object's name, writes to the
//! journal, and notes in the table what was written; whoever reads looks into the table and verifies what it finds there.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Feed, Lane, Lock, LockSpec, Metrics, Spawner, Tally,
    disk::Disk,
    journal::{self, Item, Journal, JournalError, Position, ReadInto},
    now,
};

use crate::{
    Durability, Event, Put, StorageError,
    actor::Errand,
    buffers::Buffer,
    error::of_journal,
    handle::{Cursor, Page, Stat, Usage},
    holds::{Doubt, Hold, Holds},
    large::{Ingest, Large},
    logic::{
        proof::{GroupSet, proof_of, proof_steps},
        records::{Note, SMALL},
        table::{Entry, Home, Spot, Table},
        tree::{Shape, Tree},
    },
    metrics::{CORRUPT, REFUSED_WRITES, UNREADABLE},
    planted::{Bug, is_planted},
    settings::Settings,
    touched::Touched,
};

pub(crate) const TABLE: LockSpec =
    LockSpec::new("ron-storage", "table", 710).guards("where objects are; held for one look or one change");

/// Most that is read and verified on the caller's task, if it is in memory: the way to a worker and back costs as much as
/// hashing a group, and bytes that are sent at once are still in the processor's cache. 256 KiB take 60 µs.
pub(crate) const AT_ONCE_MAX: u64 = 256 << 10;

/// How often a reader looks again because the object was moved meanwhile.
const MOVES_MAX: usize = 8;

/// A large object that took longer than this to arrive is noted as young; for others the grace is shorter by less.
const SLOW: Duration = Duration::from_secs(1);

/// How much is written, at most, before the free space is looked at again.
const TRUST_MAX: u64 = 16 << 20;

/// And no more than this part of the space that is kept free: others use the disk too, and several puts may look at once.
const TRUST_PART: u64 = 4;

/// A part of an object to be read.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub(crate) id: ContentId,
    pub(crate) bytes: Range<u64>,
    /// The whole proof of which this is a piece, if these bytes, whole groups then, are wanted with their nodes.
    pub(crate) proof: Option<Arc<GroupSet>>,
}

/// The objects of a store.
pub(crate) struct Objects {
    pub(crate) table: Lock<Table>,
    pub(crate) holds: Arc<Holds>,
    pub(crate) touched: Touched,
    pub(crate) large: Arc<Large>,
    #[cfg(feature = "net")]
    pub(crate) partials: Arc<crate::partial::Partials>,
    /// Who fetches which object: one at a time, and the others wait for it.
    #[cfg(feature = "net")]
    pub(crate) fetching: Arc<Holds>,
    pub(crate) journal: Journal,
    pub(crate) reader: journal::Reader,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    /// The store's own number, which its index carries too.
    pub(crate) store: [u8; 16],
    /// Whether what is synced survives.
    pub(crate) is_durable: bool,
    pub(crate) events: Feed<Event>,
    pub(crate) upkeep: Lane<Errand>,
    pub(crate) metrics: Metrics,
    pub(crate) spawner: Spawner,
    /// Bytes of the journal that the index on disk knew when it was opened.
    pub(crate) indexed: u64,
    /// The last place in the journal that was acknowledged, and the last that was acknowledged as durable.
    acknowledged: AtomicU64,
    synced: AtomicU64,
    /// What is being put and not in the table yet.
    reserved_bytes: AtomicU64,
    reserved_objects: AtomicU64,
    trusted_room: AtomicU64,
    /// Whether the journal may not know of all damage that the table knows of.
    pub(crate) owes_notes: AtomicBool,
    full: Tally,
    over_quota: Tally,
    /// Which objects are wanted.
    #[cfg(feature = "net")]
    pub(crate) book: Arc<crate::claims::Book>,
}

/// What opening hands to the objects.
pub(crate) struct Parts {
    pub(crate) table: Table,
    pub(crate) large: Arc<Large>,
    #[cfg(feature = "net")]
    pub(crate) partials: Arc<crate::partial::Partials>,
    pub(crate) journal: Journal,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) store: [u8; 16],
    pub(crate) is_durable: bool,
    pub(crate) end: Spot,
    pub(crate) indexed: u64,
    pub(crate) spawner: Spawner,
    #[cfg(feature = "net")]
    pub(crate) book: Arc<crate::claims::Book>,
}

/// A record on its way to the journal, and the pin that follows it.
struct Append<'a> {
    record: (u8, Bytes),
    /// The name of its payload, if that is known.
    name: Option<&'a ContentId>,
    pin: Option<ContentId>,
    durable: bool,
}

impl Objects {
    pub(crate) fn new(parts: Parts, events: Feed<Event>, upkeep: Lane<Errand>, metrics: &Metrics) -> Self {
        #[cfg(feature = "net")]
        let (partials, (partial_bytes, partial_objects)) =
            (Arc::clone(&parts.partials), parts.partials.totals());
        #[cfg(not(feature = "net"))]
        let (partial_bytes, partial_objects) = (0, 0);
        let Parts { table, large, journal, disk, dir, store, is_durable, end, indexed, spawner, .. } = parts;
        Objects {
            #[cfg(feature = "net")]
            book: parts.book,
            table: Lock::new(TABLE, table, metrics),
            holds: Holds::new(metrics),
            touched: Touched::new(metrics, now()),
            large,
            #[cfg(feature = "net")]
            partials,
            #[cfg(feature = "net")]
            fetching: Holds::new(metrics),
            reader: journal.reader(),
            journal,
            disk,
            dir,
            store,
            is_durable,
            events,
            upkeep,
            spawner,
            indexed,
            acknowledged: AtomicU64::new(end.number()),
            synced: AtomicU64::new(end.number()),
            reserved_bytes: AtomicU64::new(partial_bytes),
            reserved_objects: AtomicU64::new(partial_objects),
            trusted_room: AtomicU64::new(0),
            owes_notes: AtomicBool::new(false),
            full: metrics.tally(REFUSED_WRITES, "full"),
            over_quota: metrics.tally(REFUSED_WRITES, "quota"),
            metrics: metrics.clone(),
        }
    }

    pub(crate) fn entry(&self, id: &ContentId) -> Option<Entry> {
        self.table.lock().get(id)
    }

    /// The last place in the journal that was acknowledged.
    pub(crate) fn acknowledged(&self) -> Spot {
        Spot::from_number(self.acknowledged.load(Ordering::Acquire))
    }

    /// Notes that the journal has acknowledged a record.
    pub(crate) fn note(&self, position: Position, durable: bool) -> Result<Spot, StorageError> {
        let spot = Spot::of(position).ok_or(StorageError::Full)?;
        self.acknowledged.fetch_max(spot.number(), Ordering::AcqRel);
        if durable {
            self.synced.fetch_max(spot.number(), Ordering::AcqRel);
        }
        Ok(spot)
    }

    /// Bytes of the journal.
    pub(crate) fn written(&self) -> u64 {
        self.reader.segments().iter().map(|segment| u64::from(segment.bytes)).sum()
    }

    pub(crate) fn stat(&self, id: &ContentId) -> Option<Stat> {
        self.entry(id).map(|entry| stat(&entry))
    }

    pub(crate) fn list(&self, after: Option<&Cursor>, limit: usize) -> Page {
        let (entries, more) = self.table.lock().page(after.map(|cursor| &cursor.0), limit);
        let objects: Vec<Stat> = entries.iter().map(stat).collect();
        let next = objects.last().filter(|_| more).map(|last| Cursor(last.id));
        Page { objects, next }
    }

    pub(crate) fn usage(&self) -> Usage {
        let totals = self.table.lock().totals();
        let written = self.written();
        Usage {
            objects: totals.objects,
            bytes: totals.bytes,
            pinned: totals.pinned,
            quarantined: totals.bad,
            disk_bytes: written + totals.large_bytes + totals.large_bytes / 1024,
            garbage_bytes: written.saturating_sub(totals.journal_bytes),
            free_bytes: self.disk.free_space().ok().filter(|_| self.is_durable),
        }
    }

    /// The bytes asked for, once they are seen to be those of the object. Blocks.
    pub(crate) fn read(&self, read: &Read) -> Result<Bytes, StorageError> {
        let Read { id, bytes, proof } = read;
        for _ in 0..MOVES_MAX {
            let entry = self.entry(id).ok_or(StorageError::NotFound { id: *id })?;
            if entry.is_bad {
                return Err(StorageError::Corrupt { id: *id, at: 0 });
            }
            let found = self.read_at(&entry, bytes, proof.as_deref(), false);
            let Err(StorageError::Corrupt { at, .. }) = found else { return found };
            // Moved or deleted while it was read, or really damaged.
            if self.entry(id).is_some_and(|now| now.home == entry.home) {
                self.quarantine(&entry, "read");
                return Err(StorageError::Corrupt { id: *id, at });
            }
        }
        Err(StorageError::Busy { what: "compaction", retry_after: Duration::from_millis(10) })
    }

    /// The bytes asked for, verified, if they are few and in memory. Never waits; whatever is in the way or not right is
    /// left to [`read`](Self::read).
    pub(crate) fn read_cached(&self, id: &ContentId, bytes: &Range<u64>) -> Option<Bytes> {
        let entry = self.entry(id).filter(|entry| !entry.is_bad)?;
        match entry.home {
            Home::Small(spot) if entry.len <= AT_ONCE_MAX => {
                let len = u32::try_from(entry.len).ok()?;
                let take = |len| self.large.buffers.take(len);
                let found = self.reader.read_cached(spot.position(), len, take)?;
                (found.kind == SMALL && found.name == *id).then(|| of_record(found, bytes))
            }
            Home::Large(file) => self.large.read_cached(file, entry.len, bytes),
            _ => None,
        }
    }

    /// The bytes of an object from where its entry says they are, verified. With `is_fresh`, nothing that was verified before is
    /// relied on. Blocks.
    pub(crate) fn read_at(
        &self,
        entry: &Entry,
        bytes: &Range<u64>,
        proof: Option<&GroupSet>,
        is_fresh: bool,
    ) -> Result<Bytes, StorageError> {
        let corrupt = StorageError::Corrupt { id: entry.id, at: 0 };
        let spot = match entry.home {
            Home::Small(spot) => spot,
            Home::Large(file) => {
                return self.large.read((file, &entry.id, entry.len), bytes, proof, is_fresh);
            }
            Home::Lost => return Err(corrupt),
        };
        let len = u32::try_from(entry.len).map_err(|_| corrupt.clone())?;
        let take = |len| self.large.buffers.take(len);
        let content = match self.reader.read_into(spot.position(), len, take) {
            Ok(found) if found.kind == SMALL && found.name == entry.id => of_record(found, &(0..entry.len)),
            Ok(_) | Err(JournalError::NoRecord { .. } | JournalError::Damaged { .. }) => return Err(corrupt),
            Err(error) => return Err(of_journal(error)),
        };
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let Some(wanted) = proof else { return Ok(content.slice(at(bytes.start)..at(bytes.end))) };
        // Its name is the hash of all of it, and that was checked.
        if Shape::of(entry.len).groups() == 1 {
            return Ok(content);
        }
        let tree = Tree::of(&content);
        let groups = tree.shape.covering(bytes.clone());
        let whole =
            at(tree.shape.group(groups.start).start)..at(tree.shape.group(groups.end.saturating_sub(1)).end);
        let first = groups.start;
        let steps = proof_steps(&entry.id, tree.shape, wanted, groups, &tree.nodes[..]);
        let piece = steps.and_then(|steps| proof_of(tree.shape, first, &steps, &content[whole]));
        piece.map_err(|_| corrupt)
    }

    /// Takes an object that is not what was stored out of service. That survives a restart as soon as the keeper has
    /// written it down.
    pub(crate) fn quarantine(&self, entry: &Entry, found_by: &'static str) {
        let is_new = {
            let mut table = self.table.lock();
            let now = table.get(&entry.id).filter(|now| now.home == entry.home && !now.is_bad);
            if now.is_some() {
                table.change(&entry.id, |entry| entry.is_bad = true);
            }
            now.is_some()
        };
        if is_new {
            tracing::error!(id = %entry.id, found_by, "an object is damaged and no longer served");
            self.metrics.tally(CORRUPT, found_by).add(1);
            self.events.publish(Event::Quarantined { id: entry.id });
            if self.upkeep.try_push(Errand::WriteBad(entry.id)).is_err() {
                self.owes_notes.store(true, Ordering::Release);
            }
        }
    }

    /// Room on the disk for so many bytes, besides what is kept free.
    pub(crate) fn check_room(&self, bytes: u64, settings: &Settings) -> Result<(), StorageError> {
        let spend = |trusted: u64| trusted.checked_sub(bytes);
        if self.trusted_room.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).is_ok() {
            return Ok(());
        }
        // If the disk does not say, it will say when it is full.
        let free = self.disk.free_space().unwrap_or(u64::MAX);
        match free.checked_sub(settings.reserve_bytes.saturating_add(bytes)) {
            Some(left) => {
                let most = TRUST_MAX.min(settings.reserve_bytes / TRUST_PART);
                self.trusted_room.store(left.min(most), Ordering::Release);
                Ok(())
            }
            None => Err(self.counted(StorageError::Full)),
        }
    }

    /// Counts refusals for want of space.
    pub(crate) fn counted(&self, error: StorageError) -> StorageError {
        match error {
            StorageError::Full => self.full.add(1),
            StorageError::Quota { .. } => self.over_quota.add(1),
            _ => {}
        }
        error
    }

    /// Refuses at once what is announced and cannot be kept. If the put says its name and that object is not here, its share of
    /// the quota is reserved.
    pub(crate) fn expect(&self, put: Put, settings: &Settings) -> Result<Option<Reserved<'_>>, StorageError> {
        let Some(len) = put.len else { return Ok(None) };
        if len > settings.object_bytes_max {
            return Err(StorageError::TooLarge { key: "object_bytes_max", limit: settings.object_bytes_max });
        }
        self.check_length(len, settings)?;
        self.check_space(len, settings)?;
        let is_new = put.expect.is_some_and(|id| self.entry(&id).is_none());
        if is_new { self.reserve(None, len, settings).map(Some) } else { Ok(None) }
    }

    /// Refuses at once what the disk has no room for. Nothing is spent: each piece asks again, and others may have been
    /// quicker.
    pub(crate) fn check_space(&self, len: u64, settings: &Settings) -> Result<(), StorageError> {
        let free = self.disk.free_space().unwrap_or(u64::MAX);
        if free < settings.reserve_bytes.saturating_add(len) {
            return Err(self.counted(StorageError::Full));
        }
        Ok(())
    }

    /// Refuses at once an object that is longer than the whole quota. Whether it fits beside the others is known only at its
    /// end, unless it came with its name: it may be here already.
    pub(crate) fn check_length(&self, len: u64, settings: &Settings) -> Result<(), StorageError> {
        settings.check_quota(0, 0, len).map_err(|error| self.counted(error))
    }

    /// Gives back the share of the quota that was reserved for an object of `len` bytes.
    #[cfg(feature = "net")]
    pub(crate) fn unreserve(&self, len: u64) {
        drop(Reserved { objects: self, len });
    }

    /// Keeps a part of the quota for an object. It may be going to replace what is here of it, which is damaged.
    pub(crate) fn reserve(
        &self,
        replaced: Option<&ContentId>,
        len: u64,
        settings: &Settings,
    ) -> Result<Reserved<'_>, StorageError> {
        // Under the lock, so that two who come at once do not both take the last place.
        let table = self.table.lock();
        let totals = table.totals();
        let old = replaced.and_then(|id| table.get(id));
        let (old_bytes, old_objects) = old.map_or((0, 0), |old| (old.len, 1));
        let bytes = totals.bytes.saturating_sub(old_bytes);
        let bytes = bytes.saturating_add(self.reserved_bytes.load(Ordering::Relaxed));
        let objects = totals.objects - old_objects + self.reserved_objects.load(Ordering::Relaxed);
        settings.check_quota(bytes, objects, len).map_err(|error| self.counted(error))?;
        self.reserved_bytes.fetch_add(len, Ordering::Relaxed);
        self.reserved_objects.fetch_add(1, Ordering::Relaxed);
        drop(table);
        Ok(Reserved { objects: self, len })
    }

    /// What an acknowledgement stands for if `durability` was asked for.
    fn granted(&self, durability: Durability) -> Durability {
        if self.is_durable { durability } else { Durability::Buffered }
    }

    /// Whether an object that is here still looks readable: a small one is read, of a large one the files are looked at. Nothing
    /// if the disk did not say.
    async fn is_sound(&self, entry: &Entry, deadline: Deadline) -> Result<Option<bool>, StorageError> {
        let (reader, large, entry) = (self.reader.clone(), Arc::clone(&self.large), *entry);
        let look = move || {
            let found = match entry.home {
                Home::Small(spot) => {
                    let len = u32::try_from(entry.len).unwrap_or(u32::MAX);
                    match reader.read_sized(spot.position(), len) {
                        Ok(record) => Ok(record.kind == SMALL && record.name == entry.id),
                        Err(JournalError::NoRecord { .. } | JournalError::Damaged { .. }) => Ok(false),
                        Err(error) => Err(of_journal(error)),
                    }
                }
                Home::Large(file) => large.check_header(file, &entry.id, entry.len),
                Home::Lost => Ok(false),
            };
            let warn = |error: &StorageError| tracing::warn!(id = %entry.id, %error, "whether it is sound is not known");
            found.inspect_err(warn).ok()
        };
        Ok(self.spawner.blocking("look", deadline, look).await?)
    }

    /// Pins the object and makes it durable, as far as that is asked for, if it is here. From then on it counts as young, like
    /// one that is new.
    async fn put_again(
        &self,
        hold: &mut Hold,
        id: ContentId,
        put: Put,
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<Option<(u64, Durability)>, StorageError> {
        let Some(entry) = self.entry(&id).filter(|entry| !entry.is_bad) else {
            return Ok(None);
        };
        // The caller has the object, or can bring it: the last moment at which damage can still be mended.
        match self.is_sound(&entry, deadline).await? {
            Some(true) => {}
            Some(false) => {
                self.quarantine(&entry, "put");
                return Ok(None);
            }
            // What cannot be read now is no damage, but what is acknowledged must be readable: it is written anew.
            None => {
                self.metrics.tally(UNREADABLE, "put").add(1);
                return Ok(None);
            }
        }
        self.touched.touch(&id, now(), settings.collect_grace);
        if put.pin && !entry.is_pinned {
            self.write(hold, Note::Pinned(id), deadline).await?;
            self.table.lock().change(&id, |entry| entry.is_pinned = true);
        }
        let is_durable = match entry.home {
            Home::Small(spot) => {
                spot.number() <= self.synced.load(Ordering::Acquire) || is_planted(Bug::TrustedIndex)
            }
            // Nobody knows where its record is.
            _ => false,
        };
        if put.durability == Durability::Durable && !is_durable {
            let until = self.acknowledged();
            self.journal.sync(deadline).await.map_err(of_journal)?;
            self.synced.fetch_max(until.number(), Ordering::AcqRel);
        }
        Ok(Some((entry.len, self.granted(put.durability))))
    }

    /// If the object is here, does what [`put_again`](Self::put_again) does.
    pub(crate) async fn put_known(
        &self,
        id: ContentId,
        put: Put,
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<Option<(u64, Durability)>, StorageError> {
        if self.entry(&id).is_none_or(|entry| entry.is_bad) {
            return Ok(None);
        }
        let mut hold = self.hold(id, deadline).await?;
        let known = self.put_again(&mut hold, id, put, settings, deadline).await?;
        if known.is_some() {
            hold.settle();
        }
        Ok(known)
    }

    /// Keeps a small object, for which `quota` bytes are reserved already. Says whether it was here before, and what the
    /// acknowledgement stands for.
    pub(crate) async fn put_small(
        &self,
        id: ContentId,
        content: Bytes,
        (put, quota): (Put, u64),
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<(bool, Durability), StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        if let Some((_, durability)) = self.put_again(&mut hold, id, put, settings, deadline).await? {
            hold.settle();
            return Ok((true, durability));
        }
        let len = content.len() as u64;
        let known = self.entry(&id);
        let _reserved =
            if known.is_none() && quota < len { Some(self.reserve(None, len, settings)?) } else { None };
        self.check_room(len, settings)?;
        let is_pinned = put.pin || known.is_some_and(|known| known.is_pinned);
        // What replaces something must not be less certain than that.
        let durable = put.durability == Durability::Durable || known.is_some();
        let pin = is_pinned.then_some(id);
        let append = Append { record: (SMALL, content), name: Some(&id), pin, durable: durable || is_pinned };
        let spot = self.append(&mut hold, append, None, deadline).await?;
        let old =
            self.table.lock().insert(Entry { id, home: Home::Small(spot), len, is_pinned, is_bad: false });
        hold.settle();
        self.doom(old);
        Ok((false, self.granted(put.durability)))
    }

    /// Keeps a large object whose files are complete, for which `quota` bytes are reserved already. `sync` makes the files
    /// durable. Returns what [`put_small`](Self::put_small) does.
    pub(crate) async fn put_large(
        &self,
        (id, len): (ContentId, u64),
        ingest: Arc<Ingest>,
        (put, quota): (Put, u64),
        settings: &Settings,
        deadline: Deadline,
        sync: impl Future<Output = Result<(), StorageError>>,
    ) -> Result<(bool, Durability), StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        if let Some((_, durability)) = self.put_again(&mut hold, id, put, settings, deadline).await? {
            hold.settle();
            return Ok((true, durability));
        }
        let known = self.entry(&id);
        let _reserved =
            if known.is_none() && quota < len { Some(self.reserve(None, len, settings)?) } else { None };
        sync.await?;
        let is_pinned = put.pin || known.is_some_and(|known| known.is_pinned);
        let durable = put.durability == Durability::Durable || known.is_some() || is_pinned;
        let (file, age) = (ingest.file(), ingest.age());
        let (kind, payload) = Note::Large { id, file, len }.encode();
        // From here on whoever settles the doubt decides what becomes of the files. All who wrote to them have ended.
        let Some(ingest) = Arc::into_inner(ingest) else {
            return Err(StorageError::Timeout { op: "put" });
        };
        hold.begin(self.acknowledged(), Some(file));
        ingest.keep();
        let append =
            Append { record: (kind, payload.into()), name: None, pin: is_pinned.then_some(id), durable };
        self.append(&mut hold, append, Some(file), deadline).await?;
        if age > SLOW {
            // It looks as old as its beginning, by the number that it got then.
            self.touched.touch(&id, now(), settings.collect_grace);
        }
        let old =
            self.table.lock().insert(Entry { id, home: Home::Large(file), len, is_pinned, is_bad: false });
        hold.settle();
        self.doom(old);
        Ok((false, self.granted(put.durability)))
    }

    /// Deletes an object durably, and says whether it was here.
    pub(crate) async fn delete(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        let known = self.entry(&id);
        if known.is_some_and(|known| known.is_pinned) {
            return Err(StorageError::Pinned { id });
        }
        if known.is_none() {
            hold.settle();
            return Ok(false);
        }
        self.write(&mut hold, Note::Deleted(id), deadline).await?;
        let old = self.table.lock().remove(&id);
        hold.settle();
        self.doom(old);
        Ok(old.is_some())
    }

    /// Pins an object or takes its pin back, durably, and says whether that changed something.
    pub(crate) async fn set_pinned(
        &self,
        id: ContentId,
        is_pinned: bool,
        deadline: Deadline,
    ) -> Result<bool, StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        let known = self.entry(&id).ok_or(StorageError::NotFound { id })?;
        let changes = known.is_pinned != is_pinned;
        if changes {
            let note = if is_pinned { Note::Pinned(id) } else { Note::Unpinned(id) };
            self.write(&mut hold, note, deadline).await?;
            self.table.lock().change(&id, |entry| entry.is_pinned = is_pinned);
        }
        hold.settle();
        Ok(changes)
    }

    /// Writes down that an object is damaged, if it still is, and with it whether it is pinned: what said so may go with the
    /// part of the journal that was damaged.
    pub(crate) async fn write_bad(&self, id: ContentId, deadline: Deadline) -> Result<(), StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        if let Some(entry) = self.entry(&id).filter(|entry| entry.is_bad) {
            let (kind, payload) = Note::Bad { id, len: entry.len }.encode();
            let pin = entry.is_pinned.then_some(id);
            let append = Append { record: (kind, payload.into()), name: None, pin, durable: true };
            self.append(&mut hold, append, None, deadline).await?;
            hold.settle();
        }
        Ok(())
    }

    /// Writes down once more that an object is in a file, if it still is, with all its flags.
    pub(crate) async fn write_large_again(
        &self,
        id: ContentId,
        deadline: Deadline,
    ) -> Result<(), StorageError> {
        let mut hold = self.hold(id, deadline).await?;
        let Some(entry) = self.entry(&id) else { return Ok(()) };
        let Home::Large(file) = entry.home else { return Ok(()) };
        let mut notes = vec![Note::Large { id, file, len: entry.len }];
        notes.extend(entry.is_pinned.then_some(Note::Pinned(id)));
        notes.extend(entry.is_bad.then_some(Note::Bad { id, len: entry.len }));
        let notes = notes.iter().map(Note::encode).map(|(kind, payload)| (kind, payload.into())).collect();
        hold.begin(self.acknowledged(), None);
        let positions = self.journal.append_all(notes, deadline).await.map_err(of_journal)?;
        if let Some(last) = positions.last() {
            self.note(*last, true)?;
        }
        hold.settle();
        Ok(())
    }

    async fn write(&self, hold: &mut Hold, note: Note, deadline: Deadline) -> Result<(), StorageError> {
        let (kind, payload) = note.encode();
        let append = Append { record: (kind, payload.into()), name: None, pin: None, durable: true };
        self.append(hold, append, None, deadline).await.map(drop)
    }

    /// Appends a record about the object that is held, and the pin that follows it. If it is refused, nothing is in doubt;
    /// if nobody knows, that is noted with the hold, and `file` with it.
    async fn append(
        &self,
        hold: &mut Hold,
        append: Append<'_>,
        file: Option<u64>,
        deadline: Deadline,
    ) -> Result<Spot, StorageError> {
        let Append { record: (kind, payload), name, pin, durable } = append;
        hold.begin(self.acknowledged(), file);
        let appended = if let Some(pinned) = pin {
            let (pin, id) = Note::Pinned(pinned).encode();
            let both = vec![(kind, payload), (pin, id.into())];
            self.journal.append_all(both, deadline).await.map(|at| at[0])
        } else if let Some(name) = name {
            self.journal.append_named(kind, payload, name, durable, deadline).await
        } else if durable {
            self.journal.append(kind, payload, deadline).await
        } else {
            self.journal.append_buffered(kind, payload, deadline).await
        };
        match appended {
            Ok(position) => self.note(position, durable),
            Err(error) => {
                let is_refused = matches!(
                    error,
                    JournalError::NoSpace
                        | JournalError::Busy { .. }
                        | JournalError::Canceled
                        | JournalError::TooLarge { .. }
                        | JournalError::Poisoned
                );
                if is_refused {
                    hold.clear();
                    if let Some(file) = file {
                        self.large.doom(file);
                    }
                }
                Err(self.counted(of_journal(error)))
            }
        }
    }

    /// The right to write about an object, once the table says of it what the journal says.
    pub(crate) async fn hold(&self, id: ContentId, deadline: Deadline) -> Result<Hold, StorageError> {
        let mut hold = deadline.limit("hold", self.holds.take(id)).await?;
        if let Some(doubt) = hold.doubt() {
            self.settle(&BTreeMap::from([(id, doubt)]), deadline).await?;
            hold.clear();
        }
        Ok(hold)
    }

    /// Finds out about each of these names whether a write that was cancelled took place.
    pub(crate) async fn settle_all(
        &self,
        ids: Vec<ContentId>,
        deadline: Deadline,
    ) -> Result<(), StorageError> {
        let (mut held, mut doubts) = (Vec::new(), BTreeMap::new());
        for id in ids {
            let hold = deadline.limit("hold", self.holds.take(id)).await?;
            doubts.extend(hold.doubt().map(|doubt| (id, doubt)));
            held.push(hold);
        }
        if !doubts.is_empty() {
            self.settle(&doubts, deadline).await?;
        }
        held.into_iter().for_each(Hold::settle);
        Ok(())
    }

    /// Reads what the journal says about objects whose writes were cancelled: once for all of them, however many they are, and
    /// only up to where the journal ended when this began.
    async fn settle(
        &self,
        doubts: &BTreeMap<ContentId, Doubt>,
        deadline: Deadline,
    ) -> Result<(), StorageError> {
        let Some(since) = doubts.values().map(|doubt| doubt.since).min() else { return Ok(()) };
        // After this, what waited for the writer is written or withdrawn. What is written later is by others.
        self.journal.sync(deadline).await.map_err(of_journal)?;
        let end = self.reader.segments().last().map(|last| (last.sequence, last.bytes));
        let (reader, sought) = (self.reader.clone(), doubts.clone());
        let said = move || {
            let mut said = Vec::new();
            for item in reader.scan(since.position()) {
                let Item::Record(record) = item? else { continue };
                if end.is_some_and(|end| (record.position.segment, record.position.offset) >= end) {
                    break;
                }
                let note = Note::decode(record.kind, &record.payload).filter(|_| record.kind != SMALL);
                let name =
                    if record.kind == SMALL { Some(record.name) } else { note.and_then(|note| note.id()) };
                let is_behind = |doubt: &Doubt| Spot::of(record.position) >= Some(doubt.since);
                if let Some(id) = name.filter(|name| sought.get(name).is_some_and(is_behind)) {
                    said.push((id, record.position, note, record.payload.len() as u64));
                }
            }
            Ok::<_, JournalError>(said)
        };
        let said = self.spawner.blocking("settle", deadline, said).await?.map_err(of_journal)?;
        let mut table = self.table.lock();
        let before: Vec<_> = doubts.keys().map(|id| table.get(id)).collect();
        for (id, position, note, len) in said {
            match (note, Spot::of(position)) {
                (Some(note), _) => table.replay(&note),
                (None, Some(spot)) => table.replay_small(id, len, spot),
                (None, None) => {}
            }
        }
        let now: Vec<_> = doubts.keys().map(|id| table.get(id).map(|entry| entry.home)).collect();
        drop(table);
        for ((doubt, before), now) in doubts.values().zip(before).zip(now) {
            let files = [before.map(|entry| entry.home), doubt.file.map(Home::Large)];
            for home in files.into_iter().flatten() {
                if let Home::Large(file) = home {
                    if now != Some(home) {
                        self.large.doom(file);
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the file of an object that is no longer there removed.
    pub(crate) fn doom(&self, old: Option<Entry>) {
        if let Some(Home::Large(file)) = old.map(|old| old.home) {
            self.large.doom(file);
            let _ = self.upkeep.try_push(Errand::Sweep);
        }
    }
}

/// A part of the payload of a record.
fn of_record(found: ReadInto<Buffer>, bytes: &Range<u64>) -> Bytes {
    let payload = found.buffer.freeze().slice(found.payload);
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(payload.len());
    payload.slice(at(bytes.start)..at(bytes.end))
}

fn stat(entry: &Entry) -> Stat {
    Stat { id: entry.id, len: entry.len, is_pinned: entry.is_pinned, is_quarantined: entry.is_bad }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A part of the quota for an object that is not in the table yet.
pub(crate) struct Reserved<'a> {
    objects: &'a Objects,
    len: u64,
}

impl Reserved<'_> {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Keeps it until [`Objects::unreserve`].
    #[cfg(feature = "net")]
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.objects.reserved_bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.objects.reserved_objects.fetch_sub(1, Ordering::Relaxed);
    }
}
