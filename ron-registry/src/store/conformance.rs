//! What every engine for a log has to pass. Run [`check`] in the tests of yours.
//!
//! Each check gets a fresh, empty store. They say what is wrong in a panic, as tests do.

use std::{
    collections::HashSet,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Deadline, Supervisor, TaskEnd, TaskSpec};

use super::{
    Appended, BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, Block, BoxFuture, LogStore, StoreError, StoredPart,
    StoredSnapshot, Tail, append, begin,
};

/// Writers that race.
const WRITERS: u64 = 16;
/// Blocks that each of them wants to append.
const BLOCKS: u64 = 20;

const WRITER: TaskSpec = TaskSpec::new("ron-registry", "conformance_writer").what("appends in a race");

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn block(entries: impl IntoIterator<Item = String>) -> Block {
    let entries: Vec<Bytes> = entries.into_iter().map(Bytes::from).collect();
    let checkpoint = Bytes::from(format!("checkpoint of {:?}", entries.last()));
    Block { entries, checkpoint }
}

/// Runs everything. `open` makes a fresh, empty store each time; writers run on `host`.
///
/// # Panics
/// If the store does not do what a store must.
pub async fn check<F, S>(host: &Supervisor, open: F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn LogStore>>,
{
    appends_and_reads(&*open().await).await;
    refuses_bad_blocks(&*open().await).await;
    prunes_what_a_snapshot_covers(&*open().await).await;
    begins_behind_a_snapshot(&*open().await).await;
    counts_what_a_snapshot_takes(&*open().await).await;
    for versions in [[155, 305], [305, 155]] {
        prunes_twice_at_once(&*open().await, versions).await;
    }
    gives_a_snapshot_while_it_is_replaced(host, open().await).await;
    stays_in_doubt(&open).await;
    races(host, open().await, None).await;
    // Every third append says that it does not know: half of those took place.
    races(host, open().await, Some(3)).await;
}

/// An append stands behind the version it names, and everything can be read again.
async fn appends_and_reads(store: &dyn LogStore) {
    let empty = Tail { first: 1, version: 0, checkpoint: None };
    assert_eq!(store.tail(soon()).await, Ok(empty), "an empty log");
    assert_eq!(store.read(1, 10, soon()).await, Ok(vec![]), "nothing to read");
    let conflict = store.append_if(1, block(["x".into()]), soon()).await;
    assert_eq!(conflict, Ok(Appended::Conflict { tail: 0 }), "nothing to stand behind");

    let first = block(["one".into(), "two".into(), String::new()]);
    assert_eq!(store.append_if(0, first.clone(), soon()).await, Ok(Appended::Yes));
    assert_eq!(store.append_if(0, first, soon()).await, Ok(Appended::Conflict { tail: 3 }));
    let second = block((4..300).map(|at| format!("entry {at}")));
    assert_eq!(store.append_if(3, second.clone(), soon()).await, Ok(Appended::Yes));
    let tail = Tail { first: 1, version: 299, checkpoint: Some(second.checkpoint) };
    assert_eq!(store.tail(soon()).await, Ok(tail));

    let mut read = Vec::new();
    while read.len() < 299 {
        let more = store.read(read.len() as u64 + 1, 50, soon()).await.expect("it can be read");
        assert!(!more.is_empty() && more.len() <= 50, "at least one, at most as many as asked for");
        read.extend(more);
    }
    assert_eq!(read[..3], ["one", "two", ""].map(Bytes::from));
    assert!(read[3..].iter().zip(4..).all(|(entry, at)| *entry == format!("entry {at}")));
    assert_eq!(store.read(300, 10, soon()).await, Ok(vec![]), "beyond the end");
    assert_eq!(store.read(u64::MAX, 10, soon()).await, Ok(vec![]), "far beyond the end");
}

/// What is no block is refused, and leaves nothing behind.
async fn refuses_bad_blocks(store: &dyn LogStore) {
    let too_many = block((0..=BLOCK_ENTRIES_MAX).map(|at| at.to_string()));
    let large = Bytes::from(vec![0; 65_000]);
    let too_large = Block { entries: vec![large; BLOCK_BYTES_MAX / 65_000 + 1], checkpoint: Bytes::new() };
    for bad in [block([]), too_many, too_large] {
        let refused = store.append_if(0, bad, soon()).await;
        assert!(matches!(refused, Err(StoreError::BadBlock { .. })), "{refused:?}");
    }
    assert_eq!(store.tail(soon()).await.map(|tail| tail.version), Ok(0));
    let largest = Block { entries: vec![Bytes::from(vec![7; 65_535]); 64], checkpoint: Bytes::new() };
    assert_eq!(store.append_if(0, largest.clone(), soon()).await, Ok(Appended::Yes));
    let read = store.read(1, 1, soon()).await.expect("it can be read");
    assert_eq!(read, largest.entries[..1]);
}

/// A log that has nothing can begin behind a snapshot, and only such a log.
async fn begins_behind_a_snapshot(store: &dyn LogStore) {
    let snapshot = StoredSnapshot { version: 512, parts: vec!["first".into(), "second".into()] };
    let empty = store.begin(snapshot.clone(), block([]), soon()).await;
    assert!(matches!(empty, Err(StoreError::BadBlock { .. })), "{empty:?}");
    assert_eq!(store.snapshot_part(0, soon()).await, Ok(None));
    let follows = block(["513".into(), "514".into()]);
    assert_eq!(begin(store, snapshot.clone(), &follows, soon()).await, Ok(Appended::Yes));
    assert_eq!(begin(store, snapshot.clone(), &follows, soon()).await, Ok(Appended::Yes), "the same again");
    let other = begin(store, snapshot.clone(), &block(["other".into()]), soon()).await;
    assert_eq!(other, Ok(Appended::Conflict { tail: 514 }));
    let tail = Tail { first: 513, version: 514, checkpoint: Some(follows.checkpoint) };
    assert_eq!(store.tail(soon()).await, Ok(tail));
    assert_eq!(store.snapshot(soon()).await, Ok(Some(snapshot.clone())));
    for (number, bytes) in (0..).zip(snapshot.parts) {
        let part = StoredPart { version: 512, parts: 2, bytes };
        assert_eq!(store.snapshot_part(number, soon()).await, Ok(Some(part)));
    }
    assert_eq!(store.snapshot_part(2, soon()).await, Ok(None));
    assert_eq!(store.read(512, 1, soon()).await, Err(StoreError::Pruned { first: 513 }));
    assert_eq!(store.append_if(514, block(["515".into()]), soon()).await, Ok(Appended::Yes));
    assert_eq!(store.read(515, 9, soon()).await, Ok(vec!["515".into()]));
}

/// A snapshot is kept whole, what it covers may go, what it does not stays.
async fn prunes_what_a_snapshot_covers(store: &dyn LogStore) {
    for at in 0..40u64 {
        let entries = (1..=10).map(|more| format!("{} {}", at * 10 + more, "x".repeat(1000)));
        assert_eq!(store.append_if(at * 10, block(entries), soon()).await, Ok(Appended::Yes));
    }
    assert_eq!(store.snapshot(soon()).await, Ok(None));
    let beyond = StoredSnapshot { version: 401, parts: vec!["part".into()] };
    assert_eq!(store.prune(beyond, soon()).await, Ok(0), "of what is not there");
    assert_eq!(store.snapshot(soon()).await, Ok(None));
    let snapshot = StoredSnapshot { version: 255, parts: vec!["first".into(), "second".into()] };
    store.prune(snapshot.clone(), soon()).await.expect("it is kept");
    assert_eq!(store.snapshot(soon()).await, Ok(Some(snapshot.clone())));
    let older = StoredSnapshot { version: 254, parts: vec!["older".into()] };
    assert_eq!(store.prune(older, soon()).await, Ok(0));
    assert_eq!(store.snapshot(soon()).await, Ok(Some(snapshot)));

    let tail = store.tail(soon()).await.expect("it can be read");
    assert!(tail.first <= 256 && tail.version == 400, "{tail:?}");
    for version in [256, 300, 400] {
        let read = store.read(version, 1, soon()).await.expect("it is not covered");
        assert!(read[0].starts_with(format!("{version} ").as_bytes()));
    }
    if tail.first > 1 {
        let gone = store.read(tail.first - 1, 1, soon()).await;
        assert_eq!(gone, Err(StoreError::Pruned { first: tail.first }));
    }
    assert_eq!(store.append_if(400, block(["more".into()]), soon()).await, Ok(Appended::Yes));
}

/// What a snapshot takes is not free: one that is longer than the entries it covers frees nothing.
async fn counts_what_a_snapshot_takes(store: &dyn LogStore) {
    const ENTRY: usize = 1000;
    for at in 0..4u64 {
        let entries = (1..=100).map(|_| "x".repeat(ENTRY));
        assert_eq!(store.append_if(at * 100, block(entries), soon()).await, Ok(Appended::Yes));
    }
    let long = StoredSnapshot { version: 100, parts: vec![vec![0; 500 * ENTRY].into(); 2] };
    assert_eq!(store.prune(long, soon()).await, Ok(0), "it takes more than it frees");
    let short = StoredSnapshot { version: 200, parts: vec!["part".into()] };
    let freed = store.prune(short, soon()).await.expect("it is kept");
    // At most the long snapshot and all entries, and as much again for what an engine writes around them.
    let most = 2 * (1000 + 400) * ENTRY as u64;
    assert!(freed <= most, "{freed} bytes, and there never were more than {most}");
}

/// Two who prune at once: one of them may be told to wait, the newer snapshot is never replaced by the older, and what
/// the one that is kept does not cover stays.
async fn prunes_twice_at_once(store: &dyn LogStore, versions: [u64; 2]) {
    for at in 0..40u64 {
        let entries = (1..=10).map(|more| format!("{} {}", at * 10 + more, "x".repeat(1000)));
        assert_eq!(store.append_if(at * 10, block(entries), soon()).await, Ok(Appended::Yes));
    }
    let [one, two] =
        versions.map(|version| StoredSnapshot { version, parts: ["a", "b", "c"].map(Bytes::from).to_vec() });
    let (one, two) = tokio::join!(store.prune(one, soon()), store.prune(two, soon()));
    for pruned in [&one, &two] {
        assert!(matches!(pruned, Ok(_) | Err(StoreError::Busy { .. })), "{pruned:?}");
    }
    assert!(one.is_ok() || two.is_ok(), "one of them is let");
    let kept = store.snapshot(soon()).await.expect("it can be read").expect("one was kept").version;
    let newest = versions.iter().zip([&one, &two]).filter(|(_, pruned)| pruned.is_ok());
    assert_eq!(
        Some(&kept),
        newest.map(|(version, _)| version).max(),
        "the newer one of those that were kept"
    );
    let tail = store.tail(soon()).await.expect("it can be read");
    assert!(tail.first <= kept + 1 && tail.version == 400, "{tail:?} with a snapshot of {kept}");
    for version in kept + 1..=400 {
        let read = store.read(version, 1, soon()).await.expect("it is not covered");
        assert!(read[0].starts_with(format!("{version} ").as_bytes()), "version {version}");
    }
}

/// Whoever reads a snapshot while the next one takes its place has one of them, whole.
async fn gives_a_snapshot_while_it_is_replaced(host: &Supervisor, store: Arc<dyn LogStore>) {
    let parts =
        |version: u64| (0..4).map(move |part| Bytes::from(format!("{version} {part} {}", "y".repeat(500))));
    let is_over = Arc::new(AtomicBool::new(false));
    let (reads, over) = (Arc::clone(&store), Arc::clone(&is_over));
    let reader = host.spawn(WRITER, move |_| async move {
        while !over.load(Ordering::Relaxed) {
            if let Some(read) = reads.snapshot(soon()).await.expect("it can be read") {
                assert_eq!(read.parts, parts(read.version).collect::<Vec<_>>(), "of one snapshot");
            }
            if let Some(read) = reads.snapshot_part(3, soon()).await.expect("it can be read") {
                assert_eq!(Some(read.bytes), parts(read.version).nth(3));
            }
            tokio::task::yield_now().await;
        }
    });
    for at in 0..60u64 {
        let entries = (1..=10).map(|more| format!("{} {}", at * 10 + more, "x".repeat(1000)));
        assert_eq!(store.append_if(at * 10, block(entries), soon()).await, Ok(Appended::Yes));
        let version = at * 10 + 9;
        store.prune(StoredSnapshot { version, parts: parts(version).collect() }, soon()).await.expect("kept");
        tokio::task::yield_now().await;
    }
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(reader.ended().await, TaskEnd::Completed, "a reader failed");
}

/// An append in doubt stays so until it is read back: what a later attempt says is about that attempt only.
async fn stays_in_doubt<F, S>(open: &F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn LogStore>>,
{
    let definite = [
        StoreError::Busy { what: "it", retry_after: Duration::ZERO },
        StoreError::NoSpace,
        StoreError::Canceled,
        StoreError::BadBlock { entries: 1, bytes: 1 },
        StoreError::Failed { message: "poisoned".into() },
        StoreError::Damaged { message: "somewhere".into() },
    ];
    for error in definite {
        // It took place, the answer was lost, and from then on the engine is away.
        let store = Away { store: open().await, error: error.clone(), is_away: AtomicBool::new(false) };
        let after = Deadline::after(Duration::from_millis(200));
        let outcome = append(&store, 0, &block(["one".into()]), after).await;
        let is_known = matches!(&outcome, Err(error) if !error.is_unknown());
        assert!(!is_known, "{outcome:?} after {error:?}, and it took place");
        let tail = store.store.tail(soon()).await.expect("it can be read");
        assert_eq!(tail.version, 1);
    }
}

/// An engine that loses the answer of the first append, and then fails in one way.
#[derive(Debug)]
struct Away {
    store: Arc<dyn LogStore>,
    error: StoreError,
    is_away: AtomicBool,
}

impl LogStore for Away {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(async move {
            if self.is_away.swap(true, Ordering::Relaxed) {
                return Err(self.error.clone());
            }
            self.store.append_if(after, block, deadline).await?;
            Err(StoreError::Unknown { message: "the answer was lost".into() })
        })
    }

    fn read(&self, _: u64, _: usize, _: Deadline) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        Box::pin(ready(Err(self.error.clone())))
    }

    fn tail(&self, _: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        Box::pin(ready(Err(self.error.clone())))
    }

    fn prune(&self, _: StoredSnapshot, _: Deadline) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(ready(Err(self.error.clone())))
    }

    fn snapshot(&self, _: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        Box::pin(ready(Err(self.error.clone())))
    }

    fn begin(&self, _: StoredSnapshot, _: Block, _: Deadline) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(ready(Err(self.error.clone())))
    }
}

