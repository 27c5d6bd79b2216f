//! What a journal promises, on the real disk and on its twin: nothing damaged is served, nothing acknowledged is
//! dropped in silence, and a refused batch leaves no trace.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{path::Path, sync::Arc};

use proptest::prelude::*;
use ron_core::{
    ContentId, ErrorKind,
    disk::{DiskError, RealDisk},
    journal::{
        Damage, Entry, Item, JournalError, OnDamage, Opening, Position, RECORD_BYTES_MAX, Recovered, Salts,
        Segments, Settings,
    },
    sim::{CrashStyle, Fault, SimDisk},
};

const FIRST: &str = "log/0000000000000001.seg";
const SECOND: &str = "log/0000000000000002.seg";

fn settings() -> Settings {
    Settings { segment_bytes: 4096, chunk_bytes: 1024, salts: Salts::Seeded(1), ..Settings::default() }
}

fn open_with(disk: &SimDisk, settings: Settings) -> Result<(Segments, Recovered), JournalError> {
    Segments::open(Arc::new(disk.clone()), Path::new("log"), settings)
}

fn open(disk: &SimDisk) -> Result<(Segments, Recovered), JournalError> {
    open_with(disk, settings())
}

fn open_reporting(disk: &SimDisk) -> (Segments, Recovered) {
    let settings = Settings { on_damage: OnDamage::Report, ..settings() };
    open_with(disk, settings).unwrap()
}

fn commit(journal: &mut Segments, payloads: &[&[u8]]) -> Vec<Position> {
    journal.commit(payloads.iter().map(|payload| Entry::new(1, payload))).unwrap()
}

fn payloads(journal: &Segments) -> Vec<Vec<u8>> {
    let record = |item| match item {
        Item::Record(record) => record.payload.to_vec(),
        Item::Damaged(damage) => panic!("{damage:?}"),
    };
    journal.scan(Position::START).map(|item| record(item.unwrap())).collect()
}

/// What a scan that reports damage serves, and how many damaged stretches it shows.
fn served(journal: &Segments) -> (Vec<Vec<u8>>, usize) {
    let (mut served, mut damaged) = (Vec::new(), 0);
    for item in journal.scan(Position::START) {
        match item.unwrap() {
            Item::Record(record) => served.push(record.payload.to_vec()),
            Item::Damaged(_) => damaged += 1,
        }
    }
    (served, damaged)
}

#[test]
fn records_come_back_from_the_real_disk_across_segments_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { segment_bytes: 64 << 10, ..Settings::default() };
    let open = || {
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        Segments::open(disk, Path::new("a/log"), settings.clone()).unwrap()
    };
    let (mut journal, recovered) = open();
    assert_eq!((recovered.records, recovered.segments), (0, 1));
    let all: Vec<Vec<u8>> = (0..200_u8).map(|n| vec![n; usize::from(n) * 11]).collect();
    let mut positions = Vec::new();
    for batch in all.chunks(7) {
        positions.extend(journal.commit(batch.iter().map(|payload| Entry::new(3, payload))).unwrap());
    }
    assert!(journal.segments().len() > 3);
    assert!(positions.is_sorted());
    assert_eq!(payloads(&journal), all);
    journal.close().unwrap();

    let (mut journal, recovered) = open();
    assert!(recovered.was_closed);
    assert_eq!((recovered.records, recovered.cut), (200, None));
    assert_eq!(payloads(&journal), all);
    for (position, payload) in positions.iter().zip(&all) {
        let record = journal.read(*position).unwrap();
        assert_eq!((record.kind, &record.payload[..]), (3, &payload[..]));
    }
    let kept = positions[150];
    journal.remove_before(kept.segment).unwrap();
    assert_eq!(journal.segments()[0].sequence, kept.segment);
    let rest: Vec<_> = journal.scan(kept).map(Result::unwrap).collect();
    assert_eq!(rest.len(), 50);
    drop(journal);
    assert_eq!(open().0.segments()[0].sequence, kept.segment);
}

