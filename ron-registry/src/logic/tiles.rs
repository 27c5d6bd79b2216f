//! The hashes of the tree as C2SP tiles: 256 of them side by side, at every eighth level.
//!
//! Full tiles never change, so anybody may cache them for good, and whoever has the tiles can make every proof. They are
//! derived: rebuilt from the log, never the other way round. Pruning drops a tile when all leaves under it lie below the
//! minimum; what is left still proves every leaf at or above it, because a proof needs only tiles that also hold a node
//! on the leaf's own path.

use std::{collections::VecDeque, fmt, str::FromStr};

use bytes::Bytes;

use super::merkle::{Frontier, PROOF_HASHES_MAX, ProofError, TreeHash, split};

/// Hashes in a full tile.
pub const TILE_WIDTH: u64 = 256;
/// Levels of the tree that a tile spans.
const TILE_HEIGHT: u32 = 8;
/// The highest level of tiles: 256^8 leaves are as many as can be counted.
const LEVEL_MAX: u8 = 7;
/// Bytes of the longest entry that a bundle can hold: its length has 16 bits.
pub const ENTRY_BYTES_MAX: usize = u16::MAX as usize;

/// What a tile holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Hashes, those of the leaves at level 0.
    Hashes(u8),
    /// The entries themselves, as one bundle.
    Entries,
}

/// The name of a tile. Its text is the path below the log's prefix, `tile/0/x001/234` or `tile/entries/000.p/17`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    level: Level,
    index: u64,
    width: u16,
}

impl Tile {
    /// The tile with this index and width at this level, if there can be one.
    #[must_use]
    pub fn new(level: Level, index: u64, width: u16) -> Option<Self> {
        let height = match level {
            Level::Hashes(level) if level > LEVEL_MAX => return None,
            Level::Hashes(level) => u32::from(level),
            Level::Entries => 0,
        };
        // The leaves under it must be countable.
        let bits = 64 - TILE_HEIGHT * (height + 1);
        let is_countable = bits == 64 || index >> bits == 0;
        ((1..=TILE_WIDTH as u16).contains(&width) && is_countable).then_some(Tile { level, index, width })
    }

    /// The tile at `level` that holds hash number `at` of a row with `count` hashes.
    fn holding(level: u8, at: u64, count: u64) -> Self {
        let index = at / TILE_WIDTH;
        let width = (count - index * TILE_WIDTH).min(TILE_WIDTH) as u16;
        Tile { level: Level::Hashes(level), index, width }
    }

    /// What it holds.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Which of its level.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many hashes, or entries, it holds.
    #[must_use]
    pub fn width(&self) -> u16 {
        self.width
    }

    /// Whether it will never change.
    #[must_use]
    pub fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_WIDTH
    }

    /// Whether a tree of `size` leaves has it, as it is or as the beginning of a wider one.
    #[must_use]
    pub fn is_within(&self, size: u64) -> bool {
        let row = match self.level {
            Level::Hashes(level) => row_len(size, level),
            Level::Entries => size,
        };
        u128::from(self.index) * u128::from(TILE_WIDTH) + u128::from(self.width) <= u128::from(row)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::Hashes(level) => write!(f, "tile/{level}/")?,
            Level::Entries => f.write_str("tile/entries/")?,
        }
        let mut digits = self.index.to_string();
        digits.insert_str(0, &"00"[..(3 - digits.len() % 3) % 3]);
        let groups = digits.len() / 3;
        for group in 0..groups {
            let separator = if group + 1 < groups { ("x", "/") } else { ("", "") };
            write!(f, "{}{}{}", separator.0, &digits[group * 3..group * 3 + 3], separator.1)?;
        }
        if self.is_full() { Ok(()) } else { write!(f, ".p/{}", self.width) }
    }
}

/// The text names no tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the path of a tile")]
pub struct TilePathError;

impl FromStr for Tile {
    type Err = TilePathError;

