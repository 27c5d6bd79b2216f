//! Who is who between nodes: names without their keys, older protocols, and what was said once said again.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ron_core::net::{
    Identity, NetError,
    rpc::{Fault, Handling, Request, Service},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    node,
    peers::{PROTOCOLS, Peer, contact, greeting, soon, speaks_all},
    rest, until,
};
use crate::settings::{ANY_PORT, Configured};

fn accepted(node: &Configured) -> u64 {
    node.count("ron_core_links_opened_total{side=\"accepted\"}")
}

fn failed(node: &Configured) -> u64 {
    let metrics = node.daemon.get("/metrics");
    let lines = metrics.lines().filter(|line| line.starts_with("ron_core_handshake_failures_total{"));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// A ClientHello of TLS 1.2: no supported_versions, and suites of that time.
fn hello_of_tls_1_2() -> Vec<u8> {
    let extensions: &[u8] = &[
        0x00, 0x0a, 0x00, 0x04, 0x00, 0x02, 0x00, 0x1d, // supported_groups: x25519
        0x00, 0x0b, 0x00, 0x02, 0x01, 0x00, // ec_point_formats: uncompressed
        0x00, 0x0d, 0x00, 0x06, 0x00, 0x04, 0x08, 0x07, 0x04, 0x03, // signature_algorithms
    ];
    let mut body = vec![0x03, 0x03];
    body.extend([7; 32]); // random
    body.extend([0, 0x00, 0x04, 0xc0, 0x2b, 0xc0, 0x2f, 0x01, 0x00]); // no session, two suites, no compression
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![0x01, 0x00];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![0x16, 0x03, 0x01];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

/// Counts what it is asked.
struct Counted(Arc<AtomicUsize>);

impl Service for Counted {
    fn call(&self, _: Request) -> Handling {
        self.0.fetch_add(1, Ordering::SeqCst);
        Handling::Done(Err(Fault::bad_request("counted")))
    }
}

/// Case 15, from both sides: who calls a node by another name, or in another language, has no link; and a node that is sent to
/// somebody under another name says nothing to it.
#[test]
fn who_is_not_who_was_called_is_told_nothing() {
    let home = tempfile::tempdir().unwrap();
    let node = speaks_all(home.path());
    let (to, peer) = (contact(&node), Peer::new());
    let (before, refused) = (accepted(&node), failed(&node));
    let expected = Identity::generate().unwrap().node_id();
    for (protocol, _) in PROTOCOLS {
        // Each from another one, since nobody calls an address for two names within three seconds.
        let peer = Peer::new();
        let called = peer.runtime.block_on(peer.endpoint.connect(expected, &to.addrs, protocol.alpn, soon()));
        assert_eq!(called.unwrap_err(), NetError::WrongIdentity { expected, found: to.id });
    }
    assert_eq!(accepted(&node), before, "a link was made for a name that is not the node's");
    for bytes in
        [&hello_of_tls_1_2()[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0x80, 0x2e, 1, 3, 1], &[0; 600]]
    {
        let mut stream = TcpStream::connect(to.addrs[0]).unwrap();
        stream.write_all(bytes).unwrap();
        let answer = rest(&mut stream);
        assert!(answer.len() < 100, "{answer:?}");
    }
    until("all were counted", || failed(&node) >= refused + 5 + 4);
    assert_eq!(accepted(&node), before);
    node.is_well();

    let asked = Arc::new(AtomicUsize::new(0));
    let _speaks = PROTOCOLS.map(|(protocol, _)| peer.serve(protocol, Arc::new(Counted(Arc::clone(&asked)))));
    let seed = |id| format!("{id}@{}", peer.endpoint.local_addrs()[0]);
    // Neither of the two will be ready: it has nobody.
    let with = |seed: String| Configured::start(&format!("{ANY_PORT}[dht]\nseeds = [{seed:?}]\n"));
    let misled = with(seed(expected));
    let log = || fs::read_to_string(misled.dir.path().join("log")).unwrap();
    until("it says so", || log().contains("a seed is not who answers at its address"));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // Under its own name it is asked.
    let _led = with(seed(peer.endpoint.node_id()));
    until("the seed is asked", || asked.load(Ordering::SeqCst) > 0);
}

/// Case 16: everything that a peer said in a session that worked, said again by somebody who recorded it.
#[test]
fn a_recorded_session_opens_nothing() {
    let node = node("");
    let (to, peer) = (contact(&node), Peer::new());
    let before = accepted(&node);
    let said = peer.runtime.block_on(async {
        let tap = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = tap.local_addr().unwrap();
        let record = async {
            let (client, _) = tap.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let server = tokio::net::TcpStream::connect(to.addrs[0]).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            let listen = async {
                let (mut all, mut part) = (Vec::new(), [0; 4096]);
                loop {
                    let count = from_client.read(&mut part).await.unwrap_or(0);
                    if count == 0 {
                        let _ = to_server.shutdown().await;
                        return all;
                    }
                    all.extend_from_slice(&part[..count]);
                    to_server.write_all(&part[..count]).await.unwrap();
                }
            };
            tokio::join!(listen, tokio::io::copy(&mut from_server, &mut to_client)).0
        };
        let talk = async {
            let mut link = peer.endpoint.connect(to.id, &[at], "ron/dht/1", soon()).await.unwrap();
            link.stream.write_all(&greeting()).await.unwrap();
            link.stream.flush().await.unwrap();
            // It was a session: the greeting is answered.
            link.stream.read_exact(&mut [0; 38]).await.unwrap();
            link.stream.shutdown().await.unwrap();
        };
        let both = async { tokio::join!(record, talk).0 };
        tokio::time::timeout(super::PATIENCE, both).await.unwrap()
    });
    assert!(said.len() > 300, "{} bytes", said.len());
    until("it was a link", || accepted(&node) == before + 1);
    for round in 1..=5 {
        let refused = failed(&node);
        let mut replay = TcpStream::connect(to.addrs[0]).unwrap();
        let _ = replay.write_all(&said);
        rest(&mut replay);
        until("it is refused", || failed(&node) > refused);
        assert_eq!(accepted(&node), before + 1, "the genuine one, after {round} replays");
    }
    node.is_well();
}
