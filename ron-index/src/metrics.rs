//! What only the index counts.

use ron_core::{Counter, GaugeSpec, HistogramSpec, Metrics, Tally};

ron_core::counters! {
    CACHE_HITS = "cache_hits", "freshness", "Answers out of the cache, by how fresh they were";
    CACHE_MISSES = "cache_misses", "", "Questions that the cache could not answer";
    LOOKUPS = "lookups", "result", "Lookups that ended, by how";
    JOINED = "lookups_joined", "", "Callers that waited for a lookup which another had begun";
    HEDGES = "hedges", "result", "Sources asked because others were slow, by whether one of them was first";
    DEADLINE_HIT = "resolve_deadline_hit", "", "Questions whose budget was spent before the answer";
    BREAKER_OPEN = "breaker_open", "target", "Questions not asked because their source keeps failing";
    REFRESHES = "refreshes", "result", "Answers asked for anew before or after their end, by whether there was room for it";
    PURGES = "purges", "by", "Keys forgotten on demand, by who demanded it";
    SWEPT = "swept", "", "Answers forgotten because their time was over";
    INVALID = "invalid_answers", "source", "Answers of sources that did not hold";
    SOURCE_ERRORS = "source_errors", "source", "Questions that a source failed to answer";
}

/// From the question to the answer.
pub(crate) const RESOLVE_SECONDS: HistogramSpec = HistogramSpec {
    name: "resolve_latency_seconds",
    help: "From a question to its answer, out of the cache or not",
    buckets: &[0.000_001, 0.000_01, 0.000_1, 0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 2.0],
};

/// What a source of providers takes.
pub(crate) const LOOKUP_SECONDS: HistogramSpec = HistogramSpec {
    name: "dht_lookup_seconds",
    help: "One question to one source of providers",
    buckets: &[0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2],
};

pub(crate) const BREAKER_STATE: GaugeSpec =
    GaugeSpec { name: "breaker_state", help: "Sources of this name whose breaker is in this state" };

pub(crate) const CACHE_BYTES: GaugeSpec =
    GaugeSpec { name: "cache_bytes", help: "Bytes of the answers kept" };

pub(crate) const CACHE_ENTRIES: GaugeSpec = GaugeSpec { name: "cache_entries", help: "Answers kept" };

pub(crate) const HEDGE_DELAY: GaugeSpec =
    GaugeSpec { name: "hedge_delay_seconds", help: "After how long another source is asked besides" };

pub(crate) const LOOKUPS_MAX: GaugeSpec =
    GaugeSpec { name: "lookups_limit", help: "Lookups that may be under way, where that adapts" };

/// The counters of the hot paths, resolved once.
pub(crate) struct Counts {
    pub(crate) fresh: Tally,
    pub(crate) revalidate: Tally,
    pub(crate) if_error: Tally,
    pub(crate) negative: Tally,
    pub(crate) misses: Tally,
    pub(crate) joined: Tally,
    pub(crate) deadline_hit: Tally,
    pub(crate) resolve_late: Tally,
    pub(crate) find_late: Tally,
    pub(crate) locate_late: Tally,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let hits = |label| metrics.tally(CACHE_HITS, label);
        let late = |op| metrics.tally(Counter::IoTimeouts, op);
        Counts {
            fresh: hits("fresh"),
            revalidate: hits("while_revalidate"),
            if_error: hits("if_error"),
            negative: hits("negative"),
            misses: metrics.tally(CACHE_MISSES, ""),
            joined: metrics.tally(JOINED, ""),
            deadline_hit: metrics.tally(DEADLINE_HIT, ""),
            resolve_late: late("resolve"),
            find_late: late("find"),
            locate_late: late("locate"),
        }
    }
}
