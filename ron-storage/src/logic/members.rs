//! What nodes that keep objects together say of themselves, and how they prove that they belong.
//!
//! Nodes that know one secret belong together. A proof is made for one direction between two nodes whose links have shown
//! who they are, so whoever is shown one can do nothing with it: it is not the node that the proof is from.

use std::{fmt, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use minicbor::{Decoder, Encoder};
use ron_core::{
    ContentId, NodeId,
    net::{
        Contact, Identity,
        cbor::{
            self, CborFault, read_addrs, read_array, read_bytes, read_list, read_only_map, required,
            write_addrs,
        },
    },
};

use super::place::WEIGHT_MAX;

/// Nodes that keep objects together.
pub const MEMBERS_MAX: usize = 1024;

/// Bytes of the longest name of a zone.
pub const ZONE_BYTES_MAX: usize = 64;

/// Addresses that one node has.
const ADDRS_MAX: usize = 8;

/// Others that a node names in one answer: what does not fit is named by others.
const OTHERS_MAX: usize = 64;

const ZONE: u64 = 0;
const WEIGHT: u64 = 1;
const ADDRS: u64 = 2;
const LEAVES: u64 = 3;
const OTHERS: u64 = 4;
const PROOF: u64 = 5;

/// The version of the file in which members are remembered.
const FILE_VERSION: u64 = 1;

/// What the nodes of one company know and nobody else.
#[derive(Clone)]
pub struct Secret {
    key: [u8; 32],
}

/// Why a text is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret has {} to {} printable characters, and this has {len}",
    Secret::LENGTH_MIN,
    Secret::LENGTH_MAX
)]
pub struct SecretError {
    /// How many it has.
    pub len: usize,
}

impl Secret {
    /// The shortest secret: 128 bits in base32 are 26 characters.
    pub const LENGTH_MIN: usize = 26;

    /// The longest.
    pub const LENGTH_MAX: usize = 1024;

    /// Out of a text that was drawn at random; white space around it is none of it.
    ///
    /// # Errors
    /// [`SecretError`] if it is too short to be one, or has something else than printable characters.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        let is_long = (Self::LENGTH_MIN..=Self::LENGTH_MAX).contains(&text.len());
        if !is_long || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError { len: text.len() });
        }
        Ok(Secret { key: blake3::derive_key("ron-storage members secret v1", text.as_bytes()) })
    }

    /// That `from` knows the secret, for `to`.
    #[must_use]
    pub fn proof(&self, from: &NodeId, to: &NodeId) -> [u8; 32] {
        let key = blake3::derive_key("ron-storage members proof v1", &self.key);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(from.as_bytes()).update(to.as_bytes());
        hasher.finalize().into()
    }

    /// Whether this is what [`proof`](Self::proof) makes, in a time that does not depend on how nearly it is.
    #[must_use]
    pub fn is_proof(&self, shown: &[u8], from: &NodeId, to: &NodeId) -> bool {
        let made = blake3::Hash::from(self.proof(from, to));
        <[u8; 32]>::try_from(shown).is_ok_and(|shown| made == blake3::Hash::from(shown))
    }

    /// A name under which its nodes can find each other; it tells nothing about the secret.
    #[must_use]
    pub fn rendezvous(&self) -> ContentId {
        ContentId::from_bytes(blake3::derive_key("ron-storage members rendezvous v1", &self.key))
    }

    /// Who owns what the company keeps: each of its nodes can then speak for objects that another one put.
    #[must_use]
    pub fn owner(&self) -> Identity {
        Identity::from_seed(&blake3::derive_key("ron-storage members owner v1", &self.key))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Card {
    /// What fails together with it; empty if nothing does.
    pub zone: String,
    /// How much it takes compared with others.
    pub weight: u32,
    /// Where it listens.
    pub addrs: Vec<SocketAddr>,
    /// Whether it has nothing more to keep, and goes.
    pub leaves: bool,
    /// Others that it keeps objects with.
    pub others: Vec<Contact>,
    /// That it belongs, for the one that it is said to; in an answer.
    pub proof: Vec<u8>,
}

impl Card {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let addrs = &self.addrs[..self.addrs.len().min(ADDRS_MAX)];
        let others = &self.others[..self.others.len().min(OTHERS_MAX)];
        let card = cbor::encode(256, |cbor| {
            cbor.map(6)?.u64(ZONE)?.str(&self.zone)?.u64(WEIGHT)?.u32(self.weight)?.u64(ADDRS)?;
            write_addrs(cbor, addrs)?;
            cbor.u64(LEAVES)?.bool(self.leaves)?.u64(OTHERS)?.array(others.len() as u64)?;
            for other in others {
                write_contact(cbor, other)?;
            }
            cbor.u64(PROOF)?.bytes(&self.proof)?.ok()
        });
        card.into()
    }

    /// Reads what [`encode`](Self::encode) writes.
    ///
    /// # Errors
    /// [`CborFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CborFault> {
        let (mut zone, mut weight, mut card) = (None, None, Card::default());
        read_only_map(bytes, |key, cbor| {
            match key {
                ZONE => zone = Some(read_zone(cbor)?),
                WEIGHT => weight = Some(read_weight(cbor)?),
                ADDRS => card.addrs = read_addrs(cbor, ADDRS_MAX)?,
                LEAVES => card.leaves = cbor.bool()?,
                OTHERS => card.others = read_list(cbor, ("others", OTHERS_MAX), read_contact)?,
                PROOF => card.proof = read_bytes(cbor, ("proof", 64))?.to_vec(),
                _ => return Ok(false),
            }
            Ok::<_, CborFault>(true)
        })?;
        card.addrs.retain(is_dialable);
        Ok(Card { zone: required(zone, ZONE)?, weight: required(weight, WEIGHT)?, ..card })
    }
}

