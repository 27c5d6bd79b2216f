//! What was here lately: names against duplicates, and whole messages for those who missed them.
//!
//! Both are bounded by count or bytes and by time. A name outlives its message, because a duplicate can come long after
//! nobody asks for the message any more.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use ron_core::NodeId;

use super::{
    message::{Message, MessageId},
    publishers::Serial,
};

/// What a message takes beside its payload.
const OVERHEAD: usize = 256;

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// Names. Default 65 536, which is 3 MiB.
    pub names: usize,
    /// For how long. Default 2 min.
    pub names_for: Duration,
    /// Bytes of messages. Default 8 MiB.
    pub bytes: usize,
    /// For how long. Default 30 s.
    pub messages_for: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            names: 65_536,
            names_for: Duration::from_secs(120),
            bytes: 8 << 20,
            messages_for: Duration::from_secs(30),
        }
    }
}

/// A message that is kept, and the tree that it came on.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The message.
    pub message: Message,
    /// The tree.
    pub tree: NodeId,
    /// Links that it had come over.
    pub hops: u8,
}

/// What was here lately on one topic.
#[derive(Debug)]
pub struct Store {
    settings: StoreSettings,
    names: HashSet<MessageId>,
    names_by_age: VecDeque<(Duration, MessageId)>,
    kept: HashMap<MessageId, Kept>,
    by_serial: BTreeMap<Serial, MessageId>,
    by_age: VecDeque<(Duration, MessageId)>,
    bytes: usize,
}

impl Store {
    /// Nothing yet.
    #[must_use]
    pub fn new(settings: StoreSettings) -> Self {
        Store {
            settings,
            names: HashSet::new(),
            names_by_age: VecDeque::new(),
            kept: HashMap::new(),
            by_serial: BTreeMap::new(),
            by_age: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Whether a message of this name was here.
    #[must_use]
    pub fn knows(&self, id: &MessageId) -> bool {
        self.names.contains(id)
    }

    /// A message was here, and need not be kept.
    pub fn note(&mut self, id: MessageId, now: Duration) {
        if self.names.insert(id) {
            self.names_by_age.push_back((now, id));
        }
        while let Some((at, id)) = self.names_by_age.front().copied() {
            if self.names_by_age.len() <= self.settings.names && at + self.settings.names_for > now {
                break;
            }
            self.names_by_age.pop_front();
            self.names.remove(&id);
        }
    }

    /// A message is here, for those who ask for it.
    pub fn keep(&mut self, kept: Kept, now: Duration) {
        let id = kept.message.id();
        self.note(id, now);
        let bytes = kept.message.payload().len() + OVERHEAD;
        if bytes > self.settings.bytes {
            return;
        }
        let serial = *kept.message.serial();
        if self.kept.insert(id, kept).is_none() {
            self.by_serial.insert(serial, id);
            self.by_age.push_back((now, id));
            self.bytes += bytes;
        }
        self.expire(now);
    }

    /// Lets go of what is too old or too much.
    pub fn expire(&mut self, now: Duration) {
        while let Some((at, id)) = self.by_age.front().copied() {
            if self.bytes <= self.settings.bytes && at + self.settings.messages_for > now {
                break;
            }
            self.by_age.pop_front();
            if let Some(gone) = self.kept.remove(&id) {
                self.bytes -= gone.message.payload().len() + OVERHEAD;
                if self.by_serial.get(gone.message.serial()) == Some(&id) {
                    self.by_serial.remove(gone.message.serial());
                }
            }
        }
    }

    /// The message of this name, if it is still kept.
    #[must_use]
    pub fn get(&self, id: &MessageId) -> Option<&Kept> {
        self.kept.get(id)
    }

    /// The message with this number, if it is still kept.
    #[must_use]
    pub fn get_serial(&self, serial: &Serial) -> Option<&Kept> {
        self.kept.get(self.by_serial.get(serial)?)
    }

    /// Bytes of messages that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
