//! Objects are put, claimed and brought to where they belong; and a piece stays while that is under way.

use std::{
    fmt,
    ops::Range,
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, NodeId,
    net::{BoxFuture, Identity},
};

use super::{HEDGE, Heard, Keeping, Shared, attempts, hands, looking, shards, telling};
use crate::{
    StorageError,
    claims::{Claim, ClaimError, Coming, Manifest, Merged, Policy, SHARDS_MAX, Verified, Word},
    logic::plan::Holding,
    peers::{Decline, Offer, PeerError},
};

/// After how long a node that could not take an object is asked again: twice as long each time.
pub(super) const AGAIN: Range<Duration> = Duration::from_millis(20)..Duration::from_secs(1);

/// Shards of one object that are put at once: they share their syncs, and a put takes few of the places that there are.
const PUTS_AT_ONCE: usize = 4;

/// When a put is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// When it is durable here. Copies follow.
    Local,
    /// When `n` nodes have it durably, this one included if it is a member. For an object in shards: when it is as safe as `n`
    /// copies, that is, any `n - 1` nodes may be lost and the rest can still rebuild it ([`Policy::worth`]). A number that the
    /// policy cannot reach counts as the highest it can: with 2+1 shards, 3 means 2.
    Copies(u8),
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ack::Local => f.write_str("local"),
            Ack::Copies(copies) => write!(f, "{copies}"),
        }
    }
}

impl FromStr for Ack {
    type Err = ClaimError;

    /// `local`, or a number of nodes.
    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let copies = |copies: &u8| (1..=SHARDS_MAX).contains(copies);
        match text {
            "local" => Ok(Ack::Local),
            text => text
                .parse()
                .ok()
                .filter(copies)
                .map(Ack::Copies)
                .ok_or(ClaimError::OutOfRange { what: "ack" }),
        }
    }
}

/// What a put did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed {
    /// The object's name.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// The version of the claim on it.
    pub version: u64,
    /// Nodes that had it durably when this was said; of an object in shards, one for each shard.
    pub durable_on: Vec<NodeId>,
}

impl Keeping {
    /// Puts an object and claims it for `owner`, and says who has it. When it returns `Ok` it is claimed durably here, and as
    /// many nodes have it as `ack` asks for. Dropping the future may leave it put or claimed; doing it again is harmless.
    ///
    /// # Errors
    /// [`StorageError::Unacknowledged`] if fewer nodes have it at the deadline, or sooner if too few of those that are known
    /// answer: it is not waited for nodes that are away. It is kept and claimed here, and copies follow when they can. Wait for
    /// [`status`](Self::status) to have so many `up` before the first put.
    /// [`StorageError::Claim`] for a policy that cannot be, and those of [`Store::put`](crate::Store::put).
    pub async fn put(
        &self,
        content: Bytes,
        policy: Policy,
        owner: &Identity,
        ack: Ack,
        deadline: Deadline,
    ) -> Result<Placed, StorageError> {
        policy.check()?;
        let (shared, len) = (&self.shared, content.len() as u64);
        let (pieces, manifest) = match policy {
            Policy::Copies(_) => (vec![content], None),
            Policy::Erasure { data, parity } => {
                shards::cut(shared, content, (data, parity), deadline).await?
            }
        };
        let pieces = Pieces::put(shared, pieces, manifest.as_ref(), deadline).await?;
        let (id, word) = match &manifest {
            None => (pieces.ids[0].1, Word::Copies(copies(policy))),
            Some(manifest) => (manifest.object, Word::Erasure(manifest.coding())),
        };
        let version = self.say(owner, (id, len), word, manifest.clone(), deadline).await?;
        let durable_on =
            self.spread((id, len), policy, manifest.as_ref(), &pieces.ids, ack, deadline).await?;
        Ok(Placed { id, len, version, durable_on })
    }

