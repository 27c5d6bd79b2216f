//! Append-only segments of self-describing records, on any [`Disk`](crate::disk::Disk).
//!
//! The rule that everything else follows from: write a batch, sync, acknowledge, and only then write the next. So
//! after a crash the unsynced part is at the very end, and whatever is unreadable before it was acknowledged once.
//! Every record says how far the segment was already synced when it was written; recovery uses that to tell a torn
//! tail, which it cuts, from damage, which it refuses or reports but never skips in silence.
//!
//! [`Journal`] is the handle for async programs: many callers append, one writer thread commits what has gathered
//! while the disk was busy with the last sync, and each caller is answered when its record is durable.
//! [`Segments`] is the same journal without a thread, for an owner that brings its own. Any number of [`Reader`]s
//! read either. The bytes are described in `docs/formats.md`.
//!
//! ```
//! use std::{path::Path, sync::Arc, time::Duration};
//! use ron_core::{Deadline, Supervisor, disk::RealDisk, journal::{Journal, Position, Settings}};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let disk = Arc::new(RealDisk::open(dir.path())?);
//! let host = Supervisor::new("host");
//! let (journal, recovered) = Journal::open(&host, disk, Path::new("log"), Settings::default()).await?;
//! assert_eq!(recovered.records, 0);
//!
//! let deadline = Deadline::after(Duration::from_secs(5));
//! let at = journal.append(1, "acknowledged means durable".into(), deadline).await?;
//! assert_eq!(&journal.read(at, deadline).await?.payload[..], b"acknowledged means durable");
//!
//! // A scan blocks, so it goes to a thread that may.
//! let reader = journal.reader();
//! let records = host.blocking("scan", deadline, move || reader.scan(Position::START).count()).await?;
//! assert_eq!(records, 1);
//! host.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod format;
mod handle;
mod recover;
mod scan;
mod segments;

use std::{fmt, time::Duration};

use bytes::Bytes;

use self::format::BodySum;

use crate::{ContentId, disk::DiskError, error::ErrorKind};

pub use format::{RECORD_BYTES_MAX, record_bytes};
pub use handle::{COMMITS, Journal, WRITER};
pub use recover::Recovered;
pub use scan::{ReadInto, Reader, Scan};
pub use segments::{BATCH_BYTES_MAX, Segments};

/// Where a record is. Ordered as the journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The segment's sequence number.
    pub segment: u64,
    /// The record's first byte in the segment file.
    pub offset: u32,
}

impl Position {
    /// Before every record: scanning from here sees the whole journal.
    pub const START: Position = Position { segment: 0, offset: 0 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}", self.segment, self.offset)
    }
}

/// A record to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the payload is, in the caller's numbering. The journal does not look at it.
    pub kind: u8,
    /// The bytes to keep.
    pub payload: &'a [u8],
    /// The payload's sum, if somebody has computed it already.
    sum: Option<BodySum>,
}

impl<'a> Entry<'a> {
    /// A record of this kind with these bytes.
    #[must_use]
    pub fn new(kind: u8, payload: &'a [u8]) -> Self {
        Entry { kind, payload, sum: None }
    }

    /// The same, by a caller that knows the payload's name already and saves hashing it again. With another name than
    /// its own the record counts as damaged from the moment it is written.
    #[must_use]
    pub fn named(kind: u8, payload: &'a [u8], name: &ContentId) -> Self {
        Entry { kind, payload, sum: Some(format::sum_of(name)) }
    }
}

/// A record as read back, with its sums checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it is.
    pub position: Position,
    /// The kind it was appended with.
    pub kind: u8,
    /// The name of its payload, which was computed to check it.
    pub name: ContentId,
    /// The bytes it was appended with.
    pub payload: Bytes,
}

/// What a scan finds, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record(Record),
    /// Bytes that held records once and no longer do. Only with [`OnDamage::Report`].
    Damaged(Damage),
}

/// A stretch of the journal that was acknowledged once and cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The first unreadable byte.
    pub from: Position,
    /// The first readable one after it; in a later segment when the rest of this one, or all of it, is gone.
    pub to: Position,
}

/// What to do about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// Opening and scanning fail with [`JournalError::Damaged`], and nothing on disk is changed.
    #[default]
    Refuse,
    /// Opening lists the damage in [`Recovered`] and scans show it in its place. For a caller that can fetch what is
    /// missing from elsewhere.
    Report,
}