/// However many write at once, and whatever they are told: one entry a version, and everything that was acknowledged is
/// there once.
async fn races(host: &Supervisor, store: Arc<dyn LogStore>, doubt: Option<u64>) {
    let store: Arc<dyn LogStore> = match doubt {
        Some(every) => Arc::new(Doubtful { store, every, calls: AtomicU64::new(0) }),
        None => store,
    };
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.push(host.spawn(WRITER, move |_| race(store, writer)));
    }
    for writer in &writers {
        let end = writer.ended().await;
        assert_eq!(end, TaskEnd::Completed, "a writer failed");
    }
    let mut seen = HashSet::new();
    let mut version = 1;
    loop {
        let entries = store.read(version, BLOCK_ENTRIES_MAX, soon()).await.expect("it can be read");
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            assert!(seen.insert(entry.clone()), "{entry:?} is there twice, the second time at {version}");
            version += 1;
        }
    }
    for writer in 0..WRITERS {
        for number in 0..BLOCKS {
            for half in ["a", "b"] {
                let entry = Bytes::from(format!("{writer} {number}{half}"));
                assert!(seen.contains(&entry), "{entry:?} was acknowledged and is not there");
            }
        }
    }
    assert_eq!(seen.len() as u64, WRITERS * BLOCKS * 2, "nothing else is there");
}

