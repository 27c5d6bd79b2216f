//! What a host holds: a store.

use std::{
    error::Error,
    fmt, io,
    ops::{Range, RangeBounds},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{
    ClientKey, ContentId, Counter, Deadline, Feed, Gate, Histogram, Lane, LaneSpec, Metrics, Pacer, Pass,
    ReadyGate, ReadyStatus, Reply, Snapshot, Stopped, Subscriber, Supervisor, Tally,
};

#[cfg(feature = "net")]
use crate::logic::inventory::{Names, Prefix, Sum};
use crate::{
    Builder, Proof, Put, Reader, Settings, StorageError, Stored,
    actor::{Errand, GetPool, PutPool, pace},
    logic::{proof::GroupSet, tree::Shape},
    metrics::{COMMIT_SECONDS, DELETES, GETS, PUTS, READ_BYTES, WRITTEN_BYTES},
    objects::Objects,
    opening::Opened,
    reading::resolve,
    streams::{Place, Streams},
};

pub(crate) const EVENTS: LaneSpec = LaneSpec::feed("ron-storage", "storage_events", 1024)
    .flow("store → subscribers")
    .why("a subscriber that pauses for a second of puts misses nothing");

/// Most objects in one page of a list.
const PAGE_MAX: usize = 1000;

/// Something that happened in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An object that was not here before was stored.
    Stored {
        /// Its name.
        id: ContentId,
        /// Its length.
        len: u64,
    },
    /// An object was deleted, on demand or as garbage.
    Deleted {
        /// Its name.
        id: ContentId,
    },
    /// An object is not what was stored. It is not served any more; putting it again mends it.
    Quarantined {
        /// Its name.
        id: ContentId,
    },
    /// The journal was compacted.
    Compacted {
        /// Bytes that this gave back.
        bytes: u64,
    },
    /// Everything was read.
    Scrubbed {
        /// Objects that were read.
        objects: u64,
        /// Those of them that are damaged or cannot be read, up to a thousand of each.
        damaged: usize,
    },
}

/// An object that is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Its name.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// Whether it is pinned.
    pub is_pinned: bool,
    /// Whether it was found damaged and is not served.
    pub is_quarantined: bool,
}

/// Where the next page of a list begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(pub(crate) ContentId);

impl Cursor {
    /// The page that begins behind this name, whether or not there is such an object.
    #[must_use]
    pub fn after(id: ContentId) -> Self {
        Cursor(id)
    }

    /// The name that the page begins behind.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.0
    }
}

/// A page of a list, in the order of names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The objects.
    pub objects: Vec<Stat>,
    /// Where to go on, if there is more.
    pub next: Option<Cursor>,
}

/// Says whether an object is still wanted.
type Keep = Arc<dyn Fn(&ContentId) -> bool + Send + Sync>;

/// What a garbage collection keeps, besides what is pinned, claimed or young.
#[derive(Clone, Default)]
pub struct Gc {
    keep: Option<Keep>,
    dry_run: bool,
}

impl Gc {
    /// A collection that keeps only what is pinned, claimed or young.
    #[must_use]
    pub fn new() -> Self {
        Gc::default()
    }

    /// Also keeps the objects for which `keep` returns `true`. It is asked about each object, on a task of the store, so it
    /// must be quick.
    #[must_use]
    pub fn keep(mut self, keep: impl Fn(&ContentId) -> bool + Send + Sync + 'static) -> Self {
        self.keep = Some(Arc::new(keep));
        self
    }

    /// Only says what would be collected.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    pub(crate) fn keeps(&self, id: &ContentId) -> bool {
        self.keep.as_ref().is_some_and(|keep| keep(id))
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }
}

impl fmt::Debug for Gc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gc").field("dry_run", &self.dry_run).finish_non_exhaustive()
    }
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Collected {
    /// Objects that went.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that stayed.
    pub kept: u64,
}

