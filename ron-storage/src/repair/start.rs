//! How keeping is begun: what it is made of, and which tasks it has.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ron_core::{
    Affects, Capacity, ContentId, Feed, Lane, Lock, Metrics, NodeId, PriorityInbox, Snapshot, Supervisor,
    net::PublicKey, now,
};

use super::{
    BYTES, Counts, EVENTS, HEARD, Heard, Keeping, KeepingEvent, KeepingSettings, KeepingStatus, LOOKER,
    Nodes, Owners, PACED, PLACER, PLANNER, PROMISES, Paced, REPAIRS, Shared, URGENT, WAIT_SECONDS, WORKER,
    hands, looking, planner, settings::pacer,
};
use crate::{
    StorageError, Store,
    fetch::Fetcher,
    logic::{
        plan::{Outcome, Step},
        promises::Promises,
    },
    peers::Peers,
};

/// Urgent repairs after which a worker takes one that is not, if one waits.
const URGENT_IN_A_ROW: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// How keeping is begun. See [`Keeping::builder`].
pub struct Builder {
    store: Store,
    me: NodeId,
    peers: Arc<dyn Peers>,
    nodes: Arc<dyn Nodes>,
    settings: KeepingSettings,
    metrics: Option<Metrics>,
    owners: Option<Owners>,
    answering: usize,
    seed: Option<u64>,
}

impl Builder {
    /// Other knobs than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: KeepingSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Where its counters go; to the supervisor's without it.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Whose claims are taken from other nodes. Without it, everybody's that those nodes take.
    #[must_use]
    pub fn owners(mut self, owners: impl Fn(&PublicKey) -> bool + Send + Sync + 'static) -> Self {
        self.owners = Some(Arc::new(owners));
        self
    }

    /// How many nodes have to answer, this one among them, for writes to be ready: as many as acknowledge a put. Default 1.
    #[must_use]
    pub fn answering(mut self, nodes: usize) -> Self {
        self.answering = nodes;
        self
    }

