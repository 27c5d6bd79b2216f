//! The sources that come with the crate, on the real parts.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Deadline, NodeId, Supervisor,
    net::{Endpoint, Identity},
};
use ron_dht::Dht;
use ron_index::{
    Index, IndexError, Key, Settings,
    source::{DhtNames, DhtProviders, StoreManifests, StoreProviders},
};
use ron_registry::{
    Content, KeyKind, LogTrust, NoteSigner, Outcome, Policy, Registry, Signer, store::MemoryStore,
};
use ron_storage::Store;

use super::world::{name, soon};

/// A registry of which one person decides.
async fn governed(host: &Supervisor) -> (Registry, Identity) {
    let person = Identity::from_seed(&[9; 32]);
    let registry = Registry::builder("example.com/log", [7; 32]);
    let registry = registry.start(Arc::new(MemoryStore::new()), host).await.unwrap();
    let signer = Signer { name: "ann".into(), key: person.public_key(), expires: None };
    registry.found(Policy::of(1, vec![signer]).unwrap(), soon()).await.unwrap();
    (registry, person)
}

async fn bind(registry: &Registry, person: &Identity, name: &str, content: ContentId) {
    let bound = Content::Artifact(content);
    let proposal = registry.draft_bind(name.parse().unwrap(), bound, Duration::from_secs(3600)).unwrap();
    registry.propose(proposal.clone(), soon()).await.unwrap();
    let done = registry.approve(proposal.approve(person, proposal.expires()), soon()).await.unwrap();
    assert!(matches!(done, Outcome::Committed(_)), "{done:?}");
}

/// A name out of a registry, the manifest out of a store, and this node as the provider: one answer. When the registry
/// decides otherwise, nobody is given the old answer any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_and_a_store_make_one_verified_answer() {
    let host = Supervisor::new("host");
    let store = Store::builder().memory().start(&host).await.unwrap();
    let first = store.put_bytes("the first".into(), soon()).await.unwrap().id;
    let second = store.put_bytes("the second one".into(), soon()).await.unwrap().id;
    let (registry, person) = governed(&host).await;
    bind(&registry, &person, "tools/it", first).await;
    let this = NodeId::from_bytes([5; 32]);
    let index = Index::builder()
        .registry(&registry, LogTrust::new(registry.log_key()))
        .manifests(StoreManifests::new(&store))
        .providers(StoreProviders::new(&store, this, [([127, 0, 0, 1], 4710).into()]).region("eu"))
        .start(&host)
        .unwrap();
    let answer = index.resolve(&name("tools/it"), soon()).await.unwrap();
    let found = answer.resolution();
    let record = found.name.as_ref().unwrap();
    assert_eq!((record.content, record.proven_by, found.manifest.unwrap().len), (first, "registry", 9));
    assert_eq!(
        (found.providers[0].provider.id, found.providers[0].source, found.is_complete),
        (this, "store", true)
    );

    // Whoever asks after the commit is given the new one, although the old one is fresh for a minute.
    assert!(index.resolve(&name("tools/it"), soon()).await.unwrap().is_cached);
    bind(&registry, &person, "tools/it", second).await;
    let changed = async {
        loop {
            let answer = index.resolve(&name("tools/it"), soon()).await.unwrap();
            if answer.resolution().content == Key::Content(second) {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), changed).await.unwrap();
    assert_eq!(answer.resolution().manifest.unwrap().len, 14);

    // A name that is provably nothing is nothing, and so remembered; one that a log of another key says is no answer.
    assert_eq!(index.resolve(&name("tools/other"), soon()).await.unwrap_err(), IndexError::NotFound);
    let forger = NoteSigner::from_seed("example.com/log", KeyKind::Ed25519, &[8; 32]).unwrap();
    let distrusting = Index::builder().registry(&registry, LogTrust::new(forger.verifier().clone()));
    let distrusting = distrusting.start(&host).unwrap();
    assert_eq!(distrusting.resolve(&name("tools/it"), soon()).await.unwrap_err(), IndexError::Unavailable);
    assert_eq!(index.locate(this, soon()).await.unwrap().unwrap().addrs[0].port(), 4710);
    // What is not here is known to nobody, which is not certain.
    let absent = Key::Content(ContentId::of(b"absent"));
    assert_eq!(index.resolve(&absent, soon()).await.unwrap_err(), IndexError::NotFound);
    store.put_bytes("absent".into(), soon()).await.unwrap();
    index.resolve(&absent, soon()).await.unwrap();
    host.shutdown().await;
}

/// Before the beginning of a log nobody knows what a name stands for, nor that it stands for nothing. The first entry changes
/// that at once: nothing of before is remembered.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_has_not_begun_knows_no_names_yet() {
    let host = Supervisor::new("host");
    let registry = Registry::builder("example.com/log", [7; 32]);
    let registry = registry.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    let index = Index::builder().registry(&registry, LogTrust::new(registry.log_key())).start(&host).unwrap();
    for _ in 0..50 {
        let error = index.resolve(&name("tools/it"), soon()).await.unwrap_err();
        assert_eq!(error, IndexError::NotReady { gate: "registry.log" });
    }
    let person = Identity::from_seed(&[9; 32]);
    let signer = Signer { name: "ann".into(), key: person.public_key(), expires: None };
    registry.found(Policy::of(1, vec![signer]).unwrap(), soon()).await.unwrap();
    assert_eq!(index.resolve(&name("tools/it"), soon()).await.unwrap_err(), IndexError::NotFound);
    host.shutdown().await;
}

