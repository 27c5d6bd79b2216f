//! The checker of what every node promises about itself: queues and memory within their bounds, no task that panicked or is left
//! over, and a readiness that is true, in both directions.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    ContentId, Counter, Deadline, ErrorKind, GateStatus, Metrics, Refusal, Supervisor, TaskSpec,
    disk::Disk as _, now, sim::SimDisk,
};
use ron_index::Key;
use ron_storage::{Put, StorageError};
use tokio::time::Instant;

use crate::{
    kept::Pieces,
    node::{Host, Hosts, RESERVE, keeping_settings},
    report,
    verdict::Verdict,
};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// After how long without trouble on its own machine nothing is an excuse for a node any more, and after how long without
/// trouble anywhere.
const ALONE: Duration = Duration::from_secs(10);
const TOGETHER: Duration = Duration::from_secs(60);

/// How often one who is told that a node is busy comes again, and when.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) const WATCHER: TaskSpec = TaskSpec::new("examples", "watcher").what("looks at every node");

/// Looks at the queues in a second.
const LOOKS: u32 = 4;

/// What a run may take, for its checkers and for each node: a node has a store, a log, a table and their queues, all nearly empty,
/// and a simulated disk with everything that was ever put on it.
const RUN_BYTES: u64 = 64 << 20;
const NODE_BYTES: u64 = 32 << 20;

/// Whatever a node said instead of an answer.
type Refused = Box<dyn Refusal + Send + Sync>;

/// How much is wrong in each place, and when that last changed.
type Places = BTreeMap<Place, (u32, Option<Instant>)>;

/// Where nothing is wrong, and since when. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Calm(Arc<Mutex<Places>>);

/// Where something may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Node(u8),
    Lines,
}

impl Calm {
    fn change(&self, place: Place, change: impl FnOnce(&mut u32)) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (troubles, changed) = places.entry(place).or_default();
        change(troubles);
        *changed = Some(now());
    }

    pub(crate) fn begins(&self, place: Place) {
        self.change(place, |troubles| *troubles += 1);
    }

    pub(crate) fn ends(&self, place: Place) {
        self.change(place, |troubles| *troubles = troubles.saturating_sub(1));
    }

    /// Whether nothing has been wrong there since a moment.
    fn has_been(&self, place: Place, since: Instant) -> bool {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((troubles, changed)) = places.get(&place) else { return true };
        *troubles == 0 && changed.is_none_or(|changed| changed < since)
    }

    /// Whether nothing has been wrong anywhere since a moment.
    fn has_been_everywhere(&self, since: Instant) -> bool {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .values()
            .all(|(troubles, changed)| *troubles == 0 && changed.is_none_or(|changed| changed < since))
    }
}

/// Looks at a node from outside.
fn look(host: &Host, calm: &Calm, verdict: &Verdict) {
    let Host { number, supervisor, .. } = host;
    look_at_queues(host, verdict);
    for (what, used, max) in memory(host) {
        verdict.level(what, used, max);
        verdict.promised(used <= max, || format!("{number}: {what} is {used}, and {max} is the most"));
    }
    no_panics(*number, supervisor, verdict);
    no_failure(*number, supervisor, verdict);
    let status = supervisor.ready().status();
    verdict.count(if status.writes { "seen ready" } else { "seen not ready" });
    if calm.has_been(Place::Node(*number), now() - ALONE) {
        verdict.count("seen with nothing of its own to excuse it");
    }
    if calm.has_been_everywhere(now() - TOGETHER) {
        verdict.count("seen with nothing anywhere to excuse it");
    }
    for gate in status.closed() {
        verdict.promised(has_cause(host, gate, calm), || {
            format!("{number}: {} is closed without a cause: {:?}", gate.name, gate.reason)
        });
    }
}

fn no_panics(number: u8, supervisor: &Supervisor, verdict: &Verdict) {
    let panicked = supervisor.metrics().total(Counter::TasksPanicked);
    verdict.promised(panicked == 0, || format!("{number}: {panicked} tasks panicked"));
}

/// Nothing failed without which a node is none. A disk that crashes with its machine makes that of whoever writes to it.
fn no_failure(number: u8, supervisor: &Supervisor, verdict: &Verdict) {
    let failure = supervisor.failure();
    verdict.promised(failure.is_none(), || format!("{number} failed: {failure:?}"));
}

