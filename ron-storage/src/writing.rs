//! Writing: bytes come in as a stream, are hashed on the way, and exist once they are acknowledged.
//!
//! A small object is gathered in memory and written to the journal as one record. A larger one goes to a file of its own,
//! a piece at a time: one worker writes the piece while another hashes it, and between two pieces none of them is held.

use std::{
    error::Error,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{ContentId, Deadline, now};

use crate::{
    StorageError,
    actor::{run, run_within},
    handle::Inner,
    large::{Hashing, Ingest},
    objects::Reserved,
    settings::Settings,
    streams::Place,
};

/// Objects up to this long are hashed where their last bytes arrive: sixty microseconds. Longer ones are hashed by a worker.
const HASHED_HERE_MAX: usize = 256 << 10;

/// A large object is synced each time it has grown by this much, so that the sync at its end is short however large the
/// object is.
const SYNC_EVERY: u64 = 32 << 20;

type Syncing = Pin<Box<dyn Future<Output = Result<(), StorageError>> + Send>>;

/// What an acknowledgement stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The object is on disk and survives a crash.
    #[default]
    Durable,
    /// The object can be read, and a crash in the next moments may lose it. A store in memory always says this.
    Buffered,
}

/// Choices of a put. By default it is acknowledged when it is durable, is not pinned, and may have any name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Put {
    /// What to wait for before it is acknowledged.
    pub durability: Durability,
    /// Whether the object is pinned as it is stored, so that no collection can come between the two.
    pub pin: bool,
    /// The name that it must have, if that is known.
    pub expect: Option<ContentId>,
    /// Its length, if that is known: what is too long or has no room is then refused before anything is read. If `expect`
    /// names an object that is not here, its share of the quota is reserved from the start.
    pub len: Option<u64>,
}

/// An object that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Its name.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// What this acknowledgement stands for: what was asked for, or [`Durability::Buffered`] from a store in memory.
    pub durability: Durability,
    /// Whether it was here before.
    pub existed: bool,
}

/// Bytes that gather until there are enough. One piece alone is not copied.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    more: BytesMut,
}

impl Gathered {
    fn len(&self) -> usize {
        self.first.len() + self.more.len()
    }

    fn push(&mut self, bytes: Bytes) {
        if self.len() == 0 {
            self.first = bytes;
            return;
        }
        if !self.first.is_empty() {
            self.more.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.more.extend_from_slice(&bytes);
    }

    fn take(&mut self) -> Bytes {
        if self.first.is_empty() { self.more.split().freeze() } else { std::mem::take(&mut self.first) }
    }
}

/// What comes in, and what of it is not written yet.
struct Incoming<'a, S> {
    source: Pin<&'a mut S>,
    gathered: Gathered,
    is_over: bool,
}

