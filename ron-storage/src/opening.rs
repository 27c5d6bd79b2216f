//! Opening a store after anything may have happened to it.
//!
//! The directory is locked, its format is checked, the journal recovers, the index is read if it can be believed, and the
//! journal from where the index ends. A marker file that only a clean stop removes says whether files may be left over.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Supervisor,
    disk::{self, Access, Disk, DiskError, DiskLock},
    journal::{self, Item, Journal, JournalError, OnDamage, Opening, Position, Salts, SegmentInfo},
};

use crate::{
    Settings, StorageError,
    error::{of_disk, of_journal},
    index,
    large::{self, Large},
    logic::{
        records::{Note, SMALL},
        table::{Entry, Home, Spot, Table},
    },
    objects::Parts,
    settings::SMALL_BYTES_LIMIT,
};

const LOCK: &str = "LOCK";
const STORE: &str = "STORE";
const OPEN: &str = "OPEN";
const LOG: &str = "log";

const MAGIC: [u8; 8] = *b"\x89RONS\r\n\x1a";
/// The format of the directory. A program that knows another one does not touch it.
const VERSION: u32 = 1;
const STORE_BYTES: usize = 48;

/// Reading a whole journal takes minutes; on a slow disk it may take longer, and there is nothing to do meanwhile.
const OPENING: Duration = Duration::from_secs(24 * 3600);

/// Large objects that are written down at a time when they are taken over.
const ADOPTED_STEP: usize = 256;

/// What opening a store found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Opened {
    /// Objects that are here.
    pub objects: u64,
    /// Whether the last stop was clean.
    pub was_clean: bool,
    /// Why the index was not used and the whole journal was read, if it was.
    pub rebuilt: Option<String>,
    /// Records of the journal that were read besides the index.
    pub replayed: u64,
    /// Whether the end of the journal was torn, and cut off.
    pub was_torn: bool,
    /// Stretches of the journal that cannot be read. What was there is lost, if it is not here otherwise.
    pub damaged: u64,
    /// Files that belonged to no object and were removed.
    pub swept: usize,
    /// Large objects of which the journal no longer says anything, because a part of it cannot be read, and whose files are
    /// whole. They are here again; one that was deleted shortly before may be among them.
    pub adopted: u64,
    /// Files that seem to belong to no object. They were left where they are, because a part of the journal cannot be read and
    /// may have said otherwise.
    pub left: u64,
}

/// What is held while the store is open. Dropping it lets others open the directory.
pub(crate) struct Custody {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    _lock: DiskLock,
}

impl Custody {
    /// Notes that nothing was left over. Blocks.
    pub(crate) fn close(&self) -> Result<(), DiskError> {
        self.disk.remove(&self.dir.join(OPEN))?;
        self.disk.sync_dir(&self.dir)
    }
}

impl std::fmt::Debug for Custody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Custody({})", self.dir.display())
    }
}

/// Where a store is, and what kind of place that is.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    /// Whether what is synced survives.
    pub(crate) is_durable: bool,
    pub(crate) seed: Option<u64>,
    #[cfg(feature = "net")]
    pub(crate) clock: crate::claims::UnixClock,
}

