//! Which name stands for what now: a sparse Merkle map, whose root is in every entry.
//!
//! A log alone proves that something was said, not that nothing was said since. With the root of this map in the entry,
//! "the latest of this name is that" and "there is no such name" have proofs as long as a path in a tree. A name is at
//! the place its hash says, and no deeper than it must be: a part of the tree with one name in it is that name's leaf.
//!
//! Names never go away. One that is retired says so and when, so that what was approved for it once can never be
//! replayed. The tree is shared between versions; changing it copies one path, or nothing if nobody else looks.

use std::{fmt, sync::Arc};

use minicbor::{Decoder, Encoder};
use ron_core::{
    ContentId,
    net::cbor::{self, CborFault, read_array},
};

use super::proposal::{Name, ProposalId};

/// Bytes of the longest name.
pub const NAME_BYTES_MAX: usize = 255;

/// Hashes in the longest proof: one for each bit of a place.
pub const SIBLINGS_MAX: usize = 256;

/// Under which key the policy is in the map. No name begins like that.
pub(crate) const POLICY_KEY: &str = "@policy";

// Keys of keyed BLAKE3, so that a leaf is never taken for a node; 64 bytes are one block.
const NODE: &[u8; 32] = b"ron-registry names 1 node\0\0\0\0\0\0\0";
const LEAF: &[u8; 32] = b"ron-registry names 1 leaf\0\0\0\0\0\0\0";
const PLACE: &[u8; 32] = b"ron-registry names 1 place\0\0\0\0\0\0";

/// A hash of the map. The root is what entries carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MapHash([u8; 32]);

impl MapHash {
    /// The hash of a map, or a part of it, with no names.
    pub const EMPTY: MapHash = MapHash([0; 32]);

    /// The hash with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        MapHash(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn of_node(left: &MapHash, right: &MapHash) -> Self {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&left.0);
        bytes[32..].copy_from_slice(&right.0);
        MapHash(*blake3::keyed_hash(NODE, &bytes).as_bytes())
    }

    fn of_leaf(place: &Place, latest: &Latest) -> Self {
        let mut bytes = [0; 32 + 8 + 32 + 1 + 32];
        bytes[..32].copy_from_slice(place);
        bytes[32..40].copy_from_slice(&latest.version.to_be_bytes());
        bytes[40..72].copy_from_slice(latest.proposal.as_bytes());
        if let Some(content) = &latest.content {
            bytes[72] = 1;
            bytes[73..].copy_from_slice(content.as_bytes());
        }
        MapHash(*blake3::keyed_hash(LEAF, &bytes).as_bytes())
    }
}

impl fmt::Debug for MapHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a name is: 256 turns, left for 0.
pub(super) type Place = [u8; 32];

pub(super) fn place_of(name: &str) -> Place {
    *blake3::keyed_hash(PLACE, name.as_bytes()).as_bytes()
}

/// Whether the turn at this depth is to the right.
fn turns_right(place: &Place, depth: usize) -> bool {
    place[depth / 8] >> (7 - depth % 8) & 1 == 1
}

/// What a name stands for since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Latest {
    /// The entry that says so.
    pub version: u64,
    /// The proposal that the entry carries.
    pub proposal: ProposalId,
    /// What it stands for; nothing if it was retired.
    pub content: Option<ContentId>,
}

#[derive(Debug, Clone)]
enum Node {
    Leaf(Arc<Leaf>),
    Branch(Arc<Branch>),
}

#[derive(Debug, Clone)]
struct Leaf {
    name: Box<str>,
    place: Place,
    latest: Latest,
    hash: MapHash,
}

#[derive(Debug, Clone)]
struct Branch {
    children: [Option<Node>; 2],
    hash: MapHash,
}

impl Node {
    fn hash(&self) -> MapHash {
        match self {
            Node::Leaf(leaf) => leaf.hash,
            Node::Branch(branch) => branch.hash,
        }
    }
}

fn hash_of(node: Option<&Node>) -> MapHash {
    node.map_or(MapHash::EMPTY, Node::hash)
}

impl Branch {
    fn new(children: [Option<Node>; 2]) -> Self {
        let mut branch = Branch { children, hash: MapHash::EMPTY };
        branch.rehash();
        branch
    }