#[test]
fn a_reader_follows_the_owner_into_the_next_segment() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, &[b"one"]);
    let mut scan = journal.reader().scan(Position::START);
    let next = |scan: &mut ron_core::journal::Scan| match scan.next() {
        Some(Ok(Item::Record(record))) => Some(record.payload.to_vec()),
        Some(other) => panic!("{other:?}"),
        None => None,
    };
    assert_eq!(next(&mut scan).unwrap(), b"one");
    commit(&mut journal, &[b"two"]);
    commit(&mut journal, &[&[3; 4000]]);
    assert_eq!(journal.segments().len(), 2);
    assert_eq!(next(&mut scan).unwrap(), b"two");
    assert_eq!(next(&mut scan).unwrap(), [3; 4000]);
    assert_eq!(next(&mut scan), None);
}

#[test]
fn a_torn_tail_is_cut_and_stays_cut() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, &[b"kept"]);
    let end = journal.tail();
    let payloads_torn = [[1; 300], [2; 300], [3; 300]];
    journal.append_unsynced(payloads_torn.iter().map(|payload| Entry::new(1, payload))).unwrap();
    drop(journal);
    let mut bytes = disk.bytes(FIRST).unwrap();
    // The first record of the batch never reached the disk, the two behind it did.
    let from = end.offset as usize;
    bytes[from..from + 332].fill(0);
    disk.put(FIRST, &bytes);
    let (journal, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.cut, Some(end));
    assert_eq!(payloads(&journal), [b"kept"]);
    drop(journal);
    disk.restart(CrashStyle::LoseUnsynced);
    let (journal, recovered) = open(&disk).unwrap();
    assert_eq!((recovered.cut, recovered.records), (None, 1));
    assert_eq!(journal.tail(), end);
}

/// Three batches in two segments, optionally closed; returns all payloads in order.
fn small_journal(disk: &SimDisk, close: bool) -> Vec<Vec<u8>> {
    let settings = Settings { segment_bytes: 256, chunk_bytes: 128, ..settings() };
    let (mut journal, _) = open_with(disk, settings).unwrap();
    let all: Vec<Vec<u8>> = (0..5_u8).map(|n| vec![b'a' + n; 9 + usize::from(n)]).collect();
    for batch in [&all[..2], &all[2..3], &all[3..4], &all[4..]] {
        let batch: Vec<&[u8]> = batch.iter().map(|payload| &payload[..]).collect();
        commit(&mut journal, &batch);
    }
    assert_eq!(journal.segments().len(), 2);
    if close {
        journal.close().unwrap();
    }
    all
}

/// Flips every byte of every segment in turn. Whatever is served must be what was written, in order, and anything
/// missing must be reported, except in the last batch of a journal that was not closed.
fn check_flips(close: bool) -> (usize, usize) {
    let (mut refused, mut harmless) = (0, 0);
    let pristine = SimDisk::new();
    let all = small_journal(&pristine, close);
    for file in [FIRST, SECOND] {
        for offset in 0..pristine.bytes(file).unwrap().len() {
            let disk = pristine.fork();
            disk.restart(CrashStyle::KeepAll);
            disk.flip_bit(file, offset);
            let before = disk.bytes(file);
            let opened = open(&disk).map(|(journal, _)| payloads(&journal));
            match opened {
                Err(JournalError::Damaged { damage }) => {
                    refused += 1;
                    assert_eq!(before, disk.bytes(file), "a refused journal was changed");
                    let (journal, recovered) = open_reporting(&disk);
                    assert_eq!(recovered.damage[0], damage);
                    let (served, damaged) = served(&journal);
                    assert_eq!(damaged, recovered.damage.len());
                    assert!(served.iter().all(|payload| all.contains(payload)) && served.is_sorted());
                    assert!(served.len() as u64 == recovered.records);
                }
                Err(error) => panic!("{file} {offset}: {error:?}"),
                Ok(served) => {
                    harmless += 1;
                    let unsealed = all.len() - 1;
                    let whole = served == all || (!close && file == SECOND && served == all[..unsealed]);
                    assert!(whole, "{file} {offset}: served {served:?}");
                }
            }
        }
    }
    (refused, harmless)
}

#[test]
fn every_flipped_bit_of_a_closed_journal_is_damage_or_harms_nothing() {
    let (refused, harmless) = check_flips(true);
    // Two headers of 64 bytes and five records of 48 carry meaning; the seal and the spare space do not.
    assert_eq!(refused, 2 * 64 + 5 * 48);
    assert!(harmless >= 32);
}

