//! Keeping a store in order: compaction, collection, scrubbing, the index, and doubts.
//!
//! Everything here is cut into steps of a mebibyte or a few hundred objects, so that a request that comes meanwhile waits for
//! one step at most. One task runs all of it, so there is only one that holds many names at once.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Histogram, Pacer, Stop, Tally,
    journal::{Damage, Item, JournalError, Position, Record, Scan, record_bytes},
    now,
};
use tokio::time::Instant;

use crate::{
    Event, StorageError,
    actor::Errand,
    error::{of_disk, of_journal},
    handle::{Collected, Gc, Scrubbed},
    holds::Hold,
    index,
    logic::{
        records::{Note, SMALL},
        table::{ENTRY_BYTES, Entry, Home, Spot, Table},
    },
    metrics::UNREADABLE,
    objects::Objects,
    planted::{Bug, is_planted},
    settings::Settings,
};

/// What one step of compaction copies.
const STEP_BYTES: usize = 1 << 20;
const STEP_RECORDS: usize = 256;

/// Objects that one step of a collection looks at.
const STEP_OBJECTS: usize = 256;

/// What one step of a scrub reads.
const SCRUB_BYTES: u64 = 1 << 20;

/// Damaged objects that a scrub names.
const NAMED_MAX: usize = 1000;

/// What one write to the journal may take, in the background.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Names that are settled with one look at the journal. All streams can leave one each, and others wait for these names
/// meanwhile.
const DOUBTS_MAX: usize = 4096;

/// What that may take: as much as was written since the oldest of them is read.
const SETTLING: Duration = Duration::from_secs(600);

/// How much the journal grows before the index is written again: less than a second of reading when opening. Of many millions
/// of objects the index itself is longer than that, and then so many times its length: else most of what is written would be
/// the index.
const CHECKPOINT_BYTES: u64 = 256 << 20;
const CHECKPOINT_SHARE: u64 = 4;

/// Watermarks kept for the grace of collections.
const MARKS: u32 = 64;

/// The one who keeps the store in order, and what it remembers from one step to the next.
pub(crate) struct Upkeep {
    objects: Arc<Objects>,
    pacer: Arc<Pacer>,
    pause: Histogram,
    collected: Tally,
    compacted: Tally,
    stop: Stop,
    /// Where journal and files were at some moments of the past, oldest first.
    marks: Vec<Mark>,
    checkpointed: u64,
    /// From where on the journal is read on top of the index that is on disk, if this one wrote it.
    floor: Option<Spot>,
    /// Whether a part of the segment that is being compacted cannot be read.
    has_damage: bool,
    /// Segments that may be compacted before others have their turn again.
    passes: usize,
}

/// What was put before a moment is before this.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    spot: Spot,
    file: u64,
}

impl Upkeep {
    pub(crate) fn new(
        objects: Arc<Objects>,
        pacer: Arc<Pacer>,
        pause: Histogram,
        collected: Tally,
        compacted: Tally,
        stop: Stop,
    ) -> Self {
        // Not all that is there: what was replayed now would be replayed again after the next crash, and more each time.
        let checkpointed = objects.indexed;
        Upkeep {
            objects,
            pacer,
            pause,
            collected,
            compacted,
            stop,
            marks: Vec::new(),
            checkpointed,
            floor: None,
            has_damage: false,
            passes: 0,
        }
    }

