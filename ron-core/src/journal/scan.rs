//! Reading a journal: one record, all of them in order, or a survey of what a segment holds.
//!
//! Where a record should be and is not, the search goes on at every aligned offset. It finds only genuine records,
//! because their sums are bound to segment and offset, and it passes every byte once, so a hostile file costs time
//! in proportion to its size. A read that fails is an error and never "no record": recovery must not cut what the
//! disk merely refused to show. Only a scan that reports damage goes on, and only in a segment that is not written any more:
//! there, sectors that stay unreadable are damage like any other.

use std::{
    collections::{BTreeMap, VecDeque},
    iter::FusedIterator,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;

use super::{
    Damage, Item, JournalError, OnDamage, Opening, Position, Record, SegmentInfo, Settings,
    format::{ALIGN, HEAD, HEADER, Head, Key, RECORD_BYTES_MAX, RECORD_MAGIC, record_bytes, segment_name},
};
use crate::{
    ContentId,
    disk::{Access, Disk, DiskError, File},
};

/// Read ahead in a scan: large enough that the system call is noise beside hashing the bytes.
const SCAN_STEP: usize = 256 << 10;
/// Read at once for a single record, so that most take one call.
const READ_STEP: usize = 4 << 10;
/// Sealed segments kept open for reading. A journal has thousands of segments, a process has 1024 descriptors.
const OPEN_MAX: usize = 32;

/// What is given up together when the disk cannot read it: a sector of today's disks, and a page.
const SECTOR: usize = 4 << 10;

const _: () = assert!(SCAN_STEP % ALIGN == 0 && HEADER % ALIGN == 0);

/// The first offset a record can have.
#[expect(clippy::cast_possible_truncation, reason = "64 fits")]
pub(super) const FIRST: u32 = HEADER as u32;

/// From one offset that a record can have to the next.
#[expect(clippy::cast_possible_truncation, reason = "8 fits")]
const STRIDE: u32 = ALIGN as u32;

/// A segment as readers know it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) sequence: u64,
    /// `None` when the header is damaged or the file is gone.
    pub(super) key: Option<Key>,
    /// Where the visible records end.
    pub(super) end: AtomicU32,
    /// What a reader that cannot read this segment goes on with.
    pub(super) next: Position,
}

impl Segment {
    pub(super) fn new(sequence: u64, key: Option<Key>, end: u32, next: Position) -> Self {
        Segment { sequence, key, end: AtomicU32::new(end), next }
    }

    fn as_damage(&self) -> Damage {
        Damage { from: Position { segment: self.sequence, offset: 0 }, to: self.next }
    }
}

/// What the owner and the readers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) on_damage: OnDamage,
    pub(super) opening: Opening,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    segments: BTreeMap<u64, Arc<Segment>>,
    open: VecDeque<(u64, Arc<File>)>,
}

