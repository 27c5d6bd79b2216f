//! Why a call has no answer, on both ends of it.

use std::{borrow::Cow, time::Duration};

use super::super::{
    NetError,
    oap::{Code, HelloError, WireError},
};
use crate::{CallError, ErrorKind};

/// Why a call came back without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// Something was full here or at the peer, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The limit; `peer` when it was the peer that refused.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed, here or at the peer.
    #[error("{op} passed its deadline")]
    Timeout {
        /// The method, or the step before it.
        op: &'static str,
    },
    /// This end is stopping.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// The session ended before the answer. The request may or may not have been carried out.
    #[error("the session ended before the answer")]
    Closed,
    /// The peer said no, and why.
    #[error("the peer refused: {} {reason}", code.number())]
    Refused {
        /// What kind of no.
        code: Code,
        /// In the peer's words, at most 256 bytes.
        reason: String,
    },
    /// There is no session, and no link for one.
    #[error("no link to the peer")]
    Unreachable {
        /// What the last dial met.
        #[source]
        error: NetError,
        /// How long no other dial will be tried.
        retry_after: Duration,
    },
    /// The peer's HELLO was not one.
    #[error("the peer's HELLO was refused")]
    Hello(#[from] HelloError),
    /// The link failed before the session began.
    #[error("the link failed before the session began")]
    Link(#[from] WireError),
    /// Larger than a limit, ours or the peer's.
    #[error("{what} of {bytes} bytes, more than {max}")]
    TooLarge {
        /// `request`, `event`, `capability`, `chunk` or `answer`.
        what: &'static str,
        /// How large it is, as far as is known.
        bytes: u64,
        /// The limit.
        max: u64,
    },
}

crate::refusals!(RpcError {
    RpcError::Closed | RpcError::Unreachable { .. } | RpcError::Hello(_) | RpcError::Link(_) => ErrorKind::Peer,
    RpcError::TooLarge { .. } => ErrorKind::Caller,
    RpcError::Refused { code, .. } => match code {
        Code::Failed | Code::Unavailable => ErrorKind::Peer,
        _ => ErrorKind::Caller,
    },
} retry { RpcError::Unreachable { retry_after, .. } => *retry_after });

/// Why a callee does not answer as asked. It travels to the caller, who gets it as an [`RpcError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind of no.
    pub code: Code,
    /// In words, for a log; cut to 256 bytes on the wire.
    pub reason: Cow<'static, str>,
    /// When asking again may help.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A no of this kind, for this reason.
    #[must_use]
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Self {
        Fault { code, reason: reason.into(), retry_after: None }
    }

    /// The request does not make sense.
    #[must_use]
    pub fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Fault::new(Code::BadRequest, reason)
    }

    /// What came with the request does not allow it, as far as the service knows: see [`Call`](super::Call).
    #[must_use]
    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Fault::new(Code::Forbidden, reason)
    }

    /// The protocol has no such method.
    #[must_use]
    pub fn no_such_method() -> Self {
        Fault::new(Code::NotFound, "no such method")
    }

    /// Refused before it began; ask again after `retry_after`.
    #[must_use]
    pub fn busy(what: &'static str, retry_after: Duration) -> Self {
        Fault { retry_after: Some(retry_after), ..Fault::new(Code::Busy, what) }
    }

    /// What the caller of `method` gets.
    pub(super) fn into_error(self, method: &'static str) -> RpcError {
        match self.code {
            Code::Busy => RpcError::Busy { what: "peer", retry_after: self.retry_after.unwrap_or_default() },
            Code::Timeout => RpcError::Timeout { op: method },
            code => RpcError::Refused { code, reason: self.reason.into_owned() },
        }
    }
}

impl From<CallError> for Fault {
    /// What a handler met in its own queues, as its caller should see it.
    fn from(error: CallError) -> Self {
        match error {
            CallError::Busy { what, retry_after } => Fault::busy(what, retry_after),
            CallError::Timeout { op } => Fault::new(Code::Timeout, op),
            CallError::Panicked { op } => Fault::new(Code::Failed, op),
            CallError::Canceled => Fault::new(Code::Unavailable, "stopping"),
        }
    }
}