    /// Claims an object with another policy than before. It is brought here first, from wherever it is. Returns the version of
    /// the claim. It holds against every word of this owner with a lower one; where a word with this version or a higher one was
    /// said that this node had not heard, that one may hold.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if it is nowhere to be had, [`StorageError::Unreached`] if it is claimed all the same;
    /// [`StorageError::TooLarge`] if it is longer than what is cut into shards; and those of [`put`](Self::put).
    pub async fn set_policy(
        &self,
        id: ContentId,
        policy: Policy,
        owner: &Identity,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        policy.check()?;
        let shared = &self.shared;
        // It is here, and stays, before anybody hears that its shards are not needed.
        let _held = Staying::begin(shared, id, deadline).await?;
        if !shared.store.has(id, deadline).await? {
            // Into the store and not into memory: there is no limit to how long it is.
            self.bring(id, deadline).await?;
        }
        let len = shared.store.stat(id, deadline).await?.len;
        let (word, manifest, _pieces) = Pieces::cut(shared, id, policy, deadline).await?;
        self.say(owner, (id, len), word, manifest, deadline).await
    }

    /// Ends `owner`'s claim on an object, and remembers that for `retention` after the last copy is gone. If nobody else
    /// claims it, it is deleted everywhere, also on nodes that are away now and come back. Returns the version of the claim.
    ///
    /// # Errors
    /// [`StorageError::Claim`] for a retention that is not allowed; those of [`Store::claim`](crate::Store::claim).
    pub async fn delete(
        &self,
        id: ContentId,
        owner: &Identity,
        retention: Duration,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        self.say(owner, (id, 0), Word::Tombstone { retention: retention.as_secs() }, None, deadline).await
    }

    /// Claims an object without asking for a number of copies: whatever copies exist are kept, wherever they are. Returns the
    /// version of the claim.
    ///
    /// # Errors
    /// Those of [`Store::claim`](crate::Store::claim).
    pub async fn pin(
        &self,
        id: ContentId,
        owner: &Identity,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        let len = self.shared.store.stat(id, deadline).await.map_or(0, |stat| stat.len);
        self.say(owner, (id, len), Word::Pin, None, deadline).await
    }

    /// Signs the next version of an owner's word, and takes it in.
    pub(super) async fn say(
        &self,
        owner: &Identity,
        object: (ContentId, u64),
        word: Word,
        manifest: Option<Manifest>,
        deadline: Deadline,
    ) -> Result<u64, StorageError> {
        let store = &self.shared.store;
        let key = owner.public_key();
        loop {
            let known = store.claims(&object.0).into_iter().find(|claim| claim.owner == key);
            // At least the clock: a later word wins also where it is said by a node that has not heard the one before. So the same
            // word again is a later one, too: another may have been said meanwhile that is not known here.
            let version = match known {
                Some(known) => {
                    known.version.checked_add(1).ok_or(ClaimError::OutOfRange { what: "version" })?
                }
                None => 0,
            };
            let version = version.max(self.shared.clock());
            let claim: Verified = Claim::sign(owner, object, version, store.book().unix_now(), word)?;
            match store.claim(claim, manifest.clone(), deadline).await? {
                // The same owner said something else at the same time, and that is known by now: this is said after it.
                Merged::Older => continue,
                Merged::New | Merged::Same => {}
            }
            let _ = self.shared.heard.try_push(Heard::Claims);
            return Ok(version);
        }
    }

    /// Gives an object or its shards to others until as many have it as `ack` asks for. What is only on a node that was told to go
    /// may be gone with it as soon as this is acknowledged, and nobody looks after what is only on one that is none of those who
    /// keep objects: so there another one has to have it.
    pub(super) async fn spread(
        &self,
        (id, len): (ContentId, u64),
        policy: Policy,
        manifest: Option<&Manifest>,
        pieces: &[(u64, ContentId)],
        ack: Ack,
        deadline: Deadline,
    ) -> Result<Vec<NodeId>, StorageError> {
        let wanted = match ack {
            Ack::Local if !self.counts_here() => 1,
            Ack::Local => return Ok(self.here().collect()),
            Ack::Copies(wanted) => wanted,
        };
        match manifest {
            None => self.spread_copies(id, len, policy, wanted, deadline).await,
            Some(manifest) => self.spread_shards(manifest, pieces, wanted, deadline).await,
        }
    }

    /// Whether what is put here stays here and is looked after: this node was not told to go, and is one of those who keep objects. One
    /// that knows of nobody is alone, and looks after itself.
    fn counts_here(&self) -> bool {
        let members = self.shared.members.load();
        !self.shared.is_draining() && (members.is_empty() || members.contains_key(&self.shared.me))
    }

