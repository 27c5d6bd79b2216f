//! The BLAKE3 tree of an object at 64 KiB groups: cut, hash, prove, verify ranges.
//!
//! An object's name is the root of a binary tree whose leaves are its groups of [`GROUP`] bytes, the last one shorter. A
//! node is the two hashes below it. The nodes of an object, in post order and 64 bytes each, are its *outboard*: post
//! order, because a node is finished as soon as its last byte is, so an object that streams in can have its outboard
//! stream out beside it in constant memory. What is proven is never more than what was asked: the way from the root to
//! one group of a gibibyte is fourteen nodes.
//!
//! Every check here begins at the name and goes down, so it does not matter who wrote the nodes or the bytes. Nothing here
//! reads: [`Shape::spans`] says which pieces of the outboard a check needs, and the caller brings them. Checks keep no
//! state between calls, so whoever continues a stream needs to know no more than where it is.

use std::ops::Range;

use blake3::{
    Hasher,
    hazmat::{self, HasherExt as _, Mode},
};
use bytes::{BufMut as _, Bytes, BytesMut};
use ron_core::ContentId;

use crate::planted::{Bug, is_planted};

/// Bytes of a group: the smallest piece that can be proven. It is part of every outboard and every proof, so it is no
/// setting. At 64 KiB the outboard is a thousandth of the object, and hashing runs at full speed.
pub const GROUP: u64 = 64 * 1024;

/// Bytes of a node: the hashes of its two halves.
pub const NODE: u64 = 64;

/// Pieces of an outboard that are closer than this are read as one: a page is read for one byte of it anyway.
const SPAN_GAP: u64 = 4096;

/// The hash of a group or of a part of the tree.
pub type Hash = [u8; 32];

/// What does not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The bytes of a group are not those that the name stands for.
    #[error("the group at byte {offset} is not what the name stands for")]
    Group {
        /// Where in the object it begins.
        offset: u64,
    },
    /// A node of the tree is not the one that the name stands for.
    #[error("the tree above byte {offset} is not what the name stands for")]
    Node {
        /// Where in the object the part below the node begins.
        offset: u64,
    },
    /// A needed node was not among those given.
    #[error("the tree above byte {offset} is missing")]
    Missing {
        /// Where in the object the part below the node begins.
        offset: u64,
    },
    /// A proof is for an object that is larger than its reader takes.
    #[error("the object has {size} bytes, and {max} is the limit")]
    TooLarge {
        /// What the proof says.
        size: u64,
        /// What the reader takes.
        max: u64,
    },
    /// The ranges asked for begin behind the end that the proof says the object has.
    #[error("the ranges begin behind the end of the object, which is {size} bytes")]
    Outside {
        /// What the proof says.
        size: u64,
    },
    /// A proof ended before everything was proven.
    #[error("the proof ends before byte {offset} is proven")]
    Truncated {
        /// The first byte asked for that it does not prove.
        offset: u64,
    },
    /// A proof goes on after everything was proven.
    #[error("the proof goes on after its end")]
    Trailing,
}

impl TreeError {
    /// Where in the object it is; its beginning if it is nowhere in particular.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match self {
            TreeError::Group { offset }
            | TreeError::Node { offset }
            | TreeError::Missing { offset }
            | TreeError::Truncated { offset } => *offset,
            TreeError::TooLarge { .. } | TreeError::Outside { .. } | TreeError::Trailing => 0,
        }
    }
}

/// The size of an object, and with it the form of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    size: u64,
}

impl Shape {
    /// The form of an object of `size` bytes.
    #[must_use]
    pub const fn of(size: u64) -> Self {
        Shape { size }
    }

