//! Abuse cases 8, 9 and 10: heads that are too large, heads that two readers would read differently, and another protocol.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, body::Bytes, routing::post};

use super::{Host, counting, short};

/// Case 9.
#[tokio::test]
async fn large_heads_are_refused_by_what_is_large() {
    let host = Host::start(counting(&Arc::new(AtomicUsize::new(0))), short()).await;
    let many = "x: y\r\n".repeat(101);
    for (what, head, status, code) in [
        ("many headers", format!("GET /count HTTP/1.1\r\n{many}\r\n"), 431, "head_too_large"),
        (
            "a long header",
            format!("GET /count HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(40 << 10)),
            431,
            "head_too_large",
        ),
        (
            "endless headers",
            format!("GET /count HTTP/1.1\r\nx: {}", "y".repeat(1 << 20)),
            431,
            "head_too_large",
        ),
        ("a long URI", format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(10 << 10)), 414, "uri_too_long"),
        ("an endless URI", format!("GET /{}", "a".repeat(1 << 20)), 414, "uri_too_long"),
    ] {
        let mut client = host.send(head).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        answer.is_problem(status, code);
        client.closed().await;
    }
    assert_eq!(host.get("/count").await.status, 200);
}

#[tokio::test]
async fn heads_within_the_limits_are_served() {
    let count = Arc::new(AtomicUsize::new(0));
    let host = Host::start(counting(&count), short()).await;
    let fields: String = (0..99).map(|n| format!("x-{n}: {}\r\n", "y".repeat(200))).collect();
    let head = format!("GET /count?{} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n", "a".repeat(7 << 10));
    assert_eq!(host.ask(head).await.status, 200);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// Case 8. Each line hides a second request, `GET /count`, from a reader that sees the first one longer, or shows it
/// to one that sees it shorter. Nobody may run it, and the connection must not be used any further.
#[tokio::test]
async fn no_smuggled_request_is_run() {
    let hidden = "GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let chunked = format!("0\r\n\r\n{hidden}");
    let post = "POST /upload HTTP/1.1\r\nhost: localhost\r\n";
    for (what, bytes) in [
        ("CL and TE", format!("{post}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        ("TE and CL", format!("{post}transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n{chunked}")),
        ("two CL that differ", format!("{post}content-length: 0\r\ncontent-length: 40\r\n\r\n{hidden}")),
        ("two CL alike", format!("{post}content-length: 0\r\ncontent-length: 0\r\n\r\n{hidden}")),
        ("a list of CL", format!("{post}content-length: 0, 0\r\n\r\n{hidden}")),
        ("CL with a sign", format!("{post}content-length: +0\r\n\r\n{hidden}")),
        ("CL beyond 64 bits", format!("{post}content-length: 18446744073709551616\r\n\r\n{hidden}")),
        ("chunked, x", format!("{post}transfer-encoding: chunked, x\r\n\r\n{chunked}")),
        ("x, chunked", format!("{post}transfer-encoding: x, chunked\r\n\r\n{chunked}")),
        ("gzip, chunked", format!("{post}transfer-encoding: gzip, chunked\r\n\r\n{chunked}")),
        (
            "two TE",
            format!("{post}transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n{chunked}"),
        ),
        ("TE of another name", format!("{post}transfer-encoding: xchunked\r\n\r\n{chunked}")),
        ("TE in HTTP/1.0", format!("POST /upload HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        (
            "TE with a space",
            format!("{post}transfer-encoding : chunked\r\ncontent-length: 0\r\n\r\n{chunked}"),
        ),
        ("TE with a tab", format!("{post}transfer-encoding:\tchunked\r\ncontent-length: 5\r\n\r\n{chunked}")),
        ("TE by a bare LF", format!("{post}x: y\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        ("all bare LF", format!("POST /upload HTTP/1.1\nhost: localhost\n\n{hidden}")),
        ("an end by bare LF", format!("{post}content-length: 0\r\n\n{hidden}")),
        ("a bare CR", format!("{post}x: y\rcontent-length: 40\r\n\r\n{hidden}")),
        ("a folded line", format!("{post}x: y\r\n content-length: 40\r\n\r\n{hidden}")),
        ("a folded TE", format!("{post}transfer-encoding:\r\n chunked\r\n\r\n{chunked}")),
        ("a line without colon", format!("{post}content-length\r\n\r\n{hidden}")),
        ("a zero byte", format!("{post}x: \0\r\n\r\n{hidden}")),
        ("no host", format!("POST /upload HTTP/1.1\r\n\r\n{hidden}")),
        ("two hosts", format!("{post}host: other\r\n\r\n{hidden}")),
        ("a chunk size with a sign", format!("{post}transfer-encoding: chunked\r\n\r\n+0\r\n\r\n{hidden}")),
        (
            "a chunk size too long",
            format!("{post}transfer-encoding: chunked\r\n\r\n10000000000000000\r\n\r\n{hidden}"),
        ),
        ("a chunk ended by LF", format!("{post}transfer-encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n{hidden}")),
        ("honest chunks", format!("{post}transfer-encoding: chunked\r\n\r\n{chunked}")),
    ] {
        let count = Arc::new(AtomicUsize::new(0));
        let router = counting(&count).route("/upload", post_handler());
        let host = Host::start(router, short()).await;
        let said = host.send(bytes).await.rest().await;
        assert_eq!(count.load(Ordering::SeqCst), 0, "{what}: the hidden request was run: {said}");
        let answers = said.matches("HTTP/1.1 ").count() + said.matches("HTTP/1.0 ").count();
        assert!(answers <= 1, "{what}: {said}");
        if what != "honest chunks" {
            assert!(!said.contains(" 200 "), "{what}: {said}");
        }
    }
}

fn post_handler() -> axum::routing::MethodRouter {
    post(async |body: Bytes| body.len().to_string())
}

/// Case 10. HTTP/2 is not spoken: ten thousand requests that are reset at once, and header blocks that go on for ever,
/// are one bad request each. Who asks to change to it goes on in HTTP/1.1.
#[tokio::test]
async fn floods_of_http_2_are_one_bad_request() {
    let count = Arc::new(AtomicUsize::new(0));
    let host = Host::start(counting(&count), short()).await;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, b"")].concat();
    // GET, http, /count by index and as a literal; then RST_STREAM.
    let block = b"\x82\x86\x04\x06/count\x01\x09localhost";
    let reset = |stream: u32| [frame(1, 5, stream, block), frame(3, 0, stream, &[0, 0, 0, 8])].concat();
    let rapid_reset: Vec<u8> = (0..10_000).flat_map(|number| reset(2 * number + 1)).collect();
    let endless: Vec<u8> = [frame(1, 1, 1, block)]
        .into_iter()
        .chain((0..1_000).map(|_| frame(9, 0, 1, &[0; 1_000])))
        .flatten()
        .collect();
    for (what, flood) in [("rapid reset", rapid_reset), ("endless CONTINUATION", endless)] {
        let began = ron_core::now();
        let said = host.send([&preface[..], &flood].concat()).await.rest().await;
        assert!(began.elapsed().as_secs() < 5, "{what}: {:?}", began.elapsed());
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{what}: {said}");
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{what}: {said}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 0);

    let upgrade = "GET /count HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\n\
                   upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n";
    assert_eq!(host.ask(upgrade).await.status, 200);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// What is not ambiguous still works: several requests in one go, bodies that stand right before the next head.
#[tokio::test]
async fn honest_pipelines_are_served_in_order() {
    let count = Arc::new(AtomicUsize::new(0));
    let router = counting(&count).route("/upload", post_handler());
    let host = Host::start(router, short()).await;
    let get = "GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let post = |body: &str| {
        format!("POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let mut client = host.send(format!("{get}{}{get}{}{get}", post(&"x".repeat(5000)), post(get))).await;
    for expected in ["counted", "5000", "counted", &get.len().to_string(), "counted"] {
        let answer = client.answer().await;
        assert_eq!((answer.status, &*answer.text()), (200, expected));
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
    // In pieces of one byte it is the same.
    for byte in format!("{}{get}", post("abc")).into_bytes() {
        client.send([byte]).await;
    }
    assert_eq!(client.answer().await.text(), "3");
    assert_eq!(client.answer().await.text(), "counted");
}

/// A fault behind a request does not cost that request its answer.
#[tokio::test]
async fn a_fault_behind_a_good_request_comes_after_its_answer() {
    let slow = Router::new().route(
        "/slow",
        axum::routing::get(async || {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            "slow"
        }),
    );
    let host = Host::start(slow, short()).await;
    let mut client =
        host.send("GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\nGET / HTTP/1.1\nhost: x\n\n").await;
    assert_eq!(client.answer().await.text(), "slow");
    client.answer().await.is_problem(400, "malformed");
    assert_eq!(client.rest().await, "");
}
