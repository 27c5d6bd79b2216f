//! Following a log without believing who gives it: forks, rollbacks, false and forbidden entries, stops in the middle.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Metrics, Supervisor,
    net::{Endpoint, Identity},
    prometheus_client::registry::Registry as Prometheus,
    sim::SimDisk,
};
use ron_registry::{
    Checkpoint, Evidence, EvidenceKind, KeyKind, LogTrust, NoteSigner, Outcome, Registry, RegistryError,
    Retention, Settings, Source, SourceError, TreeHash,
    logic::tiles::Tree,
    net::Links,
    store::{BoxFuture, LogStore, MemoryStore, StoreError},
};

use super::world::{
    LOG_KEY, ORIGIN, Odd, Oddity, approvals, bind, bind_many, clock, draft, follow, founded, host, journal,
    policy, reaches, scraped, soon, start, start_with, trust,
};

/// What a source does with what it is asked.
#[derive(Debug, Clone, Default)]
struct Habits {
    /// Does not answer.
    away: bool,
    /// One bit of this entry is another.
    flips: Option<u64>,
    /// Entries that it gives at a time.
    at_a_time: Option<usize>,
    /// Gives no entries from here on.
    stops_at: Option<u64>,
    /// Gives no proofs.
    proves_nothing: bool,
    /// Shows this head instead of the last.
    shows: Option<Bytes>,
}

/// A registry in this process, as somebody would serve it who may be anybody.
#[derive(Debug, Clone)]
struct Told(Arc<Mutex<(Registry, Habits)>>);

impl Told {
    fn of(registry: &Registry) -> Self {
        Told(Arc::new(Mutex::new((registry.clone(), Habits::default()))))
    }

    fn be(&self, habits: Habits) {
        self.0.lock().unwrap().1 = habits;
    }

    fn show(&self, registry: &Registry) {
        self.0.lock().unwrap().0 = registry.clone();
    }

    fn ask(&self) -> Result<(Registry, Habits), SourceError> {
        let (registry, habits) = self.0.lock().unwrap().clone();
        if habits.away { Err(SourceError::Away { message: "asleep".into() }) } else { Ok((registry, habits)) }
    }
}

fn refused(error: RegistryError) -> SourceError {
    match error {
        RegistryError::Lagging { first } => SourceError::Pruned { first },
        error => SourceError::Refused { message: error.to_string() },
    }
}

impl Source for Told {
    fn checkpoint(&self, _: Deadline) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let (registry, habits) = self.ask()?;
            Ok(habits.shows.unwrap_or_else(|| registry.checkpoint().to_string().into()))
        })
    }

    fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>> {
        Box::pin(async move {
            let (registry, habits) = self.ask()?;
            if habits.stops_at.is_some_and(|at| from >= at) {
                return Err(SourceError::Away { message: "tired".into() });
            }
            let max = max.min(habits.at_a_time.unwrap_or(max));
            let mut entries = registry.entries(from, max, deadline).await.map_err(refused)?;
            let flipped = habits.flips.and_then(|version| version.checked_sub(from));
            if let Some(entry) = flipped.and_then(|at| entries.get_mut(at as usize)) {
                let mut bytes = entry.to_vec();
                *bytes.last_mut().unwrap() ^= 1;
                *entry = bytes.into();
            }
            Ok(entries)
        })
    }

    fn consistency(
        &self,
        old: u64,
        new: u64,
        _: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>> {
        Box::pin(async move {
            let (registry, habits) = self.ask()?;
            if habits.proves_nothing {
                return Err(SourceError::Away { message: "busy".into() });
            }
            registry.prove_consistency(old, new).map_err(refused)
        })
    }

    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let mut updates = self.ask()?.0.updates(after + 1);
            let _ = deadline.limit("news", updates.next()).await;
            Ok(())
        })
    }
}

