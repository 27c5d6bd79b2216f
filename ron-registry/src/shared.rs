//! What everybody sees of a log: the last state that is durable, its tree, and where to read the rest.
//!
//! The committer alone changes it. Readers take the view as it is and never wait for anybody; tiles are shared, so that a
//! proof holds the lock of the tree for one tile at a time.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Counter, Deadline, Feed, Gauge, LaneSpec, Lock, LockSpec, Metrics, Retry, RetryBudget,
    Snapshot, Spawner, fastrand,
};

use crate::{
    RegistryError, Settings,
    follow::Evidence,
    index::Contents,
    logic::{
        checkpoint::{Checkpoint, CheckpointError, LogTrust, add_cosignatures},
        entry::Entry,
        merkle::TreeHash,
        note::{Note, NoteSigner},
        proposal::{Action, Name, ProposalId},
        state::{Signatures, State},
        tiles::{Prover, TILE_WIDTH, Tile, TileSource, Tree},
    },
    memo::Memo,
    metrics::{HEAD_VERSION, STORAGE_BACKOFF},
    store::{LogStore, StoreError, StoredSnapshot},
};

pub(crate) const COMMITTED: LaneSpec = LaneSpec::feed("ron-registry", "committed", 1024)
    .flow("committer → updates, publisher")
    .why("a second of a busy log; whoever is farther behind is served from the log itself");

pub(crate) const TREE: LockSpec = LockSpec::new("ron-registry", "tree", 420)
    .guards("the tiles of the tree; held for one tile, or for the hashes of one block");

pub(crate) const MARKS: LockSpec = LockSpec::new("ron-registry", "marks", 430)
    .guards("time and bytes of the log at every 256th entry; held for a search");

/// Entries read from the store at a time.
const READ_MAX: usize = 256;

/// Proposals that are remembered across a restart: as many as are by default while it runs.
pub(crate) const RECENT_MAX: usize = 1 << 16;

/// Entries between two times that others have their turn.
const YIELDS: u64 = 32;

/// What was committed. `version` is also how many entries the log has with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistryUpdated {
    /// The entry.
    pub version: u64,
    /// The name it is about, if it is about one.
    pub name: Option<Name>,
    /// What the name stands for now; nothing if it was retired, and the policy if that was replaced.
    pub b3: Option<ContentId>,
    /// The proposal that was committed.
    pub proposal: ProposalId,
}

impl RegistryUpdated {
    pub(crate) fn of(entry: &Entry) -> Self {
        let proposal = entry.proposal();
        let b3 = match proposal.action() {
            Action::Bind { .. } | Action::Retire { .. } => proposal.content_id(),
            Action::Found { policy } | Action::Rotate { policy } => Some(ContentId::of(policy.encoded())),
        };
        let name = proposal.action().name().cloned();
        RegistryUpdated { version: entry.version(), name, b3, proposal: proposal.id() }
    }
}

/// The log as it is, all of it durable.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: State,
    /// The last entry; none before the beginning.
    pub(crate) last: Option<Entry>,
    /// The signed head that covers it.
    pub(crate) checkpoint: Arc<Note>,
}

/// Time and size of the log up to a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) version: u64,
    pub(crate) time: u64,
    pub(crate) bytes: u64,
}

/// Marks at whole tiles, and where the log is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
    pub(crate) at: Vec<Mark>,
    pub(crate) bytes: u64,
    /// Those of `bytes` that were pruned.
    pub(crate) gone: u64,
}

impl Marks {
    /// Bytes of the entries that are left up to this version, which has a mark.
    pub(crate) fn before(&self, version: u64) -> u64 {
        let mark = self.at.iter().find(|mark| mark.version == version);
        mark.map_or(0, |mark| mark.bytes - self.gone)
    }

    /// Forgets what was pruned.
    pub(crate) fn prune(&mut self, upto: u64) {
        self.gone += self.before(upto);
        self.at.retain(|mark| mark.version > upto);
    }

