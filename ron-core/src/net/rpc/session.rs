//! One link in use: HELLO, then a task that reads and the only task that writes.
//!
//! Small frames that somebody waits for (requests, whole answers, control) go through the `rpc_urgent` lane, whose
//! room is counted in open exchanges, so putting one there never waits and the reader can answer without stopping to
//! read. Chunks and events go through `rpc_bulk`, where the producer waits for room first. The writer takes from both
//! in turn. When either task ends, for whatever reason, both do, every open call is told, and every handler is dropped.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{
    super::oap::{
        Agreed, CHUNK_BYTES, Code, Direction, Flags, Frame, FrameError, FrameReader, FrameWriter,
        HEADER_BYTES, Hello, HelloError, Kind, PROTO_CONTROL, ReadSettings, StreamError, Streams, WireError,
    },
    Ask, Chunks, Control, EnvelopeError, Fault, Method, RpcError, RpcSettings, Service,
    chunks::Slot,
    envelope::ASK_BYTES_MAX,
    serve::{Serving, refusal},
};
use crate::{
    Counter, Deadline, Inbox, Lane, LaneSpec, Lock, LockSpec, Metrics, NodeId, Restart, Spawner, Stop,
    StopHook, TaskEnd, TaskSpec,
    net::{KeyGroup, Link, PublicKey, Stream},
    now,
    permits::{Permit, Permits},
    shutdown::Latch,
};

/// Chunks and events that wait for the writer: two mebibytes at most.
const BULK_ROOM: usize = 32;

/// Control events that one open call can have waiting: a cancel and, since credit is granted in halves, two grants.
const CONTROLS_PER_CALL: usize = 4;

/// How long the peer may take to close after us, so that what we sent last is not cut off by a reset.
const FAREWELL: Duration = Duration::from_millis(500);

const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const URGENT: LaneSpec = LaneSpec::new("ron-core", "rpc_urgent", 641)
    .flow("callers, reader and handlers → writer of one session")
    .why("one answer for each of 128 exchanges of the peer, a request and three control events for each of ours");

pub(super) const BULK: LaneSpec = LaneSpec::new("ron-core", "rpc_bulk", 160)
    .flow("handlers and event senders → writer of one session")
    .why("32 chunks of 64 KiB or events, and the end of 128 streamed answers");

pub(super) const READER: TaskSpec = TaskSpec::new("ron-core", "rpc_reader")
    .restart(Restart::Expendable)
    .what("reads one session: hands requests to the service, answers to their callers");

pub(super) const WRITER: TaskSpec = TaskSpec::new("ron-core", "rpc_writer")
    .restart(Restart::Expendable)
    .what("the only owner of one session's write half; shuts it down on every way out");

pub(super) const STATE: LockSpec = LockSpec::new("ron-core", "rpc.session", 860)
    .guards("what is open on one session; held for a map operation");

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

/// Who wants to know that a session has ended.
pub(super) trait Owner: Send + Sync {
    fn ended(&self, session: &Arc<Shared>);
}

pub(super) struct Shared {
    pub(super) peer: NodeId,
    pub(super) remote: SocketAddr,
    pub(super) settings: RpcSettings,
    pub(super) side: Side,
    key: PublicKey,
    group: KeyGroup,
    proto: u16,
    agreed: Agreed,
    urgent: Lane<Frame>,
    bulk: Lane<Frame>,
    pub(super) bulk_room: Semaphore,
    /// How many exchanges we may have open.
    places: Permits,
    state: Lock<State>,
    /// Tells the reader to look at the state.
    poke: Notify,
    ended: Latch,
    metrics: Metrics,
    owner: Option<Weak<dyn Owner>>,
}

struct State {
    streams: Streams,
    calls: HashMap<u64, Call>,
    serving: HashMap<u64, Arc<Serving>>,
    corr: u64,
    /// The latest deadline of any call of ours.
    until: Option<Deadline>,
    phase: Phase,
    /// When a call last began in either direction.
    used: Instant,
    /// Closes when nothing was called for this long.
    retired: Option<Duration>,
    /// How long the drain may take; set with [`Phase::Draining`].
    drain_until: Option<Deadline>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing new begins; what is open is finished.
    Draining,
    /// The writer has written all it will.
    Written,
    Ended,
}

/// A call of ours whose answer has not ended, whether or not anybody still wants it.
struct Call {
    slot: Arc<Slot>,
    method: &'static str,
    _place: Permit,
}