    /// What is due now and then: the index, files that nobody needs, doubts, watermarks, and a segment to compact. Says
    /// whether there is another one, so that this `goes_on` as soon as errands are done.
    pub(crate) async fn tick(&mut self, settings: &Settings, goes_on: bool) -> bool {
        self.mark(settings);
        #[cfg(feature = "net")]
        self.sweep_partials(settings).await;
        self.sweep().await;
        self.settle_doubts().await;
        self.write_owed_notes().await;
        #[cfg(feature = "net")]
        if let Err(error) = self.objects.book.compact(soon()).await {
            tracing::warn!(%error, "the claims could not be written anew");
        }
        let index_bytes = self.objects.table.lock().totals().objects * ENTRY_BYTES as u64;
        let enough = CHECKPOINT_BYTES.max(CHECKPOINT_SHARE * index_bytes);
        if self.objects.is_durable && self.objects.written().saturating_sub(self.checkpointed) >= enough {
            if let Err(error) = self.checkpoint().await {
                tracing::warn!(%error, "the index could not be written");
            }
        }
        if !goes_on {
            self.passes = self.objects.reader.segments().len();
        }
        if self.passes == 0 {
            return false;
        }
        self.passes -= 1;
        match self.compact(settings, 1).await {
            Ok(_) => self.passes > 0 && self.is_due(settings),
            Err(StorageError::Canceled) => false,
            Err(error) => {
                tracing::warn!(%error, "the journal could not be compacted");
                false
            }
        }
    }

    fn mark(&mut self, settings: &Settings) {
        let (now, every) = (now(), settings.collect_grace / MARKS);
        if self.marks.last().is_some_and(|last| now.saturating_duration_since(last.at) < every) {
            return;
        }
        let (spot, file) = (self.objects.acknowledged(), self.objects.large.next_file());
        self.marks.push(Mark { at: now, spot, file });
        // One that is older than the grace is enough.
        while self
            .marks
            .get(1)
            .is_some_and(|mark| now.saturating_duration_since(mark.at) >= settings.collect_grace)
        {
            self.marks.remove(0);
        }
    }

    /// What was there the grace ago; nothing if nobody was looking then.
    fn old_enough(&self, settings: &Settings) -> Option<Mark> {
        if settings.collect_grace.is_zero() {
            return Some(Mark { at: now(), spot: Spot::from_number(u64::MAX), file: u64::MAX });
        }
        let is_old = |mark: &&Mark| now().saturating_duration_since(mark.at) >= settings.collect_grace;
        self.marks.iter().rev().find(is_old).copied()
    }

    /// Removes files that nobody needs.
    pub(crate) async fn sweep(&self) {
        if self.objects.large.has_doomed() {
            let large = Arc::clone(&self.objects.large);
            let _ = self.objects.spawner.blocking("sweep", soon(), move || large.sweep()).await;
        }
    }

    /// Drops what was fetched of objects that nobody came back for.
    #[cfg(feature = "net")]
    async fn sweep_partials(&self, settings: &Settings) {
        let (objects, keep) = (Arc::clone(&self.objects), settings.partial_keep);
        let is_here = |objects: &Objects, id: &_| objects.entry(id).is_some_and(|entry| !entry.is_bad);
        if objects.partials.has_left(keep, |id| is_here(&objects, id)) {
            let sweep = move || objects.partials.sweep(keep, |id| is_here(&objects, id));
            let swept = self.objects.spawner.blocking("sweep", soon(), sweep).await;
            swept.into_iter().flatten().for_each(|len| self.objects.unreserve(len));
        }
    }

    /// Notes which parts of objects are here, so that the next start need not look at all files. Says whether that succeeded.
    #[cfg(feature = "net")]
    pub(crate) async fn settle_partials(&self, settings: &Settings) -> bool {
        self.sweep_partials(settings).await;
        let partials = Arc::clone(&self.objects.partials);
        let settled = self.objects.spawner.blocking("settle", soon(), move || partials.settle()).await;
        matches!(settled, Ok(Ok(())))
    }

    /// Finds out whether writes that were cancelled took place.
    pub(crate) async fn settle_doubts(&self) {
        let mut doubtful = self.objects.holds.doubtful();
        doubtful.truncate(DOUBTS_MAX);
        let count = doubtful.len();
        if count == 0 {
            return;
        }
        if let Err(error) = self.objects.settle_all(doubtful, Deadline::after(SETTLING)).await {
            tracing::debug!(count, %error, "doubts remain");
        }
    }

