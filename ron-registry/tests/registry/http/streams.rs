//! Events as they happen: resumed without holes, held up by nobody, ended in order.

use std::time::Duration;

use axum::{body::Body, extract::Request};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tower::ServiceExt as _;

use super::{Host, PATIENCE, head, head_end};
use crate::world::{Oddity, bind, bind_many};

/// A connection whose answer does not end.
struct Open {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Open {
    async fn ask(host: &Host, path: &str, headers: &str) -> (u16, Open) {
        let mut stream = host.connect().await;
        let request = format!("GET /at{path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut open = Open { stream, bytes: Vec::new() };
        open.until(|bytes| head_end(bytes).is_some()).await;
        let end = head_end(&open.bytes).unwrap();
        let (status, _) = head(&open.bytes[..end]);
        open.bytes.drain(..end);
        (status, open)
    }

    async fn more(&mut self) -> usize {
        timeout(PATIENCE, self.stream.read_buf(&mut self.bytes)).await.expect("not stuck").unwrap()
    }

    async fn until(&mut self, holds: impl Fn(&[u8]) -> bool) {
        while !holds(&self.bytes) {
            assert!(self.more().await > 0, "it ended: {:?}", String::from_utf8_lossy(&self.bytes));
        }
    }

    /// Events up to this version, as (id, data).
    async fn events(&mut self, last: u64) -> Vec<(u64, Value)> {
        let wanted = format!("id: {last}\n");
        self.until(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            text.split_once(&*wanted).is_some_and(|(_, rest)| rest.contains("\n\n"))
        })
        .await;
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let events = text.split("id: ").skip(1).map(|event| {
            let (id, rest) = event.split_once('\n').unwrap();
            let data = rest.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            (id.parse().unwrap(), serde_json::from_str(data).unwrap())
        });
        events.collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_resumed_without_a_hole() {
    let host = Host::founded(1, 1).await;
    let (status, mut live) = Open::ask(&host, "/stream", "").await;
    assert_eq!(status, 200);
    for number in 0..5 {
        bind(&host.registry, &format!("n/{number}"), "x", &[0]).await.unwrap();
    }
    let events = live.events(6).await;
    assert_eq!(
        events.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [2, 3, 4, 5, 6],
        "from the next commit on"
    );
    assert_eq!(events[0].1["name"], "n/0");
    assert_eq!(events[0].1["version"], 2);
    drop(live);

    for (path, headers, first) in [
        ("/stream?from=1", "", 1),
        ("/stream", "last-event-id: 3\r\n", 4),
        ("/stream?from=1", "last-event-id: 5\r\n", 6),
    ] {
        let (_, mut resumed) = Open::ask(&host, path, headers).await;
        let ids: Vec<u64> = resumed.events(6).await.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (first..=6).collect::<Vec<_>>(), "{path} {headers}");
    }
    host.send("GET", "/stream", "last-event-id: x\r\n", b"").await.is_problem(400, "bad_query");

    // Of what is gone it is said where the log begins now.
    super::reading::bind_tile(&host).await;
    let (_, mut late) = Open::ask(&host, "/stream?from=1", "").await;
    late.until(|bytes| String::from_utf8_lossy(bytes).contains("event: pruned\ndata: {\"first\":257}")).await;
    assert_eq!(late.events(306).await.first().unwrap().0, 257);
    host.supervisor.shutdown().await;
}

/// Reads frames of the server: unmasked, short.
async fn frame(open: &mut Open) -> (u8, Vec<u8>) {
    open.until(|bytes| bytes.len() >= 2).await;
    let (kind, head, len) = match open.bytes[1] {
        126 => {
            open.until(|bytes| bytes.len() >= 4).await;
            (open.bytes[0], 4, usize::from(u16::from_be_bytes([open.bytes[2], open.bytes[3]])))
        }
        len => (open.bytes[0], 2, usize::from(len)),
    };
    open.until(|bytes| bytes.len() >= head + len).await;
    let payload = open.bytes[head..head + len].to_vec();
    open.bytes.drain(..head + len);
    (kind, payload)
}

const WEBSOCKET: &str = "connection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_tells_the_same() {
    let host = Host::founded(1, 1).await;
    bind(&host.registry, "a", "x", &[0]).await.unwrap();
    let (status, mut socket) = Open::ask(&host, "/ws?from=2", WEBSOCKET).await;
    assert_eq!(status, 101);
    bind(&host.registry, "b", "x", &[0]).await.unwrap();
    for (version, name) in [(2, "a"), (3, "b")] {
        let (kind, words) = frame(&mut socket).await;
        let update: Value = serde_json::from_slice(&words).unwrap();
        assert_eq!((kind, update["version"].as_u64(), &update["name"]), (0x81, Some(version), &name.into()));
    }
    socket.stream.write_all(&[0x89, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    assert_eq!(frame(&mut socket).await, (0x8a, b"hi".to_vec()));
    socket.stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
    assert_eq!(frame(&mut socket).await.0, 0x88);
    assert_eq!(socket.more().await, 0, "and it is closed");

    // Words are not for us.
    let (_, mut socket) = Open::ask(&host, "/ws", WEBSOCKET).await;
    socket.stream.write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    assert_eq!(frame(&mut socket).await, (0x88, 1003u16.to_be_bytes().to_vec()));

    for headers in
        ["", "upgrade: websocket\r\n", &WEBSOCKET.replace("13", "12"), &WEBSOCKET.replace("dGhl", "x")]
    {
        host.send("GET", "/ws", headers, b"").await.is_problem(426, "not_a_websocket");
    }

    // A stop ends them.
    let (_, mut socket) = Open::ask(&host, "/ws", WEBSOCKET).await;
    let (_, mut events) = Open::ask(&host, "/stream", "").await;
    let stopped = host.supervisor.shutdown().await;
    assert_eq!(stopped.aborted, 0);
    assert_eq!(frame(&mut socket).await, (0x88, 1001u16.to_be_bytes().to_vec()));
    while events.more().await > 0 {}
}

/// Subscribers that take nothing hold up nobody, are cut off, and miss nothing when they come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_subscriber_holds_nobody_up() {
    let mut settings = ron_core::http::Settings::default();
    settings.io_timeout = Duration::from_secs(1);
    let host = Host::with(settings).await;
    host.registry.found(crate::world::policy(1, 1), crate::world::soon()).await.unwrap();
    let (_, stalled) = Open::ask(&host, "/stream?from=1", "").await;
    let (_, stalled_socket) = Open::ask(&host, "/ws?from=1", WEBSOCKET).await;
    let (_, mut live) = Open::ask(&host, "/stream?from=1", "").await;
    for from in (0..3000).step_by(300) {
        let bound = bind_many(&host.supervisor, &host.registry, from..from + 300).await;
        assert!(bound.iter().all(Result::is_ok), "commits go on");
    }
    assert_eq!(host.get("/head").await.json()["version"], 3001, "and so do reads");
    let events = live.events(3001).await;
    let versions: Vec<u64> = events.iter().map(|(id, _)| *id).collect();
    assert_eq!(versions, (1..=3001).collect::<Vec<_>>(), "who keeps up has all of it");
    drop((stalled, stalled_socket));
    let (_, mut back) = Open::ask(&host, "/stream", "last-event-id: 17\r\n").await;
    assert_eq!(back.events(3001).await.len(), 2984);
    host.supervisor.shutdown().await;
}

/// Without sockets in between, which would take in a few megabytes: an answer that nobody reads makes no events at all, and
/// has every one of them when somebody does.
#[tokio::test(start_paused = true)]
async fn what_nobody_reads_is_not_made() {
    let host = crate::world::host();
    let (registry, _) = crate::world::founded(&host, 1, 1).await;
    let request = Request::builder().uri("/stream?from=1").body(Body::empty()).unwrap();
    let answer = ron_registry::http::router(&registry).oneshot(request).await.unwrap();
    bind_many(&host, &registry, 0..3000).await;
    let mut body = answer.into_body();
    for version in 1..=3001 {
        let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(event.starts_with(format!("id: {version}\nevent: committed\n").as_bytes()), "{event:?}");
    }
    // A silent log is not a silent stream.
    let before = ron_core::now();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), ":\n\n");
    assert_eq!(before.elapsed(), Duration::from_secs(15));
    registry.shutdown().await;
    assert!(body.frame().await.is_none());
    host.shutdown().await;
}

