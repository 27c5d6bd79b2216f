//! What an object lacks, and whose turn it is to do something about it.
//!
//! One look at who has which piece, held against what is wanted and where that belongs. Nothing is changed here: the answer is
//! how the object is doing, what this node should do, if anything, and when to look again.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ron_core::{ContentId, NodeId};

use super::{Class, Health, Holding, Job, Plan, Presence, Thing};
use crate::logic::{
    claims::{Standing, Wanted},
    place::{Candidate, place, score},
};

/// What one weighing says.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) health: Health,
    pub(super) step: Option<(Class, u8, Job)>,
    pub(super) wake: Option<Duration>,
}

impl Verdict {
    fn of(health: Health) -> Self {
        Verdict { health, step: None, wake: None }
    }
}

impl Plan {
    pub(super) fn judge(&self, object: &ContentId, now: Duration) -> Option<Verdict> {
        let thing = self.things.get(object)?;
        Some(match &thing.claimed.standing {
            Standing::Unclaimed => Verdict::of(Health::Met),
            Standing::Deleted => self.judge_deleted(object, thing),
            Standing::Live(wanted) => self.judge_live(object, thing, wanted, now),
        })
    }

    fn judge_deleted(&self, object: &ContentId, thing: &Thing) -> Verdict {
        let is_mine = |piece: &&ContentId| {
            let known = self.pieces.get(piece);
            known.is_some_and(|known| {
                known.on(&self.me).is_some() && !known.of.iter().any(|other| self.lives(other))
            })
        };
        let all = thing.claimed.shards.iter().flatten().chain(&thing.old).chain([object]);
        let pieces: BTreeSet<_> = all.filter(is_mine).copied().collect();
        let pieces: Vec<_> = pieces.into_iter().collect();
        let mut verdict = Verdict::of(Health::Deleted);
        verdict.step = (!pieces.is_empty()).then_some((Class::Drop, 0, Job::Drop { pieces }));
        verdict
    }

    fn lives(&self, object: &ContentId) -> bool {
        self.things.get(object).is_some_and(|thing| matches!(thing.claimed.standing, Standing::Live(_)))
    }

    fn judge_live(&self, object: &ContentId, thing: &Thing, wanted: &Wanted, now: Duration) -> Verdict {
        let whole = self.look(object);
        let mut health = Health::Met;
        let mut step: Option<(Class, u8, Job)> = None;
        let mut wake: Option<Duration> = None;
        let mut consider = |verdict: Verdict| {
            health = health.max(verdict.health);
            if let Some(new) = verdict.step {
                if step.as_ref().is_none_or(|old| (new.0, new.1) < (old.0, old.1)) {
                    step = Some(new);
                }
            }
            wake = [wake, verdict.wake].into_iter().flatten().min();
        };
        let belongs = |count: usize| self.targets_for(object, thing, count);
        let may_be_away = |count: usize| belongs(count).iter().any(|id| self.is_unknown(id));
        if wanted.copies > 0 && !whole.is_anywhere() && may_be_away(wanted.copies.into()) {
            consider(Verdict::of(Health::Under));
        } else if wanted.copies > 0 && whole.is_anywhere() {
            consider(self.judge_copies(object, thing, wanted.copies, &whole, now));
        } else if wanted.copies > 0 {
            consider(self.judge_restoring(object, thing, wanted, now));
        } else if wanted.codings.is_empty() && !whole.is_anywhere() {
            // Only a pin, and nothing left to keep.
            consider(Verdict::of(Health::Lost));
        }
        for at in 0..wanted.codings.len().min(thing.claimed.shards.len()) {
            consider(self.judge_shards(object, thing, wanted, at, &whole, now));
        }
        // Where it is about to go, also what is pinned goes to where it belongs.
        if wanted.is_pinned && wanted.copies == 0 && whole.is_here(&self.me) && self.is_leaving() {
            consider(self.judge_copies(object, thing, 1, &whole, now));
        }
        // A whole object that is only wanted as shards goes last, when all of them are where they belong. One that is as long as a shard
        // may be a shard of itself: as such it is wanted, and what is too many of it goes like any other shard.
        let is_own_shard = thing.claimed.shards.iter().flatten().any(|shard| shard == object);
        let is_extra = wanted.copies == 0 && !wanted.codings.is_empty() && !wanted.is_pinned && !is_own_shard;
        let is_settled = health == Health::Met && step.is_none();
        if is_extra && is_settled && self.lies_here(object) {
            if let Some(provers) = self.provers(object, thing) {
                step = Some((Class::Trim, 0, Job::Trim { piece: *object, provers }));
            }
        } else if is_settled && !wanted.is_pinned {
            // Shards of a coding that nobody wants any more go when what is wanted instead is there. What another object that
            // lives has to do with stays.
            let is_mine = |piece: &&ContentId| {
                let is_ours = |of: &ContentId| of == object || !self.lives(of);
                let known = self.pieces.get(piece);
                known.is_some_and(|known| known.on(&self.me).is_some() && known.of.iter().all(is_ours))
            };
            let provers = || match wanted.copies {
                0 => self.provers(object, thing),
                copies => {
                    let targets = belongs(copies.into());
                    let proves = |id: &NodeId| {
                        *id != self.me
                            && whole.safe.contains(id)
                            && self.is_reachable(id)
                            && self.is_steady(id)
                    };
                    let others: Vec<_> =
                        targets.iter().filter(|id| proves(id)).map(|id| (*object, *id)).collect();
                    let here = usize::from(targets.contains(&self.me) && whole.is_here(&self.me));
                    (others.len() + here >= usize::from(copies) && !others.is_empty()).then_some(others)
                }
            };
            if let Some((piece, provers)) = thing.old.iter().find(is_mine).zip(provers()) {
                step = Some((Class::Trim, 0, Job::Trim { piece: *piece, provers }));
            }
        }
        Verdict { health, step, wake }
    }

