//! Twins of the outside world that fail on purpose, for tests of what must survive failure.

mod disk;
mod inodes;

pub use disk::{Call, CrashStyle, Fault, SimDisk};