/// How much of a journal is read when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opening {
    /// All of it, so that every record is known to be readable.
    #[default]
    ReadAll,
    /// The last segment, which is the only one that a crash can have torn. Damage in an earlier one is found when it is
    /// read. For large journals whose owner checks what it reads.
    ReadLast,
}

/// Where the random salt of each new segment comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Salts {
    /// The operating system.
    #[default]
    Random,
    /// A seed, so that a simulation writes the same bytes every time. Whoever knows the seed can forge records by
    /// having them stored as payloads, so never in production.
    Seeded(u64),
}

/// The knobs of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What its readiness gate and its log lines call it. Name them if there are several.
    pub name: &'static str,
    /// Size at which a segment is full. Smaller frees space in smaller steps and costs more files. A batch that is
    /// larger gets a segment of its own. At most 1 GiB; larger values mean that.
    pub segment_bytes: u32,
    /// How much is preallocated at a time. Larger makes fewer syncs wait for the filesystem to record a new length;
    /// smaller wastes less in a journal that stays small.
    pub chunk_bytes: u32,
    /// Longest payload accepted. At most [`RECORD_BYTES_MAX`]; larger values mean that.
    pub record_bytes_max: u32,
    /// Bytes that may wait for the writer in all, headers included, beyond which appends are `Busy`. Raise it for
    /// large records.
    pub pending_bytes_max: u64,
    /// What to do about damage.
    pub on_damage: OnDamage,
    /// How much is read when it is opened.
    pub opening: Opening,
    /// Where salts come from.
    pub salts: Salts,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            name: "journal",
            segment_bytes: 64 << 20,
            chunk_bytes: 4 << 20,
            record_bytes_max: RECORD_BYTES_MAX,
            pending_bytes_max: 64 << 20,
            on_damage: OnDamage::Refuse,
            opening: Opening::ReadAll,
            salts: Salts::Random,
        }
    }
}

/// One segment, as [`Segments::segments`] lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its sequence number.
    pub sequence: u64,
    /// Where its records end.
    pub bytes: u32,
    /// Whether its header can be read. Without it none of its records can.
    pub readable: bool,
}

/// Why the journal did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk is full. Nothing of the batch remains; free space and append again. Reads go on.
    #[error("no space left for the batch")]
    NoSpace,
    /// An earlier write or sync failed, so what is on disk is unknown. Reads go on; reopen to append again.
    #[error("an earlier write or sync failed")]
    Poisoned,
    /// Someone else has this journal open.
    #[error("another process, or another handle in this one, has the journal open")]
    Locked,
    /// Acknowledged records cannot be read. Restore them, or open with [`OnDamage::Report`].
    #[error("damaged from {} to {}", damage.from, damage.to)]
    Damaged {
        /// The first damage found.
        damage: Damage,
    },
    /// The segment was written in a format this version does not know; a newer version may.
    #[error("segment {segment:x} has format version {version}")]
    UnknownVersion {
        /// The segment.
        segment: u64,
        /// The version in its header.
        version: u16,
    },
    /// No record starts there: the position is not from this journal, was removed, or its header was damaged since.
    #[error("no record at {position}")]
    NoRecord {
        /// The position asked for.
        position: Position,
    },
    /// A payload or a batch is longer than allowed. Split it.
    #[error("{bytes} bytes exceed the limit of {limit}")]
    TooLarge {
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        limit: u64,
    },
    /// Too many appends wait for the disk already. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// What is full.
        what: &'static str,
        /// How long it is expected to stay so.
        retry_after: Duration,
    },
    /// The deadline passed. The record may or may not become durable.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The journal is shutting down. The record was not taken.
    #[error("shutting down")]
    Canceled,
    /// The writer panicked. Reopen to append again.
    #[error("{op} panicked")]
    Panicked {
        /// What was waited for.
        op: &'static str,
    },
    /// The disk failed. After a write or a sync the outcome of the batch is unknown until the journal is reopened.
    #[error("the disk failed")]
    Disk(#[source] DiskError),
}

impl From<DiskError> for JournalError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::NoSpace { .. } => JournalError::NoSpace,
            DiskError::Poisoned { .. } => JournalError::Poisoned,
            DiskError::Locked { .. } => JournalError::Locked,
            other => JournalError::Disk(other),
        }
    }
}

crate::refusals!(JournalError {
    JournalError::NoRecord { .. } | JournalError::TooLarge { .. } | JournalError::Locked => ErrorKind::Caller,
    JournalError::Disk(error) => error.kind(),
    JournalError::NoSpace
    | JournalError::Poisoned
    | JournalError::Damaged { .. }
    | JournalError::UnknownVersion { .. } => ErrorKind::Disk,
});
