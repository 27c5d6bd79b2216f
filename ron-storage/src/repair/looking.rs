//! What other nodes have and know, asked of each in turn; and who there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Metrics, NodeId, Ratio, Retry, RetryBudget, Stop, net::BoxFuture, now};

use super::{Heard, KeepingEvent, Member, Nodes, Shared, attempts::first, telling};
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

/// How long others wait for a node that is being looked at. Then they are looked at as well: whoever has always more to say must not
/// keep a node from noticing that others are gone.
const OVERTAKEN: Duration = Duration::from_secs(10);

/// What looking at one node may take in all. What was heard until then stays; the rest comes the next time.
const LOOKING: Duration = Duration::from_secs(600);

/// Nodes that are looked at at once, if all but one are slow.
const AT_ONCE: usize = 8;

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
    let mut news = shared.members.watch();
    let (open, busy) = (Vec::new(), BTreeSet::new());
    let mut looks = Looks { shared, open, busy, failures: BTreeMap::new(), silent: BTreeMap::new() };
    let (mut has_looked, mut round_at) = (false, now());
    loop {
        let members = Arc::clone(news.get());
        looks.failures.retain(|id, _| members.contains_key(id));
        looks.silent.retain(|id, _| members.contains_key(id));
        let is_round = round_at <= now();
        let round = async {
            looks.round(&members, is_round).await;
            // Nothing is planned before all is known the first time, as far as anybody says it in time.
            while !has_looked && !looks.open.is_empty() {
                looks.go_on().await;
            }
        };
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = round => {}
        }
        if !members.is_empty() {
            has_looked = true;
            looks.shared.hear(Heard::Round).await;
        }
        if is_round {
            // Soon after the start nobody knows anybody yet.
            let tick = looks.shared.settings.load().tick;
            round_at = now() + if members.is_empty() { tick.min(ASKING) } else { tick };
        }
        let looked = now();
        loop {
            let soon = looks.silent.values().min().map_or(round_at, |pause| (looked + *pause).min(round_at));
            tokio::select! {
                biased;
                () = stop.requested() => return,
                // Somebody new is looked at now: before that, it is given nothing.
                () = news.changed() => {
                    news.get();
                    round_at = now();
                    break;
                }
                () = looks.go_on(), if !looks.open.is_empty() => {}
                () = tokio::time::sleep_until(soon) => break,
            }
        }
    }
}

/// The looks that are under way: one, and those that it overtook.
struct Looks {
    shared: Arc<Shared>,
    open: Vec<BoxFuture<'static, Option<(NodeId, u32)>>>,
    busy: BTreeSet<NodeId>,
    /// How often each did not answer, since it last did.
    failures: BTreeMap<NodeId, u32>,
    /// Those that have never answered, and how soon they are looked at again.
    silent: BTreeMap<NodeId, Duration>,
}

impl Looks {
    /// Begins to look at each, one after the other: what one has told need not be asked of the next. Who takes long is overtaken.
    /// Between rounds only those are looked at that have never answered.
    async fn round(&mut self, members: &BTreeMap<NodeId, Member>, is_round: bool) {
        for (id, member) in members {
            while self.open.len() >= AT_ONCE {
                self.go_on().await;
            }
            let is_due = is_round || self.silent.contains_key(id);
            if *id == self.shared.me || !is_due || !self.busy.insert(*id) {
                continue;
            }
            let failed = self.failures.get(id).copied();
            let look = look_one(Arc::clone(&self.shared), *id, member.clone(), failed, is_round);
            self.open.push(Box::pin(look));
            let patience = Deadline::after(OVERTAKEN);
            while self.busy.contains(id) {
                if patience.limit("look", self.go_on()).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Goes on with those that are under way until one is done.
    async fn go_on(&mut self) {
        let Some((id, failed)) = first(&mut self.open).await else { return };
        self.busy.remove(&id);
        let is_first = self.failures.insert(id, failed).is_none();
        if failed == 0 {
            self.silent.remove(&id);
        } else if is_first {
            self.silent.insert(id, SOON);
        } else if let Some(pause) = self.silent.get_mut(&id) {
            *pause = (*pause * 2).min(self.shared.settings.load().tick);
        }
    }
}

/// Looks at a node that has not answered so often, or was never looked at; says how often it has not now. Between rounds a
/// silence does not count: who is looked at more often would be given up sooner.
async fn look_one(
    shared: Arc<Shared>,
    id: NodeId,
    member: Member,
    failed: Option<u32>,
    is_round: bool,
) -> Option<(NodeId, u32)> {
    match look_at(&shared, &member).await {
        Ok(flags) => {
            shared.counts.looked.add(1);
            if failed.is_some_and(|failed| failed >= FAILURES) {
                shared.tell(KeepingEvent::Presence { node: id, is_up: true });
            }
            shared.hear(Heard::Looked(node_of(id, &member, flags))).await;
            let compared = compare(&shared, id, &member.peer);
            let compared = Deadline::after(LOOKING).limit("compare", compared).await;
            if let Err(error) = compared.map_err(PeerError::from).and_then(|compared| compared) {
                tracing::debug!(node = %id, %error, "the comparison ended early");
            }
            Some((id, 0))
        }
        Err(error) => {
            shared.counts.unlooked.add(1);
            tracing::debug!(node = %id, %error, "it does not answer");
            let is_first = failed.is_none();
            if let (Some(failed), false) = (failed, is_round) {
                return Some((id, failed));
            }
            let failed = failed.unwrap_or(0) + 1;
            if failed == FAILURES {
                shared.tell(KeepingEvent::Presence { node: id, is_up: false });
            }
            if failed >= FAILURES || is_first {
                let mut node = node_of(id, &member, IS_DURABLE);
                node.presence = Presence::Away;
                shared.hear(Heard::Looked(node)).await;
            }
            Some((id, failed))
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
