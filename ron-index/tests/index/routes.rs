//! The routes through a real server over loopback sockets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use ron_core::{
    Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant, TokenFile},
    http::{Server, VersionInfo, ops_router},
};
use ron_index::{Index, Settings, http, source::SourceError};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    contract::futures_of,
    world::{Book, Catalogue, Does, Scripted, World, content, ms, soon},
};

/// No step of any test takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// An index behind a server, mounted somewhere.
pub(crate) struct Served {
    pub(crate) world: World,
    address: SocketAddr,
    token: String,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value)
    }

    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.json()["code"].as_str()), (status, Some(code)), "{:?}", self.json());
        assert_eq!(self.header("content-type"), "application/problem+json");
    }
}

/// Allows nothing but to those who say the word.
struct Never;

impl Authorizer for Never {
    fn authorize(&self, _: &Action<'_>, shown: &Credentials<'_>) -> Result<Grant, Denied> {
        Err(if shown.bearer.is_some() { Denied::Forbidden } else { Denied::Missing })
    }
}

impl Served {
    pub(crate) async fn start(world: World) -> Served {
        Served::allowing(world, None).await
    }

    async fn allowing(world: World, authorizer: Option<Arc<dyn Authorizer>>) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let tokens = TokenFile::open(dir.path().join("token")).unwrap();
        let token = std::fs::read_to_string(tokens.path()).unwrap().trim().to_owned();
        let authorizer = authorizer.unwrap_or_else(|| Arc::new(tokens));
        let routes = http::router(&world.index).merge(http::guarded(&world.index, authorizer));
        let host: &Supervisor = &world.host;
        let registry = Arc::new(ron_core::prometheus_client::registry::Registry::default());
        let ops = ops_router(host.ready().clone(), registry, VersionInfo::new("test", "0"));
        let server = Server::builder(Router::new().nest("/at", routes)).ops(ops);
        let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(host).await.unwrap();
        let address = server.local_addrs()[0];
        // The server lives as long as the supervisor that has it.
        std::mem::forget(server);
        Served { world, address, token, _dir: dir }
    }

    pub(crate) async fn get(&self, path: &str, headers: &str) -> Reply {
        self.send("GET", &format!("/at{path}"), headers, b"").await
    }

    async fn allowed(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let headers =
            format!("authorization: Bearer {}\r\ncontent-length: {}\r\n{headers}", self.token, body.len());
        self.send(method, &format!("/at{path}"), &headers, body).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let mut stream = timeout(PATIENCE, TcpStream::connect(self.address)).await.unwrap().unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may have answered and closed already.
        let _ = stream.write_all(body).await;
        let mut bytes = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut body = bytes[end + 4..].to_vec();
        if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
            body = dechunk(&body);
        }
        Reply { status, headers, body }
    }
}

fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n").expect("a length");
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if len == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = &bytes[end + 4 + len..];
    }
}

fn finds() -> Scripted {
    Scripted::new("source", ms(1), Does::Finds((1..9).collect()))
}

/// With a name, a manifest and eight providers.
pub(crate) async fn served() -> (Served, Scripted) {
    let (source, book) = (finds(), Book::default());
    book.bind("tools/it", &content(1), 3);
    let builder = Index::builder().names(book).manifests(Catalogue::default()).providers(source.clone());
    let settings = Settings { enough: 8.try_into().unwrap(), ..Settings::default() };
    (Served::start(World::start(builder, settings)).await, source)
}

