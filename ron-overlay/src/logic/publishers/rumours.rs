//! What neighbours say was published, and is not here.
//!
//! A hole shows with the next message. After the last message there is none: who missed that one hears of it by digests alone, asks for
//! it, and may ask somebody who has let go of it by then. It is told as missing all the same, if two peers say so, or its
//! publisher, or the only neighbour there is. One of many that makes numbers up is not believed, and neither does it keep
//! others from being heard: when there is no more room, whoever spoke alone about most publishers loses one of those.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use ron_core::NodeId;

use super::{
    Mark, Summary,
    holders::{Held, Holders},
};

/// Peers that are listened to about one publisher. Those that say most are: two of them are believed.
const VOICES_MAX: usize = 8;

/// Ranges of one publisher that are remembered as told. One continues the other, but for what is said to be more than a window further:
/// that is made up, or a node was cut off for long, and either hardly happens so often before a message comes.
const TOLD_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Rumours {
    publishers: BTreeMap<NodeId, Rumour>,
    /// Those about whom something is waited for, by since when.
    waiting: BTreeSet<(Duration, NodeId)>,
    holders: Holders,
}

#[derive(Debug)]
struct Rumour {
    held: Held,
    /// The highest that each peer says there is.
    voices: BTreeMap<NodeId, Mark>,
    /// What is believed and not here, and since when.
    waiting: Option<(Mark, Duration)>,
    /// What was told as missing and is above all that came: of which beginning, from where, and up to where, in order and
    /// apart from each other.
    told: Vec<(u64, u64, u64)>,
}

impl Rumour {
    fn new(held: Held) -> Self {
        Rumour { held, voices: BTreeMap::new(), waiting: None, told: Vec::new() }
    }

    fn hear(&mut self, from: NodeId, mark: Mark) {
        self.voices.insert(from, mark);
        if self.voices.len() > VOICES_MAX {
            let lowest = self.voices.iter().min_by_key(|(_, mark)| **mark).map(|(peer, _)| *peer);
            lowest.and_then(|peer| self.voices.remove(&peer));
        }
    }

    /// The highest that is believed: what two say, or the publisher, or who is trusted alone.
    fn believed(&self, publisher: &NodeId, trusted: Option<&NodeId>) -> Mark {
        let mut marks: Vec<Mark> = self.voices.values().copied().collect();
        marks.sort_unstable_by(|one, other| other.cmp(one));
        let agreed = marks.get(1).copied().unwrap_or_default();
        let alone = [Some(publisher), trusted].into_iter().flatten().filter_map(|peer| self.voices.get(peer));
        alone.copied().fold(agreed, Mark::max)
    }

    fn was_told(&self, (since, high): Mark) -> bool {
        self.told.iter().any(|(began, from, to)| *began == since && (*from..=*to).contains(&high))
    }
}

impl Rumours {
    /// A peer says what there is of a publisher, and may be our only neighbour. `has` says of a mark whether nothing up to it is
    /// missing, or is owed at all; of so many publishers at most is listened to such words.
    pub(super) fn on_said(
        &mut self,
        from: NodeId,
        said: &Summary,
        (is_only, most): (bool, usize),
        now: Duration,
        has: impl Fn(Mark) -> bool,
    ) {
        let (publisher, mark) = (said.publisher, (said.since, said.high));
        if !self.publishers.contains_key(&publisher) {
            if has(mark) || most == 0 {
                return;
            }
            while self.publishers.len() >= most {
                let one = self.holders.dispensable().expect("each that is remembered is held by somebody");
                self.forget(&one);
            }
            self.publishers.insert(publisher, Rumour::new(self.holders.hold(publisher, from)));
        }
        let Some(rumour) = self.publishers.get_mut(&publisher) else { return };
        rumour.hear(from, mark);
        let believed = rumour.believed(&publisher, is_only.then_some(&from));
        if !has(believed) && !rumour.was_told(believed) {
            let (waiting, since) = rumour.waiting.unwrap_or((believed, now));
            rumour.waiting = Some((waiting.max(believed), since));
            self.waiting.insert((since, publisher));
        }
        // One may be made up. More than that would be made up about this very publisher.
        let is_alone = rumour.voices.len() == 1 && rumour.waiting.is_none() && rumour.told.is_empty();
        if !is_alone {
            self.holders.confirm(publisher, &mut rumour.held);
        }
    }

    /// What has been waited for since before this, and is now to be told as missing: whose, and up to where.
    pub(super) fn due(&mut self, before: Duration) -> Vec<(NodeId, Mark)> {
        let mut due = Vec::new();
        while let Some(first @ (_, publisher)) =
            self.waiting.first().copied().filter(|(since, _)| *since <= before)
        {
            self.waiting.remove(&first);
            let waiting = self.publishers.get_mut(&publisher).and_then(|rumour| rumour.waiting.take());
            due.extend(waiting.map(|(mark, _)| (publisher, mark)));
        }
        due
    }

