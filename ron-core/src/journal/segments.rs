//! The owner of a journal: appends, rotates, removes.
//!
//! One buffer, one write, one sync per batch, into space that was reserved before, so that the sync has no new
//! length to record. When a batch is refused for lack of space nothing of it stays behind, on disk included; any
//! other failed write and every failed sync poisons the journal, because what is on disk is then unknown.

use std::{
    io::Read,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Entry, JournalError, Position, Reader, Record, Recovered, Salts, Scan, SegmentInfo, Settings,
    format::{Draft, Header, RECORD_BYTES_MAX, body_sum, next_sequence, record_bytes},
    recover::{Active, Resume, recover},
    scan::{FIRST, Segment, Shared},
};
use crate::{
    disk::{Disk, DiskError, DiskLock, File, make_dirs},
    planted::{Bug, is_planted},
};

/// Most bytes that one batch may take, headers and padding included. With the largest segment below it every offset
/// fits the 32 bits the format has for it.
pub const BATCH_BYTES_MAX: u64 = 256 << 20;

const SEGMENT_BYTES_MAX: u32 = 1 << 30;
/// Buffer kept between batches. A rare huge batch gives its memory back.
const BUFFER_KEEP: usize = 4 << 20;
const LOCK: &str = "LOCK";

/// A batch that gets the last bytes of a disk, where there is no room for a chunk: a few words, most likely that something
/// goes. More than that would take the room from them.
const FEW_BYTES: u32 = 512;

/// A journal, open for appending by its one owner.
#[derive(Debug)]
pub struct Segments {
    shared: Arc<Shared>,
    settings: Settings,
    salts: SaltSource,
    active: Active,
    draft: Draft,
    is_poisoned: bool,
    _lock: DiskLock,
}

