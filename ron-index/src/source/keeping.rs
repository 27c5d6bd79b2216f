//! Those who keep objects together with this node, as providers (feature `keeping`).
//!
//! What is kept need not be provided in a DHT: the nodes of one company ask each other. So does the index, or it would not know
//! of an object that every one of them can give.

use ron_core::Deadline;
use ron_storage::repair::Keeping;

use super::{Answered, Ask, BoxFuture, Key, NodeId, Provider, Providers, SourceError, storage::PROTOCOL};

/// The nodes that keep objects with this one, for what they say they have. Each is asked over a link that has proven who it is;
/// what it then gives is checked by whoever takes it.
#[derive(Debug, Clone)]
pub struct KeepingProviders(Keeping);

impl KeepingProviders {
    /// Those of `keeping`; this node itself is for [`StoreProviders`](super::StoreProviders).
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
            // Others may have it too.
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