    fn rehash(&mut self) {
        let [left, right] = &self.children;
        self.hash = MapHash::of_node(&hash_of(left.as_ref()), &hash_of(right.as_ref()));
    }
}

/// The map. Cloning shares everything.
#[derive(Debug, Clone, Default)]
pub struct Names {
    root: Option<Node>,
    count: usize,
}

impl Names {
    /// Nothing has a name yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many names there are, retired ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What entries carry.
    #[must_use]
    pub fn root(&self) -> MapHash {
        hash_of(self.root.as_ref())
    }

    /// What a name stands for, if it was ever bound.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&Latest> {
        self.lookup(name.as_str())
    }

    pub(crate) fn lookup(&self, key: &str) -> Option<&Latest> {
        self.lookup_at(&place_of(key))
    }

    /// What stands at a place.
    pub(super) fn lookup_at(&self, place: &Place) -> Option<&Latest> {
        let mut node = self.root.as_ref()?;
        for depth in 0.. {
            match node {
                Node::Leaf(leaf) => return (leaf.place == *place).then_some(&leaf.latest),
                Node::Branch(branch) => {
                    node = branch.children[usize::from(turns_right(place, depth))].as_ref()?;
                }
            }
        }
        None
    }

    /// Says what a name, or the policy, stands for from now on.
    #[cfg(test)]
    pub(crate) fn set(&mut self, key: &str, latest: Latest) {
        self.set_at(key, &place_of(key), latest);
    }

    /// Says what a name, or the policy, stands for from now on. `place` is that of the key.
    pub(super) fn set_at(&mut self, key: &str, place: &Place, latest: Latest) {
        let hash = MapHash::of_leaf(place, &latest);
        let leaf = Arc::new(Leaf { name: key.into(), place: *place, latest, hash });
        self.count += usize::from(insert(&mut self.root, leaf, 0));
    }

    /// A map of these, made at once: each part of the tree is hashed once instead of once for every name in it. Nothing if
    /// there is one twice.
    pub(crate) fn of<'a>(all: impl Iterator<Item = (&'a str, Latest)>) -> Option<Self> {
        let leaf = |(key, latest): (&str, Latest)| {
            let place = place_of(key);
            Arc::new(Leaf { name: key.into(), place, latest, hash: MapHash::of_leaf(&place, &latest) })
        };
        let mut leaves: Vec<Arc<Leaf>> = all.map(leaf).collect();
        // Mostly they come in their order.
        if !leaves.is_sorted_by(|one, next| one.place < next.place) {
            leaves.sort_unstable_by_key(|leaf| leaf.place);
        }
        let is_twice = |pair: &[Arc<Leaf>]| pair[0].place == pair[1].place;
        let count = leaves.len();
        (!leaves.windows(2).any(is_twice)).then(|| Names { root: grow(&leaves, 0), count })
    }

    /// Every key and what it stands for, in the order of their places. The policy is among them.
    pub(crate) fn all(&self) -> Vec<(&str, &Latest)> {
        let mut all = Vec::with_capacity(self.count);
        let mut stack: Vec<&Node> = self.root.iter().collect();
        while let Some(node) = stack.pop() {
            match node {
                Node::Leaf(leaf) => all.push((&*leaf.name, &leaf.latest)),
                Node::Branch(branch) => stack.extend(branch.children.iter().rev().flatten()),
            }
        }
        all
    }

    /// Proves what a name stands for, or that there is no such name.
    #[must_use]
    pub fn prove(&self, name: &Name) -> NameProof {
        self.prove_key(name.as_str())
    }

    /// Proves which policy is the last.
    #[must_use]
    pub fn prove_policy(&self) -> NameProof {
        self.prove_key(POLICY_KEY)
    }

    fn prove_key(&self, key: &str) -> NameProof {
        let place = place_of(key);
        let (mut siblings, mut node) = (Vec::new(), self.root.as_ref());
        while let Some(Node::Branch(branch)) = node {
            let side = usize::from(turns_right(&place, siblings.len()));
            siblings.push(hash_of(branch.children[1 - side].as_ref()));
            node = branch.children[side].as_ref();
        }
        let end = match node {
            Some(Node::Leaf(leaf)) if leaf.place == place => End::Is(leaf.latest),
            Some(Node::Leaf(leaf)) => End::Other { place: leaf.place, latest: leaf.latest },
            _ => End::Nothing,
        };
        NameProof { end, siblings }
    }
}

