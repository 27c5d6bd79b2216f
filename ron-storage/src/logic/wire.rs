//! `ron/blob/1`: what nodes ask each other, as bytes and back.
//!
//! Bodies are maps with integer keys in deterministic CBOR, every count checked before anything is allocated for it, and
//! `docs/formats.md` has them all. The bytes of objects travel as proofs and are no part of this.

use std::ops::Range;

use bytes::Bytes;
use minicbor::Decoder;
use ron_core::{
    ContentId,
    net::cbor::{self, CborFault, read_array, read_bytes, read_list, read_only_map, required},
};

use super::inventory::{LISTED_MAX, PARTS, Part, Prefix, QUESTION_PARTS_MAX, Question, Told};

/// The numbers of the methods.
pub mod method {
    /// Which of these objects are here?
    pub const HAVE: u16 = 1;
    /// Some groups of an object, with proof.
    pub const GET: u16 = 2;
    /// Take this object.
    pub const PUSH: u16 = 3;
    /// What is here, compared with what the asker has.
    pub const INVENTORY: u16 = 4;
    /// What hosts tell each other about who claims which object.
    pub const CLAIMS: u16 = 5;
}

/// Objects in one question.
pub const IDS_MAX: usize = 2048;

/// Ranges of one object in one question.
pub const RANGES_MAX: usize = 64;

/// Bytes of what comes with an offer.
pub const OFFER_CLAIM_BYTES_MAX: usize = 16 << 10;

/// Bytes of the words of a refusal.
const REASON_BYTES_MAX: usize = 256;

/// Whether an object is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// All of it, so many bytes.
    Complete(u64),
    /// A part of so many bytes: it is still being fetched.
    Partial(u64),
    /// Nothing of it.
    Absent,
}

/// The answer to a question which of some objects are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Whether what is there survives a crash. What a node in memory has is no copy that counts.
    pub is_durable: bool,
    /// One for each object, in the order of the question.
    pub held: Vec<Held>,
}

/// What is wanted of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Which object.
    pub id: ContentId,
    /// Which bytes of it, widened to whole groups; all of it if there are none.
    pub ranges: Vec<Range<u64>>,
    /// Whether the last group is wanted too. It proves how long the object is.
    pub with_last: bool,
}

impl Want {
    /// All of an object.
    #[must_use]
    pub fn all(id: ContentId) -> Self {
        Want { id, ranges: Vec::new(), with_last: false }
    }

    /// A part of an object.
    #[must_use]
    pub fn part(id: ContentId, ranges: Vec<Range<u64>>) -> Self {
        Want { id, ranges, with_last: false }
    }
}

/// An object that somebody is to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Which object.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// What the taker's host judges it by, such as a signed claim. The store does not look into it.
    pub claim: Bytes,
}

/// Why somebody does not take an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Decline {
    /// Its host does not want it, in its words.
    #[error("not wanted: {reason}")]
    Unwanted {
        /// Why.
        reason: String,
    },
    /// It was deleted, and that is remembered.
    #[error("it was deleted")]
    Deleted,
    /// A limit of its settings would be exceeded.
    #[error("its quota is spent")]
    Quota,
    /// Its disk is full.
    #[error("its disk is full")]
    Full,
    /// It takes no object of this length.
    #[error("longer than it takes, which is {limit} bytes")]
    TooLarge {
        /// The longest it takes.
        limit: u64,
    },
    /// The bytes that it was given are not those of the object, or stopped coming.
    #[error("the bytes did not come: {reason}")]
    Source {
        /// In its words.
        reason: String,
    },
    /// Its disk failed, or it is stopping.
    #[error("it failed: {reason}")]
    Failed {
        /// In its words.
        reason: String,
    },
}

/// What the taker of an object says, in this order: any number of times how far it is, and once how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taking {
    /// It was accepted, and its bytes come.
    OnItsWay,
    /// It is there.
    Stored {
        /// Whether it survives a crash.
        is_durable: bool,
        /// Whether it was there before.
        existed: bool,
    },
    /// It is not taken.
    Declined(Decline),
}

fn read_ids(cbor: &mut Decoder<'_>) -> Result<Vec<ContentId>, CborFault> {
    let bytes = read_bytes(cbor, ("ids", 32 * IDS_MAX))?;
    let ids = bytes.chunks_exact(32);
    if !ids.remainder().is_empty() {
        return Err(CborFault::Malformed);
    }
    Ok(ids.map(|id| ContentId::from_bytes(id.try_into().expect("32 bytes"))).collect())
}