/// What a scrub found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scrubbed {
    /// Objects that were read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that are not what was stored, the first thousand of them.
    pub damaged: Vec<ContentId>,
    /// Objects that the disk could not read in two attempts, the first thousand of them. They are not quarantined: the next
    /// read may succeed, and putting one again writes it anew.
    pub unreadable: Vec<ContentId>,
    /// Stretches of the journal that cannot be read. What they said about objects, such as pins, is written again.
    pub journal_damage: u64,
}

/// How much is kept, and what that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Objects.
    pub objects: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// Objects that are pinned.
    pub pinned: u64,
    /// Objects that are damaged and not served.
    pub quarantined: u64,
    /// About how many bytes the journal and the files of large objects take. Not counted: the index, claims, and objects that are
    /// only partly fetched.
    pub disk_bytes: u64,
    /// Bytes of those that compaction would give back.
    pub garbage_bytes: u64,
    /// Bytes that are free on the disk; nothing for a store in memory.
    pub free_bytes: Option<u64>,
}

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) objects: Arc<Objects>,
    pub(crate) gets: GetPool,
    pub(crate) puts: PutPool,
    pub(crate) syncs: PutPool,
    pub(crate) upkeep: Lane<Errand>,
    pub(crate) scrubs: Lane<Reply<Result<Scrubbed, StorageError>>>,
    pub(crate) pacer: Arc<Pacer>,
    pub(crate) events: Feed<Event>,
    pub(crate) gate: Gate,
    pub(crate) get_streams: Arc<Streams>,
    pub(crate) put_streams: Arc<Streams>,
    pub(crate) counts: Counts,
    pub(crate) settings: Snapshot<Settings>,
    pub(crate) opened: Opened,
    pub(crate) _gates: Vec<ReadyGate>,
}

/// The counters of the hot paths, resolved once.
pub(crate) struct Counts {
    pub(crate) put_new: Tally,
    pub(crate) put_existed: Tally,
    pub(crate) gets: Tally,
    pub(crate) deletes: Tally,
    pub(crate) read_bytes: Tally,
    pub(crate) written_bytes: Tally,
    pub(crate) commit: Histogram,
    pub(crate) put_idle: Tally,
    pub(crate) put_late: Tally,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Counts {
            put_new: metrics.tally(PUTS, "new"),
            put_existed: metrics.tally(PUTS, "existed"),
            gets: metrics.tally(GETS, ""),
            deletes: metrics.tally(DELETES, ""),
            read_bytes: metrics.tally(READ_BYTES, ""),
            written_bytes: metrics.tally(WRITTEN_BYTES, ""),
            commit: metrics.histogram(COMMIT_SECONDS),
            put_idle: metrics.tally(Counter::IoTimeouts, "put_idle"),
            put_late: metrics.tally(Counter::IoTimeouts, "put"),
        }
    }
}

/// A store. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    group: Supervisor,
    client: Option<ClientKey>,
}

impl Store {
    pub(crate) fn new(inner: Inner, group: Supervisor) -> Self {
        Store { inner: Arc::new(inner), group, client: None }
    }

    /// Begins a store with the default settings; in memory only, until it is given a place for its data.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A handle for one client: what is asked through it counts against [`client_limits`](Settings::client_limits), so that
    /// no client takes all places. Handles without a client are the host's own, and bounded only by the store.
    #[must_use]
    pub fn for_client(&self, client: ClientKey) -> Store {
        Store { client: Some(client), ..self.clone() }
    }

