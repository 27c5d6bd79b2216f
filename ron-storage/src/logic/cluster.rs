//! Nodes that plan and do what they planned, without any clock, disk or network: what the planner is judged by.
//!
//! Every deletion is looked at: what is alive must be left, readable, on a disk that survives.

#![allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]

mod living;
mod orders;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use ron_core::{ContentId, NodeId};

use super::{
    claims::{Coding, Standing, Wanted},
    plan::{Claimed, Class, Health, Holding, Job, News, Node, Outcome, Plan, PlanSettings, Presence, Step},
    promises::{PROMISE, PromiseError, Promises, TRIM_WITHIN},
};

const LEN: u64 = 600;
const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(900);

fn name(number: usize) -> NodeId {
    NodeId::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes())
}

fn content(number: usize) -> ContentId {
    ContentId::of(&number.to_be_bytes())
}

struct One {
    plan: Plan,
    promises: Promises,
    disk: BTreeMap<ContentId, Holding>,
}

struct Cluster {
    nodes: Vec<Node>,
    ones: BTreeMap<NodeId, One>,
    claims: BTreeMap<ContentId, Claimed>,
    /// The coding that an object had before, and the shards by it.
    past: BTreeMap<ContentId, (u8, Vec<ContentId>)>,
    now: Duration,
    done: Vec<(NodeId, Step)>,
    news: Vec<News>,
}

impl Cluster {
    fn new(count: usize) -> Self {
        let node = |number: usize| Node {
            id: name(number),
            zone: number as u64,
            weight: 100,
            presence: Presence::Up,
            is_durable: true,
        };
        let mut cluster = Cluster {
            nodes: (0..count).map(node).collect(),
            ones: BTreeMap::new(),
            claims: BTreeMap::new(),
            past: BTreeMap::new(),
            now: Duration::ZERO,
            done: Vec::new(),
            news: Vec::new(),
        };
        for number in 0..count {
            cluster.add_plan(number);
        }
        cluster
    }

    fn add_plan(&mut self, number: usize) {
        let plan = Plan::new(name(number), PlanSettings::default());
        self.ones.insert(name(number), One { plan, promises: Promises::default(), disk: BTreeMap::new() });
        self.tell_nodes();
    }

    fn tell_nodes(&mut self) {
        for one in self.ones.values_mut() {
            one.plan.on_nodes(&self.nodes, self.now);
        }
    }

    fn is_up(&self, id: &NodeId) -> bool {
        self.nodes.iter().any(|node| node.id == *id && node.presence != Presence::Away)
    }

    fn set(&mut self, number: usize, presence: Presence) {
        let was_away = self.nodes[number].presence == Presence::Away;
        self.nodes[number].presence = presence;
        self.tell_nodes();
        if was_away {
            // It compares with everybody: both learn what the other has, and what is claimed.
            let all: Vec<_> = self.ones.keys().copied().collect();
            for id in all {
                self.compare(id);
            }
        }
    }

    /// Everybody hears what this one has, if both are there.
    fn compare(&mut self, of: NodeId) {
        if !self.is_up(&of) {
            return;
        }
        let disk = self.ones[&of].disk.clone();
        let pieces: BTreeSet<_> = self.ones.values().flat_map(|one| one.disk.keys().copied()).collect();
        let up: Vec<_> = self.ones.keys().filter(|id| self.is_up(id)).copied().collect();
        for (_, one) in self.ones.iter_mut().filter(|(id, _)| up.contains(id)) {
            for (object, claimed) in &self.claims {
                one.plan.on_claims(*object, claimed.clone());
            }
            for piece in &pieces {
                let held = disk.get(piece).copied().unwrap_or(Holding::Absent);
                one.plan.on_held(of, *piece, held);
            }
        }
    }

    fn tell(&mut self, node: NodeId, piece: ContentId, held: Holding) {
        let disk = &mut self.ones.get_mut(&node).unwrap().disk;
        match held {
            Holding::Absent => disk.remove(&piece),
            other => disk.insert(piece, other),
        };
        let up: Vec<_> = self.ones.keys().filter(|id| self.is_up(id)).copied().collect();
        for id in up {
            self.ones.get_mut(&id).unwrap().plan.on_held(node, piece, held);
        }
    }

