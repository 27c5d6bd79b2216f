//! A stream between two simulated machines: packets under way in each direction, and the two ends that read and write.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::SimNet;

/// The largest packet: a write is cut into these, so that a line's bandwidth is shared in small turns.
const PACKET: usize = 16 << 10;
/// Bytes of one direction that may be unread or under way. The writer waits beyond it, as for a TCP window.
pub(super) const WINDOW: usize = 256 << 10;

/// One direction of a stream.
pub(super) struct Pipe {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The other direction of the same stream.
    pub(super) back: Weak<Pipe>,
    pub(super) state: Mutex<PipeState>,
}

pub(super) struct PipeState {
    pub(super) packets: VecDeque<Packet>,
    /// Bytes in `packets`.
    pub(super) under_way: usize,
    /// Nothing arrives before this: a stream keeps its order.
    pub(super) latest: Instant,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Nobody reads any more: this end was dropped, or was lost with its machine.
    pub(super) reader_is_gone: bool,
    /// The machine that wrote lost power.
    pub(super) writer_is_gone: bool,
    /// When each end hears that the other knows the stream no more.
    pub(super) reader_reset_at: Option<Instant>,
    pub(super) writer_reset_at: Option<Instant>,
}

impl PipeState {
    /// Whether there are bytes for nobody whose sender has not been told.
    pub(super) fn is_bounced(&self) -> bool {
        let has_bytes = self.packets.iter().any(|packet| !packet.bytes.is_empty());
        self.reader_is_gone && self.writer_reset_at.is_none() && has_bytes
    }
}

/// Bytes under way; no bytes are the end of the stream.
pub(super) struct Packet {
    pub(super) arrives: Option<Instant>,
    pub(super) bytes: Bytes,
}

impl Pipe {
    /// Both directions of a stream: there, and back.
    pub(super) fn pair(from: SocketAddr, to: SocketAddr) -> (Arc<Pipe>, Arc<Pipe>) {
        let mut back = None;
        let there = Arc::new_cyclic(|there| {
            let pipe = Arc::new(Pipe::new(to, from, there.clone()));
            Pipe::new(from, to, Arc::downgrade(back.insert(pipe)))
        });
        (there, back.expect("made with the other"))
    }

    fn new(from: SocketAddr, to: SocketAddr, back: Weak<Pipe>) -> Self {
        let state = PipeState {
            packets: VecDeque::new(),
            under_way: 0,
            latest: crate::now(),
            reader: None,
            writer: None,
            reader_is_gone: false,
            writer_is_gone: false,
            reader_reset_at: None,
            writer_reset_at: None,
        };
        Pipe { from, to, back, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, net: &SimNet, bytes: Bytes) {
        let mut network = net.lock();
        let mut state = self.lock();
        if state.writer_is_gone {
            // A machine without power does not even say that it is going.
            return;
        }
        // Behind a packet that is held back, everything is.
        let is_held = state.packets.back().is_some_and(|last| last.arrives.is_none());
        let arrives = if is_held { None } else { network.arrival(self.from.ip(), self.to.ip(), bytes.len()) };
        let arrives = arrives.map(|arrives| arrives.max(state.latest));
        state.latest = arrives.unwrap_or(state.latest);
        state.under_way += bytes.len();
        state.packets.push_back(Packet { arrives, bytes });
        let mut woken = Vec::from_iter(state.reader.take());
        let is_bounced = state.is_bounced();
        drop(state);
        if let Some(arrives) = arrives.filter(|_| is_bounced) {
            woken.extend(network.bounce(self, arrives));
        }
        drop(network);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Nobody reads here any more. What is unread, and what comes, is answered with a reset.
    fn abandon(&self, net: &SimNet) {
        let mut network = net.lock();
        let mut state = self.lock();
        state.reader_is_gone = true;
        let (is_bounced, arrives) = (state.is_bounced(), state.packets.back().and_then(|last| last.arrives));
        drop(state);
        let woken = arrives.filter(|_| is_bounced).map(|arrives| network.bounce(self, arrives));
        drop(network);
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

/// One end of a stream. Dropping it closes it, which the other side learns as it would over TCP.
pub struct SimStream {
    net: SimNet,
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    /// Until there is something to read, and until a writer without room is reset.
    arrival: Option<Pin<Box<Sleep>>>,
    reset: Option<Pin<Box<Sleep>>>,
    is_closed: bool,
}

impl SimStream {
    pub(super) fn new(net: &SimNet, incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>) -> Self {
        let (incoming, outgoing) = (Arc::clone(incoming), Arc::clone(outgoing));
        SimStream { net: net.clone(), incoming, outgoing, arrival: None, reset: None, is_closed: false }
    }

    /// The address of the other end.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.outgoing.to
    }

    /// The address of this end.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.outgoing.from
    }

    fn close(&mut self) {
        if !self.is_closed {
            self.is_closed = true;
            self.outgoing.send(&self.net, Bytes::new());
        }
    }

    /// Resolves when something can be read: bytes, the end, or that the stream was reset.
    pub async fn readable(&mut self) {
        let _ = std::future::poll_fn(|cx| self.poll_arrived(cx)).await;
    }

    /// Waits for the first packet, or to be reset.
    fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut state = self.incoming.lock();
            let has_come = |at: Option<Instant>| at.is_some_and(|at| at <= crate::now());
            let arrives = state.packets.front().and_then(|packet| packet.arrives);
            if !state.reader_is_gone && has_come(arrives) {
                return Poll::Ready(Ok(()));
            }
            if state.reader_is_gone || has_come(state.reader_reset_at) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let next = arrives.into_iter().chain(state.reader_reset_at).min();
            state.reader = Some(cx.waker().clone());
            drop(state);
            let Some(next) = next else { return Poll::Pending };
            ready!(poll_at(&mut self.arrival, next, cx));
        }
    }
}

/// Waits until then.
fn poll_at(timer: &mut Option<Pin<Box<Sleep>>>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
    let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
    if sleep.deadline() != at {
        sleep.as_mut().reset(at);
    }
    ready!(sleep.as_mut().poll(cx));
    *timer = None;
    Poll::Ready(())
}

impl AsyncRead for SimStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_arrived(cx))?;
        let mut state = self.incoming.lock();
        let PipeState { packets, under_way, writer, .. } = &mut *state;
        // The end of the stream is a packet without bytes. It stays, so that the end is read however often.
        let Some(packet) = packets.front_mut().filter(|packet| !packet.bytes.is_empty()) else {
            return Poll::Ready(Ok(()));
        };
        let taken = packet.bytes.len().min(buf.remaining());
        buf.put_slice(&packet.bytes[..taken]);
        packet.bytes.advance(taken);
        *under_way -= taken;
        if packet.bytes.is_empty() {
            packets.pop_front();
        }
        let writer = writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.outgoing.lock();
        let reset_at = state.writer_reset_at;
        if state.writer_is_gone || reset_at.is_some_and(|at| at <= crate::now()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = WINDOW.saturating_sub(state.under_way);
        if room == 0 {
            state.writer = Some(cx.waker().clone());
            drop(state);
            let Some(reset_at) = reset_at else { return Poll::Pending };
            ready!(poll_at(&mut self.reset, reset_at, cx));
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        drop(state);
        let sent = bytes.len().min(room).min(PACKET);
        if sent > 0 {
            self.outgoing.send(&self.net, Bytes::copy_from_slice(&bytes[..sent]));
        }
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.close();
        self.incoming.abandon(&self.net);
    }
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStream({} → {})", self.outgoing.from, self.outgoing.to)
    }
}
