//! Fetching objects from several peers at once.
//!
//! A [`Fetcher`] is given an object's name and who may have it, and brings the object into the store, into a file, or as a
//! stream in order. Each peer is asked for parts of it, faster ones for more; every group of 64 KiB is checked as it comes. A
//! peer that sends anything else is dropped at that byte, reported, and not asked again; one that falls silent is not waited
//! for. What has come into the store stays there, checked, when a fetch ends early or the process does, and the next fetch
//! of that object goes on with it.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use ron_core::{Deadline, Supervisor, net::{Endpoint, Identity}};
//! # use ron_storage::{Store, peers::{Links, Rules}};
//! use ron_storage::fetch::Fetcher;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//! # let remote = Store::builder().memory().start(&host).await?;
//! # let id = remote.put_bytes("hello".into(), soon()).await?.id;
//! # let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
//! # let serving = Links::start(&there, &host)?;
//! # serving.serve(&remote, Rules::default());
//! # let providers = [there.contact().into()];
//! # let here = Endpoint::builder(Identity::generate()?).start(&host)?;
//! let store = Store::builder().memory().start(&host).await?;
//! let fetcher = Fetcher::new(Links::start(&here, &host)?, &store);
//! let fetched = fetcher.fetch(id, &providers, soon()).await?;
//! assert_eq!((fetched.stored.len, fetched.received), (5, 5));
//! assert_eq!(store.get_bytes(id, 5, soon()).await?, "hello");
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod engine;
mod into;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, ErrorKind, Feed, Histogram, LaneSpec, NodeId, Subscriber, Tally, disk::File,
    net::BoxFuture, now,
};

pub(crate) use self::{
    engine::{Engine, Source},
    into::into_store,
};
use crate::{
    Put, StorageError, Store, Stored,
    logic::{
        fetch::{Failure, Patience},
        tree::GROUP,
    },
    metrics::{FETCH_DROPPED, FETCH_DUPLICATE_BYTES, FETCH_SECONDS, FETCHED_BYTES, FETCHES},
    peers::{Peer, PeerError, Peers},
};

pub(crate) const FETCH_EVENTS: LaneSpec = LaneSpec::feed("ron-storage", "fetch_events", 1024)
    .flow("fetches → subscribers")
    .why("a subscriber that pauses misses only how far a fetch was, and is told that it did");

/// Providers of one object that are asked. More would not make it faster, and lists come from other nodes.
const PROVIDERS_MAX: usize = 32;

/// The knobs of a fetcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchSettings {
    /// How long a peer may be silent before others are asked for what it owes. Default 250 ms. Raise it where round trips
    /// take longer than that.
    pub hedge_after: Duration,
    /// How long a peer may be silent before it is given up. Default 10 s.
    pub stall_max: Duration,
    /// How often a peer may fail in a row before it is given up. Default 3.
    pub tries_max: u32,
    /// How far a [`Download`] is fetched ahead of its reader: what it holds at most. Default 8 MiB.
    pub ahead_bytes: u64,
}

impl Default for FetchSettings {
    fn default() -> Self {
        FetchSettings {
            hedge_after: Duration::from_millis(250),
            stall_max: Duration::from_secs(10),
            tries_max: 3,
            ahead_bytes: 8 << 20,
        }
    }
}

impl FetchSettings {
    fn patience(&self) -> Patience {
        let FetchSettings { hedge_after, stall_max, tries_max, .. } = *self;
        Patience { hedge_after, stall_max, tries_max: tries_max.max(1) }
    }
}

/// How a fetch went with one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerOutcome {
    /// Who.
    pub peer: NodeId,
    /// Bytes of the object that it sent and that were proven, whether or not others sent them too.
    pub bytes: u64,
    /// What went wrong with it last.
    pub error: Option<PeerError>,
}

/// An object that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fetched {
    /// What the store has.
    pub stored: Stored,
    /// Bytes of it that came now; the others were here.
    pub received: u64,
    /// Who sent what.
    pub peers: Vec<PeerOutcome>,
}

/// How far a fetch is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchEvent {
    /// It is known how long the object is, and how much of it is here from an earlier try.
    Began {
        /// Which object.
        id: ContentId,
        /// Its length.
        len: u64,
        /// Groups of 64 KiB that are here.
        groups: u64,
    },
    /// So much is here now. Told for every mebibyte or so.
    Moved {
        /// Which object.
        id: ContentId,
        /// Groups of 64 KiB that are here.
        groups: u64,
        /// Groups in all.
        of: u64,
    },
    /// A peer is not asked any more.
    Dropped {
        /// Which object.
        id: ContentId,
        /// Who.
        peer: NodeId,
        /// Why; [`PeerError::is_lie`] tells the liars.
        error: PeerError,
    },
    /// It is over, also if it was called off.
    Ended {
        /// Which object.
        id: ContentId,
        /// Whether all of it is here.
        is_complete: bool,
    },
}

