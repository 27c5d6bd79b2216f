//! Crashes a store at every call it makes to the disk, recovers, and crashes the recovery as well.
//!
//! The script puts small and large objects, deletes, pins, collects, compacts, stops and starts again. For every call in it
//! and every style of crash the checker opens what is left, with the index as it is, without it, with an older one and with
//! a torn one, and compares what it finds with what was acknowledged. It returns its complaint instead of panicking, so
//! that planted bugs can require one.

use std::{
    collections::BTreeMap,
    future::Future,
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, Supervisor,
    disk::Disk,
    planted as core_planted,
    sim::{CrashStyle, Fault, SimDisk},
};
use ron_storage::{
    Durability, Gc, Put, Settings, StorageError, Store,
    planted::{Bug, plant},
};

/// Planting is global to the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const DIR: &str = "data/store";
const INDEX: &str = "data/store/index";

fn settings() -> Settings {
    Settings {
        small_bytes_max: 700,
        segment_bytes: 4096,
        garbage_max: 0.3,
        reserve_bytes: 0,
        get_workers: NonZeroUsize::MIN,
        put_workers: NonZeroUsize::MIN,
        collect_grace: Duration::ZERO,
        upkeep_bytes_per_second: 1 << 30,
        ..Settings::default()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

/// Runs on a clock and a thread of its own, so that every run makes the same calls.
pub(crate) fn run<F: Future>(work: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(work)
}

async fn open(disk: &SimDisk) -> Result<(Store, Supervisor), StorageError> {
    let host = Supervisor::builder("host").inline_blocking(true).seed(1).start();
    let started =
        Store::builder().data(Arc::new(disk.clone()), DIR).seed(7).settings(settings()).start(&host).await;
    match started {
        Ok(store) => Ok((store, host)),
        Err(error) => {
            host.shutdown().await;
            Err(error)
        }
    }
}

/// The object with this number: small ones of several lengths, and every fifth a large one.
fn content(number: u64) -> Bytes {
    let len = match number % 10 {
        4 => 701,
        9 => 66_000,
        other => [0, 1, 90, 300, 0, 512, 700, 64, 250, 0][usize::try_from(other).unwrap()],
    };
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.extend(number.to_be_bytes());
    bytes.truncate(len.max(8));
    bytes.into()
}

fn id(number: u64) -> ContentId {
    ContentId::of(&content(number))
}

/// What is owed for one object: that it is there, that it is not, or either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owed {
    there: Option<bool>,
    pinned: Option<bool>,
}

type Told = BTreeMap<u64, Owed>;

enum Step {
    Put(u64),
    PutBuffered(u64),
    PutPinned(u64),
    Delete(u64),
    Pin(u64),
    Unpin(u64),
    /// Compacts, and meanwhile puts so many, ten numbers apart, a fifth of a second apart and without waiting for the disk, so
    /// that some come while the keeper writes the index.
    CompactUnder(u64, u64),
    /// Collects what is not pinned and not below this number.
    Collect(u64),
    Restart,
}

const SCRIPT: &[Step] = &[
    Step::Put(0),
    Step::Put(4),
    Step::PutBuffered(6),
    Step::Put(9),
    Step::PutPinned(3),
    Step::Pin(4),
    Step::Delete(0),
    Step::Put(5),
    Step::Put(16),
    Step::Delete(9),
    Step::Restart,
    Step::Put(26),
    Step::Put(36),
    Step::PutBuffered(14),
    Step::PutBuffered(17),
    Step::Put(17),
    Step::Put(0),
    Step::Delete(16),
    Step::Delete(26),
    Step::Delete(36),
    Step::Put(46),
    Step::Put(56),
    Step::Delete(46),
    Step::Put(66),
    Step::CompactUnder(102, 8),
    Step::Unpin(4),
    Step::Put(19),
    Step::Put(7),
    Step::Collect(7),
    Step::Put(76),
    Step::Restart,
    Step::Put(86),
    Step::Delete(4),
    Step::Put(24),
];

/// What every planted bug breaks, in few calls.
const SHORT: &[Step] = &[
    Step::Put(4),
    Step::PutBuffered(17),
    Step::Put(17),
    Step::Put(16),
    Step::Put(26),
    Step::Put(36),
    Step::Put(46),
    Step::Put(56),
    Step::Put(66),
    Step::Put(76),
    Step::Put(86),
    Step::Delete(16),
    Step::Delete(26),
    Step::Delete(46),
    Step::Delete(56),
    Step::Delete(66),
    Step::Delete(76),
    Step::Put(96),
    Step::CompactUnder(102, 8),
];

/// Runs the script until it ends or the disk stops it.
async fn workload(
    disk: &SimDisk,
    script: &[Step],
    told: &mut Told,
    older: &mut Option<Vec<u8>>,
) -> Result<(), StorageError> {
    let (mut store, mut host) = open(disk).await?;
    for step in script {
        let done = act(&store, step, told).await;
        if let (Ok(()), Step::Restart) = (&done, step) {
            host.shutdown().await;
            drop(store);
            older.get_or_insert_with(|| disk.bytes(INDEX).unwrap_or_default());
            (store, host) = open(disk).await?;
        }
        if done.is_err() {
            host.shutdown().await;
            return done;
        }
    }
    host.shutdown().await;
    // The last stop has no one to tell that it failed.
    if disk.is_crashed() { Err(StorageError::Canceled) } else { Ok(()) }
}

async fn act(store: &Store, step: &Step, told: &mut Told) -> Result<(), StorageError> {
    let owed = |told: &mut Told, number: u64, owed: Owed| {
        told.insert(number, owed);
    };
    let known = |told: &Told, number: u64| {
        told.get(&number).copied().unwrap_or(Owed { there: Some(false), pinned: Some(false) })
    };
    match *step {
        Step::CompactUnder(first, count) => {
            let trickle = async {
                for number in (first..).step_by(10).take(usize::try_from(count).unwrap()) {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Box::pin(act(store, &Step::PutBuffered(number), told)).await?;
                }
                Ok(())
            };
            let (compacted, trickled) = tokio::join!(store.compact(soon()), trickle);
            compacted?;
            return trickled;
        }
        Step::Put(number) | Step::PutBuffered(number) | Step::PutPinned(number) => {
            let durability = match step {
                Step::PutBuffered(_) => Durability::Buffered,
                _ => Durability::Durable,
            };
            let pin = matches!(step, Step::PutPinned(_));
            let before = known(told, number);
            let either = Owed { there: before.there.filter(|there| *there), pinned: None };
            owed(told, number, either);
            let put = Put { durability, pin, ..Put::default() };
            let stored = store.put_with(super::Pieces::cut(&content(number), 30_000), put, soon()).await?;
            assert_eq!(stored.id, id(number));
            let there = if stored.durability == Durability::Durable { Some(true) } else { either.there };
            owed(told, number, Owed { there, pinned: Some(pin || before.pinned == Some(true)) });
        }
        Step::Delete(number) => {
            owed(told, number, Owed { there: None, pinned: Some(false) });
            store.delete(id(number), soon()).await?;
            owed(told, number, Owed { there: Some(false), pinned: Some(false) });
        }
        Step::Pin(number) | Step::Unpin(number) => {
            let before = known(told, number);
            let pins = matches!(step, Step::Pin(_));
            owed(told, number, Owed { pinned: None, ..before });
            let done = if pins {
                store.pin(id(number), soon()).await
            } else {
                store.unpin(id(number), soon()).await
            };
            done?;
            owed(told, number, Owed { pinned: Some(pins), ..before });
        }
        Step::Collect(below) => {
            let goes = |number: &u64, owed: &Owed| *number >= below && owed.pinned != Some(true);
            let going: Vec<u64> =
                told.iter().filter(|(number, owed)| goes(number, owed)).map(|(n, _)| *n).collect();
            for number in &going {
                if known(told, *number).there != Some(false) {
                    owed(told, *number, Owed { there: None, pinned: Some(false) });
                }
            }
            let kept: Vec<ContentId> = (0..below).map(id).collect();
            store.gc(Gc::new().keep(move |id| kept.contains(id)), soon()).await?;
            for number in going {
                owed(told, number, Owed { there: Some(false), pinned: Some(false) });
            }
        }
        Step::Restart => {}
    }
    Ok(())
}

/// What a recovery stands by.
type Contents = BTreeMap<ContentId, bool>;

/// Compares what is there with what is owed.
async fn check(store: &Store, disk: &SimDisk, told: &Told) -> Result<Contents, String> {
    let mut listed = Contents::new();
    let mut after = None;
    loop {
        let page = store.list(after, 5, soon()).await.map_err(|error| format!("list: {error}"))?;
        for object in page.objects {
            if object.is_quarantined {
                return Err(format!("{} is damaged", object.id));
            }
            listed.insert(object.id, object.is_pinned);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut names = BTreeMap::new();
    for (number, owed) in told {
        names.insert(id(*number), *number);
        let found = listed.get(&id(*number));
        if owed.there.is_some_and(|there| there != found.is_some()) {
            return Err(format!("object {number}: {owed:?} is owed, found {found:?}"));
        }
        if let (Some(true), Some(pinned), Some(found)) = (owed.there, owed.pinned, found) {
            if pinned != *found {
                return Err(format!("object {number}: {owed:?} is owed, pinned is {found}"));
            }
        }
    }
    for listed in listed.keys() {
        let Some(number) = names.get(listed) else { return Err(format!("{listed} was never put")) };
        let got = store
            .get_bytes(*listed, u64::MAX, soon())
            .await
            .map_err(|error| format!("object {number}: {error}"))?;
        if got != content(*number) {
            return Err(format!("object {number} has changed"));
        }
    }
    let large = listed.keys().filter(|id| content(names[*id]).len() > 700).count();
    let files = disk.list(Path::new("data/store/large")).map_err(|error| error.to_string())?.len();
    if files != 2 * large {
        return Err(format!("{files} files for {large} large objects"));
    }
    let scrubbed = store.scrub(soon()).await.map_err(|error| format!("scrub: {error}"))?;
    if !scrubbed.damaged.is_empty() {
        return Err(format!("scrub: {scrubbed:?}"));
    }
    Ok(listed)
}

/// Opens and checks; then puts something, loses power and checks that this too is there.
async fn recover_and_go_on(
    disk: &SimDisk,
    told: &Told,
    stands: Option<&Contents>,
) -> Result<Contents, String> {
    let (store, host) = open(disk).await.map_err(|error| format!("recovery: {error:?}"))?;
    let found = check(&store, disk, told).await?;
    if let Some(stands) = stands.filter(|stands| **stands != found) {
        return Err(format!("an earlier recovery stood by {stands:?}, now {found:?}"));
    }
    let mut told = told.clone();
    for (number, owed) in &mut told {
        owed.there = Some(found.contains_key(&id(*number)));
    }
    for step in [Step::Put(1006), Step::Put(1004)] {
        act(&store, &step, &mut told).await.map_err(|error| format!("put after recovery: {error:?}"))?;
    }
    disk.restart(CrashStyle::LoseUnsynced);
    host.shutdown().await;
    drop(store);
    let (store, host) = open(disk).await.map_err(|error| format!("second recovery: {error:?}"))?;
    check(&store, disk, &told).await.map_err(|complaint| format!("after going on: {complaint}"))?;
    host.shutdown().await;
    Ok(found)
}

#[derive(Debug, Default)]
struct Stats {
    crash_points: u64,
    recoveries: u64,
    recovery_crash_points: u64,
}

/// How thorough an enumeration is. Every call of the script is crashed in any case.
#[derive(Clone, Copy)]
struct Effort {
    script: &'static [Step],
    /// All styles of crash for every call, and all kinds of index for each, or some of them in turn.
    is_whole: bool,
    scrambles: u64,
    /// At every how many calls of the script recoveries are crashed too, and at every how many of their own.
    again: (u64, usize),
}

impl Effort {
    fn styles(self, point: u64) -> Vec<CrashStyle> {
        let changes = 1 + usize::try_from(point % 3).unwrap();
        let plain = [CrashStyle::KeepAll, CrashStyle::Killed, CrashStyle::KeepPrefix { changes }];
        let plain =
            if self.is_whole { plain.to_vec() } else { vec![plain[usize::try_from(point % 3).unwrap()]] };
        let scrambled = (0..self.scrambles).map(|seed| CrashStyle::Scramble { seed: point * 1000 + seed });
        [CrashStyle::LoseUnsynced].into_iter().chain(plain).chain(scrambled).collect()
    }
}

/// The whole enumeration. The error is the first violation, with what is needed to see it again.
fn enumerate(effort: Effort) -> Result<Stats, String> {
    let _slow = plant(Bug::SlowIndex);
    let mut stats = Stats::default();
    for point in 1.. {
        let disk = SimDisk::new();
        let (mut told, mut older) = (Told::new(), None);
        disk.crash_at_call(point);
        if run(workload(&disk, effort.script, &mut told, &mut older)).is_ok() {
            break;
        }
        stats.crash_points += 1;
        if !disk.is_crashed() {
            return Err(format!("the workload failed before its crash at call {point}"));
        }
        let last = disk.log().last().map(ToString::to_string).unwrap_or_default();
        for style in effort.styles(point) {
            let disk = disk.fork();
            disk.restart(style);
            crash_recovery(&disk, &told, older.as_deref(), point, effort, &mut stats)
                .map_err(|complaint| format!("crash at call {last}, {style:?}: {complaint}"))?;
        }
    }
    Ok(stats)
}

/// What may be there instead of the newest index: none, an older one, and what a crash may leave of it, which is a part of it
/// or all of it with a hole.
fn indexes(newest: Option<&[u8]>, older: Option<&[u8]>) -> Vec<(String, Option<Vec<u8>>)> {
    let mut indexes: Vec<_> =
        older.map(|older| ("an older one".to_owned(), Some(older.to_vec()))).into_iter().collect();
    let Some(newest) = newest else { return indexes };
    indexes.push(("missing".to_owned(), None));
    // In the middle of the header, behind it, inside an entry, inside the sum, and all of it but the last byte.
    let len = newest.len();
    for end in [0, 40, 96, 96 + 50, len / 2, len.saturating_sub(20), len - 1] {
        let end = end.min(len - 1);
        indexes.push((format!("cut at {end} of {len}"), Some(newest[..end].to_vec())));
    }
    for at in (0..len).step_by(512) {
        let mut holed = newest.to_vec();
        holed[at..len.min(at + 512)].fill(0);
        indexes.push((format!("a hole at {at} of {len}"), Some(holed)));
    }
    indexes
}

/// Recovers with every kind of index there may be, and crashes the recovery at some of its own calls.
fn crash_recovery(
    disk: &SimDisk,
    told: &Told,
    older: Option<&[u8]>,
    point: u64,
    effort: Effort,
    stats: &mut Stats,
) -> Result<(), String> {
    let recover = |disk: &SimDisk, stands: Option<&Contents>, stats: &mut Stats| {
        stats.recoveries += 1;
        run(recover_and_go_on(disk, told, stands))
    };
    let stands = recover(&disk.fork(), None, stats)?;
    let newest = disk.bytes(INDEX);
    let indexes = indexes(newest.as_deref(), older);
    for (turn, (kind, index)) in indexes.iter().enumerate() {
        if !effort.is_whole && (point + stats.recoveries) as usize % indexes.len() != turn {
            continue;
        }
        let disk = disk.fork();
        match index {
            Some(bytes) => disk.put(INDEX, bytes),
            None => disk.remove(Path::new(INDEX)).unwrap(),
        }
        recover(&disk, Some(&stands), stats)
            .map_err(|complaint| format!("with an index that is {kind}: {complaint}"))?;
    }
    let (every, stride) = effort.again;
    if point % every != 0 {
        return Ok(());
    }
    for again in (1 + point as usize % stride..).step_by(stride) {
        let disk = disk.fork();
        disk.crash_at_call(again as u64);
        // A recovery that got through stands by what it found, whatever happens next.
        let opened = run(async {
            match open(&disk).await {
                Ok((store, host)) => {
                    let found = check(&store, &disk, told).await;
                    drop(store);
                    host.shutdown().await;
                    if disk.is_crashed() { Ok(found.ok()) } else { found.map(Some) }
                }
                Err(_) if disk.is_crashed() => Ok(None),
                Err(error) => Err(format!("recovery: {error:?}")),
            }
        });
        let stands = opened?;
        if !disk.is_crashed() {
            return Ok(());
        }
        stats.recovery_crash_points += 1;
        let seed = point * 77 + again as u64;
        for style in [CrashStyle::LoseUnsynced, CrashStyle::Scramble { seed }] {
            let disk = disk.fork();
            disk.restart(style);
            recover(&disk, stands.as_ref(), stats).map_err(|complaint| {
                format!("recovery crashed at its call {again}, {style:?}: {complaint}")
            })?;
        }
    }
    Ok(())
}

/// The whole of it with `RON_CRASH_ALL`, as `.ci/long crash` does.
fn effort() -> Effort {
    if std::env::var_os("RON_CRASH_ALL").is_some() {
        Effort { script: SCRIPT, is_whole: true, scrambles: 4, again: (1, 1) }
    } else {
        Effort { script: SCRIPT, is_whole: false, scrambles: 1, again: (16, 7) }
    }
}

#[test]
fn acknowledged_objects_survive_a_crash_at_every_call() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let stats = enumerate(effort()).unwrap();
    println!("{stats:?}");
    assert!(stats.crash_points > 100, "{stats:?}");
}

/// Every call fails in turn instead, and then the machine goes down.
#[test]
fn acknowledged_objects_survive_a_failure_of_every_call() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for fault in [Fault::Io, Fault::NoSpace] {
        let mut points = 0;
        for point in (1..).step_by(if effort().is_whole { 1 } else { 9 }) {
            let disk = SimDisk::new();
            let (mut told, mut older) = (Told::new(), None);
            disk.fail_call(point, fault);
            let failed = run(workload(&disk, SCRIPT, &mut told, &mut older));
            if disk.calls() < point {
                break;
            }
            points += 1;
            for style in [CrashStyle::LoseUnsynced, CrashStyle::Killed, CrashStyle::Scramble { seed: point }]
            {
                let disk = disk.fork();
                disk.restart(style);
                run(recover_and_go_on(&disk, &told, None)).unwrap_or_else(|complaint| {
                    panic!("{fault:?} in call {point}, {failed:?}, {style:?}: {complaint}");
                });
            }
        }
        println!("{fault:?}: {points} points");
        assert!(points > 10);
    }
}

#[test]
fn the_enumeration_notices_what_is_planted() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let effort = Effort { script: SHORT, is_whole: false, scrambles: 1, again: (u64::MAX, 1) };
    let stats = enumerate(effort).expect("nothing is planted");
    assert!(stats.crash_points > 50, "{stats:?}");
    for bug in [Bug::NoSync, Bug::NoDirSync, Bug::IndexBeforeData, Bug::TrustedIndex, Bug::RemoveBeforeCopy] {
        let _planted = plant(bug);
        let complaint = enumerate(effort).expect_err(&format!("{bug:?} was not noticed"));
        println!("{bug:?}: {complaint}");
    }
    for bug in [core_planted::Bug::MissingSync, core_planted::Bug::MissingDirSync] {
        let _planted = core_planted::plant(bug);
        let complaint = enumerate(effort).expect_err(&format!("{bug:?} was not noticed"));
        println!("{bug:?}: {complaint}");
    }
}
