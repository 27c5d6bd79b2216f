//! A daemon among clients and peers who mean it harm: each test is one way to try, over real sockets and against the real
//! program. What is defended, and by what, is in `docs/security.md`, whose table names these tests.
//!
//! Counts and times are bounded. Nothing here measures speed: a bound on time only says that nobody waits for an attacker.

mod bodies;
mod disk;
mod fetching;
mod gossip;
mod heads;
mod identity;
mod logs;
mod names;
mod peers;
mod records;
mod registry;
mod searches;
mod slow;
mod spelling;
mod table;
mod tokens;
mod town;

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use ron_core::ContentId;
use serde_json::Value;

use crate::{
    memory_of,
    settings::{ANY_PORT, Configured},
};

/// Longer than every timeout of the node together, and the end of every wait in here.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node with the usual settings and these.
fn node(more: &str) -> Configured {
    let node = Configured::start(&format!("{ANY_PORT}{more}"));
    // Until then routes are answered with 503, and that is no answer to an attack.
    node.daemon.eventually("/readyz?writes", |answer| answer.starts_with("HTTP/1.1 200"));
    node
}

/// Sends bytes as they are, and returns what comes back until the node closes. It has to: who is left open is a finding.
fn exchange(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // Who refuses early does not read the rest.
    let _ = stream.write_all(bytes);
    rest(&mut stream)
}

/// What comes until the end, where it is text.
fn rest(stream: &mut TcpStream) -> String {
    String::from_utf8_lossy(&rest_of(stream)).into_owned()
}

/// What comes until the end. A reset is an end.
fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut answer, mut some) = (Vec::new(), [0; 16 << 10]);
    loop {
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&some[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("neither an end nor an answer after {:?}", String::from_utf8_lossy(&answer));
            }
            Err(_) => break,
        }
    }
    answer
}

/// Of an answer; 0 if there is none.
fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
}

/// The body of an answer that is JSON.
fn json(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Waits until it is so, for what happens in its own time. Patience is counted in looks: a machine that was stopped meanwhile, and this
/// process with it, has not had the time that has passed.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    const BETWEEN: Duration = Duration::from_millis(20);
    let mut looks = 0;
    while !is_so() {
        looks += 1;
        assert!(looks * BETWEEN < PATIENCE, "never: {what}");
        std::thread::sleep(BETWEEN);
    }
}

/// More than threads and their allocator set aside, and less than the four gigabytes that are announced here.
const RESERVED_MAX: u64 = 1 << 30;

/// How far the memory of a process rose during `work`, in bytes: at its highest, not at the end, so what is held for a moment
/// and freed counts too. First what it touched, and then what it reserved, touched or not. Zero on systems that do not tell;
/// on Linux, which does, anything but a number is a failure.
fn peak(process: u32, work: impl FnOnce()) -> (u64, u64) {
    let levels = || ["VmHWM:", "VmPeak:"].map(|key| memory_of(process, key));
    if !cfg!(target_os = "linux") {
        work();
        return (0, 0);
    }
    // The highest that was touched is what is held now, from here on. What was reserved cannot be forgotten.
    fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
    let before = levels();
    work();
    let after = levels();
    (after[0].saturating_sub(before[0]), after[1].saturating_sub(before[1]))
}

/// Set where a test runs in a process of its own.
#[cfg(target_os = "linux")]
const ALONE: &str = "RON_ALONE";

/// Whether this process has nothing else to do than `test`. If it has, it starts one that has not, and that has to pass.
#[cfg(target_os = "linux")]
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{output:?}");
    false
}

/// What the others measure with. A bomb that was inflated and thrown away was not noticed once. Other tests of one process would
/// take memory meanwhile, and give it back.
#[test]
#[cfg(target_os = "linux")]
fn memory_that_is_held_for_a_moment_is_noticed() {
    if is_alone("abuse::memory_that_is_held_for_a_moment_is_noticed") {
        let (grown, _) = peak(std::process::id(), || drop(std::hint::black_box(vec![7_u8; 96 << 20])));
        assert!(grown > 64 << 20, "{grown} bytes more");
    }
}

