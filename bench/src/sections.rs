//! The questions. Each file asks one, and prints the answer.

pub(crate) mod dht;
pub(crate) mod erasure;
pub(crate) mod fetch;
pub(crate) mod gossip;
pub(crate) mod handshakes;
pub(crate) mod idle;
pub(crate) mod link;
pub(crate) mod pingpong;
pub(crate) mod registry;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod store;
