//! From an engine to one subscriber, which is told of everything that it does not get.
//!
//! Messages wait in a lane. When it is full, what is newer is not kept, but which it was: as soon as the subscriber has
//! read what was there, it is told which numbers of whom it missed. The two ends agree by one lock that is taken only
//! then: the engine tries once more under it before it notes a loss, and the subscriber looks at the losses only when the
//! lane is empty, so neither can wait for the other.

use std::{collections::VecDeque, fmt, sync::Arc};

use ron_core::{CallError, Inbox, Lane, LaneSpec, Lock, LockSpec, MemoryBudget, Metrics, Tally};

use crate::{
    OverlayError,
    logic::{message::Message, publishers::Gap},
};

pub(crate) const SUBSCRIPTION: LaneSpec = LaneSpec::new("ron-overlay", "subscription", 1024)
    .flow("one engine → one subscriber")
    .why("a second of a busy topic; whoever is later than that is told what it missed");

pub(crate) const MISSED: LockSpec = LockSpec::new("ron-overlay", "subscription.missed", 440)
    .guards("what one slow subscriber is to be told; held for a list operation");

/// Ranges of numbers that are told one by one. A subscriber that missed more is told the count of the oldest.
const RANGES_MAX: usize = 1024;

/// What a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// A message.
    Message {
        /// The message.
        message: Message,
        /// Links that it has crossed.
        hops: u8,
    },
    /// Messages that did not reach this node, and that repair has given up. One of them may still come.
    Gap(Gap),
    /// Messages that were here and did not wait for this subscriber, because it was too slow.
    Missed(Gap),
    /// So many more messages that did not wait, of which the numbers are not known any more.
    MissedMore(u64),
}

/// The engine's end.
pub(crate) struct Subscriber {
    lane: Lane<Delivery>,
    missed: Arc<Lock<Missed>>,
    told: Tally,
}

#[derive(Default)]
struct Missed {
    /// Gaps and what was missed, as they are told.
    ranges: VecDeque<Delivery>,
    more: u64,
}

/// Opens a way to a new subscriber.
pub(crate) fn open(
    spec: LaneSpec,
    budget: &MemoryBudget,
    metrics: &Metrics,
    told: Tally,
) -> (Subscriber, Subscription) {
    let (lane, inbox) = Lane::open_weighed(spec, metrics, budget, weigh);
    let missed = Arc::new(Lock::new(MISSED, Missed::default(), metrics));
    let subscriber = Subscriber { lane, missed: Arc::clone(&missed), told };
    (subscriber, Subscription { inbox, missed, is_closed: false })
}

/// A small message weighs nothing: the lane has room for so many of them.
fn weigh(delivery: &Delivery) -> usize {
    match delivery {
        Delivery::Message { message, .. } if message.payload().len() > 4 << 10 => message.payload().len(),
        _ => 0,
    }
}

impl Subscriber {
    /// Hands a message on. Says whether anybody is there.
    pub(crate) fn deliver(&self, message: &Message, hops: u8) -> bool {
        self.push(Delivery::Message { message: message.clone(), hops })
    }

    /// Tells of a gap. Says whether anybody is there.
    pub(crate) fn tell_gap(&self, gap: &Gap) -> bool {
        self.push(Delivery::Gap(gap.clone()))
    }

    fn push(&self, delivery: Delivery) -> bool {
        match self.lane.try_push_or_return(delivery) {
            Ok(()) => true,
            Err((CallError::Canceled, _)) => false,
            Err((_, delivery)) => self.push_or_note(delivery),
        }
    }

    fn push_or_note(&self, delivery: Delivery) -> bool {
        let mut missed = self.missed.lock();
        match self.lane.try_push_or_return(delivery) {
            Ok(()) => true,
            Err((CallError::Canceled, _)) => false,
            Err((_, Delivery::Message { message, .. })) => {
                let serial = message.serial();
                self.told.add(1);
                missed.note(Delivery::Missed(Gap {
                    publisher: serial.publisher,
                    since: serial.since,
                    seqs: serial.seq..=serial.seq,
                }));
                true
            }
            Err((_, other)) => {
                missed.note(other);
                true
            }
        }
    }
}

impl Missed {
    fn note(&mut self, told: Delivery) {
        if let Delivery::Missed(gap) = &told {
            let latest = self.ranges.iter_mut().rev().find_map(|range| match range {
                Delivery::Missed(range) if range.publisher == gap.publisher => Some(range),
                _ => None,
            });
            if let Some(range) = latest.filter(|range| range.since == gap.since) {
                if range.seqs.end() + 1 == *gap.seqs.start() {
                    range.seqs = *range.seqs.start()..=*gap.seqs.end();
                    return;
                }
            }
        }
        if self.ranges.len() >= RANGES_MAX {
            self.more += match self.ranges.pop_front() {
                Some(Delivery::Gap(gap) | Delivery::Missed(gap)) => gap.count(),
                _ => 0,
            };
        }
        self.ranges.push_back(told);
    }

    fn take(&mut self) -> Option<Delivery> {
        if self.more > 0 {
            return Some(Delivery::MissedMore(std::mem::take(&mut self.more)));
        }
        self.ranges.pop_front()
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscriber({:?})", self.lane)
    }
}

