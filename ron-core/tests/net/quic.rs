//! The same links over QUIC: the same names, refusals and limits, and an end that loses nothing.

use std::{
    net::{SocketAddr, UdpSocket as BlockingSocket},
    sync::Arc,
    time::Duration,
};

use allocation_counter::measure;
use ron_core::{
    Counter, Deadline, Supervisor,
    net::{Endpoint, Identity, KeyGroup, KeyPolicy, NetError, Quic, Transport as _},
    now,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UdpSocket,
    sync::Notify,
};

use super::{ALPN, EndpointSettings, LINKS, Node, alike, eventually, promptly, soon};

fn node() -> Node {
    Node::quic(EndpointSettings::default())
}

#[tokio::test]
async fn both_ends_know_each_other_and_the_link_is_post_quantum() {
    let (here, there) = (node(), node());
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    assert_eq!((dialled.peer, accepted.peer), (there.id(), here.id()));
    assert_eq!((dialled.peer_key.node_id(), accepted.peer_key.node_id()), (there.id(), here.id()));
    assert_eq!((dialled.alpn, accepted.alpn), (ALPN, ALPN));
    assert_eq!((dialled.group, accepted.group), (KeyGroup::X25519MlKem768, KeyGroup::X25519MlKem768));
    assert_eq!((dialled.remote, accepted.remote.ip()), (there.addr(), here.addr().ip()));

    // The acceptor may be the first to speak.
    accepted.stream.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    promptly(dialled.stream.read_exact(&mut heard)).await.unwrap();
    dialled.stream.write_all(b"pong").await.unwrap();
    promptly(accepted.stream.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"pong");
    assert_eq!(here.count(Counter::LinksOpened, "dialled"), 1);
    assert_eq!(there.count(Counter::LinksOpened, "accepted"), 1);
}

#[tokio::test]
async fn the_builder_takes_a_transport_of_ones_own_making() {
    let (identity, supervisor) = (Identity::generate().unwrap(), Supervisor::new("test"));
    let transport = Arc::new(Quic::new(&identity, KeyPolicy::PqOnly).unwrap());
    let there = Endpoint::builder(identity)
        .transport(transport)
        .listen("127.0.0.1:0".parse().unwrap())
        .listen("127.0.0.1:0".parse().unwrap());
    let there = there.start(&supervisor).unwrap();
    let _inbox = there.register(ALPN, LINKS).unwrap();
    for addr in there.local_addrs() {
        let link = node().endpoint.connect(there.node_id(), &[*addr], ALPN, soon()).await.unwrap();
        assert_eq!(link.group, KeyGroup::X25519MlKem768);
    }
    promptly(supervisor.shutdown()).await;
}

#[tokio::test]
async fn ipv6_is_dialled_from_a_socket_of_its_own() {
    if BlockingSocket::bind("[::1]:0").is_err() {
        return;
    }
    let builder = Endpoint::builder(Identity::generate().unwrap()).quic();
    let there = Node::of(builder, &["127.0.0.1:0", "[::1]:0"], EndpointSettings::default());
    let here = node();
    for addr in there.endpoint.local_addrs() {
        let link = here.endpoint.connect(there.id(), &[*addr], ALPN, soon()).await.unwrap();
        assert_eq!(link.remote, *addr);
    }
}

#[tokio::test]
async fn a_wrong_identity_is_refused_before_anything_is_said() {
    alike::a_wrong_identity_is_refused(Node::quic).await;
}

#[tokio::test]
async fn a_protocol_that_nobody_serves_is_refused() {
    let (here, there) = (node(), node());
    let other = "test/other/1";
    let error = here.endpoint.connect(there.id(), &[there.addr()], other, soon()).await.unwrap_err();
    assert_eq!(error, NetError::ProtocolRefused { alpn: other });
    eventually("it was counted", || there.count(Counter::HandshakeFailures, "protocol_refused") == 1).await;

    let supervisor = Supervisor::new("test");
    let mute = Endpoint::builder(Identity::generate().unwrap()).quic().listen("127.0.0.1:0".parse().unwrap());
    let mute = mute.start(&supervisor).unwrap();
    let error = here.endpoint.connect(mute.node_id(), mute.local_addrs(), ALPN, soon()).await.unwrap_err();
    assert_eq!(error, NetError::ProtocolRefused { alpn: ALPN });
}

