//! Who may have an object: those who keep it with this node, and whoever the DHT says provides it.

use std::num::NonZeroUsize;

use ron_core::{
    ContentId, Deadline,
    net::{BoxFuture, Contact},
};
use ron_dht::{Dht, Key};
use ron_storage::{StorageError, Stored, fetch::Finder, peers::Peer, repair::Keeping};

/// Providers that are enough for one object.
const ENOUGH: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");

/// Other nodes that the DHT says provide a key; nothing if nobody can be asked. A search that ends early has found what it has
/// found.
pub(crate) async fn others(
    dht: &Dht,
    key: impl Into<Key>,
    enough: NonZeroUsize,
    deadline: Deadline,
) -> Option<Vec<Contact>> {
    let (mut others, me) = (Vec::new(), dht.node_id());
    let mut search = dht.find_providers(key, enough, deadline).ok()?;
    while let Ok(Some(provider)) = search.next().await {
        if provider.id != me {
            others.push(Contact { id: provider.id, addrs: provider.addrs.into() });
        }
    }
    Some(others)
}

/// Finds an object with whoever the DHT says provides it.
pub(crate) struct ByDht(pub(crate) Dht);

impl Finder for ByDht {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(async move {
            let found = others(&self.0, id, ENOUGH, deadline).await;
            found.unwrap_or_default().into_iter().map(Peer::from).collect()
        })
    }
}

/// Finds an object with those who keep it, and else with whoever the DHT says provides it.
pub(crate) struct Everywhere {
    pub(crate) keeping: Keeping,
    pub(crate) dht: ByDht,
}

impl Finder for Everywhere {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(async move {
            match self.keeping.holders(id, deadline).await {
                nobody if nobody.is_empty() => self.dht.find(id, deadline).await,
                holders => holders,
            }
        })
    }

    fn make(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Result<Option<Stored>, StorageError>> {
        self.keeping.make(id, deadline)
    }
}
