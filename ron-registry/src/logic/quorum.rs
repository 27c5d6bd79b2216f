//! What waits for approvals, and when there are enough.
//!
//! A proposal is pending until it has a quorum, its time is over, or the log has decided otherwise about the same name.
//! Proposals about different names do not touch each other; a rotation voids all of the old epoch. How many may wait is
//! bounded. Proposing the same again is answered as the first time, also after it was committed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ron_core::net::PublicKey;

use super::{
    entry::Entry,
    proposal::{Action, Name, Proposal, ProposalId, RecordedApproval, VerifiedApproval},
    state::{Admitted, Refused, State},
};

/// How many proposals may wait for approvals, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Proposals that wait at once.
    pub pending_max: usize,
    /// Bytes of those.
    pub pending_bytes_max: usize,
    /// How long a proposal may ask to be pending, in milliseconds.
    pub lifetime_ms_max: u64,
    /// Committed proposals that are remembered, apart from the latest of each name.
    pub recent_max: usize,
}

/// How a proposal stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits for some of these.
    Pending {
        /// Who could still approve.
        missing: Vec<String>,
    },
    /// It has what it needs. [`Quorum::take`] it.
    Complete,
    /// It is in the log.
    Committed {
        /// Where.
        version: u64,
    },
}

#[derive(Debug)]
struct Pending {
    proposal: Proposal,
    /// One for each key.
    approvals: BTreeMap<PublicKey, RecordedApproval>,
}

impl Pending {
    fn approvals(&self) -> Vec<RecordedApproval> {
        self.approvals.values().copied().collect()
    }
}

/// The proposals that wait.
#[derive(Debug)]
pub struct Quorum {
    limits: Limits,
    pending: HashMap<ProposalId, Pending>,
    by_expiry: BTreeSet<(u64, ProposalId)>,
    by_name: HashMap<Name, BTreeSet<ProposalId>>,
    /// Those that must directly follow a certain head.
    by_head: BTreeSet<ProposalId>,
    bytes: usize,
    recent: HashMap<ProposalId, u64>,
    recent_order: VecDeque<ProposalId>,
}

