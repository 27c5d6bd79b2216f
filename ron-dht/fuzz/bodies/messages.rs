//! What the fuzzer and the replay of its corpus both run.

use ron_dht::logic::wire::{Answer, MESSAGE_BYTES_MAX, Request};

/// The first byte is the method, and its highest bit says whether the rest is an answer. What can be read must be
/// written again, within the limits, and read back the same.
pub(crate) fn messages(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let method = u16::from(first & 0x7f);
    if first & 0x80 == 0 {
        if let Ok(request) = Request::decode(method, body) {
            let (again, encoded) = request.encode();
            assert!(again == method && encoded.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Request::decode(method, &encoded), Ok(request));
        }
    } else if let Ok(answer) = Answer::decode(method, body) {
        let (again, encoded) = answer.encode();
        assert!(again == method && encoded.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Answer::decode(method, &encoded), Ok(answer));
    }
}
