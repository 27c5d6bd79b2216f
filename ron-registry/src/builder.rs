//! How a registry is made: as the owner of a log, or as one who follows it.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ron_core::{
    Affects, Feed, Lane, LaneSpec, Metrics, PriorityInbox, Ratio, Ready, ReadyGate, Restart, Supervisor,
    TaskSpec,
};

#[cfg(feature = "client")]
use crate::witness::{self, WITNESSES, Witness, Witnesses};
use crate::{
    Registry, RegistryError, Settings,
    actor::{Command, Committer},
    follow::{Evidence, FOLLOWER, Follower, OnEvidence, Source},
    logic::{
        checkpoint::{Checkpoint, LogTrust, is_origin},
        note::{KeyKind, NoteSigner},
        proposal::{FormError, ProposalId},
    },
    shared::{COMMITTED, Clock, Parts, Shared, load},
    store::LogStore,
    upkeep::{self, Publisher},
};

pub(crate) const PROPOSALS: LaneSpec = LaneSpec::new("ron-registry", "proposals", 512)
    .flow("callers → committer")
    .why("half a block: what gathers while one block is synced, without anybody waiting for a second");

pub(crate) const APPROVALS: LaneSpec = LaneSpec::new("ron-registry", "approvals", 512)
    .flow("callers → committer")
    .why("as many as proposals, in a lane of their own: what is nearly decided goes first");

pub(crate) const COMMITTER: TaskSpec = TaskSpec::new("ron-registry", "committer")
    .restart(Restart::Never)
    .what("decides what comes next, and is the only one to move the head");

/// Approvals in a row before a proposal has its turn.
const APPROVALS_BURST: NonZeroUsize = NonZeroUsize::new(8).expect("more than none");

/// From when on full lanes make the registry unready for writes. Reads do not go through them.
const WRITES_AT: Ratio = Ratio::percent(80);

/// How long one step of reading the log at the start may take.
const LOADING: Duration = Duration::from_secs(600);

/// What a registry does with its log.
pub(crate) enum Role {
    /// It commits and signs.
    Owner { origin: String, seed: [u8; 32] },
    /// It follows another node that does.
    Follower { trust: LogTrust, source: Arc<dyn Source> },
}

/// Prepares a registry.
pub struct Builder {
    role: Role,
    settings: Settings,
    metrics: Option<Metrics>,
    clock: Option<Clock>,
    seen: Option<Checkpoint>,
    publisher: Option<Arc<dyn Publisher>>,
    publish_from: Option<u64>,
    on_evidence: Option<OnEvidence>,
    verified: u64,
    #[cfg(feature = "client")]
    witnesses: Option<Witnesses>,
}

impl Builder {
    pub(crate) fn new(role: Role) -> Self {
        Builder {
            role,
            settings: Settings::default(),
            metrics: None,
            clock: None,
            seen: None,
            publisher: None,
            publish_from: None,
            on_evidence: None,
            verified: 0,
            #[cfg(feature = "client")]
            witnesses: None,
        }
    }

