//! A timer that a stream keeps, in place of one for each read or write.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use tokio::time::{Sleep, sleep_until};

use crate::Deadline;

/// Tells when the deadline of what is waited for has passed.
///
/// To set a timer costs more than to read a small frame, and most deadlines only ever move away. So it is left alone
/// when they do: it then goes off early, looks at the deadline, and is set again.
#[derive(Default)]
pub(in crate::net) struct Alarm {
    /// None before the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Runs `work` until it is done, or gives `None` at the deadline. What is done at once asks for no deadline, and so
    /// reads no clock.
    pub(in crate::net) async fn limit<T>(
        &mut self,
        mut until: impl FnMut() -> Deadline,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut work, mut due) = (pin!(work), None);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_passed(*due.get_or_insert_with(&mut until), cx).map(|()| None),
        })
        .await
    }

    fn poll_passed(&mut self, until: Deadline, cx: &mut Context<'_>) -> Poll<()> {
        let until = until.instant();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if until < sleep.deadline() {
            sleep.as_mut().reset(until);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if until <= sleep.deadline() {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(until);
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alarm")
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;
    use crate::now;

    /// Deadlines that move away, come closer, and have passed: each is kept to the millisecond.
    #[tokio::test(start_paused = true)]
    async fn every_deadline_is_kept_exactly() {
        let mut alarm = Alarm::default();
        for seconds in [5, 60, 1, 1, 0, 7] {
            let (began, wait) = (now(), Duration::from_secs(seconds));
            assert_eq!(alarm.limit(|| Deadline::after(wait), pending::<()>()).await, None);
            assert_eq!(now() - began, wait);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_given_up_does_not_disturb_the_next() {
        let mut alarm = Alarm::default();
        for _ in 0..10 {
            let until = || Deadline::after(Duration::from_secs(5));
            let work = tokio::time::sleep(Duration::from_secs(4));
            assert_eq!(alarm.limit(until, work).await, Some(()));
        }
    }
}
