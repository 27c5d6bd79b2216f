//! The only writer of the cache. Everybody else tells it what is to change.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use ron_core::{Inbox, LaneSpec, Reply, Restart, TaskSpec, now};
use tokio::time::{Instant, sleep_until};

use crate::{
    Event, IndexError,
    flight::Flight,
    inner::Inner,
    logic::{
        cache::{CacheWriter, Entry, Freshness},
        key::Key,
    },
    metrics::{CACHE_BYTES, CACHE_ENTRIES, HEDGE_DELAY, LOOKUPS_MAX, PURGES, SWEPT},
};

pub(crate) const WRITES: LaneSpec = LaneSpec::new("ron-index", "writes", 1024)
    .flow("workers and callers → cache janitor")
    .why("more lookups than can be under way; each is a map operation, so it is empty unless the janitor sweeps");

pub(crate) const CACHE_JANITOR: TaskSpec = TaskSpec::new("ron-index", "cache_janitor")
    .restart(Restart::PROMPT)
    .what("the only writer of the cache: takes answers in, purges, sweeps, keeps what is pinned fresh; stops after the workers");

/// What came of a lookup.
pub(crate) struct Finished {
    pub(crate) outcome: Result<Arc<Entry>, IndexError>,
    /// The answer about the content, if the lookup was about a name and found that too.
    pub(crate) also: Option<(Key, Arc<Entry>)>,
    /// Whether it goes into the cache.
    pub(crate) is_kept: bool,
}

impl Finished {
    pub(crate) fn failed(error: IndexError) -> Self {
        Finished { outcome: Err(error), also: None, is_kept: false }
    }
}

/// Something to change about the cache.
pub(crate) enum Write {
    /// A lookup is over.
    Finish(Arc<Flight>, Finished),
    /// A key is to be forgotten: by whom, and whether it was there.
    Purge(Key, &'static str, Option<Reply<bool>>),
    /// Everything is to be forgotten.
    Clear(&'static str, Option<Reply<()>>),
    /// A key is to be kept, or no longer; whether that is a change.
    Pin(Key, bool, Reply<Result<bool, IndexError>>),
}

/// Keeps the cache until the lane is closed and empty; then tells those who still wait.
pub(crate) async fn keep_cache(inner: Arc<Inner>, writer: Arc<CacheWriter>, inbox: Inbox<Write>) {
    let mut settings = inner.settings.watch();
    let mut janitor =
        CacheJanitor { inner: &inner, writer: &writer, pins: Pins::default(), content_purged: None };
    let mut sweep_at = now() + settings.get().sweep_interval;
    let mut forget_at = settings.get().amnesia.map(|interval| now() + interval);
    loop {
        let next = forget_at.map_or(sweep_at, |at| at.min(sweep_at));
        tokio::select! {
            biased;
            write = inbox.recv() => match write {
                Some(write) => janitor.take(write),
                None => break,
            },
            () = settings.changed() => {
                let new = Arc::clone(settings.get());
                writer.resize(new.cache_bytes);
                sweep_at = now() + new.sweep_interval;
                forget_at = new.amnesia.map(|interval| now() + interval);
            }
            () = sleep_until(next) => {
                let settings = Arc::clone(settings.get());
                if forget_at.is_some_and(|at| at <= now()) {
                    janitor.clear("amnesia");
                    inner.reputation.lock().clear();
                    forget_at = settings.amnesia.map(|interval| now() + interval);
                }
                if sweep_at <= now() {
                    janitor.tick();
                    sweep_at = now() + settings.sweep_interval;
                }
            }
        }
        inner.metrics.gauge(CACHE_BYTES).set(inner.cache.bytes() as f64);
        inner.metrics.gauge(CACHE_ENTRIES).set(inner.cache.len() as f64);
    }
    // In the order of their keys: a simulation must wake those who wait in the same order again.
    let left = std::mem::take(&mut *inner.flights.lock());
    left.values().for_each(|flight| flight.finish(Err(IndexError::Canceled)));
}

struct CacheJanitor<'a> {
    inner: &'a Arc<Inner>,
    writer: &'a CacheWriter,
    pins: Pins,
    /// When content was last purged.
    content_purged: Option<Instant>,
}

/// What is pinned, and what the answers take that stay for it.
#[derive(Default)]
struct Pins {
    bytes: BTreeMap<Key, u64>,
    total: u64,
}

impl Pins {
    /// The answer about a pinned key now takes `bytes`. Says whether it may stay, with at most `max` for all pinned answers.
    fn hold(&mut self, key: &Key, bytes: u64, max: u64) -> bool {
        let Some(held) = self.bytes.get_mut(key) else { return false };
        let others = self.total - *held;
        *held = if others + bytes <= max { bytes } else { 0 };
        self.total = others + *held;
        *held == bytes
    }

    fn remove(&mut self, key: &Key) -> bool {
        let held = self.bytes.remove(key);
        self.total -= held.unwrap_or(0);
        held.is_some()
    }