    fn claim(&mut self, object: ContentId, standing: Standing, shards: Vec<Vec<ContentId>>) {
        let claimed = Claimed { standing, shards };
        if let Some(Claimed { standing: Standing::Live(before), shards }) =
            self.claims.insert(object, claimed.clone())
        {
            let codings = before.codings.iter().map(|coding| coding.data);
            self.past.extend(codings.zip(shards).map(|coding| (object, coding)));
        }
        let up: Vec<_> = self.ones.keys().filter(|id| self.is_up(id)).copied().collect();
        for id in up {
            self.ones.get_mut(&id).unwrap().plan.on_claims(object, claimed.clone());
        }
    }

    fn put_copies(&mut self, number: usize, at: usize, copies: u8) -> ContentId {
        let object = content(number);
        let wanted = Wanted { copies, len: LEN, ..Wanted::default() };
        self.claim(object, Standing::Live(wanted), Vec::new());
        self.tell(name(at), object, Holding::Good);
        object
    }

    fn put_shards(&mut self, number: usize, at: usize, data: u8, parity: u8) -> ContentId {
        let object = content(number);
        let shards: Vec<_> =
            (0..data + parity).map(|index| ContentId::of(&[number as u8, index, 7])).collect();
        let coding = Coding { data, parity, manifest: ContentId::of(&[number as u8, 8]) };
        let wanted = Wanted { codings: vec![coding], len: LEN, ..Wanted::default() };
        self.claim(object, Standing::Live(wanted), vec![shards]);
        self.tell(name(at), object, Holding::Good);
        object
    }

    /// Who has a readable copy on a disk that survives.
    fn holders(&self, piece: &ContentId) -> Vec<NodeId> {
        let is_durable = |id: &NodeId| self.nodes.iter().any(|node| node.id == *id && node.is_durable);
        let has = |one: &One| one.disk.get(piece) == Some(&Holding::Good);
        self.ones.iter().filter(|(id, one)| is_durable(id) && has(one)).map(|(id, _)| *id).collect()
    }

    fn is_whole(&self, object: &ContentId) -> bool {
        let claimed = &self.claims[object];
        let Standing::Live(wanted) = &claimed.standing else { return true };
        let decodes = |(coding, shards): (&Coding, &Vec<ContentId>)| {
            shards.iter().filter(|shard| !self.holders(shard).is_empty()).count() >= usize::from(coding.data)
        };
        !self.holders(object).is_empty() || wanted.codings.iter().zip(&claimed.shards).any(decodes)
    }

    /// Does what a node planned, as its effects would.
    fn perform(&mut self, node: NodeId, step: Step) {
        let (object, now) = (step.object, self.now);
        let has = |cluster: &Self, id: &NodeId, piece: &ContentId| {
            cluster.is_up(id) && cluster.ones[id].disk.get(piece) == Some(&Holding::Good)
        };
        let outcome = match &step.job {
            Job::Copy { piece, to } if has(self, &node, piece) && self.is_up(to) => {
                self.tell(*to, *piece, Holding::Good);
                Outcome::Done
            }
            Job::Rebuild { manifest, missing, sources, is_whole } => {
                let Standing::Live(wanted) = &self.claims[&object].standing else { panic!("it is deleted") };
                let coding = wanted.codings.iter().position(|coding| coding.manifest == *manifest).unwrap();
                let shards = self.claims[&object].shards[coding].clone();
                let good = sources.iter().filter(|(index, at)| has(self, at, &shards[usize::from(*index)]));
                let enough = usize::from(wanted.codings[coding].data);
                if !(*is_whole && has(self, &node, &object)) && good.count() < enough {
                    Outcome::Failed
                } else {
                    for (index, to) in missing {
                        if self.is_up(to) {
                            self.tell(*to, shards[usize::from(*index)], Holding::Good);
                        }
                    }
                    Outcome::Done
                }
            }
            Job::Restore { .. } => {
                self.tell(node, object, Holding::Good);
                Outcome::Done
            }
            Job::Recover => {
                let (data, shards) = self.past[&object].clone();
                let is_there = |shard: &&ContentId| self.ones.keys().any(|id| has(self, id, shard));
                if shards.iter().filter(is_there).count() < usize::from(data) {
                    Outcome::Failed
                } else {
                    self.tell(node, object, Holding::Good);
                    Outcome::Done
                }
            }
            Job::Trim { piece, provers } => {
                assert!(!provers.is_empty(), "nobody proves anything");
                let begun = self.ones.get_mut(&node).unwrap().promises.begin(*piece, now);
                let proved = begun.is_ok()
                    && provers.iter().all(|(piece, prover)| {
                        has(self, prover, piece)
                            && self.ones.get_mut(prover).unwrap().promises.promise(*piece, now).is_ok()
                    });
                if proved {
                    self.tell(node, *piece, Holding::Absent);
                }
                if begun.is_ok() {
                    self.ones.get_mut(&node).unwrap().promises.end(piece);
                }
                if proved { Outcome::Done } else { Outcome::Failed }
            }
            Job::Drop { pieces } => {
                for piece in pieces {
                    self.tell(node, *piece, Holding::Absent);
                }
                Outcome::Done
            }
            Job::Copy { .. } => Outcome::Failed,
        };
        self.ones.get_mut(&node).unwrap().plan.on_done(object, outcome, now);
        if matches!(step.job, Job::Trim { .. } | Job::Drop { .. }) {
            assert!(self.is_whole(&object), "{step:?} deleted the last of it");
        }
        self.done.push((node, step));
    }

