//! Every decision of the DHT, as plain values: no clock, no IO, no global randomness.
//!
//! `now` is always the time since the node started, handed in by whoever has a clock.

<<<<<<< HEAD
pub mod addrs;
mod cbor;
=======
>>>>>>> dht
pub mod estimate;
mod key;
pub mod lookup;
#[cfg(test)]
mod pretend;
<<<<<<< HEAD
pub mod records;
mod rtt;
pub mod schedule;
pub mod signed;
pub mod sweep;
pub mod table;
pub mod wire;
=======
mod rtt;
pub mod table;
>>>>>>> dht

pub use key::{Contact, Key};
pub use rtt::Rtt;