/// The tree of these leaves, which are in order and share their way down to `depth`.
fn grow(leaves: &[Arc<Leaf>], depth: usize) -> Option<Node> {
    match leaves {
        [] => None,
        [leaf] => Some(Node::Leaf(Arc::clone(leaf))),
        several => {
            let right = several.partition_point(|leaf| !turns_right(&leaf.place, depth));
            let children = [grow(&several[..right], depth + 1), grow(&several[right..], depth + 1)];
            Some(Node::Branch(Arc::new(Branch::new(children))))
        }
    }
}

/// Puts a leaf below `node`, and says whether it is a new one.
fn insert(node: &mut Option<Node>, leaf: Arc<Leaf>, depth: usize) -> bool {
    match node {
        None => {
            *node = Some(Node::Leaf(leaf));
            true
        }
        Some(Node::Leaf(old)) if old.place == leaf.place => {
            *old = leaf;
            false
        }
        Some(Node::Leaf(old)) => {
            let old = Arc::clone(old);
            *node = Some(Node::Branch(Arc::new(fork(old, leaf, depth))));
            true
        }
        Some(Node::Branch(branch)) => {
            let branch = Arc::make_mut(branch);
            let side = usize::from(turns_right(&leaf.place, depth));
            let is_new = insert(&mut branch.children[side], leaf, depth + 1);
            branch.rehash();
            is_new
        }
    }
}

/// The branches from `depth` down to where two leaves part.
fn fork(old: Arc<Leaf>, new: Arc<Leaf>, depth: usize) -> Branch {
    let sides = [&old, &new].map(|leaf| usize::from(turns_right(&leaf.place, depth)));
    let mut children = [None, None];
    if sides[0] == sides[1] {
        // Different names part somewhere: two with one hash would be a collision of BLAKE3.
        children[sides[0]] = Some(Node::Branch(Arc::new(fork(old, new, depth + 1))));
    } else {
        children[sides[0]] = Some(Node::Leaf(old));
        children[sides[1]] = Some(Node::Leaf(new));
    }
    Branch::new(children)
}

/// What is found at the end of the way to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The name.
    Is(Latest),
    /// Nothing: there is no such name.
    Nothing,
    /// Another name, which is alone down there: there is no such name either.
    Other { place: Place, latest: Latest },
}

/// A proof of what a name stands for in the map with a certain root, or that it stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameProof {
    end: End,
    /// From the top.
    siblings: Vec<MapHash>,
}

/// Why a proof about a name proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameProofError {
    /// It is not the form of a proof.
    #[error("not a proof about a name")]
    Malformed,
    /// It is about a name elsewhere in the map.
    #[error("a proof about another name")]
    OtherName,
    /// It leads to another root than the entry has.
    #[error("the proof leads to another root")]
    WrongRoot,
}

impl NameProof {
    /// What `name` stands for in the map with this root: something, or provably nothing.
    ///
    /// # Errors
    /// A [`NameProofError`].
    pub fn verify(&self, name: &Name, root: &MapHash) -> Result<Option<Latest>, NameProofError> {
        self.verify_key(name.as_str(), root)
    }

    /// [`verify`](Self::verify) for the policy, whose content is that of its bytes.
    ///
    /// # Errors
    /// A [`NameProofError`].
    pub fn verify_policy(&self, root: &MapHash) -> Result<Option<Latest>, NameProofError> {
        self.verify_key(POLICY_KEY, root)
    }

    fn verify_key(&self, key: &str, root: &MapHash) -> Result<Option<Latest>, NameProofError> {
        let place = place_of(key);
        let (mut hash, found) = match &self.end {
            End::Is(latest) => (MapHash::of_leaf(&place, latest), Some(*latest)),
            End::Nothing => (MapHash::EMPTY, None),
            End::Other { place: other, latest } => {
                let shares_way = (0..self.siblings.len())
                    .all(|depth| turns_right(&place, depth) == turns_right(other, depth));
                if *other == place || !shares_way {
                    return Err(NameProofError::OtherName);
                }
                (MapHash::of_leaf(other, latest), None)
            }
        };
        for (depth, sibling) in self.siblings.iter().enumerate().rev() {
            hash = match turns_right(&place, depth) {
                false => MapHash::of_node(&hash, sibling),
                true => MapHash::of_node(sibling, &hash),
            };
        }
        if hash == *root { Ok(found) } else { Err(NameProofError::WrongRoot) }
    }

