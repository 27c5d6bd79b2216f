//! The runtime contract of the ron family.

mod backoff;
mod breaker;
mod config;
mod deadline;
mod error;
mod gate;
mod id;
mod inventory;
mod metrics;
mod pacer;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod retry;
mod supervisor;
mod sync;

pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::{Admission, Breaker, BreakerOpen, BreakerSettings, BreakerState, Probing};
pub use config::{Capacity, ConfigError, Ratio};
pub use deadline::{Deadline, now};
pub use error::{CallError, ErrorKind, Refusal};
pub use gate::{ClientKey, Gate, GateLimits, GateSettings, Pass};
pub use id::{ContentId, Distance, IdError, NodeId};
pub use inventory::{Inventory, LaneKind, LaneSpec, LockSpec, Overflow, TaskSpec};
pub use metrics::{Counter, Metrics, Tally};
pub use pacer::Pacer;
pub use retry::{Retry, RetryBudget};
pub use supervisor::Restart;
