//! What a node answers its peers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{
    ClientKey, ContentId, Deadline, Lock, LockSpec, Metrics, NodeId, Snapshot,
    net::{
        BoxFuture,
        oap::Code,
        rpc::{Fault, Handling, Request, Service, Session},
    },
};

use super::{
    Decline, Holding, Offer, PACED_BYTES, Pace, PeerError, Pieces, Rules, Want, answer,
    links::{Arriving, GET, about},
};
use crate::{
    Durability, Put, StorageError, Store,
    fetch::{Engine, FetchError, Source, Telling, into_store},
    logic::{
        fetch::Patience,
        wire::{self, Taking, method},
    },
};

pub(crate) const OFFERS: LockSpec = LockSpec::new("ron-storage", "offers", 690)
    .guards("which objects are offered to whom; held while an offer comes or goes");

/// How often one who takes an object says how far it is.
const NEWS_EVERY: Duration = Duration::from_secs(2);

/// How long who offers an object may be silent, and how often it may fail.
const PATIENCE: Patience =
    Patience { hedge_after: Duration::from_secs(1), stall_max: Duration::from_secs(20), tries_max: 2 };

/// What a node answers with.
#[derive(Clone)]
struct Served {
    store: Store,
    rules: Rules,
    /// What is counted when an object is taken.
    telling: Arc<Telling>,
}

pub(super) struct Serving {
    served: Snapshot<Option<Served>>,
    offers: Lock<BTreeMap<(NodeId, ContentId), Open>>,
}

/// How often an object is offered to a peer, and what its bytes wait for.
#[derive(Default)]
struct Open {
    offers: usize,
    pace: Option<Arc<dyn Pace>>,
}

impl Serving {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Serving { served: Snapshot::new(None), offers: Lock::new(OFFERS, BTreeMap::new(), metrics) }
    }

    pub(super) fn serve(&self, store: Store, rules: Rules) {
        let telling = Arc::new(Telling::new(&store));
        self.served.replace(Some(Served { store, rules, telling }));
    }

    /// Whether an object could be sent.
    pub(super) fn has(&self, id: ContentId) -> bool {
        let soon = Deadline::after(NEWS_EVERY);
        (*self.served.load()).as_ref().is_some_and(|served| served.store.readable(id, soon).is_ok())
    }

    fn is_offered(&self, to: NodeId, id: ContentId) -> bool {
        self.offers.lock().contains_key(&(to, id))
    }

    /// What the answer to a GET waits for: who gets what it was offered within a rate gets it within that rate.
    fn pace(&self, request: &Request) -> Option<Arc<dyn Pace>> {
        let offers = self.offers.lock();
        if offers.is_empty() {
            return None;
        }
        let want = Want::decode(request.body()).ok()?;
        offers.get(&(request.peer(), want.id))?.pace.clone()
    }
}

/// An offer that is open.
pub(super) struct Offered<'a> {
    serving: &'a Serving,
    key: (NodeId, ContentId),
}

impl<'a> Offered<'a> {
    pub(super) fn new(serving: &'a Serving, to: NodeId, id: ContentId, pace: Option<Arc<dyn Pace>>) -> Self {
        let mut offers = serving.offers.lock();
        let open = offers.entry((to, id)).or_default();
        open.offers += 1;
        open.pace = pace.or(open.pace.take());
        drop(offers);
        Offered { serving, key: (to, id) }
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        let mut offers = self.serving.offers.lock();
        if let Some(open) = offers.get_mut(&self.key) {
            open.offers -= 1;
            if open.offers == 0 {
                offers.remove(&self.key);
            }
        }
    }
}