    /// Where randomness begins, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Begins, in a group of its own under `supervisor`.
    ///
    /// # Errors
    /// [`StorageError::Config`].
    pub fn start(self, supervisor: &Supervisor) -> Result<Keeping, StorageError> {
        let Builder { store, me, peers, nodes, settings, metrics, owners, answering, seed } = self;
        settings.check()?;
        let metrics = metrics.unwrap_or_else(|| supervisor.metrics().clone());
        let group = supervisor.child("storage keeping", settings.drain, metrics);
        let metrics = group.metrics().clone();
        let (heard, inbox) = Lane::open(HEARD, &metrics);
        let lane = REPAIRS.with_capacity(Capacity::new("lane", settings.lane)?);
        let (repairs, steps) = Lane::open(lane, &metrics);
        let urgent = URGENT.with_capacity(Capacity::new("lane", settings.lane)?);
        let (urgent, urgent_steps) = Lane::open(urgent, &metrics);
        heard.close_on(&group.stop());
        repairs.close_on(&group.stop());
        urgent.close_on(&group.stop());
        store.book().set_limits(settings.claim_limits());
        let events = Feed::open(EVENTS, &metrics);
        events.close_on(&group.stop());
        let gate = group.ready().gate("storage.keeping", Affects::Writes);
        gate.close("has not compared with the other nodes yet");
        if store.book().is_leaving() {
            tracing::warn!(
                "this node was told to go: it takes nothing new and is emptied until that is taken back"
            );
        }
        let shared = Arc::new(Shared {
            me,
            born: now(),
            fetcher: Fetcher::over(Arc::clone(&peers), &store),
            store,
            peers,
            members: Snapshot::new(BTreeMap::new()),
            promises: Lock::new(PROMISES, Promises::default(), &metrics),
            pace: Arc::new(Paced {
                pacer: pacer(settings.bytes_per_second),
                wait: metrics.histogram(WAIT_SECONDS),
                bytes: metrics.tally(BYTES, ""),
                paced: metrics.tally(PACED, ""),
            }),
            #[cfg(feature = "erasure")]
            spawner: group.spawner(),
            heard,
            events,
            status: Snapshot::new(KeepingStatus::default()),
            counted: AtomicU64::new(0),
            owners,
            under_way: AtomicU64::new(0),
            draws: AtomicU64::new(seed.unwrap_or_else(|| fastrand::u64(..))),
            said: AtomicU64::new(0),
            counts: Counts::new(&metrics),
            nodes: Arc::clone(&nodes),
            answering: Snapshot::new(answering),
            recent: Snapshot::new(Vec::new()),
            settings: Snapshot::new(settings.clone()),
        });
        let (of_placer, of_looker, of_planner) =
            (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
        let placing = metrics.clone();
        let _ = group.spawn_restarting(PLACER, move |stop| {
            let (shared, nodes, metrics) = (Arc::clone(&of_placer), Arc::clone(&nodes), placing.clone());
            Box::pin(looking::place(shared, nodes, metrics, stop))
        });
        let _ =
            group.spawn_restarting(LOOKER, move |stop| Box::pin(looking::look(Arc::clone(&of_looker), stop)));
        let gate = Arc::new(gate);
        let planning = Arc::clone(&gate);
        let _ = group.spawn_restarting(PLANNER, move |stop| {
            let lanes = (urgent.clone(), repairs.clone());
            let planner = planner::Planner::new(Arc::clone(&of_planner), lanes, Arc::clone(&planning));
            Box::pin(planner.run(inbox.clone(), stop))
        });
        for _ in 0..settings.workers.get() {
            let (shared, urgent, steps) = (Arc::clone(&shared), urgent_steps.clone(), steps.clone());
            let untold = Snapshot::new(None);
            let _ = group.spawn_restarting(WORKER, move |_| {
                let steps = PriorityInbox::new(urgent.clone(), steps.clone(), URGENT_IN_A_ROW);
                Box::pin(work(Arc::clone(&shared), steps, untold.clone()))
            });
        }
        Ok(Keeping { shared, group, _gate: gate })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("me", &self.me)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Keeping {
    /// Keeping for `store`, which is that of the node `me`; other nodes are asked through `peers`.
    #[must_use]
    pub fn builder(store: &Store, me: NodeId, peers: Arc<dyn Peers>, nodes: Arc<dyn Nodes>) -> Builder {
        Builder {
            store: store.clone(),
            me,
            peers,
            nodes,
            settings: KeepingSettings::default(),
            metrics: None,
            owners: None,
            answering: 1,
            seed: None,
        }
    }
}

/// A repair that is under way. If its worker panics, the planner hears that it failed and gives it to another.
struct Doing<'a> {
    shared: &'a Shared,
    object: ContentId,
    is_over: bool,
    /// What the planner had no room to hear: who takes this worker's place says it.
    untold: &'a Snapshot<Option<ContentId>>,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
        if !self.is_over && self.shared.heard.try_push(failed(self.object)).is_err() {
            self.untold.replace(Some(self.object));
        }
    }
}

fn failed(object: ContentId) -> Heard {
    Heard::Done { object, outcome: Outcome::Failed }
}

/// Does repairs, one after the other and the urgent ones first, until the lanes are closed and empty.
async fn work(shared: Arc<Shared>, mut steps: PriorityInbox<Step>, untold: Snapshot<Option<ContentId>>) {
    let left = *untold.load();
    if let Some(object) = left {
        shared.hear(failed(object)).await;
        untold.replace(None);
    }
    while let Some(step) = steps.recv().await {
        let (object, class) = (step.object, step.class);
        let mut doing = Doing { shared: &shared, object, is_over: false, untold: &untold };
        let (outcome, bytes) = hands::perform(&shared, &step).await;
        let at = class as usize;
        if outcome == Outcome::Done {
            shared.counts.done[at].add(1);
            shared.tell(KeepingEvent::Repaired { object, class, bytes });
        } else {
            shared.counts.failed[at].add(1);
        }
        doing.is_over = true;
        drop(doing);
        shared.hear(Heard::Done { object, outcome }).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]

    use std::{
        sync::{OnceLock, Weak},
        time::Duration,
    };

    use bytes::Bytes;
    use ron_core::{
        Deadline,
        net::{BoxFuture, Contact, Identity},
        sim::SimDisk,
    };

    use super::*;
    use crate::{
        claims::Policy,
        logic::words::{self, IS_DURABLE, Kind},
        peers::{Holding, Offer, Part, Peer, PeerError, Pieces, Pushed, Question, Want},
        repair::{Ack, Member},
    };

    /// A node that could take copies. Whoever offers it the first panics, when the planner has no room for another word.
    #[derive(Default)]
    struct Panicking {
        shared: OnceLock<Weak<Shared>>,
        pushed: AtomicU64,
    }

    impl fmt::Debug for Panicking {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Panicking")
        }
    }

