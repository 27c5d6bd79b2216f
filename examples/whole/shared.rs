//! The checker of what nodes keep together: every object that was acknowledged can be read, right, while its policy holds,
//! and what was deleted stays deleted.
//!
//! What may be lost, and what can be read while things go wrong, is in `losses`.
//!
//! # Which word is the later
//!
//! The version of a word is above what the node has heard, and at least its clock. A node that has not heard the last word and
//! whose clock is behind says an earlier one, and says so: its version is below the last, or the same. Then either may hold.
//!
//! # What nobody knows
//!
//! A put or a delete that was refused may have happened all the same. While things go wrong, either is right. Once everything is
//! well all servers say the same, and it is what they say: whole, or gone. From then on it is owed like everything else.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline,
    net::{Contact, Identity},
};
use ron_storage::{
    StorageError,
    claims::{Claim, Coding, Policy, RETENTION_MIN, Standing, Wanted},
    fetch::FetchError,
    logic::shards::{ReedSolomon, encode},
    peers::Peer,
    repair::Ack,
};

use crate::{
    losses::{Disks, Sight, tally},
    node::{Host, Hosts},
    verdict::Verdict,
};

/// How long one call of a user may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is known of an object's fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was put, and nobody said that this worked.
    Unknown,
    /// It was acknowledged.
    Owed,
    /// Its delete was asked for, and nobody said that this worked.
    Doubted,
    /// Its delete was acknowledged.
    Deleted,
}

pub(crate) struct Object {
    len: usize,
    salt: u64,
    owner: u8,
    pub(crate) fate: Fate,
    /// The latest version of its claim that was acknowledged.
    version: u64,
    /// The policy it has, and the one it may have besides.
    pub(crate) policy: Policy,
    pub(crate) other: Option<Policy>,
    /// Whether nobody knows which.
    pub(crate) is_unsure: bool,
    /// Whether somebody is about to change or delete it: of two words at once, nobody knows which is the later.
    is_spoken_of: bool,
    /// Where the delete was said.
    deleted_by: Option<u8>,
    /// Whether some node that had it told the DHT so.
    is_provided: bool,
    /// Shards, by policy, for each that it ever had.
    shards: BTreeMap<(u8, u8), Vec<ContentId>>,
    /// Pieces on disks that were lost since it was last whole.
    pub(crate) losses: usize,
    /// What is known of reading it.
    pub(crate) sight: Sight,
}

impl Object {
    fn content(&self) -> Bytes {
        content(self.salt, self.len)
    }

    /// What it may be made from: itself, and shards of every policy it ever had.
    pub(crate) fn pieces<'a>(&'a self, id: &'a ContentId) -> impl Iterator<Item = &'a ContentId> {
        self.shards.values().flatten().chain([id])
    }

    /// How much of it may be lost.
    pub(crate) fn survives(&self) -> usize {
        let of = |policy: &Policy| match policy {
            Policy::Copies(copies) => usize::from(*copies).saturating_sub(1),
            Policy::Erasure { parity, .. } => usize::from(*parity),
        };
        self.other.iter().map(of).fold(of(&self.policy), usize::min)
    }

    /// Whether it can be made from what there is.
    pub(crate) fn is_there(&self, id: &ContentId, has: &impl Fn(&ContentId) -> bool) -> bool {
        let enough = |((data, _), shards): (&(u8, u8), &Vec<ContentId>)| {
            shards.iter().filter(|shard| has(shard)).count() >= usize::from(*data)
        };
        has(id) || self.shards.iter().any(enough)
    }

    /// Whether everything is there that a policy asks for.
    pub(crate) fn has_all(
        &self,
        policy: Policy,
        id: &ContentId,
        count: &impl Fn(&ContentId) -> usize,
    ) -> bool {
        match policy {
            Policy::Copies(copies) => count(id) >= usize::from(copies),
            Policy::Erasure { data, parity } => {
                let shards = self.shards.get(&(data, parity));
                shards.is_some_and(|shards| shards.iter().all(|shard| count(shard) > 0))
            }
        }
    }

