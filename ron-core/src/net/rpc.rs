//! Calls over one link, in both directions at once.
//!
//! A [`Session`] is a link on which both ends have said HELLO. Either end calls the other: requests, answers in one
//! piece or as a stream of chunks under credit, and events. A request carries the time it has left, and the callee
//! stops when that is spent; a caller that drops its call, the callee learns of it and stops too. [`Peers`] keeps one
//! session per peer, whoever dialled it.
//!
//! What travels is OAP/1 frames: `docs/oap-1.md` has the layout of requests, errors and control events.
//!
//! # A service and its caller
//!
//! A [`Protocol`] has a name for the handshake, which ends in its version, and a number for the frames: 32 768 and above are
//! free for anyone. Both ends call [`Peers::start`] with it, each on its own [`Endpoint`](super::Endpoint): who serves with
//! its [`Service`], who only calls with `Arc::new(())`. A caller needs to know the name of the peer and an address of it.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use bytes::Bytes;
//! # use ron_core::{Deadline, LaneSpec, Supervisor, net::{Endpoint, Identity}};
//! use ron_core::net::rpc::{
//!     Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service,
//! };
//!
//! const LINKS: LaneSpec = LaneSpec::new("my-crate", "links", 64);
//! const PROTOCOL: Protocol = Protocol { alpn: "my-crate/echo/1", proto: 40_000, links: LINKS };
//! const ECHO: Method = Method { number: 1, name: "echo" };
//! const LATER: Method = Method { number: 2, name: "later" };
//! const COUNT: Method = Method { number: 3, name: "count" };
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn call(&self, request: Request) -> Handling {
//!         match request.method() {
//!             // From memory, at once.
//!             1 => Handling::Done(Ok(request.body().clone())),
//!             // In a task of its own, which is dropped when the caller gives up.
//!             2 => Handling::Pending(Box::pin(async move {
//!                 tokio::time::sleep(Duration::from_millis(5)).await;
//!                 Ok(request.body().clone())
//!             })),
//!             // In parts, each as soon as the caller has room for it; what is returned is the last.
//!             3 => Handling::Pending(Box::pin(async move {
//!                 for number in 0..3u8 {
//!                     request.send(Bytes::from(vec![number])).await?;
//!                 }
//!                 Ok(Bytes::new())
//!             })),
//!             _ => Handling::Done(Err(Fault::no_such_method())),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Supervisor::new("host");
//! let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
//! // It serves until it is dropped, or the host stops.
//! let _served = Peers::start(&there, PROTOCOL, Arc::new(Echo), PeersSettings::default(), &host)?;
//!
//! // The other end, usually in another process.
//! let here = Endpoint::builder(Identity::generate()?).start(&host)?;
//! let peers = Peers::start(&here, PROTOCOL, Arc::new(()), PeersSettings::default(), &host)?;
//! let (id, addrs) = (there.node_id(), there.local_addrs());
//! let soon = Deadline::after(Duration::from_secs(2));
//! assert_eq!(peers.call(id, addrs, ECHO, "hello", soon).await?, "hello");
//! assert_eq!(peers.call(id, addrs, LATER, "hello", soon).await?, "hello");
//!
//! let mut parts = peers.open(id, addrs, COUNT, "", soon).await?;
//! while let Some(part) = parts.next().await? {
//!     println!("{part:?}");
//! }
//!
//! // Refusals are typed, and say whether to ask again.
//! let refused = peers.call(id, addrs, Method { number: 9, name: "?" }, "", soon).await.unwrap_err();
//! assert!(matches!(refused, RpcError::Refused { .. }) && !refused.is_retryable());
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Any other kind of refusal is [`Fault::new`] with a [`Code`](super::oap::Code).
//!
//! # Events, and who may
//!
//! Events go over a session and are not answered. They arrive in [`Service::event`] in the order sent; requests may
//! overtake them. A capability and a tenant go with a request or an event, and it is the service that judges them:
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use tokio::sync::mpsc;
//! # use bytes::Bytes;
//! # use ron_core::{Deadline, LaneSpec, Supervisor, net::{Endpoint, Identity}};
//! # use ron_core::net::rpc::{Event, Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service};
//! # const LINKS: LaneSpec = LaneSpec::new("my-crate", "links", 64);
//! # const PROTOCOL: Protocol = Protocol { alpn: "my-crate/shop/1", proto: 40_001, links: LINKS };
//! const SOLD: Method = Method { number: 1, name: "sold" };
//! const TAKINGS: Method = Method { number: 2, name: "takings" };
//!
//! struct Shop(mpsc::Sender<Bytes>);
//!
//! impl Service for Shop {
//!     fn call(&self, request: Request) -> Handling {
//!         Handling::Done(match request.method() {
//!             2 if request.tenant() == 7 && request.cap() == "secret" => Ok(Bytes::from_static(b"plenty")),
//!             2 => Err(Fault::forbidden("takings are for the owner")),
//!             _ => Err(Fault::no_such_method()),
//!         })
//!     }
//!
//!     fn event(&self, event: Event) {
//!         if event.method == SOLD.number {
//!             let _ = self.0.try_send(event.body); // when nobody keeps up, it is lost
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let host = Supervisor::new("host");
//! # let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
//! # let (sold, mut heard) = mpsc::channel(16);
//! # let _served = Peers::start(&there, PROTOCOL, Arc::new(Shop(sold)), PeersSettings::default(), &host)?;
//! # let here = Endpoint::builder(Identity::generate()?).start(&host)?;
//! # let peers = Peers::start(&here, PROTOCOL, Arc::new(()), PeersSettings::default(), &host)?;
//! # let (id, addrs) = (there.node_id(), there.local_addrs());
//! # let soon = Deadline::after(Duration::from_secs(2));
//! let session = peers.session(id, addrs, soon).await?;
//! session.notify(SOLD, b"an apple", soon).await?;
//! assert_eq!(heard.recv().await.expect("the service runs"), "an apple");
//! assert_eq!(session.call(TAKINGS.tenant(7).cap("secret"), b"", soon).await?, "plenty");
//! assert!(matches!(session.call(TAKINGS, b"", soon).await, Err(RpcError::Refused { .. })));
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod chunks;
mod envelope;
mod error;
mod halves;
mod peers;
mod serve;
mod session;
mod shared;
mod tasks;

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;

pub use chunks::Chunks;
pub use envelope::{Ask, Control, EnvelopeError};
pub use error::{Fault, RpcError};
pub use peers::{Peers, PeersSettings, inventory};
pub use serve::Request;
pub use session::{Session, Side};

use super::{
    BoxFuture,
    oap::{CHUNK_BYTES, FRAME_BYTES_MAX, Flags, Frame, HEADER_BYTES},
};
use crate::{LaneSpec, NodeId};

/// What a link speaks: the name it is dialled under, the number its frames carry, and the lane its incoming links
/// wait in.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// The name in the TLS handshake.
    pub alpn: &'static str,
    /// The number in the frames.
    pub proto: u16,
    /// Where incoming links wait until they are taken in.
    pub links: LaneSpec,
}

