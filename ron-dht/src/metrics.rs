//! What only the DHT counts.

use ron_core::{GaugeSpec, HistogramSpec};

ron_core::counters! {
    ROUTE_DROPPED = "route_dropped", "", "News of peers that a bucket's writer had no room for";
    HEDGE_SPAWNED = "hedge_spawned", "", "Questions asked because others were silent";
    HEDGE_CANCELED = "hedge_canceled", "", "Questions given up because the search was over or others needed the place";
    QUOTA_REJECT = "quota_reject", "kind", "Requests and records refused by a limit";
    RECORD_REJECTS = "record_rejects", "reason", "Records refused for what they are";
    NOT_READY = "not_ready", "phase", "Calls refused because the node is not ready";
    LOOKUPS = "lookups", "reason", "Searches that ended, by why";
    REQUESTS = "requests", "method", "Requests answered, by method";
    PROVIDED = "provided", "", "Keys whose record was stored on at least one peer";
}

/// How far the republisher is behind.
pub(crate) const PROVIDE_LAG: GaugeSpec =
    GaugeSpec { name: "provide_lag_seconds", help: "How long the most overdue of our keys has been due" };

/// Records kept for others.
pub(crate) const RECORDS_KEPT: GaugeSpec =
    GaugeSpec { name: "records", help: "Records kept for others, as of the last look" };

/// What they take.
pub(crate) const RECORD_BYTES: GaugeSpec =
    GaugeSpec { name: "record_bytes", help: "Memory that those records take, as of the last look" };

/// How many nodes there seem to be.
pub(crate) const NETWORK_SIZE: GaugeSpec =
    GaugeSpec { name: "network_size", help: "Estimated number of nodes" };

/// How long searches take.
pub(crate) const LOOKUP_SECONDS: HistogramSpec = HistogramSpec {
    name: "lookup_seconds",
    help: "Duration of searches",
    buckets: &[0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
};

/// Hops of searches.
pub(crate) const LOOKUP_HOPS: HistogramSpec = HistogramSpec {
    name: "lookup_hops",
    help: "Referral depth of searches",
    buckets: &[1.0, 2.0, 3.0, 4.0, 5.0],
};
