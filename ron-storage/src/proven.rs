//! Hashes of groups that were proven from an object's name, remembered for the next read of the same part.
//!
//! The way from the name to a group is read and hashed once for a block of groups, and not again for every piece of a stream.
//! That is no shortcut around verification: the bytes of every read are hashed and compared with these hashes. A file number
//! is never used for another object, so what is remembered of a file stays true.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    ops::Range,
    sync::Arc,
};

use ron_core::{Lock, LockSpec, Metrics};

use crate::logic::tree::{Hash, Shape};

pub(crate) const PROVEN: LockSpec = LockSpec::new("ron-storage", "proven", 730)
    .guards("hashes of groups that were proven; held for one look or one change");

/// Groups of a block: 16 MiB of an object, whose part of the tree is 16 KiB and proven in 20 µs.
pub(crate) const BLOCK: u64 = 256;

/// Hashes that are remembered, and what a block takes beside its hashes, counted in them: 8 MiB in all, the hashes of
/// sixteen gibibytes.
const HASHES_MAX: usize = 256 << 10;
const OVERHEAD: usize = 4;

/// The hashes that are known.
pub(crate) struct Proven {
    known: Lock<Known>,
}

#[derive(Default)]
struct Known {
    blocks: HashMap<Key, Block>,
    /// In the order in which blocks are considered when one has to go.
    order: VecDeque<Key>,
    hashes: usize,
}

/// A file, and which block of it.
type Key = (u64, u64);

struct Block {
    hashes: Arc<[Hash]>,
    /// Whether it was asked for since it was last considered for removal.
    is_used: bool,
}

impl Proven {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Proven { known: Lock::new(PROVEN, Known::default(), metrics) }
    }

    /// The block that holds `group`: which groups it has.
    pub(crate) fn block(shape: Shape, group: u64) -> Range<u64> {
        let first = group / BLOCK * BLOCK;
        first..(first + BLOCK).min(shape.groups())
    }

    /// The hashes of a block, if they are known.
    pub(crate) fn get(&self, file: u64, block: &Range<u64>) -> Option<Arc<[Hash]>> {
        let mut known = self.known.lock();
        let found = known.blocks.get_mut(&(file, block.start))?;
        found.is_used = true;
        Some(Arc::clone(&found.hashes))
    }

    /// Remembers the hashes of a block, and forgets others that were not asked for since they came.
    pub(crate) fn insert(&self, file: u64, block: &Range<u64>, hashes: Arc<[Hash]>) {
        let mut known = self.known.lock();
        let known = &mut *known;
        let key = (file, block.start);
        known.hashes += hashes.len() + OVERHEAD;
        match known.blocks.insert(key, Block { hashes, is_used: false }) {
            Some(old) => known.hashes -= old.hashes.len() + OVERHEAD,
            None => known.order.push_back(key),
        }
        while known.hashes > HASHES_MAX {
            let Some(oldest) = known.order.pop_front() else { break };
            match known.blocks.get_mut(&oldest) {
                Some(block) if block.is_used => {
                    block.is_used = false;
                    known.order.push_back(oldest);
                }
                _ => {
                    let gone = known.blocks.remove(&oldest);
                    known.hashes -= gone.map_or(0, |gone| gone.hashes.len() + OVERHEAD);
                }
            }
        }
    }
}

impl fmt::Debug for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proven").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let proven = Proven::new(&Metrics::default());
        let (block, shape) = (0..BLOCK, Shape::of(1 << 30));
        assert_eq!(Proven::block(shape, 300), BLOCK..2 * BLOCK);
        assert_eq!(Proven::block(Shape::of(65_536 * 3 + 1), 3), 0..4);
        let hashes = |byte: u8| -> Arc<[Hash]> { vec![[byte; 32]; 256].into() };
        proven.insert(0, &block, hashes(1));
        for file in 1..5000 {
            assert_eq!(proven.get(0, &block).unwrap()[0], [1; 32], "{file}");
            proven.insert(file, &block, hashes(2));
        }
        let known = proven.known.lock();
        assert_eq!(known.blocks.len(), known.order.len());
        assert_eq!(known.hashes, known.blocks.len() * (256 + OVERHEAD));
        assert!(known.hashes <= HASHES_MAX && known.blocks.len() > 1000, "{}", known.blocks.len());
        assert!(known.blocks.contains_key(&(4999, 0)) && !known.blocks.contains_key(&(1, 0)));
    }
}
