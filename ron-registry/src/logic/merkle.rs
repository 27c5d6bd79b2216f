//! The tree over the log: RFC 6962 with SHA-256, so that its proofs are those that everybody can check already.
//!
//! Here are its hashes, what a proof must satisfy, and the frontier: the few hashes from which the tree goes on growing
//! and its root is known, when everything to the left is gone. Where the other hashes are kept is for
//! [`tiles`](super::tiles).

use std::fmt;

use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};

/// Hashes in the longest proof: a tree of 2^64 leaves has 64 levels, and a consistency proof one more hash.
pub const PROOF_HASHES_MAX: usize = 65;

const LEAF: u8 = 0;
const NODE: u8 = 1;

/// A hash of the tree: of a leaf, of an inner node, or the root. Printed as base64, as checkpoints write it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeHash([u8; 32]);

impl TreeHash {
    /// Bytes of a hash.
    pub const BYTES: usize = 32;

    /// The hash with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        TreeHash(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The root of a tree without leaves.
    #[must_use]
    pub fn of_nothing() -> Self {
        TreeHash(Sha256::digest([]).into())
    }

    /// The hash of a leaf that holds `data`.
    #[must_use]
    pub fn of_leaf(data: &[u8]) -> Self {
        TreeHash(Sha256::new().chain_update([LEAF]).chain_update(data).finalize().into())
    }

    /// The hash of the node above `left` and `right`.
    #[must_use]
    pub fn of_node(left: &TreeHash, right: &TreeHash) -> Self {
        let mut bytes = [NODE; 65];
        bytes[1..33].copy_from_slice(&left.0);
        bytes[33..].copy_from_slice(&right.0);
        TreeHash(Sha256::digest(bytes).into())
    }

    /// Reads the 44 characters of [`Display`](fmt::Display), of which there is one spelling.
    #[must_use]
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(TreeHash)
    }
}

impl fmt::Display for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl fmt::Debug for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a proof proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The leaf is not in a tree of that size, or the smaller tree is the larger one. Ask about another size.
    #[error("{index} is not within a tree of {size}")]
    OutOfRange {
        /// The leaf, or the size of the smaller tree.
        index: u64,
        /// The size of the tree.
        size: u64,
    },
    /// It has more or fewer hashes than a proof for these numbers has.
    #[error("a proof of the wrong length")]
    WrongLength,
    /// It leads to another root. Whoever made it, or the checkpoint, is wrong.
    #[error("the proof leads to another root")]
    WrongRoot,
    /// The hashes it would be made of were pruned.
    #[error("the tree below {minimum} is pruned")]
    Pruned {
        /// The first leaf that can still be proven.
        minimum: u64,
    },
}

