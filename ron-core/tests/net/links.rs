//! Protocols, addresses, and the life of an endpoint.

use std::{
    net::{Ipv6Addr, SocketAddr, TcpListener as BlockingListener},
    time::Duration,
};

use ron_core::{
    Counter, Deadline, Supervisor,
    net::{
        Endpoint, Identity, NetError,
        oap::{FrameReader, ReadSettings, WireError},
    },
    now,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{ALPN, EndpointSettings, LINKS, Node, alike, eventually, promptly, soon};

#[tokio::test]
async fn two_protocols_share_a_port_and_an_unknown_one_is_refused() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let other = there.endpoint.register("test/other/1", LINKS).unwrap();
    let dial = |alpn| here.endpoint.connect(there.id(), there.endpoint.local_addrs(), alpn, soon());

    let _second = dial("test/other/1").await.unwrap();
    let _first = dial(ALPN).await.unwrap();
    assert_eq!(promptly(other.recv()).await.unwrap().alpn, "test/other/1");
    assert_eq!(promptly(there.inbox.recv()).await.unwrap().alpn, ALPN);

    let error = dial("test/nothing/1").await.unwrap_err();
    assert_eq!(error, NetError::ProtocolRefused { alpn: "test/nothing/1" });
    eventually("it was counted", || there.count(Counter::HandshakeFailures, "protocol_refused") == 1).await;

    let again = there.endpoint.register(ALPN, LINKS).unwrap_err();
    assert_eq!(again, NetError::BadProtocol { alpn: ALPN });
    assert!(there.endpoint.register("", LINKS).is_err());
}

#[tokio::test]
async fn a_dropped_inbox_takes_its_protocol_back() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let other = there.endpoint.register("test/other/1", LINKS).unwrap();
    drop(other);
    let dial = || here.endpoint.connect(there.id(), there.endpoint.local_addrs(), "test/other/1", soon());
    // The first finds the lane gone, after the handshake; from then on the protocol is not offered.
    let mut link = dial().await.unwrap();
    assert_eq!(promptly(link.stream.read(&mut [0])).await.unwrap(), 0);
    eventually("it was noticed", || there.count(Counter::HandshakeFailures, "canceled") == 1).await;
    assert_eq!(dial().await.unwrap_err(), NetError::ProtocolRefused { alpn: "test/other/1" });
    assert!(there.endpoint.register("test/other/1", LINKS).is_ok());
}

#[tokio::test]
async fn every_address_is_listened_on() {
    let mut addrs = vec!["127.0.0.1:0", "127.0.0.3:0"];
    if BlockingListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        addrs.push("[::1]:0");
    }
    let there = Node::listening(&addrs, EndpointSettings::default());
    let here = Node::start(EndpointSettings::default());
    assert_eq!(there.endpoint.local_addrs().len(), addrs.len());
    for (asked, addr) in addrs.iter().zip(there.endpoint.local_addrs()) {
        assert_eq!(addr.ip(), asked.parse::<SocketAddr>().unwrap().ip());
        let link = here.endpoint.connect(there.id(), &[*addr], ALPN, soon()).await.unwrap();
        assert_eq!(link.remote, *addr);
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = BlockingListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let builder = Endpoint::builder(Identity::generate().unwrap()).listen(addr);
    let error = builder.start(&Supervisor::new("test")).unwrap_err();
    assert!(matches!(error, NetError::Listen { addr: named, .. } if named == addr), "{error:?}");
}

/// An endpoint moves: the new address is there before the old one goes, and whoever is linked stays so.
async fn moves(here: Node, there: Node) {
    let old = there.addr();
    let mut dialled = here.dial(&there).await.unwrap();
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    let before = there.endpoint.local_addrs();
    let new = there.endpoint.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    assert_eq!((before, there.endpoint.local_addrs()), (&[old][..], &[old, new][..]));
    // Where somebody listens already nobody else can, and that changes nothing.
    let taken = there.endpoint.listen(new).unwrap_err();
    assert!(matches!(taken, NetError::Listen { addr, .. } if addr == new), "{taken:?}");

    assert!(promptly(there.endpoint.unlisten(old)).await);
    assert!(!promptly(there.endpoint.unlisten(old)).await);
    assert_eq!(there.endpoint.local_addrs(), [new]);
    let short = Deadline::after(Duration::from_millis(300));
    let gone = here.endpoint.connect(there.id(), &[old], ALPN, short).await.unwrap_err();
    assert!(
        matches!(gone, NetError::Unreachable { .. } | NetError::Timeout { .. } | NetError::Handshake { .. }),
        "{gone:?}"
    );
    assert_eq!(here.dial(&there).await.unwrap().remote, new);
    dialled.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();

    assert_eq!(promptly(there.supervisor.shutdown()).await.aborted, 0);
    assert_eq!(there.endpoint.listen(old).unwrap_err(), NetError::Canceled);
}

