//! The two names that cross crates, and the distance between them.
//!
//! A [`ContentId`] names bytes by their BLAKE3 hash, a [`NodeId`] names a node by the BLAKE3 hash of its public key.
//! Both are 32 bytes of one key space, so "near" has a meaning between a node and a piece of content. Text forms are
//! strict: one name has exactly one spelling, so names compare as strings in logs, caches and URLs.

use std::{cmp::Ordering, fmt, str::FromStr};

use data_encoding::{BASE32_NOPAD, DecodeKind, HEXLOWER};

/// What comes before the hex digits of a content id.
const CONTENT_PREFIX: &str = "b3:";

/// CIDv1, raw bytes, BLAKE3, 32 bytes: each below 128, so each is one byte as a varint.
const CID_VERSION: u8 = 0x01;
const CID_RAW: u8 = 0x55;
const CID_BLAKE3: u8 = 0x1e;
const CID_LENGTH: u8 = 0x20;

/// The name of some bytes: their BLAKE3 hash. Written `b3:` and 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId([u8; 32]);

impl ContentId {
    /// The name of `content`.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        ContentId(*blake3::hash(content).as_bytes())
    }

    /// The name with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        ContentId(bytes)
    }

    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The same name as a CIDv1 (raw, BLAKE3, base32): how IPFS tools write it.
    #[must_use]
    pub fn to_cid(&self) -> String {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&[CID_VERSION, CID_RAW, CID_BLAKE3, CID_LENGTH]);
        bytes[4..].copy_from_slice(&self.0);
        let mut text = String::with_capacity(59);
        text.push('b');
        BASE32_NOPAD.encode_append(&bytes, &mut text);
        text.make_ascii_lowercase();
        text
    }

    /// Reads what [`to_cid`](Self::to_cid) writes, and nothing else.
    ///
    /// # Errors
    /// An [`IdError`] naming the part that differs: base, version, codec, hash or length.
    pub fn from_cid(text: &str) -> Result<Self, IdError> {
        // Version 0 has no base prefix; it is told apart by its look, so that the error says what is wrong.
        if text.len() == 46 && text.starts_with("Qm") {
            return Err(IdError::CidVersion);
        }
        let digits = text.strip_prefix('b').ok_or(IdError::CidBase)?;
        if !digits.bytes().all(|digit| matches!(digit, b'a'..=b'z' | b'2'..=b'7')) {
            return Err(IdError::CidBase);
        }
        let bytes = BASE32_NOPAD.decode(digits.to_ascii_uppercase().as_bytes()).map_err(|error| {
            match error.kind {
                DecodeKind::Length => IdError::CidLength,
                // Trailing bits that are not zero would be a second spelling of the same name.
                _ => IdError::CidBase,
            }
        })?;
        let rest = tagged(&bytes, CID_VERSION, IdError::CidVersion)?;
        let rest = tagged(rest, CID_RAW, IdError::CidCodec)?;
        let rest = tagged(rest, CID_BLAKE3, IdError::CidHash)?;
        let digest = tagged(rest, CID_LENGTH, IdError::CidLength)?;
        digest.try_into().map(ContentId).map_err(|_| IdError::CidLength)
    }

    /// Reads either form, told apart by the prefix: for places where a person pastes a name.
    ///
    /// # Errors
    /// The [`IdError`] of the form that the text begins like.
    pub fn parse_any(text: &str) -> Result<Self, IdError> {
        if text.starts_with(CONTENT_PREFIX) { text.parse() } else { ContentId::from_cid(text) }
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CONTENT_PREFIX)?;
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CONTENT_PREFIX)?;
        write_short(&self.0, f)
    }
}

impl FromStr for ContentId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.strip_prefix(CONTENT_PREFIX).ok_or(IdError::Prefix)?;
        read_hex(digits).map(ContentId)
    }
}

/// The name of a node: the BLAKE3 hash of its public key. Written as 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 32]);

impl NodeId {
    /// The name of the node that holds the secret half of `key`.
    #[must_use]
    pub fn of_public_key(key: &[u8; 32]) -> Self {
        NodeId(*blake3::hash(key).as_bytes())
    }

    /// The name with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        NodeId(bytes)
    }

    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// How far `other` is: a node, a piece of content, or a key of the same space.
    #[must_use]
    pub fn distance(&self, other: &impl AsRef<[u8; 32]>) -> Distance {
        Distance::between(&self.0, other.as_ref())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_short(&self.0, f)
    }
}

