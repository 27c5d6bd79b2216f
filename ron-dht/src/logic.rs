//! Every decision of the DHT, as plain values: no clock, no IO, no global randomness.

pub mod addrs;
mod cbor;
mod key;
pub mod records;
pub mod schedule;
pub mod signed;
pub mod sweep;
pub mod wire;

pub use key::{Contact, Key};