impl Segments {
    /// Opens the journal in `dir`, making it if need be, and recovers from whatever happened to it.
    ///
    /// # Errors
    /// [`JournalError::Locked`] when it is open elsewhere, [`JournalError::Damaged`] when acknowledged records are
    /// lost (unless damage is to be reported), [`JournalError::UnknownVersion`], or a failure of the disk.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: Settings,
    ) -> Result<(Segments, Recovered), JournalError> {
        make_dirs(&*disk, dir)?;
        let lock = disk.lock(&dir.join(LOCK))?;
        let shared = Arc::new(Shared::new(disk, dir.to_path_buf(), &settings));
        let mut salts = SaltSource::new(settings.salts);
        let (resume, mut recovered) = recover(&shared)?;
        let active = match resume {
            Resume::Active(active) => active,
            Resume::Create { sequence, previous_end } => {
                let active = create(&shared, &settings, &mut salts, sequence, previous_end, 0)?;
                make_durable(&shared, &active)?;
                recovered.segments += 1;
                shared.insert(Arc::clone(&active.segment));
                active
            }
        };
        let segments = Segments {
            shared,
            settings,
            salts,
            active,
            draft: Draft::default(),
            is_poisoned: false,
            _lock: lock,
        };
        Ok((segments, recovered))
    }

    /// Appends a batch and makes it durable: one write, one sync. Returns where each record went.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`] and [`JournalError::TooLarge`] leave nothing of the batch behind. After
    /// [`JournalError::Disk`] it may or may not be found when the journal is reopened, and until then every append
    /// is [`JournalError::Poisoned`].
    pub fn commit<'a>(
        &mut self,
        batch: impl IntoIterator<Item = Entry<'a>>,
    ) -> Result<Vec<Position>, JournalError> {
        self.lay_out(batch)?;
        if self.draft.len() == 0 {
            return self.sync().map(|()| Vec::new());
        }
        let (positions, end) = self.write()?;
        if !is_planted(Bug::MissingSync) {
            self.sync_active()?;
        }
        self.show(end);
        self.active.synced = end;
        Ok(positions)
    }

    /// Appends a batch that the next [`Segments::sync`] or [`Segments::commit`] makes durable. Until then a crash
    /// may lose it, from some record on to the end.
    ///
    /// # Errors
    /// As [`Segments::commit`].
    pub fn append_unsynced<'a>(
        &mut self,
        batch: impl IntoIterator<Item = Entry<'a>>,
    ) -> Result<Vec<Position>, JournalError> {
        self.lay_out(batch)?;
        let (positions, end) = self.write()?;
        self.show(end);
        Ok(positions)
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`], or a failure of the disk, which poisons.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.refuse_poisoned()?;
        if self.active.synced < self.active.end {
            self.sync_active()?;
            self.active.synced = self.active.end;
        }
        Ok(())
    }

    /// Syncs, and leaves a seal that lets the next open tell damage at the very end from a torn tail.
    ///
    /// # Errors
    /// As [`Segments::sync`]. A disk too full for the seal is not an error: everything else is durable.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.sync()?;
        // A segment longer than we write them leaves no room for another offset.
        if self.active.is_sealed || self.active.end > SEGMENT_BYTES_MAX * 2 {
            return Ok(());
        }
        self.draft.clear(BUFFER_KEEP);
        self.draft.push_seal();
        match self.write_here() {
            Ok(_) => self.sync_active(),
            Err(JournalError::NoSpace) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The record at a position, with its sums checked.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read(&self, position: Position) -> Result<Record, JournalError> {
        self.reader().read(position)
    }

    /// All records from `from` on, in order.
    #[must_use]
    pub fn scan(&self, from: Position) -> Scan {
        self.reader().scan(from)
    }

    /// A view for other threads. It sees records once they are acknowledged, unsynced ones included.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader { shared: Arc::clone(&self.shared) }
    }

    /// The segments there are, oldest first. The last one is appended to.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared.infos()
    }

    /// Where the next record goes, unless it needs a new segment.
    #[must_use]
    pub fn tail(&self) -> Position {
        Position { segment: self.active.segment.sequence, offset: self.active.end }
    }

    /// Whether appending is refused until the journal is reopened.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// Removes the segments before `segment`, but never the one appended to. Says how many went.
    ///
    /// Oldest first, and each removal is durable before the next, so that a crash leaves no hole.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`], or a failure of the disk; those already removed stay removed.
    pub fn remove_before(&mut self, segment: u64) -> Result<usize, JournalError> {
        self.refuse_poisoned()?;
        let limit = segment.min(self.active.segment.sequence);
        let mut removed = 0;
        while let Some(first) = self.shared.first().filter(|first| first.sequence < limit) {
            // Forgotten first: a reader that comes now is told that it is gone, and does not find it missing.
            self.shared.forget(first.sequence);
            match self.shared.disk.remove(&self.shared.path(first.sequence)) {
                // A segment that was found missing has nothing to remove.
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => {
                    self.shared.insert(first);
                    return Err(error.into());
                }
            }
            self.shared.disk.sync_dir(&self.shared.dir).map_err(|error| self.poison(error))?;
            removed += 1;
        }
        Ok(removed)
    }

    fn lay_out<'a>(&mut self, batch: impl IntoIterator<Item = Entry<'a>>) -> Result<(), JournalError> {
        self.refuse_poisoned()?;
        self.draft.clear(BUFFER_KEEP);
        let payload_max = self.settings.record_bytes_max.min(RECORD_BYTES_MAX);
        for Entry { kind, payload, sum } in batch {
            too_large(payload.len() as u64, u64::from(payload_max))?;
            too_large((self.draft.len() + record_bytes(payload.len())) as u64, BATCH_BYTES_MAX)?;
            self.draft.push(kind, payload, sum.unwrap_or_else(|| body_sum(payload)));
        }
        Ok(())
    }

    /// Writes the draft, in a new segment if it does not fit this one. Nothing is shown to readers yet.
    fn write(&mut self) -> Result<(Vec<Position>, u32), JournalError> {
        let segment_bytes = self.settings.segment_bytes.min(SEGMENT_BYTES_MAX);
        let is_fresh = self.active.end == FIRST;
        if !is_fresh && self.active.end as usize + self.draft.len() > segment_bytes as usize {
            self.rotate()?;
        }
        self.write_here()
    }

    fn write_here(&mut self) -> Result<(Vec<Position>, u32), JournalError> {
        let Active { end: from, synced, allocated, .. } = self.active;
        let len = u32::try_from(self.draft.len()).expect("BATCH_BYTES_MAX fits");
        let end = from + len;
        if end > allocated {
            // Refused here, the file has at most grown by zeros, which mean nothing.
            let file = &self.active.file;
            let allocate = |wanted: u32| {
                file.allocate(u64::from(allocated), u64::from(wanted - allocated)).map(|()| wanted)
            };
            let grown = match allocate(chunks(&self.settings, end)) {
                Err(error) if error.is_no_space() && len <= FEW_BYTES => allocate(end),
                grown => grown,
            };
            match grown {
                Ok(wanted) => self.active.allocated = wanted,
                Err(error) if error.is_no_space() => return Err(error.into()),
                Err(error) => return Err(self.poison(error)),
            }
        }
        let sequence = self.active.segment.sequence;
        let mut positions = Vec::new();
        let bytes = self.draft.finish(from, synced, &self.active.key, |offset| {
            positions.push(Position { segment: sequence, offset });
        });
        match self.active.file.write_at(u64::from(from), bytes) {
            Ok(()) => Ok((positions, end)),
            Err(error) if error.is_no_space() => Err(self.roll_back(error)),
            Err(error) => Err(self.poison(error)),
        }
    }

    /// Takes a half-written batch off the disk again, durably: a refused record must not turn up after a crash.
    fn roll_back(&mut self, error: DiskError) -> JournalError {
        let Active { end, .. } = self.active;
        if let Err(failed) = self.active.file.set_len(u64::from(end)) {
            return self.poison(failed);
        }
        self.active.allocated = end;
        if let Err(failed) = self.sync_active() {
            return failed;
        }
        self.active.synced = end;
        error.into()
    }

    fn rotate(&mut self) -> Result<(), JournalError> {
        let Active { end, synced, allocated, .. } = self.active;
        if allocated > end {
            // The spare space goes back before the segment is closed for good.
            self.active.file.set_len(u64::from(end)).map_err(|error| self.poison(error))?;
            self.active.allocated = end;
        }
        if synced < end || allocated > end {
            self.sync_active()?;
            self.active.synced = end;
        }
        let sequence = next_sequence(self.active.segment.sequence).ok_or(JournalError::NoSpace)?;
        let created =
            create(&self.shared, &self.settings, &mut self.salts, sequence, u64::from(end), self.draft.len());
        match created {
            Ok(active) => {
                make_durable(&self.shared, &active).map_err(|error| self.poison(error))?;
                self.shared.insert(Arc::clone(&active.segment));
                self.active = active;
                Ok(())
            }
            Err(error) if error.is_no_space() => {
                // The old segment may still take smaller batches, so the new one must be gone for good first: its
                // header would say that the old one ends here.
                let gone = match self.shared.disk.remove(&self.shared.path(sequence)) {
                    Ok(()) => self.shared.disk.sync_dir(&self.shared.dir),
                    Err(DiskError::NotFound { .. }) => Ok(()),
                    Err(error) => Err(error),
                };
                match gone {
                    Ok(()) => Err(JournalError::NoSpace),
                    Err(failed) => Err(self.poison(failed)),
                }
            }
            Err(error) => Err(self.poison(error)),
        }
    }

    fn sync_active(&mut self) -> Result<(), JournalError> {
        self.active.file.sync_data().map_err(|error| self.poison(error))
    }

    fn show(&mut self, end: u32) {
        self.active.is_sealed &= end == self.active.end;
        self.active.end = end;
        self.active.segment.end.store(end, Ordering::Release);
    }

    fn refuse_poisoned(&self) -> Result<(), JournalError> {
        if self.is_poisoned { Err(JournalError::Poisoned) } else { Ok(()) }
    }

    fn poison(&mut self, error: DiskError) -> JournalError {
        self.is_poisoned = true;
        // Even a full disk: this one was met where going back was impossible.
        JournalError::Disk(error)
    }
}

