//! Following a log that somebody else commits to, without believing them.
//!
//! A follower keeps a log of its own that grows only by what it has checked: the signature of the head (and those of
//! witnesses, if its trust wants some), every approval against the policy in force, the chain, the names, and that the tree
//! with the new entries is the one that was signed. What it has once kept it never gives up: a head that is shorter is a
//! rollback, one that is not a continuation is a fork, and both are kept as evidence, signed by the log itself.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

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
        state::{Signatures, State},
        tiles::{Prover, TileSource as _, Tree},
    },
    memo,
    metrics::{FOLLOW_ERRORS, FOLLOW_REFUSED, SOURCE_VERSION},
    shared::{Loaded, Marks, Shared, View},
    store::{Appended, BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, Block, BoxFuture, append},
};

pub(crate) const FOLLOWER: TaskSpec = TaskSpec::new("ron-registry", "follower")
    .restart(Restart::Never)
    .what("asks for what a followed log has committed, checks all of it, and keeps it");

/// How long one answer of the source may take.
const ASKING: Duration = Duration::from_secs(30);

/// How long it waits for news before it asks by itself: a source that forgets about us is noticed.
const NEWS: Duration = Duration::from_secs(25);

/// After a failure, doubling up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Evidence that is kept in memory. The first is what matters; the rest is the same again.
const EVIDENCE_MAX: usize = 16;
/// How much of it may be about rollbacks. Anybody who has old heads can show them, and must not use up the room for what
/// only the log itself can do.
const ROLLBACKS_MAX: usize = 8;

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

    /// Resolves when there is an entry after version `after`, or when `deadline` has passed.
    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>>;
}

/// What somebody did who should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvidenceKind {
    /// Two signed heads, and neither log is the beginning of the other.
    Fork,
    /// A signed head that is older than one that was shown before. A cache may do that, too.
    Rollback,
    /// An entry under a signed head that the log's own rules do not allow.
    Invalid,
}

/// What a follower has to show for its refusal. Anybody can check it who has the log's key.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        let kind = match self.kind {
            EvidenceKind::Fork => "fork",
            EvidenceKind::Rollback => "rollback",
            EvidenceKind::Invalid => "invalid",
        };
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
        let mut pause = PAUSE_MIN;
        let (mut is_idle, mut heard) = (false, ron_core::now());
        loop {
            let round = tokio::select! {
                biased;
                () = stop.requested() => return,
                round = self.round() => round,
            };
            let wait = match round {
                Ok(true) => {
                    (pause, is_idle) = (PAUSE_MIN, false);
                    None
                }
                // Who has news again and again and then nothing new is asked again after a pause.
                Ok(false) if is_idle && heard.elapsed() < PAUSE_MIN => Some(PAUSE_MIN),
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
                self.close(error.to_string());
            }
            Trouble::Store(error) => {
                count("store");
                tracing::warn!(%error, "could not keep what was followed");
                self.close(error.to_string());
            }
            Trouble::False(message) => {
                count("false");
                tracing::warn!(message, "what came is not what was signed");
                self.close(message);
            }
            Trouble::Caught(evidence) => {
                let label = match evidence.kind {
                    EvidenceKind::Fork => "fork",
                    EvidenceKind::Rollback => "rollback",
                    EvidenceKind::Invalid => "invalid",
                };
                self.shared.metrics.tally(FOLLOW_REFUSED, label).add(1);
                self.close(evidence.message.clone());
                self.keep(*evidence);
            }
        }
    }

    fn close(&self, reason: String) {
        self.gate.close(reason);
    }

    fn keep(&self, evidence: Evidence) {
        let known = self.shared.evidence.load();
        let is_known =
            known.iter().any(|known| known.kind == evidence.kind && known.theirs == evidence.theirs);
        let room = if evidence.kind == EvidenceKind::Rollback { ROLLBACKS_MAX } else { EVIDENCE_MAX };
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
        self.marks.at.retain(|mark| mark.version > minimum);
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
        let is_forked = |evidence: &Evidence| evidence.kind != EvidenceKind::Rollback;
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
            self.take(entries, said, note).await?;
        }
        Ok(())
    }

    /// Checks entries that follow each other, and keeps them.
    async fn take(&mut self, entries: Vec<Bytes>, said: &Checkpoint, note: &Note) -> Result<(), Trouble> {
        let (mut state, mut tree, mut marks) = (self.state.clone(), self.tree.clone(), self.marks.clone());
        let (mut last, mut wrong) = (self.last.clone(), None);
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
        let block = Block { entries, checkpoint: note.to_string().into() };
        let deadline = Deadline::after(self.shared.settings.load().commit_timeout);
        let kept = append(&*self.shared.store, self.state.head().version, &block, deadline).await;
        match kept.map_err(|error| Trouble::Store(error.into()))? {
            Appended::Yes => {
                (self.state, self.tree, self.marks, self.last) = (state, tree, marks, last);
                self.checkpoint = Arc::new(note.clone());
                Ok(())
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
        let note = Note::parse(&tail.checkpoint.unwrap_or_default()).map_err(|error| untrusted(&error))?;
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
