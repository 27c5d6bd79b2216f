//! The committer: the only task that moves the head.
//!
//! It decides in memory and is never in doubt about what it decided: while one block is on its way to the store, the next
//! gathers, so a batch of independent commits is one sync, and a single caller pays for one sync and nothing else. Callers
//! are answered when their entry is durable and covered by a signed head, and so are those who are refused because of one.
//! If another committer was faster, it reads what that one wrote and decides again what still can be; if the store cannot
//! be trusted to have taken a block, it decides nothing until it knows. While it reads it still answers, and stops when it
//! is told to.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Backoff, BackoffPolicy, Counter, Deadline, Gauge, Histogram, PriorityInbox, ReadyGate, Reply, Stop,
    Tally, Watch,
};
use tokio::time::{Instant, sleep_until};

use crate::{
    RegistryError, Settings,
    batch::Batch,
    behind::Behind,
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
    memo,
    metrics::{APPROVAL_REJECTS, CAS_FAIL, COMMIT_SECONDS, COMMITS, PENDING, STORAGE_BACKOFF},
    shared::{RECENT_MAX, Shared},
    store::{Appended, Block, BoxFuture, StoreError, append},
};

/// How long after the store was lost, or refused a block, it is asked again: longer each time.
const LOST_PAUSE: Duration = Duration::from_millis(200);
const LOST_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How often a committer that has nothing to append looks whether another one has: what it shows is that old at most.
const POLL: Duration = Duration::from_secs(5);

/// Commands that are taken at once, before anybody looks whether the block on its way has arrived: a few hundred
/// microseconds of deciding.
const BURST: usize = 64;

/// The longest sleep: the clock that proposals expire by may be set meanwhile.
const WAKE_MAX: Duration = Duration::from_secs(60);

pub(crate) type Answer = Reply<Result<Outcome, RegistryError>>;

/// What the committer is asked.
pub(crate) enum Command {
    /// To take a proposal in, with what approvals there are.
    Propose { proposal: Box<Proposal>, approvals: Vec<VerifiedApproval>, deadline: Deadline, reply: Answer },
    /// To say what became of a proposal that is for a head before the one that is decided, before anybody looks at its
    /// approvals. If it has not been overtaken after all, that it is pending, with nobody missing: it is not taken in.
    Overtaken { proposal: Box<Proposal>, deadline: Deadline, reply: Answer },
    /// To count an approval.
    Approve { approval: Box<VerifiedApproval>, deadline: Deadline, reply: Answer },
    /// What waits.
    Pending { reply: Reply<Vec<PendingProposal>> },
}

/// A block on its way to the store.
struct Flying {
    append: BoxFuture<'static, Result<Appended, StoreError>>,
    batch: Batch,
    /// The log with it.
    state: State,
    frontier: Frontier,
    /// The hashes of its entries in the tree.
    leaves: Vec<TreeHash>,
    checkpoint: Arc<Note>,
    since: Instant,
    is_slow: bool,
}

/// The signed head of what others have appended, if there is anything new.
type Found = Result<Option<Arc<Note>>, RegistryError>;

