//! Does a node stay as it is under load, for as long as one likes to wait?
//!
//! Two nodes as processes, of which one is asked for everything at once over real sockets: objects are put, read, checked and
//! deleted, names resolved, providers looked for, messages published, entries committed. First it shows what it can do, then it is
//! asked for four fifths of that for a long time, then for three times as much as it can do. What it uses is read from the
//! system, how long it takes is counted by whoever asks. It fails if something grows that should not, if a byte is wrong, or
//! if anything is refused without saying why.
//!
//!   cargo build --release -p refd && cargo run --release -p refd --example soak -- [--minutes 30] [--beyond 5] [--svg FILE]
//!   ... -- --quick    some seconds of each, to see that it runs: what grows in them is not judged

#![allow(clippy::disallowed_methods, reason = "a program of its own: threads, and the clock of the machine")]

use std::{
    collections::VecDeque,
    error::Error,
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Objects that are there from the beginning to the end.
const OBJECTS: u64 = 2_000;

/// Who asks while the node can keep up, and who does when it cannot.
const CALLERS: usize = 32;
const CROWD: usize = 256;

/// How much of what it can do it is asked for.
const SHARE: f64 = 0.8;
const TOO_MUCH: f64 = 3.0;

/// How often somebody commits an entry.
const COMMIT_EVERY: Duration = Duration::from_secs(10);

/// What may be between the beginning and the end of a phase: bytes of memory as a ratio, descriptors and tasks as a difference,
/// the p99 as a ratio. Callers that come and go between two samples are some tasks.
const MEMORY_MAX: f64 = 1.1;
const MORE_MAX: u64 = 48;
const LATENCY_MAX: f64 = 2.0;

/// How much of what is due has to be asked for while the node can keep up.
const ASKED_MIN: f64 = 0.98;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    steady: Duration,
    beyond: Duration,
    svg: Option<PathBuf>,
    /// Whether it only has to run: in some seconds everything is still growing.
    is_quick: bool,
}

fn options() -> Outcome<Options> {
    let minutes = |text: Option<String>| -> Outcome<Duration> {
        Ok(Duration::from_secs_f64(text.ok_or("a number of minutes")?.parse::<f64>()? * 60.0))
    };
    let mut options = Options {
        steady: Duration::from_secs(30 * 60),
        beyond: Duration::from_secs(5 * 60),
        svg: None,
        is_quick: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--minutes" => options.steady = minutes(arguments.next())?,
            "--beyond" => options.beyond = minutes(arguments.next())?,
            "--svg" => options.svg = Some(arguments.next().ok_or("a file")?.into()),
            "--quick" => {
                (options.steady, options.beyond) = (Duration::from_secs(10), Duration::from_secs(5));
                options.is_quick = true;
            }
            "--help" => {
                println!(
                    "soak [--minutes 30] [--beyond 5] [--svg FILE] [--quick]; RON_REFD is the refd to run"
                );
                std::process::exit(0);
            }
            other => return Err(format!("no option {other}; --help says which there are").into()),
        }
    }
    Ok(options)
}

