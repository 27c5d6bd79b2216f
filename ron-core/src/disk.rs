//! What durable code may ask of a disk, and the real form of it.
//!
//! Everything that must survive a crash goes through [`Disk`], so that the twin in `sim` can lose, tear and reorder
//! whatever was not synced. Two rules live here once for every implementation. A file whose sync failed is poisoned:
//! the kernel may have dropped the pages and marked them clean, so a second sync that succeeds proves nothing. And
//! no path leaves the root or passes through a symbolic link, so a link planted in the data directory is an error
//! and not a write somewhere else.

mod memory;
mod plain;
mod real;

use std::{
    ffi::OsStr,
    fmt, io,
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::Errno;

use crate::{
    error::{ErrorKind, Refusal},
    planted::{Bug, is_planted},
};

pub use memory::MemoryDisk;
pub(crate) use plain::{NotPlain, open_plain};
pub use real::RealDisk;

/// Why the disk did not do what it was asked.
///
/// It keeps the kind and the text of an [`io::Error`] instead of the error itself, so that one failure can be told
/// to everyone who waited for the same batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The disk or the quota is full. Free space and try again; reads go on.
    #[error("{op} {}: no space left", path.display())]
    NoSpace {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// Nothing has this name.
    #[error("{op} {}: not found", path.display())]
    NotFound {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// The name is taken, and creating never overwrites.
    #[error("{op} {}: already exists", path.display())]
    AlreadyExists {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// Another process, or another part of this one, holds the lock. Opening twice is the mistake to look for.
    #[error("{} is locked by someone else", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// An earlier sync of this file failed, so nothing more is written to it. Reopen and recover.
    #[error("{op} {}: an earlier sync failed", path.display())]
    Poisoned {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// A component of the path is a symbolic link. Someone put it there; the data directory has none.
    #[error("{op} {}: refusing a symbolic link", path.display())]
    SymlinkRefused {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// The path is absolute, empty, has `..` in it, or a rename would cross directories.
    #[error("{op} {}: not a plain path below the root", path.display())]
    BadPath {
        /// What was attempted.
        op: &'static str,
        /// The path as given.
        path: PathBuf,
    },
    /// The machine went down under this file or lock. Only the simulated disk can live to say so.
    #[error("{op} {}: the machine crashed", path.display())]
    Crashed {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
    },
    /// The device or the filesystem failed in some other way.
    #[error("{op} {}: {message}", path.display())]
    Io {
        /// What was attempted.
        op: &'static str,
        /// On which path below the root.
        path: PathBuf,
        /// The kind of the underlying error.
        kind: io::ErrorKind,
        /// The text of the underlying error.
        message: String,
    },
}

impl DiskError {
    /// Sorts an [`io::Error`] into the variants above. For implementations of [`Disk`].
    #[must_use]
    pub fn from_io(op: &'static str, path: &Path, error: &io::Error) -> Self {
        let path = path.to_path_buf();
        if error.get_ref().is_some_and(|inner| inner.is::<MachineCrashed>()) {
            return DiskError::Crashed { op, path };
        }
        let errno = error.raw_os_error();
        if errno == Some(Errno::LOOP.raw_os_error()) {
            return DiskError::SymlinkRefused { op, path };
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::NoSpace { op, path },
            io::ErrorKind::NotFound => DiskError::NotFound { op, path },
            io::ErrorKind::AlreadyExists => DiskError::AlreadyExists { op, path },
            kind => DiskError::Io { op, path, kind, message: error.to_string() },
        }
    }

    /// Whether freeing space would help.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, DiskError::NoSpace { .. })
    }
}

impl Refusal for DiskError {
    fn kind(&self) -> ErrorKind {
        match self {
            DiskError::BadPath { .. } | DiskError::Locked { .. } => ErrorKind::Caller,
            _ => ErrorKind::Disk,
        }
    }
}

/// What the twin puts inside an [`io::Error`] once its machine is down.
#[derive(Debug, thiserror::Error)]
#[error("the machine crashed")]
pub(crate) struct MachineCrashed;

/// How an existing file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name, without the directory. Names that are not UTF-8 are not listed: nothing here creates them.
    pub name: String,
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Its length in bytes; 0 for anything but a file.
    pub len: u64,
}

/// A place for files. Paths are relative to its root and consist of plain names; `""` is the root itself.
///
/// Names and contents become durable separately: [`File::sync_data`] makes bytes and length survive a crash, and
/// only [`Disk::sync_dir`] of the directory makes creating, renaming and removing survive it.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a new file for reading and writing. A taken name is an error, and the file is not emptied.
    ///
    /// # Errors
    /// [`DiskError::AlreadyExists`], or any failure of the disk.
    fn create(&self, path: &Path) -> Result<File, DiskError>;

    /// Opens a file that exists.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], or any failure of the disk.
    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError>;

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], or any failure of the disk.
    fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError>;

    /// Removes a file.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], or any failure of the disk.
    fn remove(&self, path: &Path) -> Result<(), DiskError>;

    /// Gives a file a new name in the same directory, atomically replacing the file that had that name. In the place of a
    /// directory it is refused. So is crossing directories: no single [`Disk::sync_dir`] would make it durable.
    ///
    /// # Errors
    /// [`DiskError::BadPath`], [`DiskError::NotFound`], or any failure of the disk.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError>;

    /// Creates a directory. The caller syncs its parent.
    ///
    /// # Errors
    /// [`DiskError::AlreadyExists`], or any failure of the disk.
    fn make_dir(&self, path: &Path) -> Result<(), DiskError>;

    /// Makes the names in a directory survive a crash.
    ///
    /// # Errors
    /// Any failure of the disk. As with a file, a later success does not make good for it.
    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError>;

    /// Takes an exclusive lock on a file, which is created if need be, without waiting.
    ///
    /// # Errors
    /// [`DiskError::Locked`] when someone holds it, or any failure of the disk.
    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError>;

    /// Bytes an unprivileged writer can still use.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn free_space(&self) -> Result<u64, DiskError>;
}

/// A lock on a directory or file, held until dropped.
pub struct DiskLock {
    _held: Box<dyn Send + Sync>,
}

impl DiskLock {
    /// Wraps whatever releases the lock when dropped. For implementations of [`Disk`].
    #[must_use]
    pub fn new(held: Box<dyn Send + Sync>) -> Self {
        DiskLock { _held: held }
    }
}

impl fmt::Debug for DiskLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskLock").finish_non_exhaustive()
    }
}

