//! One verified answer to "where is this?", within a budget.
//!
//! You ask about a name, a content address or an IPFS CID. You get what the name stands for, what the content is made of
//! (its manifest), and which nodes provide it, best first. A cached answer takes microseconds; otherwise several sources are
//! asked, and slow ones are not waited for. When no source can answer, an older answer is given and marked as stale. When
//! too much is asked at once, the excess is refused with `Busy` immediately.
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
//! | say where answers come from | [`source`]: the traits [`Names`](source::Names), [`Manifests`](source::Manifests) and [`Providers`](source::Providers); a fixed list; and, by the features `registry`, `dht`, `storage` and `keeping`, adapters for a registry, a DHT, a store, and the nodes that keep objects together with this one |
//! | resolve | [`Index::resolve`]; [`Index::find`] for providers as they are found; [`Index::locate`] for the addresses of a node |
//! | control the cache | [`Index::purge`], [`Index::reindex`], [`Index::pin`]; [`Builder::registry`] purges a name when the registry changes it |
//! | give each client a fair share | [`Index::for_client`], [`Settings::client_in_flight`], [`Settings::client_rate`], [`Settings::client_lookups`] |
//! | tell it which providers delivered | [`Index::report`] |
//! | see how it is doing | [`Index::status`], [`Index::events`], [`Index::ready`], the metrics in `docs/operating.md` |
//! | know how many workers a load needs | [`workers_for`] |
//! | change settings while it runs | [`Index::reload`], which keeps the cache |
//! | serve it over HTTP, to IPFS clients too | the module `http`, with the feature `http` |
//! | ask such a server | the module `client`, with the feature `client` |
//!
//! # What it promises
//!
//! * Every answer was verified by its source before it was cached, and a stale one is marked as such.
//! * A cache hit waits for nothing and enters no queue. If ten thousand callers ask for one key at once, it is looked up once.
//! * A question is answered or refused within its budget, whatever sources do. A fast error never beats a slower success.
//! * "There is nothing" is cached only when a source with the authority to say so has said it, never because of a timeout.
//! * Memory has a ceiling: [`Settings::cache_bytes`], the lane, the workers, and tables of a fixed size for clients.
//!
//! # What it refuses to do
//!
//! It stores nothing on disk, fetches no content, and decides nothing about names: it asks the sources that do. When a
//! trusted source of names fails, no less trusted one is asked instead: otherwise whoever can silence the first source could
//! decide what a name means.

/// The program in the README is compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod answer;
mod breakers;
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

/// Supervisors, deadlines, ids, and what it re-exports in turn, in the version that this crate uses.
pub use ron_core;
/// The source of providers, in the version that this crate uses.
#[cfg(feature = "dht")]
pub use ron_dht;
/// The source of names, in the version that this crate uses.
#[cfg(feature = "registry")]
pub use ron_registry;
/// The source of manifests, in the version that this crate uses.
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
        breakers::BREAKER_JANITOR,
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
        &[builder::WORK, builder::EVENTS, janitor::WRITES, breakers::BEHAVIOUR],
        &tasks,
        &locks,
    )
}
