//! One link in use: HELLO, and then calls in both directions.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, TryAcquireError};

use super::{
    super::oap::{
        Agreed, Code, Flags, Frame, FrameReader, FrameWriter, Hello, HelloError, Kind, PROTO_CONTROL,
        ReadSettings, WireError,
    },
    Call, Chunks, Fault, RpcError, RpcSettings, Service, halves,
    serve::refusal,
    shared::{
        BULK, BULK_ROOM, Budgets, EXCHANGES_MAX, FRAMES_PER_CALL, Owner, STATE, Shared, State, URGENT, weigh,
    },
    tasks::{Reader, Reading, SESSION, Writer, Writing, read_all, write_all},
};
use crate::{
    Counter, Deadline, Lane, LaneSpec, Lock, Metrics, NodeId, Spawner, TaskEnd,
    net::{KeyGroup, Link, PublicKey},
    now,
    permits::Permits,
    shutdown::Latch,
};

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We dialled, and speak first.
    Dialer,
    /// We were dialled.
    Acceptor,
}

/// Calls to one peer over one link, and its calls to us. Cloning shares it; dropping the last clone does not end it:
/// it ends by idling, by [`shutdown`](Session::shutdown), with its link, or with the group it was started in.
#[derive(Clone)]
pub struct Session {
    pub(super) shared: Arc<Shared>,
}

impl Session {
    /// Says HELLO on `link` and starts the session's task in the group of `spawner`.
    ///
    /// # Errors
    /// [`RpcError::Timeout`], [`RpcError::Link`] or [`RpcError::Hello`] when the peer does not say HELLO in time or in
    /// form, [`RpcError::Refused`] with what it said instead.
    pub async fn start(
        link: Link,
        side: Side,
        proto: u16,
        service: Arc<dyn Service>,
        settings: RpcSettings,
        spawner: &Spawner,
        metrics: &Metrics,
    ) -> Result<Session, RpcError> {
        let budgets = Budgets::new(settings.queued_bytes_max, settings.requests_bytes_max);
        Self::start_owned(link, side, proto, service, settings, spawner, metrics, &budgets, None).await
    }

