//! Rules that tests break on purpose, to show that they would notice.

/// One rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// A large object is acknowledged before its files are synced.
    NoSync,
    /// A large object is acknowledged before the names of its files are.
    NoDirSync,
    /// A record is compacted away before its copy is durable.
    RemoveBeforeCopy,
}

#[cfg(feature = "planted-bugs")]
mod switches {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Bug;

    static PLANTED: AtomicU32 = AtomicU32::new(0);

    /// Keeps a bug planted until dropped. The switch is global: tests that plant take turns.
    #[derive(Debug)]
    pub struct Planted(Bug);

    /// Plants `bug` until the guard is dropped.
    #[must_use]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.fetch_or(1 << bug as u32, Ordering::SeqCst);
        Planted(bug)
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.fetch_and(!(1 << self.0 as u32), Ordering::SeqCst);
        }
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) & (1 << bug as u32) != 0
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use switches::is_planted;
#[cfg(feature = "planted-bugs")]
pub use switches::{Planted, plant};

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
