//! The bytes of one connection, between the socket and the HTTP parser.
//!
//! It gives the parser one head at a time and exactly the body that belongs to it, so it always knows whether the
//! client owes us a head, a body or nothing, and can hold each to its own time: a head within seconds of its first
//! byte, the next request within a minute, a response read at a minimum pace. The parser's own header timer cannot
//! tell an idle client from one that dribbles.

use std::{
    fmt,
    future::Future as _,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    head::{Fault, HeadLimits, HeadScan},
    pace::{PaceLimit, Paced},
};
use crate::sync::{Mutex, lock};

/// What a connection is carried by: TCP, a Unix socket, or what [`Wrap`](super::Wrap) made of them.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl fmt::Debug for dyn Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct WireLimits {
    pub(super) head: HeadLimits,
    pub(super) head_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) write_pace: PaceLimit,
}

/// Why this side gave the connection up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GaveUp {
    /// The head is refused.
    Fault(Fault),
    /// The head was begun and did not end in time.
    SlowHead,
    /// Nothing came.
    Idle,
    /// The response was not read.
    SlowReader,
}

/// What the length of a request's body is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    Exact(u64),
    /// Chunked. Where it ends only the parser knows, so such a request is the last one of its connection.
    Unknown,
}

/// What the client owes.
#[derive(Debug)]
enum Owes {
    Head(HeadScan),
    /// Nothing, until the parser has made a request of the head it was given.
    Nothing,
    Body(u64),
    Anything,
}

#[derive(Debug)]
struct State {
    owes: Owes,
    /// Until when the head must be complete; `None` while a request is being served.
    head_until: Option<Instant>,
    serving: bool,
    gave_up: Option<GaveUp>,
    /// The parser, where a refusal of the next head waits for the end of a response. It does not ask again by itself
    /// then.
    reader: Option<Waker>,
}

/// The side of the wire that the serving code holds.
#[derive(Debug, Clone)]
pub(super) struct WireControl {
    shared: Arc<WireShared>,
}

#[derive(Debug)]
struct WireShared {
    limits: WireLimits,
    state: Mutex<State>,
}

impl WireControl {
    /// The parser has a request whose body has this length.
    pub(super) fn begin_request(&self, body: BodyLength) {
        let mut state = lock(&self.shared.state);
        (state.serving, state.head_until) = (true, None);
        state.owes = match body {
            BodyLength::Exact(0) => Owes::Head(HeadScan::new(self.shared.limits.head)),
            BodyLength::Exact(bytes) => Owes::Body(bytes),
            BodyLength::Unknown => Owes::Anything,
        };
    }

