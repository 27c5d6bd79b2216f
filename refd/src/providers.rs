//! Who may have an object: whoever the DHT says provides it.

use std::num::NonZeroUsize;

use ron_core::{
    ContentId, Deadline,
    net::{BoxFuture, Contact},
};
use ron_dht::Dht;
use ron_storage::{fetch::Finder, peers::Peer};

/// Providers that are enough for one object.
const ENOUGH: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");

/// Finds providers in the DHT.
pub(crate) struct ByDht(pub(crate) Dht);

impl Finder for ByDht {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(async move {
            let (mut peers, me) = (Vec::new(), self.0.node_id());
            let Ok(mut found) = self.0.find_providers(id, ENOUGH, deadline) else { return peers };
            // A search that ends early has found what it has found.
            while let Ok(Some(provider)) = found.next().await {
                if provider.id != me {
                    peers.push(Contact { id: provider.id, addrs: provider.addrs.into() }.into());
                }
            }
            peers
        })
    }
}
