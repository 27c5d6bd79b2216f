//! What a host holds: a node of the DHT.

use std::{
    fmt,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, Inbox, Lane, LaneSpec, NodeId, Phase, Pool, Ratio, ReadyGate, ReadyStatus, Restart, Snapshot,
    Stopped, Subscriber, Supervisor, TaskSpec,
    net::{BoxFuture, PublicKey},
};

use crate::{
    Builder, DhtError, Settings,
    logic::{
        Contact, Key,
        lookup::{Goal, Verdict},
        signed::Value,
        sweep::Region,
        table::Entry,
        wire::Want,
    },
    metrics::NOT_READY,
    node::Node,
    publish::{Provider, Published},
    republish::{ProvideMany, ProvideProgress, RunRegion, Said},
    search::{Nearest, Plan, search},
};

pub(crate) const WORK: LaneSpec = LaneSpec::new("ron-dht", "work", 512)
    .flow("callers → lookup pool")
    .why("half a second of searches at a thousand a second; more would wait longer than anybody does");

pub(crate) const LOOKUP: TaskSpec = TaskSpec::new("ron-dht", "lookup")
    .restart(Restart::Never)
    .what("runs one search at a time; a search that panics is told to its caller and the worker lives on");

pub(crate) const FOUND: LaneSpec = LaneSpec::new("ron-dht", "found", 64)
    .flow("one search → its caller")
    .why("some answers' worth; what a slow caller has no room for waits until the search is over, and holds nobody up");

/// Waiting searches at which the node says that it takes no more writes, and then no more at all.
pub(crate) const WRITES_AT: Ratio = Ratio::percent(80);
pub(crate) const READS_AT: Ratio = Ratio::percent(95);

/// A region that found the pool full tries again after this, or after what the pool asks for if that is longer.
const REGION_PAUSE: Duration = Duration::from_millis(50);

/// Past its deadline a search has a twentieth of its time to say what it found, within these bounds: less than the first
/// is less than a busy runtime needs, and more than the second is more than anything takes.
const GRACE_MIN: Duration = Duration::from_millis(5);
const GRACE_MAX: Duration = Duration::from_millis(50);

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The table was refreshed.
    Refreshed {
        /// Buckets that have peers.
        buckets: usize,
        /// Peers in all.
        peers: usize,
    },
    /// One of our records was stored.
    Provided {
        /// Under this key.
        key: Key,
        /// On so many peers.
        kept: usize,
    },
    /// Many of our records were brought to their places.
    Swept {
        /// So many keys.
        keys: usize,
        /// Of which so many nobody keeps. The republisher comes back to them.
        left: usize,
        /// With so many searches.
        lookups: usize,
    },
}

/// How a node is doing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Who it is.
    pub id: NodeId,
    /// Where others can reach it.
    pub addrs: Vec<SocketAddr>,
    /// Peers in the routing table.
    pub peers: usize,
    /// Buckets of it that have peers.
    pub buckets: usize,
    /// How many nodes there seem to be; nothing before the first search. See [`Dht::network_size`].
    pub network_size: Option<f64>,
    /// Records kept: for others, and copies of this node's own. A withdrawal is a record too, kept until what it takes back
    /// would have expired, so that nobody's late copy brings it back.
    pub records: usize,
    /// What those take, in bytes.
    pub record_bytes: usize,
    /// Keys that this node provides.
    pub provided: usize,
    /// How long the most overdue of those keys has been waiting to be published again.
    pub provide_lag: Duration,
    /// Searches that wait for a worker.
    pub waiting: usize,
}

pub(crate) type Job = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// A node of the DHT. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Dht {
    pub(crate) node: Arc<Node>,
    pub(crate) pool: Pool<Job, ()>,
    pub(crate) group: Supervisor,
    pub(crate) _full: Arc<[ReadyGate; 3]>,
}

/// The peers nearest to a key, and how they were found.
#[derive(Debug, Clone)]
pub struct Closest {
    /// Nearest first.
    pub peers: Vec<Contact>,
    /// How the search went: who was asked, and what they said.
    pub verdict: Verdict,
}

impl Dht {
    /// A node of the DHT.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The peers nearest to `target`: a node's id, or any other key. Dropping the future calls the search off.
    ///
    /// # Errors
    /// [`DhtError::NotReady`] with nobody to ask, [`DhtError::Busy`] when too many searches wait. A search that is cut
    /// short by its deadline is not an error: its verdict says so.
    pub async fn find_node(&self, target: impl Into<Key>, deadline: Deadline) -> Result<Closest, DhtError> {
        let plan = self.plan(target.into(), Goal::Closest, deadline)?;
        let target = plan.target;
        let verdict = self.run("find_node", deadline, move |node| async move {
            search(&node, plan, &mut Nearest(target)).await
        });
        let verdict = verdict.await?;
        Ok(Closest { peers: verdict.closest.clone(), verdict })
    }

