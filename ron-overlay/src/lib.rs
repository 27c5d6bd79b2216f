//! Gossip that never loses silently.
//!
//! So far this is what decides: who is a neighbour, over which links a message is pushed and over which it is only
//! announced, what is asked for when it does not come, and what a subscriber is told that it missed. There are no
//! sessions and no handle yet, so nothing here runs over links. With the feature `sim`, the module `sim` runs many nodes
//! on a pretended network, and says what gossip costs and how long it takes.
//!
//! `docs/architecture.md` has the map of the machines, `docs/formats.md` the words they exchange.

// Public for the fuzz targets and the simulation, and no part of the interface.
#[doc(hidden)]
pub mod logic;
#[cfg(feature = "sim")]
pub mod sim;
