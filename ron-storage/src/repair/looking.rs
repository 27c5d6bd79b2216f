//! What other nodes have and know, asked of each in turn; and who there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Metrics, NodeId, Ratio, Retry, RetryBudget, Stop, now};

use super::{Heard, KeepingEvent, Member, Nodes, Shared, telling};
use crate::{
    StorageError,
    logic::{
        inventory::Comparison,
        place::{Candidate, place as place_object},
        plan::{Node, Presence},
        wire::{read_parts, write_question},
        words::{self, IS_DRAINING, IS_DURABLE, Kind, TOLD_MAX},
    },
    peers::{Difference, Peer, PeerError},
};

/// What asking the host may take.
const ASKING: Duration = Duration::from_secs(1);

/// What one question to another node may take.
const QUESTION: Duration = Duration::from_secs(5);

/// Parts of one comparison: a million objects that all differ take sixty thousand.
const PARTS_MAX: u64 = 1 << 17;

/// Looks that fail before a node counts as away. One lost answer is not a lost node.
const FAILURES: u32 = 2;

/// How soon a node that has not answered yet is looked at again: twice as long each time.
const SOON: Duration = Duration::from_secs(1);

/// Asks the host who keeps objects, again and again.
pub(super) async fn place(shared: Arc<Shared>, nodes: Arc<dyn Nodes>, metrics: Metrics, stop: Stop) {
    let budget = RetryBudget::new(Ratio::percent(20));
    let retry = Retry::idempotent("storage.nodes", &budget, &metrics);
    loop {
        let asked = Deadline::after(ASKING);
        let answer: Result<Vec<Member>, StorageError> = tokio::select! {
            biased;
            () = stop.requested() => return,
            answer = retry.run(asked, || nodes.nodes(asked)) => answer,
        };
        match answer {
            Ok(members) => {
                let members: BTreeMap<NodeId, Member> =
                    members.into_iter().map(|member| (member.peer.contact.id, member)).collect();
                if *shared.members.load() != members {
                    shared.members.replace(members);
                    shared.hear(Heard::Members).await;
                }
            }
            Err(error) => tracing::warn!(%error, "nobody says who keeps objects; the last answer counts"),
        }
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = tokio::time::sleep(shared.settings.load().refresh) => {}
        }
    }
}

/// Looks at every other node, every tick; and sooner at those that have not answered yet. Who has just joined may not have heard yet
/// that this node belongs too.
pub(super) async fn look(shared: Arc<Shared>, stop: Stop) {
    let mut failures: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut known: BTreeSet<NodeId> = BTreeSet::new();
    // Those that have never answered, and how soon they are looked at again.
    let mut silent: BTreeMap<NodeId, Duration> = BTreeMap::new();
    let mut round_at = now();
    let mut news = shared.members.watch();
    loop {
        let members = Arc::clone(news.get());
        failures.retain(|id, _| members.contains_key(id));
        known.retain(|id| members.contains_key(id));
        silent.retain(|id, _| members.contains_key(id));
        let tick = shared.settings.load().tick;
        let is_round = round_at <= now();
        for (id, member) in members.iter() {
            if *id == shared.me || !(is_round || silent.contains_key(id)) {
                continue;
            }
            let looked = tokio::select! {
                biased;
                () = stop.requested() => return,
                looked = look_at(&shared, member) => looked,
            };
            let is_first = known.insert(*id);
            match looked {
                Ok(flags) => {
                    silent.remove(id);
                    shared.counts.looked.add(1);
                    if failures.insert(*id, 0).is_some_and(|failed| failed >= FAILURES) {
                        shared.tell(KeepingEvent::Presence { node: *id, is_up: true });
                    }
                    let node = node_of(*id, member, flags);
                    shared.hear(Heard::Looked(node)).await;
                    if let Err(error) = compare(&shared, *id, &member.peer).await {
                        tracing::debug!(node = %id, %error, "the comparison ended early");
                    }
                }
                Err(error) => {
                    shared.counts.unlooked.add(1);
                    tracing::debug!(node = %id, %error, "it does not answer");
                    if is_first {
                        silent.insert(*id, SOON);
                    } else if let Some(pause) = silent.get_mut(id) {
                        *pause = (*pause * 2).min(tick);
                    }
                    if !is_first && !is_round {
                        continue;
                    }
                    let failed = failures.entry(*id).or_default();
                    *failed += 1;
                    if *failed == FAILURES {
                        shared.tell(KeepingEvent::Presence { node: *id, is_up: false });
                    }
                    if *failed >= FAILURES || is_first {
                        let mut node = node_of(*id, member, IS_DURABLE);
                        node.presence = Presence::Away;
                        shared.hear(Heard::Looked(node)).await;
                    }
                }
            }
        }
        if !members.is_empty() {
            shared.hear(Heard::Round).await;
        }
        if is_round {
            // Soon after the start nobody knows anybody yet.
            round_at = now() + if members.is_empty() { tick.min(ASKING) } else { tick };
        }
        let soon = silent.values().min().map_or(round_at, |pause| (now() + *pause).min(round_at));
        tokio::select! {
            biased;
            () = stop.requested() => return,
            // Somebody new is looked at now: before that, it is given nothing.
            () = news.changed() => {
                news.get();
                round_at = now();
            }
            () = tokio::time::sleep_until(soon) => {}
        }
    }
}

