//! Saying many keys: those whose turn has come again, and those a host has just brought.
//!
//! A few keys are looked up one by one. Many are swept: neighbours are grouped, a lookup serves a whole region, and a
//! peer is sent everything that it should keep in a few messages. What was said is noted in the schedule piece by
//! piece, so a sweep that ends early, for whatever reason, goes on where it was.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{BackoffPolicy, Deadline, Restart, Snapshot, Stop, TaskSpec, Watch, net::BoxFuture};

use crate::{
    DhtError, Event,
    inflight::InFlight,
    logic::{
        Contact, Key,
        lookup::{Goal, Reason},
        signed::ProviderRecord,
        sweep::{Region, Sweep},
        table::K,
        wire::{Answer, RecordOutcome, Request, batches},
    },
    metrics::{PROVIDE_LAG, PROVIDED},
    node::Node,
    publish::{Claim, STORES_AT_ONCE},
    search::Plan,
};

pub(crate) const REPUBLISHER: TaskSpec = TaskSpec::new("ron-dht", "republisher")
    .restart(Restart::PATIENT)
    .what("says our keys again when their turn comes, and those that were never said");

/// Turns of the republisher in one cycle. Every five minutes of twelve hours: the keys of five minutes are neighbours,
/// and few lookups serve them.
const TURNS: u32 = 144;

/// The shortest and the longest pause between two turns.
const TURN_MIN: Duration = Duration::from_millis(100);
const TURN_MAX: Duration = Duration::from_secs(300);

/// Pauses while there is nobody to tell, or nobody who listens.
const FAILED: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(1), TURN_MAX);

/// Keys of one turn. A million of them would be 32 MB; the rest has its turn right after.
const KEYS_PER_TURN: usize = 1 << 16;

/// What one turn may take. Then the rest is looked at anew, with those that came due meanwhile.
const TURN_TIMEOUT: Duration = Duration::from_secs(1800);

/// Up to this many keys are looked up one by one, each with all the care that a single key gets.
const FEW: usize = 8;

/// What one lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Regions that are explored at once: enough that a silent peer in one does not stop the others.
pub(crate) const REGIONS_AT_ONCE: usize = 4;

/// Keys signed in one go: fifty milliseconds of a core, 400 KiB of records.
const SIGN_AT_ONCE: usize = 2048;

/// How far [`Dht::provide_many`](crate::Dht::provide_many) has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProvideProgress {
    /// Keys in all, each counted once.
    pub total: usize,
    /// Keys that at least one peer keeps, those included that were said not long ago and need nothing.
    pub done: usize,
    /// Keys that nobody kept, or that there was no time for. They stay ours, and the republisher comes back to them.
    pub left: usize,
    /// Searches it took.
    pub lookups: usize,
    /// Records that peers keep: about twenty for each key.
    pub kept: usize,
}

/// Many keys on their way to those who keep them. Dropping it stops that; the keys stay ours.
#[must_use = "nothing is published until `next` is called; the republisher comes to the keys only in its turn"]
pub struct ProvideMany {
    pub(crate) progress: Watch<ProvideProgress>,
    pub(crate) work: Option<BoxFuture<'static, Result<(), DhtError>>>,
}

impl ProvideMany {
    /// Works on, until something has changed; `None` when everything was tried. Nothing is done while nobody waits
    /// here. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`DhtError::Canceled`] when the node stops, [`DhtError::Store`] if the disk did not take the keys. Once.
    pub async fn next(&mut self) -> Result<Option<ProvideProgress>, DhtError> {
        let Some(work) = &mut self.work else { return Ok(None) };
        tokio::select! {
            biased;
            () = self.progress.changed() => {}
            ended = work => {
                self.work = None;
                ended?;
            }
        }
        Ok(Some(self.progress()))
    }

    /// Works until everything was tried. A deadline that passes is no error: what is left says so.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn finish(mut self) -> Result<ProvideProgress, DhtError> {
        while self.next().await?.is_some() {}
        Ok(self.progress())
    }

    /// How far it is.
    pub fn progress(&mut self) -> ProvideProgress {
        **self.progress.get()
    }
}

impl std::fmt::Debug for ProvideMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProvideMany").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// Runs one region, wherever that is done: on the republisher's own time, or in the lookup pool.
pub(crate) type RunRegion =
    Box<dyn Fn(Region) -> BoxFuture<'static, Result<(Region, Said), DhtError>> + Send + Sync>;

/// What became of some keys.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Keys that somebody keeps.
    keys: usize,
    /// Records kept.
    kept: usize,
}

