//! What all tasks of a node share, and how it answers its peers.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Capacity, ClientKey, Deadline, Feed, Gate, Gauge, Histogram, Inbox, Lane, LaneSpec, Lock, LockSpec,
    Metrics, NodeId, Pass, Restart, Snapshot, Spawner, Stop, Supervisor, Tally, TaskSpec,
    net::{Identity, oap::Code, rpc::Fault},
    now,
};
use tokio::time::Instant;

use crate::{
    DhtError, Event, Settings,
    buckets::{Buckets, Errand},
    keeping::{Keeping, Kept},
    logic::{
        Contact, Key,
        addrs::{AddressPolicy, Sender},
        estimate::SizeEstimate,
        introductions::Introductions,
        lookup::{Reason, Verdict},
        signed::{ProviderRecord, RecordError, Value, Verified},
        table::{Entry, K},
        wire::{Answer, PROVIDERS_MAX, Put, RecordOutcome, Request, Want, method},
    },
    metrics::{
        LOOKUP_HOPS, LOOKUP_SECONDS, LOOKUPS, NETWORK_SIZE, NOT_READY, QUOTA_REJECT, RECORD_REJECTS, REQUESTS,
    },
    network::{Answers, Network, Served, name, refusal},
    publish::Claims,
    retry::Patience,
    search::Plan,
    store::Clock,
};

pub(crate) const ESTIMATE: LockSpec = LockSpec::new("ron-dht", "estimate", 320)
    .guards("the estimated size of the network; held for arithmetic");

pub(crate) const PINGS: LaneSpec = LaneSpec::new("ron-dht", "pings", 256)
    .flow("bucket writers, searches → pinger")
    .why("every bucket may ask for one at once; a ping that is shed is asked for again")
    .shed_oldest();

pub(crate) const INTRODUCED: LaneSpec = LaneSpec::new("ron-dht", "introduced", 256)
    .flow("listener → pinger")
    .why("peers that say that they take calls, each once in a while; one that is shed says it again")
    .shed_oldest();

pub(crate) const INTRODUCTIONS: LockSpec = LockSpec::new("ron-dht", "introductions", 330)
    .guards("whose introduction was looked into of late; held for two lookups, or a sweep of four thousand");

pub(crate) const PINGER: TaskSpec = TaskSpec::new("ron-dht", "pinger").restart(Restart::PROMPT).what(
    "asks peers whether they are there: those in a bucket that somebody waits for, and those who called us",
);

pub(crate) const EVENTS: LaneSpec =
    LaneSpec::feed("ron-dht", "events", 1024).flow("all tasks → subscribers").why("a second of a busy node");

/// What a host gives a node beside its settings.
pub(crate) struct Parts {
    pub(crate) identity: Arc<Identity>,
    pub(crate) settings: Settings,
    pub(crate) seed: u64,
    pub(crate) unix: UnixClock,
}

/// When to come back with records while the disk is behind: a sync of a busy disk or two.
const BEHIND: Duration = Duration::from_secs(1);

/// Proofs that come with a message.
const PROOFS_FREE: usize = 8;

/// What each proof of a larger message counts for: with the default limits, a core and a half of them for all peers.
const PROOF_BYTES: u64 = 2 << 10;

/// Forgeries after which the rest of a message is not looked at.
const FORGED_MAX: usize = 3;

/// Bytes of providers in one answer: 256 ordinary ones.
const PROVIDERS_BYTES_MAX: usize = 48 << 10;

/// Answers up to this size are paid for with the question; what is beyond it counts against the peer's bytes.
const ANSWER_BYTES_FREE: u64 = 4 << 10;

/// What the pinger has to do.
#[derive(Clone)]
pub(crate) struct Errands {
    pub(crate) pings: Inbox<Errand>,
    /// Who says that it takes calls.
    pub(crate) newcomers: Inbox<Contact>,
}

/// Proves one item of a request, and says which sequence number its sender expects to be held.
type Verify<T> = fn(&Node, &T) -> Result<(Verified, Option<u64>), RecordError>;

