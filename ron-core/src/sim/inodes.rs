//! Files and directories with what is durable, what is seen, and the changes in between.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::Path,
    time::Duration,
};

use super::disk::{Call, CrashStyle, Fault};
use crate::disk::{MachineCrashed, components};

/// The unit a write is torn at. Larger sectors tear less, so the smallest is the hardest to survive.
pub(super) const SECTOR: usize = 512;

/// Calls remembered for a failing test to print. Enough for a few recoveries.
const LOG_CALLS: usize = 512;

pub(super) type NodeId = u64;
pub(super) const ROOT: NodeId = 0;

#[derive(Clone)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) next_node: NodeId,
    /// Orders unsynced changes across files and directories.
    pub(super) next_change: u64,
    pub(super) locks: BTreeSet<NodeId>,
    /// Raised by every restart; handles of an older one are dead.
    pub(super) generation: u64,
    pub(super) calls: u64,
    pub(super) reads: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) crashed: bool,
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) read_faults: BTreeSet<u64>,
    /// Bytes that cannot be read, by file.
    pub(super) bad_bytes: BTreeSet<(NodeId, usize)>,
    pub(super) capacity: Option<u64>,
    /// How long a piece of work with the disk takes.
    pub(super) pace: Duration,
    pub(super) log: VecDeque<Call>,
}

impl Default for State {
    fn default() -> Self {
        State {
            nodes: BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]),
            next_node: ROOT + 1,
            next_change: 0,
            locks: BTreeSet::new(),
            generation: 0,
            calls: 0,
            reads: 0,
            crash_at: None,
            crashed: false,
            faults: BTreeMap::new(),
            read_faults: BTreeSet::new(),
            bad_bytes: BTreeSet::new(),
            capacity: None,
            pace: Duration::ZERO,
            log: VecDeque::new(),
        }
    }
}

#[derive(Clone)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone, Default)]
pub(super) struct FileNode {
    pub(super) durable: Vec<u8>,
    pub(super) seen: Vec<u8>,
    pub(super) unsynced: Vec<(u64, Change)>,
}

#[derive(Clone)]
pub(super) enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
    Extend(usize),
}

impl Change {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes: written } => write_into(bytes, *offset, written),
            Change::SetLen(len) => bytes.resize(*len, 0),
            Change::Extend(len) => bytes.resize(bytes.len().max(*len), 0),
        }
    }

    /// Applies only some of the sectors the write touches.
    pub(super) fn apply_torn(&self, bytes: &mut Vec<u8>, rng: &mut fastrand::Rng) {
        let Change::Write { offset, bytes: written } = self else {
            return self.apply(bytes);
        };
        let mut from = 0;
        while from < written.len() {
            let to = written.len().min((offset + from) / SECTOR * SECTOR + SECTOR - offset);
            if rng.bool() {
                write_into(bytes, offset + from, &written[from..to]);
            }
            from = to;
        }
    }
}

pub(super) fn write_into(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}

#[derive(Clone, Default)]
pub(super) struct DirNode {
    pub(super) durable: BTreeMap<String, NodeId>,
    pub(super) seen: BTreeMap<String, NodeId>,
    pub(super) unsynced: Vec<(u64, NameChange)>,
}

#[derive(Clone)]
pub(super) enum NameChange {
    Link { name: String, node: NodeId },
    Unlink { name: String },
    Rename { from: String, to: String, node: NodeId },
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, NodeId>) {
        match self {
            NameChange::Link { name, node } => {
                names.insert(name.clone(), *node);
            }
            NameChange::Unlink { name } => {
                names.remove(name);
            }
            NameChange::Rename { from, to, node } => {
                // The old name may already be someone else's, or never have become durable.
                if names.get(from) == Some(node) {
                    names.remove(from);
                }
                names.insert(to.clone(), *node);
            }
        }
    }
}

/// What the plans say about the call at hand.
#[derive(Clone, Copy)]
pub(super) enum Plan {
    Go,
    Fail(Fault),
    /// Make the change, sync nothing, and report the crash.
    Crash,
}

impl Plan {
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Plan::Go => Ok(()),
            Plan::Fail(fault) => Err(fault.error()),
            Plan::Crash => Err(crashed()),
        }
    }
}

pub(super) fn crashed() -> io::Error {
    io::Error::other(MachineCrashed)
}

impl State {
    pub(super) fn begin(&mut self, op: &'static str, path: &Path, offset: u64, len: u64) -> io::Result<Plan> {
        if self.crashed {
            return Err(crashed());
        }
        self.calls += 1;
        if self.log.len() == LOG_CALLS {
            self.log.pop_front();
        }
        self.log.push_back(Call { number: self.calls, op, path: path.to_path_buf(), offset, len });
        if self.crash_at == Some(self.calls) {
            self.crashed = true;
            return Ok(Plan::Crash);
        }
        Ok(self.faults.remove(&self.calls).map_or(Plan::Go, Plan::Fail))
    }

