//! An embedded store of objects that are named by their content.
//!
//! An object is a sequence of bytes, and its name is their BLAKE3 hash. What is acknowledged is on disk, what is read is
//! verified against its name before it is handed out, and whatever is full refuses at once. Bytes come and go as streams,
//! so an object may be larger than memory.
//!
//! # A store in ten lines
//!
//! ```
//! use std::time::Duration;
//!
//! use ron_core::{Deadline, Supervisor};
//! use ron_storage::Store;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//! let store = Store::builder().memory().start(&host).await?;
//! let stored = store.put_bytes("hello".into(), soon()).await?;
//! let mut reader = store.get(stored.id, .., soon()).await?;
//! while let Some(bytes) = reader.next().await? {
//!     assert_eq!(&bytes[..], b"hello");
//! }
//! host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! | To | Use |
//! |---|---|
//! | keep it on disk | [`Builder::data`]; [`Builder::memory`] touches no file |
//! | store | [`Store::put`], [`Store::put_bytes`], [`Store::put_expect`], [`Store::put_with`] |
//! | read all or a part, verified | [`Store::get`], [`Store::get_bytes`] |
//! | read it with the proof that others can verify | [`Store::get_proof`] |
//! | know what is there | [`Store::has`], [`Store::stat`], [`Store::list`], [`Store::usage`] |
//! | get rid of it | [`Store::delete`]; [`Store::pin`], [`Store::unpin`] and [`Store::gc`] |
//! | know that it is still what it was | [`Store::scrub`] |
//! | see how it is doing | [`Store::events`], [`Store::ready`], the metrics in `docs/operating.md` |
//! | share it fairly between clients | [`Store::for_client`] |
//! | change settings while it runs | [`Store::reload`] |
//! | serve it over HTTP | the module `http`, with the feature `http` |
//! | keep it on many nodes, as copies or shards | the modules `claims` and `repair`, with the features `net` and `erasure` |
//! | fetch from such a server, verified | the module `client`, with the feature `client` |
//! | let other nodes read, offer and compare, and do so with them | the module `peers`, with the feature `net` |
//! | fetch an object from several nodes at once | the module `fetch`, with the feature `net` |
//!
//! # What it promises
//!
//! * What a put acknowledges as [`Durability::Durable`] is there after a crash, and what a delete acknowledges is not.
//! * No byte is handed out that is not the object's. An object whose bytes have changed is quarantined and never served;
//!   putting it again mends it.
//! * Memory is bounded: every queue, and what all streams of one direction hold together
//!   ([`Settings::stream_bytes_max`]).
//! * Reads go on while the disk is full or takes no more writes.
//!
//! # What it refuses to do
//!
//! It names objects by their content and by nothing else: who needs names that can change binds them elsewhere, as
//! `ron-registry` does. It changes no object in place, encrypts and compresses nothing, and keeps no metadata beside an
//! object but its pin and the claims on it. One store has one directory, and one process: a second is refused with
//! [`StorageError::Locked`]. It installs no signal handler, no listener and no runtime.

/// What the README shows is compiled and run with the examples of this documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeIsRun;

mod actor;
mod buffers;
mod builder;
#[cfg(feature = "net")]
pub mod claims;
#[cfg(feature = "client")]
pub mod client;
mod error;
#[cfg(feature = "net")]
pub mod fetch;
mod handle;
mod holds;
#[cfg(feature = "http")]
pub mod http;
mod index;
mod large;
#[cfg(feature = "net")]
pub mod members;
// Public for the fuzz targets, and no part of the interface: what hosts see is exported below.
#[doc(hidden)]
pub mod logic;
mod metrics;
mod objects;
mod opening;
#[cfg(feature = "net")]
mod partial;
#[cfg(feature = "net")]
pub mod peers;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
#[allow(unreachable_pub, dead_code, reason = "public with the feature, a constant `false` without")]
mod planted;
mod proven;
mod proving;
mod reading;
#[cfg(feature = "net")]
pub mod repair;
mod settings;
mod streams;
mod touched;
mod upkeep;
mod writing;

/// Streams of bytes into and out of a store, in the version this crate uses.
pub use futures_core;
/// Supervisors, deadlines, ids and what it passes on in turn, in the version this crate uses.
pub use ron_core;

pub use builder::Builder;
pub use error::StorageError;
pub use handle::{Collected, Cursor, Event, Gc, Page, Scrubbed, Stat, Store, Usage};
pub use logic::tree::TreeError;
pub use opening::Opened;
pub use proving::Proof;
pub use reading::Reader;
pub use settings::{GROUP_BYTES, Settings};
pub use writing::{Durability, Put, Stored};

/// What a store may bring to a running program: its queues, tasks and locks.
#[must_use]
pub fn inventory() -> ron_core::Inventory {
    let lanes = [
        &[actor::GETS, actor::PUTS, actor::SYNCS, actor::UPKEEP, actor::SCRUBS, handle::EVENTS][..],
        #[cfg(feature = "net")]
        &[
            peers::LINKS,
            members::LINKS,
            fetch::FETCH_EVENTS,
            repair::REPAIRS,
            repair::URGENT,
            repair::HEARD,
            repair::EVENTS,
        ],
    ];
    let locks = [
        &[
            streams::PLACES,
            holds::HOLDS,
            objects::TABLE,
            touched::TOUCHED,
            large::OPENED,
            proven::PROVEN,
            buffers::BUFFERS,
        ][..],
        #[cfg(feature = "net")]
        &[peers::OFFERS, partial::PARTIALS, claims::CLAIMS, repair::PROMISES],
    ];
    let tasks = [
        &[actor::GETTER, actor::PUTTER, actor::SYNCER, actor::KEEPER, actor::SCRUBBER][..],
        #[cfg(feature = "net")]
        &[repair::PLACER, repair::LOOKER, repair::PLANNER, repair::WORKER, members::GREETER],
    ];
    ron_core::Inventory::of(&lanes.concat(), &tasks.concat(), &locks.concat())
}
