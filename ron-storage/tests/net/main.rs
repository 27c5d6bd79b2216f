//! Objects between nodes.

#![allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests are not the product")]

mod asking;
mod bent;
mod fetching;
mod leaving;
mod world;
