//! What is remembered about clients, in memory that grows with them up to what was decided once.
//!
//! A shard is an array cut into sets of eight ways; a key belongs to one set, chosen by a hash that outsiders cannot
//! predict, so nobody can aim at the neighbours of a victim. It begins with one set. When somebody is let in whose set has
//! no vacant way, the number of sets doubles, as often as it takes and the bound allows: a process may have a gate for
//! each of a thousand nodes, of which most see ten clients. Who is refused makes nothing grow.
//!
//! In a shard that is as large as it may be, a new key takes the way in its set that is worth least:
//! an empty one, then a one-time visitor that owes nothing, then one that does, and only then a client that came
//! back, of whom the one with the least standing goes. Ways with calls in flight are never taken, and while a one-time
//! visitor keeps its way by a call in flight, no client that came back gives up its own: strangers who stay compete
//! with strangers.
//!
//! A client that came back goes last even when it owes nothing. It would cost nothing to forget its debt, but to
//! forget that it came back would make it a newcomer, and in a flood newcomers are the ones who are refused.

use std::{
    cmp::Reverse,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::meter::Meter;
use crate::NodeId;

/// Ways in a set. With eight, a table filled by three quarters keeps nearly everybody; the search is eight
/// comparisons in six cache lines.
pub(super) const WAYS: usize = 8;

/// Standing grows by at most one in this many seconds, so it is earned with time and not with requests.
const STANDING_SECONDS: u32 = 10;

/// An hour without a visit halves the standing: a regular guest of last month is no reason to turn one away today.
const STANDING_HALVED_SECONDS: u32 = 3_600;

/// What a caller without a place is told to wait, in nanoseconds. Nobody knows when a call ends; 50 ms is long enough
/// not to be a busy loop and short enough not to be noticed.
pub(super) const PLACE_WAIT: u64 = 50_000_000;

/// Who is counted as one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientKey([u8; 16]);

impl ClientKey {
    /// Nobody: the key of an empty way. The first byte of a real key is never zero.
    const NOBODY: ClientKey = ClientKey([0; 16]);

    /// The client with this identity, for example a node's id. Identities never coincide with addresses.
    #[must_use]
    pub fn from_bytes(identity: &[u8]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&blake3::hash(identity).as_bytes()[..16]);
        key[0] = 0xff;
        ClientKey(key)
    }
}

/// A node's name is a hash that nobody can choose, so a part of it is as good.
impl From<NodeId> for ClientKey {
    fn from(node: NodeId) -> Self {
        let mut key = [0xff; 16];
        key[1..].copy_from_slice(&node.as_bytes()[..15]);
        ClientKey(key)
    }
}

impl From<Ipv4Addr> for ClientKey {
    fn from(address: Ipv4Addr) -> Self {
        let mut key = [0; 16];
        key[0] = 4;
        key[1..5].copy_from_slice(&address.octets());
        ClientKey(key)
    }
}

impl From<Ipv6Addr> for ClientKey {
    /// The whole /64 is one client: that is what one subscriber gets, and rotating within it is free.
    fn from(address: Ipv6Addr) -> Self {
        if let Some(mapped) = address.to_ipv4_mapped() {
            return mapped.into();
        }
        let mut key = [0; 16];
        key[0] = 6;
        key[1..9].copy_from_slice(&address.octets()[..8]);
        ClientKey(key)
    }
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

/// What one client may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientLimits {
    pub(super) requests: Meter,
    pub(super) bytes: Meter,
    pub(super) in_flight_max: u32,
}

/// One part of the table, behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) limits: ClientLimits,
    entries: Box<[Packed]>,
    sets_max: usize,
}

/// An [`Entry`] as numbers, all zero for a vacant one: a table of zeros is the cheapest to ask the system for.
pub(super) type Packed = [u64; 6];

/// What is remembered about one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    key: ClientKey,
    requests_clear_at: u64,
    bytes_clear_at: u64,
    seen_second: u32,
    raised_second: u32,
    in_flight: u32,
    /// Zero for one who came once.
    standing: u8,
}

/// Where a key is, or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    slot: usize,
    pub(super) newcomer: bool,
    /// The set is full and the shard may grow: the place is only found by [`Shard::settle`].
    is_to_come: bool,
}

