//! Who is being served: a stream has a place from its admission to its end.
//!
//! Places bound memory: a stream may hold an eighth of what the others leave of the budget, and always one group. So a few
//! streams get large pieces and many get small ones, and all together hold no more than the budget and a group each.
//!
//! A stream that stands still keeps its place only until another needs it. A newcomer that finds all places taken gets the
//! one that has stood still longest, if that is longer than the idle timeout. If there is none, the client with most places
//! gives up its slowest stream, to a client that has fewer even with one more: so streams that hardly move cannot keep all
//! others out. Streams of the host itself are never ended for that.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{ClientKey, Counter, Gauge, GaugeSpec, Lock, LockSpec, Metrics, Pass, Tally, now};
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
    taken: BTreeMap<u64, Taken>,
    arrivals: u64,
}

struct Taken {
    seat: Arc<Seat>,
    /// Nobody for the host's own.
    client: Option<ClientKey>,
    /// Given back with the place, also if that is taken away from a stream that nobody looks after.
    _pass: Option<Pass>,
}

struct Seat {
    /// Milliseconds after `born` at which it was taken, and at which it last moved.
    since: u64,
    moved: AtomicU64,
    moves: AtomicU64,
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

    /// A place for a client, or for the host, or `Busy`.
    pub(crate) fn admit(
        self: &Arc<Self>,
        client: Option<ClientKey>,
        pass: Option<Pass>,
        idle: Duration,
    ) -> Result<Place, StorageError> {
        let mut places = self.places.lock();
        let mut made_room = None;
        if places.taken.len() >= self.most {
            made_room = self.idlest(&places, idle).or_else(|| self.slowest_of_most(&places, client));
            let Some(number) = made_room else {
                drop(places);
                self.refused.add(1);
                return Err(StorageError::Busy { what: self.what, retry_after: RETRY_AFTER });
            };
            self.revoked.add(1);
            if let Some(taken) = places.taken.get(&number) {
                taken.seat.is_revoked.store(true, Ordering::Relaxed);
            }
        }
        let gone = made_room.and_then(|number| places.taken.remove(&number));
        places.arrivals += 1;
        let (number, now) = (places.arrivals, self.millis());
        let seat = Arc::new(Seat {
            since: now,
            moved: AtomicU64::new(now),
            moves: AtomicU64::new(0),
            is_revoked: AtomicBool::new(false),
        });
        places.taken.insert(number, Taken { seat: Arc::clone(&seat), client, _pass: pass });
        self.open.set(places.taken.len() as f64);
        drop(places);
        drop(gone);
        Ok(Place { streams: Arc::clone(self), number, seat, held: AtomicU64::new(0) })
    }

    pub(crate) fn open(&self) -> usize {
        self.places.lock().taken.len()
    }

    /// The place that has stood still longest, if that is long enough.
    fn idlest(&self, places: &Places, idle: Duration) -> Option<u64> {
        let moved = |taken: &Taken| taken.seat.moved.load(Ordering::Relaxed);
        let (number, taken) = places.taken.iter().min_by_key(|(_, taken)| moved(taken))?;
        let still = self.millis().saturating_sub(moved(taken));
        (Duration::from_millis(still) >= idle).then_some(*number)
    }

    /// The slowest place of the client that has most, if one who asks would have fewer even with it.
    fn slowest_of_most(&self, places: &Places, asking: Option<ClientKey>) -> Option<u64> {
        let mut counts: HashMap<Option<ClientKey>, usize> = HashMap::new();
        for taken in places.taken.values() {
            *counts.entry(taken.client).or_default() += 1;
        }
        let own = counts.get(&asking).copied().unwrap_or(0);
        let most = counts.iter().filter(|(client, _)| client.is_some()).map(|(_, count)| *count).max()?;
        if most <= own + 1 {
            return None;
        }
        let now = self.millis();
        let of_most = places.taken.iter().filter(|(_, taken)| {
            taken.client.is_some() && taken.client != asking && counts.get(&taken.client) == Some(&most)
        });
        // Moves for the time that it took, as a fraction.
        let pace = |taken: &Taken| {
            let seat = &taken.seat;
            let age = now.saturating_sub(seat.since) + 1;
            seat.moves.load(Ordering::Relaxed).saturating_mul(1 << 20) / age
        };
        of_most.min_by_key(|(number, taken)| (pace(taken), **number)).map(|(number, _)| *number)
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
}

impl Place {
    /// Notes that the stream moves on.
    pub(crate) fn moved(&self, op: &'static str) -> Result<(), StorageError> {
        if self.seat.is_revoked.load(Ordering::Relaxed) {
            return Err(StorageError::Timeout { op });
        }
        self.seat.moved.store(self.streams.millis(), Ordering::Relaxed);
        self.seat.moves.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether somebody else has it now.
    #[cfg(feature = "http")]
    pub(crate) fn is_lost(&self) -> bool {
        self.seat.is_revoked.load(Ordering::Relaxed)
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
        let taken = places.taken.remove(&self.number);
        self.streams.held.fetch_sub(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
        self.streams.open.set(places.taken.len() as f64);
        drop(places);
        drop(taken);
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
            let place = streams.admit(None, None, idle).unwrap();
            let share = u64::from(place.share(64 * MIB, 1 << 20, 1));
            assert!(share % GROUP_BYTES == 0 && (number > 50 || share == MIB), "{number}: {share}");
            sum += share;
            places.push(place);
        }
        assert!(sum <= 96 * MIB, "{sum}");
        assert_eq!(places[0].share(64 * MIB, 1 << 20, 2), 65_536);
        drop(places);
        assert_eq!((streams.open(), streams.held.load(Ordering::Relaxed)), (0, 0));
        let alone = streams.admit(None, None, idle).unwrap();
        assert_eq!(alone.share(64 * MIB, 1 << 20, 2), 1 << 20);
        assert_eq!(alone.share(MIB, 1 << 20, 2), 65_536);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_most_makes_room_for_who_has_few() {
        let streams = Streams::new("test", 8, GET_STREAMS, &Metrics::default());
        let idle = Duration::from_secs(60);
        let client = |number: u8| Some(ClientKey::from(std::net::Ipv4Addr::new(10, 0, 0, number)));
        let own = streams.admit(None, None, idle).unwrap();
        let mut greedy: Vec<_> = (0..7).map(|_| streams.admit(client(1), None, idle).unwrap()).collect();
        for round in 0..10 {
            tokio::time::advance(Duration::from_secs(1)).await;
            own.moved("test").unwrap();
            // All move, the third least.
            for (number, place) in greedy.iter().enumerate() {
                if number != 2 || round == 9 {
                    place.moved("test").unwrap();
                }
            }
        }
        assert!(streams.admit(client(1), None, idle).is_err(), "nobody takes from himself");
        let modest = streams.admit(client(2), None, idle).unwrap();
        assert!(greedy[2].moved("test").is_err() && modest.moved("test").is_ok());
        assert_eq!(streams.open(), 8);
        drop(greedy.remove(2));
        // Until each has as many as the other, and the host's own is nobody's to take.
        let mut taken = Vec::new();
        for (asking, gets) in [(client(2), 2), (None, 1)] {
            let before = taken.len();
            taken.extend((0..9).map_while(|_| streams.admit(asking, None, idle).ok()));
            assert_eq!((taken.len() - before, streams.open()), (gets, 8));
        }
        assert!(own.moved("test").is_ok());
    }
}
