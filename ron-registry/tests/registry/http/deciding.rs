//! Proposals, approvals and commits over HTTP.

use data_encoding::BASE64;
use ron_registry::{Action, Content, LogTrust, Note, Proposal};
use serde_json::json;

use super::{Host, submission};
use crate::world::{approvals, bind, draft, policy};

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_decides_over_http() {
    let host = Host::start().await;
    let founded = host.post("/found", &json!({"policy": BASE64.encode(policy(2, 3).encoded())})).await;
    assert_eq!((founded.status, founded.header("location")), (201, "1"), "{founded:?}");

    let proposal = draft(&host.registry, "tools/compiler", "v1");
    let proposed = host.post("/proposals", &submission(&proposal, &[])).await;
    assert_eq!((proposed.status, proposed.json()["state"].as_str()), (202, Some("pending")));
    let place = format!("/{}", proposed.header("location"));
    assert_eq!(place, format!("/proposals/{}", proposal.id()));
    // The same again is the same.
    assert_eq!(host.post("/proposals", &submission(&proposal, &[])).await.json(), proposed.json());

    let [first, second] = &approvals(&proposal, &[1, 2])[..] else { unreachable!() };
    let body = json!({"approval": BASE64.encode(&first.encode())});
    assert_eq!(host.post("/approvals", &body).await.json()["missing"], json!(["s0", "s2"]));
    let waits = host.send("GET", &place, "authorization: Bearer pending\r\n", b"").await.json();
    assert_eq!((waits["approvals"].as_array().unwrap().len(), &waits["missing"]), (1, &json!(["s0", "s2"])));
    let decoded = Proposal::decode(
        &BASE64.decode(waits["proposal"]["bytes"].as_str().unwrap().as_bytes()).unwrap().into(),
    );
    assert_eq!(decoded.unwrap(), proposal, "a signer can see what it signs");

    let headers = "authorization: Bearer approve\r\ncontent-type: application/cbor\r\n";
    let committed = host.send("POST", "/approvals", headers, &second.encode()).await;
    assert_eq!((committed.status, committed.header("location")), (201, "2"));
    let receipt = committed.json();
    let note = Note::parse(receipt["checkpoint"].as_str().unwrap().as_bytes()).unwrap();
    assert!(LogTrust::new(host.registry.log_key()).open(&note).unwrap().size >= 2);
    assert_eq!(
        host.post("/proposals", &submission(&proposal, &[])).await.status,
        201,
        "it is in the log already"
    );
    host.send("GET", &place, "authorization: Bearer all\r\n", b"").await.is_problem(404, "no_such_proposal");
    host.supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_commits_and_a_lost_race_is_a_conflict() {
    let host = Host::founded(1, 2).await;
    let proposal = draft(&host.registry, "a", "1");
    let committed = host.post("/commit", &submission(&proposal, &approvals(&proposal, &[0]))).await;
    assert_eq!((committed.status, committed.json()["version"].as_u64()), (201, Some(2)));

    // Both were drafted before either was committed.
    let (one, other) = (draft(&host.registry, "b", "1"), draft(&host.registry, "b", "2"));
    assert_eq!(host.post("/commit", &submission(&one, &approvals(&one, &[0]))).await.status, 201);
    host.post("/commit", &submission(&other, &approvals(&other, &[0]))).await.is_problem(409, "name_moved");

    let head = host.registry.head();
    let expires = draft(&host.registry, "x", "x").expires();
    let fixed = |name: &str| {
        let action =
            Action::Bind { name: name.parse().unwrap(), content: Content::Payload("x".into()), prior: 0 };
        Proposal::new(host.registry.origin(), 1, expires, action, Some(head)).unwrap()
    };
    let (one, other) = (fixed("c"), fixed("d"));
    assert_eq!(host.post("/commit", &submission(&one, &approvals(&one, &[0]))).await.status, 201);
    let lost = host.post("/commit", &submission(&other, &approvals(&other, &[0]))).await;
    lost.is_problem(409, "chain_mismatch");
    assert!(lost.text().contains("the head is 4"), "{}", lost.text());

    // What replaces nothing is not for supersede.
    let fresh = draft(&host.registry, "new", "1");
    host.post("/supersede", &submission(&fresh, &approvals(&fresh, &[0]))).await.is_problem(400, "bad_form");
    let next = draft(&host.registry, "a", "2");
    let superseded = host.post("/supersede", &submission(&next, &approvals(&next, &[0]))).await;
    assert_eq!((superseded.status, superseded.json()["version"].as_u64()), (201, Some(5)));
    host.supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_are_told_what_is_wrong() {
    let host = Host::founded(1, 1).await;
    bind(&host.registry, "a", "1", &[0]).await.unwrap();
    let proposal = draft(&host.registry, "b", "1");
    let good = submission(&proposal, &[]);
    let many: Vec<String> =
        approvals(&proposal, &[0; 129]).iter().map(|one| BASE64.encode(&one.encode())).collect();
    for (path, body, status, code) in [
        ("/commit", json!({"proposal": "?"}), 400, "json_data"),
        ("/commit", json!({"proposal": "AAAA"}), 400, "bad_form"),
        ("/commit", json!({"proposal": good["proposal"], "extra": 1}), 400, "json_data"),
        ("/commit", json!({"proposal": good["proposal"], "approvals": many}), 400, "bad_form"),
        ("/commit", json!({}), 400, "json_data"),
        ("/proposals", submission(&proposal, &approvals(&proposal, &[0])), 400, "bad_form"),
        ("/approvals", json!({"approval": "AAAA"}), 400, "bad_form"),
        (
            "/approvals",
            json!({"approval": BASE64.encode(&approvals(&proposal, &[0])[0].encode())}),
            404,
            "no_such_proposal",
        ),
        ("/found", json!({"policy": "AAAA"}), 400, "bad_form"),
        ("/found", json!({"policy": BASE64.encode(policy(1, 2).encoded())}), 409, "beginning"),
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (status, Some(code)),
            "{path} {body} {answer:?}"
        );
    }
    // Enough approvals, and one of a stranger, who is nobody.
    let stranger = approvals(&proposal, &[7]);
    let body = json!({"approval": BASE64.encode(&stranger[0].encode())});
    host.post("/proposals", &good).await;
    host.post("/approvals", &body).await.is_problem(403, "not_a_signer");
    // One bit of a signature.
    let mut flipped = approvals(&proposal, &[0])[0].encode();
    *flipped.last_mut().unwrap() ^= 1;
    host.post("/approvals", &json!({"approval": BASE64.encode(&flipped)}))
        .await
        .is_problem(400, "bad_signature");
    let headers = "authorization: Bearer all\r\ncontent-type: text/plain\r\n";
    host.send("POST", "/commit", headers, b"hello").await.is_problem(415, "not_json");
    let long = vec![0; (1 << 20) + 1];
    let headers = "authorization: Bearer all\r\ncontent-type: application/cbor\r\n";
    host.send("POST", "/commit", headers, &long).await.is_problem(413, "body_too_large");
    assert_eq!(host.registry.head().version, 2);
    host.supervisor.shutdown().await;
}

/// Each route asks about an action of its own, before the body is looked at and before anything is queued.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_is_for_one_thing() {
    let host = Host::founded(1, 1).await;
    for (method, path, right) in [
        ("POST", "/found", "found"),
        ("POST", "/proposals", "propose"),
        ("GET", "/proposals", "pending"),
        ("POST", "/approvals", "approve"),
        ("POST", "/commit", "commit"),
        ("POST", "/supersede", "commit"),
    ] {
        for shown in ["found", "propose", "pending", "approve", "commit"] {
            let headers = format!("authorization: Bearer {shown}\r\ncontent-type: application/json\r\n");
            let answer = host.send(method, path, &headers, b"not json").await;
            assert_eq!(answer.status == 403, shown != right, "{path} with {shown}: {answer:?}");
        }
        let bare = host.send(method, path, "content-type: application/json\r\n", b"not json").await;
        bare.is_problem(401, "unauthorized");
    }
    host.supervisor.shutdown().await;
}
