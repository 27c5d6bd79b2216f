//! Peers that lose power: nobody is told, links are half open, and what notices is time.

use super::*;

fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 3, number])
}

/// The power fails; the program goes with it, and whatever it does on its way must reach nobody.
async fn lose_power(net: &SimNet, number: u8, node: &Node) {
    net.crash(ip(number));
    node.host.abort();
    node.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_vanished_peer_ends_at_its_deadline_and_the_session_with_it() {
    let (net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    let session = one.peers.get(two.id()).unwrap();
    let began = now();
    let call = async {
        let late = one
            .peers
            .call(two.id(), two.addrs(), NEVER, b"", Deadline::after(Duration::from_secs(20)))
            .await
            .unwrap_err();
        (late, now() - began)
    };
    let vanish = async {
        two.shop.began.notified().await;
        lose_power(&net, 2, &two).await;
    };
    let ((late, took), ()) = tokio::join!(call, vanish);
    assert_eq!(late, RpcError::Timeout { op: "never" }, "nobody told it that the peer is gone");
    assert_eq!(took, Duration::from_secs(20));
    // It had said that it was asked, and nothing since. One more call that is not heard settles it.
    let hurried = Deadline::after(Duration::from_secs(2));
    assert_eq!(session.call(ECHO, b"", hurried).await, Err(RpcError::Timeout { op: "echo" }));
    session.ended().await;
    assert_eq!(one.count(Counter::SessionsClosed, "silent"), 1);
    assert!(one.peers.get(two.id()).is_none(), "the next call dials");
    assert_eq!(one.host.shutdown().await.aborted, 0, "no task hangs on the dead link");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_with_a_vanished_peer_is_closed_as_any_idle_one() {
    let (net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    let session = one.peers.get(two.id()).unwrap();
    let began = now();
    lose_power(&net, 2, &two).await;
    session.ended().await;
    assert!((60..63).contains(&(now() - began).as_secs()), "{:?}", now() - began);
    assert_eq!(one.count(Counter::SessionsClosed, "idle"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_for_a_vanished_reader_stops_and_gives_its_memory_back() {
    let (net, one, two) = pair();
    let mut chunks = one.peers.open(two.id(), two.addrs(), STREAM, b"100000000", soon()).await.unwrap();
    chunks.next().await.unwrap().unwrap();
    let session = two.peers.get(one.id()).unwrap();
    let began = now();
    lose_power(&net, 1, &one).await;
    drop(chunks);
    session.ended().await;
    // By the write timeout or the budget of the request, whichever is first: at most five seconds, and the closing.
    assert!(now() - began < Duration::from_secs(8), "{:?}", now() - began);
    let sent = two.shop.sent.load(Ordering::SeqCst);
    assert!(sent < 40, "{sent} chunks for a reader that had taken one");
    assert_eq!((session.open_exchanges(), two.peers.sessions().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_vanished_caller_stops_with_its_budget() {
    let (net, one, two) = pair();
    let call = one.peers.call(two.id(), two.addrs(), NEVER, b"", Deadline::after(Duration::from_secs(30)));
    let vanish = async {
        two.shop.began.notified().await;
        lose_power(&net, 1, &one).await;
    };
    let _ = tokio::join!(call, vanish);
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 1, "it cannot know yet");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(two.shop.running.load(Ordering::SeqCst), 0);
    assert_eq!(two.count(Counter::IoTimeouts, "rpc_call"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_back_resets_the_old_session_when_it_is_used() {
    let (net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    let old = one.peers.get(two.id()).unwrap();
    lose_power(&net, 2, &two).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    net.restart(ip(2));
    let back = Node::sim(&net, 2, PeersSettings::default());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(old.is_open(), "nothing was sent, so nothing was said");
    let began = now();
    assert_eq!(one.ask(&back, ECHO, b"there?").await, Err(RpcError::Closed));
    assert_eq!(now() - began, Duration::from_millis(20), "a round trip");
    assert_eq!(one.ask(&back, ECHO, b"there?").await.unwrap(), "there?");
    assert_eq!(one.count(Counter::SessionsClosed, "link"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_back_and_calls_first_replaces_the_old_session() {
    let (net, one, two) = pair();
    one.ask(&two, ECHO, b"").await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let old = one.peers.get(two.id()).unwrap();
    lose_power(&net, 2, &two).await;
    net.restart(ip(2));
    let back = Node::sim(&net, 2, PeersSettings::default());
    assert_eq!(back.ask(&one, ECHO, b"me again").await.unwrap(), "me again");
    assert_eq!(one.ask(&back, ECHO, b"welcome").await.unwrap(), "welcome");
    old.ended().await;
    assert_eq!(one.peers.sessions().len(), 1);
}