/// A node that knows no other says so, instead of that nobody has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_alone_cannot_know_yet() {
    let host = Supervisor::new("host");
    let alone = node(&host, 1, None).await;
    let index = Index::builder().names(DhtNames::new(&alone)).providers(DhtProviders::new(&alone));
    let index = index.start(&host).unwrap();
    let waits = IndexError::NotReady { gate: "dht.seeds" };
    let absent = Key::Content(ContentId::of(b"absent"));
    assert_eq!(index.resolve(&absent, soon()).await.unwrap_err(), waits);
    let owned: Key = DhtNames::name_of(&alone.public_key(), "latest").parse().unwrap();
    assert_eq!(index.resolve(&owned, soon()).await.unwrap_err(), waits);
    assert_eq!(index.locate(NodeId::from_bytes([3; 32]), soon()).await.unwrap_err(), waits);
    host.shutdown().await;
}

async fn node(host: &Supervisor, seed: u8, seeds: Option<ron_dht::Contact>) -> Dht {
    let endpoint = Endpoint::builder(Identity::from_seed(&[seed; 32])).listen(([127, 0, 0, 1], 0).into());
    let endpoint = endpoint.start(host).unwrap();
    Dht::builder().seeds(seeds).start(&endpoint, host).await.unwrap()
}

/// Providers and names that nodes of a DHT sign, found by another node of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dht_says_who_has_it_and_what_its_members_call_things() {
    let host = Supervisor::new("host");
    let others = Supervisor::new("others");
    let first = node(&others, 1, None).await;
    let second = node(&others, 2, Some(first.contact())).await;
    let third = node(&host, 3, Some(first.contact())).await;
    for dht in [&second, &third, &first] {
        dht.joined(Deadline::after(Duration::from_secs(10))).await.unwrap();
    }
    let content = ContentId::of(b"something");
    second.provide(content, soon()).await.unwrap();
    second.put_mutable(b"latest", content.to_string().as_bytes(), 1, None, soon()).await.unwrap();
    second.put_mutable(b"nonsense", b"not an address", 1, None, soon()).await.unwrap();
    let index = Index::builder()
        .names(DhtNames::new(&third))
        .providers(DhtProviders::new(&third))
        .settings(Settings {
            budget: Duration::from_secs(5),
            enough: NonZeroUsize::MIN,
            ..Settings::default()
        })
        .start(&host)
        .unwrap();
    let key: Key = DhtNames::name_of(&second.public_key(), "latest").parse().unwrap();
    let answer = index.resolve(&key, soon()).await.unwrap();
    let found = answer.resolution();
    let record = found.name.as_ref().unwrap();
    assert_eq!((record.content, record.version, record.proven_by), (content, 1, "signature"));
    let best = &found.providers[0];
    assert_eq!((best.provider.id, best.source), (second.node_id(), "dht"));
    assert!(best.provider.issued.is_some() && !best.provider.addrs.is_empty());
    // An owner that says nonsense says nothing; a name of nobody stands for nothing; nobody has what nobody provides.
    let nonsense: Key = DhtNames::name_of(&second.public_key(), "nonsense").parse().unwrap();
    assert_eq!(index.resolve(&nonsense, soon()).await.unwrap_err(), IndexError::Unavailable);
    let nothing: Key = DhtNames::name_of(&second.public_key(), "nothing").parse().unwrap();
    assert_eq!(index.resolve(&nothing, soon()).await.unwrap_err(), IndexError::NotFound);
    assert_eq!(
        index.resolve(&name("tools/it"), soon()).await.unwrap_err(),
        IndexError::NotFound,
        "no owner, no source"
    );
    let foreign: Key = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n".parse().unwrap();
    assert_eq!(index.resolve(&foreign, soon()).await.unwrap_err(), IndexError::NotFound);
    let located = index.locate(second.node_id(), soon()).await.unwrap().unwrap();
    assert_eq!(located.addrs[..], second.contact().addrs[..]);
    // Who hears nobody knows of no name that it stands for nothing.
    others.shutdown().await;
    let unheard: Key = DhtNames::name_of(&second.public_key(), "unheard").parse().unwrap();
    let error = index.resolve(&unheard, soon()).await.unwrap_err();
    assert!(matches!(error, IndexError::Unavailable | IndexError::Timeout { .. }), "{error:?}");
    // Nor of any content that nobody has it.
    let unheard = Key::Content(ContentId::of(b"something else"));
    let error = index.resolve(&unheard, soon()).await.unwrap_err();
    assert!(
        matches!(error, IndexError::Unavailable | IndexError::Timeout { .. } | IndexError::NotReady { .. }),
        "{error:?}"
    );
    host.shutdown().await;
}
