//! Who is let in: requests per second, calls in flight and bytes per second, for each client and for all together.
//!
//! A refusal leaves no trace: all limits are checked and then all are taken, inside one critical section. Memory grows
//! with the clients that are let in, up to a bound that is decided when the gate is built, because addresses are free and
//! memory is not. The price is that clients can be forgotten, so a flood of new ones must not be able to push the old ones
//! out: newcomers share a part of the total among themselves, and whoever came back has the rest.

mod meter;
mod table;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    mem::{align_of, size_of},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

pub(crate) use self::meter::{Meter, nanos};
pub use self::table::ClientKey;
use self::table::{ClientLimits, PLACE_WAIT, Packed, Shard, WAYS, longest, place};
use crate::{
    CallError, ConfigError, Counter, LockSpec, Metrics, Ratio, Tally, now,
    planted::{Bug, is_planted},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
        lock,
    },
};

/// Locks over the table, at most. Sixteen are enough that two of eight cores rarely want the same one.
const SHARDS_MAX: usize = 16;

/// Sets behind one lock, at least. A gate for few clients is one of many in its process, and not worth sixteen locks.
const SHARD_SETS_MIN: usize = 8;

/// The locks of a gate, in the order they are taken. They are the innermost of all: nothing is called under them.
pub(crate) const LOCKS: [LockSpec; 3] = [
    LockSpec::new("ron-core", "gate.settings", 900)
        .guards("the settings in force; held while they are replaced"),
    LockSpec::new("ron-core", "gate.shard", 910).guards(
        "a sixteenth of the clients, or all if they are few; held for eight comparisons, or while it doubles",
    ),
    LockSpec::new("ron-core", "gate.total", 920)
        .guards("the limits for all clients together; held for arithmetic"),
];

/// What one client, or all together, may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateLimits {
    /// Requests per second in the long run.
    pub per_second: u64,
    /// Requests at once after a quiet time.
    pub burst: u64,
    /// Calls that may be running.
    pub in_flight: u32,
    /// Bytes per second in the long run.
    pub bytes_per_second: u64,
    /// Bytes at once after a quiet time. A larger message passes only when nothing is owed, and counts as one
    /// burst: set it to at least the largest message.
    pub bytes_burst: u64,
}

/// The limits of a gate. Everything but `clients` can be changed while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateSettings {
    /// For each client.
    pub client: GateLimits,
    /// For all clients together.
    pub total: GateLimits,
    /// The part of the total that clients not seen before may use together. Default half: lower it where the same
    /// clients come back all day, raise it where most come once.
    pub newcomer_share: Ratio,
    /// Clients remembered, rounded up to fill the table. Default 32 768, which is 1.5 MB when they have come; more than
    /// twice the number of clients in an hour is not useful.
    pub clients: usize,
}

impl GateSettings {
    /// These limits, with the defaults for the rest.
    #[must_use]
    pub const fn new(client: GateLimits, total: GateLimits) -> Self {
        GateSettings { client, total, newcomer_share: Ratio::HALF, clients: 32_768 }
    }

    /// Whether these make sense, as [`Gate::new`] checks them.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] naming the limit that is zero or too large.
    pub fn check(&self) -> Result<(), ConfigError> {
        let GateSettings { client, total, .. } = self;
        check_range("gate.client.per_second", client.per_second, RATE_MAX, "1..=1000000000")?;
        check_range("gate.total.per_second", total.per_second, RATE_MAX, "1..=1000000000")?;
        check_range("gate.clients", self.clients as u64, CLIENTS_MAX, "1..=16777216")?;
        for (key, value) in [
            ("gate.client.burst", client.burst),
            ("gate.client.in_flight", client.in_flight.into()),
            ("gate.client.bytes_per_second", client.bytes_per_second),
            ("gate.client.bytes_burst", client.bytes_burst),
            ("gate.total.burst", total.burst),
            ("gate.total.in_flight", total.in_flight.into()),
            ("gate.total.bytes_per_second", total.bytes_per_second),
            ("gate.total.bytes_burst", total.bytes_burst),
        ] {
            check_range(key, value, u64::MAX, "1 or more")?;
        }
        if self.newcomer_share.get() <= 0.0 {
            return Err(ConfigError::OutOfRange {
                key: "gate.newcomer_share",
                value: self.newcomer_share.get().to_string(),
                allowed: "above 0, or nobody could ever enter",
            });
        }
        Ok(())
    }