/// Answers out of the cache leave a place for the correlation that our server writes. Behind another server it was sent as it was,
/// `x-corr-id:` without a value.
#[tokio::test(flavor = "multi_thread")]
async fn behind_another_server_no_correlation_is_sent() {
    let (served, _) = served().await;
    let mut routes = http::lookups(&served.world.index);
    for path in ["tools/it", "tools/it", "tools/it?limit=1", "nobody/knows"] {
        let request =
            axum::http::Request::get(format!("/resolve/{path}")).body(axum::body::Body::empty()).unwrap();
        let response = ron_core::http::Service::call(&mut routes, request).await.unwrap();
        assert_eq!(response.headers().get("x-corr-id"), None, "{path}");
        let ours = served.get(&format!("/resolve/{path}"), "").await;
        assert_eq!(ours.status, response.status().as_u16(), "{path}");
        assert_eq!(ours.header("x-corr-id").len(), 16, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_resolved_with_everything_that_caches_want() {
    let (served, source) = served().await;
    let reply = served.get("/resolve/tools/it", "").await;
    let body = reply.json();
    assert_eq!(reply.status, 200, "{body}");
    assert_eq!((body["kind"].as_str(), body["key"].as_str()), (Some("name"), Some("tools/it")));
    assert_eq!(body["content"], content(1).to_string());
    assert_eq!((&body["name"]["version"], &body["manifest"]["len"]), (&json!(3), &json!(42)));
    assert_eq!((body["providers"].as_array().unwrap().len(), &body["stale"]), (5, &Value::Null));
    assert_eq!(
        reply.header("cache-control"),
        "public, max-age=60, stale-while-revalidate=30, stale-if-error=3600"
    );
    assert_eq!((reply.header("age"), reply.header("vary")), ("0", "accept"));
    let etag = reply.header("etag").to_owned();
    assert!(etag.len() == 34 && etag.starts_with('"'));
    let again = served.get("/resolve/tools/it", &format!("if-none-match: \"x\", W/{etag}\r\n")).await;
    assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, &*etag));

    // By its address and by its CID it is the same content, and nobody is asked for it again.
    let ron_index::Key::Content(id) = content(1) else { panic!() };
    for key in [id.to_string(), id.to_cid()] {
        let body = served.get(&format!("/resolve/{key}?limit=32&explain=true"), "").await.json();
        assert_eq!((body["kind"].as_str(), body["cid"].as_str()), (Some("b3"), Some(&*id.to_cid())));
        let providers = body["providers"].as_array().unwrap();
        assert_eq!(providers.len(), 8);
        assert!(providers[0]["rank"]["score"].as_f64().unwrap() > 0.0, "{body}");
    }
    assert_eq!(source.asked(), 1);
    let one = served.get(&format!("/providers/{id}?limit=1"), "").await;
    assert_eq!((one.status, one.json()["providers"].as_array().unwrap().len()), (200, 1));
    served.world.host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn providers_come_line_by_line_to_those_who_ask_for_that() {
    let (served, source) = served().await;
    let path = format!("/providers/{}", content(7));
    let lines = served.get(&format!("{path}?limit=32"), "accept: application/x-ndjson\r\n").await;
    assert_eq!((lines.status, lines.header("content-type")), (200, "application/x-ndjson"));
    let text = String::from_utf8(lines.body).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() == 8, "{text}");
    for line in text.lines() {
        let provider: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (provider["id"].as_str().unwrap().len(), provider["source"].as_str()),
            (64, Some("source"))
        );
    }
    // Not to those who take anything.
    assert_eq!(served.get(&path, "accept: */*\r\n").await.header("content-type"), "application/json");
    let refused = "accept: application/x-ndjson;q=0, application/json\r\n";
    assert_eq!(served.get(&path, refused).await.header("content-type"), "application/json");
    source.now_does(ms(1), Does::FindsNobody { is_final: true });
    let nobody = format!("/providers/{}", content(8));
    // The manifest is known, so it is something that nobody is known to have.
    assert_eq!(served.get(&nobody, "accept: application/x-ndjson\r\n").await.body, b"");
    served.world.host.shutdown().await;
}

