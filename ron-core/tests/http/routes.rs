//! What every route gets: problems, correlation, deadlines, places, panics that stay small, metrics, health.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::Request,
    routing::{get, post},
};
use ron_core::{
    Affects, CallError, Deadline, Metrics, Supervisor,
    http::{CorrId, Guard, Problem, Server, require},
};
use tokio::net::TcpStream;

use super::{Client, Host, SHORT, short};

fn router() -> Router {
    Router::new()
        .route("/ok/{id}", get(async || "ok"))
        .route(
            "/busy",
            get(async || Err::<(), _>(Problem::from(CallError::Busy { what: "work", retry_after: SHORT }))),
        )
        .route("/panic", get(async || -> &'static str { panic!("on purpose") }))
        .route("/corr", get(async |Extension(corr): Extension<CorrId>| corr.to_string()))
        .route("/budget", get(budget).layer(Guard::new("budget").deadline(Duration::from_secs(7))))
        .route("/default-budget", get(budget))
        .route("/longer", get(slow).layer(Guard::new("longer").deadline(Duration::from_secs(7))))
        .route("/late", get(never).layer(Guard::new("late").deadline(SHORT)))
        .route("/default-late", get(never))
        .route("/streamed", post(slow).layer(Guard::new("streamed").streaming()))
}

async fn budget(Extension(deadline): Extension<Deadline>) -> String {
    deadline.remaining().as_secs_f64().ceil().to_string()
}

async fn never() {
    std::future::pending::<()>().await;
}

async fn slow(_: Request) -> &'static str {
    tokio::time::sleep(SHORT * 3).await;
    "slow"
}

/// Health is there before the work is, and whoever has asked already has its answer from the old routes.
#[tokio::test]
async fn routes_can_be_mounted_later() {
    let host = Host::start(Router::new().route("/slow", get(slow)), short()).await;
    assert_eq!(host.get("/corr").await.status, 404);
    assert_eq!(host.get("/healthz").await.status, 200);
    let mut begun = host.send("GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    while host.server.connections() == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(SHORT).await;
    host.server.mount(router());
    assert_eq!(host.get("/corr").await.status, 200);
    assert_eq!(begun.answer().await.text(), "slow");
    // The same connection sees the new ones.
    begun.send("GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(begun.answer().await.status, 404);
    assert_eq!(host.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn every_refusal_is_a_problem_that_names_its_request() {
    let host = Host::start(router(), short()).await;
    for (path, status, code) in [
        ("/busy", 429, "busy"),
        ("/panic", 500, "bug"),
        ("/nowhere", 404, "not_found"),
        ("/nowhere/at/all", 404, "not_found"),
    ] {
        let answer = host.get(path).await;
        answer.is_problem(status, code);
        assert_eq!(answer.json()["corr_id"], answer.header("x-corr-id"), "{path}");
        assert_eq!(answer.header("x-corr-id").len(), 16);
    }
    let answer = host.ask("DELETE /busy HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    answer.is_problem(405, "method_not_allowed");
    assert_eq!(answer.header("allow"), "GET,HEAD");
}

#[tokio::test]
async fn a_correlation_is_taken_over_when_it_is_one() {
    let host = Host::start(router(), short()).await;
    let ask = async |corr: &str| {
        let head = format!("GET /corr HTTP/1.1\r\nhost: localhost\r\nx-corr-id: {corr}\r\n\r\n");
        let answer = host.ask(head).await;
        assert_eq!(answer.header("x-corr-id"), answer.text());
        answer.text()
    };
    assert_eq!(ask("2a").await, "000000000000002a");
    assert_eq!(ask("FFFFFFFFFFFFFFFF").await, "ffffffffffffffff");
    for wrong in ["", "+2a", "not hex", "11111111111111111"] {
        let made = ask(wrong).await;
        assert!(made.len() == 16 && !made.ends_with("2a"), "{made}");
    }
}

#[tokio::test]
async fn deadlines_are_kept_and_handed_down() {
    let mut settings = short();
    settings.deadline = SHORT;
    let host = Host::start(router(), settings).await;
    assert_eq!(host.get("/budget").await.text(), "7");
    assert_eq!(host.get("/default-budget").await.text(), "1");
    for path in ["/late", "/default-late"] {
        let began = ron_core::now();
        host.get(path).await.is_problem(504, "timeout");
        assert!(began.elapsed() < SHORT * 3, "{:?}", began.elapsed());
    }
    assert_eq!(host.series("io_timeouts_total{op=\"http_request\"}"), 1);
    assert_eq!(host.get("/longer").await.text(), "slow", "the route's own deadline, not the server's");
    let streamed = "POST /streamed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(host.ask(streamed).await.text(), "slow", "streams keep their own time");
}

/// A panic costs its own request; the connection goes on and the supervisor does not hear of it.
#[tokio::test]
async fn a_panic_stays_small() {
    let host = Host::start(router(), short()).await;
    let mut client = host.send("GET /panic HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    client.answer().await.is_problem(500, "bug");
    client.send("GET /ok/1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(host.supervisor.failure(), None);
    assert_eq!(host.series("tasks_panicked_total{kind=\"http_connection\"}"), 1);
}

/// A place is held until the answer is written, and a refusal costs none.
#[tokio::test]
async fn places_are_counted_per_route() {
    let metrics = Metrics::default();
    let guard = Guard::new("narrow").in_flight(2).metrics(&metrics);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let never = get(move || {
        count.fetch_add(1, Ordering::SeqCst);
        never()
    });
    let narrow = Router::new()
        .route("/narrow", never.layer(guard))
        .route("/wide", get(async || "wide").layer(Guard::new("wide").in_flight(1)));
    let host = Host::start(narrow, short()).await;
    let ask = "GET /narrow HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let held = [host.send(ask).await, host.send(ask).await];
    super::until("both are served", || begun.load(Ordering::SeqCst) == 2).await;
    for _ in 0..3 {
        host.ask(ask).await.is_problem(429, "busy");
        assert_eq!(host.get("/wide").await.text(), "wide");
    }
    assert_eq!(metrics.tally(ron_core::Counter::BusyRejections, "narrow").get(), 3);
    drop(held);
    super::until("they have left", || host.server.connections() == 0).await;
    let mut again = host.send(ask).await;
    let nothing = tokio::time::timeout(Duration::from_millis(50), again.answer()).await;
    assert!(nothing.is_err(), "in work, not refused: {nothing:?}");
}

#[tokio::test]
async fn requests_are_counted_by_template() {
    let host = Host::start(router(), short()).await;
    for id in 0..5 {
        host.get(&format!("/ok/{id}")).await;
    }
    host.get("/nowhere").await;
    host.get("/healthz").await;
    host.ask("BREW /ok/1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let requests = |route: &str, method: &str, status: &str| {
        host.series(&format!(
            "http_requests_total{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}"
        ))
    };
    assert_eq!(requests("/ok/{id}", "GET", "2xx"), 5);
    assert_eq!(requests("/ok/{id}", "other", "4xx"), 1);
    assert_eq!(requests("unmatched", "GET", "4xx"), 1);
    assert_eq!(requests("/healthz", "GET", "2xx"), 1);
    assert_eq!(host.series("request_latency_seconds_count{route=\"/ok/{id}\"}"), 6);
}

/// The guard of a route tells which it is; where there is none, or it was not asked, the router is. To a reader of the metrics it is
/// the same, on one connection as on many, and whatever the answer.
#[tokio::test]
async fn routes_are_counted_alike_with_a_guard_and_without() {
    let guarded = |name| get(async || "ok").layer(Guard::new(name).body_bytes_max(1));
    let inner = Router::new().route("/a/{id}", guarded("nested")).route("/b/{id}", get(async || "ok"));
    let mut routes = Router::new().route("/plain/{id}", get(async || "ok")).nest("/in", inner);
    // More than a connection remembers.
    for number in 0..12 {
        routes = routes.route(&format!("/guarded{number}/{{id}}"), guarded("guarded"));
    }
    let host = Host::start(routes, short()).await;
    let mut one = host.connect().await;
    for round in 0..3 {
        let guarded = (0..12).map(|number| format!("/guarded{number}"));
        for path in guarded.chain(["/plain", "/in/a", "/in/b"].map(String::from)) {
            one.send(format!("GET {path}/{round} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
            assert_eq!(one.answer().await.status, 200, "{path}");
        }
    }
    let head = "HTTP/1.1\r\nhost: localhost\r\n";
    assert_eq!(host.ask(&format!("DELETE /guarded0/1 {head}\r\n")).await.status, 405);
    let large = format!("GET /guarded0/1 {head}content-length: 2\r\n\r\nab");
    assert_eq!(host.ask(&large).await.status, 413);
    let requests = |route: &str, method: &str, status: &str| {
        host.series(&format!(
            "http_requests_total{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}"
        ))
    };
    for number in 0..12 {
        assert_eq!(requests(&format!("/guarded{number}/{{id}}"), "GET", "2xx"), 3, "{number}");
    }
    for route in ["/plain/{id}", "/in/a/{id}", "/in/b/{id}"] {
        assert_eq!(requests(route, "GET", "2xx"), 3, "{route}");
    }
    assert_eq!(requests("/guarded0/{id}", "DELETE", "4xx"), 1);
    assert_eq!(requests("/guarded0/{id}", "GET", "4xx"), 1);
}

#[tokio::test]
async fn health_says_how_things_are() {
    let host = Host::start(Router::new(), short()).await;
    let disk = host.ready.gate("disk", Affects::Writes);
    disk.close("full");
    assert_eq!(host.get("/healthz").await.text(), "ok\n");
    let answer = host.get("/readyz").await;
    assert_eq!((answer.status, answer.json()["writes"].as_bool()), (200, Some(false)));
    assert!(answer.json().get("gates").is_none());
    assert_eq!(host.get("/readyz?writes").await.status, 503);
    let answer = host.get("/readyz?verbose&writes").await;
    let gates = answer.json()["gates"].as_array().unwrap().clone();
    let gate = gates.iter().find(|gate| gate["name"] == "disk").unwrap();
    assert_eq!(
        (&gate["reason"], &gate["affects"], &gate["open"]),
        (&"full".into(), &"writes".into(), &false.into())
    );
    assert!(gate["since_seconds"].is_u64());
    disk.open();
    assert_eq!(host.get("/readyz?writes").await.status, 200);
    let network = host.ready.gate("network", Affects::Reads);
    network.close("no peers");
    let answer = host.get("/readyz").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["retry_after"], 1);
    let answer = host.get("/metrics").await;
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
    assert!(answer.text().contains("ron_test_tasks_spawned_total") && answer.text().ends_with("# EOF\n"));
    let answer = host.get("/version").await;
    assert_eq!(answer.json(), serde_json::json!({"name": "test", "version": "1.2.3", "revision": "abc"}));
    host.ask("POST /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.is_problem(405, "method_not_allowed");
}

/// A router under one permission, whose routes have guards of their own.
#[tokio::test]
async fn a_whole_router_can_be_behind_one_action() {
    struct Everybody;
    impl ron_core::auth::Authorizer for Everybody {
        fn authorize(
            &self,
            action: &ron_core::auth::Action<'_>,
            _: &ron_core::auth::Credentials<'_>,
        ) -> Result<ron_core::auth::Grant, ron_core::auth::Denied> {
            match action.resource {
                "/open" => Ok(ron_core::auth::Grant::new("somebody")),
                _ => Err(ron_core::auth::Denied::Forbidden),
            }
        }
    }
    let whom = async |Extension(grant): Extension<ron_core::auth::Grant>| grant.subject.into_owned();
    let router = Router::new()
        .route("/open", post(whom).layer(Guard::new("open").body_bytes_max(3)))
        .route("/shut", post(whom))
        .layer(require(std::sync::Arc::new(Everybody), "all"));
    let host = Host::start(router, short()).await;
    let ask = async |path: &str, body: &str| {
        let length = body.len();
        host.ask(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"))
            .await
    };
    assert_eq!(ask("/open", "abc").await.text(), "somebody");
    ask("/open", "abcd").await.is_problem(413, "body_too_large");
    ask("/shut", "abc").await.is_problem(403, "forbidden");
}

/// What a server declares is what a running one registers.
#[tokio::test]
async fn the_inventory_is_what_runs() {
    let metrics = Metrics::default();
    let supervisor = Supervisor::new("host");
    let server = Server::builder(router())
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .metrics(metrics.clone())
        .start(&supervisor)
        .await
        .unwrap();
    let mut client = Client::new(TcpStream::connect(server.local_addrs()[0]).await.unwrap());
    client.send("GET /ok/1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(metrics.inventory(), ron_core::http::inventory());
    supervisor.shutdown().await;
}

/// Without health routes of the server, their paths are free for the router.
#[tokio::test]
async fn a_host_may_answer_for_its_own_health() {
    let supervisor = Supervisor::new("host");
    let own = Router::new().route("/healthz", get(async || "own"));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::builder(own).listen(address).start(&supervisor).await.unwrap();
    let mut client = Client::new(TcpStream::connect(server.local_addrs()[0]).await.unwrap());
    client.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.answer().await.text(), "own");
}
