//! One record as it is kept: where it belongs, what it counts for, and which of two for one place stays.

use std::{cmp::Ordering, time::Duration};

use bytes::Bytes;
use ron_core::NodeId;

use super::super::{Key, addrs::Source, signed::Record};

/// What one record costs beside its own bytes: its row (about 150), its places in the indexes by key, expiry, source
/// and publisher (about 200, as half-full tree nodes), and the allocator's rounding.
pub const RECORD_OVERHEAD: usize = 384;

/// One record as a durable store writes it down, and as [`Records::restore`](super::Records::restore) takes it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The record as it travels.
    pub encoded: Bytes,
    /// Whether it is a value and not a provider record.
    pub is_value: bool,
    /// Whom it is counted with.
    pub source: Source,
    /// When it is forgotten.
    pub expires: Duration,
}

/// One record in the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) place: Place,
    pub(super) source: Source,
    pub(super) seq: u64,
    pub(super) is_withdrawn: bool,
    pub(super) expires: Duration,
    pub(super) encoded: Bytes,
}

/// Of each there is one under a key. A value under its own hash has a place of its own: its bytes may be a public key
/// and a salt, and it would then be in the way of the value that belongs to those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Provider(NodeId),
    Immutable,
    Mutable(NodeId),
}

impl Place {
    pub(super) fn publisher(self) -> Option<NodeId> {
        match self {
            Place::Provider(publisher) | Place::Mutable(publisher) => Some(publisher),
            Place::Immutable => None,
        }
    }
}

impl Row {
    pub(super) fn of(record: &Record, source: Source, expires: Duration) -> Self {
        match record {
            Record::Provider(record) => Row {
                key: record.key(),
                place: Place::Provider(record.publisher()),
                source,
                seq: record.seq(),
                is_withdrawn: record.is_withdrawn(),
                expires,
                encoded: record.encoded().clone(),
            },
            Record::Value(value) => Row {
                key: value.key(),
                place: value.signer().map_or(Place::Immutable, |signer| Place::Mutable(signer.publisher)),
                source,
                seq: value.signer().map_or(0, |signer| signer.seq),
                is_withdrawn: false,
                expires,
                encoded: value.encoded().clone(),
            },
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.encoded.len() + RECORD_OVERHEAD
    }

    /// Which of two records for one place counts. All nodes come to the same answer, whatever arrives first: the
    /// higher number; of two with the same, a withdrawal; otherwise the greater bytes. Two values under one hash are one
    /// value, however long they ask to live: nobody signed that, so it must not decide whose word counts.
    pub(super) fn precedence(&self, other: &Row) -> Ordering {
        if self.place == Place::Immutable {
            return Ordering::Equal;
        }
        let rank = |row: &Row| (row.seq, row.is_withdrawn);
        rank(self).cmp(&rank(other)).then_with(|| self.encoded.cmp(&other.encoded))
    }

    /// As it is written down.
    pub(super) fn kept(&self) -> Kept {
        Kept {
            encoded: self.encoded.clone(),
            is_value: !matches!(self.place, Place::Provider(_)),
            source: self.source,
            expires: self.expires,
        }
    }
}
