//! Objects of which a part has been fetched: kept from one try to the next, and over a restart.
//!
//! The bytes and the tree lie where those of a large object do, under a number of their own, so that they become an object
//! with the last group, without a copy. A note beside them says which object it will be and which groups are there. The
//! note is written after the groups are synced, so what it says is on the disk; after a restart each group is checked all
//! the same before anything is built on it. Parts that no fetch comes back for are swept.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Lock, LockSpec, Metrics,
    disk::{self, Access, Disk, DiskError},
    now,
};
use tokio::time::Instant;

use crate::{
    StorageError,
    error::of_disk,
    holds::Hold,
    large::{Ingest, Large},
    logic::{fetch::GroupMap, table::Table, tree::Shape},
};

pub(crate) const PARTIALS: LockSpec = LockSpec::new("ron-storage", "partials", 704)
    .guards("of which objects a part is kept; held while one comes or goes");

const DIR: &str = "partial";
const KIND: &str = "part";
const MAGIC: [u8; 8] = *b"\x89RONP\r\n\x1a";
const VERSION: u16 = 1;
const HEADER: usize = 64;
const SUM: usize = 32;

/// What is kept of objects that are not complete.
pub(crate) struct Partials {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    large: Arc<Large>,
    shelf: Lock<Shelf>,
}

#[derive(Default)]
struct Shelf {
    kept: BTreeMap<ContentId, Kept>,
    /// Those that became objects, or cannot: their notes are still there. With the length for which room is still kept.
    over: Vec<(u64, Option<u64>)>,
}

/// A part of an object.
#[derive(Debug, Clone)]
struct Kept {
    file: u64,
    len: u64,
    map: GroupMap,
    /// Whether the map was read from the disk and is not checked yet.
    is_said: bool,
    /// How many groups the note says.
    noted: u64,
    /// Whether a fetch is at it.
    is_used: bool,
    /// If not, since when.
    left: Instant,
}