    fn client_limits(&self) -> ClientLimits {
        ClientLimits {
            requests: Meter::of_requests(self.client.per_second, self.client.burst),
            bytes: Meter::of_bytes(self.client.bytes_per_second, self.client.bytes_burst),
            in_flight_max: self.client.in_flight,
        }
    }

    /// Shards, and sets in each at most: powers of two, so that the hash picks one with a mask.
    fn shape(&self) -> Shape {
        let sets = self.clients.div_ceil(WAYS).next_power_of_two();
        let shards = (sets / SHARD_SETS_MIN).clamp(1, SHARDS_MAX);
        Shape { shards, sets: sets / shards }
    }
}

/// How a table is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    shards: usize,
    /// In each shard, at most.
    sets: usize,
}

/// Above a billion a second, a request would cost less than the nanosecond that everything is counted in.
const RATE_MAX: u64 = 1_000_000_000;

/// Sixteen million clients are 800 MB; who needs more needs another machine.
const CLIENTS_MAX: u64 = 1 << 24;

fn check_range(key: &'static str, value: u64, max: u64, allowed: &'static str) -> Result<(), ConfigError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { key, value: value.to_string(), allowed })
}

/// Admission to a subsystem. Cloning shares it.
///
/// ```
/// # use std::net::Ipv4Addr;
/// # use ron_core::{ClientKey, Gate, GateLimits, GateSettings, Metrics};
/// let one = GateLimits { per_second: 10, burst: 20, in_flight: 4, bytes_per_second: 1 << 20, bytes_burst: 1 << 22 };
/// let all = GateLimits { per_second: 1_000, burst: 2_000, in_flight: 256, bytes_per_second: 1 << 27, bytes_burst: 1 << 28 };
/// let gate = Gate::new("http", GateSettings::new(one, all), &Metrics::default())?;
///
/// let client = ClientKey::from(Ipv4Addr::LOCALHOST);
/// match gate.enter(client, 512) {
///     Ok(pass) => drop(pass), // held while the call runs
///     Err(busy) => println!("{busy}"),
/// }
/// # Ok::<(), ron_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    born: Instant,
    hash: RandomState,
    shape: Shape,
    shards: Box<[Apart<Mutex<Shard>>]>,
    total: Apart<Mutex<Total>>,
    inside: Apart<Inside>,
    settings: Mutex<GateSettings>,
    refusals: Tally,
}

/// Keeps what many cores write on cache lines of its own: without it, two cores that use one gate in a tight loop take
/// half as long again.
#[repr(align(64))]
struct Apart<T>(T);

impl Gate {
    /// A gate that names itself `name` in refusals and in `metrics`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] naming the limit that is zero or too large.
    pub fn new(name: &'static str, settings: GateSettings, metrics: &Metrics) -> Result<Self, ConfigError> {
        settings.check()?;
        LOCKS.into_iter().for_each(|spec| metrics.note_lock(spec));
        let (shape, limits) = (settings.shape(), settings.client_limits());
        let shard = || Apart(Mutex::new(Shard::new(shape.sets, limits)));
        Ok(Gate {
            shared: Arc::new(Shared {
                name,
                born: now(),
                hash: RandomState::new(),
                shape,
                shards: std::iter::repeat_with(shard).take(shape.shards).collect(),
                total: Apart(Mutex::new(Total::new(&settings))),
                inside: Apart(Inside::default()),
                settings: Mutex::new(settings),
                refusals: metrics.tally(Counter::BusyRejections, name),
            }),
        })
    }

