//! What was here lately: names against duplicates, and whole messages for those who missed them.
//!
//! Names are kept in two generations, of which the older goes as a whole: sixteen bytes each and a bit, and no list of
//! their ages. That a name is forgotten costs a copy at most, because the numbers of a publisher tell a second time what
//! is new. Messages are kept while somebody may ask for them: all of them for as long as an announcement may be waited
//! on, and then as many as fit.
//!
//! The last message of each publisher stays longer than others, where there is room. What came before it shows as a hole to whoever
//! hears it; itself it is missed in silence by all who were cut off, and digests that speak of it are worth little where nobody
//! can give it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
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
    /// For how long the last message of each publisher is kept, as far as `bytes` go. Default 1 h; longer where nodes are cut
    /// off for longer, less where a quiet topic should hold nothing.
    pub last_for: Duration,
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
            last_for: Duration::from_secs(3600),
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
    /// Of each publisher of whom something is kept, what it said last, and its place.
    last: HashMap<NodeId, (Serial, usize)>,
    /// Those of them that are kept for longer, by their places.
    lasting: BTreeMap<usize, (Duration, Kept)>,
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
            last: HashMap::new(),
            lasting: BTreeMap::new(),
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
            let last = self.last.entry(serial.publisher).or_insert((serial, place));
            if last.0 < serial {
                let before = std::mem::replace(last, (serial, place)).1;
                if let Some((_, kept)) = self.lasting.remove(&before) {
                    self.forget(&kept, before);
                }
            }
        }
        self.expire(now);
    }

    /// Lets go of what is too old or too much.
    pub fn expire(&mut self, now: Duration) {
        self.turn_names(now);
        let StoreSettings { bytes, new_for, bytes_max, messages_for, last_for, .. } = self.settings;
        while let Some(oldest) = self.lasting.first_entry() {
            if oldest.get().0.saturating_add(last_for) > now && self.bytes <= bytes {
                break;
            }
            let (place, (_, kept)) = oldest.remove_entry();
            self.forget(&kept, place);
        }
        while let Some((at, oldest)) = self.kept.front() {
            let is_much = self.bytes > bytes_max || self.bytes > bytes && at.saturating_add(new_for) <= now;
            let is_old = at.saturating_add(messages_for) <= now;
            if !(is_old || is_much && self.kept.len() > 1) {
                break;
            }
            let lasts =
                self.last.get(&oldest.message.serial().publisher).is_some_and(|last| last.1 == self.gone);
            let stays = lasts && self.bytes <= bytes && at.saturating_add(last_for) > now;
            let place = self.gone;
            self.gone += 1;
            let Some((at, kept)) = self.kept.pop_front() else { break };
            if stays {
                self.lasting.insert(place, (at, kept));
            } else {
                self.forget(&kept, place);
            }
        }
        let is_held = self.kept.capacity() > 0 || self.lasting.is_empty() && self.by_name.capacity() > 0;
        if self.kept.is_empty() && is_held {
            // What a busy time needed is not held through a quiet one.
            self.kept = VecDeque::new();
            self.by_name.shrink_to_fit();
            self.by_serial.shrink_to_fit();
            self.last.shrink_to_fit();
        }
    }

    /// A message that was in this place is here no more.
    fn forget(&mut self, kept: &Kept, place: usize) {
        let serial = kept.message.serial();
        self.bytes -= weight(kept);
        self.by_name.remove(&kept.message.id());
        // A later message may have been given the same number.
        if self.by_serial.get(serial) == Some(&place) {
            self.by_serial.remove(serial);
        }
        if self.last.get(&serial.publisher).is_some_and(|last| last.1 == place) {
            self.last.remove(&serial.publisher);
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
        let kept = match place.checked_sub(self.gone) {
            Some(place) => self.kept.get(place),
            None => self.lasting.get(&place),
        };
        kept.map(|(_, kept)| kept)
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
        assert_eq!((held(&store), store.bytes()), (vec![40], 1000 + OVERHEAD), "the last stays");
        assert!(store.by_name.capacity() < 8 && store.kept.capacity() == 0);
        store.expire(ms(506 + 3_600_000));
        assert_eq!((held(&store).len(), store.bytes(), store.by_name.capacity()), (0, 0, 0));
    }

    /// The last message of somebody who was alone when it said it, or of which others did not hear because they were: those who
    /// meet later are told of it, and have to get it from somewhere.
    #[test]
    fn what_each_publisher_said_last_stays_as_far_as_there_is_room() {
        let mut store = small();
        let of = |who: u8, seq| {
            let serial = Serial { publisher: NodeId::from_bytes([who; 32]), since: 5, seq };
            let message = Message::unsigned(&TopicId::of("test"), serial, vec![0; 1000].into());
            Kept { message, tree: WHO, hops: 0 }
        };
        let last = |store: &Store| -> Vec<(u8, u64)> {
            let serial = |who, seq| Serial { publisher: NodeId::from_bytes([who; 32]), since: 5, seq };
            let all = (1..30).flat_map(|who| (1..5).map(move |seq| (who, seq)));
            all.filter(|(who, seq)| store.get_serial(&serial(*who, *seq)).is_some()).collect()
        };
        for (who, seq) in [(1, 1), (2, 1), (1, 3), (1, 2)] {
            store.keep(of(who, seq), ms(0));
        }
        store.expire(ms(40_000));
        assert_eq!(last(&store), [(1, 3), (2, 1)], "not what came last, but what was said last");
        assert!(store.get(&of(1, 3).message.id()).is_some());
        store.keep(of(1, 4), ms(50_000));
        assert_eq!(last(&store), [(1, 4), (2, 1)], "one of each");
        for who in 3..=11 {
            store.keep(of(who, 1), ms(60_000));
        }
        assert_eq!((last(&store).len(), last(&store)[0]), (10, (1, 4)), "the oldest makes room");
        store.expire(ms(100_000));
        assert_eq!((last(&store).len(), store.bytes()), (10, 10 * (1000 + OVERHEAD)));
        store.expire(ms(3_660_000));
        assert_eq!((last(&store).len(), store.bytes()), (0, 0));
        assert!(store.last.is_empty() && store.by_serial.is_empty());
    }

    /// A message larger than all bounds could not be fetched by anybody who missed it.
    #[test]
    fn the_last_message_is_kept_however_large() {
        let mut store = small();
        store.keep(kept(1, 1000), ms(0));
        store.keep(kept(2, 100_000), ms(1));
        store.expire(ms(2000));
        assert_eq!(held(&store), [2]);
        store.expire(ms(40_000));
        assert_eq!(held(&store), [] as [u64; 0], "for its time, and no longer where there is no room for it");
        store.keep(kept(3, 100_000), ms(50_000));
        store.keep(kept(4, 1000), ms(51_000));
        assert_eq!(held(&store), [4]);
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