/// A disk that takes nothing: commits are refused in time, reads go on, and it is said which is which.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_disk_stops_writes_and_nothing_else() {
    let host = Host::founded(1, 1).await;
    let settings = ron_registry::Settings {
        commit_timeout: Duration::from_millis(500),
        slow_after: Duration::from_millis(100),
        ..ron_registry::Settings::default()
    };
    host.registry.reload(settings).unwrap();
    bind(&host.registry, "a", "x", &[0]).await.unwrap();
    host.store.be(Oddity::Slow(Duration::from_secs(3600)));
    let proposal = crate::world::draft(&host.registry, "b", "x");
    let body = super::submission(&proposal, &crate::world::approvals(&proposal, &[0]));
    let began = std::time::Instant::from(ron_core::now());
    let refused = host.post("/commit", &body).await;
    assert!(matches!(refused.status, 503 | 504), "{refused:?}");
    assert!(std::time::Instant::from(ron_core::now()) - began < Duration::from_secs(5));
    assert_eq!(host.get("/names/a").await.json()["version"], 2);
    assert_eq!(host.get("/2").await.status, 200);
    let ready = host.ready().await;
    assert!(ready.to_string().contains("registry.commit"), "{ready}");
    host.store.be(Oddity::None);
    let mut tries = 0;
    while host.post("/commit", &body).await.status != 201 {
        tries += 1;
        assert!(tries < 200, "it comes back by itself");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let _ = &host.server;
    host.supervisor.shutdown().await;
}