impl FromStr for NodeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        read_hex(text).map(NodeId)
    }
}

impl AsRef<[u8; 32]> for ContentId {
    fn as_ref(&self) -> &[u8; 32] {
        &self.0
    }
}

impl AsRef<[u8; 32]> for NodeId {
    fn as_ref(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The XOR of two names, compared as a big-endian number. For every point and distance there is exactly one other
/// point, so searches from different sides meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Distance([u8; 32]);

impl Distance {
    /// No distance: a point and itself.
    pub const ZERO: Distance = Distance([0; 32]);

    /// The distance between two points of the key space.
    #[must_use]
    pub fn between(from: &[u8; 32], to: &[u8; 32]) -> Self {
        // As two numbers: this is the innermost loop of every search, in builds without optimization too.
        let halves = |point: &[u8; 32]| {
            let (high, low) = (point.first_chunk::<16>(), point.last_chunk::<16>());
            [high, low].map(|half| u128::from_ne_bytes(*half.expect("32 bytes have two halves")))
        };
        let ([from_high, from_low], [to_high, to_low]) = (halves(from), halves(to));
        let mut distance = [0; 32];
        distance[..16].copy_from_slice(&(from_high ^ to_high).to_ne_bytes());
        distance[16..].copy_from_slice(&(from_low ^ to_low).to_ne_bytes());
        Distance(distance)
    }

    /// How many leading bits the two names share: 256 if they are the same.
    #[must_use]
    pub fn leading_zeros(&self) -> u32 {
        let mut zeros = 0;
        for byte in self.0 {
            zeros += byte.leading_zeros();
            if byte != 0 {
                break;
            }
        }
        zeros
    }

    /// Its first eight bytes, which tell nearly all distances apart.
    fn head(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().expect("32 bytes have eight"))
    }

    /// The XOR itself, big-endian.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Ord for Distance {
    fn cmp(&self, other: &Self) -> Ordering {
        // Bytes from the most significant on: the order of arrays is the order of big-endian numbers.
        self.head().cmp(&other.head()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Distance {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Distance({} bits shared)", self.leading_zeros())
    }
}

/// Which part of a name's text is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// A content id begins with `b3:`; this does not.
    #[error("a content id begins with b3:")]
    Prefix,
    /// Not 64 digits.
    #[error("expected 64 hex digits, found {found} characters")]
    Length {
        /// Bytes of text where the digits should be.
        found: usize,
    },
    /// Upper case: lower it and it may be a name.
    #[error("upper case at digit {at}; names are lower case")]
    UpperCase {
        /// Which digit, from zero.
        at: usize,
    },
    /// Not a hex digit.
    #[error("not a hex digit at {at}")]
    Digit {
        /// Where, in bytes from the first digit.
        at: usize,
    },
    /// A CID in another base than lowercase base32, or a digit outside it.
    #[error("the CID is not in lowercase base32")]
    CidBase,
    /// A CID of another version than 1.
    #[error("the CID is not version 1")]
    CidVersion,
    /// A CID of something else than raw bytes: its hash covers an encoding that we do not have.
    #[error("the CID does not name raw bytes")]
    CidCodec,
    /// A CID with another hash than BLAKE3.
    #[error("the CID does not use BLAKE3")]
    CidHash,
    /// A CID that is cut off, too long, or holds a digest of another length than 32 bytes.
    #[error("the CID does not hold 32 bytes of hash")]
    CidLength,
}

/// What follows `tag` in `bytes`; `wrong` if something else is there, and a length error if nothing is.
fn tagged(bytes: &[u8], tag: u8, wrong: IdError) -> Result<&[u8], IdError> {
    match bytes.split_first() {
        Some((first, rest)) if *first == tag => Ok(rest),
        Some(_) => Err(wrong),
        None => Err(IdError::CidLength),
    }
}

pub(crate) fn write_hex(bytes: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0; 64];
    HEXLOWER.encode_mut(bytes, &mut digits);
    f.write_str(std::str::from_utf8(&digits).expect("hex digits are ASCII"))
}

/// Eight digits are enough to follow a name through a log of thousands.
fn write_short(bytes: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

pub(crate) fn read_hex(digits: &str) -> Result<[u8; 32], IdError> {
    if digits.len() != 64 {
        return Err(IdError::Length { found: digits.len() });
    }
    let mut bytes = [0; 32];
    if HEXLOWER.decode_mut(digits.as_bytes(), &mut bytes).is_ok() {
        return Ok(bytes);
    }
    // Only what is wrong is looked at digit by digit.
    let wrong = |(at, digit): (usize, u8)| match digit {
        b'0'..=b'9' | b'a'..=b'f' => None,
        b'A'..=b'F' => Some(IdError::UpperCase { at }),
        _ => Some(IdError::Digit { at }),
    };
    Err(digits.bytes().enumerate().find_map(wrong).unwrap_or(IdError::Digit { at: 0 }))
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// BLAKE3 of "hello world", as the reference `b3sum` prints it.
    const HELLO: &str = "d74981efa70a0c880b8d8c1985d075dbcbf679b99a5f9914e5aaf96b831a9e24";

    fn hello() -> ContentId {
        ContentId::of(b"hello world")
    }

    /// A CID with arbitrary content, spelled by the arithmetic of the specification rather than by the code above:
    /// five bits a digit, most significant first, the last digit filled with zeros.
    fn cid_of(bytes: &[u8]) -> String {
        let bits: Vec<u8> =
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
        let digit = |five: &[u8]| {
            let value = (0..5).fold(0, |value, at| value << 1 | five.get(at).copied().unwrap_or(0));
            char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(value)])
        };
        std::iter::once('b').chain(bits.chunks(5).map(digit)).collect()
    }

