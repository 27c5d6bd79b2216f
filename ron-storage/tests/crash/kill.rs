//! A real process is killed under load, again and again, and what it acknowledged is there.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Supervisor, TaskSpec, disk::RealDisk};
use ron_storage::{Settings, Store};

const CHILD: &str = "RON_KILL_CHILD";
const WRITERS: u64 = 8;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn settings() -> Settings {
    Settings {
        small_bytes_max: 4096,
        segment_bytes: 1 << 20,
        collect_grace: Duration::ZERO,
        ..Settings::default()
    }
}

fn content(number: u64) -> Bytes {
    let len = if number % 7 == 3 { 100_000 } else { 100 + number % 3000 };
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

async fn open(dir: &Path, host: &Supervisor) -> Store {
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    Store::builder().data(disk, "store").settings(settings()).start(host).await.unwrap()
}

/// Says something that the parent must hear even if this process dies at once.
fn say(word: &str, number: u64) {
    let line = format!("\n@{word} {number}\n");
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Puts and deletes until it is killed. Not a test of its own: the one below runs it in another process.
#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let start: u64 = std::env::var("RON_KILL_START").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let host = Supervisor::new("host");
        let store = open(Path::new(&dir), &host).await;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = store.clone();
                host.spawn(TaskSpec::new("test", "writer"), move |_| async move {
                    for step in 0.. {
                        let number = start + step * WRITERS + writer;
                        say("putting", number);
                        store.put_bytes(content(number), soon()).await.unwrap();
                        say("put", number);
                        if step % 3 == 2 {
                            let gone = number - WRITERS;
                            say("deleting", gone);
                            store.delete(ContentId::of(&content(gone)), soon()).await.unwrap();
                            say("deleted", gone);
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

/// What is owed: `None` means either.
type Owed = BTreeMap<u64, Option<bool>>;

fn round(dir: &Path, owed: &mut Owed, start: u64, lives: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .env("RON_KILL_START", start.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut last, mut acknowledged) = (start, 0);
    let mut killed_at = None;
    for line in lines.map_while(Result::ok) {
        let Some((word, number)) = line.strip_prefix('@').and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else { continue };
        last = last.max(number);
        let now = match word {
            "putting" | "deleting" => None,
            "put" => Some(true),
            _ => Some(false),
        };
        owed.insert(number, now);
        acknowledged += u64::from(now.is_some());
        // Its life is counted from its first word, and has something in it: on a busy machine things take as long as they take.
        let began = *killed_at.get_or_insert_with(ron_core::now);
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
    let (mut owed, mut start) = (Owed::new(), 0);
    let mut rng = fastrand::Rng::with_seed(5);
    for round_number in 0..rounds {
        start = round(dir.path(), &mut owed, start, Duration::from_millis(rng.u64(20..400)));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let host = Supervisor::new("host");
            let store = open(dir.path(), &host).await;
            assert!(!store.opened().was_clean && store.opened().damaged == 0, "{:?}", store.opened());
            for (number, owed) in &mut owed {
                let content = content(*number);
                match store.get_bytes(ContentId::of(&content), u64::MAX, soon()).await {
                    Ok(got) => {
                        assert_eq!(got, content);
                        assert_ne!(*owed, Some(false), "{number} was deleted");
                        *owed = Some(true);
                    }
                    Err(ron_storage::StorageError::NotFound { .. }) => {
                        assert_ne!(*owed, Some(true), "{number} was put");
                        *owed = Some(false);
                    }
                    Err(error) => panic!("{number}: {error}"),
                }
            }
            println!("round {round_number}: {:?}", store.opened());
            // Every other round the next one starts from an index that is older than the journal.
            if round_number % 2 == 0 {
                host.shutdown().await;
            } else {
                host.abort();
                // Until nobody has the directory any more.
                host.shutdown().await;
            }
        });
    }
}
