//! The routing table among strangers: a town of peers in this process, each with a key and an address of its own, that answer
//! as they are told to.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use ron_core::{
    NodeId,
    net::{
        Contact, Identity,
        rpc::{Fault, Handling, Method, Peers, Request, Service},
    },
};
use ron_dht::{
    Key, ProviderRecord,
    network::{Answer, RecordOutcome as Outcome, Request as Asked},
};
use serde_json::Value;
use tokio::{runtime::Runtime, sync::Semaphore};

use super::{
    json, node,
    peers::{PROTOCOLS, Peer, contact, runtime, soon},
    until,
};
use crate::{Daemon, settings::Configured};

/// Peers that one names.
const K: usize = 20;

/// How somebody answers.
#[derive(Clone)]
pub(super) enum Manner {
    /// Names those of the town who are nearest, and keeps what it is given.
    Honest,
    /// The same, but does not say that it is there until this is given leave.
    Later(Arc<Semaphore>),
    /// Says that it keeps what it is given, and does not.
    Forgetful,
    /// Says that it is there, and answers no question.
    Silent,
}

/// What one of the town does and knows.
struct Mind {
    manner: Manner,
    town: Arc<Mutex<Vec<Contact>>>,
    records: Mutex<Vec<Bytes>>,
    /// How often it was asked whether it is there.
    pinged: AtomicU64,
    /// What it was asked for beside that.
    asked: Mutex<Vec<Key>>,
}

impl Mind {
    fn nearest(&self, target: &Key) -> Vec<Contact> {
        let mut all = self.town.lock().unwrap().clone();
        all.sort_by_key(|contact| target.distance(&contact.id));
        all.truncate(K);
        all
    }

    fn answer(&self, asked: Asked) -> Result<Answer, Fault> {
        let kept = |count| vec![Outcome::Kept; count];
        match asked {
            Asked::Ping { .. } => Ok(Answer::Pong),
            Asked::FindNode { target } => Ok(Answer::Nodes { closer: self.nearest(&target) }),
            Asked::FindValue { key, .. } => {
                let records = self.records.lock().unwrap().clone();
                let is_of = |record: &Bytes| ProviderRecord::decode(record).is_ok_and(|one| one.key() == key);
                let providers = records.into_iter().filter(is_of).collect();
                Ok(Answer::Found { closer: self.nearest(&key), providers, value: None })
            }
            Asked::Provide { records } => {
                let results = kept(records.len());
                if !matches!(self.manner, Manner::Forgetful) {
                    self.records.lock().unwrap().extend(records);
                }
                Ok(Answer::Provided { results })
            }
            Asked::Store { values } => Ok(Answer::Stored { results: kept(values.len()) }),
        }
    }
}

/// A service is shared with the peers that it is asked by.
struct Says(Arc<Mind>);

impl Service for Says {
    fn call(&self, request: Request) -> Handling {
        let Ok(asked) = Asked::decode(request.method(), request.body()) else {
            return Handling::Done(Err(Fault::bad_request("no")));
        };
        let is_ping = matches!(asked, Asked::Ping { .. });
        match &asked {
            Asked::Ping { .. } => drop(self.0.pinged.fetch_add(1, Ordering::SeqCst)),
            Asked::FindNode { target: key } | Asked::FindValue { key, .. } => {
                self.0.asked.lock().unwrap().push(*key);
            }
            Asked::Provide { .. } | Asked::Store { .. } => {}
        }
        let mind = Arc::clone(&self.0);
        let answer = move || mind.answer(asked).map(|answer| answer.encode().1);
        match &self.0.manner {
            Manner::Silent if !is_ping => Handling::Pending(Box::pin(std::future::pending())),
            Manner::Later(leave) if is_ping => {
                let leave = Arc::clone(leave);
                Handling::Pending(Box::pin(async move {
                    let _ = leave.acquire().await;
                    answer()
                }))
            }
            _ => Handling::Done(answer()),
        }
    }
}

