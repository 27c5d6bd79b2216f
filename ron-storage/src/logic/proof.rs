//! Proofs: some groups of an object together with what shows that they belong to its name.
//!
//! A proof is the object's size and then the part of its tree above the wanted groups in pre-order, each group where its
//! leaf would be: what `bao` writes, at 64 KiB groups. A reader checks it from the name downwards as it arrives, so a lie
//! is noticed at the node or group that tells it, and nothing behind it is looked at.

use std::{iter, ops::Range};

use bytes::{BufMut as _, Bytes, BytesMut};
use ron_core::ContentId;

use super::tree::{Branch, GROUP, Hash, NODE, Nodes, Shape, TreeError, group_hash};
use crate::planted::{Bug, is_planted};

/// What a proof is called over HTTP.
pub const BAO: &str = "application/vnd.ron.bao";

/// Bytes before a proof: the object's size, little-endian.
pub const HEADER: u64 = 8;

/// Ranges of groups, in order and apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupSet {
    ranges: Vec<Range<u64>>,
}

impl GroupSet {
    /// The groups that hold `bytes`, ranges of an object of this form in any order.
    #[must_use]
    pub fn covering(shape: Shape, bytes: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = bytes
            .into_iter()
            .map(|bytes| shape.covering(bytes))
            .filter(|groups| !groups.is_empty())
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        GroupSet { ranges: joined }
    }

    /// All groups of an object of this form.
    #[must_use]
    pub fn all(shape: Shape) -> Self {
        GroupSet { ranges: iter::once(0..shape.groups()).collect() }
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The first member in `groups`.
    fn first_in(&self, groups: Range<u64>) -> Option<u64> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.end <= groups.start))?;
        let first = range.start.max(groups.start);
        (first < groups.end).then_some(first)
    }

    /// Bytes of the proof of these groups, header included.
    #[must_use]
    pub fn proof_len(&self, shape: Shape) -> u64 {
        let data: u64 = self
            .ranges
            .iter()
            .map(|range| shape.group(range.end - 1).end - shape.group(range.start).start)
            .sum();
        HEADER + data + self.nodes_above(Branch::root(shape)) * NODE
    }

    fn nodes_above(&self, branch: Branch) -> u64 {
        let Some(first) = self.first_in(branch.first..branch.end) else { return 0 };
        if branch.is_group() {
            return 0;
        }
        // Below a branch that is taken whole every node is needed; that keeps this to a few steps for each range.
        let within = self.ranges.partition_point(|range| range.end <= first);
        if self.ranges[within].start <= branch.first && branch.end <= self.ranges[within].end {
            return branch.end - branch.first - 1;
        }
        let (left, right) = branch.halves();
        1 + self.nodes_above(left) + self.nodes_above(right)
    }
}

/// The beginning of every proof: the size.
#[must_use]
pub fn proof_header(shape: Shape) -> [u8; 8] {
    shape.size().to_le_bytes()
}

/// One group of a proof: what comes before it, and what it is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofStep {
    /// Which group.
    pub group: u64,
    /// The nodes that the proof has directly before its bytes.
    pub nodes: Bytes,
    /// Its hash.
    pub hash: Hash,
}

/// The steps of a proof of `wanted` that lie in `groups`, checked from the name downwards.
///
/// A proof is the header and then for each step its nodes and its group. Each piece of a proof can be made without the
/// pieces before it, by whoever has the next one to make.
///
/// # Errors
/// [`TreeError::Node`] or [`TreeError::Missing`] if the outboard is not the one of this object.
pub fn proof_steps<N: Nodes + ?Sized>(
    id: &ContentId,
    shape: Shape,
    wanted: &GroupSet,
    groups: Range<u64>,
    nodes: &N,
) -> Result<Vec<ProofStep>, TreeError> {
    let (mut steps, mut before) = (Vec::new(), BytesMut::new());
    let mut below = vec![(Branch::root(shape), *id.as_bytes())];
    while let Some((branch, expected)) = below.pop() {
        let part = branch.first.max(groups.start)..branch.end.min(groups.end);
        if part.is_empty() || wanted.first_in(part).is_none() {
            continue;
        }
        if branch.is_group() {
            steps.push(ProofStep { group: branch.first, nodes: before.split().freeze(), hash: expected });
            continue;
        }
        let node = nodes.node(branch.place()).ok_or(TreeError::Missing { offset: branch.offset() })?;
        let (left, right) = branch.open(node, &expected)?;
        // A node comes before the first group that needs it; an earlier piece has those of earlier groups.
        if wanted.first_in(branch.first..branch.end).is_some_and(|first| first >= groups.start) {
            before.put_slice(node);
        }
        let halves = branch.halves();
        below.extend([(halves.1, right), (halves.0, left)]);
    }
    Ok(steps)
}