impl Partials {
    pub(crate) fn new(disk: &Arc<dyn Disk>, dir: &Path, large: &Arc<Large>, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Partials {
            disk: Arc::clone(disk),
            dir: dir.join(DIR),
            large: Arc::clone(large),
            shelf: Lock::new(PARTIALS, Shelf::default(), metrics),
        })
    }

    /// Finds what was left, and returns the numbers of the files that belong to it. Blocks.
    pub(crate) fn load(&self, table: &Table) -> Result<HashSet<u64>, DiskError> {
        let entries = match self.disk.list(&self.dir) {
            Err(DiskError::NotFound { .. }) => return Ok(HashSet::new()),
            entries => entries?,
        };
        disk::sweep_temporary(&*self.disk, &self.dir)?;
        let (known, mut files) = (table.files(), HashSet::new());
        for entry in entries.iter().filter(|entry| entry.is_file && entry.name.ends_with(KIND)) {
            let path = self.dir.join(&entry.name);
            let found = self.read(&path).unwrap_or_else(|error| {
                tracing::warn!(%error, "a note of what was fetched could not be read, and is dropped");
                None
            });
            let found = found.filter(|(id, kept)| {
                let is_here = table.get(id).is_some_and(|entry| !entry.is_bad);
                !is_here && !known.contains(&kept.file) && self.path(kept.file) == path
            });
            let Some((id, kept)) = found else {
                self.disk.remove(&path)?;
                // After a clean stop nobody else looks for what it was about.
                if let Some(file) = number(&entry.name).filter(|file| !known.contains(file)) {
                    self.large.skip_to(file.saturating_add(1));
                    self.large.doom(file);
                }
                continue;
            };
            self.large.skip_to(kept.file.saturating_add(1));
            files.insert(kept.file);
            let other = self.shelf.lock().kept.insert(id, kept);
            if let Some(other) = other {
                self.remove_note(other.file);
                self.large.doom(other.file);
            }
        }
        Ok(files)
    }

    fn read(&self, path: &Path) -> Result<Option<(ContentId, Kept)>, DiskError> {
        let file = self.disk.open(path, Access::Read)?;
        let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(decode(&bytes))
    }

    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("{file:016x}.{KIND}"))
    }

    /// How long an object is of which a part is here.
    pub(crate) fn len_of(&self, id: &ContentId) -> Option<u64> {
        self.shelf.lock().kept.get(id).map(|kept| kept.len)
    }

    /// Bytes and objects that all of them will be.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let shelf = self.shelf.lock();
        (shelf.kept.values().map(|kept| kept.len).sum(), shelf.kept.len() as u64)
    }

    /// The length of an object of which a part is here, and its groups; nothing while a fetch is at it.
    pub(crate) fn map_of(&self, id: &ContentId) -> Option<(u64, GroupMap)> {
        let shelf = self.shelf.lock();
        shelf.kept.get(id).filter(|kept| !kept.is_used).map(|kept| (kept.len, kept.map.clone()))
    }

    /// Begins a part of an object. `one` is the right to fetch it, of which there is one at a time. Blocks.
    pub(crate) fn begin(
        self: &Arc<Self>,
        id: ContentId,
        len: u64,
        one: Hold,
    ) -> Result<Partial, StorageError> {
        let ingest = self.large.begin()?;
        // Several write at once, and only one of them could make it.
        ingest.make_tree()?;
        let (file, map) = (ingest.file(), GroupMap::new(Shape::of(len).groups()));
        let kept = Kept { file, len, map, is_said: false, noted: 0, is_used: true, left: now() };
        self.shelf.lock().kept.insert(id, kept);
        Ok(Partial::new(self, id, len, ingest, one))
    }

    /// Goes on with a part of an object, or gives `one` back if there is no such part. A map that was read from the disk is
    /// checked first. Blocks.
    pub(crate) fn resume(
        self: &Arc<Self>,
        id: ContentId,
        one: Hold,
    ) -> Result<Result<Partial, Hold>, StorageError> {
        let Some(Kept { file, len, map, is_said, .. }) = self.take(&id) else { return Ok(Err(one)) };
        let ingest = match self.large.reopen(file) {
            Ok(ingest) => ingest,
            Err(DiskError::NotFound { .. }) => {
                self.end(&id, Some(len));
                return Ok(Err(one));
            }
            Err(error) => {
                self.leave(&id);
                return Err(of_disk(error));
            }
        };
        if is_said {
            let checked = match self.large.check_map((file, &id, len), &map) {
                Ok(checked) => checked,
                Err(error) => {
                    // The part is left as it is: dropping the files would give them up under the note that names them.
                    ingest.keep();
                    self.leave(&id);
                    return Err(error);
                }
            };
            if let Some(kept) = self.shelf.lock().kept.get_mut(&id) {
                (kept.map, kept.is_said) = (checked, false);
            }
        }
        Ok(Ok(Partial::new(self, id, len, ingest, one)))
    }

    fn take(&self, id: &ContentId) -> Option<Kept> {
        let mut shelf = self.shelf.lock();
        let kept = shelf.kept.get_mut(id).filter(|kept| !kept.is_used)?;
        kept.is_used = true;
        Some(kept.clone())
    }

    /// A fetch has ended, and its part stays for the next.
    fn leave(&self, id: &ContentId) {
        if let Some(kept) = self.shelf.lock().kept.get_mut(id) {
            (kept.is_used, kept.left) = (false, now());
        }
    }

    /// The part is no part any more: it has become an object, or never will. Its note goes with the next sweep, which also
    /// gives back the room that is still `reserved`.
    fn end(&self, id: &ContentId, reserved: Option<u64>) {
        let mut shelf = self.shelf.lock();
        if let Some(kept) = shelf.kept.remove(id) {
            shelf.over.push((kept.file, reserved));
        }
    }

    fn remove_note(&self, file: u64) {
        match self.disk.remove(&self.path(file)) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => tracing::warn!(file, %error, "a note of what was fetched could not be removed"),
        }
    }

    /// Drops the parts that no fetch came back to within `keep`, the empty ones, and those whose object `is_here` by now.
    /// Returns the lengths for which room was reserved. Blocks.
    pub(crate) fn sweep(&self, keep: Duration, is_here: impl Fn(&ContentId) -> bool) -> Vec<u64> {
        let over = std::mem::take(&mut self.shelf.lock().over);
        over.iter().for_each(|(file, _)| self.remove_note(*file));
        let mut left = Vec::new();
        self.shelf.lock().kept.retain(|id, kept| {
            let goes = kept.is_left(keep) || !kept.is_used && is_here(id);
            if goes {
                left.push((kept.file, kept.len));
            }
            !goes
        });
        for (file, _) in &left {
            // The note first: without it the rest is swept after a crash.
            self.remove_note(*file);
            self.large.doom(*file);
        }
        left.into_iter().map(|(_, len)| len).chain(over.into_iter().filter_map(|(_, len)| len)).collect()
    }

    /// Whether there is something to sweep.
    pub(crate) fn has_left(&self, keep: Duration, is_here: impl Fn(&ContentId) -> bool) -> bool {
        let goes = |(id, kept): (&ContentId, &Kept)| kept.is_left(keep) || !kept.is_used && is_here(id);
        let shelf = self.shelf.lock();
        !shelf.over.is_empty() || shelf.kept.iter().any(goes)
    }

    /// Writes the notes that are behind: after a clean stop no start looks for files without one. Blocks.
    pub(crate) fn settle(&self) -> Result<(), StorageError> {
        let is_owed = |kept: &Kept| !kept.is_used && kept.map.marked() != kept.noted;
        let owed: Vec<(ContentId, Kept)> = {
            let shelf = self.shelf.lock();
            shelf
                .kept
                .iter()
                .filter(|(_, kept)| is_owed(kept))
                .map(|(id, kept)| (*id, kept.clone()))
                .collect()
        };
        for (id, Kept { file, len, map, .. }) in owed {
            let ingest = self.large.reopen(file).map_err(of_disk)?;
            let noted = self.note(&ingest, &id, len, &map);
            ingest.keep();
            noted?;
        }
        Ok(())
    }

    /// Makes files durable, and then the note that says what is in them. Blocks.
    fn note(&self, ingest: &Ingest, id: &ContentId, len: u64, map: &GroupMap) -> Result<(), StorageError> {
        ingest.sync()?;
        // Also if it is there: whoever made it may have failed to make it durable.
        disk::make_dirs(&*self.disk, &self.dir).map_err(of_disk)?;
        let file = ingest.file();
        disk::replace(&*self.disk, &self.path(file), &encode(id, file, len, map)).map_err(of_disk)?;
        if let Some(kept) = self.shelf.lock().kept.get_mut(id) {
            kept.noted = map.marked();
        }
        Ok(())
    }
}