    #[test]
    fn the_known_vector() {
        assert_eq!(hello().to_string(), format!("b3:{HELLO}"));
        assert_eq!(format!("b3:{HELLO}").parse(), Ok(hello()));
        assert_eq!(format!("{:?}", hello()), "b3:d74981ef");
    }

    #[test]
    fn a_node_is_named_by_its_key() {
        let key = [7; 32];
        let node = NodeId::of_public_key(&key);
        assert_eq!(node.as_bytes(), ContentId::of(&key).as_bytes());
        assert_eq!(node.to_string().parse(), Ok(node));
        assert_eq!(format!("{node:?}"), node.to_string()[..8]);
    }

    #[test]
    fn text_has_one_spelling() {
        let content = |text: &str| text.parse::<ContentId>();
        assert_eq!(content(HELLO), Err(IdError::Prefix));
        assert_eq!(content(&format!("B3:{HELLO}")), Err(IdError::Prefix));
        assert_eq!(content(&format!(" b3:{HELLO}")), Err(IdError::Prefix));
        assert_eq!(content("b3:"), Err(IdError::Length { found: 0 }));
        assert_eq!(content(&format!("b3:{HELLO}0")), Err(IdError::Length { found: 65 }));
        assert_eq!(content(&format!("b3:D{}", &HELLO[1..])), Err(IdError::UpperCase { at: 0 }));
        assert_eq!(content(&format!("b3:{}g", &HELLO[..63])), Err(IdError::Digit { at: 63 }));
        // What a path would be tricked with is no digit, at any length.
        for trick in ["../../etc/passwd", "%2e%2e%2f", "..\\\\", "\0", "/", "~"] {
            let right = format!("b3:{trick}{}", &HELLO[..64 - trick.len()]);
            assert_eq!(content(&right), Err(IdError::Digit { at: 0 }), "{right:?}");
            assert!(matches!(content(&format!("b3:{trick}")), Err(IdError::Length { .. })), "{trick:?}");
        }
        // A character of two bytes makes the length right and the digits wrong.
        assert_eq!(content(&format!("b3:{}é", &HELLO[..62])), Err(IdError::Digit { at: 62 }));
        assert_eq!(format!("b3:{HELLO}").parse::<NodeId>(), Err(IdError::Length { found: 67 }));
    }

    #[test]
    fn a_cid_is_the_bytes_of_the_specification() {
        let bytes = [&[0x01, 0x55, 0x1e, 0x20], &hello().as_bytes()[..]].concat();
        let text = cid_of(&bytes);
        assert_eq!(text.len(), 59);
        assert!(text.starts_with("bafkr4i"), "{text}");
        assert_eq!(hello().to_cid(), text);
        assert_eq!(ContentId::from_cid(&text), Ok(hello()));
        assert_eq!(ContentId::parse_any(&text), Ok(hello()));
        assert_eq!(ContentId::parse_any(&hello().to_string()), Ok(hello()));
    }

