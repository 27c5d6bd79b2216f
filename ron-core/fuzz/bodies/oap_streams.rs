//! What the fuzzer and the replay of its corpus both run.

use ron_core::net::oap::{Code, Direction, Flags, Frame, Streams};

/// The first byte is the limit; then two bytes a frame: direction, protocol and flags, and the correlation. Both ends
/// must agree on every frame and stay within the limit.
pub(crate) fn oap_streams(data: &[u8]) {
    let Some((limit, data)) = data.split_first() else {
        return;
    };
    let limit = usize::from(*limit);
    let (mut here, mut there) = (Streams::new(limit, limit), Streams::new(limit, limit));
    for pair in data.chunks_exact(2) {
        let flags = Flags::from_bits(u16::from(pair[0] & 0x1f)).expect("known bits");
        let code = if flags.has(Flags::RESP) { Code::Ok } else { Code::None };
        let proto = if pair[0] & 0x40 == 0 { 9 } else { 10 };
        let frame = Frame { flags, code, proto, corr: pair[1].into(), ..Frame::default() };
        let (ours, theirs) = match pair[0] & 0x80 {
            0 => (Direction::Received, Direction::Sent),
            _ => (Direction::Sent, Direction::Received),
        };
        let before = (here.open(Direction::Sent), here.open(Direction::Received));
        let step = here.on_frame(ours, &frame);
        assert_eq!(there.on_frame(theirs, &frame), step);
        let after = (here.open(Direction::Sent), here.open(Direction::Received));
        assert_eq!(after, (there.open(Direction::Received), there.open(Direction::Sent)));
        assert!(after.0 <= limit && after.1 <= limit);
        if step.is_err() {
            assert_eq!(before, after);
        }
    }
}
