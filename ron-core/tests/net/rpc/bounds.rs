//! What all peers together may take: memory of requests at work, time of long answers, places for sessions.

use super::*;

/// `{0: 3 (never), 1: 60000 ms, 2: 0 chunks}` and a body.
fn never(corr: u64, body: usize) -> Frame {
    let payload = [&b"\xa3\x00\x03\x01\x19\xea\x60\x02\x00"[..], &vec![0; body]].concat();
    Frame::request(TEST.proto, corr, payload)
}

/// Each session has its bound, and a thousand sessions had a thousand times that.
#[tokio::test(start_paused = true)]
async fn requests_of_all_sessions_share_one_budget_of_memory() {
    let net = net();
    let settings = PeersSettings { requests_bytes_max: 500_000, ..PeersSettings::default() };
    let two = Node::sim(&net, 2, settings);
    let mut one = Raw::greeted(&net, 11, &two).await;
    let mut other = Raw::greeted(&net, 12, &two).await;
    one.say(never(1, 200_000)).await;
    other.say(never(1, 200_000)).await;
    settle().await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 2);
    let refused = other.ask(never(2, 200_000)).await.unwrap();
    let refused = (refused.code, Fault::decode(refused.code, &refused.payload));
    let busy = Fault::busy("rpc_requests", Duration::from_millis(100));
    assert_eq!(refused, (Code::Busy, busy));
    assert_eq!(two.count(Counter::BusyRejections, "rpc_requests"), 1);
    // What is small always gets in, and so does what fits.
    assert_eq!(other.ask(request(3, ECHO_HI)).await.unwrap().payload, "hi");
    other.say(never(4, 90_000)).await;
    settle().await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 3);
    // Room is given back when a request has ended, and by a session that goes.
    let ended = one.ask(Control::Cancel { corr: 1 }.frame()).await.unwrap();
    assert_eq!(ended.code, Code::Unavailable);
    other.say(never(5, 200_000)).await;
    settle().await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 3);
    drop(other);
    settle().await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 0);
    one.say(never(2, 250_000)).await;
    one.say(never(3, 240_000)).await;
    settle().await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 2, "all of the budget is there again");
}

/// A minute was the end of every answer, also of one that was being read.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_may_take_longer_than_one_that_is_not() {
    let net = net();
    let rpc = RpcSettings { window_chunks: 2, ..RpcSettings::default() };
    let [one, two] = [1, 2].map(|number| Node::sim(&net, number, with(rpc)));
    let long = Deadline::after(Duration::from_secs(1000));
    let bytes = (20 * CHUNK).to_string();
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, &bytes, long).await.unwrap();
    let began = now();
    let mut taken = 0;
    while let Some(chunk) = chunks.next().await.unwrap() {
        taken += chunk.len();
        tokio::time::sleep(Duration::from_secs(25)).await;
    }
    assert_eq!(taken, 20 * CHUNK + 3);
    assert!(now() - began > Duration::from_secs(400), "{:?}", now() - began);

    // One that is not read ends a minute after its last chunk.
    let long = Deadline::after(Duration::from_secs(1000));
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, &bytes, long).await.unwrap();
    for _ in 0..4 {
        chunks.next().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(25)).await;
    }
    let stopped = now();
    while chunks.next().await.is_ok_and(|chunk| chunk.is_some()) {
        tokio::time::sleep(Duration::from_secs(65)).await;
    }
    assert_eq!(chunks.next().await, Err(RpcError::Timeout { op: "stream" }));
    assert!((now() - stopped).as_secs() < 200);

    // And the caller's own deadline holds, however well it reads.
    let short = Deadline::after(Duration::from_secs(100));
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, &bytes, short).await.unwrap();
    let began = now();
    let late = loop {
        match chunks.next().await {
            Ok(_) => tokio::time::sleep(Duration::from_secs(25)).await,
            Err(late) => break late,
        }
    };
    assert_eq!(late, RpcError::Timeout { op: "stream" });
    // What had come by then is still handed out, at the pace of the reader.
    assert!((100..=175).contains(&(now() - began).as_secs()), "{:?}", now() - began);
}

/// Three strangers who each ask for something that never ends could keep everybody else out.
#[tokio::test(start_paused = true)]
async fn who_holds_a_place_with_a_request_that_does_not_move_loses_it() {
    let net = net();
    let hub = Node::sim(&net, 1, PeersSettings { sessions_max: 3, ..PeersSettings::default() });
    let mut strangers = Vec::new();
    for number in 11..14 {
        let mut stranger = Raw::greeted(&net, number, &hub).await;
        stranger.say(never(1, 0)).await;
        settle().await;
        strangers.push(stranger);
    }
    assert_eq!(hub.shop.running.load(Ordering::SeqCst), 3);
    let honest = Node::sim(&net, 2, PeersSettings::default());
    assert!(honest.ask(&hub, ECHO, b"").await.is_err(), "not at once: what is long is not yet pinned");
    assert!(hub.count(Counter::BusyRejections, "rpc_sessions") >= 1);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(honest.ask(&hub, ECHO, b"me").await.unwrap(), "me");
    settle().await;
    // The first who came has gone, and no other.
    let first = strangers.remove(0);
    let mut first = first.reader;
    while let Ok(Some(_)) = first.next().await {}
    assert_eq!(hub.peers.sessions().len(), 3);
    assert!(hub.peers.get(honest.id()).is_some());
}

