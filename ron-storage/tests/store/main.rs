//! A store through its handle.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

mod basics;
mod claims;
mod contract;
mod doubts;
mod formats;
mod graces;
mod hooked;
mod keeping;
mod knobs;
mod limits;
mod recovery;
mod shaken;
mod syncs;
mod upkeep;
mod world;
