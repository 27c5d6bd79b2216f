//! What neighbours say was published, and is not here.
//!
//! A hole shows with the next message. After the last message there is none: who missed that one hears of it by digests alone, asks for
//! it, and may ask somebody who has let go of it by then. It is told as missing all the same, if two neighbours say so, or its
//! publisher, or the only neighbour there is. One of many that makes numbers up is not believed.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use ron_core::NodeId;

use super::{Summary, WINDOW};

/// Neighbours that are listened to about one publisher.
const VOICES_MAX: usize = 8;

/// When a publisher began, and the number of a message.
type Mark = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Rumours {
    publishers: BTreeMap<NodeId, Rumour>,
}

#[derive(Debug, Default)]
struct Rumour {
    /// The highest that each neighbour says there is.
    voices: BTreeMap<NodeId, Mark>,
    /// What is believed and not here, and since when.
    waiting: Option<(Mark, Duration)>,
    /// Up to which it was told as missing.
    told: Mark,
}

impl Rumour {
    /// The highest that is believed.
    fn believed(&self, publisher: &NodeId, neighbours: usize) -> Mark {
        let mut marks: Vec<Mark> = self.voices.values().copied().collect();
        marks.sort_unstable_by(|one, other| other.cmp(one));
        let needed = if neighbours <= 1 { 1 } else { 2 };
        let agreed = marks.get(needed - 1).copied().unwrap_or_default();
        agreed.max(self.voices.get(publisher).copied().unwrap_or_default())
    }
}

impl Rumours {
    /// A neighbour, one of so many, says what there is of a publisher. `has` says of a mark whether nothing up to it is missing, or is
    /// owed at all; of so many publishers at most is listened to such words.
    pub(super) fn on_said(
        &mut self,
        from: NodeId,
        said: &Summary,
        (neighbours, most): (usize, usize),
        now: Duration,
        has: impl Fn(Mark) -> bool,
    ) {
        let (publisher, mark, is_full) =
            (said.publisher, (said.since, said.high), self.publishers.len() >= most);
        let rumour = match self.publishers.entry(publisher) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full || has(mark) => return,
            Entry::Vacant(new) => new.insert(Rumour::default()),
        };
        if rumour.voices.len() < VOICES_MAX || rumour.voices.contains_key(&from) {
            rumour.voices.insert(from, mark);
        }
        let believed = rumour.believed(&publisher, neighbours);
        let is_news = believed > rumour.told && !has(believed);
        match &mut rumour.waiting {
            Some((waiting, _)) if is_news => *waiting = believed.max(*waiting),
            None if is_news => rumour.waiting = Some((believed, now)),
            _ => {}
        }
    }

    /// What has been waited for since before this, and is now told as missing: whose, and up to where.
    pub(super) fn due(&mut self, before: Duration) -> Vec<(NodeId, Mark, u64)> {
        let mut due = Vec::new();
        for (publisher, rumour) in &mut self.publishers {
            let Some((mark, _)) = rumour.waiting.take_if(|(_, since)| *since <= before) else { continue };
            let told = if rumour.told.0 == mark.0 { rumour.told.1 } else { 0 };
            rumour.told = mark;
            due.push((*publisher, mark, told));
        }
        due
    }

    /// Up to which number of a beginning the publisher's messages were told as missing.
    pub(super) fn told(&self, publisher: &NodeId, since: u64) -> u64 {
        let told = self.publishers.get(publisher).map(|rumour| rumour.told);
        told.filter(|told| told.0 == since).map_or(0, |told| told.1)
    }

    /// Since when something is waited for.
    pub(super) fn waiting_since(&self) -> Option<Duration> {
        self.publishers.values().filter_map(|rumour| rumour.waiting.map(|(_, since)| since)).min()
    }

    /// A message is here: what is waited for may be.
    pub(super) fn on_message(&mut self, publisher: &NodeId, mark: Mark) {
        let Some(rumour) = self.publishers.get_mut(publisher) else { return };
        rumour.waiting = rumour.waiting.take().filter(|(waiting, _)| *waiting > mark);
        // What was told must not be told again as a hole, so it is remembered for as long as it can be one.
        let (since, told) = rumour.told;
        if rumour.waiting.is_none() && (told == 0 || since < mark.0 || told + WINDOW < mark.1) {
            self.publishers.remove(publisher);
        }
    }
}