#[test]
fn every_flipped_bit_of_an_open_journal_costs_at_most_its_last_batch() {
    let (refused, _) = check_flips(false);
    assert_eq!(refused, 2 * 64 + 4 * 48);
}

#[test]
fn damage_found_while_running_is_refused_and_spares_the_rest() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let at = commit(&mut journal, &[b"first", b"second", b"third"]);
    disk.flip_bit(FIRST, at[1].offset as usize + 33);
    let damage = Damage { from: at[1], to: at[2] };
    assert_eq!(journal.read(at[1]), Err(JournalError::Damaged { damage }));
    assert!(journal.read(at[2]).is_ok());
    let mut scan = journal.scan(Position::START);
    assert!(scan.next().unwrap().is_ok());
    assert_eq!(scan.next(), Some(Err(JournalError::Damaged { damage })));
    assert_eq!(scan.next(), None);
}

#[test]
fn a_missing_segment_is_damage() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for n in 0..3 {
        commit(&mut journal, &[&[n; 3000]]);
    }
    drop(journal);
    let copy = SimDisk::new();
    for sequence in [1, 3] {
        let name = format!("log/{sequence:016x}.seg");
        copy.put(&name, &disk.bytes(&name).unwrap());
    }
    let gap = Damage { from: Position { segment: 2, offset: 0 }, to: Position { segment: 3, offset: 0 } };
    assert_eq!(open(&copy).unwrap_err(), JournalError::Damaged { damage: gap });
    let (journal, recovered) = open_reporting(&copy);
    assert_eq!(recovered.damage, [gap]);
    assert_eq!(served(&journal), (vec![vec![0; 3000], vec![2; 3000]], 1));
}

#[test]
fn a_header_destroyed_with_its_salt_is_damage_and_not_a_fresh_segment() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, &[b"acknowledged"]);
    drop(journal);
    let mut bytes = disk.bytes(FIRST).unwrap();
    bytes[..64].fill(0);
    disk.put(FIRST, &bytes);
    assert!(matches!(open(&disk), Err(JournalError::Damaged { .. })));
    let (mut journal, recovered) = open_reporting(&disk);
    assert_eq!((recovered.damage.len(), recovered.records), (1, 0));
    commit(&mut journal, &[b"after"]);
    drop(journal);
    assert_eq!(served(&open_reporting(&disk).0), (vec![b"after".to_vec()], 1));
}

#[test]
fn a_payload_that_imitates_a_segment_is_only_a_payload() {
    let disk = SimDisk::new();
    let wide = Settings { segment_bytes: 64 << 10, ..settings() };
    let (mut journal, _) = open_with(&disk, wide.clone()).unwrap();
    commit(&mut journal, &[b"a", b"bb", b"ccc"]);
    let copy = disk.bytes(FIRST).unwrap();
    let at = commit(&mut journal, &[&copy, b"after"]);
    journal.close().unwrap();
    // With the carrier's header gone the search walks through the imitation, at every alignment.
    disk.flip_bit(FIRST, at[0].offset as usize);
    let report = Settings { on_damage: OnDamage::Report, ..wide };
    let (journal, recovered) = open_with(&disk, report).unwrap();
    assert_eq!(recovered.damage, [Damage { from: at[0], to: at[1] }]);
    let expected: [&[u8]; 4] = [b"a", b"bb", b"ccc", b"after"];
    assert_eq!(served(&journal).0, expected);
}

#[test]
fn a_directory_is_open_once() {
    let disk = SimDisk::new();
    let (journal, _) = open(&disk).unwrap();
    assert_eq!(open(&disk).unwrap_err(), JournalError::Locked);
    drop(journal);
    open(&disk).unwrap();
}

#[test]
fn a_full_disk_refuses_the_batch_without_a_trace_and_works_again_with_space() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let first = commit(&mut journal, &[b"first"])[0];
    disk.capacity(Some(1024));
    let large = [7; 1500];
    assert_eq!(journal.commit([Entry::new(1, &large)]), Err(JournalError::NoSpace));
    assert!(!journal.is_poisoned());
    assert!(journal.read(first).is_ok());
    commit(&mut journal, &[b"small"]);
    disk.capacity(None);
    commit(&mut journal, &[&large]);
    drop(journal);
    disk.restart(CrashStyle::LoseUnsynced);
    let (journal, _) = open(&disk).unwrap();
    let expected: [&[u8]; 3] = [b"first", b"small", &large];
    assert_eq!(payloads(&journal), expected);
}

