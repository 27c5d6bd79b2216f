//! What durable code may ask of a disk, and the real form of it.
//!
//! Everything that must survive a crash goes through [`Disk`], so that the twin in `sim` can lose, tear and reorder
//! whatever was not synced. Two rules live here once for every implementation. A file whose sync failed is poisoned:
//! the kernel may have dropped the pages and marked them clean, so a second sync that succeeds proves nothing. And
//! no path leaves the root or passes through a symbolic link, so a link planted in the data directory is an error
//! and not a write somewhere else.

use std::{
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags},
    io::Errno,
};

use crate::error::{ErrorKind, Refusal};

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
            kind => DiskError::Io {
                op,
                path,
                kind,
                message: error.to_string(),
            },
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

    /// Gives a file a new name in the same directory, atomically replacing whatever had that name. Crossing
    /// directories is refused: no single [`Disk::sync_dir`] would make it durable.
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
        File {
            path: path.to_path_buf(),
            raw,
            poisoned: AtomicBool::new(false),
        }
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
            return Err(DiskError::Poisoned {
                op,
                path: self.path.clone(),
            });
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
    let moved = file
        .write_at(0, bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| disk.rename(&temporary, path));
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

/// The directory a path is in, `""` for the root.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The plain names a path consists of, or the refusal of a path that has anything else in it.
pub(crate) fn components<'a>(
    op: &'static str,
    path: &'a Path,
) -> Result<Vec<&'a std::ffi::OsStr>, DiskError> {
    path.components()
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            _ => Err(DiskError::BadPath {
                op,
                path: path.to_path_buf(),
            }),
        })
        .collect()
}

/// Refuses a rename that a single directory sync could not make durable.
pub(crate) fn same_dir(op: &'static str, from: &Path, to: &Path) -> Result<(), DiskError> {
    if parent(from) == parent(to) {
        return Ok(());
    }
    Err(DiskError::BadPath {
        op,
        path: to.to_path_buf(),
    })
}

/// Files below one directory of the real filesystem.
///
/// The root is opened once, following links, because it is the host's own choice; below it every component is opened
/// without following any. Files are created for their owner alone (0600, directories 0700).
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    fd: OwnedFd,
}

impl RealDisk {
    /// Uses the existing directory `root`.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], or any failure of the disk.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let root = root.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(&root, flags, Mode::empty()).map_err(|errno| failed("open", &root, errno))?;
        Ok(RealDisk { root, fd })
    }

    /// The directory all paths are below.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Opens a directory component by component, so that a link anywhere on the way is refused.
    fn dir(&self, op: &'static str, path: &Path) -> Result<OwnedFd, DiskError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |from: &OwnedFd, name: &std::ffi::OsStr| {
            rustix::fs::openat(from, name, flags, Mode::empty()).map_err(|errno| {
                // With O_DIRECTORY a link is reported as "not a directory"; say what it is.
                if errno == Errno::NOTDIR && is_symlink(from, name) {
                    failed(op, path, Errno::LOOP)
                } else {
                    failed(op, path, errno)
                }
            })
        };
        let mut fd = open(&self.fd, std::ffi::OsStr::new("."))?;
        for name in components(op, path)? {
            fd = open(&fd, name)?;
        }
        Ok(fd)
    }

    /// The opened directory and the name in it.
    fn place<'a>(
        &self,
        op: &'static str,
        path: &'a Path,
    ) -> Result<(OwnedFd, &'a std::ffi::OsStr), DiskError> {
        let names = components(op, path)?;
        let Some(name) = names.last() else {
            return Err(DiskError::BadPath {
                op,
                path: path.to_path_buf(),
            });
        };
        Ok((self.dir(op, parent(path))?, name))
    }

    fn open_file(&self, op: &'static str, path: &Path, flags: OFlags) -> Result<std::fs::File, DiskError> {
        let (dir, name) = self.place(op, path)?;
        // Without O_NONBLOCK a planted fifo would hang the opener for ever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed(op, path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(op, path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed(op, path, Errno::INVAL));
        }
        Ok(std::fs::File::from(fd))
    }
}

fn failed(op: &'static str, path: &Path, errno: Errno) -> DiskError {
    DiskError::from_io(op, path, &io::Error::from(errno))
}

