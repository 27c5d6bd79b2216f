//! The same over HTTP: one POST a commit, reads of the head, and subscribers.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use ron_core::{
    Supervisor,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    http::{Server, Settings},
};
use ron_registry::{Approval, Proposal, http};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    figures::{Figures, told},
    measure::{
        Bench, Contender, Outcome, Series, Stopwatch, cpu_of, peak_of, quantile, raise_file_limit, runtime,
        table, take_turns,
    },
    peers::registry::{People, in_an_hour, prepare, proposal, registry},
    sections::{
        serve::{Process, memory, wrk_once},
        store::{at_once, tell_small},
    },
};

const COMMITS: [(usize, u64); 3] = [(1, 3_000), (32, 12_000), (256, 15_000)];

/// Subscribers, and commits that they are told of, so many a second.
const SUBSCRIBERS: usize = 1000;
const TOLD: u64 = 100;
const TOLD_EVERY: Duration = Duration::from_millis(50);

/// Commits while subscribers take nothing.
const UNREAD: u64 = 20_000;

/// What the server may grow by meanwhile: the log itself has names and hashes in memory, a kilobyte or so for each commit. If
/// every one were kept for every subscriber, it would be gigabytes.
const GROWTH_MIB_MAX: f64 = 128.0;

const READ_SECONDS: u64 = 3;

struct Anybody;

impl Authorizer for Anybody {
    fn authorize(&self, _: &Action<'_>, _: &Credentials<'_>) -> Result<Grant, Denied> {
        Ok(Grant::new("bench".to_owned()))
    }
}

/// A server that is a process of this program.
struct Ours {
    child: Process,
    addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Ours {
    fn start(role: &str) -> Outcome<Self> {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(format!("--registry-{role}")).arg(dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or("it has an output")?);
        let (child, mut line) = (Process(child), String::new());
        out.read_line(&mut line)?;
        Ok(Ours { child, addr: line.trim().parse()?, _dir: dir })
    }
}

/// The process that is asked, until its input ends.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Outcome<()> {
    let [dir] = arguments else { return Err("a directory".into()) };
    raise_file_limit()?;
    runtime()?.block_on(async {
        let (host, people) = (Supervisor::new("bench"), People::new(1));
        let registry = registry(Path::new(dir), &people, &host).await?;
        if matches!(role, "axum" | "nested") {
            // The same words, from memory.
            let head = http::router(&registry);
            let request = axum::http::Request::get("/head").body(axum::body::Body::empty())?;
            let answer = tower::ServiceExt::oneshot(head, request).await?;
            let words = axum::body::to_bytes(answer.into_body(), 1 << 20).await?;
            let json = [("content-type", "application/json"), ("cache-control", "no-cache")];
            let head = get(move || async move { (json, words.clone()) });
            let routes = match role {
                "axum" => Router::new().route("/registry/head", head),
                // As ours is mounted.
                _ => Router::new().nest("/registry", Router::new().route("/head", head)),
            };
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?);
            let served = axum::serve(listener, routes).into_future();
            tokio::select! {
                served = served => served?,
                _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().count()) => {}
            }
            return Ok(());
        }
        let routes = http::router(&registry).merge(http::guarded(&registry, Arc::new(Anybody)));
        let mut settings = Settings::default();
        // All of them come from one address.
        (settings.connections_max, settings.connections_per_client) = (4096, 4096);
        // Whoever takes nothing is to stay for once.
        settings.io_timeout = Duration::from_secs(600);
        let server = Server::builder(Router::new().nest("/registry", routes)).settings(settings);
        let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start(&host).await?;
        println!("{}", server.local_addrs()[0]);
        std::io::stdout().flush()?;
        tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
        host.shutdown().await;
        Ok(())
    })
}

