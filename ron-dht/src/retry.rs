//! Asking a peer again that was too busy.
//!
//! Only questions are asked again, since a question may be asked twice. To the search such a peer is slow and no more:
//! past its hedge delay another one has its place, and what it says in the end still counts. Pauses, tries and the
//! budget that keeps retries from feeding an overload are ron-core's.

use std::sync::Arc;

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

    /// The same question once more, after a pause, to a peer that was too busy for it; `None` for what must not be
    /// asked twice.
    pub(crate) fn ask_again(
        &self,
        network: &Arc<dyn Network>,
        to: &Contact,
        request: &Arc<Request>,
        deadline: Deadline,
    ) -> Option<BoxFuture<'static, Result<Reply, Failure>>> {
        let retry = match **request {
            Request::FindNode { .. } => &self.find_node,
            Request::FindValue { .. } => &self.find_value,
            _ => return None,
        };
        let retry = Arc::clone(retry);
        let (network, to, request) = (Arc::clone(network), to.clone(), Arc::clone(request));
        Some(Box::pin(async move {
            // The first try has been made: here it only fails once more, so that the pause comes before the second.
            let mut is_first = true;
            let again = retry.run(deadline, || {
                let next = (!is_first).then(|| network.ask(&to, Arc::clone(&request), deadline));
                is_first = false;
                async move {
                    match next {
                        None => Err(Unanswered(Failure::Busy)),
                        Some(next) => next.await.map_err(Unanswered),
                    }
                }
            });
            again.await.map_err(|Unanswered(failure)| failure)
        }))
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
            Failure::Busy => ErrorKind::Busy,
            // Whatever else is wrong with it is still wrong in a tenth of a second.
            Failure::Timeout | Failure::Unreachable | Failure::Invalid => ErrorKind::Canceled,
        }
    }
}