/// The store being asked what others have appended.
struct Seeking {
    reading: BoxFuture<'static, (Behind, Found)>,
    /// What was decided before somebody else was faster, to be decided again; none if nothing was.
    again: Option<[Batch; 2]>,
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    settings: Watch<Settings>,
    inbox: PriorityInbox<Command>,
    quorum: Quorum,
    /// What is durable.
    durable: State,
    frontier: Frontier,
    /// What is decided.
    state: State,
    batch: Batch,
    flying: Option<Flying>,
    seeking: Option<Seeking>,
    /// What was read before the store failed.
    behind: Option<Behind>,
    /// Whether it is unknown where the log ends.
    is_lost: bool,
    /// Whether the store refused the last block, so that the gate is closed until it was asked again.
    is_shut: bool,
    /// When the store is asked again.
    seek_at: Instant,
    backoff: Backoff,
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
    /// `recent` are proposals that were committed before the start, the oldest first, and where.
    pub(crate) fn new(
        shared: Arc<Shared>,
        recent: impl IntoIterator<Item = (ProposalId, u64)>,
        inbox: PriorityInbox<Command>,
        gate: ReadyGate,
    ) -> Self {
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
        let mut quorum = Quorum::new(shared.settings.load().pending);
        recent.into_iter().for_each(|(id, version)| quorum.remember(id, version));
        // Two committers of one store do not start at the same millisecond, and so do not stay in step.
        let backoff = BackoffPolicy::new(LOST_PAUSE, LOST_PAUSE_MAX).with_seed(shared.clock.now());
        Committer {
            settings: shared.settings.watch(),
            quorum,
            durable: view.state.clone(),
            frontier,
            state: view.state.clone(),
            batch: Batch::default(),
            flying: None,
            seeking: None,
            behind: None,
            is_lost: false,
            is_shut: false,
            seek_at: ron_core::now() + POLL,
            backoff,
            shared,
            inbox,
            gate,
            meters,
        }
    }

    pub(crate) async fn run(mut self, stop: Stop) {
        let mut drained = false;
        loop {
            let takes = !drained && !self.is_full() && !self.decides_again();
            let (wake, slow) = (self.wake_at(), self.slow_at());
            let seek = (self.flying.is_none() && self.seeking.is_none()).then_some(self.seek_at);
            tokio::select! {
                biased; // what became of a block first: callers wait for it; then what was asked
                outcome = arrival(&mut self.flying) => self.on_appended(outcome),
                (behind, found) = sought(&mut self.seeking) => self.on_found(behind, found),
                () = until(slow) => self.on_slow(),
                () = until(seek) => self.seek(None),
                command = self.inbox.recv(), if takes => match command {
                    Some(command) => self.on_commands(command),
                    None => drained = true,
                },
                () = until(wake) => self.on_tick(),
            }
            self.launch();
            self.shared.decided.store(self.state.head().version, Ordering::Relaxed);
            self.meters.pending.set(self.quorum.len() as f64);
            let rests = self.flying.is_none() && !self.decides_again();
            if drained && rests && (self.batch.is_empty() || self.is_lost) {
                break;
            }
            if self.is_lost && stop.is_requested() {
                break;
            }
        }
        let again = self.seeking.take().and_then(|seeking| seeking.again).into_iter().flatten();
        for batch in again.chain([std::mem::take(&mut self.batch)]) {
            batch.refuse(&RegistryError::Canceled, &mut self.quorum);
        }
        if !self.is_lost {
            let recent: VecDeque<_> = self.quorum.remembered().collect();
            let spare = recent.len().saturating_sub(RECENT_MAX);
            memo::keep(&self.shared, recent.into_iter().skip(spare).collect()).await;
        }
    }

    /// Whether nothing more is taken in until it is known what became of the block on its way.
    fn is_full(&self) -> bool {
        self.batch.is_full() || self.flying.as_ref().is_some_and(|flying| flying.batch.keeps_many())
    }

