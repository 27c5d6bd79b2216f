//! A world that fails on purpose, for tests of what must survive failure.
//!
//! [`SimDisk`] loses, tears and reorders what was not synced. [`SimNet`] is late, loses and parts. [`Sim`] runs whole
//! nodes on both, on tokio's paused clock and out of one seed: hours pass in seconds, and a failure is replayed by its
//! seed. For that a program must take its time from [`now`](crate::now), its chances from a seeded generator, its disk
//! and network from here, write `biased` into every `select!`, and decide nothing by the order of a hash map.

mod disk;
mod inodes;
mod net;
mod world;

pub use disk::{Call, CrashStyle, Fault, SimDisk};
pub use net::{BACKLOG, Latency, Line, SimListener, SimNet, SimStream};
pub use world::{NODE, Sim, SimNode};
