//! The routing table as it runs: one writer for each bucket that has peers, and snapshots that everybody reads.
//!
//! A bucket's writer starts with its first peer. What happens to peers reaches it through its `route` lane; what it
//! decides it publishes as a snapshot, so lookups and answers never wait for it. A writer that cannot keep up costs
//! updates, which are counted, and not time: the next answer of the same peer says the same again.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ron_core::{
    Capacity, Deadline, Inbox, Lane, LaneSpec, Lock, LockSpec, Metrics, NodeId, Restart, Snapshot, Spawner,
    Stop, Tally, TaskSpec, now,
};
use tokio::time::Instant;

use crate::{
    Settings,
    logic::{
        Contact, Key,
        table::{Answered, BUCKETS, Bucket, Diversity, Entry, bucket_index, closest},
    },
    metrics::ROUTE_DROPPED,
};

pub(crate) const ROUTE: LaneSpec = LaneSpec::new("ron-dht", "route", 1024)
    .flow("lookups, listener → writer of one bucket")
    .why("a burst of answers of one bucket; who finds it full waits 100 ms, then drops and counts");

pub(crate) const WRITER: TaskSpec = TaskSpec::new("ron-dht", "bucket_writer")
    .restart(Restart::Never)
    .what("the only writer of one bucket; publishes its snapshot");

pub(crate) const DIVERSITY: LockSpec = LockSpec::new("ron-dht", "diversity", 300)
    .guards("how many places each network holds; held for one change of a bucket");

/// News of a peer that was heard this recently are no news.
const FRESH: Duration = Duration::from_secs(1);

/// What happened to a peer.
enum Route {
    Answered { contact: Contact, observed: IpAddr, rtt: Duration },
    Failed { id: NodeId },
}

/// Whom a bucket wants to be pinged, because somebody waits for the place.
pub(crate) type Ping = Arc<dyn Fn(Contact) + Send + Sync>;

/// The table.
pub(crate) struct Buckets {
    own: NodeId,
    epoch: Instant,
    buckets: Box<[OnceLock<Handle>]>,
    diversity: Arc<Lock<Diversity>>,
    settings: Snapshot<Settings>,
    route: LaneSpec,
    spawner: Spawner,
    metrics: Metrics,
    dropped: Tally,
    ping: Ping,
}

struct Handle {
    lane: Lane<Route>,
    snapshot: Snapshot<Arc<[Entry]>>,
}

impl Buckets {
    pub(crate) fn new(
        own: NodeId,
        epoch: Instant,
        settings: Snapshot<Settings>,
        spawner: Spawner,
        metrics: &Metrics,
        ping: Ping,
    ) -> Self {
        let now = settings.load();
        let route =
            Capacity::new("route_lane", now.route_lane).map_or(ROUTE, |room| ROUTE.with_capacity(room));
        let diversity = now.preset.diversity();
        Buckets {
            own,
            epoch,
            buckets: (0..BUCKETS).map(|_| OnceLock::new()).collect(),
            diversity: Arc::new(Lock::new(DIVERSITY, diversity, metrics)),
            settings,
            route,
            spawner,
            metrics: metrics.clone(),
            dropped: metrics.tally(ROUTE_DROPPED, ""),
            ping,
        }
    }

    /// The `count` peers nearest to `target`.
    pub(crate) fn closest(&self, target: &Key, count: usize) -> Vec<Entry> {
        closest(&self.own, target, count, |index| self.snapshot(index))
    }

    /// Every peer, for whoever wants to look.
    pub(crate) fn peers(&self) -> Vec<Entry> {
        (0..BUCKETS).filter_map(|index| self.snapshot(index)).flat_map(|bucket| bucket.to_vec()).collect()
    }

    /// Buckets that have peers.
    pub(crate) fn filled(&self) -> usize {
        (0..BUCKETS).filter_map(|index| self.snapshot(index)).filter(|bucket| !bucket.is_empty()).count()
    }

