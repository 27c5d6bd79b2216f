//! Storing with others, and finding what others stored.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
};

use bytes::Bytes;
use ron_core::{Deadline, Lane, Lock, LockSpec, Metrics, NodeId, net::PublicKey};

use crate::{
    DhtError, Event,
    inflight::InFlight,
    keeping::Kept,
    logic::{
        Contact, Key,
        addrs::Sender,
        estimate::Region,
        lookup::{Goal, Reason, Verdict},
        signed::{ProviderRecord, Record, Value, Verified},
        table::K,
        wire::{Answer, PROVIDERS_MAX, Put, RecordOutcome, Request, Want},
    },
    metrics::PROVIDED,
    node::Node,
    search::{Nearest, Plan, Quest, search},
    store::Clock,
};

pub(crate) const CLAIMS: LockSpec = LockSpec::new("ron-dht", "claims", 340)
    .guards("which keys somebody is saying right now; held for a set operation");

/// Signatures that a search checks itself: fifty microseconds each. To hand one to another thread takes longer, and the
/// search hears nobody meanwhile.
const CHECKED_HERE: usize = 2;

/// Providers that wait for a caller beyond those in its lane. What is found after them is not handed out: nobody dials
/// three hundred.
const LATE_MAX: usize = 256;

/// Peers that are asked to keep a record at once.
pub(crate) const STORES_AT_ONCE: usize = 8;

/// One who provides a key. Its record is signed and was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Who.
    pub id: NodeId,
    /// The key that signed its record, whose hash the id is.
    pub public_key: PublicKey,
    /// Where it says it can be reached.
    pub addrs: Vec<SocketAddr>,
    /// The number of its record: of two records of one provider the higher one is newer. It is at least the second, since
    /// 1970, in which the provider said so by its own clock; not a count.
    pub seq: u64,
}

/// How a record was published.
#[derive(Debug, Clone)]
pub struct Published {
    /// Peers that keep it.
    pub kept: usize,
    /// Peers that were asked to.
    pub asked: usize,
    /// Whether the neighbourhood of the key looked made up, so that a wider region was used.
    pub is_region: bool,
    /// How the peers were found.
    pub verdict: Verdict,
}

/// The keys that somebody is saying right now, so that the republisher does not say them as well.
#[derive(Clone)]
pub(crate) struct Claims {
    keys: Arc<Lock<HashSet<Key>>>,
}

/// Some of those keys. Dropping it gives them up.
pub(crate) struct Claim {
    claims: Claims,
    keys: Vec<Key>,
}

impl Claims {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Claims { keys: Arc::new(Lock::new(CLAIMS, HashSet::new(), metrics)) }
    }

    /// Shows which keys are claimed.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&HashSet<Key>) -> R) -> R {
        look(&self.keys.lock())
    }

    /// Claims those of `keys` that nobody has claimed.
    pub(crate) fn take(&self, mut keys: Vec<Key>) -> Claim {
        let mut claimed = self.keys.lock();
        keys.retain(|key| claimed.insert(*key));
        drop(claimed);
        Claim { claims: self.clone(), keys }
    }
}

impl Claim {
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.keys.lock();
        for key in &self.keys {
            claimed.remove(key);
        }
    }
}

impl Node {
    pub(crate) async fn provide(&self, plan: Plan) -> Result<Published, DhtError> {
        let key = plan.target;
        let _claim = self.claims.take(vec![key]);
        let clock = self.clock();
        let seq = self.keeping.with(|kept| {
            kept.store.plan(&[key]);
            kept.store.next_seq(&key, &self.id, clock.unix_secs)
        });
        // From here on it is one of our keys, whatever happens to this attempt.
        self.keeping.flush(plan.deadline).await?;
        self.provide_as(plan, seq, clock).await
    }

    /// Says a key whose turn has come, which the caller has claimed; nothing if it was withdrawn meanwhile. What is
    /// withdrawn is never taken up again here: only [`provide`](Self::provide) makes a key ours.
    pub(crate) async fn provide_again(&self, plan: Plan) -> Result<Option<Published>, DhtError> {
        let (key, clock) = (plan.target, self.clock());
        let seq = self.keeping.with(|kept| {
            let is_ours = kept.store.schedule().contains(&key);
            is_ours.then(|| kept.store.next_seq(&key, &self.id, clock.unix_secs))
        });
        match seq {
            Some(seq) => self.provide_as(plan, seq, clock).await.map(Some),
            None => Ok(None),
        }
    }

