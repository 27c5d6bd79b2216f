//! What the fuzzer and the replay of its corpus both run.

use bytes::Bytes;
use ron_overlay::logic::wire::{decode, decode_part, decode_shed, encode, encode_part, encode_shed, number};

/// The first byte is the number of the word. What can be read must be written again and read back the same.
pub(crate) fn words(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let (first, body) = (u16::from(*first), Bytes::copy_from_slice(body));
    match first {
        number::PIECE => {
            if let Ok((of, part)) = decode_part(&body) {
                assert_eq!(decode_part(&encode_part(Vec::new(), of, &part).into()), Ok((of, part)));
            }
        }
        number::SHED => {
            if let Ok((topic, shed)) = decode_shed(&body) {
                assert_eq!(decode_shed(&encode_shed(Vec::new(), &topic, shed)), Ok((topic, shed)));
            }
        }
        _ => {
            if let Ok((topic, word)) = decode(first, &body) {
                let (again, encoded) = encode(&topic, &word);
                assert_eq!(again, first);
                assert_eq!(decode(again, &encoded), Ok((topic, word)));
            }
        }
    }
}