#[tokio::test]
async fn an_endpoint_moves_and_its_links_stay() {
    moves(Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default())).await;
    moves(Node::quic(EndpointSettings::default()), Node::quic(EndpointSettings::default())).await;
}

#[tokio::test]
async fn dead_addresses_do_not_cost_the_dial() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    // Nobody listens here any more, so it refuses at once.
    let refusing = BlockingListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The kernel accepts here, and nobody will ever answer.
    let silent = BlockingListener::bind("127.0.0.1:0").unwrap();
    let addrs = [refusing, silent.local_addr().unwrap(), there.addr()];

    let began = now();
    let link = here.endpoint.connect(there.id(), &addrs, ALPN, soon()).await.unwrap();
    assert_eq!(link.remote, there.addr());
    let took = now() - began;
    assert!((Duration::from_millis(250)..Duration::from_secs(2)).contains(&took), "{took:?}");

    let error = here.endpoint.connect(there.id(), &[refusing], ALPN, soon()).await.unwrap_err();
    assert!(matches!(error, NetError::Unreachable { addr, .. } if addr == refusing), "{error:?}");
    let short = Deadline::after(Duration::from_millis(100));
    let error = here.endpoint.connect(there.id(), &addrs[..2], ALPN, short).await.unwrap_err();
    assert!(matches!(error, NetError::Timeout { .. }), "{error:?}");
    assert_eq!(here.endpoint.connect(there.id(), &[], ALPN, soon()).await.unwrap_err(), NetError::NoAddress);
}

#[tokio::test]
async fn an_impostor_on_one_address_does_not_hide_the_peer_on_another() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let impostor = Node::start(EndpointSettings::default());
    let addrs = [impostor.addr(), there.addr()];
    assert_eq!(here.endpoint.connect(there.id(), &addrs, ALPN, soon()).await.unwrap().peer, there.id());
}

#[tokio::test]
async fn a_shutdown_keeps_what_was_accepted_and_ends_the_rest() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let mut dialled = here.dial(&there).await.unwrap();
    eventually("it is queued", || there.inbox.depth() == 1).await;
    let stopped = promptly(there.endpoint.shutdown()).await;
    assert_eq!(stopped.aborted, 0);
    promptly(there.endpoint.shutdown()).await;

    // Queued before, delivered after, and alive.
    let mut accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();
    assert!(promptly(there.inbox.recv()).await.is_none());

    assert_eq!(there.dial(&here).await.unwrap_err(), NetError::Canceled);
    assert_eq!(there.endpoint.register("test/late/1", LINKS).unwrap_err(), NetError::Canceled);
    let refused = here.dial(&there).await.unwrap_err();
    assert!(matches!(refused, NetError::Unreachable { .. }), "{refused:?}");
    promptly(there.supervisor.shutdown()).await;
}

#[tokio::test]
async fn dropping_the_last_handle_frees_the_port() {
    let here = Node::start(EndpointSettings::default());
    let Node { endpoint, inbox, supervisor: _kept, .. } = Node::start(EndpointSettings::default());
    let (id, addr) = (endpoint.node_id(), endpoint.local_addrs()[0]);
    drop(endpoint.clone());
    let _link = here.endpoint.connect(id, &[addr], ALPN, soon()).await.unwrap();
    drop(endpoint);
    // The other end may still be in the handshake, and finishes it.
    assert!(promptly(inbox.recv()).await.is_some());
    assert!(promptly(inbox.recv()).await.is_none());
    eventually("the port is free", || BlockingListener::bind(addr).is_ok()).await;
}

#[tokio::test]
async fn frames_cross_a_link_in_order_and_end_well() {
    alike::frames_cross_in_order(Node::start).await;
}

#[tokio::test]
async fn four_gibibytes_announced_on_a_link_are_refused_and_counted() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let mut dialled = here.dial(&there).await.unwrap();
    let accepted = promptly(there.inbox.recv()).await.unwrap();
    dialled.stream.write_all(&[0xff; 38]).await.unwrap();
    dialled.stream.flush().await.unwrap();
    let mut reader = FrameReader::new(accepted.stream, ReadSettings::default(), &there.metrics);
    let error = promptly(reader.next()).await.unwrap_err();
    assert!(matches!(error, WireError::Frame(error) if error.reason() == "too_long"), "{error:?}");
    assert_eq!(there.count(Counter::FrameRejects, "too_long"), 1);
}
