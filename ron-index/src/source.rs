//! What the index asks of the world: what a name stands for, what content is made of, and who has it.
//!
//! One small trait each, and adapters by feature: `registry` and `dht` for names, `storage` for manifests, `dht`, `storage`
//! and `keeping` for providers, and a fixed list. A source verifies what it answers: whatever it hands over is cached and served
//! as it is. An answer that does not hold is [`SourceError::Invalid`], never an answer.

#[cfg(feature = "dht")]
mod dht;
mod fixed;
#[cfg(feature = "keeping")]
mod keeping;
#[cfg(feature = "registry")]
mod registry;
#[cfg(feature = "storage")]
mod storage;

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ron_core::{ContentId, Deadline, Lock, LockSpec, Metrics, NodeId};

#[cfg(feature = "dht")]
pub use self::dht::{DhtNames, DhtProviders};
pub use self::fixed::FixedProviders;
#[cfg(feature = "keeping")]
pub use self::keeping::KeepingProviders;
#[cfg(feature = "registry")]
pub use self::registry::RegistryNames;
#[cfg(feature = "storage")]
pub use self::storage::{StoreManifests, StoreProviders};
pub use crate::logic::key::{Key, Name};

/// The future of a source's answer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Addresses kept of one provider; more cost memory and are never tried.
pub const ADDRS_MAX: usize = 8;

/// Providers of one question that wait to be looked at. An answer has far fewer; what a source tells beyond that before it next
/// waits for something is let go, so that no source can fill the memory.
const FOUND_MAX: usize = 8 * crate::PROVIDERS_LIMIT;

/// How a name begins that its owner signs: this, the owner's public key in hex, a slash, and the rest.
#[cfg(any(feature = "dht", feature = "registry"))]
const OWNED_PREFIX: &str = "key:";

/// What a source is asked for to see whether it works.
const PROBED: &[u8] = b"ron-index: is anybody there?";

pub(crate) const FOUND: LockSpec = LockSpec::new("ron-index", "found", 540)
    .guards("providers that one question has brought and that were not looked at yet; held for a push or while they are taken");

/// Why a source did not answer. Whether it is worth asking again is [`is_transient`](Self::is_transient).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Something that passes: the source is busy, restarting, or lost a message.
    #[error("{0}")]
    Transient(String),
    /// Nobody there to ask, for now.
    #[error("nobody to ask")]
    NoRoute,
    /// It cannot know yet: a log that has not begun, a node that knows no other. It is not asked again for the same lookup, and
    /// not left alone for it, because it has not failed.
    #[error("not ready: {gate}")]
    NotReady {
        /// What it waits for.
        gate: &'static str,
    },
    /// It took longer than it had.
    #[error("it took too long")]
    Timeout,
    /// It answered, and what it said does not hold. It is counted, and nothing of it is kept.
    #[error("its answer does not hold: {0}")]
    Invalid(String),
    /// It failed in a way that asking again does not mend.
    #[error("{0}")]
    Failed(String),
    /// It panicked.
    #[error("it panicked")]
    Panicked,
}

impl SourceError {
    /// Whether the same question may be answered a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, SourceError::Transient(_) | SourceError::NoRoute)
    }
}

/// Somebody who has something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Who.
    pub id: NodeId,
    /// Its public key, whose hash the id is; nothing if nobody who was asked knows it. Clients of IPFS know nodes by it.
    pub public_key: Option<[u8; 32]>,
    /// Where it can be reached; nothing if that is not known. The first eight are kept.
    pub addrs: Vec<SocketAddr>,
    /// When it said so, in seconds since 1970; nothing if nobody knows.
    pub issued: Option<u64>,
    /// Where it is, as its operator calls that.
    pub region: Option<Arc<str>>,
    /// How it hands content out, such as `ron-blob-1`; nothing if that is not known.
    pub protocols: Vec<Arc<str>>,
}

impl Provider {
    /// A provider of which nothing else is known.
    #[must_use]
    pub fn new(id: NodeId, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        let addrs = addrs.into_iter().take(ADDRS_MAX).collect();
        Provider { id, public_key: None, addrs, issued: None, region: None, protocols: Vec::new() }
    }

    /// The same with its key. A key whose hash the id is not says nothing about this provider, and is let go.
    #[must_use]
    pub fn with_public_key(mut self, key: [u8; 32]) -> Self {
        self.public_key = (NodeId::of_public_key(&key) == self.id).then_some(key);
        self
    }

    /// Bytes that it takes beside the struct itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let texts = self.protocols.iter().map(|protocol| protocol.len() + 32).sum::<usize>();
        self.addrs.len() * size_of::<SocketAddr>()
            + texts
            + self.region.as_ref().map_or(0, |region| region.len())
    }
}

/// What a name stands for, as its source has verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// The content.
    pub content: ContentId,
    /// Of two answers the one with the higher number is newer.
    pub version: u64,
    /// What holds it: `registry` for a proof against a signed checkpoint, `signature` for its owner's word.
    pub proven_by: &'static str,
    /// How long it may be believed, if the source knows.
    pub ttl: Option<Duration>,
}

