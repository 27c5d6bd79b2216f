//! The store as it runs: one task that writes, and one that tidies up.
//!
//! Whoever changes something and has promised that it lasts waits for [`Keeping::flush`]. One task takes all changes
//! that have gathered to the disk at once and then tells everybody who waits, so a hundred waiting peers cost one sync.
//! It alone flushes, one after the other: when it answers, everything that was changed before the question is on disk,
//! whoever changed it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ron_core::{
    Backoff, BackoffPolicy, Deadline, Inbox, Lane, LaneSpec, Lock, LockSpec, Metrics, Reply, Restart,
    Snapshot, Stop, Supervisor, TaskSpec,
    disk::Disk,
    journal::{JournalError, Salts},
    now,
};
use tokio::time::Instant;

use crate::{
    DhtError, Settings,
    contacts::{load_contacts, save_contacts},
    logic::Contact,
    metrics::{RECORD_BYTES, RECORDS_KEPT},
    node::Node,
    store::{Clock, Store, StoreSettings},
};

pub(crate) const STORE: LockSpec = LockSpec::new("ron-dht", "store", 310)
    .guards("what is kept for others, and our own keys; held for one record, or for a copy of all when a disk is tidied");

pub(crate) const WRITES: LaneSpec = LaneSpec::new("ron-dht", "store_writes", 1024)
    .flow("listener, publishers → store writer")
    .why("those who come during one sync; the listener lets no more in at once by default");

pub(crate) const WRITER: TaskSpec = TaskSpec::new("ron-dht", "store_writer")
    .restart(Restart::Never)
    .what("takes what has changed to the disk, and then tells all who wait for it");

pub(crate) const KEEPER: TaskSpec = TaskSpec::new("ron-dht", "keeper").restart(Restart::PATIENT).what(
    "forgets what has expired, writes the store anew when it is due, saves whom to try first after a restart",
);

/// How long one flush may take. Whoever waits for it has less patience; this is for what waits behind it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long writing everything anew may take.
const REWRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long asking the disk for its free space may take.
const SPACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries to write everything anew, if they fail: what a try has written stays until one succeeds, so many of them
/// would fill the disk.
const REWRITE_BACKOFF: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(60), Duration::from_secs(900));

/// How often the keeper looks. What has expired is not handed out meanwhile, so nobody notices.
const LOOK: Duration = Duration::from_secs(60);

/// How long after a loss everything is written anew: whatever else was on its way has then been lost too.
const MEND_AFTER: Duration = Duration::from_secs(1);

/// Records forgotten in one go: a millisecond.
const EXPIRE_AT_ONCE: usize = 512;

/// Looks between two savings of contacts. Who restarts after a crash finds those of ten minutes ago.
const LOOKS_PER_SAVE: u32 = 10;

/// How long reading or writing the file of contacts may take.
const CONTACTS_TIMEOUT: Duration = Duration::from_secs(10);

/// The store, and the randomness with which some of many records are chosen.
pub(crate) struct Kept {
    pub(crate) store: Store,
    pub(crate) rng: fastrand::Rng,
}

/// The store of a node, and its disk if it has one.
pub(crate) struct Keeping {
    kept: Arc<Lock<Kept>>,
    durable: Option<Durable>,
}

struct Durable {
    writes: Lane<Reply<Result<(), DhtError>>>,
    disk: Arc<dyn Disk>,
    contacts: PathBuf,
    /// Whether the disk has everything. While it has not, nothing is said to be kept.
    whole: Snapshot<bool>,
    /// The writer stops before its journal, and both after everybody who may want something written.
    _groups: [Supervisor; 2],
}

