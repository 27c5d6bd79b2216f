//! Large objects: files of their own, each beside its tree.
//!
//! A file is named by a number that is used once, so that an object that is deleted and put again never shares one with
//! its former self, and nothing has to be renamed: a file exists for the store when a record of the journal says so, and
//! is swept when none does. The tree file says which object it belongs to, for whoever has only the files.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Lock, LockSpec, Metrics,
    disk::{Access, Disk, DiskError, File},
    now,
};
use tokio::time::Instant;

#[cfg(feature = "net")]
use crate::logic::fetch::GroupMap;
use crate::{
    StorageError,
    buffers::Buffers,
    error::of_disk,
    logic::{
        proof::{GroupSet, proof_of, proof_steps},
        tree::{Hash, NODE, Shape, TreeError, TreeHasher, check_groups, group_hashes},
    },
    planted::{Bug, is_planted},
    proven::Proven,
};

pub(crate) const OPENED: LockSpec = LockSpec::new("ron-storage", "opened", 720)
    .guards("which files are open for reading, and which are to be removed; held while one comes or goes");

/// Where they are, in the directory of the store.
pub(crate) const DIR: &str = "large";
const MAGIC: [u8; 8] = *b"\x89RONT\r\n\x1a";
const VERSION: u16 = 1;
/// Bytes before the nodes of a tree file.
const HEADER: usize = 64;

/// Files kept open for reading: a stream comes back for the same file every mebibyte.
const OPEN_MAX: usize = 64;

/// Bytes of a tree that wait to be written together: those of 64 MiB of an object.
const NODES_HELD: usize = 64 << 10;

/// The large objects of a store.
pub(crate) struct Large {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    next: AtomicU64,
    ingests: AtomicUsize,
    state: Lock<State>,
    proven: Proven,
    /// What objects are read into, small ones too.
    pub(crate) buffers: Arc<Buffers>,
}

#[derive(Default)]
struct State {
    open: VecDeque<(u64, Arc<Opened>)>,
    /// Files that belong to no object any more, or never did.
    doomed: Vec<u64>,
    /// How many there were so far. What was opened before the last of them may be one of them.
    dooms: u64,
}

impl State {
    /// An object's files, if they are open; they stay so for longest then.
    fn find(&mut self, file: u64) -> Option<Arc<Opened>> {
        let at = self.open.iter().position(|(number, _)| *number == file)?;
        let found = self.open.remove(at)?;
        let opened = Arc::clone(&found.1);
        self.open.push_back(found);
        Some(opened)
    }
}

/// An object's files, open for reading.
struct Opened {
    data: File,
    tree: File,
}

