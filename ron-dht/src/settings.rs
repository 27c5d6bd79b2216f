//! The knobs of a node.

use std::{num::NonZeroUsize, ops::RangeInclusive, time::Duration};

use ron_core::{Capacity, ConfigError, Deadline, GateLimits, GateSettings, Ratio};

use crate::logic::{
    addrs::AddressPolicy,
    lookup::{LookupSettings, PATHS_MAX},
    records::Limits,
    schedule::REPUBLISH,
    signed::TTL_MAX,
    table::{Diversity, K},
};

/// Files of the journal. Smaller ones would hold a record each, and of larger ones three do not fit on every disk.
const SEGMENT_BYTES_MIN: usize = 4 << 10;
const SEGMENT_BYTES_MAX: usize = 1 << 30;

/// What kind of network the node is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// The open Internet: peers are strangers. Networks have a limited share of the table, and nobody may name
    /// addresses that only make sense where they are.
    Public,
    /// One building or one cluster: private addresses are fine, and everybody is of the same network.
    Lan,
    /// One machine: loopback addresses too.
    #[default]
    Dev,
}

impl Preset {
    pub(crate) fn diversity(self) -> Diversity {
        if self == Preset::Public { Diversity::public() } else { Diversity::unlimited() }
    }
}

/// The knobs of a node. Builder methods set them; [`Dht::reload`](crate::Dht::reload) changes those that can change
/// while it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The kind of network. Default: `Dev`.
    pub preset: Preset,
    /// Whether others may ask this node. A client asks and is not asked. Default: true.
    pub server: bool,
    /// Searches that run at once; more wait in the `work` lane. Default 32.
    pub workers: NonZeroUsize,
    /// Searches that wait; more are refused with `Busy`. Default 512.
    pub work_lane: usize,
    /// News of peers that wait for the writer of one bucket. Default 1024.
    pub route_lane: usize,
    /// How long whoever has news of a peer waits for room there before it drops them and counts that. Default 100 ms.
    pub route_timeout: Duration,
    /// Events that a slow subscriber may be behind before it misses some. Default 1024.
    pub events_lane: usize,
    /// Parallelism, hedging and budgets of a search.
    pub lookup: LookupSettings,
    /// The longest a peer may take to answer. Peers known to be fast get less. Default 1500 ms.
    pub rpc_timeout: Duration,
    /// Peers of our own table that a search begins with. Default 20.
    pub seeds: usize,
    /// Whether a key whose neighbourhood looks made up is stored and looked for in a wider region. Default true; without
    /// it, whoever makes twenty ids next to a key decides what is found there. Costs nothing until then.
    pub regions: bool,
    /// How much is kept for others.
    pub records: Limits,
    /// Size of a file of the journal, if there is a disk. It takes at least three of them: lower it where space is
    /// scarce. Default 8 MiB; 4 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// What one peer may ask of us.
    pub peer_limits: GateLimits,
    /// What all peers together may ask of us.
    pub total_limits: GateLimits,
    /// Peers whose use is remembered for these limits.
    pub peers_remembered: usize,
    /// Seeds that must have answered before the node is ready, or other peers in their place; all of them if there are
    /// fewer. Default 1. More of them make it less likely to join a part of a network that has come apart.
    pub seeds_required: usize,
    /// The share of the buckets expected for the size of the network that must be filled before the node is ready.
    /// Buckets in which there turns out to be nobody are not expected. Default 0.8.
    pub buckets_required: f64,
    /// How often a bucket that nobody searched in is refreshed. Default one hour.
    pub refresh: Duration,
    /// How often this node's own provider records are published again. Each is valid for twice as long. Default and maximum
    /// 12 h, since no peer keeps a record for longer than a day.
    pub republish: Duration,
    /// Links open at once. Default 1024.
    pub sessions_max: usize,
    /// Bytes of questions and answers that may wait to be written to all peers together, and as many that peers may have
    /// asked and not been answered. Default 64 MiB.
    pub links_bytes: u64,
    /// A link that nobody used for this long is closed. Default 60 s; more keeps links to neighbours warm.
    pub idle_timeout: Duration,
    /// How long a peer may take for a message that it has begun to send, and for taking one of ours; 64 KiB of a large
    /// one. Then its link is closed. Default 5 s each; longer for very thin lines.
    pub read_timeout: Duration,
    /// See [`read_timeout`](Self::read_timeout).
    pub write_timeout: Duration,
    /// How long running searches may take after a stop. Default 5 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = |per_second, in_flight| GateLimits {
            per_second,
            burst: per_second * 2,
            in_flight,
            bytes_per_second: 64 << 20,
            bytes_burst: 128 << 20,
        };
        Settings {
            preset: Preset::default(),
            server: true,
            workers: const { NonZeroUsize::new(32).expect("not zero") },
            work_lane: 512,
            route_lane: 1024,
            route_timeout: Duration::from_millis(100),
            events_lane: 1024,
            lookup: LookupSettings::default(),
            rpc_timeout: Duration::from_millis(1500),
            seeds: K,
            regions: true,
            records: Limits::default(),
            segment_bytes: 8 << 20,
            peer_limits: limits(2_000, 128),
            total_limits: limits(50_000, 4_096),
            peers_remembered: 4_096,
            seeds_required: 1,
            buckets_required: 0.8,
            refresh: Duration::from_secs(3600),
            republish: REPUBLISH,
            sessions_max: 1024,
            links_bytes: 64 << 20,
            idle_timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(5),
        }
    }
}

