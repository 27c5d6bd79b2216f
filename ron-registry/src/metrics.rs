//! What only the registry counts.

use ron_core::{GaugeSpec, HistogramSpec};

ron_core::counters! {
    COMMITS = "commits", "", "Entries committed here";
    CAS_FAIL = "commit_cas_fail", "", "Blocks that another committer was ahead of, and proposals that fixed another head";
    APPROVAL_REJECTS = "approval_rejects", "reason", "Approvals that were not counted";
    STORAGE_BACKOFF = "storage_backoff", "op", "Times the store did not take or give what it should";
    RETENTION_SKIPPED = "retention_skipped", "", "Cycles of retention that were skipped because the pruner was busy";
    PRUNED_BYTES = "pruned_bytes", "", "Bytes of the log that were freed";
    FOLLOW_REFUSED = "follow_refused", "kind", "Heads and entries of a followed log that were refused, with evidence";
    FOLLOW_ERRORS = "follow_errors", "what", "Rounds of following that came to nothing";
    RELOADS = "reload_success", "source", "Settings that were taken over while running";
    RELOAD_FAILS = "reload_fail", "reason", "Settings that were refused while running";
}

#[cfg(feature = "client")]
ron_core::counters! {
    WITNESS_ERRORS = "witness_errors", "what", "Times a witness did not sign a head";
}

/// Where the log ends.
pub(crate) const HEAD_VERSION: GaugeSpec =
    GaugeSpec { name: "head_version", help: "Version of the last entry" };

/// What waits.
pub(crate) const PENDING: GaugeSpec =
    GaugeSpec { name: "pending_proposals", help: "Proposals that wait for approvals" };

/// How far the log has been verified again.
pub(crate) const VERIFIED_VERSION: GaugeSpec =
    GaugeSpec { name: "verified_version", help: "Version up to which the log was last verified again" };

/// Where a followed log is.
pub(crate) const SOURCE_VERSION: GaugeSpec = GaugeSpec {
    name: "source_version",
    help: "Version of the last signed head that a followed log has shown",
};

/// What witnesses have seen.
#[cfg(feature = "client")]
pub(crate) const COSIGNED_VERSION: GaugeSpec = GaugeSpec {
    name: "cosigned_version",
    help: "Version of the last signed head that enough witnesses have signed",
};

/// How far the derived index has come.
pub(crate) const INDEXED_VERSION: GaugeSpec =
    GaugeSpec { name: "indexed_version", help: "Version up to which content can be looked up" };

/// How long the store takes.
pub(crate) const COMMIT_SECONDS: HistogramSpec = HistogramSpec {
    name: "commit_seconds",
    help: "Duration of appending a block durably",
    buckets: &[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
};
