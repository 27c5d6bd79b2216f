//! What the tasks, callers and handlers of one session share: what is open, and the way to the writer.
//!
//! Every frame of ours is noted in the state and queued within one critical section, so what the peer sees is always
//! what the state says. Queued answers count as open towards the peer until the writer takes them: a peer that asks and
//! does not read runs into the number of exchanges that it was given, and not into our memory.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{
    super::oap::{
        Agreed, CHUNK_BYTES, Code, Direction, Few, Flags, Frame, FrameError, HEADER_BYTES, Kind,
        PROTO_CONTROL, Streams, WireError,
    },
    Ask, Chunks, Control, EnvelopeError, Fault, Outbox, RpcError, RpcSettings, Service, Side,
    chunks::Slot,
    envelope::ASK_BYTES_MAX,
    serve::{Progress, Serving, refusal},
};
use crate::{
    CallError, Counter, Deadline, Lane, LaneSpec, Lock, LockSpec, MemoryBudget, Metrics, NodeId, Spawner,
    net::{KeyGroup, PublicKey},
    now,
    permits::{Permit, Permits},
    shutdown::Latch,
};

/// Chunks and events that wait for the writer.
pub(super) const BULK_ROOM: usize = 32;

/// Exchanges that one end may have open, whatever HELLO says.
pub(super) const EXCHANGES_MAX: u32 = 1024;

/// Frames that one open call of ours can have waiting: itself, a cancel and, since credit is granted in halves, two
/// grants.
pub(super) const FRAMES_PER_CALL: usize = 4;

/// The longest capability: its length has two bytes in the header.
const CAP_BYTES_MAX: usize = u16::MAX as usize;

/// What a callee may take to end an answer that was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// A peer that let a call run out of time and said nothing at all for this long is taken for gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Payloads up to this size weigh nothing: there is always room to say no.
const WEIGHTLESS: usize = 1 << 10;

pub(super) const URGENT: LaneSpec = LaneSpec::new("ron-core", "rpc_urgent", 641)
    .flow("callers, reader and handlers → writer of one session")
    .why("one answer for each of 128 exchanges of the peer, a request and three control events for each of ours");

pub(super) const BULK: LaneSpec = LaneSpec::new("ron-core", "rpc_bulk", 160)
    .flow("handlers and event senders → writer of one session")
    .why("32 chunks or events, and the end of 128 streamed answers");

pub(super) const STATE: LockSpec = LockSpec::new("ron-core", "rpc.session", 860)
    .guards("what is open on one session; held for a map operation and a push");

/// The bytes a frame takes of the budget for what waits to be written.
pub(super) fn weigh(frame: &Frame) -> usize {
    let bytes = frame.cap.len() + frame.payload.len();
    if bytes <= WEIGHTLESS { 0 } else { bytes }
}

/// What sessions that belong together may hold in memory, together.
pub(super) struct Budgets {
    /// Requests, answers and events that wait to be written.
    pub(super) queued: MemoryBudget,
    /// Requests at work.
    pub(super) requests: MemoryBudget,
}

impl Budgets {
    pub(super) fn new(queued_bytes: u64, requests_bytes: u64) -> Self {
        Budgets {
            queued: MemoryBudget::new("rpc_queued", queued_bytes),
            requests: MemoryBudget::new("rpc_requests", requests_bytes),
        }
    }
}

