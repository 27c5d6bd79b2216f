//! The runtime contract of the ron family.

mod backoff;
mod config;
mod deadline;
mod error;
mod feed;
mod inventory;
mod lane;
mod lock;
mod metrics;
#[cfg(all(test, ron_loom))]
mod models;
mod permits;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod pool;
mod queue;
mod ready;
mod roll;
mod shutdown;
mod snapshot;
mod supervisor;
mod sync;

pub use backoff::{Backoff, BackoffPolicy};
pub use config::{Capacity, ConfigError, Ratio};
pub use deadline::{Deadline, now};
pub use error::{CallError, ErrorKind, Refusal};
pub use feed::{Event, Feed, Subscriber};
pub use inventory::{Inventory, LaneKind, LaneSpec, LockSpec, Overflow, TaskSpec};
pub use lane::{Held, Inbox, Lane, PriorityInbox, Reply};
pub use lock::{Lock, LockGuard};
pub use metrics::{Counter, Metrics, Tally};
pub use permits::MemoryBudget;
pub use pool::{Pool, PoolSpec};
pub use ready::{Affects, GateStatus, Ready, ReadyGate, ReadyStatus};
pub use shutdown::{Phase, Stop, StopHook, Stopped};
pub use snapshot::{Snapshot, Watch};
pub use supervisor::{Builder, Fatal, Restart, Spawner, Supervisor, Task, TaskEnd, TaskOutput};
