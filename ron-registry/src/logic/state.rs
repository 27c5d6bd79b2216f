//! What the log has decided so far, and whether an entry may come next.
//!
//! The committer, a follower and the verifier all go through here, so what one writes the others accept, and nothing
//! else. The state is small: the head, the policy, and the names. Cloning shares the names.

use std::sync::Arc;

use bytes::Bytes;
use ron_core::{
    ContentId,
    net::{PublicKey, SignatureError},
};

use super::{
    chain::Head,
    entry::Entry,
    names::{Latest, Names},
    policy::{Policy, Right, SignerSet},
    proposal::{Action, FormError, Name, Proposal, RecordedApproval},
};

/// Why a proposal, or an approval, does not fit the log as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is for another log.
    #[error("for the log {found}")]
    OtherLog {
        /// Which.
        found: String,
    },
    /// The log has begun already, or has not begun yet.
    #[error("the log {}", if *founded { "has begun already" } else { "has not begun yet" })]
    Beginning {
        /// Whether it has.
        founded: bool,
    },
    /// The policy was replaced since, or was never so. Propose again under the current one.
    #[error("for epoch {found} of the policy, and it is {current}")]
    WrongEpoch {
        /// The epoch it is for.
        found: u64,
        /// The epoch there is.
        current: u64,
    },
    /// The head it must follow is not the head. Read the head and propose again.
    #[error("the head is {head}")]
    ChainMismatch {
        /// The head there is.
        head: Head,
    },
    /// Another entry has spoken about the name since. Look at that one and propose again.
    #[error("{name} was last decided at version {}", current.map_or(0, |latest| latest.version))]
    NameMoved {
        /// Which name.
        name: Name,
        /// What it stands for now, if it ever stood for anything.
        current: Option<Latest>,
    },
    /// A name that stands for nothing cannot be retired.
    #[error("{name} stands for nothing")]
    NotBound {
        /// Which name.
        name: Name,
    },
    /// No rule of the policy says who decides this.
    #[error("the policy lets nobody decide this")]
    NotPermitted {
        /// What.
        right: Right,
    },
    /// Its time is over.
    #[error("expired at {at}")]
    Expired {
        /// When, in milliseconds of the Unix epoch.
        at: u64,
    },
    /// It would be pending for longer than this log allows. Propose it for less.
    #[error("valid for longer than {limit_ms} ms")]
    TooLong {
        /// How long it may be.
        limit_ms: u64,
    },
    /// Not enough signers have approved.
    #[error("waits for {}", waits_for(missing))]
    QuorumNotMet {
        /// Who could still. Nobody, if too many of those who decide have expired.
        missing: Vec<String>,
    },
    /// The key is none of the policy's.
    #[error("not a signer of this policy")]
    NotASigner {
        /// The key.
        key: PublicKey,
    },
    /// The policy no longer listens to this signer.
    #[error("the signer {name} has expired")]
    SignerExpired {
        /// Who.
        name: String,
    },
    /// Nothing like that waits for approvals: it was never proposed here, has expired, or was overtaken.
    #[error("no such proposal")]
    UnknownProposal,
    /// The approval is for the proposal, and says something else about it.
    #[error("the approval does not say what the proposal says")]
    OtherWords,
    /// As many proposals wait as may. Retry when some are decided.
    #[error("{what} is full")]
    Full {
        /// What is.
        what: &'static str,
    },
}

fn waits_for(missing: &[String]) -> String {
    if missing.is_empty() { "nobody who could still approve".to_owned() } else { missing.join(", ") }
}

/// Why an entry may not come next. Whoever made it is wrong, or it was damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Not an entry.
    #[error("not an entry")]
    Form(#[from] FormError),
    /// Another version should come.
    #[error("version {found} where {expected} comes")]
    WrongVersion {
        /// The one it has.
        found: u64,
        /// The one it should have.
        expected: u64,
    },
    /// It follows another entry than the last.
    #[error("it follows another entry")]
    WrongLink,
    /// It is older than the entry before it.
    #[error("older than the entry before it")]
    WrongTime,
    /// The names are not what they are with it.
    #[error("a wrong root of names")]
    WrongNames,
    /// The log could not decide this.
    #[error("not to be decided")]
    Refused(#[from] Refused),
    /// An approval in it is none.
    #[error("an approval does not hold")]
    BadApproval(#[source] SignatureError),
}

/// Whether signatures are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signatures {
    /// They are: the entry comes from somewhere else.
    Check,
    /// They were, before: by this process, or before what is on disk was acknowledged.
    Checked,
}

/// The policies that must agree on a proposal, each with its rule: none about a beginning, two about a rotation.
struct Rules<'a>([Option<(&'a Policy, usize)>; 2]);

