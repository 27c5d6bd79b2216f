//! Clients that are hostile or only slow. The numbers are those of the list of abuse cases that the project keeps.

use std::time::Duration;

use ron_core::{ContentId, http::Settings as HttpSettings};
use ron_storage::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{Host, PATIENCE, content, until};

fn impatient() -> HttpSettings {
    let mut settings = HttpSettings::default();
    settings.io_timeout = Duration::from_millis(300);
    settings
}

/// Case 4: a body of a byte now and then is cut, and nothing of it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_dribbled_body_is_cut() {
    let host = Host::with(Settings::default(), impatient()).await;
    let mut stream = host.connect().await;
    let head = format!(
        "POST /at/o HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 1000\r\n\r\nx",
        host.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("slow_body"), "{text}");
    until("its place is free", || host.series("put_streams") == 0).await;
    assert_eq!(host.store.usage().objects, 0);
}

/// Case 41: an upload that breaks off leaves no object and no place taken.
#[tokio::test(flavor = "multi_thread")]
async fn broken_uploads_leave_nothing() {
    let host = Host::start().await;
    for _ in 0..20 {
        let mut stream = host.connect().await;
        let head = format!(
            "POST /at/o HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 1000000\r\n\r\n",
            host.token
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&content(100_000)).await.unwrap();
        drop(stream);
    }
    until("all places are free", || host.series("put_streams") == 0).await;
    assert_eq!(host.store.usage().objects, 0);
}

/// Case 5: who does not read is cut off, and holds neither worker nor bytes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_is_cut() {
    let host = Host::with(Settings::default(), impatient()).await;
    let id = host.put(&content(16 << 20)).await;
    let mut stream = host.connect().await;
    let head = format!("GET /at/o/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    until("it is read", || host.series("get_streams") == 1).await;
    until("it is cut", || host.series("get_streams") == 0).await;
    // Others are served.
    assert_eq!(host.ask("GET", &format!("/o/{id}"), "range: bytes=0-9\r\n").await.status, 206);
}

/// Case 11: compressed bodies are not taken, whatever is in them.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_are_refused() {
    let host = Host::start().await;
    for encoding in ["gzip", "zstd", "br", "gzip, gzip"] {
        let headers = format!("content-encoding: {encoding}\r\n");
        host.allowed("POST", "/o", &headers, &content(1000)).await.is_problem(415, "encoding");
    }
}

/// Case 12.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_without_end_are_refused() {
    let host = Host::start().await;
    let id = host.put(&content(100_000)).await;
    let many = (0..1000).map(|n| format!("{n}-{n}")).collect::<Vec<_>>().join(",");
    for range in [&*many, "0-18446744073709551615,0-1", "5-1", "0-,0-", "18446744073709551616-"] {
        let got = host.ask("GET", &format!("/o/{id}"), &format!("range: bytes={range}\r\n")).await;
        got.is_problem(416, "range");
    }
    let whole = host.ask("GET", &format!("/o/{id}"), "range: bytes=0-18446744073709551615\r\n").await;
    assert_eq!((whole.status, whole.body.len()), (206, 100_000));
}

/// Case 13.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_names_and_not_paths() {
    let host = Host::start().await;
    let upper = host.put(b"x").await.to_string().to_uppercase();
    for id in [
        "b3:../../etc/passwd",
        "b3%3A%2e%2e%2fx",
        "%2e%2e%2f",
        "b3:",
        "b3:00",
        &upper,
        "b3:%00",
        "%ff%fe",
        "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPx52",
    ] {
        let got = host.ask("GET", &format!("/o/{id}"), "").await;
        if id.contains("/etc") {
            assert_eq!(got.status, 404);
        } else {
            got.is_problem(400, "bad_id");
        }
    }
}

/// Places are bounded, and whoever finds none is told when to come again.
#[tokio::test(flavor = "multi_thread")]
async fn busy_is_said_early() {
    let settings = Settings { get_streams: 2, put_streams: 1, ..Settings::default() };
    let host = Host::with(settings, HttpSettings::default()).await;
    let id = host.put(&content(16 << 20)).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = host.connect().await;
        let head = format!("GET /at/o/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    until("both read", || host.series("get_streams") == 2).await;
    let busy = host.ask("GET", &format!("/o/{id}"), "range: bytes=0-9\r\n").await;
    busy.is_problem(429, "busy");
    assert_eq!(busy.header("retry-after"), "1");

    let mut upload = host.connect().await;
    let head = format!(
        "POST /at/o HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 9\r\n\r\nx",
        host.token
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    until("it is taken", || host.series("put_streams") == 1).await;
    host.allowed("POST", "/o", "", b"second").await.is_problem(429, "busy");
    drop(slow);
    until("they are gone", || host.series("get_streams") == 0).await;
    assert_eq!(host.ask("GET", &format!("/o/{id}"), "range: bytes=0-9\r\n").await.status, 206);
    assert!(host.series("busy_rejections_total{endpoint=\"get_streams\"}") >= 1);
}

/// What began is finished when the host stops; then nobody is served.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_began_is_finished() {
    let host = Host::start().await;
    let content = content(8 << 20);
    let id = host.put(&content).await;
    let mut stream = host.connect().await;
    let head = format!("GET /at/o/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 1000];
    stream.read_exact(&mut first).await.unwrap();
    let stopping = tokio::join!(host.supervisor.shutdown(), async {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
        rest
    });
    let bytes = [&first[..], &stopping.1].concat();
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(bytes[body..] == content, "{} of {}", bytes.len() - body, content.len());
    assert_eq!(ContentId::of(&bytes[body..]), id);
}
