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
    held_by: BTreeMap<NodeId, BTreeSet<(u64, NodeId)>>,
    /// How many were ever heard of.
    heard: u64,
}

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
        self.held_by.entry(holder).or_default().insert((held.place, publisher));
        held
    }

    /// More than one peer spoke about the publisher: it is remembered because of itself from now on.
    pub(super) fn confirm(&mut self, publisher: NodeId, held: &mut Held) {
        if held.holder == publisher {
            return;
        }
        self.let_go(&publisher, *held);
        held.holder = publisher;
        self.held_by.entry(publisher).or_default().insert((held.place, publisher));
    }

    /// The publisher is forgotten.
    pub(super) fn let_go(&mut self, publisher: &NodeId, held: Held) {
        let Some(all) = self.held_by.get_mut(&held.holder) else { return };
        all.remove(&(held.place, *publisher));
        if all.is_empty() {
            self.held_by.remove(&held.holder);
        }
    }

    /// Which one to forget for another: the oldest that is remembered because of the peer that makes us remember most.
    pub(super) fn dispensable(&self) -> Option<NodeId> {
        let most = self.held_by.values().max_by_key(|held| (held.len(), held.first().map(Reverse)));
        most.and_then(BTreeSet::first).map(|(_, publisher)| *publisher)
    }

    /// Whether these are all that are remembered, and why.
    #[cfg(test)]
    pub(super) fn are(&self, all: impl Iterator<Item = (NodeId, Held)>) -> bool {
        let mut held_by: BTreeMap<NodeId, BTreeSet<(u64, NodeId)>> = BTreeMap::new();
        for (publisher, held) in all {
            held_by.entry(held.holder).or_default().insert((held.place, publisher));
        }
        held_by == self.held_by
    }
}
