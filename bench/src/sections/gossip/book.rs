//! Who has heard what, and when. It has all of its memory before the first node starts, so that it is no part of what the
//! nodes take.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::measure::Outcome;

const MESSAGE_BYTES: usize = 1024;

/// Messages that one rung may have.
pub(super) const MESSAGES_MAX: usize = 32_768;

pub(crate) struct Book {
    nodes: usize,
    origin: Instant,
    /// The rung that counts; what is left of others is not looked at.
    rung: AtomicU32,
    entries: Box<[Entry]>,
    delivered: AtomicU64,
    /// Delivered to the same node again.
    twice: AtomicU64,
    /// Of the last delivery.
    moved: AtomicU64,
}

/// One message. Times are nanoseconds since the book was opened.
struct Entry {
    published: AtomicU64,
    /// A bit for each node.
    heard: AtomicU64,
    /// From publishing to the last delivery so far.
    last: AtomicU64,
}

impl Book {
    pub(crate) fn new(nodes: usize) -> Outcome<Self> {
        if nodes < 2 || nodes > u64::BITS as usize {
            return Err("a network has 2 to 64 nodes".into());
        }
        // Not zeros, which would be pages that nobody has touched.
        let entry = |_| Entry {
            published: AtomicU64::new(u64::MAX),
            heard: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(u64::MAX),
        };
        Ok(Book {
            nodes,
            origin: Instant::now(),
            rung: AtomicU32::new(0),
            entries: (0..MESSAGES_MAX).map(entry).collect(),
            delivered: AtomicU64::new(0),
            twice: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        })
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Begins a rung of so many messages.
    pub(crate) fn begin(&self, messages: usize) {
        self.rung.fetch_add(1, Relaxed);
        for entry in &self.entries[..messages] {
            entry.heard.store(0, Relaxed);
            entry.last.store(0, Relaxed);
        }
        self.delivered.store(0, Relaxed);
        self.twice.store(0, Relaxed);
        self.moved.store(self.now(), Relaxed);
    }

    /// The message of this number, published now.
    pub(crate) fn write(&self, number: usize, chance: &mut fastrand::Rng) -> Bytes {
        let mut message = vec![0; MESSAGE_BYTES];
        chance.fill(&mut message[8..]);
        message[..4].copy_from_slice(&self.rung.load(Relaxed).to_le_bytes());
        message[4..8].copy_from_slice(&(number as u32).to_le_bytes());
        self.entries[number].published.store(self.now(), Relaxed);
        message.into()
    }

    /// A node gave this message to its program.
    pub(crate) fn heard(&self, node: usize, message: &[u8]) {
        let Some((head, _)) = message.split_first_chunk::<8>() else { return };
        let [a, b, c, d, rest @ ..] = *head;
        if u32::from_le_bytes([a, b, c, d]) != self.rung.load(Relaxed) {
            return;
        }
        let Some(entry) = self.entries.get(u32::from_le_bytes(rest) as usize) else { return };
        let bit = 1 << node;
        if entry.heard.fetch_or(bit, Relaxed) & bit != 0 {
            self.twice.fetch_add(1, Relaxed);
            return;
        }
        let now = self.now();
        entry.last.fetch_max(now.saturating_sub(entry.published.load(Relaxed)), Relaxed);
        self.moved.fetch_max(now, Relaxed);
        self.delivered.fetch_add(1, Relaxed);
    }

    /// To how many, over all messages of the rung.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Relaxed)
    }

    pub(crate) fn twice(&self) -> u64 {
        self.twice.load(Relaxed)
    }

    /// When the last delivery was.
    pub(crate) fn moved(&self) -> Instant {
        self.origin + Duration::from_nanos(self.moved.load(Relaxed))
    }

    /// What it took until everybody had them, for those of the rung's messages that everybody got, in their order.
    pub(crate) fn complete(&self, messages: usize) -> Vec<Duration> {
        let all = self.nodes as u32 - 1;
        let complete = |entry: &&Entry| entry.heard.load(Relaxed).count_ones() >= all;
        let took = |entry: &Entry| Duration::from_nanos(entry.last.load(Relaxed));
        self.entries[..messages].iter().filter(complete).map(took).collect()
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}
