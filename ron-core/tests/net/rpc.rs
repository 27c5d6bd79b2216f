//! Calls over sessions, on a simulated network with a clock of its own and over TLS: answers, streams, time, giving up,
//! refusals, and peers that break the rules.

mod bounds;
mod hostile;
mod outbox;
mod rights;
mod vanished;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Counter, Deadline, LaneSpec, Metrics, NodeId, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    net::{
        Endpoint, Identity, Link, NetError,
        oap::{Code, Flags, Frame, FrameReader, FrameWriter, Hello, ReadSettings},
        rpc::{
            Call, Control, Event, Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError,
            RpcSettings, Service, Side,
        },
    },
    now,
    sim::{Latency, Line, SimNet, SimTransport},
};
use tokio::{
    io::{AsyncReadExt as _, ReadHalf, WriteHalf},
    sync::Notify,
};

const LINKS: LaneSpec = LaneSpec::new("test", "links", 64);
const TEST: Protocol = Protocol { alpn: "test/rpc/1", proto: 100, links: LINKS };

const ECHO: Method = Method { number: 1, name: "echo" };
const STREAM: Method = Method { number: 2, name: "stream" };
const NEVER: Method = Method { number: 3, name: "never" };
const FAIL: Method = Method { number: 4, name: "fail" };
const NOTE: Method = Method { number: 5, name: "note" };
const QUICK: Method = Method { number: 6, name: "quick" };
const GUARDED: Method = Method { number: 7, name: "guarded" };
const CLOSED: Method = Method { number: 8, name: "closed" };
const UNKNOWN: Method = Method { number: 99, name: "unknown" };

/// Echoes, streams as many bytes as asked for, never answers, fails in every way.
#[derive(Default)]
struct Shop {
    /// Chunks of `STREAM` that were handed to the session.
    sent: AtomicUsize,
    /// Handlers of `NEVER` that run, and those that were dropped.
    running: AtomicUsize,
    dropped: AtomicUsize,
    began: Notify,
    events: Mutex<Vec<Bytes>>,
}

struct OnDrop(Arc<Shop>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

struct Open(Arc<Shop>);

impl Service for Open {
    fn call(&self, request: Request) -> Handling {
        let shop = Arc::clone(&self.0);
        match request.method() {
            1 => Handling::Done(Ok(request.body().clone())),
            2 => Handling::Pending(Box::pin(async move {
                let bytes = std::str::from_utf8(request.body()).unwrap().parse::<usize>().unwrap();
                for at in (0..bytes).step_by(CHUNK) {
                    request.send(Bytes::from(pattern(at, CHUNK.min(bytes - at)))).await?;
                    shop.sent.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Bytes::from_static(b"end"))
            })),
            3 => {
                shop.running.fetch_add(1, Ordering::SeqCst);
                let guard = OnDrop(Arc::clone(&shop));
                shop.began.notify_one();
                Handling::Pending(Box::pin(async move {
                    let _guard = guard;
                    std::future::pending().await
                }))
            }
            4 => match &request.body()[..] {
                b"busy" => Handling::Done(Err(Fault::busy("work", Duration::from_millis(70)))),
                b"panic" => panic!("as asked"),
                b"panic later" => Handling::Pending(Box::pin(async { panic!("as asked") })),
                b"forbidden" => Handling::Done(Err(Fault::new(Code::Forbidden, "not yours"))),
                _ => Handling::Done(Err(Fault::bad_request("what?"))),
            },
            6 => Handling::Pending(Box::pin(async move { Ok(request.body().clone()) })),
            7 => Handling::Done(request.authorize(Some(&Doorman), "test.enter").map(|()| Bytes::new())),
            8 => Handling::Done(request.authorize(None, "test.enter").map(|()| Bytes::new())),
            _ => Handling::Done(Err(Fault::no_such_method())),
        }
    }

    fn event(&self, event: Event) {
        self.0.events.lock().unwrap().push(event.body);
    }
}

/// Lets in whoever knows the word, and says why others are not let in.
struct Doorman;

impl Authorizer for Doorman {
    fn authorize(&self, action: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        assert_eq!(action.name, "test.enter");
        assert_eq!(credentials.address, Some(IpAddr::from([198, 18, 3, 1])), "where the link comes from");
        match credentials.bearer {
            Some("sesame") => Ok(Grant::new("guest")),
            Some(_) => Err(Denied::Unknown),
            None => Err(Denied::Missing),
        }
    }
}

const CHUNK: usize = 64 << 10;

fn pattern(at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|byte| (byte % 251) as u8).collect()
}