impl Shared {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, settings: &Settings) -> Self {
        let Settings { on_damage, opening, .. } = *settings;
        Shared { disk, dir, on_damage, opening, table: Mutex::default() }
    }

    pub(super) fn path(&self, sequence: u64) -> PathBuf {
        self.dir.join(segment_name(sequence))
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        self.table().segments.insert(segment.sequence, segment);
    }

    pub(super) fn forget(&self, sequence: u64) {
        let mut table = self.table();
        table.segments.remove(&sequence);
        table.open.retain(|(open, _)| *open != sequence);
    }

    pub(super) fn first(&self) -> Option<Arc<Segment>> {
        self.table().segments.values().next().cloned()
    }

    pub(super) fn infos(&self) -> Vec<SegmentInfo> {
        let info = |segment: &Arc<Segment>| SegmentInfo {
            sequence: segment.sequence,
            bytes: segment.end.load(Ordering::Acquire),
            readable: segment.key.is_some(),
        };
        self.table().segments.values().map(info).collect()
    }

    fn get(&self, sequence: u64) -> Option<Arc<Segment>> {
        self.table().segments.get(&sequence).cloned()
    }

    /// A segment that can be read and whose file is open, unless somebody else has the table: they may be opening a file.
    fn at_hand(&self, sequence: u64) -> Option<(Arc<Segment>, Arc<File>)> {
        let table = self.table.try_lock().ok()?;
        let segment = table.segments.get(&sequence).filter(|segment| segment.key.is_some())?;
        let (_, file) = table.open.iter().find(|(open, _)| *open == sequence)?;
        Some((Arc::clone(segment), Arc::clone(file)))
    }

    fn at_or_after(&self, sequence: u64) -> Option<Arc<Segment>> {
        let table = self.table();
        table.segments.range(sequence..).next().map(|(_, segment)| Arc::clone(segment))
    }

    fn file(&self, sequence: u64) -> Result<Arc<File>, DiskError> {
        let mut table = self.table();
        if let Some(at) = table.open.iter().position(|(open, _)| *open == sequence) {
            let found = table.open.remove(at).expect("the position was just found");
            table.open.push_back(found);
            return Ok(Arc::clone(&table.open[table.open.len() - 1].1));
        }
        // Opened under the lock: it takes microseconds, and two readers would otherwise open the same file.
        let file = Arc::new(self.disk.open(&self.path(sequence), Access::Read)?);
        if table.open.len() == OPEN_MAX {
            table.open.pop_front();
        }
        table.open.push_back((sequence, Arc::clone(&file)));
        Ok(file)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a journal while its owner appends. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) shared: Arc<Shared>,
}

impl Reader {
    /// The record at a position that appending or scanning gave out, with its sums checked.
    ///
    /// # Errors
    /// [`JournalError::NoRecord`] when none starts there, [`JournalError::Damaged`] when one does and its payload
    /// is not what was written, or a failure of the disk.
    pub fn read(&self, position: Position) -> Result<Record, JournalError> {
        let (segment, end, file) = self.locate(position)?;
        let key = segment.key.as_ref().expect("only readable segments are located");
        let offset = position.offset;
        let mut window = Window::new(file, end, READ_STEP);
        let Some(head) = window.head(key, offset)?.filter(|head| !head.is_seal) else {
            return Err(JournalError::NoRecord { position });
        };
        match window.body(&head, offset)? {
            Some((name, payload)) => {
                Ok(Record { position, kind: head.kind, name, payload: Bytes::copy_from_slice(payload) })
            }
            None => Err(damaged(position, &head, end)),
        }
    }

    /// [`read`](Reader::read) for a caller that knows how long the payload is: one call to the disk, and no copy.
    ///
    /// # Errors
    /// As [`read`](Reader::read); [`JournalError::NoRecord`] also for a record of another length.
    pub fn read_sized(&self, position: Position, payload: u32) -> Result<Record, JournalError> {
        let found = self.read_into(position, payload, |len| vec![0; len])?;
        let payload = Bytes::from(found.buffer).slice(found.payload);
        Ok(Record { position, kind: found.kind, name: found.name, payload })
    }

    /// [`read_sized`](Reader::read_sized) into memory of the caller's, which `buffer` gives out in the length asked for.
    ///
    /// # Errors
    /// As [`read_sized`](Reader::read_sized).
    pub fn read_into<B: AsMut<[u8]>>(
        &self,
        position: Position,
        payload: u32,
        buffer: impl FnOnce(usize) -> B,
    ) -> Result<ReadInto<B>, JournalError> {
        let (segment, end, file) = self.locate(position)?;
        let len = sized(position, payload, end).ok_or(JournalError::NoRecord { position })?;
        let mut buffer = buffer(len);
        let read = file.read_at(u64::from(position.offset), buffer.as_mut())?;
        check(&segment, end, position, payload, buffer, read)
    }

    /// [`read_into`](Reader::read_into) without waiting for anything: nothing if the record is not in the memory of the
    /// operating system, or not what it should be, or if somebody else has the table right now.
    pub fn read_cached<B: AsMut<[u8]>>(
        &self,
        position: Position,
        payload: u32,
        buffer: impl FnOnce(usize) -> B,
    ) -> Option<ReadInto<B>> {
        let (segment, file) = self.shared.at_hand(position.segment)?;
        let end = segment.end.load(Ordering::Acquire);
        let len = sized(position, payload, end)?;
        let mut buffer = buffer(len);
        let is_here = file.read_cached(u64::from(position.offset), buffer.as_mut());
        if is_here { check(&segment, end, position, payload, buffer, len).ok() } else { None }
    }