    pub(crate) fn note(&mut self, entry: &Entry) {
        self.bytes += entry.encoded().len() as u64;
        if entry.version() % TILE_WIDTH == 0 {
            self.at.push(Mark { version: entry.version(), time: entry.time(), bytes: self.bytes });
        }
    }
}

/// How a log was found at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// Entries that were read: none after a clean stop, those since the last snapshot or all of them otherwise.
    pub read: u64,
    /// Up to which version it was known from what a clean stop had left; 0 if there was nothing, or nothing of use.
    pub memo: u64,
    /// The first entry that it could prove.
    pub(crate) memo_first: u64,
}

/// What the tasks and the handle of one registry share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) view: Snapshot<View>,
    /// The version that the committer has decided up to, which may be more than is durable, and may still come to nothing.
    /// Only good for telling who need not hurry.
    pub(crate) decided: AtomicU64,
    pub(crate) tree: Lock<Tree>,
    /// What the tree says is pruned, for those who ask nothing else of it. Written under its lock.
    pub(crate) pruned: AtomicU64,
    pub(crate) marks: Lock<Marks>,
    pub(crate) store: Arc<dyn LogStore>,
    /// None of a log that is followed.
    pub(crate) signer: Option<NoteSigner>,
    pub(crate) trust: LogTrust,
    pub(crate) committed: Feed<RegistryUpdated>,
    pub(crate) contents: Contents,
    /// Whether witnesses are asked from here.
    pub(crate) is_witnessed: bool,
    /// The last checkpoint that witnesses have signed, and its size.
    pub(crate) cosigned: Snapshot<Option<(u64, Arc<Note>)>>,
    /// How far the verifier has come in this pass.
    pub(crate) verified: Snapshot<u64>,
    /// What a follower has caught its log at.
    pub(crate) evidence: Snapshot<Vec<Evidence>>,
    pub(crate) settings: Snapshot<Settings>,
    pub(crate) metrics: Metrics,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Clock,
    pub(crate) opened: Opened,
    /// Reads of the store are tried again while it is busy.
    reads: Retry,
    head: Gauge,
}

/// Where the time comes from: milliseconds of the Unix epoch.
#[derive(Clone)]
pub(crate) struct Clock(pub(crate) Arc<dyn Fn() -> u64 + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Clock {
    pub(crate) fn now(&self) -> u64 {
        (self.0)()
    }
}

/// What [`Shared`] is made of.
pub(crate) struct Parts {
    pub(crate) loaded: Loaded,
    pub(crate) store: Arc<dyn LogStore>,
    pub(crate) signer: Option<NoteSigner>,
    pub(crate) trust: LogTrust,
    pub(crate) committed: Feed<RegistryUpdated>,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) verified: u64,
    pub(crate) is_witnessed: bool,
    pub(crate) spawner: Spawner,
}

impl Shared {
    pub(crate) fn new(parts: Parts, metrics: &Metrics) -> Self {
        let Parts {
            loaded,
            store,
            signer,
            trust,
            committed,
            settings,
            clock,
            verified,
            is_witnessed,
            spawner,
        } = parts;
        let Loaded { view, tree, marks, opened, .. } = loaded;
        let head = metrics.gauge(HEAD_VERSION);
        head.set(view.state.head().version as f64);
        let reads = Retry::idempotent("read", &RetryBudget::default(), metrics)
            .with_rng(fastrand::Rng::with_seed(clock.now()));
        Shared {
            decided: AtomicU64::new(view.state.head().version),
            view: Snapshot::new(view),
            pruned: AtomicU64::new(tree.minimum()),
            tree: Lock::new(TREE, tree, metrics),
            marks: Lock::new(MARKS, marks, metrics),
            store,
            signer,
            trust,
            committed,
            contents: Contents::new(metrics),
            is_witnessed,
            cosigned: Snapshot::new(None),
            verified: Snapshot::new(verified),
            evidence: Snapshot::new(Vec::new()),
            settings: Snapshot::new(settings),
            metrics: metrics.clone(),
            spawner,
            clock,
            opened,
            reads,
            head,
        }
    }