/// Tells the seconds since 1970.
pub(crate) type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What is shared.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) identity: Arc<Identity>,
    pub(crate) settings: Snapshot<Settings>,
    pub(crate) policy: AddressPolicy,
    pub(crate) is_server: bool,
    /// How long our records live: twice as long as until they are said again.
    pub(crate) ttl: Duration,
    pub(crate) epoch: Instant,
    unix: UnixClock,
    pub(crate) buckets: Buckets,
    /// Whether the table has been filled with others.
    pub(crate) joined: Snapshot<bool>,
    /// Whether the seeds were asked, and if any answered, the table was filled from there.
    pub(crate) settled: Snapshot<bool>,
    pub(crate) keeping: Keeping,
    pub(crate) claims: Claims,
    pub(crate) estimate: Lock<SizeEstimate>,
    pub(crate) metrics: Metrics,
    pub(crate) events: Feed<Event>,
    pub(crate) pings: Lane<Errand>,
    introduced: Lane<Contact>,
    introductions: Lock<Introductions>,
    pub(crate) spawner: Spawner,
    pub(crate) patience: Patience,
    gate: Gate,
    network: OnceLock<Arc<dyn Network>>,
    took: Histogram,
    hops: Histogram,
    size: Gauge,
    requests: [Tally; method::ALL.len()],
    pub(crate) this: Weak<Node>,
}

impl Node {
    pub(crate) fn new(
        parts: Parts,
        epoch: Instant,
        keeping: Keeping,
        supervisor: &Supervisor,
    ) -> Result<(Arc<Self>, Errands), DhtError> {
        let Parts { identity, settings, seed, unix } = parts;
        let metrics = supervisor.metrics();
        let gate = Gate::new("dht", settings.gate(), metrics)?;
        let (pings, inbox) = Lane::open(PINGS, metrics);
        pings.close_on(&supervisor.stop());
        let (introduced, newcomers) = Lane::open(INTRODUCED, metrics);
        introduced.close_on(&supervisor.stop());
        let (id, spawner) = (identity.node_id(), supervisor.spawner());
        let events = EVENTS.with_capacity(Capacity::new("events_lane", settings.events_lane)?);
        let events = Feed::open(events, metrics);
        events.close_on(&supervisor.stop());
        let asks = pings.clone();
        let ping = Arc::new(move |errand| drop(asks.try_push(errand)));
        let (policy, is_server, ttl) = (settings.policy(), settings.server, settings.republish * 2);
        let settings = Snapshot::new(settings);
        let node = Arc::new_cyclic(|this| Node {
            id,
            identity,
            policy,
            is_server,
            ttl,
            epoch,
            unix,
            buckets: Buckets::new(id, epoch, settings.clone(), spawner.clone(), metrics, ping),
            joined: Snapshot::new(false),
            settled: Snapshot::new(false),
            keeping,
            claims: Claims::new(metrics),
            estimate: Lock::new(ESTIMATE, SizeEstimate::new(), metrics),
            metrics: metrics.clone(),
            events,
            pings,
            introduced,
            introductions: Lock::new(INTRODUCTIONS, Introductions::default(), metrics),
            spawner,
            patience: Patience::new(seed, metrics),
            gate,
            network: OnceLock::new(),
            took: metrics.histogram(LOOKUP_SECONDS),
            hops: metrics.histogram(LOOKUP_HOPS),
            size: metrics.gauge(NETWORK_SIZE),
            requests: method::ALL.map(|number| metrics.tally(REQUESTS, name(number))),
            this: this.clone(),
            settings,
        });
        Ok((node, Errands { pings: inbox, newcomers }))
    }

    /// Plugs the network in, once, before any task runs.
    pub(crate) fn connect(&self, network: Arc<dyn Network>) {
        let _ = self.network.set(network);
    }

    pub(crate) fn network(&self) -> &Arc<dyn Network> {
        self.network.get().expect("connected before any task runs")
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load()
    }