    /// Sets all knobs at once.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Counts into this set instead of the supervisor's.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Takes the time from here, in milliseconds of the Unix epoch, instead of from the system: for simulations.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Some(Clock(Arc::new(clock)));
        self
    }

    /// Refuses to start on a log that does not continue the one that had this checkpoint: one that was rolled back or
    /// replaced. Keep the last checkpoint somewhere else than the log.
    #[must_use]
    pub fn seen(mut self, checkpoint: Checkpoint) -> Self {
        self.seen = Some(checkpoint);
        self
    }

    /// Hands every update to `publisher`: those after the head that the start finds, unless
    /// [`publish_from`](Self::publish_from) says otherwise.
    #[must_use]
    pub fn publisher(mut self, publisher: impl Publisher) -> Self {
        self.publisher = Some(Arc::new(publisher));
        self
    }

    /// Hands updates to the publisher from this version on. Give the version after the last one that the publisher has dealt
    /// with: what was committed but not published when the process ended is then published now.
    #[must_use]
    pub fn publish_from(mut self, version: u64) -> Self {
        self.publish_from = Some(version.max(1));
        self
    }

    /// Lets the verifier's first pass go on after this version, which [`Status::verified`](crate::Status::verified) said before
    /// the stop. Entries up to it are read, but not checked again before the next pass.
    #[must_use]
    pub fn verified(mut self, version: u64) -> Self {
        self.verified = version;
        self
    }

    /// Shows the head to these witnesses at intervals of `every`, and keeps it once `needed` of them have signed: see
    /// [`Registry::cosigned`]. Nothing is pruned beyond the last head that they have signed, and nothing at all before there
    /// is one.
    #[cfg(feature = "client")]
    #[must_use]
    pub fn witnesses(
        mut self,
        witnesses: impl IntoIterator<Item = Witness>,
        needed: usize,
        every: Duration,
    ) -> Self {
        let all: Vec<Witness> = witnesses.into_iter().collect();
        self.witnesses = (!all.is_empty()).then_some(Witnesses { all, needed: needed.max(1), every });
        self
    }

    /// Is called with the evidence against a followed log as it is found: keep it where it is not lost. Only for followers.
    #[must_use]
    pub fn on_evidence(mut self, tell: impl Fn(&Evidence) + Send + Sync + 'static) -> Self {
        self.on_evidence = Some(Arc::new(tell));
        self
    }

    /// Reads the log in `store`, and starts. What is in the store must be what its last checkpoint says.
    ///
    /// # Errors
    /// [`RegistryError::Untrusted`] if it is not, [`RegistryError::Config`], [`RegistryError::Form`] for an origin that no log
    /// can have, and those of the store.
    pub async fn start(
        self,
        store: Arc<dyn LogStore>,
        supervisor: &Supervisor,
    ) -> Result<Registry, RegistryError> {
        #[cfg(feature = "client")]
        let witnesses = self.witnesses;
        let Builder {
            role,
            settings,
            metrics,
            clock,
            seen,
            publisher,
            publish_from,
            on_evidence,
            verified,
            ..
        } = self;
        settings.check()?;
        #[cfg(feature = "client")]
        let is_witnessed = witnesses.is_some();
        #[cfg(not(feature = "client"))]
        let is_witnessed = false;
        let [_, _, committed] = settings.lanes()?;
        let (signer, trust, source) = match role {
            Role::Follower { trust, source } => (None, trust, Some(source)),
            Role::Owner { origin, seed } => {
                if !is_origin(&origin) {
                    return Err(FormError::BadOrigin.into());
                }
                let signer = NoteSigner::from_seed(&origin, KeyKind::Ed25519, &seed)
                    .map_err(|_| FormError::BadOrigin)?;
                let trust = LogTrust::new(signer.verifier().clone());
                (Some(signer), trust, None)
            }
        };
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("registry", settings.drain, metrics);
        let spawner = group.spawner();
        let (mut loaded, kept) =
            load(&*store, &spawner, signer.as_ref(), &trust, seen.as_ref(), LOADING).await?;
        let committed = Feed::open(COMMITTED.with_capacity(committed), group.metrics());
        let clock = clock.unwrap_or_else(|| Clock(Arc::new(unix_ms)));
        let recent = std::mem::take(&mut loaded.recent);
        let parts = Parts {
            loaded,
            store,
            signer,
            trust,
            committed,
            settings,
            clock,
            verified,
            is_witnessed,
            spawner,
        };
        let shared = Arc::new(Shared::new(parts, group.metrics()));

        let ready = supervisor.ready();
        let deciding = match source {
            None => Some(decide(&shared, recent, &group, ready)?),
            Some(source) => {
                shared.committed.close_on(&group.stop());
                let gate = ready.gate("registry.following", Affects::Reads);
                gate.close("the log has not been asked for yet");
                let follower = Follower::new(Arc::clone(&shared), source, gate, on_evidence, kept);
                let _ = group.spawn(FOLLOWER, |stop| Box::pin(follower.run(stop)));
                None
            }
        };
        let publisher = publisher.map(|publisher| (publisher, publish_from));
        let pruning = upkeep::start(&shared, &group, ready, publisher);
        #[cfg(feature = "client")]
        if let Some(witnesses) = witnesses.map(Arc::new) {
            let at = Arc::clone(&shared);
            let _ = group.spawn_restarting(WITNESSES, move |stop| {
                Box::pin(witness::run(Arc::clone(&at), Arc::clone(&witnesses), stop))
            });
        }
        Ok(Registry::new(shared, deciding, pruning, group, ready.clone()))
    }
}

/// Opens the lanes, and starts the committer.
fn decide(
    shared: &Arc<Shared>,
    recent: VecDeque<(ProposalId, u64)>,
    group: &Supervisor,
    ready: &Ready,
) -> Result<Deciding, RegistryError> {
    let [proposals, approvals, _] = shared.settings.load().lanes()?;
    let (proposals, proposed) = Lane::open(PROPOSALS.with_capacity(proposals), group.metrics());
    let (approvals, approved) = Lane::open(APPROVALS.with_capacity(approvals), group.metrics());
    proposals.close_on(&group.stop());
    approvals.close_on(&group.stop());
    let full = [&proposals, &approvals].map(|lane| {
        let [writes, _] = ready.watch_lane(lane, WRITES_AT, WRITES_AT);
        writes
    });
    let full = Arc::new(full);
    let inbox = PriorityInbox::new(approved, proposed, APPROVALS_BURST);
    let gate = ready.gate("registry.commit", Affects::Writes);
    let committer = Committer::new(Arc::clone(shared), recent, inbox, gate);
    // Boxed, or every layer around a task would have room for it.
    let _ = group.spawn(COMMITTER, |stop| Box::pin(committer.run(stop)));
    Ok(Deciding { proposals, approvals, _full: full })
}

/// The way to the committer.
#[derive(Clone)]
pub(crate) struct Deciding {
    pub(crate) proposals: Lane<Command>,
    pub(crate) approvals: Lane<Command>,
    _full: Arc<[ReadyGate; 2]>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("is_follower", &matches!(self.role, Role::Follower { .. }))
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Milliseconds of the Unix epoch by the system's clock.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
