//! A log in memory: for tests, and for a node that must leave no trace.

use std::{
    future::ready,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use ron_core::Deadline;

use super::{
    Appended, BLOCK_BYTES_MAX, Block, BoxFuture, LogStore, StoreError, StoredSnapshot, Tail, check_block,
};

/// A log that ends with the process. Everything is answered at once, and nothing fails but blocks that no store takes.
#[derive(Debug, Default)]
pub struct MemoryStore {
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Entries that were forgotten.
    pruned: u64,
    entries: Vec<Bytes>,
    checkpoint: Option<Bytes>,
    snapshot: Option<StoredSnapshot>,
}

impl Log {
    fn tail(&self) -> u64 {
        self.pruned + self.entries.len() as u64
    }
}

impl MemoryStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogStore for MemoryStore {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        _: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        let append = || {
            check_block(&block)?;
            let mut log = self.log();
            if log.tail() != after {
                return Ok(Appended::Conflict { tail: log.tail() });
            }
            log.entries.extend(block.entries);
            log.checkpoint = Some(block.checkpoint);
            Ok(Appended::Yes)
        };
        Box::pin(ready(append()))
    }

    fn read(&self, from: u64, max: usize, _: Deadline) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        let read = || {
            let log = self.log();
            let at = from.checked_sub(log.pruned + 1).ok_or(StoreError::Pruned { first: log.pruned + 1 })?;
            let mut bytes = 0;
            let fits = |entry: &&Bytes| {
                bytes += entry.len();
                bytes <= BLOCK_BYTES_MAX
            };
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            Ok(log.entries.iter().skip(at).take(max).take_while(fits).cloned().collect())
        };
        Box::pin(ready(read()))
    }

    fn tail(&self, _: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        let log = self.log();
        let tail = Tail { first: log.pruned + 1, version: log.tail(), checkpoint: log.checkpoint.clone() };
        Box::pin(ready(Ok(tail)))
    }

    fn prune(&self, snapshot: StoredSnapshot, _: Deadline) -> BoxFuture<'_, Result<u64, StoreError>> {
        let mut log = self.log();
        let is_newer = log.snapshot.as_ref().is_none_or(|kept| kept.version < snapshot.version);
        let mut freed = 0;
        if is_newer && snapshot.version <= log.tail() {
            let bytes = |snapshot: &StoredSnapshot| snapshot.parts.iter().map(|part| part.len() as u64).sum();
            let replaced: u64 = log.snapshot.as_ref().map_or(0, bytes);
            let takes: u64 = bytes(&snapshot);
            let covered = (snapshot.version - log.pruned) as usize;
            let entries: u64 = log.entries.drain(..covered).map(|entry| entry.len() as u64).sum();
            freed = (entries + replaced).saturating_sub(takes);
            log.pruned = snapshot.version;
            log.snapshot = Some(snapshot);
        }
        Box::pin(ready(Ok(freed)))
    }

    fn snapshot(&self, _: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        Box::pin(ready(Ok(self.log().snapshot.clone())))
    }

    fn begin(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        _: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        let begin = || {
            check_block(&block)?;
            let mut log = self.log();
            if log.tail() != 0 {
                return Ok(Appended::Conflict { tail: log.tail() });
            }
            log.pruned = snapshot.version;
            log.snapshot = Some(snapshot);
            log.entries = block.entries;
            log.checkpoint = Some(block.checkpoint);
            Ok(Appended::Yes)
        };
        Box::pin(ready(begin()))
    }
}
