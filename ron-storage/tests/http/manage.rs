//! What there is, pins, deletion, upkeep, and who may.

use ron_core::ContentId;

use crate::Host;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_or_told_without_a_token() {
    let host = Host::start().await;
    let id = host.put(b"mine").await;
    for (method, path) in [
        ("PUT", format!("/o/{id}")),
        ("PUT", format!("/o/{}", ContentId::of(b"absent"))),
        ("POST", "/o".to_owned()),
        ("DELETE", format!("/o/{id}")),
        ("PUT", format!("/pins/{id}")),
        ("DELETE", format!("/pins/{id}")),
        ("GET", "/o".to_owned()),
        ("GET", "/usage".to_owned()),
        ("POST", "/gc".to_owned()),
        ("POST", "/scrub".to_owned()),
    ] {
        host.ask(method, &path, "content-length: 0\r\n").await.is_problem(401, "unauthorized");
        let wrong = "authorization: Bearer wrong\r\ncontent-length: 0\r\n";
        host.ask(method, &path, wrong).await.is_problem(401, "unauthorized");
    }
    assert_eq!(host.store.usage().objects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_keep_and_deletes_delete() {
    let host = Host::start().await;
    let id = host.put(b"object").await;
    let (object, pin) = (format!("/o/{id}"), format!("/pins/{id}"));
    let pinned = host.allowed("PUT", &pin, "", b"").await;
    assert_eq!((pinned.status, &pinned.json()["changed"]), (200, &true.into()));
    assert_eq!(host.allowed("PUT", &pin, "", b"").await.json()["changed"], false);
    assert_eq!(host.ask("GET", &format!("/stat/{id}"), "").await.json()["pinned"], true);
    host.allowed("DELETE", &object, "", b"").await.is_problem(409, "pinned");
    assert_eq!(host.allowed("DELETE", &pin, "", b"").await.json()["changed"], true);
    let deleted = host.allowed("DELETE", &object, "", b"").await;
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    host.allowed("DELETE", &object, "", b"").await.is_problem(404, "no_such_object");
    host.allowed("PUT", &pin, "", b"").await.is_problem(404, "no_such_object");
    host.ask("GET", &format!("/stat/{id}"), "").await.is_problem(404, "no_such_object");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_pages_and_usage_counts() {
    let host = Host::start().await;
    let mut ids = Vec::new();
    for number in 0..7_u8 {
        ids.push(host.put(&[number; 10]).await.to_string());
    }
    ids.sort();
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = host.allowed("GET", &format!("/o?limit=3{after}"), "", b"").await.json();
        for object in page["objects"].as_array().unwrap() {
            assert_eq!(object["size"], 10);
            listed.push(object["id"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(listed, ids);
    for path in ["/o?limit=0", "/o?limit=1001", "/o?limit=x", "/o?after=x", "/o?page=2"] {
        host.allowed("GET", path, "", b"").await.is_problem(400, "bad_query");
    }
    let usage = host.allowed("GET", "/usage", "", b"").await.json();
    assert_eq!((&usage["objects"], &usage["bytes"]), (&7.into(), &70.into()));
    host.allowed("PUT", &format!("/pins/{}", ids[0]), "", b"").await;
    let scrubbed = host.allowed("POST", "/scrub", "", b"").await.json();
    assert_eq!((&scrubbed["objects"], &scrubbed["damaged"]), (&7.into(), &serde_json::json!([])));
    for unclear in ["dry_run=", "dry_run=1", "dry_run=true&dry_run=true", "dryrun=true"] {
        host.allowed("POST", &format!("/gc?{unclear}"), "", b"").await.is_problem(400, "bad_query");
    }
    assert_eq!(host.allowed("POST", "/gc?dry_run", "", b"").await.json()["dry_run"], true);
    let dry = host.allowed("POST", "/gc?dry_run=true", "", b"").await.json();
    assert_eq!(dry["dry_run"], true);
    assert_eq!(host.store.usage().objects, 7);
}
