//! Objects between nodes: `ron/blob/1`.
//!
//! A node asks another what it has, gets parts of objects with the proof that they are, offers it objects to keep, and
//! compares what both have. Nothing that comes is believed: bytes are checked against the name of their object, group by
//! group, before anybody sees them. [`Peers`] is what one node asks of another, and [`Links`] does it over an endpoint.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use ron_core::{Deadline, Supervisor, net::{Endpoint, Identity}};
//! # use ron_storage::Store;
//! use ron_storage::peers::{Groups, Held, Links, Peers, Rules, Want};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (host, soon) = (Supervisor::new("host"), || Deadline::after(Duration::from_secs(5)));
//! let store = Store::builder().memory().start(&host).await?;
//! let id = store.put_bytes("hello".into(), soon()).await?.id;
//! let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
//! let serving = Links::start(&there, &host)?;
//! serving.serve(&store, Rules::default()); // everybody may read, nobody may write
//!
//! // The other node, usually elsewhere.
//! let here = Endpoint::builder(Identity::generate()?).start(&host)?;
//! let links = Links::start(&here, &host)?;
//! let peer = there.contact().into();
//! assert_eq!(links.have(&peer, &[id], soon()).await?.held, [Held::Complete(5)]);
//! let want = Want::all(id);
//! let mut groups = Groups::new(&want, u64::MAX, links.get(&peer, &want, soon()).await?);
//! assert_eq!(groups.next().await?.unwrap().bytes, "hello");
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod links;
mod serving;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{
    CallError, ContentId, Deadline, ErrorKind, NodeId,
    auth::Authorizer,
    net::{BoxFuture, Contact, NetError, oap::Code, rpc::RpcError},
};

pub use crate::logic::{
    inventory::{
        CompareError, Comparison, Difference, Names, Part, Prefix, QUESTION_PARTS_MAX, Question, Sum, Told,
        answer,
    },
    proof::ProvenGroup,
    wire::{Decline, Held, Holding, IDS_MAX, OFFER_CLAIM_BYTES_MAX, Offer, RANGES_MAX, Want},
};
use crate::{TreeError, logic::proof::ProofReader};
pub(crate) use links::LINKS;
pub use links::{Links, links_settings};
pub(crate) use serving::OFFERS;

/// Whom to ask, and what shows that we may.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it is, and where.
    pub contact: Contact,
    /// The capability that it wants; empty if none. It goes to this peer and to nobody else.
    pub cap: Bytes,
}

impl From<Contact> for Peer {
    fn from(contact: Contact) -> Self {
        Peer { contact, cap: Bytes::new() }
    }
}

impl fmt::Debug for Peer {
    /// Without the capability, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.contact)
    }
}

/// A proof as it comes, unchecked. Dropping it tells the peer to stop.
pub type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, PeerError>> + Send>>;

/// What a peer that took an object says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// Whether it survives a crash there.
    pub is_durable: bool,
    /// Whether it was there before.
    pub existed: bool,
}

/// A transfer that keeps to a rate asks its [`Pace`] for this many bytes at a time.
pub const PACED_BYTES: u64 = 16 << 10;

/// A byte rate that a transfer keeps to.
pub trait Pace: Send + Sync + 'static {
    /// Waits until `bytes` more may be sent.
    ///
    /// # Errors
    /// [`CallError::Timeout`] if that will not be before the deadline.
    fn take(&self, bytes: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), CallError>>;
}

impl Pace for ron_core::Pacer {
    fn take(&self, bytes: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(self.take(bytes, deadline))
    }
}

/// What one node asks of another.
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// Which of these objects it has, at most [`IDS_MAX`] of them.
    fn have<'a>(
        &'a self,
        peer: &'a Peer,
        ids: &'a [ContentId],
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Holding, PeerError>>;

    /// The groups of an object that hold what is wanted, with proof: see [`Groups`]. The deadline is for all of it.
    fn get<'a>(
        &'a self,
        peer: &'a Peer,
        want: &'a Want,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pieces, PeerError>>;

    /// Offers an object that is served here, and returns when the peer has it, or does not want it. Dropping the future
    /// takes the offer back.
    fn push<'a>(
        &'a self,
        peer: &'a Peer,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pushed, PeerError>>;

    /// [`push`](Self::push), but no faster than `pace` allows. The default waits for the whole length first and then pushes.
    fn push_paced<'a>(
        &'a self,
        peer: &'a Peer,
        offer: &'a Offer,
        pace: &'a Arc<dyn Pace>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Pushed, PeerError>> {
        Box::pin(async move {
            pace.take(offer.len, deadline).await?;
            self.push(peer, offer, deadline).await
        })
    }

    /// One question of a [`Comparison`] with what the peer has.
    fn inventory<'a>(
        &'a self,
        peer: &'a Peer,
        question: &'a Question,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Part>, PeerError>>;

    /// Tells the peer's [`Judge`] something about claims, and returns what that answers: up to 256 KiB there and 1 MiB
    /// back.
    fn claims<'a>(
        &'a self,
        peer: &'a Peer,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, PeerError>>;
}

