//! Every decision of the DHT, as plain values: no clock, no IO, no global randomness.
//!
//! `now` is always the time since the node started, handed in by whoever has a clock.

pub mod estimate;
mod key;
pub mod lookup;
#[cfg(test)]
mod pretend;
mod rtt;
pub mod table;

pub use key::{Contact, Key};
pub use rtt::Rtt;
