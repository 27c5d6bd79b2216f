//! Objects to shards and back.
//!
//! Each shard is an object of its own, so whoever gets one can tell whether it is what it should be, and does before anything
//! is computed from it: a wrong shard would spoil every byte, and nobody could say whose fault it was. What comes out is held
//! against its own name too.

use bytes::Bytes;
use ron_core::ContentId;

use super::manifest::Manifest;

/// The longest object that is cut into shards: it is in memory at once, with its parity.
pub const CODED_BYTES_MAX: u64 = 256 << 20;

/// Why shards do not make an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Some are not what their names say. Whoever gave them is to blame.
    #[error("{} of the shards are not what their names say", indices.len())]
    Bad {
        /// Which.
        indices: Vec<u8>,
    },
    /// There are not enough of them.
    #[error("{found} shards, and {needed} are needed")]
    TooFew {
        /// Good ones there are.
        found: usize,
        /// How many it takes.
        needed: usize,
    },
    /// They are what their names say, and not what the manifest says: the manifest lies.
    #[error("the shards are not those of {id}")]
    Foreign {
        /// The object they should be.
        id: ContentId,
    },
    /// The object is longer than [`CODED_BYTES_MAX`], or than this machine can address.
    #[error("{len} bytes, and {CODED_BYTES_MAX} are allowed")]
    TooLarge {
        /// Its length.
        len: u64,
    },
}

/// A code in which any `data` cells of a stripe give all others. Cells of a stripe are of one length, a multiple of 64.
pub trait Code {
    /// The parity cells to these data cells.
    fn parity(&self, data: &[&[u8]], parity: usize) -> Vec<Vec<u8>>;

    /// The data cells that are missing, by their index. Of `cells`, as many are there as there are data cells.
    fn missing(&self, data: usize, parity: usize, cells: &[(usize, &[u8])]) -> Vec<(usize, Vec<u8>)>;
}

/// Reed and Solomon's code, as fast Fourier transforms in GF(2^16).
#[derive(Debug, Clone, Copy, Default)]
pub struct ReedSolomon;

impl Code for ReedSolomon {
    fn parity(&self, data: &[&[u8]], parity: usize) -> Vec<Vec<u8>> {
        reed_solomon_simd::encode(data.len(), parity, data).expect("numbers and lengths were checked")
    }

    fn missing(&self, data: usize, parity: usize, cells: &[(usize, &[u8])]) -> Vec<(usize, Vec<u8>)> {
        let (of_data, of_parity): (Vec<_>, Vec<_>) = cells.iter().partition(|(index, _)| *index < data);
        let of_parity = of_parity.into_iter().map(|(index, cell)| (index - data, cell));
        let found = reed_solomon_simd::decode(data, parity, of_data, of_parity);
        found.expect("there are enough, each once, of one length").into_iter().collect()
    }
}

/// Cuts an object into `data` shards and makes `parity` more. The policy was checked.
///
/// # Errors
/// [`ShardError::TooLarge`].
pub fn encode(
    content: &[u8],
    data: u8,
    parity: u8,
    code: &impl Code,
) -> Result<(Manifest, Vec<Bytes>), ShardError> {
    let len = content.len() as u64;
    if len > CODED_BYTES_MAX {
        return Err(ShardError::TooLarge { len });
    }
    let mut manifest = Manifest { object: ContentId::of(content), len, data, shards: Vec::new() };
    let layout = manifest.layout();
    let shard_len = size(layout.shard_len())?;
    let mut shards = vec![Vec::with_capacity(shard_len); usize::from(data) + usize::from(parity)];
    for stripe in layout.stripes() {
        let cell_len = size(stripe.end - stripe.start)?;
        for index in 0..u64::from(data) {
            let cell = layout.cell(&stripe, index);
            let shard = &mut shards[size(index)?];
            let end = shard.len() + cell_len;
            shard.extend_from_slice(&content[size(cell.start)?..size(cell.end)?]);
            shard.resize(end, 0);
        }
        let (of_data, of_parity) = shards.split_at_mut(data.into());
        let cells: Vec<&[u8]> = of_data.iter().map(|shard| &shard[shard.len() - cell_len..]).collect();
        for (shard, cell) in of_parity.iter_mut().zip(code.parity(&cells, parity.into())) {
            shard.extend_from_slice(&cell);
        }
    }
    let shards: Vec<Bytes> = shards.into_iter().map(Bytes::from).collect();
    manifest.shards = shards.iter().map(|shard| ContentId::of(shard)).collect();
    Ok((manifest, shards))
}