    /// Writes down the damage whose notes did not fit the queue, or could not be written.
    async fn write_owed_notes(&self) {
        let objects = &self.objects;
        if !objects.owes_notes.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut after: Option<ContentId> = None;
        loop {
            let (page, more) = objects.table.lock().page(after.as_ref(), STEP_OBJECTS);
            after = page.last().map(|last| last.id);
            for entry in page.iter().filter(|entry| entry.is_bad) {
                if let Err(error) = objects.write_bad(entry.id, soon()).await {
                    tracing::warn!(id = %entry.id, %error, "damage could not be written down");
                    objects.owes_notes.store(true, Ordering::Release);
                    return;
                }
            }
            if !more {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Writes the index.
    pub(crate) async fn checkpoint(&mut self) -> Result<(), StorageError> {
        let objects = &self.objects;
        let mut nonce = [0; 16];
        fastrand::fill(&mut nonce);
        let (kind, payload) = Note::Checkpoint(nonce).encode();
        let anchor = objects.journal.append(kind, payload.into(), soon()).await;
        let anchor = objects.note(anchor.map_err(of_journal)?, true)?;
        // A writer whose record the table does not know yet has held its name since before the anchor. One that begins later
        // writes behind the anchor.
        let floor = objects.holds.floor().map_or(anchor, |floor| floor.min(anchor));
        if is_planted(Bug::SlowIndex) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let next_file = objects.large.next_file();
        let header = index::Header { store: objects.store, nonce, anchor, floor, next_file };
        let written = {
            let objects = Arc::clone(objects);
            move || index::write(&*objects.disk, &objects.dir, &header, &objects.table)
        };
        objects.spawner.blocking("index", soon(), written).await?.map_err(of_disk)?;
        // The table knows what was written meanwhile, some of it perhaps not synced; the index must not know more than
        // the disk.
        if !is_planted(Bug::IndexBeforeData) {
            objects.journal.sync(soon()).await.map_err(of_journal)?;
        }
        let publish = {
            let objects = Arc::clone(objects);
            move || index::publish(&*objects.disk, &objects.dir)
        };
        objects.spawner.blocking("index", soon(), publish).await?.map_err(of_disk)?;
        (self.checkpointed, self.floor) = (objects.written(), Some(floor));
        Ok(())
    }

    /// Copies what is alive out of the oldest segments and removes them, until little enough of the journal is garbage or
    /// `most` are done. Says how many bytes that gave back.
    pub(crate) async fn compact(&mut self, settings: &Settings, most: usize) -> Result<u64, StorageError> {
        let mut freed = 0;
        let mut passes = self.objects.reader.segments().len().min(most);
        while passes > 0 && self.is_due(settings) {
            passes -= 1;
            let before = self.objects.written();
            self.compact_first().await?;
            let now = self.objects.written();
            freed += before.saturating_sub(now);
            self.checkpointed = self.checkpointed.min(now);
            self.sweep().await;
        }
        if freed > 0 {
            self.compacted.add(freed);
            self.objects.events.publish(Event::Compacted { bytes: freed });
        }
        Ok(freed)
    }

    /// Compacts everything up to a segment of which a part cannot be read, however little of it is garbage: what the table
    /// knows is written again, and what it does not know no longer comes back when the journal is all there is.
    pub(crate) async fn mend(&mut self, sequence: u64) -> Result<(), StorageError> {
        let is_there = |upkeep: &Self| {
            let segments = upkeep.objects.reader.segments();
            segments.len() > 1 && segments.first().is_some_and(|first| first.sequence <= sequence)
        };
        while is_there(self) {
            self.compact_first().await?;
            self.sweep().await;
        }
        Ok(())
    }

    /// Writes down again which objects are in files. What said so of some of them may have been in a part of the journal that
    /// cannot be read, and nobody knows of which.
    async fn write_large_again(&self) -> Result<(), StorageError> {
        let objects = &self.objects;
        let mut after: Option<ContentId> = None;
        loop {
            let (page, more) = objects.table.lock().page(after.as_ref(), STEP_OBJECTS);
            after = page.last().map(|last| last.id);
            for entry in page.iter().filter(|entry| matches!(entry.home, Home::Large(_))) {
                objects.write_large_again(entry.id, soon()).await?;
            }
            if !more {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Writes the index if it would be of no use without this segment: the whole journal would have to be read then.
    async fn checkpoint_before(&mut self, sequence: u64) {
        let needs_it = self.floor.is_none_or(|floor| floor.position().segment <= sequence);
        if needs_it && self.objects.is_durable {
            if let Err(error) = self.checkpoint().await {
                tracing::warn!(%error, "the index could not be written");
            }
        }
    }

    /// Whether enough is garbage, and in segments that can be removed.
    fn is_due(&self, settings: &Settings) -> bool {
        let segments = self.objects.reader.segments();
        let sealed: u64 = segments.iter().rev().skip(1).map(|segment| u64::from(segment.bytes)).sum();
        let written = sealed + segments.last().map_or(0, |segment| u64::from(segment.bytes));
        let alive = self.objects.table.lock().totals().journal_bytes;
        let garbage = written.saturating_sub(alive);
        // A whole segment of it, or nothing could come back.
        garbage as f64 > settings.garbage_max * written as f64
            && garbage > u64::from(settings.segment_bytes)
            && sealed > 0
    }

    async fn compact_first(&mut self) -> Result<(), StorageError> {
        let segments = self.objects.reader.segments();
        let [first, _, ..] = &segments[..] else { return Ok(()) };
        let sequence = first.sequence;
        self.checkpoint_before(sequence).await;
        self.has_damage = false;
        let from = Position { segment: sequence, offset: 0 };
        let mut scan = self.objects.reader.scan(from);
        loop {
            let (after, step) =
                self.objects.spawner.blocking("compact", soon(), move || gather(scan, sequence)).await?;
            scan = after;
            let step = step.map_err(of_journal)?;
            if step.items.is_empty() && step.is_last {
                break;
            }
            self.wait_for(step.bytes as u64).await?;
            let began = now();
            self.move_on(step.items, sequence).await?;
            self.pause.observe(now().saturating_duration_since(began).as_secs_f64());
            if step.is_last {
                break;
            }
        }
        if self.has_damage {
            self.write_large_again().await?;
        }
        self.objects.journal.remove_before(sequence + 1, soon()).await.map_err(of_journal)?;
        Ok(())
    }

    /// Waits until so many bytes are within the rate, and ends what is under way at the stop.
    async fn wait_for(&self, bytes: u64) -> Result<(), StorageError> {
        tokio::select! {
            biased;
            () = self.stop.requested() => Err(StorageError::Canceled),
            taken = self.pacer.take(bytes, Deadline::after(Deadline::LONGEST)) => Ok(taken?),
        }
    }

    /// Writes again, at the end of the journal, what is alive among some records.
    async fn move_on(&mut self, items: Vec<Item>, sequence: u64) -> Result<(), StorageError> {
        let objects = &Arc::clone(&self.objects);
        let (mut moved, mut names) = (Vec::new(), HashSet::new());
        let mut appends: Vec<(u8, Bytes)> = Vec::new();
        for item in items {
            let record = match item {
                Item::Record(record) => record,
                Item::Damaged(damage) => {
                    self.has_damage = true;
                    self.give_up(damage, sequence).await?;
                    continue;
                }
            };
            let Some((id, is_alive)) = self.look_at(&record) else {
                // Of a kind that a later version knows.
                appends.push((record.kind, record.payload));
                continue;
            };
            // The journal may say the same twice, and what is said of an object is written from the table.
            if !is_alive || !names.insert(id) {
                continue;
            }
            let hold = objects.hold(id, soon()).await?;
            // It may have changed while somebody else held it.
            let Some((_, true)) = self.look_at(&record) else {
                hold.settle();
                continue;
            };
            let Some(entry) = objects.entry(&id) else { continue };
            moved.push((hold, entry, appends.len()));
            appends.push((record.kind, record.payload));
            if entry.is_pinned {
                let (kind, payload) = Note::Pinned(id).encode();
                appends.push((kind, payload.into()));
            }
            if entry.is_bad && matches!(entry.home, Home::Large(_)) {
                let (kind, payload) = Note::Bad { id, len: entry.len }.encode();
                appends.push((kind, payload.into()));
            }
        }
        if appends.is_empty() {
            return Ok(());
        }
        let acknowledged = objects.acknowledged();
        moved.iter_mut().for_each(|(hold, ..): &mut (Hold, Entry, usize)| hold.begin(acknowledged, None));
        let positions = self.append(appends).await?;
        if let Some(last) = positions.last() {
            objects.note(*last, true)?;
        }
        for (hold, entry, at) in moved {
            if let (Home::Small(_), Some(spot)) = (entry.home, Spot::of(positions[at])) {
                let home = Home::Small(spot);
                objects.table.lock().change(&entry.id, |entry| (entry.home, entry.is_bad) = (home, false));
            }
            hold.settle();
        }
        Ok(())
    }

    async fn append(&self, appends: Vec<(u8, Bytes)>) -> Result<Vec<Position>, StorageError> {
        let journal = &self.objects.journal;
        if is_planted(Bug::RemoveBeforeCopy) {
            let mut positions = Vec::new();
            for (kind, payload) in appends {
                positions.push(journal.append_buffered(kind, payload, soon()).await.map_err(of_journal)?);
            }
            return Ok(positions);
        }
        journal.append_all(appends, soon()).await.map_err(of_journal)
    }

    /// Which object a record is about, and whether the store would miss it. Nothing for a record of an unknown kind.
    fn look_at(&self, record: &Record) -> Option<(ContentId, bool)> {
        let is_home =
            |id: &ContentId, home: Home| self.objects.entry(id).is_some_and(|entry| entry.home == home);
        if record.kind == SMALL {
            let spot = Spot::of(record.position)?;
            return Some((record.name, is_home(&record.name, Home::Small(spot))));
        }
        match Note::decode(record.kind, &record.payload)? {
            Note::Large { id, file, .. } => Some((id, is_home(&id, Home::Large(file)))),
            Note::Bad { id, .. } => Some((id, is_home(&id, Home::Lost))),
            note => Some((note.id().unwrap_or(ContentId::from_bytes([0; 32])), false)),
        }
    }

    /// Takes note of objects whose bytes are in a damaged part of a segment that is about to be removed.
    async fn give_up(&self, damage: Damage, sequence: u64) -> Result<(), StorageError> {
        let end = Position { segment: sequence + 1, offset: 0 };
        let (Some(from), Some(to)) = (Spot::of(damage.from), Spot::of(damage.to.min(end))) else {
            return Ok(());
        };
        for part in 0..Table::PARTS {
            let lost = self.objects.table.lock().in_stretch(part, from, to);
            for entry in lost {
                self.objects.quarantine(&entry, "compaction");
                self.objects.write_bad(entry.id, soon()).await?;
                self.objects.table.lock().change(&entry.id, |now| {
                    if now.home == entry.home {
                        now.home = Home::Lost;
                    }
                });
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Deletes what is neither pinned nor young nor kept.
    pub(crate) async fn collect(&mut self, gc: &Gc, settings: &Settings) -> Result<Collected, StorageError> {
        self.mark(settings);
        let mark = self.old_enough(settings);
        let is_old = |entry: &Entry| match (entry.home, mark) {
            (_, None) => false,
            (Home::Small(spot), Some(mark)) => spot <= mark.spot,
            (Home::Large(file), Some(mark)) => file < mark.file,
            (Home::Lost, Some(_)) => true,
        };
        let grace = settings.collect_grace;
        let is_young = |id: &ContentId| !grace.is_zero() && self.objects.touched.is_young(id, now(), grace);
        let goes =
            |entry: &Entry| !entry.is_pinned && is_old(entry) && !is_young(&entry.id) && !gc.keeps(&entry.id);
        #[cfg(feature = "net")]
        let goes = |entry: &Entry| goes(entry) && !self.objects.book.wants(&entry.id);
        let (mut collected, mut after): (Collected, Option<ContentId>) = (Collected::default(), None);
        loop {
            let (page, more) = self.objects.table.lock().page(after.as_ref(), STEP_OBJECTS);
            after = page.last().map(|last| last.id);
            let began = now();
            let (going, staying): (Vec<Entry>, Vec<Entry>) = page.into_iter().partition(goes);
            collected.kept += staying.len() as u64;
            if gc.is_dry_run() {
                collected.objects += going.len() as u64;
                collected.bytes += going.iter().map(|entry| entry.len).sum::<u64>();
            } else {
                self.delete_all(going, &goes, &mut collected).await?;
            }
            self.pause.observe(now().saturating_duration_since(began).as_secs_f64());
            if !more {
                return Ok(collected);
            }
            if self.stop.is_requested() {
                return Err(StorageError::Canceled);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn delete_all(
        &self,
        going: Vec<Entry>,
        goes: &(impl Fn(&Entry) -> bool + Sync),
        collected: &mut Collected,
    ) -> Result<(), StorageError> {
        let objects = &self.objects;
        let (mut held, mut appends) = (Vec::new(), Vec::new());
        for entry in going {
            let hold = objects.hold(entry.id, soon()).await?;
            // It may have been pinned, or deleted and put again, since it was looked at.
            if !objects.entry(&entry.id).is_some_and(|now| goes(&now)) {
                hold.settle();
                collected.kept += 1;
                continue;
            }
            let (kind, payload) = Note::Deleted(entry.id).encode();
            appends.push((kind, Bytes::from(payload)));
            held.push((hold, entry));
        }
        if appends.is_empty() {
            return Ok(());
        }
        let acknowledged = objects.acknowledged();
        held.iter_mut().for_each(|(hold, _): &mut (Hold, Entry)| hold.begin(acknowledged, None));
        let positions = objects.journal.append_all(appends, soon()).await;
        let positions = positions.map_err(of_journal)?;
        if let Some(last) = positions.last() {
            objects.note(*last, true)?;
        }
        for (hold, entry) in held {
            let old = objects.table.lock().remove(&entry.id);
            hold.settle();
            objects.doom(old);
            objects.events.publish(Event::Deleted { id: entry.id });
            collected.objects += 1;
            collected.bytes += entry.len;
            self.collected.add(1);
        }
        self.sweep().await;
        Ok(())
    }
}

fn soon() -> Deadline {
    Deadline::after(WRITE_TIMEOUT)
}

/// Some records of one segment.
struct Step {
    items: Vec<Item>,
    bytes: usize,
    is_last: bool,
}

/// The next records of a scan, as far as they are in this segment and fit a step. Blocks.
fn gather(mut scan: Scan, sequence: u64) -> (Scan, Result<Step, JournalError>) {
    let mut step = Step { items: Vec::new(), bytes: 0, is_last: false };
    while step.bytes < STEP_BYTES && step.items.len() < STEP_RECORDS {
        let item = match scan.next() {
            Some(Ok(item)) => item,
            Some(Err(error)) => return (scan, Err(error)),
            None => {
                step.is_last = true;
                break;
            }
        };
        let (at, bytes) = match &item {
            Item::Record(record) => (record.position, record_bytes(record.payload.len())),
            Item::Damaged(damage) => (damage.from, 0),
        };
        if at.segment != sequence {
            step.is_last = true;
            break;
        }
        step.bytes += bytes;
        step.items.push(item);
    }
    (scan, Ok(step))
}

/// Reads everything and quarantines what is not what was stored.
pub(crate) async fn scrub(objects: &Arc<Objects>, pacer: &Pacer) -> Result<Scrubbed, StorageError> {
    let (mut scrubbed, mut after): (Scrubbed, Option<ContentId>) = (Scrubbed::default(), None);
    loop {
        let (page, more) = objects.table.lock().page(after.as_ref(), STEP_OBJECTS);
        after = page.last().map(|last| last.id);
        for entry in page {
            scrubbed.objects += 1;
            let mut found = scrub_one(objects, pacer, &entry, &mut scrubbed.bytes).await;
            if matches!(found, Err(StorageError::Disk { .. })) {
                found = scrub_one(objects, pacer, &entry, &mut scrubbed.bytes).await;
            }
            let list = match found {
                Ok(true) => continue,
                Ok(false) => &mut scrubbed.damaged,
                // Sectors go bad one by one, and the others are to be looked at too.
                Err(StorageError::Disk { message }) => {
                    tracing::error!(id = %entry.id, message, "an object cannot be read");
                    objects.metrics.tally(UNREADABLE, "scrub").add(1);
                    &mut scrubbed.unreadable
                }
                Err(error) => return Err(error),
            };
            if list.len() < NAMED_MAX {
                list.push(entry.id);
            }
        }
        if !more {
            scrub_journal(objects, pacer, &mut scrubbed).await?;
            let damaged = scrubbed.damaged.len() + scrubbed.unreadable.len();
            objects.events.publish(Event::Scrubbed { objects: scrubbed.objects, damaged });
            return Ok(scrubbed);
        }
    }
}

/// Reads the journal too, for what it says besides the objects: pins, deletions, which files there are. The table knows all of
/// that, so where it cannot be read it is written again.
async fn scrub_journal(
    objects: &Arc<Objects>,
    pacer: &Pacer,
    scrubbed: &mut Scrubbed,
) -> Result<(), StorageError> {
    let segments = objects.reader.segments();
    // The last one is being written, and read whenever the store is opened.
    let Some((_, sealed)) = segments.split_last() else { return Ok(()) };
    let mut worst = None;
    for segment in sealed {
        let sequence = segment.sequence;
        let mut scan = objects.reader.scan(Position { segment: sequence, offset: 0 });
        loop {
            let (after, step) =
                objects.spawner.blocking("scrub", soon(), move || gather(scan, sequence)).await?;
            scan = after;
            let step = step.map_err(of_journal)?;
            let damages = step.items.iter().filter(|item| matches!(item, Item::Damaged(_))).count();
            if damages > 0 {
                scrubbed.journal_damage += damages as u64;
                worst = Some(sequence);
            }
            pacer.take(step.bytes as u64, Deadline::after(Deadline::LONGEST)).await?;
            if step.is_last {
                break;
            }
        }
    }
    if let Some(sequence) = worst {
        tracing::error!(sequence, "a part of the journal cannot be read; what it said is written again");
        // If too many wait, the next scrub finds it again.
        let _ = objects.upkeep.try_push(Errand::Mend(sequence));
    }
    Ok(())
}

/// Whether an object is whole. Damage is quarantined.
async fn scrub_one(
    objects: &Arc<Objects>,
    pacer: &Pacer,
    entry: &Entry,
    bytes: &mut u64,
) -> Result<bool, StorageError> {
    if entry.is_bad {
        return Ok(false);
    }
    let mut at = 0;
    loop {
        let end = match entry.home {
            Home::Large(_) => entry.len.min(at + SCRUB_BYTES),
            _ => entry.len,
        };
        pacer.take(end - at, Deadline::after(Deadline::LONGEST)).await?;
        let check = {
            let (objects, entry) = (Arc::clone(objects), *entry);
            move || -> Result<(), StorageError> {
                if let Home::Large(file) = entry.home {
                    if at == 0 && !objects.large.check_header(file, &entry.id, entry.len)? {
                        return Err(StorageError::Corrupt { id: entry.id, at: 0 });
                    }
                }
                objects.read_at(&entry, &(at..end), None, true).map(drop)
            }
        };
        match objects.spawner.blocking("scrub", soon(), check).await? {
            Ok(()) => {}
            Err(StorageError::Corrupt { .. }) => {
                // Moved or deleted while it was read, or really damaged.
                let is_here = objects.entry(&entry.id).is_some_and(|now| now.home == entry.home);
                if is_here {
                    objects.quarantine(entry, "scrub");
                }
                return Ok(!is_here);
            }
            Err(error) => return Err(error),
        }
        *bytes += end - at;
        at = end;
        if at >= entry.len {
            return Ok(true);
        }
    }
}
