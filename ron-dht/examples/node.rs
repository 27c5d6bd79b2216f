//! What a node can do, for whoever embeds one for the first time: two servers and a client on the loopback interface. Each
//! part is a function; it ends with an error at the first thing that does not hold.
//!
//! ```sh
//! cargo run -p ron-dht --features http --example node
//! ```

use std::{error::Error, net::SocketAddr, num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use ron_core::{
    ContentId, Deadline, Supervisor,
    disk::RealDisk,
    http::Server,
    net::{Endpoint, Identity},
};
use ron_dht::{Contact, Dht, DhtError, Key, Provider, Verdict, http};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

type Failed = Box<dyn Error>;

/// Every call says how long it may take.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
    let (first, first_host) = start(dirs[0].path(), None).await?;
    let (second, second_host) = start(dirs[1].path(), Some(first.contact())).await?;
    second.joined(soon()).await?;
    first.joined(soon()).await?;
    println!("two nodes: {} and {}", first.contact(), second.contact());

    // Asks and is not asked: it needs no address.
    let host = Supervisor::new("client");
    let endpoint = Endpoint::builder(Identity::generate()?).start(&host)?;
    let client = Dht::builder().client().seeds([first.contact()]).start(&endpoint, &host).await?;
    client.joined(soon()).await?;

    values(&second, &client).await?;
    println!("compare-and-swap: two changes make version {}", count_up_twice(&second).await?);
    let key = many_keys(&second).await?;
    let (provider, verdict) = find(&client, key).await?;
    println!(
        "found {} at {:?}; the search ended because: {}",
        provider.id,
        provider.addrs,
        verdict.reason.name()
    );
    for asked in &verdict.trace {
        println!("  after {:?} asked {}, hop {}: {:?}", asked.at, asked.peer, asked.hop, asked.outcome);
    }

    // The same key file and records, on another port.
    second_host.shutdown().await;
    let (second, second_host) = start(dirs[1].path(), Some(first.contact())).await?;
    moved(&client, key, &second.contact()).await?;
    routes(&second, &second_host).await?;

    for host in [host, second_host, first_host] {
        host.shutdown().await;
    }
    Ok(())
}

/// A node whose key and records are in `dir`. Each has a host of its own here, so that it can be stopped alone; keep the
/// host, since the node stops with it.
async fn start(dir: &Path, seed: Option<Contact>) -> Result<(Dht, Supervisor), Failed> {
    let host = Supervisor::new("node");
    let identity = Identity::load_or_create(dir.join("node.key"))?;
    let endpoint = Endpoint::builder(identity).listen("127.0.0.1:0".parse()?).start(&host)?;
    let disk = Arc::new(RealDisk::open(dir)?);
    let dht = Dht::builder().seeds(seed).data(disk, "dht").start(&endpoint, &host).await?;
    Ok((dht, host))
}

/// Small values are named by their hash, so nobody can give you another one.
async fn values(writer: &Dht, reader: &Dht) -> Result<(), Failed> {
    let key = writer.put(b"a small value", soon()).await?;
    let value = reader.get(key, soon()).await?;
    expect(value == "a small value", "what is read is what was written")?;
    println!("a value under {key}");
    // Nothing there is an error of its own, and so is no time to ask.
    let missing = reader.get(ContentId::of(b"never stored"), soon()).await;
    expect(missing == Err(DhtError::NotFound), "what nobody stored is not found")?;
    let late = reader.get(ContentId::of(b"never stored"), Deadline::after(Duration::ZERO)).await;
    expect(late == Err(DhtError::Timeout { op: "get" }), "without time there is no answer")
}

/// Values that change have numbers, and are only replaced where the expected one is held.
async fn count_up_twice(dht: &Dht) -> Result<u64, Failed> {
    // No version has number 0: the first is written on top of nothing.
    for (held, text) in [(0, "one"), (1, "two")] {
        dht.put_mutable(b"counter", text.as_bytes(), held + 1, Some(held), soon()).await?;
    }
    let beaten = dht.put_mutable(b"counter", b"too late", 2, Some(1), soon()).await;
    expect(matches!(beaten, Err(DhtError::Conflict { held: 2 })), "who expects an old version is told")?;
    // Others read it by the public key, which has a text form to pass on.
    let public_key = dht.public_key().to_string().parse()?;
    let value = dht.get_mutable(&public_key, b"counter", soon()).await?;
    expect(value.data() == "two", "the newest is read")?;
    Ok(value.signer().map_or(0, |signer| signer.seq))
}

/// A hundred keys with far fewer searches. The node says them again every twelve hours.
async fn many_keys(dht: &Dht) -> Result<Key, Failed> {
    let keys: Vec<Key> = (0..100_u32).map(|number| ContentId::of(&number.to_be_bytes()).into()).collect();
    let progress = dht.provide_many(keys.iter().copied(), soon())?.finish().await?;
    expect(progress.done == keys.len(), "all keys are kept by somebody")?;
    println!("{} keys with {} searches", progress.done, progress.lookups);
    Ok(keys[7])
}

/// The first that is found, and how the search went.
async fn find(dht: &Dht, key: Key) -> Result<(Provider, Verdict), Failed> {
    let mut found = dht.find_providers(key, NonZeroUsize::MIN, soon())?;
    let first = found.next().await?.ok_or("nobody provides it")?;
    while found.next().await?.is_some() {}
    Ok((first, found.verdict().ok_or("the search is over")?.clone()))
}

/// A node that comes back at another address says its keys again by itself.
async fn moved(asker: &Dht, key: Key, to: &Contact) -> Result<(), Failed> {
    let found = async {
        loop {
            if let Ok((provider, _)) = find(asker, key).await {
                if provider.addrs == to.addrs.to_vec() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    Deadline::after(Duration::from_secs(60)).limit("move", found).await?;
    println!("after a restart it is found at {:?}", to.addrs);
    Ok(())
}

/// The routes in a server of your own, beside whatever else it serves.
async fn routes(dht: &Dht, host: &Supervisor) -> Result<(), Failed> {
    let app = axum::Router::new().nest("/dht", http::router(dht));
    let server = Server::builder(app).listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(host).await?;
    let mut stream = TcpStream::connect(server.local_addrs()[0]).await?;
    stream.write_all(b"GET /dht/status HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    soon().limit("status", stream.read_to_string(&mut answer)).await??;
    expect(answer.starts_with("HTTP/1.1 200"), "the status is served")?;
    println!("its status over HTTP: {}", answer.lines().last().unwrap_or_default());
    Ok(())
}

fn expect(held: bool, what: &str) -> Result<(), Failed> {
    if held { Ok(()) } else { Err(format!("did not hold: {what}").into()) }
}
