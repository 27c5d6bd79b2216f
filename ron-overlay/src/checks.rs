//! Signatures and validators: what takes time before a message is believed, away from the engines.
//!
//! A message comes here once, after all that is cheap, and copies of it wait for the verdict. The lane is bounded; a
//! message that finds no room is let go, and may come again.

use std::{fmt, sync::Arc};

use ron_core::{CallError, Counter, Deadline, Inbox, LaneSpec, Restart, Stop, TaskSpec, net::BoxFuture};

use crate::{
    engine::Command,
    logic::{
        gossip::Verdict as Ruling,
        message::{Keys, Message, TopicId},
    },
    metrics::FRAME_REJECT,
    node::Node,
};

pub(crate) const CHECKS: LaneSpec = LaneSpec::new("ron-overlay", "checks", 512)
    .flow("engines → checkers")
    .why("25 ms of signatures on one core; a message that waits longer is better fetched later");

pub(crate) const CHECKER: TaskSpec = TaskSpec::new("ron-overlay", "checker")
    .restart(Restart::PROMPT)
    .what("checks the signature of one message at a time and asks the topic's validator");

/// Messages that are checked before other tasks have their turn.
const CHECKS_AT_ONCE: u32 = 4;

/// What a host thinks of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is delivered here and relayed.
    Accept,
    /// It is neither delivered nor relayed, and whoever sent it is blamed.
    Reject,
    /// It is neither delivered nor relayed, and nobody is blamed.
    Ignore,
}

/// Judges messages of a topic before they are delivered and relayed. A plain function is one, and so is a closure that says
/// what it takes (`|message: &Message| ..`):
///
/// ```
/// # use ron_overlay::{Message, Validator, Verdict};
/// fn short(message: &Message) -> Verdict {
///     if message.payload().len() <= 1000 { Verdict::Accept } else { Verdict::Reject }
/// }
/// # fn is_one(_: impl Validator) {}
/// # is_one(short);
/// ```
pub trait Validator: Send + Sync + 'static {
    /// Judges a message whose signature holds. What takes longer than
    /// [`check_timeout`](crate::Settings::check_timeout) is dropped, and so is the message.
    fn check(&self, message: Message) -> BoxFuture<'_, Verdict>;
}

impl<F: Fn(&Message) -> Verdict + Send + Sync + 'static> Validator for F {
    fn check(&self, message: Message) -> BoxFuture<'_, Verdict> {
        Box::pin(std::future::ready(self(&message)))
    }
}

/// A message to be checked.
pub(crate) struct Job {
    pub(crate) topic: TopicId,
    pub(crate) message: Message,
    pub(crate) is_signed: bool,
    pub(crate) validator: Option<Arc<dyn Validator>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({:?})", self.message)
    }
}

/// Checks messages until there are no more. After a stop those that wait are let go: the topics are being left, and what is
/// neither delivered nor relayed need not be proven.
pub(crate) async fn check_all(node: Arc<Node>, inbox: Inbox<Job>, stop: Stop) {
    let (mut in_a_row, mut keys) = (0, Keys::default());
    while let Some(job) = inbox.recv().await {
        let (topic, id) = (job.topic, job.message.id());
        let ruling = tokio::select! {
            biased;
            () = stop.requested() => {
                node.let_go("stop", 1);
                continue;
            }
            ruling = judge(&node, job, &mut keys) => ruling,
        };
        let deadline = Deadline::after(node.settings().drain_deadline);
        let command = Command::Verdict { topic, id, ruling };
        if node.engine_of(&topic).tell_by(command, deadline).await.is_err() {
            // The engine has ended, and with it the topic.
            node.let_go("stop", 1);
            continue;
        }
        in_a_row += 1;
        if in_a_row >= CHECKS_AT_ONCE {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

async fn judge(node: &Node, job: Job, keys: &mut Keys) -> Ruling {
    let Job { message, is_signed, validator, .. } = job;
    if is_signed && !message.is_proven_with(keys) {
        node.metrics.tally(FRAME_REJECT, "signature").add(1);
        return Ruling::Forged;
    }
    let Some(validator) = validator else { return Ruling::Accept };
    let deadline = Deadline::after(node.settings().check_timeout);
    let judged = node.spawner.catching(CHECKER, "validate", async { validator.check(message).await });
    match deadline.limit("validate", judged).await.and_then(|judged| judged) {
        Ok(Verdict::Accept) => Ruling::Accept,
        Ok(Verdict::Reject) => {
            node.metrics.tally(FRAME_REJECT, "validator").add(1);
            // Where nobody signs, anybody may have claimed that number.
            Ruling::Reject { is_proven: is_signed }
        }
        Ok(Verdict::Ignore) => Ruling::Ignore,
        Err(error) => {
            if matches!(error, CallError::Timeout { .. }) {
                node.metrics.tally(Counter::IoTimeouts, "validate").add(1);
            }
            Ruling::Shed
        }
    }
}
