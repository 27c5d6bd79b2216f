//! The caller's end of an exchange: pieces of the answer as they come, and the way to give up.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};

use super::{Control, Method, RpcError, shared::Shared};
use crate::sync::{Mutex, lock};

/// Where the reader of the link puts what comes back, and one caller takes it.
pub(super) struct Slot {
    state: Mutex<SlotState>,
}

struct SlotState {
    chunks: VecDeque<Bytes>,
    end: Option<Result<Bytes, RpcError>>,
    /// Chunks that may still come.
    credit: u32,
    waker: Option<Waker>,
    /// Nobody reads any more, or the end was told: what comes is dropped.
    closed: bool,
}

/// A piece of an answer.
pub(super) enum Piece {
    Chunk(Bytes),
    Last(Result<Bytes, RpcError>),
}

impl Slot {
    pub(super) fn new(credit: u32) -> Self {
        let chunks = VecDeque::new();
        Slot { state: Mutex::new(SlotState { chunks, end: None, credit, waker: None, closed: false }) }
    }

    /// Puts a chunk. Tells whether the peer had the credit for it.
    pub(super) fn put(&self, chunk: Bytes) -> bool {
        let mut state = lock(&self.state);
        let Some(credit) = state.credit.checked_sub(1) else { return false };
        state.credit = credit;
        let waker = if state.closed {
            None
        } else {
            state.chunks.push_back(chunk);
            state.waker.take()
        };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// The answer is over. The first end counts.
    pub(super) fn end(&self, end: Result<Bytes, RpcError>) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        (state.closed, state.end) = (true, Some(end));
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Piece> {
        let mut state = lock(&self.state);
        if let Some(chunk) = state.chunks.pop_front() {
            return Poll::Ready(Piece::Chunk(chunk));
        }
        match state.end.take() {
            Some(end) => Poll::Ready(Piece::Last(end)),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    fn grant(&self, chunks: u32) {
        let mut state = lock(&self.state);
        state.credit = state.credit.saturating_add(chunks);
    }

    fn abandon(&self) {
        let chunks = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.waker = None;
            std::mem::take(&mut state.chunks)
        };
        drop(chunks);
    }
}

/// An answer that comes in pieces of at most 64 KiB. Dropping it before its end cancels the call at the callee.
pub struct Chunks {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Arc<Slot>,
    pub(super) corr: u64,
    pub(super) method: Method,
    /// Chunks that may be on their way at once.
    pub(super) window: u32,
    /// Chunks taken since the last grant.
    pub(super) taken: u32,
    pub(super) end: Option<Result<(), RpcError>>,
}

impl Chunks {
    /// The next piece, `None` after the last. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The [`RpcError`] that ended the answer; it is final, and what came before it is all there will be.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RpcError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next), for whoever polls.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RpcError>> {
        if let Some(end) = &self.end {
            return Poll::Ready(end.clone().map(|()| None));
        }
        // Its deadline is kept by the session, which ends it when the time is spent.
        Poll::Ready(match ready!(self.slot.poll(cx)) {
            Piece::Chunk(chunk) => {
                self.took_one();
                Ok(Some(chunk))
            }
            Piece::Last(end) => {
                self.end = Some(end.as_ref().map(drop).map_err(Clone::clone));
                end.map(|last| Some(last).filter(|last| !last.is_empty()))
            }
        })
    }

    /// The whole rest in one piece.
    ///
    /// # Errors
    /// As [`next`](Self::next), and [`RpcError::TooLarge`] beyond `bytes_max`.
    pub async fn gather(mut self, bytes_max: usize) -> Result<Bytes, RpcError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        if self.end.is_some() && first.len() <= bytes_max {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        while whole.len() <= bytes_max {
            match self.next().await? {
                Some(chunk) => whole.extend_from_slice(&chunk),
                None => return Ok(whole.freeze()),
            }
        }
        Err(RpcError::TooLarge { what: "answer", bytes: whole.len() as u64, max: bytes_max as u64 })
    }

    /// Room for more is told in halves of the window, so that the peer neither waits nor hears of every chunk.
    fn took_one(&mut self) {
        self.taken += 1;
        if self.taken * 2 >= self.window {
            let chunks = std::mem::take(&mut self.taken);
            self.slot.grant(chunks);
            self.shared.control(self.corr, Control::Credit { corr: self.corr, chunks });
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.slot.abandon();
            self.shared.cancel(self.corr);
        }
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({} {})", self.method.name, self.corr)
    }
}