async fn catches(follower: &Registry, kind: EvidenceKind) -> Evidence {
    let caught = async {
        loop {
            if let Some(found) = follower.evidence().into_iter().find(|evidence| evidence.kind == kind) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    Deadline::after(Duration::from_secs(30)).limit("evidence", caught).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_follower_has_all_of_it_and_serves_it() {
    let host = host();
    let (registry, _) = founded(&host, 2, 3).await;
    for number in 0..5 {
        bind(&registry, &format!("n/{number}"), "x", &[0, 1]).await.unwrap();
    }
    let source = Told::of(&registry);
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    assert!(!follower.status().ready.reads, "not before it has asked");
    reaches(&follower, 6).await;
    assert_eq!((follower.head(), follower.follows(), registry.follows()), (registry.head(), true, false));
    // What comes later comes at once.
    let mut updates = follower.updates(7);
    let before = ron_core::now();
    bind(&registry, "later", "x", &[1, 2]).await.unwrap();
    assert_eq!(updates.next().await.unwrap().unwrap().version, 7);
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert!(follower.ready().reads && follower.status().ready.reads);

    let name = "n/3".parse().unwrap();
    assert_eq!(follower.name(&name).unwrap().verify(&name, &trust()).unwrap().unwrap().version, 5);
    let entry = follower.entry(4, soon()).await.unwrap();
    follower.prove(4).unwrap().verify(entry.encoded(), &trust()).unwrap();

    let proposal = draft(&registry, "other", "x");
    assert_eq!(follower.propose(proposal.clone(), soon()).await, Err(RegistryError::ReadOnly));
    let approval = approvals(&proposal, &[0]).remove(0);
    assert_eq!(follower.approve(approval, soon()).await, Err(RegistryError::ReadOnly));
    assert_eq!(follower.pending(soon()).await, Err(RegistryError::ReadOnly));
    host.shutdown().await;
}

/// Two logs with one key and one beginning.
async fn two_faces(host: &Supervisor) -> (Registry, Registry) {
    let (one, _) = founded(host, 1, 1).await;
    let (other, _) = founded(host, 1, 1).await;
    bind(&one, "a", "x", &[0]).await.unwrap();
    bind(&other, "a", "x", &[0]).await.unwrap();
    assert_eq!(one.head(), other.head());
    (one, other)
}

#[tokio::test(start_paused = true)]
async fn a_fork_is_refused_and_proven() {
    let host = host();
    let (one, other) = two_faces(&host).await;
    bind(&one, "b", "1", &[0]).await.unwrap();
    bind(&other, "b", "2", &[0]).await.unwrap();
    let source = Told::of(&one);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let mut scrape = Prometheus::default();
    let follower = Registry::follower(trust(), source.clone())
        .clock(clock())
        .metrics(Metrics::register("ron_registry", &mut scrape))
        .on_evidence(move |evidence| heard.lock().unwrap().push(evidence.to_string()))
        .start(Arc::new(MemoryStore::new()), &host)
        .await
        .unwrap();
    reaches(&follower, 3).await;

    // As long, and another.
    source.show(&other);
    let fork = catches(&follower, EvidenceKind::Fork).await;
    let (ours, theirs) = (trust().open(&fork.ours).unwrap(), trust().open(&fork.theirs).unwrap());
    assert!(ours.size == theirs.size && ours.root != theirs.root, "the log's own key says so twice");
    assert!(!follower.status().ready.reads);
    // Longer, and another.
    bind(&other, "c", "x", &[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let evidence = follower.evidence();
    assert_eq!(evidence.iter().map(|one| one.kind).collect::<Vec<_>>(), [EvidenceKind::Fork; 2]);
    assert_eq!(trust().open(&evidence[1].theirs).unwrap().size, 4);
    assert_eq!(follower.head(), one.head(), "it keeps what it had");
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 2, "each is told once");
    assert!(told[0].starts_with("fork at ") && told[0].contains(&fork.theirs.to_string()), "{}", told[0]);
    let text = scraped(&scrape);
    assert!(text.contains("ron_registry_follow_refused_total{kind=\"fork\"}"), "{text}");
    assert!(text.contains("ron_registry_source_version 4"), "{text}");

    // The right face again is followed, and does not make it forget.
    source.show(&one);
    bind(&one, "d", "x", &[0]).await.unwrap();
    reaches(&follower, 4).await;
    assert!(!follower.status().ready.reads && follower.evidence().len() == 2);
    host.shutdown().await;
}

/// A source that is away or gives something false, and a store that takes nothing: each is counted under what it is.
#[tokio::test(start_paused = true)]
async fn rounds_that_come_to_nothing_are_counted() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let source = Told::of(&registry);
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let mut scrape = Prometheus::default();
    let follower = Registry::follower(trust(), source.clone())
        .clock(clock())
        .metrics(Metrics::register("ron_registry", &mut scrape))
        .start(store.clone(), &host)
        .await
        .unwrap();
    reaches(&follower, 1).await;
    let count = |what: &str| {
        let line = format!("ron_registry_follow_errors_total{{what=\"{what}\"}} ");
        let text = scraped(&scrape);
        text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    assert_eq!(["source", "false", "store"].map(count), [0; 3]);
    source.be(Habits { away: true, ..Habits::default() });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(count("source") > 0 && count("false") == 0 && count("store") == 0);
    bind(&registry, "a", "x", &[0]).await.unwrap();
    source.be(Habits { flips: Some(2), ..Habits::default() });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(count("false") > 0 && count("store") == 0);
    store.be(Oddity::Fail(StoreError::NoSpace));
    source.be(Habits::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(count("store") > 0 && follower.head().version == 1);
    store.be(Oddity::None);
    reaches(&follower, 2).await;
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_is_refused_and_what_comes_after_it_is_not() {
    let host = host();
    let (one, other) = two_faces(&host).await;
    bind(&one, "b", "1", &[0]).await.unwrap();
    let source = Told::of(&one);
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    reaches(&follower, 3).await;
    source.show(&other);
    let rollback = catches(&follower, EvidenceKind::Rollback).await;
    let sizes = [&rollback.ours, &rollback.theirs].map(|note| trust().open(note).unwrap().size);
    assert_eq!((sizes, follower.head()), ([3, 2], one.head()));
    assert!(!follower.status().ready.reads);
    source.show(&one);
    bind(&one, "c", "1", &[0]).await.unwrap();
    reaches(&follower, 4).await;
    assert!(follower.status().ready.reads, "it may have been a cache");
    assert_eq!(follower.evidence().len(), 1, "and it is not forgotten");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn false_entries_are_not_kept() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    bind(&registry, "a", "x", &[0]).await.unwrap();
    let source = Told::of(&registry);
    source.be(Habits { flips: Some(2), ..Habits::default() });
    let store = Arc::new(MemoryStore::new());
    let follower = follow(source.clone(), store.clone(), &host).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(
        (follower.head().version, follower.evidence()),
        (0, Vec::new()),
        "who sent it may not be who signed"
    );
    let closed: Vec<String> = follower.status().ready.closed().map(|gate| format!("{gate:?}")).collect();
    assert!(closed.iter().any(|gate| gate.contains("are not those that were signed")), "{closed:?}");
    assert_eq!(store.tail(soon()).await.unwrap().version, 0);
    source.be(Habits { away: true, ..Habits::default() });
    tokio::time::sleep(Duration::from_secs(20)).await;
    source.be(Habits::default());
    reaches(&follower, 2).await;
    host.shutdown().await;
}

/// Old heads are to be had by anybody. However many are shown, a fork that is shown later is still kept, and closes the gate
/// for good.
#[tokio::test(start_paused = true)]
async fn rollbacks_leave_room_for_a_fork() {
    let host = host();
    let (one, other) = two_faces(&host).await;
    let mut heads: Vec<Bytes> = Vec::new();
    for number in 0..24 {
        heads.push(one.checkpoint().to_string().into());
        bind(&one, &format!("b/{number}"), "1", &[0]).await.unwrap();
    }
    let source = Told::of(&one);
    let told = Arc::new(Mutex::new(0));
    let heard = Arc::clone(&told);
    let follower = Registry::follower(trust(), source.clone()).clock(clock());
    let follower = follower.on_evidence(move |_| *heard.lock().unwrap() += 1);
    let follower = follower.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    reaches(&follower, 26).await;
    for head in heads {
        source.be(Habits { shows: Some(head), ..Habits::default() });
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let kept = follower.evidence();
    assert!(kept.iter().all(|evidence| evidence.kind == EvidenceKind::Rollback) && kept.len() == 8);
    assert_eq!(*told.lock().unwrap(), 8, "nobody is told without end");
    source.be(Habits::default());
    bind(&other, "b/0", "2", &[0]).await.unwrap();
    source.show(&other);
    catches(&follower, EvidenceKind::Fork).await;
    source.show(&one);
    bind(&one, "c", "1", &[0]).await.unwrap();
    reaches(&follower, 27).await;
    assert!(!follower.status().ready.reads, "it is not forgotten");
    host.shutdown().await;
}

/// Who sends false entries and then no proof has shown nothing against the log.
#[tokio::test(start_paused = true)]
async fn no_proof_is_no_fork() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let source = Told::of(&registry);
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    reaches(&follower, 1).await;
    source.be(Habits { flips: Some(2), proves_nothing: true, ..Habits::default() });
    bind(&registry, "a", "x", &[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((follower.evidence(), follower.head().version), (Vec::new(), 1));
    source.be(Habits::default());
    reaches(&follower, 2).await;
    assert!(follower.status().ready.reads);
    host.shutdown().await;
}

/// A fork that is shown before the follower has caught up is one against the head that it was catching up with.
#[tokio::test(start_paused = true)]
async fn a_fork_on_the_way_is_proven_by_the_head_that_was_shown() {
    let host = host();
    let (one, other) = two_faces(&host).await;
    let source = Told::of(&one);
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    reaches(&follower, 2).await;
    source.be(Habits { away: true, ..Habits::default() });
    for name in ["b", "c"] {
        bind(&one, name, "1", &[0]).await.unwrap();
        bind(&other, name, "2", &[0]).await.unwrap();
    }
    source.be(Habits { at_a_time: Some(1), stops_at: Some(4), ..Habits::default() });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(follower.head().version, 2, "one more is kept, and not shown");
    source.show(&other);
    source.be(Habits::default());
    let fork = catches(&follower, EvidenceKind::Fork).await;
    let (ours, theirs) = (trust().open(&fork.ours).unwrap(), trust().open(&fork.theirs).unwrap());
    assert_eq!((ours.size, theirs.size), (4, 4));
    assert_ne!(ours.root, theirs.root, "the log's own key says so twice");
    host.shutdown().await;
}

/// What was given up on and kept after all does not stand in the way of what comes next.
#[tokio::test(start_paused = true)]
async fn what_was_kept_late_is_gone_on_from() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let (source, store) = (Told::of(&registry), Arc::new(Odd::over(Arc::new(MemoryStore::new()))));
    let follower = follow(source.clone(), store.clone(), &host).await;
    reaches(&follower, 1).await;
    // Then it offers a longer block behind what it knows, and after that the same one again.
    for (name, more) in [("a", true), ("c", false)] {
        let known = follower.head().version;
        store.be(Oddity::Lost);
        bind(&registry, name, "x", &[0]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(follower.head().version, known);
        // An attempt that is under way would settle by itself what became of it, so all of them have to be over first.
        source.be(Habits { away: true, ..Habits::default() });
        tokio::time::sleep(Duration::from_secs(60)).await;
        store.be(Oddity::None);
        if more {
            bind(&registry, "b", "x", &[0]).await.unwrap();
        }
        let before = store.appends.load(Ordering::Relaxed);
        source.be(Habits::default());
        reaches(&follower, registry.head().version).await;
        assert_eq!(follower.head(), registry.head());
        assert!(follower.status().ready.reads && follower.evidence().is_empty());
        let expected = if more { 2 } else { 1 };
        assert_eq!(
            store.appends.load(Ordering::Relaxed) - before,
            expected,
            "one that was refused, and what was left"
        );
    }
    host.shutdown().await;
}

/// A log whose owner signs what its policy forbids.
#[derive(Debug)]
struct Forger {
    entries: Vec<Bytes>,
}

impl Source for Forger {
    fn checkpoint(&self, _: Deadline) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        let mut tree = Tree::new();
        self.entries.iter().for_each(|entry| tree.push(TreeHash::of_leaf(entry)));
        let head = Checkpoint { origin: ORIGIN.to_owned(), size: tree.size(), root: tree.root() };
        let note = head.sign(&NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).unwrap()).unwrap();
        Box::pin(async move { Ok(note.to_string().into()) })
    }

    fn entries(&self, from: u64, max: usize, _: Deadline) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>> {
        let entries = self.entries.iter().skip(from as usize - 1).take(max).cloned().collect();
        Box::pin(async move { Ok(entries) })
    }

    fn consistency(&self, _: u64, _: u64, _: Deadline) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>> {
        Box::pin(async { Err(SourceError::Malformed { message: "none".into() }) })
    }

    fn news(&self, _: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let _ = deadline.limit("news", std::future::pending::<()>()).await;
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_signed_and_not_allowed_is_proven() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    bind(&registry, "a", "x", &[0]).await.unwrap();
    let mut entries = registry.entries(1, 2, soon()).await.unwrap();
    let mut bytes = entries[1].to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    entries[1] = bytes.into();
    let follower = follow(Forger { entries: entries.clone() }, Arc::new(MemoryStore::new()), &host).await;
    let invalid = catches(&follower, EvidenceKind::Invalid).await;
    assert_eq!((invalid.entry.as_ref(), follower.head().version), (Some(&entries[1]), 0));
    assert!(
        invalid.message.starts_with("version 2: ") && invalid.to_string().contains("entry:\n"),
        "{invalid}"
    );
    host.shutdown().await;
}

/// A follower that is stopped on its way to a head shows nothing that no head ends with, and goes on where it was.
#[tokio::test(start_paused = true)]
async fn a_stop_in_the_middle_is_gone_on_from() {
    let (outer, disk) = (host(), SimDisk::new());
    let (registry, _) = founded(&outer, 1, 1).await;
    bind_many(&outer, &registry, 0..299).await;
    let source = Told::of(&registry);
    source.be(Habits { at_a_time: Some(64), stops_at: Some(129), ..Habits::default() });
    let inner = host();
    let follower = follow(source.clone(), journal(&inner, &disk).await.unwrap(), &inner).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(follower.head().version, 0);
    inner.shutdown().await;

    let inner = host();
    let store = journal(&inner, &disk).await.unwrap();
    assert_eq!(store.tail(soon()).await.unwrap().version, 128);
    let follower = follow(source.clone(), store, &inner).await;
    assert_eq!(follower.head().version, 0);
    source.be(Habits { at_a_time: Some(64), ..Habits::default() });
    reaches(&follower, 300).await;
    assert_eq!(follower.head(), registry.head());
    inner.shutdown().await;

    // And a whole one is there at once, with nobody to ask.
    let inner = host();
    source.be(Habits { away: true, ..Habits::default() });
    let follower = follow(source, journal(&inner, &disk).await.unwrap(), &inner).await;
    assert_eq!(follower.head(), registry.head());
    let name = "many/7".parse().unwrap();
    assert!(follower.name(&name).unwrap().verify(&name, &trust()).unwrap().is_some());
    inner.shutdown().await;
    outer.shutdown().await;
}

/// Who lets only some propose and approve.
struct WithWord;

impl ron_core::auth::Authorizer for WithWord {
    fn authorize(
        &self,
        action: &ron_core::auth::Action<'_>,
        shown: &ron_core::auth::Credentials<'_>,
    ) -> Result<ron_core::auth::Grant, ron_core::auth::Denied> {
        match shown.bearer {
            Some(word) if action.name.ends_with(word) => Ok(ron_core::auth::Grant::new("somebody")),
            _ => Err(ron_core::auth::Denied::Forbidden),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_travel_between_nodes() {
    let host = Supervisor::new("test");
    let registry = start(Arc::new(MemoryStore::new()), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..50).await;
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let there = Endpoint::builder(Identity::generate().unwrap()).listen(loopback).start(&host).unwrap();
    let served = Links::start(&there, &host).unwrap();
    let here = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let links = Links::start(&here, &host).unwrap();
    let to = (there.node_id(), there.local_addrs());

    let source = links.source(to.0, to.1);
    let refused = source.checkpoint(soon()).await.unwrap_err();
    assert!(matches!(refused, SourceError::Refused { .. }), "nothing is served yet: {refused:?}");
    served.serve(&registry, Some(Arc::new(WithWord)));
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    reaches(&follower, 51).await;

    // Only with the word for it, and for this.
    let proposal = draft(&registry, "from/afar", "x");
    for word in ["", "approve", "other"] {
        let refused = links.propose(to, &proposal, word, soon()).await.unwrap_err();
        assert!(refused.to_string().contains("403"), "{refused}");
    }
    let outcome = links.propose(to, &proposal, "propose", soon()).await.unwrap();
    assert!(matches!(&outcome, Outcome::Pending { missing, .. } if missing == &["s0"]), "{outcome:?}");
    let approval = approvals(&proposal, &[0]).remove(0);
    let outcome = links.approve(to, &approval, "approve", soon()).await.unwrap();
    let Outcome::Committed(receipt) = outcome else { panic!("{outcome:?}") };
    assert_eq!((receipt.version, trust().open(&receipt.checkpoint).unwrap().size), (52, 52));
    let gone = draft(&registry, "from/afar", "y");
    bind(&registry, "from/afar", "z", &[0]).await.unwrap();
    let refused = links.propose(to, &gone, "propose", soon()).await.unwrap_err();
    assert!(refused.to_string().contains("409"), "{refused}");
    reaches(&follower, 53).await;
    assert_eq!(follower.head(), registry.head());

    // What is gone there is said.
    for from in (100..400).step_by(100) {
        bind_many(&host, &registry, from..from + 100).await;
    }
    registry.prune(300, soon()).await.unwrap();
    assert_eq!(source.entries(1, 10, soon()).await, Err(SourceError::Pruned { first: 257 }));
    assert_eq!(source.entries(300, 10, soon()).await.unwrap().len(), 10);
    assert!(source.entries(9999, 10, soon()).await.unwrap().is_empty());
    host.shutdown().await;
}

/// What was seen is compared with what is kept, also when that is on its way to a head and not yet shown: who can put
/// another log there can stop it in the middle as well.
#[tokio::test(start_paused = true)]
async fn another_log_in_the_middle_is_not_gone_on_from() {
    let (outer, disk) = (host(), SimDisk::new());
    let (registry, other) = two_faces(&outer).await;
    bind_many(&outer, &registry, 0..200).await;
    bind(&other, "b", "2", &[0]).await.unwrap();
    let source = Told::of(&registry);
    source.be(Habits { at_a_time: Some(64), stops_at: Some(129), ..Habits::default() });
    let inner = host();
    let follower = follow(source.clone(), journal(&inner, &disk).await.unwrap(), &inner).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(follower.head().version, 0);
    inner.shutdown().await;

    let begin = |seen: &Registry| {
        let (disk, source) = (disk.clone(), source.clone());
        let seen = trust().open(&seen.checkpoint()).unwrap();
        async move {
            let inner = host();
            let store = journal(&inner, &disk).await.unwrap();
            assert_eq!(store.tail(soon()).await.unwrap().version, 128);
            let follower = Registry::follower(trust(), source).seen(seen).clock(clock());
            let started = follower.start(store, &inner).await.map(drop);
            inner.shutdown().await;
            started
        }
    };
    let size = other.head().version;
    assert!(size < 128, "{size}");
    match begin(&other).await {
        Err(RegistryError::Untrusted { message }) => {
            assert_eq!(message, format!("it is not the log of {size} entries that was seen"));
        }
        started => panic!("{started:?}"),
    }
    // More than is kept was seen: it has lost something.
    assert!(matches!(begin(&registry).await, Err(RegistryError::Untrusted { .. })));
    outer.shutdown().await;
}

/// Who is behind is told so at once, and nothing is read from the log for it: four megabytes for a question of a few bytes
/// would be a way to keep somebody's disk busy.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_behind_hears_of_it_without_a_read() {
    let host = Supervisor::new("test");
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let settings = Settings { verify_interval: Duration::from_secs(3600), ..Settings::default() };
    let registry = start_with(store.clone(), &host, settings).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..50).await;
    assert_eq!(registry.versions_of(ContentId::of(b"none"), soon()).await, Ok(vec![]), "the index is there");
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let there = Endpoint::builder(Identity::generate().unwrap()).listen(loopback).start(&host).unwrap();
    let served = Links::start(&there, &host).unwrap();
    served.serve(&registry, None);
    let here = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let source = Links::start(&here, &host).unwrap().source(there.node_id(), there.local_addrs());
    let before = store.reads.load(Ordering::Relaxed);
    for after in [0, 1, 50] {
        source.news(after, soon()).await.unwrap();
    }
    assert_eq!(store.reads.load(Ordering::Relaxed), before);
    host.shutdown().await;
}

/// Retention of a follower counts what is left, not what went before: it once wrote a snapshot for every tile after the
/// first that it had let go of.
#[tokio::test(start_paused = true)]
async fn a_follower_prunes_when_it_is_worth_it() {
    let host = host();
    let (registry, _) = founded(&host, 1, 1).await;
    let source = Told::of(&registry);
    let retention = Retention { entries: Some(1), ..Retention::default() };
    let checkpoint_interval = Duration::from_secs(1);
    let settings = Settings { retention, checkpoint_interval, ..Settings::default() };
    let follower = Registry::follower(trust(), source).settings(settings).clock(clock());
    let follower = follower.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    // A tile of these is about 90 kB. A snapshot of 240 names is worth writing for 125 kB.
    bind_many(&host, &registry, 0..240).await;
    let mut grown = 240;
    for (version, first) in [(520, 513), (780, 513), (1030, 1025), (1290, 1025)] {
        for number in grown..version {
            bind(&registry, &format!("many/{}", number % 240), "y", &[0]).await.unwrap();
        }
        grown = version;
        reaches(&follower, version + 1).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(follower.status().first, first, "with {version} entries");
    }
    host.shutdown().await;
}

/// A follower that dies on its way to the next head still has the one before, with nobody to ask: it used to begin with
/// nothing and stay so until it had caught up.
#[tokio::test(start_paused = true)]
async fn what_was_shown_before_is_shown_again() {
    let (outer, disk) = (host(), SimDisk::new());
    let (registry, _) = founded(&outer, 1, 1).await;
    bind_many(&outer, &registry, 0..99).await;
    let source = Told::of(&registry);
    let inner = host();
    let follower = follow(source.clone(), journal(&inner, &disk).await.unwrap(), &inner).await;
    reaches(&follower, 100).await;
    let before = (follower.head(), follower.checkpoint());
    source.be(Habits { at_a_time: Some(64), stops_at: Some(229), ..Habits::default() });
    bind_many(&outer, &registry, 100..300).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    // As it is after a crash here, and after a stop as it should be below.
    let crashed = disk.fork();
    crashed.restart(ron_core::sim::CrashStyle::KeepAll);
    inner.shutdown().await;

    for disk in [&crashed, &disk] {
        let inner = host();
        source.be(Habits { away: true, ..Habits::default() });
        let store = journal(&inner, disk).await.unwrap();
        assert_eq!(store.tail(soon()).await.unwrap().version, 228);
        let follower = follow(source.clone(), store, &inner).await;
        assert_eq!((follower.head(), follower.checkpoint()), before);
        let name = "many/7".parse().unwrap();
        assert!(follower.name(&name).unwrap().verify(&name, &trust()).unwrap().is_some());
        assert_eq!(follower.entries(1, 1000, soon()).await.unwrap().len(), 100);
        // Whole passes of the verifier, to which what is on its way is no damage.
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(follower.status().verified, 100);
        assert!(!follower.status().ready.reads, "nobody is there to ask");
        source.be(Habits::default());
        reaches(&follower, 300).await;
        assert_eq!((follower.head(), follower.checkpoint()), (registry.head(), registry.checkpoint()));
        assert!(follower.status().ready.reads && follower.evidence().is_empty());
        inner.shutdown().await;
    }
    outer.shutdown().await;
}

/// Whoever mistypes a key or the name of a log hears which of the two it is, and what was meant: "not a note that can be
/// trusted", or an entry that follows another, sent people looking for damage.
#[tokio::test(start_paused = true)]
async fn a_wrong_key_and_a_wrong_name_are_told_apart() {
    let host = host();
    let store = Arc::new(MemoryStore::new());
    let registry = start(store.clone(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind(&registry, "a", "x", &[0]).await.unwrap();
    let key = |origin, seed| NoteSigner::from_seed(origin, KeyKind::Ed25519, &seed).unwrap();
    let id = |seed| format!("{ORIGIN}+{:08x}", key(ORIGIN, seed).verifier().id());
    let wrong_name = format!("its checkpoint: a checkpoint of {ORIGIN}, and the log is example.com/other");
    let wrong_key =
        format!("its checkpoint: signed with {}, and the key of the log is {}", id(LOG_KEY), id([9; 32]));
    for (origin, seed, told) in
        [("example.com/other", LOG_KEY, wrong_name.clone()), (ORIGIN, [9; 32], wrong_key.clone())]
    {
        let trust = LogTrust::new(key(origin, seed).verifier().clone());
        // As a follower of the one who has it right, and as one who starts on what is stored.
        let group = host.child("follower", Duration::from_secs(5), Metrics::default());
        let follower = Registry::follower(trust.clone(), Told::of(&registry)).clock(clock());
        let follower = follower.start(Arc::new(MemoryStore::new()), &group).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let closed: Vec<_> =
            follower.status().ready.closed().filter_map(|gate| gate.reason.clone()).collect();
        assert_eq!(closed, std::slice::from_ref(&told));
        assert_eq!((follower.head().version, follower.evidence()), (0, Vec::new()));
        group.shutdown().await;
        drop((follower, group));
        let follower = Registry::follower(trust, Told::of(&registry)).start(store.clone(), &host).await;
        let owner = Registry::builder(origin, seed).start(store.clone(), &host).await;
        for started in [follower, owner] {
            let refused = started.map(drop).unwrap_err();
            assert_eq!(refused, RegistryError::Untrusted { message: told.clone() });
        }
    }
    host.shutdown().await;
}