/// One of the town.
pub(super) struct Citizen {
    mind: Arc<Mind>,
    dht: Peers,
    peer: Peer,
}

impl Citizen {
    fn id(&self) -> NodeId {
        self.peer.endpoint.node_id()
    }

    pub(super) fn contact(&self) -> Contact {
        self.peer.contact()
    }

    /// Calls a node, and says that it takes calls itself.
    fn introduces_itself(&self, to: &Contact) {
        let (number, body) = Asked::Ping { listening: self.contact().addrs.to_vec() }.encode();
        let call = Method { number, name: "ping" };
        self.peer.runtime.block_on(self.dht.call(to.id, &to.addrs, call, body, soon())).unwrap();
    }

    fn was_pinged(&self) -> bool {
        self.mind.pinged.load(Ordering::SeqCst) > 0
    }

    /// How often it was asked for anything, or for this.
    fn times_asked(&self) -> usize {
        self.mind.asked.lock().unwrap().len()
    }

    pub(super) fn times_asked_for(&self, wanted: &Key) -> usize {
        self.mind.asked.lock().unwrap().iter().filter(|key| *key == wanted).count()
    }
}

/// Peers that know each other.
pub(super) struct Town {
    runtime: Arc<Runtime>,
    known: Arc<Mutex<Vec<Contact>>>,
}

impl Town {
    pub(super) fn new() -> Town {
        Town { runtime: runtime(), known: Arc::default() }
    }

    /// One more of them, whom the others name from now on.
    pub(super) fn add(&self, identity: Identity, ip: [u8; 4], manner: Manner) -> Citizen {
        let citizen = self.stranger(identity, ip, manner);
        self.names(citizen.contact());
        citizen
    }

    /// Lets everybody name somebody, whether it is there or not.
    pub(super) fn names(&self, contact: Contact) {
        self.known.lock().unwrap().push(contact);
    }

    /// One whom nobody names.
    fn stranger(&self, identity: Identity, ip: [u8; 4], manner: Manner) -> Citizen {
        let peer = Peer::on(&self.runtime, identity, SocketAddr::from((ip, 0)));
        let mind = Arc::new(Mind {
            manner,
            town: Arc::clone(&self.known),
            records: Mutex::default(),
            pinged: AtomicU64::new(0),
            asked: Mutex::default(),
        });
        let dht = peer.serve(PROTOCOLS[0].0, Arc::new(Says(Arc::clone(&mind))));
        Citizen { mind, dht, peer }
    }
}

/// Keys without an end, the same in every run.
pub(super) fn identities(of: &str) -> impl Iterator<Item = Identity> + use<> {
    let of = *blake3::hash(of.as_bytes()).as_bytes();
    (0..u64::MAX)
        .map(move |number| Identity::from_seed(blake3::keyed_hash(&of, &number.to_le_bytes()).as_bytes()))
}

/// Those that a node keeps in this bucket of its table.
fn in_bucket(own: NodeId, bucket: u32) -> impl Iterator<Item = Identity> {
    let is_there = move |identity: &Identity| own.distance(&identity.node_id()).leading_zeros() == bucket;
    identities("anybody").filter(is_there)
}

/// The table of a node: who, and where.
fn table(daemon: &Daemon) -> Vec<(NodeId, IpAddr)> {
    let peers = json(&daemon.get("/dht/peers"));
    let parsed = |peer: &Value| {
        let addr: SocketAddr = peer["addrs"][0].as_str().unwrap().parse().unwrap();
        (peer["id"].as_str().unwrap().parse().unwrap(), addr.ip())
    };
    peers.as_array().unwrap().iter().map(parsed).collect()
}

fn ids(daemon: &Daemon) -> HashSet<NodeId> {
    table(daemon).into_iter().map(|(id, _)| id).collect()
}

/// Asks for somebody by its name, to whom nobody is nearer: whoever is known is asked.
fn looks_for(node: &Configured, id: NodeId) {
    node.daemon.get(&format!("/dht/find_node/{id}"));
}

