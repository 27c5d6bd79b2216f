//! The checker of what nodes keep together: every object that was acknowledged can be read, right, while its policy holds,
//! and what was deleted stays deleted.
//!
//! # When a policy holds
//!
//! An object in `n` copies survives `n - 1` lost disks, one in `k + m` shards the loss of `m` shards. What is lost is counted
//! from when the object was last seen whole, with everything its policy asks for on disks that are not lost, whether their
//! machines are on or not. A disk is taken away only if no object loses more than it survives; then nothing may be lost, and
//! that is checked against what is on the other disks. A bit that flips may be in any object of that disk, so until that
//! disk was scrubbed nothing on it counts: what was there is counted as lost, and what came later as well whenever another disk may go.
//!
//! What one node alone has heard, a delete or another policy, goes with the disk of that node: it is not taken away then.
//!
//! # Which word is the later
//!
//! The version of a word is above what the node has heard, and at least its clock. A node that has not heard the last word and
//! whose clock is behind says an earlier one, and says so: its version is below the last. Then either may hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, net::Identity};
use ron_storage::{
    StorageError,
    claims::{Policy, RETENTION_MIN, Standing},
    logic::shards::{ReedSolomon, encode},
    repair::Ack,
};

use crate::{
    node::{Host, Hosts, Role},
    verdict::Verdict,
};

/// How long one call of a user may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Looks in a row at which an object could not be read although some node that is up has it.
const BLIND_MAX: u32 = 4;

/// What is known of an object's fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It was put, and nobody said that this worked.
    Unknown,
    /// It was acknowledged.
    Owed,
    /// Its delete was asked for, and nobody said that this worked.
    Doubted,
    /// Its delete was acknowledged.
    Deleted,
}

struct Object {
    len: usize,
    salt: u64,
    owner: u8,
    fate: Fate,
    /// The latest version of its claim that was acknowledged.
    version: u64,
    /// The policy it has, and the one it may have besides.
    policy: Policy,
    other: Option<Policy>,
    /// Whether nobody knows which.
    is_unsure: bool,
    /// Whether somebody is about to change or delete it: of two words at once, nobody knows which is the later.
    is_spoken_of: bool,
    /// Where the delete was said.
    deleted_by: Option<u8>,
    /// Shards, by policy, for each that it ever had.
    shards: BTreeMap<(u8, u8), Vec<ContentId>>,
    /// Pieces on disks that were lost since it was last whole.
    losses: usize,
    /// Looks in a row at which it could not be read.
    blind: u32,
}

impl Object {
    fn content(&self) -> Bytes {
        content(self.salt, self.len)
    }

    /// What it may be made from: itself, and shards of every policy it ever had.
    fn pieces<'a>(&'a self, id: &'a ContentId) -> impl Iterator<Item = &'a ContentId> {
        self.shards.values().flatten().chain([id])
    }

    /// How much of it may be lost.
    fn survives(&self) -> usize {
        let of = |policy: &Policy| match policy {
            Policy::Copies(copies) => usize::from(*copies).saturating_sub(1),
            Policy::Erasure { parity, .. } => usize::from(*parity),
        };
        self.other.iter().map(of).fold(of(&self.policy), usize::min)
    }

    /// Whether it can be made from what there is.
    fn is_there(&self, id: &ContentId, has: &impl Fn(&ContentId) -> bool) -> bool {
        let enough = |((data, _), shards): (&(u8, u8), &Vec<ContentId>)| {
            shards.iter().filter(|shard| has(shard)).count() >= usize::from(*data)
        };
        has(id) || self.shards.iter().any(enough)
    }

    /// Whether everything is there that a policy asks for.
    fn has_all(&self, policy: Policy, id: &ContentId, count: &impl Fn(&ContentId) -> usize) -> bool {
        match policy {
            Policy::Copies(copies) => count(id) >= usize::from(copies),
            Policy::Erasure { data, parity } => {
                let shards = self.shards.get(&(data, parity));
                shards.is_some_and(|shards| shards.iter().all(|shard| count(shard) > 0))
            }
        }
    }