impl Inner {
    /// Takes everything that `source` yields and keeps it.
    pub(crate) async fn write<S, E>(
        &self,
        place: &Place,
        source: S,
        put: Put,
        deadline: Deadline,
    ) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let settings = self.settings.load();
        if let Some(id) = put.expect {
            if let Some((len, durability)) = self.objects.put_known(id, put, &settings, deadline).await? {
                return Ok(Stored { id, len, durability, existed: true });
            }
        }
        let reserved = self.objects.expect(put, &settings)?;
        let quota = reserved.as_ref().map_or(0, Reserved::len);
        let mut source = pin!(source);
        let mut gathered = Gathered::default();
        while let Some(bytes) = self.next(source.as_mut(), place, &settings).await? {
            gathered.push(bytes);
            if gathered.len() as u64 > settings.object_bytes_max {
                let limit = settings.object_bytes_max;
                return Err(StorageError::TooLarge { key: "object_bytes_max", limit });
            }
            if gathered.len() > settings.small_bytes_max as usize {
                // Boxed, so that the future of a small put stays small.
                return Box::pin(self.write_large(
                    place,
                    source,
                    gathered,
                    (put, quota),
                    &settings,
                    deadline,
                ))
                .await;
            }
        }
        let content = gathered.take();
        let (id, content) = if content.len() <= HASHED_HERE_MAX {
            (ContentId::of(&content), content)
        } else {
            run(&self.puts, deadline, move || (ContentId::of(&content), content)).await?
        };
        check_name(put, id)?;
        let (len, last) = (content.len() as u64, now());
        let (existed, durability) =
            self.objects.put_small(id, content, (put, quota), &settings, deadline).await?;
        self.counts.commit.observe(now().saturating_duration_since(last).as_secs_f64());
        Ok(Stored { id, len, durability, existed })
    }

    async fn write_large<S, E>(
        &self,
        place: &Place,
        source: Pin<&mut S>,
        gathered: Gathered,
        (put, quota): (Put, u64),
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let large = Arc::clone(&self.objects.large);
        let ingest = Arc::new(self.step(deadline, move || large.begin()).await?);
        let (mut hashing, mut written) = (Hashing::default(), 0);
        let (mut syncing, mut synced): (Option<Syncing>, u64) = (None, 0);
        let mut incoming = Incoming { source, gathered, is_over: false };
        let mut piece = self.gather(&mut incoming, place, settings).await?;
        while !piece.is_empty() {
            let end = written + piece.len() as u64;
            if end > settings.object_bytes_max {
                let limit = settings.object_bytes_max;
                return Err(StorageError::TooLarge { key: "object_bytes_max", limit });
            }
            self.objects.check_length(end, settings)?;
            self.objects.check_room(piece.len() as u64, settings)?;
            // The next piece gathers while this one is written, and what was written before is synced.
            let write = self.write_piece(&ingest, hashing, written, piece, deadline);
            let mut both = pin!(async { tokio::join!(write, self.gather(&mut incoming, place, settings)) });
            let (hashed, next) = loop {
                tokio::select! {
                    biased;
                    both = &mut both => break both,
                    synced = ended(&mut syncing) => synced?,
                }
            };
            (hashing, piece, written) = (hashed?, next?, end);
            if written - synced >= SYNC_EVERY {
                if let Some(before) = syncing.take() {
                    before.await?;
                }
                synced = written;
                let (pool, ingest) = (self.syncs.clone(), Arc::clone(&ingest));
                syncing =
                    Some(Box::pin(async move { run(&pool, deadline, move || ingest.sync_so_far()).await? }));
            }
        }
        if let Some(last) = syncing.take() {
            last.await?;
        }
        let last = now();
        let finishing = Arc::clone(&ingest);
        let (id, len) = self.step(deadline, move || finishing.finish(hashing)).await?;
        check_name(put, id)?;
        let syncing = Arc::clone(&ingest);
        let sync = async { run(&self.syncs, deadline, move || syncing.sync()).await? };
        let (existed, durability) =
            self.objects.put_large((id, len), ingest, (put, quota), settings, deadline, sync).await?;
        self.counts.commit.observe(now().saturating_duration_since(last).as_secs_f64());
        Ok(Stored { id, len, durability, existed })
    }

    /// Runs a job of a write. It may wait for a worker as long as a stream may stand still; the disk then has
    /// `write_timeout` for it.
    async fn step<T: Send + 'static>(
        &self,
        deadline: Deadline,
        job: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let settings = self.settings.load();
        let turn = deadline.within(settings.idle_timeout.max(settings.write_timeout));
        run_within(&self.puts, turn, (settings.write_timeout, &self.counts.put_late), job).await?
    }

    /// The next piece of a large object; an empty one at its end. A stream holds two at a time.
    async fn gather<S, E>(
        &self,
        incoming: &mut Incoming<'_, S>,
        place: &Place,
        settings: &Settings,
    ) -> Result<Bytes, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let share = place.share(settings.stream_bytes_max, settings.chunk_bytes, 2) as usize;
        let Incoming { source, gathered, is_over } = incoming;
        while !*is_over && gathered.len() < share {
            match self.next(source.as_mut(), place, settings).await? {
                Some(bytes) => gathered.push(bytes),
                None => *is_over = true,
            }
        }
        let mut piece = gathered.take();
        // A caller may bring more at once than a job may take.
        if piece.len() > share {
            gathered.push(piece.split_off(share));
        }
        Ok(piece)
    }

    /// Writes a piece and hashes it, both at once.
    async fn write_piece(
        &self,
        ingest: &Arc<Ingest>,
        mut hashing: Hashing,
        offset: u64,
        piece: Bytes,
        deadline: Deadline,
    ) -> Result<Hashing, StorageError> {
        let (writer, hasher, written) = (Arc::clone(ingest), Arc::clone(ingest), piece.clone());
        if self.put_streams.open() > self.settings.load().put_workers.get() {
            // Other streams keep the workers busy: one job waits for a worker once, and two would wait twice.
            let both = move || {
                writer.write(offset, &written)?;
                hasher.hash(&mut hashing, &piece)?;
                Ok(hashing)
            };
            return self.step(deadline, both).await.map_err(|error| self.objects.counted(error));
        }
        let write = self.step(deadline, move || writer.write(offset, &written));
        let hash = self.step(deadline, move || {
            hasher.hash(&mut hashing, &piece)?;
            Ok(hashing)
        });
        let (written, hashed) = tokio::join!(write, hash);
        written.map_err(|error| self.objects.counted(error))?;
        hashed
    }

    /// The next bytes of a source, if they come in time.
    async fn next<S, E>(
        &self,
        mut source: Pin<&mut S>,
        place: &Place,
        settings: &Settings,
    ) -> Result<Option<Bytes>, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        loop {
            place.moved("put_idle")?;
            let next = poll_fn(|cx| source.as_mut().poll_next(cx));
            let Ok(next) = Deadline::after(settings.idle_timeout).limit("put_idle", next).await else {
                self.counts.put_idle.add(1);
                return Err(StorageError::Timeout { op: "put_idle" });
            };
            return match next {
                Some(Ok(bytes)) if bytes.is_empty() => continue,
                Some(Ok(bytes)) => Ok(Some(bytes)),
                Some(Err(error)) => Err(StorageError::Source { message: error.into().to_string() }),
                None => Ok(None),
            };
        }
    }
}

/// The end of a sync, if one is under way.
async fn ended(syncing: &mut Option<Syncing>) -> Result<(), StorageError> {
    let Some(under_way) = syncing else { return std::future::pending().await };
    let synced = under_way.await;
    *syncing = None;
    synced
}

fn check_name(put: Put, actual: ContentId) -> Result<(), StorageError> {
    match put.expect {
        Some(expected) if expected != actual => Err(StorageError::Mismatch { expected, actual }),
        _ => Ok(()),
    }
}
