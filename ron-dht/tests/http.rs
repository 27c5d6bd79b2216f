//! The routes, through a real server, over two nodes with real links.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Supervisor,
    auth::TokenFile,
    http::Server,
    net::{Endpoint, Identity},
};
use ron_dht::{Contact, Dht, http};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

async fn node(host: &Supervisor, seeds: Option<Contact>) -> Dht {
    let endpoint = Endpoint::builder(Identity::generate().unwrap()).listen(([127, 0, 0, 1], 0).into());
    let endpoint = endpoint.start(host).unwrap();
    Dht::builder().seeds(seeds).start(&endpoint, host).await.unwrap()
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }
}

async fn ask(addr: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.to_owned()
    };
    Answer { status, head: head.to_lowercase(), body }
}

fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((length, more)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body.push_str(&more[..length]);
        rest = more[length..].trim_start_matches("\r\n");
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_searches_and_mutations() {
    let host = Supervisor::new("host");
    let first = node(&host, None).await;
    let second = node(&host, Some(first.contact())).await;
    let dir = tempfile::tempdir().unwrap();
    let tokens = TokenFile::open(dir.path().join("token")).unwrap();
    let token = std::fs::read_to_string(tokens.path()).unwrap();
    let routes = http::router(&second).merge(http::mutations(&second, Arc::new(tokens)));
    // Under whatever the host likes: no route is absolute.
    let routes = axum::Router::new().nest("/dht", routes);
    let server =
        Server::builder(routes).listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&host).await.unwrap();
    let addr = server.local_addrs()[0];
    let known = async {
        while second.peers().is_empty() || !second.ready().reads || first.peers().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), known).await.unwrap();

    let status = ask(addr, "GET", "/dht/status", "").await;
    assert_eq!(status.status, 200, "{}", status.body);
    let status = status.json();
    assert_eq!(status["id"], second.node_id().to_string());
    assert_eq!((&status["peers"], &status["buckets"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(status["ready"]["reads"], true);
    assert_eq!((&status["records"], &status["provided"]), (&Value::from(0), &Value::from(0)));
    assert!(status["provide_lag_seconds"].is_u64() && status["network_size"].is_number(), "{status}");
    assert_eq!(status["addrs"][0], second.contact().addrs[0].to_string());

    let peers = ask(addr, "GET", "/dht/peers", "").await.json();
    assert_eq!(peers[0]["id"], first.node_id().to_string());
    assert_eq!(peers[0]["silent"], false);

    let content = ContentId::of(b"hello");
    let path = format!("/dht/provide/{content}");
    let denied = ask(addr, "POST", &path, "").await;
    assert_eq!(denied.status, 401);
    assert!(denied.head.contains("application/problem+json"), "{}", denied.head);
    let authorized = format!("authorization: Bearer {}\r\n", token.trim());
    let provided = ask(addr, "POST", &path, &authorized).await;
    assert_eq!(provided.status, 200, "{}", provided.body);
    assert_eq!((&provided.json()["kept"], &provided.json()["asked"]), (&Value::from(1), &Value::from(1)));

    // By all three names of the key.
    let hex = content.to_string()[3..].to_owned();
    for name in [content.to_string(), content.to_cid(), hex.clone()] {
        let found = ask(addr, "GET", &format!("/dht/providers/{name}?limit=1&timeout_ms=2000"), "").await;
        assert_eq!(found.status, 200, "{}", found.body);
        assert!(found.head.contains("application/json"));
        let found = found.json();
        assert_eq!(found["key"], hex);
        assert_eq!(found["providers"][0]["id"], second.node_id().to_string());
        assert_eq!(found["verdict"]["reason"], "enough");
    }
    let lines = ask(addr, "GET", &format!("/dht/providers/{hex}"), "accept: application/x-ndjson\r\n").await;
    assert!(lines.head.contains("application/x-ndjson"), "{}", lines.head);
    let lines: Vec<Value> = lines.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["id"], second.node_id().to_string());
    assert_eq!(lines[1]["verdict"]["reason"], "complete");

    let near = ask(addr, "GET", &format!("/dht/find_node/{}", first.node_id()), "").await.json();
    assert_eq!(near["peers"][0]["id"], first.node_id().to_string());
    assert_eq!(near["verdict"]["rpcs"], 1);
    assert_eq!(near["verdict"]["trace"], Value::Null);
    let path_of_trace = format!("/dht/find_node/{}?trace=1", first.node_id());
    let question = ask(addr, "GET", &path_of_trace, "").await.json()["verdict"]["trace"][0].clone();
    assert_eq!((&question["peer"], &question["hop"]), (&first.node_id().to_string().into(), &Value::from(1)));
    assert_eq!((&question["outcome"], &question["found"]), (&Value::from("answered"), &Value::from(0)));
    assert!(question["at_ms"].as_f64().unwrap() < 5_000.0, "{question}");
    assert!(question["took_ms"].is_number(), "{question}");

    assert_eq!(ask(addr, "DELETE", &path, "").await.status, 401);
    assert_eq!(ask(addr, "DELETE", &path, &authorized).await.status, 200);
    let gone = ask(addr, "GET", &format!("/dht/providers/{hex}"), "").await.json();
    assert_eq!(gone["providers"], Value::Array(Vec::new()));
    assert_eq!(gone["verdict"]["reason"], "complete");

    for (path, code) in [
        ("/dht/providers/nonsense", "bad_key"),
        (&*format!("/dht/providers/{hex}?limit=0"), "bad_query"),
        (&*format!("/dht/providers/{hex}?limits=1"), "bad_query"),
        (&*format!("/dht/find_node/{hex}?limit=1"), "bad_query"),
        (&*format!("/dht/find_node/{hex}?timeout_ms=soon"), "bad_query"),
        (&*format!("/dht/find_node/{hex}?trace=yes"), "bad_query"),
    ] {
        let refused = ask(addr, "GET", path, "").await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &Value::from(code)), "{path}");
        assert!(refused.head.contains("application/problem+json"));
    }
    host.shutdown().await;
}

#[tokio::test]
async fn alone_it_is_not_ready_and_says_so() {
    let host = Supervisor::new("host");
    let dht = node(&host, None).await;
    let server = Server::builder(http::router(&dht)).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.start(&host).await.unwrap();
    let addr = server.local_addrs()[0];
    for accept in ["", "accept: application/x-ndjson\r\n"] {
        let path = format!("/providers/{}", ContentId::of(b"x"));
        let refused = ask(addr, "GET", &path, accept).await;
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (503, &Value::from("not_ready")),
            "{}",
            refused.body
        );
        assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
        assert_eq!(refused.json()["retryable"], true);
        assert!(refused.body.contains("start a second one"), "{}", refused.body);
    }
    host.shutdown().await;
}
