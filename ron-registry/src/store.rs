//! Where the log is kept: a few verbs that any engine with agreement can offer.
//!
//! The one that matters is [`LogStore::append_if`]: it appends behind a given version or not at all, the whole block or
//! nothing, and is durable when it says so. With that, any number of committers can work on one store, and no version is
//! ever given twice. An engine that cannot tell whether an append took place says [`StoreError::Unknown`], and [`append`]
//! finds out by reading back.
//!
//! Two engines are here: [`JournalStore`] on `ron_core::journal`, and [`MemoryStore`]. The module `conformance` (feature
//! `conformance`) is what any other engine has to pass.

#[cfg(feature = "conformance")]
pub mod conformance;
mod journal;
mod memo_file;
mod memory;

use std::{fmt, future::ready, time::Duration};

use bytes::Bytes;
use ron_core::{Deadline, ErrorKind};

pub(crate) use journal::INDEX;
pub use journal::{JournalStore, JournalStoreSettings};
pub use memory::MemoryStore;
/// A future that is not named: engines are used through `dyn`.
pub use ron_core::net::BoxFuture;

/// Bytes of entries in the largest block. A record of the journal holds four times as much.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;

/// Entries in the largest block.
pub const BLOCK_ENTRIES_MAX: usize = 1024;

/// What is appended at once: entries that follow each other, and the checkpoint that covers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The entries, at least one.
    pub entries: Vec<Bytes>,
    /// The signed note of the log with these entries.
    pub checkpoint: Bytes,
}

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log, durably.
    Yes,
    /// The log ends elsewhere, so nothing was appended.
    Conflict {
        /// The version it ends at.
        tail: u64,
    },
}

/// Where the log begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The first entry that can be read; one more than `version` if there is none.
    pub first: u64,
    /// The last entry; 0 if there never was one.
    pub version: u64,
    /// The checkpoint of the last block; none before the first.
    pub checkpoint: Option<Bytes>,
}

/// A state snapshot as the store keeps it: its version, and its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The last entry that it covers.
    pub version: u64,
    /// Its parts, as [`Snapshot::encode`](crate::Snapshot::encode) gives them.
    pub parts: Vec<Bytes>,
}

/// One part of the snapshot that a store keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// The last entry that the snapshot covers.
    pub version: u64,
    /// How many parts it has.
    pub parts: u32,
    /// The bytes of this one.
    pub bytes: Bytes,
}

/// What makes the next opening of a log quick, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMemo {
    /// The last entry that it knows.
    pub version: u64,
    /// The first entry that it can prove. It is worth nothing beside a snapshot that begins later.
    pub first: u64,
    /// Its parts.
    pub parts: Vec<Bytes>,
}

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Too much waits for it already; nothing was appended. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// What is full.
        what: &'static str,
        /// How long it is expected to stay so.
        retry_after: Duration,
    },
    /// The deadline passed. Of an append it is not known whether it took place.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The store is shutting down; nothing was appended.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged. Of an append it is not known whether it took place.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// It is not known whether the append took place. Read back.
    #[error("the outcome is not known: {message}")]
    Unknown {
        /// What happened.
        message: String,
    },
    /// There is no room; nothing was appended. Reads go on.
    #[error("no space left")]
    NoSpace,
    /// The block is larger than any may be, or empty; nothing was appended.
    #[error(
        "a block of {entries} entries and {bytes} bytes: 1 to {BLOCK_ENTRIES_MAX} entries and at most {BLOCK_BYTES_MAX} \
         bytes are taken"
    )]
    BadBlock {
        /// Its entries.
        entries: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// Entries before this one were pruned.
    #[error("the log begins at {first}")]
    Pruned {
        /// The first that can be read.
        first: u64,
    },
    /// What was acknowledged once cannot be read, or is not what was written.
    #[error("damaged: {message}")]
    Damaged {
        /// What was found where.
        message: String,
    },
    /// The engine failed otherwise.
    #[error("the store failed: {message}")]
    Failed {
        /// What it said.
        message: String,
    },
}

ron_core::refusals!(StoreError {
    StoreError::Unknown { .. } => ErrorKind::Timeout,
    StoreError::NoSpace | StoreError::Damaged { .. } | StoreError::Failed { .. } => ErrorKind::Disk,
    StoreError::BadBlock { .. } | StoreError::Pruned { .. } => ErrorKind::Caller,
});

impl StoreError {
    /// Whether an append that failed like this may have taken place.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, StoreError::Unknown { .. } | StoreError::Timeout { .. } | StoreError::Panicked { .. })
    }
}