    /// Whether everything is there that one of its policies asks for.
    fn is_whole(&self, id: &ContentId, count: &impl Fn(&ContentId) -> usize) -> bool {
        self.has_all(self.policy, id, count)
            || self.other.is_some_and(|policy| self.has_all(policy, id, count))
    }
}

/// Bytes that look random, the same for the same salt and length.
fn content(salt: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(salt).fill(&mut bytes);
    bytes.into()
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ContentId, Object>,
    /// What was on the disk of each node that is off.
    left: BTreeMap<u8, BTreeSet<ContentId>>,
    /// Nodes on whose disks a bit flipped, each with what is counted as lost there.
    rotten: BTreeMap<u8, BTreeSet<ContentId>>,
}

/// What was put on many nodes. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Shared {
    hosts: Hosts,
    verdict: Verdict,
    state: Arc<Mutex<State>>,
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn owner(number: u8) -> Identity {
    Identity::from_seed(&[200 + number % 4; 32])
}

fn some_policy(rng: &mut fastrand::Rng) -> Policy {
    match rng.u8(0..10) {
        0..5 => Policy::Copies(2),
        5..7 => Policy::Copies(3),
        7..9 => Policy::Erasure { data: 2, parity: 1 },
        _ => Policy::Erasure { data: 4, parity: 2 },
    }
}

fn ack(policy: Policy) -> Ack {
    match policy {
        Policy::Copies(copies) => Ack::Copies(copies),
        Policy::Erasure { data, parity } => Ack::Copies(data + parity),
    }
}

fn shards(content: &Bytes, policy: Policy) -> Option<((u8, u8), Vec<ContentId>)> {
    let Policy::Erasure { data, parity } = policy else { return None };
    let (manifest, _) = encode(content, data, parity, &ReedSolomon).expect("a geometry that there is");
    Some(((data, parity), manifest.shards))
}

