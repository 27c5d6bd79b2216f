//! What a store of this process has: manifests, and this node as a provider (feature `storage`).

use std::net::SocketAddr;

use ron_core::{ContentId, NodeId};
use ron_storage::{GROUP_BYTES, StorageError, Store};

use super::{Answered, Ask, BoxFuture, Deadline, Key, Manifest, Manifests, Provider, Providers, SourceError};

/// How objects of a store are fetched from it.
const PROTOCOL: &str = "ron-blob-1";

/// Manifests of the objects in a store. Their lengths were hashed with them when they came in, and every read checks that
/// again.
#[derive(Debug, Clone)]
pub struct StoreManifests(Store);

impl StoreManifests {
    /// Manifests of what is in `store`.
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

/// This node, for what is in its store.
#[derive(Debug, Clone)]
pub struct StoreProviders {
    store: Store,
    this: Provider,
}

impl StoreProviders {
    /// What is in `store` is provided by the node `id` at `addrs`.
    #[must_use]
    pub fn new(store: &Store, id: NodeId, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        let this = Provider { protocols: vec![PROTOCOL.into()], ..Provider::new(id, addrs) };
        StoreProviders { store: store.clone(), this }
    }

    /// Where it is, as its operator calls that.
    #[must_use]
    pub fn region(mut self, region: impl Into<std::sync::Arc<str>>) -> Self {
        self.this.region = Some(region.into());
        self
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
                    ask.found(self.this.clone());
                }
            }
            // It speaks for itself only.
            Ok(Answered { is_final: false })
        })
    }

    fn locate(&self, node: NodeId, _: Deadline) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let this = (node == self.this.id).then(|| self.this.clone());
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
