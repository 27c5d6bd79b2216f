//! What a running subsystem exports, over the host's own registry.
//!
//! Counters are [`Tally`]s. A lane resolves its own when it is created, so its hot path is one relaxed add on the rare
//! side (a refusal, a drop) and nothing at all on the common one; what is rare by itself (a spawn, a timeout) looks its
//! counter up. Queue depth is not counted anywhere: a scrape asks the queues. Label values are `&'static str` by type, so
//! no peer, key or address can become one.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
    registry::Registry,
};

use crate::inventory::{Inventory, LaneSpec, LockSpec, TaskSpec};

/// The counters every subsystem has, by the name they are exported under (after the crate's prefix, before
/// `_total`) and the one label they carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Counter {
    /// Calls refused because something was full.
    BusyRejections,
    /// Items that were accepted and then lost to the overflow policy.
    QueueDropped,
    /// Events a slow feed subscriber missed.
    BusLagged,
    /// Tasks started.
    TasksSpawned,
    /// Tasks that have ended, however they did: what was started and has not ended runs.
    TasksEnded,
    /// Tasks that ended by themselves after being asked to stop or were refused because it had stopped, and jobs given up by
    /// their caller.
    TasksCanceled,
    /// Tasks cut off, at the drain deadline or by `Task::abort`.
    TasksAborted,
    /// Panics caught in tasks and jobs.
    TasksPanicked,
    /// Restarts of tasks that failed.
    TasksRestarted,
    /// Operations that passed their deadline.
    IoTimeouts,
    /// Retries of idempotent operations.
    BackoffRetries,
    /// Frames that broke a rule of their format.
    FrameRejects,
    /// Incoming connections that came to no link.
    HandshakeFailures,
    /// Peers that did not say HELLO in time.
    HandshakeTimeouts,
    /// Dials that came to no link.
    DialFailures,
    /// Links opened, by who opened them.
    LinksOpened,
    /// Sessions that ended, by why.
    SessionsClosed,
    /// One that only one subsystem has.
    Own(OwnCounter),
}

/// The declaration of a counter that belongs to one subsystem: a `const` beside the code that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnCounter {
    /// The name after the crate's prefix and before `_total`.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The name of its label; empty if it has none.
    pub label: &'static str,
}

/// Declares the counters of one subsystem, each `NAME = name, label, help`: constants for the crate that declares them.
///
/// ```
/// use ron_core::Metrics;
///
/// ron_core::counters! {
///     /// What came in by the front door.
///     GUESTS = "guests", "kind", "Guests that came, by kind";
///     BELLS = "bells", "", "How often the bell was rung";
/// }
///
/// let metrics = Metrics::default();
/// metrics.tally(GUESTS, "invited").add(2);
/// assert_eq!((metrics.total(GUESTS), metrics.total(BELLS)), (2, 0));
/// ```
#[macro_export]
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $label:literal, $help:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: $crate::Counter =
            $crate::Counter::Own($crate::OwnCounter { name: $text, help: $help, label: $label });)*
    };
}

/// The declaration of a value that goes up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GaugeSpec {
    /// The name after the crate's prefix.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
}

/// The declaration of a distribution, for example of durations in seconds.
#[derive(Debug, Clone, Copy)]
pub struct HistogramSpec {
    /// The name after the crate's prefix.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The upper bounds of its buckets, ascending.
    pub buckets: &'static [f64],
}

impl Counter {
    /// Those that every kind of task has.
    const OF_TASKS: [Counter; 6] = [
        Counter::TasksSpawned,
        Counter::TasksEnded,
        Counter::TasksCanceled,
        Counter::TasksAborted,
        Counter::TasksPanicked,
        Counter::TasksRestarted,
    ];

