//! What is looked for, and who is asked.

use std::{fmt, net::SocketAddr, sync::Arc};

use ron_core::{ContentId, Distance, NodeId};

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