    /// Lets a call of `bytes` in, or says at once how long to stay away. Nothing waits. Nothing is allocated but for a table
    /// that a new client makes grow, which ends at [`memory_bytes_max`](Gate::memory_bytes_max).
    ///
    /// # Errors
    /// [`CallError::Busy`]. When a rate is the reason, the call fits after `retry_after` exactly, if nobody else
    /// comes in between; when all places are taken it is a guess.
    pub fn enter(&self, client: ClientKey, bytes: u64) -> Result<Pass, CallError> {
        self.enter_at(client, bytes, now())
    }

    /// The same at a time that the caller has just read: for hot paths, where reading the clock twice is noticed.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub fn enter_at(&self, client: ClientKey, bytes: u64, now: Instant) -> Result<Pass, CallError> {
        self.enter_nanos(client, bytes, nanos(now.saturating_duration_since(self.shared.born)))
    }

    fn enter_nanos(&self, client: ClientKey, bytes: u64, now: u64) -> Result<Pass, CallError> {
        let shared = &*self.shared;
        let (shard_at, hash) = shared.place_of(client);

        let mut shard = lock(&shared.shards[shard_at].0);
        let seat = shard.seat(hash, client, now);
        // Without a seat the client is new, by definition: the known have one.
        let newcomer = seat.is_none_or(|seat| seat.newcomer);
        let own = seat.ok_or(PLACE_WAIT).and_then(|seat| Ok((seat, shard.check(seat, bytes, now)?)));
        // Asked even if the client's own limits refuse: the longest wait of all is the one to tell.
        let mut total = lock(&shared.total.0);
        let joint = total.check(&shared.inside.0, newcomer, bytes, now);
        // Only for one who is let in does the table grow.
        let own = own.and_then(|(seat, claim)| match joint {
            Ok(_) => {
                let seat = shard.settle(seat, hash, client, now, |other| shared.place_of(other).1);
                Ok((seat.ok_or(PLACE_WAIT)?, claim))
            }
            Err(_) => Ok((seat, claim)),
        });
        match (own, joint) {
            (Ok((seat, claim)), Ok(joint)) => {
                total.take(joint);
                shared.inside.0.enter(newcomer);
                shard.take(seat, client, claim, now);
                drop(total);
                drop(shard);
                Ok(Pass { shared: Arc::clone(&self.shared), shard_at, hash, client, newcomer })
            }
            (own, joint) => {
                if is_planted(Bug::LeakedPermit) {
                    shared.inside.0.enter(newcomer);
                }
                drop(total);
                drop(shard);
                shared.refusals.add(1);
                let wait = longest([own.err(), joint.err()]);
                Err(CallError::Busy { what: shared.name, retry_after: Duration::from_nanos(wait) })
            }
        }
    }

    /// Applies other limits from the next call on. Whoever is inside stays; who owed a burst owes at most one of the
    /// new bursts.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] as for [`Gate::new`], [`ConfigError::NeedsRestart`] if the table would have another
    /// size. Then everything stays as it was.
    pub fn reload(&self, settings: GateSettings) -> Result<(), ConfigError> {
        settings.check()?;
        if settings.shape() != self.shared.shape {
            return Err(ConfigError::NeedsRestart { key: "gate.clients" });
        }
        // Held to the end, so that of two reloads one is in force everywhere and not each in half of the shards.
        let mut current = lock(&self.shared.settings);
        for shard in &self.shared.shards {
            lock(&shard.0).limits = settings.client_limits();
        }
        lock(&self.shared.total.0).limits = TotalLimits::new(&settings);
        *current = settings;
        Ok(())
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> GateSettings {
        *lock(&self.shared.settings)
    }

    /// Calls inside now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.inside.0.everybody.load(Ordering::Relaxed) as usize
    }

    /// The memory of this gate now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let tables = self.shared.shards.iter().map(|shard| lock(&shard.0).memory_bytes());
        self.bare_bytes() + tables.sum::<usize>()
    }

    /// The most that its memory can become, whoever comes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> usize {
        let Shape { shards, sets } = self.shared.shape;
        self.bare_bytes() + shards * sets * WAYS * size_of::<Packed>()
    }

    /// Without the tables.
    fn bare_bytes(&self) -> usize {
        // The two counts of the `Arc`, padded to the alignment of what follows them.
        let counts = (2 * size_of::<usize>()).max(align_of::<Shared>());
        counts + size_of::<Shared>() + self.shared.shape.shards * size_of::<Apart<Mutex<Shard>>>()
    }
}

