//! A log on the family's journal: one block is one record, so that it is there whole or not at all, and one sync.
//!
//! What is kept in memory is where each block begins. It is rebuilt by reading the journal through when it is opened, or
//! from the memo that a clean stop left beside it, and what came since.
//! The journal is locked by its owner, so nobody else appends; the only doubt is about an append whose caller did not
//! wait, and that is settled by reading on from the last block that is known.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, Lock, LockSpec, Supervisor,
    disk::{Access, Disk, DiskError, replace, sweep_temporary},
    journal::{Item, Journal, JournalError, OnDamage, Opening, Position, Reader, Salts, Settings},
};

use super::{
    Appended, BLOCK_BYTES_MAX, Block, BoxFuture, LogStore, StoreError, StoredMemo, StoredPart,
    StoredSnapshot, Tail, check_block,
    memo_file::{Known, read_memo, write_memo},
};
use crate::logic::{
    entry::VERSION_MAX,
    tiles::{append_bundle, bundle_bytes, read_bundle},
};

pub(crate) const INDEX: LockSpec = LockSpec::new("ron-registry", "log_index", 410)
    .guards("where blocks and snapshots are in the journal; held for a few lookups");

const BLOCK: u8 = 1;
const SNAPSHOT: u8 = 2;

/// What a block is preceded by: the first version, how many entries, bytes of them.
const BLOCK_HEAD: usize = 16;
/// What a part of a snapshot is preceded by: its version, its number, how many there are.
const PART_HEAD: usize = 16;
/// Parts in the largest snapshot: a thousand million names.
const PARTS_MAX: u32 = 1 << 16;

/// How long reading the journal through may take when it is opened; there is nothing to do meanwhile.
const OPENING: Duration = Duration::from_secs(24 * 3600);

/// What the writer of the journal may take to finish at the stop. Nobody appends any more by then.
const DRAIN: Duration = Duration::from_secs(3);

/// When to ask again while another snapshot is being kept: one takes a few syncs.
const PRUNING_RETRY: Duration = Duration::from_millis(100);

/// The knobs of the journal under a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalStoreSettings {
    /// Size at which a file of the journal is full. Pruning frees whole files, so smaller ones free sooner.
    pub segment_bytes: u32,
    /// Where the salts of files come from; a seed for simulations.
    pub salts: Salts,
}

impl Default for JournalStoreSettings {
    fn default() -> Self {
        JournalStoreSettings { segment_bytes: 64 << 20, salts: Salts::Random }
    }
}

/// What the memo is called, in the directory of the journal.
const MEMO: &str = "memo";

/// A log in a directory.
#[derive(Debug)]
pub struct JournalStore {
    journal: Journal,
    group: Supervisor,
    index: Arc<Lock<Index>>,
    disk: Arc<dyn Disk>,
    /// Where the memo is.
    memo: PathBuf,
}

/// What is where.
#[derive(Debug, Default)]
struct Index {
    /// First version and place of each block.
    blocks: VecDeque<(u64, Position)>,
    tail: u64,
    checkpoint: Option<Bytes>,
    /// The newest snapshot that is whole: its version, and where its parts are.
    snapshot: Option<(u64, Vec<Position>)>,
    /// Parts of one that is not yet.
    parts: BTreeMap<u32, Position>,
    parts_of: u64,
    /// Where to read on.
    end: Option<Position>,
    /// Whether an append was given up on, so that there may be more than is known: how many were before it.
    doubt: Option<u64>,
    doubts: u64,
    /// Whether an append runs. What it writes is for it to learn.
    is_appending: bool,
    /// Whether a snapshot is being kept. Two at once would each remove what the other needs.
    is_pruning: bool,
    /// What a clean stop left, until somebody asks for it.
    memo: Option<StoredMemo>,
}

impl Index {
    fn first(&self) -> u64 {
        self.blocks.front().map_or(self.tail + 1, |(first, _)| *first)
    }

