//! Crashes a journal at every call it makes to the disk, recovers, and crashes the recovery as well.
//!
//! The workload appends batches, syncs late, rotates, removes, closes and reopens. For every call in it and every
//! style of crash the checker opens what is left and compares it with what was acknowledged, byte for byte. It
//! returns its complaint instead of panicking, so that the planted bugs below can require one.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use ron_core::{
    journal::{Entry, Item, JournalError, OnDamage, Position, Recovered, Salts, Segments, Settings},
    planted::{Bug, plant},
    sim::{CrashStyle, Fault, SimDisk},
};

/// Planting is global to the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const DIR: &str = "data/log";

fn settings() -> Settings {
    Settings {
        segment_bytes: 2048,
        chunk_bytes: 1024,
        record_bytes_max: 4096,
        on_damage: OnDamage::Refuse,
        salts: Salts::Seeded(7),
        ..Settings::default()
    }
}

fn open(disk: &SimDisk) -> Result<(Segments, Recovered), JournalError> {
    Segments::open(Arc::new(disk.clone()), Path::new(DIR), settings())
}

/// The payload of the `n`-th record: its number, then bytes that depend on it, of a length that varies from nothing
/// to several sectors.
fn payload(n: u64) -> Vec<u8> {
    let len = [0, 1, 7, 40, 100, 300, 513, 8, 1100, 25][usize::try_from(n % 10).unwrap()];
    let mut bytes = n.to_be_bytes().to_vec();
    bytes.extend((0..len).map(|i: u64| u8::try_from((i * 31 + n * 7) % 251).unwrap()));
    bytes
}

/// What the workload has been told so far.
#[derive(Debug, Clone, Default)]
struct Told {
    /// Records handed to the journal, whether or not it answered.
    submitted: u64,
    /// Records that were acknowledged as durable.
    durable: u64,
    /// Segments below this were acknowledged as removed.
    removed_before: u64,
    /// The highest segment whose removal was asked for.
    removing_before: u64,
    /// Where the acknowledged records are.
    positions: BTreeMap<u64, Position>,
}

enum Step {
    Commit(u64),
    Append(u64),
    Sync,
    RemoveBefore(u64),
    Reopen,
    /// Drop without closing, then open.
    Abandon,
}

const SCRIPT: &[Step] = &[
    Step::Commit(1),
    Step::Commit(3),
    Step::Append(2),
    Step::Sync,
    Step::Commit(2),
    Step::Reopen,
    Step::Commit(1),
    Step::Append(1),
    Step::Commit(4),
    Step::Append(1),
    Step::Append(3),
    Step::RemoveBefore(3),
    Step::Commit(2),
    Step::Abandon,
    Step::Append(2),
    Step::Commit(1),
    Step::RemoveBefore(5),
    Step::Reopen,
    Step::Commit(3),
];

/// Runs the script until it ends or the disk stops it.
fn workload(disk: &SimDisk, told: &mut Told) -> Result<(), JournalError> {
    let (mut journal, _) = open(disk)?;
    for step in SCRIPT {
        match step {
            Step::Commit(count) | Step::Append(count) => {
                let numbers = told.submitted..told.submitted + count;
                let payloads: Vec<_> = numbers.clone().map(payload).collect();
                told.submitted = numbers.end;
                let entries = payloads.iter().map(|payload| Entry::new(5, payload));
                let appended = match step {
                    Step::Commit(_) => journal.commit(entries),
                    _ => journal.append_unsynced(entries),
                };
                if appended == Err(JournalError::NoSpace) {
                    // Refused is a promise too: nothing of it may turn up.
                    told.submitted = numbers.start;
                }
                let positions = appended?;
                if let Step::Commit(_) = step {
                    told.durable = numbers.end;
                }
                told.positions.extend(numbers.zip(positions));
            }
            Step::Sync => {
                journal.sync()?;
                told.durable = told.submitted;
            }
            Step::RemoveBefore(segment) => {
                // The segment that is appended to always stays.
                let segment = journal.tail().segment.min(*segment);
                told.removing_before = segment;
                journal.remove_before(segment)?;
                told.removed_before = segment;
            }
            Step::Reopen => {
                journal.close()?;
                told.durable = told.submitted;
                journal = open(disk)?.0;
            }
            Step::Abandon => {
                drop(journal);
                journal = open(disk)?.0;
                // What it found is what it stands by from now on.
                told.durable = told.submitted;
            }
        }
    }
    Ok(())
}

