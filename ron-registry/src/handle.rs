//! What a host holds of a running registry.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Lane, Ready, ReadyStatus, Stopped, Supervisor};

use crate::{
    Builder, RegistryError, Settings, Updates,
    actor::{Answer, Command},
    builder::{Deciding, Role},
    follow::{Evidence, SnapshotOffer, Source},
    logic::{
        chain::Head,
        checkpoint::{CheckpointError, LogTrust, ProofFile},
        entry::{APPROVALS_MAX, Entry},
        merkle::TreeHash,
        names::{Latest, NameProof, NameProofError, Names, POLICY_KEY},
        note::{Note, NoteVerifier},
        policy::Policy,
        proposal::{
            Action, Approval, Content, FormError, Name, Proposal, ProposalId, RecordedApproval,
            VerifiedApproval,
        },
        state::Refused,
        tiles::{Level, Prover, TILE_WIDTH, Tile, TileSource, write_bundle},
    },
    metrics::{APPROVAL_REJECTS, RELOAD_FAILS, RELOADS},
    shared::{Opened, Shared, SharedTiles},
    upkeep::Prune,
};

/// That a proposal is in the log, durably and covered by a signed head. It is the word of this node. To prove it to somebody
/// without a network, send what [`Registry::prove`] gives for `version` and the bytes of the entry:
/// [`ProofFile::verify`](crate::ProofFile::verify) checks them with the log's public key alone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Receipt {
    /// The entry.
    pub version: u64,
    /// What was committed.
    pub proposal: ProposalId,
    /// A signed head that covers it.
    pub checkpoint: Arc<Note>,
}

impl PartialEq for Receipt {
    /// Two receipts are the same if they are for the same entry, whichever head covers it.
    fn eq(&self, other: &Self) -> bool {
        (self.version, self.proposal) == (other.version, other.proposal)
    }
}

impl Eq for Receipt {}

/// How a proposal stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It waits for approvals, in memory. A restart forgets it, so keep the proposal and the approvals until it is committed;
    /// sending either again is harmless.
    Pending {
        /// What was proposed.
        proposal: ProposalId,
        /// Signers who could still approve it.
        missing: Vec<String>,
    },
    /// It is in the log.
    Committed(Receipt),
}

/// A proposal that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingProposal {
    /// What was proposed.
    pub proposal: Proposal,
    /// Who has approved it.
    pub approvals: Vec<RecordedApproval>,
    /// Who could still.
    pub missing: Vec<String>,
}

/// What a name stands for, with everything it takes to check that offline.
#[derive(Debug, Clone)]
pub struct NameAnswer {
    /// What it stands for; `None` if it never stood for anything.
    pub latest: Option<Latest>,
    /// The proof, against the root of names in `entry`.
    pub proof: NameProof,
    /// The last entry of the log.
    pub entry: Bytes,
    /// That this is the last entry of the log that `checkpoint` inside is of.
    pub inclusion: ProofFile,
}

