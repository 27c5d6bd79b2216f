//! Bodies: bombs that grow when they are decoded, JSON that is too deep or says a thing twice, ranges without end.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};

use super::{node, status};

/// Routes that read JSON or CBOR.
const READERS: [&str; 6] = [
    "/registry/found",
    "/registry/proposals",
    "/registry/approvals",
    "/registry/commit",
    "/registry/supersede",
    "/index/purge",
];

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
    node.allowed("POST", READERS[0], &format!("{json}Content-Encoding: gzip\r\n"), &gzip(b"{}", 1));
    let grown = node.growth(|| {
        for path in READERS {
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

/// Case 61: too deep, too long, out of range, twice, and not even text. On every route that reads JSON.
#[test]
fn json_bombs_are_refused_on_every_route() {
    let node = node("");
    let deep =
        |open: &str, close: &str, times: usize| format!("{}{}", open.repeat(times), close.repeat(times));
    let bombs: [Vec<u8>; 16] = [
        b"".into(),
        b"[".repeat(1_000_000),
        deep("[", "]", 400_000).into(),
        deep("{\"a\":", "}", 100_000).into(),
        deep("{\"keys\":[", "]}", 100_000).into(),
        format!("{{\"keys\":{}}}", "9".repeat(900_000)).into(),
        b"{\"keys\":1e999999999}".into(),
        b"{\"keys\":-0.00000000000000000000000000000000000000000000001e-400}".into(),
        b"{\"keys\":[],\"keys\":[]}".into(),
        b"{\"proposal\":\"\",\"proposal\":\"\"}".into(),
        b"{\"policy\":\"\",\"policy\":\"\"}".into(),
        b"{\"__proto__\":{\"admin\":true}}".into(),
        b"{\"keys\":[\"\\ud800\"]}".into(),
        b"{\"keys\":[\"\xff\xfe\"]}".into(),
        b"{\"keys\":[]} {\"keys\":[]}".into(),
        b"\xef\xbb\xbf{\"keys\":[]}".into(),
    ];
    for path in READERS {
        for bomb in &bombs {
            let began = ron_core::now();
            let refused = node.allowed("POST", path, "Content-Type: application/json\r\n", bomb);
            let begins = String::from_utf8_lossy(&bomb[..bomb.len().min(40)]);
            assert!(matches!(status(&refused), 400 | 413 | 415 | 422), "{path} {begins} {refused}");
            assert!(refused.contains("application/problem+json"), "{path} {begins} {refused}");
            assert!(began.elapsed() < Duration::from_secs(5), "{path} {begins} {:?}", began.elapsed());
        }
        // The same as CBOR: depth, and lengths that nothing stands behind.
        let mut deep = vec![0x81; 500_000];
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
            let refused = node.allowed("POST", path, "Content-Type: application/cbor\r\n", bomb);
            assert!(matches!(status(&refused), 400 | 413 | 415 | 422), "{path} {refused}");
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
    for bytes in ["0-18446744073709551615", "9-1", "18446744073709551615-", &many(1000)] {
        let path = format!("/o/{id}?bytes={bytes}");
        let answer = node.ask("GET", &path, "Accept: application/vnd.ron.bao\r\n", b"");
        assert!(
            matches!(status(&answer), 200 | 206 | 400 | 414 | 416),
            "{bytes} {}",
            &answer[..answer.len().min(300)]
        );
    }
    node.is_well();
}
