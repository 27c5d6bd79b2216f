//! Proposing, approving, committing, and reading what was committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{ContentId, Deadline, Metrics, TaskSpec, prometheus_client::registry::Registry as Prometheus};
use ron_registry::{
    Action, Checkpoint, LogTrust, Outcome, Proposal, Refused, Registry, RegistryError, ReloadSource,
    Settings, Tile,
    store::{LogStore, MemoryStore, StoreError},
    verify_consistency,
};

use super::world::{
    DAY, LOG_KEY, ORIGIN, Odd, Oddity, approvals, bind, bind_many, clock, draft, founded, host, journal,
    measured, policy, scraped, signer, soon, start, start_with,
};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");

fn missing(outcome: Outcome) -> Vec<String> {
    match outcome {
        Outcome::Pending { missing, .. } => missing,
        committed => panic!("{committed:?}"),
    }
}

/// What a scrape sees of one counter.
fn line_of(registry: &Prometheus, begin: &str) -> String {
    scraped(registry).lines().find(|found| found.starts_with(begin)).unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn two_of_three_decide_and_anybody_can_check() {
    let host = host();
    let (registry, _) = founded(&host, 2, 3).await;
    let proposal = draft(&registry, "tools/a", "hello");
    assert_eq!(missing(registry.propose(proposal.clone(), soon()).await.unwrap()), ["s0", "s1", "s2"]);
    let [first, second] = [0, 2].map(|seed| proposal.approve(&signer(seed), proposal.expires()));
    assert_eq!(missing(registry.approve(first.clone(), soon()).await.unwrap()), ["s1", "s2"]);
    let pending = registry.pending(soon()).await.unwrap();
    assert_eq!((pending.len(), &pending[0].missing[..]), (1, &["s1".to_owned(), "s2".to_owned()][..]));
    assert_eq!(missing(registry.approve(first.clone(), soon()).await.unwrap()), ["s1", "s2"], "once is once");
    let Outcome::Committed(receipt) = registry.approve(second.clone(), soon()).await.unwrap() else {
        panic!("two of three have approved")
    };
    assert_eq!((receipt.version, receipt.proposal), (2, proposal.id()));
    // The same again, whichever way, is the same.
    for again in [registry.approve(second, soon()).await, registry.propose(proposal.clone(), soon()).await] {
        assert_eq!(again, Ok(Outcome::Committed(receipt.clone())));
    }
    assert!(registry.pending(soon()).await.unwrap().is_empty());

    // Everything below is checked with nothing but the log's key.
    let trust = LogTrust::new(registry.log_key());
    assert_eq!(trust.open(&receipt.checkpoint).unwrap().size, 2, "the receipt is covered by a signed head");
    let entry = registry.entry(2, soon()).await.unwrap();
    registry.prove(2).unwrap().verify(entry.encoded(), &trust).unwrap();
    let name = "tools/a".parse().unwrap();
    let latest = registry.name(&name).unwrap().verify(&name, &trust).unwrap().unwrap();
    assert_eq!((latest.version, latest.content), (2, Some(ContentId::of(b"hello"))));
    let absent = "tools/b".parse().unwrap();
    assert_eq!(registry.name(&absent).unwrap().verify(&absent, &trust), Ok(None));
    assert!(registry.name(&absent).unwrap().verify(&name, &trust).is_err());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_told_why() {
    let host = host();
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock()).metrics(metrics);
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    let early = draft(&registry, "a", "x");
    assert_eq!(
        registry.propose(early, soon()).await,
        Err(RegistryError::Refused(Refused::Beginning { founded: false }))
    );
    let receipt = registry.found(policy(1, 2), soon()).await.unwrap();
    assert_eq!(registry.found(policy(1, 2), soon()).await, Ok(receipt), "the same beginning again");
    assert!(registry.found(policy(2, 2), soon()).await.is_err());
    let found = registry.draft(Action::Found { policy: Arc::new(policy(1, 1)) }, DAY).unwrap();
    let refused = registry.propose(found, soon()).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Form(_)), "a beginning is not proposed: {refused:?}");

    let fixed = |head| {
        let action = draft(&registry, "a", "x").action().clone();
        Proposal::new(ORIGIN, 1, draft(&registry, "a", "x").expires(), action, Some(head)).unwrap()
    };
    let stale = fixed(registry.head());
    bind(&registry, "b", "y", &[0]).await.unwrap();
    let head = registry.head();
    assert_eq!(registry.propose(stale, soon()).await, Err(RegistryError::ChainMismatch { head }));
    assert_eq!(
        line_of(&scrape, "ron_registry_commit_cas_fail_total"),
        "ron_registry_commit_cas_fail_total 1"
    );
    let fresh = fixed(head);
    let with = approvals(&fresh, &[0]);
    assert!(matches!(registry.submit(fresh, with, soon()).await, Ok(Outcome::Committed(_))));

    let proposal = draft(&registry, "c", "z");
    let stranger = proposal.approve(&signer(7), proposal.expires());
    registry.propose(proposal.clone(), soon()).await.unwrap();
    let refused = registry.approve(stranger, soon()).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(Refused::NotASigner { .. })), "{refused:?}");
    let late = proposal.approve(&signer(0), 5);
    assert_eq!(registry.approve(late, soon()).await, Err(RegistryError::Refused(Refused::Expired { at: 5 })));
    let mut bytes = proposal.approve(&signer(0), proposal.expires()).encode();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let forged = ron_registry::Approval::decode(&bytes).unwrap();
    assert!(matches!(registry.approve(forged, soon()).await, Err(RegistryError::BadApproval(_))));
    let elsewhere = Proposal::new("other", 1, u64::MAX, proposal.action().clone(), None).unwrap();
    let elsewhere = elsewhere.approve(&signer(0), u64::MAX);
    assert!(matches!(
        registry.approve(elsewhere, soon()).await,
        Err(RegistryError::Refused(Refused::OtherLog { .. }))
    ));
    for reason in ["not_a_signer", "expired", "signature", "other_log"] {
        let line = format!("ron_registry_approval_rejects_total{{reason=\"{reason}\"}}");
        assert_eq!(line_of(&scrape, &line), format!("{line} 1"));
    }
    assert_eq!(line_of(&scrape, "ron_registry_pending_proposals"), "ron_registry_pending_proposals 1.0");
    assert_eq!(line_of(&scrape, "ron_registry_commits_total"), "ron_registry_commits_total 3");
    assert_eq!(line_of(&scrape, "ron_registry_head_version"), "ron_registry_head_version 3.0");
    assert_eq!(line_of(&scrape, "ron_registry_commit_seconds_count"), "ron_registry_commit_seconds_count 3");
    assert_eq!(registry.entry(9, soon()).await, Err(RegistryError::NotFound { head: 3 }));
    assert_eq!(registry.prove(9).unwrap_err(), RegistryError::NotFound { head: 3 });
    assert_eq!(registry.prove_consistency(1, 9), Err(RegistryError::NotFound { head: 3 }));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_pending_proposal_expires() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let action = draft(&registry, "a", "x").action().clone();
    let soon_over = registry.draft(action, Duration::from_secs(60)).unwrap();
    registry.propose(soon_over.clone(), soon()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(registry.pending(soon()).await.unwrap().is_empty());
    let late = soon_over.approve(&signer(0), u64::MAX);
    assert_eq!(registry.approve(late, soon()).await, Err(RegistryError::Refused(Refused::UnknownProposal)));
    let settings = (*registry.settings()).clone();
    let pending = ron_registry::Limits { pending_max: 1, lifetime_ms_max: 1000, ..settings.pending };
    registry.reload(Settings { pending, ..settings }).unwrap();
    let long = draft(&registry, "a", "x");
    assert!(matches!(
        registry.propose(long, soon()).await,
        Err(RegistryError::Refused(Refused::TooLong { limit_ms: 1000 }))
    ));
    host.shutdown().await;
}

