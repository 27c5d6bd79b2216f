//! Events that their owner keeps until the session asks for them.

use std::collections::VecDeque;

use ron_core::net::rpc::{Outbox, Session, event_payload};

use super::*;

/// A queue per peer in the order of the test, and every beginning and end that it was told.
#[derive(Default)]
struct Desk {
    waiting: Mutex<VecDeque<Bytes>>,
    /// What one visit took.
    visits: Mutex<Vec<usize>>,
    sessions: Mutex<Vec<Session>>,
    began: AtomicUsize,
    ended: Mutex<Vec<&'static str>>,
}

struct Keeper(Arc<Desk>);

impl Service for Keeper {
    fn call(&self, request: Request) -> Handling {
        Handling::Done(Ok(request.body().clone()))
    }

    fn began(&self, session: &Session) -> Option<Arc<dyn Outbox>> {
        self.0.began.fetch_add(1, Ordering::SeqCst);
        self.0.sessions.lock().unwrap().push(session.clone());
        Some(Arc::new(Keeper(Arc::clone(&self.0))))
    }

    fn ended(&self, _: &Session, reason: &'static str) {
        self.0.ended.lock().unwrap().push(reason);
    }
}

impl Outbox for Keeper {
    fn pour(&self, take: &mut dyn FnMut(Bytes) -> bool) {
        let (mut waiting, mut taken) = (self.0.waiting.lock().unwrap(), 0);
        while let Some(event) = waiting.pop_front() {
            taken += 1;
            if !take(event) {
                break;
            }
        }
        if taken > 0 {
            self.0.visits.lock().unwrap().push(taken);
        }
    }
}

impl Desk {
    fn put(&self, body: &[u8]) {
        let payload = event_payload(NOTE.number, body.len(), |mut bytes| {
            bytes.extend_from_slice(body);
            bytes
        });
        self.waiting.lock().unwrap().push_back(payload);
    }

    fn ring(&self) {
        self.sessions.lock().unwrap().iter().for_each(Session::ring);
    }
}

fn keeper(net: &SimNet, number: u8) -> (Peers, Arc<Desk>, Supervisor) {
    let (host, desk) = (Supervisor::new("test"), Arc::new(Desk::default()));
    let endpoint = sim_endpoint(net, number, &host);
    let service = Arc::new(Keeper(Arc::clone(&desk)));
    (Peers::start(&endpoint, TEST, service, PeersSettings::default(), &host).unwrap(), desk, host)
}

#[tokio::test(start_paused = true)]
async fn events_go_in_their_owners_order_and_calls_do_not_wait_for_them() {
    let net = net();
    let there = Node::sim(&net, 2, PeersSettings::default());
    let (peers, desk, host) = keeper(&net, 1);
    let (id, addrs) = (there.id(), there.peers.endpoint().local_addrs().to_vec());
    // What waits before there is a session goes when there is one.
    desk.put(b"first");
    peers.session(id, &addrs, soon()).await.unwrap();
    settle().await;
    assert_eq!(there.shop.events.lock().unwrap()[..], ["first"]);

    net.set_usual(Line { bandwidth: Some(1_000_000), ..Line::default() });
    for number in 0..2000_u32 {
        desk.put(&[&number.to_be_bytes()[..], &[0; 996]].concat());
    }
    desk.ring();
    let before = now();
    assert_eq!(peers.call(id, &addrs, ECHO, "quick", soon()).await.unwrap(), "quick");
    assert!(now() - before < Duration::from_millis(500), "two seconds of events are ahead of it");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let events = there.shop.events.lock().unwrap().clone();
    let numbers: Vec<u32> =
        events[1..].iter().map(|event| u32::from_be_bytes(*event.first_chunk().unwrap())).collect();
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
    // Some at a time, so that chunks have their turn, and not one by one.
    let visits = desk.visits.lock().unwrap().clone();
    assert!(visits.iter().all(|taken| *taken <= 32) && visits.len() < 200, "{} visits", visits.len());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn every_session_begins_and_ends_once_whatever_becomes_of_it() {
    for how in ["closed", "aborted", "peer gone", "both dial"] {
        let net = net();
        let (one, desk, host) = keeper(&net, 1);
        let (two, other, other_host) = keeper(&net, 2);
        let (id, addrs) = (two.endpoint().node_id(), two.endpoint().local_addrs().to_vec());
        let (own, own_addrs) = (one.endpoint().node_id(), one.endpoint().local_addrs().to_vec());
        if how == "both dial" {
            let both = tokio::join!(one.session(id, &addrs, soon()), two.session(own, &own_addrs, soon()));
            both.0.unwrap();
            both.1.unwrap();
        } else {
            one.session(id, &addrs, soon()).await.unwrap();
        }
        settle().await;
        let began = desk.began.load(Ordering::SeqCst);
        assert!((1..=2).contains(&began), "{how}: {began}");
        // Only one of them is asked, whichever was kept.
        let taking =
            |desk: &Desk| desk.sessions.lock().unwrap().iter().filter(|one| one.takes_events()).count();
        assert_eq!((taking(&desk), taking(&other)), (1, 1), "{how}");
        match how {
            "closed" => one.get(id).unwrap().close(),
            "aborted" => host.abort(),
            "peer gone" => other_host.abort(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        host.shutdown().await;
        other_host.shutdown().await;
        for desk in [&desk, &other] {
            let (began, ended) = (desk.began.load(Ordering::SeqCst), desk.ended.lock().unwrap());
            assert_eq!(began, ended.len(), "{how}: {ended:?}");
            assert_eq!(taking(desk), 0, "{how}");
        }
    }
}
