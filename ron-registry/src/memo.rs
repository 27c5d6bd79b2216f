//! What makes the next opening quick: everything that was known of the log when it stopped.
//!
//! Without it a log is read through from its beginning, or from its last snapshot, which takes seconds for a million
//! entries. It is a cache: it is kept at a clean stop, may be lost, and nothing in it is believed. Names and policy must be
//! what the last entry says, every tile what the level above it says, and the root what the signed head in the store says;
//! if they are not, the log is read through as if there were none. Only the sizes and times that retention goes by, and
//! the proposals that were committed last, are as true as the checksum of the file they were in.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    Deadline,
    net::cbor::{self, CborFault, read_bytes, read_only_map, required},
};

use crate::{
    logic::{
        entry::Entry,
        proposal::ProposalId,
        snapshot::{Snapshot, SnapshotError},
        state::State,
        tiles::{TileSource as _, Tree},
    },
    shared::{Mark, Marks, RECENT_MAX, Shared},
    store::StoredMemo,
};

/// How long keeping it may take. The stop ends it sooner if its drain does not last as long: then the next opening reads the log.
const KEEPING: Duration = Duration::from_secs(60);

/// The only format there is so far.
const FORMAT_1: u64 = 1;

const FORMAT: u64 = 0;
const MINIMUM: u64 = 1;
const LEVELS: u64 = 2;
const BYTES: u64 = 3;
const GONE: u64 = 4;
const MARKS: u64 = 5;
const RECENT: u64 = 6;

/// Bytes of a mark: version, time and size.
const MARK: usize = 24;
/// Marks in the largest log that is kept like this: as many as fit the memory of a large machine.
const MARKS_MAX: usize = 1 << 24;
/// Bytes of a proposal that was committed, and where.
const COMMITTED: usize = 40;

/// A log, as far as it is known.
#[derive(Debug)]
pub(crate) struct Memo {
    pub(crate) state: State,
    pub(crate) tree: Tree,
    pub(crate) marks: Marks,
    pub(crate) last: Entry,
    /// Proposals that were committed last, the oldest first.
    pub(crate) recent: VecDeque<(ProposalId, u64)>,
}

impl Memo {
    /// Its parts: the small things, the tiles of each level, and the snapshot of the last entry. None of a log that has
    /// not begun.
    pub(crate) fn encode(&self) -> Option<Vec<Bytes>> {
        let Memo { state, tree, marks, last, recent } = self;
        let snapshot = Snapshot::take(state, tree, last).ok().flatten()?;
        let levels = tree.full_tiles();
        let Marks { at, bytes, gone } = marks;
        let numbers = |mark: &Mark| [mark.version, mark.time, mark.bytes].map(u64::to_be_bytes).concat();
        let at: Vec<u8> = at.iter().flat_map(numbers).collect();
        let committed =
            |(id, version): &(ProposalId, u64)| [&id.as_bytes()[..], &version.to_be_bytes()].concat();
        let recent: Vec<u8> = recent.iter().flat_map(committed).collect();
        let small = cbor::encode(at.len() + recent.len() + 64, |cbor| {
            cbor.map(7)?.u64(FORMAT)?.u64(FORMAT_1)?;
            cbor.u64(MINIMUM)?.u64(tree.minimum())?;
            cbor.u64(LEVELS)?.u64(levels.len() as u64)?.u64(BYTES)?.u64(*bytes)?.u64(GONE)?.u64(*gone)?;
            cbor.u64(MARKS)?.bytes(&at)?.u64(RECENT)?.bytes(&recent)?.ok()
        });
        let mut parts = vec![Bytes::from(small)];
        parts.extend(levels.iter().map(|tiles| Bytes::from(tiles.concat())));
        parts.extend(snapshot.encode());
        Some(parts)
    }

    /// Reads what [`encode`](Self::encode) gives, if it fits together. Whether it is of the right log shows when its root
    /// is compared with a signed head.
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub(crate) fn decode(parts: &[Bytes]) -> Result<Self, SnapshotError> {
        let (small, rest) = parts.split_first().ok_or(SnapshotError::Malformed)?;
        let (mut format, mut minimum, mut levels) = (None, None, None);
        let (mut bytes, mut gone, mut at, mut recent) = (None, None, None, None);
        read_only_map(small, |key, cbor| {
            match key {
                FORMAT => format = Some(cbor.u64()?),
                MINIMUM => minimum = Some(cbor.u64()?),
                LEVELS => levels = Some(cbor.u64()?),
                BYTES => bytes = Some(cbor.u64()?),
                GONE => gone = Some(cbor.u64()?),
                MARKS => at = Some(read_bytes(cbor, ("marks", MARKS_MAX * MARK))?),
                RECENT => recent = Some(read_bytes(cbor, ("recent", RECENT_MAX * COMMITTED))?),
                _ => return Ok::<_, CborFault>(false),
            }
            Ok(true)
        })?;
        match required(format, FORMAT)? {
            FORMAT_1 => {}
            format => return Err(SnapshotError::UnknownFormat { format }),
        }
        let levels = usize::try_from(required(levels, LEVELS)?).unwrap_or(usize::MAX);
        let (tiles, snapshot) = rest.split_at_checked(levels).ok_or(SnapshotError::Malformed)?;
        let (state, mut tree, last) = Snapshot::decode(snapshot)?.restore()?;
        if !tree.fill(required(minimum, MINIMUM)?, tiles) {
            return Err(SnapshotError::Malformed);
        }
        let at = required(at, MARKS)?.chunks_exact(MARK).map(|mark| {
            let number = |at: usize| u64::from_be_bytes(mark[at..at + 8].try_into().expect("eight bytes"));
            Mark { version: number(0), time: number(8), bytes: number(16) }
        });
        let marks = Marks { at: at.collect(), bytes: required(bytes, BYTES)?, gone: required(gone, GONE)? };
        let recent = required(recent, RECENT)?.chunks_exact(COMMITTED).map(|one| {
            let (id, version) = one.split_first_chunk().expect("forty bytes");
            (ProposalId::from_bytes(*id), u64::from_be_bytes(version.try_into().expect("the last eight")))
        });
        Ok(Memo { state, tree, marks, last, recent: recent.collect() })
    }
}

