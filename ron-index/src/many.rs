//! Several futures in one task; `next` returns the one that finishes first. Meant for a handful: every poll polls them all.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
};

use crate::source::BoxFuture;

/// Futures that run together. Dropping one calls it off.
pub(crate) struct Many<K, T> {
    running: Vec<(K, BoxFuture<'static, T>)>,
}

impl<K, T> Default for Many<K, T> {
    fn default() -> Self {
        Many { running: Vec::new() }
    }
}

impl<K, T> Many<K, T> {
    pub(crate) fn push(&mut self, key: K, future: BoxFuture<'static, T>) {
        self.running.push((key, future));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Cancels those for which `stays` returns false, and returns their keys.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&K) -> bool) -> Vec<K> {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (key, future) in self.running.drain(..) {
            if stays(&key) { kept.push((key, future)) } else { gone.push(key) }
        }
        self.running = kept;
        gone
    }

    /// The keys of those that run.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.iter().map(|(key, _)| key)
    }

    /// The next one that is done, with `Err` if it panicked; or `None` as soon as `looks`, which is called after each poll, returns
    /// true. Waits for ever if nothing runs.
    pub(crate) async fn next(&mut self, mut looks: impl FnMut() -> bool) -> Option<(K, Result<T, ()>)> {
        poll_fn(|cx| {
            for at in 0..self.running.len() {
                // Sources are the host's code: a panic of one is an answer, and the others go on.
                let polled = catch_unwind(AssertUnwindSafe(|| self.running[at].1.as_mut().poll(cx)));
                let done = match polled {
                    Ok(Poll::Pending) => continue,
                    Ok(Poll::Ready(done)) => Ok(done),
                    Err(_) => Err(()),
                };
                let (key, future) = self.running.swap_remove(at);
                let dropped = catch_unwind(AssertUnwindSafe(|| drop(future)));
                return Poll::Ready(Some((
                    key,
                    done.and_then(|done| dropped.map(|()| done).map_err(|_| ())),
                )));
            }
            if looks() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}
