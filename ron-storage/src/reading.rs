//! Reading: a stream of verified bytes that holds no worker while nobody reads it.

use std::{
    fmt,
    future::poll_fn,
    ops::{Bound, Range, RangeBounds},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use ron_core::{ContentId, Deadline};

use crate::{
    StorageError,
    handle::Inner,
    objects::{AT_ONCE_MAX, Read},
    streams::Place,
};

type Pending = Pin<Box<dyn Future<Output = Result<Bytes, StorageError>> + Send>>;

/// The bytes of an object, or of a part of it, as they are read and verified. A [`Stream`] too.
///
/// Between two pieces it holds no worker and no bytes, only its place among the streams. It loses that place, and ends with
/// `Timeout`, when all places are taken, another reader needs one, and either it has stood still for longer than
/// [`idle_timeout`](crate::Settings::idle_timeout), or its client holds more places than any other and it is the slowest of
/// them.
pub struct Reader {
    inner: Arc<Inner>,
    place: Place,
    id: ContentId,
    len: u64,
    rest: Range<u64>,
    pending: Option<Pending>,
}

impl Reader {
    pub(crate) fn new(inner: Arc<Inner>, place: Place, id: ContentId, len: u64, range: Range<u64>) -> Self {
        Reader { inner, place, id, len, rest: range, pending: None }
    }

    /// The object's name.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }

    /// The length of the whole object.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the object has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is still to come, as a part of the object.
    #[must_use]
    pub fn remaining(&self) -> Range<u64> {
        self.rest.clone()
    }

    /// The next bytes, at most [`chunk_bytes`](crate::Settings::chunk_bytes) of a large object or all of a small one; `None` at
    /// the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if they are not what was stored, [`StorageError::NotFound`] if the object was deleted
    /// meanwhile, [`StorageError::Busy`] when too many wait (ask again), [`StorageError::Timeout`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await.transpose()
    }

    /// The next piece, at most `most` bytes long. It ends at a multiple of `most`, so that the piece after it begins with a
    /// group and no group is hashed twice.
    fn piece(&self, most: u64) -> Range<u64> {
        let end = (self.rest.start + most) / most * most;
        self.rest.start..end.min(self.rest.end)
    }

    /// Reads another part of the same object next, in the same place.
    #[cfg(feature = "http")]
    pub(crate) fn go_on_with(&mut self, range: Range<u64>) {
        (self.rest, self.pending) = (range, None);
    }

    /// Whether somebody else has its place now.
    #[cfg(feature = "http")]
    pub(crate) fn has_lost_its_place(&self) -> bool {
        self.place.is_lost()
    }

    fn read_next(&self) -> Result<Next, StorageError> {
        self.place.moved("get")?;
        let settings = self.inner.settings.load();
        let share = u64::from(self.place.share(settings.stream_bytes_max, settings.chunk_bytes, 1));
        // What is a record is read and hashed whole, however little of it is wanted.
        let is_small = self.len <= u64::from(settings.small_bytes_max);
        let piece = |most| if is_small { self.rest.clone() } else { self.piece(most) };
        if let Some(bytes) = self.inner.objects.read_cached(&self.id, &piece(share.min(AT_ONCE_MAX))) {
            return Ok(Next::Read(bytes));
        }
        let read = Read { id: self.id, bytes: piece(share), proof: None };
        let (inner, deadline) = (Arc::clone(&self.inner), Deadline::after(settings.read_timeout));
        Ok(Next::Pending(Box::pin(async move { inner.gets.call("get", read, deadline).await? })))
    }
}

enum Next {
    /// It was there.
    Read(Bytes),
    Pending(Pending),
}

impl Stream for Reader {
    type Item = Result<Bytes, StorageError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            return Poll::Ready(None);
        }
        let next = match this.pending.take() {
            Some(pending) => Ok(Next::Pending(pending)),
            None => this.read_next(),
        };
        let read = match next {
            Ok(Next::Read(bytes)) => Ok(bytes),
            Ok(Next::Pending(mut pending)) => match pending.as_mut().poll(cx) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    this.pending = Some(pending);
                    return Poll::Pending;
                }
            },
            Err(error) => Err(error),
        };
        if let Ok(bytes) = &read {
            this.rest.start += bytes.len() as u64;
            this.inner.counts.read_bytes.add(bytes.len() as u64);
            // It waited for the disk and not for its reader.
            let _ = this.place.moved("get");
        }
        Poll::Ready(Some(read))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("id", &self.id).field("rest", &self.rest).finish_non_exhaustive()
    }
}

/// The bytes of an object of `len` bytes that `range` means. An end behind the object's is cut.
pub(crate) fn resolve(range: &impl RangeBounds<u64>, len: u64) -> Result<Range<u64>, StorageError> {
    let outside = StorageError::Range { len };
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1).ok_or(outside.clone())?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1).min(len),
        Bound::Excluded(end) => (*end).min(len),
        Bound::Unbounded => len,
    };
    if start > len || start > end { Err(outside) } else { Ok(start..end) }
}
