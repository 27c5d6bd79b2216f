//! Who is still running: the roll that a supervisor calls before it may say that everything has stopped.
//!
//! Entering and the final "nobody is here" are decided under one lock, so a task is either counted or refused;
//! there is no moment in which it runs unseen.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::sync::{Mutex, Seat, WakerSet, lock};

/// The members present, each with a handle `H` by which it can be cut off.
pub(crate) struct Roll<H> {
    state: Mutex<State<H>>,
}

struct State<H> {
    present: BTreeMap<u64, Option<H>>,
    entries: u64,
    /// Members that ended by themselves since the roll began to empty.
    drained: usize,
    emptying: bool,
    closed: bool,
    waiting: WakerSet,
}

impl<H> Roll<H> {
    pub(crate) fn new() -> Self {
        Roll {
            state: Mutex::new(State {
                present: BTreeMap::new(),
                entries: 0,
                drained: 0,
                emptying: false,
                closed: false,
                waiting: WakerSet::default(),
            }),
        }
    }

    /// Counts a new member in, or refuses it because the roll is closed.
    pub(crate) fn enter(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.entries += 1;
        let id = state.entries;
        state.present.insert(id, None);
        Some(id)
    }

    /// Attaches the handle by which `id` can be cut off. Gives it back if it must be cut off right now.
    pub(crate) fn attach(&self, id: u64, handle: H) -> Option<H> {
        let mut state = lock(&self.state);
        let closed = state.closed;
        match state.present.get_mut(&id) {
            Some(_) if closed => Some(handle),
            Some(seat) => {
                *seat = Some(handle);
                None
            }
            None => None,
        }
    }

    /// Counts a member out, and whether it ended `by_itself`. The last one out ends the wait.
    pub(crate) fn leave(&self, id: u64, by_itself: bool) {
        let (handle, woken) = {
            let mut state = lock(&self.state);
            let handle = state.present.remove(&id);
            if handle.is_some() && by_itself && state.emptying && !state.closed {
                state.drained += 1;
            }
            let woken = if state.present.is_empty() { Some(state.waiting.take()) } else { None };
            (handle, woken)
        };
        drop(handle);
        if let Some(woken) = woken {
            woken.wake();
        }
    }

    /// From here on, who ends by itself counts as drained.
    pub(crate) fn begin_emptying(&self) {
        lock(&self.state).emptying = true;
    }

    /// Closes the roll to newcomers, counts who is still here, and hands out their handles to cut them off.
    pub(crate) fn close(&self) -> (usize, Vec<H>) {
        let mut state = lock(&self.state);
        state.closed = true;
        (state.present.len(), state.present.values_mut().filter_map(Option::take).collect())
    }

    /// Resolves when nobody is here, and closes the roll in that same moment.
    pub(crate) fn empty(&self) -> Empty<'_, H> {
        Empty { roll: self, seat: Seat::default() }
    }

    pub(crate) fn present(&self) -> usize {
        lock(&self.state).present.len()
    }

    pub(crate) fn drained(&self) -> usize {
        lock(&self.state).drained
    }
}

/// See [`Roll::empty`].
pub(crate) struct Empty<'a, H> {
    roll: &'a Roll<H>,
    seat: Seat,
}

impl<H> Future for Empty<'_, H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = lock(&this.roll.state);
        if state.present.is_empty() {
            state.closed = true;
            return Poll::Ready(());
        }
        state.waiting.join(&mut this.seat, cx.waker());
        Poll::Pending
    }
}

impl<H> Drop for Empty<'_, H> {
    fn drop(&mut self) {
        if self.seat.is_taken() {
            lock(&self.roll.state).waiting.leave(self.seat);
        }
    }
}
