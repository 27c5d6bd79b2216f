//! Five nodes in one process, over real links: a story that checks itself.
//!
//! The last one is a client. In a network this small every server keeps every record, so a server that looks for one
//! finds it at home; a client keeps nothing, and has to ask.

use std::{
    error::Error,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use ron_core::{
    ContentId, Deadline, Supervisor,
    http::Server,
    net::{Endpoint, Identity},
    now,
};
use ron_dht::{Contact, Dht};
use ron_overlay::{Overlay, Subscription, Topic};
use ron_registry::{
    LogTrust, Name, Outcome, Policy, ProofFile, Registry, Signer, net::Links, store::MemoryStore,
};
use ron_storage::{
    Store,
    client::Client,
    fetch::{Fetcher, Finder as _},
    peers,
};

use crate::providers::ByDht;

const NODES: usize = 5;

/// All but the client.
const SERVERS: usize = NODES - 1;
const CLIENT: char = 'e';

/// An object.
const HELLO: &str = "hello, world";

struct Node {
    name: char,
    endpoint: Endpoint,
    dht: Dht,
    news: Topic,
    heard: Subscription,
    host: Supervisor,
}

/// Tells the story. Ends with an error at the first thing that does not hold.
pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let began = now();
    let mut nodes: Vec<Node> = Vec::new();
    for name in ('a'..).take(NODES) {
        let seeds = nodes.first().map(|first| first.dht.contact());
        nodes.push(start(name, seeds, name == CLIENT).await?);
    }
    for node in &nodes {
        ready(node).await?;
    }
    println!(
        "{NODES} nodes are up and know each other, over TLS 1.3 with post-quantum key exchange ({:.0?})",
        began.elapsed()
    );

    let server = serve(&nodes[1]).await?;
    let stored = server.store.put_bytes(HELLO.into(), soon()).await?;
    let content = stored.id;
    println!("b keeps {} bytes as {content} and serves them on {}/o/{content}", stored.len, server.url);
    let kept = provide(&nodes[1], content).await?;
    println!("b provides {content}; {kept} nodes keep its signed record");

    find(&nodes[4], content, &nodes[1]).await?;
    let fetched = fetch(&server.url, content).await?;
    expect(fetched == HELLO.as_bytes(), "what e fetches is what b stored")?;
    println!("e fetches it from b over HTTP and verifies it against its name");
    carry(&server.store, &nodes[1], &nodes[4], content).await?;
    govern(&nodes[1], &nodes[4], content).await?;
    let key = nodes[2].dht.put(b"a small value", soon()).await?;
    let value = nodes[4].dht.get(key, soon()).await?;
    expect(value == "a small value", "the value that e reads is the one that c wrote")?;
    println!("c stored a value and e read it: its hash is right");

    tell(&mut nodes, 0, "hello from a").await?;

    let killed = nodes.remove(0);
    killed.host.abort();
    println!("a, which all others had begun with, is killed");
    find(&nodes[3], content, &nodes[0]).await?;
    tell(&mut nodes, 1, "c is still here").await?;

    for node in &nodes {
        let stopped = node.host.shutdown().await;
        expect(stopped.aborted == 0, "every task ends by itself")?;
    }
    println!("all stopped, every task by itself; everything held ({:.1?})", began.elapsed());
    Ok(())
}

async fn start(name: char, seeds: Option<Contact>, is_client: bool) -> Result<Node, Box<dyn Error>> {
    let host = Supervisor::new(name);
    let endpoint =
        Endpoint::builder(Identity::generate()?).listen(([127, 0, 0, 1], 0).into()).start(&host)?;
    let dht = Dht::builder().seeds(seeds.clone());
    let dht = if is_client { dht.client() } else { dht }.start(&endpoint, &host).await?;
    let (id, addr) = (endpoint.node_id(), endpoint.local_addrs()[0]);
    println!("{name} is node {id} on {addr}{}", if is_client { ", a client" } else { "" });
    let overlay = Overlay::builder().start(&endpoint, &host).await?;
    let news = overlay.topic("news").join(seeds, soon()).await?;
    let heard = news.subscribe(soon()).await?;
    Ok(Node { name, endpoint, dht, news, heard, host })
}

/// Another node brings the object into a store of its own, from whoever the DHT says provides it.
async fn carry(store: &Store, node: &Node, other: &Node, content: ContentId) -> Result<(), Box<dyn Error>> {
    let served = peers::Links::start(&node.endpoint, &node.host)?;
    served.serve(store, peers::Rules::default());
    let own = Store::builder().memory().start(&other.host).await?;
    let fetcher = Fetcher::new(peers::Links::start(&other.endpoint, &other.host)?, &own);
    let providers = ByDht(other.dht.clone()).find(content, soon()).await;
    let fetched = fetcher.fetch(content, &providers, soon()).await?;
    let bytes = own.get_bytes(content, fetched.stored.len, soon()).await?;
    expect(bytes == HELLO.as_bytes(), "what is in the store of e is what b stored")?;
    println!("{} brings it into its own store over ron/blob/1, group by group verified", other.name);
    Ok(())
}