    /// Finds providers of `key` and yields them as answers arrive, the first usually long before the search ends. The search
    /// begins with the first [`Found::next`]. It ends when `enough` were found, when everybody near the key was asked, or at
    /// the deadline; [`Found::verdict`] says which. Dropping the [`Found`] cancels it.
    ///
    /// Records that this node stores for others come first but do not count towards `enough`, since anybody may have sent
    /// them; a record of its own does count. If `enough` is more than one, a single answer counts for at most half of it, so
    /// that no peer alone decides the result. If it is one, the first answer decides: ask for more where that matters.
    ///
    /// # Errors
    /// [`DhtError::NotReady`] with nobody to ask. What happens later is told by [`Found::next`].
    pub fn find_providers(
        &self,
        key: impl Into<Key>,
        enough: NonZeroUsize,
        deadline: Deadline,
    ) -> Result<Found, DhtError> {
        let plan = self.plan(key.into(), Goal::Found(enough), deadline)?;
        let (lane, inbox) = Lane::open(FOUND, &self.node.metrics);
        let dht = self.clone();
        let search = async move {
            let searched = dht.run("find_providers", deadline, move |node| async move {
                node.find_providers(plan, enough, lane).await
            });
            searched.await
        };
        Ok(Found { inbox, late: Vec::new().into_iter(), search: Some(Box::pin(search)), verdict: None })
    }

    /// Says that this node provides `key`, to the peers nearest to it, and says so again every
    /// [`republish`](Settings::republish) until [`withdraw`](Self::withdraw), and at once after a restart at another address.
    /// Dropping the future ends this attempt; if it had begun, the key stays ours, and the republisher says it. A node that
    /// is alone has nobody to tell: that is [`DhtError::NotReady`], nothing is noted, and the call is to be made again once
    /// [`joined`](Self::joined).
    ///
    /// # Errors
    /// [`DhtError::NotKept`] when no peer took the record (the republisher tries again), [`DhtError::Store`] if the
    /// disk did not take the key, [`DhtError::NotReady`], [`DhtError::Busy`], [`DhtError::Timeout`].
    pub async fn provide(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Published, DhtError> {
        let plan = self.plan(key.into(), Goal::Closest, deadline)?;
        let done = self.run("provide", deadline, move |node| async move { node.provide(plan).await }).await?;
        asked_in_time("provide", deadline, done)
    }

    /// As [`provide`](Self::provide) for many keys at once, with far fewer searches than keys: a hundred thousand are a
    /// matter of minutes. Keys that were said not long ago need nothing, so that asking again for the same goes on where
    /// the last time ended. [`ProvideMany`] does the work and tells how far it is; dropping it stops that, and leaves
    /// what is not said to the republisher.
    ///
    /// # Errors
    /// [`DhtError::NotReady`]. What happens later is told by [`ProvideMany::next`].
    pub fn provide_many<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        deadline: Deadline,
    ) -> Result<ProvideMany, DhtError> {
        self.check_ready()?;
        let mut keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
        keys.sort_unstable();
        keys.dedup();
        let total = keys.len();
        let unix = self.node.clock().unix_secs;
        self.node.keeping.with(|kept| {
            keys.retain(|key| kept.store.schedule().is_due(key, unix));
            kept.store.plan(&keys);
        });
        let done = total - keys.len();
        let progress = Snapshot::new(ProvideProgress { total, done, ..ProvideProgress::default() });
        let watch = progress.watch();
        let (dht, node) = (self.clone(), Arc::clone(&self.node));
        let claim = node.claims.take(keys.clone());
        let work = async move {
            let _claim = claim;
            node.keeping.flush(deadline).await?;
            let run: RunRegion = Box::new(move |region| Box::pin(dht.clone().run_region(region, deadline)));
            node.sweep(keys, run, &progress).await
        };
        Ok(ProvideMany { progress: watch, work: Some(Box::pin(work)) })
    }

