//! Many callers, one writer: group commit.
//!
//! While the disk syncs one batch, the next gathers in the lane; the writer takes all of it, writes once, syncs once
//! and answers everybody. So throughput grows with the number of callers, and a single caller pays for one sync and
//! nothing else. The writer has a thread of its own, because a sync may take as long as the disk likes; under
//! simulation it is a task and commits inline.

use std::{
    borrow::Cow,
    fmt,
    path::Path,
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use super::{
    Entry, JournalError, Position, Reader, Record, Recovered, Segments, Settings,
    format::{BodySum, RECORD_BYTES_MAX, body_sum, record_bytes, sum_of},
};
use crate::{
    Affects, ContentId, Deadline, Inbox, Lane, LaneSpec, MemoryBudget, ReadyGate, Reply, Spawner, Supervisor,
    TaskSpec, disk::Disk, lane::block_on,
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
/// Payloads up to this long are summed on the caller's task: about twenty microseconds.
const SUMMED_BY_CALLER_MAX: usize = 64 << 10;
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
    Append(Append),
    RemoveBefore { segment: u64, reply: Answer<usize> },
}

/// Records that wait to be written, and whom to tell where they went.
struct Append {
    records: Records,
    durable: bool,
}

enum Records {
    One(Draft, Answer<Position>),
    Many(Vec<Draft>, Answer<Vec<Position>>),
}

/// A record on its way to the writer.
struct Draft {
    kind: u8,
    payload: Bytes,
    sum: Option<BodySum>,
}

impl Draft {
    /// Sums the payload here, on the caller's time, while the writer waits for the disk. A large one is left to the
    /// writer's thread: a runtime must not stand still for it.
    fn new(kind: u8, payload: Bytes) -> Self {
        let sum = (payload.len() <= SUMMED_BY_CALLER_MAX).then(|| body_sum(&payload));
        Draft { kind, payload, sum }
    }
}

impl Append {
    fn drafts(&self) -> &[Draft] {
        match &self.records {
            Records::One(draft, _) => slice::from_ref(draft),
            Records::Many(drafts, _) => drafts,
        }
    }

    fn answer(self, result: Result<&[Position], &JournalError>) {
        match self.records {
            Records::One(_, reply) => reply.send(match result {
                Ok(positions) => Ok(*positions.first().expect("one record has one position")),
                Err(error) => Err(error.clone()),
            }),
            Records::Many(_, reply) => reply.send(result.map(<[_]>::to_vec).map_err(Clone::clone)),
        }
    }
}

impl Request {
    /// What it takes in the segment; even an empty record has a header.
    fn bytes(&self) -> usize {
        match self {
            Request::Append(append) => {
                append.drafts().iter().map(|draft| record_bytes(draft.payload.len())).sum()
            }
            Request::RemoveBefore { .. } => 0,
        }
    }
}

impl Journal {
    /// Opens the journal in `dir` of `disk`, recovers from whatever happened to it, and starts its writer on
    /// `supervisor`. Adds a write gate with the journal's name to the supervisor's readiness.
    ///
    /// On tokio's paused clock, open it on a supervisor built with `inline_blocking(true)`: otherwise the clock runs
    /// to every deadline while the writer's thread does its work.
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
        let record_bytes_max = u64::from(settings.record_bytes_max.min(RECORD_BYTES_MAX));
        let (name, room) = (settings.name, u64::from(settings.chunk_bytes));
        let health = Arc::new(Health { disk: Arc::clone(&disk), name, room, trouble: Mutex::new(None) });
        let dir = dir.to_path_buf();
        let open = move || Segments::open(disk, &dir, settings);
        let (segments, recovered) =
            supervisor.blocking("journal_open", Deadline::after(OPENING), open).await??;

        let reader = segments.reader();
        let (lane, inbox) = Lane::open_weighed(COMMITS, supervisor.metrics(), &budget, Request::bytes);
        lane.close_on(&supervisor.stop());
        let asked = Arc::clone(&health);
        let gate = supervisor.ready().probe(name, Affects::Writes, move || asked.reason());
        let pace = supervisor.is_inline().then(|| supervisor.spawner());
        let writer = Writer { inbox, segments, health, pace, _gate: gate };
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

    /// [`append`](Journal::append) or [`append_buffered`](Journal::append_buffered) for a caller that knows the
    /// payload's name already and saves hashing it again; see [`Entry::named`].
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub async fn append_named(
        &self,
        kind: u8,
        payload: Bytes,
        name: &ContentId,
        durable: bool,
        deadline: Deadline,
    ) -> Result<Position, JournalError> {
        self.check_length(&payload)?;
        let draft = Draft { kind, payload, sum: Some(sum_of(name)) };
        self.append_draft(draft, durable, deadline).await
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
        let drafts: Result<_, _> =
            entries.into_iter().map(|(kind, payload)| self.draft(kind, payload)).collect();
        self.append_many(drafts?, deadline).await
    }

    /// Makes durable what was appended before this call.
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub async fn sync(&self, deadline: Deadline) -> Result<(), JournalError> {
        self.append_many(Vec::new(), deadline).await.map(drop)
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
        self.append_draft(self.draft(kind, payload)?, durable, deadline).await
    }

    async fn append_draft(
        &self,
        draft: Draft,
        durable: bool,
        deadline: Deadline,
    ) -> Result<Position, JournalError> {
        let request = |reply| Request::Append(Append { records: Records::One(draft, reply), durable });
        self.lane.call("journal_append", deadline, request).await?
    }

    async fn append_many(
        &self,
        drafts: Vec<Draft>,
        deadline: Deadline,
    ) -> Result<Vec<Position>, JournalError> {
        let request =
            |reply| Request::Append(Append { records: Records::Many(drafts, reply), durable: true });
        self.lane.call("journal_append", deadline, request).await?
    }

    /// Refuses an oversized record here, so that it does not spoil the batch of others.
    fn draft(&self, kind: u8, payload: Bytes) -> Result<Draft, JournalError> {
        self.check_length(&payload)?;
        Ok(Draft::new(kind, payload))
    }

    fn check_length(&self, payload: &Bytes) -> Result<(), JournalError> {
        let (bytes, limit) = (payload.len() as u64, self.record_bytes_max);
        if bytes > limit { Err(JournalError::TooLarge { bytes, limit }) } else { Ok(()) }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("waiting", &self.lane.depth()).finish_non_exhaustive()
    }
}

struct Writer {
    inbox: Inbox<Request>,
    segments: Segments,
    health: Arc<Health>,
    /// On a simulated disk, what says how long it takes.
    pace: Option<Spawner>,
    _gate: ReadyGate,
}

/// Whether appends can be expected to succeed.
struct Health {
    disk: Arc<dyn Disk>,
    name: &'static str,
    /// Free space with which another try is worth it.
    room: u64,
    trouble: Mutex<Option<JournalError>>,
}

impl Health {
    /// Why not, for readiness. A full disk is asked again each time: nobody sends a write to whoever says that it
    /// cannot take any, so it must find out by itself that it can.
    fn reason(&self) -> Option<Cow<'static, str>> {
        let trouble = self.lock().clone()?;
        let has_room = || self.disk.free_space().is_ok_and(|free| free >= self.room);
        (trouble != JournalError::NoSpace || !has_room()).then(|| trouble.to_string().into())
    }

    fn note(&self, result: Result<(), &JournalError>) {
        let trouble = match result {
            Ok(()) => None,
            // The caller's own mistake says nothing about the disk.
            Err(JournalError::TooLarge { .. }) => return,
            Err(error) => Some(error.clone()),
        };
        let before = std::mem::replace(&mut *self.lock(), trouble.clone());
        if let (None, Some(error)) = (&before, &trouble) {
            tracing::error!(journal = self.name, %error, "journal cannot append");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<JournalError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    async fn run(mut self) -> Result<(), JournalError> {
        let mut batch = Vec::new();
        while let Some(first) = self.inbox.recv().await {
            if let Some(pace) = &self.pace {
                pace.pace_inline().await;
            }
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(request) = next.take() {
                bytes += request.bytes();
                match request {
                    Request::Append(append) => batch.push(append),
                    // In its place in the order: what was asked for before it is committed before it.
                    Request::RemoveBefore { segment, reply } => {
                        self.commit(&mut batch);
                        let removed = self.segments.remove_before(segment);
                        if self.segments.is_poisoned() {
                            self.health.note(removed.as_ref().map(drop));
                        }
                        reply.send(removed);
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
    fn commit(&mut self, batch: &mut Vec<Append>) {
        if batch.is_empty() {
            return;
        }
        match self.write(batch) {
            Ok(positions) => {
                let mut rest = &positions[..];
                for append in batch.drain(..) {
                    let (its, others) = rest.split_at(append.drafts().len());
                    append.answer(Ok(its));
                    rest = others;
                }
            }
            // Together they do not fit; some of them alone may.
            Err(JournalError::NoSpace | JournalError::TooLarge { .. }) if batch.len() > 1 => {
                for append in batch.drain(..) {
                    let result = self.write(slice::from_ref(&append));
                    append.answer(result.as_deref());
                }
            }
            Err(error) => batch.drain(..).for_each(|append| append.answer(Err(&error))),
        }
    }

    fn write(&mut self, batch: &[Append]) -> Result<Vec<Position>, JournalError> {
        let entries = batch.iter().flat_map(Append::drafts).map(|draft| Entry {
            kind: draft.kind,
            payload: &draft.payload,
            sum: draft.sum,
        });
        let written = if batch.iter().any(|append| append.durable) {
            self.segments.commit(entries)
        } else {
            self.segments.append_unsynced(entries)
        };
        self.health.note(written.as_ref().map(drop));
        written
    }
}
