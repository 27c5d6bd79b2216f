//! How an object lies in its shards, and the object that says which shards these are.
//!
//! The object is cut into stripes of one group per data shard; cell `i` of each stripe belongs to shard `i`, and parity cells
//! are computed from the cells of their stripe. So a shard is made front to back without the whole object in memory, and a range
//! of the object lies in few cells. The last stripe has shorter cells, filled up with zeros. All of it follows from the
//! length and the numbers of shards: the same object coded twice gives the same shards, and the same manifest.

use std::ops::Range;

use minicbor::Decoder;
use ron_core::{
    ContentId,
    net::cbor::{self, read_array, read_list, read_only_map, required},
};

use super::claims::{ClaimError, Coding, Policy, SHARDS_MAX};
use crate::settings::GROUP_BYTES;

/// Bytes of the longest manifest: 32 shards make 1160; the rest is for later versions.
pub const MANIFEST_BYTES_MAX: usize = 2048;

/// The longest object that anybody can mean: positions in its shards are far from overflowing.
const LEN_MAX: u64 = 1 << 56;

/// Cells are whole multiples of this, which is what codes work in.
const CELL_UNIT: u64 = 64;

const OBJECT: u64 = 0;
const LEN: u64 = 1;
const DATA: u64 = 2;
const PARITY: u64 = 3;
const SHARDS: u64 = 4;

/// Which shards an object is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The object.
    pub object: ContentId,
    /// Its length.
    pub len: u64,
    /// How many of the shards are the object itself.
    pub data: u8,
    /// All shards, data first.
    pub shards: Vec<ContentId>,
}

impl Manifest {
    /// Shards that may be lost.
    #[must_use]
    pub fn parity(&self) -> u8 {
        u8::try_from(self.shards.len()).unwrap_or(u8::MAX).saturating_sub(self.data)
    }

    /// The manifest as an object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        cbor::encode(96 + 34 * self.shards.len(), |cbor| {
            cbor.map(5)?.u64(OBJECT)?.bytes(self.object.as_bytes())?;
            cbor.u64(LEN)?.u64(self.len)?;
            cbor.u64(DATA)?.u8(self.data)?;
            cbor.u64(PARITY)?.u8(self.parity())?;
            cbor.u64(SHARDS)?.array(self.shards.len() as u64)?;
            self.shards.iter().try_for_each(|shard| cbor.bytes(shard.as_bytes())?.ok())
        })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> ContentId {
        ContentId::of(&self.encode())
    }

    /// What a claim says of it.
    #[must_use]
    pub fn coding(&self) -> Coding {
        Coding { data: self.data, parity: self.parity(), manifest: self.id() }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// A [`ClaimError`] that says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, ClaimError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ClaimError::OutOfRange { what: "manifest bytes" });
        }
        let (mut object, mut len, mut data, mut parity, mut shards) = (None, None, None, None, None);
        read_only_map::<ClaimError>(bytes, |key, cbor: &mut Decoder<'_>| {
            match key {
                OBJECT => object = Some(ContentId::from_bytes(read_array(cbor, "object")?)),
                LEN => len = Some(cbor.u64()?),
                DATA => data = Some(cbor.u8()?),
                PARITY => parity = Some(cbor.u8()?),
                SHARDS => {
                    let max = ("shards", usize::from(SHARDS_MAX));
                    shards = Some(read_list::<_, ClaimError>(cbor, max, |cbor| {
                        Ok(ContentId::from_bytes(read_array(cbor, "shard")?))
                    })?);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let (data, parity) = (required(data, DATA)?, required(parity, PARITY)?);
        Policy::Erasure { data, parity }.check()?;
        let shards: Vec<ContentId> = required(shards, SHARDS)?;
        if shards.len() != usize::from(data) + usize::from(parity) {
            return Err(ClaimError::OutOfRange { what: "shards" });
        }
        let len = required(len, LEN)?;
        if len > LEN_MAX {
            return Err(ClaimError::OutOfRange { what: "length" });
        }
        Ok(Manifest { object: required(object, OBJECT)?, len, data, shards })
    }

    /// How the object lies in its shards.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout { len: self.len, data: self.data.into() }
    }
}

/// Where the bytes of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The object's length.
    pub len: u64,
    /// Data shards.
    pub data: u64,
}

impl Layout {
    fn stripe_bytes(&self) -> u64 {
        self.data * GROUP_BYTES
    }

    /// Bytes of each shard.
    #[must_use]
    pub fn shard_len(&self) -> u64 {
        let rest = self.len % self.stripe_bytes();
        self.len / self.stripe_bytes() * GROUP_BYTES + rest.div_ceil(self.data).next_multiple_of(CELL_UNIT)
    }

    /// The stripes, each as the part of every shard that belongs to it.
    pub fn stripes(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let end = self.shard_len();
        (0..end.div_ceil(GROUP_BYTES)).map(move |at| at * GROUP_BYTES..((at + 1) * GROUP_BYTES).min(end))
    }

    /// Which bytes of the object are in a cell of data shard `index`; the rest of the cell is zeros.
    #[must_use]
    pub fn cell(&self, stripe: &Range<u64>, index: u64) -> Range<u64> {
        let start = stripe.start * self.data + index * (stripe.end - stripe.start);
        start.min(self.len)..(start + (stripe.end - stripe.start)).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_manifest_comes_back_and_nothing_else_is_one() {
        let shards: Vec<_> = (0..9_u8).map(|index| ContentId::of(&[index])).collect();
        let manifest = Manifest { object: ContentId::of(b"x"), len: 1 << 40, data: 6, shards };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
        assert_eq!(manifest.coding().manifest, ContentId::of(&bytes));
        for at in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..at]).is_err());
        }
        let wrong = Manifest { data: 9, ..manifest.clone() };
        assert_eq!(Manifest::decode(&wrong.encode()), Err(ClaimError::OutOfRange { what: "parity shards" }));
        let long = Manifest { shards: vec![ContentId::of(b"y"); 33], ..manifest };
        assert_eq!(Manifest::decode(&long.encode()), Err(ClaimError::OutOfRange { what: "shards" }));
    }

    proptest! {
        /// Cells in order are the object, each byte once, and a shard is as long as its cells.
        #[test]
        fn cells_are_the_object(len in prop_oneof![0..1000_u64, 0..3_000_000_u64], data in 1..9_u64) {
            let layout = Layout { len, data };
            let mut next = 0;
            for stripe in layout.stripes() {
                prop_assert!((stripe.end - stripe.start) % CELL_UNIT == 0);
                for index in 0..data {
                    let cell = layout.cell(&stripe, index);
                    prop_assert!(cell.start == next.min(len));
                    next = cell.end.max(next);
                }
            }
            prop_assert_eq!(next, len);
            prop_assert!(layout.shard_len() <= len.div_ceil(data) + CELL_UNIT);
        }
    }
}