/// Looks at every node for as long as the run goes on, whatever else waits for something.
pub(crate) async fn watch(hosts: Hosts, calm: Calm, verdict: Verdict) {
    loop {
        for _ in 0..LOOKS {
            tokio::time::sleep(Duration::from_secs(1) / LOOKS).await;
            hosts.all().iter().for_each(|host| look_at_queues(host, &verdict));
        }
        hosts.all().iter().for_each(|host| look(host, &calm, &verdict));
        if verdict.elapsed().as_secs() % 10 == 0 {
            report::progress(verdict.elapsed());
        }
    }
}

/// Queues never hold more than they take. What a lane held between two looks it remembers; of the others it is what they hold now.
fn look_at_queues(host: &Host, verdict: &Verdict) {
    for queue in host.supervisor.metrics().queues_at_most() {
        verdict.count("queues seen");
        verdict.queue(queue.name, queue.depth, queue.capacity);
        verdict.promised(queue.depth <= queue.capacity, || {
            format!("{}: {} has held {} and takes {}", host.number, queue.name, queue.depth, queue.capacity)
        });
    }
}

/// What each subsystem says that it holds, by a name that is counted, and the most that its settings allow.
fn memory(host: &Host) -> Vec<(&'static str, u64, u64)> {
    let Host { supervisor, index, dht, overlay, registry, store, keeping, .. } = host;
    let (records, table) = (dht.settings().records.clone(), dht.status());
    let (overlay, store, pending) = (overlay.settings(), store.settings(), registry.settings().pending);
    let lookups = index.settings().lane + index.settings().workers.get();
    let mut all = vec![
        ("cache of the index in bytes", index.status().bytes, index.settings().cache_bytes),
        ("clients of the index in bytes", index.client_memory() as u64, index.client_memory_max() as u64),
        ("lookups of the index", index.status().lookups as u64, lookups as u64),
        ("records of the DHT", table.records as u64, records.records_max as u64),
        ("records of the DHT in bytes", table.record_bytes as u64, records.bytes_max as u64),
    ];
    // What is only told to those who scrape, from the first look of its subsystem on.
    let mut told = |name, max| {
        if let Some(level) = supervisor.metrics().level(name) {
            all.push((name, level as u64, max));
        }
    };
    told("pending_proposals", pending.pending_max as u64);
    told("egress_bytes", overlay.egress_bytes_max as u64);
    told("get_streams", store.get_streams as u64);
    told("put_streams", store.put_streams as u64);
    if let Some(keeping) = keeping {
        let settings = keeping_settings();
        let status = keeping.status();
        all.push(("claims", status.claims as u64, settings.claims_max as u64));
        let repairs = settings.lane + settings.workers.get();
        all.push(("repairs", status.repairs as u64, repairs as u64));
    }
    all
}

/// Whether what a gate says is so, as far as that can be seen from outside.
fn has_cause(host: &Host, gate: &GateStatus, calm: &Calm) -> bool {
    let reason = gate.reason.as_deref().unwrap_or_default();
    if reason.is_empty() || gate.name.ends_with(" tasks") {
        // Nobody has asked it to stop.
        return false;
    }
    let now = now();
    let was_long = |time| gate.lasting >= time;
    if reason.ends_with("% full") {
        let queues = host.supervisor.metrics().queues();
        return queues.iter().any(|queue| queue.name == gate.name && queue.depth > 0);
    }
    let needs_others = [
        "dht.seeds",
        "dht.buckets",
        "dht.peers",
        "overlay.",
        "registry.following",
        "storage.keeping",
        "index.",
    ];
    if needs_others.iter().any(|name| gate.name.starts_with(name)) {
        return !(was_long(TOGETHER) && calm.has_been_everywhere(now - TOGETHER));
    }
    !(was_long(ALONE) && calm.has_been(Place::Node(host.number), now - ALONE))
}

/// What is not ready, in words.
pub(crate) fn closed(host: &Host) -> Vec<String> {
    let status = host.supervisor.ready().status();
    status
        .closed()
        .map(|gate| format!("{}: {} is closed: {:?}", host.number, gate.name, gate.reason))
        .collect()
}