    /// One region of a sweep, in the lookup pool, as soon as that has room.
    async fn run_region(self, region: Region, deadline: Deadline) -> Result<(Region, Said), DhtError> {
        loop {
            let copy = region.clone();
            let done = self.run("provide_many", deadline, move |node| async move {
                node.provide_region(copy, deadline).await
            });
            match done.await {
                Err(DhtError::Busy { .. } | DhtError::Timeout { .. }) if deadline.has_passed() => {
                    return Ok((region, Said::default()));
                }
                Err(DhtError::Busy { retry_after, .. }) => {
                    let pause = retry_after.max(REGION_PAUSE).min(deadline.remaining());
                    tokio::time::sleep(pause).await;
                }
                done => return done,
            }
        }
    }

    /// Takes back that this node provides `key`. Dropping the future ends the attempt; peers that were not told forget
    /// the record when it expires. The withdrawal is a record that peers keep in its place for as long, so
    /// [`Status::records`] does not shrink at once.
    ///
    /// # Errors
    /// As [`provide`](Self::provide).
    pub async fn withdraw(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Published, DhtError> {
        let plan = self.plan(key.into(), Goal::Closest, deadline)?;
        let done =
            self.run("withdraw", deadline, move |node| async move { node.withdraw(plan).await }).await?;
        asked_in_time("withdraw", deadline, done)
    }

    /// Stores `data` under its hash, and returns that. Peers keep it for twice [`republish`](Settings::republish), a day
    /// by default. Unlike what is [provided](Self::provide), a value is not said again by itself: put it again in time, it
    /// is the same value. Dropping the future ends the attempt; some peers may keep it.
    ///
    /// # Errors
    /// [`DhtError::Record`] if it is larger than 16 KiB; else as [`provide`](Self::provide).
    pub async fn put(&self, data: &[u8], deadline: Deadline) -> Result<Key, DhtError> {
        let value = Value::immutable(data, self.node.ttl)?;
        let key = value.key();
        let plan = self.plan(key, Goal::Closest, deadline)?;
        let done = self.run("put", deadline, move |node| async move { node.put(plan, value, None).await });
        asked_in_time("put", deadline, done.await?)?;
        Ok(key)
    }

    /// The data whose hash is `key`. Dropping the future calls the search off.
    ///
    /// # Errors
    /// [`DhtError::NotFound`] when the peers near the key do not have it, [`DhtError::Timeout`] when the deadline came
    /// before that was known; else as [`find_node`](Self::find_node).
    pub async fn get(&self, key: impl Into<Key>, deadline: Deadline) -> Result<Bytes, DhtError> {
        let enough = NonZeroUsize::MIN;
        let plan = self.plan(key.into(), Goal::Found(enough), deadline)?;
        let found =
            self.run("get", deadline, move |node| async move { node.get(plan, Want::Immutable).await });
        found_in_time("get", deadline, found.await?).map(|value| value.data().clone())
    }

    /// Stores `data` under this node's key and `salt`, as number `seq`, which begins with 1 and must grow with every
    /// change. With `expected`, only where that number, or nothing, is held: two writers that read the same do not
    /// overwrite each other. As no version has number 0, `Some(0)` is for the first one. Two that write the same bytes as
    /// the same number have written the same value, and both succeed. Kept for as long as with [`put`](Self::put);
    /// dropping the future does the same.
    ///
    /// ```
    /// # use ron_core::Deadline;
    /// # use ron_dht::{Dht, DhtError};
    /// /// Writes what `change` makes of the newest value, and begins again if another writer was faster.
    /// async fn update(dht: &Dht, change: impl Fn(&[u8]) -> Vec<u8>, by: Deadline) -> Result<u64, DhtError> {
    ///     loop {
    ///         let (held, old) = match dht.get_mutable(&dht.public_key(), b"config", by).await {
    ///             Ok(value) => (value.signer().map_or(0, |signer| signer.seq), value.data().to_vec()),
    ///             Err(DhtError::NotFound) => (0, Vec::new()),
    ///             Err(error) => return Err(error),
    ///         };
    ///         match dht.put_mutable(b"config", &change(&old), held + 1, Some(held), by).await {
    ///             Ok(_) => return Ok(held + 1),
    ///             Err(DhtError::Conflict { .. }) => {}
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`DhtError::Conflict`] when this node or all peers hold a newer number. With `expected`, more than half of the peers
    /// must keep the value, so that of two writers that reach the same peers at most one succeeds; otherwise it is
    /// [`DhtError::Conflict`] if some hold another one, and [`DhtError::Undecided`] if too many did not answer. Some peers
    /// may hold the value all the same: read again, and write on top of that. [`DhtError::Record`] for number 0 or a salt
    /// of more than 64 bytes; else as [`put`](Self::put).
    pub async fn put_mutable(
        &self,
        salt: &[u8],
        data: &[u8],
        seq: u64,
        expected: Option<u64>,
        deadline: Deadline,
    ) -> Result<Key, DhtError> {
        let value = Value::mutable(&self.node.identity, salt, seq, data, self.node.ttl)?;
        let key = value.key();
        let plan = self.plan(key, Goal::Closest, deadline)?;
        let done = self
            .run("put_mutable", deadline, move |node| async move { node.put(plan, value, expected).await });
        asked_in_time("put_mutable", deadline, done.await?)?;
        Ok(key)
    }

