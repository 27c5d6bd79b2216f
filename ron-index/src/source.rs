//! Where answers come from: what a name stands for, what content is made of, and who provides it.
//!
//! Each of the three is one small trait. Adapters come by feature: `registry` and `dht` for names, `storage` for manifests,
//! `dht`, `storage` and `keeping` for providers; a fixed list of providers is always there. A source must verify what it
//! answers, because the index caches and serves it as it is. What fails verification is [`SourceError::Invalid`], never an
//! answer.

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

/// Addresses kept of one provider. More would cost memory and hardly ever be tried.
pub const ADDRS_MAX: usize = 8;

/// Providers that a source may report before the lookup next looks at them; more are dropped, so that no source can fill the
/// memory. An answer has far fewer.
const FOUND_MAX: usize = 8 * crate::PROVIDERS_LIMIT;

/// How a name begins that its owner signs: this, the owner's public key in hex, a slash, and the rest.
#[cfg(any(feature = "dht", feature = "registry"))]
const OWNED_PREFIX: &str = "key:";

/// The content that a probe asks for: nobody has it.
const PROBED: &[u8] = b"ron-index: is anybody there?";

pub(crate) const FOUND: LockSpec = LockSpec::new("ron-index", "found", 540)
    .guards("providers that a source has reported and the lookup has not taken yet; held for a push or while they are taken");

/// Why a source did not answer. [`is_transient`](Self::is_transient) says whether asking again may help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A transient failure: the source is busy, restarting, or lost a message.
    #[error("{0}")]
    Transient(String),
    /// There is nobody to ask at the moment.
    #[error("nobody to ask")]
    NoRoute,
    /// It cannot know yet, for example because its log has not begun or its node knows no other. The same lookup does not ask
    /// it again, and its breaker does not count it as a failure.
    #[error("not ready: {gate}")]
    NotReady {
        /// What it waits for.
        gate: &'static str,
    },
    /// It took longer than it had.
    #[error("it took too long")]
    Timeout,
    /// Its answer failed verification. That is counted, and nothing of the answer is kept.
    #[error("its answer does not hold: {0}")]
    Invalid(String),
    /// It failed in a way that asking again does not help.
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

/// A node that provides some content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The node.
    pub id: NodeId,
    /// Its public key, whose hash is the id, if the source knows it. IPFS clients identify nodes by it.
    pub public_key: Option<[u8; 32]>,
    /// Where it can be reached, as far as known. The first eight are kept.
    pub addrs: Vec<SocketAddr>,
    /// When it announced that it provides the content, in seconds since 1970, if known.
    pub issued: Option<u64>,
    /// The region it is in, by the name that its operator gave it.
    pub region: Option<Arc<str>>,
    /// The protocols by which it hands content out, such as `ron-blob-1`, as far as known.
    pub protocols: Vec<Arc<str>>,
}

impl Provider {
    /// A provider of which only the id and these addresses are known.
    #[must_use]
    pub fn new(id: NodeId, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        let addrs = addrs.into_iter().take(ADDRS_MAX).collect();
        Provider { id, public_key: None, addrs, issued: None, region: None, protocols: Vec::new() }
    }

    /// Adds its public key. A key whose hash is not the id is not this provider's, and is ignored.
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
    /// Grows with every change of the name: of two records by the same source, the higher is newer.
    pub version: u64,
    /// How it was proven: `registry` by a proof against a signed checkpoint, `signature` by its owner's signature.
    pub proven_by: &'static str,
    /// How long it may be cached, if the source says so.
    pub ttl: Option<Duration>,
}

/// What content is made of: its length, and the size of the groups that its hash tree can prove one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// The content.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// Bytes in a group: the least that can be fetched and verified by itself.
    pub group_bytes: u64,
}

/// A source that says what names stand for.
pub trait Names: Send + Sync + 'static {
    /// Its name in metrics and answers. Sources with the same label are counted together.
    fn label(&self) -> &'static str;

    /// Whether `name` is of the kind that this source is responsible for. It is not asked for others.
    fn serves(&self, name: &Name) -> bool {
        let _ = name;
        true
    }

    /// What `name` stands for, verified; `None` only if the source is certain that it stands for nothing.
    fn resolve<'a>(
        &'a self,
        name: &'a Name,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Option<NameRecord>, SourceError>>;

    /// Whether it works again after it failed. This is asked in the background, never on behalf of a caller. By default it asks
    /// for something that nobody has.
    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let name: Name = "ron/probe".parse().expect("it is a name");
            self.resolve(&name, deadline).await.map(drop)
        })
    }
}

/// A source that says what content is made of.
pub trait Manifests: Send + Sync + 'static {
    /// Its name in metrics. Sources with the same label are counted together.
    fn label(&self) -> &'static str;

    /// What `content` is made of, verified; `None` if it does not know.
    fn manifest(
        &self,
        content: ContentId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Manifest>, SourceError>>;

    /// Whether it works again after it failed. This is asked in the background, never on behalf of a caller. By default it asks
    /// for something that nobody has.
    fn probe(&self, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move { self.manifest(ContentId::of(PROBED), deadline).await.map(drop) })
    }
}

/// A source that says who provides content: one peer or one network to ask. The index asks the first few sources at once and
/// others when those are slow. So a host that can ask distinct peers should add each as a source of its own.
pub trait Providers: Send + Sync + 'static {
    /// Its name in metrics and answers. Sources with the same label are counted together.
    fn label(&self) -> &'static str;

    /// Searches for providers and reports each by [`Ask::found`] as soon as it is verified; at the end, says whether those were
    /// all. Dropping the future cancels the search.
    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>>;

    /// Where a node can be reached; `None` if this source does not know, as by default.
    fn locate(
        &self,
        node: NodeId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let _ = (node, deadline);
        Box::pin(async { Ok(None) })
    }

    /// Whether it works again after it failed. This is asked in the background, never on behalf of a caller. By default it asks
    /// for something that nobody has.
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
    /// Whether the search was complete: nobody else provides the content, as far as this source can say. A source that only
    /// knows some providers, such as a list, says `false`.
    pub is_final: bool,
}

/// A search for providers, as a source gets it.
pub struct Ask {
    /// The content: never a name.
    pub content: Key,
    /// How many providers are enough.
    pub enough: usize,
    /// When the answer stops being of use.
    pub deadline: Deadline,
    found: Lock<Vec<Provider>>,
    has_told: AtomicBool,
}

impl Ask {
    pub(crate) fn new(content: Key, enough: usize, deadline: Deadline, metrics: &Metrics) -> Self {
        let found = Lock::new(FOUND, Vec::new(), metrics);
        Ask { content, enough, deadline, found, has_told: AtomicBool::new(false) }
    }

    /// Reports a provider. At most 256 are kept until the lookup takes them.
    pub fn found(&self, mut provider: Provider) {
        provider.addrs.truncate(ADDRS_MAX);
        self.has_told.store(true, Ordering::Relaxed);
        let mut found = self.found.lock();
        if found.len() < FOUND_MAX {
            found.push(provider);
        }
    }

    /// Whether any provider was reported.
    pub(crate) fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Relaxed)
    }

    /// Whether a provider was reported since the last [`take`](Self::take).
    pub(crate) fn has_found(&self) -> bool {
        !self.found.lock().is_empty()
    }

    /// The providers that were reported since the last call.
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