    /// Up to which version entries may go: below the head, and not beyond what witnesses have seen, or there would be no
    /// proof for them that the log has only grown.
    pub(crate) fn prunable_below(&self) -> u64 {
        let head = self.view.load().state.head().version;
        // Before the first answer of a witness nobody knows what it has seen.
        let unseen = if self.is_witnessed { 0 } else { head };
        (*self.cosigned.load()).as_ref().map_or(unseen, |(size, _)| head.min(*size))
    }

    /// Entries as the store has them. What passes by itself, as that it is busy, is waited for within the deadline: three
    /// tries, and no more of them than a tenth of all reads, so that a store which is overloaded is not asked three times as
    /// much for it.
    pub(crate) async fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> Result<Vec<Bytes>, RegistryError> {
        let read = self.reads.run(deadline, || self.store.read(from, max, deadline)).await;
        match &read {
            Ok(_) | Err(StoreError::Pruned { .. } | StoreError::Canceled) => {}
            Err(error) => {
                self.metrics.tally(STORAGE_BACKOFF, "read").add(1);
                if matches!(error, StoreError::Timeout { .. }) {
                    self.metrics.tally(Counter::IoTimeouts, "read").add(1);
                }
            }
        }
        Ok(read?)
    }

    pub(crate) fn prove_consistency(
        &self,
        old_size: u64,
        new_size: u64,
    ) -> Result<Vec<TreeHash>, RegistryError> {
        let head = self.view.load().state.head().version;
        if new_size > head {
            return Err(RegistryError::NotFound { head });
        }
        Ok(Prover::new(&SharedTiles(self), new_size).consistency(old_size)?)
    }

    /// Keeps what witnesses answered to a checkpoint, if it is of this log and none that they have signed is newer. Says
    /// how many signatures that brought.
    pub(crate) fn add_cosignatures(
        &self,
        checkpoint: &Note,
        answer: &str,
        trust: &LogTrust,
    ) -> Result<usize, CheckpointError> {
        let said = self.trust.open(checkpoint)?;
        let is_shown = said.size <= self.view.load().state.head().version
            && Prover::new(&SharedTiles(self), said.size).root()? == said.root;
        if !is_shown {
            return Err(CheckpointError::Malformed { what: "a checkpoint that this log never had" });
        }
        let mut fresh = checkpoint.clone();
        let mut added = add_cosignatures(&mut fresh, answer, trust)?;
        if added == 0 {
            return Ok(0);
        }
        self.cosigned.update(|before| match before {
            Some((size, note)) if *size == said.size => {
                let mut note = (**note).clone();
                let known = note.signatures().len();
                // As many as there is room for.
                for signature in fresh.signatures() {
                    let _ = note.add(signature.clone());
                }
                added = note.signatures().len() - known;
                Some((said.size, Arc::new(note)))
            }
            Some((size, _)) if *size > said.size => before.clone(),
            _ => Some((said.size, Arc::new(fresh))),
        });
        Ok(added)
    }

    /// Shows what has become durable, and tells everybody. `leaves` are the hashes of the entries, made before the lock is
    /// taken that every proof needs.
    pub(crate) fn show(&self, state: State, entries: &[Entry], leaves: &[TreeHash], checkpoint: Arc<Note>) {
        let Some(last) = entries.last().cloned() else { return };
        {
            let mut tree = self.tree.lock();
            leaves.iter().for_each(|leaf| tree.push(*leaf));
        }
        {
            let mut marks = self.marks.lock();
            entries.iter().for_each(|entry| marks.note(entry));
        }
        self.head.set(state.head().version as f64);
        self.view.replace(View { state, last: Some(last), checkpoint });
        for entry in entries {
            self.committed.publish(RegistryUpdated::of(entry));
        }
    }