    /// Bytes of the object.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.size
    }

    /// Groups of the object; the empty object has one, which is empty.
    #[must_use]
    pub const fn groups(self) -> u64 {
        if self.size == 0 { 1 } else { self.size.div_ceil(GROUP) }
    }

    /// Bytes of its outboard; none for an object of one group.
    #[must_use]
    pub const fn outboard_len(self) -> u64 {
        (self.groups() - 1) * NODE
    }

    /// Where in the object a group lies.
    #[must_use]
    pub fn group(self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(GROUP).min(self.size);
        start..start.saturating_add(GROUP).min(self.size)
    }

    /// The groups that hold `bytes`, cut at the end of the object.
    #[must_use]
    pub fn covering(self, bytes: Range<u64>) -> Range<u64> {
        let end = bytes.end.min(self.size);
        if bytes.start >= end {
            // The empty object is proven by its one empty group.
            return if self.size == 0 && bytes.start == 0 { 0..1 } else { 0..0 };
        }
        bytes.start / GROUP..end.div_ceil(GROUP)
    }

    /// The pieces of the outboard that a check of `groups` needs, as ranges of bytes, in order and apart.
    #[must_use]
    pub fn spans(self, groups: Range<u64>) -> Vec<Range<u64>> {
        let mut nodes = Vec::new();
        let mut below = vec![Branch::root(self)];
        while let Some(branch) = below.pop() {
            if branch.is_group() || !branch.touches(&groups) {
                continue;
            }
            nodes.push(branch.place());
            let (left, right) = branch.halves();
            below.extend([left, right]);
        }
        nodes.sort_unstable();
        let mut spans: Vec<Range<u64>> = Vec::new();
        for node in nodes {
            let at = node * NODE;
            match spans.last_mut() {
                Some(last) if at <= last.end.saturating_add(SPAN_GAP) => last.end = at + NODE,
                _ => spans.push(at..at + NODE),
            }
        }
        spans
    }
}

/// A part of the tree: the groups below it, and whether it is all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Branch {
    pub(super) first: u64,
    pub(super) end: u64,
    is_root: bool,
}

impl Branch {
    pub(super) fn root(shape: Shape) -> Self {
        Branch { first: 0, end: shape.groups(), is_root: true }
    }

    pub(super) fn is_group(self) -> bool {
        self.end - self.first == 1
    }

    pub(super) fn touches(self, groups: &Range<u64>) -> bool {
        self.first < groups.end && groups.start < self.end
    }

    /// The left half is the largest power of two that leaves something for the right.
    pub(super) fn halves(self) -> (Branch, Branch) {
        let left = (self.end - self.first).div_ceil(2).next_power_of_two();
        let middle = self.first + left;
        (
            Branch { first: self.first, end: middle, is_root: false },
            Branch { first: middle, end: self.end, is_root: false },
        )
    }

    /// Which node of the outboard it is. The groups before it form one whole tree for each bit of their number, each with
    /// one node fewer than groups; its own nodes follow, itself last.
    pub(super) fn place(self) -> u64 {
        let before = self.first - u64::from(self.first.count_ones());
        before + (self.end - self.first) - 2
    }

    pub(super) fn offset(self) -> u64 {
        self.first * GROUP
    }

    /// The two hashes in `node`, if it is the one that `expected` stands for.
    pub(super) fn open(self, node: &[u8; 64], expected: &Hash) -> Result<(Hash, Hash), TreeError> {
        let (left, right) = halves_of(node);
        if merge(&left, &right, self.is_root) == *expected {
            Ok((left, right))
        } else {
            Err(TreeError::Node { offset: self.offset() })
        }
    }
}

fn halves_of(node: &[u8; 64]) -> (Hash, Hash) {
    let (mut left, mut right) = ([0; 32], [0; 32]);
    left.copy_from_slice(&node[..32]);
    right.copy_from_slice(&node[32..]);
    (left, right)
}

fn merge(left: &Hash, right: &Hash, is_root: bool) -> Hash {
    if is_root {
        *hazmat::merge_subtrees_root(left, right, Mode::Hash).as_bytes()
    } else {
        hazmat::merge_subtrees_non_root(left, right, Mode::Hash)
    }
}

fn group_hasher(index: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(index * GROUP);
    hasher
}

/// The hash of one group. An object of a single group is named by it, which makes it another hash.
#[must_use]
pub fn group_hash(index: u64, is_only: bool, bytes: &[u8]) -> Hash {
    debug_assert!(bytes.len() as u64 <= GROUP && (is_only || !bytes.is_empty()));
    if is_only {
        *blake3::hash(bytes).as_bytes()
    } else {
        group_hasher(index).update(bytes).finalize_non_root()
    }
}

