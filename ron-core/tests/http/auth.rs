//! Who may, asked over the wire; and the secret, which is nowhere but in its file.

use std::{
    io,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    routing::{get, post},
};
use ron_core::{
    auth::{Authorizer, TokenFile},
    http::{Guard, Hosts, only},
};
use tracing_subscriber::fmt::MakeWriter;

use super::{Host, short};

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test]
async fn a_token_opens_and_is_never_repeated() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let dir = tempfile::tempdir().unwrap();
    let tokens = TokenFile::open(dir.path().join("token")).unwrap();
    let canary = std::fs::read_to_string(tokens.path()).unwrap().trim().to_owned();
    let authorizer: Arc<dyn Authorizer> = Arc::new(tokens.clone());
    let guard = Guard::new("write").require(authorizer, "write");
    let words = format!("{guard:?} {tokens:?}");
    let router = Router::new()
        .route("/write", post(async || "written").layer(guard.clone()))
        .route("/panic", post(async || -> &'static str { panic!("on purpose") }).layer(guard));
    let host = Host::start(router, short()).await;
    let ask = async |path: &str, authorization: &str| {
        host.ask(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}content-length: 0\r\n\r\n"
        ))
        .await
    };

    let mut heard = words;
    for scheme in ["Bearer", "bearer"] {
        let answer = ask("/write", &format!("authorization: {scheme} {canary}\r\n")).await;
        assert_eq!(answer.text(), "written");
        heard += &format!("{answer:?}");
    }
    for authorization in [
        String::new(),
        "authorization: Bearer wrong\r\n".to_owned(),
        format!("authorization: Bearer {canary}x\r\n"),
        format!("authorization: Basic {canary}\r\n"),
        format!("authorization: {canary}\r\n"),
        // Which of two is the one that a proxy before us has judged?
        format!("authorization: Bearer {canary}\r\nauthorization: Bearer wrong\r\n"),
        format!("authorization: Bearer wrong\r\nauthorization: Bearer {canary}\r\n"),
    ] {
        let answer = ask("/write", &authorization).await;
        answer.is_problem(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        heard += &format!("{answer:?}{}", answer.text());
    }
    let answer = ask("/panic", &format!("authorization: Bearer {canary}\r\n")).await;
    answer.is_problem(500, "bug");
    heard += &format!("{answer:?}{}", host.get("/metrics").await.text());
    host.server.shutdown().await;
    heard += &String::from_utf8_lossy(&log.0.lock().unwrap());
    assert!(heard.contains("answered"), "the log was listened to");
    assert!(!heard.contains(&canary), "{heard}");
}

/// Case 55: a page elsewhere, or a name that somebody made resolve to this machine, gets nothing from admin routes.
#[tokio::test]
async fn admin_routes_answer_only_to_their_own_name() {
    let admin = get(async || "admin").layer(Guard::new("admin").hosts(Hosts::default()));
    let router = Router::new().route("/admin", admin).route("/open", get(async || "open"));
    let host = Host::start(router, short()).await;
    let ask =
        async |path: &str, headers: &str| host.ask(format!("GET {path} HTTP/1.1\r\n{headers}\r\n")).await;
    for headers in ["host: localhost\r\n", "host: 127.0.0.1:8080\r\norigin: http://localhost:8080\r\n"] {
        assert_eq!(ask("/admin", headers).await.text(), "admin", "{headers}");
    }
    for headers in ["host: evil.example\r\n", "host: localhost\r\norigin: https://evil.example\r\n"] {
        ask("/admin", headers).await.is_problem(403, "foreign");
        assert_eq!(ask("/open", headers).await.text(), "open");
    }
}

/// A server that is called by its address, whichever it has, is not by that open to pages that are called by one too.
#[tokio::test]
async fn an_address_is_a_host_but_no_origin() {
    let hosts = Hosts::new(["localhost"]).or_addresses();
    let router = Router::new().route("/", get(async || "in")).layer(only(hosts));
    let host = Host::start(router, short()).await;
    let ask = async |headers: &str| host.ask(format!("GET / HTTP/1.1\r\n{headers}\r\n")).await;
    for headers in [
        "host: 192.0.2.1:8080\r\n",
        "host: [2001:db8::1]\r\norigin: http://[2001:db8::1]\r\n",
        "host: 192.0.2.1:8080\r\norigin: http://192.0.2.1:8080\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n",
        "host: localhost\r\nsec-fetch-site: same-origin\r\n",
    ] {
        assert_eq!(ask(headers).await.text(), "in", "{headers}");
    }
    for headers in [
        "host: 192.0.2.1:8080\r\norigin: http://192.0.2.2:8080\r\n",
        "host: 192.0.2.1.evil.example\r\n",
        "host: [evil]\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    ] {
        ask(headers).await.is_problem(403, "foreign");
    }
}
