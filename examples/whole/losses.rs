//! What is lost of objects that many nodes keep, and what can be read of them, while machines and disks go and come.
//!
//! # When a policy holds
//!
//! An object in `n` copies survives `n - 1` lost disks, one in `k + m` shards the loss of `m` shards. What is lost is counted
//! from when the object was last seen whole, with everything its policy asks for on disks that are not lost, whether their
//! machines are on or not. A disk is taken away only if no object loses more than it survives; then nothing may be lost, and
//! that is checked against what is on the other disks, then and at every look. A bit that flips may be in any object of that disk, so
//! until that disk was scrubbed nothing on it counts: what was there is counted as lost, and what came later as well whenever
//! another disk may go.
//!
//! What one node alone has heard, a delete or another policy, goes with the disk of that node: it is not taken away then.
//!
//! # When an object can be read
//!
//! If a machine that is up has it, it can be read there, however the lines are; if several have enough shards, and can talk, it can be
//! read on any. Some objects are tried at every look, and each that somebody could not read is tried again at every look until it can
//! be read. The seconds in which it was there and could not be read are counted, and more than [`BLIND_MAX`] are a broken promise.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::{ContentId, Deadline};

use crate::{
    node::Host,
    shared::{Fate, Object, Shared, State, soon},
    verdict::Verdict,
};

/// How long an object may be there and nobody can read it: a crowd or a slow disk takes a while. Three looks in a row are more.
const BLIND_MAX: Duration = Duration::from_secs(15);

/// How long one node may take for what it has itself. Another may have it as well.
const SHORT: Duration = Duration::from_secs(5);

/// Objects that are read at each look, besides those that could not be read before.
const PICKS: usize = 24;

/// What is known of the disks of servers, besides what those that are up say.
#[derive(Default)]
pub(crate) struct Disks {
    /// What was on the disk of each node that is off.
    left: BTreeMap<u8, BTreeSet<ContentId>>,
    /// Nodes on whose disks a bit flipped, each with what is counted as lost there.
    rotten: BTreeMap<u8, BTreeSet<ContentId>>,
}

/// What is known of reading an object.
#[derive(Default)]
pub(crate) struct Sight {
    /// Whether somebody could not read it since somebody could.
    is_suspect: bool,
    /// When it was last tried in vain, if it was there all the time since.
    failed: Option<Duration>,
    /// How long it has been there and nobody could read it.
    blind: Duration,
    /// Whether it was on no disk when all of them were last looked at.
    is_gone: bool,
}

/// On how many disks each piece is.
pub(crate) fn tally<'a>(
    disks: impl IntoIterator<Item = &'a BTreeSet<ContentId>>,
) -> BTreeMap<ContentId, usize> {
    let mut tally = BTreeMap::new();
    for piece in disks.into_iter().flatten() {
        *tally.entry(*piece).or_default() += 1;
    }
    tally
}

/// Everything that is in a node's store, and good as far as the store knows; nothing if it does not say.
async fn listed(host: &Host, verdict: &Verdict) -> Option<BTreeSet<ContentId>> {
    let (mut all, mut after) = (BTreeSet::new(), None);
    loop {
        let page = match host.store.list(after, 1000, soon()).await {
            Ok(page) => page,
            Err(error) => {
                verdict.refused("list", &error);
                return None;
            }
        };
        all.extend(page.objects.iter().filter(|stat| !stat.is_quarantined).map(|stat| stat.id));
        after = page.next;
        if after.is_none() {
            return Some(all);
        }
    }
}

impl Shared {
    /// A node is about to go, and its disk stays.
    pub(crate) async fn leaving(&self, number: u8) {
        if let Some(host) = self.hosts.get(number) {
            let left = listed(&host, &self.verdict).await.unwrap_or_default();
            self.state().disks.left.insert(number, left);
        }
    }

    /// A node is back.
    pub(crate) fn came(&self, number: u8) {
        self.state().disks.left.remove(&number);
    }

    /// All of a node's disk was read again: it counts, but for what was found damaged.
    pub(crate) fn scrubbed(&self, number: u8, damaged: &[ContentId]) {
        let mut state = self.state();
        let counted = state.disks.rotten.remove(&number).unwrap_or_default();
        let found: BTreeSet<&ContentId> = damaged.iter().filter(|piece| !counted.contains(piece)).collect();
        for (id, object) in &mut state.objects {
            object.losses += object.pieces(id).filter(|piece| found.contains(piece)).count();
        }
    }

    /// What is on the disks of servers, also on those that are rotten.
    async fn disks(&self) -> BTreeMap<u8, BTreeSet<ContentId>> {
        let mut disks = self.state().disks.left.clone();
        for host in self.hosts.servers() {
            if let Some(listed) = listed(&host, &self.verdict).await {
                disks.insert(host.number, listed);
            }
        }
        disks
    }

