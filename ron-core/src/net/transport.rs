//! What an endpoint asks of a network, and what it gets: authenticated byte streams.
//!
//! The traits are open: TCP with TLS is one form, QUIC and a simulated network are others. An incoming connection is
//! handed over *before* its handshake, so that the endpoint's limits stand in front of every form alike.

use std::{fmt, future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{NetError, PublicKey};
use crate::{Deadline, NodeId, Spawner};

/// A future in a box, as traits that must be `dyn` return them.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + ?Sized> Stream for S {}

/// The key exchange that protects a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyGroup {
    /// Classical: a recording can be read once there are large quantum computers.
    X25519,
    /// Hybrid: safe while either half is.
    X25519MlKem768,
    /// None: the link never left the process.
    Memory,
}

impl KeyGroup {
    /// Whether a recording of the link stays secret from a quantum computer.
    #[must_use]
    pub const fn is_post_quantum(self) -> bool {
        matches!(self, KeyGroup::X25519MlKem768)
    }
}

/// A connection whose other end has proved who it is.
pub struct Link {
    /// The bytes. Closing it well is `shutdown().await` on its write side; dropping it closes it too.
    pub stream: Box<dyn Stream>,
    /// Who is at the other end.
    pub peer: NodeId,
    /// The key that proved it; its hash is `peer`.
    pub peer_key: PublicKey,
    /// The protocol both ends agreed on.
    pub alpn: &'static str,
    /// Where the other end is.
    pub remote: SocketAddr,
    /// What protects the link.
    pub group: KeyGroup,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("alpn", &self.alpn)
            .field("remote", &self.remote)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// A network that nodes can be reached over.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Connects to `addr` and succeeds only if `peer` is there and speaks `alpn`. No application byte is sent before
    /// that is proved. Dropping the future closes whatever was opened.
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>>;

    /// Begins to listen on `addr`.
    ///
    /// # Errors
    /// [`NetError::Listen`].
    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError>;

    /// An endpoint starts on this transport. A transport whose links need work after their owners have dropped them
    /// does it in `tasks`, so that stopping the endpoint waits for it. One that leaves that to the operating system
    /// has nothing to do here.
    fn attach(&self, tasks: Spawner) {
        drop(tasks);
    }
}

/// An address that is listened on. Dropping it stops that.
pub trait Listener: fmt::Debug + Send + Sync + 'static {
    /// The address, with the port that was really taken.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection, as soon as there is one. Dropping the future loses none.
    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>>;
}

/// A connection that nobody has spoken on yet. Dropping it closes it. It should hold no more than its socket.
pub trait Incoming: Send + 'static {
    /// Where it comes from.
    fn remote(&self) -> SocketAddr;

    /// Resolves when the other end has said something: a connection that never does must not take the place of one
    /// that would.
    fn spoke(&mut self) -> BoxFuture<'_, ()>;

    /// Authenticates both ends and agrees on one of `protocols`. The caller sets the time limit and drops the future
    /// when it has passed.
    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>>;
}
