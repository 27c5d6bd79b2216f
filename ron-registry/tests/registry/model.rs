//! Every order in which two committers of one store can append, lose answers, prune, crash and come back, as a model: what
//! the committer and the store promise each other, without the rest of them.
//!
//! The parts are those of `actor.rs` and `store.rs`: a committer decides behind what it knows to be durable, one block is on
//! its way at a time, and an answer that was lost is settled by reading back, by another attempt at the same place, or by
//! giving up and finding out later; an attempt that was given up on may still arrive. Clients ask whichever committer they
//! like, and again if they were told nothing. Bugs can be planted, and each has to be found.

use std::collections::BTreeMap;

use stateright::{Checker as _, HasDiscoveries, Model, Property};

/// What the model does wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// The store appends wherever the committer thinks that the log ends.
    Unconditional,
    /// Clients are told when a block is sent off.
    EarlyAck,
    /// Who has lost a race decides again without looking whether it is in the log already.
    Forgetful,
    /// Entries and the head that covers them are two writes.
    TwoWrites,
    /// Entries go before the snapshot that covers them is durable.
    PruneFirst,
}

const COMMITTERS: usize = 2;

/// How much can happen.
struct Log {
    bug: Bug,
    proposals: u8,
    crashes: u8,
    losses: u8,
}

/// Entries to be appended behind a version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Block {
    after: usize,
    entries: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Yes,
    Conflict,
    /// Nobody knows.
    Lost,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Committer {
    is_up: bool,
    /// Entries that it knows to be durable.
    known: usize,
    gathered: Vec<u8>,
    /// And what is known about it; nothing before it arrives.
    flying: Option<(Block, Option<Answer>)>,
    /// It does not know where the log ends.
    is_lost: bool,
}

