//! The way of a message: in, past the checks, out to subscribers and on to others.

use std::time::Duration;

use ron_core::NodeId;

use super::{
    super::{
        message::{Message, MessageId},
        publishers::{Freshness, Serial},
        store::Kept,
    },
    Gossip, HAVE_TREES_MAX, IDS_MAX, Offence, Output, Pushed, Unchecked, Verdict, Word,
};

/// Announcements to one neighbour that wait at most. More are dropped: a digest finds what is missed.
const ANNOUNCE_MAX: usize = 4096;

/// How much longer announcements wait than on a quiet topic, at most, and from how many messages on in the time that they
/// wait there.
const ANNOUNCE_LATER_MAX: u32 = 5;
const ANNOUNCE_LATER_AT: u32 = 2;

/// After this long without a message a topic is quiet again.
const QUIET: Duration = Duration::from_secs(1);

/// How long announcements wait, by how many messages came while they last did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    times: u32,
    messages: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { times: 1, messages: 0 }
    }
}

impl Pace {
    /// Announcements are made: the next wait longer if many messages came, and less if hardly any did.
    fn turn(&mut self) {
        let messages = std::mem::take(&mut self.messages);
        if messages >= ANNOUNCE_LATER_AT * self.times {
            self.times = (self.times + 1).min(ANNOUNCE_LATER_MAX);
        } else if messages < self.times {
            self.times = (self.times - 1).max(1);
        }
    }
}

impl Gossip {
    /// Publishes a message of ours, made with [`next_serial`](Self::next_serial).
    pub fn publish(&mut self, message: Message, now: Duration) {
        let Serial { publisher, since, seq } = *message.serial();
        debug_assert_eq!((publisher, seq), (self.me, self.own.seq() + 1));
        if self.own.on_publish(since, seq) {
            self.publishers.renumber(&self.me, since);
        }
        self.trees.on_publish(now);
        let tree = self.trees.choose(now).unwrap_or(self.me);
        self.trees.on_pushed(&tree);
        let pushed = Pushed { tree, hops: 0, is_repair: false, message };
        self.accept(self.me, pushed, &[], now);
    }

    pub(super) fn on_push(&mut self, from: NodeId, pushed: Pushed, now: Duration) {
        self.counts.received += 1;
        let id = pushed.message.id();
        self.note_holder(from, &id);
        if self.store.knows(&id) {
            self.on_duplicate(from, &id, &pushed, now);
            return;
        }
        if let Some(unchecked) = self.unchecked.get_mut(&id) {
            self.counts.duplicates += 1;
            if self.links.contains_key(&from) && !unchecked.holders.contains(&from) {
                unchecked.holders.push(from);
            }
            return;
        }
        let is_stale = self.publishers.freshness(pushed.message.serial()) != Freshness::New;
        if is_stale || pushed.hops > self.settings.hops_max || pushed.message.serial().publisher == self.me {
            self.counts.stale += 1;
            return;
        }
        let bytes = self.unchecked_bytes + pushed.message.payload().len();
        let is_much = bytes > self.settings.unchecked_bytes && !self.unchecked.is_empty();
        if is_much || self.unchecked.len() >= self.settings.unchecked_max {
            self.counts.unchecked_shed += 1;
            return;
        }
        self.unchecked_bytes = bytes;
        let message = pushed.message.clone();
        self.unchecked.insert(id, Unchecked { since: now, from, pushed, holders: Vec::new() });
        self.outputs.push_back(Output::Check { message });
    }

    /// The host has looked at a message.
    pub fn on_verdict(&mut self, id: &MessageId, verdict: Verdict, now: Duration) {
        let Some(Unchecked { from, pushed, holders, .. }) = self.unchecked.remove(id) else { return };
        self.unchecked_bytes -= pushed.message.payload().len();
        match verdict {
            Verdict::Accept => self.accept(from, pushed, &holders, now),
            Verdict::Ignore => {
                self.store.note(*id, now);
                self.publishers.on_message(pushed.message.serial(), now);
                self.forget_missing(id);
            }
            Verdict::Reject { is_proven } => {
                self.store.note(*id, now);
                self.forget_missing(id);
                if is_proven {
                    self.publishers.on_message(pushed.message.serial(), now);
                }
                self.offend(from, Offence::Invalid);
            }
            Verdict::Forged => {
                self.offend(from, Offence::Invalid);
                // True copies may have come meanwhile, and were not looked at.
                if let Some(holder) = holders.into_iter().find(|peer| self.links.contains_key(peer)) {
                    self.send(holder, Word::Want(vec![*id]));
                }
            }
            Verdict::Shed => self.counts.unchecked_shed += 1,
        }
    }

