//! Whom a search has heard of, and what it asked them: how far they are, who named them, and whose word counts.

use std::{cmp::Reverse, net::SocketAddr, sync::Arc, time::Duration};

use ron_core::Distance;

use super::{
    super::{Contact, Rtt},
    Asked,
};

/// Referrals that failed before their source is judged at all. Two dead peers in a list of twenty are an honest table
/// on an ordinary day.
const BAD_REFERRALS: u16 = 3;

/// Sources remembered per candidate. Honest neighbours are named by nearly everybody, so four are enough for one of
/// them to stay trusted; what only liars name runs out of sources.
pub(super) const SOURCES_MAX: usize = 4;

/// Where a candidate, or the question to it, stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not asked yet.
    New,
    /// Asked and waited for.
    Active,
    /// Asked and no longer waited for.
    Aside,
    Answered,
    Gone,
}

#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) distance: Distance,
    pub(super) contact: Contact,
    pub(super) rtt: Rtt,
    pub(super) hop: u8,
    /// The paths that know it, one bit each. It belongs to all of them until one asks: if the first to name it owned
    /// it, a liar could take a peer out of the search by naming it early.
    pub(super) paths: u8,
    /// The questions whose answers named it first; none if it is of our own table.
    pub(super) sources: [Option<u16>; SOURCES_MAX],
    pub(super) stage: Stage,
    pub(super) elsewhere: Elsewhere,
}

/// Where else a candidate may be than where the first to name it said.
#[derive(Debug)]
pub(super) enum Elsewhere {
    /// All say the same.
    Unknown,
    /// Somebody said so.
    At(Arc<[SocketAddr]>),
    /// It was looked for there, or found in the first place. Nobody is looked for a third time.
    Tried,
}

impl Candidate {
    /// Somebody says that it is here.
    pub(super) fn hear(&mut self, addrs: &Arc<[SocketAddr]>) {
        let is_news = || addrs.iter().any(|addr| !self.contact.addrs.contains(addr));
        if matches!(self.elsewhere, Elsewhere::Unknown) && self.stage != Stage::Answered && is_news() {
            self.elsewhere = Elsewhere::At(Arc::clone(addrs));
        }
    }

    /// Nearest first, but among those with as many bits in common the fastest, and strangers last: they are equally
    /// far in every way that shortens the search.
    pub(super) fn rank(&self) -> (Reverse<u32>, Duration, Distance) {
        let rtt = self.rtt.mean().unwrap_or(Duration::MAX);
        (Reverse(self.distance.leading_zeros()), rtt, self.distance)
    }
}

#[derive(Debug)]
pub(super) struct Question {
    pub(super) asked: Asked,
    pub(super) path: usize,
    /// When its silence becomes somebody else's turn.
    pub(super) aside_at: Duration,
    pub(super) stage: Stage,
    /// Peers it named that answered, and that did not.
    pub(super) good: u16,
    pub(super) bad: u16,
}

impl Question {
    pub(super) fn is_discredited(&self) -> bool {
        self.bad >= BAD_REFERRALS && self.bad > 2 * self.good
    }
}
