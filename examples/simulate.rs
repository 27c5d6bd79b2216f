//! How do I test my own program against crashes and partitions, and get a failure again when I have found one?
//!
//! The program is a ballot box: a vote is acknowledged when it is on disk. It runs as it would over TLS and on a real disk,
//! but on a simulated network, disk and clock, out of one seed. The same seed is the same run, to the last frame. A box
//! that acknowledges too early loses votes at some power loss, and the check says so: it would notice.
//!
//! `--seed N` runs another world, `--quick` fewer of them.

use std::{
    collections::BTreeSet,
    error::Error,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{
    Deadline, LaneSpec, Ratio,
    journal::{Item, Journal, Position, Settings},
    net::{
        Endpoint, Identity, NetError,
        oap::Code,
        rpc::{Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, Service},
    },
    sim::{Latency, Line, Sim, SimNode, SimTransport},
};

const VOTES: Protocol =
    Protocol { alpn: "example/votes/1", proto: 40_001, links: LaneSpec::new("votes", "links", 16) };
const VOTE: Method = Method { number: 1, name: "vote" };
const BOX: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1));
const VOTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));

/// Votes by number, as somebody outside the world sees them.
type Votes = Arc<Mutex<BTreeSet<u64>>>;

fn votes(of: &Votes) -> MutexGuard<'_, BTreeSet<u64>> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is tested. `is_hasty` is the mistake: it says thank you before the vote is on disk.
struct Ballots {
    journal: Journal,
    is_hasty: bool,
}

impl Service for Ballots {
    fn call(&self, request: Request) -> Handling {
        let (journal, is_hasty) = (self.journal.clone(), self.is_hasty);
        Handling::Pending(Box::pin(async move {
            let (vote, deadline) = (request.body().clone(), request.deadline());
            let kept = match is_hasty {
                true => journal.append_buffered(1, vote, deadline).await,
                false => journal.append(1, vote, deadline).await,
            };
            kept.map(|_| "thanks".into()).map_err(|error| Fault::new(Code::Failed, error.to_string()))
        }))
    }
}

/// A node on the simulated network; without `transport` it would be one over TLS.
fn peers(node: &SimNode, seed: u8, service: Arc<dyn Service>) -> Result<Peers, NetError> {
    let transport = Arc::new(SimTransport::new(&node.net, node.ip, &identity(seed)));
    let endpoint =
        Endpoint::builder(identity(seed)).transport(transport).listen(SocketAddr::new(node.ip, 4710));
    let endpoint = endpoint.start(&node.supervisor)?;
    Peers::start(&endpoint, VOTES, service, PeersSettings::default(), &node.supervisor)
}

fn identity(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

/// The box, from one power loss to the next. What it finds on its disk is told to `counted`.
async fn ballot_box(node: SimNode, is_hasty: bool, counted: Votes) {
    let disk = Arc::new(node.disk.clone());
    // Power may be lost while it opens.
    let opened = Journal::open(&node.supervisor, disk, Path::new("votes"), Settings::default()).await;
    let Ok((journal, _)) = opened else { return };
    let found = journal.reader().scan(Position::START).filter_map(|item| match item {
        Ok(Item::Record(record)) => Some(u64::from_be_bytes(record.payload[..].try_into().ok()?)),
        _ => None,
    });
    *votes(&counted) = found.collect();
    let _served = peers(&node, 1, Arc::new(Ballots { journal, is_hasty }));
    std::future::pending().await
}

/// Votes ten times a second, and remembers for which it was thanked.
async fn voter(node: SimNode, thanked: Votes) {
    let Ok(peers) = peers(&node, 2, Arc::new(())) else { return };
    let (id, addrs) = (identity(1).node_id(), [SocketAddr::new(BOX, 4710)]);
    for vote in 0u64.. {
        let soon = Deadline::after(Duration::from_secs(1));
        if peers.call(id, &addrs, VOTE, vote.to_be_bytes().to_vec(), soon).await.is_ok() {
            votes(&thanked).insert(vote);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// One world: how many votes were acknowledged, which of them are lost, and the hash of all that happened.
fn world(seed: u64, is_hasty: bool) -> (usize, Vec<u64>, String) {
    Sim::run(seed, async |sim| {
        let latency = Latency::Tailed(Duration::from_millis(20), Duration::from_millis(200));
        sim.net().set_usual(Line { latency, loss: Ratio::percent(1), ..Line::default() });
        let (counted, thanked) = (Votes::default(), Votes::default());
        let (told, heard) = (counted.clone(), thanked.clone());
        sim.add(BOX, move |node| ballot_box(node, is_hasty, told.clone()));
        sim.add(VOTER, move |node| voter(node, heard.clone()));
        for _ in 0..10 {
            let (calm, trouble) = (sim.rng().u64(500..5000), sim.rng().u64(500..5000));
            sim.run_for(Duration::from_millis(calm)).await;
            if sim.rng().bool() {
                sim.net().partition(&[BOX], &[VOTER]);
                sim.run_for(Duration::from_millis(trouble)).await;
                sim.net().heal();
            } else {
                sim.crash(BOX).await;
                sim.run_for(Duration::from_millis(trouble)).await;
                sim.restart(BOX);
            }
        }
        // At last nobody votes any more; the box loses power once more, and counts.
        sim.crash(VOTER).await;
        sim.crash(BOX).await;
        sim.restart(BOX);
        sim.run_for(Duration::from_secs(1)).await;
        let (thanked, counted) = (votes(&thanked), votes(&counted));
        (thanked.len(), thanked.difference(&counted).copied().collect(), sim.net().trace().to_string())
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut first, mut worlds) = (1, 50);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--quick" => worlds = 10,
            "--seed" => first = arguments.next().ok_or("--seed wants a number")?.parse()?,
            _ => return Err(format!("{argument} is not known").into()),
        }
    }
    let mut caught = None;
    for seed in first..first + worlds {
        let (acknowledged, lost, trace) = world(seed, false);
        if acknowledged == 0 || !lost.is_empty() {
            return Err(format!("seed {seed}: {acknowledged} acknowledged, lost: {lost:?}").into());
        }
        if seed == first && world(seed, false).2 != trace {
            return Err(format!("seed {seed} is not the same twice").into());
        }
        let (_, lost, _) = world(seed, true);
        caught = caught.or((!lost.is_empty()).then_some((seed, lost)));
    }
    println!("{worlds} worlds from seed {first}: every vote that was acknowledged was counted");
    let (seed, lost) = caught.ok_or("a box that is too hasty was not caught")?;
    println!("a hasty box loses {} of them in world {seed}, and the same ones again", lost.len());
    if world(seed, true).1 == lost { Ok(()) } else { Err("the failure was not replayed".into()) }
}