/// One thing that can be asked: its number on the wire, and its name in metrics and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// The number on the wire.
    pub number: u16,
    /// The name in `io_timeouts_total{op}` and in [`RpcError::Timeout`].
    pub name: &'static str,
}

impl Method {
    /// The method, called on behalf of `tenant`. What a tenant is, both ends agree on; 0 is nobody.
    #[must_use]
    pub fn tenant(self, tenant: u128) -> Call {
        Call::from(self).tenant(tenant)
    }

    /// The method, called with a capability: what proves to the callee that this caller may.
    #[must_use]
    pub fn cap(self, cap: impl Into<Bytes>) -> Call {
        Call::from(self).cap(cap)
    }
}

/// A method, and in whose name and with which right it is called. Whatever calls takes one in place of a [`Method`]:
///
/// ```
/// # use ron_core::{Deadline, net::rpc::{Method, RpcError, Session}};
/// # const PRICE: Method = Method { number: 1, name: "price" };
/// # async fn ask(session: &Session, token: &'static [u8], soon: Deadline) -> Result<(), RpcError> {
/// let price = session.call(PRICE.tenant(7).cap(token), b"apples", soon).await?;
/// # Ok(())
/// # }
/// ```
///
/// The callee finds both in its [`Request`] or [`Event`], as they were sent and unchecked: whether they allow what is
/// asked is for its [`Service`] to judge. A capability takes its bytes from those of the largest request.
#[derive(Clone)]
pub struct Call {
    method: Method,
    tenant: u128,
    cap: Bytes,
}

