//! Nodes over real links on the loopback interface.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{
    ConfigError, ContentId, Deadline, LaneSpec, NodeId, Supervisor,
    net::{
        Endpoint, Identity,
        rpc::{self, Handling, Peers, PeersSettings, Protocol, Service},
    },
};
use ron_dht::{
    Contact, Dht, DhtError, Key, Settings,
    network::{ALPN, Answer, Request},
};

const ONE: NonZeroUsize = NonZeroUsize::MIN;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

struct Net {
    nodes: Vec<(Dht, Supervisor)>,
}

impl Net {
    async fn of(count: usize) -> Net {
        let mut net = Net { nodes: Vec::new() };
        for _ in 0..count {
            net.add().await;
        }
        for (dht, _) in &net.nodes {
            ready(dht).await;
        }
        net
    }

    async fn add(&mut self) -> usize {
        let host = Supervisor::new("node");
        let endpoint =
            Endpoint::builder(Identity::generate().unwrap()).listen("127.0.0.1:0".parse().unwrap());
        let endpoint = endpoint.start(&host).unwrap();
        let seeds: Vec<Contact> = self.nodes.first().map(|(dht, _)| dht.contact()).into_iter().collect();
        let dht = Dht::builder().seeds(seeds).start(&endpoint, &host).await.unwrap();
        self.nodes.push((dht, host));
        self.nodes.len() - 1
    }

    fn node(&self, number: usize) -> &Dht {
        &self.nodes[number].0
    }

    async fn stop(self) {
        for (_, host) in &self.nodes {
            host.shutdown().await;
        }
    }
}

