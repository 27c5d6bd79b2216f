//! Why there is no link.

use std::{io, net::SocketAddr, time::Duration};

use crate::{ConfigError, ErrorKind, NodeId};

/// Why a dial, a listener or a registration came back without what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// A limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The limit.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The endpoint is stopping.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Somebody else answers at this address: the address is stale, or an impostor has it. No byte was exchanged.
    #[error("expected node {expected}, found {found}")]
    WrongIdentity {
        /// Who was asked for.
        expected: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// The peer showed no ed25519 key, or did not prove that it holds it.
    #[error("the peer did not prove an identity")]
    NoIdentity,
    /// The peer does not serve this protocol.
    #[error("the peer does not speak {alpn}")]
    ProtocolRefused {
        /// The protocol asked for, or `any` when a peer asked us for none that we have.
        alpn: &'static str,
    },
    /// The two ends allow no key exchange in common: one of them insists on post-quantum and the other has none.
    #[error("no key exchange that both ends allow")]
    BelowPolicy,
    /// The peer speaks an older TLS.
    #[error("the peer does not speak TLS 1.3")]
    NotTls13,
    /// The handshake failed in another way, or the peer closed: it may be full.
    #[error("handshake: {message}")]
    Handshake {
        /// What the TLS library or the socket said.
        message: String,
    },
    /// Nobody answers at this address.
    #[error("{addr}: {message}")]
    Unreachable {
        /// The address.
        addr: SocketAddr,
        /// The kind of the underlying error.
        kind: io::ErrorKind,
        /// The text of the underlying error.
        message: String,
    },
    /// No address was given to dial.
    #[error("no address to dial")]
    NoAddress,
    /// An address cannot be listened on.
    #[error("listen on {addr}: {message}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The kind of the underlying error.
        kind: io::ErrorKind,
        /// The text of the underlying error.
        message: String,
    },
    /// The protocol already has a handler on this endpoint, or its name is not 1 to 255 bytes long.
    #[error("{alpn:?} cannot be registered: it is already, or it is not 1 to 255 bytes long")]
    BadProtocol {
        /// The protocol.
        alpn: &'static str,
    },
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
}

// By hand, since the text has all of it: a cause that says it once more would be read twice.
impl From<ConfigError> for NetError {
    fn from(error: ConfigError) -> Self {
        NetError::Config(error)
    }
}

crate::refusals!(NetError {
    NetError::WrongIdentity { .. }
    | NetError::NoIdentity
    | NetError::ProtocolRefused { .. }
    | NetError::BelowPolicy
    | NetError::NotTls13
    | NetError::Handshake { .. }
    | NetError::Unreachable { .. } => ErrorKind::Peer,
    NetError::NoAddress | NetError::Listen { .. } | NetError::BadProtocol { .. } | NetError::Config(_) => {
        ErrorKind::Caller
    },
});

impl NetError {
    /// What a socket said when `addr` was dialled.
    pub(crate) fn unreachable(addr: SocketAddr, error: &io::Error) -> Self {
        NetError::Unreachable { addr, kind: error.kind(), message: error.to_string() }
    }

    /// What a socket said when it was to listen on `addr`.
    pub(crate) fn listen(addr: SocketAddr, error: &io::Error) -> Self {
        NetError::Listen { addr, kind: error.kind(), message: error.to_string() }
    }

    /// The reason in one word, for counters: one of fourteen.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            NetError::Busy { .. } => "busy",
            NetError::Timeout { .. } => "timeout",
            NetError::Canceled => "canceled",
            NetError::Panicked { .. } => "panicked",
            NetError::WrongIdentity { .. } => "wrong_identity",
            NetError::NoIdentity => "no_identity",
            NetError::ProtocolRefused { .. } => "protocol_refused",
            NetError::BelowPolicy => "below_policy",
            NetError::NotTls13 => "not_tls13",
            NetError::Handshake { .. } => "handshake",
            NetError::Unreachable { .. } => "unreachable",
            NetError::NoAddress => "no_address",
            NetError::Listen { .. } => "listen",
            NetError::BadProtocol { .. } | NetError::Config(_) => "config",
        }
    }

    /// How much this says about the peer. Of the errors of several addresses, the caller gets the one that says most.
    pub(super) const fn telling(&self) -> u8 {
        match self {
            NetError::WrongIdentity { .. } | NetError::NoIdentity => 5,
            NetError::ProtocolRefused { .. } | NetError::BelowPolicy | NetError::NotTls13 => 4,
            NetError::Handshake { .. } => 3,
            NetError::Timeout { .. } => 2,
            _ => 1,
        }
    }
}