/// Everything that is in a node's store, and good as far as the store knows.
async fn listed(host: &Host) -> Result<BTreeSet<ContentId>, StorageError> {
    let (mut all, mut after) = (BTreeSet::new(), None);
    loop {
        let page = host.store.list(after, 1000, soon()).await?;
        all.extend(page.objects.iter().filter(|stat| !stat.is_quarantined).map(|stat| stat.id));
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

impl Shared {
    pub(crate) fn new(hosts: &Hosts, verdict: &Verdict) -> Self {
        Shared { hosts: hosts.clone(), verdict: verdict.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user puts something.
    pub(crate) async fn put(&self, host: &Host, rng: &mut fastrand::Rng) -> Option<ContentId> {
        let keeping = host.keeping.as_ref()?;
        let (salt, policy, by) = (rng.u64(..), some_policy(rng), rng.u8(..));
        let len = if rng.u8(..8) == 0 { rng.usize(5_000..150_000) } else { rng.usize(1..4000) };
        let content = content(salt, len);
        let id = ContentId::of(&content);
        let object = Object {
            len,
            salt,
            owner: by,
            fate: Fate::Unknown,
            version: 0,
            policy,
            other: None,
            is_unsure: false,
            is_spoken_of: false,
            deleted_by: None,
            shards: shards(&content, policy).into_iter().collect(),
            losses: 0,
            blind: 0,
        };
        self.state().objects.insert(id, object);
        let put = keeping.put(content, policy, &owner(by), ack(policy), soon()).await;
        match put {
            Ok(placed) => {
                self.verdict.count("put");
                self.verdict.promised(placed.id == id, || format!("{id} was put as {}", placed.id));
                if let Some(object) = self.state().objects.get_mut(&id) {
                    (object.fate, object.version) = (Fate::Owed, placed.version);
                }
                Some(id)
            }
            Err(error) => {
                self.verdict.refused("put", &error);
                None
            }
        }
    }

    /// One that is owed.
    pub(crate) fn pick(&self, rng: &mut fastrand::Rng) -> Option<ContentId> {
        let state = self.state();
        let owed: Vec<&ContentId> =
            state.objects.iter().filter(|(_, object)| object.fate == Fate::Owed).map(|(id, _)| id).collect();
        (!owed.is_empty()).then(|| *owed[rng.usize(..owed.len())])
    }

    /// What an object should be.
    pub(crate) fn content_of(&self, id: &ContentId) -> Option<Bytes> {
        self.state().objects.get(id).map(Object::content)
    }

    /// Holds what somebody was given against what it should be.
    pub(crate) fn judge(&self, id: &ContentId, got: &Bytes, by: &str) {
        let is_right = self.content_of(id).is_none_or(|content| content == *got);
        self.verdict.count("read");
        self.verdict.promised(is_right, || format!("wrong bytes of {id} from {by}"));
    }

    /// A user reads something, wherever it is.
    pub(crate) async fn get(&self, host: &Host, rng: &mut fastrand::Rng) {
        let (Some(id), Some(keeping)) = (self.pick(rng), &host.keeping) else { return };
        match keeping.get(id, soon()).await {
            Ok(bytes) => self.judge(&id, &bytes, "keeping"),
            Err(error) => self.verdict.refused("get", &error),
        }
    }

    /// A user fetches something from whoever the DHT says has it.
    pub(crate) async fn fetch(&self, host: &Host, rng: &mut fastrand::Rng) {
        let Some(id) = self.pick(rng) else { return };
        let providers = host.finder.find(id, Deadline::after(Duration::from_secs(5))).await;
        match host.fetcher.fetch(id, &providers, soon()).await {
            Ok(_) => match host.store.get_bytes(id, u64::MAX, soon()).await {
                Ok(bytes) => {
                    self.verdict.count("fetched");
                    self.judge(&id, &bytes, "a fetch");
                }
                Err(error) => self.verdict.refused("read back", &error),
            },
            Err(error) => self.verdict.refused("fetch", &error),
        }
        // Clients fetch it again another time.
        if host.role == Role::Client {
            let _ = host.store.delete(id, soon()).await;
        }
    }

    /// A user deletes something.
    pub(crate) async fn delete(&self, host: &Host, rng: &mut fastrand::Rng) {
        let (Some(id), Some(keeping)) = (self.pick(rng), &host.keeping) else { return };
        let by = {
            let mut state = self.state();
            let Some(object) = state.objects.get_mut(&id).filter(|object| !object.is_spoken_of) else {
                return;
            };
            (object.fate, object.is_spoken_of) = (Fate::Doubted, true);
            object.owner
        };
        match keeping.delete(id, &owner(by), Duration::from_secs(RETENTION_MIN), soon()).await {
            Ok(version) => {
                self.verdict.count("delete");
                self.verdict.say(|| format!("{id} was deleted on {}", host.number));
                if let Some(object) = self.state().objects.get_mut(&id) {
                    object.deleted_by = Some(host.number);
                    if version > object.version && !object.is_unsure {
                        object.fate = Fate::Deleted;
                    } else {
                        self.verdict.count("delete by a clock that is behind");
                    }
                }
            }
            Err(error) => self.verdict.refused("delete", &error),
        }
    }

    /// A user wants something kept in another way.
    pub(crate) async fn change(&self, host: &Host, rng: &mut fastrand::Rng) {
        let (Some(id), Some(keeping)) = (self.pick(rng), &host.keeping) else { return };
        let policy = some_policy(rng);
        let by = {
            let mut state = self.state();
            let is_free = |object: &&mut Object| object.other.is_none() && !object.is_spoken_of;
            let Some(object) = state.objects.get_mut(&id).filter(is_free) else { return };
            object.is_spoken_of = true;
            let shards = shards(&object.content(), policy);
            object.shards.extend(shards);
            (object.other, object.is_unsure) = (Some(policy), true);
            object.owner
        };
        let changed = keeping.set_policy(id, policy, &owner(by), soon()).await;
        if let Some(object) = self.state().objects.get_mut(&id) {
            object.is_spoken_of = false;
            if changed.as_ref().is_ok_and(|version| *version >= object.version) {
                // The old one counts until everything is as the new one says.
                (object.other, object.is_unsure) = (Some(object.policy), false);
                object.policy = policy;
            }
            object.version = object.version.max(changed.as_ref().map_or(0, |version| *version));
        }
        match changed {
            Ok(_) => self.verdict.count("policy changed"),
            // Either may hold from now on.
            Err(error) => self.verdict.refused("policy", &error),
        }
    }

    /// A node is about to go, and its disk stays.
    pub(crate) async fn leaving(&self, number: u8) {
        if let Some(host) = self.hosts.get(number) {
            let left = listed(&host).await.unwrap_or_default();
            self.state().left.insert(number, left);
        }
    }

    /// A node is back.
    pub(crate) fn came(&self, number: u8) {
        self.state().left.remove(&number);
    }

    /// All of a node's disk was read again: it counts, but for what was found damaged.
    pub(crate) fn scrubbed(&self, number: u8, damaged: &[ContentId]) {
        let mut state = self.state();
        let counted = state.rotten.remove(&number).unwrap_or_default();
        let found: BTreeSet<&ContentId> = damaged.iter().filter(|piece| !counted.contains(piece)).collect();
        for (id, object) in &mut state.objects {
            object.losses += object.pieces(id).filter(|piece| found.contains(piece)).count();
        }
    }

    /// What is on the disks of servers, also on those that are rotten.
    async fn disks(&self) -> BTreeMap<u8, BTreeSet<ContentId>> {
        let mut disks = self.state().left.clone();
        for host in self.hosts.servers() {
            if let Ok(listed) = listed(&host).await {
                disks.insert(host.number, listed);
            }
        }
        disks
    }

    /// What is on the disks of servers, but those that are rotten.
    async fn holdings(&self) -> BTreeMap<u8, BTreeSet<ContentId>> {
        let rotten = self.state().rotten.clone();
        let mut holdings = self.disks().await;
        holdings.retain(|number, _| !rotten.contains_key(number));
        holdings
    }

    /// Looks which objects are whole.
    pub(crate) async fn look(&self) {
        let holdings = self.holdings().await;
        let mut state = self.state();
        let State { objects, rotten, .. } = &mut *state;
        for (id, object) in objects {
            let count = |piece: &ContentId| holdings.values().filter(|pieces| pieces.contains(piece)).count();
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
        }
    }

    /// Whether the disk of a node can be lost and every object survives it. If so, that is counted.
    pub(crate) async fn may_lose(&self, number: u8) -> bool {
        self.lose(number).await.is_some()
    }

    /// Whether a bit can flip on the disk of a node and every object survives it. If so, nothing counts that is there.
    pub(crate) async fn may_rot(&self, number: u8) -> bool {
        let Some(lost) = self.lose(number).await else { return false };
        self.state().rotten.entry(number).or_default().extend(lost);
        true
    }

    /// Counts what is on the disk of a node as lost and says what it is, if every object survives that.
    async fn lose(&self, number: u8) -> Option<BTreeSet<ContentId>> {
        let mut disks = self.disks().await;
        let servers = self.hosts.servers();
        let mut state = self.state();
        for (rotten, counted) in &state.rotten {
            if let Some(pieces) = disks.get_mut(rotten) {
                pieces.retain(|piece| !counted.contains(piece));
            }
        }
        let here = disks.remove(&number).unwrap_or_default();
        disks.retain(|other, _| state.rotten.contains_key(other));
        let mut hit = Vec::new();
        for (id, object) in &state.objects {
            let on =
                |disk: &BTreeSet<ContentId>| object.pieces(id).filter(|piece| disk.contains(piece)).count();
            let lost = on(&here);
            // On other disks that are rotten, and not counted yet: it came after the bit had flipped, or the object was whole since.
            let doubted: usize = disks.values().map(on).sum();
            let is_owed = object.fate == Fate::Owed;
            if lost > 0 && is_owed && object.losses + lost + doubted > object.survives() {
                return None;
            }
            let heard = |host: &&Host| {
                host.number != number
                    && match object.fate {
                        Fate::Deleted => host.store.standing(id) == Standing::Deleted,
                        _ => host.store.standing(id) != Standing::Unclaimed,
                    }
            };
            let matters =
                object.fate == Fate::Deleted || (object.fate == Fate::Owed && object.other.is_some());
            if matters && !servers.iter().any(|host| heard(&host)) {
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
        self.state().left.insert(number, BTreeSet::new());
        self.state().rotten.remove(&number);
        let holdings = self.holdings().await;
        let state = self.state();
        for (id, object) in state.objects.iter().filter(|(_, object)| object.fate == Fate::Owed) {
            let has = |piece: &ContentId| holdings.values().any(|pieces| pieces.contains(piece));
            self.verdict.promised(object.is_there(id, &has), || {
                let Object { policy, losses, .. } = object;
                format!(
                    "{id} ({policy:?}) is gone with the disk of {number}, {losses} losses since it was whole"
                )
            });
        }
    }

    /// Reads some objects on nodes that have them. `can_talk` if all nodes can, which shards need.
    pub(crate) async fn sample(&self, rng: &mut fastrand::Rng, count: usize, can_talk: bool) {
        for _ in 0..count {
            let Some(id) = self.pick(rng) else { return };
            let rotten = self.state().rotten.clone();
            let (mut holders, mut is_right) = (0, false);
            for host in self.hosts.servers() {
                if is_right
                    || rotten.contains_key(&host.number)
                    || !host.store.has(id, soon()).await.unwrap_or(false)
                {
                    continue;
                }
                holders += 1;
                match host.store.get_bytes(id, u64::MAX, soon()).await {
                    Ok(bytes) => {
                        self.judge(&id, &bytes, "its holder");
                        is_right = true;
                    }
                    Err(error) => self.verdict.refused("read", &error),
                }
            }
            if holders == 0 && can_talk {
                let holdings = self.holdings().await;
                let up: BTreeSet<u8> = self.hosts.servers().iter().map(|host| host.number).collect();
                let has = |piece: &ContentId| {
                    holdings.iter().any(|(number, pieces)| up.contains(number) && pieces.contains(piece))
                };
                let is_there = self.state().objects.get(&id).is_some_and(|object| object.is_there(&id, &has));
                let servers = self.hosts.servers();
                for host in servers.iter().filter(|_| is_there).take(3) {
                    let Some(keeping) = host.keeping.as_ref().filter(|_| !is_right) else { continue };
                    holders += 1;
                    match keeping.get(id, soon()).await {
                        Ok(bytes) => {
                            self.judge(&id, &bytes, "its shards");
                            is_right = true;
                        }
                        Err(error) => self.verdict.refused("read", &error),
                    }
                }
            }
            let mut state = self.state();
            let Some(object) = state.objects.get_mut(&id).filter(|object| object.fate == Fate::Owed) else {
                continue;
            };
            object.blind = if is_right || holders == 0 { 0 } else { object.blind + 1 };
            self.verdict.count(if is_right { "readable" } else { "unreadable for now" });
            self.verdict.promised(object.blind < BLIND_MAX, || {
                format!("{id} could not be read {BLIND_MAX} times though {holders} nodes have it")
            });
        }
    }

    /// Whether everything is as it should be, now that everything is well. If not, what is missing.
    pub(crate) async fn missing(&self) -> Vec<String> {
        let holdings = self.holdings().await;
        let (mut missing, state) = (Vec::new(), self.state());
        let servers = self.hosts.servers();
        // Shards of short objects are the same where they are nothing but zeros.
        let lives = state.objects.values().filter(|object| object.fate != Fate::Deleted);
        let wanted: BTreeSet<&ContentId> =
            lives.flat_map(|object| object.shards.values().flatten()).collect();
        for (id, object) in &state.objects {
            let count = |piece: &ContentId| holdings.values().filter(|pieces| pieces.contains(piece)).count();
            let pieces = || object.pieces(id);
            match object.fate {
                Fate::Owed => {
                    if !object.is_whole(id, &count) {
                        let found: Vec<usize> = pieces().map(&count).collect();
                        missing.push(format!("{id} ({:?}) has {found:?} shards and copies", object.policy));
                    }
                }
                Fate::Deleted => {
                    // Shards of a policy that it had before are nobody's, and lie around until a collection.
                    let codings = match object.policy {
                        Policy::Erasure { data, parity } => object.shards.get(&(data, parity)),
                        Policy::Copies(_) => None,
                    };
                    let shards = codings.into_iter().flatten().filter(|shard| !wanted.contains(shard));
                    let copies: usize = shards.chain([id]).map(&count).sum();
                    let believers =
                        servers.iter().filter(|host| host.store.standing(id) != Standing::Deleted);
                    let believers: Vec<u8> = believers.map(|host| host.number).collect();
                    if copies > 0 || !believers.is_empty() {
                        let Object { deleted_by: by, policy, other, len, .. } = object;
                        let found: Vec<usize> = pieces().map(&count).collect();
                        let on: Vec<u8> = holdings
                            .iter()
                            .filter(|(_, held)| pieces().any(|piece| held.contains(piece)))
                            .map(|(number, _)| *number)
                            .collect();
                        missing.push(format!(
                            "{id} of {len} bytes was deleted (on {by:?}; {policy:?}, {other:?}), {copies} pieces are on {on:?} ({found:?} shards and copies), and {believers:?} believe in it"
                        ));
                    }
                }
                Fate::Unknown | Fate::Doubted => {}
            }
        }
        missing
    }

    /// What is known of an object that could not be read, for whoever looks into it.
    async fn why(&self, id: &ContentId, host: &Host) -> String {
        let holdings = self.holdings().await;
        let of = |piece: &ContentId| -> Vec<u8> {
            let has = holdings.iter().filter(|(_, pieces)| pieces.contains(piece));
            has.map(|(number, _)| *number).collect()
        };
        let state = self.state();
        let Some(Object { policy, other, shards, .. }) = state.objects.get(id) else { return String::new() };
        let shards: Vec<_> = shards.values().flatten().map(of).collect();
        let claims = host.store.claims(id);
        format!(
            "{policy:?} or {other:?}; {:?} have it, {shards:?} its shards; there it is known as {claims:?}",
            of(id)
        )
    }

    /// Reads everything that is owed from some node, and asks for everything that is deleted.
    pub(crate) async fn read_all(&self, rng: &mut fastrand::Rng) {
        let all: Vec<(ContentId, Fate)> =
            self.state().objects.iter().map(|(id, object)| (*id, object.fate)).collect();
        let servers = self.hosts.servers();
        if servers.is_empty() {
            return;
        }
        for (id, fate) in all {
            let host = &servers[rng.usize(..servers.len())];
            let Some(keeping) = &host.keeping else { continue };
            match (fate, keeping.get(id, soon()).await) {
                (Fate::Owed, Ok(bytes)) => {
                    self.judge(&id, &bytes, "a node in peace");
                    self.verdict.count("owed and there");
                }
                (Fate::Owed, Err(error)) => {
                    let why = self.why(&id, host).await;
                    self.verdict.broken(format!(
                        "{id} is owed, and {} does not give it: {error}; {why}",
                        host.number
                    ));
                }
                (Fate::Deleted, Ok(_)) => {
                    let standing = host.store.standing(&id);
                    self.verdict
                        .broken(format!("{id} was deleted, and {} gives it: {standing:?}", host.number));
                }
                (Fate::Deleted, Err(_)) => self.verdict.count("deleted and gone"),
                (_, Ok(bytes)) => self.judge(&id, &bytes, "a node in peace"),
                (_, Err(_)) => {}
            }
        }
    }
}