#[test]
fn a_write_that_ends_half_way_for_lack_of_space_is_taken_back() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, &[b"first"]);
    disk.fail_call(1, Fault::NoSpace);
    let entries = [[1; 100], [2; 100]];
    let batch = || entries.iter().map(|payload| Entry::new(1, payload));
    assert_eq!(journal.commit(batch()), Err(JournalError::NoSpace));
    // Refused means gone, even if power fails now and the kernel had written whatever it liked.
    for seed in 0..30 {
        let crashed = disk.fork();
        crashed.restart(CrashStyle::Scramble { seed });
        assert_eq!(payloads(&open(&crashed).unwrap().0), [b"first"]);
    }
    journal.commit(batch()).unwrap();
    assert_eq!(payloads(&journal).len(), 3);
}

#[test]
fn a_rotation_without_space_leaves_the_old_segment_in_use() {
    for call in 1..8 {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk).unwrap();
        commit(&mut journal, &[&[1; 3000]]);
        let before = journal.tail();
        disk.fail_call(call, Fault::NoSpace);
        let large = [2; 2000];
        let refused = journal.commit([Entry::new(1, &large)]);
        if refused == Err(JournalError::NoSpace) {
            assert_eq!(commit(&mut journal, &[b"small"])[0].segment, before.segment);
            for seed in 0..30 {
                let crashed = disk.fork();
                crashed.restart(CrashStyle::Scramble { seed });
                let (journal, _) = open(&crashed).unwrap();
                let expected: [&[u8]; 2] = [&[1; 3000], b"small"];
                assert_eq!(payloads(&journal), expected, "call {call}, seed {seed}");
            }
        } else if refused.is_err() {
            assert_eq!(journal.commit([Entry::new(1, b"x")]), Err(JournalError::Poisoned));
        }
    }
}

#[test]
fn a_failed_sync_poisons_and_its_batch_is_durable_once_recovered() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let first = commit(&mut journal, &[b"first"])[0];
    disk.fail_call(2, Fault::Io);
    let error = journal.commit([Entry::new(1, b"lost?")]).unwrap_err();
    assert!(matches!(error, JournalError::Disk(DiskError::Io { .. })), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Disk);
    assert_eq!(journal.commit([Entry::new(1, b"x")]), Err(JournalError::Poisoned));
    assert_eq!(journal.append_unsynced([Entry::new(1, b"x")]), Err(JournalError::Poisoned));
    assert_eq!(journal.sync(), Err(JournalError::Poisoned));
    assert_eq!(journal.remove_before(1), Err(JournalError::Poisoned));
    assert!(journal.read(first).is_ok());
    assert_eq!(payloads(&journal), [b"first"]);
    drop(journal);
    // The page cache still shows the batch although no sync will write those pages again. Recovery that reports
    // it must have written it anew, or the next power cut takes it away.
    disk.restart(CrashStyle::Killed);
    let (journal, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.records, 2);
    drop(journal);
    disk.restart(CrashStyle::LoseUnsynced);
    let expected: [&[u8]; 2] = [b"first", b"lost?"];
    assert_eq!(payloads(&open(&disk).unwrap().0), expected);
}

#[test]
fn a_read_that_fails_is_an_error_and_cuts_nothing() {
    let disk = SimDisk::new();
    let all = small_journal(&disk, false);
    for read in 1.. {
        disk.fail_read(read);
        match open(&disk) {
            Err(JournalError::Disk(DiskError::Io { .. })) => {}
            Err(error) => panic!("{error:?}"),
            Ok((journal, recovered)) => {
                assert_eq!((recovered.records, recovered.cut), (5, None));
                assert!(read > 4);
                disk.restart(CrashStyle::KeepAll);
                drop(journal);
                assert_eq!(payloads(&open(&disk).unwrap().0), all);
                return;
            }
        }
    }
}

