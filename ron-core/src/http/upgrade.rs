//! Connections that go on as something else after an answer of 101: WebSockets, for example.
//!
//! Whoever takes a connection over runs in the task that served it, on its seat and with its places, so it is counted,
//! bounded and ended like any other. The limits on heads and bodies are no longer there: the new owner has its own.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use axum::body::Bytes;

use super::{Stream, guard::Held};
use crate::Stop;

type Owner = Box<dyn FnOnce(Upgraded) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Put into the extensions of an answer of 101: who has the connection from then on.
#[derive(Clone)]
pub struct Upgrade {
    owner: Arc<Mutex<Option<Owner>>>,
}

impl Upgrade {
    /// `owner` has the connection once the answer is written.
    pub fn to<F>(owner: impl FnOnce(Upgraded) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let owner: Owner = Box::new(move |upgraded| Box::pin(owner(upgraded)));
        Upgrade { owner: Arc::new(Mutex::new(Some(owner))) }
    }

    pub(super) fn take(&self) -> Option<Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upgrade")
    }
}

/// A connection that was taken over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Upgraded {
    /// What is left of it: bytes both ways.
    pub stream: Box<dyn Stream>,
    /// Bytes that came right behind the request.
    pub early: Bytes,
    /// Asked when the server is; the owner then has what is left of the drain.
    pub stop: Stop,
}

/// The new owner of a connection, and the places of the request that made it so.
type Successor = (Upgrade, Option<Held>);

/// Where a request leaves the new owner of its connection.
#[derive(Clone, Default)]
pub(super) struct Handover(Arc<Mutex<Option<Successor>>>);

impl Handover {
    pub(super) fn leave(&self, upgrade: Upgrade, held: Option<Held>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, held));
    }

    pub(super) fn take(&self) -> Option<Successor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