#[tokio::test]
async fn post_quantum_only_refuses_classical_in_both_directions() {
    alike::policies_are_kept_in_both_directions(Node::quic).await;
}

#[tokio::test]
async fn frames_cross_a_link_in_order_and_end_well() {
    alike::frames_cross_in_order(Node::quic).await;
}

const MIB: usize = 1 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// QUIC forgets what is undelivered when a connection closes, and dropping closes. Five megabytes, an end and a drop at
/// once, to a reader that takes the last half only afterwards (which fits into its window, or the writer would wait).
#[tokio::test]
async fn what_was_written_before_the_end_arrives_after_the_drop() {
    let (here, there) = (node(), node());
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    let sent = pattern(5 * MIB);
    let dropped = Notify::new();
    let write = async {
        dialled.stream.write_all(&sent).await.unwrap();
        dialled.stream.shutdown().await.unwrap();
        drop(dialled);
        dropped.notify_one();
    };
    let read = async {
        let mut heard = vec![0; 4 * MIB + MIB / 2];
        accepted.stream.read_exact(&mut heard).await.unwrap();
        dropped.notified().await;
        // The stop of the sending endpoint waits for the goodbye, so from here on its connection is closed.
        let stopped = here.endpoint.shutdown().await;
        assert_eq!(stopped.aborted, 0);
        accepted.stream.read_to_end(&mut heard).await.unwrap();
        heard
    };
    let ((), heard) = promptly(async { tokio::join!(write, read) }).await;
    assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
}

/// The same the other way, many times, from end to end without a pause: a reply and a farewell.
#[tokio::test]
async fn a_reply_is_not_lost_when_the_replier_goes_at_once() {
    let (here, there) = (node(), node());
    let reply = pattern(100_000);
    for _ in 0..50 {
        let mut dialled = here.dial(&there).await.unwrap();
        let mut accepted = promptly(there.inbox.recv()).await.unwrap();
        accepted.stream.write_all(&reply).await.unwrap();
        accepted.stream.shutdown().await.unwrap();
        drop(accepted);
        let mut heard = Vec::new();
        promptly(dialled.stream.read_to_end(&mut heard)).await.unwrap();
        assert!(heard == reply, "{} of {} bytes", heard.len(), reply.len());
    }
    eventually("no link is left", || there.endpoint.connections() == 0).await;
}

/// Nobody is left who could look after a dropped link, so the end itself waits.
#[tokio::test]
async fn a_link_that_outlives_its_endpoint_ends_as_well() {
    let (here, there) = (node(), node());
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    promptly(here.endpoint.shutdown()).await;
    let sent = pattern(MIB + MIB / 2);
    let write = async {
        dialled.stream.write_all(&sent).await.unwrap();
        dialled.stream.shutdown().await.unwrap();
        drop(dialled);
    };
    let read = async {
        let mut heard = Vec::new();
        accepted.stream.read_to_end(&mut heard).await.unwrap();
        heard
    };
    let ((), heard) = promptly(async { tokio::join!(write, read) }).await;
    assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
}

/// Also of a transport that no endpoint uses.
#[tokio::test]
async fn a_bare_transport_ends_its_links_well() {
    let (one, two) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let here = Quic::new(&one, KeyPolicy::default()).unwrap();
    let there = Quic::new(&two, KeyPolicy::default()).unwrap();
    let listener = there.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let accept = async {
        let incoming = listener.accept().await.unwrap();
        incoming.handshake(Arc::new([ALPN])).await.unwrap()
    };
    let dial = here.dial(listener.local_addr(), two.node_id(), ALPN, soon());
    let (mut accepted, dialled) = promptly(async { tokio::join!(accept, dial) }).await;
    let mut dialled = dialled.unwrap();
    dialled.stream.write_all(b"all of it").await.unwrap();
    promptly(dialled.stream.shutdown()).await.unwrap();
    drop((dialled, here));
    let mut heard = Vec::new();
    promptly(accepted.stream.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"all of it");
}

