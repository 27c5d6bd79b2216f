//! The declarations of queues, tasks and locks, and the table they render to.
//!
//! A lane, a task kind or a lock exists as a `const` before it exists at run time. What is declared is what the
//! documentation shows, and a test compares both with what a running program registered, so the table of
//! concurrency in the documentation cannot drift from the code.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::supervisor::Restart;

/// What happens to an item that finds its queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Overflow {
    /// The newcomer is refused with `Busy`, or waits if its caller gave it a deadline to wait with.
    #[default]
    RejectNewest,
    /// The oldest waiting item is dropped and counted, and the newcomer takes its place.
    ShedOldest,
}

/// The shape of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// Each item goes to one consumer.
    Lane,
    /// Each item goes to every subscriber.
    Feed,
}

/// The declaration of one queue: a `const` beside the code that owns it.
///
/// ```
/// use ron_core::LaneSpec;
///
/// const WORK: LaneSpec = LaneSpec::new("my-crate", "work", 512)
///     .flow("listener → lookup pool")
///     .why("half a second of work at a thousand lookups a second");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LaneSpec {
    /// The crate that owns the queue.
    pub owner: &'static str,
    /// The name in metrics (`queue="work"`), errors and documentation.
    pub name: &'static str,
    /// Lane or feed.
    pub kind: LaneKind,
    /// Items it takes at most.
    pub capacity: usize,
    /// What happens beyond that.
    pub overflow: Overflow,
    /// Who pushes and who takes.
    pub flow: &'static str,
    /// The reason for the capacity.
    pub why: &'static str,
}

impl LaneSpec {
    /// A lane that refuses newcomers when it holds `capacity` items.
    ///
    /// # Panics
    /// If `capacity` is zero or above [`Capacity::MAX`](crate::Capacity::MAX); in a `const` that is a compile error.
    #[must_use]
    pub const fn new(owner: &'static str, name: &'static str, capacity: usize) -> Self {
        assert!(capacity > 0, "a lane needs room for one item");
        assert!(capacity <= crate::Capacity::MAX, "a capacity is a promise about memory and waiting time");
        LaneSpec {
            owner,
            name,
            kind: LaneKind::Lane,
            capacity,
            overflow: Overflow::RejectNewest,
            flow: "",
            why: "",
        }
    }

    /// A feed whose slow subscribers lose the oldest of `capacity` events and are told how many.
    ///
    /// # Panics
    /// As [`new`](LaneSpec::new).
    #[must_use]
    pub const fn feed(owner: &'static str, name: &'static str, capacity: usize) -> Self {
        let mut spec = LaneSpec::new(owner, name, capacity);
        spec.kind = LaneKind::Feed;
        spec.overflow = Overflow::ShedOldest;
        spec
    }

    /// Drops the oldest waiting item instead of refusing the newest.
    #[must_use]
    pub const fn shed_oldest(mut self) -> Self {
        self.overflow = Overflow::ShedOldest;
        self
    }

    /// Says who pushes and who takes.
    #[must_use]
    pub const fn flow(mut self, flow: &'static str) -> Self {
        self.flow = flow;
        self
    }

    /// Says why the capacity is what it is.
    #[must_use]
    pub const fn why(mut self, why: &'static str) -> Self {
        self.why = why;
        self
    }

    /// The same queue with another capacity: how a builder applies a host's setting.
    #[must_use]
    pub const fn with_capacity(mut self, capacity: crate::Capacity) -> Self {
        self.capacity = capacity.get();
        self
    }
}

/// The declaration of one kind of task.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TaskSpec {
    /// The crate that owns the task.
    pub owner: &'static str,
    /// The kind: the label in metrics and logs.
    pub name: &'static str,
    /// What happens when it fails.
    pub restart: Restart,
    /// What it does.
    pub what: &'static str,
}

impl TaskSpec {
    /// A task that is not restarted: if it panics or returns an error, the supervisor and all above it are unready
    /// for good.
    #[must_use]
    pub const fn new(owner: &'static str, name: &'static str) -> Self {
        TaskSpec { owner, name, restart: Restart::Never, what: "" }
    }

    /// What happens when it fails. A policy that restarts needs `Supervisor::spawn_restarting`, which can build the
    /// task anew; started any other way, the task runs once and its failure is fatal.
    #[must_use]
    pub const fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// The same task started without a factory: what it declares about restarting cannot come true.
    pub(crate) const fn once(mut self) -> Self {
        if matches!(self.restart, Restart::Backoff { .. }) {
            self.restart = Restart::Never;
        }
        self
    }

