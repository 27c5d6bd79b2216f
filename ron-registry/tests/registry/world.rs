//! What the tests of a running registry share: signers, a host, a store that can be told to misbehave.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, Metrics, Supervisor, TaskSpec, journal::Salts, net::Identity,
    prometheus_client::registry::Registry as Prometheus, sim::SimDisk,
};
use ron_registry::{
    Approval, Content, KeyKind, LogTrust, NoteSigner, Outcome, Policy, Proposal, Receipt, Registry,
    RegistryError, Settings, Signer, Source,
    store::{
        Appended, Block, BoxFuture, JournalStore, JournalStoreSettings, LogStore, MemoryStore, StoreError,
        StoredMemo, StoredSnapshot, Tail,
    },
};

pub(crate) const ORIGIN: &str = "example.com/registry";
pub(crate) const LOG_KEY: [u8; 32] = [42; 32];
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// When the tests begin, in milliseconds of the Unix epoch.
const START: u64 = 1_700_000_000_000;

const CALLER: TaskSpec = TaskSpec::new("test", "caller");

pub(crate) fn host() -> Supervisor {
    Supervisor::builder("test").inline_blocking(true).start()
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

pub(crate) fn signer(seed: u8) -> Identity {
    Identity::from_seed(&[seed + 1; 32])
}

pub(crate) fn policy(needed: u32, signers: u8) -> Policy {
    let of = |seed| Signer { name: format!("s{seed}"), key: signer(seed).public_key(), expires: None };
    Policy::of(needed, (0..signers).map(of).collect()).unwrap()
}

/// A clock that follows the paused one.
pub(crate) fn clock() -> impl Fn() -> u64 + Send + Sync + 'static {
    let begin = ron_core::now();
    move || START + begin.elapsed().as_millis() as u64
}

pub(crate) async fn start(store: Arc<dyn LogStore>, host: &Supervisor) -> Registry {
    start_with(store, host, Settings::default()).await
}

pub(crate) async fn start_with(store: Arc<dyn LogStore>, host: &Supervisor, settings: Settings) -> Registry {
    let builder = Registry::builder(ORIGIN, LOG_KEY).settings(settings).clock(clock());
    builder.start(store, host).await.unwrap()
}

/// A registry in memory that has begun, with this policy.
pub(crate) async fn founded(host: &Supervisor, needed: u32, signers: u8) -> (Registry, Arc<Odd>) {
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let registry = start(store.clone(), host).await;
    registry.found(policy(needed, signers), soon()).await.unwrap();
    (registry, store)
}

pub(crate) fn draft(registry: &Registry, name: &str, payload: &str) -> Proposal {
    let content = Content::Payload(Bytes::copy_from_slice(payload.as_bytes()));
    registry.draft_bind(name.parse().unwrap(), content, DAY).unwrap()
}

pub(crate) fn approvals(proposal: &Proposal, signers: &[u8]) -> Vec<Approval> {
    signers.iter().map(|seed| proposal.approve(&signer(*seed), proposal.expires())).collect()
}

/// Binds a name with the approvals of these signers.
pub(crate) async fn bind(
    registry: &Registry,
    name: &str,
    payload: &str,
    signers: &[u8],
) -> Result<Receipt, RegistryError> {
    let proposal = draft(registry, name, payload);
    let approvals = approvals(&proposal, signers);
    match registry.submit(proposal, approvals, soon()).await? {
        Outcome::Committed(receipt) => Ok(receipt),
        pending => panic!("not enough: {pending:?}"),
    }
}

/// Binds many names at once, and says which versions they got.
pub(crate) async fn bind_many(
    host: &Supervisor,
    registry: &Registry,
    names: std::ops::Range<u64>,
) -> Vec<Result<Receipt, RegistryError>> {
    let done = Arc::new(Mutex::new(Vec::new()));
    let mut callers = Vec::new();
    for (at, number) in names.enumerate() {
        // No more at once than the lane takes.
        if at % 400 == 399 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (registry, done) = (registry.clone(), Arc::clone(&done));
        callers.push(host.spawn(CALLER, move |_| async move {
            let bound = bind(&registry, &format!("many/{number}"), "x", &[0]).await;
            done.lock().unwrap().push(bound);
        }));
    }
    for caller in &callers {
        caller.ended().await;
    }
    std::mem::take(&mut *done.lock().unwrap())
}

/// Binds a few names again and again.
pub(crate) async fn bind_again(registry: &Registry, times: u64) {
    for number in 0..times {
        bind(registry, &format!("again/{}", number % 8), &number.to_string(), &[0]).await.unwrap();
    }
}

pub(crate) async fn journal(host: &Supervisor, disk: &SimDisk) -> Result<Arc<dyn LogStore>, StoreError> {
    let settings = JournalStoreSettings { segment_bytes: 32 << 10, salts: Salts::Seeded(1) };
    let store = JournalStore::open(host, Arc::new(disk.clone()), Path::new("log"), settings).await?;
    Ok(Arc::new(store))
}

/// A registry as [`founded`] makes it, by one signer, and what a scrape reads.
pub(crate) async fn measured(host: &Supervisor) -> (Registry, Arc<Odd>, Prometheus) {
    let mut scrape = Prometheus::default();
    let store = Arc::new(Odd::over(Arc::new(MemoryStore::new())));
    let builder = Registry::builder(ORIGIN, LOG_KEY).clock(clock());
    let builder = builder.metrics(Metrics::register("ron_registry", &mut scrape));
    let registry = builder.start(store.clone(), host).await.unwrap();
    registry.found(policy(1, 1), soon()).await.unwrap();
    (registry, store, scrape)
}

