//! The callee's end of an exchange: a request, its handler, and an answer within its time and credit.

use std::{
    fmt,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    super::oap::{CHUNK_BYTES, Code, Flags, Frame},
    Ask, Event, Fault, Handling, Service, Session,
    shared::{Shared, weigh},
};
use crate::{
    Counter, Deadline, NodeId, Restart, Spawner, TaskEnd, TaskSpec,
    auth::{Action, Authorizer, Credentials},
    net::BoxFuture,
    now,
    permits::Permit,
    shutdown::Latch,
    supervisor::{catch, catch_all},
};

pub(super) const CALL: TaskSpec = TaskSpec::new("ron-core", "rpc_call").restart(Restart::Expendable).what(
    "one request of a peer that takes time, until it is answered, given up by its caller or out of time",
);

/// When to ask again, if too much is at work.
const REQUESTS_RETRY: Duration = Duration::from_millis(100);

/// A body or capability up to this size is copied out of what was read.
const COPY_MAX: usize = 16 << 10;

/// A request of a peer.
pub struct Request {
    shared: Arc<Shared>,
    serving: Arc<Serving>,
    method: u16,
    body: Bytes,
    cap: Bytes,
}

/// What the exchange needs while it is open.
pub(super) struct Serving {
    pub(super) proto: u16,
    pub(super) tenant: u128,
    pub(super) corr: u64,
    /// The caller gave up, or the session ended.
    canceled: Latch,
    credit: Semaphore,
    began: Instant,
    /// Until when the caller wants the answer, and how long it may go without a chunk.
    wanted: Deadline,
    patience: Duration,
    /// Milliseconds from `began` to the last chunk.
    moved_ms: AtomicU64,
    /// Its share of what requests may hold.
    _held: Option<Permit>,
    /// How far the answer is. Read and written under the session's lock, in which its frames are queued.
    progress: AtomicU8,
}

/// How far an answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Before = 0,
    Begun = 1,
    Ended = 2,
}

impl Serving {
    fn new(request: &Frame, ask: &Ask, began: Instant, patience: Duration, held: Option<Permit>) -> Self {
        let Frame { proto, tenant, corr, .. } = *request;
        Serving {
            proto,
            tenant,
            corr,
            canceled: Latch::new(),
            credit: Semaphore::new((ask.credit as usize).min(Semaphore::MAX_PERMITS)),
            began,
            wanted: Deadline::at(began + ask.budget()),
            patience: patience.min(Deadline::LONGEST),
            moved_ms: AtomicU64::new(0),
            _held: held,
            progress: AtomicU8::new(0),
        }
    }

    /// When it began, or a chunk was last taken.
    pub(super) fn moved(&self) -> Instant {
        self.began + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    fn move_on(&self) {
        let elapsed = now().duration_since(self.began).as_millis();
        self.moved_ms.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Until when it may go on, as far as is known now.
    fn until(&self) -> Deadline {
        self.wanted.min(Deadline::at(self.moved() + self.patience))
    }

    pub(super) fn cancel(&self) {
        self.canceled.set();
    }

    pub(super) fn grant(&self, chunks: u32) {
        let room = Semaphore::MAX_PERMITS - self.credit.available_permits();
        self.credit.add_permits((chunks as usize).min(room));
    }

    pub(super) fn progress(&self) -> Progress {
        match self.progress.load(Ordering::Relaxed) {
            0 => Progress::Before,
            1 => Progress::Begun,
            _ => Progress::Ended,
        }
    }

    pub(super) fn set_progress(&self, progress: Progress) {
        self.progress.store(progress as u8, Ordering::Relaxed);
    }

    /// A frame of the answer.
    pub(super) fn frame(&self, flags: Flags, code: Code, payload: Bytes) -> Frame {
        let Serving { proto, tenant, corr, .. } = *self;
        Frame { flags: Flags::RESP | flags, code, proto, tenant, corr, cap: Bytes::new(), payload }
    }
}

impl Request {
    /// What is asked.
    #[must_use]
    pub fn method(&self) -> u16 {
        self.method
    }

    /// With which arguments.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The capability that came with it; empty if none did.
    #[must_use]
    pub fn cap(&self) -> &Bytes {
        &self.cap
    }

    /// Whether what it shows allows `action`. Without an authorizer nobody may.
    ///
    /// # Errors
    /// [`Fault::forbidden`], which does not say why not.
    pub fn authorize(&self, authorizer: Option<&dyn Authorizer>, action: &'static str) -> Result<(), Fault> {
        let refused = || Fault::forbidden("not with this capability");
        let bearer = std::str::from_utf8(&self.cap).ok().filter(|cap| !cap.is_empty());
        let credentials = Credentials::bearer(bearer).from_address(Some(self.remote().ip()));
        let authorizer = authorizer.ok_or_else(refused)?;
        authorizer.authorize(&Action::new(action, ""), &credentials).map(drop).map_err(|_| refused())
    }

    /// On whose behalf; 0 when unused.
    #[must_use]
    pub fn tenant(&self) -> u128 {
        self.serving.tenant
    }

    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> NodeId {
        self.shared.peer
    }

    /// Where that is, as seen from here.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.shared.remote
    }

    /// The session that it came over, for whoever has to ask back before it can answer.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { shared: Arc::clone(&self.shared) }
    }

