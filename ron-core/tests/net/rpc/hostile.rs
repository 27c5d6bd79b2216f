//! Peers that do not read, do not end, flood, vanish or come twice, and hosts that hold on to what is over.

use std::sync::atomic::AtomicBool;

use super::*;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Tracked(Vec<u8>);
impl Tracked {
    fn new() -> Self {
        let live = LIVE.fetch_add(1, Ordering::SeqCst) + 1;
        PEAK.fetch_max(live, Ordering::SeqCst);
        Tracked(vec![1; CHUNK])
    }
}
impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl Drop for Tracked {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Odd {
    late_send: Arc<Mutex<Option<Result<(), Fault>>>>,
    late_ran: Arc<AtomicBool>,
}

impl Service for Odd {
    fn call(&self, request: Request) -> Handling {
        match request.method() {
            1 => Handling::Done(Ok(request.body().clone())),
            // 64 KiB from memory.
            7 => Handling::Done(Ok(Bytes::from_owner(Tracked::new()))),
            // Two chunks of one byte.
            8 => Handling::Pending(Box::pin(async move {
                request.send(Bytes::from_static(b"a")).await?;
                request.send(Bytes::from_static(b"b")).await?;
                Ok(Bytes::new())
            })),
            // A fault with a code that is none.
            9 => Handling::Done(Err(Fault::new(Code::None, "oops"))),
            // A worker that has the request and is late.
            10 => {
                let (late, ran) = (Arc::clone(&self.late_send), Arc::clone(&self.late_ran));
                #[allow(clippy::disallowed_methods, reason = "a host's own task, which ends by itself")]
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(400)).await;
                    ran.store(true, Ordering::SeqCst);
                    let sent = request.send(Bytes::from_static(b"late")).await;
                    *late.lock().unwrap() = Some(sent);
                });
                Handling::Pending(Box::pin(std::future::pending()))
            }
            _ => Handling::Done(Err(Fault::no_such_method())),
        }
    }
}

struct OddNode {
    peers: Peers,
    odd: Arc<Odd>,
    metrics: Metrics,
    _host: Supervisor,
}

fn odd(net: &SimNet, number: u8, settings: PeersSettings) -> OddNode {
    let metrics = Metrics::default();
    let host = Supervisor::builder("odd").metrics(metrics.clone()).start();
    let endpoint = sim_endpoint(net, number, &host);
    let odd = Arc::new(Odd::default());
    let peers = Peers::start(&endpoint, TEST, Arc::clone(&odd) as Arc<dyn Service>, settings, &host).unwrap();
    OddNode { peers, odd, metrics, _host: host }
}

impl OddNode {
    fn id(&self) -> NodeId {
        self.peers.endpoint().node_id()
    }
    fn addrs(&self) -> &[SocketAddr] {
        self.peers.endpoint().local_addrs()
    }
}

fn m(number: u16) -> Method {
    Method { number, name: "m" }
}

fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 3, number])
}

