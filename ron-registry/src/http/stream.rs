//! What is committed, as server-sent events whose id is the version.
//!
//! One event is made when the connection has room for it and not before, so a slow reader holds one event and what was
//! read ahead for it; the server cuts off who takes nothing.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame;
use ron_core::{
    Stop,
    http::{Problem, Query},
};
use tokio::time::sleep;

use super::asking::numbers;
use crate::{Registry, RegistryError, Updates, json::UpdateBody, store::BoxFuture};

/// How long a stream may be silent: proxies close what is, and a client that went away shows only when it is written to.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);

/// How long after a failure of the store it is read again.
const PAUSE: Duration = Duration::from_secs(1);

/// What a subscriber gets next.
#[derive(Debug)]
pub(super) enum Next {
    Update(UpdateBody),
    /// What it wanted is gone; it goes on from here.
    Pruned(u64),
    /// The log ends here, and what it wants is beyond the next entry.
    Ahead(u64),
    Silence,
    End,
}

/// Updates for one client, until it leaves, or the registry or the server stops.
#[derive(Debug)]
pub(super) struct Subscription {
    updates: Updates,
    /// That what it wanted is gone or not there yet: to be told first.
    first: Option<Next>,
    stop: Option<Stop>,
}

impl Subscription {
    /// From `from` on, or from the next commit.
    pub(super) fn new(registry: &Registry, from: Option<u64>, stop: Option<Stop>) -> Self {
        let (next, kept) = (registry.head().version + 1, registry.first());
        let from = from.unwrap_or(next).max(1);
        // What was pruned may still be on the disk; no other route gives it, and neither does this.
        let first = if from > next {
            Some(Next::Ahead(next - 1))
        } else {
            (from < kept).then_some(Next::Pruned(kept))
        };
        Subscription { updates: registry.updates(from.max(kept)), first, stop }
    }

    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Next {
        if let Some(first) = self.first.take() {
            return first;
        }
        let stopped = async {
            match &self.stop {
                Some(stop) => stop.requested().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopped => Next::End,
            update = next_update(&mut self.updates) => update,
            () = sleep(HEARTBEAT) => Next::Silence,
        }
    }
}

async fn next_update(updates: &mut Updates) -> Next {
    loop {
        match updates.next().await {
            Ok(None) => return Next::End,
            Ok(Some(update)) => return Next::Update(UpdateBody::from(&update)),
            Err(RegistryError::Lagging { first }) => {
                updates.skip_to(first);
                return Next::Pruned(first);
            }
            Err(error) => {
                tracing::debug!(%error, "a subscriber waits for the store");
                sleep(PAUSE).await;
            }
        }
    }
}

pub(super) async fn serve(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    let [from] = numbers(&request, ["from"])?;
    let seen = request.headers().get("last-event-id").map(|value| {
        let version = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
        version.ok_or_else(|| Query::refusal("last-event-id is the version of the last event"))
    });
    // A browser repeats the query when it reconnects, so what it has seen since wins.
    let from = seen.transpose()?.map(|version| version.saturating_add(1)).or(from);
    let stop = request.extensions().get::<Stop>().cloned();
    let subscription = Box::new(Subscription::new(&registry, from, stop));
    let mut response = Response::new(Body::new(Events::Idle(subscription)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The body of the answer. Dropping it ends the subscription.
enum Events {
    Idle(Box<Subscription>),
    Waiting(BoxFuture<'static, (Box<Subscription>, Next)>),
    Over,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let mut waiting = match std::mem::replace(this, Events::Over) {
            Events::Over => return Poll::Ready(None),
            Events::Waiting(waiting) => waiting,
            Events::Idle(mut subscription) => Box::pin(async move {
                let next = subscription.next().await;
                (subscription, next)
            }),
        };
        let Poll::Ready((subscription, next)) = waiting.as_mut().poll(cx) else {
            *this = Events::Waiting(waiting);
            return Poll::Pending;
        };
        let words = match next {
            Next::End => return Poll::Ready(None),
            Next::Silence => ":\n\n".to_owned(),
            Next::Pruned(first) => format!("event: pruned\ndata: {{\"first\":{first}}}\n\n"),
            Next::Ahead(head) => format!("event: ahead\ndata: {{\"head\":{head}}}\n\n"),
            Next::Update(update) => {
                let data = serde_json::to_string(&update).expect("strings and numbers can be written");
                format!("id: {}\nevent: committed\ndata: {data}\n\n", update.version)
            }
        };
        *this = Events::Idle(subscription);
        Poll::Ready(Some(Ok(Frame::data(words.into()))))
    }
}