    /// For each shard that is not here, a node that has it, is there, and counts: the one that keeps it, and else any. Whoever promises
    /// to keep one that it has too many would have it for as long. Its own shards a node keeps, since an object has one job at a time.
    fn provers(&self, object: &ContentId, thing: &Thing) -> Option<Vec<(ContentId, NodeId)>> {
        let mut homes: BTreeSet<(ContentId, NodeId)> = BTreeSet::new();
        for shards in &thing.claimed.shards {
            let looks: Vec<Look> = shards.iter().map(|shard| self.look(shard)).collect();
            let (found, _) = self.homes(&looks, &self.targets_for(object, thing, shards.len()));
            homes.extend(shards.iter().zip(found).filter_map(|(shard, home)| Some((*shard, home?))));
        }
        let others = thing.claimed.shards.iter().flatten();
        let others: BTreeSet<_> =
            others.filter(|shard| !self.look(shard).safe.contains(&self.me)).copied().collect();
        let prover = |piece: &ContentId| {
            let proves = |id: &NodeId| {
                *id != self.me && self.is_safe(id) && self.is_reachable(id) && self.is_steady(id)
            };
            let holders = self.pieces.get(piece)?.holders.iter();
            holders
                .filter(|(id, held)| *held == Holding::Good && proves(id))
                .map(|(id, _)| (*piece, *id))
                .min_by_key(|prover| (!homes.contains(prover), *prover))
        };
        let provers: Option<Vec<_>> = others.iter().map(prover).collect();
        provers.filter(|provers| !provers.is_empty())
    }

