//! Files in memory: a disk that is gone with its last handle.
//!
//! For programs that must leave no trace, and run the same code either way. Syncing does nothing, since there is nothing
//! that could survive. A file is a list of pages, so that growing never copies and what was never written takes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Access, Disk, DiskError, DiskLock, Entry, File, RawFile, components, parent, same_dir};

const PAGE: usize = 64 << 10;

/// A disk in memory. Cloning shares it.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<PathBuf, Node>,
    locks: BTreeSet<PathBuf>,
    room: Arc<Room>,
}

/// What all files may take together, and what they take, in whole pages.
struct Room {
    capacity: u64,
    used: AtomicU64,
}

impl Default for Room {
    fn default() -> Self {
        Room { capacity: u64::MAX, used: AtomicU64::new(0) }
    }
}

impl Room {
    fn take(&self) -> bool {
        let used = self.used.fetch_add(PAGE as u64, Ordering::Relaxed);
        let fits = used.saturating_add(PAGE as u64) <= self.capacity;
        if !fits {
            self.used.fetch_sub(PAGE as u64, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, pages: &[Option<Box<[u8]>>]) {
        let bytes = pages.iter().flatten().count() * PAGE;
        self.used.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Clone)]
enum Node {
    Dir,
    File(Arc<RwLock<Pages>>),
}

/// The bytes of a file. A page that is missing is zeros.
#[derive(Default)]
struct Pages {
    len: u64,
    pages: Vec<Option<Box<[u8]>>>,
    room: Arc<Room>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.room.give_back(&self.pages);
    }
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        MemoryDisk::default()
    }

    /// An empty disk of this size. What does not fit is refused as on any other.
    #[must_use]
    pub fn with_capacity(bytes: u64) -> Self {
        let disk = MemoryDisk::new();
        disk.lock_state().room = Arc::new(Room { capacity: bytes, used: AtomicU64::new(0) });
        disk
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check_parent(&self, op: &'static str, path: &Path) -> Result<(), DiskError> {
        if components(op, path)?.is_empty() {
            return Err(DiskError::BadPath { op, path: path.to_path_buf() });
        }
        self.check_dir(op, parent(path))
    }

    fn check_dir(&self, op: &'static str, dir: &Path) -> Result<(), DiskError> {
        if components(op, dir)?.is_empty() || matches!(self.names.get(dir), Some(Node::Dir)) {
            return Ok(());
        }
        Err(DiskError::NotFound { op, path: dir.to_path_buf() })
    }

    fn add(&mut self, op: &'static str, path: &Path, node: Node) -> Result<(), DiskError> {
        self.check_parent(op, path)?;
        if self.names.contains_key(path) {
            return Err(DiskError::AlreadyExists { op, path: path.to_path_buf() });
        }
        self.names.insert(path.to_path_buf(), node);
        Ok(())
    }

    fn file(&self, op: &'static str, path: &Path) -> Result<Arc<RwLock<Pages>>, DiskError> {
        self.check_parent(op, path)?;
        match self.names.get(path) {
            Some(Node::File(pages)) => Ok(Arc::clone(pages)),
            Some(Node::Dir) => Err(DiskError::from_io(op, path, &io::ErrorKind::IsADirectory.into())),
            None => Err(DiskError::NotFound { op, path: path.to_path_buf() }),
        }
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDisk({} names)", self.lock_state().names.len())
    }
}

impl Disk for MemoryDisk {
    fn create(&self, path: &Path) -> Result<File, DiskError> {
        let mut state = self.lock_state();
        let pages = Arc::new(RwLock::new(Pages { len: 0, pages: Vec::new(), room: Arc::clone(&state.room) }));
        state.add("create", path, Node::File(Arc::clone(&pages)))?;
        drop(state);
        Ok(File::new(path, Box::new(MemoryFile { pages, access: Access::Write })))
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
        let pages = self.lock_state().file("open", path)?;
        Ok(File::new(path, Box::new(MemoryFile { pages, access })))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError> {
        let state = self.lock_state();
        state.check_dir("list", dir)?;
        let below = state.names.range(dir.to_path_buf()..).take_while(|(path, _)| path.starts_with(dir));
        let here = below.filter(|(path, _)| path.as_path() != dir && parent(path) == dir);
        let entry = |(path, node): (&PathBuf, &Node)| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some(match node {
                Node::Dir => Entry { name, is_file: false, len: 0 },
                Node::File(pages) => {
                    let len = pages.read().unwrap_or_else(PoisonError::into_inner).len;
                    Entry { name, is_file: true, len }
                }
            })
        };
        Ok(here.filter_map(entry).collect())
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        let mut state = self.lock_state();
        state.file("remove", path)?;
        state.names.remove(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        same_dir("rename", from, to)?;
        let mut state = self.lock_state();
        state.check_parent("rename", to)?;
        let pages = state.file("rename", from)?;
        if matches!(state.names.get(to), Some(Node::Dir)) {
            return Err(DiskError::from_io("rename", to, &io::ErrorKind::IsADirectory.into()));
        }
        state.names.remove(from);
        state.names.insert(to.to_path_buf(), Node::File(pages));
        Ok(())
    }

    fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.lock_state().add("make directory", path, Node::Dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        self.lock_state().check_dir("sync directory", dir)
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        let mut state = self.lock_state();
        if state.file("lock", path).is_err() {
            state.add("lock", path, Node::File(Arc::default()))?;
        }
        if !state.locks.insert(path.to_path_buf()) {
            return Err(DiskError::Locked { path: path.to_path_buf() });
        }
        Ok(DiskLock::new(Box::new(MemoryLock { disk: self.clone(), path: path.to_path_buf() })))
    }

    /// What is left of its capacity. Without one nobody knows, and whoever keeps much in memory sets a limit of its own.
    fn free_space(&self) -> Result<u64, DiskError> {
        let room = Arc::clone(&self.lock_state().room);
        Ok(match room.capacity {
            u64::MAX => u64::MAX,
            capacity => capacity.saturating_sub(room.used.load(Ordering::Relaxed)),
        })
    }
}

struct MemoryLock {
    disk: MemoryDisk,
    path: PathBuf,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.disk.lock_state().locks.remove(&self.path);
    }
}

struct MemoryFile {
    pages: Arc<RwLock<Pages>>,
    access: Access,
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFile").field("access", &self.access).finish_non_exhaustive()
    }
}