fn run() -> Outcome<bool> {
    let options = options()?;
    let home = tempfile::tempdir()?;
    let node = Arc::new(Node::start(home.path(), "one", None)?);
    let other = Node::start(home.path(), "two", Some(&node.seed))?;
    node.refd(&["registry", "key", &node.key()])?;
    node.refd(&["registry", "init", "--needed", "1", "--signer", &format!("one={}", node.key())])?;
    let load = Arc::new(Load::new(Arc::clone(&node)));
    load.fill()?;
    node.commit(0)?;
    println!("{OBJECTS} objects of 1 to 64 KiB, two nodes, {CALLERS} callers");

    let warm = Duration::from_secs(if options.steady < Duration::from_secs(60) { 3 } else { 20 });
    let trial = load.phase("as much as it can", CALLERS, None, warm)?;
    let capacity = trial.rate();
    println!("it answers {capacity:.0} requests a second when it is asked for all it can do");
    let steady = load.phase("four fifths", CALLERS, Some(capacity * SHARE), options.steady)?;
    let (committed, failed) = load.govern_counts();
    let beyond = load.phase("three times", CROWD, Some(capacity * TOO_MUCH), options.beyond)?;
    // Whoever was in the crowd is gone.
    thread::sleep(Duration::from_secs(2));
    let rest = node.usage()?;

    let (mut is_well, phases) = (true, [&steady, &beyond]);
    println!(
        "\n| phase | s | due/s | asked/s | answered/s | refused/s | p50 ms | p99 ms, first and last | MiB, first and last | MiB an hour | descriptors | tasks |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for phase in phases {
        let (first, last) = phase.ends();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2}, {:.2} | {:.1}, {:.1} | {:+.1} | {}, {} | {}, {} |",
            phase.name,
            phase.took.as_secs_f64(),
            phase.due,
            phase.asked as f64 / phase.took.as_secs_f64(),
            phase.rate(),
            phase.refused as f64 / phase.took.as_secs_f64(),
            last.p50_ms,
            first.p99_ms,
            last.p99_ms,
            mib(first.usage.memory),
            mib(last.usage.memory),
            phase.growth(),
            first.usage.descriptors,
            last.usage.descriptors,
            first.usage.tasks,
            last.usage.tasks,
        );
        let mut holds = |what: &str, is_so: bool| {
            if !is_so && !options.is_quick {
                println!("{}: {what} grew", phase.name);
                is_well = false;
            }
        };
        holds("memory", mib(last.usage.memory) <= mib(first.usage.memory) * MEMORY_MAX + 4.0);
        holds("descriptors", last.usage.descriptors <= first.usage.descriptors + MORE_MAX);
        holds("tasks", last.usage.tasks <= first.usage.tasks + MORE_MAX);
        holds("the p99", last.p99_ms <= first.p99_ms * LATENCY_MAX + 1.0);
    }
    println!(
        "\nafter the crowd: {:.1} MiB, {} descriptors, {} tasks",
        mib(rest.memory),
        rest.descriptors,
        rest.tasks
    );
    let (all_committed, all_failed) = load.govern_counts();
    println!(
        "entries committed: {committed} and {failed} not in the first phase, {} and {} not in the second",
        all_committed - committed,
        all_failed - failed
    );
    if failed > 0 {
        println!("an entry was not committed while the node could keep up");
        is_well = false;
    }
    if (steady.asked as f64) < steady.due * steady.took.as_secs_f64() * ASKED_MIN {
        println!("it was not asked for four fifths of what it can do");
        is_well = false;
    }
    if rest.descriptors > steady.ends().1.usage.descriptors + MORE_MAX
        || rest.tasks > steady.ends().1.usage.tasks + MORE_MAX
    {
        println!("what the crowd opened is not closed");
        is_well = false;
    }
    for wrong in load.wrong.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("wrong: {wrong}");
        is_well = false;
    }
    if let Some(path) = &options.svg {
        std::fs::write(path, chart(&phases))?;
    }
    node.stop()?;
    other.stop()?;
    println!("{}", if is_well { "it stayed as it was" } else { "it did not stay as it was" });
    Ok(is_well)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A `refd run`, and what it takes to ask it.
struct Node {
    child: Mutex<Child>,
    program: PathBuf,
    data: PathBuf,
    seed: String,
    admin: SocketAddr,
    token: String,
}

/// What a process uses.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    memory: u64,
    descriptors: u64,
    tasks: u64,
}

