//! Many callers, one writer: group commit.
//!
//! While the disk syncs one batch, the next gathers in the lane; the writer takes all of it, writes once, syncs once
//! and answers everybody. So throughput grows with the number of callers, and a single caller pays for one sync and
//! nothing else. The writer has a thread of its own, because a sync may take as long as the disk likes; under
//! simulation it is a task and commits inline.

use std::{fmt, path::Path, slice, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Entry, JournalError, Position, Reader, Record, Recovered, Segments, Settings};
use crate::{
    Affects, Deadline, Inbox, Lane, LaneSpec, MemoryBudget, ReadyGate, Reply, Spawner, Supervisor, TaskSpec,
    disk::Disk, lane::block_on,
};

/// Where appends wait for the writer.
pub const COMMITS: LaneSpec =
    LaneSpec::new("ron-core", "journal_commits", 1024).flow("callers → journal writer").why(
        "a batch gathers during one sync; beyond a thousand callers, waiting longer than two syncs is likely",
    );

/// The one owner of the segments.
pub const WRITER: TaskSpec = TaskSpec::new("ron-core", "journal_writer")
    .what("commits what has gathered: one write, one sync, then the answers");

/// Most requests in one batch. More would make the first of them wait for the copying of the last.
const BATCH_MAX: usize = 1024;
/// Payload bytes after which a batch is full. At a gigabyte a second this is four milliseconds of writing.
const BATCH_BYTES: usize = 4 << 20;
/// Opening scans the whole journal; it may take minutes, and there is nothing to do meanwhile.
const OPENING: Duration = Duration::from_secs(24 * 3600);

/// A journal open for appending by many. Cloning shares it.
///
/// It ends with the supervisor it was opened on, or when the last clone is dropped: what was accepted is committed,
/// and a seal marks the end.
#[derive(Clone)]
pub struct Journal {
    lane: Lane<Request>,
    reader: Reader,
    spawner: Spawner,
    record_bytes_max: u64,
}

type Answer<T> = Reply<Result<T, JournalError>>;

enum Request {
    Append { entries: Entries, durable: bool, reply: Answer<Vec<Position>> },
    RemoveBefore { segment: u64, reply: Answer<usize> },
}

enum Entries {
    One((u8, Bytes)),
    Many(Vec<(u8, Bytes)>),
}

impl Entries {
    fn as_slice(&self) -> &[(u8, Bytes)] {
        match self {
            Entries::One(entry) => slice::from_ref(entry),
            Entries::Many(entries) => entries,
        }
    }
}

impl Request {
    fn payload_bytes(&self) -> usize {
        match self {
            Request::Append { entries, .. } => {
                entries.as_slice().iter().map(|(_, payload)| payload.len()).sum()
            }
            Request::RemoveBefore { .. } => 0,
        }
    }
}

impl Journal {
    /// Opens the journal in `dir` of `disk`, recovers from whatever happened to it, and starts its writer on
    /// `supervisor`. Adds a write gate called `journal` to the supervisor's readiness.
    ///
    /// # Errors
    /// As [`Segments::open`], and `Canceled` when the supervisor has stopped.
    pub async fn open(
        supervisor: &Supervisor,
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: Settings,
    ) -> Result<(Journal, Recovered), JournalError> {
        let budget = MemoryBudget::new("journal_pending_bytes", settings.pending_bytes_max);
        let record_bytes_max = u64::from(settings.record_bytes_max);
        let dir = dir.to_path_buf();
        let open = move || Segments::open(disk, &dir, settings);
        let (segments, recovered) =
            supervisor.blocking("journal_open", Deadline::after(OPENING), open).await??;

        let reader = segments.reader();
        let (lane, inbox) =
            Lane::open_weighed(COMMITS, supervisor.metrics(), &budget, Request::payload_bytes);
        lane.close_on(&supervisor.stop());
        let gate = supervisor.ready().gate("journal", Affects::Writes);
        gate.open();
        let writer = Writer { inbox, segments, gate };
        if supervisor.is_inline() {
            supervisor.spawn(WRITER, |_| writer.run());
        } else {
            supervisor
                .spawn_thread(WRITER, |_| block_on(writer.run()))
                .map_err(|_| JournalError::Busy { what: "threads", retry_after: Duration::from_secs(1) })?;
        }
        Ok((Journal { lane, reader, spawner: supervisor.spawner(), record_bytes_max }, recovered))
    }

    /// Appends a record and waits until it is durable. Dropping the future withdraws a record that still waits; one
    /// that is being committed may become durable.
    ///
    /// # Errors
    /// `Busy`, `Timeout` (it may become durable), `Canceled`, and those of [`Segments::commit`].
    pub async fn append(
        &self,
        kind: u8,
        payload: Bytes,
        deadline: Deadline,
    ) -> Result<Position, JournalError> {
        self.append_one(kind, payload, true, deadline).await
    }

    /// Appends a record without waiting for the disk. A crash may lose it; the next durable append makes it durable
    /// too.
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub async fn append_buffered(
        &self,
        kind: u8,
        payload: Bytes,
        deadline: Deadline,
    ) -> Result<Position, JournalError> {
        self.append_one(kind, payload, false, deadline).await
    }

