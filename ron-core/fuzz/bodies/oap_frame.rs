//! What the fuzzer and the replay of its corpus both run.

use bytes::{Buf as _, BytesMut};
use ron_core::net::oap::{Decoder, Frame, FrameError, Hello};

/// Decodes the bytes whole and cut where the first byte says, compares, and encodes what came out again.
pub(crate) fn oap_frame(data: &[u8]) {
    let Some((split, data)) = data.split_first() else {
        return;
    };
    let whole = decode(&[data]);
    let (head, tail) = data.split_at(data.len().min(usize::from(*split)));
    assert_eq!(decode(&[head, tail]), whole);
    if data.len() <= 200 {
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(decode(&bytes), whole);
    }
    let mut at = 0;
    for frame in whole.iter().flatten() {
        let mut encoded = frame.clone().encode().expect("it was decoded");
        let again = encoded.copy_to_bytes(encoded.remaining());
        let found = data[at..].windows(again.len()).position(|window| window == again);
        at += found.expect("it encodes to what it was") + again.len();
        if let Ok(hello) = Hello::decode(&frame.payload) {
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }
}

fn decode(parts: &[&[u8]]) -> Vec<Result<Frame, FrameError>> {
    let decoder = Decoder::default();
    let (mut buffer, mut items) = (BytesMut::new(), Vec::new());
    for part in parts {
        buffer.extend_from_slice(part);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => items.push(Ok(frame)),
                Ok(None) => break,
                Err(error) => {
                    items.push(Err(error));
                    if error.is_fatal() {
                        return items;
                    }
                }
            }
        }
        assert!(buffer.is_empty() || decoder.missing(&buffer) > 0);
    }
    items
}