    async fn provide_as(&self, plan: Plan, seq: u64, clock: Clock) -> Result<Published, DhtError> {
        let (key, deadline) = (plan.target, plan.deadline);
        let addrs = self.network().listening();
        let record = ProviderRecord::sign(&self.identity, key, &addrs, seq, clock.unix_secs, self.ttl);
        let published = self.publish_record(plan, record).await?;
        self.keeping.with(|kept| kept.store.on_published(&[(key, seq)], clock));
        self.metrics.tally(PROVIDED, "").add(1);
        self.events.publish(Event::Provided { key, kept: published.kept });
        // If that is lost it is said again sooner, which harms nobody.
        if let Err(error) = self.keeping.flush(deadline).await {
            tracing::debug!(%error, "it was provided, and the disk does not know it");
        }
        Ok(published)
    }

    pub(crate) async fn withdraw(&self, plan: Plan) -> Result<Published, DhtError> {
        let (key, clock) = (plan.target, self.clock());
        let seq = self.keeping.with(|kept| {
            let seq = kept.store.next_seq(&key, &self.id, clock.unix_secs);
            kept.store.unplan(&key);
            seq
        });
        self.keeping.flush(plan.deadline).await?;
        self.publish_record(plan, ProviderRecord::withdraw(&self.identity, key, seq, clock.unix_secs)).await
    }

    async fn publish_record(&self, plan: Plan, record: ProviderRecord) -> Result<Published, DhtError> {
        let request = Request::Provide { records: vec![record.encoded().clone()] };
        self.keep_own(record.verify()?);
        self.publish(plan, request, false).await
    }

    pub(crate) async fn put(
        &self,
        plan: Plan,
        value: Value,
        expected: Option<u64>,
    ) -> Result<Published, DhtError> {
        let put = Put { value: value.encoded().clone(), expected };
        // What we know ourselves to be old is not written where nobody knows better.
        if let Some(held) = self.newer_than(&value, expected) {
            return Err(DhtError::Conflict { held });
        }
        let (verified, deadline) = (value.verify()?, plan.deadline);
        let published = self.publish(plan, Request::Store { values: vec![put] }, expected.is_some()).await?;
        // Only now: a value that lost against another's must not be in the way of the next try.
        self.keep_own(verified);
        if let Err(error) = self.keeping.flush(deadline).await {
            tracing::debug!(%error, "our own copy is in memory only");
        }
        Ok(published)
    }

    /// The number of the value that we keep ourselves, if that is in the way of this one.
    fn newer_than(&self, value: &Value, expected: Option<u64>) -> Option<u64> {
        let new = value.signer()?.seq;
        let since = self.since(ron_core::now());
        let held = self.keeping.with(|kept| kept.store.records().value(&value.key(), true, since))?;
        let seq = Value::decode(&held).ok()?.signer()?.seq;
        let is_in_the_way = seq >= new || expected.is_some_and(|expected| seq > expected);
        (is_in_the_way && held != *value.encoded()).then_some(seq)
    }

    /// What we publish we also keep: whoever asks us first finds it.
    fn keep_own(&self, verified: Verified) {
        self.keep(verified, &Sender { id: self.id, ip: self.here() }, None);
    }

    fn here(&self) -> IpAddr {
        self.network().listening().first().map_or(IpAddr::from(Ipv4Addr::LOCALHOST), SocketAddr::ip)
    }

    /// Finds the peers nearest to the key and asks each of them to keep what the request says. A swap is refused
    /// unless more than half of them keep it: of two writers that share their peers, at most one has more than half.
    async fn publish(&self, plan: Plan, request: Request, is_swap: bool) -> Result<Published, DhtError> {
        let (key, deadline) = (plan.target, plan.deadline);
        let verdict = search(self, plan, &mut Nearest(key)).await;
        if verdict.reason == Reason::Canceled {
            return Err(DhtError::Canceled);
        }
        // The nearest first: if they are honest after all, nothing is lost when the time does not suffice for the rest.
        let request = Arc::new(request);
        let mut peers = verdict.closest.clone();
        peers.truncate(K);
        let mut outcomes = self.ask_all(&peers, Arc::clone(&request), deadline).await;
        let wider = self.keepers(&key, &verdict, &peers, deadline).await;
        let is_region = wider.is_some();
        if let Some(wider) = wider {
            outcomes.extend(self.ask_all(&wider, request, deadline).await);
            peers.extend(wider);
        }
        // Our own copy is no promise to anybody, but it should not wait in memory for long.
        if let Err(error) = self.keeping.flush(deadline).await {
            tracing::debug!(%error, "our own copy is in memory only");
        }
        let kept = outcomes.iter().filter(|outcome| **outcome == RecordOutcome::Kept).count();
        let held = outcomes.iter().filter_map(|outcome| match outcome {
            RecordOutcome::Stale { held } | RecordOutcome::Conflict { held } => Some(*held),
            _ => None,
        });
        let asked = peers.len();
        // Who did not answer may hold another writer's value, and that one was told that it won.
        let is_lost = kept == 0 || is_swap && kept * 2 <= asked;
        match held.max() {
            Some(held) if is_lost => Err(DhtError::Conflict { held }),
            None if kept == 0 => Err(DhtError::NotKept { asked }),
            None if is_lost => Err(DhtError::Undecided { kept, asked }),
            _ => Ok(Published { kept, asked, is_region, verdict }),
        }
    }

