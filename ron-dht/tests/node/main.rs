//! One node through its handle, in a network that the test makes up.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

mod contract;
mod finding;
mod hostile;
mod knobs;
mod limits;
mod overload;
mod provide_many;
mod restart;
mod world;