/// What an admission will write; nothing is written until all limits agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    requests_clear_at: u64,
    bytes_clear_at: u64,
}

impl Shard {
    /// With one set, and at most `sets_max` of them. It is a power of two.
    pub(super) fn new(sets_max: usize, limits: ClientLimits) -> Self {
        Shard { limits, entries: vacant(1), sets_max }
    }

    /// Bytes of what it holds now.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// The first way of the set that a hash chooses. A set is split in two when the shard grows, by one bit more.
    fn first_way(&self, hash: u32) -> usize {
        (hash as usize & (self.entries.len() / WAYS - 1)) * WAYS
    }

    /// The way of `key`, or the one it would take. Nothing if the shard may not grow and every way has calls in flight, or
    /// if only clients that came back could make room while one-time visitors are inside.
    pub(super) fn seat(&self, hash: u32, key: ClientKey, now: u64) -> Option<Seat> {
        let first = self.first_way(hash);
        let ways: [Entry; WAYS] = std::array::from_fn(|way| self.entry(first + way));
        if let Some(way) = ways.iter().position(|entry| entry.key == key) {
            return Some(Seat { slot: first + way, newcomer: false, is_to_come: false });
        }
        if let Some(way) = ways.iter().position(|entry| entry.key == ClientKey::NOBODY) {
            return Some(Seat { slot: first + way, newcomer: true, is_to_come: false });
        }
        if self.entries.len() < self.sets_max * WAYS {
            return Some(Seat { slot: first, newcomer: true, is_to_come: true });
        }
        let worth_least = (0..WAYS)
            .filter(|way| ways[*way].in_flight == 0)
            .min_by_key(|way| ways[*way].worth(&self.limits, now))?;
        let came_back = |entry: &Entry| entry.standing_at(second(now)) > 0;
        if came_back(&ways[worth_least]) && !ways.iter().all(came_back) {
            return None;
        }
        Some(Seat { slot: first + worth_least, newcomer: true, is_to_come: false })
    }

    /// Makes the place that a seat promised, for a key that is let in. Nothing if the shard grew to its end, and found none.
    pub(super) fn settle(
        &mut self,
        seat: Seat,
        hash: u32,
        key: ClientKey,
        now: u64,
        hash_of: impl Fn(ClientKey) -> u32,
    ) -> Option<Seat> {
        let mut seat = seat;
        while seat.is_to_come {
            self.grow(&hash_of);
            seat = self.seat(hash, key, now)?;
        }
        Some(seat)
    }

    /// Twice as many sets. Each is split in two, so everybody finds room.
    fn grow(&mut self, hash_of: impl Fn(ClientKey) -> u32) {
        let sets = self.entries.len() / WAYS * 2;
        let old = std::mem::replace(&mut self.entries, vacant(sets));
        for packed in old {
            let key = Entry::unpack(packed).key;
            if key != ClientKey::NOBODY {
                let first = self.first_way(hash_of(key));
                let way = (first..first + WAYS).find(|slot| self.entries[*slot] == [0; 6]);
                self.entries[way.expect("a set of eight is split in two")] = packed;
            }
        }
    }

    /// Whether the client's own limits allow a call of `bytes`, or how long to wait. A newcomer owes nothing yet.
    pub(super) fn check(&self, seat: Seat, bytes: u64, now: u64) -> Result<Claim, u64> {
        let entry = if seat.newcomer { Entry::VACANT } else { self.entry(seat.slot) };
        let ClientLimits { requests, bytes: volume, in_flight_max } = &self.limits;
        let place = place(entry.in_flight, *in_flight_max);
        let requests_clear_at = requests.check(entry.requests_clear_at, requests.one(), now);
        let bytes_clear_at = volume.check(entry.bytes_clear_at, volume.cost(bytes), now);
        match (place, requests_clear_at, bytes_clear_at) {
            (Ok(()), Ok(requests_clear_at), Ok(bytes_clear_at)) => {
                Ok(Claim { requests_clear_at, bytes_clear_at })
            }
            (place, requests, bytes) => Err(longest([place.err(), requests.err(), bytes.err()])),
        }
    }