/// The piece of a proof of `wanted` that lies in `groups`, whose bytes are `bytes`. Nothing unproven is in it.
///
/// # Errors
/// [`TreeError::Group`], [`TreeError::Node`] or [`TreeError::Missing`] if bytes or outboard are not those of this object.
pub fn proof_piece<N: Nodes + ?Sized>(
    id: &ContentId,
    shape: Shape,
    wanted: &GroupSet,
    groups: Range<u64>,
    nodes: &N,
    bytes: &[u8],
) -> Result<Bytes, TreeError> {
    let first = groups.start;
    let steps = proof_steps(id, shape, wanted, groups, nodes)?;
    for step in &steps {
        let group = group_in(shape, first, step.group, bytes)?;
        if group_hash(step.group, shape.groups() == 1, group) != step.hash {
            return Err(TreeError::Group { offset: shape.group(step.group).start });
        }
    }
    proof_of(shape, first, &steps, bytes)
}

/// The piece of a proof that these steps are, of groups from `first` on whose bytes were checked already.
///
/// # Errors
/// [`TreeError::Group`] if there are not enough bytes.
pub fn proof_of(shape: Shape, first: u64, steps: &[ProofStep], bytes: &[u8]) -> Result<Bytes, TreeError> {
    let room: usize = steps.iter().map(|step| step.nodes.len()).sum();
    let mut piece = BytesMut::with_capacity(bytes.len() + room);
    for step in steps {
        piece.put_slice(&step.nodes);
        piece.put_slice(group_in(shape, first, step.group, bytes)?);
    }
    Ok(piece.freeze())
}

/// The bytes of a group, out of those from the group `first` on.
fn group_in(shape: Shape, first: u64, group: u64, bytes: &[u8]) -> Result<&[u8], TreeError> {
    let (begin, at) = (shape.group(first).start, shape.group(group));
    let wrong = TreeError::Group { offset: at.start };
    let within = |offset: u64| usize::try_from(offset - begin).map_err(|_| wrong);
    bytes.get(within(at.start)?..within(at.end)?).ok_or(wrong)
}

/// A group out of a proof, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenGroup {
    /// Where in the object it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Reads a proof as it arrives and yields nothing that is not proven.
///
/// At most one group is held back. Bytes after a lie are never looked at.
#[derive(Debug)]
pub struct ProofReader {
    id: ContentId,
    asked: Asked,
    size_max: u64,
    state: Reading,
    /// The nodes that were checked, and where in the outboard they belong, for whoever keeps them.
    nodes: Option<Vec<(u64, [u8; 64])>>,
}

/// What a reader expects, known as groups only when the size is.
#[derive(Debug)]
enum Asked {
    All,
    Bytes(Vec<Range<u64>>),
    /// These, and the last group.
    BytesAndLast(Vec<Range<u64>>),
}

#[derive(Debug)]
enum Reading {
    Header,
    Body { shape: Shape, wanted: GroupSet, below: Vec<(Branch, Hash)> },
    Failed(TreeError),
}

impl ProofReader {
    /// For a proof of the whole object `id`, which may have `size_max` bytes.
    #[must_use]
    pub fn whole(id: ContentId, size_max: u64) -> Self {
        ProofReader::new(id, Asked::All, size_max)
    }

    fn new(id: ContentId, asked: Asked, size_max: u64) -> Self {
        ProofReader { id, asked, size_max, state: Reading::Header, nodes: None }
    }

    /// For a proof of these ranges of the object and of its last group, which proves how long it is.
    #[must_use]
    pub fn ranges_and_last(
        id: ContentId,
        bytes: impl IntoIterator<Item = Range<u64>>,
        size_max: u64,
    ) -> Self {
        ProofReader::new(id, Asked::BytesAndLast(bytes.into_iter().collect()), size_max)
    }

    /// Keeps the nodes it checks, for [`take_nodes`](Self::take_nodes).
    #[must_use]
    pub fn with_nodes(mut self) -> Self {
        self.nodes = Some(Vec::new());
        self
    }