/// Why an answer about a name proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameAnswerError {
    /// The entry is not in the log.
    #[error("its entry is not in the log")]
    Inclusion(#[from] CheckpointError),
    /// The entry is not the last one, so that later ones may say otherwise.
    #[error("its entry is not the last one")]
    NotLast,
    /// The entry says that it is another than the proof is of.
    #[error("its entry says that it is version {said}, and it is {is}")]
    Misplaced {
        /// The version that it says.
        said: u64,
        /// The place where it is.
        is: u64,
    },
    /// The entry is none.
    #[error("its entry is none")]
    Entry(#[from] FormError),
    /// The proof does not fit the entry.
    #[error("its proof does not fit the entry")]
    Proof(#[from] NameProofError),
}

impl NameAnswer {
    /// What the name stands for, as `trust` can see for itself.
    ///
    /// # Errors
    /// A [`NameAnswerError`].
    pub fn verify(&self, name: &Name, trust: &LogTrust) -> Result<Option<Latest>, NameAnswerError> {
        Ok(self.proof.verify(name, &self.last(trust)?.names())?)
    }

    /// Which policy is in force, as `trust` can see for itself: where it was decided, and the id of its bytes.
    ///
    /// # Errors
    /// A [`NameAnswerError`].
    pub fn verify_policy(&self, trust: &LogTrust) -> Result<Option<Latest>, NameAnswerError> {
        Ok(self.proof.verify_policy(&self.last(trust)?.names())?)
    }

    /// The last entry of the log.
    fn last(&self, trust: &LogTrust) -> Result<Entry, NameAnswerError> {
        let checkpoint = self.inclusion.verify(&self.entry, trust)?;
        if self.inclusion.index + 1 != checkpoint.size {
            return Err(NameAnswerError::NotLast);
        }
        let entry = Entry::decode(&self.entry)?;
        let (said, is) = (entry.version(), checkpoint.size);
        if said == is { Ok(entry) } else { Err(NameAnswerError::Misplaced { said, is }) }
    }
}

/// How a registry is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Where the log ends.
    pub head: Head,
    /// The first entry that can be proven and read.
    pub first: u64,
    /// The epoch of the policy.
    pub epoch: u64,
    /// Names there ever were.
    pub names: usize,
    /// Up to where the verifier has come in this pass.
    pub verified: u64,
    /// Whether reads and writes can be expected to succeed on the supervisor that the registry runs on. Everything that runs
    /// there shares this readiness; the registry's own gates are those called `registry.…`, `proposals` and `approvals`. Give
    /// the registry a supervisor of its own, and this is about the registry alone.
    pub ready: ReadyStatus,
}

/// A log, running. Cloning shares it; when the last clone is dropped it stops.
#[derive(Clone)]
pub struct Registry {
    // One count for each clone: routers make several of every request, and two cores that count the same wait for each other.
    inner: Arc<Inner>,
}

/// What all handles share.
struct Inner {
    shared: Arc<Shared>,
    /// None if it follows.
    deciding: Option<Deciding>,
    pruning: Lane<Prune>,
    group: Supervisor,
    ready: Ready,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("head", &self.head()).finish_non_exhaustive()
    }
}

impl Registry {
    pub(crate) fn new(
        shared: Arc<Shared>,
        deciding: Option<Deciding>,
        pruning: Lane<Prune>,
        group: Supervisor,
        ready: Ready,
    ) -> Self {
        Registry { inner: Arc::new(Inner { shared, deciding, pruning, group, ready }) }
    }

    /// Prepares the log `origin`, whose checkpoints are signed with the key of this seed: 32 secret bytes that are used
    /// for nothing else.
    #[must_use]
    pub fn builder(origin: &str, log_key_seed: [u8; 32]) -> Builder {
        Builder::new(Role::Owner { origin: origin.to_owned(), seed: log_key_seed })
    }

    /// Prepares to follow the log that `trust` knows, as `source` gives it: to keep a copy of what it has checked, and to
    /// serve it. Nothing can be proposed there.
    #[must_use]
    pub fn follower(trust: LogTrust, source: impl Source) -> Builder {
        Builder::new(Role::Follower { trust, source: Arc::new(source) })
    }