fn too_large(bytes: u64, limit: u64) -> Result<(), JournalError> {
    if bytes > limit {
        return Err(JournalError::TooLarge { bytes, limit });
    }
    Ok(())
}

/// Makes a segment, which is not durable yet.
fn create(
    shared: &Shared,
    settings: &Settings,
    salts: &mut SaltSource,
    sequence: u64,
    previous_end: u64,
    batch: usize,
) -> Result<Active, DiskError> {
    let header = Header { sequence, salt: salts.next(), previous_end };
    let file = shared.disk.create(&shared.path(sequence))?;
    let allocated = reserve(&file, settings, batch)?;
    file.write_at(0, &header.encode())?;
    let key = header.key();
    let next = Position { segment: sequence.saturating_add(1), offset: 0 };
    Ok(Active {
        segment: Arc::new(Segment::new(sequence, Some(key.clone()), FIRST, next)),
        key,
        file,
        end: FIRST,
        synced: FIRST,
        allocated,
        is_sealed: false,
    })
}

/// Makes a new segment durable, name and all. Only then may records go into it.
fn make_durable(shared: &Shared, active: &Active) -> Result<(), DiskError> {
    active.file.sync_all()?;
    if !is_planted(Bug::MissingDirSync) {
        shared.disk.sync_dir(&shared.dir)?;
    }
    Ok(())
}

/// How far to reserve so that `end` is covered: whole chunks, but not past the size of a segment.
fn chunks(settings: &Settings, end: u32) -> u32 {
    let chunk = settings.chunk_bytes.clamp(1, SEGMENT_BYTES_MAX);
    end.next_multiple_of(chunk).min(settings.segment_bytes.max(end))
}

/// Reserves the first chunk, or as much as the batch at hand needs.
fn reserve(file: &File, settings: &Settings, batch: usize) -> Result<u32, DiskError> {
    let needed = FIRST + u32::try_from(batch).expect("BATCH_BYTES_MAX fits");
    let allocated = chunks(settings, needed);
    file.allocate(0, u64::from(allocated))?;
    Ok(allocated)
}

#[derive(Debug)]
enum SaltSource {
    Random,
    Seeded(fastrand::Rng),
}

impl SaltSource {
    fn new(salts: Salts) -> Self {
        match salts {
            Salts::Random => SaltSource::Random,
            Salts::Seeded(seed) => SaltSource::Seeded(fastrand::Rng::with_seed(seed)),
        }
    }

    fn next(&mut self) -> [u8; 16] {
        let mut salt = [0; 16];
        match self {
            SaltSource::Random => {
                let random =
                    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut salt));
                if random.is_err() {
                    // Where there is no such device, the keys of std's hash maps come from the same place.
                    let (high, low) = salt.split_at_mut(8);
                    high.copy_from_slice(&hash_map_key().to_be_bytes());
                    low.copy_from_slice(&hash_map_key().to_be_bytes());
                }
            }
            SaltSource::Seeded(rng) => rng.fill(&mut salt),
        }
        salt
    }
}

fn hash_map_key() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
