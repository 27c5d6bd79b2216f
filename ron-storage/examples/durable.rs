//! A day of failures at full size, on the machines that decide: fifty nodes, ten thousand objects, half of them as three
//! copies and half as 6+3, with nodes killed and replaced, partitions, pairs of nodes that do not see each other while others see
//! both, disks that rot unnoticed until they are scrubbed or read, restarts, nodes that come and go, and objects put and deleted
//! meanwhile.
//!
//! Everything is one queue of events drawn from one seed. The planner, the placement and the promises are those of the crate;
//! disks and network are maps. A transfer takes what its bytes take at the pace, one at a time for each node: that repairs keep
//! to it is what the program does here, and what tests of the pacer and of pushes show of the crate. An object is acknowledged
//! when two nodes have all of it or nine have a shard each. Bytes of transfers that failed count as moved. It says whether
//! anything acknowledged was lost, whether everything is back where it belongs, and how many bytes that took compared with the
//! least that could have, and the hash of all that happened: one seed has one. Then it kills more than the policies survive,
//! and holds what the planners report against what arithmetic says.
//!
//! ```sh
//! cargo run --release -p ron-storage --example durable -- [--seed 1] [--nodes 50] [--objects 10000] [--hours 24]
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    process::ExitCode,
    time::Duration,
};

use ron_core::{ContentId, NodeId};
use ron_storage::logic::{
    claims::{Coding, Standing, Wanted},
    plan::{Claimed, Class, Holding, Job, News, Node, Outcome, Plan, PlanSettings, Presence, Step},
    promises::Promises,
};

const OBJECT_BYTES: u64 = 6 << 20;
const DATA: u64 = 6;
const PARITY: u64 = 3;
const SHARD_BYTES: u64 = OBJECT_BYTES / DATA;
const PACE: u64 = 50 << 20;
const TICK: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const ZONES: u64 = 10;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A node looks at what changed.
    Tick(usize),
    /// A node's worker is done with what it was doing.
    Done(usize, u64),
    /// A node loses its disk and is gone for a while.
    Kill,
    /// It is back, and empty or not.
    Back(usize),
    /// A node restarts.
    Restart,
    /// Some nodes do not see the others for a while.
    Part,
    Heal,
    /// A part of a disk rots, and nobody knows.
    Damage,
    /// A node reads all of its disk.
    Scrub(usize),
    /// A node comes and goes, so often still.
    Flap(Option<usize>, u8),
    /// Some pairs of nodes do not see each other for a while.
    Cut,
    Mend,
    /// Somebody puts an object.
    Put,
    /// An owner deletes an object.
    Delete,
}

struct One {
    plan: Plan,
    promises: Promises,
    disk: BTreeMap<ContentId, Holding>,
    /// What is not what it should be, though nobody has noticed.
    rotten: BTreeSet<ContentId>,
    is_up: bool,
    side: u8,
    /// How far in the log of changes it has read.
    read: usize,
    /// What it saw of the others when it last looked.
    sees: Vec<bool>,
    missed: Vec<u8>,
    work: Option<Step>,
    /// How often it went down: what it was doing then is never done.
    lives: u64,
    moved: Vec<(Duration, u64)>,
}

struct Object {
    shards: Vec<ContentId>,
    is_deleted: bool,
    /// Whether enough had it when it was put.
    is_acknowledged: bool,
}

struct World {
    rng: fastrand::Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, What)>>,
    next: u64,
    nodes: Vec<Node>,
    ones: Vec<One>,
    index: BTreeMap<NodeId, usize>,
    objects: BTreeMap<ContentId, Object>,
    /// Which object a piece belongs to.
    of: BTreeMap<ContentId, ContentId>,
    /// Everything that changed on a disk, in order.
    log: Vec<(usize, ContentId)>,
    deletes: Vec<ContentId>,
    heard_deletes: Vec<usize>,
    lost: BTreeSet<ContentId>,
    cuts: BTreeSet<(usize, usize)>,
    bytes: BTreeMap<Class, u64>,
    least: u64,
    least_moves: u64,
    counts: BTreeMap<&'static str, u64>,
    /// Everything that happened, and when: the same for the same seed.
    trace: blake3::Hasher,
}