    /// These numbers of a publisher were told as missing.
    pub(super) fn on_told(&mut self, publisher: &NodeId, since: u64, seqs: &RangeInclusive<u64>) {
        let Some(rumour) = self.publishers.get_mut(publisher) else { return };
        let (mut from, mut to) = (*seqs.start(), *seqs.end());
        // What touches what was told before is one with it.
        rumour.told.retain(|(began, low, high)| {
            let is_apart = *began != since || *high + 1 < from || to + 1 < *low;
            if !is_apart {
                (from, to) = (from.min(*low), to.max(*high));
            }
            is_apart
        });
        // The lowest is the next to be a hole, and the highest is what a liar makes up.
        rumour.told.truncate(TOLD_MAX - 1);
        rumour.told.push((since, from, to));
        rumour.told.sort_unstable();
    }

    /// Those of these numbers that were not told as missing.
    pub(super) fn untold(
        &self,
        publisher: &NodeId,
        since: u64,
        seqs: RangeInclusive<u64>,
    ) -> Vec<RangeInclusive<u64>> {
        let (mut next, last) = seqs.into_inner();
        let told = self.publishers.get(publisher).map_or(&[][..], |rumour| &rumour.told[..]);
        let mut untold = Vec::new();
        for (_, from, to) in told.iter().filter(|(began, from, _)| *began == since && *from <= last) {
            if next < *from {
                untold.push(next..=*from - 1);
            }
            next = next.max(*to + 1);
        }
        if next <= last {
            untold.push(next..=last);
        }
        untold
    }

    /// Since when something is waited for.
    pub(super) fn waiting_since(&self) -> Option<Duration> {
        self.waiting.first().map(|(since, _)| *since)
    }

    /// A message is here: what is waited for may be.
    pub(super) fn on_message(&mut self, publisher: &NodeId, mark: Mark) {
        let Some(rumour) = self.publishers.get_mut(publisher) else { return };
        if let Some((_, since)) = rumour.waiting.take_if(|(waiting, _)| *waiting <= mark) {
            self.waiting.remove(&(since, *publisher));
        }
        rumour.voices.retain(|_, said| *said > mark);
        // Below it a hole was opened for what was not told.
        rumour.told.retain_mut(|(since, from, to)| {
            if *since == mark.0 {
                *from = (*from).max(mark.1 + 1);
            }
            *since >= mark.0 && from <= to
        });
        if rumour.voices.is_empty() && rumour.waiting.is_none() && rumour.told.is_empty() {
            self.forget(publisher);
        }
    }

    fn forget(&mut self, publisher: &NodeId) {
        let Some(rumour) = self.publishers.remove(publisher) else { return };
        self.holders.let_go(publisher, rumour.held);
        if let Some((_, since)) = rumour.waiting {
            self.waiting.remove(&(since, *publisher));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    #[derive(Debug, Clone)]
    enum Step {
        Said(u8, u8, Mark),
        Came(u8, Mark),
        Due,
    }

    fn step() -> impl Strategy<Value = Step> {
        let mark = || (1_u64..4, 1_u64..9);
        prop_oneof![
            4 => (0_u8..12, 0_u8..30, mark()).prop_map(|(from, of, mark)| Step::Said(from, of, mark)),
            1 => (0_u8..30, mark()).prop_map(|(of, mark)| Step::Came(of, mark)),
            1 => Just(Step::Due),
        ]
    }

    proptest! {
        /// What is waited for is found without going through all, and each that is remembered is remembered because of somebody.
        #[test]
        fn the_orders_agree_with_what_is_remembered(steps in prop::collection::vec(step(), 1..200)) {
            let mut rumours = Rumours::default();
            for (at, step) in steps.into_iter().enumerate() {
                let now = Duration::from_millis(at as u64);
                match step {
                    Step::Said(from, of, (since, high)) => {
                        let said = Summary { publisher: id(of), since, high };
                        rumours.on_said(id(from), &said, (from == 0, 8), now, |(_, high)| high < 2);
                    }
                    Step::Came(of, mark) => rumours.on_message(&id(of), mark),
                    Step::Due => {
                        for (publisher, (since, high)) in rumours.due(now.saturating_sub(Duration::from_millis(10))) {
                            for seqs in rumours.untold(&publisher, since, 1..=high) {
                                rumours.on_told(&publisher, since, &seqs);
                            }
                        }
                    }
                }
                let all = &rumours.publishers;
                prop_assert!(all.len() <= 8);
                let waiting = all.iter().filter_map(|(id, rumour)| Some((rumour.waiting?.1, *id)));
                prop_assert_eq!(&waiting.collect::<BTreeSet<_>>(), &rumours.waiting);
                prop_assert!(rumours.holders.are(all.iter().map(|(id, rumour)| (*id, rumour.held))));
            }
        }
    }
}
