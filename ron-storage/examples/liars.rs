//! What two of five providers cost a fetch when they lie or stall, over the loopback interface.
//!
//! Five nodes with the same object and one without, each with a store on a disk, over TCP and TLS in one process. What two of
//! them send is bent on its way: a bit is wrong, or nothing more comes. The median of some rounds of each, in turns.
//!
//! ```sh
//! cargo run --release -p ron-storage --example liars -- [DIR] [--mebibytes 256] [--rounds 5]
//! ```

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a tool for those who measure")]

#[path = "../tests/net/bent.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests use the rest of it")]
mod bent;

use std::{path::Path, sync::Arc, time::Duration};

use bent::{Bent, Way};
use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Supervisor,
    disk::RealDisk,
    net::{Contact, Endpoint, Identity},
    now,
};
use ron_storage::{
    Store,
    fetch::Fetcher,
    peers::{Links, Peer, Rules},
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

/// Which of the holders are not honest, and how.
type Bad = Vec<(usize, Way)>;

/// From which byte of each answer on.
const LIES: Way = Way::Lies(300_000);
const STALLS: Way = Way::Stalls(300_000);

struct Node {
    store: Store,
    links: Links,
    peer: Peer,
    host: Supervisor,
}

async fn node(dir: &Path) -> Node {
    std::fs::create_dir_all(dir).unwrap();
    let host = Supervisor::new("node");
    let endpoint = Endpoint::builder(Identity::generate().unwrap()).listen("127.0.0.1:0".parse().unwrap());
    let endpoint = endpoint.start(&host).unwrap();
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let store = Store::builder().data(disk, "store").start(&host).await.unwrap();
    let links = Links::start(&endpoint, &host).unwrap();
    links.serve(&store, Rules::default());
    let peer = Contact { id: endpoint.node_id(), addrs: endpoint.local_addrs().into() }.into();
    Node { store, links, peer, host }
}

fn argument(name: &str, otherwise: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).map_or(otherwise, |value| value.parse().unwrap())
}

#[tokio::main]
async fn main() {
    let (mebibytes, rounds) = (argument("--mebibytes", 256), argument("--rounds", 5));
    let given = std::env::args().nth(1).filter(|first| !first.starts_with("--"));
    let made = tempfile::tempdir().unwrap();
    let dir: &Path = given.as_deref().map_or(made.path(), Path::new);
    let mut content = vec![0; mebibytes << 20];
    fastrand::Rng::with_seed(1).fill(&mut content);
    let content = Bytes::from(content);
    let mut holders = Vec::new();
    for number in 0..5 {
        let holder = node(&dir.join(number.to_string())).await;
        holder.store.put_bytes(content.clone(), soon()).await.unwrap();
        holders.push(holder);
    }
    let id = ContentId::of(&content);
    let taker = node(&dir.join("taker")).await;
    let cases: [(&str, usize, Bad); 5] = [
        ("five honest", 5, vec![]),
        ("three honest", 3, vec![]),
        ("two of five lie", 5, vec![(0, LIES), (3, LIES)]),
        ("two of five stall", 5, vec![(0, STALLS), (3, STALLS)]),
        ("one lies and one stalls", 5, vec![(1, LIES), (4, STALLS)]),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        for turn in 0..cases.len() {
            let at = (turn + round) % cases.len();
            let (_, count, ways) = &cases[at];
            let ways = ways.iter().map(|(at, way)| (holders[*at].peer.contact.id, *way)).collect();
            let fetcher = Fetcher::new(Bent::new(&taker.links, ways), &taker.store);
            let providers: Vec<Peer> = holders[..*count].iter().map(|holder| holder.peer.clone()).collect();
            let began = now();
            let fetched = fetcher.fetch(id, &providers, soon()).await.unwrap();
            let took = began.elapsed();
            assert_eq!((fetched.stored.id, fetched.received), (id, (mebibytes as u64) << 20));
            taker.store.delete(id, soon()).await.unwrap();
            // The first round is for whatever is done the first time.
            if round > 0 {
                times[at].push(took.as_secs_f64());
            }
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians: Vec<f64> = times.iter_mut().map(median).collect();
    println!("{mebibytes} MiB from five providers, {rounds} rounds\n");
    println!("| | s | MiB/s | of five honest |\n|---|--:|--:|--:|");
    for ((name, ..), took) in cases.iter().zip(&medians) {
        println!("| {name} | {took:.2} | {:.0} | {:.2} |", mebibytes as f64 / took, took / medians[0]);
    }
    for node in holders.iter().chain([&taker]) {
        node.host.shutdown().await;
    }
}