    /// Its bytes: deterministic CBOR.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        cbor::encode(128 + self.siblings.len() * 34, |cbor| {
            cbor.array(2)?;
            match &self.end {
                End::Is(latest) => write_latest(cbor.array(1)?, latest)?,
                End::Nothing => {
                    cbor.array(0)?;
                }
                End::Other { place, latest } => {
                    write_latest(cbor.array(2)?, latest)?;
                    cbor.bytes(place)?;
                }
            }
            cbor.array(self.siblings.len() as u64)?;
            self.siblings.iter().try_for_each(|hash| cbor.bytes(&hash.0).map(drop))
        })
    }

    /// Reads what [`encode`](Self::encode) writes, and nothing else.
    ///
    /// # Errors
    /// [`NameProofError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NameProofError> {
        let read = || -> Result<Self, CborFault> {
            let mut cbor = Decoder::new(bytes);
            if cbor.array()? != Some(2) {
                return Err(CborFault::Malformed);
            }
            let end = match cbor.array()? {
                Some(0) => End::Nothing,
                Some(1) => End::Is(read_latest(&mut cbor)?),
                Some(2) => {
                    let latest = read_latest(&mut cbor)?;
                    End::Other { place: read_array(&mut cbor, "place")?, latest }
                }
                _ => return Err(CborFault::Malformed),
            };
            let hash = |cbor: &mut Decoder<'_>| Ok::<_, CborFault>(MapHash(read_array(cbor, "sibling")?));
            let siblings = ron_core::net::cbor::read_list(&mut cbor, ("siblings", SIBLINGS_MAX), hash)?;
            Ok(NameProof { end, siblings })
        };
        let proof = read().map_err(|_| NameProofError::Malformed)?;
        if proof.encode() == bytes { Ok(proof) } else { Err(NameProofError::Malformed) }
    }
}

/// Writes what a name stands for: version, proposal, and the content or null.
pub(crate) fn write_latest<W: minicbor::encode::Write>(
    cbor: &mut Encoder<W>,
    latest: &Latest,
) -> Result<(), minicbor::encode::Error<W::Error>> {
    cbor.array(3)?.u64(latest.version)?.bytes(latest.proposal.as_bytes())?;
    match &latest.content {
        Some(content) => cbor.bytes(content.as_bytes())?,
        None => cbor.null()?,
    };
    Ok(())
}

