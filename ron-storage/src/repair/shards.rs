//! Objects that are in shards: gathering enough of them, putting an object together, cutting it again.

use bytes::Bytes;
use ron_core::{ContentId, Deadline, NodeId, net::BoxFuture};

use super::{
    HEDGE, Shared,
    attempts::enough,
    hands::{Going, Trouble, WHOLE_BYTES_MAX, fetch, fetch_paced, give, patience},
    looking,
};
use crate::{
    StorageError, Stored,
    claims::{Manifest, Standing},
};

/// An object out of shards, if enough of them are to be had. Those of a policy that is over are there until the next is met.
pub(super) async fn from_shards(shared: &Shared, id: ContentId, deadline: Deadline) -> Option<Bytes> {
    let book = shared.store.book();
    let past = match book.standing(&id) {
        Standing::Live(_) => book.past_of(&id),
        Standing::Deleted | Standing::Unclaimed => Vec::new(),
    };
    for manifest in book.manifests_of(&id).into_iter().chain(past) {
        let shards = gather(shared, &manifest, None, deadline).await;
        match join(shared, &manifest, shards, deadline).await {
            Ok(content) => return Some(content),
            Err(error) => tracing::debug!(%id, %error, "its shards do not make it"),
        }
    }
    None
}

/// Shards of an object, as many as it takes: from here, from those who are said to have them, and else from whoever has. For a
/// repair, whose sources are said, within the rate.
async fn gather(
    shared: &Shared,
    manifest: &Manifest,
    sources: Option<&[(u8, NodeId)]>,
    deadline: Deadline,
) -> Vec<(u8, Bytes)> {
    let len = manifest.layout().shard_len();
    let members = shared.members.load().len();
    // Who waits for the rate is not stuck, and more shards would only wait for it too; who is stuck has a time for each part.
    let is_paced = sources.is_some();
    let hedge = if is_paced { Deadline::LONGEST } else { HEDGE };
    let shard_of = |(index, shard): (u8, ContentId)| async move {
        if let Ok(here) = shared.store.get_bytes(shard, len, deadline).await {
            return Some((index, here));
        }
        let said = |(of, node): &(u8, NodeId)| (*of == index).then_some(*node);
        let nodes: Vec<NodeId> = match sources {
            Some(sources) => sources.iter().filter_map(said).collect(),
            None => {
                // Where it belongs first.
                let mut nodes = looking::targets(shared, &manifest.object, members);
                let home = usize::from(index) % nodes.len().max(1);
                nodes.rotate_left(home);
                nodes
            }
        };
        // Whoever is silent for that long is not waited for: there are other shards.
        let deadline = deadline.within(patience(shared, len));
        let fetches = nodes.into_iter().map(|node| {
            Box::pin(async move {
                match is_paced {
                    true => fetch_paced(shared, node, shard, len, deadline).await,
                    false => fetch(shared, node, shard, len, deadline).await,
                }
            }) as BoxFuture<'_, _>
        });
        enough(fetches, 1, 2, hedge).await.pop().map(|content| (index, content))
    };
    let all = (0_u8..).zip(manifest.shards.iter().copied());
    let needed = usize::from(manifest.data);
    enough(all.map(|one| Box::pin(shard_of(one)) as BoxFuture<'_, _>), needed, needed + 2, hedge).await
}

/// One of the manifests that an object is wanted in. What was planned may be over.
fn manifest_of(shared: &Shared, object: &ContentId, id: ContentId) -> Option<Manifest> {
    let book = shared.store.book();
    book.manifests_of(object).into_iter().find(|manifest| manifest.id() == id && book.wants(&id))
}

const UNWANTED: Trouble = Trouble::Refused("nobody wants it by this manifest");

#[cfg(feature = "erasure")]
mod coding {
    use super::*;
    use crate::logic::shards::{ReedSolomon, ShardError, decode, encode};

    /// Shards in pieces that are put one by one, and what says which they are. Computed where it holds up nobody.
    pub(in crate::repair) async fn cut(
        shared: &Shared,
        content: Bytes,
        (data, parity): (u8, u8),
        deadline: Deadline,
    ) -> Result<(Vec<Bytes>, Option<Manifest>), StorageError> {
        let encode = move || encode(&content, data, parity, &ReedSolomon);
        match shared.spawner.blocking("encode", deadline, encode).await? {
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

    pub(super) async fn join(
        shared: &Shared,
        manifest: &Manifest,
        shards: Vec<(u8, Bytes)>,
        deadline: Deadline,
    ) -> Result<Bytes, StorageError> {
        let manifest = manifest.clone();
        let decode = move || decode(&manifest, &shards, &ReedSolomon);
        let decoded = shared.spawner.blocking("decode", deadline, decode).await?;
        decoded.map_err(|error| StorageError::Source { message: error.to_string() })
    }
}

#[cfg(not(feature = "erasure"))]
#[allow(clippy::unused_async, reason = "as the one that computes")]
mod coding {
    use super::*;

    const WITHOUT: &str = "this program is built without the feature `erasure`";

    pub(in crate::repair) async fn cut(
        _: &Shared,
        _: Bytes,
        _: (u8, u8),
        _: Deadline,
    ) -> Result<(Vec<Bytes>, Option<Manifest>), StorageError> {
        Err(StorageError::Claim { reason: WITHOUT.to_owned() })
    }

    pub(super) async fn join(
        _: &Shared,
        _: &Manifest,
        _: Vec<(u8, Bytes)>,
        _: Deadline,
    ) -> Result<Bytes, StorageError> {
        Err(StorageError::Source { message: WITHOUT.to_owned() })
    }
}

pub(super) use coding::cut;
use coding::join;

/// Whether the manifests of an object that is here are what it would be cut into, and the shards that nobody else proves are
/// here and whole: before the object goes, nobody has to be believed.
pub(super) async fn check_manifests(
    shared: &Shared,
    object: ContentId,
    provers: &[(ContentId, NodeId)],
    deadline: Deadline,
) -> Result<(), Trouble> {
    let content = shared.store.get_bytes(object, WHOLE_BYTES_MAX, deadline).await?;
    for manifest in shared.store.book().manifests_of(&object) {
        let numbers = (manifest.data, manifest.parity());
        let (_, ours) = cut(shared, content.clone(), numbers, deadline).await?;
        if ours.as_ref() != Some(&manifest) {
            return Err(Trouble::Refused("its manifest is not that of the object"));
        }
        for shard in &manifest.shards {
            if !provers.iter().any(|(proved, _)| proved == shard) {
                shared.store.get_bytes(*shard, WHOLE_BYTES_MAX, deadline).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn restore(
    shared: &Shared,
    object: ContentId,
    manifest: ContentId,
    sources: &[(u8, NodeId)],
) -> Result<u64, Trouble> {
    let manifest = manifest_of(shared, &object, manifest).ok_or(UNWANTED)?;
    let deadline = Deadline::after(shared.settings.load().repair_timeout + patience(shared, manifest.len));
    let shards = gather(shared, &manifest, Some(sources), deadline).await;
    let content = join(shared, &manifest, shards, deadline).await?;
    let stored = put_here(shared, content, deadline).await?;
    Ok(stored.len)
}

/// Puts an object together of which nothing is left but shards of policies that are over.
pub(super) async fn recover(shared: &Shared, object: ContentId, deadline: Deadline) -> Result<u64, Trouble> {
    let content = from_shards(shared, object, deadline).await;
    let content = content.ok_or(Trouble::Refused("too few shards are to be had"))?;
    Ok(put_here(shared, content, deadline).await?.len)
}

/// Puts what was made, and reads all of it back: what the disk returns now is what is counted on.
async fn put_here(shared: &Shared, content: Bytes, deadline: Deadline) -> Result<Stored, Trouble> {
    let stored = shared.store.put_bytes(content, deadline).await?;
    let mut reader = shared.store.get(stored.id, .., deadline).await?;
    while reader.next().await?.is_some() {}
    Ok(stored)
}

pub(super) async fn rebuild(
    shared: &Shared,
    object: ContentId,
    manifest: ContentId,
    missing: &[(u8, NodeId)],
    sources: &[(u8, NodeId)],
    is_whole: bool,
) -> Result<u64, Trouble> {
    let manifest = manifest_of(shared, &object, manifest).ok_or(UNWANTED)?;
    let len = manifest.layout().shard_len();
    let reads = if is_whole { 0 } else { u64::from(manifest.data) * len };
    let bytes = reads + missing.len() as u64 * len;
    let deadline = Deadline::after(shared.settings.load().repair_timeout + patience(shared, bytes));
    let content = match is_whole {
        true => shared.store.get_bytes(object, WHOLE_BYTES_MAX, deadline).await?,
        false => {
            let shards = gather(shared, &manifest, Some(sources), deadline).await;
            join(shared, &manifest, shards, deadline).await?
        }
    };
    let (shards, ours) = cut(shared, content, (manifest.data, manifest.parity()), deadline).await?;
    if ours.as_ref() != Some(&manifest) {
        return Err(Trouble::Refused("its manifest is not that of the object"));
    }
    // What is wanted may be known by a claim that did not get to the disk.
    shared.store.book().write_manifest(&manifest, deadline).await?;
    // One who does not take its shard does not keep the others from getting theirs.
    let mut trouble = None;
    for (index, to) in missing {
        let piece = manifest.shards[usize::from(*index)];
        let shard = shards[usize::from(*index)].clone();
        if *to == shared.me {
            if let Err(failed) = put_here(shared, shard, deadline).await {
                trouble = trouble.or(Some(failed));
            }
            continue;
        }
        if let Err(failed) = give_made(shared, object, (piece, shard), *to, deadline).await {
            trouble = trouble.or(Some(failed));
        }
    }
    trouble.map_or(Ok(bytes), Err)
}

/// Gives a shard that was just made to another node.
async fn give_made(
    shared: &Shared,
    object: ContentId,
    (piece, shard): (ContentId, Bytes),
    to: NodeId,
    deadline: Deadline,
) -> Result<(), Trouble> {
    let len = shard.len() as u64;
    if shared.store.has(piece, deadline).await? {
        return give(shared, object, piece, len, to).await;
    }
    // It is here for a moment, to be served from; nobody is promised anything about it, and nobody's is taken meanwhile.
    let _going = Going::extra(shared, piece)?;
    let stored = shared.store.put_bytes(shard, deadline).await?;
    let given = give(shared, object, piece, len, to).await;
    if !stored.existed {
        shared.store.remove(piece, deadline).await?;
    }
    given
}
