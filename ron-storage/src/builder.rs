//! How a store is made: opened, with its tasks and its gates.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use ron_core::{
    Affects, Capacity, Feed, Gate, Lane, Metrics, Pacer, Ratio, ReadyGate, Snapshot, Supervisor,
    disk::{Disk, MemoryDisk},
};

use crate::{
    Settings, StorageError, Store,
    actor::{
        KEEPER, Keeper, SCRUBBER, SCRUBS, UPKEEP, keep, pace, scrub_all, start_gets, start_puts, start_syncs,
    },
    handle::{Counts, EVENTS, Inner},
    metrics::{GET_STREAMS, PUT_STREAMS},
    objects::Objects,
    opening::{Site, open},
    streams::Streams,
};

/// Waiting jobs at which the store says that it takes no more writes, and then no more at all.
const WRITES_AT: Ratio = Ratio::percent(80);
const READS_AT: Ratio = Ratio::percent(95);

/// What a store in memory may take where it cannot be found out how much memory is free; and what it may always take: the
/// space that puts leave free by default, and as much again.
const MEMORY_MAX: u64 = 1 << 30;
const MEMORY_MIN: u64 = 128 << 20;

/// How a store is made. See [`Store::builder`].
#[derive(Default)]
pub struct Builder {
    data: Option<(Arc<dyn Disk>, PathBuf)>,
    seed: Option<u64>,
    settings: Settings,
    metrics: Option<Metrics>,
    #[cfg(feature = "net")]
    clock: crate::claims::UnixClock,
}

impl Builder {
    /// Keeps objects in directory `path` of `disk`, usually `Arc::new(RealDisk::open(dir)?)` of [`ron_core::disk`].
    #[must_use]
    pub fn data(mut self, disk: Arc<dyn Disk>, path: impl Into<PathBuf>) -> Self {
        self.data = Some((disk, path.into()));
        self
    }

    /// Keeps objects in memory only, as without [`data`](Self::data): nothing reaches a disk, and all is gone with the
    /// store. All of it together takes at most half of the memory that is free at the start; more is
    /// [`StorageError::Full`]. For another limit, give a [`MemoryDisk::with_capacity`] to [`data`](Self::data), or set
    /// [`quota_bytes`](Settings::quota_bytes).
    #[must_use]
    pub fn memory(mut self) -> Self {
        self.data = None;
        self
    }

    /// Seeds the store's randomness, so that a run can be repeated. For tests only: whoever knows the seed can forge
    /// records.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The clock that claims are dated by: the time since 1970. Without it, the machine's clock.
    #[cfg(feature = "net")]
    #[must_use]
    pub fn unix_clock(mut self, clock: impl Fn() -> std::time::Duration + Send + Sync + 'static) -> Self {
        self.clock = crate::claims::UnixClock(Arc::new(clock));
        self
    }

