//! What peers say that waits for an engine, in turns between peers.
//!
//! All readers share it, so a peer that says more than the engine can take must not leave others without room: when it is
//! full, a word of a peer that has less waiting takes the place of the newest of whoever has most. Whatever finds no room
//! is handed back, to be counted and told to its sender.

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
    refused: Tally,
}

struct Queue {
    fair: Fair<NodeId, Incoming>,
    is_closed: bool,
}

impl Ingress {
    pub(crate) fn new(spec: LaneSpec, metrics: &Metrics) -> Arc<Self> {
        let queue = Queue { fair: Fair::new(QUANTUM), is_closed: false };
        let ingress = Arc::new(Ingress {
            spec,
            queue: Lock::new(QUEUE, queue, metrics),
            depth: AtomicUsize::new(0),
            refused: metrics.tally(Counter::BusyRejections, spec.name),
        });
        let measured: Arc<dyn Depth> = Arc::<Ingress>::clone(&ingress);
        metrics.watch_queue(spec, Arc::downgrade(&measured));
        ingress
    }

    /// Queues a word of so many bytes. Hands back one that has no room, which may be another peer's.
    #[must_use]
    pub(crate) fn push(&self, incoming: Incoming, bytes: usize) -> Option<Incoming> {
        let mut queue = self.queue.lock();
        let is_full = queue.fair.len() >= self.spec.capacity;
        let crowded = if is_full { queue.fair.crowd_out(&incoming.from) } else { None };
        let refused = if queue.is_closed || is_full && crowded.is_none() {
            Some(incoming)
        } else {
            queue.fair.push(incoming.from, bytes, incoming);
            crowded
        };
        self.depth.store(queue.fair.len(), Ordering::Release);
        drop(queue);
        self.refused.add(u64::from(refused.is_some()));
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

    /// Whether it is at least this full, as a share.
    pub(crate) fn fullness(&self) -> f64 {
        self.depth() as f64 / self.spec.capacity as f64
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
        let ingress = Ingress::new(spec, &Metrics::default());
        let refused = |refused: Option<Incoming>| refused.unwrap().from.as_bytes()[0];
        assert!((0..8).all(|number| ingress.push(word(1, number), 4096).is_none()));
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
}
