//! The task of a session, which has two halves: one reads, one owns the write half.
//!
//! They are two futures in one task, so that an answer that is ready at once is written in the turn that read the
//! question, and wakes nobody. However a session ends, both halves end: in order, with what is queued written and the
//! peer's end waited for, each for a stated time; out of order, at once. Guards see to it that everybody is told even
//! when the task is cut off or never runs.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::io::{ReadHalf, WriteHalf};

use super::{
    super::oap::{Alarm, Flags, Frame, FrameReader, FrameWriter, WireError},
    Outbox, Service,
    shared::{Shared, Why},
};
use crate::{Counter, Deadline, Inbox, Restart, Spawner, Stop, StopHook, TaskSpec, net::Stream, now};

/// How long what is queued may take to be written once the session is over, in order.
const CLOSING: Duration = Duration::from_secs(1);

/// How long the peer may take to close after us, so that what we sent last is not cut off by a reset, and how long
/// saying that it is over may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// What closing takes at most, which the drain of a group leaves to its sessions.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Frames that are read before what is queued is written: a peer that always has something to say waits for its
/// answers too.
const FRAMES_AT_ONCE: u32 = 64;

/// Events of an outbox that are taken before chunks have their turn.
const EVENTS_AT_ONCE: u32 = 32;

pub(super) const SESSION: TaskSpec = TaskSpec::new("ron-core", "rpc_session").restart(Restart::Expendable).what(
    "one session: hands requests to the service and answers to their callers; the only owner of the write half, which \
     it shuts down on every way out",
);

pub(super) type Reader = FrameReader<ReadHalf<Box<dyn Stream>>>;
pub(super) type Writer = FrameWriter<WriteHalf<Box<dyn Stream>>>;

/// Held by the half that reads: when it is gone, the session is over for everybody.
pub(super) struct Reading(pub(super) Arc<Shared>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.end(&Why::Aborted);
        self.0.cut.set();
        self.0.half_ended();
    }
}

/// Held by the half that writes: when it is gone, the other one is told.
pub(super) struct Writing(pub(super) Arc<Shared>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writer_gone();
        self.0.half_ended();
    }
}