/// Every way to be refused has its status, and a code for programs.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_says_why() {
    let source = Scripted::new("source", ms(1), Does::FindsNobody { is_final: true });
    let settings = Settings { budget: ms(50), hedge_after: ms(20), ..Settings::default() };
    let served = Served::start(World::with(&[&source], settings)).await;
    for path in ["/resolve/b3:12", "/resolve/a%20b", "/resolve/a//b", "/providers/tools", "/providers/b3:xx"]
    {
        served.get(path, "").await.is_problem(400, "bad_key");
    }
    served.get(&format!("/resolve/{}", "n".repeat(600)), "").await.is_problem(400, "bad_key");
    for query in [
        "limit=0",
        "limit=33",
        "limit=x",
        "limit=1&limit=2",
        "explain=maybe",
        "explain=",
        "limit=+5",
        "other=1",
        "limit=%zz",
    ] {
        served.get(&format!("/resolve/a?{query}"), "").await.is_problem(400, "bad_query");
    }
    source.now_does(ms(0), Does::Hangs);
    served.get(&format!("/resolve/{}", content(2)), "").await.is_problem(504, "timeout");
    source.now_does(ms(1), Does::Fails(SourceError::Failed("down".into())));
    let down = served.get(&format!("/resolve/{}", content(3)), "").await;
    down.is_problem(503, "unavailable");
    assert_eq!(down.header("retry-after"), "1");
    for number in 10..40 {
        let _ = served.world.index.resolve(&content(number), soon()).await;
    }
    let open = served.get(&format!("/resolve/{}", content(4)), "").await;
    open.is_problem(503, "breaker_open");
    assert!(!open.header("retry-after").is_empty());
    served
        .send("POST", "/at/resolve/a", "content-length: 0\r\n", b"")
        .await
        .is_problem(405, "method_not_allowed");

    // Health does not queue behind any of this.
    assert_eq!(served.send("GET", "/healthz", "", b"").await.status, 200);
    assert_eq!(served.send("GET", "/version", "", b"").await.status, 200);
    assert_eq!(served.send("GET", "/readyz", "", b"").await.status, 503, "nobody is left to ask");
    served.world.host.shutdown().await;
}

/// 404 is one of three things, and its code says which: a route that is not there, a name that no source knows, content that
/// nobody is known to have. Delegated Routing has its own way.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_says_which_part() {
    let nobody = Scripted::new("source", ms(1), Does::FindsNobody { is_final: true });
    let builder = Index::builder().names(Book::default()).providers(nobody);
    let served = Served::start(World::start(builder, Settings::default())).await;
    let missing = |reply: Reply, code: &str, what: &str| {
        reply.is_problem(404, code);
        let body = reply.json();
        assert_eq!((&body["title"], &body["retryable"]), (&json!(what), &json!(false)), "{body}");
        assert_eq!(body["type"], format!("urn:ron:problem:{code}"));
        assert!(!body["corr_id"].as_str().unwrap().is_empty());
        // A cache in between must not make more of it than the index does.
        assert_eq!((reply.header("cache-control"), reply.header("age")), ("no-store", ""));
    };
    for path in [
        "",
        "/",
        "/nowhere",
        "/resolve",
        "/resolve/",
        "/providers",
        "/providers/",
        "/providers/a/b",
        "/reindex/",
        "/pins/",
        "/routing/v1",
        "/routing/v1/providers/",
        "/routing/v2/providers/x",
        "/routing/v1/peers/a/b",
        "/status/x",
    ] {
        missing(served.get(path, "").await, "not_found", "there is nothing here");
        missing(served.allowed("POST", path, "", b"").await, "not_found", "there is nothing here");
    }
    let v0 = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n";
    let ron_index::Key::Content(id) = content(1) else { panic!() };
    // Twice: when it was looked up, and when it is known.
    for key in [&*id.to_string(), &*id.to_cid(), v0, &*id.to_string(), v0] {
        let (code, what) = ("no_providers", "nobody is known who has it");
        for accept in ["", "accept: application/x-ndjson\r\n"] {
            missing(served.get(&format!("/resolve/{key}"), accept).await, code, what);
            missing(served.get(&format!("/providers/{key}"), accept).await, code, what);
        }
        missing(served.allowed("POST", &format!("/reindex/{key}"), "", b"").await, code, what);
        missing(served.allowed("PUT", &format!("/pins/{key}"), "", b"").await, code, what);
        let routed = served.get(&format!("/routing/v1/providers/{key}"), "").await;
        assert_eq!((routed.status, routed.json()), (200, json!({"Providers": []})));
    }
    for _ in 0..2 {
        let (code, what) = ("no_such_name", "no source of names knows this name");
        missing(served.get("/resolve/tools/none?limit=3", "").await, code, what);
        missing(served.allowed("POST", "/reindex/tools/none", "", b"").await, code, what);
        missing(served.allowed("PUT", "/pins/tools/none", "", b"").await, code, what);
    }
    // To take back what was never there is no mistake.
    assert_eq!(served.allowed("DELETE", "/pins/tools/none", "", b"").await.json()["changed"], false);
    served.get("/routing/v1/ipns/k51x", "").await.is_problem(501, "not_implemented");
    served.world.host.shutdown().await;
}

