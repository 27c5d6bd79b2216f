//! A governed, append-only log: what is in it was approved by a quorum, and every answer has a proof.
//!
//! So far this is what decides: proposals, approvals and policies as bytes with one spelling, the state that says whether
//! an entry may come next, the chain and the tree over the entries, the map of names with proofs of what is latest and of
//! what is absent, checkpoints that existing transparency tooling reads, and snapshots that prove themselves. And
//! [`store`] is where a log is kept: on the family's journal, in memory, or in an engine of your own that passes
//! `store::conformance` (feature `conformance`). There is no committer and no handle yet.
//!
//! `docs/architecture.md` has the map, `docs/formats.md` the bytes, `docs/decisions/0016-registry-state.md` the reasons.

// Public for the fuzz targets, and no part of the interface.
#[doc(hidden)]
pub mod logic;
pub mod store;

/// What this crate may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    ron_core::Inventory::of(&[], &[], &[store::INDEX])
}
