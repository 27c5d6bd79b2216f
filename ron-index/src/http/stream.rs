//! Providers as lines, each sent as soon as somebody is found.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http::{HeaderMap, HeaderValue, header};
use http_body::Frame;

use super::answer::STALE;
use crate::{Found, IndexError, source::Provider};

type Next = Pin<Box<dyn Future<Output = (Found, Option<Bytes>)> + Send>>;

/// An answer whose first line is there: what fails before anybody was found is an error and not an empty answer.
pub(super) async fn lines(
    mut found: Found,
    write: impl Fn(&Provider, &'static str) -> Bytes + Clone + Send + Sync + 'static,
) -> Result<Response, IndexError> {
    let first = found.next().await?.map(|(provider, source)| write(&provider, source));
    let head = headers(&found);
    let mut response = Response::new(Body::new(Lines::new(found, first, write)));
    response.headers_mut().extend(head);
    Ok(response)
}

/// The same with some left out, and with how long it is good for others if that is known.
pub(super) async fn chosen_lines(
    mut found: Found,
    write: impl Fn(&Provider) -> Option<Bytes> + Clone + Send + Sync + 'static,
) -> Result<(Response, Option<Duration>), IndexError> {
    let mut first = None;
    while first.is_none() {
        match found.next().await? {
            Some((provider, _)) => first = write(&provider),
            None => break,
        }
    }
    let (head, ttl) = (headers(&found), found.age().map(|(_, ttl)| ttl).filter(|_| first.is_some()));
    let lines = Lines::choosing(found, first, move |provider: &Provider, _: &'static str| write(provider));
    let mut response = Response::new(Body::new(lines));
    response.headers_mut().extend(head);
    Ok((response, ttl))
}

/// How old it is, and whether it is stale, as far as that is known when the first line is there.
fn headers(found: &Found) -> HeaderMap {
    let age = found.age().map(|(age, _)| (header::AGE, HeaderValue::from(age.as_secs())));
    let stale = found.stale().map(|stale| (STALE, HeaderValue::from_static(stale.name())));
    age.into_iter().chain(stale).collect()
}

struct Lines {
    /// The line that was there before the head was sent.
    first: Option<Bytes>,
    next: Option<Next>,
    advance: Box<dyn Fn(Found) -> Next + Send + Sync>,
}

impl Lines {
    fn new(
        found: Found,
        first: Option<Bytes>,
        write: impl Fn(&Provider, &'static str) -> Bytes + Clone + Send + Sync + 'static,
    ) -> Self {
        Lines::choosing(found, first, move |provider: &Provider, source: &'static str| {
            Some(write(provider, source))
        })
    }

    fn choosing(
        found: Found,
        first: Option<Bytes>,
        write: impl Fn(&Provider, &'static str) -> Option<Bytes> + Clone + Send + Sync + 'static,
    ) -> Self {
        let advance = move |mut found: Found| -> Next {
            let write = write.clone();
            Box::pin(async move {
                loop {
                    // An error after the first line ends the answer: what was told is true, and there was no more.
                    let Ok(Some((provider, source))) = found.next().await else { return (found, None) };
                    if let Some(line) = write(&provider, source) {
                        return (found, Some(line));
                    }
                }
            })
        };
        let next = first.is_some().then(|| advance(found));
        Lines { first, next, advance: Box::new(advance) }
    }
}

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(line) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(line))));
        }
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let Poll::Ready((found, line)) = next.as_mut().poll(cx) else { return Poll::Pending };
        let Some(line) = line else {
            self.next = None;
            return Poll::Ready(None);
        };
        let advanced = (self.advance)(found);
        self.next = Some(advanced);
        Poll::Ready(Some(Ok(Frame::data(line))))
    }
}