impl Keeping {
    /// Keeps everything in memory only.
    pub(crate) fn memory(settings: &Settings, seed: u64, metrics: &Metrics) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let store = Store::memory(store_settings(settings, None), &mut rng);
        Keeping { kept: Arc::new(Lock::new(STORE, Kept { store, rng }, metrics)), durable: None }
    }

    /// Opens the store in `dir` of `disk`. Gives back the contacts of the last run, too. Its tasks are in groups of
    /// their own under `group`, so that they end after those of `group` itself.
    pub(crate) async fn open(
        settings: &Settings,
        seed: Option<u64>,
        (disk, dir): (Arc<dyn Disk>, PathBuf),
        clock: Clock,
        group: &Supervisor,
    ) -> Result<(Self, Vec<Contact>), DhtError> {
        let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let contacts = dir.join("contacts");
        let loaded = {
            let (disk, path) = (Arc::clone(&disk), contacts.clone());
            group
                .blocking("contacts", Deadline::after(CONTACTS_TIMEOUT), move || load_contacts(&*disk, &path))
        };
        let (known, fault) = loaded.await?;
        if let Some(fault) = fault {
            tracing::warn!(path = %contacts.display(), %fault, "the file of contacts cannot be used");
        }
        let writing = group.child("dht store", settings.drain, group.metrics().clone());
        let journal = writing.child("dht journal", settings.drain, group.metrics().clone());
        let salts = seed.map(Salts::Seeded);
        let (records, settings) = (dir.join("records"), store_settings(settings, salts));
        let opened = Store::open(&journal, Arc::clone(&disk), &records, settings, clock, &mut rng);
        let (store, opened) = opened.await.map_err(|error| of_journal(&error))?;
        if !opened.recovered.damage.is_empty() || opened.dropped > 0 {
            let (damage, dropped) = (opened.recovered.damage.len(), opened.dropped);
            tracing::warn!(dir = %dir.display(), damage, dropped, "records were lost or are not kept");
        }
        let (records, planned, expired) = (opened.records, opened.planned, opened.expired);
        tracing::info!(dir = %dir.display(), records, planned, expired, "opened");
        let kept = Arc::new(Lock::new(STORE, Kept { store, rng }, group.metrics()));
        let (writes, inbox) = Lane::open(WRITES, group.metrics());
        writes.close_on(&writing.stop());
        let written = Arc::clone(&kept);
        let whole = Snapshot::new(true);
        let is_whole = whole.clone();
        let _ = writing.spawn(WRITER, |_| write(written, inbox, is_whole));
        let durable = Durable { writes, disk, contacts, whole, _groups: [writing, journal] };
        Ok((Keeping { kept, durable: Some(durable) }, known))
    }

    /// Whether the disk has everything that it should; always, if there is none.
    pub(crate) fn whole(&self) -> Snapshot<bool> {
        self.durable.as_ref().map_or_else(|| Snapshot::new(true), |durable| durable.whole.clone())
    }

    /// Does something with the store, which nobody else has meanwhile. Not for waiting.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Kept) -> R) -> R {
        run(&mut self.kept.lock())
    }

    /// Returns when everything that was changed before is on disk; at once if there is none. Dropping the future
    /// withdraws nothing.
    pub(crate) async fn flush(&self, deadline: Deadline) -> Result<(), DhtError> {
        match &self.durable {
            None => Ok(()),
            Some(durable) => durable.writes.call("store", deadline, |reply| reply).await?,
        }
    }
}

fn store_settings(settings: &Settings, salts: Option<Salts>) -> StoreSettings {
    StoreSettings {
        limits: settings.records.clone(),
        policy: settings.policy(),
        republish: settings.republish,
        segment_bytes: settings.segment_bytes,
        salts: salts.unwrap_or_default(),
    }
}

/// Writes until nobody is left who could want something written.
async fn write(kept: Arc<Lock<Kept>>, inbox: Inbox<Reply<Result<(), DhtError>>>, whole: Snapshot<bool>) {
    let mut waiting = Vec::new();
    while let Some(first) = inbox.recv().await {
        waiting.push(first);
        // Whoever asked has made its change before, so one look at the store serves all of these.
        while let Some(next) = inbox.try_recv() {
            waiting.push(next);
        }
        let mut flush = kept.lock().store.flush();
        let written = flush.write(Deadline::after(WRITE_TIMEOUT)).await.map_err(|error| of_journal(&error));
        let is_whole = {
            let store = &mut kept.lock().store;
            match &written {
                Ok(()) => {}
                // The disk is slow and not broken: the rest is written with the next flush.
                Err(DhtError::Busy { .. } | DhtError::Timeout { .. }) => store.put_back(flush),
                Err(_) => store.on_lost(),
            }
            store.is_whole()
        };
        if *whole.load() != is_whole {
            whole.replace(is_whole);
        }
        let lacking =
            || DhtError::Store { message: "waits for a disk that takes everything again".to_owned() };
        let result = written.and_then(|()| if is_whole { Ok(()) } else { Err(lacking()) });
        for reply in waiting.drain(..) {
            reply.send(result.clone());
        }
    }
}

/// Tidies up now and then, and a last time at the stop.
pub(crate) async fn keep(node: Arc<Node>, seed: u64, stop: Stop) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (kept, bytes) = (node.metrics.gauge(RECORDS_KEPT), node.metrics.gauge(RECORD_BYTES));
    let mut whole = node.keeping.whole().watch();
    let mut tries = Tries::new(rng.u64(..));
    for look in 1.. {
        tokio::select! {
            biased;
            () = stop.requested() => break,
            () = tokio::time::sleep(LOOK.mul_f64(0.75 + rng.f64() / 2.0)) => {}
            // Nothing is kept until all is written anew, so not later than need be. If that fails as well, as before.
            () = whole.changed() => tokio::time::sleep(MEND_AFTER).await,
        }
        let _ = whole.get();
        loop {
            let since = node.since(ron_core::now());
            if node.keeping.with(|kept| kept.store.expire(since, EXPIRE_AT_ONCE)) < EXPIRE_AT_ONCE {
                break;
            }
            tokio::task::yield_now().await;
        }
        node.keeping.with(|held| {
            kept.set(held.store.records().len() as f64);
            bytes.set(held.store.records().bytes() as f64);
        });
        if node.keeping.durable.is_some() {
            // Whoever changed something has flushed it, unless it was called off in between.
            let _ = node.keeping.flush(Deadline::after(WRITE_TIMEOUT)).await;
            node.rewrite(&mut tries).await;
            if look % LOOKS_PER_SAVE == 0 {
                node.save_contacts().await;
            }
        }
    }
    node.save_contacts().await;
    let deadline = Deadline::after(node.settings().drain);
    if let Err(error) = node.keeping.flush(deadline).await {
        tracing::warn!(%error, "the store was not written before the stop");
    }
}

