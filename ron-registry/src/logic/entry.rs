//! An entry of the log, as the bytes that both the chain and the tree are over.
//!
//! It is a proposal with what the committer adds: its version, the link before it, the time, the approvals that carried
//! it, and the root of the names after it. There is one spelling: whatever does not encode to the same bytes again is no
//! entry, or one meaning would have two hashes.

use bytes::Bytes;
use ron_core::net::cbor::{self, read_array, read_bytes, read_list, read_only_map, required};

use super::{
    chain::ChainHash,
    names::MapHash,
    policy::SIGNERS_MAX,
    proposal::{Action, FormError, PROPOSAL_BYTES_MAX, Proposal, RecordedApproval},
    tiles::ENTRY_BYTES_MAX,
};

/// Approvals in the largest entry: a rotation takes those of two policies, everything else those of one.
pub const APPROVALS_MAX: usize = 2 * SIGNERS_MAX;

/// The last version there can be: half of what fits, so that nothing overflows that counts on from one.
pub const VERSION_MAX: u64 = 1 << 63;

/// The only format there is so far.
const FORMAT_1: u64 = 1;

const FORMAT: u64 = 0;
const VERSION: u64 = 1;
const PREVIOUS: u64 = 2;
const TIME: u64 = 3;
const PROPOSAL: u64 = 4;
const APPROVALS: u64 = 5;
const NAMES: u64 = 6;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    version: u64,
    previous: ChainHash,
    time: u64,
    proposal: Proposal,
    approvals: Vec<RecordedApproval>,
    names: MapHash,
    encoded: Bytes,
}

