//! Who is being served: a stream has a place from its admission to its end.
//!
//! Places are what bounds memory: a stream may hold an eighth of what the others have left, and one group in any case. So
//! few streams get large pieces, many get small ones, and all together hold no more than the budget and a group each. A
//! stream that stands still keeps its place only until somebody else needs it: whoever finds all places taken takes the one that
//! has stood still longest, if that is longer than the idle timeout.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{Counter, Gauge, GaugeSpec, Lock, LockSpec, Metrics, Pass, Tally, now};
use tokio::time::Instant;

use crate::{StorageError, metrics::REVOKED, settings::GROUP_BYTES};

pub(crate) const PLACES: LockSpec =
    LockSpec::new("ron-storage", "places", 700).guards("who is being served; held while one comes or goes");

/// When to ask again if nobody stands still: streams end all the time, and nobody knows when.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The places of one direction.
pub(crate) struct Streams {
    what: &'static str,
    most: usize,
    born: Instant,
    places: Lock<Places>,
    /// What all streams together may hold by their last shares.
    held: AtomicU64,
    open: Gauge,
    refused: Tally,
    revoked: Tally,
}

#[derive(Default)]
struct Places {
    taken: BTreeMap<u64, Arc<Seat>>,
    arrivals: u64,
}

struct Seat {
    /// Milliseconds after `born` at which it last moved.
    moved: AtomicU64,
    is_revoked: AtomicBool,
}

impl Streams {
    pub(crate) fn new(what: &'static str, most: usize, gauge: GaugeSpec, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Streams {
            what,
            most,
            born: now(),
            places: Lock::new(PLACES, Places::default(), metrics),
            held: AtomicU64::new(0),
            open: metrics.gauge(gauge),
            refused: metrics.tally(Counter::BusyRejections, what),
            revoked: metrics.tally(REVOKED, ""),
        })
    }

    /// A place, or `Busy`.
    pub(crate) fn admit(self: &Arc<Self>, pass: Option<Pass>, idle: Duration) -> Result<Place, StorageError> {
        let mut places = self.places.lock();
        if places.taken.len() >= self.most && !self.revoke_one(&mut places, idle) {
            drop(places);
            self.refused.add(1);
            return Err(StorageError::Busy { what: self.what, retry_after: RETRY_AFTER });
        }
        places.arrivals += 1;
        let number = places.arrivals;
        let seat =
            Arc::new(Seat { moved: AtomicU64::new(self.millis()), is_revoked: AtomicBool::new(false) });
        places.taken.insert(number, Arc::clone(&seat));
        self.open.set(places.taken.len() as f64);
        drop(places);
        Ok(Place { streams: Arc::clone(self), number, seat, held: AtomicU64::new(0), _pass: pass })
    }

    pub(crate) fn open(&self) -> usize {
        self.places.lock().taken.len()
    }

    fn revoke_one(&self, places: &mut Places, idle: Duration) -> bool {
        let oldest = places.taken.iter().min_by_key(|(_, seat)| seat.moved.load(Ordering::Relaxed));
        let Some((number, seat)) = oldest.map(|(number, seat)| (*number, Arc::clone(seat))) else {
            return false;
        };
        let still = self.millis().saturating_sub(seat.moved.load(Ordering::Relaxed));
        if Duration::from_millis(still) < idle {
            return false;
        }
        seat.is_revoked.store(true, Ordering::Relaxed);
        places.taken.remove(&number);
        self.revoked.add(1);
        true
    }

    fn millis(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streams({}: {} of {})", self.what, self.open(), self.most)
    }
}

/// A stream's place. Dropping it makes room.
pub(crate) struct Place {
    streams: Arc<Streams>,
    number: u64,
    seat: Arc<Seat>,
    held: AtomicU64,
    _pass: Option<Pass>,
}

impl Place {
    /// Notes that the stream moves on.
    pub(crate) fn moved(&self, op: &'static str) -> Result<(), StorageError> {
        if self.seat.is_revoked.load(Ordering::Relaxed) {
            return Err(StorageError::Timeout { op });
        }
        self.seat.moved.store(self.streams.millis(), Ordering::Relaxed);
        Ok(())
    }

    /// How long the next piece may be, of `pieces` that the stream holds at a time, if all streams together may hold
    /// `budget`: whole groups, one at least, and no more than `most`. What it held before is over.
    pub(crate) fn share(&self, budget: u64, most: u32, pieces: u64) -> u32 {
        let all = &self.streams.held;
        let before = self.held.load(Ordering::Relaxed);
        let others = all.fetch_sub(before, Ordering::Relaxed) - before;
        let groups = budget.saturating_sub(others) / 8 / pieces / GROUP_BYTES;
        let share = groups.clamp(1, (u64::from(most) / GROUP_BYTES).max(1)) * GROUP_BYTES;
        all.fetch_add(share * pieces, Ordering::Relaxed);
        self.held.store(share * pieces, Ordering::Relaxed);
        u32::try_from(share).unwrap_or(most)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.streams.places.lock();
        places.taken.remove(&self.number);
        self.streams.held.fetch_sub(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
        self.streams.open.set(places.taken.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::GET_STREAMS;

    const MIB: u64 = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn all_together_hold_the_budget_and_a_group_each() {
        let streams = Streams::new("test", 512, GET_STREAMS, &Metrics::default());
        let idle = Duration::from_secs(60);
        let mut places = Vec::new();
        let mut sum = 0;
        for number in 0..512 {
            let place = streams.admit(None, idle).unwrap();
            let share = u64::from(place.share(64 * MIB, 1 << 20, 1));
            assert!(share % GROUP_BYTES == 0 && (number > 50 || share == MIB), "{number}: {share}");
            sum += share;
            places.push(place);
        }
        assert!(sum <= 96 * MIB, "{sum}");
        assert_eq!(places[0].share(64 * MIB, 1 << 20, 2), 65_536);
        drop(places);
        assert_eq!((streams.open(), streams.held.load(Ordering::Relaxed)), (0, 0));
        let alone = streams.admit(None, idle).unwrap();
        assert_eq!(alone.share(64 * MIB, 1 << 20, 2), 1 << 20);
        assert_eq!(alone.share(MIB, 1 << 20, 2), 65_536);
    }
}
