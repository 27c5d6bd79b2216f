//! A few futures at once, whichever is first.

use std::{future::poll_fn, task::Poll};

use ron_core::net::BoxFuture;

/// Futures that run, each with what it is about. For a handful: a wake looks at all of them.
pub(crate) struct InFlight<'a, K, T> {
    running: Vec<(K, BoxFuture<'a, T>)>,
}

impl<'a, K, T> InFlight<'a, K, T> {
    pub(crate) fn new() -> Self {
        InFlight { running: Vec::new() }
    }

    pub(crate) fn push(&mut self, about: K, future: impl Future<Output = T> + Send + 'a) {
        self.push_boxed(about, Box::pin(future));
    }

    pub(crate) fn push_boxed(&mut self, about: K, future: BoxFuture<'a, T>) {
        self.running.push((about, future));
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Gives up the first that is about something like this, and says what it was about.
    pub(crate) fn drop_first(&mut self, is_it: impl Fn(&K) -> bool) -> Option<K> {
        let at = self.running.iter().position(|(about, _)| is_it(about))?;
        Some(self.running.swap_remove(at).0)
    }

    /// The next that is done. With none running it waits for ever. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> (K, T) {
        poll_fn(|cx| {
            for at in 0..self.running.len() {
                if let Poll::Ready(done) = self.running[at].1.as_mut().poll(cx) {
                    return Poll::Ready((self.running.swap_remove(at).0, done));
                }
            }
            Poll::Pending
        })
        .await
    }
}
