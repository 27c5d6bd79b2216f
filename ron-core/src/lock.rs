//! A mutex with a name and a place in the order of locks.
//!
//! Deadlocks between two locks need two orders. Every lock declares a rank, and in builds with debug assertions a
//! thread that takes a lock of equal or lower rank than one it holds panics with both names, in the first test that
//! does it rather than in the night when both threads meet. The guard cannot cross an `.await` in a spawned task: it
//! is not `Send`.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{LockSpec, Metrics};

/// A mutex for short, synchronous critical sections over metadata.
pub struct Lock<T> {
    spec: LockSpec,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// A lock around `value`, as `spec` declares it.
    pub fn new(spec: LockSpec, value: T, metrics: &Metrics) -> Self {
        metrics.note_lock(spec);
        Lock { spec, value: Mutex::new(value) }
    }

    /// Takes the lock. A panic under it does not poison it: the value must be whole between any two statements that
    /// can panic.
    ///
    /// # Panics
    /// With debug assertions, if this thread already holds a lock of the same or a higher rank.
    pub fn lock(&self) -> LockGuard<'_, T> {
        let held = order::Held::acquire(self.spec);
        LockGuard { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock({}, rank {})", self.spec.name, self.spec.rank)
    }
}

/// Access to the value of a [`Lock`] until dropped.
pub struct LockGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _held: order::Held,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use crate::LockSpec;

    thread_local! {
        static HELD: RefCell<Vec<LockSpec>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) struct Held(LockSpec);

    impl Held {
        pub(super) fn acquire(spec: LockSpec) -> Self {
            HELD.with_borrow_mut(|held| {
                if let Some(above) = held.iter().find(|other| other.rank >= spec.rank) {
                    panic!(
                        "lock {} (rank {}) taken while holding {} (rank {})",
                        spec.name, spec.rank, above.name, above.rank
                    );
                }
                held.push(spec);
            });
            Held(spec)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|spec| *spec == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod order {
    use crate::LockSpec;

    pub(super) struct Held;

    impl Held {
        pub(super) fn acquire(_: LockSpec) -> Self {
            Held
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    const META: LockSpec = LockSpec::new("test", "meta", 10).guards("the table of tables");
    const COUNTS: LockSpec = LockSpec::new("test", "counts", 20).guards("the counts");

    #[test]
    fn in_order_is_fine_and_noted() {
        let metrics = Metrics::default();
        let (meta, counts) = (Lock::new(META, 1, &metrics), Lock::new(COUNTS, 2, &metrics));
        for _ in 0..2 {
            let meta = meta.lock();
            *counts.lock() += *meta;
        }
        assert_eq!(*counts.lock(), 4);
        assert_eq!(metrics.inventory(), crate::Inventory::of(&[], &[], &[META, COUNTS]));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock meta (rank 10) taken while holding counts (rank 20)")]
    fn out_of_order_panics_with_both_names() {
        let metrics = Metrics::default();
        let (meta, counts) = (Lock::new(META, (), &metrics), Lock::new(COUNTS, (), &metrics));
        let _counts = counts.lock();
        let _meta = meta.lock();
    }

    #[test]
    fn a_panic_under_it_does_not_close_it() {
        let lock = std::sync::Arc::new(Lock::new(META, 5, &Metrics::default()));
        let held = std::sync::Arc::clone(&lock);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _guard = held.lock();
            panic!("in the critical section");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 5);
    }
}