    /// Whether it reads what another committer wrote before it can decide anything.
    fn decides_again(&self) -> bool {
        self.seeking.as_ref().is_some_and(|seeking| seeking.again.is_some())
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
    fn slow_at(&mut self) -> Option<Instant> {
        let flying = self.flying.as_ref().filter(|flying| !flying.is_slow)?;
        Some(flying.since + self.settings.get().slow_after)
    }

    fn on_tick(&mut self) {
        for proposal in self.quorum.on_tick(self.now()) {
            tracing::debug!(proposal = %proposal.id(), "a proposal expired");
        }
    }

    /// Takes what waits in one go. A turn of the loop sets timers, which cost as much as deciding.
    fn on_commands(&mut self, first: Command) {
        let mut command = first;
        for _ in 1..BURST {
            self.on_command(command);
            if self.is_full() {
                return;
            }
            match self.inbox.try_recv() {
                Some(next) => command = next,
                None => return,
            }
        }
        self.on_command(command);
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Pending { reply } => reply.send(self.pending()),
            // Nobody waits for it any more: what was given up must not happen.
            Command::Propose { deadline, reply, .. }
            | Command::Overtaken { deadline, reply, .. }
            | Command::Approve { deadline, reply, .. }
                if reply.is_abandoned() || deadline.has_passed() => {}
            Command::Propose { reply, .. }
            | Command::Overtaken { reply, .. }
            | Command::Approve { reply, .. }
                if self.is_lost =>
            {
                reply.send(Err(away("it is not known where the log ends".to_owned())));
            }
            Command::Overtaken { proposal, reply, .. } => self.on_overtaken(&proposal, reply),
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
        self.quorum.limit(self.settings.get().pending);
        let (id, is_on_its_way) = (proposal.id(), self.on_its_way(&proposal.id()));
        // What comes with all that it needs waits for nobody.
        let now = self.now();
        let admitted = match is_on_its_way {
            true => None,
            false => self.quorum.at_once(&self.state, &proposal, approvals, now),
        };
        if let Some(admitted) = admitted {
            let entry = self.state.seal(proposal, admitted);
            return self.batch.push(entry, vec![reply]);
        }
        let mut standing = match is_on_its_way {
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

    /// Answers for the head alone, at once or when the head that it lost to is durable.
    fn on_overtaken(&mut self, proposal: &Proposal, reply: Answer) {
        let id = proposal.id();
        if self.on_its_way(&id) {
            return self.commit(id, reply);
        }
        if let Some(version) = self.quorum.committed(&self.state, proposal) {
            return self.settle(id, Ok(Standing::Committed { version }), reply);
        }
        match self.state.check(proposal) {
            // What it was overtaken by has come to nothing.
            Ok(()) => reply.send(Ok(Outcome::Pending { proposal: id, missing: Vec::new() })),
            Err(refused) => {
                self.quorum.void(&self.durable, &id);
                self.refuse(refused, reply);
            }
        }
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

    /// Tells why not: at once, or when what it is because of is durable.
    fn refuse(&mut self, refused: Refused, reply: Answer) {
        match &refused {
            Refused::ChainMismatch { .. } => self.meters.cas_fail.add(1),
            Refused::Full { .. } => self.shared.metrics.tally(Counter::BusyRejections, "pending").add(1),
            _ => {}
        }
        let decided = match &mut self.flying {
            Some(flying) if self.batch.is_empty() => Some(&mut flying.batch),
            _ if self.batch.is_empty() => None,
            _ => Some(&mut self.batch),
        };
        match decided {
            Some(batch) if is_of_the_log(&refused) => batch.hold(refused, reply),
            _ => reply.send(Err(refused.into())),
        }
    }

    /// Decides what is complete. It is answered with the block.
    fn commit(&mut self, id: ProposalId, reply: Answer) {
        if let Some(at) = self.batch.by_id.get(&id).copied() {
            return self.batch.join(at, reply);
        }
        if let Some(flying) = &mut self.flying {
            if let Some(at) = flying.batch.by_id.get(&id).copied() {
                return flying.batch.join(at, reply);
            }
        }
        let taken = self.quorum.take(&self.state, &id, self.now());
        match taken.and_then(|(proposal, approvals)| self.decide(proposal, approvals)) {
            Ok(entry) => self.batch.push(entry, vec![reply]),
            Err(refused) => {
                // Only what is durable voids it: the rest may still come to nothing.
                self.quorum.void(&self.durable, &id);
                self.refuse(refused, reply);
            }
        }
    }

    fn decide(&mut self, proposal: Proposal, approvals: Vec<RecordedApproval>) -> Result<Entry, Refused> {
        let now = self.now();
        self.state.commit(proposal, approvals, now)
    }

    /// Sends off what has gathered, if nothing is on its way.
    fn launch(&mut self) {
        if self.flying.is_some() || self.batch.is_empty() || self.is_lost || self.decides_again() {
            return;
        }
        // Whether somebody else was faster shows now.
        self.seeking = None;
        let batch = self.batch.take_block();
        let state = match self.batch.is_empty() {
            true => self.state.clone(),
            // After a lost race there may be more than a block.
            false => self.state_with(&batch),
        };
        let mut frontier = self.frontier.clone();
        let leaves: Vec<_> = batch.entries.iter().map(|entry| TreeHash::of_leaf(entry.encoded())).collect();
        leaves.iter().for_each(|leaf| frontier.push(*leaf));
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
            state,
            frontier,
            leaves,
            checkpoint: Arc::new(note),
            since: ron_core::now(),
            is_slow: false,
        });
    }

    /// The log with what is durable and these.
    fn state_with(&self, batch: &Batch) -> State {
        let mut state = self.durable.clone();
        for entry in &batch.entries {
            state.apply(entry.encoded(), Signatures::Checked).expect("what was decided can be applied");
        }
        state
    }

    fn on_slow(&mut self) {
        if let Some(flying) = &mut self.flying {
            flying.is_slow = true;
            self.gate.close("the store is slow");
        }
    }

    fn on_appended(&mut self, outcome: Result<Appended, StoreError>) {
        let flying = self.flying.take().expect("only what flies arrives");
        match outcome {
            Ok(Appended::Yes) => {
                self.meters.seconds.observe(flying.since.elapsed().as_secs_f64());
                self.backoff.reset();
                self.is_shut = false;
                self.gate.open();
                self.on_durable(flying);
            }
            // Another committer was faster: reads what it wrote, and decides again what still can be.
            Ok(Appended::Conflict { .. }) => {
                self.meters.cas_fail.add(1);
                self.state = self.durable.clone();
                let gathered = std::mem::take(&mut self.batch);
                self.seek(Some([flying.batch, gathered]));
            }
            Err(error) => {
                self.shared.metrics.tally(STORAGE_BACKOFF, "append").add(1);
                tracing::warn!(%error, "a block was not appended");
                self.gate.close(error.to_string());
                self.is_lost = error.is_unknown();
                self.is_shut = true;
                self.seek_at = ron_core::now() + self.backoff.next_delay();
                let told = match error.is_unknown() {
                    true => {
                        self.shared.metrics.tally(Counter::IoTimeouts, "commit").add(1);
                        RegistryError::Timeout { op: "commit" }
                    }
                    false => {
                        if matches!(error, StoreError::Busy { .. }) {
                            self.shared.metrics.tally(Counter::BusyRejections, "store").add(1);
                        }
                        away(error.to_string())
                    }
                };
                flying.batch.refuse(&told, &mut self.quorum);
                std::mem::take(&mut self.batch).refuse(&told, &mut self.quorum);
                self.state = self.durable.clone();
            }
        }
    }

    fn on_durable(&mut self, flying: Flying) {
        let Flying { batch, state, frontier, leaves, checkpoint, .. } = flying;
        self.durable = state.clone();
        self.frontier = frontier;
        self.behind = None;
        self.seek_at = ron_core::now() + POLL;
        self.shared.show(state, &batch.entries, &leaves, Arc::clone(&checkpoint));
        self.meters.commits.add(batch.entries.len() as u64);
        for (entry, waiting) in batch.entries.iter().zip(batch.waiting) {
            for (voided, refused) in self.quorum.on_committed(&self.durable, entry) {
                tracing::debug!(proposal = %voided.id(), %refused, "a proposal was overtaken");
            }
            for reply in waiting {
                let (version, proposal) = (entry.version(), entry.proposal().id());
                let checkpoint = Arc::clone(&checkpoint);
                reply.send(Ok(Outcome::Committed(Receipt { version, proposal, checkpoint })));
            }
        }
        batch.held.into_iter().for_each(|(refused, reply)| reply.send(Err(refused.into())));
    }

    /// Asks the store what others have appended, beside everything else. What was decided before is decided `again` then.
    fn seek(&mut self, again: Option<[Batch; 2]>) {
        if self.is_lost || self.is_shut {
            self.shared.metrics.tally(Counter::BackoffRetries, "store").add(1);
        }
        let begin = || Behind::new(self.durable.clone(), self.frontier.clone());
        let mut behind = self.behind.take().unwrap_or_else(begin);
        let shared = Arc::clone(&self.shared);
        let reading = Box::pin(async move {
            let found = behind.catch_up(&shared).await;
            (behind, found)
        });
        self.seeking = Some(Seeking { reading, again });
    }

    fn on_found(&mut self, behind: Behind, found: Found) {
        let again = self.seeking.take().expect("only what is sought is found").again;
        match found {
            Ok(note) => {
                if let Some(note) = note {
                    self.on_others(behind, note);
                }
                if self.is_lost {
                    self.backoff.reset();
                }
                (self.is_lost, self.is_shut) = (false, false);
                self.gate.open();
                self.seek_at = ron_core::now() + POLL;
                again.into_iter().flatten().for_each(|batch| self.decide_again(batch));
            }
            Err(error) => {
                let is_untrusted = matches!(error, RegistryError::Untrusted { .. });
                self.behind = (!is_untrusted).then_some(behind);
                self.shared.metrics.tally(STORAGE_BACKOFF, "seek").add(1);
                if !(self.is_lost || self.is_shut || is_untrusted || again.is_some()) {
                    // Nobody waits for it, and the next block shows where the log ends.
                    tracing::debug!(%error, "could not ask what others have committed");
                    self.seek_at = ron_core::now() + POLL;
                    return;
                }
                self.is_lost |= is_untrusted || again.is_some();
                self.seek_at = ron_core::now() + self.backoff.next_delay();
                self.gate.close(error.to_string());
                let told = away(error.to_string());
                again.into_iter().flatten().for_each(|batch| batch.refuse(&told, &mut self.quorum));
            }
        }
    }

    /// Goes on to what others have committed.
    fn on_others(&mut self, behind: Behind, checkpoint: Arc<Note>) {
        let Behind { state, frontier, entries, leaves, .. } = behind;
        (self.durable, self.state, self.frontier) = (state.clone(), state.clone(), frontier);
        self.shared.show(state, &entries, &leaves, checkpoint);
        for entry in &entries {
            self.quorum.on_committed(&self.durable, entry);
        }
    }

    /// Decides what still can be of what was decided before others were faster.
    fn decide_again(&mut self, batch: Batch) {
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
        for (refused, reply) in batch.held {
            let refused = self.as_of_now(refused);
            self.refuse(refused, reply);
        }
    }

    /// A refusal with what the log says now.
    fn as_of_now(&self, refused: Refused) -> Refused {
        match refused {
            Refused::ChainMismatch { .. } => Refused::ChainMismatch { head: self.durable.head() },
            Refused::NameMoved { name, .. } => {
                let current = self.durable.names().get(&name).copied();
                Refused::NameMoved { name, current }
            }
            Refused::WrongEpoch { found, .. } => Refused::WrongEpoch { found, current: self.durable.epoch() },
            other => other,
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

/// What the store said about what others have appended; never, if it is not asked.
async fn sought(seeking: &mut Option<Seeking>) -> (Behind, Found) {
    match seeking {
        Some(seeking) => poll_fn(|cx| seeking.reading.as_mut().poll(cx)).await,
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

/// Whether a refusal says something about the log that is true only with what was decided.
fn is_of_the_log(refused: &Refused) -> bool {
    matches!(
        refused,
        Refused::ChainMismatch { .. }
            | Refused::NameMoved { .. }
            | Refused::NotBound { .. }
            | Refused::WrongEpoch { .. }
            | Refused::Beginning { .. }
    )
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