/// Why the reader stopped, for the counter.
enum Why {
    PeerClosed,
    Idle,
    Shutdown,
    Violation(&'static str),
    Link(WireError),
    WriterGone,
}

impl Why {
    fn reason(&self) -> &'static str {
        match self {
            Why::PeerClosed => "peer",
            Why::Idle => "idle",
            Why::Shutdown => "shutdown",
            Why::Violation(_) => "violation",
            Why::Link(_) => "link",
            Why::WriterGone => "writer",
        }
    }
}

impl Session {
    /// Says HELLO on `link` and starts the session's two tasks in the group of `spawner`.
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
        Self::start_owned(link, side, proto, service, settings, spawner, metrics, None).await
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
        owner: Option<Weak<dyn Owner>>,
    ) -> Result<Session, RpcError> {
        let Link { stream, peer, peer_key, remote, group, .. } = link;
        let (read, write) = tokio::io::split(stream);
        let reading = ReadSettings {
            frame_bytes_max: settings.frame_bytes_max(),
            idle_timeout: settings.idle_timeout,
            ..ReadSettings::default()
        };
        let mut reader = FrameReader::new(read, reading, metrics);
        let mut writer = FrameWriter::new(write, metrics).timeout(WRITE_TIMEOUT);
        let greeting = greet(&mut reader, &mut writer, side, &settings);
        let greeted = Deadline::after(settings.hello_timeout).limit("hello", greeting).await;
        let agreed = match greeted.map_err(RpcError::from).and_then(|greeted| greeted) {
            Ok(agreed) => agreed,
            Err(error) => {
                if let RpcError::Hello(error) = &error {
                    metrics.tally(Counter::FrameRejects, error.reason()).add(1);
                }
                let _ = writer.shutdown().await;
                return Err(error);
            }
        };
        let exchanges =
            (agreed.ours_max.min(u32::from(u16::MAX)), agreed.theirs_max.min(u32::from(u16::MAX)));
        let (ours, theirs) = (exchanges.0 as usize, exchanges.1 as usize);
        let (urgent, urgent_inbox) =
            Lane::open(LaneSpec { capacity: theirs + ours * CONTROLS_PER_CALL + 1, ..URGENT }, metrics);
        let (bulk, bulk_inbox) = Lane::open(LaneSpec { capacity: BULK_ROOM + theirs, ..BULK }, metrics);
        let state = State {
            streams: Streams::new(ours, theirs),
            calls: HashMap::new(),
            serving: HashMap::new(),
            corr: 0,
            until: None,
            phase: Phase::Open,
            used: now(),
            retired: None,
            drain_until: None,
        };
        let shared = Arc::new(Shared {
            peer,
            remote,
            settings,
            side,
            key: peer_key,
            group,
            proto,
            agreed,
            urgent,
            bulk,
            bulk_room: Semaphore::new(BULK_ROOM),
            places: Permits::new(ours as u64),
            state: Lock::new(STATE, state, metrics),
            poke: Notify::new(),
            ended: Latch::new(),
            metrics: metrics.clone(),
            owner,
        });
        let (reading, writing) = (Arc::clone(&shared), Arc::clone(&shared));
        let calls = spawner.clone();
        let _ = spawner.spawn(WRITER, move |_| write_all(writer, urgent_inbox, bulk_inbox, writing));
        let read = spawner.spawn(READER, move |stop| read_all(reader, reading, service, calls, stop));
        if read.end() == Some(TaskEnd::Refused) {
            shared.end(&Why::Shutdown);
            return Err(RpcError::Canceled);
        }
        Ok(Session { shared })
    }

    /// Asks, and gathers the answer.
    ///
    /// # Errors
    /// An [`RpcError`]. At the deadline, or when the future is dropped, the callee is told to stop.
    pub async fn call(&self, method: Method, body: &[u8], deadline: Deadline) -> Result<Bytes, RpcError> {
        let settings = &self.shared.settings;
        let chunks = self.shared.ask(method, body, deadline, settings.answer_chunks()).await?;
        chunks.gather(settings.answer_bytes_max as usize).await
    }

    /// Asks, and hands out the answer as it comes.
    ///
    /// # Errors
    /// An [`RpcError`] if the request could not be sent; what comes later is told by [`Chunks::next`].
    pub async fn open(&self, method: Method, body: &[u8], deadline: Deadline) -> Result<Chunks, RpcError> {
        self.shared.ask(method, body, deadline, self.shared.settings.window_chunks.max(1)).await
    }

    /// Sends an event as soon as the link has room for it.
    ///
    /// # Errors
    /// [`RpcError::Timeout`] when there is no room by the deadline, [`RpcError::Closed`], [`RpcError::TooLarge`].
    pub async fn notify(&self, method: Method, body: &[u8], deadline: Deadline) -> Result<(), RpcError> {
        let shared = &*self.shared;
        let frame = shared.event_frame(method, body)?;
        let room = deadline.limit(method.name, shared.bulk_room.acquire()).await?;
        room.map_err(|_| RpcError::Closed)?.forget();
        shared.push_bulk(frame);
        Ok(())
    }

    /// Sends an event if the link has room for it now.
    ///
    /// # Errors
    /// [`RpcError::Busy`], [`RpcError::Closed`], [`RpcError::TooLarge`].
    pub fn try_notify(&self, method: Method, body: &[u8]) -> Result<(), RpcError> {
        let shared = &*self.shared;
        let frame = shared.event_frame(method, body)?;
        match shared.bulk_room.try_acquire() {
            Ok(room) => room.forget(),
            Err(tokio::sync::TryAcquireError::Closed) => return Err(RpcError::Closed),
            Err(tokio::sync::TryAcquireError::NoPermits) => {
                shared.count(Counter::BusyRejections, BULK.name);
                return Err(RpcError::Busy { what: BULK.name, retry_after: Duration::from_millis(10) });
            }
        }
        shared.push_bulk(frame);
        Ok(())
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
        let state = self.shared.state.lock();
        state.streams.open(Direction::Sent) + state.streams.open(Direction::Received)
    }

    /// Whether new calls can begin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.state.lock().phase == Phase::Open
    }

    /// Resolves when the session is over.
    pub async fn ended(&self) {
        self.shared.ended.wait().await;
    }

    /// Refuses new calls in both directions, lets open ones finish for as long as the settings allow, and closes.
    /// Safe to call twice.
    pub async fn shutdown(&self) {
        self.shared.drain(Deadline::after(self.shared.settings.drain));
        self.ended().await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?} at {}, {:?})", self.shared.peer, self.shared.remote, self.shared.side)
    }
}

