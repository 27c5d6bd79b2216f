//! Kademlia that answers in time.

mod actor;
mod buckets;
mod contacts;
mod error;
mod handle;
mod inflight;
pub mod logic;
mod metrics;
pub mod network;
mod node;
mod publish;
mod search;
mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod store;

pub use error::DhtError;
pub use handle::{Builder, Closest, Dht, Event, Found};
pub use logic::{Contact, Key};
pub use publish::{Provider, Published};
pub use settings::{Preset, Settings};
pub use store::{Clock, Flush, Opened, Rewrite, Store, StoreSettings};
