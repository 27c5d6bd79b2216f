//! Nodes on a simulated network and a paused clock, or on the loopback interface and a real one.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, Metrics, NodeId, Supervisor,
    net::{Endpoint, Identity, Transport},
    now,
    prometheus_client::{encoding::text::encode, registry::Registry},
    sim::{Latency, Line, SimNet, SimTransport},
};
use ron_overlay::{Builder, Contact, Delivery, Overlay, Settings, Subscription, Topic};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7000;

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 3, number])
}

pub(crate) fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number; 32])
}

/// A network.
pub(crate) struct World {
    pub(crate) net: SimNet,
    began: tokio::time::Instant,
}

/// A node with a supervisor and counters of its own.
pub(crate) struct Node {
    pub(crate) overlay: Overlay,
    pub(crate) host: Supervisor,
    registry: Registry,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let net = SimNet::new(seed);
        net.set_usual(Line { latency: Latency::Fixed(ms(10)), ..Line::default() });
        World { net, began: now() }
    }

    pub(crate) fn transport(&self, number: u8) -> SimTransport {
        SimTransport::new(&self.net, ip(number), &identity(number))
    }

    pub(crate) fn endpoint(&self, number: u8, host: &Supervisor) -> Endpoint {
        endpoint_on(Arc::new(self.transport(number)), number, host)
    }

    pub(crate) async fn node_with(&self, number: u8, builder: Builder) -> Node {
        self.node_on(Arc::new(self.transport(number)), number, builder).await
    }

    pub(crate) async fn node_on(&self, transport: Arc<dyn Transport>, number: u8, builder: Builder) -> Node {
        let (host, registry, metrics) = host(number.into());
        let endpoint = endpoint_on(transport, number, &host);
        let began = self.began;
        let unix = move || Duration::from_secs(1_800_000_000) + now().saturating_duration_since(began);
        let builder = builder.seed(number.into()).unix_clock(unix).metrics(metrics);
        let overlay = builder.start(&endpoint, &host).await.unwrap();
        Node { overlay, host, registry }
    }

    pub(crate) async fn node(&self, number: u8, settings: Settings) -> Node {
        self.node_with(number, Overlay::builder().settings(settings)).await
    }

    /// So many nodes, numbered from one, on one topic through the first. They have had time to find each other.
    pub(crate) async fn swarm(&self, nodes: u8, settings: &Settings) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        for number in 1..=nodes {
            let node = self.node(number, settings.clone()).await;
            let contacts = members.first().map(|first: &Member| first.node.overlay.contact());
            members.push(Member::join(node, contacts, false).await);
            tokio::time::sleep(ms(50)).await;
        }
        for member in &members {
            member.topic.joined(soon()).await.unwrap();
        }
        tokio::time::sleep(5 * SECOND).await;
        members
    }
}

fn endpoint_on(transport: Arc<dyn Transport>, number: u8, host: &Supervisor) -> Endpoint {
    let endpoint = Endpoint::builder(identity(number)).transport(transport);
    endpoint.listen(SocketAddr::new(ip(number), PORT)).start(host).unwrap()
}

/// A node over TLS on the loopback interface.
pub(crate) async fn real(number: u8, settings: Settings) -> Node {
    let (host, registry, metrics) = host(number.into());
    let endpoint =
        Endpoint::builder(identity(number)).listen("127.0.0.1:0".parse().unwrap()).start(&host).unwrap();
    let builder = Overlay::builder().settings(settings).seed(number.into()).metrics(metrics);
    let overlay = builder.start(&endpoint, &host).await.unwrap();
    Node { overlay, host, registry }
}

fn host(seed: u64) -> (Supervisor, Registry, Metrics) {
    let mut registry = Registry::default();
    let metrics = Metrics::register("ron_overlay", &mut registry);
    let host = Supervisor::builder("node").seed(seed).inline_blocking(true).metrics(metrics.clone()).start();
    (host, registry, metrics)
}

impl Node {
    pub(crate) fn id(&self) -> NodeId {
        self.overlay.node_id()
    }

    /// The value of a series, without the prefix of the crate. Zero if there is none.
    pub(crate) fn count(&self, series: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let series = format!("ron_overlay_{series} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&series));
        found.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    /// The sum of all series of a family.
    pub(crate) fn sum(&self, family: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let family = format!("ron_overlay_{family}");
        let values = text
            .lines()
            .filter(|line| line.strip_prefix(&family).is_some_and(|rest| rest.starts_with(['{', ' '])));
        values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
    }
}

/// A node on the topic of the test.
pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) topic: Topic,
    pub(crate) heard: Subscription,
}

impl Member {
    pub(crate) async fn join(
        node: Node,
        contacts: impl IntoIterator<Item = Contact>,
        is_signed: bool,
    ) -> Self {
        let topic = node.overlay.topic("test");
        let topic = if is_signed { topic } else { topic.unsigned() };
        let topic = topic.join(contacts, soon()).await.unwrap();
        let heard = topic.subscribe(soon()).await.unwrap();
        Member { node, topic, heard }
    }

    pub(crate) async fn publish(&self, payload: impl Into<Bytes>) {
        self.topic.publish(payload, soon()).await.unwrap();
    }

    /// Payloads that come within this time of each other.
    pub(crate) async fn hear(&mut self, within: Duration) -> Vec<Bytes> {
        let mut heard = Vec::new();
        while let Ok(Some(delivery)) = tokio::time::timeout(within, self.heard.recv()).await {
            match delivery {
                Delivery::Message { message, .. } => heard.push(message.payload().clone()),
                other => panic!("{other:?} after {}", heard.len()),
            }
        }
        heard
    }
}

/// Shuts all nodes down and checks that nothing of them is left: every task was joined or cut off.
pub(crate) async fn stop(nodes: impl IntoIterator<Item = Node>) {
    for node in nodes {
        let stopped = node.overlay.shutdown().await;
        assert_eq!(stopped.aborted, 0, "{stopped:?}");
        // Two engines, two checkers and the janitor at least ended because they were told to.
        assert!(node.sum("tasks_canceled_total") >= 5, "{stopped:?}");
        node.host.shutdown().await;
        assert_eq!(node.host.running(), 0);
    }
}
