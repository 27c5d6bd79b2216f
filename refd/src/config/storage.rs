//! The section `[storage]`: what of [`ron_storage::Settings`] a file can say.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::GateLimits;
use serde::{Deserialize, Serialize};

use super::millis;

documented! {
/// Keeping objects. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StorageSection {
    /// Whether objects are kept in memory only, and lost when the process ends.
    pub(crate) memory: bool,
    /// The longest object.
    pub(crate) object_bytes_max: u64,
    /// Bytes of all objects together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_bytes: Option<u64>,
    /// Number of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_objects: Option<u64>,
    /// Free space on the disk that puts leave, so that deletes find room.
    pub(crate) reserve_bytes: u64,
    /// Objects up to this length are kept in the journal, longer ones as files.
    pub(crate) small_bytes_max: u32,
    /// The most that one job reads or writes.
    pub(crate) chunk_bytes: u32,
    /// Reading jobs at once.
    pub(crate) get_workers: NonZeroUsize,
    /// Writing jobs at once.
    pub(crate) put_workers: NonZeroUsize,
    /// Reading jobs that wait for a worker.
    pub(crate) get_lane: usize,
    /// Writing jobs that wait for a worker.
    pub(crate) put_lane: usize,
    /// Objects that are being read at once.
    pub(crate) get_streams: usize,
    /// Objects that are being written at once.
    pub(crate) put_streams: usize,
    /// Bytes that all streams of one direction hold together.
    pub(crate) stream_bytes_max: u64,
    /// Requests of one client at once.
    pub(crate) client_in_flight: u32,
    /// Requests of one client per second.
    pub(crate) client_per_second: u64,
    /// Requests of all clients at once.
    pub(crate) max_inflight: u32,
    /// Requests of all clients per second.
    pub(crate) max_rps: u64,
    /// How long the disk may take for one reading job.
    pub(crate) read_timeout_ms: u64,
    /// How long the disk may take for one writing job.
    pub(crate) write_timeout_ms: u64,
    /// How long a stream may make no progress.
    pub(crate) idle_timeout_ms: u64,
    /// How long running transfers may take after a request to stop.
    pub(crate) drain_ms: u64,
    /// Bytes that compaction and scrubbing may read per second.
    pub(crate) upkeep_bytes_per_second: u64,
    /// How often every object is read and verified by itself; by default only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrub_every_hours: Option<u64>,
    /// Size of a file of the journal.
    pub(crate) segment_bytes: u32,
    /// The share of the journal that may be garbage before it is compacted.
    pub(crate) garbage_max: f64,
    /// How long a new object without a pin is safe from garbage collection.
    pub(crate) collect_grace_ms: u64,
}
}

impl Default for StorageSection {
    fn default() -> Self {
        let default = ron_storage::Settings::default();
        StorageSection {
            memory: false,
            object_bytes_max: default.object_bytes_max,
            quota_bytes: default.quota_bytes,
            quota_objects: default.quota_objects,
            reserve_bytes: default.reserve_bytes,
            small_bytes_max: default.small_bytes_max,
            chunk_bytes: default.chunk_bytes,
            get_workers: default.get_workers,
            put_workers: default.put_workers,
            get_lane: default.get_lane,
            put_lane: default.put_lane,
            get_streams: default.get_streams,
            put_streams: default.put_streams,
            stream_bytes_max: default.stream_bytes_max,
            client_in_flight: default.client_limits.in_flight,
            client_per_second: default.client_limits.per_second,
            max_inflight: default.total_limits.in_flight,
            max_rps: default.total_limits.per_second,
            read_timeout_ms: millis(default.read_timeout),
            write_timeout_ms: millis(default.write_timeout),
            idle_timeout_ms: millis(default.idle_timeout),
            drain_ms: millis(default.drain),
            upkeep_bytes_per_second: default.upkeep_bytes_per_second,
            scrub_every_hours: default.scrub_every.map(|every| every.as_secs() / 3600),
            segment_bytes: default.segment_bytes,
            garbage_max: default.garbage_max,
            collect_grace_ms: millis(default.collect_grace),
        }
    }
}

impl StorageSection {
    /// As the store takes them. A burst is two seconds' worth of requests.
    pub(crate) fn settings(&self) -> ron_storage::Settings {
        let default = ron_storage::Settings::default();
        let limits = |limits: GateLimits, per_second: u64, in_flight| GateLimits {
            per_second,
            burst: per_second.saturating_mul(2),
            in_flight,
            ..limits
        };
        ron_storage::Settings {
            object_bytes_max: self.object_bytes_max,
            quota_bytes: self.quota_bytes,
            quota_objects: self.quota_objects,
            reserve_bytes: self.reserve_bytes,
            small_bytes_max: self.small_bytes_max,
            chunk_bytes: self.chunk_bytes,
            get_workers: self.get_workers,
            put_workers: self.put_workers,
            get_lane: self.get_lane,
            put_lane: self.put_lane,
            get_streams: self.get_streams,
            put_streams: self.put_streams,
            stream_bytes_max: self.stream_bytes_max,
            client_limits: limits(default.client_limits, self.client_per_second, self.client_in_flight),
            total_limits: limits(default.total_limits, self.max_rps, self.max_inflight),
            read_timeout: Duration::from_millis(self.read_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            drain: Duration::from_millis(self.drain_ms),
            upkeep_bytes_per_second: self.upkeep_bytes_per_second,
            segment_bytes: self.segment_bytes,
            garbage_max: self.garbage_max,
            collect_grace: Duration::from_millis(self.collect_grace_ms),
            scrub_every: self.scrub_every_hours.map(|hours| Duration::from_secs(hours.saturating_mul(3600))),
            ..default
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;
    use crate::config::{Flags, tests::load};

    #[test]
    fn every_key_of_the_store_reaches_it() {
        let default = StorageSection::default();
        assert_eq!(default.settings(), ron_storage::Settings::default());
        // Each key changed by itself changes the settings, and is the same when it is read back.
        let text = toml::to_string(&StorageSection {
            quota_bytes: Some(7),
            quota_objects: Some(7),
            scrub_every_hours: Some(7),
            ..default.clone()
        })
        .unwrap();
        for line in text.lines().filter(|line| !line.starts_with("memory")) {
            let (key, _) = line.split_once(" = ").unwrap();
            let config = load(&format!("[storage]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            assert_ne!(config.storage.settings(), default.settings(), "{key}");
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
    }
}
