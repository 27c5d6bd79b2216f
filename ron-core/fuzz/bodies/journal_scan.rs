//! What the fuzzer and the replay of its corpus both run.

use std::{path::Path, sync::Arc};

use ron_core::{
    journal::{Entry, Item, JournalError, OnDamage, Position, Recovered, Salts, Segments, Settings},
    sim::{CrashStyle, SimDisk},
};

/// Opens whatever the bytes describe, in both damage modes, appends, reopens, and compares.
///
/// The first byte chooses: raw files, or a genuine journal that the rest of the bytes then edit. Raw files exercise
/// the headers; without the second kind the keyed sums would keep the fuzzer out of everything behind them.
pub(crate) fn journal_scan(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let disk = if mode % 2 == 0 { raw_files(data) } else { edited_journal(data) };

    let refusing = disk.fork();
    if let Ok((mut journal, recovered)) = open(&refusing, OnDamage::Refuse) {
        assert!(recovered.damage.is_empty());
        let served = serve(&journal);
        assert_eq!(served.len() as u64, recovered.records);
        append(&mut journal);
        assert_eq!(serve(&journal).len(), served.len() + 1);
    }
    match open(&disk, OnDamage::Report) {
        Ok((mut journal, recovered)) => {
            append(&mut journal);
            let served = serve(&journal);
            let records = served.iter().filter(|item| matches!(item, Item::Record(_))).count();
            assert_eq!(records as u64, recovered.records + 1);
            assert_eq!(served.len() - records, recovered.damage.len());
            drop(journal);
            disk.restart(CrashStyle::LoseUnsynced);
            let (journal, again) = open(&disk, OnDamage::Report).expect("it opened before");
            assert_eq!(serve(&journal), served);
            assert_eq!((again.records, again.cut, again.discarded), (recovered.records + 1, None, None));
        }
        // The second: no number is left for another segment.
        Err(JournalError::UnknownVersion { .. } | JournalError::NoSpace) => {}
        Err(error) => panic!("damage is to be reported: {error:?}"),
    }
}

fn open(disk: &SimDisk, on_damage: OnDamage) -> Result<(Segments, Recovered), JournalError> {
    let settings = Settings {
        segment_bytes: 512,
        chunk_bytes: 128,
        on_damage,
        salts: Salts::Seeded(3),
        ..Settings::default()
    };
    Segments::open(Arc::new(disk.clone()), Path::new(""), settings)
}

fn append(journal: &mut Segments) {
    let at = journal.commit([Entry::new(9, b"appended")]).expect("the twin has space");
    assert_eq!(&journal.read(at[0]).expect("just written").payload[..], b"appended");
}

fn serve(journal: &Segments) -> Vec<Item> {
    journal.scan(Position::START).map(|item| item.expect("opened in this mode")).collect()
}

/// Files of up to 255 bytes each: sequence, length, bytes.
fn raw_files(mut data: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    while let [sequence, len, rest @ ..] = data {
        let (file, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let sequence = if *sequence == 255 { u64::MAX - 1 } else { u64::from(*sequence) };
        disk.put(name(sequence), file);
        data = rest;
    }
    disk
}

/// Up to eight records, then edits of three bytes each: file, offset, value. The highest bit of the file byte cuts
/// the file there instead, the second highest removes 64 bytes, as a lost sector would.
fn edited_journal(data: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, OnDamage::Refuse).expect("an empty disk");
    let Some((shape, data)) = data.split_at_checked(9) else {
        return disk;
    };
    for size in &shape[..8] {
        let payload = vec![*size; usize::from(*size)];
        let entry = [Entry::new(1, &payload)];
        let done = if size % 3 == 0 { journal.append_unsynced(entry) } else { journal.commit(entry) };
        done.expect("the twin has space");
    }
    let files = journal.segments().len() as u64;
    if shape[8] % 2 == 0 {
        journal.close().expect("the twin has space");
    } else {
        drop(journal);
    }
    for edit in data.chunks_exact(3) {
        let path = name(1 + u64::from(edit[0] & 0x3f) % files);
        let mut bytes = disk.bytes(&path).expect("one of the files");
        let at = (usize::from(edit[1]) * 4).min(bytes.len());
        if edit[0] & 0x80 != 0 {
            bytes.truncate(at);
        } else if edit[0] & 0x40 != 0 {
            let to = (at + 64).min(bytes.len());
            bytes[at..to].fill(0);
        } else if let Some(byte) = bytes.get_mut(at + usize::from(edit[2] & 3)) {
            *byte ^= edit[2] | 1;
        }
        disk.put(&path, &bytes);
    }
    disk
}

fn name(sequence: u64) -> String {
    format!("{sequence:016x}.seg")
}
