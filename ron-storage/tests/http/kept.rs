//! The routes of a store whose objects live on many nodes: two nodes over TLS, each with a server.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ron_core::{
    ContentId, NodeId, Snapshot, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    http::Server,
    net::{Contact, Endpoint, Identity},
    sim::SimDisk,
};
use ron_storage::{
    Settings, Store,
    claims::Policy,
    client::{Client, ClientError, PutOptions},
    http::{self, Kept, Wishes, openapi_kept},
    peers::{Links, Peer, Rules},
    repair::{Ack, Keeping, KeepingSettings, Member},
};
use serde_json::Value;

use crate::{Answer, openapi::check, openapi::schema, send_to, soon};

const TOKEN: &str = "open sesame";

struct Word;

impl Authorizer for Word {
    fn authorize(&self, _: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        match credentials.bearer {
            Some(TOKEN) => Ok(Grant::new("test")),
            Some(_) => Err(Denied::Unknown),
            None => Err(Denied::Missing),
        }
    }
}

struct Node {
    store: Store,
    keeping: Keeping,
    server: Server,
    wishes: Snapshot<Wishes>,
    host: Supervisor,
}

impl Node {
    async fn ask(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let headers = format!("authorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n", body.len());
        send_to(self.server.local_addrs()[0], method, path, &headers, body).await
    }

    fn client(&self) -> Client {
        Client::builder(format!("http://{}", self.server.local_addrs()[0])).token(TOKEN).build().unwrap()
    }
}

async fn two() -> [Node; 2] {
    let identity = |number: u8| Identity::from_seed(&[number + 1; 32]);
    let owner = Arc::new(Identity::from_seed(&[99; 32]));
    let members = Snapshot::new(Vec::new());
    let mut nodes = Vec::new();
    for number in 0..2 {
        let host = Supervisor::new("node");
        let endpoint =
            Endpoint::builder(identity(number)).listen("127.0.0.1:0".parse().unwrap()).start(&host).unwrap();
        let contact = Contact { id: endpoint.node_id(), addrs: endpoint.local_addrs().into() };
        members.update(|members: &Vec<Member>| {
            let member = Member { peer: Peer::from(contact), zone: number.into(), weight: 100 };
            members.iter().cloned().chain([member]).collect()
        });
        let settings = Settings { reserve_bytes: 0, object_bytes_max: 1_000_000, ..Settings::default() };
        let store = Store::builder().data(Arc::new(SimDisk::new()), "store").settings(settings);
        let store = store.start(&host).await.unwrap();
        let links = Links::start(&endpoint, &host).unwrap();
        let settings = KeepingSettings {
            tick: Duration::from_millis(100),
            refresh: Duration::from_millis(50),
            retry: Duration::from_millis(100),
            ..KeepingSettings::default()
        };
        let keeping =
            Keeping::builder(&store, endpoint.node_id(), Arc::new(links.clone()), Arc::new(members.clone()));
        let keeping = keeping.settings(settings).start(&host).unwrap();
        let trusting = keeping.clone();
        let trusts = Arc::new(move |node: &NodeId| trusting.is_member(node));
        links.serve(&store, Rules { trusts: Some(trusts), judge: keeping.judge(), ..Rules::default() });
        let wishes = Snapshot::new(Wishes { ack_timeout: Duration::from_secs(5), ..Wishes::default() });
        let kept = Kept::new(&keeping, Arc::clone(&owner), wishes.clone());
        let routes = http::kept(&kept).merge(http::kept_guarded(&kept, Arc::new(Word)));
        let server = Server::builder(routes)
            .listen(std::net::SocketAddr::from(([127, 0, 0, 1], 0)))
            .start(&host)
            .await
            .unwrap();
        nodes.push(Node { store, keeping, server, wishes, host });
    }
    for node in &nodes {
        while node.keeping.status().up < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    nodes.try_into().unwrap_or_else(|_| unreachable!())
}

/// The document has all routes and no other method, and each answers as it says.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_described() {
    let [node, _other] = two().await;
    let document = openapi_kept();
    let mut answered = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let operation = &operations[method.to_lowercase()];
            for name in ["present", "absent", "none"] {
                let put = node.client().put(stream(b"present"), PutOptions::default(), soon()).await.unwrap();
                let (id, peer) = match name {
                    "present" => (put.id.to_string(), node.keeping.me().to_string()),
                    "absent" => (ContentId::of(b"absent").to_string(), "00".repeat(32)),
                    _ => ("zz".to_owned(), "zz".to_owned()),
                };
                let path = path.replace("{id}", &id).replace("{node}", &peer);
                for query in ["", "?unknown"] {
                    let answer = node.ask(method, &format!("{path}{query}"), b"present").await;
                    if operation.is_null() {
                        assert_eq!(answer.status, 405, "{method} {path}");
                        continue;
                    }
                    answered.insert(format!("{method} {}", answer.status));
                    if let Some(schema) = schema(&document, operation, &answer) {
                        check(&document, schema, &answer.json());
                    }
                }
                if operation["security"].is_array() {
                    let denied =
                        send_to(node.server.local_addrs()[0], method, &path, "content-length: 0\r\n", b"")
                            .await;
                    assert_eq!(denied.status, 401, "{method} {path}");
                }
            }
        }
    }
    for seen in
        ["GET 200", "GET 404", "PUT 200", "PUT 404", "POST 200", "DELETE 204", "DELETE 404", "DELETE 400"]
    {
        assert!(answered.contains(seen), "{seen} in {answered:?}");
    }
    node.host.shutdown().await;
}

