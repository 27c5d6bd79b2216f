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
        table::{Answered, BUCKETS, Bucket, Diversity, Entry, bucket_index, visit_closest},
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

/// Buckets that are allocated together. A network of N nodes fills about log2 N of the 256, the first ones, so a table is
/// one page or two.
const PAGE: usize = 16;

/// News of a peer that was heard this recently are no news.
const FRESH: Duration = Duration::from_secs(1);

/// What happened to a peer.
enum Route {
    Answered { contact: Contact, observed: IpAddr, rtt: Duration, knows_us: bool },
    Failed { id: NodeId },
}

/// A ping that somebody should send.
pub(crate) struct Errand {
    pub(crate) to: Contact,
    /// Whether it says where we take calls, so that the peer may put us into its table too.
    pub(crate) introduces: bool,
}

/// Takes errands of buckets: the oldest peer when somebody waits for its place, and a stranger that has entered.
pub(crate) type Ping = Arc<dyn Fn(Errand) + Send + Sync>;

/// The table.
pub(crate) struct Buckets {
    own: NodeId,
    epoch: Instant,
    pages: [OnceLock<Page>; BUCKETS / PAGE],
    diversity: Arc<Lock<Diversity>>,
    settings: Snapshot<Settings>,
    route: LaneSpec,
    spawner: Spawner,
    metrics: Metrics,
    dropped: Tally,
    ping: Ping,
}

type Page = Box<[OnceLock<Handle>; PAGE]>;

