//! What the fuzzer and the replay of its corpus both run.

use std::io::{Read as _, Write as _};

use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use ron_core::http::{Inflate, InflateError};

/// Decodes whatever the bytes are, whole and in pieces, within a limit that they choose, and compares with a decoder
/// that has none of the limits.
///
/// The first byte chooses between raw bytes and genuine gzip that the next three then edit; without the second kind the
/// checksum would keep the fuzzer out. The next two are the limit, the one after them the size of a piece.
pub(crate) fn decompress(data: &[u8]) {
    let [mode, limit_low, limit_high, piece, data @ ..] = data else {
        return;
    };
    let limit = u64::from(u16::from_le_bytes([*limit_low, *limit_high])) * 4;
    let body = if mode % 2 == 0 { data.to_vec() } else { edited_gzip(data) };

    let mut expected = Vec::new();
    let valid = MultiGzDecoder::new(&body[..]).take(limit + 1).read_to_end(&mut expected).is_ok();
    let whole = inflate(&body, limit, body.len().max(1));
    let pieces = inflate(&body, limit, usize::from(*piece).max(1));
    for decoded in [&whole, &pieces] {
        match decoded {
            Ok(plain) => {
                assert!(plain.len() as u64 <= limit);
                assert!(!valid || *plain == expected);
            }
            Err(InflateError::TooLarge) => assert!(expected.len() as u64 > limit || !valid),
            Err(_) => {}
        }
    }
}

fn inflate(body: &[u8], limit: u64, piece: usize) -> Result<Vec<u8>, InflateError> {
    let mut inflate = Inflate::gzip(limit);
    let mut plain = Vec::new();
    let mut pieces = body.chunks(piece);
    loop {
        let piece = pieces.next();
        let decoded = match piece {
            Some(piece) => inflate.push(piece),
            None => inflate.finish(),
        };
        match decoded {
            Ok(decoded) => plain.extend_from_slice(&decoded),
            Err(error) => {
                // Once given up, always given up.
                assert_eq!((inflate.push(b"x"), inflate.finish()), (Err(error), Err(error)));
                return Err(error);
            }
        }
        if piece.is_none() {
            return Ok(plain);
        }
    }
}

/// The bytes, repeated so that they compress, with one byte changed.
fn edited_gzip(data: &[u8]) -> Vec<u8> {
    let [repeat, at, change, data @ ..] = data else {
        return Vec::new();
    };
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..=*repeat {
        encoder.write_all(data).expect("to memory");
    }
    let mut body = encoder.finish().expect("to memory");
    let at = usize::from(*at) * body.len() / 256;
    body[at] ^= change;
    body
}
