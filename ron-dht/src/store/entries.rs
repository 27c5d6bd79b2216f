//! What an entry of the journal is, and what all of them come to.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use bytes::Bytes;
use ron_core::journal::{Item, JournalError, Position, Reader};

use super::{Clock, Opened, StoreSettings};
use crate::logic::{
    Key,
    addrs::Source,
    records::{Kept, Records},
    schedule::{Planned, Schedule},
};

/// What an entry of the journal is.
pub(super) const PROVIDER: u8 = 1;
pub(super) const VALUE: u8 = 2;
pub(super) const PLANNED: u8 = 3;
pub(super) const UNPLANNED: u8 = 4;
pub(super) const PHASE: u8 = 5;
pub(super) const SAID_FROM: u8 = 6;

/// Keys in one entry of the schedule: 24 KiB.
const KEYS_PER_ENTRY: usize = 512;

/// When a record ends, whom it is counted with, and itself.
pub(super) fn kept_entry(kept: &Kept, clock: Clock) -> (u8, Bytes) {
    let left = kept.expires.saturating_sub(clock.now);
    let expires = clock.unix_secs.saturating_add(left.as_secs());
    let mut payload = Vec::with_capacity(16 + kept.encoded.len());
    payload.extend_from_slice(&expires.to_be_bytes());
    payload.extend_from_slice(&kept.source.number().to_be_bytes());
    payload.extend_from_slice(&kept.encoded);
    (if kept.is_value { VALUE } else { PROVIDER }, payload.into())
}

/// Addresses, sorted, with commas between them.
pub(super) fn said_from_entry(addrs: &[SocketAddr]) -> (u8, Bytes) {
    let addrs: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
    (SAID_FROM, addrs.join(",").into())
}

fn read_said_from(payload: &[u8]) -> Option<Vec<SocketAddr>> {
    let addrs = std::str::from_utf8(payload).ok()?.split(',').filter(|addr| !addr.is_empty());
    addrs.map(|addr| addr.parse().ok()).collect()
}

pub(super) fn planned_entries(
    planned: &[(Key, Planned)],
    stamp: u64,
) -> impl Iterator<Item = (u8, Bytes)> + '_ {
    planned.chunks(KEYS_PER_ENTRY).map(move |keys| {
        let mut payload = Vec::with_capacity(8 + keys.len() * 48);
        payload.extend_from_slice(&stamp.to_be_bytes());
        for (key, planned) in keys {
            payload.extend_from_slice(key.as_bytes());
            payload.extend_from_slice(&planned.seq.to_be_bytes());
            payload.extend_from_slice(&planned.published.unwrap_or(0).to_be_bytes());
        }
        (PLANNED, payload.into())
    })
}

/// What reading a journal gives.
pub(super) struct Loaded {
    pub(super) records: Records,
    pub(super) schedule: Schedule,
    pub(super) stamp: u64,
    pub(super) had_phase: bool,
    pub(super) said_from: Option<Vec<SocketAddr>>,
    pub(super) opened: Opened,
}

impl Loaded {
    pub(super) fn read(
        reader: &Reader,
        settings: StoreSettings,
        clock: Clock,
        phase: u64,
    ) -> Result<Self, JournalError> {
        let mut records = Records::new(settings.limits, settings.policy);
        let mut opened = Opened::default();
        let (mut kept_phase, mut said_from) = (None, None);
        let mut last_stamp = 0;
        // For each key the entry with the highest stamp; of two with the same, the later one.
        let mut plans: BTreeMap<Key, (u64, Option<Planned>)> = BTreeMap::new();
        for item in reader.scan(Position::START) {
            let Item::Record(entry) = item? else { continue };
            let mut payload = &entry.payload[..];
            let known = match entry.kind {
                PROVIDER | VALUE => match read_kept(entry.kind == VALUE, payload, clock) {
                    Some(kept) if kept.expires <= clock.now => {
                        opened.expired += 1;
                        true
                    }
                    Some(kept) => records.restore(&kept, clock.now).is_ok(),
                    None => false,
                },
                PLANNED | UNPLANNED => take_u64(&mut payload).is_some_and(|stamp| {
                    last_stamp = last_stamp.max(stamp);
                    let mut note = |key, planned| {
                        let plan = plans.entry(key).or_insert((stamp, planned));
                        if plan.0 <= stamp {
                            *plan = (stamp, planned);
                        }
                    };
                    while let Some(key) = take_key(&mut payload) {
                        if entry.kind == UNPLANNED {
                            note(key, None);
                            continue;
                        }
                        let (Some(seq), Some(published)) = (take_u64(&mut payload), take_u64(&mut payload))
                        else {
                            return false;
                        };
                        note(key, Some(Planned { seq, published: (published > 0).then_some(published) }));
                    }
                    payload.is_empty()
                }),
                PHASE => take_u64(&mut payload).map(|phase| kept_phase = Some(phase)).is_some(),
                SAID_FROM => {
                    said_from = read_said_from(payload);
                    said_from.is_some()
                }
                _ => false,
            };
            opened.dropped += usize::from(!known);
        }
        let mut schedule = Schedule::with_phase(settings.republish, kept_phase.unwrap_or(phase));
        for (key, (_, planned)) in plans {
            if let Some(planned) = planned {
                schedule.restore(key, planned);
            }
        }
        (opened.records, opened.planned) = (records.len(), schedule.len());
        let had_phase = kept_phase.is_some();
        Ok(Loaded { records, schedule, stamp: last_stamp, had_phase, said_from, opened })
    }
}

fn read_kept(is_value: bool, mut rest: &[u8], clock: Clock) -> Option<Kept> {
    let (expires, source) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
    let left = Duration::from_secs(expires.saturating_sub(clock.unix_secs));
    Some(Kept {
        encoded: Bytes::copy_from_slice(rest),
        is_value,
        source: Source::from_number(source),
        expires: clock.now.saturating_add(left),
    })
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*taken))
}

fn take_key(bytes: &mut &[u8]) -> Option<Key> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(Key::from_bytes(*taken))
}
