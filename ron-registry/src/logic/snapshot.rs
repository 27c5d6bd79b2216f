//! Where somebody can start who does not have the beginning: everything that the log has decided up to a version, and
//! the proof of it.
//!
//! A snapshot is made at a version V and holds the entry V, the edge of the tree of V leaves, the path of the entry in
//! that tree, the policy, and all names. Nothing in it is taken on trust: the edge must be consistent with a checkpoint
//! that is, the entry must be the last leaf of that tree, and names and policy must have the root that the entry has. So
//! it can come from anybody. It is written in parts, because a log has more names than a record has room.

use bytes::Bytes;
use minicbor::{Decoder, Encoder};
use ron_core::{
    ContentId,
    net::cbor::{self, CborFault, read_bytes, read_list, read_only_map, required},
};

use super::{
    chain::Head,
    checkpoint::Checkpoint,
    entry::Entry,
    merkle::{PROOF_HASHES_MAX, ProofError, TreeHash, verify_consistency, verify_inclusion},
    names::{Latest, NAME_BYTES_MAX, Names, POLICY_KEY, read_latest, write_latest},
    policy::{POLICY_BYTES_MAX, Policy, PolicyError},
    proposal::{FormError, Name},
    state::State,
    tiles::{ENTRY_BYTES_MAX, Prover, TILE_WIDTH, Tree},
};

/// The only format there is so far.
const FORMAT_1: u64 = 1;
/// Levels of tiles that a tree can have.
const LEVELS_MAX: usize = 8;
/// Names in one part: with the longest names 6 MiB, which a record of the journal holds.
const PART_NAMES_MAX: usize = 16 << 10;
/// Bytes of the largest part.
pub const PART_BYTES_MAX: usize = 8 << 20;

const FORMAT: u64 = 0;
const ENTRY: u64 = 1;
const PATH: u64 = 2;
const EDGE: u64 = 3;
const POLICY: u64 = 4;
const NAMES: u64 = 5;

