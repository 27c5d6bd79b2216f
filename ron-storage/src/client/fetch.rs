//! An object on its way here: verified as it comes, taken up again where it broke.

use std::{fmt, future::poll_fn, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, header};
use http_body_util::{BodyExt as _, Empty};
use ron_core::{Backoff, BackoffPolicy, ContentId, Deadline};

use super::{Client, ClientError, JSON_MAX, Outgoing, exchange::Answer, refused};
use crate::logic::{
    proof::{BAO, ProofReader, ProvenGroup},
    tree::TreeError,
};

/// Between attempts: short, since most breaks are a server that restarts behind a balancer, and then patient.
const PAUSES: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(5));

/// The bytes of an object, or of a part of it, verified against its name.
pub struct Fetch {
    client: Client,
    id: ContentId,
    /// The next byte to hand out.
    position: u64,
    /// Where to end; the end of the object without it.
    end: Option<u64>,
    size: Option<u64>,
    /// Handed out next: verified when the fetch began.
    first: Option<Bytes>,
    running: Option<Running>,
    is_over: bool,
    tries: u32,
    pauses: Backoff,
}

struct Running {
    answer: Answer,
    proof: ProofReader,
    arrived: BytesMut,
}

impl Fetch {
    pub(super) async fn begin(
        client: Client,
        id: ContentId,
        start: u64,
        end: Option<u64>,
        deadline: Deadline,
    ) -> Result<Self, ClientError> {
        let mut fetch = Fetch {
            client,
            id,
            position: start,
            end,
            size: None,
            first: None,
            running: None,
            is_over: end.is_some_and(|end| end <= start),
            tries: 0,
            pauses: PAUSES.with_seed(fastrand::u64(..)),
        };
        let first = deadline.limit("get", fetch.advance(Some(deadline))).await;
        fetch.first = first.map_err(|_| ClientError::Timeout { op: "get" })??;
        Ok(fetch)
    }

    /// What is fetched.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }

    /// How long the server says the whole object is. It is proven when the last byte of the object was handed out.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Where in the object the next bytes belong: where to go on, if this is as far as it goes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position - self.first.as_ref().map_or(0, |first| first.len() as u64)
    }

    /// The next bytes, at most 64 KiB; `None` at the end. Every one of them was verified. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// [`ClientError::Lied`] at the first group that is not the object's; [`ClientError::Broken`], [`ClientError::Timeout`]
    /// or [`ClientError::Busy`] when it could not be taken up again.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.advance(None).await,
        }
    }

    /// The next piece, over as many connections as it takes.
    async fn advance(&mut self, deadline: Option<Deadline>) -> Result<Option<Bytes>, ClientError> {
        while !self.is_over {
            let error = match self.step(deadline).await {
                Ok(piece) => {
                    if piece.is_some() {
                        self.tries = 0;
                        self.pauses.reset();
                    }
                    return Ok(piece);
                }
                Err(error) => error,
            };
            self.running = None;
            let again = matches!(
                error,
                ClientError::Broken { .. }
                    | ClientError::Timeout { .. }
                    | ClientError::Busy { .. }
                    | ClientError::Unreachable { .. }
            );
            // What never answered is more likely not there than away for a moment.
            let hopeless = match &error {
                ClientError::Unreachable { .. } => self.size.is_none(),
                // Longer than a server may stand still anyway: whether to wait so long is for the caller to say.
                ClientError::Busy { retry_after, .. } => *retry_after > self.client.inner.stall,
                _ => false,
            };
            if !again || hopeless || self.tries >= self.client.inner.retries {
                self.is_over = true;
                return Err(error);
            }
            self.tries += 1;
            let asked = match error {
                ClientError::Busy { retry_after, .. } => retry_after,
                _ => Duration::ZERO,
            };
            tokio::time::sleep(asked.max(self.pauses.next_delay())).await;
        }
        Ok(None)
    }

    async fn step(&mut self, deadline: Option<Deadline>) -> Result<Option<Bytes>, ClientError> {
        if self.running.is_none() {
            let stall = Deadline::after(self.client.inner.stall);
            let until = deadline.map_or(stall, |deadline| deadline.min(stall));
            self.running = Some(self.ask(until).await?);
        }
        let Some(running) = &mut self.running else { return Ok(None) };
        loop {
            let lied = |source| match source {
                TreeError::TooLarge { size, max } => ClientError::TooLarge { id: self.id, size, limit: max },
                source => ClientError::Lied { id: self.id, source },
            };
            if let Some(group) = running.proof.next(&mut running.arrived).map_err(lied)? {
                self.size = running.proof.shape().map(|shape| shape.size());
                if let Some(piece) = cut(&group, self.position, self.end) {
                    self.position += piece.len() as u64;
                    return Ok(Some(piece));
                }
                continue;
            }
            let stall = Deadline::after(self.client.inner.stall);
            let more = stall.limit("get", poll_fn(|cx| running.answer.poll_data(cx))).await;
            match more.map_err(|_| ClientError::Timeout { op: "get" })?.transpose()? {
                Some(bytes) => running.arrived.extend_from_slice(&bytes),
                None => {
                    // A proof that ends early is a connection that broke, not a lie: nothing wrong was said.
                    let ended = running.proof.finish(&running.arrived);
                    ended.map_err(|error| ClientError::Broken { source: Box::new(error) })?;
                    self.size = running.proof.shape().map(|shape| shape.size());
                    self.is_over = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Asks for what is still missing.
    async fn ask(&self, deadline: Deadline) -> Result<Running, ClientError> {
        let id = self.id;
        let max = self.client.inner.object_bytes_max;
        let (path, proof) = if self.position == 0 && self.end.is_none() {
            (format!("/o/{id}"), ProofReader::whole(id, max))
        } else {
            let last = self.end.map(|end| (end - 1).to_string()).unwrap_or_default();
            let range = self.position..self.end.unwrap_or(u64::MAX);
            let proof = ProofReader::ranges(id, std::iter::once(range), max);
            (format!("/o/{id}?bytes={}-{last}", self.position), proof)
        };
        let body = Outgoing::new(Empty::new().map_err(|never| match never {}));
        let mut request = self.client.request(Method::GET, &path, body);
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(BAO));
        let asked = deadline.limit("get", self.client.inner.ask(request, deadline)).await;
        let answer = asked.map_err(|_| ClientError::Timeout { op: "get" })??;
        if !answer.status.is_success() {
            let (status, headers) = (answer.status, answer.headers.clone());
            let body = deadline.limit("get", answer.collect(JSON_MAX)).await;
            let body = body.map_err(|_| ClientError::Timeout { op: "get" })??;
            return Err(refused(status, &headers, &body, Some(id)));
        }
        if answer.headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != BAO) {
            return Err(ClientError::Stranger { why: "it sends no proofs" });
        }
        Ok(Running { answer, proof, arrived: BytesMut::new() })
    }
}

/// The bytes of a group from `position` on and before `end`.
fn cut(group: &ProvenGroup, position: u64, end: Option<u64>) -> Option<Bytes> {
    let len = group.bytes.len();
    let at = |offset: u64| usize::try_from(offset.saturating_sub(group.offset)).unwrap_or(len).min(len);
    let range = at(position)..end.map_or(len, at);
    (!range.is_empty()).then(|| group.bytes.slice(range))
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("id", &self.id)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
