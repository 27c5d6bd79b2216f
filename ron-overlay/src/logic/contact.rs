//! A node that can be reached, and where.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use ron_core::{IdError, NodeId};

/// A node that can be reached, and where. Read and written as `NODE_ID@IP:PORT`, with commas between several addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Who it is.
    pub id: NodeId,
    /// Where it listens. Empty if it only dials.
    pub addrs: Arc<[SocketAddr]>,
}

impl Contact {
    /// A node that is known by its name alone: it can be reached only over a session that exists.
    #[must_use]
    pub fn unlisted(id: NodeId) -> Self {
        Contact { id, addrs: [].into() }
    }
}

impl From<NodeId> for Contact {
    fn from(id: NodeId) -> Self {
        Contact::unlisted(id)
    }
}

impl From<&Contact> for Contact {
    fn from(contact: &Contact) -> Self {
        contact.clone()
    }
}

/// Why a text is not a contact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContactError {
    /// There is no `@` in it.
    #[error("a contact is NODE_ID@IP:PORT")]
    NoAt,
    /// What is before the `@` is not the name of a node.
    #[error("not the name of a node")]
    Id(#[from] IdError),
    /// What is after the `@` is not an address and a port.
    #[error("`{text}` is not IP:PORT")]
    Addr {
        /// What was there.
        text: String,
    },
}

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.id)?;
        for (place, addr) in self.addrs.iter().enumerate() {
            write!(f, "{}{addr}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

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
}