impl Shared {
    async fn ask(
        self: &Arc<Self>,
        method: Method,
        body: &[u8],
        deadline: Deadline,
        window: u32,
    ) -> Result<Chunks, RpcError> {
        self.check_size("request", body)?;
        let place = match self.places.try_take(1) {
            Some(place) => place,
            None => deadline.limit(method.name, self.places.take(1)).await?,
        };
        // Rounded up: a request with time left never says that it has none.
        let budget_ms = deadline.remaining().as_micros().div_ceil(1000);
        if budget_ms == 0 {
            self.count(Counter::IoTimeouts, method.name);
            return Err(RpcError::Timeout { op: method.name });
        }
        let budget_ms = u32::try_from(budget_ms).unwrap_or(u32::MAX);
        let payload = Ask { method: method.number, budget_ms, credit: window }.encode(body);
        let slot = Arc::new(Slot::new(window));
        let mut state = self.state.lock();
        match state.phase {
            Phase::Open => {}
            Phase::Draining => return Err(RpcError::Canceled),
            Phase::Written | Phase::Ended => return Err(RpcError::Closed),
        }
        state.corr += 1;
        let frame = Frame::request(self.proto, state.corr, payload);
        let corr = frame.corr;
        if state.streams.on_frame(Direction::Sent, &frame).is_err() {
            // Its number is new and its place is counted; there is no rule left that it could break.
            return Err(RpcError::Busy { what: URGENT.name, retry_after: Duration::from_millis(10) });
        }
        let call = Call { slot: Arc::clone(&slot), method: method.name, _place: place };
        state.calls.insert(corr, call);
        state.until = state.until.max(Some(deadline));
        state.used = now();
        drop(state);
        self.push_noted(frame);
        Ok(Chunks { shared: Arc::clone(self), slot, corr, method, deadline, window, taken: 0, ended: false })
    }

    fn event_frame(&self, method: Method, body: &[u8]) -> Result<Frame, RpcError> {
        self.check_size("event", body)?;
        let ask = Ask { method: method.number, budget_ms: 0, credit: 0 };
        Ok(Frame::event(self.proto, 0, ask.encode(body)))
    }