impl World {
    fn new(seed: u64, nodes: usize, objects: usize) -> Self {
        let name = |number: usize| {
            let seed = [seed.to_be_bytes(), (number as u64).to_be_bytes()].concat();
            NodeId::from_bytes(*blake3::hash(&seed).as_bytes())
        };
        let nodes: Vec<Node> = (0..nodes)
            .map(|number| Node {
                id: name(number),
                zone: number as u64 % ZONES,
                weight: 100,
                presence: Presence::Up,
                is_durable: true,
            })
            .collect();
        let count = nodes.len();
        let one = |number: usize| One {
            plan: Plan::new(nodes[number].id, PlanSettings::default()),
            promises: Promises::default(),
            disk: BTreeMap::new(),
            rotten: BTreeSet::new(),
            is_up: true,
            side: 0,
            read: 0,
            sees: vec![true; count],
            missed: vec![0; count],
            work: None,
            lives: 0,
            moved: Vec::new(),
        };
        let ones = (0..count).map(one).collect();
        let mut world = World {
            rng: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            next: 0,
            index: nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect(),
            ones,
            nodes,
            objects: BTreeMap::new(),
            of: BTreeMap::new(),
            log: Vec::new(),
            deletes: Vec::new(),
            heard_deletes: vec![0; count],
            lost: BTreeSet::new(),
            cuts: BTreeSet::new(),
            bytes: BTreeMap::new(),
            least: 0,
            least_moves: 0,
            counts: BTreeMap::new(),
            trace: blake3::Hasher::new(),
        };
        for at in 0..count {
            world.tell_nodes(at);
        }
        for number in 0..objects {
            world.put(number);
        }
        for at in 0..count {
            let phase = world.rng.u64(0..60_000);
            world.after(Duration::from_millis(phase), What::Tick(at));
        }
        world
    }

    fn after(&mut self, pause: Duration, what: What) {
        self.next += 1;
        self.queue.push(Reverse((self.now + pause, self.next, what)));
    }

    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn make(&mut self, number: usize, is_acknowledged: bool) -> (ContentId, Vec<ContentId>) {
        let object = ContentId::of(&[&b"object"[..], &number.to_be_bytes()].concat());
        let shards: Vec<_> = match number % 2 {
            0 => Vec::new(),
            _ => (0..DATA + PARITY)
                .map(|at| ContentId::of(&[&at.to_be_bytes()[..], object.as_bytes()].concat()))
                .collect(),
        };
        let pieces = if shards.is_empty() { vec![object; 3] } else { shards.clone() };
        self.of.insert(object, object);
        self.of.extend(shards.iter().map(|shard| (*shard, object)));
        self.objects.insert(object, Object { shards, is_deleted: false, is_acknowledged });
        (object, pieces)
    }

    /// An object that is put while things go wrong: whoever puts it has all of it, and gives it to those whom it can reach.
    fn put_now(&mut self) {
        let (teller, number) = (self.some_up(), self.objects.len());
        let (object, pieces) = self.make(number, false);
        self.take_interest(0, &object);
        for piece in &pieces {
            self.set(teller, *piece, Holding::Good);
        }
        let targets = self.ones[teller].plan.targets(&object, pieces.len());
        let mut placed = BTreeSet::from([teller]);
        let mut homed = 0;
        for (piece, target) in pieces.iter().zip(targets) {
            let at = self.index[&target];
            if at == teller || self.talk(teller, at) {
                self.set(at, *piece, Holding::Good);
                let id = self.nodes[at].id;
                self.ones[teller].plan.on_held(id, *piece, Holding::Good);
                placed.insert(at);
                homed += 1;
            } else {
                // It is given to somebody later, which no repair could do without.
                self.least += piece_bytes(&object, piece);
            }
        }
        let is_whole = pieces[0] == object;
        let is_acknowledged = if is_whole { placed.len() >= 2 } else { homed == pieces.len() };
        self.note(if is_acknowledged {
            "objects put and acknowledged"
        } else {
            "objects put and not acknowledged"
        });
        self.objects.get_mut(&object).unwrap().is_acknowledged = is_acknowledged;
    }

    /// An object that is acknowledged: all of it is where it belongs.
    fn put(&mut self, number: usize) {
        let (object, pieces) = self.make(number, true);
        let targets = self.ones[0].plan.targets(&object, pieces.len());
        for (piece, target) in pieces.iter().zip(targets) {
            let at = self.index[&target];
            self.ones[at].disk.insert(*piece, Holding::Good);
        }
        for at in 0..self.ones.len() {
            self.take_interest(at, &object);
        }
    }

