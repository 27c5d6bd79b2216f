//! A request's body on its way in: counted, paced, and cut where it breaks its limits.
//!
//! The limit is not fixed when the body is made: the route is not known then. It lies in the request's [`Scope`],
//! where the route's guard puts its own, and is read at every step.

use std::{
    error::Error,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes},
    extract::{MatchedPath, Request},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::{
    CorrId, Problem, Settings, causes,
    guard::{Held, Place},
    inflate::{Inflate, InflateError},
    pace::{PaceLimit, Paced},
};

/// Why a body ended before its end. It is the source of the error that a handler gets from reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It came too slowly.
    #[error("the body came too slowly")]
    Slow,
    /// It is larger than the route takes.
    #[error("the body is too large")]
    TooLarge,
    /// It is compressed more than an honest body is.
    #[error("the body is compressed more than ten to one")]
    TooDense,
    /// It is said to be compressed and is not.
    #[error("the body is not valid gzip")]
    NotGzip,
    /// The connection broke.
    #[error("the connection broke")]
    Broken,
}

impl BodyError {
    const ALL: [BodyError; 5] =
        [BodyError::Slow, BodyError::TooLarge, BodyError::TooDense, BodyError::NotGzip, BodyError::Broken];

    pub(super) fn problem(self) -> Problem {
        match self {
            BodyError::Slow => Problem::slow_body(),
            BodyError::TooLarge => Problem::body_too_large(),
            BodyError::TooDense => Problem::body_too_large().detail(self.to_string()),
            BodyError::NotGzip => Problem::malformed("the body is not valid gzip"),
            BodyError::Broken => Problem::malformed("the body is incomplete"),
        }
    }

    /// The reason inside whatever wrapped it.
    fn find(error: &(dyn Error + 'static)) -> Self {
        causes(error)
            .find_map(|error| match error.downcast_ref::<BodyError>() {
                Some(reason) => Some(*reason),
                None => error.is::<LengthLimitError>().then_some(BodyError::TooLarge),
            })
            .unwrap_or(BodyError::Broken)
    }
}

impl From<InflateError> for BodyError {
    fn from(error: InflateError) -> Self {
        match error {
            InflateError::TooLarge => BodyError::TooLarge,
            InflateError::TooDense => BodyError::TooDense,
            InflateError::Malformed => BodyError::NotGzip,
        }
    }
}

/// What the server and the guard of a route tell each other about one request.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) corr: CorrId,
    /// The template of the route, if it has a guard.
    route: OnceLock<MatchedPath>,
    /// Places that guards gave the request, once its answer is there.
    places: Mutex<Option<Held>>,
    body_max: AtomicU64,
    /// Whether the route keeps time itself.
    own_deadline: AtomicBool,
    /// One more than the place in [`BodyError::ALL`], or zero.
    cut: AtomicU8,
}

impl Scope {
    pub(super) fn new(corr: CorrId, settings: &Settings) -> Self {
        Scope {
            corr,
            route: OnceLock::new(),
            places: Mutex::new(None),
            body_max: AtomicU64::new(settings.body_bytes_max),
            own_deadline: AtomicBool::new(false),
            cut: AtomicU8::new(0),
        }
    }

    /// Tells which route it is, for the metrics. The first one to tell is right: it is the outermost.
    pub(super) fn note_route(&self, template: &MatchedPath) {
        if self.route.get().is_none() {
            let _ = self.route.set(template.clone());
        }
    }

    pub(super) fn route(&self) -> Option<&MatchedPath> {
        self.route.get()
    }

    /// Keeps `place` until the answer is written.
    pub(super) fn hold(&self, place: Place) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().push(place);
    }

    pub(super) fn take_places(&self) -> Option<Held> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn limit_body(&self, bytes: u64) {
        self.body_max.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn take_over_deadline(&self) {
        self.own_deadline.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_own_deadline(&self) -> bool {
        self.own_deadline.load(Ordering::Relaxed)
    }

    /// Why the body was cut, if it was.
    pub(super) fn cut(&self) -> Option<BodyError> {
        let place = usize::from(self.cut.load(Ordering::Relaxed)).checked_sub(1)?;
        BodyError::ALL.get(place).copied()
    }

    fn note(&self, error: BodyError) -> BodyError {
        let place = BodyError::ALL.iter().position(|other| *other == error).unwrap_or(0);
        let place = u8::try_from(place + 1).unwrap_or(1);
        let _ = self.cut.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed);
        error
    }
}

/// The body as it comes from the connection.
pub(super) struct Arriving<B> {
    inner: B,
    scope: Arc<Scope>,
    pace: Paced,
    seen: u64,
    ended: bool,
}

impl<B> Arriving<B> {
    pub(super) fn new(inner: B, scope: Arc<Scope>, pace: PaceLimit) -> Self {
        Arriving { inner, scope, pace: Paced::new(pace), seen: 0, ended: false }
    }

    fn cut(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.ended = true;
        Poll::Ready(Some(Err(self.scope.note(error))))
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Arriving<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let max = this.scope.body_max.load(Ordering::Relaxed);
        // What announces that it is too large is not read at all.
        if this.seen.saturating_add(this.inner.size_hint().lower()) > max {
            return this.cut(BodyError::TooLarge);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            ready!(this.pace.poll_too_slow(cx));
            return this.cut(BodyError::Slow);
        };
        match frame {
            None => {
                this.ended = true;
                Poll::Ready(None)
            }
            Some(Err(_)) => this.cut(BodyError::Broken),
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.seen += bytes;
                if this.seen > max {
                    return this.cut(BodyError::TooLarge);
                }
                if this.pace.moved(bytes).is_err() {
                    return this.cut(BodyError::Slow);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A gzip body, decoded.
pub(super) struct Plain {
    inner: Body,
    inflate: Inflate,
    scope: Option<Arc<Scope>>,
    ended: bool,
}

impl Plain {
    pub(super) fn new(inner: Body, plain_max: u64, scope: Option<Arc<Scope>>) -> Self {
        Plain { inner, inflate: Inflate::gzip(plain_max), scope, ended: false }
    }
}

impl HttpBody for Plain {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        while !this.ended {
            let decoded = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.inflate.push(&data).map_err(BodyError::from),
                    Err(_trailers) => continue,
                },
                Some(Err(error)) => Err(BodyError::find(&error)),
                None => {
                    this.ended = true;
                    this.inflate.finish().map_err(BodyError::from)
                }
            };
            match decoded {
                Ok(plain) if plain.is_empty() => {}
                Ok(plain) => return Poll::Ready(Some(Ok(Frame::data(plain)))),
                Err(error) => {
                    this.ended = true;
                    if let Some(scope) = &this.scope {
                        scope.note(error);
                    }
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// The whole body of `request`, within the limit of its route.
///
/// # Errors
/// The [`Problem`] to answer with. Dropping the future gives the rest of the body up.
pub async fn collect(request: Request) -> Result<Bytes, Problem> {
    let scope = request.extensions().get::<Arc<Scope>>();
    let max =
        scope.map_or(Settings::default().body_bytes_max, |scope| scope.body_max.load(Ordering::Relaxed));
    let limited = Limited::new(request.into_body(), usize::try_from(max).unwrap_or(usize::MAX));
    match limited.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(BodyError::find(&*error).problem()),
    }
}