#[test]
fn a_position_from_elsewhere_is_refused() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let at = commit(&mut journal, &[&[9; 100], b"x"]);
    let end = journal.tail().offset;
    for offset in (0..end + 100).chain([u32::MAX, u32::MAX - 7]) {
        let position = Position { segment: 1, offset };
        match journal.read(position) {
            Ok(record) => assert!(at.contains(&record.position)),
            Err(error) => assert_eq!(error, JournalError::NoRecord { position }),
        }
    }
    let position = Position { segment: 9, offset: 64 };
    let error = journal.read(position).unwrap_err();
    assert_eq!((&error, error.kind()), (&JournalError::NoRecord { position }, ErrorKind::Caller));
    let odd = Position { segment: 1, offset: 65 };
    assert_eq!(journal.scan(odd).next(), Some(Err(JournalError::NoRecord { position: odd })));
}

#[test]
fn what_is_too_large_is_refused_before_it_is_written() {
    let disk = SimDisk::new();
    let small = Settings { record_bytes_max: 10, ..settings() };
    let (mut journal, _) = open_with(&disk, small).unwrap();
    let calls = disk.calls();
    let refused = journal.commit([Entry::new(1, b"fine"), Entry::new(1, &[0; 11])]);
    assert_eq!(refused, Err(JournalError::TooLarge { bytes: 11, limit: 10 }));
    assert_eq!(disk.calls(), calls);
    drop(journal);
    let (mut journal, _) = open(&disk).unwrap();
    let refused = journal.commit([Entry::new(1, &vec![0; RECORD_BYTES_MAX as usize + 1])]);
    assert!(matches!(refused, Err(JournalError::TooLarge { .. })));
    // Larger than a segment is fine: it gets one of its own.
    let at = commit(&mut journal, &[b"x", &[5; 9000]]);
    assert_eq!(journal.read(at[1]).unwrap().payload, vec![5; 9000]);
}

/// The bytes that `docs/formats.md` shows.
fn documented() -> Vec<u8> {
    let text = include_str!("../../docs/formats.md");
    let (_, after) = text.split_once("```hex\n").expect("the sample");
    let (hex, _) = after.split_once("```").expect("its end");
    let digits: String = hex.lines().map(|line| line.split('#').next().unwrap_or("")).collect();
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn the_documented_sample_is_what_we_write_and_read() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, &[b"hello"]);
    commit(&mut journal, &[b"goodbye!"]);
    journal.close().unwrap();
    let written = disk.bytes(FIRST).unwrap();
    let sample = documented();
    assert_eq!(
        data_encoding::HEXLOWER.encode(&written[..sample.len()]),
        data_encoding::HEXLOWER.encode(&sample)
    );
    let copy = SimDisk::new();
    copy.put(FIRST, &sample);
    let (journal, recovered) = open(&copy).unwrap();
    assert!(recovered.was_closed);
    let expected: [&[u8]; 2] = [b"hello", b"goodbye!"];
    assert_eq!(payloads(&journal), expected);
}

