//! What the fuzzer and the replay of its corpus both run: a whole node, and peers that say whatever the bytes say.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ron_core::{
    Deadline, LaneSpec, Supervisor,
    net::{
        Endpoint, Identity,
        rpc::{Method, Peers, PeersSettings, Protocol, Session},
    },
    sim::{Latency, Line, SimNet, SimTransport},
};
use ron_overlay::{ALPN, Contact, Delivery, Overlay, Settings, Subscription, Topic, TopicId};

const LINKS: LaneSpec = LaneSpec::new("fuzz", "links", 16);
const PEERS: usize = 2;

fn addr(number: u8) -> SocketAddr {
    SocketAddr::from(([198, 18, 9, number], 7000))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

/// Plays the script that the bytes are: each step is a byte that says who does what, one with the number of a word, one
/// with its length, and its body. Peers come, speak, are cut off and come back; the host publishes, reads, leaves and
/// joins. Whatever they do: nothing panics, no number of a publisher is delivered twice, and after the stop no task,
/// session or waiting word is left.
pub(crate) fn sessions(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("no I/O is asked for").block_on(play(data));
}

/// A peer: its way to the node, and its session if it has one.
struct Peer {
    peers: Peers,
    session: Option<Session>,
}

async fn join(node: &Overlay) -> (Topic, Subscription) {
    let topic = node.topic("news").unsigned().join([], soon()).await.expect("it was left");
    let subscription = topic.subscribe(soon()).await.expect("it is joined");
    (topic, subscription)
}

async fn play(mut script: &[u8]) {
    let net = SimNet::new(7);
    net.set_usual(Line { latency: Latency::Fixed(Duration::from_millis(1)), ..Line::default() });
    let start = |number: u8| {
        let (host, identity) =
            (Supervisor::builder("fuzz").inline_blocking(true).start(), Identity::from_seed(&[number; 32]));
        let transport = Arc::new(SimTransport::new(&net, addr(number).ip(), &identity));
        let endpoint = Endpoint::builder(identity).transport(transport).listen(addr(number)).start(&host);
        (endpoint.expect("a free address"), host)
    };
    let (endpoint, host) = start(1);
    let mut settings = Settings { ingress_lane: 8, checks_lane: 4, max_conns: 4, ..Settings::default() };
    settings.peer.max_rps = 200;
    settings.peer.topics_max = 2;
    let unix = || Duration::from_secs(1_800_000_000);
    let node = Overlay::builder().settings(settings).seed(7).unix_clock(unix).start(&endpoint, &host).await;
    let node = node.expect("settings that make sense");
    let mut joined = Some(join(&node).await);
    let others: Vec<_> = (0..PEERS as u8).map(|number| start(number + 2)).collect();
    let protocol = Protocol { alpn: ALPN, proto: 2, links: LINKS };
    let mut peers: Vec<Peer> = others
        .iter()
        .map(|(endpoint, host)| {
            let peers = Peers::start(endpoint, protocol, Arc::new(()), PeersSettings::default(), host);
            Peer { peers: peers.expect("one protocol"), session: None }
        })
        .collect();
    let mut heard = std::collections::BTreeSet::new();
    while let [what, number, length, rest @ ..] = script {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        script = rest;
        let peer = &mut peers[usize::from(what >> 7)];
        match what & 0x7f {
            0 => {
                if let Some(session) = peer.session.take() {
                    session.close();
                }
            }
            1 => tokio::time::sleep(Duration::from_millis(1 << (number % 14))).await,
            2 => {
                if let Some((topic, _)) = &joined {
                    let _ = topic.publish(body.to_vec(), soon()).await;
                }
            }
            3 => match joined.take() {
                Some((topic, _)) => {
                    topic.leave(soon()).await.expect("it was joined");
                    // Who joins anew remembers nothing, and hears again what is said again.
                    heard.clear();
                }
                None => joined = Some(join(&node).await),
            },
            _ => {
                if !peer.session.as_ref().is_some_and(Session::is_open) {
                    let Contact { id, addrs } = node.contact();
                    peer.session = peer.peers.session(id, &addrs, soon()).await.ok();
                }
                let mut body = body.to_vec();
                // A word about some topic is about ours, mostly: `a? 00 58 20` and 32 bytes.
                if what & 0x40 == 0 && body.len() >= 36 && body[1..4] == [0x00, 0x58, 0x20] {
                    body[4..36].copy_from_slice(TopicId::of("news").as_bytes());
                }
                if let Some(session) = &peer.session {
                    let word = Method { number: u16::from(*number), name: "word" };
                    let _ = session.notify(word, &body, soon()).await;
                }
            }
        }
        if let Some((_, subscription)) = &mut joined {
            while let Some(delivery) = subscription.try_recv() {
                if let Delivery::Message { message, .. } = delivery {
                    assert!(heard.insert(*message.serial()), "{message:?} twice");
                }
            }
        }
    }
    for ((endpoint, host), peer) in others.iter().zip(peers) {
        drop(peer);
        endpoint.shutdown().await;
        host.shutdown().await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let stopped = node.shutdown().await;
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    assert!(node.peers().is_empty());
    assert!(node.queues().iter().all(|queue| queue.depth == 0), "{:?}", node.queues());
    endpoint.shutdown().await;
    host.shutdown().await;
    assert_eq!(host.running(), 0);
}
