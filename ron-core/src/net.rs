//! A node on the wire: who it is, whom it talks to, and how they speak.
//!
//! An [`Identity`] is an ed25519 key; its hash is the node's name. An [`Endpoint`] listens and dials, and yields
//! [`Link`]s: byte streams whose other end has proved its name, over TCP and TLS 1.3 with raw public keys, over QUIC
//! with the same keys (feature `quic`), or over any other [`Transport`]. [`oap`] is the frame format that our protocols
//! speak on them, [`rpc`] is calls in both directions over one link per peer, and [`cbor`] is how what they carry is read.

pub mod cbor;
mod endpoint;
mod error;
mod identity;
pub mod oap;
#[cfg(feature = "quic")]
mod quic;
pub mod rpc;
mod tls;
mod transport;

pub use endpoint::{Endpoint, EndpointBuilder, EndpointSettings, inventory};
pub use error::NetError;
pub use identity::{Identity, IdentityError, PublicKey, Signature, SignatureError};
#[cfg(feature = "quic")]
pub use quic::Quic;
pub use tls::{KeyPolicy, TcpTls};
pub use transport::{BoxFuture, Incoming, KeyGroup, Link, Listener, Stream, Transport};
