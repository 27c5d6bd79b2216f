//! A node that lies: a byte of what it sends is wrong now and then, in objects, records, messages and frames alike; it says
//! that it has objects which it then gives wrongly; and it says things on other machines' ports that are no protocol.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use ron_core::{
    Deadline, NodeId,
    net::{BoxFuture, Incoming, Link, Listener, NetError, Stream, Transport},
    sim::{SimNode, SimTransport},
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::{
    node::{Host, PORT, identity, ip},
    shared::Shared,
    verdict::Verdict,
};

/// One write in so many is wrong.
const LIES: u8 = 6;

/// Protocols that junk is said in.
const PROTOCOLS: [&str; 4] = ["ron/blob/1", "ron/dht/1", "ron/overlay/1", "ron/reg/1"];

/// Whether it lies, and out of which chances. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Lies {
    are_told: Arc<AtomicBool>,
    rng: Arc<Mutex<fastrand::Rng>>,
}

impl Lies {
    pub(crate) fn new(seed: u64) -> Self {
        Lies { are_told: Arc::default(), rng: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))) }
    }

    pub(crate) fn set(&self, are_told: bool) {
        self.are_told.store(are_told, Ordering::Relaxed);
    }

    fn are_told(&self) -> bool {
        self.are_told.load(Ordering::Relaxed)
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The liar's part besides what every node does.
    pub(crate) async fn live(self, node: SimNode, nodes: u8, host: Host, shared: Shared, verdict: Verdict) {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            if !self.are_told() {
                continue;
            }
            verdict.count("lied");
            // It has something, and says so; what it sends of it is another matter.
            let wanted = self.draw(|rng| shared.pick(rng));
            if let Some((id, content)) = wanted.and_then(|id| Some((id, shared.content_of(&id)?))) {
                let deadline = || Deadline::after(Duration::from_secs(5));
                let _ = host.store.put_bytes(content, deadline()).await;
                let _ = host.dht.provide(id, deadline()).await;
            }
            self.talk_junk(&node, nodes).await;
        }
    }

    async fn talk_junk(&self, node: &SimNode, nodes: u8) {
        let (victim, kind, alpn, len) = self.draw(|rng| {
            (rng.u8(..nodes), rng.u8(..4), PROTOCOLS[rng.usize(..PROTOCOLS.len())], rng.usize(1..3000))
        });
        let connect = node.net.connect(node.ip, SocketAddr::new(ip(victim), PORT));
        let Ok(Ok(mut stream)) = tokio::time::timeout(Duration::from_secs(3), connect).await else { return };
        let mut words = Vec::new();
        if kind > 0 {
            // A greeting as it should be, with whatever comes behind.
            words.extend_from_slice(identity(nodes + crate::options::CLIENTS).public_key().as_bytes());
            words.push(u8::try_from(alpn.len()).unwrap_or(0));
            words.extend_from_slice(alpn.as_bytes());
        }
        match kind {
            // Of a length that nobody has memory for.
            1 => words.extend_from_slice(&[0xff; 16]),
            // Nothing more, ever.
            2 => {}
            _ => {
                let mut junk = vec![0; len];
                self.draw(|rng| rng.fill(&mut junk));
                words.extend_from_slice(&junk);
            }
        }
        let _ = tokio::time::timeout(Duration::from_secs(3), stream.write_all(&words)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A transport whose every write may be wrong.
#[derive(Debug)]
pub(crate) struct LyingTransport {
    pub(crate) inner: SimTransport,
    pub(crate) lies: Lies,
}

impl LyingTransport {
    fn spoil(link: Link, lies: Lies) -> Link {
        Link { stream: Box::new(Spoiled { inner: link.stream, lies }), ..link }
    }
}

impl Transport for LyingTransport {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        let dialed = self.inner.dial(addr, peer, alpn, deadline);
        Box::pin(async move { Ok(Self::spoil(dialed.await?, self.lies.clone())) })
    }

    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        Ok(Box::new(LyingListener { inner: self.inner.listen(addr)?, lies: self.lies.clone() }))
    }
}

#[derive(Debug)]
struct LyingListener {
    inner: Box<dyn Listener>,
    lies: Lies,
}

impl Listener for LyingListener {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let inner = self.inner.accept().await?;
            Ok(Box::new(LyingIncoming { inner, lies: self.lies.clone() }) as Box<dyn Incoming>)
        })
    }
}

struct LyingIncoming {
    inner: Box<dyn Incoming>,
    lies: Lies,
}

impl Incoming for LyingIncoming {
    fn remote(&self) -> SocketAddr {
        self.inner.remote()
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        self.inner.spoke()
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        let LyingIncoming { inner, lies } = *self;
        Box::pin(async move { Ok(LyingTransport::spoil(inner.handshake(protocols).await?, lies)) })
    }
}

struct Spoiled {
    inner: Box<dyn Stream>,
    lies: Lies,
}

impl AsyncRead for Spoiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Spoiled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let lies = self.lies.are_told() && !buf.is_empty() && self.lies.draw(|rng| rng.u8(..LIES)) == 0;
        if !lies {
            return Pin::new(&mut self.inner).poll_write(cx, buf);
        }
        let mut wrong = buf.to_vec();
        let (at, bit) = self.lies.draw(|rng| (rng.usize(..wrong.len()), rng.u8(..8)));
        wrong[at] ^= 1 << bit;
        Pin::new(&mut self.inner).poll_write(cx, &wrong)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
