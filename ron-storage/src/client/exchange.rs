//! One request and its answer, on a connection of their own.
//!
//! The connection is driven by whoever reads its answer, so there is no task that could outlive it.

use std::{
    error::Error,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use http::{HeaderMap, Request, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use ron_core::{ContentId, Deadline};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{ClientError, Inner};
use crate::logic::tree::TreeHasher;

/// What HTTP can be spoken over.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send>>;

/// How connections are made.
pub(super) type Connect = dyn Fn(String, u16) -> Connecting + Send + Sync;

pub(super) async fn tcp(host: String, port: u16) -> io::Result<Box<dyn Connection>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a request.
pub(super) type Outgoing = UnsyncBoxBody<Bytes, BoxError>;

type Driver = http1::Connection<TokioIo<Box<dyn Connection>>, Outgoing>;

impl Inner {
    /// Sends `request` and waits for the head of the answer.
    pub(super) async fn ask(
        &self,
        request: Request<Outgoing>,
        deadline: Deadline,
    ) -> Result<Answer, ClientError> {
        let connecting = (self.connect)(self.host.clone(), self.port);
        let connected = deadline
            .limit("connect", connecting)
            .await
            .map_err(|_| ClientError::Timeout { op: "connect" })?;
        let stream = connected
            .map_err(|source| ClientError::Unreachable { server: self.authority.clone(), source })?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut driver = Some(driver);
        let mut asked = pin!(sender.send_request(request));
        let response = poll_fn(|cx| {
            loop {
                if let Poll::Ready(response) = asked.as_mut().poll(cx) {
                    return Poll::Ready(response);
                }
                if poll_driver(&mut driver, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        });
        let response = response.await.map_err(broken)?;
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body, driver })
    }
}

fn broken(error: hyper::Error) -> ClientError {
    ClientError::Broken { source: Box::new(error) }
}

/// Lets the connection go on. Ready once, when it is over; what was wrong with it is told by who waits for its answer.
fn poll_driver(driver: &mut Option<Driver>, cx: &mut Context<'_>) -> Poll<()> {
    match driver {
        Some(connection) => {
            let _ = ready!(Pin::new(connection).poll(cx));
            *driver = None;
            Poll::Ready(())
        }
        None => Poll::Pending,
    }
}

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    driver: Option<Driver>,
}

impl Answer {
    /// The next bytes of the body.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ClientError>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(broken(error)))),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Pending => ready!(poll_driver(&mut self.driver, cx)),
            }
        }
    }

    /// The whole body, of at most `max` bytes.
    pub(super) async fn collect(mut self, max: usize) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(bytes) = poll_fn(|cx| self.poll_data(cx)).await.transpose()? {
            if whole.len() + bytes.len() > max {
                return Err(ClientError::Stranger { why: "its answer is too long" });
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }
}

/// What became of an upload, known when it is over.
#[derive(Debug, Default)]
pub(super) struct Sent {
    name: OnceLock<ContentId>,
    failed: OnceLock<String>,
}

impl Sent {
    /// The name of what was sent, if all of it was.
    pub(super) fn name(&self) -> Option<ContentId> {
        self.name.get().copied()
    }

    /// Why the source ended early.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.get().cloned()
    }
}

/// A stream as the body of a request, named on its way.
pub(super) struct Uploading<S> {
    source: Pin<Box<S>>,
    hasher: Option<TreeHasher>,
    len: Option<u64>,
    /// What came and reaches the length, until it is seen that nothing comes behind it: with a known length nobody asks for
    /// more after the last byte.
    last: Option<Bytes>,
    sent: Arc<Sent>,
}

impl<S> Uploading<S> {
    pub(super) fn new(source: S, len: Option<u64>) -> (Self, Arc<Sent>) {
        let sent = Arc::new(Sent::default());
        let upload = Uploading {
            source: Box::pin(source),
            hasher: Some(TreeHasher::new()),
            len,
            last: None,
            sent: Arc::clone(&sent),
        };
        (upload, sent)
    }

    fn end(&mut self) {
        if let Some(hasher) = self.hasher.take() {
            let _ = self.sent.name.set(hasher.finish().id);
        }
    }

    /// Ends the request without its end, so that the server keeps nothing of it.
    fn fail(&mut self, error: BoxError) -> BoxError {
        let _ = self.sent.failed.set(error.to_string());
        self.hasher = None;
        error
    }
}

impl<S, E> Uploading<S>
where
    S: Stream<Item = Result<Bytes, E>> + Send,
    E: Into<BoxError>,
{
    /// Sees that a source that was announced as empty is. Nobody asks an empty body for its bytes.
    pub(super) async fn see_empty(&mut self) {
        // What came instead is told by what became of the upload.
        let _ = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await;
    }
}

impl<S, E> Body for Uploading<S>
where
    S: Stream<Item = Result<Bytes, E>> + Send,
    E: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            let Some(hasher) = &mut this.hasher else { return Poll::Ready(None) };
            match ready!(this.source.as_mut().poll_next(cx)) {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    let end = hasher.size() + bytes.len() as u64;
                    if let Some(len) = this.len.filter(|len| end > *len) {
                        let error = format!("it gave at least {end} bytes where {len} were announced");
                        return Poll::Ready(Some(Err(this.fail(error.into()))));
                    }
                    hasher.update(&bytes);
                    hasher.take_nodes();
                    if this.len == Some(end) {
                        this.last = Some(bytes);
                        continue;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Err(error)) => {
                    let error = this.fail(error.into());
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    let given = hasher.size();
                    if let Some(len) = this.len.filter(|len| given < *len) {
                        let error = format!("it ended after {given} of {len} bytes");
                        return Poll::Ready(Some(Err(this.fail(error.into()))));
                    }
                    this.end();
                    return Poll::Ready(this.last.take().map(|bytes| Ok(Frame::data(bytes))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.hasher.is_none() || self.len == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.last.as_ref().map_or(0, |last| last.len() as u64);
        match (self.len, &self.hasher) {
            (Some(len), Some(hasher)) => SizeHint::with_exact(len.saturating_sub(hasher.size()) + held),
            (Some(_), None) => SizeHint::with_exact(0),
            (None, _) => SizeHint::default(),
        }
    }
}
