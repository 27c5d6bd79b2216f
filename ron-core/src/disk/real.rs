//! Files below one directory of the real filesystem, opened so that no link leads elsewhere.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
use rustix::io::ReadWriteFlags;
use rustix::{
    fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags},
    io::{Errno, retry_on_intr},
};

use super::{Access, Disk, DiskError, DiskLock, Entry, File, RawFile, components, parent, same_dir};

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
        let open = |from: &OwnedFd, name: &OsStr| {
            rustix::fs::openat(from, name, flags, Mode::empty()).map_err(|errno| {
                // With O_DIRECTORY a link is reported as "not a directory"; say what it is.
                if errno == Errno::NOTDIR && is_symlink(from, name) {
                    failed(op, path, Errno::LOOP)
                } else {
                    failed(op, path, errno)
                }
            })
        };
        let mut fd = open(&self.fd, OsStr::new("."))?;
        for name in components(op, path)? {
            fd = open(&fd, name)?;
        }
        Ok(fd)
    }

    /// The opened directory and the name in it.
    fn place<'a>(&self, op: &'static str, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), DiskError> {
        let names = components(op, path)?;
        let Some(name) = names.last() else {
            return Err(DiskError::BadPath { op, path: path.to_path_buf() });
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
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(DiskError::from_io(op, path, &error));
        }
        Ok(std::fs::File::from(fd))
    }
}

fn failed(op: &'static str, path: &Path, errno: Errno) -> DiskError {
    DiskError::from_io(op, path, &io::Error::from(errno))
}

fn is_symlink(dir: &OwnedFd, name: &OsStr) -> bool {
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
            let len = if is_file { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
            entries.push(Entry { name: text.to_owned(), is_file, len });
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
        retry_on_intr(|| rustix::fs::fsync(&fd)).map_err(|errno| failed("sync directory", dir, errno))
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        let file = self.open_file("lock", path, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Closing the file releases the lock.
            Ok(()) => Ok(DiskLock::new(Box::new(file))),
            Err(Errno::WOULDBLOCK) => Err(DiskError::Locked { path: path.to_path_buf() }),
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

    #[cfg(target_os = "linux")]
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> usize {
        // Not repeated after a short read: the rest is what is not there.
        let mut whole = [io::IoSliceMut::new(buf)];
        rustix::io::preadv2(&self.0, &mut whole, offset, ReadWriteFlags::NOWAIT).unwrap_or(0)
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
        // A signal may interrupt it, unlike the calls above, and the standard library does not ask again here.
        match retry_on_intr(|| rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::{
        disk::{replace, sweep_temporary},
        error::{ErrorKind, Refusal},
    };

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

    /// What was just written is in memory; what is behind the end is nowhere. A disk that cannot tell says no.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_in_memory_is_read_without_waiting() {
        let (_dir, disk) = disk();
        let file = disk.create(Path::new("file")).unwrap();
        file.write_at(0, &[7; 10_000]).unwrap();
        let mut bytes = [0; 5000];
        assert!(file.read_cached(4000, &mut bytes));
        assert_eq!(bytes, [7; 5000]);
        assert!(!file.read_cached(9000, &mut bytes), "a part is not all of it");
        assert!(!file.read_cached(20_000, &mut bytes));
        let memory = crate::disk::MemoryDisk::new();
        let file = memory.create(Path::new("file")).unwrap();
        file.write_at(0, &[7; 10_000]).unwrap();
        assert!(!file.read_cached(0, &mut bytes));
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
        let mode =
            |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
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
            let error = disk.open(Path::new("fifo"), Access::Read).unwrap_err();
            assert_eq!(error.to_string(), "open fifo: not a regular file");
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
