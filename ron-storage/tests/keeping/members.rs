//! Who keeps objects together, and who does not.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ConfigError, Deadline, NodeId, Supervisor,
    disk::Disk,
    net::{
        BoxFuture, Contact, Endpoint,
        rpc::{Method, Peers as RpcPeers, PeersSettings, Protocol, RpcError},
    },
    sim::{Fault, SimDisk, SimNet, SimTransport},
};
use ron_storage::{
    Store,
    members::{Admission, Candidates, Members, MembersSettings, Secret},
    peers::{Links, Offer, PeerError, Peers, Rules},
    repair::{Keeping, KeepingSettings, Nodes},
};

use crate::world::{identity, name, soon};

const EVERY: Duration = Duration::from_secs(10);

fn addr(number: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([198, 18, 6, number + 1]), 7000)
}

fn contact(number: u8) -> Contact {
    Contact { id: name(number), addrs: [addr(number)].into() }
}

fn secret(of: &str) -> Admission {
    Admission::Secret(Secret::new(&of.repeat(26)).unwrap())
}

/// Whom a node hears of, whether they belong or not.
struct Told(Vec<Contact>);

impl Candidates for Told {
    fn find(&self, _: Deadline) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

struct Node {
    members: Members,
    endpoint: Endpoint,
    host: Supervisor,
}

fn start(net: &SimNet, number: u8, admission: Admission, told: &[u8], disk: Option<&SimDisk>) -> Node {
    let host = Supervisor::builder("node").seed(number.into()).inline_blocking(true).start();
    let transport = SimTransport::new(net, addr(number).ip(), &identity(number));
    let endpoint = Endpoint::builder(identity(number)).listen(addr(number)).transport(Arc::new(transport));
    let endpoint = endpoint.start(&host).unwrap();
    let settings = MembersSettings {
        every: EVERY,
        forget_after: Duration::from_secs(3600),
        ..MembersSettings::default()
    };
    let told = Told(told.iter().map(|number| contact(*number)).collect());
    let mut members = Members::builder(admission).settings(settings).candidates(told);
    if let Some(disk) = disk {
        members = members.data(Arc::new(disk.clone()), "members");
    }
    Node { members: members.start(&endpoint, &host).unwrap(), endpoint, host }
}

async fn known(node: &Node) -> Vec<NodeId> {
    let mut all: Vec<NodeId> =
        node.members.nodes(soon()).await.unwrap().iter().map(|member| member.peer.contact.id).collect();
    all.sort();
    all
}

fn names(numbers: &[u8]) -> Vec<NodeId> {
    let mut all: Vec<NodeId> = numbers.iter().map(|number| name(*number)).collect();
    all.sort();
    all
}

async fn rounds(count: u32) {
    tokio::time::sleep(EVERY * count + Duration::from_secs(1)).await;
}

/// One acquaintance is enough to know all; who has another secret is met and stays outside, whoever names it.
#[tokio::test(start_paused = true)]
async fn those_with_one_secret_find_each_other_and_nobody_else() {
    let net = SimNet::new(1);
    let first = start(&net, 0, secret("a"), &[], None);
    let second = start(&net, 1, secret("a"), &[0, 7], None);
    let third = start(&net, 2, secret("a"), &[0], None);
    let stranger = start(&net, 7, secret("b"), &[0, 1, 2], None);
    rounds(3).await;
    for node in [&first, &second, &third] {
        assert_eq!(known(node).await, names(&[0, 1, 2]));
        assert!(!node.members.contains(&name(7)));
    }
    assert_eq!(known(&stranger).await, names(&[7]), "it is alone");
    // Away is not gone.
    net.crash(addr(2).ip());
    third.host.abort();
    rounds(10).await;
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    // Unless somebody says so.
    assert!(first.members.forget(&name(2)) && !first.members.forget(&name(2)));
    assert_eq!(known(&first).await, names(&[0, 1]));
}

/// A node that listens elsewhere is a member there, once it has met the others again.
#[tokio::test(start_paused = true)]
async fn a_member_that_moves_says_where() {
    let net = SimNet::new(8);
    let first = start(&net, 0, secret("a"), &[], None);
    let second = start(&net, 1, secret("a"), &[0], None);
    rounds(1).await;
    let seen = async |node: &Node| {
        let all = node.members.nodes(soon()).await.unwrap();
        all.into_iter().find(|member| member.peer.contact.id == name(0)).unwrap().peer.contact.addrs.to_vec()
    };
    assert_eq!(seen(&second).await, [addr(0)]);
    let there = SocketAddr::new(addr(0).ip(), 7001);
    first.endpoint.listen(there).unwrap();
    assert!(first.endpoint.unlisten(addr(0)).await);
    assert_eq!(seen(&first).await, [there]);
    rounds(1).await;
    assert_eq!(seen(&second).await, [there]);
}

/// What goes over the wire is judged: no proof, somebody else's proof, and bytes that are no card.
#[tokio::test(start_paused = true)]
async fn a_proof_that_was_seen_helps_nobody_else() {
    const LINKS: ron_core::LaneSpec = ron_core::LaneSpec::new("test", "links", 8);
    const PROTOCOL: Protocol = Protocol { alpn: "ron/keep/1", proto: 5, links: LINKS };
    const MEET: Method = Method { number: 1, name: "meet" };
    let net = SimNet::new(2);
    let node = start(&net, 0, secret("a"), &[], None);
    let host = Supervisor::builder("thief").seed(9).inline_blocking(true).start();
    let transport = SimTransport::new(&net, addr(9).ip(), &identity(9));
    let endpoint =
        Endpoint::builder(identity(9)).listen(addr(9)).transport(Arc::new(transport)).start(&host).unwrap();
    let thief = RpcPeers::start(&endpoint, PROTOCOL, Arc::new(()), PeersSettings::default(), &host).unwrap();
    let proofs = Secret::new(&"a".repeat(26)).unwrap();
    let good = proofs.proof(&name(9), &name(0));
    for (cap, is_let_in) in [
        (Vec::new(), false),
        (proofs.proof(&name(1), &name(0)).to_vec(), false),
        (proofs.proof(&name(0), &name(9)).to_vec(), false),
        (good.to_vec(), true),
    ] {
        let met = thief.call(name(0), &[addr(0)], MEET.cap(cap), b"no card", soon()).await.unwrap_err();
        let RpcError::Refused { code, .. } = met else { panic!("{met:?}") };
        assert_eq!(code.number(), if is_let_in { 400 } else { 403 });
    }
    assert_eq!(known(&node).await, names(&[0]));
    let other = Method { number: 2, name: "other" };
    assert!(thief.call(name(0), &[addr(0)], other, b"", soon()).await.is_err());
}

/// A list is a list: both have to be on the other's.
#[tokio::test(start_paused = true)]
async fn those_on_a_list_are_met_and_count_before() {
    let net = SimNet::new(3);
    let list = |numbers: &[u8]| Admission::Listed(numbers.iter().map(|number| contact(*number)).collect());
    let first = start(&net, 0, list(&[0, 1, 2]), &[], None);
    // Where objects belong does not depend on who came first.
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    let second = start(&net, 1, list(&[0, 1]), &[], None);
    let third = start(&net, 2, list(&[1, 2]), &[], None);
    rounds(2).await;
    assert!(first.members.contains(&name(1)) && second.members.contains(&name(0)));
    assert!(!second.members.contains(&name(2)) && !third.members.contains(&name(0)));
    assert!(!first.members.forget(&name(1)), "it is on the list");
    let zoned =
        MembersSettings { zone: "rack".to_owned(), weight: 7, every: EVERY, ..MembersSettings::default() };
    second.members.reload(zoned.clone(), vec![contact(0)]).unwrap();
    rounds(2).await;
    let of_second = first
        .members
        .nodes(soon())
        .await
        .unwrap()
        .into_iter()
        .find(|member| member.peer.contact.id == name(1));
    assert_eq!(of_second.unwrap().weight, 7);
    let wrong = MembersSettings { weight: 0, ..zoned };
    let wrong = second.members.reload(wrong, Vec::new()).unwrap_err();
    assert!(matches!(wrong, ConfigError::OutOfRange { key: "weight", .. }));
}

#[tokio::test(start_paused = true)]
async fn members_are_remembered_and_those_that_leave_are_not() {
    let (net, disk) = (SimNet::new(4), SimDisk::new());
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    let second = start(&net, 1, secret("a"), &[0], None);
    let third = start(&net, 2, secret("a"), &[0], None);
    rounds(2).await;
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    // Nobody is there to be found after the restart, and it still knows whom to wait for.
    for (node, number) in [(&second, 1), (&third, 2)] {
        net.crash(addr(number).ip());
        node.host.abort();
    }
    first.host.shutdown().await;
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    for number in [1, 2] {
        net.restart(addr(number).ip());
    }
    let second = start(&net, 1, secret("a"), &[0], None);
    let third = start(&net, 2, secret("a"), &[0], None);
    rounds(3).await;
    assert_eq!(third.members.untold(), []);
    third.members.on_leaving(true);
    assert_eq!(third.members.untold(), names(&[0, 1]), "they would wait for it");
    // Everybody is told at once, and not when it is time for the next round.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(third.members.untold(), []);
    for node in [&first, &second] {
        assert_eq!(known(node).await, names(&[0, 1]));
    }
    third.members.on_leaving(false);
    assert_eq!(third.members.untold(), []);
    rounds(2).await;
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    first.host.shutdown().await;
    // What cannot be understood is found again, and is no reason not to start.
    ron_core::disk::replace(&disk, std::path::Path::new("members"), b"nonsense").unwrap();
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    rounds(3).await;
    assert_eq!(known(&first).await, names(&[0, 1, 2]), "the others come by");
    assert!(disk.list(std::path::Path::new("")).is_ok());
}

/// Members that could not be written down were taken for written down, for an hour or until the next came: after a restart the
/// node was alone. Now it is tried again.
#[tokio::test(start_paused = true)]
async fn members_that_could_not_be_saved_are_saved_later() {
    let (net, disk) = (SimNet::new(9), SimDisk::new());
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    rounds(1).await;
    disk.fail_call(1, Fault::NoSpace);
    let _second = start(&net, 1, secret("a"), &[0], None);
    rounds(3).await;
    assert_eq!(known(&first).await, names(&[0, 1]));
    net.crash(addr(1).ip());
    first.host.shutdown().await;
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    assert_eq!(known(&first).await, names(&[0, 1]));
}

/// One that was not seen for long is not waited for any more; one that comes back is one of them again.
#[tokio::test(start_paused = true)]
async fn who_was_not_seen_for_long_is_forgotten() {
    use ron_storage::logic::members::{Known, write_file};
    let (net, disk) = (SimNet::new(6), SimDisk::new());
    let known_at = |seen| Known { addrs: contact(1).addrs, zone: String::new(), weight: 100, seen };
    let file = write_file(&[(name(1), known_at(1_000_000_000)), (name(2), known_at(u64::MAX >> 1))]);
    ron_core::disk::replace(&disk, std::path::Path::new("members"), &file).unwrap();
    let first = start(&net, 0, secret("a"), &[], Some(&disk));
    assert_eq!(known(&first).await, names(&[0, 1, 2]));
    rounds(1).await;
    assert_eq!(known(&first).await, names(&[0, 2]));
    let _second = start(&net, 1, secret("a"), &[0], None);
    rounds(2).await;
    assert!(known(&first).await.contains(&name(1)));
}

/// Who is no member can push nothing and tell nothing, and may read.
#[tokio::test(start_paused = true)]
async fn a_stranger_can_push_nothing() {
    let net = SimNet::new(5);
    let node = start(&net, 0, secret("a"), &[], None);
    let store = Store::builder().memory().start(&node.host).await.unwrap();
    let links = Links::start(&node.endpoint, &node.host).unwrap();
    let keeping = Keeping::builder(&store, name(0), Arc::new(links.clone()), Arc::new(node.members.clone()))
        .settings(KeepingSettings::default())
        .start(&node.host)
        .unwrap();
    let members = node.members.clone();
    let trusts = Arc::new(move |node: &NodeId| members.contains(node));
    links.serve(&store, Rules { trusts: Some(trusts), judge: keeping.judge(), ..Rules::default() });
    let other = start(&net, 9, secret("b"), &[0], None);
    let own = Store::builder().memory().start(&other.host).await.unwrap();
    let pushing = Links::start(&other.endpoint, &other.host).unwrap();
    pushing.serve(&own, Rules::default());
    rounds(2).await;
    let id = own.put_bytes(Bytes::from_static(b"unwanted"), soon()).await.unwrap().id;
    let offer = Offer { id, len: 8, claim: Bytes::new() };
    let peer = contact(0).into();
    assert!(matches!(pushing.push(&peer, &offer, soon()).await, Err(PeerError::Forbidden { .. })));
    let told = pushing.claims(&peer, Bytes::from_static(b"x"), soon()).await;
    assert!(matches!(told, Err(PeerError::Forbidden { .. })));
    assert!(pushing.have(&peer, &[id], soon()).await.is_ok());
    assert!(!store.has(id, soon()).await.unwrap());
}
