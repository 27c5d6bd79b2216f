//! Calls over one link, in both directions at once.
//!
//! A [`Session`] is a link on which both ends have said HELLO. Either end calls the other: requests, answers in one
//! piece or as a stream of chunks under credit, and events. A request carries the time it has left, and the callee
//! stops when that is spent; a caller that drops its call, the callee learns of it and stops too. [`Peers`] keeps one
//! session per peer, whoever dialled it.
//!
//! What travels is OAP/1 frames: `docs/oap-1.md` has the layout of requests, errors and control events.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use bytes::Bytes;
//! # use ron_core::{Deadline, LaneSpec, Supervisor, net::{Endpoint, Identity}};
//! use ron_core::net::rpc::{Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, Service};
//!
//! const LINKS: LaneSpec = LaneSpec::new("my-crate", "links", 64);
//! const SHOP: Protocol = Protocol { alpn: "my/shop/1", proto: 40_000, links: LINKS };
//! const PRICE: Method = Method { number: 1, name: "price" };
//!
//! struct Shop;
//!
//! impl Service for Shop {
//!     fn call(&self, request: Request) -> Handling {
//!         match request.method() {
//!             1 => Handling::Done(Ok(Bytes::from_static(b"\x18\x2a"))),
//!             _ => Handling::Done(Err(Fault::no_such_method())),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let supervisor = Supervisor::new("host");
//! let here = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&supervisor)?;
//! let there = Endpoint::builder(Identity::generate()?).start(&supervisor)?;
//! let _shop = Peers::start(&here, SHOP, Arc::new(Shop), PeersSettings::default(), &supervisor)?;
//! let peers = Peers::start(&there, SHOP, Arc::new(Shop), PeersSettings::default(), &supervisor)?;
//!
//! let deadline = Deadline::after(Duration::from_secs(2));
//! let price = peers.call(here.node_id(), here.local_addrs(), PRICE, Bytes::new(), deadline).await?;
//! assert_eq!(price, &b"\x18\x2a"[..]);
//! # supervisor.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod chunks;
mod envelope;
mod error;
mod peers;
mod serve;
mod session;
mod shared;
mod tasks;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;

pub use chunks::Chunks;
pub use envelope::{Ask, Control, EnvelopeError};
pub use error::{Fault, RpcError};
pub use peers::{Peers, PeersSettings, inventory};
pub use serve::Request;
pub use session::{Session, Side};

use super::{
    BoxFuture,
    oap::{CHUNK_BYTES, FRAME_BYTES_MAX, HEADER_BYTES},
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
}

/// How a request is handled.
pub enum Handling {
    /// Answered.
    Done(Result<Bytes, Fault>),
    /// Will be answered. The bytes at the end follow whatever chunks were sent before.
    Pending(BoxFuture<'static, Result<Bytes, Fault>>),
}

impl std::fmt::Debug for Handling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Handling::Done(_) => "Done",
            Handling::Pending(_) => "Pending",
        })
    }
}

/// A message that nobody answers.
#[derive(Debug, Clone)]
pub struct Event {
    /// Who sent it.
    pub peer: NodeId,
    /// Where that is.
    pub remote: SocketAddr,
    /// Which kind of event.
    pub method: u16,
    /// What it says.
    pub body: Bytes,
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
    /// The most time a request may have here, whatever its caller says. Default 60 s.
    pub budget_max: Duration,
    /// From the link to the end of HELLO. Default 3 s.
    pub hello_timeout: Duration,
    /// A session on which nothing is open and nothing came for this long is closed. Default 60 s.
    pub idle_timeout: Duration,
    /// How long open calls may take after a shutdown was asked for. Default 3 s; less if the group has less.
    pub drain: Duration,
    /// Bytes of answers and events that may wait to be written. Beyond it, answers are `Busy`. Default 16 MiB for one
    /// session; [`Peers`] has one such budget for all.
    pub queued_bytes_max: u64,
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
            drain: Duration::from_secs(3),
            queued_bytes_max: 16 << 20,
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
