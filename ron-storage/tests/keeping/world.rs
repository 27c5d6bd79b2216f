//! Nodes that keep objects together.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Metrics, NodeId, Snapshot, Supervisor,
    net::{Contact, Endpoint, Identity},
    prometheus_client::{encoding::text::encode, registry::Registry},
    sim::{CrashStyle, Latency, Line, SimDisk, SimNet, SimTransport},
};
use ron_storage::{
    Settings, Store,
    claims::Policy,
    peers::{Links, Peer, Rules},
    repair::{Ack, Keeping, KeepingSettings, Member},
};

const PORT: u16 = 7000;

pub(crate) const GRACE: Duration = Duration::from_secs(120);

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Long enough for everybody to look at everybody a few times.
pub(crate) async fn settle() {
    tokio::time::sleep(MINUTE).await;
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn ip(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 5, number + 1])
}

pub(crate) fn identity(number: u8) -> Identity {
    Identity::from_seed(&[number + 1; 32])
}

pub(crate) fn name(number: u8) -> NodeId {
    identity(number).node_id()
}

pub(crate) fn peer(number: u8) -> Peer {
    let addrs = [SocketAddr::new(ip(number), PORT)].as_slice().into();
    Peer::from(Contact { id: name(number), addrs })
}

/// Bytes that look random, the same for the same size and salt.
pub(crate) fn content(size: usize, salt: u64) -> Bytes {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(salt).fill(&mut bytes);
    bytes.into()
}

pub(crate) struct Node {
    pub(crate) store: Store,
    pub(crate) keeping: Keeping,
    pub(crate) links: Links,
    host: Supervisor,
    registry: Registry,
}

impl Node {
    /// Puts objects of this size, one after the other.
    pub(crate) async fn put_some(
        &self,
        size: usize,
        salts: Range<u64>,
        copies: u8,
        ack: Ack,
    ) -> Vec<ContentId> {
        let (owner, policy, mut ids) = (identity(100), Policy::Copies(copies), Vec::new());
        for salt in salts {
            let put = self.keeping.put(content(size, salt), policy, &owner, ack, soon());
            ids.push(put.await.unwrap().id);
        }
        ids
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

pub(crate) struct World {
    pub(crate) net: SimNet,
    disks: Vec<SimDisk>,
    pub(crate) nodes: Vec<Option<Node>>,
    members: Snapshot<Vec<Member>>,
    settings: KeepingSettings,
    /// Nodes in memory.
    amnesiac: Vec<u8>,
}

impl World {
    pub(crate) async fn new(count: u8) -> Self {
        let settings = KeepingSettings {
            tick: Duration::from_secs(20),
            refresh: Duration::from_secs(10),
            grace: GRACE,
            takeover: Duration::from_secs(30),
            ..KeepingSettings::default()
        };
        World::with(count, settings, Vec::new()).await
    }

    pub(crate) async fn with(count: u8, settings: KeepingSettings, amnesiac: Vec<u8>) -> Self {
        let net = SimNet::new(7);
        net.set_usual(Line {
            latency: Latency::Fixed(Duration::from_millis(2)),
            bandwidth: Some(100 << 20),
            ..Line::default()
        });
        let member = |number: u8| Member { peer: peer(number), zone: number.into(), weight: 100 };
        let mut world = World {
            net,
            disks: (0..count).map(|_| SimDisk::new()).collect(),
            nodes: (0..count).map(|_| None).collect(),
            members: Snapshot::new((0..count).map(member).collect()),
            settings,
            amnesiac,
        };
        for number in 0..count {
            world.start(number).await;
        }
        world
    }

    pub(crate) async fn start(&mut self, number: u8) {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_storage", &mut registry);
        let host = Supervisor::builder("node").seed(number.into()).inline_blocking(true);
        let host = host.metrics(metrics.clone()).start();
        let transport = SimTransport::new(&self.net, ip(number), &identity(number));
        let endpoint = Endpoint::builder(identity(number)).listen(SocketAddr::new(ip(number), PORT));
        let endpoint = endpoint.transport(Arc::new(transport)).start(&host).unwrap();
        let mut store = Store::builder()
            .seed(number.into())
            .settings(Settings { reserve_bytes: 0, collect_grace: Duration::ZERO, ..Settings::default() })
            .metrics(metrics.clone());
        if !self.amnesiac.contains(&number) {
            store = store.data(Arc::new(self.disks[usize::from(number)].clone()), "store");
        }
        let store = store.start(&host).await.unwrap();
        let links = Links::start(&endpoint, &host).unwrap();
        let nodes = Arc::new(self.members.clone());
        let keeping = Keeping::builder(&store, name(number), Arc::new(links.clone()), nodes)
            .settings(self.settings.clone())
            .metrics(metrics)
            .seed(number.into())
            .start(&host)
            .unwrap();
        let trusting = keeping.clone();
        links.serve(
            &store,
            Rules {
                trusts: Some(Arc::new(move |node: &NodeId| trusting.is_member(node))),
                judge: keeping.judge(),
                ..Rules::default()
            },
        );
        self.nodes[usize::from(number)] = Some(Node { store, keeping, links, host, registry });
    }

    pub(crate) fn node(&self, number: u8) -> &Node {
        self.nodes[usize::from(number)].as_ref().unwrap()
    }

    /// Power loss.
    pub(crate) async fn kill(&mut self, number: u8) {
        self.net.crash(ip(number));
        let disk = &self.disks[usize::from(number)];
        disk.crash();
        if let Some(node) = self.nodes[usize::from(number)].take() {
            node.host.abort();
            node.host.shutdown().await;
        }
        disk.restart(CrashStyle::LoseUnsynced);
    }

    /// Ends as it should.
    pub(crate) async fn stop(&mut self, number: u8) {
        if let Some(node) = self.nodes[usize::from(number)].take() {
            node.host.shutdown().await;
        }
    }

    /// All that are up end as they should.
    pub(crate) async fn end(mut self) {
        for number in 0..self.nodes.len() {
            self.stop(number as u8).await;
        }
    }

    pub(crate) fn settings(&self) -> &KeepingSettings {
        &self.settings
    }

    pub(crate) async fn revive(&mut self, number: u8) {
        self.net.restart(ip(number));
        self.start(number).await;
    }

    /// The host says that a node is gone for good.
    pub(crate) fn expel(&self, number: u8) {
        self.members.update(|members| {
            members.iter().filter(|member| member.peer.contact.id != name(number)).cloned().collect()
        });
    }

    /// The host says that a node keeps objects, too.
    pub(crate) fn admit(&self, number: u8) {
        let member = Member { peer: peer(number), zone: number.into(), weight: 100 };
        self.members.update(|members| members.iter().cloned().chain([member.clone()]).collect());
    }

    /// Damages every file of a large object on a node's disk.
    pub(crate) fn disk(&self, number: u8) -> &SimDisk {
        &self.disks[usize::from(number)]
    }

    /// Who has an object.
    pub(crate) async fn holders(&self, id: ContentId) -> Vec<u8> {
        let mut holders = Vec::new();
        for (number, node) in (0..).zip(&self.nodes) {
            if let Some(node) = node {
                if node.store.has(id, soon()).await.unwrap() {
                    holders.push(number);
                }
            }
        }
        holders
    }

    /// Waits, for so long at most, until so many nodes have an object.
    pub(crate) async fn until(&self, id: ContentId, copies: usize, at_most: Duration) {
        let end = Deadline::after(at_most);
        loop {
            let holders = self.holders(id).await;
            if holders.len() == copies {
                return;
            }
            assert!(!end.has_passed(), "{holders:?} have it, and {copies} should");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
