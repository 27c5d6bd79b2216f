//! A few whole nodes in one process, over real links and on a real disk: a story that checks itself.
//!
//! The last one is a client. In a network this small every server keeps every record, so a server that looks for one
//! finds it at home; a client keeps nothing, and has to ask.

mod keeping;

use std::{
    error::Error,
    fs::{self, OpenOptions},
    io::{Seek as _, SeekFrom, Write as _},
    net::SocketAddr,
    num::NonZeroUsize,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, value_parser};
use ron_core::{
    ContentId, Deadline,
    net::{Contact, Identity},
    now,
};
use ron_overlay::{Subscription, Topic};
use ron_registry::{LogTrust, Name, Outcome, Policy, ProofFile, Signer};
use ron_storage::{
    client::Client,
    fetch::{Fetcher, Finder as _},
};

use crate::{
    assembly::{self, Running},
    config::Config,
    life::{Ended, Stops},
    providers::ByDht,
};

/// An object, and what it is called.
const HELLO: &str = "hello, world";
const NAME: &str = "greetings/hello";

/// What one step may take. All of them together take about two seconds, and minutes if the machine is compiling something
/// meanwhile; longer than this is something that does not hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is shown.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// How many nodes there are, 3 to 9.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// Lets the nodes run until Ctrl-C, with lines to try on them, and leaves what they kept.
    #[arg(long)]
    keep: bool,
    /// Flips a bit of the object on a disk, to see that the demo notices and fails.
    #[arg(long)]
    damage: bool,
}

struct Node {
    name: char,
    url: String,
    data: PathBuf,
    parts: Running,
    news: Topic,
    heard: Subscription,
}

impl Node {
    fn contact(&self) -> Contact {
        self.parts.dht.contact()
    }
}

/// Tells the story. Ends with an error at the first thing that does not hold.
pub(crate) async fn run(request: Request) -> Result<(), Box<dyn Error>> {
    let mut stops = Stops::new()?;
    let folder = Folder::new(request.keep)?;
    let mut nodes = Vec::new();
    tokio::select! {
        told = story(&request, &folder.0, &mut nodes) => told?,
        () = stops.next() => return Err("stopped before everything was shown".into()),
    }
    if request.keep {
        keep(&nodes, &folder.0, &mut stops).await?;
    }
    let draining = async {
        for node in &nodes {
            let stopped = node.parts.host.shutdown().await;
            expect(stopped.aborted == 0, "every task ends by itself")?;
        }
        Ok::<_, Box<dyn Error>>(())
    };
    tokio::select! {
        drained = draining => drained?,
        () = stops.again() => return Err(Ended::CutOff.into()),
    }
    println!("all stopped, every task by itself");
    Ok(())
}

async fn story(request: &Request, folder: &Path, nodes: &mut Vec<Node>) -> Result<(), Box<dyn Error>> {
    let began = now();
    let count = usize::from(request.nodes);
    for name in ('a'..).take(count) {
        // The client follows the log of the second.
        let is_client = nodes.len() == count - 1;
        let node = start(name, folder, nodes.first(), nodes.get(1).filter(|_| is_client)).await?;
        nodes.push(node);
    }
    for node in &*nodes {
        ready(node, count - 1).await?;
    }
    println!(
        "{count} nodes are up and know each other, over TLS 1.3 with post-quantum key exchange ({:.0?})",
        began.elapsed()
    );

    let [_, b, .., last] = &nodes[..] else { return Err("there are at least three".into()) };
    let stored = b.parts.store.put_bytes(HELLO.into(), soon()).await?;
    let content = stored.id;
    println!("{} keeps {} bytes as {content} and serves them on {}/o/{content}", b.name, stored.len, b.url);
    let kept = provide(b, content, count - 2).await?;
    println!("{} provides {content}; {kept} nodes keep its signed record", b.name);
    if request.damage {
        damage(&b.data.join("store"), HELLO.as_bytes())?;
        println!("a bit of it is flipped on the disk of {}", b.name);
    }

    find(last, content, b).await?;
    let fetched = fetch(&b.url, content).await?;
    let first_get = began.elapsed();
    expect(fetched == HELLO.as_bytes(), "what the client fetches is what was stored")?;
    println!(
        "{} fetches it from {} over HTTP and verifies it against its name; the first verified GET, {first_get:.1?} \
         after the start",
        last.name, b.name
    );
    govern(b, last, content).await?;
    resolve(b, last, content).await?;
    carry(last, content).await?;
    let writer = &nodes[count - 2];
    let key = writer.parts.dht.put(b"a small value", soon()).await?;
    let value = last.parts.dht.get(key, soon()).await?;
    expect(value == "a small value", "the value that is read is the one that was written")?;
    println!("{} stored a value and {} read it: its hash is right", writer.name, last.name);

    tell(nodes, 0, "hello from a").await?;

    let shared = keeping::put(nodes).await?;
    let killed = nodes.remove(0);
    killed.parts.host.abort();
    println!("a, which all others had begun with, is killed");
    keeping::restored(nodes, &shared).await?;
    let [b, .., last] = &nodes[..] else { return Err("there are at least two left".into()) };
    find(last, content, b).await?;
    tell(nodes, 1, "we are still here").await?;
    println!(
        "everything held: {count} nodes, one of them killed, first verified GET after {first_get:.1?}, {:.1?} in all",
        began.elapsed()
    );
    Ok(())
}

