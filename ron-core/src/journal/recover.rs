//! Opening a journal after anything may have happened.
//!
//! First everything is read and judged, then the few changes are made: a half-born last segment is removed, a torn
//! tail is cut, and what is left is made durable. A journal that is refused is left exactly as it was found.
//!
//! What recovery reports must survive the next crash too, even when only the process died and the page cache still
//! shows bytes that never reached the disk. So names are synced, and the part that no record vouches for is written
//! once more before it is synced: after a failed sync the kernel may consider those pages clean.

use std::sync::Arc;

use super::{
    Damage, JournalError, OnDamage, Opening, Position,
    format::{HEADER, Header, HeaderFault, Key, next_sequence, segment_sequence},
    scan::{FIRST, Segment, Shared, Survey, Verdict, is_zero_after_header},
};
use crate::disk::{Access, File};

/// How much of the tail is written again at a time.
const REWRITE_STEP: usize = 1 << 20;

/// What opening a journal found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Records that can be read, in the segments that were looked through.
    pub records: u64,
    /// Segments there are, unreadable ones included.
    pub segments: usize,
    /// Whether the journal was closed cleanly, so that nothing can be missing at its end.
    pub was_closed: bool,
    /// Where a torn tail was cut off, if there was one.
    pub cut: Option<Position>,
    /// A segment that a crash left half made and that was removed.
    pub discarded: Option<u64>,
    /// What cannot be read. Empty unless damage is to be reported.
    pub damage: Vec<Damage>,
}

/// The segment that appends go to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) key: Key,
    pub(super) file: File,
    /// Where the next record goes.
    pub(super) end: u32,
    /// Everything before this is durable.
    pub(super) synced: u32,
    /// The file is zeros from `end` to here.
    pub(super) allocated: u32,
    /// Whether the last record is a seal.
    pub(super) is_sealed: bool,
}

/// What recovery leaves for the writer to go on from.
#[derive(Debug)]
pub(super) enum Resume {
    /// Append here.
    Active(Active),
    /// Make this segment; the one before it, if any, ends at `previous_end`.
    Create { sequence: u64, previous_end: u64 },
}

/// A segment as found on disk.
struct Found {
    sequence: u64,
    len: u32,
    file: Arc<File>,
    header: Option<Header>,
}

impl Found {
    fn open(shared: &Shared, sequence: u64) -> Result<Found, JournalError> {
        let file = Arc::new(shared.disk.open(&shared.path(sequence), Access::Read)?);
        let len = u32::try_from(file.len()?).unwrap_or(u32::MAX);
        let mut bytes = [0; HEADER];
        let header = match file.read_at(0, &mut bytes)? {
            HEADER => match Header::decode(&bytes, sequence) {
                Ok(header) => Some(header),
                Err(HeaderFault::Bad) => None,
                Err(HeaderFault::Version(version)) => {
                    return Err(JournalError::UnknownVersion { segment: sequence, version });
                }
            },
            _ => None,
        };
        Ok(Found { sequence, len, file, header })
    }

    /// Whether it may be left from a crash while it was being made. Records are written only after the header was
    /// synced, so a bad header with anything behind it is damage instead, whatever of the header still reads.
    fn is_half_made(&self) -> Result<bool, JournalError> {
        Ok(self.header.is_none() && is_zero_after_header(&self.file, self.len)?)
    }
}

