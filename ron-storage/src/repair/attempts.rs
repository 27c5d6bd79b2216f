//! Several attempts at once, of which not all are needed: whoever is silent holds up nobody.

use std::{future::poll_fn, task::Poll, time::Duration};

use ron_core::{Deadline, net::BoxFuture};

/// What comes of so many attempts as are needed. Each is begun when one before it came to nothing, or when for a while nothing came,
/// with so many at once at most: one that is stuck holds up nobody.
pub(super) async fn enough<'a, T>(
    mut attempts: impl Iterator<Item = BoxFuture<'a, Option<T>>>,
    needed: usize,
    at_once: usize,
    hedge: Duration,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut open: Vec<BoxFuture<'a, Option<T>>> = attempts.by_ref().take(needed).collect();
    while found.len() < needed && !open.is_empty() {
        match Deadline::after(hedge).limit("hedge", first(&mut open)).await {
            Ok(Some(good)) => found.push(good),
            Ok(None) => open.extend(attempts.next()),
            Err(_) if open.len() < at_once => open.extend(attempts.next()),
            Err(_) => {}
        }
    }
    found
}

/// What comes of all of these, which are begun at once. When that is enough, the others have so much longer: what is nearly done need
/// not be done again by a repair.
pub(super) async fn all_or_enough<'a, T>(
    attempts: impl Iterator<Item = BoxFuture<'a, Option<T>>>,
    is_enough: impl Fn(&[T]) -> bool,
    longer: Duration,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut open: Vec<BoxFuture<'a, Option<T>>> = attempts.collect();
    while !open.is_empty() && !is_enough(&found) {
        found.extend(first(&mut open).await);
    }
    let until = Deadline::after(longer);
    while !open.is_empty() {
        let Ok(done) = until.limit("hedge", first(&mut open)).await else { break };
        found.extend(done);
    }
    found
}

/// What comes of all of these, in their order.
pub(super) async fn all<'a, T>(attempts: impl Iterator<Item = BoxFuture<'a, T>>) -> Vec<T> {
    let mut open: Vec<(BoxFuture<'a, T>, Option<T>)> = attempts.map(|attempt| (attempt, None)).collect();
    poll_fn(|cx| {
        for (attempt, done) in open.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(ready) = attempt.as_mut().poll(cx) {
                *done = Some(ready);
            }
        }
        if open.iter().all(|(_, done)| done.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    open.into_iter().filter_map(|(_, done)| done).collect()
}

/// What comes of the first of these that is done.
pub(super) fn first<'a, T>(open: &mut Vec<BoxFuture<'a, Option<T>>>) -> impl Future<Output = Option<T>> {
    poll_fn(|cx| {
        for at in 0..open.len() {
            if let Poll::Ready(done) = open[at].as_mut().poll(cx) {
                drop(open.swap_remove(at));
                return Poll::Ready(done);
            }
        }
        Poll::Pending
    })
}