    /// Forgets what the tree would need to prove entries up to this version.
    pub(crate) fn prune_tree(&self, upto: u64) {
        let mut tree = self.tree.lock();
        tree.prune(upto);
        self.pruned.store(tree.minimum(), Ordering::Release);
    }

    /// Shows a log that has grown by more than one wants to hold in memory. Who waits for updates reads them from the log.
    pub(crate) fn show_all(
        &self,
        state: State,
        tree: Tree,
        marks: Marks,
        last: Entry,
        checkpoint: Arc<Note>,
    ) {
        // Pruned meanwhile, perhaps.
        let minimum = {
            let mut shown = self.tree.lock();
            let minimum = shown.minimum();
            *shown = tree;
            shown.prune(minimum);
            self.pruned.store(shown.minimum(), Ordering::Release);
            minimum
        };
        {
            let mut shown = self.marks.lock();
            *shown = marks;
            shown.prune(minimum);
        }
        self.head.set(state.head().version as f64);
        let update = RegistryUpdated::of(&last);
        self.view.replace(View { state, last: Some(last), checkpoint });
        self.committed.publish(update);
    }
}

/// The tiles, each taken out of the lock before it is hashed.
#[derive(Debug)]
pub(crate) struct SharedTiles<'a>(pub(crate) &'a Shared);

impl TileSource for SharedTiles<'_> {
    fn tile(&self, tile: Tile) -> Option<Bytes> {
        self.0.tree.lock().tile(tile)
    }

    fn minimum(&self) -> u64 {
        self.0.tree.lock().minimum()
    }
}

/// A log as it was found in a store.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) view: View,
    pub(crate) tree: Tree,
    pub(crate) marks: Marks,
    /// Proposals of the last entries and their versions, the oldest first: whoever repeats one is told where it is.
    pub(crate) recent: VecDeque<(ProposalId, u64)>,
    pub(crate) opened: Opened,
}

fn untrusted(message: String) -> RegistryError {
    RegistryError::Untrusted { message }
}

/// Where a log in a store begins: with its snapshot, or empty.
pub(crate) async fn beginning(
    store: &dyn LogStore,
    spawner: &Spawner,
    origin: &str,
    deadline: Deadline,
) -> Result<(State, Tree, Option<Entry>), RegistryError> {
    let Some(stored) = store.snapshot(deadline).await? else {
        return Ok((State::new(origin), Tree::new(), None));
    };
    let StoredSnapshot { version, parts } = stored;
    // A million names are more than a hundred megabytes.
    let open = move || {
        let snapshot = crate::logic::snapshot::Snapshot::decode(&parts);
        snapshot.and_then(|snapshot| snapshot.restore())
    };
    let opened = spawner.blocking("snapshot_open", deadline, open).await?;
    let (state, tree, entry) =
        opened.map_err(|error| untrusted(format!("the snapshot of version {version}: {error}")))?;
    if state.origin() != origin {
        return Err(untrusted(format!("it is the log {}, and not {origin}", state.origin())));
    }
    Ok((state, tree, Some(entry)))
}

/// Reads a log through, checks that it is what its last signed head says, and that it has not lost what was `seen`.
///
/// A follower that was stopped on its way to a head has entries that no head ends with. They are not to be shown before it
/// has the rest, and are given beside what is: the log as it was shown before.
pub(crate) async fn load(
    store: &dyn LogStore,
    spawner: &Spawner,
    signer: Option<&NoteSigner>,
    trust: &LogTrust,
    seen: Option<&Checkpoint>,
    patience: Duration,
) -> Result<(Loaded, Option<Loaded>), RegistryError> {
    let memo = remembered(store, spawner, trust.origin(), patience).await;
    if let Some(memo) = memo {
        match load_from(Some(memo), store, spawner, signer, trust, seen, patience).await {
            // Whatever is wrong with the log shows again when all of it is read.
            Err(RegistryError::Untrusted { message }) => {
                tracing::warn!(message, "what the last stop left is of no use: reading the whole log");
            }
            loaded => return loaded,
        }
    }
    load_from(None, store, spawner, signer, trust, seen, patience).await
}

