//! What a host does beside putting: claims what is here already, brings what is elsewhere, asks what happened, changes knobs.

use std::{fmt, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use ron_core::{
    ContentId, Deadline, NodeId,
    net::{BoxFuture, Identity},
};

use super::{
    Ack, Keeping, KeepingEvent, KeepingSettings, Placed, Presence, Shared, Staying, hands, looking,
    putting::{AGAIN, Pieces},
    shards,
};
use crate::{
    StorageError, Store, Stored,
    claims::{Policy, Standing},
    fetch::{FetchError, Finder},
    peers::{Held, Peer},
};

/// What asking one node whether it has an object may take.
const ASKING: Duration = Duration::from_secs(2);

/// How long an object that is claimed is asked for again while nobody gives it.
const BRINGING: Duration = Duration::from_secs(10);

/// How long others may still say that they have it once somebody does: it is fetched from all of them at once.
const OTHERS: Duration = Duration::from_millis(20);

/// Nodes that are asked for the claims on an object of which nothing is known here: those where it would belong.
const KNOWING: usize = 3;

impl Keeping {
    /// Claims an object that is in the store for `owner`, and says who has it: [`put`](Self::put) for what came another way.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if it is not here; those of [`put`](Self::put).
    pub async fn keep(
        &self,
        id: ContentId,
        policy: Policy,
        owner: &Identity,
        ack: Ack,
        deadline: Deadline,
    ) -> Result<Placed, StorageError> {
        policy.check()?;
        let shared = &self.shared;
        let _held = Staying::begin(shared, id, deadline).await?;
        let len = shared.store.readable(id, deadline)?.len;
        let (word, manifest, pieces) = Pieces::cut(shared, id, policy, deadline).await?;
        let version = self.say(owner, (id, len), word, manifest.clone(), deadline).await?;
        let durable_on =
            self.spread((id, len), policy, manifest.as_ref(), &pieces.ids, ack, deadline).await?;
        Ok(Placed { id, len, version, durable_on })
    }

    /// Deletes what is here of an object that nobody claims, as [`Store::delete`] does, and not while somebody is about to claim it.
    /// Says whether there was anything.
    ///
    /// # Errors
    /// [`StorageError::Claimed`] if somebody does or is about to; those of [`Store::delete`].
    pub async fn clear(&self, id: ContentId, deadline: Deadline) -> Result<bool, StorageError> {
        self.clear_for(&self.shared.store, id, deadline).await
    }

    /// The same, for a client of the store.
    pub(crate) async fn clear_for(
        &self,
        store: &Store,
        id: ContentId,
        deadline: Deadline,
    ) -> Result<bool, StorageError> {
        hands::clear(&self.shared, store, id, deadline).await
    }

    /// Nodes that say that they have an object, a few of them if there are more; this one is none of them.
    pub async fn holders(&self, id: ContentId, deadline: Deadline) -> Vec<Peer> {
        let (members, status) = (self.shared.members.load(), self.shared.status.load());
        let is_away = |node: &NodeId| {
            let known = status.nodes.iter().find(|known| known.contact.id == *node);
            known.is_some_and(|known| known.presence == Some(Presence::Away))
        };
        let others = members.iter().filter(|(node, _)| **node != self.shared.me);
        let (away, there): (Vec<_>, Vec<_>) =
            others.map(|(_, member)| member.peer.clone()).partition(|peer| is_away(&peer.contact.id));
        let found = self.ask_all(id, &there, deadline).await;
        // One that is back may not have been looked at yet.
        if found.is_empty() { self.ask_all(id, &away, deadline).await } else { found }
    }

    /// Those of `peers` who have an object: all who say so until shortly after the first.
    async fn ask_all(&self, id: ContentId, peers: &[Peer], deadline: Deadline) -> Vec<Peer> {
        let asking = deadline.within(ASKING);
        let ids = [id];
        let mut asked: Vec<(usize, BoxFuture<'_, bool>)> = Vec::new();
        for (at, peer) in peers.iter().enumerate() {
            let ids = &ids;
            asked.push((
                at,
                Box::pin(async move {
                    let answer = self.shared.peers.have(peer, ids, asking).await;
                    answer.is_ok_and(|answer| matches!(answer.held.first(), Some(Held::Complete(_))))
                }),
            ));
        }
        let mut found = Vec::new();
        let mut enough = pin!(None::<tokio::time::Sleep>);
        poll_fn(|cx| {
            asked.retain_mut(|(at, answer)| match answer.as_mut().poll(cx) {
                Poll::Ready(has) => {
                    found.extend(has.then_some(*at));
                    false
                }
                Poll::Pending => true,
            });
            if !found.is_empty() && enough.is_none() {
                enough.set(Some(tokio::time::sleep(OTHERS)));
            }
            let is_late = enough.as_mut().as_pin_mut().is_some_and(|enough| enough.poll(cx).is_ready());
            if asked.is_empty() || is_late { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        found.into_iter().map(|at| peers[at].clone()).collect()
    }

    /// Brings an object here that other nodes have, whole or as shards. It is one copy more than its policy asks for, perhaps,
    /// and is trimmed when all others are where they belong. While it is claimed and nobody gives it, others are asked again
    /// for a while: who has it may be slow just now, or may be handing it on.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if it is deleted, or nobody claims it and no node that answers has it;
    /// [`StorageError::Unreached`] if it is claimed all the same; what the store met.
    pub async fn bring(&self, id: ContentId, deadline: Deadline) -> Result<Stored, StorageError> {
        let patience = deadline.within(BRINGING);
        let mut pause = AGAIN.start;
        loop {
            if self.shared.store.standing(&id) == Standing::Deleted {
                return Err(StorageError::NotFound { id });
            }
            let holders = self.holders(id, deadline).await;
            match self.shared.fetcher.fetch(id, &holders, deadline).await {
                Ok(fetched) => return Ok(fetched.stored),
                Err(FetchError::Store(error)) => return Err(error),
                Err(error) => tracing::debug!(%id, %error, "nobody gives a copy"),
            }
            if let Some(stored) = self.make_of_shards(id, deadline).await? {
                return Ok(stored);
            }
            if !matches!(self.shared.store.standing(&id), Standing::Live(_)) {
                return Err(StorageError::NotFound { id });
            }
            if patience.remaining() <= pause {
                return Err(StorageError::Unreached { id });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN.end);
        }
    }

    /// Says that an object is read here, until what is returned is dropped: what was brought is not trimmed meanwhile. Waits for
    /// who is about to.
    ///
    /// # Errors
    /// [`StorageError::Timeout`].
    pub async fn reading(&self, id: ContentId, deadline: Deadline) -> Result<Reading, StorageError> {
        while self.shared.promises.lock().read(id).is_err() {
            if deadline.remaining() <= AGAIN.start {
                return Err(StorageError::Timeout { op: "get" });
            }
            tokio::time::sleep(AGAIN.start).await;
        }
        Ok(Reading { shared: Arc::clone(&self.shared), id })
    }

    /// Asks those where an object would belong what they know of its claims, if nothing is known here: what was put elsewhere a
    /// moment ago is not heard of before the next tick.
    pub async fn learn(&self, id: ContentId, deadline: Deadline) {
        let shared = &self.shared;
        for node in looking::targets(shared, &id, KNOWING) {
            if shared.store.standing(&id) != Standing::Unclaimed {
                break;
            }
            let Some(peer) = shared.peer(&node).filter(|_| node != shared.me) else { continue };
            let exchange = looking::exchange_claims(shared, &peer);
            if !matches!(deadline.within(ASKING).limit("claims", exchange).await, Ok(Ok(()))) {
                tracing::debug!(%node, "it does not say what it knows of claims");
            }
        }
    }

    /// Asks those where an object belongs for the last word about it: who has it no more may know that it is deleted.
    async fn hear_last(&self, id: ContentId, deadline: Deadline) {
        let shared = &self.shared;
        let others = looking::targets(shared, &id, KNOWING).into_iter().filter(|node| *node != shared.me);
        for node in others.take(KNOWING) {
            if shared.store.standing(&id) == Standing::Deleted {
                break;
            }
            let _ = deadline.within(ASKING).limit("claims", hands::learn(shared, node, &id)).await;
        }
    }

    async fn make_of_shards(
        &self,
        id: ContentId,
        deadline: Deadline,
    ) -> Result<Option<Stored>, StorageError> {
        match self.shared.store.standing(&id) {
            Standing::Unclaimed => self.learn(id, deadline).await,
            _ => self.hear_last(id, deadline).await,
        }
        // A piece of it may lie around anywhere for a while.
        if self.shared.store.standing(&id) == Standing::Deleted {
            return Err(StorageError::NotFound { id });
        }
        match shards::from_shards(&self.shared, id, deadline).await {
            Some(content) => Ok(Some(self.shared.store.put_bytes(content, deadline).await?)),
            None => Ok(None),
        }
    }

    /// The store whose objects these are.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.shared.me
    }

    /// Does not wait for a node any more that will not come back, if the host can: see [`Nodes::forget`](super::Nodes::forget).
    #[must_use]
    pub fn forget(&self, node: &NodeId) -> bool {
        self.shared.nodes.forget(node)
    }

    /// The last things that happened, the latest last, each with when, in milliseconds since 1970.
    #[must_use]
    pub fn recent(&self) -> Vec<(u64, KeepingEvent)> {
        self.shared.recent.load().to_vec()
    }

    /// Goes on with other knobs, and with another number of nodes that have to answer for writes to be ready.
    ///
    /// # Errors
    /// [`StorageError::Config`] with the first that cannot change while it runs, or makes no sense; everything stays as it was.
    pub fn reload(&self, settings: KeepingSettings, answering: usize) -> Result<(), StorageError> {
        self.shared.settings.load().check_change(&settings)?;
        self.shared.store.book().set_limits(settings.claim_limits());
        self.shared.settings.replace(settings);
        self.shared.answering.replace(answering);
        Ok(())
    }
}

/// An object that is read here and therefore stays: see [`Keeping::reading`].
#[must_use = "it may go as soon as this is dropped"]
pub struct Reading {
    shared: Arc<Shared>,
    id: ContentId,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.promises.lock().read_over(&self.id);
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.id).finish()
    }
}

impl Finder for Keeping {
    fn find(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Vec<Peer>> {
        Box::pin(self.holders(id, deadline))
    }

    fn make(&self, id: ContentId, deadline: Deadline) -> BoxFuture<'_, Result<Option<Stored>, StorageError>> {
        Box::pin(self.make_of_shards(id, deadline))
    }
}
