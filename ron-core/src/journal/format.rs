//! The bytes of a segment: its header, its records, and the sums that make a record believable.
//!
//! A sum is keyed with the segment's random salt and covers the record's own offset. So a record that was copied
//! elsewhere, survived from an earlier life of the file, or sits inside a payload that an attacker chose is not one.
//! The short head sum comes first: a search over megabytes of garbage hashes 37 bytes where the magic matches and
//! reads a body only when the head is genuine.

use crate::ContentId;

/// Longest payload a record can have, whatever the settings. Checked before anything is allocated for it.
pub const RECORD_BYTES_MAX: u32 = 16 << 20;

/// Length of a segment header.
pub(super) const HEADER: usize = 64;
/// Length of a record header.
pub(super) const HEAD: usize = 32;
/// Records start at multiples of this.
pub(super) const ALIGN: usize = 8;

const VERSION: u16 = 1;
/// The high bit and the line ends reveal a transfer that was not binary.
const SEGMENT_MAGIC: [u8; 8] = *b"\x89RONJ\r\n\x1a";
pub(super) const RECORD_MAGIC: [u8; 4] = *b"\xa7REC";
const KEY_CONTEXT: &str = "ron-core journal 1 record key";
const HEADER_CONTEXT: &str = "ron-core journal 1 segment header";

/// Flag of the record that a clean close leaves: no payload, not the caller's, everything before it is durable.
const SEAL: u8 = 1;

/// Bytes that a record with a payload of `payload` bytes takes in a segment.
#[must_use]
pub const fn record_bytes(payload: usize) -> usize {
    (HEAD + payload).next_multiple_of(ALIGN)
}

/// What a segment header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    pub(super) salt: [u8; 16],
    /// Where the records of the previous segment end; 0 in the first one.
    pub(super) previous_end: u64,
}

/// Why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderFault {
    /// Torn, damaged, or not a header.
    Bad,
    /// Whole, in a version from the future.
    Version(u16),
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[24..40].copy_from_slice(&self.salt);
        bytes[40..48].copy_from_slice(&self.previous_end.to_be_bytes());
        let sum = header_sum(&bytes);
        bytes[48..].copy_from_slice(&sum);
        bytes
    }

    /// Reads the header of the segment with this sequence number.
    pub(super) fn decode(bytes: &[u8; HEADER], sequence: u64) -> Result<Header, HeaderFault> {
        if bytes[..8] != SEGMENT_MAGIC || bytes[48..] != header_sum(bytes) {
            return Err(HeaderFault::Bad);
        }
        let version = u16::from_be_bytes(array(bytes, 8));
        if version != VERSION {
            return Err(HeaderFault::Version(version));
        }
        let header = Header {
            sequence: u64::from_be_bytes(array(bytes, 16)),
            salt: array(bytes, 24),
            previous_end: u64::from_be_bytes(array(bytes, 40)),
        };
        if header.sequence != sequence || bytes[10..16] != [0; 6] {
            return Err(HeaderFault::Bad);
        }
        Ok(header)
    }

    pub(super) fn key(&self) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hasher.update(&self.salt);
        hasher.update(&self.sequence.to_be_bytes());
        Key(*hasher.finalize().as_bytes())
    }
}