    fn claimed(&self, object: &ContentId, is_deleted: bool) -> Claimed {
        let Object { shards, .. } = &self.objects[object];
        let codings = match shards.is_empty() {
            true => Vec::new(),
            false => vec![Coding { data: DATA as u8, parity: PARITY as u8, manifest: *object }],
        };
        let copies = if shards.is_empty() { 3 } else { 0 };
        let wanted = Wanted { copies, codings, is_pinned: false, len: OBJECT_BYTES };
        let standing = if is_deleted { Standing::Deleted } else { Standing::Live(wanted) };
        let shards = if shards.is_empty() { Vec::new() } else { vec![shards.clone()] };
        Claimed { standing, shards }
    }

    fn pieces(&self, object: &ContentId) -> Vec<ContentId> {
        let shards = &self.objects[object].shards;
        if shards.is_empty() { vec![*object] } else { shards.clone() }
    }

    /// Whether two nodes can talk.
    fn talk(&self, one: usize, other: usize) -> bool {
        if self.cuts.contains(&(one.min(other), one.max(other))) {
            return false;
        }
        let (one, other) = (&self.ones[one], &self.ones[other]);
        one.is_up && other.is_up && one.side == other.side
    }

    /// A node learns all about an object if it has a part of it, or is the one who looks at everything.
    fn take_interest(&mut self, at: usize, object: &ContentId) {
        let pieces = self.pieces(object);
        let is_mine = pieces.iter().any(|piece| self.ones[at].disk.contains_key(piece));
        if !is_mine && at != 0 {
            return;
        }
        let is_deleted = self.objects[object].is_deleted && self.knows_delete(at, object);
        let claimed = self.claimed(object, is_deleted);
        self.ones[at].plan.on_claims(*object, claimed);
        for other in 0..self.ones.len() {
            // Also of those who are away: in a network every node hears of every claim, and knew before what these have.
            for piece in &pieces {
                let held = self.ones[other].disk.get(piece).copied();
                if held.is_some() {
                    let id = self.nodes[other].id;
                    self.ones[at].plan.on_held(id, *piece, held.unwrap_or(Holding::Absent));
                }
            }
        }
    }

    fn knows_delete(&self, at: usize, object: &ContentId) -> bool {
        self.deletes[..self.heard_deletes[at]].contains(object)
    }

    fn tell_nodes(&mut self, at: usize) {
        let nodes: Vec<Node> = (self.nodes.iter().enumerate())
            .map(|(other, node)| {
                let is_there = other == at || self.ones[at].sees[other];
                Node { presence: if is_there { Presence::Up } else { Presence::Away }, ..*node }
            })
            .collect();
        let now = self.now;
        self.ones[at].plan.on_nodes(&nodes, now);
    }

    /// Changes what is on a disk. Its owner knows at once, others when they look.
    fn set(&mut self, at: usize, piece: ContentId, held: Holding) {
        let object = self.of[&piece];
        self.ones[at].rotten.remove(&piece);
        let disk = &mut self.ones[at].disk;
        match held {
            Holding::Absent => disk.remove(&piece),
            other => disk.insert(piece, other),
        };
        self.log.push((at, piece));
        let id = self.nodes[at].id;
        if held == Holding::Good {
            self.take_interest(at, &object);
        }
        self.ones[at].plan.on_held(id, piece, held);
    }

    /// A node looks at the others.
    fn tick(&mut self, at: usize) {
        let mut seen_again = Vec::new();
        let mut changed = false;
        for other in 0..self.ones.len() {
            if other == at {
                continue;
            }
            let one = &self.ones[at];
            let (talks, saw) = (self.talk(at, other), one.sees[other]);
            let one = &mut self.ones[at];
            let missed = std::mem::replace(&mut one.missed[other], 0);
            if talks && (missed > 0 || !saw) {
                seen_again.push(other);
            }
            one.missed[other] = if talks { 0 } else { missed.saturating_add(1) };
            if talks && !saw {
                one.sees[other] = true;
                changed = true;
            } else if saw && one.missed[other] >= 2 {
                one.sees[other] = false;
                changed = true;
            }
        }
        if changed {
            self.tell_nodes(at);
        }
        // Deletes are heard from whoever knows them.
        let heard = (0..self.ones.len())
            .filter(|other| self.talk(at, *other))
            .map(|other| self.heard_deletes[other])
            .max();
        let heard = heard.unwrap_or(0).max(self.heard_deletes[at]);
        for number in self.heard_deletes[at]..heard {
            let object = self.deletes[number];
            let claimed = self.claimed(&object, true);
            let pieces = self.pieces(&object);
            if at == 0 || pieces.iter().any(|piece| self.ones[at].disk.contains_key(piece)) {
                self.ones[at].plan.on_claims(object, claimed);
            }
        }
        self.heard_deletes[at] = heard;
        for number in self.ones[at].read..self.log.len() {
            let (other, piece) = self.log[number];
            if other != at && self.talk(at, other) {
                let now_held = self.ones[other].disk.get(&piece).copied().unwrap_or(Holding::Absent);
                let id = self.nodes[other].id;
                self.ones[at].plan.on_held(id, piece, now_held);
            }
        }
        self.ones[at].read = self.log.len();
        for other in seen_again {
            self.compare(at, other);
        }
        self.pump(at);
    }