impl Rules<'_> {
    fn listen(&self, key: &PublicKey, time: u64) -> Result<(), Refused> {
        let mut refused = Refused::NotASigner { key: *key };
        for (policy, _) in self.0.iter().flatten() {
            if let Some(at) = policy.signer(key) {
                let signer = &policy.signers()[at];
                if signer.lasts(time) {
                    return Ok(());
                }
                refused = Refused::SignerExpired { name: signer.name.clone() };
            }
        }
        Err(refused)
    }

    fn quorum(&self, approvals: &[RecordedApproval], time: u64) -> Result<(), Refused> {
        let (mut is_enough, mut missing) = (true, Vec::new());
        for (policy, rule) in self.0.iter().flatten() {
            let mut signed = SignerSet::default();
            for approval in approvals.iter().filter(|approval| approval.expires > time) {
                let Some(at) = policy.signer(&approval.key) else { continue };
                if policy.signers()[at].lasts(time) {
                    signed.add(at);
                }
            }
            if !policy.is_enough(*rule, signed) {
                is_enough = false;
                // Nobody waits for who is not listened to any more.
                let expired = policy.signers().iter().enumerate().filter(|(_, signer)| !signer.lasts(time));
                expired.for_each(|(at, _)| signed.add(at));
                missing.extend(policy.missing(*rule, signed));
            }
        }
        if is_enough {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        Err(Refused::QuorumNotMet { missing })
    }
}

/// That a proposal may come next, after this head and with these approvals.
#[derive(Debug)]
pub struct Admitted {
    after: Head,
    time: u64,
    approvals: Vec<RecordedApproval>,
}

/// What the log has decided so far.
#[derive(Debug, Clone)]
pub struct State {
    origin: Arc<str>,
    head: Head,
    time: u64,
    epoch: u64,
    policy: Option<Arc<Policy>>,
    names: Names,
}

impl State {
    /// That of a log without entries.
    #[must_use]
    pub fn new(origin: &str) -> Self {
        State {
            origin: origin.into(),
            head: Head::start(origin),
            time: 0,
            epoch: 0,
            policy: None,
            names: Names::new(),
        }
    }

    /// That after the entry `last`, with these names and this policy, all of which has been checked.
    pub(super) fn restored(origin: &str, head: Head, last: &Entry, policy: Policy, names: Names) -> Self {
        let epoch = last.proposal().epoch();
        let epoch = match last.proposal().action() {
            Action::Found { .. } | Action::Rotate { .. } => epoch.saturating_add(1),
            Action::Bind { .. } | Action::Retire { .. } => epoch,
        };
        State { origin: origin.into(), head, time: last.time(), epoch, policy: Some(Arc::new(policy)), names }
    }

    /// The log.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Where it ends.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }

    /// The time of the last entry.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The epoch of the policy: one after the beginning, one more with each rotation.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Who decides; nobody before the beginning.
    #[must_use]
    pub fn policy(&self) -> Option<&Arc<Policy>> {
        self.policy.as_ref()
    }

    /// What names stand for.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The version at which this proposal was committed, as far as the names remember: always, until another one is
    /// committed about the same name.
    #[must_use]
    pub fn committed(&self, proposal: &Proposal) -> Option<u64> {
        let latest = self.names.lookup_at(proposal.place());
        latest.filter(|latest| latest.proposal == proposal.id()).map(|latest| latest.version)
    }

