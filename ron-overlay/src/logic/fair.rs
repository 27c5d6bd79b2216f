//! Turns by bytes: deficit round robin between those who have something waiting.
//!
//! Whoever has large things waits for as many turns as they are worth, so that a flood of one, or its size, takes
//! nobody else's turn.

use std::collections::{BTreeMap, VecDeque};

/// What waits, by whose it is.
#[derive(Debug)]
pub struct Fair<K, T> {
    queues: BTreeMap<K, Queue<T>>,
    /// Those that have something, in the order of their turns.
    turns: VecDeque<K>,
    items: usize,
    bytes: usize,
    /// Bytes that each may take before the next has its turn.
    quantum: usize,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    deficit: usize,
}

impl<K: Ord + Copy, T> Fair<K, T> {
    /// Nothing waits. A turn is worth so many bytes.
    #[must_use]
    pub fn new(quantum: usize) -> Self {
        Fair { queues: BTreeMap::new(), turns: VecDeque::new(), items: 0, bytes: 0, quantum: quantum.max(1) }
    }

    /// Queues something of so many bytes.
    pub fn push(&mut self, whose: K, bytes: usize, item: T) {
        let queue = self.queues.entry(whose).or_insert_with(|| {
            self.turns.push_back(whose);
            Queue { items: VecDeque::new(), bytes: 0, deficit: 0 }
        });
        queue.items.push_back((bytes, item));
        queue.bytes += bytes;
        self.items += 1;
        self.bytes += bytes;
    }

    /// What is next, and its bytes.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        loop {
            let whose = *self.turns.front()?;
            let queue = self.queues.get_mut(&whose).expect("those with turns have queues");
            let bytes = queue.items.front().map(|(bytes, _)| *bytes).expect("those with turns have items");
            if queue.deficit < bytes {
                // Its turn is over, and the next begins with more.
                queue.deficit += self.quantum;
                self.turns.rotate_left(1);
                continue;
            }
            queue.deficit -= bytes;
            queue.bytes -= bytes;
            let item = queue.items.pop_front();
            self.items -= 1;
            self.bytes -= bytes;
            if queue.items.is_empty() {
                self.queues.remove(&whose);
                self.turns.pop_front();
            }
            return item;
        }
    }

    /// Takes out the oldest of one.
    pub fn drop_oldest(&mut self, whose: &K) -> Option<(usize, T)> {
        let oldest = self.queues.get_mut(whose)?.items.pop_front()?;
        self.note_gone(whose, oldest.0);
        Some(oldest)
    }

    /// Makes room for one more of `whose`: the newest of whoever has most goes, if that is more than `whose` would have.
    pub fn crowd_out(&mut self, whose: &K) -> Option<T> {
        let own = self.len_of(whose);
        // Who has its share already crowds out nobody, and need not look for the longest.
        if own * self.queues.len() >= self.items {
            return None;
        }
        let longest = self.queues.iter().max_by_key(|(_, queue)| queue.items.len());
        let longest = longest.filter(|(_, queue)| queue.items.len() > own + 1).map(|(key, _)| *key)?;
        self.drop_newest(&longest)
    }

    /// As [`crowd_out`](Self::crowd_out), by bytes: the newest of whoever has most of them goes, if that is more than
    /// `whose` would have with so many more.
    pub fn crowd_out_bytes(&mut self, whose: &K, bytes: usize) -> Option<T> {
        let own = self.bytes_of(whose) + bytes;
        let heaviest = self.queues.iter().max_by_key(|(_, queue)| queue.bytes);
        let heaviest = heaviest.filter(|(_, queue)| queue.bytes > own).map(|(key, _)| *key)?;
        self.drop_newest(&heaviest)
    }

    /// How much waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of one that wait.
    #[must_use]
    pub fn bytes_of(&self, whose: &K) -> usize {
        self.queues.get(whose).map_or(0, |queue| queue.bytes)
    }

    /// How much of one waits.
    #[must_use]
    pub fn len_of(&self, whose: &K) -> usize {
        self.queues.get(whose).map_or(0, |queue| queue.items.len())
    }

    fn drop_newest(&mut self, whose: &K) -> Option<T> {
        let (bytes, newest) = self.queues.get_mut(whose)?.items.pop_back()?;
        self.note_gone(whose, bytes);
        Some(newest)
    }

    /// One of so many bytes was taken out of the queue of `whose`.
    fn note_gone(&mut self, whose: &K, bytes: usize) {
        self.items -= 1;
        self.bytes -= bytes;
        if let Some(queue) = self.queues.get_mut(whose) {
            queue.bytes -= bytes;
        }
        if self.queues.get(whose).is_some_and(|queue| queue.items.is_empty()) {
            self.queues.remove(whose);
            self.turns.retain(|other| other != whose);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_flood_takes_nobody_elses_turn_and_makes_room() {
        let mut fair = Fair::new(100);
        (0..10).for_each(|item| fair.push('a', 50, ('a', item)));
        assert_eq!(fair.crowd_out(&'a'), None, "whoever has most makes no room for itself");
        assert_eq!(fair.crowd_out(&'b'), Some(('a', 9)), "the newest goes");
        fair.push('b', 50, ('b', 0));
        let order: Vec<_> = std::iter::from_fn(|| fair.pop()).map(|(_, (whose, _))| whose).collect();
        assert_eq!(order.iter().position(|whose| *whose == 'b'), Some(2), "{order:?}");
        assert_eq!(order.len(), 10);
        fair.push('a', 50, ('a', 0));
        assert_eq!(fair.crowd_out(&'b'), None, "one each is fair");
    }

    proptest! {
        /// All that was pushed comes out or was crowded out, and one alone keeps its order.
        #[test]
        fn nothing_is_lost_or_doubled(steps in prop::collection::vec((0_u8..4, 0_usize..300, 0_u8..4), 1..200)) {
            let mut fair = Fair::new(64);
            let (mut here, mut last) = (std::collections::BTreeSet::new(), [0; 4]);
            for (number, (whose, bytes, act)) in steps.into_iter().enumerate() {
                match act {
                    0 => {
                        let next = fair.pop().map(|(_, (whose, number)): (usize, (u8, usize))| {
                            assert!(last[usize::from(whose)] <= number);
                            last[usize::from(whose)] = number;
                            number
                        });
                        prop_assert_eq!(next.is_some(), !here.is_empty());
                        prop_assert!(next.is_none_or(|number| here.remove(&number)));
                    }
                    1 => {
                        if let Some((gone, number)) = fair.crowd_out(&whose) {
                            prop_assert!(gone != whose && here.remove(&number));
                        }
                    }
                    _ => {
                        fair.push(whose, bytes, (whose, number + 1));
                        here.insert(number + 1);
                    }
                }
                prop_assert_eq!(fair.len(), here.len());
            }
        }
    }
}