fn joined(ids: &[ContentId]) -> Vec<u8> {
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

/// The question which of these objects are there.
#[must_use]
pub fn write_have(ids: &[ContentId]) -> Bytes {
    cbor::encode(8 + 32 * ids.len(), |cbor| cbor.map(1)?.u64(0)?.bytes(&joined(ids))?.ok()).into()
}

/// Reads [`write_have`].
///
/// # Errors
/// A [`CborFault`].
pub fn read_have(body: &[u8]) -> Result<Vec<ContentId>, CborFault> {
    let mut ids = None;
    read_only_map(body, |key, cbor| {
        match key {
            0 => ids = Some(read_ids(cbor)?),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    })?;
    required(ids, 0)
}

impl Holding {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let states: Vec<u8> = self
            .held
            .iter()
            .map(|held| match held {
                Held::Absent => 0,
                Held::Partial(_) => 1,
                Held::Complete(_) => 2,
            })
            .collect();
        cbor::encode(16 + 10 * states.len(), |cbor| {
            cbor.map(3)?.u64(0)?.bool(self.is_durable)?.u64(1)?.bytes(&states)?.u64(2)?;
            let lengths = self.held.iter().filter_map(Held::len);
            cbor.array(lengths.clone().count() as u64)?;
            for length in lengths {
                cbor.u64(length)?;
            }
            cbor.ok()
        })
        .into()
    }

    /// Reads [`encode`](Self::encode).
    ///
    /// # Errors
    /// A [`CborFault`].
    pub fn decode(body: &[u8]) -> Result<Self, CborFault> {
        let (mut is_durable, mut states, mut lengths) = (None, None, None);
        read_only_map(body, |key, cbor| {
            match key {
                0 => is_durable = Some(cbor.bool()?),
                1 => states = Some(read_bytes(cbor, ("states", IDS_MAX))?),
                2 => {
                    let length = |cbor: &mut Decoder<'_>| Ok::<_, CborFault>(cbor.u64()?);
                    lengths = Some(read_list(cbor, ("lengths", IDS_MAX), length)?);
                }
                _ => return Ok(false),
            }
            Ok::<bool, CborFault>(true)
        })?;
        let mut lengths = required(lengths, 2)?.into_iter();
        let mut length = || lengths.next().ok_or(CborFault::Malformed);
        let held = required(states, 1)?.iter().map(|state| match state {
            0 => Ok(Held::Absent),
            1 => Ok(Held::Partial(length()?)),
            2 => Ok(Held::Complete(length()?)),
            _ => Err(CborFault::OutOfRange { what: "state" }),
        });
        let held = held.collect::<Result<_, _>>()?;
        if lengths.next().is_some() {
            return Err(CborFault::Malformed);
        }
        Ok(Holding { is_durable: required(is_durable, 0)?, held })
    }
}

impl Held {
    /// The length of the object, where it is known.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        match self {
            Held::Complete(len) | Held::Partial(len) => Some(*len),
            Held::Absent => None,
        }
    }

    /// Whether nothing of it is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Held::Absent)
    }
}

impl Want {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        cbor::encode(64 + 20 * self.ranges.len(), |cbor| {
            let keys = 1 + u64::from(!self.ranges.is_empty()) + u64::from(self.with_last);
            cbor.map(keys)?.u64(0)?.bytes(self.id.as_bytes())?;
            if !self.ranges.is_empty() {
                cbor.u64(1)?.array(2 * self.ranges.len() as u64)?;
                for range in &self.ranges {
                    cbor.u64(range.start)?.u64(range.end)?;
                }
            }
            if self.with_last {
                cbor.u64(2)?.bool(true)?;
            }
            cbor.ok()
        })
        .into()
    }

    /// Reads [`encode`](Self::encode).
    ///
    /// # Errors
    /// A [`CborFault`].
    pub fn decode(body: &[u8]) -> Result<Self, CborFault> {
        let (mut id, mut ends, mut with_last) = (None, Vec::new(), false);
        read_only_map(body, |key, cbor| {
            match key {
                0 => id = Some(ContentId::from_bytes(read_array(cbor, "id")?)),
                1 => {
                    let end = |cbor: &mut Decoder<'_>| Ok::<_, CborFault>(cbor.u64()?);
                    ends = read_list(cbor, ("ranges", 2 * RANGES_MAX), end)?;
                    if ends.is_empty() {
                        return Err(CborFault::Malformed);
                    }
                }
                2 => with_last = cbor.bool()?,
                _ => return Ok(false),
            }
            Ok::<bool, CborFault>(true)
        })?;
        let pairs = ends.chunks_exact(2);
        let is_paired = pairs.remainder().is_empty();
        let ranges: Vec<Range<u64>> = pairs.map(|pair| pair[0]..pair[1]).collect();
        if !is_paired || ranges.iter().any(Range::is_empty) {
            return Err(CborFault::OutOfRange { what: "ranges" });
        }
        Ok(Want { id: required(id, 0)?, ranges, with_last })
    }
}

