//! Words that are too long for one frame, cut and put together again.
//!
//! Parts of one word come in order over one link, and parts of others in between. What a sender says about the length is
//! believed only as far as bytes have come: memory grows with what arrives, within a budget for each peer and one for
//! all, and what is not whole in time is given up.

use std::{collections::BTreeMap, time::Duration};

use bytes::{Bytes, BytesMut};
use ron_core::NodeId;

/// Words of one peer that may be unfinished at once. Topics take turns on a link by about one part, so an honest sender
/// has as many under way as there are topics with large messages, in each of two classes.
const UNFINISHED_MAX: usize = 128;

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which word, as its sender counts.
    pub word: u64,
    /// Bytes of the whole word.
    pub whole: u32,
    /// Bytes before this part.
    pub offset: u32,
    /// The bytes.
    pub bytes: Bytes,
}

/// Cuts a word.
pub fn cut(word: u64, bytes: &Bytes, part_bytes: usize) -> impl Iterator<Item = Part> {
    let whole = bytes.len() as u32;
    (0..bytes.len()).step_by(part_bytes.max(1)).map(move |offset| {
        let end = (offset + part_bytes.max(1)).min(bytes.len());
        Part { word, whole, offset: offset as u32, bytes: bytes.slice(offset..end) }
    })
}

/// How much may be unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartsSettings {
    /// Bytes of the longest word. Default 16 MiB and 4 KiB for what is around a message.
    pub word_bytes_max: usize,
    /// Bytes of all words of one peer. Default 32 MiB.
    pub peer_bytes_max: usize,
    /// Bytes of all words of all peers. Default 128 MiB.
    pub bytes_max: usize,
    /// How long a word may take. Default 30 s.
    pub timeout: Duration,
}