/// A commit in one POST: the bytes of the request.
fn request(proposal: &Proposal, approvals: &[Approval]) -> Vec<u8> {
    let base64 = |bytes: &[u8]| data_encoding::BASE64.encode(bytes);
    let approvals: Vec<String> =
        approvals.iter().map(|approval| format!("\"{}\"", base64(&approval.encode()))).collect();
    let body = format!(
        "{{\"proposal\":\"{}\",\"approvals\":[{}]}}",
        base64(proposal.encoded()),
        approvals.join(",")
    );
    format!(
        "POST /registry/commit HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn requests(from: u64, count: u64) -> Outcome<Vec<Vec<u8>>> {
    let (people, expires) = (People::new(1), in_an_hour()?);
    prepare(count, |number| {
        let proposal = proposal(from + number, expires)?;
        let approvals = people.approve(&proposal);
        Ok(request(&proposal, &approvals))
    })
}

/// A connection that is used again and again.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(addr: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Asks, and reads the whole answer: its status.
    async fn ask(&mut self, request: &[u8]) -> Outcome<u16> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("it was cut off".into());
            }
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end])?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.ok_or("it has a length")?.parse()?;
            if self.buffer.len() >= end + 4 + length {
                return Ok(head[9..12].parse()?);
            }
        }
    }
}

async fn commit(addr: SocketAddr, clients: usize, from: u64, count: u64) -> Outcome<Figures> {
    let requests = requests(from, count)?;
    let mut idle = Vec::new();
    for _ in 0..clients {
        idle.push(Connection::open(addr).await?);
    }
    let idle = Arc::new(std::sync::Mutex::new(idle));
    let call = move |request: Vec<u8>| {
        let idle = Arc::clone(&idle);
        async move {
            let mut connection = idle.lock().map_err(|_| "a caller panicked")?.pop().ok_or("one for each")?;
            let status = connection.ask(&request).await?;
            idle.lock().map_err(|_| "a caller panicked")?.push(connection);
            if status == 201 { Ok(()) } else { Err(format!("it said {status}").into()) }
        }
    };
    let mut figures = Figures::default();
    let watch = Stopwatch::start();
    let (_, times) = at_once(requests, clients, call).await?;
    tell_small(&mut figures, "commit", watch, count, times);
    Ok(figures)
}

pub(crate) fn run(bench: &Bench, rounds: usize) -> Outcome<()> {
    if bench.only.iter().any(|only| only != "http") {
        return Ok(());
    }
    raise_file_limit()?;
    println!("\nCommits of 1 KiB over HTTP, one of one, in one POST each:\n");
    let rows = COMMITS.into_iter().map(|(clients, work)| {
        let work = bench.scaled(work);
        let round = Contender::new("ron-registry", move || {
            let server = Ours::start("http")?;
            let (process, before) = (server.child.0.id(), cpu_of(server.child.0.id())?);
            let mut figures = runtime()?.block_on(commit(server.addr, clients, 0, work))?;
            figures.set("cpu", (cpu_of(process)? - before) * 1e6 / work as f64);
            figures.set("memory", peak_of(process)?);
            Ok(figures)
        });
        let series = take_turns(rounds, 1, vec![round])?;
        let of = |name: &str| series[0].median(|run| run.get(name));
        Ok(vec![
            clients.to_string(),
            told(of("commit.rate"), 0),
            told(of("commit.p50"), 2),
            told(of("commit.p99"), 2),
            told(of("cpu"), 1),
            told(of("memory"), 0),
        ])
    });
    let head = ["clients", "a second", "p50 ms", "p99 ms", "CPU µs each", "peak MiB"];
    table(&head, &rows.collect::<Outcome<Vec<_>>>()?);
    reads(bench, rounds)?;
    streams(bench)
}

