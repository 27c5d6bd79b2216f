//! A file by its full path, for what is not below the root of a [`Disk`](super::Disk): keys and tokens.

use std::{fs, io, os::unix::fs::OpenOptionsExt as _, path::Path};

use rustix::{fs::OFlags, io::Errno};

/// Why a file was not opened.
#[derive(Debug)]
pub(crate) enum NotPlain {
    /// The name is that of a symbolic link.
    Symlink,
    /// It is a directory, a pipe, a device.
    NotAFile,
    /// The disk failed, or there is none.
    #[cfg_attr(
        not(feature = "net"),
        allow(dead_code, reason = "keys tell which call failed, and tokens do not")
    )]
    Io(&'static str, io::Error),
}

/// Opens a file for reading, if it is one: a link in its place is not followed, and nothing that somebody put there makes
/// this wait. The directories on the way are whoever's who named the path, and may be links.
pub(crate) fn open_plain(path: &Path) -> Result<fs::File, NotPlain> {
    // Without NONBLOCK, opening a pipe would wait for its writer.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == Errno::LOOP.raw_os_error() => NotPlain::Symlink,
        _ => NotPlain::Io("open", error),
    })?;
    // Asked of the open file: whatever happens to the name meanwhile, this is what is read.
    match file.metadata() {
        Ok(about) if about.is_file() => Ok(file),
        Ok(_) => Err(NotPlain::NotAFile),
        Err(error) => Err(NotPlain::Io("stat", error)),
    }
}