    /// The segment with a record at `position`, where its records end, and its file.
    fn locate(&self, position: Position) -> Result<(Arc<Segment>, u32, Arc<File>), JournalError> {
        let Position { segment: sequence, offset } = position;
        let no_record = JournalError::NoRecord { position };
        let Some(segment) = self.shared.get(sequence) else {
            return Err(no_record);
        };
        if segment.key.is_none() {
            return Err(JournalError::Damaged { damage: segment.as_damage() });
        }
        let end = segment.end.load(Ordering::Acquire);
        if offset < FIRST || offset >= end || offset as usize % ALIGN != 0 {
            return Err(no_record);
        }
        let file = match self.shared.file(sequence) {
            // Its owner removed it between the two questions.
            Err(DiskError::NotFound { .. }) if self.shared.get(sequence).is_none() => return Err(no_record),
            file => file?,
        };
        Ok((segment, end, file))
    }

    /// All records from `from` on, in order; [`Position::START`] for all there are. Ends where the journal ends when
    /// the scan gets there.
    #[must_use]
    pub fn scan(&self, from: Position) -> Scan {
        Scan { shared: Arc::clone(&self.shared), at: from, current: None, is_done: false }
    }

    /// The segments there are, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared.infos()
    }
}

/// A record that was read into memory of the caller's.
#[derive(Debug)]
pub struct ReadInto<B> {
    /// What kind of record it is.
    pub kind: u8,
    /// The name of its payload.
    pub name: ContentId,
    /// The memory.
    pub buffer: B,
    /// Where in it the payload is.
    pub payload: Range<usize>,
}

/// Bytes of a record at `position` with so long a payload. A length is believed only as far as there is a file.
fn sized(position: Position, payload: u32, end: u32) -> Option<usize> {
    let len = record_bytes(payload.min(RECORD_BYTES_MAX) as usize);
    let offset = position.offset;
    let is_place = offset >= FIRST && offset < end && offset as usize % ALIGN == 0;
    (is_place && len <= end.saturating_sub(offset) as usize).then_some(len)
}

/// Whether the first `read` bytes of `buffer` are the record at `position`.
fn check<B: AsMut<[u8]>>(
    segment: &Segment,
    end: u32,
    position: Position,
    payload: u32,
    mut buffer: B,
    read: usize,
) -> Result<ReadInto<B>, JournalError> {
    let key = segment.key.as_ref().expect("only readable segments are located");
    let record = &buffer.as_mut()[..read];
    let head = record.first_chunk().and_then(|head| Head::decode(head, key, position.offset));
    let Some(head) = head.filter(|head| !head.is_seal && head.payload == payload) else {
        return Err(JournalError::NoRecord { position });
    };
    let Some(name) = head.verify(record) else { return Err(damaged(position, &head, end)) };
    let payload = HEAD..HEAD + payload as usize;
    Ok(ReadInto { kind: head.kind, name, buffer, payload })
}

/// A record whose head is right and whose payload is not.
fn damaged(from: Position, head: &Head, end: u32) -> JournalError {
    let len = u32::try_from(head.record_bytes()).unwrap_or(u32::MAX);
    let to = Position { offset: end.min(from.offset.saturating_add(len)), ..from };
    JournalError::Damaged { damage: Damage { from, to } }
}

/// Walks the records of a journal. After an error it ends.
#[derive(Debug)]
pub struct Scan {
    shared: Arc<Shared>,
    at: Position,
    current: Option<(Arc<Segment>, Window)>,
    is_done: bool,
}

