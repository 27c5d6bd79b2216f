//! The knobs of an index.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{BreakerSettings, Capacity, ConfigError, GateLimits, GateSettings, Probing, Ratio};

use crate::logic::{
    cache::{BYTES_MIN, Staleness},
    hedge::Hedging,
    key::Key,
    rank::RankSettings,
};

/// The most providers in one answer.
pub const PROVIDERS_LIMIT: usize = 32;

/// How often one client may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Sustained.
    pub per_second: u64,
    /// At once, after a quiet time.
    pub burst: u64,
}

/// The knobs of an index, for [`Builder::settings`](crate::Builder::settings). [`Index::reload`](crate::Index::reload) applies
/// new ones while the index runs and keeps the cache; [`check_change`](Self::check_change) says which need a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Lookups that wait for a worker; more are refused with `Busy`. Default 512: enough for a burst of a second, and few
    /// enough that every lookup that is let in can still finish within its budget.
    pub lane: usize,
    /// Events that a slow subscriber may be behind before it misses some. Default 1024.
    pub events_lane: usize,
    /// Lookups that run at once. Default 128. See [`workers_for`] for how many a load needs.
    pub workers: NonZeroUsize,
    /// How long one resolution may take in all: name, manifest, providers and ranking. Default 1200 ms.
    pub budget: Duration,
    /// Provider sources asked at once. Default 3.
    pub alpha: NonZeroUsize,
    /// Further provider sources asked when the first are slow (hedges). Default 2; 0 never hedges.
    pub beta: usize,
    /// How long to wait before hedging, until enough answers were timed; from then on, the time within which nineteen of
    /// twenty answers came. Default 150 ms.
    pub hedge_after: Duration,
    /// The least time to wait before hedging. Default 5 ms.
    pub hedge_min: Duration,
    /// How many hedges may be sent, as a share of all questions. Default 5 %. A larger share answers faster and loads the
    /// sources by as much more.
    pub hedge_share: Ratio,
    /// Retries after transient errors, for each kind of question (name, manifest, providers). Default 3, which is also the most.
    pub retries: u32,
    /// Providers after which a lookup ends. Default 1: with more, every lookup takes longer.
    pub enough: NonZeroUsize,
    /// Memory for cached answers. Default 64 MiB, at least 1 MiB.
    pub cache_bytes: u64,
    /// How long an answer about a name is fresh, if its source does not say less. Default one minute. A registry that is
    /// [followed](crate::Builder::registry) says at once when one changes, and then this may be longer.
    pub name_ttl: Duration,
    /// How long an answer about content is fresh. Default five minutes.
    pub content_ttl: Duration,
    /// How long "there is nothing" is fresh, when a source with the authority to say so has said it. Also how long an
    /// incomplete answer is fresh. Default 15 s.
    pub negative_ttl: Duration,
    /// How long after its freshness an answer is still served, marked as stale, while a lookup refreshes it. Default 30 s.
    pub stale_while_revalidate: Duration,
    /// How long after its freshness an answer is still served, marked as stale, if the lookup fails. Default one hour.
    pub stale_if_error: Duration,
    /// How long no new lookup is begun after one has failed and a stale answer was served. Default 1 s.
    pub failure_pause: Duration,
    /// An answer that was used at least this often is refreshed shortly before it goes stale. Default 2; a higher number
    /// refreshes fewer.
    pub refresh_hits: u32,
    /// How often answers that can no longer be served are removed. Default 10 s.
    pub sweep_interval: Duration,
    /// How often the whole cache is cleared, for nodes that must not remember what was asked. Default never. An index never
    /// writes anything to disk, with this or without.
    pub amnesia: Option<Duration>,
    /// When a source that keeps failing is left alone, and when it is tried again. Default: when half of at least ten
    /// questions within ten seconds failed; after one second, by three probes. Probes are always made in the background.
    pub breaker: BreakerSettings,
    /// How long a probe may take. Default 1 s.
    pub probe_timeout: Duration,
    /// Questions of one client that may be open at once. Default 256.
    pub client_in_flight: u32,
    /// How often one client may ask. Default: no limit of its own.
    pub client_rate: Option<Rate>,
    /// Questions per second of all clients together, half of them of clients not seen before. Default 200 000.
    pub total_rate: u64,
    /// Lookups of one client that may run or wait. Default 64, half of the workers: a client that asks for keys that nobody
    /// knows leaves the other half to the rest.
    pub client_lookups: u32,
    /// Clients that are told apart for these limits. Default 16 384, which takes some 800 KiB.
    pub clients_remembered: usize,
    /// Admits fewer lookups while they take long, down to eight. Default off: then only the lane and the workers limit them.
    pub adaptive: bool,
    /// Keys that may be pinned. Default 1024. Their answers may take half of the cache.
    pub pins_max: usize,
    /// How providers are ordered.
    pub rank: RankSettings,
    /// Providers whose record of deliveries is kept. Default 4096.
    pub reputation_max: usize,
    /// Keys that are looked up at the start, one after the other. Default none.
    pub warmup: Vec<Key>,
    /// How long running lookups may take after a request to stop, but no longer than their budget. 1 to 5 s, default 5 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let nonzero = |number| NonZeroUsize::new(number).expect("not zero");
        Settings {
            lane: 512,
            events_lane: 1024,
            workers: nonzero(128),
            budget: Duration::from_millis(1200),
            alpha: nonzero(3),
            beta: 2,
            hedge_after: Duration::from_millis(150),
            hedge_min: Duration::from_millis(5),
            hedge_share: Ratio::percent(5),
            retries: 3,
            enough: NonZeroUsize::MIN,
            cache_bytes: 64 << 20,
            name_ttl: Duration::from_secs(60),
            content_ttl: Duration::from_secs(300),
            negative_ttl: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(30),
            stale_if_error: Duration::from_secs(3600),
            failure_pause: Duration::from_secs(1),
            refresh_hits: 2,
            sweep_interval: Duration::from_secs(10),
            amnesia: None,
            breaker: BreakerSettings { probing: Probing::Background, ..BreakerSettings::default() },
            probe_timeout: Duration::from_secs(1),
            client_in_flight: 256,
            client_rate: None,
            total_rate: 200_000,
            client_lookups: 64,
            clients_remembered: 16_384,
            adaptive: false,
            pins_max: 1024,
            rank: RankSettings::default(),
            reputation_max: 4096,
            warmup: Vec::new(),
            drain: Duration::from_secs(5),
        }
    }
}

