//! The index on disk: a copy of the table, so that opening need not read the journal.
//!
//! It is a cache. It says up to where it knows the journal, and whoever opens the store reads the rest of that; it names a
//! record that was written to the journal for it, and is believed only if that record is there. So an index that is older,
//! torn, of another store, or ahead of a journal that was put back from a copy is at worst read in vain, and the journal is
//! read from its beginning instead.

use std::path::{Path, PathBuf};

use ron_core::{
    ContentId, Lock,
    disk::{Access, Disk, DiskError, File},
    journal,
};

use crate::logic::{
    records::Note,
    table::{ENTRY_BYTES, Entry, Spot, Table},
};

const NAME: &str = "index";
const TEMPORARY: &str = "index.tmp";
const MAGIC: [u8; 8] = *b"\x89RONI\r\n\x1a";
const VERSION: u16 = 1;
const HEADER: usize = 96;
const SUM: usize = 32;

/// Entries that are written or read at a time, and for which the table is locked: 3 MiB, and less than a millisecond.
const STEP: usize = 1 << 16;

/// What an index says besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The store it belongs to.
    pub(crate) store: [u8; 16],
    /// What the record says that was written for it.
    pub(crate) nonce: [u8; 16],
    /// Where that record is.
    pub(crate) anchor: Spot,
    /// From where on the journal has to be read.
    pub(crate) floor: Spot,
    /// The next number for a file.
    pub(crate) next_file: u64,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..48].copy_from_slice(&self.nonce);
        bytes[48..56].copy_from_slice(&self.anchor.number().to_be_bytes());
        bytes[56..64].copy_from_slice(&self.floor.number().to_be_bytes());
        bytes[64..72].copy_from_slice(&self.next_file.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let number = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let array = |at: usize| bytes[at..].first_chunk::<16>().copied();
        if bytes[..8] != MAGIC || bytes[8..10] != VERSION.to_be_bytes() {
            return None;
        }
        Some(Header {
            store: array(16)?,
            nonce: array(32)?,
            anchor: Spot::from_number(number(48)?),
            floor: Spot::from_number(number(56)?),
            next_file: number(64)?,
        })
    }
}

/// Writes the index beside the one that is there, and makes it durable, but does not put it in its place yet. What cannot
/// be finished is removed: on a disk that is full it would take what little there is.
pub(crate) fn write(
    disk: &dyn Disk,
    dir: &Path,
    header: &Header,
    table: &Lock<Table>,
) -> Result<(), DiskError> {
    let path = dir.join(TEMPORARY);
    let file = match disk.create(&path) {
        Err(DiskError::AlreadyExists { .. }) => {
            disk.remove(&path)?;
            disk.create(&path)?
        }
        created => created?,
    };
    fill(&file, header, table).inspect_err(|_| {
        // If that fails too, the next attempt does it, or the next start.
        let _ = disk.remove(&path);
    })
}

fn fill(file: &File, header: &Header, table: &Lock<Table>) -> Result<(), DiskError> {
    let mut sum = blake3::Hasher::new();
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        sum.update(bytes);
        file.write_at(at, bytes)?;
        at += bytes.len() as u64;
        Ok::<_, DiskError>(())
    };
    put(&header.encode())?;
    let mut after: Option<ContentId> = None;
    loop {
        let (page, more) = table.lock().page(after.as_ref(), STEP);
        let bytes: Vec<u8> = page.iter().flat_map(Entry::encode).collect();
        put(&bytes)?;
        after = page.last().map(|last| last.id);
        if !more {
            break;
        }
    }
    let sum = *sum.finalize().as_bytes();
    file.write_at(at, &sum)?;
    file.sync_all()
}

/// Puts what [`write`] wrote in its place.
pub(crate) fn publish(disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
    disk.rename(&dir.join(TEMPORARY), &dir.join(NAME))?;
    disk.sync_dir(dir)
}

/// Why the index is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("there is none")]
    Missing,
    #[error("it is damaged")]
    Damaged,
    #[error("it belongs to another store or another journal")]
    Foreign,
    #[error("it cannot be read: {0}")]
    Disk(#[from] DiskError),
}

/// Reads the index, if it is whole and belongs to this journal.
pub(crate) fn load(
    disk: &dyn Disk,
    dir: &Path,
    store: &[u8; 16],
    reader: &journal::Reader,
) -> Result<(Header, Table), Unusable> {
    let path: PathBuf = dir.join(NAME);
    let file = match disk.open(&path, Access::Read) {
        Err(DiskError::NotFound { .. }) => return Err(Unusable::Missing),
        opened => opened?,
    };
    let len = file.len()?;
    let body = len.checked_sub((HEADER + SUM) as u64).ok_or(Unusable::Damaged)?;
    if body % ENTRY_BYTES as u64 != 0 {
        return Err(Unusable::Damaged);
    }
    let mut bytes = [0; HEADER];
    file.read_at(0, &mut bytes)?;
    let header = Header::decode(&bytes).ok_or(Unusable::Damaged)?;
    let mut sum = blake3::Hasher::new();
    sum.update(&bytes);
    let mut table = Table::default();
    let (mut at, end) = (HEADER as u64, HEADER as u64 + body);
    let mut step = vec![0; STEP * ENTRY_BYTES];
    while at < end {
        let wanted = step.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        if file.read_at(at, &mut step[..wanted])? != wanted {
            return Err(Unusable::Damaged);
        }
        sum.update(&step[..wanted]);
        for entry in step[..wanted].chunks_exact(ENTRY_BYTES) {
            table.insert(Entry::decode(entry.first_chunk().expect("a chunk of this size")));
        }
        at += wanted as u64;
    }
    let mut found = [0; SUM];
    if file.read_at(end, &mut found)? != SUM || found != *sum.finalize().as_bytes() {
        return Err(Unusable::Damaged);
    }
    let anchor = reader.read(header.anchor.position());
    let is_ours = anchor.is_ok_and(|record| {
        Note::decode(record.kind, &record.payload) == Some(Note::Checkpoint(header.nonce))
    });
    let first = reader.segments().first().map_or(u64::MAX, |segment| segment.sequence);
    if header.store != *store || !is_ours || header.floor.position().segment < first {
        return Err(Unusable::Foreign);
    }
    Ok((header, table))
}