    /// Returns when there is somebody in the table: whoever has just answered is on the way there, and a search that
    /// begins before has nobody to ask and takes the network for empty. Not for ever, since the bucket may be full of
    /// others who have yet to be found gone.
    pub(crate) async fn wait_for_anybody(&self) {
        let until = Deadline::after(self.settings.load().route_timeout);
        while self.filled() == 0 && !until.has_passed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What is known of `id`.
    pub(crate) fn get(&self, id: &NodeId) -> Option<Entry> {
        let bucket = self.snapshot(bucket_index(&self.own, id)?)?;
        bucket.iter().find(|entry| entry.contact.id == *id).cloned()
    }

    /// `contact` answered from `observed` after `rtt`.
    pub(crate) async fn answered(&self, contact: Contact, observed: IpAddr, rtt: Duration) {
        let known = self.get(&contact.id);
        let since = now().duration_since(self.epoch);
        if known.is_some_and(|known| {
            known.contact == contact && !known.is_silent() && since.saturating_sub(known.seen) < FRESH
        }) {
            return;
        }
        self.route(contact.id, Route::Answered { contact, observed, rtt }).await;
    }

    /// `id` did not answer.
    pub(crate) async fn failed(&self, id: NodeId) {
        if self.get(&id).is_some() {
            self.route(id, Route::Failed { id }).await;
        }
    }

    async fn route(&self, id: NodeId, route: Route) {
        let Some(index) = bucket_index(&self.own, &id) else { return };
        let handle = self.buckets[index].get_or_init(|| self.start());
        let pushed = match handle.lane.try_push_or_return(route) {
            Ok(()) => Ok(()),
            Err((_, route)) => {
                let timeout = self.settings.load().route_timeout;
                handle.lane.push(route, Deadline::after(timeout)).await
            }
        };
        if pushed.is_err() {
            self.dropped.add(1);
        }
    }

    fn start(&self) -> Handle {
        let (lane, inbox) = Lane::open(self.route, &self.metrics);
        lane.close_on(&self.spawner.stop());
        let snapshot = Snapshot::new(Arc::from([]));
        let writer = Writer {
            bucket: Bucket::new(),
            snapshot: snapshot.clone(),
            diversity: Arc::clone(&self.diversity),
            epoch: self.epoch,
            ping: Arc::clone(&self.ping),
        };
        let _ = self.spawner.spawn(WRITER, move |stop| writer.run(inbox, stop));
        Handle { lane, snapshot }
    }

    fn snapshot(&self, index: usize) -> Option<Arc<[Entry]>> {
        self.buckets[index].get().map(|handle| Arc::clone(&*handle.snapshot.load()))
    }
}

/// The owner of a bucket.
struct Writer {
    bucket: Bucket,
    snapshot: Snapshot<Arc<[Entry]>>,
    diversity: Arc<Lock<Diversity>>,
    epoch: Instant,
    ping: Ping,
}

impl Writer {
    async fn run(mut self, inbox: Inbox<Route>, _stop: Stop) {
        // The lane closes with the stop; what is queued then is still heard.
        while let Some(route) = inbox.recv().await {
            self.apply(route);
            while let Some(route) = inbox.try_recv() {
                self.apply(route);
            }
            self.snapshot.replace(self.bucket.snapshot());
        }
    }

    fn apply(&mut self, route: Route) {
        let since = now().duration_since(self.epoch);
        let mut diversity = self.diversity.lock();
        match route {
            Route::Answered { contact, observed, rtt } => {
                let answered = self.bucket.on_answer(contact, observed, rtt, &mut diversity, since);
                drop(diversity);
                if let Answered::PingOldest(oldest) = answered {
                    (self.ping)(oldest);
                }
            }
            Route::Failed { id } => {
                self.bucket.on_failure(&id, &mut diversity, since);
            }
        }
    }
}