/// All that a scrape sees.
pub(crate) fn scraped(registry: &Prometheus) -> String {
    let mut text = String::new();
    ron_core::prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

/// The key of the log that [`start`] signs with.
pub(crate) fn trust() -> LogTrust {
    LogTrust::new(NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).unwrap().verifier().clone())
}

pub(crate) async fn follow(source: impl Source, store: Arc<dyn LogStore>, host: &Supervisor) -> Registry {
    Registry::follower(trust(), source).clock(clock()).start(store, host).await.unwrap()
}

/// Until the follower has come to `version`; half a minute is long for it.
pub(crate) async fn reaches(follower: &Registry, version: u64) {
    let reached = async {
        while follower.head().version < version {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = Deadline::after(Duration::from_secs(30)).limit("follow", reached).await;
    assert!(reached.is_ok(), "it is at {}: {:?}", follower.head().version, follower.status().ready);
}

/// How a store misbehaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Oddity {
    /// Not at all.
    None,
    /// Appends take this long.
    Slow(Duration),
    /// Everything takes this long, before and after.
    Far(Duration),
    /// Appends fail like this, and do not take place.
    Fail(StoreError),
    /// Appends take place, and it says that it does not know.
    Doubt,
    /// As before, and nothing can be read.
    Lost,
    /// One bit of the entry with this version is another when it is read.
    Flip(u64),
    /// One bit of a signature in the entry with this version is another when it is read.
    Forge(u64),
    /// Nothing is there any more.
    Empty,
    /// Reads fail.
    Away,
    /// So many reads find it busy.
    BusyReads(u64),
    /// Reads do not come to an end.
    Stuck,
    /// Appends panic.
    Panic,
    /// Snapshots are not kept before their time is over.
    StuckPrune,
}

/// A store that can be told to misbehave.
#[derive(Debug)]
pub(crate) struct Odd {
    store: Arc<dyn LogStore>,
    oddity: Mutex<Oddity>,
    pub(crate) appends: AtomicU64,
    pub(crate) reads: AtomicU64,
}

impl Odd {
    pub(crate) fn over(store: Arc<dyn LogStore>) -> Self {
        let [appends, reads] = [0; 2].map(AtomicU64::new);
        Odd { store, oddity: Mutex::new(Oddity::None), appends, reads }
    }

    pub(crate) fn be(&self, oddity: Oddity) {
        *self.oddity.lock().unwrap() = oddity;
    }

    fn is(&self) -> Oddity {
        self.oddity.lock().unwrap().clone()
    }
}

impl Odd {
    async fn way(&self) {
        if let Oddity::Far(delay) = self.is() {
            tokio::time::sleep(delay).await;
        }
    }
}

impl LogStore for Odd {
    fn append_if(
        &self,
        after: u64,
        block: Block,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Appended, StoreError>> {
        Box::pin(async move {
            self.appends.fetch_add(1, Ordering::Relaxed);
            match self.is() {
                Oddity::Slow(delay) => {
                    let slept = deadline.limit("append", tokio::time::sleep(delay)).await;
                    slept.map_err(StoreError::from)?;
                }
                Oddity::Fail(error) => return Err(error),
                Oddity::Panic => panic!("as asked"),
                Oddity::Doubt | Oddity::Lost => {
                    self.store.append_if(after, block, deadline).await?;
                    return Err(StoreError::Unknown { message: "the answer was lost".into() });
                }
                _ => {}
            }
            self.way().await;
            let appended = self.store.append_if(after, block, deadline).await;
            self.way().await;
            appended
        })
    }

    fn read(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let mut entries = match self.is() {
                Oddity::Empty => Ok(Vec::new()),
                Oddity::Away | Oddity::Lost => Err(StoreError::Failed { message: "away".into() }),
                Oddity::BusyReads(left) if left > 0 => {
                    self.be(Oddity::BusyReads(left - 1));
                    Err(StoreError::Busy { what: "store", retry_after: Duration::from_millis(1) })
                }
                Oddity::Stuck => {
                    deadline.limit("read", std::future::pending()).await.map_err(StoreError::from)
                }
                _ => {
                    self.way().await;
                    self.store.read(from, max, deadline).await
                }
            }?;
            self.way().await;
            // The root of names is the last of an entry, behind the last signature.
            let flip = match self.is() {
                Oddity::Flip(version) => Some((version, 1)),
                Oddity::Forge(version) => Some((version, 46)),
                _ => None,
            };
            if let Some((version, back)) = flip {
                if let Some(entry) = version.checked_sub(from).and_then(|at| entries.get_mut(at as usize)) {
                    let mut bytes = entry.to_vec();
                    let at = bytes.len() - back;
                    bytes[at] ^= 1;
                    *entry = bytes.into();
                }
            }
            Ok(entries)
        })
    }

    fn tail(&self, deadline: Deadline) -> BoxFuture<'_, Result<Tail, StoreError>> {
        Box::pin(async move {
            match self.is() {
                Oddity::Away | Oddity::Lost => Err(StoreError::Failed { message: "away".into() }),
                _ => {
                    self.way().await;
                    let tail = self.store.tail(deadline).await;
                    self.way().await;
                    tail
                }
            }
        })
    }

    fn prune(&self, snapshot: StoredSnapshot, deadline: Deadline) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            if self.is() == Oddity::StuckPrune {
                deadline.limit("prune", std::future::pending::<()>()).await.map_err(StoreError::from)?;
            }
            self.store.prune(snapshot, deadline).await
        })
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

    fn keep_memo(&self, memo: StoredMemo, deadline: Deadline) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.keep_memo(memo, deadline)
    }

    fn take_memo(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<StoredMemo>, StoreError>> {
        self.store.take_memo(deadline)
    }
}
