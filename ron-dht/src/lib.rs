//! Kademlia that answers in time.

mod logic;

pub use logic::{Contact, Key};