/// Names an object while its bytes pass, and makes its outboard beside it.
///
/// Memory is constant: a hash for each level of the tree, and the nodes that nobody took yet.
#[derive(Debug)]
pub struct TreeHasher {
    group: Hasher,
    filled: u64,
    stack: Vec<Hash>,
    done: u64,
    nodes: BytesMut,
}

impl Default for TreeHasher {
    fn default() -> Self {
        TreeHasher { group: Hasher::new(), filled: 0, stack: Vec::new(), done: 0, nodes: BytesMut::new() }
    }
}

impl TreeHasher {
    /// Nothing hashed yet.
    #[must_use]
    pub fn new() -> Self {
        TreeHasher::default()
    }

    /// Takes the next bytes, in pieces of any size.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // Only now it is known that the full group is not the last, which would be hashed differently if it were also
            // the first.
            if self.filled == GROUP {
                self.close_group();
            }
            let room = usize::try_from(GROUP - self.filled).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.group.update(now);
            self.filled += now.len() as u64;
            bytes = rest;
        }
    }

    fn close_group(&mut self) {
        let hash = self.group.finalize_non_root();
        self.done += 1;
        self.group = group_hasher(self.done);
        self.filled = 0;
        self.stack.push(hash);
        // More follows, so none of these is the root.
        for _ in 0..self.done.trailing_zeros() {
            self.close_node(false);
        }
    }

    fn close_node(&mut self, is_root: bool) {
        let right = self.stack.pop().expect("a whole tree has two halves");
        let left = self.stack.pop().expect("a whole tree has two halves");
        self.nodes.put_slice(&left);
        self.nodes.put_slice(&right);
        self.stack.push(merge(&left, &right, is_root));
    }

    /// Bytes so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.done * GROUP + self.filled
    }

    /// The nodes finished since the last call: the next piece of the outboard.
    pub fn take_nodes(&mut self) -> Bytes {
        self.nodes.split().freeze()
    }

    /// The name of everything that passed, its form, and the rest of the outboard.
    #[must_use]
    pub fn finish(mut self) -> Tree {
        let shape = Shape::of(self.size());
        if self.done == 0 {
            let id = ContentId::from_bytes(*self.group.finalize().as_bytes());
            return Tree { id, shape, nodes: Bytes::new() };
        }
        self.stack.push(self.group.finalize_non_root());
        while self.stack.len() > 1 {
            self.close_node(self.stack.len() == 2);
        }
        let id = ContentId::from_bytes(self.stack[0]);
        Tree { id, shape, nodes: self.nodes.freeze() }
    }
}

/// What a [`TreeHasher`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The name.
    pub id: ContentId,
    /// The size.
    pub shape: Shape,
    /// The outboard from where [`TreeHasher::take_nodes`] left it; all of it if that was never called.
    pub nodes: Bytes,
}

impl Tree {
    /// Names `bytes` and makes their outboard.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = TreeHasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// Nodes of an outboard, as far as they are at hand.
pub trait Nodes {
    /// The node at this place of the outboard.
    fn node(&self, place: u64) -> Option<&[u8; 64]>;
}

/// A whole outboard, or its beginning.
impl Nodes for [u8] {
    fn node(&self, place: u64) -> Option<&[u8; 64]> {
        let at = usize::try_from(place.checked_mul(NODE)?).ok()?;
        self.get(at..)?.first_chunk()
    }
}

/// Pieces of an outboard, each with where it begins, in order: what was read for [`Shape::spans`].
impl Nodes for [(u64, Bytes)] {
    fn node(&self, place: u64) -> Option<&[u8; 64]> {
        let at = place.checked_mul(NODE)?;
        let piece = self.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, bytes) = self.get(piece)?;
        bytes.get(usize::try_from(at - start).ok()?..)?.first_chunk()
    }
}

