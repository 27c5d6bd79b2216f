//! Bodies: bombs that grow when they are decoded, JSON that is too deep or says a thing twice, ranges without end.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};

use super::{node, status};

/// Routes that read JSON or CBOR, and where in a body that they take for one a text has its place: what is before it and behind.
const READERS: [(&str, &[(&str, &str)]); 6] = [
    ("/registry/found", &[("{\"policy\":", "}")]),
    ("/registry/proposals", SUBMIT),
    ("/registry/approvals", &[("{\"approval\":", "}")]),
    ("/registry/commit", SUBMIT),
    ("/registry/supersede", SUBMIT),
    ("/index/purge", &[("{\"keys\":[", "]}"), ("{\"all\":false,\"keys\":[", "]}")]),
];

const SUBMIT: &[(&str, &str)] = &[("{\"proposal\":", "}"), ("{\"proposal\":\"\",\"approvals\":[", "]}")];

fn gzip(plain: &[u8], times: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    (0..times).for_each(|_| encoder.write_all(plain).unwrap());
    encoder.finish().unwrap()
}

/// Case 11: some ten kilobytes that stand for a hundred megabytes, and the same packed twice.
#[test]
fn compressed_bombs_are_refused() {
    let node = node("[overlay]\ntopics = [\"news\"]\n");
    let bomb = gzip(&vec![b' '; 1 << 20], 100);
    let nested = gzip(&bomb, 1);
    let json = "Content-Type: application/json\r\n";
    // Once, so that what is made on first use is there. With something small: memory that a bomb has left behind would not
    // be seen to be taken again.
    node.allowed("POST", READERS[0].0, &format!("{json}Content-Encoding: gzip\r\n"), &gzip(b"{}", 1));
    let grown = node.growth(|| {
        for (path, _) in READERS {
            let gzipped = format!("{json}Content-Encoding: gzip\r\n");
            let refused = node.allowed("POST", path, &gzipped, &bomb);
            assert_eq!(status(&refused), 413, "{path} {refused}");
            // A stranger's is not looked into at all.
            assert_eq!(status(&node.ask("POST", path, &gzipped, &bomb)), 401, "{path}");
            for encoding in ["zstd", "br", "deflate", "gzip, gzip", "gzip, zstd"] {
                let headers = format!("{json}Content-Encoding: {encoding}\r\n");
                let refused = node.allowed("POST", path, &headers, &nested);
                assert_eq!(status(&refused), 415, "{path} {encoding} {refused}");
            }
        }
        // Objects and messages are what they are, and come as they are.
        for (method, path) in [("POST", "/o"), ("POST", "/gossip/news")] {
            for encoding in ["gzip", "zstd"] {
                let refused = node.allowed(method, path, &format!("Content-Encoding: {encoding}\r\n"), &bomb);
                assert_eq!(status(&refused), 415, "{path} {encoding} {refused}");
            }
        }
    });
    println!("{grown} bytes more at the highest");
    assert!(grown < 8 << 20, "{grown} bytes more");
    node.is_well();
}

