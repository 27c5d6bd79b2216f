//! Kademlia that answers in time.

pub mod logic;

pub use logic::{Contact, Key};