/// Two of three people decide what a name stands for; anybody can check that, and another node follows the log.
async fn govern(node: &Node, other: &Node, content: ContentId) -> Result<(), Box<dyn Error>> {
    let people = [Identity::generate()?, Identity::generate()?, Identity::generate()?];
    let signers = people.iter().zip(["ann", "bob", "cy"]).map(|(person, name)| Signer {
        name: name.to_owned(),
        key: person.public_key(),
        expires: None,
    });
    let registry = Registry::builder("demo.example/log", *blake3::hash(b"only for this story").as_bytes());
    let registry = registry.start(Arc::new(MemoryStore::new()), &node.host).await?;
    registry.found(Policy::of(2, signers.collect())?, soon()).await?;
    let name: Name = "greetings/hello".parse()?;
    let proposal = registry.draft_bind(name.clone(), content.into(), Duration::from_secs(3600))?;
    let proposed = registry.propose(proposal.clone(), soon()).await?;
    let Outcome::Pending { missing, .. } = proposed else { return Err("nobody was asked".into()) };
    println!(
        "{} proposes to its log that {name} is {content}; it waits for two of {}",
        node.name,
        missing.join(", ")
    );
    registry.approve(proposal.approve(&people[0], proposal.expires()), soon()).await?;
    let second = registry.approve(proposal.approve(&people[2], proposal.expires()), soon()).await?;
    let Outcome::Committed(receipt) = second else { return Err("two were not enough".into()) };

    // From here on with the key of the log and nothing else.
    let trust = LogTrust::new(registry.log_key());
    let entry = registry.entry(receipt.version, soon()).await?;
    let proof = registry.prove(receipt.version)?.to_string();
    ProofFile::parse(proof.as_bytes())?.verify(entry.encoded(), &trust)?;
    println!("ann and cy approve, it is version {}, and its proof holds offline", receipt.version);

    let served = Links::start(&node.endpoint, &node.host)?;
    served.serve(&registry, None);
    let links = Links::start(&other.endpoint, &other.host)?;
    let source = links.source(node.endpoint.node_id(), node.endpoint.local_addrs());
    let follower = Registry::follower(trust.clone(), source);
    let follower = follower.start(Arc::new(MemoryStore::new()), &other.host).await?;
    let mut updates = follower.updates(receipt.version);
    soon().limit("follow", updates.next()).await?.ok_or("the follower stopped")??;
    let latest = follower.name(&name)?.verify(&name, &trust)?;
    expect(latest.and_then(|latest| latest.content) == Some(content), "the follower knows the name")?;
    expect(follower.head() == registry.head(), "both have one log")?;
    println!("{} follows the log, checks every signature, and finds {name} in its own copy", other.name);
    follower.shutdown().await;
    registry.shutdown().await;
    Ok(())
}

/// Objects of a node, over HTTP.
struct Serving {
    store: Store,
    url: String,
    _server: Server,
}

async fn serve(node: &Node) -> Result<Serving, Box<dyn Error>> {
    let store = Store::builder().memory().start(&node.host).await?;
    let server = Server::builder(ron_storage::http::router(&store));
    let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&node.host).await?;
    let url = format!("http://{}", server.local_addrs()[0]);
    Ok(Serving { store, url, _server: server })
}

async fn fetch(url: &str, id: ContentId) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut fetch = Client::builder(url).build()?.get(id, .., soon()).await?;
    let mut content = Vec::new();
    while let Some(bytes) = fetch.next().await? {
        content.extend_from_slice(&bytes);
    }
    Ok(content)
}

async fn ready(node: &Node) -> Result<(), Box<dyn Error>> {
    let ready = async {
        let servers = if node.name == CLIENT { SERVERS } else { SERVERS - 1 };
        while !node.dht.ready().reads || node.dht.peers().len() < servers {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = Deadline::after(Duration::from_secs(10)).limit("ready", ready).await;
    in_time.map_err(|_| format!("{} is not ready: {:?}", node.name, node.dht.ready()))?;
    Ok(node.news.joined(soon()).await?)
}

/// Every other server is to keep the record. On a busy machine one may be too late for the first time it is said.
async fn provide(node: &Node, content: ContentId) -> Result<usize, Box<dyn Error>> {
    let mut kept = 0;
    for _ in 0..3 {
        kept = node.dht.provide(content, soon()).await?.kept;
        if kept == SERVERS - 1 {
            return Ok(kept);
        }
    }
    Err(format!("did not hold: all {} other servers keep the record, but {kept} do", SERVERS - 1).into())
}

async fn find(asker: &Node, content: ContentId, provider: &Node) -> Result<(), Box<dyn Error>> {
    let began = Instant::from(now());
    let mut found = asker.dht.find_providers(content, NonZeroUsize::MIN, soon())?;
    let first = found.next().await?.ok_or("nobody provides it")?;
    expect(first.id == provider.dht.node_id(), "the provider that is found is the one that provides")?;
    while found.next().await?.is_some() {}
    let asked = found.verdict().map_or(0, |verdict| verdict.rpcs);
    expect(asked > 0, "it was found by asking others")?;
    println!(
        "{} asks {asked} of the others and finds that {} provides it ({:.1?})",
        asker.name,
        provider.name,
        Instant::from(now()) - began
    );
    Ok(())
}

/// One node publishes, and every other one has to hear exactly that, once.
async fn tell(nodes: &mut [Node], publisher: usize, words: &'static str) -> Result<(), Box<dyn Error>> {
    let began = Instant::from(now());
    let receipt = nodes[publisher].news.publish(words, soon()).await?;
    let name = nodes[publisher].name;
    let mut heard = 0;
    for node in nodes.iter_mut().filter(|node| node.name != name) {
        let message = soon().limit("news", node.heard.next()).await??.ok_or("the topic has ended")?;
        expect(message.id() == receipt.id && message.payload() == words, "what is heard is what was said")?;
        heard += 1;
    }
    println!(
        "{name} publishes {words:?} and the {heard} others hear it ({:.1?})",
        Instant::from(now()) - began
    );
    Ok(())
}

fn expect(held: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if held { Ok(()) } else { Err(format!("did not hold: {what}").into()) }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}