/// The longest that an answer may be fresh or stale. Whoever wants to keep answers longer wants a store, not a cache.
const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Settings {
    /// Checks the settings as [`Builder::start`](crate::Builder::start) does, for programs that read them from a file.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first setting that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        Capacity::new("lane", self.lane)?;
        Capacity::new("events_lane", self.events_lane)?;
        let range = |key, value: u64, min: u64, max: u64, allowed| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::OutOfRange { key, value: value.to_string(), allowed })
        };
        range("workers", self.workers.get() as u64, 1, 4096, "1..=4096")?;
        range("alpha", self.alpha.get() as u64, 1, 16, "1..=16")?;
        range("beta", self.beta as u64, 0, 16, "0..=16")?;
        range("retries", self.retries.into(), 0, 3, "0..=3")?;
        range("enough", self.enough.get() as u64, 1, PROVIDERS_LIMIT as u64, "1..=32")?;
        range("cache_bytes", self.cache_bytes, BYTES_MIN, 1 << 40, "1 MiB to 1 TiB")?;
        range("pins_max", self.pins_max as u64, 0, 1 << 16, "0..=65536")?;
        range("reputation_max", self.reputation_max as u64, 1, 1 << 20, "1..=1048576")?;
        range("warmup", self.warmup.len() as u64, 0, 1 << 16, "at most 65536 keys")?;
        let span = |key, value: Duration, min: Duration, max: Duration, allowed| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::OutOfRange { key, value: format!("{value:?}"), allowed })
        };
        let (milli, second) = (Duration::from_millis(1), Duration::from_secs(1));
        span("budget", self.budget, 10 * milli, 60 * second, "10 ms to 1 min")?;
        span("hedge_after", self.hedge_after, milli, self.budget, "1 ms to the budget")?;
        span("hedge_min", self.hedge_min, milli, self.hedge_after, "1 ms to hedge_after")?;
        span("name_ttl", self.name_ttl, milli, TTL_MAX, "1 ms to 7 days")?;
        span("content_ttl", self.content_ttl, milli, TTL_MAX, "1 ms to 7 days")?;
        span("negative_ttl", self.negative_ttl, milli, TTL_MAX, "1 ms to 7 days")?;
        span(
            "stale_while_revalidate",
            self.stale_while_revalidate,
            Duration::ZERO,
            TTL_MAX,
            "at most 7 days",
        )?;
        span("stale_if_error", self.stale_if_error, Duration::ZERO, TTL_MAX, "at most 7 days")?;
        span("failure_pause", self.failure_pause, Duration::ZERO, 60 * second, "at most 1 min")?;
        span("sweep_interval", self.sweep_interval, 10 * milli, 3600 * second, "10 ms to 1 h")?;
        span("probe_timeout", self.probe_timeout, milli, 60 * second, "1 ms to 1 min")?;
        span("rank.half_life", self.rank.half_life, second, 365 * 24 * 3600 * second, "1 s to 1 year")?;
        span("drain", self.drain, second, 5 * second, "1 s to 5 s")?;
        if let Some(interval) = self.amnesia {
            span("amnesia", interval, 10 * milli, 24 * 3600 * second, "10 ms to 24 h")?;
        }
        let rank = &self.rank;
        for (key, weight) in [
            ("rank.region_weight", rank.region_weight),
            ("rank.freshness_weight", rank.freshness_weight),
            ("rank.latency_weight", rank.latency_weight),
            ("rank.success_weight", rank.success_weight),
        ] {
            if !(0.0..=1000.0).contains(&weight) {
                return Err(ConfigError::OutOfRange { key, value: weight.to_string(), allowed: "0 to 1000" });
            }
        }
        ron_core::Breaker::new(self.breaker(), ron_core::now())?;
        self.gate().check()?;
        self.lookup_gate().check()
    }

    /// Whether a running index with these settings can change to `new`.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] naming the first setting that only a restart can change, another [`ConfigError`] naming
    /// one that is out of range.
    pub fn check_change(&self, new: &Settings) -> Result<(), ConfigError> {
        let fixed = [
            ("lane", self.lane != new.lane),
            ("events_lane", self.events_lane != new.events_lane),
            ("workers", self.workers != new.workers),
            ("clients_remembered", self.clients_remembered != new.clients_remembered),
            ("reputation_max", self.reputation_max != new.reputation_max),
            ("breaker", self.breaker != new.breaker),
            ("adaptive", self.adaptive != new.adaptive),
            ("warmup", self.warmup != new.warmup),
            ("drain", self.drain != new.drain),
        ];
        match fixed.into_iter().find(|(_, is_different)| *is_different) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => new.check(),
        }
    }

    /// How long to wait before hedging, given the answers seen so far: no longer than half of the budget, unless
    /// `hedge_after` is longer.
    pub(crate) fn hedge_delay(&self, hedging: &Hedging) -> Duration {
        hedging.delay(self.hedge_after, self.hedge_min, (self.budget / 2).max(self.hedge_after))
    }

    pub(crate) fn breaker(&self) -> BreakerSettings {
        BreakerSettings { probing: Probing::Background, ..self.breaker }
    }

    pub(crate) fn staleness(&self) -> Staleness {
        Staleness { while_revalidate: self.stale_while_revalidate, if_error: self.stale_if_error }
    }

    /// The limits on questions.
    pub(crate) fn gate(&self) -> GateSettings {
        let rate = self.client_rate.unwrap_or(Rate { per_second: self.total_rate, burst: self.total_rate });
        let client = limits(rate.per_second, rate.burst, self.client_in_flight);
        let total = limits(self.total_rate, self.total_rate, 1 << 20);
        GateSettings { clients: self.clients_remembered, ..GateSettings::new(client, total) }
    }

    /// The limits on lookups. Clients not seen before share half of the workers, so that a flood of them leaves the other half
    /// to the clients that are known.
    pub(crate) fn lookup_gate(&self) -> GateSettings {
        let places = self.lane + self.workers.get();
        let share = (self.workers.get() as f64 / 2.0).max(1.0) / places as f64;
        let client = limits(self.total_rate, self.total_rate, self.client_lookups);
        let total = limits(self.total_rate, self.total_rate, u32::try_from(places).unwrap_or(u32::MAX));
        let newcomer_share = Ratio::new("workers", share).unwrap_or(Ratio::HALF);
        GateSettings { clients: self.clients_remembered, newcomer_share, ..GateSettings::new(client, total) }
    }
}

