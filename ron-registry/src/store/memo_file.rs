//! The memo as a file: where the blocks of the journal are, what the registry knows, and a hash over all of it.

use bytes::{Buf as _, Bytes};
use ron_core::journal::Position;

use super::StoredMemo;

const MAGIC: &[u8; 16] = b"ron-reg memo 1\0\0";

/// Bytes of the hash at the end.
const HASH: usize = 32;

/// Bytes of a block: its first version, and where it is.
const BLOCK: usize = 20;
/// Bytes of a place.
const PLACE: usize = 12;

/// What the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// First version and place of each block.
    pub(super) blocks: Vec<(u64, Position)>,
    /// That of the last block.
    pub(super) checkpoint: Bytes,
    /// The newest snapshot: its version, and where its parts are.
    pub(super) snapshot: Option<(u64, Vec<Position>)>,
}

/// The bytes of a file.
pub(super) fn write_memo(known: &Known, memo: &StoredMemo) -> Vec<u8> {
    let Known { blocks, checkpoint, snapshot } = known;
    let parts: usize = memo.parts.iter().map(|part| part.len() + 8).sum();
    let mut bytes = Vec::with_capacity(parts + blocks.len() * BLOCK + checkpoint.len() + (1 << 16));
    bytes.extend_from_slice(MAGIC);
    let place = |bytes: &mut Vec<u8>, place: &Position| {
        bytes.extend_from_slice(&place.segment.to_be_bytes());
        bytes.extend_from_slice(&place.offset.to_be_bytes());
    };
    let number = |bytes: &mut Vec<u8>, number: u64| bytes.extend_from_slice(&number.to_be_bytes());
    number(&mut bytes, memo.version);
    number(&mut bytes, memo.first);
    number(&mut bytes, blocks.len() as u64);
    for (first, position) in blocks {
        number(&mut bytes, *first);
        place(&mut bytes, position);
    }
    number(&mut bytes, checkpoint.len() as u64);
    bytes.extend_from_slice(checkpoint);
    // No snapshot is of version 0.
    let (version, places) = snapshot.as_ref().map_or((0, &[][..]), |(version, places)| (*version, places));
    number(&mut bytes, version);
    number(&mut bytes, places.len() as u64);
    places.iter().for_each(|position| place(&mut bytes, position));
    number(&mut bytes, memo.parts.len() as u64);
    for part in &memo.parts {
        number(&mut bytes, part.len() as u64);
        bytes.extend_from_slice(part);
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

/// What is in a file, if it is whole and one of these.
pub(super) fn read_memo(file: &Bytes) -> Option<(Known, StoredMemo)> {
    let (body, hash) = file.split_at_checked(file.len().checked_sub(HASH)?)?;
    if !body.starts_with(MAGIC) || blake3::hash(body).as_bytes() != hash {
        return None;
    }
    let mut rest = file.slice(MAGIC.len()..body.len());
    let number = |rest: &mut Bytes| rest.try_get_u64().ok();
    let place = |rest: &mut Bytes| {
        Some(Position { segment: rest.try_get_u64().ok()?, offset: rest.try_get_u32().ok()? })
    };
    // No count is believed beyond what is left.
    let count = |rest: &mut Bytes, each: usize| {
        let count = usize::try_from(rest.try_get_u64().ok()?).ok()?;
        (count <= rest.len() / each).then_some(count)
    };
    let (version, first) = (number(&mut rest)?, number(&mut rest)?);
    let blocks = count(&mut rest, BLOCK)?;
    let blocks = (0..blocks).map(|_| Some((number(&mut rest)?, place(&mut rest)?))).collect::<Option<_>>()?;
    let len = count(&mut rest, 1)?;
    let checkpoint = rest.split_to(len);
    let (snapshot, places) = (number(&mut rest)?, count(&mut rest, PLACE)?);
    let places = (0..places).map(|_| place(&mut rest)).collect::<Option<Vec<_>>>()?;
    let parts = count(&mut rest, 8)?;
    let part = |_| {
        let len = count(&mut rest, 1)?;
        Some(rest.split_to(len))
    };
    let parts = (0..parts).map(part).collect::<Option<_>>()?;
    let known = Known { blocks, checkpoint, snapshot: (snapshot > 0).then_some((snapshot, places)) };
    rest.is_empty().then_some((known, StoredMemo { version, first, parts }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Known, StoredMemo) {
        let at = |segment, offset| Position { segment, offset };
        let known = Known {
            blocks: vec![(1, at(1, 64)), (7, at(1, 2048)), (9, at(2, 64))],
            checkpoint: Bytes::from_static(b"a note"),
            snapshot: Some((4, vec![at(1, 4096), at(2, 512)])),
        };
        let parts = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
        (known, StoredMemo { version: 12, first: 5, parts })
    }

    #[test]
    fn a_file_is_what_was_written_or_nothing() {
        let (known, memo) = sample();
        let bytes = write_memo(&known, &memo);
        assert_eq!(read_memo(&bytes.clone().into()), Some((known.clone(), memo.clone())));
        let without = Known { snapshot: None, ..known };
        assert_eq!(read_memo(&write_memo(&without, &memo).into()), Some((without, memo)));
        for cut in 0..bytes.len() {
            assert_eq!(read_memo(&Bytes::copy_from_slice(&bytes[..cut])), None);
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(read_memo(&flipped.into()), None, "byte {at}");
        }
    }

    /// Whoever can write a right hash can say anything, and is not believed with memory.
    #[test]
    fn counts_are_not_believed() {
        let (known, memo) = sample();
        let bytes = write_memo(&known, &memo);
        let body = bytes.len() - HASH;
        for at in MAGIC.len()..body - 7 {
            let mut forged = bytes.clone();
            forged[at..at + 8].copy_from_slice(&u64::MAX.to_be_bytes());
            let hash = blake3::hash(&forged[..body]);
            forged[body..].copy_from_slice(hash.as_bytes());
            let _ = read_memo(&forged.into());
        }
    }
}