    fn check_size(&self, what: &'static str, body: &[u8]) -> Result<(), RpcError> {
        let max = self.agreed.send_bytes_max as usize - HEADER_BYTES - ASK_BYTES_MAX;
        if body.len() <= max {
            return Ok(());
        }
        Err(RpcError::TooLarge { what, bytes: body.len() as u64, max: max as u64 })
    }

    /// Whether the answer to our exchange `corr` has not ended.
    pub(super) fn is_calling(&self, corr: u64) -> bool {
        self.state.lock().calls.contains_key(&corr)
    }

    /// Says something about an open exchange of ours.
    pub(super) fn control(&self, control: Control) {
        self.push_noted(control.frame());
    }

    /// Queues a frame that the state knows of already. A lane that refuses is closed: its room is counted.
    fn push_noted(&self, frame: Frame) {
        let _ = self.urgent.try_push(frame);
    }

    pub(super) fn push_urgent(&self, frame: Frame) {
        self.note_sent(&frame);
        let _ = self.urgent.try_push(frame);
    }

    pub(super) fn push_bulk(&self, frame: Frame) {
        self.note_sent(&frame);
        let _ = self.bulk.try_push(frame);
    }

    fn note_sent(&self, frame: &Frame) {
        let noted = self.state.lock().streams.on_frame(Direction::Sent, frame);
        debug_assert!(noted.is_ok() || self.ended.is_set(), "{frame:?}: {noted:?}");
    }

    /// Notes a request that is being handled. Says whether the session still lives.
    pub(super) fn begin_serving(&self, serving: &Arc<Serving>) -> bool {
        let mut state = self.state.lock();
        if state.phase == Phase::Ended {
            return false;
        }
        state.serving.insert(serving.corr, Arc::clone(serving));
        true
    }

    /// The answer under `corr` has been queued to its end.
    pub(super) fn end_serving(&self, corr: u64) {
        let mut state = self.state.lock();
        let serving = state.serving.remove(&corr);
        let poke = state.phase == Phase::Draining && state.streams.is_idle();
        drop(state);
        drop(serving);
        if poke {
            self.poke.notify_one();
        }
    }

    pub(super) fn count(&self, counter: Counter, label: &'static str) {
        self.metrics.tally(counter, label).add(1);
    }

    /// When a call last began in either direction, if none is open now.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.streams.is_idle().then_some(state.used)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    /// Another session has taken its place: it serves what comes, and closes when nothing did for `quiet`.
    pub(super) fn retire(&self, quiet: Duration) {
        self.state.lock().retired = Some(quiet);
        self.poke.notify_one();
    }

    /// Begins nothing new, and closes when what is open is done, at the latest at `until`.
    pub(super) fn drain(&self, until: Deadline) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
            state.drain_until = Some(until);
        }
        drop(state);
        self.poke.notify_one();
    }

    /// Tells everybody that it is over.
    fn end(self: &Arc<Self>, why: &Why) {
        let (calls, serving) = {
            let mut state = self.state.lock();
            if state.phase == Phase::Ended {
                return;
            }
            state.phase = Phase::Ended;
            (std::mem::take(&mut state.calls), std::mem::take(&mut state.serving))
        };
        self.urgent.close();
        self.bulk.close();
        self.bulk_room.close();
        self.count(Counter::SessionsClosed, why.reason());
        for call in calls.into_values() {
            call.slot.end(Err(RpcError::Closed));
        }
        for serving in serving.into_values() {
            serving.cancel();
        }
        if let Some(owner) = self.owner.as_ref().and_then(Weak::upgrade) {
            owner.ended(self);
        }
    }
}