    fn judge_copies(
        &self,
        object: &ContentId,
        thing: &Thing,
        copies: u8,
        whole: &Look,
        now: Duration,
    ) -> Verdict {
        let targets = self.targets_for(object, thing, copies.into());
        let is_missing = |id: &&NodeId| !whole.safe.contains(id) && !self.is_unknown(id);
        let missing: Vec<_> = targets.iter().filter(is_missing).copied().collect();
        let may_have = |id: &&NodeId| self.is_unknown(id) && !whole.safe.contains(id);
        let unknown = targets.iter().filter(may_have).count();
        let live = u8::try_from(whole.live).unwrap_or(u8::MAX);
        if whole.safe.len() + unknown < usize::from(copies) {
            // What is away counts as a copy until its grace is over, so this is urgent only afterwards.
            let is_last = copies > 1 && whole.safe.len() <= 1 && live <= 1;
            let (health, class) =
                if is_last { (Health::Urgent, Class::Urgent) } else { (Health::Under, Class::Copies) };
            let mut verdict = Verdict::of(health);
            // Who belongs there and is away may be back soon; the last copy does not wait for that.
            let there = missing.iter().find(|id| self.is_reachable(id)).copied();
            let instead = || {
                let others = self.place_there(object, thing, usize::from(copies) + whole.safe.len());
                others.into_iter().find(|id| !whole.safe.contains(id))
            };
            if let Some(to) = there.or_else(|| is_last.then(instead).flatten()) {
                self.take_turn(thing, &whole.sources, now, &mut verdict, || {
                    (class, live, Job::Copy { piece: *object, to })
                });
            }
            return verdict;
        }
        // What may be on a node that nobody has seen is not made again yet, and is not said to be there either.
        let is_known = whole.safe.len() >= usize::from(copies);
        let mut verdict = Verdict::of(if is_known { Health::Met } else { Health::Under });
        if !missing.is_empty() {
            if let Some(to) = missing.iter().find(|id| self.is_reachable(id) && self.is_steady(id)).copied() {
                self.take_turn(thing, &whole.sources, now, &mut verdict, || {
                    (Class::Move, live, Job::Copy { piece: *object, to })
                });
            }
            return verdict;
        }
        let is_pinned = matches!(&thing.claimed.standing, Standing::Live(wanted) if wanted.is_pinned);
        // Enough of them, all there, all where they belong, and this is none of them.
        let are_there = targets.len() >= usize::from(copies)
            && targets.iter().all(|id| self.is_reachable(id) && self.is_steady(id));
        let may_go = !is_pinned || self.is_leaving();
        if self.lies_here(object) && !targets.contains(&self.me) && are_there && may_go {
            let provers = targets.iter().map(|id| (*object, *id)).collect();
            verdict.step = Some((Class::Trim, live, Job::Trim { piece: *object, provers }));
        }
        verdict
    }

    /// No copy is left, and copies are wanted: shards of another owner's policy may still make one, or those of the policy before. Who has
    /// one of those looks for the others: who else has any is not kept in mind.
    fn judge_restoring(&self, object: &ContentId, thing: &Thing, wanted: &Wanted, now: Duration) -> Verdict {
        for (coding, shards) in wanted.codings.iter().zip(&thing.claimed.shards) {
            let looks: Vec<Look> = shards.iter().map(|shard| self.look(shard)).collect();
            if looks.iter().filter(|look| look.is_anywhere()).count() < usize::from(coding.data) {
                continue;
            }
            let mut verdict = Verdict::of(Health::Under);
            let sources = sources_of(&looks);
            if sources.len() >= usize::from(coding.data) {
                let mut line: Vec<_> = sources.iter().map(|(_, id)| *id).collect();
                self.sort(object, &mut line);
                self.take_turn(thing, &line, now, &mut verdict, || {
                    (Class::Copies, 0, Job::Restore { manifest: coding.manifest, sources })
                });
            }
            return verdict;
        }
        let mut verdict = Verdict::of(Health::Lost);
        if thing.old.iter().any(|piece| self.lies_here(piece)) {
            verdict.step = Some((Class::Copies, 0, Job::Recover));
        }
        verdict
    }

