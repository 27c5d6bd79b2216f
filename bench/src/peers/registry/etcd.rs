//! One member of etcd as a process of its own, asked over gRPC: sixteen clients share a connection.

use std::{
    fs::File,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

use crate::{measure::Outcome, sections::serve::Process};

pub(crate) struct Etcd {
    clients: Vec<Client>,
    next: AtomicUsize,
    server: Process,
}

/// Whether it is installed.
pub(crate) fn is_here() -> bool {
    Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok()
}

impl Etcd {
    pub(crate) async fn open(dir: &Path, clients: usize) -> Outcome<Self> {
        let url = || -> Outcome<String> {
            Ok(format!("http://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?))
        };
        let (ours, peers) = (url()?, url()?);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(dir.join("etcd")).args(["--log-level", "error"]);
        command.args(["--listen-client-urls", &ours, "--advertise-client-urls", &ours]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        let server =
            Process(command.stdin(Stdio::piped()).stderr(File::create(dir.join("etcd.err"))?).spawn()?);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let Ok(mut client) = Client::connect([&ours], None).await else { continue };
            if client.put("head", 0_u64.to_be_bytes(), None).await.is_err() {
                continue;
            }
            let mut all = Vec::new();
            for _ in 0..clients.div_ceil(16) {
                all.push(Client::connect([&ours], None).await?);
            }
            return Ok(Etcd { clients: all, next: AtomicUsize::new(0), server });
        }
        Err("etcd does not answer".into())
    }

    pub(crate) fn server(&self) -> u32 {
        self.server.0.id()
    }

    fn client(&self) -> Client {
        self.clients[self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len()].clone()
    }

    pub(crate) async fn put(&self, number: u64, payload: Bytes) -> Outcome<()> {
        self.client().put(format!("n/{number}"), &payload[..], None).await?;
        Ok(())
    }

    pub(crate) async fn cas(&self, payload: Bytes) -> Outcome<bool> {
        let mut client = self.client();
        let head = client.get("head", None).await?;
        let head = head.kvs().first().ok_or("it has a head")?.value().to_vec();
        let version = u64::from_be_bytes(head[..].try_into()?) + 1;
        let swap = Txn::new().when([Compare::value("head", CompareOp::Equal, head)]).and_then([
            TxnOp::put("head", version.to_be_bytes(), None),
            TxnOp::put(format!("log/{version:020}"), &payload[..], None),
        ]);
        Ok(client.txn(swap).await?.succeeded())
    }
}
