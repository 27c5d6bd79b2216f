//! Endpoints on the loopback interface: who gets in, who is refused and how, and what refusing costs.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

mod abuse;
mod alike;
mod identity;
mod limits;
mod links;
mod quic;
mod rpc;
mod simulated;

use std::{future::Future, net::SocketAddr, time::Duration};

use ron_core::{
    Counter, Deadline, Inbox, LaneSpec, Metrics, NodeId, Supervisor,
    net::{Endpoint, EndpointBuilder, EndpointSettings, Identity, KeyPolicy, Link, NetError},
};

const ALPN: &str = "test/echo/1";
const LINKS: LaneSpec = LaneSpec::new("test", "links", 64);

/// An endpoint that listens, with the supervisor and the counters it lives under.
struct Node {
    endpoint: Endpoint,
    inbox: Inbox<Link>,
    metrics: Metrics,
    supervisor: Supervisor,
}

impl Node {
    fn start(settings: EndpointSettings) -> Self {
        Self::listening(&["127.0.0.1:0"], settings)
    }

    fn listening(addrs: &[&str], settings: EndpointSettings) -> Self {
        Self::of(Endpoint::builder(Identity::generate().unwrap()), addrs, settings)
    }

    fn quic(settings: EndpointSettings) -> Self {
        Self::of(Endpoint::builder(Identity::generate().unwrap()).quic(), &["127.0.0.1:0"], settings)
    }

    fn of(builder: EndpointBuilder, addrs: &[&str], settings: EndpointSettings) -> Self {
        let metrics = Metrics::default();
        let supervisor = Supervisor::builder("test").metrics(metrics.clone()).start();
        let mut builder = builder.settings(settings);
        for addr in addrs {
            builder = builder.listen(addr.parse().unwrap());
        }
        let endpoint = builder.start(&supervisor).unwrap();
        let inbox = endpoint.register(ALPN, LINKS).unwrap();
        Node { endpoint, inbox, metrics, supervisor }
    }

    fn addr(&self) -> SocketAddr {
        self.endpoint.local_addrs()[0]
    }

    fn id(&self) -> NodeId {
        self.endpoint.node_id()
    }

    async fn dial(&self, to: &Node) -> Result<Link, NetError> {
        self.endpoint.connect(to.id(), to.endpoint.local_addrs(), ALPN, soon()).await
    }

    fn count(&self, counter: Counter, label: &'static str) -> u64 {
        self.metrics.tally(counter, label).get()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

fn quick() -> EndpointSettings {
    EndpointSettings { handshake_timeout: Duration::from_millis(200), ..EndpointSettings::default() }
}

fn with_policy(policy: KeyPolicy) -> EndpointSettings {
    EndpointSettings { policy, ..EndpointSettings::default() }
}

/// Waits until it is so, for what happens on the other side in its own time.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// Fails instead of hanging.
async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), work).await.expect("within five seconds")
}