    /// Whether it follows a log that another node commits to.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.inner.deciding.is_none()
    }

    /// What the followed log was caught at since the start, the oldest first. While there is evidence of a fork, the gate
    /// `registry.following` stays closed, and what was checked before it is what is served.
    #[must_use]
    pub fn evidence(&self) -> Vec<Evidence> {
        (*self.inner.shared.evidence.load()).clone()
    }

    fn deciding(&self) -> Result<&Deciding, RegistryError> {
        self.inner.deciding.as_ref().ok_or(RegistryError::ReadOnly)
    }

    #[cfg(feature = "http")]
    pub(crate) fn metrics(&self) -> &ron_core::Metrics {
        &self.inner.shared.metrics
    }

    /// The log as it is, of one moment.
    #[cfg(feature = "http")]
    pub(crate) fn view(&self) -> Arc<crate::shared::View> {
        self.inner.shared.view.load()
    }

    /// Begins the log, with the policy that decides from then on. Beginning it again with the same policy gives the same
    /// receipt.
    ///
    /// # Errors
    /// As [`propose`](Self::propose).
    pub async fn found(&self, policy: Policy, deadline: Deadline) -> Result<Receipt, RegistryError> {
        let action = Action::Found { policy: Arc::new(policy) };
        // It is the first entry or nothing, so it need not expire.
        let first = Proposal::new(self.origin(), 0, u64::MAX, action, None)?;
        match self.ask_to_propose(first, Vec::new(), deadline).await? {
            Outcome::Committed(receipt) => Ok(receipt),
            Outcome::Pending { missing, .. } => Err(Refused::QuorumNotMet { missing }.into()),
        }
    }

    /// Makes a proposal that a name stand for something from now on. It fits the log as it is: nothing is sent yet.
    ///
    /// # Errors
    /// [`RegistryError::Form`].
    pub fn draft_bind(
        &self,
        name: Name,
        content: Content,
        lifetime: Duration,
    ) -> Result<Proposal, RegistryError> {
        let view = self.inner.shared.view.load();
        let prior = view.state.names().get(&name).map_or(0, |latest| latest.version);
        self.draft(Action::Bind { name, content, prior }, lifetime)
    }

    /// The time of the clock, but never before that of the last entry.
    fn now(&self) -> u64 {
        self.inner.shared.clock.now().max(self.inner.shared.view.load().state.time())
    }

    /// Makes a proposal of an action, under the policy in force. Nothing is sent yet.
    ///
    /// # Errors
    /// [`RegistryError::Form`].
    pub fn draft(&self, action: Action, lifetime: Duration) -> Result<Proposal, RegistryError> {
        let view = self.inner.shared.view.load();
        let lifetime = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        let expires = self.now().saturating_add(lifetime);
        Ok(Proposal::new(self.origin(), view.state.epoch(), expires, action, None)?)
    }

    /// Proposes. Proposing the same again says how it stands by then; once it is committed, that is the same receipt.
    /// Dropping the future withdraws a proposal that still waits for the committer.
    ///
    /// # Errors
    /// `Busy`, `Timeout` (it may have been taken in), `Canceled`, [`RegistryError::Refused`] with what does not fit,
    /// [`RegistryError::ChainMismatch`] with the current head, [`RegistryError::StorageBusy`].
    pub async fn propose(&self, proposal: Proposal, deadline: Deadline) -> Result<Outcome, RegistryError> {
        self.submit(proposal, Vec::new(), deadline).await
    }

    /// Proposes together with approvals: one call for a change that signers have agreed on already. A proposal that expects a
    /// head which is no longer the head is refused before its approvals are verified.
    ///
    /// # Errors
    /// As [`propose`](Self::propose), [`RegistryError::BadApproval`], and [`RegistryError::Form`] for a beginning, which
    /// is for [`found`](Self::found).
    pub async fn submit(
        &self,
        proposal: Proposal,
        approvals: Vec<Approval>,
        deadline: Deadline,
    ) -> Result<Outcome, RegistryError> {
        check_submission(&proposal, approvals.len())?;
        if self.is_overtaken(&proposal) && !approvals.is_empty() {
            let asked = Box::new(proposal.clone());
            let asked = self.ask(|reply| Command::Overtaken { proposal: asked, deadline, reply }, deadline);
            match asked.await? {
                Outcome::Pending { .. } => {}
                committed => return Ok(committed),
            }
        }
        let mut verified = Vec::with_capacity(approvals.len());
        for approval in approvals {
            verified.push(self.verify(approval)?);
            // Fifty microseconds each; others have their turn in between.
            tokio::task::consume_budget().await;
        }
        self.ask_to_propose(proposal, verified, deadline).await
    }

    /// [`submit`](Self::submit) with approvals that the caller has verified, say on threads of its own: verifying one takes some
    /// fifty microseconds, and committing without that takes a few.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub async fn submit_verified(
        &self,
        proposal: Proposal,
        approvals: Vec<VerifiedApproval>,
        deadline: Deadline,
    ) -> Result<Outcome, RegistryError> {
        check_submission(&proposal, approvals.len())?;
        self.ask_to_propose(proposal, approvals, deadline).await
    }

    /// Approves. The approval that makes a quorum is answered when the proposal is committed. Dropping the future withdraws
    /// an approval that still waits for the committer.
    ///
    /// # Errors
    /// As [`propose`](Self::propose), and [`RegistryError::BadApproval`].
    pub async fn approve(&self, approval: Approval, deadline: Deadline) -> Result<Outcome, RegistryError> {
        let deciding = self.deciding()?;
        let approval = Box::new(self.verify(approval)?);
        deciding
            .approvals
            .call("approve", deadline, |reply| Command::Approve { approval, deadline, reply })
            .await?
    }

    /// Checks an approval here, on the caller's time: the cheap things first.
    fn verify(&self, approval: Approval) -> Result<VerifiedApproval, RegistryError> {
        let reject = |reason| self.inner.shared.metrics.tally(APPROVAL_REJECTS, reason).add(1);
        let said = approval.statement();
        if said.origin != self.origin() {
            reject("other_log");
            return Err(Refused::OtherLog { found: said.origin.clone() }.into());
        }
        if said.expires <= self.now() {
            reject("expired");
            return Err(Refused::Expired { at: said.expires }.into());
        }
        approval.verify().map_err(|error| {
            reject("signature");
            RegistryError::BadApproval(error)
        })
    }

    async fn ask_to_propose(
        &self,
        proposal: Proposal,
        approvals: Vec<VerifiedApproval>,
        deadline: Deadline,
    ) -> Result<Outcome, RegistryError> {
        let proposal = Box::new(proposal);
        self.ask(|reply| Command::Propose { proposal, approvals, deadline, reply }, deadline).await
    }

    async fn ask(
        &self,
        make: impl FnOnce(Answer) -> Command,
        deadline: Deadline,
    ) -> Result<Outcome, RegistryError> {
        self.deciding()?.proposals.call("propose", deadline, make).await?
    }

    /// Whether a proposal expects a head behind which something else was decided already. Of many that expect the same head one
    /// wins, and to refuse the others their signatures need not be verified, at fifty microseconds each.
    fn is_overtaken(&self, proposal: &Proposal) -> bool {
        let decided = self.inner.shared.decided.load(Ordering::Relaxed);
        proposal.expect_head().is_some_and(|head| head.version < decided)
    }

    /// The proposals that wait for approvals, in the order in which they expire.
    ///
    /// # Errors
    /// `Busy`, `Timeout`, `Canceled`.
    pub async fn pending(&self, deadline: Deadline) -> Result<Vec<PendingProposal>, RegistryError> {
        let proposals = &self.deciding()?.proposals;
        Ok(proposals.call("pending", deadline, |reply| Command::Pending { reply }).await?)
    }

    /// The name of the log.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.inner.shared.trust.origin()
    }

    /// The key that checkpoints are signed with, as other tools read it.
    #[must_use]
    pub fn log_key(&self) -> NoteVerifier {
        self.inner.shared.trust.log().clone()
    }

    /// Where the log ends.
    #[must_use]
    pub fn head(&self) -> Head {
        self.inner.shared.view.load().state.head()
    }

    /// The epoch of the policy, and the policy; `None` before the log has begun.
    #[must_use]
    pub fn policy(&self) -> Option<(u64, Arc<Policy>)> {
        let view = self.inner.shared.view.load();
        view.state.policy().map(|policy| (view.state.epoch(), Arc::clone(policy)))
    }

    /// The signed head, with the signatures of those witnesses that have signed it.
    #[must_use]
    pub fn checkpoint(&self) -> Arc<Note> {
        let (view, cosigned) = (self.inner.shared.view.load(), self.inner.shared.cosigned.load());
        match &*cosigned {
            Some((size, note)) if *size == view.state.head().version => Arc::clone(note),
            _ => Arc::clone(&view.checkpoint),
        }
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let view = self.inner.shared.view.load();
        Status {
            head: view.state.head(),
            first: self.first(),
            epoch: view.state.epoch(),
            names: view.state.names().len().saturating_sub(1),
            verified: *self.inner.shared.verified.load(),
            ready: self.ready(),
        }
    }

    /// Whether it can do its work, and if not why: what [`status`](Self::status) has as `ready`.
    #[must_use]
    pub fn ready(&self) -> ReadyStatus {
        self.inner.ready.status()
    }

    /// How the log was found at the start.
    #[must_use]
    pub fn opened(&self) -> Opened {
        self.inner.shared.opened
    }

    pub(crate) fn first(&self) -> u64 {
        self.inner.shared.pruned.load(Ordering::Acquire) + 1
    }

    /// How often the view was replaced, without a lock.
    #[cfg(feature = "http")]
    pub(crate) fn changes(&self) -> u64 {
        self.inner.shared.view.version()
    }

    #[cfg(feature = "client")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// One entry.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`], [`RegistryError::Lagging`] if it was pruned, and those of the store.
    pub async fn entry(&self, version: u64, deadline: Deadline) -> Result<Entry, RegistryError> {
        let entries = match version {
            // Before the first there never was one, so none was pruned either.
            0 => Vec::new(),
            version => self.entries(version, 1, deadline).await?,
        };
        let bytes = entries.first().ok_or(RegistryError::NotFound { head: self.head().version })?;
        Entry::decode(bytes).map_err(|error| RegistryError::untrusted_at(version, error))
    }

    /// Entries from version `from` on, at least one if there is one and at most `max`.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub async fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> Result<Vec<Bytes>, RegistryError> {
        let (first, from) = (self.first(), from.max(1));
        if from < first {
            return Err(RegistryError::Lagging { first });
        }
        // Never more than is covered by the head that is shown.
        let left = (self.head().version + 1).saturating_sub(from);
        if left == 0 {
            return Ok(Vec::new());
        }
        let max = max.min(usize::try_from(left).unwrap_or(usize::MAX));
        self.inner.shared.read(from, max, deadline).await
    }

    /// Proves that an entry is in the log: a file that anybody can check offline.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`], [`RegistryError::Lagging`].
    pub fn prove(&self, version: u64) -> Result<ProofFile, RegistryError> {
        let view = self.inner.shared.view.load();
        self.prove_in(version, view.state.head().version, &view.checkpoint)
    }

    fn prove_in(&self, version: u64, size: u64, checkpoint: &Note) -> Result<ProofFile, RegistryError> {
        if version == 0 || version > size {
            return Err(RegistryError::NotFound { head: size });
        }
        if version < self.first() {
            return Err(RegistryError::Lagging { first: self.first() });
        }
        let path = Prover::new(&SharedTiles(&self.inner.shared), size).inclusion(version - 1)?;
        Ok(ProofFile { index: version - 1, path, checkpoint: checkpoint.clone(), extra: None })
    }

    /// Takes what witnesses answered to a checkpoint of this log that they were sent
    /// ([`witness_request`](crate::witness_request)). Returns how many new signatures that brought, of witnesses that `trust`
    /// knows. What the last such checkpoint covers stays provable: nothing beyond it is pruned.
    ///
    /// # Errors
    /// A [`CheckpointError`]; also if the checkpoint is not of this log as it is.
    pub fn add_cosignatures(
        &self,
        checkpoint: &Note,
        answer: &str,
        trust: &LogTrust,
    ) -> Result<usize, CheckpointError> {
        self.inner.shared.add_cosignatures(checkpoint, answer, trust)
    }

    /// The last checkpoint that witnesses have signed.
    #[must_use]
    pub fn cosigned(&self) -> Option<Arc<Note>> {
        (*self.inner.shared.cosigned.load()).as_ref().map(|(_, note)| Arc::clone(note))
    }

    /// [`prove`](Self::prove) against the last checkpoint that witnesses have signed, for readers who trust only those.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] with the size of that checkpoint, [`RegistryError::Lagging`].
    pub fn prove_cosigned(&self, version: u64) -> Result<ProofFile, RegistryError> {
        let cosigned = self.inner.shared.cosigned.load();
        let (size, note) = (*cosigned).as_ref().ok_or(RegistryError::NotFound { head: 0 })?;
        self.prove_in(version, *size, note)
    }

    /// Proves that the log of `old_size` entries is the beginning of the log of `new_size`.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`], [`RegistryError::Lagging`], [`RegistryError::Proof`].
    pub fn prove_consistency(&self, old_size: u64, new_size: u64) -> Result<Vec<TreeHash>, RegistryError> {
        self.inner.shared.prove_consistency(old_size, new_size)
    }

    /// What a name stands for, or that it stands for nothing, with the proof.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] before the log has begun.
    pub fn name(&self, name: &Name) -> Result<NameAnswer, RegistryError> {
        self.answer(|names| (names.get(name).copied(), names.prove(name)))
    }

    /// Which policy is in force, with the proof.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] before the log has begun.
    pub fn policy_proof(&self) -> Result<NameAnswer, RegistryError> {
        self.answer(|names| (names.lookup(POLICY_KEY).copied(), names.prove_policy()))
    }

    fn answer(
        &self,
        ask: impl FnOnce(&Names) -> (Option<Latest>, NameProof),
    ) -> Result<NameAnswer, RegistryError> {
        let view = self.inner.shared.view.load();
        let last = view.last.as_ref().ok_or(RegistryError::NotFound { head: 0 })?;
        let path =
            Prover::new(&SharedTiles(&self.inner.shared), last.version()).inclusion(last.version() - 1)?;
        let checkpoint = (*view.checkpoint).clone();
        let (latest, proof) = ask(view.state.names());
        Ok(NameAnswer {
            latest,
            proof,
            entry: last.encoded().clone(),
            inclusion: ProofFile { index: last.version() - 1, path, checkpoint, extra: None },
        })
    }

    /// A tile of the tree, or a bundle of entries, as C2SP serves them. Only what the head that is shown covers.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`], [`RegistryError::Lagging`] if it was pruned, and those of the store.
    pub async fn tile(&self, tile: Tile, deadline: Deadline) -> Result<Bytes, RegistryError> {
        let head = self.head().version;
        if !tile.is_within(head) {
            return Err(RegistryError::NotFound { head });
        }
        if tile.level() != Level::Entries {
            let lagging = || RegistryError::Lagging { first: self.first() };
            return SharedTiles(&self.inner.shared).tile(tile).ok_or_else(lagging);
        }
        let (first, width) = (tile.index() * TILE_WIDTH + 1, usize::from(tile.width()));
        let mut entries = Vec::with_capacity(width);
        while entries.len() < width {
            let more = self.entries(first + entries.len() as u64, width - entries.len(), deadline).await?;
            if more.is_empty() {
                return Err(RegistryError::NotFound { head });
            }
            entries.extend(more);
        }
        Ok(write_bundle(&entries).into())
    }

    /// The snapshot that stands for what was pruned, which a new follower starts from; `None` if nothing was pruned.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn snapshot(&self, deadline: Deadline) -> Result<Option<SnapshotOffer>, RegistryError> {
        let first = self.inner.shared.store.snapshot_part(0, deadline).await?;
        Ok(first.map(|part| SnapshotOffer { version: part.version, parts: part.parts }))
    }

    /// A part of the snapshot of this version, counted from 0: deterministic CBOR, which
    /// [`Snapshot`](crate::Snapshot) reads and checks.
    ///
    /// # Errors
    /// [`RegistryError::NoSnapshot`] if there is no such part, or another snapshot by now, and those of the store.
    pub async fn snapshot_part(
        &self,
        version: u64,
        part: u32,
        deadline: Deadline,
    ) -> Result<Bytes, RegistryError> {
        let found = self.inner.shared.store.snapshot_part(part, deadline).await?;
        let found = found.filter(|found| found.version == version);
        found.map(|found| found.bytes).ok_or(RegistryError::NoSnapshot { version, part })
    }

    /// The versions of the entries that bound a name to `content`, as far as they were not pruned: the newest 256, in ascending
    /// order.
    ///
    /// # Errors
    /// [`RegistryError::NotReady`] if the index has not read the whole log by `deadline`, and those of the store.
    pub async fn versions_of(
        &self,
        content: ContentId,
        deadline: Deadline,
    ) -> Result<Vec<u64>, RegistryError> {
        crate::index::versions_of(&self.inner.shared, content, deadline).await
    }

    /// Every update from version `from` on, in order and without holes: a slow reader is served from the log.
    #[must_use]
    pub fn updates(&self, from: u64) -> Updates {
        Updates::new(&self.inner.shared, from)
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.inner.shared.settings.load()
    }

    /// Applies other settings from now on.
    ///
    /// # Errors
    /// [`RegistryError::Config`] naming the first setting that makes no sense or cannot change while running; then everything
    /// stays as it was.
    pub fn reload(&self, settings: Settings) -> Result<(), RegistryError> {
        self.reload_by(ReloadSource::Host, settings)
    }

    /// [`reload`](Self::reload), counted under who asked for it.
    ///
    /// # Errors
    /// As [`reload`](Self::reload).
    pub fn reload_by(&self, source: ReloadSource, settings: Settings) -> Result<(), RegistryError> {
        match self.settings().check_change(&settings) {
            Ok(()) => {
                self.inner.shared.settings.replace(settings);
                self.inner.shared.metrics.tally(RELOADS, source.label()).add(1);
                Ok(())
            }
            Err(error) => {
                self.inner.shared.metrics.tally(RELOAD_FAILS, "config").add(1);
                Err(error.into())
            }
        }
    }

    /// Drops entries up to `version`, rounded down to whole tiles, whatever retention says. A snapshot is kept first, so that
    /// everything after it can still be proven. Returns how many bytes that freed, less those of the snapshot. Retention and
    /// this wait for each other.
    ///
    /// # Errors
    /// `Busy`, `Timeout` (it may go on), `Canceled`, [`RegistryError::Untrusted`] if what is stored is not what was
    /// committed, and those of the store. Nothing is dropped that no snapshot covers.
    pub async fn prune(&self, version: u64, deadline: Deadline) -> Result<u64, RegistryError> {
        let below = self.inner.shared.prunable_below();
        let upto = version.min(below.saturating_sub(1)) / TILE_WIDTH * TILE_WIDTH;
        if upto == 0 {
            return Ok(0);
        }
        self.inner.pruning.call("prune", deadline, |reply| Prune { upto, reply: Some(reply) }).await?
    }

    /// Takes no new proposals, commits what is decided within [`drain`](Settings::drain), and stops. Safe to call twice.
    pub async fn shutdown(&self) -> Stopped {
        self.inner.group.shutdown().await
    }
}

/// Whether a proposal may come with so many approvals.
fn check_submission(proposal: &Proposal, approvals: usize) -> Result<(), FormError> {
    // Nobody is asked about a beginning, so it is not for everybody who may propose.
    if matches!(proposal.action(), Action::Found { .. }) {
        return Err(FormError::OutOfRange { what: "kind" });
    }
    if approvals > APPROVALS_MAX {
        return Err(FormError::TooLarge { what: "approvals", limit: APPROVALS_MAX });
    }
    Ok(())
}

/// Who asked for other settings: a label of the counters of reloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReloadSource {
    /// The program, by a call of its own.
    Host,
    /// Somebody who sent the process a signal.
    Signal,
}

impl ReloadSource {
    fn label(self) -> &'static str {
        match self {
            ReloadSource::Host => "host",
            ReloadSource::Signal => "signal",
        }
    }
}
