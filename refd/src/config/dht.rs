//! The section `[dht]`: what of [`ron_dht::Settings`] a file can say.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::GateLimits;
use ron_dht::{Limits, LookupSettings, Preset, Settings};
use serde::{Deserialize, Serialize};

use super::{millis, seeds};

documented! {
/// Finding peers and content. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DhtSection {
    /// The kind of network: `public`, `lan` or `dev`.
    pub(crate) preset: PresetName,
    /// Whether this node answers requests of others.
    pub(crate) server: bool,
    /// Nodes to join the network through, each `NODE_ID@IP:PORT`, with further addresses behind commas.
    #[serde(deserialize_with = "seeds")]
    pub(crate) seeds: Vec<String>,
    /// Searches that run at once.
    pub(crate) workers: NonZeroUsize,
    /// Searches that wait for a worker.
    pub(crate) work_lane: usize,
    /// Updates of the routing table that may wait for one bucket.
    pub(crate) route_lane: usize,
    /// How long an update waits for room there before it is dropped.
    pub(crate) route_timeout_ms: u64,
    /// Events that a slow subscriber may be behind.
    pub(crate) events_lane: usize,
    /// Peers that a search asks at once.
    pub(crate) alpha: NonZeroUsize,
    /// Further peers that a search asks while some of those are silent.
    pub(crate) beta: usize,
    /// How long a peer that was not timed yet may be silent before another is asked.
    pub(crate) hedge_after_ms: u64,
    /// How many referrals away from the own table a search may go.
    pub(crate) hop_budget: u8,
    /// Requests that one search may send.
    pub(crate) requests_max: u16,
    /// Disjoint paths of one search, against peers that lie together.
    pub(crate) paths: NonZeroUsize,
    /// Peers of the own table that a search begins with.
    pub(crate) search_seeds: usize,
    /// How long a peer may take to answer.
    pub(crate) rpc_timeout_ms: u64,
    /// Whether neighbourhoods that look forged are detected, and records stored and searched more widely there.
    pub(crate) regions: bool,
    /// Records kept for others.
    pub(crate) records_max: usize,
    /// Bytes of those records.
    pub(crate) record_bytes_max: usize,
    /// Providers kept for one key.
    pub(crate) providers_per_key_max: usize,
    /// Records kept of one publisher.
    pub(crate) publisher_records_max: usize,
    /// Bytes of the records of one publisher.
    pub(crate) publisher_bytes_max: usize,
    /// Size of a file of the journal.
    pub(crate) segment_bytes: u32,
    /// Requests of one peer at once.
    pub(crate) peer_in_flight: u32,
    /// Requests of one peer per second.
    pub(crate) peer_per_second: u64,
    /// Bytes of one peer per second.
    pub(crate) peer_bytes_per_second: u64,
    /// Requests of all peers at once.
    pub(crate) max_inflight: u32,
    /// Requests of all peers per second.
    pub(crate) max_rps: u64,
    /// Bytes of all peers per second.
    pub(crate) max_bytes_per_second: u64,
    /// Peers that are told apart for these limits.
    pub(crate) peers_remembered: usize,
    /// Seeds that must have answered before the node is ready.
    pub(crate) seeds_required: usize,
    /// The share of the expected buckets that must be filled before the node is ready.
    pub(crate) buckets_required: f64,
    /// How often the table is refreshed.
    pub(crate) refresh_ms: u64,
    /// How often own records are announced again.
    pub(crate) republish_ms: u64,
    /// Links at once.
    pub(crate) sessions_max: usize,
    /// Bytes that may wait to be written to all links, and as many that requests of peers may hold.
    pub(crate) links_bytes: u64,
    /// How long an unused link stays open.
    pub(crate) idle_timeout_ms: u64,
    /// How long a message may take to arrive once it has begun.
    pub(crate) read_timeout_ms: u64,
    /// How long a peer may take to accept what is sent to it.
    pub(crate) write_timeout_ms: u64,
    /// How long running searches may take after a request to stop.
    pub(crate) drain_ms: u64,
}
}

impl Default for DhtSection {
    fn default() -> Self {
        let Settings { lookup, records, peer_limits, total_limits, .. } = Settings::default();
        let default = Settings::default();
        DhtSection {
            preset: PresetName::Dev,
            server: default.server,
            seeds: Vec::new(),
            workers: default.workers,
            work_lane: default.work_lane,
            route_lane: default.route_lane,
            route_timeout_ms: millis(default.route_timeout),
            events_lane: default.events_lane,
            alpha: lookup.parallelism,
            beta: lookup.hedges,
            hedge_after_ms: millis(lookup.hedge_after),
            hop_budget: lookup.hops_max,
            requests_max: lookup.requests_max,
            paths: lookup.paths,
            search_seeds: default.seeds,
            rpc_timeout_ms: millis(default.rpc_timeout),
            regions: default.regions,
            records_max: records.records_max,
            record_bytes_max: records.bytes_max,
            providers_per_key_max: records.providers_per_key_max,
            publisher_records_max: records.publisher_records_max,
            publisher_bytes_max: records.publisher_bytes_max,
            segment_bytes: default.segment_bytes,
            peer_in_flight: peer_limits.in_flight,
            peer_per_second: peer_limits.per_second,
            peer_bytes_per_second: peer_limits.bytes_per_second,
            max_inflight: total_limits.in_flight,
            max_rps: total_limits.per_second,
            max_bytes_per_second: total_limits.bytes_per_second,
            peers_remembered: default.peers_remembered,
            seeds_required: default.seeds_required,
            buckets_required: default.buckets_required,
            refresh_ms: millis(default.refresh),
            republish_ms: millis(default.republish),
            sessions_max: default.sessions_max,
            links_bytes: default.links_bytes,
            idle_timeout_ms: millis(default.idle_timeout),
            read_timeout_ms: millis(default.read_timeout),
            write_timeout_ms: millis(default.write_timeout),
            drain_ms: millis(default.drain),
        }
    }
}