    /// Settings other than the default ones. Replaces what was set before.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where the store counts, usually `Metrics::register("ron_storage", &mut registry)`. Without it, in the metrics of the
    /// supervisor.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Opens the store, in a group of its own under `supervisor`, and recovers from whatever happened to it. Dropping the
    /// future starts nothing.
    ///
    /// # Errors
    /// [`StorageError::Config`] for settings that make no sense, [`StorageError::Locked`] if another store has the
    /// directory open, [`StorageError::Version`] if it was written in another format, [`StorageError::Busy`] if the system gives
    /// no threads, [`StorageError::Disk`].
    pub async fn start(self, supervisor: &Supervisor) -> Result<Store, StorageError> {
        let Builder {
            data,
            seed,
            settings,
            metrics,
            #[cfg(feature = "net")]
            clock,
        } = self;
        settings.check()?;
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("storage", settings.drain, metrics);
        let metrics = group.metrics().clone();
        // What stops after the keeper, the younger first: it writes the index when nobody writes any more.
        let journal_group = group.child("storage journal", settings.drain, metrics.clone());
        let pools = group.child("storage pools", settings.drain, metrics.clone());
        let is_durable = data.is_some();
        let in_memory =
            || (Arc::new(MemoryDisk::with_capacity(memory_max())) as Arc<dyn Disk>, "store".into());
        let (disk, dir) = data.unwrap_or_else(in_memory);
        let site = Site {
            disk,
            dir,
            is_durable,
            seed,
            #[cfg(feature = "net")]
            clock,
        };
        let (parts, custody, opened) = open(&group, &journal_group, site, &settings).await?;
        if let Some(reason) = &opened.rebuilt {
            tracing::info!(reason, objects = opened.objects, "the index was made anew from the journal");
        }
        let lane = Capacity::new("events_lane", settings.events_lane)?;
        let events = Feed::open(EVENTS.with_capacity(lane), &metrics);
        events.close_on(&group.stop());
        let (upkeep, errands) = Lane::open(UPKEEP, &metrics);
        upkeep.close_on(&group.stop());
        let (scrubs, asked) = Lane::open(SCRUBS, &metrics);
        scrubs.close_on(&group.stop());
        let objects = Arc::new(Objects::new(parts, events.clone(), upkeep.clone(), &metrics));
        let gets = start_gets(&pools, &settings, &objects).map_err(no_threads)?;
        let puts = start_puts(&pools, &settings).map_err(no_threads)?;
        let syncs = start_syncs(&pools, &settings).map_err(no_threads)?;
        let ready = supervisor.ready();
        let mut gates = Vec::from(gets.watch(ready, WRITES_AT, READS_AT));
        gates.extend(puts.watch(ready, WRITES_AT, Ratio::percent(100)));
        let settings = Snapshot::new(settings);
        gates.push(space_gate(ready, &objects, &settings));
        let (rate, burst) = pace(&settings.load());
        let pacer = Arc::new(Pacer::new(rate, burst));
        let get_streams = Streams::new("get_streams", settings.load().get_streams, GET_STREAMS, &metrics);
        let put_streams = Streams::new("put_streams", settings.load().put_streams, PUT_STREAMS, &metrics);
        let keeper = Arc::new(Keeper {
            objects: Arc::clone(&objects),
            settings: settings.clone(),
            get_streams: Arc::clone(&get_streams),
            put_streams: Arc::clone(&put_streams),
            pacer: Arc::clone(&pacer),
            custody: Mutex::new(Some(custody)),
            below: vec![journal_group, pools],
        });
        let scrubbing = Arc::clone(&keeper);
        let _ = group
            .spawn_restarting(KEEPER, move |stop| Box::pin(keep(Arc::clone(&keeper), errands.clone(), stop)));
        let _ = group.spawn_restarting(SCRUBBER, move |stop| {
            Box::pin(scrub_all(Arc::clone(&scrubbing), asked.clone(), stop))
        });
        let inner = Inner {
            objects,
            gets,
            puts,
            syncs,
            upkeep,
            scrubs,
            events,
            pacer,
            gate: Gate::new("storage_clients", settings.load().gate(), &metrics)?,
            get_streams,
            put_streams,
            counts: Counts::new(&metrics),
            settings,
            opened,
            _gates: gates,
        };
        Ok(Store::new(inner, group))
    }
}

/// What a store in memory may take unless the host says otherwise: half of what the machine, or the control group of this
/// process, has left. If neither says how much that is, a gibibyte.
fn memory_max() -> u64 {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let allowed = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    let left = [available, allowed].into_iter().flatten().min();
    left.map_or(MEMORY_MAX, |left| left / 2).max(MEMORY_MIN)
}

/// Writes are not ready while the disk has no room for one more small object beside the reserve. Puts stop before they touch
/// the reserve, so a disk that they have filled always has a little more than that free, too little to be of use.
fn space_gate(ready: &ron_core::Ready, objects: &Arc<Objects>, settings: &Snapshot<Settings>) -> ReadyGate {
    let (objects, settings) = (Arc::downgrade(objects), settings.clone());
    ready.probe("storage.space", Affects::Writes, move || {
        let free = objects.upgrade()?.disk.free_space().ok()?;
        let settings = settings.load();
        let reserve = settings.reserve_bytes;
        (free < reserve.saturating_add(settings.small_bytes_max.into()))
            .then(|| format!("{free} bytes free, {reserve} are to stay free: delete something").into())
    })
}

fn no_threads(_: io::Error) -> StorageError {
    StorageError::Busy { what: "threads", retry_after: std::time::Duration::from_secs(1) }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("data", &self.data.as_ref().map(|(_, path)| path))
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
