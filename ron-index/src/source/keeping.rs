//! The nodes that keep objects together with this one, as providers (feature `keeping`).
//!
//! Objects that are kept this way need not be announced in a DHT, because the nodes ask each other. So the index asks them too;
//! otherwise it would not find an object that every one of them has.

use ron_core::Deadline;
use ron_storage::repair::Keeping;

use super::{Answered, Ask, BoxFuture, Key, NodeId, Provider, Providers, SourceError, storage::PROTOCOL};

/// The nodes that keep objects with this one, as providers of what they say they have. Each is asked over an authenticated
/// link; the bytes it later hands out are verified by whoever fetches them.
#[derive(Debug, Clone)]
pub struct KeepingProviders(Keeping);

impl KeepingProviders {
    /// The other nodes of `keeping`. For this node itself, add [`StoreProviders`](super::StoreProviders).
    #[must_use]
    pub fn new(keeping: &Keeping) -> Self {
        KeepingProviders(keeping.clone())
    }
}

impl Providers for KeepingProviders {
    fn label(&self) -> &'static str {
        "keeping"
    }

    fn find<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Answered, SourceError>> {
        Box::pin(async move {
            if let Key::Content(id) = &ask.content {
                for peer in self.0.holders(*id, ask.deadline).await {
                    let addrs = peer.contact.addrs.iter().copied();
                    let provider = Provider::new(peer.contact.id, addrs);
                    ask.found(Provider { protocols: vec![PROTOCOL.into()], ..provider });
                }
            }
            // Other nodes may have it too.
            Ok(Answered { is_final: false })
        })
    }

    fn locate(&self, node: NodeId, _: Deadline) -> BoxFuture<'_, Result<Option<Provider>, SourceError>> {
        let status = self.0.status();
        let known = status.nodes.iter().find(|known| known.contact.id == node);
        let found = known.map(|known| Provider::new(node, known.contact.addrs.iter().copied()));
        Box::pin(std::future::ready(Ok(found)))
    }
}
