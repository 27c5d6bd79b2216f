//! Abuse cases 3, 4 and 5: heads, bodies and readers that take their time.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicUsize},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    routing::{get, post},
};
use http_body_util::BodyExt as _;
use ron_core::http::{Guard, Problem, collect};

use super::{Host, SHORT, counting, short, until};

/// Case 3: a head that never ends is closed after the head timeout, told so, and counted.
#[tokio::test]
async fn a_partial_head_is_closed_in_time() {
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), short()).await;
    let began = ron_core::now();
    let mut client = host.send("GET /count HTTP/1.1\r\nhost: local").await;
    client.answer().await.is_problem(408, "slow_head");
    client.closed().await;
    let took = began.elapsed();
    assert!(took >= SHORT && took < SHORT * 3, "{took:?}");
    assert_eq!(host.series("io_timeouts_total{op=\"http_head\"}"), 1);
}

/// Case 3: one byte after the other does not buy time.
#[tokio::test]
async fn a_dribbled_head_is_closed_in_time() {
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), short()).await;
    let mut client = host.connect().await;
    let began = ron_core::now();
    let mut head = b"GET /count HTTP/1.1\r\nhost: localhost\r\nx-padding: ".iter().chain([b'a'; 1000].iter());
    while began.elapsed() < SHORT * 4 {
        client.send([*head.next().unwrap()]).await;
        let answered = tokio::time::timeout(Duration::from_millis(20), client.more()).await;
        if answered.is_ok() {
            break;
        }
    }
    assert!(began.elapsed() < SHORT * 3, "{:?}", began.elapsed());
}

/// A connection that says nothing at all is closed after the head timeout, without a word.
#[tokio::test]
async fn a_silent_connection_is_closed_in_time() {
    let host = Host::start(Router::new(), short()).await;
    assert_eq!(host.connect().await.rest().await, "");
}

/// Between two requests the longer patience holds, and ends with the first byte of the next head.
#[tokio::test]
async fn an_idle_connection_waits_longer_than_a_slow_one() {
    let mut settings = short();
    settings.idle_timeout = SHORT * 4;
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), settings).await;
    let request = "GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n";

    let mut client = host.send(request).await;
    assert_eq!(client.answer().await.status, 200);
    tokio::time::sleep(SHORT * 2).await;
    client.send(request).await;
    assert_eq!(client.answer().await.status, 200, "idle for longer than a head may take");
    let idle = client.closed().await;
    assert!(idle >= SHORT * 3 && idle < SHORT * 7, "{idle:?}");

    // Behind a whole request comes a part of the next one: that is a slow head, not an idle client.
    let mut client = host.send(format!("{request}GET /cou")).await;
    assert_eq!(client.answer().await.status, 200);
    let slow = client.closed().await;
    assert!(slow < SHORT * 3, "{slow:?}");
}

fn upload() -> Router {
    Router::new()
        .route("/plain", post(async |body: Bytes| body.len().to_string()))
        .route(
            "/problem",
            post(async |request: Request| Ok::<_, Problem>(collect(request).await?.len().to_string())),
        )
        .route("/streamed", post(streamed).layer(Guard::new("streamed").streaming()))
}

async fn streamed(mut body: Body) -> String {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    bytes.to_string()
}

/// Case 4: a body that comes at a byte every now and then is cut, whichever way the handler reads it.
#[tokio::test]
async fn a_dribbled_body_is_cut() {
    let host = Host::start(upload(), short()).await;
    for path in ["/plain", "/problem"] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n");
        let mut client = host.send(head).await;
        let began = ron_core::now();
        let answer = loop {
            client.send("x").await;
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(20), client.answer()).await {
                break answer;
            }
        };
        answer.is_problem(408, "slow_body");
        assert_eq!(answer.header("connection"), "close");
        assert!(began.elapsed() < SHORT * 3, "{:?}", began.elapsed());
        client.closed().await;
    }
}

/// Case 4: streaming routes have no size limit but keep the pace all the same.
#[tokio::test]
async fn a_streamed_body_that_stops_is_cut() {
    let host = Host::start(upload(), short()).await;
    let head = "POST /streamed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let mut client = host.send(head).await;
    assert_eq!(client.answer().await.text(), "3");
    assert!(client.closed().await < SHORT * 3);
}

/// A line that is thin but steady is served.
#[tokio::test]
async fn a_modest_body_is_served() {
    let host = Host::start(upload(), short()).await;
    let mut client =
        host.send("POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10240\r\n\r\n").await;
    for _ in 0..10 {
        client.send([b'x'; 1024]).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    assert_eq!(client.answer().await.text(), "10240");
}

/// Case 5: a client that asks for a lot and reads nothing is cut after the write timeout, and its place is free.
#[tokio::test]
async fn a_reader_that_does_not_read_is_cut() {
    let endless = get(async || Body::new(Endless));
    let guard = Guard::new("endless").in_flight(1);
    let host = Host::start(Router::new().route("/endless", endless.layer(guard)), short()).await;
    let ask = "GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut client = host.send(ask).await;
    client.more().await;
    // The handler has long returned, but its answer is not written: the place is taken until then.
    let mut second = host.send(ask).await;
    second.answer().await.is_problem(429, "busy");
    drop(second);
    until("only the reader is there", || host.server.connections() == 1).await;
    let began = ron_core::now();
    until("the connection is cut", || host.server.connections() == 0).await;
    assert!(began.elapsed() < SHORT * 4, "{:?}", began.elapsed());
    assert_eq!(host.series("io_timeouts_total{op=\"http_write\"}"), 1);
    drop(client);
    // The place in the route came back with it.
    let mut next = host.send(ask).await;
    next.more().await;
    assert!(next.rest.starts_with(b"HTTP/1.1 200"));
}

/// A gibibyte and more of zeros, made as it is read.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[0; 16 << 10])))))
    }
}
