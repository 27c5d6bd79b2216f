//! The bytes of a link over QUIC, and how they end.
//!
//! A QUIC connection that is closed forgets at once what it has not delivered, and a connection is closed when the
//! last handle of it is dropped. With TCP the kernel goes on delivering; here somebody has to. So a link whose write
//! side was shut down is kept after its owner has dropped it, until the peer has acknowledged the last byte or the time
//! is up: in a task of the endpoint, which waits for such tasks when it stops. The place for that is taken by
//! `shutdown()`. If there is none to have, because all are taken, the endpoint stops or there is no endpoint, then
//! `shutdown()` itself waits for the acknowledgement.
//!
//! A link that is dropped without a shutdown was given up: the connection closes at once and the peer reads an error,
//! never an end that looks like one.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    Deadline, Spawner, Stop,
    net::{BoxFuture, endpoint::LINGER},
    permits::{Permit, Permits},
};

/// How long the peer has to acknowledge the end. Nothing is taken from a writer that does not fit into the peer's window,
/// so this does not wait for its reader, only for the network: a megabyte takes a second at 8 Mbit/s.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Links that may be shut down on our side and unacknowledged at once without anybody waiting. 1 GiB at worst, if all
/// their peers let a full window wait.
const LINGER_MAX: u64 = 1024;

/// Small pieces are joined up to here, because every write of its own is an allocation and a lock in quinn.
const JOINED_MAX: usize = 32 << 10;

/// Both ends are done.
pub(super) const DONE: VarInt = VarInt::from_u32(0);

/// This end gave up.
pub(super) const GIVEN_UP: VarInt = VarInt::from_u32(1);

type Acknowledged = BoxFuture<'static, io::Result<()>>;

/// Who looks after links that were dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    tasks: OnceLock<Spawner>,
    places: Permits,
}

impl Keeper {
    pub(super) fn new() -> Self {
        Keeper { tasks: OnceLock::new(), places: Permits::new(LINGER_MAX) }
    }

    /// The first endpoint's tasks are used. If a second one comes when the first has stopped, its links wait in
    /// `shutdown()`.
    pub(super) fn attach(&self, tasks: Spawner) {
        let _ = self.tasks.set(tasks);
    }

    /// The right to be kept after the drop.
    fn place(&self) -> Option<Permit> {
        let tasks = self.tasks.get()?;
        if tasks.stop().is_requested() { None } else { self.places.try_take(1) }
    }

    /// Keeps the connection until the end of what was written is acknowledged. Never blocks.
    fn keep(&self, connection: Connection, acknowledged: Acknowledged, place: Option<Permit>) {
        let (Some(tasks), Some(place)) = (self.tasks.get(), place.or_else(|| self.places.try_take(1))) else {
            return;
        };
        let _ = tasks.spawn(LINGER, |stop| linger(connection, acknowledged, stop, place));
    }
}

async fn linger(connection: Connection, mut acknowledged: Acknowledged, stop: Stop, _place: Permit) {
    let asked_to_stop = tokio::select! {
        biased;
        _ = &mut acknowledged => false,
        () = stop.requested() => true,
    };
    if asked_to_stop {
        // Half of the drain, so as to end by itself before it is cut off.
        let left = stop.drain_until().map_or(Duration::ZERO, Deadline::remaining) / 2;
        let _ = Deadline::after(left).limit("close", acknowledged).await;
    }
    connection.close(DONE, b"");
}

/// The one stream of a connection.
pub(super) struct QuicStream {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    end: End,
    keeper: Arc<Keeper>,
}

enum End {
    /// More may be written.
    Open,
    /// Finished, and it may be dropped before the peer has all of it.
    Kept(Permit),
    /// Finished, and the end waits for the peer to have all of it.
    Awaited(Acknowledged),
    /// The peer has it, or never will.
    Settled,
}

impl QuicStream {
    pub(super) fn new(
        connection: Connection,
        send: SendStream,
        recv: RecvStream,
        keeper: Arc<Keeper>,
    ) -> Self {
        QuicStream { connection, send, recv, end: End::Open, keeper }
    }

    /// Resolves when the peer has all that was written, or does not want it; fails when it cannot get it any more.
    fn acknowledged(&self) -> Acknowledged {
        let stopped = self.send.stopped();
        Box::pin(async move {
            match Deadline::after(LINGER_TIME).limit("close", stopped).await {
                Ok(stopped) => stopped.map(drop).map_err(io::Error::from),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, into)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = from.iter().find(|piece| !piece.is_empty()).map_or(&[][..], |piece| piece);
        if first.len() >= JOINED_MAX {
            return self.poll_write(cx, first);
        }
        let whole = from.iter().map(|piece| piece.len()).sum::<usize>().min(JOINED_MAX);
        let mut joined = Vec::with_capacity(whole);
        for piece in from {
            let room = whole - joined.len();
            joined.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let mut chunks = [Bytes::from(joined)];
        // Writes at once or not at all, so that a future which is dropped has taken nothing.
        let written = ready!(pin!(self.send.write_chunks(&mut chunks)).poll(cx));
        Poll::Ready(Ok(written?.bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.end, End::Open) {
            // Fails only if it was finished before, and only we do that.
            let _ = self.send.finish();
            self.end = match self.keeper.place() {
                Some(place) => End::Kept(place),
                None => End::Awaited(self.acknowledged()),
            };
        }
        if let End::Awaited(acknowledged) = &mut self.end {
            let acknowledged = ready!(acknowledged.as_mut().poll(cx));
            self.end = End::Settled;
            return Poll::Ready(acknowledged);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        let place = match std::mem::replace(&mut self.end, End::Settled) {
            End::Open => return self.connection.close(GIVEN_UP, b""),
            End::Settled => return self.connection.close(DONE, b""),
            End::Kept(place) => Some(place),
            End::Awaited(_) => None,
        };
        self.keeper.keep(self.connection.clone(), self.acknowledged(), place);
    }
}
