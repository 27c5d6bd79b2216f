//! Objects that live on many nodes: whole nodes on a simulated network and a paused clock.

#![allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]

mod abuse;
mod explained;
mod hostile;
mod lives;
mod members;
mod world;
