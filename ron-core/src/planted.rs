//! Rules that tests break on purpose, to show that they would notice.
//!
//! A test that has never failed proves little. Each bug here is one that this kind of code really has (a stop signal
//! that is missed, an fsync that is forgotten); with the feature `planted-bugs` a test switches it on, runs the same
//! checker as the ordinary test, and requires the checker to complain. Switches are run-time values, not cfgs: a cfg
//! would rebuild every dependency. Without the feature every question is a constant `false`.

/// One rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// A stop request does not wake the tasks that already wait for it.
    LostStop,
    /// A job whose consumer was woken and then given up is not handed to the next consumer.
    LostJob,
    /// A closed queue forgets what was queued instead of draining it.
    DrainDrops,
    /// A refusal keeps the permit that it took before it refused.
    LeakedPermit,
    /// The journal acknowledges without syncing its data.
    MissingSync,
    /// The journal acknowledges records of a new segment without syncing the directory that names it.
    MissingDirSync,
    /// A lane takes whatever comes, however much it holds already.
    UnboundedLane,
}

#[cfg(feature = "planted-bugs")]
mod switches {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Bug;

    static PLANTED: Switches = Switches::new();

    /// Which bugs of one crate are planted, by their numbers below 32. They are global: tests that plant take turns, or run
    /// in a process of their own.
    #[derive(Debug)]
    pub struct Switches(AtomicU32);

    impl Switches {
        /// Nothing is planted.
        #[must_use]
        #[allow(clippy::new_without_default, reason = "made for statics, which have no use for a default")]
        pub const fn new() -> Self {
            Switches(AtomicU32::new(0))
        }

        /// Plants the bug with this number until the guard is dropped.
        #[must_use]
        pub fn plant(&'static self, bug: u32) -> Planted {
            self.0.fetch_or(1 << bug, Ordering::SeqCst);
            Planted(self, bug)
        }

        /// Whether the bug with this number is planted.
        #[must_use]
        pub fn is_planted(&self, bug: u32) -> bool {
            self.0.load(Ordering::Relaxed) & (1 << bug) != 0
        }
    }

    /// Keeps a bug planted until dropped.
    #[derive(Debug)]
    pub struct Planted(&'static Switches, u32);

    impl Drop for Planted {
        fn drop(&mut self) {
            self.0.0.fetch_and(!(1 << self.1), Ordering::SeqCst);
        }
    }

    /// Plants `bug` until the guard is dropped.
    #[must_use]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.plant(bug as u32)
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.is_planted(bug as u32)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use switches::is_planted;
#[cfg(feature = "planted-bugs")]
pub use switches::{Planted, Switches, plant};

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