/// The few operations a file needs, without the rules. [`File`] adds those, the path, and the typed error.
pub trait RawFile: fmt::Debug + Send + Sync {
    /// Reads until `buf` is full or the file ends, and says how much it read.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads what is in memory already, without waiting for a device, and says how much of `buf` that filled. Less than
    /// all of it means that [`read_at`](RawFile::read_at) has to be asked. A disk that cannot tell reads nothing.
    fn read_cached(&self, _offset: u64, _buf: &mut [u8]) -> usize {
        0
    }

    /// Writes the whole of `bytes`; a short write is retried inside.
    ///
    /// # Errors
    /// Any failure of the disk; part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes contents, and the length needed to reach them, survive a crash.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn sync_data(&self) -> io::Result<()>;

    /// As [`RawFile::sync_data`], with all metadata.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn sync_all(&self) -> io::Result<()>;

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space and extends the file with zeros to `offset + len`. Where the filesystem cannot, nothing
    /// happens and that is fine: the file then grows as it is written.
    ///
    /// # Errors
    /// Any other failure of the disk, above all a full one.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn len(&self) -> io::Result<u64>;

    /// Whether it is empty.
    ///
    /// # Errors
    /// Any failure of the disk.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// An open file of any [`Disk`]. After a failed sync it refuses to write, sync or resize for good; reading goes on.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    raw: Box<dyn RawFile>,
    poisoned: AtomicBool,
}

impl File {
    /// Wraps a raw file. For implementations of [`Disk`].
    #[must_use]
    pub fn new(path: &Path, raw: Box<dyn RawFile>) -> Self {
        File { path: path.to_path_buf(), raw, poisoned: AtomicBool::new(false) }
    }