fn is_symlink(dir: &OwnedFd, name: &std::ffi::OsStr) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> Result<File, DiskError> {
        let file = self.open_file("create", path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        Ok(File::new(path, Box::new(RealFile(file))))
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
        };
        let file = self.open_file("open", path, flags)?;
        Ok(File::new(path, Box::new(RealFile(file))))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError> {
        let fd = self.dir("list", dir)?;
        let failed = |errno| failed("list", dir, errno);
        let mut entries = Vec::new();
        for found in Dir::read_from(&fd).map_err(failed)? {
            let found = found.map_err(failed)?;
            let name = found.file_name();
            let Ok(text) = name.to_str() else { continue };
            if text == "." || text == ".." {
                continue;
            }
            let stat = match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Removed while the list was read.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            let len = if is_file {
                u64::try_from(stat.st_size).unwrap_or(0)
            } else {
                0
            };
            entries.push(Entry {
                name: text.to_owned(),
                is_file,
                len,
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        let (dir, name) = self.place("remove", path)?;
        rustix::fs::unlinkat(&dir, name, AtFlags::empty()).map_err(|errno| failed("remove", path, errno))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        same_dir("rename", from, to)?;
        let (dir, old) = self.place("rename", from)?;
        let (_, new) = self.place("rename", to)?;
        rustix::fs::renameat(&dir, old, &dir, new).map_err(|errno| failed("rename", from, errno))
    }

    fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
        let (dir, name) = self.place("make directory", path)?;
        rustix::fs::mkdirat(&dir, name, Mode::RWXU).map_err(|errno| failed("make directory", path, errno))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        let fd = self.dir("sync directory", dir)?;
        rustix::fs::fsync(&fd).map_err(|errno| failed("sync directory", dir, errno))
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        let file = self.open_file("lock", path, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Closing the file releases the lock.
            Ok(()) => Ok(DiskLock::new(Box::new(file))),
            Err(Errno::WOULDBLOCK) => Err(DiskError::Locked {
                path: path.to_path_buf(),
            }),
            Err(errno) => Err(failed("lock", path, errno)),
        }
    }

    fn free_space(&self) -> Result<u64, DiskError> {
        let stat = rustix::fs::fstatvfs(self.fd.as_fd())
            .map_err(|errno| failed("stat filesystem of", Path::new(""), errno))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

#[derive(Debug)]
struct RealFile(std::fs::File);

impl RawFile for RealFile {
    fn read_at(&self, mut offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read_at(&mut buf[filled..], offset) {
                Ok(0) => break,
                Ok(read) => {
                    filled += read;
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn disk() -> (tempfile::TempDir, RealDisk) {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        (dir, disk)
    }

    fn contents(disk: &dyn Disk, path: &str) -> Vec<u8> {
        let file = disk.open(Path::new(path), Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    #[test]
    fn a_file_is_created_once_for_its_owner_alone() {
        let (dir, disk) = disk();
        disk.make_dir(Path::new("sub")).unwrap();
        let path = Path::new("sub/file");
        let file = disk.create(path).unwrap();
        file.allocate(0, 8192).unwrap();
        file.write_at(3, b"abc").unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("sub")).unwrap();
        assert!(matches!(disk.create(path), Err(DiskError::AlreadyExists { .. })));
        assert_eq!(&contents(&disk, "sub/file")[..7], b"\0\0\0abc\0");
        let mode = |path: &str| {
            std::fs::metadata(dir.path().join(path))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode("sub/file") & 0o077, 0);
        assert_eq!(mode("sub") & 0o077, 0);
        let listed = disk.list(Path::new("sub")).unwrap();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].is_file && listed[0].name == "file");
        assert!(disk.free_space().unwrap() > 0);
    }

    #[test]
    fn links_are_refused_wherever_they_are() {
        let (dir, disk) = disk();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"s").unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();

        let through = disk.open(Path::new("link/secret"), Access::Read).unwrap_err();
        assert!(matches!(through, DiskError::SymlinkRefused { .. }), "{through}");
        let last = disk.open(Path::new("file"), Access::Write).unwrap_err();
        assert!(matches!(last, DiskError::SymlinkRefused { .. }), "{last}");
        let lock = disk.lock(Path::new("file")).unwrap_err();
        assert!(matches!(lock, DiskError::SymlinkRefused { .. }), "{lock}");
        assert!(disk.create(Path::new("link/new")).is_err());
        assert!(disk.list(Path::new("link")).is_err());
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn a_path_stays_below_the_root() {
        let (_dir, disk) = disk();
        for path in ["../up", "/etc/passwd", "a/../../b", ".", "./a", ""] {
            let error = disk.create(Path::new(path)).unwrap_err();
            assert!(matches!(error, DiskError::BadPath { .. }), "{path}: {error}");
            assert_eq!(error.kind(), ErrorKind::Caller);
        }
        disk.create(Path::new("a")).unwrap();
        disk.make_dir(Path::new("d")).unwrap();
        let error = disk.rename(Path::new("a"), Path::new("d/a")).unwrap_err();
        assert!(matches!(error, DiskError::BadPath { .. }));
    }

    #[test]
    fn a_planted_fifo_neither_hangs_nor_opens() {
        let (dir, disk) = disk();
        let path = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(disk.open(Path::new("fifo"), Access::Read).is_err());
        }
    }

    #[test]
    fn a_lock_is_held_once_until_dropped() {
        let (_dir, disk) = disk();
        let held = disk.lock(Path::new("LOCK")).unwrap();
        let error = disk.lock(Path::new("LOCK")).unwrap_err();
        assert!(matches!(error, DiskError::Locked { .. }), "{error}");
        drop(held);
        disk.lock(Path::new("LOCK")).unwrap();
    }

    #[test]
    fn replace_leaves_the_new_file_and_nothing_else() {
        let (_dir, disk) = disk();
        let path = Path::new("state");
        replace(&disk, path, b"one").unwrap();
        disk.create(Path::new("state.tmp")).unwrap();
        replace(&disk, path, b"two").unwrap();
        assert_eq!(contents(&disk, "state"), b"two");
        assert_eq!(disk.list(Path::new("")).unwrap().len(), 1);
        disk.create(Path::new("other.tmp")).unwrap();
        assert_eq!(sweep_temporary(&disk, Path::new("")).unwrap(), 1);
        assert_eq!(disk.list(Path::new("")).unwrap().len(), 1);
    }
}
