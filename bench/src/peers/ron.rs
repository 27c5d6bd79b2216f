//! Ours: two endpoints with their supervisors and metrics, as a host has them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ron_core::{
    Deadline, Inbox, LaneSpec, Metrics, NodeId, Supervisor,
    net::{Endpoint, EndpointSettings, Identity, KeyPolicy, Link, Quic},
};

use super::ALPN;
use crate::measure::Outcome;

/// Links between the handshake and whoever takes them.
const LINKS: LaneSpec = LaneSpec::new("bench", "links", 1024);

/// Frames between a producer and the writer of a link. The bare queue has the same length.
pub(crate) const EGRESS: LaneSpec = LaneSpec::new("bench", "egress", QUEUE);

/// Frames that wait for a writer, here and in the bare queue.
pub(crate) const QUEUE: usize = 512;

/// Which of the two ends: it decides the key, so that each knows the other's name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Dials = 1,
    Listens = 2,
}

impl End {
    fn identity(self) -> Identity {
        Identity::from_seed(&[self as u8; 32])
    }
}

/// What carries the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Quic,
}

/// One end.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) inbox: Inbox<Link>,
    pub(crate) metrics: Metrics,
    pub(crate) supervisor: Supervisor,
    /// The name of the end that listens.
    listener: NodeId,
}

impl Node {
    /// An endpoint that listens on these addresses, if any, for up to so many connections.
    pub(crate) fn start(
        end: End,
        carrier: Carrier,
        listen: &[SocketAddr],
        connections: u32,
    ) -> Outcome<Self> {
        let metrics = Metrics::default();
        let supervisor = Supervisor::builder("bench").metrics(metrics.clone()).start();
        let settings = EndpointSettings {
            // All come from one address, and half of the places are for addresses not seen before.
            connections_max: connections * 2,
            connections_per_ip_max: connections * 2,
            handshake_timeout: Duration::from_secs(30),
            ..EndpointSettings::default()
        };
        let mut builder = Endpoint::builder(end.identity()).settings(settings);
        if carrier == Carrier::Quic {
            builder = builder.transport(Arc::new(Quic::new(&end.identity(), KeyPolicy::default())?));
        }
        for addr in listen {
            builder = builder.listen(*addr);
        }
        let endpoint = builder.start(&supervisor)?;
        let inbox = endpoint.register(ALPN, LINKS)?;
        let listener = End::Listens.identity().node_id();
        Ok(Node { endpoint, inbox, metrics, supervisor, listener })
    }

    pub(crate) async fn dial(&self, addr: SocketAddr) -> Outcome<Link> {
        Ok(self.endpoint.connect(self.listener, &[addr], ALPN, soon()).await?)
    }
}

/// Long enough for anything here.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// Two nodes, one link between them.
pub(crate) struct Pair {
    pub(crate) here: Node,
    pub(crate) there: Node,
}

impl Pair {
    pub(crate) fn start(carrier: Carrier) -> Outcome<Self> {
        let here = Node::start(End::Dials, carrier, &[], 16)?;
        let there = Node::start(End::Listens, carrier, &["127.0.0.1:0".parse()?], 1024)?;
        Ok(Pair { here, there })
    }

    /// Both ends of a new link over the loopback interface.
    pub(crate) async fn link(&self) -> Outcome<(Link, Link)> {
        let dialled = self.here.dial(self.there.endpoint.local_addrs()[0]).await?;
        let accepted = self.there.inbox.recv().await.ok_or("the endpoint has stopped")?;
        Ok((dialled, accepted))
    }

    pub(crate) async fn stop(self) {
        self.here.supervisor.shutdown().await;
        self.there.supervisor.shutdown().await;
    }
}

/// Sessions on such links.
pub(crate) mod rpc {
    use std::{sync::Arc, time::Duration};

    use ron_core::net::{
        Link,
        rpc::{Handling, Method, Request, RpcSettings, Service, Session, Side},
    };

    use super::Node;
    use crate::measure::Outcome;

    const PROTO: u16 = 40_000;

    /// Answers with what was asked.
    pub(crate) const ECHO: Method = Method { number: 1, name: "echo" };

    struct Echo;

    impl Service for Echo {
        fn call(&self, request: Request) -> Handling {
            Handling::Done(Ok(request.body().clone()))
        }
    }

    /// The session that this end has on `link`. It does not close for being idle.
    pub(crate) async fn session(link: Link, side: Side, node: &Node) -> Outcome<Session> {
        let hour = Duration::from_secs(3600);
        let settings = RpcSettings {
            idle_timeout: hour,
            hello_timeout: Duration::from_secs(30),
            ..RpcSettings::default()
        };
        let spawner = node.supervisor.spawner();
        Ok(Session::start(link, side, PROTO, Arc::new(Echo), settings, &spawner, &node.metrics).await?)
    }
}