    /// Writes what was claimed.
    pub(super) fn take(&mut self, seat: Seat, key: ClientKey, claim: Claim, now: u64) {
        let second = second(now);
        let mut entry = self.entry(seat.slot);
        if seat.newcomer {
            entry = Entry { key, raised_second: second, ..Entry::VACANT };
        } else if entry.standing == 0 || second.saturating_sub(entry.raised_second) >= STANDING_SECONDS {
            entry.standing = entry.standing_at(second).saturating_add(1);
            entry.raised_second = second;
        }
        entry.seen_second = entry.seen_second.max(second);
        entry.requests_clear_at = claim.requests_clear_at;
        entry.bytes_clear_at = claim.bytes_clear_at;
        entry.in_flight += 1;
        self.entries[seat.slot] = entry.pack();
    }

    /// One call of this client has ended. It is still there, because it was in flight until now.
    pub(super) fn leave(&mut self, hash: u32, key: ClientKey) {
        let first = self.first_way(hash);
        let slot = (first..first + WAYS).find(|slot| self.entry(*slot).key == key);
        debug_assert!(slot.is_some(), "whoever is inside keeps its way");
        let Some(slot) = slot else { return };
        let mut entry = self.entry(slot);
        debug_assert!(entry.in_flight > 0, "a pass is given back once");
        entry.in_flight = entry.in_flight.saturating_sub(1);
        self.entries[slot] = entry.pack();
    }

    fn entry(&self, slot: usize) -> Entry {
        Entry::unpack(self.entries[slot])
    }
}

fn vacant(sets: usize) -> Box<[Packed]> {
    vec![[0; 6]; sets * WAYS].into_boxed_slice()
}

impl Entry {
    const VACANT: Entry = Entry {
        key: ClientKey::NOBODY,
        requests_clear_at: 0,
        bytes_clear_at: 0,
        seen_second: 0,
        raised_second: 0,
        in_flight: 0,
        standing: 0,
    };

    fn pack(self) -> Packed {
        let (key, both) =
            (u128::from_ne_bytes(self.key.0), |high: u32, low: u32| u64::from(high) << 32 | u64::from(low));
        [
            (key >> 64) as u64,
            key as u64,
            self.requests_clear_at,
            self.bytes_clear_at,
            both(self.seen_second, self.raised_second),
            both(self.in_flight, self.standing.into()),
        ]
    }

    fn unpack([key_high, key_low, requests_clear_at, bytes_clear_at, seconds, rest]: Packed) -> Self {
        let key = u128::from(key_high) << 64 | u128::from(key_low);
        Entry {
            key: ClientKey(key.to_ne_bytes()),
            requests_clear_at,
            bytes_clear_at,
            seen_second: (seconds >> 32) as u32,
            raised_second: seconds as u32,
            in_flight: (rest >> 32) as u32,
            standing: rest as u8,
        }
    }

    /// What would be lost by forgetting this entry; the smallest goes first. Among equals the one unseen longest.
    fn worth(&self, limits: &ClientLimits, now: u64) -> impl Ord + use<> {
        let owed = limits
            .requests
            .owed(self.requests_clear_at, now)
            .max(limits.bytes.owed(self.bytes_clear_at, now));
        (self.standing_at(second(now)), owed, Reverse(second(now).saturating_sub(self.seen_second)))
    }

    fn standing_at(&self, second: u32) -> u8 {
        let halvings = second.saturating_sub(self.seen_second) / STANDING_HALVED_SECONDS;
        self.standing.checked_shr(halvings).unwrap_or(0)
    }
}

/// Whether one more call fits, or how long to wait for a place.
pub(super) fn place(in_flight: u32, in_flight_max: u32) -> Result<(), u64> {
    if in_flight < in_flight_max { Ok(()) } else { Err(PLACE_WAIT) }
}

/// The time after which none of these waits is left.
pub(super) fn longest<const N: usize>(waits: [Option<u64>; N]) -> u64 {
    waits.into_iter().flatten().max().unwrap_or(0)
}

