//! Doing what was planned: copying, trimming and dropping here, and rebuilding by way of [`shards`](super::shards).

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use ron_core::{ContentId, Deadline, NodeId, net::BoxFuture};

use super::{
    HEDGE, Heard, KeepingEvent, Shared,
    attempts::enough,
    looking,
    shards::{check_manifests, from_shards, rebuild, recover, restore},
    telling, yielding,
};
use crate::{
    StorageError, Store,
    claims::Standing,
    logic::{
        plan::{Holding, Job, Outcome, Step},
        promises::PromiseError,
        words::{Kind, NOT_HERE, PROMISED, write_told},
    },
    peers::{Decline, Groups, Held, Offer, Pace, Peer, PeerError, Want},
    planted::{Bug, is_planted},
};

/// The longest object that is read into memory from other nodes at once.
pub(super) const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// What giving a piece to another node may take, and for each second more how many bytes have to have come.
const GIVING: Duration = Duration::from_secs(20);
const SLOWEST: u64 = 1 << 20;

/// Bytes that a repair asks for at a time: what is paid for and may come at once.
const PART_BYTES: u64 = 128 << 10;

/// How long a part may take that was paid for. Who is slower is not asked for the rest.
const PART: Duration = Duration::from_secs(5);

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    Peer(NodeId, ContentId, PeerError),
    Store(StorageError),
    /// It turned out that it must not be done.
    Refused(&'static str),
}

impl From<PromiseError> for Trouble {
    fn from(error: PromiseError) -> Self {
        Trouble::Refused(match error {
            PromiseError::Promised => "it is promised",
            PromiseError::Held => "it is about to be claimed",
            PromiseError::Read => "somebody reads it",
            PromiseError::Trimming | PromiseError::TooMany => "somebody is at it",
        })
    }
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        Trouble::Store(error)
    }
}

/// What moving so many bytes may take: the least rate there is, shared by all workers.
pub(super) fn patience(shared: &Shared, bytes: u64) -> Duration {
    let least = {
        let settings = shared.settings.load();
        yielding(&settings).least() / settings.workers.get() as u64
    };
    GIVING + Duration::from_secs(bytes / least.clamp(1, SLOWEST))
}