    fn from_str(path: &str) -> Result<Self, TilePathError> {
        let parse = || {
            let (level, rest) = path.strip_prefix("tile/")?.split_once('/')?;
            let level = if level == "entries" { Level::Entries } else { Level::Hashes(level.parse().ok()?) };
            let (index, width) = match rest.split_once(".p/") {
                Some((index, width)) => (index, width.parse().ok()?),
                None => (rest, TILE_WIDTH as u16),
            };
            let digits = index.split('/').map(|group| group.strip_prefix('x').unwrap_or(group));
            Tile::new(level, digits.collect::<String>().parse().ok()?, width)
        };
        // One tile has one path: whatever is written otherwise is none.
        parse().filter(|tile| tile.to_string() == path).ok_or(TilePathError)
    }
}

/// Where tiles come from: memory, files, somebody's server.
pub trait TileSource {
    /// The hashes of the tile, 32 bytes each, or nothing if they were pruned.
    fn tile(&self, tile: Tile) -> Option<Bytes>;

    /// The first leaf that can be proven.
    fn minimum(&self) -> u64;
}

/// Makes proofs out of tiles. The tree it proves about has `size` leaves, whatever has grown since.
#[derive(Debug)]
pub struct Prover<'a, S> {
    source: &'a S,
    size: u64,
}

impl<'a, S: TileSource> Prover<'a, S> {
    /// For the tree of `size` leaves that `source` has.
    pub fn new(source: &'a S, size: u64) -> Self {
        Prover { source, size }
    }

    /// The root of the tree.
    ///
    /// # Errors
    /// [`ProofError::Pruned`].
    pub fn root(&self) -> Result<TreeHash, ProofError> {
        if self.size == 0 { Ok(TreeHash::of_nothing()) } else { self.range(0, self.size) }
    }

    /// That leaf `index` is in the tree.
    ///
    /// # Errors
    /// [`ProofError::OutOfRange`], [`ProofError::Pruned`].
    pub fn inclusion(&self, index: u64) -> Result<Vec<TreeHash>, ProofError> {
        if index >= self.size {
            return Err(ProofError::OutOfRange { index, size: self.size });
        }
        let (mut low, mut high) = (0, self.size);
        let mut proof = Vec::with_capacity(PROOF_HASHES_MAX);
        while high - low > 1 {
            let cut = low + split(high - low);
            if index < cut {
                proof.push(self.range(cut, high)?);
                high = cut;
            } else {
                proof.push(self.range(low, cut)?);
                low = cut;
            }
        }
        proof.reverse();
        Ok(proof)
    }

    /// That the tree of `old_size` leaves is the beginning of this one.
    ///
    /// # Errors
    /// [`ProofError::OutOfRange`], [`ProofError::Pruned`].
    pub fn consistency(&self, old_size: u64) -> Result<Vec<TreeHash>, ProofError> {
        if old_size > self.size {
            return Err(ProofError::OutOfRange { index: old_size, size: self.size });
        }
        let (mut low, mut high) = (0, self.size);
        let mut proof = Vec::with_capacity(PROOF_HASHES_MAX);
        if old_size == 0 {
            return Ok(proof);
        }
        while old_size < high {
            let cut = low + split(high - low);
            if old_size <= cut {
                proof.push(self.range(cut, high)?);
                high = cut;
            } else {
                proof.push(self.range(low, cut)?);
                low = cut;
            }
        }
        // What is left is the right end of the old tree; if that is all of it, its root says the same.
        if low > 0 {
            proof.push(self.range(low, high)?);
        }
        proof.reverse();
        Ok(proof)
    }

    /// The hash over leaves `low..high`, a subtree of the tree.
    fn range(&self, low: u64, high: u64) -> Result<TreeHash, ProofError> {
        let leaves = high - low;
        if leaves.is_power_of_two() {
            return self.node(leaves.trailing_zeros(), low);
        }
        let cut = low + split(leaves);
        Ok(TreeHash::of_node(&self.range(low, cut)?, &self.range(cut, high)?))
    }

    /// The root of the perfect subtree of this height that starts at leaf `low`.
    fn node(&self, height: u32, low: u64) -> Result<TreeHash, ProofError> {
        // A tree of 2^64 leaves cannot be counted, so a height of 64 cannot come.
        let level = (height / TILE_HEIGHT) as u8;
        let at = low >> (u32::from(level) * TILE_HEIGHT);
        let tile = Tile::holding(level, at, row_len(self.size, level));
        let pruned = ProofError::Pruned { minimum: self.source.minimum() };
        let bytes = self.source.tile(tile).ok_or(pruned)?;
        let from = (at % TILE_WIDTH) as usize * TreeHash::BYTES;
        let hashes = bytes.get(from..from + (TreeHash::BYTES << (height % TILE_HEIGHT))).ok_or(pruned)?;
        Ok(perfect_root(hashes))
    }
}