    /// The nodes that were checked since the last call, each with its place in the outboard.
    pub fn take_nodes(&mut self) -> Vec<(u64, [u8; 64])> {
        self.nodes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// For a proof of these ranges of the object, cut at its end.
    #[must_use]
    pub fn ranges(id: ContentId, bytes: impl IntoIterator<Item = Range<u64>>, size_max: u64) -> Self {
        ProofReader::new(id, Asked::Bytes(bytes.into_iter().collect()), size_max)
    }

    /// What the proof says the object is. The bytes that were yielded are proven whatever it says; the size itself is
    /// proven when the last group was among them.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        match &self.state {
            Reading::Body { shape, .. } => Some(*shape),
            _ => None,
        }
    }

    /// Whether everything asked for was yielded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.state {
            Reading::Body { wanted, below, .. } => !has_wanted(wanted, below),
            _ => false,
        }
    }

    /// The next group if `arrived` holds enough for one; what it used is taken away from its front. `None` asks for more
    /// bytes, or says that this was the last when [`is_done`](Self::is_done).
    ///
    /// # Errors
    /// The first thing in the proof that is not right; again at every later call.
    pub fn next(&mut self, arrived: &mut BytesMut) -> Result<Option<ProvenGroup>, TreeError> {
        let result = self.step(arrived);
        if let Err(error) = result {
            self.state = Reading::Failed(error);
        }
        result
    }

    fn step(&mut self, arrived: &mut BytesMut) -> Result<Option<ProvenGroup>, TreeError> {
        loop {
            match &mut self.state {
                Reading::Failed(error) => return Err(*error),
                Reading::Header => {
                    let Some(header) = arrived.first_chunk::<8>() else { return Ok(None) };
                    let size = u64::from_le_bytes(*header);
                    let _ = arrived.split_to(8);
                    self.begin(size)?;
                }
                Reading::Body { shape, wanted, below } => {
                    let Some(&(branch, expected)) = below.last() else {
                        return if arrived.is_empty() { Ok(None) } else { Err(TreeError::Trailing) };
                    };
                    if wanted.first_in(branch.first..branch.end).is_none() {
                        below.pop();
                        continue;
                    }
                    if !branch.is_group() {
                        let Some(node) = arrived.first_chunk::<64>() else { return Ok(None) };
                        let (left, right) = branch.open(node, &expected)?;
                        if let Some(nodes) = &mut self.nodes {
                            nodes.push((branch.place(), *node));
                        }
                        let _ = arrived.split_to(64);
                        let halves = branch.halves();
                        below.pop();
                        below.extend([(halves.1, right), (halves.0, left)]);
                        continue;
                    }
                    let at = shape.group(branch.first);
                    let wrong = TreeError::Group { offset: at.start };
                    let len = usize::try_from(at.end - at.start).map_err(|_| wrong)?;
                    if arrived.len() < len {
                        return Ok(None);
                    }
                    let found = group_hash(branch.first, shape.groups() == 1, &arrived[..len]);
                    if found != expected && !is_planted(Bug::NoVerify) {
                        return Err(wrong);
                    }
                    below.pop();
                    return Ok(Some(ProvenGroup { offset: at.start, bytes: arrived.split_to(len).freeze() }));
                }
            }
        }
    }

    fn begin(&mut self, size: u64) -> Result<(), TreeError> {
        if size > self.size_max {
            return Err(TreeError::TooLarge { size, max: self.size_max });
        }
        let shape = Shape::of(size);
        let wanted = match &self.asked {
            Asked::All => GroupSet::all(shape),
            Asked::Bytes(bytes) => GroupSet::covering(shape, bytes.iter().cloned()),
            Asked::BytesAndLast(bytes) => {
                let last = size.saturating_sub(1)..size.max(1);
                GroupSet::covering(shape, bytes.iter().cloned().chain(iter::once(last)))
            }
        };
        if wanted.is_empty() {
            return Err(TreeError::Outside { size });
        }
        let below = vec![(Branch::root(shape), *self.id.as_bytes())];
        self.state = Reading::Body { shape, wanted, below };
        Ok(())
    }

    /// Says whether the proof may end here.
    ///
    /// # Errors
    /// [`TreeError::Truncated`] if something that was asked for is still unproven, [`TreeError::Trailing`] if `arrived`
    /// still holds something.
    pub fn finish(&self, arrived: &BytesMut) -> Result<(), TreeError> {
        match &self.state {
            Reading::Failed(error) => Err(*error),
            Reading::Header => Err(TreeError::Truncated { offset: 0 }),
            Reading::Body { wanted, below, .. } => {
                let next =
                    below.iter().rev().find_map(|(branch, _)| wanted.first_in(branch.first..branch.end));
                match next {
                    Some(group) => Err(TreeError::Truncated { offset: group * GROUP }),
                    None if arrived.is_empty() => Ok(()),
                    None => Err(TreeError::Trailing),
                }
            }
        }
    }
}