fn header_sum(bytes: &[u8; HEADER]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key(HEADER_CONTEXT);
    hasher.update(&bytes[..48]);
    array(hasher.finalize().as_bytes(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// What makes the records of one segment verifiable.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A record header whose own sum is right. Its payload is not checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) is_seal: bool,
    pub(super) payload: u32,
    /// Everything before this offset was synced when the record was written.
    pub(super) durable: u32,
}

impl Head {
    /// The header at `offset`, if it is one.
    pub(super) fn decode(bytes: &[u8; HEAD], key: &Key, offset: u32) -> Option<Head> {
        if bytes[..4] != RECORD_MAGIC || bytes[24..] != head_sum(bytes, key, offset) {
            return None;
        }
        let head = Head {
            kind: bytes[4],
            is_seal: bytes[5] == SEAL,
            payload: u32::from_be_bytes(array(bytes, 8)),
            durable: u32::from_be_bytes(array(bytes, 12)),
        };
        let plain = bytes[5] & !SEAL == 0 && bytes[6..8] == [0; 2];
        (plain && head.payload <= RECORD_BYTES_MAX && head.durable <= offset).then_some(head)
    }

    /// Bytes of the whole record.
    pub(super) fn record_bytes(&self) -> usize {
        record_bytes(self.payload as usize)
    }

    /// The name of the payload of `record`, header and padding included, if it is whole.
    pub(super) fn verify(&self, record: &[u8]) -> Option<ContentId> {
        let end = HEAD + self.payload as usize;
        if record.len() != self.record_bytes() || record[end..].iter().any(|byte| *byte != 0) {
            return None;
        }
        let name = ContentId::of(&record[HEAD..end]);
        (record[16..24] == sum_of(&name)).then_some(name)
    }
}

/// The sum of a payload: the beginning of its name. It depends on nothing else, so that whoever appends can compute it
/// while the writer waits for the disk, or knows it already; the place of the record is bound by the head sum, which
/// covers this one.
pub(super) type BodySum = [u8; 8];

pub(super) fn body_sum(payload: &[u8]) -> BodySum {
    sum_of(&ContentId::of(payload))
}

pub(super) fn sum_of(name: &ContentId) -> BodySum {
    array(name.as_bytes(), 0)
}

fn head_sum(head: &[u8; HEAD], key: &Key, offset: u32) -> [u8; 8] {
    let mut input = [0; 32];
    input[..8].copy_from_slice(&u64::from(offset).to_be_bytes());
    input[8..].copy_from_slice(&head[..24]);
    array(blake3::keyed_hash(&key.0, &input).as_bytes(), 0)
}

/// Records laid out for one write. The head sums come last, when it is known where the records go.
#[derive(Debug, Default)]
pub(super) struct Draft {
    bytes: Vec<u8>,
}

impl Draft {
    pub(super) fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    pub(super) fn push(&mut self, kind: u8, payload: &[u8], sum: BodySum) {
        self.lay_out(kind, 0, payload, sum);
    }

    pub(super) fn push_seal(&mut self) {
        self.lay_out(0, SEAL, &[], body_sum(&[]));
    }

    fn lay_out(&mut self, kind: u8, flags: u8, payload: &[u8], sum: BodySum) {
        let len = u32::try_from(payload.len()).expect("the caller keeps payloads below RECORD_BYTES_MAX");
        let end = self.bytes.len() + record_bytes(payload.len());
        self.bytes.extend_from_slice(&RECORD_MAGIC);
        self.bytes.extend_from_slice(&[kind, flags, 0, 0]);
        self.bytes.extend_from_slice(&len.to_be_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&sum);
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(end, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Fills in what depends on the place: the durable mark and the head sum. Calls `at` with each record's offset.
    pub(super) fn finish(&mut self, offset: u32, durable: u32, key: &Key, mut at: impl FnMut(u32)) -> &[u8] {
        let mut start = 0;
        while start < self.bytes.len() {
            let len = u32::from_be_bytes(array(&self.bytes, start + 8)) as usize;
            let place = offset + u32::try_from(start).expect("a batch is shorter than a segment can be");
            let record = &mut self.bytes[start..start + HEAD + len];
            record[12..16].copy_from_slice(&durable.to_be_bytes());
            let sum = head_sum(&array(record, 0), key, place);
            record[24..32].copy_from_slice(&sum);
            at(place);
            start += record_bytes(len);
        }
        &self.bytes
    }
}

/// The sequence number after this one. The very last number is never used, so that every segment has a next and a
/// walk over hostile file names ends.
pub(super) fn next_sequence(sequence: u64) -> Option<u64> {
    sequence.checked_add(1).filter(|next| *next < u64::MAX)
}

/// The file name of a segment.
pub(super) fn segment_name(sequence: u64) -> String {
    format!("{sequence:016x}.seg")
}

/// The sequence number in a file name, if it is exactly what [`segment_name`] writes.
pub(super) fn segment_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let sequence = u64::from_str_radix(digits, 16).ok()?;
    (sequence < u64::MAX && segment_name(sequence) == name).then_some(sequence)
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER_1: Header = Header { sequence: 1, salt: [7; 16], previous_end: 96 };

    fn draft(payloads: &[Vec<u8>], offset: u32, durable: u32) -> Vec<u8> {
        let mut draft = Draft::default();
        for payload in payloads {
            draft.push(9, payload, body_sum(payload));
        }
        draft.finish(offset, durable, &HEADER_1.key(), |_| {}).to_vec()
    }

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_noticed() {
        let bytes = HEADER_1.encode();
        assert_eq!(Header::decode(&bytes, 1), Ok(HEADER_1));
        assert_eq!(Header::decode(&bytes, 2), Err(HeaderFault::Bad));
        for bit in 0..HEADER * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&flipped, 1), Err(HeaderFault::Bad));
        }
    }

    #[test]
    fn a_version_from_the_future_is_named() {
        let mut bytes = HEADER_1.encode();
        bytes[9] = 2;
        let sum = header_sum(&bytes);
        bytes[48..].copy_from_slice(&sum);
        assert_eq!(Header::decode(&bytes, 1), Err(HeaderFault::Version(2)));
    }

    #[test]
    fn only_our_own_names_are_segments() {
        assert_eq!(segment_sequence(&segment_name(0xab)), Some(0xab));
        for name in [
            "LOCK",
            "1.seg",
            "00000000000000AB.seg",
            "+000000000000001.seg",
            "ffffffffffffffff.seg",
            "00000000000000ab.seg.tmp",
        ] {
            assert_eq!(segment_sequence(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn records_come_back_only_where_they_were_written(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..5),
            start in 8_u32..1000,
            flip in any::<prop::sample::Index>(),
        ) {
            let key = HEADER_1.key();
            let start = start * 8;
            let bytes = draft(&payloads, start, 64);
            let read = |bytes: &[u8], at: usize, offset: u32| {
                let head = Head::decode(&array(bytes, at), &key, offset)?;
                let record = bytes.get(at..at + head.record_bytes())?;
                head.verify(record).map(|_| record[HEAD..HEAD + head.payload as usize].to_vec())
            };
            let mut at = 0;
            let mut ends = Vec::new();
            for payload in &payloads {
                let offset = start + u32::try_from(at).unwrap();
                prop_assert_eq!(read(&bytes, at, offset), Some(payload.clone()));
                prop_assert_eq!(read(&bytes, at, offset + 8), None);
                at += record_bytes(payload.len());
                ends.push(at);
            }
            prop_assert_eq!(at, bytes.len());
            let flip = flip.index(bytes.len() * 8);
            let mut flipped = bytes.clone();
            flipped[flip / 8] ^= 1 << (flip % 8);
            let hit = ends.iter().position(|end| flip / 8 < *end).unwrap();
            let at = if hit == 0 { 0 } else { ends[hit - 1] };
            prop_assert_eq!(read(&flipped, at, start + u32::try_from(at).unwrap()), None);
        }
    }
}
