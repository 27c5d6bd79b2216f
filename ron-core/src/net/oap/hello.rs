//! What two ends tell each other before anything else, and what follows from it.
//!
//! HELLO is a CBOR map with integer keys, written in the one deterministic way. Keys that are not known are skipped:
//! a later node may say more, and an earlier one still understands the rest. What is known is checked in full.

use bytes::Bytes;
use minicbor::Decoder;

use super::{
    super::cbor::{self, CborFault},
    CHUNK_BYTES, FRAME_BYTES_MAX, Flags, Frame, HEADER_BYTES, PROTO_CONTROL, VERSION,
};

/// Bytes of the largest HELLO. Ours has about twenty; the rest is for later versions.
const HELLO_BYTES_MAX: usize = 4096;

/// Versions in the longest list.
const VERSIONS_MAX: u64 = 16;

const KEY_VERSIONS: u64 = 0;
const KEY_FRAME_BYTES_MAX: u64 = 1;
const KEY_INFLIGHT_MAX: u64 = 2;
const KEY_FEATURES: u64 = 3;

/// What one end is able and willing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Versions of OAP that it speaks, ascending.
    pub versions: Vec<u16>,
    /// Bytes of the longest frame it takes: at least a chunk of 64 KiB with its header.
    pub frame_bytes_max: u32,
    /// Exchanges and event streams that the other end may have open at once. Zero means it takes none.
    pub inflight_max: u32,
    /// Abilities, one bit each, of which version 1 defines none. Unknown bits mean nothing.
    pub features: u64,
}

/// What both ends can do: the result of two HELLOs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The highest version that both speak.
    pub version: u16,
    /// Bytes of the longest frame that we may send.
    pub send_bytes_max: u32,
    /// Exchanges and event streams that we may have open.
    pub ours_max: u32,
    /// Exchanges and event streams that the peer may have open.
    pub theirs_max: u32,
    /// Abilities of both.
    pub features: u64,
}

/// Why a HELLO is not one. All end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// More bytes, keys or versions than a HELLO may have.
    #[error("the HELLO is too large")]
    TooLarge,
    /// Not a CBOR map of definite length with ascending integer keys, or not only that.
    #[error("the HELLO is not a deterministic CBOR map")]
    Malformed,
    /// A key that every HELLO has is not there.
    #[error("the HELLO lacks key {key}")]
    Missing {
        /// The key.
        key: u8,
    },
    /// A value outside what its key allows.
    #[error("the HELLO has a value out of range at key {key}")]
    OutOfRange {
        /// The key.
        key: u8,
    },
    /// The two ends have no version in common.
    #[error("no version in common")]
    NoCommonVersion,
}

impl HelloError {
    /// The rule in one word, for counters: one of five.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            HelloError::TooLarge => "hello_too_large",
            HelloError::Malformed => "hello_malformed",
            HelloError::Missing { .. } => "hello_missing",
            HelloError::OutOfRange { .. } => "hello_out_of_range",
            HelloError::NoCommonVersion => "hello_version",
        }
    }
}

impl From<CborFault> for HelloError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::TooMany { .. } => HelloError::TooLarge,
            _ => HelloError::Malformed,
        }
    }
}

impl From<minicbor::decode::Error> for HelloError {
    fn from(_: minicbor::decode::Error) -> Self {
        HelloError::Malformed
    }
}

impl Default for Hello {
    fn default() -> Self {
        Hello {
            versions: vec![VERSION],
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            inflight_max: 512,
            features: 0,
        }
    }
}

impl Hello {
    /// The smallest `frame_bytes_max` there may be: less could not carry a chunk.
    pub const FRAME_BYTES_LEAST: u32 = (HEADER_BYTES + CHUNK_BYTES) as u32;

