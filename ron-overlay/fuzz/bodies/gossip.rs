//! What the fuzzer and the replay of its corpus both run.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use ron_core::NodeId;
use ron_overlay::logic::{
    gossip::{Gossip, GossipSettings, Output, Verdict},
    store::StoreSettings,
    view::{Contact, ViewSettings},
    wire::decode,
};

/// A node that hears a conversation: each step is a byte of who speaks and how much later, one with the number of the
/// word, one with its length, and the body. Whatever is said, no message is delivered twice and bounds hold.
pub(crate) fn gossip(mut data: &[u8]) {
    let me = Contact { id: NodeId::from_bytes([0; 32]), addrs: [].into() };
    let settings = GossipSettings {
        view: ViewSettings { spares: 8, ..ViewSettings::default() },
        store: StoreSettings { bytes: 2048, bytes_max: 4096, ..StoreSettings::default() },
        missing_max: 16,
        unchecked_max: 4,
        publishers: 4,
        ..GossipSettings::default()
    };
    let mut node = Gossip::new(me, settings, 1000, 7);
    let (mut now, mut delivered) = (Duration::ZERO, BTreeSet::new());
    while let [who, number, length, rest @ ..] = data {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        now += Duration::from_millis(1 << (who >> 4));
        let from = NodeId::from_bytes([who & 15; 32]);
        if let Ok((_, word)) = decode(u16::from(*number), &Bytes::copy_from_slice(body)) {
            node.on_word(from, word, now);
        }
        node.on_tick(now);
        while let Some(output) = node.poll() {
            match output {
                Output::Check { message } => {
                    let verdict = [
                        Verdict::Accept,
                        Verdict::Reject { is_proven: true },
                        Verdict::Ignore,
                        Verdict::Forged,
                        Verdict::Shed,
                    ];
                    let verdict = verdict[usize::from(message.payload().first().copied().unwrap_or(0)) % 5];
                    node.on_verdict(&message.id(), verdict, now);
                }
                Output::Deliver { message, .. } => {
                    // Beyond four publishers one is forgotten, and what it says again is new.
                    let serial = *message.serial();
                    assert!(delivered.insert(serial) || delivered.len() > 4, "{serial:?} twice");
                }
                _ => {}
            }
        }
        assert!(node.neighbours().count() <= 8 && node.spares().count() <= 8);
        assert!(node.kept_bytes() <= 4096 && node.wake_at() > now);
    }
}