impl Settings {
    pub(crate) fn policy(&self) -> AddressPolicy {
        if self.preset == Preset::Public { AddressPolicy::Public } else { AddressPolicy::Local }
    }

    /// Whether these make sense, as a start checks them: for programs that read them from a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, items) in [
            ("work_lane", self.work_lane),
            ("route_lane", self.route_lane),
            ("events_lane", self.events_lane),
        ] {
            Capacity::new(key, items)?;
        }
        Ratio::new("buckets_required", self.buckets_required)?;
        let LookupSettings { hops_max, requests_max, paths, .. } = self.lookup;
        let Limits {
            providers_per_key_max,
            publisher_records_max,
            publisher_bytes_max,
            records_max,
            bytes_max,
            ttl_max,
        } = self.records;
        // A search that may ask nobody finds nothing and calls itself complete, and who keeps nothing is a client.
        for (key, count) in [
            ("seeds", self.seeds),
            ("lookup.hops_max", hops_max.into()),
            ("lookup.requests_max", requests_max.into()),
            ("sessions_max", self.sessions_max),
            ("records.providers_per_key_max", providers_per_key_max),
            ("records.publisher_records_max", publisher_records_max),
            ("records.publisher_bytes_max", publisher_bytes_max),
            ("records.records_max", records_max),
            ("records.bytes_max", bytes_max),
        ] {
            in_range(key, count, 1..=usize::MAX, "1 or more")?;
        }
        in_range("lookup.paths", paths.get(), 1..=PATHS_MAX, "1..=8")?;
        in_range(
            "segment_bytes",
            self.segment_bytes as usize,
            SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX,
            "4 KiB to 1 GiB",
        )?;
        let (day, year) = (Duration::from_secs(24 * 3600), Deadline::LONGEST);
        for (key, duration, max, allowed) in [
            ("rpc_timeout", self.rpc_timeout, day, "above zero, at most a day"),
            ("lookup.hedge_after", self.lookup.hedge_after, day, "above zero, at most a day"),
            ("idle_timeout", self.idle_timeout, day, "above zero, at most a day"),
            ("read_timeout", self.read_timeout, day, "above zero, at most a day"),
            ("write_timeout", self.write_timeout, day, "above zero, at most a day"),
            ("refresh", self.refresh, year, "above zero, at most a year"),
            ("records.ttl_max", ttl_max, TTL_MAX, "above zero, at most a day"),
            // Our records live twice as long, and nobody keeps one for longer than a day.
            ("republish", self.republish, TTL_MAX / 2, "above zero, at most 12 h"),
        ] {
            if duration.is_zero() || duration > max {
                let value = format!("{} s", duration.as_secs_f64());
                return Err(ConfigError::OutOfRange { key, value, allowed });
            }
        }
        self.gate().check()
    }

    pub(crate) fn gate(&self) -> GateSettings {
        GateSettings {
            clients: self.peers_remembered,
            ..GateSettings::new(self.peer_limits, self.total_limits)
        }
    }

    /// Whether a running node can take `new` in place of these. Named is the first setting that it cannot change: one
    /// that decided the size or the place of something when the node began.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] for such a setting, others for one that makes no sense.
    pub fn check_change(&self, new: &Settings) -> Result<(), ConfigError> {
        new.check()?;
        let fixed = [
            ("preset", self.preset == new.preset),
            ("server", self.server == new.server),
            ("workers", self.workers == new.workers),
            ("work_lane", self.work_lane == new.work_lane),
            ("route_lane", self.route_lane == new.route_lane),
            ("events_lane", self.events_lane == new.events_lane),
            ("records", self.records == new.records),
            ("segment_bytes", self.segment_bytes == new.segment_bytes),
            ("peers_remembered", self.peers_remembered == new.peers_remembered),
            ("republish", self.republish == new.republish),
            ("sessions_max", self.sessions_max == new.sessions_max),
            ("links_bytes", self.links_bytes == new.links_bytes),
            ("idle_timeout", self.idle_timeout == new.idle_timeout),
            ("read_timeout", self.read_timeout == new.read_timeout),
            ("write_timeout", self.write_timeout == new.write_timeout),
            ("drain", self.drain == new.drain),
        ];
        match fixed.iter().find(|(_, is_same)| !is_same) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => Ok(()),
        }
    }
}