    /// Says what the task does.
    #[must_use]
    pub const fn what(mut self, what: &'static str) -> Self {
        self.what = what;
        self
    }
}

/// The declaration of one lock. Locks are taken in ascending rank and never across an `.await`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LockSpec {
    /// The crate that owns the lock.
    pub owner: &'static str,
    /// Its name in documentation and in the panic of a test that takes it out of order.
    pub name: &'static str,
    /// Its place in the order. A thread that holds rank 20 may take 30, not 20 or 10.
    pub rank: u16,
    /// What it guards, and for how long it is held.
    pub guards: &'static str,
}

impl LockSpec {
    /// A lock at `rank`.
    #[must_use]
    pub const fn new(owner: &'static str, name: &'static str, rank: u16) -> Self {
        LockSpec { owner, name, rank, guards: "" }
    }

    /// Says what it guards.
    #[must_use]
    pub const fn guards(mut self, guards: &'static str) -> Self {
        self.guards = guards;
        self
    }
}

/// A set of declarations: of a crate (what may exist) or of a running program (what does).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    lanes: BTreeMap<(&'static str, &'static str), LaneSpec>,
    tasks: BTreeMap<(&'static str, &'static str), TaskSpec>,
    locks: BTreeMap<(u16, &'static str, &'static str), LockSpec>,
}

impl Inventory {
    /// The declarations of one crate.
    #[must_use]
    pub fn of(lanes: &[LaneSpec], tasks: &[TaskSpec], locks: &[LockSpec]) -> Self {
        let mut inventory = Inventory::default();
        lanes.iter().for_each(|spec| inventory.note_lane(*spec));
        tasks.iter().for_each(|spec| inventory.note_task(*spec));
        locks.iter().for_each(|spec| inventory.note_lock(*spec));
        inventory
    }

    /// Adds everything in `other`.
    #[must_use]
    pub fn with(mut self, other: Inventory) -> Self {
        self.lanes.extend(other.lanes);
        self.tasks.extend(other.tasks);
        self.locks.extend(other.locks);
        self
    }

    pub(crate) fn note_lane(&mut self, spec: LaneSpec) {
        self.lanes.insert((spec.owner, spec.name), spec);
    }

    pub(crate) fn note_task(&mut self, spec: TaskSpec) {
        self.tasks.insert((spec.owner, spec.name), spec);
    }

    pub(crate) fn note_lock(&mut self, spec: LockSpec) {
        self.locks.insert((spec.rank, spec.owner, spec.name), spec);
    }

    /// The three tables of a concurrency document, in Markdown, in a stable order.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        text.push_str("## Queues\n\n");
        let rows = self.lanes.values().map(|lane| {
            let (kind, full) = match (lane.kind, lane.overflow) {
                (LaneKind::Feed, _) => ("feed", "a slow subscriber loses the oldest and is told how many"),
                (LaneKind::Lane, Overflow::RejectNewest) => ("lane", "newest refused with `Busy`"),
                (LaneKind::Lane, Overflow::ShedOldest) => ("lane", "oldest shed and counted"),
            };
            let capacity = lane.capacity.to_string();
            [lane.owner, lane.name, kind, &capacity, lane.flow, full, lane.why].map(str::to_owned)
        });
        table(
            &mut text,
            ["Crate", "Name", "Kind", "Capacity", "From → to", "When full", "Why this size"],
            rows,
        );

        text.push_str("\n## Tasks\n\n");
        let rows = self.tasks.values().map(|task| {
            [task.owner.to_owned(), task.name.to_owned(), task.restart.to_string(), task.what.to_owned()]
        });
        table(&mut text, ["Crate", "Kind", "When it fails", "What it does"], rows);

        text.push_str("\n## Locks\n\nTaken in ascending rank, released before any `.await`.\n\n");
        let rows = self.locks.values().map(|lock| {
            [lock.rank.to_string(), lock.owner.to_owned(), lock.name.to_owned(), lock.guards.to_owned()]
        });
        table(&mut text, ["Rank", "Crate", "Name", "Guards"], rows);
        text
    }
}

fn table<const N: usize>(text: &mut String, head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let mut line = |cells: &[&str]| writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a string");
    line(&head);
    line(&[&"---"; N].map(|dash| *dash));
    for row in rows {
        line(&row.each_ref().map(String::as_str));
    }
}