/// Case 18: thirty-two peers of one network, all of which answer, and sixteen of networks of their own.
#[test]
fn one_network_gets_a_few_places_in_the_table() {
    let town = Town::new();
    let seed = town.add(identities("seed").next().unwrap(), [127, 0, 0, 1], Manner::Honest);
    let node = node(&format!("[dht]\npreset = \"public\"\nseeds = [\"{}\"]\n", seed.contact()));
    let own = contact(&node).id;
    let (mut crowd, mut others) = (Vec::new(), Vec::new());
    for bucket in 0..8_u8 {
        let mut fitting = in_bucket(own, bucket.into());
        let mut add = |ip| town.add(fitting.next().unwrap(), ip, Manner::Honest);
        crowd.extend((0..4).map(|number| add([127, 0, 7, 1 + 4 * bucket + number])));
        others.extend((0..2).map(|number| add([127, 0, 20 + 2 * bucket + number, 1])));
    }
    for citizen in crowd.iter().chain(&others) {
        looks_for(&node, citizen.id());
        assert!(citizen.times_asked() > 0, "nobody asked {}", citizen.id());
    }
    let is_of_the_crowd = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [127, 0, 7]);
    // What is known of who answered is written down a moment later.
    until("all others are in the table", || {
        let held = ids(&node.daemon);
        others.iter().all(|citizen| held.contains(&citizen.id()))
    });
    until("the crowd has its share", || {
        table(&node.daemon).iter().filter(|(_, ip)| is_of_the_crowd(ip)).count() >= 10
    });
    let held: Vec<NodeId> =
        table(&node.daemon).into_iter().filter(|(_, ip)| is_of_the_crowd(ip)).map(|(id, _)| id).collect();
    assert_eq!(held.len(), 10, "{held:?}");
    for bucket in 0..8 {
        let there = held.iter().filter(|id| own.distance(*id).leading_zeros() == bucket).count();
        assert!(there <= 2, "{there} in bucket {bucket}");
    }
    node.is_well();
}

/// Case 19: a hundred hostile peers call a node while it waits for its seed, and answer whatever they are asked. It looks for others
/// itself first, and they get the places that nobody else wants.
#[test]
fn who_calls_first_and_most_does_not_get_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let own = Identity::load_or_create(dir.path().join("node.key")).unwrap().node_id();
    let (town, leave) = (Town::new(), Arc::new(Semaphore::new(0)));
    let later = Manner::Later(Arc::clone(&leave));
    let seed = town.add(identities("seed").next().unwrap(), [127, 0, 0, 1], later);
    let (mut honest, mut hostile) = (Vec::new(), Vec::new());
    // Twenty places a bucket; the seed has one of them.
    for (bucket, of_honest, of_hostile) in [(0, 19, 50), (1, 19, 30), (2, 0, 20)] {
        for (number, one) in in_bucket(own, bucket).take(of_honest + of_hostile).enumerate() {
            match number < of_honest {
                true => honest.push(town.add(one, [127, 0, 0, 1], Manner::Honest)),
                false => hostile.push(town.stranger(one, [127, 0, 0, 1], Manner::Honest)),
            }
        }
    }
    let patient = [("REFD_DHT__RPC_TIMEOUT_MS", "60000")];
    let node = Daemon::start_with(dir.path(), &["--seed", &seed.contact().to_string()], &patient);
    until("it asks its seed", || seed.was_pinged());
    let to = node.seed.parse().unwrap();
    hostile.iter().for_each(|citizen| citizen.introduces_itself(&to));
    leave.add_permits(Semaphore::MAX_PERMITS);
    until("all who called were called back", || hostile.iter().all(Citizen::was_pinged));
    let held_of = |all: &[Citizen]| {
        let held = ids(&node);
        all.iter().filter(|citizen| held.contains(&citizen.id())).count()
    };
    until("it has found the others", || held_of(&honest) == honest.len());
    let (taken, all) = (held_of(&hostile), ids(&node).len());
    println!("{taken} of {} hostile ones are in the table, of {all}", hostile.len());
    assert!(taken >= K && 2 * taken <= all, "{taken} of {all}");
    node.terminate();
}

