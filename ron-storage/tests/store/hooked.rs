//! A disk that waits, fails or panics when a test says so.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use ron_core::disk::{Access, Disk, DiskError, DiskLock, Entry, File, MemoryDisk, RawFile};

/// What a disk is told to do.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    /// Reads of files wait while the first is set, writes while the second is.
    waits: Mutex<(bool, bool)>,
    goes_on: Condvar,
    /// So many reads panic.
    panics: AtomicU64,
    pub(crate) reads: AtomicU64,
    /// Bytes that were read of the journal, in which small objects are.
    pub(crate) journal_bytes: AtomicU64,
    /// Syncs of the files of large objects wait while this is set.
    syncs: (Mutex<bool>, Condvar),
    /// How many wait.
    pub(crate) syncing: AtomicU64,
}

impl Hooks {
    pub(crate) fn hold(&self, holds: bool) {
        self.waits.lock().unwrap().0 = holds;
        self.goes_on.notify_all();
    }

    pub(crate) fn hold_writes(&self, holds: bool) {
        self.waits.lock().unwrap().1 = holds;
        self.goes_on.notify_all();
    }

    fn on_write(&self) {
        let waits = self.waits.lock().unwrap();
        drop(self.goes_on.wait_while(waits, |waits| waits.1).unwrap());
    }

    pub(crate) fn panic_once(&self) {
        self.panics.store(1, Ordering::SeqCst);
    }

    fn on_read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let waits = self.waits.lock().unwrap();
        drop(self.goes_on.wait_while(waits, |waits| waits.0).unwrap());
        let panics = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(panics.is_err(), "told to panic");
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Hooked {
    disk: MemoryDisk,
    pub(crate) hooks: Arc<Hooks>,
}

impl Hooked {
    fn wrap(&self, path: &Path, file: File) -> File {
        File::new(
            path,
            Box::new(HookedFile {
                file,
                hooks: Arc::clone(&self.hooks),
                is_large: path.extension().is_some_and(|kind| kind == "dat"),
                is_journal: path.extension().is_some_and(|kind| kind == "seg"),
            }),
        )
    }
}

impl Disk for Hooked {
    fn create(&self, path: &Path) -> Result<File, DiskError> {
        self.disk.create(path).map(|file| self.wrap(path, file))
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
        self.disk.open(path, access).map(|file| self.wrap(path, file))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError> {
        self.disk.list(dir)
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        self.disk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.disk.make_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        self.disk.lock(path)
    }

    fn free_space(&self) -> Result<u64, DiskError> {
        self.disk.free_space()
    }
}

#[derive(Debug)]
struct HookedFile {
    file: File,
    hooks: Arc<Hooks>,
    is_large: bool,
    is_journal: bool,
}

fn other(error: DiskError) -> io::Error {
    io::Error::other(error)
}

impl RawFile for HookedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.hooks.on_read();
        let read = self.file.read_at(offset, buf).map_err(other)?;
        if self.is_journal {
            self.hooks.journal_bytes.fetch_add(read as u64, Ordering::SeqCst);
        }
        Ok(read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.hooks.on_write();
        self.file.write_at(offset, bytes).map_err(other)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_large {
            self.hooks.on_sync();
        }
        self.file.sync_data().map_err(other)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all().map_err(other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(other)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len).map_err(other)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len().map_err(other)
    }
}

impl Hooks {
    pub(crate) fn hold_syncs(&self, holds: bool) {
        *self.syncs.0.lock().unwrap() = holds;
        self.syncs.1.notify_all();
    }

    fn on_sync(&self) {
        self.syncing.fetch_add(1, Ordering::SeqCst);
        let waits = self.syncs.0.lock().unwrap();
        drop(self.syncs.1.wait_while(waits, |waits| *waits).unwrap());
        self.syncing.fetch_sub(1, Ordering::SeqCst);
    }
}
