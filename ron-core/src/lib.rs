//! The runtime contract of the ron family.

mod config;
mod deadline;
pub mod disk;
mod error;
mod inventory;
pub mod journal;
mod metrics;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
#[cfg(feature = "sim")]
pub mod sim;
mod supervisor;
mod sync;

pub use config::{Capacity, ConfigError, Ratio};
pub use deadline::{Deadline, now};
pub use error::{CallError, ErrorKind, Refusal};
pub use inventory::{Inventory, LaneKind, LaneSpec, LockSpec, Overflow, TaskSpec};
pub use metrics::{Counter, Metrics, Tally};
pub use supervisor::Restart;