impl Offer {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        cbor::encode(64 + self.claim.len(), |cbor| {
            cbor.map(3)?.u64(0)?.bytes(self.id.as_bytes())?.u64(1)?.u64(self.len)?;
            cbor.u64(2)?.bytes(&self.claim)?.ok()
        })
        .into()
    }

    /// Reads [`encode`](Self::encode).
    ///
    /// # Errors
    /// A [`CborFault`].
    pub fn decode(body: &[u8]) -> Result<Self, CborFault> {
        let (mut id, mut len, mut claim) = (None, None, &[][..]);
        read_only_map(body, |key, cbor| {
            match key {
                0 => id = Some(ContentId::from_bytes(read_array(cbor, "id")?)),
                1 => len = Some(cbor.u64()?),
                2 => claim = read_bytes(cbor, ("claim", OFFER_CLAIM_BYTES_MAX))?,
                _ => return Ok(false),
            }
            Ok::<bool, CborFault>(true)
        })?;
        Ok(Offer { id: required(id, 0)?, len: required(len, 1)?, claim: Bytes::copy_from_slice(claim) })
    }
}

impl Taking {
    /// As bytes, which travel as one chunk of the answer.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let (kind, number, words): (u64, u64, &str) = match self {
            Taking::OnItsWay => (0, 0, ""),
            Taking::Stored { is_durable, existed } => {
                (1, u64::from(*is_durable) | u64::from(*existed) << 1, "")
            }
            Taking::Declined(decline) => match decline {
                Decline::Unwanted { reason } => (2, 0, reason),
                Decline::Deleted => (2, 1, ""),
                Decline::Quota => (2, 2, ""),
                Decline::Full => (2, 3, ""),
                Decline::TooLarge { limit } => (3, *limit, ""),
                Decline::Source { reason } => (2, 4, reason),
                Decline::Failed { reason } => (2, 5, reason),
            },
        };
        let mut end = words.len().min(REASON_BYTES_MAX);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        cbor::encode(24 + end, |cbor| {
            cbor.map(3)?.u64(0)?.u64(kind)?.u64(1)?.u64(number)?.u64(2)?.str(&words[..end])?.ok()
        })
        .into()
    }

    /// Reads [`encode`](Self::encode).
    ///
    /// # Errors
    /// A [`CborFault`].
    pub fn decode(body: &[u8]) -> Result<Self, CborFault> {
        let (mut kind, mut number, mut words) = (None, None, "");
        read_only_map(body, |key, cbor| {
            match key {
                0 => kind = Some(cbor.u64()?),
                1 => number = Some(cbor.u64()?),
                2 => words = cbor.str()?,
                _ => return Ok(false),
            }
            Ok::<bool, CborFault>(true)
        })?;
        if words.len() > REASON_BYTES_MAX {
            return Err(CborFault::TooMany { what: "reason" });
        }
        let reason = words.to_owned();
        Ok(match (required(kind, 0)?, required(number, 1)?) {
            // A number has nothing to say here, and need not stay 0.
            (0, _) => Taking::OnItsWay,
            (1, flags @ 0..4) => Taking::Stored { is_durable: flags & 1 != 0, existed: flags & 2 != 0 },
            (2, 0) => Taking::Declined(Decline::Unwanted { reason }),
            (2, 1) => Taking::Declined(Decline::Deleted),
            (2, 2) => Taking::Declined(Decline::Quota),
            (2, 3) => Taking::Declined(Decline::Full),
            (2, 4) => Taking::Declined(Decline::Source { reason }),
            // Of a later version, perhaps: it is not taken, whatever the reason.
            (2, _) => Taking::Declined(Decline::Failed { reason }),
            (3, limit) => Taking::Declined(Decline::TooLarge { limit }),
            _ => return Err(CborFault::OutOfRange { what: "taking" }),
        })
    }
}

