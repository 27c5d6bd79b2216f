//! Gossip that never loses silently.

// Public for the fuzz targets and the simulation, and no part of the interface: what hosts see is exported below.
#[doc(hidden)]
pub mod logic;
#[cfg(feature = "sim")]
pub mod sim;
