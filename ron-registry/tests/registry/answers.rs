//! What is told: who is missing, what waits no longer, and what an answer proves.

use std::{sync::Arc, time::Duration};

use ron_registry::{
    Checkpoint, KeyKind, LogTrust, Name, NameAnswerError, NoteSigner, Outcome, Policy, ProofFile, Proposal,
    Refused, Registry, RegistryError, Signer, TreeHash,
    logic::tiles::{Prover, Tree},
    store::MemoryStore,
};

use super::world::{DAY, LOG_KEY, ORIGIN, approvals, bind, draft, founded, host, signer, soon, start};

fn missing(outcome: Outcome) -> Vec<String> {
    match outcome {
        Outcome::Pending { missing, .. } => missing,
        committed => panic!("{committed:?}"),
    }
}

/// Who fixed a head has lost it with the next entry, whatever that is about. Such a proposal used to be listed for as long
/// as it was valid, and signers who approved it were told that it waits for others.
#[tokio::test(start_paused = true)]
async fn a_proposal_whose_head_is_gone_does_not_wait() {
    let host = host();
    let (registry, _) = founded(&host, 2, 3).await;
    let action = draft(&registry, "a", "x").action().clone();
    let (origin, epoch) = (registry.origin().to_owned(), registry.status().epoch);
    let expires = draft(&registry, "a", "x").expires();
    let fixed = Proposal::new(&origin, epoch, expires, action, Some(registry.head())).unwrap();
    let free = draft(&registry, "c", "x");
    assert_eq!(missing(registry.propose(fixed.clone(), soon()).await.unwrap()), ["s0", "s1", "s2"]);
    registry.propose(free.clone(), soon()).await.unwrap();
    bind(&registry, "b", "x", &[0, 1]).await.unwrap();
    let waits: Vec<_> = registry.pending(soon()).await.unwrap().iter().map(|one| one.proposal.id()).collect();
    assert_eq!(waits, [free.id()], "and what fixed nothing still does");
    let approval = approvals(&fixed, &[0]).remove(0);
    let refused = registry.approve(approval, soon()).await.unwrap_err();
    assert_eq!(refused, RegistryError::Refused(Refused::UnknownProposal));
    let refused = registry.propose(fixed, soon()).await.unwrap_err();
    assert_eq!(refused, RegistryError::ChainMismatch { head: registry.head() });
    host.shutdown().await;
}

/// Who is not listened to any more is not waited for either.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_signer_who_has_expired() {
    let host = host();
    let registry = start(Arc::new(MemoryStore::new()), &host).await;
    let soon_over = draft_time(&registry) + 60_000;
    let of = |seed: u8| Signer {
        name: format!("s{seed}"),
        key: signer(seed).public_key(),
        expires: (seed > 0).then_some(soon_over),
    };
    registry.found(Policy::of(2, (0..3).map(of).collect()).unwrap(), soon()).await.unwrap();
    let proposal = draft(&registry, "a", "x");
    assert_eq!(missing(registry.propose(proposal.clone(), soon()).await.unwrap()), ["s0", "s1", "s2"]);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(missing(registry.propose(proposal.clone(), soon()).await.unwrap()), ["s0"]);
    let last = approvals(&proposal, &[0]).remove(0);
    let outcome = registry.approve(last, soon()).await.unwrap();
    assert!(missing(outcome).is_empty(), "nobody is left, and it is still not decided");
    assert_eq!(registry.head().version, 1);
    host.shutdown().await;
}

/// The time that the log goes by.
fn draft_time(registry: &Registry) -> u64 {
    draft(registry, "time", "x").expires() - DAY.as_millis() as u64
}

/// An answer about a name is of the last entry, and that says itself which one it is.
#[tokio::test(start_paused = true)]
async fn an_entry_in_another_place_proves_nothing() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    bind(&registry, "a", "x", &[0]).await.unwrap();
    let name: Name = "a".parse().unwrap();
    let trust = LogTrust::new(registry.log_key());
    let mut answer = registry.name(&name).unwrap();
    answer.verify(&name, &trust).unwrap();
    // The log signs for the same entry once more.
    let mut tree = Tree::new();
    let entries = registry.entries(1, 2, soon()).await.unwrap();
    for entry in [&entries[0], &entries[1], &entries[1]] {
        tree.push(TreeHash::of_leaf(entry));
    }
    let signer = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).unwrap();
    let checkpoint = Checkpoint { origin: ORIGIN.to_owned(), size: 3, root: tree.root() };
    let path = Prover::new(&tree, 3).inclusion(2).unwrap();
    answer.inclusion =
        ProofFile { index: 2, path, checkpoint: checkpoint.sign(&signer).unwrap(), extra: None };
    assert_eq!(answer.verify(&name, &trust), Err(NameAnswerError::Misplaced { said: 2, is: 3 }));
    assert_eq!(registry.entry(0, soon()).await, Err(RegistryError::NotFound { head: 2 }), "never was one");
    assert_eq!(registry.entries(0, 9, soon()).await.unwrap(), entries);
    host.shutdown().await;
}
