//! Every decision of the DHT, as plain values: no clock, no IO, no global randomness.

mod key;

pub use key::{Contact, Key};
