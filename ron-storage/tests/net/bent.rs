//! Peers that are not what they should be, on links that are. The measurement `examples/liars.rs` has the same ones.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{ContentId, Deadline, NodeId, Pacer, net::BoxFuture};
use ron_storage::peers::{
    Holding, Links, Offer, Part, Peer, PeerError, Peers, Pieces, Pushed, Question, Want,
};

/// How a peer is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// A bit is wrong in what it sends, from this byte on.
    Lies(u64),
    /// Nothing comes behind this byte.
    Stalls(u64),
    /// It sends more than it was asked for.
    Babbles,
}

/// Links on which some peers are not what they should be.
#[derive(Debug)]
pub(crate) struct Bent {
    links: Links,
    ways: Vec<(NodeId, Way)>,
    /// What the one who fetches can take, from all together.
    pub(crate) downlink: Option<Pacer>,
}

impl Bent {
    pub(crate) fn new(links: &Links, ways: Vec<(NodeId, Way)>) -> Self {
        Bent { links: links.clone(), ways, downlink: None }
    }
}

struct BentPieces {
    pieces: Pieces,
    way: Option<Way>,
    sent: u64,
    babbled: bool,
    downlink: Option<Pacer>,
    /// A piece that is on its way through the downlink.
    coming: Option<BoxFuture<'static, Option<Result<Bytes, PeerError>>>>,
}

impl Stream for BentPieces {
    type Item = Result<Bytes, PeerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if matches!(this.way, Some(Way::Stalls(at)) if this.sent >= at) {
            return Poll::Pending;
        }
        if this.coming.is_none() {
            let piece = ready!(this.pieces.as_mut().poll_next(cx));
            let downlink = this.downlink.clone();
            this.coming = Some(Box::pin(async move {
                if let (Some(downlink), Some(Ok(piece))) = (downlink, &piece) {
                    let soon = Deadline::after(Duration::from_secs(60));
                    downlink.take(piece.len() as u64, soon).await.unwrap();
                }
                piece
            }));
        }
        let coming = this.coming.as_mut().unwrap();
        let next = ready!(coming.as_mut().poll(cx));
        this.coming = None;
        Poll::Ready(match (next, this.way) {
            (Some(Ok(piece)), Some(Way::Lies(at))) if this.sent + piece.len() as u64 > at => {
                let mut bent = BytesMut::from(&piece[..]);
                let place = usize::try_from(at.saturating_sub(this.sent)).unwrap();
                bent[place] ^= 1;
                this.sent += piece.len() as u64;
                Some(Ok(bent.freeze()))
            }
            (None, Some(Way::Babbles)) if !this.babbled => {
                this.babbled = true;
                Some(Ok(Bytes::from_static(b"and more")))
            }
            (piece, _) => {
                this.sent += piece.as_ref().map_or(0, |piece| piece.as_ref().map_or(0, |it| it.len() as u64));
                piece
            }
        })
    }
}

impl Peers for Bent {
    fn have<'a>(
        &'a self,
        peer: &'a Peer,
        ids: &'a [ContentId],
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Holding, PeerError>> {
        self.links.have(peer, ids, deadline)
    }
    fn get<'a>(
        &'a self,
        peer: &'a Peer,
        want: &'a Want,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pieces, PeerError>> {
        let way = self.ways.iter().find(|(id, _)| *id == peer.contact.id).map(|(_, way)| *way);
        Box::pin(async move {
            let pieces = self.links.get(peer, want, deadline).await?;
            let downlink = self.downlink.clone();
            if way.is_none() && downlink.is_none() {
                return Ok(pieces);
            }
            let bent = BentPieces { pieces, way, sent: 0, babbled: false, downlink, coming: None };
            Ok(Box::pin(bent) as Pieces)
        })
    }
    fn push<'a>(
        &'a self,
        peer: &'a Peer,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pushed, PeerError>> {
        self.links.push(peer, offer, deadline)
    }
    fn inventory<'a>(
        &'a self,
        peer: &'a Peer,
        question: &'a Question,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Part>, PeerError>> {
        self.links.inventory(peer, question, deadline)
    }
    fn claims<'a>(
        &'a self,
        peer: &'a Peer,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        self.links.claims(peer, body, deadline)
    }
}