    /// Everything that one node has, compared with what another thinks it has.
    fn compare(&mut self, at: usize, other: usize) {
        let id = self.nodes[other].id;
        self.ones[at].plan.on_compared(&id);
        let thought: Vec<ContentId> = self.ones[at].plan.held_by(&id).copied().collect();
        for piece in thought {
            let held = self.ones[other].disk.get(&piece).copied().unwrap_or(Holding::Absent);
            self.ones[at].plan.on_held(id, piece, held);
        }
        let there: Vec<(ContentId, Holding)> =
            self.ones[other].disk.iter().map(|(piece, held)| (*piece, *held)).collect();
        for (piece, held) in there {
            self.ones[at].plan.on_held(id, piece, held);
        }
    }

    /// Gives a node's worker something to do, at the pace.
    fn pump(&mut self, at: usize) {
        let now = self.now;
        while self.ones[at].is_up && self.ones[at].work.is_none() {
            let Some(step) = self.ones[at].plan.poll(now) else { break };
            let bytes = cost(&step);
            self.ones[at].work = Some(step);
            let took = Duration::from_secs_f64(bytes as f64 / PACE as f64);
            self.after(took, What::Done(at, self.ones[at].lives));
        }
        for news in self.ones[at].plan.news() {
            match news {
                News::Lost(object) if at == 0 => drop(self.lost.insert(object)),
                News::Found(object) if at == 0 => drop(self.lost.remove(&object)),
                _ => {}
            }
        }
    }

    fn has(&self, at: usize, piece: &ContentId) -> bool {
        self.ones[at].disk.get(piece) == Some(&Holding::Good) && !self.ones[at].rotten.contains(piece)
    }

    /// Somebody reads a piece. If it is rotten, that is noticed.
    fn read(&mut self, at: usize, piece: &ContentId) -> bool {
        if self.ones[at].rotten.contains(piece) {
            self.note("rot noticed by a read");
            self.set(at, *piece, Holding::Bad);
        }
        self.has(at, piece)
    }

    fn done(&mut self, at: usize) {
        let Some(step) = self.ones[at].work.take() else { return };
        if !self.ones[at].is_up {
            return;
        }
        let (object, now, bytes) = (step.object, self.now, cost(&step));
        let outcome = match &step.job {
            Job::Copy { piece, to } => {
                let to = self.index[to];
                if self.talk(at, to) && self.read(at, piece) && !self.objects[&object].is_deleted {
                    self.set(to, *piece, Holding::Good);
                    let id = self.nodes[to].id;
                    self.ones[at].plan.on_held(id, *piece, Holding::Good);
                    Outcome::Done
                } else {
                    Outcome::Failed
                }
            }
            Job::Rebuild { missing, sources, .. } => {
                let shards = self.objects[&object].shards.clone();
                let mut good = 0;
                for (index, node) in sources {
                    let from = self.index[node];
                    let is_there = from == at || self.talk(at, from);
                    if is_there && good < DATA && self.read(from, &shards[usize::from(*index)]) {
                        good += 1;
                    }
                }
                if good < DATA || self.objects[&object].is_deleted {
                    Outcome::Failed
                } else {
                    let mut given = Outcome::Failed;
                    for (index, to) in missing {
                        let to = self.index[to];
                        if self.talk(at, to) {
                            let piece = shards[usize::from(*index)];
                            self.set(to, piece, Holding::Good);
                            let id = self.nodes[to].id;
                            self.ones[at].plan.on_held(id, piece, Holding::Good);
                            given = Outcome::Done;
                        }
                    }
                    given
                }
            }
            Job::Restore { .. } | Job::Recover => Outcome::Failed,
            Job::Trim { piece, provers } => {
                let begun = self.ones[at].promises.begin(*piece, now).is_ok();
                let mut proved = begun && !provers.is_empty();
                for (proof, prover) in provers {
                    let prover = self.index[prover];
                    proved = proved
                        && self.talk(at, prover)
                        && self.read(prover, proof)
                        && self.ones[prover].promises.promise(*proof, now).is_ok();
                }
                if proved {
                    self.set(at, *piece, Holding::Absent);
                    assert!(
                        self.is_whole(&object) || self.objects[&object].is_deleted,
                        "trimmed the last of {object}"
                    );
                }
                if begun {
                    self.ones[at].promises.end(piece);
                }
                if proved { Outcome::Done } else { Outcome::Failed }
            }
            Job::Drop { pieces } => {
                assert!(self.objects[&object].is_deleted, "dropped what lives");
                for piece in pieces {
                    self.set(at, *piece, Holding::Absent);
                }
                Outcome::Done
            }
        };
        *self.bytes.entry(step.class).or_default() += bytes;
        if outcome != Outcome::Done {
            self.note("repairs failed");
        }
        if bytes > 0 {
            self.ones[at].moved.push((now, bytes));
        }
        self.ones[at].plan.on_done(object, outcome, now);
        self.pump(at);
    }