impl Node {
    fn start(home: &Path, name: &str, seed: Option<&str>) -> Outcome<Node> {
        let program = match std::env::var_os("RON_REFD") {
            Some(program) => program.into(),
            // target/release/examples/soak, and the program beside that directory.
            None => std::env::current_exe()?
                .ancestors()
                .nth(2)
                .ok_or("no directory of programs")?
                .join(format!("refd{}", std::env::consts::EXE_SUFFIX)),
        };
        let data = home.join(name);
        let mut command = Command::new(&program);
        command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(&data);
        command.args(seed.iter().flat_map(|seed| ["--seed", seed]));
        command.env("REFD_OVERLAY__TOPICS", "[\"soak\"]").env("REFD_LOG", "error");
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", program.display()))?;
        let mut out = BufReader::new(child.stdout.take().ok_or("it has an output")?);
        let (mut seed, mut admin) = (None, None);
        while seed.is_none() || admin.is_none() {
            let mut line = String::new();
            if out.read_line(&mut line)? == 0 {
                return Err("the node did not start".into());
            }
            seed = seed.or(line.split_once("--seed ").map(|(_, seed)| seed.trim().to_owned()));
            let url = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
            admin = admin.or(url.map(|(admin, _)| admin.to_owned()));
        }
        // What it says at its end needs somebody who reads it.
        thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let (seed, admin) = (seed.ok_or("a seed")?, admin.ok_or("an address")?.parse()?);
        let token = std::fs::read_to_string(data.join("token"))?.trim().to_owned();
        let node = Node { child: Mutex::new(child), program, data, seed, admin, token };
        for _ in 0..600 {
            if node.line(1)?.ask("GET", "/readyz", b"")?.0 == 200 {
                return Ok(node);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err("the node did not become ready".into())
    }

    fn key(&self) -> String {
        self.data.join("signer").display().to_string()
    }

    fn refd(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        if arguments.get(1) != Some(&"key") {
            command.args(["--node", &format!("http://{}", self.admin), "--data-dir"]).arg(&self.data);
        }
        let output = command.output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?.trim().to_owned()),
            false => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// One more entry: one of a hundred names stands for something else.
    fn commit(&self, number: u64) -> Outcome<()> {
        let (name, id) = (format!("soak/{}", number % 100), format!("b3:{number:064x}"));
        let proposal = self.refd(&["registry", "propose", &name, "--artifact", &id])?;
        self.refd(&["registry", "approve", &proposal, "--key", &self.key()])?;
        Ok(())
    }

    /// A connection, from an address of its own for every 64 callers.
    fn line(&self, caller: usize) -> Outcome<Line> {
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 1, u8::try_from(1 + caller / 64)?), 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect(&self.admin.into())?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let stream = TcpStream::from(socket);
        let (admin, token) = (self.admin, self.token.clone());
        Ok(Line { reader: BufReader::with_capacity(1 << 16, stream.try_clone()?), stream, admin, token })
    }

    fn usage(&self) -> Outcome<Usage> {
        let id = self.child.lock().unwrap_or_else(PoisonError::into_inner).id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse()?;
        let descriptors = std::fs::read_dir(format!("/proc/{id}/fd"))?.count() as u64;
        let (_, metrics) = self.line(CROWD)?.ask("GET", "/metrics", b"")?;
        let metrics = String::from_utf8(metrics)?;
        let sum = |name: &str| -> u64 {
            let lines = metrics.lines().filter(|line| !line.starts_with('#') && line.contains(name));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
        };
        let tasks = sum("_tasks_spawned_total{").saturating_sub(sum("_tasks_ended_total{"));
        Ok(Usage { memory: kib << 10, descriptors, tasks })
    }

    fn stop(&self) -> Outcome<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the node ended with {status}").into()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A connection that is kept.
struct Line {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    admin: SocketAddr,
    token: String,
}

impl Line {
    /// The status of an answer and its body.
    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Outcome<(u16, Vec<u8>)> {
        let (admin, token, length) = (self.admin, &self.token, body.len());
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend(body);
        self.stream.write_all(&request)?;
        let (mut line, mut length) = (String::new(), None);
        self.reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).ok_or("the connection was closed")?.parse()?;
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = Some(value.trim().parse::<usize>()?);
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length.unwrap_or(0)];
        self.reader.read_exact(&mut body)?;
        Ok((status, body))
    }
}

/// The content of an object, by its number.
fn content(number: u64) -> Vec<u8> {
    let length = usize::try_from(1024 + number.wrapping_mul(2_654_435_761) % (63 << 10)).unwrap_or(1024);
    let mut content = vec![0; length];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut content);
    content
}

fn id(content: &[u8]) -> String {
    format!("b3:{}", blake3::hash(content).to_hex())
}