    /// The answers were removed; the pins stay.
    fn release(&mut self) {
        self.bytes.values_mut().for_each(|held| *held = 0);
        self.total = 0;
    }
}

impl CacheJanitor<'_> {
    fn take(&mut self, write: Write) {
        match write {
            Write::Finish(flight, finished) => self.finish(&flight, finished),
            Write::Purge(key, by, reply) => {
                self.inner.detach(&key);
                let was_there = self.writer.remove(&key);
                self.pins.hold(&key, 0, u64::MAX);
                if !matches!(key, Key::Name(_)) {
                    self.content_purged = Some(now());
                }
                self.inner.metrics.tally(PURGES, by).add(1);
                self.inner.events.publish(Event::Purged { key, by });
                if let Some(reply) = reply {
                    reply.send(was_there);
                }
            }
            Write::Clear(by, reply) => {
                self.clear(by);
                if let Some(reply) = reply {
                    reply.send(());
                }
            }
            Write::Pin(key, is_pinned, reply) => reply.send(self.pin(key, is_pinned)),
        }
    }

    fn finish(&mut self, flight: &Arc<Flight>, finished: Finished) {
        let Finished { mut outcome, also, is_kept } = finished;
        let (now, staleness) = (now(), self.inner.settings.load().staleness());
        let known = self.inner.cache.peek(&flight.key);
        // A source that is behind what it has proven before is not believed: the newer answer is better, even if it is stale.
        if let (Some(known), Ok(entry)) = (&known, &outcome) {
            if known.is_newer_than(entry) && known.freshness(now, &staleness) != Freshness::Over {
                outcome = Err(IndexError::Unavailable);
            }
        }
        // A detached lookup may have read what was purged since: its callers get the answer, but it is not cached.
        let is_current =
            self.inner.flights.lock().get(&flight.key).is_some_and(|current| Arc::ptr_eq(current, flight));
        match &outcome {
            Ok(entry) if is_kept && is_current => {
                if self.put(&flight.key, entry) && flight.is_background {
                    self.inner.events.publish(Event::Refreshed { key: flight.key.clone() });
                }
                // It may have read what was purged since under its own key.
                let was_purged = self.content_purged.is_some_and(|at| at >= flight.began);
                if let Some((key, entry)) = also.filter(|_| !was_purged) {
                    self.put(&key, &entry);
                }
            }
            Ok(_) => {}
            Err(_) => {
                if let Some(known) = &known {
                    known.on_failure(now, self.inner.settings.load().failure_pause);
                }
            }
        }
        self.inner.land(flight, outcome);
    }

    /// Takes an answer in, as one that stays if it is pinned and there is room for that.
    fn put(&mut self, key: &Key, entry: &Arc<Entry>) -> bool {
        let was_put = self.writer.put(key, entry);
        if was_put {
            let stays = self.pins.hold(key, entry.bytes() as u64, self.pinned_max());
            entry.is_pinned.store(stays, Ordering::Relaxed);
        }
        was_put
    }

    /// What pinned answers may take: the table cannot make room in what stays.
    fn pinned_max(&self) -> u64 {
        self.inner.settings.load().cache_bytes / 2
    }

    fn clear(&mut self, by: &'static str) {
        let keys: Vec<Key> = self.inner.flights.lock().keys().cloned().collect();
        keys.iter().for_each(|key| self.inner.detach(key));
        self.writer.clear();
        self.pins.release();
        self.inner.metrics.tally(PURGES, by).add(1);
        self.inner.events.publish(Event::Cleared { by });
    }

    fn pin(&mut self, key: Key, is_pinned: bool) -> Result<bool, IndexError> {
        let max = self.inner.settings.load().pins_max;
        let is_change = is_pinned != self.pins.bytes.contains_key(&key);
        if is_pinned && is_change && self.pins.bytes.len() >= max {
            return Err(IndexError::PinsFull { max });
        }
        let entry = self.inner.cache.peek(&key);
        if is_change && is_pinned {
            let (bytes, max_bytes) =
                (entry.as_ref().map_or(0, |entry| entry.bytes() as u64), self.pinned_max());
            self.pins.bytes.insert(key.clone(), 0);
            if !self.pins.hold(&key, bytes, max_bytes) {
                self.pins.remove(&key);
                return Err(IndexError::PinsHeavy { max_bytes });
            }
        } else if is_change {
            self.pins.remove(&key);
        }
        if let Some(entry) = entry.filter(|_| is_change) {
            entry.is_pinned.store(is_pinned, Ordering::Relaxed);
        }
        if is_change {
            let event = if is_pinned { Event::Pinned { key } } else { Event::Unpinned { key } };
            self.inner.events.publish(event);
        }
        Ok(is_change)
    }

    /// Forgets what is over, and asks for what is pinned before it is.
    fn tick(&mut self) {
        let (now, settings) = (now(), self.inner.settings.load());
        let staleness = settings.staleness();
        let swept = self.writer.sweep(now, &staleness);
        self.inner.metrics.tally(SWEPT, "").add(swept as u64);
        for key in self.pins.bytes.keys() {
            let entry = self.inner.cache.peek(key);
            let is_good = |entry: &Arc<Entry>| {
                matches!(entry.freshness(now, &staleness), Freshness::Fresh { is_nearly_over: false })
            };
            if !entry.as_ref().is_some_and(is_good) {
                self.inner.refresh(key, entry.as_deref());
            }
        }
        let adapting = self.inner.adapting.lock();
        let delay = settings.hedge_delay(&adapting.hedging);
        self.inner.metrics.gauge(HEDGE_DELAY).set(delay.as_secs_f64());
        if let Some(limit) = &adapting.limit {
            self.inner.metrics.gauge(LOOKUPS_MAX).set(limit.limit() as f64);
        }
    }
}
