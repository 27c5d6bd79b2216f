//! What only the store counts.

use ron_core::{GaugeSpec, HistogramSpec};

ron_core::counters! {
    PUTS = "puts", "result", "Objects put, by whether they were new";
    GETS = "gets", "", "Objects of which reading began";
    DELETES = "deletes", "", "Objects deleted";
    READ_BYTES = "read_bytes", "", "Verified bytes handed out";
    WRITTEN_BYTES = "written_bytes", "", "Bytes of objects that were new";
    CORRUPT = "corrupt", "found_by", "Objects found damaged and quarantined";
    UNREADABLE = "unreadable", "found_by", "Objects that the disk could not read";
    REFUSED_WRITES = "refused_writes", "reason", "Puts refused for want of space";
    REVOKED = "streams_revoked", "", "Streams that stood still and lost their place";
    COLLECTED = "collected", "", "Objects that garbage collection deleted";
    COMPACTED_BYTES = "compacted_bytes", "", "Bytes of the journal that compaction gave back";
}

#[cfg(feature = "net")]
ron_core::counters! {
    FETCHES = "fetches", "result", "Objects fetched from peers, by how that ended";
    FETCHED_BYTES = "fetched_bytes", "", "Verified bytes that came from peers";
    FETCH_DUPLICATE_BYTES = "fetch_duplicate_bytes", "", "Verified bytes that came from two peers";
    FETCH_DROPPED = "fetch_peers_dropped", "reason", "Peers that a fetch gave up";
}

/// Objects kept.
pub(crate) const OBJECTS: GaugeSpec = GaugeSpec { name: "objects", help: "Objects kept" };

/// Their length in all.
pub(crate) const OBJECT_BYTES: GaugeSpec = GaugeSpec { name: "object_bytes", help: "Bytes of content kept" };

/// What compaction could free.
pub(crate) const GARBAGE_BYTES: GaugeSpec =
    GaugeSpec { name: "garbage_bytes", help: "Bytes of the journal that compaction would give back" };

/// What is not served.
pub(crate) const QUARANTINED: GaugeSpec =
    GaugeSpec { name: "quarantined", help: "Objects that are damaged and not served" };

/// Readers that are open.
pub(crate) const GET_STREAMS: GaugeSpec = GaugeSpec { name: "get_streams", help: "Objects being read" };

/// Puts that are open.
pub(crate) const PUT_STREAMS: GaugeSpec = GaugeSpec { name: "put_streams", help: "Objects being written" };

/// How long a put takes from its last byte to its acknowledgement.
pub(crate) const COMMIT_SECONDS: HistogramSpec = HistogramSpec {
    name: "commit_seconds",
    help: "From the last byte of a put to its acknowledgement",
    buckets: &[0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0],
};

/// How long a fetch takes.
#[cfg(feature = "net")]
pub(crate) const FETCH_SECONDS: HistogramSpec = HistogramSpec {
    name: "fetch_seconds",
    help: "One object from its peers into the store",
    buckets: &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0],
};

/// How long a step of upkeep holds others up.
pub(crate) const UPKEEP_PAUSE_SECONDS: HistogramSpec = HistogramSpec {
    name: "upkeep_pause_seconds",
    help: "One step of compaction or collection",
    buckets: &[0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
};