    /// What is on the disks of servers, but those that are rotten.
    pub(crate) async fn holdings(&self) -> BTreeMap<u8, BTreeSet<ContentId>> {
        let rotten = self.state().disks.rotten.clone();
        let mut holdings = self.disks().await;
        holdings.retain(|number, _| !rotten.contains_key(number));
        holdings
    }

    /// Looks at every object: which are whole, whether any is gone, and whether what is there can be read. `can_talk` if all nodes
    /// can, which reading out of shards needs.
    pub(crate) async fn look(&self, rng: &mut fastrand::Rng, can_talk: bool) {
        let disks = self.disks().await;
        self.weigh(&disks);
        let rotten = self.state().disks.rotten.clone();
        let mut up = disks;
        up.retain(|number, _| self.hosts.get(*number).is_some() && !rotten.contains_key(number));
        let there = tally(up.values());
        let mut asked: BTreeSet<ContentId> = (0..PICKS).filter_map(|_| self.pick(rng)).collect();
        {
            let mut state = self.state();
            let has = |piece: &ContentId| there.contains_key(piece);
            let owed = state.objects.iter_mut().filter(|(_, object)| object.fate == Fate::Owed);
            let (mut on, mut off) = (0, 0);
            for (id, object) in owed {
                match object.is_there(id, &has) {
                    true => on += 1,
                    // Nobody could read it in this time: it does not count.
                    false => (off, object.sight.failed) = (off + 1, None),
                }
                if object.sight.is_suspect {
                    asked.insert(*id);
                }
            }
            self.verdict.count("looked at all objects");
            self.verdict.add("owed, and on machines that are up", on);
            self.verdict.add("owed, and on machines that are off or in doubt", off);
        }
        for id in asked {
            self.try_read(&id, &up, can_talk, rng).await;
        }
    }

    /// What is whole has lost nothing; what nobody has enough of, on whichever disk, is lost.
    fn weigh(&self, disks: &BTreeMap<u8, BTreeSet<ContentId>>) {
        // A node that does not say what it has may have anything.
        let is_all = self.hosts.servers().iter().all(|host| disks.contains_key(&host.number));
        let mut state = self.state();
        let State { objects, disks: Disks { rotten, .. }, .. } = &mut *state;
        let all = tally(disks.values());
        let good =
            tally(disks.iter().filter(|(number, _)| !rotten.contains_key(number)).map(|(_, disk)| disk));
        for (id, object) in objects {
            let count = |piece: &ContentId| good.get(piece).copied().unwrap_or(0);
            if object.is_whole(id, &count) {
                object.losses = 0;
                // What it has besides, on rotten disks, is not lost any more, and may be all it has once a surplus is dropped.
                for counted in rotten.values_mut() {
                    for piece in object.pieces(id) {
                        counted.remove(piece);
                    }
                }
            }
            if !object.is_unsure && object.has_all(object.policy, id, &count) {
                object.other = None;
            }
            let is_gone = object.fate == Fate::Owed && !object.is_there(id, &|piece| all.contains_key(piece));
            // A piece may be on its way from a disk that is not yet looked at to one that is no more: so twice.
            let was_gone = std::mem::replace(&mut object.sight.is_gone, is_gone && is_all);
            self.verdict.promised(!(is_gone && is_all && was_gone), || {
                format!(
                    "{id} ({}) is on no disks any more, on or off, and was not when they were last looked at",
                    object.policy
                )
            });
        }
    }

    /// Reads an object from nodes that are up and have it, or out of shards that they have.
    async fn try_read(
        &self,
        id: &ContentId,
        up: &BTreeMap<u8, BTreeSet<ContentId>>,
        can_talk: bool,
        rng: &mut fastrand::Rng,
    ) {
        let has = |piece: &ContentId| up.values().any(|pieces| pieces.contains(piece));
        let Some(is_there) = self.state().objects.get(id).map(|object| object.is_there(id, &has)) else {
            return;
        };
        let holders: Vec<Host> = up
            .iter()
            .filter(|(_, pieces)| pieces.contains(id))
            .filter_map(|(number, _)| self.hosts.get(*number))
            .collect();
        if holders.is_empty() && !(is_there && can_talk) {
            // Nobody could read it in this time: it does not count.
            if let Some(object) = self.state().objects.get_mut(id) {
                object.sight.failed = None;
            }
            return;
        }
        let first = rng.usize(..);
        for at in 0..holders.len() {
            let host = &holders[(first % holders.len() + at) % holders.len()];
            match host.store.get_bytes(*id, u64::MAX, Deadline::after(SHORT)).await {
                Ok(bytes) => {
                    self.judge(id, &bytes, "its holder");
                    return self.was_read(id);
                }
                Err(error) => self.verdict.refused("read", &error),
            }
        }
        let mut servers = self.hosts.servers();
        rng.shuffle(&mut servers);
        for keeping in servers.iter().filter(|_| can_talk).filter_map(|host| host.keeping.as_ref()).take(3) {
            match keeping.get(*id, soon()).await {
                Ok(bytes) => {
                    self.judge(id, &bytes, "its shards");
                    return self.was_read(id);
                }
                Err(error) => self.verdict.refused("read", &error),
            }
        }
        self.was_blind(id, holders.len());
    }