/// Everything that is asked of a node.
struct Load {
    node: Arc<Node>,
    /// Names of those that stay, by their number.
    ids: Vec<String>,
    /// What was put and is deleted when there is more.
    put: Mutex<VecDeque<u64>>,
    next: AtomicU64,
    committed: AtomicU64,
    not_committed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// What came of a request.
enum Came {
    Answered,
    Refused,
}

/// When requests are due.
#[derive(Clone, Copy)]
struct Pace {
    /// So many a second, or one after the other.
    rate: Option<f64>,
    began: Instant,
    /// Whether more is due than can be asked for.
    is_crowd: bool,
}

/// A phase of the load, and what was seen while it lasted.
struct Phase {
    name: &'static str,
    took: Duration,
    /// How many a second should be asked for.
    due: f64,
    asked: u64,
    answered: u64,
    refused: u64,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Seconds since the phase began.
    at: f64,
    usage: Usage,
    answered: f64,
    refused: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Phase {
    fn rate(&self) -> f64 {
        self.answered as f64 / self.took.as_secs_f64()
    }

    /// How fast its memory grows, in MiB an hour: the slope of the straight line through its samples, without the first tenth.
    fn growth(&self) -> f64 {
        let samples = &self.samples[self.samples.len() / 10..];
        let mean = |figure: &dyn Fn(&Sample) -> f64| {
            samples.iter().map(figure).sum::<f64>() / samples.len().max(1) as f64
        };
        let (at, memory) = (mean(&|sample| sample.at), mean(&|sample| mib(sample.usage.memory)));
        let together = mean(&|sample| (sample.at - at) * (mib(sample.usage.memory) - memory));
        3600.0 * together / mean(&|sample| (sample.at - at).powi(2)).max(1e-9)
    }

    /// The medians of its first quarter, without the first tenth of all, and of its last.
    fn ends(&self) -> (Sample, Sample) {
        let count = self.samples.len();
        let quarter = (count / 4).max(1);
        let warm = (count / 10).min(count - quarter);
        (middle(&self.samples[warm..warm + quarter]), middle(&self.samples[count - quarter..]))
    }
}

/// Of each figure the middle one.
fn middle(samples: &[Sample]) -> Sample {
    let of = |figure: &dyn Fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Sample {
        at: of(&|sample| sample.at),
        usage: Usage {
            memory: of(&|sample| sample.usage.memory as f64) as u64,
            descriptors: of(&|sample| sample.usage.descriptors as f64) as u64,
            tasks: of(&|sample| sample.usage.tasks as f64) as u64,
        },
        answered: of(&|sample| sample.answered),
        refused: of(&|sample| sample.refused),
        p50_ms: of(&|sample| sample.p50_ms),
        p99_ms: of(&|sample| sample.p99_ms),
    }
}

/// What callers tell whoever samples.
#[derive(Default)]
struct Counted {
    asked: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    times: Mutex<Vec<Duration>>,
}

impl Load {
    fn new(node: Arc<Node>) -> Self {
        let ids = (0..OBJECTS).map(|number| id(&content(number))).collect();
        let (put, wrong) = (Mutex::new(VecDeque::new()), Mutex::new(Vec::new()));
        let next = AtomicU64::new(OBJECTS);
        let (committed, not_committed) = (AtomicU64::new(0), AtomicU64::new(0));
        Load { node, ids, put, next, committed, not_committed, wrong }
    }

    fn fill(&self) -> Outcome<()> {
        let mut line = self.node.line(0)?;
        for number in 0..OBJECTS {
            let (status, body) = line.ask("POST", "/o", &content(number))?;
            if !(200..300).contains(&status) {
                return Err(format!("{status} {}", String::from_utf8_lossy(&body)).into());
            }
        }
        line.ask("POST", &format!("/dht/provide/{}", self.ids[0]), b"")?;
        Ok(())
    }