/// Who cannot know yet says what it waits for and what to do about it, and is not taken for one that fails.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_known_yet_is_not_ready() {
    let (book, source) = (Book::default(), finds());
    let builder = Index::builder().names(book.clone()).providers(source.clone());
    let served = Served::start(World::start(builder, Settings::default())).await;
    *book.fails.lock().unwrap() = Some(SourceError::NotReady { gate: "registry.log" });
    source.now_does(ms(1), Does::Fails(SourceError::NotReady { gate: "dht.seeds" }));
    for (path, part) in [
        ("/resolve/tools/it".to_owned(), "log"),
        (format!("/resolve/{}", content(1)), "seed"),
        (format!("/providers/{}", content(1)), "seed"),
        (format!("/routing/v1/providers/{}", content(1)), "seed"),
    ] {
        let reply = served.get(&path, "").await;
        reply.is_problem(503, "not_ready");
        let body = reply.json();
        assert!(body["hint"].as_str().unwrap().contains(part), "{body}");
        assert_eq!((&body["retryable"], reply.header("retry-after")), (&json!(true), "1"), "{path}");
    }
    assert_eq!(served.send("GET", "/readyz", "", b"").await.status, 200, "nobody is left alone for it");
    served.world.host.shutdown().await;
}

/// A page that is refused can read that, and when to come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_can_read_what_it_is_refused_with() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let served = Served::start(World::of(&[&source])).await;
    let peer = "/routing/v1/peers/12D3KooWRBhwfeP2Y4TCx1SM6s9rUoHhR5STiGwxBhgFRcw3UERE";
    // More than may be looked for at once: some wait for their whole budget, and the others are refused.
    let replies = futures_of((0..80).map(|_| served.get(peer, "")).collect()).await;
    let refused = replies.iter().filter(|reply| reply.status == 429).count();
    assert!(refused >= 10, "{:?}", replies.iter().map(|reply| reply.status).collect::<Vec<_>>());
    for reply in replies.iter().filter(|reply| reply.status != 429) {
        reply.is_problem(504, "timeout");
    }
    for reply in &replies {
        assert_eq!((reply.header("access-control-allow-origin"), reply.header("vary")), ("*", "Accept"));
    }
    served.world.host.shutdown().await;
}

/// One address has so many open questions and no more; health goes past that.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_too_much_is_told_when_to_come_back() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let settings = Settings { client_in_flight: 2, budget: Duration::from_secs(5), ..Settings::default() };
    let served = Served::start(World::with(&[&source], settings)).await;
    let (first, second) = (format!("/resolve/{}", content(1)), format!("/resolve/{}", content(2)));
    let one = served.get(&first, "");
    let two = served.get(&second, "");
    let third = async {
        while served.world.index.status().lookups < 2 {
            tokio::time::sleep(ms(1)).await;
        }
        let busy = served.get(&format!("/resolve/{}", content(3)), "").await;
        busy.is_problem(429, "busy");
        assert_eq!(busy.header("retry-after"), "1");
        assert_eq!(served.send("GET", "/healthz", "", b"").await.status, 200);
        assert_eq!(served.world.series("busy_rejections_total{endpoint=\"index_clients\"}"), 1.0);
        source.now_does(ms(0), Does::Finds(vec![1]));
        served.world.index.shutdown().await;
    };
    let (one, two, ()) = tokio::join!(one, two, third);
    assert!([503, 504].contains(&one.status) && [503, 504].contains(&two.status));
    served.get(&first, "").await.is_problem(503, "canceled");
    served.world.host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_fresh_says_so() {
    let source = finds();
    let settings = Settings {
        content_ttl: ms(1),
        stale_while_revalidate: ms(0),
        failure_pause: ms(0),
        ..Settings::default()
    };
    let served = Served::start(World::with(&[&source], settings)).await;
    let path = format!("/resolve/{}", content(1));
    let fresh = served.get(&path, "").await;
    assert_eq!((fresh.status, fresh.header("x-ron-stale")), (200, ""));
    source.now_does(ms(0), Does::Fails(SourceError::Failed("down".into())));
    tokio::time::sleep(ms(5)).await;
    let stale = served.get(&path, "").await;
    assert_eq!((stale.status, stale.header("x-ron-stale")), (200, "if_error"));
    assert_eq!(stale.json()["stale"], "if_error");
    assert_ne!(stale.header("etag"), fresh.header("etag"));
    // The other routes say so too, and lines as well.
    for (path, accept) in [
        (format!("/providers/{}", content(1)), ""),
        (format!("/providers/{}", content(1)), "accept: application/x-ndjson\r\n"),
        (format!("/routing/v1/providers/{}", content(1)), ""),
        (format!("/routing/v1/providers/{}", content(1)), "accept: application/x-ndjson\r\n"),
    ] {
        let stale = served.get(&path, accept).await;
        assert_eq!((stale.status, stale.header("x-ron-stale")), (200, "if_error"), "{path} {accept}");
        assert!(!stale.header("age").is_empty() && !stale.body.is_empty(), "{path} {accept}");
    }
    served.world.host.shutdown().await;
}

