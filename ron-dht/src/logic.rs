//! Every decision of the DHT, as plain values: no clock, no IO, no global randomness.
//!
//! `now` is always the time since the node started, handed in by whoever has a clock.

pub mod addrs;
pub mod estimate;
pub mod introductions;
mod key;
pub mod lookup;
#[cfg(test)]
mod pretend;
pub mod records;
mod rtt;
pub mod schedule;
pub mod signed;
pub mod sweep;
pub mod table;
pub mod wire;

pub use key::Key;
pub use ron_core::net::{Contact, ContactError};
pub use rtt::Rtt;
