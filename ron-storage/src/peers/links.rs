//! [`Peers`] over the links of an endpoint.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use ron_core::{
    ContentId, Deadline, LaneSpec, Supervisor,
    net::{
        BoxFuture, Endpoint, NetError,
        oap::Code,
        rpc::{self, Call, Chunks, Method, PeersSettings, Protocol, RpcError, RpcSettings},
    },
};

use super::{
    Holding, Offer, Pace, Part, Peer, PeerError, Peers, Pieces, Pushed, Question, Rules, Want,
    serving::{Offered, Serving},
};
use crate::{
    Store,
    logic::wire::{self, Taking, method},
};

pub(crate) const LINKS: LaneSpec = LaneSpec::new("ron-storage", "links", 64)
    .flow("endpoint → sessions")
    .why("nodes that come at once after a restart; taking one in is a task and a HELLO");

const PROTOCOL: Protocol = Protocol { alpn: "ron/blob/1", proto: 3, links: LINKS };

const HAVE: Method = Method { number: method::HAVE, name: "have" };
pub(super) const GET: Method = Method { number: method::GET, name: "get" };
const PUSH: Method = Method { number: method::PUSH, name: "push" };
const INVENTORY: Method = Method { number: method::INVENTORY, name: "inventory" };
const CLAIMS: Method = Method { number: method::CLAIMS, name: "claims" };

/// The limits of the links: few sessions, and much on each.
#[must_use]
pub fn links_settings() -> PeersSettings {
    PeersSettings {
        rpc: RpcSettings { window_chunks: 32, ..RpcSettings::default() },
        ..PeersSettings::default()
    }
}

/// Objects between nodes, on one endpoint. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Links {
    peers: rpc::Peers,
    serving: Arc<Serving>,
}

impl Links {
    /// Speaks `ron/blob/1` on `endpoint` from now on. It refuses to answer until a store is [served](Self::serve).
    ///
    /// # Errors
    /// [`NetError`], if something else speaks it there already.
    pub fn start(endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Self, NetError> {
        Links::start_with(endpoint, links_settings(), supervisor)
    }

    /// [`start`](Self::start) with other limits than [`links_settings`].
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        endpoint: &Endpoint,
        settings: PeersSettings,
        supervisor: &Supervisor,
    ) -> Result<Self, NetError> {
        let serving = Arc::new(Serving::new(supervisor.metrics()));
        let peers = rpc::Peers::start(endpoint, PROTOCOL, Arc::clone(&serving) as _, settings, supervisor)?;
        Ok(Links { peers, serving })
    }

    /// Answers for `store`, until it stops or another one is served.
    pub fn serve(&self, store: &Store, rules: Rules) {
        self.serving.serve(store.clone(), rules);
    }

    /// The endpoint that it uses.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.peers.endpoint()
    }

    async fn call(
        &self,
        peer: &Peer,
        method: Method,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, RpcError> {
        let Peer { contact, cap } = peer;
        self.peers.call(contact.id, &contact.addrs, with(method, cap), body, deadline).await
    }

    async fn offer(
        &self,
        peer: &Peer,
        offer: &Offer,
        pace: Option<Arc<dyn Pace>>,
        deadline: Deadline,
    ) -> Result<Pushed, PeerError> {
        let Peer { contact, cap } = peer;
        // While it is open, the peer may get this object, whoever else may read.
        let _offered = Offered::new(&self.serving, contact.id, offer.id, pace);
        if !self.serving.has(offer.id) {
            return Err(PeerError::NotFound { id: offer.id });
        }
        let call = with(PUSH, cap);
        let mut answer = self.peers.open(contact.id, &contact.addrs, call, offer.encode(), deadline).await?;
        while let Some(told) = answer.next().await? {
            match Taking::decode(&told).map_err(|_| PeerError::Foreign { what: "push" })? {
                Taking::OnItsWay => {}
                Taking::Stored { is_durable, existed } => return Ok(Pushed { is_durable, existed }),
                Taking::Declined(decline) => return Err(PeerError::Declined(decline)),
            }
        }
        Err(PeerError::Foreign { what: "push" })
    }
}

fn with(method: Method, cap: &Bytes) -> Call {
    if cap.is_empty() { method.into() } else { method.cap(cap.clone()) }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

/// What the answer to a question about an object means.
pub(super) fn about(id: ContentId, error: RpcError) -> PeerError {
    match error {
        RpcError::Refused { code: Code::NotFound, .. } => PeerError::NotFound { id },
        error => error.into(),
    }
}

impl Peers for Links {
    fn have<'a>(
        &'a self,
        peer: &'a Peer,
        ids: &'a [ContentId],
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Holding, PeerError>> {
        Box::pin(async move {
            let answer = self.call(peer, HAVE, wire::write_have(ids), deadline).await?;
            let holding = Holding::decode(&answer).ok();
            holding
                .filter(|holding| holding.held.len() == ids.len())
                .ok_or(PeerError::Foreign { what: "have" })
        })
    }

    fn get<'a>(
        &'a self,
        peer: &'a Peer,
        want: &'a Want,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pieces, PeerError>> {
        Box::pin(async move {
            let Peer { contact, cap } = peer;
            let call = with(GET, cap);
            let asked = self.peers.open(contact.id, &contact.addrs, call, want.encode(), deadline).await;
            let chunks = asked.map_err(|error| about(want.id, error))?;
            Ok(Box::pin(Arriving { id: want.id, chunks }) as Pieces)
        })
    }

    fn push<'a>(
        &'a self,
        peer: &'a Peer,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pushed, PeerError>> {
        Box::pin(self.offer(peer, offer, None, deadline))
    }

    fn push_paced<'a>(
        &'a self,
        peer: &'a Peer,
        offer: &'a Offer,
        pace: &'a Arc<dyn Pace>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pushed, PeerError>> {
        Box::pin(self.offer(peer, offer, Some(Arc::clone(pace)), deadline))
    }

    fn inventory<'a>(
        &'a self,
        peer: &'a Peer,
        question: &'a Question,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Part>, PeerError>> {
        Box::pin(async move {
            let answer = self.call(peer, INVENTORY, wire::write_question(question), deadline).await?;
            wire::read_parts(&answer).map_err(|_| PeerError::Foreign { what: "inventory" })
        })
    }

    fn claims<'a>(
        &'a self,
        peer: &'a Peer,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(async move { Ok(self.call(peer, CLAIMS, body, deadline).await?) })
    }
}

/// A proof that comes over a link.
pub(super) struct Arriving {
    pub(super) id: ContentId,
    pub(super) chunks: Chunks,
}

impl Stream for Arriving {
    type Item = Result<Bytes, PeerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let id = self.id;
        self.chunks.poll_next(cx).map_err(|error| about(id, error)).map(Result::transpose)
    }
}