impl Service for Serving {
    fn call(&self, request: Request) -> Handling {
        let Some(served) = (*self.served.load()).clone() else {
            return Handling::Done(Err(Fault::new(Code::Unavailable, "no store is served here")));
        };
        let Served { store, rules, telling } = served;
        // Before anything is queued.
        let (action, asked) = match request.method() {
            method::HAVE | method::GET | method::INVENTORY => ("storage.read", &rules.reads),
            method::PUSH => ("storage.push", &rules.writes),
            method::CLAIMS => ("storage.claims", &rules.writes),
            _ => return Handling::Done(Err(Fault::no_such_method())),
        };
        let is_read = action == "storage.read";
        let is_trusted = rules.trusts.as_ref().is_some_and(|trusts| trusts(&request.peer()));
        let is_open = is_read && asked.is_none();
        if !is_trusted && !is_open {
            let is_offered = || {
                let want = Want::decode(request.body());
                request.method() == method::GET
                    && want.is_ok_and(|want| self.is_offered(request.peer(), want.id))
            };
            if let Err(fault) = request.authorize(asked.as_deref(), action) {
                if !is_offered() {
                    return Handling::Done(Err(fault));
                }
            }
        }
        let store = store.for_client(ClientKey::from(request.peer()));
        match request.method() {
            method::HAVE => Handling::Done(have(&store, &request)),
            method::INVENTORY => Handling::Done(inventory(&store, &request)),
            method::GET => {
                let pace = self.pace(&request);
                Handling::Pending(Box::pin(async move { get(&store, &request, pace).await }))
            }
            method::PUSH => {
                Handling::Pending(Box::pin(async move { take(&store, &rules, &request, &telling).await }))
            }
            _ => Handling::Pending(Box::pin(async move {
                let (from, body) = (request.peer(), request.body().clone());
                let told = rules.judge.claims(from, body, request.deadline()).await;
                told.map_err(|reason| Fault::new(Code::Conflict, reason))
            })),
        }
    }

    /// The rules usually hold whoever keeps objects, and that holds the links which hold these.
    fn closed(&self) {
        self.served.replace(None);
    }
}

fn malformed<E>(_: E) -> Fault {
    Fault::bad_request("not a question of this kind")
}

fn fault(error: StorageError) -> Fault {
    let words = error.to_string();
    match error {
        StorageError::Busy { what, retry_after } => Fault::busy(what, retry_after),
        StorageError::Timeout { .. } => Fault::new(Code::Timeout, words),
        StorageError::NotFound { .. } => Fault::new(Code::NotFound, "not here"),
        StorageError::Corrupt { .. } => Fault::new(Code::NotFound, "damaged here"),
        StorageError::Range { .. } => Fault::bad_request(words),
        // Its words are for the owner of the disk.
        _ => {
            tracing::debug!(words, "refused");
            Fault::new(Code::Unavailable, "the store gives nothing now")
        }
    }
}

fn have(store: &Store, request: &Request) -> Result<Bytes, Fault> {
    let ids = wire::read_have(request.body()).map_err(malformed)?;
    let held = store.held(&ids, request.deadline()).map_err(fault)?;
    Ok(Holding { is_durable: store.is_durable(), held }.encode())
}

fn inventory(store: &Store, request: &Request) -> Result<Bytes, Fault> {
    let question = wire::read_question(request.body()).map_err(malformed)?;
    Ok(wire::write_parts(&answer(store, &question)))
}

async fn get(store: &Store, request: &Request, pace: Option<Arc<dyn Pace>>) -> Result<Bytes, Fault> {
    let Want { id, mut ranges, with_last } = Want::decode(request.body()).map_err(malformed)?;
    if ranges.is_empty() {
        ranges.push(0..u64::MAX);
    }
    if with_last {
        let len = store.readable(id, request.deadline()).map_err(fault)?.len;
        ranges.push(len.saturating_sub(1)..len.max(1));
    }
    let mut proof = store.get_proof(id, &ranges, request.deadline()).await.map_err(fault)?;
    let mut piece = proof.next().await.map_err(fault)?.unwrap_or_default();
    loop {
        if let Some(pace) = &pace {
            // A little at a time, so that it flows evenly and nobody who waits for some of it takes this end for dead.
            while piece.len() > PACED_BYTES as usize {
                pay(pace, PACED_BYTES as usize, request).await?;
                request.send(piece.split_to(PACED_BYTES as usize)).await?;
            }
            pay(pace, piece.len(), request).await?;
        }
        if proof.is_over() {
            return Ok(piece);
        }
        // The next piece is read while this one goes.
        let (sent, next) = tokio::join!(request.send(piece), proof.next());
        sent?;
        piece = next.map_err(fault)?.unwrap_or_default();
    }
}

async fn pay(pace: &Arc<dyn Pace>, bytes: usize, request: &Request) -> Result<(), Fault> {
    let paid = pace.take(bytes as u64, request.deadline()).await;
    paid.map_err(|error| Fault::new(Code::Timeout, error.to_string()))
}