    #[expect(clippy::too_many_arguments, reason = "one private caller besides `start`")]
    pub(super) async fn start_owned(
        link: Link,
        side: Side,
        proto: u16,
        service: Arc<dyn Service>,
        settings: RpcSettings,
        spawner: &Spawner,
        metrics: &Metrics,
        budgets: &Budgets,
        owner: Option<Weak<dyn Owner>>,
    ) -> Result<Session, RpcError> {
        let Link { stream, peer, peer_key, remote, group, .. } = link;
        let (read, write) = tokio::io::split(stream);
        let reading = ReadSettings {
            frame_bytes_max: settings.frame_bytes_max(),
            idle_timeout: settings.idle_timeout,
            read_timeout: settings.read_timeout,
        };
        let mut reader: Reader = FrameReader::new(read, reading, metrics);
        let mut writer: Writer = FrameWriter::new(write, metrics).timeout(settings.write_timeout);
        let greeting = greet(&mut reader, &mut writer, side, &settings);
        let greeted = Deadline::after(settings.hello_timeout).limit("hello", greeting).await;
        let agreed = match greeted.map_err(RpcError::from).and_then(|greeted| greeted) {
            Ok(agreed) => agreed,
            Err(error) => {
                match &error {
                    RpcError::Hello(error) => metrics.tally(Counter::FrameRejects, error.reason()).add(1),
                    RpcError::Timeout { .. } => metrics.tally(Counter::HandshakeTimeouts, "").add(1),
                    _ => {}
                }
                let _ = writer.shutdown().await;
                return Err(error);
            }
        };
        let agreed = Agreed {
            ours_max: agreed.ours_max.min(EXCHANGES_MAX),
            theirs_max: agreed.theirs_max.min(EXCHANGES_MAX),
            ..agreed
        };
        let (ours, theirs) = (agreed.ours_max as usize, agreed.theirs_max as usize);
        let urgent = LaneSpec { capacity: theirs + ours * FRAMES_PER_CALL + 1, ..URGENT };
        let bulk = LaneSpec { capacity: BULK_ROOM + theirs, ..BULK };
        let (urgent, urgent_inbox) = Lane::open_weighed(urgent, metrics, &budgets.queued, weigh);
        let (bulk, bulk_inbox) = Lane::open_weighed(bulk, metrics, &budgets.queued, weigh);
        let shared = Arc::new(Shared {
            peer,
            remote,
            settings,
            side,
            key: peer_key,
            group,
            proto,
            agreed,
            began: now(),
            urgent,
            bulk,
            bulk_room: Semaphore::new(BULK_ROOM),
            outbox: OnceLock::new(),
            is_emptying: AtomicBool::new(false),
            is_poured: AtomicBool::new(false),
            life: AtomicU8::new(0),
            bell: Notify::new(),
            places: Permits::new(ours as u64),
            requests: budgets.requests.clone(),
            state: Lock::new(STATE, State::new(ours, theirs), metrics),
            answers_queued: AtomicUsize::new(0),
            poke: Notify::new(),
            written: Latch::new(),
            cut: Latch::new(),
            halves: AtomicUsize::new(2),
            ended: Latch::new(),
            metrics: metrics.clone(),
            owner,
        });
        let (reading, writing) = (Reading(Arc::clone(&shared)), Writing(Arc::clone(&shared)));
        let calls = spawner.clone();
        let task = spawner.spawn(SESSION, move |stop| {
            // Boxed, each and both, or every layer around the task would have room for them twice.
            let writing = Box::pin(write_all(writer, urgent_inbox, bulk_inbox, writing));
            let reading = Box::pin(read_all(reader, reading, service, calls, stop));
            Box::pin(halves::run(reading, writing))
        });
        if task.end() == Some(TaskEnd::Refused) {
            return Err(RpcError::Canceled);
        }
        Ok(Session { shared })
    }