/// Does a step; says how it ended and how many bytes it moved.
pub(super) async fn perform(shared: &Shared, step: &Step) -> (Outcome, u64) {
    let deadline = Deadline::after(shared.settings.load().repair_timeout);
    let done = match &step.job {
        Job::Copy { piece, to } => copy(shared, step.object, *piece, *to, deadline).await,
        Job::Rebuild { manifest, missing, sources, is_whole } => {
            rebuild(shared, step.object, *manifest, missing, sources, *is_whole).await
        }
        Job::Restore { manifest, sources } => restore(shared, step.object, *manifest, sources).await,
        Job::Recover => recover(shared, step.object, deadline).await,
        Job::Trim { piece, provers } => trim(shared, step.object, *piece, provers, deadline).await,
        Job::Drop { pieces } => drop_all(shared, step.object, pieces, deadline).await,
    };
    // Who does not take what it is given may be passed over; who does not prove something is not asked for anything else instead.
    let gives = matches!(step.job, Job::Copy { .. } | Job::Rebuild { .. });
    let stuck = |node| if gives { Outcome::Stuck(node) } else { Outcome::Failed };
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
                // It would have taken it, if this node had given it.
                Decline::Source { .. } => (Outcome::Failed, 0),
                // It may the next time.
                Decline::Failed { .. } => (stuck(node), 0),
                _ => (Outcome::Declined(node), 0),
            }
        }
        Err(Trouble::Peer(node, piece, error)) => {
            tracing::debug!(%node, %piece, %error, object = %step.object, "a repair failed");
            if error.is_lie() {
                shared.tell(KeepingEvent::Blamed { node, piece });
                shared.hear(Heard::Held { node, piece, holding: Holding::Bad }).await;
            }
            (stuck(node), 0)
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

async fn copy(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    to: NodeId,
    deadline: Deadline,
) -> Result<u64, Trouble> {
    let stat = shared.store.stat(piece, deadline).await?;
    give(shared, object, piece, stat.len, to).await?;
    Ok(stat.len)
}

/// Gives a piece that is here to another node, within the rate, and reads back that it has it. That node has read all of it back
/// from its disk before it says so.
pub(super) async fn give(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    len: u64,
    to: NodeId,
) -> Result<(), Trouble> {
    let peer = shared.peer(&to).ok_or(Trouble::Refused("it is gone"))?;
    let offer = Offer { id: piece, len, claim: telling::told(shared, &object, &piece) };
    // Whoever is silent for that long is not waited for: others wait for this worker.
    let deadline = Deadline::after(patience(shared, len));
    let failed = |error| Trouble::Peer(to, piece, error);
    let pace = Arc::clone(&shared.pace) as Arc<dyn Pace>;
    let pushed = deadline.limit("push", shared.peers.push_paced(&peer, &offer, &pace, deadline)).await;
    pushed.map_err(PeerError::from).and_then(|pushed| pushed).map_err(failed)?;
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

/// The whole of a piece from another node, for whoever reads it; `None` if that does not give it.
pub(super) async fn fetch(
    shared: &Shared,
    node: NodeId,
    piece: ContentId,
    len_max: u64,
    deadline: Deadline,
) -> Option<Bytes> {
    let peer = shared.peer(&node).filter(|_| node != shared.me)?;
    let fetched = async {
        let mut content = BytesMut::new();
        fetch_part(shared, &peer, &Want::all(piece), len_max, &mut content, deadline).await?;
        Ok(content.freeze())
    };
    let fetched = deadline.limit("fetch", fetched).await.map_err(PeerError::from).and_then(|fetched| fetched);
    good_or_blamed(shared, node, piece, fetched).await
}

/// The whole of a piece of a known length from another node, for a repair: each part is paid for before it is asked for.
pub(super) async fn fetch_paced(
    shared: &Shared,
    node: NodeId,
    piece: ContentId,
    len: u64,
    deadline: Deadline,
) -> Option<Bytes> {
    let peer = shared.peer(&node).filter(|_| node != shared.me)?;
    let fetched = async {
        let mut content = BytesMut::new();
        let mut at = 0;
        while at < len {
            let end = len.min(at + PART_BYTES);
            shared.pace.take(end - at, deadline).await?;
            let want = Want::part(piece, vec![at..end]);
            let soon = deadline.within(PART);
            soon.limit("part", fetch_part(shared, &peer, &want, len, &mut content, soon)).await??;
            at = end;
        }
        Ok(content.freeze())
    };
    let fetched = deadline.limit("fetch", fetched).await.map_err(PeerError::from).and_then(|fetched| fetched);
    good_or_blamed(shared, node, piece, fetched).await
}

async fn fetch_part(
    shared: &Shared,
    peer: &Peer,
    want: &Want,
    len_max: u64,
    content: &mut BytesMut,
    deadline: Deadline,
) -> Result<(), PeerError> {
    let mut groups = Groups::new(want, len_max, shared.peers.get(peer, want, deadline).await?);
    while let Some(group) = groups.next().await? {
        content.extend_from_slice(&group.bytes);
    }
    Ok(())
}

/// What came; who lied about it is blamed.
async fn good_or_blamed(
    shared: &Shared,
    node: NodeId,
    piece: ContentId,
    fetched: Result<Bytes, PeerError>,
) -> Option<Bytes> {
    match fetched {
        Ok(content) => return Some(content),
        Err(PeerError::NotFound { .. }) => {}
        Err(error) if error.is_lie() => {
            shared.tell(KeepingEvent::Blamed { node, piece });
            shared.hear(Heard::Held { node, piece, holding: Holding::Bad }).await;
        }
        Err(error) => tracing::debug!(%node, %piece, %error, "it does not give it"),
    }
    None
}

/// Hears what a node knows about an object's claims.
pub(super) async fn learn(shared: &Shared, node: NodeId, object: &ContentId) {
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

/// A piece that is about to be deleted here, until this is dropped: also when whoever deletes it is cut off or panics.
pub(super) struct Going<'a> {
    shared: &'a Shared,
    piece: ContentId,
}

impl<'a> Going<'a> {
    /// One that is too many. Not if it was promised to be kept.
    pub(super) fn extra(shared: &'a Shared, piece: ContentId) -> Result<Self, PromiseError> {
        shared.promises.lock().begin(piece, shared.now())?;
        Ok(Going { shared, piece })
    }

    /// One that nobody wants.
    fn unwanted(shared: &'a Shared, piece: ContentId) -> Result<Self, PromiseError> {
        shared.promises.lock().begin_drop(piece, shared.now())?;
        Ok(Going { shared, piece })
    }
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.shared.promises.lock().end(&self.piece);
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
    // What was promised about a piece that nobody wants any more was about another policy: what is proven now is instead of it.
    let _going = match shared.store.book().wants(&piece) {
        true => Going::extra(shared, piece)?,
        false => Going::unwanted(shared, piece)?,
    };
    trim_promised(shared, object, piece, provers, deadline).await
}

async fn trim_promised(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    provers: &[(ContentId, NodeId)],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    // A damaged one is worth nothing, whatever its manifests say.
    let is_bad = shared.store.stat(piece, deadline).await?.is_quarantined;
    if piece == object && !is_bad && provers.iter().any(|(proved, _)| *proved != object) {
        check_manifests(shared, object, provers, deadline).await?;
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
        match answer.first().and_then(|word| word.first()).copied() {
            Some(PROMISED) => {}
            Some(NOT_HERE) => {
                shared.hear(Heard::Held { node: *prover, piece: *proved, holding: Holding::Absent }).await;
                return Err(Trouble::Refused("a prover does not have it"));
            }
            // It may have it all the same: nothing is to be mended.
            _ => return Err(Trouble::Refused("a prover does not promise")),
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
    check_premise(shared, object, piece, provers).map_err(Trouble::Refused)?;
    shared.store.remove(piece, deadline).await?;
    Ok(0)
}

/// Whether a piece is still too much. The claims may have become others since that was planned, or while others were asked; and shards
/// prove nothing about an object that is wanted in copies.
fn check_premise(
    shared: &Shared,
    object: ContentId,
    piece: ContentId,
    provers: &[(ContentId, NodeId)],
) -> Result<(), &'static str> {
    let Standing::Live(wanted) = shared.store.standing(&object) else {
        return Err("nobody claims it any more");
    };
    let copies = provers.iter().filter(|(proved, _)| *proved == object).count();
    let is_cut = wanted.copies == 0 && !wanted.codings.is_empty();
    if piece == object && !is_cut && copies < usize::from(wanted.copies).max(1) {
        return Err("its copies are wanted");
    }
    // One that nobody proves goes because nobody wants it, and what is proven is what is wanted instead.
    let book = shared.store.book();
    let is_own_shard = || {
        let manifests = book.about(&object).into_iter().filter_map(|(_, manifest)| manifest);
        manifests.flat_map(|manifest| manifest.shards).any(|shard| shard == object)
    };
    let is_whole = piece == object && !is_own_shard();
    let is_proven = is_whole || provers.iter().any(|(proved, _)| *proved == piece);
    if !is_proven && book.wants(&piece) {
        return Err("it is wanted again");
    }
    if !provers.iter().all(|(proved, _)| book.wants(proved)) {
        return Err("what was proven is not wanted any more");
    }
    Ok(())
}

async fn drop_all(
    shared: &Shared,
    object: ContentId,
    pieces: &[ContentId],
    deadline: Deadline,
) -> Result<u64, Trouble> {
    for piece in pieces {
        let _going = Going::unwanted(shared, *piece)?;
        // Asked once more, because a claim may have come since. One that comes from now on waits until this is over: whoever
        // puts the object again sees that it is about to go.
        if shared.store.book().wants(piece) || shared.store.book().wants(&object) {
            return Err(Trouble::Refused("somebody claims it"));
        }
        shared.store.remove(*piece, deadline).await?;
    }
    if is_planted(Bug::NoTombstone) {
        shared.store.book().forget(u64::MAX, |other| *other != object);
    }
    Ok(0)
}

/// Deletes an object that nobody claims because a caller said so. Who is about to claim it comes first, and who comes later waits
/// until this is over.
pub(super) async fn clear(
    shared: &Shared,
    store: &Store,
    id: ContentId,
    deadline: Deadline,
) -> Result<bool, StorageError> {
    match Going::unwanted(shared, id) {
        Ok(_going) => store.delete(id, deadline).await,
        Err(PromiseError::Held) => Err(StorageError::Claimed { id }),
        // It is being deleted already.
        Err(_) => Ok(true),
    }
}

/// An object from wherever it is. What is deleted is not looked for: a piece of it may lie around anywhere for a while.
pub(super) async fn read(shared: &Shared, id: ContentId, deadline: Deadline) -> Result<Bytes, StorageError> {
    if shared.store.standing(&id) == Standing::Deleted {
        return Err(StorageError::NotFound { id });
    }
    match shared.store.get_bytes(id, WHOLE_BYTES_MAX, deadline).await {
        Err(StorageError::NotFound { .. } | StorageError::Corrupt { .. }) => {}
        other => return other,
    }
    let has_shards = !shared.store.book().manifests_of(&id).is_empty();
    let standing = shared.store.standing(&id);
    let is_cut = matches!(&standing, Standing::Live(wanted) if wanted.copies == 0) && has_shards;
    // Where it is most likely to be first.
    for looks_for_whole in [!is_cut, is_cut] {
        let found = if looks_for_whole {
            let nodes = looking::targets(shared, &id, shared.members.load().len());
            let fetches = nodes
                .into_iter()
                .map(|node| Box::pin(fetch(shared, node, id, WHOLE_BYTES_MAX, deadline)) as BoxFuture<'_, _>);
            enough(fetches, 1, 3, HEDGE).await.pop()
        } else {
            from_shards(shared, id, deadline).await
        };
        if let Some(content) = found {
            return Ok(content);
        }
    }
    Err(StorageError::NotFound { id })
}
