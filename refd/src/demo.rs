//! Five nodes in one process, over real links: a story that checks itself.

use std::{
    error::Error,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use ron_core::{
    ContentId, Deadline, Supervisor,
    net::{Endpoint, Identity},
    now,
};
use ron_dht::{Contact, Dht};

const NODES: usize = 5;

struct Node {
    name: char,
    dht: Dht,
    host: Supervisor,
}

/// Tells the story. Ends with an error at the first thing that does not hold.
pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let began = now();
    let mut nodes: Vec<Node> = Vec::new();
    for name in ('a'..).take(NODES) {
        let seeds = nodes.first().map(|first| first.dht.contact());
        nodes.push(start(name, seeds).await?);
    }
    for node in &nodes {
        ready(node).await?;
    }
    println!(
        "{NODES} nodes are up and know each other, over TLS 1.3 with post-quantum key exchange ({:.0?})",
        began.elapsed()
    );

    let content = ContentId::of(b"hello, world");
    let published = nodes[1].dht.provide(content, soon()).await?;
    expect(published.kept == NODES - 1, "every other node keeps the record")?;
    println!("b provides {content}; {} nodes keep its signed record", published.kept);

    find(&nodes[3], content, &nodes[1]).await?;
    let key = nodes[2].dht.put(b"a small value", soon()).await?;
    let value = nodes[4].dht.get(key, soon()).await?;
    expect(value == "a small value", "the value that e reads is the one that c wrote")?;
    println!("c stored a value and e read it: its hash is right");

    let killed = nodes.remove(0);
    killed.host.abort();
    println!("a, which all others had begun with, is killed");
    find(&nodes[3], content, &nodes[0]).await?;

    for node in &nodes {
        let stopped = node.host.shutdown().await;
        expect(stopped.aborted == 0, "every task ends by itself")?;
    }
    println!("all stopped, every task by itself; everything held ({:.1?})", began.elapsed());
    Ok(())
}

async fn start(name: char, seeds: Option<Contact>) -> Result<Node, Box<dyn Error>> {
    let host = Supervisor::new(name);
    let endpoint =
        Endpoint::builder(Identity::generate()?).listen(([127, 0, 0, 1], 0).into()).start(&host)?;
    let dht = Dht::builder().seeds(seeds).start(&endpoint, &host).await?;
    println!("{name} is node {} on {}", endpoint.node_id(), endpoint.local_addrs()[0]);
    Ok(Node { name, dht, host })
}

async fn ready(node: &Node) -> Result<(), Box<dyn Error>> {
    let ready = async {
        while !node.dht.ready().reads || node.dht.peers().len() < NODES - 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = Deadline::after(Duration::from_secs(10)).limit("ready", ready).await;
    in_time.map_err(|_| format!("{} is not ready: {:?}", node.name, node.dht.ready()).into())
}

async fn find(asker: &Node, content: ContentId, provider: &Node) -> Result<(), Box<dyn Error>> {
    let began = Instant::from(now());
    let mut found = asker.dht.find_providers(content, NonZeroUsize::MIN, soon())?;
    let first = found.next().await?.ok_or("nobody provides it")?;
    expect(first.id == provider.dht.node_id(), "the provider that is found is the one that provides")?;
    println!(
        "{} finds that {} provides it ({:.1?})",
        asker.name,
        provider.name,
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