/// A clock that leaps, after a sleep of the machine perhaps, finds the proposal still waiting: the approval that would have
/// been enough comes too late all the same.
#[tokio::test(start_paused = true)]
async fn an_expired_proposal_takes_no_approval_and_commits_nothing() {
    let host = host();
    let time = Arc::new(AtomicU64::new(clock()()));
    let at = Arc::clone(&time);
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(move || at.load(Ordering::Relaxed));
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    registry.found(policy(2, 2), soon()).await.unwrap();
    let action = draft(&registry, "a", "x").action().clone();
    let proposal = registry.draft(action, Duration::from_secs(60)).unwrap();
    let at = proposal.expires();
    let first = proposal.approve(&signer(0), u64::MAX);
    let waits = registry.submit(proposal.clone(), vec![first], soon()).await.unwrap();
    assert!(matches!(waits, Outcome::Pending { .. }), "{waits:?}");
    let head = registry.head();
    time.store(at, Ordering::Relaxed);
    let expired = Err(RegistryError::Refused(Refused::Expired { at }));
    let last = proposal.approve(&signer(1), u64::MAX);
    assert_eq!(registry.approve(last.clone(), soon()).await, expired);
    let all = vec![proposal.approve(&signer(0), u64::MAX), last.clone()];
    assert_eq!(registry.submit(proposal, all, soon()).await, expired);
    // Once its time was noticed it is as if it had never been.
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(registry.pending(soon()).await.unwrap().is_empty());
    let unknown = Err(RegistryError::Refused(Refused::UnknownProposal));
    assert_eq!(registry.approve(last, soon()).await, unknown);
    assert_eq!(registry.head(), head, "nothing was committed");
    host.shutdown().await;
}