/// Opens the store at `site`. The journal's writer runs in the group `journal`, other blocking work in `group`.
pub(crate) async fn open(
    group: &Supervisor,
    journal_group: &Supervisor,
    site: Site,
    settings: &Settings,
) -> Result<(Parts, Custody, Opened), StorageError> {
    let deadline = Deadline::after(OPENING);
    let begin = {
        let site = site.clone();
        move || begin(&site)
    };
    let (custody, store, was_clean) = group.blocking("storage_open", deadline, begin).await??;

    let journal_settings = journal::Settings {
        name: "storage.journal",
        segment_bytes: settings.segment_bytes,
        chunk_bytes: (settings.segment_bytes / 8).clamp(4096, 8 << 20),
        // Not `small_bytes_max`, which may have been larger when what is compacted now was put.
        record_bytes_max: SMALL_BYTES_LIMIT,
        // What all streams together may hold, and one record however long.
        pending_bytes_max: settings.stream_bytes_max.saturating_mul(2).max(2 * u64::from(SMALL_BYTES_LIMIT)),
        on_damage: OnDamage::Report,
        opening: Opening::ReadLast,
        salts: site.seed.map_or(Salts::Random, Salts::Seeded),
    };
    let log = site.dir.join(LOG);
    let (journal, recovered) = Journal::open(journal_group, Arc::clone(&site.disk), &log, journal_settings)
        .await
        .map_err(of_journal)?;

    let large = Large::new(&site.disk, &site.dir, group.metrics());
    #[cfg(feature = "net")]
    let partials = crate::partial::Partials::new(&site.disk, &site.dir, &large, group.metrics());
    let load = {
        let (site, reader) = (site.clone(), journal.reader());
        let files = Files {
            large: Arc::clone(&large),
            #[cfg(feature = "net")]
            partials: Arc::clone(&partials),
        };
        // Of the journal that was there nothing is left, and one was begun in its place.
        let is_new = recovered.discarded.is_some()
            && reader.segments().first().map(|first| first.sequence) == recovered.discarded;
        move || load(&site, store, &files, &reader, was_clean, is_new)
    };
    let Loaded { table, mut end, indexed, adopted, mut opened } =
        group.blocking("storage_open", deadline, load).await??;
    for some in adopted.chunks(ADOPTED_STEP) {
        let notes = some.iter().flat_map(adopting).collect();
        let positions = journal.append_all(notes, deadline).await.map_err(of_journal)?;
        end = positions.last().and_then(|last| Spot::of(*last)).unwrap_or(end);
    }
    opened.was_clean = was_clean;
    opened.was_torn = recovered.cut.is_some();
    let Site { disk, dir, is_durable, .. } = site;
    let spawner = group.spawner();
    #[cfg(feature = "net")]
    let book = {
        let salts = site.seed.map_or(Salts::Random, Salts::Seeded);
        Arc::new(crate::claims::Book::open(journal_group, Arc::clone(&disk), &dir, salts, site.clock).await?)
    };
    let parts = Parts {
        table,
        large,
        #[cfg(feature = "net")]
        partials,
        journal,
        disk,
        dir,
        store,
        is_durable,
        end,
        indexed,
        spawner,
        #[cfg(feature = "net")]
        book,
    };
    Ok((parts, custody, opened))
}

/// What lies beside the journal.
struct Files {
    large: Arc<Large>,
    #[cfg(feature = "net")]
    partials: Arc<crate::partial::Partials>,
}

/// Locks the directory and looks what it is. Says whether the last stop was clean.
fn begin(site: &Site) -> Result<(Custody, [u8; 16], bool), StorageError> {
    let Site { disk, dir, seed, .. } = site;
    disk::make_dirs(&**disk, dir).map_err(of_disk)?;
    let locked = disk.lock(&dir.join(LOCK)).map_err(|error| match error {
        DiskError::Locked { .. } => StorageError::Locked { path: dir.clone() },
        other => of_disk(other),
    });
    let custody = Custody { disk: Arc::clone(disk), dir: dir.clone(), _lock: locked? };
    disk::sweep_temporary(&**disk, dir).map_err(of_disk)?;
    let store = match read_store(&**disk, dir)? {
        Some(store) => {
            check_journal(&**disk, dir)?;
            store
        }
        None => make_store(&**disk, dir, *seed)?,
    };
    disk::make_dirs(&**disk, &dir.join(large::DIR)).map_err(of_disk)?;
    let was_clean = match disk.create(&dir.join(OPEN)) {
        Ok(_) => true,
        Err(DiskError::AlreadyExists { .. }) => false,
        Err(error) => return Err(of_disk(error)),
    };
    // Also if it was there: whoever made it may have died before this.
    disk.sync_dir(dir).map_err(of_disk)?;
    Ok((custody, store, was_clean))
}

fn store_sum(bytes: &[u8]) -> [u8; 16] {
    let mut sum = [0; 16];
    sum.copy_from_slice(&blake3::hash(&bytes[..32]).as_bytes()[..16]);
    sum
}

fn read_store(disk: &dyn Disk, dir: &Path) -> Result<Option<[u8; 16]>, StorageError> {
    let file = match disk.open(&dir.join(STORE), Access::Read) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        opened => opened.map_err(of_disk)?,
    };
    let mut bytes = [0; STORE_BYTES];
    let read = file.read_at(0, &mut bytes).map_err(of_disk)?;
    let damaged = || StorageError::Disk {
        message: format!(
            "{} is not what a store has there; put it back from a copy",
            dir.join(STORE).display()
        ),
    };
    if read != STORE_BYTES || bytes[..8] != MAGIC {
        return Err(damaged());
    }
    let mut version = [0; 4];
    version.copy_from_slice(&bytes[8..12]);
    let found = u32::from_be_bytes(version);
    if bytes[32..] != store_sum(&bytes) {
        return Err(damaged());
    }
    if found != VERSION {
        return Err(StorageError::Version { found, known: VERSION });
    }
    let mut store = [0; 16];
    store.copy_from_slice(&bytes[16..32]);
    Ok(Some(store))
}