impl Large {
    pub(crate) fn new(disk: &Arc<dyn Disk>, dir: &Path, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Large {
            disk: Arc::clone(disk),
            dir: dir.join(DIR),
            next: AtomicU64::new(1),
            ingests: AtomicUsize::new(0),
            state: Lock::new(OPENED, State::default(), metrics),
            proven: Proven::new(metrics),
            buffers: Buffers::new(metrics),
        })
    }

    /// The next number for a file.
    pub(crate) fn next_file(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Objects that are being written.
    pub(crate) fn ingests(&self) -> usize {
        self.ingests.load(Ordering::Acquire)
    }

    /// Uses no number below this.
    pub(crate) fn skip_to(&self, file: u64) {
        self.next.fetch_max(file, Ordering::Relaxed);
    }

    fn path(&self, file: u64, kind: &str) -> PathBuf {
        self.dir.join(format!("{file:016x}.{kind}"))
    }

    /// Begins to write an object. Blocks.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Ingest, StorageError> {
        loop {
            let file = self.next.fetch_add(1, Ordering::Relaxed);
            let data = match self.disk.create(&self.path(file, "dat")) {
                // Left by a crash and not swept yet.
                Err(DiskError::AlreadyExists { .. }) => continue,
                created => created.map_err(of_disk)?,
            };
            self.ingests.fetch_add(1, Ordering::AcqRel);
            let doom = Doom { large: Arc::clone(self), file: Some(file) };
            return Ok(Ingest { data, tree: OnceLock::new(), doom, began: now() });
        }
    }

    /// Goes on with files that are there. Blocks.
    #[cfg(feature = "net")]
    pub(crate) fn reopen(self: &Arc<Self>, file: u64) -> Result<Ingest, DiskError> {
        let data = self.disk.open(&self.path(file, "dat"), Access::Write)?;
        let path = self.path(file, "tree");
        let tree = match self.disk.open(&path, Access::Write) {
            Err(DiskError::NotFound { .. }) => self.disk.create(&path)?,
            tree => tree?,
        };
        self.ingests.fetch_add(1, Ordering::AcqRel);
        let doom = Doom { large: Arc::clone(self), file: Some(file) };
        Ok(Ingest { data, tree: OnceLock::from(tree), doom, began: now() })
    }

    /// Those of the groups that are said to be there which really are. Blocks.
    #[cfg(feature = "net")]
    pub(crate) fn check_map(
        &self,
        (file, id, len): (u64, &ContentId, u64),
        said: &GroupMap,
    ) -> Result<GroupMap, StorageError> {
        let opened = match self.open_files(file) {
            Err(DiskError::NotFound { .. }) => return Ok(GroupMap::new(said.groups())),
            opened => opened.map_err(of_disk)?,
        };
        let (shape, mut map) = (Shape::of(len), GroupMap::new(said.groups()));
        for group in (0..said.groups()).filter(|group| said.has(*group)) {
            // What cannot be read is fetched again, and written over.
            let Ok(nodes) = opened.nodes(shape, group..group + 1) else { continue };
            let Ok(hashes) = group_hashes(id, shape, group..group + 1, &nodes[..]) else { continue };
            let at = shape.group(group);
            let mut content = self.buffers.take(span(&at));
            let Ok(read) = opened.data.read_at(at.start, content.as_mut()) else { continue };
            content.truncate(read);
            if check_groups(shape, group, &hashes, content.as_ref()).is_ok() {
                map.mark(group);
            }
        }
        Ok(map)
    }

    /// The bytes asked for, once they are seen to be those of the object. `is_fresh` reads the tree again even where it is
    /// known. Blocks.
    pub(crate) fn read(
        &self,
        (file, id, len): (u64, &ContentId, u64),
        bytes: &Range<u64>,
        proof: Option<&GroupSet>,
        is_fresh: bool,
    ) -> Result<Bytes, StorageError> {
        let damaged = |at: u64| StorageError::Corrupt { id: *id, at };
        let opened = match self.opened(file) {
            // The object is here, and what it is made of is not.
            Err(DiskError::NotFound { .. }) => return Err(damaged(0)),
            opened => opened.map_err(of_disk)?,
        };
        let shape = Shape::of(len);
        let groups = shape.covering(bytes.clone());
        let whole = whole(shape, &groups);
        let of_tree = |error: TreeError| damaged(error.offset());
        let content = |hashes: &[Hash]| -> Result<Bytes, StorageError> {
            let mut content = self.buffers.take(span(&whole));
            let read = opened.data.read_at(whole.start, content.as_mut()).map_err(of_disk)?;
            content.truncate(read);
            check_groups(shape, groups.start, hashes, content.as_ref()).map_err(of_tree)?;
            Ok(content.freeze())
        };
        if let Some(wanted) = proof {
            let nodes = opened.nodes(shape, groups.clone()).map_err(of_disk)?;
            let steps = proof_steps(id, shape, wanted, groups.clone(), &nodes[..]).map_err(of_tree)?;
            // A piece lies in one of the wanted ranges, so each of its groups is a step.
            let hashes: Vec<Hash> = steps.iter().map(|step| step.hash).collect();
            let content = content(&hashes)?;
            return proof_of(shape, groups.start, &steps, &content).map_err(of_tree);
        }
        if is_fresh {
            let nodes = opened.nodes(shape, groups.clone()).map_err(of_disk)?;
            let hashes = group_hashes(id, shape, groups.clone(), &nodes[..]).map_err(of_tree)?;
            return Ok(part(&content(&hashes)?, &whole, bytes));
        }
        let mut hashes = Vec::with_capacity(span(&groups));
        while let Some(next) = Some(groups.start + hashes.len() as u64).filter(|next| *next < groups.end) {
            let block = Proven::block(shape, next);
            let known = match self.proven.get(file, &block) {
                Some(known) => known,
                None => {
                    let nodes = opened.nodes(shape, block.clone()).map_err(of_disk)?;
                    let proven = group_hashes(id, shape, block.clone(), &nodes[..]).map_err(of_tree)?;
                    let proven: Arc<[Hash]> = proven.into();
                    self.proven.insert(file, &block, Arc::clone(&proven));
                    proven
                }
            };
            hashes.extend_from_slice(
                &known[span(&(block.start..next))..span(&(block.start..groups.end.min(block.end)))],
            );
        }
        Ok(part(&content(&hashes)?, &whole, bytes))
    }

    /// [`read`](Self::read) without waiting for anything: nothing if a file is not open, the bytes or the hashes are not in
    /// memory, or something is not right.
    pub(crate) fn read_cached(&self, file: u64, len: u64, bytes: &Range<u64>) -> Option<Bytes> {
        let shape = Shape::of(len);
        let groups = shape.covering(bytes.clone());
        let block = Proven::block(shape, groups.start);
        if groups.is_empty() || groups.end > block.end {
            return None;
        }
        let hashes = self.proven.get(file, &block)?;
        let opened = {
            let state = self.state.lock();
            let (_, opened) = state.open.iter().rev().find(|(number, _)| *number == file)?;
            Arc::clone(opened)
        };
        let whole = whole(shape, &groups);
        let mut content = self.buffers.take(span(&whole));
        let hashes = &hashes[span(&(block.start..groups.start))..span(&(block.start..groups.end))];
        let is_here = opened.data.read_cached(whole.start, content.as_mut());
        let is_right = is_here && check_groups(shape, groups.start, hashes, content.as_ref()).is_ok();
        is_right.then(|| part(&content.freeze(), &whole, bytes))
    }

    /// Whether the tree file says what the index says. Blocks.
    pub(crate) fn check_header(&self, file: u64, id: &ContentId, len: u64) -> Result<bool, StorageError> {
        match self.opened(file) {
            Err(DiskError::NotFound { .. }) => Ok(false),
            opened => {
                let opened = opened.map_err(of_disk)?;
                let mut found = [0; HEADER];
                let read = opened.tree.read_at(0, &mut found).map_err(of_disk)?;
                let is_whole = opened.tree.len().map_err(of_disk)?
                    == HEADER as u64 + Shape::of(len).outboard_len()
                    && opened.data.len().map_err(of_disk)? == len;
                Ok(is_whole && read == HEADER && found == header(id, len))
            }
        }
    }

    fn opened(&self, file: u64) -> Result<Arc<Opened>, DiskError> {
        let dooms = {
            let mut state = self.state.lock();
            if let Some(opened) = state.find(file) {
                return Ok(opened);
            }
            state.dooms
        };
        let opened = Arc::new(self.open_files(file)?);
        let mut state = self.state.lock();
        if let Some(found) = state.find(file) {
            // Two missed it at once, and one is enough: a second would stay when the object goes, and hold its space.
            drop(state);
            return Ok(found);
        }
        if state.dooms != dooms {
            return Ok(opened);
        }
        let closed = if state.open.len() == OPEN_MAX { state.open.pop_front() } else { None };
        state.open.push_back((file, Arc::clone(&opened)));
        drop(state);
        drop(closed);
        Ok(opened)
    }

    fn open_files(&self, file: u64) -> Result<Opened, DiskError> {
        Ok(Opened {
            data: self.disk.open(&self.path(file, "dat"), Access::Read)?,
            tree: self.disk.open(&self.path(file, "tree"), Access::Read)?,
        })
    }

    /// Says that nobody needs a file any more. It goes with the next [`sweep`](Self::sweep).
    pub(crate) fn doom(&self, file: u64) {
        let mut state = self.state.lock();
        state.doomed.push(file);
        state.dooms += 1;
        let at = state.open.iter().position(|(number, _)| *number == file);
        let closed = at.and_then(|at| state.open.remove(at));
        drop(state);
        drop(closed);
    }

    /// Whether there are files to remove.
    pub(crate) fn has_doomed(&self) -> bool {
        !self.state.lock().doomed.is_empty()
    }

    /// Removes the files that nobody needs. Blocks. Those that cannot be removed stay on the list.
    pub(crate) fn sweep(&self) {
        let doomed = std::mem::take(&mut self.state.lock().doomed);
        for file in doomed {
            if let Err(error) = self.remove(file) {
                tracing::warn!(file, %error, "a file that nobody needs could not be removed");
                self.state.lock().doomed.push(file);
            }
        }
    }

    /// Makes what was removed stay removed. Blocks.
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.disk.sync_dir(&self.dir)
    }

    /// The numbers of all files there are. Blocks.
    pub(crate) fn files(&self) -> Result<BTreeSet<u64>, DiskError> {
        let number = |name: &str| {
            let (digits, kind) = name.split_once('.')?;
            let is_ours = digits.len() == 16 && (kind == "dat" || kind == "tree");
            is_ours.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        let all = self.disk.list(&self.dir)?;
        Ok(all.iter().filter(|entry| entry.is_file).filter_map(|entry| number(&entry.name)).collect())
    }

    /// Removes the files with this number, and says how many there were. Blocks.
    pub(crate) fn remove(&self, file: u64) -> Result<usize, DiskError> {
        let mut removed = 0;
        for kind in ["tree", "dat"] {
            match self.disk.remove(&self.path(file, kind)) {
                Ok(()) => removed += 1,
                Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Removes every file that is not among those `kept`, after a stop that was not clean. Blocks.
    pub(crate) fn sweep_unknown(&self, kept: &HashSet<u64>) -> Result<usize, DiskError> {
        let mut removed = 0;
        for file in self.files()? {
            self.skip_to(file.saturating_add(1));
            if !kept.contains(&file) {
                removed += self.remove(file)?;
            }
        }
        Ok(removed)
    }

    /// The object that files say they belong to, and its length, if both are there and as long as it must be. Blocks.
    pub(crate) fn describe(&self, file: u64) -> Option<(ContentId, u64)> {
        let tree = self.disk.open(&self.path(file, "tree"), Access::Read).ok()?;
        let data = self.disk.open(&self.path(file, "dat"), Access::Read).ok()?;
        let mut found = [0; HEADER];
        let is_read = tree.read_at(0, &mut found).is_ok_and(|read| read == HEADER);
        let id = ContentId::from_bytes(*found[16..].first_chunk()?);
        let len = data.len().ok()?;
        let nodes = tree.len().ok()?.checked_sub(HEADER as u64)?;
        let is_whole = is_read && found == header(&id, len) && nodes == Shape::of(len).outboard_len();
        is_whole.then_some((id, len))
    }
}

impl fmt::Debug for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Large").field("next", &self.next_file()).finish_non_exhaustive()
    }
}

impl Opened {
    /// The pieces of the tree that a check of `groups` needs.
    fn nodes(&self, shape: Shape, groups: Range<u64>) -> Result<Vec<(u64, Bytes)>, DiskError> {
        let read = |span: Range<u64>| {
            let mut bytes = vec![0; usize::try_from(span.end - span.start).unwrap_or(0)];
            let read = self.tree.read_at(HEADER as u64 + span.start, &mut bytes)?;
            // What is missing is missed by the check.
            bytes.truncate(read - read % usize::try_from(NODE).expect("small"));
            Ok((span.start, bytes.into()))
        };
        shape.spans(groups).into_iter().map(read).collect()
    }
}

/// Where in an object of this shape whole groups lie.
fn whole(shape: Shape, groups: &Range<u64>) -> Range<u64> {
    shape.group(groups.start).start..shape.group(groups.end.saturating_sub(1)).end
}

fn span(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

/// Those of the bytes of `whole` that are asked for.
fn part(content: &Bytes, whole: &Range<u64>, bytes: &Range<u64>) -> Bytes {
    let within = |offset: u64| span(&(whole.start..offset)).min(content.len());
    content.slice(within(bytes.start)..within(bytes.end))
}

fn header(id: &ContentId, len: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
    bytes[16..48].copy_from_slice(id.as_bytes());
    bytes[48..56].copy_from_slice(&len.to_be_bytes());
    let sum = blake3::hash(&bytes[..56]);
    bytes[56..].copy_from_slice(&sum.as_bytes()[..8]);
    bytes
}

/// Files that are doomed unless somebody says otherwise.
#[derive(Debug)]
struct Doom {
    large: Arc<Large>,
    file: Option<u64>,
}

impl Drop for Doom {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            self.large.doom(file);
        }
        self.large.ingests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An object that is being written. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Ingest {
    data: File,
    /// Made when there is something to write to it: of five hundred objects that are being written, most are short, and a
    /// process has a thousand descriptors.
    tree: OnceLock<File>,
    doom: Doom,
    began: Instant,
}

impl Ingest {
    /// Writes a piece of the object. Blocks.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.data.write_at(offset, bytes).map_err(of_disk)
    }

    fn tree(&self) -> Result<&File, StorageError> {
        if self.tree.get().is_none() {
            let Doom { large, .. } = &self.doom;
            let made = large.disk.create(&large.path(self.file(), "tree")).map_err(of_disk)?;
            // Only one at a time hashes.
            let _ = self.tree.set(made);
        }
        Ok(self.tree.get().expect("it was just made"))
    }

    /// Hashes the next piece, and writes what is finished of the tree when it is much. Blocks.
    pub(crate) fn hash(&self, hashing: &mut Hashing, bytes: &[u8]) -> Result<(), StorageError> {
        hashing.hasher.update(bytes);
        let nodes = hashing.hasher.take_nodes();
        hashing.nodes.extend_from_slice(&nodes);
        if hashing.nodes.len() >= NODES_HELD {
            self.write_nodes(hashing)?;
        }
        Ok(())
    }

    fn write_nodes(&self, hashing: &mut Hashing) -> Result<(), StorageError> {
        self.tree()?.write_at(HEADER as u64 + hashing.written, &hashing.nodes).map_err(of_disk)?;
        hashing.written += hashing.nodes.len() as u64;
        hashing.nodes.clear();
        Ok(())
    }

    /// Ends the tree. Blocks.
    pub(crate) fn finish(&self, mut hashing: Hashing) -> Result<(ContentId, u64), StorageError> {
        let tree = std::mem::take(&mut hashing.hasher).finish();
        hashing.nodes.extend_from_slice(&tree.nodes);
        self.write_nodes(&mut hashing)?;
        let len = tree.shape.size();
        self.tree()?.write_at(0, &header(&tree.id, len)).map_err(of_disk)?;
        Ok((tree.id, len))
    }

    /// Writes nodes where they belong, those that lie side by side together. Blocks.
    #[cfg(feature = "net")]
    pub(crate) fn write_nodes_at(&self, mut nodes: Vec<(u64, [u8; 64])>) -> Result<(), StorageError> {
        nodes.sort_unstable_by_key(|(place, _)| *place);
        nodes.dedup_by_key(|(place, _)| *place);
        for run in nodes.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let bytes: Vec<u8> = run.iter().flat_map(|(_, node)| *node).collect();
            self.tree()?.write_at(HEADER as u64 + run[0].0 * NODE, &bytes).map_err(of_disk)?;
        }
        Ok(())
    }

    /// Makes the file of the tree, for those who write to it at once. Blocks.
    #[cfg(feature = "net")]
    pub(crate) fn make_tree(&self) -> Result<(), StorageError> {
        self.tree().map(drop)
    }

    /// Says whose tree it is. Blocks.
    #[cfg(feature = "net")]
    pub(crate) fn write_header(&self, id: &ContentId, len: u64) -> Result<(), StorageError> {
        self.tree()?.write_at(0, &header(id, len)).map_err(of_disk)
    }

    /// Makes what is written so far durable, so that little is left for the end. Blocks.
    pub(crate) fn sync_so_far(&self) -> Result<(), StorageError> {
        self.data.sync_data().map_err(of_disk)
    }

    /// Makes both files survive a crash, name and all. Blocks.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        if !is_planted(Bug::NoSync) {
            self.data.sync_data().map_err(of_disk)?;
            self.tree()?.sync_data().map_err(of_disk)?;
        }
        if !is_planted(Bug::NoDirSync) {
            self.doom.large.disk.sync_dir(&self.doom.large.dir).map_err(of_disk)?;
        }
        Ok(())
    }

    /// How long ago it began.
    pub(crate) fn age(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// The number of its files.
    pub(crate) fn file(&self) -> u64 {
        self.doom.file.expect("taken only when it is kept")
    }

    /// Says that the object exists.
    pub(crate) fn keep(mut self) {
        self.doom.file = None;
    }
}