/// Reads and judges all segments, repairs the end, fills the table of readers.
pub(super) fn recover(shared: &Shared) -> Result<(Resume, Recovered), JournalError> {
    let disk = &*shared.disk;
    let mut sequences: Vec<u64> = disk
        .list(&shared.dir)?
        .iter()
        .filter(|entry| entry.is_file)
        .filter_map(|entry| segment_sequence(&entry.name))
        .collect();
    sequences.sort_unstable();

    let mut recovered = Recovered::default();
    let mut last = sequences.last().map(|last| Found::open(shared, *last)).transpose()?;
    if let Some(half_made) = &last {
        // After a hole it is not what a crash leaves; then the hole is reported, and this with it.
        let before = sequences.iter().rev().nth(1).copied();
        let follows = before.is_none_or(|before| before.checked_add(1) == Some(half_made.sequence));
        if follows && half_made.is_half_made()? {
            recovered.discarded = Some(half_made.sequence);
            sequences.pop();
            last = sequences.last().map(|last| Found::open(shared, *last)).transpose()?;
        }
    }

    let mut tail = None;
    let mut expected = sequences.first().copied().unwrap_or(0);
    // One segment at a time is open here besides the last: its end is written in the header of the next.
    for (at, sequence) in sequences.iter().copied().enumerate() {
        if sequence != expected {
            let missing = Position { segment: expected, offset: 0 };
            let found = Position { segment: sequence, offset: 0 };
            shared.insert(Arc::new(Segment::new(expected, None, 0, found)));
            recovered.note(shared, Damage { from: missing, to: found })?;
        }
        expected = sequence.saturating_add(1);
        let next = Position { segment: expected, offset: 0 };
        let is_last = at + 1 == sequences.len();
        let found = match last.take_if(|_| is_last) {
            Some(found) => found,
            None => Found::open(shared, sequence)?,
        };
        let Some(key) = found.header.as_ref().map(Header::key) else {
            let from = Position { segment: sequence, offset: 0 };
            shared.insert(Arc::new(Segment::new(sequence, None, found.len, next)));
            recovered.note(shared, Damage { from, to: next })?;
            continue;
        };
        let verdict = if is_last {
            Survey::of(&found.file, &key, found.len)?.judge_last()
        } else {
            let successor = sequences[at + 1];
            let known = if successor == expected { Found::open(shared, successor)?.header } else { None };
            match known.map(|header| u32::try_from(header.previous_end).unwrap_or(u32::MAX).max(FIRST)) {
                Some(end) if shared.opening == Opening::ReadLast && end <= found.len => {
                    Survey::trust_earlier(end)
                }
                Some(end) => Survey::of(&found.file, &key, end)?.judge_earlier(end),
                None => Survey::of(&found.file, &key, found.len)?.judge_endless(),
            }
        };
        for (from, to) in verdict.damage.iter().copied() {
            let from = Position { segment: sequence, offset: from };
            let to = if to == verdict.end { next } else { Position { segment: sequence, offset: to } };
            recovered.note(shared, Damage { from, to })?;
        }
        recovered.records += verdict.records;
        let segment = Arc::new(Segment::new(sequence, Some(key.clone()), verdict.end, next));
        shared.insert(Arc::clone(&segment));
        if is_last {
            tail = Some((segment, key, found.len, verdict));
        }
    }
    recovered.segments = sequences.len();

    // From here on the disk is changed.
    if let Some(sequence) = recovered.discarded {
        disk.remove(&shared.path(sequence))?;
    }
    disk.sync_dir(&shared.dir)?;
    let resume = match tail {
        Some((segment, key, len, verdict)) => {
            recovered.was_closed = verdict.is_sealed;
            if verdict.has_tail {
                recovered.cut = Some(Position { segment: segment.sequence, offset: verdict.end });
            }
            Resume::Active(settle(shared, segment, key, len, &verdict)?)
        }
        None => {
            // Nothing to append to: a new journal, or one whose last segment cannot be read.
            let before = shared.infos().last().copied();
            let sequence = match (recovered.discarded, before) {
                (Some(discarded), _) => discarded,
                (None, Some(unreadable)) => {
                    next_sequence(unreadable.sequence).ok_or(JournalError::NoSpace)?
                }
                (None, None) => 1,
            };
            let previous_end = before.map_or(0, |before| u64::from(before.bytes));
            Resume::Create { sequence, previous_end }
        }
    };
    Ok((resume, recovered))
}

