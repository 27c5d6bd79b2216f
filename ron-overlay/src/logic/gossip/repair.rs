//! What should be here and is not: announcements that nothing followed, and digests of what others have.

use std::{collections::BTreeMap, time::Duration};

use ron_core::NodeId;

use super::{
    super::{
        message::MessageId,
        publishers::{Serial, Summary},
    },
    DIGEST_FOR, FETCH_MAX, Gossip, IDS_MAX, Offence, Pushed, SUMMARIES_MAX, VERDICT_LOST, Word,
};

/// Sources of a missing message that are remembered.
const SOURCES_MAX: usize = 4;

/// Each neighbour may fill one in so many of what may be missing: as many as there are neighbours at most.
const MISSING_SHARES: usize = 8;

/// Messages whose late copies we still learn from.
const RECOVERED_MAX: usize = 256;

/// What asking adds to a round trip before the next source is asked.
const ANSWER_SLACK: Duration = Duration::from_millis(100);

/// One digest in so many goes to a spare: whoever has only bad neighbours hears of what it misses that way.
const SPARE_ONE_IN: usize = 4;

/// A message that was announced and is not here.
#[derive(Debug)]
pub(super) struct Missing {
    tree: NodeId,
    /// Who announced it first.
    by: NodeId,
    heard_at: Duration,
    due: Duration,
    /// The how-manieth that was announced.
    place: u64,
    sources: Vec<NodeId>,
    asked: Option<NodeId>,
}

/// How much later than its announcement a pushed message comes, when it does: mean and deviation as for a round trip.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lag {
    mean: Option<Duration>,
    spread: Duration,
}

impl Lag {
    fn on_sample(&mut self, sample: Duration) {
        match &mut self.mean {
            None => (self.mean, self.spread) = (Some(sample), sample / 2),
            Some(mean) => {
                self.spread = (self.spread * 7 + mean.abs_diff(sample)) / 8;
                *mean = (*mean * 15 + sample) / 16;
            }
        }
    }

    fn wait(&self, (least, most): (Duration, Duration)) -> Duration {
        self.mean.map_or(most / 2, |mean| mean + self.spread * 4).max(least).min(most)
    }
}

impl Gossip {
    pub(super) fn on_have(&mut self, from: NodeId, haves: Vec<(NodeId, Vec<MessageId>)>, now: Duration) {
        let all = haves.into_iter().flat_map(|(tree, ids)| ids.into_iter().map(move |id| (tree, id)));
        for (tree, id) in all.take(IDS_MAX) {
            self.note_holder(from, &id);
            if self.store.knows(&id) {
                continue;
            }
            if let Some(unchecked) = self.unchecked.get_mut(&id) {
                if !unchecked.holders.contains(&from) && unchecked.holders.len() < SOURCES_MAX * 2 {
                    unchecked.holders.push(from);
                }
                continue;
            }
            if let Some(missing) = self.missing.get_mut(&id) {
                if !missing.sources.contains(&from) && missing.sources.len() < SOURCES_MAX {
                    missing.sources.push(from);
                }
                continue;
            }
            // One that announces what there is not takes its own share of the room, and nobody else's.
            let Some(link) = self.links.get_mut(&from) else { return };
            let share = self.settings.missing_max / MISSING_SHARES;
            if link.wanted >= share.max(1) || self.missing.len() >= self.settings.missing_max {
                self.counts.unfollowed += 1;
                continue;
            }
            link.wanted += 1;
            let due = now + self.lag.wait(self.settings.want_after);
            self.announced += 1;
            let (place, sources) = (self.announced, vec![from]);
            self.missing
                .insert(id, Missing { tree, by: from, heard_at: now, due, place, sources, asked: None });
            self.due.insert((due, place, id));
        }
    }

    pub(super) fn forget_missing(&mut self, id: &MessageId) -> Option<Missing> {
        let missing = self.missing.remove(id)?;
        self.due.remove(&(missing.due, missing.place, *id));
        if let Some(link) = self.links.get_mut(&missing.by) {
            link.wanted = link.wanted.saturating_sub(1);
        }
        Some(missing)
    }

    /// Asks for what did not come, each from the nearest of those who announced it.
    pub(super) fn ask_for_missing(&mut self, now: Duration) {
        let mut wants: BTreeMap<NodeId, Vec<MessageId>> = BTreeMap::new();
        while let Some((at, place, id)) = self.due.first().copied() {
            if at > now {
                break;
            }
            self.due.pop_first();
            let Some(missing) = self.missing.get_mut(&id) else { continue };
            let broken = missing.asked.take();
            let (links, is_unchecked) = (&self.links, self.unchecked.contains_key(&id));
            missing.sources.retain(|source| links.contains_key(source));
            let near = |source: &NodeId| links.get(source).and_then(|link| link.rtt).unwrap_or(ANSWER_SLACK);
            let nearest = missing.sources.iter().enumerate().min_by_key(|(_, source)| near(source));
            let (Some((nearest, source)), false) = (nearest, is_unchecked) else {
                // Nobody left to ask. A digest will find it, or another announcement.
                self.forget_missing(&id);
                broken.into_iter().for_each(|peer| self.offend(peer, Offence::Late));
                continue;
            };
            let (source, due) = (*source, now + near(source) * 2 + ANSWER_SLACK);
            missing.sources.swap_remove(nearest);
            (missing.asked, missing.due) = (Some(source), due);
            self.due.insert((due, place, id));
            broken.into_iter().for_each(|peer| self.offend(peer, Offence::Late));
            wants.entry(source).or_default().push(id);
        }
        for (source, ids) in wants {
            ids.chunks(IDS_MAX).for_each(|ids| self.send(source, Word::Want(ids.to_vec())));
        }
    }