    /// Whether an object can be read from disks that are somewhere.
    fn is_whole(&self, object: &ContentId) -> bool {
        self.spare(object, usize::MAX).is_some()
    }

    /// How much more may be lost, if this node's disk goes.
    fn spare(&self, object: &ContentId, without: usize) -> Option<usize> {
        let others = || (0..self.ones.len()).filter(|at| *at != without);
        let pieces = self.pieces(object);
        let there = pieces.iter().map(|piece| others().filter(|at| self.has(*at, piece)).count());
        if self.objects[object].shards.is_empty() {
            there.sum::<usize>().checked_sub(1)
        } else {
            there.filter(|count| *count > 0).count().checked_sub(DATA as usize)
        }
    }

    /// Whether every object survives the loss of this disk, and one more.
    fn survives(&self, at: usize) -> bool {
        let objects: BTreeSet<_> = self.ones[at].disk.keys().map(|piece| self.of[piece]).collect();
        objects.iter().all(|object| {
            self.objects[object].is_deleted || self.spare(object, at).is_some_and(|spare| spare >= 1)
        })
    }

    fn some_up(&mut self) -> usize {
        loop {
            // The one who looks at everything stays, so that there is somebody to ask in the end.
            let at = self.rng.usize(1..self.ones.len());
            if self.ones[at].is_up && self.ones[at].side == 0 {
                return at;
            }
        }
    }

    fn wipe(&mut self, at: usize) {
        let pieces: Vec<_> = std::mem::take(&mut self.ones[at].disk).into_keys().collect();
        self.ones[at].rotten.clear();
        let id = self.nodes[at].id;
        for piece in pieces {
            let object = self.of[&piece];
            self.log.push((at, piece));
            self.ones[at].plan.on_held(id, piece, Holding::Absent);
            if !self.objects[&object].is_deleted {
                self.least += self.least_for(&piece);
                self.least_moves += piece_bytes(&object, &piece);
            }
        }
    }

    /// The fewest bytes that bring a piece back: it is copied, or six shards are read and one is written.
    fn least_for(&self, piece: &ContentId) -> u64 {
        if self.of[piece] == *piece { OBJECT_BYTES } else { (DATA + 1) * SHARD_BYTES }
    }

    fn go_down(&mut self, at: usize) {
        let one = &mut self.ones[at];
        (one.is_up, one.work) = (false, None);
        one.lives += 1;
    }

    fn come_back(&mut self, at: usize) {
        let one = &mut self.ones[at];
        one.is_up = true;
        // It begins anew with what is on its disk.
        one.plan = Plan::new(self.nodes[at].id, PlanSettings::default());
        one.promises = Promises::default();
        one.read = self.log.len();
        one.missed.fill(0);
        for other in 0..self.ones.len() {
            self.ones[at].sees[other] = other == at || self.talk(at, other);
            self.ones[at].missed[other] = 1;
        }
        self.tell_nodes(at);
        let objects: BTreeSet<_> = self.ones[at].disk.keys().map(|piece| self.of[piece]).collect();
        for object in objects {
            self.take_interest(at, &object);
        }
    }

