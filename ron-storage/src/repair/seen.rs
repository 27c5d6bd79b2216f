//! What comparisons with other nodes said last, so that the next one is only about what changed since.
//!
//! A comparison says what differs, and everything else that is here is there too. With a million objects and fifty nodes, taking all
//! of that in again every minute would be most of what a node does. So the differences of the last one are kept, and what changed
//! here meanwhile: only pieces that are in one of these can be news.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ron_core::{ContentId, NodeId};

/// Changes that are kept; 2 MiB. If more happened since the last comparison with a node, all of the next one is taken in.
const RECENT_MAX: usize = 65_536;

/// Differences that are kept of one comparison. A node that differs in more is new, or has lost its disk.
const DIFFERENCES_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Seen {
    changes: u64,
    recent: VecDeque<ContentId>,
    nodes: BTreeMap<NodeId, Last>,
}

#[derive(Debug)]
struct Last {
    after: u64,
    ours: BTreeSet<ContentId>,
    theirs: BTreeSet<ContentId>,
}

impl Seen {
    /// Something became known about a piece that is not from a comparison.
    pub(super) fn touch(&mut self, piece: ContentId) {
        self.changes += 1;
        self.recent.push_back(piece);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
    }

    /// The next comparison with each node is taken in as a whole.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Takes in a comparison. Says which pieces it may have news of; `None` is any.
    pub(super) fn compare(
        &mut self,
        node: NodeId,
        ours: &BTreeSet<ContentId>,
        theirs: &BTreeSet<ContentId>,
    ) -> Option<BTreeSet<ContentId>> {
        let last = self.nodes.remove(&node);
        if ours.len() + theirs.len() <= DIFFERENCES_MAX {
            let last = Last { after: self.changes, ours: ours.clone(), theirs: theirs.clone() };
            self.nodes.insert(node, last);
        }
        let last = last?;
        let missed = usize::try_from(self.changes - last.after).ok()?;
        let known = self.recent.len().checked_sub(missed)?;
        let mut news: BTreeSet<ContentId> = self.recent.range(known..).copied().collect();
        news.extend(last.ours.symmetric_difference(ours));
        news.extend(last.theirs.symmetric_difference(theirs));
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u32) -> ContentId {
        ContentId::of(&number.to_be_bytes())
    }

    fn set(numbers: &[u32]) -> BTreeSet<ContentId> {
        numbers.iter().map(|number| piece(*number)).collect()
    }

    #[test]
    fn only_what_changed_is_news() {
        let (mut seen, node) = (Seen::default(), NodeId::from_bytes([1; 32]));
        seen.touch(piece(9));
        assert_eq!(seen.compare(node, &set(&[1]), &set(&[2])), None, "the first time all is news");
        assert_eq!(seen.compare(node, &set(&[1]), &set(&[2])), Some(set(&[])));
        seen.touch(piece(3));
        assert_eq!(seen.compare(node, &set(&[1, 4]), &set(&[])), Some(set(&[2, 3, 4])));
        assert_eq!(seen.compare(NodeId::from_bytes([2; 32]), &set(&[]), &set(&[])), None);
        seen.clear();
        assert_eq!(seen.compare(node, &set(&[1, 4]), &set(&[])), None);
    }

    #[test]
    fn what_was_missed_is_not_guessed_at() {
        let (mut seen, node) = (Seen::default(), NodeId::from_bytes([1; 32]));
        seen.compare(node, &set(&[]), &set(&[]));
        (0..=RECENT_MAX as u32).for_each(|number| seen.touch(piece(number)));
        assert_eq!(seen.recent.len(), RECENT_MAX);
        assert_eq!(seen.compare(node, &set(&[]), &set(&[])), None);
        let many: BTreeSet<_> = (0..=DIFFERENCES_MAX as u32).map(piece).collect();
        assert_eq!(seen.compare(node, &many, &set(&[])).map(|news| news.len()), Some(DIFFERENCES_MAX + 1));
        assert_eq!(seen.compare(node, &set(&[]), &set(&[])), None, "it was too much to keep");
    }
}