/// Decides for the host about objects and claims that peers offer. Asked only about peers that [`Rules`] has let in.
pub trait Judge: Send + Sync + 'static {
    /// Whether to take an object, before any of it comes.
    ///
    /// # Errors
    /// Why not.
    fn judge(&self, from: NodeId, offer: &Offer) -> Result<(), Decline> {
        let _ = (from, offer);
        Ok(())
    }

    /// Called before the first byte is fetched. Make durable here what must be known about the object if the process crashes
    /// while it arrives.
    ///
    /// # Errors
    /// Why the object is not taken after all.
    fn expect<'a>(
        &'a self,
        from: NodeId,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Decline>> {
        let _ = (from, offer, deadline);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called when the object is stored and before the peer is told.
    ///
    /// # Errors
    /// Sent instead of the acknowledgement; the object stays until a garbage collection.
    fn keep<'a>(
        &'a self,
        from: NodeId,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Decline>> {
        let _ = (from, offer, deadline);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Answers [`Peers::claims`].
    ///
    /// # Errors
    /// Why not, in words for the asker.
    fn claims<'a>(
        &'a self,
        from: NodeId,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        let _ = (from, body, deadline);
        Box::pin(std::future::ready(Err("no claims are kept here".to_owned())))
    }
}

/// Takes whatever there is room for.
impl Judge for () {}

/// Says of a node whether it is trusted.
pub type Trusts = Arc<dyn Fn(&NodeId) -> bool + Send + Sync>;

/// Who may do what with a store that is served.
#[derive(Clone)]
pub struct Rules {
    /// Asked about `storage.read` before an object is sent or looked for. `None` lets everybody read.
    pub reads: Option<Arc<dyn Authorizer>>,
    /// Asked about `storage.push` and `storage.claims`. `None` lets nobody write.
    pub writes: Option<Arc<dyn Authorizer>>,
    /// Nodes that may read and write without a capability: their keys prove who they are. `None` is nobody, and then nobody
    /// keeps copies here.
    pub trusts: Option<Trusts>,
    /// Decides about what is offered. The default takes whatever there is room for.
    pub judge: Arc<dyn Judge>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { reads: None, writes: None, trusts: None, judge: Arc::new(()) }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("reads_are_open", &self.reads.is_none())
            .field("takes_capabilities", &self.writes.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a peer did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// Something was full here or there, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The limit; `peer` when it was the peer that refused.
        what: &'static str,
        /// How long it is expected to stay full.
        retry_after: Duration,
    },
    /// The deadline passed. A push may or may not have happened, and pushing again is harmless.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// This end is stopping.
    #[error("shutting down")]
    Canceled,
    /// Our own mistake; it was counted and logged.
    #[error("{op} panicked")]
    Panicked {
        /// What was being done.
        op: &'static str,
    },
    /// There is no link to it. Try others, and this one after the pause.
    #[error("no link to the peer")]
    Unreachable {
        /// What the last dial met.
        #[source]
        error: NetError,
        /// How long no other dial will be tried.
        retry_after: Duration,
    },
    /// The link ended before the answer, or it was not spoken well.
    #[error("the link ended: {reason}")]
    Closed {
        /// How.
        reason: String,
    },
    /// It does not have that object.
    #[error("the peer does not have {id}")]
    NotFound {
        /// Which.
        id: ContentId,
    },
    /// It wants a capability, or another one.
    #[error("the peer does not allow it: {reason}")]
    Forbidden {
        /// In its words.
        reason: String,
    },
    /// It does not take the object, and says why.
    #[error("the peer declined: {0}")]
    Declined(Decline),
    /// It says that the object is longer than may come. That is not proven, so others may say something else.
    #[error("the peer says that it has {size} bytes, and {limit} may come")]
    TooLarge {
        /// What it says.
        size: u64,
        /// What may come: `object_bytes_max` of the store, where an object is fetched.
        limit: u64,
    },
    /// It sent bytes that are not those of the object. Do not ask it again.
    #[error("the peer lied: {0}")]
    Lied(TreeError),
    /// It answered something that is no answer. Do not ask it again.
    #[error("the peer's answer is none: {what}")]
    Foreign {
        /// Which part of it.
        what: &'static str,
    },
    /// It refused for another reason.
    #[error("the peer refused: {} {reason}", code.number())]
    Refused {
        /// What kind of no.
        code: Code,
        /// In its words.
        reason: String,
    },
}

ron_core::refusals!(PeerError {
    PeerError::Unreachable { .. }
    | PeerError::Closed { .. }
    | PeerError::NotFound { .. }
    | PeerError::Declined(_)
    | PeerError::TooLarge { .. }
    | PeerError::Lied(_)
    | PeerError::Foreign { .. }
    | PeerError::Refused { .. } => ErrorKind::Peer,
    PeerError::Forbidden { .. } => ErrorKind::Caller,
} retry { PeerError::Unreachable { retry_after, .. } => *retry_after });