    /// Appends records next to each other, with one sync. If the machine fails meanwhile, the first few of them may
    /// be found later; a record that must not stand alone belongs into one payload.
    ///
    /// # Errors
    /// As [`append`](Journal::append); nothing of a refused batch is kept.
    pub async fn append_all(
        &self,
        entries: Vec<(u8, Bytes)>,
        deadline: Deadline,
    ) -> Result<Vec<Position>, JournalError> {
        for (_, payload) in &entries {
            self.check_size(payload)?;
        }
        self.submit(Entries::Many(entries), true, deadline).await
    }

    /// Makes durable what was appended before this call.
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub async fn sync(&self, deadline: Deadline) -> Result<(), JournalError> {
        self.submit(Entries::Many(Vec::new()), true, deadline).await.map(drop)
    }

    /// Removes the segments before `segment`, oldest first, and returns how many there were. The one being written
    /// always stays.
    ///
    /// # Errors
    /// As [`Segments::remove_before`], and the refusals.
    pub async fn remove_before(&self, segment: u64, deadline: Deadline) -> Result<usize, JournalError> {
        self.lane.call("journal_remove", deadline, |reply| Request::RemoveBefore { segment, reply }).await?
    }

    /// Reads the record at `position` and checks it.
    ///
    /// # Errors
    /// As [`Reader::read`], and the refusals.
    pub async fn read(&self, position: Position, deadline: Deadline) -> Result<Record, JournalError> {
        let reader = self.reader.clone();
        self.spawner.blocking("journal_read", deadline, move || reader.read(position)).await?
    }

    /// For reading on a thread that may block: single records, scans, the list of segments.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    async fn append_one(
        &self,
        kind: u8,
        payload: Bytes,
        durable: bool,
        deadline: Deadline,
    ) -> Result<Position, JournalError> {
        self.check_size(&payload)?;
        let positions = self.submit(Entries::One((kind, payload)), durable, deadline).await?;
        Ok(*positions.first().expect("one record was appended, so there is one position"))
    }

    async fn submit(
        &self,
        entries: Entries,
        durable: bool,
        deadline: Deadline,
    ) -> Result<Vec<Position>, JournalError> {
        self.lane
            .call("journal_append", deadline, |reply| Request::Append { entries, durable, reply })
            .await?
    }

    /// Refused here, so that one oversized record does not spoil the batch of others.
    fn check_size(&self, payload: &Bytes) -> Result<(), JournalError> {
        let (bytes, limit) = (payload.len() as u64, self.record_bytes_max);
        if bytes > limit { Err(JournalError::TooLarge { bytes, limit }) } else { Ok(()) }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("waiting", &self.lane.depth()).finish_non_exhaustive()
    }
}

/// An append that waits for its answer.
struct Waiting {
    entries: Entries,
    durable: bool,
    reply: Answer<Vec<Position>>,
}

struct Writer {
    inbox: Inbox<Request>,
    segments: Segments,
    gate: ReadyGate,
}

impl Writer {
    async fn run(mut self) -> Result<(), JournalError> {
        let mut batch = Vec::new();
        while let Some(first) = self.inbox.recv().await {
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(request) = next.take() {
                bytes += request.payload_bytes();
                match request {
                    Request::Append { entries, durable, reply } => {
                        batch.push(Waiting { entries, durable, reply });
                    }
                    // In its place in the order: what was asked for before it is committed before it.
                    Request::RemoveBefore { segment, reply } => {
                        self.commit(&mut batch);
                        reply.send(self.segments.remove_before(segment));
                    }
                }
                if batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
                    next = self.inbox.try_recv();
                }
            }
            self.commit(&mut batch);
        }
        if self.segments.is_poisoned() {
            return Ok(());
        }
        self.segments.close()
    }

    /// Commits the batch and answers everybody in it.
    fn commit(&mut self, batch: &mut Vec<Waiting>) {
        if batch.is_empty() {
            return;
        }
        match self.write(batch) {
            Ok(positions) => {
                let mut positions = positions.into_iter();
                for Waiting { entries, reply, .. } in batch.drain(..) {
                    reply.send(Ok(positions.by_ref().take(entries.as_slice().len()).collect()));
                }
            }
            // Together they do not fit; some of them alone may.
            Err(JournalError::NoSpace) if batch.len() > 1 => {
                for waiting in batch.drain(..) {
                    let result = self.write(slice::from_ref(&waiting));
                    waiting.reply.send(result);
                }
            }
            Err(error) => {
                for Waiting { reply, .. } in batch.drain(..) {
                    reply.send(Err(error.clone()));
                }
            }
        }
    }

    fn write(&mut self, batch: &[Waiting]) -> Result<Vec<Position>, JournalError> {
        let entries = batch
            .iter()
            .flat_map(|waiting| waiting.entries.as_slice())
            .map(|(kind, payload)| Entry::new(*kind, payload));
        let written = if batch.iter().any(|waiting| waiting.durable) {
            self.segments.commit(entries)
        } else {
            self.segments.append_unsynced(entries)
        };
        match &written {
            Ok(_) => self.gate.open(),
            Err(JournalError::TooLarge { .. }) => {}
            Err(error) => self.gate.close(error.to_string()),
        }
        written
    }
}