    pub(super) fn on_want(&mut self, from: NodeId, ids: &[MessageId], now: Duration) {
        for id in ids.iter().take(IDS_MAX) {
            let Some(kept) = self.store.get(id).cloned() else { continue };
            if !self.may_send(from, now) {
                return;
            }
            let (tree, hops, message) = (kept.tree, kept.hops.saturating_add(1), kept.message);
            if message.serial().publisher == self.me {
                self.trees.on_late(&tree);
            }
            self.send(from, Word::Push(Pushed { tree, hops, is_repair: false, message }));
        }
    }

    /// A message came for the first time. Returns who else has it.
    pub(super) fn learn_from_arrival(&mut self, from: NodeId, pushed: &Pushed, now: Duration) -> Vec<NodeId> {
        let id = pushed.message.id();
        let parent = self.trees.parent(&pushed.tree);
        let is_asked = self.missing.get(&id).is_some_and(|missing| missing.asked == Some(from));
        if is_asked || pushed.is_repair {
            self.trees.on_late(&pushed.tree);
        } else {
            self.trees.on_pushed(&pushed.tree);
        }
        let Some(missing) = self.forget_missing(&id) else {
            if parent == Some(from) {
                self.trees.on_delivered(&pushed.tree, &from);
            }
            return Vec::new();
        };
        match missing.asked {
            // It came because we asked; whoever should have pushed it has not, so far.
            Some(asked) if asked == from => {
                self.counts.recovered += 1;
                if let Some(parent) = parent.filter(|parent| *parent != from) {
                    self.trees.on_miss(&missing.tree, &parent, now);
                }
                self.recovered.push_back((id, missing.heard_at, parent.unwrap_or(self.me)));
                if self.recovered.len() > RECOVERED_MAX {
                    self.recovered.pop_front();
                }
            }
            _ => {
                self.lag.on_sample(now.saturating_sub(missing.heard_at));
                if parent == Some(from) {
                    self.trees.on_delivered(&pushed.tree, &from);
                }
            }
        }
        missing.sources.into_iter().chain(missing.asked).collect()
    }

    /// A copy came after we had asked for it elsewhere: we should have waited.
    pub(super) fn learn_from_duplicate(
        &mut self,
        from: NodeId,
        id: &MessageId,
        tree: &NodeId,
        now: Duration,
    ) {
        let Some(place) = self.recovered.iter().position(|(late, _, _)| late == id) else { return };
        let Some((_, heard_at, parent)) = self.recovered.remove(place) else { return };
        self.lag.on_sample(now.saturating_sub(heard_at));
        if parent == from {
            self.trees.on_delivered(tree, &from);
        }
    }

    /// Tells a random peer what we have, so that it fetches what it lacks.
    pub(super) fn digest(&mut self, now: Duration) {
        self.digest_at = now + self.settings.digest_every.mul_f64(0.75 + self.rng.f64() / 2.0);
        self.store.expire(now);
        let waiting = self.unchecked.len();
        self.unchecked.retain(|_, unchecked| unchecked.since + VERDICT_LOST > now);
        self.unchecked_bytes =
            self.unchecked.values().map(|unchecked| unchecked.pushed.message.payload().len()).sum();
        self.counts.unchecked_shed += (waiting - self.unchecked.len()) as u64;
        if self.last_message.is_none_or(|at| at + DIGEST_FOR < now) {
            return;
        }
        let summaries = self.publishers.summaries(now.saturating_sub(DIGEST_FOR), SUMMARIES_MAX);
        let neighbours: Vec<NodeId> = self.links.keys().copied().collect();
        let spares: Vec<NodeId> = self.view.spares().map(|spare| spare.id).collect();
        let is_spare = neighbours.is_empty() || self.rng.usize(..SPARE_ONE_IN) == 0 && !spares.is_empty();
        let among = if is_spare { spares } else { neighbours };
        if !summaries.is_empty() && !among.is_empty() {
            let to = among[self.rng.usize(..among.len())];
            self.send(to, Word::Digest(summaries));
        }
    }

    pub(super) fn on_digest(&mut self, from: NodeId, theirs: &[Summary], now: Duration) {
        let mut left = FETCH_MAX;
        let is_only = self.links.len() == 1 && self.links.contains_key(&from);
        for summary in theirs.iter().take(SUMMARIES_MAX) {
            if summary.publisher == self.me {
                self.own.on_known(summary.since);
                continue;
            }
            let seqs = self.publishers.missing(summary, left);
            self.publishers.on_said(from, summary, is_only, now);
            left -= seqs.len();
            if !seqs.is_empty() {
                // One fetch lasts until it has come: the next digest tells what is still missing.
                let Summary { publisher, since, .. } = *summary;
                self.last_message.get_or_insert(now);
                self.send(from, Word::Fetch { publisher, since, seqs });
            }
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        from: NodeId,
        publisher: NodeId,
        since: u64,
        seqs: &[u64],
        now: Duration,
    ) {
        for seq in seqs.iter().take(FETCH_MAX) {
            let kept = self.store.get_serial(&Serial { publisher, since, seq: *seq });
            let Some(kept) = kept.cloned() else { continue };
            if !self.may_send(from, now) {
                return;
            }
            let (tree, hops, message) = (kept.tree, kept.hops.saturating_add(1), kept.message);
            self.send(from, Word::Push(Pushed { tree, hops, is_repair: true, message }));
        }
    }
}
