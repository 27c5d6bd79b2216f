//! A follower that comes after the beginning was pruned starts from a snapshot, and believes nothing of it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Metrics, Supervisor,
    net::{Endpoint, Identity},
    prometheus_client::registry::Registry as Prometheus,
    sim::{CrashStyle, SimDisk},
};
use ron_registry::{
    Content, EvidenceKind, Outcome, Policy, Registry, RegistryError, Signer, SnapshotOffer, Source,
    SourceError, TreeHash,
    net::Links,
    store::{BoxFuture, LogStore, MemoryStore},
};

use super::world::{
    DAY, approvals, bind, bind_many, clock, follow, founded, host, journal, reaches, scraped, signer, soon,
    trust,
};

/// How a source lies about its snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    /// One bit of this byte of the first part, from its end, is another.
    Flip(usize),
    /// The first part is cut.
    Cut,
    /// The snapshot of another log that was signed with the same key.
    Other,
    /// The snapshot is of another version than it is said to be.
    Version,
    /// There are more parts than a log of so many entries can have.
    Parts,
    /// There is none.
    Nothing,
}

/// A registry in this process, as somebody would serve it who may be anybody.
#[derive(Debug, Clone)]
struct Told {
    registry: Registry,
    other: Registry,
    lie: Arc<Mutex<Lie>>,
    /// Parts that were asked for.
    asked: Arc<Mutex<Vec<u32>>>,
}

impl Told {
    fn of(registry: &Registry, other: &Registry) -> Self {
        let (lie, asked) = (Arc::new(Mutex::new(Lie::None)), Arc::default());
        Told { registry: registry.clone(), other: other.clone(), lie, asked }
    }

    fn lie(&self) -> Lie {
        *self.lie.lock().unwrap()
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
        Box::pin(async move { Ok(self.registry.checkpoint().to_string().into()) })
    }

    fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>> {
        Box::pin(async move { self.registry.entries(from, max, deadline).await.map_err(refused) })
    }

    fn consistency(
        &self,
        old: u64,
        new: u64,
        _: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>> {
        Box::pin(async move { self.registry.prove_consistency(old, new).map_err(refused) })
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<SnapshotOffer>, SourceError>> {
        Box::pin(async move {
            let offer = self.registry.snapshot(deadline).await.map_err(refused)?.unwrap();
            Ok(match self.lie() {
                Lie::Nothing => None,
                Lie::Version => Some(SnapshotOffer { version: offer.version + 1, ..offer }),
                Lie::Parts => Some(SnapshotOffer { parts: 60_000, ..offer }),
                _ => Some(offer),
            })
        })
    }

    fn snapshot_part(
        &self,
        version: u64,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(part);
            let version = if self.lie() == Lie::Version { version - 1 } else { version };
            let of = if self.lie() == Lie::Other { &self.other } else { &self.registry };
            let mut bytes = of.snapshot_part(version, part, deadline).await.map_err(refused)?.to_vec();
            let len = bytes.len();
            match self.lie() {
                Lie::Flip(back) => bytes[len - back] ^= 1,
                Lie::Cut => bytes.truncate(len / 2),
                _ => {}
            }
            Ok(bytes.into())
        })
    }

    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let mut updates = self.registry.updates(after + 1);
            let _ = deadline.limit("news", updates.next()).await;
            Ok(())
        })
    }
}

/// A log with 600 entries and another policy than it began with, of which 512 are pruned.
async fn pruned(host: &Supervisor, name: &str) -> Registry {
    let (registry, _) = founded(host, 1, 1).await;
    bind(&registry, name, "old", &[0]).await.unwrap();
    let signers = vec![Signer { name: "second".to_owned(), key: signer(1).public_key(), expires: None }];
    let policy = Policy::of(1, signers).unwrap();
    let rotate = ron_registry::Action::Rotate { policy: Arc::new(policy) };
    let rotate = registry.draft(rotate, DAY).unwrap();
    let with = approvals(&rotate, &[0, 1]);
    assert!(matches!(registry.submit(rotate, with, soon()).await, Ok(Outcome::Committed(_))));
    for number in 0..597_u64 {
        let content = Content::Artifact(ContentId::of(&number.to_be_bytes()));
        let proposal = registry.draft_bind(format!("many/{number}").parse().unwrap(), content, DAY).unwrap();
        let with = approvals(&proposal, &[1]);
        assert!(matches!(registry.submit(proposal, with, soon()).await, Ok(Outcome::Committed(_))));
    }
    assert!(registry.prune(599, soon()).await.unwrap() > 0);
    assert_eq!(registry.status().first, 513);
    registry
}