impl Call {
    /// On behalf of `tenant`.
    #[must_use]
    pub fn tenant(self, tenant: u128) -> Self {
        Call { tenant, ..self }
    }

    /// With a capability, of at most 65 535 bytes.
    #[must_use]
    pub fn cap(self, cap: impl Into<Bytes>) -> Self {
        Call { cap: cap.into(), ..self }
    }

    /// The frame in which it travels. A capability may come only with a START.
    fn put_into(&self, frame: Frame) -> Frame {
        let flags = if self.cap.is_empty() { Flags::NONE } else { Flags::START | Flags::END };
        Frame { flags: frame.flags | flags, tenant: self.tenant, cap: self.cap.clone(), ..frame }
    }
}

impl From<Method> for Call {
    fn from(method: Method) -> Self {
        Call { method, tenant: 0, cap: Bytes::new() }
    }
}

impl fmt::Debug for Call {
    /// Without the capability, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, tenant {:x}, cap {} B)", self.method.name, self.tenant, self.cap.len())
    }
}

/// What a node does when its peers call it.
pub trait Service: Send + Sync + 'static {
    /// Handles a request. What can be answered from memory is answered at once; what takes time returns a future,
    /// which runs in a task of its own and is dropped when the caller gives up or the request's time is spent. This
    /// must not block: the link reads nothing meanwhile.
    fn call(&self, request: Request) -> Handling;

    /// Handles an event, without blocking. Whoever cannot keep up drops it and counts that.
    fn event(&self, event: Event) {
        let _ = event;
    }

    /// A session of [`Peers`] has begun, and is the one that its peer has from now on. Whoever has many events to send
    /// and minds their order returns where the session finds them.
    fn began(&self, session: &Session) -> Option<Arc<dyn Outbox>> {
        let _ = session;
        None
    }

    /// A session that had begun is over, for this reason. Exactly once for each, and after [`began`](Self::began).
    fn ended(&self, session: &Session, reason: &'static str) {
        let _ = (session, reason);
    }

    /// These [`Peers`] take no more links: they are stopping, or were aborted. Requests already accepted go on. If this
    /// service holds something that owns the `Peers`, drop it here; otherwise the two keep each other alive.
    fn closed(&self) {}
}

/// Where a session finds events to send, in the order that their owner wants.
///
/// What [`Session::notify`] sends waits in a lane, first come, first served. An owner that has an order of its own, or
/// room of its own to count, keeps its events until the session's writer asks for them, and rings
/// [`Session::ring`] when there are some. The writer asks whenever it has room, after requests and answers and before
/// chunks. A session whose peer has another one by now asks no more.
pub trait Outbox: Send + Sync + 'static {
    /// Hands payloads of events, as [`event_payload`] makes them, to `take` one after another, until it says that this was
    /// enough or there is nothing left. Must not block.
    fn pour(&self, take: &mut dyn FnMut(Bytes) -> bool);
}

/// What an event has in its frame: the number of its method, and what `write` puts behind it, which is expected to be
/// `room` bytes. Made once, it can go to many peers.
#[must_use]
pub fn event_payload(method: u16, room: usize, write: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Bytes {
    let payload = Vec::with_capacity(room + ASK_BYTES);
    write(Ask { method, budget_ms: 0, credit: 0 }.encode_into(payload)).into()
}

/// Room for the head of an event.
const ASK_BYTES: usize = 8;

/// For a node that only calls: there is no method, and events are dropped.
impl Service for () {
    fn call(&self, _: Request) -> Handling {
        Handling::Done(Err(Fault::no_such_method()))
    }
}

/// How a request is handled.
pub enum Handling {
    /// Answered.
    Done(Result<Bytes, Fault>),
    /// Will be answered. The bytes at the end follow whatever chunks were sent before.
    Pending(BoxFuture<'static, Result<Bytes, Fault>>),
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handling::Done(_) => "Done",
            Handling::Pending(_) => "Pending",
        })
    }
}

