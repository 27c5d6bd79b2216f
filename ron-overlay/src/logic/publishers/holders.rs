//! Because of whom each publisher is remembered, and which one is forgotten when there is no more room.
//!
//! A publisher that only one peer spoke about may be made up. So it counts against that peer, and whoever spoke alone about
//! most publishers loses the oldest of those: one that makes publishers up takes room from nobody but itself.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use ron_core::NodeId;

#[derive(Debug, Default)]
pub(super) struct Holders {
    /// All, oldest first, by whoever makes us remember them: the only one who spoke about them, or else they themselves.
    held_by: BTreeMap<NodeId, BTreeSet<Place>>,
    /// How many each of those makes us remember, with the oldest: the last one here is the first to go. Whoever makes publishers up
    /// makes us look for that with every one.
    oldest: BTreeSet<(usize, Reverse<Place>)>,
    /// How many were ever heard of.
    heard: u64,
}

/// The how-manieth publisher that was heard of, and its name.
type Place = (u64, NodeId);

/// The how-manieth publisher that was heard of this is, and who makes us remember it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    place: u64,
    holder: NodeId,
}

impl Holders {
    /// A publisher is heard of for the first time.
    pub(super) fn hold(&mut self, publisher: NodeId, holder: NodeId) -> Held {
        self.heard += 1;
        let held = Held { place: self.heard, holder };
        self.change(holder, |all| all.insert((held.place, publisher)));
        held
    }

    /// More than one peer spoke about the publisher: it is remembered because of itself from now on.
    pub(super) fn confirm(&mut self, publisher: NodeId, held: &mut Held) {
        if held.holder == publisher {
            return;
        }
        self.let_go(&publisher, *held);
        held.holder = publisher;
        self.change(publisher, |all| all.insert((held.place, publisher)));
    }

    /// The publisher is forgotten.
    pub(super) fn let_go(&mut self, publisher: &NodeId, held: Held) {
        self.change(held.holder, |all| all.remove(&(held.place, *publisher)));
    }

    /// Which one to forget for another: the oldest that is remembered because of the peer that makes us remember most.
    pub(super) fn dispensable(&self) -> Option<NodeId> {
        self.oldest.last().map(|(_, Reverse((_, publisher)))| *publisher)
    }

    fn change(&mut self, holder: NodeId, change: impl FnOnce(&mut BTreeSet<Place>) -> bool) {
        let all = self.held_by.entry(holder).or_default();
        if let Some(oldest) = all.first() {
            self.oldest.remove(&(all.len(), Reverse(*oldest)));
        }
        change(all);
        match all.first() {
            Some(oldest) => drop(self.oldest.insert((all.len(), Reverse(*oldest)))),
            None => drop(self.held_by.remove(&holder)),
        }
    }

    /// Whether these are all that are remembered, and why.
    #[cfg(test)]
    pub(super) fn are(&self, all: impl Iterator<Item = (NodeId, Held)>) -> bool {
        let mut held_by: BTreeMap<NodeId, BTreeSet<Place>> = BTreeMap::new();
        for (publisher, held) in all {
            held_by.entry(held.holder).or_default().insert((held.place, publisher));
        }
        let oldest = held_by.values().filter_map(|held| Some((held.len(), Reverse(*held.first()?))));
        oldest.collect::<BTreeSet<_>>() == self.oldest && held_by == self.held_by
    }
}
