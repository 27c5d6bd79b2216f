//! A message of a topic: who says what, its name, and the proof.
//!
//! The name of a message is the hash of all that is in it, so that two nodes that speak of one name speak of the same
//! bytes. A signature covers the hash. On the way a message is never changed.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
};

use bytes::Bytes;
use ron_core::{
    NodeId,
    net::{Identity, PreparedKey, PublicKey, Signature},
};

use super::publishers::Serial;

/// The highest number a message may have: far beyond what anybody counts to, and far below overflow.
pub const SEQ_MAX: u64 = 1 << 48;

/// What the signature is for: bytes signed for anything else never verify here.
const DOMAIN: &str = "ron/oap/1 message";

/// What a topic is called between nodes: the hash of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId([u8; 32]);

impl TopicId {
    /// The topic of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        TopicId(blake3::derive_key("ron/oap/1 topic", name.as_bytes()))
    }

    /// The topic with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        TopicId(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({:02x}{:02x}{:02x}{:02x}…)", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// The name of a message: the first half of its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId([u8; 16]);

impl MessageId {
    /// The name with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        MessageId(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

/// Who a message is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// Somebody says so. Only on topics that want no proof.
    Claimed(NodeId),
    /// Proven by a key, whose hash is the publisher's name, and a signature.
    Signed(PublicKey, Signature),
}

/// Keys of publishers, ready for more signatures. Many publishers take turns in it, and it never grows beyond its bound.
#[derive(Debug, Default)]
pub struct Keys(HashMap<PublicKey, PreparedKey>);

/// Publishers whose keys are kept: 256 bytes each, and one that comes again costs what it cost the first time.
const KEYS_MAX: usize = 256;

impl Keys {
    fn get(&mut self, key: &PublicKey) -> Option<&PreparedKey> {
        if self.0.len() >= KEYS_MAX && !self.0.contains_key(key) {
            self.0.clear();
        }
        match self.0.entry(*key) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => Some(new.insert(key.prepare().ok()?)),
        }
    }
}

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    hash: [u8; 32],
    serial: Serial,
    author: Author,
    payload: Bytes,
}

impl Message {
    /// A message that nobody has to prove.
    #[must_use]
    pub fn unsigned(topic: &TopicId, serial: Serial, payload: Bytes) -> Self {
        let author = Author::Claimed(serial.publisher);
        Message { hash: hash(topic, &serial, &payload), serial, author, payload }
    }

    /// A message of `identity`.
    #[must_use]
    pub fn signed(topic: &TopicId, identity: &Identity, since: u64, seq: u64, payload: Bytes) -> Self {
        let serial = Serial { publisher: identity.node_id(), since, seq };
        let hash = hash(topic, &serial, &payload);
        let author = Author::Signed(identity.public_key(), identity.sign(DOMAIN, &hash));
        Message { hash, serial, author, payload }
    }

    /// A message as it came. That it is proven remains to be seen.
    #[must_use]
    pub fn received(topic: &TopicId, author: Author, since: u64, seq: u64, payload: Bytes) -> Self {
        let publisher = match author {
            Author::Claimed(publisher) => publisher,
            Author::Signed(key, _) => key.node_id(),
        };
        let serial = Serial { publisher, since, seq };
        Message { hash: hash(topic, &serial, &payload), serial, author, payload }
    }

    /// Whether its author has signed it. Costs some 50 µs.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.is_proven_with(&mut Keys::default())
    }

    /// As [`is_proven`](Self::is_proven), with the keys of publishers that were heard before.
    #[must_use]
    pub fn is_proven_with(&self, keys: &mut Keys) -> bool {
        let Author::Signed(key, signature) = &self.author else { return false };
        keys.get(key).is_some_and(|key| key.verify_strict(DOMAIN, &self.hash, signature).is_ok())
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> MessageId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.hash[..16]);
        MessageId(id)
    }

    /// Whose message it is, and which.
    #[must_use]
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// Who it is from.
    #[must_use]
    pub fn author(&self) -> &Author {
        &self.author
    }

    /// What it says.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }
}

impl fmt::Debug for Message {
    /// Without the payload, which may be large or private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} {:?}, {} B)", self.id(), self.serial, self.payload.len())
    }
}

fn hash(topic: &TopicId, serial: &Serial, payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ron/oap/1 message");
    hasher.update(topic.as_bytes());
    hasher.update(serial.publisher.as_bytes());
    hasher.update(&serial.since.to_be_bytes());
    hasher.update(&serial.seq.to_be_bytes());
    hasher.update(payload);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_were_used_before_prove_the_same_and_are_bounded() {
        let (topic, mut keys) = (TopicId::of("news"), Keys::default());
        for number in 0..=255_u8 {
            let identity = Identity::from_seed(&[number; 32]);
            let good = Message::signed(&topic, &identity, 5, 1, Bytes::from_static(b"hello"));
            let forged = Message::received(&topic, *good.author(), 5, 2, Bytes::from_static(b"hello"));
            assert!(good.is_proven_with(&mut keys) && good.is_proven_with(&mut keys));
            assert!(!forged.is_proven_with(&mut keys) && !forged.is_proven());
        }
        assert_eq!(keys.0.len(), KEYS_MAX);
        let signature = Signature::from_bytes([1; 64]);
        let none = Author::Signed(PublicKey::from_bytes([2; 32]), signature);
        assert!(
            !Message::received(&topic, none, 5, 1, Bytes::new()).is_proven_with(&mut keys),
            "no key at all"
        );
        assert!(keys.0.is_empty(), "and what is none is not kept");
    }
}