    /// Somebody read an object.
    pub(crate) fn was_read(&self, id: &ContentId) {
        if let Some(object) = self.state().objects.get_mut(id) {
            object.sight = Sight { is_gone: object.sight.is_gone, ..Sight::default() };
        }
        self.verdict.count("readable");
    }

    /// Somebody could not read an object: it is tried at every look, until it can be read.
    pub(crate) fn suspect(&self, id: &ContentId) {
        if let Some(object) = self.state().objects.get_mut(id) {
            object.sight.is_suspect = true;
        }
    }

    /// An object could not be read, although it is there.
    fn was_blind(&self, id: &ContentId, holders: usize) {
        let now = self.verdict.elapsed();
        let mut state = self.state();
        let Some(object) = state.objects.get_mut(id).filter(|object| object.fate == Fate::Owed) else {
            return;
        };
        let sight = &mut object.sight;
        sight.is_suspect = true;
        sight.blind += sight.failed.replace(now).map_or(Duration::ZERO, |failed| now.saturating_sub(failed));
        self.verdict.count("unreadable for now");
        self.verdict.say(|| {
            let so_far = format!(", for {:.1} s now", sight.blind.as_secs_f64());
            format!("{id} cannot be read{}", if sight.blind.is_zero() { "" } else { &so_far })
        });
        self.verdict.promised(sight.blind <= BLIND_MAX, || {
            format!(
                "{id} ({}) could not be read for {:.1} s though it is there, {holders} copies of it",
                object.policy,
                sight.blind.as_secs_f64()
            )
        });
        if sight.blind > BLIND_MAX {
            *sight = Sight::default();
        }
    }

    /// Whether the disk of a node can be lost and every object survives it. If so, that is counted.
    pub(crate) async fn may_lose(&self, number: u8) -> bool {
        self.lose(number).await.is_some()
    }

    /// Whether a bit can flip on the disk of a node and every object survives it. If so, nothing counts that is there.
    pub(crate) async fn may_rot(&self, number: u8) -> bool {
        let Some(lost) = self.lose(number).await else { return false };
        self.state().disks.rotten.entry(number).or_default().extend(lost);
        true
    }

    /// Counts what is on the disk of a node as lost and says what it is, if every object survives that.
    async fn lose(&self, number: u8) -> Option<BTreeSet<ContentId>> {
        let mut disks = self.disks().await;
        let servers = self.hosts.servers();
        let mut state = self.state();
        for (rotten, counted) in &state.disks.rotten {
            if let Some(pieces) = disks.get_mut(rotten) {
                pieces.retain(|piece| !counted.contains(piece));
            }
        }
        let here = disks.remove(&number).unwrap_or_default();
        disks.retain(|other, _| state.disks.rotten.contains_key(other));
        let mut hit = Vec::new();
        for (id, object) in &state.objects {
            let on =
                |disk: &BTreeSet<ContentId>| object.pieces(id).filter(|piece| disk.contains(piece)).count();
            let lost = on(&here);
            // On other disks that are rotten, and not counted yet: it came after the bit had flipped, or the object was whole since.
            let doubted: usize = disks.values().map(on).sum();
            // One whose delete was refused may have to be there as well.
            let is_owed = matches!(object.fate, Fate::Owed | Fate::Doubted);
            if lost > 0 && is_owed && object.losses + lost + doubted > object.survives() {
                return None;
            }
            // The last word about it that is known here: what nobody else has heard goes with this disk.
            let said = |host: &Host| host.store.claims(id).iter().map(|claim| claim.version).max();
            let here = servers.iter().find(|host| host.number == number).and_then(said);
            let has_heard = |host: &Host| host.number != number && said(host) >= here;
            if here.is_some() && !servers.iter().any(has_heard) {
                return None;
            }
            if lost > 0 {
                hit.push((*id, lost));
            }
        }
        for (id, lost) in hit {
            if let Some(object) = state.objects.get_mut(&id) {
                object.losses += lost;
            }
        }
        Some(here)
    }

    /// The disk of a node is lost. Everything that is owed can be made from the others.
    pub(crate) async fn lost(&self, number: u8) {
        self.state().disks.left.insert(number, BTreeSet::new());
        self.state().disks.rotten.remove(&number);
        let holdings = self.holdings().await;
        let state = self.state();
        for (id, object) in state.objects.iter().filter(|(_, object)| object.fate == Fate::Owed) {
            let has = |piece: &ContentId| holdings.values().any(|pieces| pieces.contains(piece));
            self.verdict.promised(object.is_there(id, &has), || {
                let Object { policy, losses, .. } = object;
                format!(
                    "{id} ({policy}) is gone with the disk of {number}, {losses} losses since it was whole"
                )
            });
        }
    }
}
