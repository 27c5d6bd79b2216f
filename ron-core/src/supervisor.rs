//! Placeholder until the supervisor lands in the next commit.
use std::{fmt, time::Duration};

/// When a failed task runs again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Restart {
    /// Never: the failure is fatal to the supervisor.
    Never,
    /// After a pause with full jitter between `min` and `max`.
    Backoff {
        /// Shortest pause.
        min: Duration,
        /// Longest pause.
        max: Duration,
        /// How many restarts within `window`.
        budget: u32,
        /// The window of the budget.
        window: Duration,
    },
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restart::Never => f.write_str("fatal"),
            Restart::Backoff {
                min,
                max,
                budget,
                window,
            } => {
                write!(
                    f,
                    "restarted after {min:?} to {max:?}, {budget} times in {window:?}, then fatal"
                )
            }
        }
    }
}
