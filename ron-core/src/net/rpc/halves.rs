//! Two futures in one task, of which the first often has work for the second.
//!
//! A task that wakes itself is put at the end of the queue and another worker is woken for it, which then takes it away:
//! for a session that would be a change of cores for every answer. So while the first half runs, the second one is not
//! woken: it has its turn right after, whatever happened.
//!
//! What tokio lets a task do in one turn, both have together. When the first has used it up, the second goes first in the
//! next turn.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::task::coop::has_budget_remaining;

use crate::sync::{Mutex, lock};

/// Runs both to their ends. What `first` leaves for `second` is found in the same turn, unless the turn is used up: then
/// `second` begins the next one.
pub(super) async fn run(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_runs, mut second_runs, mut is_owed) = (true, true, false);
    let bell = Arc::new(Bell { is_heard: AtomicBool::new(false), task: Mutex::new(Waker::noop().clone()) });
    let waker = Waker::from(Arc::clone(&bell));
    poll_fn(move |cx| {
        bell.set_task(cx.waker());
        let was_owed = is_owed;
        if was_owed {
            second_runs = second_runs && second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        }
        if first_runs {
            bell.is_heard.store(true, Ordering::Release);
            first_runs = first.as_mut().poll(cx).is_pending();
            bell.is_heard.store(false, Ordering::Release);
        }
        // Not twice in a row, or the first would be the one that starves.
        is_owed = !was_owed && !has_budget_remaining();
        second_runs = second_runs && second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        if first_runs || second_runs { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// Wakes the task for its second half.
///
/// Nobody is missed: whoever rings has done before what it rings for, under a lock that the second half takes when it
/// looks. It rings for nothing only if it finds `is_heard`, and then the look is yet to come.
struct Bell {
    /// The task is in a turn that has not come to the second half.
    is_heard: AtomicBool,
    task: Mutex<Waker>,
}

impl Bell {
    fn set_task(&self, task: &Waker) {
        lock(&self.task).clone_from(task);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_heard.load(Ordering::Acquire) {
            let task = lock(&self.task).clone();
            task.wake();
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{pin::Pin, sync::atomic::AtomicUsize, time::Duration};

    use super::*;
    use crate::{Inbox, Lane, LaneSpec, Metrics};

    const ITEMS: LaneSpec = LaneSpec::new("test", "items", 64);

    /// Counts the turns of the task.
    struct Turns<F>(F, Arc<AtomicUsize>);

    impl<F: Future + Unpin> Future for Turns<F> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.0).poll(cx)
        }
    }

    async fn add_up(inbox: Inbox<u32>) -> u32 {
        let mut sum = 0;
        while let Some(item) = inbox.recv().await {
            sum += item;
        }
        sum
    }

    /// Ten items, a second apart, each passed from the first half to the second: one turn for each, one to begin.
    #[tokio::test(start_paused = true)]
    async fn what_the_first_half_leaves_is_found_in_the_same_turn() {
        let (lane, inbox) = Lane::open(ITEMS, &Metrics::default());
        let (mut sum, turns) = (0, Arc::new(AtomicUsize::new(0)));
        let first = async move {
            for item in 1..=10 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                lane.try_push(item).expect("room");
            }
        };
        let both = Box::pin(run(first, async { sum = add_up(inbox).await }));
        Turns(both, Arc::clone(&turns)).await;
        assert_eq!((sum, turns.load(Ordering::Relaxed)), (55, 11));
    }

    /// Items from another thread, while the first half is busy, idle and gone.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a thread that rings is what is tested")]
    fn nobody_who_rings_is_missed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for round in 0..200_u32 {
            let (lane, inbox) = Lane::open(ITEMS, &Metrics::default());
            let ring = move || {
                for item in 0..50 {
                    lane.try_push(item).expect("room");
                    for _ in 0..(item * round) % 97 {
                        std::hint::spin_loop();
                    }
                }
            };
            let mut sum = 0;
            let busy = async {
                for _ in 0..round % 40 {
                    tokio::task::yield_now().await;
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(ring);
                runtime.block_on(run(busy, async { sum = add_up(inbox).await }));
            });
            assert_eq!(sum, 1225);
        }
    }

    /// What a turn may take of the runtime is for both. A first half that uses it up in every turn left nothing for the
    /// second, which could neither write nor see that its time was over.
    #[tokio::test]
    async fn neither_half_starves_beside_one_that_is_always_busy() {
        for busy_is_first in [true, false] {
            let (is_done, mut steps) = (AtomicBool::new(false), 0);
            let busy = async {
                while !is_done.load(Ordering::Relaxed) && steps < 100_000 {
                    tokio::task::consume_budget().await;
                    steps += 1;
                }
            };
            let other = async {
                for _ in 0..1000 {
                    tokio::task::consume_budget().await;
                }
                is_done.store(true, Ordering::Relaxed);
            };
            if busy_is_first {
                run(busy, other).await;
            } else {
                run(other, busy).await;
            }
            assert!(steps < 10_000, "{steps} steps of the one that is busy");
        }
    }
}