fn node_of(id: NodeId, member: &Member, flags: u8) -> Node {
    Node {
        id,
        zone: member.zone,
        weight: member.weight,
        presence: if flags & IS_DRAINING == 0 { Presence::Up } else { Presence::Draining },
        is_durable: flags & IS_DURABLE != 0,
    }
}

/// This node, as it would describe itself.
pub(super) fn myself(shared: &Shared) -> Option<Node> {
    let member = shared.members.load().get(&shared.me).cloned()?;
    Some(node_of(shared.me, &member, telling::flags(shared)))
}

async fn look_at(shared: &Shared, member: &Member) -> Result<u8, PeerError> {
    let answer = ask(shared, &member.peer, Kind::Look, &[]).await?;
    answer.first().and_then(|flags| flags.first()).copied().ok_or(PeerError::Foreign { what: "look" })
}

/// Asks another node something about claims.
pub(super) async fn ask(
    shared: &Shared,
    peer: &Peer,
    kind: Kind,
    items: &[Bytes],
) -> Result<Vec<Bytes>, PeerError> {
    let body = words::write(kind, items);
    let answer = shared.peers.claims(peer, body, Deadline::after(QUESTION)).await?;
    let (of, items) = words::read(&answer).map_err(|_| PeerError::Foreign { what: "claims" })?;
    (of == kind).then_some(items).ok_or(PeerError::Foreign { what: "claims" })
}

/// Lets both know the claims that either knows.
pub(super) async fn exchange_claims(shared: &Shared, peer: &Peer) -> Result<(), PeerError> {
    let book = shared.store.book();
    let found = compare_claims(shared, peer).await?;
    let mut is_new = false;
    for some in found.theirs.chunks(TOLD_MAX) {
        let names: Vec<Bytes> = some.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
        let told = ask(shared, peer, Kind::Ask, &names).await?;
        is_new |= telling::hear(shared, &told).await;
    }
    for some in found.ours.chunks(TOLD_MAX) {
        let claims = book.with_digests(some);
        let told: Vec<Bytes> =
            claims.iter().map(|(claim, manifest)| words::write_told(claim, manifest.as_ref())).collect();
        let newer = ask(shared, peer, Kind::Tell, &told).await?;
        is_new |= telling::hear(shared, &newer).await;
    }
    if is_new {
        shared.hear(Heard::Claims).await;
    }
    Ok(())
}

async fn compare(shared: &Shared, id: NodeId, peer: &Peer) -> Result<(), PeerError> {
    // Claims first: what is deleted must not be copied once more.
    exchange_claims(shared, peer).await?;
    let began = shared.now();
    let mut comparison = Comparison::new(PARTS_MAX);
    let mut found = Difference::default();
    let lied = |_| PeerError::Foreign { what: "inventory" };
    while let Some(question) = comparison.poll(&shared.store).map_err(lied)? {
        let answer = shared.peers.inventory(peer, &question, Deadline::after(QUESTION)).await?;
        let more = comparison.on_answer(&shared.store, &answer).map_err(lied)?;
        found.theirs.extend(more.theirs);
        found.ours.extend(more.ours);
    }
    let Difference { ours, theirs } = found;
    shared.hear(Heard::Inventory { node: id, began, ours, theirs }).await;
    Ok(())
}

async fn compare_claims(shared: &Shared, peer: &Peer) -> Result<Difference, PeerError> {
    const LIED: PeerError = PeerError::Foreign { what: "comparison" };
    let book = shared.store.book();
    let mut comparison = Comparison::new(PARTS_MAX);
    let mut found = Difference::default();
    while let Some(question) = comparison.poll(&**book).map_err(|_| LIED)? {
        let answer = ask(shared, peer, Kind::Compare, &[write_question(&question)]).await?;
        let parts = read_parts(answer.first().ok_or(LIED)?).map_err(|_| LIED)?;
        let more = comparison.on_answer(&**book, &parts).map_err(|_| LIED)?;
        found.theirs.extend(more.theirs);
        found.ours.extend(more.ours);
    }
    Ok(found)
}

/// Where an object belongs, as far as anybody knows who does not plan: of the nodes that the host names, whoever answers.
pub(super) fn targets(shared: &Shared, object: &ContentId, count: usize) -> Vec<NodeId> {
    let is_draining = shared.is_draining();
    let members = shared.members.load();
    let candidates: Vec<Candidate> = members
        .iter()
        .filter(|(id, _)| **id != shared.me || !is_draining)
        .map(|(id, member)| Candidate { id: *id, zone: member.zone, weight: member.weight })
        .collect();
    // The best first, and then the rest, for those who do not answer. Who is known not to comes last: asking it takes time.
    let mut placed = place_object(&candidates, object, candidates.len().min(count + FAILURES as usize));
    let status = shared.status.load();
    let is_away = |id: &NodeId| {
        let node = status.nodes.iter().find(|node| node.contact.id == *id);
        node.is_some_and(|node| node.presence == Some(Presence::Away))
    };
    if placed.iter().any(is_away) {
        placed = place_object(&candidates, object, candidates.len());
        placed.sort_by_key(is_away);
    }
    placed
}
