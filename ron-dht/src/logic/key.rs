//! What is looked for, and who is asked.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

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

/// A node and where it can be reached. Cloning shares the addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contact {
    /// Who.
    pub id: NodeId,
    /// Where, the best first.
    pub addrs: Arc<[SocketAddr]>,
}

/// Why a text names no contact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContactError {
    /// There is no `@` between who and where.
    #[error("a contact is NODE_ID@IP:PORT, with further addresses behind commas")]
    NoAt,
    /// What stands before it is not the name of a node.
    #[error("not the name of a node")]
    Id(#[from] IdError),
    /// What stands behind it is not an address and a port. Names of hosts are for the host program to look up.
    #[error("{text:?} is not an IP address and a port")]
    Addr {
        /// What was given.
        text: String,
    },
}

/// As `NODE_ID@IP:PORT`, further addresses behind commas: what others need to begin with this node.
impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.id)?;
        for (at, addr) in self.addrs.iter().enumerate() {
            write!(f, "{}{addr}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Reads what `Display` writes, with at least one address.
impl FromStr for Contact {
    type Err = ContactError;

    fn from_str(text: &str) -> Result<Self, ContactError> {
        let (id, addrs) = text.split_once('@').ok_or(ContactError::NoAt)?;
        let addr = |text: &str| text.parse().map_err(|_| ContactError::Addr { text: text.to_owned() });
        Ok(Contact { id: id.parse()?, addrs: addrs.split(',').map(addr).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_is_read_as_it_is_written() {
        let (one, two): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4710".parse().unwrap(), "[2001:db8::1]:4710".parse().unwrap());
        let id = NodeId::from_bytes([7; 32]);
        for addrs in [vec![one], vec![one, two]] {
            let contact = Contact { id, addrs: addrs.into() };
            assert_eq!(contact.to_string().parse(), Ok(contact));
        }
        let refused = |text: &str| text.parse::<Contact>().unwrap_err();
        assert_eq!(refused("127.0.0.1:4710"), ContactError::NoAt);
        assert_eq!(refused("me@127.0.0.1:4710"), ContactError::Id(IdError::Length { found: 2 }));
        for addr in ["", "127.0.0.1", "host:1"] {
            assert_eq!(refused(&format!("{id}@{addr}")), ContactError::Addr { text: addr.to_owned() });
        }
    }

    #[test]
    fn a_key_is_read_in_three_spellings() {
        let content = ContentId::of(b"content");
        let key = Key::from(content);
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(content.to_string().parse(), Ok(key));
        assert_eq!(content.to_cid().parse(), Ok(key));
        for wrong in ["", "b3:", "x", &key.to_string().to_uppercase(), &key.to_string()[1..]] {
            assert!(wrong.parse::<Key>().is_err(), "{wrong}");
        }
    }
}