    /// Learns a record that follows what is known.
    fn learn(&mut self, kind: u8, position: Position, payload: &Bytes) -> Result<(), StoreError> {
        let damaged = |what| StoreError::Damaged { message: format!("{what} at {}", position) };
        match kind {
            BLOCK => {
                let (first, entries, checkpoint) =
                    read_block(payload).ok_or(damaged("a record that is no block"))?;
                let is_start = self.blocks.is_empty() && self.tail == 0;
                if !is_start && first != self.tail + 1 {
                    return Err(damaged("a block that does not follow the one before it"));
                }
                // A log that began behind a snapshot has that in front of its first block, and perhaps others, of
                // beginnings that came to nothing.
                if is_start {
                    self.snapshot = self.snapshot.take().filter(|(version, _)| version + 1 == first);
                }
                self.blocks.push_back((first, position));
                self.tail = first + entries.len() as u64 - 1;
                self.checkpoint = Some(checkpoint);
            }
            SNAPSHOT => {
                let (version, part, parts, _) =
                    read_part(payload).ok_or(damaged("a record that is no snapshot"))?;
                if part == 0 {
                    self.parts.clear();
                    self.parts_of = version;
                }
                // Parts stand in order behind each other; what a crash cut off never becomes whole.
                if version == self.parts_of && part as usize == self.parts.len() {
                    self.parts.insert(part, position);
                }
                if self.parts.len() == parts as usize && version == self.parts_of {
                    let places = std::mem::take(&mut self.parts).into_values().collect();
                    if self.is_newer(version) || self.blocks.is_empty() {
                        self.snapshot = Some((version, places));
                    }
                }
            }
            _ => return Err(damaged("a record of a kind that is not known")),
        }
        self.end = Some(position);
        Ok(())
    }

    /// Whether a snapshot of this version would replace the one there is.
    fn is_newer(&self, version: u64) -> bool {
        self.snapshot.as_ref().is_none_or(|(kept, _)| *kept < version)
    }

    /// The place of the block that holds this version.
    fn block_of(&self, version: u64) -> Option<(u64, Position)> {
        let after = self.blocks.partition_point(|(first, _)| *first <= version);
        after.checked_sub(1).map(|at| self.blocks[at])
    }
}

impl JournalStore {
    /// Opens the log in `dir` of `disk`, or begins one. Its writer runs on `supervisor`, and adds the gate `registry.log`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if what was acknowledged cannot be read, and failures of the disk.
    pub async fn open(
        supervisor: &Supervisor,
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: JournalStoreSettings,
    ) -> Result<Self, StoreError> {
        let settings = Settings {
            name: "registry.log",
            segment_bytes: settings.segment_bytes,
            on_damage: OnDamage::Refuse,
            // What is not known from the memo is read through below.
            opening: Opening::ReadLast,
            salts: settings.salts,
            ..Settings::default()
        };
        // A group of its own, older than that of the registry which is started on it, and so stopped after it: what is
        // decided while it drains still has a place to go.
        let group = supervisor.child("registry log", DRAIN, supervisor.metrics().clone());
        let (place, memo) = (Arc::clone(&disk), dir.join(MEMO));
        let (journal, _) =
            Journal::open(&group, Arc::clone(&disk), dir, settings).await.map_err(of_journal)?;
        let (reader, dir, path) = (journal.reader(), dir.to_path_buf(), memo.clone());
        let through = move || {
            // A crash while the memo was written leaves a file that nobody needs.
            let _ = sweep_temporary(&*place, &dir);
            let mut index = remembered(&*place, &path, &reader).unwrap_or_default();
            let known = index.snapshot.as_ref().map(|(version, _)| *version);
            scan(&reader, index.end, |kind, position, payload| index.learn(kind, position, payload))?;
            // What it could prove may be gone.
            if index.snapshot.as_ref().map(|(version, _)| *version) != known {
                index.memo = None;
            }
            Ok::<_, StoreError>(index)
        };
        let index = group.blocking("log_open", Deadline::after(OPENING), through).await??;
        // A log whose beginning is gone can be gone on with only from a snapshot.
        let first = index.first();
        let is_covered = index.snapshot.as_ref().is_some_and(|(version, _)| version + 1 >= first);
        if first > 1 && index.tail > 0 && !is_covered {
            let message = format!("the log begins at {first} and no snapshot covers what is before");
            return Err(StoreError::Damaged { message });
        }
        let index = Arc::new(Lock::new(INDEX, index, group.metrics()));
        Ok(JournalStore { journal, group, index, disk, memo })
    }