    fn happen(&mut self, what: What, is_calm: bool) {
        match what {
            What::Tick(at) => {
                if self.ones[at].is_up {
                    self.tick(at);
                }
                self.after(TICK, What::Tick(at));
            }
            What::Done(at, lives) if lives == self.ones[at].lives => self.done(at),
            What::Done(..) => {}
            _ if is_calm && !matches!(what, What::Back(_) | What::Heal | What::Mend | What::Scrub(_)) => {}
            What::Kill => {
                let at = self.some_up();
                if self.survives(at) {
                    self.note("nodes killed and replaced");
                    self.go_down(at);
                    self.wipe(at);
                    let away = Duration::from_secs(self.rng.u64(1200..5400));
                    self.after(away, What::Back(at));
                }
                let pause = Duration::from_secs(self.rng.u64(1800..5400));
                self.after(pause, What::Kill);
            }
            What::Back(at) if self.ones[at].is_up => {}
            What::Back(at) => self.come_back(at),
            What::Restart => {
                let at = self.some_up();
                self.note("restarts");
                self.go_down(at);
                let away = Duration::from_secs(self.rng.u64(10..600));
                self.after(away, What::Back(at));
                let pause = Duration::from_secs(self.rng.u64(300..1800));
                self.after(pause, What::Restart);
            }
            What::Part => {
                self.note("partitions");
                for at in 1..self.ones.len() {
                    self.ones[at].side = u8::from(self.rng.u8(..) < 80);
                }
                let apart = Duration::from_secs(self.rng.u64(60..700));
                self.after(apart, What::Heal);
                let pause = Duration::from_secs(self.rng.u64(3600..9000));
                self.after(pause, What::Part);
            }
            What::Heal => {
                for one in &mut self.ones {
                    one.side = 0;
                }
            }
            What::Damage => {
                let at = self.some_up();
                if self.survives(at) {
                    self.note("disks damaged");
                    let pieces: Vec<_> = self.ones[at].disk.keys().copied().collect();
                    for piece in pieces {
                        if self.rng.u8(..) < 26
                            && !self.objects[&self.of[&piece]].is_deleted
                            && self.has(at, &piece)
                        {
                            self.least += self.least_for(&piece);
                            self.ones[at].rotten.insert(piece);
                        }
                    }
                    let unnoticed = Duration::from_secs(self.rng.u64(60..7200));
                    self.after(unnoticed, What::Scrub(at));
                }
                let pause = Duration::from_secs(self.rng.u64(1800..7200));
                self.after(pause, What::Damage);
            }
            What::Scrub(at) => {
                if !self.ones[at].is_up {
                    self.after(SECOND * 600, What::Scrub(at));
                    return;
                }
                let rotten: Vec<_> = self.ones[at].rotten.iter().copied().collect();
                for piece in rotten {
                    self.set(at, piece, Holding::Bad);
                }
            }
            What::Flap(None, _) => {
                let at = self.some_up();
                if self.survives(at) {
                    self.note("nodes that come and go");
                    // It is given up, so all that it has is made again elsewhere.
                    let pieces: Vec<_> = self.ones[at].disk.keys().copied().collect();
                    for piece in pieces.iter().filter(|piece| !self.objects[&self.of[*piece]].is_deleted) {
                        self.least += self.least_for(piece);
                        self.least_moves += piece_bytes(&self.of[piece], piece);
                    }
                    self.after(SECOND, What::Flap(Some(at), 20));
                }
                let pause = Duration::from_secs(self.rng.u64(14_400..28_800));
                self.after(pause, What::Flap(None, 0));
            }
            What::Flap(Some(at), left) => {
                if self.ones[at].is_up && left > 0 {
                    self.go_down(at);
                    let away = self.rng.u64(240..600);
                    self.after(Duration::from_secs(away), What::Back(at));
                    let pause = away + self.rng.u64(30..200);
                    self.after(Duration::from_secs(pause), What::Flap(Some(at), left - 1));
                }
            }
            What::Cut => {
                self.note("pairs cut");
                for _ in 0..3 {
                    let one = self.rng.usize(1..self.ones.len());
                    for _ in 0..10 {
                        let other = self.rng.usize(1..self.ones.len());
                        self.cuts.insert((one.min(other), one.max(other)));
                    }
                }
                let apart = Duration::from_secs(self.rng.u64(60..800));
                self.after(apart, What::Mend);
                let pause = Duration::from_secs(self.rng.u64(3600..7200));
                self.after(pause, What::Cut);
            }
            What::Mend => self.cuts.clear(),
            What::Put => {
                self.put_now();
                let pause = Duration::from_secs(self.rng.u64(30..180));
                self.after(pause, What::Put);
            }
            What::Delete => {
                let number = self.rng.usize(0..self.objects.len());
                let object = *self.objects.keys().nth(number).unwrap();
                if !self.objects[&object].is_deleted {
                    self.note("objects deleted");
                    self.objects.get_mut(&object).unwrap().is_deleted = true;
                    self.deletes.push(object);
                    let teller = self.some_up();
                    // Whoever knew all so far knows this too.
                    if self.heard_deletes[teller] == self.deletes.len() - 1 {
                        let claimed = self.claimed(&object, true);
                        self.ones[teller].plan.on_claims(object, claimed);
                        self.heard_deletes[teller] = self.deletes.len();
                    } else {
                        self.deletes.pop();
                        self.objects.get_mut(&object).unwrap().is_deleted = false;
                    }
                }
                let pause = Duration::from_secs(self.rng.u64(200..600));
                self.after(pause, What::Delete);
            }
        }
    }

