//! Why a call came back without what was asked.

use std::time::Duration;

use ron_core::{
    ConfigError, ErrorKind, NodeId,
    net::{NetError, oap::Code, rpc::RpcError},
};

/// Why the overlay did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The queue or limit; `egress` when a link of the tree has no room for the message.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed. The work may or may not have happened.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was asked.
        op: &'static str,
    },
    /// The overlay is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// There was no room on a link until the deadline. Nothing was published: publish less, or on a topic that sheds.
    #[error("{what} stayed full until the deadline")]
    Backpressure {
        /// What stayed full.
        what: &'static str,
    },
    /// Larger than a limit. Send less at once.
    #[error("{what} of {bytes} bytes, more than {max}")]
    FrameTooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// This subscriber was too slow, and so many messages did not wait for it. The subscription goes on: call `next` again.
    /// Read faster, or subscribe with more room.
    #[error("{missed} messages missed by a slow subscriber")]
    Lagging {
        /// How many.
        missed: u64,
    },
    /// So many messages of a publisher did not reach this node, and repair has given them up. The subscription goes on: call
    /// `next` again.
    #[error("{count} messages of {publisher:?} were lost on the way")]
    Lost {
        /// Whose.
        publisher: NodeId,
        /// How many.
        count: u64,
    },
    /// This node is not on the topic: it left, or has not joined. Join first.
    #[error("not on the topic")]
    NotJoined,
    /// The topic is joined already, with other options. Use the handle there is, or leave first.
    #[error("joined already with other options")]
    Joined,
    /// Nobody on the topic was found by the deadline. Name other contacts, or wait.
    #[error("no neighbour on the topic")]
    NoNeighbour,
    /// There is no session with the peer, and none can be had.
    #[error("no session with the peer")]
    Unreachable {
        /// What the last dial met.
        #[source]
        error: NetError,
        /// How long no other dial will be tried.
        retry_after: Duration,
    },
    /// The session ended before the answer. The request may or may not have been carried out.
    #[error("the session ended before the answer")]
    Closed,
    /// The peer said no, and why.
    #[error("the peer refused: {} {reason}", code.number())]
    Refused {
        /// What kind of no.
        code: Code,
        /// In the peer's words.
        reason: String,
    },
    /// The peer's end of the session does not keep the rules.
    #[error("the peer speaks otherwise: {message}")]
    Protocol {
        /// What it did.
        message: String,
    },
    /// Another handler has this number.
    #[error("protocol {proto} has a handler")]
    Handled {
        /// The number.
        proto: u16,
    },
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
    /// The endpoint does not carry the protocol.
    #[error("endpoint")]
    Net(#[from] NetError),
}

impl From<ConfigError> for OverlayError {
    fn from(error: ConfigError) -> Self {
        OverlayError::Config(error)
    }
}

ron_core::refusals!(OverlayError {
    OverlayError::Backpressure { .. } => ErrorKind::Busy,
    OverlayError::NotJoined | OverlayError::Joined | OverlayError::Handled { .. } => ErrorKind::Caller,
    OverlayError::FrameTooLarge { .. } | OverlayError::Config(_) => ErrorKind::Caller,
    OverlayError::NoNeighbour => ErrorKind::NotReady,
    // Both are told by a subscription that goes on, so the next call may well succeed.
    OverlayError::Lagging { .. } | OverlayError::Lost { .. } => ErrorKind::Peer,
    OverlayError::Closed | OverlayError::Unreachable { .. } => ErrorKind::Peer,
    OverlayError::Protocol { .. } => ErrorKind::Peer,
    OverlayError::Refused { code: Code::Failed | Code::Unavailable, .. } => ErrorKind::Peer,
    OverlayError::Refused { .. } => ErrorKind::Caller,
    OverlayError::Net(error) => error.kind(),
} retry { OverlayError::Unreachable { retry_after, .. } => *retry_after });

impl From<RpcError> for OverlayError {
    fn from(error: RpcError) -> Self {
        match error {
            RpcError::Busy { what, retry_after } => OverlayError::Busy { what, retry_after },
            RpcError::Timeout { op } => OverlayError::Timeout { op },
            RpcError::Canceled => OverlayError::Canceled,
            RpcError::Panicked { op } => OverlayError::Panicked { op },
            RpcError::Closed => OverlayError::Closed,
            RpcError::Refused { code, reason } => OverlayError::Refused { code, reason },
            RpcError::Unreachable { error, retry_after } => OverlayError::Unreachable { error, retry_after },
            RpcError::TooLarge { what, bytes, max } => OverlayError::FrameTooLarge { what, bytes, max },
            other => OverlayError::Protocol { message: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that goes on after what may be tried again ended when its subscriber had been slow, and went on when messages
    /// were lost on the way.
    #[test]
    fn what_a_subscription_goes_on_after_may_be_tried_again() {
        let publisher = NodeId::from_bytes([1; 32]);
        for told in [OverlayError::Lagging { missed: 1 }, OverlayError::Lost { publisher, count: 1 }] {
            assert!(told.is_retryable(), "{told}");
        }
    }

    #[test]
    fn who_knows_when_to_ask_again_says_so() {
        let (error, retry_after) = (NetError::Canceled, Duration::from_secs(2));
        let unreachable = OverlayError::from(RpcError::Unreachable { error, retry_after });
        assert_eq!((unreachable.retry_after(), unreachable.kind()), (Some(retry_after), ErrorKind::Peer));
        assert_eq!(OverlayError::Busy { what: "egress", retry_after }.retry_after(), Some(retry_after));
        assert_eq!(OverlayError::Closed.retry_after(), None);
    }
}