    /// The shards that its policy asks for.
    fn of_policy(&self) -> impl Iterator<Item = &ContentId> {
        let coding = match self.policy {
            Policy::Erasure { data, parity } => Some((data, parity)),
            Policy::Copies(_) => None,
        };
        coding.and_then(|coding| self.shards.get(&coding)).into_iter().flatten()
    }

    /// What is not as everybody says that it is wanted.
    fn unlike(
        &self,
        id: &ContentId,
        wanted: &Wanted,
        count: &impl Fn(&ContentId) -> usize,
    ) -> Option<String> {
        if self.fate == Fate::Deleted {
            return Some("was deleted, and everybody wants it".to_owned());
        }
        let mut asked: Vec<Policy> = wanted.codings.iter().map(of_coding).collect();
        asked.extend((wanted.copies > 0).then_some(Policy::Copies(wanted.copies)));
        let is_asked =
            asked == [self.policy] || (self.is_unsure && self.other.is_some_and(|other| asked == [other]));
        if !is_asked {
            let asked: Vec<String> = asked.iter().map(Policy::to_string).collect();
            return Some(format!("is wanted as {}", asked.join(" and ")));
        }
        // What nobody acknowledged may be gone with a disk. What is left of it must become whole again.
        let is_lost = self.fate == Fate::Unknown && !self.is_there(id, &|piece| count(piece) > 0);
        let is_whole = asked.iter().all(|policy| self.has_all(*policy, id, count));
        (!is_whole && !is_lost).then(|| "is not whole".to_owned())
    }

    /// What it is to users, in words.
    fn words(&self) -> String {
        let Object { len, policy, other, .. } = self;
        let fate = match (self.fate, self.deleted_by) {
            (Fate::Unknown, _) => "never acknowledged".to_owned(),
            (Fate::Owed, _) => "acknowledged".to_owned(),
            (Fate::Doubted | Fate::Deleted, Some(by)) => format!("deleted on {by}"),
            (Fate::Doubted | Fate::Deleted, None) => "with a delete that was never acknowledged".to_owned(),
        };
        let other = other.map_or(String::new(), |other| format!(" or {other}"));
        format!("{len} bytes as {policy}{other}, {fate}")
    }

    /// On which nodes it is, whole and in which shards, in words.
    fn holders(&self, id: &ContentId, holdings: &BTreeMap<u8, BTreeSet<ContentId>>) -> String {
        let on = |piece: &ContentId| -> Vec<u8> {
            let has = holdings.iter().filter(|(_, pieces)| pieces.contains(piece));
            has.map(|(number, _)| *number).collect()
        };
        let mut places = vec![("a copy".to_owned(), on(id))];
        for ((data, parity), shards) in &self.shards {
            let numbered = shards.iter().zip(1..);
            places.extend(numbered.map(|(shard, at)| (format!("shard {at} of {data}+{parity}"), on(shard))));
        }
        let found = places.iter().filter(|(_, on)| !on.is_empty());
        let found: Vec<String> = found.map(|(what, on)| format!("{what} on {}", list(on))).collect();
        if found.is_empty() { "nothing of it anywhere".to_owned() } else { found.join("; ") }
    }