/// It proves what it has, and what names were bound to before it began.
async fn proves(follower: &Registry) {
    assert_eq!(follower.status().first, 513);
    let refused = follower.entry(512, soon()).await.unwrap_err();
    assert_eq!(refused, RegistryError::Lagging { first: 513 });
    for version in [513, 600] {
        let entry = follower.entry(version, soon()).await.unwrap();
        follower.prove(version).unwrap().verify(entry.encoded(), &trust()).unwrap();
    }
    let old = "many/3".parse().unwrap();
    assert_eq!(follower.name(&old).unwrap().verify(&old, &trust()).unwrap().unwrap().version, 7);
    let never = "never".parse().unwrap();
    assert_eq!(follower.name(&never).unwrap().verify(&never, &trust()), Ok(None));
    let (epoch, policy) = follower.policy().unwrap();
    assert_eq!((epoch, policy.signers()[0].name.as_str()), (2, "second"));
}

#[tokio::test(start_paused = true)]
async fn a_new_follower_starts_from_a_snapshot_goes_on_and_proves() {
    let host = host();
    let (registry, other) = (pruned(&host, "a").await, pruned(&host, "b").await);
    let (source, disk) = (Told::of(&registry, &other), SimDisk::new());
    let group = host.child("follower", Duration::from_secs(5), Metrics::default());
    let follower = follow(source.clone(), journal(&group, &disk).await.unwrap(), &group).await;
    reaches(&follower, 600).await;
    assert_eq!(follower.head(), registry.head());
    assert!(follower.status().ready.reads && follower.evidence().is_empty());
    proves(&follower).await;
    // What is decided from now on is checked as ever, by the policy that was in the snapshot.
    bind(&registry, "later", "x", &[1]).await.unwrap();
    reaches(&follower, 601).await;
    assert_eq!(follower.head(), registry.head());

    // Whoever follows the follower starts there as well.
    let second = Told::of(&follower, &other);
    let second = follow(second, Arc::new(MemoryStore::new()), &host).await;
    reaches(&second, 601).await;
    proves(&second).await;
    group.shutdown().await;
    drop(follower);

    // It is found again, with what the stop has left and without.
    for forgets in [false, true] {
        if forgets {
            disk.put("log/memo", b"");
        }
        let asked = source.asked.lock().unwrap().len();
        let group = host.child("follower", Duration::from_secs(5), Metrics::default());
        let follower = follow(source.clone(), journal(&group, &disk).await.unwrap(), &group).await;
        assert_eq!(follower.head(), registry.head());
        bind(&registry, &format!("again/{forgets}"), "x", &[1]).await.unwrap();
        reaches(&follower, registry.head().version).await;
        proves(&follower).await;
        assert_eq!(source.asked.lock().unwrap().len(), asked, "it has what it needs");
        group.shutdown().await;
    }
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_forged_snapshot_is_refused_and_kept_as_evidence() {
    let host = host();
    let (registry, other) = (pruned(&host, "a").await, pruned(&host, "b").await);
    let source = Told::of(&registry, &other);
    // The last bytes are those of the last name: its content, its proposal, its version.
    for (lie, what) in [
        (Lie::Flip(1), "another root than its entry says"),
        (Lie::Flip(60), "another root than its entry says"),
        (Lie::Cut, "not a snapshot"),
        (Lie::Other, "not of this log's tree"),
        (Lie::Version, "not of this log's tree"),
        (Lie::Parts, "not a snapshot"),
    ] {
        *source.lie.lock().unwrap() = lie;
        source.asked.lock().unwrap().clear();
        let mut scrape = Prometheus::default();
        let store = Arc::new(MemoryStore::new());
        let group = host.child("follower", Duration::from_secs(5), Metrics::default());
        let follower = Registry::follower(trust(), source.clone()).clock(clock());
        let follower = follower.metrics(Metrics::register("ron_registry", &mut scrape));
        let follower = follower.start(store.clone(), &group).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let evidence = follower.evidence();
        let [found] = &evidence[..] else { panic!("{lie:?}: {evidence:?} {:?}", follower.status()) };
        assert_eq!(found.kind, EvidenceKind::Snapshot, "{lie:?}");
        assert!(found.message.contains(what), "{lie:?}: {}", found.message);
        assert_eq!(trust().open(&found.theirs).unwrap().size, 600, "under which signed head it was shown");
        assert!(found.to_string().starts_with("snapshot at "), "{found}");
        assert_eq!((follower.head().version, follower.status().ready.reads), (0, false), "{lie:?}");
        assert_eq!(store.tail(soon()).await.unwrap().version, 0, "{lie:?}: nothing is kept of it");
        assert!(source.asked.lock().unwrap().iter().all(|part| *part == 0), "nobody gathers what is false");
        let text = scraped(&scrape);
        assert!(text.contains("ron_registry_follow_refused_total{kind=\"snapshot\"}"), "{text}");
        // It may have been a mirror: the log itself has done nothing.
        *source.lie.lock().unwrap() = Lie::None;
        reaches(&follower, 600).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(follower.status().ready.reads && follower.evidence().len() == 1, "{lie:?}");
        group.shutdown().await;
    }
    // A source that has none says why it cannot help.
    *source.lie.lock().unwrap() = Lie::Nothing;
    let follower = follow(source.clone(), Arc::new(MemoryStore::new()), &host).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let closed: Vec<String> = follower.status().ready.closed().map(|gate| format!("{gate:?}")).collect();
    assert!(closed.iter().any(|gate| gate.contains("the log begins at 513 there")), "{closed:?}");
    assert!(follower.evidence().is_empty());
    host.shutdown().await;
}

/// The power fails at every call of the disk while a follower starts: it starts again, or goes on.
#[tokio::test(start_paused = true)]
async fn a_start_survives_every_crash() {
    let host = host();
    let (registry, other) = (pruned(&host, "a").await, pruned(&host, "b").await);
    let source = Told::of(&registry, &other);
    let run = |disk: SimDisk| {
        let (host, source) = (host.clone(), source.clone());
        async move {
            let group = host.child("follower", Duration::from_secs(5), Metrics::default());
            if let Ok(store) = journal(&group, &disk).await {
                let started = Registry::follower(trust(), source).clock(clock()).start(store, &group).await;
                if let Ok(follower) = started {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    drop(follower);
                }
            }
            group.shutdown().await;
        }
    };
    let whole = SimDisk::new();
    run(whole.clone()).await;
    let calls = whole.calls();
    assert!(calls > 10, "{calls}");
    for call in 1..=calls {
        let disk = SimDisk::new();
        disk.crash_at_call(call);
        run(disk.clone()).await;
        for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: call }] {
            let disk = disk.fork();
            disk.restart(style);
            let group = host.child("follower", Duration::from_secs(5), Metrics::default());
            let store = journal(&group, &disk).await.unwrap();
            let follower = follow(source.clone(), store, &group).await;
            reaches(&follower, 600).await;
            assert_eq!(follower.head(), registry.head(), "call {call} of {calls}, {style:?}");
            assert_eq!(follower.status().first, 513);
            group.shutdown().await;
        }
    }
    host.shutdown().await;
}

