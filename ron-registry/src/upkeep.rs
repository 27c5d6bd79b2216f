//! What goes on beside committing: retention, verification, telling the host.
//!
//! None of it holds up the committer. The checkpointor looks at times whether something can go, the pruner makes a snapshot
//! that proves itself and only then lets go, the verifier reads the log again in slices as if it came from a stranger, and
//! the publisher hands every update to the host, however slow the host is.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Affects, Counter, Deadline, Inbox, Lane, LaneSpec, Ready, ReadyGate, Reply, Restart, Stop, Supervisor,
    TaskSpec,
};
use tokio::time::{Instant, sleep};

use crate::{
    RegistryError, Settings,
    index::{self, INDEXER},
    logic::{
        entry::Entry,
        merkle::TreeHash,
        note::Note,
        snapshot::Snapshot,
        state::{Signatures, State},
        tiles::{Prover, TILE_WIDTH, Tree},
    },
    metrics::{PRUNED_BYTES, RETENTION_SKIPPED, STORAGE_BACKOFF, VERIFIED_VERSION},
    shared::{Marks, RegistryUpdated, Shared, SharedTiles, View, beginning, stored_heads},
    store::{BoxFuture, StoreError, StoredSnapshot},
    updates::Updates,
};

pub(crate) const RETENTION: LaneSpec = LaneSpec::new("ron-registry", "retention", 8)
    .flow("checkpointor, callers → pruner")
    .why("a cycle that finds eight before it is skipped: the next one asks for more anyway");

pub(crate) const CHECKPOINTOR: TaskSpec = TaskSpec::new("ron-registry", "checkpointor")
    .restart(Restart::PATIENT)
    .what("looks at times how much of the log may go, below the last signed head");
pub(crate) const PRUNER: TaskSpec = TaskSpec::new("ron-registry", "pruner")
    .restart(Restart::PATIENT)
    .what("keeps a snapshot, and then lets go of what it covers");
pub(crate) const VERIFIER: TaskSpec = TaskSpec::new("ron-registry", "verifier")
    .restart(Restart::PATIENT)
    .what("reads the log again in slices, and checks everything about it");
pub(crate) const PUBLISHER: TaskSpec = TaskSpec::new("ron-registry", "publisher")
    .restart(Restart::PATIENT)
    .what("hands every update to the host");

/// Starts all of it.
pub(crate) fn start(
    shared: &Arc<Shared>,
    group: &Supervisor,
    ready: &Ready,
    publisher: Option<(Arc<dyn Publisher>, Option<u64>)>,
) -> Lane<Prune> {
    let (retain, retained) = Lane::open(RETENTION, group.metrics());
    retain.close_on(&group.stop());
    let (at, lane) = (Arc::clone(shared), retain.clone());
    let _ = group.spawn_restarting(CHECKPOINTOR, move |stop| {
        Box::pin(checkpoint(Arc::clone(&at), lane.clone(), stop))
    });
    let at = Arc::clone(shared);
    let _ =
        group.spawn_restarting(PRUNER, move |stop| Box::pin(prune(Arc::clone(&at), retained.clone(), stop)));
    let (at, gate) = (Arc::clone(shared), verifier_gate(ready));
    let _ = group
        .spawn_restarting(VERIFIER, move |stop| Box::pin(verify(Arc::clone(&at), Arc::clone(&gate), stop)));
    let at = Arc::clone(shared);
    let _ = group.spawn_restarting(INDEXER, move |stop| Box::pin(index::run(Arc::clone(&at), stop)));
    if let Some((publisher, from)) = publisher {
        let from = from.unwrap_or_else(|| shared.view.load().state.head().version + 1);
        let next = Arc::new(AtomicU64::new(from));
        let at = Arc::clone(shared);
        let _ = group.spawn_restarting(PUBLISHER, move |stop| {
            let (at, next, publisher) = (Arc::clone(&at), Arc::clone(&next), Arc::clone(&publisher));
            Box::pin(publish(at, next, publisher, stop))
        });
    }
    retain
}

/// What the pruner is asked: to let go of what is up to a version.
pub(crate) struct Prune {
    pub(crate) upto: u64,
    /// Who waits for it; nobody for a cycle of retention.
    pub(crate) reply: Option<Reply<Result<u64, RegistryError>>>,
}

/// How long one step of any of these may take.
const STEP: Duration = Duration::from_secs(60);

/// Entries without signatures between two times that others have their turn.
const YIELDS: u64 = 32;

/// Entries that a state is led through at a time.
const REPLAY: usize = 256;