impl Recovered {
    fn note(&mut self, shared: &Shared, damage: Damage) -> Result<(), JournalError> {
        if shared.on_damage == OnDamage::Refuse {
            return Err(JournalError::Damaged { damage });
        }
        self.damage.push(damage);
        Ok(())
    }
}

/// Cuts the torn tail off the last segment and makes durable what remains.
fn settle(
    shared: &Shared,
    segment: Arc<Segment>,
    key: Key,
    len: u32,
    verdict: &Verdict,
) -> Result<Active, JournalError> {
    let file = shared.disk.open(&shared.path(segment.sequence), Access::Write)?;
    let mut allocated = len;
    if verdict.has_tail {
        file.set_len(u64::from(verdict.end))?;
        allocated = verdict.end;
    }
    let mut buf = vec![0; REWRITE_STEP.min((verdict.end - verdict.durable) as usize)];
    let mut at = verdict.durable;
    while at < verdict.end {
        let step = buf.len().min((verdict.end - at) as usize);
        let read = file.read_at(u64::from(at), &mut buf[..step])?;
        if read == 0 {
            break;
        }
        file.write_at(u64::from(at), &buf[..read])?;
        at += u32::try_from(read).expect("a step is small");
    }
    file.sync_all()?;
    Ok(Active {
        segment,
        key,
        file,
        end: verdict.end,
        synced: verdict.end,
        allocated,
        is_sealed: verdict.is_sealed,
    })
}

#[cfg(all(test, not(ron_loom), feature = "sim"))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        journal::{
            Entry, Segments, Settings,
            format::{Draft, body_sum, segment_name},
        },
        sim::SimDisk,
    };

    /// A file as someone would forge it who can write to the disk and knows the format: all sums are right.
    fn forge(disk: &SimDisk, sequence: u64, previous_end: u64, payloads: &[&[u8]], durable: u32) {
        let header = Header { sequence, salt: [3; 16], previous_end };
        let mut draft = Draft::default();
        for payload in payloads {
            draft.push(1, payload, body_sum(payload));
        }
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(draft.finish(FIRST, durable, &header.key(), |_| {}));
        disk.put(segment_name(sequence), &bytes);
    }

    fn open(disk: &SimDisk, on_damage: OnDamage) -> Result<(Segments, Recovered), JournalError> {
        let settings = Settings { on_damage, ..Settings::default() };
        Segments::open(Arc::new(disk.clone()), Path::new(""), settings)
    }

    #[test]
    fn a_forged_end_of_the_previous_segment_is_damage_at_most() {
        for previous_end in [0, 1, 64, 65, 103, 105, 4096, u64::from(u32::MAX), u64::MAX] {
            let disk = SimDisk::new();
            forge(&disk, 1, 0, &[b"hello"], FIRST);
            forge(&disk, 2, previous_end, &[b"there"], FIRST);
            let refused = open(&disk, OnDamage::Refuse).map(|(journal, _)| journal.segments().len());
            assert!(matches!(refused, Ok(2) | Err(JournalError::Damaged { .. })), "{refused:?}");
            let (journal, recovered) = open(&disk, OnDamage::Report).unwrap();
            let items: Vec<_> = journal.scan(Position::START).map(Result::unwrap).collect();
            let records = usize::try_from(recovered.records).unwrap();
            assert_eq!(items.len(), records + recovered.damage.len(), "{previous_end}");
        }
    }

    #[test]
    fn the_numbers_of_segments_run_out_with_an_error() {
        let last = u64::MAX - 1;
        let disk = SimDisk::new();
        forge(&disk, last, 0, &[b"hello"], FIRST);
        let (mut journal, _) = open(&disk, OnDamage::Refuse).unwrap();
        let large = vec![0; 16 << 20];
        let mut commit = || journal.commit([Entry::new(1, &large)]);
        let refused = (0..5).find_map(|_| commit().err());
        assert_eq!(refused, Some(JournalError::NoSpace));
        assert_eq!(journal.scan(Position::START).filter(Result::is_ok).count(), 4);
    }
}