fn stream(
    content: &'static [u8],
) -> impl futures_core::Stream<Item = Result<bytes::Bytes, std::io::Error>> + Send {
    Once(Some(bytes::Bytes::from_static(content)))
}

struct Once(Option<bytes::Bytes>);

impl futures_core::Stream for Once {
    type Item = Result<bytes::Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.take().map(Ok))
    }
}

/// A put is told how many nodes have it; another node serves it; what it does not know is refused with the parameter's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_says_who_has_it_and_every_node_serves_it() {
    let [one, other] = two().await;
    let options = PutOptions { policy: Some("2".into()), ack: Some("2".into()), ..PutOptions::default() };
    let put = one.client().put(stream(b"on both"), options, soon()).await.unwrap();
    assert_eq!((put.acknowledged, put.policy.as_deref()), (Some(2), Some("2 copies")));
    assert!(other.store.has(put.id, soon()).await.unwrap());

    // Only on one, by what is usual there, and read from the other.
    one.wishes.replace(Wishes { policy: Policy::Copies(1), ..*one.wishes.load() });
    let put = one.client().put(stream(b"on one of them"), PutOptions::default(), soon()).await.unwrap();
    assert_eq!((put.acknowledged, put.policy.as_deref()), (Some(1), Some("1 copy")));
    for node in [&one, &other] {
        let answer = node.ask("GET", &format!("/o/{}", put.id), b"").await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"on one of them"[..]));
    }
    // With ranges and proofs, as everything.
    let part =
        send_to(other.server.local_addrs()[0], "GET", &format!("/o/{}", put.id), "range: bytes=3-5\r\n", b"")
            .await;
    assert_eq!((part.status, &part.body[..]), (206, &b"one"[..]));

    let said = one.ask("PUT", &format!("/keeping/objects/{}?policy=1+1&ack=2", put.id), b"").await;
    assert_eq!(
        (&said.json()["policy"], &said.json()["acknowledged"]),
        (&"1+1".into(), &2.into()),
        "{:?}",
        said.json()
    );
    for (query, word) in [
        ("policy=0", "copies"),
        ("policy=40+3", "shards"),
        ("ack=none", "local"),
        ("ack=0", "local"),
        ("nonsense=1", "nonsense"),
    ] {
        let refused = one.ask("POST", &format!("/o?{query}"), b"x").await;
        refused.is_problem(400, "bad_query");
        assert!(refused.json()["detail"].as_str().unwrap().contains(word), "{query}: {}", refused.json());
    }
    // More than there are: it is kept, and the client is told that this was not what it asked for.
    one.wishes.replace(Wishes {
        ack: Ack::Copies(3),
        policy: Policy::Copies(3),
        ack_timeout: Duration::from_secs(1),
        ..*one.wishes.load()
    });
    let refused = one.client().put(stream(b"on three"), PutOptions::default(), soon()).await.unwrap_err();
    let three = ContentId::of(b"on three");
    assert!(
        matches!(refused, ClientError::Unacknowledged { id, acknowledged: 2, wanted: 3 } if id == three),
        "{refused:?}"
    );
    assert!(one.store.has(three, soon()).await.unwrap());
    let refused = one.ask("POST", "/o", b"on three").await;
    refused.is_problem(503, "unacknowledged");
    let document = openapi_kept();
    let described = schema(&document, &document["paths"]["/o"]["post"], &refused).unwrap();
    check(&document, described, &refused.json());
    assert_eq!((&refused.json()["acknowledged"], &refused.json()["wanted"]), (&2.into(), &3.into()));

    // Deleted by the other, which did not put it.
    let gone = other.ask("DELETE", &format!("/o/{}", put.id), b"").await;
    assert_eq!(gone.status, 204);
    other.ask("GET", &format!("/o/{}", put.id), b"").await.is_problem(404, "no_such_object");
    let status: Value = other.ask("GET", "/keeping/status", b"").await.json();
    assert_eq!((&status["up"], &status["draining"]), (&2.into(), &false.into()), "{status}");
    assert_eq!(other.ask("PUT", "/keeping/draining", b"").await.json()["draining"], true);
    assert_eq!(other.ask("DELETE", "/keeping/draining", b"").await.json()["draining"], false);
    for node in [one, other] {
        node.host.shutdown().await;
    }
}