/// When to write everything anew, after that has failed.
struct Tries {
    pauses: Backoff,
    not_before: Option<Instant>,
    /// Whether the log has it that there is no room.
    is_told: bool,
}

impl Tries {
    fn new(seed: u64) -> Self {
        Tries { pauses: REWRITE_BACKOFF.with_seed(seed), not_before: None, is_told: false }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|at| now < at)
    }

    fn on_failed(&mut self, now: Instant) {
        self.not_before = Some(now + self.pauses.next_delay());
    }

    fn on_done(&mut self) {
        self.pauses.reset();
        self.not_before = None;
    }
}

impl Node {
    /// Writes the store anew if that is due and there is room for it beside what is there.
    async fn rewrite(&self, tries: &mut Tries) {
        if tries.is_paused(now()) {
            return;
        }
        let Some(needed) = self.keeping.with(|kept| kept.store.rewrite_bytes()) else { return };
        if let Some(free) = self.free_space().await.filter(|free| *free < needed) {
            if !std::mem::replace(&mut tries.is_told, true) {
                tracing::warn!(needed, free, "no room to write the store anew; it grows until there is");
            }
            return;
        }
        tries.is_told = false;
        let clock = self.clock();
        let Some(rewrite) = self.keeping.with(|kept| kept.store.rewrite(clock)) else { return };
        let mends = rewrite.mends();
        match rewrite.write(Deadline::after(REWRITE_TIMEOUT)).await {
            Ok(segments) => {
                let is_whole = self.keeping.with(|kept| {
                    kept.store.on_rewritten(mends);
                    kept.store.is_whole()
                });
                tries.on_done();
                let whole = self.keeping.whole();
                if *whole.load() != is_whole {
                    whole.replace(is_whole);
                }
                tracing::debug!(segments, "wrote the store anew");
            }
            Err(error) => {
                tries.on_failed(now());
                tracing::warn!(%error, "the store could not be written anew");
            }
        }
    }

    /// What the disk has, if it says so in time.
    async fn free_space(&self) -> Option<u64> {
        let disk = Arc::clone(&self.keeping.durable.as_ref()?.disk);
        let asked =
            self.spawner.blocking("free_space", Deadline::after(SPACE_TIMEOUT), move || disk.free_space());
        asked.await.ok()?.ok()
    }

    /// Saves whom to try first after a restart. A table that is empty says nothing that is worth forgetting others for.
    async fn save_contacts(&self) {
        let Some(durable) = &self.keeping.durable else { return };
        let mut entries = self.buckets.peers();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.seen()));
        let contacts: Vec<Contact> = entries.into_iter().map(|entry| entry.contact).collect();
        if contacts.is_empty() {
            return;
        }
        let (disk, path) = (Arc::clone(&durable.disk), durable.contacts.clone());
        let save = move || save(&*disk, &path, &contacts);
        let _ = self.spawner.blocking("contacts", Deadline::after(CONTACTS_TIMEOUT), save).await;
    }
}

fn save(disk: &dyn Disk, path: &Path, contacts: &[Contact]) {
    if let Err(error) = save_contacts(disk, path, contacts) {
        tracing::warn!(path = %path.display(), %error, "the contacts could not be saved");
    }
}

fn of_journal(error: &JournalError) -> DhtError {
    match error {
        JournalError::Busy { what, retry_after } => DhtError::Busy { what, retry_after: *retry_after },
        JournalError::Timeout { op } => DhtError::Timeout { op },
        JournalError::Canceled => DhtError::Canceled,
        JournalError::Panicked { op } => DhtError::Panicked { op },
        JournalError::Disk(cause) => DhtError::Store { message: format!("{error}: {cause}") },
        other => DhtError::Store { message: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_fail_are_farther_and_farther_apart() {
        let (mut tries, mut at) = (Tries::new(1), now());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            assert!(!tries.is_paused(at));
            tries.on_failed(at);
            let pause = tries.not_before.unwrap() - at;
            assert!(tries.is_paused(at + pause / 2));
            at += pause;
            pauses.push(pause);
        }
        assert!(pauses[0] >= LOOK && pauses[0] <= 2 * LOOK, "{pauses:?}");
        assert!(pauses[20..].iter().sum::<Duration>() > 20 * 4 * LOOK, "{pauses:?}");
        tries.on_done();
        assert!(!tries.is_paused(at));
        tries.on_failed(at);
        assert!(tries.not_before.unwrap() - at <= 2 * LOOK);
    }
}