/// Reads what [`write_latest`] writes.
pub(crate) fn read_latest(cbor: &mut Decoder<'_>) -> Result<Latest, CborFault> {
    if cbor.array()? != Some(3) {
        return Err(CborFault::Malformed);
    }
    let version = cbor.u64()?;
    let proposal = ProposalId::from_bytes(read_array(cbor, "proposal")?);
    let content = match cbor.datatype()? {
        minicbor::data::Type::Null => {
            cbor.null()?;
            None
        }
        _ => Some(ContentId::from_bytes(read_array(cbor, "content")?)),
    };
    Ok(Latest { version, proposal, content })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn latest(version: u64) -> Latest {
        let content = (version % 5 != 0).then(|| ContentId::of(&version.to_be_bytes()));
        Latest { version, proposal: ProposalId::from_bytes([version as u8; 32]), content }
    }

    fn names(count: u64) -> Names {
        let mut names = Names::new();
        (0..count).for_each(|at| names.set(&format!("n/{at}"), latest(at)));
        names
    }

    #[test]
    fn an_empty_map_proves_that_there_is_nothing() {
        let names = Names::new();
        assert_eq!(names.root(), MapHash::EMPTY);
        assert_eq!(names.prove(&name("a")).verify(&name("a"), &MapHash::EMPTY), Ok(None));
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let forward = names(300);
        let mut backward = Names::new();
        (0..300).rev().for_each(|at| backward.set(&format!("n/{at}"), latest(at)));
        assert_eq!(forward.root(), backward.root());
        assert_eq!(forward.len(), 300);
        assert_eq!(forward.all().len(), 300);
    }

    #[test]
    fn versions_do_not_see_each_other() {
        let mut names = names(100);
        let before = names.clone();
        let root = before.root();
        names.set("n/7", latest(1000));
        assert_eq!(before.root(), root);
        assert_eq!(before.get(&name("n/7")), Some(&latest(7)));
        assert_eq!(names.get(&name("n/7")), Some(&latest(1000)));
        assert_eq!(names.len(), 100);
        names.set("n/7", latest(7));
        assert_eq!(names.root(), root, "the root is of what is in it, not of how it came there");
    }

    #[test]
    fn a_retired_name_is_not_an_absent_one() {
        let names = names(10);
        let proof = names.prove(&name("n/5"));
        let found = proof.verify(&name("n/5"), &names.root()).unwrap().unwrap();
        assert_eq!(found.content, None);
        assert_eq!(found.version, 5);
    }

    #[test]
    fn a_proof_is_about_its_name_its_value_and_its_root() {
        let names = names(200);
        let (here, root) = (name("n/11"), names.root());
        let proof = names.prove(&here);
        assert_eq!(proof.verify(&here, &root), Ok(Some(latest(11))));
        assert_eq!(proof.verify(&name("n/12"), &root), Err(NameProofError::WrongRoot));
        assert_eq!(proof.verify(&here, &MapHash([1; 32])), Err(NameProofError::WrongRoot));
        let forged = NameProof { end: End::Is(latest(12)), ..proof.clone() };
        assert_eq!(forged.verify(&here, &root), Err(NameProofError::WrongRoot));
        // A name that is there cannot be shown to be absent with its own leaf, nor with nothing.
        let own = End::Other { place: place_of("n/11"), latest: latest(11) };
        let forged = NameProof { end: own, ..proof.clone() };
        assert_eq!(forged.verify(&here, &root), Err(NameProofError::OtherName));
        let forged = NameProof { end: End::Nothing, ..proof.clone() };
        assert_eq!(forged.verify(&here, &root), Err(NameProofError::WrongRoot));
        // Nor with the leaf of a name that lives elsewhere.
        let elsewhere = names.prove(&name("n/12"));
        let End::Is(other) = elsewhere.end else { panic!("it is there") };
        let forged = NameProof {
            end: End::Other { place: place_of("n/12"), latest: other },
            siblings: elsewhere.siblings,
        };
        assert!(forged.verify(&here, &root).is_err());
    }

    #[test]
    fn a_proof_has_one_spelling() {
        let names = names(50);
        for text in ["n/3", "n/5", "absent", "also/absent"] {
            let proof = names.prove(&name(text));
            let bytes = proof.encode();
            assert_eq!(NameProof::decode(&bytes), Ok(proof));
            for cut in 0..bytes.len() {
                assert_eq!(NameProof::decode(&bytes[..cut]), Err(NameProofError::Malformed));
            }
            assert_eq!(NameProof::decode(&[&bytes[..], &[0]].concat()), Err(NameProofError::Malformed));
        }
    }

    proptest! {
        #[test]
        fn the_map_is_a_map(steps in proptest::collection::vec((0u64..40, 0u64..1000), 0..200)) {
            let (mut names, mut model) = (Names::new(), BTreeMap::new());
            for (at, version) in steps {
                names.set(&format!("n/{at}"), latest(version));
                model.insert(at, latest(version));
            }
            prop_assert_eq!(names.len(), model.len());
            for at in 0..45 {
                let key = name(&format!("n/{at}"));
                prop_assert_eq!(names.get(&key), model.get(&at));
                prop_assert_eq!(names.prove(&key).verify(&key, &names.root()), Ok(model.get(&at).copied()));
            }
            let mut fresh = Names::new();
            for (at, latest) in model {
                fresh.set(&format!("n/{at}"), latest);
            }
            prop_assert_eq!(fresh.root(), names.root());
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            if let Ok(proof) = NameProof::decode(&bytes) {
                prop_assert_eq!(proof.encode(), bytes);
            }
        }
    }
}
