//! Doing what was planned: copying, rebuilding, trimming, dropping.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ron_core::{ContentId, Deadline, NodeId, now};

use super::{Heard, KeepingEvent, Shared, looking, telling};
use crate::{
    StorageError,
    claims::Manifest,
    logic::{
        plan::{Holding, Job, Outcome, Step},
        words::{Kind, write_told},
    },
    peers::{Decline, Groups, Held, Offer, Peer, PeerError, Want},
};

/// The longest object that is read into memory from other nodes at once.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// What giving a piece to another node may take, and for each second more how many bytes have to have come.
const GIVING: Duration = Duration::from_secs(20);
const SLOWEST: u64 = 1 << 20;

/// Why something was not done.
#[derive(Debug)]
enum Trouble {
    Peer(NodeId, ContentId, PeerError),
    Store(StorageError),
    /// It turned out that it must not be done.
    Refused(&'static str),
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        Trouble::Store(error)
    }
}

/// Does a step; says how it ended and how many bytes it moved.
pub(super) async fn perform(shared: &Shared, step: &Step, deadline: Deadline) -> (Outcome, u64) {
    let done = match &step.job {
        Job::Copy { piece, to } => copy(shared, step.object, *piece, *to, deadline).await,
        Job::Rebuild { coding, missing, sources, is_whole } => {
            rebuild(shared, step.object, *coding, missing, sources, *is_whole, deadline).await
        }
        Job::Restore { coding, sources } => restore(shared, step.object, *coding, sources, deadline).await,
        Job::Trim { piece, provers } => trim(shared, step.object, *piece, provers, deadline).await,
        Job::Drop { pieces } => drop_all(shared, step.object, pieces, deadline).await,
    };
    match done {
        Ok(bytes) => (Outcome::Done, bytes),
        Err(Trouble::Peer(node, _, PeerError::Declined(decline))) => {
            tracing::debug!(%node, %decline, object = %step.object, "a repair was declined");
            match decline {
                // It knows more than we do.
                Decline::Deleted => {
                    learn(shared, node, &step.object).await;
                    (Outcome::Failed, 0)
                }
                // It would have taken it, and may the next time.
                Decline::Source { .. } | Decline::Failed { .. } => (Outcome::Failed, 0),
                _ => (Outcome::Declined(node), 0),
            }
        }
        Err(Trouble::Peer(node, piece, error)) => {
            tracing::debug!(%node, %piece, %error, object = %step.object, "a repair failed");
            if error.is_lie() {
                shared.events.publish(KeepingEvent::Blamed { node, piece });
                shared.hear(Heard::Held { node, piece, holding: Holding::Bad }).await;
            }
            (Outcome::Failed, 0)
        }
        Err(Trouble::Store(error)) => {
            tracing::debug!(%error, object = %step.object, "a repair failed");
            (Outcome::Failed, 0)
        }
        Err(Trouble::Refused(why)) => {
            tracing::debug!(why, object = %step.object, "a repair was called off");
            (Outcome::Failed, 0)
        }
    }
}

/// Waits until so many bytes are within the rate.
async fn pay(shared: &Shared, bytes: u64, deadline: Deadline) -> Result<(), Trouble> {
    let began = now();
    shared.pacer.take(bytes, deadline).await.map_err(StorageError::from)?;
    let waited = now().saturating_duration_since(began);
    shared.counts.wait.observe(waited.as_secs_f64());
    if !waited.is_zero() {
        shared.counts.paced.add(1);
    }
    Ok(())
}

async fn copy(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    to: NodeId,
    deadline: Deadline,
) -> Result<u64, Trouble> {
    let stat = shared.store.stat(piece, deadline).await?;
    pay(shared, stat.len, deadline).await?;
    give(shared, object, piece, stat.len, to, deadline).await?;
    Ok(stat.len)
}

