//! Traces, as a collector gets them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::Daemon;

/// What a span says: its name, its trace and its parent.
#[derive(Debug, Clone, PartialEq)]
struct Span {
    name: String,
    trace: Vec<u8>,
    parent: Vec<u8>,
}

/// The fields of a message of protocol buffers that have bytes: the number and the bytes. Panics at what is no message.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn number(message: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message);
        let length = match key & 7 {
            0 => {
                number(&mut message);
                continue;
            }
            1 => 8,
            2 => usize::try_from(number(&mut message)).unwrap(),
            5 => 4,
            kind => panic!("no kind of field: {kind}"),
        };
        let (bytes, rest) = message.split_at(length);
        message = rest;
        found.push((key >> 3, bytes));
    }
    found
}

fn of(message: &[u8], field: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(number, _)| *number == field).map(|(_, bytes)| bytes).collect()
}

/// ExportTraceServiceRequest: resource_spans (1), of each scope_spans (2), of each spans (2), of each trace_id (1), parent (4)
/// and name (5).
fn spans(request: &[u8]) -> Vec<Span> {
    let scopes = of(request, 1).into_iter().flat_map(|resource| of(resource, 2));
    let spans = scopes.flat_map(|scope| of(scope, 2));
    let first = |span: &[u8], field| of(span, field).first().map_or(Vec::new(), |bytes| bytes.to_vec());
    spans
        .map(|span| Span {
            name: String::from_utf8(first(span, 5)).unwrap(),
            trace: first(span, 1),
            parent: first(span, 4),
        })
        .collect()
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "threads and the time of a test, which has no supervisor and no pretended clock"
)]
fn requests_reach_a_collector_as_spans() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let (got, resources) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (into, raw) = (Arc::clone(&got), Arc::clone(&resources));
    thread::spawn(move || {
        for stream in collector.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut head, mut line) = (String::new(), String::new());
            while stream.read_line(&mut line).unwrap() > 2 {
                head += &line.to_lowercase();
                line.clear();
            }
            assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            into.lock().unwrap().extend(spans(&body));
            raw.lock().unwrap().push(body);
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(dir.path(), &[], &[("REFD_OTEL__ENDPOINT", &endpoint)]);
    let id = "1f".repeat(32);
    assert!(daemon.get(&format!("/o/b3:{id}")).starts_with("HTTP/1.1 404"));
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("traceparent: 00-{trace}-b7ad6b7169203331-01\r\n");
    assert!(daemon.ask("GET", "/dht/status", &parent).starts_with("HTTP/1.1 200"));
    assert!(daemon.get("/healthz").starts_with("HTTP/1.1 200"));
    // A stop sends what waits.
    daemon.terminate();
    for _ in 0..500 {
        if got.lock().unwrap().len() >= 2 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let got = got.lock().unwrap();
    let names: Vec<&str> = got.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["GET /o/{id}", "GET /dht/status"]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((hex(&got[1].trace), hex(&got[1].parent)), (trace.to_owned(), "b7ad6b7169203331".to_owned()));
    assert!(got[0].parent.is_empty() && got[0].trace != got[1].trace);
    let resources = resources.lock().unwrap().concat();
    assert!(resources.windows(4).any(|word| word == b"refd"));
    // What was asked for is nobody's business but the node's.
    assert!(!resources.windows(id.len()).any(|word| word == id.as_bytes()));
}
