//! The chain through all entries, and the head that a compare-and-set compares.
//!
//! Each link hashes the one before it, the version and the whole entry. Whoever knows a head knows everything before it,
//! so "is the head still this one" is one comparison of forty bytes.

use std::{fmt, str::FromStr, sync::LazyLock};

use blake3::{
    Hasher,
    hazmat::{ContextKey, HasherExt as _, hash_derive_key_context},
};
use data_encoding::HEXLOWER;

const LINK: &str = "ron-registry chain 1 link";
/// What is the same for every link, made once.
static LINK_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(LINK));
const START: &str = "ron-registry chain 1 start";

/// A link of the chain. Written as 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainHash([u8; 32]);

impl ChainHash {
    /// The link with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        ChainHash(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not 64 lowercase hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not 64 lowercase hex digits")]
pub struct HashTextError;

impl FromStr for ChainHash {
    type Err = HashTextError;

    fn from_str(text: &str) -> Result<Self, HashTextError> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| HashTextError)?;
        bytes.try_into().map(ChainHash).map_err(|_| HashTextError)
    }
}

/// Where a log ends: how many entries it has, and the link of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head {
    /// The version of the last entry, which is also how many there are.
    pub version: u64,
    /// Its link.
    pub hash: ChainHash,
}

impl Head {
    /// The head of a log without entries. Logs of different names have nothing in common from here on.
    #[must_use]
    pub fn start(origin: &str) -> Self {
        Head { version: 0, hash: ChainHash(blake3::derive_key(START, origin.as_bytes())) }
    }

    /// The head after an entry with these bytes.
    #[must_use]
    pub fn next(&self, entry: &[u8]) -> Self {
        let version = self.version + 1;
        let mut link = Hasher::new_from_context_key(&LINK_KEY);
        link.update(&self.hash.0).update(&version.to_be_bytes()).update(entry);
        Head { version, hash: ChainHash(*link.finalize().as_bytes()) }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_depends_on_everything_before_it() {
        let start = Head::start("log");
        assert_ne!(start.hash, Head::start("lag").hash);
        let (one, other) = (start.next(b"one"), start.next(b"other"));
        assert_ne!(one.hash, other.hash);
        assert_ne!(one.next(b"same").hash, other.next(b"same").hash);
        // The same bytes at another version make another link.
        let later = Head { version: 7, ..start };
        assert_ne!(later.next(b"one").hash, one.hash);
        assert_eq!(one.version, 1);
    }

    #[test]
    fn a_link_is_what_the_format_says() {
        let start = Head::start("log");
        let mut message = start.hash.as_bytes().to_vec();
        message.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
        message.extend_from_slice(b"one");
        assert_eq!(start.next(b"one").hash.0, blake3::derive_key("ron-registry chain 1 link", &message));
    }

    #[test]
    fn a_link_has_one_spelling() {
        let hash = Head::start("log").hash;
        assert_eq!(hash.to_string().parse(), Ok(hash));
        let text = hash.to_string();
        for bad in [&text[1..], &text.to_uppercase(), &format!("{text}0"), "", &format!("g{}", &text[1..])] {
            assert_eq!(bad.parse::<ChainHash>(), Err(HashTextError), "{bad}");
        }
    }
}