    async fn blocking<R: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce(Reader, &Lock<Index>) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (reader, index) = (self.journal.reader(), Arc::clone(&self.index));
        self.group.blocking("log_read", deadline, move || work(reader, &index)).await?
    }

    /// Finds out about an append that was given up on.
    async fn settle(&self, deadline: Deadline) -> Result<(), StoreError> {
        loop {
            let (doubt, end) = {
                let index = self.index.lock();
                let Some(doubt) = index.doubt else { return Ok(()) };
                (doubt, index.end)
            };
            // Behind everything that was handed to the writer before.
            self.journal.sync(deadline).await.map_err(of_journal)?;
            let read = move |reader: Reader, index: &Lock<Index>| {
                // Read before the lock is taken, which everybody else needs.
                let mut more = Vec::new();
                scan(&reader, end, |kind, position, payload| {
                    more.push((kind, position, payload.clone()));
                    Ok(())
                })?;
                let mut index = index.lock();
                // Unless somebody else has found out meanwhile, and gone on.
                if index.doubt == Some(doubt) {
                    for (kind, position, payload) in &more {
                        index.learn(*kind, *position, payload)?;
                    }
                    index.doubt = None;
                }
                Ok(())
            };
            self.blocking(deadline, read).await?;
        }
    }

    async fn append_block(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        check_block(&block)?;
        self.settle(deadline).await?;
        {
            let mut index = self.index.lock();
            if index.is_appending || index.doubt.is_some() {
                return Err(StoreError::Busy { what: "log", retry_after: Duration::from_millis(1) });
            }
            if index.tail != after {
                return Ok(Appended::Conflict { tail: index.tail });
            }
            index.is_appending = true;
        }
        // Whoever drops this future from here on leaves a doubt behind.
        let mut appending = Appending { index: &self.index, is_known: false };
        let payload = write_block(after + 1, &block);
        let written = self.journal.append(BLOCK, payload.clone(), deadline).await.map_err(of_journal);
        appending.is_known = !matches!(&written, Err(error) if error.is_unknown());
        let position = written?;
        self.index.lock().learn(BLOCK, position, &payload)?;
        Ok(Appended::Yes)
    }

    async fn read_entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> Result<Vec<Bytes>, StoreError> {
        // What is known needs no settling: a disk that stalls or fails takes nobody's entries away.
        let is_known = from <= self.index.lock().tail;
        if !is_known {
            self.settle(deadline).await?;
        }
        let found = {
            let index = self.index.lock();
            if from < index.first() {
                return Err(StoreError::Pruned { first: index.first() });
            }
            if from > index.tail { None } else { index.block_of(from) }
        };
        let Some((first, position)) = found else { return Ok(Vec::new()) };
        let record = self.journal.read(position, deadline).await;
        let payload = match record {
            Ok(record) => record.payload,
            Err(JournalError::NoRecord { .. }) => {
                let index = self.index.lock();
                // Pruned since; or its head is damaged, and it should be there.
                return Err(if index.block_of(from) == Some((first, position)) {
                    StoreError::Damaged { message: format!("version {from}: no record at {position}") }
                } else {
                    StoreError::Pruned { first: index.first() }
                });
            }
            Err(error @ JournalError::Damaged { .. }) => {
                return Err(StoreError::Damaged { message: format!("version {from}: {error}") });
            }
            Err(error) => return Err(of_journal(error)),
        };
        let damaged = || StoreError::Damaged {
            message: format!("version {from}: a record that is no block at {position}"),
        };
        let (found, entries, _) = read_block(&payload).ok_or_else(damaged)?;
        if found != first {
            return Err(damaged());
        }
        let skip = (from - first) as usize;
        Ok(entries.into_iter().skip(skip).take(max).collect())
    }

    async fn keep_snapshot(&self, snapshot: StoredSnapshot, deadline: Deadline) -> Result<u64, StoreError> {
        self.settle(deadline).await?;
        let parts = u32::try_from(snapshot.parts.len()).unwrap_or(u32::MAX);
        {
            let mut index = self.index.lock();
            if index.is_pruning {
                return Err(StoreError::Busy { what: "pruning", retry_after: PRUNING_RETRY });
            }
            let is_sound = snapshot.version <= index.tail && (1..=PARTS_MAX).contains(&parts);
            if !index.is_newer(snapshot.version) || !is_sound {
                return Ok(0);
            }
            index.is_pruning = true;
        }
        let _pruning = Pruning(&self.index);
        let bytes = || self.journal.reader().segments().iter().map(|segment| u64::from(segment.bytes)).sum();
        let before: u64 = bytes();
        let mut places = Vec::new();
        for (number, part) in (0..parts).zip(&snapshot.parts) {
            let payload = write_part(snapshot.version, number, parts, part);
            places.push(self.journal.append(SNAPSHOT, payload, deadline).await.map_err(of_journal)?);
        }
        let keep_from = {
            let mut index = self.index.lock();
            // The next entry must be there, or nothing that is removed is covered. The last block stays, for its
            // checkpoint.
            let next = (snapshot.version + 1).min(index.tail);
            let Some((_, entries)) = index.block_of(next).filter(|_| index.is_newer(snapshot.version)) else {
                return Ok(0);
            };
            let keep_from = places.iter().map(|place| place.segment).chain([entries.segment]).min();
            index.snapshot = Some((snapshot.version, places));
            keep_from.unwrap_or(0)
        };
        {
            // Not to be found any more before they are gone.
            let mut index = self.index.lock();
            while index.blocks.front().is_some_and(|(_, position)| position.segment < keep_from) {
                index.blocks.pop_front();
            }
        }
        self.journal.remove_before(keep_from, deadline).await.map_err(of_journal)?;
        // With the snapshot, which takes room as well.
        Ok(before.saturating_sub(bytes()))
    }

    async fn write_memo(&self, memo: StoredMemo, deadline: Deadline) -> Result<(), StoreError> {
        let known = {
            let index = self.index.lock();
            let is_provable = index.snapshot.as_ref().is_none_or(|(version, _)| *version < memo.first);
            if index.doubt.is_some() || index.is_pruning || index.tail != memo.version || !is_provable {
                return Ok(());
            }
            let Some(checkpoint) = index.checkpoint.clone() else { return Ok(()) };
            let blocks = index.blocks.iter().copied().collect();
            Known { blocks, checkpoint, snapshot: index.snapshot.clone() }
        };
        let (disk, path) = (Arc::clone(&self.disk), self.memo.clone());
        let write = move || replace(&*disk, &path, &write_memo(&known, &memo));
        let written = self.group.blocking("memo_write", deadline, write).await?;
        written.map_err(|error| StoreError::Failed { message: error.to_string() })
    }

    /// Parts of the snapshot first, then the block. Only the block makes it a log: without one they are forgotten when it
    /// is opened again.
    async fn begin_log(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        check_block(&block)?;
        self.settle(deadline).await?;
        let StoredSnapshot { version, parts } = snapshot;
        let count = u32::try_from(parts.len()).ok().filter(|count| (1..=PARTS_MAX).contains(count));
        let count = count.filter(|_| is_version(version)).ok_or_else(|| StoreError::Failed {
            message: format!("a snapshot of version {version} in {} parts", parts.len()),
        })?;
        {
            let mut index = self.index.lock();
            if index.is_appending || index.is_pruning || index.doubt.is_some() {
                return Err(StoreError::Busy { what: "log", retry_after: Duration::from_millis(1) });
            }
            if index.tail != 0 {
                return Ok(Appended::Conflict { tail: index.tail });
            }
            index.is_appending = true;
        }
        // Whoever drops this future from here on leaves a doubt behind.
        let mut appending = Appending { index: &self.index, is_known: false };
        for (number, part) in (0..count).zip(&parts) {
            let payload = write_part(version, number, count, part);
            let written = self.journal.append(SNAPSHOT, payload.clone(), deadline).await.map_err(of_journal);
            appending.is_known = !matches!(&written, Err(error) if error.is_unknown());
            let position = written?;
            appending.is_known = false;
            self.index.lock().learn(SNAPSHOT, position, &payload)?;
        }
        let payload = write_block(version + 1, &block);
        let written = self.journal.append(BLOCK, payload.clone(), deadline).await.map_err(of_journal);
        appending.is_known = !matches!(&written, Err(error) if error.is_unknown());
        let position = written?;
        self.index.lock().learn(BLOCK, position, &payload)?;
        Ok(Appended::Yes)
    }

    /// Where the snapshot of the log is, if it has one: what is in front of nothing is none.
    fn snapshot_places(&self) -> Option<(u64, Vec<Position>)> {
        let index = self.index.lock();
        index.snapshot.clone().filter(|_| !index.blocks.is_empty())
    }

    /// A part of the snapshot of this version; nothing if another took its place meanwhile, and it went with the files
    /// that are not needed any more.
    async fn read_part_at(
        &self,
        version: u64,
        position: Position,
        deadline: Deadline,
    ) -> Result<Option<Bytes>, StoreError> {
        let read = self.journal.read(position, deadline).await;
        let damaged =
            || StoreError::Damaged { message: format!("a record that is no snapshot at {position}") };
        match read {
            Ok(record) => Ok(Some(read_part(&record.payload).ok_or_else(damaged)?.3)),
            Err(JournalError::NoRecord { .. }) => {
                let is_there = self.snapshot_places().is_some_and(|(kept, _)| kept == version);
                if is_there { Err(damaged()) } else { Ok(None) }
            }
            Err(error) => Err(of_journal(error)),
        }
    }

    async fn read_snapshot(&self, deadline: Deadline) -> Result<Option<StoredSnapshot>, StoreError> {
        'anew: loop {
            let Some((version, places)) = self.snapshot_places() else { return Ok(None) };
            let mut parts = Vec::new();
            for position in places {
                let Some(part) = self.read_part_at(version, position, deadline).await? else {
                    continue 'anew;
                };
                parts.push(part);
            }
            return Ok(Some(StoredSnapshot { version, parts }));
        }
    }

    async fn read_snapshot_part(
        &self,
        part: u32,
        deadline: Deadline,
    ) -> Result<Option<StoredPart>, StoreError> {
        loop {
            let Some((version, places)) = self.snapshot_places() else { return Ok(None) };
            let parts = u32::try_from(places.len()).unwrap_or(u32::MAX);
            let Some(position) = places.get(part as usize).copied() else { return Ok(None) };
            if let Some(bytes) = self.read_part_at(version, position, deadline).await? {
                return Ok(Some(StoredPart { version, parts, bytes }));
            }
        }
    }
}