/// Room for four gigabytes into which nothing is written is no memory that was touched, and was not noticed.
#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn memory_that_is_reserved_for_a_moment_is_noticed() {
    if is_alone("abuse::memory_that_is_reserved_for_a_moment_is_noticed") {
        let (_, reserved) = peak(std::process::id(), || {
            let mut room = Vec::<u8>::new();
            room.try_reserve_exact(4 << 30).unwrap();
            drop(std::hint::black_box(room));
        });
        assert!(reserved > RESERVED_MAX, "{reserved} bytes more");
    }
}

impl Configured {
    /// A request with a body, and its answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        let admin = self.daemon.admin;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        exchange(admin, &[head.as_bytes(), body].concat())
    }

    /// The same, from somebody with the token.
    fn allowed(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        self.ask(method, path, &format!("{}{headers}", self.bearer()), body)
    }

    /// Stores an object.
    fn put(&self, content: &[u8]) -> ContentId {
        let stored = self.allowed("POST", "/o", "", content);
        assert_eq!(status(&stored), 201, "{stored}");
        ContentId::of(content)
    }

    /// How much more memory it held at its highest during `work` than before. It may not even have reserved much more.
    fn growth(&self, work: impl FnOnce()) -> u64 {
        let (grown, reserved) = peak(self.daemon.child.id(), work);
        println!("{reserved} bytes more reserved");
        assert!(reserved < RESERVED_MAX, "{reserved} bytes more reserved");
        grown
    }

    /// The value of a metric, by its name and labels; zero if there is none.
    fn count(&self, series: &str) -> u64 {
        let metrics = self.daemon.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.trim().parse::<f64>().unwrap() as u64)
    }

    /// The sum of all series of a family.
    fn sum(&self, family: &str) -> u64 {
        let metrics = self.daemon.get("/metrics");
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
    }

    /// Every file below the data directory, with its length.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        walk(&self.data(), &mut found);
        found.sort();
        found
    }

    /// Files of large objects, finished or not.
    fn large_files(&self) -> usize {
        self.files()
            .iter()
            .filter(|(path, _)| path.parent().is_some_and(|dir| dir.ends_with("large")))
            .count()
    }

    /// It answers, has not been restarted by anybody, and nothing in it panicked.
    fn is_well(&self) {
        assert!(self.daemon.get("/healthz").ends_with("ok\n"));
        let metrics = self.daemon.get("/metrics");
        let panicked = metrics
            .lines()
            .filter(|line| line.contains("panicked_total{"))
            .find(|line| !line.ends_with(" 0"));
        assert_eq!(panicked, None);
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }

    /// Every operation of the admin listener: path, method, and what is said about it.
    fn operations(&self) -> Vec<(String, String, Value)> {
        let document = json(&self.daemon.get("/admin/openapi.json"));
        let mut operations = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                if method != "parameters" {
                    operations.push((path.clone(), method.to_uppercase(), operation.clone()));
                }
            }
        }
        assert!(operations.len() > 60, "{operations:?}");
        operations
    }

    /// Every route of it: path, method, whether it wants the token.
    fn routes(&self) -> Vec<(String, String, bool)> {
        let is_guarded = |operation: &Value| operation.get("security").is_some();
        let operations = self.operations().into_iter();
        operations.map(|(path, method, operation)| (path, method, is_guarded(&operation))).collect()
    }
}

fn walk(dir: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        // The node goes on meanwhile: what was there a moment ago may be gone.
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        match meta.is_dir() {
            true => walk(&entry.path(), found),
            false => found.push((entry.path(), meta.len())),
        }
    }
}

/// Bytes that do not repeat.
fn content(len: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
