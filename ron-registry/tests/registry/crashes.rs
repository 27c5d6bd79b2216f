//! Power fails at every call of the disk in turn while a registry is founded, decides, prunes and decides again. What was
//! acknowledged is there afterwards, in its place, covered by a signed head, and nothing is there that nobody decided.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ron_core::{
    Deadline, Supervisor,
    sim::{CrashStyle, SimDisk},
};
use ron_registry::{
    Entry, LogTrust, ProposalId, Receipt, Registry,
    store::{Appended, Block, BoxFuture, LogStore, StoreError, StoredMemo, StoredSnapshot, Tail},
};

use super::world::{LOG_KEY, ORIGIN, bind, bind_many, clock, host, journal, policy, soon};

/// What a store under test does wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// It acknowledges a block when the next one comes, and so the last one too early.
    EarlyAck,
    /// It lets go of entries with a snapshot that is not whole.
    TornSnapshot,
}

#[derive(Debug)]
struct Buggy {
    store: Arc<dyn LogStore>,
    bug: Bug,
    held: Mutex<Option<(u64, Block)>>,
}

impl LogStore for Buggy {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(async move {
            if self.bug != Bug::EarlyAck {
                return self.store.append_if(after, block, deadline).await;
            }
            let held = self.held.lock().unwrap().replace((after, block));
            match held {
                Some((after, block)) => self.store.append_if(after, block, deadline).await,
                None => Ok(Appended::Yes),
            }
        })
    }

    fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        self.store.read(from, max, deadline)
    }

    fn tail(&self, deadline: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        self.store.tail(deadline)
    }

    fn prune(
        &self,
        mut snapshot: StoredSnapshot,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        if self.bug == Bug::TornSnapshot {
            for part in &mut snapshot.parts {
                part.truncate(part.len() - 1);
            }
        }
        self.store.prune(snapshot, deadline)
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        self.store.snapshot(deadline)
    }

    fn begin(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        self.store.begin(snapshot, block, deadline)
    }

    fn keep_memo(&self, memo: StoredMemo, deadline: Deadline) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.keep_memo(memo, deadline)
    }

    fn take_memo(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredMemo>, StoreError>> {
        self.store.take_memo(deadline)
    }
}

async fn open(host: &Supervisor, disk: &SimDisk, bug: Bug) -> Result<Registry, String> {
    let store = journal(host, disk).await.map_err(|error| error.to_string())?;
    let store = Arc::new(Buggy { store, bug, held: Mutex::new(None) });
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock());
    builder.start(store, host).await.map_err(|error| error.to_string())
}

/// What was acknowledged before the power failed, and how much was wanted.
#[derive(Debug, Default)]
struct Done {
    acknowledged: Vec<(u64, ProposalId)>,
    wanted: u64,
}

impl Done {
    fn note(&mut self, receipt: &Receipt) {
        self.acknowledged.push((receipt.version, receipt.proposal));
    }
}

/// Founds, decides much at once, decides one by one, prunes, decides more, stops, and goes on: until the power fails.
async fn program(disk: &SimDisk, bug: Bug) -> Done {
    let mut done = Done::default();
    let first = host();
    let ran = run(&first, disk, bug, &mut done).await;
    first.shutdown().await;
    if ran.is_ok() {
        let second = host();
        let _ = go_on(&second, disk, bug, &mut done).await;
        second.shutdown().await;
    }
    done
}