/// Why a snapshot cannot be started from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not the form of a snapshot, or of a part of one.
    #[error("not a snapshot")]
    Malformed,
    /// A format that this version does not know; a newer one may.
    #[error("format {format}")]
    UnknownFormat {
        /// Which.
        format: u64,
    },
    /// The entry in it is none.
    #[error("its entry is none")]
    Entry(#[from] FormError),
    /// The policy in it is none.
    #[error("its policy is none")]
    Policy(#[from] PolicyError),
    /// It is of another log.
    #[error("of the log {found}")]
    OtherLog {
        /// Which.
        found: String,
    },
    /// Its tree, or its entry, is not that of the checkpoint.
    #[error("not of this log's tree")]
    Tree(#[from] ProofError),
    /// Its names are not those that its entry vouches for: some lack, some are too many, or some are false.
    #[error("its names have another root than its entry says")]
    WrongNames,
    /// Its policy is not that which its names vouch for.
    #[error("its policy is another than its names say")]
    WrongPolicy,
}

impl From<CborFault> for SnapshotError {
    fn from(_: CborFault) -> Self {
        SnapshotError::Malformed
    }
}

impl From<minicbor::decode::Error> for SnapshotError {
    fn from(_: minicbor::decode::Error) -> Self {
        SnapshotError::Malformed
    }
}

/// Everything that the log has decided up to an entry. Not to be believed before [`open`](Snapshot::open).
#[derive(Debug, Clone)]
pub struct Snapshot {
    entry: Bytes,
    path: Vec<TreeHash>,
    edge: Vec<Vec<u8>>,
    policy: Bytes,
    names: Names,
}

impl Snapshot {
    /// Takes one, right after `last` was applied to the state and pushed to the tree. Nothing before the beginning.
    ///
    /// # Errors
    /// [`ProofError`] if the tree is not that of the state, or its right edge was pruned.
    pub fn take(state: &State, tree: &Tree, last: &Entry) -> Result<Option<Self>, ProofError> {
        let Some(policy) = state.policy() else { return Ok(None) };
        let path = Prover::new(tree, tree.size()).inclusion(last.version() - 1)?;
        verify_inclusion(
            &TreeHash::of_leaf(last.encoded()),
            last.version() - 1,
            &path,
            tree.size(),
            &tree.root(),
        )?;
        Ok(Some(Snapshot {
            entry: last.encoded().clone(),
            path,
            edge: tree.edge(),
            policy: policy.encoded().clone(),
            names: state.names().clone(),
        }))
    }

    /// Its parts, in order: the first has all but most of the names. Each is deterministic CBOR of at most 8 MiB.
    #[must_use]
    pub fn encode(&self) -> Vec<Bytes> {
        let names = self.names.all();
        let mut parts = names.chunks(PART_NAMES_MAX);
        let first = parts.next().unwrap_or(&[]);
        let head = |cbor: &mut Encoder<Vec<u8>>| {
            cbor.u64(ENTRY)?.bytes(&self.entry)?.u64(PATH)?.array(self.path.len() as u64)?;
            self.path.iter().try_for_each(|hash| cbor.bytes(hash.as_bytes()).map(drop))?;
            cbor.u64(EDGE)?.array(self.edge.len() as u64)?;
            self.edge.iter().try_for_each(|tile| cbor.bytes(tile).map(drop))?;
            cbor.u64(POLICY)?.bytes(&self.policy)?.ok()
        };
        let part = |is_first: bool, names: &[(&str, &_)]| {
            let part = cbor::encode(1024 + names.len() * 128, |cbor| {
                cbor.map(if is_first { 6 } else { 2 })?.u64(FORMAT)?.u64(FORMAT_1)?;
                if is_first {
                    head(cbor)?;
                }
                cbor.u64(NAMES)?.array(names.len() as u64)?;
                for (name, latest) in names {
                    cbor.array(2)?.str(name)?;
                    write_latest(cbor, latest)?;
                }
                Ok(())
            });
            Bytes::from(part)
        };
        std::iter::once(part(true, first)).chain(parts.map(|names| part(false, names))).collect()
    }

    /// Reads the parts that [`encode`](Self::encode) gives, all of them and in order.
    ///
    /// # Errors
    /// [`SnapshotError::Malformed`], [`SnapshotError::UnknownFormat`].
    pub fn decode<'a>(parts: impl IntoIterator<Item = &'a Bytes>) -> Result<Self, SnapshotError> {
        let (mut head, mut names) = (None, Vec::new());
        for part in parts {
            let found = read_part(part, &mut names)?;
            if found.is_some() != head.is_none() {
                return Err(SnapshotError::Malformed);
            }
            head = head.or(found);
        }
        let (entry, path, edge, policy) = head.ok_or(SnapshotError::Malformed)?;
        let names = Names::of(names.into_iter()).ok_or(SnapshotError::Malformed)?;
        Ok(Snapshot { entry, path, edge, policy, names })
    }

    /// The bytes of its entry.
    #[must_use]
    pub fn entry(&self) -> &Bytes {
        &self.entry
    }

    /// Whether its entry and its tree are of the log that `checkpoint` is of, whatever its names are: what the first part
    /// alone has to pass before anybody gathers the others. Gives the version it is of. `consistency` as for
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub fn check_tree(
        &self,
        checkpoint: &Checkpoint,
        consistency: &[TreeHash],
    ) -> Result<u64, SnapshotError> {
        let (entry, tree) = self.restore_tree()?;
        under(entry.proposal().origin(), &tree, checkpoint, consistency)?;
        Ok(entry.version())
    }

    /// How many parts a snapshot of this version can have: no entry brings more than one name, and all parts but the last
    /// are full.
    #[must_use]
    pub fn parts_max(version: u64) -> u64 {
        version / PART_NAMES_MAX as u64 + 1
    }

    /// Starts from it, if it is the beginning of the log that `checkpoint` is of. `consistency` leads from the version
    /// of the snapshot to the size of the checkpoint; it is empty if they are the same.
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub fn open(
        &self,
        checkpoint: &Checkpoint,
        consistency: &[TreeHash],
    ) -> Result<(State, Tree, Entry), SnapshotError> {
        let (state, tree, entry) = self.restore()?;
        under(state.origin(), &tree, checkpoint, consistency)?;
        Ok((state, tree, entry))
    }

    fn restore_tree(&self) -> Result<(Entry, Tree), SnapshotError> {
        let entry = Entry::decode(&self.entry)?;
        let tree = Tree::from_edge(entry.version(), self.edge.clone()).ok_or(SnapshotError::Malformed)?;
        let leaf = TreeHash::of_leaf(&self.entry);
        verify_inclusion(&leaf, entry.version() - 1, &self.path, tree.size(), &tree.root())?;
        Ok((entry, tree))
    }

    /// Starts from it if it fits together. Whether it is of the right log shows only when the tree, with everything that
    /// follows, has the root of a checkpoint.
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub fn restore(&self) -> Result<(State, Tree, Entry), SnapshotError> {
        let (entry, tree) = self.restore_tree()?;
        if self.names.root() != entry.names() {
            return Err(SnapshotError::WrongNames);
        }
        let policy = Policy::decode(&self.policy)?;
        let vouched = self.names.lookup(POLICY_KEY).and_then(|latest| latest.content);
        if vouched != Some(ContentId::of(&self.policy)) {
            return Err(SnapshotError::WrongPolicy);
        }
        let before = Head { version: entry.version() - 1, hash: entry.previous() };
        let head = before.next(&self.entry);
        let origin = entry.proposal().origin();
        let state = State::restored(origin, head, &entry, policy, self.names.clone());
        Ok((state, tree, entry))
    }
}

/// That a tree is the beginning of the log that a checkpoint is of.
fn under(
    origin: &str,
    tree: &Tree,
    checkpoint: &Checkpoint,
    consistency: &[TreeHash],
) -> Result<(), SnapshotError> {
    if origin != checkpoint.origin {
        return Err(SnapshotError::OtherLog { found: origin.to_owned() });
    }
    verify_consistency((tree.size(), &tree.root()), (checkpoint.size, &checkpoint.root), consistency)?;
    Ok(())
}

type First = (Bytes, Vec<TreeHash>, Vec<Vec<u8>>, Bytes);

/// Reads one part: its names into `names`, and what the first has.
fn read_part<'a>(
    part: &'a Bytes,
    names: &mut Vec<(&'a str, Latest)>,
) -> Result<Option<First>, SnapshotError> {
    let (mut format, mut entry, mut path, mut edge, mut policy) = (None, None, None, None, None);
    let mut listed = None;
    read_only_map(part, |key, cbor| {
        match key {
            FORMAT => format = Some(cbor.u64()?),
            ENTRY => entry = Some(part.slice_ref(read_bytes(cbor, ("entry", ENTRY_BYTES_MAX))?)),
            PATH => path = Some(read_list(cbor, ("path", PROOF_HASHES_MAX), read_hash)?),
            EDGE => edge = Some(read_list(cbor, ("edge", LEVELS_MAX), read_tile)?),
            POLICY => policy = Some(part.slice_ref(read_bytes(cbor, ("policy", POLICY_BYTES_MAX))?)),
            NAMES => {
                let name = |cbor: &mut Decoder<'a>| read_name(cbor, names);
                listed = Some(read_list(cbor, ("names", PART_NAMES_MAX), name)?);
            }
            _ => return Err(SnapshotError::Malformed),
        }
        Ok::<_, SnapshotError>(true)
    })?;
    match required(format, FORMAT)? {
        FORMAT_1 => {}
        format => return Err(SnapshotError::UnknownFormat { format }),
    }
    required(listed, NAMES)?;
    match entry {
        Some(entry) => {
            Ok(Some((entry, required(path, PATH)?, required(edge, EDGE)?, required(policy, POLICY)?)))
        }
        None if path.is_none() && edge.is_none() && policy.is_none() => Ok(None),
        None => Err(SnapshotError::Malformed),
    }
}

fn read_hash(cbor: &mut Decoder<'_>) -> Result<TreeHash, SnapshotError> {
    Ok(TreeHash::from_bytes(cbor::read_array(cbor, "hash")?))
}

fn read_tile(cbor: &mut Decoder<'_>) -> Result<Vec<u8>, SnapshotError> {
    let tile = read_bytes(cbor, ("hashes", TILE_WIDTH as usize * TreeHash::BYTES))?;
    Ok(tile.to_vec())
}

fn read_name<'a>(cbor: &mut Decoder<'a>, names: &mut Vec<(&'a str, Latest)>) -> Result<(), SnapshotError> {
    if cbor.array()? != Some(2) {
        return Err(SnapshotError::Malformed);
    }
    let name = cbor.str()?;
    let is_known = name == POLICY_KEY || name.len() <= NAME_BYTES_MAX && name.parse::<Name>().is_ok();
    if !is_known {
        return Err(SnapshotError::Malformed);
    }
    names.push((name, read_latest(cbor)?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::logic::{
        fixture::{LATER, ORIGIN, START, bind, identity, policy, propose, retire, rotate},
        proposal::{Action, Proposal},
        state::Signatures,
    };

    /// A log with its tree, and its last entry.
    struct Log {
        state: State,
        tree: Tree,
        last: Entry,
    }

    impl Log {
        fn new() -> Self {
            let mut state = State::new(ORIGIN);
            let found = propose(0, Action::Found { policy: Arc::new(policy(1, 2)) });
            let last = state.commit(found, vec![], START).unwrap();
            let mut tree = Tree::new();
            tree.push(TreeHash::of_leaf(last.encoded()));
            Log { state, tree, last }
        }

        fn commit(&mut self, proposal: Proposal) {
            let approval = proposal.approve(&identity(0), LATER).verify().unwrap().recorded();
            self.last = self.state.commit(proposal, vec![approval], START).unwrap();
            self.tree.push(TreeHash::of_leaf(self.last.encoded()));
        }

        fn grow(&mut self, until: u64) {
            while self.tree.size() < until {
                let version = self.tree.size() + 1;
                self.commit(bind(self.state.epoch(), &format!("n/{version}"), 0, "x"));
            }
        }

        fn checkpoint(&self) -> Checkpoint {
            Checkpoint { origin: ORIGIN.into(), size: self.tree.size(), root: self.tree.root() }
        }

        fn snapshot(&self) -> Snapshot {
            Snapshot::take(&self.state, &self.tree, &self.last).unwrap().unwrap()
        }
    }

    fn log(size: u64) -> Log {
        let mut log = Log::new();
        log.grow(size.saturating_sub(2).max(1));
        if size >= 6 {
            log.commit(rotate(1, policy(1, 2)));
            log.commit(retire(2, "n/2", 2));
        }
        log
    }

    #[test]
    fn whoever_starts_there_goes_on_like_those_who_were_there() {
        for size in [1, 2, 6, 255, 256, 257, 600] {
            let mut log = log(size);
            let snapshot = Snapshot::decode(&log.snapshot().encode()).unwrap();
            let same = snapshot.open(&log.checkpoint(), &[]).unwrap().0;
            assert_eq!(same.head(), log.state.head());
            assert_eq!((same.epoch(), same.time()), (log.state.epoch(), START));
            assert_eq!(same.policy(), log.state.policy());

            // Against a later checkpoint, and on through entries that came since.
            let (before, mut entries) = (log.tree.size(), Vec::new());
            for more in 0..40 {
                let proposal = bind(log.state.epoch(), &format!("m/{more}"), 0, "x");
                log.commit(proposal);
                entries.push(log.last.clone());
            }
            let consistency = Prover::new(&log.tree, log.tree.size()).consistency(before).unwrap();
            let (mut state, mut tree, _) = snapshot.open(&log.checkpoint(), &consistency).unwrap();
            for entry in entries {
                state.apply(entry.encoded(), Signatures::Check).unwrap();
                tree.push(TreeHash::of_leaf(entry.encoded()));
            }
            assert_eq!(state.head(), log.state.head());
            assert_eq!(tree.root(), log.tree.root());
        }
    }

    #[test]
    fn nothing_in_it_is_believed() {
        let log = log(300);
        let (good, checkpoint) = (log.snapshot(), log.checkpoint());
        let check = |change: &dyn Fn(&mut Snapshot), error| {
            let mut forged = good.clone();
            change(&mut forged);
            assert_eq!(forged.open(&checkpoint, &[]).map(drop), Err(error));
        };
        let latest = *good.names.lookup("n/9").unwrap();
        check(
            &|forged| forged.names.set("n/9", super::super::names::Latest { version: 8, ..latest }),
            SnapshotError::WrongNames,
        );
        check(&|forged| forged.names.set("more", latest), SnapshotError::WrongNames);
        check(&|forged| forged.policy = policy(1, 3).encoded().clone(), SnapshotError::WrongPolicy);
        check(&|forged| forged.policy = Bytes::new(), SnapshotError::Policy(PolicyError::Malformed));
        check(&|forged| forged.edge[0][5] ^= 1, SnapshotError::Tree(ProofError::WrongRoot));
        check(&|forged| forged.edge.truncate(1), SnapshotError::Malformed);
        check(&|forged| forged.path.truncate(1), SnapshotError::Tree(ProofError::WrongLength));
        check(&|forged| forged.path[0] = TreeHash::of_nothing(), SnapshotError::Tree(ProofError::WrongRoot));
        let mut other = Log::new();
        other.commit(bind(1, "other", 0, "x"));
        other.grow(299);
        check(&|forged| forged.entry = other.last.encoded().clone(), SnapshotError::Malformed);
        other.grow(300);
        check(
            &|forged| forged.entry = other.last.encoded().clone(),
            SnapshotError::Tree(ProofError::WrongRoot),
        );
        let elsewhere = Checkpoint { origin: "other".into(), ..checkpoint.clone() };
        assert_eq!(
            good.open(&elsewhere, &[]).map(drop),
            Err(SnapshotError::OtherLog { found: ORIGIN.into() })
        );
        assert_eq!(
            good.open(&other.checkpoint(), &[]).map(drop),
            Err(SnapshotError::Tree(ProofError::WrongRoot))
        );
    }

    #[test]
    fn parts_come_whole_and_in_order() {
        let mut log = log(20);
        let names = PART_NAMES_MAX + 10;
        for at in 0..names {
            let latest = *log.state.names().lookup("n/2").unwrap();
            let mut all = log.state.names().clone();
            all.set(&format!("many/{at}"), latest);
            // Not decided by anybody: enough to see how parts are cut.
            log.state = State::restored(ORIGIN, log.state.head(), &log.last, policy(1, 2), all);
        }
        let snapshot = log.snapshot();
        let parts = snapshot.encode();
        assert_eq!(parts.len(), 2);
        assert_eq!(Snapshot::decode(&parts).unwrap().names.root(), snapshot.names.root());
        assert!(matches!(Snapshot::decode(&parts[1..]), Err(SnapshotError::Malformed)));
        assert!(matches!(Snapshot::decode([&parts[1], &parts[0]]), Err(SnapshotError::Malformed)));
        assert!(matches!(Snapshot::decode([&parts[0], &parts[0]]), Err(SnapshotError::Malformed)));
        assert!(matches!(Snapshot::decode([]), Err(SnapshotError::Malformed)));
        let newer = [&[0xa2, 0x00, 0x02], &parts[1][3..]].concat();
        let newer = Snapshot::decode([&parts[0], &newer.into()]);
        assert!(matches!(newer, Err(SnapshotError::UnknownFormat { format: 2 })));
        for cut in 0..200 {
            assert!(Snapshot::decode([&parts[0].slice(..cut)]).is_err());
        }
    }

    /// Whatever bit is another, it is no snapshot, or not one of this log.
    #[test]
    fn a_flipped_bit_is_noticed() {
        let log = log(300);
        let (parts, checkpoint) = (log.snapshot().encode(), log.checkpoint());
        let whole = &parts[0];
        for at in (0..whole.len()).step_by(7) {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 1 << (at % 8);
            let opened = Snapshot::decode([&flipped.into()]).and_then(|read| read.open(&checkpoint, &[]));
            assert!(opened.is_err(), "byte {at}");
        }
    }
}
