//! A flood of connections that never say anything.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpStream as BlockingStream},
    time::Duration,
};

use allocation_counter::measure;
use ron_core::{Counter, now};
use tokio::net::{TcpSocket, TcpStream};

use super::{EndpointSettings, Node, eventually, promptly};

/// As many as asked, or as many as the limit on open files leaves room for, each with two ends in this process.
fn affordable(wanted: usize) -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(1024_usize);
    wanted.min(soft.saturating_sub(256) / 2)
}

async fn connect_from(source: Ipv4Addr, node: &Node) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    promptly(socket.connect(node.addr())).await.ok()
}

#[tokio::test]
async fn two_thousand_silent_connections_leave_an_honest_dial_working() {
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(EndpointSettings::default()));
    let flood = affordable(2000);
    let mut silent = Vec::new();
    for number in 0..flood {
        // Twenty hosts, a hundred connections each: below the cap of every one of them.
        let source = Ipv4Addr::new(127, 0, 1, u8::try_from(1 + number % 20).unwrap());
        silent.extend(connect_from(source, &there).await);
    }
    assert_eq!(silent.len(), flood);
    eventually("the flood is inside", || there.endpoint.connections() > flood / 2).await;

    let began = now();
    here.dial(&there).await.unwrap();
    let took = now() - began;
    assert!(took < Duration::from_secs(1), "{took:?}");
    promptly(there.inbox.recv()).await.unwrap();
    println!("{flood} silent connections, honest dial in {took:?}");

    eventually("the silent ones are gone", || there.endpoint.connections() <= 1).await;
    assert!(there.count(Counter::HandshakeFailures, "timeout") > flood as u64 / 2);
    assert!(there.supervisor.failure().is_none());
}

#[tokio::test]
async fn one_host_cannot_take_more_than_its_places() {
    let settings = EndpointSettings { connections_per_ip_max: 50, ..EndpointSettings::default() };
    let (here, there) = (Node::start(EndpointSettings::default()), Node::start(settings));
    let mut silent = Vec::new();
    for _ in 0..affordable(300) {
        silent.extend(connect_from(Ipv4Addr::new(127, 0, 2, 1), &there).await);
    }
    let refused = silent.len() as u64 - 50;
    eventually("the rest was refused", || there.count(Counter::BusyRejections, "net_accept") == refused)
        .await;
    assert_eq!(there.endpoint.connections(), 50);
    assert!(here.dial(&there).await.is_ok());
}

/// What a connection costs before its handshake is done, by the allocator's count: silent ones, and ones that have
/// sent the longest beginning of a ClientHello that is not yet one.
#[test]
fn a_connection_costs_little_before_its_handshake_is_done() {
    const CONNECTIONS: usize = 60;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let there = runtime.block_on(async { Node::start(EndpointSettings::default()) });
    // A message of 65 520 bytes that lacks its last few hundred.
    let record = |begins: &[u8], len: u16| {
        [&[0x16, 0x03, 0x01], &len.to_be_bytes()[..], begins, &vec![0; usize::from(len) - begins.len()]]
            .concat()
    };
    let begin = record(&[0x01, 0x00, 0xff, 0xf0], 16_384);
    let hello = [begin, record(&[], 16_384), record(&[], 16_384), record(&[], 16_000)].concat();
    for (begun, most) in [(false, 4 << 10), (true, 96 << 10)] {
        let visitors: Vec<BlockingStream> =
            (0..CONNECTIONS).map(|_| BlockingStream::connect(there.addr()).unwrap()).collect();
        for mut visitor in visitors.iter().filter(|_| begun) {
            visitor.write_all(&hello).unwrap();
        }
        let used = measure(|| {
            runtime.block_on(async {
                eventually("all are inside", || there.endpoint.connections() == CONNECTIONS).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            });
        });
        let each = used.bytes_current / i64::try_from(CONNECTIONS).unwrap();
        println!("begun {begun}: {each} bytes each");
        assert!(each < most, "begun {begun}: {each} bytes each");
        drop(visitors);
        runtime.block_on(eventually("they are gone", || there.endpoint.connections() == 0));
    }
}
