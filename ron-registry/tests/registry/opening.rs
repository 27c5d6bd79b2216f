//! How a log is found again: from what a clean stop has left, from the whole of it after a crash, and never from what is
//! not its own.

use std::{sync::Arc, time::Duration};

use ron_core::{
    TaskEnd, TaskSpec,
    sim::{CrashStyle, SimDisk},
};
use ron_registry::{LogTrust, Registry};

use super::world::{Odd, Oddity, approvals, bind, bind_many, draft, host, journal, policy, soon, start};

/// Opens what is on a disk, looks at all of it, goes on with it, and stops. Says how many entries were read for that, and
/// up to where it was known without.
async fn visit(disk: &SimDisk, entries: u64, goes_on: bool) -> (u64, u64) {
    let host = host();
    let registry = start(journal(&host, disk).await.unwrap(), &host).await;
    assert_eq!(registry.head().version, entries);
    let (trust, first) = (LogTrust::new(registry.log_key()), registry.status().first);
    for version in [first, first + (entries - first) / 2, entries] {
        let entry = registry.entry(version, soon()).await.unwrap();
        registry.prove(version).unwrap().verify(entry.encoded(), &trust).unwrap();
    }
    let name = "many/3".parse().unwrap();
    assert!(registry.name(&name).unwrap().verify(&name, &trust).unwrap().is_some());
    let opened = registry.opened();
    if goes_on {
        let bound = bind(&registry, &format!("next/{entries}"), "x", &[0]).await.unwrap();
        assert_eq!(bound.version, entries + 1);
    }
    host.shutdown().await;
    (opened.read, opened.memo)
}

/// A log of so many entries, and the disk as it is while it runs.
async fn log(entries: u64) -> (SimDisk, SimDisk) {
    let (host, disk) = (host(), SimDisk::new());
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..entries - 1).await;
    let running = disk.fork();
    host.shutdown().await;
    running.restart(CrashStyle::KeepAll);
    (disk, running)
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_stop_nothing_is_read() {
    let (disk, running) = log(600).await;
    assert_eq!(visit(&running, 600, false).await, (600, 0), "after a crash everything is");
    assert_eq!(visit(&disk, 600, false).await, (0, 600));
    let memo = disk.bytes("log/memo").unwrap();
    assert_eq!(visit(&disk, 600, true).await, (0, 600));
    assert_ne!(disk.bytes("log/memo").unwrap(), memo, "it has grown");
    // A memo from before is gone on from.
    disk.put("log/memo", &memo);
    assert_eq!(visit(&disk, 601, true).await, (1, 600));
    assert_eq!(visit(&disk, 602, false).await, (0, 602));
}

/// What was committed before the stop is remembered by its proposal, as without one.
#[tokio::test(start_paused = true)]
async fn what_was_committed_is_remembered() {
    let (host, disk) = (host(), SimDisk::new());
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    let proposal = draft(&registry, "a", "x");
    let receipt = registry.submit(proposal.clone(), approvals(&proposal, &[0]), soon()).await.unwrap();
    bind(&registry, "a", "y", &[0]).await.unwrap();
    host.shutdown().await;
    let host = self::host();
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    assert_eq!(registry.opened().memo, 3);
    assert_eq!(registry.propose(proposal, soon()).await.unwrap(), receipt);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_memo_that_is_damaged_or_of_another_log_is_not_believed() {
    let (disk, _) = log(300).await;
    let memo = disk.bytes("log/memo").unwrap();
    for at in (0..memo.len()).step_by(memo.len() / 40) {
        let disk = disk.fork();
        disk.restart(CrashStyle::KeepAll);
        disk.flip_bit("log/memo", at);
        assert_eq!(visit(&disk, 300, false).await, (300, 0), "byte {at}");
    }
    // Another log of the same name and key, which has decided otherwise.
    let (host, other) = (host(), SimDisk::new());
    let registry: Registry = start(journal(&host, &other).await.unwrap(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    bind_many(&host, &registry, 0..298).await;
    bind(&registry, "other", "x", &[0]).await.unwrap();
    host.shutdown().await;
    disk.put("log/memo", &other.bytes("log/memo").unwrap());
    assert_eq!(visit(&disk, 300, true).await, (300, 0));
    // One that was longer before somebody brought an old copy back.
    let (disk, _) = log(300).await;
    let longer = disk.fork();
    longer.restart(CrashStyle::KeepAll);
    visit(&longer, 300, true).await;
    disk.put("log/memo", &longer.bytes("log/memo").unwrap());
    assert_eq!(visit(&disk, 300, false).await, (300, 0));
}

#[tokio::test(start_paused = true)]
async fn pruning_and_a_memo_go_together() {
    let (disk, _) = log(700).await;
    let memo = disk.bytes("log/memo").unwrap();
    let host = host();
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    assert_eq!(registry.opened().memo, 700);
    assert!(registry.prune(600, soon()).await.unwrap() > 0);
    let running = disk.fork();
    host.shutdown().await;
    // Stopped after it: what is left is known.
    assert_eq!(visit(&disk, 700, false).await, (0, 700));
    // Crashed after it: the memo is of more than there is, and the snapshot is begun from.
    running.restart(CrashStyle::KeepAll);
    assert_eq!(running.bytes("log/memo").unwrap(), memo);
    assert_eq!(visit(&running, 700, true).await, (188, 0));
    assert_eq!(visit(&running, 701, false).await, (0, 701));
}

/// The journal was once stopped together with whatever else the host has, before the registry that writes to it, and what
/// was decided at the stop came to nothing.
#[tokio::test(start_paused = true)]
async fn what_is_decided_at_the_stop_still_has_a_log() {
    let (host, callers, disk) = (host(), self::host(), SimDisk::new());
    let store = Arc::new(Odd::over(journal(&host, &disk).await.unwrap()));
    let registry = start(store.clone(), &host).await;
    registry.found(policy(1, 1), soon()).await.unwrap();
    store.be(Oddity::Slow(Duration::from_millis(500)));
    // One is on its way to the store, the other gathers.
    let mut tasks = Vec::new();
    for name in ["a", "b"] {
        let registry = registry.clone();
        tasks.push(callers.spawn(TaskSpec::new("test", "caller"), move |_| async move {
            bind(&registry, name, "x", &[0]).await.unwrap();
        }));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(host.shutdown().await.aborted, 0);
    for task in tasks {
        assert_eq!(task.ended().await, TaskEnd::Completed);
    }
    let host = self::host();
    let registry = start(journal(&host, &disk).await.unwrap(), &host).await;
    assert_eq!(registry.head().version, 3);
    host.shutdown().await;
    callers.shutdown().await;
}
