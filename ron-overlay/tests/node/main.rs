//! Nodes as a host sees them: through the handle only, on the simulated network and over TLS on the loopback interface.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

mod contract;
mod delivery;
mod hostile;
mod knobs;
mod overload;
mod requests;
mod sessions;
mod truth;
mod world;