/// No task panicked of those who ask the nodes: much of what a handle does is done in the task of its caller.
pub(crate) fn no_panics_outside(who: &str, supervisor: &Supervisor, verdict: &Verdict) {
    let panicked = supervisor.metrics().total(Counter::TasksPanicked);
    verdict.promised(panicked == 0, || format!("{panicked} tasks of the {who} panicked"));
}

/// Every task of a node that was stopped or lost power has ended, those of its parts too: their metrics are the node's.
pub(crate) fn all_ended(number: u8, supervisor: &Supervisor, is_crashed: bool, verdict: &Verdict) {
    let metrics: &Metrics = supervisor.metrics();
    let (begun, ended) = (metrics.total(Counter::TasksSpawned), metrics.total(Counter::TasksEnded));
    let running = supervisor.running();
    verdict.add("tasks ended", usize::try_from(ended).unwrap_or(usize::MAX));
    verdict.promised(begun > 0 && begun == ended && running == 0, || {
        format!("{number} is off, and of {begun} tasks {ended} have ended ({running} of its own run)")
    });
    no_panics(number, supervisor, verdict);
    if !is_crashed {
        no_failure(number, supervisor, verdict);
    }
}

/// A node whose disk is full says so, refuses what is new, and gives and deletes what it has. It is held to that if there is clearly
/// less room before and after than it is to leave.
pub(crate) async fn ask_full(host: &Host, disk: &SimDisk, salt: u64, verdict: &Verdict) {
    let soon = || Deadline::after(PATIENCE);
    let is_full =
        || !host.supervisor.stop().is_requested() && disk.free_space().is_ok_and(|free| free < RESERVE / 2);
    if !is_full() {
        return;
    }
    let writes = host.supervisor.ready().status().writes;
    verdict.promised(!writes, || format!("{} says that it takes writes, and its disk is full", host.number));
    // Its length is announced. What is not may still be taken: a store does not ask its disk about every byte.
    let content = Bytes::from(salt.to_be_bytes().to_vec());
    let announced = Put { len: Some(content.len() as u64), ..Put::default() };
    let put = host.store.put_with(Pieces(content), announced, soon()).await;
    let first = match host.store.list(None, 1, soon()).await {
        Ok(page) => page.objects.first().map(|stat| stat.id),
        Err(error) => {
            verdict.refused("list on a full disk", &error);
            None
        }
    };
    let read = match first {
        Some(id) => host.store.get_bytes(id, u64::MAX, soon()).await.map(|bytes| ContentId::of(&bytes) == id),
        None => Ok(true),
    };
    let deleted = host.store.delete(ContentId::of(&salt.to_be_bytes()), soon()).await;
    if !is_full() {
        return;
    }
    verdict.count("asked while its disk was full");
    match put {
        Ok(_) => verdict.broken(format!("{} takes a put, and its disk is full", host.number)),
        Err(StorageError::Full) => verdict.count("refused because its disk was full"),
        Err(error) => {
            verdict.promised(is_excused(&error), || {
                format!("the disk of {} is full, and it says of a put: {error}", host.number)
            });
            verdict.refused("put on a full disk", &error);
        }
    }
    match read {
        Ok(is_right) => verdict.promised(is_right, || format!("{}, full, gives wrong bytes", host.number)),
        Err(error) => {
            verdict.promised(!matches!(error, StorageError::Full), || {
                format!("{} gives nothing, because its disk is full", host.number)
            });
            verdict.refused("read on a full disk", &error);
        }
    }
    if let Err(error) = deleted {
        verdict.promised(is_excused(&error) || matches!(error, StorageError::Full), || {
            format!("the disk of {} is full, and it says of a delete: {error}", host.number)
        });
        verdict.refused("delete on a full disk", &error);
    }
}

/// Whether trouble may be all there is to a refusal.
fn is_excused(error: &StorageError) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Canceled
}

/// What is asked of a node, one of each subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Write, read and delete in its store.
    Store,
    /// Look for what nobody provides.
    Dht,
    /// Which topics it is on.
    Overlay,
    /// The last entry that it has of the log.
    Registry,
    /// What nobody provides, once more.
    Index,
}

