//! Opening a store after anything may have happened to it.
//!
//! The directory is locked, its format is checked, the journal recovers, the index is read as far as it can be believed
//! and the journal from there on. A marker that only a clean stop takes away says whether files may have been left over.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ron_core::{
    Deadline, Supervisor,
    disk::{self, Access, Disk, DiskError, DiskLock},
    journal::{self, Item, Journal, JournalError, OnDamage, Opening, Position, Salts},
};

use crate::{
    Settings, StorageError,
    error::{of_disk, of_journal},
    index,
    large::Large,
    logic::{
        records::{Note, SMALL},
        table::{Spot, Table},
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

/// Bytes that wait for the journal's writer at most: what all streams together may hold.
const PENDING_BYTES_MAX: u64 = 128 << 20;

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
        pending_bytes_max: PENDING_BYTES_MAX,
        on_damage: OnDamage::Report,
        opening: Opening::ReadLast,
        salts: site.seed.map_or(Salts::Random, Salts::Seeded),
    };
    let log = site.dir.join(LOG);
    let (journal, recovered) = Journal::open(journal_group, Arc::clone(&site.disk), &log, journal_settings)
        .await
        .map_err(of_journal)?;

    let large = Large::new(&site.disk, &site.dir, group.metrics());
    let load = {
        let (site, large, reader) = (site.clone(), Arc::clone(&large), journal.reader());
        move || load(&site, store, &large, &reader, was_clean)
    };
    let (table, end, mut opened) = group.blocking("storage_open", deadline, load).await??;
    opened.was_clean = was_clean;
    opened.was_torn = recovered.cut.is_some();
    let Site { disk, dir, is_durable, .. } = site;
    let spawner = group.spawner();
    Ok((Parts { table, large, journal, disk, dir, store, is_durable, end, spawner }, custody, opened))
}

/// Locks the directory and looks what it is. Says whether the last stop was clean.
fn begin(site: &Site) -> Result<(Custody, [u8; 16], bool), StorageError> {
    let Site { disk, dir, seed, .. } = site;
    make_dirs(&**disk, dir).map_err(of_disk)?;
    let locked = disk.lock(&dir.join(LOCK)).map_err(|error| match error {
        DiskError::Locked { .. } => StorageError::Locked { path: dir.clone() },
        other => of_disk(other),
    });
    let custody = Custody { disk: Arc::clone(disk), dir: dir.clone(), _lock: locked? };
    disk::sweep_temporary(&**disk, dir).map_err(of_disk)?;
    let store = read_store(&**disk, dir)?;
    let store = match store {
        Some(store) => store,
        None => make_store(&**disk, dir, *seed)?,
    };
    make_dirs(&**disk, &dir.join("large")).map_err(of_disk)?;
    let was_clean = match disk.create(&dir.join(OPEN)) {
        Ok(_) => true,
        Err(DiskError::AlreadyExists { .. }) => false,
        Err(error) => return Err(of_disk(error)),
    };
    // Also if it was there: whoever made it may have died before this.
    disk.sync_dir(dir).map_err(of_disk)?;
    Ok((custody, store, was_clean))
}

/// Makes a directory and those above it, durably.
fn make_dirs(disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
    let mut path = PathBuf::new();
    for component in dir.components() {
        path.push(component);
        match disk.make_dir(&path) {
            Ok(()) | Err(DiskError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        disk.sync_dir(path.parent().unwrap_or(Path::new("")))?;
    }
    Ok(())
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

fn make_store(disk: &dyn Disk, dir: &Path, seed: Option<u64>) -> Result<[u8; 16], StorageError> {
    // A directory with a journal and without this file is half of a copy, and no new store.
    let log = disk.list(&dir.join(LOG)).map_or(0, |names| names.len());
    if log > 0 {
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

/// Reads the index and the journal behind it. Says also where the journal ended.
fn load(
    site: &Site,
    store: [u8; 16],
    large: &Large,
    reader: &journal::Reader,
    was_clean: bool,
) -> Result<(Table, Spot, Opened), StorageError> {
    let mut opened = Opened::default();
    let (mut table, from) = match index::load(&*site.disk, &site.dir, &store, reader) {
        Ok((header, table)) => {
            large.skip_to(header.next_file);
            (table, header.floor.position())
        }
        Err(index::Unusable::Disk(error)) => return Err(of_disk(error)),
        Err(reason) => {
            opened.rebuilt = Some(reason.to_string());
            (Table::default(), Position::START)
        }
    };
    let mut end = replay(reader, from, &mut table, large, &mut opened);
    if let (Err(JournalError::NoRecord { .. }), None) = (&end, &opened.rebuilt) {
        // The place where it says that it ends is inside something else.
        (table, opened) = (Table::default(), Opened::default());
        opened.rebuilt = Some(index::Unusable::Foreign.to_string());
        end = replay(reader, Position::START, &mut table, large, &mut opened);
    }
    let end = end.map_err(of_journal)?;
    if !was_clean {
        opened.swept = large.sweep_unknown(&table.files()).map_err(of_disk)?;
    }
    opened.objects = table.totals().objects;
    Ok((table, end, opened))
}

fn replay(
    reader: &journal::Reader,
    from: Position,
    table: &mut Table,
    large: &Large,
    opened: &mut Opened,
) -> Result<Spot, JournalError> {
    let mut end = Spot::of(from).unwrap_or_default();
    for item in reader.scan(from) {
        let record = match item? {
            Item::Record(record) => record,
            Item::Damaged(damage) => {
                opened.damaged += 1;
                tracing::error!(from = %damage.from, to = %damage.to, "a part of the journal cannot be read");
                continue;
            }
        };
        let Some(spot) = Spot::of(record.position) else { return Err(JournalError::NoSpace) };
        (end, opened.replayed) = (spot, opened.replayed + 1);
        if record.kind == SMALL {
            table.replay_small(record.name, record.payload.len() as u64, spot);
            continue;
        }
        match Note::decode(record.kind, &record.payload) {
            Some(note) => {
                if let Note::Large { file, .. } = note {
                    large.skip_to(file.saturating_add(1));
                }
                table.replay(&note);
            }
            None => {
                tracing::warn!(at = %record.position, kind = record.kind, "a record of a kind that is not known")
            }
        }
    }
    Ok(end)
}