    fn judge_shards(
        &self,
        object: &ContentId,
        thing: &Thing,
        wanted: &Wanted,
        at: usize,
        whole: &Look,
        now: Duration,
    ) -> Verdict {
        let (coding, shards) = (wanted.codings[at], &thing.claimed.shards[at]);
        let looks: Vec<Look> = shards.iter().map(|shard| self.look(shard)).collect();
        let (data, all) = (usize::from(coding.data), shards.len());
        let anywhere = looks.iter().filter(|look| look.is_anywhere()).count();
        let reachable = looks.iter().filter(|look| !look.sources.is_empty()).count();
        let targets = self.targets_for(object, thing, all);
        let unknown = targets.iter().filter(|id| self.is_unknown(id)).count();
        if anywhere + unknown < data && !whole.is_anywhere() {
            return Verdict::of(Health::Lost);
        }
        let (homes, mut room) = self.homes(&looks, &targets);
        let homed = homes.iter().flatten().count();
        let is_last = homed < all && homed <= data && !whole.is_anywhere();
        room.retain(|(id, room)| *room > 0 && self.is_reachable(id));
        if room.is_empty() && is_last {
            // Who belongs there and is away may be back soon; the last shard does not wait for that.
            let others = self.place_there(object, thing, 2 * all);
            room = others.into_iter().filter(|id| !homes.contains(&Some(*id))).map(|id| (id, 1)).collect();
        }
        let mut next = || {
            // The emptiest first, so that none has two while another has none; of these the best.
            let (_, at) = room.iter().enumerate().map(|(at, (_, room))| (Reverse(*room), at)).min()?;
            (room[at].1 > 0).then(|| {
                room[at].1 -= 1;
                room[at].0
            })
        };
        let homeless: Vec<usize> = (0..all).filter(|index| homes[*index].is_none()).collect();
        if !homeless.is_empty() {
            let spare = u8::try_from(reachable.saturating_sub(data)).unwrap_or(u8::MAX);
            let (health, class) =
                if is_last { (Health::Urgent, Class::Urgent) } else { (Health::Under, Class::Parity) };
            let mut verdict = Verdict::of(health);
            // A shard that somebody has who does not count, or who has others too, is copied and not computed.
            let (there, lacking): (Vec<usize>, Vec<usize>) =
                homeless.iter().partition(|index| !looks[**index].sources.is_empty());
            if let Some(index) = there.first() {
                if let Some(to) = next() {
                    self.take_turn(thing, &looks[*index].sources, now, &mut verdict, || {
                        (class, spare, Job::Copy { piece: shards[*index], to })
                    });
                }
                return verdict;
            }
            if lacking.len() <= unknown {
                return verdict;
            }
            let missing: Vec<(u8, NodeId)> =
                lacking.iter().map_while(|index| Some((u8::try_from(*index).ok()?, next()?))).collect();
            let sources = sources_of(&looks);
            let line = if whole.sources.is_empty() && sources.len() >= data {
                let mut line: Vec<_> = sources.iter().map(|(_, id)| *id).collect();
                self.sort(object, &mut line);
                line
            } else {
                whole.sources.clone()
            };
            if !missing.is_empty() {
                self.take_turn(thing, &line, now, &mut verdict, || {
                    let is_whole = whole.is_here(&self.me);
                    (class, spare, Job::Rebuild { manifest: coding.manifest, missing, sources, is_whole })
                });
            }
            return verdict;
        }
        let mut verdict = Verdict::of(Health::Met);
        // Shards of the same bytes are one piece, and who counts for any of them keeps it.
        let counts_here = |shard: &ContentId| {
            shards.iter().zip(&homes).any(|(other, home)| other == shard && *home == Some(self.me))
        };
        let may_go = !wanted.is_pinned || self.is_leaving();
        for (shard, home) in shards.iter().zip(&homes) {
            let Some(home) = home.filter(|_| self.lies_here(shard)) else { continue };
            let is_placed = targets.contains(&home);
            let is_there = self.is_reachable(&home) && self.is_steady(&home);
            if !counts_here(shard) && is_placed && is_there && may_go {
                // Somebody else has it and should: this one is too many.
                let provers = vec![(*shard, home)];
                verdict.step = Some((Class::Trim, 0, Job::Trim { piece: *shard, provers }));
                return verdict;
            }
            if home == self.me && !is_placed {
                if let Some(to) = next().filter(|to| self.is_steady(to)) {
                    verdict.step = Some((Class::Move, 0, Job::Copy { piece: *shard, to }));
                    return verdict;
                }
            }
        }
        verdict
    }

    /// Which of its holders each shard counts for, none of them for more shards than it must; and who has room for how many
    /// more. With fewer nodes than shards, each has some.
    fn homes(&self, looks: &[Look], targets: &[NodeId]) -> (Vec<Option<NodeId>>, Vec<(NodeId, usize)>) {
        let most = looks.len().div_ceil(targets.len().max(1));
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        let home = |look: &Look| {
            let place = |id: &&NodeId| targets.iter().position(|target| target == *id).unwrap_or(usize::MAX);
            let mut holders: Vec<&NodeId> = look.safe.iter().collect();
            holders.sort_by_key(|id| (place(id), **id));
            let found = holders.into_iter().find(|id| load.get(id).copied().unwrap_or(0) < most).copied();
            if let Some(id) = found {
                *load.entry(id).or_default() += 1;
            }
            found
        };
        let homes: Vec<Option<NodeId>> = looks.iter().map(home).collect();
        let room = |id: &NodeId| (*id, most.saturating_sub(load.get(id).copied().unwrap_or(0)));
        (homes, targets.iter().map(room).collect())
    }

