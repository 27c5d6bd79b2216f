//! Reading with proof: the bytes of an object in a form that whoever gets them can verify.

use std::{
    fmt,
    future::poll_fn,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{ContentId, Deadline};

use crate::{
    StorageError,
    handle::Inner,
    logic::{
        proof::{GroupSet, proof_header},
        tree::{GROUP, Shape},
    },
    objects::Read,
    streams::Place,
};

type Pending = Pin<Box<dyn Future<Output = Result<Bytes, StorageError>> + Send>>;

/// A proof of some groups of an object, as they are read and verified. A [`Stream`] too. What it is made of is in
/// `docs/formats.md`.
///
/// Like a [`Reader`](crate::Reader), it holds no worker between two pieces, only its place.
pub struct Proof {
    inner: Arc<Inner>,
    place: Place,
    id: ContentId,
    shape: Shape,
    wanted: Arc<GroupSet>,
    header: Option<[u8; 8]>,
    /// Which of the wanted ranges is next, and how many of its groups are read.
    next: (usize, u64),
    pending: Option<(u64, Pending)>,
}

impl Proof {
    pub(crate) fn new(
        inner: Arc<Inner>,
        place: Place,
        id: ContentId,
        shape: Shape,
        wanted: GroupSet,
    ) -> Self {
        let header = Some(proof_header(shape));
        Proof { inner, place, id, shape, wanted: Arc::new(wanted), header, next: (0, 0), pending: None }
    }

    /// The object's name.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }

    /// The length of the object.
    #[must_use]
    pub fn object_len(&self) -> u64 {
        self.shape.size()
    }

    /// The length of the whole proof.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.wanted.proof_len(self.shape)
    }

    /// Never: a proof says at least how long the object is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The next piece of the proof; `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Reader::next`](crate::Reader::next).
    pub async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await.transpose()
    }

    /// Whether all of it was handed out.
    #[cfg(feature = "net")]
    pub(crate) fn is_over(&self) -> bool {
        self.rest().is_none()
    }

    /// The groups still to be read of the range that is next.
    fn rest(&self) -> Option<Range<u64>> {
        let range = self.wanted.ranges().get(self.next.0)?;
        Some(range.start + self.next.1..range.end)
    }

    fn read_next(&self, rest: &Range<u64>) -> Result<(u64, Pending), StorageError> {
        self.place.moved("get")?;
        let settings = self.inner.settings.load();
        let share = u64::from(self.place.share(settings.stream_bytes_max, settings.chunk_bytes, 1));
        let groups = rest.start..rest.end.min(rest.start + (share / GROUP).max(1));
        let bytes = self.shape.group(groups.start).start..self.shape.group(groups.end - 1).end;
        // One group is proven by its name alone.
        if self.shape.groups() == 1 {
            if let Some(bytes) = self.inner.objects.read_cached(&self.id, &bytes) {
                return Ok((1, Box::pin(std::future::ready(Ok(bytes)))));
            }
        }
        let read = Read { id: self.id, bytes, proof: Some(Arc::clone(&self.wanted)) };
        let (inner, deadline) = (Arc::clone(&self.inner), Deadline::after(settings.read_timeout));
        let pending = Box::pin(async move { inner.gets.call("get", read, deadline).await? });
        Ok((groups.end - groups.start, pending))
    }
}

impl Stream for Proof {
    type Item = Result<Bytes, StorageError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(rest) = this.rest() else { return Poll::Ready(None) };
        let (groups, pending) = match &mut this.pending {
            Some(pending) => pending,
            None => match this.read_next(&rest) {
                Ok(pending) => this.pending.insert(pending),
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
        };
        let Poll::Ready(read) = pending.as_mut().poll(cx) else { return Poll::Pending };
        let groups = *groups;
        this.pending = None;
        let read = read.map(|piece| {
            let whole = groups == rest.end - rest.start;
            this.next = if whole { (this.next.0 + 1, 0) } else { (this.next.0, this.next.1 + groups) };
            this.inner.counts.read_bytes.add(piece.len() as u64);
            // It waited for the disk and not for its reader.
            let _ = this.place.moved("get");
            match this.header.take() {
                Some(header) => {
                    let mut first = BytesMut::with_capacity(header.len() + piece.len());
                    first.extend_from_slice(&header);
                    first.extend_from_slice(&piece);
                    first.freeze()
                }
                None => piece,
            }
        });
        Poll::Ready(Some(read))
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("id", &self.id).field("rest", &self.rest()).finish_non_exhaustive()
    }
}
