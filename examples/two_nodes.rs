//! How do two nodes share an object that neither has to trust the other about?
//!
//! Over TLS on the loopback interface: one stores an object, says in the DHT that it provides it, and tells a topic of it.
//! The other hears of it, finds out who has it, and fetches it. Every byte is checked against the object's name as it comes.

use std::{error::Error, num::NonZeroUsize, time::Duration};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Supervisor,
    net::{Contact, Endpoint, Identity},
};
use ron_dht::Dht;
use ron_overlay::Overlay;
use ron_storage::{
    Store,
    fetch::Fetcher,
    peers::{Links, Rules},
};

/// All parts of a node use one endpoint: one key, one name, one port.
struct Node {
    dht: Dht,
    overlay: Overlay,
    store: Store,
    fetcher: Fetcher,
}

impl Node {
    async fn start(host: &Supervisor, seeds: Vec<Contact>) -> Result<Node, Box<dyn Error>> {
        // A node that is to be found again keeps its key: `Identity::load_or_create(path)`.
        let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
        let dht = Dht::builder().seeds(seeds).start(&endpoint, host).await?;
        let overlay = Overlay::builder().start(&endpoint, host).await?;
        // Or `.data(disk, "objects")`, to have them after a restart.
        let store = Store::builder().memory().start(host).await?;
        let links = Links::start(&endpoint, host)?;
        // Everybody may read, nobody may write.
        links.serve(&store, Rules::default());
        let fetcher = Fetcher::new(links, &store);
        Ok(Node { dht, overlay, store, fetcher })
    }
}

/// Every call says how long it may take.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (here, there) = (Supervisor::new("here"), Supervisor::new("there"));
    let first = Node::start(&here, vec![]).await?;
    // As text, this is what one person gives to another: NODE_ID@IP:PORT.
    let address = first.dht.contact().to_string();
    let second = Node::start(&there, vec![address.parse()?]).await?;
    second.dht.joined(soon()).await?;
    println!("{} joined {address}", second.dht.node_id());

    let telling = first.overlay.topic("new objects").join([], soon()).await?;
    let hearing = second.overlay.topic("new objects").join([first.overlay.contact()], soon()).await?;
    let mut heard = hearing.subscribe(soon()).await?;
    telling.joined(soon()).await?;
    hearing.joined(soon()).await?;

    // The first node: keeps it, says that it has it, tells whoever listens.
    let film = Bytes::from(vec![42; 3 << 20]);
    let stored = first.store.put_bytes(film.clone(), soon()).await?;
    let published = first.dht.provide(stored.id, soon()).await?;
    telling.publish(stored.id.to_string(), soon()).await?;
    println!("stored {}, {} node keeps the record of who has it", stored.id, published.kept);

    // The second: hears a name, finds who has what is called so, and gets exactly that or an error.
    let message = heard.next().await?.ok_or("the topic ended")?;
    let wanted: ContentId = std::str::from_utf8(message.payload())?.parse()?;
    let mut found = second.dht.find_providers(wanted, NonZeroUsize::MIN, soon())?;
    let provider = found.next().await?.ok_or("nobody provides it")?;
    let from = Contact { id: provider.id, addrs: provider.addrs.into() };
    let fetched = second.fetcher.fetch(wanted, &[from.into()], soon()).await?;
    println!("fetched {} bytes from {}, verified on the way", fetched.received, provider.id);
    if second.store.get_bytes(wanted, 4 << 20, soon()).await? != film {
        return Err("other bytes came".into());
    }

    // What nobody has is an error with a name, and costs no more than the deadline.
    let missing = ContentId::of(b"nobody has this");
    let refused = second.fetcher.fetch(missing, &[first.dht.contact().into()], soon()).await;
    println!("what nobody has: {}", refused.err().ok_or("it cannot be there")?);

    for host in [there, here] {
        let stopped = host.shutdown().await;
        if stopped.aborted != 0 {
            return Err(format!("{} tasks did not stop", stopped.aborted).into());
        }
    }
    Ok(())
}
