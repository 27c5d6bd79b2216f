//! Kademlia that answers in time.

mod actor;
mod buckets;
mod contacts;
mod error;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod inflight;
mod keeping;
#[allow(
    unreachable_pub,
    reason = "public among the rooms of this crate; what hosts see of it is exported below"
)]
mod logic;
mod metrics;
pub mod network;
mod node;
mod publish;
mod republish;
mod retry;
mod search;
mod settings;
mod store;

pub use error::DhtError;
pub use handle::{Builder, Closest, Dht, Event, Found, Status};
pub use logic::{
    Contact, Key, Rtt,
    lookup::{Asked, LookupSettings, Outcome, Reason, Verdict},
    records::Limits,
    signed::{ProviderRecord, RecordError, Signer, Value},
    table::Entry,
};
pub use publish::{Provider, Published};
pub use republish::{ProvideMany, ProvideProgress};
pub use settings::{Preset, Settings};
