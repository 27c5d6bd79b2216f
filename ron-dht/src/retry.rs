//! Asking a peer again that was too busy, or that we were too busy to ask.
//!
//! Only questions are asked again, since a question may be asked twice. To the search such a peer is slow and no more:
//! past its hedge delay another one has its place, and what it says in the end still counts. Pauses, tries and the
//! budget that keeps retries from feeding an overload are ron-core's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{CallError, Deadline, ErrorKind, Metrics, Refusal, Retry, RetryBudget, net::BoxFuture};

use crate::{
    logic::{Contact, lookup::Failure, wire::Request},
    network::{Network, Reply},
};

/// How often, and after which pauses, the busy are asked again.
#[derive(Clone)]
pub(crate) struct Patience {
    find_node: Arc<Retry>,
    find_value: Arc<Retry>,
}

impl Patience {
    pub(crate) fn new(seed: u64, metrics: &Metrics) -> Self {
        let budget = RetryBudget::default();
        let retry = |op, seed| {
            let retry = Retry::idempotent(op, &budget, metrics);
            Arc::new(retry.with_rng(fastrand::Rng::with_seed(seed)))
        };
        Patience { find_node: retry("find_node", seed), find_value: retry("find_value", !seed) }
    }

    /// The same question once more, after a pause, to a peer that was too busy for it and said for how long; `None` for
    /// what must not be asked twice.
    pub(crate) fn ask_again(
        &self,
        network: &Arc<dyn Network>,
        to: &Contact,
        request: &Arc<Request>,
        deadline: Deadline,
        (why, spent): (Failure, &Arc<Spent>),
    ) -> Option<BoxFuture<'static, Result<Reply, Failure>>> {
        let retry = match **request {
            Request::FindNode { .. } => &self.find_node,
            Request::FindValue { .. } => &self.find_value,
            _ => return None,
        };
        let retry = Arc::clone(retry);
        let (network, to, request) = (Arc::clone(network), to.clone(), Arc::clone(request));
        let spent = Arc::clone(spent);
        Some(Box::pin(async move {
            // The first try has been made: here it only fails once more, so that the pause comes before the second.
            let mut is_first = true;
            let again = retry.run(deadline, || {
                // What the search has no request left for is not asked, and ends like this.
                let ask = || spent.ask_again().then(|| network.ask(&to, Arc::clone(&request), deadline));
                let next = if is_first { Err(why) } else { ask().ok_or(Failure::Local) };
                is_first = false;
                async move {
                    match next {
                        Err(failure) => Err(Unanswered(failure)),
                        Ok(next) => next.await.map_err(Unanswered),
                    }
                }
            });
            again.await.map_err(|Unanswered(failure)| failure)
        }))
    }
}

/// The requests of one search, first ones and repeated ones.
pub(crate) struct Spent {
    max: usize,
    all: AtomicUsize,
    again: AtomicUsize,
}

impl Spent {
    pub(crate) fn new(max: u16) -> Arc<Self> {
        Arc::new(Spent { max: max.into(), all: AtomicUsize::new(0), again: AtomicUsize::new(0) })
    }

    /// Counts a question that is asked for the first time. Whether it may be is the search's to know.
    pub(crate) fn ask(&self) {
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a question that is asked once more, if there is a request left for it.
    fn ask_again(&self) -> bool {
        let next = |all: usize| (all < self.max).then_some(all + 1);
        let is_left = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        self.again.fetch_add(usize::from(is_left), Ordering::Relaxed);
        is_left
    }

    /// How many were asked once more.
    pub(crate) fn again(&self) -> usize {
        self.again.load(Ordering::Relaxed)
    }
}

/// A failure in the words of a retry: worth another try only if the peer was busy.
#[derive(Debug, thiserror::Error)]
#[error("no answer: {0:?}")]
struct Unanswered(Failure);

impl From<CallError> for Unanswered {
    fn from(_: CallError) -> Self {
        Unanswered(Failure::Timeout)
    }
}

impl Refusal for Unanswered {
    fn kind(&self) -> ErrorKind {
        match self.0 {
            Failure::Busy { .. } | Failure::Local => ErrorKind::Busy,
            // Whatever else is wrong with it is still wrong in a tenth of a second.
            Failure::Timeout | Failure::Unreachable | Failure::Invalid => ErrorKind::Canceled,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self.0 {
            Failure::Busy { retry_after } => Some(retry_after),
            _ => None,
        }
    }
}