    /// The path it was opened by, below the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a sync of this file has failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Reads until `buf` is full or the file ends, and says how much it read.
    ///
    /// # Errors
    /// Any failure of the disk.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.named("read", self.raw.read_at(offset, buf))
    }

    /// Fills `buf` if that needs no waiting, because the operating system has the bytes in memory, and says whether it
    /// did. For callers that must not block; what fails here fails again, with its reason, in [`read_at`](File::read_at).
    pub fn read_cached(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.raw.read_cached(offset, buf) == buf.len()
    }

    /// Writes the whole of `bytes`.
    ///
    /// # Errors
    /// [`DiskError::Poisoned`] after a failed sync, [`DiskError::NoSpace`], or any failure of the disk. Part of the
    /// bytes may have been written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.refuse_poisoned("write")?;
        self.named("write", self.raw.write_at(offset, bytes))
    }

    /// Makes contents and length survive a crash, but not the name.
    ///
    /// # Errors
    /// Any failure of the disk, which poisons the file; [`DiskError::Poisoned`] from then on.
    pub fn sync_data(&self) -> Result<(), DiskError> {
        self.refuse_poisoned("sync")?;
        self.poison_on_error(self.raw.sync_data())
    }

    /// As [`File::sync_data`], with all metadata.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_all(&self) -> Result<(), DiskError> {
        self.refuse_poisoned("sync")?;
        self.poison_on_error(self.raw.sync_all())
    }

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    /// [`DiskError::Poisoned`] after a failed sync, or any failure of the disk.
    pub fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.refuse_poisoned("set length of")?;
        self.named("set length of", self.raw.set_len(len))
    }

    /// Reserves space and extends the file with zeros to `offset + len`, where the filesystem can.
    ///
    /// # Errors
    /// [`DiskError::Poisoned`] after a failed sync, [`DiskError::NoSpace`], or any failure of the disk.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.refuse_poisoned("allocate")?;
        self.named("allocate", self.raw.allocate(offset, len))
    }

    /// The length in bytes.
    ///
    /// # Errors
    /// Any failure of the disk.
    pub fn len(&self) -> Result<u64, DiskError> {
        self.named("stat", self.raw.len())
    }

    /// Whether it is empty.
    ///
    /// # Errors
    /// Any failure of the disk.
    pub fn is_empty(&self) -> Result<bool, DiskError> {
        self.len().map(|len| len == 0)
    }

    fn refuse_poisoned(&self, op: &'static str) -> Result<(), DiskError> {
        if self.is_poisoned() {
            return Err(DiskError::Poisoned { op, path: self.path.clone() });
        }
        Ok(())
    }

    fn poison_on_error(&self, result: io::Result<()>) -> Result<(), DiskError> {
        if result.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        self.named("sync", result)
    }

    fn named<T>(&self, op: &'static str, result: io::Result<T>) -> Result<T, DiskError> {
        result.map_err(|error| DiskError::from_io(op, &self.path, &error))
    }
}

/// What [`replace`] calls its file until it is complete.
const TEMPORARY: &str = ".tmp";

/// Puts `bytes` at `path` so that after a crash the file is the old one or the new one, never a mixture.
///
/// Meant for small state files with one writer: the temporary file beside it has a fixed name.
///
/// # Errors
/// Any failure of the disk. The temporary file is gone again, unless the disk refuses even that.
pub fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let file = match disk.create(&temporary) {
        Err(DiskError::AlreadyExists { .. }) => {
            disk.remove(&temporary)?;
            disk.create(&temporary)?
        }
        other => other?,
    };
    let moved =
        file.write_at(0, bytes).and_then(|()| file.sync_all()).and_then(|()| disk.rename(&temporary, path));
    if let Err(error) = moved {
        // The first failure is the one to report; a leftover is swept at the next start.
        let _ = disk.remove(&temporary);
        return Err(error);
    }
    disk.sync_dir(parent(path))
}

/// Removes what a crash during [`replace`] left in `dir`, and says how many files that were.
///
/// # Errors
/// Any failure of the disk.
pub fn sweep_temporary(disk: &dyn Disk, dir: &Path) -> Result<usize, DiskError> {
    let mut swept = 0;
    for entry in disk.list(dir)? {
        if entry.is_file && entry.name.ends_with(TEMPORARY) {
            disk.remove(&dir.join(&entry.name))?;
            swept += 1;
        }
    }
    if swept > 0 {
        disk.sync_dir(dir)?;
    }
    Ok(swept)
}

/// Makes a directory and every one above it, durably. One that exists is synced all the same: whoever made it may have
/// died before doing so.
///
/// # Errors
/// Any failure of the disk.
pub fn make_dirs(disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
    let mut path = PathBuf::new();
    for component in dir.components() {
        path.push(component);
        match disk.make_dir(&path) {
            Ok(()) | Err(DiskError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        if !is_planted(Bug::MissingDirSync) {
            disk.sync_dir(parent(&path))?;
        }
    }
    Ok(())
}

/// The directory a path is in, `""` for the root.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The plain names a path consists of, or the refusal of a path that has anything else in it.
pub(crate) fn components<'a>(op: &'static str, path: &'a Path) -> Result<Vec<&'a OsStr>, DiskError> {
    path.components()
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            _ => Err(DiskError::BadPath { op, path: path.to_path_buf() }),
        })
        .collect()
}

/// Refuses a rename that a single directory sync could not make durable.
pub(crate) fn same_dir(op: &'static str, from: &Path, to: &Path) -> Result<(), DiskError> {
    if parent(from) == parent(to) {
        return Ok(());
    }
    Err(DiskError::BadPath { op, path: to.to_path_buf() })
}
