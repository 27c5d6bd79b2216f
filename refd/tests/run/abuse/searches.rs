//! Searches among peers who answer with a crowd that is not there, with addresses that nobody should dial, or not at all.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    NodeId,
    net::{
        Contact, Identity,
        rpc::{Fault, Handling, Request, Service},
    },
};
use ron_dht::{
    Key, ProviderRecord,
    network::{Answer, RecordOutcome as Outcome, Request as Asked},
};

use serde_json::Value;

use super::{
    json, node,
    peers::{PROTOCOLS, Peer, contact},
    records::{Asker, unix},
    status,
    town::{Manner, Town, identities},
    until,
};
use crate::{
    free_addrs,
    settings::{ANY_PORT, Configured},
};

/// Knows twenty nodes right beside whatever it is asked for, each time others, at addresses where nobody is.
struct Crowd {
    nowhere: [SocketAddr; 20],
    asked: AtomicU64,
    named: AtomicU64,
}

impl Crowd {
    fn beside(&self, target: &Key) -> Vec<Contact> {
        let contact = |_| {
            let number = self.named.fetch_add(1, Ordering::SeqCst);
            let mut id = *target.as_bytes();
            id[24..].copy_from_slice(&number.to_be_bytes());
            let addr = self.nowhere[number as usize % self.nowhere.len()];
            Contact { id: NodeId::from_bytes(id), addrs: [addr].into() }
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
    let crowd = Crowd { nowhere: free_addrs(), asked: AtomicU64::new(0), named: AtomicU64::new(0) };
    let (peer, crowd) = (Peer::new(), Arc::new(crowd));
    let _speaks = peer.serve(PROTOCOLS[0].0, Arc::clone(&crowd) as _);
    let seed = format!("{}@{}", peer.endpoint.node_id(), peer.endpoint.local_addrs()[0]);
    let node = Configured::start(&format!("{ANY_PORT}[dht]\nseeds = [{seed:?}]\n"));
    until("the liar is known", || {
        node.daemon.get("/dht/peers").contains(&peer.endpoint.node_id().to_string())
    });
    let dials = || node.sum("ron_core_dial_failures_total");
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

/// Case 29: a few name forty others, and all of those are silent. A search asks so many at a time and no more, others while they are
/// silent, and ends with its last question, whatever is still open.
#[test]
fn a_search_among_the_silent_keeps_to_its_budget() {
    const AT_ONCE: usize = 2 + 1;
    const MOST: usize = 16;
    let town = Town::new();
    let mut anybody = identities("anybody");
    let mut add = |manner| town.add(anybody.next().unwrap(), [127, 0, 0, 1], manner);
    let honest: Vec<_> = (0..8).map(|_| add(Manner::Honest)).collect();
    let budget = format!("alpha = 2\nbeta = 1\nhedge_after_ms = 100\nrequests_max = {MOST}\n");
    let seed = honest[0].contact();
    let node = node(&format!("[dht]\nseeds = [\"{seed}\"]\nrpc_timeout_ms = 30000\n{budget}"));
    node.daemon.eventually("/dht/status", |known| known.contains("\"peers\":8,"));
    let silent: Vec<_> = (0..40).map(|_| add(Manner::Silent)).collect();
    let mut most = 0;
    for number in 0..3_u8 {
        let key = Key::from_bytes([number; 32]);
        let answer = node.daemon.get(&format!("/dht/find_node/{key}?trace=1&timeout_ms=20000"));
        let told = json(&answer);
        let questions = told["verdict"]["trace"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let asked: usize = honest.iter().chain(&silent).map(|one| one.times_asked_for(&key)).sum();
        assert!(questions.len() <= MOST && asked <= MOST, "{asked}, {}: {answer}", questions.len());
        most = most.max(asked);
        let times = |question: &Value| {
            let began = question["at_ms"].as_f64().unwrap();
            (began, began + question["took_ms"].as_f64().unwrap_or(f64::INFINITY))
        };
        let times: Vec<(f64, f64)> = questions.iter().map(times).collect();
        // Of those that are open at once, the last to begin sees all.
        let open = |at: f64| times.iter().filter(|(began, ended)| *began <= at && at < *ended).count();
        let at_once = times.iter().map(|(began, _)| open(*began)).max().unwrap();
        println!("{asked} asked, {at_once} at once, {} hedges", told["verdict"]["hedges"]);
        assert!(at_once <= AT_ONCE, "{at_once} at once: {answer}");
        assert!(told["verdict"]["hedges"].as_u64() >= Some(1), "{answer}");
    }
    assert!(most > MOST / 2, "{most} show no budget");
    node.is_well();
}

/// Case 28: peers and providers at addresses that reach nobody in particular, one of which would reach a bystander on this machine.
/// They are dialled by nobody and passed on to nobody, wherever they are named. (That a public peer may not name those of this
/// house either is tried in the library: on one machine there is no public peer.)
#[test]
fn addresses_that_reach_nobody_are_neither_dialled_nor_named() {
    let town = Town::new();
    let seed = town.add(identities("seed").next().unwrap(), [127, 0, 0, 1], Manner::Honest);
    let node = node(&format!("[dht]\npreset = \"public\"\nseeds = [\"{}\"]\n", seed.contact()));
    let bystander = TcpListener::bind("127.0.0.1:0").unwrap();
    bystander.set_nonblocking(true).unwrap();
    let port = bystander.local_addr().unwrap().port();
    let nowhere = ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "224.0.0.1", "255.255.255.255", "[ff02::1]"];
    let nowhere = nowhere.map(|ip| format!("{ip}:{port}").parse::<SocketAddr>().unwrap());
    let mut strangers = identities("stranger");
    let mut name = |addrs: &[SocketAddr]| {
        town.names(Contact { id: strangers.next().unwrap().node_id(), addrs: addrs.into() });
    };
    (0..3).for_each(|_| nowhere.iter().for_each(|addr| name(&[*addr])));
    let before = node.sum("ron_core_dial_failures_total");
    let searches = || {
        for number in 0..5_u8 {
            let found = node.daemon.get(&format!("/dht/find_node/{}", Key::from_bytes([number; 32])));
            assert!(status(&found) == 200 && !found.contains(&nowhere[0].to_string()), "{found}");
        }
    };
    searches();
    let key = Key::from_bytes([28; 32]);
    let asker = Asker::new(contact(&node));
    let record = |seed: u8, addrs: &[SocketAddr]| {
        let hour = Duration::from_secs(3600);
        ProviderRecord::sign(&Identity::from_seed(&[seed; 32]), key, addrs, 1, unix(), hour).encoded().clone()
    };
    assert_eq!(asker.provide(vec![record(1, &nowhere)]), [Outcome::Invalid]);
    // Nobody has the addresses of examples either; and behind one of them there is one that can be dialled.
    let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let examples = ["192.0.2.1:9", "198.18.0.1:9", "[2001:db8::1]:9"].map(|addr| addr.parse().unwrap());
    let all = [&nowhere[..2], &examples, &[here]].concat();
    assert_eq!(asker.provide(vec![record(2, &all)]), [Outcome::Kept]);
    let found = node.daemon.get(&format!("/dht/providers/{key}"));
    assert!(found.contains(&format!("\"addrs\":[\"{here}\"]")), "{found}");
    assert!(node.daemon.get("/dht/status").contains("\"peers\":1,"));
    assert_eq!(node.sum("ron_core_dial_failures_total"), before);
    assert!(bystander.accept().is_err(), "the bystander was called");
    // At its own address it is.
    name(&[bystander.local_addr().unwrap()]);
    searches();
    until("the bystander is called", || bystander.accept().is_ok());
    node.is_well();
}
