//! What all tasks of a node share, and how it answers its peers.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ClientKey, Deadline, Feed, Gate, GateSettings, Gauge, Histogram, Lane, LaneSpec, Lock, LockSpec, Metrics,
    NodeId, Restart, Spawner, Stop, Supervisor, Tally, TaskSpec,
    net::{BoxFuture, Identity, oap::Code, rpc::Fault},
    now,
};
use tokio::time::Instant;

use crate::{
    DhtError, Event, Settings,
    buckets::{Buckets, Errand},
    logic::{
        Contact, Key,
        addrs::Sender,
        estimate::SizeEstimate,
        lookup::{Reason, Verdict},
        records::Records,
        schedule::Schedule,
        signed::{ProviderRecord, RecordError, Value, Verified},
        table::K,
        wire::{Answer, Outcome, PROVIDERS_MAX, Put, Request, Want, method},
    },
    metrics::{LOOKUP_HOPS, LOOKUP_SECONDS, LOOKUPS, NETWORK_SIZE, QUOTA_REJECT, REQUESTS},
    network::{Answers, Network, Served, name},
    search::Plan,
};

pub(crate) const RECORDS: LockSpec =
    LockSpec::new("ron-dht", "records", 310).guards("what is kept for others; held for one record");

pub(crate) const ESTIMATE: LockSpec = LockSpec::new("ron-dht", "estimate", 320)
    .guards("the estimated size of the network; held for arithmetic");

pub(crate) const SCHEDULE: LockSpec = LockSpec::new("ron-dht", "schedule", 330)
    .guards("which keys are ours and when they are due; held for one key");

pub(crate) const PINGS: LaneSpec = LaneSpec::new("ron-dht", "pings", 256)
    .flow("bucket writers, listener → pinger")
    .why("every bucket may ask for one at once; a ping that finds no room is asked for again");

pub(crate) const PINGER: TaskSpec = TaskSpec::new("ron-dht", "pinger").restart(Restart::PROMPT).what(
    "asks peers whether they are there: those in a bucket that somebody waits for, and those who called us",
);

pub(crate) const EVENTS: LaneSpec =
    LaneSpec::feed("ron-dht", "events", 1024).flow("all tasks → subscribers").why("a second of a busy node");

/// What is shared.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) identity: Arc<Identity>,
    pub(crate) settings: Settings,
    pub(crate) epoch: Instant,
    pub(crate) buckets: Buckets,
    pub(crate) records: Lock<Kept>,
    pub(crate) estimate: Lock<SizeEstimate>,
    pub(crate) metrics: Metrics,
    pub(crate) events: Feed<Event>,
    pub(crate) pings: Lane<Errand>,
    pub(crate) spawner: Spawner,
    gate: Gate,
    network: OnceLock<Arc<dyn Network>>,
    took: Histogram,
    hops: Histogram,
    size: Gauge,
    /// By number of their method, less one.
    requests: [Tally; method::ALL.len()],
    pub(crate) schedule: Lock<Schedule>,
    pub(crate) this: Weak<Node>,
}

/// The records, and the randomness with which some of many are chosen.
pub(crate) struct Kept {
    pub(crate) records: Records,
    pub(crate) rng: fastrand::Rng,
}

impl Node {
    pub(crate) fn new(
        identity: Arc<Identity>,
        settings: Settings,
        seed: u64,
        supervisor: &Supervisor,
    ) -> Result<(Arc<Self>, ron_core::Inbox<Errand>), DhtError> {
        settings.check()?;
        let metrics = supervisor.metrics();
        let limits = GateSettings {
            clients: settings.peers_remembered,
            ..GateSettings::new(settings.peer_limits, settings.total_limits)
        };
        let gate = Gate::new("dht", limits, metrics)?;
        let (pings, inbox) = Lane::open(PINGS, metrics);
        pings.close_on(&supervisor.stop());
        let (id, epoch, spawner) = (identity.node_id(), now(), supervisor.spawner());
        let events = Feed::open(EVENTS, metrics);
        events.close_on(&supervisor.stop());
        let asks = pings.clone();
        let ping = Arc::new(move |errand| drop(asks.try_push(errand)));
        let records = Records::new(settings.records.clone(), settings.policy());
        let kept = Kept { records, rng: fastrand::Rng::with_seed(seed) };
        let schedule = Schedule::new(settings.republish, &mut fastrand::Rng::with_seed(seed));
        let diversity = settings.preset.diversity();
        let node = Arc::new_cyclic(|this| Node {
            id,
            identity,
            epoch,
            buckets: Buckets::new(id, epoch, diversity, spawner.clone(), metrics, ping),
            records: Lock::new(RECORDS, kept, metrics),
            estimate: Lock::new(ESTIMATE, SizeEstimate::new(), metrics),
            metrics: metrics.clone(),
            events,
            pings,
            spawner,
            gate,
            network: OnceLock::new(),
            took: metrics.histogram(LOOKUP_SECONDS),
            hops: metrics.histogram(LOOKUP_HOPS),
            size: metrics.gauge(NETWORK_SIZE),
            requests: method::ALL.map(|number| metrics.tally(REQUESTS, name(number))),
            schedule: Lock::new(SCHEDULE, schedule, metrics),
            this: this.clone(),
            settings,
        });
        Ok((node, inbox))
    }

    /// Plugs the network in, once, before any task runs.
    pub(crate) fn connect(&self, network: Arc<dyn Network>) {
        let _ = self.network.set(network);
    }

    pub(crate) fn network(&self) -> &Arc<dyn Network> {
        self.network.get().expect("connected before any task runs")
    }