impl PeerError {
    /// Whether it shows that the peer cannot be trusted to tell the truth.
    #[must_use]
    pub fn is_lie(&self) -> bool {
        matches!(self, PeerError::Lied(_) | PeerError::Foreign { .. })
    }
}

impl From<RpcError> for PeerError {
    fn from(error: RpcError) -> Self {
        match error {
            RpcError::Busy { what, retry_after } => PeerError::Busy { what, retry_after },
            RpcError::Timeout { op } => PeerError::Timeout { op },
            RpcError::Canceled => PeerError::Canceled,
            RpcError::Panicked { op } => PeerError::Panicked { op },
            RpcError::Unreachable { error, retry_after } => PeerError::Unreachable { error, retry_after },
            RpcError::Refused { code: Code::Forbidden | Code::Unauthorized, reason } => {
                PeerError::Forbidden { reason }
            }
            RpcError::Refused { code, reason } => PeerError::Refused { code, reason },
            other => PeerError::Closed { reason: other.to_string() },
        }
    }
}

/// What it says of a peer that its proof cannot be used.
fn unproven(error: TreeError) -> PeerError {
    match error {
        TreeError::TooLarge { size, max: limit } => PeerError::TooLarge { size, limit },
        error => PeerError::Lied(error),
    }
}

/// The groups out of a proof that a peer sends, each checked before it is handed out.
///
/// Nothing is handed out that does not belong to the object. At most one group and one piece are held.
pub struct Groups {
    pieces: Pieces,
    reader: ProofReader,
    arrived: BytesMut,
    is_over: bool,
}

impl Groups {
    /// What `pieces` prove of what was wanted, of an object of at most `len_max` bytes.
    #[must_use]
    pub fn new(want: &Want, len_max: u64, pieces: Pieces) -> Self {
        let reader = if want.ranges.is_empty() {
            ProofReader::whole(want.id, len_max)
        } else if want.with_last {
            ProofReader::ranges_and_last(want.id, want.ranges.iter().cloned(), len_max)
        } else {
            ProofReader::ranges(want.id, want.ranges.iter().cloned(), len_max)
        };
        Groups { pieces, reader, arrived: BytesMut::new(), is_over: false }
    }

    /// Keeps the nodes of the tree too.
    pub(crate) fn with_nodes(mut self) -> Self {
        self.reader = self.reader.with_nodes();
        self
    }

    /// The nodes that were checked since the last call.
    pub(crate) fn take_nodes(&mut self) -> Vec<(u64, [u8; 64])> {
        self.reader.take_nodes()
    }

    /// What the peer says that the object's length is. It is proven once the last group was.
    #[must_use]
    pub fn object_len(&self) -> Option<u64> {
        self.reader.shape().map(|shape| shape.size())
    }

    /// The next group; `None` when all that was wanted is proven. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`PeerError::Lied`] at the first byte that is not right, or when it ends too early; [`PeerError::TooLarge`]; what the
    /// peer met.
    pub async fn next(&mut self) -> Result<Option<ProvenGroup>, PeerError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next), for whoever polls.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ProvenGroup>, PeerError>> {
        loop {
            if let Some(group) = self.reader.next(&mut self.arrived).map_err(unproven)? {
                return Poll::Ready(Ok(Some(group)));
            }
            if self.is_over {
                let end = self.reader.finish(&self.arrived);
                return Poll::Ready(end.map(|()| None).map_err(unproven));
            }
            match ready!(self.pieces.as_mut().poll_next(cx)).transpose()? {
                Some(piece) if self.arrived.is_empty() => self.arrived = BytesMut::from(piece),
                Some(piece) => self.arrived.extend_from_slice(&piece),
                None => self.is_over = true,
            }
        }
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("object_len", &self.object_len()).finish_non_exhaustive()
    }
}

/// Compares what two nodes have, until all differences are known or there are more than `max` of them.
///
/// # Errors
/// What the peer met; [`PeerError::Foreign`] if it answers what is no answer, or would go on for ever.
pub async fn compare<N: Names + ?Sized>(
    peers: &dyn Peers,
    peer: &Peer,
    names: &N,
    max: usize,
    deadline: Deadline,
) -> Result<Difference, PeerError> {
    // Each difference takes a part for each of 64 cuts at most; and of any number of them, the first are found after one full
    // question for each.
    let parts_max = (max as u64).saturating_mul(64).saturating_add(64 * QUESTION_PARTS_MAX as u64);
    let mut comparison = Comparison::new(parts_max).at_most(max);
    let mut all = Difference::default();
    let foreign = |_| PeerError::Foreign { what: "inventory" };
    while let Some(question) = comparison.poll(names).map_err(foreign)? {
        let parts = peers.inventory(peer, &question, deadline).await?;
        let found = comparison.on_answer(names, &parts).map_err(foreign)?;
        all.theirs.extend(found.theirs);
        all.ours.extend(found.ours);
        if all.len() > max {
            break;
        }
    }
    Ok(all)
}