/// Gives a piece that is here to another node, and reads back that it has it.
async fn give(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    len: u64,
    to: NodeId,
    deadline: Deadline,
) -> Result<(), Trouble> {
    let peer = shared.peer(&to).ok_or(Trouble::Refused("it is gone"))?;
    let offer = Offer { id: piece, len, claim: telling::told(shared, &object) };
    // Whoever is silent for that long is not waited for: others wait for this worker.
    let patience = GIVING + Duration::from_secs(len / SLOWEST);
    let deadline = if deadline.remaining() > patience { Deadline::after(patience) } else { deadline };
    let failed = |error| Trouble::Peer(to, piece, error);
    shared.peers.push(&peer, &offer, deadline).await.map_err(failed)?;
    read_back(shared, &peer, piece, len, deadline).await.map_err(failed)?;
    shared.hear(Heard::Held { node: to, piece, holding: Holding::Good }).await;
    Ok(())
}

/// Reads a group of a piece from another node's disk, with proof: one that nobody could know beforehand.
async fn read_back(
    shared: &Shared,
    peer: &Peer,
    piece: ContentId,
    len: u64,
    deadline: Deadline,
) -> Result<(), PeerError> {
    let at = shared.draw() % len.max(1);
    let range = at..(at + 1).min(len);
    let want = Want::part(piece, if range.is_empty() { Vec::new() } else { vec![range] });
    let mut groups = Groups::new(&want, len, shared.peers.get(peer, &want, deadline).await?);
    while groups.next().await?.is_some() {}
    Ok(())
}

/// The whole of a piece from another node.
async fn fetch(
    shared: &Shared,
    peer: &Peer,
    piece: ContentId,
    len_max: u64,
    deadline: Deadline,
) -> Result<Bytes, PeerError> {
    let want = Want::all(piece);
    let mut groups = Groups::new(&want, len_max, shared.peers.get(peer, &want, deadline).await?);
    let mut content = BytesMut::new();
    while let Some(group) = groups.next().await? {
        content.extend_from_slice(&group.bytes);
    }
    Ok(content.freeze())
}

/// Hears what a node knows about an object's claims.
async fn learn(shared: &Shared, node: NodeId, object: &ContentId) {
    let Some(peer) = shared.peer(&node) else { return };
    let told: Vec<Bytes> = shared
        .store
        .book()
        .about(object)
        .iter()
        .map(|(claim, manifest)| write_told(claim, manifest.as_ref()))
        .collect();
    if let Ok(newer) = looking::ask(shared, &peer, Kind::Tell, &told).await {
        if telling::hear(shared, &newer).await {
            shared.hear(Heard::Claims).await;
        }
    }
}

async fn trim(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    provers: &[(ContentId, NodeId)],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    if provers.is_empty() {
        return Err(Trouble::Refused("nobody proves anything"));
    }
    shared.promises.lock().begin(piece, shared.now()).map_err(|_| Trouble::Refused("it is promised"))?;
    let trimmed = trim_promised(shared, object, piece, provers, deadline).await;
    shared.promises.lock().end(&piece);
    trimmed
}

async fn trim_promised(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    provers: &[(ContentId, NodeId)],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    if piece == object && provers.iter().any(|(proved, _)| *proved != object) {
        check_manifests(shared, object, deadline).await?;
    }
    let book = shared.store.book();
    let told: Vec<Bytes> =
        book.about(&object).iter().map(|(claim, manifest)| write_told(claim, manifest.as_ref())).collect();
    let name = |id: &ContentId| Bytes::copy_from_slice(id.as_bytes());
    for (proved, prover) in provers {
        let peer = shared.peer(prover).ok_or(Trouble::Refused("a prover is gone"))?;
        let failed = |error| Trouble::Peer(*prover, *proved, error);
        let mut items = vec![name(proved), name(&object)];
        items.extend(told.iter().cloned());
        let answer = looking::ask(shared, &peer, Kind::Promise, &items).await.map_err(failed)?;
        if answer.first().is_none_or(|word| word[..] != [1]) {
            shared.hear(Heard::Held { node: *prover, piece: *proved, holding: Holding::Absent }).await;
            return Err(Trouble::Refused("a prover does not promise"));
        }
        let held = shared.peers.have(&peer, &[*proved], deadline).await.map_err(failed)?;
        let Some(Held::Complete(len)) = held.held.first().copied() else {
            shared.hear(Heard::Held { node: *prover, piece: *proved, holding: Holding::Absent }).await;
            return Err(Trouble::Refused("a prover does not have it"));
        };
        read_back(shared, &peer, *proved, len, deadline).await.map_err(failed)?;
    }
    if !shared.promises.lock().may_delete(&piece, shared.now()) {
        return Err(Trouble::Refused("it took too long"));
    }
    shared.store.remove(piece, deadline).await?;
    Ok(0)
}