/// A question for a comparison.
#[must_use]
pub fn write_question(question: &Question) -> Bytes {
    cbor::encode(16 + 60 * question.len(), |cbor| {
        cbor.map(1)?.u64(0)?.array(4 * question.len() as u64)?;
        for (prefix, told) in question {
            cbor.u16(prefix.bits())?.bytes(prefix.bytes())?.u64(told.count)?.bytes(&told.fingerprint)?;
        }
        cbor.ok()
    })
    .into()
}

/// Reads [`write_question`].
///
/// # Errors
/// A [`CborFault`].
pub fn read_question(body: &[u8]) -> Result<Question, CborFault> {
    let mut question = None;
    read_only_map(body, |key, cbor| {
        match key {
            0 => {
                let fields = cbor.array()?.ok_or(CborFault::Malformed)?;
                if fields % 4 != 0 || fields > 4 * QUESTION_PARTS_MAX as u64 {
                    return Err(CborFault::TooMany { what: "parts" });
                }
                let part = |_| {
                    let bits = cbor.u16()?;
                    let bytes = read_bytes(cbor, ("prefix", 32))?;
                    let prefix = Prefix::new(bytes, bits).ok_or(CborFault::OutOfRange { what: "prefix" })?;
                    Ok((prefix, read_told(cbor)?))
                };
                let parts = (0..fields / 4).map(part).collect::<Result<Question, CborFault>>()?;
                if !parts.is_sorted_by(|(one, _), (next, _)| one.last() < next.first()) {
                    return Err(CborFault::OutOfRange { what: "parts" });
                }
                question = Some(parts);
            }
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    })?;
    required(question, 0)
}

fn read_told(cbor: &mut Decoder<'_>) -> Result<Told, CborFault> {
    Ok(Told { count: cbor.u64()?, fingerprint: read_array(cbor, "fingerprint")? })
}

/// The answer to a question for a comparison.
#[must_use]
pub fn write_parts(parts: &[Part]) -> Bytes {
    cbor::encode(16 + 64 * parts.len(), |cbor| {
        cbor.map(1)?.u64(0)?.array(parts.len() as u64)?;
        for part in parts {
            match part {
                Part::Same => cbor.null()?.ok()?,
                Part::Listed(ids) => cbor.bytes(&joined(ids))?.ok()?,
                Part::Cut(parts) => {
                    cbor.array(2 * PARTS as u64)?;
                    for told in &**parts {
                        cbor.u64(told.count)?.bytes(&told.fingerprint)?;
                    }
                }
            }
        }
        cbor.ok()
    })
    .into()
}

/// Reads [`write_parts`].
///
/// # Errors
/// A [`CborFault`].
pub fn read_parts(body: &[u8]) -> Result<Vec<Part>, CborFault> {
    use minicbor::data::Type;
    let mut parts = None;
    read_only_map(body, |key, cbor| {
        match key {
            0 => {
                parts =
                    Some(read_list(cbor, ("parts", QUESTION_PARTS_MAX), |cbor| match cbor.datatype()? {
                        Type::Null => Ok::<_, CborFault>(cbor.null().map(|()| Part::Same)?),
                        Type::Bytes => {
                            let ids = read_ids(cbor)?;
                            let fits = ids.len() as u64 <= LISTED_MAX;
                            fits.then_some(Part::Listed(ids)).ok_or(CborFault::TooMany { what: "ids" })
                        }
                        _ => {
                            if cbor.array()? != Some(2 * PARTS as u64) {
                                return Err(CborFault::Malformed);
                            }
                            let mut told = [Told::default(); PARTS];
                            for told in &mut told {
                                *told = read_told(cbor)?;
                            }
                            Ok(Part::Cut(Box::new(told)))
                        }
                    })?);
            }
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    })?;
    required(parts, 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::{
        super::inventory::{Comparison, answer},
        *,
    };

    fn id(number: u64) -> ContentId {
        ContentId::of(&number.to_be_bytes())
    }

    #[test]
    fn messages_survive_the_wire() {
        let ids: Vec<_> = (0..5).map(id).collect();
        assert_eq!(read_have(&write_have(&ids)), Ok(ids.clone()));
        let held = vec![Held::Complete(7), Held::Absent, Held::Partial(u64::MAX)];
        let holding = Holding { is_durable: true, held };
        assert_eq!(Holding::decode(&holding.encode()), Ok(holding));
        for ranges in [vec![], vec![0..1, 9..u64::MAX]] {
            for with_last in [false, true] {
                let want = Want { id: id(1), ranges: ranges.clone(), with_last };
                assert_eq!(Want::decode(&want.encode()), Ok(want));
            }
        }
        let offer = Offer { id: id(1), len: 9, claim: Bytes::from_static(b"claim") };
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        let reason = "because".to_owned();
        let declines = [
            Decline::Unwanted { reason: reason.clone() },
            Decline::Deleted,
            Decline::Quota,
            Decline::Full,
            Decline::TooLarge { limit: 4 },
            Decline::Source { reason: reason.clone() },
            Decline::Failed { reason },
        ];
        let stored = Taking::Stored { is_durable: true, existed: false };
        for taking in declines.map(Taking::Declined).into_iter().chain([stored, Taking::OnItsWay]) {
            assert_eq!(Taking::decode(&taking.encode()), Ok(taking));
        }
        let (ours, theirs): (BTreeSet<_>, BTreeSet<_>) =
            ((0..300).map(id).collect(), (5..400).map(id).collect());
        let mut comparison = Comparison::new(1000);
        while let Some(question) = comparison.poll(&ours).unwrap() {
            assert_eq!(read_question(&write_question(&question)), Ok(question.clone()));
            let parts = answer(&theirs, &question);
            assert_eq!(read_parts(&write_parts(&parts)), Ok(parts.clone()));
            comparison.on_answer(&ours, &parts).unwrap();
        }
    }

    #[test]
    fn what_is_too_much_or_makes_no_sense_is_refused() {
        let many = vec![id(1); IDS_MAX + 1];
        assert_eq!(read_have(&write_have(&many)), Err(CborFault::TooMany { what: "ids" }));
        assert_eq!(read_have(b"\xa1\x00\x43abc"), Err(CborFault::Malformed));
        assert_eq!(read_have(b"\xa0"), Err(CborFault::Missing { key: 0 }));
        let want = |ranges| Want::decode(&Want::part(id(1), ranges).encode());
        assert_eq!(want(vec![5..9; RANGES_MAX + 1]), Err(CborFault::TooMany { what: "ranges" }));
        assert_eq!(want(vec![5..5]), Err(CborFault::OutOfRange { what: "ranges" }));
        let claim = Bytes::from(vec![0; OFFER_CLAIM_BYTES_MAX + 1]);
        let offer = Offer { id: id(1), len: 1, claim };
        assert_eq!(Offer::decode(&offer.encode()), Err(CborFault::TooMany { what: "claim" }));
        let state = b"\xa3\x00\xf5\x01\x41\x07\x02\x80";
        assert_eq!(Holding::decode(state), Err(CborFault::OutOfRange { what: "state" }));
        let lost = b"\xa3\x00\xf5\x01\x41\x02\x02\x80";
        assert_eq!(Holding::decode(lost), Err(CborFault::Malformed));
        assert_eq!(Taking::decode(b"\xa2\x00\x09\x01\x00"), Err(CborFault::OutOfRange { what: "taking" }));
        let long = Taking::Declined(Decline::Failed { reason: "ä".repeat(1000) });
        let Ok(Taking::Declined(Decline::Failed { reason })) = Taking::decode(&long.encode()) else {
            panic!("it is cut");
        };
        assert_eq!(reason, "ä".repeat(128));
        let prefix = b"\xa1\x00\x84\x05\x41\xff\x01\x50";
        assert!(read_question(&[&prefix[..], &[0; 16]].concat()).is_err());
        let twice = vec![(Prefix::ALL, Told::default()); 2];
        assert_eq!(read_question(&write_question(&twice)), Err(CborFault::OutOfRange { what: "parts" }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
            let _ = (read_have(&bytes), Holding::decode(&bytes), Want::decode(&bytes), Offer::decode(&bytes));
            let _ = (Taking::decode(&bytes), read_question(&bytes), read_parts(&bytes));
        }
    }
}