/// HELLO in both directions.
async fn greet(
    reader: &mut FrameReader<ReadHalf<Box<dyn Stream>>>,
    writer: &mut FrameWriter<WriteHalf<Box<dyn Stream>>>,
    side: Side,
    settings: &RpcSettings,
) -> Result<Agreed, RpcError> {
    let ours = Hello {
        frame_bytes_max: settings.frame_bytes_max() as u32,
        inflight_max: settings.inflight_max,
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

/// Writes what the lanes hold, from both in turn, until both are closed and empty or the link fails.
async fn write_all(
    mut writer: FrameWriter<WriteHalf<Box<dyn Stream>>>,
    urgent: Inbox<Frame>,
    bulk: Inbox<Frame>,
    shared: Arc<Shared>,
) {
    let written = pump(&mut writer, &urgent, &bulk, &shared).await;
    urgent.close();
    bulk.close();
    shared.bulk_room.close();
    let closed = writer.shutdown().await;
    if let Err(error) = written.and(closed) {
        tracing::debug!(peer = ?shared.peer, %error, "session not written to its end");
    }
    let mut state = shared.state.lock();
    if state.phase != Phase::Ended {
        state.phase = Phase::Written;
    }
    drop(state);
    shared.poke.notify_one();
}

async fn pump(
    writer: &mut FrameWriter<WriteHalf<Box<dyn Stream>>>,
    urgent: &Inbox<Frame>,
    bulk: &Inbox<Frame>,
    shared: &Shared,
) -> Result<(), WireError> {
    loop {
        // Gather from both in turn; what is written leaves room for more.
        let mut took = true;
        while took && !writer.is_full() {
            took = false;
            if let Some(frame) = urgent.try_recv() {
                writer.queue(frame)?;
                took = true;
            }
            if let Some(frame) = bulk.try_recv() {
                shared.bulk_room.add_permits(1);
                writer.queue(frame)?;
                took = true;
            }
        }
        if writer.queued() > 0 {
            writer.write().await?;
            if urgent.depth() + bulk.depth() > 0 {
                continue;
            }
            writer.flush().await?;
            continue;
        }
        let (frame, from_bulk) = tokio::select! {
            biased;
            frame = urgent.recv() => (frame, false),
            Some(frame) = bulk.recv() => (Some(frame), true),
        };
        match frame {
            Some(frame) => {
                if from_bulk {
                    shared.bulk_room.add_permits(1);
                }
                writer.queue(frame)?;
            }
            // The urgent lane is closed and empty. The bulk one closes with it: what is left of it goes out.
            None => {
                bulk.close();
                while let Some(frame) = bulk.try_recv() {
                    writer.queue(frame)?;
                    if writer.is_full() {
                        writer.write().await?;
                    }
                }
                return writer.flush().await;
            }
        }
    }
}

/// Reads until the session is over, and sees to it that it is over for everybody.
async fn read_all(
    mut reader: FrameReader<ReadHalf<Box<dyn Stream>>>,
    shared: Arc<Shared>,
    service: Arc<dyn Service>,
    calls: Spawner,
    stop: Stop,
) {
    let _draining = drain_on(&stop, &shared);
    let why = read_frames(&mut reader, &shared, &service, &calls).await;
    match &why {
        Why::Violation(reason) => {
            shared.count(Counter::FrameRejects, reason);
            tracing::debug!(peer = ?shared.peer, reason, "session ended: the peer broke a rule");
        }
        Why::Link(error) => tracing::debug!(peer = ?shared.peer, %error, "session ended: the link failed"),
        _ => {}
    }
    shared.end(&why);
    if matches!(why, Why::Shutdown | Why::Idle | Why::PeerClosed) {
        // The writer finishes; then the peer's end is waited for, so that nothing we sent is lost to a reset.
        let farewell = async {
            while let Ok(Some(_)) | Err(WireError::Frame(FrameError::Compressed { .. })) = reader.next().await
            {
            }
        };
        let _ = Deadline::after(FAREWELL).limit("farewell", farewell).await;
    }
    shared.ended.set();
}

fn drain_on(stop: &Stop, shared: &Arc<Shared>) -> StopHook {
    let weak = Arc::downgrade(shared);
    let drain = shared.settings.drain;
    stop.on_request(move || {
        if let Some(shared) = weak.upgrade() {
            shared.drain(Deadline::after(drain));
        }
    })
}

async fn read_frames(
    reader: &mut FrameReader<ReadHalf<Box<dyn Stream>>>,
    shared: &Arc<Shared>,
    service: &Arc<dyn Service>,
    calls: &Spawner,
) -> Why {
    let mut look_at: Option<Deadline> = None;
    loop {
        let next = async {
            tokio::select! {
                biased;
                () = shared.poke.notified() => None,
                read = reader.next() => Some(read),
            }
        };
        let read = match look_at {
            None => next.await,
            Some(until) => until.limit("look", next).await.unwrap_or(None),
        };
        let Some(read) = read else {
            match shared.look() {
                Ok(until) => look_at = until,
                Err(why) => return why,
            }
            continue;
        };
        let outcome = match read {
            Ok(Some(frame)) => shared.received(frame, service, calls),
            Ok(None) => return Why::PeerClosed,
            Err(WireError::Frame(error)) if !error.is_fatal() => {
                if let Some(answer) = error.answer() {
                    let _ = shared.urgent.try_push(answer);
                }
                Ok(())
            }
            Err(WireError::Idle) if shared.is_waiting() => Ok(()),
            Err(WireError::Idle) => return Why::Idle,
            Err(error) => return Why::Link(error),
        };
        if let Err(reason) = outcome {
            return Why::Violation(reason);
        }
    }
}

impl Shared {
    /// What the state asks of the reader: to end, or to look again at some time.
    fn look(&self) -> Result<Option<Deadline>, Why> {
        let mut state = self.state.lock();
        let idle = state.streams.is_idle();
        match (state.phase, state.retired) {
            (Phase::Written, _) => Err(Why::WriterGone),
            (Phase::Ended, _) => Err(Why::Shutdown),
            (Phase::Draining, _) => match state.drain_until {
                Some(until) if !idle && !until.has_passed() => Ok(Some(until)),
                _ => Err(Why::Shutdown),
            },
            (Phase::Open, None) => Ok(None),
            (Phase::Open, Some(quiet)) => {
                let quiet_at = Deadline::at(state.used + quiet);
                if !quiet_at.has_passed() {
                    return Ok(Some(quiet_at));
                }
                if !idle {
                    return Ok(Some(Deadline::after(quiet)));
                }
                state.phase = Phase::Draining;
                Err(Why::Shutdown)
            }
        }
    }

    /// Whether silence is to be expected: we are at work, or wait for an answer whose time has not come.
    fn is_waiting(&self) -> bool {
        let state = self.state.lock();
        !state.serving.is_empty() || state.until.is_some_and(|until| !until.has_passed())
    }

    /// Acts on a frame.
    ///
    /// # Errors
    /// The rule that it breaks, which ends the session.
    fn received(
        self: &Arc<Self>,
        frame: Frame,
        service: &Arc<dyn Service>,
        calls: &Spawner,
    ) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        let step = state.streams.on_frame(Direction::Received, &frame);
        let step = step.map_err(|error: StreamError| error.reason())?;
        match frame.flags.kind() {
            Ok(Kind::Answer) => self.answered(&mut state, frame, step.last),
            Ok(Kind::Request) => {
                state.used = now();
                let phase = state.phase;
                drop(state);
                if !step.first {
                    return Ok(());
                }
                let fault = if !step.last {
                    Fault::new(Code::TooLarge, "a request is one frame")
                } else if frame.proto != self.proto {
                    Fault::new(Code::NotFound, "no such protocol")
                } else if phase != Phase::Open {
                    Fault::new(Code::Unavailable, "stopping")
                } else {
                    self.serve(frame, service, calls);
                    return Ok(());
                };
                self.push_urgent(refusal(&frame, &fault));
                Ok(())
            }
            Ok(Kind::Event) => {
                if frame.proto == PROTO_CONTROL {
                    return controlled(&state, &frame);
                }
                drop(state);
                if frame.proto == self.proto && step.first && step.last {
                    self.event(frame, service);
                }
                Ok(())
            }
            Err(error) => Err(error.reason()),
        }
    }

    fn answered(&self, state: &mut State, frame: Frame, last: bool) -> Result<(), &'static str> {
        let corr = frame.corr;
        if frame.payload.len() > CHUNK_BYTES {
            return Err("chunk_too_long");
        }
        if !last {
            let call = state.calls.get(&corr).ok_or("answer_before_request")?;
            return if call.slot.put(frame.payload) { Ok(()) } else { Err("credit") };
        }
        let call = state.calls.remove(&corr).ok_or("answer_before_request")?;
        let poke = state.phase == Phase::Draining && state.streams.is_idle();
        call.slot.end(match frame.code {
            Code::Ok | Code::Partial => Ok(frame.payload),
            code => Err(Fault::decode(code, &frame.payload).into_error(call.method)),
        });
        if poke {
            self.poke.notify_one();
        }
        Ok(())
    }
}

/// Acts on what the peer says about an exchange that it opened.
fn controlled(state: &State, frame: &Frame) -> Result<(), &'static str> {
    match Control::decode(&frame.payload) {
        Ok(Some(Control::Credit { corr, chunks })) => {
            // Of an exchange that has just ended here, the peer may not know yet.
            if let Some(serving) = state.serving.get(&corr) {
                serving.grant(chunks);
            }
            Ok(())
        }
        Ok(Some(Control::Cancel { corr })) => {
            if let Some(serving) = state.serving.get(&corr) {
                serving.cancel();
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(EnvelopeError::TooLarge) => Err("control_too_large"),
        Err(_) => Err("control"),
    }
}