/// The root over a power of two of hashes.
fn perfect_root(hashes: &[u8]) -> TreeHash {
    match hashes.len() {
        TreeHash::BYTES => TreeHash::from_bytes(hashes.try_into().expect("one hash")),
        len => {
            let (left, right) = hashes.split_at(len / 2);
            TreeHash::of_node(&perfect_root(left), &perfect_root(right))
        }
    }
}

/// Hashes at `level` in a tree of `size` leaves.
fn row_len(size: u64, level: u8) -> u64 {
    size.checked_shr(TILE_HEIGHT * u32::from(level)).unwrap_or(0)
}

/// The hashes of one level, from the first that was not pruned.
#[derive(Debug, Clone, Default)]
struct Row {
    pruned_tiles: u64,
    full: VecDeque<Bytes>,
    partial: Vec<u8>,
}

/// The tiles of a tree that grows, in memory: 32 bytes a leaf and a little more.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    rows: Vec<Row>,
    frontier: Frontier,
    minimum: u64,
}

impl Tree {
    /// One without leaves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves, the pruned ones included.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> TreeHash {
        self.frontier.root()
    }

    /// What it takes to go on without the rest.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Appends a leaf by its hash.
    pub fn push(&mut self, leaf: TreeHash) {
        self.frontier.push(leaf);
        let mut hash = leaf;
        for level in 0.. {
            if level == self.rows.len() {
                self.rows.push(Row::default());
            }
            let row = &mut self.rows[level];
            row.partial.extend_from_slice(hash.as_bytes());
            if row.partial.len() < TILE_WIDTH as usize * TreeHash::BYTES {
                return;
            }
            hash = perfect_root(&row.partial);
            row.full.push_back(std::mem::take(&mut row.partial).into());
        }
    }

    /// Drops the tiles whose leaves all lie below `minimum`, and says how many bytes of hashes that were. A minimum
    /// beyond the tree means its end; it never goes back.
    pub fn prune(&mut self, minimum: u64) -> u64 {
        self.minimum = self.minimum.max(minimum.min(self.size()));
        let mut freed = 0;
        for (level, row) in self.rows.iter_mut().enumerate() {
            let tiles = row_len(self.minimum, level as u8 + 1);
            while row.pruned_tiles < tiles {
                freed += row.full.pop_front().map_or(0, |tile| tile.len() as u64);
                row.pruned_tiles += 1;
            }
        }
        freed
    }

    /// The partial tiles of the tree as it is now, one for each level that has one, the lowest first: with them a tree
    /// starts elsewhere and serves everything from here on.
    #[must_use]
    pub fn edge(&self) -> Vec<Vec<u8>> {
        self.rows.iter().map(|row| row.partial.clone()).collect()
    }

    /// A tree that starts at `size` with the partial tiles of [`edge`](Tree::edge), everything before pruned; nothing
    /// if they are not those of a tree of that size.
    #[must_use]
    pub fn from_edge(size: u64, edge: Vec<Vec<u8>>) -> Option<Self> {
        let rows = (0..=LEVEL_MAX).take_while(|level| row_len(size, *level) > 0).count();
        if edge.len() != rows {
            return None;
        }
        let mut tree = Tree { minimum: size, ..Tree::default() };
        let mut roots = Vec::new();
        for (level, partial) in edge.into_iter().enumerate() {
            let row = row_len(size, level as u8);
            let mut hashes = &partial[..];
            if hashes.len() as u64 != row % TILE_WIDTH * TreeHash::BYTES as u64 {
                return None;
            }
            // From the left, the partial tile is perfect subtrees, the largest first.
            let mut of_level = Vec::new();
            for bit in (0..TILE_HEIGHT).rev().filter(|bit| row >> bit & 1 == 1) {
                let (subtree, rest) = hashes.split_at(TreeHash::BYTES << bit);
                of_level.push(perfect_root(subtree));
                hashes = rest;
            }
            roots.splice(0..0, of_level);
            tree.rows.push(Row { pruned_tiles: row / TILE_WIDTH, full: VecDeque::new(), partial });
        }
        tree.frontier = Frontier::from_parts(size, roots)?;
        Some(tree)
    }
}