/// The hashes of `groups`, proven from the name downwards.
///
/// # Errors
/// [`TreeError::Node`] or [`TreeError::Missing`] if the outboard is not the one of this object.
pub fn group_hashes<N: Nodes + ?Sized>(
    id: &ContentId,
    shape: Shape,
    groups: Range<u64>,
    nodes: &N,
) -> Result<Vec<Hash>, TreeError> {
    let mut hashes =
        Vec::with_capacity(usize::try_from(groups.end.saturating_sub(groups.start)).unwrap_or(0));
    let mut below = vec![(Branch::root(shape), *id.as_bytes())];
    while let Some((branch, expected)) = below.pop() {
        if !branch.touches(&groups) {
            continue;
        }
        if branch.is_group() {
            hashes.push(expected);
            continue;
        }
        let node = nodes.node(branch.place()).ok_or(TreeError::Missing { offset: branch.offset() })?;
        let (left, right) = branch.open(node, &expected)?;
        let halves = branch.halves();
        below.extend([(halves.1, right), (halves.0, left)]);
    }
    Ok(hashes)
}

/// Checks that `bytes` are the groups from `first` on, by the `hashes` that [`group_hashes`] proved for them.
///
/// # Errors
/// [`TreeError::Group`] with the first that is not, also when bytes are missing or too many.
pub fn check_groups(shape: Shape, first: u64, hashes: &[Hash], bytes: &[u8]) -> Result<(), TreeError> {
    let mut rest = bytes;
    let mut index = first;
    for hash in hashes {
        let at = shape.group(index);
        let wrong = TreeError::Group { offset: at.start };
        let len = usize::try_from(at.end - at.start).map_err(|_| wrong)?;
        let (group, after) = rest.split_at_checked(len).ok_or(wrong)?;
        if group_hash(index, shape.groups() == 1, group) != *hash && !is_planted(Bug::NoVerify) {
            return Err(wrong);
        }
        (rest, index) = (after, index + 1);
    }
    if rest.is_empty() { Ok(()) } else { Err(TreeError::Group { offset: shape.group(index).start }) }
}

#[cfg(test)]
pub(in crate::logic) mod tests {
    use bao_tree::{BlockSize, io::outboard::PostOrderMemOutboard};
    use proptest::prelude::*;

    use super::*;

    /// Sizes where the form of the tree changes.
    pub(in crate::logic) const SIZES: [usize; 16] = {
        const G: usize = GROUP as usize;
        [
            0,
            1,
            1024,
            1025,
            G - 1,
            G,
            G + 1,
            2 * G - 1,
            2 * G,
            2 * G + 1,
            3 * G,
            4 * G,
            4 * G + 9,
            5 * G,
            7 * G + 3,
            16 * G,
        ]
    };

