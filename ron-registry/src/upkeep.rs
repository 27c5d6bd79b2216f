//! What goes on beside committing: retention, verification, telling the host.
//!
//! None of it holds up the committer. The checkpointor looks at times whether something can go, the pruner makes a snapshot
//! that proves itself and only then lets go, the verifier reads the log again in slices as if it came from a stranger, and
//! the publisher hands every update to the host, however slow the host is.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Affects, Deadline, Inbox, Lane, LaneSpec, Ready, ReadyGate, Restart, Stop, Supervisor, TaskSpec,
};
use tokio::time::sleep;

use crate::{
    RegistryError, Settings,
    index::{self, INDEXER},
    logic::{
        entry::Entry,
        merkle::TreeHash,
        snapshot::Snapshot,
        state::{Signatures, State},
        tiles::Tree,
    },
    metrics::{PRUNED_BYTES, RETENTION_SKIPPED, STORAGE_BACKOFF, VERIFIED_VERSION},
    shared::{Marks, RegistryUpdated, Shared, beginning},
    store::{BoxFuture, StoredSnapshot},
    updates::Updates,
};

pub(crate) const RETENTION: LaneSpec = LaneSpec::new("ron-registry", "retention", 8)
    .flow("checkpointor → pruner")
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
    publisher: Option<Arc<dyn Publisher>>,
) {
    let (retain, retained) = Lane::open(RETENTION, group.metrics());
    retain.close_on(&group.stop());
    let at = Arc::clone(shared);
    let _ = group.spawn_restarting(CHECKPOINTOR, move |stop| {
        Box::pin(checkpoint(Arc::clone(&at), retain.clone(), stop))
    });
    let at = Arc::clone(shared);
    let _ = group.spawn_restarting(PRUNER, move |_| Box::pin(prune(Arc::clone(&at), retained.clone())));
    let (at, gate) = (Arc::clone(shared), verifier_gate(ready));
    let _ = group
        .spawn_restarting(VERIFIER, move |stop| Box::pin(verify(Arc::clone(&at), Arc::clone(&gate), stop)));
    let at = Arc::clone(shared);
    let _ = group.spawn_restarting(INDEXER, move |stop| Box::pin(index::run(Arc::clone(&at), stop)));
    if let Some(publisher) = publisher {
        let next = Arc::new(AtomicU64::new(shared.view.load().state.head().version + 1));
        let at = Arc::clone(shared);
        let _ = group.spawn_restarting(PUBLISHER, move |stop| {
            let (at, next, publisher) = (Arc::clone(&at), Arc::clone(&next), Arc::clone(&publisher));
            Box::pin(publish(at, next, publisher, stop))
        });
    }
}

/// How long one step of any of these may take.
const STEP: Duration = Duration::from_secs(60);

/// Entries that a state is led through at a time.
const REPLAY: usize = 256;

/// Told what was committed, in order and without holes, from where the publisher started.
pub trait Publisher: fmt::Debug + Send + Sync + 'static {
    /// Takes an update. The next one comes when this is done; commits do not wait for it.
    fn publish(&self, update: RegistryUpdated) -> BoxFuture<'_, ()>;
}

/// Up to which version may go: whole tiles, below the signed head of `head` entries.
pub(crate) fn prunable(settings: &Settings, marks: &Marks, head: u64, now: u64) -> u64 {
    let retention = settings.retention;
    // The last entry stays, whatever is said.
    let below_head = |version: u64| version < head;
    let mut upto = 0;
    for mark in marks.at.iter().filter(|mark| below_head(mark.version)) {
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

pub(crate) async fn checkpoint(shared: Arc<Shared>, retain: Lane<u64>, stop: Stop) {
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = sleep(shared.settings.load().checkpoint_interval) => {}
        }
        // What the view shows is covered by a signed head that is durable.
        let head = shared.view.load().state.head().version;
        let upto = prunable(&shared.settings.load(), &shared.marks.lock(), head, shared.clock.now());
        if upto > 0 && retain.try_push(upto).is_err() {
            shared.metrics.tally(RETENTION_SKIPPED, "").add(1);
            tracing::debug!(upto, "the pruner is busy, skipped a cycle");
        }
    }
}

pub(crate) async fn prune(shared: Arc<Shared>, retain: Inbox<u64>) {
    while let Some(upto) = retain.recv().await {
        if let Err(error) = prune_to(&shared, upto).await {
            shared.metrics.tally(STORAGE_BACKOFF, "prune").add(1);
            tracing::warn!(%error, upto, "could not prune");
        }
    }
}

/// Keeps a snapshot of `upto`, and lets go of what is before it. Says how many bytes that freed.
pub(crate) async fn prune_to(shared: &Shared, upto: u64) -> Result<u64, RegistryError> {
    let deadline = || Deadline::after(STEP);
    let mut replay = Replay::begin(shared, u64::MAX).await?;
    if replay.state.head().version >= upto {
        return Ok(0);
    }
    while replay.state.head().version < upto {
        replay.step(shared, REPLAY.min((upto - replay.state.head().version) as usize)).await?;
        tokio::task::yield_now().await;
    }
    let last = replay.last.as_ref().expect("it has come to a version");
    let snapshot = Snapshot::take(&replay.state, &replay.tree, last)?;
    let parts = snapshot.expect("a log with entries has begun").encode();
    let freed = shared.store.prune(StoredSnapshot { version: upto, parts }, deadline()).await?;
    shared.tree.lock().prune(upto);
    shared.marks.lock().at.retain(|mark| mark.version > upto);
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
}

