//! What waits to be sent to one peer, and in which order it goes.
//!
//! Control goes before gossip, and gossip before bulk, except that one in sixteen is of bulk if there is any: what
//! repairs losses must not starve under what causes them. Within a class, topics take turns by bytes (deficit round
//! robin), so that a topic with large messages does not slow one with small ones. Each class has room for so many
//! frames, and all together for so many bytes; what does not fit is refused, or takes the place of the oldest of its
//! own topic.

use ron_core::Overflow;

use super::{fair::Fair, gossip::Class, message::TopicId};

/// What each topic may send before the next has its turn, in bytes. About one chunk, so that a turn is never wasted.
const QUANTUM: usize = 64 << 10;

/// One in so many frames is of bulk.
const BULK_ONE_IN: u32 = 16;

/// What was done with a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Queued,
    /// It waits, and these of the same topic, which were older, do not any more.
    Shed(Vec<T>),
    /// There is no room for it.
    Full(T),
}

/// The queues to one peer.
#[derive(Debug)]
pub struct Lanes<T> {
    frames_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// Frames of gossip and bytes that room is kept for.
    reserved: (usize, usize),
    classes: [Fair<TopicId, T>; 3],
    since_bulk: u32,
}

impl<T> Lanes<T> {
    /// Empty queues with room for so many frames in each class, and so many bytes in all.
    #[must_use]
    pub fn new(frames_max: usize, bytes_max: usize) -> Self {
        Lanes {
            frames_max,
            bytes_max,
            bytes: 0,
            reserved: (0, 0),
            classes: [(); 3].map(|()| Fair::new(QUANTUM)),
            since_bulk: 0,
        }
    }

    /// Queues a frame of so many bytes.
    pub fn push(
        &mut self,
        class: Class,
        topic: TopicId,
        bytes: usize,
        frame: T,
        overflow: Overflow,
    ) -> Pushed<T> {
        if !self.has_room(class, bytes)
            && (overflow == Overflow::RejectNewest || !self.may_make_room(class, &topic, bytes))
        {
            return Pushed::Full(frame);
        }
        let mut shed = Vec::new();
        while !self.has_room(class, bytes) {
            let Some((gone, oldest)) = self.classes[class as usize].drop_oldest(&topic) else { break };
            self.bytes -= gone;
            shed.push(oldest);
        }
        self.bytes += bytes;
        self.classes[class as usize].push(topic, bytes, frame);
        if shed.is_empty() { Pushed::Queued } else { Pushed::Shed(shed) }
    }

    /// Whether a frame of so many bytes would fit if nothing else of its topic waited: if not, others hold the room, and
    /// nothing is shed for it.
    fn may_make_room(&self, class: Class, topic: &TopicId, bytes: usize) -> bool {
        let queue = &self.classes[class as usize];
        let (frames, own) = (queue.len_of(topic), queue.bytes_of(topic));
        let (reserved, reserved_bytes) = self.reserved;
        let reserved = if class == Class::Gossip { reserved } else { 0 };
        queue.len() - frames + reserved < self.frames_max
            && self.bytes - own + reserved_bytes + bytes <= self.bytes_max
    }

    /// The next frame to send.
    pub fn pop(&mut self) -> Option<T> {
        let [control, gossip, bulk] = &mut self.classes;
        let is_bulk_due = self.since_bulk + 1 >= BULK_ONE_IN && !bulk.is_empty();
        let popped = if let Some(popped) = control.pop() {
            Some(popped)
        } else if is_bulk_due {
            self.since_bulk = 0;
            bulk.pop()
        } else if let Some(popped) = gossip.pop() {
            self.since_bulk += 1;
            Some(popped)
        } else {
            self.since_bulk = 0;
            bulk.pop()
        };
        let (bytes, frame) = popped?;
        self.bytes -= bytes;
        Some(frame)
    }

    /// Frames that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.classes.iter().map(Fair::len).sum()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a frame of so many bytes fits.
    #[must_use]
    pub fn has_room(&self, class: Class, bytes: usize) -> bool {
        self.has_room_for(class, 1, bytes)
    }

    /// Whether so many frames of so many bytes in all fit beside what room is kept for.
    #[must_use]
    pub fn has_room_for(&self, class: Class, frames: usize, bytes: usize) -> bool {
        let (reserved, reserved_bytes) = self.reserved;
        let frames = frames + if class == Class::Gossip { reserved } else { 0 };
        let has_frames = self.classes[class as usize].len() + frames <= self.frames_max;
        has_frames && self.bytes + reserved_bytes + bytes <= self.bytes_max
    }

    /// Keeps room for so many frames of gossip and so many bytes, which must be there.
    pub fn reserve(&mut self, frames: usize, bytes: usize) {
        self.reserved = (self.reserved.0 + frames, self.reserved.1 + bytes);
    }

    /// Room that was kept is free again.
    pub fn release(&mut self, frames: usize, bytes: usize) {
        self.reserved = (self.reserved.0 - frames, self.reserved.1 - bytes);
    }

    /// Room for so many frames in each class from now on. What waits beyond that still goes.
    pub fn set_frames_max(&mut self, frames_max: usize) {
        self.frames_max = frames_max;
    }

    /// Frames that fit into each class.
    #[must_use]
    pub fn frames_max(&self) -> usize {
        self.frames_max
    }