fn has_wanted(wanted: &GroupSet, below: &[(Branch, Hash)]) -> bool {
    below.iter().any(|(branch, _)| wanted.first_in(branch.first..branch.end).is_some())
}

#[cfg(test)]
mod tests {
    use bao_tree::{
        BlockSize, ByteRanges,
        io::{
            outboard::PostOrderMemOutboard, round_up_to_chunks, round_up_to_chunks_groups,
            sync::encode_ranges_validated,
        },
    };
    use proptest::prelude::*;

    use super::{
        super::tree::{
            Tree,
            tests::{SIZES, content},
        },
        *,
    };

    /// A proof made in pieces of `job` groups.
    fn proof_by(content: &[u8], wanted: &GroupSet, job: u64) -> Vec<u8> {
        let tree = Tree::of(content);
        let mut proof = proof_header(tree.shape).to_vec();
        let mut next = 0;
        while next < tree.shape.groups() {
            let end = tree.shape.groups().min(next.saturating_add(job));
            let at = tree.shape.group(next).start as usize..tree.shape.group(end - 1).end as usize;
            let (bytes, nodes) = (&content[at], &tree.nodes[..]);
            proof.extend_from_slice(
                &proof_piece(&tree.id, tree.shape, wanted, next..end, nodes, bytes).unwrap(),
            );
            next = end;
        }
        proof
    }

    fn proof(content: &[u8], wanted: &GroupSet) -> Vec<u8> {
        let whole = proof_by(content, wanted, u64::MAX / 2);
        for job in [1, 3, 16] {
            assert!(whole == proof_by(content, wanted, job));
        }
        whole
    }

    /// Reads a proof in pieces of one size.
    fn read(
        mut reader: ProofReader,
        proof: &[u8],
        piece: usize,
    ) -> (Vec<ProvenGroup>, Result<(), TreeError>) {
        let (mut arrived, mut groups) = (BytesMut::new(), Vec::new());
        for piece in proof.chunks(piece) {
            arrived.extend_from_slice(piece);
            loop {
                match reader.next(&mut arrived) {
                    Ok(Some(group)) => groups.push(group),
                    Ok(None) => break,
                    Err(error) => return (groups, Err(error)),
                }
            }
            assert!(arrived.len() < piece.len() + GROUP as usize);
        }
        let end = reader.finish(&arrived);
        assert!(end.is_err() || reader.is_done());
        (groups, end)
    }

    fn check(size: usize, asked: &[Range<u64>]) {
        let content = content(size);
        let shape = Shape::of(size as u64);
        let wanted = GroupSet::covering(shape, asked.iter().cloned());
        let ours = proof(&content, &wanted);
        assert_eq!(ours.len() as u64, wanted.proof_len(shape), "{size} {asked:?}");

        let block = BlockSize::from_chunk_log(6);
        let outboard = PostOrderMemOutboard::create(&content, block);
        let bytes =
            asked.iter().fold(ByteRanges::empty(), |all, range| all | ByteRanges::from(range.clone()));
        let chunks = round_up_to_chunks_groups(round_up_to_chunks(&bytes), block);
        let mut theirs = Vec::new();
        encode_ranges_validated(&content[..], &outboard, &chunks, &mut theirs).unwrap();
        assert!(ours[8..] == theirs, "{size} {asked:?}");

        for piece in [999, 65536, 1 << 20] {
            let reader = ProofReader::ranges(ContentId::of(&content), asked.iter().cloned(), u64::MAX);
            let (groups, end) = read(reader, &ours, piece);
            assert_eq!(end, Ok(()), "{size} {asked:?}");
            let expected: Vec<u64> =
                wanted.ranges().iter().cloned().flatten().map(|group| group * GROUP).collect();
            assert_eq!(groups.iter().map(|group| group.offset).collect::<Vec<_>>(), expected);
            for group in groups {
                let at = group.offset as usize;
                assert!(content[at..at + group.bytes.len()] == group.bytes);
            }
        }
    }

    #[test]
    fn proofs_are_what_bao_writes_and_read_back() {
        for size in SIZES.into_iter().filter(|size| *size > 0) {
            let size_u64 = size as u64;
            check(size, &[0..size_u64]);
            check(size, &[0..1]);
            check(size, &[size_u64 - 1..size_u64]);
            check(size, &[size_u64 / 2..size_u64 / 2 + 1, 0..1]);
        }
        check(16 * 65536, &[65536..65537, 3 * 65536..5 * 65536, 15 * 65536..16 * 65536]);
        let empty = proof(&[], &GroupSet::all(Shape::of(0)));
        assert_eq!(empty, [0; 8]);
        let (groups, end) = read(ProofReader::whole(ContentId::of(b""), 0), &empty, 3);
        assert_eq!((groups.len(), groups[0].bytes.len(), end), (1, 0, Ok(())));
    }