async fn ready(dht: &Dht) {
    let ready = async {
        while !dht.ready().reads {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ready)
        .await
        .unwrap_or_else(|_| panic!("{:?}", dht.ready()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_find_each_other_and_what_they_provide() {
    let mut net = Net::of(5).await;
    let content = ContentId::of(b"hello");
    let published = net.node(1).provide(content, soon()).await.unwrap();
    assert_eq!((published.kept, published.asked), (4, 4));

    let mut found = net.node(3).find_providers(content, ONE, soon()).unwrap();
    let provider = found.next().await.unwrap().unwrap();
    assert_eq!(provider.id, net.node(1).node_id());
    assert_eq!(found.next().await, Ok(None));
    println!("{:?}", found.verdict());

    let closest = net.node(2).find_node(net.node(4).node_id(), soon()).await.unwrap();
    assert_eq!(closest.peers[0].id, net.node(4).node_id());

    let key = net.node(0).put(b"some value", soon()).await.unwrap();
    assert_eq!(net.node(4).get(key, soon()).await.unwrap(), "some value");
    net.node(0).put_mutable(b"profile", b"one", 1, None, soon()).await.unwrap();
    let conflict = net.node(0).put_mutable(b"profile", b"two", 2, Some(7), soon()).await.unwrap_err();
    assert_eq!(conflict, DhtError::Conflict { held: 1 });
    net.node(0).put_mutable(b"profile", b"two", 2, Some(1), soon()).await.unwrap();
    let public_key = net.nodes[0].0.public_key();
    assert_eq!(net.node(3).get_mutable(&public_key, b"profile", soon()).await.unwrap().data(), "two");

    let (_, host) = net.nodes.remove(4);
    host.shutdown().await;
    let mut found = net.node(2).find_providers(content, ONE, soon()).unwrap();
    assert_eq!(found.next().await.unwrap().unwrap().id, net.node(1).node_id());
    net.node(1).withdraw(content, soon()).await.unwrap();
    let mut found = net.node(0).find_providers(content, ONE, soon()).unwrap();
    assert_eq!(found.next().await, Ok(None));
    net.stop().await;
}

/// Among so few, every server keeps every record and finds it at home. A client keeps nothing and has to ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_finds_by_asking_also_after_its_seed_has_died() {
    let mut net = Net::of(4).await;
    let content = ContentId::of(b"asked for");
    net.node(1).provide(content, soon()).await.unwrap();
    let host = Supervisor::new("client");
    let endpoint = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let client =
        Dht::builder().client().seeds([net.node(0).contact()]).start(&endpoint, &host).await.unwrap();
    ready(&client).await;
    for _ in 0..2 {
        let mut found = client.find_providers(content, ONE, soon()).unwrap();
        let provider = net.nodes.iter().rev().nth(2).unwrap().0.node_id();
        assert_eq!(found.next().await.unwrap().unwrap().id, provider);
        assert_eq!(found.next().await, Ok(None));
        assert!(found.verdict().unwrap().rpcs > 0, "{:?}", found.verdict());
        if net.nodes.len() == 4 {
            let (_, seed) = net.nodes.remove(0);
            seed.abort();
        }
    }
    host.shutdown().await;
    net.stop().await;
}

#[tokio::test]
async fn alone_there_is_nobody_to_ask() {
    let net = Net::of(1).await;
    let refused = net.node(0).find_node(ContentId::of(b"x"), soon()).await.unwrap_err();
    assert_eq!(refused, DhtError::NotReady { gate: "dht.seeds" });
    let waited = net.node(0).joined(Deadline::after(Duration::from_millis(1))).await.unwrap_err();
    assert!(waited.to_string().starts_with("join (no seed has answered and nobody has come;"), "{waited}");
    net.stop().await;
}

/// A node of `identity` on a free port, which closes links that nobody used for a while.
async fn restless(identity: &Identity, seeds: Vec<Contact>) -> (Dht, Supervisor) {
    let host = Supervisor::new("node");
    let endpoint = Endpoint::builder(identity.clone()).listen("127.0.0.1:0".parse().unwrap());
    let settings = Settings { idle_timeout: Duration::from_millis(300), ..Settings::default() };
    let dht = Dht::builder().settings(settings).seeds(seeds);
    (dht.start(&endpoint.start(&host).unwrap(), &host).await.unwrap(), host)
}

/// Peers kept the address that they had first heard, whatever the node said later, and told it to others for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_at_another_address_is_found_there() {
    let identities: Vec<Identity> = (0..3).map(|_| Identity::generate().unwrap()).collect();
    let (first, first_host) = restless(&identities[0], vec![]).await;
    let (second, second_host) = restless(&identities[1], vec![first.contact()]).await;
    let (mover, mover_host) = restless(&identities[2], vec![first.contact()]).await;
    let knows = async |dht: &Dht, contact: Contact| {
        let known = async {
            while !dht.peers().iter().any(|entry| entry.contact == contact) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let known = tokio::time::timeout(Duration::from_secs(60), known).await;
        known.unwrap_or_else(|_| panic!("{contact} among {:?}", dht.peers()));
    };
    for dht in [&first, &second] {
        knows(dht, mover.contact()).await;
    }
    let before = mover.contact();
    // It has run for a while: what a node says of itself is looked into once in some seconds.
    tokio::time::sleep(Duration::from_secs(4)).await;
    mover_host.shutdown().await;
    let (mover, mover_host) = restless(&identities[2], vec![first.contact()]).await;
    assert_ne!(mover.contact(), before);
    for dht in [&first, &second] {
        knows(dht, mover.contact()).await;
    }
    // Past the time after which links close, so that it has to be dialled.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (third, third_host) =
        restless(&Identity::generate().unwrap(), vec![first.contact(), second.contact()]).await;
    third.joined(soon()).await.unwrap();
    let found = third.find_node(mover.node_id(), soon()).await.unwrap();
    assert_eq!(found.peers[0], mover.contact());
    for host in [third_host, mover_host, second_host, first_host] {
        host.shutdown().await;
    }
}

#[tokio::test]
async fn a_server_without_an_address_is_told_so_and_a_client_stays_one() {
    let host = Supervisor::new("node");
    let endpoint = || Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
    let refused = Dht::builder().start(&endpoint(), &host).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "settings: external is no address, allowed is an address that others can dial: listen, set external, or be a \
         client()"
    );
    let client = Dht::builder().client().settings(Settings::default());
    let client = client.start(&endpoint(), &host).await.unwrap();
    assert!(!client.settings().server);
    let twice = {
        let endpoint = endpoint();
        let _first = Dht::builder().client().start(&endpoint, &host).await.unwrap();
        Dht::builder().client().start(&endpoint, &host).await.unwrap_err()
    };
    assert_eq!(twice.to_string(), "endpoint: it has a DHT already; one node is one endpoint");
    host.shutdown().await;
}

#[tokio::test]
async fn a_server_that_listens_everywhere_has_to_say_where_it_is() {
    let host = Supervisor::new("node");
    let endpoint = || {
        let everywhere = "0.0.0.0:0".parse().unwrap();
        Endpoint::builder(Identity::generate().unwrap()).listen(everywhere).start(&host).unwrap()
    };
    let refused = Dht::builder().start(&endpoint(), &host).await.unwrap_err();
    assert!(
        matches!(refused, DhtError::Config(ConfigError::OutOfRange { key: "external", .. })),
        "{refused:?}"
    );
    let told = Dht::builder().external(["127.0.0.1:4710".parse().unwrap()]);
    assert!(told.start(&endpoint(), &host).await.is_ok());
    let client = Dht::builder().settings(Settings { server: false, ..Settings::default() });
    assert!(client.start(&endpoint(), &host).await.is_ok());
    host.shutdown().await;
}

/// Speaks the protocol, and names twenty new neighbours of whatever it is asked about, all where `victim` is.
struct Liar {
    victim: SocketAddr,
    names: AtomicU32,
}

impl Liar {
    fn crowd(&self, target: &Key) -> Vec<Contact> {
        let name = |_| {
            let mut id = *target.as_bytes();
            let number = self.names.fetch_add(1, Ordering::Relaxed);
            id[28..].copy_from_slice(&number.to_be_bytes());
            Contact { id: NodeId::from_bytes(id), addrs: [self.victim].into() }
        };
        (0..20).map(name).collect()
    }
}

impl Service for Liar {
    fn call(&self, call: rpc::Request) -> Handling {
        let answer = match Request::decode(call.method(), call.body()).unwrap() {
            Request::FindNode { target } => Answer::Nodes { closer: self.crowd(&target) },
            Request::FindValue { key, .. } => {
                Answer::Found { closer: self.crowd(&key), providers: Vec::new(), value: None }
            }
            _ => Answer::Pong,
        };
        Handling::Done(Ok(answer.encode().1))
    }
}

/// Whoever is asked may name anybody, anywhere. Somebody who has nothing to do with the DHT was called for each of the
/// names that a liar gave it, in every search.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_called_for_names_that_others_made_up() {
    let (host, calls) = (Supervisor::new("node"), Arc::new(AtomicUsize::new(0)));
    let victim = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, called) = (victim.local_addr().unwrap(), Arc::clone(&calls));
    #[allow(clippy::disallowed_methods, reason = "somebody else's program")]
    tokio::spawn(async move {
        while victim.accept().await.is_ok() {
            called.fetch_add(1, Ordering::Relaxed);
        }
    });

    const LINKS: LaneSpec = LaneSpec::new("test", "links", 16);
    let protocol = Protocol { alpn: ALPN, proto: 1, links: LINKS };
    let listen = || Endpoint::builder(Identity::generate().unwrap()).listen("127.0.0.1:0".parse().unwrap());
    let liar = listen().start(&host).unwrap();
    let lies = Arc::new(Liar { victim: address, names: AtomicU32::new(0) });
    let _lying = Peers::start(&liar, protocol, lies.clone(), PeersSettings::default(), &host).unwrap();
    let seed = Contact { id: liar.node_id(), addrs: liar.local_addrs().into() };
    let dht = Dht::builder().seeds([seed]).start(&listen().start(&host).unwrap(), &host).await.unwrap();
    let knows = async {
        while dht.peers().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), knows).await.unwrap();

    let began = ron_core::now();
    for number in 0..20_u8 {
        dht.find_node(ContentId::of(&[number]), soon()).await.unwrap();
    }
    let seconds = began.elapsed().as_secs() as usize;
    let (named, calls) = (lies.names.load(Ordering::Relaxed), calls.load(Ordering::Relaxed));
    assert!(named >= 400, "{named}");
    assert!((1..=2 + seconds / 3).contains(&calls), "{calls} calls in {seconds} s");
    host.shutdown().await;
}