/// Why an object was not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Something here was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The limit.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed. What came is kept, and the next fetch goes on with it.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The store is stopping.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Nobody was named who may have it. Look for providers.
    #[error("nobody is known who has it")]
    NoProviders,
    /// Of those who were named, none is left to ask. What came is kept: look for others and fetch again.
    #[error("none of {} peers could send all of it", peers.len())]
    AllFailed {
        /// How it went with each.
        peers: Vec<PeerOutcome>,
    },
    /// The store did not take it.
    #[error("the store did not take it")]
    Store(#[source] StorageError),
}

ron_core::refusals!(FetchError {
    FetchError::NoProviders => ErrorKind::Caller,
    FetchError::AllFailed { .. } => ErrorKind::Peer,
    FetchError::Store(error) => error.kind(),
});

impl From<StorageError> for FetchError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Busy { what, retry_after } => FetchError::Busy { what, retry_after },
            StorageError::Timeout { op } => FetchError::Timeout { op },
            StorageError::Canceled => FetchError::Canceled,
            StorageError::Panicked { op } => FetchError::Panicked { op },
            error => FetchError::Store(error),
        }
    }
}

/// Finds who may have an object: a DHT, an index, a list.
pub trait Finder: Send + Sync + 'static {
    /// Providers that were found by the deadline; none if looking for them failed.
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>>;

    /// Makes an object of which nobody has a copy out of something else, such as shards, and puts it into the store. `None` if
    /// that is not possible.
    ///
    /// # Errors
    /// What the store met.
    fn make(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Result<Option<Stored>, StorageError>> {
        let _ = (id, deadline);
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// Fetches objects. Cloning shares it.
#[derive(Clone)]
pub struct Fetcher {
    peers: Arc<dyn Peers>,
    store: Store,
    settings: FetchSettings,
    telling: Arc<Telling>,
}

/// Who is told what, and what is counted.
pub(crate) struct Telling {
    pub(crate) events: Feed<FetchEvent>,
    done: Tally,
    existed: Tally,
    failed: Tally,
    bytes: Tally,
    twice: Tally,
    dropped: [Tally; 4],
    seconds: Histogram,
}

impl Telling {
    pub(crate) fn new(store: &Store) -> Self {
        let metrics = store.metrics();
        let dropped = ["lied", "refused", "away", "stalled"].map(|why| metrics.tally(FETCH_DROPPED, why));
        Telling {
            events: Feed::open(FETCH_EVENTS, metrics),
            done: metrics.tally(FETCHES, "done"),
            existed: metrics.tally(FETCHES, "existed"),
            failed: metrics.tally(FETCHES, "failed"),
            bytes: metrics.tally(FETCHED_BYTES, ""),
            twice: metrics.tally(FETCH_DUPLICATE_BYTES, ""),
            dropped,
            seconds: metrics.histogram(FETCH_SECONDS),
        }
    }

    fn on_dropped(&self, id: ContentId, peer: NodeId, failure: Failure, error: PeerError) {
        let why = match failure {
            Failure::Lied => 0,
            Failure::Refused => 1,
            Failure::Away | Failure::Busy(_) => 2,
            Failure::Stalled => 3,
        };
        self.dropped[why].add(1);
        if failure == Failure::Lied {
            tracing::warn!(%id, %peer, %error, "a peer sent what is not the object and is not asked again");
        }
        self.events.publish(FetchEvent::Dropped { id, peer, error });
    }
}

/// Tells the end of a fetch, however that comes.
struct Ending {
    telling: Arc<Telling>,
    id: ContentId,
    is_complete: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Ending { id, is_complete, .. } = *self;
        self.telling.events.publish(FetchEvent::Ended { id, is_complete });
    }
}

/// What is asked of peers that are known by their names.
struct Providers {
    peers: Arc<dyn Peers>,
    list: Vec<Peer>,
}

impl Source for Providers {
    fn get(&self, peer: usize, want: crate::peers::Want, deadline: Deadline) -> engine::Asking {
        let (peers, peer) = (Arc::clone(&self.peers), self.list[peer].clone());
        Box::pin(async move { peers.get(&peer, &want, deadline).await })
    }

    fn ids(&self) -> Vec<NodeId> {
        self.list.iter().map(|peer| peer.contact.id).collect()
    }
}

impl Fetcher {
    /// Fetches over `peers`, for `store`.
    #[must_use]
    pub fn new(peers: impl Peers, store: &Store) -> Self {
        Fetcher::over(Arc::new(peers), store)
    }

    pub(crate) fn over(peers: Arc<dyn Peers>, store: &Store) -> Self {
        Fetcher {
            peers,
            store: store.clone(),
            settings: FetchSettings::default(),
            telling: Arc::new(Telling::new(store)),
        }
    }

    /// With other knobs than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: FetchSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The store that it fetches into.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What happens to fetches from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<FetchEvent> {
        self.telling.events.subscribe()
    }

    fn engine(&self, id: ContentId, providers: &[Peer], deadline: Deadline) -> Result<Engine, FetchError> {
        let mut list: Vec<Peer> = Vec::new();
        for peer in providers {
            if list.len() < PROVIDERS_MAX && list.iter().all(|known| known.contact.id != peer.contact.id) {
                list.push(peer.clone());
            }
        }
        if list.is_empty() {
            return Err(FetchError::NoProviders);
        }
        let source = Providers { peers: Arc::clone(&self.peers), list };
        let (patience, len_max) = (self.settings.patience(), self.store.settings().object_bytes_max);
        Ok(Engine::new(id, Box::new(source), patience, len_max, &self.telling, deadline))
    }

    /// Brings an object into the store, durably, from whichever of the first 32 `providers` have it. If it is here, no peer is
    /// asked; if another fetch of it is under way, this one waits for that. Dropping the future ends the fetch; what came is
    /// kept for the next.
    ///
    /// # Errors
    /// [`FetchError::NoProviders`], [`FetchError::AllFailed`] with the outcome of each, [`FetchError::Timeout`],
    /// [`FetchError::Store`] if there is no room, [`FetchError::Busy`]. If it is longer than the store takes, each peer that
    /// says so is out with [`PeerError::TooLarge`].
    pub async fn fetch(
        &self,
        id: ContentId,
        providers: &[Peer],
        deadline: Deadline,
    ) -> Result<Fetched, FetchError> {
        self.fetch_with(id, providers, Put::default(), deadline).await
    }

    /// [`fetch`](Self::fetch) with choices: whether the object is pinned, and how durable it has to be. `expect` and `len` of
    /// `put` are ignored.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_with(
        &self,
        id: ContentId,
        providers: &[Peer],
        put: Put,
        deadline: Deadline,
    ) -> Result<Fetched, FetchError> {
        let (began, mut ending) = (now(), self.ending(id));
        let fetched = match self.engine(id, providers, deadline) {
            Ok(engine) => {
                let into = into_store(&self.store, engine, put, deadline);
                deadline.limit("fetch", into).await.unwrap_or_else(|late| Err(late.into()))
            }
            // It may be here all the same.
            Err(error) => match self.store.put_known(id, put, deadline).await {
                Ok(Some(stored)) => Ok(Fetched { stored, received: 0, peers: Vec::new() }),
                Ok(None) => Err(error),
                Err(error) => Err(error.into()),
            },
        };
        match &fetched {
            Ok(fetched) if fetched.stored.existed => self.telling.existed.add(1),
            Ok(_) => {
                self.telling.done.add(1);
                self.telling.seconds.observe(now().saturating_duration_since(began).as_secs_f64());
            }
            Err(_) => self.telling.failed.add(1),
        }
        ending.is_complete = fetched.is_ok();
        fetched
    }

    /// Writes an object into `file`, each part where it belongs as it comes, and syncs the file. The store keeps nothing of
    /// it. Returns its length. Dropping the future leaves a part of the object in the file.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch); [`FetchError::Store`] if the file cannot be written.
    pub async fn fetch_into(
        &self,
        id: ContentId,
        providers: &[Peer],
        file: Arc<File>,
        deadline: Deadline,
    ) -> Result<u64, FetchError> {
        let engine = self.engine(id, providers, deadline)?;
        let mut ending = self.ending(id);
        let written = into::into_file(&self.store, engine, file, deadline);
        let written = deadline.limit("fetch", written).await.unwrap_or_else(|late| Err(late.into()));
        ending.is_complete = written.is_ok();
        written
    }

    /// The bytes of an object in order, as soon as they are here and proven. The store keeps nothing of it.
    ///
    /// # Errors
    /// [`FetchError::NoProviders`].
    pub fn download(
        &self,
        id: ContentId,
        providers: &[Peer],
        deadline: Deadline,
    ) -> Result<Download, FetchError> {
        let ahead = (self.settings.ahead_bytes / GROUP).max(1);
        let engine = self.engine(id, providers, deadline)?.limited(ahead);
        let ending = self.ending(id);
        Ok(Download { engine, ahead, next: 0, waiting: BTreeMap::new(), deadline, ending })
    }

    fn ending(&self, id: ContentId) -> Ending {
        Ending { telling: Arc::clone(&self.telling), id, is_complete: false }
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// An object on its way, in order. Dropping it ends the fetch.
pub struct Download {
    engine: Engine,
    ahead: u64,
    next: u64,
    waiting: BTreeMap<u64, Bytes>,
    deadline: Deadline,
    ending: Ending,
}

impl Download {
    /// The length of the object, once it is proven.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        self.engine.shape().map(|shape| shape.size())
    }

    /// Whether it is known to have no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The next 64 KiB; `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`FetchError::AllFailed`], [`FetchError::Timeout`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            if let Some(bytes) = self.waiting.remove(&self.next) {
                self.next += 1;
                self.engine.set_limit(self.next + self.ahead);
                if bytes.is_empty() {
                    continue;
                }
                return Ok(Some(bytes));
            }
            if self.engine.shape().is_some_and(|shape| self.next >= shape.groups()) {
                self.ending.is_complete = true;
                return Ok(None);
            }
            match self.deadline.limit("fetch", self.engine.next()).await?? {
                Some(got) => {
                    self.waiting.insert(got.group, got.bytes);
                }
                None => return Ok(None),
            }
        }
    }

    /// How it goes with each peer.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerOutcome> {
        self.engine.outcomes()
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download").field("next", &self.next).finish_non_exhaustive()
    }
}