/// Who wants to know that a session has ended.
pub(super) trait Owner: Send + Sync {
    fn ended(&self, session: &Arc<Shared>, reason: &'static str);
}

pub(super) struct Shared {
    pub(super) peer: NodeId,
    pub(super) remote: SocketAddr,
    pub(super) settings: RpcSettings,
    pub(super) side: Side,
    pub(super) key: PublicKey,
    pub(super) group: KeyGroup,
    pub(super) proto: u16,
    pub(super) agreed: Agreed,
    pub(super) began: Instant,
    pub(super) urgent: Lane<Frame>,
    pub(super) bulk: Lane<Frame>,
    pub(super) bulk_room: Semaphore,
    /// Events that their owner keeps until they are asked for, and whether they are.
    pub(super) outbox: OnceLock<Arc<dyn Outbox>>,
    pub(super) is_emptying: AtomicBool,
    /// Whether any were sent since that was last looked at.
    pub(super) is_poured: AtomicBool,
    /// Whether the service was told of its beginning, and whether it is over: see [`Shared::live`].
    pub(super) life: AtomicU8,
    /// Tells the writer to look into the lanes and the outbox: whoever pushes or closes rings.
    pub(super) bell: Notify,
    /// How many exchanges we may have open.
    pub(super) places: Permits,
    /// What requests at work may hold.
    pub(super) requests: MemoryBudget,
    pub(super) state: Lock<State>,
    /// Ends of answers that wait for the writer.
    pub(super) answers_queued: AtomicUsize,
    /// Tells the reader to look at the state.
    pub(super) poke: Notify,
    /// The writer has written all it will.
    pub(super) written: Latch,
    /// The writer is to stop where it is.
    pub(super) cut: Latch,
    /// Halves of the session that have not ended.
    pub(super) halves: AtomicUsize,
    pub(super) ended: Latch,
    pub(super) metrics: Metrics,
    pub(super) owner: Option<Weak<dyn Owner>>,
}

pub(super) struct State {
    streams: Streams,
    calls: Few<Call>,
    serving: Few<Arc<Serving>>,
    corr: u64,
    /// The latest deadline of any open call of ours.
    until: Option<Deadline>,
    /// When the reader looks at the state, unless it is told to before. It keeps the time of all calls: to set a timer
    /// for each would cost more than a small call does.
    look_at: Option<Deadline>,
    phase: Phase,
    /// When a call or event last began in either direction, and when anything last came.
    used: Instant,
    heard: Instant,
    /// When we last called, or sent an event.
    asked: Instant,
    retired: Option<Retired>,
    /// How long the drain may take; set with [`Phase::Draining`].
    drain_until: Option<Deadline>,
    /// Why the session cannot go on, found by somebody else than the reader.
    broken: Option<Why>,
}

/// See [`Shared::live`].
#[derive(Clone, Copy)]
pub(super) enum Life {
    Told = 1,
    Over = 2,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing new begins; what is open is finished. With `stopping` because the whole group is, else because another
    /// session is wanted more.
    Draining {
        stopping: bool,
    },
    /// The writer takes nothing more.
    Written,
    Ended,
}

/// Another session has taken the place of this one.
#[derive(Clone, Copy)]
struct Retired {
    /// It closes when nothing was called for this long,
    quiet: Duration,
    /// and at this time in any case.
    until: Deadline,
}

/// A call of ours whose answer has not ended, whether or not anybody still wants it.
struct Call {
    slot: Arc<Slot>,
    method: &'static str,
    asked: Instant,
    /// By when its answer must end: its caller's deadline or, once the callee was told to stop, what that may take.
    until: Deadline,
    canceled: bool,
    _place: Permit,
}

/// Why a session ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Why {
    PeerClosed,
    Idle,
    Shutdown,
    /// It never began, or its tasks were cut off.
    Aborted,
    /// Calls ran out of time and nothing came.
    Silent,
    /// A lane whose room is counted had none.
    Overflow,
    Violation(&'static str),
    Link(WireError),
    WriterGone,
}

impl Why {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Why::PeerClosed => "peer",
            Why::Idle => "idle",
            Why::Shutdown => "shutdown",
            Why::Aborted => "aborted",
            Why::Silent => "silent",
            Why::Overflow => "overflow",
            Why::Violation(_) => "violation",
            Why::Link(_) => "link",
            Why::WriterGone => "writer",
        }
    }

    /// Whether what is queued is still worth writing.
    pub(super) fn is_orderly(&self) -> bool {
        matches!(self, Why::PeerClosed | Why::Idle | Why::Shutdown)
    }
}

