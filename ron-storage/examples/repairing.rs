//! What readers feel of a repair: a node that serves objects over the loopback interface while it gives others what they lack, at
//! its full rate.
//!
//! Three nodes in one process, each with a store on a disk, and readers who ask the first of them for objects of 64 KiB at a steady
//! rate, whether or not the answer before came in time. First it is alone; then the two others are named, and get copies of
//! everything. A latency is from when the question was due.
//!
//! The two others stand for other machines, and share the processor with the first: their threads run at the lowest priority, so that
//! what they do with the bytes that they get is not taken for the cost of giving them. The rate that is printed says whether they kept up.
//!
//! ```sh
//! cargo run --release -p ron-storage --features erasure --example repairing -- [DIR] [--seconds 10] [--gets 400] [--rate 50] [--shards 1]
//! ```

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a tool for those who measure")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Metrics, NodeId, Snapshot, Supervisor, TaskSpec,
    disk::RealDisk,
    net::{Contact, Endpoint, Identity},
    now,
    prometheus_client::{encoding::text::encode, registry::Registry},
};
use ron_storage::{
    Store,
    claims::Policy,
    peers::{Groups, Links, Peer, Peers, Rules, Want},
    repair::{Ack, Keeping, KeepingSettings, Member},
};
use tokio::runtime::Runtime;

const READER: TaskSpec = TaskSpec::new("repairing", "reader");
const SMALL: usize = 64 << 10;
const SMALLS: u64 = 500;
const LARGE: usize = 4 << 20;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

fn argument(name: &str, otherwise: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).map_or(otherwise, |value| value.parse().unwrap())
}

fn content(len: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

struct Node {
    keeping: Keeping,
    member: Member,
    registry: Registry,
    host: Supervisor,
}

impl Node {
    async fn start(dir: PathBuf, members: &Snapshot<Vec<Member>>, zone: u64, rate: u64) -> Node {
        std::fs::create_dir_all(&dir).unwrap();
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_storage", &mut registry);
        let host = Supervisor::builder("node").metrics(metrics.clone()).start();
        let endpoint =
            Endpoint::builder(Identity::generate().unwrap()).listen("127.0.0.1:0".parse().unwrap());
        let endpoint = endpoint.start(&host).unwrap();
        let disk = Arc::new(RealDisk::open(&dir).unwrap());
        let store = Store::builder().data(disk, "store").metrics(metrics.clone()).start(&host).await.unwrap();
        let links = Links::start(&endpoint, &host).unwrap();
        let settings = KeepingSettings {
            tick: Duration::from_secs(1),
            refresh: Duration::from_millis(200),
            bytes_per_second: rate,
            ..KeepingSettings::default()
        };
        let (me, nodes) = (endpoint.node_id(), Arc::new(members.clone()));
        let keeping = Keeping::builder(&store, me, Arc::new(links.clone()), nodes).settings(settings);
        let keeping = keeping.metrics(metrics).start(&host).unwrap();
        let trusting = keeping.clone();
        let trusts = Arc::new(move |node: &NodeId| trusting.is_member(node));
        links.serve(&store, Rules { trusts: Some(trusts), judge: keeping.judge(), ..Rules::default() });
        let peer = Peer::from(Contact { id: me, addrs: endpoint.local_addrs().into() });
        Node { keeping, member: Member { peer, zone, weight: 100 }, registry, host }
    }

    fn moved(&self) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix("ron_storage_repair_bytes_total "));
        found.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }
}

/// Asks for small objects at a steady rate, and says how long each took from when it was due.
async fn read(
    host: &Supervisor,
    links: &Links,
    peer: &Peer,
    ids: &Arc<Vec<ContentId>>,
    gets: u64,
    seconds: u64,
) -> Vec<Duration> {
    let began = now();
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..gets * seconds {
        let due = began + Duration::from_secs_f64(number as f64 / gets as f64);
        tokio::time::sleep_until(due).await;
        let (links, peer, ids, times) = (links.clone(), peer.clone(), Arc::clone(ids), Arc::clone(&times));
        tasks.push(host.spawn(READER, move |_| async move {
            let want = Want::all(ids[(number.wrapping_mul(7919) % ids.len() as u64) as usize]);
            let mut groups = Groups::new(&want, SMALL as u64, links.get(&peer, &want, soon()).await.unwrap());
            while groups.next().await.unwrap().is_some() {}
            times.lock().unwrap().push(due.elapsed());
        }));
    }
    for task in tasks {
        task.ended().await;
    }
    let mut times = std::mem::take(&mut *times.lock().unwrap());
    times.sort_unstable();
    times
}

