//! What a node answers its peers.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use ron_core::{
    ClientKey, ContentId, Deadline, Lock, LockSpec, Metrics, NodeId, Snapshot,
    auth::{Action, Authorizer, Credentials},
    net::{
        oap::Code,
        rpc::{Fault, Handling, Request, Service},
    },
};

use super::{
    Decline, Groups, Holding, Offer, PeerError, Rules, Want, answer,
    links::{Arriving, GET, about},
};
use crate::{
    Durability, Put, StorageError, Store,
    logic::wire::{self, Taking, method},
};

pub(crate) const OFFERS: LockSpec = LockSpec::new("ron-storage", "offers", 690)
    .guards("which objects are offered to whom; held while an offer comes or goes");

/// How often one who takes an object says how far it is.
const NEWS_EVERY: Duration = Duration::from_secs(2);

/// What a node answers with.
#[derive(Clone)]
struct Served {
    store: Store,
    rules: Rules,
}

pub(super) struct Serving {
    served: Snapshot<Option<Served>>,
    offers: Lock<BTreeMap<(NodeId, ContentId), usize>>,
}

impl Serving {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Serving { served: Snapshot::new(None), offers: Lock::new(OFFERS, BTreeMap::new(), metrics) }
    }

    pub(super) fn serve(&self, store: Store, rules: Rules) {
        self.served.replace(Some(Served { store, rules }));
    }

    /// Whether an object could be sent.
    pub(super) fn has(&self, id: ContentId) -> bool {
        let soon = Deadline::after(NEWS_EVERY);
        (*self.served.load()).as_ref().is_some_and(|served| served.store.readable(id, soon).is_ok())
    }

    fn is_offered(&self, to: NodeId, id: ContentId) -> bool {
        self.offers.lock().contains_key(&(to, id))
    }
}

/// An offer that is open.
pub(super) struct Offered<'a> {
    serving: &'a Serving,
    key: (NodeId, ContentId),
}