/// Changes need a capability, which is asked before anything is queued, and are done once for each key.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_guarded_and_done_once() {
    let (served, source) = served().await;
    for (method, path) in
        [("POST", "/reindex/tools/it"), ("PUT", "/pins/tools/it"), ("DELETE", "/pins/a"), ("POST", "/purge")]
    {
        let denied = served.send(method, &format!("/at{path}"), "content-length: 0\r\n", b"").await;
        denied.is_problem(401, "unauthorized");
    }
    assert_eq!(source.asked(), 0, "nothing was begun");
    let never = Served::allowing(World::of(&[&source]), Some(Arc::new(Never))).await;
    let forbidden =
        never.send("PUT", "/at/pins/a", "authorization: Bearer x\r\ncontent-length: 0\r\n", b"").await;
    forbidden.is_problem(403, "forbidden");

    let pinned = served.allowed("PUT", "/pins/tools/it", "", b"").await;
    assert_eq!(pinned.json(), json!({"key": "tools/it", "pinned": true, "changed": true}));
    let unpinned = served.allowed("DELETE", "/pins/tools/it", "", b"").await;
    assert_eq!(unpinned.json(), json!({"key": "tools/it", "pinned": false, "changed": true}));

    let before = source.asked();
    let path = format!("/reindex/{}", content(1));
    let first = served.allowed("POST", &path, "idempotency-key: k1\r\n", b"").await;
    assert_eq!((first.status, source.asked()), (200, before + 1));
    let again = served.allowed("POST", &path, "idempotency-key: k1\r\n", b"").await;
    assert_eq!((again.status, again.json(), source.asked()), (200, first.json(), before + 1));
    assert_eq!(again.header("idempotency-replayed"), "true");
    served
        .allowed("POST", "/reindex/other", "idempotency-key: k1\r\n", b"")
        .await
        .is_problem(422, "idempotency_mismatch");
    served.allowed("POST", &path, "", b"").await;
    assert_eq!(source.asked(), before + 2);

    let json_type = "content-type: application/json\r\n";
    let body = json!({"keys": [content(1).to_string(), "tools/it", "nobody/knows"]}).to_string();
    let purged = served.allowed("POST", "/purge", json_type, body.as_bytes()).await;
    assert_eq!(purged.json(), json!({"purged": 2}));
    let all = served.allowed("POST", "/purge", json_type, br#"{"all": true}"#).await;
    assert_eq!((all.json(), served.world.index.status().entries), (json!({"purged": null}), 0));
    served.world.host.shutdown().await;
}

