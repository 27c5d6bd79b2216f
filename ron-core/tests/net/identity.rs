//! Who is at the other end, and what protects the link.

use std::io;

use ron_core::{
    Counter,
    net::{Identity, KeyGroup, NetError},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use super::{ALPN, EndpointSettings, Node, alike, eventually, promptly, soon};

#[tokio::test]
async fn both_ends_know_each_other_and_the_link_is_post_quantum() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    assert_eq!((dialled.peer, accepted.peer), (there.id(), here.id()));
    assert_eq!((dialled.peer_key.node_id(), accepted.peer_key.node_id()), (there.id(), here.id()));
    assert_eq!((dialled.alpn, accepted.alpn), (ALPN, ALPN));
    assert_eq!((dialled.group, accepted.group), (KeyGroup::X25519MlKem768, KeyGroup::X25519MlKem768));
    assert!(dialled.group.is_post_quantum());
    assert_eq!(dialled.remote, there.addr());

    dialled.stream.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    promptly(accepted.stream.read_exact(&mut heard)).await.unwrap();
    accepted.stream.write_all(b"pong").await.unwrap();
    accepted.stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    promptly(dialled.stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!((&heard, &rest[..]), (b"ping", &b"pong"[..]));
    assert_eq!(here.count(Counter::LinksOpened, "dialled"), 1);
    assert_eq!(there.count(Counter::LinksOpened, "accepted"), 1);
}

#[tokio::test]
async fn a_wrong_identity_is_refused_before_anything_is_said() {
    alike::a_wrong_identity_is_refused(Node::start).await;
}

#[tokio::test]
async fn post_quantum_only_refuses_classical_in_both_directions() {
    alike::policies_are_kept_in_both_directions(Node::start).await;
}

/// A ClientHello as a TLS 1.2 client would send it: no supported_versions, and suites of that time.
fn client_hello_of_tls12() -> Vec<u8> {
    let extensions: &[u8] = &[
        0x00, 0x0a, 0x00, 0x04, 0x00, 0x02, 0x00, 0x1d, // supported_groups: x25519
        0x00, 0x0b, 0x00, 0x02, 0x01, 0x00, // ec_point_formats: uncompressed
        0x00, 0x0d, 0x00, 0x06, 0x00, 0x04, 0x08, 0x07, 0x04, 0x03, // signature_algorithms
        0x00, 0x17, 0x00, 0x00, // extended_master_secret
    ];
    let mut body = vec![0x03, 0x03];
    body.extend([7; 32]); // random
    body.push(0); // session id
    body.extend([0x00, 0x04, 0xc0, 0x2b, 0xc0, 0x2f]); // ECDHE with AES-128-GCM
    body.extend([0x01, 0x00]); // no compression
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

#[tokio::test]
async fn tls_1_2_is_refused_with_the_alert_for_it() {
    let node = Node::start(EndpointSettings::default());
    let mut old = TcpStream::connect(node.addr()).await.unwrap();
    old.write_all(&client_hello_of_tls12()).await.unwrap();
    let mut answer = Vec::new();
    let _ = promptly(old.read_to_end(&mut answer)).await;
    // An alert record: fatal, protocol_version.
    assert_eq!((answer[0], &answer[5..]), (21, &[2, 70][..]), "{answer:02x?}");
    eventually("it was counted", || node.count(Counter::HandshakeFailures, "not_tls13") == 1).await;
}

#[tokio::test]
async fn a_server_without_tls_13_is_told_apart() {
    let here = Node::start(EndpointSettings::default());
    let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = old.local_addr().unwrap();
    let serve = async {
        let (mut tcp, _) = old.accept().await.unwrap();
        let mut hello = [0; 4096];
        let _ = tcp.read(&mut hello).await;
        // What a server says that has only TLS 1.2.
        tcp.write_all(&[21, 3, 3, 0, 2, 2, 70]).await.unwrap();
        let _ = tcp.read(&mut hello).await;
    };
    let peer = Identity::from_seed(&[1; 32]).node_id();
    let addrs = [addr];
    let (result, ()) = tokio::join!(here.endpoint.connect(peer, &addrs, ALPN, soon()), serve);
    assert_eq!(result.unwrap_err(), NetError::NotTls13);
}

/// Everything a client said in a session that worked, said again.
#[tokio::test]
async fn a_recorded_session_cannot_be_replayed() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let tap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tap_addr = tap.local_addr().unwrap();
    let target = there.addr();
    let record = async {
        let (client, _) = tap.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(target).await.unwrap().into_split();
        let said = async {
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
        let (said, _) = tokio::join!(said, tokio::io::copy(&mut from_server, &mut to_client));
        said
    };
    let talk = async {
        let mut link = here.endpoint.connect(there.id(), &[tap_addr], ALPN, soon()).await.unwrap();
        link.stream.write_all(b"pay me").await.unwrap();
        link.stream.shutdown().await.unwrap();
        let mut accepted = promptly(there.inbox.recv()).await.unwrap();
        let mut heard = Vec::new();
        accepted.stream.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"pay me");
    };
    let (said, ()) = promptly(async { tokio::join!(record, talk) }).await;

    let mut replay = TcpStream::connect(target).await.unwrap();
    replay.write_all(&said).await.unwrap();
    let mut answer = Vec::new();
    let _ = promptly(replay.read_to_end(&mut answer)).await;
    eventually("it was refused", || there.count(Counter::HandshakeFailures, "handshake") == 1).await;
    assert!(there.inbox.try_recv().is_none());
    assert_eq!(there.count(Counter::LinksOpened, "accepted"), 1, "the genuine one");
}

/// Someone in the middle who relays is harmless, and one who answers himself is found out.
#[tokio::test]
async fn a_relay_sees_no_more_than_bytes() -> io::Result<()> {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let relay = TcpListener::bind("127.0.0.1:0").await?;
    let addr = relay.local_addr()?;
    let target = there.addr();
    let pass_on = async {
        let (mut client, _) = relay.accept().await?;
        let mut server = TcpStream::connect(target).await?;
        let _ = copy_bidirectional(&mut client, &mut server).await;
        io::Result::Ok(())
    };
    let talk = async {
        let mut link = here.endpoint.connect(there.id(), &[addr], ALPN, soon()).await.unwrap();
        assert_eq!(link.peer, there.id());
        link.stream.shutdown().await.unwrap();
        drop(promptly(there.inbox.recv()).await.unwrap());
    };
    let (passed, ()) = tokio::join!(pass_on, talk);
    passed
}