    /// Applies what may change while the node runs, or nothing at all.
    pub(crate) fn reload(&self, settings: Settings) -> Result<(), DhtError> {
        self.settings().check_change(&settings)?;
        self.gate.reload(settings.gate())?;
        self.settings.replace(settings);
        Ok(())
    }

    /// Time since the node began, the clock of all logic.
    pub(crate) fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }

    /// Both clocks now.
    pub(crate) fn clock(&self) -> Clock {
        Clock { now: self.since(now()), unix_secs: (self.unix)() }
    }

    pub(crate) fn stop(&self) -> Stop {
        self.spawner.stop()
    }

    /// Notes how a search went.
    pub(crate) fn on_verdict(&self, plan: &Plan, verdict: &Verdict, took: Duration) {
        self.metrics.tally(LOOKUPS, verdict.reason.name()).add(1);
        self.took.observe(took.as_secs_f64());
        self.hops.observe(verdict.hops.into());
        // With nobody to ask, a search is complete and says nothing; and who did not answer may be there all the same.
        if plan.is_sample && verdict.reason == Reason::Complete && verdict.rpcs > 0 && verdict.is_sound() {
            let closest: Vec<NodeId> = verdict.closest.iter().map(|contact| contact.id).collect();
            let mut estimate = self.estimate.lock();
            estimate.on_closest(&plan.target, &closest);
            let nodes = estimate.nodes();
            drop(estimate);
            if let Some(nodes) = nodes {
                self.size.set(nodes);
            }
        }
    }

    /// Keeps a record that has been verified. It is durable after the next [`Keeping::flush`].
    pub(crate) fn keep(&self, verified: Verified, from: &Sender, expected: Option<u64>) -> RecordOutcome {
        let clock = self.clock();
        let result = self.keeping.with(|kept| match expected {
            None => kept.store.insert(verified, from, clock),
            Some(expected) => kept.store.compare_and_swap(verified, expected, from, clock),
        });
        if let Err(error) = &result {
            self.on_refused(error);
        }
        RecordOutcome::from(&result)
    }

    fn on_refused(&self, error: &RecordError) {
        let counter = if error.is_quota() { QUOTA_REJECT } else { RECORD_REJECTS };
        self.metrics.tally(counter, error.reason()).add(1);
    }

    fn closer(&self, target: &Key, except: &NodeId) -> Vec<Contact> {
        let mut closer = Vec::with_capacity(K + 1);
        self.buckets.visit_closest(target, K + 1, |entry| {
            if entry.contact.id != *except {
                closer.push(entry.contact.clone());
            }
        });
        closer.truncate(K);
        closer
    }

    fn find_value(&self, from: &Sender, key: Key, want: Want, limit: u16) -> Answer {
        let since = self.since(now());
        let limit = usize::from(limit).min(PROVIDERS_MAX);
        let (providers, value) = self.keeping.with(|Kept { store, rng }| match want {
            Want::Providers => (store.records().providers(&key, since, limit, rng), None),
            Want::Immutable => (Vec::new(), store.records().value(&key, false, since)),
            Want::Mutable => (Vec::new(), store.records().value(&key, true, since)),
        });
        // A few long ones instead of all: whoever fills a key with long records makes its readers pay for nothing.
        let mut bytes = 0;
        let fits = |record: &Bytes| {
            bytes += record.len();
            bytes <= PROVIDERS_BYTES_MAX
        };
        let providers = providers.into_iter().take_while(fits).collect();
        Answer::Found { closer: self.closer(&key, &from.id), providers, value }
    }

    /// Checks signatures away from the tasks that read links, and keeps what is in order. What the time does not
    /// suffice for is skipped, and said to be. What is said to be kept is on disk, if there is one.
    async fn keep_all<T: Send + 'static>(
        self: Arc<Self>,
        from: Sender,
        items: Vec<T>,
        pass: Pass,
        deadline: Deadline,
        verify: Verify<T>,
    ) -> Result<Vec<RecordOutcome>, Fault> {
        if self.keeping.with(|kept| kept.store.is_behind()) {
            self.metrics.tally(QUOTA_REJECT, "store_behind").add(1);
            return Err(Fault::busy("dht store", BEHIND));
        }
        let node = Arc::clone(&self);
        let check = move || {
            let mut forged = 0;
            let keep = |item: &T| {
                if deadline.has_passed() {
                    return RecordOutcome::Skipped;
                }
                // Who brings several forgeries is not worth looking through the rest.
                if forged >= FORGED_MAX {
                    return RecordOutcome::Invalid;
                }
                match verify(&node, item) {
                    Ok((verified, expected)) => node.keep(verified, &from, expected),
                    Err(error) => {
                        forged += usize::from(matches!(error, RecordError::BadSignature(_)));
                        node.on_refused(&error);
                        RecordOutcome::from(&Err(error))
                    }
                }
            };
            // Inside until the work is done, also if nobody waits for it any more.
            (items.iter().map(keep).collect::<Vec<_>>(), pass)
        };
        let (mut outcomes, _pass) = self.spawner.blocking("verify", deadline, check).await?;
        let is_kept = outcomes.contains(&RecordOutcome::Kept);
        let flushed = if is_kept { self.keeping.flush(deadline).await } else { Ok(()) };
        if let Err(error) = flushed {
            tracing::debug!(%error, "kept in memory only, and so not said to be kept");
            for outcome in &mut outcomes {
                if *outcome == RecordOutcome::Kept {
                    *outcome = RecordOutcome::Skipped;
                }
            }
        }
        Ok(outcomes)
    }

    /// An answer that takes a while and keeps the node for that.
    fn later<A>(&self, answer: impl FnOnce(Arc<Node>) -> A) -> Served
    where
        A: Future<Output = Result<Answer, Fault>> + Send + 'static,
    {
        match self.this.upgrade() {
            Some(node) => Served::Later(Box::pin(answer(node))),
            None => Served::Now(Err(Fault::new(Code::Unavailable, "stopping"))),
        }
    }

    /// A peer says where it takes calls. If we do not know it, or not to be there, or it was silent where we know it to be,
    /// it is asked whether that is so, where it was seen: on the open Internet whoever may name other places has us knock on
    /// the doors of others.
    fn introduced(&self, from: &Sender, listening: &[std::net::SocketAddr]) {
        let mut addrs = self.policy.usable(listening, from.ip);
        if self.policy == AddressPolicy::Public {
            addrs.retain(|addr| addr.ip().to_canonical() == from.ip.to_canonical());
        }
        let is_old_news = |known: &Entry| !known.is_silent() && known.contact.addrs[..] == addrs[..];
        let is_news = || from.id != self.id && !self.buckets.look_at(&from.id, is_old_news).unwrap_or(false);
        let is_admitted = || self.introductions.lock().admit(from, self.policy, self.since(now()));
        if !addrs.is_empty() && is_news() && is_admitted() {
            drop(self.introduced.try_push(Contact { id: from.id, addrs: addrs.into() }));
        }
    }
}