    /// Who else should keep something under `key` if the k nearest look made up: everybody who is found in a region wide
    /// enough to hold k honest nodes.
    async fn keepers(
        &self,
        key: &Key,
        verdict: &Verdict,
        nearest: &[Contact],
        deadline: Deadline,
    ) -> Option<Vec<Contact>> {
        let region = self.made_up_around(key, verdict)?;
        let (mut wider, mut looks) = (Vec::<Contact>::new(), InFlight::new());
        // All at once: where liars send every search to the dead, five in a row took all the time there was, and none was
        // left to tell those whom they found.
        region.points().for_each(|point| looks.push((), self.look_near(point, deadline)));
        while !looks.is_empty() {
            let ((), found) = looks.next().await;
            let new = found.closest.into_iter().filter(|contact| region.holds(&contact.id));
            let new = new.filter(|contact| !nearest.contains(contact) && !wider.contains(contact));
            let new: Vec<Contact> = new.collect();
            wider.extend(new);
        }
        Some(wider)
    }

    /// Where to store and look instead, if these neighbours of `key` look made up.
    pub(crate) fn made_up(&self, key: &Key, closest: &[NodeId]) -> Option<Region> {
        if !self.settings().regions {
            return None;
        }
        self.estimate.lock().too_dense(key, closest)
    }

    pub(crate) async fn look_near(&self, target: Key, deadline: Deadline) -> Verdict {
        let settings = self.settings().lookup;
        let plan = Plan { target, goal: Goal::Closest, settings, deadline, is_sample: false };
        search(self, plan, &mut Nearest(target)).await
    }

    /// What became of the one record in `request` at each of `peers`.
    async fn ask_all(
        &self,
        peers: &[Contact],
        request: Arc<Request>,
        deadline: Deadline,
    ) -> Vec<RecordOutcome> {
        let mut waiting = peers.iter();
        let rpc_timeout = self.settings().rpc_timeout;
        let (mut out, mut outcomes) = (InFlight::new(), Vec::new());
        loop {
            while out.len() < STORES_AT_ONCE {
                let Some(peer) = waiting.next() else { break };
                let rtt = self.buckets.get(&peer.id).map(|entry| entry.rtt).unwrap_or_default();
                let within = deadline.within(rtt.timeout(rpc_timeout));
                out.push_boxed(peer.id, self.network().ask(peer, Arc::clone(&request), within));
            }
            if out.is_empty() {
                return outcomes;
            }
            let (peer, reply) = out.next().await;
            match reply.map(|reply| reply.answer) {
                Ok(Answer::Provided { results } | Answer::Stored { results }) => {
                    outcomes.push(results.first().copied().unwrap_or(RecordOutcome::Skipped));
                }
                Ok(_) => outcomes.push(RecordOutcome::Unknown),
                Err(failure) => {
                    outcomes.push(RecordOutcome::Skipped);
                    if failure.is_the_peers() {
                        self.buckets.failed(peer).await;
                    }
                }
            }
        }
    }

    /// Looks for providers and hands each to `lane` as soon as it is checked. What there was no room for comes at the end.
    pub(crate) async fn find_providers(
        &self,
        plan: Plan,
        enough: NonZeroUsize,
        lane: Lane<Provider>,
    ) -> (Verdict, Vec<Provider>) {
        let (key, deadline) = (plan.target, plan.deadline);
        let mut quest = Providers::new(self, key, enough, deadline, lane);
        // What we keep is handed out first and ends nothing: anybody may have sent it, and sees nobody else asked if it
        // did. Only our own word is as good as an answer.
        let is_ours = quest.take(self.own_providers(&key), self.here()).await.contains(&self.id);
        if is_ours {
            quest.count(&[self.id]);
        }
        let Some(goal) = quest.goal() else { return (Verdict::at_home(quest.seen.len()), quest.late) };
        let mut verdict = search(self, Plan { goal, ..plan }, &mut quest).await;
        let region = if verdict.is_final() { None } else { self.made_up_around(&key, &verdict) };
        if let Some(region) = region {
            for point in region.points() {
                if quest.goal().is_none() {
                    break;
                }
                let more = self.ask_around(&region, point, &mut quest, deadline).await;
                verdict.rpcs += more.rpcs;
                verdict.hedges += more.hedges;
                verdict.hops = verdict.hops.max(more.hops);
                let is_final = more.is_final();
                verdict.trace.extend(more.trace);
                if is_final {
                    verdict.reason = more.reason;
                    break;
                }
            }
        }
        if quest.goal().is_none() {
            verdict.reason = Reason::Enough;
        }
        verdict.found = quest.seen.len();
        (verdict, quest.late)
    }