    #[test]
    fn nothing_wrong_gets_into_a_proof() {
        let mut content = content(4 * 65536);
        let tree = Tree::of(&content);
        let all = GroupSet::all(tree.shape);
        let piece = |content: &[u8]| proof_piece(&tree.id, tree.shape, &all, 2..4, &tree.nodes[..], content);
        assert!(piece(&content[2 * 65536..]).is_ok());
        assert_eq!(piece(&content[2 * 65536 + 1..]), Err(TreeError::Group { offset: 2 * GROUP }));
        content[3 * 65536 + 7] ^= 1;
        assert_eq!(piece(&content[2 * 65536..]), Err(TreeError::Group { offset: 3 * GROUP }));
    }

    #[test]
    fn the_last_group_proves_the_size() {
        let content = content(5 * 65536 + 1);
        let (id, shape) = (ContentId::of(&content), Shape::of(content.len() as u64));
        let wanted = GroupSet::covering(shape, [0..1, shape.size() - 1..shape.size()]);
        let proof = proof(&content, &wanted);
        let reader = ProofReader::ranges_and_last(id, iter::once(0..1), u64::MAX);
        let (groups, end) = read(reader, &proof, 4096);
        assert_eq!((groups.len(), end), (2, Ok(())));
    }

    #[test]
    fn limits_and_ends_are_kept() {
        let content = content(3 * 65536);
        let (id, shape) = (ContentId::of(&content), Shape::of(content.len() as u64));
        let whole = proof(&content, &GroupSet::all(shape));
        let (_, end) = read(ProofReader::whole(id, shape.size() - 1), &whole, 4096);
        assert_eq!(end, Err(TreeError::TooLarge { size: shape.size(), max: shape.size() - 1 }));
        let behind = iter::once(shape.size()..u64::MAX);
        let (_, end) = read(ProofReader::ranges(id, behind, u64::MAX), &whole, 4096);
        assert_eq!(end, Err(TreeError::Outside { size: shape.size() }));
        let (groups, end) = read(ProofReader::whole(id, u64::MAX), &whole[..whole.len() - 1], 4096);
        assert_eq!((groups.len(), end), (2, Err(TreeError::Truncated { offset: 2 * GROUP })));
        let (_, end) = read(ProofReader::whole(id, u64::MAX), &whole[..7], 4096);
        assert_eq!(end, Err(TreeError::Truncated { offset: 0 }));
        let more = [&whole[..], b"x"].concat();
        let (_, end) = read(ProofReader::whole(id, u64::MAX), &more, 4096);
        assert_eq!(end, Err(TreeError::Trailing));
    }

    proptest! {
        /// A liar is caught at the first wrong group: what was yielded before is right, and nothing after it comes.
        #[test]
        fn a_flipped_bit_ends_the_proof_there(at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let content = content(6 * 65536 + 100);
            let id = ContentId::of(&content);
            let mut proof = proof(&content, &GroupSet::all(Shape::of(content.len() as u64)));
            let place = at.index(proof.len());
            proof[place] ^= 1 << bit;
            let mut reader = ProofReader::whole(id, u64::MAX);
            let mut arrived = BytesMut::from(&proof[..]);
            let mut yielded = 0;
            let error = loop {
                match reader.next(&mut arrived) {
                    Ok(Some(group)) => {
                        prop_assert!(content[yielded..yielded + group.bytes.len()] == group.bytes);
                        yielded += group.bytes.len();
                    }
                    Ok(None) => break reader.finish(&arrived).unwrap_err(),
                    Err(error) => break error,
                }
            };
            // The length comes first and is proven by the last group: with one that makes the same tree, all before that is right.
            prop_assert!(yielded <= place || place < 8);
            prop_assert!(yielded < content.len());
            if !matches!(error, TreeError::Truncated { .. }) {
                prop_assert_eq!(reader.next(&mut arrived), Err(error));
            }
        }

        #[test]
        fn sets_are_what_sets_are(ranges in prop::collection::vec((0..40u64, 0..9u64), 0..6)) {
            let shape = Shape::of(40 * GROUP);
            let bytes = ranges.iter().map(|(start, len)| start * GROUP..(start + len) * GROUP);
            let set = GroupSet::covering(shape, bytes);
            for group in 0..40 {
                let inside = ranges.iter().any(|(start, len)| (*start..start + len).contains(&group));
                prop_assert_eq!(set.first_in(group..group + 1).is_some(), inside);
            }
            prop_assert!(set.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
