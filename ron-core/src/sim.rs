//! A world that fails on purpose, for tests of what must survive failure.
//!
//! [`SimDisk`] loses, tears and reorders what was not synced. [`SimNet`] is late, loses and parts; with the feature
//! `net`, `SimTransport` puts endpoints on it. [`Sim`] runs whole nodes on both, on tokio's paused clock and out of one
//! seed: hours pass in seconds, and a failure is replayed by its seed. For that a program must take its time from
//! [`now`](crate::now), its chances from a seeded generator, its disk and network from here, write `biased` into every
//! `select!`, and decide nothing by the order of a hash map.
//!
//! # Every crash of a program
//!
//! Run it once to count its disk calls; then, for each call, run it again, lose power there, and look:
//!
//! ```
//! use std::{path::Path, sync::Arc};
//! use ron_core::{journal::{Entry, Position, Segments, Settings}, sim::{CrashStyle, SimDisk}};
//!
//! /// Writes until the power fails. Returns how many records were acknowledged.
//! fn program(disk: &SimDisk) -> usize {
//!     let open = Segments::open(Arc::new(disk.clone()), Path::new("log"), Settings::default());
//!     let Ok((mut journal, _)) = open else { return 0 };
//!     (0..5u8).take_while(|number| journal.commit([Entry::new(1, &[*number])]).is_ok()).count()
//! }
//!
//! let disk = SimDisk::new();
//! program(&disk);
//! for call in 1..=disk.calls() {
//!     let disk = SimDisk::new();
//!     disk.crash_at_call(call);
//!     let acknowledged = program(&disk);
//!     for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: 1 }] {
//!         // The same moment, crashed in several ways.
//!         let after = disk.fork();
//!         after.restart(style);
//!         let (journal, _) = Segments::open(Arc::new(after), Path::new("log"), Settings::default()).unwrap();
//!         assert!(journal.scan(Position::START).count() >= acknowledged);
//!     }
//! }
//! ```

#[cfg(all(feature = "net", not(ron_loom)))]
mod checked;
mod disk;
mod inodes;
mod net;
#[cfg(all(feature = "net", not(ron_loom)))]
mod transport;
mod world;

#[cfg(all(feature = "net", not(ron_loom)))]
pub(crate) use checked::once;
pub use disk::{Call, CrashStyle, Fault, SimDisk};
pub use net::{BACKLOG, Latency, Line, SimListener, SimNet, SimStream};
#[cfg(all(feature = "net", not(ron_loom)))]
pub use transport::SimTransport;
pub use world::{NODE, Sim, SimNode};
