//! Kademlia that answers in time.
//!
//! A node finds peers near a key, says that it provides a key and finds out who else does, and keeps small values for
//! others. Searches are hedged against silent peers, end at their deadline with what they have, and are called off by
//! dropping them. Records are signed, nodes are named by their keys, and every limit says no early and in so many words.
//!
//! # A node in fifteen lines
//!
//! In `Cargo.toml`, with a path or a git address, as nothing is released yet:
//!
//! ```toml
//! [dependencies]
//! ron-core = { path = "../ron/ron-core", features = ["net"] }
//! ron-dht = { path = "../ron/ron-dht" } # features = ["http"] for its routes, and then axum = "0.8" for the router
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! Two of them, over TLS on the loopback interface: one provides, the other finds out.
//!
//! ```
//! use std::{error::Error, num::NonZeroUsize, time::Duration};
//!
//! use ron_core::{ContentId, Deadline, Supervisor, net::{Endpoint, Identity}};
//! use ron_dht::{Contact, Dht};
//!
//! async fn start(host: &Supervisor, seeds: Vec<Contact>) -> Result<Dht, Box<dyn Error>> {
//!     let endpoint = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(host)?;
//!     Ok(Dht::builder().seeds(seeds).start(&endpoint, host).await?)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//!     let first = start(&host, vec![]).await?;
//!     let second = start(&host, vec![first.contact()]).await?;
//!     second.joined(soon()).await?;
//!     let content = ContentId::of(b"hello");
//!     second.provide(content, soon()).await?;
//!     first.joined(soon()).await?;
//!     let mut found = first.find_providers(content, NonZeroUsize::MIN, soon())?;
//!     assert_eq!(found.next().await?.map(|provider| provider.id), Some(second.node_id()));
//!     host.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! Keep `host` for as long as the node should run: everything lives under it, and dropping the last clone of a
//! [`Supervisor`](ron_core::Supervisor) stops it. `examples/node.rs` goes on from here: values, compare-and-swap, many keys,
//! a trace, a restart at another address and the routes.
//!
//! # What it does
//!
//! | To | Use |
//! |---|---|
//! | be part of a network | [`Dht::builder`], [`Builder::seeds`] (a [`Contact`] is read from `NODE_ID@IP:PORT`, as `dht.contact().to_string()` writes it), [`Dht::joined`], [`Dht::ready`] |
//! | find nodes | [`Dht::find_node`] |
//! | say that you have something, once or a hundred thousand times | [`Dht::provide`], [`Dht::provide_many`], [`Dht::withdraw`] |
//! | find out who has it | [`Dht::find_providers`], a stream whose first answer comes early |
//! | keep small values with others | [`Dht::put`], [`Dht::get`]; [`Dht::put_mutable`] with compare-and-swap, [`Dht::get_mutable`] |
//! | know why a search ended as it did | [`Verdict`]: the reason, and every question with its answer |
//! | survive a restart | [`Builder::data`]: records, the schedule of your own keys, whom to try first |
//! | see how it is doing | [`Dht::status`], [`Dht::events`], the metrics in `docs/operating.md`, the routers of `http` (feature `http`) |
//! | change settings while it runs | [`Dht::reload`] |
//! | run it over something else than links | [`network`], [`Builder::start_on`] |
//!
//! A search ends for one of six reasons ([`Reason`]), and none of them is an error: what was found is found. Errors are
//! for calls that did nothing: [`DhtError::Busy`] when too many wait, [`DhtError::NotReady`] with nobody to ask or while
//! the node stops, [`DhtError::Canceled`] once it has.
//!
//! # What it promises
//!
//! * What it answers a peer with `Kept` is durable, if it was given a disk.
//! * It holds at most [`Settings::records`] for others and at most [`Settings::sessions_max`] links; every queue is
//!   bounded, and memory has a ceiling that follows from these.
//! * Whatever peers answer, a search ends within its requests and its time.
//! * Only peers that have answered enter the table, under the name that their handshake has proven.
//!
//! # What it refuses to do
//!
//! It opens no socket (the host's [`Endpoint`](ron_core::net::Endpoint) does), reads no configuration, has no opinion on
//! what a key means, and stores no large content: 16 KiB is the largest value. It does not traverse NATs; a node that
//! cannot be reached is a [`client`](Builder::client).

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod actor;
mod buckets;
mod builder;
mod contacts;
mod error;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod inflight;
mod keeping;
// Public for the fuzz targets and the simulation, and no part of the interface: what hosts see is exported below.
#[doc(hidden)]
pub mod logic;
mod metrics;
pub mod network;
mod node;
mod publish;
mod republish;
mod retry;
mod search;
mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod store;

/// Supervisors, deadlines, ids and what it passes on in turn, in the version this crate uses.
pub use ron_core;

pub use builder::Builder;
pub use error::DhtError;
pub use handle::{Closest, Dht, Event, Found, Status};
pub use logic::{
    Contact, ContactError, Key, Rtt,
    lookup::{Asked, Failure, LookupSettings, Outcome, Reason, Verdict},
    records::Limits,
    signed::{ProviderRecord, Record, RecordError, Signer, Value, Verified},
    table::Entry,
};
pub use publish::{Provider, Published};
pub use republish::{ProvideMany, ProvideProgress};
pub use ron_core::Distance;
pub use settings::{Preset, Settings};

/// What a node may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    ron_core::Inventory::of(
        &[
            handle::WORK,
            handle::FOUND,
            buckets::ROUTE,
            node::PINGS,
            node::INTRODUCED,
            node::EVENTS,
            network::LINKS,
            keeping::WRITES,
        ],
        &[
            handle::LOOKUP,
            actor::BOOTSTRAPPER,
            node::PINGER,
            buckets::WRITER,
            republish::REPUBLISHER,
            keeping::KEEPER,
            keeping::WRITER,
        ],
        &[buckets::DIVERSITY, keeping::STORE, node::ESTIMATE, node::INTRODUCTIONS, publish::CLAIMS],
    )
}
