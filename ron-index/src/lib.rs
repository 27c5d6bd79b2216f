//! One verified answer to "where is this?", within a budget.
//!
//! A name, a content address or an IPFS CID goes in; what the name stands for, what the content is made of and who has it,
//! the best first, come out: from the cache in microseconds, by lookups that do not wait for the slowest otherwise, stale
//! but marked when the world is down, and `Busy` at once when too much is asked.
//!
//! # An index in fifteen lines
//!
//! ```
//! use std::time::Duration;
//!
//! use ron_core::{ContentId, Deadline, NodeId, Supervisor};
//! use ron_index::{Index, source::{FixedProviders, Provider}};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Supervisor::new("host");
//! let content = ContentId::of(b"hello");
//! let mirror = Provider::new(NodeId::from_bytes([7; 32]), ["192.0.2.1:4710".parse()?]);
//! let index = Index::builder().providers(FixedProviders::new().of(content, mirror)).start(&host)?;
//!
//! let key = content.to_string().parse()?; // or a name, or a CID
//! let soon = Deadline::after(Duration::from_secs(2));
//! let answer = index.resolve(&key, soon).await?;
//! assert_eq!(answer.providers(5)[0].provider.addrs[0].port(), 4710);
//! assert!(index.resolve(&key, soon).await?.is_cached);
//! host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! | To | Use |
//! |---|---|
//! | ask the world | [`source`]: the traits [`Names`](source::Names), [`Manifests`](source::Manifests), [`Providers`](source::Providers), and adapters for a registry, a DHT, a store, those who keep objects with this node, and a list, by the features `registry`, `dht`, `storage` and `keeping` |
//! | resolve | [`Index::resolve`]; [`Index::find`] for providers as they are found; [`Index::locate`] for where a node is |
//! | forget, or never forget | [`Index::purge`], [`Index::reindex`], [`Index::pin`]; a registry that is followed purges by itself |
//! | be fair to clients | [`Index::for_client`], [`Settings::client_in_flight`], [`Settings::client_rate`], [`Settings::client_lookups`] |
//! | teach it who delivers | [`Index::report`] |
//! | see how it is doing | [`Index::status`], [`Index::events`], [`Index::ready`], the metrics in `docs/operating.md` |
//! | know how many workers a load needs | [`workers_for`] |
//! | change settings while it runs | [`Index::reload`], which keeps the cache |
//! | serve it over HTTP, to IPFS clients too | the module `http`, with the feature `http` |
//! | ask such a server | the module `client`, with the feature `client` |
//!
//! # What it promises
//!
//! * What is answered was verified by its source before it was kept; what is stale says so.
//! * A cache hit waits for nothing and enters no queue. The same key asked by ten thousand at once is looked up once.
//! * A question is answered or refused within its budget, whatever sources do. A fast error never beats a slower success.
//! * That there is nothing is remembered only if somebody who can say so said so: never because of a timeout.
//! * Memory has a ceiling: [`Settings::cache_bytes`], the lane, the workers, and tables of a fixed size for clients.
//!
//! # What it refuses to do
//!
//! It stores nothing on disk, fetches no content, and decides nothing about names: it asks those who do. A source that is
//! more trusted and fails is not replaced by one that is less, for names: whoever could silence it would decide.

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod answer;
mod builder;
#[cfg(feature = "client")]
pub mod client;
mod error;
mod flight;
#[cfg(feature = "registry")]
mod follow;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod inner;
mod janitor;
// Public for the fuzz targets and the benches, and no part of the interface: what hosts see is exported below.
#[doc(hidden)]
pub mod logic;
mod lookup;
mod many;
mod metrics;
mod settings;
pub mod source;

/// Supervisors, deadlines, ids and what it passes on in turn, in the version this crate uses.
pub use ron_core;
/// Where providers are asked for, in the version this crate uses.
#[cfg(feature = "dht")]
pub use ron_dht;
/// Where names are asked for, in the version this crate uses.
#[cfg(feature = "registry")]
pub use ron_registry;
/// Where manifests are asked for, in the version this crate uses.
#[cfg(feature = "storage")]
pub use ron_storage;

pub use answer::{Answer, Found, Stale};
pub use builder::Builder;
pub use error::IndexError;
pub use handle::{Event, Index, Status};
pub use logic::{
    cache::Resolution,
    key::{Key, KeyError, Multihash, Name},
    rank::{RankSettings, Ranked, Why},
};
pub use settings::{PROVIDERS_LIMIT, Rate, Settings, workers_for};

/// Providers in an answer if nobody says how many.
pub const LIMIT_DEFAULT: usize = 5;

/// What an index may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    let tasks = [
        builder::RESOLVER,
        builder::WARMER,
        janitor::CACHE_JANITOR,
        janitor::BREAKER_JANITOR,
        #[cfg(feature = "registry")]
        follow::FOLLOWER,
    ];
    let locks = [
        flight::FLIGHTS,
        inner::ADAPTING,
        inner::REPUTATION,
        inner::SEEDS,
        source::FOUND,
        #[cfg(feature = "http")]
        http::IDEMPOTENCY,
    ];
    ron_core::Inventory::of(
        &[builder::WORK, builder::EVENTS, janitor::WRITES, janitor::BEHAVIOUR],
        &tasks,
        &locks,
    )
}
