//! The routes through a real server over loopback sockets.

mod client;
mod deciding;
mod openapi;
mod reading;
mod streams;
mod witnessing;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use data_encoding::BASE64;
use ron_core::{
    Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    http::{Server, Settings as HttpSettings},
};
use ron_registry::{Approval, Proposal, Registry, http, store::MemoryStore};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::world::{LOG_KEY, ORIGIN, Odd};

/// No step of any test takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whoever says who they are may do what their name is: `commit` commits, `all` does everything.
struct ByName;

impl Authorizer for ByName {
    fn authorize(&self, action: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        let name = credentials.bearer.ok_or(Denied::Missing)?;
        let may = name == "all" || action.name.strip_prefix("registry.") == Some(name);
        if may { Ok(Grant::new(name.to_owned())) } else { Err(Denied::Forbidden) }
    }
}

/// A registry in memory behind a server, mounted somewhere.
struct Host {
    supervisor: Supervisor,
    registry: Registry,
    store: Arc<Odd>,
    server: Server,
    address: SocketAddr,
}

impl Host {
    async fn start() -> Host {
        Host::with(HttpSettings::default()).await
    }

    async fn with(settings: HttpSettings) -> Host {
        let supervisor = Supervisor::new("host");
        let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
        let registry = Registry::builder(ORIGIN, LOG_KEY).start(store.clone(), &supervisor).await.unwrap();
        let routes = http::router(&registry).merge(http::guarded(&registry, Arc::new(ByName)));
        let server = Server::builder(Router::new().nest("/at", routes)).settings(settings);
        let ops = ron_core::http::ops_router(
            supervisor.ready().clone(),
            Arc::new(ron_core::prometheus_client::registry::Registry::default()),
            ron_core::http::VersionInfo::new("test", "0"),
        );
        let server = server.ops(ops).listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = server.start(&supervisor).await.unwrap();
        let address = server.local_addrs()[0];
        Host { supervisor, registry, store, server, address }
    }

    async fn founded(needed: u32, signers: u8) -> Host {
        let host = Host::start().await;
        let policy = super::world::policy(needed, signers);
        host.registry.found(policy, super::world::soon()).await.unwrap();
        host
    }

    async fn connect(&self) -> TcpStream {
        timeout(PATIENCE, TcpStream::connect(self.address)).await.unwrap().unwrap()
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = "authorization: Bearer all\r\ncontent-type: application/json\r\n";
        self.send("POST", path, headers, body.to_string().as_bytes()).await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        let head = format!(
            "{method} /at{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may have answered and closed already.
        let _ = stream.write_all(body).await;
        answer(&mut stream).await
    }

    /// What is said outside the place where the routes are.
    async fn ready(&self) -> Value {
        let mut stream = self.connect().await;
        let head = "GET /readyz?verbose HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        answer(&mut stream).await.json()
    }
}

/// A proposal and its approvals as a body.
fn submission(proposal: &Proposal, approvals: &[Approval]) -> Value {
    let approvals: Vec<String> = approvals.iter().map(|approval| BASE64.encode(&approval.encode())).collect();
    json!({"proposal": BASE64.encode(proposal.encoded()), "approvals": approvals})
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

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.json()["code"], code, "{}", self.text());
    }
}

/// The end of a head in these bytes.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn head(bytes: &[u8]) -> (u16, BTreeMap<String, String>) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut lines = text.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let fields = lines.filter_map(|line| line.split_once(": "));
    (status, fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect())
}

/// Reads everything up to the end of the connection.
async fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("not stuck");
    let end = head_end(&bytes).expect("a head");
    let (status, headers) = head(&bytes[..end]);
    Answer { status, headers, body: bytes[end..].to_vec() }
}