async fn run(host: &Supervisor, disk: &SimDisk, bug: Bug, done: &mut Done) -> Result<(), String> {
    let registry = open(host, disk, bug).await?;
    done.wanted += 1;
    done.note(&registry.found(policy(1, 1), soon()).await.map_err(|error| error.to_string())?);
    done.wanted += 260;
    for receipt in bind_many(host, &registry, 0..260).await.into_iter().flatten() {
        done.note(&receipt);
    }
    for round in 0..4 {
        done.wanted += 1;
        let bound = bind(&registry, &format!("one/{round}"), "x", &[0]).await;
        done.note(&bound.map_err(|error| error.to_string())?);
        if round == 1 {
            registry.prune(256, soon()).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Goes on with a log that was stopped, from what the stop has left.
async fn go_on(host: &Supervisor, disk: &SimDisk, bug: Bug, done: &mut Done) -> Result<(), String> {
    let registry = open(host, disk, bug).await?;
    for round in 0..2 {
        done.wanted += 1;
        let bound = bind(&registry, &format!("on/{round}"), "x", &[0]).await;
        done.note(&bound.map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// Opens what a crash left, and says what is wrong with it.
async fn check(disk: &SimDisk, done: &Done) -> Result<(), String> {
    let host = host();
    let checked = look(&host, disk, done).await;
    host.shutdown().await;
    checked
}

async fn look(host: &Supervisor, disk: &SimDisk, done: &Done) -> Result<(), String> {
    let registry = open(host, disk, Bug::None).await?;
    let (head, first) = (registry.head().version, registry.status().first);
    let last = done.acknowledged.iter().map(|(version, _)| *version).max().unwrap_or(0);
    if head < last || head > done.wanted {
        return Err(format!("{head} entries, {last} acknowledged, {} wanted", done.wanted));
    }
    let trust = LogTrust::new(registry.log_key());
    let mut entries = Vec::new();
    while (entries.len() as u64) < head + 1 - first {
        let more = registry.entries(first + entries.len() as u64, 256, soon()).await;
        entries.extend(more.map_err(|error| error.to_string())?);
    }
    for (version, proposal) in &done.acknowledged {
        let Some(at) = version.checked_sub(first) else { continue };
        let entry = Entry::decode(&entries[at as usize]).map_err(|error| error.to_string())?;
        if (entry.version(), entry.proposal().id()) != (*version, *proposal) {
            return Err(format!("version {version} is another than was acknowledged"));
        }
        // A signature each: some of them are enough.
        if version % 50 == 0 || *version > 258 {
            let proof = registry.prove(*version).map_err(|error| error.to_string())?;
            proof.verify(entry.encoded(), &trust).map_err(|error| error.to_string())?;
        }
    }
    // And it goes on.
    if head == 0 {
        registry.found(policy(1, 1), soon()).await.map_err(|error| error.to_string())?;
    }
    let next = bind(&registry, "next", "x", &[0]).await.map_err(|error| error.to_string())?;
    if next.version != head.max(1) + 1 {
        return Err(format!("the next after {head} is {}", next.version));
    }
    Ok(())
}

/// Runs the program, crashes at `calls`, and says the first thing that is wrong.
async fn enumerate(bug: Bug, step: u64) -> Result<u64, String> {
    let disk = SimDisk::new();
    let whole = program(&disk, bug).await;
    if bug == Bug::None {
        assert_eq!(whole.acknowledged.len(), 267, "without a crash everything is acknowledged");
    }
    let calls = disk.calls();
    for call in (1..=calls).step_by(step as usize) {
        let disk = SimDisk::new();
        disk.crash_at_call(call);
        let done = program(&disk, bug).await;
        for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: call }] {
            let at = |error: String| format!("call {call} of {calls}, {style:?}: {error}");
            let once = disk.fork();
            once.restart(style);
            // Twice in a row: the second crash while the first is being recovered from.
            let twice = once.fork();
            twice.restart(CrashStyle::KeepAll);
            check(&once, &done).await.map_err(at)?;
            twice.crash_at_call(twice.calls() + 1 + call % 5);
            let host = host();
            let _ = open(&host, &twice, Bug::None).await;
            host.shutdown().await;
            twice.restart(style);
            check(&twice, &done).await.map_err(at)?;
        }
    }
    Ok(calls)
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_survives_every_crash() {
    let calls = enumerate(Bug::None, 1).await.unwrap();
    println!("{calls} calls of the disk");
}

/// The same check notices what it should.
#[tokio::test(start_paused = true)]
async fn a_store_that_acknowledges_too_early_is_caught() {
    let found = enumerate(Bug::EarlyAck, 1).await.unwrap_err();
    assert!(found.contains("acknowledged"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_not_whole_is_caught() {
    let disk = SimDisk::new();
    let done = program(&disk, Bug::TornSnapshot).await;
    disk.restart(CrashStyle::KeepAll);
    // With what the stop has left nobody would look at the snapshot.
    disk.put("log/memo", b"");
    let found = check(&disk, &done).await.unwrap_err();
    assert!(found.contains("snapshot"), "{found}");
}