async fn race(store: Arc<dyn LogStore>, writer: u64) {
    for number in 0..BLOCKS {
        let block = block(["a", "b"].map(|half| format!("{writer} {number}{half}")));
        loop {
            let after = store.tail(soon()).await.expect("it can be read").version;
            match append(&*store, after, &block, soon()).await {
                Ok(Appended::Yes) => break,
                Ok(Appended::Conflict { .. }) | Err(StoreError::Busy { .. }) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("append: {error}"),
            }
        }
    }
}

/// A store whose answers get lost: some appends take place and some do not, and both say that they do not know.
#[derive(Debug)]
struct Doubtful {
    store: Arc<dyn LogStore>,
    every: u64,
    calls: AtomicU64,
}

impl LogStore for Doubtful {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(async move {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            let lost = || Err(StoreError::Unknown { message: "the answer was lost".into() });
            match call % (2 * self.every) {
                0 => lost(),
                at if at == self.every => {
                    let _ = self.store.append_if(after, block, deadline).await;
                    lost()
                }
                _ => self.store.append_if(after, block, deadline).await,
            }
        })
    }

    fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        self.store.read(from, max, deadline)
    }

    fn tail(&self, deadline: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        self.store.tail(deadline)
    }

    fn prune(&self, snapshot: StoredSnapshot, deadline: Deadline) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.store.prune(snapshot, deadline)
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        self.store.snapshot(deadline)
    }
    fn begin(
        &self,
        snapshot: StoredSnapshot,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        self.store.begin(snapshot, block, deadline)
    }
}
