//! Following a log that somebody else commits to, without believing them.
//!
//! A follower keeps a log of its own that grows only by what it has checked: the signature of the head (and those of
//! witnesses, if its trust wants some), every approval against the policy in force, the chain, the names, and that the tree
//! with the new entries is the one that was signed. It never gives up what it has kept: a shorter head is a rollback, one that
//! does not continue its log is a fork, and both are kept as evidence, signed by the log itself.
//!
//! If the beginning of the log was pruned at its source, a follower that has nothing yet starts from a snapshot. That is not
//! believed either: its entry must be in the tree that was signed, and its names and its policy those that the entry vouches
//! for.

use std::{collections::VecDeque, fmt, future::ready, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{Deadline, ReadyGate, Restart, Stop, TaskSpec};
use tokio::time::sleep;

use crate::{
    RegistryError,
    logic::{
        checkpoint::Checkpoint,
        entry::Entry,
        merkle::{TreeHash, verify_consistency},
        note::Note,
        snapshot::{PART_BYTES_MAX, Snapshot, SnapshotError},
        state::{Signatures, State},
        tiles::{Prover, TileSource as _, Tree},
    },
    memo,
    metrics::{FOLLOW_ERRORS, FOLLOW_REFUSED, SOURCE_VERSION},
    shared::{Loaded, Marks, Shared, View, store_heads, stored_heads},
    store::{Appended, BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, Block, BoxFuture, StoredSnapshot, append, begin},
};

pub(crate) const FOLLOWER: TaskSpec = TaskSpec::new("ron-registry", "follower")
    .restart(Restart::Never)
    .what("asks for what a followed log has committed, checks all of it, and keeps it");

/// How long one answer of the source may take.
const ASKING: Duration = Duration::from_secs(30);

/// How long checking the names of a snapshot may take: a second for a million.
const OPENING: Duration = Duration::from_secs(600);

/// How long it waits for news before it asks by itself: a source that forgets about us is noticed.
const NEWS: Duration = Duration::from_secs(25);

/// After a failure, doubling up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Evidence that is kept in memory. The first is what matters; the rest is the same again.
const EVIDENCE_MAX: usize = 16;
/// How much of it may be about rollbacks and false snapshots. Anybody can show those, and must not use up the room for
/// what only the log itself can do.
const BY_ANYBODY_MAX: usize = 8;

/// Why a source did not give what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It cannot be reached, or did not answer in time. Ask again later.
    #[error("the source is away: {message}")]
    Away {
        /// What happened.
        message: String,
    },
    /// It answered with a refusal.
    #[error("the source refused: {message}")]
    Refused {
        /// What it said.
        message: String,
    },
    /// What was asked for was pruned there.
    #[error("the log begins at {first} there")]
    Pruned {
        /// The first entry that is left.
        first: u64,
    },
    /// What it answered is not what such an answer looks like.
    #[error("no answer of a registry: {message}")]
    Malformed {
        /// What is wrong.
        message: String,
    },
}

/// A snapshot that a source has, for a follower to start from: see [`Snapshot`](crate::Snapshot).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The last entry that it covers.
    pub version: u64,
    /// How many parts it has.
    pub parts: u32,
}

/// Where a followed log comes from. Nothing that it says is believed.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// The signed head.
    fn checkpoint(&self, deadline: Deadline) -> BoxFuture<'_, Result<Bytes, SourceError>>;

    /// Entries from version `from` on: at least one if there is one, and at most `max`.
    fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>>;

    /// The proof that the log of `old` entries is the beginning of that of `new`.
    fn consistency(
        &self,
        old: u64,
        new: u64,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>>;

    /// The snapshot that stands for the entries that are pruned there; `None` if there is none. A follower that has nothing yet
    /// starts from it.
    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<SnapshotOffer>, SourceError>> {
        let _ = deadline;
        Box::pin(ready(Ok(None)))
    }

    /// A part of the snapshot of this version, counted from 0.
    fn snapshot_part(
        &self,
        version: u64,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        let _ = (part, deadline);
        let message = format!("no snapshot of version {version}");
        Box::pin(ready(Err(SourceError::Refused { message })))
    }

    /// Resolves when there is an entry after version `after`, or when `deadline` has passed.
    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>>;
}