    pub(in crate::logic) fn content(size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        blake3::Hasher::new().update(&size.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Names and outboards are those that `blake3` and `bao-tree` compute.
    #[test]
    fn names_and_outboards_are_the_common_ones() {
        for size in SIZES {
            let content = content(size);
            let tree = Tree::of(&content);
            assert_eq!(tree.id, ContentId::of(&content), "{size}");
            let theirs = PostOrderMemOutboard::create(&content, BlockSize::from_chunk_log(6));
            assert_eq!(tree.id.as_bytes(), theirs.root.as_bytes(), "{size}");
            assert_eq!(tree.nodes, theirs.data, "{size}");
            assert_eq!(tree.nodes.len() as u64, tree.shape.outboard_len(), "{size}");
        }
    }

    /// Whatever the pieces in which bytes come and nodes are taken.
    #[test]
    fn the_outboard_streams_out_beside_the_bytes() {
        let content = content(9 * 65536 + 77);
        let whole = Tree::of(&content);
        for piece in [1000, 1024, 65535, 65536, 65537, 1 << 20] {
            let (mut hasher, mut nodes) = (TreeHasher::new(), BytesMut::new());
            for piece in content.chunks(piece) {
                hasher.update(piece);
                nodes.extend_from_slice(&hasher.take_nodes());
            }
            assert_eq!(hasher.size(), content.len() as u64);
            let tree = hasher.finish();
            nodes.extend_from_slice(&tree.nodes);
            assert_eq!((tree.id, &nodes[..]), (whole.id, &whole.nodes[..]), "{piece}");
        }
    }

    fn pieces(shape: Shape, groups: Range<u64>, outboard: &[u8]) -> Vec<(u64, Bytes)> {
        let piece = |span: Range<u64>| {
            let bytes = &outboard[span.start as usize..span.end as usize];
            (span.start, Bytes::copy_from_slice(bytes))
        };
        shape.spans(groups).into_iter().map(piece).collect()
    }

    /// Every range of groups, with the whole outboard and with only the pieces that were asked for.
    #[test]
    fn every_range_is_proven_by_its_spans() {
        for size in SIZES {
            let content = content(size);
            let tree = Tree::of(&content);
            let groups = tree.shape.groups();
            for (first, end) in
                (0..groups).flat_map(|first| (first + 1..=groups).map(move |end| (first, end)))
            {
                let read = pieces(tree.shape, first..end, &tree.nodes);
                let hashes = group_hashes(&tree.id, tree.shape, first..end, &read[..]).unwrap();
                assert_eq!(hashes, group_hashes(&tree.id, tree.shape, first..end, &tree.nodes[..]).unwrap());
                assert_eq!(hashes.len() as u64, end - first);
                let at = tree.shape.group(first).start as usize..tree.shape.group(end - 1).end as usize;
                check_groups(tree.shape, first, &hashes, &content[at.clone()]).unwrap();
                if !at.is_empty() {
                    let short = check_groups(tree.shape, first, &hashes, &content[at.start..at.end - 1]);
                    assert!(matches!(short, Err(TreeError::Group { .. })), "{short:?}");
                }
            }
        }
    }

    /// The way to one group of a gibibyte is fourteen nodes, and they lie in few places.
    #[test]
    fn a_range_needs_little_of_a_large_outboard() {
        let shape = Shape::of(1 << 30);
        for group in [0, 1, 8191, 8192, 16383] {
            let spans = shape.spans(group..group + 1);
            let bytes: u64 = spans.iter().map(|span| span.end - span.start).sum();
            assert!(spans.len() <= 8 && bytes <= 16 * 1024, "{group}: {} spans, {bytes} bytes", spans.len());
        }
        let job = shape.spans(160..176);
        assert!(job.len() <= 9, "{job:?}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let content = content(4 * 65536);
        let tree = Tree::of(&content);
        let none = group_hashes(&tree.id, tree.shape, 0..1, &[][..] as &[u8]);
        assert_eq!(none, Err(TreeError::Missing { offset: 0 }));
        let part = group_hashes(&tree.id, tree.shape, 3..4, &[(128, tree.nodes.slice(128..))][..]);
        assert_eq!(part, Err(TreeError::Missing { offset: 2 * GROUP }));
        // Fewer bytes of the same tree form are another object.
        let lie = group_hashes(&tree.id, Shape::of(3 * GROUP), 0..1, &tree.nodes[..]);
        assert!(lie.is_err(), "{lie:?}");
    }

    #[test]
    fn sizes_at_the_end_of_numbers_have_a_form() {
        let shape = Shape::of(u64::MAX);
        assert_eq!(shape.groups(), 1 << 48);
        assert_eq!(shape.group(shape.groups() - 1).end, u64::MAX);
        assert_eq!(shape.group(u64::MAX), u64::MAX..u64::MAX);
        assert_eq!(shape.covering(u64::MAX - 1..u64::MAX), shape.groups() - 1..shape.groups());
        assert_eq!(shape.spans(0..1).len(), 48 - 6);
        assert!(Shape::of(5).covering(5..9).is_empty());
        assert_eq!(Shape::of(0).covering(0..1), 0..1);
    }

    proptest! {
        /// One bit anywhere in the outboard or in the bytes: whatever needs it is refused.
        #[test]
        fn a_flipped_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8u8, groups in 2..9u64) {
            let content = content((groups * GROUP - 5) as usize);
            let tree = Tree::of(&content);
            let mut nodes = tree.nodes.to_vec();
            nodes[at.index(tree.nodes.len())] ^= 1 << bit;
            prop_assert!(group_hashes(&tree.id, tree.shape, 0..groups, &nodes[..]).is_err());

            let mut bytes = content.clone();
            let place = at.index(bytes.len());
            bytes[place] ^= 1 << bit;
            let hashes = group_hashes(&tree.id, tree.shape, 0..groups, &tree.nodes[..]).unwrap();
            let offset = place as u64 / GROUP * GROUP;
            prop_assert_eq!(check_groups(tree.shape, 0, &hashes, &bytes), Err(TreeError::Group { offset }));
        }
    }
}