/// Whole seconds, enough to order visits: 32 bits last for 136 years.
fn second(now: u64) -> u32 {
    u32::try_from(now / 1_000_000_000).unwrap_or(u32::MAX)
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn shard() -> Shard {
        Shard::new(
            1,
            ClientLimits {
                requests: Meter::of_requests(1, 10),
                bytes: Meter::of_bytes(1_000, 1_000),
                in_flight_max: 2,
            },
        )
    }

    fn key(number: u32) -> ClientKey {
        Ipv4Addr::from_bits(number).into()
    }

    /// Enters and, unless told to `stay`, leaves again. Says whether the client was new.
    fn visit(shard: &mut Shard, number: u32, now: u64, stay: bool) -> Option<bool> {
        let seat = shard.seat(0, key(number), now)?;
        let claim = shard.check(seat, 0, now).expect("within limits");
        shard.take(seat, key(number), claim, now);
        if !stay {
            shard.leave(0, key(number));
        }
        Some(seat.newcomer)
    }

    fn knows(shard: &Shard, number: u32) -> bool {
        shard.entries.iter().any(|packed| Entry::unpack(*packed).key == key(number))
    }

    #[test]
    fn an_entry_is_48_bytes_and_a_vacant_one_is_zeros() {
        assert_eq!(size_of::<Packed>(), 48);
        assert_eq!(Entry::VACANT.pack(), [0; 6]);
    }

    #[test]
    fn an_entry_comes_back_as_it_was() {
        let entry = Entry {
            key: ClientKey::from_bytes(b"somebody"),
            requests_clear_at: u64::MAX,
            bytes_clear_at: 1 << 40,
            seen_second: u32::MAX,
            raised_second: 7,
            in_flight: 1 << 31,
            standing: u8::MAX,
        };
        assert_eq!(Entry::unpack(entry.pack()), entry);
    }

    #[test]
    fn one_who_came_back_outlives_any_number_who_did_not() {
        let mut shard = shard();
        assert_eq!(visit(&mut shard, 1, 0, false), Some(true));
        assert_eq!(visit(&mut shard, 1, SECOND, false), Some(false));
        for stranger in 2..10_000 {
            // Late enough that the returning client owes nothing while every stranger does.
            assert_eq!(visit(&mut shard, stranger, 100 * SECOND, false), Some(true));
        }
        assert!(knows(&shard, 1));
    }

    #[test]
    fn standing_is_earned_with_time_not_with_requests() {
        let mut shard = shard();
        for minute in 0..5 {
            visit(&mut shard, 1, minute * 60 * SECOND, false);
        }
        let now = 300 * SECOND;
        for stranger in 2..200 {
            for _ in 0..9 {
                visit(&mut shard, stranger, now, false);
            }
        }
        assert!(knows(&shard, 1));
    }

    #[test]
    fn standing_fades() {
        let mut shard = shard();
        for minute in 0..60 {
            visit(&mut shard, 1, minute * 60 * SECOND, false);
        }
        let next_day = 86_400 * SECOND;
        for stranger in 2..=9 {
            visit(&mut shard, stranger, next_day, false);
        }
        assert!(!knows(&shard, 1));
    }

    #[test]
    fn of_one_time_visitors_the_one_that_owes_nothing_goes_first() {
        let mut shard = shard();
        visit(&mut shard, 1, 0, false);
        for stranger in 2..=8 {
            visit(&mut shard, stranger, 50 * SECOND, false);
        }
        visit(&mut shard, 9, 50 * SECOND, false);
        assert!(!knows(&shard, 1));
        assert!((2..=9).all(|stranger| knows(&shard, stranger)));
    }

    #[test]
    fn calls_in_flight_pin_their_way() {
        let mut shard = shard();
        for guest in 1..=8 {
            visit(&mut shard, guest, 0, true);
        }
        assert_eq!(visit(&mut shard, 9, 1_000 * SECOND, false), None);
        assert_eq!(visit(&mut shard, 8, 1_000 * SECOND, false), Some(false));
        shard.leave(0, key(3));
        assert_eq!(visit(&mut shard, 9, 1_000 * SECOND, false), Some(true));
        assert!(!knows(&shard, 3));
    }

    #[test]
    fn strangers_who_stay_push_nobody_out_who_came_back() {
        let mut shard = shard();
        for _ in 0..2 {
            visit(&mut shard, 1, 0, false);
        }
        for stranger in 2..=8 {
            assert_eq!(visit(&mut shard, stranger, 0, true), Some(true));
        }
        assert_eq!(visit(&mut shard, 9, SECOND, false), None, "the only free way is a regular client's");
        assert!(knows(&shard, 1));
        shard.leave(0, key(5));
        assert_eq!(visit(&mut shard, 9, SECOND, false), Some(true));
        assert!(knows(&shard, 1) && !knows(&shard, 5));
    }

    #[test]
    fn a_set_of_regulars_still_lets_a_newcomer_in() {
        let mut shard = shard();
        for regular in 1..=8 {
            for _ in 0..2 {
                visit(&mut shard, regular, 0, false);
            }
        }
        assert_eq!(visit(&mut shard, 9, SECOND, false), Some(true));
    }

    #[test]
    fn standing_and_time_saturate() {
        let mut shard = shard();
        for step in 0..400 {
            visit(&mut shard, 1, step * 20 * SECOND, false);
        }
        assert_eq!(shard.entries.iter().map(|packed| Entry::unpack(*packed).standing).max(), Some(u8::MAX));
        let seat = shard.seat(0, key(2), u64::MAX).unwrap();
        let claim = shard.check(seat, u64::MAX, u64::MAX).unwrap();
        shard.take(seat, key(2), claim, u64::MAX);
        // And the clock steps back: the client is served, after at most one window.
        let seat = shard.seat(0, key(2), 0).unwrap();
        assert_eq!(shard.check(seat, 0, 0).unwrap_err(), SECOND);
    }

    /// Everybody who is let in has a way, in one of at most four sets, and what is remembered survives every growth. Those
    /// with the same hash stay together, so the last of nine finds no room however large the shard is.
    #[test]
    fn a_shard_grows_with_those_who_are_let_in_and_forgets_nobody_for_it() {
        let mut shard = Shard { sets_max: 4, ..shard() };
        let hash_of = |of: ClientKey| if of == key(99) { 0 } else { u32::from(of.0[4]) };
        let enter = |shard: &mut Shard, number: u32| {
            let hash = hash_of(key(number));
            let seat = shard.seat(hash, key(number), 0)?;
            let claim = shard.check(seat, 0, 0).expect("within limits");
            let seat = shard.settle(seat, hash, key(number), 0, hash_of)?;
            shard.take(seat, key(number), claim, 0);
            Some(seat.newcomer)
        };
        for (number, sets) in (0..32).zip([1; 8].into_iter().chain([2; 8]).chain([4; 16])) {
            assert_eq!(enter(&mut shard, number), Some(true));
            assert_eq!(shard.memory_bytes(), sets * WAYS * 48, "{number} came");
        }
        for number in 0..32 {
            assert_eq!(enter(&mut shard, number), Some(false), "{number} is known");
        }
        assert_eq!(enter(&mut shard, 99), None, "its set is full of calls in flight");
        for number in 0..32 {
            (0..2).for_each(|_| shard.leave(hash_of(key(number)), key(number)));
        }
        let seat = shard.seat(0, key(99), 0).expect("nobody is inside");
        assert!(seat.newcomer && !seat.is_to_come);
    }

    #[test]
    fn who_is_not_settled_makes_nothing_grow() {
        let mut shard = Shard { sets_max: 4, ..shard() };
        for number in 0..8 {
            visit(&mut shard, number, 0, true);
        }
        let seat = shard.seat(0, key(8), 0).expect("it may grow");
        assert!(seat.is_to_come && shard.check(seat, 0, 0).is_ok());
        assert_eq!(shard.memory_bytes(), WAYS * 48);
    }

    #[test]
    fn addresses_of_one_subscriber_are_one_key() {
        let of = |text: &str| ClientKey::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
        assert_ne!(of("::"), of("0.0.0.0"));
        assert_ne!(of("0.0.0.0"), ClientKey::NOBODY);
        assert_ne!(ClientKey::from_bytes(b"a"), ClientKey::from_bytes(b"b"));
        assert_eq!(ClientKey::from_bytes(b"a"), ClientKey::from_bytes(b"a"));
    }
}