    /// Name without prefix and `_total`, help text, label name.
    fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Counter::BusyRejections => {
                ("busy_rejections", "Calls refused because something was full", "endpoint")
            }
            Counter::QueueDropped => ("queue_dropped", "Accepted items lost to the overflow policy", "queue"),
            Counter::BusLagged => ("bus_lagged", "Events that slow subscribers missed", "topic"),
            Counter::TasksSpawned => ("tasks_spawned", "Tasks started", "kind"),
            Counter::TasksEnded => ("tasks_ended", "Tasks that have ended, however", "kind"),
            Counter::TasksCanceled => {
                ("tasks_canceled", "Tasks and jobs that ended because they were told to", "kind")
            }
            Counter::TasksAborted => ("tasks_aborted", "Tasks cut off at the drain deadline", "kind"),
            Counter::TasksPanicked => ("tasks_panicked", "Panics caught in tasks and jobs", "kind"),
            Counter::TasksRestarted => ("tasks_restarted", "Restarts of tasks that failed", "kind"),
            Counter::IoTimeouts => ("io_timeouts", "Operations that passed their deadline", "op"),
            Counter::BackoffRetries => ("backoff_retries", "Retries of idempotent operations", "op"),
            Counter::FrameRejects => ("frame_rejects", "Frames that broke a rule of their format", "reason"),
            Counter::HandshakeFailures => {
                ("handshake_failures", "Incoming connections that came to no link", "reason")
            }
            Counter::HandshakeTimeouts => {
                ("handshake_timeouts", "Links on which the peer did not say HELLO in time", "")
            }
            Counter::DialFailures => ("dial_failures", "Dials that came to no link", "reason"),
            Counter::LinksOpened => ("links_opened", "Links opened, by which side", "side"),
            Counter::SessionsClosed => ("sessions_closed", "Sessions that ended, by why", "reason"),
            Counter::Own(OwnCounter { name, help, label }) => (name, help, label),
        }
    }
}

/// One counter with its label resolved. Cloning shares it; adding is one relaxed atomic.
#[derive(Clone, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tally({})", self.get())
    }
}

/// One value that goes up and down. Cloning shares it.
#[derive(Clone, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Says what it is now.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// What it was last said to be; zero before.
    #[must_use]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gauge({})", self.get())
    }
}

/// A distribution. Cloning shares it; observing takes no lock, so that it can be done for every request on every core.
///
/// The count is the sum of its buckets, so the two always fit together; the sum of what was observed may be ahead or behind by
/// what is being observed while it is read.
#[derive(Clone)]
pub struct Histogram(Arc<Observed>);

struct Observed {
    /// The upper bound of each bucket and what fell into it; the last has no bound.
    buckets: Box<[(f64, AtomicU64)]>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl Histogram {
    /// An empty one with buckets up to these bounds, ascending, and one for everything above.
    #[must_use]
    pub fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        let bounds = bounds.into_iter().chain([f64::INFINITY]);
        let buckets = bounds.map(|bound| (bound, AtomicU64::new(0))).collect();
        Histogram(Arc::new(Observed { buckets, sum: AtomicU64::new(0) }))
    }

