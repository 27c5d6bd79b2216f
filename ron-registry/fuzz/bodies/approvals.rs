//! What the fuzzer and the replay of its corpus both run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use ron_core::net::Identity;
use ron_registry::{
    Action, Approval, Content, Limits, Policy, Proposal, ProposalId, Signer,
    logic::{
        quorum::{Quorum, Standing},
        state::State,
    },
};

const ORIGIN: &str = "example.com/registry";
const START: u64 = 1_000_000;
const LIMITS: Limits =
    Limits { pending_max: 6, pending_bytes_max: 4000, lifetime_ms_max: 100_000, recent_max: 4 };

/// Three of the five decide; the last two are strangers.
fn identity(seed: u8) -> Identity {
    Identity::from_seed(&[seed % 5 + 1; 32])
}

fn policy(needed: u8) -> Policy {
    let signer = |seed: u8| Signer {
        name: format!("s{seed}"),
        key: identity(seed).public_key(),
        // The third stops counting after a while.
        expires: (seed == 2).then_some(START + 20_000),
    };
    Policy::of(u32::from(needed), (0..3).map(signer).collect()).expect("a policy")
}

/// A log of two of three, and what is said to it: each step is a byte of what, one of whom, one of how long, and for raw
/// approvals as many bytes. Whatever they send, doubled, late, for other epochs or by strangers: nothing is committed
/// without two of the signers, each with an approval of this very proposal that holds and has not expired; nothing is
/// committed twice; and what waits is bounded.
pub(crate) fn approvals(mut script: &[u8]) {
    let mut state = State::new(ORIGIN);
    let founded = Action::Found { policy: Arc::new(policy(2)) };
    let founded = Proposal::new(ORIGIN, 0, u64::MAX, founded, None).expect("a beginning");
    state.commit(founded, Vec::new(), START).expect("the first");
    let (mut quorum, mut now) = (Quorum::new(LIMITS), START);
    let mut committed: BTreeMap<u64, ProposalId> = BTreeMap::new();
    let mut drafts: Vec<Proposal> = Vec::new();
    let mut last: Option<Approval> = None;
    while let [what, whom, how, rest @ ..] = script {
        script = rest;
        let proposal = (!drafts.is_empty()).then(|| drafts[usize::from(whom >> 4) % drafts.len()].clone());
        match what % 8 {
            0 if drafts.len() < 16 => {
                let epoch = state.epoch() + u64::from(how & 3 == 3);
                let action = match whom % 8 {
                    7 => Action::Rotate { policy: Arc::new(policy(2)) },
                    name => {
                        let name: ron_registry::Name = format!("n/{}", name % 3).parse().expect("a name");
                        let prior = state.names().get(&name).map_or(0, |latest| latest.version);
                        Action::Bind { name, content: Content::Payload(Bytes::from(vec![*how; 100])), prior }
                    }
                };
                let expires = now + u64::from(*how) * 500;
                drafts.extend(Proposal::new(ORIGIN, epoch, expires, action, None));
            }
            1 => {
                if let Some(proposal) = proposal {
                    let _ = quorum.on_proposal(&state, proposal, now);
                }
            }
            2 | 3 => {
                if let Some(proposal) = proposal {
                    last = Some(proposal.approve(&identity(*whom), now + u64::from(*how) * 100));
                }
            }
            4 => now += u64::from(*how) * 100,
            5 => drop(quorum.on_tick(now)),
            6 => {
                // The last approval, as it is or with some bytes of it changed.
                let mut bytes = last.as_ref().map(Approval::encode).unwrap_or_default();
                let changes = script.len().min(usize::from(how % 4) * 2);
                let (change, after) = script.split_at(changes);
                script = after;
                for pair in change.chunks_exact(2) {
                    let len = bytes.len().max(1);
                    bytes.get_mut(usize::from(pair[0]) % len).into_iter().for_each(|byte| *byte = pair[1]);
                }
                last = Approval::decode(&bytes).ok();
            }
            _ => {
                let (raw, after) = script.split_at(script.len().min(usize::from(*how)));
                script = after;
                if let Ok(approval) = Approval::decode(raw) {
                    assert_eq!(approval.encode(), raw);
                    last = Some(approval);
                }
            }
        }
        // Whatever was said last is said again and again.
        let verified = last.clone().and_then(|approval| approval.verify().ok());
        if let Some(approval) = verified {
            let id = approval.statement().proposal;
            if quorum.on_approval(&state, &approval, now) == Ok(Standing::Complete) {
                let Ok((proposal, approvals)) = quorum.take(&state, &id, now) else { continue };
                match state.commit(proposal.clone(), approvals.clone(), now) {
                    Ok(entry) => {
                        let holds = |at: &&ron_registry::RecordedApproval| {
                            at.expires > entry.time() && at.verify(entry.proposal()).is_ok()
                        };
                        let keys: BTreeSet<_> =
                            entry.approvals().iter().filter(holds).map(|at| at.key).collect();
                        let lasts = |seed: &u8| *seed < 2 || entry.time() < START + 20_000;
                        let known =
                            (0..3).filter(lasts).filter(|seed| keys.contains(&identity(*seed).public_key()));
                        assert!(known.count() >= 2, "{entry:?}");
                        assert!(entry.time() < entry.proposal().expires());
                        let id = entry.proposal().id();
                        assert!(committed.values().all(|other| *other != id), "twice");
                        assert!(committed.insert(entry.version(), id).is_none());
                        quorum.on_committed(&state, &entry);
                    }
                    Err(_) => assert!(quorum.put_back(proposal, &approvals), "it was in there before"),
                }
            }
        }
        assert!(quorum.len() <= LIMITS.pending_max);
        assert_eq!(state.head().version, committed.len() as u64 + 1);
    }
}