    /// One request out of the mix.
    fn one(&self, line: &mut Line, draw: u64) -> Outcome<Came> {
        let number = draw / 100 % OBJECTS;
        let known = &self.ids[usize::try_from(number)?];
        let mut doomed = None;
        let (what, (status, body)) = match draw % 100 {
            0..50 => ("get", line.ask("GET", &format!("/o/{known}"), b"")?),
            50..60 => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let answer = line.ask("POST", "/o", &content(number))?;
                if answer.0 < 300 {
                    self.put.lock().unwrap_or_else(PoisonError::into_inner).push_back(number);
                }
                ("put", answer)
            }
            60..70 => match self.put.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                Some(number) => {
                    doomed = Some(number);
                    ("delete", line.ask("DELETE", &format!("/o/{}", id(&content(number))), b"")?)
                }
                None => ("head", line.ask("GET", "/registry/head", b"")?),
            },
            70..85 => ("resolve", line.ask("GET", &format!("/resolve/{known}"), b"")?),
            85..90 => ("name", line.ask("GET", "/registry/names/soak/0", b"")?),
            90..95 => ("head", line.ask("GET", "/registry/head", b"")?),
            95..98 => (
                "providers",
                line.ask("GET", &format!("/dht/providers/{}?timeout_ms=2000", self.ids[0]), b"")?,
            ),
            _ => ("gossip", line.ask("POST", "/gossip/soak", b"a word to whoever listens")?),
        };
        if what == "get" && status == 200 && body != content(number) {
            return Err(format!("{known} is not what was put").into());
        }
        match status {
            200..300 => Ok(Came::Answered),
            // Refusals say so, and for how long. What could not be deleted is deleted by somebody else.
            429 | 503 | 504
                if serde_json::from_slice::<serde_json::Value>(&body)
                    .is_ok_and(|words| words["code"].is_string()) =>
            {
                self.put.lock().unwrap_or_else(PoisonError::into_inner).extend(doomed);
                Ok(Came::Refused)
            }
            status => Err(format!("{what}: {status} {}", String::from_utf8_lossy(&body)).into()),
        }
    }

