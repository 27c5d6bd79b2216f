//! Figures of a log of a million entries on a real directory.
//!
//! `measure DIR [entries] [names]`: commits so many entries of 1 KiB about so many names (a million and ten thousand), stops,
//! and prints how long the next opening takes, how long proofs take, how fast the log is verified, how large it is, and how
//! long it takes to prune half of it and to open it again after a crash.

#![allow(missing_docs, clippy::unwrap_used, reason = "a tool for those who measure")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Deadline, Supervisor, TaskSpec, disk::RealDisk, net::Identity, now};
use ron_registry::{
    Content, LogTrust, Name, Outcome, Policy, Registry, Settings, Signer,
    store::{JournalStore, JournalStoreSettings},
};

const CALLER: TaskSpec = TaskSpec::new("long_log", "caller");
const CALLERS: u64 = 256;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

/// A registry whose verifier does nothing else when it is to be measured.
async fn open(dir: &Path, verify: bool) -> (Registry, Supervisor) {
    let host = Supervisor::new("long_log");
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let store =
        JournalStore::open(&host, disk, Path::new("log"), JournalStoreSettings::default()).await.unwrap();
    let (verify_interval, drain) = match verify {
        true => (Duration::from_millis(1), Duration::from_secs(60)),
        false => (Duration::from_secs(3600), Duration::from_secs(60)),
    };
    let settings = Settings { verify_interval, drain, ..Settings::default() };
    let registry = Registry::builder("example.com/measure", [7; 32]).settings(settings);
    (registry.start(Arc::new(store), &host).await.unwrap(), host)
}

fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0) / 1024
}

fn disk_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("log")).unwrap().filter_map(Result::ok);
    let lengths = files.filter(|file| file.file_name() != "memo").map(|file| file.metadata().unwrap().len());
    lengths.sum()
}

fn name(number: u64) -> Name {
    format!("packages/p{number}").parse().unwrap()
}

async fn fill(registry: &Registry, host: &Supervisor, entries: u64, names: u64) {
    let person = Arc::new(Identity::from_seed(&[1; 32]));
    let signer = Signer { name: "p".into(), key: person.public_key(), expires: None };
    registry.found(Policy::of(1, vec![signer]).unwrap(), soon()).await.unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (registry, person) = (registry.clone(), Arc::clone(&person));
            host.spawn(CALLER, move |_| async move {
                // Each has names of its own, so that nobody overtakes anybody.
                for number in (caller..entries - 1).step_by(CALLERS as usize) {
                    let mut payload = vec![0; 800];
                    fastrand::Rng::with_seed(number).fill(&mut payload);
                    let name = name(number % names / CALLERS * CALLERS + caller);
                    let content = Content::Payload(Bytes::from(payload));
                    let proposal = registry.draft_bind(name, content, Duration::from_secs(3600)).unwrap();
                    let approval = proposal.approve(&person, proposal.expires());
                    let outcome = registry.submit(proposal, vec![approval], soon()).await.unwrap();
                    assert!(matches!(outcome, Outcome::Committed(_)));
                }
            })
        })
        .collect();
    for caller in callers {
        caller.ended().await;
    }
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

fn proofs(registry: &Registry, first: u64) {
    let (head, mut rng) = (registry.head().version, fastrand::Rng::with_seed(3));
    let trust = LogTrust::new(registry.log_key());
    let mut times: Vec<Duration> = (0..20_000)
        .map(|_| {
            let version = rng.u64(first..=head);
            let began = now();
            std::hint::black_box(registry.prove(version).unwrap());
            began.elapsed()
        })
        .collect();
    println!("proof of an entry: p50 {:?}, p99 {:?}", quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    let mut times: Vec<Duration> = (0..20_000)
        .map(|_| {
            let name = name(rng.u64(0..256));
            let began = now();
            std::hint::black_box(registry.name(&name).unwrap());
            began.elapsed()
        })
        .collect();
    println!("proof of a name: p50 {:?}, p99 {:?}", quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    let name = name(0);
    assert!(registry.name(&name).unwrap().verify(&name, &trust).unwrap().is_some());
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a directory"));
    let mut number = |usual: u64| arguments.next().map_or(usual, |number| number.parse().unwrap());
    let (entries, names) = (number(1_000_000), number(10_000));

    let (registry, host) = open(&dir, false).await;
    if registry.head().version == 0 {
        let began = now();
        fill(&registry, &host, entries, names).await;
        println!("{entries} entries about {names} names committed in {:?}", began.elapsed());
    }
    let head = registry.head().version;
    println!(
        "{:.0} bytes an entry on disk, {} MiB in memory",
        disk_bytes(&dir) as f64 / head as f64,
        memory()
    );
    let began = now();
    host.shutdown().await;
    println!("stopped in {:?}", began.elapsed());
    drop((registry, host));

    let began = now();
    let (registry, host) = open(&dir, false).await;
    println!("opened in {:?} after a clean stop: {:?}", began.elapsed(), registry.opened());
    assert_eq!(registry.head().version, head);
    proofs(&registry, 1);
    host.shutdown().await;
    drop((registry, host));

    // The verifier begins again with everything, signatures included.
    let (registry, host) = open(&dir, true).await;
    let (began, before) = (now(), registry.status().verified);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let verified = registry.status().verified - before;
    println!(
        "verified {:.0} entries a second, signatures included",
        verified as f64 / began.elapsed().as_secs_f64()
    );
    host.shutdown().await;
    drop((registry, host));

    // As a crash leaves it.
    std::fs::remove_file(dir.join("log/memo")).unwrap();
    let began = now();
    let (registry, host) = open(&dir, false).await;
    println!("opened in {:?} after a crash: {:?}", began.elapsed(), registry.opened());
    let began = now();
    let freed = registry.prune(head / 2, soon()).await.unwrap();
    println!("pruned half of it in {:?}: {} MiB freed", began.elapsed(), freed >> 20);
    proofs(&registry, head / 2 + 1);
    host.shutdown().await;
}
