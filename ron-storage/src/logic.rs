//! What decides: plain values and functions that know neither clock nor disk nor socket.

pub mod proof;
pub mod range;
pub mod records;
pub mod table;
pub mod tree;
