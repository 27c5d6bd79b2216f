//! What was here lately: names against duplicates, and whole messages for those who missed them.
//!
//! Names are kept in two generations, of which the older goes as a whole: sixteen bytes each and a bit, and no list of
//! their ages. That a name is forgotten costs a copy at most, because the numbers of a publisher tell a second time what
//! is new. Messages are kept while somebody may ask for them: all of them for as long as an announcement may be waited
//! on, and then as many as fit.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use ron_core::NodeId;

use super::{
    message::{Message, MessageId},
    publishers::Serial,
};

/// What a message takes beside its payload: the rest of the word that it came in, its entry, and its place in two tables
/// that are three quarters full.
pub(in crate::logic) const OVERHEAD: usize = 600;

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// Names, of which the newer half at least is always there. Default 7168, which fill two tables of 70 KiB: two
    /// seconds of 1600 messages each, and more of fewer.
    pub names: usize,
    /// For how long, and half of it at least. Default 2 min.
    pub names_for: Duration,
    /// Bytes of messages that are kept when they are no longer new. Default 1 MiB, some 600 small messages; raise it where
    /// nodes on bad lines need to be sent what they missed seconds ago on a busy topic.
    pub bytes: usize,
    /// How long a message is new. Default 500 ms, the longest that anybody waits before asking for what was announced.
    pub new_for: Duration,
    /// Bytes of messages at most, new ones too; the last message is kept however large. Default 8 MiB.
    pub bytes_max: usize,
    /// For how long. Default 30 s.
    pub messages_for: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            names: 7_168,
            names_for: Duration::from_secs(120),
            bytes: 1 << 20,
            new_for: Duration::from_millis(500),
            bytes_max: 8 << 20,
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
    /// The names of now, and those of before.
    names: [HashSet<MessageId>; 2],
    names_since: Duration,
    /// Messages, oldest first.
    kept: VecDeque<(Duration, Kept)>,
    /// How many went before the oldest: places count from the first that was ever kept.
    gone: usize,
    by_name: HashMap<MessageId, usize>,
    by_serial: HashMap<Serial, usize>,
    bytes: usize,
}

impl Store {
    /// Nothing yet.
    #[must_use]
    pub fn new(settings: StoreSettings) -> Self {
        Store {
            settings,
            names: [HashSet::new(), HashSet::new()],
            names_since: Duration::ZERO,
            kept: VecDeque::new(),
            gone: 0,
            by_name: HashMap::new(),
            by_serial: HashMap::new(),
            bytes: 0,
        }
    }

    /// Whether a message of this name was here.
    #[must_use]
    pub fn knows(&self, id: &MessageId) -> bool {
        self.names.iter().any(|names| names.contains(id))
    }

    /// A message was here, and need not be kept.
    pub fn note(&mut self, id: MessageId, now: Duration) {
        self.turn_names(now);
        self.names[0].insert(id);
    }

    /// A message is here, for those who ask for it.
    pub fn keep(&mut self, kept: Kept, now: Duration) {
        let (id, serial) = (kept.message.id(), *kept.message.serial());
        self.note(id, now);
        if !self.by_name.contains_key(&id) {
            let place = self.gone + self.kept.len();
            self.by_name.insert(id, place);
            self.by_serial.insert(serial, place);
            self.bytes += weight(&kept);
            self.kept.push_back((now, kept));
        }
        self.expire(now);
    }

    /// Lets go of what is too old or too much.
    pub fn expire(&mut self, now: Duration) {
        self.turn_names(now);
        while let Some((at, oldest)) = self.kept.front() {
            let StoreSettings { bytes, new_for, bytes_max, messages_for, .. } = self.settings;
            let is_much = self.bytes > bytes_max || self.bytes > bytes && at.saturating_add(new_for) <= now;
            let is_old = at.saturating_add(messages_for) <= now;
            if !(is_old || is_much && self.kept.len() > 1) {
                break;
            }
            let (id, serial) = (oldest.message.id(), *oldest.message.serial());
            self.bytes -= weight(oldest);
            self.by_name.remove(&id);
            // A later message may have been given the same number.
            if self.by_serial.get(&serial) == Some(&self.gone) {
                self.by_serial.remove(&serial);
            }
            self.kept.pop_front();
            self.gone += 1;
        }
        if self.kept.is_empty() && self.kept.capacity() > 0 {
            // What a busy time needed is not held through a quiet one.
            (self.kept, self.by_name, self.by_serial) = Default::default();
        }
    }