/// Says the keys whose turn has come, again and again.
pub(crate) async fn republish(node: Arc<Node>, seed: u64, stop: Stop) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pause = FAILED.with_seed(rng.u64(..));
    let turn = (node.settings().republish / TURNS).clamp(TURN_MIN, TURN_MAX);
    // Soon after the start there may be keys that the last run did not come to.
    let mut wait = pause.next_delay();
    let mut after = None;
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let due = node.due(&mut after);
        let (all, mut said) = (due.keys().len(), 0);
        if all > 0 && node.buckets.filled() > 0 {
            let deadline = Deadline::after(TURN_TIMEOUT);
            tokio::select! {
                biased;
                () = stop.requested() => return,
                keys = Box::pin(Arc::clone(&node).say(due.keys().to_vec(), deadline)) => said = keys,
            }
            node.note_lag();
        }
        wait = if said < all {
            // Jittered and growing: whoever did not listen now is not asked by all at once again.
            pause.next_delay().min(turn)
        } else {
            pause.reset();
            if all == KEYS_PER_TURN { Duration::ZERO } else { turn.mul_f64(0.75 + rng.f64() / 2.0) }
        };
    }
}

impl Node {
    /// The keys whose turn has come and that nobody is saying already.
    fn due(&self, after: &mut Option<(u64, Key)>) -> Claim {
        self.note_lag();
        let unix = self.clock().unix_secs;
        let due = self.keeping.with(|kept| {
            self.claims
                .look(|claimed| kept.store.due(unix, KEYS_PER_TURN, after, |key| claimed.contains(key)))
        });
        self.claims.take(due)
    }

    /// Notes for how long the longest overdue of our keys has been waiting.
    fn note_lag(&self) {
        let unix = self.clock().unix_secs;
        let lag = self.keeping.with(|kept| kept.store.schedule().lag_secs(unix));
        self.metrics.gauge(PROVIDE_LAG).set(lag as f64);
    }

    /// Says keys of the schedule, and how many of them somebody keeps.
    async fn say(self: Arc<Self>, keys: Vec<Key>, deadline: Deadline) -> usize {
        if keys.len() <= FEW {
            let mut said = 0;
            for key in keys {
                let deadline = deadline.within(LOOKUP_TIMEOUT);
                let settings = self.settings().lookup;
                let plan = Plan { target: key, goal: Goal::Closest, settings, deadline, is_sample: false };
                match self.provide_again(plan).await {
                    // One that was withdrawn meanwhile has been dealt with.
                    Ok(_) => said += 1,
                    Err(error) => tracing::debug!(?key, %error, "not provided again"),
                }
            }
            return said;
        }
        let progress = Snapshot::new(ProvideProgress { total: keys.len(), ..ProvideProgress::default() });
        let run = self.run_region(deadline);
        // Without an error: those are of the pool, and this runs here.
        let _ = self.sweep(keys, run, &progress).await;
        let ProvideProgress { total, done, lookups, .. } = *progress.load();
        tracing::debug!(total, done, lookups, "said again");
        done
    }

    fn run_region(self: &Arc<Self>, deadline: Deadline) -> RunRegion {
        let node = Arc::clone(self);
        Box::new(move |region| {
            let node = Arc::clone(&node);
            Box::pin(async move { Ok(node.provide_region(region, deadline).await) })
        })
    }

    /// Brings keys to those who should keep them, some regions at a time.
    pub(crate) async fn sweep(
        &self,
        keys: Vec<Key>,
        run: RunRegion,
        progress: &Snapshot<ProvideProgress>,
    ) -> Result<(), DhtError> {
        let nodes = self.estimate.lock().nodes().unwrap_or(1.0) as usize;
        let mut sweep = Sweep::new(keys, K, nodes);
        let mut running = InFlight::new();
        loop {
            while running.len() < REGIONS_AT_ONCE {
                let Some(region) = sweep.next_region() else { break };
                running.push((), run(region));
            }
            if running.is_empty() {
                let ProvideProgress { total, left, lookups, .. } = *progress.load();
                self.events.publish(Event::Swept { keys: total, left, lookups });
                return Ok(());
            }
            let ((), done) = running.next().await;
            let (region, said) = done?;
            progress.update(|before| ProvideProgress {
                total: before.total,
                done: before.done + said.keys,
                left: before.left + region.keys().len() - said.keys,
                lookups: before.lookups + region.lookups(),
                kept: before.kept + said.kept,
            });
        }
    }

    /// Finds out who should keep the keys of a region, and brings them there.
    pub(crate) async fn provide_region(&self, mut region: Region, deadline: Deadline) -> (Region, Said) {
        let stop = self.stop();
        while !deadline.has_passed() && !stop.is_requested() {
            let Some(target) = region.poll() else { break };
            let verdict = self.look_near(target, deadline.within(LOOKUP_TIMEOUT)).await;
            let closest = &verdict.closest[..verdict.closest.len().min(K)];
            region.on_found(&target, closest, verdict.reason == Reason::Complete);
        }
        let assigned = region.assign(|key, closest| self.made_up(key, closest));
        let mut said = Said::default();
        for keys in region.keys().chunks(SIGN_AT_ONCE) {
            let (Some(first), Some(last)) = (keys.first(), keys.last()) else { continue };
            let share = |keys: &[Key]| {
                let from = keys.partition_point(|key| key < first);
                from..keys.partition_point(|key| key <= last)
            };
            let shares = assigned.iter().map(|to| (to.peer.clone(), &to.keys[share(&to.keys)]));
            let shares: Vec<_> = shares.filter(|(_, share)| !share.is_empty()).collect();
            if shares.is_empty() || deadline.has_passed() || stop.is_requested() {
                continue;
            }
            self.provide_chunk(keys, &shares, deadline, &mut said).await;
        }
        (region, said)
    }