    /// A good message is here for the first time.
    fn accept(&mut self, from: NodeId, pushed: Pushed, holders: &[NodeId], now: Duration) {
        let serial = *pushed.message.serial();
        // A publisher may have given one number twice, and the other one was first.
        if self.publishers.freshness(&serial) != Freshness::New {
            self.counts.stale += 1;
            return;
        }
        let id = pushed.message.id();
        let was_quiet = self.last_message.replace(now).is_none_or(|at| at + QUIET <= now);
        if was_quiet {
            self.pace = Pace::default();
        }
        self.publishers.on_message(&serial, now);
        self.drain_gaps();
        self.trees.on_used(&pushed.tree, now);
        let sources = self.learn_from_arrival(from, &pushed, now);
        if pushed.is_repair {
            self.counts.repaired += 1;
        }
        let kept = Kept { message: pushed.message.clone(), tree: pushed.tree, hops: pushed.hops };
        self.store.keep(kept, now);
        if from != self.me {
            self.outputs.push_back(Output::Deliver { message: pushed.message.clone(), hops: pushed.hops });
        }
        let has_it = |peer: &NodeId| *peer == from || holders.contains(peer) || sources.contains(peer);
        let others: Vec<NodeId> = self.links.keys().filter(|peer| !has_it(peer)).copied().collect();
        self.relay(id, pushed, &others, now);
    }

    fn relay(&mut self, id: MessageId, pushed: Pushed, others: &[NodeId], now: Duration) {
        let Pushed { tree, hops, is_repair, message } = pushed;
        if hops >= self.settings.hops_max {
            self.counts.stale += 1;
            return;
        }
        self.pace.messages = self.pace.messages.saturating_add(1);
        let mut copies = 0;
        for peer in others {
            let is_pushed =
                !is_repair && copies < self.settings.relay_fanout && self.trees.is_eager(&tree, peer, now);
            if is_pushed {
                copies += 1;
                let message = message.clone();
                self.send(*peer, Word::Push(Pushed { tree, hops: hops + 1, is_repair, message }));
            } else if let Some(link) = self.links.get_mut(peer) {
                if link.announce.len() >= ANNOUNCE_MAX {
                    self.counts.unannounced += 1;
                    continue;
                }
                link.announce.push((tree, id));
                self.announce_at.get_or_insert(now + self.settings.announce_after * self.pace.times);
            }
        }
    }

    /// Sends the announcements that have gathered.
    pub(super) fn announce(&mut self) {
        self.announce_at = None;
        self.pace.turn();
        let mut out = Vec::new();
        for (peer, link) in &mut self.links {
            let mut waiting = std::mem::take(&mut link.announce);
            waiting.sort_by_key(|(tree, _)| *tree);
            for part in waiting.chunks(IDS_MAX) {
                let by_tree = part.chunk_by(|one, next| one.0 == next.0);
                let haves: Vec<(NodeId, Vec<MessageId>)> =
                    by_tree.map(|ids| (ids[0].0, ids.iter().map(|(_, id)| *id).collect())).collect();
                out.extend(haves.chunks(HAVE_TREES_MAX).map(|haves| (*peer, Word::Have(haves.to_vec()))));
            }
        }
        out.into_iter().for_each(|(to, word)| self.send(to, word));
    }

    /// `peer` has this message, so it need not be told.
    pub(super) fn note_holder(&mut self, peer: NodeId, id: &MessageId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.announce.retain(|(_, waiting)| waiting != id);
        }
    }

    fn on_duplicate(&mut self, from: NodeId, id: &MessageId, pushed: &Pushed, now: Duration) {
        self.counts.duplicates += 1;
        self.learn_from_duplicate(from, id, &pushed.tree, now);
        // It pushes to us and is neither parent nor child: it does not know how we stand.
        if !self.trees.is_eager(&pushed.tree, &from, now) {
            self.trees.owe(from, pushed.tree, now);
        }
    }
}