    /// Does something if it is this node's turn, or says when it will be.
    fn take_turn(
        &self,
        thing: &Thing,
        line: &[NodeId],
        now: Duration,
        verdict: &mut Verdict,
        what: impl FnOnce() -> (Class, u8, Job),
    ) {
        let mut seen = BTreeSet::new();
        let line = line.iter().filter(|id| seen.insert(**id));
        let Some(turn) = line.into_iter().position(|id| *id == self.me) else { return };
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        let at = thing.due_since.unwrap_or(now).saturating_add(self.settings.takeover.saturating_mul(turn));
        if now >= at {
            verdict.step = Some(what());
        } else {
            verdict.wake = Some(at);
        }
    }

    fn targets_for(&self, object: &ContentId, thing: &Thing, count: usize) -> Vec<NodeId> {
        if thing.declined.is_empty() {
            return place(&self.candidates, object, count);
        }
        let is_asked = |one: &&Candidate| !thing.declined.iter().any(|(id, _)| *id == one.id);
        let asked: Vec<_> = self.candidates.iter().filter(is_asked).copied().collect();
        place(&asked, object, count)
    }

    /// Where an object would belong if those who are away were not.
    fn place_there(&self, object: &ContentId, thing: &Thing, count: usize) -> Vec<NodeId> {
        let is_there = |one: &&Candidate| {
            self.is_reachable(&one.id) && !thing.declined.iter().any(|(id, _)| *id == one.id)
        };
        let there: Vec<_> = self.candidates.iter().filter(is_there).copied().collect();
        place(&there, object, count)
    }

    fn is_reachable(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| known.node.presence != Presence::Away)
    }

    /// Whether a piece is here, good or bad. A bad one that does not belong here is not replaced, and has to go too.
    fn lies_here(&self, piece: &ContentId) -> bool {
        self.pieces.get(piece).is_some_and(|known| known.on(&self.me).is_some())
    }

    /// Whether it has been there for as long as it was away before. Who comes and goes keeps what it has and counts for it, but
    /// nothing is moved to it or trimmed on its account: the next time it goes, that would have to come back.
    fn is_steady(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| known.steady_at.is_zero())
    }

    /// Whether this node is about to go.
    fn is_leaving(&self) -> bool {
        self.nodes.get(&self.me).is_some_and(|known| known.node.presence == Presence::Draining)
    }

    /// Whether nobody knows what this node has, and it may be back soon. Whoever was just started has not seen those who are
    /// away; what belongs on them is not missing until their grace is over.
    fn is_unknown(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| {
            known.node.presence == Presence::Away && !known.is_given_up && !known.is_compared
        })
    }

    /// Whether a copy on this node counts.
    pub(super) fn is_safe(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|known| {
            known.node.is_durable && known.node.presence != Presence::Draining && !known.is_given_up
        })
    }

    fn sort(&self, object: &ContentId, line: &mut [NodeId]) {
        // Those who are about to go come last: they have enough to do.
        line.sort_by_cached_key(|id| {
            let is_draining =
                self.nodes.get(id).is_some_and(|known| known.node.presence == Presence::Draining);
            (is_draining, score(object, id, 1), *id)
        });
    }

    fn look(&self, piece: &ContentId) -> Look {
        let mut look = Look::default();
        let Some(known) = self.pieces.get(piece) else { return look };
        for (id, _) in known.holders.iter().filter(|(_, held)| *held == Holding::Good) {
            let Some(node) = self.nodes.get(id) else { continue };
            if self.is_reachable(id) {
                look.sources.push(*id);
                look.live += usize::from(node.node.is_durable);
            } else {
                look.away += usize::from(!node.is_given_up);
            }
            if self.is_safe(id) {
                look.safe.push(*id);
            }
        }
        look.safe.sort_unstable();
        self.sort(piece, &mut look.sources);
        look
    }
}

/// For each shard that can be read, somebody who has it.
fn sources_of(looks: &[Look]) -> Vec<(u8, NodeId)> {
    let of = |(index, look): (usize, &Look)| Some((u8::try_from(index).ok()?, *look.sources.first()?));
    looks.iter().enumerate().filter_map(of).collect()
}

/// Who has a piece.
#[derive(Debug, Default)]
struct Look {
    /// Those that count as copies.
    safe: Vec<NodeId>,
    /// Those who can be asked for it, in the order in which they act.
    sources: Vec<NodeId>,
    /// Those of these whose copy survives a restart.
    live: usize,
    /// Those who are away and may be back soon.
    away: usize,
}

impl Look {
    fn is_here(&self, me: &NodeId) -> bool {
        self.sources.contains(me)
    }

    fn is_anywhere(&self) -> bool {
        !self.sources.is_empty() || self.away > 0
    }
}
