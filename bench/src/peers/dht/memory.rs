//! Links that never leave the process: what is left of a link when neither kernel nor cipher is in the way.
//!
//! As libp2p's memory transport with plaintext does, both ends say who they are and neither proves it.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use ron_core::{
    Deadline, NodeId,
    net::{BoxFuture, Identity, Incoming, KeyGroup, Link, Listener, NetError, PublicKey, Transport},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf},
    sync::{Mutex as AsyncMutex, mpsc},
};

/// Bytes under way in one direction before the writer waits. Taken only as they are needed.
const WINDOW: usize = 64 << 10;

/// Dialers that a listener has not seen yet.
const BACKLOG: usize = 1024;

/// Who listens where. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    listeners: Arc<Mutex<HashMap<SocketAddr, mpsc::Sender<End>>>>,
    ends: Arc<AtomicUsize>,
}

impl Memory {
    /// Ends of links that are open.
    pub(crate) fn ends(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }

    /// The transport of one node.
    pub(crate) fn transport(&self, identity: &Identity) -> Arc<dyn Transport> {
        Arc::new(Port { memory: self.clone(), key: identity.public_key() })
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<SocketAddr, mpsc::Sender<End>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, stream: DuplexStream) -> End {
        self.ends.fetch_add(1, Ordering::Relaxed);
        End { stream, ends: Arc::clone(&self.ends) }
    }
}

/// One node's access.
#[derive(Debug)]
struct Port {
    memory: Memory,
    key: PublicKey,
}

impl Transport for Port {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        Box::pin(async move {
            let dial = async {
                let (here, there) = tokio::io::duplex(WINDOW);
                let (mut here, there) = (self.memory.end(here), self.memory.end(there));
                let listener = self.memory.listeners().get(&addr).cloned();
                let unreachable = || NetError::Unreachable {
                    addr,
                    kind: io::ErrorKind::ConnectionRefused,
                    message: "nobody listens".to_owned(),
                };
                listener.ok_or_else(unreachable)?.send(there).await.map_err(|_| unreachable())?;
                let length = u8::try_from(alpn.len()).map_err(|_| NetError::BadProtocol { alpn })?;
                here.write_all(self.key.as_bytes()).await.map_err(broken)?;
                here.write_u8(length).await.map_err(broken)?;
                here.write_all(alpn.as_bytes()).await.map_err(broken)?;
                let peer_key = read_key(&mut here).await?;
                let found = peer_key.node_id();
                if found != peer {
                    return Err(NetError::WrongIdentity { expected: peer, found });
                }
                Ok(link(here, peer_key, alpn, addr))
            };
            deadline.limit("dial", dial).await?
        })
    }

    fn listen(&self, _: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        let (sender, arrivals) = mpsc::channel(BACKLOG);
        let mut listeners = self.memory.listeners();
        let port = u16::try_from(listeners.len() + 1).map_err(|_| NetError::Listen {
            addr: (Ipv4Addr::LOCALHOST, 0).into(),
            kind: io::ErrorKind::AddrInUse,
            message: "every port is taken".to_owned(),
        })?;
        let addr = (Ipv4Addr::LOCALHOST, port).into();
        listeners.insert(addr, sender);
        Ok(Box::new(Listening { addr, arrivals: AsyncMutex::new(arrivals), key: self.key }))
    }
}

#[derive(Debug)]
struct Listening {
    addr: SocketAddr,
    arrivals: AsyncMutex<mpsc::Receiver<End>>,
    key: PublicKey,
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let end = self.arrivals.lock().await.recv().await.ok_or(io::ErrorKind::NetworkDown)?;
            Ok(Box::new(Arrived { end, key: self.key }) as Box<dyn Incoming>)
        })
    }
}

struct Arrived {
    end: End,
    key: PublicKey,
}

/// Dialers have a port each on a real loopback interface, which nobody looks at.
const DIALER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), u16::MAX);

impl Incoming for Arrived {
    fn remote(&self) -> SocketAddr {
        DIALER
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        // A dialer here speaks at once.
        Box::pin(std::future::ready(()))
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        Box::pin(async move {
            let Arrived { mut end, key } = *self;
            let peer_key = read_key(&mut end).await?;
            let mut asked = vec![0; usize::from(end.read_u8().await.map_err(broken)?)];
            end.read_exact(&mut asked).await.map_err(broken)?;
            let alpn = protocols.iter().copied().find(|alpn| alpn.as_bytes() == asked);
            let alpn = alpn.ok_or(NetError::ProtocolRefused { alpn: "any" })?;
            end.write_all(key.as_bytes()).await.map_err(broken)?;
            Ok(link(end, peer_key, alpn, DIALER))
        })
    }
}

async fn read_key(end: &mut End) -> Result<PublicKey, NetError> {
    let mut bytes = [0; 32];
    end.read_exact(&mut bytes).await.map_err(broken)?;
    Ok(PublicKey::from_bytes(bytes))
}

fn link(end: End, peer_key: PublicKey, alpn: &'static str, remote: SocketAddr) -> Link {
    Link { stream: Box::new(end), peer: peer_key.node_id(), peer_key, alpn, remote, group: KeyGroup::Memory }
}

fn broken(error: io::Error) -> NetError {
    NetError::Handshake { message: error.to_string() }
}

/// One end of a link. Counted while it lives.
#[derive(Debug)]
struct End {
    stream: DuplexStream,
    ends: Arc<AtomicUsize>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ends.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
