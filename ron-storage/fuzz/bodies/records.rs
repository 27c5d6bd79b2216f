//! What the fuzzer and the replay of its corpus both run.

use ron_core::{ContentId, journal::Position};
use ron_storage::logic::{
    records::{Note, SMALL},
    table::{Home, Spot, Table},
};

/// Records of a journal, one after the other: a kind, a length, a payload. What is a note is written again as it was read,
/// and whatever they say in whatever order, the table stays what it says it is.
pub(crate) fn records(data: &[u8]) {
    let (mut table, mut rest, mut offset) = (Table::default(), data, 64);
    while let Some(([kind, len], after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        match Note::decode(*kind, payload) {
            Some(note) => {
                let (again, bytes) = note.encode();
                assert!((again, &bytes[..]) == (*kind, payload));
                table.replay(&note);
            }
            None if *kind == SMALL => {
                let spot = Spot::of(Position { segment: 1, offset }).expect("it is small");
                table.replay_small(ContentId::of(payload), payload.len() as u64, spot);
                offset += 64;
            }
            None => {}
        }
    }
    let (entries, more) = table.page(None, usize::MAX);
    assert!(!more && entries.is_sorted_by(|a, b| a.id < b.id));
    let totals = table.totals();
    let count = |counts: &dyn Fn(&&ron_storage::logic::table::Entry) -> bool| {
        entries.iter().filter(counts).count() as u64
    };
    assert_eq!(totals.objects, entries.len() as u64);
    assert_eq!(totals.pinned, count(&|entry| entry.is_pinned));
    assert_eq!(totals.bad, count(&|entry| entry.is_bad));
    let files = entries.iter().filter(|entry| matches!(entry.home, Home::Large(_)));
    assert!(table.files().len() <= files.count());
    for entry in entries {
        assert_eq!(table.get(&entry.id), Some(entry));
        table.remove(&entry.id);
    }
    let left = table.totals();
    assert_eq!((left.objects, left.bytes, left.journal_bytes, left.large_bytes), (0, 0, 0, 0));
}
