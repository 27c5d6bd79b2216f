//! Why a call came back without what was asked.

use std::time::Duration;

use ron_core::{ConfigError, ErrorKind, net::NetError};

use crate::logic::signed::RecordError;

/// Why the DHT did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DhtError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The queue or limit.
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
    /// The node is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// Nobody to ask: no other node is known yet (`dht.seeds`), all that are known are silent (`dht.peers`), or the node
    /// is stopping (`dht tasks`). The first node of a network, without seeds, says so until another comes, though it counts
    /// as ready: it has nobody to wait for. [`Dht::joined`](crate::Dht::joined) waits.
    #[error("not ready, {} ({gate})", match *.gate {
        "dht.seeds" => "no peer is known",
        "dht.peers" => "no peer that is known answers",
        _ => "stopping",
    })]
    NotReady {
        /// Which gate of readiness it is about.
        gate: &'static str,
    },
    /// No peer kept the record. Ask again later.
    #[error("{}", match .asked {
        0 => "no peer near the key answered, so none kept it".to_owned(),
        asked => format!("none of {asked} peers kept it"),
    })]
    NotKept {
        /// How many were asked.
        asked: usize,
    },
    /// Another value is held than was expected. Read it, and write on top of it.
    #[error("sequence {held} is held already, which is not what the write expects to replace")]
    Conflict {
        /// The sequence number that peers hold.
        held: u64,
    },
    /// Too few peers answered to say whether a swap won: more than half must keep it. Some keep it, so read, and write on
    /// top of what is there.
    #[error("{kept} of {asked} peers kept it, which is not more than half")]
    Undecided {
        /// How many keep it.
        kept: usize,
        /// How many were asked.
        asked: usize,
    },
    /// There is no such value, as far as the peers that were asked know.
    #[error("not found")]
    NotFound,
    /// The value, or what was said about it, does not make a record.
    #[error("not a valid record: {0}")]
    Record(RecordError),
    /// The settings do not fit.
    #[error("settings: {0}")]
    Config(ConfigError),
    /// The endpoint does not carry the protocol.
    #[error("endpoint: {}", match .0 {
        NetError::BadProtocol { .. } => "it has a DHT already; one node is one endpoint".to_owned(),
        error => error.to_string(),
    })]
    Net(NetError),
    /// The records or the schedule could not be read or written.
    #[error("store: {message}")]
    Store {
        /// What the disk said.
        message: String,
    },
}

// By hand, since an error's text has all of it: a cause that says it once more would be read twice.
impl From<RecordError> for DhtError {
    fn from(error: RecordError) -> Self {
        DhtError::Record(error)
    }
}

impl From<ConfigError> for DhtError {
    fn from(error: ConfigError) -> Self {
        DhtError::Config(error)
    }
}

impl From<NetError> for DhtError {
    fn from(error: NetError) -> Self {
        DhtError::Net(error)
    }
}

ron_core::refusals!(DhtError {
    DhtError::NotReady { .. } => ErrorKind::NotReady,
    DhtError::NotKept { .. } | DhtError::Undecided { .. } | DhtError::NotFound => ErrorKind::Peer,
    DhtError::Conflict { .. } | DhtError::Record(_) | DhtError::Config(_) => ErrorKind::Caller,
    DhtError::Net(error) => error.kind(),
    DhtError::Store { .. } => ErrorKind::Disk,
});