struct Handle {
    /// Boxed, because a lane keeps room for what it once held, and there is one for every bucket.
    lane: Lane<Box<Route>>,
    snapshot: Snapshot<[Entry]>,
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
            pages: Default::default(),
            diversity: Arc::new(Lock::new(DIVERSITY, diversity, metrics)),
            settings,
            route,
            spawner,
            metrics: metrics.clone(),
            dropped: metrics.tally(ROUTE_DROPPED, ""),
            ping,
        }
    }

    /// Shows `visit` the `count` peers nearest to `target`, the nearest first.
    pub(crate) fn visit_closest(&self, target: &Key, count: usize, visit: impl FnMut(&Entry)) {
        let pages = self.pages.iter().rposition(|page| page.get().is_some()).map_or(0, |last| last + 1);
        visit_closest(&self.own, target, count, pages * PAGE, |index| self.snapshot(index), visit);
    }

    /// Every peer, for whoever wants to look.
    pub(crate) fn peers(&self) -> Vec<Entry> {
        self.snapshots().flat_map(|bucket| bucket.to_vec()).collect()
    }

    /// Buckets that have peers who are not silent.
    pub(crate) fn filled(&self) -> usize {
        self.snapshots().filter(|bucket| bucket.iter().any(|entry| !entry.is_silent())).count()
    }

    /// Peers that are not silent, counted up to `enough`.
    pub(crate) fn answering(&self, enough: usize) -> usize {
        let answering = |bucket: Arc<[Entry]>| bucket.iter().filter(|entry| !entry.is_silent()).count();
        self.snapshots().map(answering).sum::<usize>().min(enough)
    }

    /// Whether nobody is in this bucket, not even silent peers.
    pub(crate) fn is_empty(&self, index: usize) -> bool {
        self.snapshot(index).is_none_or(|bucket| bucket.is_empty())
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
        self.look_at(id, Entry::clone)
    }

    /// [`get`](Self::get) without a copy.
    pub(crate) fn look_at<R>(&self, id: &NodeId, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        let bucket = self.snapshot(bucket_index(&self.own, id)?)?;
        bucket.iter().find(|entry| entry.contact.id == *id).map(look)
    }

    /// `contact` answered from `observed` after `rtt`. If it does not know us and enters the table, it will be told: who
    /// is near us should have us in its table as well, and where our bucket is full, its own is about as full.
    pub(crate) async fn answered(&self, contact: &Contact, observed: IpAddr, rtt: Duration, knows_us: bool) {
        let since = now().duration_since(self.epoch);
        let is_old_news = |known: &Entry| {
            known.contact == *contact && !known.is_silent() && since.saturating_sub(known.seen()) < FRESH
        };
        if self.look_at(&contact.id, is_old_news).unwrap_or(false) {
            return;
        }
        let contact = contact.clone();
        self.route(contact.id, Route::Answered { contact, observed, rtt, knows_us }).await;
    }

    /// `id` did not answer.
    pub(crate) async fn failed(&self, id: NodeId) {
        if self.look_at(&id, |_| ()).is_some() {
            self.route(id, Route::Failed { id }).await;
        }
    }

    async fn route(&self, id: NodeId, route: Route) {
        let Some(index) = bucket_index(&self.own, &id) else { return };
        let page = self.pages[index / PAGE].get_or_init(Page::default);
        let handle = page[index % PAGE].get_or_init(|| self.start());
        let pushed = match handle.lane.try_push_or_return(Box::new(route)) {
            Ok(()) => Ok(()),
            Err((refused, route)) => match self.settings.load().route_timeout {
                Duration::ZERO => Err(refused),
                timeout => handle.lane.push(route, Deadline::after(timeout)).await,
            },
        };
        if pushed.is_err() {
            self.dropped.add(1);
        }
    }

    fn start(&self) -> Handle {
        let (lane, inbox) = Lane::open(self.route, &self.metrics);
        lane.close_on(&self.spawner.stop());
        let snapshot = Snapshot::from(Arc::<[Entry]>::from([]));
        let writer = Writer {
            bucket: Bucket::new(),
            snapshot: snapshot.clone(),
            diversity: Arc::clone(&self.diversity),
            epoch: self.epoch,
            ping: Arc::clone(&self.ping),
        };
        // Boxed, or every layer around the task would have room for it.
        let _ = self.spawner.spawn(WRITER, move |stop| Box::pin(writer.run(inbox, stop)));
        Handle { lane, snapshot }
    }

    fn snapshot(&self, index: usize) -> Option<Arc<[Entry]>> {
        self.pages[index / PAGE].get()?[index % PAGE].get().map(|handle| handle.snapshot.load())
    }

    fn snapshots(&self) -> impl Iterator<Item = Arc<[Entry]>> {
        let handles = self.pages.iter().filter_map(OnceLock::get).flat_map(|page| page.iter());
        handles.filter_map(OnceLock::get).map(|handle| handle.snapshot.load())
    }
}

/// The owner of a bucket.
struct Writer {
    bucket: Bucket,
    snapshot: Snapshot<[Entry]>,
    diversity: Arc<Lock<Diversity>>,
    epoch: Instant,
    ping: Ping,
}

impl Writer {
    async fn run(mut self, inbox: Inbox<Box<Route>>, _stop: Stop) {
        // The lane closes with the stop; what is queued then is still heard.
        while let Some(route) = inbox.recv().await {
            self.apply(*route);
            while let Some(route) = inbox.try_recv() {
                self.apply(*route);
            }
            self.snapshot.replace_shared(self.bucket.snapshot());
        }
    }

    fn apply(&mut self, route: Route) {
        let since = now().duration_since(self.epoch);
        let mut diversity = self.diversity.lock();
        match route {
            Route::Answered { contact, observed, rtt, knows_us } => {
                let answered = self.bucket.on_answer(contact.clone(), observed, rtt, &mut diversity, since);
                drop(diversity);
                match answered {
                    Answered::PingOldest(to) => (self.ping)(Errand { to, introduces: false }),
                    Answered::Entered if !knows_us => (self.ping)(Errand { to: contact, introduces: true }),
                    _ => {}
                }
            }
            Route::Failed { id } => {
                self.bucket.on_failure(&id, &mut diversity, since);
            }
        }
    }
}