impl Default for PartsSettings {
    fn default() -> Self {
        PartsSettings {
            word_bytes_max: (16 << 20) + (4 << 10),
            peer_bytes_max: 32 << 20,
            bytes_max: 128 << 20,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Why a part was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The word would be longer than any may be.
    #[error("a word of {whole} bytes, at most {max}")]
    TooLarge {
        /// As its sender says.
        whole: u32,
        /// The most there may be.
        max: usize,
    },
    /// It does not follow what came before. Its sender is out of step.
    #[error("a part that does not follow")]
    OutOfOrder,
    /// There is no room for it; the whole word is given up.
    #[error("{what} is full")]
    Full {
        /// Which budget.
        what: &'static str,
    },
}

/// Unfinished words.
#[derive(Debug)]
pub struct Parts {
    settings: PartsSettings,
    unfinished: BTreeMap<(NodeId, u64), Unfinished>,
    bytes: usize,
    /// Words that made room for newer ones of the same peer.
    crowded_out: usize,
}

#[derive(Debug)]
struct Unfinished {
    bytes: BytesMut,
    whole: u32,
    until: Duration,
}

impl Parts {
    /// Nothing yet.
    #[must_use]
    pub fn new(settings: PartsSettings) -> Self {
        Parts { settings, unfinished: BTreeMap::new(), bytes: 0, crowded_out: 0 }
    }

    /// Takes a part. Returns the word if it is whole now.
    ///
    /// # Errors
    /// A [`PartError`]. What had come of the word is let go.
    pub fn on_part(&mut self, from: NodeId, part: &Part, now: Duration) -> Result<Option<Bytes>, PartError> {
        let result = self.take(from, part, now);
        if result.is_err() {
            self.forget(&(from, part.word));
        }
        result
    }

    fn take(&mut self, from: NodeId, part: &Part, now: Duration) -> Result<Option<Bytes>, PartError> {
        let (max, key) = (self.settings.word_bytes_max, (from, part.word));
        if part.whole as usize > max {
            return Err(PartError::TooLarge { whole: part.whole, max });
        }
        if self.bytes + part.bytes.len() > self.settings.bytes_max {
            return Err(PartError::Full { what: "parts_bytes" });
        }
        let is_new = part.offset == 0 && !self.unfinished.contains_key(&key);
        let (mut words, mut bytes) = (usize::from(is_new), part.bytes.len());
        for (_, unfinished) in self.unfinished.range((from, 0)..=(from, u64::MAX)) {
            words += 1;
            bytes += unfinished.bytes.len();
        }
        while words > UNFINISHED_MAX || bytes > self.settings.peer_bytes_max {
            // A sender that shed the rest of a word does not go on with it, so its oldest makes room.
            let of_peer = self.unfinished.range((from, 0)..=(from, u64::MAX));
            let oldest = of_peer.filter(|(other, _)| **other != key).min_by_key(|(_, word)| word.until);
            let Some(oldest) = oldest.map(|(oldest, _)| *oldest) else {
                return Err(PartError::Full { what: "parts_peer_bytes" });
            };
            bytes -= self.forget(&oldest).map_or(0, |gone| gone.len());
            words -= 1;
            self.crowded_out += 1;
        }
        if is_new {
            let until = now + self.settings.timeout;
            self.unfinished.insert(key, Unfinished { bytes: BytesMut::new(), whole: part.whole, until });
        }
        let unfinished = self.unfinished.get_mut(&key).ok_or(PartError::OutOfOrder)?;
        let end = unfinished.bytes.len() + part.bytes.len();
        let follows = unfinished.bytes.len() == part.offset as usize && unfinished.whole == part.whole;
        if !follows || part.bytes.is_empty() || end > part.whole as usize {
            return Err(PartError::OutOfOrder);
        }
        unfinished.bytes.extend_from_slice(&part.bytes);
        self.bytes += part.bytes.len();
        if end < part.whole as usize {
            return Ok(None);
        }
        Ok(self.forget(&key).map(BytesMut::freeze))
    }

    /// A link has ended, and with it what came over it.
    pub fn on_link_down(&mut self, peer: &NodeId) {
        let gone: Vec<_> =
            self.unfinished.range((*peer, 0)..=(*peer, u64::MAX)).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| drop(self.forget(key)));
    }

    /// Gives up what took too long. Returns how many words were given up since the last time, for whatever reason.
    pub fn on_tick(&mut self, now: Duration) -> usize {
        let late: Vec<_> =
            self.unfinished.iter().filter(|(_, word)| word.until <= now).map(|(key, _)| *key).collect();
        late.iter().for_each(|key| drop(self.forget(key)));
        late.len() + std::mem::take(&mut self.crowded_out)
    }

    /// Bytes that are held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn forget(&mut self, key: &(NodeId, u64)) -> Option<BytesMut> {
        let gone = self.unfinished.remove(key)?;
        self.bytes -= gone.bytes.len();
        Some(gone.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn small() -> Parts {
        Parts::new(PartsSettings {
            word_bytes_max: 1000,
            peer_bytes_max: 1500,
            bytes_max: 2500,
            timeout: Duration::from_secs(30),
        })
    }

    #[test]
    fn words_in_turn_come_out_whole() {
        let mut parts = small();
        let words: Vec<Bytes> =
            (1..4_u8).map(|number| Bytes::from(vec![number; 300 * usize::from(number)])).collect();
        let mut cuts: Vec<_> = words.iter().zip(0..).map(|(word, number)| cut(number, word, 100)).collect();
        let mut whole = Vec::new();
        for _ in 0..9 {
            for part in cuts.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>() {
                whole.extend(parts.on_part(peer(1), &part, Duration::ZERO).unwrap());
            }
        }
        assert_eq!(whole, words);
        assert_eq!(parts.bytes(), 0);
    }

    #[test]
    fn nothing_is_believed_before_it_comes_and_budgets_hold() {
        let mut parts = small();
        let part = |word, whole, offset, bytes| Part { word, whole, offset, bytes: vec![1; bytes].into() };
        let now = Duration::ZERO;
        let too_large = PartError::TooLarge { whole: 1001, max: 1000 };
        assert_eq!(parts.on_part(peer(1), &part(1, 1001, 0, 1), now), Err(too_large));
        assert_eq!(parts.on_part(peer(1), &part(1, 900, 5, 1), now), Err(PartError::OutOfOrder));
        assert_eq!(parts.on_part(peer(1), &part(1, 900, 0, 800), now), Ok(None));
        assert_eq!(parts.on_part(peer(1), &part(2, 900, 0, 800), now), Ok(None), "its first made room");
        assert_eq!(parts.on_part(peer(1), &part(1, 900, 800, 1), now), Err(PartError::OutOfOrder));
        assert_eq!(parts.on_part(peer(2), &part(2, 900, 0, 800), now), Ok(None));
        assert_eq!(parts.on_part(peer(3), &part(2, 900, 0, 800), now), Ok(None));
        let full = PartError::Full { what: "parts_bytes" };
        assert_eq!(parts.on_part(peer(4), &part(2, 900, 0, 800), now), Err(full));
        assert_eq!(parts.bytes(), 2400);
        parts.on_link_down(&peer(2));
        assert_eq!(parts.on_tick(Duration::from_secs(30)), 3);
        assert_eq!(parts.bytes(), 0);
    }

    #[test]
    fn words_of_many_topics_come_in_turn_and_broken_ones_are_in_nobodys_way() {
        let mut parts = Parts::new(PartsSettings::default());
        let part = |word, offset| Part { word, whole: 20, offset, bytes: vec![1; 10].into() };
        // The rest of these never comes.
        for word in 0..1000 {
            assert_eq!(parts.on_part(peer(1), &part(word, 0), Duration::from_millis(word)), Ok(None));
        }
        let now = Duration::from_secs(2);
        assert_eq!(parts.unfinished.len(), UNFINISHED_MAX);
        assert_eq!(parts.on_tick(now), 1000 - UNFINISHED_MAX);
        for word in 1000..1064 {
            assert_eq!(parts.on_part(peer(1), &part(word, 0), now), Ok(None));
        }
        for word in 1000..1064 {
            assert!(matches!(parts.on_part(peer(1), &part(word, 10), now), Ok(Some(_))), "word {word}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_the_budget_holds(steps: Vec<(u8, u8, u16, u16, u8)>) {
            let mut parts = small();
            for (from, word, whole, offset, bytes) in steps {
                let bytes = vec![0; usize::from(bytes)].into();
                let part = Part { word: u64::from(word % 3), whole: u32::from(whole % 1200), offset: u32::from(offset % 300), bytes };
                let _ = parts.on_part(peer(from % 4), &part, Duration::ZERO);
                prop_assert!(parts.bytes() <= 2500);
                prop_assert_eq!(parts.bytes(), parts.unfinished.values().map(|word| word.bytes.len()).sum::<usize>());
            }
        }
    }
}