/// The messages of a topic, and what is missing of them. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    inbox: Inbox<Delivery>,
    missed: Arc<Lock<Missed>>,
    is_closed: bool,
}

impl Subscription {
    /// What comes next; `None` when this node has left the topic or stopped, and all that was there has been read.
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Delivery> {
        loop {
            if let Some(delivery) = self.try_recv() {
                return Some(delivery);
            }
            if self.is_closed {
                return None;
            }
            match self.inbox.recv().await {
                Some(delivery) => return Some(delivery),
                // What was missed up to the end is still to be told.
                None => self.is_closed = true,
            }
        }
    }

    /// What is there now.
    pub fn try_recv(&mut self) -> Option<Delivery> {
        if self.inbox.depth() > 0 {
            if let Some(delivery) = self.inbox.try_recv() {
                return Some(delivery);
            }
        }
        // The engine notes a loss only while the lane is full, and under this lock.
        let mut missed = self.missed.lock();
        match self.inbox.try_recv() {
            Some(delivery) => Some(delivery),
            None => missed.take(),
        }
    }

    /// The next message, for who takes everything else for an error. After an error it goes on.
    ///
    /// # Errors
    /// [`OverlayError::Lagging`] if this subscriber was too slow for some, [`OverlayError::Lost`] if some did not reach
    /// this node.
    pub async fn next(&mut self) -> Result<Option<Message>, OverlayError> {
        match self.recv().await {
            Some(Delivery::Message { message, .. }) => Ok(Some(message)),
            Some(Delivery::Gap(gap)) => {
                Err(OverlayError::Lost { publisher: gap.publisher, count: gap.count() })
            }
            Some(Delivery::Missed(gap)) => Err(OverlayError::Lagging { missed: gap.count() }),
            Some(Delivery::MissedMore(missed)) => Err(OverlayError::Lagging { missed }),
            None => Ok(None),
        }
    }
}

impl fmt::Debug for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Missed({} ranges, {} more)", self.ranges.len(), self.more)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ron_core::{Capacity, NodeId};

    use super::*;
    use crate::logic::{message::TopicId, publishers::Serial};

    fn message(publisher: u8, seq: u64) -> Message {
        let serial = Serial { publisher: NodeId::from_bytes([publisher; 32]), since: 5, seq };
        Message::unsigned(&TopicId::of("news"), serial, Bytes::from_static(b"hello"))
    }

    fn small(room: usize) -> (Subscriber, Subscription) {
        let (metrics, budget) = (Metrics::default(), MemoryBudget::new("subscriptions", 1 << 20));
        let spec = SUBSCRIPTION.with_capacity(Capacity::new("room", room).unwrap());
        open(spec, &budget, &metrics, Tally::default())
    }

    fn read(subscription: &mut Subscription) -> Vec<String> {
        let next = std::iter::from_fn(|| subscription.try_recv());
        let show = |delivery| match delivery {
            Delivery::Message { message, .. } => format!("{}", message.serial().seq),
            Delivery::Missed(gap) => {
                format!("{} missed {:?}", gap.publisher.as_bytes()[0], gap.seqs)
            }
            other => format!("{other:?}"),
        };
        next.map(show).collect()
    }

    #[test]
    fn a_slow_subscriber_learns_exactly_what_it_missed() {
        let (subscriber, mut subscription) = small(3);
        for (publisher, seq) in [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1), (1, 6), (2, 2)] {
            assert!(subscriber.deliver(&message(publisher, seq), 0));
        }
        assert_eq!(read(&mut subscription), ["1", "2", "3", "1 missed 4..=6", "2 missed 1..=2"]);
        assert!(subscriber.deliver(&message(1, 7), 0));
        assert_eq!(read(&mut subscription), ["7"]);
        drop(subscription);
        assert!(!subscriber.deliver(&message(1, 8), 0), "nobody is there");
    }

    /// What did not reach this node was nobody's slowness, whoever reads how slowly.
    #[test]
    fn a_gap_stays_a_gap_for_a_slow_subscriber() {
        let (subscriber, mut subscription) = small(1);
        let gap = Gap { publisher: NodeId::from_bytes([1; 32]), since: 5, seqs: 2..=3 };
        assert!(subscriber.deliver(&message(1, 1), 0) && subscriber.tell_gap(&gap));
        assert!(subscriber.deliver(&message(1, 4), 0) && subscriber.deliver(&message(1, 5), 0));
        let told: Vec<Delivery> = std::iter::from_fn(|| subscription.try_recv()).skip(1).collect();
        let missed = Gap { seqs: 4..=5, ..gap.clone() };
        assert_eq!(told, [Delivery::Gap(gap), Delivery::Missed(missed)]);
    }

    #[test]
    fn losses_beyond_all_bounds_are_still_counted() {
        let (subscriber, mut subscription) = small(1);
        for seq in 1..=3001 {
            assert!(subscriber.deliver(&message(1, seq * 2), 0));
        }
        let (mut told, mut ranges) = (0, 0);
        while let Some(delivery) = subscription.try_recv() {
            match delivery {
                Delivery::Missed(gap) => (told, ranges) = (told + gap.count(), ranges + 1),
                Delivery::MissedMore(more) => told += more,
                _ => {}
            }
        }
        assert_eq!((told, ranges), (3000, RANGES_MAX));
    }
}