/// What a clean stop has left, if it is of this log and fits together.
async fn remembered(
    store: &dyn LogStore,
    spawner: &Spawner,
    origin: &str,
    patience: Duration,
) -> Option<Memo> {
    let stored = store.take_memo(Deadline::after(patience)).await.ok().flatten()?;
    let read = move || Memo::decode(&stored.parts);
    match spawner.blocking("memo_open", Deadline::after(patience), read).await {
        Ok(Ok(memo)) => Some(memo).filter(|memo| memo.state.origin() == origin),
        Ok(Err(error)) => {
            tracing::warn!(%error, "what the last stop left is of no use: reading the whole log");
            None
        }
        Err(_) => None,
    }
}

async fn load_from(
    memo: Option<Memo>,
    store: &dyn LogStore,
    spawner: &Spawner,
    signer: Option<&NoteSigner>,
    trust: &LogTrust,
    seen: Option<&Checkpoint>,
    patience: Duration,
) -> Result<(Loaded, Option<Loaded>), RegistryError> {
    let origin = trust.origin();
    let deadline = || Deadline::after(patience);
    let (mut state, mut tree, mut last, mut marks, mut recent);
    let mut opened = Opened { read: 0, memo: 0, memo_first: 0 };
    match memo {
        Some(memo) => {
            (opened.memo, opened.memo_first) = (memo.state.head().version, memo.tree.minimum() + 1);
            (state, tree, last) = (memo.state, memo.tree, Some(memo.last));
            (marks, recent) = (memo.marks, memo.recent);
        }
        None => {
            (state, tree, last) = beginning(store, spawner, origin, deadline()).await?;
            (marks, recent) = (Marks::default(), VecDeque::new());
        }
    }
    // Where it ends first: what another committer appends meanwhile has a later checkpoint.
    let tail = store.tail(deadline()).await?;
    let (goal, shown) = tail.checkpoint.map_or((None, None), |bytes| {
        let (goal, shown) = stored_heads(&bytes);
        (Some(goal), shown)
    });
    // Before the entries, of which the first would only say that it follows another: the head says which log it is, and
    // whose.
    let goal = goal.map(|bytes| {
        let note = Note::parse(&bytes).map_err(|error| untrusted(format!("its checkpoint: {error}")))?;
        let said = trust.open(&note).map_err(|error| untrusted(format!("its checkpoint: {error}")))?;
        Ok::<_, RegistryError>((note, said))
    });
    let goal = goal.transpose()?;
    // What a follower has shown before it went on its way; nothing else has two heads.
    let shown = shown.and_then(|bytes| Note::parse(&bytes).ok());
    let shown = shown.and_then(|note| Some((trust.open(&note).ok()?, Arc::new(note))));
    let as_shown = |state: &State, tree: &Tree, marks: &Marks, last: &Option<Entry>, opened: Opened| {
        let (said, note) = shown.as_ref()?;
        let is_it = said.size == tree.size() && said.root == tree.root();
        let view = || View { state: state.clone(), last: last.clone(), checkpoint: Arc::clone(note) };
        let (tree, marks, recent) = (tree.clone(), marks.clone(), VecDeque::new());
        is_it.then(|| Loaded { view: view(), tree, marks, recent, opened })
    };
    let mut before = as_shown(&state, &tree, &marks, &last, opened);
    while state.head().version < tail.version {
        let version = state.head().version + 1;
        let max = READ_MAX.min(usize::try_from(tail.version + 1 - version).unwrap_or(READ_MAX));
        let entries = store.read(version, max, deadline()).await?;
        if entries.is_empty() {
            return Err(RegistryError::untrusted_at(version, "it is not there"));
        }
        for bytes in &entries {
            let version = state.head().version + 1;
            let entry = state
                .apply(bytes, Signatures::Checked)
                .map_err(|error| RegistryError::untrusted_at(version, error))?;
            tree.push(TreeHash::of_leaf(bytes));
            marks.note(&entry);
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back((entry.proposal().id(), version));
            last = Some(entry);
            opened.read += 1;
            if shown.as_ref().is_some_and(|(said, _)| said.size == version) {
                before = as_shown(&state, &tree, &marks, &last, opened);
            }
            if version % YIELDS == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
    // Also of one that is on its way to a head: what it has is what it goes on from.
    if let Some(seen) = seen {
        goes_on_from(&tree, seen)?;
    }
    let found = Checkpoint { origin: origin.to_owned(), size: tree.size(), root: tree.root() };
    let checkpoint = match goal {
        Some((note, said)) => {
            let is_on_its_way = signer.is_none() && said.size > found.size;
            if is_on_its_way {
                if let Some(before) = before {
                    let view = View { state, last, checkpoint: Arc::new(note) };
                    return Ok((before, Some(Loaded { view, tree, marks, recent, opened })));
                }
                let start = Checkpoint { origin: origin.to_owned(), size: 0, root: Tree::new().root() };
                let unsigned = Note::new(start.text()).map_err(|error| untrusted(error.to_string()))?;
                let view = View { state, last, checkpoint: Arc::new(note) };
                let kept = Loaded { view, tree, marks, recent, opened };
                let view = View { state: State::new(origin), last: None, checkpoint: Arc::new(unsigned) };
                let (tree, marks, recent) = (Tree::new(), Marks::default(), VecDeque::new());
                return Ok((Loaded { view, tree, marks, recent, opened }, Some(kept)));
            }
            if said != found {
                let (said, found) = (said.size, found.size);
                return Err(untrusted(format!("the checkpoint of {said} entries is not of these {found}")));
            }
            note
        }
        // Nobody but its owner can sign for a log that has not begun.
        None if tree.size() == 0 => match signer {
            Some(signer) => found.sign(signer).map_err(|error| untrusted(error.to_string()))?,
            None => Note::new(found.text()).map_err(|error| untrusted(error.to_string()))?,
        },
        None => return Err(untrusted("it has no checkpoint".to_owned())),
    };
    let view = View { state, last, checkpoint: Arc::new(checkpoint) };
    Ok((Loaded { view, tree, marks, recent, opened }, None))
}

/// What stands between two heads in a store. No note has it in it.
const BETWEEN: u8 = 0;

/// How a follower keeps the head that it is on its way to, and the last one that it has shown.
pub(crate) fn store_heads(goal: &Note, shown: &Note) -> Bytes {
    [goal.to_string().as_bytes(), &[BETWEEN], shown.to_string().as_bytes()].concat().into()
}

/// The head that a log in a store ends with or is on its way to, and in the latter case the last one that was shown.
pub(crate) fn stored_heads(bytes: &Bytes) -> (Bytes, Option<Bytes>) {
    match bytes.iter().position(|byte| *byte == BETWEEN) {
        Some(at) => (bytes.slice(..at), Some(bytes.slice(at + 1..))),
        None => (bytes.clone(), None),
    }
}

/// Whether a log is a continuation of the one that was `seen`.
fn goes_on_from(tree: &Tree, seen: &Checkpoint) -> Result<(), RegistryError> {
    let root = Prover::new(tree, seen.size.min(tree.size())).root();
    // Whoever can make another log can prune it as well, so that it cannot be compared is no excuse.
    if let Err(error) = root {
        let size = seen.size;
        return Err(untrusted(format!("it was pruned beyond the {size} entries that were seen: {error}")));
    }
    if seen.size > tree.size() || root != Ok(seen.root) {
        return Err(untrusted(format!("it is not the log of {} entries that was seen", seen.size)));
    }
    Ok(())
}
