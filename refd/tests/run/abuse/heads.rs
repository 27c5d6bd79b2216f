//! Heads of requests: what can be read two ways, what is too large, another protocol, and pages from elsewhere.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use super::{PATIENCE, exchange, node, rest, status};

/// Case 8. Behind each of these stands a request that deletes an object. A reader who is lenient where another is strict
/// takes it for a request of its own; here nobody may. The connection has to end, because what comes next on it could be
/// anything.
#[test]
fn no_smuggled_request_is_run() {
    let node = node("");
    let (admin, bearer) = (node.daemon.admin, node.bearer());
    let id = node.put(b"to be kept");
    let smuggled = format!("DELETE /o/{id} HTTP/1.1\r\nHost: {admin}\r\n{bearer}\r\n");
    let heads = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 0\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length:\r\n",
        "Content-Length : 5\r\n",
        "Content-Length\t: 5\r\n",
        "Content-Length: 5\n",
        "X: y\nContent-Length: 5\r\n",
        "X: y\rContent-Length: 5\r\n",
        "X: y\0\r\n",
        "X: y\r\n Content-Length: 5\r\n",
        "Transfer-Encoding: chunked, x\r\n",
        "Transfer-Encoding: x, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\r\n: chunked\r\n",
        "Transfer_Encoding: chunked\r\nContent-Length: 5\r\nContent-Length: 9\r\n",
    ];
    for fields in heads {
        // What it is for one reader is the end of a chunked body for another.
        let request = format!("POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}{fields}\r\n0\r\n\r\n{smuggled}");
        let answer = exchange(admin, request.as_bytes());
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{fields:?} {answer}");
        assert!(answer.is_empty() || matches!(status(&answer), 400 | 413 | 501), "{fields:?} {answer}");
    }
    // Chunks that end where they should not, or nowhere.
    for chunks in [
        "5\r\nabc",
        "3\r\nabcX\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "3;a=b\nabc\r\n0\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nX: y\n\r\n",
    ] {
        let request = format!(
            "POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}Transfer-Encoding: chunked\r\n\r\n{chunks}{smuggled}"
        );
        // Some of these wait for more, which does not come.
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answer = rest(&mut stream);
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{chunks:?} {answer}");
    }
    // A body that looks like a request is a body, on routes that take none too.
    for path in ["/healthz", "/dht/status", "/nowhere", "/"] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {}\r\n\r\n{smuggled}",
            smuggled.len()
        );
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Who hangs up before the answer is there has called off its request.
        let mut first = [0; 9];
        stream.read_exact(&mut first).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answer = format!("{}{}", String::from_utf8_lossy(&first), rest(&mut stream));
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{path} {answer}");
    }
    // Whom is it for?
    for head in [
        format!("GET /dht/status HTTP/1.1\r\nHost: {admin}\r\nHost: evil.example\r\n\r\n"),
        "GET /dht/status HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let answer = exchange(admin, format!("{head}{smuggled}").replace("DELETE", "GET").as_bytes());
        assert_eq!(status(&answer), 400, "{answer}");
    }
    assert!(node.daemon.get(&format!("/o/{id}")).ends_with("to be kept"));
    let metrics = node.daemon.get("/metrics");
    assert!(!metrics.contains("method=\"DELETE\""), "{metrics}");
    node.is_well();
}

/// Case 9.
#[test]
fn large_heads_are_refused() {
    let node = node("");
    let admin = node.daemon.admin;
    let grown = node.growth(|| {
        for _ in 0..20 {
            for (head, refused) in [
                (format!("GET /{} HTTP/1.1\r\nHost: {admin}\r\n\r\n", "a".repeat(10 << 10)), 414),
                (format!("GET /o?after={} HTTP/1.1\r\nHost: {admin}\r\n\r\n", "%41".repeat(100 << 10)), 414),
                (format!("GET / HTTP/1.1\r\nHost: {admin}\r\n{}\r\n", "a: b\r\n".repeat(10_000)), 431),
                (format!("GET / HTTP/1.1\r\nHost: {admin}\r\na: {}\r\n\r\n", "b".repeat(1 << 20)), 431),
                (format!("GET / HTTP/1.1\r\nHost: {admin}\r\n{}: b\r\n\r\n", "a".repeat(1 << 20)), 431),
            ] {
                let answer = exchange(admin, head.as_bytes());
                assert_eq!(status(&answer), refused, "{answer}");
            }
        }
    });
    println!("{grown} bytes more at the highest");
    assert!(grown < 8 << 20, "{grown} bytes more");
    node.is_well();
}

/// Case 10: HTTP/2 is not spoken, and whatever is sent in it costs one answer.
#[test]
fn floods_of_http_2_are_one_bad_request() {
    let node = node("");
    let admin = node.daemon.admin;
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1..20_000u32).step_by(2) {
        flood.extend([&[0, 0, 1, 1, 5], &stream.to_be_bytes()[..], &[0x82]].concat());
        flood.extend([&[0, 0, 4, 3, 0], &stream.to_be_bytes()[..], &[0, 0, 0, 8]].concat());
    }
    let answer = exchange(admin, &flood);
    assert_eq!(status(&answer), 400, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    let upgrade = format!(
        "GET /healthz HTTP/1.1\r\nHost: {admin}\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    );
    let answer = exchange(admin, upgrade.as_bytes());
    assert_eq!(status(&answer), 200, "{answer}");
    node.is_well();
}

/// Case 55, on every route there is.
#[test]
fn no_route_is_for_pages_from_elsewhere() {
    let node = node("");
    let admin = node.daemon.admin;
    for (path, method, _) in node.routes() {
        for headers in [
            "Host: evil.example\r\n".to_owned(),
            format!("Host: {admin}\r\nOrigin: https://evil.example\r\n"),
            format!("Host: {admin}\r\nOrigin: null\r\n"),
        ] {
            // Even with the token: a page that has got hold of it is still elsewhere.
            let bearer = node.bearer();
            let request = format!(
                "{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}{bearer}Content-Length: 0\r\n\r\n"
            );
            let answer = exchange(admin, request.as_bytes());
            assert_eq!(status(&answer), 403, "{method} {path} {headers} {answer}");
        }
    }
    node.is_well();
}