impl Shared {
    /// The shard of a client, and the bits that choose its set in there. The low bits of its hash choose the one and the
    /// high bits the other, so that neither follows from the other.
    fn place_of(&self, client: ClientKey) -> (usize, u32) {
        let hash = self.hash.hash_one(client);
        (hash as usize & (self.shape.shards - 1), (hash >> 32) as u32)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("name", &self.shared.name)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// A place inside. Dropping it gives the place back; what the call used of the rates stays used.
#[must_use = "dropping the pass gives the place back at once"]
pub struct Pass {
    shared: Arc<Shared>,
    shard_at: usize,
    hash: u32,
    client: ClientKey,
    newcomer: bool,
}

impl Drop for Pass {
    fn drop(&mut self) {
        lock(&self.shared.shards[self.shard_at].0).leave(self.hash, self.client);
        self.shared.inside.0.leave(self.newcomer);
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("gate", &self.shared.name).finish_non_exhaustive()
    }
}

/// What all clients together have used. One small lock rather than a part in each shard: shares of a limit that do
/// not know of each other are either too strict or not a limit.
#[derive(Debug)]
#[repr(C)] // what is written first, on the line of the lock; the limits behind it are only read
struct Total {
    everybody: Clearing,
    newcomers: Clearing,
    limits: TotalLimits,
}

/// Calls running. Raised only under the lock of the total, so what was checked there still holds when it is raised;
/// lowered without it, so that leaving never waits for those who enter.
#[derive(Debug, Default)]
struct Inside {
    everybody: AtomicU32,
    newcomers: AtomicU32,
}

impl Inside {
    fn enter(&self, newcomer: bool) {
        self.everybody.fetch_add(1, Ordering::Relaxed);
        if newcomer {
            self.newcomers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&self, newcomer: bool) {
        self.everybody.fetch_sub(1, Ordering::Relaxed);
        if newcomer {
            self.newcomers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct TotalLimits {
    requests: Meter,
    bytes: Meter,
    in_flight_max: u32,
    newcomer_requests: Meter,
    newcomer_bytes: Meter,
    newcomers_in_flight_max: u32,
}

/// When nothing is owed any more, for each rate.
#[derive(Debug, Clone, Copy, Default)]
struct Clearing {
    requests: u64,
    bytes: u64,
}

impl TotalLimits {
    fn new(settings: &GateSettings) -> Self {
        let GateSettings { total, newcomer_share: share, .. } = settings;
        let requests = Meter::of_requests(total.per_second, total.burst);
        let bytes = Meter::of_bytes(total.bytes_per_second, total.bytes_burst);
        TotalLimits {
            requests,
            bytes,
            in_flight_max: total.in_flight,
            newcomer_requests: requests.share(*share, Meter::of_requests),
            newcomer_bytes: bytes.share(*share, Meter::of_bytes),
            newcomers_in_flight_max: ((f64::from(total.in_flight) * share.get()) as u32).max(1),
        }
    }
}

impl Total {
    fn new(settings: &GateSettings) -> Self {
        Total {
            limits: TotalLimits::new(settings),
            everybody: Clearing::default(),
            newcomers: Clearing::default(),
        }
    }

    /// What an admission would write for everybody and for newcomers, or how long to wait.
    fn check(
        &self,
        inside: &Inside,
        newcomer: bool,
        bytes: u64,
        now: u64,
    ) -> Result<(Clearing, Clearing), u64> {
        let limits = &self.limits;
        let joint = clear(
            [&limits.requests, &limits.bytes],
            self.everybody,
            place(inside.everybody.load(Ordering::Relaxed), limits.in_flight_max),
            bytes,
            now,
        );
        if !newcomer {
            return joint.map(|everybody| (everybody, self.newcomers));
        }
        let newcomers = clear(
            [&limits.newcomer_requests, &limits.newcomer_bytes],
            self.newcomers,
            place(inside.newcomers.load(Ordering::Relaxed), limits.newcomers_in_flight_max),
            bytes,
            now,
        );
        match (joint, newcomers) {
            (Ok(everybody), Ok(newcomers)) => Ok((everybody, newcomers)),
            (joint, newcomers) => Err(longest([joint.err(), newcomers.err()])),
        }
    }

    fn take(&mut self, (everybody, newcomers): (Clearing, Clearing)) {
        self.everybody = everybody;
        self.newcomers = newcomers;
    }
}

fn clear(
    [requests, volume]: [&Meter; 2],
    owed: Clearing,
    place: Result<(), u64>,
    bytes: u64,
    now: u64,
) -> Result<Clearing, u64> {
    let requests = requests.check(owed.requests, requests.one(), now);
    let volume = volume.check(owed.bytes, volume.cost(bytes), now);
    match (place, requests, volume) {
        (Ok(()), Ok(requests), Ok(bytes)) => Ok(Clearing { requests, bytes }),
        (place, requests, bytes) => Err(longest([place.err(), requests.err(), bytes.err()])),
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::disallowed_methods, reason = "a test that joins its own threads and tasks")]
mod tests {
    use std::{collections::HashMap, net::Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    const ONE: GateLimits =
        GateLimits { per_second: 10, burst: 5, in_flight: 3, bytes_per_second: 1_000, bytes_burst: 500 };
    const ALL: GateLimits =
        GateLimits { per_second: 100, burst: 20, in_flight: 8, bytes_per_second: 5_000, bytes_burst: 2_000 };
    const SETTINGS: GateSettings = GateSettings { clients: 128, ..GateSettings::new(ONE, ALL) };

    fn gate(settings: GateSettings) -> Gate {
        Gate::new("http", settings, &Metrics::default()).expect("in range")
    }

    fn client(number: u32) -> ClientKey {
        Ipv4Addr::from_bits(number).into()
    }

    fn wait_of(error: &CallError) -> u64 {
        let CallError::Busy { what: "http", retry_after } = error else {
            panic!("not a refusal of this gate: {error:?}")
        };
        nanos(*retry_after)
    }

    #[test]
    fn a_client_has_its_burst_and_then_its_rate() {
        let gate = gate(SETTINGS);
        for _ in 0..5 {
            drop(gate.enter_nanos(client(1), 0, 0).unwrap());
        }
        let refused = gate.enter_nanos(client(1), 0, 0).unwrap_err();
        assert_eq!(wait_of(&refused), SECOND / 10);
        assert!(gate.enter_nanos(client(2), 0, 0).is_ok(), "another client is another account");
    }

    #[test]
    fn waiting_as_told_is_enough_and_a_nanosecond_less_is_not() {
        let gate = gate(SETTINGS);
        let mut now = 0;
        for round in 0..500_u64 {
            match gate.enter_nanos(client(1), round * 37 % 300, now) {
                Ok(pass) => drop(pass),
                Err(refused) => {
                    let wait = wait_of(&refused);
                    let bytes = round * 37 % 300;
                    assert!(gate.enter_nanos(client(1), bytes, now + wait - 1).is_err());
                    now += wait;
                    drop(gate.enter_nanos(client(1), bytes, now).unwrap());
                }
            }
        }
    }

    #[test]
    fn places_are_given_back_by_dropping() {
        let gate = gate(SETTINGS);
        let inside: Vec<Pass> = (0..3).map(|_| gate.enter_nanos(client(1), 0, 0).unwrap()).collect();
        let refused = gate.enter_nanos(client(1), 0, 0).unwrap_err();
        assert_eq!(wait_of(&refused), PLACE_WAIT);
        assert_eq!(gate.in_flight(), 3);
        drop(inside);
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.enter_nanos(client(1), 0, 0).is_ok());
    }

    #[test]
    fn newcomers_leave_half_of_everything_to_those_who_came_back() {
        let gate = gate(SETTINGS);
        for _ in 0..2 {
            drop(gate.enter_nanos(client(1), 0, 0).unwrap());
        }
        let now = 10 * SECOND;
        let inside: Vec<Pass> =
            (100..200).filter_map(|number| gate.enter_nanos(client(number), 0, now).ok()).collect();
        assert_eq!(inside.len(), 4, "half of the places");
        let known = gate.enter_nanos(client(1), 0, now).unwrap();
        drop((inside, known));

        let served = (200..300).filter(|number| gate.enter_nanos(client(*number), 0, now).is_ok()).count();
        assert_eq!(served, 6, "half of the burst, of which four were used");
        for _ in 0..4 {
            drop(gate.enter_nanos(client(1), 0, now).unwrap());
        }
    }

    #[test]
    fn a_share_of_one_keeps_nothing_back() {
        let gate = gate(GateSettings { newcomer_share: Ratio::percent(100), ..SETTINGS });
        let served = (0..100).filter(|number| gate.enter_nanos(client(*number), 0, 0).is_ok()).count();
        assert_eq!(served, 20);
    }

    #[test]
    fn a_table_full_of_calls_in_flight_refuses_newcomers_and_serves_the_known() {
        let wide = GateLimits { per_second: RATE_MAX, burst: RATE_MAX, in_flight: 10_000, ..ALL };
        let gate = gate(GateSettings {
            newcomer_share: Ratio::percent(100),
            clients: 1,
            ..GateSettings::new(wide, wide)
        });
        let inside: Vec<(u32, Pass)> = (0..5_000)
            .filter_map(|number| Some((number, gate.enter_nanos(client(number), 0, 0).ok()?)))
            .collect();
        assert_eq!(inside.len(), WAYS, "one for each way of the smallest table");
        let refused = gate.enter_nanos(client(9_999), 0, 0).unwrap_err();
        assert_eq!(wait_of(&refused), PLACE_WAIT);
        for (number, _) in &inside {
            drop(gate.enter_nanos(client(*number), 0, 0).unwrap());
        }
        drop(inside);
        drop(gate.enter_nanos(client(9_999), 0, 0).unwrap());
    }

    /// Ten thousand simulated nodes have a gate each: sixteen locks on cache lines of their own were three quarters of it.
    #[test]
    fn a_gate_for_few_clients_has_few_locks() {
        let shape = |clients| GateSettings { clients, ..SETTINGS }.shape();
        assert_eq!(shape(1), Shape { shards: 1, sets: 1 });
        assert_eq!(shape(64), Shape { shards: 1, sets: 8 });
        assert_eq!(shape(128), Shape { shards: 2, sets: 8 });
        assert_eq!(shape(4_096), Shape { shards: 16, sets: 32 });
        let small = gate(GateSettings { clients: 64, ..SETTINGS });
        assert!(small.memory_bytes() < 4_096, "{}", small.memory_bytes());
    }

    #[test]
    fn refusals_are_counted_under_the_name_of_the_gate() {
        let metrics = Metrics::default();
        let gate = Gate::new("http", SETTINGS, &metrics).unwrap();
        let tally = metrics.tally(Counter::BusyRejections, "http");
        for _ in 0..7 {
            let _ = gate.enter_nanos(client(1), 0, 0);
        }
        assert_eq!(tally.get(), 2);
        assert!(metrics.inventory().to_markdown().contains("gate.total"));
    }

    #[test]
    fn limits_change_while_running_and_the_table_does_not() {
        let gate = gate(SETTINGS);
        while gate.enter_nanos(client(1), 0, 0).is_ok() {}
        let faster = GateSettings { client: GateLimits { per_second: 1_000, ..ONE }, ..SETTINGS };
        gate.reload(faster).unwrap();
        assert_eq!(gate.settings(), faster);
        // Half a second of the old debt is one burst of the new rate, not half a second.
        let refused = gate.enter_nanos(client(1), 0, 0).unwrap_err();
        assert_eq!(wait_of(&refused), SECOND / 1_000);

        let larger = GateSettings { clients: 1_000, ..SETTINGS };
        assert_eq!(gate.reload(larger), Err(ConfigError::NeedsRestart { key: "gate.clients" }));
        assert_eq!(gate.settings(), faster);

        let inside: Vec<Pass> = (0..3).map(|_| gate.enter_nanos(client(1), 0, SECOND).unwrap()).collect();
        let narrower = GateSettings { total: GateLimits { in_flight: 1, ..ALL }, ..SETTINGS };
        gate.reload(narrower).unwrap();
        assert_eq!(gate.in_flight(), 3, "whoever is inside stays");
        assert!(gate.enter_nanos(client(1), 0, 2 * SECOND).is_err());
        drop(inside);
        assert!(gate.enter_nanos(client(1), 0, 2 * SECOND).is_ok());
    }

    #[test]
    fn senseless_settings_are_refused_by_name() {
        let check = |settings: GateSettings, key: &str| {
            let error = Gate::new("http", settings, &Metrics::default()).unwrap_err();
            assert!(error.to_string().starts_with(key), "{error}");
            assert_eq!(gate(SETTINGS).reload(settings), Err(error));
        };
        let client = |client| GateSettings { client, ..SETTINGS };
        let total = |total| GateSettings { total, ..SETTINGS };
        check(client(GateLimits { per_second: 0, ..ONE }), "gate.client.per_second is 0");
        check(total(GateLimits { per_second: RATE_MAX + 1, ..ALL }), "gate.total.per_second is");
        check(client(GateLimits { burst: 0, ..ONE }), "gate.client.burst is 0");
        check(client(GateLimits { in_flight: 0, ..ONE }), "gate.client.in_flight is 0");
        check(total(GateLimits { bytes_per_second: 0, ..ALL }), "gate.total.bytes_per_second is 0");
        check(total(GateLimits { bytes_burst: 0, ..ALL }), "gate.total.bytes_burst is 0");
        check(GateSettings { newcomer_share: Ratio::percent(0), ..SETTINGS }, "gate.newcomer_share is 0");
        check(GateSettings { clients: 0, ..SETTINGS }, "gate.clients is 0");
    }

    #[test]
    fn the_ends_of_the_numbers_do_not_wrap() {
        let endless = GateLimits {
            per_second: RATE_MAX,
            burst: u64::MAX,
            in_flight: u32::MAX,
            bytes_per_second: u64::MAX,
            bytes_burst: u64::MAX,
        };
        let gate = gate(GateSettings { clients: 1, ..GateSettings::new(endless, endless) });
        for now in [0, u64::MAX, 1, u64::MAX - 1] {
            for bytes in [0, 1, u64::MAX] {
                let _ = gate.enter_nanos(client(1), bytes, now);
            }
        }
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn many_threads_never_exceed_the_places_and_leave_none_taken() {
        let gate = gate(GateSettings {
            client: GateLimits { per_second: RATE_MAX, burst: RATE_MAX, ..ONE },
            total: GateLimits { per_second: RATE_MAX, burst: RATE_MAX, ..ALL },
            ..SETTINGS
        });
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let gate = &gate;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let first = gate.enter(client(round % 7), 0);
                        let second = gate.enter(client(thread), 0);
                        assert!(gate.in_flight() <= 8);
                        drop((second, first));
                    }
                });
            }
        });
        assert_eq!(gate.in_flight(), 0);
    }

    /// The same limits over plain lists of what was admitted when; debts are computed anew from the beginning.
    #[derive(Default)]
    struct Model {
        clients: HashMap<u32, Account>,
        everybody: Account,
        newcomers: Account,
    }

    #[derive(Default)]
    struct Account {
        takes: Vec<(u64, u64)>,
        inside: u32,
    }

    impl Account {
        /// The time until this account allows a call of `bytes` under `limits`.
        fn wait(&self, limits: GateLimits, bytes: u64, now: u64) -> u64 {
            let one = SECOND.div_ceil(limits.per_second);
            let volume = |bytes: u64| (bytes * SECOND).div_ceil(limits.bytes_per_second);
            let wait = |window: u64, cost: &dyn Fn(u64) -> u64| {
                let (mut debt, mut then) = (0_u64, 0);
                for (at, bytes) in &self.takes {
                    debt = debt.saturating_sub(at - then) + cost(*bytes).min(window);
                    then = *at;
                }
                debt = debt.saturating_sub(now - then) + cost(bytes).min(window);
                debt.saturating_sub(window)
            };
            let place = if self.inside >= limits.in_flight { PLACE_WAIT } else { 0 };
            wait(limits.burst * one, &|_| one).max(wait(volume(limits.bytes_burst), &volume)).max(place)
        }

        fn take(&mut self, bytes: u64, now: u64) {
            self.takes.push((now, bytes));
            self.inside += 1;
        }
    }

    impl Model {
        fn enter(&mut self, number: u32, bytes: u64, now: u64) -> Result<bool, u64> {
            let half = GateLimits {
                per_second: ALL.per_second / 2,
                burst: ALL.burst / 2,
                in_flight: ALL.in_flight / 2,
                bytes_per_second: ALL.bytes_per_second / 2,
                bytes_burst: ALL.bytes_burst / 2,
            };
            let newcomer = !self.clients.contains_key(&number);
            let nothing = Account::default();
            let mut wait = self.everybody.wait(ALL, bytes, now);
            wait = wait.max(self.clients.get(&number).unwrap_or(&nothing).wait(ONE, bytes, now));
            if newcomer {
                wait = wait.max(self.newcomers.wait(half, bytes, now));
            }
            if wait > 0 {
                return Err(wait);
            }
            self.everybody.take(bytes, now);
            self.clients.entry(number).or_default().take(bytes, now);
            if newcomer {
                self.newcomers.take(bytes, now);
            }
            Ok(newcomer)
        }

        fn leave(&mut self, number: u32, newcomer: bool) {
            self.everybody.inside -= 1;
            self.clients.get_mut(&number).expect("entered before").inside -= 1;
            self.newcomers.inside -= u32::from(newcomer);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Enter { number: u32, bytes: u64 },
        Leave(prop::sample::Index),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // At most eight clients: even if all fall into one set, none is forgotten.
        let step = prop_oneof![
            6 => (0_u32..8, prop_oneof![Just(0), 0_u64..200, 0_u64..3_000])
                .prop_map(|(number, bytes)| Step::Enter { number, bytes }),
            4 => any::<prop::sample::Index>().prop_map(Step::Leave),
            2 => prop_oneof![0..SECOND / 50, 0..SECOND, 0..100 * SECOND].prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..250)
    }

    proptest! {
        #[test]
        fn behaves_like_lists_of_admissions(steps in steps()) {
            let (gate, mut model) = (gate(SETTINGS), Model::default());
            let (mut inside, mut now) = (Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Enter { number, bytes } => {
                        let got = gate.enter_nanos(client(number), bytes, now);
                        match model.enter(number, bytes, now) {
                            Ok(newcomer) => inside.push((got.expect("the model agrees"), number, newcomer)),
                            Err(wait) => prop_assert_eq!(wait_of(&got.expect_err("the model refuses")), wait),
                        }
                    }
                    Step::Leave(which) if !inside.is_empty() => {
                        let (pass, number, newcomer) = inside.swap_remove(which.index(inside.len()));
                        drop(pass);
                        model.leave(number, newcomer);
                    }
                    Step::Leave(_) => {}
                    Step::Wait(nanos) => now += nanos,
                }
                prop_assert_eq!(gate.in_flight(), inside.len());
            }
        }
    }
}
