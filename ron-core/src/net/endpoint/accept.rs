//! From a connection that came in to a link in its protocol's lane, past every limit on the way.
//!
//! In this order: the caps on connections, in all and per address; a wait for the first byte, which holds a socket and
//! a small task; a place among the running handshakes, which are what costs memory and time; the handshake; the lane.
//! One clock runs over all of it. So a peer that connects and says nothing takes a connection's place for at most the
//! handshake timeout, and never that of a handshake. One that says the first bytes of a hello and then nothing has a
//! handshake's place; while all of these are taken it loses it after half a second, or a few addresses could hold them
//! all in turns of the timeout.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::sleep,
};

use super::{HANDSHAKE, Shared};
use crate::{
    CallError, Counter, Deadline, Pass, Spawner, Stop,
    net::{Incoming, Link, Listener, NetError, Stream},
    permits::Permits,
    shutdown::Latch,
    supervisor::catch_all,
};

/// After an accept that failed: the usual cause is that file descriptors ran out, and asking at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a handshake may take while others wait for its place. One over half the world takes as long.
const BRISK: Duration = Duration::from_millis(500);

/// How often it is looked whether they do.
const BRISK_LOOK: Duration = Duration::from_millis(100);

/// For telling a peer that its link was not wanted.
const FAREWELL: Duration = Duration::from_millis(500);

/// Takes in what comes to one address, until the stop or until it is closed.
pub(super) async fn listen(
    listener: Arc<dyn Listener>,
    shared: Arc<Shared>,
    spawner: Spawner,
    stop: Stop,
    closed: Arc<Latch>,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.requested() => return,
            () = closed.wait() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(incoming) => admit(incoming, &shared, &spawner),
            Err(error) => {
                shared.count(Counter::HandshakeFailures, "accept");
                tracing::warn!(addr = %listener.local_addr(), %error, "accept failed");
                tokio::select! {
                    biased;
                    () = stop.requested() => return,
                    () = closed.wait() => return,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

/// Refuses at once, by closing, or starts the handshake beside the others.
fn admit(incoming: Box<dyn Incoming>, shared: &Arc<Shared>, spawner: &Spawner) {
    let remote = incoming.remote();
    // The gate counts its refusals.
    let Ok(pass) = shared.gate.enter(remote.ip().into(), 0) else { return };
    let shared = Arc::clone(shared);
    let _ = spawner.spawn(HANDSHAKE, move |stop| async move {
        // A peer must not be able to end the endpoint, not even with a mistake of ours.
        // In a box, because each layer around a future that it moves makes the task twice as large, and a silent
        // connection should cost little.
        let welcomed = catch_all(Box::pin(welcome(incoming, pass, &shared, &stop))).await;
        let outcome = welcomed.unwrap_or_else(|message| {
            tracing::error!(kind = HANDSHAKE.name, panic = message, "task panicked");
            shared.count(Counter::TasksPanicked, HANDSHAKE.name);
            Err(NetError::Panicked { op: "handshake" })
        });
        if let Err(error) = outcome {
            tracing::debug!(%remote, %error, "incoming connection refused");
            shared.count(Counter::HandshakeFailures, error.reason());
        }
    });
}

async fn welcome(
    mut incoming: Box<dyn Incoming>,
    pass: Pass,
    shared: &Shared,
    stop: &Stop,
) -> Result<(), NetError> {
    let deadline = Deadline::after(shared.settings.handshake_timeout);
    tokio::select! {
        biased;
        // Who has not spoken yet has nothing to lose.
        () = stop.requested() => return Err(NetError::Canceled),
        spoke = deadline.limit("handshake", incoming.spoke()) => spoke?,
    }
    let link = deadline.limit("handshake", async {
        let _place = shared.handshakes.take(1).await;
        tokio::select! {
            biased;
            link = incoming.handshake(shared.protocols()) => link,
            () = in_the_way(&shared.handshakes) => Err(NetError::Timeout { op: "handshake" }),
        }
    });
    let mut link = link.await??;
    link.stream = Box::new(Guarded { stream: link.stream, _pass: pass });
    deliver(link, shared).await
}

/// Ends when a handshake has had its time and no place is free.
async fn in_the_way(handshakes: &Permits) {
    sleep(BRISK).await;
    while handshakes.free() > 0 {
        sleep(BRISK_LOOK).await;
    }
}

/// Into the lane of its protocol, or closed.
async fn deliver(link: Link, shared: &Shared) -> Result<(), NetError> {
    let alpn = link.alpn;
    let Some(lane) = shared.lane(alpn) else {
        farewell(link).await;
        return Err(NetError::ProtocolRefused { alpn });
    };
    match lane.try_push_or_return(link) {
        Ok(()) => {
            shared.count(Counter::LinksOpened, "accepted");
            Ok(())
        }
        Err((error, link)) => {
            if error == CallError::Canceled {
                // Nobody holds the inbox any more: from the next handshake on, the protocol is not offered.
                shared.forget(alpn);
            }
            farewell(link).await;
            Err(error.into())
        }
    }
}

/// Closes so that the peer reads an end rather than a reset.
async fn farewell(mut link: Link) {
    let _ = Deadline::after(FAREWELL).limit("close", link.stream.shutdown()).await;
}

/// A stream that holds its connection's place among the allowed ones for as long as it exists.
struct Guarded {
    stream: Box<dyn Stream>,
    _pass: Pass,
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
