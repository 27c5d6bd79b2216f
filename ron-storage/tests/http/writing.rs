//! PUT and POST.

use ron_core::ContentId;
use ron_storage::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{Host, answer, content, soon};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_there() {
    let host = Host::start().await;
    let content = content(300_000);
    let id = ContentId::of(&content);
    let stored = host.allowed("PUT", &format!("/o/{id}"), "", &content).await;
    assert_eq!(stored.status, 201);
    let told = stored.json();
    assert_eq!((&told["id"], &told["cid"]), (&id.to_string().into(), &id.to_cid().into()));
    assert_eq!((&told["size"], &told["existed"]), (&300_000.into(), &false.into()));
    // A store in memory promises no more than it can keep.
    assert_eq!(told["durability"], "buffered");
    assert_eq!(stored.header("location"), format!("./{id}"));
    assert_eq!(stored.header("etag"), format!("\"{id}\""));
    assert!(host.ask("GET", &format!("/o/{id}"), "").await.body == content);

    let again = host.allowed("PUT", &format!("/o/{}", id.to_cid()), "", &content).await;
    assert_eq!((again.status, &again.json()["existed"]), (200, &true.into()));
    host.allowed("PUT", &format!("/o/{id}"), "if-none-match: *\r\n", &content)
        .await
        .is_problem(412, "exists");

    let posted = host.allowed("POST", "/o", "", b"posted").await;
    assert_eq!(posted.status, 201);
    let id = ContentId::of(b"posted");
    assert_eq!(posted.header("location"), format!("o/{id}"));
    assert_eq!(host.allowed("POST", "/o", "", b"posted").await.status, 200);
    let empty = host.allowed("POST", "/o", "", b"").await;
    assert_eq!((empty.status, empty.json()["id"].clone()), (201, ContentId::of(b"").to_string().into()));
    let pinned = host.allowed("POST", "/o?pin=true&durability=buffered", "", b"pinned").await;
    assert_eq!(pinned.status, 201);
    assert!(host.store.stat(ContentId::of(b"pinned"), soon()).await.unwrap().is_pinned);
    host.allowed("POST", "/o?durability=maybe", "", b"x").await.is_problem(400, "bad_query");
}