/// Who has heard more than there is was told nothing, and waited: of a log that was rolled back it would have missed all that
/// came in place of what it knew. Now it is told where the log ends, before it waits.
#[tokio::test(start_paused = true)]
async fn who_is_ahead_is_told() {
    let host = crate::world::host();
    let (registry, _) = crate::world::founded(&host, 1, 1).await;
    bind_many(&host, &registry, 0..4).await;
    let routes = ron_registry::http::router(&registry);
    let ask = |id: &str| {
        let request = Request::builder().uri("/stream").header("last-event-id", id);
        routes.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut body = ask("7").await.unwrap().into_body();
    let mut next = ask("5").await.unwrap().into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "event: ahead\ndata: {\"head\":5}\n\n"
    );
    bind_many(&host, &registry, 4..9).await;
    for (body, version) in [(&mut body, 8), (&mut next, 6)] {
        let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(event.starts_with(format!("id: {version}\n").as_bytes()), "{event:?}");
    }
    host.shutdown().await;
}

/// Bundles of entries are large and held until they are written: readers who take their time are told to come back, and
/// take nobody else's place.
#[tokio::test(start_paused = true)]
async fn bundles_in_work_are_counted() {
    let host = crate::world::host();
    let (registry, _) = crate::world::founded(&host, 1, 1).await;
    let routes = ron_registry::http::router(&registry);
    let ask = |path: &'static str| {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let answer = routes.clone().oneshot(request);
        async { answer.await.unwrap() }
    };
    let mut held = Vec::new();
    for _ in 0..64 {
        let answer = ask("/tile/entries/000.p/1").await;
        assert_eq!(answer.status(), 200);
        held.push(answer);
    }
    for bulk in ["/tile/entries/000.p/1", "/snapshot/256/0"] {
        assert_eq!(ask(bulk).await.status(), 429, "{bulk}");
    }
    for other in ["/tile/0/000.p/1", "/head", "/entries"] {
        assert_eq!(ask(other).await.status(), 200, "{other}");
    }
    held.pop();
    assert_eq!(ask("/tile/entries/000.p/1").await.status(), 200);
    assert_eq!(ask("/tile/entries/nonsense").await.status(), 400);
    host.shutdown().await;
}
