//! Many nodes in one process, on a pretended network and a pretended clock.
//!
//! [`Swarm`] runs only what decides, on a queue of events: a thousand nodes and a minute of their time take seconds. What
//! it prints is what gossip is judged by: how much arrives, how many copies that takes, and how long.

mod swarm;

pub use swarm::{Conditions, Report, Swarm};
