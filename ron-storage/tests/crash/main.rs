//! What survives: a crash at every call to the disk, flipped bits, a full disk.
//!
//! Planting bugs is global to the process, so everything that plants is in this one and takes turns.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

#[path = "../shared/alone.rs"]
mod alone;
mod enumerate;
mod flips;
mod kill;
mod slow;

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;

/// A stream of pieces.
struct Pieces(VecDeque<Bytes>);

impl Pieces {
    fn cut(content: &Bytes, piece: usize) -> Self {
        let at = (0..content.len()).step_by(piece);
        Pieces(at.map(|at| content.slice(at..content.len().min(at + piece))).collect())
    }
}

impl futures_core::Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}
