//! The samples in `docs/formats.md` are what is written.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use bytes::Bytes;
use ron_core::{NodeId, net::Identity};
use ron_overlay::logic::{
    gossip::{Pushed, Word},
    message::{Message, MessageId, TopicId},
    publishers::Serial,
    seal::Seal,
    trees::Beacon,
    wire::{decode, encode},
};

/// The bytes of the block under this heading.
fn sample(heading: &str) -> Bytes {
    let text = include_str!("../../docs/formats.md");
    let (_, text) = text.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}"));
    let (_, text) = text.split_once("```hex\n").unwrap();
    let (block, _) = text.split_once("```").unwrap();
    let byte = |digits| u8::from_str_radix(digits, 16).unwrap();
    block.split_whitespace().map(byte).collect()
}

#[test]
fn the_samples_are_what_is_written() {
    let topic = TopicId::from_bytes([6; 32]);
    let [one, two] = [1, 2].map(|number| NodeId::from_bytes([number; 32]));
    let identity = Identity::from_seed(&[7; 32]);
    let serial = Serial { publisher: one, since: 1000, seq: 2 };
    let message = Message::unsigned(&topic, serial, Bytes::from_static(b"hello"));
    let [three, four] = [3, 4].map(|number| MessageId::from_bytes([number; 16]));
    let samples = [
        ("#### PUSH\n", Word::Push(Pushed { tree: two, hops: 3, is_repair: false, message })),
        ("#### HAVE\n", Word::Have(vec![(two, vec![three, four])])),
        (
            "#### BEACONS\n",
            Word::Beacons(vec![Beacon {
                root: identity.node_id(),
                round: 7,
                distance: 30_000,
                is_parent: true,
                proof: Seal::Signed { identity, topic }.sign(7, false),
            }]),
        ),
    ];
    for (heading, word) in samples {
        let (number, body) = encode(&topic, &word);
        let shown: String = body.iter().map(|byte| format!("{byte:02x} ")).collect();
        assert!(sample(heading) == body, "{heading} is\n{shown}");
        assert_eq!(decode(number, &sample(heading)), Ok((topic, word)));
    }
}
