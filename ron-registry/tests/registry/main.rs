//! The registry from outside.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

mod answers;
mod committing;
mod contract;
mod crashes;
mod following;
mod formats;
mod fuzz;
mod http;
mod interop;
mod kill;
mod model;
mod opening;
mod starting;
mod stores;
mod upkeep;
mod world;