impl DhtSection {
    /// As the DHT takes them. A burst is two seconds' worth of requests and of bytes.
    pub(crate) fn settings(&self) -> Settings {
        let default = Settings::default();
        let limits = |per_second: u64, in_flight, bytes_per_second: u64| GateLimits {
            per_second,
            burst: per_second.saturating_mul(2),
            in_flight,
            bytes_per_second,
            bytes_burst: bytes_per_second.saturating_mul(2),
        };
        Settings {
            preset: self.preset.into(),
            server: self.server,
            workers: self.workers,
            work_lane: self.work_lane,
            route_lane: self.route_lane,
            route_timeout: Duration::from_millis(self.route_timeout_ms),
            events_lane: self.events_lane,
            lookup: LookupSettings {
                parallelism: self.alpha,
                hedges: self.beta,
                hedge_after: Duration::from_millis(self.hedge_after_ms),
                hops_max: self.hop_budget,
                requests_max: self.requests_max,
                paths: self.paths,
            },
            seeds: self.search_seeds,
            rpc_timeout: Duration::from_millis(self.rpc_timeout_ms),
            regions: self.regions,
            records: Limits {
                records_max: self.records_max,
                bytes_max: self.record_bytes_max,
                providers_per_key_max: self.providers_per_key_max,
                publisher_records_max: self.publisher_records_max,
                publisher_bytes_max: self.publisher_bytes_max,
                ..default.records
            },
            segment_bytes: self.segment_bytes,
            peer_limits: limits(self.peer_per_second, self.peer_in_flight, self.peer_bytes_per_second),
            total_limits: limits(self.max_rps, self.max_inflight, self.max_bytes_per_second),
            peers_remembered: self.peers_remembered,
            seeds_required: self.seeds_required,
            buckets_required: self.buckets_required,
            refresh: Duration::from_millis(self.refresh_ms),
            republish: Duration::from_millis(self.republish_ms),
            sessions_max: self.sessions_max,
            links_bytes: self.links_bytes,
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            read_timeout: Duration::from_millis(self.read_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
            drain: Duration::from_millis(self.drain_ms),
        }
    }

    /// What the DHT calls a setting, in the words of the file.
    pub(super) fn key_of(setting: &'static str) -> &'static str {
        match setting {
            "seeds" => "search_seeds",
            "lookup.parallelism" => "alpha",
            "lookup.hedges" => "beta",
            "lookup.hops_max" => "hop_budget",
            "lookup.hedge_after" => "hedge_after_ms",
            "gate.client.in_flight" => "peer_in_flight",
            "gate.client.per_second" => "peer_per_second",
            "gate.client.bytes_per_second" => "peer_bytes_per_second",
            "gate.total.bytes_per_second" => "max_bytes_per_second",
            "gate.clients" => "peers_remembered",
            "rpc_timeout" => "rpc_timeout_ms",
            "route_timeout" => "route_timeout_ms",
            "refresh" => "refresh_ms",
            "republish" => "republish_ms",
            "records.bytes_max" => "record_bytes_max",
            setting => setting.trim_start_matches("lookup.").trim_start_matches("records."),
        }
    }
}

/// A preset by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PresetName {
    /// The open Internet.
    Public,
    /// One building or cluster.
    Lan,
    /// One machine.
    Dev,
}

impl From<PresetName> for Preset {
    fn from(name: PresetName) -> Self {
        match name {
            PresetName::Public => Preset::Public,
            PresetName::Lan => Preset::Lan,
            PresetName::Dev => Preset::Dev,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;
    use crate::config::{Flags, tests::load};

    #[test]
    fn every_key_of_the_dht_reaches_it() {
        let default = DhtSection::default();
        assert_eq!(default.settings(), ron_dht::Settings::default());
        let text = toml::to_string(&default).unwrap();
        let mut seen = vec![default.settings()];
        for line in text.lines().filter(|line| !line.starts_with("seeds = ")) {
            let (key, value) = line.split_once(" = ").unwrap();
            let value = match value {
                "true" => "false",
                "\"dev\"" => "\"public\"",
                _ if key == "buckets_required" => "0.9",
                _ => "9",
            };
            let config = load(&format!("[dht]\n{key} = {value}\n"), &[], Flags::default()).unwrap();
            let settings = config.dht.settings();
            // Neither the default nor what another key does.
            assert!(!seen.contains(&settings), "{key}");
            seen.push(settings);
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
        assert_eq!(seen.len(), 40);
    }
}