impl MemoryFile {
    fn change<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> io::Result<T> {
        if self.access == Access::Read {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(change(&mut self.pages.write().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Which page an offset is in, and where in it.
fn place(offset: u64) -> (usize, usize) {
    let page = usize::try_from(offset / PAGE as u64).unwrap_or(usize::MAX);
    (page, usize::try_from(offset % PAGE as u64).expect("smaller than a page"))
}

impl RawFile for MemoryFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let file = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let left = usize::try_from(file.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buf.len().min(left);
        let mut filled = 0;
        while filled < wanted {
            let (page, at) = place(offset + filled as u64);
            let step = (PAGE - at).min(wanted - filled);
            let target = &mut buf[filled..filled + step];
            match file.pages.get(page).and_then(Option::as_ref) {
                Some(bytes) => target.copy_from_slice(&bytes[at..at + step]),
                None => target.fill(0),
            }
            filled += step;
        }
        Ok(wanted)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|file| {
            let mut written = 0;
            while written < bytes.len() {
                let (page, at) = place(offset + written as u64);
                let step = (PAGE - at).min(bytes.len() - written);
                if file.pages.len() <= page {
                    file.pages.resize_with(page + 1, || None);
                }
                if file.pages[page].is_none() && !file.room.take() {
                    file.len = file.len.max(offset + written as u64);
                    return Err(io::ErrorKind::StorageFull.into());
                }
                let target = file.pages[page].get_or_insert_with(|| vec![0; PAGE].into_boxed_slice());
                target[at..at + step].copy_from_slice(&bytes[written..written + step]);
                written += step;
            }
            // Nothing, written anywhere, is nothing: a file does not grow by it.
            if written > 0 {
                file.len = file.len.max(offset + written as u64);
            }
            Ok(())
        })?
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| {
            if len < file.len {
                let (page, at) = place(len);
                let kept = (page + usize::from(at > 0)).min(file.pages.len());
                let gone = file.pages.split_off(kept);
                file.room.give_back(&gone);
                // What comes back into the file later is zeros.
                if let Some(Some(last)) = file.pages.get_mut(page) {
                    last[at..].fill(0);
                }
            }
            file.len = len;
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|file| file.len = file.len.max(offset.saturating_add(len)))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.pages.read().unwrap_or_else(PoisonError::into_inner).len)
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    #[test]
    fn names_are_where_they_were_made() {
        let disk = MemoryDisk::new();
        disk.make_dir(path("a")).unwrap();
        disk.make_dir(path("a/b")).unwrap();
        disk.create(path("a/f")).unwrap();
        disk.create(path("a/b/g")).unwrap();
        disk.create(path("ab")).unwrap();
        let names = |dir: &str| -> Vec<String> {
            disk.list(path(dir)).unwrap().into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(
            (names(""), names("a"), names("a/b")),
            (
                vec!["a".to_owned(), "ab".to_owned()],
                vec!["b".to_owned(), "f".to_owned()],
                vec!["g".to_owned()],
            )
        );
        assert!(matches!(disk.create(path("a/f")), Err(DiskError::AlreadyExists { .. })));
        assert!(matches!(disk.create(path("none/f")), Err(DiskError::NotFound { .. })));
        assert!(matches!(disk.create(path("../f")), Err(DiskError::BadPath { .. })));
        assert!(matches!(disk.rename(path("a/f"), path("f")), Err(DiskError::BadPath { .. })));
        disk.rename(path("a/f"), path("a/h")).unwrap();
        assert!(matches!(disk.open(path("a/f"), Access::Read), Err(DiskError::NotFound { .. })));
        let held = disk.lock(path("LOCK")).unwrap();
        assert!(matches!(disk.lock(path("LOCK")), Err(DiskError::Locked { .. })));
        drop(held);
        drop(disk.lock(path("LOCK")).unwrap());
        let file = disk.open(path("a/h"), Access::Read).unwrap();
        assert!(file.write_at(0, b"x").is_err());
        disk.remove(path("a/h")).unwrap();
        assert!(disk.open(path("a/h"), Access::Read).is_err());
    }

    /// Writing no bytes behind the end made a file longer, as on no real disk. The property below found it in one run of a hundred.
    #[test]
    fn writing_nothing_changes_nothing() {
        let disk = MemoryDisk::new();
        let file = disk.create(path("f")).unwrap();
        file.write_at(1, b"").unwrap();
        assert_eq!(file.len().unwrap(), 0);
    }

    #[test]
    fn a_disk_of_some_size_is_full_at_some_point() {
        let disk = MemoryDisk::with_capacity(3 * PAGE as u64);
        let file = disk.create(path("f")).unwrap();
        file.write_at(0, &[1; 2 * PAGE]).unwrap();
        assert_eq!(disk.free_space().unwrap(), PAGE as u64);
        assert!(matches!(file.write_at(2 * PAGE as u64, &[1; 2 * PAGE]), Err(DiskError::NoSpace { .. })));
        file.set_len(PAGE as u64).unwrap();
        assert_eq!(disk.free_space().unwrap(), 2 * PAGE as u64);
        disk.remove(path("f")).unwrap();
        drop(file);
        assert_eq!(disk.free_space().unwrap(), 3 * PAGE as u64);
        assert_eq!(MemoryDisk::new().free_space().unwrap(), u64::MAX);
    }

    proptest! {
        /// A file is what a vector would be.
        #[test]
        fn bytes_are_where_they_were_written(
            steps in prop::collection::vec((0..3u8, 0..200_000u64, 0..70_000usize, any::<u8>()), 1..12),
        ) {
            let disk = MemoryDisk::new();
            let file = disk.create(path("f")).unwrap();
            let mut model: Vec<u8> = Vec::new();
            for (step, offset, len, byte) in steps {
                let end = usize::try_from(offset).unwrap() + len;
                match step {
                    0 => {
                        file.write_at(offset, &vec![byte; len]).unwrap();
                        if len > 0 {
                            model.resize(model.len().max(end), 0);
                            model[end - len..end].fill(byte);
                        }
                    }
                    1 => {
                        file.set_len(offset).unwrap();
                        model.resize(end - len, 0);
                    }
                    _ => {
                        file.allocate(offset, len as u64).unwrap();
                        model.resize(model.len().max(end), 0);
                    }
                }
                let mut bytes = vec![1; model.len() + 1];
                prop_assert_eq!(file.read_at(0, &mut bytes).unwrap(), model.len());
                bytes.truncate(model.len());
                prop_assert!(bytes == model);
            }
        }
    }
}