/// Nor can they with requests and events that they begin and never end, which nobody is at work on.
#[tokio::test(start_paused = true)]
async fn who_holds_a_place_with_a_message_that_does_not_end_loses_it() {
    let net = net();
    let hub = Node::sim(&net, 1, PeersSettings { sessions_max: 2, ..PeersSettings::default() });
    let mut strangers = Vec::new();
    for (number, kind) in [(11, Flags::REQ), (12, Flags::NONE)] {
        let mut stranger = Raw::greeted(&net, number, &hub).await;
        let begun = if kind == Flags::REQ { never(1, 0) } else { Frame::event(TEST.proto, 1, &b"\xa0"[..]) };
        stranger.say(Frame { flags: begun.flags | Flags::START, ..begun }).await;
        settle().await;
        strangers.push(stranger);
    }
    assert!(hub.peers.sessions().iter().all(|session| session.open_exchanges() == 1));
    let honest = Node::sim(&net, 2, PeersSettings::default());
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(honest.ask(&hub, ECHO, b"me").await.unwrap(), "me");
}

/// Strangers who keep their places busy keep other strangers out, and not us.
#[tokio::test(start_paused = true)]
async fn a_session_that_we_need_gets_a_place_whatever_strangers_do() {
    let net = net();
    let hub = Node::sim(&net, 1, PeersSettings { sessions_max: 2, ..PeersSettings::default() });
    let [friend, needed, last] = [2, 3, 4].map(|number| Node::sim(&net, number, PeersSettings::default()));
    let mut stranger = Raw::greeted(&net, 11, &hub).await;
    stranger.say(never(1, 0)).await;
    let working = hub.ask(&friend, NEVER, b"");
    let needs = async {
        settle().await;
        let answered = hub.ask(&needed, ECHO, b"now").await;
        // With calls of ours on both, there is no place even for us.
        let both = async { tokio::join!(hub.ask(&needed, NEVER, b""), settle()).0 };
        let third = async {
            settle().await;
            hub.ask(&last, ECHO, b"").await
        };
        let third = tokio::select! {
            biased;
            third = third => third,
            _ = both => unreachable!(),
        };
        (answered, third)
    };
    let (answered, third) = tokio::select! {
        biased;
        answered = needs => answered,
        _ = working => unreachable!(),
    };
    assert_eq!(answered.unwrap(), "now");
    assert!(matches!(third, Err(RpcError::Busy { what: "rpc_sessions", .. })), "{third:?}");
    while let Ok(Some(_)) = stranger.reader.next().await {}
    assert!(hub.peers.get(friend.id()).is_some(), "our own call was not touched");
}

/// The largest value in each field that a peer sends about calls: time, credit, and credit on top of credit.
#[tokio::test(start_paused = true)]
async fn the_largest_numbers_in_calls_do_no_harm() {
    let (net, _one, two) = pair();
    let mut raw = Raw::greeted(&net, 11, &two).await;
    // `{0: 2 (stream), 1: 2^64-1 ms, 2: 2^64-1 chunks}`, and a body that asks for 400 000 bytes.
    const MOST: &[u8] =
        b"\xa3\x00\x02\x01\x1b\xff\xff\xff\xff\xff\xff\xff\xff\x02\x1b\xff\xff\xff\xff\xff\xff\xff\xff400000";
    raw.say(Frame { corr: u64::MAX, ..request(0, MOST) }).await;
    for _ in 0..3 {
        raw.say(Control::Credit { corr: u64::MAX, chunks: u32::MAX }.frame()).await;
    }
    let mut bytes = 0;
    loop {
        let frame = raw.reader.next().await.unwrap().unwrap();
        assert_eq!(frame.corr, u64::MAX);
        bytes += frame.payload.len();
        if frame.code == Code::Ok {
            break;
        }
    }
    assert_eq!(bytes, 400_003);
    let too_many = Frame::event(0, 0, &b"\xa3\x00\x01\x01\x01\x02\x1b\xff\xff\xff\xff\xff\xff\xff\xff"[..]);
    assert_eq!(raw.ask(too_many).await, None, "more than a number of chunks can be");
    assert_eq!(two.count(Counter::FrameRejects, "control"), 1);
}

/// A request that finds no room among what waits to be written is refused, and costs neither its session nor a place.
#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_budget_of_what_is_queued_is_busy() {
    let net = net();
    let one = Node::sim(&net, 1, PeersSettings { queued_bytes_max: 100_000, ..PeersSettings::default() });
    let two = Node::sim(&net, 2, PeersSettings::default());
    for _ in 0..200 {
        let refused = one.ask(&two, ECHO, &[0; 150_000]).await.unwrap_err();
        assert!(matches!(refused, RpcError::Busy { what: "rpc_queued", .. }), "{refused:?}");
    }
    let session = one.peers.get(two.id()).unwrap();
    assert_eq!(session.open_exchanges(), 0);
    assert_eq!(one.ask(&two, ECHO, &[7; 50_000]).await.unwrap().len(), 50_000);
    assert!(session.is_open());
}

/// What is read lies in memory as it came, and a small request kept all of that while it was at work, a thousand times
/// what it weighs.
#[test]
fn a_small_request_at_work_holds_little_more_than_itself() {
    const REQUESTS: u64 = 100;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (two, mut raw) = runtime.block_on(async {
        let (net, _one, two) = pair();
        let mut raw = Raw::greeted(&net, 11, &two).await;
        raw.say(Frame::event(TEST.proto, 0, vec![0; 200_000])).await;
        settle().await;
        (two, raw)
    });
    let used = allocation_counter::measure(|| {
        runtime.block_on(async {
            for corr in 1..=REQUESTS {
                raw.say(never(corr, 0)).await;
                raw.say(Frame::event(TEST.proto, 0, vec![0; 200_000])).await;
            }
            settle().await;
        });
    });
    assert_eq!(two.shop.running.load(Ordering::SeqCst) as u64, REQUESTS);
    assert!(used.bytes_current < (16 << 10) * REQUESTS as i64, "{} B", used.bytes_current);
}
