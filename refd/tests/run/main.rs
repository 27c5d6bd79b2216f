//! The daemon as a person runs it: a process, its output, its admin port, a signal.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

mod abuse;
mod browser;
mod commands;
mod contrib;
mod dashboard;
mod demo;
mod documented;
mod governing;
mod keeping;
mod memory;
mod objects;
#[cfg(feature = "otel")]
mod otel;
mod resolving;
mod settings;
mod stopping;
mod topics;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

const REFD: &str = env!("CARGO_BIN_EXE_refd");

/// Addresses that stay free until somebody listens there. Below those that the system gives to whoever asks for any: there
/// another test, or only a connection of one, may take them meanwhile.
fn free_addrs<const COUNT: usize>() -> [SocketAddr; COUNT] {
    const LOWEST: u32 = 15_000;
    const HIGHEST: u32 = 32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests may run in processes of their own, side by side.
    let first = std::process::id().wrapping_mul(61);
    let free = std::iter::repeat_with(|| {
        let port = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (HIGHEST - LOWEST) + LOWEST;
        SocketAddr::from(([127, 0, 0, 1], port.try_into().unwrap()))
    });
    let mut free = free.filter(|addr| TcpListener::bind(addr).is_ok());
    std::array::from_fn(|_| free.next().unwrap())
}

/// The most that a process ever had in memory, in bytes.
fn highest(process: u32) -> u64 {
    memory_of(process, "VmHWM:")
}