impl Ask {
    pub(crate) const ALL: [Ask; 5] = [Ask::Store, Ask::Dht, Ask::Overlay, Ask::Registry, Ask::Index];

    /// Whether a node answers out of what it has itself.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Ask::Store | Ask::Overlay | Ask::Registry)
    }

    /// Whether that was answered. `Err` is the refusal.
    async fn ask(self, host: &Host, salt: u64, verdict: &Verdict) -> Result<(), Refused> {
        let soon = || Deadline::after(PATIENCE);
        let nothing = ContentId::of(&salt.to_be_bytes());
        let caller_is_told = |error: Refused| match error.kind() {
            ErrorKind::Caller => Ok(()),
            _ => Err(error),
        };
        match self {
            Ask::Store => write(host, salt, verdict).await,
            Ask::Dht => {
                let search = host.dht.find_providers(nothing, NonZeroUsize::MIN, soon());
                search.map_err(boxed)?.next().await.map(drop).map_err(boxed)
            }
            Ask::Overlay => host.overlay.topics(soon()).await.map(drop).map_err(boxed),
            Ask::Registry => {
                let version = host.registry.head().version;
                if version < host.registry.status().first {
                    return Ok(());
                }
                host.registry.entry(version, soon()).await.map(drop).map_err(boxed)
            }
            Ask::Index => {
                let resolved = host.index.resolve(&Key::Content(nothing), soon()).await;
                resolved.map(drop).map_err(boxed).or_else(caller_is_told)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Ask::Store => "probe: store",
            Ask::Dht => "probe: dht",
            Ask::Overlay => "probe: overlay",
            Ask::Registry => "probe: registry",
            Ask::Index => "probe: index",
        }
    }
}

fn boxed(error: impl Refusal + Send + Sync + 'static) -> Refused {
    Box::new(error)
}

async fn write(host: &Host, salt: u64, verdict: &Verdict) -> Result<(), Refused> {
    let soon = || Deadline::after(PATIENCE);
    let content = Bytes::from(salt.to_be_bytes().to_vec());
    let stored = host.store.put_bytes(content.clone(), soon()).await.map_err(boxed)?;
    let read = host.store.get_bytes(stored.id, u64::MAX, soon()).await.map_err(boxed)?;
    verdict.promised(read == content, || format!("{}: wrong bytes", host.number));
    host.store.delete(stored.id, soon()).await.map(drop).map_err(boxed)
}

/// Asks a node for something. If it said before and after that it is ready, and nothing was wrong with it meanwhile, it answers:
/// whoever is told that it is busy comes again a few times. In peace it answers at once.
pub(crate) async fn probe(host: &Host, ask: Ask, salt: u64, in_peace: bool, calm: &Calm, verdict: &Verdict) {
    let (began, before) = (now(), host.supervisor.ready().status());
    let mut answered = ask.ask(host, salt, verdict).await;
    for _ in 1..TRIES {
        if in_peace || !answered.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            break;
        }
        verdict.count("busy, and asked again");
        tokio::time::sleep(PAUSE).await;
        answered = ask.ask(host, salt, verdict).await;
    }
    let after = host.supervisor.ready().status();
    let was_ready = match ask {
        Ask::Store => before.writes && after.writes,
        _ => before.reads && after.reads,
    };
    let was_calm =
        calm.has_been(Place::Node(host.number), began) && (ask.is_local() || calm.has_been_everywhere(began));
    let is_owed = in_peace || (was_ready && was_calm);
    if is_owed {
        verdict.count("asked, and owed an answer");
    }
    let Err(error) = answered else { return verdict.count("asked and answered") };
    verdict.refused(ask.name(), &*error);
    verdict.promised(!is_owed, || format!("{} is ready, and {ask:?}: {error}", host.number));
}

/// What this process takes now, and the most that it ever took, in bytes, if the system tells.
pub(crate) fn process_memory() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok().map(|kilobytes: u64| kilobytes << 10)
    };
    Some((bytes("VmRSS:")?, bytes("VmHWM:")?))
}

/// From now on the most that this process takes is counted anew. Says whether the system can.
pub(crate) fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// What a run of so many nodes may take.
pub(crate) fn memory_max(nodes: u8) -> u64 {
    RUN_BYTES + u64::from(nodes) * NODE_BYTES
}
