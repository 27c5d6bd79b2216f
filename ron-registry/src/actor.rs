//! The committer: the only task that moves the head.
//!
//! It decides in memory and is never in doubt about what it decided: while one block is on its way to the store, the next
//! gathers, so a batch of independent commits is one sync, and a single caller pays for one sync and nothing else. Callers
//! are answered when their entry is durable and covered by a signed head. If another committer was faster, it reads what
//! that one wrote and decides again what still can be; if the store cannot be trusted to have taken a block, it decides
//! nothing until it knows.

use std::{
    collections::HashMap,
    future::{pending, poll_fn},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Counter, Deadline, Gauge, Histogram, PriorityInbox, ReadyGate, Reply, Stop, Tally};
use tokio::time::{Instant, sleep_until};

use crate::{
    RegistryError,
    handle::{Outcome, PendingProposal, Receipt},
    logic::{
        checkpoint::Checkpoint,
        entry::Entry,
        merkle::{Frontier, TreeHash},
        note::Note,
        proposal::{Proposal, ProposalId, RecordedApproval, VerifiedApproval},
        quorum::{Quorum, Standing},
        state::{Refused, Signatures, State},
    },
    metrics::{APPROVAL_REJECTS, CAS_FAIL, COMMIT_SECONDS, COMMITS, PENDING, STORAGE_BACKOFF},
    shared::Shared,
    store::{Appended, BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, Block, BoxFuture, StoreError, append},
};

/// How long after the store was lost it is asked again.
const LOST_PAUSE: Duration = Duration::from_millis(200);

/// The longest sleep: the clock that proposals expire by may be set meanwhile.
const WAKE_MAX: Duration = Duration::from_secs(60);

/// Entries read at a time when another committer was faster.
const CATCH_UP: usize = 256;

pub(crate) type Answer = Reply<Result<Outcome, RegistryError>>;

/// What the committer is asked.
pub(crate) enum Command {
    /// To take a proposal in, with what approvals there are.
    Propose { proposal: Box<Proposal>, approvals: Vec<VerifiedApproval>, deadline: Deadline, reply: Answer },
    /// To count an approval.
    Approve { approval: Box<VerifiedApproval>, deadline: Deadline, reply: Answer },
    /// What waits.
    Pending { reply: Reply<Vec<PendingProposal>> },
}

/// Entries that are decided and not yet durable, and who waits for them.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    bytes: usize,
    /// In the order of the entries; with those who proposed the same meanwhile.
    waiting: Vec<Vec<Answer>>,
    by_id: HashMap<ProposalId, usize>,
}

impl Batch {
    fn is_full(&self) -> bool {
        // The largest entry must still fit.
        self.entries.len() >= BLOCK_ENTRIES_MAX || self.bytes + usize::from(u16::MAX) > BLOCK_BYTES_MAX
    }

    fn push(&mut self, entry: Entry, waiting: Vec<Answer>) {
        self.by_id.insert(entry.proposal().id(), self.entries.len());
        self.bytes += entry.encoded().len();
        self.entries.push(entry);
        self.waiting.push(waiting);
    }

    /// Tells everybody why not. What was decided waits again, with its approvals: whoever asks again finds it complete.
    fn refuse(self, error: &RegistryError, quorum: &mut Quorum) {
        for entry in &self.entries {
            quorum.put_back(entry.proposal().clone(), entry.approvals());
        }
        self.waiting.into_iter().flatten().for_each(|reply| reply.send(Err(error.clone())));
    }
}

/// A block on its way to the store.
struct Flying {
    append: BoxFuture<'static, Result<Appended, StoreError>>,
    batch: Batch,
    /// The log with it.
    state: State,
    frontier: Frontier,
    checkpoint: Arc<Note>,
    since: Instant,
    is_slow: bool,
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    inbox: PriorityInbox<Command>,
    quorum: Quorum,
    /// What is durable.
    durable: State,
    frontier: Frontier,
    /// What is decided.
    state: State,
    batch: Batch,
    flying: Option<Flying>,
    /// Whether it is unknown where the log ends, and when the store is asked again.
    is_lost: bool,
    seek_at: Instant,
    gate: ReadyGate,
    meters: Meters,
}