struct Node {
    peers: Peers,
    shop: Arc<Shop>,
    metrics: Metrics,
    host: Supervisor,
}

impl Node {
    fn new(endpoint: impl FnOnce(&Supervisor) -> Endpoint, settings: PeersSettings) -> Self {
        let metrics = Metrics::default();
        let host = Supervisor::builder("test").metrics(metrics.clone()).start();
        let endpoint = endpoint(&host);
        let shop = Arc::new(Shop::default());
        let service = Arc::new(Open(Arc::clone(&shop)));
        let peers = Peers::start(&endpoint, TEST, service, settings, &host).unwrap();
        Node { peers, shop, metrics, host }
    }

    /// On the simulated network.
    fn sim(net: &SimNet, number: u8, settings: PeersSettings) -> Self {
        Self::new(|host| sim_endpoint(net, number, host), settings)
    }

    /// On the loopback interface, over TLS.
    fn tls() -> Self {
        let start = |host: &Supervisor| {
            let builder =
                Endpoint::builder(Identity::generate().unwrap()).listen("127.0.0.1:0".parse().unwrap());
            builder.start(host).unwrap()
        };
        Self::new(start, PeersSettings::default())
    }

    fn id(&self) -> NodeId {
        self.peers.endpoint().node_id()
    }

    fn addrs(&self) -> &[SocketAddr] {
        self.peers.endpoint().local_addrs()
    }

    async fn ask(&self, to: &Node, method: Method, body: &[u8]) -> Result<Bytes, RpcError> {
        self.peers.call(to.id(), to.addrs(), method, body, soon()).await
    }

    fn count(&self, counter: Counter, label: &'static str) -> u64 {
        self.metrics.tally(counter, label).get()
    }
}