    /// This node, if what it has counts.
    fn here(&self) -> impl Iterator<Item = NodeId> {
        let shared = &self.shared;
        (shared.store.is_durable() && self.counts_here()).then_some(shared.me).into_iter()
    }

    async fn spread_copies(
        &self,
        id: ContentId,
        len: u64,
        policy: Policy,
        wanted: u8,
        deadline: Deadline,
    ) -> Result<Vec<NodeId>, StorageError> {
        let shared = &self.shared;
        let mut durable_on: Vec<NodeId> = self.here().collect();
        let offer = Offer { id, len, claim: telling::told(shared, &id, &id) };
        let missing = usize::from(wanted).saturating_sub(durable_on.len());
        let targets = looking::targets(shared, &id, copies(policy).max(wanted).into());
        let pushes = targets.into_iter().filter(|node| *node != shared.me).map(|node| {
            let offer = &offer;
            Box::pin(async move { self.push(node, offer, deadline).await.then_some(node) })
                as BoxFuture<'_, _>
        });
        durable_on.extend(attempts::enough(pushes, missing, missing + 2, HEDGE).await);
        enough(durable_on, wanted)
    }

    /// Whether a node takes an object and has it durably by the deadline. One that cannot take it just now is asked again: it
    /// may be deleting what another claim left there.
    async fn push(&self, node: NodeId, offer: &Offer, deadline: Deadline) -> bool {
        let shared = &self.shared;
        let Some(peer) = shared.peer(&node) else { return false };
        let mut pause = AGAIN.start;
        loop {
            match shared.peers.push(&peer, offer, deadline).await {
                Ok(pushed) if pushed.is_durable => {
                    shared.hear(Heard::Held { node, piece: offer.id, holding: Holding::Good }).await;
                    return true;
                }
                Err(PeerError::Declined(Decline::Failed { reason })) if pause < deadline.remaining() => {
                    tracing::debug!(%node, reason, "it is not taken just now");
                }
                Ok(_) => {
                    tracing::debug!(%node, "it would not survive there");
                    return false;
                }
                Err(error) => {
                    tracing::debug!(%node, %error, "it was not taken");
                    return false;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN.end);
        }
    }

    async fn spread_shards(
        &self,
        manifest: &Manifest,
        shards: &[(u64, ContentId)],
        wanted: u8,
        deadline: Deadline,
    ) -> Result<Vec<NodeId>, StorageError> {
        let shared = &self.shared;
        let all = manifest.shards.len();
        let targets = looking::targets(shared, &manifest.object, all);
        let claim = telling::told(shared, &manifest.object, &manifest.shards[0]);
        // Those that no shard belongs on, for those who do not take theirs.
        let spare = AtomicUsize::new(all);
        let (targets, claim, spare) = (&targets, &claim, &spare);
        let pushes = manifest.shards.iter().enumerate().map(|(at, shard)| {
            let len = shards.iter().find(|(_, id)| id == shard).map_or(0, |(len, _)| *len);
            let offer = Offer { id: *shard, len, claim: claim.clone() };
            Box::pin(async move {
                let mut node = targets.get(at % targets.len().max(1)).copied();
                while let Some(to) = node {
                    if to == shared.me {
                        return shared.store.is_durable().then_some(to);
                    }
                    // Whoever is silent for that long is not waited for.
                    let patience = deadline.within(hands::patience(shared, len));
                    if self.push(to, &offer, patience).await {
                        return Some(to);
                    }
                    node = targets.get(spare.fetch_add(1, Ordering::Relaxed)).copied();
                }
                None
            }) as BoxFuture<'_, _>
        });
        let policy = Policy::Erasure { data: manifest.data, parity: manifest.parity() };
        let wanted = usize::from(wanted.min(policy.survives() + 1));
        let is_enough = |durable_on: &[NodeId]| policy.worth(durable_on) >= wanted;
        let durable_on = attempts::all_or_enough(pushes, is_enough, HEDGE).await;
        match policy.worth(&durable_on) {
            found if found < wanted => Err(StorageError::Unacknowledged { wanted, found }),
            _ => Ok(durable_on),
        }
    }
}

/// The pieces of an object that are here for a claim that is about to be said: they stay until this is dropped.
pub(super) struct Pieces<'a> {
    /// The length and the name of each.
    pub(super) ids: Vec<(u64, ContentId)>,
    _held: Vec<Staying<'a>>,
    _coming: Option<Coming<'a>>,
}

