//! Entries, names and proofs as they are served.

use bytes::Bytes;
use data_encoding::BASE64;
use ron_core::ContentId;
use ron_registry::{Entry, LogTrust, NameAnswer, NameProof, Note, ProofFile, TreeHash, verify_consistency};

use super::Host;
use crate::world::{bind, soon};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_can_be_checked_offline() {
    let host = Host::founded(2, 3).await;
    for number in 0..5 {
        bind(&host.registry, &format!("tools/{number}"), "x", &[0, 2]).await.unwrap();
    }
    let trust = LogTrust::new(host.registry.log_key());
    let head = host.get("/head").await.json();
    assert_eq!(
        (head["version"].as_u64(), head["epoch"].as_u64(), head["follows"].as_bool()),
        (Some(6), Some(1), Some(false))
    );
    assert_eq!(head["log_key"], host.registry.log_key().to_string());
    let note = host.get("/checkpoint").await;
    assert_eq!(note.header("content-type"), "text/plain; charset=utf-8");
    let said = trust.open(&Note::parse(&note.body).unwrap()).unwrap();
    assert_eq!(said.size, 6);
    // Who has it already is told so.
    let tag = format!("if-none-match: {}\r\n", note.header("etag"));
    assert_eq!(host.send("GET", "/checkpoint", &tag, b"").await.status, 304);

    let entry = host.send("GET", "/4", "accept: application/cbor\r\n", b"").await;
    assert!(entry.header("cache-control").contains("immutable"), "{entry:?}");
    let proof = ProofFile::parse(&host.get("/proofs/4").await.body).unwrap();
    assert_eq!(proof.verify(&entry.body, &trust).unwrap(), said);
    assert!(proof.verify(b"something else", &trust).is_err());
    let read = host.get("/4").await.json();
    assert_eq!(
        (&read["proposal"]["name"], read["approvals"].as_array().unwrap().len()),
        (&"tools/2".into(), 2)
    );

    for (name, is_bound) in [("tools/3", true), ("tools/none", false)] {
        let body = host.get(&format!("/names/{name}")).await.json();
        let bytes = |field: &str| BASE64.decode(body[field].as_str().unwrap().as_bytes()).unwrap();
        let answer = NameAnswer {
            latest: None,
            proof: NameProof::decode(&bytes("proof")).unwrap(),
            entry: bytes("entry").into(),
            inclusion: ProofFile::parse(body["inclusion"].as_str().unwrap().as_bytes()).unwrap(),
        };
        let latest = answer.verify(&name.parse().unwrap(), &trust).unwrap();
        assert_eq!(latest.map(|latest| latest.version), body["version"].as_u64());
        assert_eq!(latest.is_some(), is_bound);
    }

    let consistency = host.get("/consistency?old=3").await.json();
    let hashes = consistency["hashes"].as_array().unwrap().iter();
    let hashes: Vec<TreeHash> =
        hashes.map(|hash| TreeHash::from_base64(hash.as_str().unwrap()).unwrap()).collect();
    let bundle =
        host.send("GET", "/entries?from=1&limit=3", "accept: application/octet-stream\r\n", b"").await;
    let (mut tree, mut rest) = (ron_registry::logic::tiles::Tree::new(), Bytes::from(bundle.body));
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        let entry = rest.slice(2..2 + len);
        assert_eq!(Entry::decode(&entry).unwrap().version(), tree.size() + 1);
        tree.push(TreeHash::of_leaf(&entry));
        rest = rest.slice(2 + len..);
    }
    verify_consistency((3, &tree.root()), (6, &said.root), &hashes).unwrap();

    // As other tools ask for it.
    let tile = host.get("/tile/0/000.p/6").await;
    assert_eq!((tile.body.len(), tile.header("content-type")), (6 * 32, "application/octet-stream"));
    assert!(tile.header("cache-control").contains("immutable"));
    assert!(host.get("/tile/entries/000.p/6").await.body.len() > 6 * 100);
    host.supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_go_on_and_content_is_found() {
    let host = Host::founded(1, 1).await;
    for number in 0..6 {
        bind(&host.registry, &format!("n/{number}"), if number % 2 == 0 { "even" } else { "odd" }, &[0])
            .await
            .unwrap();
    }
    let page = host.get("/entries?from=2&limit=4").await.json();
    let versions: Vec<u64> =
        page["entries"].as_array().unwrap().iter().map(|entry| entry["version"].as_u64().unwrap()).collect();
    assert_eq!((versions, page["next"].as_u64()), (vec![2, 3, 4, 5], Some(6)));
    assert_eq!(host.get("/entries?from=6").await.json().get("next"), None);
    assert_eq!(host.get("/entries?from=8").await.json()["entries"].as_array().unwrap().len(), 0);

    let found = host.get(&format!("/by-content/{}", ContentId::of(b"even"))).await.json();
    assert_eq!(found["versions"], serde_json::json!([2, 4, 6]));
    let none = host.get(&format!("/by-content/{}", ContentId::of(b"never"))).await.json();
    assert_eq!(none["versions"], serde_json::json!([]));
    assert_eq!(host.registry.versions_of(ContentId::of(b"odd"), soon()).await, Ok(vec![3, 5, 7]));
    host.supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_told_apart() {
    let host = Host::start().await;
    host.get("/policy").await.is_problem(404, "no_such_entry");
    host.get("/names/a").await.is_problem(404, "no_such_entry");
    host.registry.found(crate::world::policy(1, 1), soon()).await.unwrap();
    for (path, status, code) in [
        ("/0", 400, "bad_version"),
        ("/nine", 400, "bad_version"),
        ("/9", 404, "no_such_entry"),
        ("/proofs/9", 404, "no_such_entry"),
        ("/names//", 400, "bad_form"),
        ("/tile/0/001", 404, "no_such_entry"),
        ("/tile/0/1", 400, "bad_tile"),
        ("/tile/x", 400, "bad_tile"),
        ("/consistency?old=1&new=9", 404, "no_such_entry"),
        ("/consistency?old=9&new=1", 400, "bad_query"),
        ("/consistency", 400, "bad_query"),
        ("/entries?from=x", 400, "bad_query"),
        ("/by-content/x", 400, "bad_id"),
        ("/snapshot", 404, "no_snapshot"),
        ("/snapshot/256/0", 404, "no_snapshot"),
        ("/snapshot/0/0", 400, "bad_part"),
        ("/snapshot/256/x", 400, "bad_part"),
        ("/snapshot/256/4294967296", 400, "bad_part"),
        ("/head?x", 400, "bad_query"),
    ] {
        let answer = host.get(path).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{path}");
    }
    bind_tile(&host).await;
    host.get("/1").await.is_problem(410, "pruned");
    host.get("/proofs/1").await.is_problem(410, "pruned");
    host.get("/tile/0/000").await.is_problem(410, "pruned");
    assert_eq!(host.get("/snapshot").await.json(), serde_json::json!({"version": 256, "parts": 1}));
    let part = host.get("/snapshot/256/0").await;
    assert_eq!((part.status, part.header("content-type")), (200, "application/cbor"));
    assert!(part.header("cache-control").contains("immutable"));
    host.get("/snapshot/256/1").await.is_problem(404, "no_snapshot");
    host.supervisor.shutdown().await;
}

/// Enough entries for a whole tile, and lets go of it.
pub(super) async fn bind_tile(host: &Host) {
    crate::world::bind_many(&host.supervisor, &host.registry, 0..300).await;
    let before = host.get("/head").await.json();
    host.registry.prune(256, soon()).await.unwrap();
    assert_eq!(host.registry.status().first, 257);
    // Nothing was committed, and yet the words that were kept are not right any more.
    let after = host.get("/head").await.json();
    assert_eq!((before["first"].as_u64(), after["first"].as_u64()), (Some(1), Some(257)));
    assert_eq!(before["version"], after["version"]);
}

/// Whatever is committed meanwhile, the checkpoint in an answer is of the version in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_of_one_moment() {
    let host = Host::founded(1, 1).await;
    let trust = LogTrust::new(host.registry.log_key());
    let commits = async {
        for number in 0..100 {
            bind(&host.registry, &format!("n/{number}"), "x", &[0]).await.unwrap();
        }
    };
    let reads = async {
        let mut last = 0;
        while last < 101 {
            let head = host.get("/head").await.json();
            let note = Note::parse(head["checkpoint"].as_str().unwrap().as_bytes()).unwrap();
            let version = head["version"].as_u64().unwrap();
            assert_eq!(trust.open(&note).unwrap().size, version);
            assert!(version >= last);
            last = version;
        }
    };
    tokio::join!(commits, reads);
    host.supervisor.shutdown().await;
}