impl Quorum {
    /// Nothing waits yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Quorum {
            limits,
            pending: HashMap::new(),
            by_expiry: BTreeSet::new(),
            by_name: HashMap::new(),
            by_head: BTreeSet::new(),
            bytes: 0,
            recent: HashMap::new(),
            recent_order: VecDeque::new(),
        }
    }

    /// Changes how much may wait. What waits already stays.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A proposal that waits, and who has approved it.
    #[must_use]
    pub fn get(&self, id: &ProposalId) -> Option<(&Proposal, Vec<RecordedApproval>)> {
        self.pending.get(id).map(|pending| (&pending.proposal, pending.approvals()))
    }

    /// Everything that waits, in the order in which it expires.
    pub fn iter(&self) -> impl Iterator<Item = (&Proposal, Vec<RecordedApproval>)> {
        self.by_expiry.iter().filter_map(|(_, id)| self.get(id))
    }

    /// When the first of them expires.
    #[must_use]
    pub fn wake_at(&self) -> Option<u64> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    /// Takes a proposal in.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn on_proposal(&mut self, state: &State, proposal: Proposal, now: u64) -> Result<Standing, Refused> {
        let id = proposal.id();
        if let Some(version) = self.committed(state, &proposal) {
            return Ok(Standing::Committed { version });
        }
        if let Some(pending) = self.pending.get(&id) {
            return standing(state, pending, now);
        }
        if proposal.expires() <= now {
            return Err(Refused::Expired { at: proposal.expires() });
        }
        // A beginning is complete as it is, and waits for nobody.
        let waits = proposal.action().right().is_some();
        if waits && proposal.expires() - now > self.limits.lifetime_ms_max {
            return Err(Refused::TooLong { limit_ms: self.limits.lifetime_ms_max });
        }
        state.check(&proposal)?;
        self.room_for(&proposal)?;
        self.insert(proposal, &[]);
        standing(state, &self.pending[&id], now)
    }

    /// Admits a proposal that comes with all that it needs, if it does: it is new, every one of its approvals counts, and
    /// they are enough. It can be sealed without being taken in.
    #[must_use]
    pub fn at_once(
        &self,
        state: &State,
        proposal: &Proposal,
        approvals: &[VerifiedApproval],
        now: u64,
    ) -> Option<Admitted> {
        let lasts =
            proposal.expires().checked_sub(now).is_some_and(|left| left <= self.limits.lifetime_ms_max);
        // One that the names remember does not fit any more, so that it is not admitted below.
        let is_known = self.pending.contains_key(&proposal.id()) || self.recent.contains_key(&proposal.id());
        let counts = |approval: &VerifiedApproval| {
            approval.is_for(proposal)
                && approval.statement().expires > now
                && state.listens(proposal, &approval.key(), now).is_ok()
        };
        if !lasts || is_known || approvals.is_empty() || !approvals.iter().all(counts) {
            return None;
        }
        let approvals: Vec<_> = approvals.iter().map(VerifiedApproval::recorded).collect();
        state.admit(proposal, approvals, now).ok()
    }

    /// Counts an approval. Of two by one signer the one that lasts longer counts.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn on_approval(
        &mut self,
        state: &State,
        approval: &VerifiedApproval,
        now: u64,
    ) -> Result<Standing, Refused> {
        let statement = approval.statement();
        let id = statement.proposal;
        let Some(pending) = self.pending.get_mut(&id) else {
            let version = self.recent.get(&id).copied();
            return version.map(|version| Standing::Committed { version }).ok_or(Refused::UnknownProposal);
        };
        if !approval.is_for(&pending.proposal) {
            return Err(Refused::OtherWords);
        }
        if statement.expires <= now {
            return Err(Refused::Expired { at: statement.expires });
        }
        state.listens(&pending.proposal, &approval.key(), now)?;
        let recorded = approval.recorded();
        let kept = pending.approvals.entry(approval.key()).or_insert(recorded);
        if kept.expires < recorded.expires {
            *kept = recorded;
        }
        standing(state, pending, now)
    }

    /// Takes a proposal that is complete out, to be committed. If it cannot be, it stays until it expires, somebody
    /// [`void`](Self::void)s it, or what is committed does.
    ///
    /// # Errors
    /// [`Refused::QuorumNotMet`] if it is not, [`Refused::UnknownProposal`] if it does not wait, and any other
    /// [`Refused`] if the log has moved on.
    pub fn take(
        &mut self,
        state: &State,
        id: &ProposalId,
        now: u64,
    ) -> Result<(Proposal, Vec<RecordedApproval>), Refused> {
        let pending = self.pending.get(id).ok_or(Refused::UnknownProposal)?;
        state.check(&pending.proposal)?;
        state.quorum(&pending.proposal, &pending.approvals(), now)?;
        if pending.proposal.expires() <= now {
            return Err(Refused::Expired { at: pending.proposal.expires() });
        }
        let pending = self.remove(id).expect("it was there");
        let approvals = pending.approvals();
        Ok((pending.proposal, approvals))
    }

    /// Forgets a proposal that does not fit the log as it is.
    pub fn void(&mut self, state: &State, id: &ProposalId) {
        let pending = self.pending.get(id);
        if pending.is_some_and(|pending| state.check(&pending.proposal).is_err()) {
            self.remove(id);
        }
    }

    /// Puts back what was decided and could not be committed, with its approvals; says whether there was room. What came
    /// with all that it needed was never in here, so a store that takes nothing would otherwise fill it without end.
    pub fn put_back(&mut self, proposal: Proposal, approvals: &[RecordedApproval]) -> bool {
        let has_room = self.pending.contains_key(&proposal.id()) || self.room_for(&proposal).is_ok();
        if has_room {
            self.insert(proposal, approvals);
        }
        has_room
    }

    fn room_for(&self, proposal: &Proposal) -> Result<(), Refused> {
        if self.pending.len() >= self.limits.pending_max {
            return Err(Refused::Full { what: "pending proposals" });
        }
        if self.bytes + proposal.encoded().len() > self.limits.pending_bytes_max {
            return Err(Refused::Full { what: "bytes of pending proposals" });
        }
        Ok(())
    }

    fn insert(&mut self, proposal: Proposal, approvals: &[RecordedApproval]) {
        let id = proposal.id();
        self.bytes += proposal.encoded().len();
        self.by_expiry.insert((proposal.expires(), id));
        if let Some(name) = proposal.action().name() {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        if proposal.expect_head().is_some() {
            self.by_head.insert(id);
        }
        let approvals = approvals.iter().map(|approval| (approval.key, *approval)).collect();
        if let Some(before) = self.pending.insert(id, Pending { proposal, approvals }) {
            self.bytes -= before.proposal.encoded().len();
        }
    }

    /// Remembers where a proposal was committed, and forgets the oldest for it.
    pub fn remember(&mut self, id: ProposalId, version: u64) {
        if self.recent.insert(id, version).is_none() {
            self.recent_order.push_back(id);
        }
        while self.recent_order.len() > self.limits.recent_max {
            if let Some(oldest) = self.recent_order.pop_front() {
                self.recent.remove(&oldest);
            }
        }
    }

    /// What is remembered, the oldest first.
    pub fn remembered(&self) -> impl Iterator<Item = (ProposalId, u64)> {
        self.recent_order.iter().filter_map(|id| self.recent.get(id).map(|version| (*id, *version)))
    }

    /// Learns what was committed, and gives back what that has voided and why. `state` is that with the entry.
    pub fn on_committed(&mut self, state: &State, entry: &Entry) -> Vec<(Proposal, Refused)> {
        let committed = entry.proposal();
        self.remove(&committed.id());
        self.remember(committed.id(), entry.version());
        let mut touched: BTreeSet<ProposalId> = match committed.action() {
            Action::Bind { name, .. } | Action::Retire { name, .. } => {
                self.by_name.get(name).into_iter().flatten().copied().collect()
            }
            Action::Found { .. } | Action::Rotate { .. } => self.pending.keys().copied().collect(),
        };
        // Every entry takes the head away from those who fixed it, whatever it is about.
        touched.extend(&self.by_head);
        let mut voided = Vec::new();
        for id in touched {
            let pending = self.pending.get(&id).expect("what is listed is pending");
            if let Err(refused) = state.check(&pending.proposal) {
                let pending = self.remove(&id).expect("it was there");
                voided.push((pending.proposal, refused));
            }
        }
        voided
    }

    /// Gives back what has expired.
    pub fn on_tick(&mut self, now: u64) -> Vec<Proposal> {
        let mut expired = Vec::new();
        while let Some((at, id)) = self.by_expiry.first().copied() {
            if at > now {
                break;
            }
            expired.extend(self.remove(&id).map(|pending| pending.proposal));
        }
        expired
    }

    /// Where this proposal was committed, if that is remembered.
    #[must_use]
    pub fn committed(&self, state: &State, proposal: &Proposal) -> Option<u64> {
        self.recent.get(&proposal.id()).copied().or_else(|| state.committed(proposal))
    }

    fn remove(&mut self, id: &ProposalId) -> Option<Pending> {
        let pending = self.pending.remove(id)?;
        let proposal = &pending.proposal;
        self.bytes -= proposal.encoded().len();
        self.by_expiry.remove(&(proposal.expires(), *id));
        self.by_head.remove(id);
        if let Some(name) = proposal.action().name() {
            let ids = self.by_name.get_mut(name).expect("every name that waits is listed");
            ids.remove(id);
            if ids.is_empty() {
                self.by_name.remove(name);
            }
        }
        Some(pending)
    }
}