/// Lets the other half have a turn, and goes on.
async fn take_turns() {
    let mut is_back = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_back, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Writes what the lanes hold, from both in turn, until both are closed and empty, the link fails, or it is cut.
pub(super) async fn write_all(mut writer: Writer, urgent: Inbox<Frame>, bulk: Inbox<Frame>, guard: Writing) {
    let shared = &*guard.0;
    let written = tokio::select! {
        biased;
        () = shared.cut.wait() => Ok(()),
        written = pump(&mut writer, &urgent, &bulk, shared) => written,
    };
    // Nobody is to think that more can be sent while the end is being said.
    shared.writer_gone();
    // Boxed, as is the end of reading: a session has no room for its end while it lives, which is nearly always.
    let closed = Box::pin(Deadline::after(FAREWELL).limit("frame_close", writer.shutdown())).await;
    if let Err(error) = written.and(closed.unwrap_or(Err(WireError::Slow { op: "frame_close" }))) {
        tracing::debug!(peer = ?shared.peer, %error, "session not written to its end");
    }
}

async fn pump(
    writer: &mut Writer,
    urgent: &Inbox<Frame>,
    bulk: &Inbox<Frame>,
    shared: &Shared,
) -> Result<(), WireError> {
    let queue = |writer: &mut Writer, frame: Frame, is_bulk: bool| {
        shared.taken(&frame);
        // The end of an answer took no room. An event that ends with its only frame did.
        if is_bulk && !frame.flags.has(Flags::RESP | Flags::END) {
            shared.bulk_room.add_permits(1);
        }
        writer.queue(frame)
    };
    let mut is_flushed = true;
    loop {
        // Gather from all in turn; what is written leaves room for more. To ask how many wait takes no lock.
        loop {
            let before = writer.queued();
            if urgent.depth() > 0 {
                urgent.try_recv().map_or(Ok(()), |frame| queue(writer, frame, false))?;
            }
            if let Some(outbox) = shared.outbox() {
                pour(writer, outbox, shared)?;
            }
            if bulk.depth() > 0 {
                bulk.try_recv().map_or(Ok(()), |frame| queue(writer, frame, true))?;
            }
            if writer.is_full() || writer.queued() == before {
                break;
            }
        }
        if writer.queued() > 0 {
            writer.write().await?;
            is_flushed = false;
            continue;
        }
        if !is_flushed {
            writer.flush().await?;
            is_flushed = true;
            continue;
        }
        if shared.urgent.is_closed() && urgent.depth() == 0 {
            // The bulk lane closes with the urgent one: what is left of it goes out.
            bulk.close();
            while let Some(frame) = bulk.try_recv() {
                queue(writer, frame, true)?;
                if writer.is_full() {
                    writer.write().await?;
                }
            }
            return writer.flush().await;
        }
        // One bell for both lanes, the outbox and the end: to wait on each of them costs more than to write a small frame.
        shared.bell.notified().await;
    }
}

/// Takes events of the outbox, some at a time: chunks have their turns in between.
fn pour(writer: &mut Writer, outbox: &Arc<dyn Outbox>, shared: &Shared) -> Result<(), WireError> {
    let (mut left, mut queued) = (EVENTS_AT_ONCE, Ok(()));
    outbox.pour(&mut |payload| {
        queued = writer.queue(Frame::event(shared.proto, 0, payload));
        left -= 1;
        left > 0 && queued.is_ok() && !writer.is_full()
    });
    if left < EVENTS_AT_ONCE {
        shared.poured();
    }
    Ok(queued?)
}

/// Reads until the session is over, and sees to it that it is over for everybody.
pub(super) async fn read_all(
    mut reader: Reader,
    guard: Reading,
    service: Arc<dyn Service>,
    calls: Spawner,
    stop: Stop,
) {
    let shared = &guard.0;
    let _draining = drain_on(&stop, shared);
    let why = read_frames(&mut reader, shared, &service, &calls).await;
    match &why {
        Why::Violation(reason) => {
            shared.count(Counter::FrameRejects, reason);
            tracing::debug!(peer = ?shared.peer, reason, "session ended: the peer broke a rule");
        }
        Why::Link(error) => tracing::debug!(peer = ?shared.peer, %error, "session ended: the link failed"),
        _ => {}
    }
    shared.end(&why);
    if why.is_orderly() {
        let farewell = async {
            let _ = Deadline::after(CLOSING).limit("closing", shared.written.wait()).await;
            let rest = async { while let Ok(Some(_)) = reader.next().await {} };
            let _ = Deadline::after(FAREWELL).limit("farewell", rest).await;
        };
        Box::pin(farewell).await;
    }
}

/// When the group stops, its sessions drain, and leave themselves time to close.
fn drain_on(stop: &Stop, shared: &Arc<Shared>) -> StopHook {
    let (weak, of_group) = (Arc::downgrade(shared), stop.clone());
    stop.on_request(move || {
        if let Some(shared) = weak.upgrade() {
            let left = of_group.drain_until().map_or(Duration::ZERO, Deadline::remaining);
            let drain = shared.settings.drain.min(left.saturating_sub(CLOSE_MAX));
            shared.drain(Deadline::after(drain), true);
        }
    })
}

async fn read_frames(
    reader: &mut Reader,
    shared: &Arc<Shared>,
    service: &Arc<dyn Service>,
    calls: &Spawner,
) -> Why {
    let (mut look_at, mut alarm, mut due): (Option<Deadline>, _, _) = (None, Alarm::default(), false);
    let mut poked = pin!(shared.poke.notified());
    let mut in_a_row = 0;
    loop {
        if in_a_row >= FRAMES_AT_ONCE {
            in_a_row = 0;
            take_turns().await;
        }
        let next = async {
            tokio::select! {
                biased;
                () = poked.as_mut() => {
                    poked.set(shared.poke.notified());
                    None
                }
                read = reader.next() => Some(read),
            }
        };
        let mut next = pin!(next);
        let next = poll_fn(|cx| {
            let next = next.as_mut().poll(cx);
            in_a_row = if next.is_pending() { 0 } else { in_a_row + 1 };
            next
        });
        let read = match look_at {
            _ if due => None,
            None => next.await,
            Some(until) => alarm.limit(|| until, next).await.flatten(),
        };
        due = false;
        let Some(read) = read else {
            match shared.look() {
                Ok(until) => look_at = until,
                Err(why) => return why,
            }
            continue;
        };
        let outcome = match read {
            Ok(Some(frame)) => {
                let at = now();
                // A peer that always has something to say must not keep us from looking.
                due = look_at.is_some_and(|look_at| look_at.instant() <= at);
                shared.received(frame, at, service, calls)
            }
            Ok(None) => return Why::PeerClosed,
            Err(WireError::Frame(error)) if !error.is_fatal() => shared.skipped(&error),
            Err(WireError::Idle) if shared.is_waiting() => Ok(()),
            Err(WireError::Idle) => return Why::Idle,
            Err(error) => return Why::Link(error),
        };
        if let Err(reason) = outcome {
            return Why::Violation(reason);
        }
    }
}