    /// Whether a proposal fits the log as it is, whoever approves it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(&self, proposal: &Proposal) -> Result<(), Refused> {
        self.fits(proposal).map(drop)
    }

    /// [`check`](Self::check), with the rules it is decided by.
    fn fits<'a>(&'a self, proposal: &'a Proposal) -> Result<Rules<'a>, Refused> {
        if proposal.origin() != &*self.origin {
            return Err(Refused::OtherLog { found: proposal.origin().to_owned() });
        }
        let is_beginning = matches!(proposal.action(), Action::Found { .. });
        if is_beginning == self.policy.is_some() {
            return Err(Refused::Beginning { founded: is_beginning });
        }
        if proposal.epoch() != self.epoch {
            return Err(Refused::WrongEpoch { found: proposal.epoch(), current: self.epoch });
        }
        if proposal.expect_head().is_some_and(|head| head != self.head) {
            return Err(Refused::ChainMismatch { head: self.head });
        }
        if let Some(name) = proposal.action().name() {
            let current = self.names.lookup_at(proposal.place()).copied();
            if current.map_or(0, |latest| latest.version) != proposal.action().prior() {
                return Err(Refused::NameMoved { name: name.clone(), current });
            }
            let is_bound = current.is_some_and(|latest| latest.content.is_some());
            if matches!(proposal.action(), Action::Retire { .. }) && !is_bound {
                return Err(Refused::NotBound { name: name.clone() });
            }
        }
        self.rules(proposal)
    }

    /// The policies that must agree, each with its rule. A rotation takes the old one and the new one: nobody is locked
    /// out by a policy whose keys were mistyped.
    fn rules<'a>(&'a self, proposal: &'a Proposal) -> Result<Rules<'a>, Refused> {
        let (Some(right), Some(policy)) = (proposal.action().right(), self.policy.as_deref()) else {
            return Ok(Rules([None, None]));
        };
        let name = proposal.action().name().map_or("", Name::as_str);
        let rule = |policy: &'a Policy| {
            policy.rule(right, name).map(|rule| (policy, rule)).ok_or(Refused::NotPermitted { right })
        };
        let new = match proposal.action() {
            Action::Rotate { policy } => Some(rule(policy)?),
            _ => None,
        };
        Ok(Rules([Some(rule(policy)?), new]))
    }

    /// Whether the policy listens to this key about this proposal at this time.
    ///
    /// # Errors
    /// [`Refused::NotASigner`], [`Refused::SignerExpired`].
    pub fn listens(&self, proposal: &Proposal, key: &PublicKey, time: u64) -> Result<(), Refused> {
        self.rules(proposal)?.listen(key, time)
    }

    /// Whether these have approved enough at this time. Approvals that have expired, and keys that the policy does not
    /// listen to, do not count; nor does a key count twice.
    ///
    /// # Errors
    /// [`Refused::QuorumNotMet`] with who could still approve.
    pub fn quorum(
        &self,
        proposal: &Proposal,
        approvals: &[RecordedApproval],
        time: u64,
    ) -> Result<(), Refused> {
        self.rules(proposal)?.quorum(approvals, time)
    }

    /// Whether a proposal may come next, with those of these approvals that count, whose signatures have been checked. The
    /// time is `now`, or that of the last entry if the clock went back.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit(
        &self,
        proposal: &Proposal,
        mut approvals: Vec<RecordedApproval>,
        now: u64,
    ) -> Result<Admitted, Refused> {
        let time = now.max(self.time);
        let rules = self.fits(proposal)?;
        can_begin(proposal, time)?;
        if proposal.expires() <= time {
            return Err(Refused::Expired { at: proposal.expires() });
        }
        // An entry holds what counts, each key once, in their order.
        approvals.retain(|approval| approval.expires > time && rules.listen(&approval.key, time).is_ok());
        approvals.sort_unstable_by_key(|approval| approval.key);
        approvals.dedup_by_key(|approval| approval.key);
        rules.quorum(&approvals, time)?;
        Ok(Admitted { after: self.head, time, approvals })
    }

    /// Makes the next entry out of a proposal that was admitted just now, and goes on to it.
    ///
    /// # Panics
    /// If the state has gone on since.
    pub fn seal(&mut self, proposal: Proposal, admitted: Admitted) -> Entry {
        let Admitted { after, time, approvals } = admitted;
        assert_eq!(after, self.head, "what was admitted is sealed before anything else is");
        self.decide(&proposal);
        let (version, names) = (self.head.version + 1, self.names.root());
        let entry = Entry::new(version, after.hash, time, proposal, approvals, names)
            .expect("a proposal of lawful size and distinct keys make an entry");
        self.head = self.head.next(entry.encoded());
        self.time = time;
        entry
    }

    /// Makes the next entry out of a proposal and approvals whose signatures have been checked, and goes on to it. The
    /// time is `now`, or that of the last entry if the clock went back.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed then.
    pub fn commit(
        &mut self,
        proposal: Proposal,
        approvals: Vec<RecordedApproval>,
        now: u64,
    ) -> Result<Entry, Refused> {
        let admitted = self.admit(&proposal, approvals, now)?;
        Ok(self.seal(proposal, admitted))
    }

    /// Goes on to an entry that somebody else made, after checking everything about it.
    ///
    /// # Errors
    /// [`EntryError`]; nothing has changed then.
    pub fn apply(&mut self, encoded: &Bytes, signatures: Signatures) -> Result<Entry, EntryError> {
        let entry = Entry::decode(encoded)?;
        let (found, expected) = (entry.version(), self.head.version + 1);
        if found != expected {
            return Err(EntryError::WrongVersion { found, expected });
        }
        if entry.previous() != self.head.hash {
            return Err(EntryError::WrongLink);
        }
        let (time, proposal) = (entry.time(), entry.proposal());
        if time < self.time {
            return Err(EntryError::WrongTime);
        }
        self.check(proposal)?;
        can_begin(proposal, time)?;
        if proposal.expires() <= time {
            return Err(Refused::Expired { at: proposal.expires() }.into());
        }
        for approval in entry.approvals() {
            self.listens(proposal, &approval.key, time)?;
            if approval.expires <= time {
                return Err(Refused::Expired { at: approval.expires }.into());
            }
            if signatures == Signatures::Check {
                approval.verify(proposal).map_err(EntryError::BadApproval)?;
            }
        }
        self.quorum(proposal, entry.approvals(), time)?;
        let mut next = self.clone();
        next.decide(proposal);
        if next.names.root() != entry.names() {
            return Err(EntryError::WrongNames);
        }
        next.head = self.head.next(entry.encoded());
        next.time = time;
        *self = next;
        Ok(entry)
    }

    /// What a proposal that was checked changes, apart from the head.
    fn decide(&mut self, proposal: &Proposal) {
        let content = match proposal.action() {
            Action::Bind { .. } | Action::Retire { .. } => proposal.content_id(),
            Action::Found { policy } | Action::Rotate { policy } => {
                self.epoch += 1;
                self.policy = Some(Arc::clone(policy));
                Some(ContentId::of(policy.encoded()))
            }
        };
        let latest = Latest { version: self.head.version + 1, proposal: proposal.id(), content };
        self.names.set_at(proposal.action().key(), proposal.place(), latest);
    }
}