/// A batch of independent commits is one sync, and each caller has a receipt of its own.
#[tokio::test(start_paused = true)]
async fn many_at_once_are_few_blocks() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    store.be(Oddity::Slow(Duration::from_millis(10)));
    let before = store.appends.load(Ordering::Relaxed);
    let bound = bind_many(&host, &registry, 0..400).await;
    let mut versions: Vec<_> = bound.into_iter().map(|bound| bound.unwrap().version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..402).collect::<Vec<_>>());
    let blocks = store.appends.load(Ordering::Relaxed) - before;
    assert!(blocks <= 4, "{blocks} blocks");

    let trust = LogTrust::new(registry.log_key());
    for version in [1, 2, 255, 256, 257, 401] {
        let entry = registry.entry(version, soon()).await.unwrap();
        registry.prove(version).unwrap().verify(entry.encoded(), &trust).unwrap();
    }
    // The tiles and bundles that others fetch.
    let full: Tile = "tile/entries/000".parse().unwrap();
    let bundle = registry.tile(full, soon()).await.unwrap();
    let entries = ron_registry::logic::tiles::read_bundle(&bundle, 256).unwrap();
    let leaves = registry.tile("tile/0/000".parse().unwrap(), soon()).await.unwrap();
    for (entry, hash) in entries.iter().zip(leaves.chunks(32)) {
        assert_eq!(ron_registry::TreeHash::of_leaf(entry).as_bytes(), hash);
    }
    let beyond = registry.tile("tile/0/001.p/146".parse().unwrap(), soon()).await;
    assert_eq!(beyond, Err(RegistryError::NotFound { head: 401 }));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_rotation_takes_effect_at_once() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let waits = draft(&registry, "a", "x");
    registry.propose(waits.clone(), soon()).await.unwrap();
    let new = ron_registry::Policy::of(
        1,
        vec![ron_registry::Signer { name: "new".into(), key: signer(5).public_key(), expires: None }],
    );
    let rotate = registry.draft(Action::Rotate { policy: Arc::new(new.unwrap()) }, DAY).unwrap();
    let with = approvals(&rotate, &[0]);
    assert_eq!(missing(registry.submit(rotate.clone(), with, soon()).await.unwrap()), ["new"]);
    let last = rotate.approve(&signer(5), rotate.expires());
    assert!(matches!(registry.approve(last, soon()).await, Ok(Outcome::Committed(_))));
    let (epoch, policy) = registry.policy().unwrap();
    assert_eq!(epoch, 2);
    let trust = LogTrust::new(registry.log_key());
    let proven = registry.policy_proof().unwrap().verify_policy(&trust).unwrap().unwrap();
    assert_eq!((proven.version, proven.content), (2, Some(ContentId::of(policy.encoded()))));
    let old = waits.approve(&signer(0), waits.expires());
    assert_eq!(registry.approve(old, soon()).await, Err(RegistryError::Refused(Refused::UnknownProposal)));
    assert!(bind(&registry, "a", "x", &[5]).await.is_ok());
    host.shutdown().await;
}

