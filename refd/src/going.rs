//! An answer that goes on: a state, and what makes the next piece of it.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::Bytes;
use futures_core::Stream;

type Turn<S> = Pin<Box<dyn Future<Output = Option<(Bytes, S)>> + Send>>;

/// Pieces, one after the other, until there is none. Dropping it ends it.
pub(crate) struct Going<S> {
    turn: Option<Turn<S>>,
    next: Box<dyn Fn(S) -> Turn<S> + Send>,
}

impl<S> Going<S> {
    pub(crate) fn new<F>(state: S, next: impl Fn(S) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<(Bytes, S)>> + Send + 'static,
    {
        let next = Box::new(move |state| Box::pin(next(state)) as Turn<S>);
        Going { turn: Some(next(state)), next }
    }
}

impl<S> Stream for Going<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(turn) = &mut self.turn else { return Poll::Ready(None) };
        let made = ready!(turn.as_mut().poll(cx));
        self.turn = None;
        Poll::Ready(made.map(|(bytes, state)| {
            self.turn = Some((self.next)(state));
            Ok(bytes)
        }))
    }
}
