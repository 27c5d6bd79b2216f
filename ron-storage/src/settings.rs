//! The knobs of a store.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{Capacity, ConfigError, GateLimits, GateSettings, Ratio};

use crate::StorageError;

/// Bytes of a group: what one hash of an object's tree covers, and so the least that can be verified.
pub const GROUP_BYTES: u64 = 64 << 10;

/// The most that `small_bytes_max` may be.
pub(crate) const SMALL_BYTES_LIMIT: u32 = 4 << 20;

/// The knobs of a store, for [`Builder::settings`](crate::Builder::settings). [`Store::reload`](crate::Store::reload) changes
/// those that can change while it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Objects up to this long are records of the journal, longer ones are files of their own. Default 256 KiB. Raise it
    /// where many objects are a little longer and the disk is slow to sync.
    pub small_bytes_max: u32,
    /// Longest object. Default 1 TiB.
    pub object_bytes_max: u64,
    /// Bytes of content in all, beyond which puts are refused. Default: no such limit.
    pub quota_bytes: Option<u64>,
    /// Objects in all, beyond which puts are refused. Default: no such limit.
    pub quota_objects: Option<u64>,
    /// Free space that puts leave on the disk, so that deletes and compaction always find room. Default 64 MiB.
    pub reserve_bytes: u64,
    /// Jobs that read at once. Default 8.
    pub get_workers: NonZeroUsize,
    /// Jobs that write at once. Default 4.
    pub put_workers: NonZeroUsize,
    /// Reading jobs that wait; more are refused with `Busy`. Default 512.
    pub get_lane: usize,
    /// Writing jobs that wait. Default 512.
    pub put_lane: usize,
    /// Objects that are read at once; a stream counts from its admission to its end. Default 512.
    pub get_streams: usize,
    /// Objects that are written at once. Default 512.
    pub put_streams: usize,
    /// Most that one job reads or writes, in whole groups of 64 KiB; and less when many streams are open. Default 1 MiB.
    pub chunk_bytes: u32,
    /// Bytes that all streams of one direction together hold at a time, in all their pieces. Default 64 MiB.
    pub stream_bytes_max: u64,
    /// What one client may ask, see [`Store::for_client`](crate::Store::for_client). Default 64 at once and 20 000 a second.
    pub client_limits: GateLimits,
    /// What all clients together may ask. Default 4096 at once and 200 000 a second.
    pub total_limits: GateLimits,
    /// Clients whose use is remembered for these limits. Default 4096.
    pub clients_remembered: usize,
    /// Events that a slow subscriber may be behind before it misses some. Default 1024.
    pub events_lane: usize,
    /// How long the disk may take for one job of a read. Default 5 s.
    pub read_timeout: Duration,
    /// How long the disk may take for one job of a write. Default 5 s.
    pub write_timeout: Duration,
    /// How long a stream may stand still: a put whose source gives no bytes ends with `Timeout`, and a reader that is not read
    /// loses its place to the next stream that needs one. Default 60 s.
    pub idle_timeout: Duration,
    /// Size of a file of the journal. Default 64 MiB. Smaller frees space in smaller steps.
    pub segment_bytes: u32,
    /// The share of the journal that may be garbage before it is compacted. Default 0.4. Lower saves space, higher saves
    /// writing.
    pub garbage_max: f64,
    /// Bytes that compaction and scrubbing may read per second. Default 64 MiB.
    pub upkeep_bytes_per_second: u64,
    /// How often everything is read to see whether it is still what was stored. Default: only when asked for.
    pub scrub_every: Option<Duration>,
    /// Objects that were put less than this long ago, also those that were here before, are not collected: so long a caller
    /// has to pin what it put. Default ten minutes.
    pub collect_grace: Duration,
    /// How long the fetched part of an object is kept after the last attempt, so that the next one goes on with it. Default a
    /// day.
    pub partial_keep: Duration,
    /// How long running work may take after a request to stop, 1 s to 5 s. Default 5 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = |per_second, in_flight| GateLimits {
            per_second,
            burst: per_second * 2,
            in_flight,
            bytes_per_second: 16 << 30,
            bytes_burst: 32 << 30,
        };
        Settings {
            small_bytes_max: 256 << 10,
            object_bytes_max: 1 << 40,
            quota_bytes: None,
            quota_objects: None,
            reserve_bytes: 64 << 20,
            get_workers: const { NonZeroUsize::new(8).expect("not zero") },
            put_workers: const { NonZeroUsize::new(4).expect("not zero") },
            get_lane: 512,
            put_lane: 512,
            get_streams: 512,
            put_streams: 512,
            chunk_bytes: 1 << 20,
            stream_bytes_max: 64 << 20,
            client_limits: limits(20_000, 64),
            // Streams are bounded by their places. Half of this is for clients that are new, which must not be refused
            // because streams of others hold all places.
            total_limits: limits(200_000, 4096),
            clients_remembered: 4096,
            events_lane: 1024,
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            segment_bytes: 64 << 20,
            garbage_max: 0.4,
            upkeep_bytes_per_second: 64 << 20,
            scrub_every: None,
            collect_grace: Duration::from_secs(600),
            partial_keep: Duration::from_secs(86_400),
            drain: Duration::from_secs(5),
        }
    }
}

