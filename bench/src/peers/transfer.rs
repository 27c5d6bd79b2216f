//! Two nodes with a store each, on the loopback interface, behind one small face.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Supervisor,
    disk::RealDisk,
    net::{Contact, Endpoint, Identity},
};
use ron_storage::{
    Store,
    fetch::Fetcher,
    peers::{Links, Peer, Rules},
};

use crate::measure::Outcome;

/// Those that are compared.
pub(crate) enum Pair {
    /// Over QUIC, one connection. It says that an object is there before it is on the disk.
    #[cfg(feature = "iroh")]
    Iroh(Box<IrohPair>),
    /// Over TCP and TLS, one link. An object is there when it is on the disk.
    Ron(Box<RonPair>),
}

#[cfg(feature = "iroh")]
pub(crate) struct IrohPair {
    giver: iroh_blobs::store::fs::FsStore,
    taker: iroh_blobs::store::fs::FsStore,
    connection: iroh::endpoint::Connection,
    _endpoint: iroh::Endpoint,
    _router: iroh::protocol::Router,
    tags: std::sync::Mutex<Vec<iroh_blobs::api::TempTag>>,
}

pub(crate) struct RonPair {
    giver: Store,
    taker: Store,
    fetcher: Fetcher,
    provider: Peer,
    /// It serves as long as it lives.
    _serving: Links,
    hosts: [Supervisor; 2],
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

impl Pair {
    pub(crate) async fn open(name: &str, dir: &Path) -> Outcome<Self> {
        let [giver, taker] = ["giver", "taker"].map(|name| dir.join(name));
        std::fs::create_dir_all(&giver)?;
        std::fs::create_dir_all(&taker)?;
        match name {
            #[cfg(feature = "iroh")]
            "iroh-blobs" => Ok(Pair::Iroh(Box::new(IrohPair::open(&giver, &taker).await?))),
            "ron-storage" => Ok(Pair::Ron(Box::new(RonPair::open(&giver, &taker).await?))),
            other => Err(format!("there is no store {other}").into()),
        }
    }

    /// Puts an object where it is fetched from.
    pub(crate) async fn put(&self, content: Bytes) -> Outcome<ContentId> {
        match self {
            #[cfg(feature = "iroh")]
            Pair::Iroh(pair) => {
                let tag = pair.giver.blobs().add_bytes(content).temp_tag().await?;
                let id = ContentId::from_bytes(*tag.hash().as_bytes());
                pair.tags.lock().map_err(|_| "a caller panicked")?.push(tag);
                Ok(id)
            }
            Pair::Ron(pair) => Ok(pair.giver.put_bytes(content, soon()).await?.id),
        }
    }

    /// Fetches an object from one store into the other.
    pub(crate) async fn fetch(&self, id: ContentId) -> Outcome<()> {
        match self {
            #[cfg(feature = "iroh")]
            Pair::Iroh(pair) => {
                let hash = iroh_blobs::Hash::from_bytes(*id.as_bytes());
                pair.taker.remote().fetch(pair.connection.clone(), hash).await?;
            }
            Pair::Ron(pair) => {
                pair.fetcher.fetch(id, std::slice::from_ref(&pair.provider), soon()).await?;
            }
        }
        Ok(())
    }

    /// Whether the taker has it.
    pub(crate) async fn has(&self, id: ContentId) -> Outcome<bool> {
        Ok(match self {
            #[cfg(feature = "iroh")]
            Pair::Iroh(pair) => pair.taker.blobs().has(iroh_blobs::Hash::from_bytes(*id.as_bytes())).await?,
            Pair::Ron(pair) => pair.taker.has(id, soon()).await?,
        })
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        match self {
            #[cfg(feature = "iroh")]
            Pair::Iroh(pair) => {
                pair.giver.shutdown().await?;
                pair.taker.shutdown().await?;
            }
            Pair::Ron(pair) => {
                for host in &pair.hosts {
                    host.shutdown().await;
                }
            }
        }
        Ok(())
    }
}

#[cfg(feature = "iroh")]
impl IrohPair {
    async fn open(giver: &Path, taker: &Path) -> Outcome<Self> {
        use iroh::{EndpointAddr, RelayMode, TransportAddr, endpoint::presets, protocol::Router};
        use iroh_blobs::{ALPN, BlobsProtocol, store::fs::FsStore};
        let (giver, taker) = (FsStore::load(giver).await?, FsStore::load(taker).await?);
        let endpoint = async || {
            let builder = iroh::Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled);
            Outcome::Ok(builder.clear_ip_transports().bind_addr("127.0.0.1:0")?.bind().await?)
        };
        let (there, here) = (endpoint().await?, endpoint().await?);
        let router = Router::builder(there.clone()).accept(ALPN, BlobsProtocol::new(&giver, None)).spawn();
        let addrs = there.bound_sockets().into_iter().map(TransportAddr::Ip).collect();
        let connection = here.connect(EndpointAddr { id: there.id(), addrs }, ALPN).await?;
        let tags = std::sync::Mutex::default();
        Ok(IrohPair { giver, taker, connection, _endpoint: here, _router: router, tags })
    }
}

impl RonPair {
    async fn open(giver: &Path, taker: &Path) -> Outcome<Self> {
        let hosts = [Supervisor::new("giver"), Supervisor::new("taker")];
        let store = async |dir: &Path, host: &Supervisor| {
            let disk = Arc::new(RealDisk::open(dir.to_owned())?);
            Outcome::Ok(Store::builder().data(disk, "store").start(host).await?)
        };
        let giver = store(giver, &hosts[0]).await?;
        let taker = store(taker, &hosts[1]).await?;
        let there =
            Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&hosts[0])?;
        let serving = Links::start(&there, &hosts[0])?;
        serving.serve(&giver, Rules::default());
        let here = Endpoint::builder(Identity::generate()?).start(&hosts[1])?;
        let fetcher = Fetcher::new(Links::start(&here, &hosts[1])?, &taker);
        let contact = Contact { id: there.node_id(), addrs: there.local_addrs().into() };
        Ok(RonPair { giver, taker, fetcher, provider: contact.into(), _serving: serving, hosts })
    }
}