/// Whether there are files whose names end like this.
fn has_files(disk: &dyn Disk, dir: &Path, end: &str) -> Result<bool, StorageError> {
    match disk.list(dir) {
        Ok(names) => Ok(names.iter().any(|entry| entry.is_file && entry.name.ends_with(end))),
        Err(DiskError::NotFound { .. }) => Ok(false),
        Err(error) => Err(of_disk(error)),
    }
}

/// Large objects without a journal are half of a copy, or a disk is not mounted: a new journal would know none of them.
fn check_journal(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    if has_files(disk, &dir.join(LOG), ".seg")? || !has_files(disk, &dir.join(large::DIR), "")? {
        return Ok(());
    }
    let message = format!(
        "{} has no journal and there are large objects; put it back from a copy",
        dir.join(LOG).display()
    );
    Err(StorageError::Disk { message })
}

fn make_store(disk: &dyn Disk, dir: &Path, seed: Option<u64>) -> Result<[u8; 16], StorageError> {
    // A directory with a journal or with objects and without this file is half of a copy, and no new store.
    if has_files(disk, &dir.join(LOG), "")? || has_files(disk, &dir.join(large::DIR), "")? {
        let message = format!(
            "{} is missing and there is a journal; put it back from a copy",
            dir.join(STORE).display()
        );
        return Err(StorageError::Disk { message });
    }
    let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
    let mut store = [0; 16];
    rng.fill(&mut store);
    let mut bytes = [0; STORE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
    bytes[16..32].copy_from_slice(&store);
    let sum = store_sum(&bytes);
    bytes[32..].copy_from_slice(&sum);
    disk::replace(disk, &dir.join(STORE), &bytes).map_err(of_disk)?;
    Ok(store)
}

/// What the index and the journal say.
struct Loaded {
    table: Table,
    /// Where the journal ended.
    end: Spot,
    /// Bytes of the journal that the index knew.
    indexed: u64,
    /// What of the large objects the journal has to be told.
    adopted: Vec<Entry>,
    opened: Opened,
}

/// Reads the index and the journal behind it.
fn load(
    site: &Site,
    store: [u8; 16],
    files: &Files,
    reader: &journal::Reader,
    was_clean: bool,
    is_new: bool,
) -> Result<Loaded, StorageError> {
    let large = &*files.large;
    let mut opened = Opened::default();
    let (table, mut from) = match index::load(&*site.disk, &site.dir, &store, reader) {
        Ok((header, table)) => {
            large.skip_to(header.next_file);
            (table, header.floor.position())
        }
        Err(reason) => {
            opened.rebuilt = Some(reason.to_string());
            (Table::default(), Position::START)
        }
    };
    let mut replaying = Replaying { table, opened, orphans: Orphans::default() };
    let mut end = replaying.replay(reader, from, large);
    if let (Err(JournalError::NoRecord { .. }), None) = (&end, &replaying.opened.rebuilt) {
        // The place where it says that it ends is inside something else.
        replaying = Replaying::default();
        replaying.opened.rebuilt = Some(index::Unusable::Foreign.to_string());
        from = Position::START;
        end = replaying.replay(reader, from, large);
    }
    let end = end.map_err(of_journal)?;
    let Replaying { mut table, mut opened, orphans } = replaying;
    // An index that is older than a compaction may know places that are gone. What could be moved was, and that was replayed.
    let first = reader.segments().first().map(|first| Position { segment: first.sequence, offset: 0 });
    if let Some(first) = first.and_then(Spot::of) {
        table.lose_before(first);
    }
    let mut adopted = Vec::new();
    // A file that the journal does not know is left over from a crash, if the journal can be read. If a part of it cannot, it
    // may as well be an object whose record was there.
    if opened.damaged > 0 || is_new {
        adopted = adopt(large, &mut table, &orphans, &mut opened)?;
    }
    let is_swept = opened.damaged == 0 && !is_new && !was_clean;
    #[allow(unused_mut, reason = "there is more with the feature `net`")]
    let mut kept = table.files();
    #[cfg(feature = "net")]
    kept.extend(files.partials.load(&table).map_err(of_disk)?);
    if is_swept {
        opened.swept = large.sweep_unknown(&kept).map_err(of_disk)?;
    }
    opened.objects = table.totals().objects;
    let before = |segment: &SegmentInfo| match segment.sequence.cmp(&from.segment) {
        Ordering::Less => u64::from(segment.bytes),
        Ordering::Equal => u64::from(segment.bytes.min(from.offset)),
        Ordering::Greater => 0,
    };
    let indexed = reader.segments().iter().map(before).sum();
    Ok(Loaded { table, end, indexed, adopted, opened })
}

/// What the part of a journal that can be read says of objects whose own records may be in another.
#[derive(Debug, Default)]
struct Orphans {
    /// Files that belonged to an object.
    files: BTreeSet<u64>,
    /// Whether an object that is not known was pinned, or deleted, last.
    fates: BTreeMap<ContentId, Fate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pinned,
    Unpinned,
    Deleted,
}

#[derive(Debug, Default)]
struct Replaying {
    table: Table,
    opened: Opened,
    orphans: Orphans,
}

impl Replaying {
    fn replay(
        &mut self,
        reader: &journal::Reader,
        from: Position,
        large: &Large,
    ) -> Result<Spot, JournalError> {
        let mut end = Spot::of(from).unwrap_or_default();
        for item in reader.scan(from) {
            let record = match item? {
                Item::Record(record) => record,
                Item::Damaged(damage) => {
                    self.opened.damaged += 1;
                    tracing::error!(from = %damage.from, to = %damage.to, "a part of the journal cannot be read");
                    continue;
                }
            };
            let Some(spot) = Spot::of(record.position) else { return Err(JournalError::NoSpace) };
            (end, self.opened.replayed) = (spot, self.opened.replayed + 1);
            if record.kind == SMALL {
                self.table.replay_small(record.name, record.payload.len() as u64, spot);
                continue;
            }
            let Some(note) = Note::decode(record.kind, &record.payload) else {
                tracing::warn!(at = %record.position, kind = record.kind, "a record of a kind that is not known");
                continue;
            };
            if let Note::Large { file, .. } = note {
                large.skip_to(file.saturating_add(1));
            }
            self.orphans.hear(&note, &self.table, self.opened.damaged > 0);
            self.table.replay(&note);
        }
        Ok(end)
    }
}

impl Orphans {
    /// Takes note of what is about to be replayed. Only behind damage can there be something that is not known and should
    /// be.
    fn hear(&mut self, note: &Note, table: &Table, is_behind_damage: bool) {
        let (id, fate) = match *note {
            Note::Pinned(id) => (id, Fate::Pinned),
            Note::Unpinned(id) => (id, Fate::Unpinned),
            Note::Deleted(id) => (id, Fate::Deleted),
            Note::Large { id, file, .. } => {
                self.files.insert(file);
                self.fates.remove(&id);
                return;
            }
            Note::Bad { .. } | Note::Checkpoint(_) => return,
        };
        match table.get(&id) {
            // The index knew it, so its own record is not read.
            Some(Entry { home: Home::Large(file), .. }) if fate == Fate::Deleted => {
                self.files.insert(file);
            }
            None if is_behind_damage => {
                self.fates.insert(id, fate);
            }
            _ => {}
        }
    }
}

/// Takes large objects over whose files are whole and of which the journal says nothing, because a part of it cannot be
/// read. Nothing is removed but what the journal says was deleted or replaced. Blocks.
fn adopt(
    large: &Large,
    table: &mut Table,
    orphans: &Orphans,
    opened: &mut Opened,
) -> Result<Vec<Entry>, StorageError> {
    let known = table.files();
    let mut adopted = Vec::new();
    for file in large.files().map_err(of_disk)? {
        large.skip_to(file.saturating_add(1));
        if known.contains(&file) {
            continue;
        }
        if orphans.files.contains(&file) {
            opened.swept += large.remove(file).map_err(of_disk)?;
            continue;
        }
        let Some((id, len)) = large.describe(file) else {
            opened.left += 1;
            continue;
        };
        let fate = orphans.fates.get(&id).copied();
        let before = table.get(&id);
        if fate == Some(Fate::Deleted) || before.is_some_and(|before| !before.is_bad) {
            opened.swept += large.remove(file).map_err(of_disk)?;
            continue;
        }
        if before.is_some_and(|before| before.home != Home::Lost) {
            opened.left += 1;
            continue;
        }
        let is_pinned = fate == Some(Fate::Pinned) || before.is_some_and(|before| before.is_pinned);
        let entry = Entry { id, home: Home::Large(file), len, is_pinned, is_bad: false };
        table.insert(entry);
        adopted.push(entry);
    }
    opened.adopted = adopted.len() as u64;
    if opened.adopted + opened.left > 0 {
        tracing::warn!(
            adopted = opened.adopted,
            left = opened.left,
            "the journal does not know some large files, and a part of it cannot be read"
        );
    }
    Ok(adopted)
}

/// What the journal is told of an object that was taken over.
fn adopting(entry: &Entry) -> Vec<(u8, Bytes)> {
    let Home::Large(file) = entry.home else { return Vec::new() };
    let mut notes = vec![Note::Large { id: entry.id, file, len: entry.len }];
    if entry.is_pinned {
        notes.push(Note::Pinned(entry.id));
    }
    notes.iter().map(Note::encode).map(|(kind, payload)| (kind, payload.into())).collect()
}