    /// The newest that the owner of `public_key` stored under `salt`, as far as the peers near it know. Its number is
    /// `seq` of [`Value::signer`]. Dropping the future calls the search off.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_mutable(
        &self,
        public_key: &PublicKey,
        salt: &[u8],
        deadline: Deadline,
    ) -> Result<Value, DhtError> {
        let plan = self.plan(Value::mutable_key(public_key, salt), Goal::Closest, deadline)?;
        let found =
            self.run("get_mutable", deadline, move |node| async move { node.get(plan, Want::Mutable).await });
        found_in_time("get_mutable", deadline, found.await?)
    }

    /// Who this node is.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// The key under which this node's mutable values are found.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.node.identity.public_key()
    }

    /// This node as others know it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { id: self.node.id, addrs: self.node.network().listening().into() }
    }

    /// For a host whose endpoint listens elsewhere than before: peers are told with the next question, and all keys that this
    /// node provides are said again, because nobody finds it by what was said. Says how many keys those are.
    pub fn moved(&self) -> usize {
        let addrs = self.node.network().listening();
        self.node.keeping.with(|kept| kept.store.on_moved(&addrs))
    }

    /// The peers of the routing table.
    #[must_use]
    pub fn peers(&self) -> Vec<Entry> {
        self.node.buckets.peers()
    }

    /// How many nodes there seem to be, judged by how near the nearest are to random points; nothing before the first
    /// search. An estimate, rough where there are only a few, and without clients, who are in no table: for deciding how far to
    /// look, not for counting heads.
    #[must_use]
    pub fn network_size(&self) -> Option<f64> {
        self.node.estimate.lock().nodes()
    }

    /// Whether the host is ready, and if not, why: the gates of everything under the same supervisor, with this node's
    /// `dht.*` among them. For this node alone use [`joined`](Self::joined).
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.group.ready().status()
    }

    /// Returns when the node has found others and its table is as full as a network of their number makes it. What
    /// [`ready`](Self::ready) tells of the whole host, this tells of the node alone. The first node of a network has joined
    /// when the second has come. Dropping the future is harmless.
    ///
    /// # Errors
    /// [`DhtError::Timeout`], which says what is missing; [`DhtError::Canceled`] when the node stops.
    pub async fn joined(&self, deadline: Deadline) -> Result<(), DhtError> {
        let mut joined = self.node.joined.watch();
        let stop = self.node.stop();
        while !**joined.get() {
            let changed = deadline.limit("join", joined.changed());
            let changed = tokio::select! {
                biased;
                () = stop.requested() => return Err(DhtError::Canceled),
                changed = changed => changed,
            };
            changed.map_err(|error| match DhtError::from(error) {
                DhtError::Timeout { .. } => DhtError::Timeout { op: self.why_not_joined() },
                error => error,
            })?;
        }
        Ok(())
    }

    /// What joining waits for, in the words of a [`DhtError::Timeout`].
    fn why_not_joined(&self) -> &'static str {
        match (self.node.buckets.filled(), self.node.buckets.peers().is_empty()) {
            (0, true) => "join (no seed has answered and nobody has come; see dht.seeds in ready())",
            (0, false) => "join (no peer that is known answers; see dht.peers in ready())",
            _ => "join (the table is not filled yet; see dht.buckets in ready())",
        }
    }

    /// How the node is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let node = &self.node;
        let unix = node.clock().unix_secs;
        let (records, record_bytes, provided, lag) = node.keeping.with(|kept| {
            let (records, schedule) = (kept.store.records(), kept.store.schedule());
            (records.len(), records.bytes(), schedule.len(), schedule.lag_secs(unix))
        });
        Status {
            id: node.id,
            addrs: node.network().listening(),
            peers: node.buckets.peers().len(),
            buckets: node.buckets.filled(),
            network_size: self.network_size(),
            records,
            record_bytes,
            provided,
            provide_lag: Duration::from_secs(lag),
            waiting: self.pool.depth(),
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.node.settings()
    }

    /// Changes the settings of a running node: searches, timeouts, limits on peers, readiness and refresh. Searches that
    /// run go on with the old ones.
    ///
    /// # Errors
    /// [`DhtError::Config`], and then nothing has changed: for a value that makes no sense, and with
    /// [`ConfigError::NeedsRestart`](ron_core::ConfigError::NeedsRestart) for a setting that cannot change while the
    /// node runs.
    pub fn reload(&self, settings: Settings) -> Result<(), DhtError> {
        self.node.reload(settings)
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> Subscriber<Event> {
        self.node.events.subscribe()
    }

    /// Takes no new searches, lets running ones finish for as long as the settings allow, and stops.
    /// Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.group.shutdown().await
    }

    fn plan(&self, target: Key, goal: Goal, deadline: Deadline) -> Result<Plan, DhtError> {
        self.check_ready()?;
        Ok(Plan { target, goal, settings: self.node.settings().lookup, deadline, is_sample: false })
    }

    /// Whether there is anybody to ask, and time to.
    fn check_ready(&self) -> Result<(), DhtError> {
        let (phase, gate) = match self.group.phase() {
            Phase::Running if self.node.buckets.filled() > 0 => return Ok(()),
            Phase::Running if !self.node.buckets.peers().is_empty() => ("bootstrap", "dht.peers"),
            Phase::Running => ("bootstrap", "dht.seeds"),
            Phase::Draining => ("drain", "dht tasks"),
            _ => return Err(DhtError::Canceled),
        };
        self.node.metrics.tally(NOT_READY, phase).add(1);
        Err(DhtError::NotReady { gate })
    }

    /// Runs a job in the lookup pool.
    async fn run<T, F>(
        &self,
        op: &'static str,
        deadline: Deadline,
        job: impl FnOnce(Arc<Node>) -> F + Send + 'static,
    ) -> Result<T, DhtError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let (node, into) = (Arc::clone(&self.node), Arc::clone(&slot));
        let job: Job = Box::new(move || {
            Box::pin(async move {
                let done = job(node).await;
                *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            })
        });
        // A search ends itself at its deadline and says what it has.
        let grace = (deadline.remaining() / 20).clamp(GRACE_MIN, GRACE_MAX);
        let deadline = Deadline::at(deadline.instant() + grace);
        self.pool.call(op, job, deadline).await?;
        let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.ok_or(DhtError::Canceled)
    }
}