impl Tree {
    /// The full tiles of each level that has some, the lowest first, behind each other.
    #[must_use]
    pub fn full_tiles(&self) -> Vec<Vec<Bytes>> {
        self.rows.iter().map(|row| row.full.iter().cloned().collect()).collect()
    }

    /// Gives a tree that starts with its [`edge`](Tree::edge) the full tiles back that it had above `minimum`: those of
    /// [`full_tiles`](Tree::full_tiles), each level behind each other. Says whether they are: every tile must be what the
    /// level above says.
    #[must_use]
    pub fn fill(&mut self, minimum: u64, tiles: &[Bytes]) -> bool {
        const TILE_BYTES: usize = TILE_WIDTH as usize * TreeHash::BYTES;
        let size = self.size();
        if minimum > size || tiles.len() != self.rows.len() {
            return false;
        }
        for (level, (row, tiles)) in self.rows.iter_mut().zip(tiles).enumerate() {
            row.pruned_tiles = row_len(minimum, level as u8 + 1);
            let full = row_len(size, level as u8 + 1) - row.pruned_tiles;
            if tiles.len() as u64 != full * TILE_BYTES as u64 {
                return false;
            }
            row.full =
                (0..tiles.len()).step_by(TILE_BYTES).map(|at| tiles.slice(at..at + TILE_BYTES)).collect();
        }
        self.minimum = minimum;
        (1..self.rows.len()).all(|level| {
            let (below, above) = (&self.rows[level - 1], &self.rows[level]);
            (below.pruned_tiles..).zip(&below.full).all(|(index, tile)| {
                let at = (index % TILE_WIDTH) as usize * TreeHash::BYTES;
                let parent = (index / TILE_WIDTH).checked_sub(above.pruned_tiles).map(|parent| {
                    above.full.get(parent as usize).map_or(&above.partial[..], |parent| &parent[..])
                });
                let said = parent.and_then(|parent| parent.get(at..at + TreeHash::BYTES));
                said == Some(&perfect_root(tile).as_bytes()[..])
            })
        })
    }
}

impl TileSource for Tree {
    fn tile(&self, tile: Tile) -> Option<Bytes> {
        let Level::Hashes(level) = tile.level() else { return None };
        if !tile.is_within(self.size()) {
            return None;
        }
        let row = self.rows.get(usize::from(level))?;
        let at = usize::try_from(tile.index().checked_sub(row.pruned_tiles)?).ok()?;
        let bytes = usize::from(tile.width()) * TreeHash::BYTES;
        match row.full.get(at) {
            Some(full) => Some(full.slice(..bytes)),
            None => row.partial.get(..bytes).map(Bytes::copy_from_slice),
        }
    }

    fn minimum(&self) -> u64 {
        self.minimum
    }
}

/// Writes entries as a bundle: each behind its length in two bytes.
///
/// # Panics
/// If an entry is longer than [`ENTRY_BYTES_MAX`]: the log takes none that is.
#[must_use]
pub fn write_bundle<T: AsRef<[u8]>>(entries: &[T]) -> Vec<u8> {
    let mut bundle = Vec::with_capacity(bundle_bytes(entries));
    append_bundle(&mut bundle, entries);
    bundle
}

/// How long the bundle of these entries is.
pub(crate) fn bundle_bytes<T: AsRef<[u8]>>(entries: &[T]) -> usize {
    entries.iter().map(|entry| entry.as_ref().len() + 2).sum()
}

/// [`write_bundle`] behind what is there already.
pub(crate) fn append_bundle<T: AsRef<[u8]>>(bundle: &mut Vec<u8>, entries: &[T]) {
    for entry in entries.iter().map(AsRef::as_ref) {
        let len = u16::try_from(entry.len()).expect("no entry is longer than a bundle holds");
        bundle.extend_from_slice(&len.to_be_bytes());
        bundle.extend_from_slice(entry);
    }
}

/// Reads a bundle of `width` entries and nothing else; otherwise nothing.
#[must_use]
pub fn read_bundle(bundle: &[u8], width: u16) -> Option<Vec<&[u8]>> {
    read_bundle_up_to(bundle, width.into()).filter(|entries| entries.len() == usize::from(width))
}