/// Case 20: three times as many newcomers as a bucket has places, in waves, all of which answer and then go. Nobody who goes on
/// answering loses its place to them; one who does not loses it to the next who does.
#[test]
fn newcomers_that_come_and_go_displace_nobody() {
    let town = Town::new();
    let node = node("");
    let to = contact(&node);
    let mut fitting = in_bucket(to.id, 0);
    let mut strangers = |count| -> Vec<Citizen> {
        let wave = fitting.by_ref().take(count);
        wave.map(|one| town.stranger(one, [127, 0, 0, 1], Manner::Honest)).collect()
    };
    let mut old = strangers(K);
    let all_are_in = |all: &[Citizen]| {
        let held = ids(&node.daemon);
        all.iter().all(|citizen| held.contains(&citizen.id()))
    };
    for citizen in &old {
        citizen.introduces_itself(&to);
    }
    until("the bucket is full", || all_are_in(&old));
    for _ in 0..3 {
        let wave = strangers(K);
        for citizen in &wave {
            citizen.introduces_itself(&to);
        }
        until("all of them have answered", || wave.iter().all(Citizen::was_pinged));
        // They are known, and wait.
        assert!(all_are_in(&old));
        drop(wave);
        // While they go, somebody looks for them.
        looks_for(&node, old[0].id());
        assert!(all_are_in(&old));
    }
    assert_eq!(ids(&node.daemon).len(), K);

    let next = strangers(1).remove(0);
    next.introduces_itself(&to);
    until("it has answered", || next.was_pinged());
    let gone = old.pop().unwrap();
    let gone_id = gone.id();
    drop(gone);
    until("who is gone is replaced", || {
        looks_for(&node, gone_id);
        ids(&node.daemon).contains(&next.id())
    });
    assert!(all_are_in(&old) && !ids(&node.daemon).contains(&gone_id));
    node.is_well();
}

/// Case 21: twenty names that were made until they lay next to that of an object, of peers that forget what they are given. Among
/// a hundred who were there before nobody is as near, and so many are too many: who provides the object is told to others all the
/// same, and found with them.
#[test]
fn a_provider_behind_a_made_up_neighbourhood_is_found() {
    /// Leading bits that they share with it: one name of 256 does.
    const GROUND: u32 = 8;
    let town = Town::new();
    let key = Key::from_bytes(*blake3::hash(b"wanted").as_bytes());
    let is_ground = |identity: &Identity| key.distance(&identity.node_id()).leading_zeros() >= GROUND;
    let honest: Vec<Citizen> = identities("honest")
        .filter(|identity| !is_ground(identity))
        .take(100)
        .map(|identity| town.add(identity, [127, 0, 0, 1], Manner::Honest))
        .collect();
    // They look around again and again, which is how they learn how many there are.
    let settings = format!("[dht]\nrefresh_ms = 200\nseeds = [\"{}\"]\n", honest[0].contact());
    let [provides, looks] = [&settings, &settings].map(|settings| node(settings));
    for node in [&provides, &looks] {
        until("it has looked around often", || node.count("ron_dht_lookups_total{reason=\"complete\"}") > 60);
    }
    let ground: Vec<Citizen> = identities("ground")
        .filter(is_ground)
        .take(K)
        .map(|identity| town.add(identity, [127, 0, 0, 1], Manner::Forgetful))
        .collect();
    let provided = provides.allowed("POST", &format!("/dht/provide/{key}"), "", b"");
    assert_eq!(super::status(&provided), 200, "{provided}");
    let asked = |all: &[Citizen]| all.iter().filter(|citizen| citizen.times_asked_for(&key) > 0).count();
    assert_eq!(asked(&ground), K, "they are the nearest");
    let found = looks.daemon.get(&format!("/dht/providers/{key}?limit=1"));
    let provider = contact(&provides).id.to_string();
    assert!(found.contains(&provider), "{found}");
    provides.is_well();
    looks.is_well();
}
