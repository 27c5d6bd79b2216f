//! GET and HEAD.

use std::sync::Arc;

use bytes::BytesMut;
use ron_core::{ContentId, http::Settings as HttpSettings, sim::SimDisk};
use ron_storage::{Store, logic::proof::ProofReader};

use crate::{GROUP, Host, content, soon};

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_served_whole_and_for_ever() {
    let host = Host::start().await;
    for len in [0, 1, GROUP, 3 * GROUP + 5, 3 << 20] {
        let content = content(len);
        let id = host.put(&content).await;
        for name in [id.to_string(), id.to_cid(), id.to_string().replace(':', "%3A")] {
            let got = host.ask("GET", &format!("/o/{name}"), "").await;
            assert_eq!(got.status, 200);
            assert!(got.body == content, "{len}");
            assert_eq!(got.header("etag"), format!("\"{id}\""));
            assert_eq!(got.header("accept-ranges"), "bytes");
            assert_eq!(got.header("content-type"), "application/octet-stream");
            assert_eq!(got.header("cache-control"), "public, max-age=31536000, immutable, no-transform");
            assert_eq!(got.header("vary"), "accept, accept-encoding");
            assert_eq!(got.header("content-disposition"), "attachment");
            assert_eq!(got.header("x-content-type-options"), "nosniff");
            assert!(got.header("content-security-policy").contains("sandbox"));
        }
        let head = host.ask("HEAD", &format!("/o/{id}"), "range: bytes=0-0\r\n").await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), len.to_string());
        assert_eq!(head.header("etag"), format!("\"{id}\""));
    }
    let id = host.put(b"named").await;
    let got = host.ask("GET", &format!("/o/{id}?filename=r%C3%A9sum%C3%A9.pdf"), "").await;
    assert_eq!(
        got.header("content-disposition"),
        "attachment; filename=\"r_sum_.pdf\"; filename*=UTF-8''r%C3%A9sum%C3%A9.pdf"
    );
    host.ask("GET", &format!("/o/{id}?filename=../x"), "").await.is_problem(400, "bad_query");
    host.ask("GET", &format!("/o/{id}?name=x"), "").await.is_problem(400, "bad_query");
    host.ask("GET", &format!("/o/{}", ContentId::of(b"absent")), "").await.is_problem(404, "no_such_object");
    assert!(host.series("gets_total") >= 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_range() {
    let host = Host::start().await;
    let content = content((2 << 20) + 77);
    let (id, len) = (host.put(&content).await, content.len());
    for (range, start, end) in [
        ("0-0".to_owned(), 0, 1),
        ("65535-65536".to_owned(), 65535, 65537),
        ("1000-".to_owned(), 1000, len),
        ("-5".to_owned(), len - 5, len),
        (format!("{}-{}", GROUP * 3 + 1, len + 9), GROUP * 3 + 1, len),
    ] {
        let got = host.ask("GET", &format!("/o/{id}"), &format!("range: bytes={range}\r\n")).await;
        assert_eq!(got.status, 206, "{range}");
        assert_eq!(got.header("content-range"), format!("bytes {start}-{}/{len}", end - 1));
        assert!(got.body == content[start..end], "{range}");
        assert_eq!(got.header("etag"), format!("\"{id}\""));
    }
    for range in [format!("{len}-"), "5-4".to_owned(), "x".to_owned(), "0-5,3-9".to_owned()] {
        let got = host.ask("GET", &format!("/o/{id}"), &format!("range: bytes={range}\r\n")).await;
        got.is_problem(416, "range");
        assert_eq!(got.header("content-range"), format!("bytes */{len}"), "{range}");
    }
    let other = host.ask("GET", &format!("/o/{id}"), "range: lines=1-2\r\n").await;
    assert_eq!((other.status, other.body.len()), (200, len));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_ranges_come_as_parts() {
    let host = Host::start().await;
    let content = content(200_000);
    let id = host.put(&content).await;
    let got = host.ask("GET", &format!("/o/{id}"), "range: bytes=100-199,0-9,-3\r\n").await;
    assert_eq!(got.status, 206);
    let boundary = &id.to_string()[3..];
    assert_eq!(got.header("content-type"), format!("multipart/byteranges; boundary={boundary}"));
    let mut expected = Vec::new();
    for (number, (start, end)) in [(100, 200), (0, 10), (199_997, 200_000)].into_iter().enumerate() {
        let line = if number == 0 { "" } else { "\r\n" };
        expected.extend_from_slice(
            format!(
                "{line}--{boundary}\r\ncontent-type: application/octet-stream\r\n\
                 content-range: bytes {start}-{}/200000\r\n\r\n",
                end - 1
            )
            .as_bytes(),
        );
        expected.extend_from_slice(&content[start..end]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(got.body == expected, "{}", String::from_utf8_lossy(&got.body));
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions() {
    let host = Host::start().await;
    let id = host.put(b"conditional").await;
    let path = format!("/o/{id}");
    for (headers, status) in [
        (format!("if-none-match: \"{id}\"\r\n"), 304),
        ("if-none-match: *\r\n".to_owned(), 304),
        (format!("if-none-match: \"x\"\r\nif-none-match: W/\"{id}\"\r\n"), 304),
        ("if-none-match: \"x\"\r\n".to_owned(), 200),
        (format!("if-match: \"{id}\"\r\n"), 200),
        (format!("if-range: \"{id}\"\r\nrange: bytes=0-1\r\n"), 206),
        ("if-range: \"x\"\r\nrange: bytes=0-1\r\n".to_owned(), 200),
        ("if-range: Tue, 15 Nov 1994 12:45:26 GMT\r\nrange: bytes=0-1\r\n".to_owned(), 200),
        (format!("if-none-match: \"{id}\"\r\nrange: bytes=0-1\r\n"), 304),
    ] {
        let got = host.ask("GET", &path, &headers).await;
        assert_eq!(got.status, status, "{headers}");
        if status == 304 {
            assert!(got.body.is_empty());
            assert_eq!(got.header("etag"), format!("\"{id}\""));
            assert!(got.header("cache-control").contains("immutable"));
        }
    }
    host.ask("GET", &path, "if-match: \"x\"\r\n").await.is_problem(412, "precondition");
}

/// The proofs that `Accept` asks for are read back by their own reader, whole and in parts.
#[tokio::test(flavor = "multi_thread")]
async fn proofs_prove() {
    let host = Host::start().await;
    let content = content(5 * GROUP + 100);
    let id = host.put(&content).await;
    let accept = "accept: application/vnd.ron.bao\r\n";
    for (query, ranges) in [
        ("", vec![0..u64::MAX]),
        ("?bytes=0-", vec![0..u64::MAX]),
        ("?bytes=70000-70001", vec![70000..70002]),
        ("?bytes=-1,0-0", vec![0..1, 5 * GROUP as u64 + 99..u64::MAX]),
        ("?bytes=0-9,5-20", vec![0..21]),
    ] {
        let got = host.ask("GET", &format!("/o/{id}{query}"), accept).await;
        assert_eq!(got.status, 200, "{query}");
        assert_eq!(got.header("content-type"), "application/vnd.ron.bao");
        assert_eq!(got.header("etag"), format!("\"{id}+bao\""));
        assert_eq!(got.header("accept-ranges"), "none");
        let mut reader = ProofReader::ranges(id, ranges, u64::MAX);
        let mut arrived = BytesMut::from(&got.body[..]);
        let mut groups = 0;
        while let Some(group) = reader.next(&mut arrived).unwrap() {
            let at = group.offset as usize;
            assert!(content[at..at + group.bytes.len()] == group.bytes);
            groups += 1;
        }
        reader.finish(&arrived).unwrap();
        assert!(groups > 0 && reader.is_done());
        let head = host.ask("HEAD", &format!("/o/{id}{query}"), accept).await;
        assert_eq!(head.header("content-length"), got.body.len().to_string());
    }
    // Ranges in the header would mean bytes of the proof to a cache: all of it is sent.
    let whole = host.ask("GET", &format!("/o/{id}"), &format!("{accept}range: bytes=0-0\r\n")).await;
    assert_eq!(whole.status, 200);
    assert!(whole.body.len() > content.len());
    let known = format!("{accept}if-none-match: \"{id}+bao\"\r\n");
    assert_eq!(host.ask("GET", &format!("/o/{id}"), &known).await.status, 304);
    for query in ["?bytes=999999999-", "?bytes=x", "?bytes="] {
        host.ask("GET", &format!("/o/{id}{query}"), accept).await.is_problem(416, "range");
    }
    host.ask("GET", &format!("/o/{id}?bytes=0-1"), "").await.is_problem(400, "bad_query");
    let empty = host.put(b"").await;
    assert_eq!(host.ask("GET", &format!("/o/{empty}"), accept).await.body, [0; 8]);
}

/// Damage has a status, also where several ranges are asked for and the answer begins with words.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_said_before_the_first_part() {
    let disk = SimDisk::new();
    let builder = Store::builder().data(Arc::new(disk.clone()), "store");
    let host = Host::serve(builder, HttpSettings::default()).await;
    let content = content(300_000);
    let id = host.store.put_bytes(content.clone().into(), soon()).await.unwrap().id;
    let path = format!("/o/{id}");
    let fine = host.ask("GET", &path, "range: bytes=0-9,,200000-200009\r\n").await;
    assert_eq!(fine.status, 206);
    assert!(fine.body.windows(10).any(|window| *window == content[200_000..200_010]));
    host.ask("GET", &path, "range: bytes=0-9\r\nrange: bytes=5-6\r\n").await.is_problem(416, "range");
    disk.flip_bit("store/large/0000000000000001.dat", 200_005);
    host.ask("GET", &path, "range: bytes=200000-200009,0-9\r\n").await.is_problem(500, "damaged");
}