/// What a recovery stands by: the numbers of the records it found.
type Contents = Vec<u64>;

fn contents(journal: &Segments) -> Result<Contents, String> {
    let mut found = Vec::new();
    for item in journal.scan(Position::START) {
        match item {
            Ok(Item::Record(record)) => {
                let Some(number) = record.payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
                else {
                    return Err(format!("a record without a number at {}", record.position));
                };
                if record.payload != payload(number) || record.kind != 5 {
                    return Err(format!("record {number} changed"));
                }
                let read = journal.read(record.position).map_err(|error| format!("read back: {error}"))?;
                if read != record {
                    return Err(format!("record {number} reads differently"));
                }
                found.push(number);
            }
            other => return Err(format!("scan: {other:?}")),
        }
    }
    Ok(found)
}

/// Compares what a recovery found with what the workload was told.
fn check(journal: &Segments, told: &Told) -> Result<Contents, String> {
    let found = contents(journal)?;
    if found.windows(2).any(|pair| pair[0] + 1 != pair[1]) {
        return Err(format!("out of order or with a hole: {found:?}"));
    }
    let first_segment = journal.segments()[0].sequence;
    if first_segment < told.removed_before {
        return Err(format!("removed segment {first_segment} is back"));
    }
    // The first record that must be there: the first whose segment nobody asked to remove.
    let due = (0..told.durable).find(|number| {
        told.positions.get(number).is_none_or(|position| position.segment >= told.removing_before)
    });
    let end = found.last().map_or(0, |last| last + 1);
    if let Some(due) = due {
        if found.first().is_none_or(|first| *first > due) || end < told.durable {
            return Err(format!("{due}..{} acknowledged, found {found:?}", told.durable));
        }
    }
    if end > told.submitted {
        return Err(format!("record {end} was never submitted"));
    }
    for (number, position) in &told.positions {
        let stands = *number < told.durable && position.segment >= told.removing_before;
        if stands && journal.read(*position).map(|record| record.payload.to_vec()) != Ok(payload(*number)) {
            return Err(format!("record {number} is not where it was acknowledged"));
        }
    }
    Ok(found)
}