fn in_range(
    key: &'static str,
    value: usize,
    range: RangeInclusive<usize>,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { key, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Settings)) -> Option<&'static str> {
        let mut settings = Settings::default();
        change(&mut settings);
        match settings.check() {
            Ok(()) => None,
            Err(ConfigError::OutOfRange { key, .. }) => Some(key),
            Err(error) => panic!("{error}"),
        }
    }

    /// Each of these started a node that found nothing, kept nothing or forgot what it was to say again, and two of them
    /// one that panicked.
    #[test]
    fn what_makes_no_sense_is_named() {
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|s| s.seeds = 0), Some("seeds"));
        assert_eq!(refused(|s| s.sessions_max = 0), Some("sessions_max"));
        assert_eq!(refused(|s| s.lookup.hops_max = 0), Some("lookup.hops_max"));
        assert_eq!(refused(|s| s.lookup.requests_max = 0), Some("lookup.requests_max"));
        let nine = NonZeroUsize::new(9).expect("not zero");
        assert_eq!(refused(|s| s.lookup.paths = nine), Some("lookup.paths"));
        assert_eq!(refused(|s| s.records.records_max = 0), Some("records.records_max"));
        assert_eq!(refused(|s| s.records.providers_per_key_max = 0), Some("records.providers_per_key_max"));
        assert_eq!(refused(|s| s.records.bytes_max = 0), Some("records.bytes_max"));
        assert_eq!(refused(|s| s.records.publisher_bytes_max = 0), Some("records.publisher_bytes_max"));
        assert_eq!(refused(|s| s.records.ttl_max = Duration::ZERO), Some("records.ttl_max"));
        assert_eq!(refused(|s| s.records.ttl_max = 2 * TTL_MAX), Some("records.ttl_max"));
        assert_eq!(refused(|s| s.segment_bytes = 100), Some("segment_bytes"));
        assert_eq!(refused(|s| s.work_lane = 0), Some("work_lane"));
        assert_eq!(refused(|s| s.buckets_required = f64::NAN), Some("buckets_required"));
        assert_eq!(refused(|s| s.republish = Duration::MAX), Some("republish"));
        assert_eq!(refused(|s| s.republish = TTL_MAX / 2), None);
        assert_eq!(refused(|s| s.refresh = Duration::MAX), Some("refresh"));
        assert_eq!(refused(|s| s.rpc_timeout = Duration::ZERO), Some("rpc_timeout"));
        assert_eq!(refused(|s| s.lookup.hedge_after = Duration::MAX), Some("lookup.hedge_after"));
        assert_eq!(refused(|s| s.total_limits.in_flight = 0), Some("gate.total.in_flight"));
    }
}