/// A place for a log.
pub trait LogStore: fmt::Debug + Send + Sync + 'static {
    /// Appends `block` behind version `after`, if the log ends there: all of it or nothing, durably when it answers
    /// [`Appended::Yes`]. Dropping the future leaves the outcome unknown.
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>>;

    /// The entries from version `from` on, in order: at least one if there is one, at most `max`, and no more than fit a
    /// block. None beyond the end.
    fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>>;

    /// Where the log begins and ends now.
    fn tail(&self, deadline: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>>;

    /// Keeps a snapshot durably, and only then forgets entries that it covers, as many as is convenient. Returns how many
    /// bytes that freed in all: entries and the snapshot that is replaced, less what the new one takes; 0 if it takes more
    /// than it frees. A snapshot that is not newer than the one there is changes nothing.
    fn prune(&self, snapshot: StoredSnapshot, deadline: Deadline) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The newest snapshot that was kept whole.
    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>>;

    /// One part of the newest snapshot, for a caller that passes it on part by part; `None` if there is no snapshot, or no such
    /// part.
    fn snapshot_part(
        &self,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<StoredPart>, StoreError>> {
        Box::pin(async move {
            let Some(StoredSnapshot { version, parts }) = self.snapshot(deadline).await? else {
                return Ok(None);
            };
            let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
            let found = usize::try_from(part).ok().and_then(|part| parts.into_iter().nth(part));
            Ok(found.map(|bytes| StoredPart { version, parts: count, bytes }))
        })
    }

    /// Begins a log that has nothing yet behind a snapshot of another's, with the block that follows the snapshot: durably
    /// when it answers [`Appended::Yes`], and as good as nothing otherwise. A log that has something conflicts. Dropping the
    /// future leaves the outcome unknown.
    fn begin(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>>;

    /// Keeps what makes the next opening quick, in place of what was kept before. It is a cache, and may be lost; an engine
    /// without a place for it keeps nothing.
    fn keep_memo(&self, memo: StoredMemo, deadline: Deadline) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = (memo, deadline);
        Box::pin(ready(Ok(())))
    }

    /// Hands over what was kept last. Called once, at the start; after that the engine may answer `None`.
    fn take_memo(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredMemo>, StoreError>> {
        let _ = deadline;
        Box::pin(ready(Ok(None)))
    }
}

/// Refuses a block that no store takes.
///
/// # Errors
/// [`StoreError::BadBlock`].
pub fn check_block(block: &Block) -> Result<(), StoreError> {
    let (entries, bytes) = (block.entries.len(), block.entries.iter().map(Bytes::len).sum());
    let is_good = (1..=BLOCK_ENTRIES_MAX).contains(&entries) && bytes <= BLOCK_BYTES_MAX;
    if is_good { Ok(()) } else { Err(StoreError::BadBlock { entries, bytes }) }
}

/// How long after an unknown outcome it is tried again. The engine that timed out is busy or away.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// [`LogStore::append_if`] that knows the outcome: what is not known is read back, and tried again if it is not there. An
/// attempt that arrives late cannot do harm, because another at the same place conflicts with it. Once an outcome is not
/// known, only reading back or a later attempt that took place settles it: whatever else a later attempt says is about that
/// attempt.
///
/// # Errors
/// Those of the store. One that [`is_unknown`](StoreError::is_unknown) only when the deadline came first, or the store
/// failed for good before it could be read back.
pub async fn append(
    store: &dyn LogStore,
    after: u64,
    block: &Block,
    deadline: Deadline,
) -> Result<Appended, StoreError> {
    // What the first attempt of which nobody knows what became of it said.
    let mut doubt: Option<StoreError> = None;
    loop {
        let mut is_worth_another = true;
        match (store.append_if(after, block.clone(), deadline).await, &doubt) {
            (Ok(Appended::Yes), _) => return Ok(Appended::Yes),
            (Ok(conflict), None) => return Ok(conflict),
            // It may be the earlier attempt that it conflicts with.
            (Ok(_), Some(_)) => {}
            (Err(error), None) if error.is_unknown() => doubt = Some(error),
            (Err(error), None) => return Err(error),
            // That nothing came of this attempt says nothing about the one before.
            (Err(error), Some(_)) => {
                is_worth_another = error.is_unknown() || matches!(error, StoreError::Busy { .. });
            }
        }
        if let Some(settled) = look(store, after, block, deadline).await {
            return Ok(settled);
        }
        if is_worth_another {
            let paused = deadline.limit("store", tokio::time::sleep(SETTLE_PAUSE)).await;
            is_worth_another = paused.is_ok() && !deadline.has_passed();
        }
        if let (false, Some(unknown)) = (is_worth_another, &doubt) {
            return Err(unknown.clone());
        }
    }
}

/// [`LogStore::begin`] that knows the outcome, as far as reading back tells it.
///
/// # Errors
/// Those of the store.
pub async fn begin(
    store: &dyn LogStore,
    snapshot: StoredSnapshot,
    block: &Block,
    deadline: Deadline,
) -> Result<Appended, StoreError> {
    let after = snapshot.version;
    let begun = store.begin(snapshot, block.clone(), deadline).await;
    // It may be an earlier attempt that it conflicts with.
    let is_doubtful = match &begun {
        Ok(Appended::Yes) => false,
        Ok(Appended::Conflict { .. }) => true,
        Err(error) => error.is_unknown(),
    };
    if is_doubtful && look(store, after, block, deadline).await == Some(Appended::Yes) {
        let kept = store.snapshot_part(0, deadline).await?;
        if kept.is_some_and(|kept| kept.version == after) {
            return Ok(Appended::Yes);
        }
    }
    begun
}

/// Whether the entries of `block` stand behind `after`, others do, or none.
async fn look(store: &dyn LogStore, after: u64, block: &Block, deadline: Deadline) -> Option<Appended> {
    let mut found = Vec::new();
    while found.len() < block.entries.len() {
        let (from, max) = (after + 1 + found.len() as u64, block.entries.len() - found.len());
        match store.read(from, max, deadline).await {
            Ok(more) if more.is_empty() => break,
            Ok(more) => found.extend(more),
            Err(_) => return None,
        }
    }
    if found.is_empty() {
        return None;
    }
    if found == block.entries {
        return Some(Appended::Yes);
    }
    // Blocks are whole, so a difference anywhere means another block.
    let tail = store.tail(deadline).await.ok()?;
    Some(Appended::Conflict { tail: tail.version })
}