impl<'a> Pieces<'a> {
    /// Cuts an object that is here as a policy asks for it, and puts what comes of it; says what is to be claimed.
    pub(super) async fn cut(
        shared: &'a Shared,
        id: ContentId,
        policy: Policy,
        deadline: Deadline,
    ) -> Result<(Word, Option<Manifest>, Self), StorageError> {
        let (data, parity) = match policy {
            Policy::Copies(copies) => {
                let none = Pieces { ids: Vec::new(), _held: Vec::new(), _coming: None };
                return Ok((Word::Copies(copies), None, none));
            }
            Policy::Erasure { data, parity } => (data, parity),
        };
        let content = shared.store.get_bytes(id, hands::WHOLE_BYTES_MAX, deadline).await?;
        let (shards, manifest) = shards::cut(shared, content, (data, parity), deadline).await?;
        let manifest = manifest.ok_or(StorageError::NotFound { id })?;
        let pieces = Pieces::put(shared, shards, Some(&manifest), deadline).await?;
        Ok((Word::Erasure(manifest.coding()), Some(manifest), pieces))
    }

    /// Puts all pieces, after it is written down what they are.
    async fn put(
        shared: &'a Shared,
        pieces: Vec<Bytes>,
        manifest: Option<&Manifest>,
        deadline: Deadline,
    ) -> Result<Self, StorageError> {
        let _coming = match manifest {
            Some(manifest) => Some(shared.store.book().expect(manifest, deadline).await?),
            None => None,
        };
        let (mut ids, mut _held) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        for some in pieces.chunks(PUTS_AT_ONCE) {
            let put = |piece: &Bytes| {
                let piece = piece.clone();
                Box::pin(Staying::put(shared, piece, deadline))
                    as BoxFuture<'_, Result<Staying<'a>, StorageError>>
            };
            for (piece, held) in some.iter().zip(attempts::all(some.iter().map(put)).await) {
                let held = held?;
                ids.push((piece.len() as u64, held.piece));
                _held.push(held);
            }
        }
        Ok(Pieces { ids, _held, _coming })
    }
}

/// A piece that is here for a claim that nobody has heard yet. By the claims that there are it may be too much, or unwanted: while
/// this lives it is not deleted here.
pub(super) struct Staying<'a> {
    shared: &'a Shared,
    pub(super) piece: ContentId,
}

impl<'a> Staying<'a> {
    /// Of a piece that may or may not be here. Waits for who is about to delete it.
    pub(super) async fn begin(
        shared: &'a Shared,
        piece: ContentId,
        deadline: Deadline,
    ) -> Result<Self, StorageError> {
        const PAUSE: Duration = Duration::from_millis(5);
        while shared.promises.lock().hold(piece).is_err() {
            if deadline.has_passed() {
                return Err(StorageError::Timeout { op: "put" });
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Staying { shared, piece })
    }

    /// Puts a piece, and holds it: again if it went in between.
    pub(super) async fn put(
        shared: &'a Shared,
        content: Bytes,
        deadline: Deadline,
    ) -> Result<Self, StorageError> {
        let piece = shared.store.put_bytes(content.clone(), deadline).await?.id;
        let held = Staying::begin(shared, piece, deadline).await?;
        if !shared.store.has(piece, deadline).await? {
            shared.store.put_bytes(content, deadline).await?;
        }
        Ok(held)
    }
}

impl Drop for Staying<'_> {
    fn drop(&mut self) {
        self.shared.promises.lock().release(&self.piece);
    }
}

fn copies(policy: Policy) -> u8 {
    match policy {
        Policy::Copies(copies) => copies,
        Policy::Erasure { .. } => 0,
    }
}

fn enough(durable_on: Vec<NodeId>, wanted: u8) -> Result<Vec<NodeId>, StorageError> {
    if durable_on.len() < wanted.into() {
        return Err(StorageError::Unacknowledged { wanted: wanted.into(), found: durable_on.len() });
    }
    Ok(durable_on)
}
