//! A value that is replaced whole: settings, a routing view, a head.
//!
//! A reader sees the old value or the new one, never a mixture, and keeps what it saw for as long as it likes. A
//! [`Watch`] remembers its copy and notices a change by one atomic load, so reading settings in a hot loop costs
//! nothing worth measuring.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::sync::{
    Mutex, Seat, WakerSet,
    atomic::{AtomicU64, Ordering},
    lock,
};

/// The writer's side. Cloning shares the value.
pub struct Snapshot<T: ?Sized> {
    shared: Arc<Shared<T>>,
}

struct Shared<T: ?Sized> {
    /// Counts the replacements. Written under the lock, read without.
    version: AtomicU64,
    state: Mutex<State<T>>,
}

struct State<T: ?Sized> {
    value: Arc<T>,
    waiting: WakerSet,
}

impl<T> Snapshot<T> {
    /// Begins with `value`.
    pub fn new(value: T) -> Self {
        Self::from(Arc::new(value))
    }

    /// Replaces the value. Readers that hold the old one keep it.
    pub fn replace(&self, value: T) {
        self.replace_shared(Arc::new(value));
    }

    /// Replaces the value by what `next` makes of it. `next` runs under the lock, so concurrent updates do not lose
    /// each other; it should be short and must not touch this snapshot.
    pub fn update(&self, next: impl FnOnce(&T) -> T) {
        self.exchange(|old| Arc::new(next(old)));
    }
}

impl<T: ?Sized> Snapshot<T> {
    /// [`replace`](Snapshot::replace) by a value that others hold as well, or that has no size of its own.
    pub fn replace_shared(&self, value: Arc<T>) {
        self.exchange(|_| value);
    }

    fn exchange(&self, next: impl FnOnce(&T) -> Arc<T>) {
        let (old, woken) = {
            let mut state = lock(&self.shared.state);
            let value = next(&state.value);
            let old = std::mem::replace(&mut state.value, value);
            self.shared.version.fetch_add(1, Ordering::Release);
            (old, state.waiting.take())
        };
        drop(old);
        woken.wake();
    }

    /// The value now.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        Arc::clone(&lock(&self.shared.state).value)
    }

    /// How often it was replaced, by one atomic load. Whoever has made something of the value, and read this before, can tell
    /// whether that still holds.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    /// A reader that notices changes.
    #[must_use]
    pub fn watch(&self) -> Watch<T> {
        let state = lock(&self.shared.state);
        Watch {
            seen: self.shared.version.load(Ordering::Acquire),
            value: Arc::clone(&state.value),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: ?Sized> From<Arc<T>> for Snapshot<T> {
    /// Begins with a value that others may hold as well.
    fn from(value: Arc<T>) -> Self {
        let state = State { value, waiting: WakerSet::default() };
        Snapshot { shared: Arc::new(Shared { version: AtomicU64::new(0), state: Mutex::new(state) }) }
    }
}

impl<T: ?Sized> Clone for Snapshot<T> {
    fn clone(&self) -> Self {
        Snapshot { shared: Arc::clone(&self.shared) }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&self.load()).finish()
    }
}

/// A reader of a [`Snapshot`] with a copy of its own.
pub struct Watch<T: ?Sized> {
    shared: Arc<Shared<T>>,
    seen: u64,
    value: Arc<T>,
}

impl<T: ?Sized> Watch<T> {
    /// The newest value. One atomic load unless it changed.
    pub fn get(&mut self) -> &Arc<T> {
        if self.shared.version.load(Ordering::Acquire) != self.seen {
            let state = lock(&self.shared.state);
            self.seen = self.shared.version.load(Ordering::Acquire);
            let old = std::mem::replace(&mut self.value, Arc::clone(&state.value));
            // Perhaps the last of its kind, and then foreign code runs.
            drop(state);
            drop(old);
        }
        &self.value
    }

    /// Resolves when there is a value that [`get`](Watch::get) has not returned; never, once nobody is left to write
    /// one. Dropping the future loses nothing.
    pub async fn changed(&self) {
        Changed { watch: self, seat: Seat::default() }.await;
    }
}

impl<T: ?Sized> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Watch { shared: Arc::clone(&self.shared), seen: self.seen, value: Arc::clone(&self.value) }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.value).finish()
    }
}

struct Changed<'a, T: ?Sized> {
    watch: &'a Watch<T>,
    seat: Seat,
}

impl<T: ?Sized> Future for Changed<'_, T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let shared = &this.watch.shared;
        let mut state = lock(&shared.state);
        if shared.version.load(Ordering::Acquire) != this.watch.seen {
            return Poll::Ready(());
        }
        state.waiting.join(&mut this.seat, cx.waker());
        Poll::Pending
    }
}

impl<T: ?Sized> Drop for Changed<'_, T> {
    fn drop(&mut self) {
        if self.seat.is_taken() {
            lock(&self.watch.shared.state).waiting.leave(self.seat);
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_sees_the_newest_and_is_woken_once_per_change() {
        let settings = Snapshot::new(1);
        let mut watch = settings.watch();
        assert_eq!(**watch.get(), 1);
        settings.replace(2);
        settings.replace(3);
        watch.changed().await;
        assert_eq!(**watch.get(), 3);
        let nothing_new = tokio::time::timeout(std::time::Duration::from_secs(1), watch.changed()).await;
        assert!(nothing_new.is_err());
    }

    #[test]
    fn a_reader_keeps_what_it_saw() {
        let settings = Snapshot::new(String::from("old"));
        let kept = settings.load();
        settings.update(|old| format!("{old} and new"));
        assert_eq!(*kept, "old");
        assert_eq!(*settings.load(), "old and new");
    }

    #[test]
    fn a_value_without_a_size_is_shared_and_not_copied() {
        let list: Arc<[u8]> = Arc::from([1, 2]);
        let lists = Snapshot::from(Arc::clone(&list));
        assert!(Arc::ptr_eq(&lists.load(), &list));
        let longer: Arc<[u8]> = Arc::from([1, 2, 3]);
        let mut watch = lists.watch();
        lists.replace_shared(Arc::clone(&longer));
        assert!(Arc::ptr_eq(watch.get(), &longer));
    }
}
