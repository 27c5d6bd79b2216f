//! What peers say that waits for an engine, in turns between peers.
//!
//! All readers share it, so a peer that says more than the engine can take must not leave others without room: when it is
//! full, a word of a peer that has less waiting takes the place of the newest of whoever has most. It is full at so many
//! words and at so many bytes, since a word may be a message of megabytes. Whatever finds no room is handed back, to be
//! counted and told to its sender.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ron_core::{Counter, Depth, LaneSpec, Lock, LockSpec, Metrics, NodeId, Tally};

use crate::{engine::Incoming, logic::fair::Fair};

pub(crate) const QUEUE: LockSpec = LockSpec::new("ron-overlay", "ingress.queue", 405)
    .guards("words that wait for an engine; held for a push, or while a batch is taken");

/// What each peer may say before the next has its turn, in bytes: a few small messages.
const QUANTUM: usize = 8 << 10;

/// Words that wait for an engine.
pub(crate) struct Ingress {
    spec: LaneSpec,
    queue: Lock<Queue>,
    /// As many as wait, for who only wants to know whether to look.
    depth: AtomicUsize,
    bytes_max: usize,
    peer_bytes_max: usize,
    refused: Tally,
}

struct Queue {
    fair: Fair<NodeId, Incoming>,
    is_closed: bool,
}

impl Ingress {
    /// Room for as many words as `spec` says, and for so many bytes of all peers and of one.
    pub(crate) fn new(
        spec: LaneSpec,
        bytes_max: usize,
        peer_bytes_max: usize,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let queue = Queue { fair: Fair::new(QUANTUM), is_closed: false };
        let ingress = Arc::new(Ingress {
            spec,
            queue: Lock::new(QUEUE, queue, metrics),
            depth: AtomicUsize::new(0),
            bytes_max,
            peer_bytes_max,
            refused: metrics.tally(Counter::BusyRejections, spec.name),
        });
        let measured: Arc<dyn Depth> = Arc::<Ingress>::clone(&ingress);
        metrics.watch_queue(spec, Arc::downgrade(&measured));
        ingress
    }

    /// Queues a word of so many bytes. Hands back those that have no room, which may be other peers'.
    #[must_use]
    pub(crate) fn push(&self, incoming: Incoming, bytes: usize) -> Vec<Incoming> {
        let (mut queue, mut refused) = (self.queue.lock(), Vec::new());
        if queue.make_room(self, &incoming.from, bytes, &mut refused) {
            queue.fair.push(incoming.from, bytes, incoming);
        } else {
            refused.push(incoming);
        }
        self.depth.store(queue.fair.len(), Ordering::Release);
        drop(queue);
        self.refused.add(refused.len() as u64);
        refused
    }

    /// Takes what is next, at most so many. Returns how many.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<Incoming>) -> usize {
        if self.depth() == 0 {
            return 0;
        }
        let mut queue = self.queue.lock();
        let before = into.len();
        into.extend(std::iter::from_fn(|| queue.fair.pop()).map(|(_, word)| word).take(most));
        self.depth.store(queue.fair.len(), Ordering::Release);
        into.len() - before
    }

    /// Takes nothing more. What waits can still be taken out.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closed = true;
    }

    /// How full it is, as a share.
    pub(crate) fn fullness(&self) -> f64 {
        self.depth() as f64 / self.spec.capacity as f64
    }
}

impl Queue {
    /// Whether there is room for a word of so many bytes, if need be in the place of others.
    fn make_room(&mut self, room: &Ingress, from: &NodeId, bytes: usize, gone: &mut Vec<Incoming>) -> bool {
        if self.is_closed || self.fair.bytes_of(from) + bytes > room.peer_bytes_max {
            return false;
        }
        while self.fair.bytes() + bytes > room.bytes_max {
            let Some(crowded) = self.fair.crowd_out_bytes(from, bytes) else { return false };
            gone.push(crowded);
        }
        if self.fair.len() >= room.spec.capacity {
            let Some(crowded) = self.fair.crowd_out(from) else { return false };
            gone.push(crowded);
        }
        true
    }
}

impl Depth for Ingress {
    fn depth(&self) -> usize {
        self.depth.load(Ordering::Acquire)
    }

    fn capacity(&self) -> usize {
        self.spec.capacity
    }
}

impl fmt::Debug for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ingress({}, {} waiting)", self.spec.name, self.depth())
    }
}

#[cfg(test)]
mod tests {
    use ron_core::Capacity;

    use super::*;
    use crate::{
        engine::INGRESS,
        logic::{gossip::Word, message::TopicId},
    };

    fn word(peer: u8, number: u32) -> Incoming {
        Incoming {
            from: NodeId::from_bytes([peer; 32]),
            topic: TopicId::of("news"),
            word: Word::Ping(number),
        }
    }

    fn taken(ingress: &Ingress, most: usize) -> Vec<u8> {
        let mut into = Vec::new();
        ingress.take(most, &mut into);
        into.iter().map(|word| word.from.as_bytes()[0]).collect()
    }

    #[test]
    fn a_peer_that_floods_leaves_room_and_turns_to_others() {
        let spec = INGRESS.with_capacity(Capacity::new("room", 8).unwrap());
        let ingress = Ingress::new(spec, 1 << 20, 1 << 20, &Metrics::default());
        let refused = |refused: Vec<Incoming>| {
            let [refused] = &refused[..] else { panic!("{refused:?}") };
            refused.from.as_bytes()[0]
        };
        assert!((0..8).all(|number| ingress.push(word(1, number), 4096).is_empty()));
        assert_eq!(refused(ingress.push(word(1, 8), 4096)), 1);
        assert_eq!(refused(ingress.push(word(2, 0), 4096)), 1, "the flood makes room");
        assert_eq!(refused(ingress.push(word(2, 1), 4096)), 1);
        assert_eq!(ingress.depth(), 8);
        assert_eq!(taken(&ingress, 5), [1, 1, 2, 2, 1]);
        assert_eq!(ingress.refused.get(), 3);
        ingress.close();
        assert_eq!(refused(ingress.push(word(3, 0), 10)), 3);
        assert_eq!(taken(&ingress, 99), [1, 1, 1], "what was taken in is not lost");
        assert_eq!(ingress.fullness(), 0.0);
    }

    /// Five hundred words may be five hundred messages of megabytes.
    #[test]
    fn what_waits_is_bounded_in_bytes_for_one_and_for_all() {
        let ingress = Ingress::new(INGRESS, 1000, 600, &Metrics::default());
        let push = |peer, bytes| -> Vec<u8> {
            let refused = ingress.push(word(peer, 0), bytes);
            refused.iter().map(|word| word.from.as_bytes()[0]).collect()
        };
        assert_eq!((push(1, 300), push(1, 300)), (vec![], vec![]));
        assert_eq!(push(1, 1), [1], "one peer has its share");
        assert!(push(2, 300).is_empty());
        assert_eq!(push(3, 200), [1], "of whoever has most the newest goes");
        assert_eq!(push(4, 400), [4], "nobody has more than that");
        assert_eq!(taken(&ingress, 99), [1, 2, 3]);
        assert!(push(1, 600).is_empty(), "and what was taken is room again");
        assert_eq!(ingress.refused.get(), 3);
    }
}