    /// Time since the node began, the clock of all logic.
    pub(crate) fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }

    pub(crate) fn stop(&self) -> Stop {
        self.spawner.stop()
    }

    /// Notes how a search went.
    pub(crate) fn on_verdict(&self, plan: &Plan, verdict: &Verdict, took: Duration) {
        let reason = match verdict.reason {
            Reason::Complete => "complete",
            Reason::Enough => "enough",
            Reason::Hops => "hops",
            Reason::Requests => "requests",
            Reason::Deadline => "deadline",
            Reason::Canceled => "canceled",
        };
        self.metrics.tally(LOOKUPS, reason).add(1);
        self.took.observe(took.as_secs_f64());
        self.hops.observe(verdict.hops.into());
        if plan.is_sample && verdict.reason == Reason::Complete {
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

    /// Keeps a record that has been verified.
    pub(crate) fn keep(&self, verified: Verified, from: &Sender, expected: Option<u64>) -> Outcome {
        let since = self.since(now());
        let mut kept = self.records.lock();
        let result = match expected {
            None => kept.records.insert(verified, from, since),
            Some(expected) => kept.records.compare_and_swap(verified, expected, from, since),
        };
        drop(kept);
        if let Err(error) = &result {
            self.metrics.tally(QUOTA_REJECT, error.reason()).add(1);
        }
        Outcome::from(&result)
    }

    fn closer(&self, target: &Key, except: &NodeId) -> Vec<Contact> {
        let mut entries = self.buckets.closest(target, K + 1);
        entries.retain(|entry| entry.contact.id != *except);
        entries.truncate(K);
        entries.into_iter().map(|entry| entry.contact).collect()
    }

    fn find_value(&self, from: &Sender, key: Key, want: Want, limit: u16) -> Answer {
        let since = self.since(now());
        let mut kept = self.records.lock();
        let Kept { records, rng } = &mut *kept;
        let (providers, value) = match want {
            Want::Providers => {
                (records.providers(&key, since, usize::from(limit).min(PROVIDERS_MAX), rng), None)
            }
            Want::Immutable => (Vec::new(), records.value(&key, false, since)),
            Want::Mutable => (Vec::new(), records.value(&key, true, since)),
        };
        drop(kept);
        Answer::Found { closer: self.closer(&key, &from.id), providers, value }
    }

    /// Checks signatures away from the tasks that read links, and keeps what is in order. What the time does not
    /// suffice for is skipped, and said to be.
    async fn keep_all<T: Send + 'static>(
        self: Arc<Self>,
        from: Sender,
        items: Vec<T>,
        deadline: Deadline,
        verify: fn(&T) -> Result<(Verified, Option<u64>), RecordError>,
    ) -> Result<Vec<Outcome>, Fault> {
        let node = Arc::clone(&self);
        let check = move || {
            let keep = |item: &T| {
                if deadline.has_passed() {
                    return Outcome::Skipped;
                }
                match verify(item) {
                    Ok((verified, expected)) => node.keep(verified, &from, expected),
                    Err(error) => {
                        node.metrics.tally(QUOTA_REJECT, error.reason()).add(1);
                        Outcome::from(&Err(error))
                    }
                }
            };
            items.iter().map(keep).collect()
        };
        Ok(self.spawner.blocking("verify", deadline, check).await?)
    }

    /// A peer says that it takes calls. If we do not know it, it is asked whether that is so.
    fn introduced(&self, from: &Sender, listening: Vec<std::net::SocketAddr>) {
        let addrs = self.settings.policy().usable(&listening, from.ip);
        if from.id != self.id && !addrs.is_empty() && self.buckets.look_at(&from.id, |_| ()).is_none() {
            // Without an introduction of ours: two nodes with full buckets would introduce themselves for ever.
            let to = Contact { id: from.id, addrs: addrs.into() };
            drop(self.pings.try_push(Errand { to, introduces: false }));
        }
    }
}

impl Answers for Node {
    fn answer(&self, from: Sender, request: Request, deadline: Deadline) -> Served {
        if !self.settings.server {
            return Served::Now(Err(Fault::new(Code::NotFound, "a client answers nothing")));
        }
        let pass = match self.gate.enter(ClientKey::from_bytes(from.id.as_bytes()), 0) {
            Ok(pass) => pass,
            Err(refused) => {
                self.metrics.tally(QUOTA_REJECT, "rate").add(1);
                return Served::Now(Err(refused.into()));
            }
        };
        self.requests[usize::from(request.method() - 1)].add(1);
        let Some(node) = self.this.upgrade() else {
            return Served::Now(Err(Fault::new(Code::Unavailable, "stopping")));
        };
        match request {
            Request::Ping { listening } => {
                self.introduced(&from, listening);
                Served::Now(Ok(Answer::Pong))
            }
            Request::FindNode { target } => {
                Served::Now(Ok(Answer::Nodes { closer: self.closer(&target, &from.id) }))
            }
            Request::FindValue { key, want, limit } => {
                Served::Now(Ok(self.find_value(&from, key, want, limit)))
            }
            Request::Provide { records } => later(async move {
                let _pass = pass;
                let verify = |record: &Bytes| Ok((ProviderRecord::decode(record)?.verify()?, None));
                let results = node.keep_all(from, records, deadline, verify).await?;
                Ok(Answer::Provided { results })
            }),
            Request::Store { values } => later(async move {
                let _pass = pass;
                let verify = |put: &Put| Ok((Value::decode(&put.value)?.verify()?, put.expected));
                let results = node.keep_all(from, values, deadline, verify).await?;
                Ok(Answer::Stored { results })
            }),
        }
    }
}

fn later(answer: impl Future<Output = Result<Answer, Fault>> + Send + 'static) -> Served {
    let answer: BoxFuture<'static, _> = Box::pin(answer);
    Served::Later(answer)
}