fn sim_endpoint(net: &SimNet, number: u8, host: &Supervisor) -> Endpoint {
    let (identity, ip) = (Identity::from_seed(&[number; 32]), IpAddr::from([198, 18, 3, number]));
    Endpoint::builder(Identity::from_seed(&[number; 32]))
        .transport(Arc::new(SimTransport::new(net, ip, &identity)))
        .listen(SocketAddr::new(ip, 7000))
        .start(host)
        .unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

fn net() -> SimNet {
    let net = SimNet::new(7);
    net.set_usual(Line { latency: Latency::Fixed(Duration::from_millis(10)), ..Line::default() });
    net
}

fn pair() -> (SimNet, Node, Node) {
    let net = net();
    let nodes = [1, 2].map(|number| Node::sim(&net, number, PeersSettings::default()));
    let [one, two] = nodes;
    (net, one, two)
}

fn with(rpc: RpcSettings) -> PeersSettings {
    PeersSettings { rpc, ..PeersSettings::default() }
}

/// Lets everything that can happen now happen.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test(start_paused = true)]
async fn both_ends_call_each_other_over_one_link() {
    let (_net, one, two) = pair();
    for round in 0..10u8 {
        assert_eq!(one.ask(&two, ECHO, &[round]).await.unwrap(), [round].as_slice());
        assert_eq!(two.ask(&one, ECHO, &[round, round]).await.unwrap(), [round, round].as_slice());
    }
    assert_eq!(one.count(Counter::LinksOpened, "dialled") + two.count(Counter::LinksOpened, "dialled"), 1);
    assert_eq!(one.peers.get(two.id()).unwrap().side(), Side::Dialer);
    assert_eq!(two.peers.get(one.id()).unwrap().side(), Side::Acceptor);
    let session = one.peers.get(two.id()).unwrap();
    assert_eq!((session.open_exchanges(), session.peer()), (0, two.id()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_many_calls_share_a_link_and_each_gets_its_own_answer() {
    let (one, two) = (Node::tls(), Node::tls());
    let tasks: Vec<_> = (0..64u32)
        .map(|number| {
            let (peers, id, addrs) = (one.peers.clone(), two.id(), two.addrs().to_vec());
            async move {
                for round in 0..20u32 {
                    let body = [number.to_be_bytes(), round.to_be_bytes()].concat();
                    // A handler in a task of its own may be done before whoever started it looks.
                    let method = if round % 2 == 0 { ECHO } else { QUICK };
                    assert_eq!(peers.call(id, &addrs, method, &body, soon()).await.unwrap(), body);
                }
            }
        })
        .collect();
    let mut running = tokio::task::JoinSet::new();
    #[allow(clippy::disallowed_methods, reason = "callers of a test, joined below")]
    for task in tasks {
        running.spawn(task);
    }
    while let Some(joined) = running.join_next().await {
        joined.unwrap();
    }
    assert_eq!(one.count(Counter::LinksOpened, "dialled"), 1);
    one.host.shutdown().await;
    two.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_is_cut_and_gathered_and_a_larger_one_is_refused() {
    let (_net, one, two) = pair();
    let whole = one.ask(&two, STREAM, b"900000").await.unwrap();
    assert_eq!(whole.len(), 900_003);
    assert_eq!(&whole[..900_000], pattern(0, 900_000).as_slice());
    // An answer in one piece that does not fit into a chunk.
    let large = pattern(0, 200_000);
    assert_eq!(one.ask(&two, ECHO, &large).await.unwrap(), large);
    let refused = one.ask(&two, STREAM, b"5000000").await.unwrap_err();
    assert!(matches!(refused, RpcError::TooLarge { what: "answer", max: 1_048_576, .. }), "{refused:?}");
    let refused = one.ask(&two, ECHO, &vec![0; 300_000]).await.unwrap_err();
    assert!(matches!(refused, RpcError::TooLarge { what: "request", bytes: 300_000, .. }), "{refused:?}");
    assert_eq!(one.ask(&two, ECHO, b"still").await.unwrap(), "still");
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_as_fast_as_its_reader() {
    let (_net, one, two) = pair();
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, b"10000000", soon()).await.unwrap();
    settle().await;
    // Nothing was read: the window of sixteen is on its way, and not one chunk more.
    assert_eq!(two.shop.sent.load(Ordering::SeqCst), 16);
    for at in 0..16 {
        assert_eq!(chunks.next().await.unwrap().unwrap(), pattern(at * CHUNK, CHUNK));
    }
    settle().await;
    assert_eq!(two.shop.sent.load(Ordering::SeqCst), 32);
    // A small call is not held up by the stream.
    assert_eq!(one.ask(&two, ECHO, b"small").await.unwrap(), "small");
    let mut bytes = 16 * CHUNK;
    while let Some(chunk) = chunks.next().await.unwrap() {
        bytes += chunk.len();
    }
    assert_eq!(bytes, 10_000_003);
    assert_eq!(chunks.next().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_stops_its_handler_and_gives_its_place_back() {
    let (_net, one, two) = pair();
    let call = one.ask(&two, NEVER, b"");
    let given_up = tokio::time::timeout(Duration::from_millis(200), call).await;
    assert!(given_up.is_err());
    settle().await;
    assert_eq!(two.shop.dropped.load(Ordering::SeqCst), 1);
    assert_eq!(two.count(Counter::TasksCanceled, "rpc_call"), 1);
    assert_eq!(one.peers.get(two.id()).unwrap().open_exchanges(), 0, "the callee has ended its answer");
    // A stream that is dropped halfway stops too.
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, b"100000000", soon()).await.unwrap();
    chunks.next().await.unwrap().unwrap();
    drop(chunks);
    settle().await;
    let sent = two.shop.sent.load(Ordering::SeqCst);
    settle().await;
    assert_eq!(two.shop.sent.load(Ordering::SeqCst), sent);
    assert_eq!(one.peers.get(two.id()).unwrap().open_exchanges(), 0);
    assert_eq!(one.ask(&two, ECHO, b"on").await.unwrap(), "on");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_request_ends_at_both_ends() {
    let (net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    // The caller's cancel cannot reach the callee, which stops by the budget that came with the request.
    let began = now();
    let call = one.peers.call(two.id(), two.addrs(), NEVER, b"", Deadline::after(Duration::from_millis(300)));
    let cut = async {
        two.shop.began.notified().await;
        net.cut(IpAddr::from([198, 18, 3, 1]), IpAddr::from([198, 18, 3, 2]));
    };
    let (late, ()) = tokio::join!(call, cut);
    assert_eq!(late, Err(RpcError::Timeout { op: "never" }));
    assert_eq!(now() - began, Duration::from_millis(300));
    assert_eq!(one.count(Counter::IoTimeouts, "never"), 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((two.shop.running.load(Ordering::SeqCst), two.shop.dropped.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(two.count(Counter::IoTimeouts, "rpc_call"), 1);
}

#[tokio::test(start_paused = true)]
async fn refusals_keep_their_type_across_the_wire() {
    let (_net, one, two) = pair();
    let busy = one.ask(&two, FAIL, b"busy").await.unwrap_err();
    assert_eq!(busy, RpcError::Busy { what: "peer", retry_after: Duration::from_millis(70) });
    let refused = |code, reason: &str| RpcError::Refused { code, reason: reason.to_owned() };
    assert_eq!(one.ask(&two, FAIL, b"").await.unwrap_err(), refused(Code::BadRequest, "what?"));
    assert_eq!(one.ask(&two, FAIL, b"forbidden").await.unwrap_err(), refused(Code::Forbidden, "not yours"));
    assert_eq!(one.ask(&two, UNKNOWN, b"").await.unwrap_err(), refused(Code::NotFound, "no such method"));
    for panic in [&b"panic"[..], b"panic later"] {
        assert_eq!(one.ask(&two, FAIL, panic).await.unwrap_err(), refused(Code::Failed, "panicked"));
    }
    assert_eq!(two.count(Counter::TasksPanicked, "rpc_call"), 2);
    assert_eq!(one.ask(&two, ECHO, b"well").await.unwrap(), "well");
    assert_eq!(one.count(Counter::LinksOpened, "dialled"), 1, "no refusal cost the session");
}

/// Whoever is refused does not hear what was wrong with its capability, or whether there is any that would do.
#[tokio::test(start_paused = true)]
async fn a_capability_is_shown_to_whoever_decides() {
    let (_net, one, two) = pair();
    let ask = |call: Call| one.peers.call(two.id(), two.addrs(), call, b"", soon());
    assert_eq!(ask(GUARDED.cap("sesame")).await.unwrap(), "");
    let reason = "not with this capability".to_owned();
    let refused = RpcError::Refused { code: Code::Forbidden, reason };
    for cap in [&b""[..], b"barley", b"sesame\xff"] {
        assert_eq!(ask(GUARDED.cap(cap)).await.unwrap_err(), refused, "{cap:?}");
    }
    assert_eq!(ask(CLOSED.cap("sesame")).await.unwrap_err(), refused, "nobody decides");
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_only_so_many_places_and_callers_wait_their_turn() {
    let net = net();
    let one = Node::sim(&net, 1, PeersSettings::default());
    let two = Node::sim(&net, 2, with(RpcSettings { inflight_max: 2, ..RpcSettings::default() }));
    one.ask(&two, ECHO, b"").await.unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(one.ask(&two, NEVER, b"")));
    tokio::select! {
        biased;
        _ = &mut first => unreachable!(),
        _ = &mut second => unreachable!(),
        () = settle() => {}
    }
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 2);
    let hurried =
        one.peers.call(two.id(), two.addrs(), ECHO, b"", Deadline::after(Duration::from_millis(100)));
    assert_eq!(hurried.await, Err(RpcError::Timeout { op: "echo" }));
    let patient = async {
        drop(first);
        one.ask(&two, ECHO, b"mine").await
    };
    assert_eq!(patient.await.unwrap(), "mine");
}

#[tokio::test(start_paused = true)]
async fn events_arrive_in_order_and_a_full_link_says_so() {
    let (net, one, two) = pair();
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    for number in 0..100u8 {
        session.notify(NOTE, &[number], soon()).await.unwrap();
    }
    settle().await;
    let heard = std::mem::take(&mut *two.shop.events.lock().unwrap());
    assert_eq!(heard, (0..100u8).map(|number| Bytes::from(vec![number])).collect::<Vec<_>>());

    net.partition(&[IpAddr::from([198, 18, 3, 1])], &[IpAddr::from([198, 18, 3, 2])]);
    let mut refused = Ok(());
    for _ in 0..10_000 {
        refused = session.try_notify(NOTE, &[0; 60_000]);
        if refused.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(matches!(refused, Err(RpcError::Busy { what: "rpc_bulk", .. })), "{refused:?}");
    let late = session.notify(NOTE, b"x", Deadline::after(Duration::from_millis(50))).await;
    assert_eq!(late, Err(RpcError::Timeout { op: "note" }));
    // A peer that takes nothing for the write timeout is given up, and everybody is told.
    session.ended().await;
    assert_eq!(session.try_notify(NOTE, b"x"), Err(RpcError::Closed));
    assert!(one.peers.get(two.id()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_what_is_open_and_begins_nothing() {
    let (_net, one, two) = pair();
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let mut chunks = session.open(STREAM, b"3000000", soon()).await.unwrap();
    chunks.next().await.unwrap();
    let drained = async {
        let mut bytes = CHUNK;
        while let Some(chunk) = chunks.next().await.unwrap() {
            bytes += chunk.len();
        }
        bytes
    };
    let late = async {
        settle().await;
        (one.ask(&two, ECHO, b"").await, two.host.phase())
    };
    let (stopped, bytes, (late, _)) = tokio::join!(two.host.shutdown(), drained, late);
    assert_eq!((bytes, stopped.aborted), (3_000_003, 0), "{stopped:?}");
    assert!(late.is_err(), "{late:?}");
    assert_eq!(two.count(Counter::SessionsClosed, "shutdown"), 1);
    session.ended().await;
    assert_eq!(session.call(ECHO, b"", soon()).await, Err(RpcError::Closed));
    let stopped = one.host.shutdown().await;
    assert_eq!(stopped.aborted, 0);
    assert_eq!(one.ask(&two, ECHO, b"").await, Err(RpcError::Canceled));
}

#[tokio::test(start_paused = true)]
async fn when_the_peer_is_gone_every_call_is_told_and_no_task_is_left() {
    let (_net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    let session = one.peers.get(two.id()).unwrap();
    let call = one.ask(&two, NEVER, b"");
    let vanish = async {
        two.shop.began.notified().await;
        two.host.abort();
    };
    let (told, ()) = tokio::join!(call, vanish);
    assert_eq!(told, Err(RpcError::Closed));
    session.ended().await;
    settle().await;
    assert_eq!(two.shop.dropped.load(Ordering::SeqCst), 1);
    assert!(one.peers.get(two.id()).is_none());
    assert_eq!(one.host.shutdown().await.drained, 2, "listener and acceptor; reader and writer had ended");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_is_closed_and_dialled_again_when_needed() {
    let (_net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(one.peers.get(two.id()).is_some());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(one.peers.get(two.id()).is_none() && two.peers.get(one.id()).is_none());
    let closed = |why| one.count(Counter::SessionsClosed, why) + two.count(Counter::SessionsClosed, why);
    assert!(closed("idle") >= 1 && closed("idle") + closed("peer") == 2);
    assert_eq!(one.ask(&two, ECHO, b"again").await.unwrap(), "again");
    assert_eq!(one.count(Counter::LinksOpened, "dialled"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_not_idleness() {
    let (_net, one, two) = pair();
    let call = one.peers.call(two.id(), two.addrs(), NEVER, b"", Deadline::after(Duration::from_secs(200)));
    // The callee allows a request at most a minute, and says so.
    let began = now();
    assert_eq!(call.await, Err(RpcError::Timeout { op: "never" }));
    assert_eq!((now() - began).as_secs(), 60);
    assert_eq!(one.count(Counter::IoTimeouts, "never"), 0, "it was the callee's limit");
}

#[tokio::test(start_paused = true)]
async fn many_callers_cause_one_dial_and_the_last_to_go_stops_it() {
    let (net, one, two) = pair();
    let calls = (0..50u8).map(|number| {
        let (peers, id, addrs) = (one.peers.clone(), two.id(), two.addrs().to_vec());
        async move { peers.call(id, &addrs, ECHO, [number], soon()).await.map(|answer| answer[0]) }
    });
    let mut running = tokio::task::JoinSet::new();
    #[allow(clippy::disallowed_methods, reason = "callers of a test, joined below")]
    calls.for_each(|call| drop(running.spawn(call)));
    let mut answers: Vec<u8> = running.join_all().await.into_iter().map(Result::unwrap).collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..50).collect::<Vec<u8>>());
    assert_eq!(one.count(Counter::LinksOpened, "dialled"), 1);

    let three = Node::sim(&net, 3, PeersSettings::default());
    net.partition(&[IpAddr::from([198, 18, 3, 1])], &[IpAddr::from([198, 18, 3, 3])]);
    {
        let (a, b) = (one.ask(&three, ECHO, b""), one.ask(&three, ECHO, b""));
        let both = async { tokio::join!(a, b) };
        assert!(tokio::time::timeout(Duration::from_millis(100), both).await.is_err());
    }
    settle().await;
    let stopped = one.host.shutdown().await;
    assert_eq!(stopped.drained, 3, "listener, acceptor and one session: nobody waits, so nobody dials");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_cannot_be_reached_is_left_alone_for_a_while() {
    let (_net, one, two) = pair();
    let gone = two.id();
    let addrs = two.addrs().to_vec();
    two.host.shutdown().await;
    let call = || one.peers.call(gone, &addrs, ECHO, b"", soon());
    let RpcError::Unreachable { retry_after, .. } = call().await.unwrap_err() else { panic!("unreachable") };
    let dials = |node: &Node| {
        ["unreachable", "timeout", "handshake"]
            .map(|why| node.count(Counter::DialFailures, why))
            .iter()
            .sum::<u64>()
    };
    assert_eq!(dials(&one), 1);
    if !retry_after.is_zero() {
        assert!(matches!(call().await, Err(RpcError::Unreachable { .. })));
        assert_eq!(dials(&one), 1, "no other dial before the pause is over");
    }
    tokio::time::sleep(retry_after).await;
    assert!(matches!(call().await, Err(RpcError::Unreachable { .. })));
    assert_eq!(dials(&one), 2);
}

#[tokio::test(start_paused = true)]
async fn two_that_dial_each_other_at_once_keep_one_session() {
    for _ in 0..5 {
        let (_net, one, two) = pair();
        let (a, b) = tokio::join!(one.ask(&two, ECHO, b"a"), two.ask(&one, ECHO, b"b"));
        assert_eq!((a.unwrap(), b.unwrap()), ("a".into(), "b".into()));
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (here, there) = (one.peers.get(two.id()).unwrap(), two.peers.get(one.id()).unwrap());
        assert_ne!(here.side(), there.side(), "both kept the same link");
        assert_eq!(
            one.count(Counter::LinksOpened, "dialled") + two.count(Counter::LinksOpened, "dialled"),
            2
        );
        assert_eq!(
            one.count(Counter::SessionsClosed, "shutdown") + one.count(Counter::SessionsClosed, "peer"),
            1
        );
        assert_eq!(one.ask(&two, ECHO, b"still").await.unwrap(), "still");
    }
}

#[tokio::test(start_paused = true)]
async fn beyond_the_cap_the_session_unused_longest_goes() {
    let net = net();
    let hub = Node::sim(&net, 1, PeersSettings { sessions_max: 3, ..PeersSettings::default() });
    let spokes: Vec<Node> = (2..=6).map(|number| Node::sim(&net, number, PeersSettings::default())).collect();
    for spoke in &spokes[..3] {
        hub.ask(spoke, ECHO, b"").await.unwrap();
        settle().await;
    }
    hub.ask(&spokes[0], ECHO, b"").await.unwrap();
    hub.ask(&spokes[3], ECHO, b"").await.unwrap();
    settle().await;
    let kept = [0, 1, 2, 3].map(|spoke: usize| hub.peers.get(spokes[spoke].id()).is_some());
    assert_eq!(kept, [true, false, true, true]);
    // When all are in use, a new one is refused.
    let busy = async {
        let [a, b, c] = [0usize, 2, 3].map(|spoke| hub.ask(&spokes[spoke], NEVER, b""));
        tokio::join!(a, b, c)
    };
    let refused = async {
        settle().await;
        hub.ask(&spokes[4], ECHO, b"").await
    };
    let refused = tokio::select! {
        biased;
        refused = refused => refused.unwrap_err(),
        _ = busy => unreachable!(),
    };
    assert!(matches!(refused, RpcError::Busy { what: "rpc_sessions", .. }), "{refused:?}");
}

/// The other end of a session as raw frames, for saying what our own end never would.
struct Raw {
    reader: FrameReader<ReadHalf<Box<dyn ron_core::net::Stream>>>,
    writer: FrameWriter<WriteHalf<Box<dyn ron_core::net::Stream>>>,
    _host: Supervisor,
}

impl Raw {
    /// A link to `node` on which nothing was said.
    async fn link(net: &SimNet, number: u8, node: &Node) -> Raw {
        let host = Supervisor::new("raw");
        let endpoint = sim_endpoint(net, number, &host);
        let Link { stream, .. } = endpoint.connect(node.id(), node.addrs(), TEST.alpn, soon()).await.unwrap();
        let (read, write) = tokio::io::split(stream);
        let metrics = Metrics::default();
        let reader = FrameReader::new(read, ReadSettings::default(), &metrics);
        Raw { reader, writer: FrameWriter::new(write, &metrics), _host: host }
    }

    async fn greeted(net: &SimNet, number: u8, node: &Node) -> Raw {
        let mut raw = Raw::link(net, number, node).await;
        let answer = raw.ask(Hello::default().request()).await.unwrap();
        assert_eq!(answer.code, Code::Ok);
        raw
    }

    async fn say(&mut self, frame: Frame) {
        self.writer.queue(frame).unwrap();
        self.writer.flush().await.unwrap();
    }

    /// The next frame after this one is said; nothing if the session is over.
    async fn ask(&mut self, frame: Frame) -> Option<Frame> {
        self.writer.queue(frame).unwrap();
        self.writer.flush().await.ok()?;
        self.reader.next().await.unwrap_or(None)
    }
}

fn request(corr: u64, payload: &'static [u8]) -> Frame {
    Frame::request(TEST.proto, corr, payload)
}

/// `{0: 1 (echo), 1: 1000 ms, 2: 16 chunks}` and a body.
const ECHO_HI: &[u8] = b"\xa3\x00\x01\x01\x19\x03\xe8\x02\x10hi";

#[tokio::test(start_paused = true)]
async fn what_is_not_a_hello_comes_to_no_session() {
    let (net, one, two) = pair();
    let mut first = Raw::link(&net, 11, &two).await;
    assert_eq!(first.ask(request(1, ECHO_HI)).await, None, "closed without an answer");
    let mut second = Raw::link(&net, 12, &two).await;
    let refused = second.ask(Frame::request(0, 0, &b"\xa0"[..])).await.unwrap();
    assert_eq!(refused.code, Code::BadRequest);
    let began = now();
    let mut silent = Raw::link(&net, 13, &two).await;
    assert_eq!(silent.reader.next().await, Ok(None));
    assert!((3000..3200).contains(&(now() - began).as_millis()));
    assert_eq!(two.count(Counter::HandshakeFailures, "hello"), 3);
    assert_eq!(two.count(Counter::FrameRejects, "hello_malformed"), 1);
    assert_eq!(two.count(Counter::FrameRejects, "hello_missing"), 1);
    assert!(two.peers.sessions().is_empty());
    assert_eq!(one.ask(&two, ECHO, b"fine").await.unwrap(), "fine");
}

#[tokio::test(start_paused = true)]
async fn requests_that_make_no_sense_are_answered_and_the_session_goes_on() {
    let (net, _one, two) = pair();
    let mut raw = Raw::greeted(&net, 11, &two).await;
    let mut corr = 0;
    let mut code = async |frame: Frame| {
        corr += 1;
        let frame = Frame { corr, ..frame };
        let ends = frame.flags.has(Flags::START) && !frame.flags.has(Flags::END);
        let answer = raw.ask(frame.clone()).await.unwrap();
        if ends {
            raw.say(Frame { flags: Flags::REQ | Flags::END, cap: Bytes::new(), ..frame }).await;
        }
        assert_eq!(answer.corr, corr);
        answer.code
    };
    assert_eq!(code(request(0, ECHO_HI)).await, Code::Ok);
    assert_eq!(code(request(0, b"")).await, Code::BadRequest);
    assert_eq!(code(request(0, b"\xa1\x01\x01")).await, Code::BadRequest);
    assert_eq!(code(Frame::request(9, 0, ECHO_HI)).await, Code::NotFound);
    assert_eq!(code(Frame { flags: Flags::REQ | Flags::START, ..request(0, ECHO_HI) }).await, Code::TooLarge);
    assert_eq!(code(request(0, b"\xa2\x00\x03\x01\x00")).await, Code::Timeout, "no time at all");
    assert_eq!(code(request(0, ECHO_HI)).await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_breaks_a_rule_is_disconnected_and_the_reason_is_counted() {
    let (net, _one, two) = pair();
    let answer = |corr| Frame::answer(&request(corr, b""), Code::Ok, &b""[..]);
    let control = |payload: &'static [u8]| Frame::event(0, 0, payload);
    let cases: [(&str, Vec<Frame>); 4] = [
        ("answer_before_request", vec![answer(1)]),
        ("duplicate_start", vec![request(1, b"\xa2\x00\x03\x01\x19\xff\xff"), request(1, ECHO_HI)]),
        ("control", vec![control(b"\xa1\x00\x02")]),
        ("too_many", (1..=129).map(|corr| request(corr, b"\xa2\x00\x03\x01\x19\xff\xff")).collect()),
    ];
    for (number, (reason, frames)) in (20..).zip(cases) {
        let mut raw = Raw::greeted(&net, number, &two).await;
        for frame in frames {
            raw.say(frame).await;
        }
        assert_eq!(raw.reader.next().await, Ok(None), "{reason}");
        assert_eq!(two.count(Counter::FrameRejects, reason), 1, "{reason}");
    }
    settle().await;
    assert_eq!(two.count(Counter::SessionsClosed, "violation"), 4);
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 0, "what they had asked for is dropped");
}

/// A callee that does as it is told by the test, behind a real caller.
#[tokio::test(start_paused = true)]
async fn a_callee_that_sends_more_than_it_was_granted_is_disconnected() {
    let net = net();
    let one = Node::sim(&net, 1, PeersSettings::default());
    for (number, reason, chunk, count) in [(2, "credit", CHUNK, 17), (3, "chunk_too_long", CHUNK + 1, 1)] {
        let host = Supervisor::new("liar");
        let endpoint = sim_endpoint(&net, number, &host);
        let inbox = endpoint.register(TEST.alpn, LINKS).unwrap();
        let lie = async {
            let Link { mut stream, .. } = inbox.recv().await.unwrap();
            let mut heard = vec![0; 4096];
            let _hello = stream.read(&mut heard).await.unwrap();
            let mut writer = FrameWriter::new(stream, &Metrics::default());
            let hello = Hello::default();
            writer.queue(Frame::answer(&hello.request(), Code::Ok, hello.encode())).unwrap();
            writer.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            for at in 0..count {
                let flags = if at == 0 { Flags::RESP | Flags::START } else { Flags::RESP };
                let payload = Bytes::from(vec![0; chunk]);
                let frame =
                    Frame { flags, code: Code::Partial, payload, ..Frame::request(TEST.proto, 1, &b""[..]) };
                writer.queue(frame).unwrap();
                writer.flush().await.unwrap();
            }
            settle().await;
        };
        let call = one.peers.call(endpoint.node_id(), endpoint.local_addrs(), NEVER, b"", soon());
        let stream = async {
            let mut chunks = one
                .peers
                .open(endpoint.node_id(), endpoint.local_addrs(), STREAM, b"", soon())
                .await
                .unwrap();
            settle().await;
            while let Ok(Some(_)) = chunks.next().await {}
        };
        tokio::join!(lie, stream);
        drop(call);
        assert_eq!(one.count(Counter::FrameRejects, reason), 1, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn credit_and_cancel_for_what_is_not_open_mean_nothing() {
    let (net, _one, two) = pair();
    let mut raw = Raw::greeted(&net, 11, &two).await;
    raw.say(Control::Cancel { corr: 77 }.frame()).await;
    raw.say(Control::Credit { corr: 77, chunks: u32::MAX }.frame()).await;
    raw.say(Frame::event(0, 0, &b"\xa1\x00\x18\x63"[..])).await;
    raw.say(Frame::event(9, 0, &b"?"[..])).await;
    assert_eq!(raw.ask(request(1, ECHO_HI)).await.unwrap().payload, "hi");
}

#[tokio::test]
async fn a_protocol_can_be_served_once() {
    let one = Node::tls();
    let again = Peers::start(
        one.peers.endpoint(),
        TEST,
        Arc::new(Open(Arc::default())),
        PeersSettings::default(),
        &one.host,
    );
    assert_eq!(again.unwrap_err(), NetError::BadProtocol { alpn: TEST.alpn });
    one.host.shutdown().await;
}