/// Reads a bundle of at most `max` entries and nothing else; otherwise nothing.
#[must_use]
pub fn read_bundle_up_to(mut bundle: &[u8], max: usize) -> Option<Vec<&[u8]>> {
    let mut entries = Vec::with_capacity(max.min(bundle.len() / 2));
    while !bundle.is_empty() && entries.len() < max {
        let (len, rest) = bundle.split_first_chunk()?;
        let (entry, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        entries.push(entry);
        bundle = rest;
    }
    bundle.is_empty().then_some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::merkle::{verify_consistency, verify_inclusion};

    fn leaf(at: u64) -> TreeHash {
        TreeHash::of_leaf(&at.to_be_bytes())
    }

    fn tree(size: u64) -> Tree {
        let mut tree = Tree::new();
        (0..size).for_each(|at| tree.push(leaf(at)));
        tree
    }

    fn path(text: &str) -> Result<Tile, TilePathError> {
        text.parse()
    }

    #[test]
    fn paths_are_those_of_the_specification() {
        let shown = |level, index, width| Tile::new(level, index, width).unwrap().to_string();
        assert_eq!(shown(Level::Hashes(0), 1_234_067, 256), "tile/0/x001/x234/067");
        assert_eq!(shown(Level::Hashes(1), 0, 17), "tile/1/000.p/17");
        assert_eq!(shown(Level::Entries, 999, 256), "tile/entries/999");
        assert_eq!(shown(Level::Entries, 1000, 1), "tile/entries/x001/000.p/1");
        for bad in [
            "",
            "tile",
            "tile/",
            "tile/0",
            "tile/0/",
            "tile/0/1",
            "tile/0/0000",
            "tile/0/x000/001",
            "tile/00/001",
            "tile/8/000",
            "tile/64/000",
            "tile/-1/000",
            "tile/+1/000",
            "tile/0/001.p/0",
            "tile/0/001.p/256",
            "tile/0/001.p/01",
            "tile/0/001.p/",
            "tile/0/001.p/1.p/1",
            "/tile/0/001",
            "tile/0/001/",
            "tile/data/001",
            "tile/0/001/002",
            "tile/0/x001",
            "tile/0/x001/x002",
            "tile/0/../001",
            "tile/7/256",
            "tile/0/x072/x057/x594/x037/x927/936",
        ] {
            assert_eq!(path(bad), Err(TilePathError), "{bad}");
        }
        assert!(path("tile/0/x072/x057/x594/x037/x927/935").is_ok(), "the last leaf that can be counted");
    }

    #[test]
    fn widths_are_those_of_the_specification() {
        // Its example: 70 000 leaves.
        let has = |text: &str| path(text).unwrap().is_within(70_000);
        assert!(
            has("tile/0/272") && has("tile/0/273.p/112") && !has("tile/0/273.p/113") && !has("tile/0/273")
        );
        assert!(has("tile/1/000") && has("tile/1/001.p/17") && !has("tile/1/001.p/18"));
        assert!(has("tile/2/000.p/1") && !has("tile/2/000.p/2") && !has("tile/3/000.p/1"));
        assert!(path("tile/1/000.p/1").unwrap().is_within(256));
    }

    #[test]
    fn every_proof_of_small_trees_holds_and_no_other_does() {
        let tree = tree(70);
        for size in 1..=70 {
            let prover = Prover::new(&tree, size);
            let root = prover.root().unwrap();
            for index in 0..size {
                let proof = prover.inclusion(index).unwrap();
                let check = |index, proof: &[TreeHash], size, root| {
                    verify_inclusion(&leaf(index), index, proof, size, root)
                };
                assert_eq!(check(index, &proof, size, &root), Ok(()));
                assert!(check(index + 1, &proof, size + 1, &root).is_err());
                assert_eq!(
                    verify_inclusion(&leaf(99), index, &proof, size, &root),
                    Err(ProofError::WrongRoot)
                );
                let longer = [&proof[..], &[root]].concat();
                assert!(check(index, &longer, size, &root).is_err());
                if let Some((_, shorter)) = proof.split_last() {
                    assert!(check(index, shorter, size, &root).is_err());
                }
            }
            for old in 0..=size {
                let old_root = Prover::new(&tree, old).root().unwrap();
                let proof = prover.consistency(old).unwrap();
                assert_eq!(
                    verify_consistency((old, &old_root), (size, &root), &proof),
                    Ok(()),
                    "{old} {size}"
                );
                let longer = [&proof[..], &[root]].concat();
                assert!(verify_consistency((old, &old_root), (size, &root), &longer).is_err());
                if old > 0 && old < size {
                    assert!(verify_consistency((old, &leaf(99)), (size, &root), &proof).is_err());
                    assert!(verify_consistency((old, &old_root), (size, &leaf(99)), &proof).is_err());
                    for at in 0..proof.len() {
                        let mut forged = proof.clone();
                        forged[at] = leaf(99);
                        assert!(verify_consistency((old, &old_root), (size, &root), &forged).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_left_of_a_pruned_tree_proves_the_rest() {
        let whole = tree(70_000);
        let mut pruned = whole.clone();
        let freed = pruned.prune(66_000);
        assert_eq!(freed, (257 * 256 + 256) * 32, "257 tiles of leaves and the first of level 1");
        assert_eq!(pruned.prune(66_000), 0);
        assert_eq!(pruned.prune(5), 0, "it does not go back");
        for index in [66_000, 66_047, 66_048, 69_999] {
            for size in [70_000, 66_049.max(index + 1)] {
                let proof = Prover::new(&pruned, size).inclusion(index);
                assert_eq!(proof, Prover::new(&whole, size).inclusion(index));
            }
        }
        let proof = Prover::new(&pruned, 70_000).consistency(66_000);
        assert_eq!(proof, Prover::new(&whole, 70_000).consistency(66_000));
        assert_eq!(Prover::new(&pruned, 66_000).root(), Prover::new(&whole, 66_000).root());
        let gone = Prover::new(&pruned, 70_000).inclusion(1000);
        assert_eq!(gone, Err(ProofError::Pruned { minimum: 66_000 }));
    }

    #[test]
    fn an_edge_of_another_tree_is_none() {
        let edge = tree(600).edge();
        assert!(Tree::from_edge(600, edge.clone()).is_some());
        assert!(Tree::from_edge(601, edge.clone()).is_none());
        assert!(Tree::from_edge(600 + 256 * 256, edge.clone()).is_none());
        assert!(Tree::from_edge(600, edge[..1].to_vec()).is_none());
        assert_eq!(Tree::from_edge(0, vec![]).unwrap().root(), TreeHash::of_nothing());
    }

    #[test]
    fn a_bundle_is_read_whole_or_not_at_all() {
        let entries = [&b"one"[..], b"", &[7; ENTRY_BYTES_MAX]];
        let bundle = write_bundle(&entries);
        assert_eq!(bundle[..5], *b"\0\x03one");
        assert_eq!(read_bundle(&bundle, 3).unwrap(), entries);
        assert_eq!(read_bundle(&bundle, 2), None);
        assert_eq!(read_bundle(&bundle, 4), None);
        assert_eq!(read_bundle(&bundle[..bundle.len() - 1], 3), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_tree_goes_on_from_its_edge(start in 0u64..2000, more in 0u64..600) {
            let whole = tree(start + more);
            let mut later = Tree::from_edge(start, tree(start).edge()).unwrap();
            for at in start..start + more {
                later.push(leaf(at));
            }
            prop_assert_eq!(later.root(), whole.root());
            prop_assert_eq!(later.frontier(), whole.frontier());
            prop_assert_eq!(later.edge(), whole.edge());
            let size = start + more;
            for index in (start..size).step_by(37) {
                prop_assert_eq!(Prover::new(&later, size).inclusion(index), Prover::new(&whole, size).inclusion(index));
            }
            prop_assert_eq!(Prover::new(&later, size).consistency(start), Prover::new(&whole, size).consistency(start));
        }

        #[test]
        fn a_path_that_is_read_is_written_the_same(text in "tile/([0-9]|entries)/(x[0-9]{3}/){0,3}[0-9]{3}(\\.p/[0-9]{1,3})?") {
            if let Ok(tile) = path(&text) {
                prop_assert_eq!(tile.to_string(), text);
            }
        }
    }
}
