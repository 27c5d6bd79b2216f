//! Every limit in front of a link, turned.

use std::time::Duration;

use ron_core::{Counter, LaneSpec, now};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{EndpointSettings, Node, alike, eventually, promptly, quick, soon};

#[tokio::test]
async fn an_address_has_only_so_many_places_and_gets_them_back() {
    alike::places_of_an_address_come_back(Node::start).await;
}

#[tokio::test]
async fn the_whole_endpoint_has_only_so_many_places() {
    let here = Node::start(EndpointSettings::default());
    let there = Node::start(EndpointSettings { connections_max: 3, ..EndpointSettings::default() });
    let mut links = Vec::new();
    for _ in 0..3 {
        links.push(here.dial(&there).await.unwrap());
    }
    assert!(here.dial(&there).await.is_err());
    assert_eq!(there.endpoint.connections(), 3);
}

#[tokio::test]
async fn a_full_lane_closes_the_link_and_counts_it() {
    const SMALL: LaneSpec = LaneSpec::new("test", "small", 1);
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let inbox = there.endpoint.register("test/small/1", SMALL).unwrap();
    let dial = || here.endpoint.connect(there.id(), there.endpoint.local_addrs(), "test/small/1", soon());
    let mut kept = dial().await.unwrap();
    eventually("it is queued", || inbox.depth() == 1).await;
    let mut closed = dial().await.unwrap();
    assert_eq!(promptly(closed.stream.read(&mut [0])).await.unwrap(), 0, "an end, not a reset");
    assert_eq!(there.count(Counter::BusyRejections, "small"), 1);
    eventually("it was counted", || there.count(Counter::HandshakeFailures, "busy") == 1).await;
    eventually("its place is free", || there.endpoint.connections() == 1).await;

    let mut accepted = promptly(inbox.recv()).await.unwrap();
    kept.stream.write_all(b"x").await.unwrap();
    promptly(accepted.stream.read_exact(&mut [0])).await.unwrap();
    assert!(dial().await.is_ok());
}

/// Silent from the start, or silent after the first bytes of a ClientHello: both are closed in time.
#[tokio::test]
async fn a_slow_handshake_is_closed() {
    let node = Node::start(quick());
    for (at, hello) in [&b""[..], &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01][..]].into_iter().enumerate() {
        let began = now();
        let mut slow = TcpStream::connect(node.addr()).await.unwrap();
        slow.write_all(hello).await.unwrap();
        // A reset counts as closed too.
        let _ = promptly(slow.read(&mut [0; 64])).await;
        let took = now() - began;
        assert!((Duration::from_millis(150)..Duration::from_secs(2)).contains(&took), "{took:?}");
        let counted = at as u64 + 1;
        eventually("it was counted", || node.count(Counter::HandshakeFailures, "timeout") == counted).await;
    }
    eventually("the places are free", || node.endpoint.connections() == 0).await;
}

/// Who has begun to speak holds a place among the handshakes, but not for longer than the timeout.
#[tokio::test]
async fn handshakes_take_turns() {
    let here = Node::start(EndpointSettings::default());
    let there = Node::start(EndpointSettings {
        handshakes_max: 1,
        handshake_timeout: Duration::from_millis(600),
        ..quick()
    });
    let mut stuck = TcpStream::connect(there.addr()).await.unwrap();
    stuck.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = now();
    here.dial(&there).await.unwrap();
    let waited = now() - began;
    assert!(waited >= Duration::from_millis(150), "it did not wait: {waited:?}");
}

/// A few hosts that began and did not go on held all places for the whole timeout, and those who came after them found
/// theirs when their own time was nearly over.
#[tokio::test]
async fn who_begins_and_does_not_go_on_makes_room_for_others() {
    let here = Node::start(EndpointSettings::default());
    let there = Node::start(EndpointSettings { handshakes_max: 4, ..EndpointSettings::default() });
    let mut stuck = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(there.addr()).await.unwrap();
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]).await.unwrap();
        stuck.push(stream);
    }
    eventually("they are inside", || there.endpoint.connections() == 12).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = now();
    here.dial(&there).await.unwrap();
    let waited = now() - began;
    assert!(waited < Duration::from_millis(2500), "it waited for all of them: {waited:?}");
    // Alone, one may take the whole time.
    drop(stuck);
    eventually("they are gone", || there.endpoint.connections() <= 1).await;
    let mut slow = TcpStream::connect(there.addr()).await.unwrap();
    slow.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(1500), slow.read(&mut [0; 64])).await;
    assert!(early.is_err(), "closed although nobody needs its place");
}

#[tokio::test]
async fn garbage_is_a_failed_handshake_and_no_more() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], &[0; 5]] {
        let mut tcp = TcpStream::connect(there.addr()).await.unwrap();
        tcp.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        let _ = promptly(tcp.read_to_end(&mut answer)).await;
    }
    eventually("all were counted", || there.count(Counter::HandshakeFailures, "handshake") == 3).await;
    assert!(here.dial(&there).await.is_ok());
    assert!(there.supervisor.failure().is_none());
}