/// Two committers on one store: no version is given twice, what does not conflict is decided again, what does is told.
#[tokio::test(start_paused = true)]
async fn two_committers_share_a_store() {
    let host = host();
    let store = Arc::new(MemoryStore::new());
    let first = start(store.clone(), &host).await;
    first.found(policy(1, 1), soon()).await.unwrap();
    let second = start(store.clone(), &host).await;
    assert_eq!(second.head(), first.head());
    for round in 0..10 {
        let (one, two) = (format!("one/{round}"), format!("two/{round}"));
        let (a, b) = tokio::join!(bind(&first, &one, "x", &[0]), bind(&second, &two, "y", &[0]));
        assert_ne!(a.unwrap().version, b.unwrap().version);
    }
    // The same name with the same prior: one of them.
    let (a, b) = tokio::join!(bind(&first, "same", "x", &[0]), bind(&second, "same", "y", &[0]));
    let lost = match (a, b) {
        (Ok(_), Err(lost)) | (Err(lost), Ok(_)) => lost,
        other => panic!("{other:?}"),
    };
    assert!(matches!(lost, RegistryError::Refused(Refused::NameMoved { .. })), "{lost:?}");
    // The same proposal at both: once, and both say where.
    let proposal = draft(&first, "twice", "x");
    let with = || approvals(&proposal, &[0]);
    let a = first.submit(proposal.clone(), with(), soon()).await.unwrap();
    let b = second.submit(proposal.clone(), with(), soon()).await.unwrap();
    assert_eq!(a, b);
    let tail = store.tail(soon()).await.unwrap();
    assert_eq!(tail.version, 1 + 20 + 1 + 1);
    host.shutdown().await;
    let host = self::host();
    assert_eq!(start(store, &host).await.head().version, tail.version);
    host.shutdown().await;
}

/// As above with a store that is far away, so that everything happens between any two questions.
#[tokio::test(start_paused = true)]
async fn two_committers_share_a_store_that_is_far_away() {
    let host = host();
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let first = start(store.clone(), &host).await;
    first.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::Far(Duration::from_millis(7)));
    let second = start(store.clone(), &host).await;
    for round in 0..20 {
        let one = |at| format!("one/{round}/{at}");
        let two = |at| format!("two/{round}/{at}");
        let (names, others) = ([one(0), one(1), one(2)], [two(0), two(1), two(2)]);
        let (a, b, c, d, e, f, third) = tokio::join!(
            bind(&first, &names[0], "x", &[0]),
            bind(&first, &names[1], "x", &[0]),
            bind(&first, &names[2], "x", &[0]),
            bind(&second, &others[0], "x", &[0]),
            bind(&second, &others[1], "x", &[0]),
            bind(&second, &others[2], "x", &[0]),
            // One that opens the log meanwhile.
            start(store.clone(), &host),
        );
        let mut versions = [a, b, c, d, e, f].map(|bound| bound.unwrap().version);
        versions.sort_unstable();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
        third.shutdown().await;
    }
    // Who appends nothing sees what the other has, a little later.
    bind(&first, "alone", "x", &[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((second.head(), second.head().version), (first.head(), 1 + 120 + 1));
    assert!(first.status().ready.writes, "{:?}", first.status());
    host.shutdown().await;
}

/// A head is told when it is one: who is refused because of a block that flies is told when it has landed.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_of_a_head_that_is_not_durable() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    let fixed = |name: &str| {
        let action = draft(&registry, name, "x").action().clone();
        let (origin, head) = (registry.origin().to_owned(), registry.head());
        let expires = draft(&registry, name, "x").expires();
        ron_registry::Proposal::new(&origin, 1, expires, action, Some(head)).unwrap()
    };
    for round in 0..2 {
        let before = registry.head();
        store.be(Oddity::Slow(Duration::from_millis(300)));
        let proposal = fixed(&format!("fixed/{round}"));
        let with = approvals(&proposal, &[0]);
        let name = format!("first/{round}");
        let late = async {
            // Behind the one that flies.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begun = ron_core::now();
            let told = registry.submit(proposal.clone(), with, soon()).await;
            assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
            told
        };
        let (_, told) = tokio::join!(bind(&registry, &name, "x", &[0]), late);
        let Err(RegistryError::ChainMismatch { head }) = told else { panic!("{told:?}") };
        assert_eq!((head, head.version), (registry.head(), before.version + 1));
    }
    host.shutdown().await;
}