    /// Counts one observation.
    pub fn observe(&self, value: f64) {
        let Observed { buckets, sum } = &*self.0;
        let last = buckets.len() - 1;
        let at = buckets[..last].iter().position(|(bound, _)| value <= *bound).unwrap_or(last);
        buckets[at].1.fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// How often something was observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.buckets.iter().map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({})", self.count())
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let Observed { buckets, sum } = &*self.0;
        let seen: Vec<(f64, u64)> =
            buckets.iter().map(|(bound, count)| (*bound, count.load(Ordering::Relaxed))).collect();
        let count = seen.iter().map(|(_, count)| count).sum();
        let sum = f64::from_bits(sum.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum, count, &seen, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// A queue that can be asked how full it is.
///
/// [`Lane`](crate::Lane) and [`Feed`](crate::Feed) are. A queue with an order of its own becomes one of the measured and
/// declared ones by [`Metrics::watch_queue`].
pub trait Depth: Send + Sync {
    /// Items waiting now.
    fn depth(&self) -> usize;
    /// Items it takes at most.
    fn capacity(&self) -> usize;
    /// The most items that ever waited at once, if it remembers; a [`Lane`](crate::Lane) does with the feature `sim`. Otherwise those
    /// that wait now.
    #[cfg(feature = "sim")]
    fn most(&self) -> usize {
        self.depth()
    }
}

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueState {
    /// Its name; sessions and streams may have many of one name.
    pub name: &'static str,
    /// Items that wait.
    pub depth: usize,
    /// Items that it takes at most.
    pub capacity: usize,
}

/// The counters and queues of one subsystem.
///
/// `Metrics::default()` is a set nobody scrapes; it works the same and costs a few words. Cloning shares the set.
#[derive(Clone, Default)]
pub struct Metrics {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    tallies: BTreeMap<(Counter, &'static str), Tally>,
    gauges: BTreeMap<GaugeSpec, Gauge>,
    labelled: BTreeMap<GaugeSpec, BTreeMap<Vec<GaugeLabel>, Gauge>>,
    histograms: BTreeMap<&'static str, (&'static str, Histogram)>,
    queues: BTreeMap<&'static str, Queues>,
    inventory: Inventory,
}

/// The name and the value of a gauge's label.
type GaugeLabel = (&'static str, &'static str);

/// The queues of one name.
#[derive(Default, Clone)]
struct Queues {
    all: Vec<Weak<dyn Depth>>,
    /// When there are so many, those that are gone are forgotten.
    sweep_at: usize,
}

impl Metrics {
    /// A set exported through the host's `registry`, every name behind `prefix` (`ron_dht` gives
    /// `ron_dht_queue_depth`). Once for each registry and prefix, or a scrape sees everything twice: a subsystem that
    /// is started several times shares one set.
    #[must_use]
    pub fn register(prefix: &str, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        registry.sub_registry_with_prefix(prefix).register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// The counter `counter` with its label set to `label`. Resolve it once and keep it.
    #[must_use]
    pub fn tally(&self, counter: Counter, label: &'static str) -> Tally {
        self.lock().tallies.entry((counter, label)).or_default().clone()
    }

    /// The gauge that `spec` declares. Resolve it once and keep it.
    #[must_use]
    pub fn gauge(&self, spec: GaugeSpec) -> Gauge {
        self.lock().gauges.entry(spec).or_default().clone()
    }

    /// One series of the gauge that `spec` declares, with these labels; every series of a gauge has the same names.
    /// Resolve it once and keep it.
    #[must_use]
    pub fn gauge_with(&self, spec: GaugeSpec, labels: &[GaugeLabel]) -> Gauge {
        self.lock().labelled.entry(spec).or_default().entry(labels.to_vec()).or_default().clone()
    }

    /// The histogram that `spec` declares. Resolve it once and keep it.
    #[must_use]
    pub fn histogram(&self, spec: HistogramSpec) -> Histogram {
        let mut shared = self.lock();
        let new = || (spec.help, Histogram::new(spec.buckets.iter().copied()));
        shared.histograms.entry(spec.name).or_insert_with(new).1.clone()
    }

    /// Everything declared to this set so far: the lanes, tasks and locks of a running subsystem.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        self.lock().inventory.clone()
    }

    /// Every queue that exists now, each on its own, with what waits in it and what it takes at most: what the scraped gauges
    /// are sums of.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueState> {
        self.read_queues(|queue| queue.depth())
    }

    /// Every queue that exists now, with the most that ever waited in it at once as its depth. Who only looks now and then does
    /// not see what a queue held in between.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn queues_at_most(&self) -> Vec<QueueState> {
        self.read_queues(|queue| queue.most())
    }

    fn read_queues(&self, depth: impl Fn(&dyn Depth) -> usize) -> Vec<QueueState> {
        let (queues, depth) = (self.lock().queues.clone(), &depth);
        let read = |(name, queues): (&'static str, Queues)| {
            let all = queues.all.into_iter().filter_map(|queue| queue.upgrade());
            all.map(move |queue| QueueState { name, depth: depth(&*queue), capacity: queue.capacity() })
        };
        queues.into_iter().flat_map(read).collect()
    }

    /// What was counted so far, over all labels.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        let shared = self.lock();
        shared.tallies.iter().filter(|((of, _), _)| *of == counter).map(|(_, tally)| tally.get()).sum()
    }