impl Replay {
    async fn begin(shared: &Shared, checked: u64) -> Result<Self, RegistryError> {
        let origin = shared.trust.origin();
        let (state, tree, last) = beginning(&*shared.store, origin, Deadline::after(STEP)).await?;
        Ok(Replay { state, tree, last, checked })
    }

    /// Goes on through at most `max` entries, and says whether there were any.
    async fn step(&mut self, shared: &Shared, max: usize) -> Result<bool, RegistryError> {
        let from = self.state.head().version + 1;
        let entries = shared.store.read(from, max, Deadline::after(STEP)).await?;
        for bytes in &entries {
            let version = self.state.head().version + 1;
            let signatures = if version <= self.checked { Signatures::Checked } else { Signatures::Check };
            let entry = self.state.apply(bytes, signatures).map_err(|error| RegistryError::Untrusted {
                message: format!("version {version}: {error}"),
            })?;
            self.tree.push(TreeHash::of_leaf(bytes));
            self.last = Some(entry);
        }
        // Only the edge is needed, and the tile of the last entry for its path.
        self.tree.prune(self.tree.size().saturating_sub(1));
        Ok(!entries.is_empty())
    }
}

pub(crate) async fn verify(shared: Arc<Shared>, gate: Arc<ReadyGate>, stop: Stop) {
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
        match verify_slice(&shared, &mut replay, resume).await {
            Ok(version) => {
                verified.set(version as f64);
                shared.verified.replace(version);
                if replay.is_none() {
                    resume = 0;
                }
                // Once the whole of it was good: what is damaged stays said while it is looked at again.
                if replay.is_none() {
                    gate.open();
                }
            }
            Err(RegistryError::Untrusted { message }) => {
                tracing::error!(message, "the log is damaged");
                gate.close(message);
                (replay, resume) = (None, 0);
            }
            // Pruned under it, or the store is away: from where the log begins now.
            Err(error) => {
                shared.metrics.tally(STORAGE_BACKOFF, "verify").add(1);
                tracing::debug!(%error, "could not verify");
                replay = None;
            }
        }
    }
}

/// Verifies the next slice, and at the end of the log that it is the one that is shown; then it begins anew.
async fn verify_slice(
    shared: &Shared,
    replay: &mut Option<Replay>,
    resume: u64,
) -> Result<u64, RegistryError> {
    let view = shared.view.load();
    let head = view.state.head();
    // A log that has not begun has nothing to be verified, and followed elsewhere no signature.
    if head.version == 0 {
        return Ok(0);
    }
    let mut going = match replay.take() {
        Some(going) => going,
        None => {
            let mut going = Replay::begin(shared, resume).await?;
            // Hashes are cheap beside signatures, so what was checked before is passed in one go.
            while going.state.head().version < resume.min(head.version) {
                let left = resume.min(head.version) - going.state.head().version;
                if !going.step(shared, REPLAY.min(left as usize)).await? {
                    break;
                }
                tokio::task::yield_now().await;
            }
            going
        }
    };
    let left = head.version.saturating_sub(going.state.head().version);
    let max = shared.settings.load().verify_slice.min(usize::try_from(left).unwrap_or(usize::MAX));
    if max > 0 && !going.step(shared, max).await? {
        let message = format!("version {} is not there", going.state.head().version + 1);
        return Err(RegistryError::Untrusted { message });
    }
    let reached = going.state.head();
    if reached.version < head.version {
        *replay = Some(going);
        return Ok(reached.version);
    }
    // Both hashes, and the signature over one of them.
    let said = shared.trust.open(&view.checkpoint).map_err(|error| RegistryError::Untrusted {
        message: format!("the checkpoint of version {}: {error}", head.version),
    })?;
    if reached.version == head.version && (reached != head || said.root != going.tree.root()) {
        let message = format!("version {} is another than was committed", head.version);
        return Err(RegistryError::Untrusted { message });
    }
    Ok(reached.version)
}

fn verifier_gate(ready: &Ready) -> Arc<ReadyGate> {
    let gate = ready.gate("registry.verified", Affects::Reads);
    gate.open();
    Arc::new(gate)
}

/// Publishes from the version in `next` on, and writes there how far it has come: a publisher that panics is asked again
/// about the same update.
pub(crate) async fn publish(
    shared: Arc<Shared>,
    next: Arc<AtomicU64>,
    publisher: Arc<dyn Publisher>,
    stop: Stop,
) {
    let mut updates = Updates::new(&shared, next.load(Ordering::Relaxed));
    loop {
        let update = tokio::select! {
            biased;
            () = stop.requested() => return,
            update = updates.next() => update,
        };
        match update {
            None => return,
            Some(Ok(update)) => {
                let version = update.version;
                tokio::select! {
                    biased;
                    () = stop.requested() => return,
                    () = publisher.publish(update) => {}
                }
                next.store(version + 1, Ordering::Relaxed);
            }
            Some(Err(RegistryError::Lagging { first })) => {
                tracing::warn!(first, "what was to be published next was pruned");
                updates.skip_to(first);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "could not read what is to be published");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
