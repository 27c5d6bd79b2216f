//! Catching up with what other committers have appended to the same store.
//!
//! What was read and checked is kept across failures of the store: a committer that was away for long comes nearer with
//! every attempt.

use std::sync::Arc;

use ron_core::Deadline;

use crate::{
    RegistryError,
    logic::{
        checkpoint::Checkpoint,
        entry::Entry,
        merkle::{Frontier, TreeHash},
        note::Note,
        state::{Signatures, State},
    },
    shared::Shared,
    store::Tail,
};

/// Entries read at a time.
const READ_MAX: u64 = 256;

/// How far it has come.
pub(crate) struct Behind {
    pub(crate) state: State,
    pub(crate) frontier: Frontier,
    /// What was read, and is not shown before a signed head covers all of it.
    pub(crate) entries: Vec<Entry>,
    /// Their hashes in the tree.
    pub(crate) leaves: Vec<TreeHash>,
    /// Where the log ended when this began.
    goal: Option<Tail>,
}

impl Behind {
    /// Begins behind what is known to be durable.
    pub(crate) fn new(state: State, frontier: Frontier) -> Self {
        Behind { state, frontier, entries: Vec::new(), leaves: Vec::new(), goal: None }
    }

    /// Goes on to where the log ended when it began, and checks everything as if it came from a stranger. The signed head
    /// there, if there was anything new.
    pub(crate) async fn catch_up(&mut self, shared: &Shared) -> Result<Option<Arc<Note>>, RegistryError> {
        let deadline = || Deadline::after(shared.settings.load().commit_timeout);
        // Where it ends first: what is appended while this reads has a later head, which is not of these entries.
        let goal = match self.goal.clone() {
            Some(goal) => goal,
            None => self.goal.insert(shared.store.tail(deadline()).await?).clone(),
        };
        let known = self.state.head().version;
        if goal.version < known {
            let end = goal.version;
            let what = format!("it was committed, and the log ends at {end}");
            return Err(RegistryError::untrusted_at(known, what));
        }
        while self.state.head().version < goal.version {
            let next = self.state.head().version + 1;
            let max = READ_MAX.min(goal.version + 1 - next);
            let more = shared.store.read(next, max as usize, deadline()).await?;
            if more.is_empty() {
                return Err(RegistryError::untrusted_at(next, "it is not there"));
            }
            for (version, bytes) in (next..).zip(more) {
                let entry = self.state.apply(&bytes, Signatures::Check);
                self.entries.push(entry.map_err(|error| RegistryError::untrusted_at(version, error))?);
                let leaf = TreeHash::of_leaf(&bytes);
                self.frontier.push(leaf);
                self.leaves.push(leaf);
                // A hundred microseconds with its signatures; others have their turn in between.
                tokio::task::yield_now().await;
            }
        }
        if self.entries.is_empty() {
            return Ok(None);
        }
        let note = goal.checkpoint.as_deref().map(Note::parse).and_then(Result::ok);
        let said = note.as_ref().and_then(|note| shared.trust.open(note).ok());
        let (origin, size, root) =
            (self.state.origin().to_owned(), self.frontier.size(), self.frontier.root());
        match note {
            Some(note) if said == Some(Checkpoint { origin, size, root }) => Ok(Some(Arc::new(note))),
            _ => Err(RegistryError::untrusted_at(goal.version, "its checkpoint is not of these entries")),
        }
    }
}
