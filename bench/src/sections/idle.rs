//! Memory of many sessions that say nothing, between two processes.
//!
//! Each contender gets two fresh processes, one that dials and one that listens, and this one only gives them orders:
//! lines on their standard input, each answered by a line. A session's memory is what the resident set grew by while
//! the sessions were opened, over their number, after a few sessions that pay for what is allocated once. Nothing is
//! returned to the system by hand, so what the handshakes leave behind in the allocator counts.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use ron_core::{
    Lane, TaskSpec,
    net::{
        Link,
        oap::{FrameReader, FrameWriter, ReadSettings},
        rpc::{Session, Side},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_util::codec::Framed;

use super::handshakes::ADDRESSES;
use crate::{
    measure::{Bench, Outcome, median, raise_file_limit, resident, runtime, table, whole},
    peers::{
        codec,
        ron::{Carrier, EGRESS, End, Node, rpc},
        tls::Tls,
    },
};

const SESSIONS: u64 = 10_000;

/// Sessions that are opened first and not counted.
const WARM_UP: usize = 100;

/// File descriptors of a process beside its sessions.
const SPARE_FILES: u64 = 100;

/// Dials at once, few enough not to leave a mountain of handshake memory behind, as a node would.
const DIALS: usize = 32;

/// Longer than the second after which a reader gives a large buffer back.
const SETTLE: Duration = Duration::from_secs(3);

/// Full runs of it: each takes ten seconds.
const ROUNDS_MOST: usize = 3;

const READER: TaskSpec = TaskSpec::new("bench", "reader").what("waits for a frame");
const WRITER: TaskSpec = TaskSpec::new("bench", "writer").what("waits for something to send");

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let files = raise_file_limit()?;
    let sessions = bench.scaled(SESSIONS).min(files.saturating_sub(SPARE_FILES + WARM_UP as u64)) as usize;
    if (sessions as u64) < bench.scaled(SESSIONS) {
        println!("Only {sessions} sessions: the limit on file descriptors is {files}.\n");
    }
    let mut rows = Vec::new();
    for (kind, called) in [
        ("bare", "tokio-rustls, one task that reads"),
        ("frames", "`Endpoint`, OAP/1 reader and writer tasks"),
        ("rpc", "`Endpoint`, rpc session"),
    ] {
        let (mut dialling, mut listening, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.rounds.min(ROUNDS_MOST) {
            let cost = open(kind, sessions)?;
            dialling.push(cost.dialling);
            listening.push(cost.listening);
            rates.push(cost.per_second);
        }
        rows.push(vec![
            called.to_owned(),
            whole(sessions as f64),
            format!("{:.1}", median(dialling)),
            format!("{:.1}", median(listening)),
            whole(median(rates)),
        ]);
    }
    table(&["Session", "Sessions", "KiB each, dialling end", "KiB each, listening end", "Opened/s"], &rows);
    Ok(())
}

/// KiB per session at each end, and how fast they came.
struct Cost {
    dialling: f64,
    listening: f64,
    per_second: f64,
}

fn open(kind: &str, sessions: usize) -> Outcome<Cost> {
    let mut listener = Process::start(&["--idle-listen", kind])?;
    let addrs = listener.ask("addrs")?;
    let mut dialler = Process::start(&["--idle-dial", kind, &addrs])?;
    dialler.ask(&format!("open {WARM_UP}"))?;
    std::thread::sleep(SETTLE);
    let before = (dialler.resident()?, listener.resident()?);
    let began = Instant::now();
    dialler.ask(&format!("open {sessions}"))?;
    let took = began.elapsed();
    std::thread::sleep(SETTLE);
    for end in [&mut dialler, &mut listener] {
        let held: usize = end.ask("sessions")?.parse()?;
        if held != WARM_UP + sessions {
            return Err(format!("{held} sessions are open, not {}", WARM_UP + sessions).into());
        }
    }
    let each = |after: f64, before: f64| (after - before) / sessions as f64;
    Ok(Cost {
        dialling: each(dialler.resident()?, before.0),
        listening: each(listener.resident()?, before.1),
        per_second: sessions as f64 / took.as_secs_f64(),
    })
}

/// A process of one end. It ends when its standard input does.
pub(super) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(arguments: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("standard output is piped")?);
        Ok(Process { orders: child.stdin.take(), child, answers })
    }

    pub(super) fn ask(&mut self, order: &str) -> Outcome<String> {
        let orders = self.orders.as_mut().ok_or("standard input is piped")?;
        writeln!(orders, "{order}")?;
        orders.flush()?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(format!("the process ended when it was asked to {order}").into());
        }
        Ok(answer.trim().to_owned())
    }

    /// KiB in memory.
    pub(super) fn resident(&mut self) -> Outcome<f64> {
        Ok(self.ask("resident")?.parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// What such a process does: obeys until there are no more orders.
pub(crate) fn child(role: &str, arguments: &[String]) -> Outcome<()> {
    raise_file_limit()?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let [kind, rest @ ..] = arguments else { return Err("a kind of session is missing".into()) };
    let (end, addrs) = match role {
        "listen" => runtime.block_on(listen(kind))?,
        "dial" => {
            let addrs = rest.first().ok_or("addresses are missing")?.split(',');
            (Here::new(kind, End::Dials, &[])?, addrs.map(str::parse).collect::<Result<_, _>>()?)
        }
        other => return Err(format!("no role {other}").into()),
    };
    for order in std::io::stdin().lines() {
        let order = order?;
        let answer = match order.split_once(' ').unwrap_or((&order, "")) {
            ("addrs", _) => addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            ("open", count) => {
                runtime.block_on(dial_all(&end, &addrs, count.parse()?))?;
                "done".to_owned()
            }
            ("sessions", _) => end.sessions().to_string(),
            ("resident", _) => resident()?.to_string(),
            (other, _) => return Err(format!("no order {other}").into()),
        };
        println!("{answer}");
    }
    // Not one by one: the other end is going, too.
    std::process::exit(0)
}

/// One end, whichever of the two it is, and its sessions.
#[derive(Clone)]
struct Here {
    how: How,
    /// Tasks that wait for a frame.
    waiting: Arc<AtomicUsize>,
    calling: Arc<Mutex<Vec<Session>>>,
}

#[derive(Clone)]
enum How {
    Bare(Tls),
    Frames(Arc<Node>),
    Rpc(Arc<Node>),
}

impl Here {
    fn new(kind: &str, end: End, listen: &[SocketAddr]) -> Outcome<Self> {
        let node = || Outcome::Ok(Arc::new(Node::start(end, Carrier::Tcp, listen, 2 * SESSIONS as u32)?));
        let how = match kind {
            "bare" => How::Bare(Tls::new()?),
            "frames" => How::Frames(node()?),
            "rpc" => How::Rpc(node()?),
            other => return Err(format!("no kind {other}").into()),
        };
        Ok(Here { how, waiting: Arc::default(), calling: Arc::default() })
    }

    async fn dial(&self, addr: SocketAddr) -> Outcome<()> {
        match &self.how {
            How::Bare(tls) => self.hold_bare(tls.dial(addr).await?),
            How::Frames(node) | How::Rpc(node) => self.hold(node.dial(addr).await?, Side::Dialer).await?,
        }
        Ok(())
    }

    async fn hold(&self, link: Link, side: Side) -> Outcome<()> {
        match &self.how {
            How::Rpc(node) => {
                let session = rpc::session(link, side, node).await?;
                self.calling().push(session);
            }
            How::Frames(node) => self.hold_frames(link, node),
            How::Bare(_) => self.hold_bare(link.stream),
        }
        Ok(())
    }

    /// One task that waits for a frame.
    fn hold_bare(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let waiting = Waiting::new(&self.waiting);
        tokio::spawn(async move {
            let mut frames = Framed::new(stream, codec());
            while let Some(Ok(_)) = frames.next().await {}
            drop(waiting);
        });
    }

    /// One task that waits for a frame, one that waits for something to send, and the lane between it and whoever has
    /// something.
    fn hold_frames(&self, link: Link, node: &Node) {
        let (read, write) = tokio::io::split(link.stream);
        let (lane, inbox) = Lane::open(EGRESS, &node.metrics);
        let writer = FrameWriter::new(write, &node.metrics);
        let settings = ReadSettings { idle_timeout: Duration::from_secs(3600), ..ReadSettings::default() };
        let mut reader = FrameReader::new(read, settings, &node.metrics);
        let waiting = Waiting::new(&self.waiting);
        let _ = node.supervisor.spawn(WRITER, |stop| async {
            let _ = writer.run(inbox, stop).await;
        });
        let _ = node.supervisor.spawn(READER, move |_| async move {
            while let Ok(Some(_)) = reader.next().await {}
            drop((lane, waiting));
        });
    }

    /// How many live.
    fn sessions(&self) -> usize {
        let calling = self.calling().iter().filter(|session| session.is_open()).count();
        calling + self.waiting.load(Ordering::Relaxed)
    }

    fn calling(&self) -> MutexGuard<'_, Vec<Session>> {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts while it lives.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(count))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes in what comes to [`ADDRESSES`], in tasks of its own.
async fn listen(kind: &str) -> Outcome<(Here, Vec<SocketAddr>)> {
    let addrs: Vec<SocketAddr> = ADDRESSES.iter().map(|addr| addr.parse()).collect::<Result<_, _>>()?;
    let here = Here::new(kind, End::Listens, &addrs)?;
    if let How::Frames(node) | How::Rpc(node) = &here.how {
        let (end, node) = (here.clone(), Arc::clone(node));
        let addrs = node.endpoint.local_addrs().to_vec();
        tokio::spawn(async move {
            while let Some(link) = node.inbox.recv().await {
                let end = end.clone();
                tokio::spawn(async move { end.hold(link, Side::Acceptor).await });
            }
        });
        return Ok((here, addrs));
    }
    let How::Bare(tls) = &here.how else { return Err("there is no other way".into()) };
    let mut taken = Vec::new();
    for addr in addrs {
        let listener = TcpListener::bind(addr).await?;
        taken.push(listener.local_addr()?);
        let (end, tls) = (here.clone(), tls.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (end, tls) = (end.clone(), tls.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(tcp).await {
                        end.hold_bare(stream);
                    }
                });
            }
        });
    }
    Ok((here, taken))
}

async fn dial_all(here: &Here, addrs: &[SocketAddr], count: usize) -> Outcome<()> {
    let mut tasks = JoinSet::new();
    for addr in addrs.iter().copied().cycle().take(count) {
        if tasks.len() == DIALS {
            tasks.join_next().await.ok_or("there are tasks")???;
        }
        let here = here.clone();
        tasks.spawn(async move { here.dial(addr).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