    /// Whether everything is there that one of its policies asks for.
    pub(crate) fn is_whole(&self, id: &ContentId, count: &impl Fn(&ContentId) -> usize) -> bool {
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
pub(crate) struct State {
    pub(crate) objects: BTreeMap<ContentId, Object>,
    pub(crate) disks: Disks,
    /// Who gives something else than it is asked for, while there are lies.
    mask: Option<Contact>,
}

/// What was put on many nodes. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) hosts: Hosts,
    pub(crate) verdict: Verdict,
    state: Arc<Mutex<State>>,
}

pub(crate) fn soon() -> Deadline {
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

fn of_coding(Coding { data, parity, .. }: &Coding) -> Policy {
    Policy::Erasure { data: *data, parity: *parity }
}

/// What all servers say of an object, if they have heard the same words.
fn agreed(servers: &[Host], id: &ContentId) -> Option<Standing> {
    let (first, others) = servers.split_first()?;
    let claims = first.store.claims(id);
    others.iter().all(|host| host.store.claims(id) == claims).then(|| first.store.standing(id))
}

/// What each server says of an object, if that is not the same.
fn said(servers: &[Host], id: &ContentId) -> String {
    let mut said: BTreeMap<String, (String, Vec<u8>)> = BTreeMap::new();
    for host in servers {
        let claims = host.store.claims(id);
        // Whatever differs makes them others, though they read the same.
        let known = said.entry(format!("{claims:?}")).or_insert_with(|| (known(&claims), Vec::new()));
        known.1.push(host.number);
    }
    let said: Vec<String> =
        said.values().map(|(claims, who)| format!("{} know {claims}", list(who))).collect();
    said.join("; ")
}

/// What is known of an object, in words.
fn known(claims: &[Claim]) -> String {
    let words = claims.iter().map(|claim| {
        let word = match claim.word.policy() {
            Some(policy) => policy.to_string(),
            None if claim.word.is_tombstone() => "deleted".to_owned(),
            None => "pinned".to_owned(),
        };
        format!("{word} (version {})", claim.version)
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(" and ") }
}

/// Nodes, in words.
pub(crate) fn list(numbers: &[u8]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u8::to_string).collect();
    numbers.join(", ")
}

impl Shared {
    pub(crate) fn new(hosts: &Hosts, verdict: &Verdict) -> Self {
        Shared { hosts: hosts.clone(), verdict: verdict.clone(), state: Arc::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
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
            is_provided: false,
            shards: shards(&content, policy).into_iter().collect(),
            losses: 0,
            sight: Sight::default(),
        };
        self.state().objects.insert(id, object);
        let put = keeping.put(content, policy, &owner(by), ack(policy), soon()).await;
        match put {
            Ok(placed) => {
                self.verdict.count("put");
                self.verdict
                    .say_all(|| format!("{id} was put as {policy} on {}: {}", host.number, placed.version));
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

    /// One that is owed and, mostly, was provided.
    fn pick_provided(&self, rng: &mut fastrand::Rng) -> Option<ContentId> {
        if rng.u8(..8) == 0 {
            return self.pick(rng);
        }
        let state = self.state();
        let is_found = |object: &Object| object.fate == Fate::Owed && object.is_provided;
        let found: Vec<&ContentId> =
            state.objects.iter().filter(|(_, object)| is_found(object)).map(|(id, _)| id).collect();
        (!found.is_empty()).then(|| *found[rng.usize(..found.len())])
    }

    /// Some that have a whole copy of an object tell the DHT so, for those who do not keep objects with others.
    pub(crate) async fn provide(&self, id: ContentId) {
        let mut told = 0;
        for host in self.hosts.servers() {
            if told == 2 {
                break;
            }
            let has = host.store.has(id, soon()).await;
            if let Err(error) = &has {
                self.verdict.refused("has", error);
            }
            if has.unwrap_or(false) {
                match host.dht.provide(id, Deadline::after(Duration::from_secs(10))).await {
                    Ok(_) => told += 1,
                    Err(error) => self.verdict.refused("provide", &error),
                }
            }
        }
        if let Some(object) = self.state().objects.get_mut(&id) {
            object.is_provided |= told > 0;
        }
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
            Ok(bytes) => {
                self.judge(&id, &bytes, "keeping");
                self.was_read(&id);
            }
            Err(error) => {
                self.verdict.refused("get", &error);
                self.suspect(&id);
            }
        }
    }

    /// Whoever the DHT says has something. While there are lies one in three is told of the mask, too.
    async fn find(&self, host: &Host, id: ContentId, rng: &mut fastrand::Rng) -> Vec<Peer> {
        let mut providers = host.finder.find(id, Deadline::after(Duration::from_secs(5))).await;
        let is_misled = self.state().mask.is_some() && rng.u8(..3) == 0;
        if let Some(mask) = self.state().mask.clone().filter(|_| is_misled) {
            providers.insert(0, mask.into());
        }
        providers
    }

    /// Users hear of one who lies, or no more.
    pub(crate) fn mislead(&self, mask: Option<Contact>) {
        self.state().mask = mask;
    }

    /// A client fetches something from whoever the DHT says has it, and reads a part of it.
    pub(crate) async fn fetch(&self, host: &Host, rng: &mut fastrand::Rng) {
        let Some(id) = self.pick_provided(rng) else { return };
        let providers = self.find(host, id, rng).await;
        match host.fetcher.fetch(id, &providers, soon()).await {
            Ok(_) => {
                self.verdict.count("fetched");
                self.read_part(host, id, rng).await;
            }
            Err(error) => self.verdict.refused("fetch", &error),
        }
        // It fetches it again another time.
        if let Err(error) = host.store.delete(id, soon()).await {
            self.verdict.refused("delete of what was fetched", &error);
        }
    }

    /// Reads some bytes from the middle of what is in a node's own store.
    async fn read_part(&self, host: &Host, id: ContentId, rng: &mut fastrand::Rng) {
        let Some(content) = self.content_of(&id) else { return };
        let from = rng.usize(..content.len());
        let to = rng.usize(from + 1..=content.len());
        let read = async {
            let mut reader = host.store.get(id, from as u64..to as u64, soon()).await?;
            let mut part = Vec::new();
            while let Some(bytes) = reader.next().await? {
                part.extend_from_slice(&bytes);
            }
            Ok::<_, StorageError>(part)
        };
        match read.await {
            Ok(part) => {
                self.verdict.count("read in part");
                self.verdict.promised(part == content[from..to], || {
                    format!("wrong bytes {from}..{to} of {id} from {}", host.number)
                });
            }
            Err(error) => self.verdict.refused("read back", &error),
        }
    }

    /// A user on any node has something sent by whoever the DHT says has it. Nothing of it is kept.
    pub(crate) async fn download(&self, host: &Host, rng: &mut fastrand::Rng) {
        let Some(id) = self.pick_provided(rng) else { return };
        let providers = self.find(host, id, rng).await;
        let sent = async {
            let mut download = host.fetcher.download(id, &providers, soon())?;
            let mut all = Vec::new();
            while let Some(bytes) = download.next().await? {
                all.extend_from_slice(&bytes);
            }
            Ok::<_, FetchError>(Bytes::from(all))
        };
        match sent.await {
            Ok(bytes) => {
                self.verdict.count("downloaded");
                self.judge(&id, &bytes, "a download");
            }
            Err(error) => self.verdict.refused("download", &error),
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
                self.verdict.say_all(|| format!("{id} was deleted on {}", host.number));
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
        self.verdict.say_all(|| format!("{id} should be {policy}, said on {}: {changed:?}", host.number));
        if let Some(object) = self.state().objects.get_mut(&id) {
            object.is_spoken_of = false;
            // Of two words with one version either may hold, unless they say the same.
            let is_last = |version: &u64| match version.cmp(&object.version) {
                Ordering::Greater => true,
                Ordering::Equal => policy == object.policy,
                Ordering::Less => false,
            };
            if changed.as_ref().is_ok_and(is_last) {
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

    /// Whether everything is as it should be, now that everything is well. If not, what is missing.
    pub(crate) async fn missing(&self) -> Vec<String> {
        let holdings = self.holdings().await;
        let tally = tally(holdings.values());
        let count = |piece: &ContentId| tally.get(piece).copied().unwrap_or(0);
        let (mut missing, state) = (Vec::new(), self.state());
        let servers = self.hosts.servers();
        let mut standings = BTreeMap::new();
        for id in state.objects.keys() {
            match agreed(&servers, id) {
                Some(standing) => drop(standings.insert(id, standing)),
                None => missing.push(format!("{id}: {}", said(&servers, id))),
            }
        }
        // Shards of short objects are the same where they are nothing but zeros.
        let lives = state.objects.iter().filter(|(id, _)| standings.get(id) != Some(&Standing::Deleted));
        let wanted: BTreeSet<&ContentId> =
            lives.flat_map(|(_, object)| object.shards.values().flatten()).collect();
        for (id, standing) in standings {
            let Some(object) = state.objects.get(id) else { continue };
            let wrong = match standing {
                // It was refused before anybody said that somebody wants it.
                Standing::Unclaimed if object.fate == Fate::Unknown => None,
                Standing::Unclaimed => Some("is known to nobody".to_owned()),
                Standing::Live(wanted) => object.unlike(id, &wanted, &count),
                Standing::Deleted => {
                    let shards = object.of_policy().filter(|shard| !wanted.contains(shard));
                    let copies: usize = shards.chain([id]).map(&count).sum();
                    match object.fate {
                        Fate::Owed | Fate::Unknown => Some("is deleted everywhere".to_owned()),
                        Fate::Deleted | Fate::Doubted => {
                            (copies > 0).then(|| format!("is deleted, and {copies} pieces are there"))
                        }
                    }
                }
            };
            if let Some(wrong) = wrong {
                let (what, holders) = (object.words(), object.holders(id, &holdings));
                missing.push(format!("{id} ({what}) {wrong}: {holders}"));
            }
        }
        missing
    }

    /// What nobody knew is what all servers say, now that everything is well.
    async fn settle(&self) {
        let servers = self.hosts.servers();
        let tally = tally(self.holdings().await.values());
        let has = |piece: &ContentId| tally.contains_key(piece);
        let mut state = self.state();
        for (id, object) in &mut state.objects {
            if !matches!(object.fate, Fate::Unknown | Fate::Doubted) {
                continue;
            }
            let (fate, what) = match (agreed(&servers, id), object.fate) {
                // It was never acknowledged, so all of it may have gone with a disk.
                (Some(Standing::Live(_)), Fate::Unknown) if !object.is_there(id, &has) => continue,
                (Some(Standing::Live(_)), _) => (Fate::Owed, "in doubt, and there"),
                (Some(Standing::Deleted), _) => (Fate::Deleted, "in doubt, and gone"),
                _ => continue,
            };
            object.fate = fate;
            self.verdict.count(what);
        }
    }

    /// What is known of an object that could not be read, for whoever looks into it.
    async fn why(&self, id: &ContentId, host: &Host) -> String {
        let holdings = self.holdings().await;
        let state = self.state();
        let Some(object) = state.objects.get(id) else { return String::new() };
        let (what, holders) = (object.words(), object.holders(id, &holdings));
        format!("{what}; {holders}; {} knows {}", host.number, known(&host.store.claims(id)))
    }

    /// Reads everything that is owed from some node, and asks for everything that is deleted.
    pub(crate) async fn read_all(&self, rng: &mut fastrand::Rng) {
        self.settle().await;
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
                (Fate::Deleted, Err(StorageError::NotFound { .. })) => self.verdict.count("deleted and gone"),
                (Fate::Deleted, Err(error)) => {
                    self.verdict
                        .broken(format!("{id} was deleted, and {} does not know that: {error}", host.number));
                }
                (_, Ok(bytes)) => self.judge(&id, &bytes, "a node in peace"),
                (_, Err(error)) => {
                    self.verdict.count("never acknowledged, and not there");
                    self.verdict.refused("get of what was never acknowledged", &error);
                }
            }
        }
    }
}
