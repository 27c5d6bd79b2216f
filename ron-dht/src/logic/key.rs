//! What is looked for.

use std::{fmt, str::FromStr};

use ron_core::{ContentId, Distance, IdError, NodeId};

/// A point in the key space, where nodes and content have their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// How far it is from `other`.
    #[must_use]
    pub fn distance(&self, other: &impl AsRef<[u8; 32]>) -> Distance {
        Distance::between(&self.0, other.as_ref())
    }
}

impl AsRef<[u8; 32]> for Key {
    fn as_ref(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<NodeId> for Key {
    fn from(id: NodeId) -> Self {
        Key(*id.as_bytes())
    }
}

impl From<ContentId> for Key {
    fn from(id: ContentId) -> Self {
        Key(*id.as_bytes())
    }
}

/// As 64 lowercase hex digits.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads 64 lowercase hex digits, or the name of some content as `b3:` and digits or as a CID.
impl FromStr for Key {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.len() == 64 {
            text.parse::<NodeId>().map(Key::from)
        } else if text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            // No CID is: it was meant to be digits.
            Err(IdError::Length { found: text.len() })
        } else {
            ContentId::parse_any(text).map(Key::from)
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x}{:02x}{:02x}{:02x}…)", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_three_spellings() {
        let content = ContentId::of(b"content");
        let key = Key::from(content);
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(content.to_string().parse(), Ok(key));
        assert_eq!(content.to_cid().parse(), Ok(key));
        // Too few digits are told as that, and not as a strange CID.
        assert_eq!("beef".parse::<Key>(), Err(IdError::Length { found: 4 }));
        for wrong in ["", "b3:", "x", &key.to_string().to_uppercase(), &key.to_string()[1..]] {
            assert!(wrong.parse::<Key>().is_err(), "{wrong}");
        }
    }
}
