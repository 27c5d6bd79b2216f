//! What the journal of a store says, record by record.
//!
//! The payload of a small object is the object itself: its name is the hash that every reader computes anyway, and the
//! journal's own sum is the beginning of it. All other records are short and of one length each. The flags of an object
//! follow its record whenever that is written, so whoever reads the journal in order knows everything about an object from
//! its last record on, and earlier ones can go.

use ron_core::ContentId;

/// A record's kind, as the journal keeps it.
pub const SMALL: u8 = 1;
const LARGE: u8 = 2;
const DELETED: u8 = 3;
const PINNED: u8 = 4;
const UNPINNED: u8 = 5;
const BAD: u8 = 6;
const CHECKPOINT: u8 = 7;

/// One record, other than a small object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// An object is in a file of its own.
    Large {
        /// Its name.
        id: ContentId,
        /// The number of its file.
        file: u64,
        /// Its length.
        len: u64,
    },
    /// An object is gone.
    Deleted(ContentId),
    /// An object is pinned.
    Pinned(ContentId),
    /// An object is no longer pinned.
    Unpinned(ContentId),
    /// An object is damaged.
    Bad {
        /// Its name.
        id: ContentId,
        /// Its length.
        len: u64,
    },
    /// The index was written when the journal was this long.
    Checkpoint([u8; 16]),
}

/// Bytes of the longest note.
pub const NOTE_BYTES_MAX: usize = 48;

impl Note {
    /// The kind, and the payload.
    #[must_use]
    pub fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Note::Large { id, file, len } => {
                (LARGE, [&id.as_bytes()[..], &file.to_be_bytes(), &len.to_be_bytes()].concat())
            }
            Note::Deleted(id) => (DELETED, id.as_bytes().to_vec()),
            Note::Pinned(id) => (PINNED, id.as_bytes().to_vec()),
            Note::Unpinned(id) => (UNPINNED, id.as_bytes().to_vec()),
            Note::Bad { id, len } => (BAD, [&id.as_bytes()[..], &len.to_be_bytes()].concat()),
            Note::Checkpoint(nonce) => (CHECKPOINT, nonce.to_vec()),
        }
    }

    /// The object it is about.
    #[must_use]
    pub fn id(&self) -> Option<ContentId> {
        match self {
            Note::Large { id, .. } | Note::Bad { id, .. } => Some(*id),
            Note::Deleted(id) | Note::Pinned(id) | Note::Unpinned(id) => Some(*id),
            Note::Checkpoint(_) => None,
        }
    }

    /// Reads what [`encode`](Self::encode) writes; nothing for a record of a later version, or of none.
    #[must_use]
    pub fn decode(kind: u8, payload: &[u8]) -> Option<Note> {
        let number = |at: usize| payload.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let id = || payload.first_chunk().map(|bytes| ContentId::from_bytes(*bytes));
        let note = match (kind, payload.len()) {
            (LARGE, 48) => Note::Large { id: id()?, file: number(32)?, len: number(40)? },
            (DELETED, 32) => Note::Deleted(id()?),
            (PINNED, 32) => Note::Pinned(id()?),
            (UNPINNED, 32) => Note::Unpinned(id()?),
            (BAD, 40) => Note::Bad { id: id()?, len: number(32)? },
            (CHECKPOINT, 16) => Note::Checkpoint(*payload.first_chunk()?),
            _ => return None,
        };
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_and_nothing_else_is_one() {
        let id = ContentId::of(b"x");
        let notes = [
            Note::Large { id, file: 7, len: 1 << 40 },
            Note::Deleted(id),
            Note::Pinned(id),
            Note::Unpinned(id),
            Note::Bad { id, len: 9 },
            Note::Checkpoint([3; 16]),
        ];
        for note in notes {
            let (kind, payload) = note.encode();
            assert!(payload.len() <= NOTE_BYTES_MAX);
            assert_eq!(Note::decode(kind, &payload), Some(note));
            assert_eq!(Note::decode(kind, &payload[1..]), None);
            assert_eq!(Note::decode(kind, &[&payload[..], b"x"].concat()), None);
        }
        assert_eq!(Note::decode(SMALL, b"x"), None);
        assert_eq!(Note::decode(200, b"x"), None);
    }
}
