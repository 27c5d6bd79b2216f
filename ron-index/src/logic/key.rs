//! What can be asked for: a name, content by its BLAKE3 address, or content by an IPFS CID.
//!
//! Different spellings of one thing are one key. A CID with a BLAKE3 hash is the same key as the address with that hash; CIDs
//! that differ only in base, version or codec are the same key, because who provides the bytes does not depend on those.

use std::{fmt, str::FromStr, sync::Arc};

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use ron_core::{ContentId, IdError, NodeId};

/// The longest name, as in the registry.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest text that is read at all. The largest CID that anybody writes is a third of this.
pub const KEY_BYTES_MAX: usize = 512;

/// The longest digest of a multihash. Only identity hashes get that long.
const DIGEST_BYTES_MAX: usize = 128;

/// The code of BLAKE3 in the table of multicodecs.
const BLAKE3: u64 = 0x1e;

/// The code of the identity "hash": the digest is the data itself.
const IDENTITY: u64 = 0;

/// The code of SHA-256, which is the only hash of a CID of version 0.
const SHA2_256: u64 = 0x12;

/// CIDs in use are at least this long; shorter text is read as a name.
const CID_CHARS_MIN: usize = 40;

/// Raw bytes, in the table of multicodecs.
const RAW: u64 = 0x55;

/// A key of libp2p, in the table of multicodecs: how a peer is written as a CID.
const LIBP2P_KEY: u64 = 0x72;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// What a name stands for.
    Name(Name),
    /// Content by its BLAKE3 hash.
    Content(ContentId),
    /// Content by another hash. Its providers can be found, but the content cannot be verified here.
    Foreign(Multihash),
}

/// A name, such as `tools/compiler`: printable ASCII in parts between slashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// A digest together with the code of its hash function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Multihash {
    code: u64,
    digest: Arc<[u8]>,
}

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is empty or too long.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, and this has {found}")]
    Length {
        /// How many bytes it has.
        found: usize,
    },
    /// It begins with `b3:` but is not a content address.
    #[error("not a content address")]
    Content(#[source] IdError),
    /// Not a CID.
    #[error("not a CID: {why}")]
    Cid {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not a name.
    #[error(
        "a name has 1 to {NAME_BYTES_MAX} printable ASCII characters without spaces, in parts between slashes, none of them \
         empty, `.` or `..`"
    )]
    Name,
}

impl Key {
    /// Reads a key that must be content: an address or a CID, and no name.
    ///
    /// # Errors
    /// A [`KeyError`].
    pub fn content(text: &str) -> Result<Self, KeyError> {
        check_length(text)?;
        if text.starts_with("b3:") {
            return text.parse().map(Key::Content).map_err(KeyError::Content);
        }
        Cid::parse(text).map(|cid| Key::of_hash(cid.hash))
    }

    fn of_hash(hash: Multihash) -> Self {
        match hash.content_id() {
            Some(id) => Key::Content(id),
            None => Key::Foreign(hash),
        }
    }

    /// What kind of key it is, in one word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Key::Name(_) => "name",
            Key::Content(_) => "b3",
            Key::Foreign(_) => "cid",
        }
    }

    /// Bytes that it takes beside the struct itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Key::Name(name) => name.0.len() + 16,
            Key::Content(_) => 0,
            Key::Foreign(hash) => hash.digest.len() + 16,
        }
    }
}

impl FromStr for Key {
    type Err = KeyError;

    /// Text that begins with `b3:` is an address; else, text that parses as a CID is one; everything else is a name.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        check_length(text)?;
        if text.starts_with("b3:") {
            return text.parse().map(Key::Content).map_err(KeyError::Content);
        }
        if text.len() >= CID_CHARS_MIN && !text.contains('/') {
            if let Ok(cid) = Cid::parse(text) {
                return Ok(Key::of_hash(cid.hash));
            }
        }
        text.parse().map(Key::Name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Name(name) => name.fmt(f),
            Key::Content(id) => id.fmt(f),
            Key::Foreign(hash) => f.write_str(&hash.to_cid()),
        }
    }
}