#[tokio::test]
async fn a_link_that_is_given_up_does_not_look_like_one_that_ended() {
    let (here, there) = (node(), node());
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(b"half a mess").await.unwrap();
    drop(dialled);
    let mut heard = Vec::new();
    assert!(promptly(accepted.stream.read_to_end(&mut heard)).await.is_err());
    assert!(promptly(accepted.stream.write_all(b"hello?")).await.is_err());
}

#[tokio::test]
async fn each_direction_ends_on_its_own() {
    let (here, there) = (node(), node());
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(b"question").await.unwrap();
    dialled.stream.shutdown().await.unwrap();
    dialled.stream.shutdown().await.unwrap();
    assert!(dialled.stream.write_all(b"more").await.is_err());
    let mut heard = Vec::new();
    promptly(accepted.stream.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"question");

    let answer = pattern(3 * MIB);
    let write = async {
        accepted.stream.write_all(&answer).await.unwrap();
        accepted.stream.shutdown().await.unwrap();
    };
    heard.clear();
    let (read, ()) = promptly(async { tokio::join!(dialled.stream.read_to_end(&mut heard), write) }).await;
    read.unwrap();
    assert!(heard == answer);
}

#[tokio::test]
async fn a_silent_peer_costs_the_deadline_and_an_absent_one_less() {
    let here = node();
    let silent = BlockingSocket::bind("127.0.0.1:0").unwrap();
    let peer = Identity::from_seed(&[1; 32]).node_id();
    let deadline = Duration::from_millis(300);
    let began = now();
    let addrs = [silent.local_addr().unwrap()];
    let error = here.endpoint.connect(peer, &addrs, ALPN, Deadline::after(deadline)).await.unwrap_err();
    let took = now() - began;
    assert!(matches!(error, NetError::Timeout { .. }), "{error:?}");
    assert!((deadline..deadline * 3).contains(&took), "{took:?}");

    let absent = BlockingSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = here.endpoint.connect(peer, &[absent], ALPN, soon()).await.unwrap_err();
    assert!(matches!(error, NetError::Unreachable { addr, .. } if addr == absent), "{error:?}");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let error = here.endpoint.connect(peer, &[nowhere], ALPN, soon()).await.unwrap_err();
    assert!(matches!(error, NetError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn garbage_does_no_harm() {
    let (here, there) = (node(), node());
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.connect(there.addr()).await.unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..500_usize {
        let mut bytes: Vec<u8> = (0..rng.usize(1..1400)).map(|_| rng.u8(..)).collect();
        match round % 4 {
            // The beginning of a first packet of version 1, of an unknown version, and of a running connection.
            0 => bytes.splice(0..0, [0xc3, 0, 0, 0, 1, 8]).for_each(drop),
            1 => bytes.splice(0..0, [0xc3, 0x1a, 0x2a, 0x3a, 0x4a, 8]).for_each(drop),
            2 => bytes[0] = 0x40 | bytes[0] >> 2,
            _ => {}
        }
        // A full socket buffer is no failure.
        let _ = stranger.send(&bytes).await;
    }
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();
    assert!(there.supervisor.failure().is_none());
    assert_eq!(there.endpoint.connections(), 1);
}

#[tokio::test]
async fn an_address_has_only_so_many_places_and_gets_them_back() {
    alike::places_of_an_address_come_back(Node::quic).await;
}

#[tokio::test]
async fn the_port_is_free_after_the_shutdown() {
    let (here, there) = (node(), node());
    let addr = there.addr();
    let taken = Endpoint::builder(Identity::generate().unwrap()).quic().listen(addr);
    let error = taken.start(&Supervisor::new("test")).unwrap_err();
    assert!(matches!(error, NetError::Listen { addr: named, .. } if named == addr), "{error:?}");

    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    let stopped = promptly(there.endpoint.shutdown()).await;
    assert_eq!(stopped.aborted, 0);
    // What was handed out lives on, and nobody new comes in.
    dialled.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();
    let short = Deadline::after(Duration::from_millis(300));
    assert!(here.endpoint.connect(there.id(), &[addr], ALPN, short).await.is_err());
    drop((dialled, accepted));
    eventually("the port is free", || BlockingSocket::bind(addr).is_ok()).await;
}

/// The first packets of as many dials, each of a connection of its own: what a forger would send, since none of them
/// goes on. The rest of their ClientHello never comes.
async fn first_packets(count: usize) -> Vec<Vec<u8>> {
    let here = node();
    let recorder = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addrs = [recorder.local_addr().unwrap()];
    let peer = Identity::from_seed(&[1; 32]).node_id();
    let mut packets = Vec::new();
    while packets.len() < count {
        let mut packet = vec![0; 2000];
        let record = async {
            loop {
                let len = recorder.recv(&mut packet).await.unwrap();
                let known = |id: &[u8]| packets.iter().any(|packet: &Vec<u8>| &packet[6..14] == id);
                if len >= 1200 && !known(&packet[6..14]) {
                    return len;
                }
            }
        };
        let len = tokio::select! {
            biased;
            len = record => len,
            dialled = here.endpoint.connect(peer, &addrs, ALPN, soon()) => panic!("{dialled:?}"),
        };
        packet.truncate(len);
        packets.push(packet);
    }
    packets
}

/// A flood of first packets whose senders may be forged takes a few places, and who answers a retry gets past it.
#[tokio::test]
async fn forged_senders_leave_room_for_honest_ones() {
    const UNPROVEN_MAX: usize = 64;
    let packets = first_packets(2 * UNPROVEN_MAX - 10).await;
    let (here, there) = (node(), node());
    let forger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    forger.connect(there.addr()).await.unwrap();
    let (first, rest) = packets.split_at(UNPROVEN_MAX);
    let (mut answer, mut received) = ([0; 2000], 0);
    for (at, packet) in first.iter().enumerate() {
        forger.send(packet).await.unwrap();
        if at % 16 == 15 {
            eventually("they are inside", || there.endpoint.connections() == at + 1).await;
            // Before there is no room for what is sent back.
            while let Ok(len) = forger.try_recv(&mut answer) {
                received += len;
            }
        }
    }
    for packet in rest {
        forger.send(packet).await.unwrap();
        let retry = async {
            loop {
                let len = forger.recv(&mut answer).await.unwrap();
                received += len;
                // A long header of the type for retries.
                if answer[0] & 0xf0 == 0xf0 {
                    return len;
                }
            }
        };
        assert!(promptly(retry).await < packet.len() / 3);
    }
    assert_eq!(there.endpoint.connections(), UNPROVEN_MAX);

    let began = now();
    let mut dialled = here.dial(&there).await.unwrap();
    let took = now() - began;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();
    assert_eq!(there.endpoint.connections(), UNPROVEN_MAX + 1);

    eventually("the forged ones are gone", || there.endpoint.connections() == 1).await;
    assert_eq!(there.count(Counter::HandshakeFailures, "timeout"), UNPROVEN_MAX as u64);
    // All that came back, whether a place was taken or not.
    while let Ok(len) = forger.try_recv(&mut answer) {
        received += len;
    }
    let sent: usize = packets.iter().map(Vec::len).sum();
    println!("{received} bytes back for {sent}");
    assert!(received > 0 && received < sent, "{received} bytes back for {sent}");
}

/// A connection that has begun its handshake and no more.
#[test]
fn a_connection_costs_little_before_its_handshake_is_done() {
    const CONNECTIONS: usize = 60;
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // On a runtime of its own, so that what it leaves behind is not freed while we count.
    let packets = runtime().block_on(first_packets(CONNECTIONS));
    let runtime = runtime();
    let there = runtime.block_on(async { Node::quic(EndpointSettings::default()) });
    let forger = BlockingSocket::bind("127.0.0.1:0").unwrap();
    let used = measure(|| {
        runtime.block_on(async {
            for (at, packet) in packets.iter().enumerate() {
                forger.send_to(packet, there.addr()).unwrap();
                if at % 10 == 9 {
                    eventually("they are inside", || there.endpoint.connections() == at + 1).await;
                }
            }
        });
    });
    let each = used.bytes_current / i64::try_from(CONNECTIONS).unwrap();
    println!("{each} bytes each");
    assert!((1 << 10..32 << 10).contains(&each), "{each} bytes each");
    runtime.block_on(eventually("they are gone", || there.endpoint.connections() == 0));
}
