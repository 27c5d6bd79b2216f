//! Where this crate's own synchronisation gets its mutexes and atomics.
//!
//! Under `--cfg ron_loom` they are loom's, so that the models beside the queue, the permits, the snapshot and the
//! latch run the code that ships. Our cfg is not plain `loom`: that one also reshapes tokio, which then loses its
//! network and no longer builds with the rest of the family.

#[cfg(ron_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(ron_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

/// Locks, and looks past poison.
///
/// Every critical section here leaves the state whole before it runs foreign code (a `Clone`, a `Drop`), so a
/// panic in that code must not take the queue down with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