    #[test]
    fn a_foreign_cid_is_told_which_part_is_foreign() {
        let check = |text: &str, error| assert_eq!(ContentId::from_cid(text), Err(error), "{text}");
        let with = |head: [u8; 4], digest: usize| cid_of(&[&head[..], &vec![0xab; digest]].concat());
        check(&with([0x02, 0x55, 0x1e, 0x20], 32), IdError::CidVersion);
        check(&with([0x01, 0x70, 0x1e, 0x20], 32), IdError::CidCodec);
        check(&with([0x01, 0x55, 0x12, 0x20], 32), IdError::CidHash);
        check(&with([0x01, 0x55, 0x1e, 0x40], 64), IdError::CidLength);
        check(&with([0x01, 0x55, 0x1e, 0x20], 31), IdError::CidLength);
        check(&with([0x01, 0x55, 0x1e, 0x20], 33), IdError::CidLength);
        check("b", IdError::CidLength);
        check("", IdError::CidBase);
        check(&hello().to_cid().to_uppercase(), IdError::CidBase);
        check(&format!("z{}", &hello().to_cid()[1..]), IdError::CidBase);
        check(&format!("{}=", hello().to_cid()), IdError::CidBase);
        check("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPbdG", IdError::CidVersion);
        // 36 bytes are 57 digits and 3 bits: the last digit may only be one of eight.
        let mut second_spelling = hello().to_cid();
        let last = second_spelling.pop().expect("59 digits");
        second_spelling.push(if last == 'b' { 'd' } else { 'b' });
        check(&second_spelling, IdError::CidBase);
    }

    #[test]
    fn leading_zeros_count_shared_bits() {
        let node = NodeId::from_bytes([0; 32]);
        let far = |at: usize, byte| {
            let mut bytes = [0; 32];
            bytes[at] = byte;
            node.distance(&ContentId::from_bytes(bytes)).leading_zeros()
        };
        assert_eq!(far(0, 0x80), 0);
        assert_eq!(far(0, 0x01), 7);
        assert_eq!(far(1, 0xff), 8);
        assert_eq!(far(31, 0x01), 255);
        assert_eq!(far(31, 0x00), 256);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in prop_oneof![any::<String>(), "b[a-z2-7]{0,70}", "(b3:)?[0-9a-fA-Fg]{60,68}"]) {
            // What is accepted is spelled exactly as it is written.
            if let Ok(id) = text.parse::<ContentId>() {
                prop_assert_eq!(id.to_string(), text.clone());
            }
            if let Ok(id) = text.parse::<NodeId>() {
                prop_assert_eq!(id.to_string(), text.clone());
            }
            if let Ok(id) = ContentId::from_cid(&text) {
                prop_assert_eq!(id.to_cid(), text.clone());
            }
            let _ = ContentId::parse_any(&text);
        }

        #[test]
        fn every_name_survives_its_text(bytes: [u8; 32]) {
            let (content, node) = (ContentId::from_bytes(bytes), NodeId::from_bytes(bytes));
            prop_assert_eq!(content.to_string().parse(), Ok(content));
            prop_assert_eq!(node.to_string().parse(), Ok(node));
            prop_assert_eq!(ContentId::from_cid(&content.to_cid()), Ok(content));
            prop_assert_eq!(content.to_cid(), cid_of(&[&[0x01, 0x55, 0x1e, 0x20], &bytes[..]].concat()));
        }

        #[test]
        fn distance_is_a_metric(a: [u8; 32], b: [u8; 32], c: [u8; 32]) {
            let between = |a, b| NodeId::from_bytes(a).distance(&NodeId::from_bytes(b));
            prop_assert_eq!(between(a, b), between(b, a));
            prop_assert_eq!(between(a, a), Distance::ZERO);
            prop_assert_eq!(between(a, b) == Distance::ZERO, a == b);
            // Unidirectional: a point and a distance determine the other point.
            let back: [u8; 32] = std::array::from_fn(|at| a[at] ^ between(a, b).as_bytes()[at]);
            prop_assert_eq!(back, b);
            prop_assert!(sum_reaches(between(a, b), between(b, c), between(a, c)));
        }
    }

    /// Whether `left + right >= whole`, with the carry out of the top byte counted.
    fn sum_reaches(left: Distance, right: Distance, whole: Distance) -> bool {
        let (mut sum, mut carry) = ([0; 32], 0);
        for at in (0..32).rev() {
            let digit = u16::from(left.0[at]) + u16::from(right.0[at]) + carry;
            sum[at] = digit.to_be_bytes()[1];
            carry = digit >> 8;
        }
        carry > 0 || Distance(sum) >= whole
    }
}