    /// Lets everybody work until nobody has anything to do, for a day at most.
    fn settle(&mut self) {
        self.work_until(self.now + SECOND * 86_400);
    }

    /// Lets everybody work until then.
    fn run_until(&mut self, end: Duration) {
        self.work_until(end);
        self.now = end;
    }

    fn work_until(&mut self, end: Duration) {
        loop {
            let up: Vec<_> = self.ones.keys().filter(|id| self.is_up(id)).copied().collect();
            let mut did = false;
            for id in &up {
                while let Some(step) = self.ones.get_mut(id).unwrap().plan.poll(self.now) {
                    self.perform(*id, step);
                    did = true;
                }
                let news = self.ones.get_mut(id).unwrap().plan.news();
                self.news.extend(news);
            }
            if did {
                continue;
            }
            let next = up.iter().filter_map(|id| self.ones[id].plan.wake_at()).min();
            match next.map(|at| at.max(self.now)) {
                Some(at) if at <= end => self.now = at,
                _ => return,
            }
        }
    }

    /// Repairs so far that gave pieces to other nodes.
    fn transfers(&self) -> usize {
        self.done
            .iter()
            .filter(|(_, step)| matches!(step.job, Job::Copy { .. } | Job::Rebuild { .. }))
            .count()
    }

    /// Everything that lives is what it should be, where it should be, and nowhere else.
    fn check_settled(&self) {
        for (object, claimed) in &self.claims {
            let all = || claimed.shards.iter().flatten().chain([object]);
            let Standing::Live(wanted) = &claimed.standing else {
                for (id, one) in self.ones.iter().filter(|(id, _)| self.is_up(id)) {
                    assert!(!all().any(|piece| one.disk.contains_key(piece)), "{id} still has it");
                }
                continue;
            };
            let up_plan = self.ones.iter().find(|(id, _)| self.is_up(id)).map(|(_, one)| &one.plan).unwrap();
            if wanted.copies > 0 {
                let mut targets = up_plan.targets(object, wanted.copies.into());
                targets.sort();
                let mut holders = self.holders(object);
                holders.retain(|id| self.is_up(id));
                holders.sort();
                assert_eq!(holders, targets);
            }
            for shards in &claimed.shards {
                let targets = up_plan.targets(object, shards.len());
                let mut load = BTreeMap::new();
                for shard in shards {
                    let mut holders = self.holders(shard);
                    holders.retain(|id| self.is_up(id));
                    assert_eq!(holders.len(), 1, "one copy of each shard");
                    assert!(targets.contains(&holders[0]));
                    *load.entry(holders[0]).or_insert(0) += 1;
                }
                let most = shards.len().div_ceil(targets.len());
                assert!(load.values().all(|load| *load <= most));
                if wanted.copies == 0 && !wanted.is_pinned {
                    assert!(self.holders(object).iter().all(|id| !self.is_up(id)), "the whole is trimmed");
                }
            }
        }
    }
}