    /// Signs `keys`, which are sorted, and gives each peer its share of them.
    async fn provide_chunk(
        &self,
        keys: &[Key],
        shares: &[(Contact, &[Key])],
        deadline: Deadline,
        said: &mut Said,
    ) {
        let clock = self.clock();
        // A key that was withdrawn meanwhile is nobody's to say.
        let numbered: Vec<(Key, Option<u64>)> = self.keeping.with(|kept| {
            let is_ours = |key: &Key| kept.store.schedule().contains(key);
            let seq = |key| is_ours(key).then(|| kept.store.next_seq(key, &self.id, clock.unix_secs));
            keys.iter().map(|key| (*key, seq(key))).collect()
        });
        let signing = {
            let (identity, numbered) = (Arc::clone(&self.identity), numbered.clone());
            let (addrs, issued, ttl) = (self.network().listening(), clock.unix_secs, self.ttl);
            let sign = move |(key, seq): &(Key, Option<u64>)| {
                let sign = |seq| ProviderRecord::sign(&identity, *key, &addrs, seq, issued, ttl);
                seq.map(|seq| sign(seq).encoded().clone())
            };
            move || numbered.iter().map(sign).collect::<Vec<Option<Bytes>>>()
        };
        let Ok(records) = self.spawner.blocking("sign", deadline, signing).await else { return };
        let kept = self.send(keys, &records, shares, deadline).await;
        let published = numbered.iter().zip(&kept).filter(|(_, kept)| **kept > 0);
        let published: Vec<(Key, u64)> =
            published.filter_map(|((key, seq), _)| Some((*key, (*seq)?))).collect();
        said.keys += published.len();
        said.kept += kept.iter().sum::<usize>();
        self.keeping.with(|kept| kept.store.on_published(&published, clock));
        self.metrics.tally(PROVIDED, "").add(published.len() as u64);
        if let Err(error) = self.keeping.flush(deadline).await {
            tracing::debug!(%error, "they were provided, and the disk does not know it");
        }
    }

    /// Sends every peer its records, and counts for each key how many keep it.
    async fn send(
        &self,
        keys: &[Key],
        records: &[Option<Bytes>],
        shares: &[(Contact, &[Key])],
        deadline: Deadline,
    ) -> Vec<usize> {
        let mut waiting: VecDeque<Parcel> =
            shares.iter().flat_map(|(peer, share)| parcels(peer, share, keys, records)).collect();
        let mut kept = vec![0; keys.len()];
        let mut out = InFlight::new();
        let rpc_timeout = self.settings().rpc_timeout;
        loop {
            while out.len() < STORES_AT_ONCE && !deadline.has_passed() {
                let Some(parcel) = waiting.pop_front() else { break };
                let records = parcel.keys.iter().filter_map(|at| records[*at].clone()).collect();
                let request = Arc::new(Request::Provide { records });
                let reply = self.network().ask(&parcel.peer, request, deadline.within(rpc_timeout));
                out.push_boxed(parcel, reply);
            }
            if out.is_empty() {
                return kept;
            }
            let (mut parcel, reply) = out.next().await;
            match reply.map(|reply| reply.answer) {
                Ok(Answer::Provided { results }) => {
                    let mut skipped = Vec::new();
                    for (at, result) in parcel.keys.iter().zip(&results) {
                        match result {
                            RecordOutcome::Kept => kept[*at] += 1,
                            RecordOutcome::Skipped => skipped.push(*at),
                            _ => {}
                        }
                    }
                    // It says itself that it would like to have them again.
                    if !skipped.is_empty() && !parcel.is_again {
                        (parcel.keys, parcel.is_again) = (skipped, true);
                        waiting.push_back(parcel);
                    }
                }
                Ok(_) => {}
                Err(failure) if failure.is_the_peers() => self.buckets.failed(parcel.peer.id).await,
                Err(_) => {}
            }
        }
    }
}

/// Some records for one peer.
struct Parcel {
    peer: Contact,
    /// Which of the keys, by their place.
    keys: Vec<usize>,
    is_again: bool,
}

/// What one peer should keep, cut into what messages can carry.
fn parcels(peer: &Contact, share: &[Key], keys: &[Key], records: &[Option<Bytes>]) -> Vec<Parcel> {
    let places = share.iter().filter_map(|key| keys.binary_search(key).ok());
    let (places, bodies): (Vec<usize>, Vec<Bytes>) =
        places.filter_map(|at| Some((at, records[at].clone()?))).unzip();
    let mut rest = &places[..];
    let cut = |batch: &[Bytes]| {
        let (keys, others) = rest.split_at(batch.len());
        rest = others;
        Parcel { peer: peer.clone(), keys: keys.to_vec(), is_again: false }
    };
    batches(&bodies).map(cut).collect()
}