/// RFC 9110, 13.1: what a condition forbids is not done.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_for_changes_too() {
    let host = Host::start().await;
    let (id, other) = (ContentId::of(b"this"), ContentId::of(b"other"));
    let path = format!("/o/{id}");
    for tag in ["*".to_owned(), format!("\"{id}\""), format!("\"{other}\"")] {
        let header = format!("if-match: {tag}\r\n");
        host.allowed("PUT", &path, &header, b"this").await.is_problem(412, "precondition");
        host.allowed("DELETE", &path, &header, b"").await.is_problem(412, "precondition");
    }
    let unless = format!("if-none-match: \"{id}\"\r\n");
    assert_eq!(host.allowed("PUT", &path, &unless, b"this").await.status, 201);
    host.allowed("PUT", &path, &unless, b"this").await.is_problem(412, "exists");
    let same = format!("if-match: \"{id}\"\r\n");
    assert_eq!(host.allowed("PUT", &path, &same, b"this").await.status, 200);
    let wrong = format!("if-match: \"{other}\"\r\n");
    host.allowed("DELETE", &path, &wrong, b"").await.is_problem(412, "precondition");
    assert_eq!(host.store.usage().objects, 1);
    assert_eq!(host.allowed("DELETE", &path, &same, b"").await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_object_is_not_kept() {
    let host = Host::start().await;
    let id = ContentId::of(b"this");
    let refused = host.allowed("PUT", &format!("/o/{id}"), "", b"that").await;
    refused.is_problem(409, "mismatch");
    assert!(refused.json()["detail"].as_str().unwrap().contains(&ContentId::of(b"that").to_string()));
    assert_eq!(host.store.usage().objects, 0);
}

/// RFC 9110, 14.5. A part of an object is another object: stored, it would be found under a name that nobody expects, and of one
/// that is here already the client would believe that its part was taken.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_objects_are_refused() {
    let host = Host::start().await;
    let id = host.put(b"all of it").await;
    for (method, path) in [("POST", "/o".to_owned()), ("PUT", format!("/o/{id}"))] {
        let part = host.allowed(method, &path, "content-range: bytes 0-2/9\r\n", b"all").await;
        part.is_problem(400, "partial");
    }
    assert_eq!(host.store.usage().objects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_are_checked_before_anything_is_kept() {
    let host = Host::start().await;
    let body = b"{\"hello\": \"world\"}\n";
    let right = "content-digest: sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:\r\n";
    assert_eq!(host.allowed("POST", "/o", right, body).await.status, 201);
    host.allowed("POST", "/o", right, b"other").await.is_problem(409, "digest_mismatch");
    host.allowed("POST", "/o", "content-digest: sha-256=nonsense\r\n", b"x")
        .await
        .is_problem(400, "bad_digest");
    let named = |content: &[u8]| {
        let value = data_encoding::BASE64.encode(ContentId::of(content).as_bytes());
        format!("content-digest: blake3=:{value}:\r\n")
    };
    assert_eq!(host.allowed("POST", "/o", &named(b"abc"), b"abc").await.status, 201);
    host.allowed("POST", "/o", &named(b"abd"), b"xyz").await.is_problem(409, "mismatch");
    // A name in the path and another in the digest cannot both be right.
    let path = format!("/o/{}", ContentId::of(b"one"));
    host.allowed("PUT", &path, &named(b"two"), b"one").await.is_problem(409, "mismatch");
    assert_eq!(host.store.usage().objects, 2);
}

/// Nothing is asked for that will not be used: a client that waits for leave is answered without it.
#[tokio::test(flavor = "multi_thread")]
async fn leave_to_continue_is_given_only_for_a_body_that_is_wanted() {
    let host = Host::start().await;
    let head = |path: &str, more: &str| {
        format!(
            "POST /at{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n\
             content-length: 5\r\n{more}\r\n"
        )
    };
    let token = format!("authorization: Bearer {}\r\n", host.token);
    let mut stream = host.connect().await;
    stream.write_all(head("/o", &token).as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(answer(&mut stream, "POST").await.status, 201);

    // Without the token, and for a body in an encoding that is not taken.
    for (more, status, code) in
        [("", 401, "unauthorized"), (&*format!("{token}content-encoding: gzip\r\n"), 415, "encoding")]
    {
        let mut stream = host.connect().await;
        stream.write_all(head("/o", more).as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(first, *format!("HTTP/1.1 {status}").as_bytes());
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.contains(code), "{rest}");
    }
}

/// A body without a length, in chunks.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_come_in_chunks() {
    let host = Host::start().await;
    let headers = format!("authorization: Bearer {}\r\ntransfer-encoding: chunked\r\n", host.token);
    let body = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let stored = host.send("POST", "/o", &headers, body).await;
    assert_eq!(
        (stored.status, stored.json()["id"].clone()),
        (201, ContentId::of(b"abcde").to_string().into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_have_their_statuses() {
    let settings = Settings { object_bytes_max: 1000, quota_bytes: Some(1500), ..Settings::default() };
    let host = Host::with(settings, Default::default()).await;
    assert_eq!(host.allowed("POST", "/o", "", &content(1000)).await.status, 201);
    // By what it says of itself, and by what comes.
    let large = host.allowed("POST", "/o", "", &content(1001)).await;
    large.is_problem(413, "object_too_large");
    assert!(large.json()["detail"].as_str().unwrap().contains("object_bytes_max"));
    let chunked = format!("authorization: Bearer {}\r\ntransfer-encoding: chunked\r\n", host.token);
    let mut body = b"3e9\r\n".to_vec();
    body.extend_from_slice(&content(1001));
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    host.send("POST", "/o", &chunked, &body).await.is_problem(413, "object_too_large");
    let full = host.allowed("POST", "/o", "", &content(600)).await;
    full.is_problem(507, "quota");
    assert!(full.json()["hint"].as_str().unwrap().contains("delete"));
    // Reads go on.
    let id = ContentId::of(&content(1000));
    assert_eq!(host.ask("GET", &format!("/o/{id}"), "").await.status, 200);
}
