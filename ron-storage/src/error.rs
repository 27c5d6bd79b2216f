//! Why a call came back without what was asked.

use std::{path::PathBuf, time::Duration};

use ron_core::{ConfigError, ContentId, ErrorKind, disk::DiskError, journal::JournalError};

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The queue or limit.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline or a timeout passed. A put may or may not have happened: asking again is harmless, since the same
    /// bytes are the same object.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The store is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// There is no such object here.
    #[error("{id} is not here")]
    NotFound {
        /// What was asked for.
        id: ContentId,
    },
    /// The bytes are not those of the object that they were said to be. Nothing was kept.
    #[error("the content is {actual}, not {expected}")]
    Mismatch {
        /// What the caller said.
        expected: ContentId,
        /// What came.
        actual: ContentId,
    },
    /// What the disk returned is not what was stored. The object is quarantined: it is not served until it is put again,
    /// which mends it.
    #[error("{id} is damaged at byte {at}")]
    Corrupt {
        /// The object.
        id: ContentId,
        /// Where in it, as far as that is known.
        at: u64,
    },
    /// The range begins behind the end of the object, or ends before it begins.
    #[error("that is no range of the object, which has {len} bytes")]
    Range {
        /// How long the object is.
        len: u64,
    },
    /// The disk is full. Reads go on. Free space, or delete objects and let the store compact.
    #[error("no space left on the disk: free some, or delete objects and compact; reads go on")]
    Full,
    /// A limit of the settings would be exceeded. Delete objects, or raise it.
    #[error("{key} is {limit}, and with this {used} would be used: delete objects or raise it")]
    Quota {
        /// The setting.
        key: &'static str,
        /// What is used, or would be.
        used: u64,
        /// What it is set to.
        limit: u64,
    },
    /// The object is larger than the settings allow. Nothing was kept.
    #[error("larger than {limit} bytes ({key})")]
    TooLarge {
        /// The setting.
        key: &'static str,
        /// What it is set to.
        limit: u64,
    },
    /// The object is pinned. Unpin it first.
    #[error("{id} is pinned")]
    Pinned {
        /// The object.
        id: ContentId,
    },
    /// Somebody claims the object. Its owners delete it with a tombstone.
    #[error("{id} is claimed by an owner")]
    Claimed {
        /// The object.
        id: ContentId,
    },
    /// At the deadline fewer nodes had the object than was asked for, or fewer are there at all. For an object in shards,
    /// `found` is the number of copies that would be as safe. It is kept here, and copies follow when they can.
    #[error("{found} nodes have it, and {wanted} were asked for")]
    Unacknowledged {
        /// How many were asked for.
        wanted: usize,
        /// How many have it.
        found: usize,
    },
    /// Somebody claims the object, and no node that answers has it or enough of its shards.
    #[error("{id} is claimed, and no node that answers has it")]
    Unreached {
        /// The object.
        id: ContentId,
    },
    /// A claim was not taken.
    #[error("the claim was not taken: {reason}")]
    Claim {
        /// What is wrong with it.
        reason: String,
    },
    /// Another store, in this process or another, has the directory open.
    #[error("{} is in use by another store", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The directory was written in a format that this version does not know. Upgrade the program, or convert the
    /// directory with the version that wrote it.
    #[error("the data has format version {found}, this program knows {known}")]
    Version {
        /// What the directory says.
        found: u32,
        /// What this program writes and reads.
        known: u32,
    },
    /// The bytes to store stopped coming. Nothing was kept.
    #[error("the source failed: {message}")]
    Source {
        /// What it said.
        message: String,
    },
    /// The disk failed. After a write the store takes no more of them until it is opened again; reads go on.
    #[error("the disk failed: {message}")]
    Disk {
        /// What it said.
        message: String,
    },
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
}

impl From<ConfigError> for StorageError {
    fn from(error: ConfigError) -> Self {
        StorageError::Config(error)
    }
}

ron_core::refusals!(StorageError {
    StorageError::NotFound { .. }
    | StorageError::Mismatch { .. }
    | StorageError::Range { .. }
    | StorageError::Quota { .. }
    | StorageError::TooLarge { .. }
    | StorageError::Pinned { .. }
    | StorageError::Claimed { .. }
    | StorageError::Claim { .. }
    | StorageError::Locked { .. }
    | StorageError::Config(_) => ErrorKind::Caller,
    StorageError::Source { .. }
    | StorageError::Unacknowledged { .. }
    | StorageError::Unreached { .. } => ErrorKind::Peer,
    StorageError::Corrupt { .. }
    | StorageError::Full
    | StorageError::Version { .. }
    | StorageError::Disk { .. } => ErrorKind::Disk,
});

#[cfg(feature = "net")]
impl From<crate::logic::claims::ClaimError> for StorageError {
    fn from(error: crate::logic::claims::ClaimError) -> Self {
        StorageError::Claim { reason: error.to_string() }
    }
}

/// What a failure of the disk means to a caller.
pub(crate) fn of_disk(error: DiskError) -> StorageError {
    match error {
        DiskError::NoSpace { .. } => StorageError::Full,
        DiskError::Locked { path } => StorageError::Locked { path },
        other => StorageError::Disk { message: other.to_string() },
    }
}

/// What a failure of the journal means to a caller.
pub(crate) fn of_journal(error: JournalError) -> StorageError {
    match error {
        JournalError::Busy { what, retry_after } => StorageError::Busy { what, retry_after },
        JournalError::Timeout { op } => StorageError::Timeout { op },
        JournalError::Canceled => StorageError::Canceled,
        JournalError::Panicked { op } => StorageError::Panicked { op },
        JournalError::NoSpace => StorageError::Full,
        JournalError::Locked => StorageError::Locked { path: "log".into() },
        JournalError::UnknownVersion { version, .. } => {
            StorageError::Version { found: version.into(), known: 1 }
        }
        JournalError::Disk(error) => of_disk(error),
        other => StorageError::Disk { message: other.to_string() },
    }
}
