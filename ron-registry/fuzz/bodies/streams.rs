//! What the fuzzer and the replay of its corpus both run: subscribers that read when they like, leave and come back.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request},
};
use http_body_util::BodyExt as _;
use ron_core::{Deadline, Supervisor, net::Identity};
use ron_registry::{
    Content, Outcome, Policy, Registry, Signer, http,
    logic::frames::{self, Sent},
    store::MemoryStore,
};
use tower::ServiceExt as _;

const READERS: usize = 3;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

/// Each step is a byte of who does what, and one of how much: somebody reads some events, or goes and comes back with the
/// last it saw, or with whatever the bytes say it saw; something is committed; old entries are let go of. Nobody misses an
/// event, hears one twice or out of order, unless the log says that it was pruned. What a client sends over a WebSocket is
/// the same however it is cut.
pub(crate) fn streams(data: &[u8]) {
    pieces(data);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("no I/O is asked for").block_on(play(data));
}

struct Reader {
    body: Option<Body>,
    /// The event that comes next.
    next: u64,
}

async fn play(mut script: &[u8]) {
    let host = Supervisor::builder("fuzz").inline_blocking(true).start();
    let builder = Registry::builder("example.com/registry", [42; 32]).clock(|| 1_700_000_000_000);
    let mut settings = ron_registry::Settings { committed_lane: 4, ..ron_registry::Settings::default() };
    settings.verify_interval = Duration::from_secs(3600);
    let registry =
        builder.settings(settings).start(Arc::new(MemoryStore::new()), &host).await.expect("empty");
    let signer = Identity::from_seed(&[1; 32]);
    let policy = Policy::of(1, vec![Signer { name: "s".into(), key: signer.public_key(), expires: None }]);
    registry.found(policy.expect("a policy"), soon()).await.expect("it is empty");
    let router = http::router(&registry);
    let mut readers: Vec<Reader> = (0..READERS).map(|_| Reader { body: None, next: 1 }).collect();
    while let [what, much, rest @ ..] = script {
        script = rest;
        let reader = &mut readers[usize::from(what >> 4) % READERS];
        match what & 15 {
            0..=4 => read(reader, &router, &registry, *much).await,
            // It goes, in the middle of whatever it was told.
            5 => reader.body = None,
            6 => odd(&router, &registry, *much, script).await,
            7 if *much > 250 => {
                let _ = registry.prune(u64::from(*much) + registry.head().version, soon()).await;
            }
            8 => tokio::time::sleep(Duration::from_secs(u64::from(much % 40))).await,
            _ => commit(&registry, &signer, *much).await,
        }
    }
    for reader in &mut readers {
        while reader.next <= registry.head().version {
            read(reader, &router, &registry, u8::MAX).await;
        }
    }
    drop(readers);
    let stopped = registry.shutdown().await;
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    host.shutdown().await;
}

async fn commit(registry: &Registry, signer: &Identity, much: u8) {
    for _ in 0..much % 16 {
        let name = format!("n/{}", much % 5).parse().expect("a name");
        let content = Content::Payload(vec![much; 8].into());
        let proposal = registry.draft_bind(name, content, Duration::from_secs(60)).expect("in form");
        let approval = proposal.approve(signer, proposal.expires());
        let outcome = registry.submit(proposal, vec![approval], soon()).await;
        assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    }
}

async fn ask(router: &Router, query: &str, seen: Option<HeaderValue>) -> (u16, Body) {
    let mut request = Request::get(format!("/stream{query}"));
    if let Some(seen) = seen {
        request = request.header("last-event-id", seen);
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).expect("a request")).await;
    let (head, body) = answer.expect("routers do not fail").into_parts();
    (head.status.as_u16(), body)
}

/// Reads so many events, as far as there are so many.
async fn read(reader: &mut Reader, router: &Router, registry: &Registry, much: u8) {
    if reader.body.is_none() {
        let seen = HeaderValue::from(reader.next - 1);
        let (status, body) = ask(router, "?from=1", Some(seen)).await;
        assert_eq!(status, 200);
        reader.body = Some(body);
    }
    for _ in 0..much {
        if reader.next > registry.head().version {
            return;
        }
        let body = reader.body.as_mut().expect("it was opened");
        let frame = body.frame().await.expect("it goes on").expect("it does not fail").into_data();
        let words = frame.expect("events have no trailers");
        let words = std::str::from_utf8(&words).expect("events are text");
        assert!(words.ends_with("\n\n"), "{words:?}");
        if let Some(first) = words.strip_prefix("event: pruned\ndata: {\"first\":") {
            let first: u64 = first.trim_end().trim_end_matches('}').parse().expect("where the log begins");
            assert!(first > reader.next && first <= registry.status().first, "{words:?}");
            reader.next = first;
        } else if let Some(event) = words.strip_prefix("id: ") {
            let (id, _) = event.split_once('\n').expect("lines");
            assert_eq!(id.parse(), Ok(reader.next), "{words:?}");
            reader.next += 1;
        } else {
            assert_eq!(words, ":\n\n", "a comment");
        }
    }
}

/// Somebody who says something odd about what it has seen is told so, or gets a stream.
async fn odd(router: &Router, registry: &Registry, much: u8, script: &[u8]) {
    let said = &script[..script.len().min(usize::from(much))];
    let Ok(value) = HeaderValue::from_bytes(said) else { return };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    let (status, mut body) = ask(router, "", Some(value)).await;
    assert_eq!(status, if number.is_some() { 200 } else { 400 });
    if number.is_some_and(|seen| seen < registry.head().version) {
        assert!(body.frame().await.expect("it goes on").is_ok());
    }
}

/// Frames of a client that come whole, and cut after each byte.
fn pieces(data: &[u8]) {
    let (mut whole, mut heard) = (data.to_vec(), Vec::new());
    let end = loop {
        match frames::take(&mut whole) {
            Ok(Some(sent)) => heard.push(sent),
            end => break end,
        }
    };
    let (mut some, mut again) = (Vec::new(), Vec::new());
    let mut cut_end = Ok(None);
    for byte in data {
        some.push(*byte);
        cut_end = frames::take(&mut some);
        match &cut_end {
            Ok(Some(sent)) => again.push(sent.clone()),
            Ok(None) => {}
            Err(_) => break,
        }
        assert!(some.len() <= 2 + 4 + 125, "no more is kept than a frame");
    }
    assert_eq!(again, heard);
    assert_eq!(cut_end.is_err(), end.is_err());
    for sent in heard {
        if let Sent::Ping(bytes) = sent {
            assert_eq!(frames::pong(&bytes).len(), bytes.len() + 2);
        }
    }
}