/// The head, as often as it can be asked for.
fn reads(bench: &Bench, rounds: usize) -> Outcome<()> {
    if Command::new("wrk").arg("-v").output().is_err() {
        println!("\nLeft out: reads of the head. There is no `wrk` here.");
        return Ok(());
    }
    let seconds = if bench.is_quick() { 1 } else { READ_SECONDS };
    let (axum, nested, ours) = (Ours::start("axum")?, Ours::start("nested")?, Ours::start("http")?);
    let read = |server: &Ours| -> Outcome<Figures> {
        let (process, before) = (server.child.0.id(), cpu_of(server.child.0.id())?);
        let (rate, p50, p99) = wrk_once(&format!("http://{}/registry/head", server.addr), 64, seconds)?;
        let mut figures = Figures::default();
        let spent = cpu_of(process)? - before;
        figures.set("cpu", spent * 1e6 / (rate * seconds as f64));
        figures.set("memory", peak_of(process)?);
        for (name, value) in [("rate", rate), ("p50", p50), ("p99", p99)] {
            figures.set(name, value);
        }
        Ok(figures)
    };
    let series = take_turns(
        rounds,
        1,
        vec![
            Contender::new("axum, from memory", || read(&axum)),
            Contender::new("the same, nested", || read(&nested)),
            Contender::new("ron-registry", || read(&ours)),
        ],
    )?;
    let row = |one: &Series<Figures>| {
        let of = |name: &str| one.median(|run| run.get(name));
        vec![
            one.name.to_owned(),
            told(of("rate"), 0),
            told(one.ratio(&series[0], |run| run.get("rate")), 2),
            told(of("p50"), 2),
            told(of("p99"), 2),
            told(of("cpu"), 1),
            told(of("memory"), 0),
        ]
    };
    println!("\nReads of the head, 64 connections:\n");
    let head = ["", "a second", "of axum", "p50 ms", "p99 ms", "CPU µs each", "peak MiB"];
    table(&head, &series.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// A subscriber that is answered already.
async fn subscribe(addr: SocketAddr) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(b"GET /registry/stream HTTP/1.1\r\nhost: bench\r\n\r\n").await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(stream)
}

/// How soon subscribers hear of a commit, and what those cost who take nothing.
fn streams(bench: &Bench) -> Outcome<()> {
    let subscribers = if bench.is_quick() { 50 } else { SUBSCRIBERS };
    let (server, commits) = (Ours::start("http")?, bench.scaled(TOLD));
    let mut heard = runtime()?.block_on(deliver(server.addr, subscribers, commits))?;
    heard.sort_unstable();
    let millis = |part: f64| told(quantile(&heard, part).as_secs_f64() * 1e3, 2);
    println!(
        "\n{subscribers} subscribers hear of a commit, from the POST to each of them: p50 {} ms, p99 {} ms, the last {} ms.\n",
        millis(0.5),
        millis(0.99),
        millis(1.0),
    );
    drop(server);
    let (server, unread) = (Ours::start("http")?, bench.scaled(UNREAD));
    let (before, after) = runtime()?.block_on(async {
        let mut stalled = Vec::new();
        for _ in 0..subscribers {
            stalled.push(subscribe(server.addr).await?);
        }
        // What the process takes for commits as such is there before.
        commit(server.addr, 32, 0, unread).await?;
        let before = memory(server.child.0.id())?;
        commit(server.addr, 32, unread, unread).await?;
        Outcome::Ok((before, memory(server.child.0.id())?))
    })?;
    println!(
        "{subscribers} subscribers that take nothing: the server has {} MiB after {unread} commits and {} after as many more.",
        told(before, 0),
        told(after, 0),
    );
    if after - before > GROWTH_MIB_MAX {
        return Err("what nobody reads is kept".into());
    }
    Ok(())
}

async fn deliver(addr: SocketAddr, subscribers: usize, commits: u64) -> Outcome<Vec<Duration>> {
    let sent: Arc<Vec<std::sync::OnceLock<Instant>>> =
        Arc::new((0..commits).map(|_| std::sync::OnceLock::new()).collect());
    let mut readers = Vec::new();
    for _ in 0..subscribers {
        let (mut stream, sent) = (subscribe(addr).await?, Arc::clone(&sent));
        readers.push(tokio::spawn(async move {
            let (mut heard, mut bytes) = (Vec::new(), Vec::new());
            while heard.len() < sent.len() {
                if stream.read_buf(&mut bytes).await? == 0 {
                    return Err("a subscriber was cut off".into());
                }
                let now = Instant::now();
                while let Some(end) = bytes.windows(2).position(|two| two == b"\n\n") {
                    if bytes[..end].windows(4).any(|four| four == b"id: ") {
                        let began = sent[heard.len()].get().ok_or("it hears of what was sent")?;
                        heard.push(now - *began);
                    }
                    bytes.drain(..end + 2);
                }
            }
            Outcome::Ok(heard)
        }));
    }
    let mut publisher = Connection::open(addr).await?;
    for (request, at) in requests(0, commits)?.iter().zip(sent.iter()) {
        tokio::time::sleep(TOLD_EVERY).await;
        at.set(Instant::now()).map_err(|_| "once")?;
        publisher.ask(request).await?;
    }
    let mut heard = Vec::new();
    for reader in readers {
        heard.extend(reader.await??);
    }
    Ok(heard)
}