impl Scan {
    fn advance(&mut self) -> Result<Option<Item>, JournalError> {
        loop {
            let Some((segment, window)) = &mut self.current else {
                match self.enter()? {
                    Entered::Segment => continue,
                    Entered::Unreadable(damage) => return self.damaged(damage).map(Some),
                    Entered::End => return Ok(None),
                }
            };
            let key = segment.key.as_ref().expect("only readable segments are entered");
            if self.at.offset >= window.limit {
                // It may have grown since. Asking for a later segment first makes the answer final: once there is
                // one, this one no longer grows.
                let later = self.shared.at_or_after(self.at.segment.saturating_add(1));
                let end = segment.end.load(Ordering::Acquire);
                if end > window.limit {
                    window.limit = end;
                    continue;
                }
                if later.is_none() {
                    return Ok(None);
                }
                self.at = Position { segment: segment.next.segment, offset: 0 };
                self.current = None;
                continue;
            }
            let position = self.at;
            if let Some((head, name, payload)) = window.record(key, position.offset)? {
                let item = (!head.is_seal).then(|| {
                    Item::Record(Record {
                        position,
                        kind: head.kind,
                        name,
                        payload: Bytes::copy_from_slice(payload),
                    })
                });
                self.at.offset +=
                    u32::try_from(head.record_bytes()).expect("a record ends within its segment");
                if item.is_some() {
                    return Ok(item);
                }
                continue;
            }
            let to = match window.find(key, position.offset.saturating_add(STRIDE))? {
                Some(offset) => Position { offset, ..position },
                None => segment.next,
            };
            if to.segment != position.segment {
                self.current = None;
            }
            return self.damaged(Damage { from: position, to }).map(Some);
        }
    }

    fn damaged(&mut self, damage: Damage) -> Result<Item, JournalError> {
        self.at = damage.to;
        match self.shared.on_damage {
            OnDamage::Refuse => Err(JournalError::Damaged { damage }),
            OnDamage::Report => Ok(Item::Damaged(damage)),
        }
    }

    fn enter(&mut self) -> Result<Entered, JournalError> {
        let Some(segment) = self.shared.at_or_after(self.at.segment) else {
            return Ok(Entered::End);
        };
        if segment.sequence > self.at.segment {
            self.at = Position { segment: segment.sequence, offset: 0 };
        }
        if segment.key.is_none() {
            return Ok(Entered::Unreadable(segment.as_damage()));
        }
        let file = match self.shared.file(segment.sequence) {
            Ok(file) => file,
            // Its owner removed it between the two questions.
            Err(DiskError::NotFound { .. }) if self.shared.get(segment.sequence).is_none() => {
                return Ok(Entered::Segment);
            }
            Err(error) => return Err(error.into()),
        };
        let end = segment.end.load(Ordering::Acquire);
        self.at.offset = self.at.offset.max(FIRST);
        if self.at.offset > end || self.at.offset as usize % ALIGN != 0 {
            return Err(JournalError::NoRecord { position: self.at });
        }
        let mut window = Window::new(file, end, SCAN_STEP);
        let is_sealed = self.shared.at_or_after(segment.sequence.saturating_add(1)).is_some();
        window.is_lenient = is_sealed && self.shared.on_damage == OnDamage::Report;
        self.current = Some((segment, window));
        Ok(Entered::Segment)
    }
}

enum Entered {
    Segment,
    Unreadable(Damage),
    End,
}

impl Iterator for Scan {
    type Item = Result<Item, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let next = self.advance().transpose();
        self.is_done = !matches!(next, Some(Ok(_)));
        next
    }
}

impl FusedIterator for Scan {}

/// A part of a segment file in memory.
#[derive(Debug)]
pub(super) struct Window {
    file: Arc<File>,
    /// Nothing at or after this offset is looked at.
    limit: u32,
    step: usize,
    start: u32,
    bytes: Vec<u8>,
    /// Whether sectors that cannot be read are taken for zeros, which are no record.
    is_lenient: bool,
}

/// A record: its head, the name of what it holds, and that.
type Found<'w> = (Head, ContentId, &'w [u8]);