/// Lets the next append begin, however this one ended.
struct Appending<'a> {
    index: &'a Lock<Index>,
    is_known: bool,
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        index.is_appending = false;
        if !self.is_known {
            index.doubt = Some(index.doubts);
            index.doubts += 1;
        }
    }
}

/// Lets the next snapshot be kept, however this one ended.
struct Pruning<'a>(&'a Lock<Index>);

impl Drop for Pruning<'_> {
    fn drop(&mut self) {
        self.0.lock().is_pruning = false;
    }
}

impl LogStore for JournalStore {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(self.append_block(after, block, deadline))
    }

    fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        Box::pin(self.read_entries(from, max, deadline))
    }

    fn tail(&self, deadline: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        Box::pin(async move {
            self.settle(deadline).await?;
            let index = self.index.lock();
            Ok(Tail { first: index.first(), version: index.tail, checkpoint: index.checkpoint.clone() })
        })
    }

    fn prune(&self, snapshot: StoredSnapshot, deadline: Deadline) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.keep_snapshot(snapshot, deadline))
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        Box::pin(self.read_snapshot(deadline))
    }

    fn snapshot_part(
        &self,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<StoredPart>, StoreError>> {
        Box::pin(self.read_snapshot_part(part, deadline))
    }

    fn begin(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(self.begin_log(snapshot, block, deadline))
    }

    fn keep_memo(&self, memo: StoredMemo, deadline: Deadline) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.write_memo(memo, deadline))
    }

    fn take_memo(&self, _: Deadline) -> BoxFuture<'_, Result<Option<StoredMemo>, StoreError>> {
        Box::pin(std::future::ready(Ok(self.index.lock().memo.take())))
    }
}

