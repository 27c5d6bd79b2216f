//! WebSocket frames (RFC 6455) as far as a stream of events needs them: text out, control frames both ways.
//!
//! A subscriber has nothing to say but `ping` and `close`, so a frame of anything else is refused, and no frame that is
//! taken has more than 125 bytes. Length and mask are checked before anything is kept.

use data_encoding::BASE64;
use sha1::{Digest as _, Sha1};

/// What the protocol hangs on every key, so that only who knows it can answer.
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Bytes of the largest control frame.
const CONTROL_MAX: usize = 125;

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;

/// The answer to the key of a handshake, or nothing if it is none: sixteen bytes in base64.
#[must_use]
pub fn accept(key: &[u8]) -> Option<String> {
    let is_key = BASE64.decode(key).is_ok_and(|bytes| bytes.len() == 16);
    is_key.then(|| BASE64.encode(&Sha1::new().chain_update(key).chain_update(MAGIC).finalize()))
}

/// Why a connection is closed, as its number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// The server stops.
    Away,
    /// The client broke the rules.
    Protocol,
    /// The client sent what nobody here reads.
    Unsupported,
}

impl Closing {
    fn number(self) -> u16 {
        match self {
            Closing::Away => 1001,
            Closing::Protocol => 1002,
            Closing::Unsupported => 1003,
        }
    }
}

/// What a client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// It wants to know whether we are there; answered with the same bytes.
    Ping(Vec<u8>),
    /// It is there.
    Pong,
    /// It is leaving.
    Close,
}

/// Takes the next frame off the front of `bytes`; nothing yet if it is not whole.
///
/// # Errors
/// How the connection has to be closed.
pub fn take(bytes: &mut Vec<u8>) -> Result<Option<Sent>, Closing> {
    let [first, second, rest @ ..] = &bytes[..] else { return Ok(None) };
    let (kind, len) = (first & 0x0f, usize::from(second & !MASKED));
    if first & 0x70 != 0 || second & MASKED == 0 {
        return Err(Closing::Protocol);
    }
    if !matches!(kind, CLOSE | PING | PONG) {
        return Err(if kind <= 2 { Closing::Unsupported } else { Closing::Protocol });
    }
    // A control frame is never in pieces.
    if first & FINAL == 0 || len > CONTROL_MAX {
        return Err(Closing::Protocol);
    }
    let Some((mask, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let Some(masked) = rest.get(..len) else { return Ok(None) };
    let plain = masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    bytes.drain(..2 + 4 + len);
    Ok(Some(match kind {
        PING => Sent::Ping(plain),
        PONG => Sent::Pong,
        _ => Sent::Close,
    }))
}

/// A frame of text.
#[must_use]
pub fn text(words: &str) -> Vec<u8> {
    frame(TEXT, words.as_bytes())
}

/// A question whether the other end is there.
#[must_use]
pub fn ping() -> Vec<u8> {
    frame(PING, b"")
}

/// The answer to one.
#[must_use]
pub fn pong(bytes: &[u8]) -> Vec<u8> {
    frame(PONG, bytes)
}

/// The last frame.
#[must_use]
pub fn close(why: Closing) -> Vec<u8> {
    frame(CLOSE, &why.number().to_be_bytes())
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(10 + payload.len());
    frame.push(FINAL | kind);
    match payload.len() {
        len @ 0..=CONTROL_MAX => frame.push(len as u8),
        len @ 126..=0xffff => {
            frame.push(126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            frame.push(127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first, MASKED | payload.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn the_handshake_is_that_of_the_standard() {
        // The example in section 1.3 of the RFC.
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for wrong in [&b""[..], b"dGhl", b"not base64 at all!!!!!!="] {
            assert_eq!(accept(wrong), None);
        }
    }

    #[test]
    fn control_frames_are_read_however_they_are_cut() {
        let whole = [masked(0x89, b"hello"), masked(0x8a, b""), masked(0x88, &[3, 232])].concat();
        let (mut bytes, mut seen) = (Vec::new(), Vec::new());
        for byte in whole {
            bytes.push(byte);
            while let Some(sent) = take(&mut bytes).unwrap() {
                seen.push(sent);
            }
        }
        assert_eq!(seen, [Sent::Ping(b"hello".to_vec()), Sent::Pong, Sent::Close]);
        assert!(bytes.is_empty());
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        for (mut frame, why) in [
            (masked(0x81, b"words"), Closing::Unsupported),
            (masked(0x82, b"bytes"), Closing::Unsupported),
            (masked(0x80, b"more"), Closing::Unsupported),
            (masked(0x83, b""), Closing::Protocol),
            (masked(0x09, b"in pieces"), Closing::Protocol),
            (masked(0xc9, b"compressed"), Closing::Protocol),
            (vec![0x89, 0], Closing::Protocol),
            (vec![0x89, 0xfe, 0, 200], Closing::Protocol),
            (vec![0x89, 0xff], Closing::Protocol),
        ] {
            assert_eq!(take(&mut frame), Err(why), "{frame:?}");
        }
    }

    #[test]
    fn lengths_have_their_three_forms() {
        assert_eq!(text("hi"), [0x81, 2, b'h', b'i']);
        assert_eq!(text(&"x".repeat(126))[..4], [0x81, 126, 0, 126]);
        assert_eq!(text(&"x".repeat(65_536))[..10], [0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!((ping(), pong(b"a")), (vec![0x89, 0], vec![0x8a, 1, b'a']));
        assert_eq!(close(Closing::Away), [0x88, 2, 3, 233]);
    }
}