/// A peer that does not read and does not wait for answers.
async fn flood(inflight_max: u32) -> usize {
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let net = net();
    let two = odd(&net, 2, PeersSettings::default());
    let host = Supervisor::new("raw");
    let endpoint = sim_endpoint(&net, 11, &host);
    let Link { stream, .. } = endpoint.connect(two.id(), two.addrs(), TEST.alpn, soon()).await.unwrap();
    let (read, write) = tokio::io::split(stream);
    let metrics = Metrics::default();
    let mut reader = FrameReader::new(read, ReadSettings::default(), &metrics);
    let mut writer = FrameWriter::new(write, &metrics);
    writer.queue(Hello { inflight_max, ..Hello::default() }.request()).unwrap();
    writer.flush().await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().code, Code::Ok);
    for corr in 1..=20000u64 {
        writer.queue(request(corr, b"\xa2\x00\x07\x01\x19\xff\xff")).unwrap();
        if corr % 100 == 0 && writer.flush().await.is_err() {
            // Disconnected, as it should be.
            break;
        }
    }
    settle().await;
    PEAK.load(Ordering::SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn answers_held_for_a_peer_that_does_not_read_are_as_many_as_agreed() {
    let usual = flood(512).await;
    let greedy = flood(u32::MAX).await;
    assert!(usual <= 192 && greedy <= 192, "{usual} {greedy}");
}

#[tokio::test(start_paused = true)]
async fn credit_for_answers_that_have_ended_does_not_push_out_requests() {
    let net = net();
    let one = odd(&net, 1, with(RpcSettings { window_chunks: 2, ..RpcSettings::default() }));
    let two = odd(&net, 2, with(RpcSettings { inflight_max: 4, ..RpcSettings::default() }));
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(session.open(m(8), b"", Deadline::after(Duration::from_secs(500))).await.unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(session.open_exchanges(), 0, "all have ended");
    for chunks in &mut streams {
        while chunks.next().await.unwrap().is_some() {}
    }
    let answer = session.call(ECHO, b"x", soon()).await;
    assert_eq!(answer.unwrap(), "x");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_does_not_keep_a_session_from_idling() {
    let (_net, one, two) = pair();
    let far = Deadline::after(Duration::from_secs(3600));
    one.peers.call(two.id(), two.addrs(), ECHO, b"", far).await.unwrap();
    let session = one.peers.get(two.id()).unwrap();
    // The other end must not be the one to close: it is cut off without a word.
    net_cut(&_net);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_open(), "ten minutes of silence with nothing open");
}

fn net_cut(net: &SimNet) {
    net.partition(&[ip(1)], &[ip(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_addresses_does_not_poison_the_peer() {
    let (_net, one, two) = pair();
    for _ in 0..6 {
        let _ = one.peers.call(two.id(), &[], ECHO, b"", soon()).await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let _ = one.peers.call(two.id(), &[], ECHO, b"", soon()).await.unwrap_err();
    assert_eq!(one.ask(&two, ECHO, b"x").await.unwrap(), "x");
}

/// The peer that was dialled loses its network, comes back at another address and dials us.
#[tokio::test(start_paused = true)]
async fn a_link_that_the_peer_has_just_opened_replaces_a_dead_one() {
    let net = net();
    let a = Node::sim(&net, 1, PeersSettings::default());
    let b = Node::sim(&net, 2, PeersSettings::default());
    let (small, large, n_small, n_large) =
        if a.id().as_bytes() < b.id().as_bytes() { (a, b, 1, 2) } else { (b, a, 2, 1) };
    small.ask(&large, ECHO, b"").await.unwrap();
    net.partition(&[ip(n_small)], &[ip(n_large)]);
    // The same identity on another machine.
    let moved = Node::new(
        |host| {
            let identity = Identity::from_seed(&[n_large; 32]);
            Endpoint::builder(Identity::from_seed(&[n_large; 32]))
                .transport(Arc::new(SimTransport::new(&net, ip(77), &identity)))
                .listen(SocketAddr::new(ip(77), 7000))
                .start(host)
                .unwrap()
        },
        PeersSettings::default(),
    );
    let mut failed = 0;
    for _ in 0..600 {
        assert_eq!(moved.ask(&small, ECHO, b"here").await.unwrap(), "here");
        let back = small.peers.call(
            moved.id(),
            moved.addrs(),
            ECHO,
            b"back",
            Deadline::after(Duration::from_millis(900)),
        );
        failed += usize::from(back.await.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(failed < 15, "{failed} of 600 calls went into the dead link");
}

#[tokio::test(start_paused = true)]
async fn a_fault_without_a_code_costs_its_call_only() {
    let net = net();
    let (one, two) = (odd(&net, 1, PeersSettings::default()), odd(&net, 2, PeersSettings::default()));
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let error = session.call(m(9), b"", soon()).await.unwrap_err();
    assert_eq!(error, RpcError::Refused { code: Code::Failed, reason: "oops".to_owned() });
    assert!(session.is_open(), "the session is gone");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_sends_late_is_told_and_costs_nobody_else() {
    let net = net();
    let (one, two) = (odd(&net, 1, PeersSettings::default()), odd(&net, 2, PeersSettings::default()));
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let late = session.open(m(10), b"", Deadline::after(Duration::from_millis(300))).await;
    let error = late.unwrap().next().await.unwrap_err();
    assert_eq!(error, RpcError::Timeout { op: "m" });
    settle().await;
    assert!(two.odd.late_ran.load(Ordering::SeqCst));
    assert!(
        two.odd.late_send.lock().unwrap().as_ref().is_some_and(|sent| sent.is_err()),
        "it panicked or was sent"
    );
    assert!(session.is_open(), "the session is gone");
}

#[tokio::test(start_paused = true)]
async fn hurried_callers_do_not_dial_a_silent_peer_without_pause() {
    let (net, one, two) = pair();
    net_cut(&net);
    let mut waited = 0;
    for _ in 0..20 {
        let began = now();
        let call = one.peers.call(two.id(), two.addrs(), ECHO, b"", Deadline::after(Duration::from_secs(2)));
        call.await.unwrap_err();
        waited += usize::from(now() - began > Duration::from_millis(10));
    }
    assert!(waited < 20, "{waited} of 20 calls dialled for all of their time, no pause in between");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_an_open_call_ends_well() {
    let (_net, one, two) = pair();
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let call = one.peers.call(two.id(), two.addrs(), NEVER, b"", Deadline::after(Duration::from_secs(20)));
    let stop = async {
        two.shop.began.notified().await;
        let theirs = two.peers.get(one.id()).unwrap();
        let stopped = two.host.shutdown().await;
        let ended = tokio::time::timeout(Duration::from_secs(30), theirs.ended()).await;
        (stopped, ended.is_ok())
    };
    let (told, (stopped, ended)) = tokio::join!(call, stop);
    drop(session);
    assert_eq!((stopped.aborted, ended), (0, true));
    assert_eq!(told, Err(RpcError::Closed));
}

#[tokio::test(start_paused = true)]
async fn an_abort_tells_those_who_call() {
    let (_net, one, two) = pair();
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    let began = now();
    let call = session.call(NEVER, b"", Deadline::after(Duration::from_secs(50)));
    let stop = async {
        two.shop.began.notified().await;
        one.host.abort();
        tokio::time::timeout(Duration::from_secs(100), session.ended()).await.is_ok()
    };
    let (told, ended) = tokio::join!(call, stop);
    let took = now() - began;
    assert!(took < Duration::from_secs(5) && ended && !session.is_open());
    assert_eq!(told, Err(RpcError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_at_its_deadline_whatever_the_peer_sends() {
    let metrics = Metrics::default();
    let host = Supervisor::builder("test").metrics(metrics.clone()).start();
    let endpoint = Endpoint::builder(Identity::generate().unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .start(&host)
        .unwrap();
    let rpc = RpcSettings { drain: Duration::from_millis(300), ..RpcSettings::default() };
    let peers = Peers::start(&endpoint, TEST, Arc::new(Odd::default()), with(rpc), &host).unwrap();
    let other = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let Link { stream, .. } =
        other.connect(endpoint.node_id(), endpoint.local_addrs(), TEST.alpn, soon()).await.unwrap();
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, ReadSettings::default(), &metrics);
    let mut writer = FrameWriter::new(write, &metrics);
    writer.queue(Hello::default().request()).unwrap();
    writer.flush().await.unwrap();
    reader.next().await.unwrap().unwrap();
    // A request of several frames that never ends.
    writer.queue(Frame { flags: Flags::REQ | Flags::START, ..request(1, ECHO_HI) }).unwrap();
    writer.flush().await.unwrap();
    reader.next().await.unwrap().unwrap();
    let session = loop {
        // It is entered right after it has been greeted.
        match peers.get(other.node_id()) {
            Some(session) => break session,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let flooding = async move {
        loop {
            while !writer.is_full() {
                writer.queue(Frame::event(TEST.proto, 0, &b"\xa1\x00\x05"[..])).unwrap();
            }
            if writer.write().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    #[allow(clippy::disallowed_methods, reason = "a peer of the test, aborted below")]
    let flooding = tokio::spawn(flooding);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let ended = tokio::time::timeout(Duration::from_secs(6), session.shutdown()).await;
    flooding.abort();
    assert!(ended.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_without_time_is_not_carried_out() {
    let (net, _one, two) = pair();
    let mut raw = Raw::greeted(&net, 11, &two).await;
    assert_eq!(raw.ask(request(1, b"\xa2\x00\x01\x01\x00")).await.unwrap().code, Code::Timeout);
}

#[tokio::test(start_paused = true)]
async fn one_peer_has_not_more_sessions_than_all_may() {
    let net = net();
    let hub = Node::sim(&net, 1, PeersSettings { sessions_max: 3, ..PeersSettings::default() });
    let host = Supervisor::new("raw");
    let endpoint = sim_endpoint(&net, 11, &host);
    let mut raws = Vec::new();
    for _ in 0..20 {
        let Link { stream, .. } = endpoint.connect(hub.id(), hub.addrs(), TEST.alpn, soon()).await.unwrap();
        let (read, write) = tokio::io::split(stream);
        let metrics = Metrics::default();
        let reader = FrameReader::new(read, ReadSettings::default(), &metrics);
        let mut raw = Raw { reader, writer: FrameWriter::new(write, &metrics), _host: Supervisor::new("x") };
        assert_eq!(raw.ask(Hello::default().request()).await.unwrap().code, Code::Ok);
        raws.push(raw);
    }
    for round in 1..100 {
        for raw in &mut raws {
            let _ = raw.ask(request(round, ECHO_HI)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut alive = 0;
    for raw in &mut raws {
        alive += usize::from(raw.ask(request(1000, ECHO_HI)).await.is_some());
    }
    assert!(
        alive <= 3,
        "{alive} sessions of one peer, with a limit of 3, table says {}",
        hub.peers.sessions().len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_that_carries_events_is_not_idle() {
    let (_net, one, two) = pair();
    let session = one.peers.session(two.id(), two.addrs(), soon()).await.unwrap();
    for second in 0..12 {
        session
            .notify(NOTE, b"x", soon())
            .await
            .unwrap_or_else(|error| panic!("{} s: {error:?}", second * 10));
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

/// A peer that says HELLO and then nothing, as a machine that lost its network does.
#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up_although_calls_are_made() {
    let net = net();
    let one = Node::sim(&net, 1, PeersSettings::default());
    let host = Supervisor::new("silent");
    let endpoint = sim_endpoint(&net, 2, &host);
    let inbox = endpoint.register(TEST.alpn, LINKS).unwrap();
    let silent = async {
        let Link { mut stream, .. } = inbox.recv().await.unwrap();
        let _hello = stream.read(&mut [0; 4096]).await.unwrap();
        let mut writer = FrameWriter::new(stream, &Metrics::default());
        let hello = Hello::default();
        writer.queue(Frame::answer(&hello.request(), Code::Ok, hello.encode())).unwrap();
        writer.flush().await.unwrap();
        writer
    };
    let call = || {
        one.peers.call(
            endpoint.node_id(),
            endpoint.local_addrs(),
            ECHO,
            b"",
            Deadline::after(Duration::from_secs(10)),
        )
    };
    let (_held, _) = tokio::join!(silent, call());
    let session = one.peers.get(endpoint.node_id()).unwrap();
    let began = now();
    let mut calls = 1;
    while session.is_open() && calls < 300 {
        let _ = call().await;
        calls += 1;
    }
    assert!(
        now() - began < Duration::from_secs(120),
        "{calls} calls and {:?} into a dead link",
        now() - began
    );
}

#[tokio::test(start_paused = true)]
async fn when_the_reader_ends_the_writer_ends() {
    let net = net();
    let two = odd(&net, 2, PeersSettings::default());
    let host = Supervisor::new("raw");
    let endpoint = sim_endpoint(&net, 11, &host);
    let Link { stream, .. } = endpoint.connect(two.id(), two.addrs(), TEST.alpn, soon()).await.unwrap();
    let (mut read, write) = tokio::io::split(stream);
    let mut writer = FrameWriter::new(write, &Metrics::default());
    writer.queue(Hello::default().request()).unwrap();
    for corr in 1..=128u64 {
        writer.queue(request(corr, b"\xa2\x00\x07\x01\x19\xff\xff")).unwrap();
    }
    // And a rule broken.
    writer.queue(Frame::event(0, 0, &b"\xa1\x00\x02"[..])).unwrap();
    writer.flush().await.unwrap();
    let mut buffer = vec![0; 72 << 10];
    let began = now();
    while now() - began < Duration::from_secs(3600) {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let mut read_now = 0;
        while read_now < buffer.len() {
            match read.read(&mut buffer[read_now..]).await {
                Ok(0) | Err(_) => {
                    let took = now() - began;
                    let closed = two.metrics.tally(Counter::SessionsClosed, "violation").get();
                    assert!(took < Duration::from_secs(30), "closed {closed}, writer went on for {took:?}");
                    return;
                }
                Ok(bytes) => read_now += bytes,
            }
        }
    }
    panic!("an hour");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rpc_over_quic() {
    let node = || {
        Node::new(
            |host: &Supervisor| {
                Endpoint::builder(Identity::generate().unwrap())
                    .quic()
                    .listen("127.0.0.1:0".parse().unwrap())
                    .start(host)
                    .unwrap()
            },
            PeersSettings::default(),
        )
    };
    let (one, two) = (node(), node());
    for _ in 0..20 {
        assert_eq!(one.ask(&two, ECHO, b"hi").await.unwrap(), "hi");
        assert_eq!(two.ask(&one, ECHO, b"hi").await.unwrap(), "hi");
    }
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, b"4000000", soon()).await.unwrap();
    let first = chunks.next().await.unwrap().unwrap().len();
    let stop = async { two.host.shutdown().await };
    let read = async {
        let mut bytes = first;
        while let Some(chunk) = chunks.next().await.unwrap() {
            bytes += chunk.len();
        }
        bytes
    };
    let (stopped, bytes) = tokio::join!(stop, read);
    assert_eq!((bytes, stopped.aborted), (4_000_003, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_writer_has_failed_takes_no_calls() {
    let metrics = Metrics::default();
    let host = Supervisor::builder("test").metrics(metrics.clone()).start();
    let endpoint = Endpoint::builder(Identity::generate().unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .start(&host)
        .unwrap();
    let peers =
        Peers::start(&endpoint, TEST, Arc::new(Odd::default()), PeersSettings::default(), &host).unwrap();
    let other = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let Link { stream, .. } =
        other.connect(endpoint.node_id(), endpoint.local_addrs(), TEST.alpn, soon()).await.unwrap();
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, ReadSettings::default(), &metrics);
    let mut writer = FrameWriter::new(write, &metrics);
    writer.queue(Hello::default().request()).unwrap();
    writer.flush().await.unwrap();
    reader.next().await.unwrap().unwrap();
    let session = loop {
        // It is entered right after it has been greeted.
        match peers.get(other.node_id()) {
            Some(session) => break session,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    // It reads nothing any more.
    while session.notify(NOTE, &[0; 60_000], Deadline::after(Duration::from_secs(20))).await.is_ok() {}
    let began = now();
    let open = session.is_open();
    let call = session.call(ECHO, b"", Deadline::after(Duration::from_secs(20))).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "open {open}, and the call is told {call:?} after {took:?}");
}

/// A caller that went long after its time was spent told its callee a second time, and gave it ten seconds more to end.
#[tokio::test(start_paused = true)]
async fn a_callee_is_told_once_that_nobody_wants_its_answer() {
    let (net, _one, two) = pair();
    let mut raw = Raw::greeted(&net, 11, &two).await;
    settle().await;
    let session = two.peers.sessions().remove(0);
    let began = now();
    let chunks = session.open(NEVER, b"", Deadline::after(Duration::from_secs(1))).await.unwrap();
    let caller = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        drop(chunks);
        session.ended().await;
        (now() - began).as_secs()
    };
    let callee = async {
        let mut frames = 0;
        while let Ok(Some(_)) = raw.reader.next().await {
            frames += 1;
        }
        frames
    };
    assert_eq!(tokio::join!(caller, callee), (11, 2), "a request and one cancel, and ten seconds after that");
}