/// How far the tree of an object that is being written is.
#[derive(Debug, Default)]
pub(crate) struct Hashing {
    hasher: TreeHasher,
    /// Finished and not written yet, and how many bytes are.
    nodes: Vec<u8>,
    written: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "threads that a test stops where it wants"
)]
mod tests {
    use std::sync::mpsc;

    use ron_core::disk::{DiskLock, Entry, MemoryDisk};

    use super::*;

    /// A disk on which opening the tree of an object waits for the test.
    #[derive(Debug)]
    struct Waiting(MemoryDisk, std::sync::Mutex<mpsc::Receiver<()>>, AtomicU64);

    impl Disk for Waiting {
        fn create(&self, path: &Path) -> Result<File, DiskError> {
            self.0.create(path)
        }
        fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
            if path.extension().is_some_and(|kind| kind == "tree") {
                self.2.fetch_add(1, Ordering::SeqCst);
                self.1.lock().unwrap().recv().unwrap();
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

    /// Nobody keeps a file open that is to go, whoever opened it and however often.
    #[test]
    fn what_is_doomed_is_not_kept_open() {
        let (go, waits) = mpsc::channel();
        let waiting = Arc::new(Waiting(MemoryDisk::new(), std::sync::Mutex::new(waits), AtomicU64::new(0)));
        let disk: Arc<dyn Disk> = Arc::clone(&waiting) as Arc<dyn Disk>;
        let until = |opens| {
            while waiting.2.load(Ordering::SeqCst) < opens {
                std::thread::yield_now();
            }
        };
        disk.make_dir(Path::new(DIR)).unwrap();
        let large = Large::new(&disk, Path::new(""), &Metrics::default());
        let ingest = large.begin().unwrap();
        ingest.finish(Hashing::default()).unwrap();
        let file = ingest.file();
        ingest.keep();
        std::thread::scope(|threads| {
            // Both miss it before either has it.
            let readers = [0, 1].map(|_| threads.spawn(|| drop(large.opened(file).unwrap())));
            until(2);
            for reader in readers {
                go.send(()).unwrap();
                drop(reader);
            }
        });
        assert_eq!(large.state.lock().open.len(), 1);
        large.doom(file);
        assert!(large.state.lock().open.is_empty());
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| drop(large.opened(file).unwrap()));
            until(3);
            large.doom(file);
            go.send(()).unwrap();
            reader.join().unwrap();
        });
        assert!(large.state.lock().open.is_empty());
    }
}