    /// The message of this name, if it is still kept.
    #[must_use]
    pub fn get(&self, id: &MessageId) -> Option<&Kept> {
        self.at(*self.by_name.get(id)?)
    }

    /// The message with this number, if it is still kept.
    #[must_use]
    pub fn get_serial(&self, serial: &Serial) -> Option<&Kept> {
        self.at(*self.by_serial.get(serial)?)
    }

    /// Bytes of messages that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, place: usize) -> Option<&Kept> {
        self.kept.get(place.checked_sub(self.gone)?).map(|(_, kept)| kept)
    }

    /// Begins another generation of names when this one is full or old.
    fn turn_names(&mut self, now: Duration) {
        let [new, old] = &mut self.names;
        let is_old = self.names_since.saturating_add(self.settings.names_for / 2) <= now;
        if new.len() < (self.settings.names / 2).max(1) && !is_old {
            return;
        }
        self.names_since = now;
        std::mem::swap(new, old);
        // In a quiet time the room goes with the names; in a busy one it is needed again.
        if is_old { *new = HashSet::new() } else { new.clear() }
    }
}

fn weight(kept: &Kept) -> usize {
    kept.message.payload().len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::message::TopicId;

    const WHO: NodeId = NodeId::from_bytes([7; 32]);

    fn kept(seq: u64, bytes: usize) -> Kept {
        let serial = Serial { publisher: WHO, since: 5, seq };
        let message = Message::unsigned(&TopicId::of("test"), serial, vec![0; bytes].into());
        Kept { message, tree: WHO, hops: 0 }
    }

    fn small() -> Store {
        Store::new(StoreSettings {
            names: 8,
            bytes: 10 * (1000 + OVERHEAD),
            bytes_max: 20 * (1000 + OVERHEAD),
            ..StoreSettings::default()
        })
    }

    fn held(store: &Store) -> Vec<u64> {
        let serial = |seq| Serial { publisher: WHO, since: 5, seq };
        (1..100).filter(|seq| store.get_serial(&serial(*seq)).is_some()).collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn new_messages_are_kept_up_to_a_bound_and_older_ones_up_to_a_smaller_one() {
        let mut store = small();
        (1..=15).for_each(|seq| store.keep(kept(seq, 1000), ms(seq)));
        assert_eq!(held(&store).len(), 15, "all are new");
        store.expire(ms(505));
        assert_eq!(held(&store), (6..=15).collect::<Vec<_>>(), "five were not new any more");
        (16..=40).for_each(|seq| store.keep(kept(seq, 1000), ms(506)));
        assert_eq!(held(&store), (21..=40).collect::<Vec<_>>());
        assert_eq!(store.bytes(), 20 * (1000 + OVERHEAD));
        let by_name = store.get(&kept(40, 1000).message.id()).unwrap();
        assert_eq!(by_name.message.serial().seq, 40);
        store.expire(ms(40_000));
        assert_eq!((held(&store).len(), store.bytes(), store.by_name.capacity()), (0, 0, 0));
    }

    /// A message larger than all bounds could not be fetched by anybody who missed it.
    #[test]
    fn the_last_message_is_kept_however_large() {
        let mut store = small();
        store.keep(kept(1, 1000), ms(0));
        store.keep(kept(2, 100_000), ms(1));
        store.expire(ms(2000));
        assert_eq!(held(&store), [2]);
        store.keep(kept(3, 1000), ms(2001));
        assert_eq!(held(&store), [3]);
        store.expire(ms(40_000));
        assert_eq!(held(&store), [] as [u64; 0]);
    }

    #[test]
    fn names_outlive_messages_and_go_by_halves_and_by_time() {
        let mut store = small();
        let knows = |store: &Store| {
            (1..100).filter(|seq| store.knows(&kept(*seq, 10).message.id())).collect::<Vec<_>>()
        };
        (1..=10).for_each(|seq| store.note(kept(seq, 10).message.id(), ms(seq)));
        assert_eq!(knows(&store), [5, 6, 7, 8, 9, 10]);
        store.note(kept(11, 10).message.id(), Duration::from_secs(61));
        assert_eq!(knows(&store), [9, 10, 11], "those of before are the older half now");
        store.note(kept(12, 10).message.id(), Duration::from_secs(122));
        assert_eq!(knows(&store), [11, 12]);
        store.expire(Duration::from_secs(300));
        store.expire(Duration::from_secs(400));
        assert_eq!(knows(&store), [] as [u64; 0]);
        assert_eq!(store.names[0].capacity() + store.names[1].capacity(), 0);
    }
}