impl Kept {
    /// Whether no fetch is at it, and none is waited for.
    fn is_left(&self, keep: Duration) -> bool {
        let is_old = now().saturating_duration_since(self.left) >= keep;
        !self.is_used && (self.map.marked() == 0 || is_old)
    }
}

impl fmt::Debug for Partials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partials({})", self.shelf.lock().kept.len())
    }
}

/// The number of the files that a note is about, by its name.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(KIND)?.strip_suffix('.')?;
    u64::from_str_radix(digits, 16).ok()
}

fn encode(id: &ContentId, file: u64, len: u64, map: &GroupMap) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + map.as_bytes().len() + SUM);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(id.as_bytes());
    bytes.extend_from_slice(&file.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(map.as_bytes());
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(sum.as_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(ContentId, Kept)> {
    let (body, sum) = bytes.split_last_chunk::<SUM>()?;
    let (header, map) = body.split_first_chunk::<HEADER>()?;
    let is_ours = header[..8] == MAGIC && header[8..10] == VERSION.to_be_bytes();
    if !is_ours || blake3::hash(body) != *sum {
        return None;
    }
    let number = |at: usize| header[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let (file, len) = (number(48)?, number(56)?);
    let map = GroupMap::from_bytes(Shape::of(len).groups(), map)?;
    let id = ContentId::from_bytes(*header[16..].first_chunk()?);
    let noted = map.marked();
    Some((id, Kept { file, len, map, is_said: true, noted, is_used: false, left: now() }))
}

/// A part of an object that a fetch is at. Dropping it keeps what is there for the next fetch.
pub(crate) struct Partial {
    partials: Arc<Partials>,
    id: ContentId,
    len: u64,
    /// Taken when it becomes an object.
    ingest: Option<Ingest>,
    /// Held until the last job that writes to the part has ended, also if the fetch was cancelled: the next fetch must find
    /// all that this one leaves.
    _one: Hold,
}

/// A group on its way to the disk.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub(crate) group: u64,
    pub(crate) bytes: Bytes,
}

impl Partial {
    fn new(partials: &Arc<Partials>, id: ContentId, len: u64, ingest: Ingest, one: Hold) -> Self {
        Partial { partials: Arc::clone(partials), id, len, ingest: Some(ingest), _one: one }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn ingest(&self) -> Result<&Ingest, StorageError> {
        self.ingest.as_ref().ok_or(StorageError::Canceled)
    }

    /// What is written.
    pub(crate) fn map(&self) -> GroupMap {
        let shelf = self.partials.shelf.lock();
        shelf.kept.get(&self.id).map_or_else(|| GroupMap::new(0), |kept| kept.map.clone())
    }

    /// Writes groups and the nodes that came with them. Blocks.
    pub(crate) fn write(&self, groups: &[Arrived], nodes: Vec<(u64, [u8; 64])>) -> Result<(), StorageError> {
        let (ingest, shape) = (self.ingest()?, Shape::of(self.len));
        for arrived in groups {
            ingest.write(shape.group(arrived.group).start, &arrived.bytes)?;
        }
        ingest.write_nodes_at(nodes)?;
        if let Some(kept) = self.partials.shelf.lock().kept.get_mut(&self.id) {
            for arrived in groups {
                kept.map.mark(arrived.group);
            }
        }
        Ok(())
    }

    /// Makes what is written so far durable, and then the note that says so. Blocks.
    pub(crate) fn checkpoint(&self) -> Result<(), StorageError> {
        // What is written after this look may be durable too, and is not said to be.
        let map = self.map();
        self.partials.note(self.ingest()?, &self.id, self.len, &map)
    }

    /// Ends the tree of what is complete. Blocks.
    pub(crate) fn finish(&self) -> Result<(), StorageError> {
        self.ingest()?.write_header(&self.id, self.len)
    }

    /// The files, once nobody writes to them.
    pub(crate) fn hand_over(&mut self) -> Option<Arc<Ingest>> {
        self.ingest.take().map(Arc::new)
    }

    /// It is an object now, or never will be, and nobody keeps room for it.
    pub(crate) fn end(self) {
        self.partials.end(&self.id, None);
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        match self.ingest.take() {
            Some(ingest) => {
                ingest.keep();
                self.partials.leave(&self.id);
            }
            // Whoever was about to make an object of it was called off, or is done.
            None => self.partials.end(&self.id, Some(self.len)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::{
        io,
        pin::pin,
        sync::atomic::{AtomicBool, Ordering},
        task::Poll,
    };

    use ron_core::{
        disk::{DiskLock, Entry, File, MemoryDisk},
        sim::{CrashStyle, Fault, SimDisk},
    };

    use super::*;
    use crate::holds::Holds;

    /// Whoever fetched was called off, and a thread still writes for it. The next one waits for that, and has what it wrote.
    #[tokio::test]
    async fn who_comes_next_waits_for_the_last_who_writes() {
        let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(MemoryDisk::new()), Path::new(""));
        disk.make_dir(&dir.join("large")).unwrap();
        let (metrics, id) = (Metrics::default(), ContentId::of(b"x"));
        let (large, fetching) = (Large::new(&disk, dir, &metrics), Holds::new(&metrics));
        let partials = Partials::new(&disk, dir, &large, &metrics);
        let one = fetching.take(id).await;
        let fetcher = Arc::new(partials.begin(id, 3 << 16, one).unwrap());
        // Several would make it at once.
        assert!(disk.list(&dir.join("large")).unwrap().iter().any(|file| file.name.ends_with(".tree")));
        let thread = Arc::clone(&fetcher);
        drop(fetcher);
        let mut next = pin!(fetching.take(id));
        assert!(std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await);
        let bytes = Bytes::from(vec![0; 1 << 16]);
        thread.write(&[Arrived { group: 1, bytes }], Vec::new()).unwrap();
        drop(thread);
        let one = next.await;
        let resumed = partials.resume(id, one).unwrap().unwrap_or_else(|_| panic!("it is kept"));
        assert_eq!((resumed.map().marked(), resumed.map().has(1)), (1, true));
    }

    /// A disk on which files cannot be opened for reading while it is out of descriptors.
    #[derive(Debug)]
    struct Exhausted(SimDisk, AtomicBool);

    impl Disk for Exhausted {
        fn create(&self, path: &Path) -> Result<File, DiskError> {
            self.0.create(path)
        }
        fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
            if access == Access::Read && self.1.load(Ordering::Relaxed) {
                let (path, message) = (path.to_path_buf(), "too many open files".to_owned());
                return Err(DiskError::Io { op: "open", path, kind: io::ErrorKind::Other, message });
            }
            self.0.open(path, access)
        }
        fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError> {
            self.0.list(dir)
        }
        fn remove(&self, path: &Path) -> Result<(), DiskError> {
            self.0.remove(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
            self.0.rename(from, to)
        }
        fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
            self.0.make_dir(path)
        }
        fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
            self.0.sync_dir(dir)
        }
        fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
            self.0.lock(path)
        }
        fn free_space(&self) -> Result<u64, DiskError> {
            self.0.free_space()
        }
    }

    /// A disk error while a part was resumed gave its files up, and left its note. The next fetch went on with files that the
    /// next sweep removed: it was acknowledged as durable, and the object was gone. Now the part stays as it was.
    #[tokio::test]
    async fn a_failed_resume_gives_nothing_up() {
        let exhausted = Arc::new(Exhausted(SimDisk::new(), AtomicBool::new(false)));
        let (disk, dir) = (Arc::clone(&exhausted) as Arc<dyn Disk>, Path::new("store"));
        disk.make_dir(dir).unwrap();
        disk.make_dir(&dir.join("large")).unwrap();
        let (metrics, content) = (Metrics::default(), vec![7; 3 << 16]);
        let (id, fetching) = (ContentId::of(&content), Holds::new(&metrics));
        let large = Large::new(&disk, dir, &metrics);
        let partials = Partials::new(&disk, dir, &large, &metrics);
        let one = fetching.take(id).await;
        let begun = partials.begin(id, content.len() as u64, one).unwrap();
        let bytes = Bytes::from(vec![7; 1 << 16]);
        begun.write(&[Arrived { group: 1, bytes }], Vec::new()).unwrap();
        begun.checkpoint().unwrap();
        drop(begun);

        // As after a restart, where what the note says is checked first.
        let large = Large::new(&disk, dir, &metrics);
        let partials = Partials::new(&disk, dir, &large, &metrics);
        partials.load(&Table::default()).unwrap();
        exhausted.1.store(true, Ordering::Relaxed);
        let failed = partials.resume(id, fetching.take(id).await);
        assert!(matches!(failed, Err(StorageError::Disk { .. })));
        exhausted.1.store(false, Ordering::Relaxed);
        let one = fetching.take(id).await;
        let resumed = partials.resume(id, one).unwrap().unwrap_or_else(|_| panic!("it is kept"));
        assert!(!large.has_doomed(), "nothing was given up");
        large.sweep();
        assert_eq!(large.files().unwrap().len(), 1);
        drop(resumed);
    }

    /// A directory whose name could not be made durable was taken for durable by the next checkpoint, and a crash took all
    /// notes with it. Now its name is made durable before a note in it counts, whichever call failed before.
    #[tokio::test]
    async fn a_note_that_counts_survives_a_crash() {
        let mut survived = 0;
        for failing in 1..16 {
            let (sim, dir) = (SimDisk::new(), Path::new("store"));
            let disk: Arc<dyn Disk> = Arc::new(sim.clone());
            disk::make_dirs(&*disk, &dir.join("large")).unwrap();
            let (metrics, id) = (Metrics::default(), ContentId::of(b"x"));
            let large = Large::new(&disk, dir, &metrics);
            let partials = Partials::new(&disk, dir, &large, &metrics);
            let begun = partials.begin(id, 3 << 16, Holds::new(&metrics).take(id).await).unwrap();
            let bytes = Bytes::from(vec![0; 1 << 16]);
            begun.write(&[Arrived { group: 1, bytes }], Vec::new()).unwrap();
            sim.fail_call(failing, Fault::Io);
            let _ = begun.checkpoint();
            // After a failed sync of the files themselves nothing more is written to them.
            if begun.checkpoint().is_err() {
                continue;
            }
            sim.restart(CrashStyle::LoseUnsynced);
            let large = Large::new(&disk, dir, &metrics);
            let partials = Partials::new(&disk, dir, &large, &metrics);
            partials.load(&Table::default()).unwrap();
            let found = partials.map_of(&id).map(|(len, map)| (len, map.marked()));
            assert_eq!(found, Some((3 << 16, 1)), "call {failing}");
            survived += 1;
        }
        assert!(survived > 5, "{survived}");
    }

    #[test]
    fn a_note_is_read_as_it_is_written() {
        let (id, mut map) = (ContentId::of(b"x"), GroupMap::new(100));
        map.mark(3);
        map.mark(99);
        let bytes = encode(&id, 7, 100 * 65_536 - 5, &map);
        let (found, kept) = decode(&bytes).expect("ours");
        assert_eq!((found, kept.file, kept.len, &kept.map), (id, 7, 100 * 65_536 - 5, &map));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(decode(&other).is_none(), "{at}");
            assert!(decode(&bytes[..at]).is_none(), "{at}");
        }
    }
}