fn quantile(times: &[Duration], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
}

/// Of so many workers, with all of its threads at a priority: 0 as usual, 19 what others leave.
fn runtime(threads: usize, nice: i32) -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // Zero is the thread that calls.
    runtime.on_thread_start(move || rustix::process::setpriority_process(None, nice).unwrap());
    runtime.worker_threads(threads).enable_all().build().unwrap()
}

fn main() {
    let (seconds, gets) = (argument("--seconds", 10), argument("--gets", 400));
    let (rate, in_shards) = (argument("--rate", 50) << 20, argument("--shards", 0) > 0);
    let given = std::env::args().nth(1).filter(|first| !first.starts_with("--"));
    let made = tempfile::tempdir().unwrap();
    let dir: &Path = given.as_deref().map_or(made.path(), Path::new);
    let (serving, others, reading) = (runtime(2, 0), runtime(2, 19), runtime(1, 0));
    let members = Snapshot::new(Vec::new());
    let node = serving.block_on(Node::start(dir.join("0"), &members, 0, rate));
    members.replace(vec![node.member.clone()]);
    let rest: Vec<Node> = (1..3)
        .map(|zone| {
            // In a thread of theirs, so that whatever it starts is at their priority.
            let (dir, members) = (dir.join(zone.to_string()), members.clone());
            #[allow(clippy::disallowed_methods, reason = "it is joined in the next line")]
            let node = others.spawn(async move { Node::start(dir, &members, zone, rate).await });
            others.block_on(node).unwrap()
        })
        .collect();
    let owner = Identity::generate().unwrap();
    let policy = if in_shards { Policy::Erasure { data: 2, parity: 1 } } else { Policy::Copies(3) };
    // Enough for the time that is measured, and some more.
    let larges = rate * (seconds + 4) / LARGE as u64 / if in_shards { 1 } else { 2 };
    let ids = serving.block_on(async {
        for number in 0..larges {
            let put = node.keeping.put(content(LARGE, 1 << 32 | number), policy, &owner, Ack::Local, soon());
            put.await.unwrap();
        }
        let mut ids = Vec::new();
        for number in 0..SMALLS {
            // One on each node: with fewer, some would move away while they are read.
            let put = node.keeping.put(content(SMALL, number), Policy::Copies(3), &owner, Ack::Local, soon());
            ids.push(put.await.unwrap().id);
        }
        Arc::new(ids)
    });
    let (host, links) = reading.block_on(async {
        let host = Supervisor::new("reader");
        let endpoint = Endpoint::builder(Identity::generate().unwrap()).start(&host).unwrap();
        let links = Links::start(&endpoint, &host).unwrap();
        (host, links)
    });
    let peer = &node.member.peer;
    let read = |seconds| reading.block_on(read(&host, &links, peer, &ids, gets, seconds));
    read(2);
    let quiet = read(seconds);
    members.replace(std::iter::once(&node).chain(&rest).map(|node| node.member.clone()).collect());
    let before = node.moved();
    // Until it has begun.
    let began = now();
    while node.moved() < before + (8 << 20) {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", node.keeping.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (moved, began) = (node.moved(), now());
    let busy = read(seconds);
    let rate_seen = (node.moved() - moved) as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20);
    println!("{gets} gets of 64 KiB a second for {seconds} s, {policy}, repair at most {} MiB/s", rate >> 20);
    println!("| | p50 ms | p90 ms | p99 ms | p99.9 ms |\n|---|--:|--:|--:|--:|");
    for (name, times) in [("quiet", &quiet), ("while it repairs", &busy)] {
        let of = |share| quantile(times, share);
        println!("| {name} | {:.2} | {:.2} | {:.2} | {:.2} |", of(0.5), of(0.9), of(0.99), of(0.999));
    }
    println!(
        "p99 ratio {:.2}; repair moved {rate_seen:.1} MiB/s",
        quantile(&busy, 0.99) / quantile(&quiet, 0.99)
    );
    for (runtime, node) in [(&serving, &node), (&others, &rest[0]), (&others, &rest[1])] {
        runtime.block_on(node.host.shutdown());
    }
    reading.block_on(host.shutdown());
}