/// Limits on everything but bytes.
fn limits(per_second: u64, burst: u64, in_flight: u32) -> GateLimits {
    GateLimits { per_second, burst, in_flight, bytes_per_second: 1 << 40, bytes_burst: 1 << 40 }
}

/// How many workers a load needs so that they are busy seven tenths of the time. `per_second` questions arrive, each takes
/// the time `without` a lookup, a `lookup` takes that much more, and the cache answers the share `hit_share`.
///
/// ```
/// use std::time::Duration;
///
/// let (without, lookup) = (Duration::from_millis(5), Duration::from_millis(40));
/// assert_eq!(ron_index::workers_for(1000.0, without, lookup, 0.9), 13);
/// assert_eq!(ron_index::workers_for(1000.0, without, lookup, 0.0), 65);
/// ```
#[must_use]
pub fn workers_for(per_second: f64, without: Duration, lookup: Duration, hit_share: f64) -> usize {
    const BUSY: f64 = 0.7;
    let (without, lookup) = (without.as_secs_f64(), lookup.as_secs_f64());
    let hit_share = hit_share.clamp(0.0, 1.0);
    let each = hit_share * without + (1.0 - hit_share) * (without + lookup);
    // A hair less, so that a product that is whole but for rounding is not rounded up.
    ((per_second.max(0.0) * each / BUSY - 1e-9).ceil() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arithmetic of M ≥ ⌈λ · E / 0.7⌉, by hand.
    #[test]
    fn workers_follow_the_load() {
        let ms = Duration::from_millis;
        // E = 0.8 · 5 + 0.2 · 45 = 13 ms; 500 · 0.013 / 0.7 = 9.3
        assert_eq!(workers_for(500.0, ms(5), ms(40), 0.8), 10);
        // E = 45 ms; 700 · 0.045 / 0.7 = 45
        assert_eq!(workers_for(700.0, ms(5), ms(40), 0.0), 45);
        assert_eq!(workers_for(0.0, ms(5), ms(40), 0.5), 1);
        assert_eq!(workers_for(1e6, ms(0), ms(40), 1.0), 1);
        // Twice the load, twice the workers.
        assert_eq!(workers_for(1400.0, ms(5), ms(40), 0.0), 90);
    }

    #[test]
    fn the_defaults_are_those_of_the_design_and_make_sense() {
        let settings = Settings::default();
        settings.check().unwrap();
        assert_eq!((settings.lane, settings.events_lane, settings.client_in_flight), (512, 1024, 256));
        assert_eq!((settings.alpha.get(), settings.beta, settings.retries), (3, 2, 3));
        assert_eq!((settings.budget.as_millis(), settings.hedge_after.as_millis()), (1200, 150));
    }
}
