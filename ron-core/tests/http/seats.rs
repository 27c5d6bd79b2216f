//! Abuse cases 3, 6 and 7: more connections than there is room for, and health all the while.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use ron_core::http::{ForwardHeader, Guard, Server, TrustedProxies};
use tokio::net::{TcpSocket, TcpStream};

use super::{Client, Host, PATIENCE, counting, short, until};

const HEALTH: [&str; 4] = ["/healthz", "/readyz?verbose", "/metrics", "/version"];

/// Asks each health route `times` times, and returns the longest it took.
async fn slowest_health(host: &Host, times: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for path in HEALTH.iter().cycle().take(times * HEALTH.len()) {
        let began = ron_core::now();
        assert_eq!(host.get(path).await.status, 200, "{path}");
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

/// From another address of this machine.
async fn connect_from(host: &Host, last: u8) -> Client<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    Client::new(tokio::time::timeout(PATIENCE, socket.connect(host.address)).await.unwrap().unwrap())
}

const COUNT: &str = "GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn one_address_cannot_take_all_seats() {
    let mut settings = short();
    (settings.connections_max, settings.connections_per_client) = (6, 4);
    settings.head_timeout = PATIENCE;
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), settings).await;
    let mut first = Vec::new();
    for _ in 0..4 {
        first.push(host.connect().await);
    }
    until("four are seated", || host.server.connections() == 4).await;
    // The fifth of this address is told why and closed; another address has room.
    let mut fifth = host.send(COUNT).await;
    let answer = fifth.answer().await;
    answer.is_problem(503, "crowded");
    assert_eq!((answer.header("retry-after"), answer.header("connection")), ("1", "close"));
    fifth.closed().await;
    let mut others = [connect_from(&host, 2).await, connect_from(&host, 3).await];
    for other in &mut others {
        other.send(COUNT).await;
        assert_eq!(other.answer().await.status, 200);
    }
    // Six in all: now nobody has.
    let mut seventh = connect_from(&host, 4).await;
    seventh.send(COUNT).await;
    seventh.answer().await.is_problem(503, "crowded");
    assert_eq!(host.series("busy_rejections_total{endpoint=\"http_connections\"}"), 2);
    // A seat that is left is taken again.
    drop(first);
    until("they have left", || host.server.connections() == 2).await;
    assert_eq!(host.ask(COUNT).await.status, 200);
}

#[tokio::test]
async fn a_trusted_proxy_is_not_one_client() {
    let mut settings = short();
    settings.connections_per_client = 1;
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let proxies = TrustedProxies::new([loopback.into()], ForwardHeader::XForwardedFor);
    let builder = Server::builder(counting(&Arc::new(AtomicUsize::new(0))));
    let host = Host::build(builder.settings(settings).trusted_proxies(proxies)).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut client = host.send(COUNT).await;
        assert_eq!(client.answer().await.status, 200);
        held.push(client);
    }
}

/// Case 3: with 500 connections that never finish their head, from one address with 256 seats, health answers in
/// under 100 ms. The others fill the lobby and are pushed out of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_amid_slowloris() {
    let mut settings = short();
    settings.head_timeout = PATIENCE;
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), settings).await;
    let mut slow = Vec::new();
    for _ in 0..500 {
        slow.push(host.send("GET /count HTTP/1.1\r\nhost: loc").await);
    }
    until("the seats are taken", || host.server.connections() == 256).await;
    let slowest = slowest_health(&host, 25).await;
    println!("slowest health answer amid 500 slow heads: {slowest:?}");
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    host.get("/count").await.is_problem(503, "crowded");
}

/// Health passes none of the limits of the work: all places of the routes taken, and all seats but one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_while_the_work_is_saturated() {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let stuck = get(move || {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>()
    });
    let router = Router::new().route("/stuck", stuck.layer(Guard::new("stuck").in_flight(20)));
    let host = Host::start(router, short()).await;
    let mut busy = Vec::new();
    for _ in 0..20 {
        busy.push(host.send("GET /stuck HTTP/1.1\r\nhost: localhost\r\n\r\n").await);
    }
    // Connected is not begun: a place is taken when the request has been read.
    until("all are served", || begun.load(Ordering::SeqCst) == 20).await;
    let answer = host.get("/stuck").await;
    answer.is_problem(429, "busy");
    assert_eq!(answer.header("retry-after"), "1");
    let slowest = slowest_health(&host, 25).await;
    println!("slowest health answer with saturated work: {slowest:?}");
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
}

/// The lobby is small and never closed: whoever waits longest makes place.
#[tokio::test]
async fn the_lobby_turns_over() {
    let mut settings = short();
    (settings.connections_max, settings.head_timeout) = (0, PATIENCE);
    settings.lobby = NonZeroUsize::new(2).unwrap();
    let host = Host::start(Router::new(), settings).await;
    let first = host.send("GET /hea").await;
    let second = host.send("GET /hea").await;
    let began = ron_core::now();
    assert_eq!(host.get("/healthz").await.status, 200);
    first.closed().await;
    assert!(began.elapsed() < Duration::from_millis(500), "pushed out, not timed out");
    // And nobody stays in it for long.
    assert!(second.closed().await < Duration::from_secs(3));
}