/// Of many who want one head all but one lose. Each of them used to be verified before anybody looked at the head, which
/// left the signatures of losers as the limit of compare-and-set.
#[tokio::test(start_paused = true)]
async fn who_has_lost_the_head_is_told_before_anything_is_verified() {
    let host = host();
    let (registry, store, scrape) = measured(&host).await;
    let fixed = |name: &str, head| {
        let plain = draft(&registry, name, "x");
        Proposal::new(ORIGIN, 1, plain.expires(), plain.action().clone(), Some(head)).unwrap()
    };
    // Approvals that would be refused if anybody looked.
    let forged = |proposal: &Proposal| {
        let mut bytes = approvals(proposal, &[0])[0].encode();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        vec![ron_registry::Approval::decode(&bytes).unwrap()]
    };
    let begin = registry.head();
    let won = fixed("won", begin);
    let receipt = registry.submit(won.clone(), approvals(&won, &[0]), soon()).await.unwrap();
    let (lost, head) = (fixed("lost", begin), registry.head());
    let told = registry.submit(lost.clone(), forged(&lost), soon()).await;
    assert_eq!(told, Err(RegistryError::ChainMismatch { head }));
    // The winner again is still the winner, also when its name has moved on.
    bind(&registry, "won", "y", &[0]).await.unwrap();
    assert_eq!(registry.submit(won.clone(), forged(&won), soon()).await, Ok(receipt));

    // The same while what it lost to is on its way; nobody is told of a head that is none yet.
    let before = registry.head();
    store.be(Oddity::Slow(Duration::from_millis(300)));
    let (first, lost) = (fixed("first", before), fixed("lost", before));
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = ron_core::now();
        let told = registry.submit(lost.clone(), forged(&lost), soon()).await;
        assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
        let again = registry.submit(first.clone(), forged(&first), soon()).await;
        (told, again)
    };
    let (committed, (told, again)) =
        tokio::join!(registry.submit(first.clone(), approvals(&first, &[0]), soon()), late);
    assert_eq!(told, Err(RegistryError::ChainMismatch { head: registry.head() }));
    assert_eq!(committed, again);

    // What comes to nothing overtakes nobody for long.
    let before = registry.head();
    store.be(Oddity::Fail(StoreError::NoSpace));
    bind(&registry, "nothing", "x", &[0]).await.unwrap_err();
    assert_eq!(registry.head(), before);
    store.be(Oddity::None);
    let (last, bad) = (fixed("last", before), fixed("bad", before));
    let refused = registry.submit(bad.clone(), forged(&bad), soon()).await;
    assert!(matches!(refused, Err(RegistryError::BadApproval(_))), "{refused:?}");
    let told = registry.submit(last.clone(), approvals(&last, &[0]), soon()).await;
    assert!(matches!(told, Ok(Outcome::Committed(_))), "{told:?}");
    let line = "ron_registry_approval_rejects_total{reason=\"signature\"}";
    assert_eq!(line_of(&scrape, line), format!("{line} 1"));
    assert_eq!(
        line_of(&scrape, "ron_registry_commit_cas_fail_total"),
        "ron_registry_commit_cas_fail_total 2"
    );
    host.shutdown().await;
}

/// Whatever was committed is known again after a restart, also when something else is decided about the name since.
#[tokio::test(start_paused = true)]
async fn repeating_is_harmless_across_a_restart() {
    let store: Arc<dyn LogStore> = Arc::new(MemoryStore::new());
    let host = host();
    let registry = start(store.clone(), &host).await;
    registry.found(policy(1, 2), soon()).await.unwrap();
    let proposal = draft(&registry, "a", "x");
    let receipt = registry.submit(proposal.clone(), approvals(&proposal, &[0]), soon()).await.unwrap();
    bind(&registry, "a", "y", &[0]).await.unwrap();
    host.shutdown().await;
    let host = self::host();
    let registry = start(store, &host).await;
    assert_eq!(registry.propose(proposal.clone(), soon()).await, Ok(receipt.clone()));
    let other = proposal.approve(&signer(1), proposal.expires());
    assert_eq!(registry.approve(other, soon()).await, Ok(receipt));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_settled() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    store.be(Oddity::Doubt);
    assert_eq!(bind(&registry, "a", "x", &[0]).await.unwrap().version, 2);
    assert_eq!(registry.head().version, 2);
    host.shutdown().await;
}