/// Whether a log that begins like this could ever decide anything: nobody asks its signers, so it may be that all of them
/// have expired already.
fn can_begin(proposal: &Proposal, time: u64) -> Result<(), Refused> {
    let Action::Found { policy } = proposal.action() else { return Ok(()) };
    let mut all = SignerSet::default();
    let signers = policy.signers().iter().enumerate();
    signers.filter(|(_, signer)| signer.lasts(time)).for_each(|(at, _)| all.add(at));
    let mut stuck = (0..policy.rules().len()).filter(|rule| !policy.is_enough(*rule, all)).peekable();
    if stuck.peek().is_none() {
        return Ok(());
    }
    let mut missing: Vec<String> = stuck.flat_map(|rule| policy.missing(rule, all)).collect();
    missing.sort_unstable();
    missing.dedup();
    Err(Refused::QuorumNotMet { missing })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_log_that_could_decide_nothing_does_not_begin() {
        let expired = |seed| super::super::policy::Signer { expires: Some(START), ..signer(seed) };
        let found = |policy| propose(0, Action::Found { policy: Arc::new(policy) });
        let dead = found(Policy::of(2, vec![signer(0), expired(1), expired(2)]).unwrap());
        let mut state = State::new(ORIGIN);
        let refused = state.commit(dead.clone(), vec![], START);
        assert_eq!(refused, Err(Refused::QuorumNotMet { missing: vec!["s1".into(), "s2".into()] }));
        assert!(state.commit(dead, vec![], START - 1).is_ok(), "they had not expired then");
        let alive = found(Policy::of(1, vec![signer(0), expired(1)]).unwrap());
        assert!(State::new(ORIGIN).commit(alive, vec![], START).is_ok());
    }

    use super::*;
    use crate::logic::fixture::{
        LATER, ORIGIN, START, bind, identity, policy, propose, retire, rotate, signer,
    };

    fn approvals(proposal: &Proposal, signers: &[u8]) -> Vec<RecordedApproval> {
        let approve = |seed: &u8| proposal.approve(&identity(*seed), LATER).verify().unwrap().recorded();
        signers.iter().map(approve).collect()
    }

    fn commit(state: &mut State, proposal: Proposal, signers: &[u8]) -> Result<Entry, Refused> {
        let approvals = approvals(&proposal, signers);
        state.commit(proposal, approvals, START)
    }

    fn founded(needed: u32, signers: u8) -> (State, Vec<Entry>) {
        let mut state = State::new(ORIGIN);
        let found = propose(0, Action::Found { policy: Arc::new(policy(needed, signers)) });
        let entry = state.commit(found, vec![], START).unwrap();
        (state, vec![entry])
    }

    #[test]
    fn what_is_committed_is_what_others_accept() {
        let (mut state, mut entries) = founded(2, 3);
        entries.push(commit(&mut state, bind(1, "a", 0, "one"), &[0, 1]).unwrap());
        entries.push(commit(&mut state, bind(1, "b", 0, "two"), &[0, 1, 2]).unwrap());
        entries.push(commit(&mut state, bind(1, "a", 2, "three"), &[1, 2]).unwrap());
        entries.push(commit(&mut state, retire(1, "b", 3), &[0, 2]).unwrap());
        entries.push(commit(&mut state, rotate(1, policy(1, 3)), &[0, 1]).unwrap());
        entries.push(commit(&mut state, bind(2, "b", 5, "again"), &[2]).unwrap());

        let mut follower = State::new(ORIGIN);
        for (at, entry) in entries.iter().enumerate() {
            assert_eq!(entry.version(), at as u64 + 1);
            assert_eq!(follower.apply(entry.encoded(), Signatures::Check).as_ref(), Ok(entry));
        }
        assert_eq!(follower.head(), state.head());
        assert_eq!(follower.names().root(), state.names().root());
        assert_eq!((follower.epoch(), follower.time()), (2, START));
        assert_eq!(follower.policy(), state.policy());
        let latest = state.names().get(&"a".parse().unwrap()).unwrap();
        assert_eq!((latest.version, latest.content), (4, Some(ContentId::of(b"three"))));
    }

    #[test]
    fn a_log_begins_once_and_first() {
        let mut state = State::new(ORIGIN);
        assert_eq!(
            commit(&mut state, bind(0, "a", 0, "x"), &[0]),
            Err(Refused::Beginning { founded: false })
        );
        let (mut state, _) = founded(1, 1);
        let again = propose(1, Action::Found { policy: Arc::new(policy(1, 2)) });
        assert_eq!(commit(&mut state, again, &[0]), Err(Refused::Beginning { founded: true }));
    }

    #[test]
    fn a_proposal_is_for_the_state_it_was_made_for() {
        let (mut state, _) = founded(1, 2);
        let first = bind(1, "a", 0, "x");
        let version = commit(&mut state, first.clone(), &[0]).unwrap().version();
        assert_eq!(state.committed(&first), Some(version));
        let current = state.names().get(&"a".parse().unwrap()).copied();
        let name: Name = "a".parse().unwrap();
        let moved = Refused::NameMoved { name: name.clone(), current };
        assert_eq!(commit(&mut state, first, &[0]), Err(moved.clone()), "no replay");
        assert_eq!(commit(&mut state, bind(1, "a", 0, "y"), &[0]), Err(moved));
        assert_eq!(
            commit(&mut state, bind(2, "a", 2, "y"), &[0]),
            Err(Refused::WrongEpoch { found: 2, current: 1 })
        );
        let other = Proposal::new("other", 1, LATER, bind(1, "a", 2, "y").action().clone(), None).unwrap();
        assert_eq!(commit(&mut state, other, &[0]), Err(Refused::OtherLog { found: "other".into() }));
        commit(&mut state, retire(1, "a", 2), &[0]).unwrap();
        assert_eq!(commit(&mut state, retire(1, "a", 3), &[0]), Err(Refused::NotBound { name }));
        // A name that was retired and bound again: what was approved for its first life is void in its second.
        assert!(commit(&mut state, bind(1, "a", 0, "z"), &[0]).is_err());
        commit(&mut state, bind(1, "a", 3, "z"), &[0]).unwrap();
        assert!(commit(&mut state, retire(1, "a", 2), &[0]).is_err());
    }

    #[test]
    fn a_head_that_was_asked_for_is_the_head_or_nothing_happens() {
        let (mut state, _) = founded(1, 1);
        let action = bind(1, "a", 0, "x").action().clone();
        let fixed = Proposal::new(ORIGIN, 1, LATER, action, Some(state.head())).unwrap();
        let mut moved = state.clone();
        commit(&mut moved, bind(1, "b", 0, "y"), &[0]).unwrap();
        let head = moved.head();
        assert_eq!(commit(&mut moved, fixed.clone(), &[0]), Err(Refused::ChainMismatch { head }));
        assert_eq!(moved.head(), head);
        assert!(commit(&mut state, fixed, &[0]).is_ok());
        // Without it, an unrelated commit does not matter.
        assert!(commit(&mut moved, bind(1, "a", 0, "x"), &[0]).is_ok());
    }

    /// Every key of two policies that have none in common, all of them needed.
    #[test]
    fn a_rotation_of_every_signer_to_every_other_fits() {
        let of = |seeds: std::ops::Range<u8>| Policy::of(64, seeds.map(signer).collect()).unwrap();
        let mut state = State::new(ORIGIN);
        state.commit(propose(0, Action::Found { policy: Arc::new(of(0..64)) }), vec![], START).unwrap();
        let proposal = rotate(1, of(64..128));
        let approve = |seed| proposal.approve(&identity(seed), LATER).verify().unwrap().recorded();
        let mut approvals: Vec<_> = (0..127).map(approve).collect();
        let before = state.clone();
        let refused = state.commit(proposal.clone(), approvals.clone(), START);
        assert_eq!(refused, Err(Refused::QuorumNotMet { missing: vec!["s127".to_owned()] }));
        approvals.push(approve(127));
        let entry = state.commit(proposal, approvals, START).unwrap();
        assert_eq!(entry.approvals().len(), 128);
        let mut follower = before;
        assert_eq!(follower.apply(entry.encoded(), Signatures::Check), Ok(entry));
        assert_eq!(follower.head(), state.head());
    }

    #[test]
    fn a_rotation_takes_the_old_and_the_new() {
        let (mut state, _) = founded(2, 3);
        let new = || Policy::of(2, vec![signer(0), signer(7), signer(8)]).unwrap();
        let missing = |names: &[&str]| {
            Err(Refused::QuorumNotMet { missing: names.iter().map(|name| (*name).into()).collect() })
        };
        assert_eq!(commit(&mut state.clone(), rotate(1, new()), &[7, 8]), missing(&["s0", "s1", "s2"]));
        assert_eq!(commit(&mut state.clone(), rotate(1, new()), &[0, 1]), missing(&["s7", "s8"]));
        assert_eq!(commit(&mut state.clone(), rotate(1, new()), &[0, 7]), missing(&["s1", "s2"]));
        commit(&mut state, rotate(1, new()), &[0, 1, 8]).unwrap();
        assert_eq!(state.epoch(), 2);
        // Those who were removed decide nothing any more.
        assert!(commit(&mut state, bind(2, "a", 0, "x"), &[1, 2]).is_err());
        assert!(commit(&mut state, bind(1, "a", 0, "x"), &[1, 2]).is_err());
        assert!(commit(&mut state, bind(2, "a", 0, "x"), &[7, 8]).is_ok());
    }

    #[test]
    fn what_has_expired_does_not_count() {
        let (mut state, _) = founded(2, 2);
        let proposal = bind(1, "a", 0, "x");
        let mut given = approvals(&proposal, &[0]);
        given.push(proposal.approve(&identity(1), START).verify().unwrap().recorded());
        assert_eq!(
            state.commit(proposal.clone(), given, START),
            Err(Refused::QuorumNotMet { missing: vec!["s1".into()] })
        );
        let given = approvals(&proposal, &[0, 1]);
        assert_eq!(state.commit(proposal, given, LATER), Err(Refused::Expired { at: LATER }));

        let mut leaving = signer(1);
        leaving.expires = Some(START + 10);
        let mut state = State::new(ORIGIN);
        let policy = Policy::of(2, vec![signer(0), leaving]).unwrap();
        state.commit(propose(0, Action::Found { policy: Arc::new(policy) }), vec![], START).unwrap();
        let proposal = bind(1, "a", 0, "x");
        let given = approvals(&proposal, &[0, 1]);
        assert!(state.clone().commit(proposal.clone(), given.clone(), START + 9).is_ok());
        let late = state.commit(proposal.clone(), given, START + 10);
        assert_eq!(late, Err(Refused::QuorumNotMet { missing: vec![] }), "nobody is left who could");
        assert_eq!(late.unwrap_err().to_string(), "waits for nobody who could still approve");
        let key = identity(1).public_key();
        assert_eq!(
            state.listens(&proposal, &key, START + 10),
            Err(Refused::SignerExpired { name: "s1".into() })
        );
    }

    #[test]
    fn a_clock_that_goes_back_does_not_take_the_log_with_it() {
        let (mut state, _) = founded(1, 1);
        let proposal = bind(1, "a", 0, "x");
        let given = approvals(&proposal, &[0]);
        assert_eq!(state.commit(proposal, given, START - 500).unwrap().time(), START);
    }

    /// An entry with whatever somebody who has the log, but no quorum, might put into it.
    #[test]
    fn an_entry_that_should_not_be_is_told_why() {
        let (state, _) = founded(2, 3);
        let proposal = bind(1, "a", 0, "x");
        let mut good = state.clone();
        let entry = commit(&mut good, proposal.clone(), &[0, 1]).unwrap();
        let make = |version, previous, time, proposal: &Proposal, approvals: Vec<_>, names| {
            let entry = Entry::new(version, previous, time, proposal.clone(), approvals, names).unwrap();
            state.clone().apply(entry.encoded(), Signatures::Check).unwrap_err()
        };
        let (link, names) = (state.head().hash, entry.names());
        let both = approvals(&proposal, &[0, 1]);
        let wrong = EntryError::WrongVersion { found: 3, expected: 2 };
        assert_eq!(make(3, link, START, &proposal, both.clone(), names), wrong);
        assert_eq!(
            make(2, Head::start("x").hash, START, &proposal, both.clone(), names),
            EntryError::WrongLink
        );
        assert_eq!(make(2, link, START - 1, &proposal, both.clone(), names), EntryError::WrongTime);
        let expired = EntryError::Refused(Refused::Expired { at: LATER });
        assert_eq!(make(2, link, LATER, &proposal, both.clone(), names), expired);
        assert_eq!(
            make(2, link, START, &proposal, both.clone(), state.names().root()),
            EntryError::WrongNames
        );
        let alone = EntryError::Refused(Refused::QuorumNotMet { missing: vec!["s1".into(), "s2".into()] });
        assert_eq!(make(2, link, START, &proposal, approvals(&proposal, &[0]), names), alone);
        let stranger = Refused::NotASigner { key: identity(9).public_key() };
        let with = approvals(&proposal, &[0, 1, 9]);
        assert_eq!(make(2, link, START, &proposal, with, names), EntryError::Refused(stranger));
        let mut forged = both.clone();
        forged[1].signature = forged[0].signature;
        let bad = EntryError::BadApproval(SignatureError::BadSignature);
        assert_eq!(make(2, link, START, &proposal, forged, names), bad);
        let elsewhere = [both[0], approvals(&bind(1, "b", 0, "x"), &[1])[0]].to_vec();
        assert_eq!(make(2, link, START, &proposal, elsewhere, names), bad);
        let short = proposal.approve(&identity(2), START).verify().unwrap().recorded();
        let with = [both.clone(), vec![short]].concat();
        let expired = EntryError::Refused(Refused::Expired { at: START });
        assert_eq!(make(2, link, START, &proposal, with, names), expired);
        assert!(state.clone().apply(entry.encoded(), Signatures::Check).is_ok());
    }
}