    /// Asks, and gathers the answer.
    ///
    /// # Errors
    /// An [`RpcError`]. At the deadline, or when the future is dropped, the callee is told to stop.
    pub async fn call(
        &self,
        call: impl Into<Call>,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<Bytes, RpcError> {
        let settings = &self.shared.settings;
        let chunks = self.shared.ask(&call.into(), body, deadline, settings.answer_chunks()).await?;
        chunks.gather(settings.answer_bytes_max as usize).await
    }

    /// Asks, and hands out the answer as it comes.
    ///
    /// # Errors
    /// An [`RpcError`] if the request could not be sent; what comes later is told by [`Chunks::next`].
    pub async fn open(
        &self,
        call: impl Into<Call>,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<Chunks, RpcError> {
        self.shared.ask(&call.into(), body, deadline, self.shared.settings.window_chunks.max(1)).await
    }

    /// Sends an event as soon as the link has room for it.
    ///
    /// # Errors
    /// [`RpcError::Timeout`] when there is no room by the deadline, [`RpcError::Busy`] when too many bytes wait already,
    /// [`RpcError::Closed`], [`RpcError::TooLarge`].
    pub async fn notify(
        &self,
        call: impl Into<Call>,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), RpcError> {
        let (shared, call) = (&*self.shared, call.into());
        shared.check_size("event", &call, body)?;
        let room = deadline.limit(call.method.name, shared.bulk_room.acquire()).await?;
        let room = room.map_err(|_| RpcError::Closed)?;
        shared.push_event(&call, body)?;
        room.forget();
        Ok(())
    }

    /// Sends an event if the link has room for it now.
    ///
    /// # Errors
    /// [`RpcError::Busy`], [`RpcError::Closed`], [`RpcError::TooLarge`].
    pub fn try_notify(&self, call: impl Into<Call>, body: &[u8]) -> Result<(), RpcError> {
        let (shared, call) = (&*self.shared, call.into());
        shared.check_size("event", &call, body)?;
        let room = match shared.bulk_room.try_acquire() {
            Ok(room) => room,
            Err(TryAcquireError::Closed) => return Err(RpcError::Closed),
            Err(TryAcquireError::NoPermits) => {
                shared.count(Counter::BusyRejections, BULK.name);
                return Err(RpcError::Busy { what: BULK.name, retry_after: Duration::from_millis(10) });
            }
        };
        shared.push_event(&call, body)?;
        room.forget();
        Ok(())
    }

    /// The [`Outbox`](super::Outbox) has something. Costs next to nothing if the writer is at it already.
    pub fn ring(&self) {
        self.shared.bell.notify_one();
    }

    /// Whether what an [`Outbox`](super::Outbox) has would be sent over this session: it has one, is open, and its peer has
    /// no newer one.
    #[must_use]
    pub fn takes_events(&self) -> bool {
        self.shared.takes_events()
    }

    /// Whether both are the same session.
    #[must_use]
    pub fn is_same(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> NodeId {
        self.shared.peer
    }

    /// The key that proved it.
    #[must_use]
    pub fn peer_key(&self) -> PublicKey {
        self.shared.key
    }

    /// Where the other end is.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.shared.remote
    }

    /// Which end dialled.
    #[must_use]
    pub fn side(&self) -> Side {
        self.shared.side
    }

    /// The key exchange that protects the link.
    #[must_use]
    pub fn group(&self) -> KeyGroup {
        self.shared.group
    }

    /// Exchanges open now, in both directions.
    #[must_use]
    pub fn open_exchanges(&self) -> usize {
        self.shared.open_exchanges()
    }

    /// Whether new calls can begin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.is_open()
    }

    /// Resolves when the session is over and its task has ended.
    pub async fn ended(&self) {
        self.shared.ended.wait().await;
    }

    /// Ends the session and returns at once: open calls are not waited for, what is queued is written if the peer takes it
    /// soon.
    pub fn close(&self) {
        self.shared.drain(Deadline::after(Duration::ZERO), false);
    }

    /// Refuses new calls in both directions, lets open ones finish for as long as the settings allow, and closes.
    /// Safe to call twice.
    pub async fn shutdown(&self) {
        self.shared.drain(Deadline::after(self.shared.settings.drain), true);
        self.ended().await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?} at {}, {:?})", self.shared.peer, self.shared.remote, self.shared.side)
    }
}

/// HELLO in both directions.
async fn greet(
    reader: &mut Reader,
    writer: &mut Writer,
    side: Side,
    settings: &RpcSettings,
) -> Result<Agreed, RpcError> {
    let ours = Hello {
        frame_bytes_max: settings.frame_bytes_max() as u32,
        inflight_max: settings.inflight_max.min(EXCHANGES_MAX),
        ..Hello::default()
    };
    if side == Side::Dialer {
        writer.queue(ours.request()).map_err(WireError::from)?;
        writer.flush().await?;
    }
    let frame = reader.next().await?.ok_or(WireError::Truncated)?;
    let kind = if side == Side::Dialer { Kind::Answer } else { Kind::Request };
    let in_form = frame.flags.kind() == Ok(kind)
        && !frame.flags.has(Flags::START)
        && (frame.proto, frame.tenant, frame.corr) == (PROTO_CONTROL, 0, 0);
    if !in_form {
        return Err(HelloError::Malformed.into());
    }
    if side == Side::Dialer {
        if frame.code != Code::Ok {
            return Err(Fault::decode(frame.code, &frame.payload).into_error("hello"));
        }
        return Ok(ours.agree(&Hello::decode(&frame.payload)?)?);
    }
    let agreed = Hello::decode(&frame.payload).and_then(|theirs| ours.agree(&theirs));
    let answer = match &agreed {
        Ok(_) => Frame::answer(&frame, Code::Ok, ours.encode()),
        Err(error) => refusal(&frame, &Fault::bad_request(error.to_string())),
    };
    writer.queue(answer).map_err(WireError::from)?;
    writer.flush().await?;
    Ok(agreed?)
}
