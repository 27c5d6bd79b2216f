//! What decides: plain values and functions that know neither clock nor disk nor socket.

#[cfg(feature = "net")]
pub mod fetch;
pub mod inventory;
pub mod proof;
pub mod range;
pub mod records;
pub mod table;
pub mod tree;
#[cfg(feature = "net")]
pub mod wire;
