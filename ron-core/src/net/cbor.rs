//! How the family writes and reads CBOR: maps of definite length with ascending integer keys, every count checked before
//! anything is allocated for it.
//!
//! A key that is not known is skipped with its value, so that a later version may say more. What is skipped is held
//! to the same form: nesting has a limit, and nothing has indefinite length. The library's own skipping would keep a
//! stack as long as the input of a sender who nests half a million arrays.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use minicbor::{Decoder, Encoder, data::Type};

/// Entries of the largest map. Those that are written have ten at most; the rest is for later versions.
const KEYS_MAX: u64 = 64;

/// How deep an unknown value may nest.
const DEPTH_MAX: u32 = 8;

/// The bytes that `write` writes. `room` is how many of them are expected: memory for those is taken at once.
///
/// # Panics
/// If `write` fails although writing to memory cannot: an error that it makes up itself is a mistake.
#[must_use]
pub fn encode(
    room: usize,
    write: impl FnOnce(&mut Encoder<Vec<u8>>) -> Result<(), minicbor::encode::Error<Infallible>>,
) -> Vec<u8> {
    let mut cbor = Encoder::new(Vec::with_capacity(room));
    write(&mut cbor).expect("writing to memory does not fail");
    cbor.into_writer()
}

/// What is wrong with some CBOR, before anybody asks what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CborFault {
    /// Not the form described above.
    Malformed,
    /// More of something than there may be.
    TooMany {
        /// Of what.
        what: &'static str,
    },
    /// An entry that every map of this kind has is not there.
    Missing {
        /// Its key.
        key: u64,
    },
    /// A value that its key does not allow.
    OutOfRange {
        /// Which value.
        what: &'static str,
    },
}

impl From<minicbor::decode::Error> for CborFault {
    fn from(_: minicbor::decode::Error) -> Self {
        CborFault::Malformed
    }
}

/// Reads one map and calls `entry` with each key; it answers whether it knew the key and read the value.
///
/// # Errors
/// A [`CborFault`], or what `entry` says.
pub fn read_map<'b, E: From<CborFault>>(
    cbor: &mut Decoder<'b>,
    mut entry: impl FnMut(u64, &mut Decoder<'b>) -> Result<bool, E>,
) -> Result<(), E> {
    let keys = read_map_len(cbor)?;
    let mut previous = None;
    for _ in 0..keys {
        let key = cbor.u64().map_err(CborFault::from)?;
        // Ascending also means that none comes twice.
        if previous.is_some_and(|previous| previous >= key) {
            return Err(CborFault::Malformed.into());
        }
        previous = Some(key);
        if !entry(key, cbor)? {
            skip(cbor, DEPTH_MAX)?;
        }
    }
    Ok(())
}

/// Reads bytes that are one map and nothing else.
///
/// # Errors
/// A [`CborFault`], or what `entry` says.
pub fn read_only_map<'b, E: From<CborFault>>(
    bytes: &'b [u8],
    entry: impl FnMut(u64, &mut Decoder<'b>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut cbor = Decoder::new(bytes);
    read_map(&mut cbor, entry)?;
    if cbor.position() != bytes.len() {
        return Err(CborFault::Malformed.into());
    }
    Ok(())
}

fn read_map_len(cbor: &mut Decoder<'_>) -> Result<u64, CborFault> {
    let keys = cbor.map()?.ok_or(CborFault::Malformed)?;
    if keys > KEYS_MAX {
        return Err(CborFault::TooMany { what: "map keys" });
    }
    Ok(keys)
}

/// Reads a list of at most `max` items, each by `item`.
///
/// # Errors
/// A [`CborFault`], or what `item` says.
pub fn read_list<'b, T, E: From<CborFault>>(
    cbor: &mut Decoder<'b>,
    (what, max): (&'static str, usize),
    mut item: impl FnMut(&mut Decoder<'b>) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let count = read_list_len(cbor, (what, max))?;
    // An item has at least one byte, so a list cannot be longer than what is left to read.
    let mut items = Vec::with_capacity(count.min(cbor.input().len() - cbor.position()));
    for _ in 0..count {
        items.push(item(cbor)?);
    }
    Ok(items)
}

fn read_list_len(cbor: &mut Decoder<'_>, (what, max): (&'static str, usize)) -> Result<usize, CborFault> {
    let count = cbor.array()?.ok_or(CborFault::Malformed)?;
    usize::try_from(count).ok().filter(|count| *count <= max).ok_or(CborFault::TooMany { what })
}

/// Reads a byte string of at most `max` bytes, where it lies.
///
/// # Errors
/// A [`CborFault`].
pub fn read_bytes<'b>(
    cbor: &mut Decoder<'b>,
    (what, max): (&'static str, usize),
) -> Result<&'b [u8], CborFault> {
    let bytes = cbor.bytes()?;
    if bytes.len() > max {
        return Err(CborFault::TooMany { what });
    }
    Ok(bytes)
}

/// Reads a byte string of exactly this length.
///
/// # Errors
/// A [`CborFault`].
pub fn read_array<const N: usize>(cbor: &mut Decoder<'_>, what: &'static str) -> Result<[u8; N], CborFault> {
    cbor.bytes()?.try_into().map_err(|_| CborFault::OutOfRange { what })
}

/// The value of a key that must be there.
///
/// # Errors
/// [`CborFault::Missing`].
pub fn required<T>(value: Option<T>, key: u64) -> Result<T, CborFault> {
    value.ok_or(CborFault::Missing { key })
}