/// What a person can try on the nodes, until they have seen enough. A node that fails ends it.
async fn keep(nodes: &[Node], folder: &Path, stops: &mut Stops) -> Result<(), Box<dyn Error>> {
    let [b, .., last] = nodes else { return Err("there are at least two left".into()) };
    let content = ContentId::of(HELLO.as_bytes());
    let token = b.parts.token.path().display();
    println!("\nthe nodes go on until Ctrl-C. Try, in another terminal:");
    println!("  curl -sf {}/o/{content}", b.url);
    println!("  curl -sf {}/resolve/{NAME}", last.url);
    println!("  curl -sf {}/registry/head", last.url);
    println!("  curl -sf '{}/dht/providers/{content}?limit=1'", last.url);
    println!("  curl -sf {}/o -H \"Authorization: Bearer $(cat {token})\" --data-binary 'some words'", b.url);
    println!("  refd ls --node {} --data-dir {}", b.url, b.data.display());
    println!("  refd repair status --node {} --data-dir {}", b.url, b.data.display());
    println!("or look at {}/ in a browser. What the nodes keep is in {}", last.url, folder.display());
    let mut failing: Vec<_> = nodes.iter().map(|node| Box::pin(node.parts.host.fatal())).collect();
    let failed = std::future::poll_fn(|cx| {
        let mut ready = failing.iter_mut().map(|fatal| fatal.as_mut().poll(cx));
        ready.find(std::task::Poll::is_ready).unwrap_or(std::task::Poll::Pending)
    });
    tokio::select! {
        () = stops.next() => {
            println!("stopping");
            Ok(())
        }
        fatal = failed => Err(Ended::Failed(fatal).into()),
    }
}

/// A place for all that the nodes keep, for this user only. It goes with the demo unless it is to stay.
struct Folder(PathBuf, bool);

impl Folder {
    fn new(stays: bool) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("refd-demo-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path, stays))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.1 {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Flips a bit of `what` in the file under `dir` that has it.
fn damage(dir: &Path, what: &[u8]) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if damage(&path, what).is_ok() {
                return Ok(());
            }
            continue;
        }
        let Some(at) = fs::read(&path)?.windows(what.len()).position(|bytes| bytes == what) else { continue };
        let mut file = OpenOptions::new().write(true).open(&path)?;
        file.seek(SeekFrom::Start(at as u64))?;
        file.write_all(&[what[0] ^ 1])?;
        return Ok(());
    }
    Err(format!("nothing under {} has it", dir.display()).into())
}

async fn start(
    name: char,
    folder: &Path,
    first: Option<&Node>,
    follows: Option<&Node>,
) -> Result<Node, Box<dyn Error>> {
    let mut config = Config::default();
    let data = folder.join(name.to_string());
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    config.node.data_dir = Some(data.clone());
    (config.net.listen, config.admin.listen) = (vec![anywhere], anywhere);
    config.dht.seeds = first.map(|first| first.contact().to_string()).into_iter().collect();
    config.dht.server = follows.is_none();
    // Five nodes and a build may share this machine.
    config.index.deadline_ms = PATIENCE.as_millis() as u64;
    config.dht.rpc_timeout_ms = 5000;
    config.keeping = keeping::section(folder)?;
    match follows {
        None => config.registry.origin = Some(format!("demo.example/{name}")),
        Some(node) => {
            config.registry.follow = Some(node.contact().to_string());
            config.registry.log_key = Some(node.parts.registry.log_key().to_string());
        }
    }
    config.check()?;
    let parts = assembly::start(&config).await?;
    let contact = parts.dht.contact();
    let url = format!("http://{}", parts.admin.local_addrs()[0]);
    let (id, addr) = (contact.id, parts.endpoint.local_addrs()[0]);
    println!("{name} is node {id} on {addr}, {url}{}", if follows.is_some() { ", a client" } else { "" });
    let news = parts.overlay.topic("news").join(first.map(Node::contact), soon()).await?;
    let heard = news.subscribe(soon()).await?;
    parts.gate.open();
    Ok(Node { name, url, data, parts, news, heard })
}