    fn nothing<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, PeerError>> {
        Box::pin(std::future::ready(Err(PeerError::Canceled)))
    }

    impl Peers for Panicking {
        fn have<'a>(
            &'a self,
            _: &'a Peer,
            _: &'a [ContentId],
            _: Deadline,
        ) -> BoxFuture<'a, Result<Holding, PeerError>> {
            nothing()
        }

        fn get<'a>(
            &'a self,
            _: &'a Peer,
            _: &'a Want,
            _: Deadline,
        ) -> BoxFuture<'a, Result<Pieces, PeerError>> {
            nothing()
        }

        fn push<'a>(
            &'a self,
            _: &'a Peer,
            _: &'a Offer,
            _: Deadline,
        ) -> BoxFuture<'a, Result<Pushed, PeerError>> {
            Box::pin(async move {
                if self.pushed.fetch_add(1, Ordering::Relaxed) == 0 {
                    let shared = self.shared.get().and_then(Weak::upgrade).unwrap();
                    while shared.heard.try_push(Heard::Asked).is_ok() {}
                    panic!("as if a repair had a bug");
                }
                Err(PeerError::Canceled)
            })
        }

        fn inventory<'a>(
            &'a self,
            _: &'a Peer,
            _: &'a Question,
            _: Deadline,
        ) -> BoxFuture<'a, Result<Vec<Part>, PeerError>> {
            nothing()
        }

        fn claims<'a>(
            &'a self,
            _: &'a Peer,
            body: Bytes,
            _: Deadline,
        ) -> BoxFuture<'a, Result<Bytes, PeerError>> {
            let is_look = words::read(&body).is_ok_and(|(kind, _)| kind == Kind::Look);
            let flags = Bytes::from_static(&[IS_DURABLE]);
            let answer = is_look.then(|| words::write(Kind::Look, &[flags])).ok_or(PeerError::Canceled);
            Box::pin(std::future::ready(answer))
        }
    }

    /// A worker panicked when the planner had no room for another word. So that never heard of it, held the repair to be under way, and
    /// gave the object to nobody else before the next start.
    #[tokio::test(start_paused = true)]
    async fn what_a_worker_panicked_over_is_tried_again_also_when_nobody_had_room_to_hear_it() {
        let host = Supervisor::builder("test").inline_blocking(true).start();
        let store = Store::builder().data(Arc::new(SimDisk::new()), "store").start(&host).await.unwrap();
        let identity = |number| Identity::from_seed(&[number; 32]);
        let member = |number| {
            let contact = Contact { id: identity(number).node_id(), addrs: [].as_slice().into() };
            Member { peer: Peer::from(contact), zone: number.into(), weight: 100 }
        };
        let peers = Arc::new(Panicking::default());
        let nodes = Arc::new(Snapshot::new(vec![member(1), member(2)]));
        let offered = Arc::clone(&peers) as Arc<dyn Peers>;
        let keeping = Keeping::builder(&store, identity(1).node_id(), offered, nodes);
        let keeping = keeping.seed(1).start(&host).unwrap();
        peers.shared.set(Arc::downgrade(&keeping.shared)).unwrap();
        let soon = Deadline::after(Duration::from_secs(60));
        keeping.put("one copy".into(), Policy::Copies(2), &identity(100), Ack::Local, soon).await.unwrap();
        let until = Deadline::after(Duration::from_secs(600));
        while peers.pushed.load(Ordering::Relaxed) < 2 {
            assert!(!until.has_passed(), "it is never tried again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        host.shutdown().await;
    }
}