/// Opens, checks, appends, and checks that this survives the harshest crash.
///
/// What is appended is the first record that was lost, as a client would retry. It has the very size of the hole, so
/// a survivor behind it that recovery failed to cut away would be next in line to come back to life.
fn recover_and_go_on(disk: &SimDisk, told: &Told, stands: Option<&Contents>) -> Result<(), String> {
    let (mut journal, _) = open(disk).map_err(|error| format!("recovery: {error:?}"))?;
    let found = check(&journal, told)?;
    if let Some(stands) = stands {
        if *stands != found {
            return Err(format!("an earlier recovery stood by {stands:?}, now {found:?}"));
        }
    }
    let retried = found.last().map_or(0, |last| last + 1);
    journal
        .commit([Entry::new(5, &payload(retried))])
        .map_err(|error| format!("append after recovery: {error:?}"))?;
    drop(journal);
    disk.restart(CrashStyle::LoseUnsynced);
    let (journal, _) = open(disk).map_err(|error| format!("recovery after appending: {error:?}"))?;
    let expected: Contents = found.into_iter().chain([retried]).collect();
    let found = contents(&journal)?;
    if found != expected {
        return Err(format!("appended after recovery: expected {expected:?}, found {found:?}"));
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Stats {
    crash_points: u64,
    recoveries: u64,
    recovery_crash_points: u64,
}

fn styles(point: u64, scrambles: u64) -> impl Iterator<Item = CrashStyle> {
    [
        CrashStyle::LoseUnsynced,
        CrashStyle::KeepAll,
        CrashStyle::Killed,
        CrashStyle::KeepPrefix { changes: 1 },
        CrashStyle::KeepPrefix { changes: 2 },
        CrashStyle::KeepPrefix { changes: 3 },
    ]
    .into_iter()
    .chain((0..scrambles).map(move |seed| CrashStyle::Scramble { seed: point * 1000 + seed }))
}

/// A disk whose journal was made in peace, so that a complaint is about appending and rotating.
fn made() -> SimDisk {
    let disk = SimDisk::new();
    open(&disk).unwrap().0.close().unwrap();
    disk
}

/// The whole enumeration. The error is the first violation, with what is needed to see it again.
fn enumerate(start: &SimDisk, scrambles: u64) -> Result<Stats, String> {
    let mut stats = Stats::default();
    for point in 1.. {
        let disk = start.fork();
        let mut told = Told::default();
        disk.crash_at_call(point);
        if workload(&disk, &mut told).is_ok() {
            break;
        }
        stats.crash_points += 1;
        if !disk.is_crashed() {
            return Err(format!("the workload failed before its crash at call {point}"));
        }
        let last = disk.log().last().map(ToString::to_string).unwrap_or_default();
        for style in styles(point, scrambles) {
            let disk = disk.fork();
            disk.restart(style);
            // Orders the kernel could have chosen are many and alike; every call is tried for the plain styles.
            let is_sampled = matches!(style, CrashStyle::KeepPrefix { .. } | CrashStyle::Scramble { .. });
            let stride = if is_sampled { 4 } else { 1 };
            crash_recovery(&disk, &told, point, stride, &mut stats)
                .map_err(|complaint| format!("crash at call {last}, {style:?}: {complaint}"))?;
        }
    }
    Ok(stats)
}

/// Fails every call of the workload in turn instead, then lets the process or the machine go down.
fn enumerate_faults(fault: Fault) -> Result<Stats, String> {
    let mut stats = Stats::default();
    for point in 1.. {
        let disk = SimDisk::new();
        let mut told = Told::default();
        disk.fail_call(point, fault);
        let failed = workload(&disk, &mut told);
        if disk.calls() < point {
            break;
        }
        stats.crash_points += 1;
        for style in styles(point, 4) {
            let disk = disk.fork();
            disk.restart(style);
            stats.recoveries += 1;
            recover_and_go_on(&disk, &told, None).map_err(|complaint| {
                format!("{fault:?} in call {point}, {failed:?}, {style:?}: {complaint}")
            })?;
        }
    }
    Ok(stats)
}

/// Crashes the recovery at each of its own calls, or every `stride`-th, then recovers for good.
fn crash_recovery(
    disk: &SimDisk,
    told: &Told,
    point: u64,
    stride: usize,
    stats: &mut Stats,
) -> Result<(), String> {
    let first = 1 + point % stride as u64;
    for again in (first..).step_by(stride) {
        let disk = disk.fork();
        disk.crash_at_call(again);
        let opened = open(&disk);
        // A recovery that got through stands by what it found, whatever happens next.
        let stands = match &opened {
            Ok((journal, _)) => Some(check(journal, told)?),
            Err(_) if disk.is_crashed() => None,
            Err(error) => return Err(format!("recovery: {error:?}")),
        };
        drop(opened);
        let done = stands.is_some();
        stats.recovery_crash_points += u64::from(!done);
        let seed = point * 77 + again;
        for style in [CrashStyle::LoseUnsynced, CrashStyle::Killed, CrashStyle::Scramble { seed }] {
            let disk = disk.fork();
            disk.restart(style);
            stats.recoveries += 1;
            recover_and_go_on(&disk, told, stands.as_ref()).map_err(|complaint| {
                format!("recovery crashed at its call {again}, {style:?}: {complaint}")
            })?;
        }
        if done {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn acknowledged_records_survive_a_crash_at_every_call() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let stats = enumerate(&SimDisk::new(), 4).unwrap();
    println!("{stats:?}");
    assert!(stats.crash_points > 60, "{stats:?}");
}

#[test]
fn acknowledged_records_survive_a_failure_of_every_call() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for fault in [Fault::Io, Fault::NoSpace] {
        let stats = enumerate_faults(fault).unwrap();
        println!("{fault:?}: {stats:?}");
        assert!(stats.crash_points > 60, "{stats:?}");
    }
}

#[test]
fn the_enumeration_notices_a_missing_sync() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made();
    let _planted = plant(Bug::MissingSync);
    let complaint = enumerate(&made, 1).unwrap_err();
    println!("{complaint}");
}

#[test]
fn the_enumeration_notices_a_missing_directory_sync() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made();
    let _planted = plant(Bug::MissingDirSync);
    for start in [SimDisk::new(), made] {
        let complaint = enumerate(&start, 1).unwrap_err();
        println!("{complaint}");
    }
}
