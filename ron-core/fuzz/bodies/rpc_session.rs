//! What the fuzzer and the replay of its corpus both run: a real session, and a peer that says whatever the bytes say.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use ron_core::{
    Counter, Deadline, Metrics, Restart, Supervisor, TaskSpec,
    net::{
        Identity, KeyGroup, Link, PublicKey,
        oap::{Code, Frame, Hello},
        rpc::{Ask, Control, Fault, Handling, Method, Request, RpcSettings, Service, Session, Side},
    },
    now,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Made once: to make it takes longer than most scripts do.
static PEER: OnceLock<PublicKey> = OnceLock::new();

const PROTO: u16 = 100;
const CALLER: TaskSpec = TaskSpec::new("fuzz", "caller").restart(Restart::Expendable);
const SETTINGS: RpcSettings = RpcSettings {
    inflight_max: 4,
    request_bytes_max: 64 << 10,
    answer_bytes_max: 128 << 10,
    window_chunks: 2,
    budget_max: Duration::from_secs(60),
    hello_timeout: Duration::from_secs(3),
    idle_timeout: Duration::from_secs(60),
    read_timeout: Duration::from_secs(5),
    write_timeout: Duration::from_secs(5),
    drain: Duration::from_secs(3),
    queued_bytes_max: 1 << 20,
    requests_bytes_max: 128 << 10,
};

/// Plays the script that the bytes are. The first chooses which end we are, whether the peer says HELLO before its
/// script or the script in its place, into which pieces its bytes are cut, and how it ends. Whatever it does: nothing
/// panics, no more requests are at work than were agreed, every call of ours comes back, and everything ends in its time.
pub(crate) fn rpc_session(data: &[u8]) {
    let Some((mode, script)) = data.split_first() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("no I/O is asked for").block_on(play(*mode, script));
}

async fn play(mode: u8, script: &[u8]) {
    let metrics = Metrics::default();
    let host = Supervisor::builder("fuzz").metrics(metrics.clone()).start();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let key = *PEER.get_or_init(|| Identity::from_seed(&[1; 32]).public_key());
    let link = Link {
        stream: Box::new(ours),
        peer: key.node_id(),
        peer_key: key,
        alpn: "fuzz/1",
        remote: ([127, 0, 0, 1], 1).into(),
        group: KeyGroup::Memory,
    };
    let side = if mode & 1 == 0 { Side::Acceptor } else { Side::Dialer };
    let service = Arc::new(Desk::default());
    let mut peer = Peer { stream: theirs, piece: [usize::MAX, 1, 7, 61][usize::from(mode >> 2 & 3)] };
    let spawner = host.spawner();
    let started = Session::start(
        link,
        side,
        PROTO,
        Arc::clone(&service) as Arc<dyn Service>,
        SETTINGS,
        &spawner,
        &metrics,
    );
    let is_greeted = mode & 2 == 0;
    let began = now();
    let greeting = async {
        if is_greeted {
            peer.say(&hello(side, mode)).await;
        } else {
            peer.say(script).await;
            if mode & 0x40 != 0 {
                let _ = peer.stream.shutdown().await;
            }
        }
    };
    let (started, ()) = tokio::join!(started, greeting);
    assert!(!is_greeted || started.is_ok(), "{started:?}");
    assert!(now() - began <= Duration::from_secs(5), "HELLO has three seconds, and saying so half of one");

    let calls = Arc::new(Calls::default());
    if let Ok(session) = started {
        if is_greeted {
            let mut script = Script(script);
            while let Some(op) = script.byte() {
                step(op, &mut script, &mut peer, &session, &host, &calls).await;
            }
        }
        let began = now();
        if mode & 0x20 == 0 {
            drop(peer);
            session.ended().await;
        } else {
            session.shutdown().await;
        }
        assert!(now() - began <= Duration::from_secs(10), "it took {:?} to end", now() - began);
        assert_eq!(session.open_exchanges() * usize::from(session.is_open()), 0);
    }
    let stopped = host.shutdown().await;
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    let [made, back] = [&calls.made, &calls.back].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(made, back, "a call of ours never came back");
    assert_eq!(service.working.load(Ordering::SeqCst), 0, "a handler outlived its session");
    for task in ["rpc_session", "rpc_call", CALLER.name] {
        assert_eq!(metrics.tally(Counter::TasksPanicked, task).get(), 0, "{task}");
    }
    assert_eq!(metrics.tally(Counter::SessionsClosed, "overflow").get(), 0, "the room was not counted right");
}