    /// The response is written. The next head may take its time until its first byte.
    pub(super) fn end_response(&self) {
        let mut state = lock(&self.shared.state);
        let begun = matches!(&state.owes, Owes::Head(scan) if scan.has_begun());
        let patience = if begun { self.shared.limits.head_timeout } else { self.shared.limits.idle_timeout };
        (state.serving, state.head_until) = (false, Some(crate::now() + patience));
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Cuts the time for the head that is awaited, for whoever looks at the time next. Returns whether anything of a
    /// request is there.
    pub(super) fn hurry(&self, patience: Duration) -> bool {
        let mut state = lock(&self.shared.state);
        state.head_until = state.head_until.map(|until| until.min(crate::now() + patience));
        state.serving || !matches!(&state.owes, Owes::Head(scan) if !scan.has_begun())
    }

    /// Ready when the head that is awaited did not come in time; the connection is given up then. To be asked whenever
    /// the parser has nothing more to do, which is when the end of a response may have set another time.
    pub(super) fn poll_overdue(&self, cx: &mut Context<'_>, timer: &mut HeadTimer) -> Poll<()> {
        loop {
            let Some(until) = lock(&self.shared.state).head_until else { return Poll::Pending };
            let timer = timer.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
            // One that is early is looked at again when it rings: a busy connection sets it once a minute and not with
            // every request.
            if timer.deadline() > until {
                timer.as_mut().reset(until);
            }
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() < until {
                timer.as_mut().reset(until);
                continue;
            }
            let mut state = lock(&self.shared.state);
            let begun = matches!(&state.owes, Owes::Head(scan) if scan.has_begun());
            state.gave_up = Some(if begun { GaveUp::SlowHead } else { GaveUp::Idle });
            return Poll::Ready(());
        }
    }

    pub(super) fn gave_up(&self) -> Option<GaveUp> {
        lock(&self.shared.state).gave_up
    }

    /// Whether the client may still be sending something that nobody will read.
    pub(super) fn is_owed(&self) -> bool {
        let state = lock(&self.shared.state);
        state.gave_up.is_some() || matches!(state.owes, Owes::Body(_) | Owes::Anything)
    }
}

/// The clock of [`WireControl::poll_overdue`], kept from one look to the next.
#[derive(Debug, Default)]
pub(super) struct HeadTimer(Option<Pin<Box<Sleep>>>);

/// The side that the parser reads and writes.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    /// Read from the stream and not yet given to the parser. At most one read of the parser.
    held: Vec<u8>,
    held_from: usize,
    control: WireControl,
    write_pace: Paced,
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Stream>, limits: WireLimits) -> (Self, WireControl) {
        let state = State {
            owes: Owes::Head(HeadScan::new(limits.head)),
            head_until: Some(crate::now() + limits.head_timeout),
            serving: false,
            gave_up: None,
            reader: None,
        };
        let control = WireControl { shared: Arc::new(WireShared { limits, state: Mutex::new(state) }) };
        let wire = Wire {
            stream,
            held: Vec::new(),
            held_from: 0,
            control: control.clone(),
            write_pace: Paced::new(limits.write_pace),
        };
        (wire, control)
    }

    /// The bare stream, for a last word or another owner, and what was read from it and not given to the parser.
    pub(super) fn into_stream(mut self) -> (Box<dyn Stream>, Vec<u8>) {
        (self.stream, self.held.split_off(self.held_from))
    }

    /// Bytes from what was held back, or else from the stream.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let held = &self.held[self.held_from..];
        let given = held.len().min(buf.remaining());
        buf.put_slice(&held[..given]);
        self.held_from += given;
        if self.held_from == self.held.len() {
            (self.held, self.held_from) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes back all but the first `keep` of the bytes that were just read into `buf` after `from`.
    fn hold_back(&mut self, buf: &mut ReadBuf<'_>, from: usize, keep: usize) {
        let excess = &buf.filled()[from + keep..];
        if excess.is_empty() {
            return;
        }
        let mut held = Vec::with_capacity(excess.len() + self.held.len() - self.held_from);
        held.extend_from_slice(excess);
        held.extend_from_slice(&self.held[self.held_from..]);
        (self.held, self.held_from) = (held, 0);
        buf.set_filled(from + keep);
    }

    /// Judges what was read into `buf` after `from`, and decides how much of it the parser gets.
    fn judge(&mut self, buf: &mut ReadBuf<'_>, from: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.control.shared);
        let mut state = lock(&shared.state);
        let bytes = &buf.filled()[from..];
        let count = bytes.len();
        if count == 0 {
            return Ok(());
        }
        let keep = match &mut state.owes {
            Owes::Anything => count,
            // Nothing is read while nothing is owed.
            Owes::Nothing => 0,
            Owes::Body(left) => {
                let keep = usize::try_from(*left).unwrap_or(usize::MAX).min(count);
                *left -= keep as u64;
                if *left == 0 {
                    state.owes = Owes::Head(HeadScan::new(shared.limits.head));
                }
                keep
            }
            Owes::Head(scan) => {
                let begins = !scan.has_begun();
                match scan.push(bytes) {
                    Ok(None) => {
                        if begins && !state.serving {
                            let patience = shared.limits.head_timeout;
                            let until = crate::now() + patience;
                            state.head_until = Some(state.head_until.map_or(until, |first| first.min(until)));
                        }
                        count
                    }
                    Ok(Some(end)) => {
                        state.owes = Owes::Nothing;
                        end
                    }
                    Err(fault) => {
                        state.gave_up = Some(GaveUp::Fault(fault));
                        buf.set_filled(from);
                        // A fault behind a request that is being served must not cost that request its answer.
                        return if state.serving { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) };
                    }
                }
            }
        };
        drop(state);
        self.hold_back(buf, from, keep);
        Ok(())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let from = buf.filled().len();
        {
            let mut state = lock(&this.control.shared.state);
            if state.gave_up.is_some() && state.serving {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if state.gave_up.is_some() {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            if matches!(state.owes, Owes::Nothing) {
                return Poll::Pending;
            }
        }
        ready!(this.poll_bytes(cx, buf))?;
        if buf.filled().len() == from {
            return Poll::Ready(Ok(())); // the client is done
        }
        this.judge(buf, from)?;
        if buf.filled().len() == from {
            // Nothing for the parser, and an empty read would mean the end.
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Wire {
    /// Holds a write to the pace.
    fn paced<T>(
        &mut self,
        cx: &mut Context<'_>,
        bytes: impl FnOnce(&T) -> u64,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let slow = match &written {
            Poll::Ready(Ok(done)) => self.write_pace.moved(bytes(done)).is_err(),
            Poll::Ready(Err(_)) => false,
            Poll::Pending => self.write_pace.poll_too_slow(cx).is_ready(),
        };
        if slow {
            lock(&self.control.shared.state).gave_up = Some(GaveUp::SlowReader);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.paced(cx, |count| *count as u64, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.paced(cx, |count| *count as u64, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.paced(cx, |()| 0, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.paced(cx, |()| 0, closed)
    }
}