impl Entry {
    /// Writes an entry. Approvals are put in the order of their keys.
    ///
    /// # Errors
    /// [`FormError::TooLarge`], [`FormError::Malformed`] if a key has approved twice, [`FormError::OutOfRange`] for
    /// version 0 and those above [`VERSION_MAX`].
    pub(crate) fn new(
        version: u64,
        previous: ChainHash,
        time: u64,
        proposal: Proposal,
        mut approvals: Vec<RecordedApproval>,
        names: MapHash,
    ) -> Result<Self, FormError> {
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(FormError::OutOfRange { what: "version" });
        }
        approvals.sort_unstable_by_key(|approval| approval.key);
        let limit = match proposal.action() {
            Action::Rotate { .. } => APPROVALS_MAX,
            _ => SIGNERS_MAX,
        };
        if approvals.len() > limit {
            return Err(FormError::TooLarge { what: "approvals", limit });
        }
        if approvals.windows(2).any(|pair| pair[0].key == pair[1].key) {
            return Err(FormError::Malformed);
        }
        let encoded = cbor::encode(proposal.encoded().len() + approvals.len() * 112 + 128, |cbor| {
            cbor.map(7)?.u64(FORMAT)?.u64(FORMAT_1)?.u64(VERSION)?.u64(version)?;
            cbor.u64(PREVIOUS)?.bytes(previous.as_bytes())?.u64(TIME)?.u64(time)?;
            cbor.u64(PROPOSAL)?.bytes(proposal.encoded())?;
            cbor.u64(APPROVALS)?.array(approvals.len() as u64)?;
            approvals.iter().try_for_each(|approval| approval.write(cbor))?;
            cbor.u64(NAMES)?.bytes(names.as_bytes())?.ok()
        });
        let encoded = Bytes::from(encoded);
        if encoded.len() > ENTRY_BYTES_MAX {
            return Err(FormError::TooLarge { what: "entry bytes", limit: ENTRY_BYTES_MAX });
        }
        Ok(Entry { version, previous, time, proposal, approvals, names, encoded })
    }

    /// Reads an entry. Whether it may stand where it does is for [`State`](super::state::State) to say.
    ///
    /// # Errors
    /// A [`FormError`].
    pub fn decode(encoded: &Bytes) -> Result<Self, FormError> {
        if encoded.len() > ENTRY_BYTES_MAX {
            return Err(FormError::TooLarge { what: "entry bytes", limit: ENTRY_BYTES_MAX });
        }
        let (mut format, mut version, mut previous, mut time) = (None, None, None, None);
        let (mut proposal, mut approvals, mut names) = (None, None, None);
        read_only_map(encoded, |key, cbor| {
            match key {
                FORMAT => {
                    let found = cbor.u64()?;
                    if found != FORMAT_1 {
                        return Err(FormError::UnknownFormat { format: found });
                    }
                    format = Some(found);
                }
                VERSION => version = Some(cbor.u64()?),
                PREVIOUS => previous = Some(ChainHash::from_bytes(read_array(cbor, "previous")?)),
                TIME => time = Some(cbor.u64()?),
                PROPOSAL => {
                    let bytes = encoded.slice_ref(read_bytes(cbor, ("proposal", PROPOSAL_BYTES_MAX))?);
                    proposal = Some(Proposal::decode(&bytes)?);
                }
                APPROVALS => {
                    approvals = Some(read_list(cbor, ("approvals", APPROVALS_MAX), RecordedApproval::read)?);
                }
                NAMES => names = Some(MapHash::from_bytes(read_array(cbor, "names")?)),
                _ => return Ok::<_, FormError>(false),
            }
            Ok(true)
        })?;
        required(format, FORMAT)?;
        let mut entry = Entry::new(
            required(version, VERSION)?,
            required(previous, PREVIOUS)?,
            required(time, TIME)?,
            required(proposal, PROPOSAL)?,
            required(approvals, APPROVALS)?,
            required(names, NAMES)?,
        )?;
        if entry.encoded != encoded {
            return Err(FormError::Malformed);
        }
        entry.encoded = encoded.clone();
        Ok(entry)
    }

    /// Its place in the log, counted from one. It is leaf `version - 1` of the tree.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The link of the entry before it.
    #[must_use]
    pub fn previous(&self) -> ChainHash {
        self.previous
    }

    /// When it was committed, in milliseconds of the Unix epoch, by the committer's clock.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time
    }

    /// What was decided.
    #[must_use]
    pub fn proposal(&self) -> &Proposal {
        &self.proposal
    }

    /// Who approved it, in the order of their keys.
    #[must_use]
    pub fn approvals(&self) -> &[RecordedApproval] {
        &self.approvals
    }

    /// The root of the names with this entry.
    #[must_use]
    pub fn names(&self) -> MapHash {
        self.names
    }

    /// Its bytes.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::{
        fixture::{bind, identity},
        policy::POLICY_BYTES_MAX,
    };

    fn entry() -> Entry {
        let proposal = bind(1, "a/b", 0, "hello");
        let approve = |seed| proposal.approve(&identity(seed), 9000).verify().unwrap().recorded();
        let approvals = [2, 0, 1].map(approve).to_vec();
        let (previous, names) = (ChainHash::from_bytes([7; 32]), MapHash::from_bytes([8; 32]));
        Entry::new(3, previous, 1234, proposal, approvals, names).unwrap()
    }

    #[test]
    fn an_entry_survives_its_bytes_and_has_one_spelling() {
        let entry = entry();
        let bytes = entry.encoded().clone();
        assert_eq!(Entry::decode(&bytes), Ok(entry));
        for cut in 0..bytes.len() {
            assert!(Entry::decode(&bytes.slice(..cut)).is_err());
        }
        let check = |bytes: Vec<u8>, error| assert_eq!(Entry::decode(&bytes.into()), Err(error));
        check([&bytes[..], &[0]].concat(), FormError::Malformed);
        check([&[0xa8], &bytes[1..], &[0x18, 0x63, 0x00]].concat(), FormError::Malformed);
        check([&[0xb8, 7], &bytes[1..]].concat(), FormError::Malformed);
        check([&[0xa7, 0, 1, 1, 0], &bytes[5..]].concat(), FormError::OutOfRange { what: "version" });
        let beyond = [&[0xa7, 0, 1, 1, 0x1b], &(VERSION_MAX + 1).to_be_bytes()[..], &bytes[5..]].concat();
        check(beyond, FormError::OutOfRange { what: "version" });
        check([&[0xa7, 0, 2], &bytes[3..]].concat(), FormError::UnknownFormat { format: 2 });
        check(vec![0xa0], FormError::Missing { field: 0 });
        check(
            vec![0; ENTRY_BYTES_MAX + 1],
            FormError::TooLarge { what: "entry bytes", limit: ENTRY_BYTES_MAX },
        );
    }

    #[test]
    fn approvals_have_one_order_and_count_once() {
        let entry = entry();
        assert!(entry.approvals().is_sorted_by_key(|approval| approval.key));
        let again = |approvals| {
            let proposal = entry.proposal().clone();
            Entry::new(3, entry.previous(), 1234, proposal, approvals, entry.names())
        };
        let mut turned = entry.approvals().to_vec();
        turned.reverse();
        assert_eq!(again(turned.clone()).unwrap(), entry);
        turned[0] = turned[1];
        assert_eq!(again(turned), Err(FormError::Malformed));
        // The same approvals in another order are other bytes, and no entry.
        let bytes = entry.encoded().to_vec();
        let keys: Vec<_> = entry.approvals().iter().map(|approval| *approval.key.as_bytes()).collect();
        let at = |key: &[u8; 32]| bytes.windows(32).position(|window| window == key).unwrap();
        let (first, second) = (at(&keys[0]), at(&keys[1]));
        let (mut swapped, len) = (bytes.clone(), second - first);
        let (one, two) = (&bytes[first..first + len], &bytes[second..second + len]);
        swapped[first..first + len].copy_from_slice(two);
        swapped[second..second + len].copy_from_slice(one);
        assert_eq!(Entry::decode(&swapped.into()), Err(FormError::Malformed));
    }

    #[test]
    fn the_largest_entry_fits_a_bundle() {
        let proposal = bind(
            u64::MAX,
            &"n".repeat(255),
            u64::MAX,
            &"x".repeat(super::super::proposal::PAYLOAD_BYTES_MAX),
        );
        let approval = proposal.approve(&identity(0), u64::MAX).verify().unwrap().recorded();
        let key = |at: u8| ron_core::net::PublicKey::from_bytes([at; 32]);
        let approvals = (0..64).map(|at| RecordedApproval { key: key(at), ..approval }).collect();
        let entry = Entry::new(
            VERSION_MAX,
            ChainHash::from_bytes([7; 32]),
            u64::MAX,
            proposal,
            approvals,
            MapHash::EMPTY,
        );
        assert!(entry.unwrap().encoded().len() <= ENTRY_BYTES_MAX);
        // Whatever else a proposal holds, its limit leaves room for as much beside it.
        const { assert!(PROPOSAL_BYTES_MAX + SIGNERS_MAX * 112 + 128 <= ENTRY_BYTES_MAX) };
        // A rotation has more approvals, and instead of a payload a policy.
        const { assert!(POLICY_BYTES_MAX + 1024 + APPROVALS_MAX * 112 + 128 <= ENTRY_BYTES_MAX) };
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>, at in 0usize..1000, byte: u8) {
            let _ = Entry::decode(&bytes.into());
            let mut near = entry().encoded().to_vec();
            let at = at % near.len();
            near[at] = byte;
            let near = Bytes::from(near);
            if let Ok(entry) = Entry::decode(&near) {
                prop_assert_eq!(entry.encoded(), &near);
            }
        }
    }
}
