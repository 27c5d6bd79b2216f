//! Rules that tests break on purpose, to show that they would notice.

#[cfg(feature = "planted-bugs")]
use ron_core::planted::{Planted, Switches};

#[cfg(feature = "planted-bugs")]
static PLANTED: Switches = Switches::new();

/// One rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// A large object is acknowledged before its files are synced.
    NoSync,
    /// A large object is acknowledged before the names of its files are.
    NoDirSync,
    /// The index gets its name before the data that it knows of is synced. What was put while it was written is such.
    IndexBeforeData,
    /// An object that was put without waiting for the disk is acknowledged as durable when it is put again, because the index
    /// knows it.
    TrustedIndex,
    /// A record is compacted away before its copy is durable.
    RemoveBeforeCopy,
    /// What is read from a disk or sent by a peer is handed out as it is.
    NoVerify,
    /// A delete ends the claim, and is not remembered beyond that.
    NoTombstone,
    /// A piece that is about to be claimed is deleted all the same, if by the claims that are known it is too much.
    NotHeld,
    /// Breaks no rule: a claim is written down half a second after it was said, so that others get to do something in between, as
    /// they do where a disk takes its time.
    SlowClaim,
    /// Breaks no rule: the index is written half a second after its record, so that others get to put something in between,
    /// as they do where a disk takes its time.
    SlowIndex,
}

/// Plants `bug` until the guard is dropped. It is global: tests that plant take turns.
#[cfg(feature = "planted-bugs")]
#[must_use]
pub fn plant(bug: Bug) -> Planted {
    PLANTED.plant(bug as u32)
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.is_planted(bug as u32)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