    pub(super) fn find(&self, op: &'static str, path: &Path) -> io::Result<NodeId> {
        let names = components(op, path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut at = ROOT;
        for name in names {
            let Node::Dir(dir) = &self.nodes[&at] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            at = *dir.seen.get(&*name.to_string_lossy()).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    pub(super) fn new_node(&mut self, node: Node) -> NodeId {
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        id
    }

    pub(super) fn dir_ref(&self, id: NodeId) -> &DirNode {
        match &self.nodes[&id] {
            Node::Dir(dir) => dir,
            Node::File(_) => panic!("a file where the test wants a directory"),
        }
    }

    pub(super) fn dir_mut(&mut self, id: NodeId) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir(dir)) => Ok(dir),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn file_mut(&mut self, id: NodeId) -> &mut FileNode {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => file,
            _ => panic!("a directory where the test wants a file"),
        }
    }

    /// Whether a rename may put `node` in the place of `taken`: a file in that of a file, a directory in that of an empty one.
    pub(super) fn check_replaced(&self, node: NodeId, taken: NodeId) -> io::Result<()> {
        if node == taken {
            return Ok(());
        }
        match (&self.nodes[&node], &self.nodes[&taken]) {
            (Node::File(_), Node::File(_)) => Ok(()),
            (Node::File(_), Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            (Node::Dir(_), Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            (Node::Dir(_), Node::Dir(taken)) if taken.seen.is_empty() => Ok(()),
            (Node::Dir(_), Node::Dir(_)) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    pub(super) fn link_durably(&mut self, dir: NodeId, name: String, node: NodeId) {
        let dir = self.dir_mut(dir).expect("the test walks directories");
        dir.durable.insert(name.clone(), node);
        dir.seen.insert(name, node);
    }

    pub(super) fn change_dir(&mut self, dir: NodeId, change: NameChange) -> io::Result<()> {
        let number = self.next_change;
        self.next_change += 1;
        let dir = self.dir_mut(dir)?;
        change.apply(&mut dir.seen);
        dir.unsynced.push((number, change));
        Ok(())
    }

    pub(super) fn change_file(&mut self, node: NodeId, change: Change) {
        let number = self.next_change;
        self.next_change += 1;
        let file = self.file_mut(node);
        change.apply(&mut file.seen);
        file.unsynced.push((number, change));
    }

    /// Bytes of the files that have a name.
    pub(super) fn used(&self) -> u64 {
        let named: BTreeSet<NodeId> = self
            .nodes
            .values()
            .filter_map(|node| match node {
                Node::Dir(dir) => Some(dir.seen.values().copied()),
                Node::File(_) => None,
            })
            .flatten()
            .collect();
        named
            .iter()
            .map(|id| match &self.nodes[id] {
                Node::File(file) => file.seen.len() as u64,
                Node::Dir(_) => 0,
            })
            .sum()
    }

    /// How much longer a file may become.
    pub(super) fn room(&self) -> usize {
        let free = self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()));
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    /// Decides what became of every unsynced change.
    pub(super) fn settle(&mut self, style: CrashStyle) {
        if style == CrashStyle::Killed {
            return;
        }
        let mut pending: Vec<(u64, NodeId)> = Vec::new();
        for (id, node) in &self.nodes {
            match node {
                Node::File(file) => pending.extend(file.unsynced.iter().map(|(number, _)| (*number, *id))),
                Node::Dir(dir) => pending.extend(dir.unsynced.iter().map(|(number, _)| (*number, *id))),
            }
        }
        pending.sort_unstable();
        let kept_below = match style {
            CrashStyle::KeepPrefix { changes } => {
                pending.get(changes).map_or(u64::MAX, |(number, _)| *number)
            }
            CrashStyle::LoseUnsynced => 0,
            _ => u64::MAX,
        };
        let mut rng = match style {
            CrashStyle::Scramble { seed } => Some(fastrand::Rng::with_seed(seed)),
            _ => None,
        };
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => {
                    for (number, change) in std::mem::take(&mut file.unsynced) {
                        match rng.as_mut().map(|rng| (rng.u8(0..3), rng)) {
                            Some((0, _)) => {}
                            Some((1, rng)) => change.apply_torn(&mut file.durable, rng),
                            _ if number < kept_below => change.apply(&mut file.durable),
                            _ => {}
                        }
                    }
                    file.seen.clone_from(&file.durable);
                }
                Node::Dir(dir) => {
                    for (number, change) in std::mem::take(&mut dir.unsynced) {
                        let lost = rng.as_mut().is_some_and(fastrand::Rng::bool);
                        if !lost && number < kept_below {
                            change.apply(&mut dir.durable);
                        }
                    }
                    dir.seen.clone_from(&dir.durable);
                }
            }
        }
        self.drop_unreachable();
    }

    pub(super) fn drop_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut queue = vec![ROOT];
        while let Some(id) = queue.pop() {
            if reached.insert(id) {
                if let Node::Dir(dir) = &self.nodes[&id] {
                    queue.extend(dir.seen.values());
                }
            }
        }
        self.nodes.retain(|id, _| reached.contains(id));
    }
}
