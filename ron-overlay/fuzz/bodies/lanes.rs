//! What the fuzzer and the replay of its corpus both run.

use ron_overlay::{
    Overflow,
    logic::{
        gossip::Class,
        lanes::{Lanes, Pushed},
        message::TopicId,
    },
};

const FRAMES: usize = 8;
const BYTES: usize = 100_000;

/// Each three bytes are one step: what to do, for whom, how large. Bounds hold after each, and nothing is lost.
pub(crate) fn lanes(data: &[u8]) {
    let mut lanes = Lanes::new(FRAMES, BYTES);
    let (mut pushed, mut popped, mut refused) = (0_usize, 0_usize, 0_usize);
    for step in data.chunks_exact(3) {
        let [what, of, size] = [step[0], step[1], step[2]];
        if what & 1 == 0 {
            popped += usize::from(lanes.pop().is_some());
        } else {
            let class = [Class::Control, Class::Gossip, Class::Bulk][usize::from(what >> 1) % 3];
            let overflow = if what & 0x80 == 0 { Overflow::RejectNewest } else { Overflow::ShedOldest };
            let topic = TopicId::from_bytes([of % 5; 32]);
            match lanes.push(class, topic, usize::from(size) << 9, pushed, overflow) {
                Pushed::Queued => {}
                Pushed::Shed(shed) => refused += shed.len(),
                Pushed::Full(_) => refused += 1,
            }
            pushed += 1;
        }
        assert!(lanes.len() <= 3 * FRAMES && lanes.bytes() <= BYTES);
        assert_eq!(pushed, popped + refused + lanes.len());
    }
}