/// Takes an object that a peer offers: gets it from there, over the link on which it was offered.
async fn take(
    store: &Store,
    rules: &Rules,
    request: &Request,
    telling: &Arc<Telling>,
) -> Result<Bytes, Fault> {
    let offer = Offer::decode(request.body()).map_err(malformed)?;
    let taken = match rules.judge.judge(request.peer(), &offer) {
        Ok(()) => receive(store, rules, request, &offer, telling).await?,
        Err(decline) => Err(decline),
    };
    Ok(taken.unwrap_or_else(Taking::Declined).encode())
}

async fn receive(
    store: &Store,
    rules: &Rules,
    request: &Request,
    offer: &Offer,
    telling: &Arc<Telling>,
) -> Result<Result<Taking, Decline>, Fault> {
    let settings = store.settings();
    let limit = settings.object_bytes_max;
    if offer.len > limit {
        return Ok(Err(Decline::TooLarge { limit }));
    }
    // Before anything comes. It is kept for it once it has begun.
    let is_here = store.readable(offer.id, request.deadline()).is_ok();
    if let (false, Err(error)) = (is_here, store.check_fits(&offer.id, offer.len)) {
        return declined(error.into());
    }
    // Silence ends it, here and there.
    let until = Deadline::after(Deadline::LONGEST);
    let stored = async {
        rules.judge.expect(request.peer(), offer, until).await?;
        let source = Box::new(Back { session: request.session() });
        let engine = Engine::new(offer.id, source, PATIENCE, offer.len, telling, until);
        Ok::<_, Decline>(into_store(store, engine, Put::default(), until).await)
    };
    // The peer waits for as long as it is told that this goes on.
    let news = async {
        loop {
            request.send(Taking::OnItsWay.encode()).await?;
            tokio::time::sleep(NEWS_EVERY).await;
        }
    };
    let stored = tokio::select! {
        biased;
        stored = stored => stored,
        gone = news => return gone,
    };
    let stored = match stored {
        Ok(Ok(fetched)) => fetched.stored,
        Ok(Err(error)) => return declined(error),
        Err(decline) => return Ok(Err(decline)),
    };
    // What the host judged is not what came.
    if stored.len != offer.len {
        let reason = format!("it has {} bytes, and {} were offered", stored.len, offer.len);
        return Ok(Err(Decline::Source { reason }));
    }
    if let Err(decline) = rules.judge.keep(request.peer(), offer, request.deadline()).await {
        return Ok(Err(decline));
    }
    let is_durable = stored.durability == Durability::Durable;
    Ok(Ok(Taking::Stored { is_durable, existed: stored.existed }))
}

/// Asks the one who offers.
struct Back {
    session: Session,
}

impl Source for Back {
    fn get(&self, _: usize, want: Want, deadline: Deadline) -> BoxFuture<'static, Result<Pieces, PeerError>> {
        let session = self.session.clone();
        Box::pin(async move {
            let asked = session.open(GET, &want.encode(), deadline).await;
            let chunks = asked.map_err(|error| about(want.id, error))?;
            Ok(Box::pin(Arriving { id: want.id, chunks }) as Pieces)
        })
    }

    fn ids(&self) -> Vec<NodeId> {
        vec![self.session.peer()]
    }
}

fn declined(error: FetchError) -> Result<Result<Taking, Decline>, Fault> {
    let reason = error.to_string();
    Ok(Err(match error {
        FetchError::Busy { what, retry_after } => return Err(Fault::busy(what, retry_after)),
        FetchError::Store(StorageError::Quota { .. }) => Decline::Quota,
        FetchError::Store(StorageError::Full) => Decline::Full,
        FetchError::Store(StorageError::TooLarge { limit, .. }) => Decline::TooLarge { limit },
        FetchError::AllFailed { peers } => {
            let error = peers.into_iter().find_map(|peer| peer.error);
            Decline::Source { reason: error.map_or(reason, |error| error.to_string()) }
        }
        // Its words are for the owner of the disk.
        _ => {
            tracing::debug!(reason, "not taken");
            Decline::Failed { reason: "the store takes nothing now".to_owned() }
        }
    }))
}