    /// The payload of a HELLO.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let payload = cbor::encode(32, |cbor| {
            cbor.map(4)?.u64(KEY_VERSIONS)?.array(self.versions.len() as u64)?;
            for version in &self.versions {
                cbor.u16(*version)?;
            }
            cbor.u64(KEY_FRAME_BYTES_MAX)?.u32(self.frame_bytes_max)?;
            cbor.u64(KEY_INFLIGHT_MAX)?.u32(self.inflight_max)?;
            cbor.u64(KEY_FEATURES)?.u64(self.features)?.ok()
        });
        payload.into()
    }

    /// Reads the payload of a HELLO.
    ///
    /// # Errors
    /// A [`HelloError`].
    pub fn decode(payload: &[u8]) -> Result<Self, HelloError> {
        if payload.len() > HELLO_BYTES_MAX {
            return Err(HelloError::TooLarge);
        }
        let (mut versions, mut frame, mut inflight, mut features) = (None, None, None, None);
        cbor::read_only_map(payload, |key, cbor| -> Result<bool, HelloError> {
            match key {
                KEY_VERSIONS => versions = Some(read_versions(cbor)?),
                KEY_FRAME_BYTES_MAX => frame = Some(cbor.u64()?),
                KEY_INFLIGHT_MAX => inflight = Some(cbor.u64()?),
                KEY_FEATURES => features = Some(cbor.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let frame = required(frame, KEY_FRAME_BYTES_MAX)?;
        if frame < Self::FRAME_BYTES_LEAST.into() {
            return Err(HelloError::OutOfRange { key: KEY_FRAME_BYTES_MAX as u8 });
        }
        // Beyond what we could ever use, a larger number means the same.
        let capped = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Hello {
            versions: required(versions, KEY_VERSIONS)?,
            frame_bytes_max: capped(frame),
            inflight_max: capped(required(inflight, KEY_INFLIGHT_MAX)?),
            features: required(features, KEY_FEATURES)?,
        })
    }

    /// The frame with which the end that dialled opens the conversation. The other answers it with 200 and its own.
    #[must_use]
    pub fn request(&self) -> Frame {
        Frame { flags: Flags::REQ, proto: PROTO_CONTROL, payload: self.encode(), ..Frame::default() }
    }

    /// What follows from our HELLO and theirs. Both ends come to the same version and features.
    ///
    /// # Errors
    /// [`HelloError::NoCommonVersion`].
    pub fn agree(&self, theirs: &Hello) -> Result<Agreed, HelloError> {
        let common = self.versions.iter().filter(|version| theirs.versions.contains(version)).max();
        Ok(Agreed {
            version: *common.ok_or(HelloError::NoCommonVersion)?,
            send_bytes_max: theirs.frame_bytes_max.min(FRAME_BYTES_MAX as u32),
            ours_max: theirs.inflight_max,
            theirs_max: self.inflight_max,
            features: self.features & theirs.features,
        })
    }
}

fn required<T>(value: Option<T>, key: u64) -> Result<T, HelloError> {
    value.ok_or(HelloError::Missing { key: key as u8 })
}

fn read_versions(cbor: &mut Decoder<'_>) -> Result<Vec<u16>, HelloError> {
    let count = cbor.array()?.ok_or(HelloError::Malformed)?;
    // Before anything is allocated for them.
    if count > VERSIONS_MAX {
        return Err(HelloError::TooLarge);
    }
    let mut versions = Vec::new();
    for _ in 0..count {
        let version = cbor.u16()?;
        if version == 0 || versions.last().is_some_and(|last| *last >= version) {
            return Err(HelloError::OutOfRange { key: KEY_VERSIONS as u8 });
        }
        versions.push(version);
    }
    if versions.is_empty() {
        return Err(HelloError::OutOfRange { key: KEY_VERSIONS as u8 });
    }
    Ok(versions)
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use allocation_counter::measure;
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &[u8] = &[0xa4, 0, 0x81, 1, 1, 0x1a, 0, 0x10, 0, 0, 2, 0x19, 2, 0, 3, 0];

    #[test]
    fn the_bytes_are_these_and_no_others() {
        assert_eq!(Hello::default().encode(), PLAIN);
        assert_eq!(Hello::decode(PLAIN), Ok(Hello::default()));
    }

    #[test]
    fn unknown_keys_are_skipped_whatever_they_hold() {
        // Key 9 holds {"a": [1, "x", h'00', [[[]]]]}, key 70000 a tagged float.
        let mut later = PLAIN.to_vec();
        later[0] = 0xa6;
        later.extend([9, 0xa1, 0x61, b'a', 0x84, 1, 0x61, b'x', 0x41, 0, 0x81, 0x81, 0x80]);
        later.extend([0x1a, 0, 1, 0x11, 0x70, 0xc1, 0xf9, 0, 0]);
        assert_eq!(Hello::decode(&later), Ok(Hello::default()));
    }

    #[test]
    fn each_rule_has_its_error() {
        let check = |bytes: &[u8], error| assert_eq!(Hello::decode(bytes), Err(error), "{bytes:02x?}");
        let edited = |at: usize, value: u8| {
            let mut bytes = PLAIN.to_vec();
            bytes[at] = value;
            bytes
        };
        check(&[], HelloError::Malformed);
        check(br#"{"ua":"sdk/0.1"}"#, HelloError::Malformed);
        check(&[0xa0], HelloError::Missing { key: 1 });
        check(&[PLAIN, &[0]].concat(), HelloError::Malformed);
        check(&PLAIN[..PLAIN.len() - 1], HelloError::Malformed);
        check(&[&[0xbf], &PLAIN[1..], &[0xff]].concat(), HelloError::Malformed);
        check(&edited(14, 2), HelloError::Malformed); // key 2 twice
        check(&edited(14, 1), HelloError::Malformed); // descending
        check(&edited(14, 4), HelloError::Missing { key: 3 });
        check(&edited(2, 0x80), HelloError::OutOfRange { key: 0 }); // an empty list
        check(&edited(3, 0), HelloError::OutOfRange { key: 0 });
        check(&edited(7, 0), HelloError::OutOfRange { key: 1 });
        check(&vec![0; HELLO_BYTES_MAX + 1], HelloError::TooLarge);
        check(&[0xb8, 65], HelloError::TooLarge);
        // What is skipped has a form too.
        check(&[0xa1, 9, 0x81, 0x9f, 0xff], HelloError::Malformed);
        check(&[0xa1, 9, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 1], HelloError::TooLarge);
    }

    #[test]
    fn claimed_lengths_cost_nothing() {
        let map: &[u8] = &[0xbb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let list: &[u8] = &[0xa4, 0, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let skipped: &[u8] = &[0xa1, 9, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let text: &[u8] = &[0xa1, 9, 0x7b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        for bytes in [map, list, skipped, text] {
            let used = measure(|| assert!(Hello::decode(bytes).is_err()));
            assert!(used.bytes_max < 4096, "{used:?}");
        }
    }

    #[test]
    fn huge_numbers_are_cut_and_zero_inflight_is_legal() {
        let hello =
            Hello { inflight_max: 0, frame_bytes_max: u32::MAX, features: u64::MAX, ..Hello::default() };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
        let agreed = Hello::default().agree(&hello).unwrap();
        let expected =
            Agreed { version: 1, send_bytes_max: 1 << 20, ours_max: 0, theirs_max: 512, features: 0 };
        assert_eq!(agreed, expected);
        let mut wider = PLAIN.to_vec();
        wider.splice(11..14, [0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(Hello::decode(&wider).unwrap().inflight_max, u32::MAX);
    }

    #[test]
    fn the_highest_common_version_wins_on_both_ends() {
        let of = |versions: &[u16]| Hello { versions: versions.to_vec(), ..Hello::default() };
        assert_eq!(of(&[1, 2, 4]).agree(&of(&[2, 3, 4])).unwrap().version, 4);
        assert_eq!(of(&[2, 3, 4]).agree(&of(&[1, 2])).unwrap().version, 2);
        assert_eq!(of(&[1]).agree(&of(&[2])), Err(HelloError::NoCommonVersion));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Hello::decode(&bytes);
        }

        #[test]
        fn every_hello_comes_back(
            versions in prop::collection::btree_set(1..=u16::MAX, 1..16),
            frame_bytes_max in Hello::FRAME_BYTES_LEAST..,
            inflight_max: u32,
            features: u64,
        ) {
            let versions = versions.into_iter().collect();
            let hello = Hello { versions, frame_bytes_max, inflight_max, features };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }
}