impl From<ContentId> for Key {
    fn from(id: ContentId) -> Self {
        Key::Content(id)
    }
}

fn check_length(text: &str) -> Result<(), KeyError> {
    match text.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        found => Err(KeyError::Length { found }),
    }
}

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let is_plain = text.len() <= NAME_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_path = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if is_plain && is_path && !text.starts_with("b3:") {
            Ok(Name(text.into()))
        } else {
            Err(KeyError::Name)
        }
    }
}

impl Multihash {
    /// A digest of the hash function `code`. `None` if it has more than 128 bytes.
    #[must_use]
    pub fn new(code: u64, digest: &[u8]) -> Option<Self> {
        (digest.len() <= DIGEST_BYTES_MAX).then(|| Multihash { code, digest: digest.into() })
    }

    /// The hash function, by its code in the table of multicodecs.
    #[must_use]
    pub fn code(&self) -> u64 {
        self.code
    }

    /// The digest.
    #[must_use]
    pub fn digest(&self) -> &[u8] {
        &self.digest
    }

    /// The same as a content address, if it is a BLAKE3 hash of 32 bytes.
    #[must_use]
    pub fn content_id(&self) -> Option<ContentId> {
        let digest = <[u8; 32]>::try_from(&*self.digest).ok()?;
        (self.code == BLAKE3).then(|| ContentId::from_bytes(digest))
    }

    /// Code, length and digest, as they are written in a CID.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.digest.len() + 4);
        put_varint(&mut bytes, self.code);
        put_varint(&mut bytes, self.digest.len() as u64);
        bytes.extend_from_slice(&self.digest);
        bytes
    }

    /// As a CIDv1 of raw bytes in base32.
    #[must_use]
    pub fn to_cid(&self) -> String {
        let mut bytes = vec![1];
        put_varint(&mut bytes, RAW);
        bytes.extend_from_slice(&self.to_bytes());
        format!("b{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (code, rest) = take_varint(bytes)?;
        let (len, digest) = take_varint(rest)?;
        if len != digest.len() as u64 {
            return None;
        }
        Multihash::new(code, digest)
    }
}

impl fmt::Debug for Multihash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_cid())
    }
}

/// A CID, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cid {
    /// What the bytes are encoded as.
    pub codec: u64,
    /// Their hash.
    pub hash: Multihash,
}

impl Cid {
    /// Reads a CID of version 0 (base58) or 1 (base32, base36, base58, base16 or base64 for URLs).
    ///
    /// # Errors
    /// [`KeyError::Cid`], [`KeyError::Length`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        check_length(text)?;
        let wrong = |why| KeyError::Cid { why };
        if text.len() == 46 && text.starts_with("Qm") {
            let bytes = from_radix(text, BASE58).ok_or(wrong("a digit outside base58"))?;
            let hash =
                Multihash::read(&bytes).filter(|hash| hash.code == SHA2_256 && hash.digest.len() == 32);
            return hash.map(|hash| Cid { codec: 0x70, hash }).ok_or(wrong("not a hash of version 0"));
        }
        let bytes = multibase(text).ok_or(wrong("the base is not known, or a digit is outside it"))?;
        let rest = bytes.strip_prefix(&[1]).ok_or(wrong("not of version 1"))?;
        let (codec, rest) = take_varint(rest).ok_or(wrong("it is cut off"))?;
        let hash =
            Multihash::read(rest).ok_or(wrong("not a multihash, or of another length than it says"))?;
        Ok(Cid { codec, hash })
    }
}

/// Reads the id of a peer, as libp2p writes it: a multihash in base58, or a CID of a key.
///
/// # Errors
/// [`KeyError::Cid`], [`KeyError::Length`].
pub fn peer_id(text: &str) -> Result<Multihash, KeyError> {
    check_length(text)?;
    if text.starts_with("Qm") || text.starts_with('1') || text.starts_with('W') {
        let bytes = from_radix(text, BASE58).ok_or(KeyError::Cid { why: "a digit outside base58" })?;
        return Multihash::read(&bytes).ok_or(KeyError::Cid { why: "not a multihash" });
    }
    let cid = Cid::parse(text)?;
    if cid.codec == LIBP2P_KEY { Ok(cid.hash) } else { Err(KeyError::Cid { why: "not the key of a peer" }) }
}

