//! A node that can be reached, and where.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use crate::{ConfigError, IdError, NodeId};

/// A node that can be reached, and where. Read and written as `NODE_ID@IP:PORT`, with commas between several addresses;
/// nothing behind the `@` is a node that only dials. A node id is 64 lowercase hex digits.
/// Cloning shares the addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Who it is.
    pub id: NodeId,
    /// Where it listens, the best first. Empty if it only dials.
    pub addrs: Arc<[SocketAddr]>,
}

impl Contact {
    /// A node that is known by its name alone: it can be reached only over a session that exists.
    #[must_use]
    pub fn unlisted(id: NodeId) -> Self {
        Contact { id, addrs: [].into() }
    }

    /// Whether others can dial all of these addresses, which a node is about to tell them as its own: for builders. A node that
    /// tells an address nobody can dial is in nobody's table and has no neighbours but those it finds itself, and neither it
    /// nor they would say why.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] (`external`) with the first that they cannot.
    pub fn check_external(addrs: &[SocketAddr]) -> Result<(), ConfigError> {
        match addrs.iter().find(|addr| addr.ip().is_unspecified() || addr.port() == 0) {
            Some(addr) => Err(ConfigError::OutOfRange {
                key: "external",
                value: addr.to_string(),
                allowed: "addresses that others can dial: 0.0.0.0 and [::] only say where to listen",
            }),
            None => Ok(()),
        }
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
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContactError {
    /// There is no `@` in it.
    #[error("a contact is NODE_ID@IP:PORT, with further addresses behind commas")]
    NoAt,
    /// What is before the `@` is not the name of a node.
    #[error("not the name of a node: {0}")]
    Id(IdError),
    /// What is after the `@` is not an address and a port. Names of hosts are for the host program to look up.
    #[error("{text:?} is not an IP address and a port")]
    Addr {
        /// What was there.
        text: String,
    },
}

/// In words, since a program that ends with its error shows this to a person.
impl fmt::Debug for ContactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContactError({self})")
    }
}

// By hand, since the text has all of it: a cause that says it once more would be read twice.
impl From<IdError> for ContactError {
    fn from(error: IdError) -> Self {
        ContactError::Id(error)
    }
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
        let id = id.parse()?;
        if addrs.is_empty() {
            return Ok(Contact::unlisted(id));
        }
        let addr = |text: &str| text.parse().map_err(|_| ContactError::Addr { text: text.to_owned() });
        Ok(Contact { id, addrs: addrs.split(',').map(addr).collect::<Result<_, _>>()? })
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_can_be_dialled_are_told() {
        let check = |addrs: &[&str]| {
            let addrs: Vec<SocketAddr> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
            Contact::check_external(&addrs)
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["192.0.2.7:1", "[2001:db8::1]:1"]), Ok(()));
        for addr in ["0.0.0.0:1", "[::]:1", "192.0.2.7:0"] {
            let refused = check(&["192.0.2.7:1", addr]).unwrap_err();
            assert!(matches!(&refused, ConfigError::OutOfRange { value, .. } if value == addr), "{refused}");
        }
    }

    #[test]
    fn a_contact_is_read_as_it_is_written() {
        let (one, two): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4710".parse().unwrap(), "[2001:db8::1]:4710".parse().unwrap());
        let id = NodeId::from_bytes([7; 32]);
        for addrs in [vec![], vec![one], vec![one, two]] {
            let contact = Contact { id, addrs: addrs.into() };
            assert_eq!(contact.to_string().parse(), Ok(contact));
        }
        let refused = |text: &str| text.parse::<Contact>().unwrap_err();
        assert_eq!(refused("127.0.0.1:4710"), ContactError::NoAt);
        assert_eq!(refused("me@127.0.0.1:4710"), ContactError::Id(IdError::Length { found: 2 }));
        for addr in [",", "127.0.0.1", "host:1"] {
            let text = addr.trim_matches(',').to_owned();
            assert_eq!(refused(&format!("{id}@{addr}")), ContactError::Addr { text });
        }
        let short = refused("abc@127.0.0.1:4710");
        assert_eq!(short.to_string(), "not the name of a node: expected 64 hex digits, found 3 characters");
        assert_eq!(
            format!("{:?}", refused("x")),
            "ContactError(a contact is NODE_ID@IP:PORT, with further addresses behind commas)"
        );
    }
}
