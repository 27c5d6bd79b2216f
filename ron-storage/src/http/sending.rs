//! Objects on their way out: read piece by piece as the socket takes them, and verified before they leave.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future as _, poll_fn},
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Bytes;
use futures_core::Stream;
use http_body::{Frame, SizeHint};
use ron_core::{ContentId, Deadline};
use tokio::time::Sleep;

use crate::{Proof, Reader, StorageError, Store};

/// How often a piece is asked for again when the store was too busy for it or lost the worker that had it. The client has
/// waited for this answer to begin; a little patience is better than cutting it off.
const TRIES: u32 = 8;

/// Between them, if the store does not say.
const PAUSE: Duration = Duration::from_millis(50);

/// What a new reader may take to begin in the middle of an answer.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Part {
    /// These bytes.
    Bytes(Bytes),
    /// This range of the object.
    Object(Range<u64>),
}

impl Part {
    pub(super) fn len(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Object(range) => range.end - range.start,
        }
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Reader, StorageError>> + Send>>;

enum Now {
    /// The next part is to be begun.
    Between,
    Opening(Range<u64>, Opening),
    Reading(Reader),
    Proving(Proof),
    Over,
}

/// The body of an answer. It holds a place in the store for as long as it is read; dropping it gives that back.
pub(super) struct Sending {
    source: Option<(Store, ContentId)>,
    parts: VecDeque<Part>,
    now: Now,
    /// Read already, to see that it is right, with what comes before it.
    first: VecDeque<Bytes>,
    /// What read the last range, and reads the next in the same place.
    resting: Option<Reader>,
    left: u64,
    tries: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Sending {
    /// These parts of the object `id`.
    pub(super) fn parts(store: Store, id: ContentId, parts: Vec<Part>) -> Self {
        let left = parts.iter().map(Part::len).sum();
        Sending { source: Some((store, id)), parts: parts.into(), left, ..Sending::empty() }
    }

    /// A proof.
    pub(super) fn proof(proof: Proof) -> Self {
        Sending { left: proof.len(), now: Now::Proving(proof), ..Sending::empty() }
    }

    fn empty() -> Self {
        Sending {
            source: None,
            parts: VecDeque::new(),
            now: Now::Between,
            first: VecDeque::new(),
            resting: None,
            left: 0,
            tries: 0,
            pause: None,
        }
    }

    /// Reads the first piece of the object.
    pub(super) async fn begin(&mut self, until: Deadline) -> Result<(), StorageError> {
        // The text before a range says nothing about the object.
        while let Some(Part::Bytes(bytes)) = self.parts.front() {
            self.first.push_back(bytes.clone());
            self.parts.pop_front();
        }
        let first = until.limit("get", poll_fn(|cx| self.poll_piece(cx))).await?.transpose()?;
        self.first.extend(first);
        Ok(())
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StorageError>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let piece = match &mut self.now {
                Now::Over => return Poll::Ready(None),
                Now::Between => match self.parts.pop_front() {
                    None => {
                        (self.now, self.resting) = (Now::Over, None);
                        continue;
                    }
                    Some(Part::Bytes(bytes)) => return Poll::Ready(Some(Ok(bytes))),
                    Some(Part::Object(range)) => {
                        self.open(range);
                        continue;
                    }
                },
                Now::Opening(range, opening) => match ready!(opening.as_mut().poll(cx)) {
                    Ok(reader) => {
                        self.now = Now::Reading(reader);
                        continue;
                    }
                    Err(error) => {
                        let range = range.clone();
                        if self.may_try_again(&error) {
                            self.open(range);
                            continue;
                        }
                        Some(Err(error))
                    }
                },
                Now::Reading(reader) => ready!(Pin::new(reader).poll_next(cx)),
                Now::Proving(proof) => ready!(Pin::new(proof).poll_next(cx)),
            };
            match piece {
                Some(Ok(bytes)) => {
                    self.tries = 0;
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Some(Err(error)) if self.may_try_again(&error) => {}
                Some(Err(StorageError::Timeout { .. })) if self.asks_again_for_a_place() => {}
                Some(Err(error)) => {
                    self.now = Now::Over;
                    self.parts.clear();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    // Its place is for the whole answer.
                    if let Now::Reading(reader) = std::mem::replace(&mut self.now, Now::Between) {
                        self.resting = Some(reader);
                    }
                }
            }
        }
    }

    fn open(&mut self, range: Range<u64>) {
        if let Some(mut reader) = self.resting.take() {
            reader.go_on_with(range);
            return self.now = Now::Reading(reader);
        }
        let Some((store, id)) = self.source.clone() else { return self.now = Now::Over };
        let part = range.clone();
        let opening = Box::pin(async move { store.get(id, part, Deadline::after(OPEN_MAX)).await });
        self.now = Now::Opening(range, opening);
    }

    /// If somebody else got the place, asks for another one to go on with.
    fn asks_again_for_a_place(&mut self) -> bool {
        let rest = match &self.now {
            Now::Reading(reader) if reader.has_lost_its_place() => reader.remaining(),
            _ => return false,
        };
        let again = self.try_again_after(PAUSE);
        if again {
            self.open(rest);
        }
        again
    }

    /// Whether to ask again, after a pause that it sets.
    fn may_try_again(&mut self, error: &StorageError) -> bool {
        let again = matches!(error, StorageError::Busy { .. } | StorageError::Panicked { .. });
        again && self.try_again_after(error.retry_after().unwrap_or(PAUSE).max(PAUSE / 10))
    }

    fn try_again_after(&mut self, pause: Duration) -> bool {
        if self.tries == TRIES {
            return false;
        }
        self.tries += 1;
        self.pause = Some(Box::pin(tokio::time::sleep(pause * self.tries)));
        true
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = StorageError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StorageError>>> {
        let piece = match self.first.pop_front() {
            Some(first) => Some(Ok(first)),
            None => ready!(self.poll_piece(cx)),
        };
        match piece {
            Some(Ok(bytes)) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                // Given back as soon as the last byte is read, not when it is written.
                if self.left == 0 {
                    (self.now, self.resting) = (Now::Over, None);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "an answer is cut off");
                Poll::Ready(Some(Err(error)))
            }
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.first.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("left", &self.left).finish_non_exhaustive()
    }
}