impl Answers for Node {
    fn answer(&self, from: Sender, request: Request, deadline: Deadline) -> Served {
        match self.admit(&from, weight(&request) + proofs(&request)) {
            Ok(pass) => self.serve(from, request, pass, deadline),
            Err(refused) => Served::Now(Err(refused)),
        }
    }

    fn answer_encoded(&self, from: Sender, method: u16, body: &Bytes, deadline: Deadline) -> Served {
        let pass = match self.admit(&from, body.len() as u64) {
            Ok(pass) => pass,
            Err(refused) => return Served::Now(Err(refused)),
        };
        match Request::decode(method, body) {
            Ok(request) if proofs(&request) == 0 => self.serve(from, request, pass, deadline),
            Ok(request) => {
                // One place is enough for it.
                drop(pass);
                match self.admit(&from, proofs(&request)) {
                    Ok(pass) => self.serve(from, request, pass, deadline),
                    Err(refused) => Served::Now(Err(refused)),
                }
            }
            Err(error) => {
                self.metrics.tally(RECORD_REJECTS, error.reason()).add(1);
                Served::Now(Err(refusal(method, &error)))
            }
        }
    }
}

impl Node {
    /// Lets a request of a peer in, before anybody looks into it.
    fn admit(&self, from: &Sender, bytes: u64) -> Result<Pass, Fault> {
        if !self.is_server {
            return Err(Fault::new(Code::NotFound, "a client answers nothing"));
        }
        if self.stop().is_requested() {
            self.metrics.tally(NOT_READY, "drain").add(1);
            return Err(Fault::new(Code::Unavailable, "stopping"));
        }
        self.gate.enter(ClientKey::from(from.id), bytes).map_err(|refused| {
            self.metrics.tally(QUOTA_REJECT, "rate").add(1);
            refused.into()
        })
    }