    /// Until when the answer is wanted. It moves as chunks of the answer are taken, up to what the caller wants.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.serving.until()
    }

    /// Sends a part of the answer, in pieces of 64 KiB, each as soon as the caller has room for it. The handler's
    /// result follows as the last part.
    ///
    /// # Errors
    /// A [`Fault`] when the caller gave up or the time is spent: return it.
    pub async fn send(&self, mut part: Bytes) -> Result<(), Fault> {
        while !part.is_empty() {
            let chunk = part.split_to(part.len().min(CHUNK_BYTES));
            self.shared.send_chunk(&self.serving, chunk).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request(method {} of {:?}, {} B)", self.method, self.shared.peer, self.body.len())
    }
}

impl Shared {
    /// Hands a request that came just now, in one frame, to the service.
    pub(super) fn serve(
        self: &Arc<Self>,
        frame: Frame,
        at: Instant,
        service: &Arc<dyn Service>,
        spawner: &Spawner,
    ) {
        let (ask, body) = match Ask::decode(frame.payload.clone()) {
            Ok(read) => read,
            Err(error) => {
                return self.refuse(&frame, &Fault::bad_request(error.to_string()));
            }
        };
        let held = match weigh(&frame) as u64 {
            0 => None,
            bytes => match self.requests.permits().try_take(bytes) {
                Some(held) => Some(held),
                None => {
                    self.count(Counter::BusyRejections, self.requests.name());
                    return self.refuse(&frame, &Fault::busy(self.requests.name(), REQUESTS_RETRY));
                }
            },
        };
        let serving = Arc::new(Serving::new(&frame, &ask, at, self.settings.budget_max, held));
        if serving.until() <= Deadline::at(at) {
            return self.finish(&serving, Err(out_of_time()));
        }
        let request = Request {
            shared: Arc::clone(self),
            serving: Arc::clone(&serving),
            method: ask.method,
            body: apart(body),
            cap: apart(frame.cap),
        };
        let handling = catch(|| service.call(request)).unwrap_or_else(|panic| {
            self.panicked(&panic);
            Handling::Done(Err(Fault::new(Code::Failed, "panicked")))
        });
        match handling {
            Handling::Done(Err(fault)) => self.finish(&serving, Err(fault)),
            Handling::Done(Ok(body)) if body.len() <= CHUNK_BYTES => self.finish(&serving, Ok(body)),
            Handling::Done(Ok(body)) => {
                self.serve_later(serving, Box::pin(std::future::ready(Ok(body))), spawner);
            }
            Handling::Pending(work) => self.serve_later(serving, work, spawner),
        }
    }

    pub(super) fn event(&self, frame: Frame, service: &Arc<dyn Service>) {
        let Frame { tenant, cap, payload, .. } = frame;
        match Ask::decode(payload) {
            Ok((Ask { method, .. }, body)) => {
                let event = Event { peer: self.peer, remote: self.remote, method, tenant, cap, body };
                if let Err(panic) = catch(|| service.event(event)) {
                    self.panicked(&panic);
                }
            }
            Err(_) => self.count(Counter::FrameRejects, "event"),
        }
    }

