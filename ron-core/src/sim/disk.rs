//! A disk in memory that loses, tears and reorders whatever was not synced.
//!
//! Every file has the bytes a crash leaves behind, the bytes a reader sees, and between the two the ordered changes
//! that no sync has covered; every directory has the same for its names. A sync moves changes across. A crash decides
//! for each remaining change whether it happened, and how much of it: power does not fail in program order, and a
//! write larger than a sector can stop in the middle. What never happens is a sector of garbage; disks correct or
//! refuse those, and flipped bits have their own switch.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::inodes::{Change, DirNode, FileNode, NameChange, Node, NodeId, Plan, ROOT, State, crashed};
use crate::disk::{Access, Disk, DiskError, DiskLock, Entry, File, RawFile, components, parent, same_dir};

/// What a crash leaves of the changes that no sync covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashStyle {
    /// Power fails and nothing unsynced was written back.
    LoseUnsynced,
    /// Power fails just after everything was written back.
    KeepAll,
    /// Power fails after the first few unsynced changes, in the order they were made.
    KeepPrefix {
        /// How many of them happened.
        changes: usize,
    },
    /// Power fails while the kernel writes back in its own order: each change is kept, lost or torn by sector.
    Scramble {
        /// Decides which.
        seed: u64,
    },
    /// Only the process dies. The page cache lives on, so everything is still seen and still not durable.
    Killed,
}

/// What goes wrong in a call that is told to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The device reports an error. A write gets half way; a sync drops what it should have written, and later ones
    /// succeed without it, as kernels do.
    Io,
    /// The disk is full. A write gets half way.
    NoSpace,
}

/// One call that changed or synced something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its number since the disk was made, from 1.
    pub number: u64,
    /// What was asked.
    pub op: &'static str,
    /// Of which path.
    pub path: PathBuf,
    /// Where in the file, when that means something.
    pub offset: u64,
    /// How many bytes, when that means something.
    pub len: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { number, op, path, offset, len } = self;
        write!(f, "{number}: {op} {} at {offset}, {len} bytes", path.display())
    }
}

