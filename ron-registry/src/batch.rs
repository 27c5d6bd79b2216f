//! What is decided and not yet durable.

use std::collections::HashMap;

use crate::{
    RegistryError,
    actor::Answer,
    logic::{entry::Entry, proposal::ProposalId, quorum::Quorum, state::Refused},
    store::{BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX},
};

/// Entries that are decided and not yet durable, and who waits for them.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    bytes: usize,
    /// In the order of the entries; with those who proposed the same meanwhile.
    pub(crate) waiting: Vec<Vec<Answer>>,
    pub(crate) by_id: HashMap<ProposalId, usize>,
    /// Those who are refused because of these entries. They are told when it has come so far: a head that was told and
    /// never came would look like a fork.
    pub(crate) held: Vec<(Refused, Answer)>,
    /// How many wait, in all.
    answers: usize,
}

/// Callers that one batch keeps waiting. Those who gave up are among them until it is known what became of it, so a store
/// that stalls would otherwise gather them without end.
const ANSWERS_MAX: usize = 4 * BLOCK_ENTRIES_MAX;

impl Batch {
    pub(crate) fn is_full(&self) -> bool {
        // The largest entry must still fit.
        self.entries.len() >= BLOCK_ENTRIES_MAX
            || self.bytes + usize::from(u16::MAX) > BLOCK_BYTES_MAX
            || self.keeps_many()
    }

    /// Whether as many callers wait for it as may.
    pub(crate) fn keeps_many(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// Lets another caller wait for the entry at this place.
    pub(crate) fn join(&mut self, at: usize, reply: Answer) {
        self.answers += 1;
        self.waiting[at].push(reply);
    }

    /// Lets a caller wait who is refused because of these entries.
    pub(crate) fn hold(&mut self, refused: Refused, reply: Answer) {
        self.answers += 1;
        self.held.push((refused, reply));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As much of it as fits a block. The rest stays, and with it those who are refused.
    pub(crate) fn take_block(&mut self) -> Batch {
        let mut all = std::mem::take(self);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.encoded().len();
            bytes <= BLOCK_BYTES_MAX
        };
        let count = all.entries.iter().take(BLOCK_ENTRIES_MAX).take_while(fits).count();
        if count == all.entries.len() {
            return all;
        }
        let rest = all.entries.drain(count..).zip(all.waiting.drain(count..)).collect::<Vec<_>>();
        rest.into_iter().for_each(|(entry, waiting)| self.push(entry, waiting));
        self.held = std::mem::take(&mut all.held);
        self.answers += self.held.len();
        let mut block = Batch::default();
        all.entries.into_iter().zip(all.waiting).for_each(|(entry, waiting)| block.push(entry, waiting));
        block
    }

    pub(crate) fn push(&mut self, entry: Entry, waiting: Vec<Answer>) {
        self.by_id.insert(entry.proposal().id(), self.entries.len());
        self.bytes += entry.encoded().len();
        self.answers += waiting.len();
        self.entries.push(entry);
        self.waiting.push(waiting);
    }

    /// Tells everybody why not. What was decided waits again, with its approvals, as far as there is room: whoever asks
    /// again finds it complete.
    pub(crate) fn refuse(self, error: &RegistryError, quorum: &mut Quorum) {
        for entry in &self.entries {
            if !quorum.put_back(entry.proposal().clone(), entry.approvals()) {
                tracing::debug!(proposal = %entry.proposal().id(), "no room to wait again");
            }
        }
        let held = self.held.into_iter().map(|(_, reply)| reply);
        self.waiting.into_iter().flatten().chain(held).for_each(|reply| reply.send(Err(error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::{
        logic::{
            fixture::{ORIGIN, START, bind, identity, policy, propose},
            proposal::Action,
            state::State,
        },
        store::{Block, check_block},
    };

    /// After a lost race there may be twice as much as fits.
    #[test]
    fn no_block_is_larger_than_any_may_be() {
        let founded = propose(0, Action::Found { policy: Arc::new(policy(1, 1)) });
        for (count, payload) in [(100, 48 << 10), (2100, 1)] {
            let (mut state, mut batch) = (State::new(ORIGIN), Batch::default());
            batch.push(state.commit(founded.clone(), vec![], START).unwrap(), Vec::new());
            // One approval does for all of them: signatures are not looked at here.
            let approval = founded.approve(&identity(0), u64::MAX).verify().unwrap().recorded();
            for number in 0..count {
                let proposal = bind(1, &format!("name/{number}"), 0, &"x".repeat(payload));
                batch.push(state.commit(proposal, vec![approval], START).unwrap(), Vec::new());
            }
            let (mut version, mut blocks) = (0, 0);
            while !batch.is_empty() {
                let block = batch.take_block();
                let entries: Vec<_> = block.entries.iter().map(|entry| entry.encoded().clone()).collect();
                check_block(&Block { entries, checkpoint: Bytes::new() }).unwrap();
                for (at, entry) in block.entries.iter().enumerate() {
                    version += 1;
                    assert_eq!((entry.version(), block.by_id[&entry.proposal().id()]), (version, at));
                }
                for (at, entry) in batch.entries.iter().enumerate() {
                    assert_eq!(batch.by_id[&entry.proposal().id()], at);
                }
                blocks += 1;
            }
            assert_eq!(version, count + 1);
            assert!(blocks > 1);
        }
    }
}