    fn run_until(&mut self, end: Duration, is_calm: bool) {
        while let Some(Reverse((at, _, _))) = self.queue.peek() {
            if *at > end {
                break;
            }
            let Some(Reverse((at, _, what))) = self.queue.pop() else { break };
            self.now = at;
            self.trace.update(format!("{at:?} {what:?} {}", self.log.len()).as_bytes());
            let polls = match &what {
                What::Done(at, _) | What::Tick(at) => Some(*at),
                _ => None,
            };
            self.happen(what, is_calm);
            if let Some(at) = polls {
                self.pump(at);
            }
        }
        self.now = end;
    }

    /// What is not as it should be.
    fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (object, known) in &self.objects {
            let pieces = self.pieces(object);
            let holders = |piece: &ContentId| {
                (0..self.ones.len()).filter(|at| self.ones[*at].disk.contains_key(piece)).count()
            };
            let good = |piece: &ContentId| (0..self.ones.len()).filter(|at| self.has(*at, piece)).count();
            if known.is_deleted {
                if pieces.iter().any(|piece| holders(piece) > 0) {
                    complaints.push(format!("{object} was deleted and is still there"));
                }
                continue;
            }
            let wanted = if known.shards.is_empty() { 3 } else { 1 };
            for piece in &pieces {
                if good(piece) != wanted || holders(piece) != wanted {
                    complaints.push(format!(
                        "{piece} is there {} times, {} good",
                        holders(piece),
                        good(piece)
                    ));
                }
            }
        }
        complaints
    }

    /// The most that one node moved in a second, by the times at which transfers ended.
    fn fastest(&self) -> u64 {
        let mut fastest = 0;
        for one in &self.ones {
            // Each transfer takes as long as its bytes at the pace, so what ends within a window began before it.
            for (at, (end, bytes)) in one.moved.iter().enumerate() {
                let began = *end - Duration::from_secs_f64(*bytes as f64 / PACE as f64);
                let before = at.checked_sub(1).map_or(Duration::ZERO, |before| one.moved[before].0);
                assert!(began + Duration::from_micros(1) >= before, "two transfers at once");
                let took = (*end - began).max(Duration::from_micros(1));
                fastest = fastest.max((*bytes as f64 / took.as_secs_f64()) as u64);
            }
        }
        fastest
    }
}

fn piece_bytes(object: &ContentId, piece: &ContentId) -> u64 {
    if object == piece { OBJECT_BYTES } else { SHARD_BYTES }
}

fn cost(step: &Step) -> u64 {
    match &step.job {
        Job::Copy { piece, .. } => piece_bytes(&step.object, piece),
        Job::Rebuild { missing, .. } => (DATA + missing.len() as u64) * SHARD_BYTES,
        Job::Restore { .. } | Job::Recover | Job::Trim { .. } | Job::Drop { .. } => 0,
    }
}

const USAGE: &str = "\
A day of failures, on the machines that decide: is anything lost that was acknowledged, and what does repairing it cost?

  --seed N       what everything is drawn from (RON_SEED, or 1)
  --nodes N      (50)
  --objects N    of 6 MiB, half of them three copies and half 6+3 (10000)
  --hours N      of failures, on a clock of its own (24); a day takes minutes

