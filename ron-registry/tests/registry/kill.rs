//! A real process is killed under load, again and again, and what it acknowledged is there.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use ron_core::{Supervisor, TaskSpec, disk::RealDisk};
use ron_registry::{
    Checkpoint, Content, LogTrust, Name, Outcome, Registry, RegistryError, Settings,
    store::{JournalStore, JournalStoreSettings},
};

use super::world::{LOG_KEY, ORIGIN, approvals, policy, soon};

const CHILD: &str = "RON_KILL_CHILD";
const WRITERS: u64 = 8;

/// Small files, so that pruning frees some.
fn log_settings() -> JournalStoreSettings {
    JournalStoreSettings { segment_bytes: 256 << 10, ..JournalStoreSettings::default() }
}

async fn open(dir: &Path, host: &Supervisor, seen: Option<Checkpoint>) -> Result<Registry, RegistryError> {
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let store = JournalStore::open(host, disk, Path::new("log"), log_settings()).await?;
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(Settings::default());
    let builder = match seen {
        Some(seen) => builder.seen(seen),
        None => builder,
    };
    builder.start(Arc::new(store), host).await
}

fn name(number: u64) -> Name {
    format!("n/{number}").parse().unwrap()
}

/// Says something that the parent must hear even if this process dies at once.
fn say(word: &str, number: u64, version: u64) {
    let line = format!("\n@{word} {number} {version}\n");
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

async fn bind(registry: &Registry, number: u64) -> u64 {
    let content = Content::Payload(vec![b'x'; 100 + number as usize % 1500].into());
    let proposal = registry.draft_bind(name(number), content, Duration::from_secs(3600)).unwrap();
    let approvals = approvals(&proposal, &[0]);
    match registry.submit(proposal, approvals, soon()).await {
        Ok(Outcome::Committed(receipt)) => receipt.version,
        other => panic!("{number}: {other:?}"),
    }
}

/// Commits and prunes until it is killed. Not a test of its own: the one below runs it in another process.
#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (start, seen) = (number("RON_KILL_START"), number("RON_KILL_SEEN"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let host = Supervisor::new("host");
        let registry = open(Path::new(&dir), &host, None).await.unwrap();
        if registry.head().version == 0 {
            registry.found(policy(1, 1), soon()).await.unwrap();
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let registry = registry.clone();
                host.spawn(TaskSpec::new("test", "writer"), move |_| async move {
                    for step in 0.. {
                        let number = start + step * WRITERS + writer;
                        say("binding", number, 0);
                        let version = bind(&registry, number).await;
                        say("bound", number, version);
                        if writer == 0 && step % 10 == 9 {
                            // Not what the parent has seen the head of: it could not be compared any more.
                            registry.prune(version.saturating_sub(300).min(seen), soon()).await.unwrap();
                            say("pruned", number, version);
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.ended().await;
        }
    });
}

/// What is owed: the version that was told, or none if it may or may not be there.
type Owed = BTreeMap<u64, Option<u64>>;

fn round(dir: &Path, owed: &mut Owed, (start, seen): (u64, u64), lives: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .env("RON_KILL_START", start.to_string())
        .env("RON_KILL_SEEN", seen.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut last, mut acknowledged, mut began) = (start, 0, None);
    for line in lines.map_while(Result::ok) {
        let mut words = line.strip_prefix('@').into_iter().flat_map(|line| line.split(' '));
        let (Some(word), Some(number), Some(version)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (Ok(number), Ok(version)) = (number.parse::<u64>(), version.parse::<u64>()) else { continue };
        last = last.max(number);
        match word {
            "binding" => drop(owed.insert(number, None)),
            "bound" => {
                owed.insert(number, Some(version));
                acknowledged += 1;
            }
            _ => {}
        }
        // Its life is counted from its first word, and has something in it: on a busy machine things take as long as they take.
        let began = *began.get_or_insert_with(ron_core::now);
        if began.elapsed() >= lives && acknowledged > 0 {
            let _ = child.kill();
        }
    }
    let ended = child.wait().unwrap();
    assert!(acknowledged > 0, "it died before it did anything: {ended}");
    last + 1
}

#[test]
fn what_was_acknowledged_survives_being_killed() {
    let rounds: u64 = std::env::var("RON_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let dir = tempfile::tempdir().unwrap();
    let (mut owed, mut start, mut seen): (_, _, Option<Checkpoint>) = (Owed::new(), 0, None);
    let mut rng = fastrand::Rng::with_seed(7);
    for round_number in 0..rounds {
        let known = seen.as_ref().map_or(0, |seen| seen.size);
        start = round(dir.path(), &mut owed, (start, known), Duration::from_millis(rng.u64(50..500)));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let host = Supervisor::new("host");
            // It is a continuation of what was there before.
            let registry = open(dir.path(), &host, seen.take()).await.unwrap();
            let (head, first) = (registry.head().version, registry.status().first);
            let trust = LogTrust::new(registry.log_key());
            for (number, owed) in &mut owed {
                let latest = registry.name(&name(*number)).unwrap().latest.map(|latest| latest.version);
                assert!(
                    owed.is_none() || latest == *owed,
                    "{number}: {latest:?} is there, {owed:?} was told"
                );
                *owed = latest;
                let Some(version) = latest.filter(|version| *version >= first) else { continue };
                // A signature each: the newest and some others are enough.
                if version + 20 > head || version % 50 == 0 {
                    let entry = registry.entry(version, soon()).await.unwrap();
                    assert_eq!(entry.proposal().action().name(), Some(&name(*number)));
                    registry.prove(version).unwrap().verify(entry.encoded(), &trust).unwrap();
                }
            }
            // What nobody was told of and is not there will not come any more.
            owed.retain(|_, version| version.is_some());
            assert_eq!(owed.len() as u64, head - 1, "one entry for each name, and the beginning");
            seen = Some(trust.open(&registry.checkpoint()).unwrap());
            println!("round {round_number}: {head} entries, the first is {first}");
            host.shutdown().await;
        });
    }
}