/// A message that nobody answers.
#[derive(Clone)]
pub struct Event {
    /// Who sent it.
    pub peer: NodeId,
    /// Where that is.
    pub remote: SocketAddr,
    /// Which kind of event.
    pub method: u16,
    /// On whose behalf; 0 when unused.
    pub tenant: u128,
    /// The capability that came with it; empty if none did.
    pub cap: Bytes,
    /// What it says.
    pub body: Bytes,
}

impl fmt::Debug for Event {
    /// Without what it says, and the capability, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(method {} of {:?}, {} B)", self.method, self.peer, self.body.len())
    }
}

/// The limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcSettings {
    /// Requests that the peer may have open here. Told to it in HELLO; one more ends the session. Default 128.
    pub inflight_max: u32,
    /// Bytes of the largest request taken. Default 256 KiB; at least 64 KiB, at most what fits into a frame of 1 MiB.
    pub request_bytes_max: u32,
    /// Bytes of the largest answer that [`Session::call`] gathers. Default 1 MiB.
    pub answer_bytes_max: u32,
    /// Chunks of 64 KiB that may be on their way to a reader of [`Chunks`]. Default 16.
    pub window_chunks: u32,
    /// The most time a request may go without a chunk of its answer, whatever its caller says: until the first one, or
    /// until an answer in one piece, and then from one to the next. Default 60 s. An answer in chunks that its caller
    /// takes may go on for as long as the caller wants it; if that is too long, the handler must end it.
    pub budget_max: Duration,
    /// From the link to the end of HELLO. Default 3 s.
    pub hello_timeout: Duration,
    /// A session on which nothing is open and nothing came for this long is closed. Default 60 s.
    pub idle_timeout: Duration,
    /// How long a frame that has begun may take, and 64 KiB of a large one. Default 5 s, also for writing.
    pub read_timeout: Duration,
    /// How long the peer may take to take what is written, or 64 KiB of it.
    pub write_timeout: Duration,
    /// How long open calls may take after a shutdown was asked for. Default 3 s; less if the group has less.
    pub drain: Duration,
    /// Bytes of requests, answers and events that may wait to be written. Beyond it, they are `Busy`; what has at most
    /// 1 KiB is not counted. Default 16 MiB for one session; [`Peers`] has one such budget for all.
    pub queued_bytes_max: u64,
    /// Bytes of requests that may be at work, with their capabilities. Beyond it, a request is answered with `Busy`
    /// (`rpc_requests`) and not handed to the service; what has at most 1 KiB always is, and one that is larger than all
    /// of this never. Default 16 MiB for one session; [`Peers`] has one such budget for all.
    ///
    /// A request that is still coming in is not counted: it has at most `request_bytes_max` on each session, as far as
    /// its bytes have come, and comes at 64 KiB in five seconds or ends the session.
    pub requests_bytes_max: u64,
}

impl Default for RpcSettings {
    fn default() -> Self {
        RpcSettings {
            inflight_max: 128,
            request_bytes_max: 256 << 10,
            answer_bytes_max: 1 << 20,
            window_chunks: 16,
            budget_max: Duration::from_secs(60),
            hello_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(3),
            queued_bytes_max: 16 << 20,
            requests_bytes_max: 16 << 20,
        }
    }
}

impl RpcSettings {
    /// Bytes of the longest frame that is taken: the largest request with its envelope, or a chunk.
    fn frame_bytes_max(&self) -> usize {
        let request = (self.request_bytes_max as usize).max(CHUNK_BYTES);
        (HEADER_BYTES + envelope::ASK_BYTES_MAX + request).min(FRAME_BYTES_MAX)
    }

    /// Chunks that an answer gathered in one piece may be cut into.
    fn answer_chunks(&self) -> u32 {
        (self.answer_bytes_max as usize).div_ceil(CHUNK_BYTES).max(1) as u32
    }
}
