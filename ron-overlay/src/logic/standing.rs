//! What is remembered of peers beyond their sessions.
//!
//! A peer that disconnects and comes back finds itself where it was: with its offences, with what it may still send in
//! this second, and with the topics on which it is our neighbour, however many sessions that took.

use std::{collections::BTreeMap, time::Duration};

use ron_core::NodeId;

use super::{
    rate::Meter,
    score::{ScoreSettings, Scores},
};

/// Peers that have gone within the last second whose rate is remembered: more than there may be sessions to lose.
const METERS_MAX: usize = 4096;

/// How peers stand with us.
#[derive(Debug)]
pub struct Standing {
    /// What they did that they should not.
    pub scores: Scores,
    topics: BTreeMap<NodeId, usize>,
    meters: BTreeMap<NodeId, Meter>,
}

impl Standing {
    /// Everybody is new.
    #[must_use]
    pub fn new(settings: ScoreSettings) -> Self {
        Standing { scores: Scores::new(settings), topics: BTreeMap::new(), meters: BTreeMap::new() }
    }

    /// A peer is our neighbour on one more topic, or on one less.
    pub fn count_topic(&mut self, peer: NodeId, is_more: bool) {
        let topics = self.topics.entry(peer).or_default();
        *topics = if is_more { *topics + 1 } else { topics.saturating_sub(1) };
        if *topics == 0 {
            self.topics.remove(&peer);
        }
    }

    /// Topics on which a peer is our neighbour.
    #[must_use]
    pub fn topics(&self, peer: &NodeId) -> usize {
        self.topics.get(peer).copied().unwrap_or(0)
    }

    /// A peer has gone. What it may send is remembered until it would be forgotten anyway.
    pub fn leave_meter(&mut self, peer: NodeId, meter: Meter, now: Duration) {
        if meter.is_full(now) {
            return;
        }
        if self.meters.len() >= METERS_MAX {
            self.meters.retain(|_, meter| !meter.is_full(now));
        }
        if self.meters.len() < METERS_MAX {
            self.meters.insert(peer, meter);
        }
    }

    /// What a peer that has come may send.
    pub fn take_meter(&mut self, peer: &NodeId) -> Meter {
        self.meters.remove(peer).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> NodeId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        NodeId::from_bytes(id)
    }

    #[test]
    fn who_comes_back_finds_its_rate_and_its_topics() {
        let mut standing = Standing::new(ScoreSettings::default());
        let mut meter = Meter::new();
        let at = Duration::from_millis;
        assert_eq!((0..20).filter(|_| meter.take(10, at(5000))).count(), 10);
        standing.leave_meter(peer(1), meter, at(5100));
        let mut again = standing.take_meter(&peer(1));
        assert_eq!((0..20).filter(|_| again.take(10, at(5200))).count(), 2);
        standing.leave_meter(peer(1), again, at(9000));
        assert!(standing.meters.is_empty(), "after a second nothing is left to remember");
        [true, true, false].into_iter().for_each(|is_more| standing.count_topic(peer(1), is_more));
        assert_eq!((standing.topics(&peer(1)), standing.topics(&peer(2))), (1, 0));
        standing.count_topic(peer(1), false);
        assert!(standing.topics.is_empty());
    }

    #[test]
    fn those_who_come_and_go_are_bounded() {
        let mut standing = Standing::new(ScoreSettings::default());
        for number in 0..10_000 {
            let mut meter = Meter::new();
            assert!(meter.take(1, Duration::ZERO));
            standing.leave_meter(peer(number), meter, Duration::ZERO);
        }
        assert_eq!(standing.meters.len(), METERS_MAX);
    }
}