/// What libp2p writes before an ed25519 public key: the message `PublicKey` of its protobuf.
const LIBP2P_ED25519: [u8; 4] = [0x08, 0x01, 0x12, 0x20];

/// The node of ours that a peer is, and its public key if the id of the peer is the key itself. Nothing for peers whose ids are
/// other hashes or other kinds of keys: nobody here knows them.
#[must_use]
pub fn node_of_peer(peer: &Multihash) -> Option<(NodeId, Option<[u8; 32]>)> {
    if let Some(id) = peer.content_id() {
        return Some((NodeId::from_bytes(*id.as_bytes()), None));
    }
    let key = peer.digest.strip_prefix(&LIBP2P_ED25519).filter(|_| peer.code == IDENTITY)?;
    let key = <[u8; 32]>::try_from(key).ok()?;
    Some((NodeId::of_public_key(&key), Some(key)))
}

/// The id of a node of ours as libp2p writes ids. With its public key that is the id that libp2p itself would give the key,
/// `12D3KooW` and so on, which every client reads. Without, it is a CID of a key with the BLAKE3 hash of the key in it: a
/// valid id, but some clients know no other hashes than their own.
#[must_use]
pub fn to_peer_id(id: &NodeId, public_key: Option<&[u8; 32]>) -> String {
    if let Some(key) = public_key {
        let mut bytes = Vec::with_capacity(38);
        put_varint(&mut bytes, IDENTITY);
        put_varint(&mut bytes, 36);
        bytes.extend_from_slice(&LIBP2P_ED25519);
        bytes.extend_from_slice(key);
        return to_radix(&bytes, BASE58);
    }
    let mut bytes = vec![1];
    put_varint(&mut bytes, LIBP2P_KEY);
    put_varint(&mut bytes, BLAKE3);
    put_varint(&mut bytes, 32);
    bytes.extend_from_slice(id.as_bytes());
    format!("b{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

const BASE58: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const BASE36: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

fn multibase(text: &str) -> Option<Vec<u8>> {
    let (base, digits) = text.split_at_checked(1)?;
    match base {
        // One spelling: mixed case is refused, as by other readers.
        "b" if !digits.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            BASE32_NOPAD.decode(digits.to_ascii_uppercase().as_bytes()).ok()
        }
        "B" => BASE32_NOPAD.decode(digits.as_bytes()).ok(),
        "f" | "F" => HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok(),
        "u" => BASE64URL_NOPAD.decode(digits.as_bytes()).ok(),
        "z" => from_radix(digits, BASE58),
        "k" => from_radix(digits, BASE36),
        _ => None,
    }
}

/// Digits of a large number, most significant first; leading zeros are bytes of zero. At most 512 digits, so the square of
/// that is nothing.
fn from_radix(text: &str, digits: &[u8]) -> Option<Vec<u8>> {
    let zeros = text.bytes().take_while(|byte| *byte == digits[0]).count();
    let mut number: Vec<u8> = Vec::new(); // least significant first
    for byte in text.bytes() {
        let mut carry = digits.iter().position(|digit| *digit == byte)? as u32;
        for place in &mut number {
            carry += u32::from(*place) * digits.len() as u32;
            *place = carry as u8;
            carry >>= 8;
        }
        while carry > 0 {
            number.push(carry as u8);
            carry >>= 8;
        }
    }
    number.extend(std::iter::repeat_n(0, zeros));
    number.reverse();
    Some(number)
}

/// The other way round.
fn to_radix(bytes: &[u8], digits: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut number: Vec<u8> = Vec::new(); // least significant first
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for place in &mut number {
            carry += u32::from(*place) << 8;
            *place = (carry % digits.len() as u32) as u8;
            carry /= digits.len() as u32;
        }
        while carry > 0 {
            number.push((carry % digits.len() as u32) as u8);
            carry /= digits.len() as u32;
        }
    }
    number.extend(std::iter::repeat_n(0, zeros));
    number.iter().rev().map(|place| char::from(digits[usize::from(*place)])).collect()
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A number in the shortest spelling, which is the only one, of at most nine bytes.
fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let is_shortest = at == 0 || *byte != 0;
            return is_shortest.then_some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn content_has_one_key_however_it_is_written() {
        let id = ContentId::of(b"hello world");
        assert_eq!(key(&id.to_string()), Key::Content(id));
        assert_eq!(key(&id.to_cid()), Key::Content(id));
        assert_eq!(Key::content(&id.to_cid()), Ok(Key::Content(id)));
        assert_eq!(key(&id.to_string()).kind(), "b3");
    }

    /// The examples of the CID specification: one SHA-256 hash in version 0 and in version 1 with several bases.
    #[test]
    fn a_foreign_hash_has_one_key_too() {
        let v0 = key("QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n");
        assert_eq!(v0.kind(), "cid");
        let v1 = "bafybeihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku";
        assert_eq!(key(v1), v0);
        assert_eq!(key(&format!("B{}", v1[1..].to_ascii_uppercase())), v0);
        let Key::Foreign(hash) = &v0 else { panic!("{v0:?}") };
        assert_eq!((hash.code(), hash.digest().len()), (0x12, 32));
        assert_eq!(key(&hash.to_cid()), v0);
        assert_eq!(key(&v0.to_string()), v0);
    }

    #[test]
    fn whatever_is_neither_is_a_name_or_nothing() {
        for text in ["tools/compiler", "a", "bafy", "Qm", "@x", "key:aa/b", &"n".repeat(255)] {
            assert_eq!(key(text), Key::Name(text.parse().unwrap()), "{text}");
        }
        for text in ["", "/", "a//b", "../x", "a b", "ä", &"n".repeat(256), &"n".repeat(600)] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
        assert!(matches!("b3:12".parse::<Key>(), Err(KeyError::Content(_))));
        assert!(Key::content("tools/compiler").is_err());
    }

    #[test]
    fn peers_are_read_as_libp2p_writes_them() {
        let node = NodeId::from_bytes([7; 32]);
        let text = to_peer_id(&node, None);
        let hash = peer_id(&text).unwrap();
        assert_eq!((hash.code(), hash.digest()), (0x1e, &[7; 32][..]));
        assert_eq!(node_of_peer(&hash), Some((node, None)));
        let text = "12D3KooWRBhwfeP2Y4TCx1SM6s9rUoHhR5STiGwxBhgFRcw3UERE";
        let ed25519 = peer_id(text).unwrap();
        assert_eq!((ed25519.code(), ed25519.digest().len()), (0, 36));
        let (node, key) = node_of_peer(&ed25519).unwrap();
        assert_eq!(node, NodeId::of_public_key(&key.unwrap()));
        assert_eq!(to_peer_id(&node, key.as_ref()), text, "as libp2p writes it");
        let of_rsa = peer_id("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N").unwrap();
        assert_eq!(node_of_peer(&of_rsa), None);
        let as_cid = peer_id("k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8").unwrap();
        assert_eq!((as_cid.code(), as_cid.digest().len()), (0, 36));
        assert!(peer_id(&ContentId::of(b"x").to_cid()).is_err(), "raw bytes are no peer");
        assert!(peer_id("Qm").is_err() && peer_id("").is_err());
    }

    proptest! {
        #[test]
        fn bytes_survive_base58(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(from_radix(&to_radix(&bytes, BASE58), BASE58).unwrap(), bytes);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            if let Ok(key) = text.parse::<Key>() {
                prop_assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
            }
        }

        #[test]
        fn any_hash_survives(code in any::<u64>(), digest in prop::collection::vec(any::<u8>(), 0..129)) {
            let hash = Multihash::new(code >> 1, &digest).unwrap();
            prop_assert_eq!(Cid::parse(&hash.to_cid()).unwrap().hash, hash);
        }
    }
}