/// Written by the first version of the format. It must stay readable; never write this file anew.
#[test]
fn a_segment_of_format_1_stays_readable() {
    let disk = SimDisk::new();
    disk.put(FIRST, include_bytes!("samples/journal-1.seg"));
    let (journal, recovered) = open(&disk).unwrap();
    assert_eq!((recovered.records, recovered.was_closed), (4, true));
    let expected: [&[u8]; 4] = [b"", b"one", &[0xff; 300], b"four"];
    assert_eq!(payloads(&journal), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random damage: nothing that was not written is ever served, and opening never panics.
    #[test]
    fn mutated_segments_serve_only_what_was_written(
        edits in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of((any::<bool>(), any::<prop::sample::Index>())),
    ) {
        let disk = SimDisk::new();
        let all = small_journal(&disk, false);
        for (second, at, value) in edits {
            let file = if second { SECOND } else { FIRST };
            let mut bytes = disk.bytes(file).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = value;
            disk.put(file, &bytes);
        }
        if let Some((second, at)) = cut {
            let file = if second { SECOND } else { FIRST };
            let bytes = disk.bytes(file).unwrap();
            disk.put(file, &bytes[..at.index(bytes.len())]);
        }
        if let Ok((journal, _)) = open(&disk) {
            prop_assert!(all.starts_with(&payloads(&journal)));
            drop(journal);
        }
        let (mut journal, _) = open_reporting(&disk);
        commit(&mut journal, &[b"zz after"]);
        let (found, damaged) = served(&journal);
        prop_assert!(found.is_sorted());
        prop_assert!(found.iter().all(|payload| all.contains(payload) || payload == b"zz after"));
        drop(journal);
        let (journal, _) = open_reporting(&disk);
        prop_assert_eq!(served(&journal), (found, damaged));
    }
}

/// A large journal is opened by reading its last segment; damage before that is found when it is read.
#[test]
fn only_the_last_segment_is_read_if_that_is_asked_for() {
    let disk = SimDisk::new();
    let settings = Settings { on_damage: OnDamage::Report, opening: Opening::ReadLast, ..settings() };
    let (mut journal, _) = open_with(&disk, settings.clone()).unwrap();
    let large = vec![7; 3000];
    let at: Vec<_> = (0..4).flat_map(|_| commit(&mut journal, &[&large])).collect();
    journal.close().unwrap();
    disk.flip_bit(FIRST, 1000);
    let (journal, recovered) = open_with(&disk, settings.clone()).unwrap();
    assert_eq!((recovered.records, recovered.segments, recovered.damage.len()), (1, 4, 0));
    assert!(matches!(journal.read(at[0]), Err(JournalError::Damaged { .. })));
    assert_eq!(journal.read(at[1]).unwrap().payload, large);
    assert_eq!((served(&journal).0.len(), served(&journal).1), (3, 1));
    drop(journal);
    // One that is shorter than it was is looked through all the same.
    let bytes = disk.bytes(SECOND).unwrap();
    disk.put(SECOND, &bytes[..2000]);
    let (_, recovered) = open_with(&disk, settings).unwrap();
    assert_eq!(recovered.damage.len(), 1);
}

/// Whoever knows the name of a payload need not have it hashed again, and reading gives it back.
#[test]
fn a_named_record_is_the_same_record() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let name = ContentId::of(b"payload");
    let at = journal.commit([Entry::named(1, b"payload", &name), Entry::new(1, b"payload")]).unwrap();
    let read = at.iter().map(|at| journal.read(*at).unwrap());
    assert!(read.into_iter().all(|record| record.name == name && &record.payload[..] == b"payload"));
    let reader = journal.reader();
    assert_eq!(reader.read_sized(at[1], 7), journal.read(at[1]));
    for wrong in [0, 6, 8, 4096, u32::MAX] {
        assert!(matches!(reader.read_sized(at[1], wrong), Err(JournalError::NoRecord { .. })), "{wrong}");
    }
    let wrong = journal.commit([Entry::named(1, b"payload", &ContentId::of(b"other"))]).unwrap();
    assert!(matches!(journal.read(wrong[0]), Err(JournalError::Damaged { .. })));
    assert_eq!(reader.read_sized(wrong[0], 7), journal.read(wrong[0]));
    assert!(
        reader.read_cached(at[1], 7, |len| vec![0; len]).is_none(),
        "this disk cannot tell what is in memory"
    );
}

/// What is in memory is read without waiting, once its file is open; what is not right is left to those who can say why.
#[cfg(target_os = "linux")]
#[test]
fn a_record_in_memory_is_read_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let (mut journal, _) = Segments::open(disk, Path::new("log"), settings()).unwrap();
    let at = journal.commit([Entry::new(1, b"payload"), Entry::new(2, b"another")]).unwrap();
    let reader = journal.reader();
    let read = |at, len| reader.read_cached(at, len, |len| vec![0; len]);
    assert!(read(at[0], 7).is_none(), "its file is not open");
    let known = reader.read_into(at[0], 7, |len| vec![9; len]).unwrap();
    let found = read(at[0], 7).unwrap();
    assert_eq!(
        (found.kind, found.name, &found.buffer[found.payload.clone()]),
        (1, known.name, &b"payload"[..])
    );
    assert_eq!(found.buffer, known.buffer);
    assert!(read(at[0], 6).is_none() && read(at[0], u32::MAX).is_none());
    let nowhere = Position { segment: at[0].segment + 1, ..at[0] };
    assert!(read(nowhere, 7).is_none() && read(Position { offset: at[0].offset + 1, ..at[0] }, 7).is_none());
    let wrong = journal.commit([Entry::named(1, b"payload", &ContentId::of(b"other"))]).unwrap();
    assert!(read(wrong[0], 7).is_none());
}
