//! Stopping: readiness first, what has begun is finished, what is new is refused, health to the last.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, response::IntoResponse as _, routing::get};
use http::{HeaderValue, StatusCode};
use ron_core::{
    Stopped,
    http::{Guard, Upgrade, Upgraded},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
};

use super::{Host, short, until};

/// Requests that are answered when told to. Connected is not begun: tests wait for `begun`.
#[derive(Default)]
struct Work {
    go: Notify,
    begun: AtomicUsize,
}

impl Work {
    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

fn held(work: &Arc<Work>) -> Router {
    let work = Arc::clone(work);
    let held = get(async move || {
        work.begun.fetch_add(1, Ordering::SeqCst);
        work.go.notified().await;
        "done"
    });
    Router::new().route("/held", held).route("/quick", get(async || "quick"))
}

fn ask(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

#[tokio::test]
async fn a_drain_finishes_what_has_begun_and_refuses_the_rest() {
    let work = Arc::new(Work::default());
    let host = Host::start(held(&work), short()).await;
    let mut working = host.send(ask("/held")).await;
    let mut idle = host.send(ask("/quick")).await;
    assert_eq!(idle.answer().await.status, 200);
    let silent = host.connect().await;
    let mut begun = host.send("GET /quick HTTP/1.1\r\nhost: local").await;
    let mut begun_health = host.send("GET /healthz HTTP/1.1\r\nhost: local").await;
    until("all are seated", || host.server.connections() == 5).await;
    until("the work has begun", || work.begun() == 1).await;
    assert_eq!(host.get("/readyz").await.status, 200);

    let server = host.server.clone();
    let mut stopping = std::pin::pin!(async move { server.shutdown().await });
    tokio::select! {
        biased;
        _ = &mut stopping => panic!("there is work"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    // Idle and silent connections are closed, at once.
    assert_eq!((idle.rest().await, silent.rest().await), (String::new(), String::new()));
    // A request that ends its head now is too late, health is not.
    begun.send("host\r\n\r\n").await;
    let answer = begun.answer().await;
    answer.is_problem(503, "draining");
    assert_eq!((answer.header("connection"), answer.header("retry-after")), ("close", "1"));
    begun_health.send("host\r\n\r\n").await;
    let answer = begun_health.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    // The same for new connections, to the end.
    for _ in 0..3 {
        assert_eq!(host.get("/healthz").await.status, 200);
        assert_eq!(host.get("/readyz").await.status, 503);
        host.get("/quick").await.is_problem(503, "draining");
    }
    let answer = host.get("/readyz?verbose").await;
    assert!(answer.text().contains("draining"), "{}", answer.text());
    assert_eq!(answer.json()["reads"], false);

    work.go.notify_one();
    let answer = working.answer().await;
    assert_eq!((answer.status, &*answer.text(), answer.header("connection")), (200, "done", "close"));
    let stopped: Stopped = stopping.await;
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    assert!(tokio::net::TcpStream::connect(host.address).await.is_err(), "nobody listens any more");
    assert_eq!(host.server.shutdown().await, stopped, "twice is harmless");
}

#[tokio::test]
async fn what_does_not_end_is_cut_at_the_deadline() {
    let mut settings = short();
    settings.drain = Duration::from_millis(300);
    let work = Arc::new(Work::default());
    let host = Host::start(held(&work), settings).await;
    let working = host.send(ask("/held")).await;
    until("it is served", || work.begun() == 1).await;
    let stopped = host.server.shutdown().await;
    assert!(stopped.aborted >= 1, "{stopped:?}");
    assert!(stopped.elapsed < Duration::from_secs(2), "{stopped:?}");
    assert_eq!(working.rest().await, "");
}

#[tokio::test]
async fn a_host_that_stops_takes_its_server_along() {
    let host = Host::start(held(&Arc::default()), short()).await;
    assert_eq!(host.get("/quick").await.status, 200);
    assert!(host.ready.status().reads);
    host.supervisor.shutdown().await;
    assert!(!host.ready.status().reads);
    assert!(tokio::net::TcpStream::connect(host.address).await.is_err());
}

#[tokio::test]
async fn dropping_the_last_handle_stops_it() {
    let host = Host::start(held(&Arc::default()), short()).await;
    let (address, supervisor) = (host.address, host.supervisor.clone());
    drop(host);
    for _ in 0..200 {
        if tokio::net::TcpStream::connect(address).await.is_err() {
            supervisor.shutdown().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still listening");
}

/// A client that goes away takes its work with it.
#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let work = Arc::new(Work::default());
    let host = Host::start(held(&work), short()).await;
    let working = host.send(ask("/held")).await;
    until("it is served", || work.begun() == 1).await;
    drop(working);
    until("it is over", || host.server.connections() == 0).await;
}

/// After 101 the connection belongs to who took it over: in the task that served it, with what came early, until a stop.
#[tokio::test]
async fn a_connection_can_be_taken_over() {
    let switch = get(async || {
        let owner = |upgraded: Upgraded| async move {
            let Upgraded { mut stream, early, stop, .. } = upgraded;
            stream.write_all(&early).await.expect("the peer is there");
            let mut bytes = [0; 16];
            loop {
                tokio::select! {
                    () = stop.requested() => break,
                    read = stream.read(&mut bytes) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(read) => stream.write_all(&bytes[..read]).await.expect("the peer is there"),
                    },
                }
            }
            stream.write_all(b"bye").await.expect("the peer is there");
        };
        let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
        response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
        response.headers_mut().insert("upgrade", HeaderValue::from_static("echo"));
        response.extensions_mut().insert(Upgrade::to(owner));
        response
    });
    let places = Guard::new("echo").in_flight(1);
    let host = Host::start(Router::new().route("/echo", switch.layer(places)), short()).await;
    let ask = "GET /echo HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let mut taken = host.send(ask).await;
    assert_eq!(taken.answer().await.status, 101);
    // It keeps its place.
    host.get("/echo").await.is_problem(429, "busy");
    taken.send("hello").await;
    while !taken.rest.ends_with(b"hello") {
        assert!(taken.more().await > 0);
    }
    let stopped = host.server.shutdown().await;
    assert_eq!((stopped.aborted, taken.rest().await.ends_with("bye")), (0, true));
}