/// The twin. Clones are the same disk; [`SimDisk::fork`] makes another.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    /// An empty disk without limits or faults.
    #[must_use]
    pub fn new() -> Self {
        SimDisk::default()
    }

    /// A copy of everything, so that one moment can be crashed in several ways. Files open on this disk stay with it.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(self.lock_state().clone())) }
    }

    /// Crashes in the given style and comes back up: files and locks from before are dead, planned faults forgotten.
    pub fn restart(&self, style: CrashStyle) {
        let mut state = self.lock_state();
        state.settle(style);
        state.generation += 1;
        state.locks.clear();
        state.crashed = false;
        state.crash_at = None;
        state.faults.clear();
        state.read_faults.clear();
    }

    /// Calls so far that changed or synced something. Reads are not counted: a crash between two reads is the crash
    /// before the next change.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock_state().calls
    }

    /// The machine goes down in the `n`-th counted call from now (1 is the next): that call counts as made but not
    /// synced, and it and everything after fails as [`DiskError::Crashed`] until [`SimDisk::restart`].
    pub fn crash_at_call(&self, n: u64) {
        let mut state = self.lock_state();
        state.crash_at = Some(state.calls + n);
    }

    /// The machine goes down now: everything fails as [`DiskError::Crashed`] until [`SimDisk::restart`].
    pub fn crash(&self) {
        self.lock_state().crashed = true;
    }

    /// The `n`-th counted call from now (1 is the next) fails.
    pub fn fail_call(&self, n: u64, fault: Fault) {
        let mut state = self.lock_state();
        let number = state.calls + n;
        state.faults.insert(number, fault);
    }

    /// The `n`-th read of a file's bytes from now (1 is the next) fails.
    pub fn fail_read(&self, n: u64) {
        let mut state = self.lock_state();
        let number = state.reads + n;
        state.read_faults.insert(number);
    }

    /// From now on every read fails that wants this byte, as when a sector of the disk has gone bad. Restarts do not heal
    /// it.
    ///
    /// # Panics
    /// If there is no such file: a mistake of the test.
    pub fn spoil(&self, path: impl AsRef<Path>, offset: usize) {
        let mut state = self.lock_state();
        let node = state.find("spoil", path.as_ref()).expect("the file exists");
        state.bad_bytes.insert((node, offset));
    }

    /// Whether [`SimDisk::crash`] or [`SimDisk::crash_at_call`] has struck.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.lock_state().crashed
    }

    /// Bytes all files together may have; `None` for no limit.
    pub fn capacity(&self, bytes: Option<u64>) {
        self.lock_state().capacity = bytes;
    }

    /// Bytes that all files together have now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock_state().used()
    }

    /// From now on every piece of blocking work takes so long, on a node that [`Sim`](super::Sim) runs: a read, a batch of
    /// writes and its sync. Zero is as before. It is the work that takes time and not the call: a call returns at once,
    /// because nothing else runs meanwhile.
    pub fn slow_down(&self, pace: Duration) {
        self.lock_state().pace = pace;
    }

    /// What [`slow_down`](Self::slow_down) set.
    #[must_use]
    pub fn pace(&self) -> Duration {
        self.lock_state().pace
    }

    /// The disk is replaced by a new and empty one: what was on it is gone, limits and faults too. Files and locks from
    /// before are dead.
    pub fn wipe(&self) {
        let mut state = self.lock_state();
        let generation = state.generation + 1;
        *state = State { generation, ..State::default() };
    }

    /// The last calls, oldest first.
    #[must_use]
    pub fn log(&self) -> Vec<Call> {
        self.lock_state().log.iter().cloned().collect()
    }

    /// Puts a file with these bytes there, durably, with its directories.
    ///
    /// # Panics
    /// If the path is not plain or runs through a file: a mistake of the test.
    pub fn put(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let mut state = self.lock_state();
        let names = components("put", path.as_ref()).expect("a plain path");
        let (name, dirs) = names.split_last().expect("a name");
        let mut dir = ROOT;
        for part in dirs {
            let part = part.to_string_lossy().into_owned();
            dir = match state.dir_ref(dir).seen.get(&part) {
                Some(found) => *found,
                None => {
                    let made = state.new_node(Node::Dir(DirNode::default()));
                    state.link_durably(dir, part, made);
                    made
                }
            };
        }
        let file = state.new_node(Node::File(FileNode {
            durable: bytes.to_vec(),
            seen: bytes.to_vec(),
            unsynced: Vec::new(),
        }));
        state.link_durably(dir, name.to_string_lossy().into_owned(), file);
    }

    /// The bytes a reader of this file sees, if it exists.
    #[must_use]
    pub fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.lock_state();
        let node = state.find("read", path.as_ref()).ok()?;
        match &state.nodes[&node] {
            Node::File(file) => Some(file.seen.clone()),
            Node::Dir(_) => None,
        }
    }

    /// Flips the lowest bit of one byte, durably and behind everyone's back.
    ///
    /// # Panics
    /// If there is no such byte: a mistake of the test.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: usize) {
        let mut state = self.lock_state();
        let node = state.find("flip", path.as_ref()).expect("the file exists");
        let file = state.file_mut(node);
        file.seen[offset] ^= 1;
        if let Some(byte) = file.durable.get_mut(offset) {
            *byte ^= 1;
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: &State, path: &Path, node: NodeId, access: Access) -> File {
        let raw = SimFile {
            disk: self.clone(),
            path: path.to_path_buf(),
            node,
            generation: state.generation,
            access,
        };
        File::new(path, Box::new(raw))
    }

    /// Makes a change to a directory's names, subject to the plans for this call.
    fn change_names<T>(
        &self,
        op: &'static str,
        path: &Path,
        change: impl FnOnce(&mut State, NodeId, String) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let mut state = self.lock_state();
        let bad = || DiskError::BadPath { op, path: path.to_path_buf() };
        let names = components(op, path)?;
        let name = names.last().ok_or_else(bad)?.to_string_lossy().into_owned();
        let named = |error: io::Error| DiskError::from_io(op, path, &error);
        let plan = state.begin(op, path, 0, 0).map_err(named)?;
        let dir = state.find(op, parent(path)).map_err(named)?;
        if let Plan::Fail(fault) = plan {
            return Err(named(fault.error()));
        }
        let done = change(&mut state, dir, name).map_err(named)?;
        // A lock that the crash takes back at once asks for the state again when it is dropped.
        drop(state);
        plan.finish().map_err(named)?;
        Ok(done)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl Fault {
    pub(super) fn error(self) -> io::Error {
        match self {
            Fault::Io => io::Error::other("injected failure"),
            Fault::NoSpace => io::ErrorKind::StorageFull.into(),
        }
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> Result<File, DiskError> {
        self.change_names("create", path, |state, dir, name| {
            if state.dir_mut(dir)?.seen.contains_key(&name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if state.room() == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let node = state.new_node(Node::File(FileNode::default()));
            state.change_dir(dir, NameChange::Link { name, node })?;
            Ok(self.handle(state, path, node, Access::Write))
        })
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, DiskError> {
        let state = self.lock_state();
        let named = |error: io::Error| DiskError::from_io("open", path, &error);
        if state.crashed {
            return Err(named(crashed()));
        }
        components("open", path)?;
        let node = state.find("open", path).map_err(named)?;
        match &state.nodes[&node] {
            Node::File(_) => Ok(self.handle(&state, path, node, access)),
            Node::Dir(_) => Err(named(io::ErrorKind::InvalidInput.into())),
        }
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>, DiskError> {
        let state = self.lock_state();
        let named = |error: io::Error| DiskError::from_io("list", dir, &error);
        if state.crashed {
            return Err(named(crashed()));
        }
        components("list", dir)?;
        let node = state.find("list", dir).map_err(named)?;
        let Node::Dir(found) = &state.nodes[&node] else {
            return Err(named(io::ErrorKind::NotADirectory.into()));
        };
        let entry = |(name, node): (&String, &NodeId)| match &state.nodes[node] {
            Node::File(file) => Entry { name: name.clone(), is_file: true, len: file.seen.len() as u64 },
            Node::Dir(_) => Entry { name: name.clone(), is_file: false, len: 0 },
        };
        Ok(found.seen.iter().map(entry).collect())
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        self.change_names("remove", path, |state, dir, name| {
            let node = *state.dir_mut(dir)?.seen.get(&name).ok_or(io::ErrorKind::NotFound)?;
            if matches!(state.nodes[&node], Node::Dir(_)) {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            state.change_dir(dir, NameChange::Unlink { name })
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        same_dir("rename", from, to)?;
        let new = components("rename", to)?;
        let new = new.last().map(|name| name.to_string_lossy().into_owned());
        self.change_names("rename", from, |state, dir, name| {
            let node = *state.dir_mut(dir)?.seen.get(&name).ok_or(io::ErrorKind::NotFound)?;
            let to = new.ok_or(io::ErrorKind::InvalidInput)?;
            if let Some(taken) = state.dir_ref(dir).seen.get(&to) {
                state.check_replaced(node, *taken)?;
            }
            state.change_dir(dir, NameChange::Rename { from: name, to, node })
        })
    }

    fn make_dir(&self, path: &Path) -> Result<(), DiskError> {
        self.change_names("make directory", path, |state, dir, name| {
            if state.dir_mut(dir)?.seen.contains_key(&name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let node = state.new_node(Node::Dir(DirNode::default()));
            state.change_dir(dir, NameChange::Link { name, node })
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        let op = "sync directory";
        components(op, dir)?;
        let mut state = self.lock_state();
        let named = |error: io::Error| DiskError::from_io(op, dir, &error);
        let plan = state.begin(op, dir, 0, 0).map_err(named)?;
        let node = state.find(op, dir).map_err(named)?;
        let names = state.dir_mut(node).map_err(named)?;
        match plan {
            Plan::Go => {
                for (_, change) in std::mem::take(&mut names.unsynced) {
                    change.apply(&mut names.durable);
                }
            }
            // Whether the names were written is open, and stays so until a crash decides.
            Plan::Fail(_) | Plan::Crash => {}
        }
        plan.finish().map_err(named)
    }

    fn lock(&self, path: &Path) -> Result<DiskLock, DiskError> {
        self.change_names("lock", path, |state, dir, name| {
            let node = match state.dir_mut(dir)?.seen.get(&name) {
                Some(node) => *node,
                None => {
                    let node = state.new_node(Node::File(FileNode::default()));
                    state.change_dir(dir, NameChange::Link { name, node })?;
                    node
                }
            };
            if !state.locks.insert(node) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(DiskLock::new(Box::new(SimLock { disk: self.clone(), node, generation: state.generation })))
        })
        .map_err(|error| match error {
            DiskError::Io { kind: io::ErrorKind::WouldBlock, path, .. } => DiskError::Locked { path },
            other => other,
        })
    }

    fn free_space(&self) -> Result<u64, DiskError> {
        Ok(self.lock_state().room() as u64)
    }
}

struct SimLock {
    disk: SimDisk,
    node: NodeId,
    generation: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.lock_state();
        if state.generation == self.generation {
            state.locks.remove(&self.node);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    node: NodeId,
    generation: u64,
    access: Access,
}

impl SimFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock_state();
        if state.crashed || state.generation != self.generation {
            return Err(crashed());
        }
        Ok(state)
    }

    fn begin(&self, op: &'static str, offset: u64, len: u64) -> io::Result<(MutexGuard<'_, State>, Plan)> {
        if self.access == Access::Read {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut state = self.state()?;
        let plan = state.begin(op, &self.path, offset, len)?;
        Ok((state, plan))
    }

    fn sync(&self, op: &'static str) -> io::Result<()> {
        let (mut state, plan) = self.begin(op, 0, 0)?;
        let file = state.file_mut(self.node);
        match plan {
            Plan::Go => {
                for (_, change) in std::mem::take(&mut file.unsynced) {
                    change.apply(&mut file.durable);
                }
            }
            // The pages are dropped but marked clean: readers still see them, and no later sync will write them.
            Plan::Fail(_) => file.unsynced.clear(),
            Plan::Crash => {}
        }
        plan.finish()
    }
}

fn position(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl RawFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state()?;
        state.reads += 1;
        let number = state.reads;
        if state.read_faults.remove(&number) {
            return Err(Fault::Io.error());
        }
        let seen = state.file_mut(self.node).seen.len();
        let from = position(offset)?.min(seen);
        let len = buf.len().min(seen - from);
        if state.bad_bytes.range((self.node, from)..(self.node, from + len)).next().is_some() {
            return Err(Fault::Io.error());
        }
        let bytes = &state.file_mut(self.node).seen;
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut state, plan) = self.begin("write", offset, bytes.len() as u64)?;
        let offset = position(offset)?;
        let longest = state.file_mut(self.node).seen.len().saturating_add(state.room());
        let fits = longest.saturating_sub(offset).min(bytes.len());
        let written = if matches!(plan, Plan::Fail(_)) { fits / 2 } else { fits };
        if written > 0 {
            let bytes = bytes[..written].to_vec();
            state.change_file(self.node, Change::Write { offset, bytes });
        }
        plan.finish()?;
        if fits < bytes.len() {
            return Err(Fault::NoSpace.error());
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync("sync data")
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync("sync all")
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, plan) = self.begin("set length", len, 0)?;
        if let Plan::Fail(fault) = plan {
            return Err(fault.error());
        }
        let len = position(len)?;
        if len > state.file_mut(self.node).seen.len().saturating_add(state.room()) {
            return Err(Fault::NoSpace.error());
        }
        state.change_file(self.node, Change::SetLen(len));
        plan.finish()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let (mut state, plan) = self.begin("allocate", offset, len)?;
        if let Plan::Fail(fault) = plan {
            return Err(fault.error());
        }
        let end = position(offset.saturating_add(len))?;
        if end > state.file_mut(self.node).seen.len().saturating_add(state.room()) {
            return Err(Fault::NoSpace.error());
        }
        state.change_file(self.node, Change::Extend(end));
        plan.finish()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.file_mut(self.node).seen.len() as u64)
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use super::*;
    use crate::{
        disk::{MemoryDisk, RealDisk, replace},
        sim::inodes::SECTOR,
    };

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    fn durable_file(disk: &SimDisk, bytes: &[u8]) -> File {
        let file = disk.create(path("f")).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(path("")).unwrap();
        file
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_is_seen_until_the_crash() {
        let disk = SimDisk::new();
        let file = durable_file(&disk, b"old");
        file.write_at(0, b"new!").unwrap();
        assert_eq!(disk.bytes("f").unwrap(), b"new!");
        let kept = disk.fork();
        kept.restart(CrashStyle::KeepAll);
        assert_eq!(kept.bytes("f").unwrap(), b"new!");
        disk.restart(CrashStyle::LoseUnsynced);
        assert_eq!(disk.bytes("f").unwrap(), b"old");
        assert!(matches!(file.len(), Err(DiskError::Crashed { .. })));
        disk.open(path("f"), Access::Write).unwrap().write_at(0, b"x").unwrap();
    }

    #[test]
    fn a_name_needs_its_directory_synced() {
        let disk = SimDisk::new();
        let file = disk.create(path("f")).unwrap();
        file.write_at(0, b"x").unwrap();
        file.sync_all().unwrap();
        disk.restart(CrashStyle::LoseUnsynced);
        assert_eq!(disk.bytes("f"), None);
    }

    /// What replaces what: the same on every disk. The disk in memory is for files, and does not rename directories.
    #[test]
    fn a_rename_replaces_what_it_does_on_a_real_disk() {
        let dir = tempfile::tempdir().unwrap();
        let real = RealDisk::open(dir.path()).unwrap();
        let (simulated, memory) = (SimDisk::new(), MemoryDisk::new());
        let disks: [&dyn Disk; 3] = [&real, &simulated, &memory];
        for disk in disks {
            for dir in ["empty", "bare", "full", "full/inner"] {
                disk.make_dir(path(dir)).unwrap();
            }
            for file in ["one", "two", "full/file"] {
                disk.create(path(file)).unwrap();
            }
        }
        let moved = |disk: &dyn Disk, from: &str, to: &str| match disk.rename(path(from), path(to)) {
            Ok(()) => None,
            Err(DiskError::Io { kind, .. }) => Some(kind),
            Err(other) => panic!("{from} to {to}: {other}"),
        };
        for (from, to, refused) in [
            ("one", "empty", Some(io::ErrorKind::IsADirectory)),
            ("one", "full", Some(io::ErrorKind::IsADirectory)),
            ("one", "one", None),
            ("two", "one", None),
            ("empty", "one", Some(io::ErrorKind::NotADirectory)),
            ("empty", "full", Some(io::ErrorKind::DirectoryNotEmpty)),
            ("full", "full", None),
            ("full", "bare", None),
        ] {
            for disk in &disks[..2] {
                assert_eq!(moved(*disk, from, to), refused, "{from} to {to}: {disk:?}");
            }
            if matches!(from, "one" | "two") {
                assert_eq!(moved(&memory, from, to), refused, "{from} to {to}");
            }
        }
        let names = |disk: &dyn Disk, dir: &str| disk.list(path(dir)).unwrap();
        assert_eq!(names(&real, ""), names(&simulated, ""));
        assert_eq!(names(&real, "bare"), names(&simulated, "bare"));
        assert_eq!(names(&memory, "full").len(), 2, "a refusal changes nothing");
    }

    #[test]
    fn a_killed_process_leaves_the_cache_and_it_is_still_not_durable() {
        let disk = SimDisk::new();
        durable_file(&disk, b"old").write_at(0, b"new").unwrap();
        disk.restart(CrashStyle::Killed);
        assert_eq!(disk.bytes("f").unwrap(), b"new");
        disk.restart(CrashStyle::LoseUnsynced);
        assert_eq!(disk.bytes("f").unwrap(), b"old");
    }

    #[test]
    fn replace_is_old_or_new_at_every_crash() {
        for n in 1.. {
            let disk = SimDisk::new();
            replace(&disk, path("f"), b"old").unwrap();
            disk.crash_at_call(n);
            let done = replace(&disk, path("f"), b"newer");
            for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll]
                .into_iter()
                .chain((0..20).map(|seed| CrashStyle::Scramble { seed }))
            {
                let disk = disk.fork();
                disk.restart(style);
                let found = disk.bytes("f").unwrap();
                assert!(found == b"newer" || (done.is_err() && found == b"old"), "{n} {style:?} {found:?}");
            }
            if done.is_ok() {
                return;
            }
        }
    }

    #[test]
    fn a_torn_write_keeps_whole_sectors_and_makes_up_nothing() {
        let old = vec![1_u8; 4 * SECTOR];
        let new = vec![2_u8; 2 * SECTOR];
        let mut mixed = 0;
        for seed in 0..64 {
            let disk = SimDisk::new();
            durable_file(&disk, &old).write_at(100, &new).unwrap();
            disk.restart(CrashStyle::Scramble { seed });
            let bytes = disk.bytes("f").unwrap();
            let sectors = [100..512, 512..1024, 1024..1124];
            let kept: Vec<bool> = sectors
                .into_iter()
                .map(|sector| {
                    let first = bytes[sector.start];
                    assert!(bytes[sector].iter().all(|byte| *byte == first));
                    first == 2
                })
                .collect();
            assert!(bytes[..100].iter().chain(&bytes[1124..]).all(|byte| *byte == 1));
            mixed += u32::from(kept.contains(&true) && kept.contains(&false));
        }
        assert!(mixed > 5, "only {mixed} torn");
    }

    #[test]
    fn a_prefix_is_kept_in_order_over_all_files() {
        let disk = SimDisk::new();
        let file = durable_file(&disk, b"....");
        file.write_at(0, b"a").unwrap();
        disk.create(path("g")).unwrap();
        file.write_at(1, b"b").unwrap();
        disk.restart(CrashStyle::KeepPrefix { changes: 2 });
        assert_eq!(disk.bytes("f").unwrap(), b"a...");
        assert!(disk.bytes("g").is_some());
    }

    #[test]
    fn a_failed_sync_poisons_and_no_later_sync_brings_the_bytes_back() {
        let disk = SimDisk::new();
        let file = durable_file(&disk, b"old");
        file.write_at(0, b"new").unwrap();
        disk.fail_call(1, Fault::Io);
        assert!(matches!(file.sync_data(), Err(DiskError::Io { .. })));
        assert!(matches!(file.sync_data(), Err(DiskError::Poisoned { .. })));
        assert!(matches!(file.write_at(0, b"x"), Err(DiskError::Poisoned { .. })));
        assert!(matches!(file.set_len(0), Err(DiskError::Poisoned { .. })));
        let mut byte = [0];
        assert_eq!(file.read_at(0, &mut byte).unwrap(), 1);
        let again = disk.open(path("f"), Access::Write).unwrap();
        again.sync_data().unwrap();
        disk.restart(CrashStyle::KeepAll);
        assert_eq!(disk.bytes("f").unwrap(), b"old");
    }

    #[test]
    fn a_full_disk_takes_what_fits() {
        let disk = SimDisk::new();
        disk.capacity(Some(10));
        let file = disk.create(path("f")).unwrap();
        assert!(file.allocate(0, 11).unwrap_err().is_no_space());
        assert!(file.write_at(0, &[7; 12]).unwrap_err().is_no_space());
        assert_eq!(file.len().unwrap(), 10);
        assert!(disk.create(path("g")).unwrap_err().is_no_space());
        disk.remove(path("f")).unwrap();
        disk.create(path("g")).unwrap();
    }

    #[test]
    fn a_wiped_disk_is_new_and_old_handles_are_dead() {
        let disk = SimDisk::new();
        let file = durable_file(&disk, b"old");
        let lock = disk.lock(path("LOCK")).unwrap();
        disk.capacity(Some(10));
        assert_eq!(disk.used(), 3);
        disk.wipe();
        assert_eq!((disk.bytes("f"), disk.used()), (None, 0));
        assert!(matches!(file.write_at(0, b"x"), Err(DiskError::Crashed { .. })));
        let _again = disk.lock(path("LOCK")).unwrap();
        drop(lock);
        assert!(matches!(disk.lock(path("LOCK")), Err(DiskError::Locked { .. })));
        durable_file(&disk, &[7; 100]);
    }

    #[test]
    fn the_crashing_call_and_all_after_it_fail() {
        let disk = SimDisk::new();
        let file = durable_file(&disk, b"old");
        let lock = disk.lock(path("LOCK")).unwrap();
        disk.crash_at_call(1);
        assert!(matches!(file.write_at(0, b"new"), Err(DiskError::Crashed { .. })));
        assert!(matches!(disk.list(path("")), Err(DiskError::Crashed { .. })));
        assert!(disk.is_crashed());
        disk.restart(CrashStyle::KeepAll);
        assert_eq!(disk.bytes("f").unwrap(), b"new");
        let again = disk.lock(path("LOCK")).unwrap();
        drop(lock);
        assert!(matches!(disk.lock(path("LOCK")), Err(DiskError::Locked { .. })));
        drop(again);
        assert_eq!(disk.log().last().map(|call| call.op), Some("lock"));
    }
}
