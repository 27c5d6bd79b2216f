//! A body that is produced piece by piece, by a function from a state to the next piece and the next state.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::Bytes;
use futures_core::Stream;

type Turn<S> = Pin<Box<dyn Future<Output = Option<(Bytes, S)>> + Send>>;

/// The pieces, one after the other, until there is none. Dropping it ends the work.
pub(crate) struct Unfold<S> {
    turn: Option<Turn<S>>,
    next: Box<dyn Fn(S) -> Turn<S> + Send>,
}

impl<S> Unfold<S> {
    pub(crate) fn new<F>(state: S, next: impl Fn(S) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<(Bytes, S)>> + Send + 'static,
    {
        let next = Box::new(move |state| Box::pin(next(state)) as Turn<S>);
        Unfold { turn: Some(next(state)), next }
    }
}

impl<S> Stream for Unfold<S> {
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
