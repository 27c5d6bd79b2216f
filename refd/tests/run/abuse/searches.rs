//! Searches among peers who answer with a crowd that is not there.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    NodeId,
    net::{
        Contact,
        rpc::{Fault, Handling, Peers, PeersSettings, Request, Service},
    },
};
use ron_dht::{
    Key,
    network::{Answer, Request as Asked},
};

use super::{
    peers::{PROTOCOLS, Peer},
    status, until,
};
use crate::settings::{ANY_PORT, Configured};

/// Knows twenty nodes right beside whatever it is asked for, each time others, at addresses where nobody is.
struct Crowd {
    asked: AtomicU64,
    named: AtomicU64,
}

impl Crowd {
    fn beside(&self, target: &Key) -> Vec<Contact> {
        let contact = |_| {
            let number = self.named.fetch_add(1, Ordering::SeqCst);
            let mut id = *target.as_bytes();
            id[24..].copy_from_slice(&number.to_be_bytes());
            let port = 1 + (number % 1000) as u16;
            Contact { id: NodeId::from_bytes(id), addrs: [SocketAddr::from(([127, 0, 0, 1], port))].into() }
        };
        (0..20).map(contact).collect()
    }
}

impl Service for Crowd {
    fn call(&self, request: Request) -> Handling {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = match Asked::decode(request.method(), request.body()) {
            Ok(Asked::Ping { .. }) => Answer::Pong,
            Ok(Asked::FindNode { target }) => Answer::Nodes { closer: self.beside(&target) },
            Ok(Asked::FindValue { key, .. }) => {
                Answer::Found { closer: self.beside(&key), providers: Vec::new(), value: None }
            }
            _ => return Handling::Done(Err(Fault::bad_request("no"))),
        };
        Handling::Done(Ok(answer.encode().1))
    }
}

/// Case 22: the only seed of a node lies. Its searches end, with so many questions and dials and no more.
#[test]
fn a_search_among_a_crowd_that_is_not_there_ends() {
    const SEARCHES: u64 = 10;
    const MOST: u64 = 80;
    let (peer, crowd) = (Peer::new(), Arc::new(Crowd { asked: AtomicU64::new(0), named: AtomicU64::new(0) }));
    let inside = peer.runtime.enter();
    let service = Arc::clone(&crowd);
    let _speaks =
        Peers::start(&peer.endpoint, PROTOCOLS[0].0, service, PeersSettings::default(), &peer.host).unwrap();
    drop(inside);
    let seed = format!("{}@{}", peer.endpoint.node_id(), peer.endpoint.local_addrs()[0]);
    let node = Configured::start(&format!("{ANY_PORT}[dht]\nseeds = [{seed:?}]\n"));
    until("the liar is known", || {
        node.daemon.get("/dht/peers").contains(&peer.endpoint.node_id().to_string())
    });
    let dials = || {
        let metrics = node.daemon.get("/metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("ron_core_dial_failures_total{"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>()
    };
    // What it does on its own account while it begins is not counted with what follows, but for what is under way.
    std::thread::sleep(Duration::from_secs(2));
    let (asked, dialled) = (crowd.asked.load(Ordering::SeqCst), dials());
    let began = ron_core::now();
    for number in 0..SEARCHES {
        let began = ron_core::now();
        let key = format!("{number:064x}");
        let path =
            [format!("/dht/find_node/{key}"), format!("/dht/providers/{key}")][number as usize % 2].clone();
        let answer = node.daemon.get(&path);
        assert!(matches!(status(&answer), 200 | 404 | 503 | 504), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(15), "{path} took {:?}", began.elapsed());
    }
    let (asked, dialled) = (crowd.asked.load(Ordering::SeqCst) - asked, dials() - dialled);
    println!("{asked} questions and {dialled} dials in {:?}", began.elapsed());
    assert!(asked >= SEARCHES / 2, "it was asked {asked} times");
    assert!(asked + dialled <= SEARCHES * MOST, "{asked} questions and {dialled} dials");
    // Nobody of the crowd is believed to be there.
    let known = node.daemon.get("/dht/status");
    assert!(known.contains("\"peers\":1,"), "{known}");
    node.is_well();
}
