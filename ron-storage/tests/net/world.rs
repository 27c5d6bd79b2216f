//! Nodes on a simulated network and a paused clock, or on the loopback interface and a real one.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Metrics, Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    net::{Contact, Endpoint, Identity, KeyPolicy, Quic, Transport},
    prometheus_client::{encoding::text::encode, registry::Registry},
    sim::{Latency, Line, SimDisk, SimNet, SimTransport},
};
use ron_storage::{
    Settings, Store,
    peers::{Links, Peer, Rules},
};

const PORT: u16 = 7000;

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 5, number])
}

fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number; 32])
}

/// Bytes that look random, the same for the same size and salt.
pub(crate) fn content(size: usize, salt: u64) -> Bytes {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&salt.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

pub(crate) struct World {
    pub(crate) net: SimNet,
}

/// A node with a store, a supervisor and counters of its own.
pub(crate) struct Node {
    pub(crate) store: Store,
    pub(crate) links: Links,
    pub(crate) host: Supervisor,
    pub(crate) disk: SimDisk,
    registry: Registry,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let net = SimNet::new(seed);
        net.set_usual(Line { latency: Latency::Fixed(ms(10)), bandwidth: Some(10 << 20), ..Line::default() });
        World { net }
    }

    pub(crate) async fn node(&self, number: u8) -> Node {
        self.node_on(number, SimDisk::new(), Settings::default()).await
    }

    pub(crate) async fn node_on(&self, number: u8, disk: SimDisk, settings: Settings) -> Node {
        let transport = SimTransport::new(&self.net, ip(number), &identity(number));
        let addr = SocketAddr::new(ip(number), PORT);
        Node::start(number, Some(Arc::new(transport)), addr, disk, settings).await
    }
}

/// A node over TLS on the loopback interface.
pub(crate) async fn real(number: u8) -> Node {
    let settings = Settings { reserve_bytes: 0, ..Settings::default() };
    Node::start(number, None, "127.0.0.1:0".parse().unwrap(), SimDisk::new(), settings).await
}

/// A node over QUIC on the loopback interface.
pub(crate) async fn quic(number: u8) -> Node {
    let settings = Settings { reserve_bytes: 0, ..Settings::default() };
    let transport = Arc::new(Quic::new(&identity(number), KeyPolicy::default()).unwrap());
    let addr = "127.0.0.1:0".parse().unwrap();
    Node::over(number, Some(transport), false, addr, SimDisk::new(), settings).await
}

impl Node {
    pub(crate) async fn start(
        number: u8,
        transport: Option<Arc<dyn Transport>>,
        addr: SocketAddr,
        disk: SimDisk,
        settings: Settings,
    ) -> Node {
        let is_simulated = transport.is_some();
        Node::over(number, transport, is_simulated, addr, disk, settings).await
    }

    async fn over(
        number: u8,
        transport: Option<Arc<dyn Transport>>,
        is_simulated: bool,
        addr: SocketAddr,
        disk: SimDisk,
        settings: Settings,
    ) -> Node {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_storage", &mut registry);
        let builder = Supervisor::builder("node").seed(number.into()).inline_blocking(is_simulated);
        let host = builder.metrics(metrics.clone()).start();
        let mut endpoint = Endpoint::builder(identity(number)).listen(addr);
        if let Some(transport) = transport {
            endpoint = endpoint.transport(transport);
        }
        let endpoint = endpoint.start(&host).unwrap();
        let store = Store::builder()
            .data(Arc::new(disk.clone()), "store")
            .seed(number.into())
            .settings(settings)
            .metrics(metrics)
            .start(&host)
            .await
            .unwrap();
        let links = Links::start(&endpoint, &host).unwrap();
        links.serve(&store, Rules::default());
        Node { store, links, host, disk, registry }
    }

    pub(crate) fn peer(&self) -> Peer {
        let endpoint = self.links.endpoint();
        Contact { id: endpoint.node_id(), addrs: endpoint.local_addrs().into() }.into()
    }

    pub(crate) async fn put(&self, content: Bytes) -> ContentId {
        self.store.put_bytes(content, soon()).await.unwrap().id
    }

    /// The value of a series, without the prefix of the crate. Zero if there is none.
    pub(crate) fn count(&self, series: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let series = format!("ron_storage_{series} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&series));
        found.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }
}

/// Lets in who shows a word.
pub(crate) struct Word(pub(crate) &'static str);

impl Authorizer for Word {
    fn authorize(&self, _: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        if credentials.bearer == Some(self.0) { Ok(Grant::new("test")) } else { Err(Denied::Unknown) }
    }
}