/// What content is made of: its length and the size of the groups that its hash tree proves one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// The content.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// Bytes of a group: the least that can be fetched and verified.
    pub group_bytes: u64,
}

/// Says what names stand for.
pub trait Names: Send + Sync + 'static {
    /// What it is called in metrics and answers. A breaker's label, so one of few.
    fn label(&self) -> &'static str;

    /// Whether `name` is one of those that it knows about. Another source is asked otherwise.
    fn serves(&self, name: &Name) -> bool {
        let _ = name;
        true
    }

    /// What `name` stands for, verified. `None` only if it is certain that it stands for nothing.
    fn resolve<'a>(
        &'a self,
        name: &'a Name,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Option<NameRecord>, SourceError>>;

    /// Whether it works again after it failed; asked in the background, never in a caller's name. Asks for something that
    /// nobody has unless the source knows better.
    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let name: Name = "ron/probe".parse().expect("it is a name");
            self.resolve(&name, deadline).await.map(drop)
        })
    }
}

/// Says what content is made of.
pub trait Manifests: Send + Sync + 'static {
    /// What it is called in metrics. A breaker's label, so one of few.
    fn label(&self) -> &'static str;

    /// What `content` is made of, verified; `None` if it does not know.
    fn manifest(
        &self,
        content: ContentId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Manifest>, SourceError>>;

    /// Whether it works again after it failed; asked in the background, never in a caller's name. Asks for something that
    /// nobody has unless the source knows better.
    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move { self.manifest(ContentId::of(PROBED), deadline).await.map(drop) })
    }
}

/// Says who has content: one peer or one network to ask. The index asks several of them, the first ones at once and others
/// when those are slow, so whoever can ask distinct peers offers each as a source of its own.
pub trait Providers: Send + Sync + 'static {
    /// What it is called in metrics and answers. A breaker's label, so one of few.
    fn label(&self) -> &'static str;

    /// Says who has something, each by [`Ask::found`] as soon as it is verified, and then whether that was all. Dropping
    /// the future calls the search off.
    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>>;

    /// Where a node can be reached, if it is one that this source can look for. Otherwise `None`.
    fn locate(
        &self,
        node: NodeId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let _ = (node, deadline);
        Box::pin(async { Ok(None) })
    }

    /// Whether it works again after it failed; asked in the background, never in a caller's name. Asks for something that
    /// nobody has unless the source knows better.
    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let ask = Ask::new(Key::Content(ContentId::of(PROBED)), 1, deadline, &Metrics::default());
            self.find(&ask).await.map(drop)
        })
    }
}

/// How a search for providers ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// Whether everybody who could know was asked, so that what was not found does not exist as far as this source can say.
    /// Of a source that only speaks for itself, `false`.
    pub is_final: bool,
}

/// A question about who has something.
pub struct Ask {
    /// The content: never a name.
    pub content: Key,
    /// How many providers are enough.
    pub enough: usize,
    /// Until when an answer is of use.
    pub deadline: Deadline,
    found: Lock<Vec<Provider>>,
    has_told: AtomicBool,
}

impl Ask {
    pub(crate) fn new(content: Key, enough: usize, deadline: Deadline, metrics: &Metrics) -> Self {
        let found = Lock::new(FOUND, Vec::new(), metrics);
        Ask { content, enough, deadline, found, has_told: AtomicBool::new(false) }
    }

    /// Somebody has it. The first 256 that nobody has looked at yet are kept.
    pub fn found(&self, mut provider: Provider) {
        provider.addrs.truncate(ADDRS_MAX);
        self.has_told.store(true, Ordering::Relaxed);
        let mut found = self.found.lock();
        if found.len() < FOUND_MAX {
            found.push(provider);
        }
    }

    /// Whether somebody was found at all.
    pub(crate) fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Relaxed)
    }

    /// Whether something was found since the last time.
    pub(crate) fn has_found(&self) -> bool {
        !self.found.lock().is_empty()
    }

    /// What was found since the last time.
    pub(crate) fn take(&self) -> Vec<Provider> {
        std::mem::take(&mut *self.found.lock())
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("content", &self.content)
            .field("enough", &self.enough)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_source_that_never_stops_telling_fills_no_memory() {
        let deadline = Deadline::after(Duration::from_secs(1));
        let ask = Ask::new(Key::Content(ContentId::of(b"x")), 1, deadline, &Metrics::default());
        let tell = |number: u32| {
            let id = NodeId::from_bytes(*ContentId::of(&number.to_le_bytes()).as_bytes());
            ask.found(Provider::new(id, [([192, 0, 2, 1], 4710).into(); 100]));
        };
        (0..100_000).for_each(tell);
        let taken = ask.take();
        assert_eq!((taken.len(), taken[0].addrs.len()), (FOUND_MAX, ADDRS_MAX));
        tell(1);
        assert_eq!(ask.take().len(), 1, "there is room again");
    }
}