fn is_dialable(addr: &SocketAddr) -> bool {
    !addr.ip().is_unspecified() && addr.port() != 0
}

fn read_zone(cbor: &mut Decoder<'_>) -> Result<String, CborFault> {
    let zone = cbor.str()?;
    if zone.len() > ZONE_BYTES_MAX {
        return Err(CborFault::TooMany { what: "bytes of a zone" });
    }
    Ok(zone.to_owned())
}

fn read_weight(cbor: &mut Decoder<'_>) -> Result<u32, CborFault> {
    let weight = cbor.u32()?;
    (1..=WEIGHT_MAX).contains(&weight).then_some(weight).ok_or(CborFault::OutOfRange { what: "weight" })
}

fn write_contact<W: minicbor::encode::Write>(
    cbor: &mut Encoder<W>,
    contact: &Contact,
) -> Result<(), minicbor::encode::Error<W::Error>> {
    cbor.array(2)?.bytes(contact.id.as_bytes())?;
    write_addrs(cbor, &contact.addrs[..contact.addrs.len().min(ADDRS_MAX)])
}

fn read_contact(cbor: &mut Decoder<'_>) -> Result<Contact, CborFault> {
    if cbor.array()? != Some(2) {
        return Err(CborFault::Malformed);
    }
    let id = NodeId::from_bytes(read_array(cbor, "node id")?);
    let mut addrs = read_addrs(cbor, ADDRS_MAX)?;
    addrs.retain(is_dialable);
    Ok(Contact { id, addrs: addrs.into() })
}

/// The number of a zone: nodes that say the same name are in one, and a node that says none is in one of its own.
#[must_use]
pub fn zone_number(zone: &str, id: &NodeId) -> u64 {
    let hash: [u8; 32] = if zone.is_empty() {
        *id.as_bytes()
    } else {
        blake3::derive_key("ron-storage zone v1", zone.as_bytes())
    };
    u64::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// A node that belongs, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Where it listens.
    pub addrs: Arc<[SocketAddr]>,
    /// What fails together with it.
    pub zone: String,
    /// How much it takes.
    pub weight: u32,
    /// When it last showed that it belongs, in seconds since 1970.
    pub seen: u64,
}

/// Those who belong, as a file.
#[must_use]
pub fn write_file(members: &[(NodeId, Known)]) -> Bytes {
    let file = cbor::encode(64 + 128 * members.len(), |cbor| {
        cbor.map(2)?.u64(0)?.u64(FILE_VERSION)?.u64(1)?.array(members.len() as u64)?;
        for (id, known) in members {
            cbor.array(5)?.bytes(id.as_bytes())?.str(&known.zone)?.u32(known.weight)?.u64(known.seen)?;
            write_addrs(cbor, &known.addrs)?;
        }
        Ok(())
    });
    file.into()
}

/// Reads what [`write_file`] writes.
///
/// # Errors
/// [`CborFault`]; of another version, that one is out of range.
pub fn read_file(bytes: &[u8]) -> Result<Vec<(NodeId, Known)>, CborFault> {
    let (mut version, mut members) = (None, None);
    read_only_map(bytes, |key, cbor| {
        match key {
            0 => version = Some(cbor.u64()?),
            1 => members = Some(read_list(cbor, ("members", MEMBERS_MAX), read_known)?),
            _ => return Ok(false),
        }
        Ok::<_, CborFault>(true)
    })?;
    if required(version, 0)? != FILE_VERSION {
        return Err(CborFault::OutOfRange { what: "version" });
    }
    required(members, 1)
}