    /// Whether a record, yet unproven, says more than is known. What must be refused anyway is not worth a proof.
    fn is_news(&self, record: &ProviderRecord) -> Result<(), RecordError> {
        record.is_current(self.clock().unix_secs)?;
        let held =
            self.keeping.with(|kept| kept.store.records().provider_seq(&record.key(), &record.publisher()));
        match held {
            Some(held) if held > record.seq() => Err(RecordError::Stale { held }),
            _ => Ok(()),
        }
    }

    /// Counts a long answer against the peer's limits, like a request of its size.
    fn charge(&self, from: &Sender, answer: &Answer) -> Result<(), Fault> {
        let Answer::Found { providers, value, .. } = answer else { return Ok(()) };
        let bytes = providers.iter().chain(value).map(|record| record.len() as u64).sum();
        if bytes <= ANSWER_BYTES_FREE {
            return Ok(());
        }
        self.admit(from, bytes).map(drop)
    }

    fn serve(&self, from: Sender, request: Request, pass: Pass, deadline: Deadline) -> Served {
        // Methods are numbered from one.
        self.requests[usize::from(request.method()) - 1].add(1);
        match request {
            Request::Ping { listening } => {
                self.introduced(&from, &listening);
                Served::Now(Ok(Answer::Pong))
            }
            Request::FindNode { target } => {
                Served::Now(Ok(Answer::Nodes { closer: self.closer(&target, &from.id) }))
            }
            Request::FindValue { key, want, limit } => {
                let answer = self.find_value(&from, key, want, limit);
                drop(pass);
                Served::Now(self.charge(&from, &answer).map(|()| answer))
            }
            Request::Provide { records } => self.later(|node| async move {
                let verify = |node: &Node, record: &Bytes| {
                    let record = ProviderRecord::decode(record)?;
                    node.is_news(&record)?;
                    Ok((record.verify()?, None))
                };
                let results = node.keep_all(from, records, pass, deadline, verify).await?;
                Ok(Answer::Provided { results })
            }),
            Request::Store { values } => self.later(|node| async move {
                let verify = |_: &Node, put: &Put| Ok((Value::decode(&put.value)?.verify()?, put.expected));
                let results = node.keep_all(from, values, pass, deadline, verify).await?;
                Ok(Answer::Stored { results })
            }),
        }
    }
}

/// Bytes of what a request wants to be kept; questions are all alike small.
fn weight(request: &Request) -> u64 {
    let bytes = match request {
        Request::Provide { records } => records.iter().map(Bytes::len).sum(),
        Request::Store { values } => values.iter().map(|put| put.value.len()).sum(),
        _ => 64,
    };
    bytes as u64
}

/// What the proofs of a request count for: a short message may hold five hundred of them.
fn proofs(request: &Request) -> u64 {
    let count = match request {
        Request::Provide { records } => records.len(),
        Request::Store { values } => values.len(),
        _ => 0,
    };
    if count <= PROOFS_FREE { 0 } else { count as u64 * PROOF_BYTES }
}
