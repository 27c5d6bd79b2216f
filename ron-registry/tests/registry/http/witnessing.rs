//! Heads that a witness has signed, over HTTP: what it signs, what it refuses, and who wants it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::post};

use ron_core::{
    Metrics, Supervisor,
    http::Server,
    net::{Endpoint, Identity},
    prometheus_client::registry::Registry as Prometheus,
};
use ron_registry::{
    KeyKind, LogTrust, Note, NoteSigner, NoteVerifier, Registry, TreeHash, Witness, WitnessError,
    client::Client, http, net::Links, store::MemoryStore, verify_consistency,
};

use super::{Host, PATIENCE};
use crate::world::{LOG_KEY, ORIGIN, bind, bind_again, clock, founded, policy, scraped, soon, start};

/// A witness as C2SP `tlog-witness` has it, for one log.
struct Seeing {
    key: NoteSigner,
    log: LogTrust,
    seen: Mutex<Option<(u64, TreeHash)>>,
}

type Said = (StatusCode, String);

impl Seeing {
    fn add_checkpoint(&self, body: &str) -> Result<String, Said> {
        let bad = || (StatusCode::BAD_REQUEST, "not a request".to_owned());
        let (head, note) = body.split_once("\n\n").ok_or_else(bad)?;
        let mut lines = head.lines();
        let old: u64 =
            lines.next().and_then(|line| line.strip_prefix("old ")?.parse().ok()).ok_or_else(bad)?;
        let proof: Option<Vec<TreeHash>> = lines.map(TreeHash::from_base64).collect();
        let (proof, note) = (proof.ok_or_else(bad)?, Note::parse(note.as_bytes()).map_err(|_| bad())?);
        let head = self.log.open(&note).map_err(|_| (StatusCode::FORBIDDEN, "not its key".to_owned()))?;
        let mut seen = self.seen.lock().unwrap();
        let (size, root) = seen.unwrap_or((0, TreeHash::of_nothing()));
        if old > head.size {
            return Err(bad());
        }
        if old != size || (old == head.size && root != head.root) {
            return Err((StatusCode::CONFLICT, format!("{size}\n")));
        }
        verify_consistency((size, &root), (head.size, &head.root), &proof)
            .map_err(|_| (StatusCode::UNPROCESSABLE_ENTITY, "no continuation".to_owned()))?;
        *seen = Some((head.size, head.root));
        Ok(format!("{}\n", self.key.sign(note.text(), 1_700_000_000)))
    }
}

/// A witness that runs, its address and its key.
async fn witness(host: &Supervisor) -> (String, NoteVerifier, Server) {
    let log = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).unwrap();
    let key = NoteSigner::from_seed("w.example/one", KeyKind::Cosignature, &[7; 32]).unwrap();
    let verifier = key.verifier().clone();
    let seeing = Arc::new(Seeing { key, log: LogTrust::new(log.verifier().clone()), seen: Mutex::default() });
    let add = |State(seeing): State<Arc<Seeing>>, body: String| async move { seeing.add_checkpoint(&body) };
    let routes = Router::new().route("/add-checkpoint", post(add)).with_state(seeing);
    let server =
        Server::builder(Router::new().nest("/w", routes)).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.start(host).await.unwrap();
    (format!("http://{}/w", server.local_addrs()[0]), verifier, server)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// Case 49: a witness is shown one face of a log, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_signs_one_face_of_a_log() {
    let host = Supervisor::new("test");
    let (url, key, _server) = witness(&host).await;
    let (one, _) = founded(&host, 1, 1).await;
    let (other, _) = founded(&host, 1, 1).await;
    let trust = LogTrust::new(one.log_key()).witnessed_by([key.clone()], 1);
    for face in [&one, &other] {
        bind_again(face, 20).await;
    }
    let before = Witness::new(&url, key.clone()).unwrap();
    assert_eq!(before.cosign(&one, soon()).await.unwrap(), 21);
    bind(&one, "face", "one", &[0]).await.unwrap();
    bind(&other, "face", "other", &[0]).await.unwrap();
    assert!(one.prove(22).unwrap().verify(one.entry(22, soon()).await.unwrap().encoded(), &trust).is_err());
    assert_eq!(before.cosign(&one, soon()).await.unwrap(), 22);
    // Somebody who does not know yet what it has seen is told.
    let anew = Witness::new(&url, key.clone()).unwrap();
    bind_again(&one, 300).await;
    assert_eq!(anew.cosign(&one, soon()).await.unwrap(), 322);
    assert_eq!(before.cosign(&one, soon()).await.unwrap(), 322, "the same again");
    let entry = one.entry(22, soon()).await.unwrap();
    one.prove_cosigned(22).unwrap().verify(entry.encoded(), &trust).unwrap();
    assert_eq!(trust.open(&one.checkpoint()).unwrap().size, 322, "it is in the head that is served");
    assert_eq!(trust.open(&one.cosigned().unwrap()).unwrap().size, 322);

    // The other face: shorter, as long, and longer.
    let ahead = anew.cosign(&other, soon()).await.unwrap_err();
    assert!(matches!(&ahead, WitnessError::Ahead { seen: 322, size: 22, .. }), "{ahead:?}");
    bind_again(&other, 300).await;
    let split = anew.cosign(&other, soon()).await.unwrap_err();
    assert!(matches!(&split, WitnessError::Split { seen: 322, .. }), "{split:?}");
    bind_again(&other, 3).await;
    for asks in [&anew, &Witness::new(&url, key.clone()).unwrap()] {
        let split = asks.cosign(&other, soon()).await.unwrap_err();
        assert!(matches!(&split, WitnessError::Split { seen: 322, .. }), "{split:?}");
    }
    assert!(other.cosigned().is_none());

    // What is no witness, and who is not that witness.
    let no_witness = Witness::new(&url, one.log_key()).unwrap_err();
    assert!(matches!(no_witness, WitnessError::NotAWitness { .. }));
    let stranger = NoteSigner::from_seed("w.example/one", KeyKind::Cosignature, &[8; 32]).unwrap();
    let other_key = Witness::new(&url, stranger.verifier().clone()).unwrap();
    let refused = other_key.cosign(&one, soon()).await.unwrap_err();
    assert!(matches!(refused, WitnessError::Answer { .. }), "{refused:?}");
    let nobody = Witness::new("http://127.0.0.1:1/w", key.clone()).unwrap().cosign(&one, soon()).await;
    assert!(matches!(nobody, Err(WitnessError::Client { .. })), "{nobody:?}");
    let unknown = Registry::builder("example.com/unknown", [3; 32]).clock(clock());
    let unknown = unknown.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    unknown.found(policy(1, 1), soon()).await.unwrap();
    let refused = anew.cosign(&unknown, soon()).await.unwrap_err();
    assert!(refused.to_string().contains("w.example/one"), "{refused}");
    host.shutdown().await;
}