/// A store that is away: callers are told in time, readers go on, and it is found again.
#[tokio::test(start_paused = true)]
async fn a_store_that_stalls_is_said_and_found_again() {
    let host = host();
    let (registry, store, scrape) = measured(&host).await;
    store.be(Oddity::Slow(Duration::from_secs(3600)));
    let proposal = draft(&registry, "a", "x");
    let call = registry.submit(proposal.clone(), approvals(&proposal, &[0]), Deadline::after(DAY));
    let watch = async {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let status = registry.status();
        assert!(!status.ready.writes && status.ready.reads, "{status:?}");
        assert!(status.ready.closed().any(|gate| gate.name == "registry.commit"));
    };
    let (told, ()) = tokio::join!(call, watch);
    assert_eq!(told, Err(RegistryError::Timeout { op: "commit" }), "at the timeout of the store");
    assert!(registry.entry(1, soon()).await.is_ok(), "readers go on");
    // While nobody knows where the log ends nothing is decided.
    store.be(Oddity::Away);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = bind(&registry, "b", "x", &[0]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::StorageBusy { .. }), "{refused:?}");
    store.be(Oddity::None);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(registry.status().ready.writes);
    let late = "ron_registry_io_timeouts_total{op=\"commit\"}";
    assert_eq!(line_of(&scrape, late), format!("{late} 1"));
    let seek = "ron_registry_storage_backoff_total{op=\"seek\"}";
    assert_ne!(line_of(&scrape, seek), "");
    let append = "ron_registry_storage_backoff_total{op=\"append\"}";
    assert_eq!(line_of(&scrape, append), format!("{append} 1"));
    assert_ne!(line_of(&scrape, "ron_registry_backoff_retries_total{op=\"store\"}"), "");
    assert_ne!(line_of(&scrape, "ron_registry_storage_backoff_total{op=\"verify\"}"), "");
    // What was decided and could not be committed still has its approvals.
    let again = registry.propose(proposal, soon()).await.unwrap();
    assert!(matches!(again, Outcome::Committed(receipt) if receipt.version == 2));
    host.shutdown().await;
}

/// A store that is busy for a moment. Readers used to be refused at its first word, with an error that says to retry and
/// not when; now they are asked to only if it stays so, and are told the pause.
#[tokio::test(start_paused = true)]
async fn readers_get_over_a_store_that_is_busy_for_a_moment() {
    let host = host();
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    // The verifier reads as well, and is not what this is about.
    let settings = Settings { verify_interval: DAY, ..Settings::default() };
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock()).metrics(metrics);
    let registry = builder.start(store.clone(), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::BusyReads(2));
    assert_eq!(registry.entry(1, soon()).await.unwrap().version(), 1);
    let retries = "ron_registry_backoff_retries_total{op=\"read\"}";
    assert_eq!(line_of(&scrape, retries), format!("{retries} 2"));
    // Updates, and what content was bound as, read the same way.
    store.be(Oddity::BusyReads(2));
    assert_eq!(registry.updates(1).next().await.unwrap().unwrap().version, 1);
    bind(&registry, "a", "x", &[0]).await.unwrap();
    store.be(Oddity::BusyReads(2));
    assert_eq!(registry.versions_of(ContentId::of(b"x"), soon()).await.unwrap(), [2]);
    // Three tries are enough.
    store.be(Oddity::BusyReads(3));
    let busy = registry.entry(1, soon()).await.unwrap_err();
    assert!(matches!(busy, RegistryError::StorageBusy { .. }), "{busy:?}");
    assert_eq!(busy.retry_after(), Some(Duration::from_millis(1)));
    let backoff = "ron_registry_storage_backoff_total{op=\"read\"}";
    assert_eq!(line_of(&scrape, backoff), format!("{backoff} 1"));
    // What does not end is told in time.
    store.be(Oddity::Stuck);
    let late = registry.entry(1, Deadline::after(Duration::from_secs(1))).await.unwrap_err();
    assert!(matches!(late, RegistryError::Timeout { .. }), "{late:?}");
    let timeouts = "ron_registry_io_timeouts_total{op=\"read\"}";
    assert_eq!(line_of(&scrape, timeouts), format!("{timeouts} 1"));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_and_goes_on_when_there_is_room() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    store.be(Oddity::Fail(StoreError::NoSpace));
    let refused = bind(&registry, "a", "x", &[0]).await.unwrap_err();
    assert!(
        matches!(&refused, RegistryError::StorageBusy { message, .. } if message == "no space left"),
        "{refused:?}"
    );
    assert!(refused.is_retryable());
    assert!(!registry.status().ready.writes && registry.status().ready.reads);
    assert_eq!(registry.head().version, 1);
    store.be(Oddity::None);
    // Nobody sends writes to a node that says it takes none, so it asks by itself.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(registry.status().ready.writes);
    assert_eq!(bind(&registry, "b", "x", &[0]).await.unwrap().version, 2);
    assert!(registry.status().ready.writes);
    host.shutdown().await;
}