impl<'a> Offered<'a> {
    pub(super) fn new(serving: &'a Serving, to: NodeId, id: ContentId) -> Self {
        *serving.offers.lock().entry((to, id)).or_default() += 1;
        Offered { serving, key: (to, id) }
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        let mut offers = self.serving.offers.lock();
        if let Some(open) = offers.get_mut(&self.key) {
            *open -= 1;
            if *open == 0 {
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
        let Served { store, rules } = served;
        // Before anything is queued.
        let (action, asked) = match request.method() {
            method::HAVE | method::GET | method::INVENTORY => ("storage.read", &rules.reads),
            method::PUSH => ("storage.push", &rules.writes),
            method::CLAIMS => ("storage.claims", &rules.writes),
            _ => return Handling::Done(Err(Fault::no_such_method())),
        };
        let is_read = action == "storage.read";
        let is_trusted = rules.trusts.as_ref().is_some_and(|trusts| trusts(&request.peer()));
        if !is_trusted && !(is_read && asked.is_none()) {
            let is_offered = || {
                let want = Want::decode(request.body());
                request.method() == method::GET
                    && want.is_ok_and(|want| self.is_offered(request.peer(), want.id))
            };
            if let Err(fault) = is_allowed(asked.as_deref(), action, &request) {
                if !is_offered() {
                    return Handling::Done(Err(fault));
                }
            }
        }
        let store = store.for_client(ClientKey::from(request.peer()));
        match request.method() {
            method::HAVE => Handling::Done(have(&store, &request)),
            method::INVENTORY => Handling::Done(inventory(&store, &request)),
            method::GET => Handling::Pending(Box::pin(async move { get(&store, &request).await })),
            method::PUSH => Handling::Pending(Box::pin(async move { take(&store, &rules, &request).await })),
            _ => Handling::Pending(Box::pin(async move {
                let (from, body) = (request.peer(), request.body().clone());
                let told = rules.policy.claims(from, body, request.deadline()).await;
                told.map_err(|reason| Fault::new(Code::Conflict, reason))
            })),
        }
    }
}

fn is_allowed(
    authorizer: Option<&dyn Authorizer>,
    action: &'static str,
    request: &Request,
) -> Result<(), Fault> {
    let refused = || Fault::forbidden("not with this capability");
    let bearer = std::str::from_utf8(request.cap()).ok().filter(|cap| !cap.is_empty());
    let credentials = Credentials::bearer(bearer).from_address(Some(request.remote().ip()));
    let authorizer = authorizer.ok_or_else(refused)?;
    authorizer.authorize(&Action::new(action, ""), &credentials).map(drop).map_err(|_| refused())
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

async fn get(store: &Store, request: &Request) -> Result<Bytes, Fault> {
    let Want { id, mut ranges } = Want::decode(request.body()).map_err(malformed)?;
    if ranges.is_empty() {
        ranges.push(0..u64::MAX);
    }
    let mut proof = store.get_proof(id, &ranges, request.deadline()).await.map_err(fault)?;
    let mut piece = proof.next().await.map_err(fault)?.unwrap_or_default();
    loop {
        if proof.is_over() {
            return Ok(piece);
        }
        // The next piece is read while this one goes.
        let (sent, next) = tokio::join!(request.send(piece), proof.next());
        sent?;
        piece = next.map_err(fault)?.unwrap_or_default();
    }
}

/// Takes an object that a peer offers: gets it from there, over the link on which it was offered.
async fn take(store: &Store, rules: &Rules, request: &Request) -> Result<Bytes, Fault> {
    let offer = Offer::decode(request.body()).map_err(malformed)?;
    let taken = match rules.policy.judge(request.peer(), &offer) {
        Ok(()) => receive(store, rules, request, &offer).await?,
        Err(decline) => Err(decline),
    };
    Ok(taken.unwrap_or_else(Taking::Declined).encode())
}

async fn receive(
    store: &Store,
    rules: &Rules,
    request: &Request,
    offer: &Offer,
) -> Result<Result<Taking, Decline>, Fault> {
    let way = AtomicU64::new(0);
    let put = Put { expect: Some(offer.id), len: Some(offer.len), ..Put::default() };
    // Silence ends it: the source may stand still for as long as the store lets it.
    let stored = store.put_with(Source::new(request, offer, &way), put, Deadline::after(Deadline::LONGEST));
    // The peer waits for as long as it is told how far this is.
    let news = async {
        loop {
            let under = Taking::Under { way: way.load(Ordering::Relaxed) };
            request.send(under.encode()).await?;
            tokio::time::sleep(NEWS_EVERY).await;
        }
    };
    let stored = tokio::select! {
        biased;
        stored = stored => stored,
        gone = news => return gone,
    };
    let stored = match stored {
        Ok(stored) => stored,
        Err(error) => return declined(error),
    };
    if let Err(decline) = rules.policy.keep(request.peer(), offer, request.deadline()).await {
        return Ok(Err(decline));
    }
    let is_durable = stored.durability == Durability::Durable;
    Ok(Ok(Taking::Stored { is_durable, existed: stored.existed }))
}

type Opening = Pin<Box<dyn Future<Output = Result<Groups, PeerError>> + Send>>;

/// The bytes of an object that a peer offers. It is asked for them when they are wanted: not at all, if the object is here.
struct Source<'a> {
    opening: Opening,
    groups: Option<Groups>,
    way: &'a AtomicU64,
}

impl<'a> Source<'a> {
    fn new(request: &Request, offer: &Offer, way: &'a AtomicU64) -> Self {
        let (session, id, len) = (request.session(), offer.id, offer.len);
        let opening = Box::pin(async move {
            let want = Want { id, ranges: Vec::new() };
            let asked = session.open(GET, &want.encode(), Deadline::after(Deadline::LONGEST)).await;
            let chunks = asked.map_err(|error| about(id, error))?;
            Ok(Groups::new(&want, len, Box::pin(Arriving { id, chunks })))
        });
        Source { opening, groups: None, way }
    }
}

impl Stream for Source<'_> {
    type Item = Result<Bytes, PeerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.groups.is_none() {
            this.groups = Some(ready!(this.opening.as_mut().poll(cx))?);
        }
        let groups = this.groups.as_mut().expect("just opened");
        let group = ready!(groups.poll_next(cx))?;
        Poll::Ready(group.map(|group| {
            this.way.fetch_add(group.bytes.len() as u64, Ordering::Relaxed);
            Ok(group.bytes)
        }))
    }
}

fn declined(error: StorageError) -> Result<Result<Taking, Decline>, Fault> {
    let reason = error.to_string();
    Ok(Err(match error {
        StorageError::Busy { what, retry_after } => return Err(Fault::busy(what, retry_after)),
        StorageError::Quota { .. } => Decline::Quota,
        StorageError::Full => Decline::Full,
        StorageError::TooLarge { limit, .. } => Decline::TooLarge { limit },
        StorageError::Source { message } => Decline::Source { reason: message },
        StorageError::Mismatch { .. } | StorageError::Timeout { .. } => Decline::Source { reason },
        // Its words are for the owner of the disk.
        _ => {
            tracing::debug!(reason, "not taken");
            Decline::Failed { reason: "the store takes nothing now".to_owned() }
        }
    }))
}