/// What a clean stop has left, if it is of the journal that is there: its last block must be where it says, and the same.
fn remembered(disk: &dyn Disk, path: &Path, reader: &Reader) -> Option<Index> {
    let file = match disk.open(path, Access::Read) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return None,
        Err(error) => {
            tracing::debug!(%error, "the log is read through");
            return None;
        }
    };
    let mut bytes = vec![0; usize::try_from(file.len().ok()?).ok()?];
    let read = file.read_at(0, &mut bytes).ok()?;
    bytes.truncate(read);
    let (known, memo) = read_memo(&bytes.into())?;
    let Known { blocks, checkpoint, snapshot } = known;
    let (first, end) = *blocks.last()?;
    let record = reader.read(end).ok().filter(|record| record.kind == BLOCK)?;
    let (found, entries, said) = read_block(&record.payload)?;
    let tail = first + entries.len() as u64 - 1;
    if (found, &said, tail) != (first, &checkpoint, memo.version) {
        return None;
    }
    // Files that were removed since.
    let oldest = reader.segments().first()?.sequence;
    let blocks = blocks.into_iter().filter(|(_, position)| position.segment >= oldest).collect();
    let snapshot = snapshot.filter(|(_, places)| places.iter().all(|place| place.segment >= oldest));
    let (checkpoint, end) = (Some(checkpoint), Some(end));
    Some(Index { blocks, tail, checkpoint, snapshot, end, memo: Some(memo), ..Index::default() })
}