/// What comes with all its approvals and finds a store that takes nothing waits, but not more of it than may wait.
#[tokio::test(start_paused = true)]
async fn a_full_store_does_not_fill_the_memory() {
    let host = host();
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let mut settings = Settings::default();
    settings.pending.pending_max = 8;
    let registry = start_with(store.clone(), &host, settings).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::Fail(StoreError::NoSpace));
    for number in 0..40 {
        bind(&registry, &format!("n/{number}"), "x", &[0]).await.unwrap_err();
    }
    assert_eq!(registry.pending(soon()).await.unwrap().len(), 8);
    store.be(Oddity::None);
    for number in 0..40 {
        bind(&registry, &format!("n/{number}"), "x", &[0]).await.unwrap();
    }
    assert_eq!(registry.head().version, 41);
    host.shutdown().await;
}

/// Callers that are refused because of a block on its way, and do not wait for it, are not kept without end.
#[tokio::test(start_paused = true)]
async fn a_store_that_stalls_does_not_gather_callers() {
    let host = host();
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let settings = Settings { commit_timeout: DAY, ..Settings::default() };
    let registry = start_with(store.clone(), &host, settings).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    let (first, late) = (draft(&registry, "a", "1"), draft(&registry, "a", "2"));
    store.be(Oddity::Slow(DAY));
    let brief = || Deadline::after(Duration::from_millis(1));
    drop(registry.submit(first.clone(), approvals(&first, &[0]), brief()).await);
    for _ in 0..4200 {
        let refused = registry.propose(late.clone(), brief()).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Timeout { .. }), "{refused:?}");
    }
    // Those who come now wait in the lane until it is full. The committer has all the time to take them out of it between
    // the two lots, and does not.
    let busy = Arc::new(AtomicU64::new(0));
    for lot in [512, 8] {
        assert_eq!(busy.load(Ordering::Relaxed), 0);
        for _ in 0..lot {
            let (registry, late, busy) = (registry.clone(), late.clone(), Arc::clone(&busy));
            host.spawn(CALLER, move |_| async move {
                let told = registry.propose(late, soon()).await;
                if let Err(RegistryError::Busy { what: "proposals", .. }) = told {
                    busy.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(busy.load(Ordering::Relaxed), 8);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn updates_have_no_holes() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let settings = Settings { committed_lane: 4, ..Settings::default() };
    let small = super::world::start_with(Arc::new(MemoryStore::new()), &host, settings).await;
    small.found(policy(1, 1), soon()).await.unwrap();
    for registry in [registry, small] {
        // One who reads from the beginning and is slow, and one who starts in the middle.
        let (mut slow, mut late) = (registry.updates(1), registry.updates(50));
        let checkpoints = [registry.checkpoint()];
        bind_many(&host, &registry, 0..300).await;
        for version in 1..=301 {
            assert_eq!(slow.next().await.unwrap().unwrap().version, version);
        }
        assert_eq!(late.next().await.unwrap().unwrap().version, 50);
        bind(&registry, "last", "x", &[0]).await.unwrap();
        let update = slow.next().await.unwrap().unwrap();
        assert_eq!((update.version, update.name), (302, Some("last".parse().unwrap())));
        assert_eq!(update.b3, Some(ContentId::of(b"x")));
        // From any head to any later one.
        let trust = LogTrust::new(registry.log_key());
        let (old, new) = (trust.open(&checkpoints[0]).unwrap(), trust.open(&registry.checkpoint()).unwrap());
        let proof = registry.prove_consistency(old.size, new.size).unwrap();
        verify_consistency((old.size, &old.root), (new.size, &new.root), &proof).unwrap();
    }
    host.shutdown().await;
}

/// Whoever waited for an update was given the first of a block, and then the rest of it was read back from the disk and
/// decoded again, for every reader: most of what a commit cost, with nobody behind.
#[tokio::test(start_paused = true)]
async fn who_keeps_up_is_not_served_from_the_log() {
    let host = host();
    let (registry, store) = founded(&host, 1, 1).await;
    let mut updates = registry.updates(2);
    assert_eq!(registry.versions_of(ContentId::of(b"none"), soon()).await, Ok(vec![]), "the index is there");
    store.be(Oddity::Slow(Duration::from_millis(10)));
    let before = store.reads.load(Ordering::Relaxed);
    bind_many(&host, &registry, 0..300).await;
    for version in 2..=301 {
        assert_eq!(updates.next().await.unwrap().unwrap().version, version);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.reads.load(Ordering::Relaxed), before, "all of it is in memory");
    // Who comes later, and from farther back, is.
    assert_eq!(registry.updates(100).next().await.unwrap().unwrap().version, 100);
    assert!(store.reads.load(Ordering::Relaxed) > before);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_is_found_again_and_another_is_not_taken_for_it() {
    let (host, disk) = (host(), ron_core::sim::SimDisk::new());
    let store = journal(&host, &disk).await.unwrap();
    let registry = start(store, &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind(&registry, "a", "x", &[0]).await.unwrap();
    let (head, before) = (registry.head(), disk.fork());
    let proposal = draft(&registry, "b", "y");
    let receipt = registry.submit(proposal.clone(), approvals(&proposal, &[0]), soon()).await.unwrap();
    let seen = LogTrust::new(registry.log_key()).open(&registry.checkpoint()).unwrap();
    host.shutdown().await;
    drop(registry);

    let host = self::host();
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    assert_eq!(registry.head().version, head.version + 1);
    assert_eq!(registry.propose(proposal, soon()).await.unwrap(), receipt, "also after a restart");
    host.shutdown().await;
    drop(registry);

    // A copy from before: whoever remembers a later head notices.
    before.restart(ron_core::sim::CrashStyle::KeepAll);
    let host = self::host();
    let open = |seen: Checkpoint, key: [u8; 32], origin: &'static str| {
        let (host, before) = (host.clone(), before.clone());
        async move {
            let group = host.child("log", Duration::from_secs(1), Metrics::default());
            let store = journal(&group, &before).await.unwrap();
            let started = Registry::builder(origin, key).seen(seen).clock(clock()).start(store, &group).await;
            group.shutdown().await;
            started.map(|registry| registry.head().version)
        }
    };
    let old = Checkpoint { size: 0, root: ron_registry::TreeHash::of_nothing(), ..seen.clone() };
    assert_eq!(open(old.clone(), LOG_KEY, ORIGIN).await, Ok(2));
    let check = |result: Result<u64, RegistryError>, what: &str| match result {
        Err(RegistryError::Untrusted { message }) => assert!(message.contains(what), "{message}"),
        other => panic!("{other:?}"),
    };
    check(open(seen.clone(), LOG_KEY, ORIGIN).await, "not the log of 3 entries");
    let forked = Checkpoint { size: 2, ..seen.clone() };
    check(open(forked, LOG_KEY, ORIGIN).await, "not the log of 2 entries");
    check(open(old.clone(), [1; 32], ORIGIN).await, "its checkpoint");
    check(open(old, LOG_KEY, "example.com/other").await, "the log is example.com/other");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_be_are_named() {
    let host = host();
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock()).metrics(metrics);
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    let settings = (*registry.settings()).clone();
    let refused = registry.reload(Settings { proposals_lane: 7, ..settings.clone() }).unwrap_err();
    assert!(matches!(refused, RegistryError::Config(_)), "{refused:?}");
    assert!(registry.reload(Settings { verify_slice: 0, ..settings.clone() }).is_err());
    assert_eq!(*registry.settings(), settings, "nothing has changed");
    registry.reload(Settings { verify_slice: 7, ..settings.clone() }).unwrap();
    assert_eq!(registry.settings().verify_slice, 7);
    let failed = "ron_registry_reload_fail_total{reason=\"config\"}";
    assert_eq!(line_of(&scrape, failed), format!("{failed} 2"));
    registry.reload_by(ReloadSource::Signal, Settings { verify_slice: 8, ..settings.clone() }).unwrap();
    for source in ["host", "signal"] {
        let line = format!("ron_registry_reload_success_total{{source=\"{source}\"}}");
        assert_eq!(line_of(&scrape, &line), format!("{line} 1"));
    }
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let none = Settings { approvals_lane: 0, ..settings };
    let refused =
        Registry::builder(ORIGIN, LOG_KEY).settings(none).start(store.clone(), &host).await.unwrap_err();
    assert!(refused.to_string().contains("settings"), "{refused}");
    let refused = Registry::builder("no origin", LOG_KEY).start(store, &host).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Form(_)), "{refused:?}");
    host.shutdown().await;
}
