//! Real files on a disk that is full, or whose readers panic, when a test says so.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use ron_core::disk::{Access, Disk, DiskError, DiskLock, Entry, File, RawFile, RealDisk};

/// What goes wrong.
#[derive(Debug)]
pub(crate) struct Troubles {
    /// What can still be written, and whether the disk admits it.
    pub(crate) room: AtomicI64,
    pub(crate) is_honest: AtomicBool,
    /// So many reads panic after so many more that do not.
    pub(crate) panics: AtomicU64,
    pub(crate) spared: AtomicU64,
    /// Whether the operating system has files in memory.
    pub(crate) is_warm: AtomicBool,
}

impl Troubles {
    fn write(&self, bytes: u64) -> io::Result<()> {
        let bytes = i64::try_from(bytes).unwrap();
        if self.room.load(Ordering::SeqCst) < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room.fetch_sub(bytes, Ordering::SeqCst);
        Ok(())
    }

    fn read(&self) {
        let take = |left: u64| left.checked_sub(1);
        if self.panics.load(Ordering::SeqCst) == 0
            || self.spared.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
        {
            return;
        }
        let panics = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        assert!(panics.is_err(), "told to panic");
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Troubled {
    disk: Arc<RealDisk>,
    pub(crate) troubles: Arc<Troubles>,
}

impl Troubled {
    /// A disk without troubles yet.
    pub(crate) fn open(dir: &Path) -> Self {
        let troubles = Troubles {
            room: AtomicI64::new(i64::MAX),
            is_honest: AtomicBool::new(true),
            panics: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            is_warm: AtomicBool::new(true),
        };
        Troubled { disk: Arc::new(RealDisk::open(dir).unwrap()), troubles: Arc::new(troubles) }
    }

    fn wrap(&self, path: &Path, file: File) -> File {
        File::new(path, Box::new(TroubledFile { file, troubles: Arc::clone(&self.troubles) }))
    }
}

impl Disk for Troubled {
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
        let is_honest = self.troubles.is_honest.load(Ordering::SeqCst);
        let room = if is_honest { self.troubles.room.load(Ordering::SeqCst) } else { i64::MAX };
        Ok(u64::try_from(room).unwrap_or(0))
    }
}

#[derive(Debug)]
struct TroubledFile {
    file: File,
    troubles: Arc<Troubles>,
}

impl RawFile for TroubledFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.troubles.read();
        self.file.read_at(offset, buf).map_err(io::Error::other)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> usize {
        let is_read = self.troubles.is_warm.load(Ordering::SeqCst) && self.file.read_cached(offset, buf);
        if is_read { buf.len() } else { 0 }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.troubles.write(bytes.len() as u64)?;
        self.file.write_at(offset, bytes).map_err(io::Error::other)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(io::Error::other)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all().map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(io::Error::other)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.troubles.room.load(Ordering::SeqCst) < 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.allocate(offset, len).map_err(io::Error::other)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len().map_err(io::Error::other)
    }
}