impl Call {
    /// Nobody wants the answer any more.
    fn cancel(&mut self, at: Instant) {
        (self.canceled, self.until) = (true, Deadline::at(at + CANCEL_GRACE));
    }
}

impl State {
    pub(super) fn new(ours_max: usize, theirs_max: usize) -> Self {
        State {
            streams: Streams::new(ours_max, theirs_max),
            calls: Few::new(),
            serving: Few::new(),
            corr: 0,
            until: None,
            look_at: None,
            phase: Phase::Open,
            used: now(),
            heard: now(),
            asked: now(),
            retired: None,
            drain_until: None,
            broken: None,
        }
    }

    fn is_drained(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. }) && self.streams.is_idle()
    }
}

impl Shared {
    pub(super) async fn ask(
        self: &Arc<Self>,
        call: &super::Call,
        body: &[u8],
        deadline: Deadline,
        window: u32,
    ) -> Result<Chunks, RpcError> {
        self.check_size("request", call, body)?;
        let method = call.method;
        let place = match self.places.try_take(1) {
            Some(place) => place,
            None => deadline.limit(method.name, self.places.take(1)).await?,
        };
        let asked = now();
        // Rounded up: a request with time left never says that it has none.
        let budget_ms = deadline.instant().saturating_duration_since(asked).as_micros().div_ceil(1000);
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
            Phase::Draining { stopping: true } => return Err(RpcError::Canceled),
            Phase::Draining { .. } | Phase::Written | Phase::Ended => return Err(RpcError::Closed),
        }
        state.corr += 1;
        let frame = call.put_into(Frame::request(self.proto, state.corr, payload));
        let corr = frame.corr;
        // The frame itself is handed over, and only if there is room for its bytes; its head is what is noted.
        let head = Frame { cap: frame.cap.clone(), payload: Bytes::new(), ..frame };
        match self.urgent.try_push(frame) {
            Ok(()) => {
                self.note_sent(&mut state, &head);
                self.bell.notify_one();
            }
            Err(CallError::Canceled) => return Err(RpcError::Closed),
            Err(refused) => return Err(refused.into()),
        }
        let call = Call {
            slot: Arc::clone(&slot),
            method: method.name,
            asked,
            until: deadline,
            canceled: false,
            _place: place,
        };
        state.calls.insert(corr, call);
        state.until = state.until.max(Some(deadline));
        (state.used, state.asked) = (asked, asked);
        let sooner = state.look_at.is_none_or(|look_at| deadline < look_at);
        if sooner {
            state.look_at = Some(deadline);
        }
        drop(state);
        if sooner {
            self.poke.notify_one();
        }
        Ok(Chunks { shared: Arc::clone(self), slot, corr, method, window, taken: 0, end: None })
    }

    /// An event, once there is room for it in the bulk lane.
    pub(super) fn push_event(&self, call: &super::Call, body: &[u8]) -> Result<(), RpcError> {
        let ask = Ask { method: call.method.number, budget_ms: 0, credit: 0 };
        let frame = call.put_into(Frame::event(self.proto, 0, ask.encode(body)));
        let mut state = self.state.lock();
        state.used = now();
        state.asked = state.used;
        match self.bulk.try_push(frame) {
            Ok(()) => {
                self.bell.notify_one();
                Ok(())
            }
            Err(CallError::Canceled) => Err(RpcError::Closed),
            Err(refused) => Err(refused.into()),
        }
    }

    pub(super) fn check_size(
        &self,
        what: &'static str,
        call: &super::Call,
        body: &[u8],
    ) -> Result<(), RpcError> {
        let max = self.agreed.send_bytes_max as usize - HEADER_BYTES - ASK_BYTES_MAX;
        let too_large = |what, bytes: usize, max: usize| {
            Err(RpcError::TooLarge { what, bytes: bytes as u64, max: max as u64 })
        };
        match (call.cap.len(), body.len()) {
            (cap, _) if cap > CAP_BYTES_MAX.min(max) => too_large("capability", cap, CAP_BYTES_MAX.min(max)),
            (cap, body) if body > max - cap => too_large(what, body, max - cap),
            _ => Ok(()),
        }
    }

    /// Says something about our exchange `corr`, unless it is over.
    pub(super) fn control(&self, corr: u64, control: Control) {
        let mut state = self.state.lock();
        if state.calls.get(corr).is_some() {
            self.push(&mut state, &self.urgent, control.frame());
        }
    }

    /// Nobody wants the answer to our exchange `corr` any more. Its callee is told, and must end it in time.
    pub(super) fn cancel(&self, corr: u64) {
        let mut state = self.state.lock();
        // Told already if its time was spent: to tell again would give the callee more time to end it.
        let Some(call) = state.calls.get_mut(corr).filter(|call| !call.canceled) else { return };
        call.cancel(now());
        self.push(&mut state, &self.urgent, Control::Cancel { corr }.frame());
        drop(state);
        self.poke.notify_one();
    }

    /// Queues a part of an answer. Nothing is queued if the answer is over or the budget for what waits is spent.
    pub(super) fn push_part(&self, serving: &Serving, chunk: Bytes) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let flags = match serving.progress() {
            Progress::Before => Flags::START,
            Progress::Begun => Flags::NONE,
            Progress::Ended => return Err(Fault::new(Code::Unavailable, "the answer has ended")),
        };
        let frame = serving.frame(flags, Code::Partial, chunk);
        self.bulk.try_push(frame.clone())?;
        self.bell.notify_one();
        serving.set_progress(Progress::Begun);
        self.note_sent(&mut state, &frame);
        Ok(())
    }

    /// Queues the end of an answer, behind its parts or as the whole of it. The first end counts.
    pub(super) fn push_end(&self, serving: &Arc<Serving>, code: Code, payload: Bytes) {
        let mut state = self.state.lock();
        let (flags, lane) = match serving.progress() {
            Progress::Before => (Flags::NONE, &self.urgent),
            Progress::Begun => (Flags::END, &self.bulk),
            Progress::Ended => return,
        };
        serving.set_progress(Progress::Ended);
        if state.serving.get(serving.corr).is_some_and(|held| Arc::ptr_eq(held, serving)) {
            state.serving.remove(serving.corr);
        }
        let frame = serving.frame(flags, code, payload);
        self.push_answer(&mut state, lane, frame);
    }

    /// Answers a request that is not handed to the service.
    pub(super) fn refuse(&self, request: &Frame, fault: &Fault) {
        let mut state = self.state.lock();
        self.push_answer(&mut state, &self.urgent, refusal(request, fault));
    }

    fn push_answer(&self, state: &mut State, lane: &Lane<Frame>, frame: Frame) {
        self.note_sent(state, &frame);
        self.answers_queued.fetch_add(1, Ordering::Relaxed);
        let pushed = match lane.try_push_or_return(frame) {
            // So much waits already that this answer does not fit. To say that, there is room.
            Err((refused @ CallError::Busy { .. }, frame)) if weigh(&frame) > 0 => {
                let fault = Fault::from(refused);
                lane.try_push(Frame { code: fault.code, payload: fault.encode(), ..frame })
            }
            pushed => pushed.map_err(|(refused, _)| refused),
        };
        self.expect_room(state, pushed);
        if state.is_drained() {
            self.poke.notify_one();
        }
    }

    fn push(&self, state: &mut State, lane: &Lane<Frame>, frame: Frame) {
        let pushed = lane.try_push(frame);
        self.expect_room(state, pushed);
    }

    /// A lane whose room is counted refuses only when it is closed. If not, the two ends are out of step.
    fn expect_room(&self, state: &mut State, pushed: Result<(), CallError>) {
        self.bell.notify_one();
        if matches!(pushed, Err(CallError::Busy { .. })) {
            self.fail(state, Why::Overflow);
        }
    }

    fn note_sent(&self, state: &mut State, frame: &Frame) {
        let noted = state.streams.on_frame(Direction::Sent, frame);
        debug_assert!(noted.is_ok(), "{frame:?}: {noted:?}");
    }

    fn fail(&self, state: &mut State, why: Why) {
        state.broken.get_or_insert(why);
        self.poke.notify_one();
    }

    /// From now on the writer asks `outbox` for events.
    pub(super) fn attach(&self, outbox: Arc<dyn Outbox>) {
        if self.outbox.set(outbox).is_ok() {
            self.is_emptying.store(true, Ordering::Release);
            self.bell.notify_one();
        }
    }

    /// The outbox, as long as the writer is to ask it.
    pub(super) fn outbox(&self) -> Option<&Arc<dyn Outbox>> {
        if self.is_emptying.load(Ordering::Acquire) { self.outbox.get() } else { None }
    }

    /// One of the two ends of its life: the service was told of its beginning, or it is over. Says whether the other one
    /// was before, and so who has to tell the service of the end: whoever comes second.
    pub(super) fn live(&self, end: Life) -> bool {
        self.life.fetch_or(end as u8, Ordering::AcqRel) & !(end as u8) != 0
    }

    /// Events of the outbox were taken. Noted when somebody asks since when it is unused, which is rare.
    pub(super) fn poured(&self) {
        self.is_poured.store(true, Ordering::Relaxed);
    }

    fn note_poured(&self, state: &mut State) {
        if self.is_poured.load(Ordering::Relaxed) {
            self.is_poured.store(false, Ordering::Relaxed);
            state.used = now();
            state.asked = state.used;
        }
    }

    /// Whether events of an outbox would be sent over it.
    pub(super) fn takes_events(&self) -> bool {
        self.is_emptying.load(Ordering::Acquire) && self.is_open()
    }

    /// The writer took a frame.
    pub(super) fn taken(&self, frame: &Frame) {
        let ends =
            frame.flags.has(Flags::END) || !frame.flags.has(Flags::START) && frame.code != Code::Partial;
        if frame.flags.has(Flags::RESP) && ends {
            self.answers_queued.fetch_sub(1, Ordering::Relaxed);
        }
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

    pub(super) fn count(&self, counter: Counter, label: &'static str) {
        self.metrics.tally(counter, label).add(1);
    }

    /// When it was last used in either direction, if nothing is open now.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        self.note_poured(&mut state);
        state.streams.is_idle().then_some(state.used)
    }

    /// When a session on which only the peer has something open last moved in any of it. What it began and does not end
    /// moves when it begins.
    pub(super) fn served_since(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        self.note_poured(&mut state);
        let moved = state.serving.iter_mut().map(|(_, serving)| serving.moved()).max().unwrap_or(state.used);
        state.calls.is_empty().then_some(moved)
    }

    /// When we last called over a session on which only the peer has something open.
    pub(super) fn unasked_since(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        self.note_poured(&mut state);
        state.calls.is_empty().then_some(state.asked)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    pub(super) fn open_exchanges(&self) -> usize {
        let state = self.state.lock();
        state.streams.open(Direction::Sent) + state.streams.open(Direction::Received)
    }

    /// Another session has taken its place: it serves what comes, and closes when nothing did for `quiet`.
    pub(super) fn retire(&self, quiet: Duration, at_most: Duration) {
        self.is_emptying.store(false, Ordering::Release);
        self.state.lock().retired = Some(Retired { quiet, until: Deadline::after(at_most) });
        self.poke.notify_one();
    }

    /// Begins nothing new, and closes when what is open is done, at the latest at `until`.
    pub(super) fn drain(&self, until: Deadline, stopping: bool) {
        self.is_emptying.fetch_and(stopping, Ordering::AcqRel);
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining { stopping };
            state.drain_until = Some(until);
        }
        drop(state);
        self.poke.notify_one();
    }

    /// What the state asks of the reader: to end, or to look again at some time.
    pub(super) fn look(&self) -> Result<Option<Deadline>, Why> {
        let mut state = self.state.lock();
        if let Some(why) = state.broken.take() {
            return Err(why);
        }
        let due = self.expire(&mut state)?;
        let idle = state.streams.is_idle();
        let look_at = match (state.phase, state.retired) {
            (Phase::Written, _) => return Err(Why::WriterGone),
            (Phase::Ended, _) => return Err(Why::Shutdown),
            (Phase::Draining { .. }, _) => match state.drain_until {
                Some(until) if !idle && !until.has_passed() => Some(until),
                _ => return Err(Why::Shutdown),
            },
            (Phase::Open, None) => None,
            (Phase::Open, Some(Retired { quiet, until })) => {
                let quiet_at = Deadline::at(state.used + quiet);
                if until.has_passed() || quiet_at.has_passed() && idle {
                    state.phase = Phase::Draining { stopping: false };
                    return Err(Why::Shutdown);
                }
                Some(if quiet_at.has_passed() { until } else { quiet_at.min(until) })
            }
        };
        state.look_at = look_at.into_iter().chain(due).min();
        Ok(state.look_at)
    }

    /// Ends the calls whose time is spent and tells their callees. Says when the next one is due.
    fn expire(&self, state: &mut State) -> Result<Option<Deadline>, Why> {
        let now = now();
        let (mut due, mut late) = (None::<Deadline>, Vec::new());
        for (corr, call) in state.calls.iter_mut() {
            if call.until.instant() <= now {
                if call.canceled {
                    return Err(Why::Violation("no_end"));
                }
                self.count(Counter::IoTimeouts, call.method);
                call.slot.end(Err(RpcError::Timeout { op: call.method }));
                if state.heard < call.asked && now.duration_since(state.heard) >= SILENCE_MAX {
                    return Err(Why::Silent);
                }
                call.cancel(now);
                late.push(corr);
            }
            due = due.into_iter().chain([call.until]).min();
        }
        for corr in late {
            self.push(state, &self.urgent, Control::Cancel { corr }.frame());
        }
        Ok(due)
    }

    /// Whether silence is to be expected: we are at work, wait for an answer whose time has not come, or are the one
    /// who talks.
    pub(super) fn is_waiting(&self) -> bool {
        let mut state = self.state.lock();
        self.note_poured(&mut state);
        !state.serving.is_empty()
            || !state.calls.is_empty() && state.until.is_some_and(|until| !until.has_passed())
            || now().duration_since(state.used) < self.settings.idle_timeout
    }

    /// Acts on a frame that came just now.
    ///
    /// # Errors
    /// The rule that it breaks, which ends the session.
    pub(super) fn received(
        self: &Arc<Self>,
        frame: Frame,
        at: Instant,
        service: &Arc<dyn Service>,
        calls: &Spawner,
    ) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        state.heard = at;
        let step = state.streams.on_frame(Direction::Received, &frame).map_err(|error| error.reason())?;
        match frame.flags.kind().map_err(|error| error.reason())? {
            Kind::Answer => self.answered(&mut state, frame, step.last),
            Kind::Request => {
                if !step.first {
                    let drained = state.is_drained();
                    drop(state);
                    if drained {
                        self.poke.notify_one();
                    }
                    return Ok(());
                }
                self.check_places(&state)?;
                state.used = state.heard;
                let phase = state.phase;
                drop(state);
                let fault = if !step.last {
                    Fault::new(Code::TooLarge, "a request is one frame")
                } else if frame.proto != self.proto {
                    Fault::new(Code::NotFound, "no such protocol")
                } else if phase != Phase::Open {
                    Fault::new(Code::Unavailable, "stopping")
                } else {
                    self.serve(frame, at, service, calls);
                    return Ok(());
                };
                self.refuse(&frame, &fault);
                Ok(())
            }
            Kind::Event if frame.proto == PROTO_CONTROL => controlled(&state, &frame),
            Kind::Event => {
                state.used = state.heard;
                drop(state);
                if frame.proto == self.proto && step.first && step.last {
                    self.event(frame, service);
                }
                Ok(())
            }
        }
    }

    /// A frame that was skipped because it is compressed. A request is told so; an answer that is lost cannot be.
    pub(super) fn skipped(&self, error: &FrameError) -> Result<(), &'static str> {
        let Some(answer) = error.answer() else {
            let is_event = matches!(error, FrameError::Compressed { kind: Kind::Event, .. });
            return if is_event { Ok(()) } else { Err(error.reason()) };
        };
        let mut state = self.state.lock();
        self.check_places(&state)?;
        self.answers_queued.fetch_add(1, Ordering::Relaxed);
        self.push(&mut state, &self.urgent, answer);
        Ok(())
    }

    /// A peer knows that an answer has come only when the writer has taken it: until then it counts as open.
    fn check_places(&self, state: &State) -> Result<(), &'static str> {
        let taken = state.streams.open(Direction::Received) + self.answers_queued.load(Ordering::Relaxed);
        if taken > self.agreed.theirs_max as usize { Err("too_many") } else { Ok(()) }
    }

    fn answered(&self, state: &mut State, frame: Frame, last: bool) -> Result<(), &'static str> {
        let corr = frame.corr;
        if frame.payload.len() > CHUNK_BYTES {
            return Err("chunk_too_long");
        }
        if (frame.code == Code::Partial) == last {
            return Err("code");
        }
        if !last {
            let call = state.calls.get(corr).ok_or("answer_before_request")?;
            return if call.slot.put(frame.payload) { Ok(()) } else { Err("credit") };
        }
        let call = state.calls.remove(corr).ok_or("answer_before_request")?;
        if state.calls.is_empty() {
            state.until = None;
        }
        call.slot.end(match frame.code {
            Code::Ok => Ok(frame.payload),
            code => Err(Fault::decode(code, &frame.payload).into_error(call.method)),
        });
        if state.is_drained() {
            self.poke.notify_one();
        }
        Ok(())
    }

    /// Tells everybody that it is over.
    pub(super) fn end(self: &Arc<Self>, why: &Why) {
        let (calls, serving) = {
            let mut state = self.state.lock();
            if state.phase == Phase::Ended {
                return;
            }
            state.phase = Phase::Ended;
            (state.calls.drain(), state.serving.drain())
        };
        if !why.is_orderly() {
            self.cut.set();
        }
        self.urgent.close();
        self.bulk.close();
        self.bulk_room.close();
        self.is_emptying.store(false, Ordering::Release);
        self.bell.notify_one();
        self.count(Counter::SessionsClosed, why.reason());
        for call in calls {
            call.slot.end(Err(RpcError::Closed));
        }
        for serving in serving {
            serving.cancel();
        }
        if let Some(owner) = self.owner.as_ref().and_then(Weak::upgrade) {
            owner.ended(self, why.reason());
        }
    }

    /// The writer takes nothing more.
    pub(super) fn writer_gone(&self) {
        self.urgent.close();
        self.bulk.close();
        self.bulk_room.close();
        let mut state = self.state.lock();
        if state.phase != Phase::Ended {
            state.phase = Phase::Written;
        }
        drop(state);
        self.written.set();
        self.poke.notify_one();
    }

    /// One of the two halves has ended.
    pub(super) fn half_ended(&self) {
        if self.halves.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.set();
        }
    }
}

/// Acts on what the peer says about an exchange that it opened.
fn controlled(state: &State, frame: &Frame) -> Result<(), &'static str> {
    // Of an exchange that has just ended here, the peer may not know yet.
    match Control::decode(&frame.payload) {
        Ok(Some(Control::Credit { corr, chunks })) => {
            if let Some(serving) = state.serving.get(corr) {
                serving.grant(chunks);
            }
        }
        Ok(Some(Control::Cancel { corr })) => {
            if let Some(serving) = state.serving.get(corr) {
                serving.cancel();
            }
        }
        Ok(None) => {}
        Err(EnvelopeError::TooLarge) => return Err("control_too_large"),
        Err(_) => return Err("control"),
    }
    Ok(())
}
