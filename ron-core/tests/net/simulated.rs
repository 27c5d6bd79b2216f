//! Endpoints on the simulated network: the same handle, the same errors, hours in seconds, and the same run again.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{
    Deadline, LaneSpec, Ratio, Restart, Supervisor, TaskSpec,
    net::{Endpoint, Identity, KeyGroup, NetError},
    sim::{Latency, Line, Sim, SimNet, SimNode, SimTransport},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ALPN;

const LINKS: LaneSpec = LaneSpec::new("test", "links", 64);
const PORT: u16 = 7000;

fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 2, number])
}

fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number; 32])
}

fn endpoint(supervisor: &Supervisor, net: &SimNet, number: u8) -> Result<Endpoint, NetError> {
    let transport = SimTransport::new(net, ip(number), &identity(number));
    Endpoint::builder(identity(number))
        .transport(Arc::new(transport))
        .listen(SocketAddr::new(ip(number), PORT))
        .start(supervisor)
}

#[tokio::test(start_paused = true)]
async fn a_link_in_memory_is_a_link() {
    let (net, host) = (SimNet::new(1), Supervisor::new("test"));
    let (one, two) = (endpoint(&host, &net, 1).unwrap(), endpoint(&host, &net, 2).unwrap());
    let inbox = two.register(ALPN, LINKS).unwrap();
    let addrs = two.local_addrs();
    let deadline = || Deadline::after(Duration::from_secs(5));

    let mut dialled = one.connect(two.node_id(), addrs, ALPN, deadline()).await.unwrap();
    let mut accepted = inbox.recv().await.unwrap();
    assert_eq!((dialled.peer, accepted.peer), (two.node_id(), one.node_id()));
    assert_eq!((dialled.alpn, dialled.group), (ALPN, KeyGroup::Memory));
    dialled.stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    accepted.stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");

    let stranger = identity(9).node_id();
    let wrong = one.connect(stranger, addrs, ALPN, deadline()).await.unwrap_err();
    assert_eq!(wrong, NetError::WrongIdentity { expected: stranger, found: two.node_id() });
    let unknown = one.connect(two.node_id(), addrs, "test/other/1", deadline()).await.unwrap_err();
    assert_eq!(unknown, NetError::ProtocolRefused { alpn: "test/other/1" });
    net.partition(&[ip(1)], &[ip(2)]);
    let late = one.connect(two.node_id(), addrs, ALPN, deadline()).await.unwrap_err();
    assert!(matches!(late, NetError::Timeout { .. }), "{late:?}");
    host.shutdown().await;
}

/// Fifty endpoints that dial each other for ten minutes, while some crash and the network parts.
fn ten_minutes(seed: u64) -> (blake3::Hash, usize, usize) {
    const NODES: u8 = 50;
    Sim::run(seed, async |sim| {
        let latency = Latency::Tailed(Duration::from_millis(30), Duration::from_millis(400));
        sim.net().set_usual(Line { latency, loss: Ratio::percent(1), ..Line::default() });
        let talk = Arc::new(Mutex::new((0, 0)));
        for number in 0..NODES {
            let talk = Arc::clone(&talk);
            sim.add(ip(number), move |node| chatter(node, number, NODES, Arc::clone(&talk)));
        }
        for minute in 0..10u8 {
            let victim = ip(sim.rng().u8(0..NODES));
            let split = ip(sim.rng().u8(1..NODES));
            let (one, other): (Vec<_>, Vec<_>) = (0..NODES).map(ip).partition(|ip| *ip < split);
            if minute % 3 == 1 {
                sim.net().partition(&one, &other);
            }
            sim.crash(victim).await;
            sim.run_for(Duration::from_secs(30)).await;
            sim.net().heal();
            sim.restart(victim);
            sim.run_for(Duration::from_secs(30)).await;
        }
        let (answered, failed) = *talk.lock().unwrap();
        (sim.net().trace(), answered, failed)
    })
}

/// Echoes what others send, and asks a random node every few seconds.
async fn chatter(node: SimNode, number: u8, nodes: u8, talk: Arc<Mutex<(usize, usize)>>) {
    const SESSION: TaskSpec = TaskSpec::new("test", "session").restart(Restart::Expendable);
    // A machine may lose power before its program has run at all.
    let Ok(endpoint) = endpoint(&node.supervisor, &node.net, number) else { return };
    let inbox = endpoint.register(ALPN, LINKS).unwrap();
    let spawner = node.supervisor.spawner();
    node.supervisor.spawn(SESSION, |_| async move {
        while let Some(mut link) = inbox.recv().await {
            spawner.spawn(SESSION, |_| async move {
                let echo = async {
                    let number = link.stream.read_u64().await?;
                    link.stream.write_u64(number).await
                };
                let _ = tokio::time::timeout(Duration::from_secs(5), echo).await;
            });
        }
    });
    let mut rng = fastrand::Rng::with_seed(node.seed);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.u64(1000..5000))).await;
        let peer = rng.u8(0..nodes);
        let deadline = Deadline::after(Duration::from_secs(4));
        let addrs = [SocketAddr::new(ip(peer), PORT)];
        let ask = async {
            let mut link = endpoint.connect(identity(peer).node_id(), &addrs, ALPN, deadline).await.ok()?;
            let sent = rng.u64(..);
            link.stream.write_u64(sent).await.ok()?;
            let answer = deadline.limit("echo", link.stream.read_u64()).await.ok()?.ok()?;
            (answer == sent).then_some(())
        };
        let answered = ask.await.is_some();
        let mut talk = talk.lock().unwrap();
        if answered { talk.0 += 1 } else { talk.1 += 1 }
    }
}

#[test]
fn fifty_endpoints_under_churn_replay_exactly() {
    let run = ten_minutes(21);
    let (_, answered, failed) = run;
    assert!(answered > 5000 && failed > 50, "{answered} answered, {failed} failed");
    assert_eq!(ten_minutes(21), run, "the same seed gave another run");
    assert_ne!(ten_minutes(22).0, run.0, "another seed gave the same run");
}