/// Puts an object together from those of its shards that are there, by index. All are held against their names first.
///
/// # Errors
/// [`ShardError::Bad`] with those that are wrong, if the rest is too few; [`ShardError::TooFew`]; [`ShardError::Foreign`];
/// [`ShardError::TooLarge`].
pub fn decode(manifest: &Manifest, shards: &[(u8, Bytes)], code: &impl Code) -> Result<Bytes, ShardError> {
    if manifest.len > CODED_BYTES_MAX {
        return Err(ShardError::TooLarge { len: manifest.len });
    }
    let layout = manifest.layout();
    let (data, shard_len) = (usize::from(manifest.data), size(layout.shard_len())?);
    let is_good = |(index, shard): &&(u8, Bytes)| {
        shard.len() == shard_len && manifest.shards.get(usize::from(*index)) == Some(&ContentId::of(shard))
    };
    let (good, bad): (Vec<_>, Vec<_>) = shards.iter().partition(is_good);
    let mut known: Vec<Option<&Bytes>> = vec![None; manifest.shards.len()];
    good.iter().for_each(|(index, shard)| known[usize::from(*index)] = Some(shard));
    let found = known.iter().flatten().count();
    if found < data {
        let indices: Vec<u8> = bad.iter().map(|(index, _)| *index).collect();
        return Err(match indices.is_empty() {
            true => ShardError::TooFew { found, needed: data },
            false => ShardError::Bad { indices },
        });
    }
    let mut content = vec![0; size(manifest.len)?];
    for stripe in layout.stripes() {
        let part = size(stripe.start)?..size(stripe.end)?;
        let cells: Vec<(usize, &[u8])> = known
            .iter()
            .enumerate()
            .filter_map(|(index, shard)| Some((index, &shard.as_ref()?[part.clone()])))
            .take(data)
            .collect();
        let computed = match known[..data].iter().all(Option::is_some) {
            true => Vec::new(),
            false => code.missing(data, manifest.parity().into(), &cells),
        };
        let computed = computed.iter().map(|(index, cell)| (*index, &cell[..]));
        for (index, cell) in cells.iter().copied().filter(|(index, _)| *index < data).chain(computed) {
            let range = layout.cell(&stripe, index as u64);
            let target = &mut content[size(range.start)?..size(range.end)?];
            target.copy_from_slice(&cell[..target.len()]);
        }
    }
    if ContentId::of(&content) != manifest.object {
        return Err(ShardError::Foreign { id: manifest.object });
    }
    Ok(content.into())
}

fn size(len: u64) -> Result<usize, ShardError> {
    usize::try_from(len).map_err(|_| ShardError::TooLarge { len })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        fastrand::Rng::with_seed(len as u64).fill(&mut content);
        content
    }

    #[test]
    fn any_six_of_nine_are_enough_and_five_are_not() {
        let content = content(1_000_003);
        let (manifest, shards) = encode(&content, 6, 3, &ReedSolomon).unwrap();
        assert_eq!((manifest.shards.len(), manifest.parity()), (9, 3));
        for mask in 0..1_u32 << 9 {
            let some = (0..9_u8).filter(|index| mask >> index & 1 == 1);
            let some: Vec<_> = some.map(|index| (index, shards[usize::from(index)].clone())).collect();
            // All of them, and not too many, because each takes a moment.
            match mask.count_ones() {
                6 => assert!(decode(&manifest, &some, &ReedSolomon).unwrap() == content),
                5 => {
                    let too_few = ShardError::TooFew { found: 5, needed: 6 };
                    assert_eq!(decode(&manifest, &some, &ReedSolomon), Err(too_few));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_bad_shard_is_passed_over_and_named_when_it_is_needed() {
        let content = content(100_000);
        let (manifest, shards) = encode(&content, 4, 2, &ReedSolomon).unwrap();
        let mut some: Vec<(u8, Bytes)> = (0..6).zip(shards).collect();
        some[1].1 = Bytes::from(vec![7; some[1].1.len()]);
        assert!(decode(&manifest, &some, &ReedSolomon).unwrap() == content);
        some.truncate(4);
        assert_eq!(decode(&manifest, &some, &ReedSolomon), Err(ShardError::Bad { indices: vec![1] }));
        some.remove(1);
        assert_eq!(decode(&manifest, &some, &ReedSolomon), Err(ShardError::TooFew { found: 3, needed: 4 }));
    }

    #[test]
    fn a_manifest_that_lies_is_noticed() {
        let (manifest, shards) = encode(&content(5000), 2, 1, &ReedSolomon).unwrap();
        let lie = Manifest { object: ContentId::of(b"other"), ..manifest };
        let some: Vec<(u8, Bytes)> = (0..3).zip(shards).collect();
        assert_eq!(decode(&lie, &some, &ReedSolomon), Err(ShardError::Foreign { id: lie.object }));
    }

    /// The code is part of the format: these shards never change.
    #[test]
    fn shards_stay_what_they_are() {
        let (manifest, _) = encode(&content(300_000), 6, 3, &ReedSolomon).unwrap();
        assert_eq!(
            manifest.id().to_string(),
            "b3:c6c6439d0996996e5bc12c3448ce8870a752089bfe8fca7ee6650d0d4a532817"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn any_enough_give_the_object(
            len in prop_oneof![0..200_usize, 0..600_000_usize],
            data in 1..7_u8,
            parity in 1..5_u8,
            seed: u64,
        ) {
            let content = content(len);
            let (manifest, shards) = encode(&content, data, parity, &ReedSolomon).unwrap();
            prop_assert!(shards.iter().all(|shard| shard.len() as u64 == manifest.layout().shard_len()));
            prop_assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest.clone());
            let mut some: Vec<(u8, Bytes)> = (0..).zip(shards).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut some);
            some.truncate(data.into());
            prop_assert!(decode(&manifest, &some, &ReedSolomon).unwrap() == content);
        }
    }
}