/// Names for two parts, which are more than one answer between nodes holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_several_parts_travels_between_nodes() {
    let host = Supervisor::new("test");
    let registry = super::world::start(Arc::new(MemoryStore::new()), &host).await;
    registry.found(super::world::policy(1, 1), soon()).await.unwrap();
    for from in (0..17_000).step_by(250) {
        for bound in bind_many(&host, &registry, from..from + 250).await {
            bound.unwrap();
        }
    }
    assert!(registry.prune(16_999, soon()).await.unwrap() > 0);
    let offer = registry.snapshot(soon()).await.unwrap().unwrap();
    assert_eq!(offer, SnapshotOffer { version: 16_896, parts: 2 });
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let there = Endpoint::builder(Identity::generate().unwrap()).listen(loopback).start(&host).unwrap();
    let served = Links::start(&there, &host).unwrap();
    served.serve(&registry, None);
    let here = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let links = Links::start(&here, &host).unwrap();
    let source = links.source(there.node_id(), there.local_addrs());
    assert_eq!(source.snapshot(soon()).await, Ok(Some(offer)));
    let gone = source.snapshot_part(offer.version, 2, soon()).await;
    assert!(matches!(gone, Err(SourceError::Refused { .. })), "{gone:?}");
    let follower = follow(source, Arc::new(MemoryStore::new()), &host).await;
    reaches(&follower, 17_001).await;
    assert_eq!((follower.head(), follower.status().first), (registry.head(), 16_897));
    let old = "many/77".parse().unwrap();
    assert!(follower.name(&old).unwrap().verify(&old, &trust()).unwrap().is_some());
    bind(&registry, "later", "x", &[0]).await.unwrap();
    reaches(&follower, 17_002).await;
    host.shutdown().await;
}