/// Told what was committed, in order and without holes, from where the publisher started. A host that must not miss
/// anything across restarts keeps the version behind the last one it was told, and gives it to
/// [`Builder::publish_from`](crate::Builder::publish_from).
pub trait Publisher: fmt::Debug + Send + Sync + 'static {
    /// Takes an update. The next one comes when this is done; commits do not wait for it.
    fn publish(&self, update: RegistryUpdated) -> BoxFuture<'_, ()>;
}

/// Up to which version may go of a log of `head` entries: whole tiles, and the entry `below` stays, whatever is said.
fn prunable(settings: &Settings, marks: &Marks, (head, below): (u64, u64), now: u64) -> u64 {
    let retention = settings.retention;
    let mut upto = 0;
    for mark in marks.at.iter().filter(|mark| mark.version < below) {
        let by_entries = retention.entries.is_some_and(|keep| head - mark.version >= keep);
        let age = Duration::from_millis(now.saturating_sub(mark.time));
        let by_age = retention.age.is_some_and(|keep| age > keep);
        let by_bytes = retention.bytes.is_some_and(|keep| marks.bytes - mark.bytes >= keep);
        if by_entries || by_age || by_bytes {
            upto = mark.version;
        }
    }
    upto
}

/// How far the clock may move beyond the time that has passed before ages are not believed.
const LEAP: Duration = Duration::from_secs(3600);

/// How long ages are not believed after the clock has leapt: long enough for somebody to set it right. What was pruned
/// because of a wrong clock does not come back.
const LEAP_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Whether the clock can be believed about ages.
struct Ages {
    seen: (u64, Instant),
    believed_from: Option<Instant>,
}

impl Ages {
    fn new(now: u64) -> Self {
        Ages { seen: (now, ron_core::now()), believed_from: None }
    }

    fn are_believed(&mut self, now: u64) -> bool {
        let ((before, since), at) = (self.seen, ron_core::now());
        let moved = Duration::from_millis(now.saturating_sub(before));
        if moved > at.duration_since(since) + LEAP {
            tracing::warn!(?moved, "the clock has leapt: nothing is pruned by age for a day");
            self.believed_from = Some(at + LEAP_PAUSE);
        }
        self.seen = (now, at);
        self.believed_from.is_none_or(|from| at >= from)
    }
}

async fn checkpoint(shared: Arc<Shared>, retain: Lane<Prune>, stop: Stop) {
    let mut ages = Ages::new(shared.clock.now());
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = sleep(shared.settings.load().checkpoint_interval) => {}
        }
        // What the view shows is covered by a signed head that is durable.
        let head = shared.view.load().state.head().version;
        let below = shared.prunable_below();
        let (mut settings, now) = ((*shared.settings.load()).clone(), shared.clock.now());
        if !ages.are_believed(now) {
            settings.retention.age = None;
        }
        let names = shared.view.load().state.names().len();
        let upto = {
            let marks = shared.marks.lock();
            let upto = prunable(&settings, &marks, (head, below), now);
            if marks.before(upto) >= worth(names) { upto } else { 0 }
        };
        let full = upto > 0 && retain.try_push(Prune { upto, reply: None }).is_err();
        if full && !stop.is_requested() {
            shared.metrics.tally(RETENTION_SKIPPED, "").add(1);
            tracing::debug!(upto, "the pruner is busy, skipped a cycle");
        }
    }
}

/// Bytes of a name in a snapshot, about.
const NAME_BYTES: u64 = 130;

/// Bytes of entries that must be there to go before retention writes a snapshot of so many names: it holds all of them,
/// and is written into the same journal. With four times as much to free, snapshots never take more than a quarter of what
/// they let go of.
fn worth(names: usize) -> u64 {
    4 * NAME_BYTES * names as u64
}

async fn prune(shared: Arc<Shared>, retain: Inbox<Prune>, stop: Stop) {
    while let Some(Prune { upto, reply }) = retain.recv().await {
        let pruned = tokio::select! {
            biased;
            // A snapshot that is cut off is none, and nothing has gone before it is whole.
            () = stop.requested() => Err(RegistryError::Canceled),
            pruned = prune_to(&shared, upto) => pruned,
        };
        if let Some(error) = pruned.as_ref().err().filter(|error| **error != RegistryError::Canceled) {
            shared.metrics.tally(STORAGE_BACKOFF, "prune").add(1);
            tracing::warn!(%error, upto, "could not prune");
        }
        if let Some(reply) = reply {
            reply.send(pruned);
        }
    }
}