/// One thing that the peer says, that we do, or that time does.
async fn step(
    op: u8,
    script: &mut Script<'_>,
    peer: &mut Peer,
    session: &Session,
    host: &Supervisor,
    calls: &Arc<Calls>,
) {
    let corr = u64::from(script.byte().unwrap_or(1) & 7);
    let size = script.byte().unwrap_or(0);
    match op & 7 {
        0 => peer.say(script.take(size.into())).await,
        // A header with a true length, and the rest as it comes.
        1 => {
            let rest = script.take(usize::from(size).max(34));
            let mut frame = (rest.len() as u32 + 4).to_be_bytes().to_vec();
            frame.extend_from_slice(rest);
            peer.say(&frame).await;
        }
        2 => {
            let ask = Ask { method: (op >> 3).into(), budget_ms: u32::from(size) * 100, credit: 2 };
            peer.say_frame(Frame::request(PROTO, corr, ask.encode(&[size; 40]))).await;
        }
        // An answer, which may or may not be owed.
        3 => {
            let code = [Code::Ok, Code::Partial, Code::Busy, Code::Failed][usize::from(op >> 3 & 3)];
            let payload = vec![op; usize::from(size) * 300];
            let frame = Frame { code, payload: payload.into(), ..Frame::request(PROTO, corr, &b""[..]) };
            // RESP, and START and END as the bits say.
            let flags = ron_core::net::oap::Flags::from_bits(2 | u16::from(op >> 5 & 3) << 3).expect("known");
            peer.say_frame(Frame { flags, ..frame }).await;
        }
        4 => {
            let chunks = u32::from(size) << (op >> 3);
            let control =
                if op & 8 == 0 { Control::Credit { corr, chunks } } else { Control::Cancel { corr } };
            peer.say_frame(control.frame()).await;
        }
        5 => {
            let (session, calls) = (session.clone(), Arc::clone(calls));
            calls.made.fetch_add(1, Ordering::SeqCst);
            host.spawn(CALLER, move |_| async move {
                let deadline = Deadline::after(Duration::from_millis(u64::from(size) * 50));
                let method = Method { number: 1, name: "ask" };
                match op >> 3 & 3 {
                    0 => drop(session.call(method, &[op], deadline).await),
                    1 => drop(session.notify(method, &[op; 300], deadline).await),
                    2 => drop(session.call(method.tenant(7).cap(&b"cap"[..]), &[op], deadline).await),
                    // Takes two pieces, and loses interest.
                    _ => {
                        if let Ok(mut chunks) = session.open(method, &[op], deadline).await {
                            let _ = (chunks.next().await, chunks.next().await);
                        }
                    }
                }
                calls.back.fetch_add(1, Ordering::SeqCst);
            });
        }
        6 => tokio::time::sleep(Duration::from_millis(u64::from(size).pow(2))).await,
        _ => {
            let mut heard = vec![0; usize::from(size) * 64 + 1];
            let _ =
                Deadline::after(Duration::from_millis(10)).limit("hear", peer.stream.read(&mut heard)).await;
        }
    }
}

fn hello(side: Side, mode: u8) -> Vec<u8> {
    // Few exchanges, so that running out of them is near.
    let hello = Hello { inflight_max: u32::from(mode >> 4 & 1) * 3 + 1, ..Hello::default() };
    encoded(match side {
        Side::Acceptor => hello.request(),
        Side::Dialer => Frame::answer(&hello.request(), Code::Ok, hello.encode()),
    })
}

fn encoded(frame: Frame) -> Vec<u8> {
    let mut encoded = frame.encode().expect("short enough");
    encoded.copy_to_bytes(encoded.remaining()).into()
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct Peer {
    stream: DuplexStream,
    piece: usize,
}

impl Peer {
    /// Says it, the beginning in pieces. A session that has ended does not listen, which is its right.
    async fn say(&mut self, bytes: &[u8]) {
        let (cut, rest) = bytes.split_at(bytes.len().min(self.piece.saturating_mul(64)));
        for piece in cut.chunks(self.piece).chain([rest]) {
            let said =
                Deadline::after(Duration::from_secs(1)).limit("say", self.stream.write_all(piece)).await;
            if !matches!(said, Ok(Ok(()))) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn say_frame(&mut self, frame: Frame) {
        // A frame that breaks a rule of the header is for the other kinds of bytes.
        if let Ok(mut frame) = frame.encode() {
            let bytes = frame.copy_to_bytes(frame.remaining());
            self.say(&bytes).await;
        }
    }
}

#[derive(Default)]
struct Calls {
    made: AtomicUsize,
    back: AtomicUsize,
}

/// Answers at once, later, in chunks, or never; and counts how many it does at a time.
#[derive(Default)]
struct Desk {
    working: Arc<AtomicUsize>,
}

struct Working(Arc<AtomicUsize>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service for Desk {
    fn call(&self, request: Request) -> Handling {
        let before = self.working.fetch_add(1, Ordering::SeqCst);
        let working = Working(Arc::clone(&self.working));
        assert!(before <= SETTINGS.inflight_max as usize, "more at work than was agreed");
        match request.method() % 6 {
            0 => Handling::Done(Ok(request.body().clone())),
            1 => Handling::Done(Ok(Bytes::from(vec![1; 100 << 10]))),
            2 => Handling::Done(Err(Fault::busy("desk", Duration::from_secs(1)))),
            3 => Handling::Pending(Box::pin(async move {
                let _working = working;
                for _ in 0..3 {
                    request.send(Bytes::from(vec![2; 64 << 10])).await?;
                }
                Ok(Bytes::new())
            })),
            4 => Handling::Pending(Box::pin(async move {
                let _working = working;
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok(request.body().clone())
            })),
            _ => Handling::Pending(Box::pin(async move {
                let _working = working;
                std::future::pending().await
            })),
        }
    }
}