    /// Asks for `lasts`: at `rate` a second, or as often as it is answered. A time is from when the request was due, so that who
    /// has to wait for a caller that waits is counted with its wait. If more is due than callers can ask for, which is what a
    /// crowd is, those that are due wait for ever longer whatever the node does: then a time is from when it was asked.
    fn phase(
        self: &Arc<Self>,
        name: &'static str,
        callers: usize,
        rate: Option<f64>,
        lasts: Duration,
    ) -> Outcome<Phase> {
        let (began, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let (counted, turn) = (Arc::new(Counted::default()), Arc::new(AtomicU64::new(0)));
        let pace = Pace { rate, began, is_crowd: callers == CROWD };
        let mut threads = Vec::new();
        for caller in 0..callers {
            let (load, counted, turn, is_over) =
                (Arc::clone(self), Arc::clone(&counted), Arc::clone(&turn), Arc::clone(&is_over));
            threads.push(thread::spawn(move || load.call(caller, pace, &counted, &turn, &is_over)));
        }
        {
            let (load, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            threads.push(thread::spawn(move || load.govern(&is_over)));
        }
        let every = (lasts / 180).max(Duration::from_millis(500));
        let (mut samples, mut before) = (Vec::new(), (0, 0));
        while began.elapsed() < lasts {
            thread::sleep(every);
            let mut times =
                std::mem::take(&mut *counted.times.lock().unwrap_or_else(PoisonError::into_inner));
            times.sort_unstable();
            let ms = |share: f64| {
                let at = (times.len() as f64 * share) as usize;
                times.get(at.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e3)
            };
            let now = (counted.answered.load(Ordering::Relaxed), counted.refused.load(Ordering::Relaxed));
            samples.push(Sample {
                at: began.elapsed().as_secs_f64(),
                usage: self.node.usage()?,
                answered: (now.0 - before.0) as f64 / every.as_secs_f64(),
                refused: (now.1 - before.1) as f64 / every.as_secs_f64(),
                p50_ms: ms(0.5),
                p99_ms: ms(0.99),
            });
            before = now;
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a caller panicked")?;
        }
        Ok(Phase {
            name,
            took: began.elapsed(),
            due: rate.unwrap_or_default(),
            asked: counted.asked.load(Ordering::Relaxed),
            answered: counted.answered.load(Ordering::Relaxed),
            refused: counted.refused.load(Ordering::Relaxed),
            samples,
        })
    }

    fn call(&self, caller: usize, pace: Pace, counted: &Counted, turn: &AtomicU64, is_over: &AtomicBool) {
        let mut line = None;
        while !is_over.load(Ordering::Relaxed) {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let mut due = Instant::now();
            if let Some(rate) = pace.rate {
                due = pace.began + Duration::from_secs_f64(turn as f64 / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if pace.is_crowd {
                    due = Instant::now();
                }
            }
            counted.asked.fetch_add(1, Ordering::Relaxed);
            let draw = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
            let came = match &mut line {
                Some(line) => self.one(line, draw),
                None => self.node.line(caller).and_then(|new| self.one(line.insert(new), draw)),
            };
            match came {
                Ok(Came::Answered) => {
                    counted.answered.fetch_add(1, Ordering::Relaxed);
                    counted.times.lock().unwrap_or_else(PoisonError::into_inner).push(due.elapsed());
                }
                Ok(Came::Refused) => {
                    counted.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    line = None;
                    let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    if wrong.len() < 20 {
                        wrong.push(error.to_string());
                    }
                }
            }
        }
    }

    /// Commits an entry now and then.
    fn govern(&self, is_over: &AtomicBool) {
        let (mut last, (committed, failed)) = (Instant::now(), self.govern_counts());
        let mut number = committed + failed;
        while !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
            if last.elapsed() >= COMMIT_EVERY {
                last = Instant::now();
                number += 1;
                // A node that has too much to do may say so.
                match self.node.commit(number) {
                    Ok(()) => self.committed.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        println!("an entry was not committed: {error}");
                        self.not_committed.fetch_add(1, Ordering::Relaxed)
                    }
                };
            }
        }
    }

    /// Entries that were committed so far, and that were not.
    fn govern_counts(&self) -> (u64, u64) {
        (self.committed.load(Ordering::Relaxed), self.not_committed.load(Ordering::Relaxed))
    }
}

/// What was seen, against time: one panel for each figure, one colour for each phase.
fn chart(phases: &[&Phase]) -> String {
    type Figure = (&'static str, fn(&Sample) -> f64);
    const FIGURES: [Figure; 5] = [
        ("MiB of memory", |sample| mib(sample.usage.memory)),
        ("descriptors", |sample| sample.usage.descriptors as f64),
        ("tasks", |sample| sample.usage.tasks as f64),
        ("answered a second", |sample| sample.answered),
        ("p99, ms", |sample| sample.p99_ms),
    ];
    const STYLE: &str = "text { font: 11px system-ui, sans-serif; fill: #24292f } .axis { stroke: #8c959f; fill: none } \
        .p0 { stroke: #0969da; fill: none } .p1 { stroke: #cf222e; fill: none } \
        @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .p0 { stroke: #58a6ff } .p1 { stroke: #ff7b72 } }";
    let (width, height, left, top) = (720.0, 110.0, 60.0, 24.0);
    let whole: f64 = phases.iter().map(|phase| phase.took.as_secs_f64()).sum();
    let mut svg = String::new();
    for (at, (name, figure)) in FIGURES.iter().enumerate() {
        let base = at as f64 * (height + 30.0) + top;
        let all = phases.iter().flat_map(|phase| phase.samples.iter().map(figure));
        let most = all.fold(1e-9, f64::max) * 1.1;
        let _ = write!(
            svg,
            "<text x='{left}' y='{:.0}'>{name}, 0 to {most:.0}</text><path class='axis' d='M{left},{base:.0} v{height} h{width}'/>",
            base - 6.0
        );
        let mut from = 0.0;
        for (number, phase) in phases.iter().enumerate() {
            let points: Vec<String> = phase
                .samples
                .iter()
                .map(|sample| {
                    let x = left + (from + sample.at) / whole * width;
                    format!("{x:.1},{:.1}", base + height * (1.0 - figure(sample) / most))
                })
                .collect();
            let _ = write!(svg, "<polyline class='p{number}' points='{}'/>", points.join(" "));
            from += phase.took.as_secs_f64();
        }
    }
    let total = FIGURES.len() as f64 * (height + 30.0) + 20.0;
    let names: Vec<String> = phases
        .iter()
        .zip(["blue", "red"])
        .map(|(phase, colour)| {
            format!("{colour}: {} for {:.0} min", phase.name, phase.took.as_secs_f64() / 60.0)
        })
        .collect();
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {total}' width='{0}' height='{total}'><style>{STYLE}</style>{svg}<text x='{left}' y='{1:.0}'>{2}</text></svg>\n",
        width + left + 20.0,
        total - 6.0,
        names.join("; ")
    )
}