/// What Linux says about the memory of a process, in bytes.
fn memory_of(process: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

struct Daemon {
    child: Child,
    output: BufReader<ChildStdout>,
    seed: String,
    admin: SocketAddr,
}

impl Daemon {
    fn start(data: &Path, seeds: &[&str]) -> Daemon {
        let flags: Vec<&str> = seeds.iter().flat_map(|seed| ["--seed", seed]).collect();
        Daemon::start_with(data, &flags, &[])
    }

    /// With these flags and variables.
    fn start_with(data: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Daemon {
        Daemon::start_at("127.0.0.1:0", data, flags, variables)
    }

    /// Where others will look for it.
    fn start_at(listen: &str, data: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Daemon {
        let mut command = Command::new(REFD);
        command.envs(variables.iter().copied());
        command.args(["run", "--listen", listen, "--admin", "127.0.0.1:0", "--data-dir"]).arg(data);
        command.args(flags);
        Daemon::spawn(command)
    }

    fn spawn(mut command: Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line
        };
        assert!(line().starts_with("node "));
        let seed = line().split_once("--seed ").unwrap().1.trim().to_owned();
        let admin = line();
        let admin = admin.split_once("http://").unwrap().1.split_once('/').unwrap().0.parse().unwrap();
        Daemon { child, output, seed, admin }
    }

    fn get(&self, path: &str) -> String {
        self.ask("GET", path, "")
    }

    /// `headers` are whole lines.
    fn ask(&self, method: &str, path: &str, headers: &str) -> String {
        let admin = self.admin;
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{headers}\r\n"))
    }

    /// A request as it is.
    fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks until the answer is so.
    fn eventually(&self, path: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut answer = String::new();
        for _ in 0..1000 {
            answer = self.get(path);
            if is_so(&answer) {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{answer}");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(killed.success());
    }

    /// The next line of its output that begins so.
    fn line_with(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while !line.starts_with(beginning) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no line begins with {beginning}");
        }
        line
    }

    /// Asks it to stop, and returns what it said.
    fn terminate(mut self) -> String {
        self.signal("TERM");
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_daemons_find_each_other_and_stop_when_asked() {
    let (one_dir, two_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Daemon::start(one_dir.path(), &[]);
    one.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 200"));
    let two = Daemon::start(two_dir.path(), &[&one.seed]);
    two.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 200"));
    two.eventually("/metrics", |answer| answer.contains("ron_dht_lookups_total{reason=\"complete\"}"));
    assert!(two.get("/version").contains("\"name\":\"refd\""));
    assert!(one.get("/healthz").ends_with("ok\n"));

    let key = std::fs::metadata(one_dir.path().join("node.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let said = two.terminate();
    assert!(said.contains("stopping\nstopped: ") && said.contains(" 0 cut off"), "{said}");

    // The same data is the same node.
    let before = one.seed.split_once('@').unwrap().0.to_owned();
    one.terminate();
    let again = Daemon::start(one_dir.path(), &[]);
    assert_eq!(again.seed.split_once('@').unwrap().0, before);
    again.terminate();
}

/// Anybody may look; who changes something shows the token that only the owner of the data can read.
#[test]
fn the_dht_is_asked_and_changed_over_http() {
    let (one_dir, two_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Daemon::start(one_dir.path(), &[]);
    let two = Daemon::start(two_dir.path(), &[&one.seed]);
    for daemon in [&one, &two] {
        daemon.eventually("/dht/status", |status| status.contains("\"peers\":1,"));
    }
    let id_of_two = two.seed.split_once('@').unwrap().0;
    assert!(one.get("/dht/peers").contains(id_of_two));

    let mode = std::fs::metadata(two_dir.path().join("token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bearer = |token: &str| format!("Authorization: Bearer {}\r\n", token.trim());
    let token = bearer(&std::fs::read_to_string(two_dir.path().join("token")).unwrap());
    let strange = bearer(&std::fs::read_to_string(one_dir.path().join("token")).unwrap());

    let key = "1f".repeat(32);
    let (provide, providers) = (format!("/dht/provide/{key}"), format!("/dht/providers/{key}?limit=1"));
    for headers in ["", &*strange] {
        let refused = two.ask("POST", &provide, headers);
        assert!(
            refused.starts_with("HTTP/1.1 401") && refused.contains("application/problem+json"),
            "{refused}"
        );
    }
    assert!(one.get(&providers).contains("\"providers\":[]"));
    let provided = two.ask("POST", &provide, &token);
    assert!(provided.starts_with("HTTP/1.1 200") && provided.contains("\"kept\":1"), "{provided}");
    let found = one.get(&providers);
    assert!(found.contains(id_of_two) && found.contains("\"reason\":\"enough\""), "{found}");
    assert!(two.ask("DELETE", &provide, "").starts_with("HTTP/1.1 401"));
    assert!(two.ask("DELETE", &provide, &token).starts_with("HTTP/1.1 200"));
    assert!(one.get(&providers).contains("\"providers\":[]"));

    let unknown = one.get("/dht/nonsense");
    assert!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    let counted = two.get("/metrics");
    let line = "refd_http_requests_total{route=\"/dht/provide/{key}\",method=\"POST\",status=\"2xx\"} 1";
    assert!(counted.contains(line), "{counted}");
    assert!(two.terminate().contains(" 0 cut off"));
    assert!(one.terminate().contains(" 0 cut off"));
}

#[test]
fn what_is_wrong_with_a_configuration_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refd.toml");
    std::fs::write(&file, "[dht]\npreste = \"lan\"\n").unwrap();
    let run = Command::new(REFD).args(["run", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success() && said.contains("preste") && said.contains("preset"), "{said}");

    std::fs::write(&file, "[dht]\npreset = \"lan\"\n").unwrap();
    let mut command = Command::new(REFD);
    command.args(["config", "print"]).arg(&file).env("XDG_DATA_HOME", dir.path());
    let check = command.output().unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    let data_dir = format!("data_dir = {:?}", dir.path().join("refd"));
    for setting in ["preset = \"lan\"", "server = true", &data_dir] {
        assert!(check.status.success() && said.contains(setting), "{said}");
    }

    std::fs::write(&file, "[net]\nlisten = [\"0.0.0.0:4710\"]\n").unwrap();
    let check = command.output().unwrap();
    let said = String::from_utf8(check.stderr).unwrap();
    let words = "net.external is not set and net.listen is 0.0.0.0; set net.external = [\"YOUR_IP:4710\"]";
    assert!(!check.status.success() && said.contains(words), "{said}");

    assert_eq!(check.status.code(), Some(8));
    let check = command.env("REFD_LOG", "ron_dht=loud").output().unwrap();
    let said = String::from_utf8(check.stderr).unwrap();
    assert!(!check.status.success() && said.starts_with("refd: REFD_LOG: "), "{said}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(REFD);
    command.args(["run", "--admin", "127.0.0.1:0", "--listen", &addr, "--data-dir"]).arg(dir.path());
    let run = command.output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success() && said.contains(&addr), "{said}");
    assert!(said.contains("choose another with --listen or net.listen"), "{said}");
    let run =
        Command::new(REFD).args(["run", "--admin", &addr, "--data-dir"]).arg(dir.path()).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(said.contains(&addr) && said.contains("choose another with --admin or admin.listen"), "{said}");
    let name = Command::new(REFD).args(["run", "--listen", "localhost:1"]).output().unwrap();
    let said = String::from_utf8(name.stderr).unwrap();
    assert!(said.contains("\"localhost:1\" is not IP:PORT; names are not looked up"), "{said}");
    // Nobody is there to be asked.
    let [nobody] = free_addrs();
    let ask = Command::new(REFD).args(["ls", "--node", &format!("http://{nobody}")]).output().unwrap();
    let said = String::from_utf8(ask.stderr).unwrap();
    assert!(ask.status.code() == Some(5) && said.contains("is `refd run` running"), "{said}");
}

/// `refd run | head -3` panicked as it said that it stops, and did not stop in order.
#[test]
fn a_node_whose_output_nobody_reads_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = Daemon::start(dir.path(), &[]);
    // Its reader goes, and one that has nothing to say takes its place here.
    let mut silent = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    one.output = BufReader::new(silent.stdout.take().unwrap());
    silent.wait().unwrap();
    one.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 200"));
    one.signal("TERM");
    assert!(one.child.wait().unwrap().success());
}

/// A log is called after its node unless it has a name of its own. A node that lost its key has another id, and refused its own
/// log without a word on what to do about it.
#[test]
fn a_node_with_another_key_is_told_how_to_keep_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (data, key) = (dir.path().join("data"), dir.path().join("ann.key").display().to_string());
    let one = Daemon::start(&data, &[]);
    let id = one.seed.split_once('@').unwrap().0.to_owned();
    assert!(Command::new(REFD).args(["registry", "key", &key]).output().unwrap().status.success());
    let signer = format!("ann={key}");
    let init = ["registry", "init", "--needed", "1", "--signer", &signer];
    assert!(objects::refd(&one, &data, &init).output().unwrap().status.success());
    one.terminate();
    std::fs::remove_file(data.join("node.key")).unwrap();
    let mut command = Command::new(REFD);
    command.args(["run", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
    let refused = command.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(1) && said.contains("registry.origin = \"refd/OLD_NODE_ID\""),
        "{said}"
    );
    let again = Daemon::start_with(&data, &[], &[("REFD_REGISTRY__ORIGIN", &format!("refd/{id}"))]);
    assert!(!again.seed.starts_with(&id) && again.get("/registry/head").contains(&format!("refd/{id}")));
    again.terminate();
}

#[test]
fn a_data_directory_that_is_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let one = Daemon::start(dir.path(), &[]);
    let mut command = Command::new(REFD);
    command.args(["run", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let words = format!("{} is in use by another node", dir.path().display());
    assert!(said.contains(&words) && said.contains("--data-dir"), "{said}");
    one.terminate();
}
