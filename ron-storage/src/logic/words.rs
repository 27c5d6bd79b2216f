//! What nodes say to each other about claims: a kind and some byte strings, in CBOR.

use bytes::Bytes;
use minicbor::Decoder;
use ron_core::{
    ContentId,
    net::cbor::{self, CborFault, read_bytes, read_list, read_only_map, required},
};

use super::{
    claims::{CLAIM_BYTES_MAX, Claim, ClaimError},
    manifest::{MANIFEST_BYTES_MAX, Manifest},
};

/// Claims that are told or asked for at a time: at their longest 170 KiB.
pub const TOLD_MAX: usize = 64;

/// Byte strings in one message.
const ITEMS_MAX: usize = 2 + TOLD_MAX;

/// Bytes of the longest of them: a question of a comparison has 256 parts of some sixty bytes.
const ITEM_BYTES_MAX: usize = 192 << 10;

const KIND: u64 = 0;
const ITEMS: u64 = 1;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// How are you? Answered with one byte of flags.
    Look,
    /// One question of a comparison of the names of claims. Answered with its parts.
    Compare,
    /// These claims. Answered with later ones, where those told are older than what is known.
    Tell,
    /// Which claims have these names? Answered with the claims.
    Ask,
    /// I am about to trim. Do you have this piece of that object, and will you keep it? With the claims on the object, so that
    /// both speak of the same. Answered with one byte.
    Promise,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Look => 1,
            Kind::Compare => 2,
            Kind::Tell => 3,
            Kind::Ask => 4,
            Kind::Promise => 5,
        }
    }

    fn of(number: u8) -> Option<Kind> {
        let all = [Kind::Look, Kind::Compare, Kind::Tell, Kind::Ask, Kind::Promise];
        all.into_iter().find(|kind| kind.number() == number)
    }
}

/// Flags of the answer to [`Kind::Look`].
pub const IS_DURABLE: u8 = 1;
/// The node is about to go.
pub const IS_DRAINING: u8 = 2;

/// Answers to [`Kind::Promise`]: it is not here; it is, and stays for a while; it cannot be promised now, which says nothing about
/// whether it is here.
pub const NOT_HERE: u8 = 0;
/// See [`NOT_HERE`].
pub const PROMISED: u8 = 1;
/// See [`NOT_HERE`].
pub const NOT_NOW: u8 = 2;

/// A message, or its answer.
#[must_use]
pub fn write(kind: Kind, items: &[Bytes]) -> Bytes {
    let len = items.iter().map(|item| item.len() + 9).sum::<usize>() + 16;
    let message = cbor::encode(len, |cbor| {
        cbor.map(2)?.u64(KIND)?.u8(kind.number())?;
        cbor.u64(ITEMS)?.array(items.len() as u64)?;
        items.iter().try_for_each(|item| cbor.bytes(item)?.ok())
    });
    message.into()
}

/// Reads what [`write()`] writes.
///
/// # Errors
/// A [`CborFault`].
pub fn read(body: &[u8]) -> Result<(Kind, Vec<Bytes>), CborFault> {
    let (mut kind, mut items) = (None, None);
    read_only_map::<CborFault>(body, |key, cbor: &mut Decoder<'_>| {
        match key {
            KIND => kind = Some(Kind::of(cbor.u8()?).ok_or(CborFault::OutOfRange { what: "kind" })?),
            ITEMS => {
                items = Some(read_list::<_, CborFault>(cbor, ("items", ITEMS_MAX), |cbor| {
                    Ok(Bytes::copy_from_slice(read_bytes(cbor, ("item bytes", ITEM_BYTES_MAX))?))
                })?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((required(kind, KIND)?, required(items, ITEMS)?))
}

/// A claim and the manifest that it names, if it names one.
#[must_use]
pub fn write_told(claim: &Claim, manifest: Option<&Manifest>) -> Bytes {
    let len = u16::try_from(claim.encoded().len()).expect("claims are short");
    let manifest = manifest.map(Manifest::encode).unwrap_or_default();
    [&len.to_be_bytes()[..], claim.encoded(), &manifest].concat().into()
}

/// Reads what [`write_told`] writes, and checks its form; whether the owner signed it is for [`Claim::verify`].
///
/// # Errors
/// A [`ClaimError`].
pub fn read_told(item: &[u8]) -> Result<(Claim, Option<Manifest>), ClaimError> {
    if item.len() > 2 + CLAIM_BYTES_MAX + MANIFEST_BYTES_MAX {
        return Err(ClaimError::TooLarge { len: item.len() });
    }
    let (len, rest) = item.split_first_chunk().ok_or(ClaimError::Malformed)?;
    let len = usize::from(u16::from_be_bytes(*len));
    let (claim, manifest) = rest.split_at_checked(len).ok_or(ClaimError::Malformed)?;
    let manifest = match manifest.is_empty() {
        true => None,
        false => Some(Manifest::decode(manifest)?),
    };
    Ok((Claim::decode(claim)?, manifest))
}

/// A name.
///
/// # Errors
/// [`CborFault::OutOfRange`].
pub fn read_id(item: &[u8]) -> Result<ContentId, CborFault> {
    let bytes = item.try_into().map_err(|_| CborFault::OutOfRange { what: "name" })?;
    Ok(ContentId::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_nothing_else_is_one() {
        for kind in [Kind::Look, Kind::Compare, Kind::Tell, Kind::Ask, Kind::Promise] {
            let items = [Bytes::from_static(b"x"), Bytes::new()];
            let body = write(kind, &items);
            assert_eq!(read(&body), Ok((kind, items.to_vec())));
            for at in 0..body.len() {
                assert!(read(&body[..at]).is_err());
            }
        }
        let many = vec![Bytes::new(); ITEMS_MAX + 1];
        assert_eq!(read(&write(Kind::Tell, &many)), Err(CborFault::TooMany { what: "items" }));
        let long = [Bytes::from(vec![0; ITEM_BYTES_MAX + 1])];
        assert_eq!(read(&write(Kind::Tell, &long)), Err(CborFault::TooMany { what: "item bytes" }));
        assert_eq!(read(&[0xa1, 0, 9]), Err(CborFault::OutOfRange { what: "kind" }));
        assert!(read_id(b"short").is_err());
    }
}