/// What a followed log, or the source of it, was caught at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvidenceKind {
    /// Two signed heads, and neither log is the beginning of the other.
    Fork,
    /// A signed head that is older than one that was shown before. A cache in between may do that, too.
    Rollback,
    /// An entry under a signed head that the log's own rules do not allow.
    Invalid,
    /// A snapshot that is not of the log whose signed head was shown with it. Its source did this, which need not be the one
    /// that signs.
    Snapshot,
}

impl EvidenceKind {
    fn label(self) -> &'static str {
        match self {
            EvidenceKind::Fork => "fork",
            EvidenceKind::Rollback => "rollback",
            EvidenceKind::Invalid => "invalid",
            EvidenceKind::Snapshot => "snapshot",
        }
    }

    /// Whether only the log itself can have done it. The rest is for anybody who can answer in its place.
    fn is_of_the_log(self) -> bool {
        matches!(self, EvidenceKind::Fork | EvidenceKind::Invalid)
    }
}

/// The proof of why a follower refused something. Anybody who has the log's key can check it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// What it is about.
    pub kind: EvidenceKind,
    /// The signed head that was followed so far.
    pub ours: Note,
    /// The signed head that was shown.
    pub theirs: Note,
    /// The entry that is not allowed, if it is about one.
    pub entry: Option<Bytes>,
    /// What is wrong, in words.
    pub message: String,
    /// When, in milliseconds of the Unix epoch.
    pub time: u64,
}

impl fmt::Display for Evidence {
    /// A text that can be kept in a file: both notes as they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.label();
        writeln!(
            f,
            "{kind} at {}: {}\n\nfollowed:\n{}\nshown:\n{}",
            self.time, self.message, self.ours, self.theirs
        )?;
        match &self.entry {
            Some(entry) => writeln!(f, "entry:\n{}", data_encoding::BASE64.encode(entry)),
            None => Ok(()),
        }
    }
}

/// What is told about evidence, as it is found.
pub(crate) type OnEvidence = Arc<dyn Fn(&Evidence) + Send + Sync>;

/// Why a round came to nothing.
enum Trouble {
    Source(SourceError),
    Store(RegistryError),
    Caught(Box<Evidence>),
    /// What came is not what was signed, and its sender may not be the signer.
    False(String),
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        Trouble::Source(error)
    }
}

/// Where a follower starts if it has nothing and the beginning of the log was pruned at its source.
struct Start {
    state: State,
    tree: Tree,
    last: Entry,
    /// The same, as it is kept.
    stored: StoredSnapshot,
}

/// The log as far as it is checked and kept. What is shown of it ends with a signed head.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    source: Arc<dyn Source>,
    gate: ReadyGate,
    on_evidence: Option<OnEvidence>,
    state: State,
    tree: Tree,
    marks: Marks,
    last: Option<Entry>,
    /// The signed head that all of this is under. It is ahead of what is shown while that is being caught up with.
    checkpoint: Arc<Note>,
}

impl Follower {
    /// Goes on behind what is shown, or behind what was kept and is not yet.
    pub(crate) fn new(
        shared: Arc<Shared>,
        source: Arc<dyn Source>,
        gate: ReadyGate,
        on_evidence: Option<OnEvidence>,
        kept: Option<Loaded>,
    ) -> Self {
        let Loaded { view, tree, marks, .. } = kept.unwrap_or_else(|| {
            let view = (*shared.view.load()).clone();
            let (tree, marks) = (shared.tree.lock().clone(), shared.marks.lock().clone());
            Loaded { view, tree, marks, recent: VecDeque::new(), opened: shared.opened }
        });
        let View { state, last, checkpoint } = view;
        Follower { shared, source, gate, on_evidence, state, tree, marks, last, checkpoint }
    }

    pub(crate) async fn run(mut self, stop: Stop) {
        self.follow(&stop).await;
        // What is committed here was committed elsewhere: nobody proposes, so nothing has to be remembered.
        memo::keep(&self.shared, VecDeque::new()).await;
    }

