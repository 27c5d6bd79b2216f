//! A node on the wire: who it is, whom it talks to, and how they speak.
//!
//! An [`Identity`] is an ed25519 key; its hash is the node's name. An [`Endpoint`] listens and dials, and yields
//! [`Link`]s: byte streams whose other end has proved its name, over TCP and TLS 1.3 with raw public keys, over QUIC
//! with the same keys (feature `quic`), or over any other [`Transport`]. [`oap`] is the frame format that our protocols
//! speak on them, [`cbor`] is how what they carry is read, and [`rpc`] is calls in both directions over one link per peer:
//! to offer or use a service, begin there.
//!
//! It is in the feature `net`; a host needs tokio and, for what it sends, `bytes` beside it. All of it runs on the tokio
//! runtime it is started in (with `enable_all`) and under the host's [`Supervisor`](crate::Supervisor), and stops with
//! that.
//!
//! # A link of bytes
//!
//! Whoever wants neither frames nor calls registers a protocol, a name that goes into the handshake, and gets the links
//! that others dial under it:
//!
//! ```
//! # use std::time::Duration;
//! use ron_core::{Deadline, LaneSpec, Supervisor, net::{Endpoint, Identity, NetError}};
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//!
//! /// Links that were accepted and wait to be taken: beyond it, new ones are closed.
//! const LINKS: LaneSpec = LaneSpec::new("my-crate", "echo links", 64);
//! const ECHO: &str = "my-crate/echo/1";
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Supervisor::new("host");
//! // A program that is to be found again keeps its key: `Identity::load_or_create(path)`.
//! let there = Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
//! let links = there.register(ECHO, LINKS)?;
//! // Without an address to listen on, an endpoint only dials.
//! let here = Endpoint::builder(Identity::generate()?).start(&host)?;
//!
//! let soon = Deadline::after(Duration::from_secs(5));
//! let mut link = here.connect(there.node_id(), there.local_addrs(), ECHO, soon).await?;
//! let mut accepted = links.recv().await.expect("the endpoint runs");
//! assert_eq!(accepted.peer, here.node_id()); // proved, not claimed
//! link.stream.write_all(b"hello").await?;
//! let mut heard = [0; 5];
//! accepted.stream.read_exact(&mut heard).await?;
//! assert_eq!(&heard, b"hello");
//!
//! // Somebody else at that address is an error that says so.
//! let other = Identity::generate()?.node_id();
//! let refused = here.connect(other, there.local_addrs(), ECHO, soon).await;
//! assert!(matches!(refused, Err(NetError::WrongIdentity { .. })));
//! # host.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What a stranger can cost
//!
//! Before its handshake is done, a connection costs a socket and at most 4 KiB, and a running handshake at most 96 KiB;
//! how many of each there may be, in all and from one address, is in [`EndpointSettings`]. What it can cost afterwards is
//! up to who registered the protocol; for calls it is in [`rpc::RpcSettings`] and [`rpc::PeersSettings`].

pub mod cbor;
mod contact;
mod endpoint;
mod error;
mod identity;
pub mod oap;
#[cfg(feature = "quic")]
mod quic;
pub mod rpc;
mod tls;
mod transport;

pub use contact::{Contact, ContactError};
pub use endpoint::{Endpoint, EndpointBuilder, EndpointSettings, inventory};
pub use error::NetError;
pub use identity::{Identity, IdentityError, PreparedKey, PublicKey, Signature, SignatureError};
#[cfg(feature = "quic")]
pub use quic::Quic;
pub use tls::{KeyPolicy, TcpTls};
pub use transport::{BoxFuture, Incoming, KeyGroup, Link, Listener, Stream, Transport};
