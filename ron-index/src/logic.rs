//! Every decision of the index, as plain values: no runtime, no clock, no I/O.

pub mod cache;
pub mod hedge;
pub mod key;
pub mod limit;
pub mod race;
pub mod rank;
pub mod resolve;