    async fn follow(&mut self, stop: &Stop) {
        let (mut pause, mut lull) = (PAUSE_MIN, PAUSE_MIN);
        let (mut is_idle, mut heard) = (false, ron_core::now());
        loop {
            let round = tokio::select! {
                biased;
                () = stop.requested() => return,
                round = self.round() => round,
            };
            let wait = match round {
                Ok(true) => {
                    (pause, lull, is_idle) = (PAUSE_MIN, PAUSE_MIN, false);
                    None
                }
                // Who has news again and again and then nothing new, perhaps because witnesses have not signed it yet, is
                // asked again after a pause, which grows.
                Ok(false) if is_idle && heard.elapsed() < PAUSE_MIN => {
                    let wait = lull;
                    (pause, lull) = (PAUSE_MIN, (lull * 2).min(PAUSE_MAX));
                    Some(wait)
                }
                Ok(false) => {
                    (pause, is_idle) = (PAUSE_MIN, true);
                    None
                }
                Err(trouble) => {
                    self.on_trouble(trouble);
                    let wait = pause;
                    pause = (pause * 2).min(PAUSE_MAX);
                    Some(wait)
                }
            };
            let head = self.state.head().version;
            heard = ron_core::now();
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = async {
                    match wait {
                        Some(wait) => sleep(wait).await,
                        // Failing to hear of news is no trouble by itself: the next round shows what is.
                        None => if self.source.news(head, Deadline::after(NEWS)).await.is_err() {
                            sleep(PAUSE_MIN).await;
                        },
                    }
                } => {}
            }
        }
    }

    fn on_trouble(&self, trouble: Trouble) {
        let count = |what| self.shared.metrics.tally(FOLLOW_ERRORS, what).add(1);
        match trouble {
            Trouble::Source(error) => {
                count("source");
                tracing::debug!(%error, "could not follow");
                self.gate.close(error.to_string());
            }
            Trouble::Store(error) => {
                count("store");
                tracing::warn!(%error, "could not keep what was followed");
                self.gate.close(error.to_string());
            }
            Trouble::False(message) => {
                count("false");
                tracing::warn!(message, "what came is not what was signed");
                self.gate.close(message);
            }
            Trouble::Caught(evidence) => {
                self.shared.metrics.tally(FOLLOW_REFUSED, evidence.kind.label()).add(1);
                self.gate.close(evidence.message.clone());
                self.keep(*evidence);
            }
        }
    }

    fn keep(&self, evidence: Evidence) {
        let known = self.shared.evidence.load();
        let is_known =
            known.iter().any(|known| known.kind == evidence.kind && known.theirs == evidence.theirs);
        let room = if evidence.kind.is_of_the_log() { EVIDENCE_MAX } else { BY_ANYBODY_MAX };
        if is_known || known.len() >= room {
            return;
        }
        tracing::error!(message = evidence.message, "the followed log was caught");
        if let Some(tell) = &self.on_evidence {
            tell(&evidence);
        }
        let mut kept = (*known).clone();
        kept.push(evidence);
        self.shared.evidence.replace(kept);
    }

    fn evidence(&self, kind: EvidenceKind, theirs: &Note, message: String) -> Box<Evidence> {
        let ours = (*self.checkpoint).clone();
        let time = self.shared.clock.now();
        Box::new(Evidence { kind, ours, theirs: theirs.clone(), entry: None, message, time })
    }

    /// Asks for the head, and for everything up to it. Says whether that was more than was shown.
    async fn round(&mut self) -> Result<bool, Trouble> {
        // What was let go of is let go of here, too.
        let minimum = self.shared.tree.lock().minimum();
        self.tree.prune(minimum);
        self.marks.prune(minimum);
        let bytes = self.source.checkpoint(Deadline::after(ASKING)).await?;
        let is_false = |error: &dyn fmt::Display| Trouble::False(format!("its checkpoint: {error}"));
        let note = Note::parse(&bytes).map_err(|error| is_false(&error))?;
        let said = self.shared.trust.open(&note).map_err(|error| is_false(&error))?;
        self.shared.metrics.gauge(SOURCE_VERSION).set(said.size as f64);
        self.is_continued(&said, &note)?;
        if said.size > self.tree.size() {
            self.catch_up(&said, &note).await?;
            // What was read back is compared with it only now.
            self.is_continued(&said, &note)?;
        }
        let has_moved = self.shared.view.load().state.head().version < said.size;
        if has_moved {
            self.show(note);
        }
        // Evidence of a fork is not undone by showing the right face again.
        let is_forked = |evidence: &Evidence| evidence.kind.is_of_the_log();
        if !self.shared.evidence.load().iter().any(is_forked) {
            self.gate.open();
        }
        Ok(has_moved)
    }

    /// That a head is no older than ours, and where it ends at ours or before it, is the same there.
    fn is_continued(&self, said: &Checkpoint, note: &Note) -> Result<(), Trouble> {
        let size = self.tree.size();
        if said.size > size {
            return Ok(());
        }
        let here = Prover::new(&self.tree, said.size).root();
        // What was pruned here cannot be compared; then only that it is shorter is known.
        if here.is_ok_and(|root| root != said.root) {
            let message = format!("it shows another log of {} entries than was followed", said.size);
            return Err(Trouble::Caught(self.evidence(EvidenceKind::Fork, note, message)));
        }
        if said.size < size {
            let message = format!("it shows {} entries, and {size} were there", said.size);
            return Err(Trouble::Caught(self.evidence(EvidenceKind::Rollback, note, message)));
        }
        Ok(())
    }

    /// Reads, checks and keeps everything up to a signed head. What is kept on the way is proven to be under it.
    async fn catch_up(&mut self, said: &Checkpoint, note: &Note) -> Result<(), Trouble> {
        while self.tree.size() < said.size {
            let from = self.tree.size() + 1;
            let max =
                usize::try_from(said.size - self.tree.size()).unwrap_or(usize::MAX).min(BLOCK_ENTRIES_MAX);
            let given = match self.entries(from, max).await {
                // Who has nothing has nothing to lose by starting later.
                Err(Trouble::Source(SourceError::Pruned { first })) if from == 1 => {
                    let start = self.start(first, said, note).await?;
                    let from = start.stored.version + 1;
                    let left = usize::try_from(said.size.saturating_sub(start.stored.version));
                    let max = left.unwrap_or(usize::MAX).min(BLOCK_ENTRIES_MAX);
                    let entries = self.entries(from, max).await?;
                    self.take(entries, Some(start), said, note).await?;
                    continue;
                }
                given => given?,
            };
            self.take(given, None, said, note).await?;
        }
        Ok(())
    }

    /// At least one entry, and no more than a block holds.
    async fn entries(&self, from: u64, max: usize) -> Result<Vec<Bytes>, Trouble> {
        let mut entries = self.source.entries(from, max, Deadline::after(ASKING)).await?;
        entries.truncate(max);
        if entries.is_empty() {
            return Err(Trouble::False(format!("version {from} is signed for and not given")));
        }
        let mut bytes = 0;
        let fits = entries.iter().take_while(|entry| {
            bytes += entry.len();
            bytes <= BLOCK_BYTES_MAX
        });
        let fitting = fits.count().max(1);
        entries.truncate(fitting);
        Ok(entries)
    }

    /// Gathers the snapshot that stands for what was pruned there, and checks that it is of the log that was signed: its
    /// tree before more than one part is here, its names and its policy when all are. Who has decided what before it, and
    /// whether that was right, is not seen any more: the log's own signature has to do for that.
    async fn start(&self, first: u64, said: &Checkpoint, note: &Note) -> Result<Start, Trouble> {
        let pruned = || Trouble::Source(SourceError::Pruned { first });
        let offer = self.source.snapshot(Deadline::after(ASKING)).await?.ok_or_else(pruned)?;
        let SnapshotOffer { version, parts: count } = offer;
        // There is an entry behind every snapshot, and it must be there to be read.
        if version >= said.size || version + 1 < first || count == 0 {
            return Err(pruned());
        }
        let mut parts = vec![self.part(version, 0).await?];
        let proof = self.source.consistency(version, said.size, Deadline::after(ASKING)).await?;
        let is_false = |error: &SnapshotError, entry: Option<Bytes>| {
            let message = format!("its snapshot of version {version}: {error}");
            let evidence = self.evidence(EvidenceKind::Snapshot, note, message);
            Trouble::Caught(Box::new(Evidence { entry, ..*evidence }))
        };
        let head = Snapshot::decode(&parts).map_err(|error| is_false(&error, None))?;
        let entry = Some(head.entry().clone());
        let found = head.check_tree(said, &proof).map_err(|error| is_false(&error, entry.clone()))?;
        if found != version || u64::from(count) > Snapshot::parts_max(version) {
            return Err(is_false(&SnapshotError::Malformed, entry));
        }
        for part in 1..count {
            parts.push(self.part(version, part).await?);
        }
        // A million names are more than a hundred megabytes.
        let (gathered, goal) = (parts.clone(), said.clone());
        let open = move || Snapshot::decode(&gathered).and_then(|snapshot| snapshot.open(&goal, &proof));
        let opened = self.shared.spawner.blocking("snapshot_open", Deadline::after(OPENING), open).await;
        let opened = opened.map_err(|error| Trouble::Store(error.into()))?;
        let (state, tree, last) = opened.map_err(|error| is_false(&error, entry))?;
        Ok(Start { state, tree, last, stored: StoredSnapshot { version, parts } })
    }

    async fn part(&self, version: u64, part: u32) -> Result<Bytes, Trouble> {
        let bytes = self.source.snapshot_part(version, part, Deadline::after(ASKING)).await?;
        if bytes.len() > PART_BYTES_MAX {
            let message = format!("part {part} of a snapshot with {} bytes", bytes.len());
            return Err(SourceError::Malformed { message }.into());
        }
        Ok(bytes)
    }

    /// Checks entries that follow each other, and keeps them.
    async fn take(
        &mut self,
        entries: Vec<Bytes>,
        start: Option<Start>,
        said: &Checkpoint,
        note: &Note,
    ) -> Result<(), Trouble> {
        let mut marks = self.marks.clone();
        let (mut state, mut tree, mut last, stored) = match start {
            Some(Start { state, tree, last, stored }) => (state, tree, Some(last), Some(stored)),
            None => (self.state.clone(), self.tree.clone(), self.last.clone(), None),
        };
        let (after, mut wrong) = (state.head().version, None);
        for bytes in &entries {
            tree.push(TreeHash::of_leaf(bytes));
            if wrong.is_some() {
                continue;
            }
            let version = state.head().version + 1;
            match state.apply(bytes, Signatures::Check) {
                Ok(entry) => {
                    marks.note(&entry);
                    last = Some(entry);
                }
                Err(error) => wrong = Some((bytes.clone(), format!("version {version}: {error}"))),
            }
            // Some fifty microseconds for each approval; others have their turn in between.
            tokio::task::consume_budget().await;
        }
        self.is_under(&tree, said, note).await?;
        // It is what was signed, and yet not what the log's rules allow.
        if let Some((entry, message)) = wrong {
            let evidence = self.evidence(EvidenceKind::Invalid, note, message);
            return Err(Trouble::Caught(Box::new(Evidence { entry: Some(entry), ..*evidence })));
        }
        // On the way to a head the last one that was shown is kept as well: it is all there is to show after a stop.
        let shown = self.shared.view.load();
        let checkpoint = match tree.size() < said.size && shown.last.is_some() {
            true => store_heads(note, &shown.checkpoint),
            false => note.to_string().into(),
        };
        let block = Block { entries, checkpoint };
        let deadline = Deadline::after(self.shared.settings.load().commit_timeout);
        let is_start = stored.is_some();
        let kept = match stored {
            Some(stored) => begin(&*self.shared.store, stored, &block, deadline).await,
            None => append(&*self.shared.store, after, &block, deadline).await,
        };
        match kept.map_err(|error| Trouble::Store(error.into()))? {
            Appended::Yes => {
                (self.state, self.tree, self.marks, self.last) = (state, tree, marks, last);
                self.checkpoint = Arc::new(note.clone());
                Ok(())
            }
            Appended::Conflict { tail } if is_start => {
                let message = format!("somebody else writes here: there are {tail} entries by now");
                Err(Trouble::Store(RegistryError::Untrusted { message }))
            }
            Appended::Conflict { .. } => self.read_back().await.map_err(Trouble::Store),
        }
    }

    /// Goes on to what the store has behind what is known here: a block that an earlier round could not wait for, and that
    /// arrived since. All of it is checked again, because it may be somebody else who writes there.
    async fn read_back(&mut self) -> Result<(), RegistryError> {
        let deadline = || Deadline::after(self.shared.settings.load().commit_timeout);
        let known = self.state.head().version;
        let untrusted = |what: &dyn fmt::Display| RegistryError::Untrusted {
            message: format!("somebody else writes here, behind version {known}: {what}"),
        };
        let tail = self.shared.store.tail(deadline()).await?;
        let (mut state, mut tree, mut marks) = (self.state.clone(), self.tree.clone(), self.marks.clone());
        let mut last = self.last.clone();
        while state.head().version < tail.version {
            let from = state.head().version + 1;
            let max = usize::try_from(tail.version + 1 - from).unwrap_or(usize::MAX).min(BLOCK_ENTRIES_MAX);
            let entries = self.shared.store.read(from, max, deadline()).await?;
            if entries.is_empty() {
                return Err(untrusted(&format!("version {from} is not there")));
            }
            for bytes in &entries {
                let entry = state.apply(bytes, Signatures::Check).map_err(|error| untrusted(&error))?;
                tree.push(TreeHash::of_leaf(bytes));
                marks.note(&entry);
                last = Some(entry);
                tokio::task::consume_budget().await;
            }
        }
        let (goal, _) = stored_heads(&tail.checkpoint.unwrap_or_default());
        let note = Note::parse(&goal).map_err(|error| untrusted(&error))?;
        let said = self.shared.trust.open(&note).map_err(|error| untrusted(&error))?;
        let is_signed = said.size > tree.size() || (said.size, said.root) == (tree.size(), tree.root());
        if tree.size() == known || !is_signed {
            return Err(untrusted(&"it is not what its checkpoint says"));
        }
        (self.state, self.tree, self.marks, self.last) = (state, tree, marks, last);
        self.checkpoint = Arc::new(note);
        Ok(())
    }

    /// That the tree with new entries is the beginning of what was signed. If it is not, either the log has forked or the
    /// entries are false, and whether the heads are of one log tells which.
    async fn is_under(&self, tree: &Tree, said: &Checkpoint, note: &Note) -> Result<(), Trouble> {
        let (size, root) = (tree.size(), tree.root());
        let is_good = if size == said.size {
            root == said.root
        } else {
            let proof = self.source.consistency(size, said.size, Deadline::after(ASKING)).await?;
            verify_consistency((size, &root), (said.size, &said.root), &proof).is_ok()
        };
        if is_good {
            return Ok(());
        }
        let (old, old_root) = (self.tree.size(), self.tree.root());
        // A source that gives no proof is no proof of a fork.
        let proof = match old {
            0 => Vec::new(),
            _ => self.source.consistency(old, said.size, Deadline::after(ASKING)).await?,
        };
        let one_log =
            old == 0 || verify_consistency((old, &old_root), (said.size, &said.root), &proof).is_ok();
        if one_log {
            return Err(Trouble::False(format!("the entries up to {size} are not those that were signed")));
        }
        let message =
            format!("its log of {} entries does not go on from the {old} that were followed", said.size);
        Err(Trouble::Caught(self.evidence(EvidenceKind::Fork, note, message)))
    }

    /// Lets everybody see what was caught up with.
    fn show(&self, note: Note) {
        let Some(last) = self.last.clone() else { return };
        let (tree, marks) = (self.tree.clone(), self.marks.clone());
        self.shared.show_all(self.state.clone(), tree, marks, last, Arc::new(note));
    }
}