/// Goes through what the journal has behind `end`.
fn scan(
    reader: &Reader,
    end: Option<Position>,
    mut see: impl FnMut(u8, Position, &Bytes) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for item in reader.scan(end.unwrap_or(Position::START)) {
        match item.map_err(of_journal)? {
            Item::Record(record) if Some(record.position) == end => {}
            Item::Record(record) => see(record.kind, record.position, &record.payload)?,
            Item::Damaged(damage) => return Err(of_journal(JournalError::Damaged { damage })),
        }
    }
    Ok(())
}

fn write_block(first: u64, block: &Block) -> Bytes {
    let bytes = bundle_bytes(&block.entries);
    let mut payload = Vec::with_capacity(BLOCK_HEAD + bytes + block.checkpoint.len());
    payload.extend_from_slice(&first.to_be_bytes());
    payload.extend_from_slice(&(block.entries.len() as u32).to_be_bytes());
    payload.extend_from_slice(&(bytes as u32).to_be_bytes());
    append_bundle(&mut payload, &block.entries);
    payload.extend_from_slice(&block.checkpoint);
    payload.into()
}

/// The first version, the entries and the checkpoint of a block.
fn read_block(payload: &Bytes) -> Option<(u64, Vec<Bytes>, Bytes)> {
    let (first, rest) = payload.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_first_chunk()?;
    let (first, count) = (u64::from_be_bytes(*first), u16::try_from(u32::from_be_bytes(*count)).ok()?);
    let bytes = usize::try_from(u32::from_be_bytes(*bytes)).ok()?;
    let (bundle, checkpoint) = rest.split_at_checked(bytes)?;
    if !is_version(first) || count == 0 || bytes > BLOCK_BYTES_MAX + 2 * usize::from(count) {
        return None;
    }
    let entries = read_bundle(bundle, count)?.into_iter().map(|entry| payload.slice_ref(entry)).collect();
    Some((first, entries, payload.slice_ref(checkpoint)))
}

/// Whether a log can come so far: counting on from there never overflows.
fn is_version(version: u64) -> bool {
    (1..=VERSION_MAX).contains(&version)
}

fn write_part(version: u64, part: u32, parts: u32, bytes: &Bytes) -> Bytes {
    let mut payload = Vec::with_capacity(PART_HEAD + bytes.len());
    payload.extend_from_slice(&version.to_be_bytes());
    payload.extend_from_slice(&part.to_be_bytes());
    payload.extend_from_slice(&parts.to_be_bytes());
    payload.extend_from_slice(bytes);
    payload.into()
}

/// Version, number, how many, and the bytes of a part.
fn read_part(payload: &Bytes) -> Option<(u64, u32, u32, Bytes)> {
    let (version, rest) = payload.split_first_chunk()?;
    let (part, rest) = rest.split_first_chunk()?;
    let (parts, rest) = rest.split_first_chunk()?;
    let (part, parts) = (u32::from_be_bytes(*part), u32::from_be_bytes(*parts));
    let version = u64::from_be_bytes(*version);
    let is_good = part < parts && parts <= PARTS_MAX && is_version(version);
    is_good.then(|| (version, part, parts, payload.slice_ref(rest)))
}

fn of_journal(error: JournalError) -> StoreError {
    match error {
        JournalError::Busy { what, retry_after } => StoreError::Busy { what, retry_after },
        JournalError::Timeout { op } => StoreError::Timeout { op },
        JournalError::Canceled => StoreError::Canceled,
        JournalError::Panicked { op } => StoreError::Panicked { op },
        JournalError::NoSpace => StoreError::NoSpace,
        JournalError::Damaged { .. } => StoreError::Damaged { message: error.to_string() },
        // A write or a sync failed: what of it is on disk shows when the journal is opened again.
        JournalError::Disk(ref cause) => StoreError::Unknown { message: format!("{error}: {cause}") },
        other => StoreError::Failed { message: other.to_string() },
    }
}