    fn own_providers(&self, key: &Key) -> Vec<Bytes> {
        let since = self.since(ron_core::now());
        self.keeping.with(|Kept { store, rng }| store.records().providers(key, since, PROVIDERS_MAX, rng))
    }

    /// The value under the key of `plan`: the first that is in order, or of values that change the newest.
    pub(crate) async fn get(&self, plan: Plan, want: Want) -> Option<Value> {
        let mut quest = Values { key: plan.target, want, best: None };
        let since = self.since(ron_core::now());
        let own =
            self.keeping.with(|kept| kept.store.records().value(&plan.target, want == Want::Mutable, since));
        if let Some(own) = own {
            quest.take(&own);
            if want == Want::Immutable {
                return quest.best;
            }
        }
        let (key, deadline) = (plan.target, plan.deadline);
        let verdict = search(self, plan, &mut quest).await;
        let region = if verdict.is_final() { None } else { self.made_up_around(&key, &verdict) };
        if let Some(region) = region {
            for point in region.points() {
                let more = self.ask_around(&region, point, &mut quest, deadline).await;
                if more.is_final() || want == Want::Immutable && quest.best.is_some() {
                    break;
                }
            }
        }
        quest.best
    }

    /// Finds the nodes of a region near `point`, and asks each of them. Found by the point and not by the key: whoever is
    /// asked about the key names its neighbours, and those are the ones to get around.
    async fn ask_around<Q: Quest>(
        &self,
        region: &Region,
        point: Key,
        quest: &mut Q,
        deadline: Deadline,
    ) -> Verdict {
        let mut verdict = self.look_near(point, deadline).await;
        let (rpc_timeout, request) = (self.settings().rpc_timeout, quest.request());
        let mut out = InFlight::new();
        for peer in verdict.closest.iter().take(K).filter(|peer| region.holds(&peer.id)) {
            let within = deadline.within(rpc_timeout);
            out.push_boxed((), self.network().ask(peer, Arc::clone(&request), within));
        }
        verdict.rpcs += out.len();
        while !out.is_empty() {
            if let ((), Ok(reply)) = out.next().await {
                quest.on_answer(reply.observed, reply.answer).await;
            }
        }
        verdict
    }

    fn made_up_around(&self, key: &Key, verdict: &Verdict) -> Option<Region> {
        let ids: Vec<NodeId> = verdict.closest.iter().map(|contact| contact.id).collect();
        self.made_up(key, &ids)
    }
}

/// Looks for providers.
struct Providers<'a> {
    node: &'a Node,
    key: Key,
    enough: NonZeroUsize,
    deadline: Deadline,
    lane: Lane<Provider>,
    /// The newest word of each provider.
    seen: HashMap<NodeId, u64>,
    /// Those that count towards `enough`.
    counted: HashSet<NodeId>,
    /// Those that the caller had no room for yet.
    late: Vec<Provider>,
}

impl<'a> Providers<'a> {
    fn new(node: &'a Node, key: Key, enough: NonZeroUsize, deadline: Deadline, lane: Lane<Provider>) -> Self {
        let (seen, counted, late) = (HashMap::new(), HashSet::new(), Vec::new());
        Providers { node, key, enough, deadline, lane, seen, counted, late }
    }

    /// How many are still to be found; nothing if those are enough that were.
    fn goal(&self) -> Option<Goal> {
        let missing = self.enough.get().saturating_sub(self.counted.len());
        NonZeroUsize::new(missing).map(Goal::Found)
    }

    /// Hands a provider to the caller, or keeps it until the end if the caller is slow: the search, and the worker that
    /// runs it, wait for nobody.
    fn hand_out(&mut self, provider: Provider) {
        if self.late.is_empty() {
            if let Err((_, provider)) = self.lane.try_push_or_return(provider) {
                self.late.push(provider);
            }
        } else {
            self.late.push(provider);
        }
    }