/// How a proposal that waits stands now.
fn standing(state: &State, pending: &Pending, now: u64) -> Result<Standing, Refused> {
    match state.quorum(&pending.proposal, &pending.approvals(), now) {
        Ok(()) => Ok(Standing::Complete),
        Err(Refused::QuorumNotMet { missing }) => Ok(Standing::Pending { missing }),
        Err(refused) => Err(refused),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::logic::{
        fixture::{LATER, ORIGIN, START, bind, identity, policy, propose, retire, rotate},
        policy::Policy,
        state::Signatures,
    };

    const LIMITS: Limits =
        Limits { pending_max: 8, pending_bytes_max: 4000, lifetime_ms_max: 2_000_000, recent_max: 3 };

    /// A log and what waits for it.
    struct World {
        state: State,
        quorum: Quorum,
        now: u64,
    }

    impl World {
        fn new(policy: Policy) -> Self {
            let mut state = State::new(ORIGIN);
            state.commit(propose(0, Action::Found { policy: Arc::new(policy) }), vec![], START).unwrap();
            World { state, quorum: Quorum::new(LIMITS), now: START }
        }

        fn propose(&mut self, proposal: &Proposal) -> Result<Standing, Refused> {
            self.quorum.on_proposal(&self.state, proposal.clone(), self.now)
        }

        fn approve(&mut self, proposal: &Proposal, signer: u8) -> Result<Standing, Refused> {
            self.approve_until(proposal, signer, LATER)
        }

        fn approve_until(
            &mut self,
            proposal: &Proposal,
            signer: u8,
            expires: u64,
        ) -> Result<Standing, Refused> {
            let approval = proposal.approve(&identity(signer), expires).verify().unwrap();
            self.quorum.on_approval(&self.state, &approval, self.now)
        }

        fn commit(&mut self, proposal: &Proposal) -> Result<Vec<Refused>, Refused> {
            let taken = self.quorum.take(&self.state, &proposal.id(), self.now);
            self.quorum.void(&self.state, &proposal.id());
            let (proposal, approvals) = taken?;
            let entry = self.state.commit(proposal, approvals, self.now)?;
            let voided = self.quorum.on_committed(&self.state, &entry);
            Ok(voided.into_iter().map(|(_, refused)| refused).collect())
        }

        fn decide(&mut self, proposal: &Proposal, signers: &[u8]) -> Vec<Refused> {
            self.propose(proposal).unwrap();
            signers.iter().for_each(|signer| drop(self.approve(proposal, *signer).unwrap()));
            self.commit(proposal).unwrap()
        }
    }

    fn pending(names: &[&str]) -> Result<Standing, Refused> {
        Ok(Standing::Pending { missing: names.iter().map(|name| (*name).into()).collect() })
    }

    #[test]
    fn two_of_three_commit() {
        let mut world = World::new(policy(2, 3));
        let proposal = bind(1, "a", 0, "x");
        assert_eq!(world.approve(&proposal, 0), Err(Refused::UnknownProposal));
        assert_eq!(world.propose(&proposal), pending(&["s0", "s1", "s2"]));
        assert_eq!(world.approve(&proposal, 0), pending(&["s1", "s2"]));
        assert_eq!(world.approve(&proposal, 0), pending(&["s1", "s2"]), "once more is still once");
        assert!(matches!(world.commit(&proposal), Err(Refused::QuorumNotMet { .. })));
        assert_eq!(world.propose(&proposal), pending(&["s1", "s2"]), "proposing again loses nothing");
        assert_eq!(world.approve(&proposal, 2), Ok(Standing::Complete));
        assert_eq!(world.commit(&proposal), Ok(vec![]));
        assert!(world.quorum.is_empty());
        let committed = Ok(Standing::Committed { version: 2 });
        assert_eq!(world.propose(&proposal), committed);
        assert_eq!(world.approve(&proposal, 1), committed);
        assert_eq!(world.quorum.bytes, 0);
    }

    #[test]
    fn what_could_not_be_committed_waits_again_as_it_did() {
        let mut world = World::new(policy(2, 3));
        let proposal = bind(1, "a", 0, "x");
        world.propose(&proposal).unwrap();
        world.approve(&proposal, 0).unwrap();
        world.approve(&proposal, 1).unwrap();
        let bytes = world.quorum.bytes;
        let (taken, approvals) = world.quorum.take(&world.state, &proposal.id(), world.now).unwrap();
        world.quorum.put_back(taken.clone(), &approvals);
        world.quorum.put_back(taken, &approvals);
        assert_eq!((world.quorum.len(), world.quorum.bytes), (1, bytes));
        assert_eq!(world.propose(&proposal), Ok(Standing::Complete));
        assert_eq!(world.commit(&proposal), Ok(vec![]));
        assert_eq!((world.quorum.len(), world.quorum.bytes), (0, 0));
    }

    #[test]
    fn approvals_outlive_unrelated_commits_and_not_related_ones() {
        let mut world = World::new(policy(2, 3));
        let (mine, rival, other) = (bind(1, "a", 0, "mine"), bind(1, "a", 0, "rival"), bind(1, "b", 0, "x"));
        world.propose(&mine).unwrap();
        world.propose(&rival).unwrap();
        world.approve(&mine, 0).unwrap();
        assert_eq!(world.decide(&other, &[1, 2]), []);
        assert_eq!(world.approve(&mine, 1), Ok(Standing::Complete));
        let voided = world.commit(&mine).unwrap();
        assert!(matches!(voided[..], [Refused::NameMoved { .. }]), "{voided:?}");
        assert_eq!(world.approve(&rival, 0), Err(Refused::UnknownProposal));
        assert!(matches!(world.propose(&rival), Err(Refused::NameMoved { .. })));
    }

    #[test]
    fn a_rotation_voids_what_waits() {
        let mut world = World::new(policy(2, 3));
        let (waits, also) = (bind(1, "a", 0, "x"), retire(1, "a", 7));
        world.propose(&waits).unwrap();
        world.approve(&waits, 0).unwrap();
        assert!(world.propose(&also).is_err());
        let voided = world.decide(&rotate(1, policy(2, 3)), &[0, 1]);
        assert_eq!(voided, [Refused::WrongEpoch { found: 1, current: 2 }]);
        assert_eq!(world.approve(&waits, 1), Err(Refused::UnknownProposal));
        // The same under the new policy is another proposal, and takes new approvals.
        let again = bind(2, "a", 0, "x");
        assert_eq!(world.propose(&again), pending(&["s0", "s1", "s2"]));
        let old = waits.approve(&identity(0), LATER).verify().unwrap();
        assert_eq!(world.quorum.on_approval(&world.state, &old, world.now), Err(Refused::UnknownProposal));
    }

    #[test]
    fn what_waits_expires() {
        let mut world = World::new(policy(1, 1));
        let soon = Proposal::new(ORIGIN, 1, START + 10, bind(1, "a", 0, "x").action().clone(), None).unwrap();
        world.propose(&soon).unwrap();
        assert_eq!(world.quorum.wake_at(), Some(START + 10));
        assert_eq!(world.quorum.on_tick(START + 9), []);
        assert_eq!(world.quorum.on_tick(START + 10)[0], soon);
        assert_eq!(world.quorum.wake_at(), None);
        world.now = START + 10;
        assert_eq!(world.propose(&soon), Err(Refused::Expired { at: START + 10 }));
        let long = Proposal::new(ORIGIN, 1, START + 3_000_000, soon.action().clone(), None).unwrap();
        assert_eq!(world.propose(&long), Err(Refused::TooLong { limit_ms: 2_000_000 }));
    }

    #[test]
    fn an_approval_that_expired_is_missing_again_and_can_be_given_for_longer() {
        let mut world = World::new(policy(2, 2));
        let proposal = bind(1, "a", 0, "x");
        world.propose(&proposal).unwrap();
        assert_eq!(world.approve_until(&proposal, 0, START + 5), pending(&["s1"]));
        world.now = START + 5;
        assert_eq!(world.approve(&proposal, 1), pending(&["s0"]));
        assert_eq!(world.approve_until(&proposal, 0, START + 5), Err(Refused::Expired { at: START + 5 }));
        assert_eq!(world.approve(&proposal, 0), Ok(Standing::Complete));
        assert_eq!(
            world.approve_until(&proposal, 0, START + 6),
            Ok(Standing::Complete),
            "the longer one stays"
        );
        world.now = START + 100;
        assert_eq!(world.commit(&proposal), Ok(vec![]));
    }

    #[test]
    fn how_much_waits_is_bounded() {
        let mut world = World::new(policy(1, 1));
        for at in 0..8 {
            world.propose(&bind(1, &format!("n{at}"), 0, "x")).unwrap();
        }
        assert_eq!(world.propose(&bind(1, "n8", 0, "x")), Err(Refused::Full { what: "pending proposals" }));
        let mut world = World::new(policy(1, 1));
        let large = bind(1, "a", 0, &"x".repeat(4000));
        assert_eq!(world.propose(&large), Err(Refused::Full { what: "bytes of pending proposals" }));
        world.quorum.limit(Limits { pending_bytes_max: 5000, ..LIMITS });
        assert!(world.propose(&large).is_ok());
    }

    #[test]
    fn a_few_that_were_committed_are_remembered_and_the_latest_always() {
        let mut world = World::new(policy(1, 1));
        let mut proposals = Vec::new();
        for version in 2..8 {
            let prior = if version == 2 { 0 } else { version - 1 };
            let proposal = bind(1, "a", prior, "x");
            world.decide(&proposal, &[0]);
            proposals.push(proposal);
        }
        assert_eq!(world.propose(&proposals[4]), Ok(Standing::Committed { version: 6 }));
        assert!(matches!(world.propose(&proposals[0]), Err(Refused::NameMoved { .. })), "too long ago");
        let forgetful = Quorum::new(LIMITS).on_proposal(&world.state, proposals[5].clone(), START);
        assert_eq!(forgetful, Ok(Standing::Committed { version: 7 }), "the names remember");
    }

    /// What somebody with too few keys may try.
    #[derive(Debug, Clone)]
    enum Try {
        /// An approval by one of the keys they have.
        Own(u8),
        /// One of those that has expired.
        Late(u8),
        /// One for the same with another prior, name, payload or epoch.
        Elsewhere(u8, u8),
        /// One by a key that was removed from the policy.
        Revoked(u8),
        /// One by a key that never was in it.
        Stranger(u8),
        /// One by a key they do not have, with a signature of one that they have.
        Forged(u8),
        /// The proposal again.
        Again,
        /// Time passes.
        Wait(u16),
    }

    fn tries() -> impl Strategy<Value = Vec<Try>> {
        let one = prop_oneof![
            any::<u8>().prop_map(Try::Own),
            any::<u8>().prop_map(Try::Own),
            any::<u8>().prop_map(Try::Late),
            (any::<u8>(), 0u8..5).prop_map(|(key, how)| Try::Elsewhere(key, how)),
            any::<u8>().prop_map(Try::Revoked),
            any::<u8>().prop_map(Try::Stranger),
            any::<u8>().prop_map(Try::Forged),
            Just(Try::Again),
            (0u16..500).prop_map(Try::Wait),
        ];
        proptest::collection::vec(one, 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// However often, in whatever order and with whatever else beside them: one key too few never decides, neither
        /// here nor in an entry that somebody makes by hand, and one more does.
        #[test]
        fn too_few_keys_never_commit(needed in 2u32..4, extra in 0u8..3, tries in tries()) {
            let signers = needed as u8 + extra;
            // Before this policy there was another one, with keys 20 to 22 in it.
            let former = Policy::of(1, (20..23).map(crate::logic::fixture::signer).collect()).unwrap();
            let mut world = World::new(former);
            let change = rotate(1, policy(needed, signers));
            world.propose(&change).unwrap();
            (0..signers).for_each(|signer| drop(world.approve(&change, signer)));
            world.approve(&change, 20).unwrap();
            world.commit(&change).unwrap();
            prop_assert_eq!(world.state.epoch(), 2);
            // A life of the name that is over: whatever was said about it then is for another prior.
            let over = bind(2, "a", 0, "x");
            world.decide(&over, &(0..needed as u8).collect::<Vec<_>>());

            let target = bind(2, "a", 3, "x");
            world.propose(&target).unwrap();
            let head = world.state.head();
            let have = needed as u8 - 1;
            let mut collected = Vec::new();
            for attempt in tries {
                let approval = match attempt {
                    Try::Own(key) => target.approve(&identity(key % have), LATER),
                    Try::Late(key) => target.approve(&identity(key % signers), world.now),
                    Try::Elsewhere(key, how) => {
                        let other = match how {
                            0 => over.clone(),
                            1 => bind(2, "b", 3, "x"),
                            2 => bind(2, "a", 3, "y"),
                            3 => bind(1, "a", 3, "x"),
                            _ => retire(2, "a", 3),
                        };
                        other.approve(&identity(key % signers), LATER)
                    }
                    Try::Revoked(key) => target.approve(&identity(20 + key % 3), LATER),
                    Try::Stranger(key) => target.approve(&identity(30 + key % 3), LATER),
                    Try::Forged(key) => {
                        let mut bytes = target.approve(&identity(0), LATER).encode();
                        let own = *identity(0).public_key().as_bytes();
                        let at = bytes.windows(32).position(|window| window == own).unwrap();
                        let other = identity(have + key % (signers - have)).public_key();
                        bytes[at..at + 32].copy_from_slice(other.as_bytes());
                        let forged = crate::logic::proposal::Approval::decode(&bytes).unwrap();
                        prop_assert!(forged.verify().is_err());
                        continue;
                    }
                    Try::Again => {
                        let is_pending = matches!(world.propose(&target), Ok(Standing::Pending { .. }));
                        prop_assert!(is_pending);
                        continue;
                    }
                    Try::Wait(ms) => {
                        world.now += u64::from(ms);
                        continue;
                    }
                };
                let approval = approval.verify().unwrap();
                collected.push(approval.recorded());
                let standing = world.quorum.on_approval(&world.state, &approval, world.now);
                prop_assert!(standing != Ok(Standing::Complete), "{:?}", approval);
                let taken = world.quorum.take(&world.state, &target.id(), world.now);
                let is_short = matches!(taken, Err(Refused::QuorumNotMet { .. }));
                prop_assert!(is_short);
            }
            // Not past the machine either: neither by the committer, nor by whoever writes entries by hand.
            let mut state = world.state.clone();
            let only_valid: Vec<_> =
                collected.iter().filter(|approval| approval.verify(&target).is_ok()).copied().collect();
            prop_assert!(state.commit(target.clone(), only_valid.clone(), world.now).is_err());
            prop_assert_eq!(state.head(), head);
            let mut names = world.state.clone();
            names.commit(target.clone(), (0..signers).map(|key| {
                target.approve(&identity(key), LATER).verify().unwrap().recorded()
            }).collect(), world.now).unwrap();
            let by_key: BTreeMap<_, _> =
                collected.into_iter().map(|approval| (approval.key, approval)).collect();
            let forged = Entry::new(
                head.version + 1, head.hash, world.now, target.clone(),
                by_key.into_values().collect(), names.names().root(),
            ).unwrap();
            prop_assert!(world.state.clone().apply(forged.encoded(), Signatures::Check).is_err());

            // And with the one that lacked it is decided.
            (0..have).for_each(|key| drop(world.approve(&target, key)));
            prop_assert_eq!(world.approve(&target, have), Ok(Standing::Complete));
            prop_assert!(world.commit(&target).is_ok());
        }
    }
}
