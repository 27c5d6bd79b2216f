//! The client against the routes: a whole decision, and a follower over HTTP.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ron_core::{Deadline, Refusal as _};
use ron_registry::{
    LogTrust, Registry, Source as _, SourceError,
    client::{Client, ClientError},
    json::PendingBody,
    store::MemoryStore,
};

use super::Host;
use crate::world::{approvals, bind, draft, policy, soon};

fn client(host: &Host) -> Client {
    Client::new(&format!("http://{}/at/", host.address)).unwrap().token("all")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_and_its_proofs_from_afar() {
    let host = Host::start().await;
    let client = client(&host);
    assert_eq!(client.found(&policy(2, 3), soon()).await.unwrap().version, Some(1));
    let proposal = draft(&host.registry, "tools/a", "x");
    let told = client.propose(&proposal, soon()).await.unwrap();
    assert_eq!((&*told.state, told.missing.len()), ("pending", 3));
    let both = approvals(&proposal, &[0, 1]);
    client.approve(&both[0], soon()).await.unwrap();
    assert_eq!(client.pending(soon()).await.unwrap()[0].missing, ["s1", "s2"]);
    let one = client.waiting(&proposal.id(), soon()).await.unwrap().unwrap();
    assert_eq!((one.missing, one.approvals.len()), (vec!["s1".to_owned(), "s2".into()], 1));
    assert_eq!(client.approve(&both[1], soon()).await.unwrap().version, Some(2));
    assert_eq!(client.waiting(&proposal.id(), soon()).await.unwrap(), None);
    let again = draft(&host.registry, "tools/b", "x");
    assert_eq!(client.commit(&again, &approvals(&again, &[1, 2]), soon()).await.unwrap().version, Some(3));

    let trust = LogTrust::new(client.head(soon()).await.unwrap().log_key.parse().unwrap());
    let name = "tools/a".parse().unwrap();
    assert_eq!(client.name(&name, &trust, soon()).await.unwrap().unwrap().version, 2);
    // Whatever a name may be made of.
    for (version, odd) in (4..).zip(["a?b=1", "a%2fb", "a#b", "a%b", "a+b&c", "\"<>`{|}^\\[]"]) {
        let proposal = draft(&host.registry, odd, "x");
        client.commit(&proposal, &approvals(&proposal, &[1, 2]), soon()).await.unwrap();
        let latest = client.name(&odd.parse().unwrap(), &trust, soon()).await.unwrap();
        assert_eq!(latest.unwrap().version, version, "{odd}");
    }
    let entry = client.entry(2, soon()).await.unwrap();
    client.proof(2, soon()).await.unwrap().verify(&entry, &trust).unwrap();
    assert_eq!(client.policy(soon()).await.unwrap().policy.groups[0].needed, 2);
    assert_eq!(client.log(Some(2), 2, soon()).await.unwrap().entries.len(), 2);

    // Somebody else's key proves nothing here.
    let other = Registry::builder("example.com/registry", [1; 32]);
    let other = other.start(Arc::new(MemoryStore::new()), &host.supervisor).await.unwrap();
    let unproven = client.name(&name, &LogTrust::new(other.log_key()), soon()).await.unwrap_err();
    assert!(matches!(unproven, ClientError::Unproven(_)), "{unproven:?}");
    let refused = client.entry(99, soon()).await.unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused { status: 404, code, .. } if code == "no_such_entry"),
        "{refused:?}"
    );
    assert!(matches!(Client::new("ftp://x"), Err(ClientError::Address { .. })));
    let nobody = Client::new("http://127.0.0.1:1/registry").unwrap().head(soon()).await.unwrap_err();
    assert!(matches!(nobody, ClientError::Unreachable { .. }) && nobody.kind().is_retryable(), "{nobody:?}");
    // It takes connections, and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let late = silent.head(Deadline::after(Duration::from_millis(50))).await.unwrap_err();
    assert!(matches!(late, ClientError::Timeout { .. }), "{late:?}");
    let strange = Client::new(&format!("http://{}", host.address)).unwrap().head(soon()).await.unwrap_err();
    assert!(matches!(strange, ClientError::Refused { status: 404, .. }), "{strange:?}");
    host.supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_followed_over_http() {
    let host = Host::founded(1, 1).await;
    for number in 0..20 {
        bind(&host.registry, &format!("n/{number}"), "x", &[0]).await.unwrap();
    }
    let source = client(&host);
    let trust = LogTrust::new(host.registry.log_key());
    let follower = Registry::follower(trust, source.clone());
    let follower = follower.start(Arc::new(MemoryStore::new()), &host.supervisor).await.unwrap();
    let mut updates = follower.updates(1);
    for version in 1..=21 {
        let update = soon().limit("update", updates.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(update.version, version);
    }
    bind(&host.registry, "later", "x", &[0]).await.unwrap();
    assert_eq!(soon().limit("update", updates.next()).await.unwrap().unwrap().unwrap().version, 22);
    assert_eq!(follower.head(), host.registry.head());
    super::reading::bind_tile(&host).await;
    assert_eq!(source.entries(1, 10, soon()).await, Err(SourceError::Pruned { first: 257 }));
    assert_eq!(source.entries(257, 10, soon()).await.unwrap().len(), 10);

    // Who comes now starts from the snapshot, over the same routes.
    let offer = source.snapshot(soon()).await.unwrap().unwrap();
    assert_eq!((offer.version, offer.parts), (256, 1));
    for gone in [(256, 1), (512, 0)] {
        let refused = source.snapshot_part(gone.0, gone.1, soon()).await;
        assert!(matches!(refused, Err(SourceError::Refused { .. })), "{refused:?}");
    }
    let trust = LogTrust::new(host.registry.log_key());
    let late = Registry::follower(trust.clone(), source.clone());
    let late = late.start(Arc::new(MemoryStore::new()), &host.supervisor).await.unwrap();
    let mut updates = late.updates(257);
    let head = host.registry.head();
    for version in 257..=head.version {
        let update = soon().limit("update", updates.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(update.version, version);
    }
    assert_eq!((late.head(), late.status().first), (head, 257));
    let old = "n/3".parse().unwrap();
    assert!(late.name(&old).unwrap().verify(&old, &trust).unwrap().is_some());
    host.supervisor.shutdown().await;
}

/// More waits than an answer holds: it is had page by page, and one of them by its id. All of it in one answer used to be
/// more than the client takes, and nobody could approve anything by its id any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_listed_however_much_it_is() {
    let host = Host::founded(2, 3).await;
    let client = client(&host);
    let large = "x".repeat(40 << 10);
    let proposals: Vec<_> =
        (0..200).map(|number| draft(&host.registry, &format!("large/{number}"), &large)).collect();
    for proposal in &proposals {
        client.propose(proposal, soon()).await.unwrap();
    }
    let listed = client.pending(soon()).await.unwrap();
    let places = |one: &PendingBody| (one.proposal.expires, one.proposal.id.clone());
    assert!(listed.is_sorted_by_key(places));
    let ids: BTreeSet<String> = listed.iter().map(|one| one.proposal.id.clone()).collect();
    assert_eq!((listed.len(), ids.len()), (200, 200));
    assert_eq!(ids, proposals.iter().map(|proposal| proposal.id().to_string()).collect());
    for proposal in [&proposals[0], &proposals[199]] {
        let found = client.waiting(&proposal.id(), soon()).await.unwrap().unwrap();
        assert_eq!(found.proposal.id, proposal.id().to_string());
    }
    // An answer has no more than it may, and goes on where it ended though what it ended with is decided.
    let pages = "authorization: Bearer all\r\n";
    let page = host.send("GET", "/proposals?limit=3", pages, b"").await.json();
    let next = page["next"].as_str().unwrap();
    assert_eq!(page["proposals"].as_array().unwrap().len(), 3);
    let last = proposals.iter().find(|one| next.ends_with(&one.id().to_string())).unwrap();
    client.commit(last, &approvals(last, &[0, 1]), soon()).await.unwrap();
    let rest = host.send("GET", &format!("/proposals?limit=3&after={next}"), pages, b"").await.json();
    assert_eq!(rest["proposals"][0]["proposal"]["id"], listed[3].proposal.id);
    let whole = host.send("GET", "/proposals?limit=9999", pages, b"").await;
    assert!(whole.body.len() < 4 << 20, "{}", whole.body.len());
    for odd in ["after=", "after=1", "after=1-2", "after=x-y", "limit=x", "limit=", "from=1"] {
        host.send("GET", &format!("/proposals?{odd}"), pages, b"").await.is_problem(400, "bad_query");
    }
    host.supervisor.shutdown().await;
}
