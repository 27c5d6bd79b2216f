//! What a host hears and sees of keeping.

use std::{collections::BTreeMap, time::Duration};

use ron_core::{ContentId, NodeId, net::Contact};

use super::{Class, Health, Presence};

/// Something that happened, for whoever is interested.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepingEvent {
    /// An object cannot be restored from anything that is known.
    Lost(ContentId),
    /// One that was lost can be read again.
    Found(ContentId),
    /// A repair was done, read back and found good.
    Repaired {
        /// The object.
        object: ContentId,
        /// How much it mattered.
        class: Class,
        /// Bytes that it moved.
        bytes: u64,
    },
    /// A node did not do what it said: its copy is not what it should be.
    Blamed {
        /// The node.
        node: NodeId,
        /// The piece.
        piece: ContentId,
    },
    /// A node stopped answering, or answers again.
    Presence {
        /// The node.
        node: NodeId,
        /// Whether it answers.
        is_up: bool,
    },
}

/// A node that keeps objects, in the eyes of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Who and where.
    pub contact: Contact,
    /// What fails together with it.
    pub zone: u64,
    /// How much it takes.
    pub weight: u32,
    /// Whether it is there; nothing before it was looked at.
    pub presence: Option<Presence>,
    /// Whether what it keeps survives its restart.
    pub is_durable: bool,
    /// How long ago it last answered.
    pub seen: Option<Duration>,
    /// Objects and shards that it is known to have.
    pub pieces: usize,
}

/// How everything is doing, in the eyes of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KeepingStatus {
    /// Objects by how they are doing.
    pub objects: BTreeMap<Health, usize>,
    /// Objects about which something was heard that these numbers do not know yet: how those are doing was not looked at.
    pub unweighed: usize,
    /// Nodes that answer, this one among them.
    pub up: usize,
    /// Nodes that do not.
    pub away: usize,
    /// Whether every other node was looked at since the start, or since it joined.
    pub has_looked: bool,
    /// Repairs that wait or are under way.
    pub repairs: usize,
    /// Claims that are known.
    pub claims: usize,
    /// Wanted objects and shards that are here and belong elsewhere.
    pub misplaced: usize,
    /// Those that others lack while this node is about to go. At zero it may be stopped, though it may have promised somebody to keep
    /// a copy for some minutes more.
    pub needed: usize,
    /// Nodes that answer and have not heard yet that this one goes, once nothing is needed: they would wait for it to come back.
    pub untold: usize,
    /// The fewest copies of an object that wants copies; nothing if none does.
    pub fewest_copies: Option<usize>,
    /// Bytes that repairs may move per second now.
    pub bytes_per_second: u64,
    /// Whether this node was told to go.
    pub is_draining: bool,
    /// Everybody, this node too.
    pub nodes: Vec<NodeStatus>,
}