async fn drop_all(
    shared: &Shared,
    object: ContentId,
    pieces: &[ContentId],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    for piece in pieces {
        // Asked once more, because a claim may have come since.
        if shared.store.book().wants(piece) || shared.store.book().wants(&object) {
            return Err(Trouble::Refused("somebody claims it"));
        }
        shared.store.remove(*piece, deadline).await?;
    }
    Ok(0)
}

/// An object from wherever it is.
pub(super) async fn read(shared: &Shared, id: ContentId, deadline: Deadline) -> Result<Bytes, StorageError> {
    match shared.store.get_bytes(id, WHOLE_BYTES_MAX, deadline).await {
        Err(StorageError::NotFound { .. } | StorageError::Corrupt { .. }) => {}
        other => return other,
    }
    let members = shared.members.load();
    for node in looking::targets(shared, &id, members.len()) {
        let Some(member) = members.get(&node).filter(|_| node != shared.me) else { continue };
        match fetch(shared, &member.peer, id, WHOLE_BYTES_MAX, deadline).await {
            Ok(content) => return Ok(content),
            Err(PeerError::NotFound { .. }) => {}
            Err(error) if error.is_lie() => {
                shared.events.publish(KeepingEvent::Blamed { node, piece: id });
            }
            Err(error) => tracing::debug!(%node, %error, "it does not give it"),
        }
    }
    for manifest in shared.store.book().manifests_of(&id) {
        let shards = gather(shared, &manifest, None, deadline).await;
        match join(&manifest, &shards) {
            Ok(content) => return Ok(content),
            Err(error) => tracing::debug!(%id, %error, "its shards do not make it"),
        }
    }
    Err(StorageError::NotFound { id })
}

/// Shards of an object, as many as it takes: from here, from those who are said to have them, and else from whoever has.
async fn gather(
    shared: &Shared,
    manifest: &Manifest,
    sources: Option<&[(u8, NodeId)]>,
    deadline: Deadline,
) -> Vec<(u8, Bytes)> {
    let len = manifest.layout().shard_len();
    let mut found: Vec<(u8, Bytes)> = Vec::new();
    let members = shared.members.load();
    for (index, shard) in (0_u8..).zip(&manifest.shards) {
        if found.len() >= usize::from(manifest.data) {
            break;
        }
        if let Ok(here) = shared.store.get_bytes(*shard, len, deadline).await {
            found.push((index, here));
            continue;
        }
        let said = |(of, node): &(u8, NodeId)| (*of == index).then_some(*node);
        let nodes = match sources {
            Some(sources) => sources.iter().filter_map(said).collect(),
            None => looking::targets(shared, &manifest.object, members.len()),
        };
        for node in nodes {
            let Some(member) = members.get(&node).filter(|_| node != shared.me) else { continue };
            match fetch(shared, &member.peer, *shard, len, deadline).await {
                Ok(content) => {
                    found.push((index, content));
                    break;
                }
                Err(error) if error.is_lie() => {
                    shared.events.publish(KeepingEvent::Blamed { node, piece: *shard });
                }
                Err(error) => tracing::debug!(%node, %error, "it does not give a shard"),
            }
        }
    }
    found
}

fn manifest_of(shared: &Shared, object: &ContentId, coding: usize) -> Option<Manifest> {
    shared.store.book().manifests_of(object).into_iter().nth(coding)
}

const NO_MANIFEST: Trouble = Trouble::Refused("its manifest is not known");

#[cfg(feature = "erasure")]
mod coding {
    use super::*;
    use crate::logic::shards::{ReedSolomon, ShardError, decode, encode};

    /// Shards in pieces that are put one by one, and what says which they are.
    pub(in super::super) fn cut(
        content: &[u8],
        data: u8,
        parity: u8,
    ) -> Result<(Vec<Bytes>, Option<Manifest>), StorageError> {
        match encode(content, data, parity, &ReedSolomon) {
            Ok((manifest, mut shards)) => {
                shards.push(manifest.encode().into());
                Ok((shards, Some(manifest)))
            }
            Err(ShardError::TooLarge { .. }) => Err(StorageError::TooLarge {
                key: "coded bytes",
                limit: crate::logic::shards::CODED_BYTES_MAX,
            }),
            Err(error) => Err(StorageError::Claim { reason: error.to_string() }),
        }
    }