    /// Stores the bytes that `source` yields, durably, and returns their name. Dropping the future stores nothing, unless the
    /// object is being committed already.
    ///
    /// # Errors
    /// [`StorageError::Busy`] before anything is read, [`StorageError::Timeout`] at the deadline or when the source stands
    /// still, [`StorageError::Source`] with the error of the source, [`StorageError::Full`], [`StorageError::Quota`],
    /// [`StorageError::TooLarge`], [`StorageError::Disk`]. Nothing is kept then.
    pub async fn put<S, E>(&self, source: S, deadline: Deadline) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.put_with(source, Put::default(), deadline).await
    }

    /// Stores what `source` yields if its name is `id`. If that object is here already, nothing is read.
    ///
    /// # Errors
    /// [`StorageError::Mismatch`] if it has another name, and those of [`put`](Self::put).
    pub async fn put_expect<S, E>(
        &self,
        id: ContentId,
        source: S,
        deadline: Deadline,
    ) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.put_with(source, Put { expect: Some(id), ..Put::default() }, deadline).await
    }

    /// Stores bytes that are in memory already.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_bytes(&self, content: Bytes, deadline: Deadline) -> Result<Stored, StorageError> {
        self.put(Once(Some(content)), deadline).await
    }

    /// [`put`](Self::put) with choices.
    ///
    /// # Errors
    /// As [`put_expect`](Self::put_expect).
    pub async fn put_with<S, E>(
        &self,
        source: S,
        put: Put,
        deadline: Deadline,
    ) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let place = self.admit(&self.inner.put_streams, put.len.unwrap_or(0))?;
        let stored = deadline.limit("put", self.inner.write(&place, source, put, deadline)).await??;
        self.note_stored(&stored);
        Ok(stored)
    }

    /// Counts what was stored, and publishes the event.
    pub(crate) fn note_stored(&self, stored: &Stored) {
        let counts = &self.inner.counts;
        if stored.existed {
            counts.put_existed.add(1);
        } else {
            counts.put_new.add(1);
            counts.written_bytes.add(stored.len);
            self.inner.events.publish(Event::Stored { id: stored.id, len: stored.len });
        }
    }

    /// Does what a put of the object would do, if the object is here.
    #[cfg(feature = "net")]
    pub(crate) async fn put_known(
        &self,
        id: ContentId,
        put: Put,
        deadline: Deadline,
    ) -> Result<Option<Stored>, StorageError> {
        let settings = self.settings();
        let known = self.inner.objects.put_known(id, put, &settings, deadline).await?;
        Ok(known.map(|(len, durability)| {
            let stored = Stored { id, len, durability, existed: true };
            self.note_stored(&stored);
            stored
        }))
    }

    /// Whether an object of `len` bytes would fit now. For one of which a part is here, room is reserved already.
    #[cfg(feature = "net")]
    pub(crate) fn check_fits(&self, id: &ContentId, len: u64) -> Result<(), StorageError> {
        if self.inner.objects.partials.len_of(id).is_some() {
            return Ok(());
        }
        let settings = self.settings();
        drop(self.inner.objects.reserve(Some(id), len, &settings)?);
        self.inner.objects.check_space(len, &settings)
    }

    #[cfg(feature = "net")]
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// A place for an object that is fetched.
    #[cfg(feature = "net")]
    pub(crate) fn admit_put(&self) -> Result<Place, StorageError> {
        self.admit(&self.inner.put_streams, 0)
    }

    /// Begins to read an object, or the part of it in `range`, which may end behind the object's end. The deadline is for
    /// beginning; from then on each piece has [`read_timeout`](Settings::read_timeout).
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Corrupt`] if it is quarantined, [`StorageError::Range`],
    /// [`StorageError::Busy`].
    #[allow(clippy::unused_async, reason = "an index on disk may have to be asked")]
    pub async fn get(
        &self,
        id: ContentId,
        range: impl RangeBounds<u64>,
        deadline: Deadline,
    ) -> Result<Reader, StorageError> {
        let stat = self.readable(id, deadline)?;
        let range = resolve(&range, stat.len)?;
        let place = self.admit(&self.inner.get_streams, range.end - range.start)?;
        self.inner.counts.gets.add(1);
        Ok(Reader::new(Arc::clone(&self.inner), place, id, stat.len, range))
    }

    /// Begins to read the groups of 64 KiB that hold `ranges`, with the proof that they belong to the object's name. A range
    /// may end behind the object's end. The deadline is for beginning, as in [`get`](Self::get).
    ///
    /// # Errors
    /// [`StorageError::Range`] if none of the ranges is inside the object, and those of [`get`](Self::get).
    #[allow(clippy::unused_async, reason = "an index on disk may have to be asked")]
    pub async fn get_proof(
        &self,
        id: ContentId,
        ranges: &[Range<u64>],
        deadline: Deadline,
    ) -> Result<Proof, StorageError> {
        let stat = self.readable(id, deadline)?;
        let shape = Shape::of(stat.len);
        let wanted = GroupSet::covering(shape, ranges.iter().cloned());
        if wanted.is_empty() {
            return Err(StorageError::Range { len: stat.len });
        }
        let place = self.admit(&self.inner.get_streams, wanted.proof_len(shape))?;
        self.inner.counts.gets.add(1);
        Ok(Proof::new(Arc::clone(&self.inner), place, id, shape, wanted))
    }

    /// The whole of an object of at most `limit` bytes.
    ///
    /// # Errors
    /// [`StorageError::TooLarge`] if it is longer, and those of [`get`](Self::get).
    pub async fn get_bytes(
        &self,
        id: ContentId,
        limit: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StorageError> {
        let mut reader = self.get(id, .., deadline).await?;
        if reader.len() > limit {
            return Err(StorageError::TooLarge { key: "limit", limit });
        }
        let first = deadline.limit("get", reader.next()).await??.unwrap_or_default();
        if first.len() as u64 == reader.len() {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        while let Some(bytes) = deadline.limit("get", reader.next()).await?? {
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Whether an object is here and can be read.
    ///
    /// # Errors
    /// [`StorageError::Busy`], [`StorageError::Canceled`].
    pub async fn has(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        match self.stat(id, deadline).await {
            Ok(stat) => Ok(!stat.is_quarantined),
            Err(StorageError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Busy`], [`StorageError::Canceled`].
    #[allow(clippy::unused_async, reason = "an index on disk may have to be asked")]
    pub async fn stat(&self, id: ContentId, deadline: Deadline) -> Result<Stat, StorageError> {
        let _pass = self.begin("stat", deadline)?;
        self.inner.objects.stat(&id).ok_or(StorageError::NotFound { id })
    }

    /// A page of up to `limit` objects (1000 at most) in the order of their names: those behind `after`, or the first.
    ///
    /// # Errors
    /// [`StorageError::Busy`], [`StorageError::Canceled`].
    #[allow(clippy::unused_async, reason = "an index on disk may have to be asked")]
    pub async fn list(
        &self,
        after: Option<Cursor>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StorageError> {
        let _pass = self.begin("list", deadline)?;
        Ok(self.inner.objects.list(after.as_ref(), limit.clamp(1, PAGE_MAX)))
    }

    /// Deletes an object durably, and says whether it was here. Dropping the future may or may not delete it.
    ///
    /// # Errors
    /// [`StorageError::Pinned`], [`StorageError::Claimed`], [`StorageError::Busy`], [`StorageError::Timeout`],
    /// [`StorageError::Disk`].
    pub async fn delete(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        let _pass = self.begin("delete", deadline)?;
        #[cfg(feature = "net")]
        if self.inner.objects.book.wants(&id) {
            return Err(StorageError::Claimed { id });
        }
        self.remove(id, deadline).await
    }

    /// Deletes an object, whoever claims it.
    pub(crate) async fn remove(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        let existed = self.inner.objects.delete(id, deadline).await?;
        if existed {
            self.inner.counts.deletes.add(1);
            self.inner.events.publish(Event::Deleted { id });
        }
        Ok(existed)
    }

    /// Pins an object durably: neither a collection nor [`delete`](Self::delete) removes it. Says whether that is new.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], and those of [`delete`](Self::delete).
    pub async fn pin(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        let _pass = self.begin("pin", deadline)?;
        self.inner.objects.set_pinned(id, true, deadline).await
    }

    /// Takes a pin back. Says whether there was one.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub async fn unpin(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        let _pass = self.begin("unpin", deadline)?;
        self.inner.objects.set_pinned(id, false, deadline).await
    }

    /// Deletes what is neither pinned nor claimed nor young nor kept by `gc`. The store serves others meanwhile. Dropping the
    /// future does not end the collection.
    ///
    /// # Errors
    /// [`StorageError::Busy`] when too many such calls wait, [`StorageError::Timeout`], [`StorageError::Disk`].
    pub async fn gc(&self, gc: Gc, deadline: Deadline) -> Result<Collected, StorageError> {
        self.inner.upkeep.call("gc", deadline, |reply| Errand::Collect(gc, reply)).await?
    }

    /// Compacts the journal now if enough of it is garbage, and returns how many bytes that freed. The store also does this
    /// by itself.
    ///
    /// # Errors
    /// As [`gc`](Self::gc).
    pub async fn compact(&self, deadline: Deadline) -> Result<u64, StorageError> {
        self.inner.upkeep.call("compact", deadline, Errand::Compact).await?
    }

    /// Reads everything, within [`upkeep_bytes_per_second`](Settings::upkeep_bytes_per_second), and quarantines every object
    /// that is not what was stored. Dropping the future does not end the scrub.
    ///
    /// # Errors
    /// As [`gc`](Self::gc).
    pub async fn scrub(&self, deadline: Deadline) -> Result<Scrubbed, StorageError> {
        self.inner.scrubs.call("scrub", deadline, |reply| reply).await?
    }

    /// What opening the store found and did.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// How much is kept, and what that takes.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.objects.usage()
    }

    /// Subscribes to what happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<Event> {
        self.inner.events.subscribe()
    }

    /// Whether it can serve reads and writes, and if not, why.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.group.ready().status()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.inner.settings.load()
    }

    /// Applies other settings from now on.
    ///
    /// # Errors
    /// [`StorageError::Config`] naming the first setting that makes no sense or cannot change while running; then
    /// everything stays as it was.
    pub fn reload(&self, settings: Settings) -> Result<(), StorageError> {
        let inner = &self.inner;
        let mut applied = Ok(());
        // One reload at a time, or the limits of one might stay with the rest of another.
        inner.settings.update(|current| {
            applied = current.check_change(&settings).and_then(|()| inner.gate.reload(settings.gate()));
            if applied.is_err() {
                return current.clone();
            }
            let (rate, burst) = pace(&settings);
            inner.pacer.set_rate(rate, burst);
            settings
        });
        Ok(applied?)
    }

    /// Takes no more work, finishes what has begun within [`drain`](Settings::drain), and reports how that went. Safe to call
    /// twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }

    /// Takes in what an owner says about an object, durably: a policy, a pin or a tombstone. What is claimed is neither deleted
    /// nor collected. A claim that wants shards comes with its manifest, unless that is known already. If the future is
    /// dropped, the claim may or may not have been taken in; taking it in again is harmless.
    ///
    /// # Errors
    /// [`StorageError::Claim`] if it cannot be kept, [`StorageError::Busy`], [`StorageError::Timeout`],
    /// [`StorageError::Disk`].
    #[cfg(feature = "net")]
    pub async fn claim(
        &self,
        claim: crate::claims::Verified,
        manifest: Option<crate::claims::Manifest>,
        deadline: Deadline,
    ) -> Result<crate::claims::Merged, StorageError> {
        let _pass = self.begin("claim", deadline)?;
        let book = &self.inner.objects.book;
        book.merge(claim, manifest, book.unix_now(), deadline).await
    }

    /// What all claims on an object come to.
    #[cfg(feature = "net")]
    #[must_use]
    pub fn standing(&self, id: &ContentId) -> crate::claims::Standing {
        self.inner.objects.book.standing(id)
    }

    /// The last claim of each owner on an object.
    #[cfg(feature = "net")]
    #[must_use]
    pub fn claims(&self, id: &ContentId) -> Vec<crate::claims::Claim> {
        self.inner.objects.book.about(id).into_iter().map(|(claim, _)| claim).collect()
    }

    /// How many reads wait, and how many workers serve them.
    #[cfg(feature = "net")]
    pub(crate) fn readers(&self) -> (usize, usize) {
        (self.inner.gets.depth(), self.inner.settings.load().get_workers.get())
    }

    #[cfg(feature = "net")]
    pub(crate) fn book(&self) -> &Arc<crate::claims::Book> {
        &self.inner.objects.book
    }

    /// Whether what is acknowledged survives a crash.
    #[cfg(feature = "net")]
    pub(crate) fn is_durable(&self) -> bool {
        self.inner.objects.is_durable
    }

    /// Which of these objects are here.
    #[cfg(feature = "net")]
    pub(crate) fn held(
        &self,
        ids: &[ContentId],
        deadline: Deadline,
    ) -> Result<Vec<crate::peers::Held>, StorageError> {
        use crate::peers::Held;
        let _pass = self.begin("have", deadline)?;
        let held = |id: &ContentId| match self.inner.objects.stat(id) {
            Some(stat) if !stat.is_quarantined => Held::Complete(stat.len),
            _ => self.inner.objects.partials.len_of(id).map_or(Held::Absent, Held::Partial),
        };
        Ok(ids.iter().map(held).collect())
    }

    #[cfg(any(feature = "http", feature = "net"))]
    pub(crate) fn metrics(&self) -> &Metrics {
        self.group.metrics()
    }

    /// What is known of an object, if it can be read. It does not count against the client: the caller is admitted next, and
    /// a read is one request and not two.
    pub(crate) fn readable(&self, id: ContentId, deadline: Deadline) -> Result<Stat, StorageError> {
        if self.group.stop().is_requested() {
            return Err(StorageError::Canceled);
        }
        if deadline.has_passed() {
            return Err(StorageError::Timeout { op: "get" });
        }
        let stat = self.inner.objects.stat(&id).ok_or(StorageError::NotFound { id })?;
        if stat.is_quarantined { Err(StorageError::Corrupt { id, at: 0 }) } else { Ok(stat) }
    }

    /// A place for a stream of `bytes`, as far as its length is known. They count against the client at once, and a client
    /// that has spent more than its rate allows waits before its next stream.
    fn admit(&self, streams: &Arc<Streams>, bytes: u64) -> Result<Place, StorageError> {
        if self.group.stop().is_requested() {
            return Err(StorageError::Canceled);
        }
        let pass = self.client.map(|client| self.inner.gate.enter(client, bytes)).transpose()?;
        let place = streams.admit(self.client, pass, self.settings().idle_timeout)?;
        // The stop waits for open streams, and may have looked just before this one was.
        if self.group.stop().is_requested() { Err(StorageError::Canceled) } else { Ok(place) }
    }

    fn begin(&self, op: &'static str, deadline: Deadline) -> Result<Option<Pass>, StorageError> {
        if self.group.stop().is_requested() {
            return Err(StorageError::Canceled);
        }
        if deadline.has_passed() {
            return Err(StorageError::Timeout { op });
        }
        Ok(self.client.map(|client| self.inner.gate.enter(client, 0)).transpose()?)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// What can be read, to be compared with what others have.
#[cfg(feature = "net")]
impl Names for Store {
    fn sum(&self, prefix: &Prefix) -> Sum {
        self.inner.objects.table.lock().sum(prefix)
    }

    fn list(&self, prefix: &Prefix, max: usize) -> Vec<ContentId> {
        self.inner.objects.table.lock().list(prefix, max)
    }
}

/// A stream of one piece.
struct Once(Option<Bytes>);

impl Stream for Once {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}