/// Another node brings the object into its own store, from whoever the DHT says provides it.
async fn carry(node: &Node, content: ContentId) -> Result<(), Box<dyn Error>> {
    let fetcher = Fetcher::new(node.parts.blobs.clone(), &node.parts.store);
    let providers = ByDht(node.parts.dht.clone()).find(content, soon()).await;
    let fetched = fetcher.fetch(content, &providers, soon()).await?;
    let bytes = node.parts.store.get_bytes(content, fetched.stored.len, soon()).await?;
    expect(bytes == HELLO.as_bytes(), "what is in the other store is what was stored")?;
    println!("{} brings it into its own store over ron/blob/1, group by group verified", node.name);
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
    let (registry, follower) = (&node.parts.registry, &other.parts.registry);
    registry.found(Policy::of(2, signers.collect())?, soon()).await?;
    let name: Name = NAME.parse()?;
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

    let mut updates = follower.updates(receipt.version);
    soon().limit("follow", updates.next()).await??.ok_or("the follower stopped")?;
    let latest = follower.name(&name)?.verify(&name, &trust)?;
    expect(latest.and_then(|latest| latest.content) == Some(content), "the follower knows the name")?;
    expect(follower.head() == registry.head(), "both have one log")?;
    println!("{} follows the log, checks every signature, and finds {name} in its own copy", other.name);
    Ok(())
}

/// A node that has not got the content asks one question and gets one answer: what the name stands for, proven; and who
/// has it, by the DHT.
async fn resolve(node: &Node, other: &Node, content: ContentId) -> Result<(), Box<dyn Error>> {
    let index = &other.parts.index;
    let key: ron_index::Key = NAME.parse()?;
    let began = now();
    let answer = index.resolve(&key, soon()).await?;
    let (found, took) = (answer.resolution(), began.elapsed());
    let best = found.providers.first().ok_or("nobody has it")?;
    expect(found.content == ron_index::Key::Content(content), "the name leads to the content")?;
    expect(best.provider.id == node.parts.endpoint.node_id(), "who has it is who provides it")?;
    println!(
        "{} resolves {NAME} in one question: proven by the log, and {} has it, with a score of {:.2} ({took:.0?})",
        other.name, node.name, best.score
    );
    // The news that the log has moved may come to the index only now, and makes it forget the name once more.
    for _ in 0..3 {
        let began = now();
        if index.resolve(&key, soon()).await?.is_cached {
            println!("the same again comes out of the cache ({:.0?})", began.elapsed());
            return Ok(());
        }
    }
    expect(false, "what was asked before comes out of the cache")
}

async fn fetch(url: &str, id: ContentId) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut fetch = Client::builder(url).build()?.get(id, .., soon()).await?;
    let mut content = Vec::new();
    while let Some(bytes) = fetch.next().await? {
        content.extend_from_slice(&bytes);
    }
    Ok(content)
}

/// It knows all of the `servers`, but for itself.
async fn ready(node: &Node, servers: usize) -> Result<(), Box<dyn Error>> {
    let dht = &node.parts.dht;
    let others = if node.parts.registry.follows() { servers } else { servers - 1 };
    let ready = async {
        while !dht.ready().reads || dht.peers().len() < others {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = soon().limit("ready", ready).await;
    in_time.map_err(|_| format!("{} is not ready: {:?}", node.name, dht.ready()))?;
    Ok(node.news.joined(soon()).await?)
}

/// Every other server is to keep the record. On a busy machine one may be too late for the first time it is said.
async fn provide(node: &Node, content: ContentId, others: usize) -> Result<usize, Box<dyn Error>> {
    let mut kept = 0;
    for _ in 0..3 {
        kept = node.parts.dht.provide(content, soon()).await?.kept;
        if kept == others {
            return Ok(kept);
        }
    }
    Err(format!("did not hold: all {others} other servers keep the record, but {kept} do").into())
}

async fn find(asker: &Node, content: ContentId, provider: &Node) -> Result<(), Box<dyn Error>> {
    let began = now();
    let mut found = asker.parts.dht.find_providers(content, NonZeroUsize::MIN, soon())?;
    let first = found.next().await?.ok_or("nobody provides it")?;
    expect(first.id == provider.parts.dht.node_id(), "the provider that is found is the one that provides")?;
    while found.next().await?.is_some() {}
    let asked = found.verdict().map_or(0, |verdict| verdict.rpcs);
    expect(asked > 0, "it was found by asking others")?;
    println!(
        "{} asks {asked} of the others and finds that {} provides it ({:.1?})",
        asker.name,
        provider.name,
        began.elapsed()
    );
    Ok(())
}

/// One node publishes, and every other one has to hear exactly that, once.
async fn tell(nodes: &mut [Node], publisher: usize, words: &'static str) -> Result<(), Box<dyn Error>> {
    let began = now();
    let receipt = nodes[publisher].news.publish(words, soon()).await?;
    let name = nodes[publisher].name;
    let mut heard = 0;
    for node in nodes.iter_mut().filter(|node| node.name != name) {
        let message = soon().limit("news", node.heard.next()).await??.ok_or("the topic has ended")?;
        expect(message.id() == receipt.id && message.payload() == words, "what is heard is what was said")?;
        heard += 1;
    }
    println!("{name} publishes {words:?} and the {heard} others hear it ({:.1?})", began.elapsed());
    Ok(())
}

fn expect(held: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if held { Ok(()) } else { Err(format!("did not hold: {what}").into()) }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