impl Window {
    fn new(file: Arc<File>, limit: u32, step: usize) -> Self {
        Window { file, limit, step, start: 0, bytes: Vec::new(), is_lenient: false }
    }

    /// The bytes from `offset` on: at least `len` of them, fewer only where the limit or the file ends.
    fn from(&mut self, offset: u32, len: usize) -> Result<&[u8], DiskError> {
        let skip = offset.checked_sub(self.start).map_or(usize::MAX, |skip| skip as usize);
        if skip.saturating_add(len) <= self.bytes.len() {
            return Ok(&self.bytes[skip..]);
        }
        let want = len.max(self.step).min(self.limit.saturating_sub(offset) as usize);
        self.bytes.resize(want, 0);
        let mut read = self.file.read_at(u64::from(offset), &mut self.bytes);
        if self.is_lenient && read.is_err() {
            read = self.read_sectors(offset);
        }
        self.start = offset;
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        read?;
        Ok(&self.bytes)
    }

    /// Fills the window sector by sector. Those that cannot be read are zeros: a record that has one of them fails its sum,
    /// unless zeros are what was there.
    fn read_sectors(&mut self, offset: u32) -> Result<usize, DiskError> {
        let (mut filled, want) = (0, self.bytes.len());
        while filled < want {
            let at = u64::from(offset) + filled as u64;
            let rest = SECTOR - usize::try_from(at % SECTOR as u64).expect("less than a sector");
            let sector = &mut self.bytes[filled..want.min(filled + rest)];
            match self.file.read_at(at, sector) {
                Ok(read) if read < sector.len() => return Ok(filled + read),
                Ok(_) => {}
                Err(_) => sector.fill(0),
            }
            filled += sector.len();
        }
        Ok(filled)
    }

    fn head(&mut self, key: &Key, offset: u32) -> Result<Option<Head>, DiskError> {
        let bytes = self.from(offset, HEAD)?;
        Ok(bytes.first_chunk().and_then(|head| Head::decode(head, key, offset)))
    }

    fn body(&mut self, head: &Head, offset: u32) -> Result<Option<(ContentId, &[u8])>, DiskError> {
        let len = head.record_bytes();
        // Checked before the window grows: a length is believed only as far as there is a file.
        if len > self.limit.saturating_sub(offset) as usize {
            return Ok(None);
        }
        let Some(record) = self.from(offset, len)?.get(..len) else {
            return Ok(None);
        };
        Ok(head.verify(record).map(|name| (name, &record[HEAD..HEAD + head.payload as usize])))
    }

    /// The record at `offset` with its payload, if there is a whole one.
    pub(super) fn record(&mut self, key: &Key, offset: u32) -> Result<Option<Found<'_>>, DiskError> {
        match self.head(key, offset)? {
            Some(head) => Ok(self.body(&head, offset)?.map(|(name, payload)| (head, name, payload))),
            None => Ok(None),
        }
    }

    /// The first record at or after `offset`, which is aligned.
    pub(super) fn find(&mut self, key: &Key, mut offset: u32) -> Result<Option<u32>, DiskError> {
        loop {
            let bytes = self.from(offset, HEAD)?;
            if bytes.len() < HEAD {
                return Ok(None);
            }
            let mut words = bytes.chunks_exact(ALIGN);
            let skip = words.position(|word| word[..4] == RECORD_MAGIC).map(|word| word * ALIGN);
            let passed = skip.unwrap_or(bytes.len() / ALIGN * ALIGN);
            offset += u32::try_from(passed).expect("the window is below the limit");
            if skip.is_some() {
                if self.record(key, offset)?.is_some() {
                    return Ok(Some(offset));
                }
                offset += STRIDE;
            }
        }
    }

    fn is_zero(&mut self, mut offset: u32) -> Result<bool, DiskError> {
        loop {
            let bytes = self.from(offset, 1)?;
            if bytes.is_empty() {
                return Ok(true);
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            offset += u32::try_from(bytes.len()).expect("the window is below the limit");
        }
    }
}

