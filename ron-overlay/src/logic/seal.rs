//! What makes a root one: its key signs every round of its tree.
//!
//! Beacons travel from neighbour to neighbour, and only the distance in them is the neighbour's own word. Without a proof
//! anybody could count rounds for a root that is somebody else, end its tree, or make up roots that do not exist.

use ron_core::{
    NodeId,
    net::{Identity, PublicKey, Signature},
};

use super::message::TopicId;

/// What the signature is for: bytes signed for anything else never verify here.
const DOMAIN: &str = "ron/oap/1 beacon";

/// A root's word for one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The key whose hash is the root's name.
    pub key: PublicKey,
    /// Over the topic, the round, and whether the tree ends with it.
    pub signature: Signature,
}

impl Proof {
    /// No proof: enough where [`Seal::Open`] is used, and nowhere else.
    pub const NONE: Proof =
        Proof { key: PublicKey::from_bytes([0; 32]), signature: Signature::from_bytes([0; 64]) };
}

/// How rounds are proven.
#[derive(Debug, Clone)]
pub enum Seal {
    /// Not at all: in simulations, whose nodes have names and no keys.
    Open,
    /// By signatures of the root.
    Signed {
        /// This node, which signs the rounds of its own tree.
        identity: Identity,
        /// What they are for.
        topic: TopicId,
    },
}

impl Seal {
    /// Our word for a round of our own tree.
    #[must_use]
    pub fn sign(&self, round: u32, is_end: bool) -> Proof {
        match self {
            Seal::Open => Proof::NONE,
            Seal::Signed { identity, topic } => Proof {
                key: identity.public_key(),
                signature: identity.sign(DOMAIN, &said(topic, round, is_end)),
            },
        }
    }

    /// Whether `root` says so. Costs some 50 µs.
    #[must_use]
    pub fn holds(&self, root: &NodeId, round: u32, is_end: bool, proof: &Proof) -> bool {
        let Seal::Signed { topic, .. } = self else { return true };
        proof.key.node_id() == *root
            && proof.key.verify_strict(DOMAIN, &said(topic, round, is_end), &proof.signature).is_ok()
    }
}

fn said(topic: &TopicId, round: u32, is_end: bool) -> [u8; 37] {
    let mut bytes = [0; 37];
    bytes[..32].copy_from_slice(topic.as_bytes());
    bytes[32..36].copy_from_slice(&round.to_be_bytes());
    bytes[36] = u8::from(is_end);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_proven_by_its_root_for_its_topic_and_nothing_else() {
        let [root, other] = [1, 2].map(|number| Identity::from_seed(&[number; 32]));
        let seal = |topic| Seal::Signed { identity: root.clone(), topic: TopicId::of(topic) };
        let (news, id) = (seal("news"), root.node_id());
        let proof = news.sign(7, false);
        assert!(news.holds(&id, 7, false, &proof));
        assert!(!news.holds(&id, 8, false, &proof) && !news.holds(&id, 7, true, &proof));
        assert!(!seal("other").holds(&id, 7, false, &proof));
        assert!(!news.holds(&other.node_id(), 7, false, &proof));
        assert!(!news.holds(&other.node_id(), 7, false, &Proof { key: other.public_key(), ..proof }));
        assert!(!news.holds(&id, 7, false, &Proof::NONE));
    }
}