/// Case 61: too deep, too long, out of range, twice, and not even text; each in a body that is taken otherwise, so that it is refused
/// for what it is. On every route that reads JSON.
#[test]
fn json_bombs_are_refused_on_every_route() {
    let node = node("");
    let reads =
        |operation: &serde_json::Value| operation["requestBody"]["content"].get("application/json").is_some();
    let operations = node.operations().into_iter();
    let readers: Vec<(String, String)> = operations
        .filter(|(_, _, operation)| reads(operation))
        .map(|(path, method, _)| (method, path))
        .collect();
    let mut known = READERS.map(|(path, _)| ("POST".to_owned(), path.to_owned()));
    known.sort();
    assert_eq!(readers, known, "routes that read JSON");

    let deep =
        |open: &str, close: &str, times: usize| format!("{}{}", open.repeat(times), close.repeat(times));
    let refused = |path: &str, kind: &str, body: &[u8]| {
        let began = ron_core::now();
        let refused = node.allowed("POST", path, &format!("Content-Type: application/{kind}\r\n"), body);
        let begins = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert!(refused.contains("application/problem+json"), "{path} {begins} {refused}");
        assert!(began.elapsed() < Duration::from_secs(5), "{path} {begins} {:?}", began.elapsed());
        (status(&refused), format!("{path} {begins} {refused}"), super::json(&refused)["detail"].clone())
    };
    // In place of a text, with a few words of what is said to it.
    let places: [(Vec<u8>, &str); 8] = [
        (deep("[", "]", 25_000).into(), "invalid type: sequence"),
        (deep("{\"a\":", "}", 8_000).into(), "invalid type: map"),
        ("9".repeat(50_000).into(), "number out of range"),
        (b"1e999999999".into(), "number out of range"),
        (b"-0.00000000000000000000000000000000000000000000001e-400".into(), "invalid type: floating point"),
        (b"\"\\ud800\"".into(), "hex escape"),
        (b"\"\xff\xfe\"".into(), "invalid unicode"),
        (b"\"\" {}".into(), "expected"),
    ];
    for (path, texts) in READERS {
        for (before, behind) in texts {
            let body = |text: &[u8]| [before.as_bytes(), text, behind.as_bytes()].concat();
            let usual = body(b"\"\"");
            let inner = String::from_utf8(usual[1..usual.len() - 1].to_vec()).unwrap();
            let twice = inner.split_once(':').unwrap().0;
            let mut bombs: Vec<(Vec<u8>, &str)> =
                places.iter().map(|(text, says)| (body(text), *says)).collect();
            bombs.extend([
                (format!("{{{inner},{inner}}}").into(), "duplicate field"),
                (format!("{{{inner},\"__proto__\":{}}}", deep("[", "]", 25_000)).into(), "unknown field"),
                (format!("{{\"a\":{},{inner}}}", deep("{\"a\":", "}", 8_000)).into(), "unknown field"),
                ([&usual[..], b" ", &usual].concat(), "trailing"),
                ([b"\xef\xbb\xbf", &usual[..]].concat(), "expected value"),
                (usual[..usual.len() - 1].into(), "EOF"),
                (format!("{{{twice}").into(), "EOF"),
                (Vec::new(), "EOF"),
                (b"[".repeat(50_000), "invalid type: sequence"),
            ]);
            // It is none of these by itself. That it says nothing is found out by who reads on.
            let (_, answer, detail) = refused(path, "json", &usual);
            let detail = detail.as_str().unwrap_or_default();
            assert!(!bombs.iter().any(|(_, says)| detail.contains(says)), "{answer}");
            for (bomb, says) in bombs {
                let (status, answer, detail) = refused(path, "json", &bomb);
                assert_eq!(status, 400, "{answer}");
                assert!(detail.as_str().is_some_and(|detail| detail.contains(says)), "not {says}: {answer}");
            }
        }
        // The same as CBOR: depth, and lengths that nothing stands behind.
        let mut deep = vec![0x81; 50_000];
        deep.push(0);
        for bomb in [
            &deep[..],
            b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"\x9a\xff\xff\xff\xff",
            b"\xa1\x00\x9a\xff\xff\xff\xff",
            b"\x9f",
        ] {
            let (status, answer, _) = refused(path, "cbor", bomb);
            assert_eq!(status, if path.starts_with("/registry/") { 400 } else { 415 }, "{answer}");
        }
    }
    node.is_well();
}

/// Case 12.
#[test]
fn ranges_without_end_are_refused() {
    let node = node("");
    let id = node.put(&super::content(700_000, 1));
    let many =
        |count: usize| (0..count).map(|n| format!("{}-{}", 2 * n, 2 * n)).collect::<Vec<_>>().join(",");
    for (range, expected) in [
        (format!("bytes={}", many(1000)), &[416][..]),
        (format!("bytes={}", "0-,".repeat(2000)), &[416]),
        ("bytes=0-18446744073709551615".to_owned(), &[206]),
        ("bytes=18446744073709551615-".to_owned(), &[416]),
        ("bytes=18446744073709551616-18446744073709551617".to_owned(), &[416]),
        ("bytes=-18446744073709551615".to_owned(), &[206]),
        ("bytes=9-1".to_owned(), &[416]),
        ("bytes=0-9,5-14".to_owned(), &[416]),
        ("bytes=-0".to_owned(), &[416]),
        ("bytes=--1".to_owned(), &[416]),
        ("octets=0-1".to_owned(), &[200]),
    ] {
        for path in [format!("/o/{id}"), format!("/o/b3:{}", "0".repeat(64))] {
            let answer = node.ask("GET", &path, &format!("Range: {range}\r\n"), b"");
            let is_there = path.contains(&id.to_string());
            let is_expected = expected.contains(&status(&answer)) || (!is_there && status(&answer) == 404);
            assert!(
                is_expected,
                "{} {path} {}",
                &range[..range.len().min(60)],
                &answer[..answer.len().min(300)]
            );
            assert!(answer.len() < 800_000 * 3, "{range}");
        }
    }
    for (bytes, expected) in [
        ("0-18446744073709551615", 200),
        ("9-1", 416),
        ("18446744073709551615-", 416),
        ("18446744073709551616-", 416),
        (&many(100), 416),
        (&many(2000), 414),
    ] {
        let path = format!("/o/{id}?bytes={bytes}");
        let answer = node.ask("GET", &path, "Accept: application/vnd.ron.bao\r\n", b"");
        assert_eq!(status(&answer), expected, "{bytes} {}", &answer[..answer.len().min(300)]);
    }
    node.is_well();
}
