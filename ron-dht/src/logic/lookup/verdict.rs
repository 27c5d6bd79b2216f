//! What a search came to: every question it asked, what became of each, and why it is over.

use std::time::Duration;

use ron_core::NodeId;

use super::super::{
    Contact,
    table::{K, bucket_index},
};

/// Why a question brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer within the peer's timeout.
    Timeout,
    /// No connection, or one to somebody else.
    Unreachable,
    /// It is there and too busy to say anything.
    Busy {
        /// How long it would like to be left alone.
        retry_after: Duration,
    },
    /// It was not asked: this node was too busy for it, or is stopping. Says nothing about the peer.
    Local,
    /// It answered with something that is not an answer.
    Invalid,
}

impl Failure {
    /// In one word, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Unreachable => "unreachable",
            Failure::Busy { .. } => "busy",
            Failure::Local => "local",
            Failure::Invalid => "invalid",
        }
    }

    /// Whether it is held against the peer. Who says that it is busy is there, and who was not asked may be.
    pub(crate) fn is_the_peers(self) -> bool {
        !matches!(self, Failure::Busy { .. } | Failure::Local)
    }
}

/// What came of one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It answered.
    Answered {
        /// Peers it named, as far as they were heard.
        named: usize,
        /// Finds it brought that were new.
        found: usize,
    },
    /// It failed.
    Failed(Failure),
    /// It was set aside and had not answered by the end. Perhaps dead, perhaps only slow: worth a ping.
    Silent,
    /// The end came before its time was up. Says nothing about it.
    Canceled,
}

/// One question of a search, for whoever wants to know why it ended as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Whom.
    pub peer: NodeId,
    /// How many hops away it was: one for a peer of our own table.
    pub hop: u8,
    /// When, since the search began.
    pub at: Duration,
    /// How long until it answered or failed.
    pub took: Option<Duration>,
    /// Whether it was asked because others were silent.
    pub hedge: bool,
    /// What came of it.
    pub outcome: Outcome,
}

/// Why a search is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The k nearest live peers have answered: everybody who could be found was asked. If nobody was alive, then nobody
    /// answered, and [`Verdict::closest`] is empty.
    Complete,
    /// As much was found as was asked for.
    Enough,
    /// Nearer peers are known, but only beyond the hop budget.
    Hops,
    /// Nearer peers are known, but the requests are spent.
    Requests,
    /// Time is up.
    Deadline,
    /// Somebody called it off.
    Canceled,
}

impl Reason {
    /// In one word, for counters and for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Complete => "complete",
            Reason::Enough => "enough",
            Reason::Hops => "hops",
            Reason::Requests => "requests",
            Reason::Deadline => "deadline",
            Reason::Canceled => "canceled",
        }
    }
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Why it ended.
    pub reason: Reason,
    /// The nearest peers that answered, nearest first: at most k for each path.
    pub closest: Vec<Contact>,
    /// How much was found.
    pub found: usize,
    /// How far away from our own table the farthest answer came from.
    pub hops: u8,
    /// Questions asked.
    pub rpcs: usize,
    /// How many of them because others were silent.
    pub hedges: usize,
    /// Questions still out. Nobody waits for them any more: cancel them.
    pub(crate) losers: Vec<NodeId>,
    /// Every question, in the order asked.
    pub trace: Vec<Asked>,
}

impl Verdict {
    /// So much was there before anybody was asked, and it was enough.
    pub(crate) fn at_home(found: usize) -> Self {
        Verdict {
            reason: Reason::Enough,
            closest: Vec::new(),
            found,
            hops: 0,
            rpcs: 0,
            hedges: 0,
            losers: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// Whether there is no more to be found, or no time for it. Liars can spend a search's requests, and are no reason
    /// to give up where they are not.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.reason, Reason::Enough | Reason::Deadline | Reason::Canceled)
    }

    /// Whether those who answered tell how many there are: k of them, or all who were asked. Fewer, with others silent,
    /// would make a lossy link look like a small network.
    #[must_use]
    pub(crate) fn is_sound(&self) -> bool {
        let has_answered = |asked: &Asked| matches!(asked.outcome, Outcome::Answered { .. });
        self.closest.len() >= K || self.trace.iter().all(has_answered)
    }

    /// Whether a search of node `own` for a key of its bucket `bucket` shows that nobody alive is in there: whoever is in
    /// there is nearer to such a key than everybody else, and the nearest have answered. Silence shows nothing.
    #[must_use]
    pub(crate) fn shows_vacant(&self, own: &NodeId, bucket: usize) -> bool {
        let is_elsewhere = |nearest: &Contact| bucket_index(own, &nearest.id) != Some(bucket);
        self.reason == Reason::Complete && self.closest.first().is_some_and(is_elsewhere)
    }
}