    fn serve_later(
        self: &Arc<Self>,
        serving: Arc<Serving>,
        work: BoxFuture<'static, Result<Bytes, Fault>>,
        spawner: &Spawner,
    ) {
        if !self.begin_serving(&serving) {
            return;
        }
        let shared = Arc::clone(self);
        let task = spawner.spawn(CALL, {
            let serving = Arc::clone(&serving);
            move |_| async move {
                let outcome = shared.handle(&serving, work).await;
                shared.finish(&serving, outcome);
            }
        });
        // Only if the group has stopped and never ran it: a task that ran has answered.
        if task.end() == Some(TaskEnd::Refused) {
            self.finish(&serving, Err(Fault::new(Code::Unavailable, "stopping")));
        }
    }

    /// Runs a handler to its end, or to that of its caller's interest or of its time, whichever comes first, and sends
    /// all of the answer but the last piece.
    async fn handle(
        &self,
        serving: &Serving,
        work: BoxFuture<'static, Result<Bytes, Fault>>,
    ) -> Result<Bytes, Fault> {
        let work = async {
            let mut rest = catch_all(work).await.unwrap_or_else(|panic| {
                self.panicked(&panic);
                Err(Fault::new(Code::Failed, "panicked"))
            })?;
            while rest.len() > CHUNK_BYTES {
                self.send_chunk(serving, rest.split_to(CHUNK_BYTES)).await?;
            }
            Ok(rest)
        };
        let in_time = async {
            let mut work = pin!(work);
            loop {
                let until = serving.until();
                match until.limit("rpc", work.as_mut()).await {
                    // It was given more time meanwhile, chunk by chunk.
                    Err(_) if serving.until() > until => {}
                    done => return done,
                }
            }
        };
        tokio::select! {
            biased;
            () = serving.canceled.wait() => {
                self.count(Counter::TasksCanceled, CALL.name);
                Err(Fault::new(Code::Unavailable, "canceled"))
            }
            done = in_time => match done {
                Ok(done) => done,
                Err(_) => {
                    self.count(Counter::IoTimeouts, CALL.name);
                    Err(out_of_time())
                }
            },
        }
    }

    /// One chunk, as soon as the caller has room for it.
    async fn send_chunk(&self, serving: &Serving, chunk: Bytes) -> Result<(), Fault> {
        let gone = || Fault::new(Code::Unavailable, "canceled");
        let send = async {
            let credit = tokio::select! {
                biased;
                () = serving.canceled.wait() => return Err(gone()),
                credit = serving.credit.acquire() => credit.map_err(|_| gone())?,
            };
            let room = tokio::select! {
                biased;
                () = serving.canceled.wait() => return Err(gone()),
                room = self.bulk_room.acquire() => room.map_err(|_| gone())?,
            };
            // From here on nothing waits: either the chunk was not begun, or it is queued and noted as sent.
            self.push_part(serving, chunk)?;
            credit.forget();
            room.forget();
            serving.move_on();
            Ok(())
        };
        serving.until().limit("rpc_chunk", send).await.map_err(Fault::from)?
    }

    /// The end of an answer, after parts of it or as the whole of it.
    fn finish(&self, serving: &Arc<Serving>, outcome: Result<Bytes, Fault>) {
        let (code, payload) = match outcome {
            Ok(body) => (Code::Ok, body),
            // A refusal that says it is none would be taken for an answer.
            Err(Fault { code: Code::None | Code::Ok | Code::Partial, reason, .. }) => {
                tracing::error!(%reason, "a handler refused with a code that is no refusal");
                (Code::Failed, Fault::new(Code::Failed, reason).encode())
            }
            Err(fault) => (fault.code, fault.encode()),
        };
        self.push_end(serving, code, payload);
    }

    fn panicked(&self, message: &str) {
        tracing::error!(kind = CALL.name, panic = message, "task panicked");
        self.count(Counter::TasksPanicked, CALL.name);
    }
}

/// The same bytes in memory of their own, if they are few: those that came lie in what was read with them, which may be a
/// thousand times as much and is not counted as held by the request.
fn apart(bytes: Bytes) -> Bytes {
    if bytes.len() <= COPY_MAX { Bytes::copy_from_slice(&bytes) } else { bytes }
}

fn out_of_time() -> Fault {
    Fault::new(Code::Timeout, "the time of the request is spent")
}

/// The answer to a request that is not handed to the service.
pub(super) fn refusal(request: &Frame, fault: &Fault) -> Frame {
    Frame::answer(request, fault.code, fault.encode())
}
