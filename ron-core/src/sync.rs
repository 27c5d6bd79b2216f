//! Where this crate's own synchronisation gets its mutexes and atomics.
//!
//! Under `--cfg ron_loom` they are loom's, so that the models beside the queue, the permits, the snapshot and the
//! latch run the code that ships. Our cfg is not plain `loom`: that one also reshapes tokio, which then loses its
//! network and no longer builds with the rest of the family.

use std::{mem, sync::PoisonError, task::Waker};

#[cfg(ron_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(ron_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

/// Locks, and looks past poison.
///
/// Every critical section here leaves the state whole before it runs foreign code (a feed's clone of an event, the
/// closure of a snapshot's update), so a panic in that code must not take the primitive down with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match try_for_a_while(mutex) {
        Some(guard) => guard,
        None => mutex.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// Sections under these locks are tens of nanoseconds long, while sleeping and being woken by the kernel takes
/// microseconds and makes the next unlocker pay too. So a lock that is held is tried again for about as long as a
/// sleep would take before the thread does sleep.
#[cfg(not(ron_loom))]
fn try_for_a_while<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    use std::sync::TryLockError;

    const TRIES: u32 = 64;
    /// A pause doubles so often, from one turn to thirty-two.
    const DOUBLINGS: u32 = 5;
    for attempt in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                for _ in 0..1 << attempt.min(DOUBLINGS) {
                    std::hint::spin_loop();
                }
            }
        }
    }
    None
}

/// A model explores the schedule in which nobody waits and the one in which somebody does; trying adds nothing.
#[cfg(ron_loom)]
fn try_for_a_while<T>(_: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    None
}

/// Tasks that wait for the same thing and are woken all together.
///
/// Joining and leaving are constant time, because a `select!` loop joins and leaves on every turn and ten thousand
/// of them may wait for one stop signal.
#[derive(Default)]
pub(crate) struct WakerSet {
    seats: Vec<Option<Waker>>,
    free: Vec<usize>,
    /// Counts the wake-ups, so that a seat taken before the last one is known to be gone.
    round: u64,
}

/// Where in a [`WakerSet`] a future sits, if it does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seat(Option<(u64, usize)>);

impl Seat {
    /// Whether there may be a waker to leave behind.
    pub(crate) fn is_taken(self) -> bool {
        self.0.is_some()
    }
}

impl WakerSet {
    /// Makes `waker` the one behind `seat`, taking a seat first if it has none.
    pub(crate) fn join(&mut self, seat: &mut Seat, waker: &Waker) {
        if let Some((_, index)) = seat.0.filter(|(round, _)| *round == self.round) {
            match &mut self.seats[index] {
                Some(known) if known.will_wake(waker) => {}
                known => *known = Some(waker.clone()),
            }
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        self.seats[index] = Some(waker.clone());
        seat.0 = Some((self.round, index));
    }

    /// Gives the seat up.
    pub(crate) fn leave(&mut self, seat: Seat) {
        if let Some((_, index)) = seat.0.filter(|(round, _)| *round == self.round) {
            self.seats[index] = None;
            self.free.push(index);
        }
    }

    /// Everybody who waits, to be woken after the lock is released: a waker is foreign code.
    pub(crate) fn take(&mut self) -> WakeAll {
        self.round += 1;
        self.free.clear();
        WakeAll(mem::take(&mut self.seats))
    }
}

/// Wakers taken out of their set.
#[must_use]
pub(crate) struct WakeAll(Vec<Option<Waker>>);

impl WakeAll {
    pub(crate) fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}