struct Meters {
    commits: Tally,
    cas_fail: Tally,
    pending: Gauge,
    seconds: Histogram,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, inbox: PriorityInbox<Command>, gate: ReadyGate) -> Self {
        let view = shared.view.load();
        let metrics = &shared.metrics;
        let meters = Meters {
            commits: metrics.tally(COMMITS, ""),
            cas_fail: metrics.tally(CAS_FAIL, ""),
            pending: metrics.gauge(PENDING),
            seconds: metrics.histogram(COMMIT_SECONDS),
        };
        gate.open();
        let frontier = shared.tree.lock().frontier().clone();
        Committer {
            quorum: Quorum::new(shared.settings.load().pending),
            durable: view.state.clone(),
            frontier,
            state: view.state.clone(),
            batch: Batch::default(),
            flying: None,
            is_lost: false,
            seek_at: ron_core::now(),
            shared,
            inbox,
            gate,
            meters,
        }
    }

    pub(crate) async fn run(mut self, stop: Stop) {
        let mut drained = false;
        loop {
            let takes = !drained && !self.batch.is_full();
            let (wake, slow) = (self.wake_at(), self.slow_at());
            let seek = (self.is_lost && self.flying.is_none()).then_some(self.seek_at);
            tokio::select! {
                biased; // what became of a block first: callers wait for it; then what was asked
                outcome = arrival(&mut self.flying) => self.on_appended(outcome).await,
                () = until(slow) => self.on_slow(),
                () = until(seek) => self.find_again().await,
                command = self.inbox.recv(), if takes => match command {
                    Some(command) => self.on_command(command),
                    None => drained = true,
                },
                () = until(wake) => self.on_tick(),
            }
            self.launch();
            self.meters.pending.set(self.quorum.len() as f64);
            if drained && self.flying.is_none() && (self.batch.entries.is_empty() || self.is_lost) {
                break;
            }
            if self.is_lost && stop.is_requested() {
                break;
            }
        }
        let batch = std::mem::take(&mut self.batch);
        batch.refuse(&RegistryError::Canceled, &mut self.quorum);
    }

    /// The time as the log has it: what an entry would be committed at now. It does not go back when the clock does.
    fn now(&self) -> u64 {
        self.shared.clock.now().max(self.state.time())
    }

    /// When the first proposal that waits expires.
    fn wake_at(&self) -> Option<Instant> {
        let expires = self.quorum.wake_at()?;
        let wait = Duration::from_millis(expires.saturating_sub(self.now()).max(1));
        Some(ron_core::now() + wait.min(WAKE_MAX))
    }

    /// When the block on its way has taken so long that others should know.
    fn slow_at(&self) -> Option<Instant> {
        let flying = self.flying.as_ref().filter(|flying| !flying.is_slow)?;
        Some(flying.since + self.shared.settings.load().slow_after)
    }

    fn on_tick(&mut self) {
        for proposal in self.quorum.on_tick(self.now()) {
            tracing::debug!(proposal = %proposal.id(), "a proposal expired");
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Pending { reply } => reply.send(self.pending()),
            // Nobody waits for it any more: what was given up must not happen.
            Command::Propose { deadline, reply, .. } | Command::Approve { deadline, reply, .. }
                if reply.is_abandoned() || deadline.has_passed() => {}
            Command::Propose { reply, .. } | Command::Approve { reply, .. } if self.is_lost => {
                reply.send(Err(away("it is not known where the log ends".to_owned())));
            }
            Command::Propose { proposal, approvals, reply, .. } => {
                self.on_propose(*proposal, &approvals, reply)
            }
            Command::Approve { approval, reply, .. } => {
                let id = approval.statement().proposal;
                let standing = self.count(&approval);
                self.settle(id, standing, reply);
            }
        }
    }

    fn on_propose(&mut self, proposal: Proposal, approvals: &[VerifiedApproval], reply: Answer) {
        self.quorum.limit(self.shared.settings.load().pending);
        let id = proposal.id();
        let mut standing = match self.on_its_way(&id) {
            true => Ok(Standing::Complete),
            false => self.quorum.on_proposal(&self.state, proposal, self.now()),
        };
        for approval in approvals {
            if matches!(standing, Ok(Standing::Pending { .. })) {
                standing = match self.count(approval) {
                    // One that does not count takes nothing from the others.
                    Err(_) => standing,
                    counted => counted,
                };
            }
        }
        self.settle(id, standing, reply);
    }

    /// Counts an approval for what waits.
    fn count(&mut self, approval: &VerifiedApproval) -> Result<Standing, Refused> {
        if self.on_its_way(&approval.statement().proposal) {
            return Ok(Standing::Complete);
        }
        let counted = self.quorum.on_approval(&self.state, approval, self.now());
        if let Err(refused) = &counted {
            self.shared.metrics.tally(APPROVAL_REJECTS, reason(refused)).add(1);
        }
        counted
    }

    fn on_its_way(&self, id: &ProposalId) -> bool {
        let flies = self.flying.as_ref().is_some_and(|flying| flying.batch.by_id.contains_key(id));
        flies || self.batch.by_id.contains_key(id)
    }

    /// Answers, now or when it is durable.
    fn settle(&mut self, id: ProposalId, standing: Result<Standing, Refused>, reply: Answer) {
        match standing {
            Ok(Standing::Pending { missing }) => {
                reply.send(Ok(Outcome::Pending { proposal: id, missing }));
            }
            Ok(Standing::Committed { version }) => {
                let checkpoint = Arc::clone(&self.shared.view.load().checkpoint);
                reply.send(Ok(Outcome::Committed(Receipt { version, proposal: id, checkpoint })));
            }
            Ok(Standing::Complete) => self.commit(id, reply),
            Err(refused) => self.refuse(refused, reply),
        }
    }

    fn refuse(&self, refused: Refused, reply: Answer) {
        if matches!(refused, Refused::ChainMismatch { .. }) {
            self.meters.cas_fail.add(1);
        }
        reply.send(Err(refused.into()));
    }

    /// Decides what is complete. It is answered with the block.
    fn commit(&mut self, id: ProposalId, reply: Answer) {
        if let Some(at) = self.batch.by_id.get(&id) {
            return self.batch.waiting[*at].push(reply);
        }
        if let Some(flying) = &mut self.flying {
            if let Some(at) = flying.batch.by_id.get(&id) {
                return flying.batch.waiting[*at].push(reply);
            }
        }
        let taken = self.quorum.take(&self.state, &id, self.now());
        match taken.and_then(|(proposal, approvals)| self.decide(proposal, approvals)) {
            Ok(entry) => self.batch.push(entry, vec![reply]),
            Err(refused) => self.refuse(refused, reply),
        }
    }

    fn decide(&mut self, proposal: Proposal, approvals: Vec<RecordedApproval>) -> Result<Entry, Refused> {
        let now = self.now();
        self.state.commit(proposal, approvals, now)
    }

    /// Sends off what has gathered, if nothing is on its way.
    fn launch(&mut self) {
        if self.flying.is_some() || self.batch.entries.is_empty() || self.is_lost {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let mut frontier = self.frontier.clone();
        batch.entries.iter().for_each(|entry| frontier.push(TreeHash::of_leaf(entry.encoded())));
        let origin = self.state.origin().to_owned();
        let checkpoint = Checkpoint { origin, size: frontier.size(), root: frontier.root() };
        let signer = self.shared.signer.as_ref().expect("only a log that is signed here has a committer");
        let note = checkpoint.sign(signer).expect("the origin was checked at the start");
        let entries: Vec<Bytes> = batch.entries.iter().map(|entry| entry.encoded().clone()).collect();
        let block = Block { entries, checkpoint: note.to_string().into() };
        let (store, after) = (Arc::clone(&self.shared.store), self.durable.head().version);
        let deadline = Deadline::after(self.shared.settings.load().commit_timeout);
        self.flying = Some(Flying {
            append: Box::pin(async move { append(&*store, after, &block, deadline).await }),
            batch,
            state: self.state.clone(),
            frontier,
            checkpoint: Arc::new(note),
            since: ron_core::now(),
            is_slow: false,
        });
    }

    fn on_slow(&mut self) {
        if let Some(flying) = &mut self.flying {
            flying.is_slow = true;
            self.gate.close("the store is slow");
        }
    }

    async fn on_appended(&mut self, outcome: Result<Appended, StoreError>) {
        let flying = self.flying.take().expect("only what flies arrives");
        match outcome {
            Ok(Appended::Yes) => {
                self.meters.seconds.observe(flying.since.elapsed().as_secs_f64());
                self.gate.open();
                self.on_durable(flying);
            }
            Ok(Appended::Conflict { .. }) => {
                self.meters.cas_fail.add(1);
                self.rebase(flying.batch).await;
            }
            Err(error) => {
                self.shared.metrics.tally(STORAGE_BACKOFF, "append").add(1);
                tracing::warn!(%error, "a block was not appended");
                self.gate.close(error.to_string());
                self.is_lost = error.is_unknown();
                self.seek_at = ron_core::now() + LOST_PAUSE;
                let message = error.to_string();
                let told =
                    if error.is_unknown() { RegistryError::Timeout { op: "commit" } } else { away(message) };
                flying.batch.refuse(&told, &mut self.quorum);
                std::mem::take(&mut self.batch).refuse(&told, &mut self.quorum);
                self.state = self.durable.clone();
            }
        }
    }

    fn on_durable(&mut self, flying: Flying) {
        let Flying { batch, state, frontier, checkpoint, .. } = flying;
        self.durable = state.clone();
        self.frontier = frontier;
        self.shared.show(state, &batch.entries, Arc::clone(&checkpoint));
        self.meters.commits.add(batch.entries.len() as u64);
        for (entry, waiting) in batch.entries.iter().zip(batch.waiting) {
            for (voided, refused) in self.quorum.on_committed(&self.state, entry) {
                tracing::debug!(proposal = %voided.id(), %refused, "a proposal was overtaken");
            }
            for reply in waiting {
                let (version, proposal) = (entry.version(), entry.proposal().id());
                let checkpoint = Arc::clone(&checkpoint);
                reply.send(Ok(Outcome::Committed(Receipt { version, proposal, checkpoint })));
            }
        }
    }

    /// Another committer was faster: reads what it wrote, and decides again what still can be.
    async fn rebase(&mut self, lost: Batch) {
        let gathered = std::mem::take(&mut self.batch);
        if let Err(error) = self.catch_up().await {
            self.is_lost = true;
            self.seek_at = ron_core::now() + LOST_PAUSE;
            self.gate.close(error.to_string());
            let told = away(error.to_string());
            lost.refuse(&told, &mut self.quorum);
            gathered.refuse(&told, &mut self.quorum);
            return;
        }
        for batch in [lost, gathered] {
            for (entry, waiting) in batch.entries.into_iter().zip(batch.waiting) {
                let id = entry.proposal().id();
                if let Some(version) = self.quorum.committed(&self.state, entry.proposal()) {
                    let checkpoint = Arc::clone(&self.shared.view.load().checkpoint);
                    for reply in waiting {
                        let checkpoint = Arc::clone(&checkpoint);
                        reply.send(Ok(Outcome::Committed(Receipt { version, proposal: id, checkpoint })));
                    }
                    continue;
                }
                match self.decide(entry.proposal().clone(), entry.approvals().to_vec()) {
                    Ok(entry) => self.batch.push(entry, waiting),
                    Err(refused) => waiting.into_iter().for_each(|reply| self.refuse(refused.clone(), reply)),
                }
            }
        }
    }

    /// Reads what others have appended, and checks all of it.
    async fn catch_up(&mut self) -> Result<(), RegistryError> {
        let deadline = Deadline::after(self.shared.settings.load().commit_timeout);
        self.state = self.durable.clone();
        let (mut state, mut frontier, mut entries) =
            (self.durable.clone(), self.frontier.clone(), Vec::new());
        loop {
            let more = self.shared.store.read(state.head().version + 1, CATCH_UP, deadline).await?;
            if more.is_empty() {
                break;
            }
            for bytes in more {
                let version = state.head().version + 1;
                let entry = state.apply(&bytes, Signatures::Check).map_err(|error| {
                    RegistryError::Untrusted { message: format!("version {version}: {error}") }
                })?;
                frontier.push(TreeHash::of_leaf(&bytes));
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        let tail = self.shared.store.tail(deadline).await?;
        let note = tail.checkpoint.as_deref().map(Note::parse).and_then(Result::ok);
        let said = note.as_ref().and_then(|note| self.shared.trust.open(note).ok());
        let found =
            Checkpoint { origin: state.origin().to_owned(), size: frontier.size(), root: frontier.root() };
        let (Some(note), true) = (note, said.as_ref() == Some(&found)) else {
            let message = format!("the checkpoint of version {} is not of these entries", tail.version);
            return Err(RegistryError::Untrusted { message });
        };
        (self.durable, self.state, self.frontier) = (state.clone(), state.clone(), frontier);
        self.shared.show(state, &entries, Arc::new(note));
        for entry in &entries {
            self.quorum.on_committed(&self.state, entry);
        }
        Ok(())
    }

    /// Asks the store again where the log ends.
    async fn find_again(&mut self) {
        self.shared.metrics.tally(Counter::BackoffRetries, "store").add(1);
        match self.catch_up().await {
            Ok(()) => {
                self.is_lost = false;
                self.gate.open();
            }
            Err(error) => {
                self.seek_at = ron_core::now() + LOST_PAUSE;
                self.gate.close(error.to_string());
            }
        }
    }

    fn pending(&self) -> Vec<PendingProposal> {
        let now = self.now();
        let of = |(proposal, approvals): (&Proposal, Vec<RecordedApproval>)| {
            let missing = match self.state.quorum(proposal, &approvals, now) {
                Err(Refused::QuorumNotMet { missing }) => missing,
                _ => Vec::new(),
            };
            PendingProposal { proposal: proposal.clone(), approvals, missing }
        };
        self.quorum.iter().map(of).collect()
    }
}

/// Nothing is committed any more, so those who wait for updates have all of them.
impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.committed.close();
    }
}

/// What became of the block on its way; never, if there is none.
async fn arrival(flying: &mut Option<Flying>) -> Result<Appended, StoreError> {
    match flying {
        Some(flying) => poll_fn(|cx| flying.append.as_mut().poll(cx)).await,
        None => pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

fn away(message: String) -> RegistryError {
    RegistryError::StorageBusy { message, retry_after: LOST_PAUSE }
}

/// The rule in one word, for the counter.
fn reason(refused: &Refused) -> &'static str {
    match refused {
        Refused::UnknownProposal => "unknown_proposal",
        Refused::OtherWords => "other_words",
        Refused::Expired { .. } => "expired",
        Refused::NotASigner { .. } => "not_a_signer",
        Refused::SignerExpired { .. } => "signer_expired",
        _ => "state",
    }
}