/// What a walk over a whole segment found.
#[derive(Debug)]
pub(super) struct Survey {
    /// Runs of records; bytes between two runs belong to none. The first starts where the first record should be
    /// and may be empty.
    runs: Vec<Run>,
    /// Whether everything after the last run is zero.
    tail_is_zero: bool,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    from: u32,
    to: u32,
    records: u64,
    /// The largest durable mark among its records.
    durable: u32,
    ends_in_seal: bool,
}

/// The end of a segment that recovery settles on, and what it found before it.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) end: u32,
    pub(super) records: u64,
    /// What was certainly synced.
    pub(super) durable: u32,
    pub(super) is_sealed: bool,
    /// Whether there is anything but zeros after the end.
    pub(super) has_tail: bool,
    /// Unreadable stretches before the end.
    pub(super) damage: Vec<(u32, u32)>,
}

impl Survey {
    pub(super) fn of(file: &Arc<File>, key: &Key, limit: u32) -> Result<Survey, DiskError> {
        let mut window = Window::new(Arc::clone(file), limit, SCAN_STEP);
        let start = |at| Run { from: at, to: at, records: 0, durable: 0, ends_in_seal: false };
        let mut run = start(FIRST);
        let mut runs = Vec::new();
        loop {
            if let Some((head, ..)) = window.record(key, run.to)? {
                run.to += u32::try_from(head.record_bytes()).expect("a record ends within its segment");
                run.records += u64::from(!head.is_seal);
                run.durable = run.durable.max(head.durable);
                run.ends_in_seal = head.is_seal;
                continue;
            }
            runs.push(run);
            match window.find(key, run.to.saturating_add(STRIDE))? {
                Some(next) => run = start(next),
                None => break,
            }
        }
        let tail_is_zero = window.is_zero(run.to)?;
        Ok(Survey { runs, tail_is_zero })
    }

    /// For the last segment: the end is the first gap that no later record vouches for. What lies beyond was written
    /// after the last sync and happened to reach the disk.
    pub(super) fn judge_last(&self) -> Verdict {
        let mut vouched = vec![0; self.runs.len()];
        for at in (0..self.runs.len() - 1).rev() {
            vouched[at] = self.runs[at + 1].durable.max(vouched[at + 1]);
        }
        let kept = (0..self.runs.len())
            .position(|at| vouched[at] <= self.runs[at].to)
            .expect("nothing vouches for what follows the last run");
        let has_tail = kept + 1 < self.runs.len() || !self.tail_is_zero;
        self.verdict(&self.runs[..=kept], has_tail)
    }

    /// For an earlier segment: its end is known, and all that is not a record before it is damage.
    pub(super) fn judge_earlier(&self, end: u32) -> Verdict {
        let mut verdict = self.verdict(&self.runs, false);
        if verdict.end < end {
            verdict.damage.push((verdict.end, end));
        }
        verdict.end = end;
        verdict
    }

    /// For an earlier segment that is not read: its end is known, and it was synced before the next one was made.
    pub(super) fn trust_earlier(end: u32) -> Verdict {
        Verdict { end, records: 0, durable: end, is_sealed: false, has_tail: false, damage: Vec::new() }
    }

    /// For an earlier segment whose end is unknown, because the header that would say is damaged.
    pub(super) fn judge_endless(&self) -> Verdict {
        self.verdict(&self.runs, !self.tail_is_zero)
    }

    fn verdict(&self, runs: &[Run], has_tail: bool) -> Verdict {
        let last = runs[runs.len() - 1];
        Verdict {
            end: last.to,
            records: runs.iter().map(|run| run.records).sum(),
            durable: runs.iter().map(|run| run.durable).max().unwrap_or(0),
            is_sealed: last.ends_in_seal,
            has_tail,
            damage: runs.windows(2).map(|pair| (pair[0].to, pair[1].from)).collect(),
        }
    }
}

/// Whether a file holds nothing but zeros after its segment header.
pub(super) fn is_zero_after_header(file: &Arc<File>, limit: u32) -> Result<bool, DiskError> {
    Window::new(Arc::clone(file), limit, SCAN_STEP).is_zero(FIRST)
}