/// Checks that `leaf` is number `index` of the tree of `size` leaves with this root (RFC 9162, 2.1.3.2).
///
/// # Errors
/// A [`ProofError`].
pub fn verify_inclusion(
    leaf: &TreeHash,
    index: u64,
    proof: &[TreeHash],
    size: u64,
    root: &TreeHash,
) -> Result<(), ProofError> {
    if index >= size {
        return Err(ProofError::OutOfRange { index, size });
    }
    let (mut at, mut last, mut hash) = (index, size - 1, *leaf);
    for sibling in proof {
        if last == 0 {
            return Err(ProofError::WrongLength);
        }
        if at & 1 == 1 || at == last {
            hash = TreeHash::of_node(sibling, &hash);
            // On the right edge, levels without a sibling have no hash in the proof.
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            hash = TreeHash::of_node(&hash, sibling);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    match (last, hash == *root) {
        (0, true) => Ok(()),
        (0, false) => Err(ProofError::WrongRoot),
        _ => Err(ProofError::WrongLength),
    }
}

/// Checks that the tree with the first root is the beginning of the tree with the second (RFC 9162, 2.1.4.2). Each tree
/// is its size and its root. The empty tree is the beginning of every tree.
///
/// # Errors
/// A [`ProofError`].
pub fn verify_consistency(
    (old_size, old_root): (u64, &TreeHash),
    (new_size, new_root): (u64, &TreeHash),
    proof: &[TreeHash],
) -> Result<(), ProofError> {
    if old_size > new_size {
        return Err(ProofError::OutOfRange { index: old_size, size: new_size });
    }
    if old_size == new_size || old_size == 0 {
        let is_known = if old_size == 0 { *old_root == TreeHash::of_nothing() } else { old_root == new_root };
        return match (proof.is_empty(), is_known) {
            (false, _) => Err(ProofError::WrongLength),
            (true, false) => Err(ProofError::WrongRoot),
            (true, true) => Ok(()),
        };
    }
    let (mut at, mut last) = (old_size - 1, new_size - 1);
    while at & 1 == 1 {
        (at, last) = (at >> 1, last >> 1);
    }
    // An old tree that is one perfect subtree of the new one is its own first hash.
    let (start, rest) = if old_size.is_power_of_two() {
        (old_root, proof)
    } else {
        proof.split_first().ok_or(ProofError::WrongLength)?
    };
    let (mut old, mut new) = (*start, *start);
    for sibling in rest {
        if last == 0 {
            return Err(ProofError::WrongLength);
        }
        if at & 1 == 1 || at == last {
            old = TreeHash::of_node(sibling, &old);
            new = TreeHash::of_node(sibling, &new);
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            new = TreeHash::of_node(&new, sibling);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    match (last, old == *old_root && new == *new_root) {
        (0, true) => Ok(()),
        (0, false) => Err(ProofError::WrongRoot),
        _ => Err(ProofError::WrongLength),
    }
}

/// The roots of the perfect subtrees that a tree consists of, the largest first: all it takes to go on.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    /// One for each bit that is set in `size`, the highest first.
    roots: Vec<TreeHash>,
}

impl Frontier {
    /// That of an empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The frontier of a tree of `size` leaves, or nothing if it takes another number of hashes.
    #[must_use]
    pub fn from_parts(size: u64, roots: Vec<TreeHash>) -> Option<Self> {
        (roots.len() == size.count_ones() as usize).then_some(Frontier { size, roots })
    }

    /// Leaves of the tree.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The roots of its perfect subtrees, the largest first.
    #[must_use]
    pub fn roots(&self) -> &[TreeHash] {
        &self.roots
    }

    /// Appends a leaf by its hash.
    pub fn push(&mut self, leaf: TreeHash) {
        let mut hash = leaf;
        // Each trailing one of the size is a subtree as large as what has been joined so far.
        for _ in 0..self.size.trailing_ones() {
            let left = self.roots.pop().expect("a root for each bit");
            hash = TreeHash::of_node(&left, &hash);
        }
        self.roots.push(hash);
        self.size += 1;
    }

    /// The root of the tree.
    #[must_use]
    pub fn root(&self) -> TreeHash {
        let mut roots = self.roots.iter().rev();
        match roots.next() {
            None => TreeHash::of_nothing(),
            Some(&last) => roots.fold(last, |right, left| TreeHash::of_node(left, &right)),
        }
    }
}

impl fmt::Debug for Frontier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frontier({} leaves, {:?})", self.size, self.root())
    }
}

/// The largest power of two below `leaves`: where RFC 6962 cuts a tree of two leaves or more.
pub(crate) fn split(leaves: u64) -> u64 {
    debug_assert!(leaves > 1, "one leaf is not cut");
    1 << (63 - (leaves - 1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of RFC 6962, section 2.1, word for word.
    fn mth(leaves: &[TreeHash]) -> TreeHash {
        match leaves {
            [] => TreeHash::of_nothing(),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(split(leaves.len() as u64) as usize);
                TreeHash::of_node(&mth(left), &mth(right))
            }
        }
    }

    fn leaves(count: u64) -> Vec<TreeHash> {
        (0..count).map(|at| TreeHash::of_leaf(&at.to_be_bytes())).collect()
    }

    #[test]
    fn the_known_vectors() {
        // From RFC 6962 and the test data of Certificate Transparency implementations.
        let hex = |hash: TreeHash| data_encoding::HEXLOWER.encode(hash.as_bytes());
        assert_eq!(
            hex(TreeHash::of_nothing()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            hex(TreeHash::of_leaf(b"")),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        );
        let mut frontier = Frontier::new();
        for leaf in [&[][..], &[0x00], &[0x10], &[0x20, 0x21], &[0x30, 0x31], &[0x40, 0x41, 0x42, 0x43]] {
            frontier.push(TreeHash::of_leaf(leaf));
        }
        assert_eq!(hex(frontier.root()), "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef");
    }

    #[test]
    fn the_frontier_has_the_root_of_the_definition() {
        let all = leaves(130);
        let mut frontier = Frontier::new();
        for size in 0..=130 {
            assert_eq!(frontier.root(), mth(&all[..size]), "{size}");
            let again = Frontier::from_parts(size as u64, frontier.roots().to_vec());
            assert_eq!(again.as_ref(), Some(&frontier));
            assert_eq!(Frontier::from_parts(size as u64 * 2 + 1, frontier.roots().to_vec()), None);
            if let Some(leaf) = all.get(size) {
                frontier.push(*leaf);
            }
        }
    }

    #[test]
    fn a_hash_has_one_spelling() {
        let hash = TreeHash::of_leaf(b"x");
        assert_eq!(TreeHash::from_base64(&hash.to_string()), Some(hash));
        let text = hash.to_string();
        // 32 bytes leave two bits of the last digit, which must be zero.
        let mut sly = text.clone().into_bytes();
        sly[42] += 1;
        let sly = String::from_utf8(sly).unwrap();
        for bad in ["", &text[..43], &format!("{text}="), &format!("{text}\n"), &format!(" {text}"), &sly] {
            assert_eq!(TreeHash::from_base64(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_first() {
        let (leaf, root) = (TreeHash::of_leaf(b""), TreeHash::of_nothing());
        assert_eq!(
            verify_inclusion(&leaf, 5, &[], 5, &root),
            Err(ProofError::OutOfRange { index: 5, size: 5 })
        );
        assert_eq!(verify_inclusion(&leaf, u64::MAX - 1, &[], u64::MAX, &root), Err(ProofError::WrongLength));
        assert_eq!(
            verify_consistency((6, &root), (5, &root), &[]),
            Err(ProofError::OutOfRange { index: 6, size: 5 })
        );
        assert_eq!(verify_consistency((0, &leaf), (5, &root), &[]), Err(ProofError::WrongRoot));
        assert_eq!(verify_consistency((0, &root), (5, &leaf), &[]), Ok(()));
        assert_eq!(verify_consistency((5, &root), (5, &root), &[leaf]), Err(ProofError::WrongLength));
        assert_eq!(verify_consistency((3, &root), (5, &leaf), &[]), Err(ProofError::WrongLength));
    }
}