It fails with a panic that says what was lost or is not where it belongs. Exit code 2 for an option that makes no sense.";

/// The seed, and how many nodes, objects and hours.
fn parse() -> Result<[u64; 4], String> {
    let number = |name: &str, value: Option<String>| {
        let number = value.and_then(|value| value.parse().ok());
        number.ok_or_else(|| format!("{name} wants a number"))
    };
    let seed = std::env::var("RON_SEED").ok();
    let seed = seed.map_or(Ok(1), |seed| number("RON_SEED", Some(seed)))?;
    let mut numbers = [seed, 50, 10_000, 24];
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let names = ["--seed", "--nodes", "--objects", "--hours"];
        let at = names.iter().position(|name| *name == word);
        let at = at.ok_or_else(|| format!("{word} is no option; durable --help says what is"))?;
        numbers[at] = number(&word, words.next())?;
    }
    Ok(numbers)
}

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match parse() {
        Ok(numbers) => {
            run(numbers);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("durable: {error}");
            ExitCode::from(2)
        }
    }
}

fn run([seed, nodes, objects, hours]: [u64; 4]) {
    let (nodes, objects) = (nodes as usize, objects as usize);
    println!("seed {seed}: {nodes} nodes, {objects} objects, {hours} hours");
    let mut world = World::new(seed, nodes, objects);
    let mishaps = [
        (5, What::Restart),
        (20, What::Kill),
        (40, What::Part),
        (30, What::Damage),
        (10, What::Delete),
        (50, What::Cut),
        (70, What::Flap(None, 0)),
        (1, What::Put),
    ];
    for (minutes, what) in mishaps {
        world.after(SECOND * 60 * minutes, what);
    }
    world.run_until(SECOND * 3600 * hours as u32, false);
    let alive = world.objects.iter().filter(|(_, known)| !known.is_deleted && known.is_acknowledged);
    let lost: Vec<_> = alive.map(|(id, _)| *id).filter(|object| !world.is_whole(object)).collect();
    let said: Vec<_> = world.lost.iter().filter(|object| world.objects[*object].is_acknowledged).collect();
    assert!(lost.is_empty() && said.is_empty(), "lost within the policy: {lost:?} {said:?}");
    // No more failures: everything is as it should be some hours later.
    world.run_until(world.now + SECOND * 3600 * 6, true);
    let complaints = world.complaints();
    assert!(complaints.is_empty(), "{} complaints, the first: {}", complaints.len(), complaints[0]);
    for (what, count) in &world.counts {
        println!("  {what}: {count}");
    }
    let repaired: u64 =
        [Class::Urgent, Class::Copies, Class::Parity].iter().filter_map(|class| world.bytes.get(class)).sum();
    let moved = world.bytes.get(&Class::Move).copied().unwrap_or(0);
    let mib = |bytes: u64| bytes >> 20;
    let share = |bytes: u64, least: u64| bytes as f64 / least.max(1) as f64;
    println!("  nothing lost; every object is back at what its policy asks for, every deleted one is gone");
    println!(
        "  repaired {} MiB, least {} MiB: {:.2}",
        mib(repaired),
        mib(world.least),
        share(repaired, world.least)
    );
    println!(
        "  moved back {} MiB, least {} MiB: {:.2}",
        mib(moved),
        mib(world.least_moves),
        share(moved, world.least_moves)
    );
    println!("  fastest node: {} MiB/s", mib(world.fastest()));
    assert!(share(repaired, world.least) <= 1.3, "more bytes than 1.3 times the least");
    assert!(world.fastest() <= PACE + 1024, "above the pace");

    // Beyond the policies: a quarter of the disks at once.
    let mut killed = BTreeSet::new();
    while killed.len() < nodes / 4 {
        killed.insert(world.some_up());
    }
    for at in &killed {
        world.go_down(*at);
        world.wipe(*at);
    }
    let live = world.objects.iter().filter(|(_, known)| !known.is_deleted).map(|(id, _)| *id);
    let expected: BTreeSet<ContentId> = live.filter(|object| !world.is_whole(object)).collect();
    world.run_until(world.now + SECOND * 3600 * 3, true);
    println!("  {} disks at once: {} lost, {} reported", killed.len(), expected.len(), world.lost.len());
    println!("  all that happened: {}", world.trace.finalize().to_hex());
    assert_eq!(world.lost, expected, "what is reported is not what is lost");
}
