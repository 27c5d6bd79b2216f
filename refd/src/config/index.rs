//! The section `[index]`: what of [`ron_index::Settings`] a file can say.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{ConfigError, in_file, millis};

documented! {
/// Saying where things are. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IndexSection {
    /// The region that this node is in; providers in the same one come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    /// How long one answer may take in all.
    pub(crate) deadline_ms: u64,
    /// Provider sources asked at once.
    pub(crate) alpha: NonZeroUsize,
    /// Further provider sources that are asked when those are slow.
    pub(crate) beta: usize,
    /// How long before they count as slow, until enough answers were timed.
    pub(crate) hedge_ms: u64,
    /// Verified providers after which a lookup ends.
    pub(crate) enough: NonZeroUsize,
    /// Lookups that run at once.
    pub(crate) workers: NonZeroUsize,
    /// Lookups that wait for a worker.
    pub(crate) work_lane: usize,
    /// Memory for cached answers.
    pub(crate) cache_bytes: u64,
    /// How long answers about names are fresh.
    pub(crate) name_ttl_ms: u64,
    /// How long answers about content are fresh.
    pub(crate) content_ttl_ms: u64,
    /// How long "there is nothing" is cached.
    pub(crate) negative_ttl_ms: u64,
    /// How long after that an answer is served as stale while it is refreshed.
    pub(crate) stale_while_revalidate_ms: u64,
    /// How long after that an answer is served as stale if refreshing it fails.
    pub(crate) stale_if_error_ms: u64,
    /// How often the whole cache is cleared; by default never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) purge_interval_ms: Option<u64>,
    /// Names, addresses and CIDs that are looked up at the start.
    pub(crate) warmup_keys: Vec<String>,
    /// For how long a failure of a source counts against it.
    pub(crate) error_window_ms: u64,
    /// The share of failures from which on a source is left alone.
    pub(crate) trip_threshold: f64,
    /// How long a source is left alone before it is probed.
    pub(crate) cooldown_ms: u64,
    /// Probes that must succeed before a source is used again.
    pub(crate) half_open_probes: NonZeroU32,
    /// Open questions of one client.
    pub(crate) client_in_flight: u32,
    /// Questions of one client per second; by default not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_per_second: Option<u64>,
    /// Questions of all clients per second.
    pub(crate) max_rps: u64,
    /// Whether fewer lookups are admitted while they take long.
    pub(crate) adaptive: bool,
    /// How long running lookups may take after a request to stop.
    pub(crate) drain_ms: u64,
}
}

impl Default for IndexSection {
    fn default() -> Self {
        let default = ron_index::Settings::default();
        IndexSection {
            region: None,
            deadline_ms: millis(default.budget),
            alpha: default.alpha,
            beta: default.beta,
            hedge_ms: millis(default.hedge_after),
            enough: default.enough,
            workers: default.workers,
            work_lane: default.lane,
            cache_bytes: default.cache_bytes,
            name_ttl_ms: millis(default.name_ttl),
            content_ttl_ms: millis(default.content_ttl),
            negative_ttl_ms: millis(default.negative_ttl),
            stale_while_revalidate_ms: millis(default.stale_while_revalidate),
            stale_if_error_ms: millis(default.stale_if_error),
            purge_interval_ms: None,
            warmup_keys: Vec::new(),
            error_window_ms: millis(default.breaker.window),
            trip_threshold: default.breaker.trip_ratio.get(),
            cooldown_ms: millis(default.breaker.cooldown),
            half_open_probes: default.breaker.probes,
            client_in_flight: default.client_in_flight,
            client_per_second: None,
            max_rps: default.total_rate,
            adaptive: default.adaptive,
            drain_ms: millis(default.drain),
        }
    }
}

impl IndexSection {
    /// As the index takes them.
    pub(crate) fn settings(&self) -> ron_index::Settings {
        let default = ron_index::Settings::default();
        let ms = Duration::from_millis;
        ron_index::Settings {
            budget: ms(self.deadline_ms),
            alpha: self.alpha,
            beta: self.beta,
            hedge_after: ms(self.hedge_ms),
            enough: self.enough,
            workers: self.workers,
            lane: self.work_lane,
            cache_bytes: self.cache_bytes,
            name_ttl: ms(self.name_ttl_ms),
            content_ttl: ms(self.content_ttl_ms),
            negative_ttl: ms(self.negative_ttl_ms),
            stale_while_revalidate: ms(self.stale_while_revalidate_ms),
            stale_if_error: ms(self.stale_if_error_ms),
            amnesia: self.purge_interval_ms.map(ms),
            // Those that are none were refused when the file was read.
            warmup: self.warmup_keys.iter().filter_map(|key| key.parse().ok()).collect(),
            breaker: ron_core::BreakerSettings {
                window: ms(self.error_window_ms),
                trip_ratio: ron_core::Ratio::new("index.trip_threshold", self.trip_threshold)
                    .unwrap_or(default.breaker.trip_ratio),
                cooldown: ms(self.cooldown_ms),
                probes: self.half_open_probes,
                ..default.breaker
            },
            client_in_flight: self.client_in_flight,
            client_rate: self
                .client_per_second
                .map(|per_second| ron_index::Rate { per_second, burst: per_second.saturating_mul(2) }),
            total_rate: self.max_rps,
            adaptive: self.adaptive,
            rank: ron_index::RankSettings { region: self.region.clone(), ..default.rank },
            drain: ms(self.drain_ms),
            ..default
        }
    }

    /// What the library cannot see any more.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        ron_core::Ratio::new("trip_threshold", self.trip_threshold)
            .map_err(|error| in_file("index", error))?;
        for key in &self.warmup_keys {
            let wrong = |error| ConfigError::Unfit(format!("index.warmup_keys: {key:?}: {error}"));
            key.parse::<ron_index::Key>().map_err(wrong)?;
        }
        self.settings().check().map_err(|error| in_file("index", error))
    }
}