/// Writes addresses as byte strings: 4 or 16 bytes and the port.
///
/// # Errors
/// Those of the writer.
pub fn write_addrs<W: minicbor::encode::Write>(
    cbor: &mut Encoder<W>,
    addrs: &[SocketAddr],
) -> Result<(), minicbor::encode::Error<W::Error>> {
    cbor.array(addrs.len() as u64)?;
    for addr in addrs {
        let mut bytes = [0; 18];
        let ip_bytes = match addr.ip().to_canonical() {
            IpAddr::V4(ip) => {
                bytes[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                bytes[..16].copy_from_slice(&ip.octets());
                16
            }
        };
        bytes[ip_bytes..ip_bytes + 2].copy_from_slice(&addr.port().to_be_bytes());
        cbor.bytes(&bytes[..ip_bytes + 2])?;
    }
    Ok(())
}

/// Reads what [`write_addrs`] writes, at most `max` of them. An IPv4 address in IPv6 clothes is taken out of them, so that
/// no filter is fooled by a second spelling.
///
/// # Errors
/// A [`CborFault`].
pub fn read_addrs(cbor: &mut Decoder<'_>, max: usize) -> Result<Vec<SocketAddr>, CborFault> {
    read_list(cbor, ("addresses", max), read_addr)
}

/// [`read_addrs`] straight to where they are shared, at most `MAX` of them: an answer names twenty peers, and twenty
/// answers make a search.
///
/// # Errors
/// A [`CborFault`].
pub fn read_shared_addrs<const MAX: usize>(cbor: &mut Decoder<'_>) -> Result<Arc<[SocketAddr]>, CborFault> {
    let mut addrs = [SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0); MAX];
    let count = read_list_len(cbor, ("addresses", MAX))?;
    for addr in &mut addrs[..count] {
        *addr = read_addr(cbor)?;
    }
    Ok(Arc::from(&addrs[..count]))
}

fn read_addr(cbor: &mut Decoder<'_>) -> Result<SocketAddr, CborFault> {
    let bytes = cbor.bytes()?;
    let (ip, port) = match bytes {
        [a, b, c, d, port @ ..] if bytes.len() == 6 => (IpAddr::from(Ipv4Addr::new(*a, *b, *c, *d)), port),
        _ if bytes.len() == 18 => {
            let (ip, port) = bytes.split_at(16);
            let octets: [u8; 16] = ip.try_into().expect("cut at sixteen");
            (IpAddr::from(Ipv6Addr::from(octets)).to_canonical(), port)
        }
        _ => return Err(CborFault::OutOfRange { what: "address" }),
    };
    let port: [u8; 2] = port.try_into().expect("two bytes are left");
    Ok(SocketAddr::new(ip, u16::from_be_bytes(port)))
}

/// Skips one value of definite length.
fn skip(cbor: &mut Decoder<'_>, depth: u32) -> Result<(), CborFault> {
    let items = match cbor.datatype()? {
        Type::Array => cbor.array()?.ok_or(CborFault::Malformed)?,
        Type::Map => read_map_len(cbor)? * 2,
        Type::Tag => {
            cbor.tag()?;
            1
        }
        Type::ArrayIndef | Type::MapIndef | Type::BytesIndef | Type::StringIndef | Type::Break => {
            return Err(CborFault::Malformed);
        }
        _ => return Ok(cbor.skip()?),
    };
    if items > 0 && depth == 0 {
        return Err(CborFault::TooMany { what: "levels" });
    }
    for _ in 0..items {
        skip(cbor, depth - 1)?;
    }
    Ok(())
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    fn skipped(bytes: &[u8]) -> Result<usize, CborFault> {
        let mut cbor = Decoder::new(bytes);
        skip(&mut cbor, DEPTH_MAX).map(|()| cbor.position())
    }

    #[test]
    fn unknown_values_are_skipped_whole() {
        assert_eq!(skipped(&[0x05]), Ok(1));
        assert_eq!(skipped(&[0x82, 0x01, 0x42, 0xff, 0xff, 0x09]), Ok(5));
        assert_eq!(skipped(&[0xa1, 0x01, 0x81, 0xf6]), Ok(4));
        assert_eq!(skipped(&[0xc1, 0x1a, 0, 0, 0, 0]), Ok(6));
        assert_eq!(skipped(&[0xfb, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(9));
    }

    #[test]
    fn what_is_skipped_has_a_form_too() {
        let many_levels = [0x81; 1000];
        assert_eq!(skipped(&many_levels), Err(CborFault::TooMany { what: "levels" }));
        assert_eq!(skipped(&[0xc1; 1000]), Err(CborFault::TooMany { what: "levels" }));
        assert_eq!(skipped(&[0x9f, 0xff]), Err(CborFault::Malformed));
        assert_eq!(skipped(&[0x5f, 0xff]), Err(CborFault::Malformed));
        assert_eq!(skipped(&[0x9b, 255, 255, 255, 255, 255, 255, 255, 255]), Err(CborFault::Malformed));
        assert_eq!(
            skipped(&[0xbb, 255, 255, 255, 255, 255, 255, 255, 255]),
            Err(CborFault::TooMany { what: "map keys" })
        );
    }

    #[test]
    fn a_mapped_address_has_one_spelling() {
        let mut cbor = Encoder::new(Vec::new());
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:80".parse().unwrap();
        write_addrs(&mut cbor, &[mapped]).unwrap();
        assert_eq!(cbor.writer()[..], [0x81, 0x46, 127, 0, 0, 1, 0, 80]);
        let mut sly = vec![0x81, 0x52];
        sly.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1, 0, 80]);
        let plain = "127.0.0.1:80".parse().unwrap();
        assert_eq!(read_addrs(&mut Decoder::new(&sly), 8), Ok(vec![plain]));
    }
}