    /// Frames of one class that wait.
    #[must_use]
    pub fn waiting(&self, class: Class) -> usize {
        self.classes[class as usize].len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(number: u8) -> TopicId {
        TopicId::from_bytes([number; 32])
    }

    fn fill(lanes: &mut Lanes<u32>, class: Class, of: u8, bytes: usize, frames: std::ops::Range<u32>) {
        for frame in frames {
            assert_eq!(lanes.push(class, topic(of), bytes, frame, Overflow::RejectNewest), Pushed::Queued);
        }
    }

    #[test]
    fn control_goes_first_and_bulk_does_not_starve() {
        let mut lanes = Lanes::new(512, 1 << 20);
        fill(&mut lanes, Class::Bulk, 1, 10, 200..202);
        fill(&mut lanes, Class::Gossip, 1, 10, 100..140);
        fill(&mut lanes, Class::Control, 1, 10, 0..3);
        let order: Vec<u32> = std::iter::from_fn(|| lanes.pop()).collect();
        assert_eq!(order[..3], [0, 1, 2]);
        assert_eq!(order[3..18], (100..115).collect::<Vec<_>>());
        assert_eq!(order[18], 200, "one in sixteen");
        assert_eq!(order.len(), 45);
        assert_eq!((lanes.len(), lanes.bytes()), (0, 0));
    }

    #[test]
    fn topics_share_by_bytes() {
        let mut lanes = Lanes::new(512, 64 << 20);
        fill(&mut lanes, Class::Gossip, 1, 64 << 10, 0..100);
        fill(&mut lanes, Class::Gossip, 2, 1 << 10, 1000..1400);
        let sent: Vec<u32> = (0..130).filter_map(|_| lanes.pop()).collect();
        let large = sent.iter().filter(|frame| **frame < 1000).count();
        let small = sent.len() - large;
        assert!((1..=3).contains(&large) && small >= 120, "{large} large, {small} small");
    }

    #[test]
    fn a_full_lane_refuses_or_sheds_its_own_oldest() {
        let mut lanes = Lanes::new(2, 1000);
        fill(&mut lanes, Class::Gossip, 1, 10, 0..2);
        assert_eq!(lanes.push(Class::Gossip, topic(1), 10, 2, Overflow::RejectNewest), Pushed::Full(2));
        assert_eq!(lanes.push(Class::Gossip, topic(1), 10, 2, Overflow::ShedOldest), Pushed::Shed(vec![0]));
        let stranger = lanes.push(Class::Gossip, topic(2), 10, 9, Overflow::ShedOldest);
        assert_eq!(stranger, Pushed::Full(9), "others' frames are not its to shed");
        assert_eq!(lanes.push(Class::Control, topic(1), 2000, 7, Overflow::RejectNewest), Pushed::Full(7));
        fill(&mut lanes, Class::Control, 1, 10, 7..8);
    }

    /// A frame that does not fit however many of its own topic go: they stay. They were shed for nothing, and the frame was said to
    /// wait.
    #[test]
    fn nothing_is_shed_for_what_does_not_fit_anyway() {
        let mut lanes = Lanes::new(8, 1000);
        fill(&mut lanes, Class::Gossip, 1, 100, 0..2);
        fill(&mut lanes, Class::Gossip, 2, 600, 2..3);
        assert_eq!(lanes.push(Class::Gossip, topic(1), 500, 9, Overflow::ShedOldest), Pushed::Full(9));
        assert_eq!((lanes.len(), lanes.bytes()), (3, 800));
        let fits = lanes.push(Class::Gossip, topic(1), 300, 9, Overflow::ShedOldest);
        assert_eq!(fits, Pushed::Shed(vec![0]));
    }

    /// What somebody was promised is not taken by a topic that sheds: its own oldest make room, and nobody else's place.
    #[test]
    fn room_that_is_kept_is_nobody_elses() {
        let mut lanes = Lanes::new(3, 1000);
        fill(&mut lanes, Class::Gossip, 1, 10, 0..1);
        lanes.reserve(1, 500);
        assert_eq!(lanes.push(Class::Gossip, topic(1), 10, 1, Overflow::ShedOldest), Pushed::Queued);
        assert_eq!(lanes.push(Class::Gossip, topic(1), 10, 2, Overflow::ShedOldest), Pushed::Shed(vec![0]));
        assert_eq!(lanes.push(Class::Control, topic(1), 490, 3, Overflow::RejectNewest), Pushed::Full(3));
        lanes.release(1, 500);
        assert_eq!(lanes.push(Class::Gossip, topic(2), 500, 4, Overflow::RejectNewest), Pushed::Queued);
    }

    proptest! {
        /// Nothing is lost and nothing is made up: all that went in comes out, is waiting or was given back.
        #[test]
        fn frames_are_conserved(steps: Vec<(u8, u8, u16, bool, bool)>) {
            let mut lanes = Lanes::new(8, 200_000);
            let (mut pushed, mut popped, mut refused) = (0_usize, 0, 0);
            for (number, (class, of, bytes, sheds, pops)) in steps.into_iter().enumerate() {
                let class = [Class::Control, Class::Gossip, Class::Bulk][usize::from(class % 3)];
                let overflow = if sheds { Overflow::ShedOldest } else { Overflow::RejectNewest };
                pushed += 1;
                match lanes.push(class, topic(of % 4), usize::from(bytes), number, overflow) {
                    Pushed::Queued => {}
                    Pushed::Shed(shed) => refused += shed.len(),
                    Pushed::Full(_) => refused += 1,
                }
                if pops {
                    popped += usize::from(lanes.pop().is_some());
                }
                prop_assert!(lanes.bytes() <= 200_000 && lanes.len() <= 24);
                prop_assert_eq!(pushed, popped + refused + lanes.len());
            }
            while lanes.pop().is_some() {
                popped += 1;
            }
            prop_assert_eq!(pushed, popped + refused);
            prop_assert_eq!(lanes.bytes(), 0);
        }
    }
}