impl Settings {
    /// Whether these make sense, as a start checks them: for programs that read them from a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, items) in [
            ("get_lane", self.get_lane),
            ("put_lane", self.put_lane),
            ("get_streams", self.get_streams),
            ("put_streams", self.put_streams),
            ("events_lane", self.events_lane),
        ] {
            Capacity::new(key, items)?;
        }
        let garbage = Ratio::new("garbage_max", self.garbage_max)?;
        let small = u64::from(self.small_bytes_max);
        let chunk = u64::from(self.chunk_bytes);
        let in_range = [
            ("small_bytes_max", small, self.small_bytes_max <= SMALL_BYTES_LIMIT, "0..=4194304"),
            (
                "chunk_bytes",
                chunk,
                chunk % GROUP_BYTES == 0 && (GROUP_BYTES..=8 << 20).contains(&chunk),
                "a multiple of 65536 in 65536..=8388608",
            ),
            (
                "segment_bytes",
                u64::from(self.segment_bytes),
                u64::from(self.segment_bytes) >= (4 << 10).max(2 * small) && self.segment_bytes <= 1 << 30,
                "4096..=1073741824, and at least twice small_bytes_max",
            ),
            (
                "upkeep_bytes_per_second",
                self.upkeep_bytes_per_second,
                self.upkeep_bytes_per_second >= 1 << 10,
                "1024 or more",
            ),
            (
                "clients_remembered",
                self.clients_remembered as u64,
                (1..=1 << 24).contains(&self.clients_remembered),
                "1..=16777216",
            ),
            (
                "stream_bytes_max",
                self.stream_bytes_max,
                self.stream_bytes_max >= chunk,
                "chunk_bytes or more",
            ),
        ];
        for (key, value, is_fine, allowed) in in_range {
            if !is_fine {
                return Err(ConfigError::OutOfRange { key, value: value.to_string(), allowed });
            }
        }
        if garbage.get() <= 0.0 {
            let value = self.garbage_max.to_string();
            return Err(ConfigError::OutOfRange { key: "garbage_max", value, allowed: "above 0, at most 1" });
        }
        let (shortest, longest) = (Duration::from_secs(1), Duration::from_secs(5));
        if !(shortest..=longest).contains(&self.drain) {
            let value = format!("{:?}", self.drain);
            return Err(ConfigError::OutOfRange { key: "drain", value, allowed: "1 s to 5 s" });
        }
        let positive = [
            ("read_timeout", Some(self.read_timeout)),
            ("write_timeout", Some(self.write_timeout)),
            ("idle_timeout", Some(self.idle_timeout)),
            ("scrub_every", self.scrub_every),
        ];
        for (key, duration) in positive {
            if duration.is_some_and(|duration| duration.is_zero()) {
                return Err(ConfigError::OutOfRange { key, value: "0 s".to_owned(), allowed: "above zero" });
            }
        }
        self.gate().check()
    }

    pub(crate) fn gate(&self) -> GateSettings {
        GateSettings {
            clients: self.clients_remembered,
            ..GateSettings::new(self.client_limits, self.total_limits)
        }
    }

    /// Whether `more` bytes of a new object fit beside what is used.
    pub(crate) fn check_quota(&self, bytes: u64, objects: u64, more: u64) -> Result<(), StorageError> {
        let wanted = [
            ("quota_bytes", self.quota_bytes, bytes.saturating_add(more)),
            ("quota_objects", self.quota_objects, objects + 1),
        ];
        for (key, limit, used) in wanted {
            if let Some(limit) = limit.filter(|limit| used > *limit) {
                return Err(StorageError::Quota { key, used, limit });
            }
        }
        Ok(())
    }

    /// Whether a running store can take `new` in place of these. It cannot change settings that decided the size or the place
    /// of something when the store was opened.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] naming the first such setting, others for one that makes no sense.
    pub fn check_change(&self, new: &Settings) -> Result<(), ConfigError> {
        new.check()?;
        let fixed = [
            ("small_bytes_max", self.small_bytes_max == new.small_bytes_max),
            ("get_workers", self.get_workers == new.get_workers),
            ("put_workers", self.put_workers == new.put_workers),
            ("get_lane", self.get_lane == new.get_lane),
            ("put_lane", self.put_lane == new.put_lane),
            ("get_streams", self.get_streams == new.get_streams),
            ("put_streams", self.put_streams == new.put_streams),
            ("clients_remembered", self.clients_remembered == new.clients_remembered),
            ("events_lane", self.events_lane == new.events_lane),
            ("segment_bytes", self.segment_bytes == new.segment_bytes),
            ("drain", self.drain == new.drain),
        ];
        match fixed.iter().find(|(_, is_same)| !is_same) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => Ok(()),
        }
    }
}