/// Who had no time to ask anybody knows nothing of what they would have kept.
fn asked_in_time<T>(op: &'static str, deadline: Deadline, done: Result<T, DhtError>) -> Result<T, DhtError> {
    match done {
        Err(DhtError::NotKept { asked: 0 }) if deadline.has_passed() => Err(DhtError::Timeout { op }),
        done => done,
    }
}

/// Nothing, found in time, is an answer; a search that was cut short has none.
fn found_in_time<T>(op: &'static str, deadline: Deadline, found: Option<T>) -> Result<T, DhtError> {
    let missing = if deadline.has_passed() { DhtError::Timeout { op } } else { DhtError::NotFound };
    found.ok_or(missing)
}

/// A search that runs, and what it comes to: its verdict, and those whom the caller had no room for.
type Searching = BoxFuture<'static, Result<(Verdict, Vec<Provider>), DhtError>>;

/// Providers as they are found.
#[must_use = "nothing is searched for until `next` is called"]
pub struct Found {
    inbox: Inbox<Provider>,
    /// What there was no room for while the search ran.
    late: std::vec::IntoIter<Provider>,
    search: Option<Searching>,
    verdict: Option<Verdict>,
}

impl Found {
    /// The next provider; `None` when the search is over. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What kept the search from running, once.
    pub async fn next(&mut self) -> Result<Option<Provider>, DhtError> {
        if let Some(search) = &mut self.search {
            let ended = tokio::select! {
                biased;
                Some(provider) = self.inbox.recv() => return Ok(Some(provider)),
                ended = search => ended,
            };
            self.search = None;
            let (verdict, late) = ended?;
            self.verdict = Some(verdict);
            self.late = late.into_iter();
        }
        Ok(self.inbox.try_recv().or_else(|| self.late.next()))
    }

    /// How the search went, once it is over.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

impl fmt::Debug for Dht {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dht").field("node", &self.node.id).finish_non_exhaustive()
    }
}
