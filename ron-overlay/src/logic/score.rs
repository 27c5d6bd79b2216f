//! What a peer's behaviour is worth.
//!
//! Offences weigh by what they cost others and fade with time, so that an honest peer on a bad line is forgiven and one
//! that keeps at it is not. Beyond the limit a peer is banned for a while: it is no neighbour on any topic, and what it
//! sends is not looked at.

use std::{collections::BTreeMap, time::Duration};

use ron_core::NodeId;

use super::gossip::Offence;

/// The knobs of the score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreSettings {
    /// Points at which a peer is banned. Default 100: four invalid messages at once, or twenty floods.
    pub ban_at: f64,
    /// For how long. Default 5 min.
    pub ban_for: Duration,
    /// Points halve in this time. Default 30 s.
    pub half_life: Duration,
    /// Peers that are remembered. Beyond it the best behaved are forgotten. Default 1024.
    pub peers: usize,
}

impl Default for ScoreSettings {
    fn default() -> Self {
        ScoreSettings {
            ban_at: 100.0,
            ban_for: Duration::from_secs(300),
            half_life: Duration::from_secs(30),
            peers: 1024,
        }
    }
}

/// How all peers behaved.
#[derive(Debug)]
pub struct Scores {
    settings: ScoreSettings,
    peers: BTreeMap<NodeId, Score>,
}

#[derive(Debug, Clone, Copy)]
struct Score {
    points: f64,
    /// When being late or greedy last counted.
    late_at: Option<Duration>,
    at: Duration,
    banned_until: Option<Duration>,
}

/// Being late counts at most this often: when everybody is overloaded, everybody is late a thousand times, and to ban
/// everybody would be the end of the topic. So does being greedy: a peer with many topics does not know how many it may
/// have here.
const LATE_EVERY: Duration = Duration::from_secs(1);

/// What an offence weighs: checks of signatures that came to nothing cost most.
const fn weight(offence: Offence) -> f64 {
    match offence {
        Offence::Invalid => 26.0,
        Offence::Spam => 5.0,
        Offence::Silent => 2.0,
        Offence::Late | Offence::Greedy => 1.0,
    }
}

impl Scores {
    /// Everybody is new.
    #[must_use]
    pub fn new(settings: ScoreSettings) -> Self {
        Scores { settings, peers: BTreeMap::new() }
    }

    /// A peer did what it should not. Returns until when it is banned, if this was too much.
    pub fn on_offence(&mut self, peer: NodeId, offence: Offence, now: Duration) -> Option<Duration> {
        let mut late_at = self.peers.get(&peer).and_then(|score| score.late_at);
        if matches!(offence, Offence::Late | Offence::Greedy) {
            if late_at.is_some_and(|at| now < at + LATE_EVERY) {
                return None;
            }
            late_at = Some(now);
        }
        let points = self.points(&peer, now) + weight(offence);
        let banned_until = self.banned_until(&peer, now);
        let is_too_much = points >= self.settings.ban_at && banned_until.is_none();
        let until = is_too_much.then(|| now + self.settings.ban_for);
        // A ban is paid with the points, or its end would be the beginning of the next.
        let points = if is_too_much { 0.0 } else { points };
        self.peers.insert(peer, Score { points, late_at, at: now, banned_until: until.or(banned_until) });
        if self.peers.len() > self.settings.peers {
            let half_life = self.settings.half_life;
            let best = self.peers.iter().min_by(|(_, one), (_, other)| {
                let rank = |score: &Score| {
                    (score.banned_until.is_some_and(|until| until > now), score.faded(now, half_life))
                };
                rank(one).partial_cmp(&rank(other)).expect("points are numbers")
            });
            let best = best.map(|(id, _)| *id);
            best.and_then(|id| self.peers.remove(&id));
        }
        until
    }

    /// Until when a peer is banned, if it is.
    #[must_use]
    pub fn banned_until(&self, peer: &NodeId, now: Duration) -> Option<Duration> {
        self.peers.get(peer)?.banned_until.filter(|until| *until > now)
    }

    /// The points of a peer; none is good.
    #[must_use]
    pub fn points(&self, peer: &NodeId, now: Duration) -> f64 {
        self.peers.get(peer).map_or(0.0, |score| score.faded(now, self.settings.half_life))
    }
}

impl Score {
    fn faded(&self, now: Duration, half_life: Duration) -> f64 {
        let halves = now.saturating_sub(self.at).as_secs_f64() / half_life.as_secs_f64();
        self.points * 0.5_f64.powf(halves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn four_invalid_messages_at_once_are_too_many_and_four_an_hour_are_not() {
        let mut scores = Scores::new(ScoreSettings::default());
        for _ in 0..3 {
            assert_eq!(scores.on_offence(peer(1), Offence::Invalid, secs(1)), None);
        }
        assert_eq!(scores.on_offence(peer(1), Offence::Invalid, secs(1)), Some(secs(301)));
        assert_eq!(scores.banned_until(&peer(1), secs(300)), Some(secs(301)));
        assert_eq!(scores.banned_until(&peer(1), secs(301)), None);
        for quarter in 0..100 {
            assert_eq!(scores.on_offence(peer(2), Offence::Invalid, secs(quarter * 900)), None);
        }
    }

    #[test]
    fn a_bad_line_is_forgiven_and_so_is_a_node_with_too_much_to_do() {
        let mut scores = Scores::new(ScoreSettings::default());
        for second in 0..3600 {
            for _ in 0..100 {
                assert_eq!(scores.on_offence(peer(1), Offence::Late, secs(second)), None, "second {second}");
            }
        }
        assert!(scores.points(&peer(1), secs(3600)) > 10.0, "and still it is worth less than others");
    }

    #[test]
    fn whoever_is_forgotten_is_not_the_banned_one() {
        let mut scores = Scores::new(ScoreSettings { peers: 4, ..ScoreSettings::default() });
        for _ in 0..4 {
            scores.on_offence(peer(0), Offence::Invalid, secs(1));
        }
        for number in 1..100 {
            scores.on_offence(peer(number), Offence::Spam, secs(2));
        }
        assert_eq!(scores.peers.len(), 4);
        assert!(scores.banned_until(&peer(0), secs(2)).is_some());
    }
}
