//! What the fuzzer and the replay of its corpus both run: the routes that change something, and bodies that say whatever
//! the bytes say.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, header},
};
use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::BodyExt as _;
use ron_core::{
    Deadline, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    net::Identity,
};
use ron_registry::{Content, Policy, Proposal, Registry, Signer, http, store::MemoryStore};
use tower::ServiceExt as _;

const ORIGIN: &str = "example.com/registry";
const NOW: u64 = 1_700_000_000_000;

struct Anybody;

impl Authorizer for Anybody {
    fn authorize(&self, _: &Action<'_>, _: &Credentials<'_>) -> Result<Grant, Denied> {
        Ok(Grant::new("anybody".to_owned()))
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

fn identity(seed: u8) -> Identity {
    Identity::from_seed(&[seed % 4 + 1; 32])
}

/// Requests behind each other: a byte of where to and in which form, one that says what the body is made of, two of its
/// length, and its bytes. Whatever they are: nothing panics, whoever is refused is told so in the common form, and the head
/// moves when, and only when, somebody is told that it did.
pub(crate) fn requests(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("no I/O is asked for").block_on(play(data));
}

async fn play(mut script: &[u8]) {
    let host = Supervisor::builder("fuzz").inline_blocking(true).start();
    let builder = Registry::builder(ORIGIN, [42; 32]).clock(|| NOW);
    let registry = builder.start(Arc::new(MemoryStore::new()), &host).await.expect("an empty log");
    let signer =
        |seed: u8| Signer { name: format!("s{seed}"), key: identity(seed).public_key(), expires: None };
    let policy = Policy::of(2, (0..3).map(signer).collect()).expect("a policy");
    registry.found(policy, soon()).await.expect("it is empty");
    let router = http::guarded(&registry, Arc::new(Anybody)).merge(http::router(&registry));
    while let [place, made, high, low, rest @ ..] = script {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let (bytes, rest) = rest.split_at(rest.len().min(len));
        script = rest;
        one(&registry, &router, *place, *made, bytes).await;
    }
    let stopped = registry.shutdown().await;
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    host.shutdown().await;
}

async fn one(registry: &Registry, router: &Router, place: u8, made: u8, bytes: &[u8]) {
    let path = ["/found", "/proposals", "/approvals", "/commit", "/supersede"][usize::from(place >> 4) % 5];
    let (kind, body) = match made {
        0 => ("application/cbor", Bytes::copy_from_slice(bytes)),
        1 => ("application/json", Bytes::copy_from_slice(bytes)),
        // A submission in form, with approvals that are doubled, by strangers, bent, or far too many.
        _ => ("application/json", submission(registry, made, bytes)),
    };
    let before = registry.head().version;
    let request = Request::post(path).header(header::CONTENT_TYPE, kind).body(Body::from(body));
    let answer = router.clone().oneshot(request.expect("a request")).await.expect("routers do not fail");
    let (head, body) = answer.into_parts();
    let body = body.collect().await.expect("it is in memory").to_bytes();
    let said: serde_json::Value = serde_json::from_slice(&body).expect("every answer is JSON");
    match head.status.as_u16() {
        201 => {
            let version = said["version"].as_u64().expect("where it is");
            assert!(version <= before + 1, "{said}");
            assert_eq!(registry.head().version, before.max(version));
        }
        202 => assert_eq!(registry.head().version, before),
        status => {
            assert!((400..500).contains(&status), "{status}: {said}");
            assert_eq!(head.headers[header::CONTENT_TYPE], "application/problem+json");
            assert!(said["code"].is_string() && said["retryable"].is_boolean(), "{said}");
            assert_eq!(registry.head().version, before);
        }
    }
}

/// A proposal for the log as it is, and approvals: each byte says by whom, and whether it is bent.
fn submission(registry: &Registry, made: u8, script: &[u8]) -> Bytes {
    let name = format!("n/{}", made % 3).parse().expect("a name");
    let payload = Bytes::from(vec![made; usize::from(made) * 3]);
    let lifetime = Duration::from_secs(u64::from(made) * 100);
    let proposal = registry.draft_bind(name, Content::Payload(payload), lifetime).expect("in form");
    let approvals: Vec<String> =
        script.iter().map(|step| BASE64.encode(&approval(&proposal, *step))).collect();
    let body = serde_json::json!({"proposal": BASE64.encode(proposal.encoded()), "approvals": approvals});
    body.to_string().into()
}

fn approval(proposal: &Proposal, step: u8) -> Vec<u8> {
    let mut bytes = proposal.approve(&identity(step), proposal.expires()).encode();
    if step & 0x80 != 0 {
        let at = usize::from(step) % bytes.len();
        bytes[at] ^= 1 << (step >> 4 & 7);
    }
    bytes
}
