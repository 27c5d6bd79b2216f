//! Every decision of the overlay, as plain values: no clock, no IO, no global randomness.
//!
//! `now` is always the time since the node started, handed in by whoever has a clock.

pub mod fair;
pub mod gossip;
pub mod lanes;
pub mod message;
pub mod parts;
pub mod publishers;
pub mod rate;
pub mod score;
pub mod seal;
pub mod standing;
pub mod store;
pub mod trees;
pub mod view;
pub mod wire;
