//! A store in this process as a source of manifests, and this node as a provider of its objects (feature `storage`).

use std::net::SocketAddr;

use ron_core::{ContentId, NodeId};
use ron_storage::{GROUP_BYTES, StorageError, Store};

use super::{Answered, Ask, BoxFuture, Deadline, Key, Manifest, Manifests, Provider, Providers, SourceError};

/// The protocol by which objects are fetched from a store.
pub(super) const PROTOCOL: &str = "ron-blob-1";

/// Manifests of the objects in a store. The store verified their lengths when they were put, and does so again at every read.
#[derive(Debug, Clone)]
pub struct StoreManifests(Store);

impl StoreManifests {
    /// Manifests of the objects in `store`.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        StoreManifests(store.clone())
    }
}

impl Manifests for StoreManifests {
    fn label(&self) -> &'static str {
        "store"
    }

    fn manifest(
        &self,
        content: ContentId,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Option<Manifest>, SourceError>> {
        Box::pin(async move {
            match self.0.stat(content, deadline).await {
                Ok(stat) if stat.is_quarantined => Ok(None),
                Ok(stat) => Ok(Some(Manifest { id: stat.id, len: stat.len, group_bytes: GROUP_BYTES })),
                Err(StorageError::NotFound { .. }) => Ok(None),
                Err(error) => Err(failure(&error)),
            }
        })
    }
}

/// This node, as the provider of what is in its store.
#[derive(Clone)]
pub struct StoreProviders {
    store: Store,
    this: Provider,
    addrs: Option<Addrs>,
}

type Addrs = std::sync::Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>;

impl StoreProviders {
    /// The node `id` at `addrs`, as the provider of what is in `store`.
    #[must_use]
    pub fn new(store: &Store, id: NodeId, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        let this = Provider { protocols: vec![PROTOCOL.into()], ..Provider::new(id, addrs) };
        StoreProviders { store: store.clone(), this, addrs: None }
    }

    /// A function that tells the current addresses, for a host whose endpoint may move. Replaces those given to `new`.
    #[must_use]
    pub fn addrs(mut self, addrs: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Self {
        self.addrs = Some(std::sync::Arc::new(addrs));
        self
    }

    fn this(&self) -> Provider {
        match &self.addrs {
            None => self.this.clone(),
            Some(addrs) => Provider { addrs: addrs(), ..self.this.clone() },
        }
    }

    /// The public key of the node, by which IPFS clients identify it. A key whose hash is not the node's id is ignored.
    #[must_use]
    pub fn public_key(mut self, key: [u8; 32]) -> Self {
        self.this = self.this.with_public_key(key);
        self
    }

    /// The region the node is in, by the name that its operator gives it.
    #[must_use]
    pub fn region(mut self, region: impl Into<std::sync::Arc<str>>) -> Self {
        self.this.region = Some(region.into());
        self
    }
}

impl std::fmt::Debug for StoreProviders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreProviders").field("this", &self.this).finish_non_exhaustive()
    }
}

impl Providers for StoreProviders {
    fn label(&self) -> &'static str {
        "store"
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        Box::pin(async move {
            if let Key::Content(id) = &ask.content {
                if self.store.has(*id, ask.deadline).await.map_err(|error| failure(&error))? {
                    ask.found(self.this());
                }
            }
            // Other nodes may have it too.
            Ok(Answered { is_final: false })
        })
    }

    fn locate(&self, node: NodeId, _: Deadline) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let this = (node == self.this.id).then(|| self.this());
        Box::pin(async { Ok(this) })
    }
}

fn failure(error: &StorageError) -> SourceError {
    match error {
        StorageError::Timeout { .. } => SourceError::Timeout,
        error if error.is_retryable() => SourceError::Transient(error.to_string()),
        error => SourceError::Failed(error.to_string()),
    }
}
