//! What decides: plain values and functions that know neither clock nor disk nor socket.

#[cfg(feature = "net")]
pub mod claims;
#[cfg(all(test, feature = "net"))]
mod cluster;
#[cfg(feature = "net")]
pub mod fetch;
pub mod inventory;
#[cfg(feature = "net")]
pub mod manifest;
#[cfg(feature = "net")]
pub mod members;
#[cfg(feature = "net")]
pub mod place;
#[cfg(feature = "net")]
pub mod plan;
#[cfg(feature = "net")]
pub mod promises;
pub mod proof;
pub mod range;
pub mod records;
#[cfg(feature = "erasure")]
pub mod shards;
pub mod table;
pub mod tree;
#[cfg(feature = "net")]
pub mod wire;
#[cfg(feature = "net")]
pub mod words;
#[cfg(feature = "net")]
pub mod yielding;