/// Keeps a snapshot of `upto`, and lets go of what is before it. Says how many bytes that freed.
async fn prune_to(shared: &Shared, upto: u64) -> Result<u64, RegistryError> {
    let deadline = || Deadline::after(STEP);
    let mut replay = Replay::begin(shared, u64::MAX).await?;
    if replay.state.head().version >= upto {
        return Ok(0);
    }
    while replay.state.head().version < upto {
        replay.step(shared, REPLAY.min((upto - replay.state.head().version) as usize)).await?;
    }
    // What is about to go is the only copy, so the snapshot must be of what is shown.
    let shown = Prover::new(&SharedTiles(shared), upto).root()?;
    if replay.tree.root() != shown {
        let message = format!("what is stored up to version {upto} is another than was committed");
        return Err(RegistryError::Untrusted { message });
    }
    let encode = move || {
        let last = replay.last.as_ref().expect("it has come to a version");
        let snapshot = Snapshot::take(&replay.state, &replay.tree, last)?;
        Ok::<_, RegistryError>(snapshot.expect("a log with entries has begun").encode())
    };
    // A million names are more than a hundred megabytes.
    let parts = shared.spawner.blocking("snapshot_write", deadline(), encode).await??;
    let kept = shared.store.prune(StoredSnapshot { version: upto, parts }, deadline()).await;
    if matches!(kept, Err(StoreError::Timeout { .. })) {
        shared.metrics.tally(Counter::IoTimeouts, "write").add(1);
    }
    let freed = kept?;
    shared.prune_tree(upto);
    shared.marks.lock().prune(upto);
    shared.contents.prune(upto);
    shared.metrics.tally(PRUNED_BYTES, "").add(freed);
    tracing::info!(upto, freed, "pruned");
    Ok(freed)
}

/// The log led through once more from where it begins.
struct Replay {
    state: State,
    tree: Tree,
    last: Option<Entry>,
    /// Entries up to this one were checked before.
    checked: u64,
    /// The log as it was shown when this began: what it must come to, however fast the log grows meanwhile.
    goal: Arc<View>,
}

impl Replay {
    async fn begin(shared: &Shared, checked: u64) -> Result<Self, RegistryError> {
        let (origin, goal) = (shared.trust.origin(), shared.view.load());
        let (state, tree, last) =
            beginning(&*shared.store, &shared.spawner, origin, Deadline::after(STEP)).await?;
        Ok(Replay { state, tree, last, checked, goal })
    }

    /// Goes on through at least one and at most `max` entries. What fails leaves it where it was, or at the entry before.
    async fn step(&mut self, shared: &Shared, max: usize) -> Result<(), RegistryError> {
        let from = self.state.head().version + 1;
        let entries = shared.read(from, max, Deadline::after(STEP)).await?;
        if entries.is_empty() {
            return Err(RegistryError::untrusted_at(from, "it is not there"));
        }
        for bytes in &entries {
            let version = self.state.head().version + 1;
            let signatures = if version <= self.checked { Signatures::Checked } else { Signatures::Check };
            let entry = self.state.apply(bytes, signatures);
            let entry = entry.map_err(|error| RegistryError::untrusted_at(version, error))?;
            self.tree.push(TreeHash::of_leaf(bytes));
            self.last = Some(entry);
            // A hundred microseconds with its signatures; others have their turn in between.
            if signatures == Signatures::Check || version % YIELDS == 0 {
                tokio::task::yield_now().await;
            }
        }
        // Only the edge is needed, and the tile of the last entry for its path.
        self.tree.prune(self.tree.size().saturating_sub(1));
        Ok(())
    }
}

async fn verify(shared: Arc<Shared>, gate: Arc<ReadyGate>, stop: Stop) {
    let verified = shared.metrics.gauge(VERIFIED_VERSION);
    let mut replay: Option<Replay> = None;
    // The first pass goes on where the one before the start was; later ones begin at the beginning.
    let mut resume = *shared.verified.load();
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = sleep(shared.settings.load().verify_interval) => {}
        }
        let slice = tokio::select! {
            biased;
            () = stop.requested() => return,
            slice = verify_slice(&shared, &mut replay, resume) => slice,
        };
        match slice {
            Ok(version) => {
                verified.set(version as f64);
                shared.verified.replace(version);
                // Once the whole of it was good: what is damaged stays said while it is looked at again.
                if replay.is_none() {
                    resume = 0;
                    gate.open();
                }
            }
            Err(
                RegistryError::Untrusted { message } | RegistryError::Store(StoreError::Damaged { message }),
            ) => {
                tracing::error!(message, "the log is damaged");
                gate.close(message);
                (replay, resume) = (None, 0);
            }
            // Pruned under it: from where the log begins now.
            Err(RegistryError::Lagging { first }) => {
                tracing::debug!(first, "what was to be verified next was pruned");
                replay = None;
            }
            // The store is away: on from where it was.
            Err(error) => {
                shared.metrics.tally(STORAGE_BACKOFF, "verify").add(1);
                tracing::debug!(%error, "could not verify");
            }
        }
    }
}

