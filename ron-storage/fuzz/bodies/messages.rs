//! What the fuzzer and the replay of its corpus both run.

use std::collections::BTreeSet;

use ron_core::ContentId;
use ron_storage::logic::{
    inventory::{Comparison, Names, Prefix, answer},
    members::{Card, read_file, write_file},
    wire::{
        Holding, IDS_MAX, Offer, RANGES_MAX, Taking, Want, read_have, read_parts, read_question, write_have,
        write_parts, write_question,
    },
};

/// The first byte is the kind of message, the rest is its body. What can be read is within its limits, is written again, and
/// is read back the same; what a peer may say about its inventory is answered, or compared, without harm.
pub(crate) fn messages(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    let ours: BTreeSet<ContentId> = (0..50u8).map(|number| ContentId::of(&[number])).collect();
    match kind % 8 {
        0 => {
            if let Ok(ids) = read_have(body) {
                assert!(ids.len() <= IDS_MAX);
                assert_eq!(read_have(&write_have(&ids)), Ok(ids));
            }
        }
        1 => {
            if let Ok(holding) = Holding::decode(body) {
                assert_eq!(Holding::decode(&holding.encode()), Ok(holding));
            }
        }
        2 => {
            if let Ok(want) = Want::decode(body) {
                assert!(want.ranges.len() <= RANGES_MAX && want.ranges.iter().all(|range| !range.is_empty()));
                assert_eq!(Want::decode(&want.encode()), Ok(want));
            }
        }
        3 => {
            if let Ok(offer) = Offer::decode(body) {
                assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
            }
        }
        4 => {
            if let Ok(taking) = Taking::decode(body) {
                assert_eq!(Taking::decode(&taking.encode()), Ok(taking));
            }
        }
        5 => {
            if let Ok(question) = read_question(body) {
                assert_eq!(answer(&ours, &question).len(), question.len());
                assert_eq!(read_question(&write_question(&question)), Ok(question));
            }
        }
        6 => {
            if let Ok(card) = Card::decode(body) {
                assert_eq!(Card::decode(&card.encode()), Ok(card));
            }
            if let Ok(members) = read_file(body) {
                assert_eq!(read_file(&write_file(&members)), Ok(members));
            }
        }
        _ => {
            if let Ok(parts) = read_parts(body) {
                assert_eq!(read_parts(&write_parts(&parts)), Ok(parts.clone()));
                let mut comparison = Comparison::new(64);
                let _ = comparison.poll(&ours);
                if let Ok(found) = comparison.on_answer(&ours, &parts) {
                    assert!(found.ours.iter().all(|id| ours.contains(id)));
                    assert!(found.theirs.iter().all(|id| !ours.contains(id)));
                }
                assert_eq!(ours.sum(&Prefix::ALL).count(), 50);
            }
        }
    }
}