/// Keeps what is known now, at the stop. That it could not be kept costs time at the next start and nothing else.
pub(crate) async fn keep(shared: &Arc<Shared>, recent: VecDeque<(ProposalId, u64)>) {
    let view = shared.view.load();
    let version = view.state.head().version;
    let Some(last) = view.last.clone() else { return };
    let (tree, marks) = (shared.tree.lock().clone(), shared.marks.lock().clone());
    let (first, opened) = (tree.minimum() + 1, shared.opened);
    if tree.size() != version || (opened.memo, opened.memo_first) == (version, first) {
        return;
    }
    let memo = Memo { state: view.state.clone(), tree, marks, last, recent };
    // A million names are more than a hundred megabytes.
    let deadline = Deadline::after(KEEPING);
    let encoded = shared.spawner.blocking("memo_encode", deadline, move || memo.encode()).await;
    let Ok(Some(parts)) = encoded else { return };
    let kept = shared.store.keep_memo(StoredMemo { version, first, parts }, deadline).await;
    if let Err(error) = kept {
        tracing::debug!(%error, "the next opening reads the whole log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::{
        fixture::{LATER, ORIGIN, START, bind, identity, policy, propose},
        merkle::TreeHash,
        proposal::Action,
        tiles::Prover,
    };

    fn memo(entries: u64, pruned: u64) -> Memo {
        let (mut state, mut tree, mut marks) = (State::new(ORIGIN), Tree::new(), Marks::default());
        let mut recent = VecDeque::new();
        let founded = propose(0, Action::Found { policy: Arc::new(policy(1, 1)) });
        let mut last = state.commit(founded, vec![], START).unwrap();
        for number in 1..=entries {
            tree.push(TreeHash::of_leaf(last.encoded()));
            marks.note(&last);
            recent.push_back((last.proposal().id(), number));
            if number < entries {
                let proposal = bind(1, &format!("n/{number}"), 0, "x");
                // One for all of them would do: signatures are not looked at here.
                let approval = proposal.approve(&identity(0), LATER).verify().unwrap().recorded();
                last = state.commit(proposal, vec![approval], START).unwrap();
            }
        }
        tree.prune(pruned);
        marks.prune(pruned);
        Memo { state, tree, marks, last, recent }
    }

    #[test]
    fn what_is_kept_is_what_was_known() {
        for (entries, pruned) in [(1, 0), (2, 0), (255, 0), (256, 0), (257, 256), (700, 0), (700, 512)] {
            let memo = memo(entries, pruned);
            let again = Memo::decode(&memo.encode().unwrap()).unwrap();
            assert_eq!(again.state.head(), memo.state.head());
            assert_eq!((again.tree.root(), again.tree.minimum()), (memo.tree.root(), pruned));
            assert_eq!(again.tree.full_tiles(), memo.tree.full_tiles());
            assert_eq!((again.marks.at, again.marks.bytes), (memo.marks.at, memo.marks.bytes));
            assert_eq!((again.last, again.recent), (memo.last, memo.recent));
            for index in [pruned, entries - 1] {
                let proofs = [&again.tree, &memo.tree]
                    .map(|tree| Prover::new(tree, entries).inclusion(index).unwrap());
                assert_eq!(proofs[0], proofs[1]);
            }
        }
    }

    /// Whatever tile is another, it is noticed before anything is proven with it.
    #[test]
    fn tiles_that_are_not_of_the_tree_are_refused() {
        let parts = memo(700, 0).encode().unwrap();
        for (part, at) in [(1, 0), (1, 10_000), (1, parts[1].len() - 1)] {
            let mut forged = parts.clone();
            let mut bytes = forged[part].to_vec();
            bytes[at] ^= 1;
            forged[part] = bytes.into();
            assert!(matches!(Memo::decode(&forged), Err(SnapshotError::Malformed)), "part {part}, byte {at}");
        }
        let mut short = parts.clone();
        short[1].truncate(8192);
        assert!(matches!(Memo::decode(&short), Err(SnapshotError::Malformed)));
        for missing in 0..parts.len() {
            let mut fewer = parts.clone();
            fewer.remove(missing);
            assert!(Memo::decode(&fewer).is_err(), "without part {missing}");
        }
    }
}