/// Bodies with what is not known, with too much, or with bombs in them.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_bodies_are_refused_within_their_limits() {
    let (served, _) = served().await;
    let json_type = "content-type: application/json\r\n";
    for body in [
        r#"{"keys": ["a"], "unknown": 1}"#.to_owned(),
        r#"{"keys": ["a"], "all": true}"#.to_owned(),
        r#"{"keys": []}"#.to_owned(),
        r#"{"keys": "a"}"#.to_owned(),
        r#"{"keys": ["a", "b3:zz"]}"#.to_owned(),
        "[".repeat(100_000),
        json!({"keys": vec!["a"; 2000]}).to_string(),
        String::new(),
    ] {
        served.allowed("POST", "/purge", json_type, body.as_bytes()).await.is_problem(400, "bad_body");
    }
    served.allowed("POST", "/purge", "", b"{}").await.is_problem(415, "not_json");
    let large = vec![b' '; (1 << 20) + 1];
    served.allowed("POST", "/purge", json_type, &large).await.is_problem(413, "body_too_large");
    served.world.host.shutdown().await;
}

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

/// Whether a value fits its schema, as far as this document uses them.
fn check(document: &Value, schema: &Value, value: &Value) {
    if let Some(name) = schema["$ref"].as_str() {
        return check(document, document.pointer(name.trim_start_matches('#')).unwrap(), value);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fitting = any.iter().find(|schema| (schema["type"] == "null") == value.is_null());
        return check(document, fitting.unwrap(), value);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return assert!(allowed.contains(value), "{value} is not {schema}");
    }
    if let Some(fields) = value.as_object() {
        let known: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let required = schema["required"].as_array().unwrap();
        assert!(fields.keys().all(|name| known.contains(name)), "{value} has more than {schema}");
        assert!(
            required.iter().all(|name| fields.contains_key(name.as_str().unwrap())),
            "{value} is not {schema}"
        );
        for (name, field) in fields {
            check(document, &schema["properties"][name], field);
        }
        return;
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    let fits = kinds.iter().any(|kind| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.as_array().is_some_and(|items| {
            items.iter().for_each(|item| check(document, &schema["items"], item));
            true
        }),
        _ => false,
    });
    assert!(fits, "{value} is not {schema}");
}

/// Every route with every method: what is described answers as described, what is not is refused; with the token and
/// without it, for keys that lead somewhere, that do not, and that are none.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_described() {
    let (served, source) = served().await;
    let document = http::openapi();
    assert_eq!(served.get("/openapi.json", "").await.json(), document);
    let present = content(1).to_string();
    served.world.index.resolve(&content(1), soon()).await.unwrap();
    source.now_does(ms(1), Does::FindsNobody { is_final: true });
    let mut answered = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let op = &methods[method.to_lowercase()];
            // Whatever can be got can be asked about.
            if method == "HEAD" && op.is_null() && !methods["get"].is_null() {
                continue;
            }
            for id in [&*present, "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n", "b3:.."] {
                let path = path.replace("{key}", id).replace("{id}", id).replace("{cid}", id);
                for (is_allowed, query) in [(true, ""), (true, "?unknown"), (false, "")] {
                    let json_type = "content-type: application/json\r\n";
                    let answer = if is_allowed {
                        served.allowed(method, &format!("{path}{query}"), json_type, b"").await
                    } else {
                        served.send(method, &format!("/at{path}"), "content-length: 0\r\n", b"").await
                    };
                    if op.is_null() {
                        assert_eq!(answer.status, 405, "{method} {path}");
                        continue;
                    }
                    assert_eq!(
                        answer.status == 401,
                        !is_allowed && op["security"].is_array(),
                        "{method} {path}"
                    );
                    answered.insert(format!("{method} {}", answer.status));
                    let described = &op["responses"][answer.status.to_string()];
                    assert!(described.is_object(), "{method} {path}: {} is not described", answer.status);
                    let kind = answer.header("content-type");
                    let schema = &described["content"][kind]["schema"];
                    if !schema.is_null() {
                        check(&document, schema, &answer.json());
                    }
                }
            }
        }
    }
    for seen in [
        "GET 200",
        "GET 404",
        "GET 400",
        "GET 422",
        "PUT 200",
        "POST 200",
        "POST 400",
        "DELETE 200",
        "OPTIONS 204",
    ] {
        assert!(answered.contains(seen), "{seen} in {answered:?}");
    }
    served.world.host.shutdown().await;
}
