//! The routes through a real server over loopback sockets, and the client that asks them.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

mod abuse;
#[path = "../shared/alone.rs"]
mod alone;
mod client;
mod disk;
mod kept;
mod manage;
mod openapi;
mod reading;
mod troubled;
mod writing;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use ron_core::{
    ContentId, Deadline, Metrics, Supervisor,
    auth::{Authorizer, TokenFile},
    http::{Server, Settings as HttpSettings},
};
use ron_storage::{Builder, Settings, Store, http};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// No step of any test takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

const GROUP: usize = 65536;

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Bytes that are nowhere the same.
fn content(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(len)
        .collect()
}

/// A store behind a server, mounted somewhere.
struct Host {
    supervisor: Supervisor,
    store: Store,
    address: SocketAddr,
    token: String,
    registry: Registry,
    _dir: tempfile::TempDir,
}

impl Host {
    async fn start() -> Host {
        Host::with(Settings::default(), HttpSettings::default()).await
    }

    async fn with(settings: Settings, http_settings: HttpSettings) -> Host {
        Host::serve(Store::builder().memory().settings(settings), http_settings).await
    }

    async fn serve(store: Builder, http_settings: HttpSettings) -> Host {
        Host::serve_to(store, http_settings, None).await
    }

    /// With an authorizer other than that of the token.
    async fn serve_to(
        store: Builder,
        http_settings: HttpSettings,
        authorizer: Option<Arc<dyn Authorizer>>,
    ) -> Host {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_storage", &mut registry);
        let supervisor = Supervisor::new("host");
        let store = store.metrics(metrics).start(&supervisor).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tokens = TokenFile::open(dir.path().join("token")).unwrap();
        let token = std::fs::read_to_string(tokens.path()).unwrap().trim().to_owned();
        let authorizer = authorizer.unwrap_or_else(|| Arc::new(tokens));
        let routes = http::router(&store).merge(http::guarded(&store, authorizer));
        let server = Server::builder(Router::new().nest("/at", routes)).settings(http_settings);
        let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&supervisor).await.unwrap();
        let address = server.local_addrs()[0];
        // The server lives as long as the supervisor that has it.
        std::mem::forget(server);
        Host { supervisor, store, address, token, registry, _dir: dir }
    }

    async fn put(&self, content: &[u8]) -> ContentId {
        self.store.put_bytes(Bytes::copy_from_slice(content), soon()).await.unwrap().id
    }

    /// One request without a body.
    async fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        self.send(method, path, headers, b"").await
    }

    /// One request with the token.
    async fn allowed(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let headers =
            format!("authorization: Bearer {}\r\ncontent-length: {}\r\n{headers}", self.token, body.len());
        self.send(method, path, &headers, body).await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        send_to(self.address, method, &format!("/at{path}"), headers, body).await
    }

    async fn connect(&self) -> TcpStream {
        timeout(PATIENCE, TcpStream::connect(self.address)).await.unwrap().unwrap()
    }

    fn series(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("ron_storage_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap() as u64
    }
}

async fn send_to(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    let mut stream = timeout(PATIENCE, TcpStream::connect(address)).await.unwrap().unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server may have answered and closed already.
    let _ = stream.write_all(body).await;
    answer(&mut stream, method).await
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{:?}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.json()["code"], code);
    }
}

/// Reads everything up to the end of the connection.
async fn answer(stream: &mut TcpStream, method: &str) -> Answer {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("not stuck");
    let mut end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    // An interim answer comes before the one that counts.
    if bytes.starts_with(b"HTTP/1.1 100") {
        bytes.drain(..end + 4);
        end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    }
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let body = bytes[end + 4..].to_vec();
    if let Some(length) = headers.get("content-length").filter(|_| method != "HEAD" && status != 304) {
        assert_eq!(length.parse::<usize>().unwrap(), body.len(), "{head}");
    }
    Answer { status, headers, body }
}

/// Until `holds`, within the patience of the tests.
async fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds).await;
}

async fn until_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let began = ron_core::now();
    while !holds() {
        assert!(began.elapsed() < patience, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
