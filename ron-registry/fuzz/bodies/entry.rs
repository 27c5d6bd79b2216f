//! What the fuzzer and the replay of its corpus both run.

use bytes::Bytes;
use ron_registry::{
    Entry, Policy, Proposal,
    logic::{
        snapshot::Snapshot,
        state::{Signatures, State},
    },
};

/// The log that the corpus is of.
const ORIGIN: &str = "example.com/registry";

/// The first byte says what the rest is read as: an entry, a proposal, a policy, a whole log, a snapshot. What can be read
/// has one spelling, and is made again with the same bytes from what it says; a log that refuses an entry stays as it was.
pub(crate) fn entry(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    match kind {
        0 => {
            if let Ok(entry) = Entry::decode(&bytes) {
                assert!(is_deterministic(&bytes));
                same_proposal(entry.proposal());
                assert!(entry.approvals().is_sorted_by(|a, b| a.key < b.key));
            }
        }
        1 => {
            if let Ok(proposal) = Proposal::decode(&bytes) {
                assert!(is_deterministic(&bytes));
                same_proposal(&proposal);
            }
        }
        2 => {
            if let Ok(policy) = Policy::decode(&bytes) {
                assert!(is_deterministic(&bytes));
                same_policy(&policy);
            }
        }
        3 => log(rest),
        _ => {
            let restored =
                Snapshot::decode([&bytes]).and_then(|snapshot| Ok((snapshot.restore()?, snapshot)));
            if let Ok(((state, tree, entry), snapshot)) = restored {
                let again = Snapshot::decode(&snapshot.encode()).and_then(|snapshot| snapshot.restore());
                let (state_again, tree_again, entry_again) = again.expect("it was one");
                assert_eq!(state.head(), state_again.head());
                assert_eq!((tree.root(), entry), (tree_again.root(), entry_again));
            }
        }
    }
}

/// Entries behind each other, each behind its length in two bytes.
fn log(mut rest: &[u8]) {
    let mut state = State::new(ORIGIN);
    let (mut head, mut taken) = (state.head(), Vec::new());
    while let Some((len, after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(usize::from(u16::from_be_bytes(*len)).min(after.len()));
        rest = after;
        let bytes = Bytes::copy_from_slice(bytes);
        if let Ok(entry) = state.apply(&bytes, Signatures::Check) {
            head = head.next(&bytes);
            assert_eq!(entry.names(), state.names().root());
            taken.push(bytes);
        }
        assert_eq!(state.head(), head);
    }
    // The same log without what was refused is the same log.
    let mut again = State::new(ORIGIN);
    for bytes in &taken {
        again.apply(bytes, Signatures::Checked).expect("it was taken before");
    }
    assert_eq!((again.head(), again.names().root()), (head, state.names().root()));
}

fn same_proposal(proposal: &Proposal) {
    let (action, head) = (proposal.action().clone(), proposal.expect_head());
    let again = Proposal::new(proposal.origin(), proposal.epoch(), proposal.expires(), action, head);
    let again = again.expect("it was one");
    assert_eq!((again.encoded(), again.id()), (proposal.encoded(), proposal.id()));
    if let ron_registry::Action::Found { policy } | ron_registry::Action::Rotate { policy } =
        proposal.action()
    {
        same_policy(policy);
    }
}

fn same_policy(policy: &Policy) {
    let (signers, groups, rules) =
        (policy.signers().to_vec(), policy.groups().to_vec(), policy.rules().to_vec());
    assert_eq!(Policy::new(signers, groups, rules).expect("it was one").encoded(), policy.encoded());
}

/// Whether these bytes are one item of deterministic CBOR (RFC 8949, 4.2.1), found out without the code under test.
fn is_deterministic(bytes: &[u8]) -> bool {
    item(bytes).is_some_and(<[u8]>::is_empty)
}

/// What is behind the first item.
fn item(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_first()?;
    let (count, mut rest) = match head & 31 {
        short @ 0..=23 => (u64::from(short), rest),
        long @ 24..=27 => {
            let (number, rest) = rest.split_at_checked(1 << (long - 24))?;
            let number = number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let least = [24, 1 << 8, 1 << 16, 1 << 32][usize::from(long - 24)];
            (number >= least).then_some((number, rest))?
        }
        _ => return None,
    };
    match head >> 5 {
        0 | 1 => Some(rest),
        2 | 3 => rest.get(usize::try_from(count).ok()?..),
        4 => {
            for _ in 0..count {
                rest = item(rest)?;
            }
            Some(rest)
        }
        5 => {
            let mut before: Option<&[u8]> = None;
            for _ in 0..count {
                let value = item(rest)?;
                let key = &rest[..rest.len() - value.len()];
                if before.is_some_and(|before| before >= key) {
                    return None;
                }
                (before, rest) = (Some(key), item(value)?);
            }
            Some(rest)
        }
        7 if (20..=22).contains(&count) => Some(rest),
        _ => None,
    }
}