    /// What the gauge of this name says, if there is one without labels.
    #[must_use]
    pub fn level(&self, name: &str) -> Option<f64> {
        let shared = self.lock();
        shared.gauges.iter().find(|(spec, _)| spec.name == name).map(|(_, gauge)| gauge.get())
    }

    pub(crate) fn note_task(&self, spec: TaskSpec) {
        let mut shared = self.lock();
        shared.inventory.note_task(spec);
        // At zero before anything happens: an alert on an increase does not see a counter that begins at one.
        for counter in Counter::OF_TASKS {
            shared.tallies.entry((counter, spec.name)).or_default();
        }
    }

    pub(crate) fn note_lock(&self, spec: LockSpec) {
        self.lock().inventory.note_lock(spec);
    }

    /// Measures and declares a queue that is neither a lane nor a feed, for as long as it exists.
    pub fn watch_queue(&self, spec: LaneSpec, queue: Weak<dyn Depth>) {
        let mut shared = self.lock();
        shared.inventory.note_lane(spec);
        let queues = shared.queues.entry(spec.name).or_default();
        if queues.all.len() >= queues.sweep_at {
            queues.all.retain(|queue| queue.strong_count() > 0);
            // At twice the survivors, so that the sweeps cost a constant per queue however many live.
            queues.sweep_at = (2 * queues.all.len()).max(8);
        }
        queues.all.push(queue);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.lock();
        f.debug_struct("Metrics")
            .field("tallies", &shared.tallies)
            .field("queues", &shared.queues.keys())
            .finish_non_exhaustive()
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // Copied out first: a queue's depth takes the queue's own lock, and no lock here is taken under another.
        let (tallies, gauges, labelled, histograms, queues) = {
            let shared = self.lock();
            let (gauges, labelled) = (shared.gauges.clone(), shared.labelled.clone());
            (shared.tallies.clone(), gauges, labelled, shared.histograms.clone(), shared.queues.clone())
        };
        let mut values = tallies.iter().peekable();
        while let Some(((counter, _), _)) = values.peek() {
            let counter = *counter;
            let (name, help, label_name) = counter.describe();
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            while let Some(((_, label), tally)) = values.next_if(|((of, _), _)| *of == counter) {
                if label_name.is_empty() {
                    family.encode_counter::<NoLabelSet, u64, f64>(&tally.get(), None)?;
                    continue;
                }
                let labels = [(label_name, *label)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&tally.get(), None)?;
            }
        }
        for (spec, value) in &gauges {
            let mut family = encoder.encode_descriptor(spec.name, spec.help, None, MetricType::Gauge)?;
            family.encode_gauge(&value.get())?;
        }
        for (spec, series) in &labelled {
            let mut family = encoder.encode_descriptor(spec.name, spec.help, None, MetricType::Gauge)?;
            for (labels, value) in series {
                family.encode_family(labels)?.encode_gauge(&value.get())?;
            }
        }
        for (name, (help, histogram)) in &histograms {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            histogram.encode(family)?;
        }
        let mut gauge = |name, help, of: fn(&dyn Depth) -> usize| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (queue, instances) in &queues {
                let sum: usize =
                    instances.all.iter().filter_map(Weak::upgrade).map(|queue| of(&*queue)).sum();
                family
                    .encode_family(&[("queue", *queue)])?
                    .encode_gauge(&i64::try_from(sum).unwrap_or(i64::MAX))?;
            }
            Ok::<_, fmt::Error>(())
        };
        gauge("queue_depth", "Items waiting", |queue| queue.depth())?;
        gauge("queue_capacity", "Items the queue takes at most", |queue| queue.capacity())
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    struct Fixed(usize);

    impl Depth for Fixed {
        fn depth(&self) -> usize {
            self.0
        }

