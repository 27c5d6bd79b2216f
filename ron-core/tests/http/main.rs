//! `http::Server` against clients that are slow, hostile or only in the way, over raw loopback sockets.

#![cfg(not(ron_loom))]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

mod auth;
mod bodies;
mod drain;
mod heads;
mod listeners;
mod routes;
mod seats;
mod slow;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use prometheus_client::registry::Registry;
use ron_core::{
    Metrics, Ready, Supervisor,
    http::{Builder, HttpMetrics, Server, Settings, VersionInfo, ops_router},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// No step of any test takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeouts that a test can wait for.
const SHORT: Duration = Duration::from_millis(300);

fn short() -> Settings {
    let mut settings = Settings::default();
    settings.head_timeout = SHORT;
    settings.io_timeout = SHORT;
    settings.drain = Duration::from_secs(2);
    settings
}

/// A running server with its health routes.
struct Host {
    supervisor: Supervisor,
    server: Server,
    address: SocketAddr,
    registry: Arc<Registry>,
    ready: Ready,
}

impl Host {
    async fn start(router: Router, settings: Settings) -> Host {
        Host::build(Server::builder(router).settings(settings)).await
    }

    async fn build(builder: Builder) -> Host {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_test", &mut registry);
        let http_metrics = HttpMetrics::register("ron_test", &mut registry);
        let (registry, ready) = (Arc::new(registry), Ready::new());
        let supervisor = Supervisor::builder("host").ready(ready.clone()).start();
        let ops = ops_router(
            ready.clone(),
            Arc::clone(&registry),
            VersionInfo::new("test", "1.2.3").revision("abc"),
        );
        let server = builder
            .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .ops(ops)
            .metrics(metrics)
            .http_metrics(http_metrics)
            .start(&supervisor)
            .await
            .unwrap();
        let address = server.local_addrs()[0];
        Host { supervisor, server, address, registry, ready }
    }

    async fn connect(&self) -> Client<TcpStream> {
        Client::new(timeout(PATIENCE, TcpStream::connect(self.address)).await.unwrap().unwrap())
    }

    /// Sends `bytes` on a connection of its own.
    async fn send(&self, bytes: impl AsRef<[u8]>) -> Client<TcpStream> {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client
    }

    /// One request on a connection of its own.
    async fn ask(&self, bytes: impl AsRef<[u8]>) -> Answer {
        self.send(bytes).await.answer().await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    /// The value of one exported series.
    fn series(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("ron_test_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

struct Client<S> {
    stream: S,
    /// Read beyond the last answer.
    rest: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Checks that it is a problem with this status and code.
    #[track_caller]
    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.json()["code"], code);
        assert_eq!(self.json()["status"], status);
    }
}

impl<S: AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    fn new(stream: S) -> Self {
        Client { stream, rest: Vec::new() }
    }

    /// Sends what it can: the other side may have closed already, which is what the tests look for next.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = timeout(PATIENCE, self.stream.write_all(bytes.as_ref())).await.expect("not stuck");
    }

    async fn more(&mut self) -> usize {
        let mut piece = [0; 16 << 10];
        // A reset is an end too.
        let read = timeout(PATIENCE, self.stream.read(&mut piece)).await.expect("not stuck").unwrap_or(0);
        self.rest.extend_from_slice(&piece[..read]);
        read
    }

    /// The next answer, which has a content length.
    async fn answer(&mut self) -> Answer {
        self.try_answer()
            .await
            .unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(&self.rest)))
    }

    async fn try_answer(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(end) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if self.more().await == 0 {
                return None;
            }
        };
        let head = String::from_utf8(self.rest.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        while self.rest.len() < length {
            if self.more().await == 0 {
                return None;
            }
        }
        let body = self.rest.drain(..length).collect();
        Some(Answer { status, headers, body })
    }

    /// Everything until the other side closes.
    async fn rest(mut self) -> String {
        while self.more().await > 0 {}
        String::from_utf8_lossy(&self.rest).into_owned()
    }

    /// Waits until the other side closes, and says how long that took.
    async fn closed(self) -> Duration {
        let began = ron_core::now();
        self.rest().await;
        began.elapsed()
    }
}

/// A route that counts how often it ran.
fn counting(count: &Arc<AtomicUsize>) -> Router {
    let count = Arc::clone(count);
    let handler = get(async move || {
        count.fetch_add(1, Ordering::SeqCst);
        "counted"
    });
    Router::new().route("/count", handler)
}

/// Until `holds`, within the patience of the tests.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = ron_core::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