/// A registry that has its heads witnessed, and followers that want that, over HTTP and between nodes.
#[tokio::test(flavor = "multi_thread")]
async fn what_witnesses_have_signed_is_followed() {
    let host = Supervisor::new("test");
    let (url, key, _server) = witness(&host).await;
    let mut scrape = Prometheus::default();
    let registry = Registry::builder(ORIGIN, LOG_KEY)
        .clock(clock())
        .metrics(Metrics::register("ron_registry", &mut scrape))
        .witnesses([Witness::new(&url, key.clone()).unwrap()], 1, Duration::from_millis(20));
    let registry = registry.start(Arc::new(MemoryStore::new()), &host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_again(&registry, 9).await;
    let trust = LogTrust::new(registry.log_key()).witnessed_by([key.clone()], 1);
    let seen = || registry.cosigned().map_or(0, |note| trust.open(&note).unwrap().size);
    until("it was signed", || seen() == 10).await;

    let routes = Router::new().nest("/at", http::router(&registry));
    let server = Server::builder(routes).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.start(&host).await.unwrap();
    let client = Client::new(&format!("http://{}/at", server.local_addrs()[0])).unwrap();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let there = Endpoint::builder(Identity::generate().unwrap()).listen(loopback).start(&host).unwrap();
    let served = Links::start(&there, &host).unwrap();
    served.serve(&registry, None);
    let here = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let peer = Links::start(&here, &host).unwrap().source(there.node_id(), there.local_addrs());
    let memory = || Arc::new(MemoryStore::new());
    let over_http = Registry::follower(trust.clone(), client.clone().cosigned());
    let over_http = over_http.start(memory(), &host).await.unwrap();
    let over_links = Registry::follower(trust.clone(), peer.cosigned()).start(memory(), &host).await.unwrap();
    bind_again(&registry, 10).await;
    for follower in [&over_http, &over_links] {
        until("it has followed", || follower.head() == registry.head()).await;
        trust.open(&follower.checkpoint()).unwrap();
    }
    let entry = client.entry(15, soon()).await.unwrap();
    client.clone().cosigned().proof(15, soon()).await.unwrap().verify(&entry, &trust).unwrap();
    let text = scraped(&scrape);
    assert!(text.contains("ron_registry_cosigned_version 20"), "{text}");
    host.shutdown().await;
}

/// Who has witnesses and does not know what they have seen prunes nothing: they could not be shown any more that the log
/// has only grown.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_pruned_before_witnesses_were_heard() {
    let host = Supervisor::new("test");
    let (url, key, server) = witness(&host).await;
    let store = Arc::new(MemoryStore::new());
    let first = start(store.clone(), &host).await;
    first.found(policy(1, 1), soon()).await.unwrap();
    bind_again(&first, 599).await;
    first.shutdown().await;
    let mut scrape = Prometheus::default();
    let metrics = Metrics::register("ron_registry", &mut scrape);
    let open = |url: &str| {
        let witness = Witness::new(url, key.clone()).unwrap();
        let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock()).metrics(metrics.clone());
        builder.witnesses([witness], 1, Duration::from_millis(20)).start(store.clone(), &host)
    };
    let registry = open("http://127.0.0.1:1/w").await.unwrap();
    assert_eq!(registry.prune(512, soon()).await, Ok(0));
    let is_counted = || scraped(&scrape).contains("ron_registry_witness_errors_total{what=\"away\"}");
    until("a witness that is away is counted", is_counted).await;
    assert_eq!(registry.status().first, 1);
    registry.shutdown().await;
    let registry = open(&url).await.unwrap();
    until("it was signed", || registry.cosigned().is_some()).await;
    assert!(registry.prune(512, soon()).await.unwrap() > 0);
    assert_eq!(registry.status().first, 513);
    drop(server);
    host.shutdown().await;
}

/// Nothing was signed yet: that is told apart from what is not there.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_witnesses_is_told_that_there_are_none() {
    let host = Host::founded(1, 1).await;
    host.get("/checkpoint?cosigned=1").await.is_problem(404, "no_such_entry");
    host.get("/proofs/1?cosigned=1").await.is_problem(404, "no_such_entry");
    host.get("/proofs/1?cosigned=2").await.is_problem(400, "bad_query");
    assert_eq!(host.get("/checkpoint?cosigned=0").await.status, 200);
    host.supervisor.shutdown().await;
}
