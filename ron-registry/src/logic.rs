//! Every decision of the registry, as plain values: no clock, no IO, no global randomness.
//!
//! Times are milliseconds of the Unix epoch and always handed in by whoever has a clock.

pub mod chain;
pub mod checkpoint;
pub mod entry;
#[cfg(feature = "http")]
pub mod frames;
pub mod merkle;
pub mod names;
pub mod note;
pub mod policy;
pub mod proposal;
pub mod quorum;
pub mod snapshot;
pub mod state;
pub mod tiles;

#[cfg(test)]
pub(crate) mod fixture;