    /// Counts what one answer told of towards `enough`, and says how much that was. At most half of what is wanted, of
    /// more than one: keys cost nothing, and whoever makes up a crowd of providers must not end a search alone. Whatever
    /// of it others tell as well counts with them.
    fn count(&mut self, told: &[NodeId]) -> usize {
        let most = self.enough.get().div_ceil(2);
        let new = told.iter().filter(|id| !self.counted.contains(id)).take(most);
        let new: Vec<NodeId> = new.copied().collect();
        self.counted.extend(&new);
        new.len()
    }

    /// Checks records that a peer at `from` had, many of them away from the tasks that read links, and hands out what is
    /// new, with the addresses that such a peer may name. Says which providers they prove, those included that were
    /// known.
    async fn take(&mut self, encoded: Vec<Bytes>, from: IpAddr) -> Vec<NodeId> {
        let (key, unix) = (self.key, self.node.clock().unix_secs);
        let decoded = encoded
            .iter()
            .take(PROVIDERS_MAX)
            .filter_map(|record| ProviderRecord::decode(record).ok())
            .filter(|record| record.is_about(&key).is_ok() && !record.is_withdrawn())
            .filter(|record| record.is_current(unix).is_ok());
        let is_known = |record: &ProviderRecord| {
            self.seen.get(&record.publisher()).is_some_and(|seq| *seq >= record.seq())
        };
        let (known, decoded): (Vec<_>, Vec<_>) = decoded.partition(is_known);
        let mut told: Vec<NodeId> = known.iter().map(ProviderRecord::publisher).collect();
        if decoded.is_empty() {
            return told;
        }
        let prove = |records: &[ProviderRecord]| -> Vec<Verified> {
            records.iter().filter_map(|record| record.clone().verify().ok()).collect()
        };
        let decoded = Arc::new(decoded);
        let checked: Vec<Verified> = if decoded.len() <= CHECKED_HERE {
            prove(&decoded)
        } else {
            let many = Arc::clone(&decoded);
            let checked = self.node.spawner.blocking("verify", self.deadline, move || prove(&many)).await;
            // Others keep all threads busy. A few are better than none.
            checked.unwrap_or_else(|_| prove(&decoded[..CHECKED_HERE]))
        };
        for verified in checked {
            let Record::Provider(record) = verified.into_record() else { continue };
            let addrs = self.node.policy.usable(record.addrs(), from);
            if addrs.is_empty() && !record.addrs().is_empty() {
                continue;
            }
            if self.late.len() >= LATE_MAX {
                break;
            }
            self.seen.insert(record.publisher(), record.seq());
            told.push(record.publisher());
            let provider = Provider {
                id: record.publisher(),
                public_key: record.public_key(),
                addrs,
                seq: record.seq(),
            };
            self.hand_out(provider);
        }
        told
    }
}

impl Quest for Providers<'_> {
    fn request(&self) -> Arc<Request> {
        let limit = u16::try_from(self.enough.get().min(PROVIDERS_MAX)).unwrap_or(u16::MAX);
        Arc::new(Request::FindValue { key: self.key, want: Want::Providers, limit })
    }

    async fn on_answer(&mut self, from: IpAddr, answer: Answer) -> usize {
        let Answer::Found { providers, .. } = answer else { return 0 };
        let told = self.take(providers, from).await;
        self.count(&told)
    }
}

/// Looks for a value.
struct Values {
    key: Key,
    want: Want,
    best: Option<Value>,
}

impl Values {
    fn take(&mut self, encoded: &Bytes) -> usize {
        // As holders judge: of two with the same number the greater bytes count, so that all readers agree.
        let rank = |value: &Value| (value.signer().map_or(0, |signer| signer.seq), value.encoded().clone());
        let Ok(value) = Value::decode(encoded) else { return 0 };
        let is_mutable = value.signer().is_some();
        if is_mutable != (self.want == Want::Mutable) || value.is_about(&self.key).is_err() {
            return 0;
        }
        if self.best.as_ref().is_some_and(|best| rank(best) >= rank(&value)) {
            return 0;
        }
        let Ok(verified) = value.verify() else { return 0 };
        let Record::Value(value) = verified.into_record() else { return 0 };
        self.best = Some(value);
        1
    }
}

impl Quest for Values {
    fn request(&self) -> Arc<Request> {
        Arc::new(Request::FindValue { key: self.key, want: self.want, limit: 1 })
    }

    async fn on_answer(&mut self, _: IpAddr, answer: Answer) -> usize {
        match answer {
            Answer::Found { value: Some(value), .. } => self.take(&value),
            _ => 0,
        }
    }
}