    pub(super) fn join(manifest: &Manifest, shards: &[(u8, Bytes)]) -> Result<Bytes, StorageError> {
        decode(manifest, shards, &ReedSolomon)
            .map_err(|error| StorageError::Source { message: error.to_string() })
    }
}

#[cfg(not(feature = "erasure"))]
mod coding {
    use super::*;

    const WITHOUT: &str = "this program is built without the feature `erasure`";

    pub(in super::super) fn cut(
        _: &[u8],
        _: u8,
        _: u8,
    ) -> Result<(Vec<Bytes>, Option<Manifest>), StorageError> {
        Err(StorageError::Claim { reason: WITHOUT.to_owned() })
    }

    pub(super) fn join(_: &Manifest, _: &[(u8, Bytes)]) -> Result<Bytes, StorageError> {
        Err(StorageError::Source { message: WITHOUT.to_owned() })
    }
}

pub(super) use coding::cut;
use coding::join;

/// Whether the manifests of an object that is here are what it would be cut into: before the object goes, nobody has to be
/// believed.
async fn check_manifests(shared: &Shared, object: ContentId, deadline: Deadline) -> Result<(), Trouble> {
    let content = shared.store.get_bytes(object, WHOLE_BYTES_MAX, deadline).await?;
    for manifest in shared.store.book().manifests_of(&object) {
        let (_, ours) = cut(&content, manifest.data, manifest.parity())?;
        if ours.as_ref() != Some(&manifest) {
            return Err(Trouble::Refused("its manifest is not that of the object"));
        }
    }
    Ok(())
}

async fn restore(
    shared: &Shared,
    object: ContentId,
    coding: usize,
    sources: &[(u8, NodeId)],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    let manifest = manifest_of(shared, &object, coding).ok_or(NO_MANIFEST)?;
    pay(shared, manifest.len, deadline).await?;
    let shards = gather(shared, &manifest, Some(sources), deadline).await;
    let content = join(&manifest, &shards)?;
    let stored = shared.store.put_bytes(content, deadline).await?;
    Ok(stored.len)
}

async fn rebuild(
    shared: &Shared,
    object: ContentId,
    coding: usize,
    missing: &[(u8, NodeId)],
    sources: &[(u8, NodeId)],
    is_whole: bool,
    deadline: Deadline,
) -> Result<u64, Trouble> {
    let manifest = manifest_of(shared, &object, coding).ok_or(NO_MANIFEST)?;
    let len = manifest.layout().shard_len();
    let reads = if is_whole { 0 } else { u64::from(manifest.data) * len };
    let bytes = reads + missing.len() as u64 * len;
    pay(shared, bytes, deadline).await?;
    let content = match is_whole {
        true => shared.store.get_bytes(object, WHOLE_BYTES_MAX, deadline).await?,
        false => join(&manifest, &gather(shared, &manifest, Some(sources), deadline).await)?,
    };
    let (shards, ours) = cut(&content, manifest.data, manifest.parity())?;
    if ours.as_ref() != Some(&manifest) {
        return Err(Trouble::Refused("its manifest is not that of the object"));
    }
    for (index, to) in missing {
        let piece = manifest.shards[usize::from(*index)];
        let shard = shards[usize::from(*index)].clone();
        if *to == shared.me {
            shared.store.put_bytes(shard, deadline).await?;
            continue;
        }
        if shared.store.has(piece, deadline).await? {
            give(shared, object, piece, len, *to, deadline).await?;
            continue;
        }
        // It is here for a moment, to be served from; nobody is promised anything about it.
        let begun = shared.promises.lock().begin(piece, shared.now());
        begun.map_err(|_| Trouble::Refused("it is promised"))?;
        let given = async {
            shared.store.put_bytes(shard, deadline).await?;
            let given = give(shared, object, piece, len, *to, deadline).await;
            shared.store.remove(piece, deadline).await?;
            given
        }
        .await;
        shared.promises.lock().end(&piece);
        given?;
    }
    Ok(bytes)
}