impl Committer {
    /// In one order, because no other is of interest: both are proposed somewhere in either.
    fn gather(&mut self, proposal: u8) {
        self.gathered.push(proposal);
        self.gathered.sort_unstable();
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct World {
    /// Which proposal is at which version, what was pruned included: the store has forgotten that, we have not.
    log: Vec<u8>,
    /// How many entries the last signed head covers.
    signed: usize,
    snapshot: usize,
    pruned: usize,
    committers: [Committer; COMMITTERS],
    /// Attempts that were given up on and may still arrive.
    late: Vec<Block>,
    /// What clients were told.
    told: BTreeMap<u8, usize>,
    crashes: u8,
    losses: u8,
    was_overwritten: bool,
    cannot_start: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Propose(usize, u8),
    Launch(usize),
    Arrive(usize),
    Hear(usize),
    LoseAnswer(usize),
    LookBack(usize),
    GiveUp(usize),
    Late(usize),
    Seek(usize),
    Snapshot(usize),
    Prune,
    Crash(usize),
    Start(usize),
}

impl Log {
    /// The store takes a block, or does not.
    fn append(&self, world: &mut World, block: &Block) -> Answer {
        if self.bug != Bug::Unconditional && world.log.len() != block.after {
            return Answer::Conflict;
        }
        world.was_overwritten |= world.log.len() > block.after;
        world.log.truncate(block.after);
        world.log.extend(&block.entries);
        if self.bug != Bug::TwoWrites {
            world.signed = world.log.len();
        }
        Answer::Yes
    }

    /// Tells whoever waits for these entries, which are durable.
    fn tell(world: &mut World, block: &Block) {
        for (at, proposal) in block.entries.iter().enumerate() {
            world.told.entry(*proposal).or_insert(block.after + at + 1);
        }
    }

    /// Reads what others have appended, and decides again what is not among it.
    fn decide_again(&self, world: &mut World, at: usize, block: Block) {
        let committer = &mut world.committers[at];
        committer.known = world.log.len();
        let gathered = std::mem::take(&mut committer.gathered);
        for proposal in block.entries.into_iter().chain(gathered) {
            match world.log.iter().position(|committed| *committed == proposal) {
                Some(version) if self.bug != Bug::Forgetful => {
                    world.told.entry(proposal).or_insert(version + 1);
                }
                _ => world.committers[at].gather(proposal),
            }
        }
    }
}

impl Model for Log {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let committer = Committer { is_up: true, ..Committer::default() };
        vec![World { committers: [committer.clone(), committer], ..World::default() }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (at, committer) in world.committers.iter().enumerate() {
            if !committer.is_up {
                steps.push(Step::Start(at));
                continue;
            }
            if world.crashes < self.crashes {
                steps.push(Step::Crash(at));
            }
            if committer.known > world.snapshot + 1 {
                steps.push(Step::Snapshot(at));
            }
            match &committer.flying {
                Some((_, None)) => steps.push(Step::Arrive(at)),
                Some((_, Some(Answer::Yes | Answer::Conflict))) => steps.push(Step::Hear(at)),
                Some((_, Some(Answer::Lost))) => steps.extend([Step::LookBack(at), Step::GiveUp(at)]),
                None if committer.is_lost => steps.push(Step::Seek(at)),
                None if !committer.gathered.is_empty() => steps.push(Step::Launch(at)),
                None => {}
            }
            let has_an_answer_to_lose =
                matches!(committer.flying, Some((_, None | Some(Answer::Yes | Answer::Conflict))));
            if has_an_answer_to_lose && world.losses < self.losses {
                steps.push(Step::LoseAnswer(at));
            }
            if !committer.is_lost {
                let asked = (0..self.proposals).filter(|proposal| !world.told.contains_key(proposal));
                steps.extend(asked.map(|proposal| Step::Propose(at, proposal)));
            }
        }
        steps.extend((0..world.late.len()).map(Step::Late));
        let may_go = match self.bug {
            Bug::PruneFirst => world.signed.saturating_sub(1),
            _ => world.snapshot,
        };
        if may_go > world.pruned {
            steps.push(Step::Prune);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Propose(at, proposal) => {
                let committer = &mut next.committers[at];
                let flies =
                    committer.flying.as_ref().is_some_and(|(block, _)| block.entries.contains(&proposal));
                if flies || committer.gathered.contains(&proposal) {
                    return None;
                }
                match world.log.iter().take(committer.known).position(|committed| *committed == proposal) {
                    Some(version) => drop(next.told.insert(proposal, version + 1)),
                    None => committer.gather(proposal),
                }
            }
            Step::Launch(at) => {
                let committer = &mut next.committers[at];
                let block =
                    Block { after: committer.known, entries: std::mem::take(&mut committer.gathered) };
                committer.flying = Some((block.clone(), None));
                if self.bug == Bug::EarlyAck {
                    Log::tell(&mut next, &block);
                }
            }
            Step::Arrive(at) => {
                let (block, _) = next.committers[at].flying.take()?;
                let answer = self.append(&mut next, &block);
                next.committers[at].flying = Some((block, Some(answer)));
            }
            Step::Hear(at) => {
                let (block, answer) = next.committers[at].flying.take()?;
                match answer {
                    Some(Answer::Yes) => {
                        next.signed = next.signed.max(block.after + block.entries.len());
                        next.committers[at].known = block.after + block.entries.len();
                        Log::tell(&mut next, &block);
                    }
                    _ => self.decide_again(&mut next, at, block),
                }
            }
            Step::LoseAnswer(at) => {
                next.losses += 1;
                let (block, answer) = next.committers[at].flying.take()?;
                if answer.is_none() {
                    // It is still on its way.
                    next.late.push(block.clone());
                    next.late.sort();
                }
                next.committers[at].flying = Some((block, Some(Answer::Lost)));
            }
            Step::LookBack(at) => {
                let (block, _) = next.committers[at].flying.take()?;
                let found = world.log.get(block.after..).unwrap_or_default();
                let answer = match found {
                    [] => None,
                    found if found.starts_with(&block.entries) => Some(Answer::Yes),
                    _ => Some(Answer::Conflict),
                };
                next.committers[at].flying = Some((block, answer));
            }
            Step::GiveUp(at) => {
                // Whoever waits for it is told nothing, and asks again.
                let committer = &mut next.committers[at];
                (committer.flying, committer.is_lost) = (None, true);
                committer.gathered.clear();
            }
            Step::Late(which) => {
                let block = next.late.remove(which);
                self.append(&mut next, &block);
            }
            Step::Seek(at) => {
                let committer = &mut next.committers[at];
                (committer.known, committer.is_lost) = (world.log.len(), false);
            }
            Step::Snapshot(at) => {
                // Below what it knows to be durable, and below the head.
                next.snapshot = next.snapshot.max(next.committers[at].known - 1);
            }
            Step::Prune => {
                next.pruned = match self.bug {
                    Bug::PruneFirst => world.signed - 1,
                    _ => world.snapshot,
                };
            }
            Step::Crash(at) => {
                next.crashes += 1;
                let crashed = std::mem::take(&mut next.committers[at]);
                if let Some((block, None)) = crashed.flying {
                    next.late.push(block);
                    next.late.sort();
                }
            }
            Step::Start(at) => {
                // What is pruned must be covered by a snapshot, and all of it by a signed head.
                next.cannot_start |= world.signed != world.log.len() || world.snapshot < world.pruned;
                next.committers[at] =
                    Committer { is_up: true, known: world.log.len(), ..Committer::default() };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two entries at one version", |_, world: &World| !world.was_overwritten),
            Property::always("what was acknowledged survives", |_, world: &World| {
                let is_there =
                    |(proposal, version): (&u8, &usize)| world.log.get(version - 1) == Some(proposal);
                world.told.iter().all(is_there)
            }),
            Property::always("nothing is committed twice", |_, world: &World| {
                (1..world.log.len()).all(|at| !world.log[..at].contains(&world.log[at]))
            }),
            Property::always("nobody knows more than is there", |_, world: &World| {
                world.committers.iter().all(|committer| committer.known <= world.log.len())
            }),
            Property::always("whoever comes back can start", |_, world: &World| !world.cannot_start),
            Property::sometimes(
                "everything is told, after a crash and a prune",
                |log: &Log, world: &World| {
                    world.told.len() == usize::from(log.proposals) && world.crashes > 0 && world.pruned > 0
                },
            ),
            Property::sometimes("an attempt arrives late", |_, world: &World| {
                world.losses > 0 && world.late.is_empty() && !world.log.is_empty()
            }),
        ]
    }
}

#[test]
fn two_committers_keep_their_promises_in_every_order() {
    // More takes minutes, and is for `.ci/long crash`.
    let (proposals, crashes, losses) = match std::env::var_os("RON_CRASH_ALL") {
        Some(_) => (3, 2, 2),
        None => (2, 1, 1),
    };
    let checker = Log { bug: Bug::None, proposals, crashes, losses }.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn planted_bugs_are_found() {
    for (bug, broken) in [
        (Bug::Unconditional, "no two entries at one version"),
        (Bug::EarlyAck, "what was acknowledged survives"),
        (Bug::Forgetful, "nothing is committed twice"),
        (Bug::TwoWrites, "whoever comes back can start"),
        (Bug::PruneFirst, "whoever comes back can start"),
    ] {
        let checker = Log { bug, proposals: 2, crashes: 1, losses: 1 }.checker().threads(2);
        let checker = checker.finish_when(HasDiscoveries::AnyOf([broken].into())).spawn_bfs().join();
        assert!(checker.discovery(broken).is_some(), "{bug:?} was not found: {:?}", checker.discoveries());
    }
}