/// Verifies the next slice, and when it has come to where the log was when it began, that it is the one that was shown;
/// then it begins anew. What fails on the way leaves `replay` where it was.
async fn verify_slice(
    shared: &Shared,
    replay: &mut Option<Replay>,
    resume: u64,
) -> Result<u64, RegistryError> {
    // A log that has not begun has nothing to be verified, and followed elsewhere no signature.
    if shared.view.load().state.head().version == 0 {
        return Ok(0);
    }
    if replay.is_none() {
        *replay = Some(Replay::begin(shared, resume).await?);
    }
    let going = replay.as_mut().expect("it has begun");
    let goal = going.goal.state.head();
    // Hashes are cheap beside signatures, so what was checked before is passed in one go.
    while going.state.head().version < resume.min(goal.version) {
        let left = resume.min(goal.version) - going.state.head().version;
        going.step(shared, REPLAY.min(left as usize)).await?;
    }
    let mut left = shared.settings.load().verify_slice as u64;
    while left > 0 && going.state.head().version < goal.version {
        let before = going.state.head().version;
        // To the end of a tile at most, where the tree that is served has a root to compare with.
        let max = (TILE_WIDTH - before % TILE_WIDTH).min(goal.version - before).min(left);
        going.step(shared, max as usize).await?;
        let reached = going.state.head().version;
        left -= reached - before;
        if reached % TILE_WIDTH == 0 {
            is_shown(shared, reached, &going.tree.root())?;
        }
    }
    let reached = going.state.head();
    if reached.version < goal.version {
        return Ok(reached.version);
    }
    // Both hashes, and the signature over one of them.
    let said = shared.trust.open(&going.goal.checkpoint).map_err(|error| RegistryError::Untrusted {
        message: format!("the checkpoint of version {}: {error}", goal.version),
    })?;
    if reached.version == goal.version && (reached != goal || said.root != going.tree.root()) {
        let message = format!("version {} is another than was committed", goal.version);
        return Err(RegistryError::Untrusted { message });
    }
    // And the one that is stored: a restart goes by it.
    if let Some(bytes) = shared.store.tail(Deadline::after(STEP)).await?.checkpoint {
        let stored = Note::parse(&stored_heads(&bytes).0).map_err(|error| error.to_string());
        let stored = stored.and_then(|note| shared.trust.open(&note).map_err(|error| error.to_string()));
        let stored = stored.map_err(|error| RegistryError::Untrusted {
            message: format!("the checkpoint that is stored: {error}"),
        })?;
        if stored.size <= shared.tree.lock().size() {
            is_shown(shared, stored.size, &stored.root)?;
        }
    }
    *replay = None;
    Ok(reached.version)
}

/// Whether the log of so many entries is the one that is served, as far as that can still be said.
fn is_shown(shared: &Shared, size: u64, root: &TreeHash) -> Result<(), RegistryError> {
    match Prover::new(&SharedTiles(shared), size).root() {
        Ok(shown) if shown != *root => Err(RegistryError::Untrusted {
            message: format!("what is stored up to version {size} is another than was committed"),
        }),
        _ => Ok(()),
    }
}

fn verifier_gate(ready: &Ready) -> Arc<ReadyGate> {
    let gate = ready.gate("registry.verified", Affects::Reads);
    gate.open();
    Arc::new(gate)
}

/// Publishes from the version in `next` on, and writes there how far it has come: a publisher that panics is asked again
/// about the same update.
async fn publish(shared: Arc<Shared>, next: Arc<AtomicU64>, publisher: Arc<dyn Publisher>, stop: Stop) {
    let mut updates = Updates::new(&shared, next.load(Ordering::Relaxed));
    let mut over = pin!(over(&shared, &stop));
    loop {
        // What is committed while the registry stops is told, too, as far as there is time.
        let update = tokio::select! {
            biased;
            () = &mut over => return,
            update = updates.next() => update,
        };
        match update {
            Ok(None) => return,
            Ok(Some(update)) => {
                let version = update.version;
                tokio::select! {
                    biased;
                    () = &mut over => return,
                    () = publisher.publish(update) => {}
                }
                next.store(version + 1, Ordering::Relaxed);
            }
            // Only ever on: a store that is wrong about where it begins does not make it tell everything again.
            Err(RegistryError::Lagging { first }) if first > next.load(Ordering::Relaxed) => {
                tracing::warn!(first, "what was to be published next was pruned");
                updates.skip_to(first);
            }
            Err(error) => {
                tracing::warn!(%error, "could not read what is to be published");
                tokio::select! {
                    biased;
                    () = stop.requested() => return,
                    () = sleep(Duration::from_secs(1)) => {}
                }
            }
        }
    }
}

/// When the publisher has to end: at the stop, and most of the time later that there is to finish.
async fn over(shared: &Shared, stop: &Stop) {
    stop.requested().await;
    sleep(shared.settings.load().drain * 3 / 4).await;
}