fn read_known(cbor: &mut Decoder<'_>) -> Result<(NodeId, Known), CborFault> {
    if cbor.array()? != Some(5) {
        return Err(CborFault::Malformed);
    }
    let id = NodeId::from_bytes(read_array(cbor, "node id")?);
    let (zone, weight, seen) = (read_zone(cbor)?, read_weight(cbor)?, cbor.u64()?);
    Ok((id, Known { addrs: read_addrs(cbor, ADDRS_MAX)?.into(), zone, weight, seen }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn contact(number: u8) -> Contact {
        Contact {
            id: node(number),
            addrs: [SocketAddr::from(([127, 0, 0, 1], u16::from(number) + 1))].into(),
        }
    }

    #[test]
    fn a_proof_is_for_one_direction_between_two_nodes() {
        let secret = Secret::new(&"s".repeat(26)).unwrap();
        let other = Secret::new(&"t".repeat(26)).unwrap();
        let proof = secret.proof(&node(1), &node(2));
        assert!(secret.is_proof(&proof, &node(1), &node(2)));
        assert!(!secret.is_proof(&proof, &node(2), &node(1)), "not back");
        assert!(!secret.is_proof(&proof, &node(1), &node(3)), "not to another");
        assert!(!secret.is_proof(&proof, &node(3), &node(2)), "not by another");
        assert!(!other.is_proof(&proof, &node(1), &node(2)), "not with another secret");
        for short in [&proof[..31], &[][..]] {
            assert!(!secret.is_proof(short, &node(1), &node(2)));
        }
        // What is told to strangers is none of what proves.
        assert_ne!(secret.rendezvous().as_bytes(), &proof);
        assert_ne!(secret.rendezvous(), other.rendezvous());
        assert_eq!(
            secret.owner().public_key(),
            Secret::new(&format!(" {}\n", "s".repeat(26))).unwrap().owner().public_key()
        );
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn what_could_be_guessed_is_no_secret() {
        for (text, len) in [("", 0), ("short", 5), ("has white space in the middle of it", 35)] {
            assert_eq!(Secret::new(text).unwrap_err(), SecretError { len });
        }
        assert_eq!(Secret::new(&"l".repeat(2000)).unwrap_err().len, 2000);
    }

    #[test]
    fn a_card_is_read_as_it_is_written_and_nothing_more() {
        let card = Card {
            zone: "rack 7".to_owned(),
            weight: 50,
            addrs: contact(1).addrs.to_vec(),
            leaves: true,
            others: vec![contact(2), contact(3)],
            proof: vec![7; 32],
        };
        let bytes = card.encode();
        assert_eq!(Card::decode(&bytes), Ok(card.clone()));
        for end in 0..bytes.len() {
            assert!(Card::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        // Nobody can dial these.
        let nowhere = Card {
            addrs: vec!["0.0.0.0:1".parse().unwrap(), "127.0.0.1:0".parse().unwrap()],
            ..card.clone()
        };
        assert_eq!(Card::decode(&nowhere.encode()).unwrap().addrs, []);
        for wrong in [
            Card { weight: 0, ..card.clone() },
            Card { weight: WEIGHT_MAX + 1, ..card.clone() },
            Card { zone: "z".repeat(ZONE_BYTES_MAX + 1), ..card.clone() },
            Card { proof: vec![0; 65], ..card.clone() },
        ] {
            assert!(Card::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        let many = Card { others: (0..100).map(contact).collect(), ..card };
        assert_eq!(Card::decode(&many.encode()).unwrap().others.len(), OTHERS_MAX);
    }

    #[test]
    fn members_are_remembered_as_they_were() {
        let known = |number: u8| Known {
            addrs: contact(number).addrs,
            zone: format!("z{number}"),
            weight: u32::from(number) + 1,
            seen: 1_700_000_000,
        };
        let members: Vec<_> = (0..3).map(|number| (node(number), known(number))).collect();
        let bytes = write_file(&members);
        assert_eq!(read_file(&bytes), Ok(members));
        assert_eq!(read_file(b""), Err(CborFault::Malformed));
        assert_eq!(read_file(&[0xa2, 0, 2, 1, 0x80]), Err(CborFault::OutOfRange { what: "version" }));
    }

    #[test]
    fn a_zone_is_a_name_or_the_node_itself() {
        assert_eq!(zone_number("a", &node(1)), zone_number("a", &node(2)));
        assert_ne!(zone_number("a", &node(1)), zone_number("b", &node(1)));
        assert_ne!(zone_number("", &node(1)), zone_number("", &node(2)));
    }
}