        fn capacity(&self) -> usize {
            512
        }
    }

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("writing to a string");
        text
    }

    const WORK: LaneSpec = LaneSpec::new("ron-test", "work", 512);

    #[test]
    fn names_are_the_family_names_behind_the_prefix() {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_test", &mut registry);
        metrics.tally(Counter::BusyRejections, "work").add(3);
        let queue: Arc<dyn Depth> = Arc::new(Fixed(7));
        metrics.watch_queue(WORK, Arc::downgrade(&queue));

        let text = scrape(&registry);
        assert!(text.contains("ron_test_busy_rejections_total{endpoint=\"work\"} 3"), "{text}");
        assert!(text.contains("ron_test_queue_depth{queue=\"work\"} 7"), "{text}");
        assert!(text.contains("ron_test_queue_capacity{queue=\"work\"} 512"), "{text}");
        assert_eq!(metrics.level("no such gauge"), None);
        assert_eq!(metrics.queues(), [QueueState { name: "work", depth: 7, capacity: 512 }]);
        metrics.tally(Counter::BusyRejections, "play").add(1);
        assert_eq!(metrics.total(Counter::BusyRejections), 4);
    }

    #[test]
    fn queues_of_one_name_are_one_series_and_dead_ones_leave_it() {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_test", &mut registry);
        let kept: Arc<dyn Depth> = Arc::new(Fixed(1));
        metrics.watch_queue(WORK, Arc::downgrade(&kept));
        for _ in 0..10_000 {
            let short: Arc<dyn Depth> = Arc::new(Fixed(5));
            metrics.watch_queue(WORK, Arc::downgrade(&short));
        }
        assert!(scrape(&registry).contains("queue_depth{queue=\"work\"} 1"));
        assert!(metrics.lock().queues["work"].all.len() < 16);
    }

    #[test]
    fn a_subsystem_exports_what_only_it_has() {
        const HEDGES: OwnCounter = OwnCounter { name: "hedge_spawned", help: "Hedges", label: "" };
        const QUOTA: OwnCounter = OwnCounter { name: "quota_reject", help: "Refused", label: "kind" };
        const LAG: GaugeSpec = GaugeSpec { name: "provide_lag_seconds", help: "Lag" };
        const TOOK: HistogramSpec =
            HistogramSpec { name: "lookup_seconds", help: "Took", buckets: &[0.1, 1.0] };
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_test", &mut registry);
        metrics.tally(Counter::Own(HEDGES), "").add(2);
        metrics.tally(Counter::Own(QUOTA), "publisher").add(1);
        metrics.tally(Counter::Own(QUOTA), "key").add(3);
        metrics.gauge(LAG).set(1.5);
        const STATE: GaugeSpec = GaugeSpec { name: "breaker_state", help: "Breakers" };
        metrics.gauge_with(STATE, &[("target", "dht"), ("state", "open")]).set(1.0);
        metrics.gauge_with(STATE, &[("target", "dht"), ("state", "closed")]).set(0.0);
        metrics.histogram(TOOK).observe(0.5);
        metrics.histogram(TOOK).observe(0.05);
        let text = scrape(&registry);
        for line in [
            "ron_test_hedge_spawned_total 2",
            "ron_test_quota_reject_total{kind=\"key\"} 3",
            "ron_test_quota_reject_total{kind=\"publisher\"} 1",
            "ron_test_provide_lag_seconds 1.5",
            "ron_test_breaker_state{target=\"dht\",state=\"open\"} 1.0",
            "ron_test_breaker_state{target=\"dht\",state=\"closed\"} 0.0",
            "ron_test_lookup_seconds_bucket{le=\"0.1\"} 1",
            "ron_test_lookup_seconds_bucket{le=\"+Inf\"} 2",
            "ron_test_lookup_seconds_count 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn an_asked_counter_is_exported_at_zero() {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_test", &mut registry);
        let _ = metrics.tally(Counter::TasksPanicked, "lookup");
        assert!(scrape(&registry).contains("ron_test_tasks_panicked_total{kind=\"lookup\"} 0"));
    }
}
